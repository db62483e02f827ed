"""Find the reservations and disruption budgets that forbid the evictions for a waiting gang.

A reservation or budget is the blocker if, without it, evictions could free enough capacity for the
gang.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.decisions import Allocate, Evict, Nominate, placed_gangs
from optsched.plugins.ordering.reservation import (
    Arrivals,
    build_reservation_reason,
    find_delayed_start,
)
from optsched.session.budgets import LACKS_CAPACITY
from optsched.solver.preemption.sequential.compile import EvictionCompiler
from optsched.solver.preemption.sequential.eviction_problem import EvictionState
from optsched.solver.preemption.sequential.heuristic import (
    restrict_to_promising_nodes,
    solve_heuristically,
)
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Entitlement
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.solver.preemption.sequential.eviction_problem import EvictionProblem
    from optsched.solver.preemption.sequential.heuristic import HeuristicSolution

MOST_TRIED = 4
"""Maximum number of gang classes per session for which evictions are tried."""


def explain_blocked_evictions(
    trial: EvictionTrial, pending: Mapping[str, Reason]
) -> dict[str, Reason]:
    """Map gangs in `pending` to more precise reasons why they lack resources."""
    problem = trial.problem
    if not trial.reach or any(isinstance(a, Evict) and a.to for a in trial.actions):
        return {}
    # This function explains only reservations, and budgets that still allow an eviction.
    has_budgets = any(budget.allowed > 0 for budget in problem.snapshot.budgets)
    if not has_budgets and not any(each.nodes for each in problem.snapshot.reservations):
        return {}
    is_excluded = trial.rules.find_excluded_gangs(problem)
    served = placed_gangs(trial.actions)
    blocker_of: dict[tuple[int, ...], int | str | None] = {}
    found: dict[str, Reason] = {}
    for gang, key in enumerate(each.key for each in problem.snapshot.gangs):
        reason, shape = pending.get(key), int(problem.shape_of[gang])
        if reason is None or reason.code not in LACKS_CAPACITY or shape < 0:
            continue
        if is_excluded[gang] or key in served:
            continue
        bound = problem.classes.bound[problem.task_class[problem.task_start[gang]]]
        gang_class = (shape, int(problem.queue_of[gang]), int(problem.priority[gang]), *bound)
        if gang_class not in blocker_of:
            if len(blocker_of) == MOST_TRIED or trial.is_late():
                continue
            blocker_of[gang_class] = trial.find_blocker(gang)
        blocker = blocker_of[gang_class]
        if isinstance(blocker, int):
            delay = build_reservation_reason(problem, gang, problem.snapshot.reservations[blocker])
            found[key] = replace(
                delay, message=f"pods could be evicted for it, but {delay.message}"
            )
        elif blocker is not None:
            found[key] = replace(reason, message=f"{reason.message}; {blocker}")
    return found


class _Evictions(NamedTuple):
    """The victims of a trial as indices on axis V, and the first reservation that they delay."""

    victims: I64
    delayed: int | None


@dataclass(frozen=True, eq=False)
class EvictionTrial:
    """Searches for evictions that would help a gang but that a reservation or a budget forbids.

    Attributes
    ----------
    problem
        The problem before the plan's evictions.
    rules, reach
        The rules for victims, and the policy's actions that may evict tasks.
    actions, entitlements
        The plan's actions, and how much of each resource each reclaiming queue may hold.
    is_late
        Returns whether the time for the search is over.

    """

    problem: Problem
    rules: RuleSet
    reach: frozenset[str]
    actions: Sequence[Action]
    entitlements: Sequence[Entitlement]
    is_late: Callable[[], bool]

    def find_blocker(self, gang: int) -> int | str | None:
        """Return what alone forbids a gang's evictions: a reservation, disruption budgets, or None.

        A reservation is returned as its index, and disruption budgets as a clause for a message.
        """
        bound = self.problem.classes.bound[self.problem.task_class[self.problem.task_start[gang]]]
        found = self._find_evictions(gang, self._compiler, self._state)
        if found is not None and found.delayed is None:
            return None
        if any(i >= 0 for i in bound):
            found = self._find_evictions(gang, self._unreserved, self._state)
            if found is not None and found.delayed is not None:
                return found.delayed
        return self._find_budgets(gang)

    def _find_budgets(self, gang: int) -> str | None:
        spent, budgets = self._state.spent, self.problem.snapshot.budgets
        unlimited = replace(self._state, spent=spent - len(self._compiler.running))
        found = self._find_evictions(gang, self._compiler, unlimited)
        if found is None or found.delayed is not None:
            return None
        number = self._compiler.facts.covered(found.victims)
        left = np.maximum(np.array([b.allowed for b in budgets], np.int64) - spent, 0)
        grows = not self._compiler.lacks_minimum(gang)
        overrides = self._compiler.may_override_budgets(gang, self._state, grows=grows)
        clauses = [
            f"the disruption budget {budget.key} allows {count_noun(most, 'more eviction')}, "
            f"but {needed} would free enough"
            for budget, needed, most in zip(budgets, number.tolist(), left.tolist(), strict=True)
            if needed > most and not (overrides and budget.yields_to_guarantees)
        ]
        return "; ".join(clauses) or None

    def _find_evictions(
        self, gang: int, compiler: EvictionCompiler, state: EvictionState
    ) -> _Evictions | None:
        """Return evictions that free enough capacity for a gang, or None if none are found."""
        # One eviction problem suffices only for a gang with a single domain and no other
        # constraints.
        if [mask is None for mask in compiler.list_domains(gang)[0]] != [True]:
            return None
        if compiler.lacks_minimum(gang):
            eviction = compiler.compile_minimum(gang, state)
        else:
            eviction = compiler.compile_growth(gang, state, compiler.facts.counts_of(gang))
        if eviction is None or eviction.constraints.others is not None:
            return None
        eviction = restrict_to_promising_nodes(eviction) or eviction
        found = solve_heuristically(eviction)
        if found is None:
            return None
        victims = _victims(eviction, found)
        entry, node = np.nonzero(found.placed)
        own_arrivals = Arrivals(eviction.task_class[entry], node, found.placed[entry, node])
        arrivals = Arrivals(*map(np.concatenate, zip(self._arrivals, own_arrivals, strict=True)))
        evicted = state.evicted.copy()
        evicted[victims] = True
        bound = self.problem.classes.bound[int(eviction.task_class[0])]
        return _Evictions(victims, find_delayed_start(self.problem, bound, arrivals, evicted))

    @cached_property
    def _compiler(self) -> EvictionCompiler:
        return EvictionCompiler(self.problem, self.rules, self.reach)

    @cached_property
    def _unreserved(self) -> EvictionCompiler:
        return EvictionCompiler(self.problem, self.rules, self.reach, keeps_reservations=False)

    @cached_property
    def _placements(self) -> tuple[I64, I64]:
        """The tasks that the plan places or nominates, and their nodes, as arrays (m,)."""
        nodes = {node.name: n for n, node in enumerate(self.problem.snapshot.nodes)}
        tasks = {task.key: t for t, task in enumerate(self.problem.tasks)}
        placed = [a for a in self.actions if isinstance(a, Allocate | Nominate)]
        at = [nodes[a.node] for a in placed]
        return np.array([tasks[a.task] for a in placed], np.int64), np.array(at, np.int64)

    @cached_property
    def _arrivals(self) -> Arrivals:
        tasks, nodes = self._placements
        return Arrivals(self.problem.task_class[tasks], nodes, np.ones_like(nodes))

    @cached_property
    def _state(self) -> EvictionState:
        """The cluster state after the plan."""
        problem, running, arrivals = self.problem, self._compiler.running, self._arrivals
        preemptors = {a.task: a.preemptor for a in self.actions if isinstance(a, Evict)}
        evicted = np.array([task.key in preemptors for task in running.tasks], np.bool_)
        request = problem.classes.request[arrivals.task_class]
        future_idle = problem.allocatable - problem.used + problem.releasing
        np.add.at(future_idle, running.node_of[evicted], running.request[evicted])
        np.subtract.at(future_idle, arrivals.node, request)
        used = problem.queues.allocated.copy()
        np.subtract.at(used, running.queue_of[evicted], running.request[evicted])
        np.add.at(used, problem.queue_of[problem.gang_of[self._placements[0]]], request)
        gangs = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
        queues = {name: q for q, name in enumerate(problem.queues.names)}
        return EvictionState(
            future_idle=future_idle,
            used=used,
            firm=used.copy(),
            evicted=evicted,
            spent=self._compiler.facts.covered(np.flatnonzero(evicted)),
            came=[(arrivals.task_class, arrivals.node, arrivals.number)],
            entitled={
                (queues[e.queue], problem.index(e.resource)): e.most for e in self.entitlements
            },
            preemptors={gangs[key] for key in preemptors.values() if key in gangs},
        )


def _victims(eviction: EvictionProblem, found: HeuristicSolution) -> I64:
    """Return the tasks that a solution evicts, as indices on axis V (running tasks)."""
    groups = eviction.groups
    order = np.argsort(groups.of_task, kind="stable")
    first = np.searchsorted(groups.of_task[order], np.arange(len(groups)))
    rank = np.arange(len(order)) - first[groups.of_task[order]]
    chosen: I64 = groups.tasks[order[rank < found.evicted[groups.of_task[order]]]]
    return chosen
