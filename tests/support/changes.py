"""Change a cluster step by step, with snapshots that share unchanged parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.snapshot import QueueState, Snapshot
from optsched.cluster.task import TaskStatus
from tests.support.small import (
    CPU,
    GPU,
    ZONE,
    node,
    random_cluster,
    random_gang,
    random_network,
    random_queue,
    random_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from optsched.cluster.snapshot import Gang, Node, Queue
    from optsched.cluster.task import Task

    Change = Callable[[np.random.Generator, Snapshot], Snapshot]

Named = TypeVar("Named")


def history(rng: np.random.Generator, steps: int) -> Iterator[Snapshot]:
    """Yield a random cluster, and its snapshots after random changes."""
    snapshot = random_cluster(rng, related=bool(rng.integers(2)))
    yield snapshot
    for number in range(steps):
        snapshot = replace(snapshot, taken_ms=1000 * number)
        for _ in range(int(rng.integers(0, 3))):
            change = CHANGES[int(rng.integers(len(CHANGES)))]
            snapshot = change(rng, snapshot)
        yield snapshot


def _pick(rng: np.random.Generator, things: Sequence[Named]) -> Named | None:
    return things[int(rng.integers(len(things)))] if things else None


def _name(rng: np.random.Generator, prefix: str) -> str:
    return f"{prefix}{int(rng.integers(10**6))}"


# --- nodes ---------------------------------------------------------------------------------------


def _with_nodes(snapshot: Snapshot, *nodes: Node, without: str = "") -> Snapshot:
    """Return the snapshot with added or replaced nodes."""
    kept = {n.name: n for n in snapshot.nodes if n.name != without}
    kept.update({n.name: n for n in nodes})
    return replace(snapshot, nodes=tuple(kept[name] for name in sorted(kept)))


def node_comes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Add a node."""
    labels = {ZONE: str(rng.choice(["a", "b", "c"]))}
    return _with_nodes(snapshot, node(_name(rng, "n"), int(rng.integers(1, 6)), labels=labels))


def node_goes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Remove an empty node."""
    gone = _pick(rng, [n for n in snapshot.nodes if not n.residents])
    return snapshot if gone is None else _with_nodes(snapshot, without=gone.name)


def node_changes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Change the label, taint, state or size of a node."""
    old = _pick(rng, snapshot.nodes)
    if old is None:
        return snapshot
    spot = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
    new = (
        replace(old, labels={**old.labels, ZONE: str(rng.choice(["a", "b", "c"]))}),
        replace(old, taints=() if old.taints else spot),
        replace(old, unschedulable=not old.unschedulable),
        replace(old, ready=not old.ready),
        replace(old, allocatable=((CPU, 1000 * int(rng.integers(1, 9))), (GPU, 1), ("pods", 9))),
    )
    return _with_nodes(snapshot, new[int(rng.integers(len(new)))])


# --- gangs ---------------------------------------------------------------------------------------


def _with_gang(snapshot: Snapshot, gang: Gang | None, without: str = "") -> Snapshot:
    kept = {g.key: g for g in snapshot.gangs if g.key != without}
    if gang is not None:
        kept[gang.key] = gang
    return replace(snapshot, gangs=tuple(kept[key] for key in sorted(kept)))


def gang_comes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Add a gang."""
    queue = _pick(rng, snapshot.queues)
    made = random_gang(rng, int(rng.integers(100, 10**6)), 5, related=bool(rng.integers(2)))
    return _with_gang(snapshot, replace(made, queue=queue.name if queue else "gone"))


def gang_goes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Delete a gang with its pods."""
    gone = _pick(rng, snapshot.gangs)
    if gone is None:
        return snapshot
    for one in snapshot.nodes:
        if any(t.gang == gone.key for t in one.residents):
            stay = tuple(t for t in one.residents if t.gang != gone.key)
            snapshot = _with_nodes(snapshot, replace(one, residents=stay))
    return _with_gang(snapshot, None, without=gone.key)


def gang_changes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Change the priority, queue, minimum or topology of a gang."""
    old = _pick(rng, snapshot.gangs)
    queue = _pick(rng, snapshot.queues)
    if old is None or queue is None:
        return snapshot
    new = (
        replace(old, priority=int(rng.integers(5))),
        replace(old, queue=queue.name),
        replace(old, min_member=int(rng.integers(len(old.tasks) + 2))),
        replace(old, topology=None if old.topology else random_request(rng)),
    )
    return _with_gang(snapshot, new[int(rng.integers(len(new)))])


def network_changes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Draw racks and spines again."""
    names = [n.name for n in snapshot.nodes]
    return replace(snapshot, topology=random_network(rng, names))


_NEXT = {
    TaskStatus.PENDING: TaskStatus.RUNNING,
    TaskStatus.GATED: TaskStatus.PENDING,
    TaskStatus.RUNNING: TaskStatus.RELEASING,
    TaskStatus.RELEASING: TaskStatus.SUCCEEDED,
    TaskStatus.SUCCEEDED: TaskStatus.FAILED,
}


def task_moves_on(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Move a pod to its next status: start it, delete it, or end it."""
    tasks = [t for g in snapshot.gangs for t in g.tasks if t.status in _NEXT]
    old, where = _pick(rng, tasks), _pick(rng, snapshot.nodes)
    if old is None or where is None:
        return snapshot
    new = replace(old, status=_NEXT[old.status], node=old.node or where.name)
    gang = snapshot.gang_by_key[old.gang]
    changed = replace(gang, tasks=tuple(new if t is old else t for t in gang.tasks))
    snapshot = _with_gang(snapshot, changed)
    host = snapshot.node_by_name.get(new.node)
    return snapshot if host is None else _with_nodes(snapshot, _hosting(host, new))


def _hosting(host: Node, task: Task) -> Node:
    others = [t for t in host.residents if t.key != task.key]
    stays = [*others, task] if task.status.holds_resources else others
    return replace(host, residents=tuple(sorted(stays, key=lambda t: t.key)))


# --- queues --------------------------------------------------------------------------------------


def _with_queue(snapshot: Snapshot, queue: Queue | None, without: str = "") -> Snapshot:
    kept = {q.name: q for q in snapshot.queues if q.name != without}
    if queue is not None:
        kept[queue.name] = queue
    return replace(snapshot, queues=tuple(kept[name] for name in sorted(kept)))


def queue_comes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Add a queue."""
    return _with_queue(snapshot, random_queue(rng, _name(rng, "q"), "root"))


def queue_goes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Delete a queue, even if it has gangs or child queues."""
    gone = _pick(rng, snapshot.queues)
    return snapshot if gone is None else _with_queue(snapshot, None, without=gone.name)


def queue_changes(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Change the weight, capability, state or parent of a queue."""
    old, parent = _pick(rng, snapshot.queues), _pick(rng, snapshot.queues)
    if old is None or parent is None:
        return snapshot
    new = (
        replace(old, weight=int(rng.integers(1, 9))),
        replace(old, capability=(("licence", 2),)),
        replace(old, state=QueueState.CLOSED),
        replace(old, state=QueueState.OPEN),
        replace(old, parent=parent.name),
    )
    return _with_queue(snapshot, new[int(rng.integers(len(new)))])


CHANGES: tuple[Change, ...] = (
    node_comes,
    node_goes,
    node_changes,
    node_changes,
    gang_comes,
    gang_comes,
    gang_goes,
    gang_changes,
    gang_changes,
    network_changes,
    task_moves_on,
    task_moves_on,
    task_moves_on,
    queue_comes,
    queue_goes,
    queue_changes,
)
