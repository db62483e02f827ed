"""Dominant resource fairness among the gangs of a queue.

Mathematics: models/formulation/drf.md. Ghodsi et al., NSDI 2011; Volcano:
`pkg/scheduler/plugins/drf`. A gang's dominant share is the largest of its shares of the cluster's
resources. Gangs with the smallest dominant share come first. A gang is contested if the model
chooses how many of its tasks are placed. The objective level maximises the smallest dominant share
of the contested gangs that run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.plugins.extension_points import Greedy, Rule
from optsched.problem.linear import Expression
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import GangLevel
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

_NEARLY = 1e-6
"""The maximum difference at which two shares count as equal (Volcano: `shareDelta`)."""

GRID = 1000
MOST_APART = 64
"""Maximum number of contested gangs; with more gangs, the rule has no objective level."""


class Drf(Rule):
    """Orders gangs by dominant share, smallest first."""

    name = "drf"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return DrfOrder(problem, ledger)

    def distinguish_gangs(self, problem: Problem) -> Bool | None:
        """See `Rule`."""
        return _find_contested_gangs(problem)

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """See `Rule`.

        The first level is the number of contested gangs that start. The second level is the
        smallest dominant share of the running contested gangs. The two levels are the first stages
        of a lexicographic max-min of dominant shares over all contested gangs, because a gang that
        does not run has the share 0.
        """
        contested = _find_contested_gangs(problem)
        if contested is None:
            return []
        starting = contested & ~_find_started_gangs(problem)
        first = [StartedGangs(starting)] if starting.any() else []
        return [*first, LeastShare(contested)]


def _find_contested_gangs(problem: Problem) -> Bool | None:
    """Return the mask (G,) of gangs for which the model chooses how many tasks are placed.

    Returns None if fewer than 2 or more than `MOST_APART` gangs are contested.
    """
    open_to_choice = np.array([not s.is_rigid for s in problem.shapes.shapes], np.bool_)
    chosen: Bool = np.append(open_to_choice, False)[problem.shape_of]
    return chosen if 2 <= int(chosen.sum()) <= MOST_APART else None


@dataclass(eq=False)
class DrfOrder(Greedy):
    """Orders gangs by dominant share, smallest first (Volcano `drf.go`, JobOrder)."""

    orders_by_class = True

    _problem: Problem
    _ledger: Ledger

    @cached_property
    def _inverse(self) -> list[float]:
        return [1.0 / t if t else 0.0 for t in self._problem.total.tolist()]

    def gang_key(self, gang: int) -> tuple[float, ...]:
        """See `Order`."""
        if self._ledger.holds_nothing(gang):
            return (0.0,)
        return (self._share(self._ledger.gang_used(gang)),)

    def _share(self, amounts: Sequence[int]) -> float:
        pairs = zip(amounts, self._inverse, strict=True)
        return max((used * inverse for used, inverse in pairs), default=0.0)

    def gang_preemptable(self, gang: int, task_class: int, victims: I64) -> None:
        """See `GangPreemption`. As in Volcano, the plugin casts no vote on whole gangs."""

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `Preemption`.

        After the eviction, the share of a victim's gang must be at least the share that the
        preemptor has after the placement of its task.
        """
        running = running_tasks(self._problem)
        pairs = zip(self._ledger.gang_used(gang), self._ledger.request[task_class], strict=True)
        own_share = self._share([used + requested for used, requested in pairs])
        left: dict[int, list[int]] = {}
        chosen = []
        for v in victims.tolist():
            loser = int(running.gang_of[v])
            held = left.setdefault(loser, list(self._ledger.gang_used(loser)))
            left[loser] = rest = [
                a - b for a, b in zip(held, running.request[v].tolist(), strict=True)
            ]
            victim_share = self._share(rest)
            if own_share < victim_share or abs(own_share - victim_share) <= _NEARLY:
                chosen.append(v)
        return np.array(chosen, np.int64)


