"""Lend idle capacity to gangs beyond their queues' deserved shares, as a session's last stage.

Mathematics: models/formulation/lending.md. The first stage of a session caps each queue at its
deserved share. The second stage keeps the first stage's decisions and uses the remaining idle
capacity to start gangs that may borrow. Reclaim can take lent capacity back, because a queue with
loans (borrowed capacity) is above its deserved share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Evict, LevelResult, LevelStatus, Sense, are_optimal
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.accounting import Outcome
from optsched.plugins.eviction.entitled import RECLAIM
from optsched.plugins.extension_points import is_node_level
from optsched.plugins.objectives.gang_levels import Placed, Started, dominant_weights
from optsched.plugins.ordering.fifo import NO_GANG, FifoLines
from optsched.plugins.shares.proportion import LEND_IDLE, Proportion, find_firmness, own_shares
from optsched.problem.arrays import UNPLACED, ranges
from optsched.solver.greedy.pipeline import ALLOCATE, GreedyOptions, run_greedy
from optsched.solver.portfolio import NO_SOLVER, evaluate_greedy, fix_decisions, improve
from optsched.units import PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.portfolio import SolveRequest

_OFF = f"proportion lends nothing: lending requires {LEND_IDLE}, the action reclaim and a solver"

_MOST_COMPARED = 12
"""Maximum number of gangs in a queue for which all sets of borrowing gangs are compared."""

_MOST_COUNTED = 256
"""Maximum number of task classes for which the tasks that fit into idle capacity are counted.

If a problem has more task classes, all tasks are assumed to fit.
"""

_MOST_JUDGED = 64
"""Maximum number of sets of gangs that are evaluated on all levels over gangs."""

LENT = "lent"
"""First word of the names of the objective levels that count loans."""

LENT_LAST = "loans were decided last and are bounded by idle capacity"
"""Limitation of a certificate: a plan with equal values on the preceding levels might lend more."""

LENT_FIRST = "gangs borrow idle nodes instead of evicting pods of their queue"
"""Limitation of a certificate: gangs borrow although a plan with victims could admit them."""


@dataclass(frozen=True, eq=False)
class Lending:
    """The loans of a plan: the placements of gangs that borrow.

    Attributes
    ----------
    decisions
        The first stage's decisions together with the placements of gangs that borrow.
    results
        The results of the levels over borrowing tasks, one level per tier, in the unit of the
        admission levels.

    """

    decisions: Decisions
    results: tuple[LevelResult, ...] = ()

    def gangs(self, problem: Problem, first: Decisions) -> list[str]:
        """Return the keys of the gangs that borrow, given the first stage's decisions `first`."""
        fresh = (self.decisions.node_of >= 0) & (first.node_of < 0)
        return [problem.snapshot.gangs[g].key for g in np.unique(problem.gang_of[fresh]).tolist()]


