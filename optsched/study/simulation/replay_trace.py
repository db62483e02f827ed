"""Read the trace that a user names, replay it, and return the result with the replay's settings.

A trace may also be built from one cluster snapshot, or from a sequence of recorded snapshots.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Final

from optsched import __version__
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace, sound_trace
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import list_files, read_instance
from optsched.formats.traces.trace_file import (
    describe_unknown_table,
    is_trace_file,
    read_published_trace,
    read_trace_file,
)
from optsched.policy.policy import definition, describe
from optsched.study.chargeback import Charging
from optsched.study.simulation.record import lines
from optsched.study.simulation.simulation_metrics import Measuring, as_json
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.synthetic_traces import synthetic
from optsched.study.simulation.timeline import TimelineBuilder
from optsched.units.input_errors import why_absent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.dra_devices import DeviceClaim, Devices
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task
    from optsched.cluster.trace import TraceProblem
    from optsched.formats.files.diagnostics import ObjectProblem
    from optsched.formats.snapshots.instance_files import Instance
    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.solver.cpsat.process import Solver
    from optsched.study.chargeback import Chargeback
    from optsched.study.simulation.simulation_metrics import JobTimes, Metrics
    from optsched.study.simulation.timeline import Timeline

SNAPSHOT_FILES = "snapshot-*.yaml"
"""File name pattern of recorded snapshots in a folder: one snapshot per file, in name order."""

SYNTHETIC = "gavel:"
"""Prefix of the names of synthetic traces."""


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A trace with its source and digest, and the problems due to which objects were omitted."""

    trace: Trace
    source: str
    sha256: str
    problems: tuple[TraceProblem | ObjectProblem, ...] = ()


def read_given(
    source: str, trace_format: str | None = None, nodes: Path | None = None
) -> LoadedTrace:
    """Read the trace that a user names on the command line.

    Raises InstanceError if the trace cannot be read or contains no job to replay, and
    SyntheticError if the description of a synthetic trace is invalid.

    Parameters
    ----------
    source
        A file of kind Trace, manifests, recorded snapshots, a published trace, or `gavel:…` for a
        synthetic trace.
    trace_format
        A format in `TRACE_FORMATS` for a published trace.
    nodes
        A file with a trace or manifests, on whose nodes a published trace is replayed.

    """
    given = _read_given(source, trace_format, nodes)
    if not given.trace.arrivals:
        lines = [*map(str, given.problems), f"{source}: there is no job to replay"]
        raise InstanceError("\n".join(lines))
    return given


def _read_given(source: str, trace_format: str | None, nodes: Path | None) -> LoadedTrace:
    if nodes is not None and trace_format is None:
        raise InstanceError(
            f"{nodes}: only a published trace can be replayed on other nodes: give its format, or "
            "omit the nodes"
        )
    if source.startswith(SYNTHETIC):
        return LoadedTrace(synthetic(source), source, hashlib.sha256(source.encode()).hexdigest())
    path = Path(source)
    if reason := why_absent(path):
        raise InstanceError(f"{source}: {reason}")
    if trace_format is not None:
        machines, omitted = (None, ()) if nodes is None else _read_nodes(nodes)
        trace, problems = read_published_trace(trace_format, path, machines)
        return LoadedTrace(trace, source, _sha256(path), (*omitted, *problems))
    if path.is_file() and is_trace_file(path):
        trace, problems = read_trace_file(path)
        return LoadedTrace(trace, source, _sha256(path), problems)
    if path.is_dir() and any(path.glob(SNAPSHOT_FILES)):
        read = read_recorded_snapshots(path)
        trace, found = sound_trace(trace_of_record([each.snapshot for each in read], path.name))
        unread = (problem for each in read for problem in each.problems)
        return LoadedTrace(trace, source, _sha256(path), (*unread, *found))
    if path.suffix.lower() == ".csv" and (problem := describe_unknown_table(path)):
        raise InstanceError(problem)
    instance = read_instance(path)
    trace = trace_of(instance.snapshot, path.stem)
    return LoadedTrace(trace, source, _sha256(path), instance.problems)


