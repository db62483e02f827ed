"""How a search has gone: what was known at which instant, and what it can be taken up from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.decisions import LevelResult


@dataclass(frozen=True, slots=True)
class Progress:
    """What was known of one level at one instant of a search.

    Attributes
    ----------
    level
        Its name, as in the certificate.
    at_s
        Seconds since the session began. Where no clock is read, CP-SAT's deterministic seconds:
        the work of the solver so far, to which nothing but its searches adds.
    incumbent
        The best value so far, in the level's own sense; None while there is none.
    bound
        What no plan goes beyond that keeps the levels above; None while nothing is known.
    turn
        Which search of the session, from 1: sessions that make room for a gang search again.

    """

    level: str
    at_s: float
    incumbent: int | None
    bound: int | None
    turn: int = 1


def changes_level(progress: Progress, history: Sequence[Progress]) -> bool:
    """Whether it says something else of its level than what was said last in its search."""
    alike = (p for p in reversed(history) if (p.turn, p.level) == (progress.turn, progress.level))
    last = next(alike, None)
    return last is None or replace(last, at_s=progress.at_s) != progress


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best answer of one search, from which another one can go on.

    Attributes
    ----------
    turn
        As in `Progress`.
    binds
        Node by key of the task.
    levels
        Values of this answer with the bounds proved so far, in order of importance. A bound holds
        for plans that keep the values above it.

    """

    turn: int
    binds: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[LevelResult, ...] = ()


class SolveStatus(StrEnum):
    """Why a solve ended.

    COMPLETE: every level is at its optimum or within the gap asked for. LIMIT: time, work or the
    engines' reach ended before. INTERRUPTED: somebody stopped it. RUNNING: it was still going on
    when this was written, and nothing came after.
    """

    COMPLETE = "complete"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


def relative_gap(value: int, bound: int) -> float:
    """|bound − value| / max(1, |value|), as CP-SAT counts relative gaps; 0 at the optimum."""
    return abs(bound - value) / max(1, abs(value))
