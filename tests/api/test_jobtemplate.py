from __future__ import annotations

from optsched.api.jobflow import parse_jobtemplate


def test_a_template_is_read_and_kept_as_it_stands():
    spec = {"queue": "q", "tasks": [{"name": "w", "replicas": 2}]}
    obj = {"metadata": {"name": "t", "namespace": "ml"}, "spec": spec}
    found, errors = parse_jobtemplate({**obj, "status": {"jobDependsOnList": ["f-t"]}})
    assert errors == ()
    assert found is not None
    assert (found.key, found.template, found.jobs) == ("ml/t", spec, ("f-t",))
    assert (found.job.queue, found.job.min_available) == ("q", 2)


def test_what_has_no_reading_is_named():
    _, errors = parse_jobtemplate(
        {"metadata": {"name": "t"}, "spec": {"tasks": [{"replicas": -1}]}}
    )
    assert [error.path for error in errors] == ["spec.tasks[0].replicas"]
    assert parse_jobtemplate({})[0] is None
