"""The webhook with a real API server over TLS: refusals, defaults and failures."""

from __future__ import annotations

import json
import re
import ssl
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from optsched.admission.review import MAX_VALUES_OF_REVIEW
from optsched.admission.services import SERVICE_OF, configuration
from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.kube.serving.certificates import renew_credentials
from optsched.kube.webhook.server import MAX_BODY
from optsched.local.processes import run
from optsched.units import parse_quantity
from tests.admission.kit import container, job, task, template
from tests.support.api import Api, Refused, until
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared
from tests.support.webhooks import (
    SYSTEM,
    Webhook,
    free_port,
    make_namespace,
    queue_is_made,
    registered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.local.plane import ControlPlane

    Raw = dict[str, Any]

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("webhook")]

COMPONENTS = Path(__file__).parents[2] / "deploy/helm/optsched/config/components.yaml"
QUEUES = collection_path(kinds.QUEUE)
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def start(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Webhook]]:
    """Yield a function that starts a webhook on the port of the registered configurations."""
    folder, port = tmp_path_factory.mktemp("webhook"), free_port()
    started: list[Webhook] = []
    make_namespace(api, SYSTEM)
    with registered(api):

        def begin(*flags: str) -> Webhook:
            log = folder / f"{len(started)}.log"
            webhook = Webhook(control_plane.kubeconfig, log, port, *flags)
            started.append(webhook)
            return webhook.begin()

        yield begin
    for webhook in started:
        webhook.stop()


@pytest.fixture(scope="module")
def webhook(start: Callable[..., Webhook], api: Api) -> Webhook:
    """Return a webhook that all tests share."""
    running = start()
    until(lambda: queue_is_made(api, "default"), "the webhook answers")
    queue_is_made(api, "root")
    return running


@pytest.fixture
def space(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a separate namespace for a test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


def queue(name: str, annotations: Raw | None = None, **spec: Any) -> Raw:
    kind = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue"}
    return {**kind, "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def in_space(space: str, obj: Raw, name: str = "") -> Raw:
    return {
        **obj,
        "metadata": {**obj["metadata"], "namespace": space, **({"name": name} if name else {})},
    }


def submit(api: Api, space: str, obj: Raw, name: str = "") -> Raw:
    path = collection_path(kinds.JOB, space)
    return api.post(path, in_space(space, obj, name))


def denial(action: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        action()
    return str(caught.value.args[2])


def test_a_job_is_filled_in(webhook: Webhook, api: Api, space: str):
    resources = {"requests": {"cpu": "1", GPU: "2"}}
    bare = {"replicas": 2, "template": template(container(resources=resources))}
    policies = [{"event": "JobUnknown", "action": "RestartJob"}]
    made = submit(api, space, job(bare, plugins={"pytorch": []}, policies=policies))
    spec = made["spec"]
    (found,) = spec["tasks"]
    assert (spec["queue"], spec["schedulerName"], spec["minAvailable"]) == ("default", "volcano", 2)
    assert spec["plugins"] == {"pytorch": [], "svc": []}
    assert spec["policies"] == [{"event": "Unknown", "action": "RestartJob"}]
    assert (found["name"], found["maxRetry"]) == ("default0", 3)
    limits = found["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {GPU: "2"}


def test_warnings_reach_the_user(webhook: Webhook, control_plane: ControlPlane, space: str):
    obj = in_space(space, job(task(template=template(container(resource={})))), "warned")
    kubectl = control_plane.kubectl
    command = [kubectl.binary, f"--kubeconfig={kubectl.kubeconfig}", "create", "-f", "-"]
    result = run(command, input=json.dumps(obj))
    assert result.returncode == 0
    assert 'Warning: unknown field "spec.tasks[0].template.spec.containers[0].resource"' in (
        result.stderr
    )


def test_a_job_that_could_never_run_is_refused(webhook: Webhook, api: Api, space: str):
    said = denial(lambda: submit(api, space, job(minAvailable=9, queue="compute")))
    assert said.startswith('admission webhook "validatejob.volcano.sh" denied the request: ')
    assert "job 'minAvailable' should not be greater than total replicas in tasks" in said
    assert 'unable to find job queue: queue.scheduling.volcano.sh "compute" not found' in said
    assert "open queues are default" in said


def test_a_job_may_follow_its_queue_at_once(webhook: Webhook, api: Api, space: str):
    for number in range(50):
        name = f"{space}-{number}"
        api.post(QUEUES, queue(f"{name}-dept"))
        api.post(QUEUES, queue(name, parent=f"{name}-dept"))
        submit(api, space, job(queue=name), f"j{number}")
        api.delete(f"{QUEUES}/{name}")
        api.delete(f"{QUEUES}/{name}-dept")


def test_a_closed_queue_takes_neither_jobs_nor_podgroups(webhook: Webhook, api: Api, space: str):
    api.post(QUEUES, queue("shut"))
    api.patch(f"{QUEUES}/shut/status", {"status": {"state": "Closed"}})
    sentence = "can only submit job to queue with state Open, queue shut status is Closed"
    until(lambda: sentence in refusal(lambda: submit(api, space, job(queue="shut"))), sentence)
    group = {
        "apiVersion": kinds.POD_GROUP.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"queue": "shut"},
    }
    path = collection_path(kinds.POD_GROUP, space)
    said = denial(lambda: api.post(path, group))
    assert "can only submit PodGroup to queue with state Open, queue shut status is Closed" in said
    gone = {**group, "spec": {"queue": "gone"}}
    assert "unable to find queue" in denial(lambda: api.post(path, gone))
    # A reopened queue accepts the next job, even if the watch is late.
    api.patch(f"{QUEUES}/shut/status", {"status": {"state": "Open"}})
    submit(api, space, job(queue="shut"), "later")
    api.delete(f"{QUEUES}/shut")


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except Refused as e:
        return str(e.args[2])
    return ""


def test_a_podgroup_without_a_queue_goes_to_that_of_its_namespace(
    webhook: Webhook, api: Api, space: str
):
    mark = {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "default"}}}
    api.patch(f"/api/v1/namespaces/{space}", mark)
    group = {
        "apiVersion": kinds.POD_GROUP.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 1},
    }
    path = collection_path(kinds.POD_GROUP, space)
    assert api.post(path, group)["spec"]["queue"] == "default"
    # PodGroups have no status subresource, and no webhook reviews the scheduler's updates.
    account = f"system:serviceaccount:{SYSTEM}:optsched-scheduler"
    scheduler = api.as_user(account, "system:masters")
    before = webhook.metric("optsched_admission_reviews_total", path="/podgroups/validate")
    scheduler.patch(f"{path}/g", {"status": {"phase": "Running"}})
    scheduler.close()
    assert webhook.metric("optsched_admission_reviews_total", path="/podgroups/validate") == before
    said = denial(lambda: api.patch(f"{path}/g", {"spec": {"queue": "gone"}}))
    assert "unable to find queue" in said


