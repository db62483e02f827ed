"""Traces that start from one snapshot of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.task import TaskStatus
from optsched.cluster.trace import Arrival, Trace

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot

_KEPT = frozenset({TaskStatus.PENDING, TaskStatus.GATED, TaskStatus.BOUND, TaskStatus.RUNNING})


def trace_of(snapshot: Snapshot, name: str, duration_ms: int | None = None) -> Trace:
    """Return a trace in which all gangs of a snapshot arrive at time 0.

    Tasks that run go on where they are. Those that have ended or are about to leave are left out.

    Parameters
    ----------
    duration_ms
        How long each gang runs from then on; None: forever.

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
