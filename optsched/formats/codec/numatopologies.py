"""Read and write NUMA nodes (Numatopologies), and NUMA requests and allocations of pods.

An agent on each node (Volcano's resource-exporter) reports the node's CPUs and GPUs, which CPUs and
GPUs are free for exclusive use, and which pods hold the other CPUs and GPUs. Volcano:
`pkg/scheduler/api/numa_info.go`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from optsched.api import wellknown
from optsched.api.hypernode import parse_numatopology
from optsched.cluster.amounts import amount_of
from optsched.cluster.node_resources import Alignment, Numa, NumaCell, NumaHold, NumaNeed, NumaPart
from optsched.formats.codec.annotations import PROBLEM
from optsched.formats.codec.pods.resource_requests import is_sidecar, own_request
from optsched.formats.files.diagnostics import join_messages
from optsched.units import CPU, GPU, MEMORY, FieldError, QuantityError, parse_amount
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.api.fields import Fields
    from optsched.api.hypernode import Numatopology
    from optsched.cluster.amounts import Amounts

CPU_MANAGER, TOPOLOGY_MANAGER = "CPUManagerPolicy", "TopologyManagerPolicy"
STATIC: Final = "static"
MOST_CELLS: Final = 8
"""Maximum number of NUMA nodes on which a kubelet aligns resources (`maxAllowableNUMANodes`)."""

_LIST: Final = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_NO_LIST: Final = "is not a list of numbers: write numbers and ranges such as 0-3,8"
_NO_NUMBER: Final = "is not the number of a CPU or GPU"
_NO_UNIT: Final = "names {} {}, but {} does not list its NUMA node"
_NO_CPUS: Final = "lists no CPU: write the NUMA node, socket and core of each CPU"
_NO_FREE: Final = "is missing: write which CPUs are free"
_TOO_MANY: Final = f"has more than {MOST_CELLS} NUMA nodes, the most that a kubelet aligns"
_NO_POLICY: Final = f"is not a policy: write {', '.join(Alignment)}"
_NO_ALLOCATIONS: Final = "is not a mapping of resources to lists of numbers"

_Ids: TypeAlias = "set[int]"
_Place = TypeVar("_Place")


def parse_numa(obj: object) -> tuple[str, Numa | None, tuple[FieldError, ...]]:
    """Parse a Numatopology; return the node name, its NUMA cells, and all field errors.

    The NUMA cells are None if the object has no name. If any field is invalid, the whole
    Numatopology is ignored, because a wrong list of free CPUs is worse than no list.
    """
    parsed, errors = parse_numatopology(obj)
    if parsed is None:
        return "", None, errors
    dumped_problem = parsed.meta.annotations.get(PROBLEM)
    if dumped_problem is not None:
        return parsed.meta.name, Numa(problem=dumped_problem), ()
    found = list(errors)
    numa = _numa(parsed, found)
    if found:
        numa = Numa(problem=join_messages(found))
    return parsed.meta.name, numa, tuple(found)


@dataclass(slots=True)
class _Units:
    """The CPUs or GPUs of a node: their NUMA cells, and whether each is reserved, free or held."""

    resource: str
    path: str
    cell_of: Mapping[int, int]
    reserved: _Ids = field(default_factory=set)
    free: _Ids = field(default_factory=set)
    held: _Ids = field(default_factory=set)

    def listed(self, text: str, path: str, errors: list[FieldError]) -> _Ids:
        if text and not _LIST.fullmatch(text):
            errors.append(FieldError(path, text, _NO_LIST))
            return set()
        found: _Ids = set()
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            unknown = next((n for n in numbers if n not in self.cell_of), None)
            if unknown is not None:
                message = _NO_UNIT.format(self.resource, unknown, self.path)
                errors.append(FieldError(path, text, message))
                return set()
            found.update(numbers)
        return found

    def per_cell(self, units: Iterable[int]) -> Counter[int]:
        return Counter(self.cell_of[unit] for unit in units)


def _numa(parsed: Numatopology, errors: list[FieldError]) -> Numa:
    places = _by_number(parsed.cpus, "cpuDetail", errors)
    cpus = _Units(CPU, "spec.cpuDetail", {n: place.numa for n, place in places.items()})
    in_order = sorted(places, key=lambda n: (places[n].socket, places[n].core, n))
    try:
        # The kubelet reserves whole CPUs.
        num_reserved = -(-parse_amount(CPU, parsed.reserved.get(CPU, "0")) // 1000)
    except QuantityError as e:
        errors.append(e.at_path(f"spec.resReserved[{CPU}]"))
        num_reserved = 0
    cpus.reserved = set(in_order[:num_reserved])
    slots = _by_number(parsed.gpus, "gpuDetail", errors)
    gpus = _Units(GPU, "spec.gpuDetail", {n: place.numa for n, place in slots.items()})
    if GPU not in parsed.resources:
        gpus.cell_of = {}
    if not cpus.cell_of:
        errors.append(FieldError(cpus.path, None, _NO_CPUS))
    if CPU not in parsed.resources:
        errors.append(FieldError(f"spec.numares[{CPU}]", None, _NO_FREE))
    number = len(set(cpus.cell_of.values()))
    if number > MOST_CELLS:
        errors.append(FieldError(cpus.path, number, _TOO_MANY))
    holds = tuple(_allocated_units(parsed, (cpus, gpus), errors))
    for units in (cpus, gpus):
        resource = parsed.resources.get(units.resource)
        if resource is not None:
            path = f"spec.numares[{units.resource}].allocatable"
            listed = units.listed(resource.allocatable, path, errors)
            units.free = listed - units.reserved - units.held
    policy = parsed.policies.get(TOPOLOGY_MANAGER) or Alignment.NONE.value
    is_known = policy in tuple(Alignment)
    if not is_known:
        errors.append(FieldError(f"spec.policies[{TOPOLOGY_MANAGER}]", policy, _NO_POLICY))
    is_static = parsed.policies.get(CPU_MANAGER) == STATIC
    alignment = Alignment(policy) if is_known and is_static else Alignment.NONE
    total, reserved, free = map(cpus.per_cell, (cpus.cell_of, cpus.reserved, cpus.free))
    devices, idle = map(gpus.per_cell, (gpus.cell_of, gpus.free))
    cells = tuple(
        NumaCell(c, total[c], reserved[c], free[c], devices[c], idle[c])
        for c in sorted(total.keys() | devices.keys())
    )
    return Numa(alignment, cells, holds)


def _by_number(
    named: Mapping[str, _Place], name: str, errors: list[FieldError]
) -> dict[int, _Place]:
    found: dict[int, _Place] = {}
    for key, value in named.items():
        if is_decimal(key, 5):
            found[int(key)] = value
        else:
            errors.append(FieldError(f"spec.{name}[{key}]", key, _NO_NUMBER))
    return found


def _allocated_units(
    parsed: Numatopology, kinds: tuple[_Units, _Units], errors: list[FieldError]
) -> Iterator[NumaHold]:
    units_of = {units.resource: units for units in kinds}
    for number, pod in enumerate(parsed.pods):
        cpus, gpus = Counter[int](), Counter[int]()
        for i, container in enumerate(pod.containers):
            path = f"spec.podAllocations[{number}].containerAllocations[{i}].allocations"
            found = container.get("allocations") if isinstance(container, dict) else None
            if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
                errors.append(FieldError(path, found, _NO_ALLOCATIONS))
                continue
            for resource, text in found.items():
                units = units_of.get(resource)
                if units is not None and units.cell_of:
                    listed = units.listed(text, f"{path}[{resource}]", errors)
                    fresh = listed - units.reserved - units.held
                    units.held |= fresh
                    (cpus if resource == CPU else gpus).update(units.per_cell(fresh))
        cells = sorted(cpus.keys() | gpus.keys())
        key = f"{pod.namespace}/{pod.name}" if pod.name else ""
        parts = tuple(NumaPart(c, cpus[c], gpus[c]) for c in cells)
        if parts:
            yield NumaHold(key, pod.uid, parts)


# --- writing --------------------------------------------------------------------------------------


def numa_spec(numa: Numa) -> dict[str, Any]:
    """Return a Numatopology `spec` for NUMA cells; the CPU and GPU numbers are placeholders."""
    cpus, gpus = _UnitCursor(), _UnitCursor()
    reserved = [cpus.take_units(cell.number, cell.reserved) for cell in numa.cells]
    holds: list[dict[str, Any]] = []
    for hold in numa.holds:
        namespace, _, name = hold.key.partition("/")
        held = {
            CPU: [n for part in hold.parts for n in cpus.take_units(part.cell, part.cpus)],
            GPU: [n for part in hold.parts for n in gpus.take_units(part.cell, part.gpus)],
        }
        allocations = {r: ",".join(map(str, units)) for r, units in held.items() if units}
        pod = {"uid": hold.uid, "name": name, "namespace": namespace}
        holds.append(
            {
                **{key: value for key, value in pod.items() if value},
                "containerAllocations": [{"name": "main", "allocations": allocations}],
            }
        )
    free_cpus = [cpus.take_units(cell.number, cell.free_cpus) for cell in numa.cells]
    free_gpus = [gpus.take_units(cell.number, cell.free_gpus) for cell in numa.cells]
    for cell in numa.cells:
        cpus.take_units(cell.number, cell.cpus - cpus.num_taken[cell.number])
        gpus.take_units(cell.number, cell.gpus - gpus.num_taken[cell.number])
    gpu_detail = {str(n): {"numa": cell} for n, cell in gpus.cell_of.items()}
    resources = {CPU: _resource(free_cpus, cpus)}
    if gpu_detail:
        resources[GPU] = _resource(free_gpus, gpus)
    return {
        "policies": {CPU_MANAGER: STATIC, TOPOLOGY_MANAGER: numa.alignment.value},
        "resReserved": {CPU: str(sum(map(len, reserved)))},
        "numares": resources,
        # Reserved CPUs have the lowest numbers, because the kubelet reserves CPUs in core order.
        "cpuDetail": {
            str(n): {"numa": cell, "socket": 0, "core": n} for n, cell in cpus.cell_of.items()
        },
        **({"gpuDetail": gpu_detail} if gpu_detail else {}),
        **({"podAllocations": holds} if holds else {}),
    }


class _UnitCursor:
    """A generator of consecutive numbers for the CPUs or GPUs in an encoded Numatopology."""

    def __init__(self) -> None:
        self.cell_of: dict[int, int] = {}
        self.num_taken: Counter[int] = Counter()
        self._numbers = count()

    def take_units(self, cell: int, number: int) -> list[int]:
        found = [next(self._numbers) for _ in range(number)]
        self.cell_of.update(dict.fromkeys(found, cell))
        self.num_taken[cell] += number
        return found


def _resource(free: list[list[int]], units: _UnitCursor) -> dict[str, Any]:
    numbers = ",".join(str(n) for each in free for n in each)
    return {"allocatable": numbers, "capacity": len(units.cell_of)}


# --- numa requests --------------------------------------------------------------------------------

NEEDS: Final = "optsched.io/numa"
"""Pod annotation in snapshot dumps: the NUMA requests of the pod's containers."""

