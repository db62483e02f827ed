"""Nodes that are lent at certain hours to pods that can live with it.

Mathematics: models/formulation/tdm.md. Volcano: `pkg/scheduler/plugins/tdm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.api.truth import is_true
from optsched.api.wellknown import PREEMPTABLE, REVOCABLE_ZONE
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.faces import Face

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.domain.task import TaskShape
    from optsched.problem.arrays import F64, Bool
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.world import World
    from optsched.units import Hours

TOP = 100.0


@dataclass(frozen=True)
class Tdm(Rule):
    """Nodes of a zone take only tasks that may be evicted, only while the zone is open.

    Attributes
    ----------
    zones
        Hours by zone, in UTC; a zone that is not here is never open.

    """

    name = "tdm"
    hard_face = Face.PREDICATE
    mask_lasts = False

    zones: Mapping[str, Hours]

    def is_open(self, zone: str, now_ms: int) -> bool:
        """Whether the nodes of a zone are lent at a moment."""
        return zone in self.zones and now_ms in self.zones[zone]

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        now_ms = world.snapshot.taken_ms
        for task, _, node in world.placements:
            zone = node.labels.get(REVOCABLE_ZONE)
            if not zone:
                continue
            where, lent = f"task {task.key}", f"node {node.name} of zone {zone}"
            if not self.is_open(zone, now_ms):
                yield Violation(self.name, where, f"{lent} is not lent at this hour")
            elif not borrows(task.shape):
                yield Violation(self.name, where, f"{lent} is lent to tasks that allow for it")

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        lent = self._lent(problem)
        allowed = ~lent.any_zone
        if borrows(problem.classes.shapes[task_class]):
            allowed |= lent.open_now
        return None if allowed.all() else allowed

    def refusal(self, problem: Problem, task_class: int) -> str:
        """Whether the hour is in the way or the task itself."""
        if borrows(problem.classes.shapes[task_class]):
            return "did not lend at this hour"
        return "took only tasks that may be evicted"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`: nodes that are lent come first for those who may borrow them."""
        if not borrows(problem.classes.shapes[task_class]):
            return None
        lent = self._lent(problem)
        return np.where(lent.open_now, TOP, 0.0) if lent.open_now.any() else None

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`: only where there is something to put in order."""
        later = [is_true(g.annotations.get(PREEMPTABLE)) for g in problem.snapshot.gangs]
        return _Order(later) if any(later) else None

    def _lent(self, problem: Problem) -> _Lent:
        codes, values = problem.columns.codes(REVOCABLE_ZONE)
        now_ms = problem.snapshot.taken_ms
        is_open = [bool(zone) and self.is_open(zone or "", now_ms) for zone in values]
        return _Lent(
            np.array([bool(zone) for zone in values], np.bool_)[codes],
            np.array(is_open, np.bool_)[codes],
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Lent:
    """(N,) nodes that belong to a zone, and those of a zone that is open."""

    any_zone: Bool
    open_now: Bool


def borrows(shape: TaskShape) -> bool:
    """Whether tasks may go to nodes that are lent, as their annotations say."""
    return any(key == REVOCABLE_ZONE for key, _ in shape.notes)


class _Order(Greedy):
    """Gangs that others may evict come after those that stay."""

    def __init__(self, later: list[bool]) -> None:
        self._later = later

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return (float(self._later[gang]),)
