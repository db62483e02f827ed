"""Files of our own that hold one document of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.formats.codec.snapshot_annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import Document, TextError, read_json, read_yaml
from optsched.units.read_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.api.schema import Schema


def read_document(path: Path, kind: str) -> tuple[str, Document]:
    """The text of a file in YAML or JSON and the one document in it.

    Raises
    ------
    InstanceError
        The file can not be read, or is not one document of this kind.

    """
    what = kind.lower()
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InstanceError(f"{path}: this {what} can not be read: {why_unreadable(e)}") from e
    parts = list((read_json if path.suffix.lower() == ".json" else read_yaml)(source))
    broken = [p for p in parts if isinstance(p, TextError)]
    if broken:
        told = (f"{path.name}:{e.line}:{e.column}: {e.message}" for e in broken)
        raise InstanceError("\n".join(told))
    found = [p for p in parts if isinstance(p, Document) and p.value is not None]
    if len(found) != 1 or not isinstance(found[0].value, dict):
        raise InstanceError(f"{path}: a {what} is one document with fields")
    given = (found[0].value.get("apiVersion"), found[0].value.get("kind"))
    if given != (API_VERSION, kind):
        message = f"is {given[0]} {given[1]}: write apiVersion: {API_VERSION} and kind: {kind}"
        raise InstanceError(f"{path}: {message}")
    return source, found[0]


def unknown_paths(value: object, schema: Schema, path: str = "") -> Iterator[str]:
    """Paths of fields that the schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        for name, part in value.items():
            at = f"{path}.{name}" if path else str(name)
            if name not in schema["properties"]:
                yield at
            else:
                yield from unknown_paths(part, schema["properties"][name], at)
    elif isinstance(value, list) and "items" in schema:
        for i, part in enumerate(value):
            yield from unknown_paths(part, schema["items"], f"{path}[{i}]")
