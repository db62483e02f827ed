"""Read and write shared GPUs and NPUs, and the tables of their possible partitions.

Volcano: `pkg/scheduler/api/devices/nvidia/gpushare` and `…/vgpu` (`decodeNodeDevices`,
`decodePodDevices`, `resourcereqs`).
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from optsched.api import wellknown
from optsched.api.fields import Fields, integer, listing, non_negative, record, text, texts
from optsched.cluster.node_resources import (
    NVIDIA,
    Geometry,
    GpuShare,
    GpuShareRequest,
    Instance,
    SharedGpu,
)
from optsched.formats.codec.ascend_npus import (
    amount_or_zero,
    chip_of,
    is_decimal_digits,
    node_npus,
    npu_annotations,
    npu_bind_annotations,
    npu_requests,
    npu_share_annotations,
    parse_chips,
    read_npu_shares,
)
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.node_resources import Chip

GeometryTable: TypeAlias = "tuple[tuple[str, tuple[Geometry, ...]], ...]"
"""Pairs (substring of a GPU model name, MIG geometries); the first matching pair applies."""


class DeviceTable(NamedTuple):
    """The MIG geometries of GPUs, and NPU chip types that take precedence over `KNOWN_CHIPS`."""

    geometries: GeometryTable = ()
    chips: tuple[Chip, ...] = ()


NO_TABLE: Final = DeviceTable()

CONFIG_FILE: Final = "device-config.yaml"
"""The key under which a ConfigMap holds the device tables."""
GEOMETRIES: Final = "optsched.io/mig-geometries"
"""Node annotation in snapshot dumps: the MIG geometries of the node's GPUs."""

_INSTANCE: Final = record(
    "",
    ("name", "memory", "count"),
    name=text(),
    memory=non_negative(),
    count=integer(minimum=1, maximum=64),
)
_GEOMETRY: Final = record("", ("group",), group=text(), geometries=listing("", _INSTANCE))
_MODELS: Final = record("", ("models",), models=texts(), allowedGeometries=listing("", _GEOMETRY))
_CONFIG: Final = record(nvidia=record(knownMigGeometries=listing("", _MODELS)), vnpus={})
_CONFIG_MAP: Final = record(data=record(**{CONFIG_FILE: text()}))


def parse_device_table(obj: object) -> tuple[DeviceTable, tuple[FieldError, ...]]:
    """Return the device tables in a ConfigMap, and all field errors."""
    errors: list[FieldError] = []
    source = Fields(obj, _CONFIG_MAP, "", errors).record("data").text(CONFIG_FILE)
    path = f"data[{CONFIG_FILE}]"
    found: list[tuple[str, tuple[Geometry, ...]]] = []
    chips: list[Chip] = []
    for part in read_yaml(source):
        if not isinstance(part, Document):
            errors.append(FieldError(path, None, f"is not YAML: {part}"))
            continue
        config = Fields(part.value, _CONFIG, path, errors)
        chips += parse_chips(config.raw("vnpus"), f"{path}.vnpus", errors)
        for entry in config.record("nvidia").records("knownMigGeometries"):
            before = len(errors)
            geometries: list[Geometry] = []
            for fields in entry.records("allowedGeometries"):
                instances = (
                    Instance(each.text("name"), each.integer("memory"), each.integer("count"))
                    for each in fields.records("geometries")
                )
                geometries.append(Geometry(fields.text("group"), tuple(instances)))
            if len(errors) == before:
                models = filter(None, entry.texts("models"))
                found += [(model, tuple(geometries)) for model in models]
    return DeviceTable(tuple(found), tuple(chips)), tuple(errors)


def geometries_of(model: str, table: GeometryTable) -> tuple[Geometry, ...]:
    """Return the MIG geometries of a GPU model; empty if the model is not in the table."""
    return next((cuts for name, cuts in table if name in model), ())


# --- annotations of dumped nodes ------------------------------------------------------------------


GPU_MEMORY: Final = "volcano.sh/gpu-memory"
GPU_NUMBER: Final = "volcano.sh/gpu-number"
VGPU_NUMBER: Final = "volcano.sh/vgpu-number"
VGPU_MEMORY: Final = "volcano.sh/vgpu-memory"
VGPU_PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
VGPU_CORES: Final = "volcano.sh/vgpu-cores"
VGPU_IDS: Final = "volcano.sh/vgpu-ids-new"
HANDSHAKE: Final = "volcano.sh/node-vgpu-handshake"
CARDS: Final = "optsched.io/vgpus"
"""Pod annotation in snapshot dumps: the GPU and NPU requests of the pod's containers."""

