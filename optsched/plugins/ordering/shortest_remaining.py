"""Gangs that end soon come first, as far as they say when they end.

Mathematics: models/formulation/shortest_remaining.md. Gu et al., "Tiresias", NSDI 2019 (shortest
remaining service first).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.ordering.durations import lengths_ms, rounded, starts_by_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ledger import Ledger
    from optsched.plugins.objectives.admission import Started
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

YEAR_MS: Final = 365 * 24 * 3_600_000


class ShortestRemaining(Rule):
    """Gangs in order of how long they will run; those that do not say come last."""

    name = "shortest-remaining"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`: only where a gang says how long it runs."""
        lengths = problem.derived(lengths_ms)
        return _Shortest(lengths) if lengths.any() else None

    def distinguish_gangs(self, problem: Problem) -> I64 | None:
        """See `Rule`: gangs that count differently."""
        lengths = problem.derived(lengths_ms)
        return runs_a_year(lengths) if lengths.any() else None

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[Started]:
        """See `Rule`."""
        value = runs_a_year(problem.derived(lengths_ms))
        return starts_by_value("shortest", "runs a year", problem, tiers, value)


def runs_a_year(lengths: I64) -> I64:
    """(G,) how often a gang could run in a year, rounded; 1 where nobody says how long it runs."""
    often = np.where(lengths > 0, YEAR_MS // np.maximum(lengths, 1), 1)
    return rounded(np.maximum(often, 1))


class _Shortest(Greedy):
    def __init__(self, lengths: I64) -> None:
        self._keys = [(0.0, float(n)) if n else (1.0, 0.0) for n in lengths.tolist()]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return self._keys[gang]
