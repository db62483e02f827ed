"""Measure the memory of scheduler and controllers over many pod lifecycles, without HTTP.

Run `make bench-lifecycles`. An API server in memory replaces HTTP. All other parts of both
processes run in this process: lists and watches, caches, sessions, binds, evictions, statuses,
events, metrics. Jobs arrive in rounds. Their pods are created, bound, run and succeed. In each
round, one pod is evicted for an urgent job, and some jobs never fit. At the end of a round, all
objects are deleted. Resident memory after the first tenth and at the end must not differ by more
than 10 %. The benchmark lists containers that have grown. With `--trace`, it also lists the lines
that allocate memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import time
import tracemalloc
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import EVENT, JOB, NODE, POD, POD_GROUP, PRIORITY_CLASS, QUEUE, Ref
from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.registry import Options, all_controllers
from optsched.formats.codec.pods.reader import BarePodRules, DecodeOptions
from optsched.kube.client.errors import AlreadyExists, Conflict, NotFound
from optsched.kube.client.listing import EVERYTHING, Page
from optsched.kube.controllers import process as controllers_process
from optsched.kube.runtime.timing import SystemClock
from optsched.kube.scheduler import process as scheduler_process
from optsched.local.kubectl import node_manifest
from optsched.policy.catalogue import PluginSource
from optsched.policy.load import PolicyWatch
from optsched.units import format_time
from tests.kube.fakes import merged
from tests.support.memory_server import is_selected
from tests.support.sizes import container_sizes
from tests.support.vcjobs import KEYS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from optsched.api.kinds import Kind
    from optsched.kube.client.listing import Selection

Raw = dict[str, Any]

POLICY: Final = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
solver: none
"""
SIZE: Final = 4
"""The number of pods per job."""

ROUND: Final = 50
"""The number of jobs per round that succeed."""

NUM_STUCK: Final = 3
"""The number of jobs per round that request more than any node offers."""

MOST_GROWTH: Final = 0.10
LOOK_S: Final = 0.01
END_S: Final = 120.0
HISTORY: Final = 2_000
EVENTS: Final = 1_000


