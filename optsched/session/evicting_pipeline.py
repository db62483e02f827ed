"""The greedy pipeline with evictions, whose plan competes with the solver's plans.

This pipeline does not depend on the solver's plans, so it can run while the solver process works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.session.session_clock import SessionClock


@dataclass(frozen=True)
class EvictingPipeline:
    """The greedy pipeline with evictions; it runs when `decisions` is first read."""

    problem: Problem
    rules: RuleSet
    options: GreedyOptions
    clock: SessionClock

    @cached_property
    def decisions(self) -> Decisions:
        """The decisions of the greedy pipeline with evictions."""
        options = replace(self.options, gated=True, is_late=self.clock.deadline())
        with self.clock.measure_overlapped_greedy():
            return run_greedy(self.problem, self.rules, options)
