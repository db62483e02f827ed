"""Defer gangs to later sessions if comparing their pods takes too long.

A pod may have up to a hundred affinity terms, volume claims and resource names. The duration of a
session grows with these numbers, and any user who may create pods can create many such pods.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import derived_of
from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.problem.problem import Problem

    Costly = tuple[Gang, dict[TaskShape, int]]

FREE: Final = 40
"""Maximum cost up to which a gang is considered in every session."""

MOST: Final = 10_000
"""Maximum total cost of the gangs above `FREE` in one session; the first gang may exceed it."""

TURN_MS: Final = 60_000
"""Milliseconds after which each namespace starts with another of its gangs."""

_STEP: Final = 7919
"""Number of positions by which a namespace's first gang advances in `TURN_MS`; a prime number."""

LEFT: Final = Reason(
    ReasonCode.QUEUE_ORDER,
    "its pods have many terms of affinity and spread, volume claims or resources, and a session "
    "considers a limited number of such jobs; a later session considers this job",
)


def without_costly_gangs(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which gangs beyond the cost limit wait for a later session.

    Gangs are chosen from the namespaces round-robin; within a namespace, the first gang changes
    over time. Partially started gangs precede the other gangs of their namespace. Pods with equal
    requests and constraints are counted once. Returns the same snapshot if no gang is beyond the
    limit.
    """
    costs = derived_of(snapshot.gangs, _cost_of_gang)
    costly = [
        (gang, _cost_by_shape(gang))
        for gang, cost in zip(snapshot.gangs, costs, strict=True)
        if cost > FREE and gang.problem is None
    ]
    total: dict[TaskShape, int] = {}
    for _, cost_by_shape in costly:
        total |= cost_by_shape
    if sum(total.values()) <= MOST:
        return snapshot
    considered: set[TaskShape] = set()
    spent, left = 0, set()
    for gang, cost_by_shape in _in_turns(costly, snapshot.taken_ms // TURN_MS):
        cost = sum(n for shape, n in cost_by_shape.items() if shape not in considered)
        if considered and spent + cost > MOST:
            left.add(gang.key)
            continue
        spent += cost
        considered |= cost_by_shape.keys()
    gangs = tuple(replace(g, problem=LEFT) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def _in_turns(gangs: list[Costly], turn: int) -> Iterator[Costly]:
    """Yield gangs round-robin over namespaces; in each, partially started gangs come first."""
    by_namespace: dict[str, list[Costly]] = {}
    for each in gangs:
        by_namespace.setdefault(each[0].namespace, []).append(each)
    lines: deque[deque[Costly]] = deque()
    for members in by_namespace.values():
        first = turn * _STEP % len(members)
        rotated = [*members[first:], *members[:first]]
        lines.append(deque(sorted(rotated, key=lambda each: not _has_begun(each[0]))))
    lines.rotate(-turn)
    while lines:
        line = lines.popleft()
        yield line.popleft()
        if line:
            lines.append(line)


def _has_begun(gang: Gang) -> bool:
    return any(t.nominated_node or t.status.counts_as_ready for t in gang.tasks)


def count_left_gangs(problem: Problem) -> int:
    """Count the gangs that `without_costly_gangs` deferred to later sessions."""
    return sum(reason is LEFT for reason in problem.blocked.values())


def _cost_of_gang(gang: Gang) -> int:
    return sum(_cost_by_shape(gang).values())


def _cost_by_shape(gang: Gang) -> dict[TaskShape, int]:
    shapes = dict.fromkeys(t.shape for t in gang.tasks if t.status is TaskStatus.PENDING)
    return {shape: _cost(shape) for shape in shapes}


def _cost(shape: TaskShape) -> int:
    """Return an estimate of the work to compare a pod; a preferred pod affinity term costs 2.

    Each affinity term is compared with the pod's other terms, each volume claim with its other
    claims, and each resource with its other resources.
    """
    return (
        len(shape.pod_affinity) ** 2
        + 3 * len(shape.pod_anti_affinity)
        + 2 * len(shape.preferred_pods)
        + 5 * len(shape.spread)
        + len(shape.claims) ** 2 // 10
        + len(shape.request) ** 2 // 10
    )
