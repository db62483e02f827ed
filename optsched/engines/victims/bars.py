"""Running tasks that keep others off nodes, and tasks of one gang that keep apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.engines.victims.bid import Barred
from optsched.problem.later import without_gangs
from optsched.rules.base import Bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.engines.victims.bid import Bid, Groups, State
    from optsched.engines.victims.facts import Facts
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import LinearModel


class Bars:
    """What stands in the way of a bid's entries other than room.

    Attributes
    ----------
    alone
        The problem in which nobody minds those who may have to leave.

    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._rules = facts.rules
        self.alone = without_gangs(facts.problem)

    def in_the_way(
        self, task_class: I64, state: State, candidates: Bool, allowed: Bool
    ) -> list[tuple[int, Bar]]:
        """Candidates in the way of a class; takes nodes from `allowed` where others are."""
        found = []
        for c in np.unique(task_class).tolist():
            for rule in self._rules.masking:
                for bar in rule.bars(self._facts.problem, c):
                    may_go = candidates[bar.tasks]
                    stays = bar.tasks[~may_go & ~state.evicted[bar.tasks]]
                    shut = np.isin(bar.domain_of, self._domains(bar, stays)) & (bar.domain_of >= 0)
                    allowed[task_class == c] &= ~shut
                    if may_go.any():
                        found.append((c, Bar(bar.tasks[may_go], bar.domain_of)))
        return found

    def _domains(self, bar: Bar, tasks: I64) -> I64:
        """(B,) domain of a bar in which each running task stands."""
        domains: I64 = bar.domain_of[self._facts.running.node_of[tasks]]
        return domains

    def barred(
        self, task_class: I64, allowed: Bool, groups: Groups, bars: Sequence[tuple[int, Bar]]
    ) -> Iterator[Barred]:
        """The same by domain and group, for the model."""
        group_of = dict(zip(groups.tasks.tolist(), groups.of_task.tolist(), strict=True))
        for c, bar in bars:
            entries = np.flatnonzero(task_class == c)
            open_nodes = np.logical_or.reduce(allowed[entries])
            domains = self._domains(bar, bar.tasks)
            for domain in np.unique(domains[domains >= 0]).tolist():
                nodes = np.flatnonzero(open_nodes & (bar.domain_of == domain))
                here = [group_of[v] for v in bar.tasks[domains == domain].tolist() if v in group_of]
                if len(nodes):
                    yield Barred(entries, nodes, np.unique(np.array(here, np.int64)))

    def is_tied(self, task_class: int) -> bool:
        """Whether tasks of a class look at what else stands on nodes."""
        return any(r.ties_nodes(self._facts.problem, task_class) for r in self._rules.hard)

    def keep_apart(self, bid: Bid, model: LinearModel, supplied: I64) -> None:
        """Rows on which tasks of the bid's gang may not stand together.

        `supplied` is (E, N) variables of its entries, -1 where none may be.
        """
        shape = (len(self._facts.problem.classes.shapes), self._facts.problem.num_nodes)
        by_class = np.full(shape, -1, np.int64)
        for c in np.unique(bid.task_class[bid.is_tied]).tolist():
            mine = supplied[bid.task_class == c]
            by_class[c] = mine[0] if len(mine) == 1 else _summed(model, mine)
        for rule in self._rules.hard:
            rule.encode_apart(self.alone, model, by_class)


def _summed(model: LinearModel, variables: I64) -> I64:
    """(N,) variables that are the sums of those (m, N) that there are, -1 where there is none."""
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
