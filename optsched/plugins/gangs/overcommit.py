"""How much more than the cluster holds may be enqueued.

Mathematics: models/formulation/overcommit.md. Volcano: `pkg/scheduler/plugins/overcommit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.enqueueing import enqueued_gangs, least_resources

if TYPE_CHECKING:
    from optsched.plugins.ledger import Ledger
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class Overcommit(Rule):
    """Enqueue while minResources of what waits in the queue fit total · factor − used."""

    name = "overcommit"

    factor: float = 1.2

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Budget(problem, self.factor)


class _Budget(Greedy):
    def __init__(self, problem: Problem, factor: float) -> None:
        least = least_resources(problem)
        self._least = least
        spare = np.floor(problem.total * factor) - problem.used[problem.ready].sum(axis=0)
        spare -= least[enqueued_gangs(problem)].sum(axis=0)
        self._spare: list[float] = spare.tolist()

    def enqueue_vote(self, gang: int) -> int:
        pairs = zip(self._least[gang].tolist(), self._spare, strict=True)
        return 1 if all(asked <= spare for asked, spare in pairs if asked) else -1

    def record_enqueued(self, gang: int) -> None:
        pairs = zip(self._spare, self._least[gang].tolist(), strict=True)
        self._spare = [spare - asked for spare, asked in pairs]