@dataclass(frozen=True, eq=False)
class StartedGangs:
    """A level that maximises the number of contested gangs that start.

    `starting` (G,) is the mask of contested gangs that have not started yet.
    """

    starting: Bool
    name: str = "contested gangs that start"
    unit: str = "gangs"
    sense: Sense = Sense.MAX

    def ideal(self, problem: Problem) -> int:
        """See `Level`. The result is the level's value if all gangs in `starting` start."""
        return int((self.starting & (problem.shape_of >= 0)).sum())

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        return int((self.starting & (outcome.num_assigned > 0)).sum())

    def encode(self, form: Formulation) -> Expression:
        """Return Σ y[h] over the classes h of the gangs in `starting`.

        y[h] is the number of started gangs of class h.
        """
        gangs = form.gangs
        first = gangs.members[gangs.member_start[:-1]]
        counted = self.starting[first] & (form.start >= 0)
        starts = form.start[counted]
        return Expression.of(starts, np.ones_like(starts))


@dataclass(frozen=True, eq=False)
class LeastShare:
    """A level that maximises the smallest dominant share of the running contested gangs.

    `contested` (G,) is the mask of contested gangs. Shares are rounded down to thousandths.
    """

    contested: Bool
    name: str = "least dominant share"
    unit: str = f"1/{GRID} of the cluster"
    sense: Sense = Sense.MAX

    def ideal(self, problem: Problem) -> int:
        """See `Level`."""
        return GRID

    def value(self, outcome: Outcome) -> int:
        """See `Level`. The value is `GRID` if no contested gang runs."""
        problem = outcome.problem
        runs = (outcome.num_assigned > 0) | _find_started_gangs(problem)
        least, step = GRID, _find_step_sizes(problem)
        for gang in np.flatnonzero(self.contested & runs).tolist():
            held = problem.rows[gang].allocated
            used = np.array([held.get(r, 0) for r in problem.resources], np.int64)
            start, end = problem.task_start[gang], problem.task_start[gang + 1]
            classes = problem.task_class[start:end][outcome.assigned[start:end]]
            used += problem.classes.request[classes].sum(axis=0)
            least = min(least, int((used // step).max()))
        return least

    def encode(self, form: Formulation) -> Expression:
        """Return the variable t, the smallest share of the running contested gangs.

        For each running contested gang g, used[g, r] ≥ step[r] · t holds for at least one resource
        r. used[g, r] is the usage of the gang, and step[r] is a thousandth of the cluster total. A
        0-1 variable per gang and resource selects a resource for which the constraint is enforced.
        """
        model, gangs, problem = form.model, form.gangs, form.problem
        (least,) = model.add_variables(0, GRID)
        step = _find_step_sizes(problem)
        for h in range(len(gangs.shape_of)):
            gang = int(gangs.members[gangs.member_start[h]])
            if not self.contested[gang]:
                continue
            entries = gangs.gang_class_of == h
            request = problem.classes.request[gangs.class_of]
            held = problem.rows[gang].allocated
            holds = np.array([held.get(r, 0) > 0 for r in problem.resources], np.bool_)
            leads = []
            for r in np.flatnonzero(request[entries].any(axis=0) | holds).tolist():
                (lead,) = model.add_variables(0, 1)
                leads.append(int(lead))
                use = form.placed(request[:, r], entries)
                big = GRID * int(step[r])
                model.add_rows(
                    0,
                    np.concatenate([use.variables, [least, lead]]),
                    np.concatenate([use.coefficients, [-step[r], -big]]),
                    lower=-held.get(problem.resources[r], 0) - big,
                )
            start = int(form.start[h])
            if start < 0:
                model.add_rows(0, leads, 1, lower=1)
            else:
                factors = np.append(np.ones(len(leads), np.int64), -1)
                model.add_rows(0, [*leads, start], factors, lower=0)
        return Expression.of([least], [1])


def _find_step_sizes(problem: Problem) -> I64:
    """Return the amount (R,) of each resource that is one step of the grid of shares."""
    return np.maximum(problem.total // GRID, 1)


def _find_started_gangs(problem: Problem) -> Bool:
    runs: Bool = np.append(problem.shapes.is_started, False)[problem.shape_of]
    return runs
