from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.admission.review import (
    Action,
    MalformedReview,
    Request,
    Resource,
    Response,
    encode_response,
    read_body,
    read_review,
)
from optsched.admission.services import SERVICE_OF, SERVICES, review
from optsched.admission.world import Settings
from optsched.api.kinds import find_kind
from optsched.api.queue import parse_queue
from tests.admission.kit import Answers, ask, job, patched, world
from tests.support.effort import num_examples
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared

DENIED = {
    "duplicatedPolicyEvent-webhook-deny": "duplicate event PodFailed  across different policy",
    "duplicatedTaskName-webhook-deny": "duplicated task name task-1",
    "minAvailable-webhook-deny": (
        "job 'minAvailable' should not be greater than total replicas in tasks"
    ),
}


@cache
def of_users() -> list[Any]:
    found = []
    for path in found_in_shared("manifests/*/**/*.yaml"):
        text = path.read_text(encoding="utf-8")
        if "volcano.sh/v1" not in text or "integrations/argo" in str(path):
            continue
        for number, obj in enumerate(filter(None, yaml.safe_load_all(text))):
            kind = find_kind(obj["apiVersion"], obj["kind"])
            if any(service.kind == kind for service in SERVICES):
                found.append(pytest.param(path.stem, obj, id=f"{path.stem}-{number}"))
    return found


@cache
def queues_of_users() -> list[Any]:
    """Return every queue that a manifest of users creates or names."""
    objects = [each.values[1] for each in of_users()]
    made = [obj for obj in objects if obj["kind"] == "Queue"]
    named = {obj["spec"].get("queue", "default") for obj in objects if obj["kind"] != "Queue"}
    named |= {"compute", "data-processing", "test"}
    bare = [{"metadata": {"name": name}} for name in named]
    return [parse_queue(obj)[0] for obj in (*bare, *made)]


@pytest.mark.parametrize(("name", "obj"), of_users())
def test_manifests_of_users_are_taken_but_for_those_that_are_wrong(name: str, obj: Any):
    shared("manifests")
    around = world(*queues_of_users())
    filled = obj
    for service in SERVICES:
        if service.kind != find_kind(obj["apiVersion"], obj["kind"]):
            continue
        response = ask(service.path, filled, around)
        if service.is_mutating:
            assert response.allowed
            filled = patched(filled, response)
        elif name in DENIED:
            assert [p for p in response.problems if p.startswith(DENIED[name])]
        else:
            assert response.problems == ()


def test_there_are_manifests_of_users():
    shared("manifests")
    assert len(of_users()) >= 55
    assert {each.values[0] for each in of_users()} >= DENIED.keys()


def test_paths_are_those_that_installations_name():
    assert {
        *("/jobs/mutate", "/jobs/validate", "/podgroups/mutate", "/podgroups/validate"),
        *("/pods/validate", "/pods/mutate", "/queues/mutate", "/queues/validate"),
        *("/hypernodes/validate", "/jobflows/validate", "/cronjobs/validate"),
    } <= SERVICE_OF.keys()
    assert len({service.name for service in SERVICES}) == len(SERVICES)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.path)
def test_what_a_path_is_not_there_for_is_denied(service: Any):
    kind = service.kind
    resource = Resource(kind.group, kind.version, kind.plural)
    right = Request("u", service.actions[0], resource, obj={"metadata": {"name": "a"}})
    later = replace(right, resource=replace(resource, version="v9"))
    empty = replace(right, obj=None)
    for wrong in (later, empty):
        assert not review(service, wrong, world(), Settings()).allowed
    assert (
        review(service, later, world(), Settings())
        .problems[0]
        .startswith(f"{service.path} reviews {kind.plural}.{kind.version}")
    )
    if Action.UPDATE in service.actions:
        changed = replace(right, action=Action.UPDATE)
        assert review(service, changed, world(), Settings()).problems == (
            f"{service.path} needs the old object",
        )
    if Action.DELETE in service.actions:
        nameless = replace(right, action=Action.DELETE)
        assert review(service, nameless, world(), Settings()).problems == (
            f"{service.path} needs the name of the object to delete",
        )
    for action in set(Action) - set(service.actions):
        assert not review(service, replace(right, action=action), world(), Settings()).allowed


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "a", "1", "*", "PodFailed"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("name", "replicas", "template", "tasks", "spec", "containers", "resources"),
                    *(
                        "requests",
                        "limits",
                        "nvidia.com/gpu",
                        "policies",
                        "event",
                        "events",
                        "plugins",
                    ),
                    *("dependsOn", "volumes", "minAvailable", "partitionPolicy", "queue", "parent"),
                    *("flows", "jobTemplate", "schedule", "members", "metadata", "annotations"),
                    *("topologyPolicy", "timeZone", "deserved", "env", "ports", "volumeMounts"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.path)
@settings(max_examples=num_examples(50))
@given(spec=JUNK, old=JUNK, meta=JUNK)
def test_no_object_breaks_a_review(service: Any, spec: Any, old: Any, meta: Any):
    kind = service.kind
    resource = Resource(kind.group, kind.version, kind.plural)
    named = {"metadata": {**(meta if isinstance(meta, dict) else {}), "name": "a"}}
    for action in service.actions:
        request = Request(
            "u",
            action,
            resource,
            name="a",
            obj={**named, "spec": spec},
            old={**named, "spec": old} if action is not Action.CREATE else None,
        )
        response = review(service, request, world(), Settings())
        json.dumps(encode_response("u", response))


