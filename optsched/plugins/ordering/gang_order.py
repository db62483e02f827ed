"""Rules that order gangs: by priority, waiting time and estimated runtime.

Mathematics: models/formulation/priority.md, models/formulation/sla.md,
models/formulation/shortest_remaining.md and models/formulation/finish_time_fair.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.reservation import gang_end_ms
from optsched.plugins.declaration import Argument, Kind, LevelKind, Plugin, read_duration_ms
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.objectives.gang_levels import Started
from optsched.problem.running import running_tasks
from optsched.units import PODS, DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.accounting import Ledger
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


class Priority(Rule):
    """Orders gangs by the value of their PriorityClass, highest first."""

    name = "priority"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        priority: list[int] = problem.priority.tolist()
        num_pending: list[int] = np.diff(problem.task_start).tolist()
        plugin = _PriorityOrder if len(set(priority)) > 1 else _PriorityVotes
        return plugin(problem, ledger, priority, num_pending)


@dataclass(eq=False)
class _PriorityVotes(Greedy):
    """Votes on victims by the priorities of gangs and tasks.

    `_priority` (G,) is the priority and `_num_pending` (G,) the number of pending tasks of each
    gang.
    """

    _problem: Problem
    _ledger: Ledger
    _priority: Sequence[int]
    _num_pending: Sequence[int]

    def is_starving(self, gang: int) -> bool:
        return self._ledger.gang_placed[gang] < self._num_pending[gang]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `Preemption`. A victim has a lower priority than the preempting gang or task."""
        problem, running = self._problem, running_tasks(self._problem)
        start, end = problem.task_start[gang], problem.task_start[gang + 1]
        mine = [t.priority for t in problem.tasks_of(gang)]
        is_same_class = problem.task_class[start:end] == task_class
        own = max(
            (p for p, is_same in zip(mine, is_same_class.tolist(), strict=True) if is_same),
            default=0,
        )
        return np.array(
            [
                v
                for v in victims.tolist()
                if (
                    running.tasks[v].priority < own
                    if running.gang_of[v] == gang
                    else problem.priority[running.gang_of[v]] < problem.priority[gang]
                )
            ],
            np.int64,
        )

    def preempt_reach(self, gang: int) -> Bool:
        problem, gang_of = self._problem, running_tasks(self._problem).gang_of
        reach: Bool = problem.priority[gang_of] < problem.priority[gang]
        reach |= gang_of == gang
        return reach

    def gang_reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `GangPreemption`. All victims are allowed, because reclaim ignores priorities."""
        return victims


class _PriorityOrder(_PriorityVotes):
    orders_by_class = True

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return (-float(self._priority[gang]),)


PRIORITY = Plugin("priority", "gangs of higher priority first", (), lambda _: (Priority(),))


KEPT_BITS = 4
"""Number of leading bits that `truncate_bits` keeps, so that nearly equal values become equal."""


def estimate_runtimes_ms(problem: Problem) -> I64:
    """Return the estimated runtimes (G,) of gangs in milliseconds.

    The runtime is 0 for finished gangs and for gangs without an estimate.
    """
    found = np.zeros(problem.num_gangs, np.int64)
    for gang in problem.open_gangs.tolist():
        found[gang] = gang_end_ms(problem.snapshot.gangs[gang], 0) or 0
    return found


def truncate_bits(values: I64) -> I64:
    """Return values truncated to `KEPT_BITS` leading bits; a value shrinks by less than 1/8."""
    _, exponent = np.frexp(np.maximum(values, 1).astype(np.float64))
    cut = np.maximum(exponent.astype(np.int64) - KEPT_BITS, 0)
    kept: I64 = (values >> cut) << cut
    return kept


def build_start_levels(
    name: str, unit: str, problem: Problem, tiers: Tiers, value: I64
) -> Sequence[Started]:
    """Return levels that sum `value` (G,) over started gangs, one level per priority tier."""
    gangs = problem.open_gangs
    starting = gangs[~problem.shapes.is_started[problem.shape_of[gangs]]]
    counted = np.zeros_like(value)
    counted[starting] = value[starting]
    return [
        Started(f"{name}, {tiers.names[t]}", unit, t, tiers.of, counted)
        for t in np.unique(tiers.of[starting]).tolist()
    ]


@dataclass(eq=False)
class _FixedOrder(Greedy):
    """Orders gangs by sort keys that do not change when tasks are placed."""

    _keys: Sequence[tuple[float, ...]]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return self._keys[gang]


@dataclass(eq=False)
class _DeadlineOrder(_FixedOrder):
    """Orders gangs by the end of their maximum waiting time; gangs without one come last."""

    _now_ms: int

    def enqueue_vote(self, gang: int) -> int:
        has_none, due_ms = self._keys[gang]
        return 1 if not has_none and due_ms <= self._now_ms else 0


WAITING_TIME = ("volcano.sh/sla-waiting-time", "sla-waiting-time")
"""Annotations that set a PodGroup's maximum waiting time; the first one takes precedence."""