GPU_SHARE_PROBLEM: Final = "optsched.io/card-problem"
"""Node annotation in snapshot dumps: the reason why the node's devices could not be read."""

MAX_SHARED_GPUS: Final = 1024
"""Maximum number of shared GPUs per node, which bounds memory use."""
_TOO_MANY: Final = f"is more than a machine can have: write at most {MAX_SHARED_GPUS}"

HAMI_CORE: Final = "hami-core"
MIG: Final = "mig"
_DELETED: Final = "Deleted"
_MIG_INSTANCE: Final = re.compile(r"\[([^\[\]]*)\]$")
_NOT_A_GPU: Final = (
    "is not a GPU entry: write UUID,sharers,memory,model,health,mode with a colon after each"
)
NOT_BOUND: Final = (
    "names more devices than the pod requests: the annotation is ignored because no binder wrote it"
)
_NUMBERED: Final = "gpu-index"
_SHOWN: Final = 200
_NOT_A_NUMBER: Final = "is not the number of a GPU: write numbers separated by commas"


# --- nodes ----------------------------------------------------------------------------------------


def read_shared_gpus(
    annotations: Mapping[str, str], offered: Amounts, table: DeviceTable, errors: list[FieldError]
) -> tuple[SharedGpu, ...]:
    """Read the shared GPUs and NPUs of a node.

    Numbered GPUs are in the node's resources; vGPUs and NPUs are in its register annotations.

    `table` holds the MIG geometries of GPUs and the templates of NPUs.

    A node whose device plugin has been removed (`Deleted` in the handshake) has no vGPUs. If a node
    reports more than `MAX_SHARED_GPUS` GPUs of one kind, all GPUs of this kind are ignored.
    """
    shared_gpus: list[SharedGpu] = []
    amounts = dict(offered)
    number, memory = amounts.get(GPU_NUMBER, 0), amounts.get(GPU_MEMORY, 0)
    if memory and number > MAX_SHARED_GPUS:
        errors.append(FieldError(f"status.allocatable[{GPU_NUMBER}]", number, _TOO_MANY))
    elif memory and number:
        unhealthy = _numbers(annotations, wellknown.GPU_UNHEALTHY_IDS, errors)
        shared_gpus += [
            SharedGpu(str(i), memory // number, is_healthy=i not in unhealthy)
            for i in range(number)
        ]
    if not annotations.get(HANDSHAKE, "").startswith(_DELETED):
        geometries = table.geometries
        if (dumped := annotations.get(GEOMETRIES)) is not None:
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                geometries = tuple(
                    (model, tuple(Geometry(n, tuple(Instance(*i) for i in cut)) for n, cut in cuts))
                    for model, cuts in json.loads(dumped)
                )
        shared_gpus += _read_register(annotations, geometries, errors)
    shared_gpus += node_npus(annotations, amounts, table.chips, errors)
    return tuple(shared_gpus)


def replace_geometries(device: SharedGpu, table: DeviceTable) -> SharedGpu:
    """Return a GPU or NPU with its possible partitions; the same object if they do not change."""
    if device.npu:
        chip = chip_of(device.npu, table.chips)
        return device if chip == device.chip else replace(device, chip=chip)
    if device.mode != MIG:
        return device
    geometries = geometries_of(device.model, table.geometries)
    return device if geometries == device.geometries else replace(device, geometries=geometries)


def _read_register(
    annotations: Mapping[str, str], table: GeometryTable, errors: list[FieldError]
) -> Iterable[SharedGpu]:
    text = annotations.get(wellknown.NODE_VGPU_REGISTER, "")
    if text.count(":") > MAX_SHARED_GPUS:
        path = f"metadata.annotations[{wellknown.NODE_VGPU_REGISTER}]"
        errors.append(FieldError(path, f"{text.count(':')} GPUs", _TOO_MANY))
        return
    for part in (p for p in text.split(":") if p.strip()):
        fields = part.strip().split(",")
        if len(fields) not in (5, 6) or not all(is_decimal_digits(f) for f in fields[1:3]):
            path = f"metadata.annotations[{wellknown.NODE_VGPU_REGISTER}]"
            errors.append(FieldError(path, part, _NOT_A_GPU))
            continue
        key, sharers, memory, model, health = fields[:5]
        mode = MIG if fields[5:] == [MIG] else HAMI_CORE
        healthy = health.lower() == "true"
        geometries = geometries_of(model, table) if mode == MIG else ()
        yield SharedGpu(key, int(memory), int(sharers), mode, model, healthy, geometries)


def shared_gpu_annotations(shared_gpus: Sequence[SharedGpu]) -> dict[str, str]:
    """Return the node annotations that report the given GPUs and NPUs."""
    unhealthy = [c.key for c in shared_gpus if not c.family and not c.is_healthy]
    annotations = {wellknown.GPU_UNHEALTHY_IDS: ",".join(unhealthy)} if unhealthy else {}
    vgpus = [c for c in shared_gpus if c.is_vgpu]
    if vgpus:
        annotations[wellknown.NODE_VGPU_REGISTER] = "".join(
            f"{c.key},{c.sharers},{c.memory},{c.model},{str(c.is_healthy).lower()},{c.mode}:"
            for c in vgpus
        )
    # A snapshot dump also holds the MIG geometries of the GPU models.
    geometries = {gpu.model: gpu.geometries for gpu in vgpus if gpu.geometries}
    if geometries:
        longest_first = sorted(geometries, key=lambda model: (-len(model), model))
        annotations[GEOMETRIES] = json.dumps(
            [[m, [[g.name, g.instances] for g in geometries[m]]] for m in longest_first]
        )
    return annotations | npu_annotations(c for c in shared_gpus if c.npu)


# --- pods -----------------------------------------------------------------------------------------


def read_gpu_share_requests(
    pod: object, annotations: Mapping[str, str]
) -> tuple[GpuShareRequest, ...]:
    """Read a pod's requests for vGPUs and NPUs, one per device kind and container.

    An invalid amount is read as 0; `pod_request` reports the error.
    """
    if CARDS in annotations:
        parts = [part.split(" ") for part in annotations[CARDS].split(";")]
        if not all(len(p) in (4, 5) and all(map(is_decimal_digits, p[:4])) for p in parts):
            return ()
        return tuple(
            GpuShareRequest(int(p[0]), int(p[1]), int(p[2]), int(p[3]), "".join(p[4:]))
            for p in parts
        )
    spec = pod.get("spec") if isinstance(pod, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    listed = containers if isinstance(containers, list) else ()
    found: list[GpuShareRequest] = []
    for container in listed:
        resources = container.get("resources") if isinstance(container, dict) else None
        if not isinstance(resources, dict):
            continue
        amounts: dict[str, Any] = {}
        for kind in ("requests", "limits"):
            part = resources.get(kind)
            amounts |= part if isinstance(part, dict) else {}
        default_number = 1 if VGPU_MEMORY in amounts else 0
        number = amount_or_zero(amounts, VGPU_NUMBER) if VGPU_NUMBER in amounts else default_number
        if number:
            names = (VGPU_MEMORY, VGPU_PERCENT, VGPU_CORES)
            memory, percent, cores = (amount_or_zero(amounts, name) for name in names)
            # A vGPU request without a memory amount requests the whole memory of the GPU.
            percent = 0 if memory else percent or 100
            found.append(GpuShareRequest(number, memory, percent, cores))
        found += npu_requests(amounts)
    return tuple(found)


def request_text(requests: Sequence[GpuShareRequest]) -> str:
    """Format requests as `number memory percent cores chip`, joined by semicolons."""
    return ";".join(
        f"{r.number} {r.memory} {r.percent} {r.cores} {r.npu}".rstrip() for r in requests
    )


def read_gpu_shares(
    annotations: Mapping[str, str], request: Amounts, errors: list[FieldError]
) -> tuple[GpuShare, ...]:
    """Read the GPU and NPU shares in the annotations of a bound pod."""
    npus = tuple(read_npu_shares(annotations))
    if wellknown.GPU_INDEX not in annotations and VGPU_IDS not in annotations:
        return npus
    memory = dict(request).get(GPU_MEMORY, 0)
    numbers = _numbers(annotations, wellknown.GPU_INDEX, errors)
    uses = [GpuShare(str(i), memory) for i in numbers]
    for container, ids in enumerate(annotations.get(VGPU_IDS, "").split(";")):
        for fields in (part.split(",") for part in ids.split(":")):
            if len(fields) >= 4 and all(map(is_decimal_digits, fields[2:4])):
                name, memory, cores = fields[0], int(fields[2]), int(fields[3])
                # `GPU-0[group1-3]` names the MIG instance `group1-3` of the GPU `GPU-0`.
                match = _MIG_INSTANCE.search(name)
                instance = match[1] if match else ""
                key = _MIG_INSTANCE.sub("", name)
                uses.append(GpuShare(key, memory, cores, container, instance))
    return (*uses, *npus)


def check_gpu_shares(
    uses: tuple[GpuShare, ...],
    requests: Sequence[GpuShareRequest],
    request: Amounts,
    errors: list[FieldError],
) -> tuple[GpuShare, ...]:
    """Drop GPU shares of device kinds for which a pod holds more devices than it requests.

    Each dropped device kind is reported as an error, because a user may have written the
    annotations.
    """
    if not uses:
        return ()
    amounts = dict(request)
    numbered = max(amounts.get(GPU_NUMBER, 0), 1 if amounts.get(GPU_MEMORY) else 0)
    most: dict[str, int] = {_NUMBERED: numbered}
    for each in requests:
        most[each.npu] = most.get(each.npu, 0) + each.number
    found: dict[str, list[GpuShare]] = {}
    for use in uses:
        is_numbered = not use.npu and is_decimal_digits(use.key)
        found.setdefault(_NUMBERED if is_numbered else use.npu, []).append(use)
    false = {kind for kind, held in found.items() if len(held) > most.get(kind, 0)}
    for kind in sorted(false):
        text = ", ".join(use.key for use in found[kind])[:_SHOWN]
        errors.append(FieldError("metadata.annotations", text, NOT_BOUND))
    return tuple(use for kind, held in found.items() if kind not in false for use in held)


def gpu_share_annotations(uses: Sequence[GpuShare]) -> dict[str, str]:
    """Return the annotations of a pod to which the given GPU and NPU shares are allocated."""
    gpus = [u for u in uses if not u.npu]
    numbered = [u.key for u in gpus if is_decimal_digits(u.key)]
    annotations = {wellknown.GPU_INDEX: ",".join(numbered)} if numbered else {}
    vgpus = [u for u in gpus if not is_decimal_digits(u.key)]
    if vgpus:
        of_container = [""] * (1 + max(u.container for u in vgpus))
        for u in vgpus:
            key = f"{u.key}[{u.instance}]" if u.instance else u.key
            of_container[u.container] += f"{key},{NVIDIA},{u.memory},{u.cores}:"
        annotations[VGPU_IDS] = ";".join(of_container)
    return annotations | npu_share_annotations([u for u in uses if u.npu])


def gpu_bind_annotations(uses: Sequence[GpuShare], node: str, now_ms: int) -> dict[str, str]:
    """Return the annotations from which device plugins read the shares of a bound pod."""
    annotations = gpu_share_annotations(uses)
    if wellknown.GPU_INDEX in annotations:
        annotations["volcano.sh/predicate-time"] = str(now_ms * 1_000_000)
    if VGPU_IDS in annotations:
        annotations |= {
            "volcano.sh/vgpu-node": node,
            "volcano.sh/vgpu-time": str(now_ms // 1000),
            "volcano.sh/devices-to-allocate": annotations[VGPU_IDS],
            "volcano.sh/bind-phase": "allocating",
            "volcano.sh/bind-time": str(now_ms // 1000),
        }
    return annotations | npu_bind_annotations([u for u in uses if u.npu], node, now_ms)


# --- numbers --------------------------------------------------------------------------------------


def _numbers(annotations: Mapping[str, str], key: str, errors: list[FieldError]) -> list[int]:
    parts = [p.strip() for p in annotations.get(key, "").split(",") if p.strip()]
    if all(map(is_decimal_digits, parts)):
        return [int(p) for p in parts]
    errors.append(FieldError(f"metadata.annotations[{key}]", annotations[key], _NOT_A_NUMBER))
    return []
