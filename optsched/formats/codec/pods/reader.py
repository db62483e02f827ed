"""Decode pods into tasks, and compute the names of their gangs.

The decoder runs for each pod event and never raises an exception.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import ref

from optsched.api import wellknown
from optsched.api.fields import MAX_INT32
from optsched.api.meta import ObjectMeta, parse_meta
from optsched.api.podgroup import group_name_of, group_named_by
from optsched.cluster.amounts import amounts, total
from optsched.cluster.bounded_cache import Interned, RecentCache
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import QueueGate, Task, TaskStatus
from optsched.formats.codec.annotations import (
    cooldown_ms,
    estimate_ms,
    is_movable,
    is_preemptable,
    owner_of,
    read_device_request,
    read_reason,
    saved_ms,
    started_ms,
)
from optsched.formats.codec.gpu_shares import check_gpu_shares, read_gpu_shares
from optsched.formats.codec.nodes import read_required_data
from optsched.formats.codec.numatopologies import check_numa_parts, numa_parts
from optsched.formats.codec.pod_limits import Priorities
from optsched.formats.codec.pods.task_shape import (
    MOST_TERMS,
    label_keys,
    shape_key,
    task_shape,
    within_limits,
)
from optsched.formats.codec.resource_claims import ClaimBook, claim_keys
from optsched.formats.files.diagnostics import join_messages
from optsched.units import FieldError
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.dra_devices import DeviceClaimRequest
    from optsched.cluster.node_resources import Sharding
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import TaskShape

DEFAULT_NAMESPACE: Final = "default"
OTHER_SCHEDULER: Final = "default-scheduler"
IMPLICIT_PREFIX: Final = "pod:"
"""Prefix of the gang name of a pod without a PodGroup; object names contain no colons."""
UPSTREAM_PREFIX: Final = "k8s:"
"""Prefix of the gang name of a `scheduling.k8s.io` PodGroup.

