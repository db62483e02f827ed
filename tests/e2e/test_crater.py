"""The operations of Crater's backend on a cluster, with Crater's own configuration."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.local.kubectl import node_manifest
from optsched.units.quantity import parse_quantity
from tests.support.api import Refused
from tests.support.jobs import documents
from tests.support.live import FAIL, GPU, SESSIONS
from tests.support.shared import shared
from tests.support.together import Together, environment, is_refused, jobs_of, pod_names
from tests.support.webhooks import make_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Raw

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("crater")]

SPACE = "crater-workspace"
SHAPES = ("jupyter", "webide", "custom", "tensorflow", "pytorch")
ALICE, BOB, ACCOUNT = "q-a2-u7", "q-a2-u8", "q-a2"
JUPYTER, CUSTOM, PYTORCH = (f"{kind}-alice-250101-abcde" for kind in ("jpt", "sg", "pyt"))
QUEUES = collection_path(kinds.QUEUE)
PHASES = {"Pending", "Running", "Completing", "Completed", "Terminating", "Terminated"}
NOTES = {
    "scheduling.k8s.io/group-name",
    *(f"volcano.sh/job-{name}" for name in ("name", "retry-count", "version")),
    *(f"volcano.sh/{name}" for name in ("queue-name", "task-index", "task-spec", "template-uid")),
}
LABELS = {f"volcano.sh/{n}" for n in ("job-name", "job-namespace", "queue-name", "task-index")}


def crater(name: str) -> Path:
    """Return the path of a manifest that Crater's backend posts."""
    return shared("manifests", "crater", f"{name}.yaml")


@pytest.fixture(scope="module")
def cluster(
    own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together]:
    folder = tmp_path_factory.mktemp("crater")
    [values] = documents(crater("values"))
    config = folder / "crater.conf"
    config.write_text(values["custom"]["scheduler_config_override"])
    with Together(own_plane, folder, "--config", str(config)) as running:
        make_namespace(running.api, SPACE)
        yield running


@pytest.fixture
def together(cluster: Together) -> Iterator[Together]:
    """Yield a cluster with all components and without other objects."""
    yield cluster
    cluster.clear()


def post(together: Together, body: Raw) -> Raw:
    return together.api.post(collection_path(kinds.JOB, SPACE), body)


