"""A node of the API as a domain node, without the tasks on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Node
from optsched.cluster.task import Taint, TaintEffect
from optsched.formats.codec.core_schemas import NODE
from optsched.formats.codec.gpu_shares import GPU_SHARE_PROBLEM, read_shared_gpus
from optsched.formats.codec.local_data import read_local_data
from optsched.formats.codec.partition_tables import NO_TABLE
from optsched.formats.codec.snapshot_annotations import read_load
from optsched.units import FieldError, most_on_node

if TYPE_CHECKING:
    from optsched.cluster.amounts import Amounts
    from optsched.formats.codec.partition_tables import DeviceTable

GPU_MODEL_LABEL: Final = "nvidia.com/gpu.product"
"""Written by NVIDIA's feature discovery."""

_TOO_MUCH: Final = "is more than a machine can have: write at most"


def parse_node(
    obj: object, table: DeviceTable = NO_TABLE
) -> tuple[Node | None, tuple[FieldError, ...]]:
    """The node, and every field of it that has no reading; None only without a name.

    table: how GPUs and NPUs may be cut.

    A resource whose amount has no reading offers nothing, and a node whose taints have none takes
    no pods. Without any condition a node counts as ready, for manifests written by hand have none.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, NODE, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    allocatable = _allocatable(status)
    before = len(errors)
    taints = tuple(_taint(each) for each in spec.records("taints"))
    has_all_taints = len(errors) == before
    unread: list[FieldError] = []
    shared_gpus = read_shared_gpus(meta.annotations, allocatable, table, unread)
    node = Node(
        name=meta.name,
        allocatable=allocatable,
        labels=meta.labels,
        taints=tuple(t for t in taints if t is not None),
        ready=_is_ready(status) and has_all_taints,
        unschedulable=spec.boolean("unschedulable"),
        gpu_model=meta.labels.get(GPU_MODEL_LABEL, ""),
        load=read_load(meta.annotations, errors),
        shared_gpus=shared_gpus,
        card_problem="; ".join(map(str, unread)) or meta.annotations.get(GPU_SHARE_PROBLEM, ""),
        store=read_local_data(meta, obj.get("status") if isinstance(obj, dict) else None),
    )
    return node, (*errors, *unread)


def _allocatable(status: Fields) -> Amounts:
    """What pods may take; the whole capacity where nothing is said (`SetDefaults_NodeStatus`)."""
    return offered_amounts(
        status, "capacity" if status.raw("allocatable") is None else "allocatable"
    )


def offered_amounts(status: Fields, name: str) -> Amounts:
    """What a machine offers by a field; more than a machine can have is told and left out."""
    offered = status.amounts(name, whole_gpus=True)
    for resource in [r for r, amount in offered.items() if amount > most_on_node(r)]:
        message = f"{_TOO_MUCH} {most_on_node(resource)}"
        status.reject(f"{name}[{resource}]", offered.pop(resource), message)
    return amounts(offered)


def _taint(fields: Fields) -> Taint | None:
    key, effect = fields.text("key"), fields.text("effect")
    return Taint(key, fields.text("value"), TaintEffect(effect)) if effect else None


def _is_ready(status: Fields) -> bool:
    conditions = (c for c in status.records("conditions") if c.text("type") == "Ready")
    return all(c.text("status") == "True" for c in conditions)
