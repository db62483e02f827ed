"""Gang by gang, from the most important: who makes room for those that stay out.

What is decided for one gang stands when the next one is looked at. Gangs of lower tiers that were
placed in this session give way, for nothing of them runs yet; they are decided on again afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from optsched.cluster.decisions import Allocate, Evict, LevelResult, LevelStatus, Nominate, Sense
from optsched.cluster.eviction import leaving
from optsched.cluster.snapshot import Entitlement
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.eviction.victims import ended_gangs
from optsched.plugins.ordering.fifo import NOBODY, FifoLines
from optsched.plugins.outcome import Outcome
from optsched.problem.running import running_tasks
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.preemption.sequential.compile import Bidding
from optsched.solver.preemption.sequential.eviction_problem import State
from optsched.solver.preemption.sequential.explanation import refusal, withheld
from optsched.solver.preemption.sequential.heuristic import Packed, narrowed, pack
from optsched.solver.preemption.sequential.model import ENDED, START, TASKS, VICTIMS, encode_bid
from optsched.solver.preemption.sequential.trial import has_foreign, try_out
from optsched.solver.solution_check import solve_soundly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.seats import Seats
    from optsched.problem.tiers import Tiers
    from optsched.solver.cpsat.process import Solver
    from optsched.solver.preemption.sequential.eviction_problem import Bid


@dataclass(frozen=True, slots=True)
class Means:
    """What the search for victims may use.

    Attributes
    ----------
    solver
        None for greedy answers alone.
    left_ms
        Wall time that is left, None where no clock may be read.
    limits
        What one solve may spend.
    passed_over
        Gangs that no room is made for.
    on_trial
        Gangs that can not sit where models would have them.

    """

    solver: Solver | None
    left_ms: Callable[[], int | None]
    limits: Limits
    passed_over: frozenset[int] = frozenset()
    on_trial: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Clearing:
    """Who leaves, and for whom.

    Attributes
    ----------
    evictions
        In the order of the gangs that they make room for.
    seats
        Where the tasks of those gangs go, by gang number, in the order of the gangs.
    results
        How many leave, against the least that is possible.
    hopeless
        Gangs that no eviction helps, proved, and why where one number says it.
    entitlements
        What queues that reclaim may hold once all is placed.

    """

    evictions: tuple[Evict, ...] = ()
    seats: Mapping[int, Seats] = field(default_factory=dict)
    results: tuple[LevelResult, ...] = ()
    hopeless: Mapping[int, Reason | None] = field(default_factory=dict)
    entitlements: tuple[Entitlement, ...] = ()

    def carried_out(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the victims terminating, and with what reclaiming queues may hold."""
        after = leaving(snapshot, {eviction.task for eviction in self.evictions})
        return replace(after, entitlements=self.entitlements) if self.entitlements else after

    def unseated(self, problem: Problem, decisions: Decisions) -> frozenset[int]:
        """Gangs that room was made for and that some decisions do not put there in full."""
        at = np.maximum(decisions.node_of, decisions.nominated)
        found = set[int]()
        for gang, seats in self.seats.items():
            first, last = problem.task_start[gang : gang + 2].tolist()
            nodes = [node for _, node, number in seats for _ in range(number)]
            wanted = np.bincount(nodes, minlength=problem.num_nodes)
            mine = at[first:last]
            if (np.bincount(mine[mine >= 0], minlength=problem.num_nodes) < wanted).any():
                found.add(gang)
        return frozenset(found)


