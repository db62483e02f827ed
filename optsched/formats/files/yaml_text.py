"""Read YAML and JSON text one document at a time, and write YAML; only this module uses PyYAML.

Plain scalars are read as kubectl reads them (sigs.k8s.io/yaml on go-yaml 2), so kubectl and
optsched read a manifest in the same way. For example, `yes` and `on` are true, `010` is 8,
timestamps are strings, and keys are always strings. One difference: optsched reads `y` and `n` as
strings, as in PyYAML and YAML 1.2, because users choose `y` and `n` as names. kubectl rejects a
manifest with `name: y`. The parser is libyaml if PyYAML was built with it.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import yaml

from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.units import plaintext
from optsched.units.input_errors import json_words, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# PyYAML's event classes have no common base class with all attributes that this module reads.
_Event: TypeAlias = Any

_CORE: Final = "tag:yaml.org,2002:"
_NUMBERS: Final = frozenset(f"{_CORE}{name}" for name in ("int", "float", "bool", "null"))
_MERGE: Final = "<<"
_ALIASED: Final = (100_000, 20)
"""(a, b): text with n characters may have at most a + b * n values after alias expansion."""
_ITEMS: Final = "items"

_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_WHOLE: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]*|[1-9][0-9]*)")
_OCTAL: Final = re.compile(r"0[0-7]+")
_REAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_LETTERS: Final = frozenset(("y", "Y", "n", "N"))
"""Strings that kubectl reads as booleans but optsched as strings; the writer quotes them."""
_MAX_DIGITS: Final = 400
_STEP: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
"""Matches one component of a field path: a field name, or an index or key in brackets."""

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_DUMPER_BASE: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER_BASE):  # type: ignore[misc]  # chosen at run time
    """A YAML writer without anchors; it quotes strings that kubectl would read as another type."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        is_plain = isinstance(scalar(text), str) and text not in _LETTERS
        style = None if is_plain else "'"
        if not plaintext.is_plain(text):
            # In YAML, only double-quoted strings can contain escapes.
            style = '"'
        node: yaml.Node = self.represent_scalar(f"{_CORE}str", text, style=style)
        return node


_Dumper.add_representer(str, _Dumper.represent_text)


