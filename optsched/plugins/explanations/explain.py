"""Explain in one sentence why a gang waits: a rule blocks it, or the nodes lack capacity."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.accounting import Ledger
from optsched.plugins.explanations.empty_cluster import EmptyCluster
from optsched.plugins.extension_points import Greedy, Room
from optsched.plugins.gangs.gang import next_entries
from optsched.plugins.ruleset import CapacityExplanation, select_overriding
from optsched.plugins.shares.proportion import Proportion
from optsched.units import PODS, amount_text, count_noun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.plugins.accounting import Outcome
    from optsched.plugins.explanations.empty_cluster import Lack
    from optsched.plugins.extension_points import Rule
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool

SHOWN = 4
"""Maximum number of different rejection reasons that a sentence lists."""

MOST_TRIED = 256
"""Maximum number of pods that an explanation tries to place one by one."""

_OF_QUEUES = frozenset(
    {
        ReasonCode.QUEUE_ORDER,
        ReasonCode.CAPABILITY,
        ReasonCode.DESERVED,
        ReasonCode.GUARANTEE,
        ReasonCode.MIN_RESOURCES,
    }
)
"""Codes of reasons that may expire with time, or once the gang's queue has more capacity."""

_POD_SLOTS = "room for pods"
"""The name of the resource `pods` in messages."""

_OUTRANKED = Reason(
    ReasonCode.OUTRANKED,
    "idle capacity suffices for it, but no plan was found that starts it without loss for more "
    "important gangs or levels",
)

RANK = {code: i for i, code in enumerate(ReasonCode)}
"""The rank of each reason code; of several reasons, the one with the lowest rank is reported."""


