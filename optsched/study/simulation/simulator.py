"""Replay a trace in virtual time: gangs arrive and finish, nodes fail, and sessions run.

The sessions run the live scheduler's code on snapshots of the simulated cluster. Events at the same
instant are processed in a fixed order: terminating pods are deleted, gangs finish, nodes fail or
recover, gangs arrive, then a session runs. Sessions start at multiples of the session period.

As in the live scheduler, a session is skipped if the cluster has not changed since the last
session, and no gang has waited longer than the policy's starvation limit. Even if nothing changes,
sessions run, at exponentially growing intervals. A session is skipped if no task is pending, unless
the policy can move running pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from optsched.api.wellknown import CHECKPOINT_INTERVAL
from optsched.cluster.amounts import Usage
from optsched.cluster.decisions import Allocate, Enqueue, Evict, Nominate
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.trace import NodeChange
from optsched.plugins.eviction.moves import SHUFFLE
from optsched.plugins.shares.tree_shares import find_half_life
from optsched.session.session import SessionContext, run_session
from optsched.session.snapshot_equivalence import AT_LATEST_MS, next_turn_ms
from optsched.session.usage import UsageKeeper
from optsched.solver.cpsat.level_model import Limits
from optsched.study.simulation import record
from optsched.study.simulation.simulated_cluster import (
    Placement,
    RunningTask,
    SimulatedCluster,
    read_cluster,
    write_cluster,
)
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.trace import Trace
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.session.ports import Clock
    from optsched.solver.cpsat.process import Solver
    from optsched.study.simulation.record import Event
    from optsched.study.simulation.simulated_cluster import Job

VERSION: Final = 3
"""Version of the format of saved states."""

NODE: Final = "node"
"""The `cause` of recorded events that a node failure triggers."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a simulation."""

    # Time between two session starts; None means the policy's period.
    period_ms: int | None = None
    # Trace time at which the replay stops; None means that it runs until no event remains.
    until_ms: int | None = None
    seed: int = 0  # Random seed of the solver.


