"""CronJobs: jobs that are created on a schedule.

Names, events and limits follow Volcano's pkg/controllers/cronjob. A job's name contains the minute
of its scheduled time, so each job is created only once. Once a watch reports the job, the CronJob's
status records the job's schedule time.

Differences from Volcano: Terminated jobs are treated and deleted like failed jobs. With the policy
Replace, the next job is created without waiting until the replaced job's deletion is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobPhase
from optsched.api.jobflow import ConcurrencyPolicy, parse_cronjob
from optsched.api.json_fields import (
    acting_for,
    created_ms,
    is_controlled_by,
    is_terminating,
    job_phase_of,
    name_of,
    namespace_of,
    owner_reference,
    records,
    status_of,
    subobject,
    time_ms,
    uid_of,
    version_of,
    without_record,
)
from optsched.api.kinds import CRON_JOB, JOB
from optsched.api.meta import EventType
from optsched.controllers.controller import Controller, existing, owner_wakes
from optsched.controllers.effects import (
    Again,
    Create,
    Emit,
    Then,
    delete_object,
    event_about,
    patch_status,
)
from optsched.units import format_time
from optsched.units.cron import CronError, last_due_ms, next_due_ms, parse_timetable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.api.jobflow import CronJob
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect, Effects, PatchStatus
    from optsched.units.cron import Timetable

SCHEDULED_AT: Final = "volcano.sh/cronjob-scheduled-timestamp"
MANY: Final = 100
"""Number of missed schedule times above which the CronJob gets a warning event."""

LATE_S: Final = 0.1
"""Delay in seconds from a schedule time to the reconciliation, because clocks may differ."""

_ENDED: Final = {
    JobPhase.COMPLETED.value: True,
    JobPhase.FAILED.value: False,
    JobPhase.TERMINATED.value: False,
}
"""Maps each final phase of a job to True (success) or False (failure)."""

FAR_AHEAD_MS: Final = 3_600_000
"""A last schedule time that lies more than this many ms in the future is ignored as an error."""

BEHIND_MS: Final = 60_000
"""Length in ms of the past period that is searched for missed schedule times.

This period is searched if the last schedule time is ignored.
"""

_PREFIXES: Final = ("CRON_TZ=", "TZ=")


@dataclass(frozen=True, slots=True)
class _Schedule:
    """The schedule of a CronJob and its time zone."""

    table: Timetable
    zone: tzinfo


@dataclass(frozen=True, slots=True)
class _Case:
    """One CronJob, its jobs in creation order, and the current time in epoch milliseconds."""

    cron: CronJob
    manifest: Manifest
    jobs: Sequence[Manifest]
    now_ms: int

    @property
    def active(self) -> list[Manifest]:
        """The CronJob's jobs that have not ended."""
        return [job for job in self.jobs if job_phase_of(job) not in _ENDED]

    def emit(self, type_: EventType, reason: str, message: str, code: str = "") -> Emit:
        """Return an event about the CronJob."""
        return event_about(CRON_JOB, self.manifest, type_, reason, message, code)


