"""The greedy pipeline in a session: its options, and its plan with evictions.

That plan competes with those of the solver. It depends on none of them, so that it can be made
while the solver's process works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from optsched.problem.nominations import nominated_seats
from optsched.solver.greedy.gang_preemption import GangPreemptionOptions
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from optsched.solver.preemption.sequential.stage import EvictionPlan

if TYPE_CHECKING:
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.session.attempt import Attempt


@dataclass(frozen=True)
class EvictingPipeline:
    """The pipeline with evictions on one problem, run when its plan is first asked for.

    Attributes
    ----------
    tier_of
        (G,) ranks of gangs, which go before the order of plugins; None for that order alone.

    """

    attempt: Attempt
    problem: Problem
    tiers: Tiers
    tier_of: I64 | None

    @cached_property
    def decisions(self) -> Decisions:
        """What it decides."""
        session = self.attempt.session
        options = replace(
            greedy_options(self.attempt, self.problem, self.tiers, EvictionPlan()),
            gated=True,
            is_late=session.clock.deadline(),
            tier_of=self.tier_of,
        )
        with session.clock.measure_aside("greedy"):
            return run_greedy(self.problem, session.policy.rules, options)


def greedy_options(
    attempt: Attempt, problem: Problem, tiers: Tiers, clearing: EvictionPlan
) -> GreedyOptions:
    """Return the options of the greedy pipeline in a round."""
    session = attempt.session
    policy = session.policy
    arguments = {name: dict(values) for name, values in policy.action_arguments}
    plain = GangPreemptionOptions()
    by_gang = {
        name: GangPreemptionOptions(
            int(values.get("maxDomains", plain.max_domains)),
            bool(values.get("allowWholeBundle", plain.allow_whole)),
        )
        for name, values in arguments.items()
    }
    return GreedyOptions(
        actions=policy.actions,
        tier_of=tiers.of if session.is_optimised else None,
        seats={**nominated_seats(problem), **clearing.seats},
        by_gang=by_gang,
        weighs_nodes=bool(arguments.get("preempt", {}).get("enableTopologyAwarePreemption", False)),
        gated=not session.is_optimised,
        late=attempt.reserved.late(problem),
        proposers=policy.proposers,
        faults=session.faults,
    )
