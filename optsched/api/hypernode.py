"""HyperNodes, Numatopologies and NodeShards: groups of nodes, and the NUMA layout of each node.

Field names and limits are from Volcano's topology/v1alpha1/hypernode_types.go and its webhook
(pkg/webhooks/admission/hypernodes). The code that builds the HyperNode tree checks the relations
between HyperNodes: parents, cycles, and nodes that are members of two HyperNodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from optsched.api import kinds
from optsched.api.crds import schema_of
from optsched.api.fields import Fields, LabelSelector, read_selector
from optsched.api.meta import ApiObject, parse_meta
from optsched.units import format_time
from optsched.units.patterns import PatternError, parse_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.units import FieldError

_NO_WAY = "selects no member: write exactMatch, regexMatch or labelMatch"
_MANY_WAYS = "has more than one of exactMatch, regexMatch and labelMatch: keep one"
_BY_NAME = "selects nodes only: name a member HyperNode by exactMatch"
_NO_MEMBERS = "is missing: list at least one member"


class MemberType(StrEnum):
    """The type of a HyperNode member: a node or another HyperNode."""

    NODE = "Node"
    HYPER_NODE = "HyperNode"


@dataclass(frozen=True, slots=True)
class Member:
    """Members of a HyperNode, selected by exactly one of `name`, `pattern` and `labels`."""

    type: MemberType
    name: str = ""
    pattern: str = ""
    labels: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class HyperNodeCondition:
    """A status condition of a HyperNode; `transition_ms` is in ms since 1970, or None."""

    type: str
    status: str
    generation: int = 0
    transition_ms: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class HyperNode(ApiObject):
    """Nodes that are close to each other in the network.

    `tier` is None if `spec.tier` cannot be read; a HyperNode without a tier is ignored. `num_nodes`
    and `conditions` are read from the stored status. A member that cannot be read is omitted.
    """

    tier: int | None
    tier_name: str = ""
    members: tuple[Member, ...] = ()
    num_nodes: int = 0
    conditions: tuple[HyperNodeCondition, ...] = ()


def parse_hypernode(obj: object) -> tuple[HyperNode | None, tuple[FieldError, ...]]:
    """Parse a HyperNode from a manifest or API object; return it with its field errors.

    The HyperNode is None only if the object has no name; a HyperNode with other errors is usable.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.HYPER_NODE), "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    if spec.raw("members") in (None, []):
        spec.reject("members", spec.raw("members"), _NO_MEMBERS)
    members = (_member(each) for each in spec.records("members"))
    found = HyperNode(
        meta=meta,
        tier=spec.optional_integer("tier"),
        tier_name=spec.text("tierName"),
        members=tuple(member for member in members if member is not None),
        num_nodes=status.integer("nodeCount"),
        conditions=tuple(
            HyperNodeCondition(
                type=each.text("type"),
                status=each.text("status"),
                generation=each.integer("observedGeneration"),
                transition_ms=each.time_ms("lastTransitionTime"),
                reason=each.text("reason"),
                message=each.text("message"),
            )
            for each in status.records("conditions")
        ),
        errors=tuple(errors),
    )
    return found, found.errors


def _member(fields: Fields) -> Member | None:
    """Parse a HyperNode member; report and drop it if its type or selector is ambiguous."""
    kind, selector = fields.text("type"), fields.record("selector")
    exact, regex = selector.optional_record("exactMatch"), selector.optional_record("regexMatch")
    labels = selector.optional_record("labelMatch")
    name, pattern = exact.text("name") if exact else "", regex.text("pattern") if regex else ""
    if regex:
        try:
            parse_pattern(pattern)
        except PatternError as error:
            regex.reject("pattern", pattern, str(error))
            pattern = ""
    found = Member(
        type=MemberType(kind or MemberType.NODE),
        name=name,
        pattern=pattern,
        labels=read_selector(labels) if labels else None,
    )
    num_selectors = sum(each is not None for each in (exact, regex, labels))
    problem = _NO_WAY if not num_selectors else _MANY_WAYS if num_selectors > 1 else ""
    if kind == MemberType.HYPER_NODE and exact is None:
        problem = problem or _BY_NAME
    if problem:
        fields.reject("selector", fields.raw("selector"), problem)
    is_empty = not found.name and not found.pattern and found.labels is None
    return found if kind and not is_empty and not problem else None


