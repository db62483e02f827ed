"""Large neighbourhood search: CP-SAT reassigns some processes while the others are fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from optsched.solver.cpsat.integer_program import create_solver
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
"""Maximum number of processes on a costly machine that may move in one neighbourhood."""

_ANYONE: Final = 0.3
"""Fraction of the mean weight that is added to each machine's weight when machines are drawn."""

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

    `machine_of` (P,) is the best assignment so far. `is_best` is true once CP-SAT has proved
    `machine_of` optimal in a neighbourhood of all processes.
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
        # The probability of a neighbourhood type is the minimum plus a term proportional to the
        # cost that the type saved per unit of deterministic time.
        worth = np.array([kind.saved / kind.effort for kind in self._kinds])
        parts = worth / worth.sum() if worth.any() else np.full(len(worth), 1 / len(worth))
        shares: F64 = _ANYWAY + (1 - len(parts) * _ANYWAY) * parts
        kind = self._kinds[int(self._random.choice(len(self._kinds), p=shares))]
        chosen = kind.choose(int(kind.width))
        if chosen is None:
            return False
        machines, free = chosen
        seed = int(self._random.integers(1 << 30))
        found = reassign(self._instance, self.machine_of, free, machines, _EFFORT, seed, seconds)
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
        drawn = self._random.choice(self._instance.num_machines, width, replace=False)
        machines = np.sort(drawn).astype(np.int64)
        return machines, self._processes_on(machines)

    def _processes_on(self, machines: I64) -> I64:
        return np.flatnonzero(np.isin(self.machine_of, machines))

    def _choose_overloaded(self, width: int) -> Chosen:
        """Choose a machine above the threshold of a cost term, and machines below the threshold."""
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
        """Choose a costly machine, random other machines, and initial machines of moved processes.

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
        return int(self._random.choice(len(weights), p=weights / weights.sum()))


_Literals: TypeAlias = "dict[int, list[cp_model.IntVar]]"


@dataclass(frozen=True, eq=False)
class ReassignmentSolution:
    """An assignment (P,), whether it is proved optimal, and the solve time.

    The solve time `effort` is in CP-SAT deterministic time.
    """

    machine_of: I64
    is_best: bool
    effort: float


def reassign(
    instance: Instance,
    machine_of: I64,
    free: I64,
    machines: I64,
    effort: float,
    seed: int,
    seconds: float | None = None,
) -> ReassignmentSolution | None:
    """Return the best assignment in which only the processes `free` move, and only to `machines`.

    The assignment `machine_of` (P,) must be feasible, with all processes in `free` on `machines`.
    Returns None if the solver finds no solution within the limits: `effort` in CP-SAT deterministic
    time, and `seconds` of wall-clock time if it is not None.
    """
    model = _Model(instance, machine_of, free, machines)
    solver = create_solver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = seed
    parameters.max_deterministic_time = effort
    parameters.cp_model_probing_level = 0
    if seconds is not None:
        parameters.max_time_in_seconds = seconds
    status = solver.solve(model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    found = machine_of.copy()
    for (p, m), literal in model.runs.items():
        if solver.boolean_value(literal):
            found[p] = m
    spent = solver.response_proto.deterministic_time
    return ReassignmentSolution(found, status == cp_model.OPTIMAL, spent)


class _Model:
    """The CP-SAT model; the literal `runs[p, m]` is true if process p runs on machine m."""

    def __init__(self, instance: Instance, machine_of: I64, free: I64, machines: I64) -> None:
        self.model = cp_model.CpModel()
        self._instance, self._machine_of = instance, machine_of
        self._free, self._machines = free.tolist(), machines.tolist()
        stays = np.ones(instance.num_processes, bool)
        stays[free] = False
        self._stays = np.flatnonzero(stays)
        self._here = self._stays[np.isin(machine_of[self._stays], machines)]
        self.runs: dict[tuple[int, int], cp_model.IntVar] = {}
        self._objective: list[cp_model.LinearExprT] = []
        self._by_service: dict[int, list[int]] = {}
        for p in self._free:
            self._by_service.setdefault(int(instance.service[p]), []).append(p)
        self._add_assignment()
        for processes in self._by_service.values():
            for m in self._machines:
                same = [self.runs[p, m] for p in processes if (p, m) in self.runs]
                if len(same) > 1:
                    self.model.add_at_most_one(same)
        for service in self._by_service:
            least = int(instance.min_locations[service])
            if least <= 1:
                continue
            fixed_groups, entering = self._groups(service, instance.location)
            if len(fixed_groups) >= least:
                continue
            reached = []
            for literals in entering.values():
                reached.append(self.model.new_bool_var(""))
                self.model.add_bool_or([*literals, reached[-1].negated()])
            self.model.add(cp_model.LinearExpr.sum(reached) >= least - len(fixed_groups))
        self._add_dependencies()
        self._add_term_costs()
        self._add_move_costs()
        self.model.minimize(cp_model.LinearExpr.sum(self._objective))

    def _candidates_of(self, machine: int) -> list[int]:
        """Return the free processes that may run on a machine."""
        return [p for p in self._free if (p, machine) in self.runs]

    def _demand_on(self, p: int, machine: int) -> I64:
        instance = self._instance
        is_home = instance.initial[p] == machine
        amounts = instance.lasting[:, p] if is_home else instance.request[:, p]
        return np.asarray(amounts, np.int64)

    def _add_assignment(self) -> None:
        """Assign each free process to one machine, within the capacity left by fixed processes."""
        instance, model = self._instance, self.model
        idle: dict[int, I64] = {}
        for m in self._machines:
            fixed = [self._demand_on(p, m) for p in self._processes_on(m)]
            left = instance.capacity[:, m].astype(np.int64)
            idle[m] = left - np.sum(fixed, axis=0, dtype=np.int64) if fixed else left
        taken = {(int(instance.service[p]), int(self._machine_of[p])) for p in self._here}
        for p in self._free:
            for m in self._machines:
                is_taken = (int(instance.service[p]), m) in taken
                if not is_taken and (self._demand_on(p, m) <= idle[m]).all():
                    self.runs[p, m] = model.new_bool_var("")
                    model.add_hint(self.runs[p, m], m == self._machine_of[p])
            model.add_exactly_one([self.runs[p, m] for m in self._machines if (p, m) in self.runs])
        for m in self._machines:
            inside = self._candidates_of(m)
            if not inside:
                continue
            takes = np.array([self._demand_on(p, m) for p in inside])
            for r in np.flatnonzero(takes.sum(axis=0) > idle[m]).tolist():
                terms = [self.runs[p, m] for p in inside]
                used = cp_model.LinearExpr.weighted_sum(terms, takes[:, r].tolist())
                model.add(used <= int(idle[m][r]))

    def _processes_on(self, machine: int) -> list[int]:
        return [p for p in self._here.tolist() if self._machine_of[p] == machine]

    def _groups(self, service: int, group_of: I64) -> tuple[set[int], _Literals]:
        """Return the groups with a fixed process of a service, and literals for all other groups.

        A group is a location or a neighbourhood; `group_of` (M,) is the group of each machine. A
        literal of a group is true if a free process of the service runs on a machine of the group.
        """
        instance = self._instance
        fixed = self._stays[instance.service[self._stays] == service]
        fixed_groups = set(group_of[self._machine_of[fixed]].tolist())
        entering: _Literals = {}
        for p in self._free:
            if instance.service[p] == service:
                for m in self._machines:
                    if (p, m) in self.runs and int(group_of[m]) not in fixed_groups:
                        entering.setdefault(int(group_of[m]), []).append(self.runs[p, m])
        return fixed_groups, entering

    def _add_dependencies(self) -> None:
        """Require a service's dependencies in each neighbourhood where the service runs."""
        instance, around = self._instance, self._instance.neighbourhood
        for service in self._by_service:
            fixed_groups, entering = self._groups(service, around)
            for other in instance.needed_by[service].tolist():
                outside, moving = self._groups(other, around)
                for n in outside - fixed_groups:
                    self.model.add_bool_or(entering.get(n, []))
                for n, literals in moving.items():
                    if n not in fixed_groups:
                        for literal in literals:
                            self.model.add_bool_or([*entering.get(n, []), literal.negated()])
            for other in instance.depends_on[service].tolist():
                is_fixed = other not in self._by_service
                staying = self._groups(other, around)[0] if is_fixed else entering
                for n, literals in entering.items():
                    for literal in literals if n not in staying else ():
                        self.model.add(literal == 0)

    def _add_term_costs(self) -> None:
        instance = self._instance
        for m in self._machines:
            inside = self._candidates_of(m)
            fixed = instance.demand[:, self._processes_on(m)].sum(axis=1) - instance.spare[:, m]
            for c, base in enumerate(fixed.astype(np.int64).tolist()):
                amounts = instance.demand[c, inside].astype(np.int64)
                most = base + int(amounts[amounts > 0].sum())
                if most <= 0:
                    continue
                over = self.model.new_int_var(0, most, "")
                terms = [self.runs[p, m] for p in inside]
                total = cp_model.LinearExpr.weighted_sum(terms, amounts.tolist())
                self.model.add(over >= total + base)
                self._objective.append(int(instance.weight[c]) * over)

    def _add_move_costs(self) -> None:
        instance = self._instance
        for (p, m), literal in self.runs.items():
            if cost := int(instance.move_cost[p, m]):
                self._objective.append(cost * literal)
        if not instance.service_weight:
            return
        away = self._stays[self._machine_of[self._stays] != instance.initial[self._stays]]
        moved = np.bincount(instance.service[away], minlength=len(instance.min_locations))
        least = int(moved.max(initial=0))
        most = self.model.new_int_var(least, instance.num_processes, "")
        for service, processes in self._by_service.items():
            if moved[service] + len(processes) > least:
                leave = [
                    literal
                    for p in processes
                    for m in self._machines
                    if (literal := self.runs.get((p, m))) is not None and m != instance.initial[p]
                ]
                self.model.add(most >= cp_model.LinearExpr.sum(leave) + int(moved[service]))
        self._objective.append(int(instance.service_weight) * most)
