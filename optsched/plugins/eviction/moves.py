"""Moves of running pods to other nodes, proposed by plugins or made to free capacity for a gang.

Mathematics: models/formulation/moves.md, models/formulation/consolidation.md and
models/formulation/rescheduling.md. The plugin `rescheduling` implements Volcano's strategy
`lowNodeUtilization` (`pkg/scheduler/plugins/rescheduling`). Volcano ignores the arguments `nodeFit`
and `thresholdPriorityClassName` of the strategy; this plugin uses them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from optsched.plugins.declaration import Argument, Kind, Plugin, read_duration_ms
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.gangs.gang import is_below_minimum
from optsched.problem.running import running_tasks
from optsched.units import CPU, MEMORY, PODS, count_noun

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Evict
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.declaration import Value
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem


SHUFFLE = "shuffle"


@dataclass(frozen=True, eq=False, slots=True)
class Relief:
    """The excess load of nodes, and the load that other nodes can absorb, in K measured resources.

    Attributes
    ----------
    excess
        (N, K) usage of each node minus its target; at most 0 for nodes within their target.
    space
        (N, K) additional load that each node can absorb.
    is_open
        (N,) True for nodes to which tasks may be moved.
    uses
        (V, K) the assumed usage of each running task.
    fits
        True if a task is moved only when the `space` of a single node suffices for it. If `fits` is
        False, the total `space` of all nodes must suffice for the moved tasks.

    """

    excess: I64
    space: I64
    is_open: Bool
    uses: I64
    fits: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Moves:
    """The running tasks that one plugin proposes to move.

    Attributes
    ----------
    tasks
        (m,) indices in `problem.running` of the tasks to move, in order of eviction.
    reasons
        The reason for the evictions from each node, by node index.
    period_ms
        The minimum time between two rounds of evictions by the plugin, in milliseconds.
    most
        The maximum number of tasks of a gang that one round may evict, by gang index. Gangs that
        are not listed have no limit.
    whole
        Indices of gangs that may be evicted as a whole if the loss of one task would violate their
        minimum.
    relief
        The excess load of nodes, or None to move all tasks. With `relief`, a task is moved only
        while its node has excess load.

    """

    tasks: I64
    reasons: Mapping[int, str]
    period_ms: int
    most: Mapping[int, int] = field(default_factory=dict)
    whole: Collection[int] = ()
    relief: Relief | None = None


@runtime_checkable
class Mover(Protocol):
    """A rule that proposes moves of running tasks for the action `shuffle`."""

    def find_moves(self, problem: Problem) -> Moves | None:
        """Return the running tasks to move to other nodes, or None to move no task."""


def has_period_passed(snapshot: Snapshot, plugin: str, period_ms: int) -> bool:
    """Return whether `period_ms` milliseconds have passed since a plugin's last evictions."""
    last = snapshot.last_shuffle_ms.get(plugin)
    return last is None or snapshot.taken_ms - last >= period_ms


def find_early_evictions(world: World, rule: str, period_ms: int) -> Iterator[Violation]:
    """Yield a violation if a plugin evicts pods within `period_ms` of its last evictions."""
    if list_moves_of(world, rule) and not has_period_passed(world.snapshot, rule, period_ms):
        yield Violation(rule, SHUFFLE, f"pods were evicted less than {period_ms} ms ago")


def list_moves_of(world: World, plugin: str) -> list[Evict]:
    """Return the evictions in a plan that a plugin proposed."""
    return [e for e in world.evictions if e.action == SHUFFLE and e.plugin == plugin]


def describe_broken_gang(gang: Gang, evicted: Collection[str]) -> str:
    """Return how evictions break a gang's minimum; empty if the gang keeps it or loses all pods."""
    held = [t for t in gang.tasks if t.status.counts_as_ready]
    left = [t for t in held if t.key not in evicted]
    if len(left) == len(held) or not any(t.status.holds_resources for t in left):
        return ""
    if is_below_minimum(gang, left):
        return _describe_minimum(gang, left)
    return ""


def _describe_minimum(gang: Gang, left: Sequence[Task]) -> str:
    return f"{count_noun(len(left), 'task')} would be left, but minMember is {gang.min_member}"


CONSOLIDATE = "consolidation"


