"""Affinity between roles of a job: tasks with affinity form a bucket, a task set for one node.

Mathematics: models/formulation/task_topology.md. Volcano: `pkg/scheduler/plugins/task-topology`.
Annotations of a PodGroup name roles with affinity and roles with anti-affinity.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import TYPE_CHECKING

import numpy as np

from optsched.api.wellknown import (
    TASK_TOPOLOGY_AFFINITY,
    TASK_TOPOLOGY_ANTI_AFFINITY,
    TASK_TOPOLOGY_ORDER,
)
from optsched.plugins.declaration import Plugin, read_whole, weight_argument
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.next_request import first_task
from optsched.units import CPU, MEMORY, PODS, FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import LiveScorer
    from optsched.plugins.ledger import Ledger
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

TOP = 100.0
ANNOTATIONS = (TASK_TOPOLOGY_AFFINITY, TASK_TOPOLOGY_ANTI_AFFINITY, TASK_TOPOLOGY_ORDER)

_APART_FROM_ITSELF, _WITH_OTHERS, _WITH_ITSELF, _APART_FROM_OTHERS = 4, 3, 2, 1
"""Ranks of roles; tasks of roles with a larger rank are put in buckets first
(`affinityPriority`)."""

_Pair = frozenset[str]
"""A pair of roles; a single role stands for the pair of the role with itself."""


@dataclass(frozen=True)
class TaskTopology(Rule):
    """Order the tasks of a job by bucket (a task set for one node), and prefer nodes of the bucket.

    Attributes
    ----------
    weight
        Weight of the node score.

    """

    name = "task-topology"

    weight: int = 1

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no gang has annotations about its roles."""
        wanted: dict[int, Roles] = {}
        for gang in problem.open_gangs.tolist():
            roles = read_roles(problem.snapshot.gangs[gang].annotations, [])
            if roles is not None and roles.rank:
                wanted[gang] = roles
        return _Buckets(self.weight, problem, wanted) if wanted else None


# --- annotations ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Roles:
    """Affinity and order of the roles of a gang.

    Attributes
    ----------
    together, apart
        Pairs of roles with affinity, and pairs of roles with anti-affinity.
    rank
        Rank of each role that is in a pair; roles with a larger rank come first.
    place
        Rank of each role in the user's order; roles with a larger rank come first.

    """

    together: frozenset[_Pair]
    apart: frozenset[_Pair]
    rank: Mapping[str, int]
    place: Mapping[str, int]

    def pull(self, role: str, others: Mapping[str, int]) -> int:
        """Return the number of tasks with affinity to a role, minus tasks with anti-affinity."""
        drawn = sum(n for other, n in others.items() if frozenset((role, other)) in self.together)
        return drawn - self.push(role, others)

    def push(self, role: str, others: Mapping[str, int]) -> int:
        """Return the number of tasks with anti-affinity to a role, given task counts by role."""
        return sum(n for other, n in others.items() if frozenset((role, other)) in self.apart)

    def role_order(self, role: str) -> tuple[int, int]:
        """Return the sort key of a role."""
        return (-self.place.get(role, 0), -self.rank.get(role, 0))


def read_roles(annotations: Mapping[str, str], remarks: list[FieldError]) -> Roles | None:
    """Return affinity and order of roles from PodGroup annotations, or None if absent or invalid.

    A group that names a role twice is reported in `remarks`, and invalidates all annotations about
    roles, as in Volcano (`readTopologyFromPgAnnotations`).
    """
    before = len(remarks)
    near, far, order = (list(_groups(annotations, key, remarks)) for key in ANNOTATIONS)
    if len(remarks) > before or not (near or far or order):
        return None
    rank: dict[str, int] = {}
    for groups, alone, among in (
        (near, _WITH_ITSELF, _WITH_OTHERS),
        (far, _APART_FROM_ITSELF, _APART_FROM_OTHERS),
    ):
        for group in groups:
            for role in group:
                rank[role] = max(rank.get(role, 0), alone if len(group) == 1 else among)
    listed = [role for group in order for role in group]
    place = {role: len(listed) - i for i, role in enumerate(listed)}
    return Roles(frozenset(_pairs(near)), frozenset(_pairs(far)), rank, place)