_ONE: Final = 1000
NOT_BOUND: Final = (
    "exceeds the pod's exclusive requests: the annotation is ignored because no binder wrote it"
)
_NO_DECISION: Final = (
    'is not a topology decision: write {"numa": {"0": {"cpu": "4"}}} with amounts by NUMA node'
)


def numa_needs(spec: Fields, annotations: Mapping[str, str]) -> tuple[NumaNeed, ...]:
    """Return the exclusive CPUs and GPUs of each container that has any, sidecars first.

    A container has exclusive CPUs if it requests whole CPUs and its pod is Guaranteed (the
    kubelet's CPU manager, policy static). All requested GPUs are exclusive. Init containers other
    than sidecars are ignored, because the main containers reuse their resources.
    """
    if NEEDS in annotations:
        parts = [part.split(" ") for part in annotations[NEEDS].split(";")]
        if not all(len(p) == 2 and all(is_decimal(n, 9) for n in p) for p in parts):
            return ()
        return tuple(NumaNeed(*map(int, p)) for p in parts)
    starters = list(spec.records("initContainers"))
    containers = list(spec.records("containers"))
    is_guaranteed = spec.raw("resources") is None
    for container in (*starters, *containers):
        if not is_guaranteed:
            break
        limits, request = container.record("resources").amounts("limits"), own_request(container)
        is_guaranteed = all(limits.get(r) and limits[r] == request[r] for r in (CPU, MEMORY))
    needs: list[NumaNeed] = []
    for container in (*filter(is_sidecar, starters), *containers):
        request = own_request(container)
        cpu_m, gpus = request.get(CPU, 0), request.get(GPU, 0)
        cpus = cpu_m // _ONE if is_guaranteed and cpu_m % _ONE == 0 else 0
        if cpus or gpus:
            needs.append(NumaNeed(cpus, gpus))
    return tuple(needs)


