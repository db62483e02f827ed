"""Limit a session's disruption budgets, and find gangs that wait because a budget is exhausted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import LabelSelector
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Floors
from optsched.plugins.eviction.victims import (
    Victims,
    cover_tasks,
    find_protecting,
    find_unpreemptable,
)
from optsched.problem.running import running_tasks
from optsched.solver.preemption.candidate_victims import find_minimum_request
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.snapshot import Budget, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem

LACKS_CAPACITY = frozenset({ReasonCode.RESOURCES, ReasonCode.FRAGMENTED})
"""Codes of those reasons for waiting that evictions of other pods may resolve."""

MOST_BUDGETS: Final = 100
"""Maximum number of disruption budgets of a namespace whose pods a live session may evict."""

MOST_REQUIREMENTS: Final = 1000
"""Maximum total number of requirements in the selectors of these disruption budgets."""

MOST_READ: Final = 10_000
"""Maximum number of selector requirements up to which a session matches budgets with pods."""


def limit_budgets(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot with a limited number of disruption budgets in each namespace.

    Any user may create thousands of disruption budgets, and a session compares each budget with
    each pod of its namespace. In a namespace beyond the limits, budgets that cover no pod of a gang
    are dropped. If too many budgets remain, one budget that covers all pods and allows no eviction
    replaces them. The function also returns the namespaces in which one budget replaces all others.
    """
    large = {
        namespace: budgets
        for namespace, budgets in snapshot.budgets_by_namespace.items()
        if not _is_within_limits(budgets)
    }
    if not large:
        return snapshot, ()
    tasks: dict[str, list[Task]] = {namespace: [] for namespace in large}
    for gang in snapshot.gangs:
        if gang.namespace in large:
            tasks[gang.namespace] += gang.tasks
    kept = dict(snapshot.budgets_by_namespace)
    protected = []
    for namespace, budgets in large.items():
        kept[namespace] = []
        if not tasks[namespace]:
            continue
        if _count_requirements(budgets) <= MOST_READ:
            cover = cover_tasks(budgets, tasks[namespace])
            kept[namespace] = [b for b, of in zip(budgets, cover, strict=True) if of.any()]
            if _is_within_limits(kept[namespace]):
                continue
        kept[namespace] = [replace(budgets[0], selector=LabelSelector(), allowed=0)]
        protected.append(namespace)
    limited = sorted((b for each in kept.values() for b in each), key=lambda budget: budget.key)
    return replace(snapshot, budgets=tuple(limited)), tuple(sorted(protected))


def _is_within_limits(budgets: Sequence[Budget]) -> bool:
    return len(budgets) <= MOST_BUDGETS and _count_requirements(budgets) <= MOST_REQUIREMENTS


def _count_requirements(budgets: Sequence[Budget]) -> int:
    return sum(len(b.selector.requirements) for b in budgets if b.selector is not None)


class Protection:
    """The tasks that could be evicted for gangs if disruption budgets did not protect them."""

    def __init__(self, problem: Problem, rules: RuleSet, reach: frozenset[str]) -> None:
        self._problem = problem
        self._rules = rules
        self._reach = reach
        # Mask (B, V): whether a disruption budget protects a running task without other protection.
        self._cover = find_protecting(problem)
        if not reach:
            self._cover = np.zeros_like(self._cover)
        elif self._cover.any():
            spared = find_unpreemptable(problem)
            for rule in rules.guarding:
                is_spared = None if isinstance(rule, Victims) else rule.spares(problem)
                spared = spared if is_spared is None else spared | is_spared
            self._cover = self._cover & ~spared
        self._known: dict[tuple[int, int, int], Mapping[str, int]] = {}

    def keeping(self, pending: Mapping[str, Reason]) -> Mapping[str, Mapping[str, int]]:
        """Return how many pods each disruption budget protects from eviction for each gang.

        Only gangs that lack resources are considered, and only pods whose eviction could help the
        gang.
        """
        if not self._cover.any():
            return {}
        problem = self._problem
        number = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
        found: dict[str, Mapping[str, int]] = {}
        for key in (key for key, reason in pending.items() if reason.code in LACKS_CAPACITY):
            gang = number[key]
            shape = int(problem.shape_of[gang])
            if shape < 0:
                continue
            kind = (shape, int(problem.queue_of[gang]), int(problem.priority[gang]))
            if kind not in self._known:
                could_help = self._protects(gang) & self._candidates(gang)
                counts = could_help.sum(axis=1).tolist()
                budgets = problem.snapshot.budgets
                kept = {b.key: n for b, n in zip(budgets, counts, strict=True) if n}
                self._known[kind] = kept
            if self._known[kind]:
                found[key] = self._known[kind]
        return found

    def _protects(self, gang: int) -> Bool:
        """Return a mask (B, V): whether a disruption budget protects a running task from a gang.

        If guarantees override a budget, the budget does not protect tasks that the gang could
        reclaim within its queue's guarantee.
        """
        yields = np.array(
            [b.yields_to_guarantees for b in self._problem.snapshot.budgets], np.bool_
        )
        if not yields.any():
            return self._cover
        problem, queue = self._problem, int(self._problem.queue_of[gang])
        shapes, shape = problem.shapes, int(problem.shape_of[gang])
        entries = slice(*shapes.start[shape : shape + 2].tolist())
        request = problem.classes.request[shapes.class_of[entries]]
        held = problem.queues.summed_up(problem.queues.allocated)
        least = find_minimum_request(problem, gang)
        covered = Floors(problem, self._rules).covered(queue, request, least, held)
        cover: Bool = self._cover & ~(yields[:, None] & covered)
        return cover

    def _candidates(self, gang: int) -> Bool:
        """Return the mask (V,) of tasks that a gang could evict without any disruption budgets.

        Tasks on nodes that the gang may not use are excluded.
        """
        problem, running = self._problem, running_tasks(self._problem)
        queues, gangs = running.queue_of, running.gang_of
        own = queues == problem.queue_of[gang]
        found = np.zeros(len(running), np.bool_)
        if PREEMPT in self._reach:
            found |= own & (problem.priority[gangs] < problem.priority[gang])
        if RECLAIM in self._reach:
            lends = np.array([q.reclaimable for q in problem.snapshot.queues], np.bool_)
            found |= ~own & np.append(lends, False)[queues]
        shape = int(problem.shape_of[gang])
        start, end = problem.shapes.start[shape], problem.shapes.start[shape + 1]
        open_nodes = np.zeros(problem.num_nodes, np.bool_)
        for task_class in np.unique(problem.shapes.class_of[start:end]).tolist():
            allowed = problem.ready.copy()
            for rule in self._rules.masking:
                mask = rule.mask(problem, task_class)
                allowed &= True if mask is None else mask
            open_nodes |= allowed
        return found & open_nodes[running.node_of]


def with_budgets(reason: Reason, kept: Mapping[str, int]) -> Reason:
    """Extend a reason's message by the number of pods that each budget in `kept` protects."""
    notes = [
        f"{count_noun(number, 'pod')} that could make room {'stays' if number == 1 else 'stay'} "
        f"because of the disruption budget {key}"
        for key, number in sorted(kept.items())
    ]
    return Reason(reason.code, "; ".join([reason.message, *notes]))
