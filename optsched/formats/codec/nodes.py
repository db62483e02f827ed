"""Convert Kubernetes nodes, with their images, data sets and shards, to `snapshot.Node` objects."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.node_resources import (
    NO_LOCAL_DATA,
    NO_REQUIRED_DATA,
    RequiredData,
    Shard,
    Sharding,
    ShardMode,
    Store,
)
from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.snapshot import Node
from optsched.formats.codec.annotations import read_load
from optsched.formats.codec.core_schemas import NODE
from optsched.formats.codec.gpu_shares import GPU_SHARE_PROBLEM, NO_TABLE, read_shared_gpus
from optsched.units import FieldError, most_on_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.hypernode import NodeShard
    from optsched.api.meta import ObjectMeta
    from optsched.cluster.amounts import Amounts
    from optsched.formats.codec.gpu_shares import DeviceTable

GPU_MODEL_LABEL: Final = "nvidia.com/gpu.product"
"""Label that holds the GPU model, set by NVIDIA GPU Feature Discovery."""

_TOO_MUCH: Final = "is more than a machine can have: write at most"


def parse_node(
    obj: object, table: DeviceTable = NO_TABLE
) -> tuple[Node | None, tuple[FieldError, ...]]:
    """Parse a node; return it (None if it has no name) and all field errors.

    `table` holds the MIG geometries of GPUs and the templates of NPUs.

    An invalid resource amount is read as 0, and a node with invalid taints is not ready. A node
    without a Ready condition counts as ready, because hand-written manifests have no conditions.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, NODE, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    before = len(errors)
    # `allocatable` defaults to `capacity` (`SetDefaults_NodeStatus`).
    allocatable = offered_amounts(
        status, "capacity" if status.raw("allocatable") is None else "allocatable"
    )
    absurd = errors[before:]
    before = len(errors)
    taints: list[Taint] = []
    for each in spec.records("taints"):
        key, effect = each.text("key"), each.text("effect")
        if effect:
            taints.append(Taint(key, each.text("value"), TaintEffect(effect)))
    has_all_taints = len(errors) == before
    unread: list[FieldError] = []
    shared_gpus = read_shared_gpus(meta.annotations, allocatable, table, unread)
    problem = "; ".join(map(str, (*absurd, *unread)))
    ready = (c for c in status.records("conditions") if c.text("type") == "Ready")
    node = Node(
        name=meta.name,
        allocatable=allocatable,
        labels=meta.labels,
        taints=tuple(taints),
        ready=all(c.text("status") == "True" for c in ready) and has_all_taints,
        unschedulable=spec.boolean("unschedulable"),
        gpu_model=meta.labels.get(GPU_MODEL_LABEL, ""),
        load=read_load(meta.annotations, errors),
        shared_gpus=shared_gpus,
        card_problem=problem or meta.annotations.get(GPU_SHARE_PROBLEM, ""),
        store=read_local_data(meta, obj.get("status") if isinstance(obj, dict) else None),
    )
    return node, (*errors, *unread)


def offered_amounts(status: Fields, name: str) -> Amounts:
    """Parse a node's resource amounts; report and drop amounts that no machine can have."""
    offered = status.amounts(name, whole_devices=True)
    for resource in [r for r, amount in offered.items() if amount > most_on_node(r)]:
        message = f"{_TOO_MUCH} {most_on_node(resource)}"
        status.reject(f"{name}[{resource}]", offered.pop(resource), message)
    return amounts(offered)


# --- local data -----------------------------------------------------------------------------------

IMAGES: Final = "optsched.io/images"
"""Pod annotation in snapshot dumps: the pod's images, which dumped containers do not name."""

_NONE: Final = "-"
_FALSE: Final = "false"


@lru_cache(maxsize=1 << 16)
def full_name(image: str) -> str:
    """Return an image name with its tag, which defaults to `latest` (`normalizedImageName`)."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image


@lru_cache(maxsize=1 << 16)
def _sized(image: str, size: int) -> tuple[str, int]:
    """Return an image's full name and size in bytes; cached, so equal results are one object."""
    return full_name(image), size


