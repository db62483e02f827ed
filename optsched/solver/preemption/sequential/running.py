"""Facts that all eviction problems of a session share: running tasks and entitlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.eviction.entitled import Floors
from optsched.plugins.eviction.victims import covers
from optsched.plugins.shares.tolerances import kept_amounts, returns_first
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.running import Running

_MS = 1000


class SessionFacts:
    """Facts about running tasks, axis V, and queues.

    Attributes
    ----------
    spared
        (V,) tasks that may not be evicted; for some claims, `floors` waives their annotations.
    lost
        (V,) work lost with each task, in steps; see `lost_steps`.
    size
        (V,) dominant share of the cluster that each task holds, in millionths.
    due, kept
        (Q, R) deserved shares of queues, and what they keep as lenders; None without such a rule.
    returns_by_use
        Whether lenders return by the resources that victims use, instead of those that
        reclaimers request.
    reclaimable, returns_first
        (Q,) queues that return capacity, and queues that do so before others.
    above
        (Q, Q) whether, at [q, a], a is q or an ancestor of q.
    held
        (G,) number of running tasks of each gang.
    cover
        (B, V) whether a disruption budget protects a task.

    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self.problem = problem
        self.rules = rules
        self.running: Running = running_tasks(problem)
        self.spared = rules.spared(problem)
        self.floors = Floors(problem, rules)
        self.lost = lost_steps(problem)
        self.size = sizes(problem)
        self.due, self.returns_by_use = rules.entitling(problem)
        self.kept = None if self.due is None else kept_amounts(problem, self.due)
        self.returns_first = np.array(returns_first(problem), np.bool_)
        queues, gangs = problem.snapshot.queues, problem.snapshot.gangs
        self.reclaimable = np.array([q.reclaimable for q in queues], np.bool_)
        self.above: Bool = problem.queues.subtree.T
        self.held = np.bincount(self.running.gang_of, minlength=len(gangs)).astype(np.int64)
        self.cover = self._find_coverage()

    def _find_coverage(self) -> Bool:
        """Return whether each budget protects each task (B, V)."""
        budgets = self.problem.snapshot.budgets
        found = [[covers(b, t) for t in self.running.tasks] for b in budgets]
        return np.array(found, np.bool_).reshape(len(budgets), len(self.running))

    def covered(self, tasks: I64) -> I64:
        """Return how many of some running tasks each budget (B,) protects."""
        count: I64 = self.cover[:, tasks].sum(axis=1).astype(np.int64)
        return count

    def counts_of(self, gang: int) -> I64:
        """Return the number of tasks of each entry (E,)."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        counts: I64 = shapes.count[shapes.start[shape] : shapes.start[shape + 1]]
        return counts

    def classes_of(self, gang: int) -> I64:
        """Return the task class of each entry (E,)."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        classes: I64 = shapes.class_of[shapes.start[shape] : shapes.start[shape + 1]]
        return classes

    def request_of(self, gang: int) -> I64:
        """Return the request (E, R) of a task of each entry."""
        request: I64 = self.problem.classes.request[self.classes_of(gang)]
        return request

    def sum_held(self, queue: int, resource: int, held: I64) -> int:
        """Return what a queue and its descendants hold of a resource, by `held` (Q, R)."""
        below = self.problem.queues.subtree[queue]
        return int(held[below, resource].sum())


def sizes(problem: Problem) -> I64:
    """Return the dominant share (V,) of the cluster of each running task, in millionths."""
    total = np.maximum(problem.total, 1)
    share: I64 = (running_tasks(problem).request * 1_000_000 // total).max(axis=1, initial=0)
    return share


def lost_steps(problem: Problem) -> I64:
    """Return the work lost with each running task (V,), in steps that each double it.

    The lost work is the task's dominant share of the cluster, in thousandths, times the seconds
    since it started or last saved its work.
    """
    running = running_tasks(problem)
    now_ms = problem.snapshot.taken_ms
    since = np.array([max(t.started_ms, t.saved_ms) or now_ms for t in running.tasks], np.int64)
    seconds = np.maximum(now_ms - since, 0) // _MS
    lost = seconds * np.maximum(sizes(problem) // 1000, 1)
    steps: I64 = np.ceil(np.log2(lost + 1.0)).astype(np.int64)
    return steps
