"""Measure the throughput of the scheduler on a real API server, relative to a raw client.

Run `make bench-cluster`. The cluster has 1 000 KWOK nodes. Workload (a) is 50 gangs × 100 pods, and
workload (b) is 500 gangs × 8 pods of one GPU. An independent client creates PodGroups and pods with
64 concurrent requests, and polls the API server until the last pod is bound. In the raw run, the
same client creates the same objects and binds the pods itself. Results are ratios of the two rates
within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from bench.memory import peak_mib
from optsched.local.assets import require, shipped
from optsched.local.components import Options
from optsched.local.kubectl import manifest_list, node_manifest
from optsched.local.plane import ControlPlane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

AT_ONCE = 64
NAMESPACE = "bench"
GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SCHEDULER = "optsched"


@dataclass(frozen=True)
class Workload:
    """A number of equal gangs; all pods of a gang have the same request."""

    name: str
    num_gangs: int
    size: int
    request: dict[str, str]
    least_ratio: float

    @property
    def num_pods(self) -> int:
        return self.num_gangs * self.size

    def groups(self) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": f"gang-{g:04d}", "namespace": NAMESPACE},
                "spec": {"minMember": self.size, "queue": "default"},
            }
            for g in range(self.num_gangs)
        ]

    def pods(self) -> list[dict[str, Any]]:
        return [
            pod(f"gang-{g:04d}", i, self.request)
            for g in range(self.num_gangs)
            for i in range(self.size)
        ]


WORKLOADS = (
    Workload("a: 50 gangs × 100 pods", 50, 100, {"cpu": "1", "memory": "1Gi"}, 0.55),
    Workload("b: 500 gangs × 8 pods of 1 GPU", 500, 8, {"cpu": "1", "nvidia.com/gpu": "1"}, 0.50),
)


def pod(gang: str, index: int, request: dict[str, str]) -> dict[str, Any]:
    resources = {"requests": request, "limits": request}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang}-{index:03d}",
            "namespace": NAMESPACE,
            "annotations": {"scheduling.k8s.io/group-name": gang},
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "train", "resources": resources}],
        },
    }


class Client:
    """A minimal HTTP client of the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.load(kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        self._server = config["clusters"][0]["cluster"]["server"]
        self._ssl = _tls(config)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(limit=AT_ONCE + 8, ssl=self._ssl)
        self._http = aiohttp.ClientSession(self._server, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        async with (
            self._slots,
            self._http.post(path, data=json.dumps(body), headers=headers) as answer,
        ):
            text = await answer.read()
            assert answer.status in (200, 201), text

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        async with self._http.get(path, params=params) as answer:
            return json.loads(await answer.read())

    async def delete(self, path: str) -> None:
        params = {"gracePeriodSeconds": "0"}
        async with self._slots, self._http.delete(path, params=params) as answer:
            await answer.read()

    async def watch(self, path: str, version: str) -> AsyncIterator[dict[str, Any]]:
        params = {"watch": "1", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get(path, params=params, timeout=timeout) as answer:
            async for line in answer.content:
                yield json.loads(line)


def _tls(config: dict[str, Any]) -> ssl.SSLContext:
    authority = b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    user = config["users"][0]["user"]
    context = ssl.create_default_context(cadata=authority.decode())
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for name in ("client-certificate-data", "client-key-data"):
            paths.append(Path(directory) / name)
            paths[-1].write_bytes(b64decode(user[name]))
        context.load_cert_chain(*paths)
    return context


async def all_of(calls: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*calls)


async def clear(client: Client) -> None:
    for path in (PODS, GROUPS):
        while items := (await client.get(path, limit="1000"))["items"]:
            await all_of(client.delete(f"{path}/{item['metadata']['name']}") for item in items)


# --- throughput ----------------------------------------------------------------------------------


async def raw(client: Client, work: Workload, nodes: Sequence[str]) -> dict[str, float]:
    """Create and bind pods without a scheduler, and return rates in objects per second."""
    start = time.perf_counter()
    await all_of(client.post(GROUPS, g) for g in work.groups())
    await all_of(client.post(PODS, p) for p in work.pods())
    created = time.perf_counter()
    await all_of(
        client.post(f"{PODS}/{p['metadata']['name']}/binding", binding(p, nodes[i % len(nodes)]))
        for i, p in enumerate(work.pods())
    )
    end = time.perf_counter()
    return {
        "creates": work.num_pods / (created - start),
        "binds": work.num_pods / (end - created),
        "pods": work.num_pods / (end - start),
    }


def binding(manifest: dict[str, Any], node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": manifest["metadata"]["name"], "namespace": NAMESPACE},
        "target": {"kind": "Node", "name": node},
    }


async def scheduled(client: Client, work: Workload) -> float:
    """Create pods, wait until all are bound, and return the rate in pods per second."""
    start = time.perf_counter()
    await all_of(client.post(GROUPS, g) for g in work.groups())
    await all_of(client.post(PODS, p) for p in work.pods())
    while await unbound(client):
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - start
    await check(client, work)
    return work.num_pods / seconds


async def unbound(client: Client) -> bool:
    found = await client.get(PODS, fieldSelector="spec.nodeName=", limit="1")
    return bool(found["items"])


async def check(client: Client, work: Workload) -> None:
    """Check that every pod is bound and no node is overcommitted."""
    found = (await client.get(PODS))["items"]
    assert len(found) == work.num_pods
    on_node: dict[str, int] = {}
    for item in found:
        node = item["spec"]["nodeName"]
        on_node[node] = on_node.get(node, 0) + 1
    most = 8 if "nvidia.com/gpu" in work.request else 32
    assert max(on_node.values()) <= most, on_node


# --- latency -------------------------------------------------------------------------------------


async def latency(client: Client, num_gangs: int, size: int, per_second: float) -> list[float]:
    """Return, for each gang, the seconds from the creation of its last pod until it is bound.

    The result is sorted. Pods arrive at the fixed rate `per_second`.
    """
    created: dict[str, float] = {}
    bound: dict[str, set[str]] = {}
    done: dict[str, float] = {}
    version = (await client.get(PODS, limit="1"))["metadata"]["resourceVersion"]

    async def observe() -> None:
        async for event in client.watch(PODS, version):
            item = event["object"]
            if not item["spec"].get("nodeName"):
                continue
            gang = item["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
            bound.setdefault(gang, set()).add(item["metadata"]["name"])
            if len(bound[gang]) == size and gang not in done:
                done[gang] = time.perf_counter()
                if len(done) == num_gangs:
                    return

    async def create(gang: str) -> None:
        group = Workload("", 1, size, {}, 0).groups()[0]
        group["metadata"]["name"] = gang
        await client.post(GROUPS, group)
        await all_of(client.post(PODS, pod(gang, i, {"cpu": "1"})) for i in range(size))
        created[gang] = time.perf_counter()

    watching = asyncio.create_task(observe())
    start = time.perf_counter()
    making = []
    for g in range(num_gangs):
        await asyncio.sleep(max(0.0, start + g * size / per_second - time.perf_counter()))
        making.append(asyncio.create_task(create(f"late-{g:04d}")))
    await asyncio.gather(*making)
    await asyncio.wait_for(watching, 60)
    return sorted(done[g] - created[g] for g in created)


# --- the scheduler -------------------------------------------------------------------------------


class Scheduler:
    """A process that runs `optsched scheduler`."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._port = next(_PORTS)
        options = ["--kubeconfig", str(kubeconfig), "--scheduler-name", SCHEDULER]
        options += ["--no-leader-elect", "--listen-address", f"127.0.0.1:{self._port}"]
        command = [sys.executable, "-m", "optsched.cli.main", "scheduler", *options]
        self._log = log.open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    async def until_first_session(self) -> float:
        start = time.perf_counter()
        async with aiohttp.ClientSession() as http:
            while time.perf_counter() - start < 60:
                with contextlib.suppress(aiohttp.ClientError):
                    url = f"http://127.0.0.1:{self._port}/metrics"
                    async with http.get(url) as answer:
                        text = await answer.text()
                    if _counter(text, "optsched_sessions_total") > 0:
                        return time.perf_counter() - start
                await asyncio.sleep(0.05)
        raise AssertionError("no session within 60 s")

    def memory_mib(self) -> dict[str, float]:
        """Return the peak resident sizes of the scheduler and of its solver process, in MiB."""
        pid = self._process.pid
        # Linux lists a child process under the thread that started it.
        lists = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for listed in lists for child in listed.read_text().split()]
        return {"scheduler": peak_mib(pid), "solver": sum(map(peak_mib, children))}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


_PORTS = count(18080)


def _counter(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def fill(client: Client, nodes: Sequence[str], num_pods: int) -> None:
    """Create running pods by naming their nodes at creation."""

    async def make(i: int) -> None:
        manifest = pod("old", i, {"cpu": "100m"})
        manifest["metadata"]["name"] = f"old-{i:05d}"
        manifest["metadata"]["annotations"] = {}
        manifest["spec"]["nodeName"] = nodes[i % len(nodes)]
        await client.post(PODS, manifest)

    await all_of(make(i) for i in range(num_pods))


# --- the run -------------------------------------------------------------------------------------


async def run(plane: ControlPlane, folder: Path, say: Callable[[str], None], repeats: int) -> bool:
    log = folder / "scheduler.log"
    nodes = [f"node-{i:04d}" for i in range(1000)]
    met = []
    async with Client(plane.kubeconfig) as client:
        for work in WORKLOADS:
            ratios = []
            for _ in range(repeats):
                bare = await raw(client, work, nodes)
                await clear(client)
                scheduler = Scheduler(plane.kubeconfig, log)
                await scheduler.until_first_session()
                ours = await scheduled(client, work)
                memory = scheduler.memory_mib()
                scheduler.stop()
                await clear(client)
                ratios.append(ours / bare["pods"])
                say(
                    f"{work.name}: {ours:.0f} pods/s; raw {bare['pods']:.0f} pods/s "
                    f"({bare['creates']:.0f} creates/s, {bare['binds']:.0f} binds/s); "
                    f"ratio {ratios[-1]:.2f}; memory {sum(memory.values()):.0f} MiB {memory}"
                )
            ratio = statistics.median(ratios)
            met.append(ratio >= work.least_ratio)
            say(f"{work.name}: median ratio {ratio:.2f}, target {work.least_ratio:.2f}")
        scheduler = Scheduler(plane.kubeconfig, log)
        await scheduler.until_first_session()
        waits = await latency(client, num_gangs=300, size=10, per_second=150)
        scheduler.stop()
        p99 = waits[int(len(waits) * 0.99)]
        met.append(p99 <= 3.0)
        say(f"latency at 150 pods/s: p50 {statistics.median(waits):.2f} s, p99 {p99:.2f} s (≤ 3 s)")
        await clear(client)
        await fill(client, nodes, 10_000)
        scheduler = Scheduler(plane.kubeconfig, log)
        seconds = await scheduler.until_first_session()
        memory = scheduler.memory_mib()
        scheduler.stop()
        met.append(seconds <= 10 and sum(memory.values()) <= 500)
        say(
            f"first session {seconds:.1f} s after start (≤ 10 s) on 1 000 nodes / 10 000 pods; "
            f"memory {memory} MiB (≤ 500)"
        )
    return all(met)


Bench = Callable[[ControlPlane, Path, Callable[[str], None], int], Coroutine[Any, Any, bool]]
"""A benchmark, called with a control plane, a log folder, a print function and a repeat count."""


def main(bench: Bench, about: str | None) -> None:
    """Run a benchmark on a new control plane with 1 000 nodes of 32 CPUs and 8 GPUs."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    say = lambda message: print(message, flush=True)  # noqa: E731
    assets, options = require(say), Options(definitions=shipped("crds"))
    with (
        tempfile.TemporaryDirectory(prefix="optsched-") as directory,
        ControlPlane.start(Path(directory) / "plane", assets, options) as plane,
    ):
        resources = {"cpu": "32", "memory": "256Gi", "gpu": 8}
        manifests = [node_manifest(f"node-{i:04d}", **resources) for i in range(1000)]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        plane.kubectl.apply(manifest_list([namespace, *manifests]))
        say("1 000 nodes exist")
        reached = asyncio.run(bench(plane, Path(directory), say, repeats))
    say("every target reached" if reached else "a target was MISSED")


if __name__ == "__main__":
    main(run, __doc__)
