"""GPU fragmentation: the mean over typical tasks of the idle GPU capacity that a task cannot use.

Mathematics: models/formulation/fragmentation.md. Weng et al., "Beware of Fragmentation", USENIX ATC
2023, section 3; functions `NodeGpuShareFragAmount` and `GetTypicalPods` of the paper's simulator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.amounts import amount_of
from optsched.cluster.decisions import Sense
from optsched.cluster.gpu_accounting import WHOLE, share_milli
from optsched.cluster.selectors import Operator, Requirement
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, LevelKind, Plugin, read_whole
from optsched.plugins.devices.gpu_shares import (
    Devices,
    devices_left,
    find_free_devices,
    fullest_fit,
    shares_devices,
)
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.gang import first_task
from optsched.problem.linear import Expression
from optsched.units import CPU, GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.task import TaskShape
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import LiveScorer
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

    Labels: TypeAlias = tuple[tuple[str, str], ...]

TYPICAL = 0.95
"""Minimum fraction of all tasks that the typical GPU classes cover; rarer classes are ignored."""

SHARES = 1000
"""The sum of all weights of GPU classes; integer weights make the objective level an integer."""

_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A GPU class: the properties of a task that decide which GPUs it can use.

    The fields are the CPU request in milli-CPU, the number of GPUs, the thousandths used of each
    GPU, and the node selection.
    """

    cpu_m: int
    number: int
    milli: int
    selector: Labels = ()
    affinity: NodeSelector | None = None

    @classmethod
    def from_shape(cls, shape: TaskShape) -> GpuClass:
        """Return the GPU class of tasks with the given `TaskShape`."""
        cpu_m, part = amount_of(shape.request, CPU), share_milli(shape)
        number = 1 if part else amount_of(shape.request, GPU)
        milli = part or (WHOLE if number else 0)
        return cls(cpu_m, number, milli, shape.node_selector, shape.node_affinity)

    @property
    def size(self) -> tuple[int, int, int, str]:
        """The sort key among equally frequent GPU classes; the largest request comes first."""
        return (
            -self.number * self.milli,
            -self.cpu_m,
            -self.number,
            f"{self.selector}{self.affinity}",
        )


def find_typical_classes(number_of: Mapping[TaskShape, int]) -> list[tuple[GpuClass, int]]:
    """Return (GPU class, task count) pairs of the classes that cover `TYPICAL` of all tasks.

    The result contains the most frequent classes, in descending order of frequency.
    """
    gpu_classes: Counter[GpuClass] = Counter()
    for shape, number in number_of.items():
        gpu_classes[GpuClass.from_shape(shape)] += number
    found: list[tuple[GpuClass, int]] = []
    missing = gpu_classes.total() * TYPICAL
    for gpu_class, number in sorted(gpu_classes.items(), key=lambda k: (-k[1], k[0].size)):
        if missing <= 0:
            break
        found.append((gpu_class, number))
        missing -= number
    return found


