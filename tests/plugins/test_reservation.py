"""Tests of capacity reservations: every extension point agrees on conflicting tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.reservation import binding_reservations, end_ms, gang_end_ms
from optsched.cluster.snapshot import CapacityReservation, Queue
from optsched.cluster.task import TaskStatus
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.verification.verify import verify_actions
from optsched.problem.decisions import Decisions
from tests.plugins.test_contract import MOST_PLANS, Walk, examples, has_tasks, now, plans
from tests.support.checker import Checker
from tests.support.contests import contests
from tests.support.engines import Bench, allocations
from tests.support.small import CPU, best_values, cluster, gang, node, running, shape
from tests.support.virtual import ESTIMATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DataObject, DrawFn

    from optsched.cluster.snapshot import Gang, Snapshot

RULES = RuleSet.of(GangRule(), Capability())
NOW = 1000
"""When the contests take place."""


# --- random bookings -----------------------------------------------------------------------------


@st.composite
def booked(draw: DrawFn) -> Bench:
    """Draw a small cluster whose tasks have run times, with reservations of every type."""
    snapshot = draw(contests(frozenset({"node_selector"})))
    changed = {}

    def timed(task):
        if task.key not in changed:
            length, start = draw(st.sampled_from([0, 400, 900])), draw(st.sampled_from([0, 700]))
            changed[task.key] = replace(task, estimate_ms=length, started_ms=start)
        return changed[task.key]

    gangs = tuple(replace(g, tasks=tuple(map(timed, g.tasks))) for g in snapshot.gangs)
    nodes = tuple(replace(n, residents=tuple(map(timed, n.residents))) for n in snapshot.nodes)
    made = [draw(reservations(snapshot)) for _ in range(draw(st.sampled_from([1, 1, 2])))]
    snapshot = replace(snapshot, gangs=gangs, nodes=nodes, reservations=tuple(made))
    return Bench.of(snapshot, RULES)


@st.composite
def reservations(draw: DrawFn, snapshot: Snapshot) -> CapacityReservation:
    kept = st.sampled_from([(), ((CPU, 500),), ((CPU, 1000), ("pods", 1)), (("pods", 2),)])
    ceilings = [q.name for q in snapshot.queues if q.capability]
    most = st.sampled_from([(), ((CPU, 1000),), ((CPU, 2500), ("pods", 2))])
    is_entitled = {gang.key: draw(st.booleans()) for gang in snapshot.gangs}
    return CapacityReservation(
        gang=draw(st.sampled_from([*(g.key for g in snapshot.gangs), "a/other"])),
        priority=draw(st.sampled_from([0, 1])),
        start_ms=draw(st.sampled_from([NOW, NOW + 300, NOW + 600])),
        is_open=draw(st.booleans()),
        nodes=tuple((n.name, k) for n in snapshot.nodes if (k := draw(kept))),
        queues=tuple((name, k) for name in ceilings if (k := draw(kept))),
        entitled=frozenset(key for key, chosen in is_entitled.items() if chosen),
        entitlements=tuple((q.name, k) for q in snapshot.queues if (k := draw(most))),
    )


@examples(40)
@given(st.data())
def test_its_rows_allow_just_the_plans_that_the_verifier_accepts(data: DataObject) -> None:
    bench = data.draw(booked().filter(has_tasks))
    plan = data.draw(plans(bench))
    accepted = not bench.broken(bench.decisions(plan))
    assert bench.direct_allows(plan) is accepted
    assert not accepted or bench.configurations_allow(plan)


@examples(40)
@given(st.data())
def test_what_the_pipeline_and_the_solver_decide_keeps_to_bookings(data: DataObject) -> None:
    bench = data.draw(booked())
    assert bench.broken(bench.greedy()) == []
    answer = bench.improved(now(bench))
    assert bench.broken(answer.decisions) == []
    if (bench.problem.num_nodes + 1) ** len(bench.problem.tasks) <= MOST_PLANS:
        best = best_values(bench.problem, bench.rules, bench.levels)
        assert tuple(r.value for r in answer.results) == best


def is_about_queues(bench: Bench) -> bool:
    """Return whether no reservation names nodes.

    The random walk uses extension points, but no constraints on nodes.
    """
    return not any(reservation.nodes for reservation in bench.problem.snapshot.reservations)


@examples(30)
@given(st.data())
def test_taking_tasks_back_leaves_no_trace(data: DataObject) -> None:
    bench = data.draw(booked().filter(is_about_queues))
    walk = Walk(bench, data)
    for number in data.draw(st.permutations(bench.problem.open_gangs.tolist())):
        walk.start(number)
    decisions = replace(Decisions.nothing(bench.problem), node_of=walk.node_of)
    assert bench.broken(decisions) == []


@examples(150)
@given(st.data())
def test_any_plan_is_judged_as_mathematics_says(data: DataObject) -> None:
    bench = data.draw(booked().filter(has_tasks))
    snapshot = bench.problem.snapshot
    plan = tuple(allocations(snapshot, data.draw(plans(bench))))
    found = {v.rule for v in verify_actions(snapshot, plan, RULES)}
    wrong = Checker(snapshot, plan).broken("reservation")
    assert wrong == ({"well-formed"} if "well-formed" in found else found & {"reservation"})


# --- planted faults ------------------------------------------------------------------------------

OLD = gang("old", ("w", 1, shape(2)), annotations={ESTIMATE: "99s"})
BOOKING = CapacityReservation("ns/big", 0, 100_000, nodes=(("n0", ((CPU, 4000), ("pods", 1))),))


def stage(
    *gangs: Gang, reservation: CapacityReservation = BOOKING, queues: Sequence[Queue] = ()
) -> Snapshot:
    """Return two nodes of 4 CPUs, where `old` holds 2 on n0 until the reservation begins."""
    old = replace(OLD, tasks=(replace(running(OLD.tasks[0], "n0"), started_ms=1),))
    big = gang("big", ("w", 1, shape(4)))
    made = cluster([node("n0"), node("n1")], [old, big, *gangs], queues, 1)
    return replace(made, reservations=(reservation,))


def broken(snapshot: Snapshot, **wanted: str) -> list[str]:
    """Return the verifier's violations, and check that the independent checker agrees."""
    names = {f"ns/{name}-w-0": where for name, where in wanted.items()}
    actions = allocations(snapshot, names)
    found = verify_actions(snapshot, actions, RULES)
    wrong = Checker(snapshot, tuple(actions)).broken("reservation")
    assert bool(wrong) is any(v.rule == "reservation" for v in found)
    return [f"{v.where}: {v.detail}" for v in found if v.rule == "reservation"]


