"""Ways around a queue that Kubernetes offers a tenant are denied or gain no capacity.

A scheduler with the rights of its manifest runs with the webhook and the controllers.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
import yaml

from optsched.api import kinds
from optsched.api.kinds import Ref, collection_path, object_path
from optsched.api.meta import EventType
from optsched.api.wellknown import SUBMITTER, Subject, format_submitters
from optsched.kube.runtime.events import Note, build_event
from optsched.local.assets import shipped
from optsched.local.kubectl import node_manifest
from tests.support.api import Refused, until
from tests.support.live import PERIOD, Scheduler
from tests.support.shared import ROOT
from tests.support.tenants import (
    GROUP_KEY,
    QUEUE_KEY,
    RBAC,
    SCHEDULER,
    SPACE,
    Raw,
    Stage,
    binding,
    denial,
    group,
    group_of,
    job,
    pod,
    record,
    tenants,
)
from tests.support.webhooks import SYSTEM, make_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("tenants")]

NODE = "tenants-node"
NARROW = "tenants-narrow"
"""A queue of 2 CPUs for the students."""
FINALIZER = "example.org/never"
POLICY = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - {name: overcommit, arguments: {overcommit.keepShares: true}}
  - {name: predicates}
  - {name: capacity}
  - {name: nodeorder}
"""


@pytest.fixture(scope="module")
def stage(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("attacks")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    nodes, queues = "/api/v1/nodes", collection_path(kinds.QUEUE)
    with tenants(control_plane, api, folder) as stage:
        flags = ("--scheduler-name", SCHEDULER, "--no-leader-elect", "--schedule-period", PERIOD)
        more = ("--config", str(policy), "--solver", "none", "--dump-dir", str(folder))
        log = folder / "scheduler.log"
        scheduler = Scheduler(stage.scheduler_config, log, [*flags, *more]).begin()
        try:
            api.post(nodes, node_manifest(NODE, cpu="8", memory="16Gi"))
            body = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue"}
            lists = {"optsched.io/groups": "students"}
            spec = {"weight": 1, "capability": {"cpu": "2"}}
            api.post(
                queues, {**body, "metadata": {"name": NARROW, "annotations": lists}, "spec": spec}
            )
            until(lambda: state_of(stage, NARROW) == "Open", "the queue is open")
            yield stage
        finally:
            free(stage)
            for kind in (kinds.JOB, kinds.POD, kinds.POD_GROUP):
                api.delete(stage.path(kind))
            api.delete(f"{nodes}/{NODE}")
            scheduler.stop()
            print(scheduler.log)
            api.delete(f"{queues}/{NARROW}")


@pytest.fixture(autouse=True)
def clean(stage: Stage) -> Iterator[None]:
    """Delete all objects of the test at its end."""
    yield
    free(stage)
    for kind in (kinds.JOB, kinds.POD, kinds.POD_GROUP, kinds.PERSISTENT_VOLUME_CLAIM):
        stage.admin.delete(stage.path(kind))
    for kind in (kinds.JOB, kinds.POD, kinds.POD_GROUP):
        until(lambda kind=kind: not stage.admin.items(stage.path(kind)), "all are gone")  # type: ignore[misc]


def free(stage: Stage) -> None:
    """Remove all finalizers."""
    for kind in (kinds.JOB, kinds.POD, kinds.POD_GROUP):
        for obj in stage.admin.items(stage.path(kind)):
            if FINALIZER in obj["metadata"].get("finalizers", ()):
                name = obj["metadata"]["name"]
                stage.admin.patch(stage.path(kind, name), {"metadata": {"finalizers": None}})


def state_of(stage: Stage, queue: str) -> str:
    found = stage.admin.get(object_path(kinds.QUEUE, None, queue))
    return str((found.get("status") or {}).get("state"))


def held_by(stage: Stage, queue: str) -> str:
    """Return the CPUs that a queue's status counts as allocated."""
    found = stage.admin.get(object_path(kinds.QUEUE, None, queue))["status"]
    return str(found.get("allocated", {}).get("cpu", "0"))


def sized(body: Raw, cpus: int, **spec: object) -> Raw:
    """Set the CPU request of a pod and return the pod."""
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpus)}}
    body["spec"] |= spec
    return body


def node_of(stage: Stage, name: str) -> str:
    return str((stage.find(kinds.POD, name) or {})["spec"].get("nodeName") or "")


def phase_of(stage: Stage, name: str) -> str:
    """Return the phase of a pod's PodGroup."""
    group_name = stage.admin.get(stage.path(kinds.POD, name))["metadata"]["annotations"][GROUP_KEY]
    return str(stage.admin.get(stage.path(kinds.POD_GROUP, group_name))["status"]["phase"])


def await_bound(stage: Stage, name: str) -> None:
    try:
        until(lambda: node_of(stage, name), f"{name} is bound")
    except AssertionError:
        for kind in (kinds.POD_GROUP, kinds.POD):
            for obj in stage.admin.items(stage.path(kind)):
                meta = {key: obj["metadata"].get(key) for key in ("name", "deletionTimestamp")}
                print(f"--- {kind.kind} {meta}: {obj.get('spec')} {obj.get('status')}")
        raise


def await_waits(stage: Stage, name: str, text: str) -> None:
    """Wait until the PodGroup of a pod gives the reason; the pod must have no node."""

    def waits() -> bool:
        found = stage.admin.get(stage.path(kinds.POD, name))["metadata"]["annotations"][GROUP_KEY]
        status = stage.admin.get(stage.path(kinds.POD_GROUP, found))["status"]
        said = [f"{each.get('reason')}: {each.get('message')}" for each in status["conditions"]]
        return any(text in message for message in said)

    until(waits, f"{name} waits: {text}")
    assert not node_of(stage, name)


def assert_others_start(stage: Stage) -> None:
    """Check that another tenant's gang starts, and another pod of the narrow queue."""
    stage.ann.post(stage.path(kinds.POD_GROUP), group("goes-on", "lab"))
    stage.ann.post(stage.path(kinds.POD), sized(pod("goes-on", **{GROUP_KEY: "goes-on"}), 1))
    await_bound(stage, "goes-on")
    stage.eve.post(stage.path(kinds.POD), sized(pod("narrow-too", **{QUEUE_KEY: NARROW}), 2))
    await_bound(stage, "narrow-too")


# --- subresources ---------------------------------------------------------------------------------


