"""A machine reassignment instance as arrays, and the state of an assignment during a search.

Axes: P processes, M machines, R resources, C cost terms, S services, L locations, N neighbourhoods.
Integers are stored as float64, which is exact below 2**53.

A move updates the state incrementally. Moves are evaluated in batches: shifts of some processes to
every machine, or swaps between two sets of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.reassignment.reassignment_problem import Reassignment


EXACT: Final = float(2**53)
"""Integers below this limit are represented exactly in float64."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A machine reassignment instance as arrays.

    On each machine m, cost term c is `weight[c] · max(0, Σ demand[c, processes on m] − spare[c,
    m])`. In the load cost of a resource, `spare` is the safety capacity. In a balance cost, the
    demand of a process may be negative.
    """

    # Request of each process, shape (R, P); `lasting` is the request without transient resources.
    request: F64
    lasting: F64
    # Capacity of each machine minus the transient requests of the processes that initially run on
    # it, shape (R, M). Processes occupy transient resources of their initial machine even after
    # they have moved away.
    capacity: F64
    # For each cost term: the demand of each process, shape (C, P), the threshold of each machine
    # above which demand has a cost, shape (C, M), and the weight, shape (C,).
    demand: F64
    spare: F64
    weight: F64
    # Cost of moving a process to a machine, without the service move cost, shape (P, M).
    move_cost: F64
    # Service and initial machine of each process, shape (P,).
    service: I64
    initial: I64
    # Location index and neighbourhood index of each machine, shape (M,).
    location: I64
    neighbourhood: I64
    min_locations: I64  # Minimum number of locations in which each service must run, shape (S,).
    # For each service, the sorted services on which it depends, and the sorted services that depend
    # on it.
    depends_on: tuple[I64, ...]
    needed_by: tuple[I64, ...]
    # Weight of the service move cost; this cost is the largest number of moved processes of a
    # service.
    service_weight: float

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        frozen(*(getattr(self, name) for name in self.__dataclass_fields__))

    @classmethod
    def from_problem(cls, problem: Reassignment) -> Instance:
        """Convert an instance to arrays.

        Raises ValueError if the instance has no process, no machine or no resource, or if costs may
        exceed the range in which float64 is exact.
        """
        if not (problem.processes and problem.machines and problem.resources):
            raise ValueError("there is no process, no machine or no resource")
        request = np.array([p.request for p in problem.processes], np.float64).T
        is_transient = np.array([r.is_transient for r in problem.resources])
        lasting = request * ~is_transient[:, None]
        initial = np.array(problem.initial, np.int64)
        capacity = np.array([m.capacity for m in problem.machines], np.float64).T
        for r, amounts in enumerate(request - lasting):
            capacity[r] -= np.bincount(initial, amounts, len(problem.machines))
        demand, spare, weight = _cost_terms(problem, request)
        between = np.array([m.move_cost for m in problem.machines], np.float64)[initial]
        own = np.array([p.move_cost for p in problem.processes], np.float64)[:, None]
        move_cost = problem.machine_weight * between + problem.process_weight * own
        move_cost[np.arange(len(initial)), initial] = 0
        # Pairs (service, service on which it depends).
        pairs = [
            (s, d)
            for s, service in enumerate(problem.services)
            for d in service.depends_on
            if d != s
        ]
        found = cls(
            request=request,
            lasting=lasting,
            capacity=capacity,
            demand=demand,
            spare=spare,
            weight=weight,
            move_cost=move_cost,
            service=np.array([p.service for p in problem.processes], np.int64),
            initial=initial,
            location=_numbered([m.location for m in problem.machines]),
            neighbourhood=_numbered([m.neighbourhood for m in problem.machines]),
            min_locations=np.array([s.min_locations for s in problem.services], np.int64),
            depends_on=_dependencies(pairs, len(problem.services)),
            needed_by=_dependencies([(d, s) for s, d in pairs], len(problem.services)),
            service_weight=float(problem.service_weight),
        )
        most = np.abs(demand).sum(axis=1) + np.abs(spare).sum(axis=1)
        moves = np.abs(found.move_cost).max(axis=1, initial=0).sum()
        moves += found.service_weight * len(found.service)
        if most @ weight + moves + np.abs(capacity).sum() >= EXACT:
            raise ValueError("amounts and weights are too large: costs may reach 2**53")
        return found

    @cached_property
    def is_bound(self) -> Bool:
        """Whether each service is constrained, shape (S,).

        A constrained service has dependencies, dependents or several required locations.
        """
        pairs = zip(self.depends_on, self.needed_by, strict=True)
        return np.array([len(d) + len(n) > 0 for d, n in pairs]) | (self.min_locations > 1)

    @property
    def num_processes(self) -> int:
        """Number of processes, P."""
        return int(self.request.shape[1])

    @property
    def num_machines(self) -> int:
        """Number of machines, M."""
        return int(self.capacity.shape[1])


def _cost_terms(problem: Reassignment, request: F64) -> tuple[F64, F64, F64]:
    """Return the demands, thresholds and weights of the cost terms with positive weight.

    If no weight is positive, return the first cost term.
    """
    safety = np.array([m.safety for m in problem.machines], np.float64).T
    capacity = np.array([m.capacity for m in problem.machines], np.float64).T
    demand, spare = list(request), list(safety)
    weight = [r.load_weight for r in problem.resources]
    for b in problem.balances:
        demand.append(request[b.against] - b.target * request[b.of])
        spare.append(capacity[b.against] - b.target * capacity[b.of])
        weight.append(b.weight)
    counts = np.array(weight, np.float64)
    kept = counts > 0
    kept[0] |= not kept.any()
    return np.array(demand)[kept], np.array(spare)[kept], counts[kept]


def _numbered(names: Sequence[int]) -> I64:
    """Replace each number by its index in the sorted list of distinct numbers."""
    return np.unique(np.array(names, np.int64), return_inverse=True)[1].astype(np.int64)


def _dependencies(pairs: Sequence[tuple[int, int]], number: int) -> tuple[I64, ...]:
    found: list[set[int]] = [set() for _ in range(number)]
    for service, other in pairs:
        found[service].add(other)
    return tuple(np.array(sorted(others), np.int64) for others in found)


class _MovedProcesses:
    """The number of moved processes of each service, shape (S,); `most` is the maximum."""

    def __init__(self, number: I64, num_processes: int) -> None:
        self.number, self.most = number, int(number.max(initial=0))
        self._services_with = np.bincount(number, minlength=num_processes + 2)

    def change(self, service: int, by: int) -> None:
        """Add `by` (1 or −1) to the number of moved processes of one service."""
        now = int(self.number[service]) + by
        self._services_with[now - by] -= 1
        self._services_with[now] += 1
        self.number[service] = now
        if now > self.most or (now == self.most - 1 and self._services_with[self.most] == 0):
            self.most = now

    def max_of_others(self, moved: I64) -> I64:
        """For each of K services, return the maximum of `number` over all other services.

        `moved` (K,) is the number of moved processes of each of the K services.
        """
        if self._services_with[self.most] > 1 or self.most == 0:
            return np.full(len(moved), self.most)
        second = int(np.flatnonzero(self._services_with[: self.most]).max(initial=0))
        return np.where(moved == self.most, second, self.most)


class AssignmentState:
    """A feasible assignment, with its cost and the cost changes of moves.

    `machine_of` (P,) is the machine of each process. `cost` is the total cost. `excess` (C, M) is
    each machine's demand minus its threshold, for each cost term. `slack` (R, M) is the idle
    capacity. `term_cost` (M,) is the sum of the cost terms on each machine.
    """

    def __init__(self, instance: Instance, machine_of: I64) -> None:
        self.instance = instance
        self.machine_of = machine_of.copy()
        num_machines, num_services = instance.num_machines, len(instance.min_locations)
        self._takes = np.where(machine_of == instance.initial, instance.lasting, instance.request)
        self.excess = sum_by_machine(machine_of, instance.demand, num_machines) - instance.spare
        self.slack = instance.capacity - sum_by_machine(machine_of, self._takes, num_machines)
        self.term_cost: F64 = instance.weight @ np.maximum(self.excess, 0)
        service = instance.service
        self._on = _counts(num_services, service, num_machines, machine_of)
        places, around = instance.location, instance.neighbourhood
        self._at = _counts(num_services, service, int(places.max()) + 1, places[machine_of])
        self._around = _counts(num_services, service, int(around.max()) + 1, around[machine_of])
        self._spread = (self._at > 0).sum(axis=1)
        here = self._around > 0
        self._lacking = np.array([(~here[d]).sum(axis=0) for d in instance.depends_on])
        self._needed = np.array([here[d].sum(axis=0) for d in instance.needed_by])
        moved = np.bincount(service[machine_of != instance.initial], minlength=num_services)
        self._moved = _MovedProcesses(moved, instance.num_processes)
        each = self.instance.move_cost[np.arange(len(self.machine_of)), self.machine_of]
        self.cost = float(
            self.term_cost.sum()
            + float(each.sum() + self.instance.service_weight * self._moved.most)
        )

    # --- shifts ----------------------------------------------------------------------------------

    def shifts(self, processes: I64) -> F64:
        """Return the cost change of moving each of K processes to each machine, shape (K, M).

        The cost change is 0 for the current machine and infinite for an infeasible move.
        """
        instance, rows = self.instance, np.arange(len(processes))
        current, demand = self.machine_of[processes], instance.demand[:, processes]
        after = self.excess[:, None, :] + demand[:, :, None]
        np.maximum(after, 0, out=after)
        delta: F64 = (instance.weight @ after.reshape(len(after), -1)).reshape(len(rows), -1)
        delta -= self.term_cost
        away = instance.weight @ np.maximum(self.excess[:, current] - demand, 0)
        move_cost = instance.move_cost[processes]
        away -= self.term_cost[current] + move_cost[rows, current]
        delta += away[:, None]
        delta += move_cost
        # A shift may also change the maximum number of moved processes over all services, and thus
        # the service move cost.
        initial, moved = (
            instance.initial[processes],
            self._moved.number[instance.service[processes]],
        )
        is_home = initial == current
        most_after = np.maximum(self._moved.max_of_others(moved), moved + np.where(is_home, 1, -1))
        change = (most_after - self._moved.most) * instance.service_weight
        delta += (change * is_home)[:, None]
        back = np.flatnonzero(~is_home)
        delta[back, initial[back]] += change[back]
        delta[~self._may_shift(processes, current)] = np.inf
        delta[rows, current] = 0
        return delta

    def _may_shift(self, processes: I64, current: I64) -> Bool:
        instance = self.instance
        service, initial = instance.service[processes], instance.initial[processes]
        fits = _all_resources(self.slack[:, None, :] >= instance.request[:, processes, None])
        rows = np.arange(len(processes))
        fits[rows, initial] = (self.slack[:, initial] >= instance.lasting[:, processes]).all(axis=0)
        fits &= self._on[service] == 0
        if not self.instance.is_bound[service].any():
            return fits
        fits &= (self._lacking[service] == 0)[:, instance.neighbourhood]
        around = instance.neighbourhood[current]
        is_needed = (self._around[service, around] == 1) & (self._needed[service, around] > 0)
        fits &= ~is_needed[:, None] | (instance.neighbourhood == around[:, None])
        place = instance.location[current]
        is_last = self._at[service, place] == 1
        is_tight = self._spread[service] - is_last < instance.min_locations[service]
        is_new = self._at[service][:, instance.location] == 0
        fits &= ~is_tight[:, None] | is_new | (instance.location == place[:, None])
        return fits

    # --- swaps -----------------------------------------------------------------------------------

    def swaps(self, processes: I64, others: I64) -> F64:
        """Return the cost change of swapping each process with each of `others`, shape (K, Q).

        The cost change excludes the service move cost. For two processes on the same machine, the
        cost change is meaningless.
        """
        instance = self.instance
        machines, other_machines = self.machine_of[processes], self.machine_of[others]
        demand, other_demand = instance.demand[:, processes], instance.demand[:, others]
        delta = self._excess_cost(
            (self.excess[:, machines] - demand)[:, :, None] + other_demand[:, None, :]
        )
        delta += self._excess_cost(
            (self.excess[:, other_machines] - other_demand)[:, None, :] + demand[:, :, None]
        )
        leave = self.term_cost[machines] + instance.move_cost[processes, machines]
        delta -= leave[:, None] + (
            self.term_cost[other_machines] + instance.move_cost[others, other_machines]
        )
        delta += instance.move_cost[processes[:, None], other_machines]
        delta += instance.move_cost[others, machines[:, None]]
        return delta

    def _excess_cost(self, excess: F64) -> F64:
        """Return the weighted sum of positive excess over all cost terms; overwrite `excess`."""
        np.maximum(excess, 0, out=excess)
        cost: F64 = self.instance.weight @ excess.reshape(len(excess), -1)
        return cost.reshape(excess.shape[1:])

    def may_swap(self, processes: I64, others: I64) -> Bool:
        """Return whether process k may swap machines with process k of `others`, shape (K,).

        Only two constraints are checked: capacity, and that no two processes of a service share a
        machine. `swap` checks the other constraints.
        """
        machines, other_machines = self.machine_of[processes], self.machine_of[others]
        found = _all_resources(self._released_load(processes) >= self._added_load(others, machines))
        found &= _all_resources(
            self._released_load(others) >= self._added_load(processes, other_machines)
        )
        service, other = self.instance.service[processes], self.instance.service[others]
        found &= (service == other) | (
            self._on[service, other_machines] + self._on[other, machines] == 0
        )
        found &= machines != other_machines
        return found

    def _released_load(self, processes: I64) -> F64:
        """Return the idle capacity of each process's machine without the process, shape (R, K)."""
        return self.slack[:, self.machine_of[processes]] + self._takes[:, processes]

    def _added_load(self, processes: I64, machines: I64) -> F64:
        """Return the capacity that each process would use on the given machine, shape (R, K)."""
        instance = self.instance
        is_home = instance.initial[processes] == machines
        return np.where(is_home, instance.lasting[:, processes], instance.request[:, processes])

    # --- moves -----------------------------------------------------------------------------------

    def shift(self, p: int, machine: int) -> bool:
        """Move a process to a machine where it fits.

        Returns False and changes nothing if a service constraint forbids the move.
        """
        service, current = int(self.instance.service[p]), int(self.machine_of[p])
        if self._on[service, machine]:
            return False
        self.move(p, machine)
        if self._is_sound(service):
            return True
        self.move(p, current)
        return False

    def swap(self, p: int, q: int) -> bool:
        """Swap two processes for which `may_swap` is True.

        Returns False and changes nothing if a service constraint forbids the swap.
        """
        first, second = int(self.machine_of[p]), int(self.machine_of[q])
        self.move(p, second)
        self.move(q, first)
        services = self.instance.service
        if self._is_sound(int(services[p])) and self._is_sound(int(services[q])):
            return True
        self.move(p, first)
        self.move(q, second)
        return False

    def _is_sound(self, service: int) -> bool:
        """Return whether a service meets its location and dependency constraints."""
        if not self.instance.is_bound[service]:
            return True
        if self._spread[service] < self.instance.min_locations[service]:
            return False
        here = self._around[service] > 0
        return not np.where(here, self._lacking[service], self._needed[service]).any()

    def move(self, p: int, machine: int) -> None:
        """Move a process to a machine without checking constraints."""
        instance, here = self.instance, int(self.machine_of[p])
        if machine == here:
            return
        both, home = [here, machine], int(instance.initial[p])
        self.cost -= float(self.term_cost[here] + self.term_cost[machine])
        demand = instance.demand[:, p]
        self.excess[:, here] -= demand
        self.excess[:, machine] += demand
        self.slack[:, here] += self._takes[:, p]
        self._takes[:, p] = instance.lasting[:, p] if machine == home else instance.request[:, p]
        self.slack[:, machine] -= self._takes[:, p]
        self.term_cost[both] = instance.weight @ np.maximum(self.excess[:, both], 0)
        self.cost += float(self.term_cost[here] + self.term_cost[machine])
        self.cost += float(instance.move_cost[p, machine] - instance.move_cost[p, here])
        self.machine_of[p] = machine
        self._move_service(p, here, machine)
        if home in both:
            most = self._moved.most
            self._moved.change(int(instance.service[p]), 1 if here == home else -1)
            self.cost += self.instance.service_weight * (self._moved.most - most)

    def _move_service(self, p: int, here: int, machine: int) -> None:
        """Update the counts of a process's service after its move from `here` to `machine`."""
        instance = self.instance
        s = int(instance.service[p])
        self._on[s, machine] += 1
        self._on[s, here] -= 1
        if not self.instance.is_bound[s]:
            return
        places = instance.location
        self._at[s, places[here]] -= 1
        self._spread[s] -= self._at[s, places[here]] == 0
        self._spread[s] += self._at[s, places[machine]] == 0
        self._at[s, places[machine]] += 1
        before, after = int(instance.neighbourhood[here]), int(instance.neighbourhood[machine])
        if before == after:
            return
        self._around[s, before] -= 1
        if self._around[s, before] == 0:
            self._lacking[instance.needed_by[s], before] += 1
            self._needed[instance.depends_on[s], before] -= 1
        if self._around[s, after] == 0:
            self._lacking[instance.needed_by[s], after] -= 1
            self._needed[instance.depends_on[s], after] += 1
        self._around[s, after] += 1


def sum_by_machine(machine_of: I64, amounts: F64, num_machines: int) -> F64:
    """Sum `amounts` (*, P) over the processes on each machine; return an array (*, M)."""
    rows = [np.bincount(machine_of, row, num_machines) for row in amounts]
    return np.array(rows, np.float64).reshape(len(amounts), num_machines)


def _all_resources(true: Bool) -> Bool:
    found: Bool = np.logical_and.reduce(true, axis=0)
    return found


def _counts(num_rows: int, rows: I64, num_columns: int, columns: I64) -> I64:
    """Return a matrix with the number of occurrences of each (row, column) pair."""
    counts = np.zeros((num_rows, num_columns), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return counts
