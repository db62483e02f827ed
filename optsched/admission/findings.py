"""The findings of a review (problems, warnings, changes), and limits on reviewed objects.

The limits keep the cost of a review proportional to the object's size. An API server accepts
objects of 3 MiB. In practice, an object has at most about one JSON value per 20 bytes, so its
review exceeds no limit. `review.count_values` bounds the number of values before the JSON is
decoded. `check_shape` counts the values in the decoded object, and `Findings.check_count` checks
the length of one list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from optsched.admission.review import MAX_VALUES, Response
from optsched.api.kinds import QUEUE, Ref
from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.admission.review import Operation, Question, Request
    from optsched.admission.world import Settings, World
    from optsched.units import FieldError


_OPEN: Final = object()
MAX_FINDINGS: Final = 100
"""Maximum number of problems in one review; the same limit applies to its warnings."""
MAX_SENTENCE: Final = 1000
"""Maximum number of characters in a problem or warning."""
MAX_RESTS: Final = 20
"""Maximum number of objects that are re-read before a request is denied."""
MAX_DEPTH: Final = 32
"""Maximum nesting depth of lists and mappings; no pod field is deeper than 20 levels."""
MAX_FIELD_NAME: Final = 320
"""Maximum length of a field name; the longest names are annotation keys with 317 characters."""

MAX_TASKS: Final = 1000
MAX_CONTAINERS: Final = 500
MAX_CLAIMS: Final = 500
MAX_FLOWS: Final = 1000
MAX_MEMBERS: Final = 10_000

_MANAGED: Final = "managedFields"


class ReviewEnded(Exception):
    """Raised to end a review early, after the review has found at least one problem."""


class Findings:
    """The problems, warnings and object changes of a review, without duplicates.

    A problem is a reason to deny the request. At most `MAX_FINDINGS` problems are kept; one more
    problem raises `ReviewEnded`.
    """

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}
        self._warnings: dict[str, None] = {}
        self._patch: list[Operation] = []
        self._rests: dict[Ref, None] = {}
        self._questions: dict[Question, None] = {}

    def deny(self, sentence: str) -> None:
        """Add a problem; a request with problems is denied."""
        if len(self._problems) == MAX_FINDINGS:
            self._problems[f"only the first {MAX_FINDINGS} problems are listed"] = None
            raise ReviewEnded
        self._problems[_cut(sentence)] = None

    def end(self, sentence: str) -> NoReturn:
        """Add a problem and end the review by raising `ReviewEnded`."""
        self._problems[_cut(sentence)] = None
        raise ReviewEnded

    def invalid(self, path: str, value: object, sentence: str) -> None:
        """Add a problem about an invalid value, in the Kubernetes message format."""
        self.deny(f"{path}: Invalid value: {quote(value)}: {sentence}")

    def required(self, path: str, sentence: str) -> None:
        """Add a problem about a missing field, in the Kubernetes message format."""
        self.deny(f"{path}: Required value: {sentence}")

    def check_count(self, path: str, number: int, most: int) -> None:
        """Deny a list that is too long, in the Kubernetes message format; raise `ReviewEnded`."""
        if number > most:
            self.end(f"{path}: Too many: {number}: must have at most {most} items")

    def errors(self, errors: Iterable[FieldError]) -> None:
        """Add a problem for each field error."""
        for error in errors:
            self.deny(str(error))

    def warn(self, sentence: str) -> None:
        """Add a warning for the user, unless the review has `MAX_FINDINGS` warnings already."""
        if len(self._warnings) < MAX_FINDINGS:
            self._warnings[_cut(sentence)] = None

    def change(self, path: tuple[str | int, ...], value: Any) -> None:  # noqa: ANN401  JSON
        """Add a JSON patch operation that sets the value at a path whose parent exists."""
        escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
        pointer = "".join(f"/{step}" for step in escaped)
        self._patch.append({"op": "add", "path": pointer, "value": value})

    def rests_on_queue(self, name: str) -> None:
        """Record a queue that caused a problem; the queue is re-read before a denial."""
        if len(self._rests) < MAX_RESTS:
            self._rests[Ref(QUEUE, "", name)] = None

    def has_problem_with(self, path: str) -> bool:
        """Return whether a problem was reported for the field `path` or for a nested field."""
        return any(problem.startswith(path) for problem in self._problems)

    @property
    def has_problems(self) -> bool:
        """Whether the review has found any problem."""
        return bool(self._problems)


class Review(Findings):
    """A request under review, with the cluster state, the settings and the findings so far."""

    def __init__(self, request: Request, world: World, settings: Settings) -> None:
        super().__init__()
        self.request = request
        self.world = world
        self.settings = settings

    def answer(self, question: Question, default: Any) -> Any:  # noqa: ANN401
        """Return the API server's answer to a question, or `default` while there is no answer."""
        answer = self.request.answers.get(question, _OPEN)
        if answer is not _OPEN:
            return answer
        self._questions[question] = None
        return default

    @property
    def is_spec_changed(self) -> bool:
        """Whether the request creates, changes or removes the object's spec."""
        return (self.request.old or {}).get("spec") != (self.request.obj or {}).get("spec")

    def response(self) -> Response:
        """Return the response with all findings of the review."""
        return Response(
            problems=tuple(self._problems),
            patch=tuple(self._patch),
            warnings=tuple(self._warnings),
            rests_on=tuple(self._rests) if self._problems else (),
            questions=tuple(self._questions),
        )


def get_mapping(obj: object, name: str) -> dict[str, Any]:
    """Return the mapping in a field of an object; empty if the field holds no mapping."""
    found = obj.get(name) if isinstance(obj, dict) else None
    return found if isinstance(found, dict) else {}


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= MAX_SENTENCE else f"{sentence[:MAX_SENTENCE]}…"


def check_shape(obj: object, name: str, findings: Findings) -> None:
    """Deny an object that is too large, is nested too deeply or has field names that are too long.

    `name` is the object's name in messages. Raises `ReviewEnded` at the first problem.
    """
    num_values, depth, level = 0, 0, [obj]
    while level:
        num_values, depth = num_values + len(level), depth + 1
        if num_values > MAX_VALUES:
            findings.end(f"{name} has too many values: at most {MAX_VALUES} are allowed")
        if depth > MAX_DEPTH + 1:
            findings.end(f"{name} is nested too deeply: at most {MAX_DEPTH} levels are allowed")
        parents, level = level, []
        for value in parents:
            if isinstance(value, list):
                level += value
            elif isinstance(value, dict):
                for field in value:
                    if len(field) > MAX_FIELD_NAME:
                        findings.end(
                            f"{name}: a field name has {len(field)} characters: {field[:60]}…: "
                            f"at most {MAX_FIELD_NAME} are allowed"
                        )
                if _MANAGED in value:
                    # Field names in managedFields may be long, because they contain values. No rule
                    # reads them.
                    level += [each for field, each in value.items() if field != _MANAGED]
                else:
                    level += value.values()
