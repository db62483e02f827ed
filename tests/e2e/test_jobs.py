"""Jobs on a real cluster: from Pending to each final phase, with all steps in between."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.job import parse_job
from optsched.controllers.job.owned_objects import pod_maker
from optsched.formats.files.yaml_text import Document, read_yaml
from tests.support.api import until
from tests.support.livejobs import LiveJob
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared
from tests.support.vcjobs import job, policy, task

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.api import Api
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

RESTART = policy("PodFailed", "RestartJob")


def is_leaving(job: LiveJob) -> bool:
    """Return whether a job is deleted or waits for the garbage collector."""
    found = job.site.api.find(f"{job.jobs}/{job.name}")
    return found is None or "deletionTimestamp" in found["metadata"]


def manifests() -> list[Path]:
    """Return the manifests that contain jobs."""
    return [
        path
        for path in found_in_shared("manifests/**/*.yaml")
        if "kind: Job" in path.read_text("utf-8") and "invalid_jobs" not in path.parts
    ]


def jobs_in(path: Path) -> list[dict[str, Any]]:
    documents = (
        part.value for part in read_yaml(path.read_text("utf-8")) if isinstance(part, Document)
    )
    return [d for d in documents if d.get("kind") == "Job" and "volcano" in d["apiVersion"]]


@pytest.mark.parametrize("path", manifests(), ids=lambda path: path.stem)
def test_the_server_takes_the_pods_of_every_manifest(site: Site, api: Api, path: Path) -> None:
    shared("manifests")
    for manifest in jobs_in(path):
        meta = manifest["metadata"]
        meta["name"] = meta.get("name") or f"{meta['generateName']}x"
        meta |= {"namespace": site.name, "uid": "3b0c0c9e-4f7b-4f0e-9f3b-1f0f8d8f9f00"}
        found, errors = parse_job(manifest)
        assert found is not None
        assert not errors
        maker = pod_maker(found, manifest)
        for one in found.spec.tasks:
            pod = maker.pod(one, 0)
            for container in pod["spec"]["containers"]:
                amounts = container.get("resources", {})
                for name in [n for n in amounts.get("requests", {}) if "/" in n]:
                    # The webhook copies requests of resources without overcommitment to the limits.
                    amounts.setdefault("limits", {}).setdefault(name, amounts["requests"][name])
            # The cluster may lack the PriorityClass.
            pod["spec"].pop("priorityClassName", None)
            made = api.post(f"/api/v1/namespaces/{site.name}/pods?dryRun=All", pod)
            assert made["metadata"]["name"] == f"{meta['name']}-{one.name}-0"


def test_a_job_gets_all_that_its_plugins_promise(site: Site) -> None:
    site.nodes(1, cpus=16)
    scheduler, controllers = site.scheduler(), site.controllers()
    workers = task("worker", 2, policies=[policy("TaskCompleted", "CompleteJob")])
    body = job(task("master"), workers, name="full")
    body["spec"]["plugins"] = {"env": [], "svc": [], "ssh": [], "pytorch": []}
    full = LiveJob(site, body)
    full.await_phase("Running")
    pods = full.await_pods("master-0", "worker-0", "worker-1")
    spec = pods["worker-1"]["spec"]
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert env["VC_TASK_INDEX"] == "1"
    assert env["VK_TASK_NUM"] == "2"
    assert env["VC_MASTER_HOST"] == env["MASTER_ADDR"] == "full-master-0.full"
    assert (env["WORLD_SIZE"], env["RANK"], env["MASTER_PORT"]) == ("3", "2", "23456")
    assert (spec["hostname"], spec["subdomain"]) == ("full-worker-1", "full")
    owner = pods["worker-1"]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", full.uid, True)
    assert full.owned("services") == ["full"]
    assert full.owned("configmaps") == ["full-svc"]
    assert full.owned("secrets") == ["full-ssh"]
    assert full.owned("networkpolicies", "networking.k8s.io/v1") == ["full"]
    assert full.owned("podgroups", "scheduling.volcano.sh/v1beta1") == [f"full-{full.uid}"]
    status = full.await_count(running=3)
    assert status["taskStatusCount"] == {
        "master": {"phase": {"Running": 1}},
        "worker": {"phase": {"Running": 2}},
    }
    full.succeed("worker-0", "worker-1")
    full.await_phase("Completed")
    full.await_pods("worker-0", "worker-1")
    assert full.stages == ["Pending", "Running", "Completing", "Completed"]
    assert full.status["runningDuration"]
    until(lambda: not full.owned("podgroups", "scheduling.volcano.sh/v1beta1"), "it left its gang")
    site.api.delete(f"{full.jobs}/full")
    until(lambda: not full.owned("services") and not full.pods(), "all that it had is gone")
    controllers.stop()
    scheduler.stop()


def test_jobs_end_as_their_policies_say(site: Site) -> None:
    site.nodes(2, cpus=32)
    scheduler, controllers = site.scheduler(), site.controllers()

    def make(name: str, *policies: dict[str, Any], **spec: Any) -> LiveJob:
        return LiveJob(site, job(task("a", 2), name=name, policies=list(policies), **spec))

    aborted = make("aborted", policy("PodFailed", "AbortJob"))
    terminated = make("terminated", policy("PodFailed", "TerminateJob"), ttlSecondsAfterFinished=1)
    completed = make("completed", policy("TaskCompleted", "CompleteJob"))
    ended = make("ended", minAvailable=1)
    short = make("short")
    for one in (aborted, terminated, completed, ended, short):
        one.await_phase("Running")

    aborted.fail("a-1")
    terminated.fail("a-0", 3)
    completed.succeed("a-0", "a-1")
    ended.succeed("a-0")
    ended.fail("a-1")
    short.fail("a-0")
    short.succeed("a-1")

    aborted.await_phase("Aborted")
    completed.await_phase("Completed")
    ended.await_phase("Completed")
    assert short.await_phase("Failed")["state"]["reason"] == "NotEnoughSucceeded"
    until(lambda: is_leaving(terminated), "it was old enough")
    assert aborted.stages == ["Pending", "Running", "Aborting", "Aborted"]
    assert completed.stages == ["Pending", "Running", "Completing", "Completed"]
    controllers.stop()
    scheduler.stop()


def test_jobs_start_again_and_are_suspended(site: Site) -> None:
    site.nodes(1, cpus=32)
    scheduler, controllers = site.scheduler(), site.controllers()
    suspended = LiveJob(site, job(task("a", 2), name="suspended", maxRetry=1))
    retried = LiveJob(site, job(task("a", 2), name="retried", policies=[RESTART], maxRetry=2))
    for one in (suspended, retried):
        one.await_phase("Running")

    retried.fail("a-0", 137)
    suspended.command("AbortJob")
    suspended.await_phase("Aborted")
    suspended.await_pods()
    suspended.command("ResumeJob")
    suspended.await_phase("Running")
    assert suspended.status["retryCount"] == 0
    suspended.command("TerminateJob")
    suspended.await_phase("Terminated")
    path = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{site.name}/commands"
    until(lambda: not site.api.items(path), "all Commands are gone")

    retried.await_count(retryCount=1)
    retried.await_phase("Running")
    assert retried.status["version"] == 1
    retried.fail("a-1")
    status = retried.await_phase("Failed")
    assert status["retryCount"] == 2
    assert status["state"]["reason"] == "MaxRetryReached"
    assert "retried-a-1 has failed" in status["state"]["message"]
    assert sorted(retried.stages) == ["Failed", "Pending", "Restarting", "Running"]
    site.await_event("retried", reason="ExecuteAction")
    controllers.stop()
    scheduler.stop()


def test_parts_of_a_job_start_again(site: Site) -> None:
    site.nodes(1, cpus=32)
    scheduler, controllers = site.scheduler(), site.controllers()
    worker = task("worker", 2, policies=[policy("PodFailed", "RestartTask")])
    single = task("single", 2, policies=[policy("PodFailed", "RestartPod")])
    parts = LiveJob(site, job(task("ps", 2), worker, single, name="parts"))
    parts.await_count(running=6)
    before = {name: pod["metadata"]["uid"] for name, pod in parts.pods().items()}
    parts.fail("worker-1")
    parts.await_count("Running", retryCount=1, running=6)
    parts.fail("single-0")
    parts.await_count("Running", retryCount=2, running=6)
    after = {name: pod["metadata"]["uid"] for name, pod in parts.pods().items()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"worker-0", "worker-1", "single-0"}
    controllers.stop()
    scheduler.stop()


def test_tasks_follow_each_other_and_grow(site: Site) -> None:
    site.nodes(1, cpus=32)
    scheduler, controllers = site.scheduler(), site.controllers()
    late = task("late", 2, dependsOn={"name": ["early"]})
    chain = LiveJob(site, job(task("early"), late, name="chain", plugins={"svc": []}))
    chain.await_count(running=3)
    made = {name: pod["metadata"]["creationTimestamp"] for name, pod in chain.pods().items()}
    assert made["early-0"] <= made["late-0"]
    tasks = json.loads(json.dumps(chain.raw["spec"]["tasks"]))
    tasks[1]["replicas"] = 4
    chain.patch(tasks=tasks)
    chain.await_count(running=5)
    tasks[1]["replicas"] = 1
    chain.patch(tasks=tasks, minAvailable=2)
    chain.await_pods("early-0", "late-0")
    chain.await_count(running=2)
    assert chain.phase == "Running"
    path = f"/api/v1/namespaces/{site.name}/configmaps/chain-svc"
    until(lambda: site.api.get(path)["data"]["VC_LATE_NUM"] == "1", "the hosts are told")
    controllers.stop()
    scheduler.stop()


def test_evictions_by_the_scheduler_cost_no_retry(site: Site) -> None:
    site.nodes(1, cpus=4)
    high, low = site.priority("high", 1000), site.priority("low", 1)
    scheduler, controllers = site.scheduler(), site.controllers()
    cpu = {"limits": {"cpu": "2"}}  # a full queue does not admit a job that names its requests

    def sized(name: str, importance: str, **spec: Any) -> LiveJob:
        body = job(task("a", 2), name=name, priorityClassName=importance, **spec)
        body["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"] = cpu
        return LiveJob(site, body)

    policies = [policy("PodEvicted", "RestartJob"), RESTART]
    victim = sized("victim", low, policies=policies, maxRetry=1)
    victim.await_phase("Running")
    urgent = sized("urgent", high)
    urgent.await_phase("Running")
    status = victim.await_phase("Pending")
    assert (status["retryCount"], status["evictions"]) == (0, 1)
    until(lambda: victim.status["state"].get("message"), "it is told why it waits")
    urgent.succeed("a-0", "a-1")
    victim.await_phase("Running")
    site.delete_pod("victim-a-0")
    status = victim.await_count("Running", evictions=2, running=2)
    assert status["retryCount"] == 0
    victim.fail("a-0")
    assert victim.await_phase("Failed")["retryCount"] == 1
    controllers.stop()
    scheduler.stop()


def test_controllers_that_are_killed_go_on_where_they_were(site: Site) -> None:
    site.nodes(2, cpus=64)
    scheduler = site.scheduler()
    jobs = [
        LiveJob(site, job(task("a", 4), name=f"j{i}", policies=[RESTART], plugins={"svc": []}))
        for i in range(10)
    ]
    for _ in range(3):
        controllers = site.spawn_controllers().begin()
        until(lambda: any(one.status for one in jobs), "some have begun")
        controllers.kill()
    controllers = site.controllers()
    for one in jobs:
        one.await_count(running=4)
        assert one.status["retryCount"] == 0
        one.fail("a-2")
    controllers.kill()
    controllers = site.controllers()
    for one in jobs:
        one.await_count(running=4, retryCount=1)
        one.await_phase("Running")
        assert sorted(one.pods()) == ["a-0", "a-1", "a-2", "a-3"]
        assert one.status["version"] == 1
    controllers.stop()
    scheduler.stop()


SEEDS = (
    "seeds/s001-L152-vcjob-tf-training.yaml",
    "seeds/s001-L300-vcjob-mpi-job.yaml",
    "seeds/s001-L381-vcjob-pytorch-ddp.yaml",
    "seeds/s001-L410-vcjob-spark-job.yaml",
    "seeds/s002-L082-vcjob-distributed-training.yaml",
)
CRATER = tuple(f"crater/{n}.yaml" for n in ("jupyter", "webide", "custom", "tensorflow", "pytorch"))
EXAMPLES = tuple(
    f"volcano/example/{name}.yaml"
    for name in (
        "job",
        "job-plugin",
        "integrations/mpi/mpi-example",
        "integrations/ray/ray-example",
        "integrations/mxnet/train/train-mnist-cpu",
        "integrations/tensorflow/dist-mnist/tf-dist-mnist-example",
        "task-start-dependency/mpi",
    )
)


def as_admitted(body: dict[str, Any], site: Site) -> dict[str, Any]:
    """Return a guide's job as the webhook would admit it, in the queue of a site."""
    spec = body["spec"]
    spec |= {"schedulerName": site.name, "queue": "default"}
    spec.pop("priorityClassName", None)
    for one in spec["tasks"]:
        for container in one["template"]["spec"]["containers"]:
            amounts = container.get("resources", {})
            for name in [n for n in amounts.get("requests", {}) if "/" in n]:
                amounts.setdefault("limits", {}).setdefault(name, amounts["requests"][name])
    return body


