from __future__ import annotations

from typing import Any

import pytest

from optsched.api.job import (
    DependsOn,
    Iteration,
    Job,
    JobAction,
    JobCondition,
    JobEvent,
    JobPhase,
    JobVolume,
    LifecyclePolicy,
    NumaPolicy,
    PartitionPolicy,
    parse_job,
)
from optsched.api.podgroup import NetworkTopology, TopologyMode


def job(spec: Any = None, status: Any = None) -> Job:
    found, errors = parse_job(
        {"metadata": {"name": "j", "namespace": "ml"}, "spec": spec, "status": status}
    )
    assert found is not None
    assert found.errors == errors
    return found


def complaints(spec: Any = None, status: Any = None) -> list[str]:
    return [str(error) for error in job(spec, status).errors]


def test_what_the_webhook_would_fill_in_is_filled_in():
    found = job({"tasks": [{"replicas": 2}, {"name": "w", "replicas": 3, "minAvailable": 1}]})
    spec = found.spec
    assert not found.errors
    assert found.key == "ml/j"
    assert (spec.queue, spec.scheduler_name, spec.max_retry) == ("default", "volcano", 3)
    assert [task.name for task in spec.tasks] == ["default0", "w"]
    assert [task.min_available for task in spec.tasks] == [2, 1]
    assert [task.max_retry for task in spec.tasks] == [3, 3]
    assert (spec.min_available, spec.num_pods) == (3, 5)
    assert (spec.ttl_s, spec.min_success, spec.topology) == (None, None, None)


def test_zeros_that_go_writes_mean_the_default():
    spec = job({"maxRetry": 0, "minAvailable": 0, "queue": "", "tasks": [{"maxRetry": 0}]}).spec
    assert (spec.max_retry, spec.queue, spec.tasks[0].max_retry) == (3, "default", 3)


def test_a_minimum_of_partitions_is_the_minimum_of_the_task():
    policy = {"totalPartitions": 4, "partitionSize": 2, "minPartitions": 3}
    (task,) = job({"tasks": [{"replicas": 8, "partitionPolicy": policy}]}).spec.tasks
    assert task.min_available == 6
    assert task.partition == PartitionPolicy(4, 2, 3)


def test_every_field_of_a_full_job():
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    spec = job(
        {
            "schedulerName": "other",
            "minAvailable": 4,
            "volumes": [
                {"mountPath": "/a", "volumeClaimName": "data"},
                {"mountPath": "/b", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}},
            ],
            "tasks": [
                {
                    "name": "w",
                    "replicas": 4,
                    "template": template,
                    "policies": [{"exitCode": 3, "action": "RestartTask"}],
                    "topologyPolicy": "restricted",
                    "maxRetry": -1,
                    "dependsOn": {"name": ["ps"], "iteration": "any"},
                }
            ],
            "policies": [
                {"events": ["PodFailed", "JobUnknown"], "event": "PodFailed", "action": "AbortJob"},
                {"event": "PodPending", "action": "RestartPod", "timeout": "1h30m"},
            ],
            "plugins": {"svc": ["--disable-network-policy=false"], "env": None},
            "runningEstimate": "2h",
            "queue": "lab-a",
            "maxRetry": 1,
            "ttlSecondsAfterFinished": 0,
            "priorityClassName": "high",
            "minSuccess": 2,
            "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
        }
    ).spec
    (task,) = spec.tasks
    assert (spec.scheduler_name, spec.min_available, spec.queue) == ("other", 4, "lab-a")
    assert spec.volumes == (
        JobVolume("/a", "data"),
        JobVolume("/b", "", {"accessModes": ["ReadWriteOnce"]}),
    )
    assert task.template == template
    assert task.policies == (LifecyclePolicy(JobAction.RESTART_TASK, exit_code=3),)
    assert (task.topology_policy, task.max_retry) == (NumaPolicy.RESTRICTED, -1)
    assert task.depends_on == DependsOn(("ps",), Iteration.ANY)
    assert spec.policies == (
        LifecyclePolicy(JobAction.ABORT_JOB, (JobEvent.POD_FAILED, JobEvent.UNKNOWN)),
        LifecyclePolicy(JobAction.RESTART_POD, (JobEvent.POD_PENDING,), timeout_ms=5_400_000),
    )
    assert spec.plugins == {"svc": ("--disable-network-policy=false",), "env": ()}
    assert (spec.running_estimate_ms, spec.ttl_s, spec.min_success) == (7_200_000, 0, 2)
    assert (spec.priority_class, spec.max_retry) == ("high", 1)
    assert spec.topology == NetworkTopology(TopologyMode.SOFT, 2)