A Volcano PodGroup and a `scheduling.k8s.io` PodGroup may have equal names; the prefix distinguishes
their gangs.
"""

_NOT_TEXT: Final = "is not a string: write it in quotes"
_NOT_WHOLE: Final = f"is not a whole number of at most {MAX_INT32}"
_NO_CLASS: Final = "names a PriorityClass that does not exist; priority 0 is used"
_MAX_DIGITS: Final = 9
_SHAPES_KEPT: Final = 256
"""Number of unused `TaskShape` objects that are kept for pods that arrive later."""

_FINISHED: Final = {"Succeeded": TaskStatus.SUCCEEDED, "Failed": TaskStatus.FAILED}

_Shaped: TypeAlias = "tuple[TaskShape, tuple[FieldError, ...]]"


class BarePodRules(StrEnum):
    """How the scheduler forms gangs from pods that name no PodGroup."""

    PLACE = "place"
    """Each pod that names no PodGroup becomes a gang of its own."""

    WAIT = "wait"
    """A pod waits until controllers create a PodGroup for the pod or its owner."""


SCHEDULER_NAMES: Final = (wellknown.DEFAULT_SCHEDULER_NAME, wellknown.OWN_SCHEDULER_NAME)
"""Names of the schedulers whose pods optsched schedules by default."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Settings that select the pods and nodes of this scheduler and control their decoding.

    Attributes
    ----------
    sharding
        Sharding mode and name without shards, or None to use the sharding in a snapshot dump, if
        any.
    lifting_classes
        Names of PriorityClasses that let a PodGroup of a live cluster exceed the priority of its
        pods; None for all PriorityClasses.
    device_schedulers
        Names of other schedulers in a live cluster whose pods hold the devices that their
        annotations name; None for all schedulers.
    guarantees_override_budgets
        Whether reclaims within a guarantee may exceed every disruption budget, or only the
        budgets that a dump marks.

    """

    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    default_queue: str = wellknown.DEFAULT_QUEUE
    sharding: Sharding | None = None
    bare_pods: BarePodRules = BarePodRules.PLACE
    lifting_classes: frozenset[str] | None = None
    device_schedulers: frozenset[str] | None = None
    guarantees_override_budgets: bool = False


class PodDecoder:
    """A decoder that converts pods to tasks.

    Pods with equal requests and constraints share one `TaskShape` object.

    Attributes
    ----------
    options
        The scheduler names, default queue and rules for decoding pods.
    priorities
        Values of priority classes, for pods without a numeric priority; may be replaced at any
        time.
    book
        The cluster's ResourceClaims, and the pods that name each of them.
    """

    def __init__(
        self, options: DecodeOptions | None = None, priorities: Priorities | None = None
    ) -> None:
        self.options = options or DecodeOptions()
        self.priorities = priorities or Priorities()
        self.book = ClaimBook()
        self._shapes: Interned[TaskShape] = Interned()
        num_used = self._shapes.__len__
        # This deque holds the only strong references to `TaskShape` objects that no task uses.
        self._recent: deque[TaskShape] = deque(maxlen=_SHAPES_KEPT)
        self._label_keys: RecentCache[bytes, tuple[str, ...]] = RecentCache(_SHAPES_KEPT, num_used)
        self._shaped: RecentCache[
            tuple[object, ...], tuple[ref[TaskShape], tuple[FieldError, ...]]
        ] = RecentCache(_SHAPES_KEPT, num_used)

    def task(self, pod: Mapping[str, Any]) -> Task:
        """Decode a pod; `Task.problem` names all invalid fields of the pod."""
        return self.read(pod)[0]

    def read(self, pod: Mapping[str, Any]) -> tuple[Task, tuple[FieldError, ...]]:
        """Decode a pod; return its task, and all field errors whether they block the pod or not."""
        errors: list[FieldError] = []
        meta = _meta(pod, errors)
        spec, status = _mapping(pod, "spec"), _mapping(pod, "status")
        shape, unreadable = self._shape(pod, meta)
        errors += unreadable
        node = _text(spec, "spec.nodeName", errors)
        if unreadable:
            shape = within_limits(shape, is_bound=bool(node))
        claims = claims_of(pod) if spec.get("resourceClaims") else ()
        if len(claims) > MOST_TERMS and not node:
            message = f"claims are too many: write at most {MOST_TERMS}"
            errors.append(FieldError("spec.resourceClaims", len(claims), message))
            claims = ()
        if not spec.get("preemptionPolicy"):
            # The API server copies the preemption policy of the priority class to pods, but a
            # manifest may lack the policy.
            priority_class = _text(spec, "spec.priorityClassName", [])
            if priority_class in self.priorities.never_preempting:
                shape = self._shapes.intern(replace(shape, preempts=False))
        if claims:
            shape = self._with_claims(shape, f"{meta.namespace}/{meta.name}", claims, node)
        remarks: list[FieldError] = []
        annotated = meta.annotations.get(wellknown.TASK_PRIORITY)
        if annotated is not None and is_decimal(annotated.removeprefix("-"), _MAX_DIGITS):
            priority = int(annotated)
        else:
            if annotated is not None:
                path = f"metadata.annotations[{wellknown.TASK_PRIORITY}]"
                errors.append(FieldError(path, annotated, _NOT_WHOLE))
            priority = self._priority(spec, errors, remarks)
        task_status = _task_status(meta, spec, status, node)
        task = Task(
            key=f"{meta.namespace}/{meta.name}",
            shape=shape,
            status=task_status,
            uid=meta.uid,
            gang=self._gang_key(meta, spec),
            role=_label(meta, wellknown.TASK_SPEC),
            index=task_index(meta),
            priority=priority,
            created_ms=meta.creation_ms,
            labels=meta.labels,
            node=node,
            nominated_node=_text(status, "status.nominatedNodeName", errors),
            preemptable=is_preemptable(meta),
            started_ms=started_ms(status),
            saved_ms=saved_ms(meta, remarks),
            cooldown_ms=cooldown_ms(meta, remarks),
            owner=owner_of(meta),
            is_movable=is_movable(meta),
            estimate_ms=estimate_ms(meta, spec, remarks),
            shared_gpus=check_gpu_shares(
                read_gpu_shares(meta.annotations, shape.request, remarks),
                shape.shared_gpus,
                shape.request,
                remarks,
            ),
            device_claims=claims,
            numa=check_numa_parts(numa_parts(meta.annotations, remarks), shape.numa, remarks),
            wants=read_required_data(meta, spec),
            gate=_gate(meta, spec) if task_status is TaskStatus.PENDING else QueueGate.NONE,
            problem=(
                Reason(ReasonCode.INVALID_POD, join_messages(errors))
                if errors
                else read_reason(meta.annotations)
            ),
        )
        return task, (*errors, *remarks)

    def gang_priority(self, pod: Mapping[str, Any]) -> int:
        """Return the priority that a pod gives its gang; `volcano.sh/task-priority` is ignored."""
        return self._priority(_mapping(pod, "spec"), [], [])

    def queue(self, pod: Mapping[str, Any], namespace: Mapping[str, str]) -> str:
        """Return the queue of a pod without a PodGroup.

        `namespace` holds the annotations of the pod's namespace. For a bound pod, the queue that
        the binder recorded takes precedence.
        """
        own = _meta(pod, []).annotations
        if _mapping(pod, "spec").get("nodeName") and (
            admitted := own.get(wellknown.ADMITTED_QUEUE)
        ):
            return admitted
        named = own.get(wellknown.QUEUE_NAME) or namespace.get(wellknown.QUEUE_NAME)
        return named or self.options.default_queue

    def _shape(self, pod: Mapping[str, Any], meta: ObjectMeta) -> _Shaped:
        key = shape_key(pod, meta)
        if key is None:
            return self._fresh(pod, meta)
        keys = self._label_keys.get(key)
        if keys is None:
            keys = self._label_keys.add(key, label_keys(pod))
        # A `TaskShape` depends only on the labels that constraints name, for example in
        # matchLabelKeys.
        full = (key, *map(meta.labels.get, keys))
        known, errors = self._shaped.get(full) or (None, ())
        shape = None if known is None else known()
        if shape is None:
            shape, errors = self._fresh(pod, meta)
            self._recent.append(shape)
            self._shaped.add(full, (ref(shape), errors))
        return shape, errors

    def _fresh(self, pod: Mapping[str, Any], meta: ObjectMeta) -> _Shaped:
        shape, errors = task_shape(pod, meta)
        device = read_device_request(meta.annotations)
        if device is not None:
            shape = replace(shape, device=device)
        return self._shapes.intern(shape), errors

    def _with_claims(
        self, shape: TaskShape, pod: str, keys: tuple[str, ...], node: str
    ) -> TaskShape:
        book, counted = self.book, [shape.request]
        by_key: list[str] = []
        by_request: list[DeviceClaimRequest] = []
        for key in keys:
            claim = book.claims.get(key)
            if claim is not None and book.counts_for(key, pod):
                counted.append(amounts(claim.queue_amounts))
            if claim is None or not claim.is_per_pod or claim.allocation or claim.problem:
                by_key.append(key)
            else:
                by_request.append(claim.request)
        if node:
            by_key, by_request = [], []
        return self._shapes.intern(
            replace(
                shape,
                request=amounts(total(counted)),
                device_claims=tuple(by_key),
                devices=tuple(by_request),
            )
        )

    def foreign_gang_key(self, pod: Mapping[str, Any]) -> str:
        """Return the gang key for the PodGroup that a pod of another scheduler names, or ""."""
        spec = _mapping(pod, "spec")
        if spec.get("schedulerName") in self.options.scheduler_names:
            return ""
        meta = _meta(pod, [])
        group = gang_named_by(meta.annotations, spec)
        return f"{meta.namespace}/{group}" if group else ""

    def _gang_key(self, meta: ObjectMeta, spec: dict[str, Any]) -> str:
        if spec.get("schedulerName") not in self.options.scheduler_names:
            return ""
        group = gang_named_by(meta.annotations, spec)
        if not group and self.options.bare_pods is BarePodRules.PLACE:
            group = IMPLICIT_PREFIX + meta.name
        elif not group:
            owner = meta.controller
            group = wellknown.MADE_GROUP_PREFIX + (owner.uid if owner else meta.uid)
        return f"{meta.namespace}/{group}"

    def _priority(
        self, spec: dict[str, Any], errors: list[FieldError], remarks: list[FieldError]
    ) -> int:
        number = spec.get("priority")
        if type(number) is int and abs(number) <= MAX_INT32:
            return number
        if number is not None:
            errors.append(FieldError("spec.priority", number, _NOT_WHOLE))
        name = _text(spec, "spec.priorityClassName", errors)
        value = self.priorities.value_of(name)
        if value is None:
            remarks.append(FieldError("spec.priorityClassName", name, _NO_CLASS))
        return value or 0


def gang_named_by(annotations: Mapping[str, str], spec: dict[str, Any]) -> str:
    """Return the gang name for the PodGroup that a pod names; empty for a bare pod."""
    name = group_name_of(annotations)
    if name:
        return name
    upstream = group_named_by(spec)
    return UPSTREAM_PREFIX + upstream if upstream else ""


def upstream_gang_key(key: str) -> str:
    """Convert the key of a `scheduling.k8s.io` PodGroup to the key of its gang."""
    namespace, _, name = key.partition("/")
    return f"{namespace}/{UPSTREAM_PREFIX}{name}"


def group_key(gang: str) -> str:
    """Convert a gang key to the key of its Volcano or `scheduling.k8s.io` PodGroup."""
    return gang.replace(f"/{UPSTREAM_PREFIX}", "/", 1)


def is_upstream(gang: Gang) -> bool:
    """Return whether the PodGroup of a gang is in the API group `scheduling.k8s.io`."""
    return gang.name.startswith(UPSTREAM_PREFIX)


def group_name(gang: Gang) -> str:
    """Return the name of a gang's PodGroup."""
    return gang.name.removeprefix(UPSTREAM_PREFIX)


