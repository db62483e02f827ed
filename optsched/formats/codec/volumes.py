"""PersistentVolumeClaims, and the nodes from which their volumes are reachable.

Upstream: the VolumeBinding plugin of kube-scheduler (`GetPodVolumeClaims`, `checkBoundClaims`), and
the matching of volumes to claims (`FindMatchingVolume` of component-helpers). Zones are read as in
the plugin VolumeZone (`getPVTopologies`), and CSI drivers as in NodeVolumeLimits
(`getCSIDriverInfo`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Claim, Volume
from optsched.formats.codec.annotations import PROBLEM
from optsched.formats.codec.core_schemas import CLAIM, CSI_NODE, STORAGE_CLASS, VOLUME
from optsched.formats.codec.selectors import label_selector, node_selector, topology_selector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.api.meta import ObjectMeta
    from optsched.cluster.amounts import Amounts
    from optsched.cluster.selectors import LabelSelector, NodeSelector
    from optsched.units import FieldError

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
WAITS: Final = "WaitForFirstConsumer"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

ZONE_LABELS: Final = (
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
"""Labels that hold the region or zone of a volume, in the order in which optsched checks them."""
BETWEEN_ZONES: Final = "__"
"""Separator between zones in the zone label of a volume that is in several zones."""

LOST: Final = "is lost: its volume no longer exists"

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_NOT_BOUND: Final = "is not bound"
_BOUND_PHASES: Final = frozenset({"", "Bound"})
_FREE_PHASES: Final = frozenset({"", "Available"})
_STORAGE: Final = "storage"


@dataclass(frozen=True, slots=True)
class _Offer:
    """A volume that is not bound to a claim.

    `uid` is the UID of the claim for which the volume is reserved.
    """

    volume: Volume
    modes: frozenset[str]
    volume_mode: str
    labels: Mapping[str, str]
    uid: str


@dataclass(frozen=True, slots=True)
class _ClaimRequest:
    """The requirements that a pending claim has for its PersistentVolume."""

    key: str
    uid: str
    storage_class: str
    size_bytes: int
    modes: frozenset[str]
    volume_mode: str
    selector: LabelSelector | None


@dataclass(frozen=True)
class Storage:
    """The PersistentVolumes and StorageClasses of a cluster, as JSON objects keyed by name."""

    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def default_class(self) -> str:
        """Name of the default StorageClass, or an empty string if there is none."""
        defaults: list[str] = []
        for name, storage_class in self.classes.items():
            metadata = storage_class.get("metadata")
            annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
            if isinstance(annotations, dict) and annotations.get(DEFAULT_CLASS) == "true":
                defaults.append(name)
        return min(defaults, default="")

    @cached_property
    def offers(self) -> Mapping[str, Sequence[_Offer]]:
        """PersistentVolumes without a claim, keyed by StorageClass, smallest first."""
        found: dict[str, list[_Offer]] = {}
        for volume in self.volumes.values():
            offer = None if _claim_reference(volume) else _offer(volume)
            if offer is not None:
                found.setdefault(offer.volume.storage_class, []).append(offer)
        for offers in found.values():
            offers.sort(key=lambda each: (each.volume.capacity_bytes, each.volume.name))
        return found

    @cached_property
    def volumes_by_claim(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Volumes that are bound to a claim or reserved for it, keyed by claim."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for volume in self.volumes.values():
            key = _claim_reference(volume)
            if key:
                found.setdefault(key, []).append(volume)
        return found


def _claim_reference(volume: Mapping[str, Any]) -> str:
    spec = volume.get("spec")
    ref = spec.get("claimRef") if isinstance(spec, dict) else None
    if not isinstance(ref, dict) or not ref.get("name"):
        return ""
    return f"{ref.get('namespace')}/{ref['name']}"


def parse_claim(obj: object, storage: Storage) -> tuple[Claim | None, tuple[FieldError, ...]]:
    """Parse a PersistentVolumeClaim; return it (None if it has no name) and all field errors.

    Errors in the claim's volume or class are not included; `Claim.problem` names them instead.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, CLAIM, "", errors)
    spec, phase = whole.record("spec"), whole.record("status").text("phase")
    volume = spec.text("volumeName")
    if phase == "Lost":
        claim = Claim(meta.key, problem=LOST)
    elif volume:
        claim = _bound_claim(meta, volume, phase, storage)
    else:
        claim = _pending_claim(meta, spec, storage)
    if PROBLEM in meta.annotations:
        problem = meta.annotations[PROBLEM]
        claim = Claim(meta.key, problem=problem, driver=claim.driver, handle=claim.handle)
    return claim, tuple(errors)


