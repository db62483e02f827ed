"""Some machines, of whose processes all or the largest are placed anew while all else stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.engines.reassignment.state import State

if TYPE_CHECKING:
    from optsched.engines.reassignment.instance import Instance
    from optsched.problem.arrays import F64, I64

_FIRST: Final = 3.0
_LEAST: Final = 2.0
_FIRST_AIMED: Final = 8.0
_LEAST_AIMED: Final = 3.0
_WIDER: Final = 1.01
_NARROWER: Final = 0.9
_EFFORT: Final = 0.5
"""CP-SAT's deterministic time for one neighbourhood, about seconds."""

_QUICK: Final = 0.3
"""Of the effort: a neighbourhood solved in less was a small one."""

_FREE: Final = 40
"""Processes of an aimed neighbourhood."""


class _Width:
    """How many machines are decided in the time for one neighbourhood."""

    def __init__(self, first: float, least: float, most: int) -> None:
        self._width, self._least, self._most = min(first, most), min(least, most), most

    def number(self) -> int:
        """As a whole number."""
        return int(self._width)

    def adapt(self, was_easy: bool) -> None:
        """Wider after what was easy, narrower after the rest."""
        width = self._width * (_WIDER if was_easy else _NARROWER)
        self._width = min(max(width, self._least), self._most)


class Neighbourhoods:
    """Solves one after the other, in turns of any machines and of such that cost what others spare.

    Attributes
    ----------
    machine_of
        (P,) the best assignment, an allowed one at first.
    is_best
        Whether everything was decided at once: none is better.

    """

    def __init__(self, instance: Instance, machine_of: I64, random: np.random.Generator) -> None:
        self._instance, self._random = instance, random
        self.machine_of = machine_of
        self._state = State(instance, machine_of)
        self._any = _Width(_FIRST, _LEAST, instance.num_machines)
        self._aimed = _Width(_FIRST_AIMED, _LEAST_AIMED, instance.num_machines)
        self._is_aimed = False
        self.is_best = False

    def step(self, seconds: float | None) -> bool:
        """Solve a neighbourhood; whether something better was found.

        Parameters
        ----------
        seconds
            At most, None where no clock may decide.

        """
        waste = self._waste() if self._is_aimed else np.zeros(0)
        self._is_aimed = not self._is_aimed
        if not waste.any():
            machines = self._some_machines()
            return self._solve(machines, self._on(machines), self._any, seconds)
        term = int(self._random.choice(len(waste), p=waste / waste.sum()))
        machines = self._unlike_machines(term)
        return self._solve(machines, self._largest(machines, term), self._aimed, seconds)

    def _solve(self, machines: I64, free: I64, width: _Width, seconds: float | None) -> bool:
        from optsched.engines.cpsat.reassigning import Spending, reassigned

        spending = Spending(seconds, _EFFORT, int(self._random.integers(1 << 30)))
        found = reassigned(self._instance, self.machine_of, free, machines, spending)
        width.adapt(found is not None and found.is_best and found.effort < _QUICK * _EFFORT)
        if found is None:
            return False
        is_all = len(machines) == self._instance.num_machines and len(free) == len(self.machine_of)
        self.is_best |= found.is_best and is_all
        state = State(self._instance, found.machine_of)
        if state.cost > self._state.cost:
            return False
        is_better = state.cost < self._state.cost
        self.machine_of, self._state = found.machine_of, state
        return is_better

    def _on(self, machines: I64) -> I64:
        return np.flatnonzero(np.isin(self.machine_of, machines))

    def _some_machines(self) -> I64:
        number = self._any.number()
        chosen = self._random.choice(self._instance.num_machines, number, replace=False)
        return np.sort(chosen).astype(np.int64)

    def _waste(self) -> F64:
        """(C,) what a term costs on some machines that others could spare."""
        excess = self._state.excess
        over, under = np.maximum(excess, 0).sum(axis=1), np.maximum(-excess, 0).sum(axis=1)
        waste: F64 = self._instance.weight * np.minimum(over, under)
        return waste

    def _unlike_machines(self, term: int) -> I64:
        """One that costs, and others by how far they are from what costs nothing."""
        excess = self._state.excess[term]
        over, far = np.maximum(excess, 0), np.abs(excess) + np.abs(excess).mean()
        first = int(self._random.choice(len(over), p=over / over.sum()))
        far[first] = 0
        number = self._aimed.number() - 1
        others = self._random.choice(len(far), number, replace=False, p=far / far.sum())
        return np.sort(np.append(others, first)).astype(np.int64)

    def _largest(self, machines: I64, term: int) -> I64:
        """Those with the most demand, more or less."""
        here = self._on(machines)
        lot = np.sqrt(self._random.random(len(here)))
        order = np.argsort(-self._instance.demand[term, here] * lot, kind="stable")
        return np.sort(here[order[:_FREE]])
