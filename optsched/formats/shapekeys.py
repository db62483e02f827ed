"""A cheap key for the part of a pod that its shape is made of.

Equal keys come from equal parts. Parts that are equal have different keys only where their fields
come in another order; then the shape is read once more. Marshal's format 2 is used because it has
no back references, which would depend on what else holds a text.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.marks import DEVICE

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta

_FORMAT: Final = 2
_CLAIMS: Final = ("persistentVolumeClaim", "ephemeral")


def shape_key(pod: Any, meta: ObjectMeta) -> bytes | None:  # noqa: ANN401  anything may come
    """A key of everything in a shape but the pod's labels; None where the pod is ill-formed."""
    parts: Any
    try:
        spec, status = pod.get("spec"), pod.get("status")
        spec, status = {} if spec is None else spec, {} if status is None else status
        parts = (*_asked(spec), _related(spec, meta), _held(status), meta.annotations.get(DEVICE))
        return marshal.dumps(parts, _FORMAT)
    except (AttributeError, TypeError, ValueError):
        return None


def _asked(spec: dict[str, Any]) -> tuple[object, ...]:
    get = spec.get
    return (
        [_container(c) for c in get("containers") or ()],
        [(*_container(c), c.get("restartPolicy")) for c in get("initContainers") or ()],
        get("overhead"),
        get("resources"),
        get("nodeSelector"),
        get("tolerations"),
        get("hostNetwork"),
    )


def _container(container: dict[str, Any]) -> tuple[object, ...]:
    return container.get("name"), container.get("resources"), container.get("ports")


def _related(spec: dict[str, Any], meta: ObjectMeta) -> tuple[object, ...] | None:
    """The parts that mean something else in another namespace or for another pod."""
    affinity, spread = spec.get("affinity"), spec.get("topologySpreadConstraints")
    volumes = [v for v in spec.get("volumes") or () if any(kind in v for kind in _CLAIMS)]
    if not affinity and not spread and not volumes:
        return None
    name = meta.name if any("ephemeral" in v for v in volumes) else None
    return affinity, spread, volumes, meta.namespace, name


def _held(status: dict[str, Any]) -> list[object] | None:
    """What a kubelet has given to containers, and what it says about changing that."""
    held: list[object] = [
        (s.get("name"), s.get("allocatedResources"), s.get("resources"))
        for kind in ("containerStatuses", "initContainerStatuses")
        for s in status.get(kind) or ()
    ]
    if not held:
        return None
    resize = (c for c in status.get("conditions") or () if c.get("type") == "PodResizePending")
    return [*held, *(c.get("reason") for c in resize)]
