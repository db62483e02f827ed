"""Trace files in optsched's format, and the choice of a reader for published traces.

docs/simulate.md explains the fields of a trace file, and `SCHEMA` defines them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from optsched.api.crds import find_unknown_fields
from optsched.api.fields import (
    Fields,
    Schema,
    amounts,
    integer,
    listing,
    mapping,
    non_negative,
    record,
    text,
)
from optsched.api.wellknown import HOSTNAME, USER
from optsched.cluster.amounts import amounts as sorted_amounts
from optsched.cluster.snapshot import DEFAULT_QUEUE, Node, Queue, uniform_gang
from optsched.cluster.task import TaskShape
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace, TraceProblem, sound_trace
from optsched.formats.codec.nodes import offered_amounts
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.codec.queues import with_builtin_queues
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import line_of, read_document
from optsched.formats.traces.cluster_logs import (
    ACME_COLUMNS,
    GPU_NUMBERS,
    HELIOS_COLUMNS,
    PAI_JOBS,
    PAI_MACHINES,
    PAI_TASKS,
    PHILLY_MACHINES,
    read_acme,
    read_helios,
    read_pai,
    read_philly,
)
from optsched.formats.traces.gavel import THROUGHPUTS, read_gavel
from optsched.formats.traces.openb_cluster import (
    NODE_LIST,
    missing_columns,
    read_header,
    read_openb_trace,
)
from optsched.formats.traces.published_jobs import MOST_NODES, MOST_TASKS
from optsched.units import format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found
    from optsched.units import FieldError

_T = TypeVar("_T")
KIND: Final = "Trace"
_KIND_LINE: Final = re.compile(
    rf"""(?:^|[{{,\s])["']?kind["']?[ \t]*:[ \t]*["']?{KIND}["']?(?:[\s,}}]|$)""", re.M
)

_LABELS: Final = mapping("Labels.", {"type": "string"})
_SPAN: Final = "a duration such as 90s, 2h or 1h30m"

SCHEMA: Final[Schema] = record(
    "A trace.",
    ("nodes", "jobs"),
    apiVersion=text("optsched.io/v1alpha1."),
    kind=text("Trace."),
    name=text("Name of the trace in results."),
    nodes=listing(
        "Machines.",
        record(
            "One machine, or several equal machines.",
            ("name", "allocatable"),
            name=text("Name of the machine; if `count` is set, a number from 0 is appended."),
            count=integer("Number of equal machines; 1 if missing.", minimum=1, maximum=MOST_NODES),
            allocatable=amounts("Allocatable resources of each machine."),
            labels=_LABELS,
        ),
    ),
    queues=listing(
        "Queues; `default` always exists.",
        record(
            "One queue.",
            ("name",),
            name=text("Name of the queue."),
            weight=integer("Weight for the queue's deserved share.", minimum=1, default=1),
            priority=integer("Priority among queues."),
            parent=text("The parent queue.", default="root"),
            capability=amounts("Upper limit."),
            deserved=amounts("Deserved share."),
            guarantee=amounts("Guaranteed amounts."),
            dequeueStrategy=text(
                "fifo: no job overtakes the first waiting job; traverse: later jobs may.",
                enum=["traverse", "fifo"],
                default="traverse",
            ),
        ),
    ),
    jobs=listing(
        "Gangs, in the order of their arrival.",
        record(
            "One gang.",
            ("name", "at"),
            name=text("`namespace/name`, or the name alone."),
            at=text(f"Arrival time: {_SPAN} after the start of the trace."),
            duration=text(f"Run time, {_SPAN}; the gang runs forever if missing."),
            estimate=text(f"The user's estimate of the run time, {_SPAN}."),
            grace=text(f"Time that evicted pods take to terminate, {_SPAN}; 0s if missing."),
            queue=text("Queue of the gang.", default=DEFAULT_QUEUE),
            priority=integer("Higher priorities come first."),
            tasks=integer("Number of tasks.", default=1, minimum=1, maximum=MOST_TASKS),
            minAvailable=non_negative("Number of tasks that start together; all tasks if missing."),
            request=amounts("Request of one task."),
            nodeSelector=_LABELS,
            user=text("The user who is charged for the gang."),
            annotations=mapping("Annotations of the gang's PodGroup.", {"type": "string"}),
        ),
    ),
    nodeEvents=listing(
        "Failures and recoveries of nodes, ordered by time.",
        record(
            "A node fails or recovers.",
            ("at", "node", "change"),
            at=text(f"Time of the event: {_SPAN} after the start of the trace."),
            node=text("Name of the node."),
            change=text("Whether the node fails (`down`) or recovers (`up`).", enum=["down", "up"]),
        ),
    ),
)


def read_trace_file(path: Path) -> Found:
    """Read the trace in a file; return it, and the skipped objects with their file and line.

    Raises
    ------
    InstanceError
        The file cannot be read, is not a trace, or has nothing to replay.

    """
    source, document = read_document(path, KIND)
    errors: list[FieldError] = []
    unknown = list(find_unknown_fields(document.value, SCHEMA))
    fields = Fields(document.value, SCHEMA, "", errors)
    shapes: dict[TaskShape, TaskShape] = {}
    nodes = _sound_records(fields, "nodes", errors, _nodes)
    queues = _sound_records(fields, "queues", errors, _queue)
    arrivals = _sound_records(fields, "jobs", errors, lambda each, i: _arrival(each, i, shapes))
    trace = Trace(
        name=fields.text("name") or path.stem,
        nodes=tuple(chain.from_iterable(nodes)),
        queues=with_builtin_queues(list(queues)),
        arrivals=tuple(arrivals),
        node_events=tuple(_sound_records(fields, "nodeEvents", errors, _event)),
    )
    sound, found = sound_trace(trace)
    problems = (
        *(
            TraceProblem(
                "", "", e.path, None if e.value is None else repr(e.value), e.message, e.path
            )
            for e in (*errors, *unknown)
        ),
        *map(_with_field_names, found),
    )
    located = tuple(
        replace(p, where=f"{path.name}:{line_of(source, document, p.where)}") for p in problems
    )
    if not sound.nodes or not sound.arrivals:
        what = "job" if sound.nodes else "node"
        message = "\n".join([*map(str, located), f"{path}: there is no {what} to replay"])
        raise InstanceError(message)
    return sound, located


_FIELDS: Final = {
    "at_ms": "at",
    "duration_ms": "duration",
    "estimate_ms": "estimate",
    "grace_ms": "grace",
    "min_member": "minAvailable",
}
"""Names of fields in a trace file, keyed by attribute of `Arrival` or `Gang`."""


def _with_field_names(problem: TraceProblem) -> TraceProblem:
    field, value = _FIELDS.get(problem.path, problem.path), problem.value
    if problem.path.endswith("_ms") and isinstance(value, int):
        value = format_duration_ms(value)
    message = problem.message.replace("write milliseconds", "write a duration such as 90s")
    return replace(problem, path=field, value=value, message=message)


def is_trace_file(path: Path) -> bool:
    """Return whether the first 4096 characters of a file identify it as an optsched trace."""
    try:
        with path.open(encoding="utf-8") as file:
            head = file.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
    return _KIND_LINE.search(head) is not None


# --- objects --------------------------------------------------------------------------------------


def _sound_records(
    fields: Fields, name: str, errors: list[FieldError], make: Callable[[Fields, int], _T]
) -> Iterator[_T]:
    """Yield an object for each list item whose fields are all valid.

    An object with an invalid field is reported and skipped. The field gets no default, because a
    default request, number of tasks or queue would change the job.
    """
    known = len(errors)
    for number, each in enumerate(fields.records(name)):
        found = make(each, number)
        if len(errors) == known:
            yield found
        known = len(errors)


def _nonempty_text(fields: Fields, name: str) -> str:
    if fields.raw(name) == "":
        fields.reject(name, "", "is empty: write a value")
    return fields.text(name)


def _nodes(fields: Fields, _number: int) -> list[Node]:
    name, number = _nonempty_text(fields, "name"), fields.optional_integer("count")
    allocatable = offered_amounts(fields, "allocatable")
    labels = fields.texts_by_name("labels")
    width = len(str((number or 1) - 1))
    names = [name] if number is None else [f"{name}-{i:0{width}d}" for i in range(number)]
    return [Node(each, allocatable, labels={HOSTNAME: each, **labels}) for each in names]


def _queue(fields: Fields, _number: int) -> Queue:
    ceiling = fields.amounts("capability")
    return Queue(
        _nonempty_text(fields, "name"),
        weight=fields.integer("weight"),
        priority=fields.integer("priority"),
        parent=fields.text("parent"),
        capability=sorted_amounts(ceiling) if ceiling else None,
        deserved=sorted_amounts(fields.amounts("deserved")),
        guarantee=sorted_amounts(fields.amounts("guarantee")),
        is_fifo=fields.text("dequeueStrategy") == "fifo",
    )


def _arrival(fields: Fields, number: int, shapes: dict[TaskShape, TaskShape]) -> Arrival:
    name, at_ms = _nonempty_text(fields, "name"), fields.duration_ms("at")
    duration_ms, estimate_ms = fields.duration_ms("duration"), fields.duration_ms("estimate")
    shape = TaskShape(
        sorted_amounts(fields.amounts("request", whole_devices=True)),
        node_selector=tuple(sorted(fields.texts_by_name("nodeSelector").items())),
    )
    shape = shapes.setdefault(shape, shape)
    count, least = fields.integer("tasks"), fields.optional_integer("minAvailable")
    user, key = fields.text("user"), name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}"
    gang = replace(
        uniform_gang(key, shape, count, priority=fields.integer("priority")),
        queue=fields.text("queue"),
        min_member=count if least is None else least,
        annotations={**({USER: user} if user else {}), **fields.texts_by_name("annotations")},
    )
    grace_ms = fields.duration_ms("grace") or 0
    return Arrival(at_ms or 0, gang, duration_ms, estimate_ms, grace_ms, where=f"jobs[{number}]")


def _event(fields: Fields, number: int) -> NodeEvent:
    at_ms, node = fields.duration_ms("at"), _nonempty_text(fields, "node")
    change = _nonempty_text(fields, "change")
    turn = NodeChange(change) if change else NodeChange.DOWN  # `fields` reports an invalid one.
    return NodeEvent(at_ms or 0, node, turn, where=f"nodeEvents[{number}]")


# --- published traces -----------------------------------------------------------------------------

_WITH_NODES: Final[Mapping[str, Callable[[Path, Sequence[Node] | None], Found]]] = {
    "helios": read_helios,
    "openb": read_openb_trace,
    "pai": read_pai,
    "philly": read_philly,
}
_WITHOUT_NODES: Final[Mapping[str, Callable[[Path, Sequence[Node]], Found]]] = {
    "acme": read_acme,
    "gavel": read_gavel,
}
TRACE_FORMATS: Final = tuple(sorted([*_WITH_NODES, *_WITHOUT_NODES]))
"""Names of the formats that `read_published_trace` accepts."""
COMPANION_FILES: Final = (
    *(PAI_JOBS, PAI_TASKS, PAI_MACHINES, NODE_LIST, GPU_NUMBERS, THROUGHPUTS),
    *(PHILLY_MACHINES, f"{PHILLY_MACHINES}.csv"),
)
"""Names of the files that a reader finds in the folder of a published trace."""


_JOB_LISTS: Final[Mapping[str, Sequence[str]]] = {"helios": HELIOS_COLUMNS, "acme": ACME_COLUMNS}
"""Required columns of each trace format that is a single CSV file, most specific format first."""


def describe_unknown_table(path: Path) -> str:
    """Return why replaying a CSV file needs the option `--format`; empty if it does not."""
    missing = missing_columns(path)
    if not missing:
        return ""
    columns = read_header(path) or ()
    format_name = next((f for f, names in _JOB_LISTS.items() if {*names} <= {*columns}), "")
    remedy = f"its columns are those of {format_name}: give --format {format_name}"
    if not format_name:
        remedy = f"give --format for a published trace ({', '.join(TRACE_FORMATS)})"
    return (
        f"{path}: without --format, a CSV file is a pod list of openb, but this file has no column "
        f"{', '.join(missing)}; {remedy}"
    )


def read_published_trace(name: str, path: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read a published trace; return it, and the skipped objects with their file and line.

    Parameters
    ----------
    name
        A format in `TRACE_FORMATS`.
    path
        The trace file, or the folder of a `pai` trace.
    nodes
        The nodes for the replay, or None to use the nodes in the trace. `acme` and `gavel` traces
        list no nodes.

    Raises
    ------
    InstanceError
        The format is unknown, a file cannot be read, there is nothing to replay, or there are no
        nodes.

    """
    if name in _WITH_NODES:
        return _WITH_NODES[name](path, nodes)
    if name not in _WITHOUT_NODES:
        raise InstanceError(f"{name!r} is not a trace format: write {', '.join(TRACE_FORMATS)}")
    if nodes is None:
        raise InstanceError(
            f"{path}: a trace of {name} has no nodes: name a file that lists nodes with --nodes"
        )
    return _WITHOUT_NODES[name](path, nodes)
