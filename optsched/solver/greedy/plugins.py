"""Call the plugins of a policy for the greedy pipeline, grouped by extension point."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from optsched.plugins.eviction.entitled import GANG_PREEMPT, GANG_RECLAIM, PREEMPT, RECLAIM
from optsched.plugins.extension_points import Greedy, KeyReach, Switch
from optsched.problem.arrays import UNLIMITED
from optsched.problem.running import without_residents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import LiveScorer
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

_SWITCH = {
    "queue_key": Switch.QUEUE_ORDER,
    "gang_key": Switch.JOB_ORDER,
    "is_overused": Switch.OVERUSED,
    "max_tasks": Switch.ALLOCATABLE,
    "may_start": Switch.JOB_READY,
    "holds": Switch.JOB_READY,
    "enqueue_vote": Switch.JOB_ENQUEUED,
    "fits": Switch.PREDICATE,
    "most_reclaimed": Switch.ALLOCATABLE,
    "most_preempted": Switch.ALLOCATABLE,
    "may_reclaim": Switch.PREEMPTIVE,
    "movable": Switch.VICTIM,
    "live_scorer": Switch.NODE_ORDER,
    "task_runs": Switch.TASK_ORDER,
}


_UNSWITCHED = (
    "comes_first",
    "record_eviction",
    "record_placement",
    "record_tasks",
    "record_nomination",
    "record_enqueued",
    "victim_queue_key",
)
"""Plugin methods that are called regardless of the extension points that a policy enables."""

_VOTES = {
    "enqueue_vote": (Switch.JOB_ENQUEUED, ""),
    "is_starving": (Switch.JOB_STARVING, ""),
    "preemptable": (Switch.PREEMPTABLE, ""),
    "reclaimable": (Switch.RECLAIMABLE, ""),
    "gang_preemptable": (Switch.PREEMPTABLE, "preemptable"),
    "gang_reclaimable": (Switch.RECLAIMABLE, "reclaimable"),
}
"""Maps each vote method of a plugin to its extension point and to a replacement method.

The replacement is called if a plugin does not define the vote method; "" means no replacement.
"""


_VOTE_OF_ACTION = {
    PREEMPT: "preemptable",
    RECLAIM: "reclaimable",
    GANG_PREEMPT: "gang_preemptable",
    GANG_RECLAIM: "gang_reclaimable",
}
"""The plugin method that votes on the victims of each action."""

_REACH_OF_ACTION = {PREEMPT: "preempt_reach", RECLAIM: "reclaim_reach"}
"""The method of `VictimReach` that lists the possible victims of each action."""


class QueueGate(Protocol):
    """A plugin that stops allocation for overused queues (Volcano `Overused`)."""

    def is_overused(self, queue: int) -> bool:
        """Return whether no further task of a queue may be placed in this session."""


class GangGate(Protocol):
    """A plugin that can prevent gangs from starting."""

    def may_start(self, gang: int) -> bool:
        """Return False if the gang cannot start."""


class Starvation(Protocol):
    """A plugin that votes on whether tasks may be evicted for a gang (Volcano `JobStarving`)."""

    def is_starving(self, gang: int) -> bool:
        """Return whether tasks may be evicted for a gang."""


class Reclaiming(Protocol):
    """A plugin that decides which queues may reclaim from other queues (Volcano `Preemptive`)."""

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        """Return whether a queue may reclaim capacity for a task of a task class."""

    def most_reclaimed(self, queue: int, task_class: int) -> int:
        """Return an upper bound on how many more tasks of a task class may be placed in a queue.

        The bound holds for any choice of victims.
        """

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """Return the sort key of a lending queue; the reverse queue order breaks ties."""


class Preempting(Protocol):
    """A plugin whose limit on a queue rises when running tasks of the queue are evicted."""

    def most_preempted(self, queue: int, task_class: int, freed: Sequence[int]) -> int:
        """Return an upper bound on `max_tasks` after evictions in the queue.

        `freed` (R,) is the total request of all tasks that may be evicted.
        """


class VictimReach(Protocol):
    """A plugin that can list all running tasks that the plugin may allow as victims."""

    def preempt_reach(self, gang: int) -> Bool | None:
        """Return a mask (V,) of the tasks that `preemptable` may return, or None for all tasks."""

    def reclaim_reach(self, gang: int) -> Bool | None:
        """Return a mask (V,) of the tasks that `reclaimable` may return, or None for all tasks."""


class GangPreemption(Protocol):
    """A plugin that allows different victims in the actions `gangpreempt` and `gangreclaim`."""

    def gang_preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return the victims that a gang may evict in `gangpreempt`, or None to abstain."""

    def gang_reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        """Return the victims that a gang may evict in `gangreclaim`, or None to abstain."""


