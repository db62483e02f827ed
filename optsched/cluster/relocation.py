"""Evicted pods and moved pods. A moved pod is evicted, and its replacement starts on another node.

The owner of a moved pod creates the replacement pod some time after the eviction. Until the
replacement exists, no pod can be nominated to the node, so an expected task reserves the node's
capacity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.api.wellknown import EVICTED, MOVES
from optsched.cluster.amounts import amounts
from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import Gang, GangPhase
from optsched.cluster.task import Task, TaskShape, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Node, Snapshot

PATIENCE_MS = 120_000
"""How long capacity stays reserved for a replacement pod after the eviction, in milliseconds."""

_BARE_POD = "pod:"
"""Prefix of the names of gangs that consist of a bare pod."""

_MARK = "~"
"""Suffix of the keys of tasks without a pod; Kubernetes object names cannot contain "~"."""


@dataclass(frozen=True, slots=True)
class Move:
    """An evicted pod, and the node on which capacity is reserved for its replacement.

    Attributes
    ----------
    task, uid
        Key and UID of the evicted pod.
    to
        Name of the node on which capacity is reserved.
    gang, owner, queue
        Gang, owner and queue of the evicted pod. The replacement pod has the same gang or, if it is
        a bare pod, the same owner.
    request
        Resource request of the evicted pod.
    at_ms
        Time at which the move was decided, in epoch milliseconds.
    """

    task: str
    uid: str
    to: str
    gang: str
    owner: str
    queue: str
    request: Amounts
    at_ms: int


# --- snapshots with moved tasks ------------------------------------------------------------------


def successor_of(task: Task, to: str) -> Task:
    """Return the successor of a moved task: a pending task that is nominated to the node `to`."""
    return replace(
        task,
        key=task.key + _MARK,
        uid="",
        status=TaskStatus.PENDING,
        node="",
        nominated_node=to,
        is_victim=False,
        started_ms=0,
        shared_gpus=(),
        gpus=(),
        device_claims=(),
        numa=(),
    )


def is_successor(key: str) -> bool:
    """Return whether a task key belongs to a successor or an expected task, which has no pod."""
    return key.endswith(_MARK)


def relocate(snapshot: Snapshot, places: Mapping[str, str]) -> Snapshot:
    """Return the snapshot in which tasks are moved: evicted, with nominated successors.

    `places` maps the key of each moved task to the node of its successor.
    """
    # The queue must count each moved task once: the request of the successor, not of the victim.
    terminating = with_terminating(snapshot, places, still_request=False)
    gangs: list[Gang] = []
    for before, gang in zip(snapshot.gangs, terminating.gangs, strict=True):
        successors = [successor_of(t, places[t.key]) for t in before.tasks if t.key in places]
        gangs.append(_with_tasks(gang, (*gang.tasks, *successors)) if successors else gang)
    return replace(terminating, gangs=tuple(gangs))


def nominated(snapshot: Snapshot, places: Mapping[str, str]) -> Snapshot:
    """Return the snapshot with the tasks in `places` (task key → node) nominated to their nodes."""
    gangs: list[Gang] = []
    for gang in snapshot.gangs:
        if any(t.key in places for t in gang.tasks):
            tasks = tuple(
                t
                if places.get(t.key, t.nominated_node) == t.nominated_node
                else replace(t, nominated_node=places[t.key])
                for t in gang.tasks
            )
            gangs.append(replace(gang, tasks=tasks))
        else:
            gangs.append(gang)
    return replace(snapshot, gangs=tuple(gangs))


def _with_tasks(gang: Gang, tasks: Iterable[Task]) -> Gang:
    return replace(gang, tasks=tuple(sorted(tasks, key=lambda t: t.order)))


# --- recorded moves ------------------------------------------------------------------------------


def read_moves(text: str) -> tuple[Move, ...]:
    """Parse the moves in an annotation value; return an empty tuple if the value is invalid."""
    try:
        listed = json.loads(text)
        return tuple(
            Move(
                task=str(each["pod"]),
                uid=str(each["uid"]),
                to=str(each["to"]),
                gang=str(each["gang"]),
                owner=str(each["owner"]),
                queue=str(each["queue"]),
                request=amounts({str(r): int(a) for r, a in each["request"].items()}),
                at_ms=int(each["at"]),
            )
            for each in listed
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return ()


def write_moves(moves: Iterable[Move]) -> str:
    """Encode moves as an annotation value, sorted by task key; empty if there are no moves."""
    listed = [
        {
            "pod": move.task,
            "uid": move.uid,
            "to": move.to,
            "gang": move.gang,
            "owner": move.owner,
            "queue": move.queue,
            "request": dict(move.request),
            "at": move.at_ms,
        }
        for move in sorted(moves, key=lambda each: each.task)
    ]
    return json.dumps(listed, separators=(",", ":"), sort_keys=True) if listed else ""


@dataclass(frozen=True, eq=False)
class Kept:
    """The recorded moves that still reserve capacity for a replacement pod.

    Attributes
    ----------
    snapshot
        The cluster with capacity reserved for every replacement: replacement pods that exist are
        nominated to their nodes, and expected tasks stand for the replacements that do not exist
        yet.
    left
        Moves whose replacement pod does not exist yet, keyed by the gang for which the pods were
        moved.
    """

    snapshot: Snapshot
    left: Mapping[str, tuple[Move, ...]]


def kept_places(snapshot: Snapshot) -> Kept:
    """Return the snapshot with capacity reserved for all recorded moves that are still valid."""
    recorded = {
        g.key: read_moves(text) for g in snapshot.gangs if (text := g.annotations.get(MOVES))
    }
    if not recorded:
        return Kept(snapshot, {})
    arrivals = _Arrivals(snapshot)
    left: dict[str, tuple[Move, ...]] = {}
    for key, moves in recorded.items():
        left[key] = tuple(m for m in moves if arrivals.is_open(m))
    valid = [m for moves in left.values() for m in moves]
    places, ended = arrivals.matched(valid)
    expected = [m for m in valid if m not in ended]
    left = {key: tuple(m for m in moves if m not in ended) for key, moves in left.items()}
    return Kept(_with_expected(nominated(snapshot, places), expected), left)


def records(snapshot: Snapshot, actions: Iterable[Action]) -> dict[str, str]:
    """Return the new values of the `MOVES` annotations that `actions` change, keyed by gang.

    A move is removed from the annotation once its replacement pod exists, because this pod is then
    nominated or bound.
    """
    open_moves = {key: list(moves) for key, moves in kept_places(snapshot).left.items()}
    gangs = snapshot.gang_by_key
    tasks = {t.key: t for g in snapshot.gangs for t in g.tasks}
    for action in actions:
        if isinstance(action, Evict) and action.to and action.task in tasks:
            task = tasks[action.task]
            queue = gangs[task.gang].queue
            move = Move(
                task.key,
                task.uid,
                action.to,
                task.gang,
                task.owner,
                queue,
                task.shape.request,
                snapshot.taken_ms,
            )
            open_moves.setdefault(action.preemptor, []).append(move)
    texts = {key: write_moves(moves) for key, moves in open_moves.items() if key in gangs}
    return {k: text for k, text in texts.items() if text != gangs[k].annotations.get(MOVES, "")}


class _Arrivals:
    """Matches pending pods to the moved pods that they replace."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._tasks = {t.key: t for g in snapshot.gangs for t in g.tasks}
        self._waiting: dict[str, list[Task]] = {}
        for gang in snapshot.gangs:
            for task in gang.tasks:
                if task.status is TaskStatus.PENDING and not task.nominated_node:
                    recreator = _recreator(gang.key, task.owner, task.key)
                    self._waiting.setdefault(recreator, []).append(task)

    def is_open(self, move: Move) -> bool:
        """Return whether capacity must stay reserved for the replacement of a moved pod."""
        node = self._snapshot.node_by_name.get(move.to)
        if node is None or not node.ready:
            return False
        task = self._tasks.get(move.task)
        if task is not None and task.uid == move.uid:
            return task.status is TaskStatus.RELEASING
        if not _is_bare_pod(move.gang) and move.gang not in self._snapshot.gang_by_key:
            return False
        return self._snapshot.taken_ms - move.at_ms < PATIENCE_MS

    def matched(self, moves: Sequence[Move]) -> tuple[dict[str, str], set[Move]]:
        """Return the nodes of replacement pods by task key, and the moves with a replacement."""
        places: dict[str, str] = {}
        ended: set[Move] = set()
        by_owner: dict[str, list[Move]] = {}
        for move in moves:
            by_owner.setdefault(_recreator(move.gang, move.owner, move.task), []).append(move)
        for recreator, own_moves in by_owner.items():
            waiting = self._waiting.get(recreator, [])
            gang = self._snapshot.gang_by_key.get(own_moves[0].gang)
            if gang is not None and not _is_bare_pod(gang.key):
                # No move is matched until the gang's minimum runs or all replacements exist.
                num_ready = sum(t.status.counts_as_ready for t in gang.tasks)
                if num_ready < gang.min_member and len(waiting) < len(own_moves):
                    continue
            for move in own_moves:
                task = next(
                    (t for t in waiting if dict(t.shape.request) == dict(move.request)), None
                )
                if task is not None:
                    waiting.remove(task)
                    places[task.key] = move.to
                    ended.add(move)
        return places, ended


