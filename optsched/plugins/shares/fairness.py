"""Actual shares of queues, and ideal shares that assume divisible tasks.

Mathematics: models/formulation/fairness.md. The ideal is the lexicographic max-min of weighted
dominant shares (Ghodsi et al., NSDI 2011; Bertsekas and Gallager, Data Networks, section 6.5).
Every queue gets a fraction of its demand. No queue can get more unless a queue with a smaller
weighted share gets less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import PPM, QueueShare
from optsched.cluster.reasons import ReasonCode
from optsched.plugins.shares.tree_fairness import OverTime, TreeFairness
from optsched.plugins.shares.tree_filling import GangClasses, Tree, fill_tree
from optsched.plugins.shares.tree_shares import build_limits, guaranteed_parts
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.reasons import Reason
    from optsched.plugins.accounting import Outcome
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem

SHARING = ("proportion", "capacity", "drf")
"""The plugins that define queue shares; if none is enabled, no shares are reported."""

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
"""Codes of reasons that remain until the gang or the cluster changes."""

_SUSPECT = NEVER | {ReasonCode.CAPABILITY, ReasonCode.DESERVED}
"""`NEVER`, and the codes of reasons why a gang may be too large for every node or its queue."""


def queue_shares(
    outcome: Outcome, rules: RuleSet, pending: Mapping[str, Reason] | None = None
) -> tuple[QueueShare, ...]:
    """Return the actual share and the ideal share of every queue with demand, in queue order.

    The actual share is the dominant share of the queue's usage, without the resource `pods`.
    `pending` contains the reasons why gangs wait, by gang key. The demand of a queue excludes gangs
    that can never start. The result is empty if no plugin in `SHARING` is enabled.
    """
    if not any(rules.find_rule(name) is not None for name in SHARING):
        return ()
    problem = outcome.problem
    requested = _sum_admissible_demand(problem, pending or {})
    exceeded = _find_exceeded_limits(problem, requested)
    # Fairness over time takes precedence over hierarchical DRF. If neither rule is enabled, the
    # ideal share is the ideal fraction of the demand, times the dominant share of the demand.
    by_time = sorted((a.rule for a in rules.active), key=lambda r: not isinstance(r, OverTime))
    tree_rules = (rule for rule in by_time if isinstance(rule, TreeFairness))
    tree_rule = next(tree_rules, None)
    if tree_rule is None:
        ideal = ideal_parts(problem, rules, requested) * exceeded.dominant
    else:
        ideal = _find_dominant_shares(exceeded.total, problem.derived(tree_rule.find_contest).ideal)
    held = _find_dominant_shares(exceeded.total, outcome.queue_allocated)
    requesting = np.flatnonzero(exceeded.dominant > 0)
    names = problem.queues.names
    return tuple(
        QueueShare(names[q], int(np.rint(held[q] * PPM)), int(np.rint(ideal[q] * PPM)))
        for q in requesting.tolist()
    )


def ideal_parts(problem: Problem, rules: RuleSet, requested: I64 | None = None) -> F64:
    """Return the fraction (Q,) of its demand that each queue would get in the ideal case.

    `requested` (Q, R) is the demand; None stands for the demand in `problem`.
    """
    requested = problem.queues.requested if requested is None else requested
    exceeded = _find_exceeded_limits(problem, requested)
    part = guaranteed_parts(problem.queues.guarantee, requested)
    rounds = [problem.queues.weight.astype(np.float64)]
    if rules.find_rule("capacity") is not None:
        # Queues with a deserved share are filled first, in proportion to this share.
        deserved = _find_dominant_shares(exceeded.total, problem.queues.deserved)
        if deserved.any():
            rounds = [deserved, np.where(deserved > 0, 0.0, rounds[0])]
    for weight in rounds:
        part = _raise_shares(exceeded, part, weight)
    return part


# --- demand and limits ----------------------------------------------------------------------------


def _sum_admissible_demand(problem: Problem, pending: Mapping[str, Reason]) -> I64:
    """Return the demand (Q, R) of queues, without gangs that can never start."""
    queues = problem.queues
    suspects = {key: reason.code for key, reason in pending.items() if reason.code in _SUSPECT}
    if not suspects:
        return queues.requested
    requested = queues.requested.copy()
    index_of = {name: r for r, name in enumerate(problem.resources)}
    largest = problem.allocatable[problem.ready].max(axis=0, initial=0)
    exceeding: dict[tuple[int, int], bool] = {}
    keys = (gang.key for gang in problem.snapshot.gangs)
    gang_classes = zip(problem.shape_of.tolist(), problem.queue_of.tolist(), strict=True)
    for g, (key, gang_class) in enumerate(zip(keys, gang_classes, strict=True)):
        code, queue = suspects.get(key), gang_class[1]
        if code is None or queue < 0:
            continue
        never = code in NEVER
        if not never and gang_class not in exceeding:
            exceeding[gang_class] = _exceeds_all(problem, g, largest)
        if never or exceeding[gang_class]:
            row = problem.rows[g]
            for name in row.requested:
                waiting = row.requested[name] - row.claimed.get(name, 0)
                requested[queue, index_of[name]] -= waiting
    return np.maximum(requested, queues.allocated)


def _exceeds_all(problem: Problem, gang: int, largest: I64) -> bool:
    """Return whether a gang is too large for every node, for the cluster or for its queue."""
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
class _ExceededLimits:
    """The limits that would be exceeded if all queues got their demand.

    Attributes
    ----------
    use, limit
        (K, Q) part of each queue's demand that counts toward each limit, and (K,) limits, in base
        units.
    total
        (R,) allocatable amounts of the cluster; 0 for the resource `pods`.
    dominant
        (Q,) dominant share of each queue's demand.

    """

    use: F64
    limit: F64
    total: F64
    dominant: F64


def _find_exceeded_limits(problem: Problem, requested: I64) -> _ExceededLimits:
    queues = problem.queues
    demand = requested.astype(np.float64)
    total = problem.total.astype(np.float64)
    if problem.index(PODS) >= 0:
        total[problem.index(PODS)] = 0
    free = np.maximum(total - problem.foreign[problem.ready].sum(axis=0), 0)
    use, limit = build_limits(
        queues, demand, np.arange(len(demand)), free, np.flatnonzero(total > 0)
    )
    binds = use.sum(axis=1) > limit
    return _ExceededLimits(use[binds], limit[binds], total, _find_dominant_shares(total, requested))


def _find_dominant_shares(total: F64, amounts: I64 | F64) -> F64:
    parts = np.where(total > 0, amounts / np.maximum(total, 1), 0.0)
    largest: F64 = parts.max(axis=1, initial=0.0)
    return largest


def _raise_shares(exceeded: _ExceededLimits, part: F64, weight: F64) -> F64:
    """Raise the shares of queues with a positive weight by water filling.

    Returns, for each queue (Q,), the fraction of its demand that it has afterwards. `part` (Q,)
    contains the fractions before the call. The smallest weighted share is raised first. A queue
    grows only after all other queues that can still grow have reached its weighted share.
    """
    rising = np.flatnonzero((weight > 0) & (exceeded.dominant > 0))
    if not len(rising):
        return part
    dominant = exceeded.dominant[rising]
    others = part.copy()
    others[rising] = 0.0
    tree = Tree(
        parent_of=np.append(-1, np.zeros(len(rising), np.int64)),
        weight=np.append(1.0, weight[rising]),
        past=np.zeros((len(rising) + 1, 1)),
    )
    classes = GangClasses(
        home=np.arange(1, len(rising) + 1),
        mix=np.ones((len(rising), 1)),
        sizes=tuple(dominant[:, None]),
        floor=part[rising],
        use=exceeded.use[:, rising] / dominant,
        limit=np.maximum(exceeded.limit - exceeded.use @ others, 0.0),
    )
    filled = part.copy()
    filled[rising] = fill_tree(tree, classes) / dominant
    return filled