def implied_needs(request: Amounts) -> tuple[NumaNeed, ...]:
    """Return the GPU-only NUMA request of a one-container pod whose QoS class is not Guaranteed."""
    gpus = amount_of(request, GPU)
    return (NumaNeed(0, gpus),) if gpus else ()


def needs_text(needs: Sequence[NumaNeed]) -> str:
    """Format NUMA requests for an annotation: CPUs and GPUs of each container, separated by `;`."""
    return ";".join(f"{n.cpus} {n.gpus}" for n in needs)


def check_numa_parts(
    parts: tuple[NumaPart, ...], needs: Sequence[NumaNeed], remarks: list[FieldError]
) -> tuple[NumaPart, ...]:
    """Return a pod's NUMA allocation; if it exceeds the request, drop it and report an error.

    The check is necessary because the pod's user may have written the annotation.
    """
    cpus, gpus = sum(part.cpus for part in parts), sum(part.gpus for part in parts)
    if cpus <= sum(need.cpus for need in needs) and gpus <= sum(need.gpus for need in needs):
        return parts
    path = f"metadata.annotations[{wellknown.TOPOLOGY_DECISION}]"
    remarks.append(FieldError(path, f"{cpus} CPUs and {gpus} GPUs", NOT_BOUND))
    return ()


