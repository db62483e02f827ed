"""Data that all eviction problems of a session share, such as running tasks and entitlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.eviction.entitled import Floors
from optsched.plugins.eviction.victims import covers
from optsched.plugins.shares.queue_limits import kept_amounts, returns_first
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.running import Running

_MS = 1000


class SessionFacts:
    """The running tasks (axis V) of a session, and the queue shares that restrict evictions.

    Attributes
    ----------
    spared
        (V,) mask of protected tasks, which may be evicted only if `floors` waives their protection.
    lost
        (V,) work lost by evicting each task, on the logarithmic scale of `lost_steps`.
    size
        (V,) dominant share of the cluster held by each task, in millionths.
    due, kept
        (Q, R) deserved shares of queues, and amounts that lending queues keep; None if no rule
        entitles queues to capacity.
    returns_by_use
        Whether the excess of a lending queue is measured in the resources that victims use, instead
        of those that reclaimers request.
    reclaimable, returns_first
        (Q,) masks of the queues that give back capacity, and of those that do so before the others.
    above
        (Q, Q) whether queue a is queue q or one of its ancestors, at element [q, a].
    held
        (G,) number of running tasks of each gang.
    cover
        (B, V) whether each disruption budget protects each task.

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
        budgets = problem.snapshot.budgets
        found = [[covers(b, t) for t in self.running.tasks] for b in budgets]
        self.cover: Bool = np.array(found, np.bool_).reshape(len(budgets), len(self.running))

    def covered(self, tasks: I64) -> I64:
        """Return how many of the given tasks each disruption budget protects (B,)."""
        count: I64 = self.cover[:, tasks].sum(axis=1).astype(np.int64)
        return count

    def counts_of(self, gang: int) -> I64:
        """Return the number (E,) of pending tasks in each entry of a gang."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        counts: I64 = shapes.count[shapes.start[shape] : shapes.start[shape + 1]]
        return counts

    def classes_of(self, gang: int) -> I64:
        """Return the task class (E,) of each entry of a gang."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        classes: I64 = shapes.class_of[shapes.start[shape] : shapes.start[shape + 1]]
        return classes

    def request_of(self, gang: int) -> I64:
        """Return the request (E, R) of one task of each entry of a gang."""
        request: I64 = self.problem.classes.request[self.classes_of(gang)]
        return request

    def surely_requested(self, gang: int, *, grows: bool) -> Bool:
        """Return a mask (R,) of the resources that a gang requests, no matter which tasks start.

        At least the gang's minimum starts, or at least one task if `grows` is True.
        """
        shape = self.problem.shapes.shapes[int(self.problem.shape_of[gang])]
        counts, lacks = self.counts_of(gang), self.request_of(gang) == 0
        sure: Bool = counts @ lacks < (1 if grows else max(shape.min_members, 1))
        for role, number in () if grows else shape.need_role:
            mine = np.array([entry.role == role for entry in shape.entries], np.bool_)
            sure |= counts[mine] @ lacks[mine] < number
        return sure

    def sum_held(self, queue: int, resource: int, held: I64) -> int:
        """Return the sum of `held` (Q, R) for one resource over a queue and its descendants."""
        below = self.problem.queues.subtree[queue]
        return int(held[below, resource].sum())


def find_minimum_request(problem: Problem, gang: int, *, grows: bool = False) -> I64:
    """Return a lower bound (R,) on the request of a gang's minimum.

    If `grows` is True, the bound holds for one more task of the gang, not for the minimum.
    """
    shapes, number = problem.shapes, int(problem.shape_of[gang])
    shape, entries = shapes.shapes[number], slice(*shapes.start[number : number + 2].tolist())
    request: I64 = problem.classes.request[shapes.class_of[entries]]
    if shape.is_rigid and not grows:
        total: I64 = shapes.count[entries] @ request
        return total
    smallest: I64 = request.min(axis=0) * (1 if grows else max(shape.need, 1))
    return smallest


def sizes(problem: Problem) -> I64:
    """Return each running task's dominant share (V,) of the cluster, in millionths."""
    total = np.maximum(problem.total, 1)
    share: I64 = (running_tasks(problem).request * 1_000_000 // total).max(axis=1, initial=0)
    return share


def lost_steps(problem: Problem) -> I64:
    """Return the base-2 logarithm (V,) of the work lost by evicting each task, rounded up.

    The lost work is the task's dominant share of the cluster in thousandths, times the seconds
    since the task started or last saved its work.
    """
    running = running_tasks(problem)
    now_ms = problem.snapshot.taken_ms
    since = np.array([max(t.started_ms, t.saved_ms) or now_ms for t in running.tasks], np.int64)
    seconds = np.maximum(now_ms - since, 0) // _MS
    lost = seconds * np.maximum(sizes(problem) // 1000, 1)
    steps: I64 = np.ceil(np.log2(lost + 1.0)).astype(np.int64)
    return steps
