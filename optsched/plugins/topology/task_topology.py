"""Affinity between the roles of a job: tasks with affinity form a bucket that prefers one node.

Mathematics: models/formulation/task_topology.md. Volcano: `pkg/scheduler/plugins/task-topology`.
PodGroup annotations list roles with affinity and roles with anti-affinity.
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
from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.gang import first_task
from optsched.units import CPU, MEMORY, PODS, FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import LiveScorer
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem

TOP = 100.0
ANNOTATIONS = (TASK_TOPOLOGY_AFFINITY, TASK_TOPOLOGY_ANTI_AFFINITY, TASK_TOPOLOGY_ORDER)

_APART_FROM_ITSELF, _WITH_OTHERS, _WITH_ITSELF, _APART_FROM_OTHERS = 4, 3, 2, 1
"""Ranks of roles; tasks of roles with larger ranks join buckets first (`affinityPriority`)."""

_LOAD_OF_UNIT = {CPU: 1.0, PODS: 1.0, MEMORY: 2**-20, "ephemeral-storage": 2**-20}
"""The load of one base unit of each resource; a resource that is not listed has the load 1000."""

_Pair = frozenset[str]
"""A pair of roles as a set, which has one element if a role is paired with itself."""


@dataclass(frozen=True)
class TaskTopology(Rule):
    """Orders a job's tasks by bucket (a set of tasks for one node) and prefers the bucket's nodes.

    Attributes
    ----------
    weight
        Weight of the node score.

    """

    name = "task-topology"

    weight: int = 1

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no gang has annotations about its roles."""
        plans: dict[int, _Plan] = {}
        for gang in problem.open_gangs.tolist():
            roles = read_roles(problem.snapshot.gangs[gang].annotations, [])
            if roles is not None and roles.rank:
                plans[gang] = _Plan.from_gang(problem, gang, roles)
        future_idle = np.maximum(problem.idle, 0) + problem.releasing
        return _Buckets(self.weight, problem, plans, future_idle) if plans else None


# --- annotations ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Roles:
    """The affinities between the roles of a gang, and the rank of each role.

    Attributes
    ----------
    together, apart
        Pairs of roles with affinity, and pairs of roles with anti-affinity.
    rank
        Rank of each role that is in a pair; a larger rank comes first.
    place
        Rank of each role in the task order annotation; a larger rank comes first.

    """

    together: frozenset[_Pair]
    apart: frozenset[_Pair]
    rank: Mapping[str, int]
    place: Mapping[str, int]

    def sum_affinity(self, role: str, others: Mapping[str, int]) -> int:
        """Return how many tasks have affinity to a role, minus those that have anti-affinity."""
        drawn = sum(n for other, n in others.items() if frozenset((role, other)) in self.together)
        return drawn - self.count_separated_tasks(role, others)

    def count_separated_tasks(self, role: str, others: Mapping[str, int]) -> int:
        """Return the number of tasks with anti-affinity to a role, given task counts by role."""
        return sum(n for other, n in others.items() if frozenset((role, other)) in self.apart)

    def role_order(self, role: str) -> tuple[int, int]:
        """Return the sort key of a role: its rank in the task order, then its rank by affinity."""
        return (-self.place.get(role, 0), -self.rank.get(role, 0))


def read_roles(annotations: Mapping[str, str], remarks: list[FieldError]) -> Roles | None:
    """Return the roles in PodGroup annotations, or None if the annotations are absent or invalid.

    A group that lists a role twice is reported in `remarks` and makes all role annotations invalid,
    as in Volcano (`readTopologyFromPgAnnotations`).
    """
    before = len(remarks)
    near, far, order = (list(_read_groups(annotations, key, remarks)) for key in ANNOTATIONS)
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
    # A role alone in its group is paired with itself.
    near_pairs, far_pairs = (
        frozenset(
            frozenset(pair)
            for group in groups
            for pair in (combinations(group, 2) if len(group) > 1 else [group])
        )
        for groups in (near, far)
    )
    return Roles(near_pairs, far_pairs, rank, place)


