"""A cheap key for the part of a pod that its shape is made of.

Equal keys come from equal parts. Parts that are equal have different keys only where their fields
come in another order; then the shape is read once more. Marshal's format 2 is used because it has
no back references, which would depend on what else holds a text.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.gpu_shares import CARDS
from optsched.formats.codec.pods.numa_requests import NEEDS
from optsched.formats.codec.pods.plugin_annotations import plugin_annotations_key
from optsched.formats.codec.snapshot_annotations import DEVICE

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta

_FORMAT: Final = 2
_OTHER_CONDITIONS: Final = frozenset(
    {"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"}
)
"""Conditions of every pod, none of which says anything about a resize."""


def shape_key(pod: Any, meta: ObjectMeta) -> bytes | None:  # noqa: ANN401  anything may come
    """A key of everything in a shape but the pod's labels; None where the pod is ill-formed."""
    parts: Any
    try:
        spec, status = pod.get("spec"), pod.get("status")
        spec, status = {} if spec is None else spec, {} if status is None else status
        own = map(meta.annotations.get, (DEVICE, CARDS, NEEDS))
        marks = (*own, *plugin_annotations_key(meta.annotations, meta.namespace))
        parts = (*_spec_key(spec), _relations_key(spec, meta), _status_key(status), marks)
        return marshal.dumps(parts, _FORMAT)
    except (AttributeError, TypeError, ValueError):
        return None


def _spec_key(spec: dict[str, Any]) -> tuple[object, ...]:
    get = spec.get
    containers, starters = get("containers"), get("initContainers")
    return (
        # What is empty stands for itself: an empty list is fine where false is an error.
        containers and [_container_key(c) for c in containers],
        starters and [(*_container_key(c), c.get("restartPolicy")) for c in starters],
        get("overhead"),
        get("resources"),
        get("nodeSelector"),
        get("tolerations"),
        get("hostNetwork"),
        get("preemptionPolicy"),
    )


def _container_key(container: dict[str, Any]) -> tuple[object, ...]:
    return container.get("name"), container.get("resources"), container.get("ports")


def _relations_key(spec: dict[str, Any], meta: ObjectMeta) -> tuple[object, ...]:
    """The parts that mean something else in another namespace or for another pod."""
    affinity, spread = spec.get("affinity"), spec.get("topologySpreadConstraints")
    volumes = spec.get("volumes")
    claims = volumes and [v for v in volumes if _claims(v)]
    if not affinity and not spread and not claims:
        return affinity, spread, claims
    name = meta.name if claims and any("ephemeral" in v for v in claims) else None
    return affinity, spread, claims, meta.namespace, name


def _claims(volume: dict[str, Any]) -> bool:
    get = volume.get
    return get("persistentVolumeClaim") is not None or get("ephemeral") is not None


def _status_key(status: dict[str, Any]) -> tuple[object, ...]:
    """What a kubelet has given to containers, and what it says about changing that."""
    running, starting = status.get("containerStatuses"), status.get("initContainerStatuses")
    if not running and not starting:
        return running, starting
    conditions = status.get("conditions")
    return (
        running and [_container_status_key(s) for s in running],
        starting and [_container_status_key(s) for s in starting],
        conditions and [_resize(c) for c in conditions if c.get("type") not in _OTHER_CONDITIONS],
    )


def _container_status_key(status: dict[str, Any]) -> tuple[object, ...]:
    return status.get("name"), status.get("allocatedResources"), status.get("resources")


def _resize(condition: dict[str, Any]) -> tuple[object, ...]:
    return condition.get("type"), condition.get("reason")
