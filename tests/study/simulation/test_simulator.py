"""Tests of a trace in virtual time: running gangs, lost work, and reproducible results."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from optsched.cluster.amounts import amount_of
from optsched.cluster.snapshot import Queue, Snapshot
from optsched.cluster.task import Task, TaskStatus
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace
from optsched.policy.load import load_policy
from optsched.policy.policy import Policy, without_solver
from optsched.session.session import UNEXPLAINED, SessionContext, run_session
from optsched.solver.cpsat.process import InProcess
from optsched.study.simulation.record import (
    Event,
    Finish,
    Release,
    SessionRun,
    Start,
    Stop,
    TaskPlacement,
    event_of,
    line_of,
    lines,
)
from optsched.study.simulation.replay_trace import trace_of
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.synthetic_traces import GavelTrace
from tests.support.effort import nightly_except
from tests.support.replays import chargeback, measure, record_in_parts, times
from tests.support.small import gang, node, random_cluster, shape

S = 1000


def policy(name: str = "volcano-compatible") -> Policy:
    return load_policy(name, Path.read_text)


def arrival(name: str, at_s: float, run_s: float | None, cpu: int = 4, **fields: object) -> Arrival:
    tasks = fields.pop("tasks", 1)
    given = gang(name, ("w", tasks, shape(cpu)), **fields)  # type: ignore[arg-type]
    return Arrival(int(at_s * S), given, None if run_s is None else int(run_s * S))


def trace(*arrivals: Arrival, nodes: int = 1, events: tuple[NodeEvent, ...] = ()) -> Trace:
    queues = (Queue("default"), Queue("root"))
    return Trace("t", tuple(node(f"n{i}", 4, 4) for i in range(nodes)), queues, arrivals, events)


def play(given: Trace, **options: int) -> list[Event]:
    return Simulation(given, policy(), Options(**options)).run()  # type: ignore[arg-type]


def test_one_after_the_other() -> None:
    events = play(trace(arrival("a", 0, 10), arrival("b", 2.5, 5)))
    assert times(events, Start) == {"a": [0], "b": [10]}
    assert times(events, Finish) == {"a": [10], "b": [15]}


def test_sessions_begin_with_periods_and_only_where_something_may_change() -> None:
    events = play(trace(arrival("a", 0.2, 3.3), arrival("b", 1.7, 1)), period_ms=1000)
    assert times(events, Start) == {"a": [1], "b": [5]}
    held = [e.at_ms / S for e in events if isinstance(e, SessionRun)]
    assert held == [1, 2, 5]


def test_who_waits_is_asked_about_again_when_its_turn_has_come() -> None:
    events = play(trace(arrival("a", 0, 100), arrival("b", 0, 1, created_ms=1)))
    assert times(events, Start) == {"a": [0], "b": [100]}
    held = [e.at_ms / S for e in events if isinstance(e, SessionRun)]
    assert held[:3] == [0, 1, 60]
    assert held[-1] == 100


def test_events_of_one_instant_make_room_before_they_take_it() -> None:
    events = play(trace(arrival("a", 0, 10), arrival("b", 10, 5)))
    assert times(events, Start) == {"a": [0], "b": [10]}


def test_a_gang_runs_once_it_has_its_minimum() -> None:
    elastic = arrival("e", 0, 10, cpu=2, tasks=3, least=1)
    events = play(trace(arrival("a", 0, 4, cpu=2), elastic))
    assert times(events, Start) == {"a": [0], "e": [0]}
    assert times(events, Finish) == {"a": [4], "e": [10]}


def test_a_duration_of_nothing_ends_at_once_and_one_without_end_never() -> None:
    events = play(trace(arrival("a", 0, 0), arrival("b", 0, None), arrival("c", 0, 1)))
    assert times(events, Finish) == {"a": [0]}
    assert times(events, Start) == {"a": [0], "b": [1]}


def test_nothing_happens_from_the_end_on() -> None:
    given = trace(arrival("a", 0, 10), arrival("b", 0, 5))
    assert max(e.at_ms for e in play(given, until_ms=10 * S)) < 10 * S


# --- work that is lost ---------------------------------------------------------------------------


def test_an_evicted_gang_begins_anew() -> None:
    events = play(trace(arrival("low", 0, 10), arrival("high", 4, 3, priority=5)))
    stops = [e for e in events if isinstance(e, Stop)]
    assert stops == [Stop(4 * S, "ns/low", "preempt", "ns/high", lost_ms=4 * S, kept_ms=0)]
    assert times(events, Start) == {"low": [0, 8], "high": [5]}
    assert times(events, Finish) == {"high": [8], "low": [18]}


def test_an_evicted_pod_holds_its_devices_for_its_grace_period() -> None:
    low = replace(arrival("low", 0, 10), grace_ms=3 * S)
    given = trace(low, arrival("high", 4, 3, priority=5))
    events = play(given)
    assert times(events, Stop) == {"low": [4]}
    assert times(events, Start) == {"low": [0, 10], "high": [7]}
    assert times(events, Finish) == {"high": [10], "low": [20]}
    figures = measure(given, events)
    assert figures.preemptions == 1
    charged = chargeback(given, [*events])
    assert charged.total.cpu_held == 4000 * (7 + 3 + 10) * S


def test_a_node_that_fails_gives_no_grace() -> None:
    changes = (NodeEvent(3 * S, "n0", NodeChange.DOWN), NodeEvent(4 * S, "n0", NodeChange.UP))
    graced = replace(arrival("a", 0, 10), grace_ms=60 * S)
    assert times(play(trace(graced, events=changes)), Start) == {"a": [0, 4]}


def test_what_its_last_checkpoint_has_kept_is_not_lost() -> None:
    saves = {"optsched.io/checkpoint-interval": "3s"}
    low = arrival("low", 0, 10, annotations=saves)
    events = play(trace(low, arrival("high", 7, 3, priority=5)))
    assert [(e.lost_ms, e.kept_ms) for e in events if isinstance(e, Stop)] == [(1 * S, 6 * S)]
    assert times(events, Finish) == {"high": [11], "low": [15]}


def test_what_has_been_saved_is_known_to_sessions() -> None:
    saves = {"optsched.io/checkpoint-interval": "3s"}
    simulation = Simulation(trace(arrival("a", 0, 10, annotations=saves)), policy())
    assert simulation.step()
    simulation.now_ms = 3 * S
    simulation._process_events(3 * S)
    (task,) = simulation.cluster.snapshot(3 * S).gangs[0].tasks
    assert task.saved_ms == 3 * S
    assert simulation.cluster.snapshot(3 * S).nodes[0].residents == (task,)


def test_a_node_that_fails_takes_its_gangs_with_it() -> None:
    events = (NodeEvent(3 * S, "n0", NodeChange.DOWN), NodeEvent(20 * S, "n0", NodeChange.UP))
    wide = arrival("wide", 0, 10, tasks=2)
    found = play(trace(wide, nodes=2, events=events))
    assert [e for e in found if isinstance(e, Stop)] == [
        Stop(3 * S, "ns/wide", "node", "n0", lost_ms=3 * S, kept_ms=0)
    ]
    assert times(found, Start) == {"wide": [0, 20]}
    assert times(found, Finish) == {"wide": [30]}


def test_an_elastic_gang_survives_a_node() -> None:
    events = (NodeEvent(3 * S, "n0", NodeChange.DOWN),)
    found = play(trace(arrival("e", 0, 10, tasks=2, least=1), nodes=2, events=events))
    gone = [e for e in found if isinstance(e, Release)]
    assert [(e.job, e.cause, e.by, len(e.tasks)) for e in gone] == [("ns/e", "node", "n0", 1)]
    assert times(found, Finish) == {"e": [10]}


# --- devices -------------------------------------------------------------------------------------


def test_gpus_are_told_apart() -> None:
    pair = Arrival(0, gang("a", ("w", 1, shape(1, gpu=2))), 5 * S)
    one = Arrival(S, gang("b", ("w", 1, shape(1, gpu=1))), 9 * S)
    last = Arrival(6 * S, gang("c", ("w", 1, shape(1, gpu=3))), 1 * S)
    starts = [e for e in play(trace(pair, one, last)) if isinstance(e, Start)]
    assert [e.places for e in starts] == [
        (TaskPlacement("ns/a-w-0", "n0", (0, 1)),),
        (TaskPlacement("ns/b-w-0", "n0", (2,)),),
        (TaskPlacement("ns/c-w-0", "n0", (0, 1, 3)),),
    ]


# --- laws ----------------------------------------------------------------------------------------


PERIOD_MS = 120_000

BUSY = GavelTrace(num_jobs=24, num_nodes=1, load=1.3, num_priorities=3, estimated=0.5)


def busy(seed: int) -> Trace:
    """Return a crowded trace with node failures, gangs that save their work, and slow pods."""
    made = replace(BUSY, seed=seed).trace()
    rng = np.random.default_rng(seed)
    end = made.arrivals[-1].at_ms
    events = []
    for start in sorted(rng.integers(0, end, 3).tolist()):
        if not events or start > events[-1].at_ms:
            events += [NodeEvent(start, "node-00000", NodeChange.DOWN)]
            events += [NodeEvent(start + 3_600_000, "node-00000", NodeChange.UP)]
    saves = {"optsched.io/checkpoint-interval": "1h"}
    arrivals = tuple(
        replace(a, gang=replace(a.gang, annotations=saves) if i % 3 else a.gang, grace_ms=grace_ms)
        for i, (a, grace_ms) in enumerate(zip(made.arrivals, cycle((0, 180_000, 3_600_000))))
    )
    return replace(made, arrivals=arrivals, node_events=tuple(events))


@cache
def played(seed: int) -> list[Event]:
    return play(busy(seed), period_ms=PERIOD_MS)


@pytest.mark.parametrize("seed", nightly_except(range(2), [1]))
def test_the_same_trace_gives_the_same_record(seed: int) -> None:
    assert lines(play(busy(seed), period_ms=PERIOD_MS)) == lines(played(seed))


def test_the_same_trace_gives_the_same_record_with_a_solver() -> None:
    optimising, given = policy("volcano-default"), replace(busy(0), arrivals=busy(0).arrivals[:5])
    little = replace(optimising.budgets, deterministic_s=0.02)
    optimising = replace(optimising, budgets=little)
    runs = [
        Simulation(given, optimising, Options(period_ms=PERIOD_MS), solver=InProcess())
        for _ in range(2)
    ]
    first, again = (lines(run.run()) for run in runs)
    assert first == again
    assert '"engine":"cp-sat' in first or '"engine":"greedy' in first


@pytest.mark.parametrize("seed", nightly_except(range(2), [1]))
def test_it_goes_on_from_where_it_stood(seed: int) -> None:
    given, options = busy(seed), Options(period_ms=PERIOD_MS)
    whole = lines(played(seed))
    stops = np.random.default_rng(seed).integers(1, 30, 4).tolist()
    assert record_in_parts(given, policy(), options, stops) == whole


@pytest.mark.parametrize("seed", nightly_except(range(2), [1]))
def test_snapshots_made_of_parts_are_those_made_at_once(seed: int) -> None:
    given = busy(seed)
    simulation = Simulation(given, policy(), Options(period_ms=PERIOD_MS))
    while simulation.step() is not None:
        snapshot = simulation.cluster.snapshot(simulation.now_ms)
        held: dict[str, list[object]] = {n.name: [] for n in snapshot.nodes}
        for each in snapshot.gangs:
            for task in each.tasks:
                if task.status is TaskStatus.RUNNING:
                    held[task.node].append(task)
        for ghost in simulation.cluster.terminating_pods:
            held[ghost.place.node].append(ghost.resident)
        for n in snapshot.nodes:
            assert sorted(held[n.name], key=lambda t: t.key) == list(n.residents)  # type: ignore[attr-defined]
        waits = {g.key for g in snapshot.gangs if any(not t.node for t in g.tasks)}
        assert waits == simulation.cluster.waiting


@pytest.mark.parametrize("seed", nightly_except(range(2), [1]))
def test_no_gpu_is_given_twice_and_no_node_is_overfull(seed: int) -> None:
    given = busy(seed)
    where: dict[str, dict[str, TaskPlacement]] = {}
    staying: list[tuple[int, TaskPlacement]] = []
    grace = {a.gang.key: a.grace_ms for a in given.arrivals}
    shapes = {t.key: t.shape for a in given.arrivals for t in a.gang.tasks}
    for event in played(seed):
        staying = [each for each in staying if each[0] > event.at_ms]
        if isinstance(event, Stop | Release) and event.cause != "node":
            left = event.tasks if isinstance(event, Release) else where[event.job]
            until_ms = event.at_ms + grace[event.job]
            staying += [(until_ms, where[event.job][task]) for task in left]
        if places := getattr(event, "places", None):
            where.setdefault(event.job, {}).update({p.task: p for p in places})  # type: ignore[union-attr]
        if isinstance(event, Finish | Stop):
            del where[event.job]
        if isinstance(event, Release):
            for task in event.tasks:
                del where[event.job][task]
        sitting = [p for places in where.values() for p in places.values()]
        sitting += [p for until_ms, p in staying if until_ms > event.at_ms]
        gpus = [(p.node, i) for p in sitting for i in p.gpus]
        assert len(gpus) == len(set(gpus))
        for n in given.nodes:
            for resource, amount in n.allocatable:
                asked = (
                    amount_of(shapes[p.task].request, resource) for p in sitting if p.node == n.name
                )
                assert sum(asked) <= amount
    assert where == {}


@pytest.mark.parametrize("name", ["volcano-default", "volcano-compatible", "max-throughput"])
@pytest.mark.parametrize("seed", range(8))
def test_all_at_once_and_for_ever_is_what_solve_decides(name: str, seed: int) -> None:
    snapshot = only_standing(random_cluster(np.random.default_rng(seed)))
    chosen = without_solver(policy(name))
    plan = run_session(snapshot, chosen, SessionContext()).plan
    simulation = Simulation(trace_of(snapshot, "one"), chosen)
    simulation.step()
    assert simulation.last_plan is not None
    assert simulation.last_plan.actions == plan.actions
    assert simulation.last_plan.pending == plan.pending


def only_standing(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with start times, and without terminating tasks.

    No trace records the end of a terminating task.
    """

    def dated(task: Task) -> Task:
        return replace(task, created_ms=100, started_ms=100 if task.node else 0)

    gangs = tuple(
        replace(
            g,
            created_ms=100 + g.created_ms,
            waiting_since_ms=100 + g.created_ms,
            tasks=tuple(dated(t) for t in g.tasks if t.status is not TaskStatus.RELEASING),
        )
        for g in snapshot.gangs
    )
    nodes = tuple(
        replace(n, residents=tuple(t for g in gangs for t in g.tasks if t.node == n.name))
        for n in snapshot.nodes
    )
    return replace(snapshot, gangs=gangs, nodes=nodes, taken_ms=1000)


