"""Simulated annealing with whole neighbourhoods: each step draws the best of many noisy moves.

A process goes to a machine with the probability of the heat bath, exp(−delta / temperature) among
all machines: the least of delta plus Gumbel noise has just that distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.engines.reassignment.state import State
    from optsched.problem.arrays import F64, I64

_SHIFTED: Final = 32
_SWAPPED: Final = 12
_AGAINST: Final = 256
_NOISE: Final = 1 << 20
_LARGE: Final = 0.5
"""Part of the processes looked at that are drawn by what they demand."""

_SAMPLE: Final = 100

HEATS: Final = (3.0, 20.0)
"""Where cooling begins, for one of the mean cost of a shift; either is better for some."""

_COLD: Final = 0.01


class Annealing:
    """Moves of a state at a temperature; the best state is kept."""

    def __init__(self, state: State, random: np.random.Generator) -> None:
        self.state = state
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
        """Look at some thousand shifts and some thousand swaps."""
        self._shift(temperature)
        self._swap(temperature)
        if self.state.cost < self.best_cost:
            self.best_cost = self.state.cost
            self.best = self.state.machine_of.copy()

    def _shift(self, temperature: float) -> None:
        state, processes = self.state, self._some(_SHIFTED)
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

    def _swap(self, temperature: float) -> None:
        state, processes = self.state, self._some(_SWAPPED)
        start = int(self._random.integers(max(self._num - _AGAINST, 0) + 1))
        others = self._order[start : start + _AGAINST]
        delta = state.swaps(processes, others)
        delta -= temperature * self._noise_for(delta)
        partner = delta.argmin(axis=1)
        worth = delta[np.arange(len(processes)), partner] < -temperature * self._noise_for(partner)
        touched: set[int] = set()
        for k in np.flatnonzero(worth).tolist():
            p, q = int(processes[k]), int(others[partner[k]])
            both = {int(state.machine_of[p]), int(state.machine_of[q])}
            if not touched & both and state.swap(p, q):
                touched |= both

    def _some(self, number: int) -> I64:
        """Some processes, a part of them the likelier the larger they are."""
        drawn = self._random.random(int(number * _LARGE))
        large = np.searchsorted(self._until[:-1], drawn)
        return np.unique(np.concatenate([large, self._each(number - len(drawn))]))

    def _each(self, number: int) -> I64:
        if self._next + number > self._num:
            self._random.shuffle(self._order)
            self._next = 0
        found = self._order[self._next : self._next + number].copy()
        self._next += number
        return found

    def _noise_for(self, values: F64 | I64) -> F64:
        start = int(self._random.integers(_NOISE - values.size))
        return self._noise[start : start + values.size].reshape(values.shape)


def cooling(state: State, heat: float) -> Callable[[float], float]:
    """Temperatures for shares of the time, from a heat down to cold for the usual shift."""
    number = state.instance.num_processes
    sample = np.arange(0, number, max(number // _SAMPLE, 1))
    delta = np.abs(state.shifts(sample))
    some = delta[np.isfinite(delta) & (delta > 0)]
    usual = float(some.mean()) if len(some) else 1.0
    return lambda share: heat * usual * (_COLD / heat) ** share
