"""Compute the GPU time and CPU time that each queue and user is charged for, in exact integers.

The unit is the GPU-microsecond: one thousandth of a GPU for one millisecond. A GPU-hour is 3 600
000 000 GPU-microseconds. For a pod with a GPU share, the requested thousandths of a GPU are
charged. Usage during the warm-up and after the last recorded event or snapshot is not counted.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import astuple, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api.wellknown import CRATER_USER, USER
from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import milli_on
from optsched.cluster.task import TaskStatus
from optsched.study.simulation.record import (
    Bind,
    Finish,
    Move,
    NodeTurn,
    Release,
    SessionRun,
    Start,
    Stop,
    Submit,
)
from optsched.units import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task, TaskShape
    from optsched.cluster.trace import Trace
    from optsched.study.simulation.record import Event, TaskPlacement


HOUR_US: Final = 3_600_000_000
"""Number of GPU-microseconds in one GPU-hour."""

UNIT: Final = "GPU-microseconds"

_NODE: Final = "node"


@dataclass(frozen=True, slots=True)
class Amounts:
    """The resource usage of one user in one queue, or the total usage of several users or queues.

    GPU usage is in GPU-microseconds.
    """

    jobs: int = 0  # Number of gangs that have arrived.
    held: int = 0  # GPU usage of pods from their binding until they leave the node.
    # GPU usage of pods while fewer pods of their gang ran than the gang's minimum; included in
    # `held`. The platform Crater does not bill this usage.
    idle: int = 0
    # GPU usage for work that was lost in evictions and moves, and GPU usage of terminating pods;
    # included in `held`.
    evicted: int = 0
    failed: int = 0  # GPU usage for work that was lost in node failures; included in `held`.
    cpu_held: int = 0  # CPU usage in milli-CPU times milliseconds.

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def useful(self) -> int:
        """The GPU usage that was neither idle nor lost, in GPU-microseconds."""
        return self.held - self.idle - self.evicted - self.failed


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge to one user in one queue; `user` is empty for gangs that name no user."""

    queue: str
    user: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Chargeback:
    """Charges per queue and user, sorted by queue, then by user."""

    charges: tuple[Charge, ...]

    @property
    def total(self) -> Amounts:
        """The sum of all charges."""
        return sum((c.amounts for c in self.charges), Amounts())

    @property
    def by_queue(self) -> dict[str, Amounts]:
        """The resource usage per queue, sorted by queue name."""
        return self._sum_by(lambda c: c.queue)

    @property
    def by_user(self) -> dict[str, Amounts]:
        """The resource usage per user, sorted by user name."""
        return self._sum_by(lambda c: c.user)

    def _sum_by(self, name_of: Callable[[Charge], str]) -> dict[str, Amounts]:
        found: dict[str, Amounts] = {}
        for charge in self.charges:
            name = name_of(charge)
            found[name] = found.get(name, Amounts()) + charge.amounts
        return dict(sorted(found.items()))

    def as_json(self) -> dict[str, Any]:
        """Return the charges as JSON: per queue and user, per queue, per user, and in total."""
        return {
            "unit": UNIT,
            "gpu_hour": HOUR_US,
            "charges": [
                {"queue": c.queue, "user": c.user, **as_numbers(c.amounts)} for c in self.charges
            ],
            "queues": {name: as_numbers(found) for name, found in self.by_queue.items()},
            "users": {name: as_numbers(found) for name, found in self.by_user.items()},
            "total": as_numbers(self.total),
        }

    @property
    def lines(self) -> Iterator[list[str | int]]:
        """Yield one CSV row per charge, with the columns in `HEADER`."""
        for each in self.charges:
            found = each.amounts
            hours = [hours_text(found.held), hours_text(found.evicted)]
            yield [each.queue, each.user, *hours, *as_numbers(found).values()]

    def as_csv(self) -> str:
        """Return the charges as CSV, with one line per queue and user."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(self.lines)
        return text.getvalue()


_COLUMNS: Final = {
    "jobs": "jobs",
    "held": "held_gpu_us",
    "idle": "idle_gpu_us",
    "evicted": "evicted_gpu_us",
    "failed": "failed_gpu_us",
    "cpu_held": "held_cpu_us",
}

HEADER: Final = ("queue", "user", "gpu_hours", "evicted_gpu_hours", *_COLUMNS.values())


def sum_chargebacks(several: Iterable[Chargeback]) -> Chargeback:
    """Return the charges per queue and user, summed over several `Chargeback` objects."""
    found: dict[tuple[str, str], Amounts] = defaultdict(Amounts)
    for each in several:
        for charge in each.charges:
            found[charge.queue, charge.user] += charge.amounts
    return Chargeback(tuple(Charge(*payer, found[payer]) for payer in sorted(found)))


def as_numbers(found: Amounts) -> dict[str, int]:
    """Return the resource usage, keyed by column name; column names include the unit."""
    return {_COLUMNS[f.name]: getattr(found, f.name) for f in fields(found)}


def of_json(found: Mapping[str, Any]) -> Chargeback:
    """Parse charges from the JSON of `Chargeback.as_json`."""
    return Chargeback(
        tuple(
            Charge(c["queue"], c["user"], Amounts(**{k: c[v] for k, v in _COLUMNS.items()}))
            for c in found["charges"]
        )
    )


def hours_text(held_us: int, digits: int = 6) -> str:
    """Format GPU-microseconds as GPU-hours with `digits` decimals, rounded half up."""
    scale = 10**digits
    whole, part = divmod((2 * held_us * scale + HOUR_US) // (2 * HOUR_US), scale)
    return f"{whole}.{part:0{digits}d}"


def user_of(gang: Gang) -> str:
    """Return the user who is charged for a gang; an empty string if the gang names no user.

    The user is the value of the gang's annotation `optsched.io/user`, which trace readers set from
    the trace's user column. Without this annotation, the user is the first pod label
    `optsched.io/user`, or else the first pod label `crater.raids.io/task-user`, which Crater sets.
    """
    named = gang.annotations.get(USER)
    labels = (task.labels.get(name) for name in (USER, CRATER_USER) for task in gang.tasks)
    return named or next(filter(None, labels), "")


# --- charges of a replay -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """The thousandths of a GPU and of a CPU that a task has held on a node since `since_ms`."""

    since_ms: int
    milli: int
    cpu_m: int

    def amounts_until(self, until_ms: int, ran_ms: int | None) -> Amounts:
        """Return the usage from `since_ms` to `until_ms`; GPU usage before `ran_ms` counts as idle.

        `ran_ms` is the time at which the number of running tasks reached the gang's minimum, or
        None if it is below the minimum.
        """
        held_ms = max(until_ms - self.since_ms, 0)
        before_ms = held_ms if ran_ms is None else min(max(ran_ms - self.since_ms, 0), held_ms)
        return Amounts(
            held=self.milli * held_ms, idle=self.milli * before_ms, cpu_held=self.cpu_m * held_ms
        )

    def lost(self, from_ms: int, until_ms: int) -> int:
        """Return the task's GPU usage in a time interval, in GPU-microseconds."""
        return self.milli * max(until_ms - max(self.since_ms, from_ms), 0)


