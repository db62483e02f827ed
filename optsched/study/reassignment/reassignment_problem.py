"""Machine reassignment: processes that run somewhere, and where they would run better.

The problem of the ROADEF/EURO challenge 2012, set by Google: Afsar et al., "Machine reassignment
problem: the ROADEF/EURO challenge 2012", Annals of Operations Research 242, 2016. Amounts are the
plain whole numbers of its instances.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Assignment: TypeAlias = "Sequence[int]"
"""Machine of each process."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of machines."""

    is_transient: bool  # whether a process that moves needs it on both machines
    load_weight: int  # cost of each unit above the safety capacity of a machine


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine."""

    # neighbourhood, location: numbers of the groups it belongs to
    neighbourhood: int
    location: int
    # capacity, safety: by resource: the hard capacity, and the safe capacity above which use costs
    capacity: tuple[int, ...]
    safety: tuple[int, ...]
    move_cost: tuple[int, ...]  # by machine: the cost of a process that comes from here


@dataclass(frozen=True, slots=True)
class Service:
    """Processes that never share a machine."""

    min_locations: int  # in how many locations they run at least
    # Services of which a process runs in each neighbourhood where one of this service does
    depends_on: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its service, its requests by resource, and the cost of moving it."""

    service: int
    request: tuple[int, ...]
    move_cost: int


@dataclass(frozen=True, slots=True)
class Balance:
    """For each unit free of one resource, so many of another should be free, too."""

    of: int
    against: int
    target: int
    weight: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An instance."""

    resources: tuple[Resource, ...]
    machines: tuple[Machine, ...]
    services: tuple[Service, ...]
    processes: tuple[Process, ...]
    balances: tuple[Balance, ...]
    initial: tuple[int, ...]  # where the processes run
    # process_weight, service_weight, machine_weight: of the three costs of moving
    process_weight: int
    service_weight: int
    machine_weight: int


@dataclass(frozen=True, slots=True)
class ReassignmentCost:
    """The five terms, weighted; a solution is worth their sum."""

    load: int
    balance: int
    process_moves: int
    service_moves: int
    machine_moves: int

    @property
    def total(self) -> int:
        """The figure by which the challenge ranks."""
        moves = self.process_moves + self.service_moves + self.machine_moves
        return self.load + self.balance + moves


def cost_of(problem: Reassignment, machine_of: Assignment) -> ReassignmentCost:
    """The cost of an assignment, whether it is allowed or not."""
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
    """By machine and resource."""
    used = [[0] * len(problem.resources) for _ in problem.machines]
    for process, machine in zip(problem.processes, machine_of, strict=True):
        row = used[machine]
        for r, amount in enumerate(process.request):
            row[r] += amount
    return used


def wrong_with(problem: Reassignment, machine_of: Assignment) -> list[str]:
    """Every rule that an assignment breaks, one sentence each; none where it is allowed."""
    strange = [p for p, m in enumerate(machine_of) if not 0 <= m < len(problem.machines)]
    if len(machine_of) != len(problem.processes) or strange:
        return [f"{len(machine_of)} processes have machines, {len(strange)} of them unknown ones"]
    return [*_overfull(problem, machine_of), *_misplaced(problem, machine_of)]


def _overfull(problem: Reassignment, machine_of: Assignment) -> Iterator[str]:
    """Capacity; of transient resources what leaves counts, too."""
    used = _used_capacity(problem, machine_of)
    for p, machine in enumerate(problem.initial):
        if machine_of[p] != machine:
            for r, resource in enumerate(problem.resources):
                used[machine][r] += problem.processes[p].request[r] * resource.is_transient
    for m, row in enumerate(used):
        for r, capacity in enumerate(problem.machines[m].capacity):
            if row[r] > capacity:
                yield f"machine {m} has {capacity} of resource {r}; {row[r]} are used"


def _misplaced(problem: Reassignment, machine_of: Assignment) -> Iterator[str]:
    """Services that share a machine, run in too few locations, or lack what they depend on."""
    services = [process.service for process in problem.processes]
    for (service, machine), number in Counter(zip(services, machine_of, strict=True)).items():
        if number > 1:
            yield f"{number} processes of service {service} share machine {machine}"
    locations: dict[int, set[int]] = defaultdict(set)
    around: dict[int, set[int]] = defaultdict(set)
    for s, machine in zip(services, machine_of, strict=True):
        locations[s].add(problem.machines[machine].location)
        around[s].add(problem.machines[machine].neighbourhood)
    for s, each in enumerate(problem.services):
        if len(locations[s]) < each.min_locations:
            found, least = len(locations[s]), each.min_locations
            yield f"service {s} runs in {found} locations; it needs {least}"
    for s, each in enumerate(problem.services):
        for other in each.depends_on:
            for neighbourhood in sorted(around[s] - around[other]):
                yield f"service {s} lacks service {other} in neighbourhood {neighbourhood}"
