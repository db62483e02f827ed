"""Measure the throughput from jobs to bound pods, relative to a client that creates all objects.

Run `make bench-jobs`. The cluster has 1 000 KWOK nodes. Workload (a) is 1 000 jobs × 10 pods, and
workload (b) is 10 jobs × 100 pods. A client creates the jobs with 64 concurrent requests, and polls
the API server until the last pod is bound. `optsched controllers` creates the pods, and `optsched
scheduler` binds them. In the raw run of (a), the same client creates jobs, PodGroups and pods and
binds the pods without these processes. In the raw run of (b), as in `bench.cluster`, it creates
PodGroups and pods and binds the pods. Results are ratios of the two rates within one run.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.cluster import (
    GROUPS,
    NAMESPACE,
    PODS,
    SCHEDULER,
    Client,
    Scheduler,
    all_of,
    binding,
    clear,
    main,
    unbound,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optsched.local.plane import ControlPlane

JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
REQUEST = {"cpu": "1", "memory": "1Gi"}


@dataclass(frozen=True)
class Workload:
    """A number of equal jobs of one task."""

    name: str
    num_jobs: int
    size: int
    least_ratio: float
    counts_jobs: bool

    @property
    def num_pods(self) -> int:
        return self.num_jobs * self.size

    def jobs(self) -> list[dict[str, Any]]:
        template = {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "train",
                        "resources": {"requests": REQUEST, "limits": REQUEST},
                    }
                ],
            }
        }
        return [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": {"name": f"job-{j:04d}", "namespace": NAMESPACE},
                "spec": {
                    "schedulerName": SCHEDULER,
                    "minAvailable": self.size,
                    "queue": "default",
                    "tasks": [{"name": "work", "replicas": self.size, "template": template}],
                },
            }
            for j in range(self.num_jobs)
        ]

    def groups(self) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": f"job-{j:04d}", "namespace": NAMESPACE},
                "spec": {"minMember": self.size, "queue": "default"},
            }
            for j in range(self.num_jobs)
        ]

    def pods(self) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{job['metadata']['name']}-work-{i}",
                    "namespace": NAMESPACE,
                    "annotations": {"scheduling.k8s.io/group-name": job["metadata"]["name"]},
                },
                "spec": {
                    "schedulerName": SCHEDULER,
                    **job["spec"]["tasks"][0]["template"]["spec"],
                },
            }
            for job in self.jobs()
            for i in range(self.size)
        ]


WORKLOADS = (
    Workload("a: 1 000 jobs × 10 pods", 1000, 10, 0.40, counts_jobs=True),
    Workload("b: 10 jobs × 100 pods", 10, 100, 0.27, counts_jobs=False),
)


class Controllers:
    """A process that runs `optsched controllers`."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        options = ["--kubeconfig", str(kubeconfig), "--scheduler-name", SCHEDULER]
        options += ["--no-leader-elect", "--listen-address", "127.0.0.1:18070"]
        command = [sys.executable, "-m", "optsched.cli.main", "controllers", *options]
        self._log = log.open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


async def raw(client: Client, work: Workload, nodes: Sequence[str]) -> float:
    """Create all objects, bind the pods, and return the rate in pods per second."""
    start = time.perf_counter()
    if work.counts_jobs:
        await all_of(client.post(JOBS, job) for job in work.jobs())
    await all_of(client.post(GROUPS, group) for group in work.groups())
    pods = work.pods()
    await all_of(client.post(PODS, pod) for pod in pods)
    await all_of(
        client.post(f"{PODS}/{p['metadata']['name']}/binding", binding(p, nodes[i % len(nodes)]))
        for i, p in enumerate(pods)
    )
    return work.num_pods / (time.perf_counter() - start)


async def submitted(client: Client, work: Workload) -> float:
    """Create jobs, wait until all their pods are bound, and return the rate in pods per second."""
    start = time.perf_counter()
    await all_of(client.post(JOBS, job) for job in work.jobs())
    while await num_pods(client) < work.num_pods:
        await asyncio.sleep(0.1)
    while await unbound(client):
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - start
    await check(client, work)
    return work.num_pods / seconds


async def num_pods(client: Client) -> int:
    """Count the pods on the API server without downloading them."""
    found = await client.get(PODS, limit="1")
    return len(found["items"]) + found["metadata"].get("remainingItemCount", 0)


async def check(client: Client, work: Workload) -> None:
    """Check that every pod of every job exists and is bound, and that no node is overcommitted."""
    found = (await client.get(PODS))["items"]
    owners: dict[str, int] = {}
    on_node: dict[str, int] = {}
    for item in found:
        owner, node = item["metadata"]["ownerReferences"][0]["name"], item["spec"]["nodeName"]
        owners[owner] = owners.get(owner, 0) + 1
        on_node[node] = on_node.get(node, 0) + 1
    assert len(owners) == work.num_jobs
    assert set(owners.values()) == {work.size}
    assert max(on_node.values()) <= 32, on_node


async def clear_jobs(client: Client) -> None:
    while items := (await client.get(JOBS, limit="500"))["items"]:
        await all_of(client.delete(f"{JOBS}/{item['metadata']['name']}") for item in items)
    await clear(client)


async def run(plane: ControlPlane, folder: Path, say: Callable[[str], None], repeats: int) -> bool:
    nodes = [f"node-{i:04d}" for i in range(1000)]
    met = []
    async with Client(plane.kubeconfig) as client:
        for work in WORKLOADS:
            ratios = []
            for _ in range(repeats):
                bare = await raw(client, work, nodes)
                await clear_jobs(client)
                scheduler = Scheduler(plane.kubeconfig, folder / "scheduler.log")
                controllers = Controllers(plane.kubeconfig, folder / "controllers.log")
                await scheduler.until_first_session()
                ours = await submitted(client, work)
                controllers.stop()
                scheduler.stop()
                await clear_jobs(client)
                ratios.append(ours / bare)
                say(f"{work.name}: {ours:.0f} pods/s; raw {bare:.0f} pods/s; {ratios[-1]:.2f}")
            ratio = statistics.median(ratios)
            met.append(ratio >= work.least_ratio)
            say(f"{work.name}: median ratio {ratio:.2f}, target {work.least_ratio:.2f}")
    return all(met)


if __name__ == "__main__":
    main(run, __doc__)
