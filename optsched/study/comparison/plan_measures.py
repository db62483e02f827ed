"""Measures of plans, such as allocation and fairness, that can be compared between models."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.cluster.amounts import amount_of
from optsched.cluster.decisions import Allocate, Evict, Nominate, relative_gap
from optsched.cluster.gpu_accounting import WHOLE, GpuBook, gpus_of, vgpu_milli
from optsched.cluster.trace import Arrival, Trace
from optsched.study.simulation.record import TaskPlacement
from optsched.study.simulation.simulation_metrics import Fragmentation, Nearness, jain_index
from optsched.units import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task


@dataclass(frozen=True, slots=True)
class PlanMeasures:
    """Measures of a plan; undefined measures are None."""

    # Number of gangs with at least one bound pod, and number of bound pods.
    gangs: int
    pods: int
    nominated: int  # Number of nominated pods.
    waiting: int  # Number of gangs with at least one pending pod.
    # Number of pods that are evicted and not moved to another node, and number of moved pods.
    victims: int
    moved: int
    nodes: int  # Number of nodes on which at least one pod runs after the plan is executed.
    # Allocated fraction of all GPUs after the plan, or of all CPUs in clusters without GPUs.
    allocation: float | None
    # Fraction of the idle GPU capacity that a typical pod of the instance cannot use after the
    # plan; None if no GPU is idle. `fragmentation` is FGD's fragmentation F (ATC 2023, §3), divided
    # by the idle GPU capacity.
    fragmentation: float | None
    # Jain index (Σx)²/(n·Σx²) of the weighted dominant shares of queues with allocations or
    # requests (Jain et al. 1984; dominant shares as in Ghodsi et al., NSDI 2011).
    jain: float | None
    # Largest and smallest dominant share among the queues, as fractions of 1. The shares are not
    # divided by the queue weights.
    largest_share: float | None
    least_share: float | None
    # `topology_tier` is the tier of the lowest HyperNode that contains all bound pods of a gang.
    # `cross_leaf_pairs` is the number of pairs of a gang's pods in different leaf HyperNodes.
    # `topology_tier` and `cross_leaf_pairs` are means over gangs, and None if there are no
    # HyperNodes.
    topology_tier: float | None
    cross_leaf_pairs: float | None
    # Maximum relative gap over the objective levels; None if a level has no bound.
    gap: float | None


def measure_plan(snapshot: Snapshot, plan: Plan) -> PlanMeasures:
    """Return the measures of a plan; `snapshot` is the cluster for which the plan was computed."""
    bound = [a for a in plan.actions if isinstance(a, Allocate)]
    evicted = [a for a in plan.actions if isinstance(a, Evict)]
    after = _After(snapshot, plan)
    shares = after.shares()
    weights = {queue.name: max(queue.weight, 1) for queue in snapshot.queues}
    nearness = Nearness(snapshot.topology)
    by_gang: defaultdict[str, list[TaskPlacement]] = defaultdict(list)
    for action in bound:
        by_gang[action.gang].append(TaskPlacement(action.task, action.node))
    for places in by_gang.values():
        nearness.started(places)
    gaps = [
        None if level.bound is None else relative_gap(level.value, level.bound)
        for level in plan.certificate.levels
    ]
    known = [gap for gap in gaps if gap is not None]
    return PlanMeasures(
        gangs=len(by_gang),
        pods=len(bound),
        nominated=sum(isinstance(a, Nominate) for a in plan.actions),
        waiting=len(plan.pending),
        victims=sum(not a.to for a in evicted),
        moved=sum(bool(a.to) for a in evicted),
        nodes=sum(bool(tasks) for tasks in after.tasks.values()),
        allocation=after.allocation(),
        fragmentation=after.fragmentation(),
        jain=jain_index([share / weights.get(queue, 1) for queue, share in shares.items()]),
        largest_share=max(shares.values(), default=None),
        least_share=min(shares.values(), default=None),
        topology_tier=nearness.mean_tier,
        cross_leaf_pairs=nearness.mean_pairs,
        gap=max(known) if known and len(known) == len(gaps) else None,
    )


class _After:
    """The cluster after a plan is executed: pods per node, and GPU usage of ready nodes."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot = snapshot
        self._nodes = {n.name: n for n in snapshot.nodes}
        self.tasks: dict[str, list[Task]] = {n.name: [] for n in snapshot.nodes}
        to = {a.task: a.to for a in plan.actions if isinstance(a, Evict)}
        known: dict[str, Task] = {t.key: t for g in snapshot.gangs for t in g.tasks}
        for node in snapshot.nodes:
            for task in node.residents:
                place = to.get(task.key, node.name)
                if place in self.tasks:
                    self.tasks[place].append(task)
        for key, name in sorted(plan.binds.items()):
            self.tasks[name].append(known[key])
        self._placed_tasks = [task for tasks in self.tasks.values() for task in tasks]
        shares = {a.task: a.shared_gpus for a in plan.actions if isinstance(a, Allocate)}
        self._gpu_books = {n.name: GpuBook(n) for n in snapshot.nodes if n.ready}
        for name, book in self._gpu_books.items():
            for task in self.tasks[name]:
                book.allocate(task.shape, shares.get(task.key, task.shared_gpus))

    def shares(self) -> Mapping[str, float]:
        total = Counter[str]()
        for node in self._snapshot.nodes:
            total.update(dict(node.allocatable))
        held: dict[str, Counter[str]] = {g.queue: Counter() for g in self._snapshot.gangs}
        queue_of = {g.key: g.queue for g in self._snapshot.gangs}
        for task in self._placed_tasks:
            queue = queue_of.get(task.gang)
            if queue is not None:
                held[queue].update(dict(task.shape.request))
        return {
            queue: max((n / total[r] for r, n in amounts.items() if total[r]), default=0.0)
            for queue, amounts in sorted(held.items())
        }

    def allocation(self) -> float | None:
        gpus = sum(gpus_of(self._nodes[name]) for name in self._gpu_books)
        if gpus:
            used = 0
            for name, book in self._gpu_books.items():
                vgpus = (vgpu_milli(task.shape, self._nodes[name]) for task in self.tasks[name])
                used += WHOLE * len(book.free) - sum(book.free) + sum(vgpus)
            return used / (WHOLE * gpus)
        total = sum(amount_of(n.allocatable, CPU) for n in self._nodes.values())
        used = sum(amount_of(task.shape.request, CPU) for task in self._placed_tasks)
        return used / total if total else None

    def fragmentation(self) -> float | None:
        arrivals = tuple(Arrival(0, gang, None) for gang in self._snapshot.gangs if gang.tasks)
        idle = sum(sum(book.free) for book in self._gpu_books.values())
        if not idle or not arrivals:
            return None
        wasted = Fragmentation(Trace("", self._snapshot.nodes, (), arrivals))
        lost = 0.0
        for name, book in self._gpu_books.items():
            used = sum(amount_of(task.shape.request, CPU) for task in self.tasks[name])
            cpu_m = amount_of(self._nodes[name].allocatable, CPU) - used
            lost += wasted.fragment_milli(self._nodes[name], cpu_m, book.free)
        return lost / idle
