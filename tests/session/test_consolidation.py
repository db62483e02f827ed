"""Moves played to the end: all pods run, none moves twice, and nominations are respected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.relocation import MOVES, PATIENCE_MS, kept_places, read_moves, records
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Gang, GangPhase, Queue
from optsched.cluster.task import PodTerm, TaskStatus
from optsched.plugins.eviction.entitled import Entitled
from optsched.plugins.eviction.moves import Consolidation
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.small import GPU, HOST, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, consolidation, preempt, reclaim, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: drf}, {name: predicates}, {name: capacity}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks, node-score]
solver: {engine: cpsat, budget: 400ms}
"""
POLICY = parse_policy(MODEL, "test.yaml")
LIMITS = Limits(budget_ms=None, num_workers=1)
SECOND_MS = 1000


def decide(snapshot: Snapshot, more: str = "") -> Plan:
    policy = parse_policy(MODEL + more, "test.yaml") if more else POLICY
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=LIMITS))
    assert report.trace.violations == ()
    return report.plan


class World:
    """A cluster that executes plans; evicted pods are recreated some rounds later."""

    def __init__(
        self, nodes: list[Node], gangs: list[Gang], queues: list[Queue], late: int
    ) -> None:
        self.nodes, self.queues, self.late = nodes, queues, late
        self.gangs = {g.key: g for g in gangs}
        self.round = 0
        self.due: list[tuple[int, Task, Gang]] = []
        self.num_moved: list[int] = []

    def snapshot(self) -> Snapshot:
        now_ms = self.round * SECOND_MS
        return cluster(self.nodes, list(self.gangs.values()), self.queues, now_ms=now_ms)

    def step(self) -> Plan:
        """Run one session and execute its plan."""
        before = self.snapshot()
        plan = decide(before)
        for key, text in records(before, plan.actions).items():
            notes = {k: v for k, v in self.gangs[key].annotations.items() if k != MOVES}
            notes |= {MOVES: text} if text else {}
            self.gangs[key] = replace(self.gangs[key], annotations=notes)
        self._leave_and_come()
        for action in plan.actions:
            if isinstance(action, Allocate):
                self._change(action.task, lambda t, n=action.node: running(t, n))
            elif isinstance(action, Nominate):
                self._change(action.task, lambda t, n=action.node: replace(t, nominated_node=n))
            elif isinstance(action, Evict):
                self._change(action.task, lambda t: replace(t, status=TaskStatus.RELEASING))
        self.num_moved.append(sum(isinstance(a, Evict) for a in plan.actions))
        self.round += 1
        return plan

    def _change(self, key: str, how: Callable[[Task], Task]) -> None:
        for g in self.gangs.values():
            if any(t.key == key for t in g.tasks):
                tasks = tuple(how(t) if t.key == key else t for t in g.tasks)
                self.gangs[g.key] = replace(g, tasks=tasks)

    def _leave_and_come(self) -> None:
        for g in list(self.gangs.values()):
            for task in g.tasks:
                if task.status is TaskStatus.RELEASING:
                    left = tuple(t for t in self.gangs[g.key].tasks if t.key != task.key)
                    self.gangs[g.key] = replace(self.gangs[g.key], tasks=left)
                    self.due.append((self.round + self.late, task, g))
                    if g.is_implicit:
                        del self.gangs[g.key]
        for due in [d for d in self.due if d[0] <= self.round]:
            self.due.remove(due)
            self._come(*due[1:])

    def _come(self, old: Task, was: Gang) -> None:
        key = f"{old.key}-{self.round}"
        fresh = replace(
            old, key=key, uid=key, status=TaskStatus.PENDING, node="", nominated_node=""
        )
        if was.is_implicit:
            own = f"ns/pod:{fresh.name}"
            fresh = replace(fresh, gang=own)
            self.gangs[own] = replace(was, key=own, tasks=(fresh,), annotations={})
        else:
            home = self.gangs[was.key]
            tasks = tuple(sorted((*home.tasks, fresh), key=lambda t: t.order))
            self.gangs[was.key] = replace(home, tasks=tasks)

    def assert_all_run(self) -> None:
        for g in self.gangs.values():
            assert all(t.status is TaskStatus.RUNNING for t in g.tasks), g.key
        for n in self.snapshot().nodes:
            used = sum(dict(t.shape.request).get(GPU, 0) for t in n.residents)
            assert used <= dict(n.allocatable)[GPU]


