"""Manifests of users run unmodified with scheduler, controllers and webhook.

The expected result of each manifest is the observed behaviour of Volcano's components. If its guide
differs, the guide counts.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.local.kubectl import node_manifest
from tests.support.jobs import documents
from tests.support.live import FAIL, GPU
from tests.support.shared import shared
from tests.support.together import Together, environment, jobs_of
from tests.support.users import seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Raw

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("manifests")]

EPHEMERAL = "ephemeral-storage"


def example(name: str) -> Path:
    """Return a sample of Volcano by its path below `example`."""
    return shared("manifests", "volcano", "example", *f"{name}.yaml".split("/"))


@pytest.fixture(scope="module")
def cluster(
    own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together]:
    with Together(own_plane, tmp_path_factory.mktemp("together")) as running:
        yield running


@pytest.fixture
def together(cluster: Together) -> Iterator[Together]:
    """Yield a cluster with all components and without other objects."""
    yield cluster
    cluster.clear()


# --- the guides ----------------------------------------------------------------------------------


def test_queues_of_the_guides_are_open(together: Together) -> None:
    names = ("s001-L050", "s001-L442", "s001-L486", "s002-L046")
    said = together.apply(*(seed(name) for name in names))
    # The webhook accepts a guarantee without `deserved` and gives a warning.
    assert "Warning" in said
    assert "deserved" in said
    made = [body["metadata"]["name"] for name in names for body in documents(seed(name))]
    for name in made:
        together.await_(
            lambda name=name: together.queue(name).get("status", {}).get("state") == "Open",
            f"{name} is open",
        )
    assert together.queue("team-a1")["spec"]["parent"] == "dept-a"


def test_jobs_of_the_overview_run(together: Together) -> None:
    together.apply(seed("prereqs"), seed("s001-L050"))
    names = ("s001-L152", "s001-L300", "s001-L381", "s001-L410")
    jobs = together.run_all(*(seed(name) for name in names))
    assert set(jobs) == {"tf-training", "mpi-job", "pytorch-ddp", "spark-job"}
    # The webhook sets the limit of a device to its request.
    worker = together.pods("mpi-job")["mpi-job-worker-7"]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {GPU: "1"}
    variables = environment(together.pods("tf-training")["tf-training-worker-3"])
    assert (variables["VK_TASK_INDEX"], variables["VK_TASK_NUM"]) == ("3", "4")
    queue = together.await_(lambda: running_of(together, "ml-training", 2), "the queue counts")
    assert queue["allocated"][GPU] == "8"


def running_of(together: Together, queue: str, number: int) -> Raw:
    """Return the status of a queue if it counts the given number of running jobs, else `{}`."""
    status: Raw = together.queue(queue).get("status", {})
    return status if status.get("running") == number else {}


def test_the_recipe_for_distributed_training_runs(together: Together) -> None:
    together.apply(seed("prereqs"), seed("s002-L046"))
    path = seed("s002-L082")
    together.run_all(path)
    pods = together.pods("distributed-training", "ml-training")
    first = environment(pods["distributed-training-master-0"])
    assert first["VC_MASTER_HOST"] == "distributed-training-master-0.distributed-training"
    held = together.await_(lambda: running_of(together, "training-queue", 1), "it is counted")
    amounts = {name: held["allocated"][name] for name in ("cpu", "memory", GPU)}
    assert amounts == {"cpu": "64", "memory": "512Gi", GPU: "16"}
    together.end("distributed-training-master-0", namespace="ml-training")
    job = together.await_phase("Completed", "distributed-training", "ml-training")
    assert job["status"]["runningDuration"]


def test_a_gang_of_eight_starts_with_eight_gpus_and_not_with_seven(together: Together) -> None:
    together.apply(seed("prereqs"), seed("s001-L050"))
    for node, gpus in (("gpu1", 8), ("gpu2", 8), ("gpu3", 4), ("gpu4", 4), ("gpu4", 1)):
        together.api.post(collection_path(kinds.POD, "default"), holder(node, gpus))
    pods = collection_path(kinds.POD, "default")
    together.await_(
        lambda: (
            len([p for p in together.api.items(pods) if p["status"]["phase"] == "Running"]) == 5
        ),
        "what is in the way runs",
    )
    together.apply(seed("s001-L300"))
    said = together.await_(
        lambda: together.job("mpi-job").get("status", {}).get("state", {}).get("message"),
        "it is told what is missing",
    )
    assert GPU in said
    assert together.running("mpi-job") == set()
    together.api.delete(object_path(kinds.POD, "default", "holder-gpu4-1"))
    [body] = jobs_of(seed("s001-L300"))
    together.await_whole(body)
    assert len(together.running("mpi-job")) == 8


def holder(node: str, gpus: int) -> Raw:
    """Return a pod that occupies GPUs of a node."""
    amounts = {GPU: str(gpus)}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"holder-{node}-{gpus}"},
        "spec": {"nodeName": node, "containers": [container]},
    }


def test_urgent_training_runs(together: Together) -> None:
    together.apply(seed("s002-L046"))
    jobs = together.run_all(seed("s002-L162"))
    assert jobs["urgent-training"]["spec"]["priorityClassName"] == "production-training"


def test_a_job_without_its_queue_is_denied_with_what_to_do(together: Together) -> None:
    said = together.denied(seed("s001-L300"))
    assert 'unable to find job queue: queue.scheduling.volcano.sh "compute" not found' in said
    assert "open queues are default" in said
    said = together.denied(seed("s001-L106"))
    assert "unable to find queue" in said
    together.apply(seed("prereqs"))
    together.run_all(seed("s001-L300"))


def test_the_podgroup_of_the_overview_is_let_in(together: Together) -> None:
    together.apply(seed("prereqs"), seed("s001-L050"), seed("s001-L106"))
    [group] = together.groups()
    assert group["spec"]["priorityClassName"] == "high-priority"
    together.await_(
        lambda: together.groups()[0].get("status", {}).get("phase") == "Inqueue", "it is let in"
    )


def test_the_configuration_of_the_overview_is_taken(together: Together) -> None:
    together.apply(seed("s001-L274"))
    path = "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap"
    assert "binpack" in together.api.get(path)["data"]["volcano-scheduler.conf"]
    together.api.delete(path)


# --- Volcano's samples ---------------------------------------------------------------------------

RUNNING = (
    "job",
    "job-plugin",
    "integrations/tensorflow/dist-mnist/tf-dist-mnist-example",
    "integrations/tensorflow/benchmark/tf-example",
    "integrations/mpi/mpi-example",
    "integrations/mxnet/train/train-mnist-cpu",
    "integrations/ray/ray-example",
    "MindSpore-example/mindspore_cpu/mindspore-cpu",
    "MindSpore-example/mindspore_gpu/mindspore-gpu",
    "kubecon-2019-china/gang/mpi-example",
    "kubecon-2019-china/horovod-sample/lm-horovod-tf-mnist-v0.5",
    "kubecon-2019-china/tf-sample/tf-example",
)


@pytest.mark.parametrize("name", RUNNING)
def test_a_sample_runs_with_all_its_pods(together: Together, name: str) -> None:
    path = example(name)
    [(job, body)] = together.run_all(path).items()
    plugins = body["spec"].get("plugins", {})
    core = "/api/v1/namespaces/default"
    if "svc" in plugins:
        assert together.api.get(f"{core}/services/{job}")["spec"]["clusterIP"] == "None"
        assert together.api.get(f"{core}/configmaps/{job}-svc")["data"]
    if "ssh" in plugins:
        assert {"id_rsa", "id_rsa.pub"} <= together.api.get(f"{core}/secrets/{job}-ssh")[
            "data"
        ].keys()


def test_workers_with_gpus_are_where_gpus_are(together: Together) -> None:
    together.run_all(example("MindSpore-example/mindspore_gpu/mindspore-gpu"))
    pods = together.pods("mindspore-gpu")
    workers = [pod["spec"]["nodeName"] for name, pod in pods.items() if "worker" in name]
    assert len(workers) == 2
    assert all(node.startswith("gpu") for node in workers)


def test_hosts_of_tensorflow_make_its_cluster(together: Together) -> None:
    together.run_all(example("integrations/tensorflow/dist-mnist/tf-dist-mnist-example"))
    path = "/api/v1/namespaces/default/configmaps/tensorflow-dist-mnist-svc"
    hosts = together.api.get(path)["data"]
    name = "tensorflow-dist-mnist"
    # The container's shell script writes one host with a port per line.
    cluster = {
        task: [f"{host}:2222" for host in hosts[f"{task}.host"].split()]
        for task in ("ps", "worker")
    }
    assert cluster == {
        "ps": [f"{name}-ps-0.{name}:2222"],
        "worker": [f"{name}-worker-{i}.{name}:2222" for i in range(2)],
    }
    pod = together.pods(name)[f"{name}-worker-1"]
    assert environment(pod)["VK_TASK_INDEX"] == "1"
    mounted = {m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert "/etc/volcano" in mounted


def test_the_end_of_mpirun_is_the_end_of_the_job(together: Together) -> None:
    together.run_all(example("integrations/mpi/mpi-example"))
    together.end("lm-mpi-job-mpimaster-0")
    together.await_phase("Completed", "lm-mpi-job")
    together.await_(
        lambda: set(together.pods("lm-mpi-job")) == {"lm-mpi-job-mpimaster-0"}, "workers are gone"
    )


def test_paddle_waits_for_storage_on_nodes_and_says_so(together: Together) -> None:
    path = example("integrations/paddlepaddle/ctr-paddlepaddle-on-volcano")
    together.apply(path)

    def said() -> str:
        messages = chain.from_iterable(
            together.events(name) for name in ("ctr-volcano", *together.pods("ctr-volcano"))
        )
        return next((e["message"] for e in messages if EPHEMERAL in e["message"]), "")

    together.await_(said, "it is told what is missing")
    assert together.phase("ctr-volcano") == "Pending"
    together.nodes(with_resources(node_manifest("disk-1", cpu="32"), {EPHEMERAL: "100Gi"}))
    [body] = jobs_of(path)
    together.await_whole(body)


def with_resources(node: Raw, more: dict[str, str]) -> Raw:
    """Return a node with additional resources."""
    for field in ("capacity", "allocatable"):
        node["status"][field] |= more
    return node


def test_tasks_of_samples_follow_each_other(together: Together) -> None:
    paths = [example(f"task-start-dependency/{name}") for name in ("job", "mpi")]
    together.run_all(*paths)

    def span(job: str, part: str) -> tuple[str, str]:
        made = [
            pod["metadata"]["creationTimestamp"]
            for name, pod in together.pods(job).items()
            if part in name
        ]
        return min(made), max(made)

    for number in (1, 2):
        assert span("job", f"nginx{number}-")[1] <= span("job", f"nginx{number + 1}-")[0]
    assert span("lm-mpi-job", "mpiworker")[1] <= span("lm-mpi-job", "mpimaster")[0]


def test_a_replica_set_gets_a_podgroup(together: Together) -> None:
    together.apply(example("kubecon-2019-china/drf/nginx-1"))
    [found] = together.api.items("/apis/apps/v1/namespaces/default/replicasets")
    path = object_path(kinds.POD_GROUP, "default", f"podgroup-{found['metadata']['uid']}")
    together.await_(lambda: running_pods(together, "nginx-1") == 8, "all run")
    assert together.api.get(path)["spec"]["minMember"] == 1


def running_pods(together: Together, app: str) -> int:
    found = together.api.items(collection_path(kinds.POD, "default"), labelSelector=f"app={app}")
    return sum(pod["status"].get("phase") == "Running" for pod in found)


def test_a_node_that_is_not_there_is_waited_for_and_named(together: Together) -> None:
    together.apply(example("kubecon-2019-china/node-selector/nginx"))
    pods = collection_path(kinds.POD, "default")

    def said() -> str:
        names = [pod["metadata"]["name"] for pod in together.api.items(pods)]
        messages = [e["message"] for name in names for e in together.events(name)]
        return next((m for m in messages if "192.168.23.24" in m), "")

    together.await_(said, "the selector is named")
    assert all("nodeName" not in pod["spec"] for pod in together.api.items(pods))
    phases = lambda: [group["status"]["phase"] for group in together.groups()]  # noqa: E731
    together.await_(lambda: phases() == ["Inqueue"], "its PodGroup is let in")


def test_a_deployment_waits_for_its_queue(together: Together) -> None:
    together.apply(example("deployment/deployment"))
    pods = collection_path(kinds.POD, "default")
    [pod] = together.await_(lambda: together.api.items(pods), "its pod is there")
    name = pod["metadata"]["name"]
    together.await_(
        lambda: [e for e in together.events(name) if "queue test" in e["message"]],
        "the pod is told which queue is missing",
    )
    together.apply(example("deployment/queue"))
    together.await_(lambda: running_pods(together, "nginx") == 1, "it runs")


def test_queues_by_annotations_run_their_jobs(together: Together) -> None:
    together.apply(example("hierarchical-jobs/queues"))
    jobs = together.run_all(example("hierarchical-jobs/jobs"))
    assert len(jobs) == 4
    for queue in ("root-eng-prod", "root-eng-dev", "root-sci-prod", "root-sci-dev"):
        together.await_(lambda q=queue: running_of(together, q, 1), f"{queue} counts its job")
        assert together.queue(queue)["spec"]["parent"] == "root"


def test_a_flow_runs_in_its_order_and_takes_its_jobs_along(together: Together) -> None:
    together.apply(example("jobflow/JobTemplate"), example("jobflow/JobFlow"))
    path = object_path(kinds.JOB_FLOW, "default", "test")
    order: list[str] = []

    def phase() -> bool:
        for job in together.api.items(collection_path(kinds.JOB, "default")):
            name = job["metadata"]["name"]
            if name not in order and together.running(name):
                order.append(name)
                together.end(*together.running(name))
        state = together.api.get(path).get("status", {}).get("state", {})
        return bool(state.get("phase") == "Succeed")

    together.await_(phase, "the flow has succeeded")
    assert order[:2] == ["test-a", "test-b"]
    assert sorted(order[2:4]) == ["test-c", "test-d"]
    assert order[4] == "test-e"
    together.await_(
        lambda: not together.api.items(collection_path(kinds.JOB, "default")), "its jobs are gone"
    )


def test_a_timetable_is_taken_and_makes_nothing_before_its_time(together: Together) -> None:
    together.apply(example("cronjob/cronjob"))
    cron = together.api.get(object_path(kinds.CRON_JOB, "default", "volcano-cronjob-example"))
    assert cron["spec"]["schedule"] == "*/5 * * * *"
    for job in together.api.items(collection_path(kinds.JOB, "default")):
        name, minutes = job["metadata"]["name"].rsplit("-", 1)
        assert name == "volcano-cronjob-example"
        assert int(minutes) % 5 == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("duplicatedPolicyEvent", "duplicate event PodFailed  across different policy"),
        ("duplicatedTaskName", "duplicated task name task-1"),
        (
            "minAvailable",
            "job 'minAvailable' should not be greater than total replicas in tasks",
        ),
    ],
)
def test_wrong_samples_are_denied(together: Together, name: str, sentence: str) -> None:
    assert sentence in together.denied(example(f"invalid_jobs/{name}-webhook-deny"))


# --- frameworks without a sample -----------------------------------------------------------------

FLINK = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: flink}
spec:
  minAvailable: 3
  schedulerName: volcano
  plugins: {svc: []}
  tasks:
  - name: jobmanager
    replicas: 1
    template:
      spec:
        restartPolicy: OnFailure
        containers:
        - {name: main, image: "flink:1.19", args: [jobmanager], resources: {requests: {cpu: "1"}}}
  - name: taskmanager
    replicas: 2
    template:
      spec:
        restartPolicy: OnFailure
        containers:
        - name: main
          image: flink:1.19
          args: [taskmanager, "-Djobmanager.rpc.address=$(VC_JOBMANAGER_HOST)"]
          resources: {requests: {cpu: "2"}}
"""

