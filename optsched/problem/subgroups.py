"""Find the subgroups of a gang that have pending tasks.

Volcano calls them sub-jobs (`pkg/scheduler/api/sub_job_info.go`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.topology import sub_group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task
    from optsched.cluster.topology import TopologyRequest

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
        Number of tasks that must start together; 0 if the subgroup's minimum already runs.
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
        Index in `parts` of each pending task's subgroup, by task key; tasks without a subgroup are
        missing.
    need_groups
        (rule, number of the rule's subgroups that must still start for the gang to count as
        started) pairs.
    short
        Keys of the pending tasks whose subgroups have too few pods to start.
    lacking
        Why the first subgroup with too few pods cannot start, or None if every subgroup has enough
        pods.
    problem
        Why too few subgroups of the gang can start, or None if enough can.
    """

    parts: tuple[Part, ...] = ()
    part_of: Mapping[str, int] | None = None
    need_groups: tuple[tuple[int, int], ...] = ()
    short: frozenset[str] = frozenset()
    lacking: Reason | None = None
    problem: Reason | None = None


NO_PARTS = Parts()

_Group = tuple[int, tuple[str, ...]]


def find_subgroups(gang: Gang, ready: Iterable[Task], waiting: Sequence[Task]) -> Parts:
    """Find the subgroups of a gang that have pending tasks.

    `waiting` lists the pending tasks of the gang in task order.
    """
    if not gang.sub_groups:
        return NO_PARTS
    if gang.is_loose:
        loose = (replace(rule, size=0, min_groups=0) for rule in gang.sub_groups)
        gang = replace(gang, sub_groups=tuple(loose))
    there, missing = _by_group(gang, ready), _by_group(gang, waiting)
    groups: list[_Group] = []
    short: list[_Group] = []
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
            text = f"smaller group {name} needs {rule.size} pods, but only {have} exist"
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
    """Return the sorted names of the nodes on which tasks are running or bound."""
    return tuple(sorted({t.node for t in tasks if t.status.is_standing}))


def _by_group(gang: Gang, tasks: Iterable[Task]) -> dict[_Group, list[Task]]:
    found: dict[_Group, list[Task]] = {}
    for task in tasks:
        group = sub_group_of(gang.sub_groups, task.labels)
        if group is not None:
            found.setdefault(group, []).append(task)
    return found


def _need_groups(
    gang: Gang, there: Mapping[_Group, Sequence[Task]], startable: Iterable[_Group]
) -> tuple[tuple[tuple[int, int], ...], Reason | None]:
    """Return (rule index, number of subgroups still to start) pairs, and a reason or None.

    The reason explains why too few subgroups can start.
    """
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