@dataclass(frozen=True, eq=False)
class Decided:
    """The decisions of a session's first stage, before lending.

    Attributes
    ----------
    decisions, actions
        The decisions, and the same decisions as actions, whose evictions name the preemptors.
    counts_all
        Whether the policy's levels cover every task that the first stage places.
    is_proved
        Whether the values on the levels over gangs are proved optimal.

    """

    problem: Problem
    rules: RuleSet
    tiers: Tiers
    decisions: Decisions
    actions: Sequence[Action]
    counts_all: bool = False
    is_proved: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether provably no plan with equal values on the levels over gangs places a task."""
        decisions = self.decisions
        is_idle = not ((decisions.node_of >= 0) | (decisions.nominated >= 0)).any()
        return is_idle and self.is_proved and self.counts_all


def lend_idle(decided: Decided, search: SolveRequest | None) -> Lending | None:
    """On the capacity that the first stage leaves idle, start gangs that may borrow.

    Returns
    -------
    Lending | None
        The loans, not verified yet, or None if the policy does not lend or no waiting gang may
        borrow.

    """
    shares = find_shares(decided.rules)
    if shares is None or not shares.lends:
        return None
    problem, idle = decided.problem, Outcome(decided.problem, decided.decisions).idle
    waiting = _find_borrowers(decided)
    if not len(waiting):
        return None
    levels = _build_levels(problem, decided.tiers, waiting)
    fitting = waiting[_could_fit(problem, idle, waiting)]
    fitting = fitting[_fit_somewhere(problem, idle, fitting)]
    if len(fitting):
        solution = _place_borrowers(decided, fitting, levels, search)
        node_of = np.where(solution.node_of >= 0, solution.node_of, decided.decisions.node_of)
        decisions = replace(decided.decisions, node_of=node_of)
        bounds = solution.bounds
    else:
        decisions, bounds = decided.decisions, tuple(0 for _ in levels)
    return Lending(decisions, _count_loans(decided, levels, decisions, bounds))


def separate_loans(
    decided: Decided, levels: Sequence[AnyLevel]
) -> tuple[Decisions, Lending | None]:
    """Split the decisions of a finished plan into decisions without loans, and loans.

    If a queue exceeds its deserved share, its gangs that may borrow are split into gangs that fit
    into the share and gangs that borrow. The split with the best values on the levels over gangs is
    chosen. In queues with many gangs that may borrow, the search may miss the optimal split.
    """
    shares = find_shares(decided.rules)
    if shares is None or not shares.lends:
        return decided.decisions, None
    problem, decisions = decided.problem, decided.decisions
    borrowed = _find_borrowing_tasks(decided, levels)
    first = replace(decisions, node_of=np.where(borrowed, UNPLACED, decisions.node_of))
    staged = replace(decided, decisions=first)
    waiting = np.union1d(_find_borrowers(staged), problem.gang_of[borrowed])
    if not len(waiting):
        return decisions, None
    lent = _build_levels(problem, decided.tiers, waiting)
    results = _count_loans(staged, lent, decisions, (None,) * len(lent))
    return first, Lending(decisions, results)


def find_shares(rules: RuleSet) -> Proportion | None:
    """Return the rule `proportion`, which caps queues at weighted shares, or None if disabled."""
    found = rules.find_rule("proportion")
    if found is None or not found.binds or not isinstance(found.rule, Proportion):
        return None
    return found.rule


def without_lending(rules: RuleSet) -> RuleSet:
    """Return the rules without lending, for policies that cannot reclaim loans.

    Reclaiming a loan evicts entire gangs, which the greedy pipeline without a solver does not do.
    """
    return _with_shares(rules, lends=False)


# --- the second stage ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Placed:
    """The node (T,) of each borrowing task, and a bound for each level or None if unknown."""

    node_of: I64
    bounds: tuple[int | None, ...]


def _place_borrowers(
    decided: Decided, gangs: I64, levels: Sequence[Placed], search: SolveRequest | None
) -> _Placed:
    problem, rules = decided.problem, _with_shares(decided.rules, caps=False)
    others = np.ones(problem.num_gangs, np.bool_)
    others[gangs] = False
    rest = fix_decisions(problem, decided.decisions, others)
    options = GreedyOptions(actions=(ALLOCATE,), tier_of=decided.tiers.of, gated=False)
    decisions = run_greedy(rest, rules, options)
    # Loans must not use the capacity of terminating pods, because this capacity is not idle.
    nothing = np.full_like(decisions.nominated, UNPLACED)
    decisions = replace(decisions, nominated=nothing)
    solution = evaluate_greedy(rest, decisions, levels, NO_SOLVER)
    if search is not None and not are_optimal(solution.results):
        solution = improve(rest, rules, (decided.tiers, levels), solution, search)
    return _Placed(solution.decisions.node_of, tuple(r.bound for r in solution.results))


def _with_shares(rules: RuleSet, **fields: bool) -> RuleSet:
    """Return the rules with some fields of `Proportion` replaced.

    Returns the same rule set if nothing changes.
    """
    active = tuple(
        replace(a, rule=replace(a.rule, **fields)) if isinstance(a.rule, Proportion) else a
        for a in rules.active
    )
    return rules if active == rules.active else replace(rules, active=active)


def _find_waiting(decided: Decided) -> I64:
    """Return the indices of waiting gangs for which the first stage places no task.

    Gangs whose pods are evicted are excluded. Gangs in the queue tree of a reclaiming queue are
    also excluded, because the verifier counts all placements in a reclaiming queue, including
    loans.
    """
    problem = decided.problem
    outcome = Outcome(problem, decided.decisions)
    waits = (outcome.num_pending > 0) & (problem.shape_of >= 0) & (problem.queue_of >= 0)
    waits[problem.gang_of[outcome.assigned]] = False
    waits &= ~decided.decisions.refused
    waits &= ~decided.rules.find_excluded_gangs(problem)
    evictions = [a for a in decided.actions if isinstance(a, Evict)]
    if evictions:
        gangs = problem.snapshot.gangs
        number = {gang.key: g for g, gang in enumerate(gangs)}
        gang_of = {task.key: g for g, gang in enumerate(gangs) for task in gang.tasks}
        waits[[gang_of[e.task] for e in evictions if e.task in gang_of]] = False
        claiming = {
            int(problem.queue_of[number[e.preemptor]])
            for e in evictions
            if e.action == RECLAIM and e.preemptor
        }
        tree = problem.queues
        is_root = np.array([name == ROOT_QUEUE for name in tree.names], np.bool_)
        # The subtrees that contain a reclaiming queue, except the subtree of the root queue.
        above = tree.subtree & ~is_root[:, None]
        families = above[above[:, sorted(claiming)].any(axis=1)]
        waits &= ~families[:, problem.queue_of].any(axis=0)
    return np.flatnonzero(waits)


def _find_borrowers(decided: Decided) -> I64:
    """Return the waiting gangs that may borrow and whose tasks could fit into idle capacity."""
    problem, snapshot = decided.problem, decided.problem.snapshot
    waiting = _find_waiting(decided)
    waiting = waiting[_can_exceed(problem)[problem.queue_of[waiting]]]
    waiting = waiting[_could_fit(problem, problem.idle, waiting)]
    may = {g for g in waiting.tolist() if not find_firmness(snapshot.gangs[g], snapshot)}
    placed = set(problem.gang_of[Outcome(problem, decided.decisions).assigned].tolist())
    lines = FifoLines(problem, lambda g: g in placed or g in may)
    return np.array(sorted(g for g in may if lines.ahead(g) == NO_GANG), np.int64)


def _find_borrowing_tasks(decided: Decided, levels: Sequence[AnyLevel]) -> Bool:
    """Return the mask (T,) of placed tasks of gangs that borrow beyond a queue's deserved share."""
    problem, decisions = decided.problem, decided.decisions
    placed = np.maximum(decisions.node_of, decisions.nominated) >= 0
    tasks = np.flatnonzero(placed)
    gain = np.zeros((problem.num_gangs, len(problem.resources)), np.int64)
    np.add.at(gain, problem.gang_of[tasks], problem.classes.request[problem.task_class[tasks]])
    gangs = np.unique(problem.gang_of[tasks])
    nominated = set(problem.gang_of[decisions.nominated >= 0].tolist())
    counted = [level for level in levels if isinstance(level, Started | Placed)]
    over_gangs = [level for level in levels if not is_node_level(level)]
    lent = np.zeros(problem.num_gangs, np.bool_)
    share_left = own_shares(problem) - problem.queues.allocated
    for queue in np.unique(problem.queue_of[gangs]).tolist():
        gangs_of_queue = gangs[problem.queue_of[gangs] == queue]
        total = gain[gangs_of_queue].sum(axis=0)
        if (total <= share_left[queue])[total > 0].all():
            continue
        snapshot = problem.snapshot
        may = [
            g not in nominated and not find_firmness(snapshot.gangs[g], snapshot)
            for g in gangs_of_queue.tolist()
        ]
        able = gangs_of_queue[np.array(may, np.bool_)]
        unused = share_left[queue] - total + gain[able].sum(axis=0)
        level_values = {}
        for g in able.tolist():
            node_of = np.where(problem.gang_of == g, decisions.node_of, UNPLACED)
            alone = Outcome(problem, replace(decisions, node_of=node_of))
            level_values[g] = tuple(level.value(alone) for level in counted)
        order = sorted(able.tolist(), key=lambda g: snapshot.gangs[g].key)
        order.sort(key=lambda g: level_values[g], reverse=True)
        able = np.array(order, np.int64)

        def judge(kept: Bool, able: I64 = able) -> tuple[int, ...]:
            out = lent.copy()
            out[able[~kept]] = True
            node_of = np.where(out[problem.gang_of], UNPLACED, decisions.node_of)
            outcome = Outcome(problem, replace(decisions, node_of=node_of))
            values = ((level.sense, level.value(outcome)) for level in over_gangs)
            return tuple(value if sense is Sense.MAX else -value for sense, value in values)

        kept = max(
            _fill_share(gain[able], [level_values[g] for g in order], unused),
            key=judge,
        )
        lent[able[~kept]] = True
    found: Bool = lent[problem.gang_of] & placed
    return found