@dataclass(slots=True, eq=False)
class _Job:
    """A gang that has arrived, with the requests and the current usage of each of its tasks.

    `since_ms` is the start of the current run, or None if the gang is not running.
    """

    payer: tuple[str, str]
    shapes: Mapping[str, TaskShape]
    usages: dict[str, Usage]
    grace_ms: int = 0
    since_ms: int | None = None


class Charging:
    """Accumulates the charges of a replay, event by event."""

    def __init__(self, trace: Trace, warm_up_ms: int = 0) -> None:
        self._from_ms = warm_up_ms
        self._nodes = {node.name: node for node in trace.nodes if node.shared_gpus}
        self._arrivals = {a.gang.key: a for a in trace.arrivals}
        self._jobs: dict[str, _Job] = {}
        self._found: dict[tuple[str, str], Amounts] = defaultdict(Amounts)
        self._staying: list[tuple[tuple[str, str], Usage, int]] = []
        self._now_ms = 0

    def add_event(self, event: Event) -> None:
        """Process the next event."""
        self._now_ms = event.at_ms
        match event:
            case Submit():
                arrival = self._arrivals[event.job]
                gang = arrival.gang
                payer = (gang.queue, user_of(gang))
                shapes = {t.key: t.shape for t in gang.tasks}
                self._jobs[gang.key] = _Job(payer, shapes, {}, arrival.grace_ms)
                self._found[payer] += Amounts(jobs=int(self._now_ms >= self._from_ms))
            case Start():
                self._begin_usage(self._jobs[event.job], event.places)
                self._jobs[event.job].since_ms = event.at_ms
            case Bind():
                self._begin_usage(self._jobs[event.job], event.places)
            case Move():
                # Moved tasks restart on another node; the gang resumes from its last checkpoint.
                job = self._jobs[event.job]
                self._charge_lost_work(job, event.lost_ms, "")
                self._end_usage(job, [place.task for place in event.places])
                self._begin_usage(job, event.places)
            case Release():
                job = self._jobs[event.job]
                self._start_grace_period(job, event.tasks, event.cause)
                self._end_usage(job, event.tasks)
            case Stop():
                job = self._jobs[event.job]
                self._charge_lost_work(job, event.lost_ms, event.cause)
                self._start_grace_period(job, job.usages, event.cause)
                self._end_usage(job, list(job.usages))
                job.since_ms = None
            case Finish():
                job = self._jobs.pop(event.job)
                self._end_usage(job, list(job.usages))
            case NodeTurn() | SessionRun():
                pass

    def total(self, until_ms: int | None = None) -> Chargeback:
        """Return all charges up to `until_ms` or the last event; running tasks are included."""
        end_ms = self._now_ms if until_ms is None else until_ms
        found = dict(self._found)
        for job in self._jobs.values():
            for usage in job.usages.values():
                found[job.payer] += usage.amounts_until(end_ms, job.since_ms)
        for payer, usage, leaves_ms in self._staying:
            held = usage.amounts_until(min(leaves_ms, end_ms), usage.since_ms)
            found[payer] += replace(held, evicted=held.held)
        return Chargeback(tuple(Charge(*payer, found[payer]) for payer in sorted(found)))

    def _begin_usage(self, job: _Job, places: Iterable[TaskPlacement]) -> None:
        since_ms = max(self._now_ms, self._from_ms)
        for place in places:
            shape = job.shapes[place.task]
            milli = milli_on(shape, self._nodes.get(place.node))
            job.usages[place.task] = Usage(since_ms, milli, amount_of(shape.request, CPU))

    def _end_usage(self, job: _Job, tasks: Iterable[str]) -> None:
        held = (job.usages.pop(task).amounts_until(self._now_ms, job.since_ms) for task in tasks)
        self._found[job.payer] = sum(held, self._found[job.payer])

    def _start_grace_period(self, job: _Job, tasks: Iterable[str], cause: str) -> None:
        """Charge each evicted pod for the resources that it holds until its grace period ends."""
        if cause == _NODE or not job.grace_ms:
            return
        now_ms = max(self._now_ms, self._from_ms)
        for task in tasks:
            usage = replace(job.usages[task], since_ms=now_ms)
            self._staying.append((job.payer, usage, self._now_ms + job.grace_ms))

    def _charge_lost_work(self, job: _Job, lost_ms: int, cause: str) -> None:
        """Count a gang's GPU usage in the last `lost_ms` milliseconds as lost work."""
        from_ms = self._now_ms - lost_ms
        lost = sum(usage.lost(from_ms, self._now_ms) for usage in job.usages.values())
        self._found[job.payer] += Amounts(failed=lost) if cause == _NODE else Amounts(evicted=lost)


