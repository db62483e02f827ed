"""A strategy by resource: fill nodes in one, keep them free in another, leave scarce ones alone.

Mathematics: models/formulation/strategy_fit.md. Volcano:
`pkg/scheduler/plugins/resource-strategy-fit`. The proportions of the same plugin are the rule
`proportions`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Rule
from optsched.plugins.nodes.node_amounts import Offers
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.task import TaskShape
    from optsched.plugins.extension_points import Scorer
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem

TOP = 100.0
SCORING_TYPE = "volcano.sh/resource-strategy-scoring-type"
SCORING_WEIGHT = "volcano.sh/resource-strategy-weight"


class Strategy(StrEnum):
    """What makes a node good: much of a resource in use, or little."""

    MOST = "MostAllocated"
    LEAST = "LeastAllocated"


@dataclass(frozen=True, slots=True)
class Share:
    """How one resource counts."""

    strategy: Strategy = Strategy.LEAST
    weight: int = 1


DEFAULT = ((CPU, Share()), (MEMORY, Share()))


@dataclass(frozen=True)
class StrategyFit(Rule):
    """Scores from 0 to 100, times their weights.

    Attributes
    ----------
    weight
        Weight of how resources are used; 0 switches that off.
    shares
        By resource; a name that ends in `*` stands for all that begin so, the longest counts.
    scarce
        Resources with weights; nodes that have them are left to tasks that ask for them.
    scarce_weight
        Weight of that; 0 switches it off.

    """

    name = "strategy-fit"

    weight: int = 10
    shares: tuple[tuple[str, Share], ...] = DEFAULT
    scarce: tuple[tuple[str, int], ...] = ()
    scarce_weight: int = 0

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`."""
        request = problem.classes.request[task_class].tolist()
        shares = requested_shares(self.shares, problem.classes.shapes[task_class])
        counted = [
            (r, request[r], shares[name])
            for r, name in enumerate(problem.resources)
            if request[r] and name in shares
        ]
        if not counted or not self.weight:
            return None
        top = TOP * self.weight / sum(share.weight for _, _, share in counted)

        def score(used: I64, offered: I64) -> F64:
            total = np.zeros(len(used))
            fits = np.ones(len(used), np.bool_)
            for r, requested, share in counted:
                has = offered[:, r] > 0
                busy = used[:, r] + requested
                part = busy / np.maximum(offered[:, r], 1)
                part = part if share.strategy is Strategy.MOST else 1 - part
                total += np.where(has, part * share.weight * top, 0.0)
                fits &= ~has | (busy <= offered[:, r])
            return np.where(fits, total, 0.0)

        return score

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`: nodes that lack scarce resources, and nothing that the task asks for."""
        all_of_it = sum(weight for _, weight in self.scarce)
        if not self.scarce_weight or not all_of_it:
            return None
        offers = problem.derived(Offers)
        there = np.zeros(problem.num_nodes)
        for name, weight in self.scarce:
            there += weight * (offers.offered(name) > 0)
        requested = problem.classes.request[task_class] > 0
        meets = (problem.allocatable[:, requested] > 0).all(axis=1)
        score = TOP * self.scarce_weight * (all_of_it - there) / all_of_it
        return np.where(meets, score, 0.0)


def requested_shares(
    shares: tuple[tuple[str, Share], ...], shape: TaskShape
) -> Mapping[str, Share]:
    """How each resource that a task asks for counts; those that do not count are missing.

    The annotations of a pod come before the policy: one gives the strategy of all resources, the
    other names those that count, with weights. What has no reading is passed over, as in Volcano.
    """
    notes = dict(shape.notes)
    found = {name: share for name, _ in shape.request if (share := _share(shares, name))}
    weights = _own_weights(notes.get(SCORING_WEIGHT, ""))
    if weights:
        requested = {name for name, _ in shape.request}
        found = {
            name: replace(found.get(name, Share()), weight=weight)
            for name, weight in weights.items()
            if name in requested
        }
    strategy = notes.get(SCORING_TYPE)
    if strategy in tuple(Strategy):
        return {name: replace(s, strategy=Strategy(strategy)) for name, s in found.items()}
    return found


def _share(shares: tuple[tuple[str, Share], ...], resource: str) -> Share | None:
    by_name = dict(shares)
    if resource in by_name:
        return by_name[resource]
    begins = [p for p in by_name if p.endswith("*") and resource.startswith(p[:-1])]
    return by_name[max(begins, key=len)] if begins else None


def _own_weights(text: str) -> dict[str, int]:
    try:
        tree = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    return {name: w for name, w in tree.items() if type(w) is int and w > 0}