def _read_nodes(path: Path) -> tuple[tuple[Node, ...], tuple[ObjectProblem | TraceProblem, ...]]:
    if path.is_file() and is_trace_file(path):
        trace, problems = read_trace_file(path)
        return trace.nodes, problems
    instance = read_instance(path)
    if not instance.snapshot.nodes:
        lines = [*map(str, instance.problems), f"{path}: contains no nodes"]
        raise InstanceError("\n".join(lines))
    return instance.snapshot.nodes, instance.problems


def read_recorded_snapshots(folder: Path) -> list[Instance]:
    """Read the recorded snapshots of a cluster, in the order of their file names.

    Raises InstanceError if there is no snapshot, if a snapshot cannot be read, or if the snapshots
    are not in chronological order.
    """
    read = [read_instance(picture) for picture in sorted(folder.glob(SNAPSHOT_FILES))]
    if not read:
        raise InstanceError(f"{folder}: contains no snapshots of a cluster ({SNAPSHOT_FILES})")
    back = next((b for a, b in pairwise(read) if b.snapshot.taken_ms < a.snapshot.taken_ms), None)
    if back is not None:
        raise InstanceError(f"{back.path}: is older than the file before it: name files by time")
    return read


def _sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, or of all files and file names in a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in list_files(path):
        whole.update(f"{file.relative_to(path)}\n{_sha256(file)}\n".encode())
    return whole.hexdigest()


# --- results --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """The number of events in a record, and the record's size in bytes and digest."""

    num_events: int = 0
    num_bytes: int = 0
    _sha256: Any = field(default_factory=hashlib.sha256)

    def add_events(self, text: str, num_events: int) -> None:
        """Add `num_events` events to the totals of the record; `text` contains their lines."""
        data = text.encode()
        self._sha256.update(data)
        self.num_bytes += len(data)
        self.num_events += num_events

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the record."""
        found: str = self._sha256.hexdigest()
        return found


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a replay, which may be incomplete."""

    metrics: Metrics
    charges: Chargeback  # Charges per queue and user.
    tally: Tally
    is_complete: bool
    ended_at_ms: int  # Trace time in milliseconds at which the replay ended.
    # Number of occurrences of each plugin error and of each violation for which a plan was
    # rejected.
    faults: Mapping[str, int]
    wall_seconds: float
    timeline: Timeline | None = None  # Timeline for charts; None if it was not requested.
    # Arrival, start and end of each gang, in order of arrival. Gangs that arrive during the warm-up
    # are omitted.
    jobs: tuple[JobTimes, ...] = ()


def play(
    given: LoadedTrace,
    policy: Policy,
    options: Options,
    *,
    warm_up_ms: int = 0,
    solver: Solver | None = None,
    clock: Clock,
) -> SimulationResult:
    """Replay a trace to its end and return the result."""
    began_s = clock.monotonic()
    simulation = Simulation(given.trace, policy, options, solver=solver, clock=clock)
    measuring, tally = Measuring(given.trace, warm_up_ms), Tally()
    charging, timeline = Charging(given.trace, warm_up_ms), TimelineBuilder(given.trace)
    while (events := simulation.step()) is not None:
        tally.add_events(lines(events), len(events))
        for event in events:
            measuring.add_event(event)
            charging.add_event(event)
            timeline.add_event(event)
    plan = simulation.last_plan
    return SimulationResult(
        measuring.metrics(simulation.session_seconds),
        charging.total(simulation.now_ms),
        tally,
        is_complete=True,
        ended_at_ms=simulation.now_ms,
        faults=simulation.faults,
        wall_seconds=clock.monotonic() - began_s,
        timeline=timeline.build(simulation.now_ms, {} if plan is None else plan.pending),
        jobs=measuring.jobs,
    )