class Consolidation(Rule):
    """Rule: a pod is moved only if it can be restarted, and only to a specified node.

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
                continue  # The rule `Victims` reports unknown tasks and gangs.
            problem = _immovable(world, eviction, gang, preemptor)
            if problem:
                detail = f"moved for {preemptor.key}, but {problem}"
                yield Violation(self.name, f"task {eviction.task}", detail)


def _immovable(world: World, eviction: Evict, gang: Gang, preemptor: Gang) -> str:
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
    """Yield each minimum that a gang misses if it keeps only the tasks in `left`."""
    if is_below_minimum(gang, left):
        yield _describe_minimum(gang, left)
    before = Counter(map(gang.sub_group_of, held))
    after = Counter(map(gang.sub_group_of, left))
    standing = Counter(gang.sub_group_of(t) for t in left if t.status.holds_resources)
    whole, lost = Counter[int](), Counter[int]()
    for group, number in before.items():
        size = 0 if group is None else gang.sub_groups[group[0]].size
        if group is None or number < size:
            continue
        whole[group[0]] += after[group] >= size
        lost[group[0]] += after[group] < size
        if standing[group] and after[group] < size:
            name = gang.sub_groups[group[0]].name
            tasks = count_noun(after[group], "task")
            yield f"{tasks} of a subgroup of {name} would be left, but its size is {size}"
    for policy, rule in enumerate(gang.sub_groups):
        if lost[policy] and whole[policy] < rule.min_groups:
            groups = count_noun(whole[policy], "subgroup")
            yield f"{groups} of {rule.name} would be left, but minSubGroups is {rule.min_groups}"


# --- the plugin `rescheduling` --------------------------------------------------------------------


_RESOURCES: Final = (CPU, MEMORY, PODS)
_MILLION: Final = 1_000_000
_TOP: Final = 100.0
_SYSTEM_CLASS: Final = "system-cluster-critical"


@dataclass(frozen=True)
class LowNodeUtilization:
    """The utilization thresholds of underutilised and overutilised nodes.

    Attributes
    ----------
    low_ppm, high_ppm
        Utilization thresholds for CPU, memory and pods, in millionths. A node that uses at most
        `low_ppm` of every resource may receive pods. Pods are moved off a node while the node uses
        more than `high_ppm` of any resource.
    below_class
        Name of a PriorityClass; only pods with a lower priority are moved.
    fits
        True if a pod is evicted only when it fits on a single underutilised node.

    """

    low_ppm: Mapping[str, int]
    high_ppm: Mapping[str, int]
    below_class: str = _SYSTEM_CLASS
    fits: bool = True


@dataclass(frozen=True)
class Rescheduling(Rule):
    """Rule: pods are moved only off overutilised nodes, which score lowest for all tasks.

    Attributes
    ----------
    weight
        Weight of the node score, which keeps evicted pods from returning to overutilised nodes.
    period_ms
        Minimum time between two rounds of evictions, in milliseconds.
    fresh_ms
        Maximum age of a load measurement, in milliseconds.

    """

    name = "rescheduling"

    strategy: LowNodeUtilization
    period_ms: int = 300_000
    fresh_ms: int = 300_000
    weight: int = 10

    def measured_use(self, node: Node, now_ms: int) -> Mapping[str, int] | None:
        """Return a node's utilization in millionths, or None if no recent measurement exists."""
        load, offered = node.load, node.offers
        if load is None or not node.ready or now_ms - load.measured_ms > self.fresh_ms:
            return None
        pods = len(node.residents) * _MILLION // max(offered[PODS], 1)
        return {CPU: load.cpu_ppm, MEMORY: load.memory_ppm, PODS: pods}

    def excess(self, node: Node, now_ms: int) -> str:
        """Return how a node exceeds its target utilization.

        The result is empty if the node is within its target or has no recent measurement.
        """
        used = {} if self._is_underused(node, now_ms) else self.measured_use(node, now_ms) or {}
        above = [r for r in used if used[r] > self.strategy.high_ppm[r]]
        return " and ".join(
            f"{used[r] / 10_000:g}% of {r} in use, above {self.strategy.high_ppm[r] / 10_000:g}%"
            for r in above
        )

    def _is_underused(self, node: Node, now_ms: int) -> bool:
        used = self.measured_use(node, now_ms)
        low = self.strategy.low_ppm
        return used is not None and not node.unschedulable and all(used[r] <= low[r] for r in used)

    def find_moves(self, problem: Problem) -> Moves | None:
        """See `Mover`."""
        nodes, now_ms = problem.snapshot.nodes, problem.snapshot.taken_ms
        reasons = {n: text for n, node in enumerate(nodes) if (text := self.excess(node, now_ms))}
        takes = np.array([self._is_underused(node, now_ms) for node in nodes], np.bool_)
        if not reasons or not takes.any():
            return None
        # Tasks on the node with the highest sum of CPU and memory utilization come first, in
        # ascending order of priority. If the PriorityClass `below_class` does not exist, no task is
        # moved.
        running, snapshot = running_tasks(problem), problem.snapshot
        limit: float = snapshot.priority_classes.get(self.strategy.below_class, -math.inf)
        load = {n: self.measured_use(nodes[n], now_ms) or {} for n in reasons}
        order = []
        for v, n in enumerate(running.node_of.tolist()):
            task = running.tasks[v]
            if n in reasons and task.priority < limit:
                key = (task.priority, not task.shape.is_best_effort, -task.created_ms, task.key)
                order.append((-(load[n][CPU] + load[n][MEMORY]), n, key, v))
        return Moves(
            tasks=np.array([v for *_, v in sorted(order)], np.int64),
            reasons={n: f"node {nodes[n].name} has {text}" for n, text in reasons.items()},
            period_ms=self.period_ms,
            relief=self._relief(problem, takes),
        )

    def _relief(self, problem: Problem, takes: Bool) -> Relief:
        targets = np.array([self.strategy.high_ppm[r] for r in _RESOURCES], np.int64)
        nodes, now_ms = problem.snapshot.nodes, problem.snapshot.taken_ms
        used = [self.measured_use(node, now_ms) or {} for node in nodes]
        parts = np.array([[u.get(r, 0) for r in _RESOURCES] for u in used], np.int64)
        size = np.array([[node.offers.get(r, 0) for r in _RESOURCES] for node in nodes], np.int64)
        parts, size = parts.reshape(-1, len(_RESOURCES)), size.reshape(-1, len(_RESOURCES))
        # `over` is the utilization minus the target, in millionths of the allocatable `size`.
        # The excess is `size` · `over` / 10⁶, computed without overflow; if it is positive, it is
        # rounded up to at least 1.
        over = parts - targets
        exact = size // _MILLION * over + size % _MILLION * over // _MILLION
        excess = np.where((over > 0) & (size > 0), np.maximum(exact, 1), exact)
        known = np.array([bool(u) for u in used], np.bool_)
        excess[~known] = 0
        running = running_tasks(problem)
        requested = np.zeros((len(running), len(_RESOURCES)), np.int64)
        for k, name in enumerate(_RESOURCES):
            column = problem.index(name)
            if column >= 0:
                requested[:, k] = running.request[:, column]
        return Relief(
            excess=excess,
            space=np.where(takes[:, None], -excess, 0),
            is_open=takes,
            uses=requested,  # because the usage of a single task is not measured
            fits=self.strategy.fits,
        )

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        yield from find_early_evictions(world, self.name, self.period_ms)
        now_ms = world.snapshot.taken_ms
        for eviction in list_moves_of(world, self.name):
            if not self.excess(world.snapshot.node_by_name[eviction.node], now_ms):
                where = f"task {eviction.task}"
                yield Violation(self.name, where, f"node {eviction.node} is not above its target")

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. Overutilised nodes get the lowest score for every task class."""
        scores = problem.derived(self._scores)
        return scores if scores.any() else None

    def _scores(self, problem: Problem) -> F64:
        now_ms = problem.snapshot.taken_ms
        above = [bool(self.excess(node, now_ms)) for node in problem.snapshot.nodes]
        if not any(above):
            return np.zeros(len(above))
        return np.where(above, 0.0, _TOP * self.weight)


_LOW_NODES = "lowNodeUtilization"


def _rescheduling(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    named = (k for k, v in arguments.items() if k.endswith(".name") and v == _LOW_NODES)
    prefix = next(named, "strategies.0.name").removesuffix("name") + "params."
    low_ppm, high_ppm = (
        {r: round(float(arguments.get(f"{prefix}{name}.{r}", 100)) * 10_000) for r in _RESOURCES}
        for name in ("thresholds", "targetThresholds")
    )
    strategy = LowNodeUtilization(
        low_ppm=low_ppm,
        high_ppm=high_ppm,
        below_class=str(arguments.get(f"{prefix}thresholdPriorityClassName", _SYSTEM_CLASS)),
        fits=bool(arguments.get(f"{prefix}nodeFit", True)),
    )
    return (
        Rescheduling(
            strategy,
            period_ms=read_duration_ms(arguments, "interval") or 300_000,
            fresh_ms=read_duration_ms(arguments, "metricsPeriod") or 300_000,
        ),
    )


_STRATEGY = (
    Argument(
        "name",
        Kind.CHOICE,
        _LOW_NODES,
        "has no effect, because only one strategy exists",
        choices=(_LOW_NODES,),
    ),
    Argument(
        "params",
        Kind.MAPPING,
        "",
        "parameters of the strategy",
        fields=(
            *(
                Argument(
                    name,
                    Kind.MAPPING,
                    "",
                    meaning,
                    fields=tuple(
                        Argument(r, Kind.NUMBER, 100, f"utilization of {r}, in percent")
                        for r in _RESOURCES
                    ),
                )
                for name, meaning in (
                    (
                        "thresholds",
                        "pods are moved to nodes that exceed none of these utilizations",
                    ),
                    (
                        "targetThresholds",
                        "pods are moved off nodes that exceed any of these utilizations",
                    ),
                )
            ),
            Argument(
                "thresholdPriorityClassName",
                Kind.NAMES,
                _SYSTEM_CLASS,
                "pods with at least the priority of this PriorityClass are not moved",
            ),
            Argument(
                "nodeFit", Kind.SWITCH, True, "move a pod only if it fits on an underutilised node"
            ),
        ),
    ),
)


PLUGIN = Plugin(
    "rescheduling",
    "moves pods away from busy nodes in the action shuffle",
    (
        Argument("interval", Kind.DURATION, "5m", "minimum time between two rounds of evictions"),
        Argument("metricsPeriod", Kind.DURATION, "5m", "maximum age of load measurements"),
        Argument("strategies", Kind.LIST, "", "the strategy and its parameters", fields=_STRATEGY),
    ),
    _rescheduling,
)
