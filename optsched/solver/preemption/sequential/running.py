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
        (V,) tasks that may not be evicted, except for claims that `floors` lets pass over their
        marks.
    lost
        (V,) the work lost with each, in steps; see `lost_steps`.
    size
        (V,) millionths of the cluster that each holds.
    due, kept
        (Q, R) what queues may reclaim, and what they keep beyond it; None without such a rule.
    returns_by_use
        Whether queues return what their pods use and they deserve, not what is requested.
    reclaimable, returns_first
        (Q,) queues that return capacity, and those that do so before others.
    above
        (Q, Q) [q, a]: a is q or above it.
    held
        (G,) tasks of each gang that run.
    cover
        (B, V) which disruption budget protects which task.

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
        """(B, V) which budget protects which task."""
        budgets = self.problem.snapshot.budgets
        found = [[covers(b, t) for t in self.running.tasks] for b in budgets]
        return np.array(found, np.bool_).reshape(len(budgets), len(self.running))

    def covered(self, tasks: I64) -> I64:
        """(B,) how many of some running tasks each budget protects."""
        count: I64 = self.cover[:, tasks].sum(axis=1).astype(np.int64)
        return count

    def counts_of(self, gang: int) -> I64:
        """(E,) tasks of each entry."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        counts: I64 = shapes.count[shapes.start[shape] : shapes.start[shape + 1]]
        return counts

    def classes_of(self, gang: int) -> I64:
        """(E,) task class of each entry."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        classes: I64 = shapes.class_of[shapes.start[shape] : shapes.start[shape + 1]]
        return classes

    def request_of(self, gang: int) -> I64:
        """(E, R) what a task of each entry asks for."""
        request: I64 = self.problem.classes.request[self.classes_of(gang)]
        return request

    def sum_held(self, queue: int, resource: int, held: I64) -> int:
        """Return what a queue and those below it hold of a resource when queues hold (Q, R)."""
        below = self.problem.queues.subtree[queue]
        return int(held[below, resource].sum())


def sizes(problem: Problem) -> I64:
    """(V,) the dominant share of the cluster that each running task holds, in millionths."""
    total = np.maximum(problem.total, 1)
    share: I64 = (running_tasks(problem).request * 1_000_000 // total).max(axis=1, initial=0)
    return share


def lost_steps(problem: Problem) -> I64:
    """(V,) the work lost with each running task, in steps that each double it.

    That is the part of the cluster that it holds (its dominant share, in thousandths) times the
    seconds since it began or last saved its work.
    """
    running = running_tasks(problem)
    now_ms = problem.snapshot.taken_ms
    since = np.array([max(t.started_ms, t.saved_ms) or now_ms for t in running.tasks], np.int64)
    seconds = np.maximum(now_ms - since, 0) // _MS
    lost = seconds * np.maximum(sizes(problem) // 1000, 1)
    steps: I64 = np.ceil(np.log2(lost + 1.0)).astype(np.int64)
    return steps
