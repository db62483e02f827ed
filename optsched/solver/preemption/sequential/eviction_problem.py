"""The data of the eviction problem of one gang: demand, possible victims and constraints.

Equal victims on one node form a group: single tasks of equal queue, priority, request and cost, or
equal tasks of one gang. Groups are axis K. Victim gangs that must keep a minimum or leave as a
whole are axis J.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


@dataclass(eq=False)
class EvictionState:
    """The cluster after the decisions so far.

    Attributes
    ----------
    room
        (N, R) future idle capacity of nodes.
    used
        (Q, R) amounts that each queue's own gangs hold, including nominations.
    firm
        (Q, R) the part of `used` that is certain: tasks that keep running, and gangs for which
        tasks are evicted. All other tasks are placed again afterwards, perhaps fewer of them.
    evicted
        (V,) evicted tasks.
    spent
        Number of evictions counted against each disruption budget, in the snapshot's order.
    came
        Decided placements as parallel arrays (m,): task class, node, number of tasks.
    entitled
        By (queue, resource), the most that a queue which reclaims may hold with its descendants.
    preemptors
        Gangs for which tasks are evicted.

    """

    room: I64
    used: I64
    firm: I64
    evicted: Bool
    spent: I64
    came: list[tuple[I64, I64, I64]] = field(default_factory=list)
    entitled: dict[tuple[int, int], int] = field(default_factory=dict)
    preemptors: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Groups:
    """Axis K: groups of equal victims.

    Attributes
    ----------
    of_task, tasks
        (V',) group and index on axis V of each candidate.
    node, queue, priority, lost, size, count
        (K,) node, queue and priority of a group, the lost work and the dominant share of one task,
        and the number of tasks.
    gang
        (K,) gang of the group on axis J, -1 for tasks that may leave one by one.
    role, part
        (K,) number of the role in its gang, and of the subgroup in `Whole.parts`, -1 for none.
    reclaimed, returned_last
        (K,) whether the tasks belong to another queue, and to one that returns after other queues.
    queue_priority
        (K,) priority of the lender above the lowest queue priority; 0 for the gang's own queue.
    request
        (K, R) request of one task.

    """

    of_task: I64
    tasks: I64
    node: I64
    queue: I64
    priority: I64
    lost: I64
    size: I64
    count: I64
    gang: I64
    role: I64
    part: I64
    reclaimed: Bool
    returned_last: Bool
    queue_priority: I64
    request: I64

    def __post_init__(self) -> None:
        frozen(*vars(self).values())

    def __len__(self) -> int:
        return len(self.node)

    def release_capacity(self, idle: I64, counts: I64) -> I64:
        """Return the idle capacity (N, R) once `counts` (K,) victims of each group have left."""
        later = idle.copy()
        np.add.at(later, self.node, counts[:, None] * self.request)
        return later


@dataclass(frozen=True, slots=True)
class VictimSubGroup:
    """A subgroup of a victim gang that keeps its size or leaves as a whole.

    Attributes
    ----------
    policy
        Position of the subgroup's policy among those of the gang.
    held, surplus
        Number of running tasks, and how many of them exceed the size.

    """

    policy: int
    held: int
    surplus: int
    may_end: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A victim gang that keeps its minimum or leaves as a whole.

    Attributes
    ----------
    held, surplus
        Number of running tasks, and how many of them exceed the minimum.
    by_role
        (role number, held, surplus) of each role that has a minimum.
    may_end
        Whether all its tasks may be evicted.
    parts, spare_parts
        Its subgroups, and (policy, number of subgroups beyond the minimum).

    """

    gang: int
    held: int
    surplus: int
    by_role: tuple[tuple[int, int, int], ...]
    may_end: bool
    parts: tuple[VictimSubGroup, ...] = ()
    spare_parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """The constraint Σ weight · evicted over groups + the gang's use of a resource ≤ most.

    Attributes
    ----------
    resource
        The resource; -1 if the gang's use does not count.
    claimed
        The constraint binds once a task of these groups is reclaimed; None if it always binds.

    """

    groups: I64
    weights: I64
    most: int
    resource: int = -1
    claimed: I64 | None = None


@dataclass(frozen=True, slots=True)
class Lending:
    """A lender returns tasks only while it holds more of some requested resource than it keeps.

    Tasks that hold no resource of its deserved share are not protected.

    Attributes
    ----------
    queue, due
        The lender or an ancestor, and (resource, amount) that it keeps.
    groups
        The victims of the lender that the constraint protects, at least one group.
    options
        (resource, size, groups below the queue, most): if the last victim holds `size` of the
        resource, all tasks evicted below the queue may hold `most`.

    """

    queue: int
    due: tuple[tuple[int, int], ...]
    groups: I64
    options: tuple[tuple[int, int, I64, int], ...]


class OtherPlacements(NamedTuple):
    """Placements of other gangs in this session that tied tasks depend on.

    Attributes
    ----------
    task_class, node, number
        Parallel arrays (m,): number of tasks of a class on a node.
    problem
        The problem after the evictions decided so far.
    domain_of
        (N,) numbers that differ between nodes in different domains of pod affinity terms.

    """

    task_class: I64
    node: I64
    number: I64
    problem: Problem
    domain_of: I64


class BlockedNodes(NamedTuple):
    """Entries that can use some nodes (m,) only once all tasks of some groups have left."""

    entries: I64
    nodes: I64
    groups: I64


@dataclass(frozen=True, eq=False)
class GuaranteeReserve:
    """The claims of queues to one resource, from their guarantees or their use.

    Attributes
    ----------
    floor, used, parent_of
        (Q,) guarantee, use, and parent queue, -1 for top queues.
    pool
        The most that the claims of all top queues may sum to, unless the gang adds nothing to them.
    queue
        The queue of the gang.

    """

    resource: int
    floor: I64
    used: I64
    parent_of: I64
    pool: int
    queue: int


@dataclass(frozen=True, eq=False)
class EvictionConstraints:
    """Limits of evictions and placements, in addition to the capacity of nodes.

    Attributes
    ----------
    wholes
        Victim gangs that keep their minimum or leave as a whole.
    limits
        Limits of queues, claims and disruption budgets.
    lendings
        Limits on what each lender returns.
    reserves
        The claims of queues for their guarantees.
    blocked
        Nodes that an entry can use only once some groups have been evicted.
    others
        Placements of other gangs, if tasks depend on what else runs on their node; else None.

    """

    wholes: tuple[Whole, ...]
    limits: tuple[Limit, ...]
    lendings: tuple[Lending, ...]
    reserves: tuple[GuaranteeReserve, ...]
    blocked: tuple[BlockedNodes, ...]
    others: OtherPlacements | None = None


@dataclass(frozen=True, eq=False)
class EvictionProblem:
    """The demand of a gang and the victims that may be evicted for it.

    Attributes
    ----------
    gang
        Number of the gang on axis G.
    task_class, most, role
        (E,) task class, number of tasks, and role number of each entry.
    need, need_role
        Tasks that must start together, in total and by role; zero once the gang runs.
    most_in_all
        The most tasks for which victims may be evicted.
    request
        (E, R) request of a task.
    allowed
        (E, N) nodes that an entry may use.
    room
        (N, R) future idle capacity of nodes without evictions.
    is_tied
        (E,) entries whose placements depend on other tasks of the node.
    second
        (N,) nodes outside of the preferred shard, to use only if no other node is as good.

    """

    gang: int
    is_started: bool
    task_class: I64
    most: I64
    role: I64
    need: int
    need_role: tuple[tuple[int, int], ...]
    most_in_all: int
    request: I64
    allowed: Bool
    room: I64
    second: Bool
    groups: Groups
    is_tied: Bool
    constraints: EvictionConstraints


def claims(reserve: GuaranteeReserve, used: I64) -> I64:
    """Return the claim (Q,) of each queue: its guarantee, or its need if that is larger.

    The need of a queue is its use and the claims of its child queues.
    """
    need = used.copy()
    claim = np.zeros_like(used)
    depth = np.zeros(len(used), np.int64)
    at = reserve.parent_of.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, reserve.parent_of[at], -1)
    for q in np.argsort(-depth, kind="stable").tolist():
        claim[q] = max(reserve.floor[q], need[q])
        if reserve.parent_of[q] >= 0:
            need[reserve.parent_of[q]] += claim[q]
    return claim
