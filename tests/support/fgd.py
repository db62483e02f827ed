"""Weng et al.'s replay of the openb trace under their own policy, on our measure of fragmentation.

USENIX ATC 2023; protocol of its simulator: pods come one by one in random order, demand is brought
to 130 % of all GPUs by drawing more of them, and they never leave. The score of a node is
⌊100·sigmoid((F − F′)/1000)⌋; a part of a GPU goes to the device where that is largest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.amounts import amount_of
from optsched.rules.fragmentation import Kind, Target, typical
from optsched.rules.gpu_shares import GPU, WHOLE
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.domain.task import TaskShape
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from tests.support.gorandom import GoRandom

TUNE = 1.3


class Replay:
    """The cluster as pods come in."""

    def __init__(self, problem: Problem, random: GoRandom) -> None:
        nodes = problem.snapshot.nodes
        offered = [[amount_of(n.allocatable, r) for r in (CPU, MEMORY, GPU)] for n in nodes]
        self.cpu_m, self.memory, number = np.array(offered, np.int64).T
        self.free = WHOLE * (np.arange(number.max()) < number[:, None]).astype(np.int64)
        self.total = int(self.free.sum())
        self._shapes = [t.shape for t in sorted(problem.tasks, key=lambda t: t.name)]
        random.uint64()
        order = list(range(len(self._shapes)))
        random.shuffle(order)
        self._arrivals = [self._shapes[i] for i in order]
        self._tune(random)
        for _ in range(10):
            random.uint64()
        self._rank = np.array(random.permutation(len(nodes)))
        kinds = typical(Counter(self._shapes))
        self.num_kinds = len(kinds)
        self._target = Target.of(problem, kinds)
        self._weight = int(self._target.share.sum())
        self._all = np.arange(len(nodes))
        self._waste = self._target.waste(self._all, self.cpu_m, self.free)
        self._scores: dict[TaskShape, tuple[I64, I64]] = {}
        self._read: dict[TaskShape, int] = defaultdict(int)
        self._log: list[int] = []

    def _tune(self, random: GoRandom) -> None:
        """Draw more pods until their GPUs reach the aim, each counted with one GPU at most."""
        demand = sum(asked(shape) for shape in self._arrivals)
        while True:
            shape = self._shapes[random.intn(len(self._shapes))]
            demand += min(asked(shape), Kind.of(shape).milli)
            if demand > TUNE * self.total:
                return
            self._arrivals.append(shape)

    def curves(self, until: int) -> tuple[list[float], list[float]]:
        """Allocated GPUs and fragmentation by arrived demand up to some percent, in percent of all.

        A bucket holds the mean of what is after each pod that has come in it.
        """
        arrived = 0
        allocated: dict[int, list[float]] = defaultdict(list)
        wasted: dict[int, list[float]] = defaultdict(list)
        for shape in self._arrivals:
            arrived += asked(shape)
            bucket = round(100 * arrived / self.total)
            if bucket > until:
                break
            self._place(shape)
            allocated[bucket].append(100 - 100 * int(self.free.sum()) / self.total)
            wasted[bucket].append(100 * float(self._waste.sum()) / self._weight / self.total)
        return _means(allocated), _means(wasted)

    def _place(self, shape: TaskShape) -> None:
        kind, memory = Kind.of(shape), amount_of(shape.request, MEMORY)
        score, device = self._scored(shape, kind)
        fits = (self.cpu_m >= kind.cpu_m) & (self.memory >= memory) & (score >= 0)
        if not fits.any():
            return
        best = np.flatnonzero(fits & (score == score[fits].max()))
        node = int(best[self._rank[best].argmin()])
        self.cpu_m[node] -= kind.cpu_m
        self.memory[node] -= memory
        at = np.array([node])
        self.free[at] = _taken(kind, self.free[at], device[at])
        self._waste[at] = self._target.waste(at, self.cpu_m[at], self.free[at])
        self._log.append(node)

    def _scored(self, shape: TaskShape, kind: Kind) -> tuple[I64, I64]:
        """(N,) scores of nodes, -1 without devices, and (N,) the best device for a part."""
        if shape not in self._scores:
            none = np.full(len(self._all), -1)
            self._scores[shape], nodes = (none, none.copy()), self._all
        else:
            nodes = np.unique(np.array(self._log[self._read[shape] :], np.int64))
        self._read[shape] = len(self._log)
        score, device = self._scores[shape]
        if len(nodes):
            score[nodes], device[nodes] = self._best(kind, nodes)
        return score, device

    def _best(self, kind: Kind, nodes: I64) -> tuple[I64, I64]:
        """Each device tried: the score with it, and the first of the best."""
        tries = self.free.shape[1] if 0 < kind.milli < WHOLE else 1
        at, device = np.repeat(nodes, tries), np.tile(np.arange(tries), len(nodes))
        free = self.free[at]
        if tries > 1:
            has_room = free[np.arange(len(at)), device] >= kind.milli
        else:
            has_room = (free == WHOLE).sum(axis=1) >= kind.number
        after = _taken(kind, free, device)
        wasted = self._target.waste(at, self.cpu_m[at] - kind.cpu_m, after)
        points = _sigmoid((self._waste[at] - wasted) / self._weight / 1000)
        table = np.where(has_room, points, -1).reshape(len(nodes), tries)
        best = table.argmax(axis=1)
        return table[np.arange(len(nodes)), best], best


def _taken(kind: Kind, free: I64, device: I64) -> I64:
    left = free.copy()
    if 0 < kind.milli < WHOLE:
        left[np.arange(len(free)), device] -= kind.milli
        return left
    fresh = free == WHOLE
    left[fresh & (fresh.cumsum(axis=1) <= kind.number)] = 0
    return left


def _sigmoid(x: F64) -> I64:
    return (100 / (1 + np.exp(-x))).astype(np.int64)


def asked(shape: TaskShape) -> int:
    """Thousandths of GPUs that a task asks for."""
    kind = Kind.of(shape)
    return kind.number * kind.milli


def _means(by_bucket: dict[int, list[float]]) -> list[float]:
    return [fmean(by_bucket[b]) for b in range(max(by_bucket) + 1)]


def curve(table: Iterable[str], start: str, first: int) -> list[float]:
    """The numbers of the row of a table that starts so."""
    (row,) = (line for line in table if line.startswith(start))
    return [float(cell) for cell in row.split(",")[first:]]
