"""Errors in cluster objects, with object, field, value, and accepted values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.units.input_errors import describe_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """One error in one object; the error does not affect other objects.

    Attributes
    ----------
    kind
        Kind of the object, such as Pod; empty if the error concerns a whole file.
    key
        `namespace/name`, or the name alone for cluster-scoped objects.
    path
        The field with the error; empty if the error concerns the whole object.
    value
        The value of the field in the object.
    message
        What is wrong with the value, and which values are accepted.
    where
        `file:line` of the object; empty if the object is not from a file.
    """

    kind: str
    key: str
    path: str
    value: object
    message: str
    where: str = ""

    def __str__(self) -> str:
        name = f"{self.kind} {self.key}".strip()
        field = describe_field(self.path, self.value, self.message) if self.path else ""
        head = ": ".join(part for part in (self.where, name, field) if part)
        return f"{head} {self.message}" if field else f"{head}: {self.message}"


class InstanceError(Exception):
    """An error for a file or folder that contains no object to schedule.

    `problems` lists the errors in the objects of the file or folder.
    """

    def __init__(self, message: str, problems: Iterable[ObjectProblem] = ()) -> None:
        self.message = message
        self.problems = tuple(problems)
        super().__init__(message, self.problems)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.problems), self.message])


def diagnostics_of(
    kind: str, key: str, errors: Iterable[FieldError], where: str = ""
) -> tuple[ObjectProblem, ...]:
    """Convert the field errors of one object to `ObjectProblem` objects.

    `where` is the `file:line` of the object.
    """
    return tuple(ObjectProblem(kind, key, e.path, e.value, e.message, where) for e in errors)


def join_messages(errors: Iterable[FieldError]) -> str:
    """Join field errors with semicolons, for the message of a `Reason`."""
    return "; ".join(map(str, errors))