@dataclass(eq=False)
class Explainer:
    """Explains why gangs wait, given an `Outcome`; caches results by task class.

    Reasons refer to the capacity that is idle after the decisions of the outcome.
    """

    _outcome: Outcome
    _rules: RuleSet
    _views: dict[int, _View] = field(default_factory=dict, init=False)

    def reason(self, gang: int) -> Reason:
        """Return why a gang places none of its pending tasks, or only some of them.

        `gang` is the index of a gang that is not in `Problem.blocked`.
        """
        explaining = select_overriding(self._rules.hard, "explain")
        reasons = [r for rule in explaining if (r := rule.explain(self._outcome, gang))]
        reasons.sort(key=lambda r: RANK[r.code])
        never = self.find_permanent_blocker(gang, reasons)
        if never is not None or reasons:
            return never or reasons[0]
        # No rule blocks the gang, so nodes lack capacity.
        entries = next_entries(self._outcome, gang)
        minimum = self._empty.minimum(gang)
        pending = sum(item.number for item in minimum.items)
        if len(minimum.items) != 1 and sum(number for *_, number in entries) != pending:
            # Several sets of pods can form the minimum; the sentence describes the cheapest set.
            entries = self._empty.cheapest(gang)
        demands = [self._build_demand(*entry) for entry in entries]
        for demand in demands:
            if demand.view.most_now < demand.number:
                return demand.lacking()
        for rule in self._shared_facts.limiting:
            reason = rule.explain_rooms(self._outcome, gang, [a.capacity_by_node for a in demands])
            if reason is not None:
                return reason
        if not _fit_together(self._outcome, demands):
            return Reason(
                ReasonCode.FRAGMENTED,
                "each of its roles fits alone, but not all of them fit together"
                + _add_refusals([r for demand in demands for r in demand.view.refusals]),
            )
        blocker = self._find_tied_blocker(gang, demands)
        found = self._rules.find_rule(Proportion.name)
        sharing = found.rule if found is not None and found.binds else None
        if blocker is None and isinstance(sharing, Proportion):
            # The gang can start only by borrowing capacity, so its queue's share keeps it waiting.
            blocker = sharing.explain_share(self._outcome, gang)
        return blocker or self._find_nominated(demands) or _OUTRANKED

    def _find_nominated(self, demands: list[_Demand]) -> Reason | None:
        """Return a reason that names the gangs whose nominations reserve idle capacity, or None."""
        outcome, problem = self._outcome, self._outcome.problem
        nominated = np.flatnonzero(outcome.decisions.nominated >= 0)
        left = np.maximum(np.minimum(outcome.idle, outcome.future_idle), 0)
        for demand in demands if len(nominated) else ():
            nodes = np.flatnonzero(demand.view.open_nodes)
            counts = demand.view.fits(left[nodes])
            if counts.sum() >= demand.number:
                continue
            lost = nodes[counts < demand.view.counts]
            tasks = nominated[np.isin(outcome.decisions.nominated[nominated], lost)]
            keys = [problem.snapshot.gangs[g].key for g in np.unique(problem.gang_of[tasks])]
            more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
            return Reason(
                ReasonCode.OUTRANKED,
                f"idle capacity suffices for it, but is reserved for {', '.join(keys[:SHOWN])}"
                f"{more} until pods terminate",
            )
        return None

    def waiting(self, gang: int) -> Reason:
        """Return why a nominated gang waits, and which rules exclude its nodes at present."""
        problem, outcome = self._outcome.problem, self._outcome
        tasks = np.arange(problem.task_start[gang], problem.task_start[gang + 1])
        kept = tasks[outcome.decisions.nominated[tasks] >= 0]
        refusals = []
        for task_class in np.unique(problem.task_class[kept]).tolist():
            mine = kept[problem.task_class[kept] == task_class]
            nodes = np.unique(outcome.decisions.nominated[mine])
            for rule, mask in self._shared_facts.standing.masks(task_class):
                if lost := int((~mask[nodes]).sum()):
                    refusals.append((lost, rule.refusal(problem, task_class)))
        return Reason(
            ReasonCode.WAITING,
            f"capacity is reserved for it on nodes with terminating pods{_add_refusals(refusals)}",
        )

    def find_permanent_blocker(self, gang: int, reasons: Sequence[Reason]) -> Reason | None:
        """Return why a gang cannot start even in an empty cluster, or None if it can.

        The gang may have no pods yet. `reasons` contains the reasons of rules, sorted by `RANK`. If
        a reason in `reasons` takes precedence over `NO_NODES`, the result is None.
        """
        if reasons and RANK[reasons[0].code] < RANK[ReasonCode.NO_NODES]:
            return None
        problem = self._outcome.problem
        if not problem.num_nodes:
            return Reason(ReasonCode.NO_NODES, "the cluster has no nodes")
        if (reason := self._explain_min_resources(gang)) is not None or problem.shape_of[gang] < 0:
            return reason
        lack = self._empty.find_lack(gang)
        if lack is None:
            return None
        items = zip(self._empty.whole_minimum(gang).items, lack.chosen, strict=True)
        demands = [self._build_demand(item.task_class, item.role, number) for item, number in items]
        never = _impossible_reason(problem.resources, demands, lack)
        if never.code is ReasonCode.PREDICATES:
            # The reason of a rule is more specific than `never`.
            return next((reason for reason in reasons if reason.code not in _OF_QUEUES), never)
        return never

    def _explain_min_resources(self, gang: int) -> Reason | None:
        """Return a reason if `minResources` exceeds the total of all nodes, else None."""
        problem = self._outcome.problem
        shape = int(problem.shape_of[gang])
        if shape >= 0 and not problem.shapes.least[shape].any():
            return None
        short = []
        for name, least in problem.snapshot.gangs[gang].missing_resources:
            r = problem.index(name)
            offered = int(problem.total[r]) if r >= 0 else 0
            if least > offered:
                short.append((amount_text(name, least), amount_text(name, offered)))
        if not short:
            return None
        least_texts, offered_texts = (
            [text for text in column] for column in zip(*short, strict=True)
        )
        return Reason(
            ReasonCode.IMPOSSIBLE,
            f"minResources requests {', '.join(least_texts)}, "
            f"all nodes together offer {', '.join(offered_texts)}",
        )

    @cached_property
    def _empty(self) -> EmptyCluster:
        return EmptyCluster(self._outcome, self._rules)

    def _build_demand(self, task_class: int, role: str, number: int) -> _Demand:
        if task_class not in self._views:
            self._views[task_class] = _View(self._shared_facts, task_class)
        return _Demand(self._views[task_class], role, number)

    def _find_tied_blocker(self, gang: int, demands: list[_Demand]) -> Reason | None:
        """Return a reason that names the rules because of which not all pods fit, or None."""
        number = sum(demand.number for demand in demands)
        binding = sorted(
            {name for demand in demands for name in self._empty.tying(demand.view.task_class)}
        )
        if not binding or number > MOST_TRIED:
            return None
        together = self._shared_facts.standing.most_together(
            [(demand.view.task_class, demand.number) for demand in demands],
            np.array([demand.capacity_by_node.counts for demand in demands]),
        )
        if together >= number:
            return None
        code = ReasonCode.FRAGMENTED if binding == ["gpu-shares"] else ReasonCode.RELATIONS
        return Reason(
            code,
            f"{', '.join(binding)}: "
            f"room for {together} of its {count_noun(number, 'pod')} together",
        )

    @cached_property
    def _shared_facts(self) -> _SharedFacts:
        return _SharedFacts(self._outcome, self._rules)


