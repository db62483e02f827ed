"""The eviction problem of one gang: the gang's demand, the possible victims and the constraints.

Interchangeable victims on one node form a group (axis K). The tasks of a group are either equal
tasks of one gang, or the only running tasks of several gangs with equal queue, priority, request
and cost. Victim gangs with several running tasks (axis J) must keep their minimum or be evicted
entirely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.problem.arrays import frozen
from optsched.problem.running import running_tasks
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


@dataclass(eq=False)
class EvictionState:
    """The cluster after the evictions and placements for all earlier gangs.

    Attributes
    ----------
    future_idle
        (N, R) future idle capacity of nodes.
    used
        (Q, R) amounts that the gangs of each queue hold, including nominations but without child
        queues.
    firm
        (Q, R) the part of `used` that is certain: running tasks that are not evicted, and tasks
        placed for gangs that evict. After the evictions, the session places all other pending gangs
        again, possibly with fewer tasks.
    spent
        Number of evicted tasks that each disruption budget protects, in the order of the snapshot.
    came
        Earlier placements as parallel arrays (m,): task class, node, number of tasks.
    entitled
        Maps (queue, resource) to the amount that a reclaiming queue and its descendants may hold.
    preemptors
        Gangs for which tasks are evicted.

    """

    future_idle: I64
    used: I64
    firm: I64
    evicted: Bool
    spent: I64
    came: list[tuple[I64, I64, I64]] = field(default_factory=list)
    entitled: dict[tuple[int, int], int] = field(default_factory=dict)
    preemptors: set[int] = field(default_factory=set)

    @classmethod
    def without_evictions(cls, problem: Problem) -> EvictionState:
        """Return the state before any eviction or placement."""
        return cls(
            future_idle=problem.allocatable - problem.used + problem.releasing,
            used=problem.queues.allocated.copy(),
            firm=problem.queues.allocated.copy(),
            evicted=np.zeros(len(running_tasks(problem)), np.bool_),
            spent=np.zeros(len(problem.snapshot.budgets), np.int64),
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of interchangeable victims on one node (axis K).

    Attributes
    ----------
    of_task, tasks
        (V',) group of each candidate victim, and its index among the running tasks (axis V).
    node, queue, priority, lost, size, count
        (K,) node, queue and priority of each group, lost work and dominant share of one task, and
        number of tasks.
    gang
        (K,) index (axis J) of each group's gang, or -1 for gangs with a single running task.
    role, part
        (K,) number of each group's role in its gang, and index of its subgroup in
        `VictimGang.parts` or -1.
    reclaimed, returned_last
        (K,) mask of the groups in lending queues, and mask of the groups in lending queues that
        give back capacity only after other queues.
    queue_priority
        (K,) priority of each group's lending queue minus the lowest queue priority; 0 for groups in
        the preempting gang's own queue.
    request
        (K, R) request of one task of each group.

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
        """Return the idle capacity (N, R) once `counts` (K,) victims of each group terminate."""
        later = idle.copy()
        np.add.at(later, self.node, counts[:, None] * self.request)
        return later


@dataclass(frozen=True, slots=True)
class VictimSubGroup:
    """A subgroup of a victim gang; the subgroup keeps its size or is evicted entirely.

    Attributes
    ----------
    policy
        Index of the subgroup's policy among the gang's subgroup policies.
    held, surplus
        Number of the subgroup's running tasks, and how many of them exceed its size.
    may_end
        Whether all running tasks of the subgroup may be evicted.
    core
        Number of tasks that the subgroup can lose only together, after its surplus tasks.

    """

    policy: int
    held: int
    surplus: int
    may_end: bool
    core: int = 1


@dataclass(frozen=True, slots=True)
class VictimGang:
    """A victim gang, which keeps its minimum or is evicted entirely.

    Attributes
    ----------
    held, surplus
        Number of the gang's running tasks, and how many of them exceed its minimum.
    by_role
        For each role that has a minimum: role number, number of running tasks, and surplus.
    may_end
        Whether all running tasks of the gang may be evicted.
    parts, spare_parts
        The gang's subgroups, and (policy, number of subgroups beyond the policy's minimum) pairs.
    core
        Number of tasks that the gang can lose only together, after its surplus tasks.

    """

    gang: int
    held: int
    surplus: int
    by_role: tuple[tuple[int, int, int], ...]
    may_end: bool
    parts: tuple[VictimSubGroup, ...] = ()
    spare_parts: tuple[tuple[int, int], ...] = ()
    core: int = 1


@dataclass(frozen=True, slots=True)
class Limit:
    """The constraint Σ weight · evicted + Σ request · placed ≤ `most`.

    Σ weight · evicted is a sum over victim groups. Σ request · placed is the amount of `resource`
    that the placed tasks of the gang request.

    Attributes
    ----------
    resource
        Index of the resource, or -1 if the constraint has no term for the gang's placed tasks.
    claimed
        Victim groups. The constraint is active only if a task of these groups is evicted; None if
        it is always active.

    """

    groups: I64
    weights: I64
    most: int
    resource: int = -1
    claimed: I64 | None = None


class LendingOption(NamedTuple):
    """One way to satisfy a `Lending`: a queue holds enough of a resource until its last eviction.

    The last unit evicted is a task, or the tasks that a gang or subgroup loses together. Before
    this last eviction, the queue must hold more of the resource than the amount that it must keep.

    Attributes
    ----------
    resource, size
        The resource, and the amount of the resource that the last unit holds.
    below, most
        Victim groups of the queue and its descendants, and the maximum amount of the resource that
        their victims may hold.
    members, need
        Victim groups that may form the last unit, and the minimum number of victims in these
        groups.

    """

    resource: int
    size: int
    below: I64
    most: int
    members: I64
    need: int = 1


@dataclass(frozen=True, slots=True)
class Lending:
    """The constraint that a lending queue loses tasks only while it holds excess resources.

    For some requested resource, the queue must hold more than the amount that it must keep. Tasks
    are not protected if they hold no resource of which the lender deserves a share.

    Attributes
    ----------
    queue, due
        The lending queue or an ancestor, and the (resource, amount) pairs that this queue keeps.
    groups
        Indices of the lender's victim groups (at least one) that are protected.
    options
        Conditions, of which at least one must hold if a protected task is evicted.

    """

    queue: int
    due: tuple[tuple[int, int], ...]
    groups: I64
    options: tuple[LendingOption, ...]


class OtherPlacements(NamedTuple):
    """Placements of other gangs, on which the placements of tied tasks depend.

    Attributes
    ----------
    task_class, node, number
        (m,) task class, node, and number of tasks of the class on the node, as parallel arrays.
    problem
        The problem after the evictions for earlier gangs.
    domain_of
        (N,) a number for each node. Nodes in different domains of an affinity term have different
        numbers.

    """

    task_class: I64
    node: I64
    number: I64
    problem: Problem
    domain_of: I64


class BlockedNodes(NamedTuple):
    """Nodes (m,) that tasks of `entries` can use only once all tasks of `groups` are evicted."""

    entries: I64
    nodes: I64
    groups: I64


@dataclass(frozen=True, eq=False)
class GuaranteeReserve:
    """The guarantees of queues for one resource, which limit how much other queues may use.

    Attributes
    ----------
    floor, used, parent_of
        (Q,) guarantee, used amount and parent of each queue; top-level queues have parent -1.
    pool
        Maximum sum of the top-level queues' `claims`. A gang that does not increase the sum of
        claims may start even if the sum exceeds `pool`.

    """

    resource: int
    floor: I64
    used: I64
    parent_of: I64
    pool: int
    queue: int


@dataclass(frozen=True, eq=False)
class EvictionConstraints:
    """All limits on evictions and placements except node capacity.

    Attributes
    ----------
    wholes
        Victim gangs that must keep their minimum or be evicted entirely.
    lendings
        Limits on the amounts that each lending queue gives back.
    blocked
        Nodes that entries can use only once certain victim groups are evicted.
    others
        Placements of other gangs, or None if no placement depends on other tasks of the node.

    """

    wholes: tuple[VictimGang, ...]
    limits: tuple[Limit, ...]
    lendings: tuple[Lending, ...]
    reserves: tuple[GuaranteeReserve, ...]
    blocked: tuple[BlockedNodes, ...]
    others: OtherPlacements | None = None


@dataclass(frozen=True, eq=False)
class EvictionProblem:
    """The demand of a gang, and the victims that may be evicted for the gang.

    Attributes
    ----------
    task_class, most, role
        (E,) task class, maximum number of tasks to place, and role number of each entry, which is a
        group of equal pending tasks.
    need, need_role
        Number of tasks that must start together, in total and by role; `need` is 0 if the gang
        already has its minimum.
    most_in_all
        Maximum number of tasks for which victims may be evicted.
    request
        (E, R) request of one task of each entry.
    allowed
        (E, N) mask of the nodes that each entry may use.
    future_idle
        (N, R) future idle capacity of the nodes without evictions.
    is_tied
        (E,) mask of the entries whose placements depend on other tasks of the node.
    second
        (N,) mask of the nodes outside the preferred shard, which are used only if no solution of
        equal cost uses preferred nodes.

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
    future_idle: I64
    second: Bool
    groups: Groups
    is_tied: Bool
    constraints: EvictionConstraints


