"""How soon gangs are bound again after a fault: kills, restarts, silent watches.

`make bench-recovery`. Real API server, KWOK nodes, `optsched scheduler` with its own defaults:
leases of 15 s, sessions of 1 s. Each try brings about a fault, then creates a gang that was not
there before, and ends when the API server has all its pods bound, each once and within the
capacity of its node. Times are wall time: the load of the machine is printed, too.
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

from optsched.local.assets import require
from optsched.local.components import API_SERVER, Options
from optsched.local.files import shipped
from optsched.local.plane import ControlPlane
from tests.support.api import Api, until
from tests.support.live import Scheduler, Site
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import aiohttp
    from aiohttp import web

SIZE: Final = 4
"""Pods of a gang."""

CPUS, NUM_NODES = 32, 4
MOST_S: Final = 120.0
AWAY_S: Final = 5.0
"""How long the API server is away, beside the time that it takes to start."""

LEASE: Final = "recovery"
WATCHED: Final = ("pods", "podgroups")


@dataclass(slots=True)
class Recovery:
    """A fault: what happens, how soon a gang has to be bound at p50, and how soon each one was.

    warnings: lines of that level in the log of the process that lives through the fault, each try.
    cpu_s: CPU that a new process has had when the gang was bound: what no machine does without.
    """

    what: str
    most_s: float
    seconds: list[float] = field(default_factory=list)
    warnings: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def p50_s(self) -> float:
        """The median; no number without tries."""
        return statistics.median(self.seconds)

    def row(self) -> str:
        """A line of the table."""
        shown = ", ".join(f"{each:.1f}" for each in sorted(self.seconds))
        warnings = str(max(self.warnings)) if self.warnings else ""
        cpu = f"{statistics.median(self.cpu_s):.1f} s" if self.cpu_s else ""
        verdict = "" if self.p50_s <= self.most_s else " too late"
        return (
            f"| {self.what} | {self.p50_s:.1f} s{verdict} | {self.most_s:g} s | {shown} "
            f"| {cpu} | {warnings} |"
        )


class Deaf(Proxy):
    """A door through which watches that are open go silent: nothing is sent, nothing is closed."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        super().__init__(kubeconfig, folder)
        self._deaf: set[int] = set()

    def silence(self) -> None:
        """Have all watches say nothing that are open now."""
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
        # The server has ended the watch; through a dead connection nobody hears of that either.
        while id(out) in self._deaf:
            await asyncio.sleep(1.0)


class Stage:
    """One plane and one part of it; gangs with numbers."""

    def __init__(self, plane: ControlPlane, site: Site) -> None:
        self.plane = plane
        self.site = site
        self._number = 0

    def bind(self, began_s: float) -> float:
        """Create a gang and wait until it is bound, then have it end; seconds since a time."""
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
        """One of several schedulers, with everything else as it is by default."""
        election = ("--leader-elect", "--lock-namespace", self.site.name, "--lock-name", LEASE)
        return self.site.scheduler("--schedule-period", "1s", *election, **more).begun()


def leader_of(schedulers: list[Scheduler]) -> Scheduler:
    """The one that leads, once one does."""

    def leading() -> list[Scheduler]:
        return [each for each in schedulers if each.metric("optsched_leading") == 1]

    return until(leading, "one leads", MOST_S)[0]


def cpu_seconds(scheduler: Scheduler) -> float:
    """CPU time of the process so far, without that of its solver."""
    fields = Path(f"/proc/{scheduler.process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def warnings_of(scheduler: Scheduler) -> int:
    """How many warnings and errors its log has."""
    return sum(" WARNING " in line or " ERROR " in line for line in scheduler.log.splitlines())


# --- faults ---------------------------------------------------------------------------------------


def kill_leaders(stage: Stage, tries: int) -> Recovery:
    """Kill -9 the leader of two."""
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
    """Kill -9 the only one; its container is started again in its pod."""
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
    """Kill the API server and start it again; time counts from when it is ready."""
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
    """All watches that are open say nothing more, and are not closed."""
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
    """Bring about faults, one kind after the other."""
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
    """Measure on a plane of its own; 1 if a median is too late."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--tries", type=int, default=5, help="of each kind of fault")
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
