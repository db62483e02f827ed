"""Pod annotations that plugins read: eviction, run time, NUMA nodes and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.fields import MAX_INT32
from optsched.api.wellknown import first_annotation, is_true
from optsched.cluster.node_parts import Alignment
from optsched.formats.codec.snapshot_annotations import OWNER
from optsched.units import DurationError, FieldError, TimestampError, parse_time_ms
from optsched.units.duration import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optsched.api.meta import ObjectMeta


def is_preemptable(meta: ObjectMeta) -> bool:
    """Return whether a pod may be evicted for other pods; the default is True.

    The annotation `volcano.sh/preemptable` takes precedence over the label. A value that is not a
    boolean forbids eviction (`GetPodPreemptable`, pkg/scheduler/api/pod_info.go).
    """
    text = meta.annotations.get(wellknown.PREEMPTABLE)
    if text is None:
        text = meta.labels.get(wellknown.PREEMPTABLE)
    return text is None or is_true(text)


def owner_of(meta: ObjectMeta) -> str:
    """Return the UID of the controller that replaces a deleted pod, or "" if there is none."""
    controller = meta.controller
    return meta.annotations.get(OWNER, "") if controller is None else controller.uid


def is_movable(meta: ObjectMeta) -> bool:
    """Return whether a pod may restart on another node; the default is whether it has an owner."""
    text = meta.annotations.get(wellknown.MOVABLE)
    if text is None:
        return meta.controller is not None or bool(owner_of(meta))
    return is_true(text)


def cooldown_ms(meta: ObjectMeta, remarks: list[FieldError]) -> int:
    """Return for how many ms after its start a pod is protected from eviction, or 0."""
    key = wellknown.COOLDOWN_TIME
    where = "annotations" if key in meta.annotations else "labels"
    return _read(meta, where, key, parse_duration_ms, remarks)


def saved_ms(meta: ObjectMeta, remarks: list[FieldError]) -> int:
    """Return the time of a pod's last checkpoint, in ms since 1970; 0 if unknown."""
    return _read(meta, "annotations", wellknown.CHECKPOINTED_AT, parse_time_ms, remarks)


def _read(
    meta: ObjectMeta,
    where: str,
    key: str,
    parse: Callable[[object], int],
    remarks: list[FieldError],
) -> int:
    text = getattr(meta, where).get(key)
    if text is None:
        return 0
    try:
        return max(parse(text), 0)
    except (DurationError, TimestampError) as e:
        remarks.append(e.at_path(f"metadata.{where}[{key}]"))
        return 0


def estimate_ms(meta: ObjectMeta, spec: Mapping[str, Any], remarks: list[FieldError]) -> int:
    """Return a pod's expected run time in ms, capped by its `activeDeadlineSeconds`."""
    estimate = _read(meta, "annotations", wellknown.RUNNING_ESTIMATE, parse_duration_ms, remarks)
    limit = spec.get("activeDeadlineSeconds")
    limit_ms = limit * 1000 if type(limit) is int and 0 < limit <= MAX_INT32 else 0
    return min(estimate, limit_ms) if estimate and limit_ms else estimate or limit_ms


def started_ms(status: Mapping[str, Any]) -> int:
    """Return when a pod was bound (condition PodScheduled), in ms since 1970; 0 if unknown."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "PodScheduled":
            if condition.get("status") != "True":
                return 0
            try:
                return parse_time_ms(condition.get("lastTransitionTime"))
            except TimestampError:
                return 0
    return 0


# --- plugin annotations ---------------------------------------------------------------------------

ANY_ZONE: Final = "*"
SPREAD: Final = "spread"
"""The vGPU policy of a PodGroup whose pods must not share a vGPU."""

_AS_THEY_ARE: Final = (
    wellknown.SCORING_TYPE,
    wellknown.SCORING_WEIGHT,
    wellknown.VGPU_MODE,
    wellknown.NPU_MODE,
    wellknown.GPU_USE_TYPE,
    wellknown.GPU_AVOID_TYPE,
    wellknown.VGPU_USE_UUID,
    wellknown.VGPU_AVOID_UUID,
)
_READ_FURTHER: Final = (
    wellknown.REVOCABLE_ZONE,
    wellknown.NUMA_TOPOLOGY_POLICY,
    wellknown.VGPU_PODGROUP_POLICY,
)
NOTES: Final = frozenset({*_AS_THEY_ARE, *_READ_FURTHER})
"""Keys of the annotations that are decoded into `TaskShape.notes`."""

_READ: Final = (*_AS_THEY_ARE, *_READ_FURTHER, wellknown.PREEMPTABLE)


def plugin_annotations_key(
    annotations: Mapping[str, str], namespace: str
) -> tuple[str | None, ...]:
    """Return a key of all raw annotation values that determine a pod's plugin annotations."""
    return (*map(annotations.get, _READ), spread_group(annotations, namespace))


def spread_group(annotations: Mapping[str, str], namespace: str) -> str:
    """Return the PodGroup whose pods must not share vGPUs; "" without the spread policy."""
    if annotations.get(wellknown.VGPU_PODGROUP_POLICY) != SPREAD:
        return ""
    name = first_annotation(annotations, wellknown.GROUP_NAME_ANNOTATIONS)
    return f"{namespace}/{name}" if name else ""


def encode_plugin_annotations(notes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Convert plugin annotations of a task to pod annotations."""
    found = dict(notes)
    if wellknown.VGPU_PODGROUP_POLICY in found:
        found[wellknown.VGPU_PODGROUP_POLICY] = SPREAD
    return found


def read_plugin_annotations(
    annotations: Mapping[str, str], namespace: str
) -> tuple[tuple[str, str], ...]:
    """Read the plugin annotations of a pod, as (key, value) pairs sorted by key.

    If the pods of a PodGroup must not share vGPUs, the value of the annotation
    `wellknown.VGPU_PODGROUP_POLICY` is replaced with the name of the PodGroup.

    A preemptable pod may also use revocable nodes unless it has a revocable zone annotation.
    The only zone name with an effect is `*` (`GetPodRevocableZone`, pkg/scheduler/api/pod_info.go).
    """
    found = {key: annotations[key] for key in _AS_THEY_ARE if key in annotations}
    zone = annotations.get(wellknown.REVOCABLE_ZONE)
    implied = zone is None and is_true(annotations.get(wellknown.PREEMPTABLE))
    if zone == ANY_ZONE or implied:
        found[wellknown.REVOCABLE_ZONE] = ANY_ZONE
    numa = annotations.get(wellknown.NUMA_TOPOLOGY_POLICY, "")
    if numa not in ("", Alignment.NONE):
        found[wellknown.NUMA_TOPOLOGY_POLICY] = numa
    group = spread_group(annotations, namespace)
    if group:
        found[wellknown.VGPU_PODGROUP_POLICY] = group
    return tuple(sorted(found.items()))
