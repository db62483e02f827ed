"""Solve levels one after another, over a complete model or over node class configurations.

This module, not CP-SAT, stores the incumbent. The first incumbent is the greedy plan; only its
level values are known. A solution replaces the incumbent if the solution is better on a level and
no worse on all earlier levels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import LevelStatus, Sense, relative_gap
from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows
from optsched.solver.cpsat.integer_program import (
    Effort,
    NumbersTooLarge,
    SolveOutcome,
    Task,
    maximize,
)
from optsched.solver.cpsat.level_model import DONE, LevelUpdate, Step, forward_messages
from optsched.solver.cpsat.pricing import TOO_MANY_CAPACITIES, Pricer, TooManyCapacities
from optsched.solver.cpsat.relaxation import Master, Relaxation, charge, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.solver.cpsat.integer_program import Result, SolverProgress
    from optsched.solver.cpsat.level_model import LevelModel, Limits, Objective, Placement
    from optsched.solver.cpsat.relaxation import Charged, Relaxed

MOST_ROUNDS = 200
MOST_COLUMNS = 3000
MOST_STEPS = 50_000
"""Maximum number of steps in the search for configurations, summed over node classes."""

WHOLE = 1e-6

_LARGE = 2.0**60
"""Sums above this limit may overflow 64-bit integers."""

LEAST_RELAXED = 100
"""Minimum number of unfixed variables at which the relaxation is solved before CP-SAT runs."""

NEAR_SHARE = 0.7
"""Maximum fraction of a level's time that the search near the relaxation's optimum may use."""

NEAR_WORK = 0.2
"""Limit in deterministic seconds for the search near the relaxation's optimum."""

LEAST_ROUNDS = 1500
"""Minimum number of unfixed variables for which CP-SAT searches neighbourhoods."""

NEAR_ENOUGH = 1e-3
"""Relative gap at which a level with at least `LEAST_ROUNDS` unfixed variables stops."""

ROUND_VARIABLES = 400
"""Number of unfixed variables of a neighbourhood (all variables of a few nodes)."""

ROUND_WORK = 0.05
"""Limit in deterministic seconds for the search of one neighbourhood."""

MOST_ROUNDS_OF_NODES = 6
"""Maximum number of neighbourhoods to search per level."""

FULL_SECONDS = 5e-5
"""Minimum remaining seconds per unfixed variable at which a search of the complete model starts."""


OUT_OF_TIME = "time limit reached"
OUT_OF_WORK = "work limit reached"
WITHIN = "every level within {:.4g} % of its bound"


