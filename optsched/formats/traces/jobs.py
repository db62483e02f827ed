"""Jobs of a published trace as arrivals: gangs of alike tasks, from the first arrival on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.api.wellknown import HOSTNAME, USER
from optsched.cluster.amounts import amounts
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import DEFAULT_QUEUE, ROOT_QUEUE, Gang, Node, Queue
from optsched.cluster.task import DeviceRequest, Task, TaskShape, TaskStatus
from optsched.cluster.trace import Arrival, Trace, TraceProblem, sound_trace
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.files.diagnostics import InstanceError
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found


MOST_NODES: Final = 100_000
"""Of one trace, twenty times those that Kubernetes supports."""

MOST_TASKS: Final = 150_000
"""Of one job: all pods that Kubernetes supports in a cluster."""

_NO_NAME: Final = "is empty: every job needs a name"


@dataclass(frozen=True, slots=True)
class Part:
    """Alike tasks of a job.

    Attributes
    ----------
    role
        Their names; empty where they are the only ones.
    number
        How many.
    demands
        Base units by resource, of one task.
    gpu_milli
        Thousandths of one GPU that each shares; 0 where it shares none.
    models
        GPU models that it may have; empty for any.

    """

    number: int
    demands: Mapping[str, int]
    role: str = ""
    gpu_milli: int = 0
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job in a trace.

    Attributes
    ----------
    at_ms
        When it was submitted, on the clock of the trace.
    duration_ms
        How long it ran; None where it still did at the end.
    queue
        Where it asks.
    user
        The owner; empty where the trace names none.
    parts
        Its tasks, all of which start together.

    """

    name: str
    at_ms: int
    duration_ms: int | None
    parts: tuple[Part, ...]
    queue: str = DEFAULT_QUEUE
    user: str = ""
    where: str = ""


def spread(number: int, parts: int) -> list[int]:
    """A number dealt out evenly, larger parts first."""
    each, more = divmod(number, parts)
    return [each + (i < more) for i in range(parts)]


def equal_tasks(num_tasks: int, demands: Mapping[str, int]) -> tuple[Part, ...]:
    """Tasks that together ask for so much, alike as far as that goes; none of no tasks."""
    if not num_tasks:
        return ()
    dealt = {resource: spread(amount, num_tasks) for resource, amount in demands.items()}
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for i in range(num_tasks):
        one = amounts({resource: of[i] for resource, of in dealt.items()})
        found[one] = found.get(one, 0) + 1
    return tuple(Part(number, dict(one)) for one, number in found.items())


def equal_nodes(number: int, offers: Mapping[str, int], gpu_model: str = "") -> tuple[Node, ...]:
    """Nodes `node-00000`, `node-00001`, ... that each offer so much, in base units by resource."""
    labels = {GPU_MODEL_LABEL: gpu_model} if gpu_model else {}
    return tuple(
        Node(
            name=f"node-{i:05d}",
            allocatable=amounts(offers),
            labels={**labels, HOSTNAME: f"node-{i:05d}"},
            gpu_model=gpu_model,
        )
        for i in range(number)
    )


def listed_nodes(
    file: Path, nodes: Sequence[Node], problems: Sequence[TraceProblem], wanted: str
) -> Sequence[Node]:
    """The nodes that a table beside a trace lists.

    Raises
    ------
    InstanceError
        There are none; says what belongs into the table.

    """
    if nodes:
        return nodes
    raise InstanceError(
        "\n".join([*map(str, problems), f"{file}: there is no node in it: {wanted}"])
    )


