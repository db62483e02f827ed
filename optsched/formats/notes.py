"""Annotations of a pod that rules look at: part of what makes pods alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.api.truth import is_true
from optsched.domain.numa import Alignment

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_ZONE: Final = "*"

_AS_THEY_ARE: Final = (
    wellknown.SCORING_TYPE,
    wellknown.SCORING_WEIGHT,
    wellknown.VGPU_MODE,
    wellknown.NPU_MODE,
    wellknown.GPU_USE_TYPE,
    wellknown.GPU_AVOID_TYPE,
)
_READ_FURTHER: Final = (wellknown.REVOCABLE_ZONE, wellknown.NUMA_TOPOLOGY_POLICY)
NOTES: Final = frozenset({*_AS_THEY_ARE, *_READ_FURTHER})
"""Those that end up in `TaskShape.notes`."""

_READ: Final = (*_AS_THEY_ARE, *_READ_FURTHER, wellknown.PREEMPTABLE)


def written(annotations: Mapping[str, str]) -> tuple[str | None, ...]:
    """Everything that decides about the notes of a pod, as it is written."""
    return tuple(map(annotations.get, _READ))


def notes(annotations: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The notes in the annotations of a pod, in order.

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
    return tuple(sorted(found.items()))