def one(name: str = "one", estimate: str = "", **fields: object) -> Gang:
    marks = {ESTIMATE: estimate} if estimate else {}
    return gang(name, ("w", 1, shape(1)), annotations=marks, **fields)


@pytest.mark.parametrize(
    ("which", "where", "is_fine"),
    [
        (one(), "n0", False),
        (one(), "n1", True),
        (one(estimate="99s"), "n0", True),
        (one(estimate="100s"), "n0", False),
        (one(estimate="forever"), "n0", False),
        (one(priority=1), "n0", True),
        (one(priority=-1), "n0", False),
    ],
)
def test_who_is_in_the_way_of_a_booking(which, where, is_fine):
    assert (broken(stage(which), one=where) == []) is is_fine


def test_a_fault_names_the_node_the_numbers_and_the_gang():
    (told,) = broken(stage(one()), one="n0")
    start = "1970-01-01T00:01:40Z"
    assert told == f"node n0: 1 cpu would still be held when ns/big is to start at {start}"


def test_the_gang_with_the_booking_is_not_in_its_own_way():
    assert broken(stage(), big="n1") == []


def test_a_ceiling_is_kept_as_well():
    queue = Queue("team", capability=((CPU, 4000),))
    reservation = replace(BOOKING, nodes=(), queues=(("team", ((CPU, 4000),)),))
    mine, theirs = one("mine", queue="team"), one("theirs")
    snapshot = stage(mine, theirs, reservation=reservation, queues=[queue])
    assert broken(snapshot, theirs="n0") == []
    (told,) = broken(snapshot, mine="n1")
    assert told.startswith("queue team: 1 cpu would still be held when ns/big")


