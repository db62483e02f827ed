"""Defer gangs to later sessions if comparing their pods takes too long.

A pod may have up to a hundred affinity terms, volume claims and resource names, and a term may
select every pending pod. The duration of a session grows with these numbers, and any user who may
create pods can create many such pods.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import narrowest_labels
from optsched.cluster.snapshot import derived_of
from optsched.cluster.task import PodTerm, SpreadTerm, TaskShape, TaskStatus, requirements_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.problem.problem import Problem

RelatedTerm: TypeAlias = PodTerm | SpreadTerm
Costs: TypeAlias = "dict[TaskShape | RelatedTerm, int]"
"""Maps each task shape or term of a gang to its cost; if several gangs share it, it counts once."""

Costly: TypeAlias = "tuple[Gang, Costs]"
Labels: TypeAlias = frozenset[tuple[str, str]]

FREE: Final = 40
"""Maximum cost up to which a gang is considered in every session."""

MOST: Final = 10_000
"""Maximum total cost of the costly gangs in one session; the first gang may exceed it."""

MOST_OF_GANG: Final = 50_000
"""Maximum cost of a gang; no session considers a gang that costs more."""

SELECTED_PER_COST: Final = 50
"""Number of different pending pods that a term selects at a cost of 1."""

TURN_MS: Final = 60_000
"""Time in ms after which another gang of each namespace comes first."""

_STEP: Final = 7919
"""Number of positions by which a namespace's first gang advances in `TURN_MS`; a prime number."""

LEFT: Final = Reason(
    ReasonCode.QUEUE_ORDER,
    "its pods have many terms of affinity and spread, terms that select many pods, volume claims "
    "or resources, and a session considers a limited number of such jobs; a later session "
    "considers this job",
)