@dataclass(slots=True)
class _SessionTimer:
    period_ms: int
    # Earliest time of the next session, or None if no session has been requested.
    asks_at_ms: int | None = None
    held_ms: int = -1  # Time of the last session; -1 before the first session.
    times: int = 0  # Number of sessions since the cluster last changed.
    number: int = 0  # Number of sessions so far.
    is_changed: bool = False  # True if the last session changed the cluster.

    def request(self, now_ms: int) -> None:
        """Request a session at `now_ms`, because the cluster has changed."""
        self.times = 0
        if self.asks_at_ms is None or self.asks_at_ms > now_ms:
            self.asks_at_ms = now_ms

    def request_next(self, now_ms: int) -> None:
        """Request a session in the next period, because the last session changed the cluster."""
        self.is_changed, self.times, self.asks_at_ms = True, 0, now_ms + 1

    def next_ms(self, now_ms: int) -> int | None:
        if self.asks_at_ms is None:
            return None
        asked_ms = max(self.asks_at_ms, now_ms, self.held_ms + 1)
        return -(-asked_ms // self.period_ms) * self.period_ms


@dataclass(slots=True)
class _Memory:
    """The state that later sessions need from earlier sessions."""

    half_life_ms: int  # Half-life of the queues' past usage; 0 if no plugin reads it.
    usage: UsageKeeper = field(default_factory=UsageKeeper)
    # Time at which each plugin last moved running pods, keyed by plugin name.
    shuffled_ms: dict[str, int] = field(default_factory=dict)
    # Keys of the gangs whose tasks have nominated nodes.
    nominated: set[str] = field(default_factory=set)

    def noted(self, snapshot: Snapshot) -> Snapshot:
        if self.shuffled_ms:
            snapshot = replace(snapshot, last_shuffle_ms=dict(self.shuffled_ms))
        return self.usage.noted(snapshot, self.half_life_ms)


class _LastSession(NamedTuple):
    """The last session with its snapshot and result, and the `Problem` of the session before it."""

    snapshot: Snapshot
    previous: Problem | None
    problem: Problem | None
    plan: Plan
    is_explained: bool


class _ScheduledEvent(NamedTuple):
    """A scheduled event of a job: the job will finish or save a checkpoint."""

    at_ms: int
    rank: int
    job: str
    turn: int


_FINISH, _SAVE = 0, 1


class Simulation:
    """One replay of a trace; call `step` until it returns None.

    `now_ms` is the current trace time. `session_seconds` lists the wall-clock time of each session;
    it is empty without a clock. `faults` counts each error in a plugin rule, and each violation for
    which a plan was rejected.
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        options: Options | None = None,
        *,
        solver: Solver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.trace, self.policy = trace, policy
        self.options = options or Options()
        self.now_ms = 0
        self.session_seconds: list[float] = []
        self.faults: dict[str, int] = {}
        self.cluster = SimulatedCluster(trace)
        self._clock = clock
        work = policy.budgets.deterministic_s
        has_custom_parts = any(active.origin for active in policy.rules.active) or policy.proposers
        self._context = SessionContext(
            solver=solver,
            limits=Limits(
                budget_ms=None, deterministic=work, num_workers=1, seed=self.options.seed
            ),
            explains=not (solver is None and not has_custom_parts),
        )
        self._timer = _SessionTimer(self.options.period_ms or policy.budgets.period_ms)
        self._memory = _Memory(find_half_life(policy.rules))
        self._last: _LastSession | None = None
        self._scheduled: list[_ScheduledEvent] = []
        self._next = {"arrivals": 0, "node_events": 0}  # Processed trace events.
        self._out: list[Event] = []

    @property
    def num_sessions(self) -> int:
        """The number of sessions so far."""
        return self._timer.number

    @property
    def last_plan(self) -> Plan | None:
        """The last plan with the reasons why gangs are pending, or None before the first session.

        The reasons are computed when this property is read.
        """
        last = self._last
        if last is None or last.is_explained:
            return None if last is None else last.plan
        explaining = replace(self._context, explains=True)
        plan = run_session(last.snapshot, self.policy, explaining, last.previous).plan
        self._last = last._replace(plan=plan, is_explained=True)
        return plan

    # --- saved state ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state between two steps as JSON."""
        return {
            "version": VERSION,
            "now": self.now_ms,
            "held": self._timer.held_ms,
            "asks": self._timer.asks_at_ms,
            "times": self._timer.times,
            **self._next,
            "sessions": self.num_sessions,
            "faults": self.faults,
            "shuffled": self._memory.shuffled_ms,
            "usage": {
                name: [used.at_ms, [list(pair) for pair in used.seconds]]
                for name, used in self._snapshot().usage.items()
            },
            "cluster": write_cluster(self.cluster),
        }

    def restore(self, given: Mapping[str, Any]) -> None:
        """Restore a saved state; must be called before the first step.

        The state must come from a simulation with the same trace, policy and options.
        """
        read_cluster(self.cluster, given["cluster"])
        self.now_ms, self._timer.held_ms = given["now"], given["held"]
        self._timer.asks_at_ms, self._timer.times = given["asks"], given["times"]
        self._next = {name: given[name] for name in self._next}
        self._timer.number, self.faults = given["sessions"], dict(given["faults"])
        memory = self._memory
        memory.shuffled_ms = dict(given["shuffled"])
        for key, job in self.cluster.jobs.items():
            if any(t.nominated_node for t in job.gang.tasks):
                memory.nominated.add(key)
            if job.since_ms is not None:
                self._schedule_run_events(job, job.since_ms)
        if memory.half_life_ms:
            usage = {
                name: Usage(tuple((resource, amount) for resource, amount in pairs), at_ms)
                for name, (at_ms, pairs) in given["usage"].items()
            }
            snapshot = replace(self.cluster.snapshot(self.now_ms), usage=usage)
            memory.usage.noted(snapshot, memory.half_life_ms)

    # --- steps -----------------------------------------------------------------------------------

    def run(self) -> list[Event]:
        """Run the simulation to its end and return all events."""
        events: list[Event] = []
        while (found := self.step()) is not None:
            events += found
        return events

    def step(self) -> list[Event] | None:
        """Return the events up to and including the next session, or None at the end."""
        self._out = []
        while True:
            # If no task is pending, a session could do nothing but move running pods.
            idle = not self.cluster.waiting and SHUFFLE not in self.policy.actions
            session_ms = None if idle else self._timer.next_ms(self.now_ms)
            while self._scheduled and self._is_void(self._scheduled[0]):
                heappop(self._scheduled)
            # Collect the time of the next event of each type; sessions are treated separately.
            times = [self._scheduled[0].at_ms] if self._scheduled else []
            if self.cluster.terminating_pods:
                times.append(self.cluster.terminating_pods[0].leaves_ms)
            arrivals, events = self.trace.arrivals, self.trace.node_events
            if self._next["arrivals"] < len(arrivals):
                times.append(arrivals[self._next["arrivals"]].at_ms)
            if self._next["node_events"] < len(events):
                times.append(events[self._next["node_events"]].at_ms)
            event_ms = min(times, default=None)
            at_ms = min((t for t in (session_ms, event_ms) if t is not None), default=None)
            until_ms = self.options.until_ms
            if at_ms is None or (until_ms is not None and at_ms >= until_ms):
                return self._out or None
            self.now_ms = at_ms
            if at_ms == event_ms:
                self._process_events(at_ms)
                continue
            self._run_session(at_ms)
            return self._out

    def _is_void(self, due: _ScheduledEvent) -> bool:
        job = self.cluster.jobs.get(due.job)
        return job is None or job.turn != due.turn

    # --- events ----------------------------------------------------------------------------------

    def _process_events(self, at_ms: int) -> None:
        """Process all events at an instant, except a session."""
        if self.cluster.remove_expired_pods(at_ms):
            self._timer.request(self.now_ms)
        while self._scheduled and self._scheduled[0].at_ms == at_ms:
            due = heappop(self._scheduled)
            if self._is_void(due):
                continue
            job = self.cluster.jobs[due.job]
            if due.rank == _FINISH:
                self.cluster.remove(job)
                self._out.append(record.Finish(self.now_ms, job.gang.key))
                self._timer.request(self.now_ms)
                continue
            self.cluster.save(job, self.now_ms)
            if job.since_ms is not None:
                self._schedule_checkpoint(job, job.since_ms)
        events, number = self.trace.node_events, self._next["node_events"]
        while number < len(events) and events[number].at_ms == at_ms:
            event = events[number]
            number += 1
            is_up = event.change is NodeChange.UP
            hit = self.cluster.set_node_ready(event.node, ready=is_up)
            self._out.append(record.NodeTurn(self.now_ms, event.node, event.change.value))
            for key, tasks in hit.items():
                self._remove_tasks(self.cluster.jobs[key], tasks, NODE, event.node)
            self._timer.request(self.now_ms)
        self._next["node_events"] = number
        arrivals, first = self.trace.arrivals, self._next["arrivals"]
        while first < len(arrivals) and arrivals[first].at_ms == at_ms:
            self._arrive(first)
            first += 1
        self._next["arrivals"] = first
        self._note_usage()

    def _arrive(self, number: int) -> None:
        arrival = self.trace.arrivals[number]
        job = self.cluster.add(number, self.now_ms)
        self._out.append(record.Submit(self.now_ms, job.gang.key, job.gang.queue))
        standing = [
            RunningTask(
                t.key,
                Placement(t.node, t.shared_gpus, t.numa),
                t.started_ms - self.trace.start_ms if t.started_ms else self.now_ms,
                None,
                t.saved_ms,
            )
            for t in arrival.gang.tasks
            if t.node and self.cluster.has_node(t.node)
        ]
        if standing:
            self._continue_placed_job(job, self.cluster.restore_places(job, standing))
        self._timer.request(self.now_ms)

    # --- runs and lost work ----------------------------------------------------------------------

    def _continue_placed_job(self, job: Job, places: tuple[record.TaskPlacement, ...]) -> None:
        """Start or continue a job after some of its tasks have been placed."""
        key, now_ms = job.gang.key, self.now_ms
        if job.since_ms is not None or len(job.places) < job.minimum_members:
            self._out.append(record.Bind(now_ms, key, places))
            phase = GangPhase.RUNNING if job.since_ms is not None else GangPhase.UNKNOWN
            self.cluster.set_phase(job, phase)
            return
        job.run += 1
        self._out.append(record.Start(now_ms, key, job.run, places))
        self.cluster.set_phase(job, GangPhase.RUNNING)
        self._start_run(job)

    def _start_run(self, job: Job) -> None:
        job.since_ms = self.now_ms
        job.turn += 1
        self._schedule_run_events(job, self.now_ms)

    def _schedule_run_events(self, job: Job, since_ms: int) -> None:
        total_ms = job.arrival.duration_ms
        if total_ms is not None:
            left_ms = max(total_ms - job.kept_ms, 0)
            heappush(
                self._scheduled,
                _ScheduledEvent(since_ms + left_ms, _FINISH, job.gang.key, job.turn),
            )
        self._schedule_checkpoint(job, since_ms)

    def _schedule_checkpoint(self, job: Job, since_ms: int) -> None:
        every_ms = _interval_ms(job.gang)
        if every_ms:
            times = (self.now_ms - since_ms) // every_ms + 1
            at_ms = since_ms + times * every_ms
            heappush(self._scheduled, _ScheduledEvent(at_ms, _SAVE, job.gang.key, job.turn))

    def _end_run(self, job: Job) -> int:
        """End the current run of a job; return the work lost, in milliseconds."""
        done_ms = self.now_ms - (job.since_ms if job.since_ms is not None else self.now_ms)
        every_ms = _interval_ms(job.gang)
        saved_ms = done_ms // every_ms * every_ms if every_ms else 0
        job.kept_ms += saved_ms
        job.since_ms = None
        job.turn += 1
        return done_ms - saved_ms

    def _remove_tasks(self, job: Job, tasks: Sequence[str], cause: str, by: str) -> None:
        """Remove tasks of a job from their nodes; stop the job if too few tasks remain."""
        key, now_ms = job.gang.key, self.now_ms
        stays = cause != NODE and job.arrival.grace_ms > 0
        leaves_ms = now_ms + job.arrival.grace_ms if stays else None
        if job.since_ms is None or len(job.places) - len(tasks) >= job.minimum_members:
            self.cluster.vacate(job, tasks, leaves_ms)
            self._out.append(record.Release(now_ms, key, tuple(tasks), cause, by))
            return
        self.cluster.vacate(job, list(job.places), leaves_ms)
        lost_ms = self._end_run(job)
        self.cluster.set_phase(job, GangPhase.PENDING, self.trace.start_ms + now_ms)
        self._out.append(record.Stop(now_ms, key, cause, by, lost_ms, job.kept_ms))

    # --- sessions --------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return self._memory.noted(self.cluster.snapshot(self.now_ms))

    def _note_usage(self) -> None:
        """Update the queues' past usage, if a plugin reads it."""
        if self._memory.half_life_ms:
            self._snapshot()

    def _run_session(self, at_ms: int) -> None:
        began_s = self._clock.monotonic() if self._clock is not None else 0.0
        snapshot, previous = self._snapshot(), None if self._last is None else self._last.problem
        report = run_session(snapshot, self.policy, self._context, previous)
        if self._clock is not None:
            self.session_seconds.append(self._clock.monotonic() - began_s)
        answer = report.problem, report.plan, self._context.explains
        self._last = _LastSession(snapshot, previous, *answer)
        self._timer.number += 1
        self._timer.held_ms = at_ms
        for found in (*report.trace.violations, *report.trace.faults):
            self.faults[str(found)] = self.faults.get(str(found), 0) + 1
        kinds = [type(action) for action in report.plan.actions]
        certificate = report.plan.certificate
        levels = tuple((r.name, r.value, r.bound) for r in certificate.levels)
        self._out.append(
            record.SessionRun(
                at_ms,
                certificate.engine,
                kinds.count(Allocate),
                kinds.count(Evict),
                len(report.plan.pending),
                levels,
            )
        )
        self.carry_out(report.plan)
        self._note_usage()
        if not self._timer.is_changed:
            # If nothing changes, the next session runs when a gang has waited for the starvation
            # limit, or after an exponential backoff.
            jobs, start_ms = self.cluster.jobs, self.trace.start_ms
            waiting = (jobs[key].gang for key in report.plan.pending if key in jobs)
            limit_ms = self.policy.budgets.starvation_after_ms
            turn_ms = next_turn_ms(waiting, start_ms + self.now_ms, limit_ms)
            times = [] if turn_ms is None else [turn_ms - start_ms]
            wait_ms = AT_LATEST_MS << self._timer.times
            if wait_ms <= _DAY_MS:
                times.append(self.now_ms + wait_ms)
            self._timer.times += 1
            self._timer.asks_at_ms = min(times, default=None)

    def carry_out(self, plan: Plan) -> None:
        """Execute a plan: evicted pods start to terminate, and bound pods run immediately."""
        self._timer.is_changed = False
        self._evict([a for a in plan.actions if isinstance(a, Evict)])
        for action in plan.actions:
            if isinstance(action, Enqueue) and action.gang in self.cluster.jobs:
                self.cluster.set_phase(self.cluster.jobs[action.gang], GangPhase.INQUEUE)
                self._timer.request_next(self.now_ms)
        binds = [a for a in plan.actions if isinstance(a, Allocate)]
        gpus = self.cluster.allocate_gpus(
            [(a.node, self.cluster.jobs[a.gang].fresh[a.task]) for a in binds]
        )
        bound: dict[str, dict[str, Placement]] = {}
        for a in binds:
            placement = Placement(a.node, a.shared_gpus, a.numa, gpus.get(a.task, ()), a.devices)
            bound.setdefault(a.gang, {})[a.task] = placement
        for key, placements in bound.items():
            job = self.cluster.jobs[key]
            self._continue_placed_job(job, self.cluster.place_tasks(job, placements, self.now_ms))
            self._timer.request_next(self.now_ms)
        nominated: dict[str, dict[str, str]] = {}
        for action in plan.actions:
            if isinstance(action, Nominate):
                nominated.setdefault(action.gang, {})[action.task] = action.node
        # A gang that is neither bound nor nominated in this plan loses its previous nominations.
        before = self._memory.nominated
        for key in sorted((before | nominated.keys()) - (bound.keys() - nominated.keys())):
            nominee = self.cluster.jobs.get(key)
            if nominee is not None and self.cluster.nominate(nominee, nominated.get(key, {})):
                self._timer.request_next(self.now_ms)
        self._memory.nominated = set(nominated) | (before & bound.keys())

    def _evict(self, evictions: Sequence[Evict]) -> None:
        """Evict tasks, gang by gang, and place moved tasks on their target nodes."""
        by_job: dict[str, list[Evict]] = {}
        for each in evictions:
            job = self.cluster.job_of(each.task)
            if job is not None:
                by_job.setdefault(job.gang.key, []).append(each)
            if each.plugin:
                self._memory.shuffled_ms[each.plugin] = self.trace.start_ms + self.now_ms
        moving: list[tuple[Job, list[Evict]]] = []
        for key, theirs in by_job.items():
            job = self.cluster.jobs[key]
            leave = [e for e in theirs if not e.to]
            if leave:
                by, tasks = _eviction_cause(leave[0]), [e.task for e in leave]
                self._remove_tasks(job, tasks, leave[0].action, by)
            if move := [e for e in theirs if e.to and e.task in job.places]:
                self.cluster.vacate(job, [e.task for e in move])
                moving.append((job, move))
            self._timer.request_next(self.now_ms)
        # All tasks that move are removed first, because a task may need the capacity that another
        # task releases.
        for job, theirs in moving:
            ran = job.since_ms is not None
            lost_ms = self._end_run(job) if ran else 0
            placements = {e.task: Placement(e.to) for e in theirs}
            places = self.cluster.place_tasks(job, placements, self.now_ms)
            if ran:
                self._start_run(job)
            key, by = job.gang.key, _eviction_cause(theirs[0])
            self._out.append(record.Move(self.now_ms, key, places, by, lost_ms))


def _eviction_cause(eviction: Evict) -> str:
    """Return the gang or the plugin for which a pod is evicted."""
    return eviction.preemptor or eviction.plugin


_DAY_MS: Final = 24 * 60 * 60 * 1000


def _interval_ms(gang: Gang) -> int:
    """Return the checkpoint interval of a gang in milliseconds; 0 if it saves no checkpoints."""
    text = gang.annotations.get(CHECKPOINT_INTERVAL)
    try:
        return 0 if text is None else max(parse_duration_ms(text), 0)
    except DurationError:
        return 0