def make_room(
    problem: Problem,
    rules: RuleSet,
    tiers: Tiers,
    decisions: Decisions,
    reach: frozenset[str],
    means: Means,
) -> Clearing:
    """Find victims for the gangs that some decisions leave out.

    Parameters
    ----------
    problem, rules, tiers
        What is decided, under which rules, and who comes first.
    decisions
        What is placed without evictions.
    reach
        Which of preempt and reclaim may be used.
    means
        Solver and time.

    """
    outcome = Outcome(problem, decisions)
    waiting = (outcome.num_pending > 0) & (problem.shape_of >= 0)
    waiting[problem.gang_of[decisions.nominated >= 0]] = False
    waiting[list(means.passed_over)] = False
    for excluded in (rule.excludes(problem) for rule in rules.hard):
        if excluded is not None:
            waiting &= ~excluded
    gangs = np.flatnonzero(waiting)
    order = gangs[np.lexsort((gangs, problem.created_ms[gangs], tiers.of[gangs]))]
    nobody_runs = not len(running_tasks(problem)) and not has_foreign(rules)
    if not len(order) or not reach or nobody_runs:
        return Clearing()
    stage = _Stage(Bidding(problem, rules, reach), tiers, decisions, means)
    return stage.run(order.tolist())


MakeBid: TypeAlias = "Callable[[int, State, Bool | None], Bid | None]"


class _Least(NamedTuple):
    """The fewest victims possible, and the fewest gangs that leave whole among as few."""

    victims: int
    ended: int


class _Answer(NamedTuple):
    """A bid, who goes and who comes, and what is the least possible; None where not proved."""

    bid: Bid
    found: Packed | None
    least: _Least | None