# --- decisions ------------------------------------------------------------------------------------


def numa_parts(annotations: Mapping[str, str], remarks: list[FieldError]) -> tuple[NumaPart, ...]:
    """Read the NUMA cells planned for a pod from its annotation `volcano.sh/topology-decision`."""
    text = annotations.get(wellknown.TOPOLOGY_DECISION)
    if text is None:
        return ()
    try:
        by_cell = sorted((int(cell), held) for cell, held in json.loads(text)["numa"].items())
        return tuple(
            NumaPart(
                cell,
                parse_amount(CPU, held.get(CPU, 0)) // _ONE,
                parse_amount(GPU, held.get(GPU, 0)),
            )
            for cell, held in by_cell
        )
    except (ValueError, TypeError, AttributeError, KeyError, QuantityError, RecursionError):
        path = f"metadata.annotations[{wellknown.TOPOLOGY_DECISION}]"
        remarks.append(FieldError(path, text, _NO_DECISION))
        return ()


def decision_marks(parts: Sequence[NumaPart]) -> dict[str, str]:
    """Return the annotation that records the NUMA cells planned for a pod."""
    if not parts:
        return {}
    by_cell: dict[str, dict[str, str]] = {}
    for part in parts:
        amounts = {CPU: part.cpus, GPU: part.gpus}
        by_cell[str(part.cell)] = {r: str(amount) for r, amount in amounts.items() if amount}
    text = json.dumps({"numa": by_cell}, separators=(",", ":"))
    return {wellknown.TOPOLOGY_DECISION: text}
