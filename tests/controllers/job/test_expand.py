"""The pods of an expanded job are those that its controller creates."""

from __future__ import annotations

from typing import Any

from optsched.api.kinds import PRIORITY_CLASS
from optsched.controllers.job.preview import expand_job
from tests.support.vcjobs import Play, container, job, task


def asking(cpu: str) -> dict[str, Any]:
    return {"spec": {"containers": [container(resources={"requests": {"cpu": cpu}})]}}


def test_it_is_what_the_controller_makes() -> None:
    manifest = job(
        task("ps", 1, template=asking("1")),
        task("worker", 2, template=asking("2")),
        minAvailable=2,
        queue="ml",
        priorityClassName="high",
        plugins={"pytorch": ["--master=ps"], "env": []},
    )
    manifest["metadata"]["annotations"] = {"optsched.io/running-estimate": "2h"}
    expanded, errors = expand_job(manifest, {})
    play = Play(manifest)
    assert errors == ()
    assert expanded is not None
    assert expanded.later == ()
    assert play.group is not None
    assert expanded.group["spec"] == play.group["spec"]
    for part in ("name", "namespace", "annotations", "ownerReferences"):
        assert expanded.group["metadata"][part] == play.group["metadata"][part]
    assert [pod["metadata"]["name"] for pod in expanded.pods] == [
        "j-ps-0",
        "j-worker-0",
        "j-worker-1",
    ]
    for pod in expanded.pods:
        made = play.pod(pod["metadata"]["name"].removeprefix("j-"))
        assert pod["spec"] == made["spec"]
        assert pod["metadata"].items() <= made["metadata"].items()


def test_tasks_that_wait_for_others_have_no_pods_yet() -> None:
    manifest = job(task("a", 2), task("b", 3, dependsOn={"name": ["a"]}), minAvailable=5)
    expanded, _ = expand_job(manifest, {})
    assert expanded is not None
    assert expanded.later == ("b",)
    assert len(expanded.pods) == 2
    assert expanded.group["spec"]["minMember"] == 2


def test_classes_say_which_tasks_count_first() -> None:
    urgent = {**asking("4")["spec"], "priorityClassName": "urgent"}
    manifest = job(
        task("a", 1, template=asking("1")), task("b", 1, template={"spec": urgent}), minAvailable=1
    )
    classes = {"urgent": {"kind": PRIORITY_CLASS.kind, "value": 10}}
    for given, cpu in (({}, "1"), (classes, "4")):
        expanded, _ = expand_job(manifest, given)
        assert expanded is not None
        assert expanded.group["spec"]["minResources"]["cpu"] == cpu


def test_what_is_wrong_is_told_and_nothing_is_made() -> None:
    expanded, errors = expand_job(job(task("a", 1), minAvailable="many"), {})
    assert expanded is None
    assert [error.path for error in errors] == ["spec.minAvailable"]
