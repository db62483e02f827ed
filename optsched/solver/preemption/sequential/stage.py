"""Find victims gang by gang, starting with the most important gang.

Later gangs do not change the evictions for earlier gangs. The search ignores the placements of
gangs in less important tiers, because the session places these gangs again after the search.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from optsched.cluster.decisions import Allocate, Evict, LevelResult, LevelStatus, Nominate, Sense
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import Entitlement
from optsched.plugins.accounting import Outcome
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.eviction.victims import ended_gangs
from optsched.plugins.ordering.fifo import NO_GANG, FifoLines
from optsched.problem.decisions import count_nominations
from optsched.problem.running import running_tasks
from optsched.solver.preemption.sequential.compile import EvictionCompiler
from optsched.solver.preemption.sequential.eviction_problem import EvictionState, explain_shortage
from optsched.solver.preemption.sequential.heuristic import (
    HeuristicSolution,
    restrict_to_promising_nodes,
    solve_heuristically,
)
from optsched.solver.preemption.sequential.model import (
    ENDED,
    START,
    TASKS,
    VICTIMS,
    encode_eviction,
)
from optsched.solver.preemption.sequential.trial import has_custom_rules, search_by_trial
from optsched.solver.solution_check import solve_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set

    from optsched.cluster.decisions import Action
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions, Nominations
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.cpsat.level_model import Limits
    from optsched.solver.cpsat.process import Solver
    from optsched.solver.preemption.sequential.eviction_problem import EvictionProblem


@dataclass(frozen=True, slots=True)
class VictimSearchSettings:
    """Dependencies and settings of the victim search.

    Attributes
    ----------
    solver
        The solver, or None to use only heuristic solutions.
    left_ms
        Returns the remaining wall time in milliseconds, or None in deterministic mode.
    excluded_gangs
        Gangs for which no task may be evicted.
    by_trial
        Gangs whose victims are found by trial, because the verifier rejected solutions of the
        model.
    reclaiming_gangs
        Gangs for which no task of their own queue may be evicted.

    """

    solver: Solver | None
    left_ms: Callable[[], int | None]
    limits: Limits
    excluded_gangs: frozenset[int] = frozenset()
    by_trial: frozenset[int] = frozenset()
    reclaiming_gangs: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class EvictionPlan:
    """The evictions, and the nominations of the gangs that need the evictions.

    Attributes
    ----------
    evictions
        The evictions, in the order of their preemptors.
    nominations
        Nominations of each preemptor, keyed by gang index in search order.
    results
        The numbers of victims and of gangs evicted entirely, as levels with bounds.
    hopeless
        Maps each gang for which no eviction helps to the reason, or to None if the reason is
        unknown.
    entitlements
        The amount of each resource that a reclaiming queue may hold after all placements.

    """

    evictions: tuple[Evict, ...] = ()
    nominations: Mapping[int, Nominations] = field(default_factory=dict)
    results: tuple[LevelResult, ...] = ()
    hopeless: Mapping[int, Reason | None] = field(default_factory=dict)
    entitlements: tuple[Entitlement, ...] = ()

    def apply_to(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which the victims terminate, with the plan's entitlements."""
        after = with_terminating(snapshot, {eviction.task for eviction in self.evictions})
        return replace(after, entitlements=self.entitlements) if self.entitlements else after

    def without_gangs(self, snapshot: Snapshot, gangs: Set[int]) -> EvictionPlan:
        """Return the plan without the evictions and nominations for `gangs` (gang indices)."""
        keys = {snapshot.gangs[gang].key for gang in gangs}
        evictions = tuple(e for e in self.evictions if e.preemptor not in keys)
        nominations = {
            gang: nominations for gang, nominations in self.nominations.items() if gang not in gangs
        }
        results = count_victims(snapshot, evictions)
        return replace(self, evictions=evictions, nominations=nominations, results=results)

    def find_misplaced(self, problem: Problem, decisions: Decisions) -> frozenset[int]:
        """Return the gangs that `decisions` do not place on all their nominated nodes.

        Gangs that overtake an earlier gang of a FIFO queue are included.
        """
        at = np.maximum(decisions.node_of, decisions.nominated)
        is_served = np.zeros(problem.num_gangs, np.bool_)
        is_served[problem.gang_of[at >= 0]] = True
        lines = FifoLines(problem, is_served.__getitem__)
        found = {gang for gang in self.nominations if lines.ahead(gang) != NO_GANG}
        for gang, nominations in self.nominations.items():
            first, last = problem.task_start[gang : gang + 2].tolist()
            nodes = [node for _, node, number in nominations for _ in range(number)]
            planned = np.bincount(nodes, minlength=problem.num_nodes)
            mine = at[first:last]
            if (np.bincount(mine[mine >= 0], minlength=problem.num_nodes) < planned).any():
                found.add(gang)
        return frozenset(found)