def test_a_tenant_decides_nothing_by_a_subresource(stage: Stage) -> None:
    """The role `edit` permits no bindings, statuses, resizes or ephemeral containers."""
    stage.eve.post(stage.path(kinds.POD), sized(pod("plain"), 1, schedulingGates=[{"name": "a/b"}]))
    stage.eve.post(stage.path(kinds.JOB), job("plain", "students"))
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "plain"}, "target": target}
    pods = stage.path(kinds.POD, "plain")
    spaced = f"/api/v1/namespaces/{SPACE}"
    for path in (f"{pods}/binding", f"{spaced}/bindings"):
        assert "cannot create resource" in denial(stage.eve.post, path, bound)
    bigger = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "7"}}}]}
    shell = {"ephemeralContainers": [{"name": "shell", "image": "none"}]}
    for path, change in (
        (f"{pods}/status", {"status": {"phase": "Succeeded"}}),
        (f"{pods}/resize", {"spec": bigger}),
        (f"{pods}/ephemeralcontainers", {"spec": shell}),
        (stage.path(kinds.JOB, "plain") + "/status", {"status": {"state": {"phase": "Completed"}}}),
        (stage.path(kinds.CRON_JOB, "plain") + "/status", {"status": {}}),
        (stage.path(kinds.JOB_FLOW, "plain") + "/status", {"status": {}}),
        (stage.path(kinds.RESOURCE_CLAIMS[0], "plain") + "/status", {"status": {}}),
        (f"{spaced}/status", {"status": {}}),
        (object_path(kinds.QUEUE, None, NARROW, "status"), {"status": {"state": "Closed"}}),
        (f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": {"cpu": "900"}}}),
    ):
        assert "cannot patch resource" in denial(stage.eve.patch, path, change)
    stage.eve.patch(stage.path(kinds.JOB, "plain"), {"status": {"state": {"phase": "Completed"}}})
    found = stage.admin.get(stage.path(kinds.JOB, "plain"))
    assert (found.get("status") or {}).get("state", {}).get("phase") != "Completed"


def test_a_tenant_evicts_no_pod_of_another_namespace(stage: Stage) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "any"}}
    path = "/api/v1/namespaces/kube-system/pods/any/eviction"
    assert "cannot create resource" in denial(stage.eve.post, path, body)


# --- server-side apply ----------------------------------------------------------------------------


def test_server_side_apply_enters_no_queue_and_forges_no_record(stage: Stage) -> None:
    """Server-side apply can neither create objects in the queue nor take over fields of others."""
    groups, jobs = stage.path(kinds.POD_GROUP), stage.path(kinds.JOB)

    def apply(path: str, body: Raw, *, force: bool = False) -> Raw:
        return stage.eve.apply(path, body, "mischief", force=force)

    for path, body in ((groups, group("made", "lab")), (jobs, job("made", "lab"))):
        said = denial(apply, f"{path}/made", body)
        assert "user eve may not use queue lab" in said
    stage.ann.apply(f"{groups}/of-ann", group("of-ann", "lab"), "ann")
    larger = group("of-ann", "lab")
    larger["spec"]["minMember"] = 3
    with pytest.raises(Refused) as caught:
        apply(f"{groups}/of-ann", larger)
    assert caught.value.code == HTTPStatus.CONFLICT
    said = denial(lambda: apply(f"{groups}/of-ann", larger, force=True))
    assert "user eve may not use queue lab" in said
    forged = {"optsched.io/submitter": '{"user":"ann","groups":[]}'}
    apply(f"{groups}/of-eve", group("of-eve", "students", **forged))
    assert record(stage.find(kinds.POD_GROUP, "of-eve")) == ["eve"]
    let_in = {**group("of-eve", "students", **forged), "status": {"phase": "Running"}}
    apply(f"{groups}/of-eve", let_in, force=True)
    assert record(stage.find(kinds.POD_GROUP, "of-eve")) == ["eve"]
    assert stage.admin.get(f"{groups}/of-eve").get("status", {}).get("phase") != "Running"
    said = denial(lambda: apply(f"{groups}/of-eve", group("of-eve", "lab"), force=True))
    assert "user eve may not use queue lab" in said
    # The fields keep their first manager; co-owning a field without a change does no harm.
    apply(f"{groups}/of-ann", group("of-ann", "lab"), force=True)
    kept = stage.admin.get(f"{groups}/of-ann")
    assert kept["spec"]["queue"] == "lab"
    assert record(kept) == ["ann"]


# --- names that the server makes ------------------------------------------------------------------


def test_names_that_the_server_makes_change_nothing(stage: Stage) -> None:
    """The API server generates the name of an object after the mutating webhooks have run."""

    def unnamed(body: Raw) -> Raw:
        body["metadata"]["generateName"] = body["metadata"].pop("name") + "-"
        return body

    for path, body in (
        (stage.path(kinds.POD_GROUP), group("made", "lab")),
        (stage.path(kinds.JOB), job("made", "lab")),
        (stage.path(kinds.POD), pod("made", **{QUEUE_KEY: "lab"})),
    ):
        said = denial(stage.eve.post, path, unnamed(body))
        assert "user eve may not use queue lab" in said
    made = stage.eve.post(stage.path(kinds.JOB), unnamed(job("made", "students")))
    name = made["metadata"]["name"]
    assert record(made) == ["eve"]
    until(lambda: group_of(stage, name), "its PodGroup")
    assert record(group_of(stage, name)) == ["eve"]
    made = stage.eve.post(stage.path(kinds.POD), unnamed(pod("made", **{QUEUE_KEY: "students"})))
    assert record(made) == ["eve"]
    made = stage.eve.post(stage.path(kinds.POD_GROUP), unnamed(group("made", "students")))
    assert record(made) == ["eve"]


# --- objects that never go ------------------------------------------------------------------------


def test_pods_that_never_go_hold_only_what_they_run_on(stage: Stage) -> None:
    """A finalizer keeps a pod in the API, but an ended or unstarted pod uses no quota."""
    never = sized(pod("never-began", **{QUEUE_KEY: NARROW}), 3)
    ended = sized(pod("has-ended", **{QUEUE_KEY: NARROW}), 2, restartPolicy="Never")
    nowhere = sized(pod("fits-nowhere", **{QUEUE_KEY: NARROW}), 2, nodeSelector={"is": "nowhere"})
    for body in (never, ended, nowhere):
        body["metadata"]["finalizers"] = [FINALIZER]
    stage.eve.post(stage.path(kinds.POD), nowhere)
    until(lambda: phase_of(stage, "fits-nowhere") == "Inqueue", "it is let in")
    stage.eve.delete(stage.path(kinds.POD, "fits-nowhere"))
    stage.eve.post(stage.path(kinds.POD), ended)
    await_bound(stage, "has-ended")
    stage.eve.post(stage.path(kinds.POD), never)
    await_waits(stage, "never-began", "cpu")
    done = {"metadata": {"annotations": {"optsched.io/complete": ""}}}
    stage.eve.patch(stage.path(kinds.POD, "has-ended"), done)
    path = stage.path(kinds.POD, "has-ended")
    until(lambda: stage.admin.get(path)["status"]["phase"] == "Succeeded", "it has ended")
    for name in ("never-began", "has-ended"):
        stage.eve.delete(stage.path(kinds.POD, name))
        assert stage.admin.get(stage.path(kinds.POD, name))["metadata"]["deletionTimestamp"]
    assert_others_start(stage)


def test_podgroups_and_jobs_that_never_go_stop_nothing(stage: Stage) -> None:
    stuck = group("stuck", NARROW)
    stuck["metadata"]["finalizers"] = [FINALIZER]
    stuck["spec"] |= {"minMember": 2, "minResources": {"cpu": "2"}}
    stage.eve.post(stage.path(kinds.POD_GROUP), stuck)
    work = job("stuck", NARROW)
    work["metadata"]["finalizers"] = [FINALIZER]
    stage.eve.post(stage.path(kinds.JOB), work)
    until(lambda: group_of(stage, "stuck"), "the PodGroup of the job")
    stage.eve.delete(stage.path(kinds.POD_GROUP, "stuck"))
    stage.eve.delete(stage.path(kinds.JOB, "stuck"))
    for kind in (kinds.POD_GROUP, kinds.JOB):
        assert stage.admin.get(stage.path(kind, "stuck"))["metadata"]["deletionTimestamp"]
    assert_others_start(stage)
    stage.eve.post(stage.path(kinds.JOB), job("next", "students"))
    until(lambda: group_of(stage, "next"), "controllers go on")


