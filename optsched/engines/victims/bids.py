"""A gang that stays out, and what may go to make room for it.

Alike victims on one node are one group: single tasks of equal queue, priority, request and cost,
or alike tasks of one gang. Groups are axis K; the gangs of victims that must keep a minimum or
leave as a whole are axis J.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.domain.topology import sub_group_of
from optsched.engines.masks import static_mask
from optsched.problem.arrays import UNLIMITED, frozen, row_groups
from optsched.problem.later import without_gangs
from optsched.problem.running import running_tasks
from optsched.rules.base import Bar
from optsched.rules.shards import preferred_nodes
from optsched.rules.tolerances import kept_amounts, returns_first
from optsched.rules.victims import covers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.domain.cluster import Gang
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem
    from optsched.problem.running import Running
    from optsched.rules.ruleset import RuleSet

_MS = 1000


@dataclass(eq=False)
class State:
    """The cluster as far as it has been decided.

    Attributes
    ----------
    room
        (N, R) what a node will have free once everything that is leaving has left.
    used
        (Q, R) what each queue's own gangs hold, with what has been promised to them.
    evicted
        (V,) tasks that leave.
    spent
        Evictions that each disruption budget has paid for, in the snapshot's order.

    """

    room: I64
    used: I64
    evicted: Bool
    spent: I64


@dataclass(frozen=True, eq=False)
class Groups:
    """Axis K of alike victims.

    Attributes
    ----------
    of_task, tasks
        (V',) group and index on axis V of each candidate.
    node, queue, priority, lost, count
        (K,) where and whose they are, what losing one costs, how many there are.
    gang
        (K,) on axis J, -1 for tasks that may leave one by one.
    role, part
        (K,) number of the role in its gang, and of the smaller group in `Whole.parts`, -1 for none.
    reclaimed, returned_last
        (K,) whether they are another queue's, and one that does not give back before others.
    queue_priority
        (K,) of the queue that they are reclaimed from, from 0 upwards; 0 for the gang's own.
    request
        (K, R) what one of them holds.

    """

    of_task: I64
    tasks: I64
    node: I64
    queue: I64
    priority: I64
    lost: I64
    count: I64
    gang: I64
    role: I64
    part: I64
    reclaimed: Bool
    returned_last: Bool
    queue_priority: I64
    request: I64

    def __post_init__(self) -> None:
        frozen(*vars(self).values())

    def __len__(self) -> int:
        return len(self.node)


@dataclass(frozen=True, slots=True)
class Part:
    """A smaller group of a gang of victims that keeps its size or leaves as a whole.

    Attributes
    ----------
    policy
        The one that makes the group, by its place in the gang's.
    held, surplus
        Tasks that run, and how many of them it can do without.

    """

    policy: int
    held: int
    surplus: int
    may_leave: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A gang of victims that keeps its minimum or leaves as a whole.

    Attributes
    ----------
    held, surplus
        Tasks that run, and how many of them it can do without.
    by_role
        (role number, held, surplus) where a role has a minimum.
    may_leave
        Whether all its tasks may be evicted.
    parts, spare_parts
        Its smaller groups, and (policy, how many groups more there are than have to be).

    """

    gang: int
    held: int
    surplus: int
    by_role: tuple[tuple[int, int, int], ...]
    may_leave: bool
    parts: tuple[Part, ...] = ()
    spare_parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """Σ weight · evicted over groups, and what the gang takes of a resource, are at most so much.

    Attributes
    ----------
    resource
        -1 where what the gang takes does not count.
    is_claim
        Whether it binds only where something is reclaimed.

    """

    groups: I64
    weights: I64
    most: int
    resource: int = -1
    is_claim: bool = False


@dataclass(frozen=True, slots=True)
class Lending:
    """A queue gives back only while it holds more than is due to it of something asked for.

    Tasks that hold nothing of what is due to it are not kept back.

    Attributes
    ----------
    queue, due
        The lender or one above it, and (resource, amount) that it keeps.
    groups
        Victims of the lender that this is about, at least one.
    options
        (resource, size, all groups below, most): with a last victim that holds `size` of the
        resource, everything evicted below the queue may hold `most`.

    """

    queue: int
    due: tuple[tuple[int, int], ...]
    groups: I64
    options: tuple[tuple[int, int, I64, int], ...]


class Barred(NamedTuple):
    """Entries that come to some nodes (m,) only once all of some groups have left."""

    entries: I64
    nodes: I64
    groups: I64


@dataclass(frozen=True, eq=False)
class Reserve:
    """What queues claim of one resource, for their guarantees or for what they need.

    Attributes
    ----------
    floor, used, parent_of
        (Q,) guarantee, what is held, and the queue above, -1 at the top.
    pool
        What all claims of the top may be together, unless the gang adds nothing to them.
    queue
        The queue of the gang.

    """

    resource: int
    floor: I64
    used: I64
    parent_of: I64
    pool: int
    queue: int


@dataclass(frozen=True, eq=False)
class Bid:
    """What a gang wants and what may be taken for it.

    Attributes
    ----------
    gang
        Its number on axis G.
    task_class, most, role
        (E,) its entries: class, tasks, and the number of the role in `roles`.
    need, need_role
        Tasks that must come together, in all and by role; nothing once it runs.
    request
        (E, R) what a task asks for.
    allowed
        (E, N) nodes that an entry may use.
    room
        (N, R) what nodes will have free without evictions.
    is_tied
        (E,) entries whose tasks look at what else stands on nodes.
    second
        (N,) nodes that come after others that do as well.

    """

    gang: int
    is_started: bool
    task_class: I64
    most: I64
    role: I64
    need: int
    need_role: tuple[tuple[int, int], ...]
    request: I64
    allowed: Bool
    room: I64
    second: Bool
    groups: Groups
    wholes: tuple[Whole, ...]
    limits: tuple[Limit, ...]
    lendings: tuple[Lending, ...]
    reserves: tuple[Reserve, ...]
    barred: tuple[Barred, ...]
    is_tied: Bool


class _Candidates(NamedTuple):
    """(V,) who may go, (V,) who would be reclaimed, and what the claiming side may hold."""

    leave: Bool
    reclaimed: Bool
    claims: list[tuple[int, int, int]]


class Bidding:
    """Makes bids; what is the same for all of them is computed once.

    Attributes
    ----------
    reach
        Names of the actions that may evict: preempt, reclaim.

    """

    def __init__(self, problem: Problem, rules: RuleSet, reach: frozenset[str]) -> None:
        self.problem = problem
        self._alone = without_gangs(problem)
        self.running: Running = running_tasks(problem)
        self._rules = rules
        self._reach = reach
        self._spared = rules.spared(problem)
        self._lost = lost_steps(problem)
        self._due = next(
            (d for a in rules.active if (d := a.rule.deserved(problem)) is not None), None
        )
        self._kept = None if self._due is None else kept_amounts(problem, self._due)
        self._returns_first = np.array(returns_first(problem), np.bool_)
        gangs = problem.snapshot.gangs
        self._held = np.bincount(self.running.gang_of, minlength=len(gangs)).astype(np.int64)
        queues = problem.snapshot.queues
        self._reclaimable = np.array([q.reclaimable for q in queues], np.bool_)
        self._cover = self._coverage()
        self._above = problem.queues.subtree.T  # [q, a]: a is q or above it
        first = preferred_nodes(problem)
        self._second = np.zeros(problem.num_nodes, np.bool_) if first is None else ~first

    def covered(self, tasks: I64) -> I64:
        """(B,) how many of some running tasks each budget protects."""
        count: I64 = self._cover[:, tasks].sum(axis=1).astype(np.int64)
        return count

    def _coverage(self) -> Bool:
        """(B, V) which budget protects which task."""
        budgets = self.problem.snapshot.budgets
        found = [[covers(b, t) for t in self.running.tasks] for b in budgets]
        return np.array(found, np.bool_).reshape(len(budgets), len(self.running))

    # --- one bid ---------------------------------------------------------------------------------

    def fences(self, gang: int) -> tuple[list[Bool | None], bool]:
        """Sets of nodes to make room for a gang in, each by itself, and whether that is all."""
        found: list[Bool | None] = [None]
        are_all = True
        for rule in self._rules.hard:
            fences = rule.fences(self.problem, gang)
            if fences is not None:
                found = [m if f is None else f & m for f in found for m in fences.masks]
                are_all &= fences.are_all
        return found, are_all

    def bid(self, gang: int, state: State, within: Bool | None = None) -> Bid | None:
        """What a gang may have evicted for room on some nodes; None where nothing could help it."""
        candidates = self._candidates(gang, state)
        return self._bid(gang, state, within, candidates, self._counts(gang))

    def bid_inside(self, gang: int, state: State, within: Bool | None = None) -> Bid | None:
        """What the most important tasks of a gang may have evicted of the gang's own surplus."""
        problem, running = self.problem, self.running
        shape = int(problem.shape_of[gang])
        if "preempt" not in self._reach or not problem.shapes.is_started[shape]:
            return None
        counts = self._counts(gang)
        mine = problem.tasks[problem.task_start[gang] : problem.task_start[gang + 1]]
        by_entry = np.repeat(np.arange(len(counts)), counts)
        priority = np.array([t.priority for t in mine], np.int64)
        top = np.array([priority[by_entry == e].min() for e in range(len(counts))], np.int64)
        own = np.flatnonzero(running.gang_of == gang)
        lower = [v for v in own.tolist() if running.tasks[v].priority < top.max()]
        leaves = np.zeros(len(running), np.bool_)
        leaves[lower] = True
        leaves &= ~self._spared & ~state.evicted
        return self._bid(
            gang,
            state,
            within,
            _Candidates(leaves, np.zeros_like(leaves), []),
            np.where(top == top.max(), counts, 0),
        )

    def _counts(self, gang: int) -> I64:
        """(E,) tasks of each entry."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        counts: I64 = shapes.count[shapes.start[shape] : shapes.start[shape + 1]]
        return counts

    def _classes(self, gang: int) -> I64:
        """(E,) task class of each entry."""
        shapes, shape = self.problem.shapes, int(self.problem.shape_of[gang])
        classes: I64 = shapes.class_of[shapes.start[shape] : shapes.start[shape + 1]]
        return classes

    def _bid(
        self, gang: int, state: State, within: Bool | None, who: _Candidates, most: I64
    ) -> Bid | None:
        problem = self.problem
        shape = problem.shapes.shapes[int(problem.shape_of[gang])]
        tasks = problem.tasks[problem.task_start[gang] : problem.task_start[gang + 1]]
        candidates, reclaimed, claims = who
        if not candidates.any() or not all(t.preempts for t in tasks):
            return None
        task_class = self._classes(gang)
        request = problem.classes.request[task_class]
        roles = [e.role for e in shape.entries]
        names = sorted(set(roles))
        allowed = self._allowed(task_class, state)
        if within is not None:
            allowed &= within
        bars = self._bars(task_class, state, candidates, allowed)
        ceilings = self._ceilings(gang, state)
        reserves = tuple(self._reserves(gang, state, request))
        helps = self._in_the_way(allowed, request, bars)
        helps |= self._relieves(most @ request, (*ceilings, *claims), reserves)
        useful = self._with_kin(candidates, helps)
        if not useful.any():
            return None
        groups = self._groups(gang, np.flatnonzero(useful), reclaimed, bars)
        return Bid(
            gang=gang,
            is_started=shape.is_started,
            task_class=task_class,
            most=most,
            role=np.array([names.index(r) for r in roles], np.int64),
            need=shape.need,
            need_role=tuple((names.index(r), n) for r, n in shape.need_role if r in names),
            request=request,
            allowed=allowed,
            room=np.maximum(state.room, 0),
            second=self._second,
            groups=groups,
            wholes=self._wholes(gang, groups, state),
            limits=(
                *self._gain_limits(groups, ceilings),
                *self._gain_limits(groups, claims, is_claim=True),
                *self._floors(gang, groups, state),
                *self._budgets(groups, state),
            ),
            lendings=tuple(self._lendings(gang, groups, state, request)),
            reserves=reserves,
            barred=tuple(self._barred(task_class, allowed, groups, bars)),
            is_tied=np.array([self._is_tied(c) for c in task_class.tolist()], np.bool_),
        )

    def _allowed(self, task_class: I64, state: State) -> Bool:
        problem = self.problem
        sound: Bool = np.logical_and((state.room >= 0).all(axis=1), problem.ready)
        allowed = np.tile(sound, (len(task_class), 1))
        for e, c in enumerate(task_class.tolist()):
            mask = static_mask(self._alone, self._rules.masking, c)
            if mask is not None:
                allowed[e] &= mask
        return allowed

    def _bars(
        self, task_class: I64, state: State, candidates: Bool, allowed: Bool
    ) -> list[tuple[int, Bar]]:
        """Candidates in the way of a class; takes nodes from `allowed` where others are."""
        found = []
        for c in np.unique(task_class).tolist():
            for rule in self._rules.masking:
                for bar in rule.bars(self.problem, c):
                    may_go = candidates[bar.tasks]
                    stays = bar.tasks[~may_go & ~state.evicted[bar.tasks]]
                    shut = np.isin(bar.domain_of, self._domains(bar, stays)) & (bar.domain_of >= 0)
                    allowed[task_class == c] &= ~shut
                    if may_go.any():
                        found.append((c, Bar(bar.tasks[may_go], bar.domain_of)))
        return found

    def _domains(self, bar: Bar, tasks: I64) -> I64:
        """(B,) domain of a bar in which each running task stands."""
        domains: I64 = bar.domain_of[self.running.node_of[tasks]]
        return domains

    def _barred(
        self, task_class: I64, allowed: Bool, groups: Groups, bars: Sequence[tuple[int, Bar]]
    ) -> Iterator[Barred]:
        group_of = dict(zip(groups.tasks.tolist(), groups.of_task.tolist(), strict=True))
        for c, bar in bars:
            entries = np.flatnonzero(task_class == c)
            open_nodes = np.logical_or.reduce(allowed[entries])
            domains = self._domains(bar, bar.tasks)
            for domain in np.unique(domains[domains >= 0]).tolist():
                nodes = np.flatnonzero(open_nodes & (bar.domain_of == domain))
                here = [group_of[v] for v in bar.tasks[domains == domain].tolist() if v in group_of]
                if len(nodes):
                    yield Barred(entries, nodes, np.unique(np.array(here, np.int64)))

    def _is_tied(self, task_class: int) -> bool:
        return any(r.ties_nodes(self.problem, task_class) for r in self._rules.hard)

    def keep_apart(self, bid: Bid, model: LinearModel, supplied: I64) -> None:
        """Rows on which tasks of the bid's gang may not stand together.

        `supplied` is (E, N) variables of its entries, -1 where none may be.
        """
        shape = (len(self.problem.classes.shapes), self.problem.num_nodes)
        by_class = np.full(shape, -1, np.int64)
        for c in np.unique(bid.task_class[bid.is_tied]).tolist():
            mine = supplied[bid.task_class == c]
            by_class[c] = mine[0] if len(mine) == 1 else _summed(model, mine)
        for rule in self._rules.hard:
            rule.encode_apart(self._alone, model, by_class)

    def _in_the_way(self, allowed: Bool, request: I64, bars: Sequence[tuple[int, Bar]]) -> Bool:
        """(V,) tasks that take room on nodes that help, or that keep the gang off them."""
        running = self.running
        open_nodes = np.logical_or.reduce(allowed)
        takes = (running.request[:, request.any(axis=0)] > 0).any(axis=1)
        helps: Bool = np.logical_and(takes, open_nodes[running.node_of])
        for _, bar in bars:
            helps[bar.tasks] = True
        return helps

    def _relieves(
        self, gain: I64, rows: Sequence[tuple[int, int, int]], reserves: Sequence[Reserve]
    ) -> Bool:
        """(V,) tasks whose queues have to get smaller for a gang that takes (R,) `gain`."""
        running = self.running
        helps = np.zeros(len(running), np.bool_)
        for a, r, room in rows:
            if gain[r] > room:
                below = self.problem.queues.subtree[a][running.queue_of]
                helps |= below & (running.request[:, r] > 0)
        for reserve in reserves:
            used = reserve.used.copy()
            used[reserve.queue] += gain[reserve.resource]
            if int(claims(reserve, used)[reserve.parent_of < 0].sum()) > reserve.pool:
                helps |= running.request[:, reserve.resource] > 0
        return helps

    def _with_kin(self, candidates: Bool, helps: Bool) -> Bool:
        """(V,) candidates that help, and all others of their gangs."""
        running = self.running
        gangs = np.zeros(self.problem.num_gangs, np.bool_)
        gangs[running.gang_of[candidates & helps]] = True
        together: Bool = candidates & gangs[running.gang_of]
        return together

    # --- who may go ------------------------------------------------------------------------------

    def _candidates(self, gang: int, state: State) -> _Candidates:
        problem, running = self.problem, self.running
        queue = int(problem.queue_of[gang])
        free = ~self._spared & ~state.evicted & (running.gang_of != gang) & (running.queue_of >= 0)
        own = running.queue_of == queue
        found = np.zeros(len(running), np.bool_)
        if "preempt" in self._reach:
            found |= free & own & (problem.priority[running.gang_of] < problem.priority[gang])
        reclaimed = np.zeros(len(running), np.bool_)
        claims: dict[tuple[int, int], int] = {}
        if "reclaim" in self._reach and self._due is not None:
            asked = np.flatnonzero(problem.classes.request[self._classes(gang)].any(axis=0))
            least = self._least(gang)
            gone = running.request[found].sum(axis=0)
            for lender in np.unique(running.queue_of[free & ~own]).tolist():
                rows = self._claim(queue, lender, state, asked)
                # What is preempted in the gang's own queue makes room for its claim, too.
                if self._reclaimable[lender] and rows and self._within(rows, least - gone):
                    reclaimed |= free & (running.queue_of == lender)
                    claims |= {(a, r): most for a, r, most in rows}
        rows = [(a, r, most) for (a, r), most in sorted(claims.items())]
        return _Candidates(found | reclaimed, reclaimed, rows)

    def keepers(self, gang: int, state: State) -> Iterator[tuple[int, int, int, int]]:
        """Queues that would have to give something back to a gang, were they reclaimable.

        (queue, resource, held, due).
        """
        if "reclaim" not in self._reach or self._due is None:
            return
        least = self._least(gang)
        asked, queue = np.flatnonzero(least), int(self.problem.queue_of[gang])
        for other in np.flatnonzero(~self._reclaimable & ~self._above[queue]).tolist():
            rows = self._claim(queue, other, state, asked)
            if rows and self._within(rows, least):
                for r in {r for _, r, _ in rows}:
                    held, due = int(state.used[other, r]), int(self._due[other, r])
                    if held > due:
                        yield other, r, held, due

    def _least(self, gang: int) -> I64:
        """(R,) what the least that is worth having takes."""
        problem = self.problem
        request = problem.classes.request[self._classes(gang)]
        shape = problem.shapes.shapes[int(problem.shape_of[gang])]
        if shape.is_rigid:
            total: I64 = self._counts(gang) @ request
            return total
        smallest: I64 = request.min(axis=0) * max(shape.need, 1)
        return smallest

    def _claim(
        self, queue: int, lender: int, state: State, asked: I64
    ) -> list[tuple[int, int, int]]:
        """What the claimer and those above it may gain, up to where the two queues meet.

        (queue, resource, amount); empty where nothing that is asked for is due.
        """
        assert self._due is not None  # noqa: S101  the caller has looked
        apart = self._above[queue] & ~self._above[lender]
        return [
            (a, r, int(self._due[a, r]) - self._used(a, r, state))
            for a in np.flatnonzero(apart).tolist()
            for r in asked.tolist()
            if self._due[a, r] > 0
        ]

    def _used(self, queue: int, resource: int, state: State) -> int:
        below = self.problem.queues.subtree[queue]
        return int(state.used[below, resource].sum())

    @staticmethod
    def _within(rows: Sequence[tuple[int, int, int]], least: I64) -> bool:
        return all(least[r] <= most for _, r, most in rows)

    # --- groups ----------------------------------------------------------------------------------

    def _groups(
        self, bidder: int, tasks: I64, reclaimed: Bool, bars: Sequence[tuple[int, Bar]]
    ) -> Groups:
        running, problem = self.running, self.problem
        gang_of = running.gang_of[tasks]
        single = (self._held[gang_of] == 1) & (gang_of != bidder)
        members = np.unique(gang_of[~single])
        gang = np.where(single, -1, np.searchsorted(members, gang_of))
        role, part = np.zeros(len(tasks), np.int64), np.full(len(tasks), -1, np.int64)
        for i in np.flatnonzero(~single).tolist():
            task = running.tasks[int(tasks[i])]
            victim = problem.snapshot.gangs[int(gang_of[i])]
            minimums = [r for r, _ in victim.role_minimums]
            role[i] = minimums.index(task.role) + 1 if task.role in minimums else 0
            if victim.sub_groups:
                found = sub_group_of(victim.sub_groups, task.labels)
                part[i] = -1 if found is None else _named_parts(victim).index(found)
        priority = problem.priority[gang_of]
        for i in np.flatnonzero(gang_of == bidder).tolist():
            priority[i] = running.tasks[int(tasks[i])].priority
        columns = [
            running.node_of[tasks],
            gang,
            running.queue_of[tasks],
            role,
            part,
            priority,
            self._lost[tasks],
            *running.request[tasks].T,
            *self._cover[:, tasks],
            *(np.isin(tasks, bar.tasks) for _, bar in bars),
        ]
        of_task, first = row_groups(columns)
        at = tasks[first]
        importance = problem.queues.priority[running.queue_of[at]]
        least = problem.queues.priority.min(initial=0)
        return Groups(
            of_task=of_task,
            tasks=tasks,
            node=running.node_of[at],
            queue=running.queue_of[at],
            priority=priority[first],
            lost=self._lost[at],
            count=np.bincount(of_task, minlength=len(first)).astype(np.int64),
            gang=gang[first],
            role=role[first],
            part=part[first],
            reclaimed=reclaimed[at],
            returned_last=reclaimed[at] & ~self._returns_first[running.queue_of[at]],
            queue_priority=np.where(reclaimed[at], importance - least, 0),
            request=running.request[at],
        )

    def _wholes(self, bidder: int, groups: Groups, state: State) -> tuple[Whole, ...]:
        """What gangs of victims still hold once those that were chosen before have left."""
        problem, running = self.problem, self.running
        found = []
        for j in range(int(groups.gang.max(initial=-1)) + 1):
            mine = groups.gang == j
            number = int(running.gang_of[groups.tasks[mine[groups.of_task]][0]])
            gang = problem.snapshot.gangs[number]
            gone = np.flatnonzero(state.evicted & (running.gang_of == number)).tolist()
            held = int(self._held[number]) - len(gone)
            ready = int(problem.num_ready[number]) - len(gone)
            surplus = min(max(ready - gang.min_member, 0), held)
            by_role = []
            for i, (role, least) in enumerate(gang.role_minimums, start=1):
                runs = [t for t in gang.tasks if t.status.counts_as_ready and t.role == role]
                less = sum(running.tasks[v].role == role for v in gone)
                here = sum(t.status.holds_resources for t in runs) - less
                by_role.append((i, here, min(max(len(runs) - less - least, 0), here)))
            leaves = number != bidder and int(groups.count[mine].sum()) == held
            whole = Whole(number, held, surplus, tuple(by_role), leaves)
            found.append(self._with_parts(whole, groups, mine, gone) if gang.sub_groups else whole)
        return tuple(found)

    def _with_parts(self, whole: Whole, groups: Groups, mine: Bool, gone: list[int]) -> Whole:
        gang = self.problem.snapshot.gangs[whole.gang]
        left = {self.running.tasks[v].key for v in gone}
        ready: Counter[tuple[int, tuple[str, ...]] | None] = Counter()
        held = ready.copy()
        for task in gang.tasks:
            if task.status.counts_as_ready and task.key not in left:
                name = sub_group_of(gang.sub_groups, task.labels)
                ready[name] += 1
                held[name] += task.status.is_standing
        parts, spare = [], {r: -rule.min_groups for r, rule in enumerate(gang.sub_groups)}
        for p, name in enumerate(_named_parts(gang)):
            policy, there = name[0], held[name]
            size = gang.sub_groups[policy].size
            is_whole = ready[name] >= size
            spare[policy] += is_whole
            surplus = min(ready[name] - size, there) if is_whole else there
            leaves = int(groups.count[mine & (groups.part == p)].sum()) == there
            parts.append(Part(policy, there, surplus, leaves))
        more = tuple((r, max(n, 0)) for r, n in spare.items() if gang.sub_groups[r].min_groups)
        return replace(whole, parts=tuple(parts), spare_parts=more)

    # --- limits ----------------------------------------------------------------------------------

    def _ceilings(self, gang: int, state: State) -> list[tuple[int, int, int]]:
        """(queue, resource, room) below the ceilings of a gang's queue and those above it."""
        problem = self.problem
        queue = int(problem.queue_of[gang])
        ceiling = problem.queues.capability
        found = [
            (a, r, int(ceiling[a, r]) - self._used(a, r, state))
            for a in np.flatnonzero(self._above[queue]).tolist()
            for r in np.flatnonzero(ceiling[a] < UNLIMITED).tolist()
        ]
        shares = self._rules.find("proportion")
        if shares is not None and shares.binds and self._due is not None:
            due = self._due[queue]
            found += [
                (queue, r, int(due[r]) - self._used(queue, r, state))
                for r in np.flatnonzero(due > 0).tolist()
            ]
        return [(a, r, most) for a, r, most in found if self._asks(gang, r)]

    def _asks(self, gang: int, resource: int) -> bool:
        return bool(self.problem.classes.request[self._classes(gang), resource].any())

    def _gain_limits(
        self, groups: Groups, rows: Sequence[tuple[int, int, int]], *, is_claim: bool = False
    ) -> list[Limit]:
        subtree = self.problem.queues.subtree
        found = []
        for a, r, most in rows:
            below = np.flatnonzero(subtree[a][groups.queue])
            found.append(Limit(below, -groups.request[below, r], most, r, is_claim))
        return found

    def _floors(self, gang: int, groups: Groups, state: State) -> list[Limit]:
        """A lender keeps what is guaranteed to it and to those above it."""
        queues = self.problem.queues
        mine = self._above[int(self.problem.queue_of[gang])]
        lenders = np.unique(groups.queue[groups.reclaimed])
        found = []
        apart = self._above[lenders].any(axis=0) & ~mine
        for a in np.flatnonzero(apart).tolist():
            below = np.flatnonzero(queues.subtree[a][groups.queue])
            for r in np.flatnonzero(queues.guarantee[a]).tolist():
                most = self._used(a, r, state) - int(queues.guarantee[a, r])
                found.append(Limit(below, groups.request[below, r], max(most, 0)))
        return found

    def _reserves(self, gang: int, state: State, request: I64) -> Iterator[Reserve]:
        problem, queues = self.problem, self.problem.queues
        asked = queues.guarantee.any(axis=0) & request.any(axis=0)
        for r in np.flatnonzero(asked).tolist():
            pool = int(problem.total[r] - problem.foreign[problem.ready, r].sum())
            floor, used = queues.guarantee[:, r], state.used[:, r]
            yield Reserve(r, floor, used, queues.parent_of, pool, int(problem.queue_of[gang]))

    def _budgets(self, groups: Groups, state: State) -> list[Limit]:
        found = []
        for b, budget in enumerate(self.problem.snapshot.budgets):
            covered = self._cover[b, groups.tasks]
            mine = np.unique(groups.of_task[covered])
            if len(mine):
                most = max(budget.allowed - int(state.spent[b]), 0)
                found.append(Limit(mine, np.ones(len(mine), np.int64), most))
        return found

    def _lendings(self, gang: int, groups: Groups, state: State, request: I64) -> list[Lending]:
        if self._due is None or self._kept is None:
            return []
        mine = self._above[int(self.problem.queue_of[gang])]
        asked = np.flatnonzero(request.any(axis=0)).tolist()
        found = []
        for lender in np.unique(groups.queue[groups.reclaimed]).tolist():
            theirs = np.flatnonzero(groups.reclaimed & (groups.queue == lender))
            for a in np.flatnonzero(self._above[lender] & ~mine).tolist():
                named = [r for r in asked if self._due[a, r] > 0]
                below = np.flatnonzero(self.problem.queues.subtree[a][groups.queue])
                kept = theirs[groups.request[theirs][:, named].any(axis=1)]
                options = tuple(
                    (r, size, below, self._used(a, r, state) - int(self._kept[a, r]) - 1 + size)
                    for r in named
                    for size in np.unique(groups.request[kept, r]).tolist()
                    if size > 0
                )
                if options:
                    due = tuple((r, int(self._kept[a, r])) for r in named)
                    found.append(Lending(a, due, kept, options))
        return found


def claims(reserve: Reserve, used: I64) -> I64:
    """(Q,) the larger of each queue's guarantee and of what it and those below it need."""
    need = used.copy()
    claim = np.zeros_like(used)
    depth = np.zeros(len(used), np.int64)
    at = reserve.parent_of.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, reserve.parent_of[at], -1)
    for q in np.argsort(-depth, kind="stable").tolist():
        claim[q] = max(reserve.floor[q], need[q])
        if reserve.parent_of[q] >= 0:
            need[reserve.parent_of[q]] += claim[q]
    return claim