@pytest.mark.parametrize("names", [SEEDS, CRATER, EXAMPLES], ids=["guides", "crater", "examples"])
def test_jobs_of_guides_run_and_are_found_by_their_names(
    site: Site, names: tuple[str, ...]
) -> None:
    shared("manifests")
    site.nodes(4, cpus=128, gpus=16, memory="2Ti")
    scheduler, controllers = site.scheduler(), site.controllers()
    bodies = [b for name in names for b in jobs_in(shared("manifests", *name.split("/")))]
    for number, body in enumerate(bodies):  # two example jobs have the same name
        body["metadata"]["name"] += f"-{number}"
    jobs = [LiveJob(site, as_admitted(body, site)) for body in bodies]
    for one in jobs:
        one.await_phase("Running")
    for one in jobs:
        spec = one.raw["spec"]
        everyone = {
            f"{task.get('name') or f'default{i}'}-{index}"
            for i, task in enumerate(spec["tasks"])
            for index in range(task["replicas"])
        }
        until(lambda one=one, names=everyone: set(one.pods()) == names, f"pods of {one.name}")
    controllers.stop()
    scheduler.stop()


def test_an_mpi_job_of_a_master_alone_runs(site: Site) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    live = LiveJob(site, job(task("master", 1), name="alone", plugins={"mpi": [], "svc": []}))
    live.await_count("Running", running=1)
    live.succeed("master-0")
    live.await_phase("Completed")
