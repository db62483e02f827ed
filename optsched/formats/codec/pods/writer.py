"""Encode a task as a pod manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.meta import ObjectMeta
from optsched.cluster.dra_devices import is_class_quota
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import QueueGate, TaskStatus
from optsched.formats.codec.annotations import (
    DEVICE,
    OWNER,
    PROBLEM,
    WAITING_SINCE,
    encode_device_request,
    encode_plugin_annotations,
    encode_reason,
    is_preemptable,
    time_text,
)
from optsched.formats.codec.gpu_shares import CARDS, gpu_share_annotations, request_text
from optsched.formats.codec.nodes import required_data_annotations
from optsched.formats.codec.numatopologies import NEEDS, decision_marks, implied_needs, needs_text
from optsched.formats.codec.pods.reader import OTHER_SCHEDULER, group_name, is_upstream, task_index
from optsched.formats.codec.selectors import (
    label_selector_fields,
    node_selector_fields,
    node_term_fields,
    toleration_fields,
)
from optsched.units import format_resource_list

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import PodTerm, SpreadTerm, Task, TaskShape

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_GATE: Final = "optsched.io/gated"

_PHASE_OF: Final = {
    TaskStatus.RUNNING: "Running",
    TaskStatus.RELEASING: "Running",
    TaskStatus.SUCCEEDED: "Succeeded",
    TaskStatus.FAILED: "Failed",
}


def pod_manifest(task: Task, gang: Gang | None) -> dict[str, Any]:
    """Return the pod manifest of a task.

    `gang` is the task's gang, or None for a pod of another scheduler.
    """
    priority = gang.priority if gang is not None and gang.is_implicit else task.priority
    spec: dict[str, Any] = {
        "schedulerName": wellknown.DEFAULT_SCHEDULER_NAME if task.gang else OTHER_SCHEDULER,
        "priority": priority,
    }
    if task.node:
        spec["nodeName"] = task.node
    if task.gate is QueueGate.CLOSED:
        spec["schedulingGates"] = [{"name": wellknown.QUEUE_ALLOCATION_GATE}]
    elif task.status is TaskStatus.GATED:
        spec["schedulingGates"] = [{"name": _GATE}]
    if gang is not None and is_upstream(gang):
        spec["schedulingGroup"] = {"podGroupName": group_name(gang)}
    spec |= _shape_fields(task.shape)
    if task.device_claims:
        spec["resourceClaims"] = [
            {"name": f"c{i}", "resourceClaimName": key.partition("/")[2]}
            for i, key in enumerate(task.device_claims)
        ]
    status: dict[str, Any] = {"phase": _PHASE_OF.get(task.status, "Pending")}
    if task.nominated_node:
        status["nominatedNodeName"] = task.nominated_node
    if task.started_ms:
        # The transition time of PodScheduled is the time at which the pod was bound.
        bound = {"type": "PodScheduled", "status": "True"}
        status["conditions"] = [{**bound, "lastTransitionTime": time_text(task.started_ms)}]
    created = time_text(task.created_ms)
    annotations = {**_gang_annotations(gang), **_task_annotations(task, priority)}
    is_terminating = task.status is TaskStatus.RELEASING
    metadata = {
        "name": task.name,
        "namespace": task.namespace,
        **({"uid": task.uid} if task.uid else {}),
        **({"labels": dict(task.labels)} if task.labels else {}),
        **({"annotations": annotations} if annotations else {}),
        "creationTimestamp": created,
        **({"deletionTimestamp": created} if is_terminating else {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _gang_annotations(gang: Gang | None) -> dict[str, str]:
    if gang is None:
        return {}
    if gang.is_implicit:
        waits = gang.waiting_since_ms
        since = {} if waits == gang.created_ms else {WAITING_SINCE: time_text(waits)}
        return {**gang.annotations, wellknown.QUEUE_NAME: gang.queue, **since}
    annotations = {} if is_upstream(gang) else {wellknown.GROUP_NAME_ANNOTATIONS[0]: gang.name}
    if is_missing(gang):
        annotations[wellknown.QUEUE_NAME] = gang.queue
    return annotations


def is_missing(gang: Gang) -> bool:
    """Return whether the PodGroup of a gang does not exist."""
    return gang.problem is not None and gang.problem.code is ReasonCode.POD_GROUP_NOT_FOUND


def _task_annotations(task: Task, priority: int) -> dict[str, str]:
    """Return annotations for task properties that the pod's labels and name do not express."""
    annotations: dict[str, str] = {}
    without_annotations = ObjectMeta(task.name, labels=task.labels)
    if task.role != task.labels.get(wellknown.TASK_SPEC, ""):
        annotations[wellknown.TASK_SPEC] = task.role
    if task.index != task_index(without_annotations):
        annotations[wellknown.TASK_INDEX] = str(task.index)
    if task.priority != priority:
        annotations[wellknown.TASK_PRIORITY] = str(task.priority)
    if task.preemptable != is_preemptable(without_annotations):
        annotations[wellknown.PREEMPTABLE] = str(task.preemptable).lower()
    if task.owner:
        annotations[OWNER] = task.owner
    if task.is_movable != bool(task.owner):
        annotations[wellknown.MOVABLE] = str(task.is_movable).lower()
    if task.cooldown_ms:
        annotations[wellknown.COOLDOWN_TIME] = f"{task.cooldown_ms}ms"
    if task.saved_ms:
        annotations[wellknown.CHECKPOINTED_AT] = time_text(task.saved_ms)
    if task.estimate_ms:
        annotations[wellknown.RUNNING_ESTIMATE] = f"{task.estimate_ms}ms"
    if task.gate is not QueueGate.NONE:
        annotations[wellknown.QUEUE_ALLOCATION_GATE] = "true"
    if task.problem is not None:
        annotations[PROBLEM] = encode_reason(task.problem)
    annotations |= encode_plugin_annotations(task.shape.notes)
    if task.shape.shared_gpus:
        annotations[CARDS] = request_text(task.shape.shared_gpus)
    if task.shape.numa != implied_needs(task.shape.request):
        annotations[NEEDS] = needs_text(task.shape.numa)
    if task.shape.device is not None:
        annotations[DEVICE] = encode_device_request(task.shape.device)
    return {
        **annotations,
        **gpu_share_annotations(task.shared_gpus),
        **decision_marks(task.numa),
        **required_data_annotations(task.wants),
    }