LLAMA_FACTORY = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: sft}
spec:
  minAvailable: 2
  schedulerName: volcano
  plugins: {pytorch: ["--master=master", "--worker=worker", "--port=23456"]}
  tasks:
  - name: master
    replicas: 1
    policies: [{event: TaskCompleted, action: CompleteJob}]
    template: &pod
      spec:
        restartPolicy: Never
        containers:
        - name: main
          image: llamafactory
          command: [sh, -c, "FORCE_TORCHRUN=1 NNODES=$WORLD_SIZE llamafactory-cli train x.yaml"]
          resources: {limits: {nvidia.com/gpu: "4"}}
  - name: worker
    replicas: 1
    template: *pod
"""


def run_text(together: Together, text: str) -> str:
    """Create a job, wait until all its pods run, and return its name."""
    made = together.kubectl("create", "-f", "-", "-o", "json", text=text)
    assert made.returncode == 0, made.stderr
    body = json.loads(made.stdout)
    together.await_whole(body)
    return str(body["metadata"]["name"])


def test_managers_of_flink_find_each_other(together: Together) -> None:
    name = run_text(together, FLINK)
    for index in range(2):
        pod = together.pods(name)[f"{name}-taskmanager-{index}"]
        assert environment(pod)["VC_JOBMANAGER_HOST"] == f"{name}-jobmanager-0.{name}"
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (
            f"{name}-taskmanager-{index}",
            name,
        )


def test_fine_tuning_has_the_variables_of_torchrun(together: Together) -> None:
    name = run_text(together, LLAMA_FACTORY)
    for rank, part in enumerate(("master-0", "worker-0")):
        found = environment(together.pods(name)[f"{name}-{part}"])
        wanted = {
            "MASTER_ADDR": f"{name}-master-0.{name}",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": "2",
            "RANK": str(rank),
        }
        assert wanted.items() <= found.items()


# --- Argo ----------------------------------------------------------------------------------------


def holds(condition: str, obj: Raw) -> bool:
    """Return whether a condition of Argo, `path.of.a.field = value`, is true of an object."""
    path, value = (part.strip() for part in condition.split("="))
    found: Any = obj
    for field in path.split("."):
        found = found.get(field, {})
    return bool(found == value)


def argo_steps() -> list[Raw]:
    """Return the resources that the workflow samples create, as Argo fills them in."""
    names = ("10-job-step", "20-job-DAG")
    bodies = [b for name in names for b in documents(example(f"integrations/argo/{name}"))]
    return [t["resource"] for b in bodies for t in b["spec"]["templates"] if "resource" in t]


def argo_job(step: Raw) -> str:
    """Return the manifest of a step without its owner, because workflows are not installed."""
    text = re.sub(r"{{inputs\.parameters\.\w+}}", "hello", step["manifest"])
    return re.sub(r"  ownerReferences:\n(  - .*\n(    .*\n)*)", "", text)


def test_conditions_of_argo_hold_on_jobs(together: Together) -> None:
    steps = argo_steps()
    assert len(steps) == 2
    for step, how in zip(steps, ("optsched.io/complete", FAIL), strict=True):
        made = together.kubectl("create", "-f", "-", "-o", "json", text=argo_job(step))
        assert made.returncode == 0, made.stderr
        name = json.loads(made.stdout)["metadata"]["name"]
        together.await_phase("Running", name)
        success, failure = step["successCondition"], step["failureCondition"]
        assert not holds(success, together.job(name))
        assert not holds(failure, together.job(name))
        together.await_(lambda name=name: len(together.running(name)) == 2, "both pods run")
        together.end(*together.running(name), how=how)
        wanted, other = (success, failure) if how != FAIL else (failure, success)
        together.await_(lambda name=name, wanted=wanted: holds(wanted, together.job(name)), wanted)
        assert not holds(other, together.job(name))


# --- manifests as GitOps keeps them --------------------------------------------------------------


@pytest.mark.parametrize("way", ["--server-side=false", "--server-side=true"])
def test_what_admission_has_filled_in_stays_when_it_is_applied_again(
    together: Together, way: str
) -> None:
    """Admission fills in the root of a queue hierarchy, and the queue of a PodGroup."""
    name = f"tree-{way.removeprefix('--server-side=')}"
    tree = {"volcano.sh/hierarchy": f"{name}/b", "volcano.sh/hierarchy-weights": "1/2"}
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": tree},
        "spec": {"weight": 1},
    }
    space = {"scheduling.volcano.sh/queue-name": name}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "annotations": space},
    }
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "kept", "namespace": name},
        "spec": {"minMember": 1, "queue": "default"},
    }
    for manifest in (queue, namespace, group) * 2:
        text = json.dumps(manifest)
        result = together.kubectl("apply", way, "-f", "-", text=text)
        assert result.returncode == 0, result.stderr
    kinds = ("queues.scheduling.volcano.sh", "podgroups.scheduling.volcano.sh")
    found, kept = (
        json.loads(together.kubectl("get", kind, key, "-n", name, "-o", "json").stdout)
        for kind, key in zip(kinds, (name, "kept"), strict=True)
    )
    annotations = found["metadata"]["annotations"]
    assert annotations["volcano.sh/hierarchy"] == f"root/{name}/b"
    assert annotations["volcano.sh/hierarchy-weights"] == "1/1/2"
    assert kept["spec"]["queue"] == name


@pytest.mark.parametrize("way", ["--server-side=false", "--server-side=true"])
def test_a_job_is_applied_again_and_scaled_by_its_manifest(together: Together, way: str) -> None:
    """Fields that admission has filled in do not count as changes by the user."""

    def apply(replicas: int) -> int:
        resources = {"requests": {"cpu": "1"}}
        container = {"name": "main", "image": "busybox", "resources": resources}
        tasks = [{"replicas": replicas, "template": {"spec": {"containers": [container]}}}]
        manifest = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "kept"},
            "spec": {"schedulerName": "volcano", "plugins": {"pytorch": []}, "tasks": tasks},
        }
        text = json.dumps(manifest)
        result = together.kubectl("apply", way, "-f", "-", text=text)
        assert result.returncode == 0, result.stderr
        spec = together.job("kept")["spec"]
        assert spec["tasks"][0]["name"] == "default0"
        assert spec["tasks"][0]["minAvailable"] == replicas
        return int(spec["minAvailable"])

    assert [apply(2), apply(2), apply(3), apply(1)] == [2, 2, 3, 1]
    together.await_(lambda: len(together.running("kept")) == 1, "one pod is left and runs")