def loner(name: str, where: str, owner: str = "rs", gpus: int = 1) -> Gang:
    """Return a bare pod of a ReplicaSet."""
    key = f"ns/pod:{name}"
    task = gang("x", ("", 1, shape(1, gpus))).tasks[0]
    task = replace(task, key=f"ns/{name}", uid=name, gang=key, role="", owner=owner)
    task = replace(running(task, where), is_movable=True)
    return Gang(key, min_member=1, tasks=(task,), phase=GangPhase.RUNNING, is_implicit=True)


def grouped(name: str, *where: str, least: int | None = None) -> Gang:
    made = gang(name, ("w", len(where), shape(1, 1)), least=least)
    tasks = tuple(
        replace(running(t, n), uid=t.key, owner="job", is_movable=True)
        for t, n in zip(made.tasks, where, strict=True)
    )
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def nodes(number: int, gpu: int = 4) -> list[Node]:
    return [node(f"n{i}", cpu=64, gpu=gpu) for i in range(number)]


def fragments() -> list[Gang]:
    """Return pods that use two GPUs on each of four nodes with four GPUs."""
    return [loner(f"p{i}-{k}", f"n{i}", f"rs-{k}") for i in range(4) for k in range(2)]


@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("num_wants", [1, 2])
def test_all_run_in_the_end_and_then_nothing_moves(late: int, num_wants: int) -> None:
    wants = [gang(f"want{i}", ("w", 1, shape(1, 4))) for i in range(num_wants)]
    world = World(nodes(4), [*fragments(), *wants], [], late)
    for _ in range(late + 5):
        world.step()
    world.assert_all_run()
    assert sum(world.num_moved) == 2 * num_wants
    for _ in range(10):
        assert world.step().actions == ()
    assert not any(MOVES in g.annotations for g in world.gangs.values())


@pytest.mark.parametrize("late", [0, 3])
def test_a_gang_that_moves_as_a_whole_comes_back_as_a_whole(late: int) -> None:
    pairs = [grouped("a", "n0", "n1"), grouped("b", "n2", "n3")]
    wants = gang("want", ("w", 2, shape(1, 4)))
    world = World(nodes(4), [*pairs, wants], [], late)
    for _ in range(late + 6):
        world.step()
    world.assert_all_run()
    assert sum(world.num_moved) == 2
    for _ in range(10):
        assert world.step().actions == ()


def random_world(seed: int, late: int) -> World:
    """Return a world of four nodes with random pods and gangs, and waiting gangs."""
    rng = np.random.default_rng(seed)
    left = {f"n{i}": 4 for i in range(4)}
    gangs: list[Gang] = []
    for i in range(int(rng.integers(4, 10))):
        where = [str(n) for n in rng.choice(list(left), int(rng.choice([1, 1, 1, 2])))]
        if any(left[n] < where.count(n) for n in where):
            continue
        for n in where:
            left[n] -= 1
        least = int(rng.integers(1, len(where) + 1))
        pair = grouped(f"g{i}", *where, least=least)
        gangs.append(pair if len(where) > 1 else loner(f"p{i}", where[0], f"rs-{i % 2}"))
    for i in range(int(rng.integers(1, 4))):
        number, size = int(rng.choice([1, 2])), int(rng.choice([2, 3, 4]))
        gangs.append(gang(f"want{i}", ("w", number, shape(1, size)), created_ms=i))
    return World(nodes(4), gangs, [], late)


