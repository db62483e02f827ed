"""Gangs that have waited too long get a reservation, and no other gang delays them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import Enqueue, Evict
from optsched.cluster.snapshot import Gang, GangPhase, Queue
from optsched.cluster.topology import TopologyRequest
from optsched.policy.load import parse_policy
from optsched.session.backfill_reservations import HOLD_MS, reserves_nodes
from optsched.session.session import SessionContext
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.small import GPU, gang, node, running, shape
from tests.support.virtual import Virtual, lasting

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks]
solver: {engine: ENGINE}
starvationAfter: 60s
reservations: 4
"""
POLICIES = {name: parse_policy(MODEL.replace("ENGINE", name), "m") for name in ("cpsat", "none")}
engines = pytest.mark.parametrize("engine", POLICIES)
SECOND = 1000


def world(engine: str, nodes: int = 2, queues: tuple[Queue, ...] = ()) -> Virtual:
    machines = [node(f"n{i}", 64, 8) for i in range(nodes)]
    around = SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))
    return Virtual(machines, POLICIES[engine], around, queues)


def gpus(name: str, tasks: int, each: int, seconds: int | None, **fields: object):
    return lasting(gang(name, ("w", tasks, shape(1, each)), **fields), seconds)


def waiting(engine: str, *, end_s: int | None = 1000, **fields: object) -> Virtual:
    """Return a world with 6 of 8 GPUs of n0 in use until `end_s`; `big` requests both nodes."""
    cluster = world(engine)
    cluster.arrive(gpus("old", 1, 6, end_s and end_s - 1))
    cluster.step(1 * SECOND)
    cluster.arrive(gpus("big", 2, 8, 600, **fields))
    cluster.step(1 * SECOND)
    return cluster


@engines
def test_before_its_time_a_gang_reserves_nothing(engine):
    cluster = waiting(engine)
    plan = cluster.step(30 * SECOND)
    assert cluster.reservations == ()
    assert "reserved" not in plan.pending["ns/big"].message


@engines
def test_a_gang_that_has_waited_for_too_long_is_told_when_it_starts(engine):
    cluster = waiting(engine)
    plan = cluster.step(100 * SECOND)
    assert [(b.gang, b.start_ms) for b in cluster.reservations] == [("ns/big", 1000 * SECOND)]
    told = "capacity is reserved for it from 1970-01-01T00:16:40Z on"
    assert plan.pending["ns/big"].message.endswith(told)


@engines
def test_a_gang_whose_sla_is_over_need_not_wait_longer(engine):
    text = MODEL.replace("ENGINE", engine).replace("{name: drf}", "{name: sla}, {name: drf}")
    cluster = world(engine)
    cluster.policy = parse_policy(text, "m")
    cluster.arrive(gpus("old", 1, 6, 999))
    cluster.step(1 * SECOND)
    big = gpus("big", 2, 8, 600)
    marks = {**big.annotations, "volcano.sh/sla-waiting-time": "10s"}
    cluster.arrive(replace(big, annotations=marks))
    cluster.step(5 * SECOND)
    assert cluster.reservations == ()
    cluster.step(12 * SECOND)
    assert [b.gang for b in cluster.reservations] == ["ns/big"]


@engines
def test_a_domain_of_the_network_is_waited_for_as_a_whole(engine):
    text = MODEL.replace("ENGINE", engine)
    text = text.replace("{name: drf}", "{name: network-topology-aware}, {name: drf}")
    cluster = world(engine)
    cluster.policy = parse_policy(text, "m")
    zones = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
    cluster.nodes = [node(n, 64, 8, labels={"zone": zone}) for n, zone in zones.items()]
    for i, (where, seconds) in enumerate((("n0", 900), ("n2", 800))):
        old = gpus(f"old{i}", 1, 6, seconds)
        tasks = tuple(replace(running(t, where), started_ms=SECOND) for t in old.tasks)
        cluster.gangs[old.key] = replace(old, tasks=tasks, phase=GangPhase.RUNNING)
    cluster.arrive(gpus("big", 2, 8, 600, topology=TopologyRequest(label="zone")), 1 * SECOND)
    cluster.step(100 * SECOND)
    (reservation,) = cluster.reservations
    assert reservation.start_ms == 801 * SECOND
    assert [name for name, _ in reservation.nodes] == ["n2", "n3"]


