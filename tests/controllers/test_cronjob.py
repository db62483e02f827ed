"""Tests of jobs that a CronJob creates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.api.json_fields import owner_reference
from optsched.api.kinds import CRON_JOB, JOB, Ref
from optsched.controllers.cronjob import CronJobs
from optsched.controllers.effects import Create
from tests.support.memory import MemoryWorld

CONTROLLER = CronJobs(ZoneInfo).controller
REF = Ref(CRON_JOB, "default", "nightly")
TEMPLATE = {"spec": {"minAvailable": 1, "tasks": [{"name": "t", "replicas": 1}]}}


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def play(now: str = "2026-11-21T10:00:30Z", **spec: Any) -> MemoryWorld:
    """Return a world with one CronJob that was created just now."""
    world = MemoryWorld(ms(now))
    spec = {"schedule": "0 * * * *", "jobTemplate": TEMPLATE, **spec}
    world.put(CRON_JOB, {"metadata": {"name": "nightly"}, "spec": spec})
    return world


def settle(world: MemoryWorld) -> None:
    """Reconcile until no further write happens."""
    for _ in range(10):
        before = len(world.writes)
        world.apply(CONTROLLER.decide(REF, world))
        if len(world.writes) == before:
            return
    raise AssertionError("it never comes to rest")


def at(world: MemoryWorld, time: str) -> None:
    world.now_ms = ms(time)
    settle(world)


def end(world: MemoryWorld, name: str, phase: str = "Completed") -> None:
    when = datetime.fromtimestamp(world.now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"state": {"phase": phase, "lastTransitionTime": when}}
    world.change(Ref(JOB, "default", name), lambda job: job.update(status=status))


def jobs(world: MemoryWorld) -> list[str]:
    return sorted(job["metadata"]["name"] for job in world.listed(JOB))


def status(world: MemoryWorld) -> dict[str, Any]:
    return dict(world.get(CRON_JOB, "default", "nightly").get("status", {}))


def name_at(time: str) -> str:
    return f"nightly-{ms(time) // 60_000}"


def reasons(world: MemoryWorld) -> set[str]:
    return {event.reason for event in world.events}


ELEVEN, TWELVE = name_at("2026-11-21T11:00:00Z"), name_at("2026-11-21T12:00:00Z")


def test_a_job_is_made_when_it_is_due_and_not_before() -> None:
    world = play()
    settle(world)
    assert jobs(world) == []
    assert world.agains[-1].after_s == pytest.approx(59.5 * 60 + 0.1)
    at(world, "2026-11-21T11:00:00Z")
    assert jobs(world) == [ELEVEN]
    job = world.get(JOB, "default", ELEVEN)
    assert job["spec"] == TEMPLATE["spec"]
    assert job["metadata"]["annotations"] == {
        "volcano.sh/cronjob-scheduled-timestamp": "2026-11-21T11:00:00Z"
    }
    assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    assert status(world)["lastScheduleTime"] == "2026-11-21T11:00:00Z"
    assert [each["name"] for each in status(world)["active"]] == [ELEVEN]
    assert "SuccessfulCreate" in reasons(world)


def test_labels_and_annotations_of_the_template_are_the_jobs() -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    world = play(jobTemplate={**TEMPLATE, "metadata": metadata}, timeZone="Asia/Shanghai")
    at(world, "2026-11-21T11:00:00Z")
    meta = world.get(JOB, "default", ELEVEN)["metadata"]
    assert meta["labels"] == {"a": "b"}
    assert meta["annotations"] == {
        "c": "d",
        "volcano.sh/cronjob-scheduled-timestamp": "2026-11-21T19:00:00+08:00",
    }


@pytest.mark.parametrize(
    ("policy", "expected", "reason"),
    [
        ("Allow", [ELEVEN, TWELVE], "SuccessfulCreate"),
        ("Forbid", [ELEVEN], "ForbidConcurrent"),
        ("Replace", [TWELVE], "ReplaceConcurrent"),
    ],
)
def test_jobs_beside_each_other(policy: str, expected: list[str], reason: str) -> None:
    world = play(concurrencyPolicy=policy)
    at(world, "2026-11-21T11:00:00Z")
    at(world, "2026-11-21T12:00:00Z")
    assert jobs(world) == expected
    assert [each["name"] for each in status(world)["active"]] == expected
    assert reason in reasons(world)


def test_what_had_to_wait_begins_when_the_one_before_has_ended() -> None:
    world = play(concurrencyPolicy="Forbid")
    at(world, "2026-11-21T11:00:00Z")
    at(world, "2026-11-21T12:05:00Z")
    end(world, ELEVEN)
    settle(world)
    assert jobs(world) == [ELEVEN, TWELVE]
    assert status(world)["lastSuccessfulTime"] == "2026-11-21T12:05:00Z"
    assert "SawCompletedJob" in reasons(world)


def test_what_is_too_late_does_not_begin() -> None:
    world = play(concurrencyPolicy="Forbid", startingDeadlineSeconds=60)
    at(world, "2026-11-21T11:00:00Z")
    at(world, "2026-11-21T12:05:00Z")
    end(world, ELEVEN)
    settle(world)
    assert jobs(world) == [ELEVEN]


def test_of_many_that_were_missed_the_last_is_made_up_for() -> None:
    world = play(schedule="* * * * *")
    at(world, "2026-11-21T12:00:10Z")
    assert jobs(world) == [TWELVE]
    assert "TooManyMissedTimes" in reasons(world)
    few = play(schedule="0 * * * *")
    at(few, "2026-11-21T12:00:10Z")
    assert "TooManyMissedTimes" not in reasons(few)


def test_a_suspended_one_makes_nothing_and_still_tells_what_ends() -> None:
    world = play()
    at(world, "2026-11-21T11:00:00Z")
    world.change(REF, lambda cron: cron["spec"].update(suspend=True))
    end(world, ELEVEN)
    at(world, "2026-11-21T13:00:00Z")
    assert jobs(world) == [ELEVEN]
    assert "active" not in status(world)
    assert status(world)["lastSuccessfulTime"] == "2026-11-21T11:00:00Z"


def test_old_jobs_go_those_that_failed_and_those_that_did_not_apart() -> None:
    world = play(schedule="* * * * *", successfulJobsHistoryLimit=2, failedJobsHistoryLimit=1)
    phases = ["Completed", "Failed", "Completed", "Terminated", "Completed", "Aborted"]
    for minute, phase in enumerate(phases, start=1):
        time = f"2026-11-21T10:{minute:02}:00Z"
        at(world, time)
        end(world, name_at(time), phase)
    settle(world)
    kept = [name_at(f"2026-11-21T10:{minute:02}:00Z") for minute in (3, 4, 5, 6)]
    assert jobs(world) == kept
    assert [each["name"] for each in status(world)["active"]] == [kept[-1]]


def test_a_job_that_goes_at_once_has_been_counted() -> None:
    world = play(successfulJobsHistoryLimit=0)
    world.now_ms = ms("2026-11-21T11:00:00Z")
    world.apply(CONTROLLER.decide(REF, world))
    end(world, ELEVEN)
    settle(world)
    assert jobs(world) == []
    assert status(world) == {
        "lastScheduleTime": "2026-11-21T11:00:00Z",
        "lastSuccessfulTime": "2026-11-21T11:00:00Z",
    }
    assert len([w for w in world.writes if isinstance(w, Create)]) == 1


def test_a_job_is_made_once_wherever_it_crashes() -> None:
    world = play()
    world.now_ms = ms("2026-11-21T11:00:00Z")
    for cut in (0, 1, 0, 2, 1):
        world.apply(CONTROLLER.decide(REF, world)[:cut])
    settle(world)
    assert jobs(world) == [ELEVEN]
    assert world.refused == []


@given(st.lists(st.integers(-110, 110), max_size=30))
def test_a_clock_that_jumps_makes_no_job_twice_and_none_early(jumps: list[int]) -> None:
    world = play(schedule="* * * * *", successfulJobsHistoryLimit=0)
    settle(world)
    made: list[str] = []
    for jump in jumps:
        world.now_ms += jump * 1000
        settle(world)
        made += jobs(world)
        assert all(int(name.rpartition("-")[2]) * 60_000 <= world.now_ms for name in jobs(world))
        for name in jobs(world):
            end(world, name)
        settle(world)
        assert jobs(world) == []
    assert len(made) == len(set(made))
    assert world.refused == []


def test_a_clock_that_was_a_year_ahead_costs_no_year() -> None:
    world = play()
    settle(world)
    at(world, "2027-11-21T11:00:00Z")
    [ahead] = jobs(world)
    at(world, "2026-11-21T10:30:00Z")
    assert jobs(world) == [ahead]
    at(world, "2026-11-21T11:00:10Z")
    assert jobs(world) == sorted([ahead, ELEVEN])
    assert status(world)["lastScheduleTime"] == "2026-11-21T11:00:00Z"
    at(world, "2026-11-21T12:00:10Z")
    assert TWELVE in jobs(world)


@pytest.mark.parametrize("names_uid", [False, True])
def test_the_job_of_somebody_else_is_left_alone(*, names_uid: bool) -> None:
    """A user may write the UID of the CronJob together with another kind, without a review."""
    world = play()
    [cron] = world.listed(CRON_JOB)
    owner = {**owner_reference(CRON_JOB, cron), "apiVersion": "example.org/v1", "kind": "Any"}
    owned = {"ownerReferences": [owner]} if names_uid else {}
    world.put(JOB, {"metadata": {"name": ELEVEN, **owned}})
    at(world, "2026-11-21T11:00:00Z")
    assert "ForeignJob" in reasons(world)
    assert world.writes == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"schedule": "0 25 * * *"}, "UnParseableCronJobSchedule"),
        ({"timeZone": "Nowhere/Land"}, "InvalidTimeZone"),
        ({"timeZone": "../etc"}, "InvalidTimeZone"),
    ],
)
def test_what_can_not_be_read_is_told(spec: dict[str, Any], reason: str) -> None:
    world = play(**spec)
    at(world, "2026-11-21T11:00:00Z")
    assert (jobs(world), reasons(world)) == ([], {reason})


@pytest.mark.parametrize("prefix", ["TZ=Asia/Shanghai ", "CRON_TZ=Asia/Shanghai "])
def test_a_timetable_may_name_its_own_place(prefix: str) -> None:
    world = play(schedule=f"{prefix}0 19 * * *", timeZone="Europe/Berlin")
    at(world, "2026-11-21T11:00:00Z")
    assert jobs(world) == [ELEVEN]


def test_at_rest_nothing_is_written() -> None:
    world = play()
    at(world, "2026-11-21T11:00:00Z")
    before = len(world.writes)
    at(world, "2026-11-21T11:30:00Z")
    assert len(world.writes) == before
