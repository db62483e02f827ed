"""Volcano's Go types decode the stored objects, and the schemas accept Volcano's objects."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.api.crds import CUSTOM_KINDS, custom_resource_definition
from optsched.api.fields import MAX_INT32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.api.fields import Schema

FOLDER = Path(__file__).parent / "go_types"
VERSIONS = ("v1.12.1", "v1.14.0")
SCHEMAS: dict[str, Schema] = {
    kind.kind: custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for kind in CUSTOM_KINDS
}
OURS = (
    # Go ignores these fields: they are newer than Volcano v1.14, or optsched adds them.
    ("Job", ".status.deletions"),
    ("Job", ".status.evictions"),
    ("Job", ".status.lastCommand"),
    ("Job", ".status.restarted"),
    ("CronJob", ".spec.jobTemplate.metadata."),
    ("Numatopology", ".spec.gpuDetail"),
    ("Numatopology", ".spec.podAllocations"),
    ("Queue", ".spec.dra"),
)
KEPT = "x-kubernetes-preserve-unknown-fields"


@cache
def go_types(version: str) -> dict[tuple[str, str], str]:
    """Return the Go type of each field by kind and path."""
    lines = (FOLDER / f"{version}.txt").read_text("utf-8").splitlines()
    return {(kind, path): is_ for kind, path, is_ in (line.split(" ") for line in lines)}


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


def ours() -> dict[tuple[str, str], Schema]:
    return {
        (kind, path): schema
        for kind, whole in SCHEMAS.items()
        for path, schema in fields(whole)
        if path
    }


def decodes(schema: Schema, go: str) -> bool:
    """Return whether Go can decode every value that the schema accepts."""
    found = schema.get("type")
    if go == "quantity":
        return bool(schema.get("x-kubernetes-int-or-string")) and "pattern" in schema
    if go in ("meta", "plain"):
        return found == "object"
    if go == "duration":
        return found == "string" and "pattern" in schema
    if go == "time":
        return found == "string" and schema.get("format") == "date-time"
    if go == "int32":
        small = schema.get("format") == "int32" or schema.get("maximum", MAX_INT32 + 1) <= MAX_INT32
        return found == "integer" and small
    expected = {"int": "integer", "int64": "integer", "bool": "boolean", "list": "array"}
    return found == expected.get(go, {"map": "object", "uint8": "integer"}.get(go, go))


@pytest.mark.parametrize("version", VERSIONS)
def test_go_clients_decode_whatever_the_server_lets_pass(version: str):
    known = go_types(version)
    wrong = {
        key: (schema, known[key])
        for key, schema in ours().items()
        if key in known and not decodes(schema, known[key])
    }
    assert wrong == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_go_clients_write_is_lost(version: str):
    found = ours()
    kept = [key for key, schema in found.items() if schema.get(KEPT)]

    def is_there(key: tuple[str, str]) -> bool:
        kind, path = key
        return key in found or any(
            kind == other and path.startswith((f"{above}.", f"{above}[", f"{above}{{"))
            for other, above in kept
        )

    assert [key for key in go_types(version) if not is_there(key)] == []


def test_what_volcano_does_not_have_is_known():
    known = go_types("v1.14.0")
    kinds = {kind for kind, _ in known}
    extra = {key for key in ours() if key[0] in kinds and key not in known}
    strangers = {
        (kind, path)
        for kind, path in extra
        if not any(kind == other and path.startswith(start) for other, start in OURS)
    }
    assert strangers == set()


def test_every_kind_but_two_is_compared():
    missing = {kind.kind for kind in CUSTOM_KINDS} - {kind for kind, _ in go_types("v1.14.0")}
    assert missing == {"ColocationConfiguration", "NodeShard"}
