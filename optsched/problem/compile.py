"""Compile a snapshot into a problem, reusing unchanged arrays of the previous problem."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from optsched.cluster.dra_devices import is_class_quota
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.reservation import binding_reservations
from optsched.cluster.snapshot import NO_POD_LIMIT, are_identical
from optsched.cluster.task import TaskStatus
from optsched.problem.arrays import LARGEST, ranges, sparse_table
from optsched.problem.columns import GangColumns, NodeColumns, find_objects, group_values
from optsched.problem.problem import GangShapes, Problem, TaskClasses
from optsched.problem.queues import NEVER_MS, Demand, narrowing_queues, queue_arrays, with_demand
from optsched.problem.relations import TermMatcher, build_relations, find_terms
from optsched.problem.shapes import gang_row, rebound
from optsched.problem.topology import topology_arrays
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.problem.arrays import I64
    from optsched.problem.queues import QueueArrays
    from optsched.problem.relations import Term
    from optsched.problem.shapes import GangRow, GangShape, Relation, Stake


_ClassKey: TypeAlias = "tuple[TaskShape, Relation, str, str, tuple[int, ...]]"
"""The key of a task class: shape, selecting terms, queue, topology label, reservations."""


FEW_RESOURCES: Final = 32
"""Up to this number of resources, `has_many_unused_resources` returns False."""


def compile_problem(snapshot: Snapshot, previous: Problem | None = None) -> Problem:
    """Compile a snapshot into a problem.

    `previous` is the problem of an earlier snapshot that shares objects with `snapshot`. If
    `previous` is given, the run time depends on the number of changed objects. Apart from the
    resource columns, which the problem inherits, `previous` does not affect the problem.
    """
    if previous is not None and previous.snapshot is snapshot:
        return previous
    plain, index_before = _plain_rows(snapshot, previous)
    columns_before = None if previous is None else previous.gang_columns
    gang_columns = GangColumns(plain, columns_before, index_before)
    tasks = chain.from_iterable(row.pending for row in plain)
    gang_shapes = [s for s in gang_columns.codes(_SHAPE)[1] if s is not None]
    entries = chain.from_iterable(s.entries for s in gang_shapes)
    task_shapes = dict.fromkeys(e.shape for e in entries if e.shape.looks_at_pods)
    terms = find_terms(snapshot, task_shapes, tasks)
    rows = _related_rows(plain, terms)
    if rows is not plain:
        gang_columns = GangColumns(rows, columns_before)
    kept = (PODS, CPU, MEMORY) if previous is None else previous.resources
    mentioned = _mentioned_resources(snapshot, gang_columns)
    resources = (*kept, *sorted(mentioned.difference(kept)))
    nodes = _node_amounts(snapshot.nodes, resources, previous)
    queue_of = _queue_of(snapshot, gang_columns, previous)
    queues = _queues(snapshot, resources, queue_of, gang_columns, previous)
    gangs = _gang_arrays(snapshot, rows, resources, queue_of, queues, gang_columns)
    columns = _columns(snapshot.nodes, previous)
    before = None if previous is None else (previous.snapshot, previous.topology)
    topology = topology_arrays(snapshot, gangs.shapes.shapes, columns, before)
    ports = sorted(
        {p for s in gangs.classes.shapes for p in s.host_ports},
        key=lambda p: (str(p), p.address),
    )
    return Problem(
        snapshot=snapshot,
        resources=resources,
        allocatable=nodes.allocatable,
        used=nodes.used,
        releasing=nodes.releasing,
        foreign=nodes.foreign,
        ready=np.array([n.ready for n in snapshot.nodes], np.bool_),
        kept=np.zeros(len(resources), np.int64),
        settled=np.full(len(rows), -1, np.int64),
        classes=gangs.classes,
        shapes=gangs.shapes,
        queues=queues,
        relations=build_relations(snapshot.nodes, columns, terms, tuple(ports)),
        columns=columns,
        topology=topology,
        shape_of=gangs.shape_of,
        queue_of=queue_of,
        priority=gang_columns.numbers(_PRIORITY),
        created_ms=gang_columns.numbers(_CREATED_MS),
        waiting_since_ms=gang_columns.numbers(_WAITING_SINCE_MS),
        min_member=gang_columns.numbers(_MIN_MEMBER),
        num_ready=gang_columns.numbers(_NUM_READY),
        task_start=gangs.task_start,
        task_class=gangs.task_class,
        gang_of=gangs.gang_of,
        blocked=gangs.blocked,
        rows=rows,
        plain_rows=plain,
        gang_columns=gang_columns,
    )


# --- gangs -------------------------------------------------------------------------------------

_GANG, _SHAPE, _NUM_READY = map(attrgetter, ("gang", "shape", "num_ready"))
_PRIORITY, _CREATED_MS, _WAITING_SINCE_MS, _MIN_MEMBER = map(
    attrgetter, ("gang.priority", "gang.created_ms", "gang.waiting_since_ms", "gang.min_member")
)


def _plain_rows(
    snapshot: Snapshot, previous: Problem | None
) -> tuple[tuple[GangRow, ...], I64 | None]:
    """Return gang rows that do not depend on the affinity terms of other pods.

    Also returns the index (G,) of each row in the previous problem (-1 for a new row), or None if
    the indices are unknown.
    """
    rows = () if previous is None else previous.plain_rows
    narrow, reservations = narrowing_queues(snapshot.queues), snapshot.reservations
    was_restricted = previous is not None and previous.gang_columns.flags(_is_restricted).any()
    if not (narrow or reservations or was_restricted):
        before = find_objects(snapshot.gangs, list(map(_GANG, rows)))
        found = [
            rows[i] if i >= 0 else gang_row(gang)
            for i, gang in zip(before.tolist(), snapshot.gangs, strict=True)
        ]
        # `before` refers to the plain rows of `previous`, so return it only if `previous` was
        # compiled from them.
        is_plain = previous is not None and previous.rows is rows
        return tuple(found), before if is_plain else None
    # `id(gang)` is a safe key, because the previous problem keeps its gangs in memory.
    known = dict(zip(map(id, map(_GANG, rows)), rows, strict=True))
    found = []
    for gang in snapshot.gangs:
        queue = gang.queue if gang.queue in narrow else ""
        bound = binding_reservations(gang, reservations, snapshot.taken_ms) if reservations else ()
        row = known.get(id(gang))
        if row is None or row.queue != queue:
            row = gang_row(gang, queue=queue, bound=bound)
        elif row.bound != bound:
            row = rebound(row, bound)
        found.append(row)
    return tuple(found), None


def _related_rows(plain: tuple[GangRow, ...], terms: tuple[Term, ...]) -> tuple[GangRow, ...]:
    """Return gang rows that separate equal tasks if affinity or spread terms select only some."""
    if not terms:
        return plain
    matcher = TermMatcher(terms)
    found = [{t.key: m for t in row.pending if (m := matcher.selecting(t))} for row in plain]
    return tuple(
        gang_row(row.gang, selecting, row.queue, row.bound) if selecting else row
        for row, selecting in zip(plain, found, strict=True)
    )


def _is_restricted(row: GangRow) -> bool:
    return bool(row.queue or row.bound)


def _is_blocked(row: GangRow) -> bool:
    return row.blocked is not None


def _has_shape(row: GangRow) -> bool:
    return row.shape is not None


def _mentioned_resources(snapshot: Snapshot, gang_columns: GangColumns) -> set[str]:
    mentioned: set[str] = set()
    for stake in gang_columns.stakes[1]:
        mentioned.update(name for name, _ in (*stake.requested, *stake.minimum))
    for queue in snapshot.queues:
        for part in (queue.capability or (), queue.deserved, queue.guarantee):
            mentioned.update(r for r, _ in part)
    return mentioned


def has_many_unused_resources(problem: Problem) -> bool:
    """Return whether gangs and queues mention less than half of the problem's resources.

    A problem inherits the resource columns of the previous problem. Some of these resources may
    have been requested only by pods that no longer exist. Each resource column costs memory per
    node, queue and task class.
    """
    if len(problem.resources) <= FEW_RESOURCES:
        return False
    mentioned = _mentioned_resources(problem.snapshot, problem.gang_columns)
    return len(mentioned) < len(problem.resources) // 2


@dataclass(frozen=True, slots=True)
class _Gangs:
    classes: TaskClasses
    shapes: GangShapes
    shape_of: I64
    task_start: I64
    task_class: I64
    gang_of: I64
    blocked: Mapping[int, Reason]


def _gang_arrays(
    snapshot: Snapshot,
    rows: Sequence[GangRow],
    resources: Sequence[str],
    queue_of: I64,
    queues: QueueArrays,
    gang_columns: GangColumns,
) -> _Gangs:
    blocked = _blocked(snapshot.gangs, rows, queue_of, queues, gang_columns)
    is_open = gang_columns.flags(_has_shape)
    if blocked:
        is_open = is_open.copy()
        is_open[list(blocked)] = False
    shape_of, gang_shapes = gang_columns.codes(_SHAPE, is_open)
    shapes, class_number = _shape_arrays(tuple(gang_shapes), resources)
    num_tasks = np.where(shape_of >= 0, np.append(shapes.num_tasks, 0)[shape_of], 0)
    task_start = np.concatenate([[0], np.cumsum(num_tasks)]).astype(np.int64)
    flat = np.repeat(shapes.class_of, shapes.count)
    first = np.concatenate([[0], np.cumsum(shapes.num_tasks)]).astype(np.int64)
    open_gangs = shape_of >= 0
    task_class = flat[ranges(first[shape_of[open_gangs]], num_tasks[open_gangs])]
    keys = tuple(class_number)
    task_shapes = tuple(key[0] for key in keys)
    classes = TaskClasses(
        shapes=task_shapes,
        relations=tuple(key[1] for key in keys),
        queues=tuple(key[2] for key in keys),
        labels=tuple(key[3] for key in keys),
        bound=tuple(key[4] for key in keys),
        request=_requests(task_shapes, resources),
        num_pending=np.bincount(task_class, minlength=len(keys)).astype(np.int64),
    )
    return _Gangs(
        classes=classes,
        shapes=shapes,
        shape_of=shape_of,
        task_start=task_start,
        task_class=task_class,
        gang_of=np.repeat(np.arange(len(rows), dtype=np.int64), num_tasks),
        blocked=blocked,
    )


def _blocked(
    gangs: Sequence[Gang],
    rows: Sequence[GangRow],
    queue_of: I64,
    queues: QueueArrays,
    gang_columns: GangColumns,
) -> dict[int, Reason]:
    """Return the reasons why gangs cannot be scheduled, keyed by gang index.

    An invalid PodGroup is reported first, then an unusable queue, then other reasons.
    """
    found: dict[int, Reason] = {}
    suspects = gang_columns.flags(_is_blocked) | (queue_of < 0)
    if queues.closed:
        suspects |= np.isin(queue_of, list(queues.closed))
    for i in np.flatnonzero(suspects).tolist():
        row, queue = rows[i], int(queue_of[i])
        if row.shape is None and row.blocked is None:
            continue
        reason = row.gang.problem
        if reason is None and queue < 0:
            reason = Reason(ReasonCode.QUEUE_NOT_FOUND, f"queue {gangs[i].queue} does not exist")
        reason = reason or queues.closed.get(queue) or row.blocked
        if reason is not None:
            found[i] = reason
    return found


def _shape_arrays(
    shapes: tuple[GangShape, ...], resources: Sequence[str]
) -> tuple[GangShapes, dict[_ClassKey, int]]:
    number: dict[_ClassKey, int] = {}
    entries = [e for s in shapes for e in s.entries]
    keys = [(e.shape, e.relation, e.queue, s.label, e.bound) for s in shapes for e in s.entries]
    class_of = [number.setdefault(key, len(number)) for key in keys]
    lengths = [0, *(len(s.entries) for s in shapes)]
    least = sparse_table((s.min_resources for s in shapes), _numbered(resources))
    arrays = GangShapes(
        shapes=shapes,
        start=np.cumsum(lengths, dtype=np.int64),
        class_of=np.array(class_of, np.int64),
        count=np.array([e.count for e in entries], np.int64),
        need=np.array([s.need for s in shapes], np.int64),
        is_started=np.array([s.is_started for s in shapes], np.bool_),
        least=least,
    )
    return arrays, number


def _requests(shapes: Sequence[TaskShape], resources: Sequence[str]) -> I64:
    """Return the request (len(shapes), R) of one task of each task shape, including one pod."""
    rows = ({PODS: 1, **dict(shape.request)}.items() for shape in shapes)
    return sparse_table(rows, _numbered(resources))


def _numbered(resources: Sequence[str]) -> dict[str, int]:
    return {name: r for r, name in enumerate(resources)}


# --- queues ------------------------------------------------------------------------------------


def _queue_of(snapshot: Snapshot, gang_columns: GangColumns, previous: Problem | None) -> I64:
    """Return the queue index (G,) of each gang, or -1 if the queue does not exist."""
    gangs, names = snapshot.gangs, tuple(q.name for q in snapshot.queues)
    number = {name: i for i, name in enumerate(names)}
    if previous is None or previous.queues.names != names or not len(previous.queue_of):
        return np.array([number.get(gang.queue, -1) for gang in gangs], np.int64)
    queue_of = previous.queue_of[gang_columns.index_before]
    fresh = np.flatnonzero(gang_columns.index_before < 0)
    queue_of[fresh] = [number.get(gangs[i].queue, -1) for i in fresh.tolist()]
    return queue_of


def _queues(
    snapshot: Snapshot,
    resources: tuple[str, ...],
    queue_of: I64,
    gang_columns: GangColumns,
    previous: Problem | None,
) -> QueueArrays:
    known = np.flatnonzero(queue_of >= 0)
    shape, columns = (len(snapshot.queues), len(resources)), _numbered(resources)

    # Many gangs of a queue have equal `Stake` objects, so count equal objects before summing their
    # amounts.
    stake_of, stakes = gang_columns.stakes
    pairs = queue_of[known] * len(stakes) + stake_of[known]
    pair_of, first = group_values(pairs)
    queue, kind = np.divmod(pairs[first], max(len(stakes), 1))
    times = np.bincount(pair_of, minlength=len(first)).astype(np.int64)[:, None]

    def by_queue(part_of: Callable[[Stake], Amounts]) -> I64:
        held = sparse_table(map(part_of, stakes), columns)[kind]
        sums, rough = np.zeros(shape, np.int64), np.zeros(shape)
        np.add.at(sums, queue, held * times)
        np.add.at(rough, queue, held.astype(np.float64) * times)
        return np.where(rough < LARGEST, sums, LARGEST)

    is_busy = np.array([bool(stake.requested) for stake in stakes], np.bool_)
    has_gangs = np.zeros(shape[0], np.bool_)
    has_gangs[queue[is_busy[kind]]] = True
    waits = np.array([stake.requested != stake.claimed for stake in stakes], np.bool_)
    waiting = known[waits[stake_of[known]]]
    oldest_ms = np.full(shape[0], NEVER_MS)
    np.minimum.at(oldest_ms, queue_of[waiting], gang_columns.numbers(_CREATED_MS)[waiting])
    demand = Demand(
        allocated=by_queue(attrgetter("allocated")),
        claimed=by_queue(attrgetter("claimed")),
        requested=by_queue(attrgetter("requested")),
        oldest_ms=oldest_ms,
        has_gangs=has_gangs,
    )
    if (
        previous is None
        or previous.resources != resources
        or not are_identical(previous.snapshot.queues, snapshot.queues)
    ):
        return queue_arrays(snapshot.queues, resources, demand)
    return with_demand(previous.queues, demand)


# --- nodes -------------------------------------------------------------------------------------


class _NodeAmounts(NamedTuple):
    allocatable: I64
    used: I64
    releasing: I64
    foreign: I64


def _node_amounts(
    nodes: Sequence[Node], resources: Sequence[str], previous: Problem | None
) -> _NodeAmounts:
    before = () if previous is None else previous.snapshot.nodes
    if (
        previous is None
        or previous.resources != tuple(resources)
        or len(before) != len(nodes)
        or any(a is not b and a.name != b.name for a, b in zip(nodes, before, strict=True))
    ):
        return _fresh_amounts(nodes, resources)
    changed = [i for i, (new, old) in enumerate(zip(nodes, before, strict=True)) if new is not old]
    kept = (previous.allocatable, previous.used, previous.releasing, previous.foreign)
    if not changed:
        return _NodeAmounts(*kept)
    fresh = _fresh_amounts([nodes[i] for i in changed], resources)
    patched = [array.copy() for array in kept]
    for array, rows in zip(patched, fresh, strict=True):
        array[changed] = rows
    return _NodeAmounts(*patched)


def _fresh_amounts(nodes: Sequence[Node], resources: Sequence[str]) -> _NodeAmounts:
    quotas = {r: NO_POD_LIMIT for r in resources if is_class_quota(r)}
    parts = ({**quotas, **node.offers}.items() if node.ready else () for node in nodes)
    offered = sparse_table(parts, _numbered(resources))
    residents = [(i, t) for i, node in enumerate(nodes) for t in node.residents]
    number: dict[TaskShape, int] = {}
    at = np.array([i for i, _ in residents], np.int64)
    shape_of = np.array([number.setdefault(t.shape, len(number)) for _, t in residents], np.int64)
    request = _requests(tuple(number), resources)[shape_of].reshape(len(residents), len(resources))
    leaves = np.array([t.status is TaskStatus.RELEASING for _, t in residents], np.bool_)
    stranger = np.array([not t.gang for _, t in residents], np.bool_)
    used, releasing, foreign = (np.zeros_like(offered) for _ in range(3))
    np.add.at(used, at, request)
    np.add.at(releasing, at[leaves], request[leaves])
    np.add.at(foreign, at[stranger], request[stranger])
    return _NodeAmounts(offered, used, releasing, foreign)


def _columns(nodes: Sequence[Node], previous: Problem | None) -> NodeColumns:
    if previous is None or len(previous.snapshot.nodes) != len(nodes):
        return NodeColumns(nodes)
    same = all(
        a is b
        or (
            a.name == b.name
            and a.labels is b.labels
            and a.taints == b.taints
            and a.unschedulable == b.unschedulable
        )
        for a, b in zip(nodes, previous.snapshot.nodes, strict=True)
    )
    return previous.columns.carry_over(nodes) if same else NodeColumns(nodes)