def _fill_share(gain: I64, level_values: Sequence[tuple[int, ...]], left: I64) -> list[Bool]:
    """Return promising sets of gangs that fit into a queue's deserved share, as masks (m,).

    `gain` (m, R) is the request of each gang's placed tasks. `level_values` holds each gang's
    values on the levels; the gangs are in descending order of these values. `left` (R,) is the
    unused deserved share.
    """
    used = gain > 0

    first, rest = np.zeros(len(gain), np.bool_), left
    for i in range(len(gain)):
        if (gain[i] <= rest)[used[i]].all():
            first[i], rest = True, rest - gain[i]
    if not len(gain) or len(gain) > _MOST_COMPARED:
        return [first]
    sets: list[tuple[tuple[int, ...], I64]] = [((), left)]
    for i in range(len(gain)):
        sets += [((*s, i), r - gain[i]) for s, r in sets if (gain[i] <= r)[used[i]].all()]
    table = np.array(level_values, np.int64).reshape(len(gain), -1)
    sets.sort(key=lambda each: tuple(table[list(each[0])].sum(axis=0).tolist()), reverse=True)
    found = [first]
    for members, _ in sets[:_MOST_JUDGED]:
        kept = np.zeros(len(gain), np.bool_)
        kept[list(members)] = True
        found.append(kept)
    return found


