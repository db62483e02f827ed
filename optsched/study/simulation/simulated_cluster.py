"""The simulated cluster: arrived gangs, task placements and ready nodes.

The live scheduler's snapshot builder builds the snapshots of this cluster. `write_cluster` saves
the state of the cluster as JSON, so that a simulation can be resumed exactly.
"""

from __future__ import annotations

import operator
from bisect import insort
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.gpu_accounting import GpuBook, gpu_milli
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.cluster.snapshot import GangPhase, Snapshot
from optsched.cluster.snapshot_builder import SnapshotBuilder
from optsched.cluster.task import TaskStatus
from optsched.study.simulation.claims import ClaimBook
from optsched.study.simulation.record import TaskPlacement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task
    from optsched.cluster.trace import Arrival, Trace


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of a task, and the task's GPU shares, NUMA resources, GPUs and DRA devices.

    `devices` holds the devices for those ResourceClaims of the task that were unallocated.
    """

    node: str
    shared_gpus: tuple[GpuShare, ...] = ()
    numa: tuple[NumaPart, ...] = ()
    gpus: tuple[int, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task on a node."""

    task: str
    placement: Placement
    since_ms: int  # Start of the task, in trace time.
    gpus: tuple[int, ...] | None = None  # GPU indices, or None if no GPUs are allocated yet.
    saved_ms: int = 0  # Time of the last checkpoint, in epoch milliseconds.


@dataclass(frozen=True, slots=True)
class TerminatingPod:
    """An evicted pod, which holds its resources until the end of its grace period."""

    leaves_ms: int  # End of the grace period, in trace time.
    number: int  # Index of the gang's arrival in the trace.
    place: TaskPlacement  # The task, its node and its GPUs.
    resident: Task  # A terminating task without a gang, which represents the pod in snapshots.
    devices: tuple[DeviceGrant, ...] = ()  # Devices that are allocated to the pod's claims.


@dataclass(slots=True, eq=False)
class Job:
    """A gang that has arrived and has not finished."""

    number: int
    arrival: Arrival
    gang: Gang  # The gang as it will be in the next snapshot.
    fresh: Mapping[str, Task]  # The gang's tasks as they were at arrival, keyed by task.
    # Placements of the gang's placed tasks, keyed by task.
    places: dict[str, TaskPlacement] = field(default_factory=dict)
    since_ms: int | None = None  # Start of the current run, or None if the gang is not running.
    kept_ms: int = 0  # Work saved by checkpoints, in milliseconds.
    run: int = 0  # Number of runs that the gang has started.
    # A counter that increases at each start, stop and move of the gang. A scheduled event of the
    # gang is void if it carries a lower counter value.
    turn: int = 0

    @property
    def minimum_members(self) -> int:
        """The number of tasks that must be placed before the gang runs."""
        return max(self.gang.min_member, 1)

    @property
    def waits(self) -> bool:
        """Whether at least one task of the gang has no node."""
        return len(self.places) < len(self.fresh)


