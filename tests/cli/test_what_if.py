"""Tests of the inputs, output and codes of `optsched what-if`; tests/e2e uses a real cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import CONFIG_MAP, JOB, POD, POD_GROUP, QUEUE, SCHEDULING_POD_GROUPS, Ref
from optsched.cli.live.what_if_command import MOST_OTHERS
from optsched.kube.client.errors import Forbidden
from tests.cli.clusters import CONTEXT, FakeCluster, cluster, optsched, values
from tests.formats.objects import group, node, pod
from tests.formats.objects import queue as bare_queue

if TYPE_CHECKING:
    from click.testing import Result

__all__ = ["cluster"]

EXAMPLES = Path(__file__).parents[2] / "instances" / "examples" / "what-if"
PICTURE = EXAMPLES / "cluster.yaml"
KEYS = {
    "apiVersion",
    "asked",
    "kind",
    "policy",
    "proved",
    "startsNoMore",
    "startsToo",
    "takenAt",
}
ENTRY = {
    "evictions",
    "expectedStart",
    "isEarliest",
    "laterTasks",
    "name",
    "places",
    "pods",
    "reason",
    "starts",
}


def what_if(*arguments: object, **more: Any) -> Result:
    return optsched("what-if", "--solver", "none", *arguments, **more)


def example(name: str, *arguments: object) -> Result:
    """Run `what-if` with an example file on the snapshot of the examples."""
    path = EXAMPLES / f"{name}.yaml"
    return optsched("what-if", "-f", path, "--snapshot", PICTURE, "--deterministic", *arguments)


def manifest(name: str = "new", cpu: int = 2, replicas: int = 2, **spec: Any) -> str:
    asked = {"resources": {"requests": {"cpu": str(cpu)}}}
    template = {"spec": {"containers": [{"name": "main", "image": "x", **asked}]}}
    body = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": [{"name": "w", "replicas": replicas, "template": template}], **spec},
    }
    return json.dumps(body)


@pytest.fixture
def live(cluster: FakeCluster) -> FakeCluster:
    """Return a cluster with one node of eight CPUs."""
    cluster.put(node("n1"))
    cluster.put(bare_queue("default", weight=1))
    return cluster


def claiming(name: str) -> dict[str, Any]:
    """Return a pod with a GPU annotation that no binder wrote."""
    return pod(name, annotations={"volcano.sh/gpu-index": "0,1"})


def test_problems_of_objects_that_nobody_asks_about_are_few(live: FakeCluster) -> None:
    for number in range(8):
        live.put(claiming(f"other-{number}"))
    result = what_if("-f", "-", input=json.dumps(claiming("mine")))
    told = [line for line in result.stderr.splitlines() if "because no binder wrote it" in line]
    assert told[0].startswith("Pod ns/mine: ")
    assert len(told) == 1 + MOST_OTHERS
    assert "and 3 more problems with other objects of the cluster" in result.stderr


# --- a file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "starts", "code"),
    [("evaluation", "now", 0), ("serving", "soon", 0), ("pretrain", "later", 8)],
)
def test_exit_codes_tell_when_it_starts(name: str, starts: str, code: int) -> None:
    result = example(name, "-o", "json")
    assert result.exit_code == code
    [entry] = json.loads(result.stdout)["asked"]
    assert entry["name"] == f"ml/{name}"
    assert entry["starts"] == starts


def test_programs_find_the_same_keys_always() -> None:
    serving = json.loads(example("serving", "-o", "json").stdout)
    pretrain = json.loads(example("pretrain", "-o", "json").stdout)
    for found in (serving, pretrain):
        assert set(found) == KEYS
        assert [set(entry) for entry in found["asked"]] == [ENTRY]
    assert serving["asked"][0]["places"] == {"ml/serving-worker-0": "gpu-2"}
    victim = {"node": "gpu-2", "of": "ml/sweep", "action": "reclaim"}
    pods = [{"pod": f"ml/sweep-{i}", **victim} for i in range(3)]
    assert sorted(serving["asked"][0]["evictions"], key=lambda v: str(v["pod"])) == pods
    assert pretrain["asked"][0]["expectedStart"] == "2026-11-20T17:00:00Z"
    assert pretrain["asked"][0]["reason"]["code"] == "NotEnoughResources"
    assert pretrain["takenAt"] == "2026-11-20T10:00:00Z"


def test_yaml_says_the_same_as_json() -> None:
    [found] = values(example("serving", "-o", "yaml").stdout)
    assert found == json.loads(example("serving", "-o", "json").stdout)


def test_wide_names_every_pod() -> None:
    assert "ml/sweep ×3" in example("serving").stdout
    text = example("serving", "-o", "wide").stdout
    assert "ml/serving-worker-0=gpu-2" in text
    assert all(f"ml/sweep-{i}" in text for i in range(3))


def test_several_files_are_asked_about_together() -> None:
    result = example("serving", "-f", EXAMPLES / "evaluation.yaml", "-o", "json")
    starts = {e["name"]: e["starts"] for e in json.loads(result.stdout)["asked"]}
    assert starts.keys() == {"ml/serving", "ml/evaluation"}
    assert "later" in starts.values()
    assert result.exit_code == 8


def test_one_that_could_never_start_has_a_code_of_its_own() -> None:
    many = manifest(cpu=64, replicas=3)
    result = what_if("-f", "-", "--snapshot", PICTURE, input=many)
    assert result.exit_code == 9
    assert "default/new   never" in result.stdout


# --- a cluster -----------------------------------------------------------------------------------


def test_a_cluster_is_read_and_nothing_is_made(live: FakeCluster) -> None:
    before = dict(live.objects)
    result = what_if("-f", "-", "-o", "json", input=manifest())
    assert result.exit_code == 0, result.output
    [entry] = json.loads(result.stdout)["asked"]
    assert entry["name"] == f"{CONTEXT}/new"
    assert set(entry["places"].values()) == {"n1"}
    assert live.writes == []
    assert live.objects == before


def test_the_cluster_s_own_policy_counts_unless_another_is_named(live: FakeCluster) -> None:
    text = "actions: allocate\ntiers:\n- plugins:\n  - name: gang\n  - name: predicates\n"
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    where = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    live.put({**head, "metadata": where, "data": {"volcano-scheduler.conf": text}})
    assert live.of(CONFIG_MAP)
    asked = ("-f", "-", "-o", "json")
    own = json.loads(what_if(*asked, input=manifest()).stdout)["policy"]
    named = json.loads(what_if(*asked, "--model", "volcano-default", input=manifest()).stdout)
    assert named["policy"] == "volcano-default"
    assert own != "volcano-default"


@pytest.mark.parametrize(
    ("flags", "shielded"), [((), False), (("--tenant-priority-class", "high"), True)]
)
def test_a_podgroup_of_a_cluster_counts_at_most_as_its_pods(
    live: FakeCluster, flags: tuple[str, ...], shielded: bool
) -> None:
    text = (
        'actions: "enqueue, allocate, preempt"\ntiers:\n- plugins:\n'
        "  - name: priority\n  - name: gang\n  - name: predicates\n"
    )
    where = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    policy = {"volcano-scheduler.conf": text}
    live.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": where, "data": policy})
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    live.put({**head, "metadata": {"name": "high"}, "value": 1000})
    resources = {"requests": {"cpu": "8"}}
    containers = [{"name": "c", "resources": resources}]
    spec = {"schedulerName": "volcano", "nodeName": "n1", "containers": containers}
    member = {"scheduling.k8s.io/group-name": "claims"}
    spec["priority"] = 7
    member["volcano.sh/preemptable"] = "true"
    busy = pod("busy", spec, {"phase": "Running"}, namespace=CONTEXT, annotations=member)
    live.put(busy)
    claiming = {"priorityClassName": "high", "queue": "default"}
    live.put({**group("claims", claiming, namespace=CONTEXT), "status": {"phase": "Running"}})
    mine = {"scheduling.k8s.io/group-name": "new"}
    waiting = {"priority": 500, "containers": containers}
    added = (
        {**head, "metadata": {"name": "middle"}, "value": 500},
        group("new", {"minMember": 1, "priorityClassName": "middle"}, namespace=CONTEXT),
        pod("new-0", waiting, namespace=CONTEXT, annotations=mine),
    )
    asked = "\n---\n".join(map(json.dumps, added))
    result = what_if("-f", "-", "-o", "json", *flags, input=asked)
    [entry] = [e for e in json.loads(result.stdout)["asked"] if e["name"].endswith("/new")]
    assert bool(entry["evictions"]) is not shielded, result.output


def test_the_namespace_is_the_file_s_or_the_option_s(live: FakeCluster) -> None:
    assert live.objects
    result = what_if("-f", "-", "-n", "team-b", "-o", "json", input=manifest())
    assert json.loads(result.stdout)["asked"][0]["name"] == "team-b/new"


def test_a_file_that_names_another_namespace_is_refused(live: FakeCluster) -> None:
    assert live.objects
    elsewhere = manifest().replace('{"name": "new"}', '{"name": "new", "namespace": "team-a"}')
    result = what_if("-f", "-", "-n", "team-b", input=elsewhere)
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told.endswith(": Job new: metadata.namespace: team-a differs from -n team-b")
    assert what_if("-f", "-", "-n", "team-a", input=elsewhere).exit_code != 2


def test_a_misspelt_field_of_a_job_is_a_warning(live: FakeCluster) -> None:
    assert live.objects
    result = what_if("-f", "-", "-o", "json", input=manifest(minAvailabel=1))
    assert json.loads(result.stdout)["asked"][0]["name"].endswith("/new")
    message = "Job new: spec.minAvailabel: 1 is the value of an unknown field; did you mean min"
    assert message in result.stderr
    assert result.stderr.startswith("Warning: standard input:1: ")
    assert "unknown field" not in what_if("-f", "-", input=manifest(minAvailable=1)).stderr


def test_a_model_that_does_not_exist_is_one_sentence(live: FakeCluster) -> None:
    assert live.objects
    result = what_if("-f", "-", "--model", "NOSUCH", input=manifest())
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told.startswith("NOSUCH: there is no such model or file; the shipped models are")


def test_a_job_that_is_there_is_refused(live: FakeCluster) -> None:
    running = {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}}
    where = {"name": "new-w-0", "namespace": CONTEXT}
    spec = {"schedulerName": "volcano", "nodeName": "n1", "containers": [{"name": "c"}]}
    live.put({**running, "metadata": where, "spec": spec})
    result = what_if("-f", "-", input=manifest())
    assert result.exit_code == 4
    assert result.stderr == f"Error: Pod {CONTEXT}/new-w-0 exists already: choose another name\n"
    live.put(json.loads(manifest()) | {"metadata": {"name": "new", "namespace": CONTEXT}})
    result = what_if("-f", "-", input=manifest())
    told = f"Error: job new exists already in namespace {CONTEXT}: choose another name\n"
    assert (result.exit_code, result.stderr) == (4, told)


def test_tasks_that_come_later_are_told(live: FakeCluster) -> None:
    assert live.objects
    body = json.loads(manifest())
    body["spec"]["tasks"].append(
        {**body["spec"]["tasks"][0], "name": "driver", "dependsOn": {"name": ["w"]}}
    )
    result = what_if("-f", "-", input=json.dumps(body))
    assert "team-a/new: pods of driver are created later" in result.stdout


def test_what_no_scheduler_looks_at_is_left_out(live: FakeCluster) -> None:
    assert live.objects
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    result = what_if("-f", "-", input=f"{manifest()}\n---\n{json.dumps(service)}")
    assert result.exit_code == 0
    assert "Service s is ignored: no scheduler reads this kind" in result.stderr


@pytest.mark.parametrize("kind", ["CronJob", "Service"])
def test_files_without_anything_to_schedule_are_a_mistake(live: FakeCluster, kind: str) -> None:
    assert live.objects
    version = "batch.volcano.sh/v1alpha1" if kind == "CronJob" else "v1"
    only = {"apiVersion": version, "kind": kind, "metadata": {"name": "s"}}
    result = what_if("-f", "-", input=json.dumps(only))
    assert (result.exit_code, result.stdout) == (2, "")
    why = "name the Job that it creates instead" if kind == "CronJob" else "no scheduler reads this"
    assert f"standard input:1: {kind} s is ignored: {why}" in result.stderr
    assert "no file contains a Job, PodGroup, pod" in result.stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ({"name": 123}, "metadata.name: 123 is not a string: write it in quotes"),
        ({}, "metadata.name is missing: every object needs a name"),
    ],
)
def test_an_object_without_a_readable_name_is_told(
    live: FakeCluster, name: dict[str, int], why: str
) -> None:
    assert live.objects
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": name}
    result = what_if("-f", "-", input=json.dumps(bad))
    assert (result.exit_code, result.stderr) == (2, f"Error: standard input:1: Pod: {why}\n")


def test_a_queue_alone_changes_nothing(live: FakeCluster) -> None:
    assert live.objects
    result = what_if("-f", "-", input=json.dumps(bare_queue("more", weight=3)))
    assert (result.exit_code, result.stdout) == (0, "nothing would change\n")


# --- admission -----------------------------------------------------------------------------------


def denied(kind: Any, message: str) -> Any:
    """Return an admission function that refuses objects of one kind, as an API server does."""

    def admitted(ref: Ref, body: Any) -> Any:
        if ref.kind == kind:
            raise Forbidden(403, "Forbidden", message)
        return body

    return admitted


WEBHOOK = 'admission webhook "validatejob.volcano.sh" denied the request: unable to find job queue'


@pytest.mark.parametrize(
    ("kind", "about", "message"),
    [(JOB, "Job team-a/new", WEBHOOK), (POD, "Pod team-a/new-w-0", "violates PodSecurity")],
)
def test_what_the_api_server_refuses_never_starts(
    live: FakeCluster, kind: Any, about: str, message: str
) -> None:
    live.admitted = denied(kind, message)
    other = "\n---\n" + json.dumps(bare_queue("more", weight=3))
    result = what_if("-f", "-", "-o", "json", input=manifest() + other)
    assert result.exit_code == 9
    [entry] = json.loads(result.stdout)["asked"]
    assert entry["starts"] == "never"
    assert entry["reason"] == {"code": "RefusedByAPIServer", "message": f"{about}: {message}"}
    assert live.writes == []


def test_what_admission_adds_to_pods_counts(live: FakeCluster) -> None:
    """A LimitRange gives every container 5 CPUs, and the node has 8."""

    def admitted(ref: Ref, body: Any) -> Any:
        if ref.kind == POD:
            body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5"}}
        return body

    live.admitted = admitted
    result = what_if("-f", "-", "-o", "json", input=manifest(replicas=2))
    assert result.exit_code == 9
    [entry] = json.loads(result.stdout)["asked"]
    assert "5 cpu" in entry["reason"]["message"]


def test_the_defaults_of_a_job_and_the_queue_of_its_podgroup_count(live: FakeCluster) -> None:
    """A webhook adds a task to the job; another one moves its PodGroup to the namespace's queue."""
    live.put(bare_queue("small", capability={"cpu": "1"}))
    asked: list[tuple[str, str]] = []

    def admitted(ref: Ref, body: Any) -> Any:
        asked.append((ref.kind.kind, ref.name))
        if ref.kind == JOB:
            body["spec"]["tasks"].append({**body["spec"]["tasks"][0], "name": "v", "replicas": 3})
        if ref.kind == POD_GROUP:
            body["spec"]["queue"] = "small"
        return body

    live.admitted = admitted
    result = what_if("-f", "-", "-o", "json", input=manifest(cpu=1, replicas=2))
    assert result.exit_code == 9
    [entry] = json.loads(result.stdout)["asked"]
    assert (entry["pods"], entry["reason"]["code"]) == (5, "QueueCapabilityExceeded")
    assert asked == [
        ("Job", "new"),
        ("PodGroup", "new-what-if"),
        ("Pod", "new-w-0"),
        ("Pod", "new-v-0"),
    ]


