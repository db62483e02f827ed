"""The order of gangs by rules, with ties broken by age and name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.solver.greedy.gang_classes import ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.solver.greedy.gang_classes import GangClasses
    from optsched.solver.greedy.plugins import GreedyPlugins

Key = tuple[float, ...]


class GangOrder:
    """The sort keys of gangs, computed once for all gangs of a class without placements."""

    def __init__(
        self,
        problem: Problem,
        plugins: GreedyPlugins,
        gang_classes: GangClasses,
        tier_of: I64 | None = None,
    ) -> None:
        """Set up the order of gangs.

        If the rank `tier_of` (G,) is given, gangs are sorted by rank first, and by rules second.
        """
        self._created_ms = problem.created_ms
        self._born: list[int] = problem.created_ms.tolist()
        self._plugins = plugins
        self._gang_classes = gang_classes
        self._tier_of = tier_of
        self._tier: list[int] | None = None if tier_of is None else tier_of.tolist()
        self._shares = plugins.orders_by_class
        self._known: dict[int, Key] = {}
        self._read: dict[int, tuple[Key, int, int]] = {}

    def key(self, gang: int) -> Key:
        """Return the sort key of a gang; gangs with smaller keys come first."""
        key = self._rule_key(gang)
        return key if self._tier is None else (self._tier[gang], *key)

    def entry(self, gang: int) -> tuple[Key, int, int]:
        """Return the sort key of a gang, followed by creation time and index as tie-breakers."""
        return (self.key(gang), self._born[gang], gang)

    def entry_in_line(self, gang: int) -> tuple[Key, int, int]:
        """Return the tie-broken sort key by which a gang was sorted, or the present key."""
        return self._read[gang] if gang in self._read else self.entry(gang)

    def sorted(self, gangs: Sequence[int]) -> list[int]:
        """Return the given gangs, sorted by sort key."""
        if not self._shares:
            entries = sorted(map(self.entry, gangs))
            self._read.update((entry[2], entry) for entry in entries)
            return [gang for _, _, gang in entries]
        chosen = np.array(gangs, np.int64)
        keys = self._gang_classes.evaluate(chosen, self._rule_key)
        rank = {key: i for i, key in enumerate(sorted(set(keys)))}
        ranks = np.array([rank[key] for key in keys], np.int64)
        columns = [chosen, self._created_ms[chosen], ranks]
        if self._tier_of is not None:
            columns.append(self._tier_of[chosen])
        found: list[int] = chosen[np.lexsort(columns)].tolist()
        return found

    def _rule_key(self, gang: int) -> Key:
        if not self._shares:
            return self._plugins.gang_key(gang)
        number = self._gang_classes.class_now(gang)
        if number == ALONE:
            return self._plugins.gang_key(gang)
        if number not in self._known:
            self._known[number] = self._plugins.gang_key(gang)
        return self._known[number]