class SimulatedCluster:
    """The gangs, task placements and nodes of the simulated cluster at the current trace time.

    `jobs` contains the gangs that have arrived and have not finished, keyed by gang. `waiting`
    contains the keys of gangs with at least one task that has no node.
    """

    def __init__(self, trace: Trace) -> None:
        self.jobs: dict[str, Job] = {}
        self.waiting: set[str] = set()
        self._trace = trace
        self._trace_nodes = {node.name: node for node in trace.nodes}
        self._builder = SnapshotBuilder()
        self._gpus = {node.name: GpuBook(node) for node in trace.nodes}
        for node in trace.nodes:
            self._builder.store_node(node)
            for task in node.residents:
                self._builder.add_resident(task, node.name)
                self._gpus[node.name].allocate(task.shape, task.shared_gpus)
        rest = trace.rest or Snapshot(0)
        arriving = [task for arrival in trace.arrivals for task in arrival.gang.tasks]
        residents = [task for node in trace.nodes for task in node.residents]
        known = {task.uid for task in (*arriving, *residents)}
        standing = (*residents, *(t for t in arriving if t.node))
        self._claims = ClaimBook(rest.devices, standing, known)
        self._others = replace(
            rest,
            queues=trace.queues,
            topology=trace.topology,
            nodes=(),
            gangs=(),
            reservations=(),
            entitlements=(),
            last_shuffle_ms={},
            usage={},
        )
        self._owner: dict[str, Job] = {}
        self._terminating: list[TerminatingPod] = []

    # --- queries ---------------------------------------------------------------------------------

    def snapshot(self, at_ms: int) -> Snapshot:
        """Return a snapshot of the cluster at `at_ms`, in trace time."""
        if self._others.devices is not self._claims.devices:
            self._others = replace(self._others, devices=self._claims.devices)
        return self._builder.build(self._trace.start_ms + at_ms, self._others)

    def has_node(self, node: str) -> bool:
        """Return whether a node has not failed in the simulation."""
        return self._is_node_ready(node) or not self._trace_nodes[node].ready

    @property
    def failed_nodes(self) -> list[str]:
        """The names of the nodes that have failed in the simulation."""
        ready = (node.name for node in self._trace.nodes if node.ready)
        return [name for name in ready if not self._is_node_ready(name)]

    def _is_node_ready(self, name: str) -> bool:
        node = self._builder.find_node(name)
        return node is not None and node.ready

    def arrival(self, number: int) -> Arrival:
        """Return the trace's arrival with the index `number`."""
        return self._trace.arrivals[number]

    def job_of(self, task: str) -> Job | None:
        """Return the job of a placed task, or None if the task is not placed."""
        return self._owner.get(task)

    # --- gangs -----------------------------------------------------------------------------------

    def add(self, number: int, at_ms: int) -> Job:
        """Add the gang that arrives, with all tasks pending; return its job."""
        arrival = self._trace.arrivals[number]
        gang = _as_submitted(arrival, self._trace.start_ms + at_ms)
        tasks = tuple(map(self._claims.waiting, gang.tasks))
        if not all(map(operator.is_, tasks, gang.tasks)):
            gang = replace(gang, tasks=tasks)
        job = Job(number, arrival, gang, {t.key: t for t in gang.tasks})
        self.jobs[gang.key] = job
        self.waiting.add(gang.key)
        self._builder.gangs.store(gang.key, gang)
        for task in arrival.gang.tasks:
            if task.node and not self.has_node(task.node):
                self._claims.release_claims(task)
        return job

    def remove(self, job: Job) -> None:
        """Remove a gang and release its resources."""
        self._vacate(job, list(job.places))
        del self.jobs[job.gang.key]
        self.waiting.discard(job.gang.key)
        self._builder.gangs.remove(job.gang.key)

    def place_tasks(
        self, job: Job, placements: Mapping[str, Placement], at_ms: int
    ) -> tuple[TaskPlacement, ...]:
        """Place tasks on nodes at `at_ms`; return their placements in the gang's task order."""
        placed: dict[str, Task] = {}
        for key, task in job.fresh.items():
            if (placement := placements.get(key)) is not None:
                placed[key] = self._place_task(job, task, placement, at_ms)
        self._replace_tasks(job, placed)
        return tuple(job.places[key] for key in placed)

    def allocate_gpus(self, binds: Sequence[tuple[str, Task]]) -> dict[str, tuple[int, ...]]:
        """Allocate GPUs jointly to (node name, task) pairs; return GPU indices, keyed by task."""
        tasks_on: dict[str, list[Task]] = {}
        for node, task in binds:
            if gpu_milli(task.shape) and not task.shape.shared_gpus:
                tasks_on.setdefault(node, []).append(task)
        found: dict[str, tuple[int, ...]] = {}
        for node, tasks in tasks_on.items():
            allocated = self._gpus[node].allocate_jointly([t.shape for t in tasks])
            found |= {t.key: gpus for t, gpus in zip(tasks, allocated, strict=True)}
        return found

    def restore_places(self, job: Job, held: Iterable[RunningTask]) -> tuple[TaskPlacement, ...]:
        """Restore placements; return the placements of the tasks, in the order of `held`."""
        placed: dict[str, Task] = {}
        for each in held:
            placed[each.task] = self._place_task(
                job, job.fresh[each.task], each.placement, each.since_ms, each
            )
        self._replace_tasks(job, placed)
        return tuple(job.places[key] for key in placed)

    def held_places(self, job: Job) -> tuple[RunningTask, ...]:
        """Return the placements of a gang's tasks, in the form that `restore_places` accepts."""
        tasks = {t.key: t for t in job.gang.tasks}
        return tuple(
            RunningTask(
                key,
                self._placement_of(tasks[key], place),
                tasks[key].started_ms - self._trace.start_ms,
                place.gpus,
                tasks[key].saved_ms,
            )
            for key, place in job.places.items()
        )

    def vacate(self, job: Job, keys: Sequence[str], leaves_ms: int | None = None) -> None:
        """Remove tasks from their nodes and make them pending again.

        The terminating pods release their resources at `leaves_ms`, or immediately if `leaves_ms`
        is None.
        """
        tasks = {t.key: t for t in job.gang.tasks}
        terminating_pods = []
        for key in keys:
            if leaves_ms is None:
                break
            task, place = tasks[key], job.places[key]
            placement = self._placement_of(task, place)
            held = RunningTask(key, placement, task.started_ms, place.gpus)
            terminating_pods.append(self.terminating_pod(job.number, held, leaves_ms))
        self._vacate(job, keys)
        for terminating in terminating_pods:
            self.add_terminating_pod(terminating)
        self._replace_tasks(job, {key: job.fresh[key] for key in keys})

    # --- terminating pods ------------------------------------------------------------------------

    @property
    def terminating_pods(self) -> tuple[TerminatingPod, ...]:
        """The terminating pods, in the order in which their grace periods end."""
        return tuple(self._terminating)

    def terminating_pod(self, number: int, held: RunningTask, leaves_ms: int) -> TerminatingPod:
        """Return the terminating pod that a placed task becomes when it is evicted."""
        task = next(t for t in self.arrival(number).gang.tasks if t.key == held.task)
        place = TaskPlacement(held.task, held.placement.node, held.gpus or ())
        resident = replace(
            task,
            key=f"{held.task}~{leaves_ms}",
            gang="",
            status=TaskStatus.RELEASING,
            node=held.placement.node,
            nominated_node="",
            started_ms=held.since_ms,
            shared_gpus=held.placement.shared_gpus,
            device_claims=self._claims.names_leaving(task, leaves_ms),
            numa=held.placement.numa,
        )
        return TerminatingPod(leaves_ms, number, place, resident, held.placement.devices)

    def add_terminating_pod(self, terminating: TerminatingPod) -> None:
        """Add a terminating pod, which still holds its resources."""
        node, task = terminating.place.node, terminating.resident
        task = self._claims.bind_claims(task, node, terminating.devices)
        self._gpus[node].occupy(task.shape, terminating.place.gpus, task.shared_gpus)
        self._builder.add_resident(task, node)
        insort(self._terminating, terminating, key=lambda g: (g.leaves_ms, g.resident.key))

    def remove_expired_pods(self, at_ms: int) -> bool:
        """Remove pods whose grace period is over; return whether a pod was removed."""
        gone = 0
        while self._terminating and self._terminating[0].leaves_ms <= at_ms:
            terminating = self._terminating.pop(0)
            node, task = terminating.place.node, terminating.resident
            self._builder.remove_resident(task.key, node)
            self._claims.release_claims(task)
            self._gpus[node].release(task.shape, terminating.place.gpus, task.shared_gpus)
            gone += 1
        return gone > 0

    def set_phase(self, job: Job, phase: GangPhase, since_ms: int | None = None) -> None:
        """Set a gang's phase and, if given, the start of its waiting time (epoch milliseconds)."""
        since_ms = job.gang.waiting_since_ms if since_ms is None else since_ms
        if (job.gang.phase, job.gang.waiting_since_ms) != (phase, since_ms):
            job.gang = replace(job.gang, phase=phase, waiting_since_ms=since_ms)
            self._builder.gangs.store(job.gang.key, job.gang)

    def nominate(self, job: Job, nodes: Mapping[str, str]) -> bool:
        """Set the nominated nodes of pending tasks; return whether a nomination has changed."""
        wanted = {
            t.key: replace(t, nominated_node=nodes.get(t.key, ""))
            for t in job.gang.tasks
            if t.key not in job.places and t.nominated_node != nodes.get(t.key, "")
        }
        if wanted:
            self._replace_tasks(job, wanted)
        return bool(wanted)

    def save(self, job: Job, at_ms: int) -> None:
        """Record that a gang saved a checkpoint at `at_ms`: set `saved_ms` of its placed tasks."""
        saved_ms = self._trace.start_ms + at_ms
        there = (t for t in job.gang.tasks if t.key in job.places)
        changed = {t.key: replace(t, saved_ms=saved_ms) for t in there}
        for key, task in changed.items():
            self._builder.add_resident(task, job.places[key].node)
        self._replace_tasks(job, changed)

    # --- nodes -----------------------------------------------------------------------------------

    def set_node_ready(self, name: str, *, ready: bool) -> dict[str, list[str]]:
        """Mark a node as ready or failed; return the tasks on the node, keyed by gang."""
        node = self._builder.find_node(name)
        if node is not None:
            ready = ready and self._trace_nodes[name].ready
            self._builder.store_node(replace(node, ready=ready))
        hit: dict[str, list[str]] = {}
        residents = self._builder.residents(name)
        for key in sorted(residents):
            gang = residents[key].gang
            if gang in self.jobs:
                hit.setdefault(gang, []).append(key)
        return hit

    # --- internal methods ------------------------------------------------------------------------

    def _place_task(
        self,
        job: Job,
        task: Task,
        placement: Placement,
        at_ms: int,
        held: RunningTask | None = None,
    ) -> Task:
        book = self._gpus[placement.node]
        gpus = placement.gpus if held is None else held.gpus or ()
        if gpus or (held is not None and held.gpus is not None):
            book.occupy(task.shape, gpus, placement.shared_gpus)
        else:
            gpus = book.allocate(task.shape, placement.shared_gpus)
        bound = replace(
            task,
            status=TaskStatus.RUNNING,
            node=placement.node,
            nominated_node="",
            started_ms=self._trace.start_ms + at_ms,
            saved_ms=held.saved_ms if held is not None else task.saved_ms,
            shared_gpus=placement.shared_gpus,
            gpus=gpus if book.is_plain and not placement.shared_gpus else (),
            numa=placement.numa,
        )
        bound = self._claims.bind_claims(bound, placement.node, placement.devices)
        self._builder.add_resident(bound, placement.node)
        job.places[task.key] = TaskPlacement(task.key, placement.node, gpus)
        self._owner[task.key] = job
        return bound

    def _vacate(self, job: Job, keys: Iterable[str]) -> None:
        for key in keys:
            place = job.places.pop(key)
            del self._owner[key]
            task = self._builder.remove_resident(key, place.node)
            self._claims.release_claims(task)
            self._gpus[place.node].release(task.shape, place.gpus, task.shared_gpus)

    def _replace_tasks(self, job: Job, tasks: Mapping[str, Task]) -> None:
        job.gang = replace(job.gang, tasks=tuple(tasks.get(t.key, t) for t in job.gang.tasks))
        self._builder.gangs.store(job.gang.key, job.gang)
        (self.waiting.add if job.waits else self.waiting.discard)(job.gang.key)

    def _placement_of(self, task: Task, place: TaskPlacement) -> Placement:
        return Placement(
            place.node, task.shared_gpus, task.numa, devices=self._claims.device_grants(task)
        )