def _groups(
    annotations: Mapping[str, str], key: str, remarks: list[FieldError]
) -> Iterator[list[str]]:
    """Yield the groups of roles in an annotation: `a,b;c` has the groups [a, b] and [c]."""
    text = annotations.get(key, "")
    for part in text.split(";") if key != TASK_TOPOLOGY_ORDER else [text]:
        roles = [role.strip() for role in part.split(",") if role.strip()]
        twice = [role for role, number in Counter(roles).items() if number > 1]
        if twice:
            path = f"metadata.annotations[{key}]"
            remarks.append(FieldError(path, text, f"names {', '.join(twice)} twice in a group"))
        if roles:
            yield roles


def _pairs(groups: Sequence[Sequence[str]]) -> Iterator[_Pair]:
    for group in groups:
        if len(group) == 1:
            yield frozenset(group)
        yield from (frozenset(pair) for pair in combinations(group, 2))


# --- buckets -------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Bucket:
    """A bucket: tasks that should be placed on one node.

    Attributes
    ----------
    roles
        Number of running and waiting tasks of the bucket by role.
    entries
        The entry (equal tasks of the gang) of each task that was pending at the session start, in
        the order of placement.
    placed
        Number of placed tasks of the bucket by entry (equal tasks of the gang).
    on_node
        Number of running and placed tasks of the bucket by node.
    load
        The total request of the bucket's waiting tasks as one number (Volcano: `reqScore`).

    """

    index: int
    roles: Counter[str] = field(default_factory=Counter)
    entries: list[int] = field(default_factory=list)
    placed: Counter[int] = field(default_factory=Counter)
    on_node: Counter[int] = field(default_factory=Counter)
    load: float = 0.0

    @property
    def waiting(self) -> list[int]:
        """The entry (equal tasks of the gang) of each task that still waits."""
        left, found = Counter(self.placed), []
        for entry in self.entries:
            if left[entry]:
                left[entry] -= 1
            else:
                found.append(entry)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    """A waiting task, the index of its entry (equal tasks), and its request as one number."""

    task: Task
    entry: int
    load: float


