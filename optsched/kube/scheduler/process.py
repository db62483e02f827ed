"""Build, start and stop the components of the live scheduler process."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.follower import Follower, GeometryReader
from optsched.kube.client.client import connect
from optsched.kube.client.errors import Conflict
from optsched.kube.runtime.events import EventRecorder
from optsched.kube.runtime.leader_election import ProcessElection
from optsched.kube.runtime.lifecycle import (
    Outage,
    freeze_startup_objects,
    handle_signals,
    wait_at_most,
)
from optsched.kube.runtime.timing import SystemClock, Timing
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.kube.scheduler.evictor import Evictor, EvictorContext
from optsched.kube.scheduler.loop import Scheduler, SchedulerDependencies
from optsched.kube.scheduler.metrics import Metrics
from optsched.kube.scheduler.outcomes import TOGETHER_MS, OutcomeReporter, SelfReporter
from optsched.kube.scheduler.session_services import PolicyFile, SnapshotDumps, SolverSupervisor
from optsched.kube.scheduler.status_writer import RefusedWrites, make_writer
from optsched.kube.serving.metrics_server import serve_process
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.storage.volumes import Volumes
from optsched.policy.policy import SolverKind
from optsched.solver.cpsat.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from optsched.kube.client.client import Client
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.serving.metrics_server import SecureMetrics
    from optsched.kube.serving.tls_listener import Address
    from optsched.policy.load import PolicyWatch

DRAIN_S: Final = 20.0
"""Timeout in seconds to finish the remaining binds at shutdown."""

SHUTDOWN_S: Final = 2.0
"""Timeout in seconds of each shutdown step, such as writing statuses and events."""

WRITES: Final = 8
"""Maximum number of concurrent status patches; a slow webhook delays only some patches."""

log = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a live scheduler.

    `policy` provides the policy and reloads the policy file after a change. `solver` and `period_s`
    override the policy unless they are None. `election` is None if this process is the only
    replica. `listen` lists the addresses that serve health checks. The addresses in `listen` also
    serve metrics if `metrics` is None; otherwise, `metrics` holds the settings of metrics over TLS.
    The scheduler uses only nodes that have at least one of the (label, value) pairs in
    `node_labels`, or all nodes if there are none. `reports_gangs` is true if a gang's binds share
    one event on its PodGroup, instead of one event per pod. `max_grace_s` is the longest grace
    period of a victim in seconds, or None for no limit.
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
    max_grace_s: int | None = None


async def run(settings: Settings) -> None:
    """Schedule until SIGTERM or SIGINT.

    Raises ConfigError if no cluster is configured, and OSError if an address is in use.
    """
    async with connect(settings.kubeconfig) as client:
        process = SchedulerProcess(settings, client)
        async with serve_process(
            settings.listen, settings.metrics, process.scheduler, process.metrics.exposition, client
        ) as places:
            log.info("cluster %s; %s", client.server, places)
            freeze_startup_objects()
            await process.run()


class SchedulerProcess:
    """The components of a scheduler process; `run` starts and stops them."""

    def __init__(self, settings: Settings, client: Client) -> None:
        clock, timing, outage = SystemClock(), Timing(), Outage()
        self.metrics = Metrics()
        labels = settings.node_labels
        cache = ClusterCache(
            settings.pods,
            lambda found: not labels or any(found.get(key) == value for key, value in labels),
        )
        self._election = ProcessElection(client, settings.election, clock, timing, outage)
        leadership = self._election.leadership

        def is_leading() -> bool:
            return leadership.is_leading

        # Only a leader writes events about the cluster, but every process writes events about
        # itself.
        self._events = EventRecorder(
            client,
            clock,
            timing,
            may_write=lambda note: (
                note.about in own.subjects
                or (is_leading() and (note.is_last or cache.exists(note.about, note.uid)))
            ),
            exists=cache.exists,
        )
        own = SelfReporter(settings.election, self.metrics, self._events)
        self._outcomes = OutcomeReporter(
            cache, self.metrics, self._events, clock, reports_gangs=settings.reports_gangs
        )
        policies = PolicyFile(
            settings.policy,
            clock,
            own.report_policy,
            solver=settings.solver,
            period_s=settings.period_s,
        )

        def rules_of(kind: type[R]) -> Iterator[R]:
            rules = (active.rule for active in policies.current().rules.active)
            return (rule for rule in rules if isinstance(rule, kind))

        self._binder = LiveBinder(
            client,
            cache,
            BinderContext(
                clock=clock,
                listener=self._outcomes,
                may_bind=is_leading,
                timing=timing,
                locks_nodes=lambda: any(rule.locks_nodes for rule in rules_of(DeviceShare)),
                patience_s=lambda: next((float(r.patience_s) for r in rules_of(Volumes)), None),
            ),
        )

        refused = RefusedWrites(
            cache,
            self._binder.gang_backoff,
            self.metrics.refused_writes,
            lambda ref, error: self.scheduler.retry_status(
                ref, is_conflict=isinstance(error, Conflict)
            ),
        )

        write = make_writer(client, is_leading, cache, refused.record_success)
        # Evictions wait for nominations, so other writes must not delay nominations.
        self._writes, self._nominations = (
            WriteQueue(
                write,
                timing,
                max_concurrent=WRITES,
                lane_of=lambda ref: (ref.kind, ref.namespace),
                on_failure=refused.record_refusal,
            )
            for _ in range(2)
        )
        self._evictor = Evictor(
            client,
            cache,
            self._nominations,
            EvictorContext(
                listener=self._outcomes,
                timing=timing,
                gang_backoff=self._binder.gang_backoff,
                may_evict=is_leading,
                max_grace_s=settings.max_grace_s,
                overrides_budgets=settings.pods.guarantees_override_budgets,
            ),
        )
        self.metrics.pods.count_waiting = self._evictor.count_waiting
        solver = SolverSupervisor(WorkerProcess(), timing)
        if policies.current().solver is SolverKind.CPSAT:
            solver.request_start()
        follower = Follower(
            client,
            cache,
            timing,
            on_change=lambda: self.scheduler.wake(),
            on_failure=lambda kind: self.metrics.watch_failures.labels(kind.plural).inc(),
            outage=outage,
        )
        self.scheduler = Scheduler(
            SchedulerDependencies(
                cache=cache,
                binder=self._binder,
                evictor=self._evictor,
                writes=self._writes,
                events=self._events,
                metrics=self.metrics,
                policies=policies,
                leadership=leadership,
                dumps=SnapshotDumps(settings.dump_dir),
                clock=clock,
                solver=solver,
                follower=follower if self._election.is_contested else None,
                on_fault=lambda fault: own.report("PluginFailed", fault),
                on_advice=own.report_advice,
                outage=outage,
            )
        )
        self._outcomes.on_change = self.scheduler.wake
        geometries = GeometryReader(
            client,
            cache,
            timing,
            lambda: next(
                (r.geometries_in for r in rules_of(DeviceShare) if r.by_vgpu or r.by_npu), None
            ),
            self.scheduler.wake,
        )

        async def report_gang_binds() -> None:
            while True:
                await timing.sleep(TOGETHER_MS / 2000)
                self._outcomes.report_gang_binds(TOGETHER_MS)

        self._services: tuple[Callable[[], Coroutine[None, None, None]], ...] = (
            follower.run,
            geometries.run,
            self._binder.run,
            self._evictor.run,
            self._writes.run,
            self._nominations.run,
            self._events.queue.run,
            *([report_gang_binds] if settings.reports_gangs else []),
            lambda: self._election.run(self.scheduler.wake),
            solver.run,
        )

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop services in order; SIGUSR2 dumps a snapshot."""
        stop, dump = self.scheduler.stop, self.scheduler.dump
        signals = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGUSR2: dump}
        async with asyncio.TaskGroup() as group:
            with handle_signals(signals):
                tasks = [group.create_task(service()) for service in self._services]
                await self.scheduler.run()
                log.info("stopping: %d binds remain", self._binder.num_waiting)
                await wait_at_most(DRAIN_S, self._binder.until_idle())
                self._binder.withdraw()
                self._evictor.withdraw()
                await wait_at_most(SHUTDOWN_S, self._nominations.until_idle())
                await wait_at_most(SHUTDOWN_S, self._writes.until_idle())
                self._outcomes.report_gang_binds()
                await wait_at_most(SHUTDOWN_S, self._events.queue.until_idle())
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._election.resign(SHUTDOWN_S)
