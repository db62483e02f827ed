"""Parse Kubernetes quantities into exact integers, by the rules of apimachinery.

A quantity is a decimal number with an optional suffix, as in `resource.ParseQuantity`
(k8s.io/apimachinery, pkg/api/resource). Amounts are integer billionths (nanos) of any size; they
do not overflow like Go's int64. docs/decisions/0003-quantities.md lists the differences from
apimachinery.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from optsched.units.unit_errors import UnitError

MAX_BASE: Final = 2**63 - 1
"""The largest representable amount: the int64 maximum, which Go, NumPy and CP-SAT share."""

MAX_ON_NODE: Final = 2**52
"""The largest amount on a node or in a pod's request, so that 2,000 amounts add up within int64."""

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
    """An exact amount in integer nanos, without a resource name."""

    nanos: int

    def value(self) -> int:
        """Return the amount in whole units, rounded away from zero."""
        return divide_away(self.nanos, NANOS_PER_UNIT)

    def milli(self) -> int:
        """Return the amount in thousandths of a unit, rounded away from zero."""
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

    Fractions of a nano are rounded away from zero, as in apimachinery.
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

    A number is parsed like its decimal string, because the API server reads `cpu: 2` and `cpu: 0.5`
    as if they were quoted. Raises `QuantityError` for true, false, null, lists and maps.
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
