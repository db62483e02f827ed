"""Read the tables of published traces, and convert jobs to gang arrivals.

An invalid row is reported and skipped; all other rows are read. Time 0 is the first arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from optsched.api.wellknown import HOSTNAME, USER
from optsched.cluster.amounts import amounts
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import DEFAULT_QUEUE, ROOT_QUEUE, Gang, Node, Queue
from optsched.cluster.task import DeviceRequest, Task, TaskShape, TaskStatus
from optsched.cluster.trace import Arrival, Trace, TraceProblem, sound_trace
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.files.diagnostics import InstanceError
from optsched.units import GPU
from optsched.units.input_errors import why_unreadable
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found


NOTHING: Final = frozenset({"", "None", "none", "null", "NaN", "nan", "NULL", "N/A"})
"""Cell contents that are read as empty."""

_MISSING: Final = "is missing: the row ends before this column"
_NOT_A_COUNT: Final = "is not a whole number: write 0 or more"
_NOT_SECONDS: Final = "is not a number of seconds: write 0 or more"
_NOT_A_NUMBER: Final = "is not a number: write 0 or more"
_TOO_MUCH: Final = "is too large: write at most"
_NO_TIME: Final = "is not a time: write YYYY-MM-DD HH:MM:SS"
_LONGEST_S: Final = Decimal(10**12)


@dataclass(frozen=True, slots=True)
class Row:
    """One table row, with its location for problem reports.

    If a cell is invalid, the methods that read it report a problem and return 0, "" or None.
    """

    kind: str
    name: str
    where: str
    cells: Mapping[str, str | None]
    problems: list[TraceProblem]
    _before: int

    @property
    def is_sound(self) -> bool:
        """Whether no problem with the row has been reported yet."""
        return len(self.problems) == self._before

    def reject(self, column: str, message: str) -> None:
        """Report a problem with a cell; `message` states the error and the accepted values."""
        value = self.cells.get(column)
        self.problems.append(
            TraceProblem(
                self.kind,
                self.name,
                column,
                None if value is None else repr(value),
                message,
                self.where,
            )
        )

    def has_value(self, column: str) -> bool:
        """Return whether a cell has a value."""
        return (self.cells.get(column) or "").strip() not in NOTHING

    def require(self, column: str) -> None:
        """Report a problem if the row ends before a column; an empty cell is accepted."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)

    def text(self, column: str) -> str:
        """Return the content of a cell; an empty cell is reported."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
        elif not self.has_value(column):
            self.reject(column, "is empty")
        return (self.cells.get(column) or "").strip()

    def number(self, column: str, message: str = _NOT_A_NUMBER, most: int | None = None) -> Decimal:
        """Parse a cell as a non-negative number."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
            return Decimal(0)
        found = parse_decimal(self.cells[column] or "")
        if found is None or not 0 <= found <= _LONGEST_S:
            self.reject(column, message)
        elif most is not None and found > most:
            self.reject(column, f"{_TOO_MUCH} {most}")
        else:
            return found
        return Decimal(0)

    def integer(self, column: str, most: int | None = None) -> int:
        """Parse a cell as a non-negative integer, which may be written as `4.0`."""
        found = self.number(column, _NOT_A_COUNT, most)
        if found == int(found):
            return int(found)
        self.reject(column, _NOT_A_COUNT)
        return 0

    def milliseconds(self, column: str) -> int:
        """Parse a cell as a number of seconds, and convert it to milliseconds."""
        return round(self.number(column, _NOT_SECONDS) * 1000)

    def instant_ms(self, column: str) -> int:
        """Parse a cell as date and time to ms since 1970; the default time zone is UTC."""
        if self.cells.get(column) is None:
            self.reject(column, _MISSING)
            return 0
        found = instant_ms(self.cells[column] or "")
        if found is None:
            self.reject(column, _NO_TIME)
        return found or 0


