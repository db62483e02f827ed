"""Levels solved one after the other, over a complete model or over configurations.

The incumbent is ours: it starts as the greedy plan, of which only the values are known here, and is
replaced by solutions that are better on the level at hand and no worse on those above.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import LevelStatus, Sense, relative_gap
from optsched.problem.arrays import UNLIMITED
from optsched.problem.linear import Expression, Rows
from optsched.solver.cpsat.integer_program import Answer, Effort, NumbersTooLarge, Task, maximize
from optsched.solver.cpsat.level_model import LevelUpdate, Step
from optsched.solver.cpsat.master_problem import Master, charge, relaxed_values, rounded
from optsched.solver.cpsat.pricing import Pricer
from optsched.solver.cpsat.relaxation import Relaxation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.solver.cpsat.integer_program import Result, SolverProgress
    from optsched.solver.cpsat.level_model import LevelModel, Limits, Objective, Placement
    from optsched.solver.cpsat.master_problem import Charged, Relaxed

MOST_ROUNDS = 200
MOST_COLUMNS = 3000
MOST_STEPS = 50_000
"""Steps of the search for all configurations that could matter, over all node classes."""

WHOLE = 1e-6

_LARGE = 2.0**60
"""Sums from here on may leave 64 bits."""

LEAST_RELAXED = 100
"""Free variables below which CP-SAT is done before a relaxation would be of use."""

NEAR_SHARE = 0.7
"""Part of a level's time for the search near the relaxation."""

NEAR_WORK = 0.2
"""Deterministic seconds of that search."""

LEAST_ROUNDS = 1500
"""Free variables from which a level is searched neighbourhood by neighbourhood."""

NEAR_ENOUGH = 1e-3
"""Relative gap of such a level at which the next one is begun."""

ROUND_VARIABLES = 400
"""Variables of the nodes that one neighbourhood leaves free."""

ROUND_WORK = 0.05
"""Deterministic seconds of the search of one neighbourhood."""

MOST_ROUNDS_OF_NODES = 6
"""Neighbourhoods that are searched on one level."""

FULL_SECONDS = 5e-5
"""Seconds a free variable below which the complete model is not even presolved in time."""


OUT_OF_TIME = "time limit reached"
OUT_OF_WORK = "work limit reached"
WITHIN = "every level within {:.4g} % of its bound"


class Clock:
    """Time left; without a budget there is always enough and no clock is read."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._now = now
        self._start = 0.0 if limits.budget_ms is None else now()
        self._end = None if limits.budget_ms is None else self._start + limits.budget_ms / 1000
        self.work_s = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning; without a budget deterministic seconds of the solver."""
        return self.work_s if self._end is None else self._now() - self._start

    @property
    def remaining_s(self) -> float | None:
        """Seconds left; None without a budget."""
        return None if self._end is None else self._end - self._now()

    @property
    def is_expired(self) -> bool:
        """Whether nothing is left."""
        return self._end is not None and self._now() >= self._end


@dataclass
class _Best:
    """The best solution so far; `solution` is None while it is the greedy plan.

    `uses` belong to the configurations known to the master at that time.
    """

    solution: I64 | None = None
    uses: I64 = field(default_factory=lambda: np.zeros(0, np.int64))


def solve_levels(
    model: LevelModel,
    limits: Limits,
    now: Callable[[], float],
    on_step: Callable[[Step], None] | None = None,
) -> Generator[LevelUpdate, None, str]:
    """Solve the levels of a model; yields one update a level, as soon as it is done.

    Returns why no more could be done; nothing where every level is at its optimum.

    Parameters
    ----------
    model, limits
        The model and its limits.
    now
        A monotonic clock in seconds; never read when `limits.budget_ms` is None.
    on_step
        Called with all progress on the way, possibly in threads of the solver, one call at a time.

    Raises
    ------
    NumbersTooLarge, TooManyCapacities
        When the model is not for these engines; nothing has been yielded then.

    """
    clock = Clock(limits, now)
    levels: _LevelSearch
    if model.configurations is None:
        levels = _DirectSearch(model, limits, clock, on_step)
    else:
        levels = _ConfigurationSearch(model, limits, clock, on_step)
    return (yield from levels.run())