def test_a_podgroup_that_reserves_the_whole_cluster_keeps_no_other_queue_waiting(
    stage: Stage,
) -> None:
    """A PodGroup without pods reserves all CPUs of the cluster for an unlimited time."""
    squatter = group("squatter", "students")
    squatter["spec"]["minResources"] = {"cpu": "8"}
    stage.eve.post(stage.path(kinds.POD_GROUP), squatter)

    def phase() -> str:
        found = stage.admin.get(stage.path(kinds.POD_GROUP, "squatter"))
        return str(found["status"]["phase"])

    until(lambda: phase() == "Inqueue", "it is let in")
    work = job("works", "lab")
    (task,) = work["spec"]["tasks"]
    sized(task["template"], 2)
    stage.ann.post(stage.path(kinds.JOB), work)
    await_bound(stage, "works-w-0")
    assert phase() == "Inqueue"


# --- pods that come with decisions ----------------------------------------------------------------


def test_a_pod_that_comes_with_a_node_counts_in_its_queue(stage: Stage) -> None:
    """Kubernetes lets a user set the node, but the user must have access to the pod's queue."""
    said = denial(
        stage.eve.post,
        stage.path(kinds.POD),
        sized(pod("comes", **{QUEUE_KEY: "lab"}), 2, nodeName=NODE),
    )
    assert "user eve may not use queue lab" in said
    stage.eve.post(
        stage.path(kinds.POD), sized(pod("comes", **{QUEUE_KEY: NARROW}), 2, nodeName=NODE)
    )
    stage.eve.post(stage.path(kinds.POD), sized(pod("waits", **{QUEUE_KEY: NARROW}), 1))
    await_waits(stage, "waits", NARROW)


def test_a_pod_of_another_scheduler_joins_no_gang(stage: Stage) -> None:
    """The pod is no member of the gang that it names, and the gang's queue does not pay for it."""
    stage.ann.post(
        stage.path(kinds.POD_GROUP),
        {**group("pair", "lab"), "spec": {"minMember": 2, "queue": "lab"}},
    )
    stage.ann.post(stage.path(kinds.POD), sized(pod("pair-0", **{GROUP_KEY: "pair"}), 1))
    other = sized(pod("intruder", **{GROUP_KEY: "pair"}), 1, nodeName=NODE)
    other["spec"]["schedulerName"] = "default-scheduler"
    stage.eve.post(stage.path(kinds.POD), other)
    await_waits(stage, "pair-0", "1")
    until(lambda: held_by(stage, "lab") == "0", "the queue is charged nothing")
    stage.ann.post(stage.path(kinds.POD), sized(pod("pair-1", **{GROUP_KEY: "pair"}), 1))
    for name in ("pair-0", "pair-1"):
        await_bound(stage, name)


RACES = 20


def test_a_pod_that_was_created_with_the_podgroup_of_another_user_joins_nothing(
    stage: Stage,
) -> None:
    """Two simultaneous reviews miss each other's object, and admit both pod and PodGroup."""

    def create(user: Api, kind: kinds.Kind, body: Raw) -> bool:
        try:
            user.post(stage.path(kind), body)
        except Refused:
            return False
        finally:
            user.close()
        return True

    raced = []
    with ThreadPoolExecutor(2) as threads:
        for number in range(RACES):
            name = f"race-{number}"
            body = sized(pod(name, **{GROUP_KEY: name}), 1)
            mine = threads.submit(create, stage.eve, kinds.POD, body)
            theirs = threads.submit(create, stage.ann, kinds.POD_GROUP, group(name, "lab"))
            if mine.result() and theirs.result():
                raced.append(name)
    # The record shows that admission found no PodGroup, as after a race between two reviews.
    stage.ann.post(stage.path(kinds.POD_GROUP), group("raced", "lab"))
    text = format_submitters([Subject("eve", frozenset({"students"}))], joined="")
    marks = {GROUP_KEY: "raced", SUBMITTER: text}
    stage.controller.post(stage.path(kinds.POD), sized(pod("raced", **marks), 1))
    stage.ann.post(stage.path(kinds.POD), sized(pod("member", **{GROUP_KEY: "raced"}), 1))
    print(f"{len(raced)} of {RACES} pairs were both let in")
    for name in (*raced, "raced"):
        until(lambda name=name: stage.events(name), f"{name} is reported")
        said = stage.events(name)
        assert any("user eve may not use queue lab of PodGroup" in each for each in said), said
    await_bound(stage, "member")
    assert [node_of(stage, name) for name in (*raced, "raced")] == [""] * (len(raced) + 1)
    until(lambda: held_by(stage, "lab") == "1", "the queue holds the pod of its user alone")


def test_a_gate_that_its_user_removes_opens_no_queue(stage: Stage) -> None:
    gate = {"name": "scheduling.volcano.sh/queue-allocation-gate"}
    stage.eve.post(stage.path(kinds.POD), sized(pod("first", **{QUEUE_KEY: NARROW}), 2))
    await_bound(stage, "first")
    body = sized(pod("gated", **{QUEUE_KEY: NARROW}), 1, schedulingGates=[gate])
    stage.eve.post(stage.path(kinds.POD), body)
    stage.eve.patch(stage.path(kinds.POD, "gated"), {"spec": {"schedulingGates": None}})
    await_waits(stage, "gated", NARROW)


# --- relations that a tenant makes up -------------------------------------------------------------


def test_a_false_owner_and_labels_of_controllers_give_no_queue(stage: Stage) -> None:
    """A pod with a false owner is not in the queue of the owner's job."""
    stage.ann.post(stage.path(kinds.JOB), job("real", "lab"))
    until(lambda: stage.find(kinds.POD, "real-w-0"), "the pod of the job")
    await_bound(stage, "real-w-0")
    real = stage.admin.get(stage.path(kinds.POD, "real-w-0"))["metadata"]
    owner = next(o for o in real["ownerReferences"] if o["kind"] == "Job")
    forged = sized(pod("real-w-1", own=owner), 1)
    forged["metadata"]["labels"] = dict(real["labels"])
    forged["metadata"]["annotations"] = {GROUP_KEY: real["annotations"][GROUP_KEY]}
    for marks in (forged["metadata"]["annotations"], {}):
        forged["metadata"]["annotations"] = marks
        said = denial(stage.eve.post, stage.path(kinds.POD), forged)
        assert "user eve may not name Job real as owner" in said
    other = sized(pod("real-w-1", own=owner), 1, schedulerName="default-scheduler")
    assert "as owner" in denial(stage.eve.post, stage.path(kinds.POD), other)
    # Labels do not make a pod a member, and an owner cannot be added later.
    forged["metadata"]["ownerReferences"] = []
    joining = {**forged["metadata"], "annotations": {GROUP_KEY: real["annotations"][GROUP_KEY]}}
    said = denial(stage.eve.post, stage.path(kinds.POD), {**forged, "metadata": joining})
    assert "user eve may not use queue lab" in said
    stage.eve.post(stage.path(kinds.POD), forged)
    change = {"metadata": {"ownerReferences": [owner]}}
    said = denial(stage.eve.patch, stage.path(kinds.POD, "real-w-1"), change)
    assert "user eve may not name Job real as owner" in said
    mine = real["annotations"][GROUP_KEY]
    await_bound(stage, "real-w-1")
    found = stage.admin.get(stage.path(kinds.POD, "real-w-1"))["metadata"]["annotations"]
    assert found.get(GROUP_KEY) != mine
    # The pod of the job itself requests no resources.
    until(lambda: held_by(stage, "lab") == "0", "the queue is charged nothing")


