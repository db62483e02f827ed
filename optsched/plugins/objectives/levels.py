"""The objective levels that a model may list by name, the node score, and a problem's levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.plugins.declaration import LevelKind
from optsched.plugins.extension_points import Rule, is_node_level
from optsched.plugins.objectives.gang_levels import admission_levels, task_levels
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import ALWAYS, select_overriding
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.plugins.scores.packing import Binpack
from optsched.plugins.shares.tree_fairness import FAIR_SHARE, OverTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.plugins.accounting import Outcome
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


_ENGINE_KINDS = (
    LevelKind("admission", "gangs that start, from the highest priority to the lowest", 40),
    LevelKind("tasks", "tasks beyond the minimum, from the highest priority to the lowest", 60),
    LevelKind("node-score", "scores of the chosen nodes", 90),
)
_KINDS = {kind for plugin in PLUGINS.values() for kind in plugin.levels}

LEVELS = {k.name: k for k in sorted((*_KINDS, *_ENGINE_KINDS), key=lambda k: (k.rank, k.name))}
"""Objective levels by name, in the order that is used if a scheduling model lists no levels."""


MOST_PAIRS = 200_000
"""Maximum number of (task class, node) pairs in a score table that fits into the CPU caches."""


@dataclass(frozen=True, eq=False)
class NodeScore:
    """The sum of the node scores of placed tasks, from node loads at the start of the session."""

    rules: RuleSet
    name: str = "node score"
    unit: str = "points"
    sense: Sense = Sense.MAX

    def node_values(self, problem: Problem) -> I64:
        """See `NodeLevel`. Scores are rounded down to integers."""
        values = np.empty((len(problem.classes.shapes), problem.num_nodes), np.int64)
        for classes in self._chunks(problem):
            values[classes] = self._block(problem, classes)
        return values

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        problem, assigned = outcome.problem, outcome.assigned
        # A table of all classes and nodes would waste memory, because the tasks use only a few
        # nodes.
        pairs = problem.task_class[assigned] * problem.num_nodes + outcome.node_of_coming[assigned]
        pairs, number = np.unique(pairs, return_counts=True)
        task_class, nodes = np.divmod(pairs, max(problem.num_nodes, 1))
        values = self._scores(
            problem, task_class, (problem.used[nodes], problem.allocatable[nodes]), nodes
        )
        return int((np.floor(values).astype(np.int64) * number).sum())

    def ideal(self, problem: Problem) -> int:
        """See `Level`.

        The result is the value of the level if each pending task is on its best node.
        """
        return problem.derived(self._best)

    def _best(self, problem: Problem) -> int:
        if not problem.num_nodes:
            return 0
        pending, total = problem.classes.num_pending, 0
        own = select_overriding(self.rules.node_scorers, "class_score")
        # A task class without a class score has equal scores on nodes with equal loads.
        loads = np.concatenate([problem.used, problem.allocatable], axis=1)
        first_of: dict[bytes, int] = {}
        for node, load in enumerate(loads):
            first_of.setdefault(load.tobytes(), node)
        distinct = np.array(list(first_of.values()), np.int64)
        for classes in self._chunks(problem):
            by_load_only = np.array(
                [all(r.class_score(problem, c) is None for r in own) for c in classes.tolist()],
                np.bool_,
            )
            for chosen, nodes in (
                (classes[by_load_only], distinct),
                (classes[~by_load_only], None),
            ):
                if len(chosen):
                    best = np.maximum(self._block(problem, chosen, nodes).max(axis=1), 0)
                    total += int((best * pending[chosen]).sum())
        return total

    def _chunks(self, problem: Problem) -> Iterator[I64]:
        """Yield chunks of task classes, each with at most `MOST_PAIRS` (task class, node) pairs."""
        size = max(MOST_PAIRS // max(problem.num_nodes, 1), 1)
        number = len(problem.classes.shapes)
        for first in range(0, number, size):
            yield np.arange(first, min(first + size, number))

    def _block(self, problem: Problem, classes: I64, nodes: I64 | None = None) -> I64:
        """Return the integer scores (k, N) of one task of each class (k,) on every node.

        With `nodes` (m,), return the scores (k, m) on these nodes. If `nodes` is given, the scores
        of the classes must depend only on node loads.
        """
        loads = problem.used, problem.allocatable
        if nodes is not None:
            loads = problem.used[nodes], problem.allocatable[nodes]
        values = self._scores(problem, classes[:, None], loads, None)
        points: I64 = np.floor(values).astype(np.int64)
        return points

    def _scores(
        self, problem: Problem, classes: I64, loads: tuple[I64, I64], nodes: I64 | None
    ) -> F64:
        """Return scores (m,) of m (class, node) pairs, or (k, n) for classes (k, 1) and n nodes.

        If pairs are given, their classes must be in ascending order. `loads` contains the used and
        the allocatable amounts of the nodes.
        """
        used, offered = loads
        values = np.zeros(np.broadcast_shapes(classes.shape, used.shape[:1]))
        rows: list[tuple[int, slice | int]] = []
        if classes.ndim > 1:
            rows += ((c, row) for row, c in enumerate(classes[:, 0].tolist()))
        else:
            found, start = np.unique(classes, return_index=True)
            ends = [*start[1:].tolist(), len(classes)]
            for c, begin, end in zip(found.tolist(), start.tolist(), ends, strict=False):
                rows.append((c, slice(begin, end)))
        for rule in self.rules.node_scorers:
            block = rule.block_scores if isinstance(rule, Binpack | NodeOrder) else None
            scores = block(problem, classes, used, offered) if block else None
            if scores is not None:
                values += scores
                if type(rule).class_score is Rule.class_score:
                    continue
            for c, at in rows:
                scorer = None if scores is not None else rule.scorer(problem, c)
                if scorer is not None:
                    where = at if nodes is not None else slice(None)
                    values[at] += scorer(used[where], offered[where])
                base = rule.class_score(problem, c)
                if base is not None:
                    values[at] += base if nodes is None else base[nodes[at]]
        return values


def build_levels(
    problem: Problem, rules: RuleSet, tiers: Tiers, names: Sequence[str]
) -> list[AnyLevel]:
    """Return the levels of a problem, most important first.

    A name may stand for several levels, for example one admission level per priority tier. A name
    that does not apply to the problem is ignored. Levels of always-enabled rules precede all levels
    that depend on nodes.
    """
    named: list[AnyLevel] = []
    for kind in (LEVELS[name] for name in names):
        if kind.name == "admission":
            named += admission_levels(problem, tiers)
        elif kind.name == "tasks":
            named += task_levels(problem, tiers)
        elif kind.name == "node-score":
            named += [NodeScore(rules)] if rules.scoring and problem.num_tasks else []
        else:
            defining = [a.rule for a in rules.active if a.rule.name in kind.rules]
            over_time = next((a.rule for a in rules.active if a.rule.name == OverTime.name), None)
            if kind == FAIR_SHARE and over_time is not None:
                # The fair-share levels have this order: deserved shares of queues, fairness over
                # time, `drf`.
                ends = [i for i, rule in enumerate(defining, 1) if rule.name != "drf"]
                defining.insert(max(ends, default=0), over_time)
            named += [level for rule in defining for level in rule.levels(problem, tiers)]
    always = [level for rule in ALWAYS for level in rule.levels(problem, tiers)]
    if not always:
        return named
    first = (i for i, level in enumerate(named) if is_node_level(level))
    at = next(first, len(named))
    return [*named[:at], *always, *named[at:]]