def _recreator(gang: str, owner: str, task: str) -> str:
    """Return a key that is equal for a moved pod and its replacement: gang, owner or task key."""
    return (owner or task) if _is_bare_pod(gang) else gang


def _is_bare_pod(gang: str) -> bool:
    return gang.partition("/")[2].startswith(_BARE_POD)


def _with_expected(snapshot: Snapshot, moves: Sequence[Move]) -> Snapshot:
    """Return the snapshot with an expected task for each move, which reserves capacity."""
    if not moves:
        return snapshot
    by_node: dict[str, list[Task]] = {}
    by_gang: dict[str, list[Task]] = {}
    queue_of: dict[str, str] = {}
    for move in moves:
        gang = move.gang + _MARK if _is_bare_pod(move.gang) else move.gang
        task = Task(
            move.task + _MARK,
            TaskShape(move.request),
            TaskStatus.EXPECTED,
            gang=gang,
            node=move.to,
            preemptable=False,
        )
        by_node.setdefault(move.to, []).append(task)
        by_gang.setdefault(gang, []).append(task)
        queue_of[gang] = move.queue
    gangs = {g.key: g for g in snapshot.gangs}
    for key, tasks in by_gang.items():
        if key in gangs:
            gangs[key] = _with_tasks(gangs[key], (*gangs[key].tasks, *tasks))
        else:
            phase = GangPhase.RUNNING
            gangs[key] = Gang(key, queue_of[key], phase=phase, tasks=tuple(tasks), is_implicit=True)
    nodes: list[Node] = []
    for node in snapshot.nodes:
        if node.name in by_node:
            residents = sorted((*node.residents, *by_node[node.name]), key=lambda t: t.key)
            nodes.append(replace(node, residents=tuple(residents)))
        else:
            nodes.append(node)
    ordered = tuple(gangs[key] for key in sorted(gangs))
    return replace(snapshot, nodes=tuple(nodes), gangs=ordered)


