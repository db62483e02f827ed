"""Measure the time until gangs are bound again after kills, restarts and silent watches.

Run `make bench-recovery`. A real API server with KWOK nodes runs `optsched scheduler` with its
default settings: leases of 15 s, sessions of 1 s. Each try causes a fault and then creates a new
gang. The try ends when all pods of the gang are bound, each once and within the capacity of its
node. Times are wall time, and the load of the machine is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from optsched.local.assets import require, shipped
from optsched.local.components import API_SERVER, Options
from optsched.local.plane import ControlPlane
from tests.support.api import Api, until
from tests.support.live import Scheduler, Site
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import aiohttp
    from aiohttp import web

SIZE: Final = 4
"""The number of pods per gang."""

CPUS, NUM_NODES = 32, 4
MOST_S: Final = 120.0
AWAY_S: Final = 5.0
"""The time for which the API server is down, in addition to its start time."""

LEASE: Final = "recovery"
WATCHED: Final = ("pods", "podgroups")


@dataclass(slots=True)
class Recovery:
    """A fault with its description, the target of the median time to bind, and the measured times.

    `warnings` are the numbers of warnings and errors in the log of the surviving process, by try.
    `cpu_s` are the CPU seconds of a new process until the gang is bound, by try. The start of a
    process takes these CPU seconds on an idle machine too.
    """

    what: str
    most_s: float
    seconds: list[float] = field(default_factory=list)
    warnings: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def p50_s(self) -> float:
        """The median seconds of the tries."""
        return statistics.median(self.seconds)

    def row(self) -> str:
        """Return the row of this fault in the table."""
        shown = ", ".join(f"{each:.1f}" for each in sorted(self.seconds))
        warnings = str(max(self.warnings)) if self.warnings else ""
        cpu = f"{statistics.median(self.cpu_s):.1f} s" if self.cpu_s else ""
        verdict = "" if self.p50_s <= self.most_s else " too late"
        return (
            f"| {self.what} | {self.p50_s:.1f} s{verdict} | {self.most_s:g} s | {shown} "
            f"| {cpu} | {warnings} |"
        )


class Deaf(Proxy):
    """A proxy that can silence open watches, so that it neither sends data nor closes them."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        super().__init__(kubeconfig, folder)
        self._deaf: set[int] = set()

    def silence(self) -> None:
        """Silence all watches that are open now."""
        self._do(self._silence())

    async def _silence(self) -> None:
        self._deaf |= {id(watching.answer) for watching in self._watching}

    async def _copy(
        self, path: str, answer: aiohttp.ClientResponse, out: web.StreamResponse
    ) -> None:
        del path
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if lines and id(out) not in self._deaf:
                await out.write(b"\n".join(lines) + b"\n")
        # The server has ended the watch, but a dead connection would not transmit its end either.
        while id(out) in self._deaf:
            await asyncio.sleep(1.0)


class Stage:
    """A control plane on which numbered gangs are created in one namespace."""

    def __init__(self, plane: ControlPlane, site: Site) -> None:
        self.plane = plane
        self.site = site
        self._number = 0

    def bind(self, began_s: float) -> float:
        """Create a gang, wait until it is bound, complete it, and return the seconds since
        `began_s`.
        """
        self._number += 1
        name = f"gang-{self._number}"
        self.site.gang(name, SIZE)
        self.site.await_bound(name, SIZE, MOST_S)
        seconds = time.monotonic() - began_s
        self.site.story.assert_bound_once()
        self.site.story.assert_within(self.site.cpus)
        self.site.complete(name)
        return seconds

    def candidate(self, **more: Path) -> Scheduler:
        """Start a scheduler with leader election, and with other settings at their default."""
        election = ("--leader-elect", "--lock-namespace", self.site.name, "--lock-name", LEASE)
        return self.site.scheduler("--schedule-period", "1s", *election, **more).begun()


def leader_of(schedulers: list[Scheduler]) -> Scheduler:
    """Wait until one of the schedulers leads, and return it."""

    def leading() -> list[Scheduler]:
        return [each for each in schedulers if each.metric("optsched_leading") == 1]

    return until(leading, "one leads", MOST_S)[0]


