"""Tests of the choice of the lifecycle policy for an event."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api.job import JobEvent, parse_job
from optsched.controllers.job.lifecycle_policies import (
    ObservedEvent,
    events_with_policy,
    policy_for,
)
from tests.support.vcjobs import Play, job, policy, task

E = JobEvent
ORDINARY = {E.POD_PENDING, E.POD_RUNNING, E.JOB_UPDATED, E.OUT_OF_SYNC, E.COMMAND_ISSUED}


def answer(
    mine: list[dict[str, Any]], jobs: list[dict[str, Any]], event: JobEvent, *codes: int
) -> str | None:
    """Return the action that follows an event of pod 0 of a task."""
    found, errors = parse_job(job(task("a", 2, policies=mine), policies=jobs))
    assert found is not None
    assert not errors
    happening = ObservedEvent(event, "", found.spec.tasks[0], 0, frozenset(codes))
    said = policy_for(found, happening)
    return said.action.value if said is not None and said.action is not None else None


@pytest.mark.parametrize("event", [e for e in E if e is not E.ANY and e not in ORDINARY])
def test_an_event_is_answered_by_its_name_or_by_any(event: JobEvent) -> None:
    assert answer([], [policy(event.value, "AbortJob")], event) == "AbortJob"
    assert answer([], [policy("*", "AbortJob")], event) == "AbortJob"
    assert answer([], [{"events": ["Unknown", event.value], "action": "AbortJob"}], event)


@pytest.mark.parametrize("event", sorted(ORDINARY))
def test_any_does_not_mean_what_happens_to_every_job(event: JobEvent) -> None:
    assert answer([], [policy("*", "AbortJob")], event) is None


def test_a_task_speaks_before_its_job_and_the_first_policy_before_others() -> None:
    mine = [policy("PodFailed", "RestartTask"), policy("PodFailed", "RestartPod")]
    jobs = [policy("PodFailed", "AbortJob")]
    assert answer(mine, jobs, E.POD_FAILED) == "RestartTask"
    assert answer([policy("PodEvicted", "RestartTask")], jobs, E.POD_FAILED) == "AbortJob"


def test_unknown_has_two_names() -> None:
    assert answer([], [policy("JobUnknown", "RestartJob")], E.UNKNOWN) == "RestartJob"


@pytest.mark.parametrize(
    ("codes", "said"), [((3,), "AbortJob"), ((0, 137, 3), "AbortJob"), ((1,), None)]
)
def test_an_exit_code_is_enough(codes: tuple[int, ...], said: str | None) -> None:
    assert answer([], [{"exitCode": 3, "action": "AbortJob"}], E.POD_FAILED, *codes) == said


def test_a_pending_pod_is_nothing_without_a_timeout() -> None:
    assert answer([], [policy("PodPending", "AbortJob")], E.POD_PENDING) is None
    timed = policy("PodPending", "AbortJob", timeout="1m")
    assert answer([], [timed], E.POD_PENDING) == "AbortJob"


def test_only_events_with_an_answer_are_looked_for() -> None:
    def events(*policies: dict[str, Any], mine: tuple[dict[str, Any], ...] = ()) -> set[JobEvent]:
        found, _ = parse_job(job(task("a", policies=list(mine)), policies=list(policies)))
        assert found is not None
        return set(events_with_policy(found))

    assert events() == set()
    assert events(policy("PodEvicted", "RestartJob")) == {E.POD_EVICTED}
    assert events(mine=(policy("TaskCompleted", "CompleteJob"),)) == {E.TASK_COMPLETED}
    assert events({"exitCode": 3, "action": "AbortJob"}) == {E.POD_FAILED}
    assert events(policy("*", "RestartJob")) == set(E)


def test_every_container_has_an_exit_code() -> None:
    play = Play(job(task("a", 2), policies=[{"exitCode": 42, "action": "TerminateJob"}]))
    play.run()
    ends = [
        {"name": name, "state": {"terminated": {"exitCode": code}}}
        for name, code in (("main", 0), ("sidecar", 42))
    ]
    play.world.phase("j-a-0", "Failed", containerStatuses=ends)
    play.settle()
    assert play.phase == "Terminating"


def test_an_event_may_have_to_last() -> None:
    late = policy("PodFailed", "RestartJob", timeout="30s")
    play = Play(job(task("a", 2), policies=[late]))
    play.run()
    end = {"exitCode": 1, "finishedAt": "2027-01-15T08:00:00Z"}
    status = [{"name": "main", "state": {"terminated": end}}]
    play.world.phase("j-a-0", "Failed", containerStatuses=status)
    play.settle()
    assert play.phase == "Running"
    play.world.passes(30)
    play.settle()
    assert play.phase == "Restarting"


def test_a_pod_that_is_back_in_time_was_not_evicted() -> None:
    late = policy("PodEvicted", "RestartJob", timeout="30s")
    play = Play(job(task("a", 2), policies=[late], minAvailable=1))
    play.run()
    before = play.uids()
    play.vanish("a-0")
    assert play.status["deletions"].keys() == {"pod/a/0"}
    play.run()
    play.world.passes(60)
    play.settle()
    assert play.phases == ["Pending", "Running"]
    assert play.uids()["a-0"] != before["a-0"]
    assert play.status["deletions"] == {}
    play.delete("a-0")
    assert play.phase == "Running"
    play.world.passes(30)
    play.settle()
    assert play.phase == "Restarting"


@pytest.mark.parametrize("how", ["vanish", "delete"])
def test_a_deletion_lasts_until_a_replacement_runs(how: str) -> None:
    late = policy("PodEvicted", "RestartPod", timeout="30s")
    play = Play(job(task("a", 3), policies=[late], minAvailable=1))
    play.run()
    first = play.uids()
    if how == "vanish":
        play.vanish("a-1")
    else:
        play.delete("a-1")
        play.gone()
    second = play.uids()
    play.world.passes(20)
    play.vanish("a-0")
    assert play.status["deletions"].keys() == {"pod/a/0", "pod/a/1"}
    assert play.phase == "Running"
    play.world.passes(15)
    play.settle()
    play.gone()
    assert play.status["restarted"].keys() == {"pod/a/1"}, "the replacement of a-1 did not run"
    assert play.status["deletions"].keys() == {"pod/a/0"}
    third = play.uids()
    assert len({first["a-1"], second["a-1"], third["a-1"]}) == 3
    assert third["a-2"] == first["a-2"]
    play.run()
    play.world.passes(60)
    play.settle()
    assert play.status["restarted"].keys() == {"pod/a/1"}
    assert play.status["deletions"] == {}


def test_a_late_policy_knows_that_the_cluster_deleted_the_pod() -> None:
    late = policy("PodEvicted", "RestartJob", timeout="30s")
    play = Play(job(task("a", 2), policies=[late], minAvailable=1, maxRetry=2))
    play.run()
    play.evict("a-0")
    play.world.ended("j-a-0")
    play.settle()
    play.world.passes(31)
    play.settle()
    assert "Restarting" in play.phases
    assert play.status.get("evictions") == 1
    assert play.status.get("retryCount", 0) == 0
    assert play.status["deletions"] == {}


def test_a_deletion_without_a_late_policy_is_not_stored() -> None:
    play = Play(job(task("a", 2), policies=[policy("PodFailed", "RestartJob", timeout="30s")]))
    play.run()
    play.vanish("a-0")
    assert "deletions" not in play.status
