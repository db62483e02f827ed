"""Gang classes: groups of gangs that, for the pipeline, differ only in age and name.

A result for one gang holds for its whole class until a pod of the class is placed or evicted. If a
gang failed to start and nothing has changed since, the pipeline skips the other gangs of its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

import numpy as np

from optsched.api.wellknown import RUNNING_ESTIMATE, USER
from optsched.cluster.bounded_cache import SharedObjects
from optsched.plugins.custom.extender import Extender
from optsched.problem.arrays import first_positions
from optsched.problem.gang_columns import group_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow
    from optsched.solver.greedy.placement import PlacementState

Value = TypeVar("Value")

ALONE: Final = -1
"""The class number of every gang that shares no results with other gangs."""

_OF_ONE_GANG: Final = frozenset({RUNNING_ESTIMATE, USER})
"""Gang annotations that no rule reads to decide which gangs start or which tasks are evicted."""


class _Traits(NamedTuple):
    """The properties of a gang, besides its gang shape, that rules read."""

    namespace: str
    queue: str
    priority: int
    min_member: int
    min_role: tuple[tuple[str, int], ...]
    is_loose: bool
    annotations: tuple[tuple[str, str], ...]


class _Identity:
    """The traits of a gang, compared by identity, because comparing their values is slower."""

    def __init__(self, traits: _Traits) -> None:
        self.traits = traits


IDENTITIES: Final[SharedObjects[_Identity]] = SharedObjects(_Identity)


def number_classes(problem: Problem) -> list[int]:
    """Return the class number (G,) of each gang.

    The class number is `ALONE` for gangs that hold resources or have ready pods, and for gangs that
    the session cannot place.
    """
    columns, shape_of = problem.gang_columns, problem.shape_of
    is_shared = (shape_of >= 0) & (problem.num_ready == 0) & ~columns.flags(_has_claims)
    identity, _ = columns.codes(_identity_of_row, is_shared)
    class_of = np.full(problem.num_gangs, ALONE, np.int64)
    pairs = identity * len(problem.shapes.shapes) + shape_of
    class_of[is_shared], _ = group_values(pairs[is_shared])
    return class_of.tolist()


def _has_claims(row: GangRow) -> bool:
    return bool(row.claimed)


def _identity_of_row(row: GangRow) -> _Identity:
    return row.gang.derived(_identity_of)


def _identity_of(gang: Gang) -> _Identity:
    annotations = (item for item in gang.annotations.items() if item[0] not in _OF_ONE_GANG)
    traits = _Traits(
        namespace=gang.namespace,
        queue=gang.queue,
        priority=gang.priority,
        min_member=gang.min_member,
        min_role=gang.min_role,
        is_loose=gang.is_loose,
        annotations=tuple(sorted(annotations)),
    )
    return IDENTITIES.intern(traits)


class GangClasses:
    """The gang classes of a session, and the classes in which a gang failed to start.

    Attributes
    ----------
    class_of
        (G,) class number of each gang at the start of the session; `ALONE` for all gangs if a
        custom plugin or an extender is active.
    few
        Up to this number of classes, each class is tried, and no bounds are computed.

    """

    few: ClassVar[int] = 32

    def __init__(self, placing: PlacementState, rules: RuleSet) -> None:
        problem = placing.problem
        # A custom plugin or an extender may read any field of a gang, so gangs share no results.
        self.is_known = not any(a.origin or a.rule.name == Extender.name for a in rules.active)
        self.class_of = (
            problem.derived(number_classes) if self.is_known else [ALONE] * problem.num_gangs
        )
        self._numbers = np.array(self.class_of, np.int64)
        self._num_classes = int(self._numbers.max(initial=ALONE)) + 1
        self._placing = placing
        self._touched = placing.ledger.touched
        self._failed: set[int] = set()
        self._failed_at = placing.changes
        self._fails_together = not placing.plugins.reads_labels

    def class_now(self, gang: int) -> int:
        """Return a gang's class number, or `ALONE` if this session placed or evicted its tasks."""
        return ALONE if gang in self._touched else self.class_of[gang]

    def note_failure(self, gang: int) -> None:
        """Record that a gang failed to start and that no node was nominated for it."""
        number = self.class_now(gang)
        if number != ALONE and self._fails_together:
            self._failed_classes().add(number)

    def has_failed(self, gang: int) -> bool:
        """Return whether a gang of the same class failed to start and nothing has changed since."""
        return self.class_now(gang) in self._failed_classes()

    def pop_hopeful(self, gangs: list[int]) -> int | None:
        """Pop gangs from a list until a popped gang's class has not failed; return that gang.

        Returns None if the classes of all gangs have failed.
        """
        failed, class_of, touched = self._failed_classes(), self.class_of, self._touched
        while gangs:
            gang = gangs.pop()
            if class_of[gang] not in failed or gang in touched:
                return gang
        return None

    def _failed_classes(self) -> set[int]:
        """Return the classes in which a gang has failed to start since the last change."""
        if self._failed_at != self._placing.changes:
            self._failed_at = self._placing.changes
            self._failed.clear()
        return self._failed

    def evaluate(self, gangs: I64, function: Callable[[int], Value]) -> tuple[list[Value], I64]:
        """Call `function` for one gang of each class among `gangs` (m,).

        Returns one result per class, and the index (m,) of each gang's result.
        """
        numbers = self._numbers
        if self._touched:
            numbers = numbers.copy()
            numbers[list(self._touched)] = ALONE
        numbers = numbers[gangs]
        alone = np.flatnonzero(numbers == ALONE)
        # Every gang with the class number `ALONE` gets a number of its own.
        numbers[alone] = self._num_classes + np.arange(len(alone))
        value_of, first = group_values(numbers)
        return [function(gang) for gang in gangs[first].tolist()], value_of

    def one_per_class(self, gangs: I64) -> I64:
        """Return one of `gangs` (m,) per class, without gangs whose class number is `ALONE`.

        The result is empty if there are few classes: trying each class is then faster than
        computing bounds for all.
        """
        found = self._first_of_classes(gangs)
        return found if len(found) > self.few else found[:0]

    def representatives(self, gangs: I64) -> list[int] | None:
        """Return one of `gangs` per class, or None if a gang is `ALONE` or has changed."""
        is_touched = bool(self._touched) and not self._touched.isdisjoint(gangs.tolist())
        if is_touched or (self._numbers[gangs] == ALONE).any():
            return None
        found: list[int] = self._first_of_classes(gangs).tolist()
        return found

    def _first_of_classes(self, gangs: I64) -> I64:
        """Return the first of `gangs` (m,) in each class, sorted by class number."""
        first = first_positions(self._numbers[gangs] - ALONE, self._num_classes - ALONE)[1:]
        found: I64 = gangs[first[first < len(gangs)]]
        return found