def find_victims(
    problem: Problem,
    rules: RuleSet,
    tiers: Tiers,
    decisions: Decisions,
    reach: frozenset[str],
    settings: VictimSearchSettings,
) -> EvictionPlan:
    """Find victims and nominations for the gangs that are pending in `decisions`.

    `problem` is the problem before any eviction. `reach` holds the actions of the policy that may
    evict tasks: preempt, reclaim.
    """
    outcome = Outcome(problem, decisions)
    waiting = (outcome.num_pending > 0) & (problem.shape_of >= 0)
    waiting[problem.gang_of[decisions.nominated >= 0]] = False
    waiting[list(settings.excluded_gangs)] = False
    waiting &= ~rules.find_excluded_gangs(problem)
    gangs = np.flatnonzero(waiting)
    may_evict = len(running_tasks(problem)) or has_custom_rules(rules)
    if not len(gangs) or not reach or not may_evict:
        return EvictionPlan()
    compiler = EvictionCompiler(problem, rules, reach, reclaiming=settings.reclaiming_gangs)
    # A gang whose queue uses at least its deserved share of a resource may start only after the
    # other queues have the capacity that they deserve. If the gang started earlier, its evictions
    # would also have to release capacity for these queues.
    used, deserved = problem.queues.allocated, compiler.facts.due
    at_share = np.zeros(len(used), np.bool_)
    if deserved is not None:
        at_share = np.any((used >= deserved) & (used > 0), axis=1)
    has_share = at_share[problem.queue_of[gangs]]
    order = gangs[np.lexsort((gangs, problem.created_ms[gangs], has_share, tiers.of[gangs]))]
    stage = _Stage(compiler, tiers, decisions, settings)
    return stage.run(order.tolist())


Compile: TypeAlias = "Callable[..., EvictionProblem | None]"
"""Compiles an eviction problem from a gang, an `EvictionState`, and a mask `within` or None."""


class _FewestVictims(NamedTuple):
    """Lower bounds on the number of victims and on the number of gangs evicted entirely.

    `ended`, the bound on gangs, holds for plans with the fewest victims.
    """

    victims: int
    ended: int


class _Answer(NamedTuple):
    """An eviction problem, its solution or None, and proved bounds or None."""

    eviction: EvictionProblem
    found: HeuristicSolution | None
    least: _FewestVictims | None