class _Stage:
    def __init__(self, bidding: Bidding, tiers: Tiers, decisions: Decisions, means: Means) -> None:
        self._problem = problem = bidding.problem
        self._tiers = tiers
        self._decisions = decisions
        self._bidding = bidding
        self._means = means
        self._evictions: list[Evict] = []
        self._seats: dict[int, Seats] = {}
        self._hopeless: dict[int, Reason | None] = {}
        self._least = _Least(0, 0)
        self._all_known = not means.passed_over
        self._state = State(
            room=problem.allocatable - problem.used + problem.releasing,
            used=problem.queues.allocated.copy(),
            evicted=np.zeros(len(bidding.running), np.bool_),
            spent=np.zeros(len(problem.snapshot.budgets), np.int64),
        )
        self._tier = -1
        self._foreign = has_foreign(bidding.rules)
        placed = (decisions.node_of >= 0) | (decisions.nominated >= 0)
        self._served = set(problem.gang_of[placed].tolist())

    def run(self, gangs: list[int]) -> Clearing:
        """Make room for minimums, tier by tier, then for what gangs have beyond them."""
        for serve in (self._serve_minimums, self._serve_growth):
            if not serve(gangs):
                self._all_known = False
                break
        return Clearing(
            tuple(self._evictions),
            self._seats,
            self._results(),
            self._hopeless,
            self._entitlements(),
        )

    def _serve_minimums(self, gangs: list[int]) -> bool:
        """Evict for gangs that lack their minimum; False when time was up before the last one."""
        refused: dict[tuple[int, ...], int] = {}
        lines = FifoLines(self._problem, self._served.__contains__)
        for gang in gangs:
            if lines.ahead(gang) != NOBODY or self._has_lost(gang):
                continue
            self._settle_up_to(int(self._tiers.of[gang]))
            if gang in self._served or not self._bidding.has_minimum(gang):
                continue
            if self._left_ms() <= 0:
                return False
            alike = self._likeness(gang)
            if alike not in refused:
                if not self._clear(gang):
                    refused[alike] = gang
            elif refused[alike] in self._hopeless:
                # What was too little for its like is no more now.
                self._hopeless[gang] = self._hopeless[refused[alike]]
        return True

    def _serve_growth(self, gangs: list[int]) -> bool:
        """Evict for gangs that have their minimum; False when time was up before the last one."""
        refused: dict[tuple[int, ...], int] = {}
        lines = FifoLines(self._problem, self._served.__contains__)
        if gangs:
            self._settle_up_to(int(self._tiers.of[gangs].max()))
        for gang in gangs:
            starts = self._bidding.has_minimum(gang)
            if (starts and gang not in self._served) or lines.ahead(gang) != NOBODY:
                continue
            rest = self._rest(gang)
            if self._has_lost(gang) or not rest.any():
                continue
            if self._left_ms() <= 0:
                return False
            alike = (*self._likeness(gang), *rest.tolist())
            if alike not in refused:
                if self._grow(gang, rest):
                    continue
                refused[alike] = gang
            elif refused[alike] in self._hopeless and not starts:
                self._hopeless[gang] = self._hopeless[refused[alike]]
            if not starts:
                self._clear_inside(gang)
        return True

    def _likeness(self, gang: int) -> tuple[int, ...]:
        """What two gangs have in common for which the same is found, one after the other."""
        problem = self._problem
        return (
            int(problem.shape_of[gang]),
            int(problem.queue_of[gang]),
            int(self._tiers.of[gang]),
            # A tier by weight has gangs of several priorities, which decide who may be evicted.
            int(problem.priority[gang]),
            # Who looks at others may have had nobody near until now.
            gang if self._looks(gang) else -1,
        )

    def _rest(self, gang: int) -> I64:
        """(E,) tasks of each entry that have no node and no seat yet."""
        rest = self._bidding.facts.counts_of(gang).copy()
        for entry, _, number in self._seats_of(gang):
            rest[entry] -= number
        return rest

    def _seats_of(self, gang: int) -> Seats:
        """The seats of a gang: those that it got here, or where the decisions put it."""
        if gang in self._seats:
            return self._seats[gang]
        first, last = self._problem.task_start[gang : gang + 2].tolist()
        counts = self._bidding.facts.counts_of(gang)
        entry = np.repeat(np.arange(len(counts)), counts)
        node = np.maximum(
            self._decisions.node_of[first:last], self._decisions.nominated[first:last]
        )
        placed, number = np.unique(
            np.stack([entry, node])[:, node >= 0], axis=1, return_counts=True
        )
        return tuple(zip(*placed.tolist(), number.tolist(), strict=True))

    def _entitlements(self) -> tuple[Entitlement, ...]:
        queues, resources = self._problem.queues.names, self._problem.resources
        return tuple(
            Entitlement(queues[q], resources[r], most)
            for (q, r), most in sorted(self._state.entitled.items())
        )

    def _has_lost(self, gang: int) -> bool:
        """Whether a gang loses pods in this session: it gets no room then, as in Volcano."""
        return bool(self._state.evicted[self._bidding.running.gang_of == gang].any())

    def _looks(self, gang: int) -> bool:
        """Whether a gang looks at what else stands on nodes."""
        classes = np.unique(self._bidding.facts.classes_of(gang)).tolist()
        return any(map(self._bidding.bars.is_tied, classes))

    def _left_ms(self) -> float:
        left = self._means.left_ms()
        return float("inf") if left is None else left

    def _settle_up_to(self, tier: int) -> None:
        """Take into account what gangs of a tier and those above it got in this session."""
        problem, node_of = self._problem, self._decisions.node_of
        for answer in (node_of, self._decisions.nominated):
            tasks = np.flatnonzero(answer >= 0)
            of = self._tiers.of[problem.gang_of[tasks]]
            fresh = tasks[(of > self._tier) & (of <= tier)]
            request = problem.classes.request[problem.task_class[fresh]]
            came = (problem.task_class[fresh], answer[fresh], np.ones_like(fresh))
            self._state.came.append(came)
            np.subtract.at(self._state.room, answer[fresh], request)
            np.add.at(self._state.used, problem.queue_of[problem.gang_of[fresh]], request)
        self._tier = max(self._tier, tier)

    # --- one gang --------------------------------------------------------------------------------

    def _clear(self, gang: int) -> bool:
        """Evict for the minimum of a gang; False when it stays out."""
        if self._make_room(gang, self._bidding.bid, is_last=True):
            return True
        if gang in self._means.on_trial:
            return False
        # What is guaranteed does not depend on how large the gangs are that hold it.
        if not self._make_room(gang, self._bidding.bid_within_guarantee, is_last=False):
            return False
        self._hopeless.pop(gang, None)
        return True

    def _grow(self, gang: int, rest: I64) -> bool:
        """Evict for (E,) more tasks of a gang that has its minimum; False when it gets none."""

        def make(gang: int, state: State, within: Bool | None) -> Bid | None:
            return self._bidding.bid_growth(gang, state, rest, within)

        return self._make_room(gang, make, is_last=not self._bidding.has_minimum(gang))

    def _make_room(self, gang: int, make: MakeBid, *, is_last: bool) -> bool:
        """Evict for a bid of a gang; False where nothing comes of it.

        `is_last`: whether the gang gets nothing else, so that it may learn why.
        """
        if gang in self._means.on_trial:
            return is_last and self._try_out(gang)
        tried, are_all = self._answers(gang, make)
        best = min((t for t in tried if t.found is not None), key=_cost, default=None)
        if best is None or best.found is None:
            if not is_last:
                return False
            if are_all and tried and all(t.least is not None for t in tried):
                why = refusal(self._problem, tried[0].bid) if len(tried) == 1 else None
                self._hopeless[gang] = why
            elif are_all and not tried:
                self._withheld(gang)
            elif tried or not are_all:
                self._all_known = False
            return self._foreign and not tried and self._try_out(gang)
        if self._foreign and not best.found.evicted.any():
            return is_last and self._try_out(gang)
        return self._accept(tried, best, are_all=are_all)

    def _try_out(self, gang: int) -> bool:
        """Evict for a gang that rules keep out of which no model knows."""
        before = self._decided()
        is_over = lambda: self._left_ms() <= 0  # noqa: E731
        found = try_out(self._bidding, gang, self._state, before, is_over)
        self._all_known = False
        if found is None:
            return False
        entry, node, counts = (np.array(c, np.int64) for c in zip(*found.seats, strict=True))
        classes = self._bidding.facts.classes_of(gang)[entry]
        self._evict(gang, found.victims)
        self._come(gang, (classes, node, counts), self._problem.classes.request[classes])
        self._seats[gang] = found.seats
        return True

    def _decided(self) -> list[Action]:
        """What has been decided so far, as a plan would say it."""
        problem, nodes = self._problem, self._problem.snapshot.nodes
        actions: list[Action] = list(self._evictions)
        for gang, seats in self._seats.items():
            actions += nominate_seats(problem, gang, seats)
        for answer, kind in (
            (self._decisions.node_of, Allocate),
            (self._decisions.nominated, Nominate),
        ):
            for t in np.flatnonzero(answer >= 0).tolist():
                gang = int(problem.gang_of[t])
                if self._tiers.of[gang] <= self._tier and gang not in self._seats:
                    task = problem.tasks[t]
                    actions.append(kind(task.key, nodes[answer[t]].name, task.gang))
        return actions

    def _clear_inside(self, gang: int) -> None:
        """Let the most important tasks of a gang that runs take the place of lesser ones."""
        tried, are_all = self._answers(gang, self._bidding.bid_inside)
        best = min((t for t in tried if t.found is not None), key=_cost, default=None)
        if best is not None and self._accept(tried, best, are_all=are_all):
            self._hopeless.pop(gang, None)

    def _accept(self, tried: list[_Answer], best: _Answer, *, are_all: bool) -> bool:
        if best.found is None or not best.found.evicted.any():
            return False
        least = _least(tried, best) if are_all else None
        self._all_known &= least is not None
        if least is not None:
            mine = self._least
            self._least = _Least(mine.victims + least.victims, mine.ended + least.ended)
        self._take(best.bid, best.found)
        return True

    def _withheld(self, gang: int) -> None:
        """Nobody may leave for a gang; say so where that is because a queue keeps what it lent."""
        why = withheld(self._bidding, gang, self._state)
        if why is not None:
            self._hopeless[gang] = why

    def _answers(self, gang: int, make: MakeBid) -> tuple[list[_Answer], bool]:
        """What can be done in each place that a gang may lie in, and whether all were tried."""
        fences, are_all = self._bidding.fences(gang)
        tried: list[_Answer] = []
        for within in fences:
            if tried and self._left_ms() <= 0:
                return tried, False
            bid = make(gang, self._state, within)
            if bid is not None:
                known = self._solved(bid) if self._means.solver else (pack(bid), None)
                tried.append(_Answer(bid, *known))
        return tried, are_all

    def _solved(self, bid: Bid) -> tuple[Packed | None, _Least | None]:
        """The best answer known, and the least possible, None where not proved."""
        if bid.beside is None:
            return self._solved_from(bid, pack(bid))
        # What is packed does not look at who stands where: some nodes are looked at first.
        few = narrowed(bid)
        packed = None if few is None else self._solved_from(few, None)[0]
        if packed is not None and self._left_ms() <= 0:
            return packed, None
        found, least = self._solved_from(bid, packed)
        known = [each for each in (found, packed) if each is not None]
        return min(known, key=lambda each: _cost_of(bid, each), default=None), least

    def _solved_from(self, bid: Bid, packed: Packed | None) -> tuple[Packed | None, _Least | None]:
        """The same with an answer to start from."""
        assert self._means.solver is not None  # noqa: S101  the caller asks only then
        encoded = encode_bid(bid, packed, self._bidding.bars)
        left = self._means.left_ms()
        limits = self._means.limits
        if left is not None:
            limits = Limits(min(left, limits.budget_ms or left), num_workers=limits.num_workers)
        solved = solve_soundly(self._means.solver, encoded.model, limits)
        updates = {encoded.levels[u.level]: u for u in solved.updates}
        if any(updates[name].bound == 0 for name in (START, TASKS) if name in updates):
            return None, _Least(0, 0)
        last = next((u for u in reversed(solved.updates) if u.solution is not None), None)
        if last is None or last.solution is None:
            return packed, None
        placed = np.zeros(bid.allowed.shape, np.int64)
        placed[encoded.entry, encoded.node] = last.solution[encoded.place]
        evicted = last.solution[encoded.evict]
        found = Packed(evicted, placed, last.solution[encoded.whole] > 0)
        victims = updates.get(VICTIMS)
        if victims is None or not placed.any():
            return packed, None
        # Without gangs of several pods each victim is a gang.
        ended = updates.get(ENDED) if bid.wholes else victims
        if victims.bound is None:
            return found, None
        return found, _Least(victims.bound, 0 if ended is None else ended.bound or 0)

    def _take(self, bid: Bid, found: Packed) -> None:
        gang = bid.gang
        chosen = _choose(self._bidding, bid, found.evicted)
        self._evict(gang, chosen)
        entry, node = np.nonzero(found.placed)
        counts = found.placed[entry, node]
        self._come(gang, (bid.task_class[entry], node, counts), bid.request[entry])
        seats = zip(entry.tolist(), node.tolist(), counts.tolist(), strict=True)
        self._seats[gang] = _merged(self._seats_of(gang), seats)

    def _evict(self, gang: int, chosen: I64) -> None:
        """Some running tasks leave for a gang."""
        problem, running, state = self._problem, self._bidding.running, self._state
        state.evicted[chosen] = True
        state.bidders.add(gang)
        state.spent += self._bidding.facts.covered(chosen)
        np.add.at(state.room, running.node_of[chosen], running.request[chosen])
        np.subtract.at(state.used, running.queue_of[chosen], running.request[chosen])
        own = running.queue_of[chosen] == problem.queue_of[gang]
        state.entitled |= self._bidding.entitled(gang, running.queue_of[chosen[~own]])
        for v, is_own in zip(chosen.tolist(), own.tolist(), strict=True):
            task, action = running.tasks[v], PREEMPT if is_own else RECLAIM
            key = problem.snapshot.gangs[gang].key
            self._evictions.append(Evict(task.key, task.node, action, key))

    def _come(self, gang: int, came: tuple[I64, I64, I64], request: I64) -> None:
        """Tasks (m,) of a class come to a node, so many each, that ask for (m, R)."""
        state = self._state
        state.came.append(came)
        taken = came[2][:, None] * request
        np.subtract.at(state.room, came[1], taken)
        state.used[self._problem.queue_of[gang]] += taken.sum(axis=0)
        self._served.add(gang)

    def _results(self) -> tuple[LevelResult, ...]:
        """How many leave, against the fewest that could; no level where nobody does."""
        results = count_victims(self._problem.snapshot, self._evictions)
        known = self._least if self._all_known else _Least(0, 0)
        least = {VICTIMS: known.victims, ENDED: known.ended}
        return tuple(_bounded(result, least[result.name]) for result in results)