def loose(name: str, **group: Any) -> list[dict[str, Any]]:
    """Return a PodGroup of two pods as an operator creates them, without a job."""
    marks = {"scheduling.k8s.io/group-name": name}
    pods = [pod(f"{name}-{i}", namespace=CONTEXT, annotations=marks) for i in range(2)]
    where = {"name": name, "namespace": CONTEXT}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": where}
    return [{**head, "spec": {"minMember": 2, **group}}, *pods]


def documents(*objects: Any) -> str:
    return "\n---\n".join(json.dumps(obj) for obj in objects)


@pytest.mark.parametrize(
    ("kind", "message", "starts", "code"),
    [
        (POD_GROUP, 'namespaces "team-a" not found', "never", "RefusedByAPIServer"),
        (POD, "violates PodSecurity", "never", "RefusedByAPIServer"),
        (POD, "exceeded quota: scoped, requested: pods=1", "later", "ResourceQuotaExceeded"),
        (POD_GROUP, "exceeded quota: few, requested: x=1", "later", "ResourceQuotaExceeded"),
    ],
)
def test_podgroups_and_pods_are_admitted_as_jobs_are(
    live: FakeCluster, kind: Any, message: str, starts: str, code: str
) -> None:
    live.admitted = denied(kind, message)
    text = documents(*loose("g"), pod("alone", namespace=CONTEXT))
    result = what_if("-f", "-", "-o", "json", input=text)
    assert result.exit_code == (9 if starts == "never" else 8)
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)["asked"]}
    assert entries.keys() == {f"{CONTEXT}/g", f"{CONTEXT}/pod:alone"}
    for name, entry in entries.items():
        is_refused = kind == POD or name.endswith("/g")
        assert entry["starts"] == (starts if is_refused else "now")
        if is_refused:
            assert entry["reason"]["code"] == code
            assert message in entry["reason"]["message"]


