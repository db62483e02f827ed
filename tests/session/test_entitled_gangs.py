"""A reservation does not hold capacity against gangs within the entitlement of their queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy, parse_policy
from optsched.session.backfill_reservations import HOLD_MS
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.small import CPU, cluster, gang, node, running, shape
from tests.support.virtual import ESTIMATE

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import CapacityReservation, Gang, Snapshot
    from optsched.policy.policy import Policy
    from optsched.session.session import Report

FOLDER = Path(__file__).parent / "entitled_gangs"
MINUTE, HOUR = 60_000, 3_600_000
MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, backfill, preempt, reclaim]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: drf}, {name: predicates}, {name: SHARES}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks]
solver: {engine: ENGINE}
starvationAfter: 60s
reservations: 4
"""


def policy_of(shares: str, engine: str = "cpsat") -> Policy:
    return parse_policy(MODEL.replace("SHARES", shares).replace("ENGINE", engine), "m")


def decide(snapshot: Snapshot, policy: Policy) -> Report:
    limits = Limits(budget_ms=None, num_workers=1, deterministic=0.2)
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=limits))
    assert report.trace.violations == ()
    return report


def placed_of(plan: Plan) -> Counter[str]:
    """Return the number of pods that a plan binds or nominates, by gang."""
    return Counter(a.gang for a in plan.actions if isinstance(a, Allocate | Nominate))


# --- two clusters as files -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "num_victims"),
    [
        ("reservation_against_entitled_queue", "crater", 0),
        ("reservation_against_reclaim", "volcano-default", 2),
    ],
)
def test_a_queue_below_its_entitlement_does_not_wait_for_a_reservation(
    name: str, model: str, num_victims: int
) -> None:
    snapshot = read_instance(FOLDER / f"{name}.json").snapshot
    report = decide(snapshot, load_policy(model, Path.read_text))
    (reservation,) = (b for b in report.problem.snapshot.reservations if b.nodes)
    assert reservation.entitled == {"ml/y"}
    assert placed_of(report.plan) == {"ml/y": 2}
    assert sum(isinstance(a, Evict) for a in report.plan.actions) == num_victims


# --- random clusters -----------------------------------------------------------------------------

HELD, WAITING = ["a", "b"], ["a", "b", "c"]


@st.composite
def worlds(draw: DrawFn) -> tuple[Snapshot, str]:
    """Draw two nodes, queues with running and waiting gangs, an instant of two hours and a rule.

    All gangs have waited too long or arrive now. Queue c has no entitlement by `capacity`.
    """
    now_ms = 10 * HOUR + draw(st.integers(0, 12)) * 9 * MINUTE
    due = {name: draw(st.sampled_from([2, 4, 6])) for name in ("a", "b")}
    queues = [Queue(name, deserved=((CPU, due[name] * 1000),)) for name in ("a", "b")]
    queues.append(Queue("c", weight=draw(st.sampled_from([1, 2]))))
    free = {"n0": 8, "n1": 8}
    gangs: list[Gang] = []
    for i in range(draw(st.integers(1, 6))):
        where, size = draw(st.sampled_from(["n0", "n1"])), draw(st.sampled_from([1, 2, 3]))
        if size > free[where]:
            continue
        free[where] -= size
        old = gang(f"old{i}", ("w", 1, shape(size)), queue=draw(st.sampled_from(HELD)))
        tasks = tuple(replace(running(t, where), started_ms=now_ms - HOUR) for t in old.tasks)
        gangs.append(replace(old, tasks=tasks, phase=GangPhase.RUNNING))
    for i in range(draw(st.integers(1, 6))):
        number, size = draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
        began_ms = now_ms - draw(st.sampled_from([0, 5, 30, 100])) * MINUTE
        seconds = draw(st.sampled_from([None, None, 600]))
        gangs.append(
            gang(
                f"new{i}",
                ("w", number, shape(size)),
                least=draw(st.integers(1, number)),
                queue=draw(st.sampled_from(WAITING)),
                annotations={} if seconds is None else {ESTIMATE: f"{seconds}s"},
                created_ms=began_ms,
                waiting_since_ms=began_ms,
            )
        )
    made = cluster([node("n0", 8), node("n1", 8)], gangs, queues, now_ms)
    return made, draw(st.sampled_from(["capacity", "proportion"]))


def held_cpus(snapshot: Snapshot, queue: str) -> int:
    inside = (g for g in snapshot.gangs if g.queue == queue)
    return sum(dict(t.shape.request)[CPU] for g in inside for t in g.tasks if t.node)


def minimum_cpus(which: Gang) -> int:
    return which.min_member * dict(which.tasks[0].shape.request)[CPU]


def expected_gangs(snapshot: Snapshot, reservation: CapacityReservation) -> set[str]:
    """Return the gangs that a reservation does not bind, by the page and with `capacity`."""
    by_key = {g.key: g for g in snapshot.gangs}
    deserved = {q.name: dict(q.deserved).get(CPU) for q in snapshot.queues}
    first = by_key[reservation.gang]
    due = deserved[first.queue]
    if due is not None and held_cpus(snapshot, first.queue) + minimum_cpus(first) <= due:
        return set()
    return {
        g.key
        for g in snapshot.gangs
        if g.queue != first.queue
        and not any(t.node for t in g.tasks)
        and (most := deserved[g.queue]) is not None
        and held_cpus(snapshot, g.queue) + minimum_cpus(g) <= most
    }


