"""Parse whole and decimal numbers, Kubernetes quantities, and resource amounts.

A quantity is a decimal number with an optional suffix, as in `resource.ParseQuantity`
(k8s.io/apimachinery, pkg/api/resource). `Quantity` holds an integer number of
billionths (nanos), which cannot overflow, unlike Go's int64. docs/decisions/0003-quantities.md
lists the differences from apimachinery.

The amount of a resource is an integer number of base units: thousandths of a CPU, bytes, or a
count. Amounts are rounded up, as by `MilliValue` and `Value` in Volcano and kube-scheduler. For
example, half a byte becomes one byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Final

from optsched.units.input_errors import FieldError, UnitError

MAX_BASE: Final = 2**63 - 1
"""The largest representable amount: the int64 maximum, which Go, NumPy and CP-SAT share."""

MAX_ON_NODE: Final = 2**52
"""The largest amount accepted on a node or in a pod; a sum of 2,000 such amounts fits in int64."""

MAX_GPUS_ON_NODE: Final = 2**16
"""Maximum number of GPUs per node, which limits the memory that GPU allocation needs."""

NANOS_PER_UNIT: Final = 10**9
NANOS_PER_MILLI: Final = 10**6


_TOO_LARGE: Final = "is too large: write at most 9223372036854775807"

_BINARY_SHIFT: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIXES: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_DECIMAL_POWER: Final = {suffix: 3 * i - 9 for i, suffix in enumerate(_DECIMAL_SUFFIXES)}

_GRAMMAR: Final = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?"
    r"(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]+))?"
)

# Without limits on length and exponent, Python would compute numbers of any size.
_MAX_TEXT: Final = 256
_MAX_POWER: Final = 400


class QuantityError(UnitError):
    """Raised for a quantity that the API server rejects, or an amount that is out of range."""

    accepted = (
        "is not a quantity: write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3"
    )


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact quantity in billionths (nanos) of a unit."""

    nanos: int

    def value(self) -> int:
        """Return the quantity in whole units, rounded away from zero."""
        return divide_away(self.nanos, NANOS_PER_UNIT)

    def milli(self) -> int:
        """Return the quantity in thousandths of a unit, rounded away from zero."""
        return divide_away(self.nanos, NANOS_PER_MILLI)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos)

    def __str__(self) -> str:
        number, step = self.nanos, 0
        while number and number % 1000 == 0 and step < len(_DECIMAL_SUFFIXES) - 1:
            number, step = number // 1000, step + 1
        return f"{number}{_DECIMAL_SUFFIXES[step]}" if number else "0"


def parse_quantity(text: str) -> Quantity:
    """Parse a quantity; raises `QuantityError` if the API server would reject it.

    Fractions of a billionth are rounded away from zero, as in apimachinery.
    """
    match = _GRAMMAR.fullmatch(text) if 0 < len(text) <= _MAX_TEXT else None
    if match is None:
        raise QuantityError(text)
    sign, whole, fraction, binary, decimal, exponent = match.groups(default="")
    shift = _BINARY_SHIFT.get(binary, 0)
    power = int(exponent) if exponent else _DECIMAL_POWER[decimal]
    digits = whole + fraction
    # Go's fast path parses "m", "." and "+" as 0, although they contain no digits. Go's slow path,
    # which handles exponents below nano and the suffixes Pi and Ei, rejects strings without digits.
    if not digits and not (shift <= _BINARY_SHIFT["Ti"] and power >= _DECIMAL_POWER["n"]):
        raise QuantityError(text)
    number = int(digits or "0") << shift
    if not number:
        return Quantity(0)
    if power > _MAX_POWER:
        raise QuantityError(text, _TOO_LARGE)
    shift_to_nanos = max(power, -_MAX_POWER) - len(fraction) + 9
    if shift_to_nanos >= 0:
        nanos = number * 10**shift_to_nanos
    else:
        nanos = divide_away(number, 10**-shift_to_nanos)
    return Quantity(-nanos if sign == "-" else nanos)