def as_result(
    given: LoadedTrace, policy: Policy, options: Options, warm_up_ms: int, played: SimulationResult
) -> dict[str, Any]:
    """Return the result of a replay as JSON, with the settings that reproduce it."""
    return {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "SimulationResult",
        "complete": played.is_complete,
        "versions": {
            "optsched": __version__,
            "python": python_version(),
            **{name: version(name) for name in ("numpy", "ortools", "scipy")},
        },
        "trace": {
            "name": given.trace.name,
            "source": given.source,
            "sha256": given.sha256,
            "jobs": len(given.trace.arrivals),
            "nodes": len(given.trace.nodes),
            "left_out": [str(p) for p in given.problems],
        },
        "model": {
            "name": policy.name,
            "sha256": fingerprint(policy),
            "definition": definition(policy),
        },
        "parameters": {
            "period_ms": options.period_ms or policy.budgets.period_ms,
            "until_ms": options.until_ms,
            "warm_up_ms": warm_up_ms,
            "seed": options.seed,
        },
        "record": {"events": played.tally.num_events, "sha256": played.tally.sha256},
        "ended_at_ms": played.ended_at_ms,
        "metrics": as_json(played.metrics),
        "gpu_hours": played.charges.as_json(),
        "faults": dict(played.faults),
        "wall_seconds": round(played.wall_seconds, 3),
    }


def fingerprint(policy: Policy) -> str:
    """Return the SHA-256 digest of a policy."""
    return hashlib.sha256(describe(policy).encode()).hexdigest()


_KEPT = frozenset({TaskStatus.PENDING, TaskStatus.GATED, TaskStatus.BOUND, TaskStatus.RUNNING})


def trace_of(snapshot: Snapshot, name: str, duration_ms: int | None = None) -> Trace:
    """Return a trace in which all gangs of a snapshot arrive at time 0.

    Running tasks continue to run on their nodes. Finished and terminating tasks are omitted.

    `duration_ms` is the time for which each gang runs after the snapshot, or None if gangs never
    finish.
    """
    gangs = [
        replace(gang, tasks=tuple(t for t in gang.tasks if t.status in _KEPT))
        for gang in snapshot.gangs
    ]
    ours = {gang.key for gang in gangs}
    arrivals = tuple(Arrival(0, gang, duration_ms) for gang in gangs if gang.tasks)
    return Trace(
        name=name,
        nodes=tuple(
            replace(node, residents=tuple(t for t in node.residents if t.gang not in ours))
            for node in snapshot.nodes
        ),
        queues=snapshot.queues,
        arrivals=arrivals,
        topology=snapshot.topology,
        start_ms=snapshot.taken_ms,
        rest=snapshot,
    )


_OVER: Final = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})


def trace_of_record(snapshots: Sequence[Snapshot], name: str) -> Trace:
    """Return a trace of the changes between snapshots, which are in chronological order.

    A gang arrives at its creation time. A gang runs from the time at which its first task is bound
    until the first snapshot in which it has finished or is missing. A gang that still exists in the
    last snapshot never finishes. A gang that is running in the first snapshot continues on its
    nodes. Gangs that disappeared without ever having run are omitted. A node fails or recovers at
    the time of the first snapshot that shows the change.

    Raises ValueError if `snapshots` is empty.
    """
    if not snapshots:
        raise ValueError("at least one snapshot is needed")
    first = snapshots[0]
    keys = {gang.key for snapshot in snapshots for gang in snapshot.gangs}
    found = [_arrival(key, snapshots) for key in sorted(keys)]
    queues = {q.name: q for snapshot in snapshots for q in snapshot.queues}
    arrivals = sorted((a for a in found if a is not None), key=lambda a: (a.at_ms, a.gang.key))
    return Trace(
        name=name,
        nodes=tuple(_nodes(snapshots, keys)),
        queues=tuple(queues[name] for name in sorted(queues)),
        arrivals=tuple(arrivals),
        node_events=tuple(sorted(_node_events(snapshots), key=lambda e: (e.at_ms, e.node))),
        topology=first.topology,
        start_ms=first.taken_ms,
        rest=replace(first, devices=_devices(snapshots)),
    )


