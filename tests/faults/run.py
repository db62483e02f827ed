"""One run: processes behind doors, gangs that come, faults as scheduled, and what must hold."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import QUEUE, object_path
from optsched.local.components import API_SERVER, ETCD
from tests.faults.door import Door
from tests.faults.invariants import (
    Closed,
    find_false_statuses,
    find_losses,
    find_violations,
)
from tests.faults.schedule import WATCHED, Fault, FaultKind
from tests.support.api import Refused, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.faults.schedule import Arrival, Schedule
    from tests.support.live import Process, Site

NODES: Final = 3
CPUS: Final = 4
TIMES: Final = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "300ms"),
)
QUIET_S: Final = 5.0
"""After so long without news statuses have to say what is so."""

END_S: Final = 90.0
POLICY: Final = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
solver: none
"""


@dataclass(slots=True)
class Result:
    """What came of a run.

    Attributes
    ----------
    problems
        Sentences about what should not have been.
    counts
        Requests by process, method and resource.

    """

    seed: int
    num_binds: int = 0
    num_evictions: int = 0
    problems: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def per_bind(self, process: str) -> float:
        """Requests of a process for each bound pod; reads and leases aside."""
        found = self.counts.get(process, {})
        number = sum(
            n
            for key, n in found.items()
            if key.split()[0] not in ("GET", "WATCH") and "lease" not in key
        )
        return number / max(1, self.num_binds)


