"""Simulation metrics: job times, utilisation, fairness and lost work.

Each field of `Metrics` states its formula and source. All metrics are computed from a trace and the
record of its replay, so they can be recomputed from a stored record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from itertools import combinations
from typing import TYPE_CHECKING, Final

from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import WHOLE, GpuBook, gpu_milli, gpus_of, milli_on
from optsched.plugins.devices.fragmentation import find_typical_classes
from optsched.plugins.ordering.gang_order import read_waiting_ms
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
from optsched.study.simulation.timeline import bounded_gap, nearest_rank
from optsched.units import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import Task
    from optsched.cluster.topology import Topology
    from optsched.cluster.trace import Arrival, Trace
    from optsched.study.simulation.record import Event, TaskPlacement

UNFAIR: Final = 1.1
"""Finish-time fairness ρ above which a gang is treated unfairly (Shockwave, NSDI 2023)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and nearest-rank percentiles; at least p % of the values are at most percentile p."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class JobMetrics:
    """Numbers of jobs, and job times, for the jobs that arrive after the warm-up."""

    # Numbers of gangs that arrived, that ever ran, and that finished.
    jobs: int
    started: int
    finished: int
    makespan_s: float | None  # Time from the first arrival to the last end (Gavel, OSDI 2020).
    jct_s: Spread | None  # Job completion time (end − arrival) of finished jobs.
    queueing_s: Spread | None  # Time from a gang's arrival to its first start.


@dataclass(frozen=True)
class CapacityMetrics:
    """Fractions of the capacity of ready nodes, averaged over time."""

    # GPU time held by tasks, as a fraction of the GPU time of ready nodes (FGD, ATC 2023, averaged
    # over time). In clusters without GPUs, `allocation` is a fraction of the CPU time.
    allocation: float | None
    # Like `allocation`, but counts only the tasks of running gangs, and no work that is lost later.
    utilisation: float | None
    # Fraction of the idle GPU time that a typical task in the trace could not use; None without
    # GPUs. `fragmentation` is FGD's fragmentation F (ATC 2023, §3) over time, divided by the idle
    # GPU time.
    fragmentation: float | None


@dataclass(frozen=True)
class FairnessMetrics:
    """Fairness between queues and between jobs."""

    # Largest minus smallest weighted dominant share among the queues with waiting gangs, averaged
    # over time (dominant shares as in Ghodsi et al., NSDI 2011). `drf_distance` is 0 while fewer
    # than two queues have waiting gangs.
    drf_distance: float | None
    # Jain index (Σx)²/(n·Σx²) over the queues with arrivals, where x is a queue's weighted dominant
    # share over time (Jain et al. 1984).
    jain: float | None
    # Mean and maximum of the finish-time fairness ρ, and the fraction of jobs with ρ above 1.1. The
    # formula is ρ = completion time / (duration × max(1, N)), where N is the mean number of
    # unfinished jobs per GPU between the job's arrival and its end (Themis, NSDI 2020, and
    # Shockwave, NSDI 2023).
    ftf_mean: float | None
    ftf_worst: float | None
    ftf_unfair: float | None


