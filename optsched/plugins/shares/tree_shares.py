"""Ideal shares of queues in a queue tree, computed from a problem or from cluster objects.

Mathematics: models/formulation/hdrf.md and, for past usage, models/formulation/over_time.md. The
rules in `tree_fairness` define the tree, and `tree_filling` computes the ideal shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.cluster.amounts import Usage
from optsched.plugins.shares.tree_filling import GangClasses, Tree, fill_tree
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.arrays import LARGEST, UNLIMITED
from optsched.problem.shapes import gang_row
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.queues import QueueArrays

Path: TypeAlias = "tuple[tuple[str, float], ...]"
"""The path from the root to a queue, as (name, weight) pairs of tree nodes."""

_FINE = 1_000_000
"""Deserved shares are rounded to units of 1/`_FINE` of the cluster, at least one base unit."""

_GRID = 1000
"""Rounding remainders are compared after rounding them to multiples of 1/`_GRID` of a unit."""

_NEARLY = 0.000137
"""Number of units that are added to shares before rounding, to cancel floating-point errors."""

_SERVED = 1e-9
"""Maximum relative difference at which an ideal share counts as equal to the whole demand."""


@dataclass(frozen=True, eq=False)
class Contest:
    """The queues (axis Q) and gangs (axis G) among which a cluster is divided.

    Attributes
    ----------
    paths
        (Q,) the path of each queue in the tree.
    past
        (Q, R) past usage that is added to the current usage of each queue.
    resources
        (R,) names of the resources.
    queue_of, demand
        (G,) the queue of each gang, and (G, R) each gang's usage plus requests.
    claimed
        (Q, R) current usage of each queue.
    total, free
        (R,) allocatable amounts of the cluster, and (R,) the same minus the usage of pods outside
        gangs.
    subtree, capability, guarantee
        (Q, Q), (Q, R) and (Q, R) arrays with the meaning in `QueueArrays`.
    pods
        Index of the resource `pods`, which is not divided; -1 if no node has this resource.

    """

    paths: Sequence[Path]
    past: F64
    resources: tuple[str, ...]
    queue_of: I64
    demand: I64
    claimed: I64
    total: I64
    free: I64
    subtree: Bool
    capability: I64
    guarantee: I64
    pods: int

    @cached_property
    def scale(self) -> F64:
        """One base unit as a share (R,) of the cluster; 0 for pods and absent resources."""
        counted = np.where(self.total > 0, 1.0 / np.maximum(self.total, 1), 0.0)
        if self.pods >= 0:
            counted[self.pods] = 0.0
        return counted

    @cached_property
    def ideal(self) -> F64:
        """The ideal share (Q, R) of each queue, in base units.

        For the resource `pods`, each gang of a gang class is assumed to request as many pods per
        dominant share as the first gang of the class. The result is bit-identical for any order of
        resources.
        """
        order = sorted(range(len(self.resources)), key=self.resources.__getitem__)
        found = np.zeros(self.guarantee.shape)
        by_name = replace(
            self,
            past=self.past[:, order],
            resources=tuple(self.resources[r] for r in order),
            demand=self.demand[:, order],
            claimed=self.claimed[:, order],
            total=self.total[order],
            free=self.free[order],
            capability=self.capability[:, order],
            guarantee=self.guarantee[:, order],
            pods=order.index(self.pods) if self.pods >= 0 else -1,
        )
        found[:, order] = by_name.filled()
        return found

    def filled(self) -> F64:
        """Return the ideal shares (Q, R) of a `Contest` whose resources are sorted by name."""
        share = (self.demand * self.scale).max(axis=1, initial=0.0)
        competing = np.flatnonzero(share > 0)
        held = np.zeros(self.guarantee.shape)
        if not len(competing):
            return held
        # Gangs of a queue that request resources in the same proportions form a gang class.
        mix = self.demand[competing] / share[competing, None]
        limited = (self.capability < UNLIMITED).any(axis=0) & (self.scale == 0)
        rest = mix / np.maximum(mix.max(axis=1, initial=0.0), 1.0)[:, None]
        proportions = np.rint(np.where(limited, rest, mix * self.scale) * 1e9).astype(np.int64)
        keys = np.column_stack([self.queue_of[competing], proportions])
        _, first, class_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        class_of = class_of.reshape(-1)
        sizes = [np.sort(share[competing[class_of == k]]) for k in range(len(first))]
        queue, amounts = self.queue_of[competing[first]], mix[first]
        homes, tree = _build_tree(self.paths, self.past * self.scale)
        # The fraction (Q,) of its demand that each queue is guaranteed, scaled down if the cluster
        # is too small for all guarantees.
        floors = guaranteed_parts(self.guarantee, self._requested)
        floor_use = floors @ self._requested
        exceeds = (floor_use > self.free) & (np.arange(len(floor_use)) != self.pods)
        fits = np.where(exceeds, self.free / np.maximum(floor_use, 1.0), 1.0)
        floors = floors * np.where(self._requested > 0, fits, 1.0).min(axis=1, initial=1.0)
        counted = np.flatnonzero(np.arange(len(self.total)) != self.pods)
        use, limit = build_limits(self, amounts, queue, self.free, counted)
        # Only the limits that the total demand exceeds can bind.
        binds = use @ np.array([s.sum() for s in sizes]) > limit
        classes = GangClasses(
            home=homes[queue],
            mix=amounts * self.scale,
            sizes=tuple(sizes),
            floor=floors[queue],
            use=use[binds],
            limit=limit[binds],
        )
        np.add.at(held, queue, fill_tree(tree, classes)[:, None] * amounts)
        return held

    @cached_property
    def _requested(self) -> I64:
        """The usage plus the requests (Q, R) of each queue's gangs."""
        requested = np.zeros(self.guarantee.shape, np.int64)
        np.add.at(requested, self.queue_of, self.demand)
        return requested

    @cached_property
    def deserved(self) -> I64:
        """The ideal shares (Q, R) in base units, rounded by largest remainder; 0 for pods.

        Shares are rounded to millionths of the cluster, at least one base unit. A queue whose
        demand is met deserves exactly its demand. The total over all queues never exceeds the
        cluster's capacity.
        """
        found = np.zeros(self.guarantee.shape, np.int64)
        for r in np.flatnonzero(self.ideal.any(axis=0)).tolist():
            if r == self.pods:
                continue
            ideal, requested = self.ideal[:, r], self._requested[:, r]
            unit = max(int(self.total[r]) // _FINE, 1)
            is_served = ideal >= requested * (1 - _SERVED)
            scaled = np.where(is_served, 0.0, ideal / unit) + _NEARLY
            parts = np.floor(scaled).astype(np.int64)
            remainders = np.floor((scaled - parts) * _GRID).astype(np.int64)
            due = np.where(is_served, requested, parts * unit)
            there = min(float(self.free[r]), float(ideal.sum())) - float(due.sum())
            order = np.lexsort((self.claimed[:, r] <= due, -remainders))
            order = order[remainders[order] > 0]
            due[order[: max(int(there / unit + _NEARLY), 0)]] += unit
            found[:, r] = due
        return found


def build_limits(
    queues: Contest | QueueArrays, amounts: F64, queue_of: I64, free: I64 | F64, counted: I64
) -> tuple[F64, F64]:
    """Return the usage (K, m) of each limit, and the limits (K,), in base units.

    The limits are the capacity of the cluster and the capabilities of queues.

    Parameters
    ----------
    queues
        The queues with their subtrees and capabilities.
    amounts, queue_of
        (m, R) usage of m queues or gang classes, and (m,) the queue of each.
    free, counted
        (R,) capacity of the cluster, and the indices of the resources that it limits.

    """
    rows, limits = [amounts[:, counted].T], [free[counted].astype(np.float64)]
    for q, r in np.argwhere(queues.capability < UNLIMITED).tolist():
        rows.append(np.where(queues.subtree[q][queue_of], amounts[:, r], 0.0)[None])
        limits.append(np.array([queues.capability[q, r]], np.float64))
    return np.concatenate(rows), np.concatenate(limits)


def guaranteed_parts(guarantee: I64, requested: I64) -> F64:
    """Return the fraction (Q,) of each queue's demand that its guarantee covers, at most 1."""
    named = (guarantee > 0) & (requested > 0)
    parts = np.where(named, guarantee / np.maximum(requested, 1), np.inf)
    least = parts.min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), np.minimum(least, 1.0), 0.0)


