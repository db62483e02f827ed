"""The live scheduler's loop: take a snapshot, run a session, bind and evict, write statuses.

The loop runs at most one session per scheduling period. The loop skips a session that could not
change the plan. A session runs in a separate thread on an immutable snapshot, while watches and
binds continue. The session's plan is assumed immediately and executed in the background.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import Allocate, Enqueue
from optsched.cluster.snapshot import DEFAULT_QUEUE, ROOT_QUEUE
from optsched.cluster.task import QueueGate
from optsched.kube.client.listing import pod_ref
from optsched.kube.runtime.lifecycle import Outage
from optsched.kube.scheduler.bind_preparation import GateOpening, find_stranded_claims
from optsched.kube.scheduler.extender_client import ExtenderClient
from optsched.kube.scheduler.outcomes import GangReporter
from optsched.kube.scheduler.status import AGAIN_MS, Outcome, StatusTracker, usage_patch
from optsched.kube.scheduler.status_writer import BUILTIN_QUEUES, shard_patch, write_key
from optsched.plugins.eviction.moves import SHUFFLE
from optsched.plugins.shares.tree_shares import find_half_life
from optsched.policy.policy import SolverKind, without_solver
from optsched.session import snapshot_equivalence
from optsched.session.costly_gangs import keep_reasons
from optsched.session.session import SessionContext, run_session
from optsched.session.usage import UsageKeeper
from optsched.session.warm_start import WarmStart, limits_between_sessions, without_evictions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.kinds import Ref
    from optsched.cluster.decisions import Plan
    from optsched.cluster.reasons import Flaw, Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.cache.follower import Follower
    from optsched.kube.runtime.events import EventRecorder
    from optsched.kube.runtime.leader_election import Leadership
    from optsched.kube.runtime.work_queues import WriteQueue
    from optsched.kube.scheduler.binder import LiveBinder
    from optsched.kube.scheduler.evictor import Evictor
    from optsched.kube.scheduler.metrics import Metrics
    from optsched.kube.scheduler.session_services import PolicyFile, SnapshotDumps, SolverSupervisor
    from optsched.kube.scheduler.status_writer import Write
    from optsched.plugins.custom.isolation import Fault
    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.session.session import Report

SETTLE_S: Final = 0.05
"""Seconds to wait after a change of the cluster: a gang's pods are created one by one."""

POLL_S: Final = 1.0
"""Maximum interval in seconds between two loop cycles while the cluster does not change."""

STUCK_S: Final = 120.0
"""If no loop cycle starts for this number of seconds, the loop is reported as stuck."""

MAX_FAULTS: Final = 100
"""Maximum number of plugin errors to report per policy."""

