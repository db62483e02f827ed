"""Tests of consolidation: the fewest moves, and the pods that may be moved."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Budget, GangPhase, Queue
from optsched.cluster.task import HostPort, TaskStatus
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.consolidation import stage
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.small import GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Snapshot

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [ACTIONS]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: drf}, {name: predicates}, {name: capacity}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks, node-score]
solver: {engine: cpsat, budget: 400ms}
"""
MOVING = "enqueue, allocate, consolidation, backfill"
LIMITS = Limits(budget_ms=None, num_workers=1)


def decide(snapshot: Snapshot, actions: str = MOVING) -> Plan:
    policy = parse_policy(MODEL.replace("ACTIONS", actions), "test.yaml")
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=LIMITS))
    assert report.trace.violations == ()
    return report.plan


def runs(which: Gang, *where: str, **fields: object) -> Gang:
    """Return the gang running on the given nodes; its owner recreates evicted pods."""
    fields = {"is_movable": True, "owner": which.key, **fields}
    tasks = tuple(
        replace(running(t, n), **fields)  # type: ignore[arg-type]
        for t, n in zip(which.tasks, where, strict=True)
    )
    return replace(which, tasks=tasks, phase=GangPhase.RUNNING)


def one(name: str, gpus: int, where: str, **fields: object) -> Gang:
    return runs(gang(name, ("w", 1, shape(1, gpus))), where, **fields)


def moves(plan: Plan) -> list[tuple[str, str, str]]:
    found = [a for a in plan.actions if isinstance(a, Evict)]
    return [(a.task.removeprefix("ns/"), a.node, a.to) for a in found]


def halves(**fields: object) -> list[Gang]:
    """Return gangs that use one GPU on each of two nodes with two GPUs."""
    return [one("x", 1, "n0", **fields), one("y", 1, "n1", **fields)]


def pair_of_nodes() -> list[object]:
    return [node("n0", cpu=8, gpu=2), node("n1", cpu=8, gpu=2)]


def test_one_move_makes_room_in_one_piece() -> None:
    wants = gang("wants", ("w", 1, shape(1, 2)))
    plan = decide(cluster(pair_of_nodes(), [*halves(), wants]))
    ((task, left, to),) = moves(plan)
    assert (task, left, to) in {("x-w-0", "n0", "n1"), ("y-w-0", "n1", "n0")}
    (eviction,) = (a for a in plan.actions if isinstance(a, Evict))
    assert (eviction.action, eviction.preemptor) == ("consolidation", "ns/wants")
    (level,) = (r for r in plan.certificate.levels if r.name == "moves")
    assert (level.value, level.bound, level.status) == (1, 1, LevelStatus.OPTIMAL)
    assert plan.pending["ns/wants"].code.value == "WaitingForReleasedResources"


def test_nobody_moves_unless_the_policy_says_so() -> None:
    wants = gang("wants", ("w", 1, shape(1, 2)))
    before = cluster(pair_of_nodes(), [*halves(), wants])
    assert moves(decide(before, "enqueue, allocate, preempt, reclaim, backfill")) == []


@pytest.mark.parametrize(
    ("actions", "action"),
    [
        ("allocate, consolidation, preempt", "consolidation"),
        ("allocate, preempt, consolidation", "preempt"),
        ("allocate, consolidation", "consolidation"),
        ("allocate, preempt", "preempt"),
    ],
)
def test_what_the_policy_names_first_is_tried_first(actions: str, action: str) -> None:
    wants = gang("wants", ("w", 1, shape(1, 2)), priority=1)
    plan = decide(cluster(pair_of_nodes(), [*halves(), wants]), actions)
    (eviction,) = (a for a in plan.actions if isinstance(a, Evict))
    assert eviction.action == action
    assert bool(eviction.to) == (action == "consolidation")


def test_who_can_not_move_is_evicted_after_all() -> None:
    gangs = halves(is_movable=False)
    wants = gang("wants", ("w", 1, shape(1, 2)), priority=1)
    plan = decide(cluster(pair_of_nodes(), [*gangs, wants]), "allocate, consolidation, preempt")
    assert [a.action for a in plan.actions if isinstance(a, Evict)] == ["preempt"]


@pytest.mark.parametrize(
    "fields",
    [
        {"is_movable": False},
        {"preemptable": False},
        {"started_ms": 1, "cooldown_ms": 10_000_000},
    ],
    ids=["nobody makes it again", "says so", "cooling down"],
)
def test_who_stays(fields: dict[str, object]) -> None:
    wants = gang("wants", ("w", 1, shape(1, 2)))
    before = cluster(pair_of_nodes(), [*halves(**fields), wants], now_ms=1000)
    assert moves(decide(before)) == []


