"""The pods of a cluster as tasks, filed by gang and by node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api import kinds, wellknown
from optsched.api.schema import MAX_INT32
from optsched.cluster.task import QueueGate, Task, TaskStatus
from optsched.formats.cards import NOT_BOUND as CARDS_NOT_BOUND
from optsched.formats.groups import AT_THEIR_END
from optsched.formats.marks import without
from optsched.formats.numa_pods import NOT_BOUND as CELLS_NOT_BOUND
from optsched.formats.pods import IMPLICIT_PREFIX, PodDecoder, claims_of, is_gone, scheduler_of
from optsched.kube.cache.bound_devices import Holding, Holdings
from optsched.session.flaws import Flaw, FlawCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.kinds import Kind
    from optsched.cluster.cards import CardUse
    from optsched.cluster.devices import DeviceClaim
    from optsched.cluster.numa import NumaPart
    from optsched.formats.pods import DecodeOptions
    from optsched.formats.priorities import Priorities
    from optsched.kube.client.interfaces import Raw

_NONE: Final[Mapping[str, Task]] = {}
_NOTHING: Final[Mapping[str, Any]] = {}
_CAME_WITH_NODE: Final = "it came with its node, so that no scheduler has bound it"
_NOT_BOUND: Final = (CARDS_NOT_BOUND, CELLS_NOT_BOUND)
_QUEUES: Final = (wellknown.QUEUE_NAME, wellknown.ADMITTED_QUEUE)


@dataclass(frozen=True, slots=True)
class ToBeBound:
    """A pending task is about to be bound to a node, and to parts of it."""

    node: str
    cards: tuple[CardUse, ...] = ()
    numa: tuple[NumaPart, ...] = ()

    def of(self, told: Task) -> Task:
        """The task as it counts."""
        shape = told.shape
        if told.device_claims:
            shape = replace(shape, device_claims=(), devices=())
        bound = replace(told, shape=shape, status=TaskStatus.BOUND, node=self.node)
        return replace(bound, cards=self.cards, numa=self.numa, gate=QueueGate.NONE)

    def is_open(self, told: Task) -> bool:
        """Whether the server has yet to say how it ends."""
        return told.status is TaskStatus.PENDING


@dataclass(frozen=True, slots=True)
class ToLeave:
    """A task that runs, or that is about to be bound, is about to be evicted.

    Attributes
    ----------
    bound
        The bind that the server had not told of when the eviction was planned; None for none.

    """

    bound: ToBeBound | None = None

    def of(self, told: Task) -> Task:
        """See `ToBeBound`."""
        stands = told
        if self.bound is not None and self.bound.is_open(told):
            stands = self.bound.of(told)
        return replace(stands, status=TaskStatus.RELEASING)

    def is_open(self, told: Task) -> bool:
        """See `ToBeBound`."""
        awaits_bind = self.bound is not None and self.bound.is_open(told)
        return awaits_bind or told.status.is_standing


@dataclass(frozen=True, slots=True)
class ToBeNominated:
    """A pending task is about to be told which node it waits for."""

    node: str

    def of(self, told: Task) -> Task:
        """See `ToBeBound`."""
        return replace(told, nominated_node=self.node)

    def is_open(self, told: Task) -> bool:
        """See `ToBeBound`."""
        return told.status is TaskStatus.PENDING


Assumption: TypeAlias = ToBeBound | ToLeave | ToBeNominated


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod.

    Attributes
    ----------
    told
        The task as the server has it.
    task
        The task as it counts: bound already where that is assumed, else the very same.
    assumed
        What is about to become true of it; None for nothing.
    annotations
        Those that its gang takes from it.
    spec
        The part of its specification that priorities are read from.
    raw
        The whole pod where priority classes decide on its priority, else None.

    """

    told: Task
    task: Task
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    raw: Raw | None
    assumed: Assumption | None = None

    def says_the_same(self, other: Pod) -> bool:
        """Whether its gang would be the same with the other."""
        return (
            self.task is other.task
            and self.annotations == other.annotations
            and self.spec == other.spec
        )

    def outline(self) -> Raw:
        """What is left of the pod, as a pod."""
        named = {"name": self.told.name, "namespace": self.told.namespace}
        spec = {**self.spec, "nodeName": self.told.node}
        return {"metadata": {**named, "annotations": self.annotations}, "spec": spec}


