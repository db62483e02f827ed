"""Fairness over a tree of queues: hierarchical dominant resource fairness and fairness over time.

The objective levels of `HierarchicalDrf` and `OverTime` measure the shortfalls from ideal shares,
with one level per depth of the tree.

Mathematics: models/formulation/hdrf.md and models/formulation/over_time.md.

`HierarchicalDrf` (`enableHierarchy` of the plugin `drf`) follows Bhattacharya et al., "Hierarchical
scheduling for diverse datacenter workloads", SoCC 2013; Volcano: `pkg/scheduler/plugins/drf`, lines
268-367 and 503-548. The queue annotation `volcano.sh/hierarchy` defines the tree of
`HierarchicalDrf`, and `spec.parent` defines the tree of `OverTime`.

`OverTime` orders queues by the sum of current and past usage, smallest first. Past usage decays
with a half-life, as in Slurm's multifactor priority.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from optsched.api.wellknown import HIERARCHY, HIERARCHY_WEIGHTS
from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.declaration import Argument, Kind, LevelKind, Plugin, read_duration_ms
from optsched.plugins.extension_points import Greedy, KeyReach, Rule, Switch
from optsched.plugins.objectives.gang_levels import Shortfall
from optsched.plugins.shares.drf import GRID, Drf, DrfOrder
from optsched.plugins.shares.tree_shares import (
    build_contest,
    build_contest_of_world,
    decayed_usage,
    list_tree_levels,
)
from optsched.problem.running import running_tasks
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.snapshot import Queue
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.declaration import Value
    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.shares.tree_shares import Contest, Path
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


class TreeFairness(Rule):
    """A rule whose levels measure how far the shares of tree nodes are below their ideal shares.

    Attributes
    ----------
    level_name
        The prefix of the level names.

    """

    level_name: ClassVar[str]

    def find_contest(self, problem: Problem) -> Contest:
        """Return the queues and gangs from which the ideal shares are computed."""
        raise NotImplementedError

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """See `Rule`. There is one level per depth of the tree, from the root to the queues."""
        contest = problem.derived(self.find_contest)
        return [
            Shortfall(f"{self.level_name} at depth {depth}", "steps", member, target, GRID)
            for depth, member, target in list_tree_levels(problem, contest)
        ]


@dataclass(frozen=True)
class HierarchicalDrf(TreeFairness):
    """Orders two queues by the weighted shares of the tree nodes at which their paths diverge.

    Tree nodes that cannot use more resources come last.

    Attributes
    ----------
    reclaims
        True if queues may reclaim their ideal shares.
    half_life_ms
        Half-life of past usage in milliseconds; with 0, past usage is ignored.

    """

    name = "drf"
    level_name = "fair share"
    returns_by_use = False

    reclaims: bool = True
    half_life_ms: int = 0

    def find_contest(self, problem: Problem) -> Contest:
        """See `TreeFairness`."""
        return build_contest(
            problem, _read_paths(problem), decayed_usage(problem, self.half_life_ms)
        )

    def _find_timeless_contest(self, problem: Problem) -> Contest:
        """Return the `Contest` without past usage, because past usage justifies no evictions."""
        if not self.half_life_ms:
            return problem.derived(self.find_contest)
        return build_contest(problem, _read_paths(problem), decayed_usage(problem, 0))

    def deserved(self, problem: Problem) -> I64 | None:
        """See `Entitling`.

        A queue's deserved share is the sum of its own and its descendants' ideal shares.
        """
        if not self.reclaims:
            return None
        due: I64 = (
            problem.queues.subtree.astype(np.int64)
            @ problem.derived(self._find_timeless_contest).deserved
        )
        return due

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]] | None:
        """See `Entitling`."""
        if not self.reclaims:
            return None
        queues = world.snapshot.queues
        contest, names = build_contest_of_world(
            world, [hierarchy(q) for q in queues], [{} for _ in queues]
        )
        due = contest.subtree.astype(np.int64) @ contest.deserved
        return {
            queue.name: dict(zip(names, amounts, strict=True))
            for queue, amounts in zip(queues, due.tolist(), strict=True)
        }

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        past = decayed_usage(problem, self.half_life_ms)
        return _TreeOrder(problem, ledger, ShareTree(problem, ledger, _read_paths(problem), past))


def _read_paths(problem: Problem) -> list[Path]:
    return [hierarchy(queue) for queue in problem.snapshot.queues]


def hierarchy(queue: Queue) -> Path:
    """Return the annotated path of a queue as (name, weight) pairs from the root.

    Without an annotation, the path is `root/NAME`, and its last weight is the queue's weight. A
    weight that is missing or not a positive number is replaced by 1.
    """
    path = queue.annotations.get(HIERARCHY, "").strip("/")
    if not path:
        return (("root", 1.0), (queue.name, float(queue.weight)))
    names = path.split("/")
    weights = []
    for text in queue.annotations.get(HIERARCHY_WEIGHTS, "").split("/"):
        weight = float(parse_decimal(text) or 1)
        weights.append(weight if 0 < weight < float("inf") else 1.0)
    weights += [1.0] * (len(names) - len(weights))
    return tuple(zip(names, weights, strict=False))


@dataclass(eq=False)
class _Node:
    """A node of the queue tree, or a gang below such a node, with its usage.

    Attributes
    ----------
    gang
        Index of the gang if this is a gang; -1 for a tree node.
    held
        (R,) usage of the gang, or the sum of the children's usage, some of which is scaled down
        (`ShareTree._refresh`).
    past
        (R,) past usage that is added to `held`; empty without past usage.
    is_full
        True if the gang, or every gang below the node, cannot use more resources.

    """

    weight: float
    gang: int = -1
    above: _Node | None = None
    below: dict[str, _Node] = field(default_factory=dict)
    held: list[float] = field(default_factory=list)
    past: list[float] = field(default_factory=list)
    share: float = 0.0
    is_full: bool = False
    is_stale: bool = True


class ShareTree:
    """The shares of all tree nodes; only stale shares are recomputed."""

    def __init__(self, problem: Problem, ledger: Ledger, paths: Sequence[Path], past: F64) -> None:
        self._ledger = ledger
        self._inverse = [1.0 / t if t else 0.0 for t in problem.total.tolist()]
        self._top = _Node(1.0)
        self._gangs: dict[int, _Node] = {}
        self._requested = [
            [row.requested.get(name, 0) for name in problem.resources] for row in problem.rows
        ]
        self._open: list[bool] = []
        self.paths: list[list[_Node]] = []
        for path in paths:
            node, line = self._top, []
            for name, weight in path:
                if name not in node.below:
                    node.below[name] = _Node(weight, above=node)
                node = node.below[name]
                line.append(node)
            self.paths.append(line)
        for q in np.flatnonzero(past.any(axis=1)).tolist():
            self.paths[q][-1].past = past[q].tolist()
        for gang, queue in enumerate(problem.queue_of.tolist()):
            if queue >= 0 and any(self._requested[gang]):
                home = self.paths[queue][-1]
                node = _Node(1.0, gang, home)
                home.below[f" {gang}"] = self._gangs[gang] = node

    def mark_stale(self, *gangs: int) -> None:
        """Mark the shares of the given gangs and of their ancestors as stale."""
        for gang in gangs:
            node = self._gangs.get(gang)
            while node is not None:
                node.is_stale = True
                node = node.above

    def _refresh(self, node: _Node) -> None:
        if not node.is_stale:
            return
        node.is_stale = False
        if node.gang >= 0:
            held = self._ledger.gang_used(node.gang)
            node.held = [float(amount) for amount in held]
            # A gang is full if its whole request for some resource is allocated, or if it requests
            # a resource that is exhausted.
            node.is_full = any(
                need and (not is_open or 0 < need <= have)
                for have, need, is_open in zip(
                    held, self._requested[node.gang], self._open, strict=True
                )
            )
        else:
            parts = list(node.below.values())
            for part in parts:
                self._refresh(part)
            # The usage of each child queue that can grow is scaled down to the smallest weighted
            # share among these queues. The parent's usage is the sum over its child queues.
            node.held = list(node.past) or [0.0] * len(self._inverse)
            node.is_full = all(part.is_full for part in parts)
            growing = [p.share / p.weight for p in parts if p.share and not p.is_full]
            least = min(growing, default=1.0)
            for part in parts:
                if part.share:
                    scale = 1.0 if part.is_full else least * part.weight / part.share
                    node.held = [a + scale * b for a, b in zip(node.held, part.held, strict=True)]
        node.share = max(a * i for a, i in zip(node.held, self._inverse, strict=True))

    def key(self, queue: int) -> tuple[float, ...]:
        """Return `is_full` and the weighted share of each tree node on the path to a queue."""
        is_idle = [amount > 0 for amount in self._ledger.idle_total]
        if is_idle != self._open:
            self._open = is_idle
            self.mark_stale(*self._gangs)
        self._refresh(self._top)
        return tuple(
            part for n in self.paths[queue] for part in (float(n.is_full), n.share / n.weight)
        )


@dataclass(eq=False)
class ShareTreeOrder(Greedy):
    """Orders queues by the shares of the tree nodes on their paths from the root."""

    queue_key_reach = KeyReach.ANY

    _problem: Problem
    _ledger: Ledger
    _tree: ShareTree
    _num_evicted: int = field(default=0, init=False)

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """See `Order`."""
        self._mark_after_evictions()
        return self._tree.key(queue)

    def _mark_after_evictions(self) -> None:
        number = sum(self._ledger.gang_evicted)
        if number != self._num_evicted:
            self._num_evicted = number
            self._tree.mark_stale(*range(self._problem.num_gangs))

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """See `NodeState`."""
        self._tree.mark_stale(gang)


@dataclass(eq=False)
class _TreeOrder(ShareTreeOrder, DrfOrder):
    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `Preemption`.

        Even after the eviction, the reclaiming queue must come before the victim's queue in the
        queue order.
        """
        running, ledger = running_tasks(self._problem), self._ledger
        queue, requested = int(self._problem.queue_of[gang]), ledger.request[task_class]
        self._mark_after_evictions()
        chosen = []
        for v in victims.tolist():
            loser, released = int(running.gang_of[v]), running.request[v].tolist()
            ledger.evict(loser, released, 1)
            ledger.evict(gang, requested, -1)
            self._tree.mark_stale(loser, gang)
            if self._tree.key(queue) < self._tree.key(int(running.queue_of[v])):
                chosen.append(v)
            ledger.evict(gang, requested, 1)
            ledger.evict(loser, released, -1)
            self._tree.mark_stale(loser, gang)
        return np.array(chosen, np.int64)


