"""Pods that are never evicted: system pods, and pods that annotations or PDBs protect.

Mathematics: models/formulation/conformance.md and models/formulation/victims.md. Volcano deletes
victims regardless of disruption budgets. This module respects disruption budgets, as the eviction
API does; an administrator may let the guarantees of queues override a disruption budget.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import derived_of
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Plugin
from optsched.plugins.eviction.moves import SHUFFLE, describe_broken_gang
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.columns import LabelColumns
from optsched.problem.problem import cached_by_problem
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Evict
    from optsched.cluster.snapshot import Budget, Gang, Queue, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow


SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000
"""The lower of the priorities of `system-cluster-critical` and `system-node-critical`.

User-defined priorities may be at most half of `SYSTEM_PRIORITY` (Kubernetes
`pkg/apis/scheduling/types.go`).
"""


class Conformance(Rule):
    """Place pods of `kube-system` and of system priority classes first, and never evict them."""

    name = "conformance"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        evicted = {action.task for action in world.evictions}
        if not evicted:
            return
        for task in (t for node in world.snapshot.nodes for t in node.residents):
            if task.key in evicted and is_system(task):
                yield Violation(self.name, f"task {task.key}", "evicted, but is a system pod")

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        is_system = problem.derived(_system_gangs)
        return _SystemPods(problem, is_system) if any(is_system) else _NoSystemGangs(problem)

    def spares(self, problem: Problem) -> Bool:
        """See `Rule`."""
        return np.array([is_system(t) for t in running_tasks(problem).tasks], np.bool_)


@dataclass(eq=False)
class _NoSystemGangs(Greedy):
    _problem: Problem

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        tasks = running_tasks(self._problem).tasks
        return np.array([v for v in victims.tolist() if not is_system(tasks[v])], np.int64)

    reclaimable = preemptable


@dataclass(eq=False)
class _SystemPods(_NoSystemGangs):
    _is_system: Sequence[bool]

    def comes_first(self, gang: int) -> bool:
        return self._is_system[gang]


def _system_gangs(problem: Problem) -> list[bool]:
    """Return whether each gang (G,) has system pods; callers cache the list."""
    found: list[bool] = problem.gang_columns.flags(_is_system_row).tolist()
    return found


def _is_system_row(row: GangRow) -> bool:
    return row.gang.derived(is_system_gang)


def is_system(task: Task) -> bool:
    """Return whether a task is in `kube-system` or has a system priority."""
    return task.namespace == SYSTEM_NAMESPACE or task.priority >= SYSTEM_PRIORITY


def is_system_gang(gang: Gang) -> bool:
    """Return whether a gang is in `kube-system`, or it or one of its tasks has system priority."""
    if gang.namespace == SYSTEM_NAMESPACE or gang.priority >= SYSTEM_PRIORITY:
        return True
    return any(task.priority >= SYSTEM_PRIORITY for task in gang.tasks)


def system_first(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the priorities of system gangs raised to `SYSTEM_PRIORITY`.

    Returns the given snapshot itself if no priority has to be raised.
    """
    system = derived_of(snapshot.gangs, is_system_gang)
    if not any(system):
        return snapshot
    pairs = zip(snapshot.gangs, system, strict=True)
    low = [gang for gang, is_system in pairs if is_system and gang.priority < SYSTEM_PRIORITY]
    if not low:
        return snapshot
    raised = {gang.key: replace(gang, priority=SYSTEM_PRIORITY) for gang in low}
    return replace(snapshot, gangs=tuple(raised.get(g.key, g) for g in snapshot.gangs))


CONFORMANCE = Plugin(
    "conformance",
    "system pods are placed first and never evicted",
    (),
    lambda _: (Conformance(),),
)


_RECLAIMS = frozenset({"reclaim", "gangreclaim"})