@pytest.mark.parametrize("seed", range(num_examples(20)))
def test_whatever_moves_nobody_is_lost_and_it_ends(seed: int) -> None:
    world = random_world(seed, late=seed % 3)
    ran = sum(bool(t.node) for g in world.gangs.values() for t in g.tasks)
    for _ in range(14):
        world.step()
    assert world.num_moved[-6:] == [0] * 6
    tasks = [t for g in world.gangs.values() for t in g.tasks]
    waits = [t for t in tasks if t.status is not TaskStatus.RUNNING]
    assert all("want" in t.key for t in waits), "who ran runs"
    assert sum("want" not in t.key for t in tasks) == ran
    assert not any(MOVES in g.annotations for g in world.gangs.values())
    for n in world.snapshot().nodes:
        assert sum(dict(t.shape.request)[GPU] for t in n.residents) <= 4


def moved_once(late: int = 100) -> World:
    """Return a world with one pod moving between n0 and n1 that is recreated late."""
    gangs = [loner("x", "n0"), loner("y", "n1"), gang("want", ("w", 1, shape(1, 2)))]
    world = World(nodes(2, gpu=2), gangs, [], late)
    world.step()
    world.step()
    world.step()
    assert world.gangs["ns/want"].tasks[0].node
    return world


def test_who_has_waited_for_long_gets_room_by_moves_and_needs_no_booking() -> None:
    gangs = [loner("x", "n0"), loner("y", "n1"), gang("want", ("w", 1, shape(1, 2)))]
    world = World(nodes(2, gpu=2), gangs, [], 0)
    world.round = 1000
    plan = world.step()
    assert sum(isinstance(a, Evict) for a in plan.actions) == 1
    assert plan.pending["ns/want"].message == (
        "capacity is reserved for it on nodes with terminating pods"
    )
    for _ in range(4):
        world.step()
    world.assert_all_run()


def test_what_is_on_its_way_is_told_of_nobody() -> None:
    gangs = [loner("x", "n0"), loner("y", "n1"), gang("want", ("w", 1, shape(1, 2)))]
    world = World(nodes(2, gpu=2), gangs, [], 100)
    assert set(world.step().pending) == {"ns/want"}
    world.step()
    for _ in range(3):
        assert world.step().pending.keys() <= {"ns/want"}


def test_nobody_else_takes_the_place_that_is_kept() -> None:
    world = moved_once()
    world.gangs["ns/thief"] = gang("thief", ("w", 1, shape(1, 1)))
    assert world.step().actions == ()
    world.due = [(0, task, was) for _, task, was in world.due]
    world.step()
    world.step()
    assert not world.gangs["ns/thief"].tasks[0].node
    assert all(t.node for g in world.gangs.values() for t in g.tasks if g.key != "ns/thief")


def test_the_share_of_its_queue_is_kept_too() -> None:
    tight = [Queue("tight", capability=((GPU, 1),))]
    x = replace(loner("x", "n0"), queue="tight")
    x = replace(x, tasks=x.tasks)
    y = replace(loner("y", "n1"), tasks=(replace(loner("y", "n1").tasks[0], is_movable=False),))
    gangs = [x, y, gang("want", ("w", 1, shape(1, 2)))]
    world = World([*nodes(2, gpu=2), node("n2", cpu=8, gpu=1)], gangs, tight, 3)
    spare = gang("spare", ("w", 1, shape(1, 1)), queue="tight")
    world.step()
    world.step()
    assert world.num_moved[0] == 1
    world.gangs["ns/spare"] = spare
    for _ in range(5):
        world.step()
    assert not world.gangs["ns/spare"].tasks[0].node
    back = [t for g in world.gangs.values() for t in g.tasks if t.key.startswith("ns/x")]
    assert [t.status for t in back] == [TaskStatus.RUNNING]


def test_a_place_is_not_kept_for_ever() -> None:
    world = moved_once()
    world.gangs["ns/other"] = gang("other", ("w", 1, shape(1, 1)))
    world.round += PATIENCE_MS // SECOND_MS
    world.step()
    assert world.gangs["ns/other"].tasks[0].node
    assert not any(MOVES in g.annotations for g in world.gangs.values())


