"""What queues hold against what they would hold if tasks could be cut as one likes.

Mathematics: models/formulation/fairness.md. The ideal is the lexicographic max-min of dominant
shares by weight (Ghodsi et al., NSDI 2011; Bertsekas and Gallager, Data Networks, section 6.5):
every queue gets a part of what it asks for, and none can get more unless one that has less by its
weight gets less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import PPM, QueueShare
from optsched.cluster.reasons import ReasonCode
from optsched.plugins.shares.hdrf import HierarchicalDrf
from optsched.plugins.shares.over_time import OverTime
from optsched.problem.arrays import UNLIMITED
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.reasons import Reason
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

SHARING = ("proportion", "capacity", "drf")
"""Rules with which shares of queues mean anything."""

_TINY = 1e-12


NEVER = frozenset(
    {
        ReasonCode.INVALID_POD,
        ReasonCode.INVALID_POD_GROUP,
        ReasonCode.POD_GROUP_NOT_FOUND,
        ReasonCode.QUEUE_NOT_OPEN,
        ReasonCode.INVALID_QUEUE,
        ReasonCode.NOT_A_LEAF,
        ReasonCode.NOT_ENOUGH_TASKS,
        ReasonCode.GATED,
        ReasonCode.TOPOLOGY_NOT_FOUND,
        ReasonCode.NO_NODES,
        ReasonCode.IMPOSSIBLE,
        ReasonCode.PREDICATES,
    }
)
"""Why gangs wait that nothing but a change of themselves or of the cluster can let in."""

_SUSPECT = NEVER | {ReasonCode.CAPABILITY, ReasonCode.DESERVED}
"""The same, and why those wait as well who may be too large for ever."""


def queue_shares(
    outcome: Outcome, rules: RuleSet, pending: Mapping[str, Reason] | None = None
) -> tuple[QueueShare, ...]:
    """The share of every queue that asks for something that it could get, by name.

    None where no rule is about shares. A share is the largest part of the cluster that the queue
    holds of any resource but places for pods. `pending` says why gangs wait: what those ask for
    that can not start at all counts for nothing.
    """
    if not any(rules.find(name) is not None for name in SHARING):
        return ()
    problem = outcome.problem
    requested = _admissible(problem, pending or {})
    view = _view(problem, requested)
    ideal = _ideal_shares(problem, rules, requested)
    held = _dominant(view.total, outcome.queue_allocated)
    asking = np.flatnonzero(view.dominant > 0)
    names = problem.queues.names
    return tuple(
        QueueShare(names[q], int(np.rint(held[q] * PPM)), int(np.rint(ideal[q] * PPM)))
        for q in asking.tolist()
    )


def _ideal_shares(problem: Problem, rules: RuleSet, requested: I64) -> F64:
    """(Q,) shares in the ideal: over time, or over a tree of departments, if the policy says so."""
    view = _view(problem, requested)
    for active in sorted(rules.active, key=lambda a: not isinstance(a.rule, OverTime)):
        if isinstance(active.rule, OverTime | HierarchicalDrf):
            return _dominant(view.total, active.rule.ideal(problem))
    shares: F64 = ideal_parts(problem, rules, requested) * view.dominant
    return shares


def ideal_parts(problem: Problem, rules: RuleSet, requested: I64 | None = None) -> F64:
    """(Q,) the part of what each queue asks for, (Q, R), that it would hold in the ideal."""
    requested = problem.queues.requested if requested is None else requested
    view = _view(problem, requested)
    filling = _Filling(view.use, view.limit, _floors(problem, requested))
    first, second = _weights(problem, rules, view)
    for weight in (first, second):
        rising = (weight > 0) & (view.dominant > 0)
        speed = np.where(rising, weight / np.maximum(view.dominant, _TINY), 0.0)
        filling.fill(speed)
    return filling.part


# --- what is asked, and what limits it -----------------------------------------------------------


def _admissible(problem: Problem, pending: Mapping[str, Reason]) -> I64:
    """(Q, R) what queues hold and ask for but for gangs that can not start at all."""
    queues = problem.queues
    suspects = {key: reason.code for key, reason in pending.items() if reason.code in _SUSPECT}
    if not suspects:
        return queues.requested
    requested = queues.requested.copy()
    index_of = {name: r for r, name in enumerate(problem.resources)}
    largest = problem.allocatable[problem.ready].max(axis=0, initial=0)
    exceeding: dict[tuple[int, int], bool] = {}
    keys = (gang.key for gang in problem.snapshot.gangs)
    kinds = zip(problem.shape_of.tolist(), problem.queue_of.tolist(), strict=True)
    for g, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
        code, queue = suspects.get(key), kind[1]
        if code is None or queue < 0:
            continue
        never = code in NEVER
        if not never and kind not in exceeding:
            exceeding[kind] = _exceeds_all(problem, g, largest)
        if never or exceeding[kind]:
            row = problem.rows[g]
            for name in row.requested:
                waiting = row.requested[name] - row.claimed.get(name, 0)
                requested[queue, index_of[name]] -= waiting
    return np.maximum(requested, queues.allocated)


def _exceeds_all(problem: Problem, gang: int, largest: I64) -> bool:
    """Whether the least that may start is more than a node, the cluster or its queues ever hold."""
    number = int(problem.shape_of[gang])
    if number < 0:
        return False
    shape = problem.shapes.shapes[number]
    first = int(problem.shapes.start[number])
    classes = problem.shapes.class_of[first : first + len(shape.entries)]
    request = problem.classes.request[classes]
    counts = np.array([e.count for e in shape.entries], np.int64)
    least = counts @ request if shape.need >= counts.sum() else shape.need * request.min(axis=0)
    above = problem.queues.subtree[:, problem.queue_of[gang]]
    ceilings = np.minimum(problem.queues.capability[above].min(axis=0), problem.total)
    small = (request <= largest).all(axis=1)
    return bool((least > ceilings).any()) or int(counts[small].sum()) < shape.need


@dataclass(frozen=True, eq=False)
class _View:
    """Limits of what queues get that can be reached, one row each.

    Attributes
    ----------
    use, limit
        (K, Q) what a queue takes of a limit with all that it asks for, and (K,) the limit.
    total
        (R,) what the cluster has; 0 for places for pods.
    dominant
        (Q,) share of each queue with all that it asks for.

    """

    use: F64
    limit: F64
    total: F64
    dominant: F64


def _view(problem: Problem, requested: I64) -> _View:
    """The limits for what queues ask for, (Q, R)."""
    queues = problem.queues
    demand = requested.astype(np.float64)
    total = problem.total.astype(np.float64)
    if problem.index(PODS) >= 0:
        total[problem.index(PODS)] = 0
    free = np.maximum(total - problem.foreign[problem.ready].sum(axis=0), 0)
    counted = np.flatnonzero(total > 0)
    rows, limits = [demand[:, counted].T], [free[counted]]
    for q, r in np.argwhere(queues.capability < UNLIMITED).tolist():
        rows.append(np.where(queues.subtree[q], demand[:, r], 0.0)[None])
        limits.append(np.array([queues.capability[q, r]], np.float64))
    use, limit = np.concatenate(rows), np.concatenate(limits)
    binds = use.sum(axis=1) > limit
    return _View(use[binds], limit[binds], total, _dominant(total, requested))


def _dominant(total: F64, amounts: I64 | F64) -> F64:
    """(Q,) the largest part of the cluster that amounts (Q, R) are."""
    parts = np.where(total > 0, amounts / np.maximum(total, 1), 0.0)
    largest: F64 = parts.max(axis=1, initial=0.0)
    return largest


def _floors(problem: Problem, requested: I64) -> F64:
    """(Q,) the part of what it asks for that a queue is guaranteed."""
    queues = problem.queues
    named = (queues.guarantee > 0) & (requested > 0)
    parts = np.where(named, queues.guarantee / np.maximum(requested, 1), np.inf)
    least = parts.min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), np.minimum(least, 1.0), 0.0)


def _weights(problem: Problem, rules: RuleSet, view: _View) -> tuple[F64, F64]:
    """(Q,) twice: by what queues share first, and what the others share that is left.

    With `capacity` those that deserve something share by that.
    """
    weight = problem.queues.weight.astype(np.float64)
    if rules.find("capacity") is None:
        return weight, np.zeros_like(weight)
    deserved = _dominant(view.total, problem.queues.deserved)
    if not deserved.any():
        return weight, np.zeros_like(weight)
    return deserved, np.where(deserved > 0, 0.0, weight)


# --- filling -------------------------------------------------------------------------------------


class _Filling:
    """Raises what queues get together until limits stop them one after the other.

    Attributes
    ----------
    part
        (Q,) the part of what it asks for that each queue has.

    """

    def __init__(self, use: F64, limit: F64, floor: F64) -> None:
        self._use = use
        self._limit = limit
        self.part = floor.copy()

    def fill(self, speed: F64) -> None:
        """Raise queues (Q,) at their speeds; one that has more already waits for the others."""
        level, stopped = 0.0, speed <= 0
        for _ in range(3 * len(speed) + len(self._limit) + 1):
            rising = ~stopped & (self.part <= speed * level + _TINY)
            step = min(self._to_limit(rising, speed), _smallest(self._ends(stopped, speed, level)))
            if not np.isfinite(step):
                return
            self.part = np.where(rising, self.part + step * speed, self.part)
            level += step
            stopped |= self._is_stopped(rising)

    def _to_limit(self, rising: Bool, speed: F64) -> float:
        """How far the level may rise until a limit is reached."""
        growth = self._use @ np.where(rising, speed, 0.0)
        left = np.maximum(self._limit - self._use @ self.part, 0.0)
        binding = growth > 0
        return _smallest(left[binding] / growth[binding])

    def _ends(self, stopped: Bool, speed: F64, level: float) -> F64:
        """How far it may rise until a queue has all that it asks for, or one joins the others."""
        going = ~stopped
        whole = 1.0 / speed[going] - level
        joins = self.part[going] / speed[going] - level
        ends = np.concatenate([whole, joins])
        return ends[ends > _TINY]

    def _is_stopped(self, rising: Bool) -> Bool:
        used = self._use @ self.part
        full = used >= self._limit - _TINY * np.maximum(self._limit, 1.0)
        held: Bool = (self._use[full] > 0).any(axis=0) & rising
        return held | (self.part >= 1.0 - _TINY)


def _smallest(values: F64) -> float:
    return float(values.min()) if len(values) else float("inf")