@dataclass(frozen=True)
class Metrics(FairnessMetrics, CapacityMetrics, JobMetrics):
    """Metrics of one replay; a metric is None if it was not measured.

    Job metrics cover only jobs that arrive after the warm-up. Time averages cover the time from the
    end of the warm-up to the last arrival, because after the last arrival the cluster drains under
    every policy. If no job arrives after the warm-up, time averages cover the time until the end of
    the record.
    """

    # Number of times that a running gang was stopped for another gang, and by a node failure.
    preemptions: int
    node_failures: int
    wasted_gpu_hours: float  # GPU-hours of lost work, or CPU-hours in a cluster without GPUs.
    # Tier of the lowest HyperNode that contains all tasks of a gang, averaged over starts; None
    # without HyperNodes.
    topology_tier: float | None
    # Number of pairs of a gang's tasks in different leaf HyperNodes, averaged over starts.
    cross_leaf_pairs: float | None
    sla_misses: int  # Number of gangs that did not start within their SLA waiting time.
    sessions: int  # Number of sessions that ran after the warm-up.
    session_s: Spread | None  # Wall-clock times of the sessions, or None if no clock was read.
    # Gap |bound − value| / max(|bound|, |value|), averaged over all levels with a bound in all
    # sessions; None if no level has a bound.
    gap: float | None


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Arrival, first start and end of one gang, in milliseconds after the start of the trace."""

    name: str  # Key `namespace/name` of the gang.
    arrived_ms: int
    # Time of the first start, or None if the gang never ran. Time of the end, or None if the gang
    # has not finished.
    started_ms: int | None
    ended_ms: int | None
    # Finish-time fairness ρ of the gang; None if the gang is unfinished or has no duration.
    finish_time_fairness: float | None = None


def spread(values: Iterable[float]) -> Spread | None:
    """Return the mean and nearest-rank percentiles of values, or None if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None

    p50, p95, p99 = (nearest_rank(ordered, p) for p in (50, 95, 99))
    return Spread(sum(ordered) / len(ordered), p50, p95, p99)


