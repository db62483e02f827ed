"""Tests of the records of moves, and of the capacity that they reserve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.decisions import Evict
from optsched.cluster.relocation import (
    MOVES,
    PATIENCE_MS,
    Move,
    is_successor,
    kept_places,
    read_moves,
    records,
    relocate,
    successor_of,
    write_moves,
)
from optsched.cluster.snapshot import Gang, GangPhase, Node, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus

ONE = TaskShape((("cpu", 1000),))
MOVE = Move("ns/a", "u-a", "n1", "ns/pod:a", "rs", "default", (("cpu", 1000),), 1000)

texts = st.text('ab-/:"\\{é', max_size=5)
moves = st.builds(
    Move,
    task=texts,
    uid=texts,
    to=texts,
    gang=texts,
    owner=texts,
    queue=texts,
    request=st.dictionaries(texts, st.integers(0, 2**60), max_size=2).map(
        lambda found: tuple(sorted(found.items()))
    ),
    at_ms=st.integers(0, 2**50),
)


def pod(name: str, status: TaskStatus, node: str = "", **fields: object) -> Gang:
    """Return a bare pod."""
    key = f"ns/pod:{name}"
    fields = {"owner": "rs", "uid": f"u-{name}", **fields}
    task = Task(f"ns/{name}", ONE, status, gang=key, node=node, **fields)  # type: ignore[arg-type]
    return Gang(key, min_member=1, tasks=(task,), phase=GangPhase.RUNNING, is_implicit=True)


def world(*gangs: Gang, text: str = write_moves([MOVE]), now_ms: int = 2000) -> Snapshot:
    """Return a snapshot with some pods, and the gang for which a pod moved."""
    asks = Gang("ns/asks", annotations={MOVES: text})
    every = sorted([*gangs, asks], key=lambda g: g.key)
    held = [t for g in every for t in g.tasks if t.status.holds_resources]
    nodes = tuple(
        Node(n, (("cpu", 4000),), residents=tuple(t for t in held if t.node == n))
        for n in ("n0", "n1")
    )
    return Snapshot(now_ms, nodes, tuple(every))


def status_of(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    tasks = (t for g in snapshot.gangs for t in g.tasks)
    return {t.key: (t.status.value, t.node or t.nominated_node) for t in tasks}


@given(st.lists(moves, max_size=3, unique_by=lambda m: m.task))
def test_what_is_written_is_read_again(some: list[Move]) -> None:
    assert read_moves(write_moves(some)) == tuple(sorted(some, key=lambda m: m.task))


@given(st.text(max_size=20))
def test_whatever_is_written_there_nothing_breaks(text: str) -> None:
    assert isinstance(read_moves(text), tuple)


def test_a_snapshot_without_records_stays_the_same() -> None:
    snapshot = world(pod("a", TaskStatus.RUNNING, "n0"), text="")
    assert kept_places(snapshot).snapshot is snapshot


def test_the_place_is_kept_while_the_pod_leaves_and_after_that() -> None:
    for gangs in ([pod("a", TaskStatus.RELEASING, "n0")], []):
        kept = kept_places(world(*gangs))
        assert kept.left == {"ns/asks": (MOVE,)}
        assert status_of(kept.snapshot)["ns/a~"] == ("Expected", "n1")
        (resident,) = kept.snapshot.node_by_name["n1"].residents
        assert is_successor(resident.key)


def test_the_pod_that_has_come_is_nominated() -> None:
    kept = kept_places(world(pod("b", TaskStatus.PENDING)))
    assert kept.left == {"ns/asks": ()}
    assert status_of(kept.snapshot) == {"ns/b": ("Pending", "n1")}


@pytest.mark.parametrize(
    "other",
    [
        pod("b", TaskStatus.PENDING, owner="other"),
        pod("b", TaskStatus.PENDING, nominated_node="n0"),
        pod("b", TaskStatus.RUNNING, "n0"),
    ],
    ids=["of another owner", "with a place", "running"],
)
def test_another_pod_does_not_get_the_place(other: Gang) -> None:
    kept = kept_places(world(other))
    assert kept.left == {"ns/asks": (MOVE,)}
    assert status_of(kept.snapshot)["ns/b"] == status_of(world(other))["ns/b"]


def test_a_pod_of_another_size_does_not_get_the_place() -> None:
    large = pod("b", TaskStatus.PENDING)
    task = replace(large.tasks[0], shape=TaskShape((("cpu", 2000),)))
    assert kept_places(world(replace(large, tasks=(task,)))).left == {"ns/asks": (MOVE,)}


@pytest.mark.parametrize(
    "snapshot",
    [
        world(pod("a", TaskStatus.RUNNING, "n0")),
        world(now_ms=1000 + PATIENCE_MS),
        world(text=write_moves([replace(MOVE, to="n9")])),
        world(text=write_moves([replace(MOVE, gang="ns/gone")])),
    ],
    ids=["it never left", "nobody came", "the node is gone", "its PodGroup is gone"],
)
def test_a_place_is_given_up(snapshot: Snapshot) -> None:
    kept = kept_places(snapshot)
    assert kept.left == {"ns/asks": ()}
    assert kept.snapshot.node_by_name["n1"].residents == ()
    assert records(snapshot, []) == {"ns/asks": ""}


def test_a_gang_gets_its_places_once_it_is_there() -> None:
    both = [replace(MOVE, task=f"ns/g-{i}", gang="ns/g", owner="job") for i in range(2)]
    gang = Gang("ns/g", min_member=2)
    come = [Task(f"ns/new-{i}", ONE, TaskStatus.PENDING, gang="ns/g") for i in range(2)]
    text = write_moves(both)
    part = kept_places(world(replace(gang, tasks=(come[0],)), text=text))
    assert part.left == {"ns/asks": tuple(both)}
    whole = kept_places(world(replace(gang, tasks=tuple(come)), text=text))
    assert whole.left == {"ns/asks": ()}
    assert {at for _, at in status_of(whole.snapshot).values()} == {"n1"}


def test_a_plan_adds_to_the_records_what_it_moves() -> None:
    snapshot = world(pod("c", TaskStatus.RUNNING, "n0"))
    added = records(snapshot, [Evict("ns/c", "n0", "consolidation", "ns/asks", to="n1")])
    assert [m.task for m in read_moves(added["ns/asks"])] == ["ns/a", "ns/c"]
    assert records(snapshot, [Evict("ns/c", "n0", "preempt", "ns/asks")]) == {}


def test_what_moves_leaves_and_waits() -> None:
    snapshot = world(pod("c", TaskStatus.RUNNING, "n0"), text="")
    after = relocate(snapshot, {"ns/c": "n1"})
    assert status_of(after) == {"ns/c": ("Releasing", "n0"), "ns/c~": ("Pending", "n1")}
    assert successor_of(snapshot.gangs[-1].tasks[0], "n1") in after.gangs[-1].tasks
