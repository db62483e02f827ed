"""Measure the API requests of scheduler and controllers per bound pod, and the delay of events.

Run `make bench-requests`. Jobs arrive at a steady rate on a real API server with KWOK nodes. Each
pod runs for a few seconds and succeeds. The API server's audit log attributes requests to
processes. Every request counts: binds, pods, statuses, events, leases. Lists and watches are shown
separately. The delay of an event ends when the API server has stored the event. It begins at the
bind, or at the timestamp of the event. Event timestamps have whole seconds, so events that are not
timed from the bind seem up to a second later.

`--show` prints the bodies of patches and events, most frequent first, as fields without values.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from optsched.local.assets import require
from optsched.local.plane import ControlPlane
from tests.support.api import Api, until
from tests.support.audit import READS, Audit, Measured, audited, read_audit
from tests.support.live import BATCH, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

Raw = dict[str, Any]

PROCESSES: Final = ("scheduler", "controllers")
RULES: Final = (*({"level": "Request", "users": [name]} for name in PROCESSES), {"level": "None"})
QUIET_S: Final = 6.0
"""The quiet time before counting ends, because statuses and events are sent within 5 s."""

END_S: Final = 300.0
CPUS, NUM_NODES = 32, 4


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs of equal pods that arrive at a steady rate. A job needs all its pods.

    Attributes
    ----------
    size
        The number of pods per job.
    pods_per_s, seconds
        The arrival rate of pods, and the duration of the arrivals.
    run_s
        The duration of each pod.

    """

    size: int
    pods_per_s: float
    seconds: float
    run_s: float

    @property
    def num_jobs(self) -> int:
        """The number of jobs."""
        return max(1, round(self.pods_per_s * self.seconds / self.size))

    def job(self, number: int) -> Raw:
        """Return the manifest of the job with this number."""
        requests = {"cpu": "1", "memory": "64Mi"}
        pod = {
            "metadata": {"annotations": {"optsched.io/run-seconds": str(self.run_s)}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": requests}}
                ],
            },
        }
        task = {"name": "work", "replicas": self.size, "template": pod}
        return {
            "apiVersion": BATCH,
            "kind": "Job",
            "metadata": {"name": f"job-{number:04d}"},
            "spec": {"minAvailable": self.size, "queue": "default", "tasks": [task]},
        }


def play(site: Site, work: Workload, audit: Audit) -> Measured:
    """Submit the jobs, wait until all have ended and requests cease, and return the counts."""
    path = f"/apis/{BATCH}/namespaces/{site.name}/jobs"
    audit.read()
    begun_s = time.monotonic()
    for number in range(work.num_jobs):
        due_s = begun_s + number * work.size / work.pods_per_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        body = work.job(number)
        site.suit(body)
        site.api.post(path, body)

    def has_ended() -> bool:
        states = [job.get("status", {}).get("state", {}) for job in site.api.items(path)]
        return [state.get("phase") for state in states] == ["Completed"] * work.num_jobs

    until(has_ended, "all jobs have ended", END_S)
    time.sleep(QUIET_S)
    return read_audit(audit.read())


def table(measured: Measured, process: str) -> list[str]:
    """Return lines on one process, the most frequent requests first, lists and watches last."""
    counts = measured.requests[process]
    lines = [f"  {process}: {measured.per_pod(process):.2f} requests per bound pod"]
    for key, number in sorted(counts.items(), key=lambda e: (e[0].split()[0] in READS, -e[1])):
        lines.append(f"    {key:44} {number:6} {number / max(1, measured.num_pods):8.3f}")
    for (who, reason), delays_s in sorted(measured.delays_s.items()):
        if who == process:
            p99 = sorted(delays_s)[int(0.99 * (len(delays_s) - 1))]
            lines.append(
                f"    event {reason:30} {len(delays_s):6}   delay p50 "
                f"{statistics.median(delays_s):5.2f} s, p99 {p99:5.2f} s"
            )
    return lines


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.requests", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16], help="pods of a job")
    parser.add_argument("--rate", type=float, default=10.0, help="pods a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long jobs arrive")
    parser.add_argument("--run", type=float, default=5.0, help="how long a pod runs, in seconds")
    parser.add_argument("--nodes", type=int, default=NUM_NODES, help=f"nodes of {CPUS} CPUs")
    parser.add_argument(
        "--scheduled-events", choices=("pods", "gangs"), default="pods", help="scheduler option"
    )
    parser.add_argument("--show", action="store_true", help="print the fields of request bodies")
    return parser.parse_args()


def clear(site: Site) -> None:
    """Delete jobs and pods one by one, because one request for all would time out."""
    paths = (f"/apis/{BATCH}/namespaces/{site.name}/jobs", f"/api/v1/namespaces/{site.name}/pods")
    for path in paths:
        for item in site.api.items(path):
            site.api.delete(f"{path}/{item['metadata']['name']}")


def measure(
    plane: ControlPlane, works: Sequence[Workload], audit: Audit, options: argparse.Namespace
) -> None:
    """Run workloads sequentially, each with new processes, and print the counts."""
    users = {name: plane.kubeconfig_for(name, ["system:masters"]) for name in PROCESSES}
    flags = ("--schedule-period", "1s", "--scheduled-events", options.scheduled_events)
    for number, work in enumerate(works):
        api = Api(plane.kubeconfig)
        with (
            tempfile.TemporaryDirectory() as folder,
            # A site prints the logs of its processes, so standard output is redirected to a file.
            (Path(folder) / "logs").open("w") as logs,
            redirect_stdout(logs),
            Site(f"requests-{number}", api, plane.kubeconfig, Path(folder)) as site,
        ):
            site.nodes(options.nodes, cpus=CPUS, memory="256Gi")
            lock = ("--leader-elect", "--lock-namespace", site.name)
            site.scheduler(*flags, *lock, kubeconfig=users["scheduler"]).begun()
            site.controllers(*lock, kubeconfig=users["controllers"])
            report(work, play(site, work, audit), options)
            clear(site)
        api.close()


def report(work: Workload, measured: Measured, options: argparse.Namespace) -> None:
    """Print the request counts of a workload."""
    lines = [
        f"{work.num_jobs} jobs of {work.size} pods, {work.pods_per_s:g} pods/s, each runs "
        f"{work.run_s:g} s, {options.nodes} nodes of {CPUS} CPUs: {measured.num_pods} binds"
    ]
    for process in PROCESSES:
        lines += table(measured, process)
        if options.show:
            shapes = measured.shapes[process].most_common()
            lines += [f"      {times:6} {key}" for key, times in shapes]
    print("\n".join(lines), file=sys.__stdout__, flush=True)


def main() -> None:
    """Measure all workloads on a new control plane."""
    options = _parsed()
    works = [Workload(size, options.rate, options.seconds, options.run) for size in options.sizes]
    with tempfile.TemporaryDirectory(prefix="optsched-") as directory:
        folder = Path(directory)
        start, audit = audited(folder, RULES)
        with ControlPlane.start(folder / "plane", require(print), start) as plane:
            measure(plane, works, audit, options)


if __name__ == "__main__":
    main()
