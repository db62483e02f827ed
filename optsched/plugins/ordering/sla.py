"""Longest waiting times: who is due first comes first, and who is overdue is let in.

Mathematics: models/formulation/sla.md. Volcano: `pkg/scheduler/plugins/sla`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.plugins.extension_points import Greedy, Rule
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.plugins.ledger import Ledger
    from optsched.problem.problem import Problem

WAITING_TIME = ("volcano.sh/sla-waiting-time", "sla-waiting-time")
"""Annotations of a PodGroup, the first that is there counts."""


@dataclass(frozen=True)
class Sla(Rule):
    """Gangs in order of when their waiting time is over; permits those that have waited it out.

    Attributes
    ----------
    waiting_ms
        Of gangs that do not say it themselves; None: they may wait for ever.

    """

    name = "sla"

    waiting_ms: int | None = None

    def due_ms(self, gang: Gang) -> int | None:
        """When the waiting time of a gang is over; None where it has none."""
        waiting = own_waiting_ms(gang)
        waiting = self.waiting_ms if waiting is None else waiting
        return None if waiting is None else gang.created_ms + waiting

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`: only where a gang has a waiting time."""
        due = [self.due_ms(gang) for gang in problem.snapshot.gangs]
        if all(d is None for d in due):
            return None
        return _Due(due, problem.snapshot.taken_ms)


def own_waiting_ms(gang: Gang) -> int | None:
    """The waiting time in a gang's annotations; None without one that has a reading."""
    text = next((gang.annotations[k] for k in WAITING_TIME if gang.annotations.get(k)), None)
    if text is None:
        return None
    try:
        waiting = parse_duration_ms(text)
    except DurationError:
        return None
    return waiting if waiting > 0 else None


class _Due(Greedy):
    def __init__(self, due: list[int | None], now_ms: int) -> None:
        self._due = due
        self._now_ms = now_ms

    def gang_key(self, gang: int) -> tuple[float, ...]:
        due = self._due[gang]
        return (1.0, 0.0) if due is None else (0.0, float(due))

    def enqueue_vote(self, gang: int) -> int:
        due = self._due[gang]
        return 1 if due is not None and due <= self._now_ms else 0
