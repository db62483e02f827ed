"""Read and write Ascend NPUs in annotations and resources, as HAMi's device plugin does.

Volcano: `pkg/scheduler/api/devices/ascend/hami`, `…/devices/config/vnpu.go`; the plugin:
Project-HAMi/ascend-device-plugin, `internal/server`. The built-in chip types are those in the
plugin's ConfigMap (`ascend-device-configmap.yaml`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields, boolean, integer, listing, non_negative, record, text
from optsched.cluster.node_resources import Chip, GpuShare, GpuShareRequest, SharedGpu, Template
from optsched.units import FieldError, QuantityError, parse_amount
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HAMI: Final = "hami.io/"
HUAWEI: Final = "huawei.com/"
REGISTER: Final = "hami.io/node-register-"
CHIPS: Final = "optsched.io/npu-chips"
"""Node annotation in snapshot dumps: the partitioning templates of the node's NPUs."""

KNOWN_CHIPS: Final = (
    Chip(
        "Ascend310P",
        21527,
        24576,
        (Template("vir01", 3072), Template("vir02", 6144), Template("vir04", 12288)),
    ),
    Chip(
        "Ascend910A",
        32768,
        32768,
        (
            Template("vir02", 2184),
            Template("vir04", 4369),
            Template("vir08", 8738),
            Template("vir16", 17476),
        ),
    ),
    Chip(
        "Ascend910B2",
        65536,
        65536,
        (
            Template("vir03_1c_8g", 8192),
            Template("vir06_1c_16g", 16384),
            Template("vir12_3c_32g", 32768),
        ),
    ),
    *(
        Chip(name, 65536, 65536, (Template("vir05_1c_16g", 16384), Template("vir10_3c_32g", 32768)))
        for name in ("Ascend910B3", "Ascend910B4-1", "Ascend910C")
    ),
    Chip(
        "Ascend910B4",
        32768,
        32768,
        (Template("vir05_1c_8g", 8192), Template("vir10_3c_16g", 16384)),
    ),
)
"""Built-in NPU chip types; the chip types in a ConfigMap take precedence."""

_HANDSHAKE: Final = "hami.io/node-handshake-"
_SOFT: Final = "hami-vnpu-core"
_DELETED: Final = "Deleted"
_MEMORY: Final = "-memory"
_CORE: Final = "-core"
_NAME: Final = re.compile(r"Ascend[A-Za-z0-9-]{1,40}")
_WHOLE_OR_SLICE: Final = re.compile(r"Ascend(910|310)|.*-\d+c")
"""Matches resource names that Huawei's device plugin advertises: whole chips and slices."""
_ALLOCATED: Final = "-devices-allocated"
_TO_ALLOCATE: Final = "-devices-to-allocate"

_NOT_A_REPORT: Final = "is not a list of devices in JSON: no pod gets these NPUs"
_SOFT_NODE: Final = (
    'shares NPUs without templates, which is not supported: no pod gets these NPUs; write "false"'
)
_TWICE: Final = "is listed more than once: no pod gets these NPUs"
_NO_ID: Final = "is not the ID of a device: write an ID without commas, colons and semicolons"
_SEPARATORS: Final = ",:;"
_OTHER_NAMES: Final = "is not supported: request {0} and {0}-memory instead"
_NOT_AN_NPU: Final = "is not the name of an Ascend chip, such as Ascend310P"

_DEVICE: Final = record(
    "",
    ("id", "devmem"),
    id=text(),
    count=non_negative(default=1),
    devmem=non_negative(),
    health=boolean(),
    custominfo=record(NetworkID={"type": "integer"}),
)
_REPORT: Final = record(devices=listing("", _DEVICE))
_TEMPLATE: Final = record("", ("name", "memory"), name=text(minLength=1), memory=non_negative())
_VNPU: Final = record(
    "",
    ("commonWord", "memoryAllocatable", "memoryCapacity"),
    commonWord=text(),
    resourceName=text(),
    resourceMemoryName=text(),
    memoryAllocatable=integer(minimum=1),
    memoryCapacity=integer(minimum=1),
    templates=listing("", _TEMPLATE),
)
_VNPUS: Final = record(configs=listing("", _VNPU))


# --- chips ----------------------------------------------------------------------------------------


