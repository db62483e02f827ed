"""The pods that each gang may evict in sessions with a solver.

Mathematics: models/formulation/entitled.md. A gang preempts pods of lower priority in its queue. A
queue reclaims capacity up to its deserved share from queues above their deserved shares. A reclaim
within a guarantee may evict pods that are not preemptable or are in their cooldown
(models/formulation/victims.md). A gang that loses pods keeps its minimum number of pods, or all its
pods are evicted. The tiered votes of Volcano's plugins apply only in sessions without a solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.cluster.decisions import Evict
from optsched.plugins.eviction.moves import CONSOLIDATE, find_losses
from optsched.plugins.eviction.needless_victims import find_needless
from optsched.plugins.eviction.victims import GuaranteedReclaims, cover_running
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.gangs.gang import is_below_minimum
from optsched.plugins.verification.world import World, add_into, summed, task_usage
from optsched.problem.running import running_tasks
from optsched.units import PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Queue
    from optsched.cluster.task import Task
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


class Floors:
    """The running tasks that are protected but may still be reclaimed within a guarantee.

    Attributes
    ----------
    waivable
        (V,) mask of running tasks that are protected only by annotations; all False if no queue has
        a guarantee.
    overridable
        (V,) mask of running tasks that are protected only by annotations or by exhausted
        disruption budgets that yield to guarantees; equals `waivable` without such budgets.
    yielding
        (V,) mask of running tasks that are covered by a disruption budget that yields to
        guarantees; all False if no queue has a guarantee.

    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self._problem = problem
        self._running = running_tasks(problem)
        self._queues = problem.queues
        self.waivable: Bool = np.zeros(len(self._running), np.bool_)
        if self._queues.guarantee.any():
            self.waivable = rules.waivable(problem)
        self.overridable: Bool = self.waivable
        self.yielding: Bool = np.zeros_like(self.waivable)
        yields = np.array([b.yields_to_guarantees for b in problem.snapshot.budgets], np.bool_)
        if yields.any() and self._queues.guarantee.any():
            self.overridable = rules.waivable(problem, overrides_budgets=True)
            self.yielding = np.logical_or.reduce(cover_running(problem)[yields], axis=0)

    def waived(
        self, queue: int, request: I64, least: I64, held: I64, *, overrides_budgets: bool = False
    ) -> Bool:
        """Return the protected running tasks that a gang may reclaim within a guarantee.

        Parameters
        ----------
        queue
            Index of the gang's queue.
        request
            (E, R) request of one task of each set of equal tasks of the gang.
        least
            (R,) a lower bound on the total request of the tasks that the gang must place.
        held
            (Q, R) resources that each queue and its descendants hold.
        overrides_budgets
            Whether the gang may exceed disruption budgets that yield to guarantees.

        Returns
        -------
        Bool
            (V,) mask of the protected running tasks that the gang may reclaim.

        """
        waivable = self.overridable if overrides_budgets else self.waivable
        if not waivable.any():
            return np.zeros_like(waivable)
        waived: Bool = self.covered(queue, request, least, held) & waivable
        return waived

    def covered(self, queue: int, request: I64, least: I64, held: I64) -> Bool:
        """Return the tasks of other queues that a gang may reclaim within a guarantee.

        The guarantee belongs to the gang's queue or to an ancestor queue. The result may include
        tasks that are not preemptable, in their cooldown, or under a disruption budget. Parameters
        and result are as in `waived`.
        """
        found = np.zeros_like(self.waivable)
        requested, queues, running = (request > 0).all(axis=0), self._queues, self._running
        for a in np.flatnonzero(queues.subtree[:, queue]).tolist():
            floor = queues.guarantee[a]
            named = requested & (floor > 0)
            if not named.any() or (held[a] + least > floor)[named].any():
                continue
            elsewhere = ~np.append(queues.subtree[a], False)[running.queue_of]
            found |= elsewhere & (running.request[:, named] > 0).any(axis=1)
        return found

    @cached_property
    def owed(self) -> Bool:
        """The mask (Q,) of queues that use less of some resource than their guarantee."""
        queues = self._queues
        lacks = np.asarray(queues.summed_up(queues.allocated) < queues.guarantee)
        owed: Bool = np.logical_or.reduce(lacks, axis=1)
        return owed


PREEMPT, RECLAIM = "preempt", "reclaim"
EVICTIONS: Final = frozenset({PREEMPT, RECLAIM})
GANG_PREEMPT, GANG_RECLAIM = "gangpreempt", "gangreclaim"