def test_pods_of_an_upstream_podgroup_are_answered_as_its_gang(live: FakeCluster) -> None:
    message = "exceeded quota: scoped, requested: pods=1"
    live.admitted = denied(POD, message)
    kind = SCHEDULING_POD_GROUPS[0]
    where = {"name": "g", "namespace": CONTEXT}
    policy = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    group = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": where, "spec": policy}
    member = pod("g-0", {"schedulingGroup": {"podGroupName": "g"}}, namespace=CONTEXT)
    result = what_if("-f", "-", "-o", "json", input=documents(group, member))
    [entry] = json.loads(result.stdout)["asked"]
    assert (result.exit_code, entry["starts"]) == (8, "later"), entry
    assert message in entry["reason"]["message"]


def test_equal_pods_are_admitted_once_and_others_are_no_question(live: FakeCluster) -> None:
    asked: list[str] = []

    def admitted(ref: Ref, body: Any) -> Any:
        asked.append(ref.name)
        return body

    live.admitted = admitted
    foreign = pod("foreign", {"schedulerName": "default-scheduler"}, namespace=CONTEXT)
    result = what_if("-f", "-", input=documents(*loose("g"), foreign))
    assert result.exit_code == 0
    assert asked == ["g", "g-0"]


@pytest.mark.parametrize(("used", "code"), [("0", 0), ("1", 8)])
def test_quotas_count_the_minimum_of_a_podgroup(live: FakeCluster, used: str, code: int) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "2"}}}
    status = {"hard": {"pods": "2"}, "used": {"pods": used}}
    live.put({**quota, "metadata": {"name": "q", "namespace": CONTEXT}, "status": status})
    assert what_if("-f", "-", input=documents(*loose("g"))).exit_code == code


