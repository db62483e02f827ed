"""The webhook with each object kind: creation, update and deletion of old and new objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.admission.kit import job, task
from tests.support.api import Refused, until
from tests.support.webhooks import make_namespace, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.api.kinds import Kind
    from optsched.local.plane import ControlPlane
    from tests.support.api import Api
    from tests.support.webhooks import Webhook

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("webhook-kinds")]

SPACE = "kinds"
Raw = dict[str, Any]


def cycle(*names: str) -> list[Raw]:
    """Return flows that wait for each other in a cycle."""
    waits = zip(names, (*names[1:], names[0]), strict=True)
    return [{"name": name, "dependsOn": {"targets": [other]}} for name, other in waits]


def members(pattern: str) -> list[Raw]:
    return [{"type": "Node", "selector": {"regexMatch": {"pattern": pattern}}}]


FINE: dict[Kind, Raw] = {
    kinds.JOB: job()["spec"],
    kinds.CRON_JOB: {"schedule": "0 3 * * *", "jobTemplate": {"spec": job()["spec"]}},
    kinds.JOB_FLOW: {"flows": [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}]},
    kinds.JOB_TEMPLATE: job()["spec"],
    kinds.HYPER_NODE: {"tier": 1, "members": members("rack-1-.*")},
    kinds.QUEUE: {"deserved": {"cpu": "8"}},
    kinds.POD_GROUP: {"minMember": 1, "queue": "default"},
}
CHANGED: dict[Kind, Raw] = {
    kinds.JOB: {"minAvailable": 1},
    kinds.CRON_JOB: {"schedule": "0 4 * * *", "suspend": True},
    kinds.JOB_FLOW: {"jobRetainPolicy": "delete"},
    kinds.JOB_TEMPLATE: {"minAvailable": 1},
    kinds.HYPER_NODE: {"members": members("rack-2-.*")},
    kinds.QUEUE: {"weight": 3, "guarantee": {"resource": {"cpu": "4"}}},
    kinds.POD_GROUP: {"minMember": 2},
}
WRONG: dict[Kind, tuple[Raw, str]] = {
    kinds.JOB: ({"maxRetry": 7}, "job updates may not change fields other than minAvailable"),
    kinds.CRON_JOB: ({"schedule": "61 * * * *"}, "schedule is not a valid cron expression"),
    kinds.JOB_FLOW: (
        {"flows": cycle("a", "b")},
        "jobflow flow is not dag: spec.flows: a waits for b waits for a",
    ),
    kinds.JOB_TEMPLATE: (
        {"minAvailable": 9},
        "job 'minAvailable' should not be greater than total replicas in tasks",
    ),
    kinds.HYPER_NODE: ({"members": members("(")}, "is not a regular expression"),
    kinds.QUEUE: (
        {"guarantee": {"resource": {"cpu": "16"}}},
        "deserved[cpu]=8 must be >= guarantee[cpu]=16",
    ),
    kinds.POD_GROUP: ({"queue": "gone"}, "unable to find queue"),
}
LATER_WRONG: dict[Kind, Raw] = {
    **{kind: {**FINE[kind], **spec} for kind, (spec, _) in WRONG.items()},
    kinds.JOB: job(task(minAvailable=9), minAvailable=9)["spec"],
}
"""Stored before anybody looked, and refused from then on."""


def put(api: Api, kind: Kind, name: str, spec: Raw) -> str:
    """Create an object and return its path."""
    obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    api.post(collection_path(kind, SPACE if kind.namespaced else None), {**obj, "spec": spec})
    return object_path(kind, SPACE if kind.namespaced else None, name)


def denial(action: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        action()
    return str(caught.value.args[2])


@pytest.fixture(scope="module")
def strange(api: Api) -> dict[Kind, str]:
    """Return the paths of objects that were stored before the webhook, which would refuse them."""
    make_namespace(api, SPACE)
    return {kind: put(api, kind, "strange", spec) for kind, spec in LATER_WRONG.items()}


@pytest.fixture(scope="module")
def webhook(
    strange: dict[Kind, str],
    control_plane: ControlPlane,
    api: Api,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Webhook]:
    """Yield a webhook that started after these objects were stored."""
    folder = tmp_path_factory.mktemp("kinds")
    with serving(api, control_plane.kubeconfig, folder) as webhook:
        yield webhook


@pytest.mark.parametrize("kind", FINE, ids=lambda kind: kind.kind)
def test_a_kind_is_made_changed_and_deleted(webhook: Webhook, api: Api, kind: Kind):
    path = put(api, kind, "fine", FINE[kind])
    api.patch(path, {"metadata": {"annotations": {"example.com/a": "b"}}})
    api.patch(path, {"spec": CHANGED[kind]})
    spec, sentence = WRONG[kind]
    before = api.get(path)["spec"]
    assert sentence in denial(lambda: api.patch(path, {"spec": spec}))
    assert api.get(path)["spec"] == before
    api._call("DELETE", path)


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client", "server"])
def test_a_job_is_applied_again_and_with_other_replicas(
    webhook: Webhook, api: Api, control_plane: ControlPlane, how: tuple[str, ...]
):
    """As GitOps does: the defaults that admission has set are missing in the applied manifest."""
    name = f"again-{len(how)}"
    manifest = {**job(task(replicas=2)), "metadata": {"name": name, "namespace": SPACE}}
    path = object_path(kinds.JOB, SPACE, name)

    def apply(*more: str) -> Raw:
        text = json.dumps(manifest)
        control_plane.kubectl("apply", *how, *more, "-f", "-", input=text)
        return api.get(path)

    created = apply()
    assert "minAvailable" in created["spec"]
    assert apply()["metadata"]["generation"] == created["metadata"]["generation"]
    for replicas in (3, 1):
        manifest["spec"]["tasks"][0]["replicas"] = replicas
        apply("--dry-run=server")
        assert apply()["spec"]["tasks"][0]["replicas"] == replicas
    api._call("DELETE", path)


@pytest.mark.parametrize("kind", FINE, ids=lambda kind: kind.kind)
def test_what_was_there_before_may_be_marked_and_deleted_and_no_more(
    webhook: Webhook, api: Api, strange: dict[Kind, str], kind: Kind
):
    path = strange[kind]
    marks = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/e"]}
    assert api.patch(path, {"metadata": marks})["metadata"]["labels"] == {"a": "b"}
    if kind == kinds.JOB:
        said = denial(lambda: api.patch(path, {"spec": {"minAvailable": 8}}))
        assert "job 'minAvailable' should not be greater than total replicas in tasks" in said
    api._call("DELETE", path)
    # A terminating object can also lose its finalizers.
    api.patch(path, {"metadata": {"finalizers": None}})
    until(lambda: api.find(path) is None, "it is gone")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (kinds.NODE_SHARD, {"nodesDesired": ["n-1", "n-2"]}),
        (
            kinds.COLOCATION_CONFIGURATION,
            {
                "selector": {"matchLabels": {"app": "web"}},
                "memoryQos": {"highRatio": 100, "lowRatio": 50, "minRatio": 0},
            },
        ),
        (kinds.NUMATOPOLOGY, {"policies": {"CPUManagerPolicy": "static"}}),
        (
            kinds.COMMAND,
            {},
        ),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else "",
)
def test_kinds_that_nobody_reviews_are_taken(webhook: Webhook, api: Api, kind: Kind, spec: Raw):
    obj: Raw = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "taken"}}
    obj |= {"action": "AbortJob", "reason": "why"} if kind == kinds.COMMAND else {"spec": spec}
    api.post(collection_path(kind, SPACE if kind.namespaced else None), obj)
    path = object_path(kind, SPACE if kind.namespaced else None, "taken")
    found = api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert {name: found[name] for name in obj if name != "metadata"} == {
        name: value for name, value in obj.items() if name != "metadata"
    }
    api._call("DELETE", path)