@dataclass(frozen=True)
class OverTime(TreeFairness):
    """Orders queues by recent usage divided by queue weight, smallest first.

    Attributes
    ----------
    half_life_ms
        Half-life of past usage in milliseconds.
    keeps_deserved
        True if the ideal share of a queue is at least its deserved share despite past usage.

    """

    name = "over-time"
    level_name = "fair share over time"

    half_life_ms: int
    keeps_deserved: bool = False

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        past = decayed_usage(problem, self.half_life_ms)
        tree = ShareTree(problem, ledger, _build_parent_paths(problem), past)
        priority = [-float(p) for p in problem.queues.priority.tolist()]
        return _UsageOrder(problem, ledger, tree, priority)

    def find_contest(self, problem: Problem) -> Contest:
        """See `TreeFairness`. The ideal shares include past usage."""
        past, queues = decayed_usage(problem, self.half_life_ms), problem.queues
        floor = queues.guarantee
        if self.keeps_deserved:
            floor = np.maximum(floor, np.minimum(queues.deserved, queues.capability))
        return build_contest(problem, _build_parent_paths(problem), past, floor)


def _build_parent_paths(problem: Problem) -> list[Path]:
    """Return each queue's path of (name, weight) pairs in the tree that `spec.parent` defines.

    The gangs directly in a parent queue belong to an additional child queue with an empty name.
    """
    queues, found = problem.queues, []
    for q, name in enumerate(queues.names):
        line = [q]
        while queues.parent_of[line[-1]] >= 0:
            line.append(int(queues.parent_of[line[-1]]))
        steps = [(queues.names[i], max(float(queues.weight[i]), 1.0)) for i in reversed(line)]
        if name != ROOT_QUEUE and steps[0][0] != ROOT_QUEUE:
            steps.insert(0, (ROOT_QUEUE, 1.0))
        if (queues.parent_of == q).any() or name == ROOT_QUEUE:
            steps.append(("", steps[-1][1]))
        found.append(tuple(steps))
    return found


