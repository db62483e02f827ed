"""Keep the statuses of PodGroups and queues up to date.

After a session, `StatusTracker` compares the new statuses with those on the server and returns
patches. The tracker does no I/O, reads no clock and examines only gangs that changed. The tracker
returns a patch again only after the object on the server has changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import JOB, POD_GROUP, QUEUE, Ref
from optsched.api.podgroup import PodGroupCondition, PodGroupPhase, podgroup_status_patch
from optsched.api.queue import QueueCounts, queue_status_patch
from optsched.cluster.amounts import total
from optsched.cluster.reasons import LACK_OF_ROOM
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.queues import USAGE, usage_text
from optsched.session.status import gang_status
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from optsched.api.podgroup import PodGroup
    from optsched.api.queue import Queue as ApiQueue
    from optsched.cluster.amounts import Usage
    from optsched.cluster.reasons import Reason, ReasonCode
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.kube.client.listing import Raw
    from optsched.session.status import GangStatus

UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULED: Final = "Scheduled"
READY: Final = "tasks in gang are ready to be scheduled"
"""The value of `reason` in Volcano's PodGroup condition Scheduled (plugins/gang)."""

MESSAGE_EVERY_MS: Final = 30_000
"""Minimum time in ms between two status writes if only a condition's message changes."""

CONDITIONS_EVERY_MS: Final = 1_000
"""Minimum time in ms between two writes of changed phases or conditions.

The first change of a phase or condition is written immediately.
"""

COUNTS_EVERY_MS: Final = 3_000
"""Minimum time in ms between two status writes if only the pod counts change."""

SETTLE_MS: Final = 2_000
"""Milliseconds for which a gang's status may be deferred while its pods start or finish."""

QUEUE_EVERY_MS: Final = 3_000
"""Minimum time in ms between two status writes of a queue whose allocation keeps changing."""

CORRECTED_EVERY_MS: Final = 30_000
"""Minimum time in ms between two corrections of a queue status that another process overwrites.

Two schedulers that share a queue must not keep overwriting each other's values.
"""

AGAIN_MS: Final = 30_000
"""Delay in milliseconds before a rejected status is written again."""

MAX_CONFLICTS: Final = 3
"""Maximum number of quick retries after conflicts (409) within `AGAIN_MS`."""

CONFLICT_MS: Final = 200
"""Delay in milliseconds before a status is recomputed after a conflict."""

STEADY_MS: Final = 3_000
"""Milliseconds for which a new reason for a gang's lack of capacity must last to be written."""

