"""Tests of `optsched pod list`, and of the state that it shows for a pod."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api.kinds import POD_GROUP
from optsched.cli.base.table_columns import ready_containers, restarts_of, status_of_pod
from tests.cli.clusters import CONTEXT, FakeCluster, optsched, pod

OF_JOB = {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "ml"}
OF_QUEUE = {"scheduling.volcano.sh/queue-name": "ml"}


@pytest.fixture
def pods(cluster: FakeCluster) -> FakeCluster:
    cluster.put(pod("train-0", labels=OF_JOB))
    cluster.put(pod("eval-0", labels={"volcano.sh/job-name": "eval"}))
    cluster.put(pod("web", annotations=OF_QUEUE))
    cluster.put(pod("plain"))
    cluster.put(pod("train-0", "other", labels=OF_JOB))
    return cluster


def test_the_columns_are_those_of_vcctl(pods: FakeCluster) -> None:
    headings, first, *_ = optsched("pod", "list").stdout.splitlines()
    assert headings.split() == ["Name", "Ready", "Status", "Restart", "Age"]
    assert first.split()[:4] == ["train-0", "1/1", "Running", "2"]
    assert pods.selections[0].labels == "volcano.sh/job-name"
    headings, row, *_ = optsched("pod", "list", "-j", "train", "-o", "wide").stdout.splitlines()
    assert headings.split()[5:] == ["Node", "Job", "Task", "Queue"]
    assert row.split()[5:] == ["n1", "train", "<none>", "ml"]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ["train-0", "eval-0"]),
        (("-j", "train"), ["train-0"]),
        (("-q", "ml"), ["train-0", "web"]),
        (("-q", "ml", "-j", "train"), ["train-0"]),
        (("-n", "other"), ["train-0"]),
        (("-A", "-j", "train"), ["train-0", "train-0"]),
        (("-q", "none"), []),
    ],
)
def test_pods_of_jobs_and_queues(
    pods: FakeCluster, flags: tuple[str, ...], names: list[str]
) -> None:
    result = optsched("pod", "list", *flags, "-o", "name")
    assert result.stdout.split() == [f"pod/{name}" for name in names]
    assert pods.writes == []


def group(name: str, queue: str) -> dict[str, Any]:
    head = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    return {**head, "metadata": {"name": name, "namespace": CONTEXT}, "spec": {"queue": queue}}


def test_the_queue_of_a_pod_is_that_of_its_podgroup(pods: FakeCluster) -> None:
    """The label of a pod keeps the queue that its job has named."""
    named = {"scheduling.k8s.io/group-name": "eval"}
    pods.put(group("eval", "other"))
    pods.put(pod("moved", labels=OF_JOB, annotations=named))
    assert optsched("pod", "list", "-q", "ml", "-o", "name").stdout.split() == [
        "pod/train-0",
        "pod/web",
    ]
    assert optsched("pod", "list", "-q", "other", "-o", "name").stdout == "pod/moved\n"
    *_, row = optsched("pod", "list", "-q", "other", "-o", "wide").stdout.splitlines()
    assert row.split()[-1] == "other"
    admitted = {**named, "optsched.io/admitted-queue": "first"}
    pods.put(pod("bound", labels=OF_JOB, annotations=admitted))
    assert optsched("pod", "list", "-q", "first", "-o", "name").stdout == "pod/bound\n"
    pods.forbidden.add(POD_GROUP)
    result = optsched("pod", "list", "-q", "ml", "-o", "name")
    assert (result.exit_code, "pod/moved" in result.stdout.split()) == (0, True)
    assert result.stderr == "queues set by admission are not shown: podgroups is forbidden\n"


def test_a_pod_without_a_queue_is_in_the_default_queue(pods: FakeCluster) -> None:
    one = pod("lone")
    pods.put({**one, "spec": {**one["spec"], "schedulerName": "volcano"}})
    assert optsched("pod", "list", "-q", "default", "-o", "name").stdout == "pod/lone\n"


@pytest.mark.usefixtures("pods")
def test_all_namespaces_are_named() -> None:
    headings, *rows = optsched("pod", "list", "--all-namespaces", "-j", "train").stdout.splitlines()
    assert headings.split()[:2] == ["Namespace", "Name"]
    assert [row.split()[0] for row in rows] == [CONTEXT, "other"]


@pytest.mark.usefixtures("pods")
def test_a_job_of_another_queue_is_told() -> None:
    result = optsched("pod", "list", "-j", "train", "-q", "small")
    assert result.exit_code == 4
    assert result.stderr == "Error: job train is not in queue small but in ml\n"


# --- states --------------------------------------------------------------------------------------


def state(phase: str = "Running", **more: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{}]}, "status": {"phase": phase, **more}}


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", "ready": False, "restartCount": 0, **more}


def ended(**more: Any) -> dict[str, Any]:
    return container(state={"terminated": more})


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
READY = {"type": "Ready", "status": "True"}
RUNS = container(ready=True, state={"running": {}})


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        (state("Pending"), "Pending"),
        (state("Pending", conditions=[GATED]), "SchedulingGated"),
        (state("Failed", reason="Evicted"), "Evicted"),
        (state(containerStatuses=[RUNS]), "Running"),
        (state(containerStatuses=[container(state={"waiting": {"reason": "Oops"}})]), "Oops"),
        (state("Succeeded", containerStatuses=[ended(reason="Completed")]), "Completed"),
        (state("Failed", containerStatuses=[ended(exitCode=137)]), "ExitCode:137"),
        (state("Failed", containerStatuses=[ended(signal=9, exitCode=1)]), "Signal:9"),
        (state(containerStatuses=[ended(reason="Completed"), RUNS], conditions=[READY]), "Running"),
        (state(containerStatuses=[ended(reason="Completed"), RUNS]), "NotReady"),
        ({**state(), "metadata": {"deletionTimestamp": "x"}}, "Terminating"),
        ({**state("Failed"), "metadata": {"deletionTimestamp": "x"}}, "Failed"),
        ({**state(reason="NodeLost"), "metadata": {"deletionTimestamp": "x"}}, "Unknown"),
        ({}, "Unknown"),
    ],
)
def test_the_status_is_the_reason_that_tells_most(pod: dict[str, Any], status: str) -> None:
    assert status_of_pod(pod) == status


WAITS = container(state={"waiting": {"reason": "PodInitializing"}})


@pytest.mark.parametrize(
    ("containers", "status"),
    [
        ([ended(exitCode=0), WAITS], "Init:1/2"),
        ([ended(exitCode=3)], "Init:ExitCode:3"),
        ([ended(exitCode=1, reason="Error")], "Init:Error"),
        ([container(state={"waiting": {"reason": "ErrImagePull"}})], "Init:ErrImagePull"),
        ([ended(exitCode=0), ended(exitCode=0)], "Pending"),
    ],
)
def test_init_containers_are_told_until_they_are_through(
    containers: list[dict[str, Any]], status: str
) -> None:
    pod = state("Pending", initContainerStatuses=containers)
    pod["spec"]["initContainers"] = [{"name": "c"}, {"name": "d"}]
    assert status_of_pod(pod) == status
    pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}]
    assert status_of_pod(pod) == "Pending"


def test_sidecars_count_among_the_containers() -> None:
    pod = state(containerStatuses=[RUNS], initContainerStatuses=[{**RUNS, "name": "s"}])
    pod["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always"}]
    assert ready_containers(pod) == "2/2"
    pod["status"]["initContainerStatuses"] = [{**RUNS, "name": "s", "started": True}]
    assert status_of_pod(pod) == "Running"


def test_restarts_are_those_of_all_containers() -> None:
    two = [container(restartCount=2), container(restartCount=1)]
    assert restarts_of(state(containerStatuses=two)) == 3