def test_events_come_back_from_their_lines() -> None:
    events = played(1)
    assert [event_of(line_of(e)) for e in events] == events


@pytest.mark.parametrize("name", ["volcano-compatible", "crater"])
def test_sessions_without_explanations_decide_alike(name: str) -> None:
    given = GavelTrace(num_jobs=20, num_nodes=1, load=2.0).trace()
    model = without_solver(policy(name))
    simulation, waited = Simulation(given, model), 0
    while simulation.num_sessions < 20:
        events = simulation.step()
        if events is None:
            break
        if not any(isinstance(event, SessionRun) for event in events):
            continue
        last, plan = simulation._last, simulation.last_plan
        assert last is not None
        assert plan is not None
        unread = last.plan
        assert unread.actions == plan.actions
        assert list(unread.pending) == list(plan.pending)
        assert unread.certificate.levels == plan.certificate.levels
        assert all(reason is not UNEXPLAINED for reason in plan.pending.values())
        waited += len(plan.pending)
        assert simulation.last_plan is plan
    assert waited


def test_reading_plans_along_the_way_changes_no_record() -> None:
    given = GavelTrace(num_jobs=8, num_nodes=1, load=2.0).trace()
    read, unread = (Simulation(given, without_solver(policy())) for _ in range(2))
    record: list[Event] = []
    while (events := read.step()) is not None:
        record += events
        assert read.num_sessions == 0 or read.last_plan is not None
    assert record == unread.run()
