"""Defer gangs to later sessions if a session that considers all gangs would take too long.

A pod may have up to a hundred affinity terms, volume claims and resource names, and a term may
select every pending pod. The duration of a session grows with these numbers and with the number of
different gangs, and any user who may create pods can create many such pods.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import narrowest_labels
from optsched.cluster.snapshot import derived_of
from optsched.cluster.task import PodTerm, SpreadTerm, TaskShape, TaskStatus, requirements_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.problem.problem import Problem

RelatedTerm: TypeAlias = PodTerm | SpreadTerm
Costs: TypeAlias = "dict[TaskShape | RelatedTerm | str, int]"
"""Maps each task shape or term of a gang to its cost, which counts once for all gangs with it.

The cost of a gang alone has the gang's key.
"""

Costly: TypeAlias = "tuple[Gang, Costs]"
Labels: TypeAlias = frozenset[tuple[str, str]]
T = TypeVar("T")

FREE: Final = 40
"""Maximum cost up to which a gang is considered in every session."""

MOST: Final = 10_000
"""Maximum total cost of the costly gangs in one session; the first gang may exceed it."""

MOST_OF_GANG: Final = 50_000
"""Maximum cost of a gang; no session considers a gang that costs more."""

SELECTED_PER_COST: Final = 50
"""Number of different pending pods that a term selects per unit of the term's cost."""

TURN_MS: Final = 60_000
"""Time in ms after which each namespace's order starts with another gang."""

GANG_STEPS, SHAPE_STEPS, POD_STEPS, NODES_PER_STEP = 20, 25, 3, 100
"""Estimated steps of a session per pending gang, per different task shape and per pending pod.

Each task shape takes one further step per `NODES_PER_STEP` nodes.
"""

STEPS_PER_MS: Final = 200
"""Number of steps that a session takes in one ms, rounded down, on a machine with idle cores."""

NUMBER_TURN_MS: Final = 5_000
"""Time in ms after which other gangs are considered if there are more than a session can place."""

_STEP: Final = 7919
"""How many positions the first gang of a list advances in each turn; a prime number."""

TOO_MANY: Final = Reason(
    ReasonCode.QUEUE_ORDER,
    "more jobs are pending than a session can consider in its time; a later session considers "
    "this job",
)

_KEPT: Final = frozenset(
    {
        ReasonCode.IMPOSSIBLE,
        ReasonCode.CAPABILITY,
        ReasonCode.DESERVED,
        ReasonCode.GUARANTEE,
        ReasonCode.MIN_RESOURCES,
        ReasonCode.OVERCOMMITTED,
        ReasonCode.QUOTA,
        ReasonCode.PREDICATES,
        ReasonCode.RESOURCES,
        ReasonCode.RESERVED,
        ReasonCode.FRAGMENTED,
        ReasonCode.TOPOLOGY,
        ReasonCode.RELATIONS,
        ReasonCode.OUTRANKED,
    }
)
"""The reasons that a deferred gang keeps; other reasons end as soon as an object changes."""

LEFT: Final = Reason(
    ReasonCode.QUEUE_ORDER,
    "its pods have many affinity terms, spread constraints, volume claims or resources, or terms "
    "that select many pods; a session considers few such jobs, and a later session considers this "
    "job",
)