# --- claims ---------------------------------------------------------------------------------------


def test_claims_that_are_never_bound_hold_up_nobody(stage: Stage) -> None:
    """The claims name volumes and devices that do not exist, as many as a claim allows."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "never"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "no-such-class",
            "resources": {"requests": {"storage": "1Ei"}},
        },
    }
    stage.eve.post(stage.path(kinds.PERSISTENT_VOLUME_CLAIM), volume)
    mounts = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "never"}}]}
    stage.eve.post(
        stage.path(kinds.POD), sized(pod("mounts", **{QUEUE_KEY: "students"}), 1, **mounts)
    )
    work = job("mounting", "students")
    work["spec"]["volumes"] = [{"mountPath": "/v", "volumeClaimName": "never"}]
    stage.eve.post(stage.path(kinds.JOB), work)
    exactly = {"deviceClassName": "none.example.org", "allocationMode": "ExactCount"}
    requests = [{"name": f"r{i}", "exactly": {**exactly, "count": 2**31}} for i in range(32)]
    claim = {"spec": {"devices": {"requests": requests}}}
    template = {
        "apiVersion": kinds.RESOURCE_CLAIMS[0].api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "huge"},
        "spec": claim,
    }
    path = stage.path(kinds.RESOURCE_CLAIMS[0]).replace("resourceclaims", "resourceclaimtemplates")
    stage.eve.post(path, template)
    claims = {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "huge"}]}
    stage.eve.post(
        stage.path(kinds.POD), sized(pod("devices", **{QUEUE_KEY: "students"}), 1, **claims)
    )
    await_waits(stage, "mounts", "never")
    assert_others_start(stage)
    assert not node_of(stage, "devices")
    stage.admin.delete(f"{path}/huge")


# --- bare pods: the scheduler could start them before their PodGroup exists -----------------------


def test_a_pod_of_a_job_does_not_leave_its_podgroup_for_another_queue(stage: Stage) -> None:
    """Controllers create the pod from a template with a queue, and admission does not review it."""
    body = job("leaves", "students")
    template = body["spec"]["tasks"][0]["template"]
    template["metadata"] = {"annotations": {QUEUE_KEY: "lab"}}
    template["spec"]["schedulingGates"] = [{"name": "a/b"}]
    stage.eve.post(stage.path(kinds.JOB), body)
    path = stage.path(kinds.POD, "leaves-w-0")
    until(lambda: stage.admin.find(path), "the pod of the job")
    for queue, said in (("lab", "user eve may not use queue lab"), ("later", "no queue later")):
        left = {QUEUE_KEY: queue, GROUP_KEY: None}
        assert said in denial(stage.eve.patch, path, {"metadata": {"annotations": left}})
    left = {QUEUE_KEY: "students", GROUP_KEY: None}
    stage.eve.patch(path, {"metadata": {"annotations": left}, "spec": {"schedulingGates": None}})


def test_a_bare_pod_does_not_enter_the_queue_of_its_namespace(stage: Stage) -> None:
    space = f"/api/v1/namespaces/{SPACE}"
    named = {"metadata": {"annotations": {QUEUE_KEY: "lab"}}}
    stage.admin.patch(space, named)
    try:

        def said() -> str:
            try:
                stage.eve.post(stage.path(kinds.POD), sized(pod("bare"), 1))
            except Refused as e:
                return str(e)
            stage.admin.delete(stage.path(kinds.POD, "bare"))
            return ""

        # The webhook may receive the annotation a moment later.
        until(lambda: "user eve may not use queue lab" in said(), "the pod is refused")
        stage.ann.post(stage.path(kinds.POD), sized(pod("of-ann"), 1))
        await_bound(stage, "of-ann")
    finally:
        stage.admin.patch(space, {"metadata": {"annotations": {QUEUE_KEY: None}}})


def test_a_bare_pod_does_not_enter_a_queue_that_comes_later(stage: Stage) -> None:
    path = object_path(kinds.QUEUE, None, "comes-later")
    for user, name in ((stage.eve, "of-eve"), (stage.ann, "of-ann")):
        user.post(stage.path(kinds.POD), sized(pod(name, **{QUEUE_KEY: "comes-later"}), 1))
    meta = {"name": "comes-later", "annotations": {"optsched.io/users": "ann"}}
    body = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue", "spec": {"weight": 1}}
    stage.admin.post(collection_path(kinds.QUEUE), {**body, "metadata": meta})
    try:
        await_bound(stage, "of-ann")
        said = "user eve may not use queue comes-later"
        until(lambda: any(said in each for each in stage.events("of-eve")), "it is reported")
        assert not node_of(stage, "of-eve")
        assert held_by(stage, "comes-later") in ("0", "1")
    finally:
        for name in ("of-eve", "of-ann"):
            stage.admin.delete(stage.path(kinds.POD, name))
        stage.admin.delete(path)


# --- objects of all kinds -------------------------------------------------------------------------


def test_an_owner_of_another_kind_with_the_uid_of_a_job_adds_no_pod(stage: Stage) -> None:
    """Admission reviews references to jobs; a reference to another kind has no effect."""
    stage.ann.post(stage.path(kinds.JOB), job("counts", "lab"))
    until(lambda: stage.find(kinds.POD, "counts-w-0"), "the pod of the job")
    real = stage.admin.get(stage.path(kinds.POD, "counts-w-0"))["metadata"]
    (owner,) = real["ownerReferences"]
    for number, (version, kind) in enumerate((("batch/v1", "Job"), ("example.org/v1", "Any"))):
        forged = pod(f"forged-{number}", own={**owner, "apiVersion": version, "kind": kind})
        forged["metadata"]["labels"] = dict(real["labels"])
        forged["metadata"]["annotations"] = {
            key: text
            for key, text in real["annotations"].items()
            if key not in (GROUP_KEY, SUBMITTER)
        }
        forged["spec"]["schedulerName"] = "default-scheduler"
        stage.eve.post(stage.path(kinds.POD), forged)
    # A later update does not turn the reference into one to the job.
    corrected = {"metadata": {"ownerReferences": [owner]}}
    said = denial(stage.eve.patch, stage.path(kinds.POD, "forged-1"), corrected)
    assert "user eve may not name Job counts as owner" in said
    await_bound(stage, "counts-w-0")
    # A change of the job triggers another reconciliation.
    change = {"metadata": {"labels": {"look": "again"}}}
    stage.ann.patch(stage.path(kinds.JOB, "counts"), change)

    def counts() -> dict[str, int]:
        status = stage.admin.get(stage.path(kinds.JOB, "counts")).get("status") or {}
        return {key: status.get(key, 0) for key in ("pending", "running", "unknown")}

    until(lambda: counts()["running"] == 1, "the job runs")
    done = {"metadata": {"annotations": {"optsched.io/complete": ""}}}
    stage.ann.patch(stage.path(kinds.POD, "counts-w-0"), done)
    path = stage.path(kinds.JOB, "counts")
    until(
        lambda: stage.admin.get(path)["status"]["state"]["phase"] == "Completed", "it has completed"
    )
    assert counts() == {"pending": 0, "running": 0, "unknown": 0}
    # The garbage collector of Kubernetes deletes a pod only if the kind of its owner exists.
    assert stage.find(kinds.POD, "forged-1") is not None


def test_a_tenant_writes_no_object_of_the_administrator(stage: Stage) -> None:
    """The roles of tenants permit nothing outside of a namespace, and no impersonation."""
    hyper = {"spec": {"tier": 1, "members": []}}
    for kind, body in (
        (kinds.HYPER_NODE, {"apiVersion": kinds.HYPER_NODE.api_version, **hyper}),
        (kinds.QUEUE, {"apiVersion": kinds.QUEUE.api_version, "spec": {"weight": 1}}),
        (kinds.PRIORITY_CLASS, {"apiVersion": kinds.PRIORITY_CLASS.api_version, "value": 9}),
        (kinds.NODE, {"apiVersion": "v1"}),
        (kinds.NAMESPACE, {"apiVersion": "v1"}),
    ):
        made = {**body, "kind": kind.kind, "metadata": {"name": "mischief"}}
        said = denial(stage.eve.post, collection_path(kind, None), made)
        assert "cannot create resource" in said
    for path, change in (
        (object_path(kinds.HYPER_NODE, None, "any"), hyper),
        (object_path(kinds.QUEUE, None, NARROW), {"spec": {"capability": {"cpu": "99"}}}),
        (object_path(kinds.NODE, None, NODE), {"metadata": {"labels": {"mischief": "a"}}}),
        (f"/api/v1/namespaces/{SPACE}", {"metadata": {"annotations": {QUEUE_KEY: "lab"}}}),
    ):
        assert "cannot patch resource" in denial(stage.eve.patch, path, change)
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    for account in ("optsched-controllers", "optsched-scheduler"):
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        assert "cannot create resource" in denial(stage.eve.post, path, token)


def test_an_account_with_the_name_of_a_component_is_not_trusted(stage: Stage) -> None:
    """A tenant may create service accounts of any name in the own namespace."""
    account = stage.admin.as_user(f"system:serviceaccount:{SPACE}:optsched-controllers")
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SPACE}/rolebindings"
    subject = {"kind": "ServiceAccount", "name": "optsched-controllers", "namespace": SPACE}
    edit = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
    body |= {"metadata": {"name": "account"}, "roleRef": edit, "subjects": [subject]}
    stage.admin.post(path, body)
    try:
        forged = {SUBMITTER: '{"user":"ann","groups":[]}'}

        def said() -> str:
            return denial(account.post, stage.path(kinds.JOB), job("acts", "lab", **forged))

        until(lambda: "may not use queue lab" in said(), "the role binding counts")
        assert f"user system:serviceaccount:{SPACE}:optsched-controllers" in said()
    finally:
        account.close()
        stage.admin.delete(f"{path}/account")


def test_the_second_name_of_a_podgroup_opens_no_queue(stage: Stage) -> None:
    """Two annotations and a field may name the PodGroup of a pod; the first of them counts."""
    stage.ann.post(stage.path(kinds.POD_GROUP), group("of-lab", "lab"))
    stage.eve.post(stage.path(kinds.POD_GROUP), group("of-eve", "students"))
    second = "scheduling.volcano.sh/group-name"
    names = {GROUP_KEY: "of-eve", second: "of-lab"}
    stage.eve.post(stage.path(kinds.POD), sized(pod("twice", **names), 1, schedulingGates=[GATE]))
    path = stage.path(kinds.POD, "twice")
    for change in (None, "", "of-lab"):
        left = {"metadata": {"annotations": {GROUP_KEY: change}}}
        assert "user eve may not use queue lab" in denial(stage.eve.patch, path, left)
    assert "user eve may not use queue lab" in denial(
        stage.eve.post, stage.path(kinds.POD), sized(pod("once", **{second: "of-lab"}), 1)
    )
    stage.eve.patch(path, {"spec": {"schedulingGates": None}})
    await_bound(stage, "twice")
    until(lambda: held_by(stage, "lab") == "0", "the queue is charged nothing")


GATE = {"name": "a/b"}
ESCAPES = "lab\x1b]0;mischief\x07\x1b[2J\r\n2026-11-27 error: forged\u202e\u2028"


def test_control_characters_of_annotations_reach_no_event_and_no_log(stage: Stage) -> None:
    keys = (QUEUE_KEY, GROUP_KEY, "volcano.sh/task-spec", "volcano.sh/sla-waiting-time")
    for number, key in enumerate(keys):
        body = sized(pod(f"escapes-{number}", **{key: ESCAPES}), 1)
        body["spec"]["schedulerName"] = SCHEDULER
        assert "\x1b" not in str(refusal(stage, stage.path(kinds.POD), body))
    work = group("escapes", "students", **{"volcano.sh/sla-waiting-time": ESCAPES})
    work["spec"]["minResources"] = {ESCAPES: "1"}
    stage.eve.post(stage.path(kinds.POD_GROUP), work)
    flow = {"apiVersion": kinds.JOB_FLOW.api_version, "kind": "JobFlow"}
    flow |= {"metadata": {"name": "escapes"}, "spec": {"flows": [{"name": ESCAPES}]}}
    assert "\x1b" not in str(refusal(stage, stage.path(kinds.JOB_FLOW), flow))
    assert_others_start(stage)
    for event in stage.admin.items(stage.path(kinds.EVENT)):
        text = f"{event.get('message')}{event.get('reason')}{event.get('action')}"
        assert all(character.isprintable() for character in text), repr(text)
    for log in stage.logs():
        assert not [c for c in log if not c.isprintable() and c != "\n"]
        assert not [line for line in log.split("\n") if line.startswith("2026-11-27 error: forged")]
    stage.admin.delete(stage.path(kinds.JOB_FLOW, "escapes"))


def test_absurd_amounts_of_podgroups_and_jobs_stop_nothing(stage: Stage) -> None:
    """What the schema accepts is too large, negative or too precise to be an amount."""
    amounts = ("9" * 60, "1e999", "-5", "1n", f"0.{'0' * 400}1", "9999999999999Ei", "")
    taken = 0
    for number, amount in enumerate(amounts):
        absurd = group(f"absurd-{number}", "students")
        absurd["spec"] |= {"minMember": 2**31 - 1, "minResources": {"cpu": amount, "a/b": amount}}
        taken += is_taken(stage, kinds.POD_GROUP, absurd)
    for number, more in enumerate(
        (
            {"ttlSecondsAfterFinished": 2**31 - 1, "maxRetry": 2**31 - 1},
            {"ttlSecondsAfterFinished": -(2**31), "maxRetry": -(2**31), "runningEstimate": "1e9h"},
            {"minAvailable": 2**31 - 1},
            {"policies": [{"event": "*", "action": "RestartJob", "timeout": "999999999h"}]},
            {"volumes": [{"mountPath": "/v", "volumeClaim": {"storageClassName": "x"}}] * 100},
        )
    ):
        absurd = job(f"absurd-{number}", "students")
        absurd["spec"] |= more
        taken += is_taken(stage, kinds.JOB, absurd)
    parts = {"totalPartitions": 2**31 - 1, "partitionSize": 2**31 - 1, "minPartitions": 2**31 - 1}
    for number, task in enumerate(
        ({"partitionPolicy": parts}, {"replicas": 2**31 - 1}, {"replicas": 0, "minAvailable": 0})
    ):
        absurd = job(f"absurd-task-{number}", "students")
        absurd["spec"]["tasks"][0] |= task
        taken += is_taken(stage, kinds.JOB, absurd)
    print(f"{taken} objects were let in")
    assert_others_start(stage)
    stage.eve.post(stage.path(kinds.JOB), job("sane", "students"))
    await_bound(stage, "sane-w-0")


def refusal(stage: Stage, path: str, body: Raw) -> Refused | None:
    """Create an object as Eve, and return the error if the API server refuses it."""
    try:
        stage.eve.post(path, body)
    except Refused as e:
        return e
    return None


def is_taken(stage: Stage, kind: kinds.Kind, body: Raw) -> bool:
    """Create an object as Eve; the API server may refuse it, but with no error of its own."""
    error = refusal(stage, stage.path(kind), body)
    assert error is None or error.code < HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
    return error is None


def test_a_chain_of_flows_takes_no_job_of_another_user(stage: Stage) -> None:
    """The name of a flow's job is that of a job of another user, which the flow would delete."""
    stage.ann.post(stage.path(kinds.JOB), job("takes-it", "lab"))
    template = {"apiVersion": kinds.JOB_TEMPLATE.api_version, "kind": "JobTemplate"}
    for name in ("it", "next"):
        body = {**template, "metadata": {"name": name}, "spec": job(name, "students")["spec"]}
        stage.eve.post(stage.path(kinds.JOB_TEMPLATE), body)
    flows = [{"name": "it"}, {"name": "next", "dependsOn": {"targets": ["it"]}}]
    flow = {"apiVersion": kinds.JOB_FLOW.api_version, "kind": "JobFlow"}
    flow |= {"metadata": {"name": "takes"}, "spec": {"flows": flows, "jobRetainPolicy": "delete"}}
    stage.eve.post(stage.path(kinds.JOB_FLOW), flow)
    try:
        until(
            lambda: any("does not belong to this JobFlow" in e for e in stage.events("takes")),
            "the flow reports the job of another user",
        )
        # Admission reviews references to flows; with another kind, the flow's UID means nothing.
        uid = stage.admin.get(stage.path(kinds.JOB_FLOW, "takes"))["metadata"]["uid"]
        owner = {"apiVersion": "example.org/v1", "kind": "Any", "name": "takes", "uid": uid}
        owned = job("takes-next", "lab")
        owned["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        stage.ann.post(stage.path(kinds.JOB), owned)
        done = {"metadata": {"annotations": {"optsched.io/complete": ""}}}
        path = stage.path(kinds.JOB, "takes-it")
        for each in (path, stage.path(kinds.JOB, "takes-next")):
            pod_name = f"{each.rpartition('/')[2]}-w-0"
            await_bound(stage, pod_name)
            stage.ann.patch(stage.path(kinds.POD, pod_name), done)
            until(
                lambda each=each: (  # type: ignore[misc]
                    stage.admin.get(each)["status"]["state"]["phase"] == "Completed"
                ),
                "it ends",
            )
        # Neither the flow's success nor its next job follows from the job of another user.
        stage.eve.post(stage.path(kinds.JOB), job("later", "students"))
        await_bound(stage, "later-w-0")
        found = stage.admin.get(stage.path(kinds.JOB_FLOW, "takes"))
        assert found["status"]["state"]["phase"] == "Pending"
        assert record(stage.find(kinds.JOB, "takes-next")) == ["ann"]
        patched = [{"name": "it", "patch": {"jobSpec": {"queue": "lab"}}}]
        other = {**flow, "metadata": {"name": "moves"}, "spec": {"flows": patched}}
        said = denial(stage.eve.post, stage.path(kinds.JOB_FLOW), other)
        assert "user eve may not use queue lab" in said
        stage.eve.delete(stage.path(kinds.JOB_FLOW, "takes"))
        assert stage.admin.find(path) is not None
        assert record(stage.admin.get(path)) == ["ann"]
    finally:
        stage.admin.delete(stage.path(kinds.JOB_FLOW, "takes"))
        for name in ("it", "next"):
            stage.admin.delete(stage.path(kinds.JOB_TEMPLATE, name))


def test_annotations_of_an_owner_shield_no_pod(stage: Stage) -> None:
    """Controllers copy annotations of ReplicaSets, which admission does not review."""
    shields = {"volcano.sh/preemptable": "false", "volcano.sh/cooldown-time": "8760h"}
    huge = {"scheduling.volcano.sh/group-min-member": str(2**31 - 1)}
    labels = {"app": "shielded"}
    template = pod("x")
    for name, marks in (("shielded", shields), ("huge", huge)):
        body = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
        body |= {"metadata": {"name": name, "annotations": marks}}
        spec = {"metadata": {"labels": labels}, "spec": template["spec"]}
        body["spec"] = {"replicas": 1, "selector": {"matchLabels": labels}, "template": spec}
        made = stage.eve.post(stage.path(kinds.REPLICA_SET), body)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
        owner |= {"name": name, "uid": made["metadata"]["uid"]}
        member = sized(pod(f"{name}-0", own=owner, **{QUEUE_KEY: "students"}), 1)
        before = stage.num_refused()
        stage.eve.post(stage.path(kinds.POD), member)
        if name == "shielded":
            until(lambda before=before: stage.num_refused() > before, "the PodGroup is refused")
            assert stage.find(kinds.POD_GROUP, f"podgroup-{owner['uid']}") is None
            until(lambda: stage.events("shielded-0"), "the pod says why it waits")
            print(stage.events("shielded-0"))
            bare = {"metadata": {"annotations": dict.fromkeys(shields)}}
            stage.eve.patch(stage.path(kinds.REPLICA_SET, name), bare)
            await_bound(stage, "shielded-0")
            group = f"podgroup-{owner['uid']}"
            until(lambda group=group: stage.find(kinds.POD_GROUP, group), "the PodGroup")
            # The annotations return while the PodGroup exists.
            before = stage.num_refused()
            back = {"metadata": {"annotations": shields}}
            stage.eve.patch(stage.path(kinds.REPLICA_SET, name), back)
            until(lambda before=before: stage.num_refused() > before, "the change is refused")
            kept = stage.admin.get(stage.path(kinds.POD_GROUP, group))
            assert not shields.keys() & kept["metadata"].get("annotations", {}).keys()
    assert_others_start(stage)
    for name in ("shielded", "huge"):
        stage.admin.delete(stage.path(kinds.REPLICA_SET, name))


def test_scaling_and_pods_of_workloads_enter_no_queue(stage: Stage) -> None:
    """Kubernetes' controllers create the pods as the service account of the workload."""
    scale = {"spec": {"replicas": 3}}
    stage.ann.post(stage.path(kinds.JOB), job("scales", "lab"))
    with pytest.raises(Refused) as caught:
        stage.eve.patch(stage.path(kinds.JOB, "scales") + "/scale", scale)
    assert caught.value.code in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)
    manager = stage.admin.as_user("system:kube-controller-manager", "system:masters")
    made = pod("of-workload", **{QUEUE_KEY: "lab", SUBMITTER: '{"user":"ann","groups":[]}'})
    said = denial(manager.post, stage.path(kinds.POD), sized(made, 1))
    manager.close()
    assert f"user system:serviceaccount:{SPACE}:default may not use queue lab" in said