class PodShelf:
    """Pods by key, and their tasks by gang and node.

    Attributes
    ----------
    touched_gangs, touched_nodes
        Keys and names whose tasks have changed; emptied by whoever acts on them.
    flaws
        What objects claim that does not count, by kind and key.

    """

    def __init__(self, options: DecodeOptions) -> None:
        self.touched_gangs: set[str] = set()
        self.touched_nodes: set[str] = set()
        self.flaws: dict[tuple[Kind, str], Flaw] = {}
        self._options = options
        self._decoder = PodDecoder(options)
        self._pods: dict[str, Pod] = {}
        self._claiming: dict[str, Raw] = {}
        self._holdings = Holdings()
        self._unsettled: set[str] = set()
        self._named_elsewhere: dict[str, str] = {}
        self._elsewhere: dict[str, set[str]] = {}
        self._by_gang: dict[str, dict[str, Task]] = {}
        self._by_node: dict[str, dict[str, Task]] = {}

    def get(self, key: str) -> Pod | None:
        """A pod; None where there is none that matters."""
        return self._pods.get(key)

    def __getitem__(self, key: str) -> Pod:
        return self._pods[key]

    def of_gang(self, key: str) -> Iterable[Task]:
        """The tasks of a gang."""
        return self._by_gang.get(key, _NONE).values()

    def on_node(self, name: str) -> Iterable[Task]:
        """The tasks that hold resources on a node."""
        return self._by_node.get(name, _NONE).values()

    def is_elsewhere(self, gang: str) -> bool:
        """Whether all pods of a PodGroup that has pods are those of other schedulers."""
        return gang in self._elsewhere and gang not in self._by_gang

    @property
    def gangs(self) -> Iterable[str]:
        """Keys of the gangs that have pods."""
        return self._by_gang.keys()

    def put(self, raw: Raw, *, is_created: bool = False) -> None:
        """Take a state of a pod; is_created: whether it is known to be its first."""
        is_over = is_gone(raw)
        others = self._note_claims(raw, is_over=is_over)
        self._put(raw, is_over=is_over, is_created=is_created)
        for key in others:
            self._put(self._claiming[key], is_over=False)

    def _put(self, raw: Raw, *, is_over: bool, is_created: bool = False) -> None:
        told = self._settled(raw, is_created=is_created)
        self._note_elsewhere(told.key, "" if is_over else self._decoder.group_elsewhere(raw))
        if is_over or not (told.gang or told.status.holds_resources):
            self._remove(told.key)
            return
        before = self._pods.get(told.key)
        assumed = None
        if before is not None:
            told, assumed = _reconciled(before, told)
        task = before.task if before is not None and before.told is told else _as(told, assumed)
        self._file(before, replace(self._pod(told, task, raw), assumed=assumed))

    def _settled(self, raw: Raw, *, is_created: bool) -> Task:
        """Return the task with the devices that it holds; other ones in annotations are a flaw."""
        task, problems = self._decoder.read(raw)
        distrust = _CAME_WITH_NODE if is_created else ""
        scheduler, known = scheduler_of(raw), self._options.device_schedulers
        if known is not None and scheduler not in (*known, *self._options.scheduler_names):
            distrust = (
                f"scheduler {scheduler} is not known to give devices: start optsched's with "
                f"--device-scheduler={scheduler} if it does"
            )
        task, message = self._holdings.settle(task, distrust)
        beyond = (str(problem) for problem in problems if problem.message in _NOT_BOUND)
        message = message or next(beyond, "")
        about = (kinds.POD, task.key)
        self.flaws.pop(about, None)
        if message and task.status.is_standing:
            self.flaws[about] = Flaw(*about, FlawCode.DEVICES, message)
        return task

    def drop(self, key: str) -> None:
        """The pod does not exist any more."""
        self._holdings.forget(key)
        self.flaws.pop((kinds.POD, key), None)
        self._note_elsewhere(key, "")
        self._remove(key)
        self._forget_claims(key)

    def put_claim(self, key: str, claim: DeviceClaim | None) -> None:
        """Take a state of a ResourceClaim; None for one that does not exist."""
        book = self._decoder.book
        if claim is None:
            book.claims.pop(key, None)
        else:
            book.claims[key] = claim
        for pod in sorted(book.users(key) & self._claiming.keys()):
            self._put(self._claiming[pod], is_over=False)

    def _note_claims(self, raw: Raw, *, is_over: bool) -> list[str]:
        """Take note of the claims of a pod; other pods that have to be read again."""
        meta = _part(raw, "metadata")
        key = f"{meta.get('namespace')}/{meta.get('name')}"
        claims = () if is_over else claims_of(raw)
        if not claims and key not in self._claiming:
            return []
        self._claiming.pop(key, None)
        if claims:
            self._claiming[key] = raw
        changed = self._decoder.book.note(key, str(meta.get("uid") or ""), claims)
        return sorted(changed & self._claiming.keys())

    def _forget_claims(self, key: str) -> None:
        if self._claiming.pop(key, None) is not None:
            for other in sorted(self._decoder.book.note(key, "", ()) & self._claiming.keys()):
                self._put(self._claiming[other], is_over=False)

    def _remove(self, key: str) -> None:
        before = self._pods.pop(key, None)
        if before is None:
            return
        self._unsettled.discard(key)
        self._unfile(before.task)

    def assume(self, key: str, assumption: Assumption) -> str:
        """Count a task as what it is about to be; its uid."""
        pod = self._pods[key]
        if isinstance(assumption, ToBeBound):
            held = Holding(pod.told.uid, assumption.node, assumption.cards, assumption.numa)
            self._holdings.bind(key, held)
        self._file(pod, replace(pod, task=assumption.of(pod.told), assumed=assumption))
        return pod.told.uid

    def forget(self, key: str) -> None:
        """Count a task as the server has it."""
        pod = self._pods.get(key)
        if pod is not None and pod.assumed is not None:
            if isinstance(pod.assumed, ToBeBound):
                self._holdings.forget(key)
            self._file(pod, replace(pod, task=pod.told, assumed=None))

    def leave(self, key: str) -> str:
        """Count a task that stands as on its way out; its uid."""
        assumed = self._pods[key].assumed
        return self.assume(key, ToLeave(assumed if isinstance(assumed, ToBeBound) else None))

    def stay(self, key: str) -> None:
        """Count a task as not on its way out after all."""
        pod = self._pods.get(key)
        if pod is None or not isinstance(pod.assumed, ToLeave):
            return
        bound = pod.assumed.bound
        if bound is not None and bound.is_open(pod.told):
            self.assume(key, bound)
        else:
            self.forget(key)

    def awaits_bind(self, key: str) -> bool:
        """Whether a task is on its way out of which the server has not told that it is bound."""
        pod = self._pods.get(key)
        is_leaving = pod is not None and isinstance(pod.assumed, ToLeave)
        return is_leaving and self._pods[key].told.status is TaskStatus.PENDING

    def set_priorities(self, table: Priorities) -> None:
        """Read again what priority classes decide on."""
        self._decoder.priorities = table
        for key in tuple(self._unsettled):
            raw = self._pods[key].raw
            if raw is not None:
                self.put(raw)

    def queue_of(self, pod: Pod, namespace: Mapping[str, str]) -> str:
        """The queue that a pod names; namespace: the annotations of its namespace."""
        return self._decoder.queue(pod.outline(), namespace)

    def priority_of(self, pod: Pod) -> int:
        """The priority of a pod among others."""
        number = pod.spec.get("priority")
        if type(number) is int and abs(number) <= MAX_INT32:
            return number
        return self._decoder.gang_priority(pod.outline())

    def least_priority(self, tasks: Iterable[Task]) -> int | None:
        """The lowest priority of pods that have not ended; None where there are none.

        What `volcano.sh/task-priority` says counts among the pods of one gang alone.
        """
        standing = (self._pods[task.key] for task in tasks if task.status not in AT_THEIR_END)
        return min(map(self.priority_of, standing), default=None)

    def _note_elsewhere(self, key: str, gang: str) -> None:
        """Note the PodGroup that a pod of another scheduler names; empty for none."""
        before = self._named_elsewhere.get(key, "")
        if gang == before:
            return
        if before:
            del self._named_elsewhere[key]
            self._elsewhere[before].discard(key)
            if not self._elsewhere[before]:
                del self._elsewhere[before]
        if gang:
            self._named_elsewhere[key] = gang
            self._elsewhere.setdefault(gang, set()).add(key)
        self.touched_gangs.update({before, gang} - {""})

    def _pod(self, told: Task, task: Task, raw: Raw) -> Pod:
        annotations = _part(_part(raw, "metadata"), "annotations")
        if not told.gang.partition("/")[2].startswith(IMPLICIT_PREFIX):
            annotations = {key: annotations[key] for key in _QUEUES if key in annotations}
        if self._holdings.is_distrusted(told.key):
            annotations = without(annotations, (wellknown.ADMITTED_QUEUE,))
        spec = _part(raw, "spec")
        priority = spec.get("priority")
        if type(priority) is int:
            self._unsettled.discard(told.key)
            return Pod(told, task, annotations, {"priority": priority}, None)
        self._unsettled.add(told.key)
        return Pod(told, task, annotations, spec, raw)

    def _file(self, before: Pod | None, pod: Pod) -> None:
        task = pod.task
        self._pods[task.key] = pod
        if before is not None:
            if before.says_the_same(pod):
                return
            self._unfile(before.task)
        if task.gang:
            self._by_gang.setdefault(task.gang, {})[task.key] = task
            self.touched_gangs.add(task.gang)
        if task.status.holds_resources:
            self._by_node.setdefault(task.node, {})[task.key] = task
            self.touched_nodes.add(task.node)

    def _unfile(self, task: Task) -> None:
        if task.gang:
            _take_out(self._by_gang, task.gang, task.key)
            self.touched_gangs.add(task.gang)
        if task.status.holds_resources:
            _take_out(self._by_node, task.node, task.key)
            self.touched_nodes.add(task.node)


def _reconciled(before: Pod, told: Task) -> tuple[Task, Assumption | None]:
    """What the server tells, and what is still assumed; what was known before stays the same."""
    if told == before.told:
        return before.told, before.assumed
    if before.assumed is None:
        return told, None
    if told == before.task:
        return before.task, None
    # Nothing but its end, or another pod of that name, contradicts what is under way.
    is_same = told.uid == before.told.uid
    return told, before.assumed if is_same and before.assumed.is_open(told) else None


def _as(told: Task, assumed: Assumption | None) -> Task:
    return told if assumed is None else assumed.of(told)


def _take_out(files: dict[str, dict[str, Task]], name: str, key: str) -> None:
    file = files[name]
    del file[key]
    if not file:
        del files[name]


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, dict) else _NOTHING