def _summed(model: LinearModel, variables: I64) -> I64:
    """(N,) variables that are the sums of those (m, N) that there are, -1 where there is none."""
    found = variables >= 0
    open_nodes = np.flatnonzero(found.any(axis=0))
    most = np.where(found, model.bounds[1][variables], 0).sum(axis=0)[open_nodes]
    sums = np.full(variables.shape[1], -1, np.int64)
    sums[open_nodes] = model.add_variables(0, most)
    at = np.cumsum(found.any(axis=0)) - 1
    _, node = np.nonzero(found)
    model.add_rows(
        np.concatenate([at[node], np.arange(len(open_nodes))]),
        np.concatenate([variables[found], sums[open_nodes]]),
        np.concatenate([np.ones(len(node), np.int64), -np.ones(len(open_nodes), np.int64)]),
        lower=np.zeros(len(open_nodes), np.int64),
        upper=0,
    )
    return sums


def _named_parts(gang: Gang) -> list[tuple[int, tuple[str, ...]]]:
    """The smaller groups of a gang's tasks, in order."""
    found = {sub_group_of(gang.sub_groups, t.labels) for t in gang.tasks}
    return sorted(name for name in found if name is not None)


def lost_steps(problem: Problem) -> I64:
    """(V,) what is lost with each running task, in steps that each double it.

    That is the part of the cluster that it holds (its dominant share, in thousandths) times the
    seconds since it began or last saved its work.
    """
    running = running_tasks(problem)
    now_ms = problem.snapshot.taken_ms
    since = np.array([max(t.started_ms, t.saved_ms) or now_ms for t in running.tasks], np.int64)
    seconds = np.maximum(now_ms - since, 0) // _MS
    total = np.maximum(problem.total, 1)
    share = (running.request * 1000 // total).max(axis=1, initial=0)
    lost = seconds * np.maximum(share, 1)
    steps: I64 = np.ceil(np.log2(lost + 1.0)).astype(np.int64)
    return steps
