"""Find running tasks to move so that gangs can start despite fragmented idle capacity.

The search treats all gangs of one priority together, starting with the highest priority. A gang
that is placed without moves stays placed. Such a gang may get other nodes, because its pods do not
run yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Evict, LevelResult, LevelStatus, Sense
from optsched.cluster.relocation import is_successor, nominated, relocate, successor_of
from optsched.plugins.accounting import Outcome
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.objectives.levels import build_levels
from optsched.problem.arrays import UNPLACED
from optsched.problem.decisions import Decisions
from optsched.problem.running import running_tasks
from optsched.solver.consolidation.model import (
    MOVES,
    WhatIf,
    build_formulation,
    encode,
    find_broken_entries,
    read_solution,
)
from optsched.solver.consolidation.movable_tasks import (
    build_movables,
    find_tied_tasks,
    movable_tasks,
    select_promising,
)
from optsched.solver.model.encoding import incumbent_values
from optsched.solver.portfolio import find_nominated_gangs, find_tied_gangs, fix_decisions
from optsched.solver.preemption.candidate_victims import find_minimum_request
from optsched.solver.solution_check import solve_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.consolidation.model import Relocation
    from optsched.solver.consolidation.movable_tasks import Movables
    from optsched.solver.cpsat.level_model import Limits
    from optsched.solver.cpsat.process import Solver

_ABOVE = ("guarantee", "admission")
"""Names of the levels whose improvement justifies moves."""

MOST_MOVABLE = 4000
"""Maximum number of movable tasks in a what-if problem.

If more tasks are movable, only tasks on the nodes with the smallest shortfalls may move.
"""

_TRIES = 4
"""Maximum number of attempts to build a what-if problem.

Each attempt excludes the tasks that could not restart in the previous attempt.
"""


@dataclass(frozen=True, eq=False)
class MoveSearchSettings:
    """The solver that chooses moves, and the limits on the moves.

    Attributes
    ----------
    levels
        Names of the levels that the policy uses.
    left_ms
        Returns the remaining wall time in milliseconds, or None if the solve reads no clock.
    excluded_gangs, unmovable_gangs
        Keys of the gangs for which no task may move, and keys of the gangs whose tasks may not
        move.
    most_moves
        Maximum number of tasks that may move; 0 means no limit.

    """

    solver: Solver
    levels: Sequence[str]
    tiers_of: Callable[[Problem], Tiers]
    left_ms: Callable[[], int | None]
    limits: Limits
    excluded_gangs: frozenset[str] = frozenset()
    unmovable_gangs: frozenset[str] = frozenset()
    most_moves: int = 0


@dataclass(frozen=True, eq=False)
class Consolidation:
    """The tasks that move, their new nodes, and the gangs that start because of the moves.

    Attributes
    ----------
    evictions
        The evictions, each with the node where the task restarts.
    places
        Node name of every task that is placed after the moves, keyed by task key.
    gains
        Keys of the gangs that start because of the moves.
    results
        The result of the level `moves`: the number of moves and its bound.

    """

    evictions: tuple[Evict, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    gains: frozenset[str] = frozenset()
    results: tuple[LevelResult, ...] = ()

    def apply_to(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which moved tasks terminate and placed tasks are nominated."""
        left = relocate(snapshot, {e.task: e.to for e in self.evictions})
        return nominated(left, self.places)

    def find_misplaced(self, problem: Problem, decisions: Decisions) -> tuple[set[str], set[str]]:
        """Return the starting gangs, and the gangs with moved tasks, that have misplaced tasks.

        A task is misplaced if it did not get its planned node.
        """
        node_of = np.where(decisions.node_of >= 0, decisions.node_of, decisions.nominated)
        nodes = problem.snapshot.nodes
        at = {t.key: int(n) for t, n in zip(problem.tasks, node_of.tolist(), strict=True)}
        of_task = problem.derived(_gang_of_tasks)
        planned = {
            task: node
            for task, node in self.places.items()
            if is_successor(task) or of_task.get(task, "") in self.gains
        }
        wrong = {k for k, n in planned.items() if at.get(k, -1) < 0 or nodes[at[k]].name != n}
        gang_of = {t.key: g.key for g in problem.snapshot.gangs for t in g.tasks}
        requesting = {gang_of[k] for k in wrong if not is_successor(k)}
        return requesting, {gang_of[k] for k in wrong if is_successor(k)}


def _gang_of_tasks(problem: Problem) -> Mapping[str, str]:
    return {t.key: t.gang for t in problem.tasks}