class _Stage:
    def __init__(
        self,
        compiler: EvictionCompiler,
        tiers: Tiers,
        decisions: Decisions,
        settings: VictimSearchSettings,
    ) -> None:
        self._problem = problem = compiler.problem
        self._tiers = tiers
        self._decisions = decisions
        self._compiler = compiler
        self._settings = settings
        self._evictions: list[Evict] = []
        self._nominations: dict[int, Nominations] = {}
        self._hopeless: dict[int, Reason | None] = {}
        # `_least` is None if nothing is proved, because gangs are skipped or a proof is missing.
        is_limited = bool(settings.excluded_gangs or settings.reclaiming_gangs)
        self._least = None if is_limited else _FewestVictims(0, 0)
        self._state = EvictionState.without_evictions(problem)
        self._tier = -1
        self._node_of = np.maximum(decisions.node_of, decisions.nominated)
        self._served = set(problem.gang_of[self._node_of >= 0].tolist())
        self._num_ahead = 0
        self._heuristic_times_ms: list[float] = []

    def run(self, gangs: list[int]) -> EvictionPlan:
        """Find evictions for the minimums of all gangs, then for tasks beyond the minimums."""
        for serve in (self._evict_for_minimums, self._evict_for_growths):
            if not serve(gangs):
                self._least = None
                break
        known = _FewestVictims(0, 0) if self._least is None else self._least
        least = {VICTIMS: known.victims, ENDED: known.ended}
        results = []
        for result in count_victims(self._problem.snapshot, self._evictions):
            bound = least[result.name]
            status = LevelStatus.OPTIMAL if result.value == bound else LevelStatus.FEASIBLE
            results.append(replace(result, bound=bound, status=status))
        queues, resources = self._problem.queues.names, self._problem.resources
        entitlements = tuple(
            Entitlement(queues[q], resources[r], most)
            for (q, r), most in sorted(self._state.entitled.items())
        )
        return EvictionPlan(
            tuple(self._evictions), self._nominations, tuple(results), self._hopeless, entitlements
        )

    def _evict_for_minimums(self, gangs: list[int]) -> bool:
        """Evict tasks for gangs that run fewer tasks than their minimum.

        Returns False if the time limit is reached before the last gang.
        """
        refused: dict[tuple[int, ...], int] = {}
        lines = FifoLines(self._problem, self._served.__contains__)
        for number, gang in enumerate(gangs, start=1):
            self._num_ahead = len(gangs) - number
            if lines.ahead(gang) != NO_GANG or self._is_losing_tasks(gang):
                continue
            self._add_placements_up_to(int(self._tiers.of[gang]))
            if gang in self._served or not self._compiler.lacks_minimum(gang):
                continue
            if self._left_ms() <= 0:
                return False
            key = self._equivalence_key(gang)
            if key not in refused:
                if not self._evict_in_attempts(
                    gang,
                    self._compiler.compile_minimum,
                    self._compiler.compile_within_guarantee,
                    partial(self._compiler.compile_minimum, overrides_budgets=True),
                    partial(self._compiler.compile_within_guarantee, overrides_budgets=True),
                    is_last=True,
                ):
                    refused[key] = gang
            elif refused[key] in self._hopeless:
                # The reason why evictions do not help one gang also holds for equal gangs.
                self._hopeless[gang] = self._hopeless[refused[key]]
        return True

    def _evict_for_growths(self, gangs: list[int]) -> bool:
        """Evict tasks so that gangs can run more tasks than their minimum.

        Returns False if the time limit is reached before the last gang.
        """
        refused: dict[tuple[int, ...], int] = {}
        lines = FifoLines(self._problem, self._served.__contains__)
        if gangs:
            self._add_placements_up_to(int(self._tiers.of[gangs].max()))
        for gang in gangs:
            starts = self._compiler.lacks_minimum(gang)
            if (starts and gang not in self._served) or lines.ahead(gang) != NO_GANG:
                continue
            rest = self._compiler.facts.counts_of(gang).copy()
            for entry, _, number in self._nominations_of(gang):
                rest[entry] -= number
            if self._is_losing_tasks(gang) or not rest.any():
                continue
            if self._left_ms() <= 0:
                return False
            key = (*self._equivalence_key(gang), *rest.tolist())
            if key not in refused:
                within_guarantee = partial(self._compiler.compile_within_guarantee, rest=rest)
                if self._evict_in_attempts(
                    gang,
                    partial(self._compiler.compile_growth, rest=rest),
                    within_guarantee,
                    partial(within_guarantee, overrides_budgets=True),
                    is_last=not starts,
                ):
                    continue
                refused[key] = gang
            elif refused[key] in self._hopeless and not starts:
                self._hopeless[gang] = self._hopeless[refused[key]]
            if starts:
                continue
            # Evict tasks of the running gang so that its higher-priority tasks can start.
            tried, are_all = self._solve_all_domains(gang, self._compiler.compile_exchange)
            best = min((t for t in tried if t.found is not None), key=_cost, default=None)
            if best is not None and self._accept(tried, best, are_all=are_all):
                self._hopeless.pop(gang, None)
        return True

    def _equivalence_key(self, gang: int) -> tuple[int, ...]:
        """Return a key; while the cluster is unchanged, gangs of equal keys get equal results."""
        problem = self._problem
        classes = np.unique(self._compiler.facts.classes_of(gang)).tolist()
        return (
            int(problem.shape_of[gang]),
            int(problem.queue_of[gang]),
            int(self._tiers.of[gang]),
            # A tier defined by weights contains gangs of several priorities, and the possible
            # victims depend on a gang's priority.
            int(problem.priority[gang]),
            # A task that depends on other tasks of its node may fit after later placements.
            gang if any(map(self._compiler.blockers.is_tied, classes)) else -1,
        )

    def _nominations_of(self, gang: int) -> Nominations:
        """Return a gang's nominations from this search, or else its nodes in the decisions."""
        if gang in self._nominations:
            return self._nominations[gang]
        return count_nominations(self._problem, gang, self._node_of)

    def _is_losing_tasks(self, gang: int) -> bool:
        """Return whether tasks of a gang are evicted; as in Volcano, such a gang gets no nodes."""
        return bool(self._state.evicted[self._compiler.running.gang_of == gang].any())

    def _left_ms(self) -> float:
        left = self._settings.left_ms()
        return float("inf") if left is None else left

    def _add_placements_up_to(self, tier: int) -> None:
        """Add the placements of gangs to the state, from the most important tier to `tier`."""
        problem, node_of = self._problem, self._decisions.node_of
        for answer in (node_of, self._decisions.nominated):
            tasks = np.flatnonzero(answer >= 0)
            of = self._tiers.of[problem.gang_of[tasks]]
            fresh = tasks[(of > self._tier) & (of <= tier)]
            request = problem.classes.request[problem.task_class[fresh]]
            came = (problem.task_class[fresh], answer[fresh], np.ones_like(fresh))
            self._state.came.append(came)
            np.subtract.at(self._state.future_idle, answer[fresh], request)
            np.add.at(self._state.used, problem.queue_of[problem.gang_of[fresh]], request)
        self._tier = max(self._tier, tier)

    # --- one gang --------------------------------------------------------------------------------

    def _evict_in_attempts(
        self, gang: int, compile_problem: Compile, *within_guarantee: Compile, is_last: bool
    ) -> bool:
        """Evict tasks for a gang, if necessary within a guarantee.

        Returns whether any task is evicted. If `is_last` is False, the caller makes another attempt
        for the gang.
        """
        before = self._least
        is_fewest = not self._compiler.may_claim_guarantee(gang, self._state)
        may_override = self._compiler.may_override_budgets(gang, self._state, grows=True)
        if not self._evict_for(gang, compile_problem, is_last=is_last):
            # A queue may reclaim its guarantee even if a victim gang is larger than the lender's
            # excess, or if a disruption budget that guarantees may override protects the gang.
            if not any(self._evict_for(gang, each, is_last=False) for each in within_guarantee):
                return False
            self._hopeless.pop(gang, None)
            is_fewest = not may_override
        if not is_fewest and before is not None and self._least is not None:
            # Guarantees override disruption budgets and lenders' entitlements only if no other
            # evictions help. If the gang reclaims within guarantees, a single victim may suffice.
            most = min(self._least.victims, before.victims + 1)
            self._least = _FewestVictims(most, before.ended)
        return True

    def _evict_for(self, gang: int, compile_problem: Compile, *, is_last: bool) -> bool:
        """Solve the eviction problems of a gang; return whether any task is evicted.

        If `is_last` is True, no other attempt follows, so the reason for a failure may be recorded.
        """
        if gang in self._settings.by_trial:
            return is_last and self._evict_by_trial(gang)
        tried, are_all = self._solve_all_domains(gang, compile_problem)
        best = min((t for t in tried if t.found is not None), key=_cost, default=None)
        is_custom = has_custom_rules(self._compiler.rules)
        if best is None or best.found is None:
            if not is_last:
                return False
            if are_all and tried and all(t.least is not None for t in tried):
                why = (
                    explain_shortage(self._problem, tried[0].eviction) if len(tried) == 1 else None
                )
                if why and (kept := self._compiler.explain_kept_capacity(gang, self._state)):
                    why = replace(why, message=f"{why.message}; {kept.message}")
                self._hopeless[gang] = why
            elif are_all and not tried:
                if kept := self._compiler.explain_kept_capacity(gang, self._state):
                    self._hopeless[gang] = kept
            elif tried or not are_all:
                self._least = None
            return is_custom and not tried and self._evict_by_trial(gang)
        if is_custom and not best.found.evicted.any():
            return is_last and self._evict_by_trial(gang)
        return self._accept(tried, best, are_all=are_all)

    def _evict_by_trial(self, gang: int) -> bool:
        """Evict tasks by trial for a gang that custom rules block; return whether the gang fits."""
        before = self._list_actions()
        found = search_by_trial(
            self._compiler, gang, self._state, before, lambda: self._left_ms() <= 0
        )
        grows = not self._compiler.lacks_minimum(gang)
        if found is None and self._compiler.may_override_budgets(gang, self._state, grows=grows):
            found = search_by_trial(
                self._compiler,
                gang,
                self._state,
                before,
                lambda: self._left_ms() <= 0,
                overrides_budgets=True,
            )
        self._least = None
        if found is None:
            return False
        entry, node, counts = (np.array(c, np.int64) for c in zip(*found.nominations, strict=True))
        classes = self._compiler.facts.classes_of(gang)[entry]
        self._evict(gang, found.victims)
        self._record_arrivals(gang, (classes, node, counts), self._problem.classes.request[classes])
        self._nominations[gang] = found.nominations
        return True

    def _list_actions(self) -> list[Action]:
        """Return the placements and evictions for earlier gangs as actions."""
        problem, nodes = self._problem, self._problem.snapshot.nodes
        actions: list[Action] = list(self._evictions)
        for gang, nominations in self._nominations.items():
            actions += nominate_tasks(problem, gang, nominations)
        for answer, kind in (
            (self._decisions.node_of, Allocate),
            (self._decisions.nominated, Nominate),
        ):
            for t in np.flatnonzero(answer >= 0).tolist():
                gang = int(problem.gang_of[t])
                if self._tiers.of[gang] <= self._tier and gang not in self._nominations:
                    task = problem.tasks[t]
                    actions.append(kind(task.key, nodes[answer[t]].name, task.gang))
        return actions

    def _accept(self, tried: list[_Answer], best: _Answer, *, are_all: bool) -> bool:
        """Record a solution's victims, nominations and bounds; return False if it has no victim."""
        eviction, found = best.eviction, best.found
        if found is None or not found.evicted.any():
            return False
        before, least = self._least, _combine_bounds(tried, best) if are_all else None
        self._least = None
        gang = eviction.gang
        if before is not None and gang in self._served:
            # With other nodes for the gang's earlier tasks, fewer victims in total might suffice.
            # With more victims, fewer gangs might be evicted entirely.
            self._least = _FewestVictims(before.victims, 0)
        elif before is not None and least is not None:
            self._least = _FewestVictims(before.victims + least.victims, before.ended + least.ended)
        self._evict(gang, _choose_last_created(self._compiler, eviction, found.evicted))
        entry, node = np.nonzero(found.placed)
        counts = found.placed[entry, node]
        self._record_arrivals(
            gang, (eviction.task_class[entry], node, counts), eviction.request[entry]
        )
        placed: dict[tuple[int, int], int] = {}
        nominations = zip(entry.tolist(), node.tolist(), counts.tolist(), strict=True)
        for e, n, number in chain(self._nominations_of(gang), nominations):
            placed[e, n] = placed.get((e, n), 0) + number
        self._nominations[gang] = tuple((e, n, k) for (e, n), k in sorted(placed.items()))
        return True

    def _solve_all_domains(self, gang: int, compile_problem: Compile) -> tuple[list[_Answer], bool]:
        """Return solutions for a gang's topology domains, and whether all domains were tried."""
        domains, are_all = self._compiler.list_domains(gang)
        tried: list[_Answer] = []
        for within in domains:
            if tried and self._left_ms() <= 0:
                return tried, False
            begun_ms = self._left_ms()
            eviction = compile_problem(gang, self._state, within=within)
            if eviction is None:
                continue
            packed = solve_heuristically(eviction)
            self._heuristic_times_ms.append(begun_ms - self._left_ms())
            known = self._solve(eviction, packed) if self._spare_ms() > 0 else (packed, None)
            tried.append(_Answer(eviction, *known))
        return tried, are_all

    def _spare_ms(self) -> float:
        """Return the wall time in milliseconds that the solver may use, or 0 if there is no solver.

        The solver leaves enough time for two heuristic solutions for each later gang, because the
        times of solutions vary. Heuristic plans for all gangs are better than optimal plans for
        only the first gangs.
        """
        if self._settings.solver is None:
            return 0
        left_ms = self._left_ms()
        if left_ms == float("inf"):
            return left_ms
        mean_ms = mean(self._heuristic_times_ms or [0.0])
        spare_ms = left_ms - 2 * mean_ms * self._num_ahead
        # Building the solver's model takes about as long as a heuristic solution.
        return spare_ms if spare_ms > 2 * mean_ms else 0

    def _solve(
        self, eviction: EvictionProblem, heuristic: HeuristicSolution | None
    ) -> tuple[HeuristicSolution | None, _FewestVictims | None]:
        """Return the best solution and the bounds on victims; each is None if unknown."""
        if eviction.constraints.others is None:
            return self._solve_from(eviction, heuristic)
        # The heuristic ignores rules on tasks that share a node, so first solve a model of few
        # nodes.
        few = restrict_to_promising_nodes(eviction)
        packed = None if few is None else self._solve_from(few, None)[0]
        if packed is not None and self._spare_ms() <= 0:
            return packed, None
        found, least = self._solve_from(eviction, packed)
        known = [each for each in (found, packed) if each is not None]
        return min(known, key=lambda each: _cost_of(eviction, each), default=None), least

    def _solve_from(
        self, eviction: EvictionProblem, packed: HeuristicSolution | None
    ) -> tuple[HeuristicSolution | None, _FewestVictims | None]:
        """Run the solver from the solution `packed`; return a solution and bounds on victims."""
        assert self._settings.solver is not None  # noqa: S101  the caller has checked the value
        encoded = encode_eviction(eviction, packed, self._compiler.blockers)
        spare_ms = self._spare_ms()
        left_ms = None if spare_ms == float("inf") else max(int(spare_ms), 1)
        limits = self._settings.limits.cap_budget(left_ms)
        solved = solve_checked(self._settings.solver, encoded.model, limits)
        updates = {encoded.levels[u.level]: u for u in solved.updates}
        if any(updates[name].bound == 0 for name in (START, TASKS) if name in updates):
            return None, _FewestVictims(0, 0)
        last = solved.last_solved
        if last is None or last.solution is None:
            return packed, None
        placed = np.zeros(eviction.allowed.shape, np.int64)
        placed[encoded.entry, encoded.node] = last.solution[encoded.place]
        evicted = last.solution[encoded.evict]
        found = HeuristicSolution(evicted, placed, last.solution[encoded.whole] > 0)
        victims = updates.get(VICTIMS)
        if victims is None or not placed.any():
            return packed, None
        # If the time limit ends the search of a level, the heuristic solution may have fewer
        # victims than the solver's solution.
        if packed is not None and _cost_of(eviction, packed)[:2] < _cost_of(eviction, found)[:2]:
            found = packed
        # If no victim belongs to a gang of several pods, each eviction evicts an entire gang.
        ended = updates.get(ENDED) if eviction.constraints.wholes else victims
        if victims.bound is None:
            return found, None
        return found, _FewestVictims(victims.bound, 0 if ended is None else ended.bound or 0)

    def _evict(self, gang: int, chosen: I64) -> None:
        """Record the evictions of running tasks for a gang."""
        problem, running, state = self._problem, self._compiler.running, self._state
        state.evicted[chosen] = True
        state.preemptors.add(gang)
        state.spent += self._compiler.facts.covered(chosen)
        np.add.at(state.future_idle, running.node_of[chosen], running.request[chosen])
        for held in (state.used, state.firm):
            np.subtract.at(held, running.queue_of[chosen], running.request[chosen])
        own = running.queue_of[chosen] == problem.queue_of[gang]
        state.entitled |= self._compiler.facts.entitled(gang, running.queue_of[chosen[~own]])
        for v, is_own in zip(chosen.tolist(), own.tolist(), strict=True):
            task, action = running.tasks[v], PREEMPT if is_own else RECLAIM
            key = problem.snapshot.gangs[gang].key
            self._evictions.append(Evict(task.key, task.node, action, key))

    def _record_arrivals(self, gang: int, came: tuple[I64, I64, I64], request: I64) -> None:
        """Record a gang's placements, given as arrays (m,) of task class, node and number of tasks.

        Row i of `request` (m, R) is the request of one task of placement i.
        """
        state = self._state
        state.came.append(came)
        taken = came[2][:, None] * request
        np.subtract.at(state.future_idle, came[1], taken)
        for held in (state.used, state.firm):
            held[self._problem.queue_of[gang]] += taken.sum(axis=0)
        self._served.add(gang)


