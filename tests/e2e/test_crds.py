"""The definitions in deploy/crds before a real API server: what it takes, fills in and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.podgroup import PodGroupCondition, PodGroupPhase, parse_podgroup
from optsched.api.queue import QueueCounts, parse_queue
from optsched.api.serialize import podgroup_status_patch, queue_status_patch
from optsched.local.kubectl import KubectlError
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kubectl = Callable[..., str]

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
API_VERSION = "scheduling.volcano.sh/v1beta1"
NAMESPACE = "crd-test"


@pytest.fixture(scope="module")
def kubectl(control_plane: Any) -> Iterator[Kubectl]:
    run: Kubectl = control_plane.kubectl
    run("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "deploy" / "crds"))
    run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    run("create", "namespace", NAMESPACE)
    yield run
    run("delete", "namespace", NAMESPACE, "--wait=false")


def manifest(kind: str, name: str, **parts: Any) -> str:
    return json.dumps(
        {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, **parts}
    )


def read(kubectl: Kubectl, kind: str, name: str) -> dict[str, Any]:
    return json.loads(kubectl("get", kind, name, "--namespace", NAMESPACE, "--output=json"))


@pytest.fixture
def queue(kubectl: Kubectl) -> Iterator[Callable[..., dict[str, Any]]]:
    """Creates a queue, hands back what the server made of it, and removes it afterwards."""
    made = []

    def create(name: str, **parts: Any) -> dict[str, Any]:
        kubectl("create", "--filename=-", input=manifest("Queue", name, **parts))
        made.append(name)
        return read(kubectl, "queue", name)

    yield create
    for name in made:
        kubectl("delete", "queue", name)


@pytest.mark.parametrize("kind", ["queues", "podgroups"])
def test_the_definitions_are_established_without_complaint(kubectl: Kubectl, kind: str):
    definition = json.loads(kubectl("get", "crd", f"{kind}.scheduling.volcano.sh", "-o", "json"))
    conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_queues_of_the_guides_and_of_crater_are_taken_and_read_back(kubectl: Kubectl):
    shared("manifests")
    files = [
        *found_in_shared("manifests/seeds/*queue*.yaml"),
        *found_in_shared("manifests/crater/queue*.yaml"),
    ]
    arguments = [f"--filename={path}" for path in files]
    kubectl("create", "--validate=warn", *arguments)
    try:
        listed = json.loads(kubectl("get", *arguments, "--output=json"))["items"]
    finally:
        kubectl("delete", *arguments)
    found = {item["metadata"]["name"]: parse_queue(item) for item in listed}
    assert {"ml-training", "training-queue", "team-a1", "q-a2", "q-a2-u7", "q-a3"} <= found.keys()
    assert [errors for _, errors in found.values() if errors] == []
    guaranteed, _ = found["ml-training"]
    assert guaranteed is not None
    assert guaranteed.deserved == {}
    assert guaranteed.effective_deserved == {"cpu": 16000, "memory": 64 * 2**30}


def test_defaults_are_filled_in(queue: Callable[..., dict[str, Any]]):
    assert queue("crd-empty", spec={})["spec"] == {
        "weight": 1,
        "reclaimable": True,
        "dequeueStrategy": "traverse",
    }


def test_nulls_and_zero_status_of_go_clients_are_taken(queue: Callable[..., dict[str, Any]]):
    made = queue(
        "crd-nulls",
        spec={"guarantee": {}, "capability": None, "weight": None},
        status={"allocated": None, "reservation": {}, "state": ""},
    )
    found, errors = parse_queue(made)
    assert errors == ()
    assert found is not None
    assert found.takes_work


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"weight": 70000}, "spec.weight in body should be less than or equal to 65535"),
        ({"priority": -1}, "spec.priority in body should be greater than or equal to 0"),
        ({"capability": {"cpu": "1 Gi"}}, "spec.capability.cpu in body should match"),
        ({"deserved": {"cpu": 1.5}}, "spec.deserved.cpu"),
        ({"dequeueStrategy": "lifo"}, 'supported values: "fifo", "traverse"'),
        ({"parent": "Dept_A"}, "spec.parent in body should match"),
        ({"reclaimable": "yes"}, "spec.reclaimable in body must be of type boolean"),
        ({"capabilty": {"cpu": 1}}, 'unknown field "spec.capabilty"'),
        ({"dra": {"capability": {"h100": {}}}}, "spec.dra.capability.h100.count: Required value"),
    ],
)
def test_bad_queues_are_refused(kubectl: Kubectl, spec: dict[str, Any], complaint: str):
    with pytest.raises(KubectlError) as caught:
        kubectl("create", "--filename=-", input=manifest("Queue", "crd-bad", spec=spec))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (
            {"spec": {"minMember": -1}},
            "spec.minMember in body should be greater than or equal to 0",
        ),
        ({"spec": {"queue": "Team"}}, "spec.queue in body should match"),
        ({"spec": {"networkTopology": {"mode": "firm"}}}, 'supported values: "hard", "soft"'),
        ({"spec": {"subGroupPolicy": [{"subGroupSize": 0}]}}, "subGroupPolicy[0].subGroupSize"),
        ({"status": {"phase": "Sleeping"}}, 'status.phase: Unsupported value: "Sleeping"'),
    ],
)
def test_bad_podgroups_are_refused(kubectl: Kubectl, parts: dict[str, Any], complaint: str):
    with pytest.raises(KubectlError) as caught:
        kubectl(
            "create", "-n", NAMESPACE, "--filename=-", input=manifest("PodGroup", "bad", **parts)
        )
    assert complaint in str(caught.value)


def test_a_queues_status_is_written_apart_and_shown(
    kubectl: Kubectl, queue: Callable[..., dict[str, Any]]
):
    queue("crd-status", spec={"deserved": {"nvidia.com/gpu": 4}, "capability": {"cpu": "64"}})
    patch_status(kubectl, queue_status_patch({"cpu": 32000, "nvidia.com/gpu": 7}, QueueCounts()))
    counts = QueueCounts(running=3, pending=2)
    patch_status(kubectl, queue_status_patch({"cpu": 32000}, counts, previous=["nvidia.com/gpu"]))
    found, errors = parse_queue(read(kubectl, "queue", "crd-status"))
    assert errors == ()
    assert found is not None
    assert (found.status.allocated, found.status.counts) == ({"cpu": 32000}, counts)
    wide = row(kubectl, "queue-v1beta1", "crd-status", "--output=wide")
    assert (wide["WEIGHT"], wide["RUNNING"], wide["PENDING"]) == ("1", "3", "2")
    assert (wide["CPU-ALLOCATED"], wide["CPU-CAPABILITY"], wide["GPU-DESERVED"]) == (
        "32",
        "64",
        "4",
    )
    assert "GPU-CAPABILITY" not in row(kubectl, "q", "crd-status")


def patch_status(kubectl: Kubectl, patch: dict[str, Any]) -> None:
    arguments = ["--subresource=status", "--type=merge", f"--patch={json.dumps(patch)}"]
    kubectl("patch", "queue", "crd-status", *arguments)


def test_a_podgroup_has_no_status_apart_and_shows_its_reason(kubectl: Kubectl):
    spec = {
        "minMember": 4,
        "minTaskMember": {"worker": 3},
        "networkTopology": {"highestTierAllowed": 0},
        "subGroupPolicy": [{"name": "tp", "labelSelector": {"matchLabels": {"a": "b"}}}],
    }
    made = manifest("PodGroup", "full", spec=spec, status={"phase": "", "conditions": None})
    kubectl("create", "-n", NAMESPACE, "--filename=-", input=made)
    condition = PodGroupCondition(
        "Unschedulable", "True", "s-1", 0, "NotEnoughResources", "no room"
    )
    patch = podgroup_status_patch(
        PodGroupPhase.INQUEUE, [condition], running=0, succeeded=0, failed=0
    )
    kubectl("patch", "pg", "full", "-n", NAMESPACE, "--type=merge", f"--patch={json.dumps(patch)}")
    found, errors = parse_podgroup(read(kubectl, "podgroup", "full"))
    assert errors == ()
    assert found is not None
    assert found.queue == "default"
    assert found.sub_groups[0].size == 1
    assert found.status.conditions == (condition,)
    shown = row(kubectl, "podgroup-v1beta1", "full", "--output=wide")
    assert (shown["STATUS"], shown["MINMEMBER"], shown["RUNNINGS"]) == ("Inqueue", "4", "0")
    assert (shown["QUEUE"], shown["REASON"]) == ("default", "NotEnoughResources")


def row(kubectl: Kubectl, kind: str, name: str, *arguments: str) -> dict[str, str]:
    """The one line that `kubectl get` prints, by heading; empty cells count by their position."""
    heading, line = kubectl("get", kind, name, "-n", NAMESPACE, *arguments).splitlines()
    starts = [
        at for at, char in enumerate(heading) if char != " " and heading[at - 1 : at] in ("", " ")
    ]
    ends = [*starts[1:], None]
    return {
        heading[start:end].strip(): line[start:end].strip()
        for start, end in zip(starts, ends, strict=True)
    }
