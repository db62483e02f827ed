"""Read YAML 1.2 with the file position of every value, and check the types of values.

The function `read_tree` parses a document into YAML nodes. A function such as `read_number` returns
the typed value of one YAML node, or reports an error with the position of the YAML node.

PyYAML builds the YAML nodes and records their positions. This module is stricter than PyYAML and
follows the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema):

- A duplicate key is an error, whereas PyYAML uses the last value.
- A plain scalar is null, true, false, a number or a string. `no`, `1:30` and `1_000` are strings,
  whereas PyYAML reads false, 90 and 1000. `014` is 14, whereas PyYAML reads 12.
- Tags outside the core schema, merge keys and keys that are not scalars are errors.
- Depth and size are limited, because nested aliases can expand exponentially.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import yaml

from optsched.policy.diagnostic import Position, nearest
from optsched.units import (
    DurationError,
    HoursError,
    QuantityError,
    format_duration_ms,
    parse_duration_ms,
    parse_hours,
    parse_quantity_field,
)
from optsched.units.input_errors import quote
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.policy.diagnostic import Findings

T_co = TypeVar("T_co", covariant=True)

MOST_DEPTH = 40
MOST_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Located(Generic[T_co]):
    """A value in a YAML document with its position in the file.

    Attributes
    ----------
    text
        The text of a scalar as written in the file, without quotes; empty for lists and mappings.
    """

    value: T_co
    spot: Position
    text: str = ""


class Field(NamedTuple):
    """A mapping field: the file position of its name, and its value."""

    key: Position
    node: Node


Scalar: TypeAlias = "bool | int | float | str | None"
Tree: TypeAlias = "Scalar | tuple[Node, ...] | Mapping[str, Field]"
Node: TypeAlias = "Located[Tree]"

_PLAIN = "plain"
"""A tag for plain scalars, to distinguish them from quoted scalars and scalars with a tag."""

_CORE = "tag:yaml.org,2002:"
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _loader() -> Any:  # noqa: ANN401  the C loader and the Python loader share no base class
    """Return a loader class without YAML 1.1 resolvers, based on the C parser if installed."""
    resolvers = {None: [(_PLAIN, re.compile(""))]}
    base = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    return type("_Loader", (base,), {"yaml_implicit_resolvers": resolvers})


_LOADER = _loader()


def read_tree(text: str, file: str, findings: Findings) -> Node | None:
    """Parse `text` as a single YAML document, and add syntax errors to `findings`.

    Returns None if the text cannot be parsed. Empty text gives the value null.
    """
    source = _Source(file, tuple(_BREAK.split(text)))
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        before = _BREAK.split(text[: bad.start()])
        spot = source.spot(len(before) - 1, len(before[-1]))
        findings.error(spot, f"the character U+{ord(bad[0]):04X} is not allowed in YAML")
        return None
    try:
        # The C parser recurses without a limit when it composes text, so check the depth first.
        steps = (
            isinstance(event, yaml.CollectionStartEvent)
            - isinstance(event, yaml.CollectionEndEvent)
            for event in yaml.parse(text, Loader=_LOADER)
        )
        if any(depth > MOST_DEPTH for depth in accumulate(steps)):
            findings.error(source.spot(0, 0), f"nests deeper than {MOST_DEPTH} levels")
            return None
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        spot = source.spot(mark.line, mark.column) if mark else Position(source.file)
        if spot.excerpt[spot.column - 1 : spot.column] == "\t":
            findings.error(spot, "a tab cannot indent in YAML; use spaces")
        elif (e.context or "").startswith("expected a single document"):
            findings.error(spot, "one document is expected; another one begins here")
        else:
            context = f", {e.context}" if e.context else ""
            findings.error(spot, f"not YAML: {e.problem}{context}")
        return None
    if root is None:
        return Located(None, source.spot(0, 0))
    return _Tree(source, findings).read(root)


def core_scalar(text: str) -> Scalar:
    """Return the value of a plain scalar according to the core schema of YAML 1.2."""
    for pattern, read in _READINGS:
        if pattern.fullmatch(text):
            return read(text)
    return text


def _number(text: str) -> Scalar:
    """Return an integer, or the text itself if it has too many digits for Python's `int`."""
    try:
        return int(text)
    except ValueError:
        return text