def is_gang_of_bare_pod(key: str) -> bool:
    """Return whether a gang key belongs to a pod without a PodGroup."""
    return key.partition("/")[2].startswith(IMPLICIT_PREFIX)


def has_left_cluster(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is terminating and holds no resources (finished, or never bound)."""
    meta, spec, status = (_mapping(pod, name) for name in ("metadata", "spec", "status"))
    if meta.get("deletionTimestamp") is None:
        return False
    return not spec.get("nodeName") or _finished(status) is not None


def awaits_node(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is not bound, has not finished and is not terminating."""
    meta, spec, status = (_mapping(pod, name) for name in ("metadata", "spec", "status"))
    is_terminating = meta.get("deletionTimestamp") is not None
    return not spec.get("nodeName") and not is_terminating and _finished(status) is None


def is_standing(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is bound, has not finished and is not terminating."""
    meta, spec, status = (_mapping(pod, name) for name in ("metadata", "spec", "status"))
    is_terminating = meta.get("deletionTimestamp") is not None
    return bool(spec.get("nodeName")) and not is_terminating and _finished(status) is None


def claims_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the ResourceClaims that a pod names; empty if the pod has finished."""
    spec, status = _mapping(pod, "spec"), _mapping(pod, "status")
    if not spec.get("resourceClaims") or _finished(status) is not None:
        return ()
    meta = _meta(pod, [])
    return claim_keys(spec, status, meta.namespace, meta.name)


def scheduler_of(pod: Mapping[str, Any]) -> str:
    """Return the `schedulerName` of a pod."""
    name = _mapping(pod, "spec").get("schedulerName")
    return name if isinstance(name, str) and name else OTHER_SCHEDULER


def task_index(meta: ObjectMeta) -> int:
    """Return a pod's index in its role, read from an annotation, a label or the name; or -1."""
    text = _label(meta, wellknown.TASK_INDEX) or meta.name.rpartition("-")[2]
    if text == "-1" or not is_decimal(text, _MAX_DIGITS):
        return -1
    return int(text)


# --- fields ---------------------------------------------------------------------------------------


def _meta(pod: object, errors: list[FieldError]) -> ObjectMeta:
    meta = parse_meta(pod, errors) or ObjectMeta("")
    return meta if meta.namespace else replace(meta, namespace=DEFAULT_NAMESPACE)


def _mapping(pod: object, name: str) -> dict[str, Any]:
    part = pod.get(name) if isinstance(pod, dict) else None
    return part if type(part) is dict else {}


def _text(part: dict[str, Any], path: str, errors: list[FieldError]) -> str:
    value = part.get(path.rpartition(".")[2])
    if type(value) is str:
        return value
    if value is not None:
        errors.append(FieldError(path, value, _NOT_TEXT))
    return ""


def _label(meta: ObjectMeta, key: str) -> str:
    value = meta.annotations.get(key)
    return meta.labels.get(key, "") if value is None else value


def _task_status(
    meta: ObjectMeta, spec: dict[str, Any], status: dict[str, Any], node: str
) -> TaskStatus:
    finished = _finished(status)
    if finished is not None:
        return finished
    if meta.deletion_ms is not None:
        return TaskStatus.RELEASING
    if node:
        return TaskStatus.RUNNING if status.get("phase") == "Running" else TaskStatus.BOUND
    if not spec.get("schedulingGates") or _gate(meta, spec) is QueueGate.CLOSED:
        return TaskStatus.PENDING
    return TaskStatus.GATED


def _gate(meta: ObjectMeta, spec: dict[str, Any]) -> QueueGate:
    """Return the state of a pod's queue gate; NONE if the pod also has other scheduling gates."""
    if meta.annotations.get(wellknown.QUEUE_ALLOCATION_GATE) != "true":
        return QueueGate.NONE
    gates = spec.get("schedulingGates")
    if not gates:
        return QueueGate.OPEN
    own_gate = {"name": wellknown.QUEUE_ALLOCATION_GATE}
    is_own_gate = isinstance(gates, list) and all(gate == own_gate for gate in gates)
    return QueueGate.CLOSED if is_own_gate else QueueGate.NONE


def _finished(status: dict[str, Any]) -> TaskStatus | None:
    phase = status.get("phase")
    return _FINISHED.get(phase) if type(phase) is str else None