def test_what_the_files_add_is_not_known_to_the_api_server(live: FakeCluster) -> None:
    """The API server would refuse the job, because its queue does not exist yet."""
    live.admitted = denied(JOB, 'queue "more" not found')
    job = json.loads(manifest())
    job["spec"]["queue"] = "more"
    result = what_if("-f", "-", input=documents(bare_queue("more", weight=3), job))
    assert result.exit_code == 0, result.output
    told = f"admission did not check {CONTEXT}/new: the cluster has no Queue more yet"
    assert told in " ".join(result.stderr.split())
    live.put(bare_queue("more", weight=1))
    result = what_if("-f", "-", input=documents(bare_queue("more", weight=3), job))
    assert result.exit_code == 9


@pytest.mark.parametrize("is_there", [False, True])
def test_a_queue_that_the_api_server_would_reject_is_not_added(
    live: FakeCluster, *, is_there: bool
) -> None:
    live.admitted = denied(QUEUE, "deserved[cpu] must be at least guarantee[cpu]")
    if is_there:
        live.put(bare_queue("more", weight=1))
    job = json.loads(manifest())
    job["spec"]["queue"] = "more"
    queue = bare_queue("more", weight=3)
    result = what_if("-f", "-", "-o", "json", input=documents(queue, job))
    assert result.exit_code == 9, result.output
    [entry] = json.loads(result.stdout)["asked"]
    refusal = "Queue more: deserved[cpu] must be at least guarantee[cpu]"
    assert entry["reason"] == {"code": "RefusedByAPIServer", "message": refusal}
    result = what_if("-f", "-", input=documents(queue))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {refusal}\n"