def count_victims(snapshot: Snapshot, evictions: Sequence[Evict]) -> tuple[LevelResult, ...]:
    """Return the number of evictions as a level with bound 0, or nothing if no task is evicted.

    A second level counts the gangs evicted entirely, if any gang is evicted entirely.
    """
    if not evictions:
        return ()
    feasible = LevelStatus.FEASIBLE
    victims = LevelResult(VICTIMS, "tasks", Sense.MIN, len(evictions), 0, feasible)
    evicted = {eviction.task for eviction in evictions if not eviction.to}
    number = len(ended_gangs(snapshot, evicted))
    ended = LevelResult(ENDED, "gangs", Sense.MIN, number, 0, feasible)
    return (victims, ended) if number else (victims,)


def nominate_tasks(problem: Problem, gang: int, nominations: Nominations) -> Iterator[Nominate]:
    """Yield one action for each task that `nominations` counts, in the order of `nominations`."""
    first = int(problem.shapes.start[problem.shape_of[gang]])
    taken: dict[int, int] = {}
    for entry, node, number in nominations:
        start = int(problem.task_start[gang] + problem.shapes.offset[first + entry])
        start += taken.get(entry, 0)
        taken[entry] = taken.get(entry, 0) + number
        for task in problem.tasks[start : start + number]:
            yield Nominate(task.key, problem.snapshot.nodes[node].name, task.gang)