def test_a_status_as_volcano_writes_it():
    status = job(
        {},
        {
            "state": {
                "phase": "Completed",
                "reason": "r",
                "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:01Z",
            },
            "minAvailable": 3,
            "taskStatusCount": {"w": {"phase": {"Succeeded": 3}}},
            "succeeded": 3,
            "version": 2,
            "retryCount": 1,
            "evictions": 4,
            "runningDuration": "1m14s",
            "controlledResources": {"plugin-svc": "svc"},
            "conditions": [{"status": "Running", "lastTransitionTime": None}],
        },
    ).status
    assert (status.phase, status.is_new) == (JobPhase.COMPLETED, False)
    assert (status.reason, status.message, status.transition_ms) == ("r", "m", 1000)
    assert (status.min_available, status.counts.succeeded, status.restarts.version) == (3, 3, 2)
    assert (status.restarts.retries, status.restarts.evictions) == (1, 4)
    assert status.counts.by_task == {"w": {"Succeeded": 3}}
    assert status.running_duration_ms == 74_000
    assert status.controlled == {"plugin-svc": "svc"}
    assert status.conditions == (JobCondition(JobPhase.RUNNING),)


def test_a_status_that_nobody_has_written_is_pending_and_new():
    for status in (None, {}, {"state": {"lastTransitionTime": None}}):
        found = job({}, status).status
        assert (found.phase, found.is_new) == (JobPhase.PENDING, True)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"tasks": [{"replicas": "3"}]}, 'spec.tasks[0].replicas: "3" is not a whole number'),
        ({"tasks": [{"template": []}]}, "spec.tasks[0].template: [] is not a mapping of names to"),
        ({"tasks": {}}, "spec.tasks: {} is not a list"),
        ({"runningEstimate": "2 h"}, 'spec.runningEstimate: "2 h" is not a duration'),
        ({"plugins": {"svc": "x"}}, 'spec.plugins[svc]: "x" is not a list'),
        ({"plugins": {"svc": [1]}}, "spec.plugins[svc][0]: 1 is not a string"),
        ({"policies": [{"event": "x"}]}, 'spec.policies[0].event: "x" is not one of *, PodPending'),
        ({"policies": [{"events": [1]}]}, "spec.policies[0].events[0]: 1 is not a string"),
        ({"policies": [{"action": "x"}]}, 'spec.policies[0].action: "x" is not one of AbortJob'),
        ({"minSuccess": 0}, "spec.minSuccess: 0 is out of range: write 1 to 2147483647"),
        ({"tasks": [{"partitionPolicy": {}}]}, "spec.tasks[0].partitionPolicy.totalPartitions"),
        ({"volumes": [{}]}, "spec.volumes[0].mountPath is missing and has no default"),
    ],
)
def test_a_bad_field_is_named(spec: Any, complaint: str):
    assert complaints(spec)[0].startswith(complaint)


def test_all_problems_come_at_once_and_the_rest_is_kept():
    found = job({"minAvailable": -1, "maxRetry": "x", "tasks": [{"replicas": 2, "name": 7}]})
    assert [error.path for error in found.errors] == [
        "spec.tasks[0].name",
        "spec.minAvailable",
        "spec.maxRetry",
    ]
    assert (found.spec.tasks[0].name, found.spec.num_pods) == ("default0", 2)


def test_without_a_name_there_is_no_job():
    found, errors = parse_job({"metadata": {}, "spec": {}})
    assert found is None
    assert len(errors) == 1
