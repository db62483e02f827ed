"""Annotations that make snapshot dumps lossless: they hold state that has no field in manifests.

optsched writes the annotations. A tool that measures node load may also write `optsched.io/load`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Load
from optsched.cluster.task import DeviceRequest
from optsched.units import FieldError, TimestampError, format_micro_time, format_time, parse_time_ms
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

API_VERSION: Final = "optsched.io/v1alpha1"
PROBLEM: Final = "optsched.io/problem"
WAITING_SINCE: Final = "optsched.io/waiting-since"
DEVICE: Final = "optsched.io/device"
OWNER: Final = "optsched.io/owner"
YIELDS_TO_GUARANTEES: Final = "optsched.io/yields-to-guarantees"
LOAD: Final = "optsched.io/load"

_MS_PER_SECOND: Final = 1000
_PERCENT: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%"
_LOAD: Final = re.compile(rf"cpu {_PERCENT} memory {_PERCENT} at (\S+)")
_PPM_PER_PERCENT: Final = 10_000
_LOAD_ACCEPTED: Final = (
    "is not a load: write one such as cpu 30.5% memory 50% at 2026-11-21T05:38:00Z"
)
_CODES: Final = frozenset(code.value for code in ReasonCode)


def without_annotations(annotations: Mapping[str, str], keys: Container[str]) -> Mapping[str, str]:
    """Drop the given keys from annotations; return the same mapping if none of them occurs."""
    if not any(key in keys for key in annotations):
        return annotations
    return {key: value for key, value in annotations.items() if key not in keys}


_PREFIX: Final = "optsched.io/"
_SNAPSHOT_ONLY: Final = frozenset(
    {
        PROBLEM,
        WAITING_SINCE,
        DEVICE,
        OWNER,
        YIELDS_TO_GUARANTEES,
        "optsched.io/vgpus",
        "optsched.io/card-problem",
        "optsched.io/numa",
        "optsched.io/npu-chips",
        "optsched.io/mig-geometries",
    }
)
_NEED_PROBLEM: Final = f"{PROBLEM}-of-"


def without_snapshot_annotations(obj: dict[str, Any]) -> dict[str, Any]:
    """Drop an object's annotations that are valid only in snapshot dumps.

    An object without snapshot annotations is returned unchanged. Any tenant may write annotations,
    so snapshot annotations must have no effect in a live cluster.
    """
    metadata = obj.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return obj
    dropped = {
        key
        for key in annotations
        if isinstance(key, str)
        and key.startswith(_PREFIX)
        and (key in _SNAPSHOT_ONLY or key.startswith(_NEED_PROBLEM))
    }
    if not dropped:
        return obj
    kept = {key: text for key, text in annotations.items() if key not in dropped}
    return {**obj, "metadata": {**obj["metadata"], "annotations": kept}}


def time_text(milliseconds: int) -> str:
    """Format a time as the API server does, with a fraction of a second only if it is not zero."""
    return (format_micro_time if milliseconds % _MS_PER_SECOND else format_time)(milliseconds)


def waiting_since_ms(annotations: Mapping[str, str], created_ms: int) -> int:
    """Return when a gang began to wait, in ms since 1970; defaults to its creation time."""
    text = annotations.get(WAITING_SINCE)
    if text is None:
        return created_ms
    try:
        return parse_time_ms(text)
    except TimestampError:
        return created_ms


def encode_reason(reason: Reason) -> str:
    """Format a reason for an annotation."""
    return f"{reason.code.value}: {reason.message}"


def read_reason(annotations: Mapping[str, str]) -> Reason | None:
    """Parse the reason in an annotation; return None if it is missing or has an unknown code."""
    code, colon, message = annotations.get(PROBLEM, "").partition(": ")
    if not colon or code not in _CODES:
        return None
    return Reason(ReasonCode(code), message)


def encode_device_request(device: DeviceRequest) -> str:
    """Format a GPU request (number, thousandths, models), such as `1 460 A10|T4`."""
    return f"{device.count} {device.milli} {'|'.join(device.models)}".rstrip()


def read_device_request(annotations: Mapping[str, str]) -> DeviceRequest | None:
    """Parse the device request in an annotation; return None if it is missing or invalid."""
    parts = annotations.get(DEVICE, "").split(" ")
    if len(parts) not in (2, 3) or not all(is_decimal(p) for p in parts[:2]):
        return None
    models = tuple(parts[2].split("|")) if len(parts) == 3 else ()
    return DeviceRequest(int(parts[0]), int(parts[1]), models)


def encode_load(load: Load) -> str:
    """Format a measured load, such as `cpu 30.5% memory 50% at 2026-11-21T05:38:00Z`."""
    percents: list[str] = []
    for ppm in (load.cpu_ppm, load.memory_ppm):
        whole, rest = divmod(ppm, _PPM_PER_PERCENT)
        percents.append(f"{whole}.{rest:04d}".rstrip("0").rstrip("."))
    cpu, memory = percents
    return f"cpu {cpu}% memory {memory}% at {time_text(load.measured_ms)}"


def read_load(annotations: Mapping[str, str], remarks: list[FieldError]) -> Load | None:
    """Parse the measured node load in an annotation; return None if it is missing or invalid."""
    text = annotations.get(LOAD)
    if text is None:
        return None
    path = f"metadata.annotations[{LOAD}]"
    match = _LOAD.fullmatch(text)
    if match is None:
        remarks.append(FieldError(path, text, _LOAD_ACCEPTED))
        return None
    cpu_ppm, memory_ppm = (round(Decimal(match[i]) * _PPM_PER_PERCENT) for i in (1, 2))
    try:
        return Load(cpu_ppm, memory_ppm, parse_time_ms(match[3]))
    except TimestampError as e:
        remarks.append(e.at_path(path))
        return None