@dataclass(frozen=True, slots=True)
class TextError:
    """A syntax error and its position.

    Lines and columns are counted from 1.
    """

    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML or JSON document.

    Attributes
    ----------
    line
        Line number at which the document starts, counted from 1.
    item_lines
        Line numbers of the objects in the document's list `items`; empty if unknown.
    end
        Position in the text, in characters, at which the document ends.

    """

    value: Any
    line: int
    item_lines: tuple[int, ...]
    end: int


def read_yaml(text: str) -> Iterator[Document | TextError]:
    """Yield the YAML documents of a text; an invalid document does not affect later documents.

    If a key occurs twice in a mapping, the last value applies, and an error is yielded before the
    document.
    """
    starts = [0, *(match.start() for match in _DOCUMENT.finditer(text))]
    line = 0
    for start, end in pairwise([*starts, len(text)]):
        part = text[start:end]
        stripped = (each.strip() for each in part.splitlines())
        if any(each and each != "---" and each[0] not in "#%" for each in stripped):
            yield from _read_part(part, line, end)
        line += part.count("\n")


def read_json(text: str) -> Iterator[Document | TextError]:
    """Yield the document in a JSON text, or its syntax error."""
    try:
        yield Document(json.loads(text), 1, (), len(text))
    except json.JSONDecodeError as e:
        yield TextError(e.lineno, e.colno, f"is not JSON: {json_words(e)}")
    except (RecursionError, ValueError) as e:
        yield TextError(1, 1, f"is not JSON that can be read: {why_unreadable(e)}")


def line_of(text: str, document: Document, path: str) -> int:
    """Return the line number of a field, or of its nearest existing ancestor.

    `path` is the path of the field, such as `spec.tasks[0].name`.
    """
    nodes = _nodes(text)
    root = next((n for n in nodes if n.start_mark.line + 1 >= document.line), None)
    if root is None:
        return document.line
    line = document.line
    for step in _STEP.findall(path):
        found = _child(root, step.strip("[]"))
        if found is None:
            return line
        line, root = found
    return line


@lru_cache(maxsize=1)
def _nodes(text: str) -> tuple[yaml.Node, ...]:
    """Return the documents that precede the first invalid document; the result is cached."""
    found: list[yaml.Node] = []
    with suppress(yaml.YAMLError, RecursionError, UnicodeEncodeError):
        for node in yaml.compose_all(text, Loader=_LOADER):
            found.append(node)  # noqa: PERF402  keeps documents before an error
    return tuple(found)


def _child(node: yaml.Node, step: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode):
        items = node.value[int(step) :] if step.isdecimal() else []
        return (items[0].start_mark.line + 1, items[0]) if items else None
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line + 1, value
    return None


def write_yaml(value: object) -> str:
    """Format a value as YAML with sorted keys, escaped control characters and no anchors."""
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, width=100)
    return plaintext.printable(text, keep="\n\t")


# --- values ---------------------------------------------------------------------------------------


def _read_part(part: str, line: int, end: int) -> Iterator[Document | TextError]:
    """Yield the documents between two `---` lines; `line` is the number of preceding lines."""
    try:
        loader = _LOADER(part)
    except UnicodeEncodeError as e:
        yield TextError(line + 1, 1, f"is not YAML that can be read: {e.reason}")
        return
    try:
        yield from _Builder(loader, line, end, len(part)).documents()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        reason = ", ".join(text for text in (e.context, e.problem) if text)
        row, place = (mark.line, mark.column) if mark else (0, 0)
        lines = part.split("\n")
        if row < len(lines) and lines[row].lstrip(" ").startswith("\t"):
            reason = "a tab cannot indent: write spaces"
        yield TextError(line + row + 1, place + 1, f"is not YAML: {reason}")
    except yaml.reader.ReaderError as e:
        # The error has no line number, so search for the first character that YAML forbids.
        found = yaml.reader.Reader.NON_PRINTABLE.search(part)
        before = part[: found.start()] if found else ""
        column = len(before) - before.rfind("\n")
        message = f"is not YAML that can be read: {e.reason}"
        yield TextError(line + before.count("\n") + 1, column, message)
    except (yaml.YAMLError, RecursionError) as e:
        reason = getattr(e, "reason", "it is nested too deeply")
        yield TextError(line + 1, 1, f"is not YAML that can be read: {reason}")
    finally:
        loader.dispose()


def _error(problem: str, event: _Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, event.start_mark)


class _Builder:
    """A builder of values from YAML parser events; all aliases of an anchor share one object."""

    def __init__(self, loader: Any, line: int, end: int, size: int) -> None:  # noqa: ANN401  C or Python
        self._most_aliased = _ALIASED[0] + _ALIASED[1] * size
        self._get = loader.get_event
        self._line = line + 1
        self._end = end
        self._anchors: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._num_values = self._num_aliased = 0
        self._remarks: list[TextError] = []
        self._item_lines: list[int] = []

    def documents(self) -> Iterator[Document | TextError]:
        self._get()
        while type(self._get()) is not yaml.StreamEndEvent:
            self._anchors, self._remarks, self._item_lines = {}, [], []
            self._sizes, self._num_values, self._num_aliased = {}, 0, 0
            first = self._get()
            value = self._value(first)
            self._get()
            yield from self._remarks
            line = self._line + first.start_mark.line
            yield Document(value, line, tuple(self._item_lines), self._end)

    def _value(self, event: _Event) -> Any:  # noqa: ANN401  any type
        kind = type(event)
        if kind is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise _error(
                    f"the alias {event.anchor} refers to an anchor that is missing or incomplete",
                    event,
                )
            # An object with several aliases uses memory once, but readers visit the object once per
            # alias.
            self._num_values += self._sizes[event.anchor]
            self._num_aliased += self._sizes[event.anchor]
            if self._num_aliased > self._most_aliased:
                problem = f"aliases expand to more than {self._most_aliased} values"
                raise _error(problem, event)
            return self._anchors[event.anchor]
        before = self._num_values
        self._num_values += 1
        value = self._of[kind](self, event)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
            self._sizes[event.anchor] = self._num_values - before
        return value

    def _scalar(self, event: _Event) -> Any:  # noqa: ANN401
        is_plain = event.implicit[0] if event.tag is None else event.tag in _NUMBERS
        return scalar(event.value) if is_plain else event.value

    def _sequence(self, _: _Event) -> list[Any]:
        built: list[Any] = []
        while type(event := self._get()) is not yaml.SequenceEndEvent:
            built.append(self._value(event))
        return built

    def _items(self, event: _Event) -> Any:  # noqa: ANN401
        if type(event) is not yaml.SequenceStartEvent:
            return self._value(event)
        built: list[Any] = []
        lines: list[int] = []
        while type(event := self._get()) is not yaml.SequenceEndEvent:
            lines.append(self._line + event.start_mark.line)
            built.append(self._value(event))
        # The lines of a nested list named `items` were stored earlier; the lines of the outer list
        # replace them.
        self._item_lines = lines
        return built

    def _mapping(self, _: _Event) -> dict[str, Any]:
        built: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while type(key := self._get()) is not yaml.MappingEndEvent:
            name = key.value if type(key) is yaml.ScalarEvent else None
            if type(key) is yaml.AliasEvent:
                name = self._value(key)
            if not isinstance(name, str):
                raise _error("a key must be a string", key)
            part = self._items(self._get()) if name == _ITEMS else self._value(self._get())
            if name == _MERGE and key.implicit[0]:
                # Earlier mappings override later ones.
                for each in part if isinstance(part, list) else [part]:
                    if not isinstance(each, dict):
                        raise _error("<< needs a mapping or a list of mappings", key)
                    merged = {**each, **merged}
                continue
            if name in built:
                mark = key.start_mark
                self._remarks.append(
                    TextError(
                        self._line + mark.line,
                        mark.column + 1,
                        f"the key {name} occurs twice: write it once",
                    )
                )
            built[name] = part
        return {**merged, **built} if merged else built

    _of: ClassVar = {
        yaml.ScalarEvent: _scalar,
        yaml.SequenceStartEvent: _sequence,
        yaml.MappingStartEvent: _mapping,
    }


@lru_cache(maxsize=65536)
def scalar(text: str) -> Any:  # noqa: ANN401  any type
    """Convert a plain YAML scalar to a Python value."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if len(digits) <= _MAX_DIGITS:
        if _WHOLE.fullmatch(digits):
            sign, number = (-1, digits[1:]) if digits[0] == "-" else (1, digits.removeprefix("+"))
            return sign * int(number, 8 if _OCTAL.fullmatch(number) else 0)
        if _REAL.fullmatch(digits):
            return float(digits)
    return text


# --- single document ------------------------------------------------------------------------------


def read_document(path: Path, kind: str) -> tuple[str, Document]:
    """Return the text of a YAML or JSON file and the only document in it.

    Raises
    ------
    InstanceError
        The file cannot be read, or does not consist of one document of kind `kind`.

    """
    what = kind.lower()
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InstanceError(f"{path}: this {what} cannot be read: {why_unreadable(e)}") from e
    parts = list((read_json if path.suffix.lower() == ".json" else read_yaml)(source))
    errors = [p for p in parts if isinstance(p, TextError)]
    if errors:
        lines = (f"{path.name}:{e.line}:{e.column}: {e.message}" for e in errors)
        raise InstanceError("\n".join(lines))
    found = [p for p in parts if isinstance(p, Document) and p.value is not None]
    if len(found) != 1 or not isinstance(found[0].value, dict):
        raise InstanceError(f"{path}: a {what} must be one document, a mapping of fields")
    given = (found[0].value.get("apiVersion"), found[0].value.get("kind"))
    if given != (API_VERSION, kind):
        message = f"is {given[0]} {given[1]}: write apiVersion: {API_VERSION} and kind: {kind}"
        raise InstanceError(f"{path}: {message}")
    return source, found[0]