@pytest.mark.parametrize(
    "tied",
    [
        {"host_ports": (HostPort("TCP", "0.0.0.0", 80),)},
        {"device_claims": ("ns/claim",)},
        {"claims": ("ns/data",)},
    ],
    ids=lambda tied: next(iter(tied)),
)
def test_what_is_tied_to_a_node_stays(tied: dict[str, object]) -> None:
    gangs = [
        runs(gang(name, ("w", 1, shape(1, 1, **tied))), where)
        for name, where in (("x", "n0"), ("y", "n1"))
    ]
    wants = gang("wants", ("w", 1, shape(1, 2)))
    assert moves(decide(cluster(pair_of_nodes(), [*gangs, wants]))) == []


def test_the_more_important_does_not_move() -> None:
    high, low = halves()
    high = replace(high, priority=2)
    wants = gang("wants", ("w", 1, shape(1, 2)), priority=1)
    plan = decide(cluster(pair_of_nodes(), [high, low, wants]))
    assert moves(plan) == [("y-w-0", "n1", "n0")]


def test_the_one_with_the_least_to_lose_moves() -> None:
    old, young = halves()
    old = replace(old, tasks=(replace(old.tasks[0], started_ms=1),))
    young = replace(young, tasks=(replace(young.tasks[0], started_ms=9_000_000),))
    wants = gang("wants", ("w", 1, shape(1, 2)))
    plan = decide(cluster(pair_of_nodes(), [old, young, wants], now_ms=10_000_000))
    assert moves(plan) == [("y-w-0", "n1", "n0")]


def test_a_disruption_budget_holds() -> None:
    some = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
    gangs = [
        runs(gang(name, ("w", 1, shape(1, 1)), labels={"app": "x"}), where)
        for name, where in (("x", "n0"), ("y", "n0"), ("z", "n1"), ("v", "n2"))
    ]
    nodes = [node(f"n{i}", cpu=8, gpu=g) for i, g in enumerate((2, 2, 4))]
    wants = gang("wants", ("w", 2, shape(1, 2)))
    before = cluster(nodes, [*gangs, wants])
    assert len(moves(decide(before))) == 1
    for allowed, number in ((0, 0), (1, 1)):
        kept = replace(before, budgets=(Budget("ns/b", some, allowed),))
        assert len(moves(decide(kept))) == number


def test_a_queue_that_gives_nothing_back_is_left_alone() -> None:
    gangs = [replace(g, queue="own") for g in halves()]
    own = [Queue("own", reclaimable=False)]
    wants = gang("wants", ("w", 1, shape(1, 2)))
    assert moves(decide(cluster(pair_of_nodes(), [*gangs, wants], own))) == []
    wants = replace(wants, queue="own")
    assert len(moves(decide(cluster(pair_of_nodes(), [*gangs, wants], own)))) == 1


def test_a_gang_stays_below_the_ceiling_of_its_queue() -> None:
    tight = [Queue("tight", capability=((GPU, 1),))]
    wants = gang("wants", ("w", 1, shape(1, 2)), queue="tight")
    assert moves(decide(cluster(pair_of_nodes(), [*halves(), wants], tight))) == []


def test_what_a_queue_would_not_take_in_again_stays() -> None:
    """The queue's capability was lowered after its pods had started."""
    tight = [Queue("tight", capability=((GPU, 1),))]
    gangs = [replace(g, queue="tight") for g in halves()]
    wants = gang("wants", ("w", 1, shape(1, 2)))
    assert moves(decide(cluster(pair_of_nodes(), [*gangs, wants], tight))) == []


def test_a_gang_moves_its_surplus_or_as_a_whole() -> None:
    nodes = [node(f"n{i}", cpu=8, gpu=2) for i in range(4)]
    elastic = runs(gang("e", ("w", 2, shape(1, 1)), least=1), "n0", "n1")
    rigid = runs(gang("r", ("w", 2, shape(1, 1))), "n2", "n3")
    wants = [gang("a", ("w", 1, shape(1, 2)))]
    plan = decide(cluster(nodes, [elastic, rigid, *wants]))
    assert len(moves(plan)) == 1
    assert moves(plan)[0][0].startswith("e-")
    wants.append(gang("b", ("w", 1, shape(1, 2))))
    plan = decide(cluster(nodes, [elastic, rigid, *wants]))
    assert sorted(task[0] for task, _, _ in moves(plan)) in (["e", "e"], ["r", "r"])


