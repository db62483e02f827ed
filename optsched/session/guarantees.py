"""Drop queue guarantees that exceed cluster capacity.

A guarantee that the cluster cannot meet would only block all other queues. Queues are processed in
order of creation. A guarantee is dropped if it exceeds the capacity that older queues' guarantees
leave on all nodes, including NotReady nodes. A guarantee is also dropped if it exceeds the
remaining capability of its queue or of an ancestor: the capability minus the guarantees of older
queues below this ancestor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.cluster.amounts import total
from optsched.cluster.snapshot import ROOT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.cluster.snapshot import Queue, Snapshot


@dataclass(frozen=True, slots=True)
class Unheld:
    """A dropped guarantee, which reserves no capacity.

    Attributes
    ----------
    queue, resource, amount
        The queue's name, the resource and the guaranteed amount.
    holder
        The queue or ancestor whose capability is too small; empty if the cluster is too small.
    capacity, older
        The capability of the holder, or the capacity of the cluster, and how much of it the
        guarantees of older queues use.
    """

    queue: str
    resource: str
    amount: int
    holder: str
    capacity: int
    older: int


def hold_guarantees(snapshot: Snapshot) -> tuple[Snapshot, tuple[Unheld, ...]]:
    """Drop guarantees that exceed cluster capacity; return the snapshot and the dropped guarantees.

    Returns the same snapshot if no guarantee is dropped. A snapshot without nodes keeps all
    guarantees.
    """
    named = {r for q in snapshot.queues for r, _ in q.guarantee}
    if not named or not snapshot.nodes:
        return snapshot, ()
    capacity = total(node.allocatable for node in snapshot.nodes)
    left_out = [
        unheld for resource in sorted(named) for unheld in _unheld(snapshot, resource, capacity)
    ]
    if not left_out:
        return snapshot, ()
    gone = {(each.queue, each.resource) for each in left_out}
    queues = tuple(
        replace(q, guarantee=tuple((r, a) for r, a in q.guarantee if (q.name, r) not in gone))
        for q in snapshot.queues
    )
    return replace(snapshot, queues=queues), tuple(left_out)


def _unheld(snapshot: Snapshot, resource: str, capacity: Mapping[str, int]) -> Iterator[Unheld]:
    parents = {q.name: _parent(q, snapshot) for q in snapshot.queues}
    limits = {"": capacity.get(resource, 0)}
    own = ((q.name, dict(q.capability or ()).get(resource)) for q in snapshot.queues)
    limits |= {name: limit for name, limit in own if limit is not None}
    guaranteed = [
        (q.created_ms, q.name, dict(q.guarantee).get(resource, 0)) for q in snapshot.queues
    ]
    together = claims({name: amount for _, name, amount in guaranteed}, parents)
    if all(together[name] <= limit for name, limit in limits.items()):
        return
    kept: dict[str, int] = {}
    for _, name, amount in sorted(each for each in guaranteed if each[2]):
        before, after = claims(kept, parents), claims({**kept, name: amount}, parents)
        holder = next((h for h in _line(name, parents) if after[h] > limits.get(h, after[h])), None)
        if holder is None:
            kept[name] = amount
        else:
            yield Unheld(name, resource, amount, holder, limits[holder], before[holder])


def _line(name: str, parents: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of a queue and its ancestors, and then an empty name for the cluster."""
    while name:
        yield name
        name = parents[name]
    yield ""


def _parent(queue: Queue, snapshot: Snapshot) -> str:
    """Return a queue's parent; empty for a top-level queue, an unknown parent or a cycle."""
    by_name, seen = snapshot.queue_by_name, set[str]()
    at = queue.name
    while at != ROOT_QUEUE and at in by_name and at not in seen:
        seen.add(at)
        at = by_name[at].parent
    is_circle = at == queue.name and queue.name in seen
    is_known = queue.name != ROOT_QUEUE and queue.parent in by_name
    return queue.parent if is_known and not is_circle else ""


def claims(floors: Mapping[str, int], parents: Mapping[str, str]) -> dict[str, int]:
    """Return the effective guarantee of each queue and, under an empty name, of the cluster.

    An effective guarantee is the larger of the queue's own guarantee and the sum over its child
    queues.
    """
    below: dict[str, list[str]] = {}
    for name, parent in parents.items():
        below.setdefault(parent, []).append(name)
    # Parent queues precede child queues in `names`, so the reverse order computes child queues
    # first.
    names = [""]
    for name in names:
        names += below.get(name, ())
    found: dict[str, int] = {}
    for name in reversed(names):
        found[name] = max(floors.get(name, 0), sum(found[child] for child in below.get(name, ())))
    return found
