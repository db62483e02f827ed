"""A cluster on virtual time. Sessions decide, and gangs end after their estimate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from optsched.cluster.reservation import gang_estimate_ms
from optsched.cluster.snapshot import Gang, GangPhase
from optsched.session.session import SessionContext, run_session
from tests.support.small import cluster, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import CapacityReservation, Node, Queue, Snapshot
    from optsched.policy.policy import Policy

ESTIMATE = "optsched.io/running-estimate"


def lasting(which: Gang, seconds: int | None) -> Gang:
    """Return the gang with an estimate of its duration."""
    return which if seconds is None else replace(which, annotations={ESTIMATE: f"{seconds}s"})


@dataclass
class Virtual:
    """The waiting and the running gangs, session by session.

    Attributes
    ----------
    gangs
        The gangs that have arrived and have not ended, by key.
    started_ms
        The start time of each gang.
    bookings
        The reservations of the last session that reserve capacity.

    """

    nodes: Sequence[Node]
    policy: Policy
    around: SessionContext
    queues: Sequence[Queue] = ()
    now_ms: int = 0
    gangs: dict[str, Gang] = field(default_factory=dict)
    started_ms: dict[str, int] = field(default_factory=dict)
    reservations: tuple[CapacityReservation, ...] = ()
    _last: object = None

    def arrive(self, gang: Gang, at_ms: int | None = None) -> None:
        """Create a gang now, or at another instant."""
        created = self.now_ms if at_ms is None else at_ms
        made = replace(gang, created_ms=created, waiting_since_ms=created)
        self.gangs[gang.key] = made

    def end_ms(self, key: str) -> int:
        """Return the end time of a started gang, or 0 if it has ended or has no estimate."""
        length = gang_estimate_ms(self.gangs[key]) if key in self.gangs else 0
        return self.started_ms[key] + length if length else 0

    def snapshot(self) -> Snapshot:
        """Return the current state of the cluster."""
        return cluster(self.nodes, list(self.gangs.values()), self.queues, self.now_ms)

    def step(self, to_ms: int) -> Plan:
        """Advance the time, end finished gangs, and run a session."""
        self.now_ms = to_ms
        for key in list(self.gangs):
            if key in self.started_ms and 0 < self.end_ms(key) <= to_ms:
                del self.gangs[key]
        report = run_session(self.snapshot(), self.policy, self.around, self._last)  # type: ignore[arg-type]
        assert report.trace.violations == ()
        self._last = report.problem
        found = report.problem.snapshot.reservations
        self.reservations = tuple(b for b in found if b.reserves_capacity)
        self._carry_out(report.plan)
        return report.plan

    def _carry_out(self, plan: Plan) -> None:
        for key, gang in self.gangs.items():
            mine = {t.key for t in gang.tasks} & plan.binds.keys()
            if not mine:
                continue
            self.started_ms.setdefault(key, self.now_ms)
            tasks = tuple(
                replace(running(t, plan.binds[t.key]), started_ms=self.now_ms)
                if t.key in mine
                else t
                for t in gang.tasks
            )
            self.gangs[key] = replace(gang, tasks=tasks, phase=GangPhase.RUNNING)