def test_pods_move_only_to_nodes_that_they_may_use() -> None:
    nodes = [node(f"n{i}", cpu=8, gpu=2, labels={"pool": p}) for i, p in enumerate("aab")]
    bound = shape(1, 1, node_selector=(("pool", "b"),))
    free = runs(gang("free", ("w", 1, shape(1, 1))), "n0")
    tied = runs(gang("tied", ("w", 1, bound)), "n2")
    stuck = one("stuck", 1, "n1", is_movable=False)
    wants = gang("wants", ("w", 1, shape(1, 2)))
    # Only n0 can be cleared: no pod can leave n1, and pool b has one node.
    (move,) = moves(decide(cluster(nodes, [free, tied, stuck, wants])))
    assert move[:2] == ("free-w-0", "n0")
    stays = replace(free, tasks=tuple(replace(t, is_movable=False) for t in free.tasks))
    assert moves(decide(cluster(nodes, [stays, tied, stuck, wants]))) == []


def test_the_highest_priority_comes_first() -> None:
    gangs = [one(f"x{i}", 1, f"n{i}") for i in range(2)]
    wants = [gang(n, ("w", 1, shape(1, 2)), priority=p) for n, p in (("a", 1), ("b", 2))]
    plan = decide(cluster(pair_of_nodes(), [*gangs, *wants]))
    assert {a.preemptor for a in plan.actions if isinstance(a, Evict)} == {"ns/b"}


def test_several_resources_count() -> None:
    """Both nodes have enough GPUs, but enough CPUs only after two pods move."""
    nodes = [node("n0", cpu=4, gpu=4), node("n1", cpu=4, gpu=4)]
    gangs = [runs(gang(f"c{i}", ("w", 1, shape(1))), f"n{i % 2}") for i in range(4)]
    wants = gang("wants", ("w", 1, shape(4, 1)))
    plan = decide(cluster(nodes, [*gangs, wants]))
    assert len(moves(plan)) == 2
    assert len({left for _, left, _ in moves(plan)}) == 1


def test_room_that_others_were_promised_is_not_used() -> None:
    gone = runs(gang("gone", ("w", 1, shape(1, 1))), "n1")
    gone = replace(gone, tasks=(replace(gone.tasks[0], status=TaskStatus.RELEASING),))
    waits = gang("waits", ("w", 1, shape(1, 2)))
    waits = replace(waits, tasks=(replace(waits.tasks[0], nominated_node="n1"),))
    wants = gang("wants", ("w", 1, shape(1, 2)))
    before = cluster(pair_of_nodes(), [one("x", 1, "n0"), gone, waits, wants])
    assert moves(decide(before)) == []


def test_a_gang_that_grows_moves_nobody() -> None:
    grows = gang("grows", ("w", 2, shape(1, 2)), least=1)
    grows = replace(grows, tasks=(running(grows.tasks[0], "n2"), grows.tasks[1]))
    nodes = [*pair_of_nodes(), node("n2", cpu=8, gpu=2)]
    assert moves(decide(cluster(nodes, [*halves(), grows]))) == []


def test_an_elastic_gang_gets_its_minimum_by_moves() -> None:
    nodes = [node(f"n{i}", cpu=8, gpu=2) for i in range(4)]
    gangs = [one(f"x{i}", 1, f"n{i}") for i in range(4)]
    wants = gang("wants", ("w", 2, shape(1, 2)), least=1)
    plan = decide(cluster(nodes, [*gangs, wants]))
    assert len(moves(plan)) == 1


def test_no_room_in_one_piece_however_much_moves() -> None:
    full = [one(f"x{i}", 1, f"n{i % 2}") for i in range(3)]
    wants = gang("wants", ("w", 1, shape(1, 2)))
    assert moves(decide(cluster(pair_of_nodes(), [*full, wants]))) == []


