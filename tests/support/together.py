"""Run scheduler, controllers and webhook together on a control plane, and use kubectl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.local.kubectl import manifest_list, node_manifest
from optsched.local.processes import run
from tests.support.api import Api, Refused, until
from tests.support.jobs import documents
from tests.support.live import COMPLETE, Controllers, Process, Scheduler
from tests.support.webhooks import SYSTEM, Webhook, free_port, make_namespace, registered

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Raw

PATIENCE_S = 180.0
ENDED = ("Succeeded", "Failed")
CONTAINERS = (
    kinds.CRON_JOB,
    kinds.JOB_FLOW,
    kinds.JOB_TEMPLATE,
    kinds.JOB,
    kinds.REPLICA_SET,
    kinds.POD_GROUP,
)
OUR_QUEUES = {"default", "root"}


class Together:
    """A separate cluster with 4 GPU nodes of 8 GPUs, 10 CPU nodes, and all components."""

    def __init__(self, plane: ControlPlane, folder: Path, *scheduler_flags: str) -> None:
        self.plane = plane
        self.api = Api(plane.kubeconfig)
        self._folder = folder
        self._flags = scheduler_flags
        self._running: list[Process] = []

    def __enter__(self) -> Self:
        make_namespace(self.api, SYSTEM)
        gpus = [node_manifest(f"gpu{i}", cpu="16", memory="128Gi", gpu=8) for i in range(1, 5)]
        cpus = [node_manifest(f"cpu{i}", cpu="32", memory="128Gi") for i in range(1, 11)]
        self.plane.kubectl.apply(manifest_list([*gpus, *cpus]))
        config, logs = self.plane.kubeconfig, self._folder
        self.webhook = Webhook(config, logs / "webhook.log", free_port())
        self.controllers = Controllers(config, logs / "controllers.log", ["--no-leader-elect"])
        own = ["--no-leader-elect", "--schedule-period", "100ms", "--dump-dir", str(logs)]
        own += ["--loners", "wait", *self._flags]
        self.scheduler = Scheduler(config, logs / "scheduler.log", own)
        self._running = [self.webhook, self.controllers, self.scheduler]
        self._registration = registered(self.api)
        self._registration.__enter__()
        for process in self._running:
            process.begin()
        until(self._reviews, "the webhook is asked")
        until(self._takes_jobs, "the default queue is open")
        return self

    def __exit__(self, *_: object) -> None:
        self._registration.__exit__(None, None, None)
        try:
            for process in reversed(self._running):
                process.stop()
        finally:
            for process in self._running:
                if process.process.poll() is None:
                    process.kill()
                print(f"--- {process.process.args}\n{process.log}")
            self.api.close()

    def _reviews(self) -> bool:
        """Return whether API servers trust the webhook, so that queues can be created."""
        said = self.kubectl("create", "--dry-run=server", "-f", "-", text=PROBE).stderr
        return "failed calling webhook" not in said

    def _takes_jobs(self) -> bool:
        """Return whether the default queue exists and the webhook knows the queue."""
        said = self.kubectl("create", "--dry-run=server", "-f", "-", text=JOB_PROBE).stderr
        return "unable to find job queue" not in said and "with state Open" not in said

    # --- kubectl ---------------------------------------------------------------------------------

    def kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return its result, even after a failure."""
        kubectl = self.plane.kubectl
        cache = kubectl.kubeconfig.with_name("kubectl-cache")
        common = (f"--kubeconfig={kubectl.kubeconfig}", f"--cache-dir={cache}")
        return run([kubectl.binary, *common, *words], input=text)

    def apply(self, *paths: Path) -> str:
        """Apply each file with `kubectl apply`, and return the warnings."""
        warnings = ""
        for path in paths:
            result = self.kubectl("apply", "--validate=warn", "-f", str(path))
            assert result.returncode == 0, result.stderr
            warnings += result.stderr
        return warnings

    def denied(self, path: Path) -> str:
        """Return the error of a refused file."""
        result = self.kubectl("apply", "-f", str(path))
        assert result.returncode != 0, result.stdout
        return result.stderr

    def nodes(self, *manifests: Raw) -> None:
        """Add nodes until `clear`."""
        self.plane.kubectl.apply(manifest_list(manifests))

    # --- state -----------------------------------------------------------------------------------

    def job(self, name: str, namespace: str = "default") -> Raw:
        """Return a job."""
        return self.api.get(object_path(kinds.JOB, namespace, name))

    def phase(self, name: str, namespace: str = "default") -> str:
        """Return the phase of a job, or an empty text without a phase."""
        state: Raw = self.job(name, namespace).get("status", {}).get("state") or {}
        return str(state.get("phase") or "")

    def await_phase(self, phase: str, name: str, namespace: str = "default") -> Raw:
        """Wait until a job is in a phase, and return the job."""
        self.await_(lambda: self.phase(name, namespace) == phase, f"{name} is {phase}")
        return self.job(name, namespace)

    def await_(self, probe: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, and print the objects of the cluster on a timeout."""
        try:
            return until(probe, what, PATIENCE_S)
        except AssertionError:
            print(self.kubectl("get", "queues,vcjob,podgroups,pods", "-A").stdout)
            print(self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout)
            raise

    def pods(self, job: str, namespace: str = "default") -> dict[str, Raw]:
        """Return the pods of a job by name."""
        selector = {"labelSelector": f"volcano.sh/job-name={job}"}
        found = self.api.items(collection_path(kinds.POD, namespace), **selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    def running(self, job: str, namespace: str = "default") -> set[str]:
        """Return the names of the running pods of a job."""
        found = self.pods(job, namespace)
        return {name for name, pod in found.items() if pod["status"].get("phase") == "Running"}

    def await_whole(self, body: Raw) -> Raw:
        """Wait until a job is Running with every pod of its manifest, and return the job."""
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "default")
        self.await_phase("Running", name, namespace)
        wanted = pod_names(body)
        self.await_(lambda: self.running(name, namespace) == wanted, f"all pods of {name} run")
        return self.job(name, namespace)

    def run_all(self, *paths: Path) -> dict[str, Raw]:
        """Apply files, wait until all pods of their jobs run, and return the jobs by name."""
        self.apply(*paths)
        return {body["metadata"]["name"]: self.await_whole(body) for body in jobs_of(*paths)}

    def end(self, *pods: str, namespace: str = "default", how: str = COMPLETE) -> None:
        """End pods by an annotation with the key `how`."""
        for pod in pods:
            path = object_path(kinds.POD, namespace, pod)
            self.api.patch(path, {"metadata": {"annotations": {how: ""}}})

    def queue(self, name: str) -> Raw:
        """Return a queue."""
        return self.api.get(object_path(kinds.QUEUE, None, name))

    def groups(self, namespace: str = "default") -> list[Raw]:
        """Return the PodGroups of a namespace."""
        return self.api.items(collection_path(kinds.POD_GROUP, namespace))

    def events(self, name: str, namespace: str = "default") -> list[Raw]:
        """Return the events about an object, with the field selector that Crater uses."""
        selector = {"fieldSelector": f"involvedObject.name={name}"}
        return self.api.items(collection_path(kinds.EVENT, namespace), **selector)

    # --- cleanup ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Restore the initial state of the cluster."""
        for kind in CONTAINERS:
            for obj in self.api.items(collection_path(kind)):
                self._delete(kind, obj)
        self.api.delete("/apis/apps/v1/namespaces/default/deployments")
        until(lambda: not self._left_pods(), "all pods are gone", PATIENCE_S)
        until(lambda: not self._left_queues(), "all queues are gone", PATIENCE_S)
        for obj in self.api.items(collection_path(kinds.PRIORITY_CLASS)):
            if not obj["metadata"]["name"].startswith("system-"):
                self._delete(kinds.PRIORITY_CLASS, obj)
        for obj in self.api.items(collection_path(kinds.NODE)):
            if not obj["metadata"]["name"].startswith(("cpu", "gpu")):
                self._delete(kinds.NODE, obj)

    def _left_pods(self) -> list[Raw]:
        """Return the remaining pods, and delete the pods without an owner."""
        found = self.api.items(collection_path(kinds.POD))
        for pod in found:
            if "ownerReferences" not in pod["metadata"]:
                self._delete(kinds.POD, pod)
        return found

    def _left_queues(self) -> list[Raw]:
        """Return the remaining queues of tests, and delete them."""
        found = self.api.items(collection_path(kinds.QUEUE))
        left = [queue for queue in found if queue["metadata"]["name"] not in OUR_QUEUES]
        for queue in left:
            self._delete(kinds.QUEUE, queue)
        return left

    def _delete(self, kind: kinds.Kind, obj: Raw) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace") if kind.namespaced else None
        self.api.delete(object_path(kind, namespace, meta["name"]), propagationPolicy="Background")


PROBE = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: probe}
spec: {weight: 1}
"""

JOB_PROBE = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: probe, namespace: default}
spec:
  tasks:
  - replicas: 1
    name: t
    template: {spec: {containers: [{name: c, image: i}], restartPolicy: Never}}
"""


def jobs_of(*paths: Path) -> list[Raw]:
    """Return the jobs in manifest files."""
    return [
        body
        for path in paths
        for body in documents(path)
        if body["kind"] == "Job" and body["apiVersion"] == kinds.JOB.api_version
    ]


def pod_names(job: Raw) -> set[str]:
    """Return the names of a job's pods."""
    tasks: Iterable[tuple[int, Raw]] = enumerate(job["spec"]["tasks"])
    return {
        f"{job['metadata']['name']}-{task.get('name') or f'default{number}'}-{index}"
        for number, task in tasks
        for index in range(task["replicas"])
    }


def environment(pod: Raw) -> dict[str, str]:
    """Return the literal environment variables of a pod's first container, by name."""
    found = pod["spec"]["containers"][0].get("env", ())
    return {each["name"]: each["value"] for each in found if "value" in each}


def is_refused(action: Callable[[], object]) -> bool:
    """Return whether the API server refuses an action."""
    try:
        action()
    except Refused:
        return True
    return False
