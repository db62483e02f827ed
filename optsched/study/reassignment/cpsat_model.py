"""A CP-SAT model that reassigns some processes to some machines; all other processes are fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from optsched.solver.cpsat.integer_program import create_solver

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.study.reassignment.assignment_state import Instance


_Literals: TypeAlias = "dict[int, list[cp_model.IntVar]]"


@dataclass(frozen=True)
class Spending:
    """Solver settings: wall-clock limit in seconds or None, deterministic limit, and seed."""

    seconds: float | None
    effort: float
    seed: int


@dataclass(frozen=True, eq=False)
class ReassignmentSolution:
    """The machine (P,) of each process, whether that is proved optimal, and the solve time.

    The solve time `effort` is in CP-SAT deterministic time.
    """

    machine_of: I64
    is_best: bool
    effort: float


def reassign(
    instance: Instance, machine_of: I64, free: I64, machines: I64, spending: Spending
) -> ReassignmentSolution | None:
    """Return the best assignment in which only the processes `free` move, and only to `machines`.

    The assignment `machine_of` (P,) must be feasible, with all processes in `free` on `machines`.
    Returns None if the solver finds no solution within its limits.
    """
    model = _Model(instance, machine_of, free, machines)
    solver = create_solver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = spending.seed
    parameters.max_deterministic_time = spending.effort
    parameters.cp_model_probing_level = 0
    if spending.seconds is not None:
        parameters.max_time_in_seconds = spending.seconds
    status = solver.solve(model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    found = machine_of.copy()
    for (p, m), literal in model.runs.items():
        if solver.boolean_value(literal):
            found[p] = m
    effort = solver.response_proto.deterministic_time
    return ReassignmentSolution(found, status == cp_model.OPTIMAL, effort)


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
        """Return the processes that may move to a machine."""
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
        """Return the fixed processes on a machine."""
        return [p for p in self._here.tolist() if self._machine_of[p] == machine]

    def _groups(self, service: int, group_of: I64) -> tuple[set[int], _Literals]:
        """Return the groups with a fixed process of a service, and literals for all other groups.

        A group is a location or a neighbourhood; `group_of` (M,) is the group of each machine. For
        each group, the literals are true if a free process of the service moves into the group.
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
        """Add the cost terms of each machine to the objective."""
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
        """Add the process, machine and service move costs to the objective."""
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