def _can_exceed(problem: Problem) -> Bool:
    """Return the mask (Q,) of queues whose demand exceeds their deserved share of some resource.

    A resource is ignored if the queue deserves the cluster's total amount, and its allocation plus
    all idle capacity is at most its deserved share. This sum may exceed the share if the queue's
    pods hold capacity on NotReady nodes.
    """
    due, queues = own_shares(problem), problem.queues
    idle = np.maximum(problem.idle, 0)[problem.ready].sum(axis=0)
    is_short = (due < problem.total) | (queues.allocated + idle > due)
    return np.array(((queues.requested > due) & is_short).any(axis=1), np.bool_)


def _could_fit(problem: Problem, idle: I64, gangs: I64) -> Bool:
    """Return the mask (m,) of gangs with a task of a class in `_fitting_classes(problem, idle)`."""
    fits = _fitting_classes(problem, idle)
    shapes = problem.shapes
    number = np.unique(problem.shape_of[gangs])
    pairs = zip(shapes.start[number].tolist(), shapes.start[number + 1].tolist(), strict=True)
    found = np.zeros(len(shapes.shapes), np.bool_)
    found[number] = [bool(fits[shapes.class_of[start:end]].any()) for start, end in pairs]
    return found[problem.shape_of[gangs]]


def _fit_somewhere(problem: Problem, idle: I64, gangs: I64) -> Bool:
    """Return the mask (m,) of gangs with a task that fits into the idle capacity of some node."""
    shapes, free = problem.shapes, np.asfortranarray(idle[problem.ready])
    fits_by_class: dict[int, bool] = {}

    def fits(task_class: int) -> bool:
        if task_class not in fits_by_class:
            request = problem.classes.request[task_class]
            fits_node = np.ones(len(free), np.bool_)
            for r in np.flatnonzero(request).tolist():
                fits_node &= free[:, r] >= request[r]
            fits_by_class[task_class] = bool(fits_node.any())
        return fits_by_class[task_class]

    shape_of = problem.shape_of[gangs]
    pairs = zip(shapes.start[shape_of].tolist(), shapes.start[shape_of + 1].tolist(), strict=True)
    found = [any(map(fits, shapes.class_of[start:end].tolist())) for start, end in pairs]
    return np.array(found, np.bool_)


