"""Search by trial and error for the victims of a gang that custom rules block.

Models omit custom rules. Tasks of the gang are placed one at a time, each on the node that needs
the fewest victims and passes the rules' verifiers. Finally, unnecessary evictions are undone, and
the verifiers check the entire result. The number of victims is not proved minimal.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.decisions import Evict, Nominate
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched.cluster.decisions import Action
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Nominations
    from optsched.solver.preemption.sequential.compile import EvictionCompiler
    from optsched.solver.preemption.sequential.eviction_problem import EvictionState

MOST_TRIALS = 256
MOST_NODES = 16
MOST_UNITS = 8
"""Maximum numbers of verifications per gang, nodes per task, and evicted units per task."""

_CAPACITY_RULES = frozenset({"fits", "gpu-shares"})


class TrialResult(NamedTuple):
    """The running tasks (v,) to evict, as indices on axis V, and the gang's nominations."""

    victims: I64
    nominations: Nominations


def has_custom_rules(rules: RuleSet) -> bool:
    """Return whether the policy has custom rules that restrict placements."""
    return any(active.origin and active.binds for active in rules.active)


def search_by_trial(
    compiler: EvictionCompiler,
    gang: int,
    state: EvictionState,
    before: Sequence[Action],
    is_over: Callable[[], bool],
    *,
    overrides_budgets: bool = False,
) -> TrialResult | None:
    """Return the victims and nominations for a gang, or None if the search finds none.

    `before` holds the actions for earlier gangs. `is_over` returns whether the time limit is
    reached. With `overrides_budgets`, reclaims within a guarantee override the disruption budgets
    that permit this override.
    """
    victims = compiler.find_possible_victims(gang, state, overrides_budgets=overrides_budgets)
    return _Trial(compiler, gang, state, victims, before, is_over).run()


