"""Compile gangs and subgroups into gang shapes; interchangeable gangs share one gang shape.

A subgroup is a sub-job of Volcano (`pkg/scheduler/api/sub_job_info.go`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from optsched.cluster.amounts import NOTHING, total
from optsched.cluster.bounded_cache import Interned, SharedObjects
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import QueueGate, TaskStatus
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task, TaskShape
    from optsched.cluster.topology import SubGroup, TopologyRequest

NO_PART = -1
"""The subgroup index of a task that belongs to no subgroup."""


@dataclass(frozen=True, slots=True)
class Part:
    """A subgroup that has pending tasks.

    Attributes
    ----------
    rule
        Index of the rule (subGroupPolicy) that forms the subgroup.
    need
        Number of tasks of the subgroup that must start together; 0 if the subgroup's minimum
        already runs.
    topology
        The topology request of the rule, or None.
    held
        Names of the nodes with running tasks of the subgroup; empty without a topology request.
    """

    rule: int
    need: int
    topology: TopologyRequest | None = None
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """The subgroups of one gang.

    Attributes
    ----------
    parts
        Subgroups in the order of their first tasks.
    part_of
        Maps the key of each pending task in a subgroup to the index of the subgroup in `parts`.
    need_groups
        (rule index, number of subgroups of the rule that must still start) pairs. The gang counts
        as started once these subgroups have started.
    short
        Keys of the pending tasks whose subgroups have too few pods to start.
    lacking
        Why the first subgroup with too few pods cannot start, or None if every subgroup has enough
        pods.
    problem
        Why too few subgroups of the gang can start, or None if enough subgroups can start.
    """

    parts: tuple[Part, ...] = ()
    part_of: Mapping[str, int] | None = None
    need_groups: tuple[tuple[int, int], ...] = ()
    short: frozenset[str] = frozenset()
    lacking: Reason | None = None
    problem: Reason | None = None


NO_PARTS = Parts()


def find_subgroups(gang: Gang, ready: Iterable[Task], waiting: Sequence[Task]) -> Parts:
    """Find the subgroups of a gang that have pending tasks and enough pods to start.

    `waiting` lists the pending tasks of the gang in task order.
    """
    if not gang.sub_groups:
        return NO_PARTS
    if gang.is_loose:
        loose = (replace(rule, size=0, min_groups=0) for rule in gang.sub_groups)
        gang = replace(gang, sub_groups=tuple(loose))
    there, missing = gang.by_sub_group(ready), gang.by_sub_group(waiting)
    groups: list[SubGroup] = []
    short: list[SubGroup] = []
    parts: list[Part] = []
    lacking: Reason | None = None
    for group, waits in missing.items():
        rule, ready_tasks = gang.sub_groups[group[0]], there.get(group, [])
        have = len(waits) + len(ready_tasks)
        if have >= rule.size:
            held = standing_on(ready_tasks) if rule.topology is not None else ()
            need = max(0, rule.size - len(ready_tasks))
            groups.append(group)
            parts.append(Part(group[0], need, rule.topology, held))
            continue
        short.append(group)
        if lacking is None:
            name = "-".join((rule.name or str(group[0]), *group[1]))
            text = f"subgroup {name} needs {rule.size} pods, but only {have} exist"
            lacking = Reason(ReasonCode.NOT_ENOUGH_TASKS, text)
    number = {group: i for i, group in enumerate(groups)}
    need_groups, problem = _need_groups(gang, there, groups)
    return Parts(
        parts=tuple(parts),
        part_of={t.key: number[g] for g in groups for t in missing[g]},
        need_groups=need_groups,
        short=frozenset(t.key for g in short for t in missing[g]),
        lacking=lacking,
        problem=problem,
    )


def standing_on(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the sorted names of the nodes on which the given tasks are running or bound."""
    return tuple(sorted({t.node for t in tasks if t.status.is_standing}))


def _need_groups(
    gang: Gang, there: Mapping[SubGroup, Sequence[Task]], startable: Iterable[SubGroup]
) -> tuple[tuple[tuple[int, int], ...], Reason | None]:
    """Return `Parts.need_groups`, and why too few subgroups can start (None if enough can)."""
    run = {group for group, tasks in there.items() if len(tasks) >= gang.sub_groups[group[0]].size}
    open_groups = [group for group in startable if group not in run]
    needs: list[tuple[int, int]] = []
    problem: Reason | None = None
    for number, rule in enumerate(gang.sub_groups):
        need = rule.min_groups - sum(r == number for r, _ in run)
        if need <= 0:
            continue
        needs.append((number, need))
        have = sum(r == number for r, _ in open_groups)
        if have < need and problem is None:
            problem = Reason(
                ReasonCode.NOT_ENOUGH_TASKS,
                f"subGroupPolicy {rule.name or number} needs {rule.min_groups} groups of "
                f"{rule.size} pods, but pods exist for {rule.min_groups - need + have} only",
            )
    return tuple(needs), problem