def _build_tree(paths: Sequence[Path], past: F64) -> tuple[I64, Tree]:
    """Return the tree node (Q,) of each queue, and the tree.

    The gangs directly in a parent queue belong to an additional child node.
    """
    names = [tuple(name for name, _ in path) for path in paths]
    inner = {name[:end] for name in names for end in range(len(name))}
    number: dict[tuple[str, ...], int] = {(): 0}
    parents, weights = [-1], [1.0]
    homes = np.zeros(len(paths), np.int64)
    for q, (name, path) in enumerate(zip(names, paths, strict=True)):
        steps = [*range(1, len(name) + 1)]
        keys = [(name[:end], path[end - 1][1]) for end in steps]
        if name in inner:
            keys.append(((*name, ""), path[-1][1] if path else 1.0))
        above = 0
        for key, weight in keys:
            if key not in number:
                number[key] = len(parents)
                parents.append(above)
                weights.append(weight)
            above = number[key]
        homes[q] = above
    held = np.zeros((len(parents), past.shape[1]))
    np.add.at(held, homes, past)
    return homes, Tree(np.array(parents, np.int64), np.array(weights), held)


def decayed_usage(problem: Problem, half_life_ms: int) -> F64:
    """Return the decayed average usage (Q, R) of each queue; 0 if the half-life is 0.

    A queue without a usage record is assumed to have had its current usage at all times.
    """
    queues, resources = problem.queues, problem.resources
    past = np.zeros((len(queues.names), len(resources)))
    if not half_life_ms:
        return past
    now_ms = problem.snapshot.taken_ms
    for q, name in enumerate(queues.names):
        usage = problem.snapshot.usage.get(name, Usage(at_ms=now_ms))
        held = dict(zip(resources, queues.allocated[q].tolist(), strict=True))
        mean = usage.advanced(held, now_ms, half_life_ms).average(half_life_ms)
        past[q] = [mean.get(r, 0.0) for r in resources]
    return past


