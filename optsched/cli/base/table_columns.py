"""Table columns for each kind: the columns of `vcctl`, and additional columns for `-o wide`.

Source of pod states: pkg/printers/internalversion/printers.go of Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.api.job import parse_job
from optsched.api.jobflow import parse_jobflow, parse_jobtemplate
from optsched.api.queue import parse_queue
from optsched.units import format_duration_ms, format_time, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.api.job import Job
    from optsched.api.queue import Queue

    Raw = Mapping[str, Any]


def ready_containers(pod: Raw) -> str:
    """Return how many containers of a pod, sidecars included, are ready, such as 1/2."""
    status = _status(pod)
    sidecars = _sidecars(pod)
    init = status.get("initContainerStatuses") or ()
    counted = [*(status.get("containerStatuses") or ())]
    counted += (c for c in init if c.get("name") in sidecars)
    num_containers = len(_spec(pod).get("containers") or ()) + len(sidecars)
    return f"{sum(bool(c.get('ready')) for c in counted)}/{num_containers}"


def _sidecars(pod: Raw) -> frozenset[str]:
    """Return the names of a pod's sidecars, which are init containers that keep running."""
    containers = _spec(pod).get("initContainers") or ()
    return frozenset(c["name"] for c in containers if c.get("restartPolicy") == "Always")


def _spec(obj: Raw) -> Raw:
    return obj.get("spec") or {}


def _status(obj: Raw) -> Raw:
    return obj.get("status") or {}


def restarts_of(pod: Raw) -> int:
    """Return the total number of container restarts of a pod."""
    return sum(int(c.get("restartCount") or 0) for c in _status(pod).get("containerStatuses") or ())


