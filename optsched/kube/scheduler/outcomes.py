"""The results of binds, evictions and writes: metrics, events and log lines."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import CONFIG_MAP, LEASE, POD
from optsched.api.meta import EventType
from optsched.kube.client.interfaces import Ref
from optsched.kube.runtime.events import COMPONENT, Note
from optsched.kube.scheduler import gang_events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.errors import KubeError
    from optsched.kube.runtime.events import EventRecorder
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.scheduler.binder import Bind, Failure
    from optsched.kube.scheduler.evictor import Victim
    from optsched.kube.scheduler.metrics import Metrics
    from optsched.session.ports import Clock

POLICY_CONFIG_MAP: Final = "POLICY_CONFIG_MAP"
"""Names the ConfigMap that is mounted as the policy: NAMESPACE/NAME."""

log = logging.getLogger(__name__)


class OutcomeReporter:
    """A `BindListener` and `EvictionListener` that reports to metrics, events and the log.

    Attributes
    ----------
    on_change
        Called where a failure makes another session worthwhile.

    """

    def __init__(
        self,
        cache: ClusterCache,
        metrics: Metrics,
        events: EventRecorder,
        clock: Clock,
        *,
        reports_gangs: bool,
    ) -> None:
        """reports_gangs: whether binds of one gang are one event on its PodGroup."""
        self.on_change: Callable[[], None] = lambda: None
        self._cache = cache
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._gang_binds = gang_events.GangBindEvents(cache.group) if reports_gangs else None

    def bound(self, bind: Bind, seconds: float) -> None:
        """See `BindListener`."""
        self._metrics.pods.bound(seconds)
        if self._gang_binds is None:
            self._events.note(gang_events.scheduled(bind))
        else:
            self._gang_binds.add(bind, self._clock.now_ms())

    def failed(self, bind: Bind, failure: Failure) -> None:
        """See `BindListener`."""
        log.warning("%s not bound to %s: %s", bind.task, bind.node, failure.message)
        self._metrics.pods.not_bound(failure.word)
        self._events.note(gang_events.not_bound(bind, failure))
        self.on_change()

    def evicted(self, victim: Victim) -> None:
        """See `EvictionListener`."""
        self._metrics.pods.evicted(victim.eviction.action, victim.eviction.plugin)
        self._events.note(gang_events.evicted(victim))
        note = gang_events.overuse_reclaimed(victim, self._cache)
        if note is not None:
            self._events.note(note)

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """See `EvictionListener`."""
        log.warning("%s not evicted: %s", victim.eviction.task, error)
        self._events.note(gang_events.not_evicted(victim, error))
        self.on_change()

    def spared(self, victim: Victim, why: str) -> None:
        """See `EvictionListener`."""
        log.info("%s not evicted: why=%s", victim.eviction.task, why)
        self._metrics.pods.spared(why)
        self.on_change()

    def report_gang_binds(self, age_ms: int = 0) -> None:
        """Write the events of binds that are so old."""
        if self._gang_binds is not None:
            for note in self._gang_binds.collect_due(self._clock.now_ms() - age_ms):
                self._events.note(note)


class SelfReporter:
    """Reports on the scheduler itself: on its pod if it knows it, else on its lease."""

    def __init__(
        self,
        election: Election | None,
        metrics: Metrics,
        events: EventRecorder,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._metrics = metrics
        self._events = events
        self._uid = ""
        self._policy = policy_object(environment)
        if "POD_NAME" in environment and "POD_NAMESPACE" in environment:
            self._about = Ref(POD, environment["POD_NAMESPACE"], environment["POD_NAME"])
            self._uid = environment.get("POD_UID", "")
        elif election is not None:
            self._about = Ref(LEASE, election.namespace, election.name)
        else:
            self._about = Ref(LEASE, "default", COMPONENT)

    def is_own(self, about: Ref) -> bool:
        """Whether an event about this object is about this process itself."""
        return about in (self._about, self._policy)

    def report_policy(self, problems: str) -> None:
        """Report the problems of a new policy; empty for a good one."""
        self._metrics.policy_rejected.set(bool(problems))
        if problems:
            self._report("PolicyRejected", problems)

    def report_fault(self, fault: str) -> None:
        """Report that a plugin raised an error."""
        self._report("PluginFailed", fault)

    def report_advice(self, advice: str) -> None:
        """Report on the ConfigMap of the policy that its actions lack `reclaim`."""
        if self._policy is not None:
            warning = EventType.WARNING
            self._events.note(Note(self._policy, "", warning, "ReclaimMissing", advice, advice))

    def _report(self, reason: str, message: str) -> None:
        warning = EventType.WARNING
        self._events.note(Note(self._about, self._uid, warning, reason, message, message))


def policy_object(environment: Mapping[str, str]) -> Ref | None:
    """Return the ConfigMap that holds the policy, if the environment names one."""
    namespace, slash, name = environment.get(POLICY_CONFIG_MAP, "").partition("/")
    return Ref(CONFIG_MAP, namespace, name) if slash and namespace and name else None