def test_queues_that_contradict_each_other_are_refused(webhook: Webhook, api: Api):
    guaranteed = {"resource": {"cpu": "16"}}
    made = api.post(QUEUES, queue("g1", guarantee=guaranteed))
    assert (made["spec"]["parent"], made["spec"]["weight"]) == ("root", 1)
    said = denial(lambda: api.post(QUEUES, queue("g2", guarantee=guaranteed, deserved={"cpu": 8})))
    assert "deserved[cpu]=8 must be >= guarantee[cpu]=16" in said
    api.post(QUEUES, queue("g1-child", parent="g1", capability={"cpu": "4"}))
    said = denial(lambda: api.patch(f"{QUEUES}/g1", {"spec": {"capability": {"cpu": "2"}}}))
    assert "queue g1 capability[cpu]=2 is less than its child queue g1-child capability=4" in said
    with pytest.raises(Refused) as caught:
        api._call("DELETE", f"{QUEUES}/g1")
    assert "queue g1 cannot be deleted because it has 1 child queues" in str(caught.value)
    for name in ("default", "root"):
        with pytest.raises(Refused) as caught:
            api._call("DELETE", f"{QUEUES}/{name}")
        assert f"{name} queue cannot be deleted" in str(caught.value)
    for name in ("g1-child", "g1"):
        api._call("DELETE", f"{QUEUES}/{name}")