def _as_submitted(arrival: Arrival, now_ms: int) -> Gang:
    """Return an arriving gang with all tasks pending, and with timestamps of at most `now_ms`."""
    given = arrival.gang
    made_ms = _clamp_instant(given.created_ms, now_ms)
    given_estimate_ms = arrival.estimate_ms

    def fresh(task: Task) -> Task:
        estimate_ms = task.estimate_ms if given_estimate_ms is None else given_estimate_ms
        created_ms = _clamp_instant(task.created_ms, now_ms)
        keeps = task.status in (TaskStatus.PENDING, TaskStatus.GATED)
        same = keeps and not task.node and task.gang == given.key
        if same and (task.created_ms, task.estimate_ms) == (created_ms, estimate_ms):
            return task
        return replace(
            task,
            status=task.status if keeps else TaskStatus.PENDING,
            node="",
            gang=given.key,
            created_ms=created_ms,
            estimate_ms=estimate_ms,
        )

    return replace(
        given,
        created_ms=made_ms,
        waiting_since_ms=_clamp_instant(given.waiting_since_ms, now_ms),
        phase=GangPhase.PENDING if given.phase is GangPhase.COMPLETED else given.phase,
        tasks=tuple(sorted(map(fresh, given.tasks), key=lambda t: t.order)),
    )


