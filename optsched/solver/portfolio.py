"""Select the engines for a problem, run the engines, and evaluate their solutions.

The greedy plan is the first incumbent. If every level has its ideal value, no plan can be better,
and the solver does not run. Otherwise, the solver runs; the model of a small problem has one
variable per task class and node. The model of a larger problem has node classes and configurations.
If a problem is too large for node classes, each model covers only a few nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import LevelResult, LevelStatus, Sense, are_optimal
from optsched.plugins.accounting import Outcome
from optsched.plugins.extension_points import is_domain_level
from optsched.plugins.gangs.gang import excess_resources
from optsched.problem.arrays import UNPLACED, frozen
from optsched.problem.relations import TermKind, count_coming
from optsched.solver.cpsat.pricing import TOO_MANY_CAPACITIES, TooManyCapacities, useful_capacity
from optsched.solver.greedy.pipeline import ALLOCATE, BACKFILL, GreedyOptions, run_greedy
from optsched.solver.model.encoding import Goal, encode_configurations, encode_direct
from optsched.solver.model.neighbourhoods import Neighbourhood, choose_gangs, choose_nodes
from optsched.solver.model.node_masks import count_fitting_tasks, find_open_classes
from optsched.solver.solution_check import solve_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.cpsat.level_model import LevelUpdate, Limits, Step
    from optsched.solver.cpsat.process import Solver
    from optsched.solver.model.encoding import Encoding

MOST_DIRECT = 3000
"""Maximum number of (task class, node) pairs for which the engine `DIRECT` always runs."""

BEST_DIRECT = 400
"""Maximum number of (task class, node) pairs for which `DIRECT` runs before `CONFIGURATIONS`.

This limit applies if many nodes have equal idle capacity and the policy has no levels over domains.
The model of `CONFIGURATIONS` is then exact except for node scores.
"""

MOST_RELAXED = 20_000
"""Maximum number of (task class, node) pairs for `DIRECT` if idle capacity differs among nodes."""

FEW_ROOMS = 0.25
"""Maximum ratio of distinct idle capacity vectors to nodes for which `CONFIGURATIONS` runs first.
"""

PAIRS_PER_MS = 25
"""Maximum number of (task class, node) pairs in a model per millisecond of its time budget.

For a larger model, the time budget does not suffice to build the model and to solve its relaxation.
"""

CROWDED_PAIRS_PER_MS = 500
"""Maximum number of (task class, node) pairs per millisecond of budget, over all crowded searches.

A crowded search covers few nodes with many task classes. The model of a crowded search is small,
but building the model reads tables of all pairs.
"""

ROUND_MS = 400
"""Time budget in milliseconds for one neighbourhood; a larger budget allows more neighbourhoods."""

ROUNDS_OF_WORK = 4
"""Number of neighbourhoods to search if there is no wall-time limit."""

MOST_KEPT_MS = 50
"""Maximum milliseconds of the time budget that are reserved for work outside the engines."""

NOMINATIONS = "nominations"
GREEDY, DIRECT, CONFIGURATIONS = "greedy", "cp-sat, node by node", "cp-sat, configurations"
NEIGHBOURHOODS = "cp-sat, some nodes at a time"
SOME_NODES = "only some nodes were searched at a time"
UNBOUNDED = frozenset({SOME_NODES, TOO_MANY_CAPACITIES})
"""The `stopped` reasons of searches that prove no bound."""
IDEAL = "every level at its ideal"
NO_SOLVER = "no solver asked for"


@dataclass(frozen=True, eq=False)
class Solution:
    """The decisions of a plan, and the value and the bound of each level.

    Attributes
    ----------
    results
        The value, bound and status of each level.
    engine, stopped
        The engine that found the decisions, and the reason why its search ended.
    relaxed
        The rules because of which the model omits gangs. A model that omits gangs proves no bounds.
    final
        Indices of the gangs whose decisions are final.
    proved
        The bound that an earlier search proved on each level, or None if it proved none; empty
        without an earlier search. Each bound holds only for plans that have the values of `results`
        on all earlier levels.

    """

    decisions: Decisions
    results: tuple[LevelResult, ...]
    engine: str
    stopped: str
    relaxed: tuple[str, ...] = ()
    final: tuple[int, ...] = ()
    proved: tuple[int | None, ...] = ()


@dataclass(frozen=True, eq=False)
class LevelProgress:
    """Progress on one level during a solve.

    Attributes
    ----------
    at_s
        Seconds since the solver started; deterministic seconds if there is no time limit.
    value, bound
        The value and bound of the level, as in the certificate; None if unknown.
    decisions
        Returns the decisions of a new solution; None if only a bound is reported.

    """

    number: int
    name: str
    at_s: float
    value: int | None
    bound: int | None
    decisions: Callable[[], Decisions] | None


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """The solver, the limits of the solve, and the progress callback."""

    solver: Solver
    limits: Limits
    watch: Callable[[LevelProgress], None] | None = None


def evaluate_greedy(
    problem: Problem, decisions: Decisions, levels: Sequence[AnyLevel], stopped: str
) -> Solution:
    """Evaluate each level for the given decisions, with the level's ideal value as its bound."""
    outcome = Outcome(problem, decisions)
    results = []
    for level in levels:
        value, ideal = level.value(outcome), level.ideal(problem)
        status = LevelStatus.OPTIMAL if value == ideal else LevelStatus.FEASIBLE
        results.append(LevelResult(level.name, level.unit, level.sense, value, ideal, status))
    return Solution(decisions, tuple(results), GREEDY, stopped)