class Victims(Rule):
    """Evict only running, preemptable tasks, and only for gangs that are placed."""

    name = "victims"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        seen: dict[str, Evict] = {}
        guaranteed = GuaranteedReclaims(world)
        for eviction in world.evictions:
            where = f"task {eviction.task}"
            if eviction.task in seen:
                yield Violation(self.name, where, "evicted more than once")
            seen[eviction.task] = eviction
            problem = _find_problem(world, eviction)
            if not problem and eviction.action != SHUFFLE:
                # A reclaim within a guarantee may evict a task that is not preemptable or in its
                # cooldown.
                refusal = _refusal(world.task_by_key[eviction.task], world.snapshot.taken_ms)
                if refusal and guaranteed.find_used_guarantee(eviction) is None:
                    problem = refusal
            if problem:
                yield Violation(self.name, where, problem)
        firmly_covered: set[str] = set()
        for budget, keys in guaranteed.covered:
            counted = [seen[key] for key in keys]
            if not budget.yields_to_guarantees:
                firmly_covered.update(keys)
            elif len(counted) > budget.allowed:
                counted = [e for e in counted if guaranteed.find_used_guarantee(e) is None]
            if len(counted) > budget.allowed:
                detail = f"{len(counted)} evicted, {budget.allowed} allowed"
                yield Violation(self.name, f"budget {budget.key}", detail)
        for key in guaranteed.covered_by_several:
            if key in firmly_covered or guaranteed.find_used_guarantee(seen[key]) is None:
                detail = "evicted, but the eviction API refuses pods of several disruption budgets"
                yield Violation(self.name, f"task {key}", detail)

    def spares(self, problem: Problem) -> Bool:
        """Protect tasks that are unpreemptable, in their cooldown, or under disruption budgets."""
        return find_unpreemptable(problem) | find_budget_protected(problem)


def find_unpreemptable(problem: Problem) -> Bool:
    """Return the mask (V,) of running tasks that are not preemptable or are in their cooldown."""
    now_ms = problem.snapshot.taken_ms
    found = [bool(_refusal(t, now_ms)) for t in running_tasks(problem).tasks]
    return np.array(found, np.bool_)


def find_budget_protected(problem: Problem, *, yields: bool | None = None) -> Bool:
    """Return the mask (V,) of running tasks that are protected by disruption budgets.

    If `yields` is True, the mask considers only the disruption budgets that guarantees may
    override. If `yields` is False, the mask considers only the budgets that guarantees may not
    override.
    """
    budgets, protecting = problem.snapshot.budgets, find_protecting(problem)
    is_chosen = [yields is None or b.yields_to_guarantees is yields for b in budgets]
    protected: Bool = np.logical_or.reduce(protecting[np.array(is_chosen, np.bool_)], axis=0)
    return protected


@cached_by_problem
def find_protecting(problem: Problem) -> Bool:
    """Return the mask (B, V) of the running tasks that each budget protects; cached.

    An exhausted budget protects all tasks that it covers. A budget that is not exhausted protects
    those of its tasks that other budgets also cover, because the eviction API refuses to evict
    these tasks.
    """
    cover = cover_running(problem)
    is_spent = np.array([b.allowed <= 0 for b in problem.snapshot.budgets], np.bool_)
    protecting: Bool = cover & (is_spent[:, None] | (cover.sum(axis=0) > 1))
    return protecting


def ended_gangs(snapshot: Snapshot, victims: Collection[str]) -> list[str]:
    """Return the keys of gangs that lose all pods on ready nodes, in snapshot order.

    `victims` contains the keys of evicted tasks, except tasks that move to another node.
    """
    ready = {node.name for node in snapshot.nodes if node.ready}
    found = []
    for gang in snapshot.gangs:
        standing = [t for t in gang.tasks if t.status.is_standing and t.node in ready]
        if standing and all(t.key in victims for t in standing):
            found.append(gang.key)
    return found


class Cooldown(Rule):
    """The rule of the plugin `cdp`: it votes to evict only tasks that are not in their cooldown.

    `Victims` protects tasks in their cooldown even if the plugin `cdp` is not enabled.
    """

    name = "cdp"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Cooldown(problem.snapshot, running_tasks(problem).tasks)


class Budgets(Rule):
    """The rule of the plugin `pdb`: it votes to evict only tasks that disruption budgets allow.

    `Victims` enforces disruption budgets even if the plugin `pdb` is not enabled.
    """

    name = "pdb"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Budgets(problem.snapshot, running_tasks(problem).tasks, cover_running(problem))


@dataclass(eq=False)
class _EvictionVotes(Greedy):
    """Votes to preempt the tasks that `movable` selects."""

    _snapshot: Snapshot
    _tasks: Sequence[Task]

    def movable(self, victims: I64) -> I64:
        """Return the victims whose eviction the plugin allows."""
        raise NotImplementedError

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        return self.movable(victims)