def _arrival(key: str, snapshots: Sequence[Snapshot]) -> Arrival | None:
    """Derive a gang's arrival from all snapshots; None if the gang disappeared and never ran."""
    seen = [(i, g) for i, s in enumerate(snapshots) if (g := s.gang_by_key.get(key)) is not None]
    start_ms = snapshots[0].taken_ms
    came, gang = seen[0]
    ready = ((i, g, sum(t.status.counts_as_ready for t in g.tasks)) for i, g in seen)
    ran = [(i, g) for i, g, number in ready if number >= max(g.min_member, 1)]
    # Find the first snapshot in which the gang has finished or is missing; None if there is none.
    over = (i for i, g in seen if g.tasks and all(t.status in _OVER for t in g.tasks))
    gone = seen[-1][0] + 1
    at = next(over, gone if gone < len(snapshots) else None)
    ended = None if at is None else snapshots[at].taken_ms
    if not ran and ended is not None:
        return None
    full = max((g for _, g in seen), key=lambda g: len(g.tasks))
    at_ms = 0
    if came:
        at_ms = min(max(gang.created_ms, snapshots[came - 1].taken_ms), snapshots[came].taken_ms)
        at_ms -= start_ms
    stays = {t.key: t for t in gang.tasks if t.status.is_standing} if not came else {}
    duration_ms = None
    if ran and ended is not None:
        # The run starts when the first task of the gang is bound. If the binding time is unknown,
        # the run starts at the first snapshot in which the gang runs.
        bound = (t.started_ms for t in ran[0][1].tasks if t.started_ms)
        began_ms = start_ms if stays else min(bound, default=snapshots[ran[0][0]].taken_ms)
        duration_ms = max(ended - began_ms, 0)
    tasks = tuple(stays.get(t.key) or _fresh(t) for t in full.tasks)
    phase = gang.phase if stays else GangPhase.PENDING
    return Arrival(at_ms, replace(full, tasks=tasks, phase=phase), duration_ms)


def _fresh(task: Task) -> Task:
    status = TaskStatus.GATED if task.status is TaskStatus.GATED else TaskStatus.PENDING
    return replace(
        task,
        status=status,
        node="",
        nominated_node="",
        started_ms=0,
        saved_ms=0,
        shared_gpus=(),
        gpus=(),
        numa=(),
    )


def _nodes(snapshots: Sequence[Snapshot], gangs: set[str]) -> Iterator[Node]:
    """Yield each node as in its first snapshot, without the pods of the gangs in `gangs`."""
    found: dict[str, Node] = {}
    for snapshot in snapshots:
        for node in snapshot.nodes:
            found.setdefault(node.name, node)
    for name in sorted(found):
        others = tuple(t for t in found[name].residents if t.gang not in gangs)
        yield replace(found[name], ready=True, residents=others)


def _devices(snapshots: Sequence[Snapshot]) -> Devices:
    """Return the devices in the first snapshot and the claims in all snapshots.

    Claims that first appear in a later snapshot are initially unallocated.
    """
    first = snapshots[0].devices
    came: dict[str, DeviceClaim] = {}
    for snapshot in snapshots:
        for key, claim in snapshot.devices.claims.items():
            came.setdefault(key, replace(claim, allocation=None, reserved_for=()))
    if came.keys() == first.claims.keys():
        return first
    came |= first.claims
    return replace(first, claims={key: came[key] for key in sorted(came)})


def _node_events(snapshots: Sequence[Snapshot]) -> Iterator[NodeEvent]:
    """Yield the failures and recoveries of nodes; all nodes are assumed to be ready at first."""
    names = {node.name for snapshot in snapshots for node in snapshot.nodes}
    for name in names:
        was_up = True
        for snapshot in snapshots:
            node = snapshot.node_by_name.get(name)
            is_up = node is not None and node.ready
            if is_up is not was_up:
                change = NodeChange.UP if is_up else NodeChange.DOWN
                yield NodeEvent(snapshot.taken_ms - snapshots[0].taken_ms, name, change)
            was_up = is_up
