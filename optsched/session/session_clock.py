"""Measure the phases of one session, and compute the time that is left for searches."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from optsched.session.warm_start import SEARCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.session.ports import Clock
    from optsched.solver.cpsat.level_model import Limits


LEAST_SHORTER_MS, LEAST_SHORTER_S = 400, 0.4
"""Minimum time limit (ms) and minimum deterministic time (s) of a shorter search."""


class SessionClock:
    """Measures phases and limits searches; if `clock` is None, no time limit applies.

    Parameters
    ----------
    clock
        The source of the current time, or None if the session must not depend on time. If None,
        every phase takes 0 seconds.
    limits
        The limits of one search, before `SessionClock` reduces them to fit the session's period.
    period_ms
        The wall time in milliseconds within which the session aims to end, or None.

    """

    def __init__(self, clock: Clock | None, limits: Limits, period_ms: int | None) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._given_limits = limits
        self._period_ms = period_ms
        self._begun_s = self._now_s()
        self._phase = ""
        self._phase_begun_s = 0.0
        self._longest_s: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the duration of the `with` block to a phase."""
        self._phase, self._phase_begun_s = phase, self._now_s()
        try:
            yield
        finally:
            took_s = self._now_s() - self._phase_begun_s
            self._longest_s[phase] = max(self._longest_s.get(phase, 0.0), took_s)
            self.seconds[phase] = self.seconds.get(phase, 0.0) + took_s
            self._phase = ""

    @contextmanager
    def measure_overlapped_greedy(self) -> Iterator[None]:
        """Record the duration of the `with` block as one run of the greedy pipeline.

        The duration is not added to the phase `greedy`, because the enclosing phase includes it.
        """
        begun_s = self._now_s()
        try:
            yield
        finally:
            took_s = self._now_s() - begun_s
            self._longest_s["greedy"] = max(self._longest_s.get("greedy", 0.0), took_s)

    def _now_s(self) -> float:
        return self._clock.monotonic() if self._clock is not None else 0.0

    @property
    def elapsed_s(self) -> Callable[[], float] | None:
        """A function that returns the seconds since the session began; None if `clock` is None."""
        return None if self._clock is None else lambda: self._now_s() - self._begun_s

    def _elapsed_ms(self) -> int | None:
        return None if self._clock is None else int((self._now_s() - self._begun_s) * 1000)

    @property
    def is_late(self) -> bool:
        """Whether the session has exceeded its period, so that no optional work may begin."""
        elapsed_ms, period_ms = self._elapsed_ms(), self._period_ms
        return elapsed_ms is not None and period_ms is not None and elapsed_ms >= period_ms

    def deadline(self) -> Callable[[], bool]:
        """Set a deadline for a greedy pipeline; return a function that checks if it has passed.

        The deadline is the end of the session's period plus the time limit of one search. If the
        period is over, the deadline is the time of this call plus the same limit.
        """
        elapsed_ms, period_ms = self._elapsed_ms(), self._period_ms
        budget_ms = self.limits.budget_ms
        if elapsed_ms is None or period_ms is None or budget_ms is None:
            return lambda: False
        last_ms = max(period_ms, elapsed_ms) + budget_ms
        return lambda: (self._elapsed_ms() or 0) >= last_ms

    @cached_property
    def _lead_ms(self) -> int:
        """Estimated time in ms to verify and explain the plan: the time before the first search."""
        return self._elapsed_ms() or 0

    def _remaining_ms(self) -> int | None:
        """Return the rest of the period in ms, minus the time to verify and explain the plan.

        Returns None if the session has no clock or no period.
        """
        elapsed_ms = self._elapsed_ms()
        if elapsed_ms is None or self._period_ms is None:
            return None
        return self._period_ms - elapsed_ms - self._lead_ms

    @cached_property
    def limits(self) -> Limits:
        """The limits of one search, which are computed when this property is first read.

        All searches together may take twice the time limit of one search. If the session's period
        is too short for this, each search gets less time, but at least half of its time limit. With
        less time, no gang could preempt pods.
        """
        limits, lead_ms = self._given_limits, self._lead_ms
        if limits.budget_ms is None or self._clock is None or self._period_ms is None:
            return limits
        fair_ms = max((self._period_ms - 2 * lead_ms) // 2, limits.budget_ms // 2)
        return replace(limits, budget_ms=min(limits.budget_ms, fair_ms))

    @property
    def shorter_limits(self) -> tuple[Limits, ...]:
        """The limits of the shorter searches that precede the main search, smallest first.

        The time limit of each search is a tenth of the next search's time limit, and at least
        `LEAST_SHORTER_MS`. If no time limit applies, the deterministic time is divided by ten in
        the same way, with the minimum `LEAST_SHORTER_S`. Once a search has run, the result is
        empty.
        """
        limits = self._given_limits
        found: list[Limits] = []
        if self.seconds.keys() & set(SEARCHES):
            return ()
        if limits.budget_ms is None:
            while (limits := _shorten(limits)).deterministic >= LEAST_SHORTER_S:
                found.insert(0, limits)
        elif self._clock is not None:
            while ((limits := _shorten(limits)).budget_ms or 0) >= LEAST_SHORTER_MS:
                found.insert(0, limits)
        return tuple(found)

    def begin_shorter(self, limits: Limits) -> SessionClock:
        """Return a clock for searches that start now, with the given limits."""
        return SessionClock(self._clock, limits, None)

    def add(self, shorter: SessionClock) -> None:
        """Add the times of a shorter search, and subtract its time limit from the main search's."""
        for phase, seconds in shorter.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        budget_ms, taken_ms = self._given_limits.budget_ms, shorter.limits.budget_ms
        if budget_ms is not None and taken_ms is not None:
            self._given_limits = replace(self._given_limits, budget_ms=budget_ms - taken_ms)

    def placement_limits(self, kept_ms: int) -> Limits:
        """Return the limits of a placement search, which may take at least `least_placement_ms`.

        Every search but the first must leave time to verify the plan within the period. The search
        leaves `kept_ms` milliseconds for later searches.
        """
        limits, left_ms, remaining_ms = self.limits, self.left_ms(kept_ms), self._remaining_ms()
        if left_ms is None or limits.budget_ms is None:
            return limits
        if remaining_ms is not None and self.seconds.keys() & set(SEARCHES):
            left_ms = min(left_ms, remaining_ms)
        left_ms = max(left_ms, self.least_placement_ms, 1)
        return replace(limits, budget_ms=min(limits.budget_ms, left_ms))

    @property
    def least_placement_ms(self) -> int:
        """The minimum time of a placement search in ms: a quarter of a search's time limit."""
        return (self.limits.budget_ms or 0) // 4

    @property
    def joint_budget_ms(self) -> int | None:
        """The joint victim search's time in ms: half a search's time limit; None if unlimited."""
        budget_ms = self.limits.budget_ms
        return None if budget_ms is None else budget_ms // 2

    @property
    def lending_limits(self) -> Limits | None:
        """Limits of a search for loans: a quarter of a search's time; None if no time is left."""
        budget_ms, left_ms = self.limits.budget_ms, self.left_ms()
        if self.is_late:
            return None
        if budget_ms is not None:
            budget_ms = budget_ms // 4 if left_ms is None else min(budget_ms // 4, left_ms)
            if budget_ms <= 0:
                return None
        return replace(self.limits, budget_ms=budget_ms)

    def left_ms(self, kept_ms: int = 0) -> int | None:
        """Return how many ms remain of the time for searches: twice the time limit of one search.

        `kept_ms` milliseconds are reserved for later searches. Returns None if no time limit
        applies.
        """
        if self.limits.budget_ms is None or self._clock is None:
            return None
        spent_s = sum(self.seconds.get(phase, 0.0) for phase in SEARCHES)
        running_s = self._now_s() - self._phase_begun_s if self._phase in SEARCHES else 0.0
        spent_ms = int((spent_s + running_s) * 1000)
        return max(2 * self.limits.budget_ms - spent_ms - kept_ms, 0)

    @property
    def has_time(self) -> bool:
        """Whether the greedy pipeline has time to compute one more plan.

        The greedy pipeline is assumed to take as long as its longest run so far. The rest of the
        session's period must suffice for such a run and for verifying the plan.
        """
        remaining_ms = self._remaining_ms()
        greedy_ms = int(self._longest_s.get("greedy", 0.0) * 1000)
        if remaining_ms is not None and remaining_ms <= greedy_ms:
            return False
        if self.limits.budget_ms is None or self._clock is None:
            return True
        spent_s = self.seconds.get("solve", 0.0) + self.seconds.get("greedy", 0.0)
        return int(spent_s * 1000) < 2 * self.limits.budget_ms


def _shorten(limits: Limits) -> Limits:
    """Return limits with a tenth of the time limit or, without one, of the deterministic time."""
    if limits.budget_ms is None:
        return replace(limits, deterministic=limits.deterministic / 10)
    return replace(limits, budget_ms=limits.budget_ms // 10)
