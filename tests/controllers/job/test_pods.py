"""Tests of pods, PodGroups and claims as the controller creates them."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api.job import parse_job
from optsched.api.kinds import PRIORITY_CLASS, QUEUE
from optsched.controllers.job.owned_objects import pod_maker, pod_volumes
from optsched.controllers.job.podgroups import desired_group, group_changes
from tests.support.memory import MemoryWorld
from tests.support.usage import least
from tests.support.vcjobs import Play, container, job, task


def made(manifest: dict[str, Any], index: int = 0, position: int = 0) -> dict[str, Any]:
    found, errors = parse_job(manifest)
    assert found is not None
    assert not errors
    return pod_maker(found, manifest).pod(found.spec.tasks[position], index)


def group_of(manifest: dict[str, Any], world: MemoryWorld | None = None) -> dict[str, Any]:
    found, errors = parse_job(manifest)
    assert found is not None
    assert not errors
    source = world or MemoryWorld()
    return desired_group(found, manifest, lambda name: source.get(PRIORITY_CLASS, "", name))


def test_a_pod_has_all_marks() -> None:
    worker = task("worker", 4, topologyPolicy="single-numa-node")
    manifest = job(task("master"), worker, queue="q", priorityClassName="high")
    manifest["status"] = {"state": {"phase": "Running"}, "version": 4, "retryCount": 2}
    pod = made(manifest, 3, 1)
    place = {
        "volcano.sh/job-name": "j",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/task-index": "3",
        "volcano.sh/queue-name": "q",
    }
    assert pod["metadata"] == {
        "name": "j-worker-3",
        "namespace": "default",
        "labels": {**place, "volcano.sh/job-namespace": "default"},
        "annotations": {
            **place,
            "scheduling.k8s.io/group-name": "j-j-uid",
            "volcano.sh/job-version": "4",
            "volcano.sh/job-retry-count": "2",
            "volcano.sh/template-uid": "j-worker",
            "volcano.sh/numa-topology-policy": "single-numa-node",
        },
        "ownerReferences": [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": "j",
                "uid": "j-uid",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    assert pod["spec"] == {
        "containers": [{"name": "main", "image": "busybox"}],
        "restartPolicy": "Never",
        "schedulerName": "volcano",
        "priorityClassName": "high",
    }


def test_what_a_template_says_stays() -> None:
    own = task("a")
    own["template"]["metadata"] = {
        "creationTimestamp": None,
        "labels": {"app": "x"},
        "annotations": {"note": "y"},
    }
    own["template"]["spec"] |= {"schedulerName": "default-scheduler", "priorityClassName": "low"}
    pod = made(job(own, schedulerName="volcano", priorityClassName="high"))
    assert pod["metadata"]["labels"]["app"] == "x"
    assert pod["metadata"]["annotations"]["note"] == "y"
    assert "creationTimestamp" not in pod["metadata"]
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["spec"]["priorityClassName"] == "low"


def test_what_a_job_says_of_evictions_is_said_of_its_pods() -> None:
    manifest = job(task("a"))
    annotations = {
        "volcano.sh/preemptable": "true",
        "volcano.sh/cooldown-time": "600s",
        "volcano.sh/revocable-zone": "*",
        "volcano.sh/jdb-min-available": "2",
        "volcano.sh/jdb-max-unavailable": "1",
        "mine": "stays",
    }
    labels = {"volcano.sh/preemptable": "true", "volcano.sh/cooldown-time": "600s", "my": "own"}
    manifest["metadata"] |= {"annotations": annotations, "labels": labels}
    meta = made(manifest)["metadata"]
    passed = {key: meta["annotations"].get(key) for key in annotations}
    assert passed == annotations | {"volcano.sh/jdb-max-unavailable": None, "mine": None}
    assert {key: meta["labels"].get(key) for key in labels} == labels | {"my": None}


def test_partitions_are_counted_through() -> None:
    parts = {"totalPartitions": 3, "partitionSize": 2}
    manifest = job(task("a", 6, partitionPolicy=parts))
    labels = [made(manifest, i)["metadata"]["labels"]["volcano.sh/partition-id"] for i in range(6)]
    assert labels == ["0", "0", "1", "1", "2", "2"]


def test_a_template_is_never_written_to() -> None:
    manifest = job(
        task("a", 2),
        plugins={"env": [], "svc": [], "ssh": [], "pytorch": ["--master=a"]},
        volumes=[{"mountPath": "/in", "volumeClaimName": "c"}],
    )
    before = repr(manifest)
    assert made(manifest) == made(manifest)
    assert repr(manifest) == before


def test_one_claim_may_be_mounted_twice() -> None:
    volumes = [{"mountPath": path, "volumeClaimName": "c"} for path in ("/a", "/b")]
    found, _ = parse_job(job(task("a"), volumes=volumes))
    assert found is not None
    assert pod_volumes(found) == (
        [{"name": "job-volume-0", "persistentVolumeClaim": {"claimName": "c"}}],
        [
            {"name": "job-volume-0", "mountPath": "/a"},
            {"name": "job-volume-0", "mountPath": "/b"},
        ],
    )


def test_jobs_of_queues_that_reach_over_are_marked() -> None:
    play = Play(job(task("a"), queue="far"), is_admitted=False)
    spec = {"extendClusters": [{"name": "other"}]}
    play.world.put(QUEUE, {"metadata": {"name": "far", "namespace": ""}, "spec": spec})
    play.admit()
    meta = play.pod("a-0")["metadata"]
    assert meta["labels"]["volcano.sh/job-forwarding"] == "true"
    assert meta["annotations"]["volcano.sh/job-forwarding"] == "true"


# --- PodGroups -----------------------------------------------------------------------------------


def sized(name: str, replicas: int, /, cpu: str, **more: Any) -> dict[str, Any]:
    found = task(name, replicas, **more)
    found["template"]["spec"]["containers"] = [container(resources={"requests": {"cpu": cpu}})]
    return found


def test_a_gang_asks_for_what_its_first_pods_need() -> None:
    manifest = job(
        sized("ps", 2, "500m"),
        sized("worker", 4, "2", minAvailable=1),
        minAvailable=4,
        queue="q",
        priorityClassName="high",
        networkTopology={"mode": "soft", "highestTierAllowed": 2},
    )
    manifest["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    group = group_of(manifest)
    assert group["metadata"]["name"] == "j-j-uid"
    assert group["metadata"]["labels"] == {"a": "b"}
    assert group["metadata"]["annotations"] == {"c": "d", "optsched.io/job-generation": "1"}
    assert group["spec"] == {
        "minMember": 4,
        "minTaskMember": {"ps": 2, "worker": 1},
        "queue": "q",
        # Both pods of ps, the required worker and one more worker count.
        "minResources": least(4, {"cpu": "5"}),
        "priorityClassName": "high",
        "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
    }


def test_limits_alone_are_not_asked_for() -> None:
    own = task("a", 2)
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}}
    own["template"]["spec"]["containers"] = [container(resources=resources)]
    gpus = {"requests.nvidia.com/gpu": "2", "nvidia.com/gpu": "0"}
    expected = least(2, {"cpu": "2"}, {"cpu": "4"}) | gpus
    assert group_of(job(own))["spec"]["minResources"] == expected


def test_quotas_on_requests_count_tasks_that_have_limits_alone() -> None:
    """The API server uses limits as requests; otherwise the quota would refuse half of a gang."""
    limited, asking = task("a", 2), task("b", 1)
    limited["template"]["spec"]["containers"] = [container(resources={"limits": {"cpu": "3"}})]
    asking["template"]["spec"]["containers"] = [container(resources={"requests": {"cpu": "1"}})]
    found = group_of(job(limited, asking))["spec"]["minResources"]
    assert found["cpu"] == "1"
    assert found["requests.cpu"] == "7"
    assert found["limits.cpu"] == "6"


def test_what_matters_more_is_counted_first() -> None:
    world = MemoryWorld()
    for name, value in (("low", 1), ("high", 9)):
        world.put(PRIORITY_CLASS, {"metadata": {"name": name, "namespace": ""}, "value": value})
    a, b = sized("a", 2, "1", minAvailable=0), sized("b", 2, "4", minAvailable=0)
    a["template"]["spec"]["priorityClassName"] = "low"
    b["template"]["spec"]["priorityClassName"] = "high"
    group = group_of(job(a, b, minAvailable=3), world)
    assert group["spec"]["minResources"] == least(3, {"cpu": "9"})


def test_partitions_become_sub_groups() -> None:
    policy = {
        "totalPartitions": 2,
        "partitionSize": 4,
        "minPartitions": 1,
        "networkTopology": {"mode": "hard", "highestTierName": "rack"},
    }
    group = group_of(job(task("a", 8, partitionPolicy=policy)))
    assert group["spec"]["minMember"] == 4
    assert group["spec"]["subGroupPolicy"] == [
        {
            "name": "a",
            "subGroupSize": 4,
            "minSubGroups": 1,
            "labelSelector": {"matchLabels": {"volcano.sh/task-spec": "a"}},
            "matchLabelKeys": ["volcano.sh/partition-id"],
            "networkTopology": {"mode": "hard", "highestTierName": "rack"},
        }
    ]


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ({}, {}),
        ({"minMember": 9}, {"minMember": 2}),
        ({"minTaskMember": {"a": 2, "gone": 1}}, {"minTaskMember": {"gone": None}}),
        ({"priorityClassName": "old"}, {"priorityClassName": None}),
        ({"queue": "moved"}, {}),
    ],
)
def test_a_gang_follows_its_job(spec: dict[str, Any], changes: dict[str, Any]) -> None:
    manifest = job(sized("a", 2, "1"))
    group = group_of(manifest)
    group["spec"] |= spec
    assert changes_of(group, manifest) == ({"spec": changes} if changes else {})


def test_what_is_requested_is_added_up_when_the_job_has_changed() -> None:
    manifest = job(sized("a", 2, "1"))
    group = group_of(manifest)
    manifest["spec"]["tasks"][0]["replicas"] = 3
    manifest["metadata"]["generation"] = 2
    assert changes_of(group, manifest) == {
        "spec": {
            "minMember": 3,
            "minTaskMember": {"a": 3},
            "minResources": least(3, {"cpu": "3"}),
        },
        "metadata": {"annotations": {"optsched.io/job-generation": "2"}},
    }


def changes_of(group: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    found, _ = parse_job(manifest)
    assert found is not None
    return group_changes(group, found, manifest, lambda name: None)


@pytest.mark.parametrize(
    ("name", "noted"), [("volcano", None), ("default-scheduler", None), ("research", "research")]
)
def test_the_podgroup_of_a_job_says_which_other_scheduler_lets_it_in(
    name: str, noted: str | None
) -> None:
    """The default scheduler knows no PodGroups, so optsched admits its jobs."""
    annotations = group_of(job(task("a", 1), schedulerName=name))["metadata"]["annotations"]
    assert annotations.get("optsched.io/scheduler") == noted
