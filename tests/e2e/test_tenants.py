"""Two tenants of one namespace with the chart's roles: attacks of one on the other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.api.wellknown import SUBMITTER
from tests.support.api import Refused, until
from tests.support.tenants import (
    GROUP_KEY,
    QUEUE_KEY,
    SPACE,
    Raw,
    Stage,
    denial,
    group,
    group_of,
    job,
    pod,
    record,
    tenants,
)
from tests.support.webhooks import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("tenants")]


@pytest.fixture(scope="module")
def stage(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with tenants(control_plane, api, tmp_path_factory.mktemp("tenants")) as stage:
        yield stage


# --- the queue of another tenant ------------------------------------------------------------------


def test_a_tenant_uses_queues_that_he_was_given_and_no_other(stage: Stage) -> None:
    stage.ann.post(stage.path(kinds.JOB), job("of-ann", "lab"))
    stage.eve.post(stage.path(kinds.JOB), job("of-eve", "students"))
    stage.eve.post(stage.path(kinds.JOB), job("of-eve-too", "default"))
    for user, queue in ((stage.eve, "lab"), (stage.ann, "students")):
        said = denial(user.post, stage.path(kinds.JOB), job("no", queue))
        assert f"may not use queue {queue} from namespace {SPACE}" in said
    said = denial(stage.eve.post, stage.path(kinds.POD_GROUP), group("no", "lab"))
    assert "user eve may not use queue lab" in said
    # The PodGroups that controllers create for jobs record the submitter.
    for name, user in (("of-ann", "ann"), ("of-eve", "eve")):
        until(lambda name=name: group_of(stage, name), f"the PodGroup of {name}")  # type: ignore[misc]
        assert record(group_of(stage, name)) == [user]


def test_the_record_can_not_be_forged(stage: Stage) -> None:
    forged = {SUBMITTER: json.dumps({"user": "ann", "groups": []})}
    path = stage.path(kinds.POD_GROUP)
    stage.eve.post(path, group("forged", "default", **forged))
    assert record(stage.find(kinds.POD_GROUP, "forged")) == ["eve"]
    change = {"metadata": {"annotations": forged}}
    stage.eve.patch(f"{path}/forged", change)
    assert record(stage.find(kinds.POD_GROUP, "forged")) == ["eve"]
    stage.eve.post(stage.path(kinds.POD), pod("forged", **forged))
    assert record(stage.find(kinds.POD, "forged")) == ["eve"]
    said = denial(stage.eve.patch, stage.path(kinds.POD, "forged"), change)
    assert "only admission may write it" in said


def test_a_pod_does_not_enter_a_queue_later(stage: Stage) -> None:
    """Ways 1 and 2: the pod names the queue after its creation, or uses the name of a PodGroup."""
    stage.eve.post(stage.path(kinds.POD), pod("later", **{QUEUE_KEY: "students"}))
    uid = stage.admin.get(stage.path(kinds.POD, "later"))["metadata"]["uid"]
    change = {"metadata": {"annotations": {QUEUE_KEY: "lab"}}}
    said = denial(stage.eve.patch, stage.path(kinds.POD, "later"), change)
    assert "user eve may not use queue lab" in said
    made = f"podgroup-{uid}"
    until(lambda: stage.find(kinds.POD_GROUP, made), "its PodGroup is made")
    assert record(stage.find(kinds.POD_GROUP, made)) == ["eve"]
    moved = {"spec": {"queue": "lab"}}
    said = denial(stage.eve.patch, stage.path(kinds.POD_GROUP, made), moved)
    assert "user eve may not use queue lab" in said
    hidden = pod("hidden", **{QUEUE_KEY: "lab", GROUP_KEY: "podgroup-of-nobody"})
    said = denial(stage.eve.post, stage.path(kinds.POD), hidden)
    assert "user eve may not use queue lab" in said
    assert "only controllers create PodGroups with a UID" in said


def test_work_made_before_the_queue_does_not_enter_it(stage: Stage) -> None:
    """Way 3: templates may name a queue that does not exist yet, but their jobs are checked."""
    queue = "tenants-late"
    path = object_path(kinds.QUEUE, None, queue)
    template = {
        "apiVersion": kinds.JOB_TEMPLATE.api_version,
        "kind": "JobTemplate",
        "metadata": {"name": "late"},
        "spec": job("late", queue)["spec"],
    }
    flow = {
        "apiVersion": kinds.JOB_FLOW.api_version,
        "kind": "JobFlow",
        "metadata": {"name": "early"},
        "spec": {"flows": [{"name": "late"}]},
    }
    cron = {
        "apiVersion": kinds.CRON_JOB.api_version,
        "kind": "CronJob",
        "metadata": {"name": "early"},
        "spec": {
            "schedule": "0 0 1 1 *",
            "jobTemplate": {"metadata": {}, "spec": template["spec"]},
        },
    }
    for kind, body in (
        (kinds.CRON_JOB, cron),
        (kinds.JOB_TEMPLATE, template),
        (kinds.JOB_FLOW, flow),
    ):
        stage.eve.post(stage.path(kind), body)
        assert record(stage.find(kind, body["metadata"]["name"])) == ["eve"]
    by_eve = stage.admin.get(stage.path(kinds.CRON_JOB, "early"))["metadata"]["annotations"]
    body = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue", "spec": {"weight": 1}}
    lists = {"optsched.io/users": "ann"}
    meta = {"name": queue, "annotations": lists}
    stage.admin.post(collection_path(kinds.QUEUE), {**body, "metadata": meta})
    try:
        until(lambda: (stage.admin.get(path).get("status") or {}).get("state"), "it is open")
        before = stage.num_refused()
        # A change of the flow triggers another reconciliation.
        labels = {"metadata": {"labels": {"look": "again"}}}
        stage.admin.patch(stage.path(kinds.JOB_FLOW, "early"), labels)
        until(lambda: stage.num_refused() > before, "the job is refused")
        assert stage.find(kinds.JOB, "early-late") is None
        assert f"user eve may not use queue {queue}" in denial(
            stage.controller.post, stage.path(kinds.JOB), job("c-1", queue, **by_eve)
        )
    finally:
        stage.admin.delete(stage.path(kinds.JOB_FLOW, "early"))
        stage.admin.delete(stage.path(kinds.CRON_JOB, "early"))
        stage.admin.delete(path)


def test_a_pod_does_not_join_the_work_of_another_tenant(stage: Stage) -> None:
    """Way 4: a pod names a PodGroup before or after its creation, or claims a false owner."""
    groups = stage.path(kinds.POD_GROUP)
    stage.eve.post(stage.path(kinds.POD), pod("waits", **{GROUP_KEY: "gang"}))
    said = denial(stage.ann.post, groups, group("gang", "lab"))
    assert "pod waits of user eve names this PodGroup, but may not use queue lab" in said
    stage.eve.delete(stage.path(kinds.POD, "waits"))
    stage.ann.post(groups, group("gang", "lab"))
    said = denial(stage.eve.post, stage.path(kinds.POD), pod("joins", **{GROUP_KEY: "gang"}))
    assert "user eve may not use queue lab" in said
    stage.eve.post(stage.path(kinds.POD), pod("free"))
    change = {"metadata": {"annotations": {GROUP_KEY: "gang"}}}
    said = denial(stage.eve.patch, stage.path(kinds.POD, "free"), change)
    assert "user eve may not use queue lab" in said
    stage.ann.post(stage.path(kinds.POD), pod("member", **{GROUP_KEY: "gang"}))
    # The PodGroup of the false owner admits the pod only as a pod of Eve.
    stage.ann.post(stage.path(kinds.POD), pod("owner", **{QUEUE_KEY: "lab"}))
    owner = stage.admin.get(stage.path(kinds.POD, "owner"))["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner["uid"]}
    made = f"podgroup-{owner['uid']}"
    until(lambda: stage.find(kinds.POD_GROUP, made), "the PodGroup of the owner")
    # Object times are whole seconds, so only a later second makes this pod the newest of the group.
    made_at = datetime.fromisoformat(owner["creationTimestamp"])
    until(lambda: datetime.now(UTC) >= made_at + timedelta(seconds=1), "the next second")
    stage.eve.post(stage.path(kinds.POD), pod("child", own={**reference, "controller": True}))
    (said,) = until(lambda: stage.events("child"), "the refusal is reported")
    assert "user eve may not use queue lab" in said
    annotations = stage.admin.get(stage.path(kinds.POD, "child"))["metadata"]["annotations"]
    assert GROUP_KEY not in annotations
    kept = stage.admin.get(stage.path(kinds.POD_GROUP, made))
    assert kept["spec"]["queue"] == "lab"
    assert '"user":"ann"' in kept["metadata"]["annotations"]["optsched.io/submitter"]


def test_work_does_not_grow_in_a_queue_that_its_user_may_no_longer_use(stage: Stage) -> None:
    """Way 5: a user who has left the list may not raise replicas, but may lower them."""
    lab = object_path(kinds.QUEUE, None, "lab")
    lists = "optsched.io/users"
    stage.admin.patch(lab, {"metadata": {"annotations": {lists: "ann,eve"}}})

    def is_let_in() -> bool:
        try:
            stage.eve.post(stage.path(kinds.JOB), job("grows", "lab", 2))
        except Refused:
            return False
        return True

    until(is_let_in, "Eve is on the list")
    stage.admin.patch(lab, {"metadata": {"annotations": {lists: "ann"}}})
    path = stage.path(kinds.JOB, "grows")
    [task] = stage.admin.get(path)["spec"]["tasks"]

    def scale(number: int) -> str:
        tasks = [{**task, "replicas": number, "minAvailable": 1}]
        try:
            stage.eve.patch(path, {"spec": {"tasks": tasks, "minAvailable": 1}})
        except Refused as e:
            return str(e)
        return ""

    until(lambda: "user eve may not use queue lab" in scale(3), "growth is denied")
    assert stage.admin.get(path)["spec"]["tasks"][0]["replicas"] == 2
    assert scale(1) == ""


def test_a_queue_is_not_closed_by_a_tenant(stage: Stage) -> None:
    def command(name: str) -> Raw:
        uid = stage.admin.get(object_path(kinds.QUEUE, None, "lab"))["metadata"]["uid"]
        target = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue", "name": "lab", "uid": uid}
        kind = {"apiVersion": kinds.COMMAND.api_version, "kind": "Command"}
        return {**kind, "metadata": {"name": name}, "action": "CloseQueue", "target": target}

    said = denial(stage.eve.post, stage.path(kinds.COMMAND), command("close"))
    assert "user eve may not create a Command for queue lab" in said
    for action, given in (
        (stage.eve.patch, (object_path(kinds.QUEUE, None, "lab"), {"spec": {"weight": 9}})),
        (stage.eve.patch, (object_path(kinds.QUEUE, None, "lab", "status"), {"status": {}})),
    ):
        assert "cannot patch resource" in denial(action, *given)


# --- claims of tenants ----------------------------------------------------------------------------


def test_a_tenant_does_not_claim_what_only_others_may_say(stage: Stage) -> None:
    """The fields are eviction protection, devices, charged users and system priorities."""
    shield = {"volcano.sh/preemptable": "false"}
    for key, value in (
        *shield.items(),
        ("volcano.sh/cooldown-time", "8760h"),
        ("optsched.io/user", "ann"),
    ):
        said = denial(stage.eve.post, stage.path(kinds.POD), pod("claims", **{key: value}))
        assert f"[{key}]: Forbidden: user eve may not write" in said
        said = denial(stage.eve.post, stage.path(kinds.JOB), job("no", "default", **{key: value}))
        assert f"[{key}]: Forbidden: user eve may not write" in said
    system = pod("claims")
    system["spec"]["priorityClassName"] = "system-node-critical"
    said = denial(stage.eve.post, stage.path(kinds.POD), system)
    assert "user eve may not name system-node-critical" in said
    stage.eve.post(stage.path(kinds.POD), pod("plain", **{"volcano.sh/preemptable": "true"}))
    for key in ("volcano.sh/gpu-index", "hami.io/npu-devices", "optsched.io/admitted-queue"):
        change = {"metadata": {"annotations": {key: "0"}}}
        said = denial(stage.eve.patch, stage.path(kinds.POD, "plain"), change)
        assert "schedulers and device plugins write it" in said
    stage.eve.post(stage.path(kinds.POD_GROUP), group("shield", "default"))
    path = stage.path(kinds.POD_GROUP, "shield")
    for key in ("optsched.io/shuffled-by-rescheduling", "optsched.io/moves"):
        change = {"metadata": {"annotations": {key: "2026-11-24T00:00:00Z"}}}
        said = denial(stage.eve.patch, path, change)
        assert f"[{key}]: Forbidden: schedulers write it" in said
        stage.scheduler.patch(path, change)
        stage.other_scheduler.patch(path, {"metadata": {"annotations": {key: None}}})
        stage.other_scheduler.patch(path, change)
    denial(stage.eve.patch, path, {"metadata": {"annotations": shield}})
    urgent = {"spec": {"priorityClassName": "system-node-critical"}}
    said = denial(stage.eve.patch, path, urgent)
    assert "user eve may not name system-node-critical" in said
    # An administrator may set these fields, and their values survive other changes by the tenant.
    stage.admin.patch(path, {"metadata": {"annotations": shield}})
    stage.eve.patch(path, {"spec": {"minMember": 2}})
    assert stage.admin.get(path)["metadata"]["annotations"]["volcano.sh/preemptable"] == "false"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"spec": {"priorityClassName": "system-node-critical"}}, "user eve may not name"),
        ({"metadata": {"annotations": {"optsched.io/admitted-queue": "lab"}}}, "plugins write it"),
        ({"metadata": {"annotations": {"volcano.sh/gpu-index": "0"}}}, "plugins write it"),
    ],
    ids=["priority", "queue", "device"],
)
def test_pods_of_jobs_claim_no_more_than_other_pods(stage: Stage, part: Raw, said: str) -> None:
    """The rule holds for a tenant's job, and for a job that controllers create from a template."""
    claims = job("claims", "default")
    template = claims["spec"]["tasks"][0]["template"]
    for field, more in part.items():
        template[field] = {**template.get(field, {}), **more}
    denied = denial(stage.eve.post, stage.path(kinds.JOB), claims)
    assert "spec.tasks[0].template." in denied
    assert said in denied
    before = stage.num_refused()
    for kind, name, spec in (
        (kinds.JOB_TEMPLATE, "claims", claims["spec"]),
        (kinds.JOB_FLOW, "claiming", {"flows": [{"name": "claims"}]}),
    ):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
        stage.eve.post(stage.path(kind), {**body, "spec": spec})
    try:
        until(lambda: stage.num_refused() > before, "the job of the flow is refused")
        assert stage.find(kinds.JOB, "claiming-claims") is None
    finally:
        stage.admin.delete(stage.path(kinds.JOB_FLOW, "claiming"))
        stage.admin.delete(stage.path(kinds.JOB_TEMPLATE, "claims"))