class _Cooldown(_EvictionVotes):
    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Return all victims; `Victims` lets only guarantees reclaim tasks in their cooldown."""
        return victims

    def movable(self, victims: I64) -> I64:
        now_ms, tasks = self._snapshot.taken_ms, self._tasks
        return victims[np.array([not _is_cooling(tasks[v], now_ms) for v in victims], np.bool_)]


@dataclass(eq=False)
class _Budgets(_EvictionVotes):
    _cover: Bool

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Return the victims allowed by the disruption budgets that guarantees may not override.

        For budgets that guarantees may override, `Victims` ensures that only reclaims within a
        guarantee violate them.
        """
        is_firm = [not budget.yields_to_guarantees for budget in self._snapshot.budgets]
        return self._select_allowed(np.flatnonzero(is_firm), victims)

    def movable(self, victims: I64) -> I64:
        return self._select_allowed(np.arange(len(self._snapshot.budgets)), victims)

    def _select_allowed(self, budgets: I64, victims: I64) -> I64:
        left = np.array([self._snapshot.budgets[b].allowed for b in budgets], np.int64)
        votes = []
        for covering in self._cover[np.ix_(budgets, victims)].T:
            votes.append(covering.sum() <= 1 and bool((left[covering] > 0).all()))
            left[covering] -= votes[-1]
        return victims[np.array(votes, np.bool_)]


@cached_by_problem
def cover_running(problem: Problem) -> Bool:
    """Return the mask (B, V) of the running tasks that each disruption budget covers; cached."""
    return cover_tasks(problem.snapshot.budgets, running_tasks(problem).tasks)


def cover_tasks(budgets: Sequence[Budget], tasks: Sequence[Task]) -> Bool:
    """Return the mask (B, T) of the tasks that each disruption budget covers."""
    found = np.zeros((len(budgets), len(tasks)), np.bool_)
    namespaces = {budget.namespace for budget in budgets}
    members: dict[str, list[int]] = {}
    for t, task in enumerate(tasks if namespaces else ()):
        if task.namespace in namespaces:
            members.setdefault(task.namespace, []).append(t)
    columns = {
        namespace: LabelColumns([tasks[t].labels for t in of_namespace])
        for namespace, of_namespace in members.items()
    }
    for b, budget in enumerate(budgets):
        if budget.selector is not None and budget.namespace in members:
            covered = columns[budget.namespace].selects(budget.selector)
            found[b, members[budget.namespace]] = covered
    return found


def covers(budget: Budget, task: Task) -> bool:
    """Return whether a disruption budget covers a task."""
    if budget.selector is None or budget.namespace != task.namespace:
        return False
    return budget.selector.matches(task.labels)


def _refusal(task: Task, now_ms: int) -> str:
    """Return why a running task may not be evicted; empty if the eviction is allowed."""
    if not task.preemptable:
        return "evicted, but is not preemptable"
    if _is_cooling(task, now_ms):
        return "evicted before its cooldown has ended"
    return ""


def _is_cooling(task: Task, now_ms: int) -> bool:
    return bool(task.cooldown_ms) and now_ms < task.started_ms + task.cooldown_ms


