"""The levels that a model may list, by name, and what each becomes for one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.decisions import Sense
from optsched.rules.admission import admission_levels, task_levels
from optsched.rules.base import NodeLevel
from optsched.rules.over_time import OverTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.rules.base import AnyLevel
    from optsched.rules.outcome import Outcome
    from optsched.rules.ruleset import RuleSet


@dataclass(frozen=True, slots=True)
class LevelKind:
    """A level that models may list: what it is for, and the levels that it is for a problem."""

    name: str
    meaning: str
    levels: Callable[[Problem, RuleSet, Tiers], Sequence[AnyLevel]]


def _of_rule(*names: str) -> Callable[[Problem, RuleSet, Tiers], Sequence[AnyLevel]]:
    """The levels of the rules of these names, as far as they are on."""

    def levels(problem: Problem, rules: RuleSet, tiers: Tiers) -> Sequence[AnyLevel]:
        active = [a.rule for a in rules.active if a.rule.name in names]
        return [level for rule in active for level in rule.levels(problem, tiers)]

    return levels


def _fair_shares(problem: Problem, rules: RuleSet, tiers: Tiers) -> Sequence[AnyLevel]:
    """What queues deserve comes before fairness over time, and that before gangs."""
    named = [a.rule for a in rules.active if a.rule.name in ("proportion", "capacity", "drf")]
    over_time = next((a.rule for a in rules.active if a.rule.name == OverTime.name), None)
    if over_time is not None:
        ends = [i for i, rule in enumerate(named, 1) if rule.name != "drf"]
        named.insert(max(ends, default=0), over_time)
    return [level for rule in named for level in rule.levels(problem, tiers)]


def _node_score(problem: Problem, rules: RuleSet, tiers: Tiers) -> Sequence[NodeLevel]:
    return [NodeScore(rules)] if rules.scoring and len(problem.tasks) else []


_KINDS = (
    LevelKind(
        "guarantee",
        "what queues are guaranteed, ask for and miss",
        _of_rule("guarantee"),
    ),
    LevelKind(
        "shortest",
        "gangs that start, each counted by how often it could run in a year",
        _of_rule("shortest-remaining"),
    ),
    LevelKind(
        "finish-time",
        "gangs that start, each counted by its finish-time ratio",
        _of_rule("finish-time-fair"),
    ),
    LevelKind(
        "admission",
        "gangs that start, from the highest priority to the lowest",
        lambda problem, rules, tiers: admission_levels(problem, tiers),
    ),
    LevelKind(
        "fair-share",
        "what queues and gangs miss of their fair shares",
        _fair_shares,
    ),
    LevelKind(
        "tasks",
        "tasks beyond the minimum, from the highest priority to the lowest",
        lambda problem, rules, tiers: task_levels(problem, tiers),
    ),
    LevelKind(
        "topology",
        "tiers of the network that gangs cross which ask to stay together",
        _of_rule("network-topology"),
    ),
    LevelKind(
        "frag",
        "free GPUs that typical tasks can not use",
        _of_rule("fragmentation"),
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
        """See `NodeLevel`; rounded down to whole points."""
        values = np.empty((len(problem.classes.shapes), problem.num_nodes), np.int64)
        every = np.arange(problem.num_nodes)
        for c in range(len(values)):
            values[c] = self._of_class(problem, c, every)
        return values

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        problem, seated = outcome.problem, outcome.seated
        # Tasks look at a few nodes each: the table of all classes and nodes is never made.
        pairs = problem.task_class[seated] * problem.num_nodes + outcome.seat_of[seated]
        pairs, number = np.unique(pairs, return_counts=True)
        task_class, nodes = np.divmod(pairs, max(problem.num_nodes, 1))
        classes, start = np.unique(task_class, return_index=True)
        ends = np.append(start, len(pairs))[1:]
        total = 0
        for c, begin, end in zip(classes.tolist(), start.tolist(), ends.tolist(), strict=True):
            values = self._of_class(problem, c, nodes[begin:end])
            total += int((values * number[begin:end]).sum())
        return total

    def ideal(self, problem: Problem) -> int:
        """See `Level`: every task on its best node."""
        return problem.derived(self._best)

    def _best(self, problem: Problem) -> int:
        if not problem.num_nodes:
            return 0
        every, pending = np.arange(problem.num_nodes), problem.classes.num_pending.tolist()
        best = (
            number * max(int(self._of_class(problem, c, every).max()), 0)
            for c, number in enumerate(pending)
            if number
        )
        return sum(best)

    def _of_class(self, problem: Problem, task_class: int, nodes: I64) -> I64:
        """(m,) whole points of one task of a class on nodes (m,)."""
        used, offered = problem.used[nodes], problem.allocatable[nodes]
        values = np.zeros(len(nodes))
        for rule in self.rules.scoring:
            scorer = rule.scorer(problem, task_class)
            if scorer is not None:
                values += scorer(used, offered)
            base = rule.class_score(problem, task_class)
            if base is not None:
                values += base[nodes]
        return np.floor(values).astype(np.int64)


def build_levels(
    problem: Problem, rules: RuleSet, tiers: Tiers, names: Sequence[str]
) -> list[AnyLevel]:
    """The levels of a problem, in order; those of the list that do not apply become none.

    A name may stand for several: admission is one level a tier. Those of rules that always hold
    come before all that look at single nodes.
    """
    named = [level for name in names for level in LEVELS[name].levels(problem, rules, tiers)]
    always = [level for rule in rules.always for level in rule.levels(problem, tiers)]
    if not always:
        return named
    first = (i for i, level in enumerate(named) if isinstance(level, NodeLevel))
    at = next(first, len(named))
    return [*named[:at], *always, *named[at:]]
