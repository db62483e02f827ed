"""Masks of plugins that track single nodes (ports, affinity, GPUs) after the decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Greedy
from optsched.plugins.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.plugins.extension_points import Rule
    from optsched.plugins.outcome import Outcome
    from optsched.problem.arrays import I64, Bool

_NOBODY = -1


class PlacedState:
    """The greedy state of some plugins with all placements applied."""

    def __init__(self, outcome: Outcome, rules: Sequence[Rule]) -> None:
        ledger = Ledger(outcome.problem)
        opened = ((rule, rule.open(outcome.problem, ledger)) for rule in rules)
        self._watching = [
            (rule, greedy)
            for rule, greedy in opened
            if greedy is not None and type(greedy).live_mask is not Greedy.live_mask
        ]
        if self._watching:
            self._replay(outcome)

    def watches(self, rule: Rule) -> bool:
        """Return whether a plugin tracks single nodes in this problem."""
        return any(rule is watching for watching, _ in self._watching)

    def _replay(self, outcome: Outcome) -> None:
        problem = outcome.problem
        tasks = np.flatnonzero(outcome.placed)
        classes, nodes = problem.task_class[tasks], outcome.decisions.node_of[tasks]
        for task_class in np.unique(classes).tolist():
            self.placed(task_class, *np.unique(nodes[classes == task_class], return_counts=True))

    def placed(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Record tasks of a class on nodes (m,); negative counts undo placements."""
        for _, greedy in self._watching:
            if type(greedy).record_placement is not Greedy.record_placement:
                greedy.record_placement(_NOBODY, task_class, nodes, counts)

    def masks(self, task_class: int) -> Iterator[tuple[Rule, Bool]]:
        """Yield plugins with the nodes (N,) where they allow one more task of a class."""
        for rule, greedy in self._watching:
            mask = greedy.live_mask(task_class)
            if mask is not None:
                yield rule, mask

    def most_together(self, requests: Sequence[tuple[int, int]], counts: I64) -> int:
        """Return how many tasks fit one after the other, each on the first node that takes it.

        Parameters
        ----------
        requests
            Class and number of the tasks, in order.
        counts
            (len(requests), N) tasks that fit nodes, by resources and masks.

        """
        done: list[tuple[int, I64]] = []
        used = np.zeros(counts.shape[1], np.int64)
        for (task_class, number), room in zip(requests, counts, strict=True):
            for _ in range(number):
                allowed = room > used
                for _, mask in self.masks(task_class):
                    allowed = allowed & mask
                if not allowed.any():
                    break
                node = np.array([allowed.argmax()], np.int64)
                used[node] += 1
                self.placed(task_class, node, np.ones(1, np.int64))
                done.append((task_class, node))
        for task_class, node in reversed(done):
            self.placed(task_class, node, -np.ones(1, np.int64))
        return len(done)
