"""Moves of running pods: which moves plugins propose, and which moves release capacity for gangs.

Mathematics: models/formulation/moves.md and models/formulation/consolidation.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optsched.cluster.topology import sub_group_of
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.gangs.gang import is_below_minimum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Evict
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


SHUFFLE = "shuffle"


@dataclass(frozen=True, eq=False, slots=True)
class Relief:
    """Excess load per node, and the load that other nodes can absorb, for K measures such as CPU.

    Attributes
    ----------
    excess
        (N, K) usage of each node minus the target; zero or negative for nodes within the target.
    space
        (N, K) additional load that each node can absorb.
    is_open
        (N,) True for nodes to which tasks may be moved.
    uses
        (V, K) the assumed usage of each running task.
    fits
        True if a task is moved only when a single node has enough space for it. If `fits` is False,
        it suffices that the total `space` of all nodes is large enough for the task.

    """

    excess: I64
    space: I64
    is_open: Bool
    uses: I64
    fits: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Moves:
    """The tasks that one plugin proposes to move.

    Attributes
    ----------
    tasks
        (m,) indices in `problem.running` of the tasks to move, in order of eviction.
    reasons
        The reason for the evictions from each node, by node index.
    period_ms
        The minimum time between two rounds of evictions by the plugin, in milliseconds.
    most
        The maximum number of a gang's tasks that may be evicted together, by gang index. A gang
        that is not in the mapping has no limit.
    whole
        Indices of gangs that may be evicted entirely if no individual task can be evicted alone.
    relief
        The excess load of nodes, or None to move all tasks. If `relief` is set, a task is moved
        only while its node has excess load.

    """

    tasks: I64
    reasons: Mapping[int, str]
    period_ms: int
    most: Mapping[int, int] = field(default_factory=dict)
    whole: Collection[int] = ()
    relief: Relief | None = None


@runtime_checkable
class Mover(Protocol):
    """A rule that moves running tasks to other nodes in the action `shuffle`."""

    def find_moves(self, problem: Problem) -> Moves | None:
        """Return the running tasks to move to other nodes, or None if there are none."""


def has_period_passed(snapshot: Snapshot, plugin: str, period_ms: int) -> bool:
    """Return whether `period_ms` has passed since the last evictions by a plugin."""
    last = snapshot.last_shuffle_ms.get(plugin)
    return last is None or snapshot.taken_ms - last >= period_ms


def find_early_evictions(world: World, rule: str, period_ms: int) -> Iterator[Violation]:
    """Yield a violation if a plugin evicts pods before its period has passed."""
    if list_moves_of(world, rule) and not has_period_passed(world.snapshot, rule, period_ms):
        yield Violation(rule, SHUFFLE, f"pods were evicted less than {period_ms} ms ago")


def list_moves_of(world: World, plugin: str) -> list[Evict]:
    """Return the evictions in a plan that a plugin proposed."""
    return [e for e in world.evictions if e.action == SHUFFLE and e.plugin == plugin]


def describe_broken_gang(gang: Gang, evicted: Collection[str]) -> str:
    """Return how evictions break a gang's minimum; empty if it is kept or all pods are lost."""
    held = [t for t in gang.tasks if t.status.counts_as_ready]
    left = [t for t in held if t.key not in evicted]
    if len(left) == len(held) or not any(t.status.holds_resources for t in left):
        return ""
    if is_below_minimum(gang, left):
        return f"{len(left)} tasks would be left, minMember is {gang.min_member}"
    return ""


CONSOLIDATE = "consolidation"


class Consolidation(Rule):
    """Rule: only restartable pods are moved, each to a given node.

    The gang for which a pod is moved has at least the priority of the pod's gang.
    """

    name = "consolidation"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`. Other rules check whether the new nodes have capacity."""
        gangs = world.snapshot.gang_by_key
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            gang = gangs.get("" if task is None else task.gang)
            preemptor = gangs.get(eviction.preemptor)
            if eviction.action != CONSOLIDATE or gang is None or preemptor is None:
                continue  # `Victims` reports unknown tasks and gangs.
            problem = _immovable(world, eviction, gang, preemptor)
            if problem:
                detail = f"moved for {preemptor.key}, but {problem}"
                yield Violation(self.name, f"task {eviction.task}", detail)


def _immovable(world: World, eviction: Evict, gang: Gang, preemptor: Gang) -> str:
    """Return why a task may not be moved; empty if the move is allowed."""
    if gang.key == preemptor.key:
        return "it belongs to that gang itself"
    if not eviction.to:
        return "it has no node to restart on"
    if not world.task_by_key[eviction.task].is_movable:
        return "no controller would restart it"
    if gang.priority > preemptor.priority:
        return "it has a higher priority"
    queue = world.snapshot.queue_by_name.get(gang.queue)
    if gang.queue != preemptor.queue and (queue is None or not queue.reclaimable):
        return f"queue {gang.queue} is not reclaimable"
    return ""


def find_losses(gang: Gang, held: Sequence[Task], left: Sequence[Task]) -> Iterator[str]:
    """Yield the requirements that a gang violates if, of its tasks `held`, it keeps only `left`."""
    if is_below_minimum(gang, left):
        yield f"{len(left)} tasks would be left, minMember is {gang.min_member}"
    before = Counter(sub_group_of(gang.sub_groups, t.labels) for t in held)
    after = Counter(sub_group_of(gang.sub_groups, t.labels) for t in left)
    standing = Counter(
        sub_group_of(gang.sub_groups, t.labels) for t in left if t.status.holds_resources
    )
    whole, lost = Counter[int](), Counter[int]()
    for group, number in before.items():
        size = 0 if group is None else gang.sub_groups[group[0]].size
        if group is None or number < size:
            continue
        whole[group[0]] += after[group] >= size
        lost[group[0]] += after[group] < size
        if standing[group] and after[group] < size:
            name = gang.sub_groups[group[0]].name
            yield f"{after[group]} tasks of a group of {name} would be left, its size is {size}"
    for policy, rule in enumerate(gang.sub_groups):
        if lost[policy] and whole[policy] < rule.min_groups:
            yield f"{whole[policy]} groups of {rule.name} would be left, of {rule.min_groups}"
