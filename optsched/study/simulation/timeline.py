"""The timeline of a replay: when tasks were on nodes and when gangs ran, as data for charts.

The timeline is built from the record of the replay, event by event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import WHOLE, GpuBook, gpu_milli, gpus_of, milli_on
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
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.cluster.trace import Trace
    from optsched.study.simulation.record import Event

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_N = TypeVar("_N", int, float)
STRETCHES: Final = 120
QUEUES: Final = 7
OTHERS: Final = "other queues"


def series_of(timeline: Timeline) -> dict[str, Any]:
    """Return the percentiles 0 to 100 of the gangs' times, and queue shares over time, as JSON."""
    done = [job.done_ms - job.submit_ms for job in timeline.jobs if job.done_ms is not None]
    waited = [job.runs[0].from_ms - job.submit_ms for job in timeline.jobs if job.runs]
    times: dict[str, list[int]] = {}
    for job in timeline.jobs:
        times.setdefault(timeline.queues[job.queue], []).append(job.waited_ms(timeline.end_ms))
    return {
        "jct_s": percentiles(done),
        "queueing_s": percentiles(waited),
        # The fractions of gangs whose times are included in `jct_s` and in `queueing_s`.
        "jct_part": len(done) / max(len(timeline.jobs), 1),
        "queueing_part": len(waited) / max(len(timeline.jobs), 1),
        "waited_s": {queue: percentiles(times[queue]) for queue in sorted(times)},
        "end_ms": timeline.end_ms,
        "unit": timeline.lanes.unit,
        "held": _gpu_shares_by_queue(timeline),
    }


def bounded_gap(value: int, bound: int) -> float:
    """Return |bound − value| / max(|bound|, |value|), and 0 if both are 0.

    If value and bound have the same sign, the gap is at most 1, so gaps can be averaged over levels
    and sessions. The result of the function `relative_gap` has no such limit if the value is small.
    """
    return abs(bound - value) / max(abs(bound), abs(value), 1)


