"""Reading an object field by field along its schema: one source for names, defaults and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.api.schema import MAX_INT32, Schema
from optsched.units import (
    DurationError,
    FieldError,
    TimestampError,
    parse_duration_ms,
    parse_resource_list,
    parse_time_ms,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Fields:
    """The fields of one object or of one part of it.

    Each method reads the field of that name; a name that the schema does not know is a KeyError,
    a mistake of ours. null and absence mean the schema's default. A value that does not fit is
    added to `errors` and read as if it were absent: the rest of the object is still read. Lengths
    and patterns are left to the API server: a name that breaks them can still be looked up.
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
            errors.append(FieldError(path, obj, "is not a mapping of field names to values"))
        for required in schema.get("required", ()):
            if self._obj.get(required) is None:
                self.reject(required, None, "is missing and has no default")

    def path_of(self, name: str) -> str:
        """The path of a field, for messages."""
        return f"{self._path}.{name}" if self._path else name

    def reject(self, name: str, value: object, message: str) -> None:
        """Note that a field cannot be used."""
        self._errors.append(FieldError(self.path_of(name), value, message))

    def raw(self, name: str) -> object:
        """The value as it stands; None where there is none."""
        if name not in self._properties:
            raise KeyError(self.path_of(name))
        return self._obj.get(name)

    def text(self, name: str) -> str:
        """A text; an empty one counts as absent."""
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
        """A whole number, 0 where the schema gives no default."""
        number = self.optional_integer(name)
        return number if number is not None else 0

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where the schema gives no default."""
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
        """True or false, false where the schema gives no default."""
        value = self._obj.get(name)
        default: bool = self._properties[name].get("default", False)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self.reject(name, value, "is not a boolean: write true or false")
        return default

    def time_ms(self, name: str) -> int | None:
        """A time in milliseconds since 1970."""
        value = self.raw(name)
        if value is None:
            return None
        try:
            return parse_time_ms(value)
        except TimestampError as error:
            self._errors.append(error.at(self.path_of(name)))
            return None

    def duration_ms(self, name: str) -> int | None:
        """A duration as Go writes it, in milliseconds."""
        value = self.raw(name)
        if value is None:
            return None
        try:
            return parse_duration_ms(value)
        except DurationError as error:
            self._errors.append(error.at(self.path_of(name)))
            return None

    def mapping(self, name: str) -> dict[str, Any]:
        """An object of another kind's making, as it stands."""
        return dict(self._entries(name))

    def amounts(self, name: str, *, whole_gpus: bool = False) -> dict[str, int]:
        """Quantities by resource, in base units; whole_gpus: parts of GPUs are errors."""
        found, errors = parse_resource_list(
            self.raw(name), self.path_of(name), whole_gpus=whole_gpus
        )
        self._errors += errors
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = []
        for position, value in enumerate(self._items(name)):
            if isinstance(value, str):
                found.append(value)
            else:
                self.reject(f"{name}[{position}]", value, "is not a text: write it in quotes")
        return tuple(found)

    def choices(self, name: str) -> tuple[str, ...]:
        """A list of texts, each of which is one of those that the schema lists."""
        items: Schema = self._properties[name]["items"]
        return tuple(
            value
            for position, value in enumerate(self._items(name))
            if self._fits(f"{name}[{position}]", value, _text_problem(value, items))
        )

    def text_lists_by_name(self, name: str) -> dict[str, tuple[str, ...]]:
        """Lists of texts under names that the user chose; null is an empty list."""
        return {
            key: tuple(
                text
                for position, text in enumerate(self._list_at(f"{name}[{key}]", value))
                if self._fits(f"{name}[{key}][{position}]", text, _text_problem(text, {}))
            )
            for key, value in self._entries(name)
        }

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Texts under names that the user chose."""
        return {
            key: value
            for key, value in self._entries(name)
            if self._fits(f"{name}[{key}]", value, _text_problem(value, {}))
        }

    def integers_by_name(self, name: str) -> dict[str, int]:
        """Whole numbers under names that the user chose."""
        schema = self._properties[name]["additionalProperties"]
        return {
            key: value
            for key, value in self._entries(name)
            if self._fits(f"{name}[{key}]", value, _integer_problem(value, schema))
        }

    def record(self, name: str) -> Fields:
        """The fields of a part; a part that is not there has only defaults."""
        return Fields(self._obj.get(name), self._properties[name], self.path_of(name), self._errors)

    def part(self, name: str, obj: object, schema: Schema) -> Fields:
        """The fields of a part that stands under a name of the user's own."""
        return Fields(obj, schema, self.path_of(name), self._errors)

    def optional_record(self, name: str) -> Fields | None:
        """The fields of a part, or None where the part is not there."""
        return None if self._obj.get(name) is None else self.record(name)

    def records(self, name: str) -> Iterator[Fields]:
        """The fields of each part of a list, in order."""
        items: Schema = self._properties[name]["items"]
        for position, value in enumerate(self._items(name)):
            yield Fields(value, items, f"{self.path_of(name)}[{position}]", self._errors)

    def records_by_name(self, name: str) -> Iterator[tuple[str, Fields]]:
        """The fields of each part under a name that the user chose."""
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
        return "is not a text: write it in quotes"
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
