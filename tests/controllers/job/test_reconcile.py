"""Jobs from creation to end, played on an in-memory API server."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api.json_fields import name_of
from optsched.api.kinds import COMMAND, JOB, PERSISTENT_VOLUME_CLAIM, POD, POD_GROUP, Ref
from optsched.controllers.effects import Again, Create, Delete, Propagation
from optsched.controllers.job import object_names, reconcile
from optsched.controllers.job.reconcile import NEXT_PODS_S, JobReconciler, Options
from tests.support.vcjobs import KEYS, Play, job, policy, task

RESTART = policy("PodFailed", "RestartJob")


def statuses(play: Play) -> list[str]:
    return [each["status"] for each in play.status["conditions"]]


# --- a life without trouble ----------------------------------------------------------------------


def test_pods_come_once_the_gang_is_admitted() -> None:
    play = Play(job(task("a", 2), task("b")), is_admitted=False)
    assert play.phase == "Pending"
    assert play.pods == []
    assert play.group is not None
    assert play.group["metadata"]["name"] == "j-j-uid"
    play.admit()
    assert play.pods == ["a-0", "a-1", "b-0"]
    play.run()
    play.succeed()
    assert play.phases == ["Pending", "Running", "Completed"]
    assert statuses(play) == ["Pending", "Running", "Completed"]
    assert play.pods == ["a-0", "a-1", "b-0"]  # the ended pods stay for their logs
    assert play.group is None


def test_the_status_counts_pods_by_state_and_task() -> None:
    play = Play(job(task("a", 3), task("b", 2), minAvailable=2))
    play.run("a-0", "a-1", "b-0")
    play.succeed("a-0")
    play.fail("b-0", code=3)
    status = play.status
    keys = ("pending", "running", "succeeded", "failed", "terminating", "unknown", "minAvailable")
    assert [status[key] for key in keys] == [2, 1, 1, 1, 0, 0, 2]
    assert status["taskStatusCount"] == {
        "a": {"phase": {"Succeeded": 1, "Running": 1, "Pending": 1}},
        "b": {"phase": {"Failed": 1, "Pending": 1}},
    }
    assert status["version"] == status["retryCount"] == 0


def test_how_long_a_job_ran_is_known_at_its_end() -> None:
    play = Play(job(task("a")))
    play.run()
    play.world.passes(74)
    play.succeed()
    assert play.status["runningDuration"] == "1m14s"


def test_nothing_is_written_twice() -> None:
    play = Play(job(task("a", 5), plugins={"svc": [], "ssh": [], "env": []}))
    play.run()
    assert play.decide() == ()
    kinds = [getattr(write, "kind", None) for write in play.world.writes]
    assert kinds.count(POD) == 5
    # The status is written as Pending with the job, with its pods, and when they run.
    assert kinds.count(JOB) == 3
    assert not play.world.refused


def test_what_schedulers_note_on_podgroups_does_not_come_from_a_job() -> None:
    """A tenant writes a job's annotations, which the controller copies to the PodGroup."""
    manifest = job(task("a", 1))
    own = {"optsched.io/shuffled-by-rescheduling": "2026-11-24T00:00:00Z", "team": "blue"}
    manifest["metadata"]["annotations"] = own
    play = Play(manifest)
    play.decide()
    (group,) = play.world.listed(POD_GROUP)
    found = group["metadata"]["annotations"]
    assert found["team"] == "blue"
    assert "optsched.io/shuffled-by-rescheduling" not in found


def test_a_job_waits_with_its_gangs_reason() -> None:
    play = Play(job(task("a")), is_admitted=False)
    why = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
    play.group_is("Pending", why | {"message": "queue q is full"})
    state = play.status["state"]
    assert (state["reason"], state["message"]) == ("NotEnoughResources", "queue q is full")
    assert [e.message for e in play.world.events] == [
        "PodGroup default:j unschedule,reason: queue q is full"
    ]
    play.admit()
    play.run()
    assert play.status["state"]["message"] == ""


def test_twelve_of_the_seeds_guide() -> None:
    play = Play(job(task("a", 5), minAvailable=3))
    play.run()
    play.succeed("a-0", "a-1", "a-2")
    play.fail("a-3", "a-4")
    assert play.phase == "Completed"