class GuaranteedReclaims:
    """Finds the reclaims of a plan that the guarantee of the reclaiming queue covers.

    The covered reclaims may evict tasks that are not preemptable or in their cooldown, and may
    exceed disruption budgets that guarantees override.

    Attributes
    ----------
    covered
        The disruption budgets that cover evicted tasks, each with the keys of these tasks.
    covered_by_several
        Keys of the evicted tasks that several budgets cover.

    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._gangs: dict[str, set[str]] = {}  # gangs that evict protected tasks, by queue
        self._requested: dict[str, Mapping[str, int]] = {}
        evicted: dict[str, dict[str, Task]] = {}
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            if task is not None:
                evicted.setdefault(task.namespace, {})[task.key] = task
        self.covered: list[tuple[Budget, list[str]]] = []
        for budget in world.snapshot.budgets:
            tasks = evicted.get(budget.namespace, {})
            if keys := [key for key, task in tasks.items() if covers(budget, task)]:
                self.covered.append((budget, keys))
        number = Counter(key for _, keys in self.covered for key in keys)
        self.covered_by_several = [key for key, num_budgets in number.items() if num_budgets > 1]
        protected = set(self.covered_by_several)
        for budget, keys in self.covered:
            if budget.yields_to_guarantees and len(keys) > budget.allowed:
                protected.update(keys)
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            gang = world.snapshot.gang_by_key.get(eviction.preemptor)
            if task is None or gang is None:
                continue
            is_reclaimed = eviction.action in _RECLAIMS
            if _refusal(task, world.snapshot.taken_ms) or (is_reclaimed and task.key in protected):
                self._gangs.setdefault(gang.queue, set()).add(gang.key)

    def find_reclaims(self) -> dict[str, str]:
        """Return, by victim key, the name of the queue whose guarantee covers the reclaim.

        A guarantee first covers the gangs that reclaim protected victims. The guarantee then covers
        the other gangs, in the order of the plan, as long as it also covers all tasks that the plan
        places for these gangs.
        """
        world, found = self._world, dict[str, str]()
        for eviction in world.evictions:
            gang = world.snapshot.gang_by_key.get(eviction.preemptor)
            if gang is None:
                continue
            mine = self._gangs.setdefault(gang.queue, set())
            if gang.key not in mine:
                placed = summed(task_usage(t) for t in world.placed_of.get(gang.key, ()))
                self._requested[gang.key] = {**_least_request(gang), **placed}
            queue = self.find_used_guarantee(eviction)
            if queue is not None:
                mine.add(gang.key)
                found[eviction.task] = queue.name
        return found

    def find_used_guarantee(self, eviction: Evict) -> Queue | None:
        """Return the queue whose guarantee covers an eviction, or None if no guarantee does."""
        task = self._world.task_by_key.get(eviction.task)
        gang = self._world.snapshot.gang_by_key.get(eviction.preemptor)
        if task is None or gang is None or eviction.action not in _RECLAIMS:
            return None
        return self.find_guarantee(gang, task)

    def find_guarantee(self, gang: Gang, task: Task) -> Queue | None:
        """Return the queue of a gang, or the ancestor queue, whose guarantee covers a reclaim."""
        world, queues = self._world, self._world.snapshot.queue_by_name
        lender = world.snapshot.gang_by_key.get(task.gang)
        if lender is None or gang.queue not in queues or lender.queue not in queues:
            return None
        chain = world.ancestors_apart(gang.queue, lender.queue)
        return next((queue for queue in chain if self._is_covered(queue, gang, task)), None)

    def _is_covered(self, queue: Queue, gang: Gang, task: Task) -> bool:
        """Return whether a queue's usage and its reclaiming gangs' requests fit into its guarantee.

        The victim must also use at least one guaranteed resource that the gang requests.
        """
        requested = self._requested.get(gang.key) or _least_request(gang)
        released = task_usage(task)
        floor = {
            r: amount for r, amount in queue.guarantee if amount > 0 and requested.get(r, 0) > 0
        }
        if not any(released.get(r, 0) > 0 for r in floor):
            return False
        below = self._world.descendants_by_queue[queue.name]
        parts = [self._world.held_by_queue[name] for name in below]
        claiming = {gang.key, *(key for name in below for key in self._gangs.get(name, ()))}
        gangs = self._world.snapshot.gang_by_key
        parts += [self._requested.get(k) or _least_request(gangs[k]) for k in sorted(claiming)]
        held = summed(parts)
        return all(held.get(r, 0) <= amount for r, amount in floor.items())


def _least_request(gang: Gang) -> Mapping[str, int]:
    """Return a lower bound on a gang's demand for the resources that all pending tasks request."""
    waiting = [task_usage(t) for t in gang.tasks if t.status is TaskStatus.PENDING]
    ready = sum(task.status.counts_as_ready for task in gang.tasks)
    number = max(gang.min_member - ready, 1)
    common = set.intersection(*map(set, waiting)) if waiting else set[str]()
    return {r: number * min(taken[r] for taken in waiting) for r in sorted(common)}


def _find_problem(world: World, eviction: Evict) -> str:
    task = world.task_by_key.get(eviction.task)
    if task is None:
        return "evicted, but belongs to no gang"
    if not task.status.is_standing:
        return f"evicted, but is {task.status.value}"
    if task.node != eviction.node:
        return f"evicted from {eviction.node}, but runs on {task.node}"
    if eviction.action == SHUFFLE:
        if eviction.preemptor or not eviction.plugin:
            return f"evicted by {SHUFFLE}, but no plugin proposed to move it"
        evicted = {e.task for e in world.evictions}
        broken = describe_broken_gang(world.snapshot.gang_by_key[task.gang], evicted)
        return broken or _refusal(task, world.snapshot.taken_ms)
    preemptor = eviction.preemptor
    if preemptor not in world.snapshot.gang_by_key:
        return f"evicted for {preemptor}, which does not exist"
    gains = world.placed_of.get(preemptor, [])
    if not all(t.preempts for t in gains):
        return f"evicted for {preemptor}, whose preemptionPolicy is Never"
    return "" if gains else f"evicted for {preemptor}, which gets no node"


CDP = Plugin("cdp", "does not evict pods during their cooldown", (), lambda _: (Cooldown(),))

PDB = Plugin("pdb", "evicts only pods that disruption budgets allow", (), lambda _: (Budgets(),))