class Clock:
    """Measures the remaining time budget of a solve; without a budget, reads no system clock."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._now = now
        self._start = 0.0 if limits.budget_ms is None else now()
        self._end = None if limits.budget_ms is None else self._start + limits.budget_ms / 1000
        self.work_s = 0.0

    @property
    def elapsed(self) -> float:
        """Elapsed seconds since the start; without a budget, deterministic seconds of CP-SAT."""
        return self.work_s if self._end is None else self._now() - self._start

    @property
    def remaining_s(self) -> float | None:
        """The remaining seconds of the time budget, or None without a time budget."""
        return None if self._end is None else self._end - self._now()

    @property
    def is_expired(self) -> bool:
        """Whether the time budget is used up."""
        return self._end is not None and self._now() >= self._end


@dataclass
class _Best:
    """The incumbent; `solution` is None while the incumbent is the greedy plan.

    `uses` (P,) counts the nodes that use each configuration. Configurations that were added after
    the incumbent was found are not in `uses`.
    """

    solution: I64 | None = None
    uses: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


def solve_levels(
    model: LevelModel,
    limits: Limits,
    now: Callable[[], float],
    on_step: Callable[[Step], None] | None = None,
) -> Generator[LevelUpdate, None, str]:
    """Solve the levels of a model, and yield an update for each finished level.

    Returns the reason if a level is not proved optimal, else an empty string. Raises
    `NumbersTooLarge` if the numbers of the model are too large for CP-SAT, and `TooManyCapacities`
    if the requests have too many distinct sums.

    Parameters
    ----------
    now
        A monotonic clock in seconds, which is not read if `limits.budget_ms` is None.
    on_step
        Receives all progress. Solver threads may call `on_step`, one call at a time.

    """
    clock = Clock(limits, now)
    levels: _LevelSearch
    if model.configurations is None:
        levels = _DirectSearch(model, limits, clock, on_step)
    else:
        levels = _ConfigurationSearch(model, limits, clock, on_step)
    return (yield from levels.run())


def run_levels(
    model: LevelModel,
    limits: Limits,
    report: Callable[[LevelUpdate], None],
    on_step: Callable[[Step], None] | None = None,
) -> str:
    """Solve all levels, pass each update to `report`, and return why the solve ended."""
    search = solve_levels(model, limits, time.monotonic, on_step)
    try:
        return forward_messages(search, report) or DONE
    except NumbersTooLarge as error:
        return f"not solved: numbers too large ({error})"
    except TooManyCapacities:
        return TOO_MANY_CAPACITIES


@dataclass(eq=False)
class _LevelSearch:
    """Base class of the two level searches; stores the incumbent and the remaining budget."""

    model: LevelModel
    limits: Limits
    clock: Clock
    on_step: Callable[[Step], None] | None = None

    def __post_init__(self) -> None:
        self.best = _Best()
        self._levels_above_kept = True
        self._was_cut_off = False

    def run(self) -> Generator[LevelUpdate, None, str]:
        """Yield the update of each level in order; return why some level is not proved optimal."""
        done = []
        for level, objective in enumerate(self.model.objectives):
            value = self.incumbent(objective)
            if self.clock.is_expired:
                # When the time limit is reached, thousands of levels may remain, so this branch
                # must be fast.
                bound = self.earlier_bound(objective)
                self._was_cut_off |= not self.limits.suffices(value, bound)
                update = self.make_update(level, objective, value, bound)
            elif self.limits.suffices(value, bound := self.known_bound(objective)):
                self.keep_level(objective, value)
                update = self.make_update(level, objective, value, bound)
            else:
                update = yield from self.steps(level, objective)
            # The bound `at_most` of a later level holds only if each earlier level reaches its own
            # `at_least`.
            least, sign = objective.at_least, 1 if objective.sense is Sense.MAX else -1
            if update.value is None or least is None or sign * update.value < sign * least:
                self._levels_above_kept = False
            self.report_update(update)
            done.append(update)
            yield update
        if all(update.status is LevelStatus.OPTIMAL for update in done):
            return ""
        if self.limits.gap is not None and all(
            self.limits.suffices(u.value, u.bound) for u in done
        ):
            return WITHIN.format(100 * self.limits.gap)
        if not self._was_cut_off:
            return ""
        return OUT_OF_WORK if self.limits.budget_ms is None else OUT_OF_TIME

    def known_bound(self, objective: Objective) -> int | None:
        """Return the known upper bound on the expression to maximise, or None if there is none.

        The bound is the smaller of two bounds: the bound that the variables' bounds imply, and the
        bound of an earlier search. If the incumbent's value equals the known bound, no solve is
        needed.
        """
        return _tighter_bound(
            largest_value(to_maximise(objective), self.model), self.earlier_bound(objective)
        )

    def earlier_bound(self, objective: Objective) -> int | None:
        """Return an earlier search's valid bound on the expression to maximise, or None."""
        if objective.at_most is None or not self._levels_above_kept:
            return None
        return objective.at_most if objective.sense is Sense.MAX else -objective.at_most

    def report_update(self, update: LevelUpdate) -> None:
        if self.on_step is not None:
            self.on_step(Step(self.clock.elapsed, update))

    def attempt(
        self,
        task: Task,
        share: float,
        to_update: Callable[[SolverProgress], LevelUpdate | None],
        work: float | None = None,
    ) -> Result:
        """Run CP-SAT for a fraction of the remaining time, and return its result.

        `to_update` converts the progress of CP-SAT to an update, or returns None for progress that
        is not reported. `work` is the maximum number of deterministic seconds; None means
        `limits.deterministic`.
        """
        begun = self.clock.work_s

        def watch(sight: SolverProgress) -> None:
            if sight.work_s is not None:
                self.clock.work_s = begun + sight.work_s
            update = to_update(sight)
            if update is not None:
                self.report_update(update)

        effort = self.effort(share)
        if work is not None:
            effort = replace(effort, deterministic=min(work, effort.deterministic))
        result = maximize(task, effort, None if self.on_step is None else watch)
        self.clock.work_s = begun + result.work_s
        cut = result.outcome in (SolveOutcome.FEASIBLE, SolveOutcome.UNKNOWN)
        self._was_cut_off |= cut and not self.limits.suffices(result.value, result.bound)
        return result

    def is_expired(self) -> bool:
        """Return whether the time limit is reached; if so, record that the search was cut off."""
        self._was_cut_off |= self.clock.is_expired
        return self.clock.is_expired

    def steps(self, level: int, objective: Objective) -> Generator[LevelUpdate, None, LevelUpdate]:
        """Solve a level: yield early updates, and return the last update.

        The solve keeps the values of earlier levels.
        """
        raise NotImplementedError

    def keep_level(self, objective: Objective, value: int | None) -> None:
        """Require later solutions to reach `value` on a level; None adds no requirement."""
        raise NotImplementedError

    def incumbent(self, objective: Objective) -> int | None:
        """Return the incumbent's value of the expression to maximise, or None if unknown."""
        if self.best.solution is not None:
            return to_maximise(objective).value(self.best.solution)
        if objective.at_least is None:
            return None
        return objective.at_least if objective.sense is Sense.MAX else -objective.at_least

    def effort(self, share: float) -> Effort:
        left = self.clock.remaining_s
        return Effort(
            seconds=None if left is None else left * share,
            deterministic=self.limits.deterministic,
            num_workers=self.limits.num_workers,
            seed=self.limits.seed,
            gap=self.limits.gap,
        )

    def make_update(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> LevelUpdate:
        """Return the update of a level, with value and bound negated if the level is minimised."""
        sign = 1 if objective.sense is Sense.MAX else -1
        if value is None:
            status = LevelStatus.SKIPPED if bound is None else LevelStatus.BOUND_ONLY
        else:
            status = LevelStatus.OPTIMAL if value == bound else LevelStatus.FEASIBLE
        return LevelUpdate(
            level=level,
            value=None if value is None else sign * value,
            bound=None if bound is None else sign * bound,
            status=status,
            solution=self.best.solution,
        )


def largest_value(goal: Expression, model: LevelModel) -> int | None:
    """Return the largest value of an expression within the variable bounds, or None on overflow."""
    lower, upper = model.lower[goal.variables], model.upper[goal.variables]
    ends = np.where(goal.coefficients > 0, upper, lower)
    size = np.abs(goal.coefficients.astype(np.float64)) * np.abs(ends.astype(np.float64))
    if size.sum() >= _LARGE:
        return None
    return int((goal.coefficients * ends).sum()) + goal.constant


def to_maximise(objective: Objective) -> Expression:
    """Return the level's expression, negated if the level is minimised."""
    form = objective.expression
    if objective.sense is Sense.MAX:
        return form
    return Expression(form.variables, -form.coefficients, -form.constant)


class _DirectSearch(_LevelSearch):
    """Searches a complete model in three steps.

    The steps are the linear relaxation, a search near the optimum of the relaxation, and a search
    of the complete model.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        self._held: list[tuple[Expression, int]] = []
        self._rows = model.rows
        self._hint = model.hint
        self._relaxation: Relaxation | None = None
        self._ends_s: float | None = None
        if model.placement is not None and (model.lower < model.upper).sum() >= LEAST_RELAXED:
            self._relaxation = Relaxation(model.lower, model.upper, model.rows)

    def steps(self, level: int, objective: Objective) -> Generator[LevelUpdate, None, LevelUpdate]:
        value, bound = self.incumbent(objective), self.known_bound(objective)
        values, left_s = None, self.clock.remaining_s
        # The level must end once the remaining time falls to `_ends_s` seconds.
        self._ends_s = None if left_s is None else left_s * (1 - self._share(level))
        if not self._is_level_finished(value, bound):
            values, bound = self._relaxed(level, objective, value, bound)
        complete = self._complete(level)
        for upper, share, work in self._plan_searches(level, values, complete):
            if self._is_level_finished(value, bound):
                break
            # Later levels need time too, so a level of a large model stops once its value is close
            # to its bound.
            if (
                self.clock.remaining_s is not None
                and None not in (value, bound)
                and self._num_free(complete) >= LEAST_ROUNDS
                and relative_gap(value or 0, bound or 0) <= NEAR_ENOUGH
            ):
                break
            bounds, mine_s, left_s = upper(), self._seconds_left(), self.clock.remaining_s
            if left_s is not None and mine_s is not None:
                share *= mine_s / max(left_s, 1e-3)
            before, within = value, (bounds, share, work)
            value, found = self._run_search(level, objective, (value, bound), within)
            bound = found if within[0] is complete else bound
            if value != before:
                # The solver process may be killed before the level is finished, so yield the
                # level's result early.
                yield self.make_update(level, objective, value, bound)
        self.keep_level(objective, value)
        return self.make_update(level, objective, value, bound)

    def keep_level(self, objective: Objective, value: int | None) -> None:
        if value is None:
            return
        goal = to_maximise(objective)
        self._held.append((goal, value))
        if self._relaxation is not None:
            self._relaxation.hold_value(goal, value)

    def _plan_searches(
        self, level: int, values: F64 | None, complete: I64
    ) -> Iterator[tuple[Callable[[], I64], float, float]]:
        """Yield each search's upper bounds of variables, fraction of time and work limit.

        The first search allows only placements near the relaxation's optimum. In a large
        model, each later search also allows all placements on some nodes. The last search allows
        all placements.
        """
        if values is not None:
            yield partial(self._near, level, values), NEAR_SHARE, NEAR_WORK
            if self._num_free(complete) >= LEAST_ROUNDS:
                for nodes in self._neighbourhoods(values, complete):
                    yield partial(self._near, level, values, nodes), 1.0, ROUND_WORK
        left = self._seconds_left()
        if left is None or left > FULL_SECONDS * self._num_free(complete):
            yield (lambda: complete), 1.0, self.limits.deterministic

    def _neighbourhoods(self, values: F64, complete: I64) -> Iterator[Bool]:
        """Yield masks (variables,) that select the variables of randomly drawn nodes.

        The more the relaxation's optimum and the incumbent differ on a node, the more often the
        node is drawn.
        """
        placement = self.model.placement
        assert placement is not None  # noqa: S101  the caller has the relaxation
        there = np.flatnonzero(placement.node_of >= 0)
        node_of = placement.node_of[there]
        rng = np.random.default_rng(self.limits.seed)
        for _ in range(MOST_ROUNDS_OF_NODES):
            apart = np.abs(values[there] - self._hint[there])
            differs = np.bincount(node_of, apart)
            # The random term varies the order of nodes on which relaxation and incumbent differ
            # equally.
            weight = differs + rng.random(len(differs)) * (differs.max(initial=0) + 1)
            order = np.argsort(-weight, kind="stable")
            free = np.bincount(node_of, complete[there] > 0, len(differs))[order]
            chosen = order[: int(np.searchsorted(np.cumsum(free), ROUND_VARIABLES)) + 1]
            mine = np.zeros(len(values), np.bool_)
            mine[there] = np.isin(node_of, chosen)
            yield mine

    def _num_free(self, upper: I64) -> int:
        return int((self.model.lower < upper).sum())

    def _seconds_left(self) -> float | None:
        """Return the remaining seconds for the current level, or None without a time limit."""
        left = self.clock.remaining_s
        return None if left is None or self._ends_s is None else max(left - self._ends_s, 0.0)

    def _is_level_finished(self, value: int | None, bound: int | None) -> bool:
        """Return whether the value is within the relative gap of its bound, or no time remains."""
        if self.limits.suffices(value, bound):
            return True
        is_over = self._seconds_left() == 0.0
        self._was_cut_off |= is_over
        return is_over

    def _share(self, level: int) -> float:
        """Return the fraction of the remaining time that a level may use."""
        return max(0.5, 1 / (len(self.model.objectives) - level))

    def _relaxed(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> tuple[F64 | None, int | None]:
        """Solve the relaxation; return its optimum, and the best known upper bound.

        The optimum is None if the relaxation was not solved. The upper bound is the smaller of
        `bound` and the bound that the relaxation proves.
        """
        if self._relaxation is None:
            return None, bound
        left = self.clock.remaining_s
        milliseconds = None if left is None else int(left * 1000 * self._share(level))
        vertex = self._relaxation.maximize(to_maximise(objective), milliseconds)
        if vertex is None:
            return None, bound
        # The linear relaxation satisfies rows only up to a tolerance, so its bound may be wrong.
        # Ignore a bound that contradicts the value of a known solution.
        if vertex.bound is None or (value is not None and vertex.bound < value):
            return vertex.values, bound
        found = _tighter_bound(bound, vertex.bound)
        self.report_update(replace(self.make_update(level, objective, value, found), solution=None))
        return vertex.values, found

    def _near(self, level: int, values: F64, free: Bool | None = None) -> I64:
        """Return upper bounds (variables,) that allow tasks only on nodes used in known solutions.

        Tasks of a task class may be placed on a node only if the relaxation's optimum or the
        incumbent places such tasks there. Gangs that only later levels count get no tasks.
        Variables in the mask `free` keep their bounds.
        """
        placement, upper = self.model.placement, self.model.upper
        assert placement is not None  # noqa: S101  the caller has the relaxation
        some = np.maximum(np.ceil(values - WHOLE).astype(np.int64), self._hint)
        kept = placement.node_of < 0
        if free is not None:
            kept |= free
        upper = np.where(kept, upper, np.clip(some, self.model.lower, upper))
        return np.where(placement.stage > level, self.model.lower, upper)

    def _complete(self, level: int) -> I64:
        """Return upper bounds (variables,) of the complete model for a level.

        Gangs that only later levels count get no tasks, if every solution stays valid without these
        gangs.
        """
        placement = self.model.placement
        if placement is None:
            return self.model.upper
        later = placement.stage > level
        if not later.any() or not _can_exclude_gangs(self.model, placement, later):
            return self.model.upper
        return np.where(later, self.model.lower, self.model.upper)

    def _run_search(
        self,
        level: int,
        objective: Objective,
        known: tuple[int | None, int | None],
        within: tuple[I64, float, float],
    ) -> tuple[int | None, int | None]:
        """Run one search; return the best value and the best bound so far.

        `known` holds the value and the bound before the search. `within` holds the upper bounds of
        the variables, the fraction of the remaining time to use, and the limit in deterministic
        seconds.
        """
        goal = to_maximise(objective)
        value, bound = known
        upper, share, work = within
        self._rows = self._rows.with_lower_bounds(self._held)
        self._held = []

        def to_update(sight: SolverProgress) -> LevelUpdate | None:
            nonlocal value, bound
            value = value if sight.solution is None else goal.value(sight.solution)
            if work >= self.limits.deterministic:
                bound = _tighter_bound(bound, sight.bound)
            elif sight.solution is None:
                return None
            return replace(
                self.make_update(level, objective, value, bound), solution=sight.solution
            )

        task = Task(self.model.lower, upper, self._rows, goal, self._hint, value, bound)
        result = self.attempt(task, share, to_update, work)
        # If the values are equal, keep the incumbent: the solution may be worse on later levels.
        value = task.at_least
        if result.solution is not None and result.value != value:
            self.best = _Best(result.solution)
            self._hint = result.solution
            value = result.value
        proved = result.bound
        if result.outcome is SolveOutcome.OPTIMAL:
            proved = result.value
        elif result.outcome is SolveOutcome.INFEASIBLE:
            # The model requires a value of at least `value`, so no better solution exists.
            proved = value
        return value, _tighter_bound(bound, proved)


def _can_exclude_gangs(model: LevelModel, placement: Placement, later: Bool) -> bool:
    """Return whether every solution stays valid without the gangs in the mask `later`.

    A row that contains only variables of the gangs in `later` must hold if all these variables are
    0. All other rows must stay satisfied if the variables of the gangs in `later` are set to 0.
    """
    if model.lower[later].any():
        return False
    rows = model.rows
    given = later | (placement.node_of >= 0)
    counts = (rows.row < placement.num_rules) & ~placement.linking[rows.row]
    leaves = counts & given[rows.variable] & (model.lower < model.upper)[rows.variable]
    num_rows = len(rows.lower)
    mixed = np.zeros(num_rows, np.bool_)
    mixed[rows.row[counts & ~later[rows.variable]]] = True
    touched = np.zeros(num_rows, np.bool_)
    touched[rows.row[leaves]] = True
    alone = touched & ~mixed
    if ((rows.lower[alone] > 0) | (rows.upper[alone] < 0)).any():
        return False
    at = rows.row[leaves]
    rising = rows.coefficient[leaves] < 0
    tight = np.where(rising, rows.upper[at] < UNLIMITED, rows.lower[at] > -UNLIMITED)
    return not (tight & mixed[at]).any()


def _tighter_bound(bound: int | None, other: int | None) -> int | None:
    """Return the smaller upper bound, ignoring None; return None if both bounds are None."""
    return min((b for b in (bound, other) if b is not None), default=None)


class _ConfigurationSearch(_LevelSearch):
    """Searches for the best configurations by column generation, Lagrangian bounds and CP-SAT."""

    _at: tuple[int, Objective]
    """The index and the objective of the current level."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        assert model.configurations is not None  # noqa: S101  the caller has checked the value
        self._nodes = nodes = model.configurations
        self._bound: int | None = None
        self._written: tuple[_Best, tuple[I64, I64, I64]] | None = None
        self._pricer = Pricer(nodes.capacity, nodes.request, nodes.allowed)
        self._master = Master(model, nodes)
        for node_class, tasks in zip(nodes.start_class.tolist(), nodes.start_tasks, strict=True):
            self._master.add_column(node_class, tasks)

    def steps(self, level: int, objective: Objective) -> Generator[LevelUpdate, None, LevelUpdate]:
        """Solve a level (see `_LevelSearch`); yields no early updates."""
        yield from ()
        goal = to_maximise(objective)
        value = self.incumbent(objective)
        self._at, self._bound = (level, objective), self.known_bound(objective)
        proof, relaxed = self._generate(goal, value)
        if proof is not None and relaxed is not None:
            value = self._round(goal, value, (proof, relaxed))
        self.keep_level(objective, value)
        return self.make_update(level, objective, value, self._bound)

    def keep_level(self, objective: Objective, value: int | None) -> None:
        if value is not None:
            self._master.hold_value(to_maximise(objective), value)

    def make_update(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> LevelUpdate:
        return self._with_configurations(
            super().make_update(level, objective, value, bound), self.best
        )

    def _with_configurations(self, update: LevelUpdate, best: _Best) -> LevelUpdate:
        if self._written is None or self._written[0] is not best:
            used = np.flatnonzero(best.uses)
            tasks = [self._master.column_tasks[p] for p in used.tolist()]
            self._written = (
                best,
                (
                    np.array(self._master.column_class, np.int64)[used],
                    np.array(tasks, np.int64).reshape(len(used), self._nodes.request.shape[0]),
                    best.uses[used],
                ),
            )
        use_class, use_tasks, uses = self._written[1]
        return replace(
            update,
            solution=best.solution,
            use_class=use_class,
            use_tasks=use_tasks,
            uses=uses,
        )

    def _record_bound(self, bound: int, value: int | None) -> None:
        if self._bound is not None and bound >= self._bound:
            return
        self._bound = bound
        level, objective = self._at
        self.report_update(
            replace(super().make_update(level, objective, value, bound), solution=None)
        )

    def _generate(
        self, goal: Expression, value: int | None
    ) -> tuple[Charged | None, Relaxed | None]:
        """Add configurations to the relaxation as long as they improve its optimum.

        Returns the proof of the best bound, and the optimum of the last relaxation. Both results
        are None if the relaxation was not solved.
        """
        step = float(max(np.gcd.reduce(goal.coefficients), 1)) if len(goal.coefficients) else 1.0
        self._master.set_objective(goal.variables, goal.coefficients / step)
        best: Charged | None = None
        relaxed: Relaxed | None = None
        for _ in range(MOST_ROUNDS):
            left = self.clock.remaining_s
            solved = self._master.solve(None if left is None else int(left * 1000))
            if solved is None:
                self._was_cut_off = True
                break
            relaxed = solved
            prices = rounded(solved.prices * step, self._master)
            priced = self._pricer.price(np.maximum(prices.supply, 0))
            proof = charge(self._master, goal, prices, priced)
            if best is None or proof.total * best.scale < best.total * proof.scale:
                best = proof
                self._record_bound(goal.constant + best.bound, value)
            gain = priced.worth - solved.class_prices * (step * prices.scale)
            promising = np.flatnonzero(gain > WHOLE * step * prices.scale).tolist()
            added = [self._master.add_column(k, priced.configuration(k)) for k in promising]
            reached = value is not None and goal.constant + best.bound <= value
            enough = reached or self.limits.suffices(value, self._bound)
            if enough or not any(added) or self.is_expired():
                break
        return best, relaxed

    def _round(
        self, goal: Expression, value: int | None, found: tuple[Charged, Relaxed]
    ) -> int | None:
        """Search for integer solutions near the relaxation's optimum, then within wider bounds.

        Returns the best value. If CP-SAT proves a better bound, `_bound` stores this bound.
        """
        proof, relaxed = found
        bound = goal.constant + proof.bound if self._bound is None else self._bound
        if self.limits.suffices(value, bound):
            return value
        value = self._redistribute(goal, value, bound)
        if self.limits.suffices(value, bound):
            return value
        values = self._pad_values(relaxed)
        num = len(self.model.lower)
        lower, upper = self._bounds()
        near_lower = np.clip(np.floor(values + WHOLE).astype(np.int64), lower, upper)
        near_upper = np.clip(np.ceil(values - WHOLE).astype(np.int64), lower, upper)
        near_lower[num:], near_upper[num:] = lower[num:], upper[num:]
        share = max(0.5, 1 / (len(self.model.objectives) - self._at[0]))
        value = self._solve(goal, value, bound, (near_lower, near_upper, near_lower), share)
        slack = 0
        while not self.limits.suffices(value, bound) and not self.is_expired():
            target = bound - slack * proof.step
            if value is not None:
                target = max(target, value + proof.step)
            complete = self._complete(proof, target - goal.constant)
            low, high, uses = proof.tightened(self.model, self._master, target - goal.constant)
            within = (
                np.concatenate([low, np.zeros_like(uses)]),
                np.concatenate([high, uses]),
                self._hint(self._pad_values(relaxed)),
            )
            outcome = self._attempt(goal, target, bound, within, share)
            if outcome is SolveOutcome.INFEASIBLE and complete:
                bound = target - proof.step
                self._record_bound(bound, value)
            if outcome in (SolveOutcome.OPTIMAL, SolveOutcome.FEASIBLE):
                value = self.incumbent_value(goal)
                if complete and outcome is SolveOutcome.OPTIMAL:
                    self._record_bound(value, value)
                return value
            if value is not None and target <= value + proof.step:
                break
            slack = 4 * slack + 1
        return value

    def _complete(self, proof: Charged, value: int) -> bool:
        """Add every configuration that a solution with a value of at least `value` may use.

        Returns False if there are too many such configurations.
        """
        spare = proof.total - value * proof.scale
        steps = MOST_STEPS // max(len(self._nodes.multiplicity), 1)
        for k, worth in enumerate(proof.priced.worth.tolist()):
            found = self._pricer.near(proof.priced, k, worth - spare, steps)
            if found is None or len(self._master.column_class) > MOST_COLUMNS:
                return False
            for tasks in found:
                self._master.add_column(k, tasks)
        return True

    def incumbent_value(self, goal: Expression) -> int:
        assert self.best.solution is not None  # noqa: S101  a solve has just stored one
        return goal.value(self.best.solution)

    def _redistribute(self, goal: Expression, value: int | None, bound: int) -> int | None:
        """Improve the incumbent by replacing gangs with equal gangs of other queues.

        Nodes keep their configurations, and the number of admitted gangs of each gang shape is
        fixed. Levels that do not depend on queues therefore keep their values. With fixed
        configurations, few variables of the relaxation are fractional. Returns the value of the
        incumbent.
        """
        if self.best.solution is None or (self.model.kin < 0).all():
            return value
        num, solution = len(self.model.lower), self.best.solution
        rows = self._master.integer_rows()
        # One row per group in `kin` fixes the sum of the group's variables.
        kin = self.model.kin
        members = np.flatnonzero(kin >= 0)
        members = members[np.argsort(kin[members], kind="stable")]
        sums = np.bincount(kin[members], weights=solution[members]).astype(np.int64)
        rows = Rows(
            np.concatenate([rows.row, len(rows.lower) + kin[members]]),
            np.concatenate([rows.variable, members]),
            np.concatenate([rows.coefficient, np.ones(len(members), np.int64)]),
            np.concatenate([rows.lower, sums]),
            np.concatenate([rows.upper, sums]),
        )
        lower, upper = self._bounds()
        lower[num:] = upper[num:] = self._incumbent_uses()
        left = self.clock.remaining_s
        relaxation = Relaxation(lower, upper, rows)
        values = relaxation.find_values(goal, None if left is None else int(left * 500))
        if values is None:
            return value
        whole = np.abs(values - np.rint(values)) <= WHOLE
        near = np.rint(values).astype(np.int64)
        fixed = whole & np.append(self.model.kin >= 0, np.ones(len(values) - num, np.bool_))
        within = (np.where(fixed, near, lower), np.where(fixed, near, upper), near)
        return self._solve(goal, value, bound, within, 0.3)

    def _bounds(self) -> tuple[I64, I64]:
        most = self._nodes.multiplicity[np.array(self._master.column_class, np.int64)]
        lower = np.concatenate([self.model.lower, np.zeros_like(most)])
        return lower, np.concatenate([self.model.upper, most])

    def _incumbent_uses(self) -> I64:
        uses = np.zeros(len(self._master.column_class), np.int64)
        uses[: len(self.best.uses)] = self.best.uses
        return uses

    def _pad_values(self, relaxed: Relaxed) -> F64:
        """Return the relaxation's optimum, with 0 for configurations outside the relaxation."""
        uses = np.zeros(len(self._master.column_class))
        uses[: len(relaxed.uses)] = relaxed.uses
        return np.concatenate([relaxed.values, uses])

    def _solve(
        self,
        goal: Expression,
        value: int | None,
        bound: int,
        within: tuple[I64, I64, I64],
        share: float,
    ) -> int | None:
        """Run CP-SAT; return the new value if a better solution is found, else `value`.

        `within` holds the variables' lower bounds, upper bounds and hint.
        """
        least = None if value is None else value + 1
        outcome = self._attempt(goal, least, bound, within, share)
        found = outcome in (SolveOutcome.OPTIMAL, SolveOutcome.FEASIBLE)
        return self.incumbent_value(goal) if found else value

    def _attempt(
        self,
        goal: Expression,
        least: int | None,
        bound: int,
        within: tuple[I64, I64, I64],
        share: float,
    ) -> SolveOutcome:
        """Run CP-SAT, store a found solution as the incumbent, and return the status.

        `within` holds the variables' lower bounds, upper bounds and hint.
        """
        lower, upper, hint = within
        if (lower > upper).any():
            return SolveOutcome.INFEASIBLE
        task = Task(
            lower=lower,
            upper=upper,
            rows=self._master.integer_rows(),
            objective=goal,
            hint=hint,
            at_least=least,
            at_most=bound,
        )
        try:
            result = self.attempt(task, share, self._make_progress_update)
        except NumbersTooLarge:
            return SolveOutcome.UNKNOWN
        if result.solution is not None:
            num = len(self.model.lower)
            self.best = _Best(result.solution[:num], result.solution[num:])
        return result.outcome

    def _make_progress_update(self, sight: SolverProgress) -> LevelUpdate | None:
        """Convert CP-SAT's progress to an update, or to None if only a bound improved.

        The bounds of CP-SAT are ignored, because these bounds hold only within the variable bounds
        of one search.
        """
        if sight.solution is None:
            return None
        (level, objective), num = self._at, len(self.model.lower)
        best = _Best(sight.solution[:num], sight.solution[num:])
        value = to_maximise(objective).value(sight.solution[:num])
        return self._with_configurations(
            super().make_update(level, objective, value, self._bound), best
        )

    def _hint(self, values: F64) -> I64:
        """Return the incumbent, or `values` rounded down if the incumbent is the greedy plan."""
        if self.best.solution is None:
            return np.floor(values + WHOLE).astype(np.int64)
        return np.concatenate([self.best.solution, self._incumbent_uses()])