def test_accounts_of_crater_come_change_and_go(webhook: Webhook, api: Api, space: str):
    """Crater's server creates queues without weights in quick succession and updates them."""
    amounts = {"cpu": "32", GPU: "8"}
    account, users = f"{space}-a9", [f"{space}-a9-u{i}" for i in range(3)]
    floor = {"resource": {"cpu": "8"}}
    spec = {"capability": amounts, "deserved": {"cpu": "16"}, "guarantee": floor}
    none: Raw = {"allocated": None, "reservation": {}}
    made = api.post(QUEUES, {**queue(account, **spec), "status": none})
    assert made["spec"]["weight"] == 1
    for name in users:
        api.post(QUEUES, {**queue(name, parent=account, capability=amounts, guarantee={})})
        submit(api, space, job(queue=name), f"j-{name}")
    said = denial(lambda: submit(api, space, job(queue=account)))
    assert f"can only submit job to leaf queue, queue {account} has 3 child queues" in said
    held = api.get(f"{QUEUES}/{users[0]}")
    held["spec"] |= {"capability": {"cpu": "4"}, "guarantee": {}, "deserved": None}
    assert api._call("PUT", f"{QUEUES}/{users[0]}", held)["spec"]["capability"] == {"cpu": "4"}
    held = api.get(f"{QUEUES}/{users[1]}")
    held["spec"]["capability"] = {"cpu": "64"}
    said = denial(lambda: api._call("PUT", f"{QUEUES}/{users[1]}", held))
    assert "exceeds its ancestor's capability=32: spec.capability[cpu]" in said
    assert f"the ancestor is queue {account}" in said
    held["spec"] |= {"capability": amounts, "guarantee": {"resource": {"cpu": "9"}}}
    said = denial(lambda: api._call("PUT", f"{QUEUES}/{users[1]}", held))
    assert "sum of children's guarantee (cpu 9) exceeds parent's guarantee limit (cpu 8)" in said
    for name in (*users, account):
        api._call("DELETE", f"{QUEUES}/{name}")


def test_the_lists_of_a_queue_keep_others_out(webhook: Webhook, api: Api, space: str):
    api.post(QUEUES, queue("lab-a", {"optsched.io/groups": "lab-a"}))
    api.post(QUEUES, queue("lab-b", {"optsched.io/groups": "system:masters"}))
    said = denial(lambda: submit(api, space, job(queue="lab-a")))
    assert f"may not use queue lab-a from namespace {space}: its annotations admit" in said
    submit(api, space, job(queue="lab-b"), "ours")
    for name in ("lab-a", "lab-b"):
        api.delete(f"{QUEUES}/{name}")


def test_what_may_change_about_a_job(webhook: Webhook, api: Api, space: str):
    submit(api, space, job())
    path = object_path(kinds.JOB, space, "j")
    api.patch(path, {"metadata": {"annotations": {"crater.raids.io/forwards": "x"}}})
    api.patch(path, {"spec": {"minAvailable": 1}})
    said = denial(lambda: api.patch(path, {"spec": {"queue": "root"}}))
    assert (
        "job updates may not change fields other than minAvailable, tasks[*].replicas under spec "
        "and PriorityClassName: spec.queue was" in said
    )


def test_other_kinds_are_looked_at(webhook: Webhook, api: Api, space: str):
    cron = {
        "apiVersion": kinds.CRON_JOB.api_version,
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"schedule": "61 * * * *", "jobTemplate": {"spec": job()["spec"]}},
    }
    said = denial(lambda: api.post(collection_path(kinds.CRON_JOB, space), cron))
    assert "schedule is not a valid cron expression" in said
    flows = [{"name": a, "dependsOn": {"targets": [b]}} for a, b in (("a", "b"), ("b", "a"))]
    flow = {
        "apiVersion": kinds.JOB_FLOW.api_version,
        "kind": "JobFlow",
        "metadata": {"name": "f"},
        "spec": {"flows": flows},
    }
    said = denial(lambda: api.post(collection_path(kinds.JOB_FLOW, space), flow))
    assert "jobflow flow is not dag: spec.flows: a waits for b waits for a" in said
    members = [{"type": "Node", "selector": {"regexMatch": {"pattern": "("}}}]
    hypernode = {
        "apiVersion": kinds.HYPER_NODE.api_version,
        "kind": "HyperNode",
        "metadata": {"name": f"{space}-h"},
        "spec": {"tier": 1, "members": members},
    }
    said = denial(lambda: api.post(collection_path(kinds.HYPER_NODE), hypernode))
    assert "is not a regular expression" in said
    pod = {
        "metadata": {"name": "p", "annotations": {"volcano.sh/jdb-min-available": "100%"}},
        "spec": {"schedulerName": "volcano", "containers": [container()]},
    }
    said = denial(lambda: api.post(f"/api/v1/namespaces/{space}/pods", pod))
    assert "it must be a valid percentage which between 1% ~ 99%" in said