def _fitting_classes(problem: Problem, idle: I64) -> Bool:
    """Return the mask (C,) of task classes whose request is at most the largest idle capacity.

    The largest idle capacity on a ready node is computed for each resource separately.
    """
    largest = idle[problem.ready].max(axis=0, initial=0)
    fits = (problem.classes.request <= largest).all(axis=1)
    return np.array(fits & bool(problem.ready.any()), np.bool_)


# --- levels --------------------------------------------------------------------------------------


def _build_levels(problem: Problem, tiers: Tiers, gangs: I64) -> list[Placed]:
    """Return one level per tier, which sums the weights of borrowing tasks."""
    weights = problem.derived(dominant_weights)
    mine = np.full(problem.num_gangs, -1, np.int64)
    mine[gangs] = tiers.of[gangs]
    return [
        Placed(f"{LENT}, {tiers.names[t]}", weights.unit, t, mine, weights.of_class)
        for t in np.unique(tiers.of[gangs]).tolist()
    ]


def _count_loans(
    decided: Decided,
    levels: Sequence[Placed],
    decisions: Decisions,
    bounds: Sequence[int | None],
) -> tuple[LevelResult, ...]:
    """Return the value and bound of each level over loans, given the loans in `decisions`."""
    problem = decided.problem
    # Keep only the nodes of tasks that were placed after the first stage.
    node_of = np.where(decided.decisions.node_of >= 0, UNPLACED, decisions.node_of)
    fresh = Outcome(problem, replace(decisions, node_of=node_of))
    results, relaxed = [], _Relaxation(decided)
    for level, bound in zip(levels, bounds, strict=True):
        most = relaxed.bound(level)
        if decided.is_empty and bound is not None:
            most = min(most, bound)
        value = level.value(fresh)
        status = LevelStatus.OPTIMAL if value == most else LevelStatus.FEASIBLE
        results.append(LevelResult(level.name, level.unit, level.sense, value, most, status))
    # A level with bound 0 is omitted, because no gang of its tier can borrow.
    return tuple(r for r in results if r.bound)


_RESOURCE_OF = {"milli-CPU": "cpu", "bytes of memory": "memory"}
"""Maps the units of levels to resource names; any other unit is itself a resource name."""