def test_what_admission_adds_to_queues_counts(live: FakeCluster) -> None:
    def limited(ref: Ref, body: Any) -> Any:
        if ref.kind != QUEUE:
            return body
        return {**body, "spec": {**body["spec"], "capability": {"cpu": "1"}}}

    live.admitted = limited
    job = json.loads(manifest())
    job["spec"]["queue"] = "more"
    result = what_if("-f", "-", input=documents(bare_queue("more", weight=3), job))
    assert result.exit_code == 9, result.output


def test_who_may_make_no_queues_is_answered_without_their_admission(live: FakeCluster) -> None:
    no_right = 'queues is forbidden: User "bob" cannot create resource "queues"'
    live.admitted = denied(QUEUE, no_right)
    job = json.loads(manifest())
    job["spec"]["queue"] = "more"
    result = what_if("-f", "-", input=documents(bare_queue("more", weight=3), job))
    assert result.exit_code == 0, result.output
    told = f"admission did not check the Queue: Queue more: {no_right}"
    assert told in " ".join(result.stderr.split())


def test_a_job_of_another_scheduler_is_no_answer(live: FakeCluster) -> None:
    assert live.objects
    job = json.loads(manifest())
    job["spec"]["schedulerName"] = "other"
    result = what_if("-f", "-", input=json.dumps(job))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "spec.schedulerName: other is none of volcano, optsched" in result.stderr
    assert what_if("-f", "-", "--scheduler-name", "other", input=json.dumps(job)).exit_code == 0