@dataclass(frozen=True, eq=False)
class Entitled(Rule):
    """Rule: gangs preempt by priority, reclaim by deserved share, and keep their minimums.

    Attributes
    ----------
    reach
        The actions that may evict: preempt, reclaim, both or none.

    """

    name = "entitled"

    rules: RuleSet
    reach: frozenset[str] = EVICTIONS

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        yield from self._verify_gangs(world)
        loses_to: dict[str, str] = {}
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            if task is not None and task.gang != eviction.preemptor and not eviction.to:
                loses_to.setdefault(task.gang, eviction.preemptor)
        for key in sorted({e.preemptor for e in world.evictions} & loses_to.keys()):
            detail = f"has pods evicted for itself and loses pods to {loses_to[key]}"
            yield Violation(self.name, f"gang {key}", detail, key)
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            gang = world.snapshot.gang_by_key.get("" if task is None else task.gang)
            preemptor = world.snapshot.gang_by_key.get(eviction.preemptor)
            if task is None or gang is None or preemptor is None:
                continue  # The rule `Victims` reports unknown tasks and gangs.
            problem = _unentitled(world, eviction, gang, preemptor)
            is_loose = bool(preemptor.is_loose or preemptor.sub_groups)
            if eviction.action == PREEMPT and not (is_loose or self.rules.preempts_for_growth):
                # The policy allows only gangs below their minimum to preempt other gangs.
                ready = [t for t in preemptor.tasks if t.status.counts_as_ready]
                if gang.key != preemptor.key and not is_below_minimum(preemptor, ready):
                    text = f"preempted for {preemptor.key}, which has enough pods for its minimum"
                    problem = problem or text
            if eviction.action in EVICTIONS - self.reach:
                problem = f"the policy does not enable the action {eviction.action} and its plugin"
            if problem:
                yield Violation(self.name, f"task {task.key}", problem, preemptor.key)
        yield from self._verify_shares(world)
        for victims, by in self.find_needless_victims(world):
            detail = f"evicted for {by}, which does not use the released resources"
            yield Violation(self.name, f"task {victims[0]}", detail, by)

    def find_needless_victims(self, world: World) -> Iterator[tuple[list[str], str]]:
        """Yield the keys of victims that a preemptor does not need, with the preemptor's key.

        A victim is needed if, without its eviction, the reclaim would violate the rules on deserved
        shares.
        """
        for victims, by in find_needless(world, self.rules, (PREEMPT, RECLAIM)):
            stay = set(victims)
            actions = [a for a in world.actions if not (isinstance(a, Evict) and a.task in stay)]
            # A reclaiming queue must use at most its deserved share after all evictions, so it may
            # have to lose pods of its own.
            if next(self._verify_shares(World(world.snapshot, actions)), None) is None:
                yield victims, by

    def _verify_gangs(self, world: World) -> Iterator[Violation]:
        """Check that each gang with victims keeps its minimum or loses all pods on ready nodes.

        Pods on nodes that are not ready are not victims, because no gang can use their resources.
        """
        ready = {node.name for node in world.snapshot.nodes if node.ready}
        evicted = {e.task for e in world.evictions}
        exchanging = {e.preemptor for e in world.evictions}
        for gang in world.snapshot.gangs:
            held = [t for t in gang.tasks if t.status.counts_as_ready]
            left = [t for t in held if t.key not in evicted]
            leaves = not any(t.status.holds_resources and t.node in ready for t in left)
            if len(left) == len(held) or (leaves and gang.key not in exchanging):
                continue
            for detail in find_losses(gang, held, left):
                yield Violation(self.name, f"gang {gang.key}", detail)

    def _verify_shares(self, world: World) -> Iterator[Violation]:
        """Check the deserved shares and guarantees of the queues between which gangs reclaim.

        Reclaiming queues are checked after all evictions, and lending queues after each reclaim.
        """
        reclaims = _group_reclaims(world)
        if not reclaims:
            return
        known = (
            (rule.deserved_by_name(world), rule.returns_by_use)
            for rule in self.rules.entitling_rules
        )
        nothing: tuple[Mapping[str, Mapping[str, int]] | None, bool] = (None, False)
        due, by_use = next((found for found in known if found[0] is not None), nothing)
        if due is None:
            yield Violation(self.name, "reclaim", "no rule of the policy defines deserved shares")
            return
        shares = _Shares(world, due, by_use=by_use)
        guaranteed = GuaranteedReclaims(world)
        for (preemptor, lender), reclaim in sorted(reclaims.items(), key=lambda e: e[1].last):
            requested = sorted(summed(task_usage(t) for t in world.placed_of.get(preemptor, [])))
            borrower = world.snapshot.gang_by_key[preemptor].queue
            shares.replay(reclaim.last)
            gang = world.snapshot.gang_by_key[preemptor]
            # A reclaim within a guarantee may leave the lending queue below its deserved share.
            returned = [
                task for task in reclaim.tasks if guaranteed.find_guarantee(gang, task) is None
            ]
            units = list(_list_units(world, reclaim, preemptor))
            for where, detail in (
                *shares.find_excess_claims(borrower, lender, requested),
                *shares.find_excess_returns(lender, borrower, requested, (returned, units)),
                *shares.find_broken_guarantees(lender, borrower, reclaim.tasks),
            ):
                found = f"{detail}, reclaim for {preemptor}"
                yield Violation(self.name, f"queue {where}", found, preemptor)
            for where, detail in shares.find_unrelated_victims(requested, reclaim.tasks, units):
                found = f"{detail}, reclaim for {preemptor}"
                yield Violation(self.name, f"task {where}", found, preemptor)