# --- charges of a recorded cluster ---------------------------------------------------------------


def chargeback_of_snapshots(snapshots: Sequence[Snapshot]) -> Chargeback:
    """Return the charges between the first and the last snapshot of a cluster.

    A pod is charged from the time at which it is bound until the first snapshot in which it is no
    longer on its node. A pod that was bound before the first snapshot is charged from the first
    snapshot on.

    A running gang counts as evicted if, in the next snapshot, fewer pods of the gang run than its
    minimum requires. The gang counts as failed, not as evicted, if the node of a lost pod is
    missing or not ready. The lost work is the GPU usage of the lost pods since their last
    checkpoint (`optsched.io/checkpointed-at`), or since the start of the gang's run if the last
    checkpoint is older. Charges are more accurate if snapshots are taken more often.
    """
    first_ms = snapshots[0].taken_ms if snapshots else 0
    watched: dict[str, _RecordedGang] = {}
    for snapshot in snapshots:
        for gang in snapshot.gangs:
            watched.setdefault(gang.key, _RecordedGang((gang.queue, user_of(gang)), first_ms))
        for key, each in watched.items():
            each.observe(snapshot.gang_by_key.get(key), snapshot)
    found: dict[tuple[str, str], Amounts] = defaultdict(Amounts)
    for each in watched.values():
        # Charge the tasks that still run in the last snapshot.
        held = (
            usage.amounts_until(snapshots[-1].taken_ms, each.ran_ms)
            for _, usage in each.usages.values()
        )
        found[each.payer] += sum(held, each.found)
    return Chargeback(tuple(Charge(*payer, found[payer]) for payer in sorted(found)))


