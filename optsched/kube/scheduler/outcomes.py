"""Report binds, evictions, pending gangs and the scheduler itself in metrics, events and logs."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import CONFIG_MAP, LEASE, POD, POD_GROUP, QUEUE, SCHEDULING_POD_GROUPS, Ref
from optsched.api.meta import EventType
from optsched.api.wellknown import MADE_GROUP_PREFIX, OVERUSE_TOLERANCE
from optsched.cluster.reasons import LACK_OF_ROOM, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.reader import group_name, is_upstream
from optsched.kube.client.listing import pod_ref, ref_by_key
from optsched.kube.runtime.events import COMPONENT, REPEATS_S, Note
from optsched.plugins.eviction.entitled import GANG_RECLAIM, RECLAIM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from optsched.api.kinds import Kind
    from optsched.api.podgroup import PodGroup
    from optsched.cluster.decisions import Evict
    from optsched.cluster.dra_devices import DeviceGrant
    from optsched.cluster.reasons import Flaw, Reason
    from optsched.cluster.snapshot import Gang
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.errors import KubeError
    from optsched.kube.runtime.events import EventRecorder
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.scheduler.metrics import Metrics
    from optsched.kube.scheduler.status import Outcome
    from optsched.session.ports import Clock

log = logging.getLogger(__name__)

_WAITS: Final = frozenset({TaskStatus.PENDING, TaskStatus.GATED})
_AGAIN_MS: Final = round(REPEATS_S[0] * 1000)

YOUNG_MS: Final = 2_000
"""Age in milliseconds below which a pending pod gets no event; most pods are bound sooner."""

MADE_WITHIN_MS: Final = 5_000
"""Milliseconds that a controller may take to create a PodGroup or a gang's next pod."""

TOGETHER_MS: Final = 1_000
"""Time in milliseconds during which the binds of a gang are combined into one event."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A task to bind, with its pod's new annotations and the devices for its ResourceClaims."""

    task: str
    uid: str
    node: str
    gang: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceGrant, ...] = ()
    locks: bool = False
    """True if the node is locked during the bind, so that no other pod gets the same vGPUs."""
    is_gated: bool = False
    """True if the pod has a queue gate that must be removed before the bind."""
    closures: frozenset[str] = frozenset()
    """Reasons why the node accepted no pods at planning time; the pod tolerates these reasons."""
    record: str = ""
    """Message of the pod condition about the pod's node and devices; empty if it has no devices."""

    @property
    def ref(self) -> Ref:
        """Reference to the pod to bind."""
        return pod_ref(self.task)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task was not bound: one word for metrics, and a message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod to evict; its UID and gang are kept for use after its deletion.

    `overridden` names the disruption budgets that were violated and the guarantee that overrides
    them; it is empty if the eviction respects all budgets.
    """

    eviction: Evict
    uid: str
    gang: str = ""
    overridden: str = ""

    @property
    def ref(self) -> Ref:
        """Reference to the pod to evict."""
        return pod_ref(self.eviction.task)


def scheduled(bind: Bind) -> Note:
    """Return the event about a bound pod."""
    message = f"Successfully assigned {bind.task} to {bind.node}"
    return Note(bind.ref, bind.uid, EventType.NORMAL, "Scheduled", message)


class GangBindEvents:
    """Collects the binds of each gang, so that pods that are bound together share one event."""

    def __init__(self, group_of: Callable[[str], PodGroup | None]) -> None:
        """`group_of` returns a gang's PodGroup, or None if the gang has no PodGroup."""
        self._group_of = group_of
        self._binds: dict[str, list[Bind]] = {}
        self._since_ms: dict[str, int] = {}
        self._at_ms: dict[str, int] = {}

    def add(self, bind: Bind, now_ms: int) -> None:
        """Add a bind to its gang's collected binds."""
        self._binds.setdefault(bind.gang, []).append(bind)
        self._since_ms.setdefault(bind.gang, now_ms)
        self._at_ms[bind.gang] = now_ms

    def collect_due(self, before_ms: int) -> list[Note]:
        """Return the events of gangs whose first collected bind is at `before_ms` or earlier.

        Several pods share one event on their PodGroup; a single pod gets an event on the pod.
        """
        found: list[Note] = []
        for gang in [gang for gang, at_ms in self._since_ms.items() if at_ms <= before_ms]:
            del self._since_ms[gang]
            binds, at_ms = self._binds.pop(gang), self._at_ms.pop(gang)
            group = self._group_of(gang) if len(binds) > 1 else None
            if group is None:
                found += (replace(scheduled(bind), at_ms=at_ms) for bind in binds)
            else:
                about = Ref(POD_GROUP, group.meta.namespace, group.meta.name)
                pods = sorted(f"{bind.ref.name} to {bind.node}" for bind in binds)
                message = f"Successfully assigned {len(binds)} pods: {', '.join(pods)}"
                uid, code = group.meta.uid, min(bind.uid for bind in binds)
                found.append(
                    Note(about, uid, EventType.NORMAL, "Scheduled", message, code, at_ms=at_ms)
                )
        return found


