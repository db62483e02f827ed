"""Measure the memory of scheduler and controllers over pod lifecycles on a real API server.

Run `make soak COUNT=5000`. Jobs arrive in waves. Each pod is created, bound, runs and succeeds.
Then its job is deleted. The resident memory of each process after the first tenth and at the end
must not differ by more than 10 %. `make bench-lifecycles` measures the same over 50 000 pods
without HTTP.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from optsched.local.assets import require, shipped
from optsched.local.components import Options
from optsched.local.plane import ControlPlane
from tests.support.api import Api, until
from tests.support.live import BATCH, Site

if TYPE_CHECKING:
    from tests.support.live import Process

SIZE: Final = 8
"""The number of pods per job."""

WAVE: Final = 25
"""The number of jobs per wave."""

MOST_GROWTH: Final = 0.10
END_S: Final = 300.0


def resident_mib(process: Process) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def job(name: str) -> dict[str, Any]:
    """Return a job whose pods succeed 0.1 s after their start."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    pod = {
        "metadata": {"annotations": {"optsched.io/run-seconds": "0.1"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": BATCH,
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "minAvailable": SIZE,
            "queue": "default",
            "tasks": [{"name": "work", "replicas": SIZE, "template": pod}],
        },
    }


def play(site: Site, names: list[str]) -> None:
    """Submit jobs, wait until they are completed, and delete them with their pods."""
    path = f"/apis/{BATCH}/namespaces/{site.name}/jobs"
    for name in names:
        body = job(name)
        site.suit(body)
        site.api.post(path, body)

    def are_done() -> bool:
        phases = [j.get("status", {}).get("state", {}).get("phase") for j in site.api.items(path)]
        return phases.count("Completed") == len(names)

    until(are_done, "all jobs are completed", END_S)
    site.api.delete(path, propagationPolicy="Background")
    pods = f"/api/v1/namespaces/{site.name}/pods"
    until(lambda: not site.api.items(pods), "all pods are gone", END_S)


def measure(site: Site, count: int) -> bool:
    """Run `count` lifecycles, print memory each tenth, and return whether memory stays flat."""
    processes = {"scheduler": site.scheduler(), "controllers": site.controllers()}
    begun_s, number = time.monotonic(), 0
    first: dict[str, float] = {}
    now: dict[str, float] = {}
    for tenth in range(1, 11):
        while number * SIZE < tenth * count / 10:
            play(site, [f"job-{number + index}" for index in range(WAVE)])
            number += WAVE
        now = {name: resident_mib(process) for name, process in processes.items()}
        first = first or now
        sizes = ", ".join(f"{name} {mib:.1f} MiB" for name, mib in now.items())
        print(f"{number * SIZE:>7} pods: {sizes}, {time.monotonic() - begun_s:.0f} s", flush=True)
    for name, mib in now.items():
        print(f"{name}: {mib / first[name] - 1:+.1%} since the first tenth")
    return all(mib <= first[name] * (1 + MOST_GROWTH) for name, mib in now.items())


def main() -> int:
    """Run on a new control plane, and return 1 if memory has grown."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="number of pods")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="optsched-") as directory:
        folder = Path(directory)
        options = Options(definitions=shipped("crds"))
        with ControlPlane.start(folder / "plane", require(print), options) as plane:
            api = Api(plane.kubeconfig)
            with Site("soak", api, plane.kubeconfig, folder) as site:
                site.nodes(4, cpus=32, memory="256Gi")
                is_flat = measure(site, count)
            api.close()
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