def test_who_may_make_no_pods_is_answered_without_their_admission(live: FakeCluster) -> None:
    no_right = 'pods is forbidden: User "bob" cannot create resource "pods"'
    live.admitted = denied(POD, no_right)
    result = what_if("-f", "-", input=manifest())
    assert result.exit_code == 0
    assert "admission did not check the pods: Pod team-a/new-w-0: " + no_right in " ".join(
        result.stderr.split()
    )


def test_a_quota_that_is_used_up_makes_it_wait(live: FakeCluster) -> None:
    live.admitted = denied(POD, "exceeded quota: scoped, requested: pods=1")
    result = what_if("-f", "-", "-o", "json", input=manifest())
    assert result.exit_code == 8
    [entry] = json.loads(result.stdout)["asked"]
    assert (entry["starts"], entry["reason"]["code"]) == ("later", "ResourceQuotaExceeded")


@pytest.mark.parametrize(
    ("hard", "used", "starts", "code"),
    [("2", "0", "now", 0), ("2", "1", "later", 8), ("1", "0", "never", 9)],
)
def test_quotas_count_the_minimum_of_a_job(
    live: FakeCluster, hard: str, used: str, starts: str, code: int
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": hard}}}
    status = {"hard": {"pods": hard}, "used": {"pods": used}}
    live.put({**quota, "metadata": {"name": "q", "namespace": CONTEXT}, "status": status})
    result = what_if("-f", "-", "-o", "json", input=manifest(replicas=2))
    assert result.exit_code == code
    [entry] = json.loads(result.stdout)["asked"]
    assert entry["starts"] == starts
    if code:
        assert entry["reason"]["code"] == "ResourceQuotaExceeded"
        assert f"ResourceQuota {CONTEXT}/q allows {hard} pods" in entry["reason"]["message"]


@pytest.mark.parametrize(
    ("used", "num_placed", "left_out"), [("0", 3, ""), ("1", 2, "1 pod is"), ("2", 1, "2 pods are")]
)
def test_quotas_leave_out_pods_beyond_the_minimum(
    live: FakeCluster, used: str, num_placed: int, left_out: str
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "3"}}}
    status = {"hard": {"pods": "3"}, "used": {"pods": used}}
    live.put({**quota, "metadata": {"name": "q", "namespace": CONTEXT}, "status": status})
    result = what_if("-f", "-", "-o", "json", input=manifest(replicas=3, minAvailable=1))
    assert result.exit_code == 0, result.output
    [entry] = json.loads(result.stdout)["asked"]
    assert (entry["starts"], entry["pods"], len(entry["places"])) == ("now", 3, num_placed)
    if left_out:
        message = entry["reason"]["message"]
        assert entry["reason"]["code"] == "ResourceQuotaExceeded"
        assert message.startswith(f"{left_out} not created: the ResourceQuota {CONTEXT}/q allows")
        assert message.endswith(
            "3 pods are in use, including other new pods, and one more pod requests 1 pods"
        )
    else:
        assert entry["reason"] is None


