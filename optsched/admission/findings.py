"""What a review finds: problems, warnings and changes, gathered from many rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.admission.review import Response
from optsched.api.kinds import Ref
from optsched.units.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.admission.review import Operation
    from optsched.api.kinds import Kind
    from optsched.units import FieldError


class Findings:
    """Problems, warnings and changes, in the order in which they are found; each said once."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}
        self._warnings: dict[str, None] = {}
        self._patch: list[Operation] = []
        self._rests: dict[Ref, None] = {}

    def deny(self, sentence: str) -> None:
        """It may not be done."""
        self._problems[sentence] = None

    def invalid(self, path: str, value: object, sentence: str) -> None:
        """A field holds what it may not; worded as Kubernetes does."""
        self.deny(f"{path}: Invalid value: {shown(value)}: {sentence}")

    def required(self, path: str, sentence: str) -> None:
        """A field is missing; worded as Kubernetes does."""
        self.deny(f"{path}: Required value: {sentence}")

    def errors(self, errors: Iterable[FieldError]) -> None:
        """Fields that cannot be read."""
        for error in errors:
            self.deny(str(error))

    def warn(self, sentence: str) -> None:
        """Its user should know something."""
        self._warnings[sentence] = None

    def change(self, path: tuple[str | int, ...], value: Any) -> None:  # noqa: ANN401  JSON
        """Set what is at a path; what is above it is there."""
        pointer = "".join(f"/{_escaped(str(step))}" for step in path)
        self._patch.append({"op": "add", "path": pointer, "value": value})

    def rests_on(self, kind: Kind, name: str, namespace: str = "") -> None:
        """A problem may go away with a newer look at an object."""
        self._rests[Ref(kind, namespace, name)] = None

    def tells_of(self, path: str) -> bool:
        """Whether a problem with a field, or with what is in it, was found already."""
        return any(problem.startswith(path) for problem in self._problems)

    @property
    def has_problems(self) -> bool:
        """Whether it may not be done."""
        return bool(self._problems)

    def response(self) -> Response:
        """All of it."""
        return Response(
            problems=tuple(self._problems),
            patch=tuple(self._patch),
            warnings=tuple(self._warnings),
            rests_on=tuple(self._rests) if self._problems else (),
        )


def part(obj: object, name: str) -> dict[str, Any]:
    """A part of an object; empty where it is not there, or is not what it should be."""
    found = obj.get(name) if isinstance(obj, dict) else None
    return found if isinstance(found, dict) else {}


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
