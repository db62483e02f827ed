from __future__ import annotations

from optsched.api.jobflow import ActiveJob, ConcurrencyPolicy, parse_cronjob


def test_every_field_of_a_full_cronjob():
    spec = {"tasks": [{"replicas": 2}]}
    found, errors = parse_cronjob(
        {
            "metadata": {"name": "c", "namespace": "ml"},
            "spec": {
                "schedule": "*/5 * * * *",
                "timeZone": "Asia/Shanghai",
                "startingDeadlineSeconds": 5_000_000_000,
                "concurrencyPolicy": "Replace",
                "suspend": True,
                "jobTemplate": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                    "spec": spec,
                },
                "successfulJobsHistoryLimit": 0,
                "failedJobsHistoryLimit": 7,
            },
            "status": {
                "active": [{"name": "c-1", "namespace": "ml", "uid": "u"}],
                "lastScheduleTime": "1970-01-01T00:05:00Z",
            },
        }
    )
    assert errors == ()
    assert found is not None
    assert (found.key, found.schedule, found.time_zone) == ("ml/c", "*/5 * * * *", "Asia/Shanghai")
    assert (found.starting_deadline_s, found.suspended) == (5_000_000_000, True)
    assert found.concurrency is ConcurrencyPolicy.REPLACE
    template = found.template
    assert (template.labels, template.annotations) == ({"a": "b"}, {"c": "d"})
    assert template.spec == spec
    assert template.job.min_available == 2
    assert (found.num_successful_kept, found.num_failed_kept) == (0, 7)
    assert found.active == (ActiveJob("c-1", "ml", "u"),)
    assert (found.last_schedule_ms, found.last_success_ms) == (300_000, None)


def test_defaults_and_what_is_missing():
    found, errors = parse_cronjob({"metadata": {"name": "c"}, "spec": {}})
    assert found is not None
    assert [str(error) for error in errors] == [
        "spec.schedule is missing and has no default",
        "spec.jobTemplate is missing and has no default",
    ]
    assert (found.num_successful_kept, found.num_failed_kept) == (3, 1)
    assert found.concurrency is ConcurrencyPolicy.ALLOW
    assert parse_cronjob({})[0] is None
