"""Neighbourhoods of a plan: a few nodes are filled again, while all others may only lose tasks.

Large-neighbourhood search (Shaw, 1998): where a model of all nodes is too large, a sequence of
models of a few nodes improves the incumbent.
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
"""The most pairs of task class and node in one neighbourhood."""

FEW_NODES, FEW_CLASSES = 4, 40
"""The most nodes and task classes of a neighbourhood where one node has over `MOST_PAIRS` pairs."""

_TIER_WEIGHT = 0.25
"""The weight of a tier relative to the tier before it."""

_LEAST_WEIGHT = 1e-3
"""The weight of a node that helps no waiting gang: it can still take tasks of other gangs."""


class Neighbourhood(NamedTuple):
    """The nodes to fill again.

    Attributes
    ----------
    nodes
        (N,) nodes that may get other tasks than in the incumbent.
    most
        (C, N) how many tasks of a class fit a node that gets no other tasks.

    """

    nodes: Bool
    most: I64

    @property
    def is_crowded(self) -> bool:
        """Whether its nodes have more pairs of task class and node than a model may have."""
        return int((self.most[:, self.nodes] > 0).sum()) > MOST_PAIRS


def choose_nodes(
    problem: Problem, tiers: Tiers, decisions: Decisions, most: I64, number: int, seed: int
) -> Bool:
    """Return the nodes (N,) of one neighbourhood, at most `MOST_PAIRS` pairs of class and node.

    Nodes with the most idle capacity for waiting gangs come first; gangs of important tiers weigh
    more. From the second neighbourhood on, nodes are drawn at random with these weights. If the
    first node alone has more pairs, `FEW_NODES` nodes are chosen, and `choose_gangs` limits gangs.

    Parameters
    ----------
    problem, tiers, decisions
        The problem, and the incumbent.
    most
        (C, N) how many tasks of a class fit a node that gets no other tasks.
    number, seed
        The number of the neighbourhood, from 0, and the seed of the draw.

    """
    pairs = (most > 0).sum(axis=0)
    chosen = np.zeros(problem.num_nodes, np.bool_)
    order = _order_by_weight(_weigh_nodes(problem, tiers, decisions, most, number), number, seed)
    order = order[pairs[order] > 0]
    if len(order) and pairs[order[0]] > MOST_PAIRS:
        chosen[order[:FEW_NODES]] = True
        return chosen
    order = order[pairs[order] <= MOST_PAIRS]
    chosen[order[np.cumsum(pairs[order]) <= MOST_PAIRS]] = True
    return chosen


def choose_gangs(
    problem: Problem,
    tiers: Tiers,
    decisions: Decisions,
    neighbourhood: Neighbourhood,
    number: int,
    seed: int,
) -> Bool:
    """Return the gangs (G,) for a neighbourhood whose nodes have too many pairs for one model.

    Half of the task classes belong to gangs that the incumbent places on these nodes. The other
    half belongs to waiting gangs, important tiers first.

    Parameters
    ----------
    problem, tiers, decisions, number, seed
        See `choose_nodes`.
    neighbourhood
        The nodes, and how many tasks fit each.

    """
    nodes, most = neighbourhood
    is_open = problem.shape_of >= 0
    at = np.maximum(decisions.node_of, decisions.nominated)
    num_there = np.bincount(problem.gang_of[nodes[at] & (at >= 0)], minlength=problem.num_gangs)
    is_waiting = np.ones(problem.num_gangs, np.bool_)
    is_waiting[problem.gang_of[at >= 0]] = False
    fits = ((most[:, nodes] > 0).sum(axis=1) > 0)[problem.task_class]
    is_useful = is_waiting & (np.bincount(problem.gang_of[fits], minlength=len(is_waiting)) > 0)
    gangs = np.zeros(problem.num_gangs, np.bool_)
    num_classes = _count_classes(problem)
    for candidates, worth in (
        (is_open & (num_there > 0), num_there / np.maximum(np.diff(problem.task_start), 1)),
        (is_open & is_useful, _TIER_WEIGHT ** tiers.of.astype(np.float64)),
    ):
        mine = np.flatnonzero(candidates)
        mine = mine[_order_by_weight(np.maximum(worth[mine], _LEAST_WEIGHT), number, seed)]
        gangs[mine[np.cumsum(num_classes[mine]) <= FEW_CLASSES // 2]] = True
    return gangs


def _count_classes(problem: Problem) -> I64:
    """Return the number of task classes of each gang (G,)."""
    num_classes = len(problem.classes.request)
    pairs = np.unique(problem.gang_of * num_classes + problem.task_class)
    return np.bincount(pairs // num_classes, minlength=problem.num_gangs)


def _order_by_weight(weight: F64, number: int, seed: int) -> I64:
    """Return an order by weight: descending for number 0 with seed 0, otherwise drawn at random."""
    if not number and not seed:
        return np.argsort(-weight, kind="stable")
    rng = np.random.default_rng((seed, number))
    # Efraimidis and Spirakis (2006): a weighted draw without replacement.
    return np.argsort(-np.log(rng.random(len(weight))) / weight, kind="stable")


def _weigh_nodes(
    problem: Problem, tiers: Tiers, decisions: Decisions, most: I64, number: int
) -> F64:
    """Return the weight (N,) of each node: its idle capacity relative to waiting requests."""
    left = problem.idle.astype(np.float64)
    placed = np.flatnonzero(decisions.node_of >= 0)
    request = problem.classes.request.astype(np.float64)
    np.subtract.at(left, decisions.node_of[placed], request[problem.task_class[placed]])
    waiting = np.flatnonzero(
        (decisions.node_of < 0)
        & (decisions.nominated < 0)
        & (problem.shape_of[problem.gang_of] >= 0)
    )
    # Neighbourhood 0 prefers the first tier with waiting tasks, number 1 the next one, cyclically.
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