class Cluster:
    """A store of objects with watches and emulated kubelets that run pods for a short time."""

    def __init__(self) -> None:
        self.objects: defaultdict[Kind, dict[tuple[str, str], Raw]] = defaultdict(dict)
        self.num_evicted = 0
        self._version = 0
        self._num_uids = 0
        self._watches: defaultdict[Kind, list[tuple[Selection, asyncio.Queue[bytes]]]]
        self._watches = defaultdict(list)
        self._history: deque[tuple[int, Kind, Raw | None, Raw | None]] = deque(maxlen=HISTORY)
        self._events: deque[Ref] = deque()
        self._starting: list[Ref] = []
        self._ending: list[Ref] = []

    # --- objects ---------------------------------------------------------------------------------

    def put(self, kind: Kind, obj: Raw) -> Raw:
        """Create or replace an object."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        before = self.objects[kind].get(key)
        self._version += 1
        if "uid" not in meta:
            self._num_uids += 1
            meta["uid"] = f"00000000-0000-0000-0000-{self._num_uids:012d}"
            meta["creationTimestamp"] = format_time(SystemClock().now_ms())
        meta["resourceVersion"] = str(self._version)
        self.objects[kind][key] = obj
        self._tell(kind, before, obj)
        return obj

    def drop(self, ref: Ref) -> None:
        """Delete an object."""
        before = self.objects[ref.kind].pop((ref.namespace, ref.name), None)
        if before is not None:
            self._version += 1
            self._tell(ref.kind, before, None)

    def get(self, ref: Ref) -> Raw:
        """Return an object, or raise NotFound if it does not exist."""
        found = self.objects[ref.kind].get((ref.namespace, ref.name))
        if found is None:
            raise NotFound(404, "NotFound", f"{ref} not found")
        return found

    def live(self) -> None:
        """Start bound pods, and complete started pods except pods that run forever.

        Delete the pods and PodGroups of deleted jobs too.
        """
        self._collect_garbage()
        ending, self._ending = self._ending, []
        for ref in ending:
            self._status(ref, {"phase": "Succeeded"})
        starting, self._starting = self._starting, []
        for ref in starting:
            self._status(ref, {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"})
            pod = self.objects[POD].get((ref.namespace, ref.name))
            if pod is not None and "forever" not in pod["metadata"].get("annotations", {}):
                self._ending.append(ref)

    def _collect_garbage(self) -> None:
        """Delete the pods and PodGroups of deleted jobs, like kube-controller-manager.

        A controller that has not seen the deletion of a job yet may create its PodGroup again.
        """
        jobs = {found["metadata"]["uid"] for found in self.objects[JOB].values()}
        for kind in (POD, POD_GROUP):
            for key, found in tuple(self.objects[kind].items()):
                owners = found["metadata"].get("ownerReferences", ())
                if owners and all(owner["uid"] not in jobs for owner in owners):
                    self.drop(Ref(kind, *key))

    def _status(self, ref: Ref, status: Raw) -> None:
        pod = self.objects[POD].get((ref.namespace, ref.name))
        if pod is not None:
            self.put(POD, merged(pod, {"status": status}))

    def _tell(self, kind: Kind, before: Raw | None, after: Raw | None) -> None:
        self._history.append((self._version, kind, before, after))
        for selection, queue in self._watches[kind]:
            line = _line(self._version, before, after, selection)
            if line:
                queue.put_nowait(line)

    # --- client interface, see `ports` -----------------------------------------------------------

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        del limit, token
        await asyncio.sleep(0)
        found = [_copy(o) for o in self.objects[kind].values() if is_selected(o, selection)]
        return Page(found, str(self._version))

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for version, changed, before, after in self._history:
            line = _line(version, before, after, selection) if changed == kind else b""
            if line and version > int(resource_version):
                queue.put_nowait(line)
        entry = (selection, queue)
        self._watches[kind].append(entry)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watches[kind].remove(entry)

    async def read(self, ref: Ref) -> Raw:
        await asyncio.sleep(0)
        return _copy(self.get(ref))

    async def read_metadata(self, ref: Ref) -> Raw:
        return {"metadata": (await self.read(ref))["metadata"]}

    async def create(self, ref: Ref, body: Raw) -> Raw:
        await asyncio.sleep(0)
        if (ref.namespace, ref.name) in self.objects[ref.kind]:
            raise AlreadyExists(409, "AlreadyExists", f"{ref} exists")
        if ref.kind == POD:
            body = {**body, "status": {"phase": "Pending"}}
        made = _copy(self.put(ref.kind, _copy(body)))
        if ref.kind == EVENT:
            self._events.append(ref)
            if len(self._events) > EVENTS:
                self.drop(self._events.popleft())
        return made

    async def patch(self, ref: Ref, body: Raw, subresource: str = "") -> Raw:
        del subresource
        await asyncio.sleep(0)
        known, meta = self.get(ref), body.get("metadata", {})
        for name in ("uid", "resourceVersion"):
            if meta.get(name) not in (None, known["metadata"][name]):
                raise Conflict(409, "Conflict", f"{ref} has changed")
        return _copy(self.put(ref.kind, merged(known, _copy(body))))

    async def delete(
        self, ref: Ref, uid: str = "", propagation: str = "", grace_s: int | None = None
    ) -> Raw:
        del propagation, grace_s
        await asyncio.sleep(0)
        if uid not in ("", self.get(ref)["metadata"]["uid"]):
            raise Conflict(409, "Conflict", f"{ref} has a different UID")
        self.drop(ref)
        return {"kind": "Status"}

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        await asyncio.sleep(0)
        ref = Ref(POD, namespace, name)
        pod = self.get(ref)
        if pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName"):
            raise Conflict(409, "Conflict", f"{ref} has a different UID or is bound")
        marks = {"metadata": {"annotations": dict(annotations or {})}}
        self.put(POD, merged(pod, {**marks, "spec": {"nodeName": node}}))
        self._starting.append(ref)

    async def evict(
        self, namespace: str, name: str, uid: str, version: str = "", *, grace_s: int | None = None
    ) -> None:
        await asyncio.sleep(0)
        ref = Ref(POD, namespace, name)
        meta = self.get(ref)["metadata"]
        if meta["uid"] != uid or version not in ("", meta["resourceVersion"]):
            raise Conflict(409, "Conflict", f"{ref} has changed")
        self.num_evicted += 1
        self.drop(ref)


def _copy(obj: Raw) -> Raw:
    found: Raw = json.loads(json.dumps(obj))
    return found


def _line(version: int, before: Raw | None, after: Raw | None, selection: Selection) -> bytes:
    was = before is not None and is_selected(before, selection)
    now = after is not None and is_selected(after, selection)
    if not was and not now:
        return b""
    word = ("MODIFIED" if was else "ADDED") if now else "DELETED"
    obj = after if now else before
    assert obj is not None
    versioned = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
    return json.dumps({"type": word, "object": versioned}).encode()


# --- jobs ----------------------------------------------------------------------------------------


def job(name: str, replicas: int, cpus: str, **more: Any) -> Raw:
    """Return an admitted job. With `is_spread`, its pods prefer different nodes."""
    requests = {"cpu": cpus, "memory": "64Mi"}
    pod: Raw = {
        "restartPolicy": "Never",
        "schedulerName": "volcano",
        "containers": [
            {
                "name": "main",
                "image": "registry.example.org/team/image:1.0",
                "command": ["python", "train.py", "--run", name],
                "resources": {"requests": requests, "limits": requests},
            }
        ],
        **more.pop("pod", {}),
    }
    if more.pop("is_spread", False):
        term = {
            "labelSelector": {"matchLabels": {"volcano.sh/job-name": name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        preferred = {"weight": 100, "podAffinityTerm": term}
        pod["affinity"] = {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
        }
    template = {"metadata": {"annotations": more.pop("annotations", {})}, "spec": pod}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": replicas,
            "queue": "default",
            "maxRetry": 3,
            "tasks": [{"name": "work", "replicas": replicas, "template": template}],
            **more,
        },
    }


class Drive:
    """A driver that runs rounds of jobs on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = 0
        self.num_pods = 0

    def prepare(self) -> None:
        """Create nodes, queues and a PriorityClass."""
        put = self._cluster.put
        for index in range(8):
            put(NODE, _ready(node_manifest(f"n{index}", cpu="64", memory="256Gi")))
        small = node_manifest("small", cpu="1", labels={"size": "small"})
        put(NODE, _ready(small))
        for name in ("default", "root"):
            head = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind}
            state = {"status": {"state": "Open"}}
            put(QUEUE, {**head, "metadata": {"name": name}, "spec": {"weight": 1}, **state})
        head = {"apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.kind}
        put(PRIORITY_CLASS, {**head, "metadata": {"name": "urgent"}, "value": 1000})

    async def play(self) -> None:
        """Run one round of jobs, and delete the jobs."""
        cluster, first = self._cluster, self._number
        self._number += ROUND
        here = {"nodeSelector": {"size": "small"}}
        low = job(f"low-{first}", 1, "1", pod=here, annotations={"forever": ""})
        cluster.put(JOB, low)
        await self._until(lambda: self._num_bound(f"low-{first}") == 1, "a pod is bound")
        names = [f"job-{first + index}" for index in range(ROUND)]
        for index, name in enumerate(names):
            cluster.put(JOB, job(name, SIZE, "1", is_spread=bool(index % 2)))
        urgent = {**here, "priorityClassName": "urgent", "priority": 1000}
        cluster.put(JOB, job(f"urgent-{first}", 1, "1", pod=urgent, priorityClassName="urgent"))
        stuck = [f"stuck-{first + index}" for index in range(NUM_STUCK)]
        for name in stuck:
            cluster.put(JOB, job(name, 1, "1000"))
        wanted = (*names, f"urgent-{first}")
        await self._until(lambda: all(map(self._is_done, wanted)), "jobs are done")
        self.num_pods += ROUND * SIZE + 1
        for name in (*wanted, *stuck, f"low-{first}"):
            cluster.drop(Ref(JOB, "team", name))
        kinds = (POD, POD_GROUP)
        await self._until(
            lambda: not any(cluster.objects[k] for k in kinds), "all objects are deleted"
        )

    def _summary(self) -> str:
        """Return a text with the incomplete jobs and their pods."""
        objects = self._cluster.objects
        lines = []
        for (_, name), found in objects[JOB].items():
            if not self._is_done(name):
                lines.append(f"job {name}: {found.get('status', {}).get('state')}")
                lines += [
                    f"  {key[1]}: {pod['spec'].get('nodeName')} {pod['status'].get('phase')}"
                    for key, pod in self._of(objects[POD], name)
                ]
        return "\n".join(lines)

    def _num_bound(self, name: str) -> int:
        pods = self._cluster.objects[POD]
        return sum(1 for _, pod in self._of(pods, name) if pod["spec"].get("nodeName"))

    def _is_done(self, name: str) -> bool:
        found = self._cluster.objects[JOB][("team", name)]
        return bool(found.get("status", {}).get("state", {}).get("phase") == "Completed")

    def _of(
        self, objects: Mapping[tuple[str, str], Raw], name: str
    ) -> list[tuple[tuple[str, str], Raw]]:
        return [
            (key, obj)
            for key, obj in objects.items()
            if any(o["name"] == name for o in obj["metadata"].get("ownerReferences", ()))
        ]

    async def _until(self, probe: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + END_S
        while not probe():
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {END_S:g} s: {what}\n{self._summary()}")
            await asyncio.sleep(LOOK_S)
            self._cluster.live()


def _ready(node: Raw) -> Raw:
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return node


# --- measuring -----------------------------------------------------------------------------------


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return the containers that have grown by more than 8 entries, the largest growth first."""
    both = [(path, before.get(path, 0), size) for path, size in after.items()]
    grown = [each for each in both if each[2] > each[1] + 8]
    return sorted(grown, key=lambda each: each[1] - each[2])


class Processes:
    """All parts of a scheduler and of the controllers except HTTP."""

    def __init__(self, cluster: Cluster, folder: Path, model: str) -> None:
        """Build both processes.

        `model` is a built-in model, or empty for a policy without a solver.
        """
        policy = folder / "policy.conf"
        policy.write_text(POLICY)
        watch = PolicyWatch(
            model or str(policy), Path.read_text, PluginSource(folder, lambda _: ())
        )
        pods = DecodeOptions(loners=BarePodRules.WAIT)
        settings = scheduler_process.Settings(watch, pods=pods, period_s=0.05, dump_dir=folder)
        client: Any = cluster
        self._scheduler = scheduler_process.SchedulerProcess(settings, client)
        chosen = all_controllers(Options(JobOptions(lambda: KEYS)))
        self._controllers = controllers_process.ControllerProcess(
            controllers_process.Settings(chosen), client
        )

    async def run(self) -> None:
        """Run scheduler and controllers until `stop`."""
        await asyncio.gather(self._scheduler.run(), self._controllers.run())

    def stop(self) -> None:
        """Stop scheduler and controllers."""
        self._scheduler.scheduler.stop()
        self._controllers.manager.stop()

    def scrape(self) -> None:
        """Read the metrics of both processes, like Prometheus."""
        self._scheduler.metrics.exposition()
        self._controllers.metrics.exposition()

    def sizes(self) -> dict[str, int]:
        """Return the number of entries of each container of both processes."""
        return container_sizes(self._scheduler) | container_sizes(self._controllers)


@dataclass(frozen=True)
class Mark:
    """The resident memory and the container sizes after a number of pod lifecycles."""

    num_pods: int
    rss_mib: float
    sizes: Mapping[str, int]
    trace: tracemalloc.Snapshot | None


async def _play(count: int, folder: Path, model: str, *, is_traced: bool) -> bool:
    """Run `count` pod lifecycles, and return whether memory stays flat."""
    cluster = Cluster()
    drive, processes = Drive(cluster), Processes(cluster, folder, model)
    drive.prepare()
    running = asyncio.create_task(processes.run())
    if is_traced:
        tracemalloc.start(1)
    # A traced run is short, so buffers of fixed size are full only after half of the run.
    begins = 5 if is_traced else 1

    marks: list[Mark] = []
    for tenth in range(1, 11):
        while drive.num_pods < tenth * count / 10:
            await drive.play()
            processes.scrape()
        rss_mib = resident_mib()
        print(
            f"{drive.num_pods:>7} pods {rss_mib:7.1f} MiB, {cluster.num_evicted} "
            f"evictions, {time.process_time():.0f} s of CPU",
            flush=True,
        )
        if tenth in (begins, 10):
            trace = tracemalloc.take_snapshot() if is_traced else None
            marks.append(Mark(drive.num_pods, rss_mib, processes.sizes(), trace))
    processes.stop()
    await running
    return _compare(*marks)


def _compare(first: Mark, last: Mark) -> bool:
    """Print the growth between two marks, and return whether resident memory stays flat."""
    for path, old, new in growth(first.sizes, last.sizes)[:20]:
        print(f"  {path}: {old} -> {new} entries")
    if first.trace is not None and last.trace is not None:
        for line in last.trace.compare_to(first.trace, "lineno")[:25]:
            print(f"  {line}")
    grown = last.rss_mib / first.rss_mib - 1
    each = (last.rss_mib - first.rss_mib) * 1000 / max(1, last.num_pods - first.num_pods)
    print(f"{grown:+.1%} since {first.num_pods} pods: {each:+.3f} MiB per 1 000 pods")
    return grown <= MOST_GROWTH


def main() -> int:
    """Run the benchmark, and return 1 if memory has grown."""
    parser = argparse.ArgumentParser(prog="python -m bench.lifecycles", description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="number of pods")
    parser.add_argument("--model", default="", help="such as volcano-default; default: no solver")
    parser.add_argument("--trace", action="store_true", help="list the lines that allocate; slow")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, filename=os.devnull)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = _play(options.count, folder, options.model, is_traced=options.trace)
        is_flat = asyncio.run(played)
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