class TaskOrder(Protocol):
    """A plugin that orders the tasks of a gang."""

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        """Return the task order as (entry index, number of tasks) pairs, or None for no order.

        The pairs have the format of `GangShape.sequence`.
        """


class LiveScoring(Protocol):
    """A plugin whose node scores depend on earlier placements of the session."""

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        """Return a function whose scores are added to the scores of `Rule.scorer`, or None.

        The function maps a mask (N,) of nodes that fit a task to scores (N,). Tasks of an entry
        with such a function are placed one at a time.
        """


class PlacementRecord(Protocol):
    """A plugin that records placements per entry (equal tasks of a gang), not per task class."""

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        """Record a placement of tasks of one entry."""

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Record that placed tasks are only nominated and do not run yet."""


class GreedyPlugins:
    """The plugins of a policy, in policy order, as the greedy pipeline calls them.

    Attributes
    ----------
    orders_by_class
        Whether all gangs of a class have the same sort key until a task of one of them is placed.
    reads_labels
        Whether a plugin reads labels, so that results may differ between gangs of a class.

    """

    def __init__(self, problem: Problem, rules: RuleSet, ledger: Ledger) -> None:
        opened = [(a, a.rule.open(problem, ledger)) for a in rules.enforced]
        self._open = [(a, greedy) for a, greedy in opened if greedy is not None]
        self._methods: dict[str, list[Any]] = {
            name: [
                getattr(greedy, name)
                for active, greedy in self._open
                if _overrides(greedy, name)
                and (name not in _SWITCH or _SWITCH[name] in active.switches)
            ]
            for name in (*_SWITCH, *_UNSWITCHED)
        }
        self._tiers: dict[str, list[list[Any]]] = {}
        for name, (switch, stand_in) in _VOTES.items():
            votes = [
                (active.tier, getattr(greedy, name if _overrides(greedy, name) else stand_in))
                for active, greedy in self._open
                if switch in active.switches
                and (_overrides(greedy, name) or (stand_in and _overrides(greedy, stand_in)))
            ]
            by_tier = groupby(votes, key=lambda vote: vote[0])
            self._tiers[name] = [[vote for _, vote in tier] for _, tier in by_tier]
        self._reaches = {
            action: [
                [find for vote in tier if (find := getattr(vote.__self__, name, None)) is not None]
                for tier in self._tiers[_VOTE_OF_ACTION[action]]
            ]
            for action, name in _REACH_OF_ACTION.items()
        }
        self._live_scorers: dict[tuple[int, int], list[LiveScorer]] = {}
        self._add_later_methods(problem, ledger)
        self.orders_by_class = all(
            greedy.orders_by_class
            for active, greedy in self._open
            if _overrides(greedy, "gang_key") and Switch.JOB_ORDER in active.switches
        )
        self.reads_labels = any(greedy.reads_labels for _, greedy in self._open)

    def _add_later_methods(self, problem: Problem, ledger: Ledger) -> None:
        """Add the filters that assume that all terminating pods have terminated.

        A custom plugin without `fits_later` is opened a second time, for the problem without
        terminating pods.
        """
        later: dict[Greedy, Greedy] = {}
        for active, greedy in self._open:
            if active.origin and _overrides(greedy, "fits") and not greedy.fits_later:
                after = without_residents(problem, ())
                opened = None if after is problem else active.rule.open(after, ledger)
                if opened is not None:
                    later[greedy] = opened
        self._methods["fits_later"] = [
            partial(later[fits.__self__].fits, later=False)
            if fits.__self__ in later
            else partial(fits, later=True)
            for fits in self._methods["fits"]
        ]
        self._methods["fits"] = [partial(fits, later=False) for fits in self._methods["fits"]]
        for name in ("record_placement", "record_tasks"):
            copies = (greedy for greedy in later.values() if _overrides(greedy, name))
            self._methods[name] += [getattr(greedy, name) for greedy in copies]

    def is_starving(self, gang: int) -> bool:
        """Return whether tasks may be evicted for a gang; the first tier that votes decides."""
        return bool(self._tiers["is_starving"]) and all(
            method(gang) for method in self._tiers["is_starving"][0]
        )

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """Return the sort key of a lending queue; the queue with the smallest key comes first."""
        return tuple(
            part for key in self._methods["victim_queue_key"] for part in key(queue, claimer)
        )

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        """Return whether all plugins let a queue reclaim capacity for a task of a task class."""
        return all(method(queue, task_class) for method in self._methods["may_reclaim"])

    def most_reclaimed(self, queue: int, task_class: int) -> int:
        """Return an upper bound on `max_tasks` that holds for any choice of victims."""
        bounds = (bound(queue, task_class) for bound in self._methods["most_reclaimed"])
        return min(bounds, default=int(UNLIMITED))

    def most_preempted(self, queue: int, task_class: int, freed: Sequence[int]) -> int:
        """Return an upper bound on `max_tasks` after evictions that free at most `freed` (R,)."""
        bounds = (bound(queue, task_class, freed) for bound in self._methods["most_preempted"])
        return min(bounds, default=int(UNLIMITED))

    def find_allowed_victims(self, action: str, gang: int, task_class: int, victims: I64) -> I64:
        """Return the victims in `victims` that plugins let a gang evict in an action.

        A tier of plugins allows the victims that all its voting plugins allow. The first tier of
        plugins that allows a victim determines the result. If no tier of plugins allows a victim,
        the result is empty.
        """
        for tier in self._tiers[_VOTE_OF_ACTION[action]]:
            named: I64 | None = None
            for method in tier:
                found: I64 | None = method(gang, task_class, victims)
                if found is not None:
                    if named is not None:
                        common = set(found.tolist())
                        found = np.array([v for v in named.tolist() if v in common], np.int64)
                    named = found
                    if not len(named):
                        break  # A victim needs the votes of all plugins of the tier.
            if named is not None and len(named):
                return named
        return victims[:0]

    def find_possible_victims(self, action: str, gang: int) -> Bool | None:
        """Return a mask (V,) of the tasks that `find_allowed_victims` may return in an action.

        The action is `preempt` or `reclaim`. Returns None if some tier of plugins may vote for
        every task.
        """
        reach: Bool | None = None
        for tier in self._reaches[action]:
            found = _intersect_masks([find(gang) for find in tier])
            if found is None:
                return None
            reach = found if reach is None else reach | found
        return reach

    def movable(self, victims: I64) -> I64:
        """Return the victims in `victims` that every plugin allows to move."""
        for method in self._methods["movable"]:
            victims = method(victims)
        return victims

    @property
    def queue_key_reach(self) -> KeyReach:
        """Whether placements in other queues can change the sort key of a queue."""
        reaches = [
            greedy.queue_key_reach for a, greedy in self._open if Switch.QUEUE_ORDER in a.switches
        ]
        return max(reaches, default=KeyReach.OWN)

    def queue_key(self, queue: int) -> tuple[float, ...]:
        """Return the sort key of a queue; queues with smaller keys come first."""
        return tuple(part for key in self._methods["queue_key"] for part in key(queue))

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """Return the sort key of a gang within its queue; gangs with smaller keys come first."""
        return tuple(part for key in self._methods["gang_key"] for part in key(gang))

    def waves(self, gangs: Iterable[int]) -> Iterator[list[int]]:
        """Yield the gangs that plugins place before all others, then the other gangs."""
        rest = list(gangs)
        first = [gang for method in self._methods["comes_first"] for gang in filter(method, rest)]
        if first:
            leads = set(first)
            first = [gang for gang in rest if gang in leads]
            rest = [gang for gang in rest if gang not in leads]
        yield from (wave for wave in (first, rest) if wave)

    def is_overused(self, queue: int) -> bool:
        """Return whether a plugin excludes a queue from further allocation in this session."""
        return any(method(queue) for method in self._methods["is_overused"])

    def max_tasks(self, queue: int, task_class: int) -> int:
        """Return how many more tasks of a task class fit within the plugins' limits on a queue."""
        least = int(UNLIMITED)
        for bound_of in self._methods["max_tasks"]:
            least = min(least, bound_of(queue, task_class))
        return least

    def may_start(self, gang: int) -> bool:
        """Return whether all plugins let a gang start."""
        return all(method(gang) for method in self._methods["may_start"])

    def all_rules_hold(self, gang: int) -> bool:
        """Return whether a gang's placements satisfy every rule."""
        return all(method(gang) for method in self._methods["holds"])

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """Return a mask (N,) of nodes that fit one more task of a gang, or None for all nodes.

        If `later` is True, all terminating pods are assumed to have terminated. `gang` is -1 if the
        nodes must fit a task of any gang.
        """
        methods = self._methods["fits_later" if later else "fits"]
        return _intersect_masks(method(gang, task_class) for method in methods)

    def record_eviction(self, victim: int, sign: int) -> None:
        """Record the eviction (`sign` 1) of a running task, or the rollback (`sign` -1)."""
        for note in self._methods["record_eviction"]:
            note(victim, sign)

    def task_runs(self, gang: int) -> Sequence[tuple[int, int]] | None:
        """Return a gang's task order from the first plugin that defines one, or None."""
        found = (runs(gang) for runs in self._methods["task_runs"])
        return next((runs for runs in found if runs is not None), None)

    def live_scorers(self, gang: int, entry: int) -> list[LiveScorer]:
        """Return the scorers of an entry whose scores depend on earlier placements."""
        if not self._methods["live_scorer"]:
            return []
        if (gang, entry) not in self._live_scorers:
            found = (scorer(gang, entry) for scorer in self._methods["live_scorer"])
            self._live_scorers[gang, entry] = [scorer for scorer in found if scorer is not None]
        return self._live_scorers[gang, entry]

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Record that tasks of a task class are placed on nodes."""
        for note in self._methods["record_placement"]:
            note(gang, task_class, nodes, counts)

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        """Record that tasks of one entry (a gang's equal tasks) are placed on nodes."""
        for note in self._methods["record_tasks"]:
            note(gang, entry, nodes, counts)

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Record that placed tasks are only nominated."""
        for note in self._methods["record_nomination"]:
            note(task_class, nodes, counts)

    def may_enqueue(self, gang: int) -> bool:
        """Return whether plugins let a gang be enqueued.

        The first tier of plugins that permits or rejects the gang decides; within a tier, a
        rejection prevails.
        """
        for tier in self._tiers["enqueue_vote"]:
            votes = [vote(gang) for vote in tier]
            if min(votes) < 0:
                return False
            if max(votes) > 0:
                return True
        return True

    def record_enqueued(self, gang: int) -> None:
        """Record that a gang has been enqueued."""
        for note in self._methods["record_enqueued"]:
            note(gang)


def _overrides(greedy: Greedy, method: str) -> bool:
    return getattr(type(greedy), method, None) is not getattr(Greedy, method, None)


def _intersect_masks(masks: Iterable[Bool | None]) -> Bool | None:
    allowed: Bool | None = None
    for nodes in masks:
        if nodes is not None:
            allowed = nodes if allowed is None else allowed & nodes
    return allowed
