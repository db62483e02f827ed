"""Plans with moves, each with one mistake, and the violations that the verifier reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, Nominate
from optsched.cluster.selectors import LabelSelector, Taint, TaintEffect
from optsched.cluster.snapshot import Budget, Gang, GangPhase, Queue
from optsched.plugins.eviction.entitled import Entitled
from optsched.plugins.eviction.moves import CONSOLIDATE, Consolidation
from optsched.plugins.eviction.victims import Conformance
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import NodeAffinity, Taints
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.verification.verify import verify_actions
from tests.support.small import GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot

PLAIN = RuleSet.of(GangRule(), NodeAffinity(), Taints(), Capability(), Conformance())
RULES = PLAIN.guarded_by(Entitled(PLAIN), Consolidation())
SEAT = Nominate("ns/want-w-0", "n0", "ns/want")


def runs(name: str, *where: str, least: int | None = None, **fields: object) -> Gang:
    """Return a movable gang of tasks with one GPU each, whose owner recreates evicted pods."""
    made = gang(name, ("w", len(where), shape(1, 1)), least=least)
    fields = {"is_movable": True, "owner": "o", **fields}
    tasks = tuple(
        replace(running(t, n), **fields)  # type: ignore[arg-type]
        for t, n in zip(made.tasks, where, strict=True)
    )
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def move(task: str = "ns/x-w-0", to: str = "n1", node_name: str = "n0") -> Evict:
    return Evict(task, node_name, CONSOLIDATE, "ns/want", to)


def before(*gangs: Gang, queues: Sequence[Queue] = (), **fields: object) -> Snapshot:
    """Return two nodes with one of two GPUs in use, and a gang that requests two on one node."""
    nodes = [node(f"n{i}", cpu=8, gpu=2) for i in range(3)]
    nodes[2] = replace(nodes[2], taints=(Taint("own", "", TaintEffect.NO_SCHEDULE),))
    here = gangs or (runs("x", "n0"), runs("y", "n1"))
    wants = gang("want", ("w", 1, shape(1, 2)))
    return replace(cluster(nodes, [*here, wants], queues), **fields)  # type: ignore[arg-type]


def told(snapshot: Snapshot, *actions: Action) -> list[str]:
    return [str(v) for v in verify_actions(snapshot, actions, RULES)]


def test_a_move_that_makes_room_is_fine() -> None:
    assert told(before(), move(), SEAT) == []


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (move(to=""), "consolidation: task ns/x-w-0: moved for ns/want, but it has no node"),
        (move(to="n0"), "fits: node n0"),
        (move(to="n2"), "taints"),
        (move(to="n7"), "well-formed: task ns/x-w-0~: node n7 does not exist"),
        (move("ns/want-w-0", "n1", ""), "evicted, but is Pending"),
        (move("ns/none", "n1"), "victims: task ns/none"),
        (replace(move(), preemptor="ns/y"), "which gets no node"),
        (replace(move(), action="shuffle"), "neither preempt, reclaim nor consolidation"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_move(broken: Evict, problem: str) -> None:
    assert any(problem in line for line in told(before(), broken, SEAT))


@pytest.mark.parametrize(
    ("gangs", "problem"),
    [
        ([runs("x", "n0", is_movable=False), runs("y", "n1")], "no controller would restart it"),
        ([replace(runs("x", "n0"), priority=1), runs("y", "n1")], "has a higher priority"),
        ([runs("x", "n0", preemptable=False), runs("y", "n1")], "is not preemptable"),
        ([runs("x", "n0", "n1")], "1 task would be left, but minMember is 2"),
        ([replace(runs("x", "n0"), queue="own"), runs("y", "n1")], "queue own is not reclaimable"),
    ],
    ids=["unowned", "important", "spared", "in part", "of a queue that keeps"],
)
def test_who_may_not_move(gangs: list[Gang], problem: str) -> None:
    snapshot = before(*gangs, queues=[Queue("own", reclaimable=False)])
    assert any(problem in line for line in told(snapshot, move(), SEAT))


def test_what_a_gang_can_do_without_may_move() -> None:
    assert told(before(runs("x", "n0", "n1", least=1)), move(), SEAT) == []


def test_a_budget_counts_moves() -> None:
    none = Budget("ns/b", LabelSelector(()), 0)
    assert "victims: budget ns/b: 1 evicted, 0 allowed" in told(
        before(budgets=(none,)), move(), SEAT
    )


def test_a_queue_takes_in_again_only_what_it_may() -> None:
    """The queue's capability was lowered below its allocation."""
    low = Queue("low", capability=((GPU, 0),))
    gangs = [replace(runs("x", "n0"), queue="low"), runs("y", "n1")]
    assert any("capability" in line for line in told(before(*gangs, queues=[low]), move(), SEAT))