# --- the envelope ---------------------------------------------------------------------------------


def body(**parts: Any) -> dict[str, Any]:
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "batch.volcano.sh", "version": "v1alpha1", "resource": "jobs"},
        "name": "j",
        "namespace": "ml",
        "object": job(),
        "oldObject": None,
        "userInfo": {"username": "ann", "groups": ["lab-a", "system:authenticated"]},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **parts},
    }


def test_a_review_is_read():
    request = read_review(body())
    assert (request.uid, request.action, request.user) == ("u-1", Action.CREATE, "ann")
    assert str(request.resource) == "jobs.v1alpha1.batch.volcano.sh"
    assert (request.name, request.namespace, request.old) == ("j", "ml", None)
    assert request.groups == {"lab-a", "system:authenticated"}


@pytest.mark.parametrize(
    ("wrong", "problem", "uid"),
    [
        ([], "the body is not an object: send an AdmissionReview", ""),
        (
            {**body(), "apiVersion": "admission.k8s.io/v1beta1"},
            "admission.k8s.io/v1beta1/AdmissionReview is not supported: send "
            "admission.k8s.io/v1/AdmissionReview",
            "u-1",
        ),
        ({**body(), "request": None}, "request: is missing or has no uid", ""),
        (body(uid=7), "request: is missing or has no uid", ""),
        (body(resource=None), "request.resource: is missing", "u-1"),
        (body(name=7), "request: name is not a string", "u-1"),
        (body(object=[]), "request.object: is not an object", "u-1"),
        (
            body(operation="CONNECT"),
            "request.operation: 'CONNECT' is not one of CREATE, UPDATE, DELETE",
            "u-1",
        ),
    ],
)
def test_what_is_no_review_is_named(wrong: Any, problem: str, uid: str):
    with pytest.raises(MalformedReview) as caught:
        read_review(wrong)
    assert (caught.value.problem, caught.value.uid) == (problem, uid)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"{} {}", "Extra data: line 1 column 4 (char 3)"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": {"uid": 1, "uid": 2}}', '"uid" occurs twice in one object'),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("\ufeff{}".encode(), "Expecting value: line 1 column 1 (char 0)"),
        (b"7", "the body is not an object: send an AdmissionReview"),
        (b"null", "the body is not an object: send an AdmissionReview"),
    ],
)
def test_what_is_no_json_is_named(text: bytes, problem: str):
    with pytest.raises(MalformedReview) as caught:
        read_body(text)
    assert caught.value.problem == problem


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000])
def test_what_nobody_could_read_is_refused(text: bytes):
    with pytest.raises(MalformedReview):
        read_body(text)


def decided(text: bytes) -> bool:
    """Return whether a request body is admitted."""
    try:
        request = read_body(text)
    except MalformedReview:
        return False
    request = replace(request, answers=Answers())
    response = review(SERVICE_OF["/jobs/validate"], request, world(), Settings())
    json.dumps(encode_response(request.uid, response))
    return response.allowed


@given(end=st.integers(0, 2000), start=st.integers(0, 50))
def test_part_of_a_review_lets_nothing_in(end: int, start: int):
    whole = json.dumps(body()).encode()
    part = whole[start:end]
    assert decided(whole)
    assert decided(part) == (part == whole)


ENVELOPE = [
    *(("apiVersion",), ("kind",), ("request",)),
    *(("request", name) for name in ("uid", "operation", "resource", "name", "namespace")),
    *(("request", name) for name in ("oldObject", "userInfo", "subResource", "options")),
    *(("request", "resource", name) for name in ("group", "version", "resource")),
    *(("request", "userInfo", name) for name in ("username", "groups", "extra")),
]


@settings(max_examples=num_examples(300))
@given(path=st.sampled_from(ENVELOPE), value=JUNK, is_gone=st.booleans())
def test_whatever_is_around_a_bad_job_it_is_not_let_in(
    path: tuple[str, ...], value: Any, is_gone: bool
):
    found = body(object=job(minAvailable=9))
    *steps, last = path
    place: Any = found
    for step in steps:
        place = place[step]
    if is_gone:
        place.pop(last, None)
    else:
        place[last] = value
    assert not decided(json.dumps(found).encode())


@settings(max_examples=num_examples(200))
@given(value=JUNK, name=st.sampled_from(["metadata", "spec", "tasks"]))
def test_a_job_of_the_wrong_types_is_not_let_in(value: Any, name: str):
    obj = job()
    places = {"metadata": obj, "spec": obj, "tasks": obj["spec"]}
    places[name][name] = value
    found = body(object=obj)
    # The name of an object comes from the request, so its metadata may have any value.
    assert decided(json.dumps(found).encode()) == (name == "metadata")


def test_answers():
    allowed = encode_response("u", Response(warnings=("w",), patch=({"op": "add"},)))
    assert allowed["response"].pop("patch")
    assert allowed["response"] == {
        "uid": "u",
        "allowed": True,
        "warnings": ["w"],
        "patchType": "JSONPatch",
    }
    patch = encode_response("u", Response(patch=({"op": "add"},)))["response"]["patch"]
    assert json.loads(b64decode(patch)) == [{"op": "add"}]
    denied = encode_response("u", Response(problems=("a", "b"), patch=({"op": "add"},)))["response"]
    assert denied["allowed"] is False
    assert denied["status"]["message"] == "a; b"
    assert "patch" not in denied
