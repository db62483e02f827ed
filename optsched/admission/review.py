"""Requests and responses in AdmissionReviews (admission.k8s.io/v1)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.units.input_errors import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind, Ref
    from optsched.api.wellknown import Subject

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_SHOWN: Final = 60

Raw = dict[str, Any]
Operation = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""


MAX_VALUES: Final = 100_000
"""Maximum number of values (numbers, strings, lists and mappings) in one object."""
MAX_VALUES_OF_REVIEW: Final = 4 * MAX_VALUES
"""Maximum result of `count_values` for one AdmissionReview (a new and an old object)."""


def count_values(text: bytes) -> int:
    """Estimate the number of JSON values: count commas and opening brackets outside strings.

    JSON with n commas and opening brackets has between n / 2 and n + 1 values. The estimate takes
    linear time and is made before decoding, because 8 MiB of JSON can hold four million lists.
    """
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_quotes = plain.count(b'"')
    if num_quotes > 4 * MAX_VALUES_OF_REVIEW:
        # Each value needs at most four quotes: two around its field name, two if it is a string.
        return num_quotes // 4
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{")


class MalformedReview(ValueError):
    """Raised if a body is not an AdmissionReview; `uid` is the request's UID, empty if unknown."""

    def __init__(self, problem: str, uid: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.uid = uid


class TooLarge(MalformedReview):
    """Raised if a body has too many values to decode."""


class Action(StrEnum):
    """The operation of an admission request."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of a request, with the names used in API paths."""

    group: str
    version: str
    plural: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.version}.{self.group}".rstrip(".")


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """A SubjectAccessReview: the question whether a subject has a permission.

    The answer is a boolean. `namespace` is the namespace in which the subject needs the permission;
    if it is empty, the subject needs the permission in the whole cluster. `subresource` is, for
    example, `binding`; if it is empty, the permission is for the object itself.
    """

    subject: Subject
    verb: str
    kind: Kind
    name: str
    namespace: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class ObjectQuestion:
    """A query for an object's current state; the answer is the object, or None if it is missing."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class PodsQuestion:
    """A query for the pods in a namespace; the answer is a tuple of pods."""

    namespace: str


@dataclass(frozen=True, slots=True)
class TemplateQuestion:
    """The question whether the API server accepts a pod template.

    The answer is a `TemplateVerdict`. `digest` is the hash of the template's JSON with sorted keys;
    two questions are equal if their digests are equal.
    """

    digest: str
    template: Raw = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TemplateVerdict:
    """The result of the API server's validation of a pod template.

    `errors` holds (field, message) pairs. The field, such as template.spec.containers, is empty if
    the API server names no field. A template without errors is valid.
    """

    errors: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


Question: TypeAlias = AccessQuestion | ObjectQuestion | PodsQuestion | TemplateQuestion
"""A question to the API server; the answer is passed to the next review of the same request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to create, update or delete an object.

    Attributes
    ----------
    obj
        The object after the request, or None for DELETE.
    old
        The current object, or None for CREATE.
    manager
        The `fieldManager` of the patch.
    answers
        The answers to questions from earlier reviews of the same request.

    """

    uid: str
    action: Action
    resource: Resource
    name: str = ""
    namespace: str = ""
    obj: Raw | None = None
    old: Raw | None = None
    user: str = ""
    groups: frozenset[str] = frozenset()
    manager: str = ""
    answers: Mapping[Question, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request, with the problems, the patch and the warnings of the review.

    Attributes
    ----------
    problems
        The reasons for a denial; empty if no problem was found.
    rests_on
        The objects that the problems depend on; if these objects change, the response may change.
    questions
        The questions that must be answered before the request can be allowed.

    """

    problems: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    rests_on: tuple[Ref, ...] = ()
    questions: tuple[Question, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the request is allowed."""
        return not self.problems and not self.questions


def read_body(body: bytes) -> Request:
    """Parse an AdmissionReview and return its request; raises MalformedReview.

    JSON with duplicate field names or invalid constants (NaN) is rejected, because the API server
    could decode it differently. Raises TooLarge if the body has too many values.
    """
    num_values = count_values(body)
    if num_values > MAX_VALUES_OF_REVIEW:
        raise TooLarge(f"has {num_values} values: send at most {MAX_VALUES_OF_REVIEW}")
    try:
        found = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as e:
        raise MalformedReview(str(e) or "nested too deeply") from e
    return read_review(found)


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def read_fields(pairs: list[tuple[str, Any]]) -> Raw:
    """Build a JSON object in linear time; raises ValueError for a duplicate field name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"{quote(twice)} occurs twice in one object")
    return found


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=read_fields)


def read_review(body: object) -> Request:
    """Return the request in a decoded AdmissionReview; raises MalformedReview."""
    if not isinstance(body, dict):
        raise MalformedReview("the body is not an object: send an AdmissionReview")
    request = body.get("request")
    uid = request.get("uid") if isinstance(request, dict) else None
    uid = uid if isinstance(uid, str) else ""
    if body.get("kind") != KIND or body.get("apiVersion") != API_VERSION:
        seen = "/".join(
            str(value)[:_SHOWN] if isinstance(value, str | None) else quote(value)
            for value in (body.get("apiVersion"), body.get("kind"))
        )
        raise MalformedReview(f"{seen} is not supported: send {API_VERSION}/{KIND}", uid)
    if not isinstance(request, dict) or not uid:
        raise MalformedReview("request: is missing or has no uid", uid)
    resource = request.get("resource")
    if not isinstance(resource, dict):
        raise MalformedReview("request.resource: is missing", uid)
    user = request.get("userInfo")
    user = user if isinstance(user, dict) else {}
    groups = user.get("groups")
    options = request.get("options")
    manager = options.get("fieldManager") if isinstance(options, dict) else None
    operation = str(request.get("operation"))
    try:
        action = Action(operation)
    except ValueError as e:
        problem = f"request.operation: {operation[:_SHOWN]!r} is not one of CREATE, UPDATE, DELETE"
        raise MalformedReview(problem, uid) from e
    return Request(
        uid=uid,
        action=action,
        resource=Resource(
            *(_read_text(resource, name, uid) for name in ("group", "version", "resource"))
        ),
        name=_read_text(request, "name", uid),
        namespace=_read_text(request, "namespace", uid),
        obj=_read_object(request, "object", uid),
        old=_read_object(request, "oldObject", uid),
        user=_read_text(user, "username", uid),
        groups=frozenset(str(group) for group in groups)
        if isinstance(groups, list)
        else frozenset(),
        manager=manager if isinstance(manager, str) else "",
    )


def _read_text(fields: Raw, name: str, uid: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedReview(f"request: {name} is not a string", uid)
    return value


def _read_object(request: Raw, name: str, uid: str) -> Raw | None:
    value = request.get(name)
    if value is not None and not isinstance(value, dict):
        raise MalformedReview(f"request.{name}: is not an object", uid)
    return value


def encode_response(uid: str, response: Response) -> Raw:
    """Return the AdmissionReview that contains the response to a request."""
    answer: Raw = {"uid": uid, "allowed": response.allowed}
    if response.warnings:
        answer["warnings"] = list(response.warnings)
    if not response.allowed:
        message = "; ".join(response.problems or ("the API server did not answer all questions",))
        answer["status"] = {"status": "Failure", "code": 403, "reason": "Forbidden"}
        answer["status"]["message"] = message
    elif response.patch:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = b64encode(json.dumps(list(response.patch)).encode()).decode()
    return {"apiVersion": API_VERSION, "kind": KIND, "response": answer}
