"""Sharding: the scheduler uses only the nodes of its own shard, or prefers them.

Mathematics: models/formulation/shards.md. Volcano: the modes of `--scheduler-sharding-mode` in
`pkg/scheduler/actions` and `pkg/scheduler/cache/shard_coordinator.go`. Volcano ranks the nodes of
other shards after those of the scheduler's shard, regardless of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.cluster.node_parts import ShardMode
from optsched.plugins.extension_points import Rule, Violation
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

FAR_ABOVE = 1e9
"""A score above the sum of all other scores, whose fractional digits it does not round away."""


class Shards(Rule):
    """Rule: hard mode uses only nodes of the scheduler's shard, and soft mode prefers them."""

    name = "shards"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        sharding = world.snapshot.sharding
        for task, _, node in world.placements:
            if sharding.excludes(node.name):
                detail = f"node {node.name} is not in shard {sharding.name}"
                yield Violation(self.name, f"task {task.key}", detail)

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        sharding = world.snapshot.sharding
        for eviction in world.evictions:
            if sharding.excludes(eviction.node):
                detail = f"evicted from {eviction.node}, which is not in shard {sharding.name}"
                yield Violation(self.name, f"task {eviction.task}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        is_hard = problem.snapshot.sharding.mode is ShardMode.HARD
        return problem.derived(_find_own_nodes) if is_hard else None

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The phrase contains the name of the scheduler's shard."""
        return f"did not belong to shard {problem.snapshot.sharding.name}"

    def spares(self, problem: Problem) -> Bool | None:
        """See `Rule`. Tasks on nodes of other shards are never evicted."""
        own = self.mask(problem, -1)
        return None if own is None else ~own[running_tasks(problem).node_of]

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. Nodes of the scheduler's shard outrank all other nodes."""
        own = preferred_nodes(problem)
        return None if own is None else np.where(own, FAR_ABOVE, 0.0)

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """See `Rule`."""
        has_any = preferred_nodes(problem) is not None and problem.num_tasks > 0
        return (OutsideShard(),) if has_any else ()


@dataclass(frozen=True)
class OutsideShard:
    """A level that minimises the number of tasks on nodes of other shards."""

    name: str = "outside the shard"
    unit: str = "tasks"
    sense: Sense = Sense.MIN

    def node_values(self, problem: Problem) -> I64:
        """See `NodeLevel`."""
        own = preferred_nodes(problem)
        away = np.zeros(problem.num_nodes, np.int64) if own is None else (~own).astype(np.int64)
        return np.tile(away, (len(problem.classes.shapes), 1))

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        own = preferred_nodes(outcome.problem)
        return 0 if own is None else int((~own[outcome.node_of_coming[outcome.assigned]]).sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`."""
        return 0


def preferred_nodes(problem: Problem) -> Bool | None:
    """Return the mask (N,) of the shard's nodes in soft mode, or None in other modes."""
    is_soft = problem.snapshot.sharding.mode is ShardMode.SOFT
    return problem.derived(_find_own_nodes) if is_soft else None


def _find_own_nodes(problem: Problem) -> Bool | None:
    """Return the mask (N,) of nodes in the scheduler's shard, or None without sharding."""
    names = problem.snapshot.sharding.nodes
    if names is None:
        return None
    return np.array([node.name in names for node in problem.snapshot.nodes], np.bool_)