def jain_index(values: Sequence[float]) -> float | None:
    """Return (Σx)²/(n·Σx²), or None if all values are zero.

    The Jain index is 1 for equal values, and 1/n if only one value is non-zero.
    """
    squares = sum(x * x for x in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


# --- fragmentation -------------------------------------------------------------------------------


class Fragmentation:
    """Computes the fragmentation F of nodes for a trace's typical tasks.

    Source: FGD §3, `NodeGpuShareFragAmount`.
    """

    def __init__(self, trace: Trace) -> None:
        shapes = Counter(t.shape for a in trace.arrivals for t in a.gang.tasks)
        kinds = find_typical_classes(shapes)
        total = sum(number for _, number in kinds)
        self._kinds = [(kind, number / total) for kind, number in kinds]
        self._known: dict[tuple[object, ...], float] = {}
        self._reach: dict[str, tuple[bool, ...]] = {}

    def fragment_milli(self, node: Node, cpu_m: int, free: Sequence[int]) -> float:
        """Return a node's idle thousandths of a GPU that a typical task cannot use, on average."""
        if node.name not in self._reach:
            self._reach[node.name] = tuple(
                all(node.labels.get(label) == value for label, value in kind.selector)
                and (kind.affinity is None or kind.affinity.matches(node.name, node.labels))
                for kind, _ in self._kinds
            )
        reach, sizes = self._reach[node.name], tuple(sorted(free))
        key = (reach, cpu_m, sizes)
        if key not in self._known:
            wasted = 0.0
            for (kind, share), may in zip(self._kinds, reach, strict=True):
                fitting = sum(size >= kind.milli for size in sizes)
                runs = may and kind.number and cpu_m >= kind.cpu_m and fitting >= kind.number
                wasted += share * sum(size for size in sizes if not runs or size < kind.milli)
            self._known[key] = wasted
        return self._known[key]


# --- events and sums over time -------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Job:
    arrival: Arrival
    submit_ms: int
    counts: bool
    job_ms_per_gpu_before: float
    start_ms: int | None = None
    runs: bool = False
    places: dict[str, TaskPlacement] = field(default_factory=dict)


class Measuring:
    """Computes the metrics of a replay, event by event."""

    def __init__(self, trace: Trace, warm_up_ms: int = 0) -> None:
        self._warm_up_ms = warm_up_ms
        last_ms = trace.arrivals[-1].at_ms if trace.arrivals else 0
        self._until_ms = last_ms if last_ms > warm_up_ms else None
        self._now_ms = 0
        self._arrivals = {a.gang.key: a for a in trace.arrivals}
        self._tasks: dict[str, Task] = {}
        self._nodes = _Nodes(trace)
        self._topology = Nearness(trace.topology)
        self._queues = _Shares(trace)
        self._jobs: dict[str, _Job] = {}
        self._num_jobs, self._job_ms_per_gpu = 0, 0.0
        self._count: Counter[str] = Counter()
        self._terminating: list[tuple[int, str, Task, TaskPlacement]] = []
        self._gaps: list[float] = []
        self._times: list[JobTimes] = []

    @property
    def jobs(self) -> tuple[JobTimes, ...]:
        """The times of all measured gangs, in order of arrival, then of name."""
        waiting = [
            JobTimes(key, job.submit_ms, job.start_ms, None)
            for key, job in self._jobs.items()
            if job.counts
        ]
        return tuple(sorted([*self._times, *waiting], key=lambda j: (j.arrived_ms, j.name)))

    @property
    def num_finished(self) -> int:
        """The number of measured jobs that have finished so far."""
        return self._count["finished"]

    # --- events ----------------------------------------------------------------------------------

    def add_event(self, event: Event) -> None:
        """Process the next event."""
        # Release the resources of evicted pods whose grace period is over.
        while self._terminating and self._terminating[0][0] <= event.at_ms:
            leaves_ms, _, task, place = heappop(self._terminating)
            self._advance(leaves_ms)
            self._nodes.change(task, place, -1)
        self._advance(event.at_ms)
        match event:
            case Submit():
                arrival = self._arrivals[event.job]
                counts = self._counts(event.at_ms)
                self._jobs[event.job] = _Job(arrival, event.at_ms, counts, self._job_ms_per_gpu)
                self._tasks.update((t.key, t) for t in arrival.gang.tasks)
                self._num_jobs += 1
                self._queues.waits(arrival.gang, 1)
                if counts:
                    self._count["jobs"] += 1
            case Start() | Bind() | Move():
                self._place_tasks(event)
            case Release(job=key, tasks=tasks, cause=cause):
                job = self._jobs[key]
                self._end_tasks(job, tasks, 0 if cause == "node" else job.arrival.grace_ms)
            case Stop():
                job = self._jobs[event.job]
                self._count_lost_work(job, event.lost_ms, event.at_ms)
                grace_ms = 0 if event.cause == "node" else job.arrival.grace_ms
                self._end_tasks(job, list(job.places), grace_ms)
                job.runs = False
                self._queues.waits(job.arrival.gang, 1)
                if self._counts(event.at_ms):
                    self._count["node" if event.cause == "node" else "preempted"] += 1
            case Finish():
                self._finish(event)
            case NodeTurn(node=node, change=change):
                self._nodes.mark_node(node, is_up=change == "up")
            case SessionRun():
                self._count["sessions"] += self._counts(event.at_ms)
                for _, value, bound in event.levels if self._counts(event.at_ms) else ():
                    if bound is not None:
                        self._gaps.append(bounded_gap(value, bound))

    def _counts(self, at_ms: int) -> bool:
        return at_ms >= self._warm_up_ms

    def _place_tasks(self, event: Start | Bind | Move) -> None:
        job = self._jobs[event.job]
        if isinstance(event, Move):
            self._count_lost_work(job, event.lost_ms, event.at_ms)
            self._end_tasks(job, [p.task for p in event.places])
        for place in event.places:
            task = self._tasks[place.task]
            job.places[place.task] = place
            self._nodes.change(task, place, 1)
            self._queues.add_task(job.arrival.gang, task, 1)
        if not isinstance(event, Start):
            if job.runs:
                sizes = (self._nodes.size(self._tasks[p.task], p) for p in event.places)
                self._nodes.ran += sum(sizes)
            return
        job.runs = True
        self._nodes.ran += self._size(job)
        self._queues.waits(job.arrival.gang, -1)
        if job.counts:
            self._topology.started(job.places.values())
        if job.start_ms is None:
            job.start_ms = event.at_ms
            if job.counts:
                self._count["started"] += 1
                self._count["sla"] += self._is_late(job)

    def _end_tasks(self, job: _Job, tasks: Iterable[str], grace_ms: int = 0) -> None:
        for key in tasks:
            place, task = job.places.pop(key), self._tasks[key]
            if grace_ms:
                heappush(self._terminating, (self._now_ms + grace_ms, key, task, place))
            else:
                self._nodes.change(task, place, -1)
            self._queues.add_task(job.arrival.gang, task, -1)
            if job.runs:
                self._nodes.ran -= self._nodes.size(task, place)

    def _count_lost_work(self, job: _Job, lost_ms: int, at_ms: int) -> None:
        if self._counts(at_ms):
            lost = lost_ms * self._size(job)
            self._nodes.over["lost"] += lost
            if self._until_ms is None or at_ms <= self._until_ms:
                self._nodes.over["lost in window"] += lost

    def _finish(self, event: Finish) -> None:
        job = self._jobs.pop(event.job)
        self._end_tasks(job, list(job.places))
        for task in job.arrival.gang.tasks:
            del self._tasks[task.key]
        self._num_jobs -= 1
        if not job.counts:
            return
        self._count["finished"] += 1
        jct_ms = event.at_ms - job.submit_ms
        alone_ms, rho = job.arrival.duration_ms or 0, None
        if alone_ms:
            mean = (self._job_ms_per_gpu - job.job_ms_per_gpu_before) / jct_ms if jct_ms else 0.0
            rho = jct_ms / (alone_ms * max(1.0, mean))
        self._times.append(JobTimes(event.job, job.submit_ms, job.start_ms, event.at_ms, rho))

    def _size(self, job: _Job) -> float:
        return sum(self._nodes.size(self._tasks[key], place) for key, place in job.places.items())

    # --- elapsed time ----------------------------------------------------------------------------

    def _advance(self, at_ms: int) -> None:
        """Advance to an instant; if the elapsed time is measured, add it to the time averages."""
        jobs_per_gpu = self._num_jobs / max(self._nodes.num_gpus, 1)
        self._job_ms_per_gpu += jobs_per_gpu * (at_ms - self._now_ms)
        end_ms = at_ms if self._until_ms is None else min(at_ms, self._until_ms)
        elapsed_ms = end_ms - max(self._now_ms, self._warm_up_ms)
        self._now_ms = at_ms
        if elapsed_ms > 0:
            self._nodes.pass_time(elapsed_ms)
            self._queues.pass_time(elapsed_ms)

    # --- results ---------------------------------------------------------------------------------

    def metrics(self, session_seconds: Sequence[float]) -> Metrics:
        """Return the metrics of all events so far."""
        nodes, over, jobs = self._nodes, self._nodes.over, self.jobs
        delays = [j.started_ms - j.arrived_ms for j in jobs if j.started_ms is not None]
        ended = [(j, j.ended_ms) for j in self._times if j.ended_ms is not None]
        rhos = (j.finish_time_fairness for j in self._times)
        rho = [each for each in rhos if each is not None]
        waiting = [j for j in self._jobs.values() if j.counts and j.start_ms is None]
        late = sum(self._is_late(j) for j in waiting)
        useful = over["ran"] - over["lost in window"]
        last_ms = max((end_ms for _, end_ms in ended), default=0)
        return Metrics(
            jobs=self._count["jobs"],
            started=self._count["started"],
            finished=self._count["finished"],
            makespan_s=(last_ms - jobs[0].arrived_ms) / 1000 if ended else None,
            jct_s=spread((end_ms - job.arrived_ms) / 1000 for job, end_ms in ended),
            queueing_s=spread(delay_ms / 1000 for delay_ms in delays),
            allocation=_fraction(over["held"], over["capacity"]),
            utilisation=_fraction(useful, over["capacity"]),
            fragmentation=_fraction(over["wasted"], over["idle"]) if nodes.has_plain else None,
            drf_distance=self._queues.distance,
            jain=self._queues.jain,
            ftf_mean=sum(rho) / len(rho) if rho else None,
            ftf_worst=max(rho, default=None),
            ftf_unfair=sum(r > UNFAIR for r in rho) / len(rho) if rho else None,
            preemptions=self._count["preempted"],
            node_failures=self._count["node"],
            wasted_gpu_hours=over["lost"] / WHOLE / 3_600_000,
            topology_tier=self._topology.mean_tier,
            cross_leaf_pairs=self._topology.mean_pairs,
            sla_misses=self._count["sla"] + late,
            sessions=self._count["sessions"],
            session_s=spread(session_seconds),
            gap=sum(self._gaps) / len(self._gaps) if self._gaps else None,
        )

    def _is_late(self, job: _Job) -> bool:
        limit_ms = read_waiting_ms(job.arrival.gang)
        return limit_ms is not None and self._now_ms - job.submit_ms > limit_ms


def _fraction(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None


class _Nodes:
    """Idle and allocated capacity in thousandths of a GPU, or of a CPU in clusters without GPUs.

    `num_gpus` is the total number of GPUs. `has_plain` is true if a node has GPUs that are not
    vGPUs; the fragmentation F is defined only for such GPUs.
    """

    def __init__(self, trace: Trace) -> None:
        self._node = {n.name: n for n in trace.nodes}
        self.num_gpus = sum(gpus_of(n) for n in trace.nodes)
        self._free: dict[str, list[int]] = {}
        self._cpu: dict[str, int] = {}
        self._up = {n.name for n in trace.nodes if n.ready}
        self._fragmentation = Fragmentation(trace)
        self._wasted: dict[str, float] = {}
        self.held = self.ran = 0.0
        for node in trace.nodes:
            book = GpuBook(node)
            for resident in node.residents:
                book.allocate(resident.shape, resident.shared_gpus)
            self._free[node.name] = book.free
            used = sum(amount_of(t.shape.request, CPU) for t in node.residents)
            self._cpu[node.name] = amount_of(node.allocatable, CPU) - used
        self.has_plain = any(self._free.values())
        self._capacity = sum(self._capacity_of(name) for name in self._up)
        self._idle = sum(sum(self._free[name]) for name in self._up)
        self._all_wasted = 0.0
        for name in sorted(self._up):
            self._update_fragmentation(name)
        sums = ("held", "ran", "capacity", "idle", "wasted", "lost", "lost in window")
        self.over = dict.fromkeys(sums, 0.0)

    def size(self, task: Task, place: TaskPlacement) -> int:
        """Return a task's request in thousandths of a GPU, or of a CPU if there are no GPUs."""
        if not self.num_gpus:
            return amount_of(task.shape.request, CPU)
        return milli_on(task.shape, self._node[place.node])

    def change(self, task: Task, place: TaskPlacement, sign: int) -> None:
        """Add a task to a node (`sign` 1) or remove it from the node (`sign` −1)."""
        node = place.node
        self.held += sign * self.size(task, place)
        self._cpu[node] -= sign * amount_of(task.shape.request, CPU)
        each = min(gpu_milli(task.shape), WHOLE)
        free = self._free[node]
        for gpu in place.gpus if each else ():
            free[gpu] -= sign * each
        if node in self._up:
            self._idle -= sign * each * len(place.gpus)
            self._update_fragmentation(node)

    def mark_node(self, name: str, *, is_up: bool) -> None:
        if is_up is (name in self._up):
            return
        sign = 1 if is_up else -1
        (self._up.add if is_up else self._up.discard)(name)
        self._capacity += sign * self._capacity_of(name)
        self._idle += sign * sum(self._free[name])
        self._update_fragmentation(name)

    def pass_time(self, elapsed_ms: int) -> None:
        self.over["held"] += self.held * elapsed_ms
        self.over["ran"] += self.ran * elapsed_ms
        self.over["capacity"] += self._capacity * elapsed_ms
        self.over["idle"] += self._idle * elapsed_ms
        self.over["wasted"] += self._all_wasted * elapsed_ms

    def _capacity_of(self, name: str) -> int:
        allocatable = self._node[name].allocatable
        return gpus_of(self._node[name]) * WHOLE if self.num_gpus else amount_of(allocatable, CPU)

    def _update_fragmentation(self, name: str) -> None:
        if not self._free[name]:
            return
        now = 0.0
        if name in self._up and any(self._free[name]):
            now = self._fragmentation.fragment_milli(
                self._node[name], self._cpu[name], self._free[name]
            )
        self._all_wasted += now - self._wasted.get(name, 0.0)
        self._wasted[name] = now


class _Shares:
    """The weighted dominant share of each queue, and its number of waiting gangs."""

    def __init__(self, trace: Trace) -> None:
        total: Counter[str] = Counter()
        for node in trace.nodes:
            total.update(dict(node.allocatable))
        self._total = {r: amount for r, amount in total.items() if amount}
        self._weight = {q.name: max(q.weight, 1) for q in trace.queues}
        self._held: dict[str, Counter[str]] = {q.name: Counter() for q in trace.queues}
        self._share = dict.fromkeys(self._held, 0.0)
        self._waiting: Counter[str] = Counter()
        self._arrived_queues: set[str] = set()
        self._over: dict[str, float] = dict.fromkeys(self._held, 0.0)
        self._distance = 0.0
        self._ms = 0

    def waits(self, gang: Gang, sign: int) -> None:
        """Record that a gang's wait for its minimum starts (`sign` 1) or ends (`sign` −1)."""
        self._waiting[gang.queue] += sign
        self._arrived_queues.add(gang.queue)

    def add_task(self, gang: Gang, task: Task, sign: int) -> None:
        """Record that a task is placed on (`sign` 1) or removed from (`sign` −1) a node."""
        held = self._held[gang.queue]
        for resource, amount in task.shape.request:
            held[resource] += sign * amount
        parts = (held[r] / self._total[r] for r in held if r in self._total)
        self._share[gang.queue] = max(parts, default=0.0) / self._weight[gang.queue]

    def pass_time(self, elapsed_ms: int) -> None:
        for queue in self._arrived_queues:
            self._over[queue] += self._share[queue] * elapsed_ms
        backlogged = [self._share[q] for q, n in self._waiting.items() if n > 0]
        if len(backlogged) > 1:
            self._distance += (max(backlogged) - min(backlogged)) * elapsed_ms
        self._ms += elapsed_ms

    @property
    def distance(self) -> float | None:
        return self._distance / self._ms if self._ms else None

    @property
    def jain(self) -> float | None:
        return jain_index([self._over[queue] for queue in sorted(self._arrived_queues)])


class Nearness:
    """Records how close to each other in the network a gang's tasks are when the gang starts."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._leaf = {node: h.name for h in topology.hypernodes for node in h.nodes}
        self._tiers: list[int] = []
        self._pairs: list[int] = []

    def started(self, places: Iterable[TaskPlacement]) -> None:
        """Record the placements of a gang that has just started."""
        if not self._topology.hypernodes:
            return
        leaves = [self._leaf.get(p.node, p.node) for p in places]
        number, by_name = Counter(leaves), self._topology.by_name
        chains: list[set[str]] = []
        for leaf in number:
            # Collect the names of the leaf HyperNode and its ancestors.
            chain, at = set[str](), leaf
            while at in by_name and at not in chain:
                chain.add(at)
                at = by_name[at].parent
            chains.append(chain)
        common = set.intersection(*chains) if chains else set()
        tiers = (by_name[name].tier for name in common)
        self._tiers.append(min(tiers, default=self._topology.top_tier))
        self._pairs.append(sum(a * b for a, b in combinations(number.values(), 2)))

    @property
    def mean_tier(self) -> float | None:
        """The metric that `Metrics.topology_tier` describes."""
        return sum(self._tiers) / len(self._tiers) if self._tiers else None

    @property
    def mean_pairs(self) -> float | None:
        """The metric that `Metrics.cross_leaf_pairs` describes."""
        return sum(self._pairs) / len(self._pairs) if self._pairs else None


def as_json(metrics: Metrics) -> dict[str, object]:
    """Return the metrics as JSON, keyed by name; a metric with percentiles is a nested object."""
    return asdict(metrics)
