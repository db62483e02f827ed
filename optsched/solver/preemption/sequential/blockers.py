"""Find running tasks that exclude nodes for a gang, for reasons other than capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Blocker, EvictionGroups, NodeModel
from optsched.plugins.ruleset import VictimRelevance
from optsched.problem.arrays import row_groups
from optsched.problem.running import without_gangs, without_residents
from optsched.solver.preemption.sequential.eviction_problem import BlockedNodes, OtherPlacements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem
    from optsched.solver.preemption.candidate_victims import SessionFacts
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        EvictionState,
        Groups,
    )


class Blockers:
    """Finds the running tasks that exclude nodes for a gang's pending tasks.

    Attributes
    ----------
    alone
        The problem without running gangs, in which possible victims exclude no node.

    """

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._rules = facts.rules
        self._relevance = [r for r in facts.rules.hard if isinstance(r, VictimRelevance)]
        self.alone = without_gangs(facts.problem)
        self._tied: dict[int, bool] = {}
        self._stakes: dict[int, list[I64]] = {}
        self._known: tuple[bytes, Problem] = (b"", facts.problem)

    def find_blocking_tasks(
        self, task_class: I64, state: EvictionState, candidates: Bool, allowed: Bool
    ) -> list[tuple[int, Blocker]]:
        """Return (task class, blocker) pairs; a blocker is a set of candidates that exclude nodes.

        A node is removed from `allowed` if a running task that is not a candidate excludes it.
        """
        found = []
        for c in np.unique(task_class).tolist():
            for rule in self._rules.blocking:
                for blocker in rule.blockers(self._facts.problem, c):
                    may_go = candidates[blocker.tasks]
                    stays = blocker.tasks[~may_go & ~state.evicted[blocker.tasks]]
                    closed = blocker.domain_of[self._facts.running.node_of[stays]]
                    shut = np.isin(blocker.domain_of, closed) & (blocker.domain_of >= 0)
                    allowed[task_class == c] &= ~shut
                    if may_go.any():
                        found.append((c, Blocker(blocker.tasks[may_go], blocker.domain_of)))
        return found

    def group_blocked_nodes(
        self,
        task_class: I64,
        allowed: Bool,
        groups: Groups,
        blocking: Sequence[tuple[int, Blocker]],
    ) -> Iterator[BlockedNodes]:
        """Yield the excluded nodes of each domain, and the victim groups that exclude them."""
        group_of = dict(zip(groups.tasks.tolist(), groups.of_task.tolist(), strict=True))
        for c, blocker in blocking:
            entries = np.flatnonzero(task_class == c)
            open_nodes = np.logical_or.reduce(allowed[entries])
            domains = blocker.domain_of[self._facts.running.node_of[blocker.tasks]]
            for domain in np.unique(domains[domains >= 0]).tolist():
                nodes = np.flatnonzero(open_nodes & (blocker.domain_of == domain))
                here = [
                    group_of[v] for v in blocker.tasks[domains == domain].tolist() if v in group_of
                ]
                if len(nodes):
                    yield BlockedNodes(entries, nodes, np.unique(np.array(here, np.int64)))

    def is_tied(self, task_class: int) -> bool:
        """Return whether placing tasks of a task class depends on other tasks of the node."""
        if task_class not in self._tied:
            self._tied[task_class] = any(
                r.ties_nodes(self._facts.problem, task_class) for r in self._rules.hard
            )
        return self._tied[task_class]

    def stakes(self, task_class: int) -> list[I64]:
        """Return the arrays (V,) of `VictimRelevance.relevant_tasks` for a class, one per rule."""
        if task_class not in self._stakes:
            found = (r.relevant_tasks(self._facts.problem, task_class) for r in self._relevance)
            self._stakes[task_class] = [stakes for stakes in found if stakes is not None]
        return self._stakes[task_class]

    # --- other placements ------------------------------------------------------------------------

    def find_other_placements(
        self, tied_classes: Sequence[int], state: EvictionState, tasks: Bool
    ) -> OtherPlacements | None:
        """Return the placements of other gangs that affect the placements of tied task classes.

        A task class is tied if its placements depend on other tasks of the node. Returns None if no
        task class is tied and no placed task depends on the possible victims `tasks` (V,).
        """
        # Sum the earlier placements of tied task classes by class and node.
        problem, none = self._facts.problem, np.empty(0, np.int64)
        parts = [np.concatenate(each) for each in zip(*state.came, strict=True)]
        classes, nodes, numbers = parts or (none, none, none)
        tied = [c for c in np.unique(classes).tolist() if self.is_tied(c)]
        mine = np.isin(classes, tied)
        pairs, at = np.unique(classes[mine] * problem.num_nodes + nodes[mine], return_inverse=True)
        number = np.bincount(at, weights=numbers[mine], minlength=len(pairs)).astype(np.int64)
        task_class, node = np.divmod(pairs, max(problem.num_nodes, 1))
        others = np.unique(task_class).tolist()
        breakable = [r for r in self._relevance if r.eviction_can_break]
        stakes = (r.relevant_tasks(problem, c) for c in others for r in breakable)
        if not tied_classes and not any(s is not None and (s[tasks] >= 0).any() for s in stakes):
            return None
        relations, shapes = problem.relations, problem.classes.shapes
        terms = sorted({m for c in tied_classes for m in relations.carried_by(shapes[c])})
        # Skip affinity and spread terms whose domains are single nodes, because these terms do not
        # group nodes.
        wide = [m for m in terms if relations.num_domains[m] < problem.num_nodes]
        domains = np.zeros(problem.num_nodes, np.int64)
        if wide:
            domains = row_groups(list(relations.domain_of[wide]))[0]
        key = state.evicted.tobytes()
        if key != self._known[0]:
            running = self._facts.running.tasks
            evicted = {running[v].key for v in np.flatnonzero(state.evicted).tolist()}
            self._known = key, without_residents(problem, evicted)
        return OtherPlacements(task_class, node, number, self._known[1], domains)

    def relate(
        self, eviction: EvictionProblem, model: LinearModel, supplied: I64, leave: I64
    ) -> None:
        """Add the rows of rules on tasks that share a node; the rows hold after the evictions.

        `supplied` (E, N) holds the variable of each entry and node, or -1 where the node is
        excluded. `leave` (K,) holds the variables that count the evictions of each victim group.
        """
        others = eviction.constraints.others
        assert others is not None  # noqa: S101  the caller has checked the value
        shape = (len(self._facts.problem.classes.shapes), self._facts.problem.num_nodes)
        by_class = np.full(shape, -1, np.int64)
        for c in np.unique(eviction.task_class[eviction.is_tied]).tolist():
            mine = supplied[eviction.task_class == c]
            by_class[c] = mine[0] if len(mine) == 1 else _add_sums(model, mine)
        # Add the tasks of other gangs to the variables that count tasks per node.
        at = (others.task_class, others.node)
        own = by_class[at]
        most = np.where(own >= 0, model.bounds[1][own], 0) if len(own) else own
        total = model.add_variables(others.number, others.number + most)
        mixed = np.flatnonzero(own >= 0)
        if len(mixed):
            rows, ones = np.arange(len(mixed)), np.ones(len(mixed), np.int64)
            variables = np.concatenate([total[mixed], own[mixed]])
            number = others.number[mixed]
            model.add_rows(
                np.append(rows, rows), variables, np.append(ones, -ones), lower=number, upper=number
            )
        by_class[at] = total
        groups = eviction.groups
        evictions = EvictionGroups(groups.tasks, groups.of_task, groups.node, leave, groups.count)
        nodes = NodeModel(others.problem, self.alone, model, by_class, evictions)
        for rule in self._rules.hard:
            rule.constrain_nodes(nodes)


def _add_sums(model: LinearModel, variables: I64) -> I64:
    """Add and return variables (N,) that equal the column sums of `variables` (m, N).

    The result is -1 for a column without variables.
    """
    found = variables >= 0
    open_nodes = np.flatnonzero(found.any(axis=0))
    most = np.where(found, model.bounds[1][variables], 0).sum(axis=0)[open_nodes]
    sums = np.full(variables.shape[1], -1, np.int64)
    sums[open_nodes] = model.add_variables(0, most)
    at = np.cumsum(found.any(axis=0)) - 1
    _, node = np.nonzero(found)
    model.add_rows(
        np.concatenate([at[node], np.arange(len(open_nodes))]),
        np.concatenate([variables[found], sums[open_nodes]]),
        np.concatenate([np.ones(len(node), np.int64), -np.ones(len(open_nodes), np.int64)]),
        lower=np.zeros(len(open_nodes), np.int64),
        upper=0,
    )
    return sums