def test_too_few_successes_fail_a_job() -> None:
    play = Play(job(task("a", 3), minAvailable=2))
    play.run()
    play.succeed("a-0")
    play.fail("a-1", "a-2")
    assert play.phase == "Failed"
    assert play.status["state"]["message"] == "1 of 3 pods have succeeded"


def test_enough_successes_end_a_job_early() -> None:
    play = Play(job(task("a", 3), minSuccess=1))
    play.run()
    play.succeed("a-1")
    assert play.phase == "Completed"
    assert play.leaving == ["a-0", "a-2"]
    play.gone()
    assert play.pods == ["a-1"]


def test_a_finished_job_counts_ended_pods_that_are_deleted() -> None:
    """Kubernetes deletes the pods of a deleted node, also pods that have ended."""
    play = Play(job(task("a", 3), task("b"), minAvailable=3))
    play.run()
    play.succeed("a-0", "a-1", "b-0")
    play.fail("a-2")
    assert play.phase == "Completed"
    status = play.status
    assert (status["succeeded"], status["failed"]) == (3, 1)
    for name in ("a-0", "a-2", "b-0"):
        play.delete(name)
        play.gone()
    assert play.pods == ["a-1"]
    keys = ("succeeded", "failed", "terminating", "taskStatusCount")
    assert [play.status[key] for key in keys] == [3, 1, 0, status["taskStatusCount"]]


def test_a_resumed_job_counts_its_pods_anew() -> None:
    play = Play(job(task("a", 2)))
    play.run()
    play.succeed("a-0")
    play.command("AbortJob")
    play.gone()
    assert (play.phase, play.status["succeeded"]) == ("Aborted", 1)
    play.delete("a-0")
    play.gone()
    assert play.status["succeeded"] == 0


# --- policies ------------------------------------------------------------------------------------


def test_a_job_fails_after_its_last_retry() -> None:
    play = Play(job(task("a", 2), policies=[RESTART], maxRetry=3))
    for retry_count in (1, 2, 3):
        play.run()
        play.fail("a-1", code=137)
        play.gone()
        assert play.status["retryCount"] == retry_count
    life = ["Pending", "Running", "Restarting"]
    assert play.phases == [*life, *life, *life, "Failed"]
    assert play.pods == ["a-1"]  # the last pods stay for their logs
    assert play.status["state"]["reason"] == "MaxRetryReached"
    assert "pod j-a-1 has failed with exit code 137" in play.status["state"]["message"]


def test_a_restart_waits_until_there_is_room_for_the_minimum() -> None:
    play = Play(job(task("a", 3), policies=[RESTART], minAvailable=2))
    play.run()
    old = play.uids()
    play.fail("a-0")
    assert play.phase == "Restarting"
    assert play.leaving == ["a-1", "a-2"]
    assert play.group is None
    play.gone()
    assert play.phase == "Pending"
    assert not set(old.values()) & set(play.uids().values())
    assert play.status["version"] == 1
    annotations = play.pod("a-0")["metadata"]["annotations"]
    assert annotations["volcano.sh/job-version"] == "1"
    assert annotations["volcano.sh/job-retry-count"] == "1"


def test_a_job_that_starts_again_is_admitted_again() -> None:
    play = Play(job(task("a", 2), policies=[RESTART]))
    play.run()
    play.is_admitted = False
    play.fail("a-0")
    play.gone()
    assert play.phase == "Pending"
    assert play.pods == []
    play.admit()
    assert play.pods == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("action", "stages"),
    [
        ("AbortJob", ["Aborting", "Aborted"]),
        ("TerminateJob", ["Terminating", "Terminated"]),
        ("CompleteJob", ["Completing", "Completed"]),
    ],
)
def test_a_policy_ends_a_job(action: str, stages: list[str]) -> None:
    play = Play(job(task("a", 2), policies=[policy("PodFailed", action)]))
    play.run()
    play.fail("a-0")
    assert play.phases == ["Pending", "Running", stages[0]]
    assert play.leaving == ["a-1"]
    play.gone()
    assert play.phases == ["Pending", "Running", *stages]
    assert play.pods == ["a-0"]
    assert play.group is None


