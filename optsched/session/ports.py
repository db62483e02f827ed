"""Ports of a session: its dependencies, and the binder of its plans."""

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


class Binder(Protocol):
    """Carries plans out: a Kubernetes cluster, or an emulated one."""

    def carry_out(self, plan: Plan) -> None:
        """Begin to carry out the actions of a plan, in their order."""


class Incidents(Protocol):
    """Keeps what went wrong for whoever looks into it."""

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Keep a snapshot and the plan that broke rules; returns where it was put."""


class Watch(Protocol):
    """Looks on while a session searches."""

    def progressed(self, progress: Progress) -> None:
        """More is known of a level than before."""

    def improved(self, turn: int, incumbent: Callable[[], Incumbent]) -> None:
        """A search has found a better answer; `incumbent` works it out, which may take a while."""