def test_a_quota_leaves_out_pods_of_a_podgroup_that_is_there(live: FakeCluster) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "3"}}}
    status = {"hard": {"pods": "3"}, "used": {"pods": "3"}}
    live.put({**quota, "metadata": {"name": "q", "namespace": CONTEXT}, "status": status})
    live.put(group("g", {"minMember": 1}, namespace=CONTEXT))
    named = {"scheduling.k8s.io/group-name": "g"}
    added = json.dumps(pod("p", namespace=CONTEXT, annotations=named))
    result = what_if("-f", "-", "-o", "json", input=added)
    assert result.exit_code == 8, result.output
    [entry] = json.loads(result.stdout)["asked"]
    assert (entry["starts"], entry["reason"]["code"]) == ("later", "ResourceQuotaExceeded")


def test_a_job_that_is_there_is_named_before_a_quota_that_refuses_it(live: FakeCluster) -> None:
    live.put(json.loads(manifest()) | {"metadata": {"name": "new", "namespace": CONTEXT}})
    full = Forbidden(403, "Forbidden", "exceeded quota: q, requested: count/jobs=1")
    live.refuse("create_dry_run", full)
    result = what_if("-f", "-", input=manifest())
    told = f"Error: job new exists already in namespace {CONTEXT}: choose another name\n"
    assert (result.exit_code, result.stderr) == (4, told)