class PlacedState:
    """The `Greedy` objects of rules that restrict nodes, after all placements of a plan."""

    def __init__(self, outcome: Outcome, rules: Sequence[Rule]) -> None:
        ledger = Ledger(outcome.problem)
        opened = ((rule, rule.open(outcome.problem, ledger)) for rule in rules)
        self._watching = [
            (rule, greedy)
            for rule, greedy in opened
            if greedy is not None and type(greedy).fits is not Greedy.fits
        ]
        if not self._watching:
            return
        tasks = np.flatnonzero(outcome.placed)
        classes, nodes = outcome.problem.task_class[tasks], outcome.decisions.node_of[tasks]
        for task_class in np.unique(classes).tolist():
            self.placed(task_class, *np.unique(nodes[classes == task_class], return_counts=True))

    def placed(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Record the placement of `counts` (m,) tasks on `nodes` (m,); negative counts undo it."""
        for _, greedy in self._watching:
            if type(greedy).record_placement is not Greedy.record_placement:
                greedy.record_placement(-1, task_class, nodes, counts)

    def masks(self, task_class: int) -> Iterator[tuple[Rule, Bool]]:
        """Yield (rule, mask) pairs; the mask (N,) selects the nodes on which one more task fits."""
        for rule, greedy in self._watching:
            mask = greedy.fits(-1, task_class, later=False)
            if mask is not None:
                yield rule, mask

    def most_together(self, requests: Sequence[tuple[int, int]], counts: I64) -> int:
        """Return how many tasks fit if each task is placed on the first node where it fits.

        Parameters
        ----------
        requests
            (task class, number of tasks) pairs, in placement order.
        counts
            (len(requests), N) number of tasks of each request that fit on each node, by resources
            and masks.
        """
        done: list[tuple[int, I64]] = []
        used = np.zeros(counts.shape[1], np.int64)
        for (task_class, number), room in zip(requests, counts, strict=True):
            for _ in range(number):
                allowed = room > used
                for _, mask in self.masks(task_class):
                    allowed = allowed & mask
                if not allowed.any():
                    break
                node = np.array([allowed.argmax()], np.int64)
                used[node] += 1
                self.placed(task_class, node, np.ones(1, np.int64))
                done.append((task_class, node))
        for task_class, node in reversed(done):
            self.placed(task_class, node, -np.ones(1, np.int64))
        return len(done)


def _fit_together(outcome: Outcome, demands: list[_Demand]) -> bool:
    """Return whether all pods fit if they are placed role by role and fill node after node."""
    idle = np.maximum(outcome.idle, 0)
    for demand in demands:
        nodes = np.flatnonzero(demand.view.open_nodes)
        counts = demand.view.fits(idle[nodes])
        before = np.cumsum(counts) - counts
        taken = np.clip(demand.number - before, 0, counts)
        idle[nodes] -= taken[:, None] * demand.view.request
        if taken.sum() < demand.number:
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Free:
    """Idle resources (m, R) of m nodes, their sum (R,), and the maximum (R,) on one node."""

    left: I64
    total: I64
    largest: I64


class _SharedFacts:
    """Rules and idle resources of nodes, shared by the explanations of all task classes.

    A rule is `lasting` if its mask does not depend on pods, time or load, and `passing` otherwise.
    """

    def __init__(self, outcome: Outcome, rules: RuleSet) -> None:
        self.outcome = outcome
        self.standing = PlacedState(outcome, rules.masking)
        self.limiting = [r for r in rules.hard if isinstance(r, CapacityExplanation)]
        self.lasting = [r for r in rules.filters if r.mask_lasts and not r.mask_sees_pods]
        self.passing = [r for r in rules.filters if r not in self.lasting]
        self._known: dict[bytes, _Free] = {}

    def free(self, open_nodes: Bool) -> _Free:
        """Return the idle resources of the nodes in a mask (N,); equal masks share one object."""
        key = open_nodes.tobytes()
        if key not in self._known:
            left = np.maximum(self.outcome.idle[open_nodes], 0)
            largest = left.max(axis=0, initial=0)
            # The array is stored by column, because callers read it by resource.
            self._known[key] = _Free(np.asfortranarray(left), left.sum(axis=0), largest)
        return self._known[key]


class _View:
    """The usable nodes of a task class, their idle capacity, and why other nodes are excluded."""

    def __init__(self, facts: _SharedFacts, task_class: int) -> None:
        self.task_class = task_class
        self.problem = facts.outcome.problem
        self.request: I64 = self.problem.classes.request[task_class]
        columns = np.flatnonzero(self.request)
        self._requested = list(zip(columns.tolist(), self.request[columns].tolist(), strict=True))
        self._refusals: Counter[str] = Counter()
        self.open_nodes: Bool = self.problem.ready.copy()
        if not self.open_nodes.all():
            self._refusals["had the status NotReady"] = int((~self.open_nodes).sum())
        for rule in facts.lasting:
            self._exclude(rule, rule.mask(self.problem, task_class))
        self._ever_open = self.open_nodes.copy()
        self.lasting = self.refusals
        for rule in facts.passing:
            self._exclude(rule, rule.mask(self.problem, task_class))
        for rule, mask in facts.standing.masks(task_class):
            self._exclude(rule, mask)
        self.free = facts.free(self.open_nodes)
        self.counts = self.fits(self.free.left)
        self.most_now = int(self.counts.sum())

    def _exclude(self, rule: Rule, mask: Bool | None) -> None:
        if mask is not None and (self.open_nodes & ~mask).any():
            lost = int((self.open_nodes & ~mask).sum())
            self._refusals[rule.refusal(self.problem, self.task_class)] += lost
            self.open_nodes &= mask

    @property
    def refusals(self) -> list[tuple[int, str]]:
        """(number of excluded nodes, reason) pairs; equal reasons of several rules are merged."""
        return [(n, text) for text, n in self._refusals.items()]

    @cached_property
    def largest(self) -> I64:
        """The largest allocatable amounts (R,) among the nodes that lasting rules allow."""
        offered: I64 = self.problem.allocatable[self._ever_open].max(axis=0, initial=0)
        return offered

    def fits(self, room: I64) -> I64:
        """Return how many tasks fit on each of m nodes with the idle resources `room` (m, R)."""
        (first, amount), *rest = self._requested
        counts: I64 = room[:, first] // amount
        for r, amount in rest:
            np.minimum(counts, room[:, r] // amount, out=counts)
        return counts

    @cached_property
    def fragments(self) -> str:
        """A clause with the scarce resources, their idle totals and their maxima on one node."""
        names, free = self.problem.resources, self.free
        scarce = [r for r, amount in self._requested if free.largest[r] < amount]
        if not scarce:
            # Find each resource that, if it were unlimited, would let more tasks fit.
            quotients = np.array([free.left[:, r] // amount for r, amount in self._requested])
            for i, (r, _) in enumerate(self._requested):
                others = np.delete(quotients, i, axis=0)
                if not len(others) or others.min(axis=0).sum() > self.most_now:
                    scarce.append(r)
        if not scarce:
            scarce = [r for r, n in self._requested if (free.left[:, r] < n).any()]
        if len(scarce) > 1 and all(free.largest[r] >= self.request[r] for r in scarce):
            listed = " and ".join(_POD_SLOTS if names[r] == PODS else names[r] for r in scarce)
            return f"enough {listed} are free, but not on the same nodes"
        total = " and ".join(amount_text(names[r], int(free.total[r])) for r in scarce)
        most = " and ".join(amount_text(names[r], int(free.largest[r])) for r in scarce)
        return f"{total} are free, but at most {most} on one node"

    @cached_property
    def shortages(self) -> list[tuple[int, str]]:
        """(number of nodes, phrase) pairs: per scarce resource, how many nodes have too little."""
        names, left = self.problem.resources, self.free.left
        short = [(int(np.count_nonzero(left[:, r] < n)), names[r]) for r, n in self._requested]
        return [
            (n, "had no capacity for another pod" if name == PODS else f"had too little {name}")
            for n, name in short
            if n
        ]


@dataclass(frozen=True, slots=True)
class _Demand:
    """The number of tasks of one task class and role that a gang must place together."""

    view: _View
    role: str
    number: int

    @property
    def capacity_by_node(self) -> Room:
        counts = np.zeros(self.view.problem.num_nodes, np.int64)
        counts[self.view.open_nodes] = self.view.counts
        return Room(self.view.task_class, self.number, counts)

    @property
    def description(self) -> str:
        view = self.view
        requests = [
            amount_text(name, int(amount))
            for name, amount in zip(view.problem.resources, view.request, strict=True)
            if amount and name != PODS
        ]
        device = view.problem.classes.shapes[view.task_class].device
        if device is not None and device.is_share:
            requests.append(f"{device.milli}/1000 of a GPU")
        role = f" of {self.role}" if self.role else ""
        return f"{count_noun(self.number, 'pod')}{role} with {', '.join(requests) or 'no requests'}"

    def no_node_open(self, refusals: list[tuple[int, str]]) -> Reason:
        why = f"0/{len(self.view.open_nodes)} nodes are open to it: {_list_refusals(refusals)}"
        return Reason(ReasonCode.PREDICATES, f"{self.description}: {why}")

    def lacking(self) -> Reason:
        """Return the reason that the tasks lack idle resources on the nodes that they may use."""
        view = self.view
        if not view.open_nodes.any():
            return self.no_node_open(view.refusals)
        room = f"room for {view.most_now} of {self.description}: "
        parts = _list_refusals([*view.refusals, *view.shortages])
        total = view.free.total
        if (self.number * view.request > total).any():
            can = int((view.counts > 0).sum())
            tail = f"{can}/{len(view.open_nodes)} nodes could take one"
            return Reason(ReasonCode.RESOURCES, room + "; ".join(filter(None, (tail, parts))))
        return Reason(
            ReasonCode.FRAGMENTED, f"{room}{view.fragments}{f'; {parts}' if parts else ''}"
        )


def _impossible_reason(resources: Sequence[str], demands: Sequence[_Demand], lack: Lack) -> Reason:
    """Return why a minimum does not fit: no usable node, a pod too large, or too many pods.

    `demands` contains a `_Demand` for each set of equal pods of one role in the minimum.
    """
    if not lack.resources and not lack.rules and lack.closed:
        closed = [demands[i] for i in lack.closed]
        one = next((demand for demand in closed if demand.number), replace(closed[0], number=1))
        return one.no_node_open(one.view.lasting)
    demands = [demand for demand in demands if demand.number]
    for demand in demands:
        offered = demand.view.largest
        if lack.resources and all(demand.view.request[r] > offered[r] for r in lack.resources):
            most = " and ".join(amount_text(resources[r], int(offered[r])) for r in lack.resources)
            return Reason(
                ReasonCode.IMPOSSIBLE,
                f"{demand.description}: no node that it may use offers more than {most}"
                f"{_add_refusals(demand.view.lasting)}",
            )
    short = []
    if lack.resources:
        scarce = (resources[r] for r in lack.resources)
        listed = " and ".join(_POD_SLOTS if name == PODS else name for name in scarce)
        short.append(f"too little {listed}")
    if lack.rules:
        short.append(f"refused by {', '.join(sorted(lack.rules))}")
    besides = _add_refusals([r for demand in demands for r in demand.view.lasting])
    fitting = sum(demand.number for demand in demands) - lack.missing
    most = f"{fitting} only" if lack.is_exact else f"at most {fitting}"
    room = f"even an empty cluster has room for {most}"
    return Reason(
        ReasonCode.IMPOSSIBLE,
        f"{' and '.join(d.description for d in demands)}: {room}: {', '.join(short)}{besides}",
    )


def _add_refusals(refusals: list[tuple[int, str]]) -> str:
    """Return a clause that lists why nodes are excluded; empty without `refusals`."""
    most: dict[str, int] = {}
    for number, text in refusals:
        most[text] = max(number, most.get(text, 0))
    return f"; {_list_refusals([(n, text) for text, n in most.items()])}" if most else ""


def _list_refusals(refusals: list[tuple[int, str]]) -> str:
    ordered = sorted(refusals, key=lambda r: (-r[0], r[1]))
    return ", ".join(f"{count_noun(n, 'node')} {text}" for n, text in ordered[:SHOWN])