def parse_quantity_field(value: object) -> Quantity:
    """Parse the quantity in a JSON or YAML field, whose value is a string or a number.

    A number is parsed like its decimal string, because the API server reads `cpu: 2` like `cpu:
    "2"`. Raises `QuantityError` for true, false, null, lists and maps.
    """
    if isinstance(value, str):
        return parse_quantity(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(value)
    if isinstance(value, int) and value.bit_length() > _MAX_TEXT:
        raise QuantityError("a number of many digits", _TOO_LARGE)
    return parse_quantity(repr(value))


def divide_away(number: int, divisor: int) -> int:
    """Return `number` / `divisor` rounded away from zero; `divisor` is positive."""
    return -(-number // divisor) if number >= 0 else number // divisor


# --- resources ------------------------------------------------------------------------------------

CPU: Final = "cpu"
GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
STORAGE: Final = "storage"
PODS: Final = "pods"
HUGEPAGES_PREFIX: Final = "hugepages-"

_BYTE_NAMES: Final = frozenset({MEMORY, EPHEMERAL_STORAGE, STORAGE})
_REQUESTS: Final = "requests."
_QUOTA_PREFIXES: Final = (_REQUESTS, "limits.")
_STORAGE_CLASS_QUOTA: Final = ".storageclass.storage.k8s.io/requests.storage"

_NEGATIVE: Final = "is negative: write an amount of zero or more"
_ABOVE_INT64: Final = f"is above the largest amount that can be counted, {MAX_BASE} {{}}"
_NOT_A_MAPPING: Final = "is not a list of resources: write resource names with quantities"
_PART_OF_A_DEVICE: Final = "is not a whole number: pods get whole devices; write 1 or more"
_PART_OF_A_GPU: Final = (
    "is not a whole number of GPUs: write 1 or more, or request a GPU share "
    "with volcano.sh/vgpu-number"
)
_NOT_A_NAME: Final = "is not a resource name: write a string such as cpu or nvidia.com/gpu"


class Unit(Enum):
    """The base unit in which amounts of a resource are counted."""

    MILLI_CPU = "milli-CPU"
    BYTE = "bytes"
    PIECE = "pieces"


@lru_cache(maxsize=4096)
def unit_of(resource: str) -> Unit:
    """Return the unit of a resource, whose name may come from a ResourceQuota (`requests.cpu`).

    `requests.cpu` has the unit of `cpu`. `gold.storageclass.storage.k8s.io/requests.storage` has
    the unit of `storage`. Resources that Kubernetes does not define are counted in whole devices.
    """
    name = resource
    for prefix in _QUOTA_PREFIXES:
        name = name.removeprefix(prefix)
    if name == CPU:
        return Unit.MILLI_CPU
    if name in _BYTE_NAMES or name.startswith(HUGEPAGES_PREFIX):
        return Unit.BYTE
    return Unit.BYTE if name.endswith(_STORAGE_CLASS_QUOTA) else Unit.PIECE


def split_usage(named: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the amounts of node resources, and the amounts that only ResourceQuotas limit.

    `minResources` of a PodGroup may also name quota resources (`requests.cpu`, `limits.cpu`,
    `pods`, `count/pods`). An amount of `requests.X` also counts as an amount of the node resource
    `X`, unless `named` contains `X` itself.
    """
    usage = {name: amount for name, amount in named.items() if _counts_for_quotas(name)}
    least = {name: amount for name, amount in named.items() if amount and name not in usage}
    for name, amount in usage.items():
        plain = name.removeprefix(_REQUESTS)
        if plain != name and plain not in named and not _counts_for_quotas(plain):
            least[plain] = amount
    return least, usage


def _counts_for_quotas(name: str) -> bool:
    return name == PODS or name.startswith((*_QUOTA_PREFIXES, "count/"))


def is_gpu(resource: str) -> bool:
    """Return whether a resource, such as nvidia.com/gpu, counts whole GPUs of a device plugin."""
    return resource.endswith("/gpu")


def most_on_node(resource: str) -> int:
    """Return the largest amount of a resource that one node may offer."""
    return MAX_GPUS_ON_NODE if is_gpu(resource) else MAX_ON_NODE


def parse_amount(resource: str, value: object) -> int:
    """Parse an amount of `resource` into base units in [0, MAX_BASE], rounded up.

    `value` is a quantity as str, int or float. Raises `QuantityError` for any other value, for
    negative amounts and for amounts that exceed int64.
    """
    if isinstance(value, str):
        return _amount_of_text(resource, value)
    return _amount(resource, value, parse_quantity_field(value))


def parse_resource_list(
    obj: object, path: str, *, whole_devices: bool = False
) -> tuple[dict[str, int], list[FieldError]]:
    """Parse a ResourceList into base units; returns amounts and an error per invalid amount.

    `obj` maps resource names to quantities; null is an empty list. Valid amounts are returned even
    if the list also contains invalid amounts. Error messages give `path` as the path of the list.
    If `whole_devices` is true, a fraction of a device is an error, as in pod requests at the API
    server. A fractional amount is still returned, rounded up.
    """
    if obj is None:
        return {}, []
    if not isinstance(obj, Mapping):
        return {}, [FieldError(path, obj, _NOT_A_MAPPING)]
    amounts: dict[str, int] = {}
    errors: list[FieldError] = []
    for resource, value in obj.items():
        if not isinstance(resource, str):
            errors.append(FieldError(f"{path}[{resource}]", resource, _NOT_A_NAME))
            continue
        try:
            amounts[resource] = parse_amount(resource, value)
        except QuantityError as error:
            errors.append(error.at_path(f"{path}[{resource}]"))
            continue
        is_device = "/" in resource and unit_of(resource) is Unit.PIECE
        if whole_devices and is_device and not _is_whole_number(value):
            message = _PART_OF_A_GPU if is_gpu(resource) else _PART_OF_A_DEVICE
            errors.append(FieldError(f"{path}[{resource}]", value, message))
    return amounts, errors


def whole_amount(resource: str, value: object) -> int:
    """Parse an amount of `resource` into base units, and drop fractions of devices such as GPUs.

    Pods get whole devices, so the pods of a queue with 1.5 devices can use only one device. Raises
    `QuantityError` like `parse_amount`.
    """
    amount = parse_amount(resource, value)
    is_part = unit_of(resource) is Unit.PIECE and not _is_whole_number(value)
    return amount - 1 if is_part else amount


def why_no_whole_amount(resource: str, value: object) -> str:
    """Return an error message if pods cannot request an amount, else an empty string.

    Raises `QuantityError` like `parse_amount`.
    """
    amount = whole_amount(resource, value)
    if amount == parse_amount(resource, value):
        return ""
    accepted = f"{amount} or {amount + 1}" if amount else "1 or more"
    return f"{value} is not a whole number: pods get whole devices; write {accepted}"


def _is_whole_number(value: object) -> bool:
    quantity = parse_quantity_field(value)
    return quantity == Quantity(quantity.value() * NANOS_PER_UNIT)


def format_quantity(base: int, resource: str) -> str:
    """Return an amount in base units as its shortest exact quantity: 1500m, 2, 64Gi, 8."""
    unit = unit_of(resource)
    if unit is Unit.BYTE:
        steps = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
        step = 0
        while base and base % 1024 == 0 and step < len(steps) - 1:
            base, step = base // 1024, step + 1
        return f"{base}{steps[step]}"
    if unit is Unit.MILLI_CPU and base % 1000:
        return f"{base}m"
    return str(base // 1000 if unit is Unit.MILLI_CPU else base)


def format_resource_list(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return amounts in base units as a ResourceList, sorted by resource name."""
    return {name: format_quantity(amounts[name], name) for name in sorted(amounts)}


@lru_cache(maxsize=8192)
def _amount_of_text(resource: str, text: str) -> int:
    return _amount(resource, text, parse_quantity(text))


def _amount(resource: str, value: object, quantity: Quantity) -> int:
    base = quantity.milli() if unit_of(resource) is Unit.MILLI_CPU else quantity.value()
    if base < 0:
        raise QuantityError(value, _NEGATIVE)
    if base > MAX_BASE:
        raise QuantityError(value, _ABOVE_INT64.format(unit_of(resource).value))
    return base


def amount_text(resource: str, amount: int) -> str:
    """Return an amount with its resource name, such as "1500m cpu" or "3 nvidia.com/gpu"."""
    return f"{format_quantity(amount, resource)} {resource}"


def count_noun(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 node" or "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- numbers --------------------------------------------------------------------------------------

_DECIMAL: Final = re.compile(
    r"[-+]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][-+]?[0-9]{1,3})?"
)


def is_decimal(text: str, max_digits: int = 19) -> bool:
    """Return whether a string consists of 1 to `max_digits` ASCII digits.

    `str.isdecimal` alone also accepts digits of other scripts, and `int` raises ValueError for more
    than 4 300 digits.
    """
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def parse_whole(text: str) -> int | None:
    """Parse a string of at most 19 ASCII digits; returns None for any other string."""
    return int(text) if is_decimal(text) else None


def parse_decimal(text: str) -> Decimal | None:
    """Parse a number such as `2`, `-0.5` or `1e3`; returns None for any other string.

    Unlike `float` and `Decimal`, the function rejects `1_0`, `inf`, `nan` and digits of other
    scripts.
    """
    stripped = text.strip()
    return Decimal(stripped) if _DECIMAL.fullmatch(stripped) else None
