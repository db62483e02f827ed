"""Read typed values from YAML nodes, and report values of a wrong type with their position."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from optsched.policy.diagnostic import nearest
from optsched.policy.located import Located, core_scalar
from optsched.units import (
    DurationError,
    HoursError,
    QuantityError,
    format_duration_ms,
    parse_duration_ms,
    parse_hours,
    parse_quantity_field,
)
from optsched.units.digits import is_decimal
from optsched.units.unit_errors import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from optsched.policy.diagnostic import Findings
    from optsched.policy.located import Field, Node

MOST_NUMBER = 2**31 - 1
"""The largest absolute value that is accepted for a number, such as a weight or factor."""

_FLAGS = {"yes": "true", "on": "true", "y": "true", "true": "true", "1": "true"}
_FLAGS |= {"no": "false", "off": "false", "n": "false", "false": "false", "0": "false"}
_ZERO_FIRST = re.compile(r"[-+]?0[0-9]+")


def describe_value(node: Node) -> str:
    """Describe a value for a message: a scalar by its text, a list or mapping by its type."""
    if node.value is None:
        return "empty" if not node.text else node.text
    if isinstance(node.value, tuple):
        return "a list"
    if not isinstance(node.value, bool | int | float | str):
        return "a mapping"
    return f"the text {quote(node.value)}" if isinstance(node.value, str) else node.text


def _refuse(node: Node, wanted: str, findings: Findings, likely: str = "") -> None:
    findings.error(node.spot, f"must be {wanted}, not {describe_value(node)}", likely)


def read_string(node: Node, findings: Findings) -> str | None:
    """Return a string that is not blank; otherwise report an error and return None."""
    if isinstance(node.value, str) and node.value.strip():
        return node.value
    quoted = quote(node.text) if isinstance(node.value, bool | int | float) else ""
    _refuse(node, "text", findings, quoted)
    return None


def read_flag(node: Node, findings: Findings) -> bool | None:
    """Return a boolean; for another value, such as `yes`, report an error and return None."""
    if isinstance(node.value, bool):
        return node.value
    _refuse(node, "true or false", findings, _FLAGS.get(node.text.lower(), ""))
    return None


def read_whole_number(node: Node, findings: Findings, least: float | None = None) -> int | None:
    """Return an integer; otherwise report an error and return None.

    A number with a leading 0 is an error, because YAML 1.1 reads it as octal.
    """
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        plain = node.text.replace("_", "")
        likely = plain if is_decimal(plain) else ""
        _refuse(node, "a whole number", findings, likely)
        return None
    if _ZERO_FIRST.fullmatch(node.text):
        message = f"{node.text} is {node.value} in some YAML parsers and octal in others"
        findings.error(node.spot, message, str(node.value))
        return None
    return node.value if _check_range(node, node.value, least, findings) else None


def read_number(node: Node, findings: Findings, least: float | None = None) -> float | None:
    """Return a finite number; otherwise report an error and return None."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse(node, "a number", findings)
        return None
    return value if _check_range(node, value, least, findings) else None


def _check_range(node: Node, value: float, least: float | None, findings: Findings) -> bool:
    if least is not None and value < least:
        findings.error(node.spot, f"must be at least {least:g}, not {node.text}")
        return False
    if abs(value) > MOST_NUMBER:
        findings.error(node.spot, f"must be at most {MOST_NUMBER}, not {node.text}")
        return False
    return True


def read_duration_ms(node: Node, findings: Findings, least_ms: int = 1) -> int | None:
    """Return a duration such as 1m30s in milliseconds; otherwise report an error, return None."""
    if isinstance(node.value, bool) or not isinstance(node.value, str):
        likely = ""
        if type(node.value) is int and node.value > 0:
            likely = f"{node.value}ms" if node.value >= 100 else f"{node.value}s"
        _refuse(node, "a duration such as 400ms, 1s or 1m30s", findings, likely)
        return None
    try:
        value = parse_duration_ms(node.value)
    except DurationError as e:
        findings.error(node.spot, str(e))
        return None
    if value < least_ms:
        least = format_duration_ms(least_ms)
        findings.error(node.spot, f"must be at least {least}, not {node.value}")
        return None
    return value


def read_hours(node: Node, findings: Findings) -> str | None:
    """Return the text of a range of hours such as 8:30-18:00; report an error if it is invalid."""
    text = read_string(node, findings)
    if text is None:
        return None
    try:
        parse_hours(text)
    except HoursError as e:
        findings.error(node.spot, str(e))
        return None
    return text


def read_quantity(node: Node, findings: Findings) -> str | None:
    """Return the text of a quantity such as 250m; otherwise report an error and return None."""
    try:
        parse_quantity_field(node.value)
    except QuantityError as e:
        findings.error(node.spot, str(e))
        return None
    return node.text


def read_choice(node: Node, names: Collection[str], what: str, findings: Findings) -> str | None:
    """Return a string that is one of `names`; otherwise report an error and return None.

    The message calls the accepted strings by the noun `what`, such as "level".
    """
    word = read_string(node, findings)
    if word is None or word in names:
        return word
    likely = nearest(word, names)
    known = "" if likely else f"; known are {', '.join(names)}"
    findings.error(node.spot, f"there is no {what} {quote(word)}{known}", likely)
    return None


def read_items(node: Node, findings: Findings) -> tuple[Node, ...]:
    """Return the items of a list; for another value, report an error and return an empty tuple."""
    if isinstance(node.value, tuple):
        return node.value
    _refuse(node, "a list", findings)
    return ()


def read_fields(
    node: Node,
    known: Iterable[str] | None,
    findings: Findings,
    required: Iterable[str] = (),
) -> Mapping[str, Field]:
    """Return the known fields of a mapping, or all fields if `known` is None.

    Reports an error for each unknown field and each missing `required` field.
    """
    value = node.value
    if value is None or isinstance(value, bool | int | float | str | tuple):
        _refuse(node, "a mapping", findings)
        return {}
    for name in required:
        if name not in value:
            findings.error(node.spot, f"the field {name} is missing")
    if known is None:
        return value
    names = list(known)
    for name in value.keys() - set(names):
        findings.error(value[name].key, "there is no such field", nearest(name, names))
    return {name: value[name] for name in names if name in value}


def unquote(node: Node) -> Node:
    """Return a quoted scalar as an unquoted scalar: Volcano reads the argument "10" as 10."""
    if isinstance(node.value, str):
        return Located(core_scalar(node.value), node.spot, node.text)
    return node