_READINGS: tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), _number),
    (re.compile(r"0o[0-7]+"), lambda t: int(t[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda t: int(t[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda t: float(t.replace(".", ""))),
    (re.compile(r"\.nan|\.NaN|\.NAN"), lambda _: float("nan")),
)

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    f"{_CORE}null": type(None),
    f"{_CORE}bool": bool,
    f"{_CORE}int": int,
    f"{_CORE}float": (float, int),
}


@dataclass(frozen=True)
class _Source:
    file: str
    lines: tuple[str, ...]

    def spot(self, line: int, column: int, path: str = "") -> Position:
        """Return the position at a zero-based line and column, but no later than the file's end."""
        if line >= len(self.lines):
            line, column = len(self.lines) - 1, len(self.lines[-1])
        return Position(self.file, line + 1, column + 1, path, self.lines[line])


@dataclass
class _Tree:
    """A converter of PyYAML nodes to `Located` values."""

    source: _Source
    findings: Findings
    num_values: int = 0
    above: list[yaml.Node] = field(default_factory=list)

    def read(self, node: yaml.Node, path: str = "") -> Node:
        spot = self.source.spot(node.start_mark.line, node.start_mark.column, path)
        self.num_values += 1
        if self.num_values == MOST_VALUES:
            self.findings.error(spot, f"the file has more than {MOST_VALUES} values")
        if self.num_values >= MOST_VALUES:
            return Located(None, spot)
        if isinstance(node, yaml.ScalarNode):
            text: str = node.value
            scalar = core_scalar(text) if node.tag in (_PLAIN, *_KINDS) else text
            if node.tag in _KINDS:
                if not isinstance(scalar, _KINDS[node.tag]) or (
                    isinstance(scalar, bool) and node.tag != f"{_CORE}bool"
                ):
                    kind = node.tag.removeprefix(_CORE)
                    self.findings.error(spot, f"{text!r} does not match its tag !!{kind}")
            elif node.tag not in (_PLAIN, f"{_CORE}str", "!"):
                self._refuse_tag(node, spot)
            return Located(scalar, spot, text)
        if len(self.above) == MOST_DEPTH or any(node is outer for outer in self.above):
            self.findings.error(spot, f"aliases nest deeper than {MOST_DEPTH} levels")
            return Located(None, spot)
        self.above.append(node)
        if node.tag not in (f"{_CORE}map", f"{_CORE}seq", "!"):
            self._refuse_tag(node, spot)
        if isinstance(node, yaml.SequenceNode):
            value: Tree = tuple(self.read(n, f"{path}[{i}]") for i, n in enumerate(node.value))
        else:
            value = self._read_mapping(node, path)
        self.above.pop()
        return Located(value, spot)

    def _read_mapping(self, node: yaml.Node, path: str) -> Mapping[str, Field]:
        fields: dict[str, Field] = {}
        for key, value in node.value:
            at = self.source.spot(key.start_mark.line, key.start_mark.column, path)
            if not isinstance(key, yaml.ScalarNode):
                self.findings.error(at, "the name of a field must be a word, not a list or mapping")
                continue
            name: str = key.value
            at = Position(
                at.file, at.line, at.column, f"{path}.{name}" if path else name, at.excerpt
            )
            if name in fields:
                self.findings.error(at, f"appears twice; first in line {fields[name].key.line}")
            elif name == "<<":
                self.findings.error(at, "merge keys are not part of YAML 1.2; repeat the fields")
            else:
                fields[name] = Field(at, self.read(value, at.path))
        return fields

    def _refuse_tag(self, node: yaml.Node, spot: Position) -> None:
        tag = node.tag.replace(_CORE, "!!")
        self.findings.error(spot, f"the tag {tag} is not accepted here")


# --- typed values --------------------------------------------------------------------------------

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
    """Return a duration such as 1m30s in ms; otherwise report an error and return None."""
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
    """Return a time range such as 8:30-18:00 as text; else report an error and return None."""
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

    `what` is the noun for the accepted strings in the message, such as "level".
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
    node: Node, known: Iterable[str] | None, findings: Findings, required: Iterable[str] = ()
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