WRONG = ("duplicatedPolicyEvent", "duplicatedTaskName", "minAvailable")
"""What the names of Volcano's own examples of refused jobs begin with."""


def of_users() -> Iterator[tuple[str, Raw]]:
    """Yield the reviewed objects in the manifests of users, with their files."""
    reviewed = {service.kind for service in SERVICE_OF.values()} - {kinds.POD}
    for path in found_in_shared("manifests/*/**/*.yaml"):
        text = path.read_text(encoding="utf-8")
        if ".volcano.sh/v1" in text and "integrations/argo" not in str(path):
            for obj in filter(None, yaml.safe_load_all(text)):
                if kinds.find_kind(obj["apiVersion"], obj["kind"]) in reviewed:
                    yield path.stem, obj


def test_manifests_of_users_are_taken_but_for_those_that_are_wrong(
    webhook: Webhook, api: Api, space: str
):
    shared("manifests")
    objects = list(of_users())
    made: list[str] = []
    named = {
        (obj["spec"].get("queue") or "default") for _, obj in objects if obj["kind"] != "Queue"
    }
    defined = {obj["metadata"]["name"] for _, obj in objects if obj["kind"] == "Queue"}
    for _, obj in sorted(objects, key=lambda each: each[1]["kind"] != "Queue"):
        if obj["kind"] == "Queue":
            assert queue_is_made_of(api, obj)
            made.append(obj["metadata"]["name"])
    for name in named - defined - {"default"}:
        assert queue_is_made(api, name)
        made.append(name)
    refused = []
    for number, (stem, obj) in enumerate(objects):
        kind = kinds.find_kind(obj["apiVersion"], obj["kind"])
        if kind is None or kind == kinds.QUEUE:
            continue
        try:
            api.post(collection_path(kind, space), in_space(space, obj, f"u{number}"))
        except Refused as e:
            refused.append(f"{stem}: {e}")
    assert len(objects) - len(made) > 30
    assert len(refused) == len(WRONG), refused
    assert all(any(each.startswith(name) for each in refused) for name in WRONG)
    while made:
        api.delete(f"{QUEUES}/{made.pop()}")


def queue_is_made_of(api: Api, obj: Raw) -> bool:
    """Return whether a queue of a manifest was created, or already exists."""
    try:
        api.post(QUEUES, obj)
    except Refused as e:
        return e.code == HTTPStatus.CONFLICT
    return True


def test_files_of_another_authority_are_read_again(control_plane: ControlPlane, tmp_path: Path):
    def renew(number: int) -> None:
        made, _ = renew_credentials(None, (f"name-{number}", "127.0.0.1"), datetime.now(UTC))
        for name, pem in (("tls.crt", made.certificate), ("tls.key", made.key)):
            (tmp_path / name).write_bytes(pem)

    renew(1)
    port = free_port()
    flags = [
        *("--tls-cert-file", str(tmp_path / "tls.crt")),
        *("--tls-private-key-file", str(tmp_path / "tls.key")),
        *("--webhook-service-name", "another"),
    ]
    running = Webhook(control_plane.kubeconfig, tmp_path / "log", port, *flags).begin()
    try:
        first = ssl.get_server_certificate(("127.0.0.1", port))
        renew(2)
        until(
            lambda: ssl.get_server_certificate(("127.0.0.1", port)) != first,
            "the new certificate is shown",
        )
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}', 400),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', 400),
        (b'{"a":"' + b"x" * MAX_BODY + b'"}', 413),
    ],
)
def test_what_is_no_review_is_never_a_yes(webhook: Webhook, body: bytes, status: int):
    found, text = webhook.post("/jobs/validate", body)
    assert found == status
    assert '"allowed": true' not in text
    assert webhook.post("/jobs/approve", b"{}")[0] == 404