@engines
def test_what_ends_in_time_uses_the_hole_and_what_does_not_waits(engine):
    cluster = waiting(engine)
    cluster.step(100 * SECOND)
    for name, seconds in (("short", 800), ("long", 1000), ("unknown", None)):
        cluster.arrive(gpus(name, 1, 1, seconds))
    plan = cluster.step(150 * SECOND)
    assert sorted(plan.binds) == ["ns/short-w-0"]
    reasons = {key: str(plan.pending[f"ns/{key}"]) for key in ("long", "unknown")}
    start = "the start of ns/big, expected at 1970-01-01T00:16:40Z"
    assert reasons == {
        "long": f"ReservedForOthers: it would run until 1970-01-01T00:19:10Z and delay {start}",
        "unknown": "ReservedForOthers: its duration is unknown, so it could delay " + start,
    }
    cluster.step(1000 * SECOND)
    assert cluster.started_ms["ns/big"] == 1000 * SECOND


@engines
def test_who_is_more_important_is_not_kept_off(engine):
    cluster = waiting(engine)
    cluster.step(100 * SECOND)
    cluster.arrive(gpus("urgent", 1, 1, None, priority=5))
    assert "ns/urgent-w-0" in cluster.step(150 * SECOND).binds


@engines
def test_room_that_is_not_needed_is_for_everybody(engine):
    cluster = world(engine, nodes=3)
    for i in range(3):
        cluster.arrive(gpus(f"old{i}", 1, 5, 999 + i))
    cluster.step(1 * SECOND)
    cluster.arrive(gpus("big", 2, 8, 600))
    cluster.step(1 * SECOND)
    cluster.step(100 * SECOND)
    (reservation,) = cluster.reservations
    assert reservation.start_ms == 1001 * SECOND
    cluster.arrive(gpus("long", 3, 1, None))
    plan = cluster.step(101 * SECOND)
    kept = {name for name, _ in reservation.nodes}
    assert len(kept) == 2
    assert set(plan.binds.values()) == {"n0", "n1", "n2"} - kept


@engines
def test_the_same_reservation_comes_out_again(engine):
    cluster = waiting(engine)
    cluster.step(100 * SECOND)
    before = cluster.reservations
    for second in range(101, 110):
        cluster.step(second * SECOND)
        assert cluster.reservations == before
    cluster._last = None
    cluster.step(110 * SECOND)
    assert cluster.reservations == before


@engines
def test_a_ceiling_of_a_queue_is_reserved_as_well(engine):
    queue = Queue("team", capability=((GPU, 8),))
    cluster = world(engine, queues=(queue,))
    cluster.arrive(gpus("old", 1, 2, 999, queue="team"))
    cluster.step(1 * SECOND)
    cluster.arrive(gpus("big", 1, 8, 600, queue="team"))
    cluster.step(1 * SECOND)
    cluster.step(100 * SECOND)
    cluster.arrive(gpus("mine", 1, 1, None, queue="team"))
    cluster.arrive(gpus("theirs", 1, 1, None))
    plan = cluster.step(101 * SECOND)
    assert sorted(plan.binds) == ["ns/theirs-w-0"]
    assert plan.pending["ns/mine"].code == "ReservedForOthers"


@engines
def test_where_nobody_says_when_it_ends_nodes_are_kept_for_a_while(engine):
    cluster = waiting(engine, end_s=None)
    plan = cluster.step(100 * SECOND)
    (reservation,) = cluster.reservations
    assert reservation.is_open
    assert "once pods of unknown duration end" in plan.pending["ns/big"].message
    cluster.arrive(gpus("small", 1, 1, None))
    assert "ns/small-w-0" not in cluster.step(101 * SECOND).binds
    others_turn = 61 * SECOND + HOLD_MS + SECOND
    assert "ns/small-w-0" in cluster.step(others_turn).binds


def turns(late_slots: int) -> str:
    """Return for 16 slots whether nodes are reserved for a gang that is late by some slots."""
    held = (reserves_nodes(HOLD_MS * t, HOLD_MS * late_slots) for t in range(16))
    return "".join("-+"[each] for each in held)