def test_an_entitled_gang_is_not_in_the_way_within_its_entitlement():
    queue = Queue("team")
    reservation = replace(
        BOOKING, entitled=frozenset({"ns/mine"}), entitlements=(("team", ((CPU, 2000),)),)
    )
    roles = ("w", 3, shape(1))
    mine, others = (gang(name, roles, least=1, queue="team") for name in ("mine", "others"))
    snapshot = stage(mine, others, reservation=reservation, queues=[queue])
    told = {}
    for name, number in (("mine", 2), ("mine", 3), ("others", 2)):
        names = {f"ns/{name}-w-{i}": "n0" if i < 2 else "n1" for i in range(number)}
        actions = allocations(snapshot, names)
        found = [v for v in verify_actions(snapshot, actions, RULES) if v.rule == "reservation"]
        assert bool(found) is bool(Checker(snapshot, tuple(actions)).broken("reservation"))
        told[name, number] = [v.detail for v in found]
    assert told["mine", 2] == []
    assert len(told["others", 2]) == 1
    (detail,) = told["mine", 3]
    assert detail == "3 cpu would be held before ns/big starts, but the queue is entitled to 2 cpu"


# --- ends ----------------------------------------------------------------------------------------


def test_a_task_that_outruns_its_estimate_is_given_twice_as_long_again_and_again():
    task = replace(running(OLD.tasks[0], "n0"), started_ms=1000)
    seconds = [end_ms(task, OLD, now * 1000) for now in (1, 99, 100, 198, 199, 500)]
    assert seconds == [100_000, 100_000, 199_000, 199_000, 397_000, 793_000]


def test_the_shortest_estimate_counts_and_without_one_there_is_no_end():
    task = replace(running(OLD.tasks[0], "n0"), started_ms=1000)
    assert end_ms(replace(task, estimate_ms=7000), OLD, 1000) == 8000
    assert end_ms(task, None, 1000) is None
    assert gang_end_ms(one(), 5) is None


def test_a_gang_without_its_minimum_is_completed_first():
    two = gang("two", ("w", 2, shape(1)))
    broken_one = replace(two, tasks=(running(two.tasks[0], "n1"), two.tasks[1]))
    assert binding_reservations(two, [BOOKING], 0) == (0,)
    assert binding_reservations(broken_one, [BOOKING], 0) == ()


def test_gangs_before_in_the_line_are_not_bound_by_bookings_after_theirs():
    kept = (("n0", (("cpu", 1000),)),)
    reservations = [
        CapacityReservation(f"ns/{name}", 0, 50, nodes=kept) for name in ("a", "b", "c")
    ]
    assert binding_reservations(one("b"), reservations, 0) == (0,)
    assert binding_reservations(one("x"), reservations, 0) == (0, 1, 2)
    reservations[0] = reservations[0].without_capacity
    assert binding_reservations(one("a"), reservations, 0) == ()
    assert binding_reservations(one("x"), reservations, 0) == (1, 2)


def test_tasks_that_leave_are_out_of_the_way():
    snapshot = stage(one())
    gone = replace(OLD.tasks[0], status=TaskStatus.RELEASING, node="n0")
    old = replace(OLD, tasks=(gone,), annotations={})
    made = cluster([node("n0"), node("n1")], [old, one(), gang("big", ("w", 1, shape(2)))], (), 1)
    reservation = replace(BOOKING, nodes=(("n0", ((CPU, 3000),)),))
    snapshot = replace(made, reservations=(reservation,))
    assert broken(snapshot, one="n0") == []
    bench = Bench.of(snapshot, RULES)
    assert np.flatnonzero(bench.greedy().node_of >= 0).size > 0
