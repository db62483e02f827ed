"""Fields of pods that a client in Go could not read, and fields that pods do not have.

A pod template inside of a job is kept as it is, so nobody before us looks at it; one that a Go
client cannot decode would stop every informer of jobs. `pod_types.txt` says which fields there
are and what they hold; it is made from the `kubernetes` package (tests/admission).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.units import QuantityError, parse_quantity_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.admission.findings import Findings

_PYTHON: Final[dict[str, type]] = {"text": str, "boolean": bool}
_SCALARS: Final = {"text": (str, "a text: write it in quotes"), "boolean": (bool, "true or false")}
_BITS: Final = {"int32": 31, "int64": 63}
_SMALL: Final = 2**31
_REMEMBERED: Final = 32
"""Characters of the longest amount that is kept as it was read."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@cache
def pod_types() -> dict[str, dict[str, str]]:
    """What each field holds, by type, a scalar or a type's name.

    Scalars are text, int32, int64, boolean, quantity, port (a number or a name), time and any; in
    brackets for a list, in braces for a mapping of names to such values.
    """
    text = files("optsched.admission").joinpath("pod_types.txt").read_text("utf-8")
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if line.endswith(":"):
            fields = found.setdefault(line.removesuffix(":"), {})
        else:
            name, kind = line.split()
            fields[name] = kind
    return found


def check_types(value: object, kind: str, path: str, findings: Findings) -> bool:
    """Deny what a Go client cannot decode, warn of what has no meaning; whether all is well."""
    if value is None or _one_fits(value, _fit(kind)):
        return True
    problems = False
    for stranger in _strangers(value, kind, path):
        if stranger.problem:
            findings.invalid(stranger.path, stranger.value, stranger.problem)
            problems = True
        elif findings.can_warn:
            findings.warn(f"{stranger.path}: unknown field{_hint(stranger.name, stranger.fields)}")
    return not problems


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A value that does not fit, or an unknown field; fields: those that are known there."""

    path: str
    value: object
    problem: str = ""
    name: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


Fit: TypeAlias = "Callable[[Any], bool]"
"""Whether there is nothing to tell of a value that is there."""


@cache
def _fit(kind: str) -> type | Fit:
    """The Python type that values of a kind have, or what else tells whether one fits.

    Most pods are as they should be, and paths to what is not cost more than all the rest.
    """
    if kind in _PYTHON:
        return _PYTHON[kind]
    if kind == "any":
        return lambda _: True
    if kind in _PROBLEMS or kind in _BITS:
        return lambda value: not _scalar_problem(value, kind)
    if kind[0] == "[":
        return _list_fit(kind[1:-1])
    return _mapping_fit(kind[1:-1]) if kind[0] == "{" else _record_fit(kind)


def _list_fit(kind: str) -> Fit:
    def fits(value: Any) -> bool:  # noqa: ANN401  JSON
        expected = _fit(kind)
        if type(value) is not list:
            return False
        return all(each is None or _one_fits(each, expected) for each in value)

    return fits


def _mapping_fit(kind: str) -> Fit:
    def fits(value: Any) -> bool:  # noqa: ANN401  JSON
        expected = _fit(kind)
        if type(value) is not dict:
            return False
        return all(each is None or _one_fits(each, expected) for each in value.values())

    return fits


def _record_fit(kind: str) -> Fit:
    fields = pod_types()[kind]
    known: dict[str, type | Fit] = {}

    def fits(value: Any) -> bool:  # noqa: ANN401  JSON
        if type(value) is not dict:
            return False
        for name, each in value.items():
            expected = known.get(name)
            if expected is None:
                if name not in fields:
                    return False
                # Types hold one another, so each is looked up when it is first met.
                expected = known[name] = _fit(fields[name])
            if each is not None and not _one_fits(each, expected):
                return False
        return True

    return fits


def _one_fits(value: Any, expected: type | Fit) -> bool:  # noqa: ANN401  JSON
    if isinstance(expected, type):
        return type(value) is expected
    return expected(value)


def _strangers(value: Any, kind: str, path: str) -> Iterator[_Stranger]:  # noqa: ANN401  JSON
    if value is None or kind == "any":
        return
    if kind.startswith("["):
        yield from _in_list(value, kind.strip("[]"), path)
    elif kind.startswith("{"):
        yield from _in_mapping(value, kind.strip("{}"), path)
    elif kind in pod_types():
        yield from _in_record(value, kind, path)
    else:
        problem = _scalar_problem(value, kind)
        if problem:
            yield _Stranger(path, value, problem)


def _in_list(value: Any, kind: str, path: str) -> Iterator[_Stranger]:  # noqa: ANN401  JSON
    if not isinstance(value, list):
        yield _Stranger(path, value, "is not a list")
        return
    for position, each in enumerate(value):
        yield from _strangers(each, kind, f"{path}[{position}]")


def _in_mapping(value: Any, kind: str, path: str) -> Iterator[_Stranger]:  # noqa: ANN401  JSON
    if not isinstance(value, dict):
        yield _Stranger(path, value, "is not a mapping of names to values")
        return
    for name, each in value.items():
        yield from _strangers(each, kind, f"{path}[{name}]")


def _in_record(value: Any, kind: str, path: str) -> Iterator[_Stranger]:  # noqa: ANN401  JSON
    if not isinstance(value, dict):
        yield _Stranger(path, value, "is not a mapping of field names to values")
        return
    fields = pod_types()[kind]
    for name, each in value.items():
        if name in fields:
            yield from _strangers(each, fields[name], f"{path}.{name}")
        else:
            yield _Stranger(f"{path}.{name}", each, name=name, fields=fields)


def _hint(name: str, fields: Mapping[str, str]) -> str:
    close = get_close_matches(name, fields, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _scalar_problem(value: object, kind: str) -> str:
    if kind in _BITS:
        return _number_problem(value, _BITS[kind])
    if kind in _PROBLEMS:
        return _PROBLEMS[kind](value)
    expected, wanted = _SCALARS[kind]
    return "" if isinstance(value, expected) else f"is not {wanted}"


def _number_problem(value: object, num_bits: int) -> str:
    if type(value) is not int:
        return "is not a whole number"
    most = 2**num_bits
    return "" if -most <= value < most else f"is out of range: write {-most} to {most - 1}"


def _port_problem(value: object) -> str:
    if isinstance(value, str):
        return ""
    problem = _number_problem(value, _BITS["int32"])
    return problem and "is neither a port nor the name of one: write 1 to 65535, or a name"


def _time_problem(value: object) -> str:
    is_time = isinstance(value, str) and _TIME.fullmatch(value) is not None
    try:
        if is_time:
            datetime.fromisoformat(str(value))
    except ValueError:
        is_time = False
    return "" if is_time else "is not a time such as 2026-01-31T08:00:00Z (RFC 3339)"


def _quantity_problem(value: object) -> str:
    try:
        nanos_of(value)
    except QuantityError as error:
        return error.message
    return ""


_PROBLEMS: Final[dict[str, Callable[[object], str]]] = {
    "port": _port_problem,
    "quantity": _quantity_problem,
    "time": _time_problem,
}


def nanos_of(value: object) -> int:
    """A quantity in billionths; QuantityError for something else."""
    if (type(value) is str and len(value) <= _REMEMBERED) or (
        type(value) is int and abs(value) < _SMALL
    ):
        return _nanos_of_text(str(value))
    return parse_quantity_field(value).nanos


@lru_cache(maxsize=8192)
def _nanos_of_text(text: str) -> int:
    return parse_quantity_field(text).nanos