def test_a_tenant_does_not_let_his_own_gang_in(stage: Stage) -> None:
    """A PodGroup has no status subresource, so a tenant could write its phase."""
    let_in = {"status": {"phase": "Inqueue"}}
    path = stage.path(kinds.POD_GROUP, "let-in")

    def phase() -> object:
        return (stage.admin.get(path).get("status") or {}).get("phase")

    stage.eve.post(stage.path(kinds.POD_GROUP), {**group("let-in", "default"), **let_in})
    assert phase() is None
    stage.eve.patch(path, let_in)
    assert phase() is None
    for scheduler in (stage.scheduler, stage.other_scheduler):
        scheduler.patch(path, let_in)
        assert phase() == "Inqueue"
        stage.eve.patch(path, {"status": None})
        assert phase() == "Inqueue"
        stage.admin.patch(path, {"status": {"phase": "Pending"}})
        assert phase() == "Pending"


# --- rights of optsched itself --------------------------------------------------------------------


def test_without_features_optsched_reads_no_secrets_and_changes_no_pods_or_nodes(
    stage: Stage,
) -> None:
    for account, questions in (
        ("optsched-controllers", (("list", "", "secrets"), ("get", "", "secrets"))),
        ("optsched-webhook", (("list", "", "secrets"), ("patch", "", "pods"))),
    ):
        user = f"system:serviceaccount:{SYSTEM}:{account}"
        for verb, group_name, resource in questions:
            asked = {"verb": verb, "group": group_name, "resource": resource, "namespace": SPACE}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": asked},
            }
            path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            assert stage.admin.post(path, body)["status"]["allowed"] is False