def _clamp_instant(at_ms: int, now_ms: int) -> int:
    """Return a timestamp, or `now_ms` if it is missing or in the future."""
    return min(at_ms, now_ms) if at_ms else now_ms


def write_cluster(cluster: SimulatedCluster) -> dict[str, Any]:
    """Return the failed nodes, the gangs with placements, and the terminating pods as JSON."""
    terminating_pods: list[list[Any]] = []
    for each in cluster.terminating_pods:
        task, place = each.resident, each.place
        placement = Placement(place.node, task.shared_gpus, task.numa, devices=each.devices)
        held = RunningTask(place.task, placement, task.started_ms, place.gpus, task.saved_ms)
        terminating_pods.append([each.number, each.leaves_ms, _encode_held(held)])
    return {
        "down": cluster.failed_nodes,
        "jobs": [
            {
                "arrival": job.number,
                "phase": job.gang.phase.value,
                "waiting_since": job.gang.waiting_since_ms,
                "since": job.since_ms,
                "kept": job.kept_ms,
                "run": job.run,
                "turn": job.turn,
                "places": [_encode_held(held) for held in cluster.held_places(job)],
                "nominated": {t.key: t.nominated_node for t in job.gang.tasks if t.nominated_node},
            }
            for _, job in sorted(cluster.jobs.items())
        ],
        "ghosts": terminating_pods,
    }


