"""Traces: gangs that arrive at a cluster over time, their run times, and node failures.

Times are in milliseconds from the beginning of the trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from optsched.cluster.snapshot import NO_POD_LIMIT
from optsched.cluster.topology import NO_TOPOLOGY
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.cluster.topology import Topology


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang that is submitted at time `at_ms`.

    Attributes
    ----------
    gang
        The gang as submitted, with pending tasks. If the trace starts on a busy cluster, tasks may
        have a node; such tasks already run when the gang arrives.
    duration_ms
        Run time of the gang without interruptions, counted from the time when its minimum runs;
        None if the gang never ends.
    estimate_ms
        The user's estimate of the run time, or None. Plugins see this estimate but not the real run
        time.
    grace_ms
        Time for which evicted pods of the gang keep their resources, for example to save their work
        (`terminationGracePeriodSeconds`).
    where
        `file:line` of the source; empty without a file.
    """

    at_ms: int
    gang: Gang
    duration_ms: int | None
    estimate_ms: int | None = None
    grace_ms: int = 0
    where: str = field(default="", compare=False)


class NodeChange(StrEnum):
    """The type of a node event: a failure or a recovery of the node."""

    DOWN = "down"
    UP = "up"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node failure, which ends all pods on the node, or the recovery of a failed node."""

    at_ms: int
    node: str
    change: NodeChange
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Trace:
    """The nodes and queues of a cluster, gang arrivals, and node failures and recoveries.

    Attributes
    ----------
    nodes, queues
        Nodes and queues, sorted by name.
    arrivals
        Arrivals in time order; simultaneous arrivals keep the order of the source.
    node_events
        Node failures and recoveries in time order; every node is up at the start.
    topology
        The HyperNodes of the network.
    start_ms
        Start of the trace, in epoch milliseconds.
    rest
        Snapshot with the other objects that exist throughout the trace, such as PVCs, namespaces
        and PodDisruptionBudgets, or None. The snapshot's nodes, gangs and queues are ignored.
    """

    name: str
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    arrivals: tuple[Arrival, ...]
    node_events: tuple[NodeEvent, ...] = ()
    topology: Topology = NO_TOPOLOGY
    start_ms: int = 0
    rest: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """An error that caused an object to be dropped from a trace.

    Attributes
    ----------
    kind, key
        Kind and key of the dropped object, for example Gang and `namespace/name`.
    path, value
        The path and the value of the invalid field; `path` is empty if no single field is invalid.
    message
        A sentence that describes the error and the accepted values.
    where
        `file:line` of the object; empty without a file.
    """

    kind: str
    key: str
    path: str
    value: object
    message: str
    where: str = ""

    def __str__(self) -> str:
        name = f"{self.kind} {self.key}".strip()
        is_missing = self.value is None and self.message.startswith("is missing")
        field = self.path if is_missing else f"{self.path}: {self.value}"
        problem = f"{field} {self.message}" if self.path else self.message
        return ": ".join(part for part in (self.where, name, problem) if part)


Found: TypeAlias = "tuple[Trace, tuple[TraceProblem, ...]]"
_Event = TypeVar("_Event", Arrival, NodeEvent)

_NEGATIVE = "is below zero: write the milliseconds from the beginning of the trace"
_NO_DURATION = "is below zero: write milliseconds, or omit it if the gang never ends"
_NO_GRACE = "is below zero: write milliseconds, or omit it if pods end immediately"
_NO_ESTIMATE = "is below zero: write milliseconds, or omit it if there is no estimate"


def sound_trace(trace: Trace) -> Found:
    """Return a trace without the objects that cannot be replayed, and an error for each of them.

    Nodes and queues may be in any order. Arrivals and node events must be in time order; otherwise,
    the fewest possible arrivals and events are dropped. A gang is dropped if it could not start
    even on the empty cluster with all nodes up. The gang's minimum then requests more of a resource
    than all nodes have, or too few of its tasks fit on the nodes.
    """
    problems: list[TraceProblem] = []
    nodes = _drop_duplicates(trace.nodes, "Node", lambda n: n.name, problems)
    queues = _drop_duplicates(trace.queues, "Queue", lambda q: q.name, problems)
    capacity = _ClusterCapacity(nodes)
    queue_names = {q.name for q in queues}
    gang_keys: set[str] = set()
    task_keys: set[str] = set()
    arrivals: list[Arrival] = []
    for arrival in _drop_out_of_order(trace.arrivals, lambda a: ("Gang", a.gang.key), problems):
        found = (
            _arrival_problem(arrival)
            or capacity.why_unstartable(arrival)
            or _name_problem(arrival, queue_names, gang_keys, task_keys)
        )
        if found is None:
            gang_keys.add(arrival.gang.key)
            task_keys.update(t.key for t in arrival.gang.tasks)
            arrivals.append(arrival)
        else:
            problems.append(found)
    events: list[NodeEvent] = []
    state = {n.name: NodeChange.UP for n in nodes}
    for event in _drop_out_of_order(trace.node_events, lambda e: ("Node", e.node), problems):
        known = state.get(event.node)
        if known is None or known is event.change:
            message = "is not a node of this trace" if known is None else f"is {known} already"
            problems.append(TraceProblem("Node", event.node, "", None, message, event.where))
        else:
            state[event.node] = event.change
            events.append(event)
    sound = replace(
        trace, nodes=nodes, queues=queues, arrivals=tuple(arrivals), node_events=tuple(events)
    )
    return sound, tuple(problems)


# --- order ---------------------------------------------------------------------------------------


_Named = TypeVar("_Named")


def _drop_duplicates(
    parts: Iterable[_Named],
    kind: str,
    name_of: Callable[[_Named], str],
    problems: list[TraceProblem],
) -> tuple[_Named, ...]:
    """Return the objects sorted by name; of objects with the same name, the first is kept."""
    found: dict[str, _Named] = {}
    for part in parts:
        if name_of(part) in found:
            message = "occurs more than once; the first occurrence applies"
            problems.append(TraceProblem(kind, name_of(part), "", None, message))
        found.setdefault(name_of(part), part)
    return tuple(found[name] for name in sorted(found))


def _drop_out_of_order(
    events: Sequence[_Event],
    name_of: Callable[[_Event], tuple[str, str]],
    problems: list[TraceProblem],
) -> list[_Event]:
    """Return a longest subsequence of events whose times are not negative and do not decrease."""
    timely = [e for e in events if e.at_ms >= 0]
    kept = _never_falling([e.at_ms for e in timely])
    before: dict[int, int] = {}
    last = 0
    for i, event in enumerate(timely):
        if i in kept:
            last = event.at_ms
        before[id(event)] = last
    stay = {id(timely[i]) for i in kept}
    for event in events:
        if id(event) in stay:
            continue
        message = _NEGATIVE
        if event.at_ms >= 0:
            message = f"is out of order: the events around it are at {before[id(event)]} ms"
        kind, key = name_of(event)
        problems.append(TraceProblem(kind, key, "at_ms", event.at_ms, message, event.where))
    return [e for e in events if id(e) in stay]


def _never_falling(times: Sequence[int]) -> set[int]:
    """Return the indices of a longest non-decreasing subsequence (patience sorting)."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for i, time in enumerate(times):
        place = bisect_right(tails, time)
        previous.append(ends[place - 1] if place else -1)
        tails[place : place + 1] = [time]
        ends[place : place + 1] = [i]
    kept: set[int] = set()
    at = ends[-1] if ends else -1
    while at >= 0:
        kept.add(at)
        at = previous[at]
    return kept