def test_where_too_many_may_move_the_best_nodes_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pods would have to leave n0, but only one has to leave any other node."""
    monkeypatch.setattr(stage, "MOST_MOVABLE", 1)
    nodes = [node(f"n{i}", cpu=16, gpu=4) for i in range(3)]
    gangs = [one(f"x{i}", 1, n) for i, n in enumerate(("n0", "n0", "n1", "n2"))]
    wants = gang("wants", ("w", 1, shape(1, 4)))
    plan = decide(cluster(nodes, [*gangs, wants]))
    assert [left for _, left, _ in moves(plan)] == ["n1"]
    (level,) = (r for r in plan.certificate.levels if r.name == "moves")
    assert (level.value, level.bound, level.status) == (1, None, LevelStatus.FEASIBLE)


# --- every way there is --------------------------------------------------------------------------


def random_fragments(rng: np.random.Generator) -> Snapshot:
    """Return three nodes of four GPUs, partly in use, and waiting gangs."""
    names = [f"n{i}" for i in range(3)]
    left = dict.fromkeys(names, 4)
    gangs: list[Gang] = []
    for i in range(int(rng.integers(2, 6))):
        size, number = int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 2]))
        where = [str(rng.choice(names)) for _ in range(number)]
        need = {n: where.count(n) * size for n in where}
        if any(left[n] < amount for n, amount in need.items()):
            continue
        for n, amount in need.items():
            left[n] -= amount
        least = int(rng.integers(1, number + 1))
        made = gang(f"run{i}", ("w", number, shape(1, size)), least=least)
        gangs.append(runs(made, *where, is_movable=bool(rng.random() < 0.85)))
    for i in range(int(rng.integers(1, 3))):
        size = int(rng.choice([2, 3, 4]))
        gangs.append(gang(f"want{i}", ("w", int(rng.integers(1, 3)), shape(1, size))))
    return cluster([node(n, cpu=64, gpu=4) for n in names], gangs)


def gpus(task: object) -> int:
    return dict(task.shape.request)[GPU]  # type: ignore[attr-defined]


def fits(sizes: Sequence[int], count_fitting_tasks: tuple[int, ...]) -> bool:
    """Return whether sizes in descending order fit into the given capacities."""
    if not sizes:
        return True
    size, rest = sizes[0], sizes[1:]
    tried = set()
    for i, room in enumerate(count_fitting_tasks):
        if room >= size and room not in tried:
            tried.add(room)
            if fits(rest, (*count_fitting_tasks[:i], room - size, *count_fitting_tasks[i + 1 :])):
                return True
    return False


def subsets(snapshot: Snapshot) -> Iterator[list[object]]:
    """Yield the sets of tasks that may move together, smallest first."""
    tasks = [t for g in snapshot.gangs for t in g.tasks if t.node and t.is_movable]
    for number in range(len(tasks) + 1):
        for chosen in combinations(tasks, number):
            keys = {t.key for t in chosen}
            for g in snapshot.gangs:
                gone = sum(t.key in keys for t in g.tasks)
                if gone and gone < len(g.tasks) and len(g.tasks) - gone < g.min_member:
                    break
            else:
                yield list(chosen)


def best(snapshot: Snapshot, must: set[str]) -> tuple[int, int]:
    """Return the most GPUs of startable gangs, and the fewest moves that achieve this number."""
    wants = [g for g in snapshot.gangs if not g.tasks[0].node]
    found = (0, 0)
    for chosen in subsets(snapshot):
        keys = {t.key for t in chosen}  # type: ignore[attr-defined]
        stays = {
            n.name: 4 - sum(gpus(t) for t in n.residents if t.key not in keys)
            for n in snapshot.nodes
        }
        for number in range(len(wants) + 1):
            for start in combinations(wants, number):
                if not must <= {g.key for g in start}:
                    continue
                come = [gpus(t) for g in start for t in g.tasks]
                value = sum(come)
                sizes = sorted([*come, *map(gpus, chosen)], reverse=True)
                if value > found[0] and fits(sizes, tuple(stays.values())):
                    found = (value, len(chosen))
    return found


def assert_fits_at_the_end(snapshot: Snapshot, plan: Plan) -> None:
    """Check from the actions alone that no node holds more GPUs than its capacity."""
    size = {t.key: gpus(t) for g in snapshot.gangs for t in g.tasks}
    at = {t.key: t.node for g in snapshot.gangs for t in g.tasks if t.node}
    for action in plan.actions:
        if isinstance(action, Evict):
            assert at[action.task] == action.node
            at[action.task] = action.to
        elif isinstance(action, Allocate | Nominate):
            assert action.task not in at
            at[action.task] = action.node
    for n in snapshot.nodes:
        assert sum(size[key] for key, where in at.items() if where == n.name) <= 4


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_as_few_move_as_can_be(seed: int) -> None:
    snapshot = random_fragments(np.random.default_rng(seed))
    without = decide(snapshot, "enqueue, allocate, backfill")
    must = {a.gang for a in without.actions if isinstance(a, Allocate | Nominate)}
    plan = decide(snapshot)
    gain = {a.gang for a in plan.actions if isinstance(a, Allocate | Nominate)}
    value = sum(gpus(t) for g in snapshot.gangs if g.key in gain for t in g.tasks)
    assert (value, len(moves(plan))) == best(snapshot, must)
    assert_fits_at_the_end(snapshot, plan)
    for level in plan.certificate.levels:
        if level.name == "moves":
            assert (level.value, level.status) == (len(moves(plan)), LevelStatus.OPTIMAL)
