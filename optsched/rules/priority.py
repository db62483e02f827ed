"""More important gangs come first.

Mathematics: models/formulation/priority.md. Volcano: `pkg/scheduler/plugins/priority`. In the
optimising session priorities set the tiers of the admission levels, see `optsched.problem.tiers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.rules.base import Greedy, Rule

if TYPE_CHECKING:
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger


class Priority(Rule):
    """Gangs in order of the value of their PriorityClass."""

    name = "priority"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return _Order(problem) if len(set(problem.priority.tolist())) > 1 else None


class _Order(Greedy):
    def __init__(self, problem: Problem) -> None:
        self._keys = [(-float(p),) for p in problem.priority.tolist()]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return self._keys[gang]
