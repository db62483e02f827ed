"""The cluster after a plan, as plain Python objects for the verifier."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from optsched.cluster.amounts import amounts
from optsched.cluster.bounded_cache import SharedObjects
from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.dra_devices import is_class_quota
from optsched.cluster.relocation import (
    relocate,
    successor_of,
    with_terminating,
)
from optsched.cluster.snapshot import NO_POD_LIMIT, ROOT_QUEUE, QueueState, derived_of
from optsched.cluster.task import TaskStatus
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
    from optsched.cluster.task import Task


_CREATED_MS: Callable[[Gang], int] = attrgetter("created_ms")
_LEAVING = frozenset({TaskStatus.RELEASING})


class Placement(NamedTuple):
    """A task that a plan binds to a node."""

    task: Task
    gang: Gang
    node: Node


@dataclass(frozen=True)
class World:
    """A snapshot and the actions of a plan, with mappings that the verifier uses.

    The mappings omit actions that name unknown tasks, gangs or nodes; the rule `well-formed`
    reports these actions. Placements are checked in the world `after`, where the victims of the
    plan are terminating.

    Attributes
    ----------
    unsettled
        The snapshot before the terminating pods ended; only the world `once_settled` has it.

    """

    snapshot: Snapshot
    actions: Sequence[Action]
    unsettled: Snapshot | None = None
    _members: dict[str, dict[str, Task]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _shut: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _worlds: dict[str, World] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """The tasks that the plan binds."""
        found = (self._placement(a) for a in self.actions if isinstance(a, Allocate))
        return tuple(p for p in found if p is not None)

    @cached_property
    def evictions(self) -> tuple[Evict, ...]:
        """The evictions of the plan."""
        return tuple(a for a in self.actions if isinstance(a, Evict))

    @cached_property
    def task_by_key(self) -> Mapping[str, Task]:
        """All tasks of all gangs, by task key."""
        return {task.key: task for gang in self.snapshot.gangs for task in gang.tasks}

    @property
    def after(self) -> World:
        """The world after evictions: victims are terminating, moved tasks are nominated."""
        # A `World` that is stored in its own cache is freed only by a full garbage collection.
        if not self.evictions:
            return self
        if "after" in self._worlds:
            return self._worlds["after"]
        evicted = {action.task for action in self.evictions}
        kept = [action for action in self.actions if not isinstance(action, Evict)]
        snapshot = relocate(
            with_terminating(self.snapshot, evicted), {m.task: m.to for m in self.moves}
        )
        for move in self.moves:
            task = self.task_by_key[move.task]
            kept.append(Nominate(successor_of(task, move.to).key, move.to, task.gang))
        return self._worlds.setdefault("after", World(snapshot, kept))

    @cached_property
    def moves(self) -> tuple[Evict, ...]:
        """The evictions whose tasks restart on another node."""
        return tuple(e for e in self.evictions if e.to and e.task in self.task_by_key)

    @property
    def once_settled(self) -> World:
        """The world after terminating pods have ended and nominated tasks have started."""
        if not self.nominations:
            return self
        if "once_settled" in self._worlds:
            return self._worlds["once_settled"]
        nodes = tuple(
            replace(node, residents=tuple(t for t in node.residents if t.status not in _LEAVING))
            for node in self.snapshot.nodes
        )
        residents = [t for node in self.snapshot.nodes for t in node.residents]
        ended = {t.key for t in residents if t.status in _LEAVING}
        joined = {
            key for each in (*self.placements, *self.nominations) for key in each.task.device_claims
        }
        released = self.snapshot.devices.freed(residents, ended) - joined
        devices = self.snapshot.devices.release_claims(released)
        actions = [
            Allocate(a.task, a.node, a.gang) if isinstance(a, Nominate) else a for a in self.actions
        ]
        settled = replace(self.snapshot, nodes=nodes, devices=devices)
        return self._worlds.setdefault("once_settled", World(settled, actions, self.snapshot))

    @cached_property
    def nominations(self) -> tuple[Placement, ...]:
        """The tasks that the plan nominates."""
        found = (self._placement(a) for a in self.actions if isinstance(a, Nominate))
        return tuple(p for p in found if p is not None)

    @property
    def promises(self) -> tuple[Placement, ...]:
        """The deprecated name of `nominations`."""
        message = "World.promises is deprecated: use nominations"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.nominations

    def _placement(self, action: Allocate | Nominate) -> Placement | None:
        gang = self.snapshot.gang_by_key.get(action.gang)
        node = self.snapshot.node_by_name.get(action.node)
        if gang is None or node is None:
            return None
        task = self.members(gang).get(action.task)
        return None if task is None else Placement(task, gang, node)

    def members(self, gang: Gang) -> Mapping[str, Task]:
        """Return the tasks of a gang by task key."""
        if gang.key not in self._members:
            self._members[gang.key] = {t.key: t for t in gang.tasks}
        return self._members[gang.key]

    @cached_property
    def placed_on(self) -> Mapping[str, list[Task]]:
        """The tasks that the plan binds, by node name."""
        found: dict[str, list[Task]] = {}
        for placement in self.placements:
            found.setdefault(placement.node.name, []).append(placement.task)
        return found

    @cached_property
    def nominated_tasks(self) -> Mapping[str, list[Task]]:
        """The tasks that the plan nominates, by node name."""
        found: dict[str, list[Task]] = {}
        for placement in self.nominations:
            found.setdefault(placement.node.name, []).append(placement.task)
        return found

    @cached_property
    def placed_of(self) -> Mapping[str, list[Task]]:
        """The tasks that the plan binds or nominates, by gang key."""
        found: dict[str, list[Task]] = {}
        for placement in (*self.placements, *self.nominations):
            found.setdefault(placement.gang.key, []).append(placement.task)
        return found

    @cached_property
    def total(self) -> Mapping[str, int]:
        """The total allocatable resources of all ready nodes."""
        ready = [n for n in self.snapshot.nodes if n.ready]
        kinds = {n.allocatable: n for n in ready}
        numbers = Counter(n.allocatable for n in ready)
        return summed(
            {r: amount * numbers[kind] for r, amount in self.offers(node).items()}
            for kind, node in kinds.items()
        )

    def offers(self, node: Node) -> dict[str, int]:
        """Return the allocatable resources of a node.

        A resource that counts devices of a DeviceClass for queue quotas is unlimited on nodes.
        """
        return {**dict.fromkeys(self._class_quotas, NO_POD_LIMIT), **node.offers}

    @cached_property
    def _class_quotas(self) -> frozenset[str]:
        """Resources that count the devices of a DeviceClass, of all gangs and queues."""
        named = {resource for stake in self.stakes for resource in stake.class_quotas}
        for queue in self.snapshot.queues:
            for part in (queue.capability or (), queue.deserved, queue.guarantee):
                named.update(resource for resource, _ in part if is_class_quota(resource))
        return frozenset(named)

    @cached_property
    def stakes(self) -> Mapping[Stake, int]:
        """The number of gangs with each distinct `Stake`."""
        return Counter(self._stake_by_gang)

    @cached_property
    def _stake_by_gang(self) -> list[Stake]:
        return derived_of(self.snapshot.gangs, _stake_of)

    @cached_property
    def oldest_ms(self) -> Mapping[Stake, int]:
        """The creation time of the oldest gang with each `Stake`, in epoch milliseconds."""
        found: dict[Stake, int] = {}
        times_ms = map(_CREATED_MS, self.snapshot.gangs)
        for stake, created_ms in zip(self._stake_by_gang, times_ms, strict=True):
            if stake not in found or created_ms < found[stake]:
                found[stake] = created_ms
        return found

    @cached_property
    def held_by_queue(self) -> Mapping[str, Mapping[str, int]]:
        """Resources that gangs directly in each queue hold before the plan (`Stake.held`)."""
        held: dict[str, dict[str, int]] = {q.name: {} for q in self.snapshot.queues}
        for stake, number in self.stakes.items():
            if stake.queue in held:
                add_into(held[stake.queue], {r: amount * number for r, amount in stake.held})
        return held

    @cached_property
    def gained_by_queue(self) -> Mapping[str, Mapping[str, int]]:
        """Total requests of the tasks that the plan binds or nominates directly in each queue."""
        gained: dict[str, dict[str, int]] = {q.name: {} for q in self.snapshot.queues}
        for placement in (*self.placements, *self.nominations):
            add_into(gained.setdefault(placement.gang.queue, {}), task_usage(placement.task))
        return gained

    def shut(self, name: str) -> str:
        """Return why a queue or an ancestor accepts no tasks; empty if it accepts tasks."""
        if name not in self._shut:
            self._shut[name] = _find_closed_reason(self.snapshot.queue_by_name, name)
        return self._shut[name]

    def ancestors(self, queue: Queue) -> list[Queue]:
        """Return a queue and its ancestors, nearest first; the list stops at a cycle."""
        by_name = self.snapshot.queue_by_name
        found = {queue.name: queue}
        above = by_name.get(queue.parent)
        while above is not None and above.name not in found:
            found[above.name] = above
            above = by_name.get(above.parent)
        return list(found.values())

    def ancestors_apart(self, name: str, other: str) -> list[Queue]:
        """Return a queue and its ancestors, except those that are ancestors of queue `other`."""
        by_name = self.snapshot.queue_by_name
        theirs = {queue.name for queue in self.ancestors(by_name[other])}
        return [queue for queue in self.ancestors(by_name[name]) if queue.name not in theirs]

    def descendants(self, queue: Queue) -> list[str]:
        """Return the names of a queue and its descendants; deprecated."""
        message = "World.descendants is deprecated: read descendants_by_queue"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.descendants_by_queue.get(queue.name, [])

    @cached_property
    def descendants_by_queue(self) -> Mapping[str, list[str]]:
        """The names of each queue and its descendants, by queue name."""
        found: dict[str, list[str]] = {}
        for queue in self.snapshot.queues:
            for above in self.ancestors(queue):
                found.setdefault(above.name, []).append(queue.name)
        return found


def _find_closed_reason(queues: Mapping[str, Queue], name: str) -> str:
    seen: set[str] = set()
    while name:
        queue = queues.get(name)
        if queue is None:
            return "" if name == ROOT_QUEUE and seen else f"queue {name} does not exist"
        if name in seen:
            return f"queue {name} is its own ancestor"
        if queue.problem is not None:
            return f"queue {name} accepts no tasks: {queue.problem.message}"
        if queue.state is not QueueState.OPEN:
            return f"queue {name} accepts no tasks: its state is {queue.state}"
        seen.add(name)
        name = "" if name == ROOT_QUEUE else queue.parent
    return ""


def task_usage(task: Task) -> dict[str, int]:
    """Return the resources that a task uses on its node, including one unit of `pods`."""
    return {**dict(task.shape.request), PODS: 1}


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Stake:
    """The resources of a gang that count toward its queue; equal gangs share one object.

    Attributes
    ----------
    held
        The total requests of the bound, running and expected tasks.
    claimed
        The total requests of the tasks in `held` and of the tasks that this session evicts.
    requested
        The total requests of the pending tasks that could be placed, and `deferred_demand`.
    nominated
        (node, requests) pairs, sorted by node name: the total requests of the pending tasks that
        are nominated to each node.
    class_quotas
        The resources of the gang that count the devices of a DeviceClass.

    """

    queue: str
    held: Amounts
    claimed: Amounts
    requested: Amounts
    nominated: tuple[tuple[str, Amounts], ...]
    class_quotas: tuple[str, ...]


def _stake_of(gang: Gang) -> Stake:
    tasks = gang.tasks
    held = [task_usage(t) for t in tasks if t.status.counts_for_queue]
    claimed = [task_usage(t) for t in tasks if t.status.counts_for_queue or t.is_victim]
    requested = [
        task_usage(t)
        for t in (tasks if gang.problem is None else ())
        if t.status is TaskStatus.PENDING and t.problem is None
    ]
    requested.append(dict(gang.deferred_demand))
    nominated: dict[str, dict[str, int]] = {}
    for task in tasks:
        if task.nominated_node and task.status is TaskStatus.PENDING:
            add_into(nominated.setdefault(task.nominated_node, {}), task_usage(task))
    named = dict.fromkeys((gang.min_resources, *(t.shape.request for t in tasks)))
    return STAKES.intern(
        gang.queue,
        *(amounts(summed(part)) for part in (held, claimed, requested)),
        tuple((node, amounts(part)) for node, part in sorted(nominated.items())),
        tuple(sorted({r for part in named for r, _ in part if is_class_quota(r)})),
    )


STAKES: Final[SharedObjects[Stake]] = SharedObjects(Stake)


def add_into(totals: dict[str, int], part: Mapping[str, int]) -> None:
    """Add the resources in `part` to `totals`, in place."""
    for name, amount in part.items():
        totals[name] = totals.get(name, 0) + amount


def summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several resource lists."""
    totals: dict[str, int] = {}
    for part in parts:
        add_into(totals, part)
    return totals
