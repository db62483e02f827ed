"""Numatopology: the NUMA nodes of one node, read from `nodeinfo.volcano.sh/v1alpha1`.

Written by an agent on the node of the same name. Source of names: Volcano's
nodeinfo/v1alpha1/numatopo_types.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.api.topology_schemas import NUMATOPOLOGY_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class NumaResource:
    """A resource that is bound to NUMA nodes.

    allocatable: free units as numbers and ranges, such as `0-3,8`. capacity: units in all.
    """

    allocatable: str = ""
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where a CPU sits."""

    numa: int = 0
    socket: int = 0
    core: int = 0


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What one pod holds; containers: as the agent wrote them."""

    uid: str
    name: str
    namespace: str
    containers: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where a GPU sits, and what it is."""

    numa: int = 0
    bus_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Numatopology:
    """The NUMA nodes of the node of the same name.

    policies: by manager, such as CPUManagerPolicy. reserved: quantities by resource, as written.
    cpus, gpus: by number. errors: fields that cannot be read; they are left out.
    """

    meta: ObjectMeta
    policies: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, NumaResource] = field(default_factory=dict)
    cpus: Mapping[str, CpuPlace] = field(default_factory=dict)
    gpus: Mapping[str, GpuPlace] = field(default_factory=dict)
    pods: tuple[PodAllocation, ...] = ()
    errors: tuple[FieldError, ...] = ()


def parse_numatopology(obj: object) -> tuple[Numatopology | None, tuple[FieldError, ...]]:
    """The Numatopology in an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, NUMATOPOLOGY_SCHEMA, "", errors).record("spec")
    found = Numatopology(
        meta=meta,
        policies=spec.texts_by_name("policies"),
        reserved=spec.texts_by_name("resReserved"),
        resources={name: _resource(each) for name, each in spec.records_by_name("numares")},
        cpus={name: _cpu(each) for name, each in spec.records_by_name("cpuDetail")},
        gpus={name: _gpu(each) for name, each in spec.records_by_name("gpuDetail")},
        pods=tuple(_pod(each) for each in spec.records("podAllocations")),
        errors=tuple(errors),
    )
    return found, found.errors


def _resource(fields: Fields) -> NumaResource:
    return NumaResource(fields.text("allocatable"), fields.integer("capacity"))


def _gpu(fields: Fields) -> GpuPlace:
    return GpuPlace(fields.integer("numa"), fields.text("busID"), fields.text("deviceModel"))


def _cpu(fields: Fields) -> CpuPlace:
    return CpuPlace(fields.integer("numa"), fields.integer("socket"), fields.integer("core"))


def _pod(fields: Fields) -> PodAllocation:
    containers = fields.raw("containerAllocations")
    return PodAllocation(
        uid=fields.text("uid"),
        name=fields.text("name"),
        namespace=fields.text("namespace"),
        containers=tuple(containers) if isinstance(containers, list) else (),
    )