@dataclass(eq=False)
class _LevelSearch:
    """What both encodings share: the incumbent, the levels already fixed, and the budget."""

    model: LevelModel
    limits: Limits
    clock: Clock
    on_step: Callable[[Step], None] | None = None

    def __post_init__(self) -> None:
        self.best = _Best()
        self._levels_above_kept = True
        self._was_cut_off = False

    def run(self) -> Generator[LevelUpdate, None, str]:
        """Yield all levels in order; returns why no more could be done."""
        done = []
        for level, objective in enumerate(self.model.objectives):
            value = self.incumbent(objective)
            if self.clock.is_expired:
                # Remaining levels cost next to nothing: there may be thousands.
                bound = self.earlier_bound(objective)
                self._was_cut_off |= not self.limits.suffices(value, bound)
                update = self.make_update(level, objective, value, bound)
            elif self.limits.suffices(value, bound := self.known_bound(objective)):
                self.keep_level(objective, value)
                update = self.make_update(level, objective, value, bound)
            else:
                update = yield from self.steps(level, objective)
            self._compare(objective, update.value)
            self.report_update(update)
            done.append(update)
            yield update
        return self._stop_reason(done)

    def _stop_reason(self, done: Sequence[LevelUpdate]) -> str:
        if all(update.status is LevelStatus.OPTIMAL for update in done):
            return ""
        if self.limits.gap is not None and not any(map(self._is_open, done)):
            return WITHIN.format(100 * self.limits.gap)
        if not self._was_cut_off:
            return ""
        return OUT_OF_WORK if self.limits.budget_ms is None else OUT_OF_TIME

    def _is_open(self, update: LevelUpdate) -> bool:
        return not self.limits.suffices(update.value, update.bound)

    def _compare(self, objective: Objective, value: int | None) -> None:
        """Note whether the knowledge of the levels below still holds for them."""
        least = objective.at_least
        sign = 1 if objective.sense is Sense.MAX else -1
        self._levels_above_kept &= None not in (value, least) and sign * (value or 0) >= sign * (
            least or 0
        )

    def known_bound(self, objective: Objective) -> int | None:
        """Return a bound in terms of what is maximised; None when none is known.

        The bounds of variables count too: where the incumbent reaches them nothing is solved.
        """
        return _tighter_bound(
            largest_value(to_maximise(objective), self.model), self.earlier_bound(objective)
        )

    def earlier_bound(self, objective: Objective) -> int | None:
        """The bound of an earlier search, in terms of what is maximised; None without one."""
        if objective.at_most is None or not self._levels_above_kept:
            return None
        return objective.at_most if objective.sense is Sense.MAX else -objective.at_most

    def report_update(self, update: LevelUpdate) -> None:
        """Tell what is new."""
        if self.on_step is not None:
            self.on_step(Step(self.clock.elapsed, update))

    def attempt(
        self,
        task: Task,
        share: float,
        to_update: Callable[[SolverProgress], LevelUpdate | None],
        work: float | None = None,
    ) -> Result:
        """Run CP-SAT with a share of the time left; `to_update` makes updates of its progress.

        `work` are deterministic seconds; None for what the limits allow.
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
        cut = result.answer in (Answer.FEASIBLE, Answer.UNKNOWN)
        self._was_cut_off |= cut and not self.limits.suffices(result.value, result.bound)
        return result

    def is_expired(self) -> bool:
        """Return whether no time is left for the remaining work."""
        self._was_cut_off |= self.clock.is_expired
        return self.clock.is_expired

    def steps(self, level: int, objective: Objective) -> Generator[LevelUpdate, None, LevelUpdate]:
        """One level, with those above it held; yields its updates on the way."""
        yield from ()
        return self.solve_level(level, objective)

    def solve_level(self, level: int, objective: Objective) -> LevelUpdate:
        """One level, with those above it held."""
        raise NotImplementedError

    def keep_level(self, objective: Objective, value: int | None) -> None:
        """Let no later solution be worse on a level than a value; None allows any."""
        raise NotImplementedError

    def make_update(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> LevelUpdate:
        """Return the report of a level for which nothing was solved."""
        return self.update(level, objective, value, bound)

    def incumbent(self, objective: Objective) -> int | None:
        """Return the incumbent's value, in terms of what is maximised; None when unknown."""
        if self.best.solution is not None:
            return to_maximise(objective).value(self.best.solution)
        if objective.at_least is None:
            return None
        return objective.at_least if objective.sense is Sense.MAX else -objective.at_least

    def effort(self, share: float) -> Effort:
        """Return a share of the time that is left."""
        left = self.clock.remaining_s
        return Effort(
            seconds=None if left is None else left * share,
            deterministic=self.limits.deterministic,
            num_workers=self.limits.num_workers,
            seed=self.limits.seed,
            gap=self.limits.gap,
        )

    def update(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> LevelUpdate:
        """Return the report, turned back into the sense of the level."""
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
    """The most that an expression can be within the bounds of variables; None if too large."""
    lower, upper = model.lower[goal.variables], model.upper[goal.variables]
    ends = np.where(goal.coefficients > 0, upper, lower)
    size = np.abs(goal.coefficients.astype(np.float64)) * np.abs(ends.astype(np.float64))
    if size.sum() >= _LARGE:
        return None
    return int((goal.coefficients * ends).sum()) + goal.constant


def to_maximise(objective: Objective) -> Expression:
    """Return the objective as something to be maximised."""
    form = objective.expression
    if objective.sense is Sense.MAX:
        return form
    return Expression(form.variables, -form.coefficients, -form.constant)


class _DirectSearch(_LevelSearch):
    """A complete model: its relaxation first, then CP-SAT near that, then CP-SAT as it is."""

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
        values, self._ends_s = None, self._end_of(level)
        if not self._is_level_finished(value, bound):
            values, bound = self._relaxed(level, objective, value, bound)
        complete = self._complete(level)
        for upper, share, work in self._plan_searches(level, values, complete):
            if self._is_level_finished(value, bound) or self._is_near_enough(
                value, bound, complete
            ):
                break
            before, within = value, (upper(), share * self._time_share(), work)
            value, found = self._run_search(level, objective, (value, bound), within)
            bound = found if within[0] is complete else bound
            if value != before:
                # The solver may be ended before this level is.
                yield self.update(level, objective, value, bound)
        self.keep_level(objective, value)
        return self.update(level, objective, value, bound)

    def keep_level(self, objective: Objective, value: int | None) -> None:
        """See `_LevelSearch`."""
        if value is None:
            return
        goal = to_maximise(objective)
        self._held.append((goal, value))
        if self._relaxation is not None:
            self._relaxation.hold_value(goal, value)

    def _plan_searches(
        self, level: int, values: F64 | None, complete: I64
    ) -> Iterator[tuple[Callable[[], I64], float, float]]:
        """Upper bounds of each search of a level, its share of the time, deterministic seconds.

        Near the relaxation first. Large models are then searched neighbourhood by neighbourhood:
        near the relaxation, with some nodes free. The complete model is last.
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
        """(variables,) those of some nodes: first where relaxation and incumbent differ most."""
        placement = self.model.placement
        assert placement is not None  # noqa: S101  the caller has the relaxation
        there = np.flatnonzero(placement.node_of >= 0)
        node_of = placement.node_of[there]
        rng = np.random.default_rng(self.limits.seed)
        for _ in range(MOST_ROUNDS_OF_NODES):
            apart = np.abs(values[there] - self._hint[there])
            differs = np.bincount(node_of, apart)
            # Nodes of equal standing take turns.
            weight = differs + rng.random(len(differs)) * (differs.max(initial=0) + 1)
            order = np.argsort(-weight, kind="stable")
            free = np.bincount(node_of, complete[there] > 0, len(differs))[order]
            chosen = order[: int(np.searchsorted(np.cumsum(free), ROUND_VARIABLES)) + 1]
            mine = np.zeros(len(values), np.bool_)
            mine[there] = np.isin(node_of, chosen)
            yield mine

    def _is_near_enough(self, value: int | None, bound: int | None, complete: I64) -> bool:
        """Return whether the levels below need the time more: in large models, against a clock."""
        if self.clock.remaining_s is None or None in (value, bound):
            return False
        is_large = self._num_free(complete) >= LEAST_ROUNDS
        return is_large and relative_gap(value or 0, bound or 0) <= NEAR_ENOUGH

    def _num_free(self, upper: I64) -> int:
        return int((self.model.lower < upper).sum())

    def _end_of(self, level: int) -> float | None:
        """Seconds to be left when a level ends; None without a clock."""
        left = self.clock.remaining_s
        return None if left is None else left * (1 - self._share(level))

    def _seconds_left(self) -> float | None:
        """Seconds left for the level at hand; None without a clock."""
        left = self.clock.remaining_s
        return None if left is None or self._ends_s is None else max(left - self._ends_s, 0.0)

    def _time_share(self) -> float:
        """Return the part of the remaining time for the present level."""
        mine, left = self._seconds_left(), self.clock.remaining_s
        return 1.0 if mine is None or left is None else mine / max(left, 1e-3)

    def _is_level_finished(self, value: int | None, bound: int | None) -> bool:
        """Return whether a level needs no more work, or has no time left for it."""
        if self.limits.suffices(value, bound):
            return True
        is_over = self._seconds_left() == 0.0
        self._was_cut_off |= is_over
        return is_over

    def _share(self, level: int) -> float:
        """Return the part of the time left that a level may take."""
        return max(0.5, 1 / (len(self.model.objectives) - level))

    def _relaxed(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> tuple[F64 | None, int | None]:
        """Return the relaxation's optimum, None without one, and the better one of two bounds."""
        if self._relaxation is None:
            return None, bound
        left = self.clock.remaining_s
        milliseconds = None if left is None else int(left * 1000 * self._share(level))
        vertex = self._relaxation.maximize(to_maximise(objective), milliseconds)
        if vertex is None:
            return None, bound
        # Rows hold up to a tolerance only: a value reached before is never excluded.
        if vertex.bound is None or (value is not None and vertex.bound < value):
            return vertex.values, bound
        found = _tighter_bound(bound, vertex.bound)
        self.report_update(replace(self.update(level, objective, value, found), solution=None))
        return vertex.values, found

    def _near(self, level: int, values: F64, free: Bool | None = None) -> I64:
        """Upper bounds: tasks only where the relaxation or the incumbent has some.

        Gangs that count on later levels alone stay out. Variables that are `free` keep their
        bounds.
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
        """Upper bounds that leave out gangs of later levels, where that loses nothing."""
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
        """Return the best value and bound that are found.

        `known` are those so far; `within` are upper bounds, a share of the time that is left, and
        deterministic seconds.
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
            return replace(self.update(level, objective, value, bound), solution=sight.solution)

        task = Task(self.model.lower, upper, self._rows, goal, self._hint, value, bound)
        result = self.attempt(task, share, to_update, work)
        # One that is only as good may be worse on the levels below.
        if result.solution is not None and result.value != task.at_least:
            self.best = _Best(result.solution)
            self._hint = result.solution
            return result.value, _tighter_bound(bound, _proved_bound(result, result.value))
        return task.at_least, _tighter_bound(bound, _proved_bound(result, task.at_least))


def _can_exclude_gangs(model: LevelModel, placement: Placement, later: Bool) -> bool:
    """Return whether each solution stays valid without some gangs, once nodes supply as much less.

    Rows over those gangs alone have to allow zero; in all other rows they may only use capacity.
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


def _proved_bound(result: Result, known: int | None) -> int | None:
    if result.answer is Answer.OPTIMAL:
        return result.value
    # At least the incumbent's value was asked for, so none means that none is needed.
    return known if result.answer is Answer.INFEASIBLE else result.bound


def _tighter_bound(bound: int | None, other: int | None) -> int | None:
    """Return the better of two bounds of what is maximised."""
    return min((b for b in (bound, other) if b is not None), default=None)


class _ConfigurationSearch(_LevelSearch):
    """Columns generated by pricing, a bound from row prices, CP-SAT over the columns."""

    _at: tuple[int, Objective]
    """The level that is being solved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        assert model.configurations is not None  # noqa: S101  the caller asks only then
        self._nodes = nodes = model.configurations
        self._bound: int | None = None
        self._written: tuple[_Best, tuple[I64, I64, I64]] | None = None
        self._pricer = Pricer(nodes.capacity, nodes.request, nodes.allowed)
        self._master = Master(model, nodes)
        for node_class, tasks in zip(nodes.start_class.tolist(), nodes.start_tasks, strict=True):
            self._master.add_column(node_class, tasks)

    def solve_level(self, level: int, objective: Objective) -> LevelUpdate:
        goal = to_maximise(objective)
        value = self.incumbent(objective)
        self._at, self._bound = (level, objective), self.known_bound(objective)
        proof, relaxed = self._generate(goal, value)
        if proof is not None and relaxed is not None:
            value = self._round(goal, value, (proof, relaxed))
        self.keep_level(objective, value)
        return self.make_update(level, objective, value, self._bound)

    def keep_level(self, objective: Objective, value: int | None) -> None:
        """See `_LevelSearch`."""
        if value is not None:
            goal = to_maximise(objective)
            held = value - goal.constant
            self._master.add_row(goal.variables, goal.coefficients, held, int(UNLIMITED))

    def make_update(
        self, level: int, objective: Objective, value: int | None, bound: int | None
    ) -> LevelUpdate:
        """See `_LevelSearch`."""
        return self._with_configurations(self.update(level, objective, value, bound), self.best)

    def _with_configurations(self, update: LevelUpdate, best: _Best) -> LevelUpdate:
        if self._written is None or self._written[0] is not best:
            self._written = best, self._configurations_in_use(best)
        use_class, use_tasks, uses = self._written[1]
        return replace(
            update,
            solution=best.solution,
            use_class=use_class,
            use_tasks=use_tasks,
            uses=uses,
        )

    def _configurations_in_use(self, best: _Best) -> tuple[I64, I64, I64]:
        """Node class, tasks and number of nodes of each configuration that a solution uses."""
        used = np.flatnonzero(best.uses)
        tasks = [self._master.column_tasks[p] for p in used.tolist()]
        return (
            np.array(self._master.column_class, np.int64)[used],
            np.array(tasks, np.int64).reshape(len(used), self._nodes.request.shape[0]),
            best.uses[used],
        )

    def _record_bound(self, bound: int, value: int | None) -> None:
        """Take note of a bound of what is maximised."""
        if self._bound is not None and bound >= self._bound:
            return
        self._bound = bound
        level, objective = self._at
        self.report_update(replace(self.update(level, objective, value, bound), solution=None))

    def _generate(
        self, goal: Expression, value: int | None
    ) -> tuple[Charged | None, Relaxed | None]:
        """Add configurations until none is worth adding; the best proof and the last optimum."""
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
            proof = charge(self._master, self.model, goal, prices, priced)
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
        """Integer solutions: first near the relaxed one, then anywhere.

        Returns the best value; `_bound` follows the proofs on the way.
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
            answer = self._attempt(goal, target, bound, within, share)
            if answer is Answer.INFEASIBLE and complete:
                bound = target - proof.step
                self._record_bound(bound, value)
            if answer in (Answer.OPTIMAL, Answer.FEASIBLE):
                value = self.incumbent_value(goal)
                if complete and answer is Answer.OPTIMAL:
                    self._record_bound(value, value)
                return value
            if value is not None and target <= value + proof.step:
                break
            slack = 4 * slack + 1
        return value

    def _complete(self, proof: Charged, value: int) -> bool:
        """Add every configuration that a solution worth so much could use; False if too many."""
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
        """Return the value of the incumbent, which is a solution."""
        assert self.best.solution is not None  # noqa: S101  one has just been found
        return goal.value(self.best.solution)

    def _redistribute(self, goal: Expression, value: int | None, bound: int) -> int | None:
        """Improve the incumbent by moving admissions between queues, nodes staying as they are.

        The numbers of gangs of each shape stay the same, so that every level which does not look
        at queues keeps its value. Few variables of the relaxed optimum are then not whole.
        """
        if self.best.solution is None or (self.model.kin < 0).all():
            return value
        num, solution = len(self.model.lower), self.best.solution
        rows = self._with_kin(solution)
        lower, upper = self._bounds()
        lower[num:] = upper[num:] = self._incumbent_uses()
        left = self.clock.remaining_s
        values = relaxed_values(lower, upper, rows, goal, None if left is None else int(left * 500))
        if values is None:
            return value
        whole = np.abs(values - np.rint(values)) <= WHOLE
        near = np.rint(values).astype(np.int64)
        fixed = whole & np.append(self.model.kin >= 0, np.ones(len(values) - num, np.bool_))
        within = (np.where(fixed, near, lower), np.where(fixed, near, upper), near)
        return self._solve(goal, value, bound, within, 0.3)

    def _bounds(self) -> tuple[I64, I64]:
        """Bounds of the variables and of all configurations."""
        most = self._nodes.multiplicity[np.array(self._master.column_class, np.int64)]
        lower = np.concatenate([self.model.lower, np.zeros_like(most)])
        return lower, np.concatenate([self.model.upper, most])

    def _incumbent_uses(self) -> I64:
        """Return the incumbent's uses of all configurations."""
        uses = np.zeros(len(self._master.column_class), np.int64)
        uses[: len(self.best.uses)] = self.best.uses
        return uses

    def _with_kin(self, solution: I64) -> Rows:
        """Return all rows, and one that keeps the sum of each group of kin."""
        rows = self._master.integer_rows()
        kin = self.model.kin
        members = np.flatnonzero(kin >= 0)
        sums = np.bincount(kin[members], weights=solution[members]).astype(np.int64)
        first = len(rows.lower)
        return Rows(
            np.concatenate([rows.row, first + kin[members]]),
            np.concatenate([rows.variable, members]),
            np.concatenate([rows.coefficient, np.ones(len(members), np.int64)]),
            np.concatenate([rows.lower, sums]),
            np.concatenate([rows.upper, sums]),
        )

    def _pad_values(self, relaxed: Relaxed) -> F64:
        """Values of the variables and of all configurations, those of the last round included."""
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
        """CP-SAT within bounds, from a hint; returns the better of its result and `value`."""
        least = None if value is None else value + 1
        answer = self._attempt(goal, least, bound, within, share)
        found = answer in (Answer.OPTIMAL, Answer.FEASIBLE)
        return self.incumbent_value(goal) if found else value

    def _attempt(
        self,
        goal: Expression,
        least: int | None,
        bound: int,
        within: tuple[I64, I64, I64],
        share: float,
    ) -> Answer:
        """CP-SAT within bounds (lower, upper, hint); its result becomes the incumbent."""
        lower, upper, hint = within
        if (lower > upper).any():
            return Answer.INFEASIBLE
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
            return Answer.UNKNOWN
        if result.solution is not None:
            num = len(self.model.lower)
            self.best = _Best(result.solution[:num], result.solution[num:])
        return result.answer

    def _make_progress_update(self, sight: SolverProgress) -> LevelUpdate | None:
        """The value of a solution that CP-SAT finds on the way; its bounds hold nearby only."""
        if sight.solution is None:
            return None
        (level, objective), num = self._at, len(self.model.lower)
        best = _Best(sight.solution[:num], sight.solution[num:])
        value = to_maximise(objective).value(sight.solution[:num])
        return self._with_configurations(self.update(level, objective, value, self._bound), best)

    def _hint(self, values: F64) -> I64:
        """Return the incumbent; the relaxed values rounded down while that is the greedy plan."""
        if self.best.solution is None:
            return np.floor(values + WHOLE).astype(np.int64)
        return np.concatenate([self.best.solution, self._incumbent_uses()])