@dataclass(frozen=True, eq=False, slots=True)
class Target:
    """The typical GPU classes as arrays over M classes.

    Attributes
    ----------
    share
        (M,) weight of each GPU class.
    cpu_m, number, milli
        (M,) requests of one task: milli-CPU, number of GPUs, and thousandths of each GPU.
    reach
        (M, N) True if tasks of a GPU class may run on a node.

    """

    share: I64
    cpu_m: I64
    number: I64
    milli: I64
    reach: Bool

    @classmethod
    def from_classes(cls, problem: Problem, gpu_classes: Iterable[tuple[GpuClass, int]]) -> Target:
        """Build the arrays from (GPU class, weight) pairs."""
        listed = list(gpu_classes)
        numbers = [(w, k.cpu_m, k.number, k.milli) for k, w in listed]
        share, cpu_m, number, milli = np.array(numbers, np.int64).reshape(-1, 4).T
        reach = np.ones((len(listed), problem.num_nodes), np.bool_)
        for selected, (gpu_class, _) in zip(reach, listed, strict=True):
            for key, value in gpu_class.selector:
                selected &= problem.columns.accepts(Requirement(key, Operator.IN, (value,)))
            if gpu_class.affinity is not None:
                selected &= problem.columns.selects(gpu_class.affinity)
        return cls(share, cpu_m, number, milli, reach)

    def waste(self, nodes: I64, cpu_m: I64, free: I64) -> I64:
        """Return the weighted waste (m,) of m nodes with idle CPU (m,) and idle GPUs (m, D).

        For a GPU class that does not fit on a node or requests no GPU, all idle GPU capacity of the
        node is waste. For a GPU class that fits, a GPU is waste if its idle capacity is smaller
        than the share that a task requests of each GPU.
        """
        idle = free[:, None, :]
        suffices = idle >= self.milli[:, None]
        runs = (suffices.sum(axis=2) >= self.number) & (cpu_m[:, None] >= self.cpu_m)
        runs &= self.reach[:, nodes].T & (self.number > 0)
        wasted = np.where(runs[:, :, None] & suffices, 0, idle).sum(axis=2)
        found: I64 = wasted @ self.share
        return found

    def total(self, cpu_m: I64, free: I64) -> int:
        """Return the sum of `waste` over all nodes, given idle CPU (N,) and GPUs (N, D)."""
        nodes = np.flatnonzero(free.any(axis=1))
        parts = np.array_split(nodes, len(nodes) // _AT_ONCE + 1)
        return sum(int(self.waste(n, cpu_m[n], free[n]).sum()) for n in parts)


def find_target(problem: Problem) -> Target:
    """Return the typical GPU classes of the running and pending tasks.

    The weights sum to `SHARES` and are rounded by the largest-remainder method.
    """
    snapshot = problem.snapshot
    running = (t for n in snapshot.nodes for t in n.residents)
    waiting = (t for g in snapshot.gangs for t in g.tasks if t.status is TaskStatus.PENDING)
    number_of = Counter(t.shape for t in running if t.status is not TaskStatus.RELEASING)
    number_of.update(t.shape for t in waiting)
    gpu_classes = find_typical_classes(number_of)
    total = sum(number for _, number in gpu_classes)
    shares = [number * SHARES // total for _, number in gpu_classes]
    remainder = [number * SHARES % total for _, number in gpu_classes]
    up = sorted(range(len(gpu_classes)), key=lambda i: (-remainder[i], i))
    for i in up[: SHARES - sum(shares)]:
        shares[i] += 1
    pairs = zip(gpu_classes, shares, strict=True)
    return Target.from_classes(problem, [(each, share) for (each, _), share in pairs if share])


@dataclass(frozen=True)
class Fragmentation(Rule):
    """Rule: tasks prefer the nodes on which they cause the least GPU fragmentation.

    Attributes
    ----------
    weight
        Points subtracted per thousandth of a GPU that becomes unusable.

    """

    name = "fragmentation"

    weight: int = 1

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return (
            _FragmentationScores(problem, self.weight)
            if self.weight and _has_gpus(problem)
            else None
        )

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[FragLevel]:
        """See `Rule`."""
        return [FragLevel()] if _has_gpus(problem) and problem.num_tasks else []


def _has_gpus(problem: Problem) -> bool:
    """Return whether ready nodes have idle GPUs, and tasks request GPUs or queues use them."""
    if not problem.derived(find_free_devices)[problem.ready].any():
        return False
    if problem.derived(shares_devices):
        return True
    at = problem.index(GPU)
    amounts = (problem.classes.request, problem.queues.allocated)
    return at >= 0 and any(bool(each[:, at].any()) for each in amounts)


def _column(problem: Problem, resource: str, amounts: I64) -> I64:
    at = problem.index(resource)
    return amounts[:, at] if at >= 0 else np.zeros(problem.num_nodes, np.int64)


# --- the level -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FragLevel:
    """The mean over typical tasks of the ready nodes' idle GPU capacity that a task cannot use."""

    name: str = "fragmentation"
    unit: str = "millionths of a GPU"
    sense: Sense = Sense.MIN

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        problem = outcome.problem
        free = left_devices(outcome)
        return problem.derived(find_target).total(_column(problem, CPU, outcome.idle), free)

    def ideal(self, problem: Problem) -> int:
        """Return the waste for GPU classes that request no GPU, if all pending tasks are placed."""
        target = problem.derived(find_target)
        free = int(_free_at_start(problem).sum())
        shapes, number = problem.classes.shapes, problem.classes.num_pending.tolist()
        gpu_classes = [GpuClass.from_shape(shape) for shape in shapes]
        requested = sum(k.number * k.milli * n for k, n in zip(gpu_classes, number, strict=True))
        idle_share = int(target.share[target.number == 0].sum())
        return idle_share * max(free - int(requested), 0)

    def encode_places(self, form: Formulation, supplied: I64) -> Expression:
        """Return the level as an exact expression if no task has a GPU share; otherwise return 0.

        The expression is Σ 1000 · share[m] · waste[m, n], where share[m] is the weight of GPU class
        m and waste[m, n] is the number of wasted GPUs of node n. The constraint is waste[m, n] ≥
        idle[n] − top[n] · runs[m, n]. Node n has idle[n] idle GPUs after the placements and top[n]
        before them. Without GPU shares, a GPU class that fits on a node wastes no GPU there. The
        variable runs[m, n] can be 1 only if the idle CPU and GPUs of node n suffice for class m;
        minimising the waste sets it to 1 whenever it can be 1.
        """
        problem, model = form.problem, form.model
        if problem.derived(shares_devices):
            return Expression.of([], [])
        target, request = problem.derived(find_target), problem.classes.request
        gpu = problem.index(GPU)
        nodes = np.flatnonzero(problem.idle[:, gpu])
        number = len(target.share)
        of_class, of_node = np.repeat(np.arange(number), len(nodes)), np.tile(nodes, number)
        top = problem.idle[of_node, gpu]
        can = target.reach[of_class, of_node] & (target.number[of_class] > 0)
        runs = model.add_variables(0, can.astype(np.int64))
        waste = model.add_variables(0, top)
        for resource, requested in ((CPU, target.cpu_m), (GPU, target.number)):
            at = problem.index(resource)
            for i, n in enumerate(of_node.tolist() if at >= 0 else ()):
                # requested·runs + Σ request·tasks ≤ idle amount of the node
                placeable = supplied[:, n] >= 0
                model.add_rows(
                    0,
                    np.append(supplied[placeable, n], runs[i]),
                    np.append(request[placeable, at], requested[of_class[i]]),
                    upper=max(int(problem.idle[n, at]), 0),
                )
        for i, n in enumerate(of_node.tolist()):
            # waste + top·runs + Σ GPUs·tasks ≥ idle GPUs of the node
            placeable = supplied[:, n] >= 0
            model.add_rows(
                0,
                np.concatenate([supplied[placeable, n], [waste[i], runs[i]]]),
                np.concatenate([request[placeable, gpu], [1, top[i]]]),
                lower=int(problem.idle[n, gpu]),
            )
        return Expression.of(waste, target.share[of_class] * WHOLE)


def _free_at_start(problem: Problem) -> I64:
    """Return the idle thousandths (N, D) of ready nodes' GPUs at the start of the session."""
    if problem.derived(shares_devices):
        return np.where(problem.ready[:, None], problem.derived(find_free_devices), 0)
    return _fresh(problem, problem.idle)


def _fresh(problem: Problem, idle: I64) -> I64:
    """Return the idle thousandths (N, D) of GPUs without shares, given idle resources (N, R)."""
    number = idle[:, problem.index(GPU)]
    return WHOLE * (np.arange(number.max(initial=0)) < number[:, None]).astype(np.int64)


def left_devices(outcome: Outcome) -> I64:
    """Return the idle thousandths (N, D) of each GPU on ready nodes, after all placements."""
    problem = outcome.problem
    if not problem.derived(shares_devices):
        return _fresh(problem, outcome.idle)
    node_of = outcome.decisions.node_of
    part = np.array([share_milli(shape) for shape in problem.classes.shapes], np.int64)
    taken = part[problem.task_class] * outcome.placed
    sharing = np.flatnonzero(taken)
    parts = list(zip(node_of[sharing].tolist(), taken[sharing].tolist(), strict=True))
    return devices_left(_free_at_start(problem), parts, _column(problem, GPU, outcome.on_node))


# --- greedy --------------------------------------------------------------------------------------


class _FragmentationScores(Greedy):
    """Scores nodes by the fragmentation that one more task of a class would add.

    The scores are cached by task class and updated for the nodes with new placements.
    """

    def __init__(self, problem: Problem, weight: int) -> None:
        self._target = problem.derived(find_target)
        self._weight = weight
        self._devices = Devices(problem)
        self._cpu_m = _column(problem, CPU, problem.idle).copy()
        self._gpu_classes = [GpuClass.from_shape(shape) for shape in problem.classes.shapes]

        self._problem = problem
        self._log: list[I64] = []
        self._views: dict[int, tuple[F64, int]] = {}

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        task_class = int(self._problem.task_class[first_task(self._problem, gang, entry)])
        return lambda nodes: self._score(task_class)

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        self._devices.record_placement(gang, task_class, nodes, counts)
        self._cpu_m[nodes] -= counts * self._gpu_classes[task_class].cpu_m
        self._log.append(nodes)

    def _score(self, task_class: int) -> F64:
        """Return the scores (N,): the waste of each node minus its waste with one more task."""
        if task_class not in self._views:
            self._views[task_class] = np.zeros(len(self._cpu_m)), 0
            touched = [np.arange(len(self._cpu_m))]
        else:
            touched = self._log[self._views[task_class][1] :]
        score, gpu_class = self._views[task_class][0], self._gpu_classes[task_class]
        changed = np.unique(np.concatenate(touched)) if touched else np.zeros(0, np.int64)
        splits = np.array_split(changed, len(changed) // _AT_ONCE + 1) if len(changed) else ()
        for nodes in splits:
            cpu_m, free = self._cpu_m[nodes], self._devices.free[nodes]
            if gpu_class.milli < WHOLE:
                # The idle GPUs of a node do not change if the GPU share fits on none of them.
                left, fit = free.copy(), fullest_fit(free, gpu_class.milli)
                rows = np.flatnonzero(fit >= 0)
                left[rows, fit[rows]] -= gpu_class.milli
            else:
                left = devices_left(free, (), np.full(len(nodes), gpu_class.number))
            before = self._target.waste(nodes, cpu_m, free)
            after = self._target.waste(nodes, cpu_m - gpu_class.cpu_m, left)
            score[nodes] = (before - after).astype(np.float64) * (self._weight / SHARES)
        self._views[task_class] = score, len(self._log)
        return score


PLUGIN = Plugin(
    "fragmentation",
    "keeps idle GPUs usable for typical tasks",
    (
        Argument(
            "fragmentation.weight",
            Kind.WHOLE,
            1,
            "points subtracted per thousandth of a GPU that becomes unusable",
        ),
    ),
    lambda a: (Fragmentation(read_whole(a, "fragmentation.weight", 1)),),
    levels=(LevelKind("frag", "free GPUs that typical tasks cannot use", 80, ("fragmentation",)),),
)
