"""The requests and constraints of a pod as a `TaskShape`, and a cache key for these fields."""

from __future__ import annotations

import marshal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.cluster.amounts import amounts
from optsched.cluster.selectors import Operator
from optsched.cluster.task import HostPort, PodTerm, SpreadTerm, TaskShape, requirements_of
from optsched.formats.codec.annotations import (
    DEVICE,
    plugin_annotations_key,
    read_plugin_annotations,
)
from optsched.formats.codec.ascend_npus import is_npu_amount
from optsched.formats.codec.core_schemas import POD
from optsched.formats.codec.gpu_shares import CARDS, VGPU_PERCENT, read_gpu_share_requests
from optsched.formats.codec.numatopologies import NEEDS, numa_needs
from optsched.formats.codec.pods.resource_requests import is_sidecar, pod_burst, pod_request
from optsched.formats.codec.selectors import (
    label_selector,
    node_selector,
    node_term,
    toleration,
    with_label_keys,
)
from optsched.units import MAX_ON_NODE, FieldError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.api.meta import ObjectMeta

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_TOO_MUCH: Final = f"is more than any node has: request at most {MAX_ON_NODE} in all"


def task_shape(pod: object, meta: ObjectMeta) -> tuple[TaskShape, tuple[FieldError, ...]]:
    """Return a pod's requests and scheduling constraints, and all field errors.

    The returned `TaskShape` omits invalid fields, so a pod with errors must not be placed.
    """
    errors: list[FieldError] = []
    whole = Fields(pod, POD, "", errors)
    spec = whole.record("spec")
    affinity = spec.record("affinity")
    nodes = affinity.record("nodeAffinity")
    pods, apart = affinity.record("podAffinity"), affinity.record("podAntiAffinity")
    required = nodes.optional_record(_REQUIRED)
    requested = pod_request(spec, whole.record("status"))
    # No node advertises a resource that only states an amount per GPU or NPU.
    for name in [n for n in requested if n == VGPU_PERCENT or is_npu_amount(n)]:
        del requested[name]
    excessive = [name for name, amount in requested.items() if amount > MAX_ON_NODE]
    errors += [FieldError(f"spec: sum of {n}", requested.pop(n), _TOO_MUCH) for n in excessive]
    request = amounts(requested)
    shape = TaskShape(
        request=request,
        node_selector=tuple(sorted(spec.texts_by_name("nodeSelector").items())),
        node_affinity=None if required is None else node_selector(required),
        preferred_nodes=tuple(
            (each.integer("weight"), node_term(each.record("preference")))
            for each in nodes.records(_PREFERRED)
        ),
        tolerations=tuple(toleration(each) for each in spec.records("tolerations")),
        pod_affinity=tuple(_pod_term(each, meta) for each in pods.records(_REQUIRED)),
        pod_anti_affinity=tuple(_pod_term(each, meta) for each in apart.records(_REQUIRED)),
        preferred_pods=tuple(
            (sign * each.integer("weight"), _pod_term(each.record("podAffinityTerm"), meta))
            for terms, sign in ((pods, 1), (apart, -1))
            for each in terms.records(_PREFERRED)
        ),
        spread=tuple(_spread(each, meta) for each in spec.records("topologySpreadConstraints")),
        host_ports=_host_ports(spec),
        claims=_claims(spec, meta),
        preempts=spec.text("preemptionPolicy") != "Never",
        shared_gpus=read_gpu_share_requests(pod, meta.annotations),
        numa=numa_needs(spec, meta.annotations),
        notes=read_plugin_annotations(meta.annotations, meta.namespace),
        burst=amounts(pod_burst(spec, dict(request))),
    )
    errors += _beyond_limits(shape)
    # A list of constraints may be read several times, but each error in the list is reported once.
    return shape, tuple({(e.path, e.message): e for e in errors}.values())


