"""Convert quantities, durations, times and resource amounts to exact integers.

Strings such as "1500m", "64Gi", "1h30m" or "2026-11-21T05:38:00Z" are parsed only in this package.
The package does not import `optsched.api`, which defines the fields of Kubernetes objects.
"""

from __future__ import annotations

from optsched.units.duration import (
    DurationError,
    Hours,
    HoursError,
    TimestampError,
    format_duration_ms,
    format_duration_ns,
    format_micro_time,
    format_time,
    parse_duration_ms,
    parse_duration_ns,
    parse_hours,
    parse_time_ms,
)
from optsched.units.quantity import (
    MAX_BASE,
    MAX_GPUS_ON_NODE,
    MAX_ON_NODE,
    Quantity,
    QuantityError,
    parse_quantity,
    parse_quantity_field,
)
from optsched.units.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    GPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    PODS,
    STORAGE,
    Unit,
    format_quantity,
    format_resource_list,
    is_gpu,
    most_on_node,
    parse_amount,
    parse_resource_list,
    split_usage,
    unit_of,
    whole_amount,
    why_no_whole_amount,
)
from optsched.units.unit_errors import FieldError, UnitError

__all__ = [
    "CPU",
    "EPHEMERAL_STORAGE",
    "GPU",
    "HUGEPAGES_PREFIX",
    "MAX_BASE",
    "MAX_GPUS_ON_NODE",
    "MAX_ON_NODE",
    "MEMORY",
    "PODS",
    "STORAGE",
    "DurationError",
    "FieldError",
    "Hours",
    "HoursError",
    "Quantity",
    "QuantityError",
    "TimestampError",
    "Unit",
    "UnitError",
    "format_duration_ms",
    "format_duration_ns",
    "format_micro_time",
    "format_quantity",
    "format_resource_list",
    "format_time",
    "is_gpu",
    "most_on_node",
    "parse_amount",
    "parse_duration_ms",
    "parse_duration_ns",
    "parse_hours",
    "parse_quantity",
    "parse_quantity_field",
    "parse_resource_list",
    "parse_time_ms",
    "split_usage",
    "unit_of",
    "whole_amount",
    "why_no_whole_amount",
]