def parse_chips(vnpus: object, path: str, errors: list[FieldError]) -> tuple[Chip, ...]:
    """Return the chip types in the field `vnpus` of a ConfigMap."""
    whole = {"configs": vnpus} if isinstance(vnpus, list) else vnpus
    fields = Fields(whole, _VNPUS, path, errors)
    found: list[Chip] = []
    for each in fields.records("configs"):
        before = len(errors)
        name = each.text("commonWord")
        if not is_npu(name):
            each.reject("commonWord", name, _NOT_AN_NPU)
        for key, meant in (
            ("resourceName", HUAWEI + name),
            ("resourceMemoryName", HUAWEI + name + _MEMORY),
        ):
            if each.text(key) not in ("", meant):
                each.reject(key, each.text(key), _OTHER_NAMES.format(HUAWEI + name))
        templates = [
            Template(t.text("name"), t.integer("memory")) for t in each.records("templates")
        ]
        memory, capacity = each.integer("memoryAllocatable"), each.integer("memoryCapacity")
        templates.sort(key=lambda t: (t.memory, t.name))
        chip = Chip(name, memory, capacity, tuple(templates))
        if len(errors) == before:
            found.append(chip)
    return tuple(found)


def chip_of(npu: str, chips: Sequence[Chip]) -> Chip | None:
    """Return the chip type named `npu` in `chips` or else in `KNOWN_CHIPS`; None if unknown."""
    return next((chip for chip in (*chips, *KNOWN_CHIPS) if chip.name == npu), None)


def is_npu(name: str) -> bool:
    """Return whether a resource name is a chip type that pods can share by templates."""
    return bool(_NAME.fullmatch(name)) and not _WHOLE_OR_SLICE.fullmatch(name)


# --- nodes ----------------------------------------------------------------------------------------


def node_npus(
    annotations: Mapping[str, str],
    offered: Mapping[str, int],
    chips: Sequence[Chip],
    errors: list[FieldError],
) -> Iterator[SharedGpu]:
    """Yield the NPUs of a node, ordered by chip type and then as the device plugin reports them.

    The node has no NPUs of a chip type if it does not advertise the resource of this chip type, or
    if the device plugin of this chip type has been removed. The device plugin omits fields whose
    value is false: if any NPU on the node has the field `health`, an NPU without it is unhealthy.
    """
    known = chips
    if (dumped := annotations.get(CHIPS)) is not None:
        with suppress(ValueError, TypeError, RecursionError):
            known = tuple(
                Chip(name, memory, capacity, tuple(Template(*t) for t in templates))
                for name, memory, capacity, templates in json.loads(dumped)
            )
    for key in sorted(k for k in annotations if k.startswith(REGISTER)):
        npu = key.removeprefix(REGISTER)
        is_removed = annotations.get(_HANDSHAKE + npu, "").startswith(_DELETED)
        if is_npu(npu) and offered.get(HUAWEI + npu) and not is_removed:
            yield from _read_report(npu, annotations, chip_of(npu, known), errors)


def _read_report(
    npu: str, annotations: Mapping[str, str], chip: Chip | None, errors: list[FieldError]
) -> Iterable[SharedGpu]:
    path, source = f"metadata.annotations[{REGISTER}{npu}]", annotations[REGISTER + npu]
    if annotations.get(_SOFT) == "true":
        errors.append(FieldError(f"metadata.annotations[{_SOFT}]", "true", _SOFT_NODE))
        return ()
    try:
        devices = json.loads(source)
    except (ValueError, RecursionError):
        devices = None
    if not isinstance(devices, list):
        errors.append(FieldError(path, source, _NOT_A_REPORT))
        return ()
    before = len(errors)
    parts = list(Fields({"devices": devices}, _REPORT, path, errors).records("devices"))
    reports_health = any(part.boolean("health") for part in parts)
    npus: list[SharedGpu] = []
    for part in parts:
        custom = part.record("custominfo")
        has_default_health = part.raw("health") is None and not reports_health
        npus.append(
            SharedGpu(
                part.text("id"),
                part.integer("devmem"),
                part.integer("count"),
                is_healthy=part.boolean("health") or has_default_health,
                npu=npu,
                chip=chip,
                network=custom.optional_integer("NetworkID"),
            )
        )
    number = Counter(device.key for device in npus)
    for part, device in zip(parts, npus, strict=True):
        if number[device.key] > 1 or any(each in device.key for each in _SEPARATORS):
            part.reject("id", device.key, _TWICE if number[device.key] > 1 else _NO_ID)
    return npus if len(errors) == before else ()


def npu_annotations(shared_gpus: Iterable[SharedGpu]) -> dict[str, str]:
    """Return the node annotations that report the given NPUs."""
    reports: dict[str, list[dict[str, Any]]] = {}
    chips: dict[str, Chip] = {}
    for device in shared_gpus:
        network = {"custominfo": {"NetworkID": device.network}}
        report = {
            "id": device.key,
            "count": device.sharers,
            "devmem": device.memory,
            "type": device.npu,
            "health": device.is_healthy,
            **({} if device.network is None else network),
        }
        reports.setdefault(device.npu, []).append(report)
        if device.chip is not None:
            chips[device.npu] = device.chip
    annotations = {REGISTER + npu: json.dumps(report) for npu, report in reports.items()}
    if chips:
        plain = [[c.name, c.memory, c.capacity, c.templates] for c in chips.values()]
        annotations[CHIPS] = json.dumps(plain)
    return annotations