class _Sorter:
    """A distributor of one gang's tasks over buckets."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self.buckets: list[_Bucket] = []
        self.largest = 0

    def settle(self, here: Iterable[tuple[int, str]]) -> None:
        """Put running tasks, given as (node, role) in node order, in one bucket for each node."""
        by_node: dict[int, _Bucket] = {}
        for node, role in here:
            if role in self._roles.rank:
                bucket = by_node.get(node) or self._add_bucket()
                by_node[node] = bucket
                bucket.on_node[node] += 1
                self._count_role(bucket, role)

    def sort(self, tasks: Iterable[_Waiting]) -> dict[str, _Bucket]:
        """Put waiting tasks sequentially in buckets; return the bucket of each task by task key."""
        found: dict[str, _Bucket] = {}
        mine = (w for w in tasks if w.task.role in self._roles.rank)
        for waiting in sorted(
            mine, key=lambda w: (*self._roles.role_order(w.task.role), w.task.key)
        ):
            bucket = self._best(waiting.task.role) or self._add_bucket()
            bucket.entries.append(waiting.entry)
            bucket.load += waiting.load
            self._count_role(bucket, waiting.task.role)
            found[waiting.task.key] = bucket
        return found

    def _add_bucket(self) -> _Bucket:
        self.buckets.append(_Bucket(len(self.buckets)))
        return self.buckets[-1]

    def _count_role(self, bucket: _Bucket, role: str) -> None:
        bucket.roles[role] += 1
        self.largest = max(self.largest, bucket.roles.total())

    def _best(self, role: str) -> _Bucket | None:
        """Return the bucket with the most affinity to a role; the lowest load breaks ties.

        Returns None if no bucket exists or the affinity to every bucket is negative.
        """
        best: tuple[int, float, int] | None = None
        for bucket in self.buckets:
            key = (-self._roles.pull(role, bucket.roles), bucket.load, bucket.index)
            best = key if best is None else min(best, key)
        return None if best is None or best[0] > 0 else self.buckets[best[2]]


@dataclass(frozen=True, eq=False)
class _Plan:
    """The buckets of one gang and the placement of the gang's tasks.

    Attributes
    ----------
    runs
        (entry, number) pairs for runs of tasks of one entry (equal tasks), in the order of
        placement.
    next_of
        Maps an entry (equal tasks) to the bucket of each task, in the order of placement; None for
        a task in no bucket.
    role_of
        Maps each entry (equal tasks of the gang) to the role of the tasks.
    largest
        Number of tasks in the largest bucket.
    on_node
        Number of running and placed tasks of the gang by node and role.
    done
        Number of placed tasks of the gang by entry (equal tasks).

    """

    roles: Roles
    runs: tuple[tuple[int, int], ...]
    next_of: Mapping[int, Sequence[_Bucket | None]]
    role_of: Mapping[int, str]
    largest: int
    on_node: dict[int, Counter[str]]
    done: Counter[int] = field(default_factory=Counter)

    @classmethod
    def from_gang(cls, problem: Problem, gang: int, roles: Roles) -> _Plan:
        """Return the buckets of a gang with waiting tasks."""
        here = list(_standing(problem, gang))
        on_node: dict[int, Counter[str]] = {}
        for node, role in here:
            on_node.setdefault(node, Counter())[role] += 1
        tasks = list(_waiting(problem, gang))
        sorter = _Sorter(roles)
        sorter.settle(here)
        bucket_of = sorter.sort(tasks)
        ordered = _order_tasks(tasks, roles, bucket_of)
        next_of: dict[int, list[_Bucket | None]] = {w.entry: [] for w in tasks}
        for bucket in sorter.buckets:
            bucket.entries.clear()
        for waiting in ordered:
            found = bucket_of.get(waiting.task.key)
            next_of[waiting.entry].append(found)
            if found is not None:
                found.entries.append(waiting.entry)
        runs = groupby(w.entry for w in ordered)
        return cls(
            roles,
            tuple((entry, len(list(group))) for entry, group in runs),
            next_of,
            {w.entry: w.task.role for w in tasks},
            sorter.largest,
            on_node,
        )

    def bucket(self, entry: int) -> _Bucket | None:
        """Return the bucket of the next task of an entry (equal tasks of the gang)."""
        tasks, number = self.next_of[entry], self.done[entry]
        return tasks[number] if number < len(tasks) else None

    def move(self, entry: int, node: int, step: int) -> None:
        """Record that one task of an entry (equal tasks) is placed on a node; step -1 undoes it."""
        if step < 0:
            self.done[entry] -= 1
        bucket = self.bucket(entry)
        if step > 0:
            self.done[entry] += 1
        self.on_node.setdefault(node, Counter())[self.role_of[entry]] += step
        if bucket is not None:
            bucket.on_node[node] += step
            bucket.placed[entry] += step


def _order_tasks(
    tasks: Sequence[_Waiting], roles: Roles, bucket_of: Mapping[str, _Bucket]
) -> list[_Waiting]:
    """Return the tasks in the order of placement: large buckets first, unbucketed tasks last."""

    def role_order(waiting: _Waiting) -> tuple[object, ...]:
        task, bucket = waiting.task, bucket_of.get(waiting.task.key)
        if bucket is None:
            return (-task.priority, 1, 0, 0, 0, 0, task.order)
        size, role = len(bucket.entries), roles.role_order(task.role)
        return (-task.priority, 0, -size, bucket.index, *role, task.order)

    return sorted(tasks, key=role_order)


def _standing(problem: Problem, gang: int) -> Iterator[tuple[int, str]]:
    """Yield (node index, role) of the running tasks of a gang, sorted by node name."""
    number = {n.name: i for i, n in enumerate(problem.snapshot.nodes)}
    tasks = problem.snapshot.gangs[gang].tasks
    here = (t for t in tasks if t.node in number and t.status.holds_resources)
    yield from ((number[t.node], t.role) for t in sorted(here, key=lambda t: t.node))


def _waiting(problem: Problem, gang: int) -> Iterator[_Waiting]:
    shape = problem.shapes.shapes[int(problem.shape_of[gang])]
    weights = np.array([_points(name) for name in problem.resources])
    for number, entry in enumerate(shape.entries):
        first = first_task(problem, gang, number)
        request = problem.classes.request[int(problem.task_class[first])]
        for task in problem.tasks[first : first + entry.count]:
            yield _Waiting(task, number, float(request @ weights))


def _points(resource: str) -> float:
    """Return the weight of one base unit of a resource in the load of a task."""
    if resource in (CPU, PODS):
        return 1.0
    return 1 / 2**20 if resource in (MEMORY, "ephemeral-storage") else 1000.0


class _Buckets(Greedy):
    """The task order and node scores, updated as tasks are placed."""

    def __init__(self, weight: int, problem: Problem, wanted: Mapping[int, Roles]) -> None:
        self._weight = weight
        self._problem = problem
        self._plans = {
            gang: _Plan.from_gang(problem, gang, roles) for gang, roles in wanted.items()
        }
        self._room = np.maximum(problem.idle, 0) + problem.releasing

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        plan = self._plans.get(gang)
        return None if plan is None else plan.runs

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        plan = self._plans.get(gang)
        if plan is None or not self._weight or not any(plan.next_of[entry]):
            return None

        def score(nodes: Bool) -> F64:
            bucket = plan.bucket(entry)
            if bucket is None:
                return np.zeros(len(nodes))
            return self._worth(plan, bucket, gang, entry) * self._weight * TOP / plan.largest

        return score

    def _worth(self, plan: _Plan, bucket: _Bucket, gang: int, entry: int) -> F64:
        """Return (N,) the number of a bucket's tasks that run on or still fit each node.

        The count includes the next task of the entry, and excludes tasks that do not fit together
        with the next task. The number of tasks on the node with anti-affinity to the next task is
        subtracted.
        """
        request = self._request(gang, entry)
        waiting = bucket.waiting
        worth = np.full(len(self._room), float(len(waiting)))
        worth -= self._unfitting_tasks([self._request(gang, e) for e in waiting], request)
        for node, number in bucket.on_node.items():
            worth[node] += number
        for node, others in plan.on_node.items():
            worth[node] -= plan.roles.push(plan.role_of[entry], others)
        fits = (self._room >= request).all(axis=1)
        return np.where(fits, worth, 0.0)

    def _unfitting_tasks(self, waiting: Sequence[I64], own: I64) -> I64:
        """Return (N,) the number of waiting tasks to drop until the rest of the bucket fits.

        The last tasks are dropped first, but one task with the request `own` is never dropped.
        """
        others = list(waiting)
        others.pop(next(i for i, request in enumerate(others) if (request == own).all()))
        less = np.cumsum([np.zeros_like(own), *reversed(others)], axis=0)
        lacking = own + less[-1] - self._room
        needed = [np.searchsorted(less[:, r], lacking[:, r]) for r in range(len(own))]
        found: I64 = np.minimum(np.max(needed, axis=0), len(others))
        return found

    def _request(self, gang: int, entry: int) -> I64:
        first = first_task(self._problem, gang, entry)
        found: I64 = self._problem.classes.request[self._problem.task_class[first]]
        return found

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        taken = counts[:, None] * self._problem.classes.request[task_class]
        np.subtract.at(self._room, nodes, taken)

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        plan = self._plans.get(gang)
        if plan is None:
            return
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            for _ in range(abs(count)):
                plan.move(entry, node, 1 if count > 0 else -1)


PLUGIN = Plugin(
    "task-topology",
    "affinity between the roles of a job",
    (weight_argument("task-topology.weight", 1, "weight of the score"),),
    lambda a: (TaskTopology(read_whole(a, "task-topology.weight", 1)),),
)
