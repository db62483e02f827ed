"""Tests of the check of solutions over configurations: valid and invalid solutions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.solver.cpsat.process import InProcess, Solved
from optsched.solver.model.encoding import Goal, encode_configurations
from optsched.solver.solution_check import (
    INVALID_SOLUTION,
    is_solution,
    is_valid_update,
    solve_checked,
)
from tests.support.engines import EXACT, Bench
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.solver.cpsat.level_model import LevelUpdate

GANGS = [
    gang("old", ("w", 5, shape(1))),
    gang("one", ("w", 1, shape(4))),
    gang("two", ("w", 1, shape(4))),
]
BENCH = Bench.of(
    cluster([node("n0", 4), node("n1", 4)], GANGS), RuleSet.of(GangRule()), ("admission",)
)
START = BENCH.decisions({f"ns/old-w-{i}": "n0" if i < 4 else "n1" for i in range(5)})
MODEL = encode_configurations(
    BENCH.problem, BENCH.rules, Goal(BENCH.tiers, BENCH.levels, [5000]), START
).model
(FOUND,) = InProcess().solve(MODEL, EXACT).updates


def test_what_the_solver_finds_is_sound() -> None:
    assert (FOUND.value, FOUND.bound) == (8000, 8000)
    assert FOUND.uses is not None
    assert FOUND.uses.sum() == 2
    assert is_valid_update(MODEL, FOUND)


def other(**fields: object) -> LevelUpdate:
    return replace(FOUND, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "update",
    [
        other(uses=None),
        other(use_class=None),
        other(use_tasks=None),
        other(uses=FOUND.uses * 2),
        other(uses=-FOUND.uses),
        other(uses=np.zeros_like(FOUND.uses)),
        other(uses=FOUND.uses.astype(float)),
        other(use_class=FOUND.use_class + 99),
        other(use_class=FOUND.use_class - 99),
        other(use_tasks=FOUND.use_tasks * 9),
        other(use_tasks=-FOUND.use_tasks),
        other(use_tasks=FOUND.use_tasks[:, :-1]),
        other(solution=FOUND.solution + 1),
        other(solution=FOUND.solution[:-1]),
    ],
    ids=[
        *("no uses", "no classes", "no tasks", "more nodes than there are", "less than none"),
        *("nothing in use", "parts of nodes", "no such class", "a class below zero"),
        *("more than fits", "tasks below zero", "a class is missing"),
        *("more gangs than there are", "too short"),
    ],
)
def test_what_is_no_solution(update: LevelUpdate) -> None:
    assert not is_solution(MODEL, update)
    assert not is_valid_update(MODEL, update)


@pytest.mark.parametrize(
    ("update", "sound"),
    [
        (other(value=7999), False),
        (other(bound=7999), False),
        (other(bound=9000), True),
        (other(bound=None), True),
        (other(value=None, bound=8000, solution=None), True),
        (other(value=None, bound=None, solution=None), True),
        (other(level=1), False),
    ],
)
def test_values_and_bounds(update: LevelUpdate, sound: bool) -> None:
    assert is_valid_update(MODEL, update) is sound


def answering(*updates: LevelUpdate) -> object:
    class Fixed:
        solve: Callable[..., Solved] = staticmethod(lambda model, limits: Solved(updates, "done"))

    return Fixed()


def test_what_is_no_solution_is_left_out_and_told() -> None:
    bad = other(uses=FOUND.uses * 2)
    solved = solve_checked(answering(FOUND, bad), MODEL, EXACT)  # type: ignore[arg-type]
    assert solved.updates == (FOUND,)
    assert solved.stopped == f"done; {INVALID_SOLUTION}"
    fine = solve_checked(answering(FOUND), MODEL, EXACT)  # type: ignore[arg-type]
    assert fine.stopped == "done"