class CronJobs:
    """Reconciles CronJobs.

    `zone_of` returns a time zone by name; it raises KeyError or ValueError for an unknown name.
    """

    def __init__(self, zone_of: Callable[[str], tzinfo]) -> None:
        self._zone_of = zone_of

    @property
    def controller(self) -> Controller:
        """The CronJob controller; a change of a CronJob's job starts a reconciliation."""
        return Controller(
            name="cronjob",
            kind=CRON_JOB,
            decide=existing(CRON_JOB, self.reconcile),
            wakes={JOB: owner_wakes(CRON_JOB)},
        )

    def reconcile(self, manifest: Manifest, world: World) -> Effects:
        """Create the due job, delete jobs beyond the history limits, and update the status.

        The CronJob is reconciled again at the next due time.
        """
        if is_terminating(manifest):
            return ()
        cron, _ = parse_cronjob(manifest)
        if cron is None:
            return ()
        owned = world.owned_by(JOB, CRON_JOB, cron.meta.uid)
        jobs = sorted(owned, key=lambda job: (created_ms(job), name_of(job)))
        case = _Case(cron, manifest, jobs, world.now_ms)
        schedule = self._read_schedule(case)
        if isinstance(schedule, Emit):
            return (*_update_status(case, cron.last_schedule_ms), schedule)
        if cron.suspended:
            return _update_status(case, cron.last_schedule_ms)
        due_ms, missed = _last_missed_run(case, schedule)
        next_ms = next_due_ms(schedule.table, world.now_ms, schedule.zone)
        again = () if next_ms is None else (Again((next_ms - world.now_ms) / 1000 + LATE_S),)
        if due_ms is None:
            return (*_update_status(case, cron.last_schedule_ms), *again)
        name = f"{cron.meta.name}-{due_ms // 60_000}"
        existing_job = world.get(JOB, cron.meta.namespace, name)
        if existing_job is not None and is_controlled_by(existing_job, CRON_JOB, cron.meta.uid):
            return (*_update_status(case, due_ms), *missed, *again)
        created = _create_job(case, name, due_ms, schedule, existing_job)
        return (*_update_status(case, cron.last_schedule_ms), *missed, *created, *again)

    def _read_schedule(self, case: _Case) -> _Schedule | Emit:
        text, name = case.cron.schedule, case.cron.time_zone
        for prefix in _PREFIXES:
            if text.startswith(prefix):
                name, _, rest = text.removeprefix(prefix).partition(" ")
                text = rest.strip()
                break
        try:
            zone = self._zone_of(name) if name else UTC
        except (KeyError, ValueError, OSError):
            message = f"spec.timeZone: unknown time zone {name!r}"
            return case.emit(EventType.WARNING, "InvalidTimeZone", message)
        try:
            return _Schedule(parse_timetable(text), zone)
        except CronError as e:
            message = f"spec.schedule: {e}"
            return case.emit(EventType.WARNING, "UnParseableCronJobSchedule", message)


# --- due times ------------------------------------------------------------------------------------


def _last_missed_run(case: _Case, schedule: _Schedule) -> tuple[int | None, tuple[Emit, ...]]:
    """Return the last missed schedule time in epoch ms (None if there is none), and warnings.

    There is one warning event if more than `MANY` schedule times were missed, otherwise none.
    """
    cron, now_ms = case.cron, case.now_ms
    since_ms = cron.meta.creation_ms if cron.last_schedule_ms is None else cron.last_schedule_ms
    if since_ms - now_ms > FAR_AHEAD_MS:
        since_ms = now_ms - BEHIND_MS
    if cron.starting_deadline_s is not None:
        since_ms = max(since_ms, now_ms - cron.starting_deadline_s * 1000)
    due_ms = last_due_ms(schedule.table, since_ms, now_ms, schedule.zone)
    at_ms = since_ms
    for _ in range(MANY + 1):
        next_ms = next_due_ms(schedule.table, at_ms, schedule.zone)
        if next_ms is None or next_ms > now_ms:
            return due_ms, ()
        at_ms = next_ms
    message = (
        f"more than {MANY} due times were missed since {format_time(since_ms)}: only the job of "
        "the last one is created; set a smaller spec.startingDeadlineSeconds"
    )
    return due_ms, (case.emit(EventType.WARNING, "TooManyMissedTimes", message),)


# --- the next job --------------------------------------------------------------------------------