def test_a_restart_of_a_task_leaves_the_others_alone() -> None:
    worker = task("worker", 2, policies=[policy("PodFailed", "RestartTask")])
    play = Play(job(task("ps", 2), worker))
    play.run()
    servers, workers = play.uids("ps"), play.uids("worker")
    play.fail("worker-1")
    play.gone()
    assert play.uids("ps") == servers
    assert not set(play.uids("worker").values()) & set(workers.values())
    assert play.group is not None
    play.run()
    assert play.phases == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert play.status["retryCount"] == 1


def test_a_restart_of_a_pod_leaves_the_others_alone() -> None:
    play = Play(job(task("a", 3), policies=[policy("PodFailed", "RestartPod")]))
    play.run()
    before = play.uids()
    play.fail("a-1")
    play.gone()
    after = play.uids()
    assert {name for name in before if before[name] == after.get(name)} == {"a-0", "a-2"}
    play.run()
    assert play.phase == "Running"


def test_a_restart_of_a_partition_leaves_the_others_alone() -> None:
    parts = {"totalPartitions": 2, "partitionSize": 2}
    worker = task("w", 4, partitionPolicy=parts)
    play = Play(job(worker, policies=[policy("PodFailed", "RestartPartition")]))
    play.run()
    before = play.uids()
    play.fail("w-3")
    play.gone()
    after = play.uids()
    assert {name for name in before if before[name] == after.get(name)} == {"w-0", "w-1"}


