"""Simulated annealing: add noise to the cost changes of many moves; make the moves of lowest sum.

A process moves to a machine with the heat-bath probability, which is proportional to exp(−delta /
temperature); delta is the cost change. To draw from this distribution, select the machine that
minimizes delta minus temperature times Gumbel noise.
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
"""Maximum number of swap partners per process for which capacity is checked, the cheapest first."""

COOLING: Final = (3.0, 0.01)
REHEATING: Final = (0.1, 0.002)
"""First and last temperature, as multiples of the mean absolute cost change of a shift.

Reheating reduces the cost considerably if a few processes request most of a resource. At moderate
temperatures, large processes can still swap machines, and small processes then rearrange around
them.
"""


@dataclass(frozen=True, slots=True)
class Style:
    """How an annealing step selects processes; no style is best for all instances."""

    # Fraction of the selected processes that are drawn with probability proportional to their
    # demand; the others are drawn uniformly.
    large: float
    # `swapped` is the number of processes to swap, `against` the number of candidate partners.
    swapped: int
    against: int


STYLES: Final = (Style(0.5, 12, 256), Style(0.8, 20, 160))
"""Two styles; the second is better if a few processes request most of a resource."""


class Annealing:
    """Simulated annealing of an assignment; `best` is the best assignment so far."""

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
        """Evaluate thousands of shifts and swaps; apply those with the lowest noisy cost change."""
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
        """Evaluate swaps of a few processes with many others, and apply the accepted swaps."""
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
        """Return distinct random processes, a fraction `Style.large` of them weighted by demand."""
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


def temperature_schedule(
    instance: Instance, limits: tuple[float, float]
) -> Callable[[float], float]:
    """Return the temperature as a function of the elapsed fraction of the annealing time.

    `limits` holds the first and the last temperature, as in `COOLING`. The temperatures are
    multiples of the mean absolute cost change of sampled shifts from the initial assignment.
    """
    sample = np.arange(0, instance.num_processes, max(instance.num_processes // _SAMPLE, 1))
    delta = np.abs(AssignmentState(instance, instance.initial).shifts(sample))
    some = delta[np.isfinite(delta) & (delta > 0)]
    unit = float(some.mean()) if len(some) else 1.0
    high, low = unit * limits[0], unit * limits[1]
    return lambda share: high * math.pow(low / high, share)