# --- pods -----------------------------------------------------------------------------------------


def npu_requests(amounts: Mapping[str, Any]) -> Iterator[GpuShareRequest]:
    """Yield the NPU requests of a container; a request without memory is for whole NPUs."""
    names = {key.removeprefix(HUAWEI) for key in amounts if key.startswith(HUAWEI)}
    for npu in sorted({n.removesuffix(_MEMORY) for n in names if not n.endswith(_CORE)}):
        if not is_npu(npu):
            continue
        memory = amount_or_zero(amounts, HUAWEI + npu + _MEMORY)
        number = amount_or_zero(amounts, HUAWEI + npu) if npu in names else 1
        if number:
            yield GpuShareRequest(number, memory, 0 if memory else 100, npu=npu)


def is_npu_amount(resource: str) -> bool:
    """Return whether a resource states the memory or cores per NPU; no node advertises it."""
    name = resource.removeprefix(HUAWEI)
    if name == resource or not name.endswith((_MEMORY, _CORE)):
        return False
    return is_npu(name.removesuffix(_MEMORY).removesuffix(_CORE))


class _NpuAnnotations:
    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and (
            key.startswith(HAMI) or (is_npu(key.removeprefix(HUAWEI)) and key.startswith(HUAWEI))
        )


NPU_ANNOTATIONS: Final = _NpuAnnotations()


def read_npu_shares(annotations: Mapping[str, str]) -> Iterator[GpuShare]:
    """Yield the NPU shares in the annotations of a bound pod."""
    names = {
        npu
        for key in annotations
        if key.startswith(HAMI)
        and is_npu(npu := key[len(HAMI) :].removesuffix(_ALLOCATED).removesuffix(_TO_ALLOCATE))
    }
    for npu in sorted(names):
        keys = (HAMI + npu + _ALLOCATED, HAMI + npu + _TO_ALLOCATE)
        text = next((annotations[k] for k in keys if annotations.get(k)), "")
        try:
            listed = json.loads(annotations.get(HUAWEI + npu) or "[]")
            templates = {str(e["UUID"]): str(e.get("temp", "")) for e in listed}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            templates = {}
        for container, part in enumerate(text.split(";")):
            for fields in (use.split(",") for use in part.split(":")):
                if len(fields) >= 4 and all(map(is_decimal_digits, fields[2:4])):
                    key, memory, cores = fields[0], int(fields[2]), int(fields[3])
                    yield GpuShare(key, memory, cores, container, templates.get(key, ""), npu)


def npu_share_annotations(uses: Sequence[GpuShare]) -> dict[str, str]:
    """Return the annotations of a pod to which the given NPU shares are allocated."""
    annotations: dict[str, str] = {}
    for npu in sorted({u.npu for u in uses}):
        held = [u for u in uses if u.npu == npu]
        of_container = [""] * (1 + max(u.container for u in held))
        for u in held:
            of_container[u.container] += f"{u.key},{npu},{u.memory},{u.cores}:"
        annotations[HAMI + npu + _ALLOCATED] = "".join(f"{part};" for part in of_container)
        plain = [{"UUID": u.key, **({"temp": u.instance} if u.instance else {})} for u in held]
        annotations[HUAWEI + npu] = json.dumps(plain, separators=(",", ":"))
    return annotations


def npu_bind_annotations(uses: Sequence[GpuShare], node: str, now_ms: int) -> dict[str, str]:
    """Return the annotations from which the device plugin reads the NPUs of a bound pod."""
    annotations = npu_share_annotations(uses)
    if not annotations:
        return annotations
    allocated = {k: v for k, v in annotations.items() if k.endswith(_ALLOCATED)}
    for key, value in allocated.items():
        annotations[key.removesuffix(_ALLOCATED) + _TO_ALLOCATE] = value
    now = str(now_ms // 1000)
    return annotations | {
        "predicate-time": now,
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": now,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": now,
    }


# --- numbers --------------------------------------------------------------------------------------


def is_decimal_digits(source: str) -> bool:
    """Return whether a string consists of 1 to 15 decimal digits."""
    return is_decimal(source, 15)


def amount_or_zero(amounts: Mapping[str, Any], resource: str) -> int:
    """Convert an amount such as 8k to base units; return 0 if it is not a valid quantity."""
    try:
        return parse_amount(resource, amounts.get(resource, 0))
    except QuantityError:
        return 0
