"""Puts the parts of a live scheduler together, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from optsched.api.events import EventType
from optsched.api.kinds import CONFIG_MAP, LEASE, POD
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.follower import Follower
from optsched.kube.cache.geometry_reader import GeometryReader
from optsched.kube.cache.node_store import take_every_node
from optsched.kube.client.client import connect
from optsched.kube.client.errors import KubeError
from optsched.kube.client.interfaces import Ref
from optsched.kube.runtime.clock import SystemClock
from optsched.kube.runtime.events import COMPONENT, EventRecorder, Note
from optsched.kube.runtime.leader_election import AlwaysLeading, Elector, Leadership
from optsched.kube.runtime.lifecycle import (
    freeze_startup_objects,
    handle_signals,
    identity,
    wait_at_most,
)
from optsched.kube.runtime.outage import Outage
from optsched.kube.runtime.timing import Timing
from optsched.kube.runtime.write_queue import WriteQueue
from optsched.kube.scheduler import gang_events as notices
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.kube.scheduler.evictor import Evictor, EvictorContext
from optsched.kube.scheduler.loop import Scheduler, SchedulerDependencies
from optsched.kube.scheduler.metrics import Metrics
from optsched.kube.scheduler.policy_file import PolicyFile
from optsched.kube.scheduler.snapshot_dumps import SnapshotDumps
from optsched.kube.scheduler.solver_process import SolverSupervisor
from optsched.kube.scheduler.status_writer import Write, make_writer
from optsched.kube.serving.metrics_server import ServingAddresses, serve_process
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.storage.volumes import Volumes
from optsched.policy.policy import SolverKind
from optsched.solver.cpsat.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from optsched.kube.client.client import Client
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.scheduler.binder import Bind, Failure
    from optsched.kube.scheduler.evictor import Victim
    from optsched.kube.serving.http import Address
    from optsched.kube.serving.metrics_server import SecureMetrics
    from optsched.policy.reload import PolicyWatch

DRAIN_S: Final = 20.0
"""How long binds may take that are left when the process is told to stop."""

LAST_WORDS_S: Final = 2.0
"""The same for status and events."""

WRITES: Final = 8
"""Status patches under way; some may meet a webhook that takes its time."""

POLICY_CONFIG_MAP: Final = "POLICY_CONFIG_MAP"
"""Names the ConfigMap that is mounted as the policy: NAMESPACE/NAME."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a live scheduler is told.

    Attributes
    ----------
    policy
        The policy and the file that it comes from.
    solver, period_s
        Instead of what the policy says; None for that.
    election
        None where this process schedules without asking.
    listen
        Where health is served, and metrics unless `metrics` names another address.
    metrics
        Where metrics are served over TLS; None where they are served without.
    node_labels
        (label, value): only nodes with one of them are used; all nodes where there are none.
    reports_gangs
        Whether binds of one gang are one event on its PodGroup, and not one on each pod.

    """

    policy: PolicyWatch
    kubeconfig: str = ""
    pods: DecodeOptions = field(default_factory=DecodeOptions)
    solver: SolverKind | None = None
    period_s: float | None = None
    election: Election | None = None
    listen: tuple[Address, ...] = ()
    metrics: SecureMetrics | None = None
    dump_dir: Path = Path("dumps")
    node_labels: tuple[tuple[str, str], ...] = ()
    reports_gangs: bool = False


async def run(settings: Settings) -> None:
    """Schedule until SIGTERM or SIGINT.

    Raises ConfigError where no cluster is configured, and OSError for an address that is taken.
    """
    async with connect(settings.kubeconfig) as client:
        live = SchedulerProcess(settings, client)
        listening = ServingAddresses(settings.listen, settings.metrics)
        exposition = live.metrics.exposition
        async with serve_process(listening, live.scheduler, exposition, client) as places:
            log.info("cluster %s; %s", client.server, places)
            freeze_startup_objects()
            await live.run()


class SchedulerProcess:
    """All parts of one process."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._clock = SystemClock()
        self._timing = Timing()
        self._outage = Outage()
        self.metrics = Metrics()
        self._cache = ClusterCache(settings.pods, _node_filter(settings.node_labels))
        self._elector = self._make_elector()
        self._leadership: Leadership = self._elector or AlwaysLeading()
        self._binder = self._make_binder()
        self._events = EventRecorder(
            client, self._clock, self._timing, self._is_due, self._cache.exists
        )
        self._gang_binds = notices.GangBindEvents(self._cache.group)
        self._writes = self._make_outbox()
        # Evictions wait for nominations, which must not wait for anything else.
        self._nominations = self._make_outbox()
        self._evictor = self._make_evictor()
        self.metrics.watch_evictions(self._evictor.count_waiting)
        self._policies = self._make_policies()
        self._solver = SolverSupervisor(WorkerProcess(), self._timing)
        if self._policies.current().solver is SolverKind.CPSAT:
            self._solver.request_start()
        self._follower = self._make_follower()
        self.scheduler = Scheduler(self._parts())

    # --- making ----------------------------------------------------------------------------------

    def _make_elector(self) -> Elector | None:
        election = self._settings.election
        if election is None:
            return None
        lock = (election.namespace, election.name)
        return Elector(self._client, lock, identity(), election.times, (self._clock, self._timing))

    def _make_binder(self) -> LiveBinder:
        leadership = self._leadership
        context = BinderContext(
            clock=self._clock,
            listener=self,
            may_bind=lambda: leadership.is_leading,
            timing=self._timing,
            locks_nodes=lambda: any(rule.locks_nodes for rule in self._shares()),
            patience_s=self._patience_s,
        )
        return LiveBinder(self._client, self._cache, context)

    def _make_follower(self) -> Follower:
        return Follower(
            self._client,
            self._cache,
            self._timing,
            on_change=lambda: self.scheduler.wake(),
            on_failure=lambda kind: self.metrics.watch_failed(kind.plural),
            outage=self._outage,
        )

    def _make_outbox(self) -> WriteQueue[Ref, Write]:
        leadership = self._leadership
        write = make_writer(self._client, lambda: leadership.is_leading, self._cache)
        return WriteQueue(write, self._timing, at_once=WRITES, on_failure=self._not_written)

    def _make_evictor(self) -> Evictor:
        leadership = self._leadership
        return Evictor(
            self._client,
            self._cache,
            self._nominations,
            EvictorContext(
                listener=self,
                timing=self._timing,
                holds=self._binder.holds,
                may_evict=lambda: leadership.is_leading,
            ),
        )

    def _make_policies(self) -> PolicyFile:
        return PolicyFile(
            self._settings.policy,
            self._clock,
            self._on_verdict,
            solver=self._settings.solver,
            period_s=self._settings.period_s,
        )

    def _parts(self) -> SchedulerDependencies:
        return SchedulerDependencies(
            cache=self._cache,
            binder=self._binder,
            evictor=self._evictor,
            writes=self._writes,
            events=self._events,
            metrics=self.metrics,
            policies=self._policies,
            leadership=self._leadership,
            dumps=SnapshotDumps(self._settings.dump_dir),
            clock=self._clock,
            solver=self._solver,
            follower=None if self._elector is None else self._follower,
            on_fault=self._on_fault,
            on_advice=self._on_advice,
            outage=self._outage,
        )

    # --- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until told to stop, then take everything down in order."""
        async with asyncio.TaskGroup() as group:
            with handle_signals(self._signals()):
                tasks = [group.create_task(each) for each in self._services()]
                await self.scheduler.run()
                await self._drain()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._resign()

    def _signals(self) -> Mapping[signal.Signals, Callable[[], None]]:
        """SIGTERM and SIGINT stop, SIGUSR2 writes a snapshot."""
        return {
            signal.SIGTERM: self.scheduler.stop,
            signal.SIGINT: self.scheduler.stop,
            signal.SIGUSR2: self.scheduler.dump,
        }

    def _services(self) -> Iterator[Coroutine[None, None, None]]:
        yield self._follower.run()
        yield GeometryReader(
            self._client, self._cache, self._timing, self._geometries_in, self.scheduler.wake
        ).run()
        yield self._binder.run()
        yield self._evictor.run()
        yield self._writes.run()
        yield self._nominations.run()
        yield self._events.run()
        if self._settings.reports_gangs:
            yield self._report_gang_binds()
        if self._elector is not None:
            yield self._elector.run(
                self._report_election,
                lambda: self._outage.record_success(LEASE),
                self.scheduler.wake,
            )
        yield self._solver.run()

    async def _report_gang_binds(self) -> None:
        """Have events of binds written that were kept for a moment."""
        while True:
            await self._timing.sleep(notices.TOGETHER_MS / 2000)
            self._note_gang_binds(self._clock.now_ms() - notices.TOGETHER_MS)

    def _note_gang_binds(self, before_ms: int) -> None:
        for note in self._gang_binds.collect_due(before_ms):
            self._events.note(note)

    def _geometries_in(self) -> tuple[str, str] | None:
        """The ConfigMap that says how devices may be cut, where the policy shares any of them."""
        return next((rule.geometries_in for rule in self._shares() if rule.cuts), None)

    def _patience_s(self) -> float | None:
        """How long pods wait for volumes; None where the policy does not look after volumes."""
        rules = (active.rule for active in self._policies.current().rules.active)
        return next((float(r.patience_s) for r in rules if isinstance(r, Volumes)), None)

    def _shares(self) -> Iterator[DeviceShare]:
        """The rules of the policy that share devices."""
        rules = (active.rule for active in self._policies.current().rules.active)
        return (rule for rule in rules if isinstance(rule, DeviceShare))

    async def _drain(self) -> None:
        log.info("stopping: %d binds are left", self._binder.num_waiting)
        await wait_at_most(DRAIN_S, self._binder.until_idle())
        self._binder.withdraw()
        self._evictor.withdraw()
        await wait_at_most(LAST_WORDS_S, self._nominations.until_idle())
        await wait_at_most(LAST_WORDS_S, self._writes.until_idle())
        self._note_gang_binds(self._clock.now_ms())
        await wait_at_most(LAST_WORDS_S, self._events.until_idle())

    async def _resign(self) -> None:
        if self._elector is None:
            return
        try:
            await wait_at_most(LAST_WORDS_S, self._elector.release())
        except KubeError as e:
            log.warning("lease not released: %s", e)

    def _report_election(self, error: KubeError) -> None:
        level = logging.WARNING if self._outage.record_failure(LEASE, error) else logging.INFO
        log.log(level, "lease neither taken nor renewed: %s", error)

    def _is_due(self, note: Note) -> bool:
        """Whether the event of a note is to be written: only a leader tells, and only objects.

        What is about this process itself it tells in any case.
        """
        if note.about in (
            _own_object(self._settings.election, os.environ),
            policy_object(os.environ),
        ):
            return True
        is_there = note.is_last or self._cache.exists(note.about, note.uid)
        return self._leadership.is_leading and is_there

    # --- what parts tell one another -------------------------------------------------------------

    def bound(self, bind: Bind, seconds: float) -> None:
        """See `BindListener`."""
        self.metrics.bound(seconds)
        if self._settings.reports_gangs:
            self._gang_binds.add(bind, self._clock.now_ms())
        else:
            self._events.note(notices.scheduled(bind))

    def failed(self, bind: Bind, failure: Failure) -> None:
        """See `BindListener`."""
        log.warning("%s not bound to %s: %s", bind.task, bind.node, failure.message)
        self.metrics.not_bound(failure.word)
        self._events.note(notices.not_bound(bind, failure))
        self.scheduler.wake()

    def evicted(self, victim: Victim) -> None:
        """See `EvictionListener`."""
        self.metrics.evicted(victim.eviction.action, victim.eviction.plugin)
        self._events.note(notices.evicted(victim))
        note = notices.overuse_reclaimed(victim, self._cache)
        if note is not None:
            self._events.note(note)

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """See `EvictionListener`."""
        log.warning("%s not evicted: %s", victim.eviction.task, error)
        self._events.note(notices.not_evicted(victim, error))
        self.scheduler.wake()

    def spared(self, victim: Victim, why: str) -> None:
        """See `EvictionListener`."""
        log.info("%s not evicted: why=%s", victim.eviction.task, why)
        self.metrics.spared(why)
        self.scheduler.wake()

    def _not_written(self, ref: Ref, error: KubeError) -> None:
        log.warning("%s not written: %s", ref, error)
        self.scheduler.retry_status(ref)

    def _on_verdict(self, problems: str) -> None:
        self.metrics.policy_rejected.set(bool(problems))
        if problems:
            self._note_own("PolicyRejected", problems)

    def _on_fault(self, fault: str) -> None:
        self._note_own("PluginFailed", fault)

    def _on_advice(self, advice: str) -> None:
        about = policy_object(os.environ)
        if about is not None:
            self._events.note(Note(about, "", EventType.WARNING, "ReclaimMissing", advice, advice))

    def _note_own(self, reason: str, message: str) -> None:
        """An event about the scheduler itself."""
        about = _own_object(self._settings.election, os.environ)
        uid = os.environ.get("POD_UID", "") if about.kind is POD else ""
        self._events.note(Note(about, uid, EventType.WARNING, reason, message, message))


def _own_object(election: Election | None, environment: Mapping[str, str]) -> Ref:
    """What events about the scheduler itself are about: its pod if it knows it, else its lease."""
    if "POD_NAME" in environment and "POD_NAMESPACE" in environment:
        return Ref(POD, environment["POD_NAMESPACE"], environment["POD_NAME"])
    if election is not None:
        return Ref(LEASE, election.namespace, election.name)
    return Ref(LEASE, "default", COMPONENT)


def policy_object(environment: Mapping[str, str]) -> Ref | None:
    """The ConfigMap that the policy comes from, where the environment says so."""
    namespace, slash, name = environment.get(POLICY_CONFIG_MAP, "").partition("/")
    return Ref(CONFIG_MAP, namespace, name) if slash and namespace and name else None


def _node_filter(labels: tuple[tuple[str, str], ...]) -> Callable[[Mapping[str, str]], bool]:
    if not labels:
        return take_every_node
    return lambda found: any(found.get(label) == value for label, value in labels)