def played(
    name: str,
    jobs: Iterable[TracedJob],
    nodes: Sequence[Node],
    problems: Sequence[TraceProblem],
    queues: Sequence[Queue] = (),
) -> Found:
    """Jobs in the order given as a trace that begins with the first of them.

    A resource that no node offers is dropped; a job that requests nothing else is skipped, and the
    number of these is reported. The rest as in `sound_trace`: jobs that can not be replayed are
    reported.

    Raises
    ------
    InstanceError
        There is no node.

    """
    if not nodes:
        raise InstanceError(
            "\n".join([*map(str, problems), f"{name}: there are no nodes to play it on"])
        )
    told = list(problems)
    listed = list(jobs)
    makers = _Maker(nodes, _start_ms(listed))
    arrivals = [found for job in listed if (found := makers.arrival(job, told)) is not None]
    if makers.num_idle:
        message = f"{makers.num_idle} jobs that ask for nothing that the nodes offer are left out"
        told.append(TraceProblem("Job", "", "", None, message, name))
    asked = sorted({a.gang.queue for a in arrivals} - {q.name for q in queues})
    every = {q: Queue(q) for q in (DEFAULT_QUEUE, ROOT_QUEUE, *asked)} | {q.name: q for q in queues}
    sound, more = sound_trace(Trace(name, tuple(nodes), tuple(every.values()), tuple(arrivals)))
    return _from_zero(sound), (*told, *more)


def _start_ms(jobs: Sequence[TracedJob]) -> int:
    """The time of the first job, if no earlier time is written; else the clock may have jumped."""
    first = jobs[0].at_ms if jobs else 0
    return first if all(job.at_ms >= first for job in jobs) else 0


def _from_zero(trace: Trace) -> Trace:
    first = trace.arrivals[0].at_ms if trace.arrivals else 0
    if not first:
        return trace
    return replace(trace, arrivals=tuple(_earlier(a, first) for a in trace.arrivals))


def _earlier(arrival: Arrival, by_ms: int) -> Arrival:
    at_ms = arrival.at_ms - by_ms
    tasks = tuple(replace(t, created_ms=at_ms) for t in arrival.gang.tasks)
    gang = replace(arrival.gang, created_ms=at_ms, waiting_since_ms=at_ms, tasks=tasks)
    return replace(arrival, at_ms=at_ms, gang=gang)


class _Maker:
    """Makes arrivals of jobs; alike tasks get the very same shape."""

    def __init__(self, nodes: Sequence[Node], start_ms: int) -> None:
        self._start_ms = start_ms
        self._offered = {resource for node in nodes for resource, amount in node.allocatable}
        self._shapes: dict[tuple[object, ...], TaskShape] = {}
        self.num_idle = 0

    def arrival(self, job: TracedJob, problems: list[TraceProblem]) -> Arrival | None:
        if not job.name:
            problems.append(TraceProblem("Job", "", "name", "''", _NO_NAME, job.where))
            return None
        shaped = [(part, self._shape(part)) for part in job.parts if part.number]
        if not any(shape.request or shape.device for _, shape in shaped):
            self.num_idle += 1
            return None
        key = f"{DEFAULT_NAMESPACE}/{job.name}"
        at_ms = job.at_ms - self._start_ms
        tasks = tuple(self._tasks(key, at_ms, shaped))
        gang = Gang(
            key=key,
            queue=job.queue,
            min_member=len(tasks),
            created_ms=at_ms,
            waiting_since_ms=at_ms,
            tasks=tasks,
            annotations={USER: job.user} if job.user else {},
        )
        return Arrival(at_ms, gang, job.duration_ms, where=job.where)

    @staticmethod
    def _tasks(key: str, at_ms: int, shaped: Iterable[tuple[Part, TaskShape]]) -> Iterable[Task]:
        index = 0
        for part, shape in shaped:
            for _ in range(part.number):
                name = f"{key}-{part.role}-{index}" if part.role else f"{key}-{index}"
                yield Task(
                    name,
                    shape,
                    TaskStatus.PENDING,
                    gang=key,
                    role=part.role,
                    index=index,
                    created_ms=at_ms,
                )
                index += 1

    def _shape(self, part: Part) -> TaskShape:
        demands = {r: n for r, n in part.demands.items() if n and r in self._offered}
        milli = part.gpu_milli if GPU in self._offered else 0
        key = (amounts(demands), milli, part.models)
        if key not in self._shapes:
            self._shapes[key] = TaskShape(
                request=amounts(demands),
                node_affinity=_choose(part.models),
                device=DeviceRequest(1, milli) if milli else None,
            )
        return self._shapes[key]


def _choose(models: tuple[str, ...]) -> NodeSelector | None:
    if not models:
        return None
    return NodeSelector((NodeTerm((Requirement(GPU_MODEL_LABEL, Operator.IN, models),)),))
