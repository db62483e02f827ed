"""The tasks of a gang start together or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.gangs.gang import excess_resources
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.drf import Drf
from tests.support.engines import Bench, binds, placed_by_gang
from tests.support.small import CPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot

RULES = RuleSet.of(GangRule(), Priority())
NODES = [node("n0", 4), node("n1", 4)]


def breaks(snapshot: Snapshot, wanted: dict[str, str]) -> bool:
    bench = Bench.of(snapshot, RULES)
    broken = bench.broken(bench.decisions(wanted))
    assert broken in ([], ["gang"])
    assert bench.direct_allows(wanted) is (not broken)
    return bool(broken)


# --- minMember -----------------------------------------------------------------------------------


def test_a_gang_that_does_not_fit_takes_nothing() -> None:
    snapshot = cluster(NODES, [gang("big", ("w", 9, shape(1))), gang("small", ("w", 8, shape(1)))])
    assert placed_by_gang(snapshot, RULES) == {"big": 0, "small": 8}


def test_an_elastic_gang_takes_what_there_is_above_its_minimum() -> None:
    assert placed_by_gang(cluster(NODES, [gang("g", ("w", 20, shape(1)), least=3)]), RULES) == {
        "g": 8
    }
    assert placed_by_gang(cluster(NODES, [gang("g", ("w", 20, shape(1)), least=9)]), RULES) == {
        "g": 0
    }


def test_a_gang_without_a_minimum_takes_what_it_can_get() -> None:
    assert placed_by_gang(cluster(NODES, [gang("g", ("w", 20, shape(1)), least=0)]), RULES) == {
        "g": 8
    }


def test_what_runs_counts_towards_the_minimum() -> None:
    made = gang("g", ("w", 5, shape(1)), least=4, phase=GangPhase.RUNNING)
    begun = replace(made, tasks=(*(running(t, "n0") for t in made.tasks[:3]), *made.tasks[3:]))
    snapshot = cluster(NODES, [begun])
    assert not breaks(snapshot, {"ns/g-w-3": "n1"})
    assert placed_by_gang(snapshot, RULES) == {"g": 2}


@pytest.mark.parametrize(("number", "is_broken"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_plan_below_the_minimum_is_refused(number: int, is_broken: bool) -> None:
    snapshot = cluster(NODES, [gang("g", ("w", 4, shape(1)), least=3)])
    assert breaks(snapshot, {f"ns/g-w-{i}": "n0" for i in range(number)}) is is_broken


# --- minTaskMember -------------------------------------------------------------------------------


def roles(least: int) -> Gang:
    made = gang("g", ("ps", 2, shape(2)), ("worker", 4, shape(1)), least=least)
    return replace(made, min_role=(("ps", 1), ("worker", 2)))


def test_minimums_by_role_hold_beside_the_one_of_all() -> None:
    snapshot = cluster(NODES, [roles(3)])
    ps, workers = ["ns/g-ps-0"], [f"ns/g-worker-{i}" for i in range(4)]
    assert not breaks(snapshot, dict.fromkeys([*ps, *workers[:2]], "n0"))
    assert breaks(snapshot, dict.fromkeys(workers[:3], "n0"))
    assert breaks(snapshot, {**dict.fromkeys(ps, "n0"), workers[0]: "n0", "ns/g-ps-1": "n1"})


def test_where_they_sum_to_more_than_the_one_of_all_each_role_comes_with_one() -> None:
    snapshot = cluster(NODES, [roles(2)])
    assert breaks(snapshot, dict.fromkeys(["ns/g-worker-0", "ns/g-worker-1"], "n0"))
    assert not breaks(snapshot, dict.fromkeys(["ns/g-ps-0", "ns/g-worker-1"], "n0"))


def test_the_driver_is_among_the_first_where_there_is_room_for_the_minimum_only() -> None:
    made = gang("g", ("worker", 4, shape(1)), ("zdriver", 1, shape(1)), least=3)
    made = replace(made, min_role=(("worker", 4), ("zdriver", 1)))
    assert placed_by_gang(cluster([node("n0", 3)], [made]), RULES) == {"g": 3}


def test_a_role_without_room_keeps_the_whole_gang_out() -> None:
    huge = gang("g", ("ps", 1, shape(5)), ("worker", 4, shape(1)), least=2)
    snapshot = cluster(NODES, [replace(huge, min_role=(("ps", 1), ("worker", 1)))])
    assert placed_by_gang(snapshot, RULES) == {"g": 0}


# --- minResources --------------------------------------------------------------------------------


def needs(amount: int, **fields: object) -> Gang:
    return gang("g", ("w", 2, shape(1)), min_resources=((CPU, amount * 1000),), **fields)


@pytest.mark.parametrize(("amount", "placed"), [(8, 2), (9, 0)])
def test_min_resources_must_be_free_before_the_gang_starts(amount: int, placed: int) -> None:
    assert placed_by_gang(cluster(NODES, [needs(amount)]), RULES) == {"g": placed}


@pytest.mark.parametrize(("succeeded", "idle", "placed"), [(0, 4, 0), (2, 4, 2), (2, 3, 0)])
def test_what_succeeded_pods_requested_need_not_be_free(
    succeeded: int, idle: int, placed: int
) -> None:
    """`minResources` list 8 CPUs for four pods of 2 CPUs; two pods need 4."""
    made = gang("g", ("w", 4, shape(2)), min_resources=((CPU, 8000),))
    over = [replace(t, status=TaskStatus.SUCCEEDED) for t in made.tasks[:succeeded]]
    made = replace(made, tasks=(*over, *made.tasks[succeeded:]))
    snapshot = cluster([node("n0", idle)], [made])
    assert placed_by_gang(snapshot, RULES) == {"g": placed}
    pending = {t.key: "n0" for t in made.tasks[succeeded:]}
    bench = Bench.of(snapshot, RULES)
    assert ("gang" in bench.broken(bench.decisions(pending))) is (placed == 0)


def test_what_min_resources_ask_for_beyond_the_pods_stays_free() -> None:
    # 8 CPUs are idle; the first gang uses 2 CPUs and reserves 3, so that 3 CPUs remain.
    rest = gang("rest", ("w", 8, shape(1)), least=1)
    snapshot = cluster(NODES, [replace(needs(5), priority=5), rest])
    assert placed_by_gang(snapshot, RULES) == {"g": 2, "rest": 3}
    everything = {f"ns/rest-w-{i}": "n1" for i in range(4)}
    assert breaks(snapshot, {"ns/g-w-0": "n0", "ns/g-w-1": "n0", **everything})
    assert not breaks(snapshot, everything)


def test_min_resources_of_two_gangs_are_kept_side_by_side() -> None:
    other = gang("h", ("w", 2, shape(1)), min_resources=((CPU, 4000),))
    assert placed_by_gang(cluster(NODES, [replace(needs(5), priority=5), other]), RULES) == {
        "g": 2,
        "h": 0,
    }


def test_a_gang_that_runs_keeps_nothing_free() -> None:
    made = needs(8, phase=GangPhase.RUNNING)
    begun = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    rest = gang("rest", ("w", 6, shape(1)))
    assert placed_by_gang(cluster(NODES, [begun, rest]), RULES) == {"g": 0, "rest": 6}


def test_pods_that_can_not_come_yet_are_kept_room_for() -> None:
    # One of three pods is gated, and minResources includes its request.
    made = gang("g", ("w", 3, shape(1)), least=2, min_resources=((CPU, 3000),))
    gated = replace(made.tasks[2], status=TaskStatus.GATED)
    made = replace(made, tasks=(*made.tasks[:2], gated), priority=5)
    snapshot = cluster(NODES, [made, gang("rest", ("w", 8, shape(1)), least=1)])
    assert placed_by_gang(snapshot, RULES) == {"g": 2, "rest": 5}
    problem = Bench.of(snapshot, RULES).problem
    kept = excess_resources(problem)[problem.shape_of[0], problem.index(CPU)]
    assert kept == 1000


# --- order ---------------------------------------------------------------------------------------


def test_gangs_that_start_come_before_gangs_that_grow() -> None:
    # Without the gang rule, DRF would alternate between both gangs.
    grows = gang("a", ("w", 8, shape(1)), least=1)
    starts = gang("b", ("w", 4, shape(1)))
    bench = Bench.of(cluster(NODES, [grows, starts]), RuleSet.of(GangRule(), Drf()))
    placed = binds(bench.actions(bench.greedy()))
    assert sum(t.startswith("ns/b-") for t in placed) == 4
    assert len(placed) == 8
