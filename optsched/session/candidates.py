"""The candidate plans of a session, which are compared by the policy's levels.

The solver and the greedy pipeline propose plans with and without evictions. The best candidate that
the verifier accepts becomes the plan. If the verifier rejects a candidate, the gangs at fault are
dropped one after another, and the reduced candidate is compared again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, cmp_to_key
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Sense
from optsched.plugins.extension_points import is_node_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.decisions import Action, LevelResult
    from optsched.plugins.extension_points import AnyLevel
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.session.evicting_pipeline import EvictingPipeline
    from optsched.session.lending import Lending
    from optsched.solver.portfolio import Solution
    from optsched.solver.preemption.sequential.stage import EvictionPlan


@dataclass(frozen=True, eq=False)
class Round:
    """A problem with terminating victims, and its solutions.

    Attributes
    ----------
    problem
        The problem compiled from the snapshot in which the victims are terminating.
    solutions
        The best solution of the round, followed by the greedy solution.
    clearing
        The victims, and the gangs for which their evictions free capacity.
    evicting
        The evicting pipeline on the same problem, or None if the round already has victims.

    """

    problem: Problem
    tiers: Tiers
    levels: Sequence[AnyLevel]
    solutions: tuple[Solution, ...]
    clearing: EvictionPlan
    evicting: EvictingPipeline | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that the session may choose.

    Attributes
    ----------
    actions
        The actions of the plan, or None until they are computed.
    dropped
        Keys of the gangs that repairs dropped from the plan.
    lending
        The loans of the plan, or None if it has none.
    limitations
        The reasons why the plan was preferred to a plan with better admission.

    """

    round: Round
    solution: Solution
    actions: tuple[Action, ...] | None = None
    dropped: tuple[str, ...] = ()
    lending: Lending | None = None
    limitations: tuple[str, ...] = ()

    @property
    def decisions(self) -> Decisions:
        """The decisions of the plan, including loans."""
        return self.solution.decisions if self.lending is None else self.lending.decisions

    @cached_property
    def sections(self) -> tuple[tuple[LevelResult, ...], ...]:
        """The results of the levels over gangs, victims and nodes, in order of importance."""
        over_gangs: list[LevelResult] = []
        over_nodes: list[LevelResult] = []
        for level, result in zip(self.round.levels, self.solution.results, strict=False):
            (over_nodes if is_node_level(level) else over_gangs).append(result)
        return tuple(over_gangs), self.round.clearing.results, tuple(over_nodes)


def rank_candidates(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort candidates from best to worst; equal candidates keep their order."""
    return sorted(candidates, key=cmp_to_key(_compare))


def _compare(one: Candidate, other: Candidate) -> int:
    """Compare candidates on the levels; return a negative number if `one` is better, 0 if equal."""
    for both in zip(one.sections, other.sections, strict=True):
        # The values of levels that are minimised are negated.
        values, others = (
            {r.name: r.value if r.sense is Sense.MAX else -r.value for r in results}
            for results in both
        )
        for name in _merge_names(list(values), list(others)):
            # If a level does not apply to a candidate's problem, its value is 0.
            difference = others.get(name, 0) - values.get(name, 0)
            if difference:
                return difference
    return 0


def _merge_names(names: list[str], others: list[str]) -> list[str]:
    """Merge two lists of level names; the merged list keeps the order of both lists."""
    merged: list[str] = []
    while names and others:
        if names[0] == others[0]:
            merged.append(names.pop(0))
            others.pop(0)
        elif names[0] not in others:
            merged.append(names.pop(0))
        else:
            merged.append(others.pop(0))
    return list(dict.fromkeys([*merged, *names, *others]))
