"""Bounds on the level values of all plans, including plans that evict tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.plugins.objectives.gang_levels import ADMISSION, Placed, Shortfall, Started
from optsched.problem.linear import Expression
from optsched.solver.cpsat.level_model import LevelModel, Objective
from optsched.solver.preemption.joint.model import encode_joint
from optsched.solver.solution_check import solve_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.cpsat.level_model import Limits
    from optsched.solver.cpsat.process import Solver
    from optsched.solver.preemption.joint.model import JointModel


@dataclass(frozen=True, slots=True)
class EvictionBounds:
    """Bounds that hold for all plans that the policy allows, with and without evictions.

    Attributes
    ----------
    levels
        The bound on each level, over plans that are at least as good on all earlier levels as the
        given plan. None if the joint model does not encode the level or the time limit is reached.
    victims
        A lower bound on the number of evictions, over plans that are at least as good on the gang
        levels as the given plan.
    whole_gangs
        A lower bound on the number of gangs evicted entirely. `whole_gangs` covers plans that are
        at least as good on the gang levels and evict no more tasks than the given plan.

    """

    levels: tuple[int | None, ...]
    victims: int | None = None
    whole_gangs: int | None = None


def bound_with_evictions(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    values: Sequence[int],
    reach: frozenset[str],
    solve: tuple[Solver, Limits, Callable[[], int | None]],
) -> EvictionBounds | None:
    """Return a bound on the value of every level over all plans, including plans with evictions.

    A bound holds for all plans whose values on the earlier levels are at least as good as `values`.
    The joint model omits nonlinear constraints on evictions, so the bounds are valid but may not be
    tight. Returns None if the model is too large, or if a bound contradicts the plan's values.

    Parameters
    ----------
    problem
        The problem before any eviction.
    goal
        Tiers of gangs and objective levels of the problem.
    values
        The given plan's value of each level, then its number of evictions, if known.
    reach
        The actions of the policy that may evict or move tasks: preempt, reclaim, consolidate.
    solve
        The solver, the limits of one solve, and a function that returns the remaining milliseconds,
        or None without a time limit.

    """
    tiers, levels = goal
    joint = encode_joint(problem, rules, tiers, reach)
    if joint is None:
        return None
    bounds = _Bounds(joint, solve)
    found: list[int | None] = []
    for level, value in zip(levels, values[: len(levels)], strict=True):
        expression = None
        if isinstance(level, Started | Placed | Shortfall):
            expression = _express(level, joint)
        if expression is None:
            found.append(None)
            continue
        known = value == level.ideal(problem) and not expression.constant
        bound = value if known else bounds.find_bound(expression, level.sense, value)
        if bound is not None and (bound < value if level.sense is Sense.MAX else bound > value):
            return None
        found.append(bound)
        bounds.keep_level(expression, level.sense, value)
    evicted = Expression.of(joint.evict, np.ones_like(joint.evict))
    victims = bounds.find_bound(evicted, Sense.MIN, None)
    whole_gangs = None
    for number in values[len(levels) :]:
        bounds.keep_level(evicted, Sense.MIN, number)
        whole_gangs = bounds.find_bound(joint.count_whole_gangs(), Sense.MIN, None)
    return EvictionBounds(tuple(found), victims, whole_gangs)


def _express(level: Started | Placed | Shortfall, joint: JointModel) -> Expression | None:
    """Return an expression of the joint model that bounds a level, or None if none is known."""
    form = joint.form
    # A queue's demand includes victims, so evictions do not reduce its deserved share.
    expression = level.encode(form)
    if isinstance(level, Placed | Shortfall):
        return expression
    # The admission level does not count a gang that is evicted entirely and restarts.
    problem, running = form.problem, joint.facts.running
    candidates = np.bincount(running.gang_of[joint.groups.tasks], minlength=problem.num_gangs)
    may_end = (candidates > 0) & (candidates >= joint.facts.held)
    restarts = may_end & (problem.shape_of >= 0) & (level.tier_of == level.tier)
    return expression if level.name.startswith(ADMISSION) or not restarts.any() else None


class _Bounds:
    """Computes bounds for one level after another in the joint model."""

    def __init__(
        self, joint: JointModel, solve: tuple[Solver, Limits, Callable[[], int | None]]
    ) -> None:
        self._joint = joint
        self._solver, self._limits, self._left_ms = solve
        self._held: list[tuple[Expression, int]] = []

    def keep_level(self, expression: Expression, sense: Sense, value: int) -> None:
        """Require that later solves are no worse than a given value on a level."""
        if sense is Sense.MIN:
            factors = -expression.coefficients
            expression = Expression(expression.variables, factors, -expression.constant)
            value = -value
        self._held.append((expression, value))

    def find_bound(self, expression: Expression, sense: Sense, value: int | None) -> int | None:
        """Return a bound on an expression, or None if the time limit is reached.

        `value` is the given plan's value of the expression, or None if unknown.
        """
        left = self._left_ms()
        if left is not None and left <= 0:
            return None
        model = self._joint.form.model
        lower, upper = model.bounds
        # Require a value that may be worse than the plan's value by one. If the model is wrong, its
        # bound can then contradict the plan.
        worse = None if value is None else value - 1 if sense is Sense.MAX else value + 1
        objective = Objective(expression, sense, worse)
        rows = self._joint.form.model.rows
        for kept, least in self._held:
            rows = rows.with_lower_bounds([(kept, least)])
        kin = np.full(len(lower), -1, np.int64)
        level_model = LevelModel(lower, upper, rows, (objective,), lower.copy(), kin)
        solved = solve_checked(self._solver, level_model, self._limits.cap_budget(left))
        return next((update.bound for update in solved.updates), None)
