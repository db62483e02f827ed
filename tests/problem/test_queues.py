"""Tests of the tree of queues: parents, children, and reasons why a queue is closed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Queue, QueueState
from optsched.problem.arrays import UNLIMITED
from optsched.problem.queues import NEVER_MS, Demand, QueueArrays, queue_arrays

RESOURCES = ("pods", "cpu", "memory")


def arrays(*queues: Queue) -> QueueArrays:
    ordered = sorted(queues, key=lambda q: q.name)
    none = np.zeros((len(queues), len(RESOURCES)), np.int64)
    nobody = np.zeros(len(queues), np.bool_)
    demand = Demand(none, none, none, np.full(len(queues), NEVER_MS), nobody)
    return queue_arrays(ordered, RESOURCES, demand)


def closed(*queues: Queue) -> dict[str, str]:
    found = arrays(*queues)
    return {found.names[i]: str(reason) for i, reason in found.closed.items()}


ROOT = Queue("root", parent="")
TREE = (ROOT, Queue("org"), Queue("team", parent="org"), Queue("user", parent="team"))


def test_subtrees_reach_down_to_the_leaves() -> None:
    found = arrays(*TREE)
    below = {
        name: {found.names[j] for j in np.flatnonzero(row)}
        for name, row in zip(found.names, found.subtree, strict=True)
    }
    assert below == {
        "root": {"root", "org", "team", "user"},
        "org": {"org", "team", "user"},
        "team": {"team", "user"},
        "user": {"user"},
    }
    assert not found.is_flat
    assert arrays(ROOT, Queue("a"), Queue("b")).is_flat


def test_amounts_that_are_not_set() -> None:
    queue = Queue(
        "q",
        capability=(("cpu", 4000),),
        deserved=(("cpu", 0),),
        guarantee=(("memory", 5),),
    )
    found = arrays(queue)
    assert found.capability.tolist() == [[UNLIMITED, 4000, UNLIMITED]]
    assert found.deserved.tolist() == [[0, 0, 0]]
    assert found.guarantee.tolist() == [[0, 0, 5]]


def test_a_capability_of_nothing_is_a_ceiling() -> None:
    assert arrays(Queue("q", capability=(("cpu", 0),))).capability[0, 1] == 0


def test_open_queues_are_open() -> None:
    assert closed(*TREE) == {}
    assert closed(Queue("alone", parent="root")) == {}  # the root need not be listed
    assert closed(Queue("alone", parent="")) == {}


@pytest.mark.parametrize("state", [QueueState.CLOSED, QueueState.CLOSING, QueueState.UNKNOWN])
def test_what_stands_below_a_closed_queue_is_closed_with_it(state: QueueState) -> None:
    root, org, team, user = TREE
    why = f"queue team is {state}; only an Open queue takes new work"
    assert closed(root, org, replace(team, state=state), user) == {
        "team": f"QueueNotOpen: {why}",
        "user": f"QueueNotOpen: queue user: its ancestor {why}",
    }


def test_an_unreadable_queue_closes_what_stands_below_it() -> None:
    root, org, team, user = TREE
    problem = Reason(ReasonCode.INVALID_QUEUE, "spec.weight is 0")
    assert closed(root, replace(org, problem=problem), team, user) == {
        "org": "InvalidQueue: queue org: spec.weight is 0",
        "team": "InvalidQueue: queue team: its ancestor queue org: spec.weight is 0",
        "user": "InvalidQueue: queue user: its ancestor queue org: spec.weight is 0",
    }


def test_the_queue_itself_is_blamed_before_its_ancestors() -> None:
    root, org, team, user = TREE
    shut = [replace(q, state=QueueState.CLOSED) for q in (org, user)]
    assert closed(root, *shut, team)["user"].startswith("QueueNotOpen: queue user is Closed")


def test_a_missing_parent_closes_everything_below_it() -> None:
    why = "queue team: its parent gone does not exist"
    assert closed(ROOT, Queue("team", parent="gone"), Queue("user", parent="team")) == {
        "team": f"QueueNotFound: {why}",
        "user": f"QueueNotFound: queue user: its ancestor {why}",
    }


@pytest.mark.parametrize(
    "circle",
    [
        (Queue("a", parent="a"),),
        (Queue("a", parent="b"), Queue("b", parent="a")),
        (Queue("a", parent="b"), Queue("b", parent="c"), Queue("c", parent="a")),
    ],
    ids=len,
)
def test_circles_are_cut_and_close_what_hangs_on_them(circle: tuple[Queue, ...]) -> None:
    found = closed(ROOT, *circle, Queue("healthy"), Queue("tail", parent="a"))
    own = "queue {} is its own ancestor: its parents form a cycle"
    wanted = {q.name: f"InvalidQueue: {own.format(q.name)}" for q in circle}
    wanted["tail"] = f"InvalidQueue: queue tail: its ancestor {own.format('a')}"
    assert found == wanted


def test_the_root_is_nobodys_child() -> None:
    found = arrays(replace(ROOT, parent="org"), Queue("org"))
    assert dict(zip(found.names, found.parent_of.tolist(), strict=True)) == {"org": 1, "root": -1}
    assert not found.closed


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        arrays(ROOT).weight[0] = 2
