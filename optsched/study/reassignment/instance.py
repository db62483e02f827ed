"""An instance of machine reassignment as arrays.

Axes: P processes, M machines, R resources, C terms of cost, S services, L locations, N
neighbourhoods. Whole numbers are kept as float64, which is exact below 2**53.
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
"""Whole numbers below are exact."""


@dataclass(frozen=True, eq=False)
class Instance:
    """See the module.

    A term of cost c is worth `weight[c] · max(0, Σ demand[c, processes there] − spare[c, m])` on
    each machine m: the load of a resource is one, with the safety capacity to spare, and so is a
    balance, whose demand may be below zero.
    """

    # request, lasting: (R, P) what a process requests, and the same without transient resources
    request: F64
    lasting: F64
    # (R, M) capacity without the transient requests of those that run there at first: these stay,
    # whichever process moves
    room: F64
    # demand, spare, weight: (C, P), (C, M), (C,), see above
    demand: F64
    spare: F64
    weight: F64
    move_cost: F64  # (P, M) of a process that ends on a machine, but for the cost of services
    # service, initial: (P,)
    service: I64
    initial: I64
    # location, neighbourhood: (M,), numbered from 0 on
    location: I64
    neighbourhood: I64
    min_locations: I64  # (S,)
    # depends_on, needed_by: by service: others, sorted
    depends_on: tuple[I64, ...]
    needed_by: tuple[I64, ...]
    service_weight: float  # cost of each process that the service with most moved ones moves

    def __post_init__(self) -> None:
        """Keep the assignment unchanged."""
        frozen(*(getattr(self, name) for name in self.__dataclass_fields__))

    @classmethod
    def from_problem(cls, problem: Reassignment) -> Instance:
        """Arrays of an instance.

        Raises ValueError: its numbers are so large that sums of them may not be exact, or it is
        empty.
        """
        if not (problem.processes and problem.machines and problem.resources):
            raise ValueError("there is no process, no machine or no resource")
        request = np.array([p.request for p in problem.processes], np.float64).T
        is_transient = np.array([r.is_transient for r in problem.resources])
        lasting = request * ~is_transient[:, None]
        initial = np.array(problem.initial, np.int64)
        room = np.array([m.capacity for m in problem.machines], np.float64).T
        for r, amounts in enumerate(request - lasting):
            room[r] -= np.bincount(initial, amounts, len(problem.machines))
        demand, spare, weight = _terms(problem, request)
        found = cls(
            request=request,
            lasting=lasting,
            room=room,
            demand=demand,
            spare=spare,
            weight=weight,
            move_cost=_move_cost(problem, initial),
            service=np.array([p.service for p in problem.processes], np.int64),
            initial=initial,
            location=_numbered([m.location for m in problem.machines]),
            neighbourhood=_numbered([m.neighbourhood for m in problem.machines]),
            min_locations=np.array([s.min_locations for s in problem.services], np.int64),
            depends_on=_dependencies([(s, d) for s, d in _pairs(problem)], len(problem.services)),
            needed_by=_dependencies([(d, s) for s, d in _pairs(problem)], len(problem.services)),
            service_weight=float(problem.service_weight),
        )
        most = np.abs(demand).sum(axis=1) + np.abs(spare).sum(axis=1)
        moves = np.abs(found.move_cost).max(axis=1, initial=0).sum()
        moves += found.service_weight * len(found.service)
        if most @ weight + moves + np.abs(room).sum() >= EXACT:
            raise ValueError("amounts and weights are too large: costs may reach 2**53")
        return found

    @cached_property
    def is_bound(self) -> Bool:
        """(S,) services whose processes depend on others, are needed, or need locations."""
        pairs = zip(self.depends_on, self.needed_by, strict=True)
        return np.array([len(d) + len(n) > 0 for d, n in pairs]) | (self.min_locations > 1)

    @property
    def num_processes(self) -> int:
        """P."""
        return int(self.request.shape[1])

    @property
    def num_machines(self) -> int:
        """M."""
        return int(self.room.shape[1])


def _terms(problem: Reassignment, request: F64) -> tuple[F64, F64, F64]:
    """Demand, spare and weight of the terms whose weight is not 0, at least one."""
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


def _move_cost(problem: Reassignment, initial: I64) -> F64:
    between = problem.machine_weight * np.array([m.move_cost for m in problem.machines], np.float64)
    own = problem.process_weight * np.array([p.move_cost for p in problem.processes], np.float64)
    cost = between[initial] + own[:, None]
    cost[np.arange(len(initial)), initial] = 0
    return cost


def _numbered(names: Sequence[int]) -> I64:
    return np.unique(np.array(names, np.int64), return_inverse=True)[1].astype(np.int64)


def _pairs(problem: Reassignment) -> list[tuple[int, int]]:
    """Services and those they depend on, without themselves."""
    return [
        (s, d) for s, service in enumerate(problem.services) for d in service.depends_on if d != s
    ]


def _dependencies(pairs: Sequence[tuple[int, int]], number: int) -> tuple[I64, ...]:
    found: list[set[int]] = [set() for _ in range(number)]
    for service, other in pairs:
        found[service].add(other)
    return tuple(np.array(sorted(others), np.int64) for others in found)