def instant_ms(text: str) -> int | None:
    """Parse a time, with or without a UTC offset; return ms since 1970, or None if invalid.

    The format is `YYYY-MM-DD HH:MM:SS`. A suffix `PST` or `PDT` is ignored, because either all
    times in a trace have a suffix or none has one.
    """
    try:
        found = datetime.fromisoformat(text.removesuffix(" PST").removesuffix(" PDT").strip())
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a CSV table that has one row per line and no quoted cells.

    An invalid line does not affect other lines.

    Attributes
    ----------
    kind
        What a row describes, such as Job.
    columns
        Names of the required columns.
    name
        Name of the column that names the row.
    delimiter
        Separator between the cells in a line.
    is_headless
        True if the table may lack a header. A line that starts with the name of the first column
        is skipped as a header.
    """

    kind: str
    columns: tuple[str, ...]
    name: str
    delimiter: str = ","
    is_headless: bool = False

    def read(self, file: Path, problems: list[TraceProblem]) -> Iterator[Row]:
        """Yield the rows of a file.

        Raises
        ------
        InstanceError
            The file does not exist, is not text, or lacks columns.

        """
        try:
            with file.open(encoding="utf-8-sig") as lines:
                yield from self._rows(lines, file, problems)
        except (OSError, UnicodeDecodeError) as e:
            what = f"this list of {self.kind.lower()}s"
            message = f"{file}: {what} cannot be read: {why_unreadable(e)}"
            raise InstanceError(message) from e

    def _rows(
        self, lines: Iterable[str], file: Path, problems: list[TraceProblem]
    ) -> Iterator[Row]:
        header: Sequence[str] | None = self.columns if self.is_headless else None
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split(self.delimiter)
            if header is None:
                header = [cell.strip() for cell in cells]
                missing = ", ".join(c for c in self.columns if c not in header)
                if missing:
                    kind = self.kind.lower()
                    raise InstanceError(
                        f"{file}: not a list of {kind}s: it has no column {missing}"
                    )
                continue
            if not any(cells) or (self.is_headless and cells[0] == self.columns[0]):
                continue
            named: dict[str, str | None] = dict.fromkeys(self.columns)
            named.update(zip(header, cells, strict=False))
            name = (named.get(self.name) or "").strip()
            where = f"{file.name}:{number}"
            yield Row(self.kind, name, where, named, problems, len(problems))
        if header is None:
            raise InstanceError(f"{file}: this list of {self.kind.lower()}s is empty")


MOST_NODES: Final = 100_000
"""Maximum number of nodes in a trace: twenty times the Kubernetes limit on nodes per cluster."""

MOST_TASKS: Final = 150_000
"""Maximum number of tasks in a job: the Kubernetes limit on pods per cluster."""

_NO_NAME: Final = "is empty: every job needs a name"


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A group of equal tasks in a job.

    Attributes
    ----------
    role
        The role of the tasks; empty if the job has no roles.
    number
        The number of equal tasks.
    demands
        Request of one task in base units, keyed by resource.
    gpu_milli
        Share of one GPU that each task requests, in thousandths; 0 if none.
    models
        GPU models that the tasks accept; empty for any model.

    """

    number: int
    demands: Mapping[str, int]
    role: str = ""
    gpu_milli: int = 0
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job in a trace.

    Attributes
    ----------
    at_ms
        Time at which the job was submitted, in ms on the trace's clock.
    duration_ms
        Run time in ms, or None if the job was still running when the trace ended.
    queue
        The queue to which the job was submitted.
    user
        The user who submitted the job; empty if the trace does not name users.
    task_groups
        The tasks of the job, which must all start together.

    """

    name: str
    at_ms: int
    duration_ms: int | None
    task_groups: tuple[TaskGroup, ...]
    queue: str = DEFAULT_QUEUE
    user: str = ""
    where: str = ""


def equal_tasks(num_tasks: int, demands: Mapping[str, int]) -> tuple[TaskGroup, ...]:
    """Divide the amounts in `demands` among `num_tasks` tasks as equally as possible.

    Tasks with larger requests come first.
    """
    if not num_tasks:
        return ()
    split = {resource: divmod(amount, num_tasks) for resource, amount in demands.items()}
    # For each resource, the first `more` tasks request one unit more than the other tasks.
    ends = sorted({num_tasks, *(more for _, more in split.values() if more)})
    return tuple(
        TaskGroup(
            end - start,
            dict(amounts({name: each + (start < more) for name, (each, more) in split.items()})),
        )
        for start, end in pairwise((0, *ends))
    )


def equal_nodes(number: int, offers: Mapping[str, int]) -> tuple[Node, ...]:
    """Return nodes `node-00000`, `node-00001`, …, each with the allocatable amounts `offers`."""
    names = (f"node-{i:05d}" for i in range(number))
    return tuple(Node(name, amounts(offers), labels={HOSTNAME: name}) for name in names)


def require_nodes(
    file: Path, nodes: Sequence[Node], problems: Sequence[TraceProblem], wanted: str
) -> Sequence[Node]:
    """Return the nodes if there are any; otherwise raise InstanceError.

    `wanted` describes what the file must contain, for the error message.
    """
    if nodes:
        return nodes
    raise InstanceError(
        "\n".join([*map(str, problems), f"{file}: lists no nodes: it needs {wanted}"])
    )


def folder_name(folder: Path) -> str:
    """Return the name of a folder as given; if the path has no name, resolve the path first."""
    return folder.name if folder.name not in ("", "..") else folder.resolve().name


def build_trace(
    name: str,
    jobs: Iterable[TracedJob],
    nodes: Sequence[Node],
    problems: Sequence[TraceProblem],
    queues: Sequence[Queue] = (),
) -> Found:
    """Build a trace from jobs in the given order; time 0 is the arrival of the first job.

    Requests for a resource that no node offers are dropped. Jobs that request only resources that
    no node offers are skipped, and the number of skipped jobs is reported. `sound_trace` reports
    jobs that cannot be replayed.

    Raises
    ------
    InstanceError
        There are no nodes.

    """
    if not nodes:
        raise InstanceError(
            "\n".join([*map(str, problems), f"{name}: there are no nodes to replay it on"])
        )
    reported = list(problems)
    listed = list(jobs)
    first_ms = listed[0].at_ms if listed else 0
    # Time 0 is the first job's submission if the jobs are sorted by submission time.
    start_ms = first_ms if all(job.at_ms >= first_ms for job in listed) else 0
    factory = _ArrivalFactory(nodes, start_ms)
    arrivals = [found for job in listed if (found := factory.arrival(job, reported)) is not None]
    if factory.num_idle:
        several = f"{factory.num_idle} jobs are skipped: they request"
        subject = "1 job is skipped: it requests" if factory.num_idle == 1 else several
        message = f"{subject} nothing that the nodes offer"
        reported.append(TraceProblem("Job", "", "", None, message, name))
    unlisted = sorted({a.gang.queue for a in arrivals} - {q.name for q in queues})
    every = {q: Queue(q) for q in (DEFAULT_QUEUE, ROOT_QUEUE, *unlisted)}
    every |= {q.name: q for q in queues}
    sound, more = sound_trace(Trace(name, tuple(nodes), tuple(every.values()), tuple(arrivals)))
    if sound.arrivals and sound.arrivals[0].at_ms:
        # Earlier jobs were skipped, so all times are shifted: the first kept job arrives at time 0.
        shifted: list[Arrival] = []
        for arrival in sound.arrivals:
            at_ms = arrival.at_ms - sound.arrivals[0].at_ms
            tasks = tuple(replace(t, created_ms=at_ms) for t in arrival.gang.tasks)
            gang = replace(arrival.gang, created_ms=at_ms, waiting_since_ms=at_ms, tasks=tasks)
            shifted.append(replace(arrival, at_ms=at_ms, gang=gang))
        sound = replace(sound, arrivals=tuple(shifted))
    return sound, (*reported, *more)


class _ArrivalFactory:
    """A factory that converts jobs to arrivals.

    Tasks with equal requests and constraints share one `TaskShape` object.
    """

    def __init__(self, nodes: Sequence[Node], start_ms: int) -> None:
        self._start_ms = start_ms
        self._offered = {resource for node in nodes for resource, amount in node.allocatable}
        self._shapes: dict[tuple[object, ...], TaskShape] = {}
        self.num_idle = 0

    def arrival(self, job: TracedJob, problems: list[TraceProblem]) -> Arrival | None:
        """Return the arrival of a job, or None if the job has no name or no usable request."""
        if not job.name:
            problems.append(TraceProblem("Job", "", "name", "''", _NO_NAME, job.where))
            return None
        shaped = [(group, self._shape(group)) for group in job.task_groups if group.number]
        if not any(shape.request or shape.device for _, shape in shaped):
            self.num_idle += 1
            return None
        key = f"{DEFAULT_NAMESPACE}/{job.name}"
        at_ms = job.at_ms - self._start_ms
        tasks: list[Task] = []
        for group, shape in shaped:
            prefix = f"{key}-{group.role}-" if group.role else f"{key}-"
            tasks += [
                Task(
                    f"{prefix}{index}",
                    shape,
                    TaskStatus.PENDING,
                    gang=key,
                    role=group.role,
                    index=index,
                    created_ms=at_ms,
                )
                for index in range(len(tasks), len(tasks) + group.number)
            ]
        gang = Gang(
            key=key,
            queue=job.queue,
            min_member=len(tasks),
            created_ms=at_ms,
            waiting_since_ms=at_ms,
            tasks=tuple(tasks),
            annotations={USER: job.user} if job.user else {},
        )
        return Arrival(at_ms, gang, job.duration_ms, where=job.where)

    def _shape(self, group: TaskGroup) -> TaskShape:
        demands = {r: n for r, n in group.demands.items() if n and r in self._offered}
        milli = group.gpu_milli if GPU in self._offered else 0
        key = (amounts(demands), milli, group.models)
        if key not in self._shapes:
            self._shapes[key] = TaskShape(
                request=amounts(demands),
                node_affinity=model_affinity(group.models),
                device=DeviceRequest(1, milli) if milli else None,
            )
        return self._shapes[key]


def model_affinity(models: tuple[str, ...]) -> NodeSelector | None:
    """Return a node affinity for the given GPU models, or None if any model is accepted."""
    if not models:
        return None
    return NodeSelector((NodeTerm((Requirement(GPU_MODEL_LABEL, Operator.IN, models),)),))