class _Relaxation:
    """Bounds on loan levels that hold for all plans with equal values on the preceding levels.

    Another plan may start other gangs in the first stage, and may lend to a gang that needs no loan
    in this plan. A bound therefore assumes that all gangs of the tier that may borrow can use the
    capacity that was idle before the session. If the first stage places the same task weight in all
    plans with equal values, the weight is subtracted from the bound.
    """

    def __init__(self, decided: Decided) -> None:
        problem, shapes = decided.problem, decided.problem.shapes
        self._problem = problem
        self._is_fixed = _is_use_fixed(decided)
        self._is_placed: Bool = decided.decisions.node_of >= 0
        self._idle: I64 = np.maximum(problem.idle, 0)[problem.ready].sum(axis=0)
        self._gangs = problem.open_gangs
        self._tiers: I64 = decided.tiers.of[self._gangs]
        self._may_borrow = _can_exceed(problem)[problem.queue_of[self._gangs]]
        for i in np.flatnonzero(self._may_borrow).tolist():
            gang = problem.snapshot.gangs[self._gangs[i]]
            self._may_borrow[i] = not find_firmness(gang, problem.snapshot)
        self._on_nodes = _count_fitting(problem)
        self._startable: I64 = np.minimum(shapes.count, self._on_nodes[shapes.class_of])
        self._shape_of_entry = shapes.shape_of_entry
        total = np.zeros(len(shapes.shapes), np.int64)
        np.add.at(total, self._shape_of_entry, self._startable)
        # No plan with as many victims as `decided` lends to a gang whose minimum does not fit into
        # idle capacity.
        self._is_startable: Bool = total >= shapes.need

    def bound(self, level: Placed) -> int:
        """Return an upper bound on the value of a level over loans."""
        problem, shapes = self._problem, self._problem.shapes
        request = problem.classes.request
        is_mine = self._tiers == level.tier
        borrowers = self._gangs[is_mine & self._may_borrow]
        firm = 0
        if self._is_fixed and len(borrowers) == np.count_nonzero(is_mine):
            starts = problem.task_start[borrowers]
            tasks = ranges(starts, problem.task_start[borrowers + 1] - starts)
            firm = int(level.weight[problem.task_class[tasks[self._is_placed[tasks]]]].sum())
        gangs = np.bincount(problem.shape_of[borrowers], minlength=len(shapes.shapes))
        gangs[~self._is_startable] = 0
        number = np.zeros(len(request), np.int64)
        np.add.at(number, shapes.class_of, self._startable * gangs[self._shape_of_entry])
        number = np.minimum(number, self._on_nodes)
        used = np.flatnonzero(number)
        number, weight, request = number[used], level.weight[used], request[used]
        bound = int((number * weight).sum())
        for r in np.flatnonzero((request > 0).any(axis=0)).tolist():
            bound = min(bound, _max_weight(number, weight, request[:, r], int(self._idle[r])))
        bound -= firm
        column = problem.index(_RESOURCE_OF.get(level.unit, level.unit))
        if self._is_fixed and column >= 0 and (request[:, column] > 0).all():
            placed = problem.task_class[self._is_placed]
            used_by_placed = int(problem.classes.request[placed, column].sum())
            bound = min(bound, int(self._idle[column]) - used_by_placed)
        return bound


