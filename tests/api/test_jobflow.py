from __future__ import annotations

from optsched.api.job import JobPhase
from optsched.api.jobflow import (
    FlowCondition,
    FlowJob,
    FlowJobHistory,
    FlowPhase,
    HttpProbe,
    Probes,
    RetainPolicy,
    TaskProbe,
    TcpProbe,
    parse_jobflow,
)


def test_every_field_of_a_full_flow():
    probe = {
        "httpGetList": [
            {"taskName": "w", "path": "/ok", "port": 80, "httpHeader": {"name": "a", "value": "b"}}
        ],
        "tcpSocketList": [{"taskName": "w", "port": 22}],
        "taskStatusList": [{"taskName": "w", "phase": "Running"}],
    }
    found, errors = parse_jobflow(
        {
            "metadata": {"name": "f", "namespace": "ml"},
            "spec": {
                "jobRetainPolicy": "delete",
                "flows": [
                    {"name": "a"},
                    {
                        "name": "b",
                        "dependsOn": {"targets": ["a"], "probe": probe},
                        "patch": {"jobSpec": {"queue": "q"}},
                    },
                ],
            },
            "status": {
                "completedJobs": ["f-a"],
                "runningJobs": ["f-b"],
                "unKnowJobs": ["f-c"],
                "jobStatusList": [
                    {
                        "name": "f-a",
                        "state": "Completed",
                        "startTimestamp": "1970-01-01T00:00:01Z",
                        "endTimestamp": None,
                        "restartCount": 2,
                        "runningHistories": [{"state": ""}],
                    }
                ],
                "conditions": {
                    "f-a": {
                        "phase": "Completed",
                        "runningDuration": "3s",
                        "taskStatusCount": {"w": {"phase": {"Succeeded": 1}}},
                    }
                },
                "state": {"phase": "Running"},
            },
        }
    )
    assert errors == ()
    assert found is not None
    assert (found.key, found.retain) == ("ml/f", RetainPolicy.DELETE)
    first, second = found.flows
    assert (first.name, first.targets, first.patch) == ("a", (), {})
    assert (second.targets, second.patch) == (("a",), {"queue": "q"})
    assert second.probes == Probes(
        (HttpProbe("w", "/ok", 80, ("a", "b")),), (TcpProbe("w", 22),), (TaskProbe("w", "Running"),)
    )
    status = found.status
    assert (status.phase, status.is_new) == (FlowPhase.RUNNING, False)
    assert (status.completed, status.running, status.unknown) == (("f-a",), ("f-b",), ("f-c",))
    assert status.jobs == (
        FlowJob("f-a", JobPhase.COMPLETED, 1000, None, 2, (FlowJobHistory(None),)),
    )
    assert status.conditions == {
        "f-a": FlowCondition(JobPhase.COMPLETED, None, 3000, {"w": {"Succeeded": 1}})
    }


def test_a_flow_that_says_nothing_keeps_its_jobs_and_is_new():
    found, errors = parse_jobflow({"metadata": {"name": "f"}, "spec": None, "status": None})
    assert errors == ()
    assert found is not None
    assert (found.retain, found.flows) == (RetainPolicy.RETAIN, ())
    assert (found.status.phase, found.status.is_new) == (FlowPhase.PENDING, True)


def test_what_has_no_reading_is_named():
    flows = [{"dependsOn": {"targets": "a"}}, {"name": "b", "patch": {"jobSpec": 1}}]
    found, errors = parse_jobflow({"metadata": {"name": "f"}, "spec": {"flows": flows}})
    assert found is not None
    assert [error.path for error in errors] == [
        "spec.flows[0].name",
        "spec.flows[0].dependsOn.targets",
        "spec.flows[1].patch.jobSpec",
    ]
    assert parse_jobflow({})[0] is None