def _read_groups(
    annotations: Mapping[str, str], key: str, remarks: list[FieldError]
) -> Iterator[list[str]]:
    """Yield the groups of roles in an annotation; `a,b;c` contains the groups [a, b] and [c]."""
    text = annotations.get(key, "")
    for part in text.split(";") if key != TASK_TOPOLOGY_ORDER else [text]:
        roles = [role.strip() for role in part.split(",") if role.strip()]
        twice = [role for role, number in Counter(roles).items() if number > 1]
        if twice:
            path = f"metadata.annotations[{key}]"
            remarks.append(FieldError(path, text, f"names {', '.join(twice)} twice in a group"))
        if roles:
            yield roles


# --- buckets -------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Bucket:
    """Tasks of a gang that should be placed on the same node.

    Attributes
    ----------
    roles
        Number of running and waiting tasks by role.
    entries
        The entry (set of equal tasks) of each pending task of the bucket, in placement order.
    placed
        Number of placed tasks of the bucket, by entry.
    on_node
        Number of running and placed tasks of the bucket, by node.
    load
        The total request of the waiting tasks as one number (Volcano: `reqScore`).

    """

    index: int
    roles: Counter[str] = field(default_factory=Counter)
    entries: list[int] = field(default_factory=list)
    placed: Counter[int] = field(default_factory=Counter)
    on_node: Counter[int] = field(default_factory=Counter)
    load: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    """A waiting task, the index of its entry (set of equal tasks), and the load of the task."""

    task: Task
    entry: int
    load: float


def _fill_buckets(
    roles: Roles, running: Iterable[tuple[int, str]], waiting: Iterable[_Waiting]
) -> tuple[list[_Bucket], dict[str, _Bucket]]:
    """Return the buckets of a gang, and the bucket of each waiting task by task key.

    Running tasks, given as (node, role) in node order, form one bucket per node. Each waiting task
    joins the bucket with the highest affinity to its role; the lowest load breaks ties. A task that
    has negative affinity to every bucket starts a new bucket.
    """
    buckets: list[_Bucket] = []
    by_node: dict[int, _Bucket] = {}
    for node, role in running:
        if role in roles.rank:
            if node not in by_node:
                by_node[node] = _Bucket(len(buckets))
                buckets.append(by_node[node])
            by_node[node].on_node[node] += 1
            by_node[node].roles[role] += 1
    bucket_of: dict[str, _Bucket] = {}
    with_rank = (w for w in waiting if w.task.role in roles.rank)
    for each in sorted(with_rank, key=lambda w: (*roles.role_order(w.task.role), w.task.key)):
        role = each.task.role
        keys = (
            (-roles.sum_affinity(role, bucket.roles), bucket.load, bucket.index)
            for bucket in buckets
        )
        best = min(keys, default=None)
        if best is None or best[0] > 0:
            buckets.append(_Bucket(len(buckets)))
        bucket = buckets[-1 if best is None or best[0] > 0 else best[2]]
        bucket.entries.append(each.entry)
        bucket.load += each.load
        bucket.roles[role] += 1
        bucket_of[each.task.key] = bucket
    return buckets, bucket_of