def test_holding_takes_turns_and_gets_longer():
    assert turns(0) == turns(1) == "+-" * 8
    assert turns(2) == turns(5) == "+++-" * 4
    assert turns(6) == turns(13) == "+++++++-" * 2


@given(late=st.lists(st.integers(0, 10**9), min_size=1, max_size=6), now=st.integers(0, 10**12))
def test_all_gangs_leave_nodes_to_others_at_the_same_time(late, now):
    period = max(late) + 2 * HOLD_MS
    slots = range(now, now + period + HOLD_MS, HOLD_MS)
    assert any(not any(reserves_nodes(at, each) for each in late) for at in slots)
    held = [reserves_nodes(now, each) for each in sorted(late)]
    assert held == sorted(held)


@engines
def test_the_fewest_nodes_are_kept_those_on_which_least_runs(engine):
    cluster = world(engine, nodes=3)
    for i, each in enumerate((7, 2, 5)):
        which = gpus(f"old{i}", 1, each, None)
        tasks = tuple(running(t, f"n{i}") for t in which.tasks)
        cluster.gangs[which.key] = replace(which, tasks=tasks, phase=GangPhase.RUNNING)
    cluster.arrive(gpus("big", 2, 8, 600))
    cluster.step(100 * SECOND)
    assert [name for name, _ in cluster.reservations[0].nodes] == ["n1", "n2"]


@engines
def test_a_gang_that_could_never_start_reserves_nothing(engine):
    cluster = world(engine)
    cluster.arrive(gpus("vast", 3, 8, 600))
    cluster.arrive(gpus("small", 1, 1, None))
    cluster.step(1 * SECOND)
    plan = cluster.step(100 * SECOND)
    assert cluster.reservations == ()
    assert "reserved" not in plan.pending["ns/vast"].message


# --- pods that do not exist yet -------------------------------------------------------------------


def asking(name: str, cpus: int) -> Gang:
    """Return a PodGroup whose pods are created after its admission."""
    least = (("cpu", cpus * 1000),)
    return Gang(f"ns/{name}", min_member=1, min_resources=least, phase=GangPhase.PENDING)


@pytest.mark.parametrize("keeps_shares", ["true", "false"])
@engines
def test_small_jobs_are_not_let_in_past_a_large_one_for_ever(engine, keeps_shares):
    overcommit = f"{{name: overcommit, arguments: {{overcommit.keepShares: {keeps_shares}}}}}"
    text = MODEL.replace("ENGINE", engine).replace("{name: drf}", f"{overcommit}, {{name: drf}}")
    cluster = world(engine, queues=(Queue("team"),))
    cluster.policy = parse_policy(text, "m")
    cluster.arrive(gang("old", ("w", 1, shape(60))))
    cluster.step(1 * SECOND)
    cluster.arrive(asking("large", 120))
    cluster.step(2 * SECOND)
    cluster.arrive(replace(asking("small", 20), queue="team"))
    before, after = cluster.step(50 * SECOND), cluster.step(100 * SECOND)
    assert [a.gang for a in before.actions if isinstance(a, Enqueue)] == ["ns/small"]
    assert [a for a in after.actions if isinstance(a, Enqueue)] == []
    later = cluster.step(63 * SECOND + HOLD_MS)
    assert [a.gang for a in later.actions if isinstance(a, Enqueue)] == ["ns/small"]
    del cluster.gangs["ns/old"]
    last = cluster.step(64 * SECOND + HOLD_MS)
    assert "ns/large" in [a.gang for a in last.actions if isinstance(a, Enqueue)]


# --- a little simulation -------------------------------------------------------------------------

ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 12),  # arrival time of a gang, in steps of 25 seconds
        st.integers(1, 3),  # number of tasks of a gang
        st.sampled_from([1, 2, 4, 8]),  # number of GPUs of each task
        st.sampled_from([100, 130, 250, 700]),  # run time of a gang in seconds
    ),
    min_size=4,
    max_size=10,
)