def nearest_rank(ordered: Sequence[_N], percent: int) -> _N:
    """Return the nearest-rank percentile of a non-empty sequence of sorted values."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def percentiles(times_ms: Iterable[int]) -> list[float]:
    """Return the nearest-rank percentiles 0 to 100 in seconds; empty if there are no times."""
    ordered = sorted(times_ms)
    return [nearest_rank(ordered, p) / 1000 for p in range(101)] if ordered else []


def _gpu_shares_by_queue(timeline: Timeline) -> dict[str, list[float]]:
    """Return each queue's mean fraction of all GPUs in each time bin.

    The queues that hold the least capacity are merged into `OTHERS`. In clusters without GPUs, the
    fractions refer to all CPUs.
    """
    weight: Counter[int] = Counter()
    for stay in timeline.stays:
        held_ms = stay.milli * len(stay.lanes) * (stay.to_ms - stay.from_ms)
        weight[timeline.jobs[stay.job].queue] += held_ms
    order = sorted(weight, key=lambda q: (-weight[q], timeline.queues[q]))
    own = len(order) if len(order) <= QUEUES + 1 else QUEUES
    row = {queue: min(i, own) for i, queue in enumerate(order)}
    names = [*(timeline.queues[q] for q in order[:own]), *([OTHERS] if own < len(order) else [])]
    spans = column([s.from_ms for s in timeline.stays]), column([s.to_ms for s in timeline.stays])
    amounts = np.array([s.milli * len(s.lanes) for s in timeline.stays], dtype=np.float64)
    rows = column([row[timeline.jobs[s.job].queue] for s in timeline.stays])
    edges = np.linspace(0, timeline.end_ms, STRETCHES + 1)
    found = bin_means(spans, amounts, rows, len(names), edges) / (timeline.lanes.total_milli or 1)
    return dict(zip(names, found.round(4).tolist(), strict=True))


def bin_means(
    spans: tuple[Ints, Ints], amounts: Floats, rows: Ints, num_rows: int, edges: Floats
) -> Floats:
    """Return the mean capacity held in each time bin, per row, shape (num_rows, bins).

    `spans` holds the start and the end of each interval. In interval i, row `rows[i]` of the result
    holds the capacity `amounts[i]`. `edges` holds the bin edges in ascending order.
    """
    begins, ends = spans
    widths = np.diff(edges)
    last = len(widths) - 1
    first = np.clip(np.searchsorted(edges, begins, "right") - 1, 0, last)
    final = np.clip(np.searchsorted(edges, ends, "left") - 1, 0, last)
    found = np.zeros((num_rows, len(widths)))
    inside = first >= final
    np.add.at(
        found, (rows[inside], first[inside]), (amounts * (ends - begins))[inside].astype(float)
    )
    over = ~inside
    np.add.at(found, (rows[over], first[over]), (amounts * (edges[first + 1] - begins))[over])
    np.add.at(found, (rows[over], final[over]), (amounts * (ends - edges[final]))[over])
    change = np.zeros((num_rows, len(widths) + 1))
    np.add.at(change, (rows[over], first[over] + 1), amounts[over])
    np.add.at(change, (rows[over], final[over]), -amounts[over])
    found += change.cumsum(axis=1)[:, :-1] * widths
    result: Floats = found / widths
    return result


def at_instants(
    spans: tuple[Ints, Ints], amounts: Floats, rows: Ints, num_rows: int, instants: Ints
) -> Floats:
    """Return the total capacity held at each instant, per row, shape (num_rows, instants).

    The arguments have the same meaning as in `bin_means`; an interval does not contain its end.
    """
    change = np.zeros((num_rows, len(instants) + 1))
    np.add.at(change, (rows, np.searchsorted(instants, spans[0], "left")), amounts)
    np.add.at(change, (rows, np.searchsorted(instants, spans[1], "left")), -amounts)
    result: Floats = change.cumsum(axis=1)[:, :-1]
    return result


def column(values: Sequence[Any]) -> Ints:
    """Return integers as an int64 array, even if the sequence is empty."""
    return np.array(values, dtype=np.int64)


GOES_ON: Final = ""
"""The value of `why` for a stay or run that has not ended at the end of the timeline."""
DONE: Final = "finish"
MOVED: Final = "move"

GPU_UNIT: Final = "GPU"
CPU_UNIT: Final = "CPU"


class Stay(NamedTuple):
    """A stay of a task on a node, from its placement until it leaves the node."""

    job: int  # Index of the task's job in `Timeline.jobs`.
    task: str
    node: int
    lanes: tuple[int, ...]  # Lanes (GPUs) of the node that the task holds; see `Lanes`.
    milli: int  # Capacity held in each lane, in thousandths of a GPU or CPU.
    shape: int  # Index of the task's request in `Timeline.shapes`.
    from_ms: int
    to_ms: int
    why: str  # Why the stay ended: `finish`, `move`, `node`, the evicting action, or `GOES_ON`.


class Run(NamedTuple):
    """A run of a gang, in which at least its minimum number of tasks is placed."""

    from_ms: int
    to_ms: int
    why: str
    by: str = ""


@dataclass(slots=True)
class Job:
    """The history of a gang."""

    key: str
    queue: int
    tasks: int
    # Total request of all tasks, in thousandths of a GPU (in clusters without GPUs, of a CPU).
    size: int
    submit_ms: int
    runs: list[Run] = field(default_factory=list)
    done_ms: int | None = None  # Time at which the gang finished, or None.

    def start_ms(self) -> int | None:
        """Return the time of the gang's first start, or None if the gang never ran."""
        return self.runs[0].from_ms if self.runs else None

    @property
    def is_running(self) -> bool:
        """Whether the gang is running at the end of the timeline."""
        return bool(self.runs) and self.runs[-1].why == GOES_ON

    def waited_ms(self, end_ms: int) -> int:
        """Return the total time that the gang waited for its minimum number of tasks."""
        return sum(b - a for a, b in self.waits(end_ms))

    def waits(self, end_ms: int) -> list[tuple[int, int]]:
        """Return the intervals in which the gang waited for its minimum number of tasks."""
        stops = [self.submit_ms, *(run.to_ms for run in self.runs)]
        starts = [*(run.from_ms for run in self.runs), end_ms]
        if self.done_ms is not None or self.is_running:
            stops, starts = stops[:-1], starts[:-1]
        return [(a, b) for a, b in zip(stops, starts, strict=True) if b > a]


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of each node: its GPUs, or a single lane for all its CPUs if no node has GPUs."""

    unit: str  # `GPU` or `CPU`.
    # Number of lanes of each node; in a cluster with GPUs, 0 for nodes without GPUs.
    number: tuple[int, ...]
    milli: tuple[int, ...]  # Capacity of a lane on each node, in thousandths of a GPU or CPU.
    # Capacity held by pods that the replay does not include: (node, lane, thousandths).
    others: tuple[tuple[int, int, int], ...] = ()

    @property
    def total_milli(self) -> int:
        """The total capacity of all lanes, in thousandths of a GPU or CPU."""
        return sum(n * m for n, m in zip(self.number, self.milli, strict=True))


@dataclass(frozen=True, eq=False)
class Timeline:
    """All stays and runs of a replay."""

    # Node names and queue names; other fields refer to them by index.
    nodes: tuple[str, ...]
    queues: tuple[str, ...]
    lanes: Lanes
    # Stays of tasks and histories of gangs, each sorted by start.
    stays: Sequence[Stay]
    jobs: Sequence[Job]
    # Each distinct task request, as fractions of the cluster's capacity, shape (requests,
    # resources).
    shapes: NDArray[np.float64]
    down: Sequence[tuple[int, int, int]]  # When nodes are down: (node index, from_ms, to_ms).
    end_ms: int  # End of the timeline; at least 1.
    # For each session: (at_ms, largest gap, mean gap) over the objective levels that have a bound.
    gaps: Sequence[tuple[int, float, float]] = ()
    # Why gangs are waiting at the end: (code, message) from the last session, keyed by gang.
    reasons: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class TimelineBuilder:
    """Builds the timeline of a replay, event by event."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._arrivals = {a.gang.key: a for a in trace.arrivals}
        self._node = {n.name: i for i, n in enumerate(trace.nodes)}
        self._queue = {q.name: i for i, q in enumerate(trace.queues)}
        self._lanes = lanes_of(trace.nodes)
        self._jobs: list[Job] = []
        self._number: dict[str, int] = {}
        self._tasks: dict[str, Task] = {}
        self._shapes: dict[TaskShape, int] = {}
        self._open: defaultdict[int, dict[str, Stay]] = defaultdict(dict)
        self._stays: list[Stay] = []
        self._down_since = {i: 0 for i, n in enumerate(trace.nodes) if not n.ready}
        self._down: list[tuple[int, int, int]] = []
        self._gaps: list[tuple[int, float, float]] = []
        self._now_ms = 0

    def add_event(self, event: Event) -> None:
        """Process the next event."""
        self._now_ms = event.at_ms
        match event:
            case Submit():
                gang = self._arrivals[event.job].gang
                is_cpu = self._lanes.unit == CPU_UNIT
                shapes = [t.shape for t in gang.tasks]
                size = sum(amount_of(s.request, CPU) if is_cpu else gpu_milli(s) for s in shapes)
                self._number[event.job] = len(self._jobs)
                queue = self._queue[event.queue]
                self._jobs.append(Job(event.job, queue, len(gang.tasks), size, event.at_ms))
                self._tasks.update((t.key, t) for t in gang.tasks)
            case Start() | Bind() | Move():
                self._place_tasks(event)
            case Release(job=key, tasks=tasks, cause=cause):
                self._end_stays(self._number[key], tasks, cause)
            case Stop(job=key, cause=cause, by=by):
                self._end(self._number[key], cause, by)
            case Finish(job=key):
                job = self._number[key]
                self._end(job, DONE)
                self._jobs[job].done_ms = self._now_ms
                del self._open[job]
                for task in self._arrivals[key].gang.tasks:
                    del self._tasks[task.key]
            case NodeTurn(node=name, change=change):
                node = self._node[name]
                if change != "up":
                    self._down_since.setdefault(node, self._now_ms)
                elif node in self._down_since:
                    self._down.append((node, self._down_since.pop(node), self._now_ms))
            case SessionRun(levels=levels):
                gaps = [bounded_gap(v, bound) for _, v, bound in levels if bound is not None]
                if gaps:
                    self._gaps.append((event.at_ms, max(gaps), sum(gaps) / len(gaps)))

    def build(
        self, end_ms: int | None = None, pending: Mapping[str, Reason] | None = None
    ) -> Timeline:
        """Return the timeline until the last event or `end_ms`, with the reasons in `pending`."""
        why = {key: (str(r.code.value), r.message) for key, r in (pending or {}).items()}
        end_ms = max(self._now_ms, end_ms or 0, 1)
        going = [s._replace(to_ms=end_ms) for each in self._open.values() for s in each.values()]
        stays = sorted([*self._stays, *going], key=lambda s: (s.from_ms, s.node, s.lanes, s.task))
        jobs = [
            replace(job, runs=[run if run.why else run._replace(to_ms=end_ms) for run in job.runs])
            for job in self._jobs
        ]
        down = [*self._down, *((node, at, end_ms) for node, at in self._down_since.items())]
        total: defaultdict[str, int] = defaultdict(int)
        for node in self._trace.nodes:
            for resource, amount in node.allocatable:
                total[resource] += amount
        names = sorted(resource for resource, amount in total.items() if amount)
        found = [[amount_of(s.request, r) / total[r] for r in names] for s in self._shapes]
        return Timeline(
            tuple(self._node),
            tuple(self._queue),
            self._lanes,
            stays,
            jobs,
            np.array(found, dtype=np.float64).reshape(len(found), len(names)),
            sorted(down),
            end_ms,
            tuple(self._gaps),
            why,
        )

    def _place_tasks(self, event: Start | Bind | Move) -> None:
        job = self._number[event.job]
        if isinstance(event, Move):
            self._end_stays(job, [p.task for p in event.places], MOVED)
        for place in event.places:
            shape = self._tasks[place.task].shape
            node = self._node[place.node]
            number = self._lanes.number[node]
            lanes = tuple(lane for lane in place.gpus if lane < number)
            each = milli_on(shape, self._trace.nodes[node]) // max(len(lanes), 1)
            lanes, milli = (lanes if each else ()), min(each, WHOLE)
            if self._lanes.unit == CPU_UNIT:
                lanes, milli = (0,), amount_of(shape.request, CPU)
            number = self._shapes.setdefault(shape, len(self._shapes))
            self._open[job][place.task] = Stay(
                job, place.task, node, lanes, milli, number, event.at_ms, event.at_ms, GOES_ON
            )
        if isinstance(event, Start):
            self._jobs[job].runs.append(Run(event.at_ms, event.at_ms, GOES_ON))

    def _end_stays(self, job: int, tasks: Iterable[str], why: str) -> None:
        for key in tasks:
            stay = self._open[job].pop(key)
            if self._now_ms > stay.from_ms:
                self._stays.append(stay._replace(to_ms=self._now_ms, why=why))

    def _end(self, job: int, why: str, by: str = "") -> None:
        self._end_stays(job, list(self._open[job]), why)
        if self._jobs[job].is_running:
            runs = self._jobs[job].runs
            runs[-1] = runs[-1]._replace(to_ms=self._now_ms, why=why, by=by)


def lanes_of(nodes: Sequence[Node]) -> Lanes:
    """Return the lanes of nodes, in the order of `nodes`."""
    number = tuple(gpus_of(n) for n in nodes)
    if not any(number):
        cpus = tuple(amount_of(n.allocatable, CPU) for n in nodes)
        held = (sum(amount_of(t.shape.request, CPU) for t in n.residents) for n in nodes)
        return Lanes(
            CPU_UNIT, (1,) * len(nodes), cpus, tuple((i, 0, m) for i, m in enumerate(held) if m)
        )
    others: list[tuple[int, int, int]] = []
    for i, node in enumerate(nodes):
        book = GpuBook(node)
        for task in node.residents:
            book.allocate(task.shape, task.shared_gpus)
        others += [(i, lane, WHOLE - free) for lane, free in enumerate(book.free) if free < WHOLE]
    return Lanes(GPU_UNIT, number, (WHOLE,) * len(nodes), tuple(others))
