"""The queue tree as arrays, with the limits and the demand of each queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import NO_GROUPS, ROOT_QUEUE, QueueState
from optsched.problem.arrays import LARGEST, UNLIMITED, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Queue
    from optsched.problem.arrays import I64, Bool


NEVER_MS = np.int64(2**62)
"""A time later than any other time."""


@dataclass(frozen=True, eq=False)
class QueueTree:
    """The queue tree as arrays; axis Q is sorted by queue name.

    Attributes
    ----------
    parent_of
        (Q,) index of the parent queue, or -1 if the parent does not exist.
    subtree
        (Q, Q) whether queue j is queue i or one of its descendants, at element [i, j].

    """

    names: tuple[str, ...]
    parent_of: I64
    subtree: Bool
    weight: I64
    priority: I64
    created_ms: I64

    @cached_property
    def _tiers(self) -> list[I64]:
        """The indices of the queues that have a parent, grouped by depth, deepest first."""
        depth = self.subtree.sum(axis=0)
        tiers = [np.flatnonzero(depth == d) for d in range(int(depth.max(initial=0)), 1, -1)]
        return [tier[self.parent_of[tier] >= 0] for tier in tiers]

    def summed_up(self, amounts: I64) -> I64:
        """Return `amounts` (Q, R), summed over each queue and its descendants."""
        total = amounts.copy()
        for tier in self._tiers:
            np.add.at(total, self.parent_of[tier], total[tier])
        return total

    @property
    def is_flat(self) -> bool:
        """Whether no queue other than root has child queues."""
        below = self.parent_of[self.parent_of >= 0]
        return all(self.names[i] == ROOT_QUEUE for i in below.tolist())


@dataclass(frozen=True, eq=False)
class QueueArrays(QueueTree):
    """The queue tree with the limits and amounts of each queue.

    Attributes
    ----------
    capability
        (Q, R) hard limit on the usage of a queue and its descendants; UNLIMITED if not set.
    deserved
        (Q, R) deserved amount; 0 if not set.
    guarantee
        (Q, R) guaranteed amount; 0 if not set.
    allocated, claimed, requested
        (Q, R) amounts of each queue without its descendants. `allocated` sums the requests of bound
        and running tasks. `claimed` is `allocated` plus the requests of this session's victims.
        `requested` is `claimed` plus the requests of pending tasks of valid gangs in open queues.
    gained
        (Q, R) the part of `allocated` that placed and nominated tasks of decided gangs hold.
    oldest_ms
        (Q,) creation time of the oldest gang with pending tasks directly in the queue, or NEVER_MS.
    has_gangs
        (Q,) whether any gang directly in the queue uses or requests resources.
    closed
        Why no task of a queue may be placed, keyed by queue index; open queues have no key.

    """

    capability: I64
    deserved: I64
    guarantee: I64
    allocated: I64
    claimed: I64
    requested: I64
    gained: I64
    oldest_ms: I64
    has_gangs: Bool
    closed: Mapping[int, Reason]

    def __post_init__(self) -> None:
        frozen(*vars(self).values())


def narrowing_queues(queues: Sequence[Queue]) -> frozenset[str]:
    """Return the queues that restrict tasks to certain nodes, directly or through an ancestor."""
    by_name = {q.name: q for q in queues}
    narrow = {q.name for q in queues if q.node_groups != NO_GROUPS}
    if not narrow:
        return frozenset()
    found = set[str]()
    for start in by_name:
        line, name = set[str](), start
        while name in by_name and name not in line:
            line.add(name)
            name = by_name[name].parent
        if narrow & line:
            found.add(start)
    return frozenset(found)


@dataclass(frozen=True, eq=False)
class Demand:
    """The allocated, claimed and requested amounts of each queue, defined as in `QueueArrays`.

    The amounts of a closed queue are computed as if the queue were open.
    """

    allocated: I64
    claimed: I64
    requested: I64
    oldest_ms: I64
    has_gangs: Bool


def queue_arrays(queues: Sequence[Queue], resources: Sequence[str], demand: Demand) -> QueueArrays:
    """Return the queues, which are sorted by name, with their demand as arrays."""
    parent_of, cyclic = _parents(queues)
    closed = _closed(queues, parent_of, cyclic)
    weights = [(q.weight, q.priority, q.created_ms) for q in queues]
    weight, priority, created = np.array(weights, np.int64).reshape(-1, 3).T
    capability = [_vector(q.capability or (), resources, int(UNLIMITED)) for q in queues]
    deserved = [_vector(q.deserved, resources, 0) for q in queues]
    guarantee = [_vector(q.guarantee, resources, 0) for q in queues]
    shape = (len(queues), len(resources))
    arrays = QueueArrays(
        names=tuple(q.name for q in queues),
        parent_of=parent_of,
        subtree=_subtrees(parent_of),
        weight=weight.copy(),
        priority=priority.copy(),
        created_ms=created.copy(),
        capability=np.array(capability, np.int64).reshape(shape),
        deserved=np.array(deserved, np.int64).reshape(shape),
        guarantee=np.array(guarantee, np.int64).reshape(shape),
        allocated=demand.allocated,
        claimed=demand.claimed,
        requested=demand.requested,
        gained=np.zeros(shape, np.int64),
        oldest_ms=demand.oldest_ms,
        has_gangs=demand.has_gangs,
        closed=closed,
    )
    return with_demand(arrays, demand)


def with_demand(arrays: QueueArrays, demand: Demand) -> QueueArrays:
    """Return arrays of the same queues with the amounts of `demand`; `gained` is 0."""
    shut = np.zeros(len(arrays.names), np.bool_)
    shut[list(arrays.closed)] = True
    return replace(
        arrays,
        allocated=demand.allocated,
        claimed=demand.claimed,
        requested=np.where(shut[:, None], demand.claimed, demand.requested),
        gained=np.zeros_like(demand.allocated),
        oldest_ms=np.where(shut, NEVER_MS, demand.oldest_ms),
        has_gangs=demand.has_gangs & (~shut | demand.claimed.any(axis=1)),
    )


def _vector(have: Amounts, resources: Sequence[str], missing: int) -> list[int]:
    by_name = {r: min(amount, int(LARGEST)) for r, amount in have}
    return [by_name.get(r, missing) for r in resources]


def _parents(queues: Sequence[Queue]) -> tuple[I64, frozenset[int]]:
    """Return each queue's parent index (Q,), and the queues on cycles, which have parent -1."""
    index = {q.name: i for i, q in enumerate(queues)}
    parent = [-1 if q.name == ROOT_QUEUE else index.get(q.parent, -1) for q in queues]
    cyclic = set[int]()
    for start in range(len(queues)):
        seen, at = set[int](), parent[start]
        while at >= 0 and at != start and at not in seen:
            seen.add(at)
            at = parent[at]
        if at == start:
            cyclic.add(start)
    cut = [-1 if i in cyclic else p for i, p in enumerate(parent)]
    return np.array(cut, np.int64), frozenset(cyclic)


