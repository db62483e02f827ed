"""Lower bounds on the cost of every assignment, from dual prices of demand and of capacity.

Let process p on machine m pay move_cost[p, m] + Σ_c a[c, m]·demand[c, p] + Σ_r b[r, m]·takes[r, p,
m], where takes[r, p, m] is the amount of resource r that process p uses on machine m. Let 0 ≤ a[c,
m] ≤ weight[c] and b ≥ 0. Then every feasible assignment costs at least the total that the processes
pay on their cheapest machines, minus Σ a·spare and Σ b·capacity.

The bound comes from the Lagrangian relaxation (Geoffrion, 1974) of the constraints "cost at least
weight times excess" and "use at most the capacity". The bound of the ROADEF/EURO challenge results
from b = 0 and prices a[c, m] that are 0 on all machines or weight[c] on all machines.

Prices are integer multiples of a power of two, which makes float64 sums of prices exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reassignment.assignment_state import EXACT, sum_by_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.reassignment.assignment_state import Instance

_LARGEST: Final = 4
"""Maximum dual price of a capacity constraint, as a multiple of the largest cost term weight."""

_PATIENCE: Final = 20


@dataclass(frozen=True, eq=False)
class Prices:
    """Dual prices of demand (C, M) and of the capacity constraints (R, M)."""

    demand: F64
    capacity: F64


def usual_prices(instance: Instance) -> Prices:
    """Return the prices that give the lower bound of the ROADEF/EURO challenge.

    The price of a cost term is its weight if the total demand exceeds the sum of all thresholds.
    All other prices are zero.
    """
    is_short = instance.demand.sum(axis=1) > instance.spare.sum(axis=1)
    demand = np.where(is_short, instance.weight, 0)[:, None] * np.ones(instance.num_machines)
    return Prices(demand, np.zeros_like(instance.capacity))


def bound_of(instance: Instance, prices: Prices) -> int:
    """Return the lower bound that the prices prove, rounded up; any prices give a valid bound."""
    amounts = np.abs(instance.demand).sum() + np.abs(instance.request).sum()
    amounts += np.abs(instance.spare).sum() + np.abs(instance.capacity).sum()
    most = float(amounts * (_top(instance) + 1) + instance.move_cost.sum() + 1)
    unit = 2.0 ** max(np.floor(np.log2(EXACT / most)), 0)
    demand = np.floor(np.clip(prices.demand, 0, instance.weight[:, None]) * unit) / unit
    capacity = np.floor(np.clip(prices.capacity, 0, _top(instance)) * unit) / unit
    value, _ = _dual(instance, Prices(demand, capacity), _possible(instance))
    return max(int(np.ceil(value)), 0)


def better_prices(
    instance: Instance, cost: float, prices: Prices, goes_on: Callable[[], bool]
) -> Prices:
    """Return prices that prove a higher bound, found by subgradient steps with Polyak's step size.

    `cost` is the target value in Polyak's formula for the step size.
    """
    possible, best, best_value = _possible(instance), prices, -np.inf
    pace, since, top = 1.0, 0, _top(instance)
    demand, capacity = prices.demand.copy(), prices.capacity.copy()
    while goes_on() and pace > 1e-4:
        value, machine_of = _dual(instance, Prices(demand, capacity), possible)
        since += 1
        if value > best_value:
            since, best_value = 0, value
            best = Prices(demand.copy(), capacity.copy())
        elif since > _PATIENCE:
            since, pace = 0, pace / 2
            demand, capacity = best.demand.copy(), best.capacity.copy()
        takes = np.where(machine_of == instance.initial, instance.lasting, instance.request)
        short = sum_by_machine(machine_of, instance.demand, instance.num_machines) - instance.spare
        full = sum_by_machine(machine_of, takes, instance.num_machines) - instance.capacity
        # A price at its limit cannot move further, so it must not affect the step size.
        short[
            ((demand <= 0) & (short < 0)) | ((demand >= instance.weight[:, None]) & (short > 0))
        ] = 0
        full[(capacity <= 0) & (full < 0)] = 0
        length = float((short**2).sum() + (full**2).sum())
        if length == 0 or cost <= best_value:
            break
        step = pace * (cost - value) / length
        demand = np.clip(demand + step * short, 0, instance.weight[:, None])
        capacity = np.clip(capacity + step * full, 0, top)
    return best


def _top(instance: Instance) -> float:
    return float(_LARGEST * instance.weight.max(initial=1))


def _possible(instance: Instance) -> Bool:
    """Return whether a process fits on a machine without other processes, shape (P, M)."""
    is_within = instance.request[:, :, None] <= instance.capacity[:, None, :]
    fits: Bool = np.logical_and.reduce(is_within, axis=0)
    fits[np.arange(instance.num_processes), instance.initial] = True
    return fits


def _dual(instance: Instance, prices: Prices, possible: Bool) -> tuple[float, I64]:
    """Return the lower bound that the prices prove, and each process's cheapest machine (P,)."""
    pays = instance.move_cost + instance.demand.T @ prices.demand
    pays += instance.request.T @ prices.capacity
    rows, home = np.arange(instance.num_processes), instance.initial
    passing = instance.request - instance.lasting
    pays[rows, home] -= (passing * prices.capacity[:, home]).sum(axis=0)
    pays[~possible] = np.inf
    machine_of = pays.argmin(axis=1)
    paid = pays[rows, machine_of].sum()
    value = (
        paid - (prices.demand * instance.spare).sum() - (prices.capacity * instance.capacity).sum()
    )
    return float(value), machine_of