def _bound_claim(meta: ObjectMeta, volume: str, phase: str, storage: Storage) -> Claim:
    """Return a bound claim; even an unusable claim's volume counts towards attach limits."""
    found = storage.volumes.get(volume)
    driver, handle = _attachment(Fields(found, VOLUME, "", []).record("spec"))
    claim = Claim(meta.key, driver=driver, handle=handle)
    if phase not in _BOUND_PHASES and BIND_COMPLETED not in meta.annotations:
        return replace(claim, problem=f"is not bound: it waits for volume {volume}")
    if found is None:
        return replace(claim, problem=f"its volume {volume} does not exist")
    nodes, errors = volume_nodes(found)
    if errors:
        return replace(claim, problem=f"its volume {volume} has invalid fields: {errors[0]}")
    # Zones of the volume by label; labels with an empty zone are skipped (`LabelZonesToSet`).
    metadata = found.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    known = labels if isinstance(labels, dict) else {}
    zones: list[tuple[str, tuple[str, ...]]] = []
    for label in ZONE_LABELS:
        text = known.get(label)
        values = [v.strip() for v in text.split(BETWEEN_ZONES)] if isinstance(text, str) else [""]
        if all(values):
            zones.append((label, tuple(sorted(set(values)))))
    return replace(claim, nodes=nodes, zones=tuple(zones))


def _pending_claim(meta: ObjectMeta, spec: Fields, storage: Storage) -> Claim:
    key, class_name = meta.key, spec.text("storageClassName")
    # An empty `storageClassName` means no class; a missing one means the default class.
    if spec.raw("storageClassName") is None:
        class_name = meta.annotations.get(_CLASS_ANNOTATION) or storage.default_class
    if not class_name:
        return Claim(key, problem=_NOT_BOUND)
    found = storage.classes.get(class_name)
    if found is None:
        problem = f"is not bound, and its storage class {class_name} does not exist"
        return Claim(key, problem=problem)
    waits, nodes, errors = class_nodes(found)
    if errors:
        return Claim(key, problem=f"its storage class {class_name} has invalid fields: {errors[0]}")
    provisioner = str(found.get("provisioner") or "")
    driver = "" if provisioner == NO_PROVISIONER else provisioner
    if not waits:
        return Claim(key, problem=_NOT_BOUND, driver=driver)
    request = _ClaimRequest(
        key=key,
        uid=meta.uid,
        storage_class=class_name,
        size_bytes=spec.record("resources").amounts("requests").get(_STORAGE, 0),
        modes=frozenset(spec.texts("accessModes")),
        volume_mode=spec.text("volumeMode"),
        selector=label_selector(spec.optional_record("selector")),
    )
    selected = meta.annotations.get(SELECTED_NODE, "")
    volumes, is_reserved = ((), False) if selected else _candidate_volumes(request, storage)
    return Claim(
        key,
        nodes,
        waits_for_consumer=True,
        size_bytes=request.size_bytes,
        provisions=not is_reserved and provisioner != NO_PROVISIONER,
        selected_node=selected,
        volumes=volumes,
        driver=driver,
    )