def _beyond_limits(shape: TaskShape) -> Iterator[FieldError]:
    for name, path in _LIMITED.items():
        number = len(getattr(shape, name))
        if number > MOST_TERMS:
            message = f"terms are too many: write at most {MOST_TERMS}"
            yield FieldError(path, number, message)
    for name, requirements in requirements_of(shape).items():
        if (number := len(requirements)) > MOST_REQUIREMENTS:
            message = f"requirements are too many: write at most {MOST_REQUIREMENTS} in all terms"
            path = f"spec.affinity.nodeAffinity.{_REQUIRED}"
            yield FieldError(_LIMITED.get(name, path), number, message)
    if len(shape.request) > MOST_TERMS:
        message = f"resource names are too many: write at most {MOST_TERMS} in all containers"
        yield FieldError("spec.containers", len(shape.request), message)


def within_limits(shape: TaskShape, *, is_bound: bool) -> TaskShape:
    """Return a task shape without the lists that exceed `MOST_TERMS` or `MOST_REQUIREMENTS`.

    The result is `shape` itself if no list exceeds its limit. A pod with a list that exceeds its
    limit is reported and not scheduled. A running pod keeps its request and its anti-affinity even
    if they exceed a limit.
    """
    stays = {"pod_anti_affinity", "request"} if is_bound else set()
    names = [name for name in (*_LIMITED, "request") if name not in stays]
    requirements = requirements_of(shape)
    cut: dict[str, Any] = {
        name: ()
        for name in names
        if len(getattr(shape, name)) > MOST_TERMS
        or len(requirements.get(name, ())) > MOST_REQUIREMENTS
    }
    if len(requirements["node_affinity"]) > MOST_REQUIREMENTS:
        cut["node_affinity"] = None
    return replace(shape, **cut) if cut else shape


MOST_TERMS: Final = 100
"""Maximum number of terms in each list of a pod's constraints, and of resources in its request."""
MOST_REQUIREMENTS: Final = 1000
"""Maximum number of label requirements in all terms of one list of constraints."""
_LIMITED: Final = {
    "node_selector": "spec.nodeSelector",
    "preferred_nodes": f"spec.affinity.nodeAffinity.{_PREFERRED}",
    "pod_affinity": f"spec.affinity.podAffinity.{_REQUIRED}",
    "pod_anti_affinity": f"spec.affinity.podAntiAffinity.{_REQUIRED}",
    "preferred_pods": f"spec.affinity.podAffinity.{_PREFERRED}",
    "spread": "spec.topologySpreadConstraints",
}


# --- other pods -----------------------------------------------------------------------------------


def _pod_term(fields: Fields, meta: ObjectMeta) -> PodTerm:
    selector = label_selector(fields.optional_record("labelSelector"))
    labels = meta.labels
    selector = with_label_keys(selector, fields.texts("matchLabelKeys"), Operator.IN, labels)
    unlike = fields.texts("mismatchLabelKeys")
    selector = with_label_keys(selector, unlike, Operator.NOT_IN, labels)
    others = label_selector(fields.optional_record("namespaceSelector"))
    namespaces = tuple(sorted(set(fields.texts("namespaces"))))
    return PodTerm(
        selector=selector,
        namespaces=namespaces or ((meta.namespace,) if others is None else ()),
        namespace_selector=others,
        topology_key=fields.text("topologyKey"),
    )


def _spread(fields: Fields, meta: ObjectMeta) -> SpreadTerm:
    selector = label_selector(fields.optional_record("labelSelector"))
    keys = fields.texts("matchLabelKeys")
    return SpreadTerm(
        max_skew=fields.integer("maxSkew"),
        topology_key=fields.text("topologyKey"),
        selector=with_label_keys(selector, keys, Operator.IN, meta.labels),
        namespace=meta.namespace,
        required=fields.text("whenUnsatisfiable") == "DoNotSchedule",
        min_domains=fields.integer("minDomains"),
        honour_affinity=fields.text("nodeAffinityPolicy") == "Honor",
        honour_taints=fields.text("nodeTaintsPolicy") == "Honor",
    )


# --- ports and volumes ----------------------------------------------------------------------------


def _host_ports(spec: Fields) -> tuple[HostPort, ...]:
    """Return the distinct host ports of containers and sidecars (`GetHostPorts`), sorted."""
    on_host = spec.boolean("hostNetwork")
    sidecars = (each for each in spec.records("initContainers") if is_sidecar(each))
    ports: set[tuple[str, str, int]] = set()
    for container in (*spec.records("containers"), *sidecars):
        for port in container.records("ports"):
            number = port.integer("hostPort") or (port.integer("containerPort") if on_host else 0)
            if number:
                ports.add((port.text("protocol"), port.text("hostIP"), number))
    return tuple(HostPort(*each) for each in sorted(ports))


