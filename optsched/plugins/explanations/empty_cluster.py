"""Check whether a gang's minimum fits into an empty cluster, and explain why not.

The empty cluster contains the current nodes without pods. A NotReady node counts as a node without
capacity. The check applies taints, node labels, and rules that depend on a single node. Pods of
other gangs, queue limits and constraints that other pods may help to satisfy (e.g. required pod
affinity or topology spread) are ignored. A gang that does not fit into the empty cluster can
therefore never start on the current nodes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.cluster.decisions import Allocate
from optsched.cluster.task import TaskStatus
from optsched.plugins.explanations.minimum_packing import MOST_STEPS, Effort, Goal, Packing
from optsched.plugins.verification.world import World
from optsched.problem.arrays import UNLIMITED, row_groups
from optsched.problem.relations import TermKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Outcome
    from optsched.plugins.extension_points import Rule
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

MOST_CHECKS: Final = 5_000
"""Maximum number of checks of a single node by the rules; further gangs are assumed to fit."""

HOST: Final = "kubernetes.io/hostname"


class Item(NamedTuple):
    """An item to pack: the pending pods of a gang that have the same role and task class."""

    task_class: int
    role: str
    number: int
    tasks: tuple[Task, ...]


class Minimum(NamedTuple):
    """A gang's minimum: its items, and the minimum numbers of pods in total and per role."""

    items: tuple[Item, ...]
    whole: int
    roles: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Lack:
    """Why a gang's minimum does not fit into the empty cluster.

    Attributes
    ----------
    chosen
        Number of pods of each item in the cheapest minimum.
    missing
        Lower bound on the number of pods of the minimum that do not fit.
    is_exact
        True if `missing` is the exact number of these pods.
    resources
        Indices (axis R) of the resources that are too scarce on every node; empty if more
        resources would not help.
    rules
        Names of the plugins that reject pods although there are enough resources.
    closed
        Indices of the items whose pods no node may run.

    """

    chosen: tuple[int, ...]
    missing: int
    is_exact: bool
    resources: tuple[int, ...]
    rules: tuple[str, ...]
    closed: tuple[int, ...]