def _create_job(
    case: _Case, name: str, due_ms: int, schedule: _Schedule, existing_job: Manifest | None
) -> tuple[Effect, ...]:
    """Return the effects that create the due job, if the concurrency policy allows it.

    `existing_job` is a job that has the due job's name but another owner, or None.
    """
    cron = case.cron
    if existing_job is not None:
        message = f"job {name} exists already and does not belong to this CronJob"
        return (case.emit(EventType.WARNING, "ForeignJob", message, name),)
    active = case.active
    if active and cron.concurrency is ConcurrencyPolicy.FORBID:
        message = f"job {name} waits until job {name_of(active[0])} ends"
        return (case.emit(EventType.WARNING, "ForbidConcurrent", message, name),)
    replaced = active if cron.concurrency is ConcurrencyPolicy.REPLACE else []
    due_at = datetime.fromtimestamp(due_ms / 1000, schedule.zone).isoformat()
    job = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            "name": name,
            "namespace": cron.meta.namespace,
            "labels": dict(cron.template.labels),
            "annotations": {
                **without_record(cron.template.annotations),
                **acting_for(case.manifest),
                SCHEDULED_AT: due_at.replace("+00:00", "Z"),
            },
            "ownerReferences": [owner_reference(CRON_JOB, case.manifest)],
        },
        "spec": dict(cron.template.spec),
    }
    event = case.emit(EventType.NORMAL, "SuccessfulCreate", f"Created job {name}", name)
    creation = Then((Create(JOB, job), event))
    return (*_delete_jobs(case, replaced, "ReplaceConcurrent"), creation)


def _delete_jobs(case: _Case, jobs: Sequence[Manifest], reason: str) -> Iterator[Effect]:
    for job in jobs:
        name = name_of(job)
        event = case.emit(EventType.NORMAL, reason, f"Deleted job {name}", name)
        if not is_terminating(job):
            yield Then((delete_object(JOB, job), event))


# --- existing jobs -------------------------------------------------------------------------------


def _update_status(case: _Case, last_schedule_ms: int | None) -> tuple[Effect, ...]:
    """Return the status patch, then the deletions of the jobs beyond the history limits.

    The patch comes first, because it records the results of the deleted jobs.
    """
    patch = _patch_status(case, last_schedule_ms)
    cron = case.cron
    limits = ((True, cron.num_successful_kept), (False, cron.num_failed_kept))
    over_limit: list[Manifest] = []
    for is_well, limit in limits:
        jobs = [job for job in case.jobs if _ENDED.get(job_phase_of(job)) is is_well]
        over_limit += jobs[: max(0, len(jobs) - limit)]
    old = tuple(_delete_jobs(case, over_limit, "SuccessfulDelete"))
    if patch is None:
        return old
    before = {active.uid for active in cron.active}
    ended = [job for job in case.jobs if uid_of(job) in before and job_phase_of(job) in _ENDED]
    seen = (
        case.emit(
            EventType.NORMAL,
            "SawCompletedJob",
            f"job {name_of(job)} has ended: {job_phase_of(job)}",
            name_of(job),
        )
        for job in ended
    )
    steps = (patch, *seen, *(step for each in old if isinstance(each, Then) for step in each.steps))
    return (Then(steps),)


def _patch_status(case: _Case, last_schedule_ms: int | None) -> PatchStatus | None:
    cron = case.cron
    ends = [
        time_ms(subobject(status_of(job), "state").get("lastTransitionTime"))
        for job in case.jobs
        if _ENDED.get(job_phase_of(job)) is True
    ]
    last_success_ms = max((t for t in (*ends, cron.last_success_ms) if t is not None), default=None)
    active_jobs = sorted(case.active, key=name_of)
    active = [
        {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "namespace": namespace_of(job),
            "name": name_of(job),
            "uid": uid_of(job),
            "resourceVersion": version_of(job),
        }
        for job in active_jobs
    ]
    desired: dict[str, Any] = {
        "active": active or None,
        "lastScheduleTime": None if last_schedule_ms is None else format_time(last_schedule_ms),
        "lastSuccessfulTime": None if last_success_ms is None else format_time(last_success_ms),
    }
    have = status_of(case.manifest)
    changed = {name: value for name, value in desired.items() if (have.get(name) or None) != value}
    if [each.get("uid") for each in records(have, "active")] == [
        uid_of(job) for job in active_jobs
    ]:
        # If only the resource version of an active job has changed, no patch is needed.
        changed.pop("active", None)
    if not changed:
        return None
    return patch_status(CRON_JOB, case.manifest, changed)