Relation = tuple[int, ...]
"""Indices of the affinity and spread terms of other pods that select a task."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A group of equal pending tasks of one gang: role, `TaskShape` and number of tasks.

    Attributes
    ----------
    relation
        Indices of the terms of other pods that select the tasks.
    part
        Index of the tasks' subgroup, or NO_PART.
    queue
        Queue of the tasks if the queue restricts the choice of nodes, else an empty string.
    bound
        Indices of the reservations that the tasks must respect (see `binding_reservations`).

    """

    role: str
    shape: TaskShape
    relation: Relation
    count: int
    part: int = NO_PART
    queue: str = ""
    bound: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GangShape:
    """The pending requests and the minimums that interchangeable gangs share.

    Attributes
    ----------
    entries
        Groups of equal pending tasks, in the order of their first tasks.
    sequence
        (entry index, number of tasks) pairs, one per run of equal tasks in task order. The numbers
        of an entry add up to the entry's task count.
    need
        Number of tasks that must start together; 0 if the gang has started.
    need_role
        (role, number of tasks that must start together) pairs of the roles below their minimum.
    least_before
        The value of `min_members` before this session chose victims in the gang, or None without
        victims.
    is_started
        Whether the gang's minimum already runs, so that further tasks may start individually.
    min_resources
        Amounts that must be idle in the cluster before the gang starts; empty if the gang has
        started.
    parts
        Subgroups with pending tasks.
    need_groups
        (rule index, number of subgroups of the rule that must start together) pairs.
    topology, held
        The gang's topology request, and the names of the nodes with its running tasks. `held` is
        empty if the gang has no topology request.
    """

    entries: tuple[Entry, ...]
    sequence: tuple[tuple[int, int], ...]
    need: int
    need_role: tuple[tuple[str, int], ...]
    is_started: bool
    min_resources: Amounts
    parts: tuple[Part, ...] = ()
    need_groups: tuple[tuple[int, int], ...] = ()
    topology: TopologyRequest | None = None
    held: tuple[str, ...] = ()
    least_before: int | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        asked = (self.need, self.need_role, self.is_started, self.min_resources)
        inner = (self.parts, self.need_groups, self.topology, self.held)
        object.__setattr__(self, "_hash", hash((self.entries, self.sequence, asked, inner)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_tasks(self) -> int:
        """The number of pending tasks."""
        return sum(e.count for e in self.entries)

    @property
    def min_members(self) -> int:
        """The number of tasks that must start together; 0 if the gang has started."""
        return _min_members(self.need, self.need_role)

    @property
    def admitted_members(self) -> int:
        """The value of `min_members` before this session chose victims in the gang."""
        return self.min_members if self.least_before is None else self.least_before

    @property
    def label(self) -> str:
        """The node label whose values are the network domains; empty for HyperNodes."""
        return "" if self.topology is None else self.topology.label

    @property
    def is_rigid(self) -> bool:
        """Whether the gang can start only with all its pending tasks."""
        return self.need == self.num_tasks and not self.is_started


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Stake:
    """A gang's allocated, claimed and requested amounts (see `GangRow`), and its minimum amounts.

    The amounts `minimum` must be idle in the cluster before the gang starts. `requests` contains
    the distinct requests of all pending tasks of the gang.
    """

    allocated: Amounts
    claimed: Amounts
    requested: Amounts
    minimum: Amounts
    requests: tuple[Amounts, ...]


# The stores use weak references, so Python frees an object once no gang uses it.
STAKES: Final[SharedObjects[Stake]] = SharedObjects(Stake)
SHAPES: Final[Interned[GangShape]] = Interned()
"""Maps equal gang shapes to one object, which makes comparisons fast."""


@dataclass(frozen=True, slots=True)
class GangRow:
    """One compiled gang; sessions reuse the row while the gang object stays the same.

    Attributes
    ----------
    shape
        The gang shape, or None if the gang is blocked or has no pending task.
    pending
        The pending tasks that may be placed, grouped by entry and in task order within an entry.
    num_ready
        Number of tasks that already count towards the gang's minimum.
    allocated, claimed, requested
        Amounts in base units by resource. `allocated` sums the requests of bound, running and
        expected tasks. `claimed` is `allocated` plus the requests of this session's victims.
        `requested` is `claimed` plus the requests of the pending tasks of a valid gang, or plus the
        gang's `deferred_demand`.
    queue
        The gang's queue if it restricts the choice of nodes, else an empty string.
    bound
        Indices of the reservations that the gang must respect (see `binding_reservations`).
    is_gated
        Whether a pending task has, or had, the scheduling gate that is removed when the queue
        admits the gang.
    requests
        The distinct requests of all pending tasks, including tasks that cannot be placed in this
        session.
    stake
        The gang's amounts as one object, which gangs with equal amounts share.
    """

    gang: Gang
    shape: GangShape | None
    pending: tuple[Task, ...]
    num_ready: int
    allocated: Mapping[str, int]
    claimed: Mapping[str, int]
    requested: Mapping[str, int]
    blocked: Reason | None
    queue: str = ""
    bound: tuple[int, ...] = ()
    is_gated: bool = False
    requests: tuple[Amounts, ...] = ()
    stake: Stake = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.allocated, self.claimed, self.requested, dict(self.gang.missing_resources))
        stake = STAKES.intern(*(tuple(part.items()) for part in parts), self.requests)
        object.__setattr__(self, "stake", stake)


def gang_row(
    gang: Gang,
    relations: Mapping[str, Relation] | None = None,
    queue: str = "",
    bound: tuple[int, ...] = (),
) -> GangRow:
    """Compile a gang into a `GangRow`, which sessions reuse.

    Parameters
    ----------
    relations
        Maps the key of a pending task to the terms of other pods that select the task; None if no
        term selects a task.
    queue
        The gang's queue if it restricts the choice of nodes, else an empty string.
    bound
        Indices of the reservations that the gang must respect (see `binding_reservations`).

    """
    ready = [t for t in gang.tasks if t.status.counts_as_ready]
    waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING and t.problem is None]
    holding = [t for t in gang.tasks if t.status.counts_for_queue]
    claiming = [t for t in gang.tasks if t.status.counts_for_queue or t.is_victim]
    held = claimed = asked = _sum_requests(holding)
    if len(claiming) > len(holding):
        claimed = asked = _sum_requests(claiming)
    if gang.problem is None and waiting:
        asked = _sum_requests(claiming + waiting)
    elif gang.deferred_demand:
        asked = total((tuple(claimed.items()), gang.deferred_demand))
    amounts = (held, claimed, asked)
    parts = find_subgroups(gang, ready, waiting)
    short: list[Task] = []
    if parts.short:
        short = [t for t in waiting if t.key in parts.short]
        waiting = [t for t in waiting if t.key not in parts.short]
    need, need_role = _missing_tasks(gang, ready)
    blocked = gang.problem or parts.problem
    if (
        blocked is None
        and (too_few := _explain_shortage(gang, waiting, need, need_role)) is not None
    ):
        blocked = parts.lacking or too_few
    if blocked or not waiting:
        distinct = tuple(dict.fromkeys(t.shape.request for t in (*waiting, *short)))
        return GangRow(
            gang, None, (), len(ready), *amounts, blocked, queue, bound, requests=distinct
        )
    entries, sequence, pending = _entries(waiting, relations or {}, parts.part_of or {})
    # Read one request per group of equal tasks, because hashing the request of every task is slow.
    requests: tuple[Amounts, ...] = (entries[0].shape.request,)
    if len(entries) > 1 or short:
        shapes = [*(e.shape for e in entries), *(t.shape for t in short)]
        requests = tuple(dict.fromkeys(shape.request for shape in shapes))
    has_least = need == 0 and not need_role
    least_before = None
    if len(claiming) > len(holding):
        victims = [t for t in gang.tasks if t.is_victim]
        least_before = _min_members(*_missing_tasks(gang, [*ready, *victims]))
    if queue or bound:
        entries = tuple(replace(e, queue=queue, bound=bound) for e in entries)
    shape = GangShape(
        entries=entries,
        sequence=sequence,
        need=need,
        need_role=need_role,
        is_started=has_least and not parts.need_groups,
        min_resources=NOTHING if has_least else gang.missing_resources,
        parts=parts.parts,
        need_groups=parts.need_groups,
        topology=gang.topology,
        held=standing_on(ready) if gang.topology is not None else (),
        least_before=least_before,
    )
    shape = SHAPES.intern(shape)
    is_gated = any(t.gate is not QueueGate.NONE for t in pending)
    return GangRow(
        gang, shape, pending, len(ready), *amounts, None, queue, bound, is_gated, requests
    )


