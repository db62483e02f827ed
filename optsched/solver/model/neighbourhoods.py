"""Neighbourhoods of a plan: sets of a few nodes whose tasks the solver reassigns.

The solver may remove tasks from nodes outside the neighbourhood, but add tasks only inside. The
method is large-neighbourhood search (Shaw, 1998): if a model of all nodes is too large, a sequence
of models of a few nodes improves the incumbent.
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
"""Maximum number of (task class, node) pairs in the model of a neighbourhood."""

FEW_NODES, FEW_CLASSES = 4, 40
"""Limits on nodes and task classes of a neighbourhood if a node has over `MOST_PAIRS` pairs."""

_TIER_WEIGHT = 0.25
"""Weight of a gang tier relative to the next more important gang tier."""

_LEAST_WEIGHT = 1e-3
"""Weight of a node that no waiting gang can use; tasks of placed gangs may move to the node."""


class Neighbourhood(NamedTuple):
    """The nodes of a neighbourhood, and how many tasks fit on each node.

    Attributes
    ----------
    nodes
        (N,) mask of the nodes to which tasks may be added.
    most
        (C, N) number of tasks of each class that fit each node without other pending tasks.

    """

    nodes: Bool
    most: I64

    @property
    def is_crowded(self) -> bool:
        """Whether the neighbourhood has more than `MOST_PAIRS` (task class, node) pairs."""
        return int((self.most[:, self.nodes] > 0).sum()) > MOST_PAIRS


def choose_nodes(
    problem: Problem, tiers: Tiers, decisions: Decisions, most: I64, number: int, seed: int
) -> Bool:
    """Return a mask (N,) of the nodes of a neighbourhood, with at most `MOST_PAIRS` pairs in total.

    A pair is a task class and a node on which a task of the class fits. A node's weight grows with
    its idle capacity for waiting gangs, especially gangs of important tiers. The first
    neighbourhood contains the nodes with the largest weights; later neighbourhoods draw nodes at
    random by weight. If the first node already has too many pairs, the neighbourhood has
    `FEW_NODES` nodes, and `choose_gangs` limits the gangs.

    Parameters
    ----------
    most
        (C, N) number of tasks of each class that fit each node without other pending tasks.
    number, seed
        The index of the neighbourhood, starting at 0, and the seed for random draws.

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
    """Return a mask (G,) of the gangs in the model of a neighbourhood with too many pairs.

    Up to `FEW_CLASSES` / 2 task classes belong to gangs that the incumbent places on nodes of the
    neighbourhood. Up to `FEW_CLASSES` / 2 other task classes belong to waiting gangs, preferably of
    important tiers. `number` and `seed` are those of `choose_nodes`.
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
    total = len(problem.classes.request)
    pairs = np.unique(problem.gang_of * total + problem.task_class)
    num_classes = np.bincount(pairs // total, minlength=problem.num_gangs)
    for candidates, worth in (
        (is_open & (num_there > 0), num_there / np.maximum(np.diff(problem.task_start), 1)),
        (is_open & is_useful, _TIER_WEIGHT ** tiers.of.astype(np.float64)),
    ):
        mine = np.flatnonzero(candidates)
        mine = mine[_order_by_weight(np.maximum(worth[mine], _LEAST_WEIGHT), number, seed)]
        gangs[mine[np.cumsum(num_classes[mine]) <= FEW_CLASSES // 2]] = True
    return gangs


def _order_by_weight(weight: F64, number: int, seed: int) -> I64:
    """Return indices by descending weight if `number` and `seed` are 0, else in random order.

    In the random order, larger weights tend to come earlier.
    """
    if not number and not seed:
        return np.argsort(-weight, kind="stable")
    rng = np.random.default_rng((seed, number))
    # Weighted random sampling without replacement (Efraimidis and Spirakis, 2006).
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
    # Neighbourhood 0 prefers the most important tier with waiting tasks; the following
    # neighbourhoods prefer the tiers round-robin.
    ranks = np.unique(tiers.of[problem.gang_of[waiting]], return_inverse=True)[1]
    num_tiers = int(ranks.max(initial=0)) + 1
    worth = np.bincount(
        problem.task_class[waiting],
        _TIER_WEIGHT ** ((ranks - number) % num_tiers),
        len(request),
    )
    weight = np.full(problem.num_nodes, _LEAST_WEIGHT)
    for c in np.flatnonzero(worth).tolist():
        requested = np.flatnonzero(request[c])
        share = (left[:, requested] / request[c, requested]).min(axis=1, initial=1.0)
        weight += np.where(most[c] > 0, worth[c] / worth.sum() * np.maximum(share, 0), 0)
    return weight