def _group_reclaims(world: World) -> dict[tuple[str, str], _Reclaim]:
    """Return the victims of the action `reclaim`, keyed by reclaiming gang and lending queue.

    Evictions to which the preemptor is not entitled are omitted.
    """
    found: dict[tuple[str, str], _Reclaim] = {}
    for at, eviction in enumerate(world.evictions):
        task = world.task_by_key.get(eviction.task)
        gang = world.snapshot.gang_by_key.get("" if task is None else task.gang)
        preemptor = world.snapshot.gang_by_key.get(eviction.preemptor)
        if eviction.action != RECLAIM or task is None or gang is None or preemptor is None:
            continue
        if _unentitled(world, eviction, gang, preemptor):
            continue
        reclaim = found.setdefault((preemptor.key, gang.queue), _Reclaim([], at))
        reclaim.tasks.append(task)
        reclaim.last = at
    return found


@dataclass(slots=True)
class _Reclaim:
    """The victims that a gang reclaims from one queue; `last` is the index of the last eviction."""

    tasks: list[Task]
    last: int


class _Unit(NamedTuple):
    """Victims of a gang or subgroup, some of which must be evicted together.

    Attributes
    ----------
    tasks
        The keys of all these victims.
    uses
        The resources that the victims evicted together use.
    usage
        An upper bound, by resource, on what the victims evicted together use; victims evicted later
        do not count.

    """

    tasks: frozenset[str]
    uses: frozenset[str]
    usage: dict[str, int]


def _list_units(world: World, reclaim: _Reclaim, preemptor: str) -> Iterator[_Unit]:
    """Yield the units of a reclaim: sets of victims that a gang or subgroup loses together.

    To evict a whole gang or subgroup, single tasks are evicted first, down to its minimum, and then
    the other tasks as one unit. The minimum of a subgroup is its size.
    """
    preemptor_of = {e.task: e.preemptor for e in world.evictions if not e.to}
    up_to_now = {e.task for e in world.evictions[: reclaim.last + 1]}
    for key in sorted({task.gang for task in reclaim.tasks}):
        gang = world.snapshot.gang_by_key[key]
        ready = [t for t in gang.tasks if t.status.counts_as_ready]
        least = max(gang.min_member, sum(rule.size * rule.min_groups for rule in gang.sub_groups))
        parts = [(ready, min(least, len(ready)))]
        by_group = gang.by_sub_group(ready)
        parts += [(by_group[g], gang.sub_groups[g[0]].size) for g in sorted(by_group)]
        for members, minimum in parts:
            spare = len(members) - minimum
            victims = [t for t in members if t.key in preemptor_of]
            number = len(victims) - spare
            if number > 1 and spare >= 0:
                mine = [t for t in victims if preemptor_of[t.key] == preemptor]
                yield _make_unit(victims, mine, up_to_now, number)


def _make_unit(
    victims: Sequence[Task], mine: Sequence[Task], up_to_now: Container[str], number: int
) -> _Unit:
    """Return the unit of `victims`, of which `number` tasks are evicted together.

    `mine` are the victims of one preemptor. The upper bound for a resource assumes that the tasks
    of `mine` without the resource are among the `number` tasks. The remaining tasks of the unit are
    the victims that use the most of the resource.
    """
    used = [(task.key, task_usage(task)) for task in victims]
    usage: dict[str, int] = {}
    for r in sorted({name for _, each in used for name, amount in each.items() if amount}):
        lacking = sum(not task_usage(task).get(r, 0) for task in mine)
        if lacking < number:
            amounts = sorted(each.get(r, 0) for key, each in used if key in up_to_now)
            usage[r] = sum(amounts[lacking - number :])
    return _Unit(frozenset(task.key for task in victims), frozenset(usage), usage)


