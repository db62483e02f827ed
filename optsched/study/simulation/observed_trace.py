"""Build traces from a cluster snapshot or from a sequence of recorded snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.dra_devices import DeviceClaim, Devices
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task

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
    """Return a trace of the changes between snapshots, given in chronological order.

    A gang arrives at its creation time. A gang runs from the time at which its first task is bound
    until the first snapshot in which it has finished or is missing. A gang that still exists in the
    last snapshot never finishes. A gang that is running in the first snapshot continues on its
    nodes. Gangs that disappeared without having run are omitted. A node fails or recovers at the
    time of the first snapshot that shows the change.

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
    # Find the first snapshot in which the gang has finished or is missing, or None.
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
        # The run starts when the first task was bound, or, if that time is unknown, at the first
        # snapshot in which the gang runs.
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
    """Yield each node as first observed, with only those pods whose gangs are not in `gangs`."""
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