_STARTED: Final = frozenset({GangPhase.RUNNING, GangPhase.COMPLETED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A snapshot that includes a session's assumed plan, and the reasons why gangs are pending.

    `reasons` maps the key of each pending gang to its reason. `enqueued` holds the keys of gangs
    whose pods may be created.
    """

    snapshot: Snapshot
    reasons: Mapping[str, Reason]
    enqueued: Collection[str]


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """A merge patch for an object's status or annotations."""

    ref: Ref
    body: Raw
    subresource: str


# --- PodGroups -----------------------------------------------------------------------------------


def group_patch(group: PodGroup, status: GangStatus, now_ms: int) -> StatusPatch | None:
    """Return the patch for a PodGroup's status, or None if the status is up to date.

    Conditions of types other than Scheduled and Unschedulable are kept. The transition time of a
    condition changes only if the condition's status changes.
    """
    by_type = {condition.type: condition for condition in group.status.conditions}
    facts: list[PodGroupCondition] = []
    if status.phase in _STARTED:
        facts.append(PodGroupCondition(SCHEDULED, "True", reason=READY))
        if UNSCHEDULABLE in by_type:
            facts.append(PodGroupCondition(UNSCHEDULABLE, "False"))
    else:
        if status.reason is not None:
            code, message = status.reason.code.value, status.reason.message
            facts.append(PodGroupCondition(UNSCHEDULABLE, "True", reason=code, message=message))
        if SCHEDULED in by_type:
            facts.append(PodGroupCondition(SCHEDULED, "False"))
    for fact in facts:
        before, since_ms, transition_id = by_type.get(fact.type), now_ms, ""
        if before is not None:
            transition_id = before.transition_id
            if before.status == fact.status and before.transition_ms is not None:
                since_ms = before.transition_ms
        by_type[fact.type] = replace(fact, transition_ms=since_ms, transition_id=transition_id)
    conditions = tuple(by_type.values())
    desired = replace(
        group.status,
        phase=PodGroupPhase(status.phase.value),
        conditions=conditions,
        running=status.running,
        succeeded=status.succeeded,
        failed=status.failed,
    )
    if desired == group.status:
        return None
    body = podgroup_status_patch(
        desired.phase,
        conditions,
        running=status.running,
        succeeded=status.succeeded,
        failed=status.failed,
    )
    ref = Ref(POD_GROUP, group.meta.namespace, group.meta.name)
    return StatusPatch(ref, body, "")


def pause_ms(group: PodGroup, patch: StatusPatch) -> int:
    """Return the minimum time in ms from a PodGroup's last status patch to the next patch.

    The phase Inqueue is written immediately, because controllers wait for it. Other status changes
    may wait, so that one patch contains several changes.
    """
    fresh = patch.body["status"]
    known = group.status
    facts = [(c["type"], c["status"], c.get("reason", "")) for c in fresh["conditions"]]
    if fresh["phase"] != known.phase:
        return 0 if fresh["phase"] == PodGroupPhase.INQUEUE else CONDITIONS_EVERY_MS
    if facts != [(c.type, c.status, c.reason) for c in known.conditions]:
        return CONDITIONS_EVERY_MS
    counts = (fresh["running"], fresh["succeeded"], fresh["failed"])
    is_counted = counts == (known.running, known.succeeded, known.failed)
    return MESSAGE_EVERY_MS if is_counted else COUNTS_EVERY_MS


def settle_ms(gang: Gang, group: PodGroup, status: GangStatus) -> int:
    """Return how many ms to defer a gang's status patch because more changes are likely."""
    owner = group.meta.controller
    is_of_job = owner is not None and (owner.api_version, owner.kind) == (JOB.api_version, JOB.kind)
    if is_of_job and status.phase is GangPhase.COMPLETED:
        # The job controller is about to delete the PodGroup.
        return SETTLE_MS
    is_counted = status.phase.value in (group.status.phase, GangPhase.RUNNING.value)
    has_ended = status.succeeded + status.failed > 0
    is_moving = (has_ended and status.running > 0) or any(
        task.status is TaskStatus.BOUND for task in gang.tasks
    )
    return SETTLE_MS if is_counted and is_moving else 0


def alternates(group: PodGroup, status: GangStatus) -> bool:
    """Return whether two statuses differ only in their reasons for the lack of capacity."""
    known = next((c for c in group.status.conditions if c.type == UNSCHEDULABLE), None)
    return (
        known is not None
        and known.status == "True"
        and status.reason is not None
        and status.reason.code.value != known.reason
        and {status.reason.code.value, known.reason} <= LACK_OF_ROOM
        and status.phase.value == group.status.phase
    )


# --- queues --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """The allocation and PodGroup phase that one gang adds to the status of its queue."""

    queue: str
    held: Mapping[str, int]
    phase: GangPhase | None


def queue_share(gang: Gang, status: GangStatus) -> Share:
    """Return a gang's contribution to its queue's status; the phase is None without a PodGroup."""
    standing = [task for task in gang.tasks if task.status.is_standing]
    held: Mapping[str, int] = {}
    if standing:
        held = {PODS: len(standing), **total(task.shape.request for task in standing)}
    has_group = not gang.is_implicit and gang.uid != ""
    return Share(gang.queue, held, status.phase if has_group else None)


@dataclass(slots=True)
class Account:
    """A queue's allocation, excluding its child queues, and its number of PodGroups per phase."""

    held: Counter[str] = field(default_factory=Counter)
    phases: Counter[GangPhase] = field(default_factory=Counter)

    def add(self, share: Share, times: int) -> None:
        """Add a gang's contribution (`times` is 1) or subtract it (`times` is -1)."""
        for name, amount in share.held.items():
            self.held[name] += times * amount
            if not self.held[name]:
                del self.held[name]
        if share.phase is not None:
            self.phases[share.phase] += times
            if not self.phases[share.phase]:
                del self.phases[share.phase]

    @property
    def counts(self) -> QueueCounts:
        """The number of PodGroups in each phase."""
        return QueueCounts(
            unknown=self.phases[GangPhase.UNKNOWN],
            pending=self.phases[GangPhase.PENDING],
            running=self.phases[GangPhase.RUNNING],
            inqueue=self.phases[GangPhase.INQUEUE],
            completed=self.phases[GangPhase.COMPLETED],
        )


def sum_with_descendants(
    accounts: Mapping[str, Account], parents: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Return each queue's allocation including its descendants, even if parents form a cycle."""
    held: dict[str, dict[str, int]] = {name: {} for name in parents}
    for name, account in accounts.items():
        at, seen = name, set[str]()
        while at in held and at not in seen:
            seen.add(at)
            for resource, amount in account.held.items():
                held[at][resource] = held[at].get(resource, 0) + amount
            at = parents[at]
    return held


def usage_patch(queue: str, usage: Usage) -> StatusPatch:
    """Return the patch that stores a queue's usage history."""
    annotations = {USAGE: usage_text(usage)}
    return StatusPatch(Ref(QUEUE, "", queue), {"metadata": {"annotations": annotations}}, "")


# --- both ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _GangInputs:
    gang: Gang
    reason: Reason | None
    group: PodGroup | None
    is_enqueued: bool


@dataclass(frozen=True, slots=True)
class _Deferred:
    """The times since which a status patch is deferred, and since which phase and reason apply."""

    since_ms: int
    phase: GangPhase
    phase_ms: int
    code: ReasonCode | None
    code_ms: int


@dataclass(frozen=True, slots=True)
class _TrackedGang:
    """A gang's last status, which must be recomputed if `inputs` has changed or is None."""

    inputs: _GangInputs | None
    share: Share
    written_ms: int
    deferred: _Deferred | None = None


@dataclass(frozen=True, slots=True)
class _QueueReport:
    """The last status of a queue.

    At `at_ms`, the status was last patched or found up to date. At `written_ms`, the status was
    last patched.
    """

    held: Mapping[str, int]
    counts: QueueCounts
    at_ms: int
    written_ms: int


class StatusTracker:
    """Returns patches for changed statuses of gangs and queues.

    `due_ms` is the time at which the next deferred patch is due, or None if there is none.
    """

    def __init__(self) -> None:
        self.due_ms: int | None = None
        self._tracked: dict[str, _TrackedGang] = {}
        self._accounts: dict[str, Account] = {}
        self._queue_reports: dict[str, _QueueReport] = {}
        self._refused: dict[Ref, int] = {}
        self._conflicts: dict[Ref, list[int]] = {}

    def record_refusal(self, ref: Ref, now_ms: int, *, is_conflict: bool = False) -> None:
        """Record that the server rejected a status, so that the status is written again.

        The status is written again after `AGAIN_MS`. After a conflict (409), the status is
        recomputed after `CONFLICT_MS`, up to `MAX_CONFLICTS` times within `AGAIN_MS`.
        """
        pause_ms = AGAIN_MS
        if is_conflict:
            times = [ms for ms in self._conflicts.get(ref, ()) if now_ms < ms + AGAIN_MS]
            if len(times) < MAX_CONFLICTS:
                times.append(now_ms)
                pause_ms = CONFLICT_MS
            self._conflicts[ref] = times
        self._refused[ref] = now_ms + pause_ms
        self._defer(now_ms + pause_ms)

    def patches(
        self,
        outcome: Outcome,
        group_of: Callable[[str], PodGroup | None],
        queues: Mapping[str, ApiQueue],
    ) -> list[StatusPatch]:
        """Return a session's patches; `group_of` and `queues` provide the objects on the server."""
        snapshot, reasons, enqueued = outcome.snapshot, outcome.reasons, outcome.enqueued
        for ref in [
            r for r, times in self._conflicts.items() if times[-1] + AGAIN_MS <= snapshot.taken_ms
        ]:
            del self._conflicts[ref]
        for ref in [ref for ref, due_ms in self._refused.items() if due_ms <= snapshot.taken_ms]:
            del self._refused[ref]
            if ref.kind is QUEUE:
                self._queue_reports.pop(ref.name, None)
            elif ref.key in self._tracked:
                tracked = self._tracked[ref.key]
                self._tracked[ref.key] = _TrackedGang(None, tracked.share, 0)
        self.due_ms = min(self._refused.values(), default=None)
        found: list[StatusPatch] = []
        for gang in snapshot.gangs:
            key = gang.key
            inputs = _GangInputs(gang, reasons.get(key), group_of(key), key in enqueued)
            patch = self._gang_patch(inputs, snapshot.taken_ms)
            if patch is not None:
                found.append(patch)
        if len(self._tracked) != len(snapshot.gangs):
            for key in self._tracked.keys() - {gang.key for gang in snapshot.gangs}:
                self._add_share(self._tracked.pop(key).share, -1)
        return [*found, *self._queue_patches(snapshot, queues)]

    def _gang_patch(self, inputs: _GangInputs, now_ms: int) -> StatusPatch | None:
        key = inputs.gang.key
        tracked = self._tracked.get(key)
        previous = None if tracked is None else tracked.inputs
        if (
            previous is not None
            and previous.gang is inputs.gang
            and previous.group is inputs.group
            and previous.is_enqueued == inputs.is_enqueued
            and previous.reason == inputs.reason
        ):
            return None
        status = gang_status(inputs.gang, inputs.reason, 0, inputs.is_enqueued)
        share = queue_share(inputs.gang, status)
        if tracked is None or tracked.share != share:
            if tracked is not None:
                self._add_share(tracked.share, -1)
            self._add_share(share, 1)
        written_ms = 0 if tracked is None else tracked.written_ms
        deferred = None if tracked is None else tracked.deferred
        code = None if status.reason is None else status.reason.code
        if deferred is None:
            deferred = _Deferred(now_ms, status.phase, now_ms, code, now_ms)
        if deferred.phase is not status.phase:
            deferred = replace(deferred, phase=status.phase, phase_ms=now_ms)
        if deferred.code is not code:
            deferred = replace(deferred, code=code, code_ms=now_ms)
        group = inputs.group
        patch = None if group is None else group_patch(group, status, deferred.phase_ms)
        if patch is None or group is None:
            self._tracked[key] = _TrackedGang(inputs, share, written_ms)
            return None
        due_ms = max(
            written_ms + pause_ms(group, patch),
            deferred.since_ms + settle_ms(inputs.gang, group, status),
        )
        if alternates(group, status):
            steady_ms = min(deferred.code_ms + STEADY_MS, written_ms + MESSAGE_EVERY_MS)
            due_ms = max(due_ms, steady_ms)
        if now_ms < due_ms:
            self._defer(due_ms)
            self._tracked[key] = _TrackedGang(None, share, written_ms, deferred)
            return None
        self._tracked[key] = _TrackedGang(inputs, share, now_ms)
        return patch

    def _defer(self, due_ms: int) -> None:
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)

    def _add_share(self, share: Share, times: int) -> None:
        """Add a gang's contribution to its queue's account; delete the account if it is empty."""
        account = self._accounts.setdefault(share.queue, Account())
        account.add(share, times)
        if not account.held and not account.phases:
            del self._accounts[share.queue]

    def _queue_patches(
        self, snapshot: Snapshot, queues: Mapping[str, ApiQueue]
    ) -> Iterator[StatusPatch]:
        held = sum_with_descendants(
            self._accounts, {queue.name: queue.parent for queue in snapshot.queues}
        )
        for name, queue in queues.items():
            now_ms, last = snapshot.taken_ms, self._queue_reports.get(name)
            counts = self._accounts.get(name, Account()).counts
            desired = (held.get(name, {}), counts)
            amounts = {
                CPU: 0,
                MEMORY: 0,
                **{r: amount for r, amount in desired[0].items() if amount},
            }
            known = queue.status
            if dict(known.allocated) == amounts and known.counts == counts:
                written_ms = 0 if last is None else last.written_ms
                self._queue_reports[name] = _QueueReport(*desired, now_ms, written_ms)
                continue
            if last is not None:
                is_other = (last.held, last.counts) != desired
                due_ms = last.at_ms + CORRECTED_EVERY_MS
                if is_other:
                    due_ms = last.written_ms + QUEUE_EVERY_MS
                if now_ms < due_ms:
                    self._defer(due_ms)
                    continue
            self._queue_reports[name] = _QueueReport(*desired, now_ms, now_ms)
            body = queue_status_patch(amounts, counts, previous=known.allocated)
            yield StatusPatch(Ref(QUEUE, "", name), body, "status")
        for name in self._queue_reports.keys() - queues.keys():
            del self._queue_reports[name]
