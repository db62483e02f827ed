"""Tests of nodes, gangs, queues, and the order that a snapshot requires."""

from __future__ import annotations

import pytest

from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.snapshot import UNSCHEDULABLE_TAINT, Gang, Node, Queue, Snapshot


def test_snapshots_find_things_by_name() -> None:
    node, gang, queue = Node("n", ()), Gang("ns/g"), Queue("q")
    snapshot = Snapshot(0, nodes=(node,), gangs=(gang,), queues=(queue,))
    assert snapshot.node_by_name == {"n": node}
    assert snapshot.gang_by_key == {"ns/g": gang}
    assert snapshot.queue_by_name == {"q": queue}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"nodes": (Node("b", ()), Node("a", ()))}, "snapshot nodes: 'a' out of order"),
        ({"nodes": (Node("a", ()), Node("a", ()))}, "snapshot nodes: 'a' twice"),
        ({"gangs": (Gang("ns/b"), Gang("ns/a"))}, "snapshot gangs: 'ns/a' out of order"),
        ({"queues": (Queue("q"), Queue("q"))}, "snapshot queues: 'q' twice"),
    ],
)
def test_snapshots_refuse_what_is_out_of_order(parts: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Snapshot(0, **parts)  # type: ignore[arg-type]


def test_a_cordoned_node_is_a_tainted_one() -> None:
    spot = Taint("spot", "", TaintEffect.NO_SCHEDULE)
    cordon = Taint(UNSCHEDULABLE_TAINT, "", TaintEffect.NO_SCHEDULE)
    assert Node("n", (), taints=(spot,)).marks == (spot,)
    assert Node("n", (), taints=(spot,), unschedulable=True).marks == (spot, cordon)


def test_the_cordon_counts_once() -> None:
    # The node controller adds the taint shortly after the field is set.
    cordon = Taint(UNSCHEDULABLE_TAINT, "", TaintEffect.NO_SCHEDULE)
    assert Node("n", (), taints=(cordon,), unschedulable=True).marks == (cordon,)


def test_gang_keys_have_a_namespace_and_a_name() -> None:
    gang = Gang("team/job")
    assert (gang.namespace, gang.name) == ("team", "job")