_BUILTIN: Final = frozenset({DEFAULT_QUEUE, ROOT_QUEUE})
_RECLAIMS: Final = frozenset({"reclaim", "gangreclaim"})
"""Actions that reclaim the capacity that queues have lent."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerDependencies:
    """The dependencies of a scheduler; the caller runs every dependency with a `run` method.

    `follower` lists all kinds again after another process has led; it is None if there is only one
    process. `on_fault` is called once per policy with each plugin error. `on_advice` is called once
    per policy if the policy probably contains a mistake.
    """

    cache: ClusterCache
    binder: LiveBinder
    evictor: Evictor
    writes: WriteQueue[Ref, Write]
    events: EventRecorder
    metrics: Metrics
    policies: PolicyFile
    leadership: Leadership
    dumps: SnapshotDumps
    clock: Clock
    solver: SolverSupervisor
    follower: Follower | None = None
    on_fault: Callable[[str], None] = lambda _: None
    on_advice: Callable[[str], None] = lambda _: None
    outage: Outage = field(default_factory=Outage)


@dataclass(frozen=True, slots=True, eq=False)
class _LastSession:
    """The input of the last session and the resulting plan.

    `until_ms` is the latest start time of the next session, in milliseconds since the Unix epoch.
    `times` counts successive sessions in which the same gangs were pending for the same reasons.
    `repeats` counts successive sessions with the same input whose plans changed nothing.
    """

    snapshot: Snapshot
    policy: Policy
    plan: Plan
    flaws: tuple[Flaw, ...]
    until_ms: int
    times: int
    repeats: int


@dataclass(slots=True)
class _Term:
    """The scheduler's state during one term of leadership; each term starts with an empty state.

    `number` is the term's number (`Leadership.term`), or 0 while another process may lead.
    `may_search_on` is true if the solver has not searched for a better plan since the last session.
    `created_ms` maps each missing built-in queue to the time of the last attempt to create it.
    `reasons` maps each pending gang to the reason that is reported for it.
    """

    number: int = 0
    last_session: _LastSession | None = None
    statuses: StatusTracker = field(default_factory=StatusTracker)
    usage: UsageKeeper = field(default_factory=UsageKeeper)
    warm_start: WarmStart | None = None
    may_search_on: bool = False
    created_ms: dict[str, int] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class _Logged:
    """The warnings logged so far; a new policy clears the warnings about plugins and policy."""

    faults: set[Fault] = field(default_factory=set)
    is_advised: bool = False
    lacks_shard: bool = False


class Scheduler:
    """Schedules a cluster while `run` is active."""

    def __init__(self, dependencies: SchedulerDependencies) -> None:
        self._deps = deps = dependencies
        self._gang_reporter = GangReporter(deps.events.note)
        self._executor = ThreadPoolExecutor(1, "session")
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._last_report: Report | None = None
        self._logged = _Logged()
        self._extenders = ExtenderClient(deps.clock)
        self._cache_version = -1
        self._session_number = 0
        self._beat_s = deps.clock.monotonic()
        self._term = _Term()

    # --- public ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the loop run soon, because the cluster, the policy or the leadership has changed."""
        self._changed.set()

    def stop(self) -> None:
        """End the loop after the current session."""
        self._stopping.set()
        self._changed.set()

    def trouble(self) -> str:
        """See `Probes`."""
        still_s = self._deps.clock.monotonic() - self._beat_s
        return f"the loop has been stuck for {still_s:.0f} s" if still_s > STUCK_S else ""

    def unready(self) -> str:
        """Return whether kinds are not listed yet (see `Probes`); a ready process need not lead."""
        return "" if self._deps.cache.is_synced else "not all kinds have been listed yet"

    def retry_status(self, ref: Ref, *, is_conflict: bool = False) -> None:
        """Schedule a retry of a rejected status write; after a conflict, the delay is shorter."""
        self._term.statuses.record_refusal(ref, self._deps.clock.now_ms(), is_conflict=is_conflict)
        if is_conflict:
            self._changed.set()

    def dump(self) -> None:
        """Dump the current snapshot to a file, in the session thread."""
        snapshot = self._snapshot(self._deps.policies.current(), self._deps.clock.now_ms())
        answers = () if self._last_report is None else self._last_report.trace.answers
        recorded = replace(snapshot, answers=answers)
        self._executor.submit(self._deps.dumps.dump, recorded, "snapshot")

    # --- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run sessions until `stop` is called."""
        clock = self._deps.clock
        while not self._stopping.is_set():
            began = self._beat_s = clock.monotonic()
            policy = self._deps.policies.current()
            has_turn = self._leads() and self._deps.cache.is_synced
            if self._deps.follower is not None:
                # A new leader must list all kinds again before its first session.
                has_turn = has_turn and not self._deps.follower.stale
            if has_turn:
                await self._run_cycle(policy)
            period_s = self._deps.policies.period_s
            if has_turn:
                await self._search_between_sessions(policy, began + period_s)
            # A process that has just become the leader must not wait for a whole scheduling period.
            least_s = period_s if has_turn else min(SETTLE_S, period_s)
            await self._pause(began + least_s - clock.monotonic())
            await self._await_change(period_s)
        if self._leads():
            self._write_usage(once_settled=True)
        self._executor.shutdown()
        self._extenders.close()

    def _leads(self) -> bool:
        """Return whether this process leads; if the term has changed, clear all queued work."""
        deps, term = self._deps, self._deps.leadership.term
        deps.metrics.leading.set(term != 0)
        if term == self._term.number:
            return term != 0
        if self._term.number:
            # Queued work is cleared even if this process leads again, because writes between its
            # two terms as leader were dropped. A server outage was already reported.
            level = logging.INFO if deps.outage.is_active else logging.WARNING
            log.log(level, "leadership lost: another process may schedule")
            deps.binder.withdraw()
            deps.evictor.withdraw()
            deps.cache.forget_enqueued()
            deps.writes.clear()
            deps.events.queue.clear()
            deps.metrics.clear_figures()
        self._term = _Term(term)
        if term:
            log.info("leading: this process schedules")
            if deps.follower is not None:
                # The watches may not have delivered the previous leader's last writes yet.
                deps.follower.refresh()
        return term != 0

    async def _pause(self, seconds: float) -> None:
        """Wait for a number of seconds, or until `stop` is called."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _await_change(self, period_s: float) -> None:
        """Wait until the cluster changes or the next loop cycle is due."""
        if self._changed.is_set():
            self._changed.clear()
            return
        due_ms, now_ms = self._due_ms, self._deps.clock.now_ms()
        due_s = POLL_S if due_ms is None else (due_ms - now_ms) / 1000
        try:
            async with asyncio.timeout(min(POLL_S, max(SETTLE_S, due_s))):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()
        await self._pause(min(SETTLE_S, period_s / 2))

    # --- a cycle ---------------------------------------------------------------------------------

    async def _run_cycle(self, policy: Policy) -> None:
        deps = self._deps
        deps.metrics.add_wasted_time(deps.clock.monotonic())
        deps.binder.gang_backoff.release_due()
        now_ms = deps.clock.now_ms()
        self._write_usage()
        if deps.cache.version == self._cache_version and self._is_fresh(policy, now_ms):
            if self._due_ms is not None and self._due_ms <= now_ms:
                self._report_status(now_ms)
            return
        self._cache_version = deps.cache.version
        snapshot = self._snapshot(policy, now_ms)
        # Users may delete built-in queues at any time, for example together with the queue CRD.
        created_ms = self._term.created_ms
        for creation in BUILTIN_QUEUES:
            name = creation.ref.name
            if name in deps.cache.queues:
                created_ms.pop(name, None)
            elif name not in created_ms or created_ms[name] + AGAIN_MS <= now_ms:
                created_ms[name] = now_ms
                deps.writes.enqueue(creation.ref, creation)
        if snapshot.sharding.is_missing and not self._logged.lacks_shard:
            log.warning("there is no NodeShard %s: all nodes are used", snapshot.sharding.name)
        elif self._logged.lacks_shard and not snapshot.sharding.is_missing:
            log.info("NodeShard %s was found", snapshot.sharding.name)
        self._logged.lacks_shard = snapshot.sharding.is_missing
        if self._is_fresh(policy, snapshot.taken_ms) and self._would_repeat(snapshot, policy):
            deps.metrics.sessions.skipped.inc()
        else:
            await self._session(snapshot, policy)
        self._report_status(now_ms)

    @property
    def _due_ms(self) -> int | None:
        """The time in ms at which the next deferred status or event is due, or None."""
        due = (self._term.statuses.due_ms, self._gang_reporter.due_ms)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _snapshot(self, policy: Policy, now_ms: int) -> Snapshot:
        """Take a snapshot; add the queues' usage history if the policy reads it."""
        return self._term.usage.noted(
            self._deps.cache.snapshot(now_ms), find_half_life(policy.rules)
        )

    def _write_usage(self, *, once_settled: bool = False) -> None:
        """Enqueue writes of the queues' usage history, which the next leader will read."""
        for name, usage in self._term.usage.to_write(
            self._deps.clock.now_ms(), once_settled=once_settled
        ):
            if name in self._deps.cache.queues:
                patch = usage_patch(name, usage)
                self._deps.writes.enqueue(write_key(patch.ref, "usage"), patch)

    def _is_fresh(self, policy: Policy, now_ms: int) -> bool:
        """Return whether the last plan has the current policy and has not expired."""
        last_session = self._term.last_session
        return (
            last_session is not None
            and last_session.policy is policy
            and now_ms < last_session.until_ms
        )

    def _would_repeat(self, snapshot: Snapshot, policy: Policy) -> bool:
        """Return whether a session would repeat the last session, whose plan changed nothing."""
        last_session = self._term.last_session
        return (
            last_session is not None
            and last_session.policy is policy
            and snapshot_equivalence.changes_nothing(last_session.plan)
            and snapshot_equivalence.leads_to_same_plan(last_session.snapshot, snapshot)
        )

    async def _session(self, snapshot: Snapshot, policy: Policy) -> None:
        began_s, term = self._deps.clock.monotonic(), self._term
        if self._term.last_session is None or self._term.last_session.policy is not policy:
            self._logged.faults.clear()
            self._logged.is_advised = False
        self._advise(snapshot, policy)
        last_session, repeats = self._term.last_session, 0
        if last_session is not None and self._would_repeat(snapshot, policy):
            repeats = last_session.repeats + 1
        report = await self._decide(snapshot, policy, repeats)
        if report is None:
            return
        self._last_report = report
        # The next session is warm-started with the planned tasks that are still unbound.
        self._term.warm_start = WarmStart.from_plan(report.plan)
        self._term.may_search_on = True
        self._term.last_session = self._summarize_session(snapshot, policy, report, repeats)
        self._term.reasons = keep_reasons(report.plan.pending, self._term.reasons)
        # If the term has changed, another process may have led, so the plan is not executed.
        if self._leads() and self._term is term:
            for action in report.plan.actions:
                if isinstance(action, Enqueue):
                    self._deps.cache.assume_enqueued(action.gang)
            self._deps.evictor.carry_out(report.plan, snapshot)
            self._deps.binder.carry_out(report.plan, snapshot)
            for stranded in find_stranded_claims(snapshot, self._deps.cache.claim_kind):
                self._deps.writes.enqueue(stranded.ref, stranded)
            # The queues of the gated tasks have enough quota, but the tasks fit no node.
            cache, now_ms = self._deps.cache, self._deps.clock.now_ms()
            for task in report.opened:
                found = cache.task(task)
                if found is not None and found.gate is QueueGate.CLOSED:
                    reason = str(report.plan.pending.get(found.gang, ""))
                    opening = GateOpening(pod_ref(task), found.uid, now_ms, reason)
                    self._deps.writes.enqueue(write_key(opening.ref, "gate"), opening)
        self._session_number += 1
        self._deps.metrics.session(report, policy, self._deps.clock.monotonic() - began_s)
        for fault in report.trace.faults:
            self._deps.metrics.sessions.plugin_failures.labels(fault.plugin).inc()
            if fault not in self._logged.faults and len(self._logged.faults) < MAX_FAULTS:
                self._logged.faults.add(fault)
                log.error("%s", fault)
                self._deps.on_fault(str(fault))
        _log_session(self._session_number, report)

    async def _search_between_sessions(self, policy: Policy, end_s: float) -> None:
        """Let the solver search for a better plan until the next session may begin.

        The plan is not executed. If the plan is still valid, it warm-starts the next session.
        """
        last_session, report = self._term.last_session, self._last_report
        if (
            not self._term.may_search_on
            or last_session is None
            or report is None
            or self._stopping.is_set()
        ):
            return
        self._term.may_search_on = False
        if last_session.policy is not policy or report.trace.answers:
            return
        clock, left_ms = self._deps.clock, int((end_s - self._deps.clock.monotonic()) * 1000)
        seconds = report.trace.seconds
        limits = limits_between_sessions(report.plan, seconds, left_ms, last_session.repeats)
        solver = self._deps.solver.available if policy.solver is SolverKind.CPSAT else None
        if limits is None or solver is None:
            return
        context = SessionContext(
            clock=clock,
            solver=solver,
            limits=limits,
            warm_start=self._term.warm_start,
            period_ms=left_ms,
        )
        snapshot = self._snapshot(policy, clock.now_ms())
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._executor,
                run_session,
                snapshot,
                without_evictions(policy),
                context,
                report.problem,
            )
        except Exception:
            log.exception("the search between sessions failed")
            return
        if found.plan.binds:
            log.info("a search between sessions placed %d tasks", len(found.plan.binds))
            self._term.warm_start = WarmStart.from_plan(found.plan)
            self._term.last_session = replace(last_session, until_ms=snapshot.taken_ms)
            self._changed.set()

    def _advise(self, snapshot: Snapshot, policy: Policy) -> None:
        """Warn once per policy if queues are reclaimable but no action of the policy reclaims."""
        if self._logged.is_advised or _RECLAIMS.intersection(policy.actions):
            return
        names = [q.name for q in snapshot.queues if q.reclaimable and q.name not in _BUILTIN]
        if names:
            self._logged.is_advised = True
            advice = (
                f"queues such as {names[0]} are reclaimable, but the actions of {policy.source} "
                "lack `reclaim`: capacity that the queues lend returns only when borrowing pods end"
            )
            log.warning(advice)
            self._deps.on_advice(advice)

    async def _decide(self, snapshot: Snapshot, policy: Policy, repeats: int) -> Report | None:
        """Run a session, without the solver after a failure; None if no attempt succeeds."""
        has_solver = policy.solver is not SolverKind.NONE
        for chosen in (policy, without_solver(policy)) if has_solver else (policy,):
            try:
                limits = snapshot_equivalence.limits_for(chosen.budgets.solve_ms, repeats)
                period_ms = snapshot_equivalence.period_for(self._deps.policies.period_s, limits)
                optimises = chosen.solver is SolverKind.CPSAT
                context = SessionContext(
                    clock=self._deps.clock,
                    solver=self._deps.solver.available if optimises else None,
                    incidents=self._deps.dumps,
                    limits=limits,
                    warm_start=self._term.warm_start,
                    period_ms=period_ms,
                )
                return await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._run_session, snapshot, chosen, context
                )
            except Exception:
                # An error in a session must not end the scheduler process.
                log.exception("session failed with policy %s", chosen.name)
                self._deps.metrics.sessions.errors.inc()
                self._executor.submit(self._deps.dumps.dump, snapshot, "error")
        return None

    def _run_session(self, snapshot: Snapshot, policy: Policy, context: SessionContext) -> Report:
        """Run a session in the current thread; it may call extenders."""
        outside = self._extenders.open_session(snapshot, policy)
        context = replace(context, outside=outside)
        previous = None if self._last_report is None else self._last_report.problem
        plan: Plan | None = None
        try:
            report = run_session(snapshot, policy, context, previous)
            plan = report.plan
        finally:
            if outside is not None:
                outside.closed(plan)
        return report

    def _summarize_session(
        self, snapshot: Snapshot, policy: Policy, report: Report, repeats: int
    ) -> _LastSession:
        before, times, plan = self._term.last_session, 0, report.plan
        if before is not None and before.policy is policy and before.plan.pending == plan.pending:
            times = before.times + 1
        now_ms = snapshot.taken_ms
        until_ms = now_ms + snapshot_equivalence.ask_again_ms(plan, times)
        if SHUFFLE in policy.actions:
            # Plugins may move pods in time windows, which open and close without a watch event.
            until_ms = min(until_ms, now_ms + snapshot_equivalence.SOON_MS)
        limit_ms = policy.budgets.starvation_after_ms
        turn_ms = snapshot_equivalence.next_turn_ms(
            (snapshot.gang_by_key[key] for key in plan.pending), now_ms, limit_ms
        )
        if turn_ms is not None:
            until_ms = min(until_ms, turn_ms)
        if report.trace.answers and plan.pending:
            until_ms = min(until_ms, now_ms + snapshot_equivalence.OTHERS_MS)
        return _LastSession(snapshot, policy, plan, report.flaws, until_ms, times, repeats)

    def _report_status(self, now_ms: int) -> None:
        """Enqueue writes of the statuses and events that have changed since the last call."""
        deps, last_session = self._deps, self._term.last_session
        if last_session is None:
            return
        plan = last_session.plan
        enqueued = {action.gang for action in plan.actions if isinstance(action, Enqueue)}
        outcome = Outcome(deps.cache.snapshot(now_ms), self._term.reasons, enqueued)
        for patch in self._term.statuses.patches(outcome, deps.cache.group, deps.cache.queues):
            deps.writes.enqueue(patch.ref, patch)
        shard = shard_patch(last_session.snapshot.sharding, deps.cache.shards, now_ms)
        if shard is not None:
            deps.writes.enqueue(shard.ref, shard)
        self._gang_reporter.report_pending(outcome)
        flaws = (*last_session.flaws, *deps.cache.flaws)
        self._gang_reporter.report_flaws(flaws, deps.cache.uid)
        deps.metrics.dropped(deps.events.queue.num_dropped)


def _log_session(number: int, report: Report) -> None:
    for repair in report.trace.repairs:
        log.warning("session %d: %s", number, repair)
    plan, certificate = report.plan, report.plan.certificate
    if log.isEnabledFor(logging.DEBUG):
        seconds = report.trace.seconds.items()
        phases = ", ".join(f"{phase} {spent * 1000:.0f} ms" for phase, spent in seconds)
        log.debug("session %d: %s", number, phases)
        for action in report.plan.actions:
            log.debug("session %d: %s", number, action)
        for gang, reason in report.plan.pending.items():
            log.debug("session %d: %s waits: %s: %s", number, gang, reason.code, reason.message)
    placed = [action.gang for action in plan.actions if isinstance(action, Allocate)]
    if not placed:
        return
    log.info(
        "session %d: %d tasks of %d gangs placed, %d gangs wait; %s, %s, %.0f ms",
        number,
        len(placed),
        len(set(placed)),
        len(plan.pending),
        certificate.engine,
        "proved" if certificate.is_proved else certificate.stopped,
        certificate.seconds * 1000,
    )
