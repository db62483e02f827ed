"""A table of every transition between the phases of a job."""

from __future__ import annotations

import pytest

from optsched.api.job import JobAction, JobPhase, PodCounts, parse_job
from optsched.controllers.job.status import (
    NoTransition,
    after_action,
    after_kill,
    after_sync,
)
from tests.support.vcjobs import job, task

P = JobPhase
RESTARTS = ("RestartJob", "RestartTask", "RestartPod", "RestartPartition")
LEADS_TO = {
    **{(phase, action): P.RESTARTING for phase in (P.PENDING, P.RUNNING) for action in RESTARTS},
    **{(phase, "AbortJob"): P.ABORTING for phase in (P.PENDING, P.RUNNING)},
    **{(phase, "CompleteJob"): P.COMPLETING for phase in (P.PENDING, P.RUNNING)},
    **{(phase, "TerminateJob"): P.TERMINATING for phase in (P.PENDING, P.RUNNING)},
    (P.ABORTING, "ResumeJob"): P.RESTARTING,
    (P.ABORTED, "ResumeJob"): P.RESTARTING,
    **{
        (P.RESTARTING, end): NoTransition.LATER
        for end in ("AbortJob", "CompleteJob", "TerminateJob")
    },
}


@pytest.mark.parametrize("action", JobAction)
@pytest.mark.parametrize("phase", JobPhase)
def test_actions(phase: JobPhase, action: JobAction) -> None:
    assert after_action(phase, action) is LEADS_TO.get((phase, action.value), NoTransition.IGNORED)


def spec_of(*tasks: dict, **spec: object):  # type: ignore[no-untyped-def]
    found, errors = parse_job(job(*tasks, **spec))
    assert found is not None
    assert not errors
    return found.spec


@pytest.mark.parametrize(
    ("phase", "spec", "counts", "expected"),
    [
        (P.PENDING, {"minAvailable": 3}, PodCounts(pending=3, running=2), P.PENDING),
        (P.PENDING, {"minAvailable": 3}, PodCounts(running=1, succeeded=1, failed=1), P.RUNNING),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(running=3, pending=2), P.RUNNING),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(running=2, pending=3), P.PENDING),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(running=2, terminating=3), P.RUNNING),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(succeeded=3, failed=2), P.COMPLETED),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(succeeded=2, failed=3), P.FAILED),
        (P.RUNNING, {"minAvailable": 3}, PodCounts(succeeded=4, failed=0), P.RUNNING),
        (P.RUNNING, {"minSuccess": 1}, PodCounts(succeeded=1, running=4), P.COMPLETED),
        (P.RUNNING, {"minSuccess": 4}, PodCounts(succeeded=3, running=2), P.RUNNING),
        (
            P.RUNNING,
            {"minSuccess": 4, "minAvailable": 1},
            PodCounts(succeeded=3, failed=2),
            P.FAILED,
        ),
        (P.RESTARTING, {}, PodCounts(succeeded=5), P.RESTARTING),
        (P.COMPLETED, {}, PodCounts(failed=5), P.COMPLETED),
    ],
)
def test_pods_move_a_living_job(
    phase: JobPhase, spec: dict, counts: PodCounts, expected: JobPhase
) -> None:
    assert after_sync(phase, spec_of(task("t", 5), **spec), counts) is expected


def test_a_job_without_pods_stays_as_it_is() -> None:
    assert after_sync(P.RUNNING, spec_of(task("t", 0)), PodCounts()) is P.RUNNING


@pytest.mark.parametrize(("succeeded", "expected"), [(2, P.COMPLETED), (1, P.FAILED)])
def test_a_task_below_its_minimum_fails_the_job(succeeded: int, expected: JobPhase) -> None:
    spec = spec_of(task("a", 2, minAvailable=2), task("b", 3, minAvailable=1), minAvailable=3)
    by_task = {"a": {"Succeeded": succeeded, "Failed": 2 - succeeded}, "b": {"Succeeded": 3}}
    counts = PodCounts(succeeded=3 + succeeded, failed=2 - succeeded, by_task=by_task)
    assert after_sync(P.RUNNING, spec, counts) is expected


def test_minimums_of_tasks_do_not_count_where_the_jobs_is_smaller() -> None:
    spec = spec_of(task("a", 2, minAvailable=2), task("b", 3, minAvailable=1), minAvailable=2)
    by_task = {"a": {"Failed": 2}, "b": {"Succeeded": 3}}
    counts = PodCounts(succeeded=3, failed=2, by_task=by_task)
    assert after_sync(P.RUNNING, spec, counts) is P.COMPLETED


@pytest.mark.parametrize(
    ("phase", "counts", "retry_count", "expected"),
    [
        (P.RESTARTING, PodCounts(terminating=3), 1, P.RESTARTING),
        (P.RESTARTING, PodCounts(terminating=2), 1, P.PENDING),
        (P.RESTARTING, PodCounts(), 1, P.PENDING),
        (P.RESTARTING, PodCounts(terminating=5), 3, P.FAILED),
        (P.ABORTING, PodCounts(terminating=1), 0, P.ABORTING),
        (P.ABORTING, PodCounts(succeeded=2, failed=1), 0, P.ABORTED),
        (P.ABORTED, PodCounts(), 0, P.ABORTED),
        (P.COMPLETING, PodCounts(running=1), 0, P.COMPLETING),
        (P.COMPLETING, PodCounts(succeeded=1), 0, P.COMPLETED),
        (P.TERMINATING, PodCounts(pending=1), 0, P.TERMINATING),
        (P.TERMINATING, PodCounts(failed=1), 0, P.TERMINATED),
        (P.TERMINATING, PodCounts(unknown=1), 0, P.TERMINATING),
        (P.COMPLETED, PodCounts(), 0, P.COMPLETED),
        (P.FAILED, PodCounts(), 3, P.FAILED),
        (P.TERMINATED, PodCounts(), 0, P.TERMINATED),
    ],
)
def test_pods_that_go_move_a_job_on(
    phase: JobPhase, counts: PodCounts, retry_count: int, expected: JobPhase
) -> None:
    spec = spec_of(task("t", 5), minAvailable=3)
    assert after_kill(phase, spec, counts, retry_count) is expected
