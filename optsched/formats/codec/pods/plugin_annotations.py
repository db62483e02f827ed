"""Annotations of a pod that rules look at: part of what makes pods alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.api.truth import is_true
from optsched.api.wellknown import first_annotation
from optsched.cluster.numa import Alignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANY_ZONE: Final = "*"
SPREAD: Final = "spread"
"""The policy by which pods of a PodGroup share no vGPU."""

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
"""Those that end up in `TaskShape.notes`."""

_READ: Final = (*_AS_THEY_ARE, *_READ_FURTHER, wellknown.PREEMPTABLE)


def plugin_annotations_key(
    annotations: Mapping[str, str], namespace: str
) -> tuple[str | None, ...]:
    """Everything that decides about the notes of a pod, as it is written."""
    return (*map(annotations.get, _READ), spread_group(annotations, namespace))


def spread_group(annotations: Mapping[str, str], namespace: str) -> str:
    """The PodGroup whose pods are to share no vGPU; empty where a pod does not say so."""
    if annotations.get(wellknown.VGPU_PODGROUP_POLICY) != SPREAD:
        return ""
    name = first_annotation(annotations, wellknown.GROUP_NAME_ANNOTATIONS)
    return f"{namespace}/{name}" if name else ""


def encode_plugin_annotations(notes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The annotations that say such notes."""
    found = dict(notes)
    if wellknown.VGPU_PODGROUP_POLICY in found:
        found[wellknown.VGPU_PODGROUP_POLICY] = SPREAD
    return found


def read_plugin_annotations(
    annotations: Mapping[str, str], namespace: str
) -> tuple[tuple[str, str], ...]:
    """The notes in the annotations of a pod, in order.

    That its pods share no vGPU is noted with the name of their PodGroup.

    A pod that says that it may be evicted may go to nodes that are lent, unless it says otherwise;
    no zone but `*` means anything (`GetPodRevocableZone`, pkg/scheduler/api/pod_info.go).
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
