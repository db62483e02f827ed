"""Words to write a structural schema with, as apiextensions.k8s.io/v1 understands it.

Each word makes one schema from a description and keywords of JSON schema, spelled as there
(`minimum`, `maxLength`, `enum`, `default`).
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

MAX_INT32: Final = 2**31 - 1
MAX_NAME: Final = 253
NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

# The pattern that the API server itself publishes for quantities.
QUANTITY: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    "x-kubernetes-int-or-string": True,
}


def text(description: str, **rules: object) -> Schema:
    """A text."""
    return {"description": description, "type": "string", **rules}


def name(description: str, **rules: object) -> Schema:
    """The name of another object."""
    return text(description, maxLength=MAX_NAME, **rules)


def integer(description: str, **rules: object) -> Schema:
    """A whole number of 32 bits."""
    return {"description": description, "type": "integer", "format": "int32", **rules}


def count(description: str, **rules: object) -> Schema:
    """A whole number of 32 bits from zero."""
    return integer(description, minimum=0, **rules)


def boolean(description: str, **rules: object) -> Schema:
    """True or false."""
    return {"description": description, "type": "boolean", **rules}


def moment(description: str) -> Schema:
    """A time in RFC 3339."""
    return text(description, format="date-time")


def amounts(description: str) -> Schema:
    """Quantities by resource."""
    return mapping(description, QUANTITY)


def texts(description: str) -> Schema:
    """A list of texts."""
    return listing(description, {"type": "string"})


def mapping(description: str, values: Schema) -> Schema:
    """Values of one shape under names that the user chooses."""
    return {"description": description, "type": "object", "additionalProperties": values}


def listing(description: str, items: Schema) -> Schema:
    """A list of values of one shape."""
    return {"description": description, "type": "array", "items": items}


def record(description: str, required: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """Fields under fixed names."""
    end = {"required": list(required)} if required else {}
    return {"description": description, "type": "object", "properties": fields, **end}


def plain(description: str, **rules: object) -> Schema:
    """An object of another kind's making, kept as it is."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, **kept, **rules}


def whole_object(description: str, **parts: Schema) -> Schema:
    """A whole object: what every object has, and its own parts."""
    return record(
        description,
        apiVersion=text("Group and version of the kind."),
        kind=text("Name of the kind."),
        metadata={"type": "object"},
        **parts,
    )
