"""Evicted pods and moved pods; a moved pod's owner recreates it and it starts on another node.

Between the eviction of a pod and the creation of its replacement, no pod exists that could be
nominated to a node. An expected task reserves the node's capacity until the replacement exists.
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
"""Milliseconds after a pod's eviction for which capacity stays reserved for its replacement."""

_ALONE = "pod:"
"""Prefix of gang names that stand for bare pods."""

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
        Gang, owner and queue of the evicted pod. The replacement has the same gang; the replacement
        of a bare pod has the same owner.
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
    """Return the pending task that replaces a moved task, nominated to the node `to`."""
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
    """Return whether a task key stands for a pod that does not exist yet."""
    return key.endswith(_MARK)


def relocate(snapshot: Snapshot, places: Mapping[str, str]) -> Snapshot:
    """Return the snapshot after tasks are evicted and their successors are nominated to nodes.

    `places` maps the key of a moved task to the node of its successor.
    """
    # Successors request what their predecessors hold, so victims must not request it as well.
    terminating = with_terminating(snapshot, places, still_request=False)
    gangs: list[Gang] = []
    for before, gang in zip(snapshot.gangs, terminating.gangs, strict=True):
        successors = [successor_of(t, places[t.key]) for t in before.tasks if t.key in places]
        gangs.append(_with_tasks(gang, (*gang.tasks, *successors)) if successors else gang)
    return replace(terminating, gangs=tuple(gangs))


def nominated(snapshot: Snapshot, places: Mapping[str, str]) -> Snapshot:
    """Return the snapshot with pending tasks nominated; `places` maps task keys to nodes."""
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
    """Parse the moves in an annotation; returns an empty tuple if it cannot be parsed."""
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
    """Encode moves as an annotation value, sorted by task key; empty without moves."""
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
    """The recorded moves of pods whose replacements still have capacity reserved on nodes.

    Attributes
    ----------
    snapshot
        The cluster with capacity reserved for every replacement. A replacement pod that exists is
        nominated to its node; for one that does not exist yet, an expected task reserves the
        capacity.
    left
        Maps the key of a gang to its recorded moves whose replacements do not exist yet.

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
    """Return the move records that change if `actions` are executed, as annotations by gang key.

    A move is removed from the record once its replacement pod exists, because that pod is then
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
        is_alone = _is_alone(move.gang)
        if not is_alone and move.gang not in self._snapshot.gang_by_key:
            return False
        return self._snapshot.taken_ms - move.at_ms < PATIENCE_MS

    def matched(self, moves: Sequence[Move]) -> tuple[dict[str, str], set[Move]]:
        """Return the node of each replacement pod by task key, and the moves they complete."""
        places: dict[str, str] = {}
        ended: set[Move] = set()
        by_owner: dict[str, list[Move]] = {}
        for move in moves:
            by_owner.setdefault(_recreator(move.gang, move.owner, move.task), []).append(move)
        for recreator, own_moves in by_owner.items():
            waiting = self._waiting.get(recreator, [])
            gang = self._snapshot.gang_by_key.get(own_moves[0].gang)
            if gang is not None and not _is_alone(gang.key):
                # The capacity stays reserved until the gang runs or all its replacement pods exist.
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
    """Return a key that a moved pod and its replacement share: gang, owner or task key."""
    return (owner or task) if _is_alone(gang) else gang


def _is_alone(gang: str) -> bool:
    """Return whether a gang key stands for a bare pod."""
    return gang.partition("/")[2].startswith(_ALONE)


def _with_expected(snapshot: Snapshot, moves: Sequence[Move]) -> Snapshot:
    """Return the snapshot with an expected task per move, which reserves the move's capacity."""
    if not moves:
        return snapshot
    by_node: dict[str, list[Task]] = {}
    by_gang: dict[str, list[Task]] = {}
    queue_of: dict[str, str] = {}
    for move in moves:
        gang = move.gang + _MARK if _is_alone(move.gang) else move.gang
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
    """Return the snapshot in which the tasks in `tasks` (keys) are evicted and terminate.

    With `still_request`, the queue of an evicted task still requests the resources that the task
    holds (`Task.is_victim`). Otherwise other tasks, such as replacements, must request them.
    Unchanged objects are shared with `snapshot`.
    """
    if not tasks:
        return snapshot
    # A task must be the same object in its gang and on its node, before and after its eviction.
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
    """Return the tasks with those in `keys` evicted, or `tasks` itself if `keys` names none.

    `marked` maps the id of an original task object to the evicted task.
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
    """Parse the evicted pods in a PodGroup annotation; returns pod UIDs keyed by pod name."""
    pairs = (entry.partition("=") for entry in text.split())
    return {name: uid for name, _, uid in pairs}


def terminating_within_quota(gang: Gang) -> tuple[Task, ...]:
    """Return a gang's terminating tasks that still count against the quota of their queue.

    A deleted pod runs until its grace period ends, and the user who deletes it chooses that period.
    Until then, hard limits include the pod, as in a ResourceQuota. Hard limits exclude pods that a
    scheduler evicted, because their capacity is meant for their preemptors.
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