class _Trial:
    def __init__(
        self,
        compiler: EvictionCompiler,
        gang: int,
        state: EvictionState,
        possible_victims: Bool,
        before: Sequence[Action],
        is_over: Callable[[], bool],
    ) -> None:
        self._problem = problem = compiler.problem
        self._running, self._facts, self._rules = compiler.running, compiler.facts, compiler.rules
        self._gang, self._state, self._before = gang, state, before
        self._key = problem.snapshot.gangs[gang].key
        self._possible_victims = possible_victims
        self._idle = state.future_idle.copy()
        self._nominations: list[tuple[int, int, int]] = []
        self._units: list[list[int]] = []
        self._left = MOST_TRIALS
        self._is_over = is_over

    def run(self) -> TrialResult | None:
        first, last = self._problem.task_start[self._gang : self._gang + 2].tolist()
        tasks = self._problem.tasks[first:last]
        if not self._possible_victims.any() or not all(task.preempts for task in tasks):
            return None
        # Place the tasks of the gang's minimum, or one more task if the gang has reached its
        # minimum.
        counts = self._facts.counts_of(self._gang).tolist()
        shape = self._problem.shapes.shapes[int(self._problem.shape_of[self._gang])]
        number = sum(counts) if shape.need_role else max(shape.need, 1)
        entry_of = [entry for entry, count in enumerate(counts) for _ in range(count)]
        if not all(self._place_task(first + t, e) for t, e in enumerate(entry_of[:number])):
            return None
        if not self._units or not self._passes_verification():
            return None
        for unit in reversed(list(self._units)):
            if self._is_over():
                break
            self._units.remove(unit)
            if not self._passes_verification():
                self._units.append(unit)
        if not self._units:
            return None
        placed = Counter((entry, node) for _, entry, node in self._nominations)
        nominations = tuple((entry, node, k) for (entry, node), k in sorted(placed.items()))
        return TrialResult(np.sort(np.array(self._victims, np.int64)), nominations)

    # --- one task --------------------------------------------------------------------------------

    def _place_task(self, task: int, entry: int) -> bool:
        """Place a task on the node that needs the fewest victims; return whether the task fits."""
        best: tuple[list[list[int]], int] | None = None
        request = self._problem.classes.request[self._problem.task_class[task]]
        # Try nodes that the gang already uses first, then the nodes with the fewest possible
        # victims.
        count = np.bincount(
            self._running.node_of[self._possible_victims], minlength=self._problem.num_nodes
        )
        open_nodes = np.flatnonzero(self._problem.ready & (count > 0))
        order = open_nodes[np.argsort(count[open_nodes], kind="stable")].tolist()
        mine = [node for *_, node in self._nominations]
        for node in list(dict.fromkeys([*mine, *order]))[:MOST_NODES]:
            most = MOST_UNITS if best is None else len(best[0]) - 1
            units = self._fewest(task, node, request, most)
            if units is not None:
                best = (units, node)
            if best is not None and len(best[0]) <= 1:
                break
        if best is None:
            return False
        for unit in best[0]:
            self._units.append(unit)
            np.add.at(self._idle, self._running.node_of[unit], self._running.request[unit])
        self._idle[best[1]] -= request
        self._nominations.append((task, entry, best[1]))
        return True

    def _fewest(self, task: int, node: int, request: I64, most: int) -> list[list[int]] | None:
        """Return the additional victims required to fit a task on a node; None if it cannot fit.

        The victims form at most `most` units. A unit is one task or an entire gang.
        """
        running = self._running
        units: list[list[int]] = []
        waiting = self._list_victim_units(node)
        while len(units) <= most:
            leaving = [v for unit in units for v in unit if running.node_of[v] == node]
            freed = running.request[leaving].sum(axis=0)
            if (self._idle[node] + freed >= request).all() and self._fits_after(task, node, units):
                return units
            unit = next(waiting, None)
            if unit is None:
                return None
            units.append(unit)
        return None

    def _list_victim_units(self, node: int) -> Iterator[list[int]]:
        """Yield units of possible victims on a node, in ascending order of priority and lost work.

        A unit is one task or an entire gang.
        """
        running, evicted = self._running, set(self._victims)
        here = np.flatnonzero(self._possible_victims & (running.node_of == node))
        priority = self._problem.priority[running.gang_of[here]]
        order = here[np.lexsort((here, self._facts.lost[here], priority))]
        for v in order.tolist():
            if v in evicted:
                continue
            # Evict the victim's entire gang if the gang cannot run without the victim.
            number = int(running.gang_of[v])
            gang = self._problem.snapshot.gangs[number]
            mine = np.flatnonzero(running.gang_of == number).tolist()
            stays = [u for u in mine if u not in evicted and not self._state.evicted[u]]
            is_plain = not gang.sub_groups and not gang.role_minimums
            unit = [v]
            if not is_plain or len(stays) <= gang.min_member:
                unit = stays if all(self._possible_victims[u] for u in stays) else []
            if unit:
                evicted.update(unit)
                yield unit

    # --- verification ----------------------------------------------------------------------------

    @property
    def _victims(self) -> list[int]:
        return [v for unit in self._units for v in unit]

    def _actions(
        self, victims: Sequence[int], nominations: Sequence[tuple[int, int]]
    ) -> list[Action]:
        running, problem = self._running, self._problem
        queue = problem.queue_of[self._gang]
        evictions = (
            Evict(t.key, t.node, PREEMPT if running.queue_of[v] == queue else RECLAIM, self._key)
            for v, t in ((v, running.tasks[v]) for v in victims)
        )
        nodes = problem.snapshot.nodes
        come = (Nominate(problem.tasks[t].key, nodes[n].name, self._key) for t, n in nominations)
        return [*self._before, *evictions, *come]

    def _fits_after(self, task: int, node: int, units: Sequence[Sequence[int]]) -> bool:
        """Return whether all placement rules allow a task on a node once `units` are evicted."""
        if self._left <= 0 or self._is_over():
            return False
        self._left -= 1
        victims = [*self._victims, *(v for unit in units for v in unit)]
        nominations = [*((t, n) for t, _, n in self._nominations), (task, node)]
        after = World(self._problem.snapshot, self._actions(victims, nominations)).after
        capacity_rules = (rule for rule in self._rules.hard if rule.name in _CAPACITY_RULES)
        node_rules = self._rules.predicates
        return not any(
            next(iter(rule.verify(world)), None) is not None
            for rules, world in ((capacity_rules, after), (node_rules, after.once_settled))
            for rule in rules
        )

    def _passes_verification(self) -> bool:
        """Return whether all evictions and placements together satisfy all rules."""
        actions = self._actions(self._victims, [(t, n) for t, _, n in self._nominations])
        return not verify_actions(self._problem.snapshot, actions, self._rules)