def not_bound(bind: Bind, failure: Failure) -> Note:
    """Return the event about a failed bind."""
    message = f"binding to {bind.node} failed: {failure.message}"
    return Note(bind.ref, bind.uid, EventType.WARNING, "FailedScheduling", message, failure.reason)


def evicted(victim: Victim) -> Note:
    """Return the event about an evicted pod."""
    eviction, reason = victim.eviction, "Evict"
    message = f"evicted by {eviction.action}: its resources are for {eviction.preemptor}"
    if eviction.plugin:
        message = f"evicted by {eviction.action} for plugin {eviction.plugin}: {eviction.reason}"
    if eviction.to:
        reason = "Consolidation"
        message = f"{message}; capacity on {eviction.to} is reserved for the pod"
    if victim.overridden:
        message = f"{message}; {victim.overridden}"
    beneficiary = eviction.plugin or eviction.preemptor
    about, uid, kind = victim.ref, victim.uid, EventType.NORMAL
    return Note(about, uid, kind, reason, message, code=beneficiary, is_last=True)


def not_evicted(victim: Victim, error: KubeError) -> Note:
    """Return the event about a failed eviction."""
    eviction = victim.eviction
    beneficiary = eviction.preemptor or f"plugin {eviction.plugin}"
    message = f"{eviction.action} for {beneficiary} failed: {error}"
    return Note(victim.ref, victim.uid, EventType.WARNING, "FailedEvict", message)


def overuse_reclaimed(victim: Victim, cache: ClusterCache) -> Note | None:
    """Return the event about a reclaim from a queue with an overuse tolerance, else None."""
    eviction = victim.eviction
    group = cache.group(victim.gang)
    queue = None if group is None else cache.queues.get(group.queue)
    reclaims = eviction.action in (RECLAIM, GANG_RECLAIM)
    if queue is None or not reclaims or not queue.overuse_tolerance:
        return None
    message = (
        f"usage is above deserved and {OVERUSE_TOLERANCE}={queue.overuse_tolerance}: "
        f"pods are evicted for {eviction.preemptor}"
    )
    about, code = Ref(QUEUE, "", queue.name), eviction.preemptor
    return Note(about, queue.meta.uid, EventType.NORMAL, "OveruseReclaimed", message, code)


def unschedulable(gang: Gang, reason: Reason, born_ms: int) -> Iterator[Note]:
    """Yield one event on the PodGroup of a pending gang, and one event on each pending pod.

    Objects that were created after `born_ms` get no event yet.
    """
    pending = [
        (pod_ref(task.key), task.uid, task.problem or reason)
        for task in gang.tasks
        if task.status in _WAITS and task.created_ms <= born_ms
    ]
    if not gang.is_implicit and gang.uid and gang.created_ms <= born_ms:
        kind = SCHEDULING_POD_GROUPS[0] if is_upstream(gang) else POD_GROUP
        pending.insert(0, (Ref(kind, gang.namespace, group_name(gang)), gang.uid, reason))
    for about, uid, why in pending:
        code = why.code.value
        message = f"{code}: {why.message}"
        yield Note(about, uid, EventType.WARNING, "Unschedulable", message, code)