def rebound(row: GangRow, bound: tuple[int, ...]) -> GangRow:
    """Return a copy of a row whose gang must respect the reservations with the indices `bound`."""
    shape = row.shape
    if shape is not None:
        entries = tuple(replace(e, bound=bound) for e in shape.entries)
        shape = SHAPES.intern(replace(shape, entries=entries))
    return replace(row, shape=shape, bound=bound)


def _sum_requests(tasks: Iterable[Task]) -> Mapping[str, int]:
    """Return the sum of the tasks' requests by resource, including one pod per task."""
    listed = list(tasks)
    return {PODS: len(listed), **total(t.shape.request for t in listed)} if listed else {}


def _min_members(need: int, need_role: Iterable[tuple[str, int]]) -> int:
    return max(need, sum(n for _, n in need_role))


def _missing_tasks(gang: Gang, ready: Sequence[Task]) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return how many more tasks of a gang must start together, in total and in each role."""
    if gang.is_loose:
        return 0, ()
    need = max(0, gang.min_member - len(ready))
    if not gang.role_minimums:
        return need, ()
    have: dict[str, int] = {}
    for task in ready:
        have[task.role] = have.get(task.role, 0) + 1
    short = ((role, n - have.get(role, 0)) for role, n in gang.role_minimums)
    return need, tuple((role, n) for role, n in short if n > 0)


def _explain_shortage(
    gang: Gang, waiting: Sequence[Task], need: int, need_role: tuple[tuple[str, int], ...]
) -> Reason | None:
    """Return why the gang's existing tasks cannot reach its minimum, or None if they can."""
    roles = [t.role for t in waiting]
    lacking = [(role, n - roles.count(role)) for role, n in need_role if roles.count(role) < n]
    if len(waiting) >= need and not lacking:
        return None
    for task in gang.tasks:
        if task.problem is not None:
            return Reason(ReasonCode.INVALID_POD, f"pod {task.key}: {task.problem.message}")
    gated = sum(t.status is TaskStatus.GATED for t in gang.tasks)
    if gated:
        return Reason(
            ReasonCode.GATED,
            f"{gated} of {len(gang.tasks)} pods are held back by scheduling gates, "
            f"and the gang needs {gang.min_member}",
        )
    if lacking:
        role, short = lacking[0]
        return Reason(
            ReasonCode.NOT_ENOUGH_TASKS,
            f"minTaskMember[{role}] is {dict(gang.role_minimums)[role]}, "
            f"but {short} of these pods do not exist yet",
        )
    alive = gang.min_member - need + len(waiting)
    exist = "pod exists" if alive == 1 else "pods exist"
    return Reason(
        ReasonCode.NOT_ENOUGH_TASKS,
        f"minMember is {gang.min_member}, but only {alive} {exist}",
    )