def cpu_seconds(scheduler: Scheduler) -> float:
    """Return the CPU seconds of the process so far, without the solver process."""
    fields = Path(f"/proc/{scheduler.process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def warnings_of(scheduler: Scheduler) -> int:
    """Return the number of warnings and errors in the scheduler's log."""
    return sum(" WARNING " in line or " ERROR " in line for line in scheduler.log.splitlines())


# --- faults ---------------------------------------------------------------------------------------


def kill_leaders(stage: Stage, tries: int) -> Recovery:
    """Kill (-9) the leader of two schedulers."""
    found = Recovery("kill -9 of the leader of two, the other one takes over", 20)
    running = [stage.candidate(), stage.candidate()]
    stage.bind(time.monotonic())
    for _ in range(tries):
        leader = leader_of(running)
        running.remove(leader)
        before = warnings_of(running[0])
        leader.kill()
        found.seconds.append(stage.bind(time.monotonic()))
        found.warnings.append(warnings_of(running[0]) - before)
        running.append(stage.candidate())
    for each in running:
        each.stop()
    return found


def restart_container(stage: Stage, tries: int) -> Recovery:
    """Kill (-9) the only scheduler, and restart its container in the same pod."""
    found = Recovery("kill -9 of the only one, its container starts again", 5)
    os.environ["POD_UID"] = f"uid-{stage.site.name}"
    scheduler = stage.candidate()
    stage.bind(time.monotonic())
    for _ in range(tries):
        scheduler.kill()
        began_s = time.monotonic()
        election = ("--leader-elect", "--lock-namespace", stage.site.name, "--lock-name", LEASE)
        scheduler = stage.site.spawn("--schedule-period", "1s", *election)
        found.seconds.append(stage.bind(began_s))
        found.cpu_s.append(cpu_seconds(scheduler))
        found.warnings.append(warnings_of(scheduler))
        scheduler.begun()
    scheduler.stop()
    del os.environ["POD_UID"]
    return found


def restart_server(stage: Stage, tries: int) -> Recovery:
    """Kill the API server and restart it, and measure from its readiness."""
    found = Recovery("restart of the API server, from when it is ready", 10)
    scheduler = stage.candidate()
    stage.bind(time.monotonic())
    for _ in range(tries):
        before = warnings_of(scheduler)
        stage.plane.kill(API_SERVER)
        stage.site.api.close()
        time.sleep(AWAY_S)
        stage.plane.start_component(API_SERVER)
        found.seconds.append(stage.bind(time.monotonic()))
        found.warnings.append(warnings_of(scheduler) - before)
    scheduler.stop()
    return found


def silence_watches(stage: Stage, tries: int) -> Recovery:
    """Make all open watches silent without closing them."""
    found = Recovery("all watches go silent, until they are noticed", 30)
    with tempfile.TemporaryDirectory() as folder:
        door = stage.site.keep(Deaf(stage.site.kubeconfig, Path(folder)))
        scheduler = stage.candidate(kubeconfig=door.kubeconfig)
        stage.bind(time.monotonic())
        for _ in range(tries):
            for plural in WATCHED:
                door.await_watch(plural)
            before = warnings_of(scheduler)
            door.silence()
            found.seconds.append(stage.bind(time.monotonic()))
            found.warnings.append(warnings_of(scheduler) - before)
        scheduler.stop()
    return found


FAULTS: Final[dict[str, Callable[[Stage, int], Recovery]]] = {
    "leader": kill_leaders,
    "container": restart_container,
    "server": restart_server,
    "watches": silence_watches,
}


def measure(plane: ControlPlane, names: list[str], tries: int) -> Iterator[Recovery]:
    """Cause the named faults sequentially, and yield the recovery from each."""
    for name in names:
        api = Api(plane.kubeconfig)
        with (
            tempfile.TemporaryDirectory() as folder,
            Site(f"recovery-{name}", api, plane.kubeconfig, Path(folder)) as site,
        ):
            site.nodes(NUM_NODES, cpus=CPUS, memory="256Gi")
            yield FAULTS[name](Stage(plane, site), tries)
        api.close()


def main() -> int:
    """Measure on a new control plane, and return 1 if a median misses its target."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--tries", type=int, default=5, help="tries per kind of fault")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), help="kinds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="optsched-") as directory:
        plane = ControlPlane.start(
            Path(directory) / "plane",
            require(print),
            Options(definitions=shipped("crds")),
            on_progress=print,
        )
        print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}; {os.cpu_count()} CPUs")
        print("| fault | bound at p50 | goal | seconds of each try | CPU | warnings at most |")
        print("|---|---|---|---|---|---|", flush=True)
        is_good = True
        with plane:
            for found in measure(plane, options.only, options.tries):
                print(found.row(), flush=True)
                is_good = is_good and found.p50_s <= found.most_s
        print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