def sized(name: str, queue: str, gpus: int) -> Raw:
    """Return a custom job with the given number of GPUs."""
    [body] = jobs_of(crater("custom"))
    body["metadata"]["name"] = name
    body["spec"]["queue"] = queue
    resources = body["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    for amounts in resources.values():
        amounts[GPU] = str(gpus)
    return body


def put(together: Together, path: str, body: Raw) -> Raw:
    """Replace an object by a full update, as Go clients do."""
    return together.api._call("PUT", path, body)


def test_the_five_shapes_run(together: Together) -> None:
    """Queues and jobs are created in quick succession (K2, K3)."""
    begun = time.monotonic()
    together.apply(crater("queues"), *(crater(name) for name in SHAPES))
    bodies = jobs_of(*(crater(name) for name in SHAPES))
    assert len(bodies) == len(SHAPES)
    for body in bodies:
        together.await_whole(body)
    print(f"five shapes: {time.monotonic() - begun:.1f} s from kubectl apply to all pods Running")
    # The account page shows the sum over the account's users (K17) and the counts (K18).
    wanted = {"cpu": "32", "memory": "108Gi", GPU: "7", "pods": "9"}
    for name in (ALICE, ACCOUNT):
        together.await_(lambda n=name: held(together, n) == amounts(wanted), f"{name} holds")
    together.await_(lambda: together.queue(ALICE)["status"].get("running") == 5, "five run")
    for body in bodies:
        look_at_pods(together, body)
    core = f"/api/v1/namespaces/{SPACE}"
    policies = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
    for body in bodies:
        name = body["metadata"]["name"]
        assert together.api.get(f"{core}/services/{name}")["spec"]["clusterIP"] == "None"
        assert together.api.get(f"{core}/configmaps/{name}-svc")["data"]
        assert together.api.find(f"{policies}/{name}") is not None
    pod = together.pods(PYTORCH, SPACE)[f"{PYTORCH}-worker-0"]
    names = {each["name"] for each in pod["spec"]["containers"][0]["env"]}
    assert {f"VC_{t}_{n}" for t in ("MASTER", "WORKER") for n in ("HOSTS", "NUM")} <= names
    worker = environment(pod)
    assert worker["MASTER_ADDR"] == f"{PYTORCH}-master-0.{PYTORCH}"
    found = (worker["MASTER_PORT"], worker["WORLD_SIZE"], worker["RANK"])
    assert found == ("23456", "3", "1")


def amounts(resources: dict[str, str]) -> dict[str, int]:
    """Return the nonzero amounts in whole units."""
    found = {name: parse_quantity(amount).value() for name, amount in resources.items()}
    return {name: amount for name, amount in found.items() if amount}


def held(together: Together, queue: str) -> dict[str, int]:
    """Return the resources that a queue holds according to its status."""
    return amounts(together.queue(queue).get("status", {}).get("allocated") or {})


def look_at_pods(together: Together, body: Raw) -> None:
    """Check the names (K4, K5), labels (K6) and owners (K7) of a job's pods."""
    name = body["metadata"]["name"]
    uid = together.job(name, SPACE)["metadata"]["uid"]
    pods = together.pods(name, SPACE)
    assert set(pods) == pod_names(body)
    for pod in pods.values():
        meta = pod["metadata"]
        assert meta["labels"].keys() >= LABELS
        assert meta["labels"]["volcano.sh/queue-name"] == ALICE
        assert meta["labels"]["crater.raids.io/task-user"] == "alice"
        assert meta["annotations"].keys() >= NOTES
        assert meta["annotations"]["crater.raids.io/user"] == "alice"
        owner = meta["ownerReferences"][0]
        assert (owner["kind"], owner["apiVersion"], owner["uid"]) == (
            "Job",
            "batch.volcano.sh/v1alpha1",
            uid,
        )
        assert meta["labels"]["volcano.sh/task-spec"] in meta["name"]


def test_a_task_without_a_name_is_named_in_its_job(together: Together) -> None:
    together.apply(crater("queues"))
    jobs = together.run_all(crater("jupyter"))
    assert jobs[JUPYTER]["spec"]["tasks"][0]["name"] == "default0"
    assert set(together.pods(JUPYTER, SPACE)) == {f"{JUPYTER}-default0-0"}


def test_what_go_clients_send_is_taken(together: Together) -> None:
    """The webhook accepts null times, and jobs in queues that were created just before (K2, K3)."""
    for number in range(15):
        queues = [copy.deepcopy(body) for body in documents(crater("queues"))][:2]
        account, user = f"q-b{number}", f"q-b{number}-u1"
        queues[0]["metadata"]["name"] = account
        queues[0]["spec"].pop("guarantee")
        queues[1]["metadata"]["name"] = user
        queues[1]["spec"]["parent"] = account
        for body in queues:
            together.api.post(f"{QUEUES}?fieldValidation=Warn", body)
        job = sized(f"j{number}", user, 1)
        job["spec"]["tasks"][0]["template"]["metadata"]["creationTimestamp"] = None
        assert post(together, job)["metadata"]["name"] == f"j{number}"
    for number in range(15):
        together.await_phase("Running", f"j{number}", SPACE)


def test_a_running_job_takes_notes(together: Together) -> None:
    """K21: a full update may change annotations of a running job."""
    together.apply(crater("queues"))
    job = together.run_all(crater("jupyter"))[JUPYTER]
    path = object_path(kinds.JOB, SPACE, JUPYTER)

    def change(update: Any) -> bool:
        body = together.api.get(path)
        update(body)
        try:
            put(together, path, body)
        except Refused as e:
            if e.reason != "Conflict":
                raise
            return False
        return True

    note = {"crater.raids.io/forwards": "[]"}
    together.await_(lambda: change(lambda b: b["metadata"]["annotations"].update(note)), "noted")
    found = together.job(JUPYTER, SPACE)
    assert found["metadata"]["annotations"]["crater.raids.io/forwards"] == "[]"
    assert found["metadata"]["generation"] == job["metadata"]["generation"] == 1
    said = together.kubectl("annotate", "vcjob", JUPYTER, "-n", SPACE, "crater.raids.io/token=x")
    assert said.returncode == 0, said.stderr


def test_times_of_stages_stay_for_the_bill(together: Together) -> None:
    """K8 and K12: every stage has its time, and policies determine the final phase."""
    together.apply(crater("queues"))
    together.run_all(crater("custom"), crater("pytorch"))
    together.end(f"{CUSTOM}-default0-0", namespace=SPACE)
    together.end(f"{PYTORCH}-master-0", namespace=SPACE, how=FAIL)
    done = together.await_phase("Completed", CUSTOM, SPACE)["status"]
    ended = together.await_phase("Terminated", PYTORCH, SPACE)["status"]
    for status in (done, ended):
        conditions = status["conditions"]
        times = [each["lastTransitionTime"] for each in conditions]
        assert times == sorted(times)
        assert all(time.strptime(each, "%Y-%m-%dT%H:%M:%SZ") for each in times)
        assert {each["status"] for each in conditions} <= PHASES
        assert conditions[-1]["status"] == status["state"]["phase"]
        assert status["runningDuration"].endswith("s")
    assert [each["status"] for each in done["conditions"]][:2] == ["Pending", "Running"]


def test_a_guarantee_alone_is_taken_and_a_queue_is_written_as_a_whole(together: Together) -> None:
    """K14, K15 and G1: a guarantee without `deserved` is accepted, and full updates work."""
    said = together.apply(crater("queue-guarantee-without-deserved"))
    assert "deserved" in said
    path = object_path(kinds.QUEUE, None, "q-a3")
    together.await_(lambda: together.queue("q-a3").get("status", {}).get("state") == "Open", "open")
    assert together.queue("q-a3")["spec"]["weight"] == 1

    def reset() -> bool:
        body = together.api.get(path)
        body["spec"] = {**body["spec"], "capability": {GPU: "4"}, "guarantee": {}, "deserved": {}}
        return not is_refused(lambda: put(together, path, body))

    together.await_(reset, "it is written")
    spec = together.queue("q-a3")["spec"]
    assert spec["capability"] == {GPU: "4"}
    assert not spec["guarantee"].get("resource")
    assert together.queue("q-a3")["status"]["state"] == "Open"


def test_accounts_come_and_go(together: Together) -> None:
    """K16: users are deleted before their account, and excessive child queues are refused."""
    together.apply(crater("queues"))
    names = {body["metadata"]["name"]: body for body in documents(crater("queues"))}
    greedy = copy.deepcopy(names[ALICE])
    greedy["metadata"]["name"] = "q-a2-u9"
    greedy["spec"]["capability"][GPU] = "9"
    with pytest.raises(Refused) as refused:
        together.api.post(QUEUES, greedy)
    assert "q-a2-u9" in refused.value.args[2]
    assert GPU in refused.value.args[2]
    with pytest.raises(Refused) as refused:
        together.api._call("DELETE", f"{QUEUES}/{ACCOUNT}")
    assert "child queues" in refused.value.args[2]
    for name in (ALICE, BOB, ACCOUNT):
        together.await_(
            lambda name=name: (
                not is_refused(lambda: together.api._call("DELETE", f"{QUEUES}/{name}"))
            ),
            f"{name} is deleted",
        )
    left = {queue["metadata"]["name"] for queue in together.api.items(QUEUES)}
    assert left == {"default", "root"}


def test_an_account_has_no_more_than_it_may_and_says_so(together: Together) -> None:
    """K19 and K20: two users share 8 GPUs, and Crater's page can show the events."""
    together.apply(crater("queues"))
    post(together, sized("first", ALICE, 6))
    together.await_phase("Running", "first", SPACE)
    post(together, sized("second", BOB, 6))

    def told() -> list[Raw]:
        about = [*together.pods("second", SPACE), "second"]
        found = [event for name in about for event in together.events(name, SPACE)]
        return [event for event in found if ACCOUNT in event["message"]]

    together.await_(told, "the account is named")
    sessions = together.scheduler.metric(SESSIONS)
    for number in range(20):
        again(together, str(number))
    assert together.scheduler.metric(SESSIONS) >= sessions + 20
    assert together.phase("second", SPACE) == "Pending"
    # The scheduler updates the status of a queue within seconds, after one or more sessions.
    together.await_(lambda: held(together, ACCOUNT).get(GPU) == 6, "the account holds 6 GPUs")
    events = together.await_(lambda: together.events("second", SPACE), "the job is told")
    for event in events:
        assert event["lastTimestamp"]
        assert event["involvedObject"]["kind"] in ("Job", "PodGroup")
    texts = Counter((event["reason"], event["message"]) for event in events)
    assert max(texts.values()) == 1, texts
    assert len(events) <= 20
    together.api.delete(object_path(kinds.JOB, SPACE, "first"), propagationPolicy="Background")
    together.await_phase("Running", "second", SPACE)


def again(together: Together, value: str) -> None:
    """Trigger one more session and wait for it."""
    before = together.scheduler.metric(SESSIONS)
    together.api.patch("/api/v1/nodes/cpu1", {"metadata": {"labels": {"asked-again": value}}})
    together.await_(lambda: together.scheduler.metric(SESSIONS) > before, "another session")


def test_nothing_is_written_to_a_job_that_runs(together: Together) -> None:
    """K30: no component writes to the job's spec, or to the status of a running job."""
    together.apply(crater("queues"))
    [body] = jobs_of(crater("pytorch"))
    together.run_all(crater("pytorch"))
    together.await_(
        lambda: together.job(PYTORCH, SPACE)["status"].get("running") == 3, "the status is whole"
    )
    before = together.job(PYTORCH, SPACE)["metadata"]
    for number in range(5):
        again(together, f"still-{number}")
    after = together.job(PYTORCH, SPACE)["metadata"]
    assert after["generation"] == 1
    assert after["resourceVersion"] == before["resourceVersion"]
    assert len(body["spec"]["tasks"]) == 2


def test_a_pod_that_grows_in_place_counts_with_more(together: Together) -> None:
    """K23: a queue is charged for the larger request after an in-place resize."""
    together.apply(crater("queues"))
    together.run_all(crater("jupyter"))
    name = f"{JUPYTER}-default0-0"
    pod = together.pods(JUPYTER, SPACE)[name]
    # A kubelet that can resize containers reports their resources, but KWOK does not.
    told = pod["status"]["containerStatuses"]
    told[0]["resources"] = pod["spec"]["containers"][0]["resources"]
    path = object_path(kinds.POD, SPACE, name, "status")
    together.api.patch(path, {"status": {"containerStatuses": told}})
    container = {
        "name": "jupyter",
        "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "8001m"}},
    }
    patch = json.dumps({"spec": {"containers": [container]}})
    words = ("patch", "pod", name, "-n", SPACE, "--subresource", "resize", "--patch", patch)
    said = together.kubectl(*words)
    assert said.returncode == 0, said.stderr
    for queue in (ALICE, ACCOUNT):
        together.await_(lambda q=queue: held(together, q).get("cpu") == 8, f"{queue} holds 8 CPUs")


def test_a_burst_of_deletions_makes_room(together: Together) -> None:
    """K27: five small jobs end, and a job that needs their capacity starts."""
    together.apply(crater("queues"))
    for number in range(4):
        post(together, sized(f"small-{number}", ALICE, 2))
    for number in range(4):
        together.await_phase("Running", f"small-{number}", SPACE)
    for number in range(4):
        path = object_path(kinds.JOB, SPACE, f"small-{number}")
        together.api.delete(path, propagationPolicy="Background")
    post(together, sized("big", ALICE, 8))
    together.await_phase("Running", "big", SPACE)


def test_vllm_waits_for_its_devices_and_then_runs(together: Together) -> None:
    """F15: the job's status names the missing devices; with suitable nodes, both tasks run."""
    claim(together)
    path = crater("vllm")
    together.apply(path)
    [body] = jobs_of(path)
    name = body["metadata"]["name"]

    def said() -> str:
        about = [*together.pods(name, SPACE), name]
        messages = [event["message"] for each in about for event in together.events(each, SPACE)]
        return next((m for m in messages if "nvidia.com/v100" in m and "rdma/rdma_v100" in m), "")

    message = together.await_(said, "the devices are named")
    print(f"vllm waits: {message}")
    assert together.phase(name, SPACE) == "Pending"
    devices = {"nvidia.com/v100": "4", "rdma/rdma_v100": "1"}
    for number in range(2):
        node = node_manifest(f"v100-{number}", cpu="32", memory="256Gi")
        for field in ("capacity", "allocatable"):
            node["status"][field] |= devices
        together.nodes(node)
    together.await_whole(body)
    pods = together.pods(name, SPACE)
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {"v100-0", "v100-1"}
    worker = environment(pods[f"{name}-worker-0"])
    assert worker["MASTER_ADDR"] == f"{name}-master-0.{name}"
    commands = [c["command"] for c in pods[f"{name}-master-0"]["spec"]["containers"]]
    wanted = body["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert commands == [wanted]


def test_nodes_of_an_account_are_for_its_members(together: Together) -> None:
    """K22: only pods with Crater's toleration run on the nodes of an account."""
    together.apply(crater("queues"))
    node = node_manifest("lab-a", cpu="32", memory="256Gi")
    taint = {"key": "crater.raids.io/account", "value": "lab-a", "effect": "NoSchedule"}
    node["spec"] = {"taints": [taint]}
    for field in ("capacity", "allocatable"):
        node["status"][field]["nvidia.com/a100"] = "2"
    together.nodes(node)
    for name, account in (("member", "lab-a"), ("stranger", "lab-b")):
        body = sized(name, ALICE, 0)
        spec = body["spec"]["tasks"][0]["template"]["spec"]
        spec["tolerations"][0]["value"] = account
        for amounts in spec["containers"][0]["resources"].values():
            del amounts[GPU]
            amounts["nvidia.com/a100"] = "1"
        post(together, body)
        if name == "member":
            together.await_phase("Running", name, SPACE)

    def said() -> str:
        about = [*together.pods("stranger", SPACE), "stranger"]
        messages = [e["message"] for each in about for e in together.events(each, SPACE)]
        return next((m for m in messages if "crater.raids.io/account" in m), "")

    together.await_(said, "the taint is named")
    assert together.phase("stranger", SPACE) == "Pending"
    [pod] = together.pods("member", SPACE).values()
    assert pod["spec"]["nodeName"] == "lab-a"


def claim(together: Together) -> None:
    """Create the volume with the models and its bound claim."""
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    reference = {"name": "crater-ro-storage", "namespace": SPACE}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "models"},
        "spec": {
            **access,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/models"},
            "claimRef": reference,
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": reference,
        "spec": {**access, **size, "volumeName": "models"},
    }
    together.plane.kubectl.apply(volume)
    together.plane.kubectl.apply(wanted)
    path = f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims/crater-ro-storage"
    together.await_(lambda: together.api.get(path)["status"].get("phase") == "Bound", "bound")


def test_the_rights_of_crater_are_enough(together: Together) -> None:
    """K29: the rights to create, get, list, watch, update and delete suffice."""
    verbs = "create,get,list,watch,update,delete"
    resources = "queues.scheduling.volcano.sh,jobs.batch.volcano.sh"
    together.kubectl(
        "create", "clusterrole", "crater", f"--verb={verbs}", f"--resource={resources}"
    )
    together.kubectl(
        "create", "clusterrolebinding", "crater", "--clusterrole=crater", "--user=crater"
    )
    config = together.plane.kubeconfig_for("crater")
    together.await_(
        lambda: (
            together.kubectl(
                "auth", "can-i", "create", "queues.scheduling.volcano.sh", "--as=crater"
            ).returncode
            == 0
        ),
        "the rights hold",
    )
    user = (f"--kubeconfig={config}", "--validate=warn")
    for name in ("queues", "jupyter"):
        made = together.kubectl("create", *user, "-f", str(crater(name)))
        assert made.returncode == 0, made.stderr
    together.await_phase("Running", JUPYTER, SPACE)
    gone = together.kubectl("delete", user[0], "-f", str(crater("jupyter")), "--wait=false")
    assert gone.returncode == 0, gone.stderr
