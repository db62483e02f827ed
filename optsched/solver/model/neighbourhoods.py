"""Neighbourhoods of a plan: some nodes that are filled again while all others may only lose tasks.

Large-neighbourhood search (Shaw, 1998): where a model of all nodes is too large, models of some of
them improve the incumbent one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

MOST_PAIRS = 1500
"""Pairs of task class and node in one neighbourhood."""

_TIER_WEIGHT = 0.25
"""The weight of a tier relative to the tier before it."""

_LEAST_WEIGHT = 1e-3
"""Of a node that helps no waiting gang: it can still take tasks of others."""


class Neighbourhood(NamedTuple):
    """Part of the nodes to fill again.

    Attributes
    ----------
    nodes
        (N,) nodes that may get other tasks than in the incumbent.
    most
        (C, N) how many tasks of a class fit a node by themselves.

    """

    nodes: Bool
    most: I64


def choose_nodes(
    problem: Problem, tiers: Tiers, decisions: Decisions, most: I64, number: int, seed: int
) -> Bool:
    """Return the nodes (N,) of one neighbourhood, at most `MOST_PAIRS` pairs of class and node.

    The nodes with the most idle capacity for waiting gangs come first, gangs of important tiers
    before others. From the second neighbourhood on they are drawn by these weights. A node with
    more pairs by itself is in none.

    Parameters
    ----------
    problem, tiers, decisions
        The problem, and the incumbent.
    most
        (C, N) how many tasks of a class fit a node by themselves.
    number, seed
        The number of the neighbourhood, from 0, and the seed of the draw.

    """
    pairs = (most > 0).sum(axis=0)
    chosen = np.zeros(problem.num_nodes, np.bool_)
    able = (pairs > 0) & (pairs <= MOST_PAIRS)
    if not able.any():
        return chosen
    weight = _weigh_nodes(problem, tiers, decisions, most, number)
    if number or seed:
        rng = np.random.default_rng((seed, number))
        # Efraimidis and Spirakis (2006): a weighted draw without replacement.
        order = np.argsort(-np.log(rng.random(len(weight))) / weight, kind="stable")
    else:
        order = np.argsort(-weight, kind="stable")
    order = order[able[order]]
    chosen[order[np.cumsum(pairs[order]) <= MOST_PAIRS]] = True
    return chosen


def _weigh_nodes(
    problem: Problem, tiers: Tiers, decisions: Decisions, most: I64, number: int
) -> F64:
    """(N,) how much of what waiting gangs request each node has idle after the incumbent."""
    left = problem.idle.astype(np.float64)
    placed = np.flatnonzero(decisions.node_of >= 0)
    request = problem.classes.request.astype(np.float64)
    np.subtract.at(left, decisions.node_of[placed], request[problem.task_class[placed]])
    waiting = np.flatnonzero(
        (decisions.node_of < 0)
        & (decisions.nominated < 0)
        & (problem.shape_of[problem.gang_of] >= 0)
    )
    # The first tier in which something waits; then the one after it, in turns.
    ranks = np.unique(tiers.of[problem.gang_of[waiting]], return_inverse=True)[1]
    num_tiers = int(ranks.max(initial=0)) + 1
    worth = np.bincount(
        problem.task_class[waiting],
        _TIER_WEIGHT ** ((ranks - number) % num_tiers),
        len(request),
    )
    weight = np.full(problem.num_nodes, _LEAST_WEIGHT)
    for c in np.flatnonzero(worth).tolist():
        asked = np.flatnonzero(request[c])
        share = (left[:, asked] / request[c, asked]).min(axis=1, initial=1.0)
        weight += np.where(most[c] > 0, worth[c] / worth.sum() * np.maximum(share, 0), 0)
    return weight
