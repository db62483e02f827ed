"""Ports of a session: its clock, and what it reports to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Incumbent, Plan, Progress
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation


class Clock(Protocol):
    """Time for people and time for measuring."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class Incidents(Protocol):
    """Keeps plans that the verifier rejects."""

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Keep a snapshot and the plan that broke rules; returns where it was put."""


class Watch(Protocol):
    """Receives the progress of a session."""

    def progressed(self, progress: Progress) -> None:
        """More is known of a level than before."""

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """A search has found a better answer; `incumbent` works it out, which may take a while."""