def _bounded(result: LevelResult, least: int) -> LevelResult:
    status = LevelStatus.OPTIMAL if result.value == least else LevelStatus.FEASIBLE
    return replace(result, bound=least, status=status)


def count_victims(snapshot: Snapshot, evictions: Sequence[Evict]) -> tuple[LevelResult, ...]:
    """The levels of some evictions, whose bounds are trivial; none where no pod is evicted.

    The second one, gangs that leave whole, is missing where no gang does.
    """
    if not evictions:
        return ()
    feasible = LevelStatus.FEASIBLE
    victims = LevelResult(VICTIMS, "tasks", Sense.MIN, len(evictions), 0, feasible)
    gone = {eviction.task for eviction in evictions if not eviction.to}
    number = len(ended_gangs(snapshot, gone))
    ended = LevelResult(ENDED, "gangs", Sense.MIN, number, 0, feasible)
    return (victims, ended) if number else (victims,)


def nominate_seats(problem: Problem, gang: int, seats: Seats) -> Iterator[Nominate]:
    """Yield a nomination for each task of a gang that has a seat, in order of the seats."""
    first = int(problem.shapes.start[problem.shape_of[gang]])
    taken: dict[int, int] = {}
    for entry, node, number in seats:
        start = int(problem.task_start[gang] + problem.shapes.offset[first + entry])
        start += taken.get(entry, 0)
        taken[entry] = taken.get(entry, 0) + number
        for task in problem.tasks[start : start + number]:
            yield Nominate(task.key, problem.snapshot.nodes[node].name, task.gang)