def status_of_pod(pod: Raw) -> str:
    """Return the most specific reason for a pod's state, or its phase if no reason is known."""
    status = _status(pod)
    phase = str(status.get("phase") or "Unknown")
    if pod.get("metadata", {}).get("deletionTimestamp") and phase not in ("Succeeded", "Failed"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    conditions = status.get("conditions") or ()
    is_gated = any(each.get("reason") == "SchedulingGated" for each in conditions)
    reason = "SchedulingGated" if is_gated else str(status.get("reason") or phase)
    return _init_reason(pod) or _container_reason(status) or reason


def _init_reason(pod: Raw) -> str:
    """Return the state of a pod's init containers; empty if all init containers have completed."""
    status, sidecars = _status(pod), _sidecars(pod)
    if any(_is_true(c, "Initialized") for c in status.get("conditions") or ()):
        return ""
    num_containers = len(_spec(pod).get("initContainers") or ())
    for i, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended = state.get("terminated")
        is_sidecar = container.get("name") in sidecars and container.get("started")
        if is_sidecar or (ended and not ended.get("exitCode")):
            continue
        why = str((state.get("waiting") or {}).get("reason") or "")
        why = _describe_end(ended) if ended else "" if why == "PodInitializing" else why
        return f"Init:{why or f'{i}/{num_containers}'}"
    return ""


def _is_true(condition: Raw, kind: str) -> bool:
    return condition.get("type") == kind and condition.get("status") == "True"


def _container_reason(status: Raw) -> str:
    """Return the reason of the first container that is waiting or has terminated.

    If that container is Completed and another container runs, return Running or NotReady.
    """
    containers = status.get("containerStatuses") or ()
    reason = ""
    for state in (each.get("state") or {} for each in containers):
        waiting = str((state.get("waiting") or {}).get("reason") or "")
        reason = waiting or (_describe_end(state["terminated"]) if state.get("terminated") else "")
        if reason:
            break
    is_any_ready = any(
        each.get("ready") and (each.get("state") or {}).get("running") is not None
        for each in containers
    )
    if reason != "Completed" or not is_any_ready:
        return reason
    is_ready = any(_is_true(c, "Ready") for c in status.get("conditions") or ())
    return "Running" if is_ready else "NotReady"


def _describe_end(ended: Raw) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


NOTHING: Final = "<none>"
JOB_TYPE: Final = "volcano.sh/job-type"
_BATCH: Final = "Batch"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of objects.

    `cell` computes the cell from a decoded object and the current time in ms. `wide` is true if the
    column is shown only with `-o wide`.
    """

    heading: str
    cell: Callable[[Any, int], object]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a kind; `read` decodes a stored object for `Column.cell`."""

    read: Callable[[Raw], Any]
    columns: tuple[Column, ...]

    def headings(self, *, wide: bool) -> list[str]:
        """Return the headings of the columns that are shown."""
        return [c.heading for c in self.columns if wide or not c.wide]

    def row(self, obj: Raw, now_ms: int, *, wide: bool) -> list[str]:
        """Return the table cells of an object; a missing value becomes `<none>`."""
        seen = self.read(obj)
        cells = (c.cell(seen, now_ms) for c in self.columns if wide or not c.wide)
        return [NOTHING if cell is None or cell == "" else str(cell) for cell in cells]


def namespace_of(obj: Raw) -> str:
    """Return an object's namespace."""
    return str(obj.get("metadata", {}).get("namespace") or "")


def name_of(obj: Raw) -> str:
    """Return an object's name."""
    return str(obj.get("metadata", {}).get("name") or "")


# --- times ---------------------------------------------------------------------------------------

_S: Final = 1000
_MIN: Final = 60 * _S
_HOUR: Final = 60 * _MIN
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_SPANS: Final = (
    # For each range of durations: exclusive upper limit, unit, and optional smaller unit, as in
    # Kubernetes (HumanDuration).
    (2 * _MIN, (_S, "s"), None),
    (10 * _MIN, (_MIN, "m"), (_S, "s")),
    (3 * _HOUR, (_MIN, "m"), None),
    (8 * _HOUR, (_HOUR, "h"), (_MIN, "m")),
    (2 * _DAY, (_HOUR, "h"), None),
    (8 * _DAY, (_DAY, "d"), (_HOUR, "h")),
    (2 * _YEAR, (_DAY, "d"), None),
    (8 * _YEAR, (_YEAR, "y"), (_DAY, "d")),
)


def format_span(ms: int) -> str:
    """Format a duration, for example as 90s, 5m12s, 3h or 2d4h."""
    ms = max(ms, 0)
    for below, (unit, letter), rest in _SPANS:
        if ms < below:
            more = ms % unit // rest[0] if rest else 0
            return f"{ms // unit}{letter}" + (f"{more}{rest[1]}" if rest and more else "")
    return f"{ms // _YEAR}y"


def format_object_age(obj: Raw, now_ms: int) -> str:
    """Format an object's age; empty if the creation time is missing."""
    written = obj.get("metadata", {}).get("creationTimestamp")
    return format_span(now_ms - parse_time_ms(written)) if written else ""


# --- queues --------------------------------------------------------------------------------------


def _decode_queue(obj: Raw) -> Queue:
    queue, _ = parse_queue(obj)
    assert queue is not None, "a stored object has a name"  # noqa: S101
    return queue


def format_amounts(listed: Any) -> str:  # noqa: ANN401  an unchecked resource list
    """Format resource amounts without spaces, such as cpu=4,memory=8Gi."""
    return ",".join(f"{name}={value}" for name, value in sorted((listed or {}).items()))


def _count_field(name: str) -> Callable[[Raw, int], object]:
    return lambda obj, _: getattr(_decode_queue(obj).status.counts, name)


_WEIGHT: Final = Column("Weight", lambda q, _: _decode_queue(q).weight)
_STATE: Final = Column("State", lambda q, _: _status(q).get("state"))
_NAME: Final = Column("Name", lambda o, _: name_of(o))
_COUNTS: Final = {
    name: Column(name.title(), _count_field(name))
    for name in ("inqueue", "pending", "running", "unknown", "completed")
}
QUEUES: Final = Table(
    lambda obj: obj,
    (
        _NAME,
        _WEIGHT,
        _STATE,
        Column("Parent", lambda q, _: _decode_queue(q).parent),
        *_COUNTS.values(),
        Column("Priority", lambda q, _: _decode_queue(q).priority, wide=True),
        Column("Reclaimable", lambda q, _: str(_decode_queue(q).reclaimable).lower(), wide=True),
        Column("Allocated", lambda q, _: format_amounts(_status(q).get("allocated")), wide=True),
        Column("Deserved", lambda q, _: format_amounts(_spec(q).get("deserved")), wide=True),
        Column("Capability", lambda q, _: format_amounts(_spec(q).get("capability")), wide=True),
        Column(
            "Guarantee",
            lambda q, _: format_amounts((_spec(q).get("guarantee") or {}).get("resource")),
            wide=True,
        ),
        Column("Age", format_object_age, wide=True),
    ),
)
OLD_QUEUES: Final = Table(
    QUEUES.read,
    (_NAME, _WEIGHT, _STATE, *(_COUNTS[n] for n in ("inqueue", "pending", "running", "unknown"))),
)
"""The columns of `vqueues`."""


def order_as_tree(queues: Sequence[Raw]) -> list[tuple[Raw, str]]:
    """Return (queue, prefix) pairs in tree order; the prefix draws the tree's lines.

    A queue whose parent does not exist, or that is its own ancestor, is at the top level.
    """
    below: dict[str, list[Raw]] = {}
    names = {name_of(queue) for queue in queues}
    for queue in sorted(queues, key=name_of):
        parent = parent_of(queue)
        below.setdefault(parent if parent in names else "", []).append(queue)
    found: list[tuple[Raw, str]] = []
    _append_descendants(below, "", ("", ""), found)
    seen = {name_of(queue) for queue, _ in found}
    found += [(q, "") for q in sorted(queues, key=name_of) if name_of(q) not in seen]
    return found


def _append_descendants(
    below: Mapping[str, Sequence[Raw]],
    parent: str,
    margins: tuple[str, str],
    found: list[tuple[Raw, str]],
) -> None:
    """Append the descendants of the queue `parent` to `found`.

    `margins` holds the prefixes of a subtree's first line and of its other lines.
    """
    children = below.get(parent, ())
    for i, queue in enumerate(children):
        is_last = i == len(children) - 1
        stroke, blank = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        lead, rest = (margins[1] + stroke, margins[1] + blank) if parent else margins
        found.append((queue, lead))
        _append_descendants(below, name_of(queue), ("", rest), found)


def parent_of(queue: Raw) -> str:
    """Return the name of a queue's parent (default `root`), or "" for the root queue."""
    if name_of(queue) == wellknown.ROOT_QUEUE:
        return ""
    return str(_spec(queue).get("parent") or wellknown.ROOT_QUEUE)


# --- jobs ----------------------------------------------------------------------------------------


def decode_job(obj: Raw) -> Job:
    """Decode a job that the API server returned."""
    job, _ = parse_job(obj)
    assert job is not None, "a stored object has a name"  # noqa: S101
    return job


JOBS: Final = Table(
    decode_job,
    (
        Column("Name", lambda j, _: j.meta.name),
        Column(
            "Creation",
            lambda j, _: format_time(j.meta.creation_ms)[:10] if j.meta.creation_ms else "",
        ),
        Column("Phase", lambda j, _: j.status.phase),
        Column("JobType", lambda j, _: j.meta.labels.get(JOB_TYPE) or _BATCH),
        Column("Replicas", lambda j, _: j.spec.num_pods),
        Column("Min", lambda j, _: j.status.min_available or j.spec.min_available),
        Column("Pending", lambda j, _: j.status.counts.pending),
        Column("Running", lambda j, _: j.status.counts.running),
        Column("Succeeded", lambda j, _: j.status.counts.succeeded),
        Column("Failed", lambda j, _: j.status.counts.failed),
        Column("Unknown", lambda j, _: j.status.counts.unknown),
        Column("RetryCount", lambda j, _: j.status.restarts.retries),
        Column("Queue", lambda j, _: j.spec.queue, wide=True),
        Column("PriorityClass", lambda j, _: j.spec.priority_class, wide=True),
        Column("Scheduler", lambda j, _: j.spec.scheduler_name, wide=True),
        Column(
            "Duration",
            lambda j, _: (
                ""
                if j.status.running_duration_ms is None
                else format_duration_ms(j.status.running_duration_ms)
            ),
            wide=True,
        ),
        Column(
            "Age",
            lambda j, now: format_span(now - j.meta.creation_ms) if j.meta.creation_ms else "",
            wide=True,
        ),
        Column("Reason", lambda j, _: j.status.reason, wide=True),
        Column("Message", lambda j, _: j.status.message, wide=True),
    ),
)


# --- flows and templates -------------------------------------------------------------------------

_NAMESPACE: Final = Column("Namespace", lambda o, _: namespace_of(o))
JOB_FLOWS: Final = Table(
    lambda obj: obj,
    (
        _NAME,
        _NAMESPACE,
        Column("Phase", lambda o, _: _decode_flow(o).status.phase),
        Column("Age", format_object_age),
        Column("Jobs", lambda o, _: len(_decode_flow(o).flows), wide=True),
        Column("Pending", lambda o, _: len(_decode_flow(o).status.pending), wide=True),
        Column("Running", lambda o, _: len(_decode_flow(o).status.running), wide=True),
        Column("Completed", lambda o, _: len(_decode_flow(o).status.completed), wide=True),
        Column("Failed", lambda o, _: len(_decode_flow(o).status.failed), wide=True),
        Column("Retain", lambda o, _: _decode_flow(o).retain, wide=True),
    ),
)
JOB_TEMPLATES: Final = Table(
    lambda obj: obj,
    (
        _NAME,
        _NAMESPACE,
        Column("Queue", lambda o, _: _decode_template(o).job.queue, wide=True),
        Column("Replicas", lambda o, _: _decode_template(o).job.num_pods, wide=True),
        Column("Min", lambda o, _: _decode_template(o).job.min_available, wide=True),
        Column("Age", format_object_age, wide=True),
    ),
)


def _decode_flow(obj: Raw) -> Any:  # noqa: ANN401  the value is a JobFlow
    return parse_jobflow(obj)[0]


def _decode_template(obj: Raw) -> Any:  # noqa: ANN401  the value is a JobTemplate
    return parse_jobtemplate(obj)[0]


# --- pods ----------------------------------------------------------------------------------------


def _read_label(pod: Raw, key: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(key) or "")


PODS: Final = Table(
    lambda obj: obj,
    (
        _NAME,
        Column("Ready", lambda p, _: ready_containers(p)),
        Column("Status", lambda p, _: status_of_pod(p)),
        Column("Restart", lambda p, _: restarts_of(p)),
        Column("Age", format_object_age),
        Column("Node", lambda p, _: _spec(p).get("nodeName"), wide=True),
        Column("Job", lambda p, _: _read_label(p, wellknown.JOB_NAME), wide=True),
        Column("Task", lambda p, _: _read_label(p, wellknown.TASK_SPEC), wide=True),
        Column("Queue", lambda p, _: queue_of_pod(p), wide=True),
    ),
)


def queue_of_pod(pod: Raw) -> str:
    """Return the queue in a pod's label or annotations; empty if the pod names none."""
    annotations = pod["metadata"].get("annotations") or {}
    named = _read_label(pod, wellknown.POD_QUEUE_NAME) or annotations.get(wellknown.QUEUE_NAME)
    return str(named or annotations.get(wellknown.POD_QUEUE_NAME) or "")


def with_positions(table: Table, places: Mapping[tuple[str, str], str]) -> Table:
    """Return the job table with an additional column for queue positions, after the phase."""
    column = Column("Position", lambda job, _: places.get((job.meta.namespace, job.meta.name)))
    at = [c.heading for c in table.columns].index("Phase") + 1
    return Table(table.read, (*table.columns[:at], column, *table.columns[at:]))


TABLES: Final = {
    kinds.QUEUE: QUEUES,
    kinds.JOB: JOBS,
    kinds.JOB_FLOW: JOB_FLOWS,
    kinds.JOB_TEMPLATE: JOB_TEMPLATES,
    kinds.POD: PODS,
}
