"""The events of a simulation in chronological order, and their representation as JSON lines.

Events contain no wall-clock times. Therefore the same trace, policy and seed always give the same
record, byte for byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable


class TaskPlacement(NamedTuple):
    """The node on which a task is placed, and the indices of the task's GPUs."""

    task: str
    node: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """A gang arrives."""

    at_ms: int
    job: str
    queue: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Tasks of a gang are bound; the gang stays below its minimum, or was already running."""

    at_ms: int
    job: str
    places: tuple[TaskPlacement, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A gang reaches its minimum number of tasks, and starts its first run or another run."""

    at_ms: int
    job: str
    run: int  # Number of the run; the first run of a gang has number 1.
    places: tuple[TaskPlacement, ...]  # Placements of the tasks bound in the same session.


@dataclass(frozen=True, slots=True)
class Release:
    """Tasks leave their nodes, and the gang continues to run or to wait without them."""

    at_ms: int
    job: str
    tasks: tuple[str, ...]
    cause: str
    by: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A running gang falls below its minimum; its tasks leave their nodes, and the gang waits."""

    at_ms: int
    job: str
    # The action that evicted the tasks, and the key of the preemptor gang. After a node failure,
    # `cause` is `node` and `by` is the name of the node.
    cause: str
    by: str
    lost_ms: int  # Work that was lost and must be repeated, in milliseconds.
    # Work that checkpoints have saved in all runs of the gang so far, in milliseconds.
    kept_ms: int


@dataclass(frozen=True, slots=True)
class Move:
    """Tasks of a gang move to other nodes; the gang continues from its last checkpoint."""

    at_ms: int
    job: str
    places: tuple[TaskPlacement, ...]
    by: str
    lost_ms: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A gang finishes its work; all its tasks leave their nodes."""

    at_ms: int
    job: str


@dataclass(frozen=True, slots=True)
class NodeTurn:
    """A node fails (`down`) or recovers (`up`)."""

    at_ms: int
    node: str
    change: str


@dataclass(frozen=True, slots=True)
class SessionRun:
    """A session has run."""

    at_ms: int
    engine: str  # Solver engine that computed the plan.
    # Numbers of bound tasks, evicted tasks and waiting gangs.
    binds: int
    evictions: int
    waiting: int
    # The objective levels in the certificate: (name, value, bound or None).
    levels: tuple[tuple[str, int, int | None], ...]


Event: TypeAlias = Submit | Bind | Start | Release | Stop | Move | Finish | NodeTurn | SessionRun

_KINDS: Final[tuple[type[Any], ...]] = (
    Submit, Bind, Start, Release, Stop, Move, Finish, NodeTurn, SessionRun,
)  # fmt: skip
_NAMES: Final = {k: k.__name__.lower() for k in _KINDS} | {NodeTurn: "node", SessionRun: "session"}
_BY_NAME: Final = {name: kind for kind, name in _NAMES.items()}
_FIELDS: Final = {kind: tuple(f.name for f in fields(kind))[1:] for kind in _KINDS}


class RecordError(Exception):
    """Raised for a line that is not a valid event; the message quotes the line."""


def line_of(event: Event) -> str:
    """Return the JSON line of an event, without the line break."""
    kind = type(event)
    rest = {name: getattr(event, name) for name in _FIELDS[kind]}
    return write_json({"at": event.at_ms, "event": _NAMES[kind], **rest}, separators=(",", ":"))


def event_of(line: str) -> Event:
    """Parse an event from its JSON line; raises RecordError if the line is invalid."""
    try:
        given = json.loads(line)
        kind = _BY_NAME[given["event"]]
        values = [_frozen(name, given[name]) for name in _FIELDS[kind]]
        event: Event = kind(int(given["at"]), *values)
    except (ValueError, KeyError, TypeError) as e:
        raise RecordError(f"is not an event of a simulation: {line[:80]!r}") from e
    return event


def lines(events: Iterable[Event]) -> str:
    """Format events as text, with one JSON line per event."""
    return "".join(f"{line_of(event)}\n" for event in events)


def _frozen(name: str, value: Any) -> Any:  # noqa: ANN401  plain JSON
    if name == "places":
        return tuple(TaskPlacement(task, node, tuple(gpus)) for task, node, gpus in value)
    if name == "levels":
        return tuple(tuple(level) for level in value)
    return tuple(value) if isinstance(value, list) else value
