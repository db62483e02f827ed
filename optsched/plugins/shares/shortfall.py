"""The objective level of guarantees and fair shares: the shortfall from targets.

Mathematics: models/formulation/shortfall.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.bounded_cache import SharedObjects
from optsched.cluster.decisions import Sense
from optsched.problem.linear import Expression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang
    from optsched.plugins.outcome import Outcome
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow


@dataclass(frozen=True, eq=False)
class Shortfall:
    """Level: the shortfall in steps, summed over targets and resources; it is minimised.

    Attributes
    ----------
    member
        (K, Q) True for the queues whose usage counts toward each target.
    target
        (K, R) the targets in base units; 0 for resources without a target.
    grid
        Number of steps into which the cluster total of a resource is divided. A step is a multiple
        of the common unit of all task requests, so evictions do not change the step size.
        Shortfalls are rounded up to whole steps.

    """

    name: str
    unit: str
    member: Bool
    target: I64
    grid: int
    sense: Sense = Sense.MIN

    def _step(self, problem: Problem) -> I64:
        """Return the step size (R,) in base units, a multiple of the requests' common unit."""
        unit = problem.derived(_find_units)
        step: I64 = np.maximum(-(-problem.total // (self.grid * unit)), 1) * unit
        return step

    def _missing(self, problem: Problem, held: I64) -> I64:
        """Return the shortfall (K, R) per target, in steps, if the queues use `held` (Q, R)."""
        step = self._step(problem)
        missing: I64 = -(-np.maximum(self.target - self._sum_members(held), 0) // step)
        return missing

    @cached_property
    def _pairs(self) -> tuple[I64, I64]:
        """The indices (target, queue) of the True elements of `member`."""
        target, queue = np.nonzero(self.member)
        return target, queue

    def _sum_members(self, held: I64) -> I64:
        """Return the total (K, R) of the amounts (Q, R) over the queues of each target."""
        target, queue = self._pairs
        used = np.zeros_like(self.target)
        np.add.at(used, target, held[queue])
        return used

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        return int(self._missing(outcome.problem, outcome.queue_allocated).sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`. Ideally, no amount is missing."""
        return 0

    def encode(self, form: Formulation) -> Expression:
        """Return Σ d[k, r], the shortfall in steps, and add the constraints that define it.

        The constraints are step[r] · d[k, r] + Σ request · (x − evicted) ≥ target − allocated.

        d[k, r] ≥ 0 is the shortfall of resource r below target k, in multiples of the step size. x
        is the number of placed tasks.
        """
        problem, gangs = form.problem, form.gangs
        held = problem.queues.allocated
        if form.victims is not None:
            held = held.copy()
            taken = form.victims.number[:, None] * form.victims.request
            np.subtract.at(held, form.victims.queue_of, taken)
        missing = self._missing(problem, held)
        lacks = self.target - self._sum_members(problem.queues.allocated)
        request = problem.classes.request[gangs.class_of]
        step = self._step(problem)
        k, r = np.nonzero(np.asarray(missing > 0))
        short = form.model.add_variables(0, missing[k, r])
        place = np.full(missing.shape, -1, np.int64)
        place[k, r] = np.arange(len(k))
        queue = gangs.queue_of[gangs.gang_class_of]
        at, f, q = _match_targets(self.member[:, queue], request, place)
        parts = [(at, form.placed_variable[f], form.placed_factor[f] * request[f, q])]
        if form.victims is not None:
            of_victims = np.pad(self.member, ((0, 0), (0, 1)))[:, form.victims.queue_of]
            at, v, q = _match_targets(of_victims, form.victims.request, place)
            parts.append((at, form.victims.variables[v], -form.victims.request[v, q]))
        parts.append((np.arange(len(k)), short, step[r]))
        row, variable, factor = (np.concatenate(part) for part in zip(*parts, strict=True))
        form.model.add_rows(row, variable, factor, lower=lacks[k, r])
        return Expression.of(short, np.ones_like(short))


def _find_units(problem: Problem) -> I64:
    """Return the greatest common divisor (R,) of all task requests of each resource, at least 1."""
    unit = np.ones(len(problem.resources), np.int64)
    _, units = problem.gang_columns.codes(_find_units_of_row)
    divisor_of = _common_divisors(each.amounts for each in units)
    for r, name in enumerate(problem.resources):
        unit[r] = divisor_of.get(name, 1)
    return unit


class _Units:
    """The greatest common divisors of a gang's requests; instances are compared by identity."""

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts


_UNITS: Final[SharedObjects[_Units]] = SharedObjects(_Units)


def _find_units_of_row(row: GangRow) -> _Units:
    return row.gang.derived(_find_units_of_gang)


def _find_units_of_gang(gang: Gang) -> _Units:
    requests = {id(task.shape): task.shape.request for task in gang.tasks}
    return _UNITS.intern(tuple(_common_divisors(requests.values()).items()))


def _common_divisors(amounts: Iterable[Amounts]) -> dict[str, int]:
    """Return the greatest common divisor of the positive amounts of each resource."""
    found: dict[str, int] = {}
    for name, amount in chain.from_iterable(amounts):
        if amount > 0:
            found[name] = gcd(found.get(name, 0), amount)
    return found


def _match_targets(member: Bool, request: I64, place: I64) -> tuple[I64, I64, I64]:
    """Return parallel arrays: row, axis-m index and resource of each amount toward a target.

    `request` (m, R) contains the amounts, and `member` (K, m) is True if they count toward a
    target. `place` (K, R) is the constraint row of each target and resource, or -1 if none exists.
    """
    is_due: Bool = np.any(place >= 0, axis=1)
    k, m = np.nonzero(member & is_due[:, None])
    pair, r = np.nonzero((request[m] > 0) & (place[k] >= 0))
    return place[k[pair], r], m[pair], r
