"""The interfaces of a session: clock, store of rejected plans and receiver of progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Incumbent, Plan, Progress
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation


class Clock(Protocol):
    """A source of wall-clock time, and of monotonic time for measurements."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Return a time in seconds that never decreases."""


class Incidents(Protocol):
    """A store of plans that the verifier rejects."""

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Store a snapshot and a rejected plan; return where they are stored."""


class Watch(Protocol):
    """Receives the progress of a session."""

    def progressed(self, progress: Progress) -> None:
        """Receive a better value of a level, or a better bound on it."""

    def previewed(self, progress: Progress) -> None:
        """Receive the progress of a shorter search, which precedes the recorded search.

        The attribute `turn` of `progress` is 0.
        """

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """Receive a new incumbent (best solution so far) of search number `turn`.

        A call of `incumbent` computes the solution, which may take a while.
        """
