"""Controllers create PodGroups for Deployments, sets, Jobs and bare pods on a real cluster."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.wellknown import GROUP_SCHEDULER
from tests.support.api import until
from tests.support.chronicle import Chronicle
from tests.support.jobs import documents
from tests.support.live import BEGIN_S, QUEUES, SCHEDULING
from tests.support.pages import ROOT
from tests.support.shared import shared
from tests.support.usage import least

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

APPS = "/apis/apps/v1/namespaces/{}/{}"
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
QUEUE_NAME = "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"
MANIFEST = ROOT / "deploy" / "manifests" / "controllers-rbac.yaml"
NAMESPACE, ACCOUNT = "volcano-system", "optsched-controllers"


def workload(
    site: Site, kind: str, name: str, size: int, annotations: dict[str, str] | None = None
) -> str:
    """Create a workload with pods in the site and return its UID."""
    labels = {"app": name}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    spec: dict[str, Any] = {
        "template": {
            "metadata": {"labels": labels},
            "spec": {"schedulerName": site.name, "containers": [container]},
        },
    }
    if kind == "Job":
        spec |= {"parallelism": size, "completions": size}
        spec["template"]["spec"]["restartPolicy"] = "Never"
    else:
        spec |= {"selector": {"matchLabels": labels}}
        spec |= {} if kind == "DaemonSet" else {"replicas": size}
    if kind == "StatefulSet":
        spec["podManagementPolicy"] = "Parallel"
    version = "batch/v1" if kind == "Job" else "apps/v1"
    body = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": spec,
    }
    path = f"/apis/{version}/namespaces/{site.name}/{kind.lower()}s"
    return str(site.api.post(path, body)["metadata"]["uid"])


def groups(site: Site) -> dict[str, Any]:
    return {group["metadata"]["name"]: group for group in site.groups()}


def members(site: Site) -> dict[str, str | None]:
    """Return the PodGroup that each pod names."""
    pods = site.api.items(f"/api/v1/namespaces/{site.name}/pods")
    return {p["metadata"]["name"]: p["metadata"].get("annotations", {}).get(GROUP) for p in pods}


def num_bound(site: Site) -> int:
    pods = site.api.items(f"/api/v1/namespaces/{site.name}/pods")
    return sum("nodeName" in pod["spec"] for pod in pods)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "ReplicaSet"])
def test_pods_of_an_owner_are_one_podgroup_with_the_minimum_that_it_says(
    site: Site, kind: str
) -> None:
    site.nodes(1)
    site.scheduler()
    controllers = site.controllers()
    uid = workload(site, kind, "web", 3, {MIN_MEMBER: "2", "volcano.sh/sla-waiting-time": "1h"})
    until(lambda: list(members(site).values()) == [next(iter(groups(site)), "")] * 3, "a group")
    [group] = groups(site).values()
    name = group["metadata"]["name"]
    if kind != "Deployment":
        assert name == f"podgroup-{uid}"
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["minResources"] == least(2, {"cpu": "200m"})
    assert group["metadata"]["annotations"] == {"volcano.sh/sla-waiting-time": "1h"}
    site.await_phase(name, "Running")
    site.await_running(name, 3)
    assert controllers.num_writes("pods") == 3
    assert controllers.num_writes("podgroups") == 1
    controllers.stop()


def test_a_job_that_is_suspended_reserves_nothing(site: Site) -> None:
    """Its PodGroup, which stays as long as the job, was enqueued and has no pods any more."""
    [node] = site.nodes(1)
    site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    queue = site.queue("narrow", capability={"cpu": "1"})
    plugins = "[{name: gang}, {name: predicates}, {name: capacity}]"
    policy = f"actions: 'enqueue, allocate'\ntiers: [{{plugins: {plugins}}}]\nsolver: none\n"
    config = site.file("capacity.conf", policy)
    site.scheduler("--config", str(config), "--loners", "wait")
    site.controllers()
    namespace = {"metadata": {"annotations": {QUEUE_NAME: queue}}}
    site.api.patch(f"/api/v1/namespaces/{site.name}", namespace)
    workload(site, "Job", "train", 9, {MIN_MEMBER: "9"})
    [name] = until(lambda: list(groups(site)), "a group")
    path = f"/apis/{SCHEDULING}/namespaces/{site.name}/podgroups/{name}"
    site.api.patch(path, {"metadata": {"annotations": {GROUP_SCHEDULER: site.name}}})
    site.await_phase(name, "Inqueue")
    job = f"/apis/batch/v1/namespaces/{site.name}/jobs/train"
    site.api.patch(job, {"spec": {"suspend": True}})
    until(lambda: not members(site), "its pods have left")
    site.group("next", 1, queue, minResources={"cpu": "1"})
    site.await_phase("next", "Inqueue")
    site.await_phase(name, "Pending")


def test_a_deployment_with_a_minimum_starts_as_a_whole_or_not_at_all(site: Site) -> None:
    site.nodes(1, cpus=1)
    scheduler = site.scheduler("--loners", "wait")
    controllers = site.controllers()
    workload(site, "Deployment", "small", 5)
    until(lambda: len(members(site)) == 5 and all(members(site).values()), "five pods")
    site.await_running(next(iter(groups(site))), 5)
    small = set(groups(site))
    workload(site, "Deployment", "big", 8, {MIN_MEMBER: "8"})
    [big] = until(lambda: set(groups(site)) - small, "its group")
    site.await_waits(big, "MinResourcesUnavailable")
    assert "PodGroupNotFound" not in scheduler.log
    site.assert_still(scheduler)
    assert num_bound(site) == 5
    site.nodes(1, cpus=1)
    site.await_running(big, 8)
    assert num_bound(site) == 13
    scheduler.stop()
    controllers.stop()


def test_the_deployment_of_the_guide_waits_for_its_queue_and_is_told_so(site: Site) -> None:
    site.nodes(1)
    scheduler = site.scheduler()
    controllers = site.controllers()
    folder = shared("manifests", "volcano", "example", "deployment")
    [deployment, queue] = [d for p in sorted(folder.glob("*.yaml")) for d in documents(p)]
    missing = f"{site.name}-test"
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"][QUEUE_NAME] = missing
    template["spec"]["schedulerName"] = site.name
    site.api.post(APPS.format(site.name, "deployments"), deployment)
    [pod] = until(lambda: list(members(site)), "the pod is there")
    until(lambda: site.events(pod, "Unschedulable"), "the pod is told")
    assert set(site.reasons(pod)) == {"QueueNotFound"}
    [event] = site.events(pod, "Unschedulable")
    assert f"queue {missing} does not exist" in event["message"]
    assert groups(site) == {}

    queue["metadata"]["name"] = missing
    site.create(QUEUES, queue)
    until(lambda: all(members(site).values()), "it has its PodGroup")
    [group] = groups(site)
    site.await_phase(group, "Running")
    scheduler.stop()
    controllers.stop()


def test_a_pod_alone_and_a_set_that_wants_none(site: Site) -> None:
    site.nodes(1)
    controllers = site.controllers()
    site.pod("alone", annotations={"volcano.sh/network-topology-mode": "soft"})
    uid = workload(site, "StatefulSet", "web", 2)
    until(lambda: len(groups(site)) == 2 and all(members(site).values()), "two groups")
    alone = groups(site)[str(members(site)["alone"])]
    assert alone["spec"]["networkTopology"] == {"mode": "soft"}
    assert alone["metadata"]["ownerReferences"][0]["kind"] == "Pod"
    path = f"{APPS.format(site.name, 'statefulsets')}/web"
    site.api.patch(path, {"spec": {"replicas": 0}})
    until(lambda: f"podgroup-{uid}" not in groups(site), "no pods, no group")
    site.api.patch(path, {"spec": {"replicas": 1}})
    until(lambda: members(site).get("web-0") == f"podgroup-{uid}", "it is back")
    site.api.delete(f"/api/v1/namespaces/{site.name}/pods/alone")
    until(lambda: set(groups(site)) == {f"podgroup-{uid}"}, "it goes with its pod")
    controllers.stop()


def test_controllers_that_are_killed_at_any_moment_lose_and_double_nothing(site: Site) -> None:
    site.nodes(1)
    path = f"/apis/{SCHEDULING}/namespaces/{site.name}/podgroups"
    chance = random.Random(5)
    num_sets, size = 12, 5
    deaths = 0
    with Chronicle(site.api, [path]) as chronicle:
        process = site.spawn_controllers()
        for number in range(num_sets):
            workload(site, "ReplicaSet", f"set-{number}", size)
            if number % 3 == 2:
                # Some processes die during their start, others while they write.
                until(lambda process=process: process.port, "it has begun", BEGIN_S)
                if chance.random() < 0.7:
                    process.begin()
                    time.sleep(chance.random() * 0.2)
                process.kill()
                deaths += 1
                process = site.spawn_controllers()
        process.begin()
        pods = num_sets * size
        until(lambda: sum(bool(name) for name in members(site).values()) == pods, "all are named")
    assert deaths == 4
    assert Counter(members(site).values()) == dict.fromkeys(groups(site), size)
    # Each PodGroup was created once and, without a scheduler, never updated.
    changes = Counter(event["object"]["metadata"]["name"] for event in chronicle.events(path))
    assert changes == dict.fromkeys(groups(site), 1)
    process.stop()


@pytest.fixture
def account(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """Yield a kubeconfig with a token of the controllers' account instead of the administrator."""
    kubectl = control_plane.kubectl
    kubectl("apply", "-f", str(MANIFEST))
    token = kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=1h").strip()
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "account"
    path.write_text(json.dumps(config))
    yield path
    kubectl("delete", "-f", str(MANIFEST), "--timeout=60s")


def test_they_work_with_their_own_rights_and_one_at_a_time(site: Site, account: Path) -> None:
    site.nodes(1)
    flags = ("--leader-elect", "--no-ssh", "--lock-namespace", NAMESPACE)
    first = site.controllers(*flags, kubeconfig=account)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/vc-controller-manager"
    until(lambda: first.metric("optsched_controllers_leading") == 1, "the first works")
    second = site.controllers(*flags, kubeconfig=account)
    queue = site.queue("q")
    site.pod("one", annotations={QUEUE_NAME: queue})
    until(lambda: members(site)["one"], "it has its group")
    assert second.num_writes() == 0
    first.stop()
    until(lambda: second.metric("optsched_controllers_leading") == 1, "the second works")
    site.pod("two")
    until(lambda: members(site)["two"], "it has its group")
    site.pod("three", annotations={QUEUE_NAME: "no-such-queue"})
    until(lambda: site.events("three", "Unschedulable"), "it is told")
    second.stop()
    assert site.api.get(lease)["spec"]["holderIdentity"] == ""
    assert "403 Forbidden" not in first.log + second.log