def _entries(
    waiting: Sequence[Task], relations: Mapping[str, Relation], part_of: Mapping[str, int]
) -> tuple[tuple[Entry, ...], tuple[tuple[int, int], ...], tuple[Task, ...]]:
    """Return the entries, the value of `GangShape.sequence`, and the tasks in entry order."""
    if not relations and not part_of:
        first = waiting[0]
        if all(t.shape is first.shape and t.role == first.role for t in waiting):
            entry = Entry(first.role, first.shape, (), len(waiting), NO_PART)
            in_order = tuple(sorted(waiting, key=lambda t: t.order))
            return (entry,), ((0, len(waiting)),), in_order
    members: dict[tuple[str, TaskShape, Relation, int], list[Task]] = {}
    number: dict[tuple[str, TaskShape, Relation, int], int] = {}
    order: list[int] = []
    for task in sorted(waiting, key=lambda t: t.order):
        part = part_of.get(task.key, NO_PART)
        key = (task.role, task.shape, relations.get(task.key, ()), part)
        order.append(number.setdefault(key, len(number)))
        members.setdefault(key, []).append(task)
    entries = tuple(Entry(r, s, m, len(tasks), p) for (r, s, m, p), tasks in members.items())
    sequence = tuple((entry, sum(1 for _ in run)) for entry, run in groupby(order))
    return entries, sequence, tuple(t for tasks in members.values() for t in tasks)