def test_a_place_is_not_kept_on_a_node_that_is_gone() -> None:
    world = moved_once()
    (key,) = (g.key for g in world.gangs.values() if MOVES in g.annotations)
    (move,) = read_moves(world.gangs[key].annotations[MOVES])
    world.nodes = [n if n.name != move.to else replace(n, ready=False) for n in world.nodes]
    assert kept_places(world.snapshot()).left == {key: ()}


@pytest.mark.parametrize("text", ["", "{", "7", "[1]", '[{"pod": "ns/x"}]', '{"a": 1}'])
def test_a_record_without_a_reading_is_none(text: str) -> None:
    assert read_moves(text) == ()


def test_the_verifier_looks_at_the_end() -> None:
    """The moves go to a full node and to an unknown node, and one moved pod has no owner."""
    wants = gang("want", ("w", 1, shape(1, 2)))
    before = cluster(nodes(2, gpu=2), [loner("x", "n0"), loner("y", "n1"), wants])
    rules = POLICY.rules.guarded_by(Entitled(POLICY.rules), Consolidation())
    place = Nominate("ns/want-w-0", "n0", "ns/want")

    def problems(snapshot: Snapshot, to: str) -> str:
        move = Evict("ns/x", "n0", "consolidation", "ns/want", to)
        return "; ".join(map(str, verify_actions(snapshot, [move, place], rules)))

    assert problems(before, "n1") == ""
    assert "fits: node n0" in problems(before, "n0")
    assert "it has no node to restart on" in problems(before, "")
    assert "node n9 does not exist" in problems(before, "n9")
    fixed = loner("x", "n0")
    fixed = replace(fixed, tasks=(replace(fixed.tasks[0], is_movable=False),))
    assert "no controller would restart it" in problems(
        cluster(nodes(2, gpu=2), [fixed, loner("y", "n1"), wants]), "n1"
    )
    high = replace(loner("x", "n0"), priority=5)
    found = problems(cluster(nodes(2, gpu=2), [high, loner("y", "n1"), wants]), "n1")
    assert "it has a higher priority" in found


# --- how many, and next to whom ------------------------------------------------------------------


def halves(number: int) -> tuple[list[Node], list[Gang]]:
    """Return nodes of four GPUs with a two-GPU pod on each."""
    there = [node(f"n{i}", cpu=64, gpu=4) for i in range(number)]
    small = [gang(f"small{i}", ("w", 1, shape(1, 2))) for i in range(number)]
    runs = [
        replace(g, tasks=(replace(running(g.tasks[0], f"n{i}"), is_movable=True),))
        for i, g in enumerate(small)
    ]
    return there, [replace(g, phase=GangPhase.RUNNING) for g in runs]


@pytest.mark.parametrize(("most", "moves"), [(0, 2), (1, 0), (2, 2)])
def test_no_more_move_than_the_policy_says(most: int, moves: int) -> None:
    there, small = halves(4)
    want = gang("want", ("w", 2, shape(1, 4)))
    plan = decide(cluster(there, [*small, want]), f"maxMoves: {most}\n")
    assert sum(isinstance(a, Evict) for a in plan.actions) == moves


def test_a_gang_that_needs_fewer_moves_starts_where_few_may_move() -> None:
    there, small = halves(4)
    wants = [gang("many", ("w", 2, shape(1, 4))), gang("one", ("w", 1, shape(1, 4)))]
    plan = decide(cluster(there, [*small, *wants]), "maxMoves: 1\n")
    assert [a.preemptor for a in plan.actions if isinstance(a, Evict)] == ["ns/one"]


def test_pods_move_next_to_those_that_look_at_others() -> None:
    there, small = halves(4)
    app = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
    alone = shape(1, 2, pod_anti_affinity=(PodTerm(app, ("ns",), None, HOST),))
    shy = replace(small[3].tasks[0], shape=alone, labels={"app": "x"})
    gangs = [*small[:3], replace(small[3], tasks=(shy,))]
    plan = decide(cluster(there, [*gangs, gang("want", ("w", 2, shape(1, 4)))]))
    moves = {a.task: a.to for a in plan.actions if isinstance(a, Evict)}
    assert len(moves) == 2
    assert "n3" in moves.values()
    assert shy.key not in moves
