"""Simulated annealing with whole neighbourhoods: each step draws the best of many noisy moves.

A process goes to a machine with the probability of the heat bath, exp(−delta / temperature) among
all machines: the least of delta plus Gumbel noise has just that distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reassignment.assignment_state import AssignmentState

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import F64, I64
    from optsched.study.reassignment.assignment_state import Instance

_SHIFTED: Final = 32
_NOISE: Final = 1 << 20
_SAMPLE: Final = 100
_LIKELY: Final = 8
"""Of all processes that a process might be exchanged for, so many are checked for room."""

_HOT: Final = 3.0
_COLD: Final = 0.01
_WARM: Final = 0.1
_FROZEN: Final = 0.002
"""Temperatures, for one of the mean cost of a shift: where cooling begins and ends, and warming."""


@dataclass(frozen=True, slots=True)
class Style:
    """The part of the costs that an annealing considers; none is the best for all."""

    large: float  # part of the considered processes that are drawn by their demand
    # swapped, against: processes that may change places, and those with which
    swapped: int
    against: int


STYLES: Final = (Style(0.5, 12, 256), Style(0.8, 20, 160))
"""The second one is better where few processes demand most of a resource."""


class Annealing:
    """Moves of a state at a temperature; the best state is kept."""

    def __init__(self, state: AssignmentState, style: Style, random: np.random.Generator) -> None:
        self.state = state
        self._style = style
        self.best = state.machine_of.copy()
        self.best_cost = state.cost
        self._random = random
        self._noise = random.gumbel(size=_NOISE)
        self._num = state.instance.num_processes
        self._order = random.permutation(self._num)
        self._next = 0
        size = state.instance.weight @ np.abs(state.instance.demand) + 1
        self._until = np.cumsum(size / size.sum())

    def step(self, temperature: float) -> None:
        """Try some thousand shifts and some thousand swaps."""
        state, processes = self.state, self._draw_processes(_SHIFTED)
        delta = state.shifts(processes)
        delta -= temperature * self._noise_for(delta)
        target = delta.argmin(axis=1)
        going = np.flatnonzero(target != state.machine_of[processes])
        touched: set[int] = set()
        for k in going.tolist():
            p, machine = int(processes[k]), int(target[k])
            both = {int(state.machine_of[p]), machine}
            if not touched & both and state.shift(p, machine):
                touched |= both
        self._swap(temperature)
        if self.state.cost < self.best_cost:
            self.best_cost = self.state.cost
            self.best = self.state.machine_of.copy()

    def _swap(self, temperature: float) -> None:
        state, processes = self.state, self._draw_processes(self._style.swapped)
        start = int(self._random.integers(max(self._num - self._style.against, 0) + 1))
        others = self._order[start : start + self._style.against]
        delta = state.swaps(processes, others)
        delta -= temperature * self._noise_for(delta)
        few = delta.argpartition(min(_LIKELY, len(others)) - 1, axis=1)[:, :_LIKELY]
        first, second = np.repeat(processes, few.shape[1]), others[few.ravel()]
        likely = np.take_along_axis(delta, few, axis=1)
        likely[~state.may_swap(first, second).reshape(few.shape)] = np.inf
        rows, best = np.arange(len(processes)), likely.argmin(axis=1)
        least, partner = likely[rows, best], others[few[rows, best]]
        touched: set[int] = set()
        for k in np.flatnonzero(least < -temperature * self._noise_for(least)).tolist():
            p, q = int(processes[k]), int(partner[k])
            both = {int(state.machine_of[p]), int(state.machine_of[q])}
            if not touched & both and state.swap(p, q):
                touched |= both

    def _draw_processes(self, number: int) -> I64:
        """Some processes, a part of them the likelier the larger they are."""
        drawn = self._random.random(int(number * self._style.large))
        large = np.searchsorted(self._until[:-1], drawn)
        more = number - len(drawn)
        if self._next + more > self._num:
            self._random.shuffle(self._order)
            self._next = 0
        self._next += more
        return np.unique(np.concatenate([large, self._order[self._next - more : self._next]]))

    def _noise_for(self, values: F64) -> F64:
        start = int(self._random.integers(_NOISE - values.size))
        return self._noise[start : start + values.size].reshape(values.shape)


def cooling(instance: Instance) -> Callable[[float], float]:
    """Temperatures for shares of the time, from hot to cold."""
    usual = _usual_cost(instance)
    return lambda share: _interpolate(usual * _HOT, usual * _COLD, share)


def warming(instance: Instance) -> Callable[[float], float]:
    """Temperatures for shares of the time, from lukewarm down.

    Where few processes demand most of a resource, much is found while it is warm: large ones still
    change places, and what fills the machines around them follows.
    """
    usual = _usual_cost(instance)
    return lambda share: _interpolate(usual * _WARM, usual * _FROZEN, share)


def _interpolate(high: float, low: float, share: float) -> float:
    return high * math.pow(low / high, share)


def _usual_cost(instance: Instance) -> float:
    """The average cost or gain of a shift at first."""
    sample = np.arange(0, instance.num_processes, max(instance.num_processes // _SAMPLE, 1))
    delta = np.abs(AssignmentState(instance, instance.initial).shifts(sample))
    some = delta[np.isfinite(delta) & (delta > 0)]
    return float(some.mean()) if len(some) else 1.0
