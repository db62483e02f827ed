"""Draw small instances of machine reassignment, and find their optimum by enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np

from optsched.study.reassignment.reassignment_problem import (
    Balance,
    Machine,
    Process,
    Reassignment,
    Resource,
    Service,
    cost_of,
    wrong_with,
)


def some_reassignment(seed: int, most_processes: int = 6, most_machines: int = 3) -> Reassignment:
    """Return an instance with constraints of every type and a feasible initial assignment."""
    random = np.random.default_rng(seed)
    num_machines = int(random.integers(2, most_machines + 1))
    num, num_services = int(random.integers(2, most_processes + 1)), most_processes - 1
    num_resources = int(random.integers(1, 4))
    initial = random.integers(num_machines, size=num).tolist()
    taken: set[tuple[int, int]] = set()
    processes = []
    for machine in initial:
        free = [s for s in range(num_services) if (s, machine) not in taken]
        service = int(random.choice(free)) if free else num_services + len(processes)
        taken.add((service, machine))
        request = tuple(random.integers(0, 10, num_resources).tolist())
        processes.append(Process(service, request, int(random.integers(0, 5))))
    resources = tuple(
        Resource(bool(random.integers(2)), int(random.integers(0, 11)))
        for _ in range(num_resources)
    )
    machines = _machines(
        random, num_machines, [(m, p.request) for m, p in zip(initial, processes, strict=True)]
    )
    services = _services(random, 2 * num_services + num, machines, initial, processes)
    balances = tuple(
        Balance(*random.integers(0, num_resources, 2).tolist(), 2, int(random.integers(0, 5)))
        for _ in range(int(random.integers(0, 3)))
    )
    weights = (1, 3, 2) if seed % 4 else (0, 0, 0)
    return Reassignment(
        resources, machines, services, tuple(processes), balances, tuple(initial), *weights
    )


def _machines(random: np.random.Generator, number: int, placed: list) -> tuple[Machine, ...]:
    machines = []
    for m in range(number):
        used = np.sum(
            [r for at, r in placed if at == m] or [np.zeros(len(placed[0][1]), int)], axis=0
        )
        capacity = used + random.integers(0, 15, len(used))
        safety = (capacity * random.uniform(0.2, 1, len(used))).astype(int)
        machines.append(
            Machine(
                int(random.integers(2)) * 7,
                int(random.integers(3)) * 5,
                tuple(capacity.tolist()),
                tuple(safety.tolist()),
                tuple(0 if m == t else int(random.integers(4)) for t in range(number)),
            )
        )
    return tuple(machines)


def _services(
    random: np.random.Generator,
    number: int,
    machines: tuple[Machine, ...],
    initial: list[int],
    processes: list[Process],
) -> tuple[Service, ...]:
    """Return services with about half of the constraints that the initial assignment satisfies."""
    places = [
        {machines[m].location for p, m in zip(processes, initial, strict=True) if p.service == s}
        for s in range(number)
    ]
    around = [
        {
            machines[m].neighbourhood
            for p, m in zip(processes, initial, strict=True)
            if p.service == s
        }
        for s in range(number)
    ]
    return tuple(
        Service(
            int(random.integers(0, len(places[s]) + 1)),
            tuple(
                d
                for d in range(number)
                if around[d] and around[s] <= around[d] and random.random() < 0.5
            ),
        )
        for s in range(number)
    )


def least_cost(problem: Reassignment) -> int:
    """Return the minimum cost by enumeration."""
    return min(
        cost_of(problem, machine_of).total
        for machine_of in product(range(len(problem.machines)), repeat=len(problem.processes))
        if not wrong_with(problem, machine_of)
    )