def _claims(spec: Fields, meta: ObjectMeta) -> tuple[str, ...]:
    """Return a pod's PVC keys; an ephemeral volume's claim is named `<pod>-<volume>`."""
    names: set[str] = set()
    for volume in spec.records("volumes"):
        claim = volume.optional_record("persistentVolumeClaim")
        if claim is not None:
            names.add(claim.text("claimName"))
        elif volume.optional_record("ephemeral") is not None:
            names.add(f"{meta.name}-{volume.text('name')}")
    return tuple(f"{meta.namespace}/{name}" for name in sorted(names) if name)


def label_keys(pod: object) -> tuple[str, ...]:
    """Return the sorted keys of the pod labels on which the pod's constraints depend."""
    spec = Fields(pod, POD, "", []).record("spec")
    affinity = spec.record("affinity")
    keys: set[str] = set()
    for kind in ("podAffinity", "podAntiAffinity"):
        part = affinity.record(kind)
        preferred = (each.record("podAffinityTerm") for each in part.records(_PREFERRED))
        for term in (*part.records(_REQUIRED), *preferred):
            keys.update(term.texts("matchLabelKeys"), term.texts("mismatchLabelKeys"))
    for spread in spec.records("topologySpreadConstraints"):
        keys.update(spread.texts("matchLabelKeys"))
    return tuple(sorted(keys))


# --- shape key ------------------------------------------------------------------------------------

_FORMAT: Final = 2
_OTHER_CONDITIONS: Final = frozenset(
    {"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"}
)
"""Types of the pod conditions that every pod has and that do not concern an in-place resize."""


def shape_key(pod: Any, meta: ObjectMeta) -> bytes | None:  # noqa: ANN401  anything may come
    """Return a cache key of a pod's scheduling fields except labels; None for a malformed field."""
    parts: Any
    try:
        spec, status = pod.get("spec"), pod.get("status")
        spec, status = {} if spec is None else spec, {} if status is None else status
        get = spec.get
        containers, starters = get("containers"), get("initContainers")
        affinity, spread, volumes = (
            get("affinity"),
            get("topologySpreadConstraints"),
            get("volumes"),
        )
        claims = volumes and [
            v
            for v in volumes
            if v.get("persistentVolumeClaim") is not None or v.get("ephemeral") is not None
        ]
        # Affinity, spread and claims depend on the namespace or name of the pod.
        relations: tuple[object, ...] = affinity, spread, claims
        if affinity or spread or claims:
            name = meta.name if claims and any("ephemeral" in v for v in claims) else None
            relations = (*relations, meta.namespace, name)
        own = map(meta.annotations.get, (DEVICE, CARDS, NEEDS))
        parts = (
            # The cache key distinguishes empty values by type, because `false` is an error where an
            # empty list is valid.
            containers and [_container_key(c) for c in containers],
            starters and [(*_container_key(c), c.get("restartPolicy")) for c in starters],
            get("overhead"),
            get("resources"),
            get("nodeSelector"),
            get("tolerations"),
            get("hostNetwork"),
            get("preemptionPolicy"),
            relations,
            _status_key(status),
            (*own, *plugin_annotations_key(meta.annotations, meta.namespace)),
        )
        return marshal.dumps(parts, _FORMAT)
    except (AttributeError, TypeError, ValueError):
        return None


def _container_key(container: dict[str, Any]) -> tuple[object, ...]:
    return container.get("name"), container.get("resources"), container.get("ports")


def _status_key(status: dict[str, Any]) -> tuple[object, ...]:
    running, starting = status.get("containerStatuses"), status.get("initContainerStatuses")
    if not running and not starting:
        return running, starting
    conditions = status.get("conditions")
    return (
        *(
            part and [tuple(map(s.get, ("name", "allocatedResources", "resources"))) for s in part]
            for part in (running, starting)
        ),
        conditions
        and [
            (c.get("type"), c.get("reason"))
            for c in conditions
            if c.get("type") not in _OTHER_CONDITIONS
        ],
    )