def test_a_pod_that_is_deleted_restarts_a_job() -> None:
    play = Play(job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")]))
    play.run()
    play.delete("a-0")
    assert play.phase == "Restarting"
    play.gone()
    play.run()
    assert play.phases == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert play.status["retryCount"] == 1


def test_a_pod_that_nobody_saw_go_restarts_a_job() -> None:
    play = Play(job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")]))
    play.run()
    play.vanish("a-0")
    assert play.phase == "Restarting"
    assert play.status["retryCount"] == 1


def test_a_pod_that_is_gone_is_made_again_where_no_policy_speaks() -> None:
    play = Play(job(task("a", 2), minAvailable=1))
    play.run()
    before = play.uids()
    play.vanish("a-0")
    assert play.pods == ["a-0", "a-1"]
    assert play.uids()["a-1"] == before["a-1"]
    assert play.phase == "Running"


@pytest.mark.parametrize("is_seen", [True, False])
def test_evictions_by_the_scheduler_are_no_retries(is_seen: bool) -> None:
    play = Play(job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")], maxRetry=1))
    for evictions in (1, 2, 3):
        play.run()
        play.evict("a-0")
        if not is_seen:
            play.world.ended()
        play.settle()
        play.gone()
        assert play.phase == "Pending"
        assert play.status["retryCount"] == 0
        assert play.status["evictions"] == evictions


@pytest.mark.parametrize("reason", ["EvictionByEvictionAPI", "DeletionByTaintManager"])
def test_evictions_by_others_are_no_retries_either(reason: str) -> None:
    play = Play(job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")], maxRetry=1))
    for evictions in (1, 2, 3):
        play.run()
        disrupted = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        play.world.phase("j-a-0", "Running", conditions=[disrupted])
        play.delete("a-0")
        play.gone()
        assert play.phase == "Pending"
        assert (play.status["retryCount"], play.status["evictions"]) == (0, evictions)


@pytest.mark.parametrize("is_seen", [True, False])
def test_deletions_are_retries_but_never_the_last_one(is_seen: bool) -> None:
    play = Play(job(task("a", 2), policies=[policy("*", "RestartJob")], maxRetry=3))
    for counted in ((1, 0), (2, 0), (2, 1), (2, 2)):
        play.run()
        (play.delete if is_seen else play.vanish)("a-0")
        play.gone()
        assert play.phase == "Pending"
        assert (play.status["retryCount"], play.status.get("evictions", 0)) == counted
    play.run()
    play.fail("a-0")
    play.gone()
    assert (play.phase, play.status["retryCount"]) == ("Failed", 3)


@pytest.mark.parametrize(("is_ours", "counted"), [(True, (0, 1)), (False, (1, 0))])
def test_a_gang_that_the_scheduler_breaks_costs_no_retry(
    is_ours: bool, counted: tuple[int, int]
) -> None:
    play = Play(job(task("a", 2), policies=[policy("JobUnknown", "RestartJob")]))
    play.run()
    (play.evict if is_ours else play.delete)("a-0")
    play.settle()
    play.gone()
    play.group_is("Unknown")
    play.gone()
    assert play.phases.count("Restarting") == 1
    assert (play.status["retryCount"], play.status.get("evictions", 0)) == counted


def test_somebody_elses_deletion_beside_an_eviction_is_a_retry() -> None:
    play = Play(job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")], maxRetry=3))
    play.run()
    play.evict("a-0")
    play.world.remove(play.pod_ref("a-1"))
    play.settle()
    assert (play.status["retryCount"], play.status["evictions"]) == (1, 0)


def test_a_completed_task_completes_the_job() -> None:
    master = task("master", 1, policies=[policy("TaskCompleted", "CompleteJob")])
    play = Play(job(master, task("worker", 3)))
    play.run()
    play.succeed("master-0")
    assert play.phase == "Completing"
    play.gone()
    assert play.phase == "Completed"
    assert play.pods == ["master-0"]


def test_containers_that_were_started_too_often_fail_their_task() -> None:
    play = Play(job(task("a", 2, maxRetry=4), policies=[policy("TaskFailed", "TerminateJob")]))
    play.run()
    for restarts, phase in ((3, "Running"), (4, "Terminating")):
        status = [{"name": "main", "ready": True, "restartCount": restarts}]
        play.world.phase("j-a-0", "Running", containerStatuses=status)
        play.settle()
        assert play.phase == phase


@pytest.mark.parametrize(("max_retry", "phase"), [(None, "Terminating"), (-1, "Running")])
def test_three_starts_are_too_many_unless_any_number_may_be(
    max_retry: int | None, phase: str
) -> None:
    more = {} if max_retry is None else {"maxRetry": max_retry}
    play = Play(job(task("a", 2, **more), policies=[policy("TaskFailed", "TerminateJob")]))
    play.run()
    for name, restarts in (("j-a-0", 1), ("j-a-1", 2)):
        assert play.phase == "Running"
        status = [{"name": "main", "ready": True, "restartCount": restarts}]
        play.world.phase(name, "Running", containerStatuses=status)
        play.settle()
    assert play.phase == phase


def test_a_gang_that_is_broken_is_unknown() -> None:
    play = Play(job(task("a", 2), policies=[policy("JobUnknown", "RestartJob")]))
    play.run()
    play.group_is("Unknown")
    play.gone()
    assert play.phases == ["Pending", "Running", "Restarting", "Pending"]
    assert play.pods == ["a-0", "a-1"]


def test_a_change_of_the_job_is_an_event() -> None:
    play = Play(job(task("a", 2), policies=[policy("JobUpdated", "RestartJob")]))
    play.run()
    play.edit(tasks=[task("a", 3)])
    assert play.phase == "Restarting"
    play.gone()
    play.run()
    assert play.pods == ["a-0", "a-1", "a-2"]
    assert play.phases.count("Restarting") == 1


def test_a_pod_may_be_pending_only_so_long() -> None:
    stuck = policy("PodPending", "AbortJob", timeout="5m")
    play = Play(job(task("a", 2), policies=[stuck], minAvailable=1))
    play.run("a-0")
    assert Again(300.0) in play.world.agains
    play.world.passes(299)
    play.settle()
    assert play.phase == "Running"
    play.world.passes(1)
    play.settle()
    assert play.phase == "Aborting"


@pytest.mark.parametrize("action", ["RestartTask", "RestartPod"])
def test_a_pod_that_was_pending_too_long_is_made_again(action: str) -> None:
    stuck = policy("PodPending", action, timeout="10s")
    play = Play(job(task("a", 2), policies=[stuck]))
    before = play.uids()
    play.world.passes(10)
    play.settle()
    play.gone()
    assert play.pods == ["a-0", "a-1"]
    assert play.uids()["a-0"] != before["a-0"]


def test_a_pod_that_recovers_stops_the_clock() -> None:
    stuck = policy("PodPending", "AbortJob", timeout="5m")
    play = Play(job(task("a"), policies=[stuck]))
    play.world.passes(200)
    play.run()
    play.world.passes(200)
    play.settle()
    assert play.phase == "Running"


# --- Commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "stages"),
    [
        ("AbortJob", ["Aborting", "Aborted"]),
        ("TerminateJob", ["Terminating", "Terminated"]),
        ("CompleteJob", ["Completing", "Completed"]),
        ("RestartJob", ["Restarting", "Pending"]),
        ("RestartTask", ["Restarting", "Pending"]),
    ],
)
def test_a_command_is_carried_out_once(action: str, stages: list[str]) -> None:
    play = Play(job(task("a", 2)))
    play.run()
    play.command(action, message="because I say so")
    assert play.status["state"]["message"] == "because I say so"
    play.gone()
    assert play.phases == ["Pending", "Running", *stages]
    assert play.world.listed(COMMAND) == []
    assert play.reasons().count("ExecuteAction") == 1


def test_a_command_that_could_not_be_deleted_is_not_carried_out_again() -> None:
    play = Play(job(task("a", 2)))
    play.run()
    play.command("RestartJob", settle=False)
    [command] = play.world.listed(COMMAND)
    play.settle()
    play.gone()
    play.run()
    play.world.put(COMMAND, command)
    play.settle()
    assert play.phases == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert play.world.listed(COMMAND) == []


def test_suspended_jobs_resume_without_a_retry() -> None:
    play = Play(job(task("a", 2), maxRetry=1))
    for _ in range(4):
        play.run()
        play.command("AbortJob")
        play.gone()
        assert play.phase == "Aborted"
        assert play.pods == []
        play.command("ResumeJob")
    play.run()
    assert play.phase == "Running"
    assert (play.status["retryCount"], play.status["evictions"]) == (0, 0)
    assert sorted(statuses(play)) == ["Aborted", "Aborting", "Pending", "Restarting", "Running"]


def test_a_job_that_is_being_aborted_may_resume() -> None:
    play = Play(job(task("a", 2)))
    play.run()
    play.command("AbortJob")
    play.command("ResumeJob")
    play.gone()
    play.run()
    assert play.phases == ["Pending", "Running", "Aborting", "Restarting", "Pending", "Running"]


def test_commands_that_mean_nothing_go_with_a_word() -> None:
    play = Play(job(task("a")))
    play.run()
    play.command("ResumeJob")
    play.command("Dance")
    assert play.phase == "Running"
    assert play.world.listed(COMMAND) == []
    assert [e.message for e in play.world.events] == [
        "ResumeJob has no effect on a Running job",
        "Dance has no effect on a Running job",
    ]


def test_what_ends_a_job_waits_while_it_restarts() -> None:
    play = Play(job(task("a", 2), policies=[RESTART]))
    play.run()
    play.fail("a-0")
    play.command("AbortJob")
    assert play.phase == "Restarting"
    play.gone()
    play.gone()
    assert play.phase == "Aborted"


def test_a_command_for_another_job_of_the_name_goes() -> None:
    play = Play(job(task("a")))
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "old"}
    play.world.put(COMMAND, {"metadata": {"name": "c"}, "action": "AbortJob", "target": target})
    play.settle()
    assert play.phase == "Pending"
    assert play.world.listed(COMMAND) == []


# --- more and fewer pods -------------------------------------------------------------------------


def test_a_job_grows_and_shrinks_from_the_end() -> None:
    play = Play(job(task("a", 3), minAvailable=1, plugins={"svc": []}))
    play.run()
    before = play.uids()
    play.edit(tasks=[task("a", 5)], minAvailable=2)
    assert play.pods == ["a-0", "a-1", "a-2", "a-3", "a-4"]
    assert play.group is not None
    assert play.group["spec"]["minMember"] == 2
    play.run()
    play.edit(tasks=[task("a", 2)], minAvailable=1)
    assert play.leaving == ["a-2", "a-3", "a-4"]
    play.gone()
    assert play.uids() == {name: before[name] for name in ("a-0", "a-1")}
    assert play.phase == "Running"


def test_a_job_that_shrinks_is_not_evicted() -> None:
    play = Play(job(task("a", 3), policies=[policy("PodEvicted", "RestartJob")], minAvailable=1))
    play.run()
    play.edit(tasks=[task("a", 1)], minAvailable=1)
    play.gone()
    assert play.phases == ["Pending", "Running"]


# --- order of tasks ------------------------------------------------------------------------------


def test_tasks_wait_for_others() -> None:
    one, two = task("one"), task("two", 2, dependsOn={"name": ["one"]})
    three = task("three", 1, dependsOn={"name": ["two"]})
    play = Play(job(one, two, three, minAvailable=1))
    assert play.pods == ["one-0"]
    play.run()
    assert play.pods == ["one-0", "two-0", "two-1"]
    play.run("two-0")
    assert "three-0" not in play.pods
    play.run("two-1")
    assert "three-0" in play.pods


@pytest.mark.parametrize(("iteration", "is_there"), [("any", True), ("all", False)])
def test_one_of_several_may_be_enough(iteration: str, is_there: bool) -> None:
    waits = {"name": ["a", "b"], "iteration": iteration}
    play = Play(job(task("a"), task("b"), task("c", 1, dependsOn=waits), minAvailable=1))
    play.run("a-0")
    assert ("c-0" in play.pods) == is_there


def test_a_gang_is_not_asked_for_tasks_that_wait() -> None:
    master = task("master", 1, dependsOn={"name": ["worker"]})
    play = Play(job(master, task("worker", 10), minAvailable=11))
    assert play.group is not None
    assert play.group["spec"]["minMember"] == 10
    assert play.group["spec"]["minTaskMember"] == {"worker": 10}


# --- what is left of others ----------------------------------------------------------------------


def test_a_finished_job_goes_when_it_is_old() -> None:
    play = Play(job(task("a"), ttlSecondsAfterFinished=10))
    play.run()
    play.succeed()
    assert Again(10.0) in play.world.agains
    play.world.passes(9)
    assert not any(isinstance(effect, Delete) for effect in play.decide())
    play.world.passes(1)
    [deletion] = [effect for effect in play.decide() if isinstance(effect, Delete)]
    assert deletion.propagation is Propagation.FOREGROUND
    play.settle()
    play.gone()
    assert not play.exists


def test_an_aborted_job_stays() -> None:
    play = Play(job(task("a"), ttlSecondsAfterFinished=1))
    play.command("AbortJob")
    play.gone()
    play.world.passes(100)
    play.settle()
    assert play.phase == "Aborted"


def test_a_name_that_is_taken_is_waited_for() -> None:
    play = Play(job(task("a", 2)), is_admitted=False)
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "old"}
    meta = {"name": "j-a-0", "ownerReferences": [owner | {"controller": True}]}
    play.world.put(POD, {"metadata": meta, "status": {"phase": "Running"}})
    play.admit()
    assert play.status["pending"] == 1
    assert Again(1.0) in play.decide()
    play.world.remove(play.pod_ref("a-0"))
    play.gone()
    assert play.status["pending"] == 2


def test_a_pod_that_a_server_has_left_half_deleted_is_deleted_again() -> None:
    play = Play(job(task("a", 2), policies=[RESTART]))
    play.run()
    half = {"deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 0}
    play.world.change(play.pod_ref("a-1"), lambda pod: pod["metadata"].update(half))
    play.fail("a-0")
    play.world.ended("j-a-0")
    assert play.leaving == ["a-1"]
    assert Again(5.0) in play.decide()
    play.world.passes(5)
    [deletion] = [effect for effect in play.decide() if isinstance(effect, Delete)]
    assert (deletion.kind, deletion.name) == (POD, "j-a-1")


def test_a_claim_is_made_and_one_that_is_missing_waited_for() -> None:
    made = {"mountPath": "/in", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}}
    named = {"mountPath": "/out", "volumeClaimName": "results"}
    play = Play(job(task("a"), volumes=[made, named]))
    [claim] = play.world.listed(PERSISTENT_VOLUME_CLAIM)
    name = name_of(claim)
    assert name.startswith("j-pvc-")
    assert play.pods == []
    assert play.status["state"]["reason"] == "PVCError"
    assert Again(2.0) in play.decide()
    play.world.put(PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "results"}})
    play.settle()
    spec = play.pod("a-0")["spec"]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]]
    assert claims == [name, "results"]
    paths = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert paths == ["/in", "/out"]
    assert play.status["controlledResources"] == {
        f"volume-pvc-{name}": name,
        "volume-pvc-results": "results",
    }


