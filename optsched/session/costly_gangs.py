"""Defer gangs to later sessions if a session that considers all gangs would take too long.

A pod may have up to a hundred affinity terms, volume claims and resource names, and a term may
select every pending pod. The duration of a session grows with these numbers and with the number of
different gangs. Any user who may create pods can create many such pods.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from heapq import heapify, heappop
from itertools import chain, compress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from optsched.cluster.amounts import amounts, total
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import narrowest_labels
from optsched.cluster.snapshot import GangPhase, derived_of
from optsched.cluster.task import PodTerm, SpreadTerm, TaskShape, TaskStatus, requirements_of
from optsched.plugins.ordering.fifo import fifo_place
from optsched.problem.arrays import LARGEST
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import HostPort

RelatedTerm: TypeAlias = PodTerm | SpreadTerm
Costs: TypeAlias = "dict[TaskShape | RelatedTerm | HostPort | str, int]"
"""Maps a task shape, term or host port to its cost, counted once even if several gangs have it.

A gang's key maps to the cost that only this gang causes.
"""

Costly: TypeAlias = "tuple[Gang, Costs]"
Labels: TypeAlias = frozenset[tuple[str, str]]
T = TypeVar("T")

FREE: Final = 40
"""Maximum cost at which every session considers a gang."""

MOST: Final = 10_000
"""Maximum total cost of the costly gangs in one session; the first gang may exceed it."""

MOST_OF_GANG: Final = 50_000
"""Maximum cost of a gang; no session considers a gang that costs more."""

PORT_COST: Final = 2
"""Cost of each distinct host port of pending pods; 0 if the sum of the costs is at most `MOST`."""

SELECTED_PER_COST: Final = 50
"""Number of distinct pending pods that an affinity or spread term selects per unit of its cost."""

TURN_MS: Final = 60_000
"""Time in ms after which the order of a namespace's gangs begins with another gang."""

GANG_STEPS, SHAPE_STEPS, POD_STEPS, NODES_PER_STEP = 20, 25, 3, 100
"""Estimated steps of a session per pending gang, per different task shape and per pending pod.

Each task shape takes one further step per `NODES_PER_STEP` nodes.
"""

STEPS_PER_MS: Final = 150
"""Number of steps that a session takes in one ms, rounded down, on a machine with idle cores."""

MAX_LEFT: Final = 1000
"""Number of deferred gangs after which a session defers all further gangs."""

NUMBER_TURN_MS: Final = 5_000
"""Time in ms after which other gangs are considered, if a session cannot consider all gangs."""

_STEP: Final = 7919
"""Number of positions by which a list of gangs rotates in each turn; a prime number."""

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
"""Codes of the reasons for waiting that a deferred gang keeps from an earlier session."""

LEFT: Final = Reason(
    ReasonCode.QUEUE_ORDER,
    "its pods have many affinity terms, spread constraints, volume claims, host ports or "
    "resources, or terms that select many pods; a session considers few such jobs, and a later "
    "session considers this job",
)

_DEFERRED: Final = frozenset({LEFT, TOO_MANY})


def defer_gangs(snapshot: Snapshot, time_ms: int) -> tuple[Snapshot, tuple[Gang, ...]]:
    """Return the snapshot for a session of `time_ms`, and the gangs that the snapshot lacks.

    The `problem` of a gang that the snapshot lacks is the reason why the gang waits.
    """
    limited = without_costly_gangs(without_excess_gangs(snapshot, time_ms))
    if limited is not snapshot:
        limited = _keep_fifo_order(limited)
    return separate_blocked_gangs(limited)