# --- numatopology ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumaResource:
    """The CPUs, GPUs or other units of one resource on a node; each unit belongs to a NUMA node.

    `allocatable` lists the ids of idle units, such as `0-3,8`. `capacity` is the number of units.
    """

    allocatable: str = ""
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """The NUMA node, socket and core of a CPU."""

    numa: int = 0
    socket: int = 0
    core: int = 0


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The resources allocated to one pod; `containers` holds the unparsed container allocations."""

    uid: str
    name: str
    namespace: str
    containers: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The NUMA node, PCI bus id and model of a GPU."""

    numa: int = 0
    bus_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Numatopology(ApiObject):
    """The NUMA layout of the node that has the same name as the Numatopology.

    `policies` maps the name of a kubelet policy, such as CPUManagerPolicy, to its value. `reserved`
    maps resources to the unparsed quantities that the kubelet reserves. `cpus` and `gpus` are keyed
    by device id.
    """

    policies: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, NumaResource] = field(default_factory=dict)
    cpus: Mapping[str, CpuPlace] = field(default_factory=dict)
    gpus: Mapping[str, GpuPlace] = field(default_factory=dict)
    pods: tuple[PodAllocation, ...] = ()


def parse_numatopology(obj: object) -> tuple[Numatopology | None, tuple[FieldError, ...]]:
    """Parse a Numatopology from an API object; return it with its field errors.

    The Numatopology is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, schema_of(kinds.NUMATOPOLOGY), "", errors).record("spec")
    found = Numatopology(
        meta=meta,
        policies=spec.texts_by_name("policies"),
        reserved=spec.texts_by_name("resReserved"),
        resources={
            name: NumaResource(each.text("allocatable"), each.integer("capacity"))
            for name, each in spec.records_by_name("numares")
        },
        cpus={
            name: CpuPlace(each.integer("numa"), each.integer("socket"), each.integer("core"))
            for name, each in spec.records_by_name("cpuDetail")
        },
        gpus={
            name: GpuPlace(each.integer("numa"), each.text("busID"), each.text("deviceModel"))
            for name, each in spec.records_by_name("gpuDetail")
        },
        pods=tuple(
            PodAllocation(
                uid=each.text("uid"),
                name=each.text("name"),
                namespace=each.text("namespace"),
                containers=tuple(containers)
                if isinstance(containers := each.raw("containerAllocations"), list)
                else (),
            )
            for each in spec.records("podAllocations")
        ),
        errors=tuple(errors),
    )
    return found, found.errors


# --- nodeshard ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeShard(ApiObject):
    """The names of the nodes that one scheduler uses.

    `wanted` holds the nodes that the shard should contain. The scheduler wrote the status fields
    `in_use`, `to_remove` and `to_add` at `updated_ms`, in milliseconds since 1970.
    """

    wanted: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    to_remove: tuple[str, ...] = ()
    to_add: tuple[str, ...] = ()
    updated_ms: int | None = None


def parse_nodeshard(obj: object) -> tuple[NodeShard | None, tuple[FieldError, ...]]:
    """Parse a NodeShard from a manifest or API object; return it with its field errors.

    The NodeShard is None only if the object has no name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.NODE_SHARD), "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    found = NodeShard(
        meta=meta,
        wanted=spec.texts("nodesDesired"),
        in_use=status.texts("nodesInUse"),
        to_remove=status.texts("nodesToRemove"),
        to_add=status.texts("nodesToAdd"),
        updated_ms=status.time_ms("lastUpdateTime"),
        errors=tuple(errors),
    )
    return found, found.errors


def nodeshard_status_patch(
    in_use: list[str], to_remove: list[str], to_add: list[str], now_ms: int
) -> dict[str, Any]:
    """Return the JSON merge patch for the status subresource of a NodeShard."""
    return {
        "status": {
            "nodesInUse": in_use,
            "nodesToRemove": to_remove,
            "nodesToAdd": to_add,
            "lastUpdateTime": format_time(now_ms),
        }
    }