class EmptyCluster:
    """The nodes of a problem without their pods; caches the `Lack` of each minimum."""

    def __init__(self, outcome: Outcome, rules: RuleSet) -> None:
        self._outcome = outcome
        self.problem = outcome.problem
        self._masking = rules.masking
        filters = (r for r in rules.filters if r.mask_lasts and not r.mask_sees_pods)
        self._filters = tuple(filters)
        self._tying_rules = tuple(r for r in rules.tying if r in rules.masking)
        self.checks_left = MOST_CHECKS
        self.effort = Effort(MOST_STEPS)
        self._open: dict[int, Bool] = {}
        self._pods_per_node: dict[int, I64] = {}
        self._ties: dict[int, tuple[str, ...]] = {}
        self._known: dict[tuple[object, ...], Lack | None] = {}
        # (N, R) allocatable resources, stored by column because they are read by resource.
        self._offers: I64 = np.asfortranarray(self.problem.allocatable)

    def minimum(self, gang: int) -> Minimum:
        """Return the minimum that a gang must still place; for a started gang, it is one pod."""
        problem = self.problem
        number = int(problem.shape_of[gang])
        shape, start = problem.shapes.shapes[number], int(problem.shapes.start[number])
        first = int(problem.task_start[gang])
        placed = self._outcome.placed
        found: dict[tuple[int, str], list[int]] = {}
        begin = first
        for at, entry in enumerate(shape.entries, start):
            left = (begin + np.flatnonzero(~placed[begin : begin + entry.count])).tolist()
            begin += entry.count
            key = int(problem.shapes.class_of[at]), entry.role
            found.setdefault(key, []).extend(left)
        items = tuple(
            Item(task_class, role, len(tasks), tuple(problem.tasks[t] for t in tasks))
            for (task_class, role), tasks in found.items()
            if tasks
        )
        if placed[first : int(problem.task_start[gang + 1])].any():
            return Minimum(items, 1, ())
        return Minimum(items, max(shape.need, 1), shape.need_role)

    def whole_minimum(self, gang: int) -> Minimum:
        """Return a gang's minimum; the running pods of a partly running gang count as pending.

        The minimum includes a running pod only if an equal pod is pending.
        """
        minimum = self.minimum(gang)
        problem = self.problem
        shape = problem.shapes.shapes[int(problem.shape_of[gang])]
        if shape.is_started or not problem.num_ready[gang] or not minimum.items:
            return minimum
        holding: dict[tuple[str, TaskShape], list[Task]] = {}
        for task in problem.snapshot.gangs[gang].tasks:
            if task.status.counts_as_ready and task.status.holds_resources:
                holding.setdefault((task.role, task.shape), []).append(task)
        items, roles = [], dict(minimum.roles)
        whole = minimum.whole
        for item in minimum.items:
            more = holding.pop((item.role, item.tasks[0].shape), [])
            tasks = (*item.tasks, *more)
            items.append(item._replace(number=len(tasks), tasks=tasks))
            whole += len(more)
            if item.role in roles:
                roles[item.role] += len(more)
        return Minimum(tuple(items), whole, tuple(roles.items()))

    def find_lack(self, gang: int) -> Lack | None:
        """Return what is missing for a gang's minimum, or None if the minimum fits or may fit."""
        problem = self.problem
        number = int(problem.shape_of[gang])
        entries = problem.shapes.shapes[number].entries
        # Most gangs consist of equal pods, none of which runs; a simple count shows that they fit.
        if len(entries) == 1 and not problem.num_ready[gang]:
            task_class = int(problem.shapes.class_of[problem.shapes.start[number]])
            if not self._tying([task_class]):
                num_fitting = int(self.pods_per_node(task_class).sum())
                if num_fitting >= entries[0].count:
                    return None
        minimum = self.whole_minimum(gang)
        rules = self._tying([item.task_class for item in minimum.items])
        kind = [(item.task_class, item.role, item.number) for item in minimum.items]
        key: tuple[object, ...] = (*kind, minimum.whole, minimum.roles)
        if rules:
            key = (*key, *(task.device_claims for item in minimum.items for task in item.tasks))
        if key not in self._known:
            lack = None
            if rules or not self._is_easy(minimum):
                nodes = _Nodes(self, gang, minimum, rules)
                with suppress(_TooManyChecksError):
                    missing, is_exact = nodes.packing().fewest_missing()
                    lack = nodes.explain(missing, is_exact=is_exact) if missing else None
            self._known[key] = lack
        return self._known[key]

    def _tying(self, classes: Sequence[int]) -> tuple[Rule, ...]:
        tying = {name for task_class in classes for name in self.tying(task_class)}
        return tuple(r for r in self._masking if r.name in tying and not r.pods_may_help)

    def tying(self, task_class: int) -> tuple[str, ...]:
        """Return the names of the rules that make a task class's nodes depend on other pods."""
        if task_class not in self._ties:
            found = (r.name for r in self._tying_rules if r.ties_nodes(self.problem, task_class))
            self._ties[task_class] = tuple(found)
        return self._ties[task_class]

    def _is_easy(self, minimum: Minimum) -> bool:
        """Return whether a minimum obviously fits.

        A minimum of one task class fits if all nodes together fit enough of its pods. A minimum of
        several classes fits if, for each class, the number of nodes on which its pods fit is at
        least the total number of pods.
        """
        total = sum(item.number for item in minimum.items)
        rooms = [self.pods_per_node(item.task_class) for item in minimum.items]
        if len({item.task_class for item in minimum.items}) == 1:
            least = max(minimum.whole, sum(n for _, n in minimum.roles))
            return int(rooms[0].sum()) >= least
        return all(int(np.count_nonzero(room)) >= total for room in rooms)

    def pods_per_node(self, task_class: int) -> I64:
        """Return how many pods of a task class fit on each empty node, shape (N,)."""
        if task_class not in self._pods_per_node:
            problem = self.problem
            request = problem.classes.request[task_class]
            counts = np.full(problem.num_nodes, UNLIMITED)
            for r in np.flatnonzero(request).tolist():
                np.minimum(counts, self._offers[:, r] // int(request[r]), out=counts)
            np.maximum(counts, 0, out=counts)
            self._pods_per_node[task_class] = np.where(self.is_open(task_class), counts, 0)
        return self._pods_per_node[task_class]

    def is_open(self, task_class: int) -> Bool:
        """Return the mask (N,) of ready nodes that no rule filters out for a task class."""
        if task_class not in self._open:
            problem, found = self.problem, self.problem.ready
            for rule in self._filters:
                mask = rule.mask(problem, task_class)
                if mask is not None:
                    found = found & mask
            self._open[task_class] = found
        return self._open[task_class]

    @cached_property
    def node_class(self) -> I64:
        """Class number (N,) of each node; nodes of one class have equal allocatable resources."""
        return row_groups(list(self.problem.allocatable.T))[0]

    @cached_property
    def node_kind(self) -> I64:
        """Class number (N,) of each node; empty nodes of one class differ only by name."""
        known: dict[object, int] = {}
        on_node = self.problem.snapshot.devices.on_node
        kinds = [
            known.setdefault((node.derived(_kind), node.name if node.name in on_node else ""), i)
            for i, node in enumerate(self.problem.snapshot.nodes)
        ]
        return np.array(kinds, np.int64)

    def cheapest(self, gang: int) -> list[tuple[int, str, int]]:
        """Return (task class, role, number of pods) triples of a gang's cheapest minimum."""
        minimum = self.minimum(gang)
        nodes = _Nodes(self, gang, minimum, ())
        pairs = zip(minimum.items, nodes.cheapest().tolist(), strict=True)
        return [(item.task_class, item.role, n) for item, n in pairs if n]


_MOST_COMPARED: Final = 16
"""Maximum number of requested resources that are made unlimited one by one to find a shortage."""


class _TooManyChecksError(Exception):
    """Raised when rules have checked nodes `MOST_CHECKS` times."""


class _Nodes:
    """The node classes that are relevant to one gang's minimum."""

    def __init__(
        self, cluster: EmptyCluster, gang: int, minimum: Minimum, rules: tuple[Rule, ...]
    ) -> None:
        self._cluster = cluster
        self._problem = problem = cluster.problem
        self._minimum = minimum
        self._rules = rules
        self._gang = gang
        classes = [item.task_class for item in minimum.items]
        is_open = np.array([cluster.is_open(c) for c in classes])
        columns = [*is_open.astype(np.int64), cluster.node_class]
        if rules:
            columns.append(cluster.node_kind)
        useful = np.flatnonzero(is_open.any(axis=0))
        groups, first = row_groups([column[useful] for column in columns])
        self._first = useful[first]
        self._number = np.bincount(groups, minlength=len(first)).astype(np.int64)
        self._is_open = is_open[:, self._first].T
        self._classes = np.array(classes, np.int64)
        self._request = problem.classes.request[self._classes]
        self._count = np.array([item.number for item in minimum.items], np.int64)
        self._lifted: tuple[int, ...] = ()
        self._worlds: dict[int, _OneNode] = {}
        self.refusing: dict[str, None] = {}

    def packing(self, lifted: tuple[int, ...] = ()) -> Packing:
        """Return the packing problem in which the resources `lifted` (axis R) are unlimited."""
        capacity = self._problem.allocatable[self._first].copy()
        raised = list(lifted)
        capacity[:, raised] += self._request[:, raised].T @ self._count + self._count.sum()
        self._lifted, self._worlds = lifted, {}
        roles = np.array([item.role for item in self._minimum.items], np.object_)
        return Packing(
            request=self._request,
            count=self._count,
            group=self._classes,
            whole=self._minimum.whole,
            roles=tuple(Goal(roles == role, least) for role, least in self._minimum.roles),
            capacity=capacity,
            number=self._number,
            is_open=self._is_open,
            admits=self._admits if self._rules else None,
            cliques=self._cliques(),
            effort=self._cluster.effort,
        )

    def _cliques(self) -> tuple[tuple[Bool, int], ...]:
        """Return (mask of items, number of domains) pairs, from pod anti-affinity.

        Each domain can run at most one pod of the items in the mask.
        """
        relations, found = self._problem.relations, []
        if not any(rule.mask_sees_pods for rule in self._rules):
            return ()
        shapes = self._problem.classes.shapes
        selves: dict[int, list[bool]] = {}
        for i, c in enumerate(self._classes.tolist()):
            for m in set(relations.carried_by(shapes[c])) & set(self._problem.classes.relations[c]):
                selves.setdefault(m, [False] * len(self._classes))[i] = True
        for m in sorted(selves):
            if relations.terms[m].kind is not TermKind.ANTI_AFFINITY:
                continue
            members = np.array(selves[m], np.bool_)
            fits = np.zeros(self._problem.num_nodes, np.bool_)
            for c in self._classes[members].tolist():
                short = self._problem.classes.request[c] > self._problem.allocatable
                short[:, list(self._lifted)] = False
                fits |= self._cluster.is_open(c) & ~short.any(axis=1)
            domains = relations.domain_of[m][fits]
            if (domains >= 0).all():
                found.append((members, len(np.unique(domains))))
        return tuple(found)

    def _admits(self, k: int, counts: tuple[int, ...]) -> bool:
        """Return whether the rules allow `counts` pods of each item on a node of class `k`."""
        if k not in self._worlds:
            node = empty_node(self._problem.snapshot.nodes[int(self._first[k])])
            if self._lifted:
                offers = dict(node.allocatable)
                for r in self._lifted:
                    plenty = int(self._request[:, r] @ self._count) + int(self._count.sum())
                    name = self._problem.resources[r]
                    offers[name] = offers.get(name, 0) + plenty
                node = replace(node, allocatable=tuple(sorted(offers.items())))
            self._worlds[k] = _OneNode(self._problem, self._gang, node)
        world = self._worlds[k]
        known = world.known.get(counts)
        if known is None:
            if not self._cluster.checks_left:
                raise _TooManyChecksError
            self._cluster.checks_left -= 1
            pairs = zip(self._minimum.items, counts, strict=True)
            keys = [task.key for item, n in pairs for task in item.tasks[:n]]
            refusing = world.find_refusing_rules(self._rules, keys)
            self.refusing.update(dict.fromkeys(refusing))
            known = world.known[counts] = not refusing
        return known

    def explain(self, missing: int, *, is_exact: bool) -> Lack:
        """Return the resources or rules because of which `missing` pods do not fit."""
        requested = np.flatnonzero(self._request.any(axis=0)).tolist()
        chosen = tuple(self.cheapest().tolist())
        closed = tuple(np.flatnonzero(~self._is_open.any(axis=0)).tolist())
        self.refusing = {}
        if self._missing(tuple(requested)):
            return Lack(chosen, missing, is_exact, (), tuple(self.refusing), closed)
        lifted, left = list[int](), missing
        if len(requested) > _MOST_COMPARED:
            # Comparing many resources takes minutes. If there are many resources, all of them are
            # made unlimited at first; then each limit that makes no difference is restored.
            lifted, left = sorted(requested, key=lambda r: (-self._slack(r), r)), 0
        while left:
            others = [r for r in requested if r not in lifted]
            bounds = {r: self.packing((*lifted, r)).estimate_missing() for r in others}
            best = min(others, key=lambda r: (bounds[r][0], not bounds[r][1], self._slack(r), r))
            now = self._missing((*lifted, best))
            if now >= left and len(others) > 1:
                exact = {r: self._missing((*lifted, r)) for r in others}
                best = min(others, key=lambda r: (exact[r], self._slack(r), r))
                now = exact[best]
            lifted.append(best)
            left = now
        for r in list(lifted):
            rest = tuple(x for x in lifted if x != r)
            if rest and not self._missing(rest):
                lifted.remove(r)
        # A rule is a cause only if it rejects pods although the resources suffice.
        self.refusing = {}
        packing = self.packing()
        if self._rules and not replace(packing, admits=None, cliques=()).fewest_missing()[0]:
            packing.fewest_missing()
        rules = tuple(self.refusing)
        return Lack(chosen, missing, is_exact, tuple(lifted), rules, closed)

    def _missing(self, lifted: tuple[int, ...]) -> int:
        return self.packing(lifted).fewest_missing()[0]

    def _slack(self, r: int) -> float:
        """Return the total allocatable amount of a resource divided by its total request."""
        requested = int(self._request[:, r] @ self._count)
        return float(self._number @ self._problem.allocatable[self._first, r]) / max(requested, 1)

    def cheapest(self) -> I64:
        """Return the number of pods of each item in the cheapest minimum, shape (I,).

        The cost of a pod is the maximum, over all resources, of its request divided by the largest
        capacity of any node. A pod that fits on no node costs more than any other pod.
        """
        packing = self.packing()
        top = np.maximum(packing.capacity.max(axis=0, initial=0), 1)
        cost = (self._request * 1_000_000 // top).max(axis=1)
        return packing.choose(cost + 10**9 * ~packing.singles().any(axis=0))


class _OneNode:
    """A snapshot of one empty node and one gang whose tasks have no pod affinity."""

    def __init__(self, problem: Problem, gang: int, node: Node) -> None:
        snapshot = problem.snapshot
        mine = snapshot.gangs[gang]
        waits = TaskStatus.PENDING
        tasks = []
        for task in mine.tasks:
            if task.status is waits or task.status.counts_as_ready:
                shape = task.shape
                if shape.pod_affinity or shape.spread:
                    shape = replace(shape, pod_affinity=(), spread=())
                tasks.append(
                    replace(task, shape=shape, status=waits, node="", gpus=(), shared_gpus=())
                )
        self._gang = replace(mine, tasks=tuple(tasks))
        self._node = node
        own = {key for task in tasks for key in task.device_claims}
        claims = snapshot.devices.claims
        devices = snapshot.devices.release_claims({key for key in claims if key not in own})
        self._snapshot = replace(
            snapshot, nodes=(node,), gangs=(self._gang,), reservations=(), devices=devices
        )
        self.known: dict[tuple[int, ...], bool] = {}

    def find_refusing_rules(self, rules: Sequence[Rule], keys: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the rules that forbid the joint placement of the given tasks."""
        plan = [Allocate(key, self._node.name, self._gang.key) for key in keys]
        world = World(self._snapshot, plan)
        return tuple(rule.name for rule in rules if any(True for _ in rule.verify(world)))


def empty_node(node: Node) -> Node:
    """Return a copy of a node with idle NUMA cells, without pods and without measured load."""
    numa = node.numa
    if numa is not None:
        cells = tuple(
            replace(cell, free_cpus=max(cell.cpus - cell.reserved, 0), free_gpus=cell.gpus)
            for cell in numa.cells
        )
        numa = replace(numa, cells=cells, holds=())
    return replace(node, residents=(), numa=numa, load=None)


def _kind(node: Node) -> object:
    """Return the properties of an empty node that rules may read, except its name."""
    labels = tuple(sorted(pair for pair in node.labels.items() if pair[0] != HOST))
    shared_gpus = tuple(replace(card, key="") for card in node.shared_gpus)
    numa = empty_node(node).numa
    return (
        labels,
        node.gpu_model,
        shared_gpus,
        node.card_problem,
        numa,
        node.attach_limits,
        node.taints,
    )