def read_cluster(cluster: SimulatedCluster, state: Mapping[str, Any]) -> None:
    """Restore the output of `write_cluster` in a newly created cluster."""
    for name in state["down"]:
        cluster.set_node_ready(name, ready=False)
    for given in state["jobs"]:
        job = cluster.add(given["arrival"], cluster.arrival(given["arrival"]).at_ms)
        cluster.restore_places(job, map(_read_place, given["places"]))
        cluster.nominate(job, given["nominated"])
        cluster.set_phase(job, GangPhase(given["phase"]), given["waiting_since"])
        job.since_ms, job.kept_ms = given["since"], given["kept"]
        job.run, job.turn = given["run"], given["turn"]
    for number, leaves_ms, place in state["ghosts"]:
        cluster.add_terminating_pod(cluster.terminating_pod(number, _read_place(place), leaves_ms))


def _encode_held(held: RunningTask) -> list[Any]:
    shared_gpus = [astuple(card) for card in held.placement.shared_gpus]
    parts = [astuple(part) for part in held.placement.numa]
    grants = [
        [g.claim, [[request, *d] for request, d in g.devices]] for g in held.placement.devices
    ]
    where = [held.task, held.placement.node, held.since_ms, held.gpus, held.saved_ms]
    return [*where, shared_gpus, parts, grants]


def _read_place(given: list[Any]) -> RunningTask:
    task, node, since_ms, gpus, saved_ms, shared_gpus, parts, grants = given
    placement = Placement(
        node,
        shared_gpus=tuple(GpuShare(*c) for c in shared_gpus),
        numa=tuple(NumaPart(*p) for p in parts),
        devices=tuple(
            DeviceGrant(claim, tuple((request, DeviceId(*which)) for request, *which in devices))
            for claim, devices in grants
        ),
    )
    return RunningTask(task, placement, since_ms, tuple(gpus), saved_ms)
