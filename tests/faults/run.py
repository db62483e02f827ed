"""Run processes behind fault proxies, create gangs, cause scheduled faults and check invariants."""

from __future__ import annotations

import http.client
import queue
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import JOB, QUEUE, collection_path, object_path
from optsched.api.wellknown import QUEUE_ALLOCATION_GATE
from optsched.local.components import API_SERVER, ETCD
from tests.faults.admission import USERS, await_reviews, register_webhook, start_webhook
from tests.faults.door import Door, Stopping
from tests.faults.invariants import (
    COLLECTED_S,
    find_admitted,
    find_collected,
    find_false_allocation,
    find_false_statuses,
    find_halves,
    find_held_up,
    find_losses,
    find_shared_devices,
    find_unended_jobs,
    find_violations,
)
from tests.faults.review_door import ReviewDoor
from tests.faults.schedule import WATCHED, Fault, FaultKind
from tests.faults.stops import StopPoints
from tests.faults.user import User
from tests.formats.objects import device_class, device_slice
from tests.support.api import PATIENCE_S, Refused, until
from tests.support.webhooks import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.faults.schedule import Arrival, Schedule, Stop
    from tests.support.live import Process, Site

NODES: Final = 3
CPUS: Final = 4
TIMES: Final = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "300ms"),
)
QUIET_S: Final = 5.0
"""The longest time after the last event until statuses must be correct."""

END_S: Final = 180.0
LOOK_S: Final = 0.1
"""The period of the check for processes that a proxy has stopped."""