def _candidate_volumes(request: _ClaimRequest, storage: Storage) -> tuple[tuple[Volume, ...], bool]:
    """Return a claim's candidate volumes, and whether the only candidate is reserved for it."""
    claimed = (_offer(volume) for volume in storage.volumes_by_claim.get(request.key, ()))
    reserved = [
        offer.volume
        for offer in claimed
        if offer is not None
        and (not offer.uid or not request.uid or offer.uid == request.uid)
        and offer.volume.storage_class == request.storage_class
        and request.size_bytes <= offer.volume.capacity_bytes
    ]
    if reserved:
        return (min(reserved, key=lambda each: (each.capacity_bytes, each.name)),), True
    offers = storage.offers.get(request.storage_class, ())
    suitable = (
        offer.volume
        for offer in offers
        if request.volume_mode == offer.volume_mode
        and request.modes <= offer.modes
        and request.size_bytes <= offer.volume.capacity_bytes
        and (request.selector is None or request.selector.matches(offer.labels))
    )
    return tuple(suitable), False


def _offer(volume: Mapping[str, Any]) -> _Offer | None:
    """Return a volume to which claims may be bound, or None if it is invalid or not available."""
    errors: list[FieldError] = []
    meta = parse_meta(volume, errors)
    whole = Fields(volume, VOLUME, "", errors)
    if meta is None or meta.deletion_ms is not None:
        return None
    spec, phase = whole.record("spec"), whole.record("status").text("phase")
    uid = spec.record("claimRef").text("uid")
    if phase not in _FREE_PHASES and not _claim_reference(volume):
        return None
    capacity = spec.amounts("capacity").get(_STORAGE, 0)
    old = meta.annotations.get(_CLASS_ANNOTATION, "")
    nodes, unreadable = volume_nodes(volume)
    offered = Volume(meta.name, old or spec.text("storageClassName"), capacity, nodes)
    modes, mode = frozenset(spec.texts("accessModes")), spec.text("volumeMode")
    if errors or unreadable:
        return None
    return _Offer(offered, modes, mode, meta.labels, uid)


def volume_nodes(volume: object) -> tuple[NodeSelector | None, tuple[FieldError, ...]]:
    """Return the nodes that can reach a volume (None for all nodes), and all field errors."""
    errors: list[FieldError] = []
    spec = Fields(volume, VOLUME, "", errors).record("spec")
    required = spec.record("nodeAffinity").optional_record("required")
    nodes = None if required is None else node_selector(required)
    _attachment(spec)
    return nodes, tuple(errors)


def _attachment(spec: Fields) -> tuple[str, str]:
    csi = spec.record("csi")
    driver, handle = csi.text("driver"), csi.text("volumeHandle")
    return (driver, handle) if driver and handle else ("", "")


def parse_csi_node(obj: object) -> tuple[str, Amounts | None, tuple[FieldError, ...]]:
    """Parse a CSINode; return the node name, its attach limits by driver, and all field errors.

    The attach limits are None if the object has no name. An invalid limit is read as 0. A driver
    without a limit is unlimited.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return "", None, tuple(errors)
    found: dict[str, int] = {}
    for driver in Fields(obj, CSI_NODE, "", errors).record("spec").records("drivers"):
        allocatable = driver.record("allocatable")
        if allocatable.raw("count") is not None and driver.text("name"):
            found[driver.text("name")] = allocatable.integer("count")
    return meta.name, amounts(found), tuple(errors)


def class_nodes(storage_class: object) -> tuple[bool, NodeSelector | None, tuple[FieldError, ...]]:
    """Parse a StorageClass; return whether binding waits for pods, the allowed nodes and errors."""
    errors: list[FieldError] = []
    fields = Fields(storage_class, STORAGE_CLASS, "", errors)
    waits = fields.text("volumeBindingMode") == WAITS
    return waits, topology_selector(fields.records("allowedTopologies")), tuple(errors)
