"""Helpers that create worlds and admission requests."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched.admission.review import (
    AccessQuestion,
    Action,
    Request,
    Resource,
    Response,
    TemplateQuestion,
    TemplateVerdict,
)
from optsched.admission.services import SERVICE_OF, review
from optsched.admission.world import Settings
from optsched.api.queue import Queue, parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Raw = dict[str, Any]
NAMESPACE = "ml"


class Answers(dict[Any, Any]):
    """API server responses with the same verdict on every pod template with containers.

    tests/e2e/test_pod_templates.py uses a real API server. `is_administrator` also grants every
    access.
    """

    def __init__(
        self,
        answers: Any = (),
        verdict: TemplateVerdict = TemplateVerdict(),  # noqa: B008  it is frozen
        *,
        is_administrator: bool = False,
    ) -> None:
        super().__init__(answers)
        self._verdict = verdict
        self._is_administrator = is_administrator

    def __contains__(self, question: object) -> bool:
        is_access = isinstance(question, AccessQuestion) and self._is_administrator
        return is_access or isinstance(question, TemplateQuestion) or super().__contains__(question)

    def get(self, question: Any, default: Any = None) -> Any:
        if question not in self:
            return default
        return self[question]

    def __missing__(self, question: object) -> Any:
        if not isinstance(question, TemplateQuestion):
            return True
        spec = question.template.get("spec")
        if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
            return TemplateVerdict((("template.spec.containers", "Required value"),))
        return self._verdict


@dataclass(frozen=True)
class StaticWorld:
    """A cluster view with fixed values."""

    queue_of: Mapping[str, Queue] = field(default_factory=dict)
    annotations_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    priority_classes: frozenset[str] = frozenset()
    default_class: str | None = None
    template_queues: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def queue(self, name: str) -> Queue | None:
        return self.queue_of.get(name)

    def queues(self) -> Iterable[Queue]:
        return self.queue_of.values()

    def children(self, name: str) -> tuple[Queue, ...]:
        return tuple(queue for queue in self.queue_of.values() if queue.parent == name)

    def namespace_annotations(self, name: str) -> Mapping[str, str]:
        return self.annotations_of.get(name, {})

    def has_priority_class(self, name: str) -> bool:
        return name in self.priority_classes

    def default_priority_class(self) -> str | None:
        return self.default_class

    def template_queue(self, namespace: str, name: str) -> str | None:
        return self.template_queues.get((namespace, name))


def queue(name: str, state: str = "Open", *, pods: int = 0, **spec: Any) -> Queue:
    """Return a queue. Its annotations may be among the fields of `spec`."""
    annotations = spec.pop("annotations", {})
    allocated = {"pods": str(pods)} if pods else {}
    found, errors = parse_queue(
        {
            "metadata": {"name": name, "annotations": annotations},
            "spec": spec,
            "status": {"state": state, "allocated": allocated},
        }
    )
    assert found is not None, errors
    return found


def world(*queues: Queue, **parts: Any) -> StaticWorld:
    """Return the built-in queues, the given queues, and other parts of a `StaticWorld`."""
    given = {each.name: each for each in queues}
    builtin = {name: queue(name) for name in ("default", "root")}
    return StaticWorld(queue_of={**builtin, **given}, **parts)


def container(**parts: Any) -> Raw:
    return {"name": "c", "image": "i", **parts}


def template(*containers: Raw, **spec: Any) -> Raw:
    return {"spec": {"containers": list(containers or [container()]), **spec}}


def task(name: str = "w", replicas: int = 2, **parts: Any) -> Raw:
    return {"name": name, "replicas": replicas, "template": template(), **parts}


def job(*tasks: Raw, name: str = "j", **spec: Any) -> Raw:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"tasks": list(tasks or [task()]), **spec},
    }


def ask(
    path: str,
    obj: Raw | None,
    around: StaticWorld | None = None,
    old: Raw | None = None,
    settings: Settings | None = None,
    **parts: Any,
) -> Response:
    """Return the response to a request that creates, updates or deletes an object."""
    kind = SERVICE_OF[path].kind
    is_administrator = "user" not in parts and "answers" not in parts
    verdict = parts.pop("verdict", TemplateVerdict())
    answers = parts.pop("answers", ())
    parts["answers"] = Answers(answers, verdict, is_administrator=is_administrator)
    action = Action.DELETE if obj is None else Action.UPDATE if old else Action.CREATE
    meta = (obj or old or {}).get("metadata") or {}
    request = Request(
        uid="u",
        action=action,
        resource=Resource(kind.group, kind.version, kind.plural),
        name=meta.get("name") or "",
        namespace=meta.get("namespace", NAMESPACE),
        obj=deepcopy(obj),
        old=deepcopy(old),
        **parts,
    )
    return review(SERVICE_OF[path], request, around or world(), settings or Settings())


def patched(obj: Raw, response: Response) -> Raw:
    """Return the object after a response's patch, whose operations must all be `add`."""
    found = deepcopy(obj)
    for operation in response.patch:
        assert operation["op"] == "add"
        *steps, last = [
            step.replace("~1", "/").replace("~0", "~") for step in operation["path"][1:].split("/")
        ]
        place: Any = found
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = operation["value"]
    return found


def made(path: str, obj: Raw, around: StaticWorld | None = None, **parts: Any) -> Response:
    """Return the validating response for an object that the mutating webhook has completed."""
    filled = ask(path, obj, around, **parts)
    assert filled.allowed
    return ask(path.replace("/mutate", "/validate"), patched(obj, filled), around, **parts)