def consolidate(
    problem: Problem, rules: RuleSet, decisions: Decisions, settings: MoveSearchSettings
) -> Consolidation:
    """Find moves of running tasks so that gangs that are pending in `decisions` can start."""
    knows = rules.find_rule("priority") is not None
    priority = problem.priority if knows else np.zeros_like(problem.priority)
    # The mask `out` selects the gangs that could start if the idle capacity were not fragmented.
    outcome = Outcome(problem, decisions)
    out = (problem.shape_of >= 0) & (outcome.num_assigned == 0)
    out[out] = ~problem.shapes.is_started[problem.shape_of[out]]
    out &= ~rules.find_excluded_gangs(problem)
    out &= ~find_tied_gangs(problem, rules)[0]
    idle = (problem.allocatable - problem.used + problem.releasing).clip(0).sum(axis=0)
    for g in np.flatnonzero(out).tolist():
        gang = problem.snapshot.gangs[g]
        tasks = problem.tasks[problem.task_start[g] : problem.task_start[g + 1]]
        if gang.key in settings.excluded_gangs or not all(t.preempts for t in tasks):
            out[g] = False
        out[g] &= bool((find_minimum_request(problem, g) <= idle).all())
    for value in sorted(set(priority[out].tolist()), reverse=True):
        requesting = out & (priority == value)
        found = _PriorityPass(problem, rules, decisions, settings).run(requesting, priority)
        if found.evictions:
            return found
    return Consolidation()


class _PriorityPass:
    """A search for moves that let pending gangs of one priority start."""

    def __init__(
        self, problem: Problem, rules: RuleSet, decisions: Decisions, settings: MoveSearchSettings
    ) -> None:
        self._problem = problem
        self._rules = rules
        self._decisions = decisions
        self._settings = settings

    def run(self, requesting: Bool, priority: I64) -> Consolidation:
        """Return the moves for the requesting gangs, or no moves if no gang could start.

        The first model moves only tasks that can move without the rest of their gang. The second
        model also moves entire gangs. The second model takes longer and may reach the time limit,
        because each moved gang affects many nodes.
        """
        problem, running = self._problem, running_tasks(self._problem)
        may = movable_tasks(problem, self._rules, requesting, priority)
        unmovable = [g.key in self._settings.unmovable_gangs for g in problem.snapshot.gangs]
        may &= ~np.array(unmovable, np.bool_)[running.gang_of]
        is_all = int(may.sum()) <= MOST_MOVABLE
        if not is_all:
            may = select_promising(problem, may, requesting, MOST_MOVABLE)
        # Surplus tasks, and the only running task of a gang, can move without the rest of their
        # gang.
        held = np.bincount(running.gang_of, minlength=problem.num_gangs)
        has_surplus = (held == 1) | (problem.num_ready > problem.min_member)
        alone = may & has_surplus[running.gang_of]
        some = (
            self._solve_what_if(self._build_what_if(alone, requesting, priority))
            if alone.any()
            else None
        )
        if (alone == may).all():
            return _choose_better(some, some, is_all=is_all)
        rest = self._solve_what_if(self._build_what_if(may, requesting, priority))
        return _choose_better(some, rest, is_all=is_all)

    def _solve_what_if(self, what: WhatIf | None) -> _Found | None:
        left = self._settings.left_ms()
        if what is None or (left is not None and left <= 0):
            return None
        form, most = build_formulation(what, self._rules), self._settings.most_moves
        # Only levels that miss their ideal value justify moves.
        outcome = Outcome(what.problem, what.base)
        names = [name for name in self._settings.levels if name in _ABOVE]
        levels = build_levels(what.problem, self._rules, what.tiers, names)
        known = [(level, level.value(outcome)) for level in levels]
        missed: list[tuple[GangLevel, int]] = [
            (level, value)  # type: ignore[misc]
            for level, value in known
            if value != level.ideal(what.problem)
        ]
        encoded = encode(what, self._rules, form, missed, most)
        limits = self._settings.limits.cap_budget(left)
        solved = solve_checked(self._settings.solver, encoded.model, limits)
        last = next((u for u in solved.updates if u.level == encoded.num_gang_levels), None)
        if last is None or last.solution is None:
            return None
        gains = []
        for objective in encoded.model.objectives[: encoded.num_gang_levels]:
            more = objective.expression.value(last.solution) - (objective.at_least or 0)
            gains.append(more if objective.sense is Sense.MAX else -more)
        gain = tuple(gains)
        relocation = read_solution(self._problem, what, encoded, last)
        if gain <= tuple(0 for _ in gain) or (relocation.to < 0).any():
            return _Found(Consolidation(), gain, last.bound)
        return _Found(self._build_consolidation(what, relocation), gain, last.bound)

    # --- what-if ---------------------------------------------------------------------------------

    def _build_what_if(self, may: Bool, requesting: Bool, priority: I64) -> WhatIf | None:
        """Return the what-if problem with pending movable tasks, or None if no task can move."""
        for _ in range(_TRIES):
            if not may.any():
                return None
            movables = build_movables(self._problem, may)
            bad = find_tied_tasks(movables, self._rules)
            if not bad.any():
                what = self._fix_decided_gangs(movables, requesting, priority)
                # Find the movable tasks whose present placements violate a rule.
                form = build_formulation(what, self._rules)
                entries = find_broken_entries(form, incumbent_values(form, what.base))
                gangs = form.gangs
                classes = np.zeros(len(gangs.shape_of), np.bool_)
                classes[gangs.gang_class_of[entries]] = True
                mine = np.zeros(what.problem.num_gangs, np.bool_)
                mine[gangs.members] = np.repeat(classes, gangs.multiplicity)
                bad = mine[what.problem.gang_of[movables.at]]
                if not bad.any():
                    return what
            # After tasks are dropped, other tasks of the same gangs may no longer be movable, so
            # build the what-if problem again.
            may = np.zeros_like(may)
            may[movables.tasks[~bad]] = True
        return None

    def _fix_decided_gangs(self, movables: Movables, requesting: Bool, priority: I64) -> WhatIf:
        """Return the what-if problem without choices for the gangs that the model omits.

        The model omits gangs with nominated nodes, and gangs that node classes cannot represent
        (see `find_tied_gangs`).
        """
        what_if = movables.what_if
        # Movable tasks stay on their present nodes; the session has made all other decisions.
        before = self._decisions
        at = {t.key: i for i, t in enumerate(self._problem.tasks)}
        index = np.array([at.get(t.key, UNPLACED) for t in what_if.tasks], np.int64)
        node_of = np.where(index >= 0, np.append(before.node_of, UNPLACED)[index], UNPLACED)
        waits = np.where(index >= 0, np.append(before.nominated, UNPLACED)[index], UNPLACED)
        node_of[movables.at] = movables.node
        base = Decisions(node_of, waits, before.enqueued, before.refused)
        known = find_nominated_gangs(what_if, base) | find_tied_gangs(what_if, self._rules)[0]
        nominated = [t for t, task in enumerate(what_if.tasks) if task.nominated_node]
        known[what_if.gang_of[nominated]] = True
        return WhatIf(
            movables=movables,
            problem=fix_decisions(what_if, base, known),
            base=base,
            requesting=requesting & ~known,
            tiers=self._settings.tiers_of(what_if),
            priority=priority,
        )

    # --- result ----------------------------------------------------------------------------------

    def _build_consolidation(self, what: WhatIf, relocation: Relocation) -> Consolidation:
        problem, running = what.problem, running_tasks(self._problem)
        snapshot, nodes = self._problem.snapshot, self._problem.snapshot.nodes
        assigned = np.where(relocation.node_of >= 0, relocation.node_of, what.base.nominated)
        places = {
            problem.tasks[t].key: nodes[int(assigned[t])].name
            for t in np.flatnonzero(assigned >= 0)
        }
        gains = what.requesting & np.isin(
            np.arange(problem.num_gangs), problem.gang_of[relocation.node_of >= 0]
        )
        if not gains.any():
            return Consolidation()
        # The preemptor of an evicted task is the first gang that starts on the task's node, or else
        # the first gang that starts.
        gangs = np.flatnonzero(gains)
        order = gangs[np.lexsort((gangs, problem.created_ms[gangs], what.tiers.of[gangs]))]
        beneficiary = np.full(problem.num_nodes, order[0], np.int64)
        for g in order[::-1].tolist():
            mine = relocation.node_of[problem.task_start[g] : problem.task_start[g + 1]]
            beneficiary[mine[mine >= 0]] = g
        evictions = []
        for i, to in zip(relocation.leaves.tolist(), relocation.to.tolist(), strict=True):
            task = running.tasks[int(what.movables.tasks[i])]
            node = int(what.movables.node[i])
            gang = snapshot.gangs[int(beneficiary[node])].key
            evictions.append(Evict(task.key, task.node, CONSOLIDATE, gang, nodes[to].name))
            places[successor_of(task, "").key] = nodes[to].name
        keys = frozenset(snapshot.gangs[g].key for g in np.flatnonzero(gains).tolist())
        return Consolidation(tuple(evictions), places, keys)


