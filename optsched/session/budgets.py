"""Find exhausted disruption budgets, and gangs that wait for resources of protected pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Floors
from optsched.plugins.eviction.victims import Victims, covers, find_unpreemptable
from optsched.problem.running import running_tasks
from optsched.solver.preemption.candidate_victims import find_minimum_request
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem

LACKS_CAPACITY = frozenset({ReasonCode.RESOURCES, ReasonCode.FRAGMENTED})
"""Codes of reasons for waiting that evictions may resolve."""


class Protection:
    """The tasks that could be evicted for gangs if exhausted budgets did not protect them."""

    def __init__(self, problem: Problem, rules: RuleSet, reach: frozenset[str]) -> None:
        self._problem = problem
        self._rules = rules
        self._reach = reach
        self._spent = [b for b in problem.snapshot.budgets if b.allowed <= 0] if reach else []
        # Mask (B, V): whether an exhausted budget covers a running task that nothing else protects.
        self._cover: Bool = np.zeros((0, 0), np.bool_)
        if self._spent:
            tasks = running_tasks(problem).tasks
            covered = [[covers(b, t) for t in tasks] for b in self._spent]
            cover = np.array(covered, np.bool_).reshape(len(self._spent), len(tasks))
            if cover.any():
                spared = find_unpreemptable(problem)
                for rule in rules.guarding:
                    is_spared = None if isinstance(rule, Victims) else rule.spares(problem)
                    spared = spared if is_spared is None else spared | is_spared
                cover &= ~spared
            self._cover = cover
        self._known: dict[tuple[int, int, int], Mapping[str, int]] = {}

    def keeping(self, pending: Mapping[str, Reason]) -> Mapping[str, Mapping[str, int]]:
        """Return, for each gang and budget, how many pods the budget protects from eviction.

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
                kept = {b.key: n for b, n in zip(self._spent, counts, strict=True) if n}
                self._known[kind] = kept
            if self._known[kind]:
                found[key] = self._known[kind]
        return found

    def _protects(self, gang: int) -> Bool:
        """Return a mask (B, V): whether an exhausted budget protects a running task from a gang.

        If guarantees override a budget, the budget does not protect tasks that the gang could
        reclaim within its queue's guarantee.
        """
        yields = np.array([b.yields_to_guarantees for b in self._spent], np.bool_)
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
        """Return the mask (V,) of tasks that a gang could evict if there were no budgets.

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
