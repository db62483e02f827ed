"""Rules that filter single nodes: capacity, node affinity, taints, host ports and shards.

Mathematics: models/formulation/fits.md, models/formulation/node_affinity.md,
models/formulation/taints.md, models/formulation/host_ports.md and models/formulation/shards.md.

The rules `fits` and `shards` are always enabled. Each task requests one unit of the resource
`pods`. Volcano: `--scheduler-sharding-mode` in `pkg/scheduler/actions` and
`pkg/scheduler/cache/shard_coordinator.go`. In soft mode, Volcano ranks the nodes of the scheduler's
shard before all other nodes, regardless of scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.cluster.node_resources import ShardMode
from optsched.cluster.selectors import Operator, Requirement, TaintEffect, TolerationIndex
from optsched.cluster.task import ANY_ADDRESS, TaskStatus
from optsched.plugins.extension_points import Blocker, Greedy, Rule, Switch, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.problem import cached_by_problem
from optsched.problem.relations import PortIndex
from optsched.problem.running import running_tasks
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.selectors import Taint
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import AnyLevel, NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


class Fits(Rule):
    """Rule: the total request of the tasks on a node is at most the node's allocatable amount."""

    name = "fits"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`.

        A plan is invalid if a placed task requests a resource that its node lacks.
        """
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            gain = summed(task_usage(t) for t in placed)
            held = summed(task_usage(t) for t in node.residents)
            for resource, more in gain.items():
                limit = node.offer(resource)
                used = held.get(resource, 0) + more
                if more and used > limit:
                    detail = (
                        f"{resource}: {amount_text(resource, used)} requested of "
                        f"{amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"node {name}", detail)

        # Nominated tasks must fit on their node after all its terminating pods have ended.
        for name, nominated in world.nominated_tasks.items():
            node = world.snapshot.node_by_name[name]
            stays = [t for t in node.residents if t.status is not TaskStatus.RELEASING]
            stays += world.placed_on.get(name, [])
            held = summed(task_usage(t) for t in stays)
            for resource, more in summed(task_usage(t) for t in nominated).items():
                limit = node.offer(resource)
                if more and held.get(resource, 0) + more > limit:
                    detail = (
                        f"{resource}: {amount_text(resource, more)} nominated, "
                        "more than will be idle"
                    )
                    yield Violation(self.name, f"node {name}", detail)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add Σ_c request[c, r] · supplied[c, n] ≤ idle[n, r] for each resource r and node n.

        supplied[c, n] is the number of tasks of class c that are placed on node n.
        """
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        idle, request = form.problem.idle, form.problem.classes.request
        task_class, node = np.nonzero(supplied >= 0)
        variable = supplied[task_class, node]
        for r in np.flatnonzero(request[np.unique(task_class)].any(axis=0)).tolist():
            requested = request[task_class, r]
            takes = requested > 0
            used, at = np.unique(node[takes], return_inverse=True)
            form.model.add_rows(at, variable[takes], requested[takes], upper=idle[used, r])


@dataclass(eq=False)
class Offers:
    """Computes and caches the allocatable and idle amounts of each node, per resource."""

    _problem: Problem
    _offered: dict[str, I64] = field(default_factory=dict, init=False)
    _idle: dict[str, I64] = field(default_factory=dict, init=False)

    def offered(self, resource: str) -> I64:
        """Return the allocatable amounts (N,) of a resource; 0 on nodes that are not ready."""
        if resource not in self._offered:
            problem, r = self._problem, self._problem.index(resource)
            nodes = problem.snapshot.nodes
            found = [n.offers.get(resource, 0) if n.ready else 0 for n in nodes] if r < 0 else None
            column = problem.allocatable[:, r] if found is None else np.array(found, np.int64)
            self._offered[resource] = column
        return self._offered[resource]

    def idle(self, resource: str) -> I64:
        """Return the idle amount (N,) of a resource on each node, at least 0."""
        if resource not in self._idle:
            problem, r = self._problem, self._problem.index(resource)
            if r >= 0:
                self._idle[resource] = problem.idle[:, r]
            else:
                held = [
                    sum(dict(task.shape.request).get(resource, 0) for task in node.residents)
                    for node in problem.snapshot.nodes
                ]
                left = self.offered(resource) - np.array(held, np.int64)
                self._idle[resource] = np.maximum(left, 0)
        return self._idle[resource]

    def requests_of(self, resource: str) -> I64:
        """Return how much of a resource one task of each class requests, as an array (C,)."""
        r, request = self._problem.index(resource), self._problem.classes.request
        return request[:, r] if r >= 0 else np.zeros(len(request), np.int64)


class NodeAffinity(Rule):
    """A task runs only on nodes that match its `nodeSelector` and its required node affinity."""

    name = "node-affinity"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            shape = task.shape
            for key, value in shape.node_selector:
                if node.labels.get(key) != value:
                    detail = f"nodeSelector {key}={value} does not select node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)
            affinity = shape.node_affinity
            if affinity is not None and not affinity.matches(node.name, node.labels):
                detail = f"node affinity ({affinity}) does not select node {node.name}"
                yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        if not shape.node_selector and shape.node_affinity is None:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for key, value in shape.node_selector:
            chosen &= problem.columns.accepts(Requirement(key, Operator.IN, (value,)))
        if shape.node_affinity is not None:
            chosen &= problem.columns.selects(shape.node_affinity)
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason contains the class's node selector and affinity."""
        shape = problem.classes.shapes[task_class]
        selector = ",".join(f"{k}={v}" for k, v in shape.node_selector)
        parts = [f"nodeSelector {selector}"] if selector else []
        if shape.node_affinity is not None:
            parts.append(f"node affinity ({shape.node_affinity})")
        return f"did not match {' and '.join(parts)}"


class Taints(Rule):
    """A task is placed only on nodes whose NoSchedule and NoExecute taints it tolerates."""

    name = "taints"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for taint in node.marks:
                if taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
                    continue
                if not any(t.tolerates(taint) for t in task.shape.tolerations):
                    detail = f"does not tolerate {taint} of node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        codes, taint_sets = problem.columns.taints()
        untolerated = _find_untolerated(problem, task_class)
        if not untolerated:
            return None
        open_to = [untolerated.keys().isdisjoint(taints) for taints in taint_sets]
        return np.array(open_to, np.bool_)[codes]

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason lists the taints that the class does not tolerate."""
        found = _find_untolerated(problem, task_class)
        shown = ", ".join(map(str, list(found)[:_MOST_SHOWN]))
        more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        return f"had untolerated taints {shown}{more}"


_MOST_SHOWN: Final = 20
"""Maximum number of taints that a reason lists."""


def _find_untolerated(problem: Problem, task_class: int) -> dict[Taint, None]:
    """Return the NoSchedule and NoExecute taints of nodes that a task class does not tolerate."""
    known = problem.derived(_untolerated_by_class)
    if task_class not in known:
        tolerations = TolerationIndex(problem.classes.shapes[task_class].tolerations)
        taints = problem.derived(_list_hard_taints)
        known[task_class] = {taint: None for taint in taints if not tolerations.tolerates(taint)}
    return known[task_class]


def _untolerated_by_class(_: Problem) -> dict[int, dict[Taint, None]]:
    return {}


def _list_hard_taints(problem: Problem) -> list[Taint]:
    taints = set(chain.from_iterable(problem.columns.taints()[1]))
    hard = (taint for taint in taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE)
    return sorted(hard, key=str)


def find_untolerated_taints(shape: TaskShape, taints: Sequence[Taint]) -> list[Taint]:
    """Return the NoSchedule and NoExecute taints that `shape` does not tolerate."""
    return [
        taint
        for taint in taints
        if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE
        and not any(t.tolerates(taint) for t in shape.tolerations)
    ]


class HostPorts(Rule):
    """No two tasks on a node bind conflicting host ports."""

    name = "host-ports"
    hard_switch = Switch.PREDICATE
    mask_sees_pods = True
    ties_by_relations = True

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for name, placed in world.placed_on.items():
            binding = [task for task in placed if task.shape.host_ports]
            if not binding:
                continue
            # The tasks that bind a port on the node, by protocol and number, and by address.
            bound: dict[tuple[str, int], dict[str, Task]] = {}
            residents = world.snapshot.node_by_name[name].residents
            is_resident = {task.key for task in residents}
            for task in (*residents, *binding):
                others: dict[str, None] = {}
                for port in task.shape.host_ports:
                    same = bound.setdefault((port.protocol, port.port), {})
                    known = same.get(port.address) or same.get(ANY_ADDRESS)
                    if port.address == ANY_ADDRESS:
                        known = next(iter(same.values()), None)
                    if known is not None and known is not task:
                        others[known.key] = None
                    same.setdefault(port.address, task)
                for other in others if task.key not in is_resident else ():
                    detail = f"binds a host port of {other} on node {name}"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`.

        The mask excludes nodes on which a pod binds a host port that conflicts with the class.
        """
        ports = problem.relations.ports_of(problem.classes.shapes[task_class])
        if not ports:
            return None
        taken: Bool = np.logical_or.reduce(problem.relations.port_taken[list(ports)])
        return ~taken

    def blockers(self, problem: Problem, task_class: int) -> Sequence[Blocker]:
        """See `Blocking`. The blockers are the running tasks that bind a conflicting host port."""
        own_ports = problem.classes.shapes[task_class].host_ports
        rivals = _index_running_ports(problem).find_colliding(own_ports) if own_ports else []
        return [Blocker(np.array(rivals), np.arange(problem.num_nodes))] if rivals else []

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        ports = ", ".join(map(str, problem.classes.shapes[task_class].host_ports))
        return f"did not have free host ports ({ports})"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        return bool(problem.classes.shapes[task_class].host_ports)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Place at most one task per node for each host port and each pair of conflicting ports.

        The constraint is Σ supplied[c, n] ≤ 1 over the task classes that bind the port, or a port
        of the pair. supplied[c, n] is the number of tasks of class c that are placed on node n.
        """
        problem, model, supplied = nodes.gang_alone, nodes.model, nodes.supplied
        relations = problem.relations
        classes_of: dict[int, list[int]] = {p: [] for p in range(len(relations.ports))}
        for c, shape in enumerate(problem.classes.shapes):
            for p in relations.ports_of(shape):
                classes_of[p].append(c)
        colliding = [
            (p, q)
            for p, port in enumerate(relations.ports)
            for q in relations.find_colliding([port])
            if p < q
        ]
        for exclusive in [*((p,) for p in classes_of), *colliding]:
            classes = sorted({c for p in exclusive for c in classes_of[p]})
            task_class, node = np.nonzero(supplied[classes] >= 0)
            variables = supplied[classes][task_class, node]
            ones = np.ones(problem.num_nodes, np.int64)
            if len(variables):
                model.add_rows(node, variables, 1, upper=ones)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        relations, shapes = problem.relations, problem.classes.shapes
        if not relations.ports:
            return None
        return _Ports(
            [np.array(relations.ports_of(shape), np.int64) for shape in shapes],
            [relations.find_colliding(shape.host_ports) for shape in shapes],
            np.zeros((len(relations.ports), problem.num_nodes), np.int64),
        )