def test_a_command_that_never_goes_keeps_no_controller_busy(stage: Stage) -> None:
    stage.ann.post(stage.path(kinds.JOB), job("commanded", "lab"))
    until(lambda: stage.find(kinds.POD, "commanded-w-0"), "the pod of the job")
    path = stage.path(kinds.JOB, "commanded")
    target = {"apiVersion": kinds.JOB.api_version, "kind": "Job", "name": "commanded"}
    target["uid"] = stage.admin.get(path)["metadata"]["uid"]
    command = {"apiVersion": kinds.COMMAND.api_version, "kind": "Command", "action": "AbortJob"}
    meta = {"name": "stays", "finalizers": [FINALIZER]}
    body = {**command, "metadata": meta, "target": target}
    stage.ann.post(stage.path(kinds.COMMAND), body)
    where = stage.path(kinds.COMMAND, "stays")
    try:
        until(lambda: stage.admin.get(path)["status"]["state"]["phase"] == "Aborted", "it ends")
        until(lambda: "deletionTimestamp" in stage.admin.get(where)["metadata"], "it goes")
        before = stage.num_looks()
        assert_others_start(stage)
        assert stage.num_looks() - before < 100
    finally:
        stage.admin.patch(where, {"metadata": {"finalizers": None}})


def test_a_resource_quota_keeps_tenants_from_disruption_budgets(stage: Stage) -> None:
    """A budget protects its pods from every eviction, and the role `edit` may create budgets."""
    quotas = f"/api/v1/namespaces/{SPACE}/resourcequotas"
    hard = {"count/poddisruptionbudgets.policy": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-budgets"}}
    budgets = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    budget |= {"metadata": {"name": "mine"}, "spec": {"maxUnavailable": 0, "selector": {}}}
    stage.eve.post(budgets, budget)
    stage.eve.delete(f"{budgets}/mine")
    stage.admin.post(quotas, {**quota, "spec": {"hard": hard}})
    try:

        def said() -> str:
            try:
                stage.eve.post(budgets, budget)
            except Refused as e:
                return str(e)
            stage.eve.delete(f"{budgets}/mine")
            return ""

        # The API server may learn of the quota a moment later.
        until(lambda: "quota: no-budgets" in said(), "the budget is refused")
        more = {"spec": {"hard": dict.fromkeys(hard, "9")}}
        assert "cannot patch resource" in denial(stage.eve.patch, f"{quotas}/no-budgets", more)
    finally:
        stage.admin.delete(f"{quotas}/no-budgets")


RECLAIMING = """
actions: "enqueue, allocate, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: capacity}, {name: nodeorder}]
"""


@pytest.mark.parametrize(("solver", "names"), [("cpsat", ["mine"]), ("none", ["mine", "other"])])
def test_a_disruption_budget_does_not_hold_a_guarantee_if_the_administrator_decides_so(
    stage: Stage, control_plane: ControlPlane, tmp_path: Path, solver: str, names: list[str]
) -> None:
    """The permission to delete pods comes with the feature; without it, an error says so.

    The eviction API refuses pods of several budgets with another error than pods of one budget.
    """
    name = f"overrides-{solver}"
    nodes, budgets = "/api/v1/nodes", f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"
    node = node_manifest(name, cpu="4", labels={"overrides": solver})
    floor = {"guarantee": {"resource": {"cpu": "2"}}, "deserved": {"cpu": "2"}}
    policy = tmp_path / "policy.yaml"
    policy.write_text(RECLAIMING)
    flags = ("--scheduler-name", name, "--no-leader-elect", "--schedule-period", PERIOD)
    more = ("--config", str(policy), "--solver", solver, "--dump-dir", str(tmp_path))
    only = ("--node-selector", f"overrides:{solver}", "--guarantees-override-budgets")
    log = tmp_path / "scheduler.log"
    scheduler = Scheduler(stage.scheduler_config, log, [*flags, *more, *only])
    rights = str(shipped("manifests", "scheduler-budget-override-rbac.yaml"))

    def start(user: Api, gang: str, queue: str, number: int, least: int = 1) -> None:
        made = group(gang, queue)
        user.post(
            stage.path(kinds.POD_GROUP), {**made, "spec": {**made["spec"], "minMember": least}}
        )
        for i in range(number):
            body = sized(pod(f"{gang}-{i}", **{GROUP_KEY: gang}), 1, schedulerName=name)
            body["metadata"]["labels"] = {"app": gang}
            user.post(stage.path(kinds.POD), body)

    def is_bound(pod_name: str) -> bool:
        found = stage.find(kinds.POD, pod_name)
        return bool(found and found["spec"].get("nodeName"))

    def said(text: str) -> bool:
        return any(text in message for i in range(4) for message in stage.events(f"holds-{i}"))

    def reason(gang: str) -> str:
        found = stage.admin.get(stage.path(kinds.POD_GROUP, gang)).get("status") or {}
        return str([each.get("reason") for each in found.get("conditions") or ()])

    try:
        stage.admin.post(nodes, node)
        scheduler.begin()
        start(stage.eve, "holds", "students", 4)
        until(lambda: all(is_bound(f"holds-{i}") for i in range(4)), "the victims run")
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        selector = {"matchLabels": {"app": "holds"}}
        for queue, spec in (("lab", floor), ("students", {"deserved": {"cpu": "2"}})):
            stage.admin.patch(object_path(kinds.QUEUE, None, queue), {"spec": spec})
        budget |= {"spec": {"minAvailable": 4, "selector": selector}}
        for each in names:
            stage.eve.post(budgets, {**budget, "metadata": {"name": each}})
        start(stage.ann, "asks", "lab", 2, least=2)
        keys = ", ".join(f"{SPACE}/{each}" for each in names)
        what = "disruption budget" if len(names) == 1 else "disruption budgets"
        override = f"the guarantee of queue lab overrides the {what} {keys}"
        until(lambda: said(f"{override}, but the scheduler may not delete pods"), "it is refused")
        assert all(is_bound(f"holds-{i}") for i in range(4))
        control_plane.kubectl("apply", "-f", rights)
        until(lambda: all(is_bound(f"asks-{i}") for i in range(2)), "the guarantee is honoured")
        assert said(f"evicted by reclaim: its resources are for {SPACE}/asks; {override}")
        assert sum(is_bound(f"holds-{i}") for i in range(4)) == 2
        # A claim beyond the guarantee waits.
        start(stage.ann, "more", "lab", 1)
        until(lambda: "NotEnoughResources" in reason("more"), "it waits")
        assert sum(is_bound(f"holds-{i}") for i in range(4)) == 2
    finally:
        control_plane.kubectl("delete", "--ignore-not-found", "-f", rights)
        for each in names:
            stage.admin.delete(f"{budgets}/{each}")
        for kind in (kinds.POD, kinds.POD_GROUP):
            stage.admin.delete(stage.path(kind))
        stage.admin.delete(f"{nodes}/{name}")
        for queue in ("lab", "students"):
            none = {"spec": {"guarantee": None, "deserved": None}}
            stage.admin.patch(object_path(kinds.QUEUE, None, queue), none)
        scheduler.stop()
        print(scheduler.log)


def test_a_policy_denies_what_queues_do_not_limit(stage: Stage) -> None:
    """The policy of docs/security.md denies pods that bypass queues or repel pods of others."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.S)
    policies = "/apis/admissionregistration.k8s.io/v1"
    made = []
    for body in yaml.safe_load_all(text):
        plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
            body["kind"], "validatingadmissionpolicybindings"
        )
        stage.admin.post(f"{policies}/{plural}", body)
        made.append(f"{policies}/{plural}/{body['metadata']['name']}")
    space = f"/api/v1/namespaces/{SPACE}"
    stage.admin.patch(space, {"metadata": {"labels": {"optsched.io/tenants": "true"}}})

    def said(**spec: object) -> str:
        path = f"{stage.path(kinds.POD)}?dryRun=All"
        error = refusal(stage, path, sized(pod("tries", **{QUEUE_KEY: NARROW}), 1, **spec))
        return str(error or "")

    def apart(**term: object) -> dict[str, object]:
        required = [{"labelSelector": {}, "topologyKey": "kubernetes.io/hostname", **term}]
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    try:
        until(lambda: "spec.nodeName: leave it out" in said(nodeName=NODE), "the policy counts")
        assert "spec.schedulerName: write" in said(schedulerName="default-scheduler")
        everywhere: tuple[dict[str, object], ...] = (
            {"namespaceSelector": {}},
            {"namespaces": ["default"]},
            {"topologyKey": "kubernetes.io/os"},
        )
        for term in everywhere:
            assert "spec.affinity.podAntiAffinity: name no" in said(affinity=apart(**term))
        assert said(affinity=apart()) == ""
        # Pods of jobs are pods of controllers, and the policy applies to them too.
        assert_others_start(stage)
        work = job("repels", "students")
        work["spec"]["tasks"][0]["template"]["spec"]["affinity"] = apart(namespaceSelector={})
        stage.eve.post(stage.path(kinds.JOB), work)
        denied = "name no namespaces"
        until(lambda: any(denied in each for each in stage.events("repels")), "it is reported")
        assert stage.find(kinds.POD, "repels-w-0") is None
    finally:
        stage.admin.patch(space, {"metadata": {"labels": {"optsched.io/tenants": None}}})
        for path in made:
            stage.admin.delete(path)


def test_pods_without_requests_count_in_a_queue_of_few_pods(stage: Stage) -> None:
    """Such pods use no CPUs of the queue, but fill the places for pods of a node."""
    queue = object_path(kinds.QUEUE, None, NARROW)
    stage.admin.patch(queue, {"spec": {"capability": {"cpu": "2", "pods": "2"}}})
    try:
        for name in ("first", "second", "third"):
            stage.eve.post(stage.path(kinds.POD), pod(name, **{QUEUE_KEY: NARROW}))
        until(
            lambda: sum(bool(node_of(stage, n)) for n in ("first", "second", "third")) == 2, "two"
        )
        (waits,) = [n for n in ("first", "second", "third") if not node_of(stage, n)]
        await_waits(stage, waits, "has capability 2 pods")
    finally:
        stage.admin.patch(queue, {"spec": {"capability": {"pods": None}}})


def test_a_name_that_no_podgroup_has_reaches_no_other_object(stage: Stage) -> None:
    """The webhook reads the PodGroup that an annotation names."""
    stage.ann.post(stage.path(kinds.POD_GROUP), group("of-lab", "lab"))
    names = (".", "..", "of-lab/", "of-lab/status", "../podgroups/of-lab", "of-lab%2f", "of-lab?x")
    for number, name in enumerate(names):
        body = sized(pod(f"names-{number}", **{GROUP_KEY: name}), 1)
        stage.eve.post(stage.path(kinds.POD), body)
    assert_others_start(stage)
    assert not [n for n in range(len(names)) if node_of(stage, f"names-{n}")]
    assert held_by(stage, "lab") in ("0", "1"), "the pod `goes-on` alone"
    assert not [
        line for log in stage.logs() for line in log.splitlines() if "did not answer" in line
    ]


def test_nothing_acts_on_objects_of_another_namespace(stage: Stage) -> None:
    """Eve may edit a second namespace, and names objects of Ann's namespace there."""
    other = "tenants-second"
    make_namespace(stage.admin, other)
    bindings = f"/apis/{RBAC}/v1/namespaces/{other}/rolebindings"
    for name, granted in (("tenants", "edit"), ("use-students", "use-students")):
        body = binding(name, granted, ("User", "eve"))
        stage.admin.post(bindings, {"apiVersion": f"{RBAC}/v1", **body})
    paths = {kind: collection_path(kind, other) for kind in (kinds.POD, kinds.COMMAND, kinds.JOB)}
    stage.ann.post(stage.path(kinds.JOB), job("real", "lab"))
    until(lambda: stage.find(kinds.POD, "real-w-0"), "the pod of the job")
    await_bound(stage, "real-w-0")
    real = stage.admin.get(stage.path(kinds.POD, "real-w-0"))["metadata"]
    (owner,) = real["ownerReferences"]

    def is_let_in() -> bool:
        return refusal(stage, paths[kinds.JOB], job("own", "students")) is None

    try:
        until(is_let_in, "the role binding counts")
        for number, name in enumerate(("real", f"{SPACE}/real", f"../{SPACE}/real")):
            target = {"apiVersion": kinds.JOB.api_version, "kind": "Job", "uid": owner["uid"]}
            command = {"apiVersion": kinds.COMMAND.api_version, "kind": "Command"}
            command |= {"metadata": {"name": f"aborts-{number}"}, "action": "AbortJob"}
            stage.eve.post(paths[kinds.COMMAND], {**command, "target": {**target, "name": name}})
        joins = pod("joins", **{GROUP_KEY: real["annotations"][GROUP_KEY]})
        for body in (joins, pod("owned", own=owner)):
            said = str(refusal(stage, paths[kinds.POD], sized(body, 1)))
            assert "only controllers" in said or "as owner" in said, said
        claims = job("mounts", "students")
        claims["spec"]["volumes"] = [{"mountPath": "/v", "volumeClaimName": f"../{SPACE}/data"}]
        assert refusal(stage, paths[kinds.JOB], claims) is not None
        assert_others_start(stage)
        state = stage.admin.get(stage.path(kinds.JOB, "real"))["status"]["state"]["phase"]
        assert state == "Running"
    finally:
        for path in (*paths.values(), f"/api/v1/namespaces/{other}"):
            stage.admin.delete(path)


def test_a_forged_event_neither_stops_the_scheduler_nor_hides_its_event(stage: Stage) -> None:
    """Tenants may create events, and the name of the scheduler's next event is predictable."""
    kind, reason, code = EventType.WARNING, "Unschedulable", "QueueCapabilityExceeded"
    for number, count in enumerate((-7, -(2**31), 2**31 - 1)):
        name = f"forged-{number}"
        meta = stage.eve.post(stage.path(kinds.POD), sized(pod(name, **{QUEUE_KEY: NARROW}), 3))
        uid = meta["metadata"]["uid"]
        event = Note(Ref(kinds.POD, SPACE, name), uid, kind, reason, "", code)
        body = build_event(event, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
        stage.eve.post(stage.path(kinds.EVENT), {**body, "count": count, "reason": "Forged"})
    for number in range(3):
        name = f"forged-{number}"
        await_waits(stage, name, "has capability 2 cpu")

        def says(name: str = name) -> bool:
            found = stage.admin.items(stage.path(kinds.EVENT))
            own = [e for e in found if e["involvedObject"].get("name") == name]
            return [e["reason"] for e in own if code in str(e.get("message"))] == ["Unschedulable"]

        until(says, f"{name}: the event is that of the scheduler")
        # The scheduler reports a changed pod again.
        change = {"metadata": {"labels": {"look": "again"}}}
        stage.eve.patch(stage.path(kinds.POD, name), change)
    assert_others_start(stage)