def is_ideal(
    problem: Problem, rules: RuleSet, levels: Sequence[AnyLevel], solution: Solution
) -> bool:
    """Return whether a plan is so good that the solver need not run.

    If a task is unplaced, a plan is good enough only if every level has its ideal value. If all
    tasks are placed and the problem is small enough for `DIRECT`, a plan is good enough only if the
    levels over domains have their ideal values.
    """
    pairs = zip(levels, solution.results, strict=True)
    missed = [level for level, result in pairs if result.status is not LevelStatus.OPTIMAL]
    if (solution.decisions.node_of < 0).any():
        return not missed
    apart = any(is_domain_level(level) for level in missed)
    return not apart or count_pairs(problem, rules) > MOST_DIRECT


def improve(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    incumbent: Solution,
    search: SolveRequest,
) -> Solution:
    """Return the best solution found within the limits, or the incumbent if none is better.

    `goal` holds the tiers of gangs and the levels of the policy.
    """
    part = whole = _exclude_final_gangs(problem, rules, goal, incumbent)
    limits, best, stopped = search.limits, incumbent, ""
    engines = _engines(part, limits)[: max(limits.num_engines, 1)]
    sequence = None if search.watch is None else _EngineSequence(search.watch)
    for engine, quarters in zip(engines, _QUARTERS[len(engines)], strict=True):
        budget_ms = limits.budget_ms
        if budget_ms:
            budget_ms -= min(budget_ms // 10, MOST_KEPT_MS)
            budget_ms = max(budget_ms * quarters // 4, 1)
        share = SolveRequest(search.solver, replace(limits, budget_ms=budget_ms), sequence)
        if best is not incumbent:
            part = _exclude_final_gangs(problem, rules, goal, best)
        improve_part = _search_neighbourhoods if engine == NEIGHBOURHOODS else _improve_with
        best = improve_part(engine, problem, part, (best, share))
        if best.relaxed or all(limits.suffices(r.value, r.bound) for r in best.results):
            break
        # Report why `DIRECT` stopped, if it ran, because only `DIRECT` models every level.
        stopped = best.stopped if engine == DIRECT or not stopped else stopped
        best = replace(best, proved=tuple(r.bound for r in best.results), final=incumbent.final)
        if sequence is not None:
            sequence.start_next_engine()
    else:
        best = replace(best, stopped=stopped)
    is_optimal = are_optimal(best.results)
    if best.decisions is incumbent.decisions or is_optimal:
        return best
    return fill_idle_capacity(problem, rules, goal, best, whole.tied[0])


def fill_idle_capacity(
    problem: Problem,
    rules: RuleSet,
    goal: tuple[Tiers, Sequence[AnyLevel]],
    best: Solution,
    tied: Bool,
) -> Solution:
    """Place more gangs greedily on the capacity that a solution leaves idle.

    If a search reaches its time limit on one level, gangs that only later levels count may stay
    unplaced. Decisions about the gangs in the mask `tied` (G,) do not change.
    """
    tiers, levels = goal
    decisions = best.decisions
    closed = tied.copy() if len(tied) else np.zeros(problem.num_gangs, np.bool_)
    closed[problem.gang_of[(decisions.node_of >= 0) | (decisions.nominated >= 0)]] = True
    closed[list(best.final)] = True
    if closed[problem.open_gangs].all():
        return best
    options = GreedyOptions((ALLOCATE, BACKFILL), tiers.of, gated=False)
    added = run_greedy(fix_decisions(problem, decisions, closed), rules, options)
    node_of = np.where(closed[problem.gang_of], decisions.node_of, added.node_of)
    outcome = Outcome(problem, replace(decisions, node_of=node_of))
    values = [level.value(outcome) for level in levels]
    known = [r.value for r in best.results]
    if values == known or not is_no_worse(levels, values, known):
        return best
    # A bound on a level holds for every plan that is no worse on earlier levels, including the new
    # plan.
    results = []
    for result, value in zip(best.results, values, strict=True):
        status = LevelStatus.OPTIMAL if value == result.bound else LevelStatus.FEASIBLE
        is_same = result.value == value
        results.append(result if is_same else replace(result, value=value, status=status))
    return replace(best, decisions=outcome.decisions, results=tuple(results))


class _EngineSequence:
    """A progress callback that reports several engines as one continuous search."""

    def __init__(self, watch: Callable[[LevelProgress], None]) -> None:
        self._watch = watch
        self._begun_s = self._last_s = 0.0

    def __call__(self, progress: LevelProgress) -> None:
        self._last_s = self._begun_s + progress.at_s
        self._watch(replace(progress, at_s=self._last_s))

    def start_next_engine(self) -> None:
        """Add the last reported time to the times that the next engine reports."""
        self._begun_s = self._last_s


_QUARTERS = {1: (4,), 2: (1, 3)}
"""Parts of the time budget for each engine, in quarters, keyed by the number of engines.

The first of two engines gets one quarter of the time budget, because this engine finishes either
early or not at all.
"""


@dataclass(frozen=True, eq=False)
class _OpenProblem:
    """The problem that an engine solves, without the gangs whose decisions are final.

    Attributes
    ----------
    goal
        The tiers of gangs, and the levels with bounds that hold for this problem.
    left_out
        Names of the reasons why the problem omits gangs.

    """

    problem: Problem
    rules: RuleSet
    goal: Goal
    decisions: Decisions
    left_out: tuple[str, ...] = ()

    @cached_property
    def tied(self) -> tuple[Bool, tuple[str, ...]]:
        """A mask (G,) of the gangs that node classes cannot model, and the rules responsible."""
        return find_tied_gangs(self.problem, self.rules)


def _exclude_final_gangs(
    problem: Problem, rules: RuleSet, goal: tuple[Tiers, Sequence[AnyLevel]], incumbent: Solution
) -> _OpenProblem:
    tiers, levels = goal
    known = [r.value for r in incumbent.results]
    whole = Goal(tiers, levels, known, incumbent.proved)
    final = find_nominated_gangs(problem, incumbent.decisions)
    final[list(incumbent.final)] = True
    if not final.any():
        return _OpenProblem(problem, rules, whole, incumbent.decisions)
    # Gangs whose placements depend on final gangs are final too, unless `fix_decisions` applies the
    # rule that ties these gangs.
    tied = {
        rule.name: np.array(
            [rule.ties_nodes(problem, c) for c in range(len(problem.classes.shapes))], np.bool_
        )
        for rule in rules.tying
        if not rule.ties_by_relations
    }
    relations, shapes = problem.relations, problem.classes.shapes
    # Affinity and spread terms count only placed pods, not pods that will start on nominated nodes.
    near = {m for m, term in enumerate(relations.terms) if term.kind is not TermKind.ANTI_AFFINITY}
    carries = [near.intersection(relations.carried_by(shape)) for shape in shapes]
    before = -1
    while int(final.sum()) > before:
        before = int(final.sum())
        mine = final[problem.gang_of]
        nominated = incumbent.decisions.nominated >= 0
        comes = mine & ((incumbent.decisions.node_of >= 0) | nominated)
        present = np.unique(problem.task_class[comes])
        affected = np.zeros(len(shapes), np.bool_)
        for flags in tied.values():
            affected |= flags & flags[present].any()
        waiting = np.unique(problem.task_class[mine & nominated]).tolist()
        selecting = {m for c in waiting for m in problem.classes.relations[c]} & near
        affected |= np.array([not selecting.isdisjoint(c) for c in carries], np.bool_)
        final[problem.gang_of[affected[problem.task_class]]] = True
    # No other gang may use the nominated nodes of final gangs, even if the gang could start there
    # now.
    rest, decisions, left = _exclude_gangs(problem, incumbent.decisions, whole, final)
    return _OpenProblem(rest, rules, left, decisions, (NOMINATIONS,))


def _engines(part: _OpenProblem, limits: Limits) -> tuple[str, ...]:
    """Return the engines in order; a second engine solves levels that the first does not prove.

    `DIRECT` solves small problems with tied gangs or with levels over domains. Only `DIRECT` models
    node scores, but `CONFIGURATIONS` proves other levels faster. If a problem is too large for the
    time budget, each search covers only a few nodes.
    """
    pairs, affordable = count_pairs(part.problem, part.rules), None
    if limits.budget_ms is not None:
        affordable = max(PAIRS_PER_MS * limits.budget_ms, MOST_DIRECT)
    if pairs > min(MOST_RELAXED, affordable or MOST_RELAXED):
        distinct = _count_idle_vectors(part.problem)
        priced = distinct * len(find_open_classes(part.problem))
        if affordable is not None and priced > affordable:
            return (NEIGHBOURHOODS,)
        is_priced_first = distinct <= FEW_ROOMS * part.problem.num_nodes
        engines = CONFIGURATIONS, NEIGHBOURHOODS
        return engines if is_priced_first else engines[::-1]
    if part.tied[0].any():
        return (DIRECT,) if pairs <= MOST_DIRECT else (CONFIGURATIONS,)
    near = any(is_domain_level(level) for level in part.goal.levels)
    if pairs <= (MOST_DIRECT if near else BEST_DIRECT):
        return DIRECT, CONFIGURATIONS
    if _count_idle_vectors(part.problem) > FEW_ROOMS * part.problem.num_nodes:
        return DIRECT, CONFIGURATIONS
    return CONFIGURATIONS, DIRECT if pairs <= MOST_DIRECT else NEIGHBOURHOODS


def _count_idle_vectors(problem: Problem) -> int:
    """Return the number of distinct vectors of idle capacity that tasks can use."""
    useful = useful_capacity(problem.idle, problem.classes.request)
    return len(np.unique(useful, axis=0))


def _improve_with(
    engine: str, problem: Problem, part: _OpenProblem, run: tuple[Solution, SolveRequest]
) -> Solution:
    """Return the solution of one engine, or the incumbent if the incumbent is better."""
    levels = part.goal.levels
    incumbent, search = run
    relaxed = part.left_out
    encoding: Encoding
    try:
        if engine == DIRECT:
            encoding = encode_direct(part.problem, part.rules, part.goal, part.decisions)
        else:
            open_problem, decisions, goal = _without_tied_gangs(part)
            relaxed = (*relaxed, *part.tied[1])
            encoding = encode_configurations(open_problem, part.rules, goal, decisions)
    except TooManyCapacities:
        return _search_neighbourhoods(NEIGHBOURHOODS, problem, part, run)
    on_step = None
    if search.watch is not None:
        on_step = _SolverProgress(problem, levels, incumbent, (encoding, relaxed), search.watch)
    solved = solve_checked(search.solver, encoding.model, search.limits, on_step)
    if solved.stopped == TOO_MANY_CAPACITIES:
        return _search_neighbourhoods(NEIGHBOURHOODS, problem, part, run)
    last, decisions = solved.last_solved, incumbent.decisions
    if last is not None:
        decisions = encoding.decode(last, incumbent.decisions)
    outcome = Outcome(problem, decisions)
    values = [level.value(outcome) for level in levels]
    known = [r.value for r in incumbent.results]
    if not is_no_worse(levels, values, known):
        why = "the solution is worse than the incumbent and is not used"
        return replace(incumbent, stopped=f"{solved.stopped}; {why}")
    proved = {encoding.level_of[u.level]: u for u in solved.updates}
    results = tuple(
        _result(problem, level, value, proved.get(i), relaxed)
        for i, (level, value) in enumerate(zip(levels, values, strict=True))
    )
    if values == known:
        # A solution with equal level values does not replace the incumbent, so plans are
        # reproducible.
        results = tuple(map(_keep_better_bound, results, incumbent.results))
        decisions, engine = incumbent.decisions, f"{incumbent.engine}, weighed by {engine}"
    if are_optimal(results):
        relaxed = ()
    return Solution(decisions, results, engine, solved.stopped, relaxed)


def _search_neighbourhoods(
    engine: str, problem: Problem, part: _OpenProblem, run: tuple[Solution, SolveRequest]
) -> Solution:
    """Improve the incumbent by a sequence of searches, each over a few nodes.

    Each search starts from the best plan so far. The solution has the bounds of the incumbent,
    because no search proves a bound for the whole problem.
    """
    best, search = run
    limits, levels = search.limits, part.goal.levels
    rounds = ROUNDS_OF_WORK
    if limits.budget_ms is None:
        limits = replace(limits, deterministic=limits.deterministic / rounds)
    else:
        rounds = max(round(limits.budget_ms / ROUND_MS), 1)
        limits = replace(limits, budget_ms=limits.budget_ms // rounds)
    stopped, most = TOO_MANY_CAPACITIES, None
    for number in range(rounds):
        open_problem, decisions, goal = _without_tied_gangs(part)
        if most is None:
            most = count_fitting_tasks(open_problem, part.rules)
        seed = limits.seed
        nodes = choose_nodes(open_problem, goal.tiers, decisions, most, number, seed)
        if not nodes.any():
            break
        neighbourhood = Neighbourhood(nodes, most)
        if neighbourhood.is_crowded:
            budget_ms = search.limits.budget_ms
            num_pairs = most.size * (number + 1)
            if budget_ms is not None and num_pairs > CROWDED_PAIRS_PER_MS * budget_ms:
                break
            gangs = choose_gangs(open_problem, goal.tiers, decisions, neighbourhood, number, seed)
            if not gangs.any():
                break
            open_problem, decisions, goal = _exclude_gangs(open_problem, decisions, goal, ~gangs)
            neighbourhood = Neighbourhood(nodes, count_fitting_tasks(open_problem, part.rules))
        stopped = SOME_NODES
        encoding = encode_direct(open_problem, part.rules, goal, decisions, neighbourhood)
        on_step = None
        if search.watch is not None:
            on_step = _SolverProgress(problem, levels, best, (encoding, (engine,)), search.watch)
        solved = solve_checked(search.solver, encoding.model, limits, on_step)
        last = solved.last_solved
        if last is None:
            continue
        found = evaluate_greedy(problem, encoding.decode(last, best.decisions), levels, "")
        values, known = ([r.value for r in a.results] for a in (found, best))
        if values == known or not is_no_worse(levels, values, known):
            continue
        # A bound on a level holds for every plan that is no worse on earlier levels, including the
        # new plan.
        results = tuple(map(_keep_better_bound, found.results, best.results))
        best = replace(best, decisions=found.decisions, results=results, engine=engine)
        part, most = _exclude_final_gangs(problem, part.rules, (goal.tiers, levels), best), None
    return replace(best, stopped=stopped)


class _SolverProgress:
    """A progress callback that reports solutions of a model as level values of the problem."""

    def __init__(
        self,
        problem: Problem,
        levels: Sequence[AnyLevel],
        incumbent: Solution,
        encoded: tuple[Encoding, tuple[str, ...]],
        watch: Callable[[LevelProgress], None],
    ) -> None:
        self._encoding, self._relaxed = encoded
        self._problem, self._levels = problem, levels
        self._incumbent, self._watch = incumbent, watch
        self._ideal = [level.ideal(problem) for level in levels]

    def __call__(self, step: Step) -> None:
        update = step.update
        number = self._encoding.level_of[update.level]
        name = self._levels[number].name
        found = (
            None
            if update.solution is None
            else partial(self._encoding.decode, update, self._incumbent.decisions)
        )
        if not self._relaxed:
            bound = self._ideal[number]
            if update.bound is not None:
                better = min if self._levels[number].sense is Sense.MAX else max
                bound = better(bound, update.bound)
            self._watch(LevelProgress(number, name, step.at_s, update.value, bound, found))
            return
        if found is None:
            return
        # The level values of the model do not include excluded gangs, so compute the values from
        # the decisions.
        outcome = Outcome(self._problem, found())
        values = [level.value(outcome) for level in self._levels]
        if is_no_worse(self._levels, values, [r.value for r in self._incumbent.results]):
            ideal = self._ideal[number]
            self._watch(LevelProgress(number, name, step.at_s, values[number], ideal, found))


def _without_tied_gangs(part: _OpenProblem) -> tuple[Problem, Decisions, Goal]:
    """Return problem, incumbent and `Goal` without the gangs that `find_tied_gangs` returns."""
    tied = part.tied[0]
    if not tied.any():
        return part.problem, part.decisions, part.goal
    return _exclude_gangs(part.problem, part.decisions, part.goal, tied)


def _exclude_gangs(
    problem: Problem, decisions: Decisions, goal: Goal, gangs: Bool
) -> tuple[Problem, Decisions, Goal]:
    """Return problem, incumbent and `Goal` without `gangs` (G,), whose decisions become final."""
    rest = fix_decisions(problem, decisions, gangs)
    node_of = np.where(gangs[problem.gang_of], UNPLACED, decisions.node_of)
    decisions = replace(decisions, node_of=node_of)
    # The model does not count the excluded gangs, so the known level values must exclude these
    # gangs too.
    nominated = np.where(gangs[problem.gang_of], UNPLACED, decisions.nominated)
    outcome = Outcome(rest, replace(decisions, nominated=nominated))
    known = [level.value(outcome) for level in goal.levels]
    # A bound for all gangs need not hold for the remaining gangs.
    return rest, decisions, Goal(goal.tiers, goal.levels, known)


def find_nominated_gangs(problem: Problem, decisions: Decisions) -> Bool:
    """Return a mask (G,) of the gangs with nominated tasks."""
    gangs = np.zeros(problem.num_gangs, np.bool_)
    gangs[problem.gang_of[decisions.nominated >= 0]] = True
    return gangs


def count_pairs(problem: Problem, rules: RuleSet) -> int:
    """Return the number of (task class, node) pairs where a task of the class fits on the node.

    If the number of task classes times the number of nodes exceeds 50 · `MOST_DIRECT`, this product
    is returned as an upper bound.
    """
    most = len(find_open_classes(problem)) * problem.num_nodes
    return most if most > 50 * MOST_DIRECT else int((count_fitting_tasks(problem, rules) > 0).sum())


def find_tied_gangs(problem: Problem, rules: RuleSet) -> tuple[Bool, tuple[str, ...]]:
    """Return a mask (G,) of the gangs that node classes cannot model, and the rules responsible.

    The mask contains gangs whose placements depend on other tasks of the node, and gangs that may
    use too many domains.
    """
    names: set[str] = set()
    tied = np.zeros(len(problem.classes.shapes), np.bool_)
    for rule in rules.tying:
        for task_class in find_open_classes(problem).tolist():
            if rule.ties_nodes(problem, task_class):
                tied[task_class] = True
                names.add(rule.name)
    gangs = np.zeros(problem.num_gangs, np.bool_)
    gangs[problem.gang_of[tied[problem.task_class]]] = True
    mine = None if rules.topology is None else rules.topology.find_tied_gangs(problem)
    if rules.topology is not None and mine is not None and mine.any():
        gangs |= mine
        names.add(rules.topology.name)
    return gangs, tuple(sorted(names))


def fix_decisions(problem: Problem, decisions: Decisions, gangs: Bool) -> Problem:
    """Return the problem that remains after the decisions about `gangs` (G,) are final."""
    tasks = np.flatnonzero(gangs[problem.gang_of] & (decisions.node_of >= 0))
    request = problem.classes.request[problem.task_class[tasks]]
    used = problem.used.copy()
    np.add.at(used, decisions.node_of[tasks], request)
    nominated = np.flatnonzero(gangs[problem.gang_of] & (decisions.nominated >= 0))
    waiting = np.zeros_like(used)
    requested = problem.classes.request[problem.task_class[nominated]]
    np.add.at(waiting, decisions.nominated[nominated], requested)
    used += np.maximum(waiting - problem.releasing, 0)
    releasing = np.maximum(problem.releasing - waiting, 0)
    gain = np.zeros_like(problem.queues.allocated)
    np.add.at(gain, problem.queue_of[problem.gang_of[tasks]], request)
    np.add.at(gain, problem.queue_of[problem.gang_of[nominated]], requested)
    shape_of = np.where(gangs, -1, problem.shape_of)
    starting = np.unique(problem.gang_of[tasks])
    excess = excess_resources(problem)
    kept = problem.kept + excess[problem.shape_of[starting]].sum(axis=0)
    # Resources that terminating tasks release count towards the `minResources` of the gangs that
    # wait for these resources.
    waits = np.setdiff1d(problem.gang_of[nominated], starting)
    leaves = releasing[problem.ready].sum(axis=0)
    kept += np.maximum(excess[problem.shape_of[waits]].sum(axis=0) - leaves, 0)
    settled = np.where(gangs & (problem.shape_of >= 0), 0, problem.settled)
    settled[problem.gang_of[np.concatenate([tasks, nominated])]] = 1
    frozen(used, releasing, shape_of, kept, settled)
    queues = replace(
        problem.queues,
        allocated=problem.queues.allocated + gain,
        gained=problem.queues.gained + gain,
    )
    relations = count_coming(
        problem.relations,
        problem.classes.shapes,
        problem.classes.relations,
        (problem.task_class[tasks], decisions.node_of[tasks]),
        (problem.task_class[nominated], decisions.nominated[nominated]),
    )
    return replace(
        problem,
        used=used,
        releasing=releasing,
        shape_of=shape_of,
        queues=queues,
        relations=relations,
        kept=kept,
        settled=settled,
    )


def is_no_worse(levels: Sequence[AnyLevel], values: Sequence[int], known: Sequence[int]) -> bool:
    """Return whether level values are lexicographically at least as good as `known`."""
    for level, value, before in zip(levels, values, known, strict=True):
        if value != before:
            return (value > before) is (level.sense is Sense.MAX)
    return True


def _result(
    problem: Problem,
    level: AnyLevel,
    value: int,
    update: LevelUpdate | None,
    relaxed: tuple[str, ...],
) -> LevelResult:
    bound = level.ideal(problem)
    if update is not None and update.bound is not None and not relaxed:
        better = min if level.sense is Sense.MAX else max
        bound = better(bound, update.bound)
    if value == bound:
        status = LevelStatus.OPTIMAL
    elif update is None:
        status = LevelStatus.SKIPPED
    else:
        status = LevelStatus.FEASIBLE
    return LevelResult(level.name, level.unit, level.sense, value, bound, status)


def _keep_better_bound(result: LevelResult, before: LevelResult) -> LevelResult:
    if result.bound is None or before.bound is None:
        return result
    bound = (min if result.sense is Sense.MAX else max)(result.bound, before.bound)
    status = LevelStatus.OPTIMAL if result.value == bound else result.status
    return replace(result, bound=bound, status=status)