CLAIMS_EVERY_S: Final = 1.0
DEVICES: Final = "/apis/resource.k8s.io/v1"
POLICY: Final = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
solver: none
"""


@dataclass(slots=True)
class Result:
    """The result of a run.

    Attributes
    ----------
    problems
        Sentences about violated invariants.
    counts
        The number of requests by process, method and resource.
    missed
        Stops at a write that never occurred.
    status_s
        The seconds until statuses matched the cluster, from the end of the last gang.
    num_denials
        The number of invalid jobs that the webhook denied.
    num_unreviewed
        The number of submissions that failed because the webhook did not respond.

    """

    seed: int
    missed: tuple[Stop, ...] = ()
    num_binds: int = 0
    num_evictions: int = 0
    status_s: float = 0.0
    num_denials: int = 0
    num_unreviewed: int = 0
    problems: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def per_bind(self, process: str) -> float:
        """Return the number of requests of a process per bound pod, without reads and leases."""
        found = self.counts.get(process, {})
        number = sum(
            n
            for key, n in found.items()
            if key.split()[0] not in ("GET", "WATCH") and "lease" not in key
        )
        return number / max(1, self.num_binds)


class Run:
    """A run on a site. The processes of each type share a lease."""

    def __init__(
        self, plane: ControlPlane, site: Site, schedule: Schedule, folder: Path, rate: float
    ) -> None:
        self._plane, self._site, self._schedule = plane, site, schedule
        self._folder, self._rate = folder, rate
        kinds = ["scheduler", "scheduler", "controllers"]
        if schedule.submissions:
            kinds.append("webhook")
        self._kinds = tuple(kinds)
        """The type of each process."""
        self._doors: dict[str, list[Door]] = {kind: [] for kind in kinds}
        self._processes: dict[str, list[Process]] = {kind: [] for kind in kinds}
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._down: dict[str, float] = {}
        """Killed components of the control plane, with their restart times."""
        self._stops = StopPoints(schedule.stops)
        self._struck: queue.SimpleQueue[tuple[Process, Door, Stop]] = queue.SimpleQueue()
        self._frozen: list[tuple[float, Process, Door]] = []
        """Processes that were stopped at a write, with the times at which they continue."""
        self._webhook_port = free_port()
        self._reviews = ReviewDoor(self._webhook_port)
        self._num_webhooks = 0
        self._webhook_starts_s: float | None = None
        """The time at which a killed webhook starts again, or None while a webhook exists."""
        self._user = User(site, schedule.submissions, lambda: bool(self._down))
        self._lost: set[str] = set()
        """The names of the pods that were deleted with their node."""
        self._crashes: list[str] = []
        self._shared: dict[str, None] = {}
        self._looks_at_claims_s = 0.0
        self._policy = site.file("faults.conf", POLICY)

    def play(self) -> Result:
        """Run the schedule, end all faults, wait for quiet and check the invariants."""
        self._site.keep(self._reviews)
        self._begin()
        with self._user:
            self._play_schedule()
            return self._check()

    def _play_schedule(self) -> None:
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

    # --- processes -------------------------------------------------------------------------------

    def _begin(self) -> None:
        site = self._site
        site.nodes(NODES, cpus=CPUS)
        self._urgent = site.priority("urgent", 1000)
        if any(arrival.has_claims for arrival in self._schedule.arrivals):
            self._driver = f"{site.name}.example.com"
            selector = f"device.driver == '{self._driver}'"
            site.create(f"{DEVICES}/deviceclasses", device_class(self._driver, selector))
            for node in site.cpus:
                devices = [f"gpu-{index}" for index in range(CPUS)]
                made = device_slice(node, *devices, driver=self._driver)
                site.create(f"{DEVICES}/resourceslices", made)
        has_webhook = bool(self._schedule.submissions)
        if has_webhook:
            register_webhook(site)
        for kind in self._kinds:
            number = len(self._doors[kind])
            seed = f"{self._schedule.seed} {kind} {number}"
            where = self._folder / f"{kind}-{number}"
            stopping = Stopping(self._stops, partial(self._stop, kind, number))
            user = USERS.get(kind, "") if has_webhook else ""
            door = site.keep(Door(site.kubeconfig, where, seed, self._rate, stopping, user))
            self._doors[kind].append(door)
            self._processes[kind].append(self._spawn(kind, door))
        for kind in self._processes:
            for process in self._processes[kind]:
                until(lambda each=process: each.port, f"the {kind} is there")
        if has_webhook:
            await_reviews(site)

    def _spawn(self, kind: str, door: Door) -> Process:
        election = ("--leader-elect", "--lock-namespace", self._site.name, *TIMES)
        if kind == "scheduler":
            policy = ("--config", str(self._policy), "--loners", "wait")
            return self._site.spawn(*policy, *election, kubeconfig=door.kubeconfig)
        if kind == "webhook":
            self._num_webhooks += 1
            log = self._folder / f"webhook-{self._num_webhooks}.log"
            port, reviews = self._webhook_port, self._reviews.port
            return start_webhook(self._site, door.kubeconfig, log, port, reviews)
        return self._site.spawn_controllers(*election, kubeconfig=door.kubeconfig)

    def _stop(self, kind: str, number: int, stop: Stop) -> None:
        """Stop a process immediately, and queue the stop for `_tend`."""
        process = self._processes[kind][number]
        process.process.send_signal(signal.SIGSTOP if stop.is_frozen else signal.SIGKILL)
        self._struck.put((process, self._doors[kind][number], stop))

    def _tend(self) -> None:
        """Replace the processes that were killed at a write, and continue the stopped processes."""
        while not self._struck.empty():
            process, door, stop = self._struck.get()
            if stop.is_frozen:
                self._frozen.append((time.monotonic() + stop.seconds, process, door))
                continue
            for kind, processes in self._processes.items():
                if process in processes:
                    self._kill(kind, processes.index(process))
        now = time.monotonic()
        for entry in [entry for entry in self._frozen if entry[0] <= now]:
            self._frozen.remove(entry)
            _resume(*entry[1:])
        if self._webhook_starts_s is not None and self._webhook_starts_s <= now:
            self._webhook_starts_s = None
            (door,) = self._doors["webhook"]
            self._processes["webhook"] = [self._spawn("webhook", door)]

        self._restart_ended()

    def _restart_ended(self) -> None:
        """Start the processes again that have ended by themselves, as a kubelet does.

        A scheduler that starts while its policy is invalid ends with an error that names the file.
        Every other end is a crash.
        """
        for kind, processes in self._processes.items():
            for number, process in enumerate(processes):
                code = process.process.poll()
                if code in (None, -signal.SIGKILL):
                    continue
                if f"Error: {self._policy}:" not in process.log:
                    self._crashes.append(f"the {kind} ended with {code}: {process.log[-500:]}")
                self._kill(kind, number)

    def _chosen(self, kind: str, target: int) -> int:
        return target % len(self._processes[kind])

    # --- events ----------------------------------------------------------------------------------

    def _pass(self, until_s: float) -> None:
        """Wait until a time, and end each fault at its end time."""
        while (now := time.monotonic()) < until_s or self._is_due(until_s):
            ends = (*(at_s for at_s, _ in self._ends), *self._down.values())
            due = min(ends, default=until_s)
            time.sleep(max(0.0, min(until_s, due, now + LOOK_S) - now))
            self._end_due(time.monotonic())
            self._look_at_claims()

    def _is_due(self, now_s: float) -> bool:
        ends = (*(at_s for at_s, _ in self._ends), *self._down.values())
        return any(at_s <= now_s for at_s in ends)

    def _look_at_claims(self) -> None:
        now = time.monotonic()
        if now < self._looks_at_claims_s or self._down:
            return
        self._looks_at_claims_s = now + CLAIMS_EVERY_S
        path = f"{DEVICES}/namespaces/{self._site.name}/resourceclaims"
        with suppress(OSError, http.client.HTTPException, Refused):
            self._shared |= dict.fromkeys(find_shared_devices(self._site.api.items(path)))

    def _end_due(self, now_s: float) -> None:
        self._tend()
        self._start_due(now_s)
        for entry in [entry for entry in self._ends if entry[0] <= now_s]:
            self._ends.remove(entry)
            entry[1]()

    def _arrive(self, arrival: Arrival) -> None:
        site = self._site
        if arrival.is_late:
            self._until(lambda: all(p.node for p in site.story.told_pods()), "what came is bound")
        marks = {"optsched.io/run-seconds": str(arrival.run_s)}
        importance = {"priorityClassName": self._urgent} if arrival.is_urgent else {}
        gates = {"schedulingGates": [{"name": QUEUE_ALLOCATION_GATE}]} if arrival.is_gated else {}
        marks |= {QUEUE_ALLOCATION_GATE: "true"} if arrival.is_gated else {}
        self._insist(lambda: site.group(arrival.name, arrival.size, **importance))
        for index in range(arrival.size):
            name = f"{arrival.name}-{index}"
            self._insist(
                lambda name=name: site.pod(
                    name,
                    cpus=arrival.cpus,
                    annotations={"scheduling.k8s.io/group-name": arrival.name, **marks},
                    **importance,
                    **gates,
                    **(self._claim(name) if arrival.has_claims else {}),
                )
            )

    def _claim(self, name: str) -> dict[str, Any]:
        """Create a claim for a device, and return the fields with which a pod
        refers to the claim.
        """
        exactly = {"deviceClassName": self._driver, "count": 1}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }
        path = f"{DEVICES}/namespaces/{self._site.name}/resourceclaims"
        with suppress(Refused):
            self._site.api.post(path, body)
        return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}

    def _insist(self, action: Callable[[], object]) -> None:
        """Repeat an action of the administrator until the API server accepts it."""

        def is_done() -> bool:
            if self._down:
                return False  # a request would hang for longer than the fault
            try:
                action()
            except Refused as e:
                return e.code in (404, 409)
            except OSError:
                return False
            return True

        self._until(is_done, "the API server takes it")

    def _until(self, probe: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        """Wait for a condition, and meanwhile restart the processes and components that are due."""

        def is_so() -> bool:
            self._tend()
            self._start_due(time.monotonic())
            return probe()

        until(is_so, what, seconds)

    def _strike(self, fault: Fault) -> None:
        ends_s = time.monotonic() + fault.seconds
        match fault.kind:
            case FaultKind.KILL_SCHEDULER | FaultKind.KILL_CONTROLLERS:
                self._kill(fault.kind.removeprefix("kill-"), fault.target)
            case FaultKind.FREEZE_SCHEDULER | FaultKind.FREEZE_CONTROLLERS:
                kind = fault.kind.removeprefix("freeze-")
                chosen = self._chosen(kind, fault.target)
                process, door = self._processes[kind][chosen], self._doors[kind][chosen]
                process.process.send_signal(signal.SIGSTOP)
                self._ends.append((ends_s, partial(_resume, process, door)))
            case FaultKind.SILENCE:
                plural = WATCHED[fault.target % len(WATCHED)]
                doors = [*self._doors["scheduler"], *self._doors["controllers"]]
                self._silence(doors[fault.target % len(doors)], plural, ends_s)
            case FaultKind.SILENCE_WEBHOOK:
                plural = WATCHED[fault.target % len(WATCHED)]
                self._silence(self._doors["webhook"][0], plural, ends_s)
            case FaultKind.KILL_WEBHOOK:
                self._processes["webhook"][0].kill()
                if self._webhook_starts_s is None:
                    self._webhook_starts_s = ends_s
            case FaultKind.FREEZE_WEBHOOK:
                # The user's writes wait for the webhook, so its end must not wait for them.
                process, door = self._processes["webhook"][0], self._doors["webhook"][0]
                process.process.send_signal(signal.SIGSTOP)
                self._frozen.append((ends_s, process, door))
            case FaultKind.HOLD_REVIEWS:
                self._reviews.held_until_s = ends_s
            case FaultKind.CUT_REVIEWS:
                self._reviews.cut_until_s = ends_s
            case FaultKind.POLICY:
                self._policy.write_text("actions: [")
                self._ends.append((ends_s, lambda: self._policy.write_text(POLICY)))
            case FaultKind.API_SERVER | FaultKind.ETCD:
                self._restart(API_SERVER if fault.kind is FaultKind.API_SERVER else ETCD, ends_s)
            case FaultKind.REPLACE_NODE | FaultKind.LOSE_NODE:
                self._delete_node(fault, ends_s)
            case _:
                self._close_node(fault, ends_s)

    def _silence(self, door: Door, plural: str, ends_s: float) -> None:
        door.silence(plural)
        self._ends.append((ends_s, lambda: door.sound(plural)))

    def _kill(self, kind: str, target: int) -> None:
        chosen = self._chosen(kind, target)
        self._processes[kind][chosen].kill()
        self._doors[kind][chosen].revive()
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

    def _node(self, fault: Fault) -> str:
        return sorted(self._site.cpus)[fault.target % len(self._site.cpus)]

    def _close_node(self, fault: Fault, ends_s: float) -> None:
        name = self._node(fault)
        path, api = f"/api/v1/nodes/{name}", self._site.api
        changes: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        if fault.kind in (FaultKind.CORDON, FaultKind.CORDON_NOT_READY):
            closed, opened = ({"spec": {"unschedulable": value}} for value in (True, None))
            changes.append((path, closed, opened))
        if fault.kind in (FaultKind.NOT_READY, FaultKind.CORDON_NOT_READY):
            changes.append((f"{path}/status", _readiness("False"), _readiness("True")))
        if fault.kind is FaultKind.TAINT:
            taints = [{"key": "faults", "value": "x", "effect": "NoSchedule"}]
            changes.append((path, {"spec": {"taints": taints}}, {"spec": {"taints": None}}))
        for where, closed, opened in changes:
            self._insist(partial(api.patch, where, closed))
            self._ends.append((ends_s, partial(self._insist, partial(api.patch, where, opened))))

    def _delete_node(self, fault: Fault, ends_s: float) -> None:
        """Delete a node object, and create it again at the end of the fault, with or without its
        pods.
        """
        name, api = self._node(fault), self._site.api
        self._insist(partial(api.delete, f"/api/v1/nodes/{name}"))
        is_lost = fault.kind is FaultKind.LOSE_NODE
        deleted_s = time.monotonic()
        self._ends.append((ends_s, partial(self._register, name, deleted_s, is_lost=is_lost)))

    def _register(self, name: str, deleted_s: float, *, is_lost: bool) -> None:
        """Create a deleted node again, and first delete the pods of a lost node.

        On a busy machine, the node may not exist for longer than its fault lasts.
        """
        site = self._site
        pods = f"/api/v1/namespaces/{site.name}/pods"
        if is_lost:
            found: list[dict[str, Any]] = []
            where = f"spec.nodeName={name}"
            self._insist(lambda: found.extend(site.api.items(pods, fieldSelector=where)))
            for pod in (each["metadata"]["name"] for each in found):
                self._lost.add(pod)
                self._insist(partial(site.api.delete, f"{pods}/{pod}"))
        self._insist(partial(site.register, name, CPUS))
        if time.monotonic() >= deleted_s + COLLECTED_S:
            moments = site.story.moments()
            self._lost |= find_collected(moments, name, deleted_s + COLLECTED_S)

    def _heal(self) -> None:
        self._start_due(float("inf"))
        for _, action in sorted(self._ends, key=lambda entry: entry[0]):
            action()
        self._ends.clear()
        for door in (door for doors in self._doors.values() for door in doors):
            door.heal()

    # --- invariants ------------------------------------------------------------------------------

    def _check(self) -> Result:
        site, result = self._site, Result(self._schedule.seed)
        sizes = {arrival.name: arrival.size for arrival in self._schedule.arrivals}
        submissions = self._schedule.submissions

        def find_lost() -> list[str]:
            moments = site.story.moments()
            lost = [*find_losses(moments, sizes, self._lost), *self._user.find_left()]
            # Jobs are listed last, because a long run has many of them.
            return lost or find_unended_jobs(self._jobs(), moments, submissions)

        try:
            self._until(lambda: not find_lost(), "all is done", END_S)
        except AssertionError:
            result.problems += find_lost()
        result.missed = self._stops.end()
        self._until(
            lambda: not self._frozen and self._webhook_starts_s is None,
            "processes that were stopped continue",
        )
        moments = site.story.moments()
        jobs = self._jobs()
        result.problems += find_admitted(jobs, submissions)
        result.problems += [f"job {name} was admitted" for name in sorted(self._user.admitted)]
        result.num_denials = len(self._user.denied)
        result.num_unreviewed = self._user.num_unreviewed
        replicas = {submission.name: submission.replicas for submission in submissions}
        for job in (job["metadata"] for job in jobs):
            sizes[f"{job['name']}-{job['uid']}"] = replicas[job["name"]]
        result.problems += self._crashes
        result.problems += [*self._shared, *find_halves(moments, sizes, self._lost)]
        result.num_binds = len({m.uid for m in moments if m.node})
        result.num_evictions = len({m.uid for m in moments if m.is_evicted})
        result.problems += find_violations(moments, site.cpus)
        for door in (door for doors in self._doors.values() for door in doors):
            result.problems += door.late_binds
        for kind in ("scheduler", "controllers"):
            for door in self._doors[kind]:
                result.problems += find_held_up(kind, door.unreviewed)
        asked_s = time.monotonic()
        result.problems += self._statuses()
        result.status_s = time.monotonic() - asked_s
        for kind, doors in self._doors.items():
            total: dict[str, int] = {}
            for door in doors:
                for key, number in door.counts.items():
                    total[key] = total.get(key, 0) + number
            result.counts[kind] = total
        return result

    def _jobs(self) -> list[dict[str, Any]]:
        return self._site.api.items(collection_path(JOB, self._site.name))

    def _statuses(self) -> list[str]:
        """Return the wrong statuses of PodGroups and queues after a quiet time."""
        deadline = time.monotonic() + QUIET_S

        def found() -> list[str]:
            moments = self._site.story.moments()
            queue: dict[str, Any] = self._site.api.get(object_path(QUEUE, None, "default"))
            return [
                *find_false_statuses(self._site.groups(), moments),
                *find_false_allocation(queue, moments),
            ]

        while (problems := found()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return problems


def _resume(process: Process, door: Door) -> None:
    door.resume()
    process.process.send_signal(signal.SIGCONT)


def _readiness(status: str) -> dict[str, Any]:
    """Return the part of a node with its Ready condition."""
    ready = [{"type": "Ready", "status": status, "reason": "Injected"}]
    return {"status": {"conditions": ready}}