def claims(reserve: GuaranteeReserve, used: I64) -> I64:
    """Return the claim (Q,) of each queue: the larger of its guarantee and its requirement.

    The requirement of a queue is its own usage plus the claims of its child queues.
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


# --- explanation ----------------------------------------------------------------------------------


def explain_shortage(problem: Problem, eviction: EvictionProblem) -> Reason | None:
    """Return a reason that names a resource of which lending queues cannot return enough.

    Returns None if lending queues can return enough of every resource.
    """
    for r in np.flatnonzero(eviction.request.any(axis=0)).tolist():
        name = problem.resources[r]
        amounts = np.sort(np.repeat(eviction.request[:, r], eviction.most))
        requested = int(amounts[: max(eviction.need, 1)].sum())
        free = int(eviction.future_idle[eviction.allowed.any(axis=0), r].sum())
        lent = list(_find_lenders(problem, eviction, r))
        own = ~eviction.groups.reclaimed
        preempted = int((eviction.groups.count * eviction.groups.request[:, r])[own].sum())
        if lent and free + preempted + sum(most for _, most in lent) < requested:
            givers = ", ".join(
                f"queue {problem.queues.names[q]} may return up to {amount_text(name, most)}"
                f"{_describe_lender(problem, eviction, q, r)}"
                for q, most in lent
            )
            return Reason(
                ReasonCode.DESERVED,
                f"{amount_text(name, requested)} are requested, {amount_text(name, free)} "
                f"will be idle, {givers}",
            )
    return None


def _find_lenders(
    problem: Problem, eviction: EvictionProblem, resource: int
) -> Iterator[tuple[int, int]]:
    """Yield each lending queue, and the largest amount of a resource that the queue can return."""
    groups = eviction.groups
    held = groups.count * groups.request[:, resource]
    for queue in np.unique(groups.queue[groups.reclaimed]).tolist():
        most = int(held[groups.reclaimed & (groups.queue == queue)].sum())
        for lending in eviction.constraints.lendings:
            if int(groups.queue[lending.groups[0]]) == queue:
                found = [
                    option.most if option.need > 1 else option.most // option.size * option.size
                    for option in lending.options
                    if option.resource == resource
                ]
                if found and len(found) == len(lending.options):
                    most = min(most, max(0, *found))
        yield queue, most


def _describe_lender(problem: Problem, eviction: EvictionProblem, queue: int, resource: int) -> str:
    """Return a text with the amounts that a lending queue holds and deserves; "" if unknown."""
    for lending in eviction.constraints.lendings:
        due = dict(lending.due).get(resource)
        if int(eviction.groups.queue[lending.groups[0]]) == queue and due is not None:
            below = problem.queues.subtree[lending.queue]
            held = int(problem.queues.allocated[below, resource].sum())
            name = problem.resources[resource]
            owner = problem.queues.names[lending.queue]
            return f" ({owner} holds {amount_text(name, held)}, deserves {amount_text(name, due)})"
    return ""