def test_a_job_that_is_deleted_is_left_alone() -> None:
    play = Play(job(task("a")))
    play.world.remove(play.ref, Propagation.FOREGROUND)
    assert play.decide() == ()


def test_a_job_whose_group_is_lost_gets_another() -> None:
    play = Play(job(task("a", 2)))
    play.run()
    group = play.group
    assert group is not None
    play.world.remove(Ref(POD_GROUP, "default", name_of(group)))
    play.settle()
    assert play.group is not None
    assert play.phase == "Running"


def test_what_cannot_be_read_is_told() -> None:
    play = Play(job(task("a", "two")))  # type: ignore[arg-type]
    [event] = play.world.events[:1]
    assert event.reason == "JobStatusError"
    assert event.message == 'spec.tasks[0].replicas: "two" is not a whole number'
    assert play.pods == []


@pytest.mark.parametrize("max_retry", [1, 3])
@pytest.mark.parametrize("is_ours", [True, False])
def test_evictions_may_count_as_in_volcano(is_ours: bool, max_retry: int) -> None:
    policies = [policy("PodEvicted", "RestartJob")]
    play = Play(job(task("a", 2), policies=policies, maxRetry=max_retry))
    play.run()
    if is_ours:
        play.evict("a-0")
    else:
        play.world.remove(play.pod_ref("a-0"))
    effects = JobReconciler(Options(lambda: KEYS, evictions_are_retries=True))(
        play.manifest, play.world
    )
    play.world.apply(effects)
    assert (play.status["retryCount"], play.status.get("evictions", 0)) == (1, 0)


