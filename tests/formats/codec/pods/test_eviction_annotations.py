from __future__ import annotations

import pytest

from optsched.formats.codec.pod_limits import parse_budget
from optsched.formats.codec.pods.reader import PodDecoder
from tests.formats.objects import pod


def read(**parts: object):
    return PodDecoder().read(pod(**parts))


def test_a_plain_pod_may_be_evicted_and_others_for_it():
    task, errors = read()
    assert (task.preemptable, task.preempts, errors) == (True, True, ())
    assert (task.started_ms, task.saved_ms, task.cooldown_ms) == (0, 0, 0)


@pytest.mark.parametrize(
    ("annotations", "labels", "answer"),
    [
        ({"volcano.sh/preemptable": "false"}, {}, False),
        ({}, {"volcano.sh/preemptable": "false"}, False),
        ({"volcano.sh/preemptable": "true"}, {"volcano.sh/preemptable": "false"}, True),
        ({"volcano.sh/preemptable": "maybe"}, {}, False),
    ],
)
def test_an_annotation_counts_before_a_label(annotations, labels, answer):
    obj = pod()
    obj["metadata"] |= {"annotations": annotations, "labels": labels}
    assert PodDecoder().task(obj).preemptable is answer


def test_what_a_pod_says_about_its_past():
    obj = pod()
    obj["metadata"]["annotations"] = {
        "volcano.sh/cooldown-time": "600s",
        "optsched.io/checkpointed-at": "1970-01-01T00:00:07Z",
    }
    obj["spec"]["preemptionPolicy"] = "Never"
    obj["status"] = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "True",
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }
        ]
    }
    task = PodDecoder().task(obj)
    assert (task.cooldown_ms, task.saved_ms, task.started_ms) == (600_000, 7000, 5000)
    assert not task.preempts


def test_a_bad_mark_is_a_remark_and_nothing_more():
    obj = pod()
    obj["metadata"]["annotations"] = {"volcano.sh/cooldown-time": "soon"}
    task, (remark,) = PodDecoder().read(obj)
    assert (task.problem, task.cooldown_ms) == (None, 0)
    assert remark.path == "metadata.annotations[volcano.sh/cooldown-time]"


def test_a_budget_that_nobody_has_counted_allows_nothing():
    obj = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
    }
    budget, errors = parse_budget(obj)
    assert budget is not None
    assert (budget.key, budget.allowed, errors) == ("a/b", 0, ())
    assert budget.selector is not None
    assert budget.selector.matches({"app": "x"})


CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u-r"}


@pytest.mark.parametrize(
    ("owners", "annotations", "answer"),
    [
        ([], {}, ("", False)),
        ([{**CONTROLLER, "controller": True}], {}, ("u-r", True)),
        ([CONTROLLER], {}, ("", False)),
        ([{**CONTROLLER, "controller": True}], {"optsched.io/movable": "false"}, ("u-r", False)),
        ([], {"optsched.io/movable": "true"}, ("", True)),
        ([], {"optsched.io/movable": "perhaps"}, ("", False)),
    ],
)
def test_what_somebody_makes_anew_may_move(owners, annotations, answer):
    obj = pod()
    obj["metadata"] |= {"annotations": annotations, "ownerReferences": owners}
    task = PodDecoder().task(obj)
    assert (task.owner, task.is_movable) == answer


@pytest.mark.parametrize(
    ("annotation", "deadline", "expected_ms"),
    [
        (None, None, 0),
        ("90m", None, 5_400_000),
        (None, 60, 60_000),
        ("90m", 60, 60_000),
        ("30s", 60, 30_000),
        (None, -1, 0),
    ],
)
def test_how_long_a_pod_is_expected_to_run(annotation, deadline, expected_ms):
    obj = pod()
    if annotation is not None:
        obj["metadata"]["annotations"] = {"optsched.io/running-estimate": annotation}
    if deadline is not None:
        obj["spec"]["activeDeadlineSeconds"] = deadline
    task, errors = PodDecoder().read(obj)
    assert (task.estimate_ms, errors) == (expected_ms, ())


def test_an_estimate_without_a_reading_is_a_remark():
    obj = pod()
    obj["metadata"]["annotations"] = {"optsched.io/running-estimate": "a while"}
    task, (remark,) = PodDecoder().read(obj)
    assert (task.problem, task.estimate_ms) == (None, 0)
    assert remark.path == "metadata.annotations[optsched.io/running-estimate]"