# --- arrivals ------------------------------------------------------------------------------------


def _arrival_problem(arrival: Arrival) -> TraceProblem | None:
    """Return an error about a field of an arrival, or None if all fields are valid."""
    gang = arrival.gang
    if arrival.duration_ms is not None and arrival.duration_ms < 0:
        return _problem(arrival, "duration_ms", arrival.duration_ms, _NO_DURATION)
    if arrival.estimate_ms is not None and arrival.estimate_ms < 0:
        return _problem(arrival, "estimate_ms", arrival.estimate_ms, _NO_ESTIMATE)
    if arrival.grace_ms < 0:
        return _problem(arrival, "grace_ms", arrival.grace_ms, _NO_GRACE)
    if not gang.tasks:
        return _problem(arrival, "tasks", 0, "is too small: a gang needs at least one task")
    if gang.min_member > len(gang.tasks):
        message = f"is more than the {len(gang.tasks)} tasks of the gang"
        return _problem(arrival, "min_member", gang.min_member, message)
    return None


def _problem(arrival: Arrival, path: str, value: object, message: str) -> TraceProblem:
    return TraceProblem("Gang", arrival.gang.key, path, value, message, arrival.where)


def _name_problem(
    arrival: Arrival, queues: set[str], gangs: set[str], tasks: set[str]
) -> TraceProblem | None:
    """Return an error if the queue is unknown or another object has the same key, else None."""
    gang = arrival.gang
    if gang.queue not in queues:
        return _problem(arrival, "queue", gang.queue, "is not a queue of this trace")
    if gang.key in gangs:
        message = "occurs more than once; the first occurrence applies"
        return _problem(arrival, "", None, message)
    keys = Counter(t.key for t in gang.tasks)
    taken = next((key for key, n in keys.items() if n > 1 or key in tasks), None)
    if taken is not None:
        return _problem(arrival, "tasks", taken, "is also the name of another task")
    return None