def test_a_job_with_more_pods_than_a_cluster_holds_is_named_and_left_alone() -> None:
    """A job can pass while the webhook is down, and the controller stores each pod separately."""
    play = Play(job(task("a", 2**31 - 1)))
    play.settle()
    assert play.group is None
    (message,) = {event.message for event in play.world.events}
    assert message == (
        "spec.tasks: 2147483647 pods are too many: all tasks together may have at most "
        "100000 replicas"
    )


# --- jobs that would keep the controllers from others ---------------------------------------------


def start_of(manifest: dict[str, Any]) -> list[Any]:
    """Return the effects for a job at the moment at which its gang is admitted."""
    play = Play(manifest, is_admitted=False)
    assert play.group is not None
    ref = Ref(POD_GROUP, "default", play.group["metadata"]["name"])
    play.world.change(ref, lambda obj: obj.update(status={"phase": "Inqueue"}))
    return list(play.decide())


def num_pods(effects: list[Any]) -> int:
    return sum(isinstance(each, Create) and each.kind == POD for each in effects)


def test_a_job_with_many_pods_gets_them_in_parts() -> None:
    manifest = job(task("w", 1200), minAvailable=1)
    effects = start_of(manifest)
    assert num_pods(effects) == 500
    assert Again(NEXT_PODS_S) in effects
    play = Play(manifest)
    assert len(play.pods) == 1200
    assert num_pods(list(play.decide())) == 0