@cached_by_problem
def _index_running_ports(problem: Problem) -> PortIndex:
    tasks = enumerate(running_tasks(problem).tasks)
    return PortIndex((v, port) for v, task in tasks for port in task.shape.host_ports)


@dataclass(eq=False)
class _Ports(Greedy):
    """Counts the tasks of this session that bind each host port (axis P) on each node.

    Attributes
    ----------
    _of_class
        (C,) indices of the host ports of each task class.
    _rivals
        (C,) indices of the host ports that conflict with a port of each task class.
    _bound
        (P, N) number of tasks of this session that bind each port on each node.

    """

    _of_class: Sequence[I64]
    _rivals: Sequence[Sequence[int]]
    _bound: I64

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        if not len(self._of_class[task_class]):
            return None
        bound: Bool = np.logical_or.reduce(self._bound[self._rivals[task_class]] > 0)
        return ~bound

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        ports = self._of_class[task_class][:, None]
        if len(ports):
            np.add.at(self._bound, (ports, nodes), counts)


FAR_ABOVE = 1e9
"""The score of nodes of the scheduler's shard in soft mode.

The value exceeds the sum of all other scores, but is small enough to preserve the fractional digits
of these scores.
"""


class Shards(Rule):
    """Rule: in hard mode, tasks use only nodes of the scheduler's shard; soft mode prefers them."""

    name = "shards"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        sharding = world.snapshot.sharding
        for task, _, node in world.placements:
            if sharding.excludes(node.name):
                detail = f"node {node.name} is not in shard {sharding.name}"
                yield Violation(self.name, f"task {task.key}", detail)

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        sharding = world.snapshot.sharding
        for eviction in world.evictions:
            if sharding.excludes(eviction.node):
                detail = f"evicted from {eviction.node}, which is not in shard {sharding.name}"
                yield Violation(self.name, f"task {eviction.task}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        is_hard = problem.snapshot.sharding.mode is ShardMode.HARD
        return problem.derived(_find_own_nodes) if is_hard else None

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason contains the name of the scheduler's shard."""
        return f"did not belong to shard {problem.snapshot.sharding.name}"

    def spares(self, problem: Problem) -> Bool | None:
        """See `Rule`. Tasks on nodes of other shards are never evicted."""
        own = self.mask(problem, -1)
        return None if own is None else ~own[running_tasks(problem).node_of]

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. Nodes of the scheduler's shard outrank all other nodes."""
        own = preferred_nodes(problem)
        return None if own is None else np.where(own, FAR_ABOVE, 0.0)

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """See `Rule`."""
        has_any = preferred_nodes(problem) is not None and problem.num_tasks > 0
        return (OutsideShard(),) if has_any else ()


@dataclass(frozen=True)
class OutsideShard:
    """A level that minimises the number of tasks on nodes of other shards."""

    name: str = "outside the shard"
    unit: str = "tasks"
    sense: Sense = Sense.MIN

    def node_values(self, problem: Problem) -> I64:
        """See `NodeLevel`."""
        own = preferred_nodes(problem)
        away = np.zeros(problem.num_nodes, np.int64) if own is None else (~own).astype(np.int64)
        return np.tile(away, (len(problem.classes.shapes), 1))

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        own = preferred_nodes(outcome.problem)
        return 0 if own is None else int((~own[outcome.node_of_coming[outcome.assigned]]).sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`."""
        return 0


def preferred_nodes(problem: Problem) -> Bool | None:
    """Return the mask (N,) of nodes in the shard in soft mode, or None in other modes."""
    is_soft = problem.snapshot.sharding.mode is ShardMode.SOFT
    return problem.derived(_find_own_nodes) if is_soft else None


def _find_own_nodes(problem: Problem) -> Bool | None:
    names = problem.snapshot.sharding.nodes
    if names is None:
        return None
    return np.array([node.name in names for node in problem.snapshot.nodes], np.bool_)