# --- shape ----------------------------------------------------------------------------------------


def _shape_fields(shape: TaskShape) -> dict[str, Any]:
    near = [(w, term) for w, term in shape.preferred_pods if w >= 0]
    apart = [(-w, term) for w, term in shape.preferred_pods if w < 0]
    nodes: dict[str, Any] = {}
    if shape.node_affinity is not None:
        nodes[_REQUIRED] = node_selector_fields(shape.node_affinity)
    if shape.preferred_nodes:
        nodes[_PREFERRED] = [
            {"weight": weight, "preference": node_term_fields(term)}
            for weight, term in shape.preferred_nodes
        ]
    parts = {
        "nodeAffinity": nodes,
        "podAffinity": _pod_affinity(shape.pod_affinity, near),
        "podAntiAffinity": _pod_affinity(shape.pod_anti_affinity, apart),
    }
    # Amounts that claims charge to the queue are omitted: the reader computes the amounts from the
    # claims.
    plain = {name: amount for name, amount in shape.request if not is_class_quota(name)}
    # A request of 0 is written, because a limit alone would imply an equal request.
    requests = {**{name: 0 for name, _ in shape.burst}, **plain}
    resources = {"requests": format_resource_list(requests)}
    if shape.burst:
        limits = {name: amount + requests[name] for name, amount in shape.burst}
        resources["limits"] = format_resource_list(limits)
    container: dict[str, Any] = {"name": "main", "resources": resources}
    if shape.host_ports:
        container["ports"] = [
            {
                "containerPort": each.port,
                "hostPort": each.port,
                "hostIP": each.address,
                "protocol": each.protocol,
            }
            for each in shape.host_ports
        ]
    fields = {
        "containers": [container],
        "nodeSelector": dict(shape.node_selector),
        "affinity": {name: part for name, part in parts.items() if part},
        "preemptionPolicy": "" if shape.preempts else "Never",
        "tolerations": list(map(toleration_fields, shape.tolerations)),
        "topologySpreadConstraints": [_spread(each) for each in shape.spread],
        "volumes": [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": key.partition("/")[2]}}
            for i, key in enumerate(shape.claims)
        ],
    }
    return {name: value for name, value in fields.items() if value}


def _pod_affinity(
    required: tuple[PodTerm, ...], preferred: list[tuple[int, PodTerm]]
) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if required:
        parts[_REQUIRED] = [_pod_term(term) for term in required]
    if preferred:
        parts[_PREFERRED] = [
            {"weight": weight, "podAffinityTerm": _pod_term(term)} for weight, term in preferred
        ]
    return parts


def _pod_term(term: PodTerm) -> dict[str, Any]:
    fields: dict[str, Any] = {"topologyKey": term.topology_key}
    if term.selector is not None:
        fields["labelSelector"] = label_selector_fields(term.selector)
    if term.namespaces:
        fields["namespaces"] = list(term.namespaces)
    if term.namespace_selector is not None:
        fields["namespaceSelector"] = label_selector_fields(term.namespace_selector)
    return fields


def _spread(term: SpreadTerm) -> dict[str, Any]:
    selector = term.selector
    return {
        "maxSkew": term.max_skew,
        "topologyKey": term.topology_key,
        "whenUnsatisfiable": "DoNotSchedule" if term.required else "ScheduleAnyway",
        **({} if selector is None else {"labelSelector": label_selector_fields(selector)}),
        "minDomains": term.min_domains,
        "nodeAffinityPolicy": "Honor" if term.honour_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if term.honour_taints else "Ignore",
    }
