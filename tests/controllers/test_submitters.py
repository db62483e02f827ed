"""Controllers act on behalf of users: created objects carry the record of their submitter."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from optsched.api.kinds import (
    CRON_JOB,
    JOB,
    JOB_FLOW,
    JOB_TEMPLATE,
    POD,
    POD_GROUP,
    QUEUE,
    REPLICA_SET,
    Ref,
)
from optsched.api.wellknown import SUBMITTER, Subject, format_submitters, parse_submitters
from optsched.controllers.cronjob import CronJobs
from optsched.controllers.jobflow import JOB_FLOWS
from optsched.controllers.podgroup import Options, PodGroups
from tests.support.memory import MemoryWorld
from tests.support.vcjobs import Play, job, task

ANN, EVE = Subject("ann", frozenset({"lab"})), Subject("eve", frozenset())
BY_ANN = {SUBMITTER: format_submitters([ANN])}
BY_EVE = {SUBMITTER: format_submitters([EVE])}


def record_of(obj: Any) -> tuple[Subject, ...]:
    return parse_submitters(obj["metadata"].get("annotations", {}).get(SUBMITTER))


def made_by_cron(annotations: dict[str, str], template: dict[str, str]) -> Any:
    world = MemoryWorld()
    spec = {
        "schedule": "* * * * *",
        "jobTemplate": {"metadata": {"annotations": template}, "spec": {"tasks": []}},
    }
    meta = {"name": "c", "creationTimestamp": "2027-01-15T07:00:00Z", "annotations": annotations}
    world.put(CRON_JOB, {"metadata": meta, "spec": spec})
    world.apply(CronJobs(ZoneInfo).controller.decide(Ref(CRON_JOB, "default", "c"), world))
    (made,) = world.listed(JOB)
    return made


def test_a_job_of_a_cronjob_is_of_its_submitter_whatever_the_template_claims() -> None:
    assert record_of(made_by_cron(BY_EVE, BY_ANN)) == (EVE,)
    assert record_of(made_by_cron({}, BY_ANN)) == ()


def made_by_flow(flow: dict[str, str], template: dict[str, str]) -> Any:
    world = MemoryWorld()
    world.put(
        JOB_TEMPLATE,
        {"metadata": {"name": "t", "annotations": template}, "spec": {"tasks": []}},
    )
    spec = {"flows": [{"name": "t"}]}
    world.put(JOB_FLOW, {"metadata": {"name": "f", "annotations": flow}, "spec": spec})
    world.apply(JOB_FLOWS.decide(Ref(JOB_FLOW, "default", "f"), world))
    (made,) = world.listed(JOB)
    return made


def test_a_job_of_a_flow_is_of_all_who_wrote_it() -> None:
    assert record_of(made_by_flow(BY_ANN, BY_EVE)) == (ANN, EVE)
    assert record_of(made_by_flow(BY_ANN, BY_ANN)) == (ANN,)
    assert record_of(made_by_flow(BY_ANN, {})) == ()


def test_the_podgroup_of_a_pod_is_of_its_submitter() -> None:
    world = MemoryWorld()
    world.put(QUEUE, {"metadata": {"name": "default"}, "status": {"state": "Open"}})
    spec = {"schedulerName": "volcano", "containers": []}
    world.put(POD, {"metadata": {"name": "p", "uid": "u", "annotations": BY_EVE}, "spec": spec})
    ref = Ref(POD_GROUP, "default", "podgroup-u")
    world.apply(PodGroups(Options(inherits=())).controller.decide(ref, world))
    assert record_of(world.get(POD_GROUP, "default", "podgroup-u")) == (EVE,)


def test_a_pod_that_claims_the_owner_of_others_does_not_take_their_podgroup() -> None:
    """A pod may claim any owner, so the PodGroup follows only the newest pod of the same user."""
    world = MemoryWorld()
    for name in ("default", "lab"):
        world.put(QUEUE, {"metadata": {"name": name}, "status": {"state": "Open"}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "first", "uid": "u", "controller": True}

    def put(name: str, second: int, record: dict[str, str], **texts: str) -> None:
        meta: dict[str, Any] = {
            "name": name,
            "uid": "u" if name == "first" else name,
            "creationTimestamp": f"2027-01-15T07:00:{second:02}Z",
            "annotations": record | {f"scheduling.volcano.sh/{k}": v for k, v in texts.items()},
        }
        if name != "first":
            meta["ownerReferences"] = [owner]
        world.put(POD, {"metadata": meta, "spec": {"schedulerName": "volcano", "containers": []}})

    def decide() -> Any:
        ref = Ref(POD_GROUP, "default", "podgroup-u")
        world.apply(PodGroups(Options(inherits=())).controller.decide(ref, world))
        group = world.get(POD_GROUP, "default", "podgroup-u")
        assert group is not None
        return group["spec"]["queue"], record_of(group)

    put("first", 1, BY_ANN, **{"queue-name": "lab"})
    put("claims", 2, BY_EVE)
    assert decide() == ("lab", (ANN,))
    put("more", 3, BY_EVE)
    assert decide() == ("lab", (ANN,))
    put("second", 4, BY_ANN)
    assert decide() == ("default", (ANN,))
    world.phase("first", "Succeeded")
    world.phase("second", "Succeeded")
    assert decide() == ("default", (EVE,))


def test_a_pod_that_misnames_the_owner_of_others_changes_nothing_of_their_podgroup() -> None:
    """Only the UID of an owner makes a pod part of its PodGroup; the owner's name is not enough."""
    world = MemoryWorld()
    world.put(QUEUE, {"metadata": {"name": "default"}, "status": {"state": "Open"}})
    marks = {"scheduling.volcano.sh/group-min-member": "3"}
    world.put(REPLICA_SET, {"metadata": {"name": "r", "uid": "u", "annotations": marks}})
    ref = Ref(POD_GROUP, "default", "podgroup-u")
    for second, (name, record) in enumerate({"r": BY_ANN, "misnamed": BY_EVE}.items()):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "u"}
        meta = {
            "name": f"of-{name}",
            "uid": f"of-{name}",
            "creationTimestamp": f"2027-01-15T07:00:0{second}Z",
            "annotations": record,
            "ownerReferences": [{**owner, "controller": True}],
        }
        world.put(POD, {"metadata": meta, "spec": {"schedulerName": "volcano", "containers": []}})
        world.apply(PodGroups(Options()).controller.decide(ref, world))
        group = world.get(POD_GROUP, "default", "podgroup-u")
        assert group is not None
        assert group["spec"]["minMember"] == 3


def test_the_podgroup_of_a_job_is_of_its_submitter_and_its_pods_claim_nothing() -> None:
    worker = task("w")
    worker["template"]["metadata"] = {"annotations": {**BY_ANN, "a": "b"}}
    manifest = job(worker)
    manifest["metadata"]["annotations"] = BY_EVE
    play = Play(manifest)
    assert play.group is not None
    assert record_of(play.group) == (EVE,)
    annotations = play.pod("w-0")["metadata"]["annotations"]
    assert SUBMITTER not in annotations
    assert annotations["a"] == "b"
