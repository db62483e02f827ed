"""The eviction problem of one gang: its demand, possible victims and constraints, as values.

Equal victims on one node are one group: single tasks of equal queue, priority, request and cost,
or equal tasks of one gang. Groups are axis K; gangs of victims that must keep a minimum or end
as a whole are axis J.
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
        (N, R) future idle of nodes.
    used
        (Q, R) what each queue's own gangs hold, nominations included.
    firm
        (Q, R) the part of `used` that is certain: tasks that keep running, and gangs for which
        tasks are evicted. All other tasks are placed again afterwards, perhaps fewer of them.
    evicted
        (V,) tasks that are evicted.
    spent
        Evictions that each disruption budget has paid for, in the snapshot's order.
    came
        Decided placements: (task class, node, tasks), parallel (m,) each.
    entitled
        By (queue, resource), the most that queues which reclaim may hold with all below them.
    preemptors
        Gangs for which tasks leave.

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
        (K,) nodes and gangs of groups, the cost of losing a task, its requests, and how many tasks
        there are.
    gang
        (K,) on axis J, -1 for tasks that may leave one by one.
    role, part
        (K,) number of the role in its gang, and of the smaller group in `Whole.parts`, -1 for none.
    reclaimed, returned_last
        (K,) whether they are another queue's, and one that does not give back before others.
    queue_priority
        (K,) of the queue that they are reclaimed from, from 0 upwards; 0 for the gang's own.
    request
        (K, R) what one of them holds.

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
        """Return (N, R) idle once (K,) victims of each group have left."""
        later = idle.copy()
        np.add.at(later, self.node, counts[:, None] * self.request)
        return later


@dataclass(frozen=True, slots=True)
class VictimSubGroup:
    """A smaller group of a gang of victims that keeps its size or leaves as a whole.

    Attributes
    ----------
    policy
        The one that makes the group, by its place in the gang's.
    held, surplus
        Tasks that run, and how many of them it can do without.

    """

    policy: int
    held: int
    surplus: int
    may_end: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A gang of victims that keeps its minimum or leaves as a whole.

    Attributes
    ----------
    held, surplus
        Tasks that run, and how many of them it can do without.
    by_role
        (role number, held, surplus) where a role has a minimum.
    may_end
        Whether all its tasks may be evicted.
    parts, spare_parts
        Its smaller groups, and (policy, how many groups more there are than have to be).

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
    """Σ weight · evicted over groups, and the gang's use of a resource, are at most so much.

    Attributes
    ----------
    resource
        -1 where what the gang takes does not count.
    claimed
        Groups of which one has to be reclaimed before it binds; None where it always does.

    """

    groups: I64
    weights: I64
    most: int
    resource: int = -1
    claimed: I64 | None = None


@dataclass(frozen=True, slots=True)
class Lending:
    """A queue gives back only while it holds more than is due to it of something asked for.

    Tasks that hold nothing of what it is due are not kept.

    Attributes
    ----------
    queue, due
        The lender or one above it, and (resource, amount) that it keeps.
    groups
        Victims of the lender that this is about, at least one.
    options
        (resource, size, all groups below, most): with a last victim that holds `size` of the
        resource, everything evicted below the queue may hold `most`.

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
        (m,) parallel: tasks of a class on a node.
    problem
        The problem after the evictions decided so far.
    domain_of
        (N,) numbers that differ where nodes lie in different domains of pod affinity terms.

    """

    task_class: I64
    node: I64
    number: I64
    problem: Problem
    domain_of: I64


class BlockedNodes(NamedTuple):
    """Entries that start on some nodes (m,) only once all of some groups have left."""

    entries: I64
    nodes: I64
    groups: I64


@dataclass(frozen=True, eq=False)
class GuaranteeReserve:
    """The claims of queues to one resource, for guarantees or for requests.

    Attributes
    ----------
    floor, used, parent_of
        (Q,) guarantee, use, and the queue above, -1 at the top.
    pool
        The most of all claims of the top together, unless the gang adds nothing to them.
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
        Gangs of victims that keep their minimum or end.
    limits
        Bounds of queues, claims and disruption budgets.
    lendings
        What each lender has to return.
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
        Its number on axis G.
    task_class, most, role
        (E,) its entries: class, tasks, and the number of the role in `roles`.
    need, need_role
        Tasks that must start together, in all and by role; zero once it runs.
    most_in_all
        Tasks that victims may be evicted for.
    request
        (E, R) what a task asks for.
    allowed
        (E, N) nodes that an entry may use.
    room
        (N, R) future idle of nodes without evictions.
    is_tied
        (E,) entries whose placements depend on other tasks of the node.
    second
        (N,) nodes to use only if no other node is as good.

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
    """(Q,) the larger of each queue's guarantee and of what it and its descendants need."""
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
