"""Machine reassignment: move running processes between machines to reduce the cost.

Google posed this problem for the ROADEF/EURO challenge 2012. Source: Afsar et al., "Machine
reassignment problem: the ROADEF/EURO challenge 2012", Annals of Operations Research 242, 2016.
Requests, capacities and costs are integers without units, as in the instances of the ROADEF/EURO
challenge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Assignment: TypeAlias = "Sequence[int]"
"""Index of the machine of each process."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the machines."""

    is_transient: bool  # Whether a moved process keeps its request on its initial machine.
    load_weight: int  # Cost per unit of usage above a machine's safety capacity.


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, with its capacities and the costs of moving a process from it to each machine."""

    # Indices of the machine's neighbourhood and location.
    neighbourhood: int
    location: int
    # Capacity and safety capacity per resource. Usage above the safety capacity has a cost.
    capacity: tuple[int, ...]
    safety: tuple[int, ...]
    move_cost: tuple[int, ...]  # Cost of moving a process to each target machine.


@dataclass(frozen=True, slots=True)
class Service:
    """A set of processes, no two of which may run on the same machine."""

    min_locations: int  # Minimum number of locations in which the service must run.
    # Services that must have a process in each neighbourhood in which this service has one.
    depends_on: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its service, its request for each resource, and the cost of moving it."""

    service: int
    request: tuple[int, ...]
    move_cost: int


@dataclass(frozen=True, slots=True)
class Balance:
    """A balance cost between the idle capacities of two resources of a machine.

    For each idle unit of resource `of`, `target` units of resource `against` should be idle. Each
    missing unit costs `weight`.
    """

    of: int
    against: int
    target: int
    weight: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An instance of machine reassignment."""

    resources: tuple[Resource, ...]
    machines: tuple[Machine, ...]
    services: tuple[Service, ...]
    processes: tuple[Process, ...]
    balances: tuple[Balance, ...]
    initial: tuple[int, ...]  # Machine on which each process runs initially.
    # Weights of the process, service and machine move costs.
    process_weight: int
    service_weight: int
    machine_weight: int


@dataclass(frozen=True, slots=True)
class ReassignmentCost:
    """The five weighted cost terms of an assignment."""

    load: int
    balance: int
    process_moves: int
    service_moves: int
    machine_moves: int

    @property
    def total(self) -> int:
        """The total cost, by which the ROADEF/EURO challenge ranks solutions."""
        moves = self.process_moves + self.service_moves + self.machine_moves
        return self.load + self.balance + moves


def cost_of(problem: Reassignment, machine_of: Assignment) -> ReassignmentCost:
    """Return the cost of an assignment, which may be infeasible."""
    used = _used_capacity(problem, machine_of)
    moved = [p for p, m in enumerate(machine_of) if m != problem.initial[p]]
    of_service = Counter(problem.processes[p].service for p in moved)
    on_the_way = (problem.machines[problem.initial[p]].move_cost[machine_of[p]] for p in moved)
    load = total = 0
    for machine, row in zip(problem.machines, used, strict=True):
        for r, resource in enumerate(problem.resources):
            load += resource.load_weight * max(0, row[r] - machine.safety[r])
        for b in problem.balances:
            free, other = (machine.capacity[r] - row[r] for r in (b.of, b.against))
            total += b.weight * max(0, b.target * free - other)
    return ReassignmentCost(
        load=load,
        balance=total,
        process_moves=problem.process_weight * sum(problem.processes[p].move_cost for p in moved),
        service_moves=problem.service_weight * max(of_service.values(), default=0),
        machine_moves=problem.machine_weight * sum(on_the_way),
    )


def _used_capacity(problem: Reassignment, machine_of: Assignment) -> list[list[int]]:
    """Return the used capacity, indexed by machine and resource."""
    used = [[0] * len(problem.resources) for _ in problem.machines]
    for process, machine in zip(problem.processes, machine_of, strict=True):
        row = used[machine]
        for r, amount in enumerate(process.request):
            row[r] += amount
    return used


def wrong_with(problem: Reassignment, machine_of: Assignment) -> list[str]:
    """Return a message for each constraint that an assignment violates."""
    strange = [p for p, m in enumerate(machine_of) if not 0 <= m < len(problem.machines)]
    if len(machine_of) != len(problem.processes) or strange:
        return [f"{len(machine_of)} processes are assigned, {len(strange)} to unknown machines"]
    used = _used_capacity(problem, machine_of)
    for p, initial in enumerate(problem.initial):
        if machine_of[p] != initial:
            # A moved process still occupies transient resources of its initial machine.
            for r, resource in enumerate(problem.resources):
                used[initial][r] += problem.processes[p].request[r] * resource.is_transient
    wrong = [
        f"machine {m} has {capacity} of resource {r}; {used[m][r]} are used"
        for m, machine in enumerate(problem.machines)
        for r, capacity in enumerate(machine.capacity)
        if used[m][r] > capacity
    ]
    # Check the service constraints: at most one process per machine, minimum number of locations,
    # dependencies.
    services = [process.service for process in problem.processes]
    on_machine = Counter(zip(services, machine_of, strict=True))
    wrong += [
        f"{number} processes of service {service} share machine {machine}"
        for (service, machine), number in on_machine.items()
        if number > 1
    ]
    locations: dict[int, set[int]] = defaultdict(set)
    around: dict[int, set[int]] = defaultdict(set)
    for s, m in on_machine:
        locations[s].add(problem.machines[m].location)
        around[s].add(problem.machines[m].neighbourhood)
    wrong += [
        f"service {s} runs in {len(locations[s])} locations; it needs {each.min_locations}"
        for s, each in enumerate(problem.services)
        if len(locations[s]) < each.min_locations
    ]
    wrong += [
        f"service {s} lacks service {other} in neighbourhood {neighbourhood}"
        for s, each in enumerate(problem.services)
        for other in each.depends_on
        for neighbourhood in sorted(around[s] - around[other])
    ]
    return wrong