def _merged(*parts: Iterable[tuple[int, int, int]]) -> Seats:
    """Seats together, by entry and node."""
    found: dict[tuple[int, int], int] = {}
    for entry, node, number in chain.from_iterable(parts):
        found[entry, node] = found.get((entry, node), 0) + number
    return tuple((entry, node, number) for (entry, node), number in sorted(found.items()))


def _cost(answer: _Answer) -> tuple[int, ...]:
    """Smaller is better: more tasks, then fewer and cheaper victims."""
    return () if answer.found is None else _cost_of(answer.bid, answer.found)


def _cost_of(bid: Bid, found: Packed) -> tuple[int, ...]:
    groups = bid.groups
    costs = (cost * found.evicted for cost in (groups.priority, groups.lost, groups.size))
    numbers = (-int(found.placed.sum()), int(found.evicted.sum()), found.num_ended(bid))
    return (*numbers, *(int(cost.sum()) for cost in costs))


def _least(tried: Sequence[_Answer], best: _Answer) -> _Least | None:
    """The least for as many tasks in any of some places; None where one is not known."""
    if len(tried) == 1:
        return best.least
    if any(t.least is None for t in tried):
        return None
    equals = [t for t in tried if t.found is not None and _cost(t)[0] == _cost(best)[0]]
    return min(t.least for t in equals if t.least is not None)


def _choose(bidding: Bidding, bid: Bid, evicted: I64) -> I64:
    """Which of alike victims leave: those that were created last."""
    running, groups = bidding.running, bid.groups
    born = np.array([running.tasks[int(v)].created_ms for v in groups.tasks], np.int64)
    order = np.lexsort((groups.tasks, -born, groups.of_task))
    rank = np.arange(len(order)) - np.searchsorted(
        groups.of_task[order], groups.of_task[order], side="left"
    )
    leaves: Bool = rank < evicted[groups.of_task[order]]
    return np.sort(groups.tasks[order[leaves]])
