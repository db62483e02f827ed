"""`optsched demo`: the gang experiment on a local control plane, or on an emulated cluster."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from optsched.cli.base.connection import Exit
from optsched.cli.base.console import PlainConsole, print_text, stderr
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.local.assets import AssetsError, require, shipped
from optsched.local.components import Options
from optsched.local.kubectl import manifest_list, node_manifest
from optsched.local.plane import ControlPlane
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext
from optsched.solver.cpsat.process import InProcess
from optsched.study.emulation import (
    COMPLETE_ANNOTATION,
    NAMESPACE,
    SCHEDULER,
    TASKS,
    EmulatedCluster,
    Progress,
    Stage,
    play,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

JOBS = (1, 2, 5)
_NOT_AS_EXPECTED: Final = (
    "unexpected result: with gangs, every job should finish; without, several should deadlock"
)
RUN_SECONDS = 3.0
QUIET_SECONDS = 3.0
NODES = [node_manifest(f"node-{i}", cpu="4", memory="16Gi") for i in range(4)]
NUM_CPUS = sum(int(node["status"]["allocatable"]["cpu"]) for node in NODES)


@click.command()
@click.option("--emulated", is_flag=True, help="Always use the emulated cluster.")
def demo(*, emulated: bool) -> None:
    """Run the gang experiment: 1, 2 and 5 jobs of 6 tasks on 4 nodes with 4 CPUs.

    The exit code is 0 if all jobs with gangs finish and several jobs without gangs deadlock, and
    otherwise 1.
    """
    console = PlainConsole()
    with _open_stage(console, emulated=emulated) as stage:
        results = [
            (n, least, _play_round(console, stage, n, least)) for n in JOBS for least in (TASKS, 1)
        ]
    table = Table(title="jobs finished", title_justify="left", box=None, pad_edge=False)
    for heading in ("", *(f"{n} job{'s' if n > 1 else ''}" for n in JOBS)):
        table.add_column(heading, justify="right")
    for least, name in ((TASKS, "with gangs"), (1, "without gangs")):
        cells = [
            f"{len(last.finished_at)} of {len(last.jobs)}"
            + (", deadlock" if last.is_stuck else f" in {last.seconds:.0f} s")
            for _, at_least, last in results
            if at_least == least
        ]
        table.add_row(name, *cells)
    console.print()
    console.print(table)
    if not all(_as_expected(least, last) for _, least, last in results):
        print_text(stderr(), _NOT_AS_EXPECTED, "red")
        sys.exit(Exit.FAILED)


def _as_expected(least: int, last: Progress) -> bool:
    """Return whether all jobs finished or, if there are several without gangs, deadlocked."""
    finished = len(last.finished_at) == len(last.jobs)
    return finished if least == TASKS or len(last.jobs) == 1 else last.is_stuck


def _play_round(console: Console, stage: Stage, num_jobs: int, least: int) -> Progress:
    kind = "with gangs" if least == TASKS else "without gangs"
    title = f"{num_jobs} job{'s' if num_jobs > 1 else ''} {kind} (minMember {least})"
    with Live(console=console, refresh_per_second=8) as live:
        for progress in play(stage, num_jobs, least, NUM_CPUS, RUN_SECONDS, QUIET_SECONDS):
            table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=48)
            table.add_column("job", min_width=8)
            table.add_column("tasks running", justify="right")
            table.add_column("")
            for job, state in progress.jobs.items():
                done = progress.finished_at.get(job)
                running = 0 if done is not None else state.running
                bar = "█" * running + "░" * (TASKS - running)
                note = f"done after {done:.1f} s" if done is not None else bar
                table.add_row(job, "" if done is not None else f"{running} of {TASKS}", note)
            footer = Text(f"{progress.seconds:.1f} s", style="dim")
            if progress.is_stuck:
                footer = Text(progress.deadlock(NUM_CPUS), style="red")
            live.update(Group(table, footer))
    console.print()
    return progress


# --- clusters ------------------------------------------------------------------------------------


@contextmanager
def _open_stage(console: Console, *, emulated: bool) -> Iterator[Stage]:
    if emulated:
        yield _Emulated()
        return
    try:
        with console.status("looking for the control plane's binaries") as status:
            assets = require(lambda message: status.update(message))
    except AssetsError as e:
        console.print(f"{e}\nusing the emulated cluster instead", style="yellow")
        yield _Emulated()
        return
    with tempfile.TemporaryDirectory(prefix="optsched-") as directory:
        with console.status("starting etcd, kube-apiserver, kube-controller-manager and KWOK"):
            options = Options(definitions=shipped("crds"))
            plane = ControlPlane.start(Path(directory), assets, options)
        with plane:
            version = plane.kubectl.json("version")["serverVersion"]["gitVersion"]
            console.print(f"Kubernetes {version} on {plane.server}")
            with _Real(plane) as stage:
                yield stage


class _Real:
    """A local control plane with KWOK nodes and `optsched scheduler`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._scheduler: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Real:
        kubectl = self._plane.kubectl
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        kubectl.apply(manifest_list([namespace, *NODES]))
        command = [sys.executable, "-m", "optsched.cli.main", "scheduler"]
        options = ["--kubeconfig", str(self._plane.kubeconfig), "--scheduler-name", SCHEDULER]
        options += ["--schedule-period", "200ms", "--no-leader-elect"]
        options += ["--listen-address", "127.0.0.1:0"]
        self._scheduler = subprocess.Popen(  # noqa: S603  the command runs a module of optsched
            [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._scheduler is not None:
            self._scheduler.terminate()
            self._scheduler.wait()

    def apply(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        self._plane.kubectl.apply(manifest_list(manifests))

    def pods(self) -> Iterable[Mapping[str, Any]]:
        found = self._plane.kubectl.json("get", "pods", "-n", NAMESPACE)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def complete(self, names: Sequence[str]) -> None:
        mark = f"{COMPLETE_ANNOTATION}=true"
        self._plane.kubectl("annotate", "pods", "-n", NAMESPACE, "--overwrite", *names, mark)

    def clear(self) -> None:
        kinds = "pods,podgroups.scheduling.volcano.sh"
        self._plane.kubectl("delete", kinds, "-n", NAMESPACE, "--all", "--wait=true")

    def advance(self) -> float:
        if self._scheduler is not None and self._scheduler.poll() is not None:
            raise click.ClickException(f"the scheduler ended with {self._scheduler.returncode}")
        time.sleep(0.2)
        return time.monotonic()


class _Emulated:
    """An emulated cluster in virtual time."""

    def __init__(self) -> None:
        policy = load_policy("volcano-default", lambda path: path.read_text())
        options = DecodeOptions((SCHEDULER,))
        self._cluster = EmulatedCluster(policy, SessionContext(solver=InProcess()), options)
        self._cluster.apply(NODES)

    def apply(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        self._cluster.apply(manifests)

    def pods(self) -> Iterable[Mapping[str, Any]]:
        return list(self._cluster.objects("Pod"))

    def complete(self, names: Sequence[str]) -> None:
        for name in names:
            self._cluster.annotate("Pod", f"{NAMESPACE}/{name}", {COMPLETE_ANNOTATION: "true"})

    def clear(self) -> None:
        for kind in ("Pod", "PodGroup"):
            for obj in list(self._cluster.objects(kind)):
                self._cluster.delete(kind, f"{NAMESPACE}/{obj['metadata']['name']}")

    def advance(self) -> float:
        time.sleep(0.02)  # the user can follow the progress at this speed
        self._cluster.advance(500)
        return self._cluster.now_ms / 1000
