"""Annotations of manifests and snapshot dumps.

Dumps are lossless, because annotations hold all state that has no field in manifests. optsched
writes the annotations of dumps; a tool that measures node load may also write `optsched.io/load`.
Pod annotations also hold the settings for eviction, the run time, and the settings that plugins
read.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.fields import MAX_INT32
from optsched.api.wellknown import first_annotation, is_true
from optsched.cluster.node_resources import Alignment
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Load
from optsched.cluster.task import DeviceRequest
from optsched.units import (
    DurationError,
    FieldError,
    TimestampError,
    format_micro_time,
    format_time,
    parse_duration_ms,
    parse_time_ms,
)
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from optsched.api.meta import ObjectMeta


API_VERSION: Final = "optsched.io/v1alpha1"
PROBLEM: Final = "optsched.io/problem"
WAITING_SINCE: Final = "optsched.io/waiting-since"
DEVICE: Final = "optsched.io/device"
OWNER: Final = "optsched.io/owner"
YIELDS_TO_GUARANTEES: Final = "optsched.io/yields-to-guarantees"
LOAD: Final = "optsched.io/load"

_MS_PER_SECOND: Final = 1000
_PERCENT: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%"
_LOAD: Final = re.compile(rf"cpu {_PERCENT} memory {_PERCENT} at (\S+)")
_PPM_PER_PERCENT: Final = 10_000
_LOAD_ACCEPTED: Final = (
    "is not a load: write one such as cpu 30.5% memory 50% at 2026-11-21T05:38:00Z"
)
_CODES: Final = frozenset(code.value for code in ReasonCode)


def without_annotations(annotations: Mapping[str, str], keys: Container[str]) -> Mapping[str, str]:
    """Drop the given keys from annotations; return the same mapping if no given key occurs."""
    if not any(key in keys for key in annotations):
        return annotations
    return {key: value for key, value in annotations.items() if key not in keys}


_PREFIX: Final = "optsched.io/"
_SNAPSHOT_ONLY: Final = frozenset(
    {
        PROBLEM,
        WAITING_SINCE,
        DEVICE,
        OWNER,
        YIELDS_TO_GUARANTEES,
        "optsched.io/vgpus",
        "optsched.io/card-problem",
        "optsched.io/numa",
        "optsched.io/npu-chips",
        "optsched.io/mig-geometries",
    }
)
_NEED_PROBLEM: Final = f"{PROBLEM}-of-"


def without_snapshot_annotations(obj: dict[str, Any]) -> dict[str, Any]:
    """Drop an object's annotations that are valid only in snapshot dumps.

    An object without snapshot annotations is returned unchanged. Any tenant may write annotations,
    so snapshot annotations must have no effect in a live cluster.
    """
    metadata = obj.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return obj
    dropped = {
        key
        for key in annotations
        if isinstance(key, str)
        and key.startswith(_PREFIX)
        and (key in _SNAPSHOT_ONLY or key.startswith(_NEED_PROBLEM))
    }
    if not dropped:
        return obj
    kept = {key: text for key, text in annotations.items() if key not in dropped}
    return {**obj, "metadata": {**obj["metadata"], "annotations": kept}}


def time_text(milliseconds: int) -> str:
    """Format a time as the API server does, with a fraction of a second only if it is not zero."""
    return (format_micro_time if milliseconds % _MS_PER_SECOND else format_time)(milliseconds)


def waiting_since_ms(annotations: Mapping[str, str], created_ms: int) -> int:
    """Return when a gang began to wait, in ms since 1970; defaults to its creation time."""
    text = annotations.get(WAITING_SINCE)
    if text is None:
        return created_ms
    try:
        return parse_time_ms(text)
    except TimestampError:
        return created_ms


def encode_reason(reason: Reason) -> str:
    """Format the code and the message of a reason for an annotation."""
    return f"{reason.code.value}: {reason.message}"


def read_reason(annotations: Mapping[str, str]) -> Reason | None:
    """Parse the reason in an annotation; return None if it is missing or has an unknown code."""
    code, colon, message = annotations.get(PROBLEM, "").partition(": ")
    if not colon or code not in _CODES:
        return None
    return Reason(ReasonCode(code), message)


def encode_device_request(device: DeviceRequest) -> str:
    """Format a GPU request (number, thousandths, models), such as `1 460 A10|T4`."""
    return f"{device.count} {device.milli} {'|'.join(device.models)}".rstrip()


def read_device_request(annotations: Mapping[str, str]) -> DeviceRequest | None:
    """Parse the device request in an annotation; return None if it is missing or invalid."""
    parts = annotations.get(DEVICE, "").split(" ")
    if len(parts) not in (2, 3) or not all(is_decimal(p) for p in parts[:2]):
        return None
    models = tuple(parts[2].split("|")) if len(parts) == 3 else ()
    return DeviceRequest(int(parts[0]), int(parts[1]), models)


def encode_load(load: Load) -> str:
    """Format a measured load, such as `cpu 30.5% memory 50% at 2026-11-21T05:38:00Z`."""
    percents: list[str] = []
    for ppm in (load.cpu_ppm, load.memory_ppm):
        whole, rest = divmod(ppm, _PPM_PER_PERCENT)
        percents.append(f"{whole}.{rest:04d}".rstrip("0").rstrip("."))
    cpu, memory = percents
    return f"cpu {cpu}% memory {memory}% at {time_text(load.measured_ms)}"


def read_load(annotations: Mapping[str, str], remarks: list[FieldError]) -> Load | None:
    """Parse the measured node load in an annotation; return None if it is missing or invalid."""
    text = annotations.get(LOAD)
    if text is None:
        return None
    path = f"metadata.annotations[{LOAD}]"
    match = _LOAD.fullmatch(text)
    if match is None:
        remarks.append(FieldError(path, text, _LOAD_ACCEPTED))
        return None
    cpu_ppm, memory_ppm = (round(Decimal(match[i]) * _PPM_PER_PERCENT) for i in (1, 2))
    try:
        return Load(cpu_ppm, memory_ppm, parse_time_ms(match[3]))
    except TimestampError as e:
        remarks.append(e.at_path(path))
        return None


# --- pods: eviction and run time ------------------------------------------------------------------


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
    """Return whether a pod may restart on another node; by default, pods with an owner may."""
    text = meta.annotations.get(wellknown.MOVABLE)
    if text is None:
        return meta.controller is not None or bool(owner_of(meta))
    return is_true(text)


def cooldown_ms(meta: ObjectMeta, remarks: list[FieldError]) -> int:
    """Return how long after its start a pod is protected from eviction, in ms; 0 by default."""
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

_COPIED: Final = (
    wellknown.SCORING_TYPE,
    wellknown.SCORING_WEIGHT,
    wellknown.VGPU_MODE,
    wellknown.NPU_MODE,
    wellknown.GPU_USE_TYPE,
    wellknown.GPU_AVOID_TYPE,
    wellknown.VGPU_USE_UUID,
    wellknown.VGPU_AVOID_UUID,
)
_CONVERTED: Final = (
    wellknown.REVOCABLE_ZONE,
    wellknown.NUMA_TOPOLOGY_POLICY,
    wellknown.VGPU_PODGROUP_POLICY,
)
PLUGIN_ANNOTATIONS: Final = frozenset({*_COPIED, *_CONVERTED})
"""Keys of the pod annotations that are decoded into `TaskShape.notes`."""

_DETERMINING: Final = (*_COPIED, *_CONVERTED, wellknown.PREEMPTABLE)


def plugin_annotations_key(
    annotations: Mapping[str, str], namespace: str
) -> tuple[str | None, ...]:
    """Return the annotation values that determine a pod's plugin annotations, as a cache key."""
    return (*map(annotations.get, _DETERMINING), spread_group(annotations, namespace))


def spread_group(annotations: Mapping[str, str], namespace: str) -> str:
    """Return the PodGroup whose pods must not share vGPUs; "" without the vGPU policy `spread`."""
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
    found = {key: annotations[key] for key in _COPIED if key in annotations}
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