class Run:
    """A run on a site; the processes of each kind share a lease."""

    def __init__(
        self, plane: ControlPlane, site: Site, schedule: Schedule, folder: Path, rate: float
    ) -> None:
        self._plane, self._site, self._schedule = plane, site, schedule
        self._folder, self._rate = folder, rate
        self._doors: dict[str, list[Door]] = {"scheduler": [], "controllers": []}
        self._processes: dict[str, list[Process]] = {"scheduler": [], "controllers": []}
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._closed: list[Closed] = []
        self._down: dict[str, float] = {}
        """Components of the plane that are killed, and when they are started again."""
        self._policy = site.file("faults.conf", POLICY)

    def play(self) -> Result:
        """Play the schedule, heal everything, wait for quiet and check."""
        self._begin()
        begun = time.monotonic()
        coming = [*self._schedule.faults, *self._schedule.arrivals]
        for event in sorted(coming, key=lambda each: each.at_s):
            self._pass(begun + event.at_s)
            if isinstance(event, Fault):
                self._strike(event)
            else:
                self._arrive(event)
        self._pass(begun + self._schedule.seconds)
        self._heal()
        return self._check()

    # --- processes -------------------------------------------------------------------------------

    def _begin(self) -> None:
        site = self._site
        site.nodes(NODES, cpus=CPUS)
        self._urgent = site.priority("urgent", 1000)
        for kind in ("scheduler", "scheduler", "controllers"):
            number = len(self._doors[kind])
            seed = f"{self._schedule.seed} {kind} {number}"
            where = self._folder / f"{kind}-{number}"
            door = site.keep(Door(site.kubeconfig, where, seed, self._rate))
            self._doors[kind].append(door)
            self._processes[kind].append(self._spawn(kind, door))
        for kind in self._processes:
            for process in self._processes[kind]:
                until(lambda each=process: each.port, f"the {kind} is there")

    def _spawn(self, kind: str, door: Door) -> Process:
        election = ("--leader-elect", "--lock-namespace", self._site.name, *TIMES)
        if kind == "scheduler":
            policy = ("--config", str(self._policy), "--loners", "wait")
            return self._site.spawn(*policy, *election, kubeconfig=door.kubeconfig)
        return self._site.spawn_controllers(*election, kubeconfig=door.kubeconfig)

    def _chosen(self, kind: str, target: int) -> int:
        return target % len(self._processes[kind])

    # --- what happens ----------------------------------------------------------------------------

    def _pass(self, until_s: float) -> None:
        """Wait, and end faults whose time has come."""
        while (now := time.monotonic()) < until_s or self._is_due(until_s):
            ends = (*(at_s for at_s, _ in self._ends), *self._down.values())
            due = min(ends, default=until_s)
            time.sleep(max(0.0, min(until_s, due) - now))
            self._end_due(time.monotonic())

    def _is_due(self, now_s: float) -> bool:
        ends = (*(at_s for at_s, _ in self._ends), *self._down.values())
        return any(at_s <= now_s for at_s in ends)

    def _end_due(self, now_s: float) -> None:
        self._start_due(now_s)
        for entry in [entry for entry in self._ends if entry[0] <= now_s]:
            self._ends.remove(entry)
            entry[1]()

    def _arrive(self, arrival: Arrival) -> None:
        site = self._site
        marks = {"optsched.io/run-seconds": str(arrival.run_s)}
        importance = {"priorityClassName": self._urgent} if arrival.is_urgent else {}
        self._insist(lambda: site.group(arrival.name, arrival.size, **importance))
        for index in range(arrival.size):
            name = f"{arrival.name}-{index}"
            self._insist(
                lambda name=name: site.pod(
                    name,
                    cpus=arrival.cpus,
                    annotations={"scheduling.k8s.io/group-name": arrival.name, **marks},
                    **importance,
                )
            )

    def _insist(self, action: Callable[[], object]) -> None:
        """Do something as the administrator, also while the API server is away."""

        def is_done() -> bool:
            self._start_due(time.monotonic())
            try:
                action()
            except Refused as e:
                return e.code in (404, 409)
            except OSError:
                return False
            return True

        until(is_done, "the API server takes it")

    def _strike(self, fault: Fault) -> None:
        ends_s = time.monotonic() + fault.seconds
        match fault.kind:
            case FaultKind.KILL_SCHEDULER | FaultKind.KILL_CONTROLLERS:
                self._kill(fault.kind.removeprefix("kill-"), fault.target)
            case FaultKind.FREEZE_SCHEDULER | FaultKind.FREEZE_CONTROLLERS:
                kind = fault.kind.removeprefix("freeze-")
                process = self._processes[kind][self._chosen(kind, fault.target)].process
                process.send_signal(signal.SIGSTOP)
                self._ends.append((ends_s, lambda: process.send_signal(signal.SIGCONT)))
            case FaultKind.SILENCE:
                plural = WATCHED[fault.target % len(WATCHED)]
                doors = [door for doors in self._doors.values() for door in doors]
                door = doors[fault.target % len(doors)]
                door.silence(plural)
                self._ends.append((ends_s, lambda: door.sound(plural)))
            case FaultKind.POLICY:
                self._policy.write_text("actions: [")
                self._ends.append((ends_s, lambda: self._policy.write_text(POLICY)))
            case FaultKind.API_SERVER | FaultKind.ETCD:
                self._restart(API_SERVER if fault.kind is FaultKind.API_SERVER else ETCD, ends_s)
            case FaultKind.CORDON | FaultKind.NOT_READY | FaultKind.DELETE_NODE:
                self._close_node(fault, ends_s)

    def _kill(self, kind: str, target: int) -> None:
        chosen = self._chosen(kind, target)
        self._processes[kind][chosen].kill()
        self._processes[kind][chosen] = self._spawn(kind, self._doors[kind][chosen])

    def _restart(self, component: str, ends_s: float) -> None:
        if self._down:
            return
        self._plane.kill(component)
        self._site.api.close()
        self._down[component] = ends_s

    def _start_due(self, now_s: float) -> None:
        for component in [name for name, at_s in self._down.items() if at_s <= now_s]:
            del self._down[component]
            self._plane.start_component(component)

    def _close_node(self, fault: Fault, ends_s: float) -> None:
        name = sorted(self._site.cpus)[fault.target % len(self._site.cpus)]
        path, api = f"/api/v1/nodes/{name}", self._site.api
        if fault.kind is FaultKind.CORDON:
            self._insist(lambda: api.patch(path, {"spec": {"unschedulable": True}}))
            self._closed.append(Closed(name, time.monotonic(), ends_s))
            opened = {"spec": {"unschedulable": None}}
            self._ends.append((ends_s, lambda: self._insist(lambda: api.patch(path, opened))))
        elif fault.kind is FaultKind.NOT_READY:
            for status, at_s in (("False", 0.0), ("True", ends_s)):
                ready = [{"type": "Ready", "status": status, "reason": "Injected"}]
                body = {"status": {"conditions": ready}}
                tell = partial(api.patch, f"{path}/status", body)
                if at_s:
                    self._ends.append((at_s, partial(self._insist, tell)))
                else:
                    self._insist(tell)
        else:
            taints = [{"key": "faults", "value": "x", "effect": "NoSchedule"}]
            self._insist(lambda: api.patch(path, {"spec": {"taints": taints}}))
            opened = {"spec": {"taints": None}}
            self._ends.append((ends_s, lambda: self._insist(lambda: api.patch(path, opened))))

    def _heal(self) -> None:
        self._start_due(float("inf"))
        for _, action in sorted(self._ends, key=lambda entry: entry[0]):
            action()
        self._ends.clear()
        for door in (door for doors in self._doors.values() for door in doors):
            door.heal()

    # --- what must hold --------------------------------------------------------------------------

    def _check(self) -> Result:
        site, result = self._site, Result(self._schedule.seed)
        sizes = {arrival.name: arrival.size for arrival in self._schedule.arrivals}
        try:
            until(lambda: not find_losses(site.story.moments(), sizes), "all is done", END_S)
        except AssertionError:
            result.problems += find_losses(site.story.moments(), sizes)
        moments = site.story.moments()
        result.num_binds = len({m.uid for m in moments if m.node})
        result.num_evictions = len({m.uid for m in moments if m.is_evicted})
        result.problems += find_violations(moments, site.cpus, self._closed)
        result.problems += self._statuses()
        for kind, doors in self._doors.items():
            total: dict[str, int] = {}
            for door in doors:
                for key, number in door.counts.items():
                    total[key] = total.get(key, 0) + number
            result.counts[kind] = total
        return result

    def _statuses(self) -> list[str]:
        """What PodGroups and queues say once all has been quiet for a while."""
        deadline = time.monotonic() + QUIET_S

        def found() -> list[str]:
            said = find_false_statuses(self._site.groups(), self._site.story.moments())
            queue: dict[str, Any] = self._site.api.get(object_path(QUEUE, None, "default"))
            held = queue.get("status", {}).get("allocated", {}).get("cpu")
            return said if held == "0" else [*said, f"queue default says that it holds {held} CPUs"]

        while (problems := found()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return problems