def _count_fitting(problem: Problem) -> I64:
    """Return an upper bound (C,) on the tasks of each class that fit into idle capacity.

    Only capacity that was idle before the session is considered.
    """
    request = problem.classes.request
    fits = _fitting_classes(problem, problem.idle)
    found = np.where(fits, np.iinfo(np.int32).max, 0).astype(np.int64)
    classes = np.flatnonzero(fits)
    if len(classes) > _MOST_COUNTED:
        return found
    idle = np.maximum(problem.idle, 0)[problem.ready]
    for c in classes.tolist():
        is_requested = request[c] > 0
        if is_requested.any():
            found[c] = int((idle[:, is_requested] // request[c, is_requested]).min(axis=1).sum())
    return found


def _max_weight(number: I64, weight: I64, request: I64, idle: int) -> int:
    """Return an upper bound on the weight of tasks that fit into the idle amount of one resource.

    The bound is the dual bound of a fractional knapsack, in which classes with more weight per unit
    of the resource come first. The dual price is the ratio of weight to request of the class that
    fits only partly. The bound is computed in exact integers and is valid for any dual price.
    """
    total = int((number * weight)[request <= 0].sum())
    used = request > 0
    # Products of bytes, weights and task counts can exceed 64 bits.
    number, weight, request = (each[used].astype(object) for each in (number, weight, request))
    if (number * request).sum() <= idle:
        return total + int((number * weight).sum())
    ratio = (weight / request).astype(np.float64)
    order = np.argsort(-ratio, kind="stable")
    amounts = np.cumsum((number * request)[order])
    cut = order[np.searchsorted(amounts, idle, side="right")]
    gain = np.maximum(weight * request[cut] - weight[cut] * request, 0)
    return total + int((weight[cut] * idle + (number * gain).sum()) // request[cut])


def _is_use_fixed(decided: Decided) -> bool:
    """Return whether plans with equal admission values place equal task weights in each tier.

    The weights are equal if gangs start with all tasks and no pod is evicted or nominated.
    """
    problem = decided.problem
    if any(isinstance(a, Evict) for a in decided.actions):
        return False
    if (decided.decisions.nominated >= 0).any() or (decided.tiers.factor != 1).any():
        return False
    shapes = np.unique(problem.shape_of[problem.open_gangs]).tolist()
    return decided.counts_all and all(problem.shapes.shapes[s].is_rigid for s in shapes)


# --- capacity that stays idle --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Withheld:
    """Gangs that fit into idle capacity but exceed their queue's deserved share.

    Attributes
    ----------
    reasons
        Maps a gang's key to the reason why no capacity is lent to the gang.
    amounts
        Pairs (resource, amount): the total request of the tasks of these gangs that would be
        placed.

    """

    reasons: Mapping[str, str]
    amounts: tuple[tuple[str, int], ...]

    @property
    def sentence(self) -> str:
        """A sentence that states how much of each resource stays idle, and why."""
        amounts = ", ".join(amount_text(name, amount) for name, amount in self.amounts)
        why = "; ".join(sorted(set(self.reasons.values())))
        return f"proportion keeps {amounts} idle, which gangs that wait could use: {why}"

    def explain(self, key: str, reason: Reason) -> Reason:
        """Return why a gang waits; for a gang in `reasons`, also state why it cannot borrow."""
        why = self.reasons.get(key)
        if why is None:
            return reason
        return replace(reason, message=f"{reason.message}; it fits into idle capacity, but {why}")


def find_withheld(decided: Decided, pending: Mapping[str, Reason]) -> Withheld | None:
    """Return the gangs that fit into idle capacity but exceed their queue's deserved share.

    To find these gangs, the greedy pipeline ignores the limit of each queue to its deserved share.
    Returns None if no gang would start.
    """
    shares = find_shares(decided.rules)
    if shares is None:
        return None
    problem, gangs = decided.problem, decided.problem.snapshot.gangs
    waiting = _find_waiting(decided)
    for_share = {k for k, reason in pending.items() if reason.code is ReasonCode.DESERVED}
    kept_out = [g for g in waiting.tolist() if gangs[g].key in for_share]
    why = {g: find_firmness(gangs[g], problem.snapshot) if shares.lends else _OFF for g in kept_out}
    waiting = np.array([g for g in kept_out if why[g]], np.int64)
    waiting = waiting[_could_fit(problem, Outcome(problem, decided.decisions).idle, waiting)]
    if not len(waiting):
        return None
    node_of = _place_borrowers(decided, waiting, (), None).node_of
    tasks = np.flatnonzero(node_of >= 0)
    if not len(tasks):
        return None
    taken = problem.classes.request[problem.task_class[tasks]].sum(axis=0)
    named = {r: int(a) for r, a in zip(problem.resources, taken, strict=True) if a and r != PODS}
    reasons = {gangs[g].key: why[g] for g in np.unique(problem.gang_of[tasks]).tolist()}
    return Withheld(reasons, tuple(sorted(named.items())))