@pytest.mark.parametrize("plugins", [{"svc": []}, {"tensorflow": []}, {"mpi": []}])
def test_the_larger_the_pods_of_a_job_the_fewer_are_made_at_once(
    plugins: dict[str, list[str]],
) -> None:
    if "svc" in plugins:
        tasks = [task(f"t{i}", 4, minAvailable=0) for i in range(300)]
    else:
        names = ("master" if "mpi" in plugins else "ps", "worker")
        tasks = [task(name, 10_000, minAvailable=0) for name in names]
    effects = start_of(job(*tasks, minAvailable=1, plugins=plugins))
    assert 1 <= num_pods(effects) <= 60
    assert Again(NEXT_PODS_S) in effects


def test_the_addresses_of_a_job_are_not_listed_again_for_each_of_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def count(job: str, task: str, index: int) -> str:
        calls.append(index)
        return f"{job}-{task}-{index}"

    tasks = [task(name, 200, minAvailable=0) for name in ("ps", "worker", "master")]
    monkeypatch.setattr(object_names, "pod_name", count)
    effects = start_of(job(*tasks, minAvailable=1, plugins={"svc": [], "tensorflow": []}))
    assert num_pods(effects) > 20
    assert len(calls) < 10 * 600


def test_tasks_that_many_wait_for_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(reconcile, "_has_started", lambda task, _: looked.append(task.name))
    waits = [
        task(f"t{i}", minAvailable=0, dependsOn={"name": [f"t{k}" for k in range(i)]})
        for i in range(1, 60)
    ]
    start_of(job(task("t0", 100), *waits, minAvailable=1))
    assert len(looked) == 59
