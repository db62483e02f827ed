"""Tests of jobs that a JobFlow creates one after another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.api.json_fields import owner_reference
from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE, POD, Ref
from optsched.controllers.effects import Create, Question
from optsched.controllers.jobflow import JOB_FLOWS, JOB_TEMPLATES, patched
from tests.support.memory import MemoryWorld

REF = Ref(JOB_FLOW, "default", "f")
DIAMOND = {"a": [], "b": ["a"], "c": ["b"], "d": ["b"], "e": ["c", "d"]}


def play(waits: dict[str, list[str]] | None = None, **more: Any) -> MemoryWorld:
    """Return a world with a flow and its templates.

    `more` are additional fields of single flows by name.
    """
    waits = DIAMOND if waits is None else waits
    world = MemoryWorld()
    flows = []
    for name, targets in waits.items():
        spec = {"minAvailable": 1, "tasks": [{"name": "t", "replicas": 1}]}
        world.put(JOB_TEMPLATE, {"metadata": {"name": name}, "spec": spec})
        depends = {"dependsOn": {"targets": targets}} if targets else {}
        flows.append({"name": name, **depends, **more.get(name, {})})
    spec = {"flows": flows, **({"jobRetainPolicy": more["retain"]} if "retain" in more else {})}
    world.put(JOB_FLOW, {"metadata": {"name": "f"}, "spec": spec})
    return world


def settle(world: MemoryWorld) -> None:
    for _ in range(10):
        before = len(world.writes)
        world.apply(JOB_FLOWS.decide(REF, world))
        if len(world.writes) == before:
            return
    raise AssertionError("it never comes to rest")


def become(world: MemoryWorld, name: str, phase: str, when: str = "2027-01-15T08:00:10Z") -> None:
    state = {"phase": phase, "lastTransitionTime": when}
    world.change(Ref(JOB, "default", f"f-{name}"), lambda job: job.update(status={"state": state}))
    settle(world)


def jobs(world: MemoryWorld) -> str:
    return "".join(sorted(job["metadata"]["name"].removeprefix("f-") for job in world.listed(JOB)))


def status(world: MemoryWorld) -> dict[str, Any]:
    return dict(world.get(JOB_FLOW, "default", "f").get("status", {}))


def phase(world: MemoryWorld) -> str:
    return str(status(world)["state"]["phase"])


def pod(world: MemoryWorld, job: str, task: str, phase: str = "Running", ip: str = "") -> None:
    owner = world.get(JOB, "default", f"f-{job}")
    meta = {
        "name": f"f-{job}-{task}-0",
        "labels": {"volcano.sh/task-spec": task},
        "ownerReferences": [owner_reference(JOB, owner)],
    }
    world.put(POD, {"metadata": meta, "status": {"phase": phase, "podIP": ip}})


def test_jobs_begin_when_those_before_them_are_completed() -> None:
    world = play()
    settle(world)
    assert (jobs(world), phase(world)) == ("a", "Pending")
    become(world, "a", "Running")
    assert (jobs(world), phase(world)) == ("a", "Running")
    become(world, "a", "Completed")
    assert jobs(world) == "ab"
    become(world, "b", "Completed")
    assert jobs(world) == "abcd"
    become(world, "c", "Completed")
    assert (jobs(world), phase(world)) == ("abcd", "Running")
    become(world, "d", "Completed")
    become(world, "e", "Completed")
    assert (jobs(world), phase(world)) == ("abcde", "Succeed")
    assert status(world)["completedJobs"] == [f"f-{name}" for name in "abcde"]
    assert len([w for w in world.writes if isinstance(w, Create)]) == 5


def test_a_flow_that_is_named_twice_makes_one_job_once_one_entry_may_begin() -> None:
    world = play({"a": [], "b": ["a"], "c": ["b"]})

    def name_twice(flow: dict[str, Any]) -> None:
        flow["spec"]["flows"] += [{"name": "a"}, {"name": "c", "dependsOn": {"targets": ["a"]}}]

    world.change(REF, name_twice)
    settle(world)
    assert jobs(world) == "a"
    become(world, "a", "Completed")
    assert jobs(world) == "abc"
    become(world, "b", "Completed")
    become(world, "c", "Completed")
    assert phase(world) == "Succeed"
    assert len([w for w in world.writes if isinstance(w, Create)]) == 3


def test_a_job_is_its_template_with_marks() -> None:
    world = play({"a": []})
    settle(world)
    job = world.get(JOB, "default", "f-a")
    marks = {
        "volcano.sh/createdByJobTemplate": "default.a",
        "volcano.sh/createdByJobFlow": "default.f",
    }
    assert job["metadata"]["labels"] == job["metadata"]["annotations"] == marks
    assert job["spec"] == world.get(JOB_TEMPLATE, "default", "a")["spec"]
    assert job["metadata"]["ownerReferences"][0]["kind"] == "JobFlow"
    assert [event.reason for event in world.events] == ["Created"]


@pytest.mark.parametrize("lost", ["Failed", "Terminated"])
def test_a_flow_with_a_job_that_is_lost_has_failed_and_begins_no_other(lost: str) -> None:
    world = play()
    settle(world)
    become(world, "a", "Completed")
    become(world, "b", lost)
    assert (jobs(world), phase(world)) == ("ab", "Failed")
    become(world, "b", "Completed")
    assert (jobs(world), phase(world)) == ("ab", "Failed")


@pytest.mark.parametrize(("policy", "left"), [("retain", "ab"), ("delete", "")])
def test_jobs_of_a_flow_that_has_succeeded_stay_or_go(policy: str, left: str) -> None:
    world = play({"a": [], "b": []}, retain=policy)
    settle(world)
    become(world, "a", "Completed")
    become(world, "b", "Completed")
    settle(world)
    assert (jobs(world), phase(world)) == (left, "Succeed")
    assert status(world)["completedJobs"] == ["f-a", "f-b"]


def test_a_completed_job_that_was_cleared_away_is_not_made_again() -> None:
    world = play({"a": [], "b": ["a"], "c": ["a", "b"]})
    settle(world)
    become(world, "a", "Completed")
    told = status(world)["jobStatusList"][0]
    world.remove(Ref(JOB, "default", "f-a"))
    world.ended()
    settle(world)
    assert jobs(world) == "b"
    become(world, "b", "Completed")
    assert jobs(world) == "bc"
    assert status(world)["completedJobs"] == ["f-a", "f-b"]
    assert status(world)["jobStatusList"][0] == told
    assert "f-a" in status(world)["conditions"]
    become(world, "c", "Completed")
    assert phase(world) == "Succeed"


def test_a_job_that_was_deleted_before_it_was_completed_is_made_again() -> None:
    world = play({"a": [], "b": ["a"]})
    settle(world)
    become(world, "a", "Running")
    world.remove(Ref(JOB, "default", "f-a"))
    world.ended()
    settle(world)
    assert jobs(world) == "a"
    assert phase(world) == "Pending"


def test_the_status_tells_the_story_of_each_job() -> None:
    world = play({"a": []})
    settle(world)
    become(world, "a", "Pending", "2027-01-15T08:00:00Z")
    become(world, "a", "Running", "2027-01-15T08:00:05Z")
    [told] = status(world)["jobStatusList"]
    assert told["state"] == "Running"
    assert told["runningHistories"] == [
        {
            "state": "Pending",
            "startTimestamp": "2027-01-15T08:00:00Z",
            "endTimestamp": "2027-01-15T08:00:05Z",
        },
        {"state": "Running", "startTimestamp": "2027-01-15T08:00:05Z"},
    ]
    assert status(world)["conditions"]["f-a"]["phase"] == "Running"
    become(world, "a", "Aborting")
    assert status(world)["unKnowJobs"] == ["f-a"]
    before = len(world.writes)
    settle(world)
    assert len(world.writes) == before


def test_phases_that_no_pod_has_any_more_leave_the_counts_of_a_job() -> None:
    world = play({"a": []})
    settle(world)
    for phases in ({"Running": 2}, {"Succeeded": 2}):
        counts = {"w": {"phase": phases}}
        world.change(
            Ref(JOB, "default", "f-a"),
            lambda job, counts=counts: job.update(
                status={"state": {"phase": "Running"}, "taskStatusCount": counts}
            ),
        )
        settle(world)
        assert status(world)["conditions"]["f-a"]["taskStatusCount"] == counts


def test_a_template_that_is_missing_is_told_and_waited_for() -> None:
    world = play({"a": []})
    template = world.get(JOB_TEMPLATE, "default", "a")
    world.remove(Ref(JOB_TEMPLATE, "default", "a"))
    settle(world)
    assert {event.reason for event in world.events} == {"JobTemplateNotFound"}
    world.put(JOB_TEMPLATE, template)
    assert list(JOB_FLOWS.wakes[JOB_TEMPLATE](template, world)) == [REF]
    settle(world)
    assert jobs(world) == "a"


@pytest.mark.parametrize("names_uid", [False, True])
def test_the_job_of_somebody_else_is_left_alone(*, names_uid: bool) -> None:
    """A user may write the UID of the flow together with another kind, without a review."""
    world = play({"a": []})
    flow = world.get(JOB_FLOW, "default", "f")
    owner = {**owner_reference(JOB_FLOW, flow), "apiVersion": "example.org/v1", "kind": "Any"}
    meta = {"name": "f-a", **({"ownerReferences": [owner]} if names_uid else {})}
    world.put(JOB, {"metadata": meta, "status": {"state": {"phase": "Completed"}}})
    settle(world)
    assert phase(world) == "Pending"
    assert {event.reason for event in world.events} == {"ForeignJob"}


@pytest.mark.parametrize(
    ("wanted", "found", "begins"),
    [
        ("Running", "Pending", False),
        ("Running", "Running", True),
        ("Running", "Succeeded", True),
        ("Succeeded", "Running", False),
        ("Completed", "Succeeded", True),
        ("Failed", "Failed", True),
    ],
)
def test_a_probe_of_a_task_lets_the_next_begin_early(wanted: str, found: str, begins: bool) -> None:
    probe = {"taskStatusList": [{"taskName": "server", "phase": wanted}]}
    depends = {"dependsOn": {"targets": ["a"], "probe": probe}}
    world = play({"a": [], "b": []}, b=depends)
    settle(world)
    become(world, "a", "Running")
    assert jobs(world) == "a"
    pod(world, "a", "other", "Failed")
    pod(world, "a", "server", found)
    assert list(JOB_FLOWS.wakes[POD](world.listed(POD)[0], world)) == [REF]
    settle(world)
    assert jobs(world) == ("ab" if begins else "a")


@pytest.mark.parametrize(
    ("probe", "question"),
    [
        ({"tcpSocketList": [{"taskName": "server", "port": 80}]}, Question("10.0.0.1", 80)),
        (
            {"httpGetList": [{"taskName": "server", "port": 80, "path": "/ready"}]},
            Question("10.0.0.1", 80, "/ready"),
        ),
        (
            {
                "httpGetList": [
                    {"taskName": "server", "port": 80, "httpHeader": {"name": "h", "value": "v"}}
                ]
            },
            Question("10.0.0.1", 80, "/", ("h", "v")),
        ),
    ],
)
def test_pods_that_answer_let_the_next_begin_early(
    probe: dict[str, Any], question: Question
) -> None:
    depends = {"dependsOn": {"targets": ["a"], "probe": probe}}
    world = play({"a": [], "b": []}, b=depends)
    settle(world)
    become(world, "a", "Running")
    assert world.asked == []
    pod(world, "a", "server")
    settle(world)
    assert world.asked == []
    pod(world, "a", "server", ip="10.0.0.1")
    settle(world)
    assert set(world.asked) == {question}
    assert world.agains[-1].after_s == 2.0
    assert jobs(world) == "a"
    world.answers.add(question)
    settle(world)
    assert jobs(world) == "ab"


def test_who_is_completed_needs_no_answer_any_more() -> None:
    probe = {"tcpSocketList": [{"taskName": "server", "port": 80}]}
    world = play({"a": [], "b": []}, b={"dependsOn": {"targets": ["a"], "probe": probe}})
    settle(world)
    become(world, "a", "Completed")
    assert jobs(world) == "ab"


def test_a_patch_changes_the_template_where_it_says() -> None:
    patch = {
        "queue": "fast",
        "minAvailable": None,
        "tasks": [{"name": "t", "replicas": 3}, {"name": "new", "replicas": 1}],
    }
    world = play({"a": []}, a={"patch": {"jobSpec": patch}})
    settle(world)
    assert world.get(JOB, "default", "f-a")["spec"] == {
        "queue": "fast",
        "tasks": [{"name": "t", "replicas": 3}, {"name": "new", "replicas": 1}],
    }
    assert world.get(JOB_TEMPLATE, "default", "a")["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": 1}, {"b": {"c": 2}}, {"a": 1, "b": {"c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "y"}]}, None),
        ({"v": [{"mountPath": "/a", "n": 1}]}, {"v": [{"mountPath": "/a", "n": 2}]}, None),
        ({"a": [{"name": "x"}]}, {"a": []}, {"a": []}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}),
    ],
)
def test_patches(before: Any, patch: Any, after: Any) -> None:
    both = {"a": [{"name": "x", "v": 1}, {"name": "y"}]}
    mounted = {"v": [{"mountPath": "/a", "n": 2}]}
    assert patched(before, patch) == (after or (both if "a" in before else mounted))


GRAPHS = st.lists(st.sets(st.integers(0, 6), max_size=3), min_size=1, max_size=7).map(
    lambda sets: {str(i): [str(j) for j in each if j < i] for i, each in enumerate(sets)}
)


@given(GRAPHS, st.randoms(use_true_random=False))
def test_any_graph_ends_and_nobody_begins_too_early(
    waits: dict[str, list[str]], chance: Any
) -> None:
    world = play(waits)
    done: set[str] = set()
    settle(world)
    while len(done) < len(waits):
        ready = [name for name in jobs(world) if name not in done]
        assert ready
        for name in ready:
            assert set(waits[name]) <= done
        name = chance.choice(ready)
        done.add(name)
        become(world, name, "Completed")
    assert phase(world) == "Succeed"


def test_a_template_says_which_jobs_are_made_of_it() -> None:
    world = play({"a": []})
    settle(world)
    ref = Ref(JOB_TEMPLATE, "default", "a")
    job = world.get(JOB, "default", "f-a")
    assert list(JOB_TEMPLATES.wakes[JOB](job, world)) == [ref]
    world.apply(JOB_TEMPLATES.decide(ref, world))
    assert world.get(JOB_TEMPLATE, "default", "a")["status"] == {"jobDependsOnList": ["f-a"]}
    assert JOB_TEMPLATES.decide(ref, world) == ()
    world.remove(Ref(JOB, "default", "f-a"))
    world.apply(JOB_TEMPLATES.decide(ref, world))
    assert world.get(JOB_TEMPLATE, "default", "a")["status"] == {"jobDependsOnList": []}