def test_memory_stays_within_the_chart_whatever_comes(webhook: Webhook):
    """60 clients send 8 MiB each at the same time: as many values as allowed, and a long text."""
    values = b"[" + b'{"a":0},' * (MAX_VALUES_OF_REVIEW // 2 - 100) + b"0]"
    text = b"a" * (MAX_BODY - len(values) - 100)
    body = b'{"kind":' + values + b',"text":"' + text + b'"}'

    def post(_: int) -> int:
        try:
            return webhook.post("/jobs/validate", body)[0]
        except OSError:
            # The webhook disconnects clients that wait too long for memory while they still send.
            return HTTPStatus.SERVICE_UNAVAILABLE

    with ThreadPoolExecutor(60) as clients:
        answers = set(clients.map(post, range(60)))
    assert HTTPStatus.BAD_REQUEST in answers
    assert answers <= {HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE}
    limits = re.findall(r"limits: {memory: (\w+)}", COMPONENTS.read_text())
    limit = min(parse_quantity(text).value() for text in limits)
    assert webhook.peak_bytes() < 0.8 * limit


def test_an_unknown_version_is_denied(webhook: Webhook):
    resource = {"group": "batch.volcano.sh", "version": "v9", "resource": "jobs"}
    request = {"uid": "u", "operation": "CREATE", "resource": resource, "object": job()}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    status, text = webhook.post("/jobs/validate", json.dumps(body).encode())
    assert status == 200
    assert json.loads(text)["response"]["allowed"] is False


def test_the_key_of_the_authority_is_in_a_secret_of_its_own(webhook: Webhook, api: Api):
    del webhook  # The webhook created both queues.
    leaf = object_path(kinds.SECRET, SYSTEM, "volcano-admission-secret")
    assert sorted(api.get(leaf)["data"]) == ["ca.crt", "tls.crt", "tls.key"]
    assert sorted(api.get(f"{leaf}-authority")["data"]) == ["ca.crt", "ca.key"]


def test_whom_to_trust_is_put_back_where_somebody_took_it_out(webhook: Webhook, api: Api):
    name = configuration(SERVICE_OF["/queues/validate"])["metadata"]["name"]
    path = object_path(kinds.VALIDATING_WEBHOOK_CONFIGURATION, None, name)
    found = api.get(path)
    (hook,) = found["webhooks"]
    bundle = hook["clientConfig"].pop("caBundle")
    api.patch(path, {"webhooks": [hook]})
    until(
        lambda: api.get(path)["webhooks"][0]["clientConfig"].get("caBundle") == bundle,
        "the bundle is back",
    )


def test_the_largest_jobs_can_be_made_and_changed(webhook: Webhook, api: Api, space: str):
    """etcd accepts objects of 1.5 MiB, and a review of an update contains two of them."""
    large = job(task(template=template(container(args=["x" * 1_450_000]))))
    submit(api, space, large)
    path = object_path(kinds.JOB, space, "j")
    assert api.patch(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"] == {"a": "b"}
    said = denial(lambda: api.patch(path, {"spec": {"queue": "root"}}))
    assert "job updates may not change fields" in said
    # Objects above the API server's size limit never reach the webhook.
    larger = job(task(template=template(container(args=["x" * 3 * 2**20]))))
    with pytest.raises(Refused) as caught:
        submit(api, space, larger, "k")
    assert caught.value.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_resource_groups_follow_their_file(
    control_plane: ControlPlane, tmp_path: Path, space: str
) -> None:
    """No API server is involved: the responses of a separate webhook suffice."""
    conf = tmp_path / "conf"
    conf.write_text("resourceGroups: [{resourceGroup: a, labels: {kind: first}}]")
    log = tmp_path / "log"
    flags = ("--admission-conf", str(conf), "--webhook-namespace", space)
    webhook = Webhook(control_plane.kubeconfig, log, free_port(), *flags).begin()
    marks = {"name": "p", "namespace": space, "annotations": {"volcano.sh/resource-group": "a"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": marks, "spec": {"containers": []}}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {"uid": "u", "operation": "CREATE", "resource": resource, "object": pod}
    kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body = json.dumps({**kind, "request": request | {"namespace": space, "name": "p"}}).encode()

    def gets(value: str) -> bool:
        _, text = webhook.post("/pods/mutate", body)
        patch = json.loads(b64decode(json.loads(text)["response"]["patch"]))
        return {"op": "add", "path": "/spec/nodeSelector", "value": {"kind": value}} in patch

    assert gets("first")
    conf.write_text("resourceGroups: [{object: {key: label}}]")
    webhook.await_metric(1, "optsched_admission_config_rejected")
    assert gets("first")
    conf.write_text("resourceGroups: [{resourceGroup: a, labels: {kind: second}}]")
    webhook.await_metric(0, "optsched_admission_config_rejected")
    assert gets("second")
    webhook.stop()
