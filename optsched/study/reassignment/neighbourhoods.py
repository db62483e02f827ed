"""Large neighbourhood search: CP-SAT reassigns some processes while the others are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from optsched.study.reassignment.assignment_state import AssignmentState

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import F64, I64
    from optsched.study.reassignment.assignment_state import Instance

    Chosen: TypeAlias = "tuple[I64, I64] | None"
    """The machines of a neighbourhood, and the processes that may move in it."""

_WIDER: Final = 1.01
_NARROWER: Final = 0.9
_EFFORT: Final = 0.5
"""CP-SAT's deterministic time limit for one neighbourhood; one unit is about a second."""

_QUICK: Final = 0.3
"""A neighbourhood is easy if CP-SAT proves optimality within this fraction of `_EFFORT`."""

_DEAR: Final = 12
"""Maximum number of processes that may move from a costly machine."""

_ANYONE: Final = 0.3
"""Fraction of the mean weight that is added to each weight when spare machines are drawn."""

_ANYWAY: Final = 0.15
"""Minimum probability of each neighbourhood type, even of one that has saved no cost."""

_MODEL: Final = 0.05
"""Time to build a model, in units of CP-SAT deterministic time."""


class _Kind:
    """A neighbourhood type, whose number of machines adapts to what CP-SAT can solve in time.

    `width` is the number of machines in the next neighbourhood, before rounding down. `saved` is
    the total cost that neighbourhoods of this type have saved. `effort` is the total deterministic
    time spent on neighbourhoods of this type.
    """

    def __init__(
        self, choose: Callable[[int], Chosen], first: float, least: float, most: int
    ) -> None:
        self.choose = choose
        self.width, self._least, self._most = min(first, most), min(least, most), most
        self.saved, self.effort = 0.0, _MODEL

    def adapt(self, *, was_easy: bool) -> None:
        """Widen the next neighbourhood of this type if the last one was easy, else narrow it."""
        width = self.width * (_WIDER if was_easy else _NARROWER)
        self.width = min(max(width, self._least), self._most)


class Neighbourhoods:
    """Solves neighbourhoods of three types; types that saved more cost are drawn more often.

    - Random machines, with all their processes.
    - An overloaded machine and machines with spare capacity, with all their processes.
    - A costly machine with its largest processes, and random other machines. Processes that were
      moved to the random machines may return to their initial machines. With transient resources,
      large processes can move only if small processes first free capacity on other machines.

    `machine_of` (P,) is the best assignment so far. `is_best` is true once a neighbourhood of all
    processes has proved `machine_of` optimal.
    """

    def __init__(self, instance: Instance, machine_of: I64, random: np.random.Generator) -> None:
        self._instance, self._random = instance, random
        self.machine_of = machine_of
        self._state = AssignmentState(instance, machine_of)
        most = instance.num_machines
        self._kinds = (
            _Kind(self._choose_random, 3, 2, most),
            _Kind(self._choose_overloaded, 3, 2, most),
            _Kind(self._choose_costly, 3, 1, most - 1),
        )
        self.is_best = False

    def step(self, seconds: float | None) -> bool:
        """Solve one neighbourhood; return whether a better assignment was found.

        `seconds` is the wall-clock limit, or None if the result must not depend on a clock.
        """
        from optsched.study.reassignment.cpsat_model import Spending, reassign

        # The probability of a type is the minimum plus a term proportional to the cost that it
        # saved per unit of time.
        worth = np.array([kind.saved / kind.effort for kind in self._kinds])
        parts = worth / worth.sum() if worth.any() else np.full(len(worth), 1 / len(worth))
        shares: F64 = _ANYWAY + (1 - len(parts) * _ANYWAY) * parts
        kind = self._kinds[int(self._random.choice(len(self._kinds), p=shares))]
        chosen = kind.choose(int(kind.width))
        if chosen is None:
            return False
        machines, free = chosen
        spending = Spending(seconds, _EFFORT, int(self._random.integers(1 << 30)))
        found = reassign(self._instance, self.machine_of, free, machines, spending)
        if found is None:
            kind.adapt(was_easy=False)
            kind.effort += _EFFORT
            return False
        kind.adapt(was_easy=found.is_best and found.effort < _QUICK * _EFFORT)
        is_all = len(machines) == self._instance.num_machines and len(free) == len(self.machine_of)
        self.is_best |= found.is_best and is_all
        state = AssignmentState(self._instance, found.machine_of)
        saved = self._state.cost - state.cost
        kind.saved += max(saved, 0)
        kind.effort += found.effort + _MODEL
        if saved < 0:
            return False
        self.machine_of, self._state = found.machine_of, state
        return saved > 0

    def _choose_random(self, width: int) -> Chosen:
        """Choose random machines with all their processes."""
        drawn = self._random.choice(self._instance.num_machines, width, replace=False)
        machines = np.sort(drawn).astype(np.int64)
        return machines, self._processes_on(machines)

    def _processes_on(self, machines: I64) -> I64:
        return np.flatnonzero(np.isin(self.machine_of, machines))

    def _choose_overloaded(self, width: int) -> Chosen:
        """Choose a machine above the spare amount of a cost term, and machines below it."""
        excess = self._state.excess
        over, under = np.maximum(excess, 0), np.maximum(-excess, 0)
        waste = self._instance.weight * np.minimum(over.sum(axis=1), under.sum(axis=1))
        if not waste.any():
            return None
        term = self._draw_weighted(waste)
        first, spare = self._draw_weighted(over[term]), np.minimum(under[term], over[term].max())
        spare += _ANYONE * spare.mean()
        spare[first] = 0
        others = self._random.choice(len(spare), width - 1, replace=False, p=spare / spare.sum())
        machines = np.sort(np.append(others, first)).astype(np.int64)
        return machines, self._processes_on(machines)

    def _choose_costly(self, width: int) -> Chosen:
        """Choose a costly machine, random others, and the initial machines of moved processes.

        A process counts as moved if it is on a random machine that is not its initial machine.
        Returns all chosen machines, and the processes that may move.
        """
        instance, costs = self._instance, self._state.term_cost
        if not costs.any():
            return None
        first = self._draw_weighted(costs)
        others = self._random.choice(np.delete(np.arange(len(costs)), first), width, replace=False)
        came = self._processes_on(others)
        came = came[instance.initial[came] != self.machine_of[came]]
        here = np.flatnonzero(self.machine_of == first)
        size = instance.weight @ np.abs(instance.demand[:, here])
        free = np.concatenate([came, np.sort(here[np.argsort(-size, kind="stable")[:_DEAR]])])
        machines = np.concatenate([[first], others, instance.initial[came]])
        return np.unique(machines).astype(np.int64), np.sort(free)

    def _draw_weighted(self, weights: F64) -> int:
        """Return a random index, drawn with probability proportional to `weights`."""
        return int(self._random.choice(len(weights), p=weights / weights.sum()))