effort = settings(
    max_examples=num_examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@effort
@given(drawn=worlds())
def test_gangs_within_the_entitlement_are_those_of_the_page(drawn) -> None:
    snapshot, _ = drawn
    report = decide(snapshot, policy_of("capacity", "none"))
    for reservation in report.problem.snapshot.reservations:
        assert reservation.entitled == expected_gangs(snapshot, reservation)


@pytest.mark.parametrize("engine", ["cpsat", "none"])
@effort
@given(drawn=worlds())
def test_a_gang_that_starts_alone_within_its_entitlement_waits_for_no_borrower(
    engine, drawn
) -> None:
    """Of the waiting gangs, one that is entitled to start meets only gangs that cannot start."""
    snapshot, shares = drawn
    policy = policy_of(shares, engine)
    bare = replace(policy, reservations=0)
    report = decide(snapshot, policy)
    for reservation in report.problem.snapshot.reservations:
        for key in sorted(reservation.entitled):
            kept = [
                g
                for g in snapshot.gangs
                if g.key in (key, reservation.gang) or any(t.node for t in g.tasks)
            ]
            pair = replace(snapshot, gangs=tuple(kept))
            without = placed_of(decide(pair, bare).plan)
            if reservation.gang in without or not without[key]:
                continue
            again = decide(pair, policy)
            held = [b for b in again.problem.snapshot.reservations if b.gang == reservation.gang]
            if all(key in b.entitled for b in held):
                assert placed_of(again.plan)[key]


# --- what entitled gangs do not get --------------------------------------------------------------


def since(gang: Gang, at_ms: int) -> Gang:
    return replace(gang, created_ms=at_ms, waiting_since_ms=at_ms)


def borrower_waits(*gangs: Gang, cpus: int = 8) -> Snapshot:
    """Return a node on which queue a holds 4 CPUs, and a gang of a that waits for 8."""
    now_ms = 10 * HOUR
    old = gang("old", ("w", 1, shape(4)), queue="a")
    old = replace(old, tasks=(running(old.tasks[0], "n0"),), phase=GangPhase.RUNNING)
    big = since(gang("big", ("w", 1, shape(8)), queue="a"), now_ms - 5 * MINUTE)
    arrived = [since(each, now_ms) for each in gangs]
    queues = [Queue(name, deserved=((CPU, 4000),)) for name in ("a", "b")]
    return cluster([node("n0", cpus)], [old, big, *arrived], queues, now_ms)


def test_an_elastic_gang_starts_up_to_the_entitlement():
    wide = gang("wide", ("w", 6, shape(1)), least=1, queue="b")
    held = gang("held", ("w", 1, shape(2)), queue="b")
    held = replace(held, tasks=(running(held.tasks[0], "n0"),), phase=GangPhase.RUNNING)
    report = decide(borrower_waits(wide), policy_of("capacity"))
    assert placed_of(report.plan) == {"ns/wide": 4}
    report = decide(borrower_waits(wide, held), policy_of("capacity"))
    assert placed_of(report.plan) == {"ns/wide": 2}


def test_several_gangs_share_the_entitlement_and_the_rest_waits_for_the_reservation():
    gangs = [gang(f"one{i}", ("w", 1, shape(3)), queue="b") for i in range(2)]
    report = decide(borrower_waits(*gangs, cpus=10), policy_of("capacity"))
    assert sum(placed_of(report.plan).values()) == 1
    (reason,) = (r for key, r in report.plan.pending.items() if key.startswith("ns/one"))
    assert reason.code == "ReservedForOthers"
    assert reason.message.startswith(
        "queue b would hold more than it is entitled to and delay the start of ns/big"
    )


def test_an_entitled_gang_is_protected_by_its_own_reservation():
    """Queue a deserves both pods of `big`, which is why it keeps its node against queue b."""
    snapshot = borrower_waits(gang("one", ("w", 1, shape(1)), queue="b"))
    queues = (replace(snapshot.queues[0], deserved=((CPU, 12_000),)), snapshot.queues[1])
    report = decide(replace(snapshot, queues=queues), policy_of("capacity"))
    assert placed_of(report.plan) == {}
    assert report.plan.pending["ns/one"].code == "ReservedForOthers"


def test_within_one_queue_a_reservation_holds():
    report = decide(
        borrower_waits(gang("mine", ("w", 1, shape(1)), queue="a")), policy_of("capacity")
    )
    assert placed_of(report.plan) == {}


@pytest.mark.parametrize("late_min", [5, 45, 150])
def test_a_small_job_without_entitlement_starts_in_the_common_slot(late_min):
    """Eight gangs wait too long, each for another time, and queue c has no entitlement."""
    snapshot = borrower_waits(gang("small", ("w", 1, shape(1)), queue="c"))
    old, *_ = (g for g in snapshot.gangs if g.key == "ns/old")
    small = next(g for g in snapshot.gangs if g.key == "ns/small")
    starts = []
    period_ms = late_min * MINUTE + 2 * HOLD_MS
    for at in range(10 * HOUR, 10 * HOUR + period_ms + HOLD_MS, HOLD_MS // 2):
        late = []
        for i in range(8):
            began_ms = 10 * HOUR - (late_min - i * late_min // 8) * MINUTE
            late.append(since(gang(f"big{i}", ("w", 1, shape(8)), queue="a"), began_ms))
        queues = (*snapshot.queues, Queue("c"))
        made = cluster([node("n0", 8)], [old, since(small, at), *late], queues, at)
        starts.append("ns/small" in placed_of(decide(made, policy_of("capacity")).plan))
    assert any(starts)
    assert not all(starts)