def without_costly_gangs(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which gangs beyond the cost limits wait for a later session.

    A gang that costs more than `MOST_OF_GANG` waits until its pods are changed.
    Gangs are chosen from the namespaces round-robin; within a namespace, the first gang changes
    over time. Partially started gangs precede the other gangs of their namespace. Pods with equal
    requests and constraints are counted once, and so are equal terms. Returns the same snapshot if
    no gang is beyond the limit.
    """
    open_gangs = [gang for gang in snapshot.gangs if gang.problem is None]
    selection_costs = _find_selection_costs(open_gangs)
    costly: list[Costly] = []
    for gang, cost in zip(open_gangs, derived_of(open_gangs, _cost_of_gang), strict=True):
        costs: Costs = {}
        if cost > FREE:
            costs |= _cost_by_shape(gang)
        if selection_costs:
            terms = gang.derived(_terms_of_gang)
            costs |= {term: selection_costs[term] for term in terms if term in selection_costs}
        if costs:
            costly.append((gang, costs))
    total: Costs = {}
    for _, costs in costly:
        total |= costs
    if sum(total.values()) <= MOST:
        return snapshot
    left: dict[str, Reason] = {}
    for gang, costs in costly:
        if (cost := sum(costs.values())) > MOST_OF_GANG:
            left[gang.key] = _too_costly(cost)
    costly = [each for each in costly if each[0].key not in left]
    considered: set[TaskShape | RelatedTerm] = set()
    spent = 0
    for gang, costs in _in_turns(costly, snapshot.taken_ms // TURN_MS):
        cost = sum(n for cause, n in costs.items() if cause not in considered)
        if cost and considered and spent + cost > MOST:
            left[gang.key] = LEFT
            continue
        spent += cost
        considered |= costs.keys()
    if not left:
        return snapshot
    gangs = tuple(replace(g, problem=left[g.key]) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def _too_costly(cost: int) -> Reason:
    message = (
        f"the terms of affinity and spread, volume claims and resources of its pods cost {cost}: "
        f"use at most {MOST_OF_GANG}, with fewer of them or the same in all pods"
    )
    return Reason(ReasonCode.INVALID_POD, message)


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


def _cost_by_shape(gang: Gang) -> Costs:
    return {shape: _cost(shape) for shape in _pending_shapes(gang)}


def _pending_shapes(gang: Gang) -> Collection[TaskShape]:
    return dict.fromkeys(t.shape for t in gang.tasks if t.status is TaskStatus.PENDING)


def _cost(shape: TaskShape) -> int:
    """Return the cost of filtering nodes for a pod; each preferred pod affinity term adds 2.

    Each affinity term is compared with the pod's other terms, each volume claim with its other
    claims, and each resource with its other resources. A requirement is compared with every node.
    """
    requirements = [r for found in requirements_of(shape).values() for r in found]
    return (
        len(shape.pod_affinity) ** 2
        + 3 * len(shape.pod_anti_affinity)
        + 2 * len(shape.preferred_pods)
        + 5 * len(shape.spread)
        + len(shape.claims) ** 2 // 10
        + len(shape.request) ** 2 // 10
        + len(requirements) // 5
        + sum(len(r.values) for r in requirements) // 100
    )


def _find_selection_costs(gangs: Sequence[Gang]) -> dict[RelatedTerm, int]:
    """Return the cost of each term that may select many pending pods, if there are many terms."""
    terms: dict[RelatedTerm, None] = {}
    for found in derived_of(gangs, _terms_of_gang):
        terms.update(dict.fromkeys(found))
    if not terms:
        return {}
    pods = derived_of(gangs, _pods_by_labels)
    if len(terms) * sum(n for each in pods for n in each.values()) <= MOST * SELECTED_PER_COST:
        return {}
    labels_of = narrowest_labels([term.selector for term in terms])
    number = _count_pods(gangs, pods, {label for labels in labels_of for label in labels})
    costs = {}
    for term, labels in zip(terms, labels_of, strict=True):
        if term.selector is None:
            continue
        selected = sum(number[at, label] for at in _namespaces(term) for label in labels or (None,))
        # Comparing one pod with many requirements takes as long as many pods with one requirement.
        cost = selected * max(1, len(term.selector.requirements) // 4) // SELECTED_PER_COST
        if cost:
            costs[term] = cost
    return costs


def _count_pods(
    gangs: Sequence[Gang], pods: Sequence[Mapping[Labels, int]], wanted: Collection[tuple[str, str]]
) -> Counter[tuple[str | None, tuple[str, str] | None]]:
    """Count the different pending pods of each namespace, in total and by each label in `wanted`.

    The namespace None stands for all namespaces, and the label None for all pods.
    """
    number: Counter[tuple[str | None, tuple[str, str] | None]] = Counter()
    for gang, numbers in zip(gangs, pods, strict=True):
        for labels, n in numbers.items():
            for label in (None, *labels.intersection(wanted)):
                number[gang.namespace, label] += n
                number[None, label] += n
    return number


def _namespaces(term: RelatedTerm) -> Collection[str | None]:
    """Return the namespaces of a term; None if they depend on the labels of namespaces."""
    if isinstance(term, SpreadTerm):
        return (term.namespace,)
    return term.namespaces if term.namespace_selector is None else (None,)


def _terms_of_gang(gang: Gang) -> tuple[RelatedTerm, ...]:
    """Return the distinct required terms of a gang's pending pods, and its spread constraints."""
    terms: dict[RelatedTerm, None] = {}
    for shape in _pending_shapes(gang):
        terms.update(dict.fromkeys((*shape.pod_affinity, *shape.pod_anti_affinity, *shape.spread)))
    return tuple(terms)


def _pods_by_labels(gang: Gang) -> Counter[Labels]:
    """Count a gang's pending pods by their labels; equal requests and constraints count once."""
    pending = (task for task in gang.tasks if task.status is TaskStatus.PENDING)
    different = {(task.shape, frozenset(task.labels.items())) for task in pending}
    return Counter(labels for _, labels in different)
