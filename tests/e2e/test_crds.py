"""The definitions in deploy/crds on a real API server: validation, defaults and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from optsched.api import kinds
from optsched.api.job import parse_job
from optsched.api.jobflow import parse_cronjob, parse_jobflow, parse_jobtemplate
from optsched.api.podgroup import (
    PodGroupCondition,
    PodGroupPhase,
    parse_podgroup,
    podgroup_status_patch,
)
from optsched.api.queue import QueueCounts, parse_queue, queue_status_patch
from optsched.local.kubectl import KubectlError
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kubectl = Callable[..., str]

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("crds")]

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
    """Yield a function that creates a queue and returns it as stored; delete all at the end."""
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
    assert not found.errors


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
    narrow = row(kubectl, "q", "crd-status")
    assert (narrow["CPU-CAPABILITY"], narrow["GPU-DESERVED"]) == ("64", "4")
    assert "RECLAIMABLE" not in narrow


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


PARSE = {
    kinds.JOB: parse_job,
    kinds.CRON_JOB: parse_cronjob,
    kinds.JOB_FLOW: parse_jobflow,
    kinds.JOB_TEMPLATE: parse_jobtemplate,
}


def jobs_of_users() -> list[tuple[kinds.Kind, dict[str, Any]]]:
    """Return the job-related objects in the manifests of users, with unique names."""
    found = []
    for path in found_in_shared("manifests/*/**/*.yaml"):
        text = path.read_text(encoding="utf-8")
        if ".volcano.sh/v1alpha1" not in text:
            continue
        for obj in filter(None, yaml.safe_load_all(text)):
            kind = kinds.find_kind(obj["apiVersion"], obj["kind"])
            if kind in PARSE and kind is not None:
                found.append((kind, obj))
    return [
        (
            kind,
            {**obj, "metadata": {**obj["metadata"], "name": f"u{number}", "namespace": NAMESPACE}},
        )
        for number, (kind, obj) in enumerate(found)
    ]


def test_jobs_of_users_are_taken_and_read_back_as_they_were_written(kubectl: Kubectl):
    shared("manifests")
    objects = jobs_of_users()
    assert {kind for kind, _ in objects} == PARSE.keys()
    assert len(objects) >= 40
    listing = {"apiVersion": "v1", "kind": "List", "items": [obj for _, obj in objects]}
    kubectl("create", "--validate=warn", "--filename=-", input=json.dumps(listing))
    for kind, obj in objects:
        name = f"{kind.plural}.{kind.group}"
        stored = read(kubectl, name, obj["metadata"]["name"])
        parsed, errors = PARSE[kind](stored)
        written, problems = PARSE[kind](obj)
        assert parsed is not None
        assert written is not None
        assert errors == problems == ()
        assert contained(obj["spec"], stored["spec"]) == [], obj["metadata"]
        assert getattr(parsed, "spec", None) == getattr(written, "spec", None)


def contained(written: Any, stored: Any, path: str = "spec") -> list[str]:
    """Return the fields whose stored value differs from the written one; ignore added fields."""
    if isinstance(written, dict) and isinstance(stored, dict):
        return [
            problem
            for name, value in written.items()
            if value is not None
            for problem in contained(value, stored.get(name), f"{path}.{name}")
        ]
    if isinstance(written, list) and isinstance(stored, list) and len(written) == len(stored):
        return [
            problem
            for position, value in enumerate(written)
            for problem in contained(value, stored[position], f"{path}[{position}]")
        ]
    return [] if written == stored else [f"{path}: {written!r} became {stored!r}"]


@pytest.mark.parametrize(
    ("kind", "parts", "complaint"),
    [
        ("Job", {"spec": {"tasks": []}}, "spec.tasks in body should have at least 1 items"),
        (
            "Job",
            {"spec": {"policies": [{"event": "PodLost"}]}},
            'spec.policies[0].event: Unsupported value: "PodLost": supported values: "*", ',
        ),
        (
            "Job",
            {"spec": {"policies": [{"action": "Restart"}]}},
            'spec.policies[0].action: Unsupported value: "Restart"',
        ),
        ("Job", {"spec": {"minAvailabe": 3}}, 'unknown field "spec.minAvailabe"'),
        ("Job", {"spec": {"tasks": [{"name": "Wrk"}]}}, "spec.tasks[0].name in body should match"),
        ("CronJob", {"spec": {"schedule": "@daily"}}, "spec.jobTemplate: Required value"),
    ],
)
def test_bad_jobs_are_refused(kubectl: Kubectl, kind: str, parts: dict[str, Any], complaint: str):
    obj = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": kind, "metadata": {"name": "bad"}}
    with pytest.raises(KubectlError) as caught:
        kubectl("create", "-n", NAMESPACE, "--filename=-", input=json.dumps(obj | parts))
    assert complaint in str(caught.value)


def test_a_jobs_status_is_written_apart_and_shown(kubectl: Kubectl):
    template = {"metadata": {"creationTimestamp": None}, "spec": {"containers": []}}
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "shown", "namespace": NAMESPACE},
        "spec": {
            "minAvailable": 2,
            "tasks": [{"replicas": 3, "template": template}],
            "policies": [{"event": "JobUnknown", "action": "RestartJob"}],
        },
        "status": {"state": {"phase": "Running", "lastTransitionTime": None}},
    }
    kubectl("create", "--validate=warn", "--filename=-", input=json.dumps(job))
    assert "phase" not in read(kubectl, "vj", "shown").get("status", {}).get("state", {})
    status = {
        "state": {"phase": "Pending", "reason": "NotEnoughResources", "message": "2 of 3"},
        "minAvailable": 2,
        "running": 0,
        "runningDuration": "1m14s",
        "taskStatusCount": {"default0": {"phase": {"Pending": 3}}},
        "evictions": 1,
    }
    patch = json.dumps({"status": status})
    arguments = ["--subresource=status", "--type=merge", f"--patch={patch}", "-n", NAMESPACE]
    kubectl("patch", "vcjob", "shown", *arguments)
    stored = read(kubectl, "jobs.batch.volcano.sh", "shown")
    assert stored["status"] == status
    shown = row(kubectl, "vcjob", "shown")
    assert (shown["STATUS"], shown["MINAVAILABLE"], shown["RUNNINGS"]) == ("Pending", "2", "0")
    assert (shown["QUEUE"], shown["REASON"]) == ("default", "NotEnoughResources")
    assert row(kubectl, "vcjob", "shown", "--output=wide")["MESSAGE"] == "2 of 3"
    assert "shown" in kubectl("get", "volcano", "-n", NAMESPACE, "--output=name")


def row(kubectl: Kubectl, kind: str, name: str, *arguments: str) -> dict[str, str]:
    """Return the only row that `kubectl get` prints, keyed by column heading.

    An empty cell is recognized by its position.
    """
    heading, line = kubectl("get", kind, name, "-n", NAMESPACE, *arguments).splitlines()
    starts = [
        at for at, char in enumerate(heading) if char != " " and heading[at - 1 : at] in ("", " ")
    ]
    ends = [*starts[1:], None]
    return {
        heading[start:end].strip(): line[start:end].strip()
        for start, end in zip(starts, ends, strict=True)
    }
