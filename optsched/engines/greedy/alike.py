"""Gangs that the pipeline can not tell apart, but for their age and name.

What holds for one gang of a class holds for all of them, as long as nothing has been placed or
evicted for any of them: a gang need not be tried where one of its class has just failed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from optsched.api.wellknown import RUNNING_ESTIMATE, USER
from optsched.domain.cluster import derived_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.domain.cluster import Gang
    from optsched.engines.greedy.placing import Placing
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.rules.ruleset import RuleSet

Answer = TypeVar("Answer")

ALONE: Final = -1
"""The class of gangs that share none."""

EXTENDER: Final = "extender"

_OF_ONE_GANG: Final = frozenset({RUNNING_ESTIMATE, USER})
"""Annotations that neither rules on victims nor those on starts read."""


class _Traits(NamedTuple):
    """What rules read of a gang in addition to its shape."""

    namespace: str
    queue: str
    priority: int
    min_member: int
    min_role: tuple[tuple[str, int], ...]
    is_loose: bool
    annotations: tuple[tuple[str, str], ...]


class _Likeness:
    """Stands for traits; compared by identity, which is faster than value by value."""

    def __init__(self, traits: _Traits) -> None:
        self.traits = traits


# An entry that is dropped costs speed only: gangs that are alike are then tried one by one.
_likeness = lru_cache(maxsize=65_536)(_Likeness)


def gang_classes(problem: Problem) -> list[int]:
    """(G,) numbers of classes; ALONE for gangs that hold something or can not be decided on."""
    number: dict[tuple[_Likeness, int], int] = {}
    likeness = derived_of(problem.snapshot.gangs, _likeness_of)
    shape_of, rows = problem.shape_of.tolist(), problem.rows
    return [
        ALONE
        if shape < 0 or row.claimed or row.num_ready
        else number.setdefault((like, shape), len(number))
        for like, shape, row in zip(likeness, shape_of, rows, strict=True)
    ]


def _likeness_of(gang: Gang) -> _Likeness:
    notes = (note for note in gang.annotations.items() if note[0] not in _OF_ONE_GANG)
    traits = _Traits(
        namespace=gang.namespace,
        queue=gang.queue,
        priority=gang.priority,
        min_member=gang.min_member,
        min_role=gang.min_role,
        is_loose=gang.is_loose,
        annotations=tuple(sorted(notes)),
    )
    return _likeness(traits)


class Alike:
    """Classes of gangs while a session goes along.

    Attributes
    ----------
    class_of
        (G,) class of each gang as the session begins; ALONE for all where a rule that is not
        known to this project may tell every gang from every other.

    """

    def __init__(self, placing: Placing, rules: RuleSet) -> None:
        problem = placing.problem
        # What a custom rule or an extender looks at is not known: each gang is tried for itself.
        self.is_known = not any(a.origin or a.rule.name == EXTENDER for a in rules.active)
        self.class_of = (
            problem.derived(gang_classes) if self.is_known else [ALONE] * problem.num_gangs
        )
        self._numbers = np.array(self.class_of, np.int64)
        self._placing = placing
        self._touched = placing.ledger.touched
        self._failed: dict[int, int] = {}
        self._fails_together = not placing.faces.reads_labels

    def class_now(self, gang: int) -> int:
        """The class of a gang; ALONE once something has been placed or evicted for it."""
        return ALONE if gang in self._touched else self.class_of[gang]

    def note_failure(self, gang: int) -> None:
        """Take note that a gang could not start as things stand, and nothing was promised."""
        number = self.class_now(gang)
        if number != ALONE and self._fails_together:
            self._failed[number] = self._placing.changes

    def has_failed(self, gang: int) -> bool:
        """Whether a gang of the class could not start, and nothing has changed since."""
        number = self.class_of[gang]
        if self._failed.get(number) != self._placing.changes:
            return False
        return number != ALONE and gang not in self._touched

    def ask_each(self, gangs: I64, ask: Callable[[int], Answer]) -> list[Answer]:
        """(m,) what is answered about gangs (m,), where only the class decides; asked once each."""
        numbers = self._numbers[gangs]
        if self._touched:
            numbers[np.isin(gangs, list(self._touched))] = ALONE
        kinds, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        if len(kinds) and kinds[0] == ALONE:
            alone = numbers == ALONE
            which[alone] = len(kinds) + np.arange(alone.sum())
            first = np.concatenate([first, np.flatnonzero(alone)])
            answers = [ask(gang) for gang in gangs[first[1:]].tolist()]
            return [answers[i - 1] for i in which.tolist()]
        answers = [ask(gang) for gang in gangs[first].tolist()]
        return [answers[i] for i in which.tolist()]

    def representatives(self, gangs: I64) -> list[int] | None:
        """A gang of each class of some gangs; None where one of them is alone."""
        numbers, first = np.unique(self._numbers[gangs], return_index=True)
        is_touched = bool(self._touched) and not self._touched.isdisjoint(gangs.tolist())
        if is_touched or (len(numbers) and numbers[0] == ALONE):
            return None
        found: list[int] = gangs[first].tolist()
        return found