@dataclass(frozen=True, eq=False)
class _Plan:
    """The buckets of one gang and the placement of its tasks.

    Attributes
    ----------
    runs
        (entry, number) pairs: consecutive tasks of one entry (set of equal tasks), in placement
        order.
    next_of
        The buckets of the tasks of each entry, in placement order; None for a task without a
        bucket.
    role_of
        The role of the tasks of each entry.
    largest
        Number of tasks in the largest bucket.
    on_node
        Number of running and placed tasks of the gang, by node and role.
    done
        Number of placed tasks of the gang, by entry.

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
        number = {n.name: i for i, n in enumerate(problem.snapshot.nodes)}
        standing = [
            task
            for task in problem.snapshot.gangs[gang].tasks
            if task.node in number and task.status.holds_resources
        ]
        standing.sort(key=lambda t: t.node)
        running = [(number[task.node], task.role) for task in standing]
        on_node: dict[int, Counter[str]] = {}
        for node, role in running:
            on_node.setdefault(node, Counter())[role] += 1
        shape = problem.shapes.shapes[int(problem.shape_of[gang])]
        weights = np.array([_LOAD_OF_UNIT.get(name, 1000.0) for name in problem.resources])
        tasks: list[_Waiting] = []
        for e, entry in enumerate(shape.entries):
            first = first_task(problem, gang, e)
            load = float(problem.classes.request[int(problem.task_class[first])] @ weights)
            tasks += (_Waiting(t, e, load) for t in problem.tasks[first : first + entry.count])
        buckets, bucket_of = _fill_buckets(roles, running, tasks)
        ordered = sorted(tasks, key=lambda w: _order_placements(w, roles, bucket_of))
        next_of: dict[int, list[_Bucket | None]] = {w.entry: [] for w in tasks}
        for bucket in buckets:
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
            max((bucket.roles.total() for bucket in buckets), default=0),
            on_node,
        )

    def bucket(self, entry: int) -> _Bucket | None:
        """Return the bucket of the next task of an entry (set of equal tasks)."""
        tasks, number = self.next_of[entry], self.done[entry]
        return tasks[number] if number < len(tasks) else None

    def move(self, entry: int, node: int, step: int) -> None:
        """Record that a task of an entry is placed on a node (`step` 1) or removed (`step` -1)."""
        if step < 0:
            self.done[entry] -= 1
        bucket = self.bucket(entry)
        if step > 0:
            self.done[entry] += 1
        self.on_node.setdefault(node, Counter())[self.role_of[entry]] += step
        if bucket is not None:
            bucket.on_node[node] += step
            bucket.placed[entry] += step


def _order_placements(
    waiting: _Waiting, roles: Roles, bucket_of: Mapping[str, _Bucket]
) -> tuple[object, ...]:
    """Return a sort key: highest priority, then largest bucket; tasks without a bucket last."""
    task, bucket = waiting.task, bucket_of.get(waiting.task.key)
    if bucket is None:
        return (-task.priority, 1, 0, 0, 0, 0, task.order)
    size, role = len(bucket.entries), roles.role_order(task.role)
    return (-task.priority, 0, -size, bucket.index, *role, task.order)


@dataclass(eq=False)
class _Buckets(Greedy):
    """Tracks the task order and the node scores while tasks are placed."""

    _weight: int
    _problem: Problem
    _plans: Mapping[int, _Plan]
    _future_idle: I64

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        plan = self._plans.get(gang)
        return None if plan is None else plan.runs

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        plan = self._plans.get(gang)
        if plan is None or not self._weight or not any(plan.next_of[entry]):
            return None
        return lambda nodes: self._score(plan, gang, entry)

    def _score(self, plan: _Plan, gang: int, entry: int) -> F64:
        """Return node scores (N,) for the next task of an entry (a set of equal tasks).

        The score is proportional to the number of the bucket's tasks that run on the node or still
        fit on it, including the next task. Tasks on the node with anti-affinity to the next task
        reduce the score.
        """
        bucket = plan.bucket(entry)
        if bucket is None:
            return np.zeros(len(self._future_idle))
        own = self._request(gang, entry)
        placed, others = Counter(bucket.placed), []
        for waiting in bucket.entries:
            if placed[waiting]:
                placed[waiting] -= 1
            else:
                others.append(self._request(gang, waiting))
        count = np.full(len(self._future_idle), float(len(others)))
        others.pop(next(i for i, request in enumerate(others) if (request == own).all()))
        # The last tasks of the bucket are dropped until the other tasks fit on the node.
        dropped = np.cumsum([np.zeros_like(own), *reversed(others)], axis=0)
        lacking = own + dropped[-1] - self._future_idle
        needed = [np.searchsorted(dropped[:, r], lacking[:, r]) for r in range(len(own))]
        count -= np.minimum(np.max(needed, axis=0), len(others))
        for node, number in bucket.on_node.items():
            count[node] += number
        for node, tasks in plan.on_node.items():
            count[node] -= plan.roles.count_separated_tasks(plan.role_of[entry], tasks)
        fits = (self._future_idle >= own).all(axis=1)
        return np.where(fits, count, 0.0) * self._weight * TOP / plan.largest

    def _request(self, gang: int, entry: int) -> I64:
        first = first_task(self._problem, gang, entry)
        found: I64 = self._problem.classes.request[self._problem.task_class[first]]
        return found

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        taken = counts[:, None] * self._problem.classes.request[task_class]
        np.subtract.at(self._future_idle, nodes, taken)

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
    (Argument("task-topology.weight", Kind.WHOLE, 1, "weight of the score"),),
    lambda a: (TaskTopology(read_whole(a, "task-topology.weight", 1)),),
)
