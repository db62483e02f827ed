"""Certificate bounds that hold for all plans that the policy allows, with any victims.

The solver engines prove bounds for a problem with fixed victims. A bound for fixed victims may not
hold for plans with other victims that the policy permits. This module replaces the bounds of the
solver engines by bounds that hold for all plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import LevelResult, LevelStatus, Sense
from optsched.plugins.eviction.moves import CONSOLIDATE
from optsched.plugins.extension_points import is_node_level
from optsched.solver.preemption.candidate_victims import SessionFacts, find_candidates
from optsched.solver.preemption.sequential.model import ENDED, VICTIMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.problem import Problem
    from optsched.session.candidates import Candidate, Round
    from optsched.solver.preemption.joint.bound import EvictionBounds

GANG_BY_GANG = "victims were chosen gang by gang"
"""Limitation of a certificate: some bound is looser than the engine's bound for fixed victims."""


@dataclass(frozen=True, eq=False)
class EvictionScope:
    """The plans, with and without evictions, for which the bounds of a certificate must hold.

    Attributes
    ----------
    first
        The round without evictions.
    is_open
        Whether the policy permits evicting or moving a pod for any waiting gang.
    bounds
        Bounds for all plans, given the chosen plan's values on the preceding levels, or None if no
        joint model was solved.

    """

    first: Round
    is_open: bool
    bounds: EvictionBounds | None = None

    def limitations(self, results: Sequence[LevelResult]) -> tuple[str, ...]:
        """Return a limitation if a level is not proved optimal and has no bound for all plans."""
        if not self.is_open:
            return ()
        open_levels = [r.name for r in results if r.status is not LevelStatus.OPTIMAL]
        unbounded = any(self._bound_of(name) is None for name in open_levels)
        return (GANG_BY_GANG,) if unbounded else ()

    def _bound_of(self, level: str) -> int | None:
        if self.bounds is None:
            return None
        if level == VICTIMS:
            return self.bounds.victims
        if level == ENDED:
            return self.bounds.whole_gangs
        names = (each.name for each in self.first.levels)
        return dict(zip(names, self.bounds.levels, strict=True)).get(level)

    def values_of(self, chosen: Candidate) -> list[int] | None:
        """Return a candidate's values on the levels of the first round, and its number of victims.

        Returns None if the candidate lacks a level of the first round. Levels over nodes get the
        value 0, because no bound for all plans depends on them.
        """
        reached = {r.name: r.value for r in chosen.sections[0]}
        values = []
        for level in self.first.levels:
            # A maximised level that does not apply to the candidate's problem has the value 0.
            is_zero = is_node_level(level) or level.sense is Sense.MAX
            value = reached.get(level.name, 0 if is_zero else None)
            if value is None:
                return None
            values.append(value)
        victims = [r.value for r in chosen.round.clearing.results if r.name == VICTIMS]
        return [*values, *victims]

    def certify(self, chosen: Candidate) -> tuple[tuple[LevelResult, ...], ...]:
        """Return the results of a candidate's levels, with bounds that hold for all plans.

        The results are those of the levels over gangs, over victims and over nodes. Bounds of
        levels over nodes hold only for the candidate's victims.
        """
        over_gangs, over_victims, over_nodes = chosen.sections
        if not self.is_open:
            over_gangs = tuple(
                r if self._bound_of(r.name) is None else self._tighten(r, r.bound)
                for r in over_gangs
            )
            return over_gangs, over_victims, over_nodes
        # Bounds of the levels over gangs; the bounds hold for any victims.
        ideals: dict[str, int] = {}
        for each in (chosen.round, self.first):
            for level in each.levels:
                if not is_node_level(level):
                    ideal = level.ideal(each.problem)
                    looser = max if level.sense is Sense.MAX else min
                    ideals[level.name] = looser(ideal, ideals.get(level.name, ideal))
        over_gangs = self._with_lost_levels(over_gangs)
        over_gangs = tuple(self._tighten(r, ideals[r.name]) for r in over_gangs)
        over_victims = tuple(self._bound_victims(r, chosen) for r in over_victims)
        return over_gangs, over_victims, over_nodes

    def _with_lost_levels(self, results: Sequence[LevelResult]) -> tuple[LevelResult, ...]:
        """Add a result with value 0 for each maximised level that the results lack.

        A level may be missing because it does not apply to the problem with the candidate's
        victims. The level may apply to plans with other victims, so a proof of optimality must
        include the level.
        """
        found, names = list(results), [r.name for r in results]
        at = 0
        for level in self.first.levels:
            if level.name in names:
                at = names.index(level.name) + 1
            elif level.sense is Sense.MAX and not is_node_level(level):
                lost = LevelResult(level.name, level.unit, Sense.MAX, 0, None, LevelStatus.FEASIBLE)
                found.insert(at, lost)
                names.insert(at, level.name)
                at += 1
        return tuple(found)

    def _tighten(self, result: LevelResult, known: int | None) -> LevelResult:
        """Return the result with the tighter of two bounds: `known` and the joint model's bound."""
        bounds = [b for b in (known, self._bound_of(result.name)) if b is not None]
        return with_bound(result, min(bounds) if result.sense is Sense.MAX else max(bounds))

    def _bound_victims(self, result: LevelResult, chosen: Candidate) -> LevelResult:
        if any(eviction.to for eviction in chosen.round.clearing.evictions):
            return result  # Consolidation has bounded the number of moved pods.
        known = [self._bound_of(result.name) or 0]
        if result.name == VICTIMS and self._needs_victims(chosen):
            known.append(1)
        preemptors = {eviction.preemptor for eviction in chosen.round.clearing.evictions}
        if result.bound is not None and len(preemptors) == 1:
            problem = chosen.round.problem
            waiting = np.flatnonzero(problem.shape_of >= 0).tolist()
            # The bound on the only preemptor's victims holds for all plans only if no other gang
            # waits. Victims for another gang, even one of lower priority, may free nodes or queue
            # shares that the preemptor also needs.
            if {problem.snapshot.gangs[g].key for g in waiting} <= preemptors:
                known.append(result.bound)
        return with_bound(result, max(known))

    def _needs_victims(self, chosen: Candidate) -> bool:
        """Return whether `chosen` beats all plans without evictions on the levels over gangs."""
        best = {r.name: r for r in self.first.solutions[0].results}
        for result in chosen.sections[0]:
            without = best.get(result.name)
            if without is None:
                return False
            if result.value != without.value:
                sign = 1 if result.sense is Sense.MAX else -1
                return without.bound is not None and sign * (result.value - without.bound) > 0
        return False


def with_bound(result: LevelResult, bound: int) -> LevelResult:
    """Return the result with a new bound, and with the status that follows from the bound."""
    if result.value == bound:
        status = LevelStatus.OPTIMAL
    elif result.status is LevelStatus.OPTIMAL:
        status = LevelStatus.FEASIBLE
    else:
        status = result.status
    return replace(result, bound=bound, status=status)


def can_evict(problem: Problem, rules: RuleSet, reach: frozenset[str]) -> bool:
    """Return whether a running pod may be evicted or moved for any gang with pending tasks.

    Only priorities and queues are checked, not shares or nodes, so the result may be True although
    no pod can be evicted.
    """
    if not reach or not len(problem.open_gangs):
        return False
    facts = SessionFacts(problem, rules)
    if CONSOLIDATE in reach and len(facts.running):
        return True
    return bool(find_candidates(facts, reach).any_reason.any())