def _soonest_ms(gang: Gang, reason: Reason) -> int:
    """Return the time by which a missing PodGroup or pod should exist; 0 if none is missing."""
    if reason.code is ReasonCode.POD_GROUP_NOT_FOUND:
        is_made = gang.name.startswith(MADE_GROUP_PREFIX)
        return gang.created_ms + MADE_WITHIN_MS if is_made else 0
    if reason.code is ReasonCode.NOT_ENOUGH_TASKS:
        newest_ms = max((task.created_ms for task in gang.tasks), default=gang.created_ms)
        return max(newest_ms, gang.created_ms) + MADE_WITHIN_MS
    return 0


@dataclass(frozen=True, slots=True)
class _Reported:
    """The last report about a gang; until `young_ms`, its pods are too new to get events."""

    gang: Gang
    reason: Reason
    at_ms: int
    young_ms: int


class GangReporter:
    """Reports why gangs are pending: after each change of the reason, and periodically.

    `due_ms` is the time at which a report is due even without a change, or None.
    """

    def __init__(self, note: Callable[[Note], None]) -> None:
        self.due_ms: int | None = None
        self._note = note
        self._reported: dict[str, _Reported] = {}
        self._flaws: frozenset[Flaw] = frozenset()

    def report_pending(self, outcome: Outcome) -> None:
        """Report why gangs are pending, if the reason has changed or the last report is old."""
        now_ms, gangs = outcome.snapshot.taken_ms, outcome.snapshot.gang_by_key
        self.due_ms = None
        for key, reason in outcome.reasons.items():
            gang = gangs.get(key)
            if gang is None or self._defer(_soonest_ms(gang, reason), now_ms):
                continue
            created = (task.created_ms for task in gang.tasks if task.status in _WAITS)
            grown_ms = max(created, default=gang.created_ms) + YOUNG_MS
            last = self._reported.get(key)
            is_young = self._defer(grown_ms, now_ms)
            alternates = last is not None and {last.reason.code, reason.code} <= LACK_OF_ROOM
            if last is None or not (last.reason.code is reason.code or alternates):
                log.info("%s waits: %s", key, reason)
            elif last.gang is gang and now_ms < min(last.at_ms + _AGAIN_MS, last.young_ms):
                continue
            again_ms = grown_ms if is_young else now_ms + _AGAIN_MS
            self._reported[key] = _Reported(gang, reason, now_ms, again_ms)
            for note in unschedulable(gang, reason, now_ms - YOUNG_MS):
                self._note(note)
        for key in self._reported.keys() - outcome.reasons.keys():
            del self._reported[key]

    def _defer(self, due_ms: int, now_ms: int) -> bool:
        """Return whether a report must wait until `due_ms`; if so, record that time."""
        if due_ms <= now_ms:
            return False
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)
        return True

    def report_flaws(self, flaws: Iterable[Flaw], uid_of: Callable[[Kind, str], str]) -> None:
        """Report validation errors; the event recorder limits the rate of repeated events."""
        now = frozenset(flaws)
        for flaw in sorted(now - self._flaws, key=str):
            log.warning("%s", flaw)
        for flaw in sorted(self._flaws - now, key=str):
            log.info("resolved: %s", flaw)
        self._flaws = now
        for flaw in now:
            about, uid = ref_by_key(flaw.kind, flaw.key), uid_of(flaw.kind, flaw.key)
            reason, text = flaw.code.value, flaw.message
            # The message is also the event's code, so that each validation error of an object has
            # its own event.
            self._note(Note(about, uid, EventType.WARNING, reason, text, code=text))


POLICY_CONFIG_MAP: Final = "POLICY_CONFIG_MAP"
"""Environment variable with NAMESPACE/NAME of the ConfigMap that is mounted as policy file."""