def datasets_in(text: str) -> tuple[str, ...]:
    """Parse the comma-separated names of data sets in an annotation."""
    return tuple(sorted({name.strip() for name in text.split(",")} - {""}))


def read_local_data(meta: ObjectMeta, status: object) -> Store:
    """Read a node's images and data sets; invalid ones are dropped, as they affect only scores."""
    datasets = datasets_in(meta.annotations.get(wellknown.DATASETS, ""))
    prefix = wellknown.DATASET_LABEL_PREFIX
    labelled = (
        key.removeprefix(prefix)
        for key, value in meta.labels.items()
        if key.startswith(prefix) and value != _FALSE
    )
    names = tuple(sorted({*datasets, *labelled}))
    listed = status.get("images") if isinstance(status, dict) else None
    images: set[tuple[str, int]] = set()
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and type(size := each.get("sizeBytes")) is int:
            known = each.get("names")
            texts = known if isinstance(known, list) else ()
            images.update(_sized(text, size) for text in texts if isinstance(text, str))
    return Store(tuple(sorted(images)), names) if images or names else NO_LOCAL_DATA


def dataset_annotation(store: Store, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the node annotation that lists the data sets without a node label."""
    prefix = wellknown.DATASET_LABEL_PREFIX
    left = [n for n in store.datasets if labels.get(f"{prefix}{n}", _FALSE) == _FALSE]
    return {wellknown.DATASETS: ",".join(left)} if left else {}


def read_required_data(meta: ObjectMeta, spec: Mapping[str, Any]) -> RequiredData:
    """Read the names of the images and data sets that a pod requires."""
    dumped = meta.annotations.get(IMAGES)
    names = [] if dumped is None else dumped.split(" ")
    for part in ("initContainers", "containers") if dumped is None else ():
        listed = spec.get(part)
        for each in listed if isinstance(listed, list) else ():
            image = each.get("image") if isinstance(each, dict) else None
            names.append(image if isinstance(image, str) else "")
    return _required_data(tuple(names), meta.annotations.get(wellknown.DATASETS, ""))


@lru_cache(maxsize=1 << 12)
def _required_data(names: tuple[str, ...], datasets: str) -> RequiredData:
    """Return a pod's required images and data sets; equal results are one cached object."""
    images = tuple("" if name in ("", _NONE) else full_name(name) for name in names)
    required = RequiredData(images if any(images) else (), datasets_in(datasets))
    return NO_REQUIRED_DATA if required == NO_REQUIRED_DATA else required


def required_data_annotations(data: RequiredData) -> dict[str, str]:
    """Return the dump annotations that hold a pod's required images and data sets."""
    images = {IMAGES: " ".join(image or _NONE for image in data.images)} if data.images else {}
    return images | ({wellknown.DATASETS: ",".join(data.datasets)} if data.datasets else {})


# --- node shards ----------------------------------------------------------------------------------

_MODES = [mode.value for mode in ShardMode]


def with_shards(sharding: Sharding, node_shards: Iterable[NodeShard]) -> Sharding:
    """Return `sharding` with the given NodeShards as its shards, sorted by name."""
    shards = (
        Shard(each.name, tuple(sorted(set(each.wanted))), tuple(sorted(set(each.in_use))))
        for each in sorted(node_shards, key=lambda each: each.name)
    )
    return replace(sharding, shards=tuple(shards))


def sharding_fields(sharding: Sharding) -> dict[str, Any]:
    """Return the sharding field of a snapshot dump; empty if nodes are not sharded."""
    if sharding.mode is ShardMode.NONE:
        return {}
    return {"sharding": {"mode": sharding.mode.value, "name": sharding.name}}


def read_sharding(dump: Mapping[str, Any]) -> Sharding | None:
    """Read the sharding field of a snapshot dump; return None if it is invalid."""
    given = dump.get("sharding") or {}
    if not isinstance(given, dict):
        return None
    mode, name = given.get("mode", ShardMode.NONE.value), given.get("name", "")
    return Sharding(ShardMode(mode), name) if mode in _MODES and isinstance(name, str) else None
