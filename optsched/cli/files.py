"""Manifests from files: every mistake with file, line, field and value, before anything is done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import parse_job
from optsched.api.jobflow import parse_jobflow
from optsched.api.jobtemplate import parse_jobtemplate
from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE
from optsched.api.unknown import unknown_fields
from optsched.cli.cluster import Exit, Failure
from optsched.formats.text import Document, TextError, line_of, read_yaml
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.api.kinds import Kind

STDIN: Final = "-"
_PARSERS: Final = {JOB: parse_job, JOB_FLOW: parse_jobflow, JOB_TEMPLATE: parse_jobtemplate}
_LIST: Final = "List"
_NO_OBJECT: Final = "is no object: it needs apiVersion, kind and metadata.name"


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object of a file. where: `file:line`. remarks: fields that have no meaning."""

    obj: dict[str, Any]
    where: str
    remarks: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace that it names; empty for none."""
        return str(self.obj["metadata"].get("namespace") or "")

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.obj["metadata"]["name"])


def read_manifests(path: str, kind: Kind) -> tuple[Manifest, ...]:
    """The objects of a kind in a file; path: `-` for the standard input.

    `Failure` with all that is wrong, each with `file:line`: a file that can not be read is wrong
    usage, and so is what is in it.
    """
    text, shown = _text(path)
    problems: list[str] = []
    found = [_manifest(kind, part, problems) for part in _parts(text, shown, problems)]
    if not found and not problems:
        problems.append(f"{shown}: there is no {kind} in it")
    if problems:
        raise Failure("\n".join(problems), Exit.USAGE)
    return tuple(each for each in found if each is not None)


def read_parts(path: str) -> tuple[Part, ...]:
    """All objects of a file, whatever their kinds; path: `-` for the standard input.

    `Failure` where the file can not be read, or something in it is no object with a name.
    """
    text, shown = _text(path)
    problems: list[str] = []
    found = tuple(_parts(text, shown, problems))
    problems += [f"{part.where()}: {_NO_OBJECT}" for part in found if not _is_object(part.value)]
    if not found and not problems:
        problems.append(f"{shown}: there is no object in it")
    if problems:
        raise Failure("\n".join(problems), Exit.USAGE)
    return found


def _is_object(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return False
    named = isinstance(value["metadata"].get("name"), str)
    return named and all(isinstance(value.get(field), str) for field in ("apiVersion", "kind"))


def check_manifests(manifests: Sequence[Manifest], namespace: str) -> None:
    """`Failure` where a manifest names another namespace than the one that is asked for."""
    wrong = [m for m in manifests if namespace and m.namespace not in ("", namespace)]
    if wrong:
        told = (
            f"{m.where}: metadata.namespace: {m.namespace} is not {namespace}, as -n says"
            for m in wrong
        )
        raise Failure("\n".join(told), Exit.USAGE)


def _text(path: str) -> tuple[str, str]:
    if path == STDIN:
        return sys.stdin.read(), "standard input"
    try:
        return Path(path).read_text("utf-8"), path
    except OSError as e:
        raise Failure(f"{path}: {e.strerror}", Exit.USAGE) from e
    except UnicodeDecodeError as e:
        raise Failure(f"{path}: is not a text in UTF-8", Exit.USAGE) from e


@dataclass(frozen=True, slots=True)
class Part:
    """A document of a file, or an item of a List in it, which the prefix leads to."""

    value: Any
    file: str
    text: str
    document: Document
    prefix: str = ""

    def where(self, path: str = "") -> str:
        """`file:line` of a field."""
        return f"{self.file}:{self.line(path)}"

    def line(self, path: str) -> int:
        """The line of a field."""
        whole = ".".join(part for part in (self.prefix, path) if part)
        return line_of(self.text, self.document, whole)

    def told(self, head: str, errors: Iterable[FieldError]) -> list[str]:
        """A line for each error, in the order of the file."""
        placed = sorted((self.line(error.path), str(error)) for error in errors)
        return [f"{self.file}:{line}: {head}: {text}" for line, text in placed]


def _parts(text: str, file: str, problems: list[str]) -> Iterator[Part]:
    for document in read_yaml(text):
        if isinstance(document, TextError):
            problems.append(f"{file}:{document.line}:{document.column}: {document.message}")
            continue
        value = document.value
        if isinstance(value, dict) and value.get("kind") == _LIST:
            items = value.get("items") or ()
            for i, item in enumerate(items):
                yield Part(item, file, text, document, f"items[{i}]")
        elif value is not None:
            yield Part(value, file, text, document)


def _manifest(kind: Kind, part: Part, problems: list[str]) -> Manifest | None:
    stranger = _stranger(kind, part.value)
    if stranger is not None:
        problems.append(f"{part.where(stranger.path)}: {stranger}")
        return None
    _, errors = _PARSERS[kind](part.value)
    head = f"{kind} {(part.value.get('metadata') or {}).get('name', '')}".strip()
    problems += part.told(head, errors)
    remarks = part.told(head, unknown_fields(kind, part.value))
    return None if errors else Manifest(part.value, part.where(), tuple(remarks))


def _stranger(kind: Kind, value: object) -> FieldError | None:
    """What says that a document is no object of a kind; None if it is one."""
    if not isinstance(value, dict):
        return FieldError("kind", value, f"is no object: a {kind} is expected")
    if value.get("kind") != kind.kind:
        return FieldError("kind", value.get("kind"), f"is not expected here: write {kind}")
    if value.get("apiVersion") != kind.api_version:
        accepted = f"is not expected here: write {kind.api_version}"
        return FieldError("apiVersion", value.get("apiVersion"), accepted)
    return None