class OutcomeReporter:
    """Reports the results of binds and evictions in metrics, events and the log.

    `on_change` is called after a failure, because the next session may then find another plan.
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
        """`reports_gangs` is true if all binds of a gang share one event on its PodGroup."""
        self.on_change: Callable[[], None] = lambda: None
        self._cache = cache
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._gang_binds = GangBindEvents(cache.group) if reports_gangs else None

    def bound(self, bind: Bind, seconds: float) -> None:
        """Report a bind that was confirmed `seconds` seconds after it was planned."""
        self._metrics.pods.bound(seconds)
        if self._gang_binds is None:
            self._events.note(scheduled(bind))
        else:
            self._gang_binds.add(bind, self._clock.now_ms())

    def failed(self, bind: Bind, failure: Failure) -> None:
        """Report a failed bind; its task is pending again."""
        log.warning("%s not bound to %s: %s", bind.task, bind.node, failure.message)
        self._metrics.pods.not_bound(failure.reason)
        self._events.note(not_bound(bind, failure))
        self.on_change()

    def evicted(self, victim: Victim) -> None:
        """Report an eviction that the server accepted."""
        eviction = victim.eviction
        self._metrics.pods.evictions.labels(eviction.action, eviction.plugin).inc()
        self._events.note(evicted(victim))
        note = overuse_reclaimed(victim, self._cache)
        if note is not None:
            self._events.note(note)

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """Report an eviction that the server rejected; the pod keeps running."""
        log.warning("%s not evicted: %s", victim.eviction.task, error)
        self._events.note(not_evicted(victim, error))
        self.on_change()

    def spared(self, victim: Victim, why: str) -> None:
        """Report an eviction that was not sent; `why` is `ended`, `unwanted` or `stood-down`."""
        log.info("%s not evicted: why=%s", victim.eviction.task, why)
        self._metrics.pods.spared.labels(why).inc()
        self.on_change()

    def report_gang_binds(self, age_ms: int = 0) -> None:
        """Write the events of gangs whose first collected bind is at least `age_ms` old."""
        if self._gang_binds is not None:
            for note in self._gang_binds.collect_due(self._clock.now_ms() - age_ms):
                self._events.note(note)


class SelfReporter:
    """Reports events about the scheduler process, on its pod if known, else on its lease.

    `subjects` holds the objects that the events are about.
    """

    def __init__(self, election: Election | None, metrics: Metrics, events: EventRecorder) -> None:
        self._metrics = metrics
        self._events = events
        self._uid = ""
        self._policy = policy_object(os.environ)
        if "POD_NAME" in os.environ and "POD_NAMESPACE" in os.environ:
            self._about = Ref(POD, os.environ["POD_NAMESPACE"], os.environ["POD_NAME"])
            self._uid = os.environ.get("POD_UID", "")
        elif election is not None:
            self._about = Ref(LEASE, election.namespace, election.name)
        else:
            self._about = Ref(LEASE, "default", COMPONENT)
        self.subjects = (self._about, self._policy)

    def report_policy(self, problems: str) -> None:
        """Report the mistakes in a changed policy; `problems` is empty if the policy is valid."""
        self._metrics.policy_rejected.set(bool(problems))
        if problems:
            self.report("PolicyRejected", problems)

    def report_advice(self, advice: str) -> None:
        """Write an event on the policy's ConfigMap to warn that the action `reclaim` is missing."""
        if self._policy is not None:
            warning = EventType.WARNING
            self._events.note(Note(self._policy, "", warning, "ReclaimMissing", advice, advice))

    def report(self, reason: str, message: str) -> None:
        """Write a warning event about this scheduler process."""
        warning = EventType.WARNING
        self._events.note(Note(self._about, self._uid, warning, reason, message, message))


def policy_object(environment: Mapping[str, str]) -> Ref | None:
    """Return the ConfigMap that holds the policy, or None if the environment names none."""
    namespace, slash, name = environment.get(POLICY_CONFIG_MAP, "").partition("/")
    return Ref(CONFIG_MAP, namespace, name) if slash and namespace and name else None