@dataclass(frozen=True)
class Sla(Rule):
    """Orders gangs by the end of their maximum waiting time; votes to enqueue overdue gangs.

    Attributes
    ----------
    waiting_ms
        The maximum waiting time of gangs without an annotation in milliseconds; None for no limit.

    """

    name = "sla"

    waiting_ms: int | None = None

    def due_ms(self, gang: Gang) -> int | None:
        """Return the epoch time in ms at which a gang's maximum waiting time ends, or None."""
        waiting = read_waiting_ms(gang)
        waiting = self.waiting_ms if waiting is None else waiting
        return None if waiting is None else gang.created_ms + waiting

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no gang has a maximum waiting time."""
        due = [self.due_ms(gang) for gang in problem.snapshot.gangs]
        if all(d is None for d in due):
            return None
        keys = [(1.0, 0.0) if d is None else (0.0, float(d)) for d in due]
        return _DeadlineOrder(keys, problem.snapshot.taken_ms)


def read_waiting_ms(gang: Gang) -> int | None:
    """Return the maximum waiting time in a gang's annotations; None if it is missing or invalid."""
    text = next((gang.annotations[k] for k in WAITING_TIME if gang.annotations.get(k)), None)
    if text is None:
        return None
    try:
        waiting = parse_duration_ms(text)
    except DurationError:
        return None
    return waiting if waiting > 0 else None


SLA = Plugin(
    "sla",
    "orders gangs by the end of their maximum waiting time",
    (
        Argument(
            "sla-waiting-time",
            Kind.DURATION,
            "",
            "maximum waiting time of gangs without the annotation",
        ),
    ),
    lambda a: (Sla(read_duration_ms(a, "sla-waiting-time")),),
)


YEAR_MS: Final = 365 * 24 * 3_600_000


class ShortestRemaining(Rule):
    """Orders gangs by estimated runtime, shortest first; gangs without an estimate come last."""

    name = "shortest-remaining"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no gang has a runtime estimate."""
        lengths = problem.derived(estimate_runtimes_ms)
        if not lengths.any():
            return None
        return _FixedOrder([(0.0, float(n)) if n else (1.0, 0.0) for n in lengths.tolist()])

    def distinguish_gangs(self, problem: Problem) -> I64 | None:
        """See `Rule`. Gangs with different values in the level are in different gang classes."""
        lengths = problem.derived(estimate_runtimes_ms)
        return count_runs_a_year(lengths) if lengths.any() else None

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[Started]:
        """See `Rule`."""
        value = count_runs_a_year(problem.derived(estimate_runtimes_ms))
        return build_start_levels("shortest", "runs a year", problem, tiers, value)


def count_runs_a_year(lengths: I64) -> I64:
    """Return how often each gang (G,) could run in a year, truncated; 1 without an estimate."""
    often = np.where(lengths > 0, YEAR_MS // np.maximum(lengths, 1), 1)
    return truncate_bits(np.maximum(often, 1))


SHORTEST_REMAINING = Plugin(
    "shortest-remaining",
    "gangs with the shortest estimated runtime first",
    (),
    lambda _: (ShortestRemaining(),),
    levels=(
        LevelKind(
            "shortest",
            "gangs that start, each weighted by how often it could run in a year",
            30,
            ("shortest-remaining",),
        ),
    ),
)


WHOLE: Final = 1000
"""The finish-time ratio 1, in thousandths; all finish-time ratios are stored in thousandths."""

_MOST: Final = 10**9


class FinishTimeFair(Rule):
    """Orders gangs by finish-time ratio, highest first; the ratio is 1 without an estimate."""

    name = "finish-time-fair"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no gang has a runtime estimate."""
        if not problem.derived(estimate_runtimes_ms).any():
            return None
        return _FixedOrder(
            [(-float(ratio),) for ratio in problem.derived(find_finish_time_ratios).tolist()]
        )

    def distinguish_gangs(self, problem: Problem) -> I64 | None:
        """See `Rule`. Gangs with different values in the level are in different gang classes."""
        if not problem.derived(estimate_runtimes_ms).any():
            return None
        return truncate_bits(problem.derived(find_finish_time_ratios))

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[Started]:
        """See `Rule`."""
        value = truncate_bits(problem.derived(find_finish_time_ratios))
        return build_start_levels("finish time", "thousandths", problem, tiers, value)


def find_finish_time_ratios(problem: Problem) -> I64:
    """Return the finish-time ratios (G,) in thousandths, at least 1, for gangs that start now.

    The finish-time ratio is the waiting time plus the runtime, divided by the time that the gang
    would run on a fair share of the cluster.
    """
    length, shapes = problem.derived(estimate_runtimes_ms), problem.shapes
    waited = np.maximum(problem.snapshot.taken_ms - problem.created_ms, 0)
    counted = [i for i, r in enumerate(problem.resources) if r != PODS and problem.total[i]]
    request = np.zeros((len(shapes.shapes) + 1, len(counted)), np.int64)
    requested = shapes.count[:, None] * problem.classes.request[shapes.class_of][:, counted]
    np.add.at(request, shapes.shape_of_entry, requested)
    share = (request / problem.total[counted]).max(axis=1, initial=0.0)
    # A fair share is the cluster's capacity divided by the number of gangs that have tasks. A
    # gang's slowdown is its dominant share divided by the fair share.
    contending = sum(1 for gang in problem.snapshot.gangs if gang.tasks)
    slowdown = contending * share[problem.shape_of]
    alone = np.maximum(length * np.maximum(slowdown, 1.0), 1.0)
    ratio = np.where(length > 0, WHOLE * (waited + length) / alone, WHOLE)
    return np.clip(np.floor(ratio), 1, _MOST).astype(np.int64)


FINISH_TIME_FAIR = Plugin(
    "finish-time-fair",
    "gangs whose end is delayed most, relative to a fair share of the cluster, come first",
    (),
    lambda _: (FinishTimeFair(),),
    levels=(
        LevelKind(
            "finish-time",
            "gangs that start, each weighted by its finish-time ratio",
            20,
            ("finish-time-fair",),
        ),
    ),
)
