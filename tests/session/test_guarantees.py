"""Tests of the guarantees that the capacity of the cluster covers."""

from __future__ import annotations

import pytest

from optsched.cluster.snapshot import Queue
from optsched.session.guarantees import Unheld, claims, hold_guarantees
from tests.support.small import CPU, cluster, node

NODES = [node("a", 4), node("b", 4, ready=False)]


def queue(name: str, cpus: int, born: int = 0, parent: str = "root") -> Queue:
    return Queue(name, guarantee=((CPU, cpus * 1000),), created_ms=born, parent=parent)


def unheld(*queues: Queue) -> list[tuple[str, int, int]]:
    """Return each uncovered guarantee's queue, the capacity, and the older guarantees, in CPUs."""
    found = hold_guarantees(cluster(NODES, [], queues))[1]
    assert all(each.resource == CPU for each in found)
    return [(each.queue, each.capacity // 1000, each.older // 1000) for each in found]


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        ([queue("a", 8)], []),
        ([queue("a", 9)], [("a", 8, 0)]),
        ([queue("a", 5), queue("b", 3, 1)], []),
        ([queue("a", 5), queue("b", 4, 1)], [("b", 8, 5)]),
        ([queue("a", 5, 1), queue("b", 4)], [("a", 8, 4)]),
        ([queue("a", 9), queue("b", 8, 1)], [("a", 8, 0)]),
        ([queue("a", 5), queue("b", 4, 1), queue("c", 3, 2)], [("b", 8, 5)]),
        # The guarantee of a child queue counts within that of its parent.
        ([queue("a", 6), queue("b", 6, 1, "a"), queue("c", 2, 2)], []),
        ([queue("a", 4), queue("b", 6, 1, "a"), queue("c", 3, 2)], [("c", 8, 6)]),
        ([queue("a", 99, 0, "b"), queue("b", 2, 0, "a"), queue("c", 6, 1)], [("a", 8, 0)]),
        ([queue("a", 2, 0, "a"), queue("c", 7, 1)], [("c", 8, 2)]),
        ([queue("a", 99, 0, "gone")], [("a", 8, 0)]),
    ],
)
def test_what_the_cluster_never_could_hold(
    queues: list[Queue], expected: list[tuple[str, int, int]]
) -> None:
    assert unheld(*queues) == expected


def test_only_what_can_not_be_held_is_left_out() -> None:
    gpu = ("nvidia.com/gpu", 1)
    both = Queue("a", guarantee=((CPU, 1000), gpu))
    held, left_out = hold_guarantees(cluster(NODES, [], [both]))
    assert held.queue_by_name["a"].guarantee == ((CPU, 1000),)
    assert left_out == (Unheld("a", "nvidia.com/gpu", 1, "", 0, 0),)


def test_nothing_changes_where_all_can_be_held_or_there_is_no_node() -> None:
    for nodes in (NODES, []):
        snapshot = cluster(nodes, [], [queue("a", 8 if nodes else 99)])
        assert hold_guarantees(snapshot) == (snapshot, ())
        assert hold_guarantees(snapshot)[0] is snapshot


def test_claims_add_up_the_tree() -> None:
    parents = {"a": "", "b": "a", "c": "a", "d": ""}
    assert claims({"a": 3, "b": 1, "c": 1, "d": 4}, parents) == {
        "a": 3,
        "b": 1,
        "c": 1,
        "d": 4,
        "": 7,
    }
    assert claims({"a": 1, "b": 2, "c": 2}, parents)[""] == 4


def test_what_a_queue_above_may_never_have_reserves_nothing() -> None:
    top = Queue("top", capability=((CPU, 3000),))
    queues = [top, queue("a", 2, 0, "top"), queue("b", 2, 1, "top"), queue("c", 1, 2, "top")]
    held, left_out = hold_guarantees(cluster(NODES, [], queues))
    assert left_out == (Unheld("b", CPU, 2000, "top", 3000, 2000),)
    assert [q.name for q in held.queues if q.guarantee] == ["a", "c"]