def _subtrees(parent_of: I64) -> Bool:
    below = np.eye(len(parent_of), dtype=np.bool_)
    at = parent_of.copy()
    rows = np.arange(len(parent_of))
    while (at >= 0).any():
        below[at[at >= 0], rows[at >= 0]] = True
        at = np.where(at >= 0, parent_of[at], -1)
    return below


def _closed(
    queues: Sequence[Queue], parent_of: I64, cyclic: frozenset[int]
) -> Mapping[int, Reason]:
    """Return why queues are closed, directly or through an ancestor, keyed by queue index."""
    names = {q.name for q in queues} | {ROOT_QUEUE, ""}
    own = {
        i: reason
        for i, queue in enumerate(queues)
        if (reason := _own_problem(queue, i in cyclic, queue.parent in names)) is not None
    }
    result = dict(own)
    for i in range(len(queues)):
        at = int(parent_of[i])
        while i not in result and at >= 0:
            if at in own:
                result[i] = Reason(
                    own[at].code, f"queue {queues[i].name}: its ancestor {own[at].message}"
                )
            at = int(parent_of[at])
    return result


def queue_faults(queues: Sequence[Queue]) -> Mapping[str, Reason]:
    """Return why queues are invalid, keyed by queue name; a queue that is not Open may be valid."""
    _, cyclic = _parents(queues)
    names = {q.name for q in queues} | {ROOT_QUEUE, ""}
    found = ((q, _own_problem(q, i in cyclic, q.parent in names)) for i, q in enumerate(queues))
    return {
        queue.name: reason
        for queue, reason in found
        if reason is not None and reason.code is not ReasonCode.QUEUE_NOT_OPEN
    }


def _own_problem(queue: Queue, is_cyclic: bool, has_parent: bool) -> Reason | None:
    if queue.problem is not None:
        return Reason(ReasonCode.INVALID_QUEUE, f"queue {queue.name}: {queue.problem.message}")
    if is_cyclic:
        return Reason(
            ReasonCode.INVALID_QUEUE,
            f"queue {queue.name} is its own ancestor: its parents form a cycle",
        )
    if queue.state is not QueueState.OPEN:
        return Reason(
            ReasonCode.QUEUE_NOT_OPEN,
            f"queue {queue.name} is {queue.state}; only an Open queue takes new work",
        )
    if not has_parent:
        return Reason(
            ReasonCode.QUEUE_NOT_FOUND,
            f"queue {queue.name}: its parent {queue.parent} does not exist",
        )
    return None
