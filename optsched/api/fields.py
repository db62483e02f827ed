"""OpenAPI schemas of API objects, and a parser that reads object fields according to a schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.meta import NOT_A_MAPPING
from optsched.units import (
    DurationError,
    FieldError,
    TimestampError,
    parse_duration_ms,
    parse_resource_list,
    parse_time_ms,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]

MAX_INT32: Final = 2**31 - 1
MAX_NAME: Final = 253
NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

# The pattern in the API server's OpenAPI schema for quantities.
QUANTITY: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    "x-kubernetes-int-or-string": True,
}


def text(description: str = "", **rules: object) -> Schema:
    """Return the OpenAPI schema of a string."""
    return {"description": description, "type": "string", **rules}


def name(description: str = "", **rules: object) -> Schema:
    """Return the OpenAPI schema of a string that names another object."""
    return text(description, maxLength=MAX_NAME, **rules)


def integer(description: str = "", **rules: object) -> Schema:
    """Return the OpenAPI schema of a 32-bit integer."""
    return {"description": description, "type": "integer", "format": "int32", **rules}


def non_negative(description: str = "", **rules: object) -> Schema:
    """Return the OpenAPI schema of a non-negative 32-bit integer."""
    return integer(description, minimum=0, **rules)


def boolean(description: str = "", **rules: object) -> Schema:
    """Return the OpenAPI schema of a boolean."""
    return {"description": description, "type": "boolean", **rules}


def amounts(description: str = "") -> Schema:
    """Return the OpenAPI schema of a mapping from resource names to quantities."""
    return mapping(description, QUANTITY)


def texts(description: str = "") -> Schema:
    """Return the OpenAPI schema of a list of strings."""
    return listing(description, {"type": "string"})


def mapping(description: str, values: Schema) -> Schema:
    """Return the OpenAPI schema of a mapping: users choose the keys, and values match `values`."""
    return {"description": description, "type": "object", "additionalProperties": values}


def listing(description: str, items: Schema) -> Schema:
    """Return the OpenAPI schema of a list whose items have the schema `items`."""
    return {"description": description, "type": "array", "items": items}


def record(description: str = "", required: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """Return the OpenAPI schema of an object with fixed field names."""
    end = {"required": list(required)} if required else {}
    return {"description": description, "type": "object", "properties": fields, **end}


def plain(description: str, **rules: object) -> Schema:
    """Return the OpenAPI schema of an object that may have any fields."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, **kept, **rules}