@dataclass(frozen=True, eq=False)
class _Found:
    """The result of one model: moves, improvement of each gang level, lower bound on the moves.

    The bound on the number of moves holds only for the tasks that may move in this model.
    """

    consolidation: Consolidation
    gain: tuple[int, ...]
    bound: int | None


def _choose_better(
    some: _Found | None, everything: _Found | None, *, is_all: bool
) -> Consolidation:
    """Return the better of two results, with its number of moves as the value of a level.

    `everything` is the result of the model with the most movable tasks. The bound of `everything`
    applies if `everything` improves the gang levels as much as the better result. If `is_all` is
    False, both models omit some movable tasks, so no bound applies.
    """
    known = [found for found in (some, everything) if found is not None]
    best = max(
        known, key=lambda found: (found.gain, -len(found.consolidation.evictions)), default=None
    )
    if best is None or not best.consolidation.evictions:
        return Consolidation()
    bound = None
    if is_all and everything is not None and everything.gain == best.gain:
        bound = None if everything.bound is None else max(everything.bound, 0)
    number = len(best.consolidation.evictions)
    status = LevelStatus.OPTIMAL if number == bound else LevelStatus.FEASIBLE
    result = LevelResult(MOVES, "tasks", Sense.MIN, number, bound, status)
    return replace(best.consolidation, results=(result,))
