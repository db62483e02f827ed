"""The actions enqueue, allocate and backfill over one problem.

Order and outcome are Volcano's (`pkg/scheduler/actions`), with ties ended by creation time and
name instead of chance; what Volcano asks task by task is asked here class by class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.cluster import GangPhase
from optsched.engines.greedy.lines import Lines
from optsched.engines.greedy.placing import Placing
from optsched.problem.arrays import UNPLACED
from optsched.problem.decisions import Decisions

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.engines.greedy.lines import Key
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.rules.ruleset import RuleSet

ENQUEUE, ALLOCATE, BACKFILL = "enqueue", "allocate", "backfill"


@dataclass(frozen=True, eq=False)
class GreedyOptions:
    """How the pipeline runs.

    Attributes
    ----------
    actions
        In order; names that the pipeline does not know are passed over.
    tier_of
        (G,) a rank that comes before every rule's order; None for the rules' order alone.
    gated
        Whether a gang in phase Pending takes part only once it has been enqueued, although its
        pods exist.

    """

    actions: tuple[str, ...] = (ENQUEUE, ALLOCATE, BACKFILL)
    tier_of: I64 | None = None
    gated: bool = True


def run_greedy(problem: Problem, rules: RuleSet, options: GreedyOptions) -> Decisions:
    """Decide a problem greedily."""
    pipeline = _Pipeline(problem, rules, options)
    steps: dict[str, Callable[[], None]] = {
        ENQUEUE: pipeline.enqueue,
        ALLOCATE: pipeline.allocate,
        BACKFILL: pipeline.backfill,
    }
    for action in options.actions:
        if action in steps:
            steps[action]()
    return pipeline.decisions()


class _Pipeline:
    def __init__(self, problem: Problem, rules: RuleSet, options: GreedyOptions) -> None:
        self._problem = problem
        self._options = options
        self._placing = Placing(problem, rules)
        self._faces = self._placing.faces
        self._pending = np.array(
            [g.phase is GangPhase.PENDING for g in problem.snapshot.gangs], np.bool_
        )
        self._enqueued = np.zeros(problem.num_gangs, np.bool_)
        self._tier = None if options.tier_of is None else options.tier_of.tolist()

    def _gang_key(self, gang: int) -> Key:
        key = self._faces.gang_key(gang)
        return key if self._tier is None else (self._tier[gang], *key)

    def _lines(self) -> Lines:
        return Lines(self._problem, self._faces.queue_key, self._gang_key)

    # --- enqueue ---------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Let pending gangs have their pods created, as far as rules expect room for them."""
        closed = self._problem.queues.closed
        waiting = [
            i
            for i, gang in enumerate(self._problem.snapshot.gangs)
            if self._pending[i]
            and gang.problem is None
            and (queue := int(self._problem.queue_of[i])) >= 0
            and queue not in closed
        ]
        lines = self._lines()
        lines.fill(waiting)
        for gang in lines.turns(lambda _: False):
            asks = self._problem.snapshot.gangs[gang].min_resources
            if not asks or self._faces.may_enqueue(gang):
                self._enqueued[gang] = True
                self._faces.enqueued(gang)

    # --- allocate --------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Place gangs turn by turn: the minimum at once, then one more task a turn."""
        lines = self._lines()
        lines.fill(self._candidates())
        for gang in lines.turns(self._faces.is_overused):
            if self._take_turn(gang, lines) and self._placing.cursor(gang).has_more:
                lines.rejoin(gang)

    def _candidates(self) -> list[int]:
        gangs = self._problem.open_gangs
        if self._options.gated and ENQUEUE in self._options.actions:
            waits = self._pending & ~self._enqueued
            implicit = [self._problem.snapshot.gangs[g].is_implicit for g in gangs.tolist()]
            gangs = gangs[~waits[gangs] | np.array(implicit, np.bool_)]
        return [int(g) for g in gangs]

    def _take_turn(self, gang: int, lines: Lines) -> bool:
        """Place what a gang may place now; False when it gets nothing."""
        placing = self._placing
        if placing.cursor(gang).is_ready:
            room = len(self._problem.tasks) if lines.is_last(gang) else 1
            placed = placing.grow(gang, room)
        else:
            placed = self._start(gang)
        if not placed or not self._faces.holds(gang):
            placing.undo(gang)
            return False
        placing.keep()
        return True

    def _start(self, gang: int) -> int:
        placing = self._placing
        if not self._faces.may_start(gang) or not placing.could_start(gang):
            return 0
        placing.start(gang)
        return int(placing.cursor(gang).is_ready)

    # --- backfill --------------------------------------------------------------------------------

    def backfill(self) -> None:
        """Place what asks for nothing."""

    def decisions(self) -> Decisions:
        """What has been decided."""
        nominated = np.full(len(self._problem.tasks), UNPLACED, np.int64)
        return Decisions(self._placing.node_of, nominated, self._enqueued)