def instants(cluster: Virtual, arrivals: dict[int, list[Gang]]) -> Iterator[int]:
    """Yield the instants of arrivals, ends and expired waiting times until all gangs have ended."""
    while True:
        ends = [cluster.end_ms(key) for key in cluster.started_ms]
        waits = [g.created_ms + 61 * SECOND for g in cluster.gangs.values()]
        later = sorted(t for t in {*arrivals, *ends, *waits} if t > cluster.now_ms)
        if not later:
            return
        yield later[0]


@engines
def test_who_starts_beside_another_does_not_wait_for_those_behind(engine):
    """The gang `third` starts once `first` ends, because its own reservation does not block it."""
    cluster = world(engine)
    cluster.arrive(gpus("full", 2, 8, 100))
    cluster.step(1 * SECOND)
    for name, tasks, each, seconds in (("first", 3, 4, 100), ("second", 2, 2, 130)):
        cluster.arrive(gpus(name, tasks, each, seconds))
    cluster.arrive(gpus("third", 3, 4, 100), 2 * SECOND)
    cluster.step(90 * SECOND)
    assert [b.gang for b in cluster.reservations] == ["ns/first", "ns/second", "ns/third"]
    cluster.step(101 * SECOND)
    cluster.step(201 * SECOND)
    starts = {key: at // SECOND for key, at in cluster.started_ms.items()}
    assert starts == {"ns/full": 1, "ns/first": 101, "ns/second": 101, "ns/third": 201}


@engines
@settings(
    max_examples=num_examples(8),
    deadline=None,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow],
)
@given(drawn=ARRIVALS)
@example(drawn=[(1, 2, 1, 100), (2, 2, 8, 100), (2, 3, 4, 100), (5, 2, 2, 130), (5, 3, 4, 100)])
@example(drawn=[(1, 1, 4, 100), (1, 2, 1, 130), (2, 2, 4, 100), (2, 2, 4, 100)])
def test_the_first_in_line_starts_no_later_than_it_was_first_told(engine, drawn):
    cluster, promised = world(engine), {}
    arrivals: dict[int, list[Gang]] = {}
    for i, (step, tasks, each, seconds) in enumerate(drawn):
        number = min(tasks, 16 // each)
        arrivals.setdefault(step * 25 * SECOND, []).append(gpus(f"g{i}", number, each, seconds))
    for now in instants(cluster, arrivals):
        for which in arrivals.get(now, ()):
            cluster.arrive(which, now)
        cluster.step(now)
        for reservation in cluster.reservations[:1]:
            promised.setdefault(reservation.gang, reservation.start_ms)
            assert reservation.start_ms <= promised[reservation.gang]
    assert len(cluster.started_ms) == len(drawn)
    for key, start in promised.items():
        assert cluster.started_ms[key] <= start


def test_pods_are_evicted_where_no_reservation_keeps_the_room():
    """The victim with less work to lose runs on the reserved node."""
    text = MODEL.replace("ENGINE", "cpsat").replace("allocate,", "allocate, preempt,")
    cluster = world("cpsat")
    text = text.replace("{name: proportion}, ", "").replace("guarantee, ", "")
    cluster.policy = parse_policy(text.replace("fair-share, ", ""), "m")
    for name, where, seconds, began_s in (("ends", "n0", 500, 90), ("stays", "n1", None, 1)):
        old = gpus(name, 1, 8, seconds, priority=1)
        tasks = tuple(replace(running(t, where), started_ms=began_s * SECOND) for t in old.tasks)
        cluster.gangs[old.key] = replace(old, tasks=tasks, phase=GangPhase.RUNNING)
    big = gpus("big", 1, 8, 600, priority=5)
    never = replace(big.tasks[0].shape, preempts=False)
    big = replace(big, tasks=tuple(replace(t, shape=never) for t in big.tasks))
    cluster.arrive(big, 1 * SECOND)
    cluster.step(100 * SECOND)
    (reservation,) = cluster.reservations
    assert [name for name, _ in reservation.nodes] == ["n0"]
    cluster.arrive(gpus("middle", 1, 8, None, priority=3))
    plan = cluster.step(101 * SECOND)
    assert [a.task for a in plan.actions if isinstance(a, Evict)] == ["ns/stays-w-0"]
