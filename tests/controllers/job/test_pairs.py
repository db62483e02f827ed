"""The effect of every event with every action, at job and task level.

A job has a task of two partitions and another task. Each event happens to pod 2 of the first task.
The tests check the ended and the restarted pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.api.job import JobAction
from tests.support.vcjobs import Play, job, policy, task

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: Final = {"totalPartitions": 2, "partitionSize": 2}
POD, PARTITION = {"a-2"}, {"a-2", "a-3"}
TASK = {"a-0", "a-1", "a-2", "a-3"}
ALL = TASK | {"b-0"}

ENDS: Final = {
    "AbortJob": ("Aborting", "Aborted"),
    "CompleteJob": ("Completing", "Completed"),
    "TerminateJob": ("Terminating", "Terminated"),
}
OF_A_POD: Final = {
    "RestartJob": ALL,
    "RestartTask": TASK,
    "RestartPartition": PARTITION,
    "RestartPod": POD,
}
OF_A_TASK: Final = {**dict.fromkeys(OF_A_POD, TASK), "RestartJob": ALL}
OF_THE_JOB: Final = dict.fromkeys(OF_A_POD, ALL)


def fail(play: Play) -> None:
    play.fail("a-2", code=42)


def delete(play: Play) -> None:
    play.delete("a-2")


def vanish(play: Play) -> None:
    play.vanish("a-2")


def wait(play: Play) -> None:
    play.world.passes(60)
    play.settle()


def complete(play: Play) -> None:
    play.succeed(*sorted(TASK))


def restart_containers(play: Play) -> None:
    status = [{"name": "main", "ready": True, "restartCount": 3}]
    play.world.phase("j-a-2", "Running", containerStatuses=status)
    play.settle()


def break_gang(play: Play) -> None:
    play.group_is("Unknown")


def change(play: Play) -> None:
    play.edit(minAvailable=2)


class Event:
    """An event: its policy fields, its trigger, and the pods that each action restarts."""

    def __init__(
        self,
        said: dict[str, Any],
        happen: Callable[[Play], None],
        restarts: dict[str, set[str]],
    ) -> None:
        self.said = said
        self.happen = happen
        self.restarts = restarts


EVENTS: Final = {
    "PodFailed": Event({"event": "PodFailed"}, fail, OF_A_POD),
    "exitCode": Event({"exitCode": 42}, fail, OF_A_POD),
    "events": Event({"events": ["Unknown", "PodFailed"]}, fail, OF_A_POD),
    "PodEvicted": Event({"event": "PodEvicted"}, delete, OF_A_POD),
    "PodEvicted unseen": Event({"event": "PodEvicted"}, vanish, OF_A_POD),
    "PodPending": Event({"event": "PodPending", "timeout": "1m"}, wait, OF_A_POD),
    "TaskCompleted": Event({"event": "TaskCompleted"}, complete, OF_A_TASK),
    "TaskFailed": Event({"event": "TaskFailed"}, restart_containers, OF_A_TASK),
    "Unknown": Event({"event": "Unknown"}, break_gang, OF_THE_JOB),
    "JobUnknown": Event({"event": "JobUnknown"}, break_gang, OF_THE_JOB),
    "JobUpdated": Event({"event": "JobUpdated"}, change, OF_THE_JOB),
    "* failed": Event({"event": "*"}, fail, OF_A_POD),
    "* deleted": Event({"event": "*"}, delete, OF_A_POD),
    "* completed": Event({"event": "*"}, complete, OF_A_TASK),
    "* containers": Event({"event": "*"}, restart_containers, OF_A_TASK),
    "* unknown": Event({"event": "*"}, break_gang, OF_THE_JOB),
}
OF_THE_JOB_ONLY: Final = {"Unknown", "JobUnknown", "JobUpdated", "* unknown"}
"""What happens to no task is answered by the job alone."""


def began(event: str, action: str, level: str) -> Play:
    """Return a job whose pods run, except pod 2 if the event is PodPending."""
    mine = [{**EVENTS[event].said, "action": action}]
    of = {"task": mine if level == "task" else [], "job": mine if level == "job" else []}
    a = task("a", 4, policies=of["task"], partitionPolicy=PARTS)
    play = Play(job(a, task("b"), policies=of["job"], minAvailable=1))
    names = [name for name in play.pods if not (event == "PodPending" and name == "a-2")]
    play.run(*names)
    assert play.phases == ["Pending", "Running"]
    return play


def levels(event: str) -> list[str]:
    return ["job"] if event in OF_THE_JOB_ONLY else ["job", "task"]


PAIRS: Final = [(event, level) for event in EVENTS for level in levels(event)]


@pytest.mark.parametrize("action", ENDS)
@pytest.mark.parametrize(("event", "level"), PAIRS)
def test_it_ends_a_job(event: str, level: str, action: str) -> None:
    play = began(event, action, level)
    EVENTS[event].happen(play)
    stages = ENDS[action]
    assert play.phases == ["Pending", "Running", *stages[: len(play.phases) - 2]]
    play.gone()
    assert play.phases == ["Pending", "Running", *stages]
    assert play.group is None
    assert {play.pod(name)["status"]["phase"] for name in play.pods} <= {"Succeeded", "Failed"}
    assert play.status["retryCount"] == 0
    assert play.reasons().count("ExecuteAction") == 1


@pytest.mark.parametrize("action", OF_A_POD)
@pytest.mark.parametrize(("event", "level"), PAIRS)
def test_it_starts_pods_again(event: str, level: str, action: str) -> None:
    play = began(event, action, level)
    before, group = play.uids(), play.group
    EVENTS[event].happen(play)
    assert play.phases[2] == "Restarting"
    play.gone()
    play.run()
    again = EVENTS[event].restarts[action]
    after = play.uids()
    assert set(after) == ALL
    assert {name for name in ALL if before.get(name) != after[name]} == again
    assert play.phase == "Running"
    assert play.status["retryCount"] == 1
    assert play.reasons().count("ExecuteAction") == 1
    assert group is not None
    assert play.group is not None
    is_let_in_anew = play.group["metadata"]["uid"] != group["metadata"]["uid"]
    assert is_let_in_anew == (again == ALL)


@pytest.mark.parametrize(("event", "level"), PAIRS)
def test_what_resumes_means_nothing_to_a_job_that_lives(event: str, level: str) -> None:
    play = began(event, "ResumeJob", level)
    EVENTS[event].happen(play)
    play.gone()
    assert set(play.pods) == ALL
    assert play.phases == ["Pending", "Running"]
    assert "ExecuteAction" not in play.reasons()
    play.edit(tasks=[play.manifest["spec"]["tasks"][0], task("b", 2)], minAvailable=1)
    assert "b-1" in play.pods


@pytest.mark.parametrize("event", [event for event in EVENTS if event not in OF_THE_JOB_ONLY])
def test_the_word_of_another_task_does_not_count(event: str) -> None:
    mine = [{**EVENTS[event].said, "action": "AbortJob"}]
    a = task("a", 4, partitionPolicy=PARTS)
    play = Play(job(a, task("b", policies=mine), minAvailable=1))
    play.run(*(name for name in play.pods if not (event == "PodPending" and name == "a-2")))
    EVENTS[event].happen(play)
    assert play.phase == "Running"


@pytest.mark.parametrize("event", ["PodRunning", "OutOfSync", "CommandIssued"])
@pytest.mark.parametrize("action", sorted(JobAction))
def test_what_is_for_controllers_only_is_never_answered(event: str, action: str) -> None:
    play = Play(job(task("a", 4), policies=[policy(event, action)], minAvailable=1))
    for happen in (Play.run, fail, delete, change, break_gang):
        happen(play)
    assert play.phase == "Running"
    assert play.status["retryCount"] == 0