class _Shares:
    """The usage and the deserved share of each queue while the evictions of a plan are replayed.

    Evictions are replayed in the order of the plan. From the first eviction on, the usage of a
    queue includes all placements of the plan. A queue's usage includes that of its descendants.
    """

    def __init__(self, world: World, due: Mapping[str, Mapping[str, int]], *, by_use: bool) -> None:
        self._world = world
        self._due = due
        self._by_use = by_use
        self._replayed = 0
        self._held: dict[str, dict[str, int]] = {}
        self._evicted: dict[str, dict[str, int]] = {q.name: {} for q in world.snapshot.queues}
        self._evicted_in_all: dict[str, dict[str, int]] = {
            q.name: {} for q in world.snapshot.queues
        }
        for at in range(len(world.evictions)):
            self._count_eviction(at, self._evicted_in_all)

    def replay(self, last: int) -> None:
        for at in range(self._replayed, last + 1):
            self._count_eviction(at, self._evicted)
        self._replayed = max(self._replayed, last + 1)

    def _count_eviction(self, at: int, evicted: dict[str, dict[str, int]]) -> None:
        eviction = self._world.evictions[at]
        world = self._world
        task = world.task_by_key.get(eviction.task)
        gang = world.snapshot.gang_by_key.get("" if task is None else task.gang)
        if task is None or gang is None or gang.queue not in evicted or eviction.to:
            return
        for queue in world.ancestors(world.snapshot.queue_by_name[gang.queue]):
            add_into(evicted[queue.name], task_usage(task))

    def _allocated_after(
        self, queue: Queue, evicted: Mapping[str, Mapping[str, int]]
    ) -> dict[str, int]:
        """Return the usage of a queue and its descendants without the resources in `evicted`."""
        if queue.name not in self._held:
            before: dict[str, int] = {}
            for name in self._world.descendants_by_queue[queue.name]:
                add_into(before, self._world.held_by_queue[name])
                add_into(before, self._world.gained_by_queue[name])
            self._held[queue.name] = before
        held = dict(self._held[queue.name])
        add_into(held, {r: -amount for r, amount in evicted[queue.name].items()})
        return held

    def _select_deserved(self, queue: Queue, requested: Iterable[str]) -> dict[str, int]:
        due = self._due.get(queue.name, {})
        return {r: due[r] for r in requested if due.get(r, 0) > 0}

    def find_excess_claims(
        self, name: str, lender: str, requested: Sequence[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield reclaiming queues and their ancestors above their deserved shares, with reasons."""
        chain = self._world.ancestors_apart(name, lender)
        if not any(self._select_deserved(queue, requested) for queue in chain):
            yield name, "its deserved share contains none of the requested resources"
        for queue in chain:
            held = self._allocated_after(queue, self._evicted_in_all)
            for r, due in self._select_deserved(queue, requested).items():
                used = held.get(r, 0)
                if used > due:
                    both = f"holds {amount_text(r, used)}, but deserves {amount_text(r, due)}"
                    yield queue.name, both

    def find_excess_returns(
        self,
        name: str,
        borrower: str,
        requested: Sequence[str],
        returned: tuple[Sequence[Task], Sequence[_Unit]],
    ) -> Iterator[tuple[str, str]]:
        """Yield each lending queue that loses tasks although it is within its deserved share.

        `returned` contains the tasks that the queue loses, and the units of these tasks; a gang
        loses the tasks of a unit together. `_group_victims` selects the resources to compare. A
        victim that uses none of the compared resources may always be reclaimed.
        """
        tasks, units = returned
        for queue in self._world.ancestors_apart(name, borrower):
            held = self._allocated_after(queue, self._evicted)
            keeps = {r: due for r, due in self._due.get(queue.name, {}).items() if due > 0}
            if queue.tolerance is not None:
                keeps = {
                    r: queue.tolerance.protected_amount(r, amount) for r, amount in keeps.items()
                }
            groups = self._group_victims(queue, requested, tasks, units)
            for (compared, together), some in groups.items():
                kept = [task_usage(task) for task in some]
                keys = {task.key for task in some}
                kept += [unit.usage for unit in units if keys & unit.tasks]
                sizes = [(r, max(taken.get(r, 0) for taken in kept)) for r in compared]
                sizes += [(r, n) for u in together for r, n in units[u].usage.items() if r in keeps]
                if not any(held.get(r, 0) + size > keeps[r] for r, size in sizes):
                    yield queue.name, "would return more than it holds above its deserved share"

    def _group_victims(
        self,
        queue: Queue,
        requested: Sequence[str],
        tasks: Sequence[Task],
        units: Sequence[_Unit],
    ) -> dict[tuple[frozenset[str], tuple[int, ...]], list[Task]]:
        """Group the victims of a lending queue by their compared resources and unit indices.

        The queue must exceed its deserved share of at least one compared resource, or of a resource
        that one of the victim's units uses. If `_by_use` is True, the compared resources of a
        victim are the resources that it uses and of which the queue has a deserved share. The units
        of a victim are those that contain the victim and use another deserved resource. If
        `_by_use` is False, the compared resources are those requested resources of which the queue
        has a deserved share, and units are ignored.
        """
        due = self._due.get(queue.name, {})
        groups: dict[tuple[frozenset[str], tuple[int, ...]], list[Task]] = {}
        for task in tasks:
            taken = task_usage(task)
            counts = {r for r, n in taken.items() if n and due.get(r, 0) > 0}
            together: tuple[int, ...] = ()
            if self._by_use:
                together = tuple(
                    number
                    for number, unit in enumerate(units)
                    if task.key in unit.tasks and any(due.get(r, 0) > 0 for r in unit.uses - counts)
                )
            else:
                counts = (
                    set(self._select_deserved(queue, requested))
                    if counts & set(requested)
                    else set()
                )
            if counts:
                groups.setdefault((frozenset(counts), together), []).append(task)
        return groups

    def find_unrelated_victims(
        self, requested: Sequence[str], tasks: Sequence[Task], units: Sequence[_Unit]
    ) -> Iterator[tuple[str, str]]:
        """If `_by_use` is True, yield each victim that uses no requested resource.

        A victim is skipped if another task of its unit uses a requested resource.
        """
        needed = {r for r in requested if r != PODS}
        for task in tasks if self._by_use else ():
            uses = {r for r, n in task_usage(task).items() if n}
            units_of = [unit for unit in units if task.key in unit.tasks]
            if not needed & uses.union(*(unit.uses for unit in units_of)):
                yield task.key, "uses none of the requested resources"

    def find_broken_guarantees(
        self, name: str, borrower: str, tasks: Sequence[Task]
    ) -> Iterator[tuple[str, str]]:
        """Yield each lending queue whose usage falls below its guarantee, with a reason."""
        touched = summed(task_usage(t) for t in tasks)
        for queue in self._world.ancestors_apart(name, borrower):
            held = self._allocated_after(queue, self._evicted)
            for r, floor in queue.guarantee:
                left = held.get(r, 0)
                if r in touched and left < floor:
                    both = f"keeps {amount_text(r, left)} of {amount_text(r, floor)} guaranteed"
                    yield queue.name, both


def _unentitled(world: World, eviction: Evict, gang: Gang, preemptor: Gang) -> str:
    """Return why a preemptor may not evict a task; empty if the eviction is allowed."""
    if gang.key == preemptor.key:
        priority = world.task_by_key[eviction.task].priority
        come = world.placed_of.get(gang.key, ())
        if eviction.action == PREEMPT and any(t.priority > priority for t in come):
            return ""
        return f"evicted for its own gang {gang.key}, which places no task of higher priority"
    if eviction.action == PREEMPT:
        if gang.queue != preemptor.queue:
            return f"preempted for {preemptor.key} of another queue"
        if gang.priority >= preemptor.priority:
            return f"preempted for {preemptor.key}, which has no higher priority"
    elif eviction.action == RECLAIM:
        queues = world.snapshot.queue_by_name
        if gang.queue == preemptor.queue or preemptor.queue not in queues:
            return f"reclaimed for {preemptor.key} of queue {preemptor.queue}"
        if gang.queue not in queues or not queues[gang.queue].reclaimable:
            return f"reclaimed from queue {gang.queue}, which is not reclaimable"
    elif eviction.action != CONSOLIDATE:  # `Consolidation` checks moves.
        known = f"{PREEMPT}, {RECLAIM} nor {CONSOLIDATE}"
        return f"evicted by {eviction.action}, which is neither {known}"
    return ""