def _cost(answer: _Answer) -> tuple[int, ...]:
    """Return the sort key of a solution: more tasks first, then fewer and cheaper victims."""
    return () if answer.found is None else _cost_of(answer.eviction, answer.found)


def _cost_of(eviction: EvictionProblem, found: HeuristicSolution) -> tuple[int, ...]:
    groups = eviction.groups
    costs = (cost * found.evicted for cost in (groups.priority, groups.lost, groups.size))
    numbers = (-int(found.placed.sum()), int(found.evicted.sum()), found.num_ended(eviction))
    return (*numbers, *(int(cost.sum()) for cost in costs))


def _combine_bounds(tried: Sequence[_Answer], best: _Answer) -> _FewestVictims | None:
    """Return the lowest bounds on victims among the solutions that place as many tasks as `best`.

    Returns None if any domain has no proved bounds.
    """
    if len(tried) == 1:
        return best.least
    if any(t.least is None for t in tried):
        return None
    equals = [t for t in tried if t.found is not None and _cost(t)[0] == _cost(best)[0]]
    return min(t.least for t in equals if t.least is not None)


def _choose_last_created(
    compiler: EvictionCompiler, eviction: EvictionProblem, evicted: I64
) -> I64:
    """Return the tasks to evict: the most recently created tasks of each victim group."""
    running, groups = compiler.running, eviction.groups
    born = np.array([running.tasks[int(v)].created_ms for v in groups.tasks], np.int64)
    order = np.lexsort((groups.tasks, -born, groups.of_task))
    rank = np.arange(len(order)) - np.searchsorted(
        groups.of_task[order], groups.of_task[order], side="left"
    )
    leaves: Bool = rank < evicted[groups.of_task[order]]
    return np.sort(groups.tasks[order[leaves]])
