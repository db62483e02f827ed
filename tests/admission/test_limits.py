"""The cost of a review is linear in its size, whatever it contains, and has a limit.

Costs are steps of the interpreter, not seconds, so that they are equal on every machine.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from optsched.admission.findings import (
    MAX_CLAIMS,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_FIELD_NAME,
    MAX_FINDINGS,
    MAX_FLOWS,
    MAX_MEMBERS,
    MAX_SENTENCE,
    MAX_TASKS,
)
from optsched.admission.review import (
    MAX_VALUES,
    MAX_VALUES_OF_REVIEW,
    Response,
    TemplateVerdict,
    TooLarge,
    count_values,
    encode_response,
    read_body,
    read_fields,
)
from optsched.admission.services import SERVICE_OF, review
from optsched.admission.world import Settings
from optsched.api.job import MAX_PODS
from tests.admission.kit import Answers, container, job, task, template, world

if TYPE_CHECKING:
    from collections.abc import Callable

Raw = dict[str, Any]
SMALL, LARGE = 200, 800
"""Sizes at which costs are compared; quadratic work costs sixteen times as much at the second."""
MOST_TIMES = 5.5


def body(obj: Raw, path: str = "/jobs/validate", **parts: Any) -> bytes:
    kind = SERVICE_OF[path].kind
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
        "name": "j",
        "namespace": "ml",
        "object": obj,
        **parts,
    }
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(whole).encode()


def reviewed(text: bytes, path: str = "/jobs/validate", answers: Any = None) -> Response:
    request = replace(read_body(text), answers=Answers() if answers is None else answers)
    response = review(SERVICE_OF[path], request, world(), Settings())
    assert len(json.dumps(encode_response(request.uid, response))) < 3 * 2**20
    return response


def steps_of(call: Callable[[], object]) -> int:
    """Return the number of Python lines and calls that run during a call."""
    num_steps = 0

    def count(*_: object) -> Any:
        nonlocal num_steps
        num_steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return num_steps


def each(number: int, made: Callable[[int], Any]) -> list[Any]:
    return [made(index) for index in range(number)]


def one_task(**spec: Any) -> Raw:
    return job(task(template=template(**spec)))


HUGE: dict[str, Callable[[int], Raw]] = {
    "tasks without names": lambda n: job(*each(n, lambda _: {"replicas": 1})),
    "tasks of one name": lambda n: job(*each(n, lambda _: task("w"))),
    "tasks": lambda n: job(*each(n, lambda i: task(f"w{i}"))),
    "tasks that wait for unknown ones": lambda n: job(
        *each(n, lambda i: task(f"w{i}", dependsOn={"name": [f"x{i}"]}))
    ),
    "tasks that wait for one another": lambda n: job(
        *each(n, lambda i: task(f"w{i}", dependsOn={"name": [f"w{(i + 1) % n}"]}))
    ),
    "partitions": lambda n: job(
        *each(
            n, lambda i: task(f"w{i}", partitionPolicy={"totalPartitions": 2, "partitionSize": 2})
        )
    ),
    "policies": lambda n: job(policies=each(n, lambda _: {})),
    "events": lambda n: job(policies=[{"events": ["PodFailed"] * n, "action": "RestartJob"}]),
    "codes": lambda n: job(policies=each(n, lambda _: {"exitCode": 3, "action": "RestartJob"})),
    "plugins": lambda n: job(plugins={f"p{i}": [] for i in range(n)}),
    "arguments": lambda n: job(plugins={"mpi": [f"--x{i}" for i in range(n)]}),
    "arguments of no type": lambda n: job(plugins={"x" * MAX_FIELD_NAME: [1] * n}),
    "volumes of a job": lambda n: job(volumes=each(n, lambda _: {"mountPath": "/a"})),
    "unknown fields of a pod": lambda n: one_task(**{f"x{i}": 0 for i in range(n)}),
    "unknown fields of a job": lambda n: {"spec": {f"x{i}": 0 for i in range(n)}},
    "containers of one name": lambda n: job(
        task(template=template(*each(min(n, MAX_CONTAINERS), lambda _: container())))
    ),
    "variables": lambda n: job(
        task(template=template(container(env=each(n, lambda _: {"name": "="}))))
    ),
    "claims": lambda n: one_task(
        resourceClaims=each(min(n, MAX_CLAIMS), lambda i: {"name": f"c{i}"})
    ),
    "nothing at all": lambda n: job(*each(n, lambda _: None)),
}


@pytest.mark.parametrize("made", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("path", ["/jobs/validate", "/jobs/mutate"])
def test_cost_is_in_proportion_to_the_body(made: Callable[[int], Raw], path: str) -> None:
    small, large = body(made(SMALL), path), body(made(LARGE), path)
    reviewed(small, path)
    costs = [steps_of(lambda text=text: reviewed(text, path)) for text in (small, large)]  # type: ignore[misc]
    assert costs[1] <= MOST_TIMES * costs[0] + 2000


def test_cost_of_a_change_is_in_proportion_to_the_body() -> None:
    def changed(number: int) -> bytes:
        old, new = (job(*each(number, lambda i: task(f"w{i}")), plugins={"e": []}) for _ in "ab")
        new["spec"]["tasks"][-1]["template"]["spec"]["containers"][0]["image"] = "other"
        return body(new, operation="UPDATE", oldObject=old)

    costs = [steps_of(lambda n=n: reviewed(changed(n))) for n in (SMALL, LARGE)]  # type: ignore[misc]
    assert costs[1] <= MOST_TIMES * costs[0]


class Counted(str):
    """A text that counts its comparisons."""

    __slots__ = ()
    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.num_compared += 1
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_a_repeated_name_is_found_in_linear_time() -> None:
    """An object of 285 kB with one repeated name once took 16 s."""
    names = [Counted(f"n{index:05d}") for index in range(20_000)]
    Counted.num_compared = 0
    with pytest.raises(ValueError, match='"n19999" occurs twice in one object'):
        read_fields([(name, 0) for name in [*names, Counted("n19999")]])
    assert Counted.num_compared < 100_000


def test_problems_and_warnings_are_limited() -> None:
    response = reviewed(body(job(policies=[{}] * 500)))
    assert len(response.problems) == MAX_FINDINGS + 1
    assert response.problems[-1] == f"only the first {MAX_FINDINGS} problems are listed"
    text = body(job())
    (question,) = reviewed(text, answers={}).questions
    labels = tuple((f"template.labels[{index}]", "Invalid value") for index in range(500))
    denied = reviewed(text, answers={question: TemplateVerdict(labels)})
    assert len(denied.problems) == MAX_FINDINGS + 1
    strange = tuple(f'unknown field "template.x{index}"' for index in range(500))
    warned = reviewed(text, answers={question: TemplateVerdict(warnings=strange)})
    assert len(warned.warnings) == MAX_FINDINGS
    long = reviewed(body(job(task("x" * 10_000))))
    assert max(len(problem) for problem in long.problems) == MAX_SENTENCE + 1


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 0


MANY: dict[str, tuple[str, Raw, str]] = {
    "tasks": (
        "/jobs/validate",
        job(*[{}] * (MAX_TASKS + 1)),
        f"spec.tasks: Too many: {MAX_TASKS + 1}: must have at most {MAX_TASKS} items",
    ),
    "containers": (
        "/jobs/validate",
        job(task(template=template(*[container()] * (MAX_CONTAINERS + 1)))),
        f"spec.tasks[0].template.spec.containers: Too many: {MAX_CONTAINERS + 1}: "
        f"must have at most {MAX_CONTAINERS} items",
    ),
    "claims": (
        "/jobs/validate",
        one_task(resourceClaims=[{"name": "c"}] * (MAX_CLAIMS + 1)),
        f"spec.tasks[0].template.spec.resourceClaims: Too many: {MAX_CLAIMS + 1}: "
        f"must have at most {MAX_CLAIMS} items",
    ),
    "pods": (
        "/jobs/validate",
        job(task("a", MAX_PODS), task("b", 1)),
        f"spec.tasks: {MAX_PODS + 1} pods are too many: all tasks together may have at most "
        f"{MAX_PODS} replicas",
    ),
    "flows": (
        "/jobflows/validate",
        {"metadata": {"name": "f"}, "spec": {"flows": [{"name": "a"}] * (MAX_FLOWS + 1)}},
        f"spec.flows: Too many: {MAX_FLOWS + 1}: must have at most {MAX_FLOWS} items",
    ),
    "members": (
        "/hypernodes/validate",
        {"metadata": {"name": "h"}, "spec": {"members": [{}] * (MAX_MEMBERS + 1)}},
        f"spec.members: Too many: {MAX_MEMBERS + 1}: must have at most {MAX_MEMBERS} items",
    ),
    "values": (
        "/podgroups/validate",
        {"metadata": {"name": "g"}, "spec": [0] * MAX_VALUES},
        f"object has too many values: at most {MAX_VALUES} are allowed",
    ),
    "depth": (
        "/queues/validate",
        {"spec": nested(MAX_DEPTH)},
        f"object is nested too deeply: at most {MAX_DEPTH} levels are allowed",
    ),
    "names": (
        "/cronjobs/validate",
        {"metadata": {"labels": {"x" * (MAX_FIELD_NAME + 1): "v"}}},
        f"object: a field name has {MAX_FIELD_NAME + 1} characters: {'x' * 60}…: "
        f"at most {MAX_FIELD_NAME} are allowed",
    ),
}


@pytest.mark.parametrize(("path", "obj", "problem"), MANY.values(), ids=MANY)
def test_what_is_too_much_is_denied_with_its_limit(path: str, obj: Raw, problem: str) -> None:
    assert problem in reviewed(body(obj, path), path).problems


def test_what_is_just_within_the_limits_is_taken() -> None:
    pod = template(*each(50, lambda i: container(name=f"c{i}")))
    large = job(*each(20, lambda i: task(f"w{i}", MAX_PODS // 20, template=pod)))
    large["metadata"]["managedFields"] = [nested(100), {"x" * 1000: 0}]
    large["metadata"]["annotations"] = {f"{'a' * 253}/{'b' * 63}": "c"}
    assert reviewed(body(large)) == Response()


def test_a_text_with_too_many_values_is_not_decoded() -> None:
    many = b"[" + b"[]," * MAX_VALUES_OF_REVIEW + b"[]]"
    with pytest.raises(TooLarge, match=f"send at most {MAX_VALUES_OF_REVIEW}"):
        read_body(many)
    quoted = b'["' + b'","' * (2 * MAX_VALUES_OF_REVIEW + 1) + b'"]'
    with pytest.raises(TooLarge):
        read_body(quoted)
    # Brackets inside strings are not values.
    shell = json.dumps({"args": ['\\", [{,' * 200_000]}).encode()
    assert count_values(shell) < 5


@pytest.mark.parametrize("digits", ["9" * 5000, "-" + "9" * 5000, "1" * 5000 + "%"])
def test_numbers_of_many_digits_are_denied(digits: str) -> None:
    budget = {"volcano.sh/jdb-min-available": digits}
    bare = {"metadata": {"annotations": budget}, "spec": {"schedulerName": "volcano"}}
    assert not reviewed(body(bare, "/pods/validate"), "/pods/validate").allowed


@pytest.mark.parametrize(
    "bare",
    [
        {"spec": {"schedulerName": {"name": "volcano"}}},
        {"spec": {"schedulerName": ["volcano"]}},
        {
            "metadata": {"annotations": {"volcano.sh/jdb-min-available": {"least": 1}}},
            "spec": {"schedulerName": "volcano"},
        },
    ],
    ids=["mapping", "list", "budget"],
)
def test_values_of_other_types_are_denied_without_an_error(bare: dict[str, Any]) -> None:
    """An API server sends only strings here, but other clients can reach the webhook too."""
    found = reviewed(body(bare, "/pods/validate"), "/pods/validate")
    assert not found.allowed
    assert "string" in found.problems[0]