# --- eviction -------------------------------------------------------------------------------------


def with_terminating(
    snapshot: Snapshot, tasks: Collection[str], *, still_request: bool = True
) -> Snapshot:
    """Return the snapshot in which the tasks with the keys `tasks` are evicted and terminating.

    If `still_request` is true, the requests of the evicted tasks still count for their queues
    (`Task.is_victim`). If `still_request` is false, the requests of the evicted tasks do not count,
    because requests of other tasks, such as replacements, count instead. Unchanged objects are
    shared with `snapshot`.
    """
    if not tasks:
        return snapshot
    # A task's gang and node share one `Task` object, so both must also share the evicted copy of
    # the task.
    marked: dict[int, Task] = {}
    nodes: list[Node] = []
    for node in snapshot.nodes:
        residents = _mark_terminating(node.residents, tasks, marked, is_victim=still_request)
        nodes.append(node if residents is node.residents else replace(node, residents=residents))
    gangs: list[Gang] = []
    for gang in snapshot.gangs:
        members = _mark_terminating(gang.tasks, tasks, marked, is_victim=still_request)
        gangs.append(gang if members is gang.tasks else replace(gang, tasks=members))
    return replace(snapshot, nodes=tuple(nodes), gangs=tuple(gangs))


def _mark_terminating(
    tasks: tuple[Task, ...], keys: Collection[str], marked: dict[int, Task], *, is_victim: bool
) -> tuple[Task, ...]:
    """Return the tasks, with those in `keys` evicted; the same tuple if no task is in `keys`.

    `marked` maps the `id()` of each original task to its evicted copy.
    """
    if not any(task.key in keys for task in tasks):
        return tasks
    for task in tasks:
        if task.key in keys and id(task) not in marked:
            marked[id(task)] = replace(
                task, status=TaskStatus.RELEASING, is_victim=is_victim, is_evicted=True
            )
    return tuple(marked.get(id(task), task) for task in tasks)


# --- quota of terminating pods --------------------------------------------------------------------


def read_evicted(text: str) -> dict[str, str]:
    """Parse the `EVICTED` annotation of a PodGroup; return pod UIDs keyed by pod name."""
    pairs = (entry.partition("=") for entry in text.split())
    return {name: uid for name, _, uid in pairs}


def terminating_within_quota(gang: Gang) -> tuple[Task, ...]:
    """Return a gang's terminating tasks that still count against the quota of their queue.

    A pod that a user deletes may run until its grace period ends, and the user chooses this period.
    The pod therefore counts until it has ended, as in a ResourceQuota. Pods that a scheduler
    evicted do not count, because the preemptors will use the capacity of these pods.
    """
    found = [
        task
        for task in gang.tasks
        if task.status is TaskStatus.RELEASING and task.node and not task.is_evicted
    ]
    if not found:
        return ()
    evicted = read_evicted(gang.annotations.get(EVICTED, ""))
    return tuple(task for task in found if not task.uid or evicted.get(task.name) != task.uid)
