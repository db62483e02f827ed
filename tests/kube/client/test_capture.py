from __future__ import annotations

import asyncio
from typing import Any

import pytest

from optsched.api.kinds import HYPER_NODE, QUEUE
from optsched.formats.snapshots.assembly import READ_KINDS, assemble
from optsched.kube.client import client as requests
from optsched.kube.client.capture import capture
from optsched.kube.client.errors import Expired, Forbidden, NotFound
from tests.formats.objects import group, node, pod, queue, thing
from tests.kube.fakes import FakeApi

NOW_MS = 1_750_000_000_000
EXPIRED = Expired(410, "Expired", "the pages are no longer kept")


def captured(api: FakeApi) -> list[dict[str, Any]]:
    return asyncio.run(capture(api, NOW_MS))


def names(objects: list[dict[str, Any]], kind: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects if obj["kind"] == kind]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [obj for obj in objects if obj["kind"] == kind]
    return found


def test_every_kind_is_listed_and_nothing_else_is_asked_for() -> None:
    api = FakeApi(node(), pod(), group(), queue("q"), thing("v1", "ConfigMap", "c", "ns"))
    found = captured(api)
    assert api.calls == [f"list {kind}" for kind in READ_KINDS]
    assert [obj["kind"] for obj in found] == ["Snapshot", "Node", "Pod", "PodGroup", "Queue"]


def test_it_is_the_snapshot_that_the_objects_make() -> None:
    objects = [
        node("n1", {"zone": "a"}),
        node("n2", unschedulable=True),
        group("g", {"minMember": 2, "queue": "q"}),
        queue("q", weight=3),
        thing("scheduling.k8s.io/v1", "PriorityClass", "high", value=7),
        *(pod(f"p{i}", {"priorityClassName": "high"}) for i in range(3)),
    ]
    api = FakeApi(*objects)
    there = [api.objects[ref] for ref in api.objects]
    found = assemble(captured(api))
    assert found.problems == ()
    assert found.snapshot == assemble(there, taken_ms=NOW_MS).snapshot
    assert found.snapshot.taken_ms == NOW_MS


def test_annotations_that_only_a_dump_may_have_are_left_out() -> None:
    theirs = {
        "optsched.io/waiting-since": "2001-01-01T00:00:00Z",
        "optsched.io/problem": "Gated: no",
        "optsched.io/owner": "Job/other",
        "kept": "x",
    }
    found = captured(FakeApi(pod("p", annotations=theirs), group("g", annotations=theirs)))
    assert only(found, "Pod")["metadata"]["annotations"] == {"kept": "x"}
    assert only(found, "PodGroup")["metadata"]["annotations"] == {"kept": "x"}


def test_lists_come_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_SIZE", 2)
    api = FakeApi(*(node(f"n{i}") for i in range(5)))
    assert names(captured(api), "Node") == ["n0", "n1", "n2", "n3", "n4"]
    assert api.calls.count("list Node") == 3


def test_a_list_whose_pages_are_gone_is_begun_anew() -> None:
    api = FakeApi(node("n1"))
    api.refuse("list", EXPIRED, EXPIRED)
    assert names(captured(api), "Node") == ["n1"]
    api.refuse("list", EXPIRED, EXPIRED, EXPIRED)
    with pytest.raises(Expired):
        captured(api)


def test_kinds_that_are_not_installed() -> None:
    absent = NotFound(404, "NotFound", "no such kind")
    api = FakeApi()
    api.refuse("list", *(absent if kind == HYPER_NODE else None for kind in READ_KINDS))
    assert [obj["kind"] for obj in captured(api)] == ["Snapshot"]
    api.refuse("list", *(absent if kind == QUEUE else None for kind in READ_KINDS))
    with pytest.raises(NotFound):
        captured(api)


def test_what_may_not_be_read_is_an_error() -> None:
    api = FakeApi()
    api.refuse("list", Forbidden(403, "Forbidden", "you may not list nodes"))
    with pytest.raises(Forbidden, match="you may not list nodes"):
        captured(api)


def test_noise_and_what_containers_run_is_left_out() -> None:
    container = {
        "name": "main",
        "image": "train",
        "resources": {"requests": {"cpu": "1"}},
        "ports": [{"hostPort": 80}],
    }
    secrets = {"env": [{"name": "PASSWORD", "value": "hunter2"}], "args": ["--key=hunter2"]}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "a": "b"}
    noise = {"managedFields": [{"manager": "kubectl"}], "generation": 3, "uid": "u"}
    spec = {
        "containers": [{**container, **secrets}],
        "initContainers": [{**container, "restartPolicy": "Always", **secrets}],
    }
    found = only(captured(FakeApi(pod("p", spec, annotations=annotations, **noise))), "Pod")
    assert "hunter2" not in str(found)
    assert found["metadata"] == {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "creationTimestamp": "2025-06-15T15:00:00Z",
        "annotations": {"a": "b"},
    }
    assert found["spec"]["containers"] == [container]
    assert found["spec"]["initContainers"] == [{**container, "restartPolicy": "Always"}]
    assert found["spec"]["schedulerName"] == "volcano"


def test_items_say_what_they_are() -> None:
    api = FakeApi(node())
    for obj in api.objects.values():
        del obj["apiVersion"], obj["kind"]
    assert only(captured(api), "Node")["apiVersion"] == "v1"
