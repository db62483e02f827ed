"""A few machines, all of whose processes are placed anew by CP-SAT while everything else stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.engines.reassignment.state import State

if TYPE_CHECKING:
    from optsched.engines.reassignment.instance import Instance
    from optsched.problem.arrays import I64

_FIRST: Final = 3.0
_LEAST: Final = 2.0
_WIDER: Final = 1.01
_NARROWER: Final = 0.9
_EFFORT: Final = 0.5
"""CP-SAT's deterministic time for one neighbourhood, about seconds."""

_QUICK: Final = 0.3
"""Of the effort: a neighbourhood solved in less was a small one."""


class Neighbourhoods:
    """Solves one after the other; as many machines as are decided in the time for one.

    Attributes
    ----------
    machine_of
        (P,) the best assignment, an allowed one at first.
    is_best
        Whether all machines were decided at once: none is better.

    """

    def __init__(self, instance: Instance, machine_of: I64, random: np.random.Generator) -> None:
        self._instance, self._random = instance, random
        self.machine_of = machine_of
        self._cost = State(instance, machine_of).cost
        self._width = min(_FIRST, instance.num_machines)
        self.is_best = False

    def step(self, seconds: float | None) -> bool:
        """Solve a neighbourhood; whether something better was found.

        Parameters
        ----------
        seconds
            At most, None where no clock may decide.

        """
        from optsched.engines.cpsat.reassigning import Spending, reassigned

        machines = self._some_machines()
        free = np.flatnonzero(np.isin(self.machine_of, machines))
        spending = Spending(seconds, _EFFORT, int(self._random.integers(1 << 30)))
        found = reassigned(self._instance, self.machine_of, free, machines, spending)
        self._adapt(found is not None and found.is_best and found.effort < _QUICK * _EFFORT)
        if found is None:
            return False
        self.is_best |= found.is_best and len(machines) == self._instance.num_machines
        cost = State(self._instance, found.machine_of).cost
        if cost > self._cost:
            return False
        is_better = cost < self._cost
        self.machine_of, self._cost = found.machine_of, cost
        return is_better

    def _some_machines(self) -> I64:
        number = self._instance.num_machines
        width = min(int(self._width), number)
        return np.sort(self._random.choice(number, width, replace=False)).astype(np.int64)

    def _adapt(self, was_easy: bool) -> None:
        self._width *= _WIDER if was_easy else _NARROWER
        self._width = min(max(self._width, _LEAST), self._instance.num_machines)