@dataclass(eq=False)
class _UsageOrder(ShareTreeOrder):
    """Orders queues by priority, then by their shares, which include past usage.

    `_priority` (Q,) contains the negated priorities of queues.
    """

    _priority: Sequence[float]

    def queue_key(self, queue: int) -> tuple[float, ...]:
        return (self._priority[queue], *super().queue_key(queue))


HALF_LIFE = "usage.halfLife"
HALF_LIFE_ARGUMENT = Argument(
    HALF_LIFE,
    Kind.DURATION,
    "",
    "half-life of past usage, which counts toward the shares of queues",
)
FAIR_SHARE = LevelKind(
    "fair-share",
    "how far queues and gangs are below their fair shares",
    50,
    ("proportion", "capacity", "drf"),
)


def read_over_time(
    arguments: Mapping[str, Value], *, keeps_deserved: bool = False
) -> tuple[OverTime, ...]:
    """Return the rule `OverTime`, or no rule if the half-life is not set."""
    half_life_ms = read_duration_ms(arguments, HALF_LIFE)
    if half_life_ms is None:
        return ()
    return (OverTime(half_life_ms, keeps_deserved=keeps_deserved),)


DRF = Plugin(
    "drf",
    "gangs with the smallest dominant share first",
    (HALF_LIFE_ARGUMENT,),
    lambda a: (
        (
            HierarchicalDrf(
                reclaims=bool(a.get(Switch.RECLAIMABLE.value, True)),
                half_life_ms=read_duration_ms(a, HALF_LIFE) or 0,
            ),
        )
        if a.get(Switch.HIERARCHY.value, False)
        else (*read_over_time(a), Drf())
    ),
    levels=(FAIR_SHARE,),
)