_DEFERRED: Final = frozenset({LEFT, TOO_MANY})


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
    in_turns = _in_turns(costly, snapshot.taken_ms // TURN_MS)
    left |= dict.fromkeys(_find_excess(in_turns, MOST), LEFT)
    if not left:
        return snapshot
    gangs = tuple(replace(g, problem=left[g.key]) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def without_excess_gangs(snapshot: Snapshot, time_ms: int) -> Snapshot:
    """Return the snapshot in which the gangs that a session has no time to consider wait.

    The namespaces take turns, and so do the queues of a namespace. In each queue, gangs are taken
    alternately from two orders: by priority and waiting time, and by turns. Equal task shapes count
    once. Returns the same snapshot if a session of `time_ms` has time for all gangs.
    """
    open_gangs = [gang for gang in snapshot.gangs if gang.problem is None]
    pods_by_shape = derived_of(open_gangs, _pending_by_shape)
    waiting = [gang for gang, pods in zip(open_gangs, pods_by_shape, strict=True) if pods]
    num_pods = sum(sum(pods.values()) for pods in pods_by_shape)
    shape_steps = SHAPE_STEPS + len(snapshot.nodes) // NODES_PER_STEP
    steps = GANG_STEPS * len(waiting) + POD_STEPS * num_pods
    most = time_ms * STEPS_PER_MS
    if steps + shape_steps * sum(map(len, pods_by_shape)) <= most:
        return snapshot

    def steps_of(gang: Gang) -> Costs:
        pods = gang.derived(_pending_by_shape)
        own_steps = GANG_STEPS + POD_STEPS * sum(pods.values())
        return {gang.key: own_steps, **dict.fromkeys(pods, shape_steps)}

    in_turns = _rotate_gangs(waiting, snapshot.taken_ms // NUMBER_TURN_MS)
    left = _find_excess(((gang, steps_of(gang)) for gang in in_turns), most)
    if not left:
        return snapshot
    gangs = tuple(g.derived(_as_excess) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def _find_excess(in_turns: Iterable[Costly], most: int) -> set[str]:
    """Return the keys of the gangs that exceed the total cost `most`; the first may exceed it."""
    considered: set[TaskShape | RelatedTerm | str] = set()
    excess: set[str] = set()
    spent = 0
    for gang, costs in in_turns:
        cost = sum(n for cause, n in costs.items() if cause not in considered)
        if cost and considered and spent + cost > most:
            excess.add(gang.key)
            continue
        spent += cost
        considered |= costs.keys()
    return excess


def _rotate_gangs(gangs: Iterable[Gang], turn: int) -> Iterator[Gang]:
    """Yield each gang once; namespaces, their queues, and two orders of a queue take turns."""
    namespaces = []
    for of_namespace in _group_by(gangs, lambda gang: gang.namespace):
        queues = []
        for of_queue in _group_by(of_namespace, lambda gang: gang.queue):
            ranked = sorted(of_queue, key=_rank)
            orders = [ranked, _rotate(ranked, turn * _STEP)]
            queues.append(list(_alternate(_rotate(orders, turn))))
        namespaces.append(list(_alternate(_rotate(queues, turn))))
    in_turns = _alternate(_rotate(namespaces, turn))
    yield from {gang.key: gang for gang in in_turns}.values()


def _as_excess(gang: Gang) -> Gang:
    """Return the gang with the reason `TOO_MANY` as its problem, so that it is not placed."""
    return replace(gang, problem=TOO_MANY)


def _rank(gang: Gang) -> tuple[bool, int, int, str]:
    return not _has_begun(gang), -gang.priority, gang.waiting_since_ms, gang.key


def _group_by(elements: Iterable[T], key: Callable[[T], str]) -> Iterable[list[T]]:
    groups: dict[str, list[T]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
    return groups.values()


def _rotate(sequence: Sequence[T], steps: int) -> list[T]:
    first = steps % len(sequence)
    return [*sequence[first:], *sequence[:first]]


def _alternate(lines: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yield the first element of every line, then every second element, and so on."""
    remaining = deque(iter(line) for line in lines)
    while remaining:
        line = remaining.popleft()
        for element in line:
            yield element
            remaining.append(line)
            break


def _pending_by_shape(gang: Gang) -> Counter[TaskShape]:
    return Counter(task.shape for task in gang.tasks if task.status is TaskStatus.PENDING)


def _too_costly(cost: int) -> Reason:
    message = (
        f"the affinity terms, spread constraints, volume claims and resources of its pods cost "
        f"{cost}, but at most {MOST_OF_GANG} is accepted: use fewer, or the same ones in all pods"
    )
    return Reason(ReasonCode.INVALID_POD, message)


def _in_turns(gangs: list[Costly], turn: int) -> Iterator[Costly]:
    """Yield gangs round-robin over namespaces; in each, partially started gangs come first."""
    lines = [
        sorted(_rotate(members, turn * _STEP), key=lambda each: not _has_begun(each[0]))
        for members in _group_by(gangs, lambda each: each[0].namespace)
    ]
    return _alternate(_rotate(lines, turn)) if lines else iter(())


def _has_begun(gang: Gang) -> bool:
    return any(t.nominated_node or t.status.counts_as_ready for t in gang.tasks)


def keep_reasons(
    pending: Mapping[str, Reason], earlier: Mapping[str, Reason]
) -> Mapping[str, Reason]:
    """Return the pending reasons; a deferred gang keeps its earlier reason about capacity.

    Sessions may defer thousands of gangs by turns. If each turn changed the reasons of these gangs,
    the scheduler would write all their statuses and events again.

    Parameters
    ----------
    pending
        The reasons of the last session, keyed by gang.
    earlier
        The reasons that this function returned for the session before.

    """
    if _DEFERRED.isdisjoint(pending.values()):
        return pending
    return {
        key: earlier[key]
        if reason in _DEFERRED and key in earlier and earlier[key].code in _KEPT
        else reason
        for key, reason in pending.items()
    }


def count_left_gangs(problem: Problem) -> int:
    """Count the gangs that are deferred to later sessions."""
    return sum(reason in _DEFERRED for reason in problem.blocked.values())


def _cost_of_gang(gang: Gang) -> int:
    return sum(_cost_by_shape(gang).values())


def _cost_by_shape(gang: Gang) -> Costs:
    return {shape: _cost(shape) for shape in gang.derived(_pending_by_shape)}


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
        # One pod with many requirements takes as long as many pods with one requirement each.
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
    for shape in gang.derived(_pending_by_shape):
        terms.update(dict.fromkeys((*shape.pod_affinity, *shape.pod_anti_affinity, *shape.spread)))
    return tuple(terms)


def _pods_by_labels(gang: Gang) -> Counter[Labels]:
    """Count a gang's pending pods by their labels; equal requests and constraints count once."""
    pending = (task for task in gang.tasks if task.status is TaskStatus.PENDING)
    different = {(task.shape, frozenset(task.labels.items())) for task in pending}
    return Counter(labels for _, labels in different)