def find_half_life(rules: RuleSet) -> int:
    """Return the longest half-life of past usage in any rule, in ms; 0 if there is none."""
    found = (getattr(active.rule, "half_life_ms", 0) for active in rules.active)
    return max(found, default=0)


def build_contest(
    problem: Problem, paths: Sequence[Path], past: F64, floor: I64 | None = None
) -> Contest:
    """Return the `Contest` of a problem; `floor` (Q, R) replaces the queues' guarantees."""
    queues = problem.queues
    known = np.flatnonzero(problem.queue_of >= 0)
    rows = [problem.rows[g] for g in known.tolist()]
    closed = [int(q) in queues.closed for q in problem.queue_of[known].tolist()]
    demand = [r.claimed if s else r.requested for r, s in zip(rows, closed, strict=True)]
    return Contest(
        paths=paths,
        past=past,
        resources=problem.resources,
        queue_of=problem.queue_of[known],
        demand=_tabulate(demand, problem.resources),
        claimed=queues.claimed,
        total=problem.total,
        free=np.maximum(problem.total - problem.foreign[problem.ready].sum(axis=0), 0),
        subtree=queues.subtree,
        capability=queues.capability,
        guarantee=queues.guarantee if floor is None else floor,
        pods=problem.index(PODS),
    )


