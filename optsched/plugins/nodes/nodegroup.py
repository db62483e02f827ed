"""Node groups of queues, and limits on the resources that a queue may use in a group.

Mathematics: models/formulation/nodegroup.md. Volcano: `pkg/scheduler/plugins/nodegroup`. The node
label `volcano.sh/nodegroup-name` sets the group of a node. `NodeGroups` contains the groups
and limits of a queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import NO_GROUPS, ROOT_QUEUE
from optsched.plugins.declaration import Argument, Kind, Plugin
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.arrays import UNLIMITED
from optsched.problem.running import running_tasks
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import NodeGroups, Snapshot
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

GROUP = "volcano.sh/nodegroup-name"
REQUIRED, PREFERRED, LAST_RESORT = 100.0, 50.0, -1.0

_QueueGroup = tuple[str, str]
"""The names of a queue and of a node group."""


@dataclass(frozen=True)
class NodeGroup(Rule):
    """Tasks run only in node groups that their queue lists, within the queue's limit per group.

    Attributes
    ----------
    strict
        True if a queue that lists no groups may use no nodes, not even nodes without a group.
    in_order
        True if preferred groups that the queue lists later get a lower score.
    inherits
        True if a queue that lists no groups uses the groups of its nearest ancestor that lists
        groups.

    """

    name = "nodegroup"
    hard_switch = Switch.PREDICATE

    strict: bool = True
    in_order: bool = False
    inherits: bool = False

    def find_groups(self, snapshot: Snapshot, queue: str) -> NodeGroups:
        """Return the node groups that apply to a queue; `NO_GROUPS` for an unknown queue."""
        by_name = snapshot.queue_by_name
        seen: set[str] = set()
        while queue in by_name and queue not in seen:
            found = by_name[queue]
            if found.node_groups.names_any or not self.inherits:
                return found.node_groups
            seen.add(queue)
            queue = "" if found.name == ROOT_QUEUE else found.parent
        return NO_GROUPS

    def admits(self, groups: NodeGroups, group: str | None) -> bool:
        """Return whether a queue with the settings `groups` may use the nodes of `group`.

        `group` is None for nodes without a group.
        """
        if not groups.names_any:
            return group is None and not self.strict
        if group in groups.last_resort:
            return True
        named = group in groups.required or group in groups.preferred
        return named and group not in groups.excluded

    def score_group(self, groups: NodeGroups, group: str | None) -> float:
        """Return the score of the nodes of `group` for a queue with the settings `groups`."""
        if group in groups.last_resort:
            return LAST_RESORT
        score = REQUIRED if group in groups.required else 0.0
        if group is None or group not in groups.preferred:
            return score
        if not self.in_order:
            return score + PREFERRED
        place, number = groups.preferred.index(group), len(groups.preferred)
        return score + PREFERRED * (number - place) / number

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        gained: dict[_QueueGroup, dict[str, int]] = {}
        for task, gang, node in world.placements:
            group = node.labels.get(GROUP)
            queue = world.snapshot.queue_by_name.get(gang.queue)
            unread = queue is not None and queue.node_groups.problem
            if unread or not self.admits(self.find_groups(world.snapshot, gang.queue), group):
                where = f"group {group}" if group else "no group"
                detail = f"queue {gang.queue} may not use node {node.name} of {where}"
                yield Violation(self.name, f"task {task.key}", detail)
            key = gang.queue, group or ""
            gained[key] = summed((gained.get(key, {}), task_usage(task)))
        held = _sum_usage_by_group(world.snapshot)
        for (name, group), gain in gained.items():
            limits = dict(world.snapshot.queue_by_name[name].node_groups.limits)
            for resource, limit in limits.get(group, ()):
                used = held.get((name, group), {}).get(resource, 0) + gain.get(resource, 0)
                if gain.get(resource, 0) and used > limit:
                    detail = (
                        f"{amount_text(resource, used)} would be in use on group {group}, "
                        f"the limit is {amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"queue {name}", detail)

    # --- masks and scores ------------------------------------------------------------------------

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        name = problem.classes.queues[task_class]
        if name and problem.snapshot.queue_by_name[name].node_groups.problem:
            return np.zeros(problem.num_nodes, np.bool_)
        codes, values = problem.columns.codes(GROUP)
        groups = self.find_groups(problem.snapshot, name)
        open_to = np.array([self.admits(groups, value) for value in values], np.bool_)
        return None if open_to.all() else open_to[codes]

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason names the queue that may not use the nodes."""
        name = problem.classes.queues[task_class]
        queue = f"queue {name}" if name else "a queue without listed groups"
        return f"did not belong to node groups that {queue} may use"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`."""
        groups = self.find_groups(problem.snapshot, problem.classes.queues[task_class])
        if not groups.names_any:
            return None
        codes, values = problem.columns.codes(GROUP)
        return np.array([self.score_group(groups, value) for value in values])[codes]

    # --- limits ----------------------------------------------------------------------------------

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`. A queue's limit applies to its total usage on all nodes of a group."""
        return bool(problem.derived(_find_limits).get(problem.classes.queues[task_class]))

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """See `VictimRelevance`. Only the queue's running tasks in limited groups are relevant."""
        group_limits = problem.derived(_find_limits).get(problem.classes.queues[task_class])
        if not group_limits:
            return None
        running = running_tasks(problem)
        found = np.full(len(running), -1, np.int64)
        for number, group_limit in enumerate(group_limits):
            found[_find_counted_tasks(problem, group_limit)] = number
        return found

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add Σ request[c, r] · supplied[c, n] ≤ limit − held + released per limited group.

        supplied[c, n] is the number of tasks of class c that are placed on node n. `held` is the
        usage of the queue in the group, and `released` is the usage of the queue's victims there.
        """
        problem, model, supplied = nodes.problem, nodes.model, nodes.supplied
        request, evictions = problem.classes.request, nodes.evictions
        first = evictions.by_group()
        for group_limit in chain.from_iterable(problem.derived(_find_limits).values()):
            of_queue = np.array([q == group_limit.queue for q in problem.classes.queues], np.bool_)
            is_limited = (supplied >= 0) & of_queue[:, None] & group_limit.nodes[None, :]
            if not is_limited.any():
                continue
            counted = _find_counted_tasks(problem, group_limit)
            victims = np.flatnonzero(counted[first]).tolist() if len(first) else []
            for r in np.flatnonzero(group_limit.limit < UNLIMITED).tolist():
                task_class, node = np.nonzero(is_limited & (request[:, r] > 0)[:, None])
                if not len(node):
                    continue
                variables = supplied[task_class, node]
                comes = list(zip(variables.tolist(), request[task_class, r].tolist(), strict=True))
                goes = [
                    (int(evictions.leave[k]), int(running_tasks(problem).request[first[k], r]))
                    for k in victims
                ]
                most = int(max(model.bounds[1][variables].max(), 1))
                model.add_limit(comes, goes, int(group_limit.limit[r] - group_limit.held[r]), most)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no queue has a limit on a group."""
        limits = problem.derived(_find_limits)
        held = {name: [each.held.copy() for each in of_queue] for name, of_queue in limits.items()}
        return _Limits(problem, limits, held) if limits else None

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason is that a limit of the queue cannot be parsed."""
        snapshot = outcome.problem.snapshot
        queue = snapshot.queue_by_name[snapshot.gangs[gang].queue]
        if not queue.node_groups.problem:
            return None
        message = f"queue {queue.name}: {queue.node_groups.problem}"
        return Reason(ReasonCode.INVALID_QUEUE, message)


def _sum_usage_by_group(snapshot: Snapshot) -> dict[_QueueGroup, dict[str, int]]:
    """Return the usage of bound and running tasks per (queue, group), for queues with limits."""
    limited = {q.name for q in snapshot.queues if q.node_groups.limits}
    held: dict[_QueueGroup, dict[str, int]] = {}
    gangs = snapshot.gang_by_key if limited else {}
    for node in snapshot.nodes if limited else ():
        for task in node.residents:
            gang = gangs.get(task.gang)
            if gang is not None and gang.queue in limited and task.status.counts_for_queue:
                key = gang.queue, node.labels.get(GROUP, "")
                held[key] = summed((held.get(key, {}), task_usage(task)))
    return held


@dataclass(frozen=True, eq=False)
class _GroupLimit:
    """A queue's limit on one node group.

    Attributes
    ----------
    limit
        (R,) maximum usage of the queue in the group; `UNLIMITED` for resources without a limit.
    held
        (R,) current usage of the queue in the group.
    nodes
        (N,) mask of the nodes of the group.

    """

    queue: str
    limit: I64
    held: I64
    nodes: Bool


def _find_limits(problem: Problem) -> Mapping[str, Sequence[_GroupLimit]]:
    snapshot, resources = problem.snapshot, problem.resources
    queues = [q for q in snapshot.queues if q.node_groups.limits]
    if not queues:
        return {}
    codes, values = problem.columns.codes(GROUP)
    held = _sum_usage_by_group(snapshot)
    found: dict[str, list[_GroupLimit]] = {queue.name: [] for queue in queues}
    for queue in queues:
        for group, amounts in queue.node_groups.limits:
            limit, usage = dict(amounts), held.get((queue.name, group), {})
            group_limit = _GroupLimit(
                queue.name,
                np.array([limit.get(r, UNLIMITED) for r in resources], np.int64),
                np.array([usage.get(r, 0) for r in resources], np.int64),
                codes == (values.index(group) if group in values else -1),
            )
            found[queue.name].append(group_limit)
    return found


def _find_counted_tasks(problem: Problem, group_limit: _GroupLimit) -> Bool:
    """Return the mask (V,) of the running tasks that count toward the limit."""
    running = running_tasks(problem)
    queue = problem.queues.names.index(group_limit.queue)
    found: Bool = np.logical_and(running.queue_of == queue, group_limit.nodes[running.node_of])
    return found


@dataclass(eq=False)
class _Limits(Greedy):
    """Tracks the usage of queues in node groups while tasks are placed and evicted.

    `_held` contains, by queue name, the queue's usage (R,) in the group of each of its limits.
    """

    _problem: Problem
    _group_limits: Mapping[str, Sequence[_GroupLimit]]
    _held: Mapping[str, Sequence[I64]]

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        classes = self._problem.classes
        name, request = classes.queues[task_class], classes.request[task_class]
        allowed: Bool | None = None
        limits, usage = self._group_limits.get(name, ()), self._held.get(name, ())
        for group_limit, held in zip(limits, usage, strict=True):
            if ((held + request > group_limit.limit) & (request > 0)).any():
                allowed = ~group_limit.nodes if allowed is None else allowed & ~group_limit.nodes
        return allowed

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        classes = self._problem.classes
        name, request = classes.queues[task_class], classes.request[task_class]
        limits, usage = self._group_limits.get(name, ()), self._held.get(name, ())
        for group_limit, held in zip(limits, usage, strict=True):
            held += int(counts[group_limit.nodes[nodes]].sum()) * request

    def record_eviction(self, victim: int, sign: int) -> None:
        for name, group_limits in self._group_limits.items():
            for group_limit, held in zip(group_limits, self._held[name], strict=True):
                if _find_counted_tasks(self._problem, group_limit)[victim]:
                    held -= sign * running_tasks(self._problem).request[victim]


PLUGIN = Plugin(
    "nodegroup",
    "restricts queues to node groups",
    (
        Argument(
            "strict",
            Kind.SWITCH,
            True,
            "queues that list no node group may use no nodes, not even nodes without a group",
        ),
        Argument(
            "enablePreferredOrder",
            Kind.SWITCH,
            False,
            "nodes of groups that are listed earlier score higher",
        ),
    ),
    lambda arguments: (
        NodeGroup(
            strict=bool(arguments.get("strict", True)),
            in_order=bool(arguments.get("enablePreferredOrder", False)),
            inherits=bool(arguments.get(Switch.HIERARCHY.value, False)),
        ),
    ),
)