class _ClusterCapacity:
    """The capacity of the empty cluster, used to find gangs that can never start."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._names = {n.name for n in nodes}
        self._kinds = Counter(n.allocatable for n in nodes)
        self._fits: dict[TaskShape, int] = {}
        self._total: Counter[str] = Counter()
        for kind, number in self._kinds.items():
            self._total.update({resource: amount * number for resource, amount in kind})

    def why_unstartable(self, arrival: Arrival) -> TraceProblem | None:
        """Return an error if a gang can certainly never start, else None."""
        gang = arrival.gang
        unknown = next((t.node for t in gang.tasks if t.node and t.node not in self._names), None)
        if unknown is not None:
            return _problem(arrival, "node", unknown, "is not a node of this trace")
        least = gang.min_member or 1
        shapes = Counter(t.shape for t in gang.tasks)
        num_fitting = sum(min(n, self._count_fitting(shape)) for shape, n in shapes.items())
        if num_fitting < least:
            tasks = f"{num_fitting} of its tasks fit" if num_fitting else "none of its tasks fits"
            message = f"can never start: {tasks} on the empty cluster"
            return _problem(arrival, "min_member", least, message)
        for resource in sorted({name for shape in shapes for name, _ in shape.request}):
            # The `least` smallest requests are a lower bound on the demand of the gang's minimum.
            demand, left = 0, least
            requests = ((dict(shape.request).get(resource, 0), n) for shape, n in shapes.items())
            for amount, number in sorted(requests):
                demand += amount * min(number, left)
                left -= min(number, left)
            if demand > (total := self._total[resource]) and resource in self._total:
                message = f"is more than the {total} of the whole cluster"
                return _problem(arrival, resource, demand, message)
        return None

    def _count_fitting(self, shape: TaskShape) -> int:
        if shape not in self._fits:
            request = {PODS: 1, **{r: amount for r, amount in shape.request if amount > 0}}
            num_fitting = 0
            for allocatable, number in self._kinds.items():
                limits = {PODS: NO_POD_LIMIT, **dict(allocatable)}
                fitting = min(limits.get(r, 0) // amount for r, amount in request.items())
                num_fitting += number * fitting
            self._fits[shape] = num_fitting
        return self._fits[shape]
