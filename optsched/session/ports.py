"""Ports of a session: its clock, and the receivers of incidents and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Incumbent, Plan, Progress
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation


class Clock(Protocol):
    """Wall-clock time, and monotonic time for measurements."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Return a time in seconds that never decreases."""


class Incidents(Protocol):
    """Stores plans that the verifier rejects."""

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Store a snapshot and the plan that broke rules; return where they are stored."""


class Watch(Protocol):
    """Receives the progress of a session."""

    def progressed(self, progress: Progress) -> None:
        """Receive a better value or bound of a level."""

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """Receive a better solution of a search.

        `incumbent` computes it, which may take a while.
        """
