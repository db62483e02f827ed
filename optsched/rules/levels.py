"""The levels that a model may list, by name, and the terms that each becomes for one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.decisions import Sense
from optsched.rules.admission import admission_terms, task_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.rules.base import GangTerm, NodeTerm
    from optsched.rules.outcome import Outcome
    from optsched.rules.ruleset import RuleSet


@dataclass(frozen=True, slots=True)
class LevelKind:
    """A level that models may list: what it is for, and how it becomes terms."""

    name: str
    meaning: str
    terms: Callable[[Problem, RuleSet, Tiers], Sequence[GangTerm | NodeTerm]]


def _of_rule(*names: str) -> Callable[[Problem, RuleSet, Tiers], Sequence[GangTerm | NodeTerm]]:
    """The terms of the rules of these names, as far as they are on."""

    def terms(problem: Problem, rules: RuleSet, tiers: Tiers) -> Sequence[GangTerm | NodeTerm]:
        active = [a.rule for a in rules.active if a.rule.name in names]
        return [term for rule in active for term in rule.terms(problem, tiers)]

    return terms


def _node_score(problem: Problem, rules: RuleSet, tiers: Tiers) -> Sequence[NodeTerm]:
    return [NodeScore(rules)] if rules.scoring and len(problem.tasks) else []


_KINDS = (
    LevelKind(
        "guarantee",
        "what queues are guaranteed, ask for and miss",
        _of_rule("guarantee"),
    ),
    LevelKind(
        "admission",
        "gangs that start, from the highest priority to the lowest",
        lambda problem, rules, tiers: admission_terms(problem, tiers),
    ),
    LevelKind(
        "fair-share",
        "what queues and gangs miss of their fair shares",
        _of_rule("proportion", "capacity", "drf"),
    ),
    LevelKind(
        "tasks",
        "tasks beyond the minimum, from the highest priority to the lowest",
        lambda problem, rules, tiers: task_terms(problem, tiers),
    ),
    LevelKind("node-score", "scores of the chosen nodes", _node_score),
)

LEVELS = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, eq=False)
class NodeScore:
    """Scores of the nodes that tasks are put on, as they stand when the session opens."""

    rules: RuleSet
    name: str = "node score"
    unit: str = "points"
    sense: Sense = Sense.MAX

    def node_values(self, problem: Problem) -> I64:
        """See `NodeTerm`; rounded down to whole points."""
        values = np.zeros((len(problem.classes.shapes), problem.num_nodes))
        for c, request in enumerate(problem.classes.request):
            for rule in self.rules.scoring:
                score = rule.node_score(problem, request, problem.used, problem.allocatable)
                if score is not None:
                    values[c] += score
                base = rule.class_score(problem, c)
                if base is not None:
                    values[c] += base
        return np.floor(values).astype(np.int64)

    def value(self, outcome: Outcome) -> int:
        """See `Term`."""
        problem, node_of = outcome.problem, outcome.decisions.node_of
        values = self.node_values(problem)
        placed = outcome.placed
        return int(values[problem.task_class[placed], node_of[placed]].sum())

    def ideal(self, problem: Problem) -> int:
        """See `Term`: every task on its best node."""
        best = self.node_values(problem).max(axis=1, initial=0)
        return int((best * problem.classes.num_pending).sum())


def build_terms(
    problem: Problem, rules: RuleSet, tiers: Tiers, levels: Sequence[str]
) -> list[GangTerm | NodeTerm]:
    """The terms of a list of levels, in order.

    Levels that do not apply to the problem become no term at all.
    """
    return [term for name in levels for term in LEVELS[name].terms(problem, rules, tiers)]