def whole_object(description: str, required: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """Return the OpenAPI schema of an API object with apiVersion, kind, metadata and `fields`."""
    return record(
        description,
        required,
        apiVersion=text("Group and version of the kind."),
        kind=text("Name of the kind."),
        metadata={"type": "object"},
        **fields,
    )


class Fields:
    """A parser for the fields of an object or of a nested mapping.

    Each method returns the value of the field `name`, or raises KeyError if the schema has no such
    field. A null or absent field takes the default value in the schema. A value that does not match
    the schema adds an error to `errors` and is treated as absent; the other fields are still
    parsed. Lengths and patterns are not checked, because the API server checks them.
    """

    __slots__ = ("_errors", "_obj", "_path", "_properties")

    def __init__(self, obj: object, schema: Schema, path: str, errors: list[FieldError]) -> None:
        self._properties: dict[str, Schema] = schema["properties"]
        self._path = path
        self._errors = errors
        self._obj: dict[str, Any] = {}
        if isinstance(obj, dict):
            self._obj = obj
        elif obj is not None:
            errors.append(FieldError(path, obj, NOT_A_MAPPING))
            return
        for required in schema.get("required", ()):
            if self._obj.get(required) is None:
                self.reject(required, None, "is missing and has no default")

    def path_of(self, name: str) -> str:
        """Return the full path of a field as messages show it, such as `spec.weight`."""
        return f"{self._path}.{name}" if self._path else name

    def reject(self, name: str, value: object, message: str) -> None:
        """Add an error about the value of a field."""
        self._errors.append(FieldError(self.path_of(name), value, message))

    def raw(self, name: str) -> object:
        """Return the unchecked value of a field, or None if the field is absent."""
        if name not in self._properties:
            raise KeyError(self.path_of(name))
        return self._obj.get(name)

    def text(self, name: str) -> str:
        """Return the string in a field; an empty string is treated as absent."""
        schema, value = self._properties[name], self._obj.get(name)
        default: str = schema.get("default", "")
        if value is None or value == "":
            return default
        problem = _text_problem(value, schema)
        if problem:
            self.reject(name, value, problem)
            return default
        return str(value)

    def integer(self, name: str) -> int:
        """Return the integer in a field; 0 if the field is absent and has no default."""
        number = self.optional_integer(name)
        return number if number is not None else 0

    def optional_integer(self, name: str) -> int | None:
        """Return the integer in a field, or None if the field is absent and has no default."""
        schema, value = self._properties[name], self._obj.get(name)
        default: int | None = schema.get("default")
        if value is None:
            return default
        problem = _integer_problem(value, schema)
        if problem:
            self.reject(name, value, problem)
            return default
        return int(value)

    def boolean(self, name: str) -> bool:
        """Return the boolean in a field; False if the field is absent and has no default."""
        value = self._obj.get(name)
        default: bool = self._properties[name].get("default", False)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self.reject(name, value, "is not a boolean: write true or false")
        return default

    def time_ms(self, name: str) -> int | None:
        """Return the time in a field in milliseconds since 1970; None if absent or invalid."""
        value = self.raw(name)
        if value is None:
            return None
        try:
            return parse_time_ms(value)
        except TimestampError as error:
            self._errors.append(error.at_path(self.path_of(name)))
            return None

    def duration_ms(self, name: str) -> int | None:
        """Return the Go duration in a field in milliseconds, or None if absent or invalid."""
        value = self.raw(name)
        if value is None:
            return None
        try:
            return parse_duration_ms(value)
        except DurationError as error:
            self._errors.append(error.at_path(self.path_of(name)))
            return None

    def mapping(self, name: str) -> dict[str, Any]:
        """Return the mapping in a field; its keys and values are not checked."""
        return dict(self._entries(name))

    def amounts(self, name: str, *, whole_devices: bool = False) -> dict[str, int]:
        """Return the resource quantities in a field in base units, keyed by resource name.

        If `whole_devices` is true, fractions of devices are errors.
        """
        found, errors = parse_resource_list(
            self.raw(name), self.path_of(name), whole_devices=whole_devices
        )
        self._errors += errors
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of strings in a field."""
        found = []
        for position, value in enumerate(self._items(name)):
            if isinstance(value, str):
                found.append(value)
            else:
                self.reject(f"{name}[{position}]", value, "is not a string: write it in quotes")
        return tuple(found)

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the valid strings in a list field; add an error for each invalid list item."""
        items: Schema = self._properties[name]["items"]
        return tuple(
            value
            for position, value in enumerate(self._items(name))
            if self._fits(f"{name}[{position}]", value, _text_problem(value, items))
        )

    def text_lists_by_name(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return a field's string lists, keyed by user-chosen name; null becomes an empty list."""
        return {
            key: tuple(
                text
                for position, text in enumerate(self._list_at(f"{name}[{key}]", value))
                if self._fits(f"{name}[{key}][{position}]", text, _text_problem(text, {}))
            )
            for key, value in self._entries(name)
        }

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return the strings in a field, keyed by user-chosen name."""
        return {
            key: value
            for key, value in self._entries(name)
            if self._fits(f"{name}[{key}]", value, _text_problem(value, {}))
        }

    def integers_by_name(self, name: str) -> dict[str, int]:
        """Return the integers in a field, keyed by user-chosen name."""
        schema = self._properties[name]["additionalProperties"]
        return {
            key: value
            for key, value in self._entries(name)
            if self._fits(f"{name}[{key}]", value, _integer_problem(value, schema))
        }

    def record(self, name: str) -> Fields:
        """Return a parser for the nested mapping in a field; an absent mapping is empty."""
        return Fields(self._obj.get(name), self._properties[name], self.path_of(name), self._errors)

    def nested_fields(self, name: str, obj: object, schema: Schema) -> Fields:
        """Return a parser for `obj`, the mapping stored under the user-chosen key `name`."""
        return Fields(obj, schema, self.path_of(name), self._errors)

    def optional_record(self, name: str) -> Fields | None:
        """Return a parser for the nested mapping in a field, or None if the mapping is absent."""
        return None if self._obj.get(name) is None else self.record(name)

    def records(self, name: str) -> Iterator[Fields]:
        """Yield a parser for each mapping in a list field, in order."""
        items: Schema = self._properties[name]["items"]
        for position, value in enumerate(self._items(name)):
            yield Fields(value, items, f"{self.path_of(name)}[{position}]", self._errors)

    def records_by_name(self, name: str) -> Iterator[tuple[str, Fields]]:
        """Yield each user-chosen name in a field with a parser for the mapping stored under it."""
        values: Schema = self._properties[name]["additionalProperties"]
        for key, value in self._entries(name):
            yield key, Fields(value, values, f"{self.path_of(name)}[{key}]", self._errors)

    def _items(self, name: str) -> list[Any]:
        return self._list_at(name, self.raw(name))

    def _list_at(self, name: str, value: object) -> list[Any]:
        if isinstance(value, list):
            return value
        if value is not None:
            self.reject(name, value, "is not a list")
        return []

    def _entries(self, name: str) -> list[tuple[str, Any]]:
        value = self.raw(name)
        if isinstance(value, dict):
            return [(str(key), entry) for key, entry in value.items()]
        if value is not None:
            self.reject(name, value, "is not a mapping of names to values")
        return []

    def _fits(self, name: str, value: object, problem: str) -> bool:
        if problem:
            self.reject(name, value, problem)
        return not problem


def _text_problem(value: object, schema: Schema) -> str:
    if not isinstance(value, str):
        return "is not a string: write it in quotes"
    choices = schema.get("enum")
    if choices is not None and value not in choices:
        return f"is not one of {', '.join(choice for choice in choices if choice)}"
    return ""


def _integer_problem(value: object, schema: Schema) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "is not a whole number"
    low = schema.get("minimum", -MAX_INT32 - 1)
    high = schema.get("maximum", 2**63 - 1 if schema.get("format") == "int64" else MAX_INT32)
    return "" if low <= value <= high else f"is out of range: write {low} to {high}"


# --- selectors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """A condition on one label; `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector: an object matches if it has all labels and meets all conditions.

    A selector that has neither labels nor conditions matches every object.
    """

    match_labels: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[LabelCondition, ...] = ()


def read_selector(fields: Fields) -> LabelSelector:
    """Parse a label selector that has the fields of the Kubernetes LabelSelector type."""
    return LabelSelector(
        match_labels=fields.texts_by_name("matchLabels"),
        conditions=tuple(
            LabelCondition(each.text("key"), each.text("operator"), each.texts("values"))
            for each in fields.records("matchExpressions")
        ),
    )
