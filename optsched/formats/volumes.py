"""Claims on persistent volumes, with the nodes from which their volumes can be reached.

Upstream: the VolumeBinding plugin of kube-scheduler (`GetPodVolumeClaims`, `checkBoundClaims`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.domain.cluster import Claim
from optsched.formats.marks import PROBLEM
from optsched.formats.schemas import CLAIM, STORAGE_CLASS, VOLUME
from optsched.formats.selectors import node_selector, topology_selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.domain.selectors import NodeSelector
    from optsched.units import FieldError

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
WAITS: Final = "WaitForFirstConsumer"

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_NOT_BOUND: Final = "is not bound"
_BOUND_PHASES: Final = frozenset({"", "Bound"})


@dataclass(frozen=True, slots=True)
class Storage:
    """What claims refer to: PersistentVolumes and StorageClasses by name, as plain objects."""

    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def default_class(self) -> str:
        """The class of claims that name none; empty where there is no default."""
        marked = (name for name, each in self.classes.items() if _is_default(each))
        return min(marked, default="")


def parse_claim(obj: object, storage: Storage) -> tuple[Claim | None, tuple[FieldError, ...]]:
    """The claim, and every field that has no reading; None only without a name.

    The errors of its volume or class are not repeated here; a claim that depends on what cannot be
    read has a problem.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, CLAIM, "", errors)
    spec, phase = whole.record("spec"), whole.record("status").text("phase")
    volume = spec.text("volumeName")
    if PROBLEM in meta.annotations:
        claim = Claim(meta.key, problem=meta.annotations[PROBLEM])
    elif phase == "Lost":
        claim = Claim(meta.key, problem="is lost: its volume is gone")
    elif volume:
        claim = _bound(meta, volume, phase, storage)
    else:
        claim = _unbound(meta.key, _class_of(spec, meta, storage), storage)
    return claim, tuple(errors)


def _bound(meta: ObjectMeta, volume: str, phase: str, storage: Storage) -> Claim:
    if phase not in _BOUND_PHASES and BIND_COMPLETED not in meta.annotations:
        return Claim(meta.key, problem=f"is not bound: it waits for volume {volume}")
    found = storage.volumes.get(volume)
    if found is None:
        return Claim(meta.key, problem=f"its volume {volume} does not exist")
    nodes, errors = volume_nodes(found)
    if errors:
        return Claim(meta.key, problem=f"its volume {volume} has no reading: {errors[0]}")
    return Claim(meta.key, nodes=nodes)


def _unbound(key: str, class_name: str, storage: Storage) -> Claim:
    if not class_name:
        return Claim(key, problem=_NOT_BOUND)
    found = storage.classes.get(class_name)
    if found is None:
        problem = f"is not bound, and its storage class {class_name} does not exist"
        return Claim(key, problem=problem)
    waits, nodes, errors = class_nodes(found)
    if errors:
        return Claim(key, problem=f"its storage class {class_name} has no reading: {errors[0]}")
    if not waits:
        return Claim(key, problem=_NOT_BOUND)
    return Claim(key, nodes, waits_for_consumer=True)


def volume_nodes(volume: object) -> tuple[NodeSelector | None, tuple[FieldError, ...]]:
    """The nodes from which a PersistentVolume can be reached (None: all), and unreadable fields."""
    errors: list[FieldError] = []
    spec = Fields(volume, VOLUME, "", errors).record("spec")
    required = spec.record("nodeAffinity").optional_record("required")
    return None if required is None else node_selector(required), tuple(errors)


def class_nodes(
    storage_class: object,
) -> tuple[bool, NodeSelector | None, tuple[FieldError, ...]]:
    """Whether a class waits for a node to be chosen, from which (None: all), unreadable fields."""
    errors: list[FieldError] = []
    fields = Fields(storage_class, STORAGE_CLASS, "", errors)
    waits = fields.text("volumeBindingMode") == WAITS
    return waits, topology_selector(fields.records("allowedTopologies")), tuple(errors)


def _class_of(spec: Fields, meta: ObjectMeta, storage: Storage) -> str:
    """The class that a claim names; an empty name asks for none, a missing one for the default."""
    if spec.raw("storageClassName") is None:
        return meta.annotations.get(_CLASS_ANNOTATION) or storage.default_class
    return spec.text("storageClassName")


def _is_default(storage_class: Mapping[str, Any]) -> bool:
    metadata = storage_class.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return isinstance(annotations, dict) and annotations.get(DEFAULT_CLASS) == "true"