def without_costly_gangs(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which gangs that exceed a cost limit wait for a later session.

    A gang that costs more than `MOST_OF_GANG` waits until its pods are changed.
    Gangs are chosen from the namespaces round-robin; within a namespace, the first gang changes
    over time. Partially started gangs precede the other gangs of their namespace. Pods with equal
    requests and constraints are counted once, and so are equal terms. Returns the same snapshot if
    no gang exceeds a limit.
    """
    open_gangs = [gang for gang in snapshot.gangs if gang.problem is None]
    shared_costs = _find_selection_costs(open_gangs) | _find_port_costs(open_gangs)
    costly: list[Costly] = []
    for gang, cost in zip(open_gangs, derived_of(open_gangs, _cost_of_gang), strict=True):
        costs: Costs = {}
        if cost > FREE:
            costs |= _cost_by_shape(gang)
        if shared_costs:
            causes = (*gang.derived(_terms_of_gang), *gang.derived(_host_ports_of_gang))
            costs |= {cause: shared_costs[cause] for cause in causes if cause in shared_costs}
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
            message = (
                "the affinity terms, spread constraints, volume claims, host ports and resources "
                f"of its pods cost {cost}, but at most {MOST_OF_GANG} is accepted: use fewer, or "
                "the same ones in all pods"
            )
            left[gang.key] = Reason(ReasonCode.INVALID_POD, message)
    costly = [each for each in costly if each[0].key not in left]
    in_turns = _in_turns(costly, snapshot.taken_ms // TURN_MS)
    considered = _find_considered(in_turns, MOST)
    left |= {gang.key: LEFT for gang, _ in costly if gang.key not in considered}
    if not left:
        return snapshot
    gangs = tuple(replace(g, problem=left[g.key]) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def without_excess_gangs(snapshot: Snapshot, time_ms: int) -> Snapshot:
    """Return the snapshot in which a gang waits if the session has no time to consider the gang.

    Gangs are taken round-robin from the namespaces, and round-robin from the queues of a namespace.
    In each queue, gangs are taken alternately from two orders: the order of priority and waiting
    time, and an order that rotates over time. The steps for equal task shapes are counted once.
    Returns the same snapshot if a session of `time_ms` has time for all gangs.
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
    costs = ((gang, steps_of(gang)) for gang in in_turns)
    considered = _find_considered(costs, most, max_left=MAX_LEFT)
    if len(considered) == len(waiting):
        return snapshot
    left = {gang.key for gang in waiting} - considered
    gangs = tuple(g.derived(_as_excess) if g.key in left else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def _find_considered(
    in_turns: Iterable[Costly], most: int, max_left: int | None = None
) -> set[str]:
    """Return the keys of gangs whose total cost is at most `most`; the first gang may exceed it.

    The search ends once `max_left` gangs have exceeded `most`.
    """
    considered: set[TaskShape | RelatedTerm | HostPort | str] = set()
    keys: set[str] = set()
    spent = num_left = 0
    for gang, costs in in_turns:
        cost = sum(n for cause, n in costs.items() if cause not in considered)
        if cost and considered and spent + cost > most:
            num_left += 1
            if num_left == max_left:
                break
            continue
        keys.add(gang.key)
        spent += cost
        considered |= costs.keys()
    return keys


def _rotate_gangs(gangs: Iterable[Gang], turn: int) -> Iterator[Gang]:
    """Yield each gang once, round-robin over namespaces, their queues, and two orders per queue."""
    namespaces = []
    for of_namespace in _group_by(gangs, lambda gang: gang.namespace):
        queues = []
        for of_queue in _group_by(of_namespace, lambda gang: gang.queue):
            orders = [_iterate_by_rank(of_queue), _rotate(of_queue, turn * _STEP)]
            queues.append(_alternate(_rotate(orders, turn)))
        namespaces.append(_alternate(_rotate(queues, turn)))
    yielded: set[str] = set()
    for gang in _alternate(_rotate(namespaces, turn)):
        if gang.key not in yielded:
            yielded.add(gang.key)
            yield gang


def _iterate_by_rank(gangs: Sequence[Gang]) -> Iterator[Gang]:
    """Yield the gangs in the order of their ranks; only the gangs that are read are sorted."""
    heap = list(zip(derived_of(gangs, _rank), range(len(gangs)), strict=True))
    heapify(heap)
    while heap:
        yield gangs[heappop(heap)[1]]


def _keep_fifo_order(snapshot: Snapshot) -> Snapshot:
    """Make the gangs behind a deferred gang of a FIFO queue wait; none may overtake that gang."""
    first_deferred: dict[str, tuple[int, int, str]] = {}
    is_fifo = {queue.name: queue.is_fifo for queue in snapshot.queues}
    for gang in snapshot.gangs:
        if is_deferred(gang.problem) and is_fifo.get(gang.queue) and not _has_begun(gang):
            place = fifo_place(gang)
            first_deferred[gang.queue] = min(first_deferred.get(gang.queue, place), place)
    if not first_deferred:
        return snapshot

    gangs = list(snapshot.gangs)
    for i, gang in enumerate(gangs):
        first = first_deferred.get(gang.queue)
        if first is None or gang.problem or _has_begun(gang) or fifo_place(gang) < first:
            continue
        message = f"waits behind {first[-1]} in the fifo queue {gang.queue}"
        gangs[i] = replace(gang, problem=Reason(ReasonCode.QUEUE_ORDER, message))
    return replace(snapshot, gangs=tuple(gangs))


def separate_blocked_gangs(snapshot: Snapshot) -> tuple[Snapshot, tuple[Gang, ...]]:
    """Remove gangs that have a problem and hold no capacity; return the snapshot and these gangs.

    It would take seconds to compile and verify thousands of such gangs. Some of these gangs stay in
    the snapshot, because other decisions depend on them. The oldest deferred gang of each namespace
    and queue stays, with the sum of the demands of all deferred gangs there. One enqueued gang of
    each namespace and queue stays, with the sum of the `minResources` of all enqueued gangs there,
    because the enqueue limits count this sum. In a namespace with a ResourceQuota, all enqueued
    gangs stay.
    """
    with_quota = {quota.namespace for quota in snapshot.quotas}
    merged: dict[str, Gang] = {}
    enqueued: list[Gang] = []
    separated: dict[str, Gang] = {}
    can_leave = derived_of(snapshot.gangs, _can_be_separated)
    for gang in compress(snapshot.gangs, can_leave):
        separated[gang.key] = gang
        if gang.phase is GangPhase.INQUEUE and (gang.min_resources or gang.min_usage):
            enqueued.append(gang)
    deferred = [gang for gang in snapshot.gangs if is_deferred(gang.problem)]
    for gangs in _group_by(deferred, lambda gang: (gang.namespace, gang.queue)):
        oldest = min(gangs, key=lambda gang: (gang.created_ms, gang.key))
        demand = _sum_amounts(derived_of(gangs, _sum_pending_requests))
        merged[oldest.key] = replace(oldest, deferred_demand=demand)
    for gangs in _group_by(enqueued, lambda gang: (gang.namespace, gang.queue)):
        if gangs[0].namespace in with_quota:
            merged |= {gang.key: merged.get(gang.key, gang) for gang in gangs}
            continue
        first = next((gang for gang in gangs if gang.key in merged), gangs[0])
        least = _sum_amounts(gang.min_resources for gang in gangs)
        merged[first.key] = replace(merged.get(first.key, first), min_resources=least)
    separated = {key: gang for key, gang in separated.items() if key not in merged}
    if not merged and not separated:
        return snapshot, ()
    kept = (gang for gang in snapshot.gangs if gang.key not in separated)
    changed = tuple(merged.get(gang.key, gang) for gang in kept)
    return replace(snapshot, gangs=changed), tuple(separated.values())


def _sum_pending_requests(gang: Gang) -> Amounts:
    tasks = [t for t in gang.tasks if t.status is TaskStatus.PENDING and t.problem is None]
    return amounts({PODS: len(tasks), **total(task.shape.request for task in tasks)})


def _sum_amounts(parts: Iterable[Amounts]) -> Amounts:
    return amounts({name: min(n, int(LARGEST)) for name, n in total(parts).items()})


def _can_be_separated(gang: Gang) -> bool:
    return gang.problem is not None and not any(
        task.status is not TaskStatus.PENDING or task.nominated_node or task.is_victim
        for task in gang.tasks
    )


def _as_excess(gang: Gang) -> Gang:
    """Return the gang with the reason `TOO_MANY` as its problem, so that it is not placed."""
    return replace(gang, problem=TOO_MANY)


def _rank(gang: Gang) -> tuple[bool, int, int, str]:
    return not _has_begun(gang), -gang.priority, gang.waiting_since_ms, gang.key


def _group_by(elements: Iterable[T], key: Callable[[T], object]) -> Iterable[list[T]]:
    groups: dict[object, list[T]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
    return groups.values()


def _rotate(sequence: Sequence[T], steps: int) -> list[T]:
    first = steps % len(sequence)
    return [*sequence[first:], *sequence[:first]]


def _alternate(lines: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yield the first element of each sequence in `lines`, then each second element, and so on."""
    remaining = deque(iter(line) for line in lines)
    while remaining:
        line = remaining.popleft()
        for element in line:
            yield element
            remaining.append(line)
            break


def _pending_by_shape(gang: Gang) -> Counter[TaskShape]:
    return Counter(task.shape for task in gang.tasks if task.status is TaskStatus.PENDING)


def _in_turns(gangs: list[Costly], turn: int) -> Iterator[Costly]:
    """Yield gangs round-robin over namespaces, partially started gangs first in each namespace."""
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

    If thousands of gangs wait, each session may defer other gangs than the session before. If each
    session changed the reasons of these gangs, the scheduler would write all their statuses and
    events again.

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


def is_deferred(problem: Reason | None) -> bool:
    """Return whether a gang with this problem is deferred to a later session."""
    return problem is not None and problem.code is ReasonCode.QUEUE_ORDER


def _cost_of_gang(gang: Gang) -> int:
    return sum(_cost_by_shape(gang).values())


def _cost_by_shape(gang: Gang) -> Costs:
    return {shape: _cost(shape) for shape in gang.derived(_pending_by_shape)}


def _cost(shape: TaskShape) -> int:
    """Return the cost of filtering nodes for a pod; each preferred pod affinity term adds 2.

    Each pod affinity term is compared with the pod's other such terms, each volume claim with the
    pod's other claims, and each resource with the pod's other resources. A requirement of node
    affinity is compared with every node.
    """
    requirements = [r for found in requirements_of(shape).values() for r in found]
    return (
        len(shape.pod_affinity) ** 2
        + 3 * len(shape.pod_anti_affinity)
        + 2 * len(shape.preferred_pods)
        + 5 * len(shape.spread)
        + len(shape.claims) ** 2 // 10
        + len(shape.host_ports) // 5
        + len(shape.tolerations) // 10
        + len(shape.request) ** 2 // 10
        + len(requirements) // 5
        + sum(len(r.values) for r in requirements) // 100
    )


def _find_port_costs(gangs: Sequence[Gang]) -> Costs:
    """Return the cost of each host port of pending pods, if there are many different ports."""
    ports = set(chain.from_iterable(derived_of(gangs, _host_ports_of_gang)))
    return dict.fromkeys(ports, PORT_COST) if len(ports) * PORT_COST > MOST else {}


def _host_ports_of_gang(gang: Gang) -> tuple[HostPort, ...]:
    shapes = gang.derived(_pending_by_shape)
    return tuple(dict.fromkeys(chain.from_iterable(shape.host_ports for shape in shapes)))


def _find_selection_costs(gangs: Sequence[Gang]) -> Costs:
    """Return the cost of each affinity or spread term that may select many pending pods."""
    terms: dict[RelatedTerm, None] = {}
    for found in derived_of(gangs, _terms_of_gang):
        terms.update(dict.fromkeys(found))
    if not terms:
        return {}
    pods = derived_of(gangs, _pods_by_labels)
    if len(terms) * sum(n for each in pods for n in each.values()) <= MOST * SELECTED_PER_COST:
        return {}
    labels_of = narrowest_labels([term.selector for term in terms])
    selecting = {label for labels in labels_of for label in labels}
    # The number of different pods by namespace and label. The namespace None stands for all
    # namespaces, and the label None for all pods.
    number: Counter[tuple[str | None, tuple[str, str] | None]] = Counter()
    for gang, numbers in zip(gangs, pods, strict=True):
        for pod_labels, n in numbers.items():
            for label in (None, *pod_labels.intersection(selecting)):
                number[gang.namespace, label] += n
                number[None, label] += n
    costs: Costs = {}
    for term, labels in zip(terms, labels_of, strict=True):
        if term.selector is None:
            continue
        namespaces: Collection[str | None] = (None,)
        if isinstance(term, SpreadTerm):
            namespaces = (term.namespace,)
        elif term.namespace_selector is None:
            namespaces = term.namespaces
        selected = sum(number[at, label] for at in namespaces for label in labels or (None,))
        # A term with many requirements takes as long as many terms with one requirement each.
        cost = selected * max(1, len(term.selector.requirements) // 4) // SELECTED_PER_COST
        if cost:
            costs[term] = cost
    return costs


def _terms_of_gang(gang: Gang) -> tuple[RelatedTerm, ...]:
    """Return the distinct required terms of a gang's pending pods, and its spread constraints."""
    terms: dict[RelatedTerm, None] = {}
    for shape in gang.derived(_pending_by_shape):
        terms.update(dict.fromkeys((*shape.pod_affinity, *shape.pod_anti_affinity, *shape.spread)))
    return tuple(terms)


def _pods_by_labels(gang: Gang) -> Counter[Labels]:
    """Count a gang's pending pods by labels; pods with equal labels and task shapes count once."""
    pending = (task for task in gang.tasks if task.status is TaskStatus.PENDING)
    different = {(task.shape, frozenset(task.labels.items())) for task in pending}
    return Counter(labels for _, labels in different)
