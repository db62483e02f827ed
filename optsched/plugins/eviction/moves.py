"""Tasks that plugins propose to move: the input of the action `shuffle`.

Mathematics: models/formulation/moves.md. Volcano: `pkg/scheduler/actions/shuffle`, `VictimTasks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optsched.plugins.eviction.gang_losses import lacks_role
from optsched.plugins.extension_points import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from optsched.cluster.decisions import Evict
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

SHUFFLE = "shuffle"


@dataclass(frozen=True, eq=False, slots=True)
class Relief:
    """Nodes with excess load, and nodes that can take it; axis K of amounts.

    Attributes
    ----------
    excess
        (N, K) use above a target; at most 0 for none.
    space
        (N, K) what a node may take.
    is_open
        (N,) nodes to which tasks may be moved.
    uses
        (V, K) the assumed use of a running task.
    fits
        Whether each task needs a node that fits it; otherwise the space is pooled.

    """

    excess: I64
    space: I64
    is_open: Bool
    uses: I64
    fits: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Moves:
    """The tasks that one plugin proposes to move.

    Attributes
    ----------
    tasks
        (m,) running tasks, see `problem.running`, in order of eviction.
    reasons
        The reason by node.
    period_ms
        The shortest time between two evictions.
    most
        Most tasks of a gang that may be missing together; other gangs are not limited.
    whole
        Gangs that may leave as a whole if they cannot spare single tasks.
    relief
        The excess that ends the moves; None to move all tasks.

    """

    tasks: I64
    reasons: Mapping[int, str]
    period_ms: int
    most: Mapping[int, int] = field(default_factory=dict)
    whole: Collection[int] = ()
    relief: Relief | None = None


@runtime_checkable
class Mover(Protocol):
    """A rule that moves running tasks off their nodes in the action `shuffle`."""

    def find_moves(self, problem: Problem) -> Moves | None:
        """Running tasks that should not stay on their nodes; None when there are none."""


def is_due(snapshot: Snapshot, plugin: str, period_ms: int) -> bool:
    """Return whether the period of a plugin has passed."""
    last = snapshot.last_shuffle_ms.get(plugin)
    return last is None or snapshot.taken_ms - last >= period_ms


def early(world: World, rule: str, period_ms: int) -> Iterator[Violation]:
    """Yield a violation if a plugin evicts before its period has passed."""
    if moved_by(world, rule) and not is_due(world.snapshot, rule, period_ms):
        yield Violation(rule, SHUFFLE, f"pods were evicted less than {period_ms} ms ago")


def moved_by(world: World, plugin: str) -> list[Evict]:
    """Return the evictions of a plugin in a plan."""
    return [e for e in world.evictions if e.action == SHUFFLE and e.plugin == plugin]


def left_broken(gang: Gang, evicted: Collection[str]) -> str:
    """Return what a gang lacks without some tasks; empty if it is complete or has ended."""
    held = [t for t in gang.tasks if t.status.counts_as_ready]
    left = [t for t in held if t.key not in evicted]
    if len(left) == len(held) or not any(t.status.holds_resources for t in left):
        return ""
    if len(left) < gang.min_member or lacks_role(gang, left):
        return f"{len(left)} tasks would be left, minMember is {gang.min_member}"
    return ""
