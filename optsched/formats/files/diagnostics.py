"""Problems of the objects of a cluster: object, field, value, what would be accepted.

InstanceError(Exception)    a place in which there is no cluster
└─ ObjectProblem            one thing that is wrong with one object; it stops nothing else
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.units.unit_errors import describe_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """One problem of one object; everything else is read all the same.

    Attributes
    ----------
    kind
        Such as Pod; empty where the problem is of a file, not of an object.
    key
        `namespace/name`, or the name alone outside of namespaces.
    path
        The field; empty where the problem is of the whole object.
    value
        The value of the field.
    message
        The problem, and what would be accepted.
    where
        `file:line` of the object; empty without a file.

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
    """A place in which there is nothing to schedule; `problems` are those found on the way."""

    def __init__(self, message: str, problems: Iterable[ObjectProblem] = ()) -> None:
        self.message = message
        self.problems = tuple(problems)
        super().__init__(message, self.problems)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.problems), self.message])


def diagnostics_of(
    kind: str, key: str, errors: Iterable[FieldError], where: str = ""
) -> tuple[ObjectProblem, ...]:
    """The errors of one object's fields."""
    return tuple(ObjectProblem(kind, key, e.path, e.value, e.message, where) for e in errors)


def join_messages(errors: Iterable[FieldError]) -> str:
    """All errors in one sentence, for a reason."""
    return "; ".join(map(str, errors))