@dataclass(slots=True, eq=False)
class _RecordedGang:
    """The charges of one gang, computed from recorded snapshots.

    `ran_ms` is the time at which the number of running pods reached the gang's minimum, or None if
    it is below the minimum.
    """

    payer: tuple[str, str]
    first_ms: int  # Time of the first snapshot.
    found: Amounts = Amounts(jobs=1)
    usages: dict[str, tuple[Task, Usage]] = field(default_factory=dict)
    ran_ms: int | None = None

    def observe(self, gang: Gang | None, snapshot: Snapshot) -> None:
        """Process the next snapshot; `gang` is None if the snapshot does not contain the gang."""
        now_ms = snapshot.taken_ms
        tasks = gang.tasks if gang is not None else ()
        held = {t.key: t for t in tasks if t.status.holds_resources}
        ready = sum(task.status.counts_as_ready for task in tasks)
        has_minimum = gang is not None and ready >= max(gang.min_member, 1)
        # A recreated pod has the same name but another UID.
        present = {(key, task.uid, task.node) for key, task in held.items()}
        left = [
            k for k, (task, _) in self.usages.items() if (k, task.uid, task.node) not in present
        ]
        is_over = bool(tasks) and all(t.status in _OVER for t in tasks)
        was_running = gang is not None and self.ran_ms is not None and not is_over
        if was_running and not has_minimum:
            lost, has_failed_node = 0, False
            for task, usage in (self.usages[key] for key in left):
                lost += usage.lost(max(task.saved_ms, self.ran_ms or 0), now_ms)
                node = snapshot.node_by_name.get(task.node)
                has_failed_node |= node is None or not node.ready
            self.found += Amounts(failed=lost) if has_failed_node else Amounts(evicted=lost)
        for key in left:
            self.found += self.usages.pop(key)[1].amounts_until(now_ms, self.ran_ms)
        for key in held.keys() - self.usages.keys():
            pod = held[key]
            since_ms = min(max(pod.started_ms or now_ms, self.first_ms), now_ms)
            milli = milli_on(pod.shape, snapshot.node_by_name.get(pod.node))
            cpu_m = amount_of(pod.shape.request, CPU)
            self.usages[key] = pod, Usage(since_ms, milli, cpu_m)
        if gang is None or not has_minimum:
            self.ran_ms = None
        elif self.ran_ms is None:
            came = sorted(usage.since_ms for _, usage in self.usages.values())
            self.ran_ms = came[min(max(gang.min_member, 1), len(came)) - 1] if came else None


_OVER: Final = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})
