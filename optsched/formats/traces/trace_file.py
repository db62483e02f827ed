"""Traces: the format of this project, and the choice of the reader for a file.

docs/simulate.md tells what each field means; `SCHEMA` says it for programs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.api.fields import (
    Fields,
    Schema,
    amounts,
    count,
    integer,
    listing,
    mapping,
    record,
    text,
)
from optsched.api.wellknown import HOSTNAME, USER
from optsched.cluster.amounts import amounts as sorted_amounts
from optsched.cluster.snapshot import DEFAULT_QUEUE, Gang, Node, Queue, uniform_gang
from optsched.cluster.task import TaskShape
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace, TraceProblem, sound_trace
from optsched.formats.codec.nodes import offered_amounts
from optsched.formats.codec.queues import with_builtin_queues
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import line_of, read_document, unknown_paths
from optsched.formats.traces.gavel import read_gavel
from optsched.formats.traces.helios import read_acme, read_helios
from optsched.formats.traces.openb_cluster import read_openb_trace
from optsched.formats.traces.pai import read_pai
from optsched.formats.traces.philly import read_philly
from optsched.formats.traces.published_jobs import MOST_NODES, MOST_TASKS
from optsched.units import parse_resource_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found
    from optsched.units import FieldError

KIND: Final = "Trace"
DEFAULT_NAMESPACE: Final = "default"

_LABELS: Final = mapping("Labels.", {"type": "string"})
_SPAN: Final = "a duration such as 90s, 2h or 1h30m"

SCHEMA: Final[Schema] = record(
    "A trace.",
    ("nodes", "jobs"),
    apiVersion=text("optsched.io/v1alpha1."),
    kind=text("Trace."),
    name=text("What it is called in results."),
    nodes=listing(
        "Machines.",
        record(
            "One machine, or several that are alike.",
            ("name", "allocatable"),
            name=text("Its name; with `count` names end in a number from 0 on."),
            count=integer(
                "How many of them; without it, the one of this name.", minimum=1, maximum=MOST_NODES
            ),
            allocatable=amounts("What pods may take."),
            labels=_LABELS,
        ),
    ),
    queues=listing(
        "Queues; `default` is always there.",
        record(
            "One queue.",
            ("name",),
            name=text("Its name."),
            weight=integer("For shares.", minimum=1, default=1),
            priority=integer("Among queues."),
            parent=text("The queue above it.", default="root"),
            capability=amounts("What it may have at most."),
            deserved=amounts("Its fair part."),
            guarantee=amounts("What is kept for it."),
            dequeueStrategy=text(
                "fifo: no job passes the first one that waits; traverse: later ones may.",
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
            at=text(f"When it arrives: {_SPAN} from the beginning."),
            duration=text(f"How long it runs, {_SPAN}; without it, forever."),
            estimate=text(f"What its user says about that, {_SPAN}."),
            grace=text(f"How long its pods stay once they are evicted, {_SPAN}; 0s if missing."),
            queue=text("The queue it demands from.", default=DEFAULT_QUEUE),
            priority=integer("Higher ones come first."),
            tasks=integer("How many tasks.", default=1, minimum=1, maximum=MOST_TASKS),
            minAvailable=count("Tasks that start together; all where it is missing."),
            request=amounts("What a task takes."),
            nodeSelector=_LABELS,
            user=text("Whom its use is charged to."),
            annotations=mapping("As on a PodGroup.", {"type": "string"}),
        ),
    ),
    nodeEvents=listing(
        "Failures, in the order of time.",
        record(
            "A node fails or comes back.",
            ("at", "node", "change"),
            at=text(f"When: {_SPAN} from the beginning."),
            node=text("Its name."),
            change=text("What happens.", enum=["down", "up"]),
        ),
    ),
)


def read_trace_file(path: Path) -> Found:
    """The trace in a file, and what was left out of it, with file and line.

    Raises
    ------
    InstanceError
        The file can not be read, is no trace, or nothing of it can be played.

    """
    source, document = read_document(path, KIND)
    errors: list[FieldError] = []
    unknown = list(unknown_paths(document.value, SCHEMA))
    trace = _trace(Fields(document.value, SCHEMA, "", errors), path.stem)
    sound, found = sound_trace(trace)
    problems = (
        *(
            TraceProblem(
                "", "", e.path, None if e.value is None else repr(e.value), e.message, e.path
            )
            for e in errors
        ),
        *(TraceProblem("", at, "", None, "is no field of a trace", at) for at in unknown),
        *found,
    )
    located = tuple(
        replace(p, where=f"{path.name}:{line_of(source, document, p.where)}") for p in problems
    )
    if not sound.nodes or not sound.arrivals:
        what = "job" if sound.nodes else "node"
        told = "\n".join([*map(str, located), f"{path}: there is no {what} to play it with"])
        raise InstanceError(told)
    return sound, located


def is_trace_file(path: Path) -> bool:
    """Whether a file is a trace of this kind, judged by its beginning."""
    try:
        with path.open(encoding="utf-8") as file:
            head = file.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
    return any(
        mark in head for mark in (f"kind: {KIND}\n", f'"kind": "{KIND}"', f'"kind":"{KIND}"')
    )


# --- parts ---------------------------------------------------------------------------------------


def _trace(fields: Fields, name: str) -> Trace:
    nodes = [node for each in fields.records("nodes") for node in _nodes(each)]
    queues = [_queue(each) for each in fields.records("queues")]
    shapes: dict[TaskShape, TaskShape] = {}
    jobs = enumerate(fields.records("jobs"))
    arrivals = tuple(a for i, each in jobs if (a := _arrival(each, i, shapes)) is not None)
    events = enumerate(fields.records("nodeEvents"))
    return Trace(
        name=fields.text("name") or name,
        nodes=tuple(nodes),
        queues=with_builtin_queues(queues),
        arrivals=arrivals,
        node_events=tuple(e for i, each in events if (e := _event(each, i)) is not None),
    )


def _nodes(fields: Fields) -> Iterator[Node]:
    name, number = fields.text("name"), fields.optional_integer("count")
    allocatable = offered_amounts(fields, "allocatable")
    labels = fields.texts_by_name("labels")
    if not name:
        return
    width = len(str((number or 1) - 1))
    names = [name] if number is None else [f"{name}-{i:0{width}d}" for i in range(number)]
    for each in names:
        yield Node(each, allocatable, labels={HOSTNAME: each, **labels})


def _queue(fields: Fields) -> Queue:
    ceiling = fields.amounts("capability")
    return Queue(
        fields.text("name"),
        weight=fields.integer("weight"),
        priority=fields.integer("priority"),
        parent=fields.text("parent"),
        capability=sorted_amounts(ceiling) if ceiling else None,
        deserved=sorted_amounts(fields.amounts("deserved")),
        guarantee=sorted_amounts(fields.amounts("guarantee")),
        is_fifo=fields.text("dequeueStrategy") == "fifo",
    )


def _arrival(fields: Fields, number: int, shapes: dict[TaskShape, TaskShape]) -> Arrival | None:
    name, at_ms = fields.text("name"), fields.duration_ms("at")
    duration_ms, estimate_ms = fields.duration_ms("duration"), fields.duration_ms("estimate")
    _, wrong = parse_resource_list(fields.raw("request"), "", whole_gpus=True)
    gang = _gang(fields, name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}", shapes)
    if wrong:
        return None  # is reported already: a job with another request is another job
    if not name or at_ms is None:
        return None
    if duration_ms is None and fields.raw("duration") is not None:
        return None  # reported already: a job with a bad duration is not taken to run forever
    grace_ms = fields.duration_ms("grace") or 0
    return Arrival(at_ms, gang, duration_ms, estimate_ms, grace_ms, where=f"jobs[{number}]")


def _gang(fields: Fields, key: str, shapes: dict[TaskShape, TaskShape]) -> Gang:
    shape = TaskShape(
        sorted_amounts(fields.amounts("request", whole_gpus=True)),
        node_selector=tuple(sorted(fields.texts_by_name("nodeSelector").items())),
    )
    shape = shapes.setdefault(shape, shape)
    number, least = fields.integer("tasks"), fields.optional_integer("minAvailable")
    user = fields.text("user")
    return replace(
        uniform_gang(key, shape, number, priority=fields.integer("priority")),
        queue=fields.text("queue"),
        min_member=number if least is None else least,
        annotations={**({USER: user} if user else {}), **fields.texts_by_name("annotations")},
    )


def _event(fields: Fields, number: int) -> NodeEvent | None:
    at_ms, node, change = fields.duration_ms("at"), fields.text("node"), fields.text("change")
    if at_ms is None or not node or not change:
        return None
    return NodeEvent(at_ms, node, NodeChange(change), where=f"nodeEvents[{number}]")


# --- read -----------------------------------------------------------------------------------------

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
"""Formats that `read_published_trace` knows."""


def read_published_trace(name: str, path: Path, nodes: Sequence[Node] | None = None) -> Found:
    """A trace that others published.

    Parameters
    ----------
    name
        One of `TRACE_FORMATS`.
    path
        Its file, for `pai` its folder.
    nodes
        The cluster to replay on; None for the nodes of the trace. Traces of `acme` and `gavel` have
        none.

    Returns
    -------
    Found
        The trace, and what was left out of it and why, by file and row.

    Raises
    ------
    InstanceError
        An unknown format, files that can not be read, nothing that could be played, or no nodes.

    """
    if name in _WITH_NODES:
        return _WITH_NODES[name](path, nodes)
    if name not in _WITHOUT_NODES:
        raise InstanceError(f"{name!r} is no format of traces: write {', '.join(TRACE_FORMATS)}")
    if nodes is None:
        raise InstanceError(
            f"{path}: a trace of {name} has no nodes of its own: name a file with nodes by --nodes"
        )
    return _WITHOUT_NODES[name](path, nodes)