NEAR = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": ["b"]}}
    ]
}
PRIORITY = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}


@pytest.mark.parametrize(
    ("scopes", "spec", "code"),
    [
        ({"scopes": ["BestEffort"]}, {}, 0),
        ({"scopes": ["NotBestEffort"]}, {}, 8),
        ({"scopes": ["Terminating"]}, {}, 0),
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 60}, 8),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, {}, 8),
        ({"scopes": ["NotTerminating", "BestEffort"]}, {}, 0),
        ({"scopeSelector": {"matchExpressions": [PRIORITY]}}, {}, 0),
        ({"scopeSelector": {"matchExpressions": [PRIORITY]}}, {"priorityClassName": "high"}, 8),
        (
            {"scopeSelector": {"matchExpressions": [{**PRIORITY, "operator": "NotIn"}]}},
            {"priorityClassName": "high"},
            0,
        ),
        ({"scopes": ["CrossNamespacePodAffinity"]}, {}, 0),
        ({"scopes": ["CrossNamespacePodAffinity"]}, {"affinity": {"podAffinity": NEAR}}, 8),
        ({"scopes": "BestEffort", "scopeSelector": {"matchExpressions": 3}}, {}, 8),
    ],
)
def test_a_quota_with_scopes_counts_the_pods_in_them(
    live: FakeCluster, scopes: dict[str, Any], spec: dict[str, Any], code: int
) -> None:
    """Each pod fits the quota, so that a dry run of one pod would not find the excess."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    live.put({**head, "metadata": {"name": "high"}, "value": 1000})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota"}
    where = {"name": "q", "namespace": CONTEXT}
    status = {"hard": {"pods": "2"}, "used": {"pods": "1"}}
    live.put(
        {**quota, "metadata": where, "spec": {"hard": {"pods": "2"}, **scopes}, "status": status}
    )
    job = json.loads(manifest(replicas=2))
    job["spec"]["tasks"][0]["template"]["spec"].update(spec)
    result = what_if("-f", "-", "-o", "json", input=json.dumps(job))
    assert result.exit_code == code, result.output
    if code:
        [entry] = json.loads(result.stdout)["asked"]
        assert f"ResourceQuota {CONTEXT}/q allows 2 pods" in entry["reason"]["message"]


# --- what is wrong -------------------------------------------------------------------------------


def test_mistakes_are_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: a}\n"
        "spec:\n  minAvailable: many\n  tasks:\n  - {name: w, replicas: -1}\n"
    )
    result = what_if("-f", path, "--snapshot", PICTURE)
    assert result.exit_code == 2
    assert f'{path}:5: Job a: spec.minAvailable: "many"' in result.stderr
    assert f"{path}:7: Job a: spec.tasks[0].replicas: -1" in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2]", "is not a Kubernetes object: write apiVersion, kind and metadata.name"),
        ("{kind: Job, apiVersion: batch.volcano.sh/v1alpha1}", "is not a Kubernetes object"),
        ("", "contains no object"),
        ("a: [", "standard input:2:1: is not YAML"),
    ],
)
def test_what_is_no_object_is_told(text: str, sentence: str) -> None:
    result = what_if("-f", "-", "--snapshot", PICTURE, input=text)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert what_if("-f", tmp_path / "no.yaml", "--snapshot", PICTURE).exit_code == 2
    assert what_if("-f", PICTURE, "--snapshot", tmp_path / "no.yaml").exit_code == 2
    assert what_if("--snapshot", PICTURE).exit_code == 2


def test_a_policy_with_mistakes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.conf"
    path.write_text("actions: fly\n")
    result = example("serving", "--model", path)
    assert result.exit_code == 2
    assert "fly" in result.stderr
