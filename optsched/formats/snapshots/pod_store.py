"""The pods of a cluster as tasks, indexed by gang and by node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api import kinds, wellknown
from optsched.api.fields import MAX_INT32
from optsched.api.json_fields import subobject
from optsched.cluster.reasons import Flaw, FlawCode
from optsched.cluster.task import Task, TaskStatus
from optsched.formats.codec.annotations import without_annotations
from optsched.formats.codec.gpu_shares import NOT_BOUND as CARDS_NOT_BOUND
from optsched.formats.codec.numatopologies import NOT_BOUND as CELLS_NOT_BOUND
from optsched.formats.codec.pod_groups import ENDING_STATUSES
from optsched.formats.codec.pods.reader import (
    PodDecoder,
    claims_of,
    has_left_cluster,
    is_gang_of_bare_pod,
    scheduler_of,
)
from optsched.formats.snapshots.assumptions import AssumedBind, AssumedEviction, AssumedNomination
from optsched.formats.snapshots.bound_devices import (
    BoundDevices,
    BoundDeviceStore,
    read_device_condition,
)
from optsched.formats.snapshots.object_stores import store_or_drop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.kinds import Kind
    from optsched.cluster.dra_devices import DeviceClaim
    from optsched.cluster.snapshot_builder import SnapshotBuilder
    from optsched.formats.codec.pod_limits import Priorities
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.formats.snapshots.assumptions import Assumption
    from optsched.formats.snapshots.object_stores import Problems, Raw

_NONE: Final[Mapping[str, Task]] = {}
_CAME_WITH_NODE: Final = "it was created with its node, so no scheduler has bound it"
_NOT_BOUND: Final = (CARDS_NOT_BOUND, CELLS_NOT_BOUND)
DEFAULT_GRACE_S: Final = 30
"""Default of `terminationGracePeriodSeconds` in the API server."""
_QUEUES: Final = (wellknown.QUEUE_NAME, wellknown.ADMITTED_QUEUE)


@dataclass(frozen=True, slots=True)
class Pod:
    """A task that was decoded from a pod, with the pod fields that determine the task's gang.

    Attributes
    ----------
    reported
        The task as reported by the API server.
    task
        The task with the assumption applied; the same object as `reported` if there is none.
    assumed
        The assumption, until a watch confirms it, or None.
    annotations
        The pod annotations that determine its gang.
    spec
        The fields of the pod spec that determine its priority.
    raw
        The whole pod if its priority depends on priority classes, or None.
    submitters
        The users who submitted the pod, as recorded by admission; empty if there is no record.
    joined
        The PodGroup and queue that the pod may join by RBAC roles; see `wellknown.parse_joined`.
    grace_s
        The pod's `terminationGracePeriodSeconds`, in seconds.

    """

    reported: Task
    task: Task
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    raw: Raw | None
    assumed: Assumption | None = None
    grace_s: int = DEFAULT_GRACE_S
    submitters: tuple[wellknown.Subject, ...] = ()
    joined: str | None = None

    def outline(self) -> Raw:
        """Return a Pod object with only the fields that this store keeps."""
        named = {"name": self.reported.name, "namespace": self.reported.namespace}
        spec = {**self.spec, "nodeName": self.reported.node}
        return {"metadata": {**named, "annotations": self.annotations}, "spec": spec}


class PodStore:
    """A store of pods, keyed by pod, and of their tasks, indexed by gang.

    Attributes
    ----------
    changed_gangs
        Keys of gangs whose tasks have changed; the reader of the set clears it.
    flaws
        Flaws of pods and PodGroups, such as false device annotations, keyed by kind and object key.

    """

    def __init__(
        self, options: DecodeOptions, builder: SnapshotBuilder, problems: Problems
    ) -> None:
        self.changed_gangs: set[str] = set()
        self.flaws: dict[tuple[Kind, str], Flaw] = {}
        self._options = options
        self._builder = builder
        self._problems = problems
        self._decoder = PodDecoder(options)
        self._pods: dict[str, Pod] = {}
        self._claiming: dict[str, Raw] = {}
        self._bound_devices = BoundDeviceStore()
        self._unsettled: set[str] = set()
        self._foreign_group_by_pod: dict[str, str] = {}
        self._foreign_pods: dict[str, set[str]] = {}
        self._by_gang: dict[str, dict[str, Task]] = {}

    def find_pod(self, key: str) -> Pod | None:
        """Return a pod, or None if this scheduler has no pod with this key."""
        return self._pods.get(key)

    def __getitem__(self, key: str) -> Pod:
        return self._pods[key]

    def gang_tasks(self, key: str) -> Iterable[Task]:
        """Return the tasks of a gang."""
        return self._by_gang.get(key, _NONE).values()

    def has_only_foreign_pods(self, gang: str) -> bool:
        """Return whether all pods of a PodGroup belong to other schedulers."""
        return gang in self._foreign_pods and gang not in self._by_gang

    @property
    def gangs(self) -> Iterable[str]:
        """Keys of the gangs that have pods."""
        return self._by_gang.keys()

    def apply_pod(self, raw: Raw, *, is_created: bool = False) -> None:
        """Store a pod.

        `is_created` is true if `raw` is known to be the pod's first state.
        """
        is_over = has_left_cluster(raw)
        meta = subobject(raw, "metadata")
        key = f"{meta.get('namespace')}/{meta.get('name')}"
        claims = () if is_over else claims_of(raw)
        others: list[str] = []
        if claims or key in self._claiming:
            self._claiming.pop(key, None)
            if claims:
                self._claiming[key] = raw
            changed = self._decoder.book.record_claims(key, str(meta.get("uid") or ""), claims)
            others = sorted(changed & self._claiming.keys())
        self._decode(raw, is_over=is_over, is_created=is_created)
        for other in others:
            self._decode(self._claiming[other], is_over=False)

    def _decode(self, raw: Raw, *, is_over: bool, is_created: bool = False) -> None:
        reported = self._decode_with_devices(raw, is_created=is_created)
        self._record_foreign(reported.key, "" if is_over else self._decoder.foreign_gang_key(raw))
        if is_over or not (reported.gang or reported.status.holds_resources):
            self._problems.pop((kinds.POD, reported.key), None)
            self._remove(reported.key)
            return
        before = self._pods.get(reported.key)
        assumed = None
        if before is not None:
            if reported.status is TaskStatus.RELEASING and before.task.is_evicted:
                # A pod with another UID has replaced the evicted pod.
                reported = replace(reported, is_evicted=reported.uid == before.task.uid)
            reported, assumed = _reconcile(before, reported)
        if before is not None and before.reported is reported:
            task = before.task
        else:
            task = reported if assumed is None else assumed.apply_to(reported)
        annotations = subobject(subobject(raw, "metadata"), "annotations")
        submitters, joined = read_record(annotations)
        if not is_gang_of_bare_pod(reported.gang):
            annotations = {key: annotations[key] for key in _QUEUES if key in annotations}
        held = self._bound_devices.records.get(reported.key)
        if held is not None and held.distrust:
            annotations = without_annotations(annotations, (wellknown.ADMITTED_QUEUE,))
        spec = subobject(raw, "spec")
        grace = spec.get("terminationGracePeriodSeconds")
        grace_s = grace if type(grace) is int else DEFAULT_GRACE_S
        priority = spec.get("priority")
        kept: Raw | None = raw
        if type(priority) is int:
            self._unsettled.discard(reported.key)
            spec, kept = {"priority": priority}, None
        else:
            self._unsettled.add(reported.key)
        self._index(
            before,
            Pod(reported, task, annotations, spec, kept, assumed, grace_s, submitters, joined),
        )

    def _decode_with_devices(self, raw: Raw, *, is_created: bool) -> Task:
        """Decode a task with its recorded devices; report an error if its annotations differ."""
        task, problems = self._decoder.read(raw)
        store_or_drop(self._problems, (kinds.POD, task.key), problems or None)
        distrust = _CAME_WITH_NODE if is_created else ""
        known = self._options.device_schedulers
        if known is not None and (scheduler := scheduler_of(raw)) not in (
            *known,
            *self._options.scheduler_names,
        ):
            distrust = (
                f"scheduler {scheduler} is not known to allocate devices: if it does, start "
                f"optsched with --device-scheduler={scheduler}"
            )
        if task.node and not self._bound_devices.has_devices(task):
            bound = read_device_condition(raw, task.node, task.shape.request)
            if bound is not None:
                devices = BoundDevices(task.uid, task.node, *bound)
                self._bound_devices.records[task.key] = devices
        task, message = self._bound_devices.reconcile(task, distrust)
        about = (kinds.POD, task.key)
        for problem in problems:
            if not message and problem.message in _NOT_BOUND:
                message = str(problem)
        self.flaws.pop(about, None)
        if message and task.status.is_standing:
            self.flaws[about] = Flaw(*about, FlawCode.DEVICES, message)
        return task

    def delete_pod(self, key: str) -> None:
        """Remove a pod that was deleted."""
        self._bound_devices.records.pop(key, None)
        self.flaws.pop((kinds.POD, key), None)
        self._problems.pop((kinds.POD, key), None)
        self._record_foreign(key, "")
        self._remove(key)
        if self._claiming.pop(key, None) is not None:
            for other in sorted(
                self._decoder.book.record_claims(key, "", ()) & self._claiming.keys()
            ):
                self._decode(self._claiming[other], is_over=False)

    def apply_claim(self, key: str, claim: DeviceClaim | None) -> None:
        """Store a ResourceClaim, or remove it if `claim` is None."""
        book = self._decoder.book
        if claim is None:
            book.claims.pop(key, None)
        else:
            book.claims[key] = claim
        for pod in sorted(book.users(key) & self._claiming.keys()):
            self._decode(self._claiming[pod], is_over=False)

    def _remove(self, key: str) -> None:
        before = self._pods.pop(key, None)
        if before is None:
            return
        self._unsettled.discard(key)
        self._unindex(before.task)

    def assume(self, key: str, assumption: Assumption) -> str:
        """Apply an assumption to a task; return the UID of its pod."""
        pod = self._pods[key]
        if isinstance(assumption, AssumedBind):
            self._bound_devices.records[key] = BoundDevices(
                pod.reported.uid, assumption.node, assumption.shared_gpus, assumption.numa
            )
        self._index(pod, replace(pod, task=assumption.apply_to(pod.reported), assumed=assumption))
        return pod.reported.uid

    def forget(self, key: str) -> None:
        """Drop the assumption about a task, if any."""
        pod = self._pods.get(key)
        if pod is not None and pod.assumed is not None:
            assumed = pod.assumed
            bound = assumed.bound if isinstance(assumed, AssumedEviction) else assumed
            if isinstance(bound, AssumedBind) and bound.is_unconfirmed(pod.reported):
                self._bound_devices.records.pop(key, None)
            self._index(pod, replace(pod, task=pod.reported, assumed=None))

    def forget_nominations(self) -> None:
        """Drop the assumed nominations of all tasks."""
        assumed = [k for k, p in self._pods.items() if isinstance(p.assumed, AssumedNomination)]
        for key in assumed:
            self.forget(key)

    def assume_evicted(self, key: str) -> str:
        """Assume that a task is being evicted; return the UID of its pod."""
        assumed = self._pods[key].assumed
        return self.assume(
            key, AssumedEviction(assumed if isinstance(assumed, AssumedBind) else None)
        )

    def forget_eviction(self, key: str) -> None:
        """Drop the assumption that a task is terminating."""
        pod = self._pods.get(key)
        if pod is None or not isinstance(pod.assumed, AssumedEviction):
            return
        bound = pod.assumed.bound
        if bound is not None and bound.is_unconfirmed(pod.reported):
            self.assume(key, bound)
        else:
            self.forget(key)

    def awaits_bind(self, key: str) -> bool:
        """Return whether a task is assumed evicted before its bind has been confirmed."""
        pod = self._pods.get(key)
        is_leaving = pod is not None and isinstance(pod.assumed, AssumedEviction)
        return is_leaving and self._pods[key].reported.status is TaskStatus.PENDING

    def set_priorities(self, priorities: Priorities) -> None:
        """Set the priority classes; decode again the pods whose priority depends on them."""
        self._decoder.priorities = priorities
        for key in tuple(self._unsettled):
            raw = self._pods[key].raw
            if raw is not None:
                self.apply_pod(raw)

    def queue_of(self, pod: Pod, namespace: Mapping[str, str]) -> str:
        """Return the queue that a pod names.

        `namespace` holds the annotations of the pod's namespace.
        """
        return self._decoder.queue(pod.outline(), namespace)

    def priority_of(self, pod: Pod) -> int:
        """Return a pod's own priority; `volcano.sh/task-priority` is ignored."""
        number = pod.spec.get("priority")
        if type(number) is int and abs(number) <= MAX_INT32:
            return number
        return self._decoder.gang_priority(pod.outline())

    def least_priority(self, tasks: Iterable[Task]) -> int | None:
        """Return the lowest priority of the pods that have not finished, or None if all have.

        The annotation `volcano.sh/task-priority` is ignored, because it applies only within a gang.
        """
        standing = (self._pods[task.key] for task in tasks if task.status not in ENDING_STATUSES)
        return min(map(self.priority_of, standing), default=None)

    def _record_foreign(self, key: str, gang: str) -> None:
        before = self._foreign_group_by_pod.get(key, "")
        if gang == before:
            return
        if before:
            del self._foreign_group_by_pod[key]
            self._foreign_pods[before].discard(key)
            if not self._foreign_pods[before]:
                del self._foreign_pods[before]
        if gang:
            self._foreign_group_by_pod[key] = gang
            self._foreign_pods.setdefault(gang, set()).add(key)
        self.changed_gangs.update({before, gang} - {""})

    def _index(self, before: Pod | None, pod: Pod) -> None:
        task = pod.task
        self._pods[task.key] = pod
        if before is not None:
            if (
                before.task is pod.task
                and before.annotations == pod.annotations
                and before.spec == pod.spec
                and (before.submitters, before.joined) == (pod.submitters, pod.joined)
            ):
                return
            self._unindex(before.task)
        if task.gang:
            self._by_gang.setdefault(task.gang, {})[task.key] = task
            self.changed_gangs.add(task.gang)
        if task.status.holds_resources:
            self._builder.add_resident(task, task.node)

    def _unindex(self, task: Task) -> None:
        if task.gang:
            tasks = self._by_gang[task.gang]
            del tasks[task.key]
            if not tasks:
                del self._by_gang[task.gang]
            self.changed_gangs.add(task.gang)
        if task.status.holds_resources:
            self._builder.remove_resident(task.key, task.node)


def _reconcile(before: Pod, reported: Task) -> tuple[Task, Assumption | None]:
    """Return the reported task, and its assumption or None if the report confirms or refutes it."""
    if reported == before.reported:
        return before.reported, before.assumed
    if before.assumed is None:
        return reported, None
    if reported == before.task:
        return before.task, None
    # An assumption is contradicted only if the pod has finished or has been replaced by a new pod.
    is_same = reported.uid == before.reported.uid
    return reported, before.assumed if is_same and before.assumed.is_unconfirmed(reported) else None


_Record: TypeAlias = tuple[tuple[wellknown.Subject, ...], str | None]


@lru_cache(maxsize=1024)
def _parse_record(text: str) -> _Record:
    return wellknown.parse_submitters(text), wellknown.parse_joined(text)


def read_record(annotations: Mapping[str, Any]) -> _Record:
    """Read the recorded submitters of an object, and the PodGroup that a pod may join.

    Equal annotations result in the same tuple.
    """
    text = annotations.get(wellknown.SUBMITTER)
    return _parse_record(text) if isinstance(text, str) else ((), None)