def list_tree_levels(problem: Problem, contest: Contest) -> Iterator[tuple[int, Bool, I64]]:
    """Yield (depth, members (K, Q), targets (K, R)) for each depth of the tree, from the root down.

    The K tree nodes at a depth group the queues below them; the target of a node is the sum of its
    queues' deserved amounts, each limited to the queue's demand. A depth with the same groups as
    the depth above is skipped. At the last depth, each queue is a group.
    """
    due = np.minimum(contest.deserved, problem.queues.requested)
    requesting = np.flatnonzero(problem.queues.requested.any(axis=1)).tolist()
    names = {q: tuple(name for name, _ in contest.paths[q]) for q in requesting}
    before: list[list[int]] = [requesting]
    for depth in range(1, max(map(len, names.values()), default=0) + 1):
        groups: dict[object, list[int]] = {}
        for q in requesting:
            whole = len(names[q]) <= depth + 1
            groups.setdefault(q if whole else names[q][: depth + 1], []).append(q)
        found = sorted(groups.values())
        if len(found) > 1 and found != before:
            member = np.zeros((len(found), len(due)), np.bool_)
            for k, group in enumerate(found):
                member[k, group] = True
            yield depth, member, member.astype(np.int64) @ due
        before = found


def build_contest_of_world(
    world: World, paths: Sequence[Path], past: Sequence[Mapping[str, float]]
) -> tuple[Contest, tuple[str, ...]]:
    """Return the `Contest` and its resource names, built from cluster objects for the verifier."""
    snapshot = world.snapshot
    number = {queue.name: q for q, queue in enumerate(snapshot.queues)}
    gangs = [g for g in snapshot.gangs if g.queue in number]
    rows = [gang_row(g) for g in gangs]
    demand = [
        r.claimed if world.shut(g.queue) else r.requested for g, r in zip(gangs, rows, strict=True)
    ]
    outside_gangs = [t for n in snapshot.nodes if n.ready for t in n.residents if not t.gang]
    foreign = summed(task_usage(t) for t in outside_gangs)
    ceilings = [dict(q.capability or ()) for q in snapshot.queues]
    floors = [dict(q.guarantee) for q in snapshot.queues]
    mentioned = (world.total, foreign, *demand, *ceilings, *floors)
    resources = tuple(sorted({name for part in mentioned for name in part}))
    total = _tabulate([world.total], resources)[0]
    subtree = np.zeros((len(number), len(number)), np.bool_)
    for q, queue in enumerate(snapshot.queues):
        for above in world.ancestors(queue):
            subtree[number[above.name], q] = True
            if world.ancestors(above)[-1].parent == above.name:
                break  # The parents form a cycle, and `above` is the first queue in it.
    queue_of = np.array([number[g.queue] for g in gangs], np.int64)
    claimed = np.zeros((len(number), len(resources)), np.int64)
    np.add.at(claimed, queue_of, _tabulate([r.claimed for r in rows], resources))
    contest = Contest(
        paths=paths,
        past=np.array([[p.get(r, 0.0) for r in resources] for p in past]).reshape(
            len(past), len(resources)
        ),
        resources=resources,
        queue_of=queue_of,
        demand=_tabulate(demand, resources),
        claimed=claimed,
        total=total,
        free=np.maximum(total - _tabulate([foreign], resources)[0], 0),
        subtree=subtree,
        capability=_tabulate(ceilings, resources, int(UNLIMITED)),
        guarantee=_tabulate(floors, resources),
        pods=resources.index(PODS) if PODS in resources else -1,
    )
    return contest, resources


def _tabulate(
    parts: Sequence[Mapping[str, int]], resources: Sequence[str], missing: int = 0
) -> I64:
    rows = [[min(p[r], int(LARGEST)) if r in p else missing for r in resources] for p in parts]
    return np.array(rows, np.int64).reshape(len(parts), len(resources))
