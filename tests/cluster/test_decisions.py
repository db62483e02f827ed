"""Tests of plans and certificates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Enqueue,
    LevelResult,
    LevelStatus,
    Nominate,
    Plan,
    Sense,
)
from optsched.cluster.reasons import Reason, ReasonCode


def level(status: LevelStatus, bound: int | None = 5) -> LevelResult:
    return LevelResult("admission", "cpu", Sense.MAX, 3, bound, status)


@pytest.mark.parametrize(
    ("levels", "relaxed", "proved"),
    [
        ((LevelStatus.OPTIMAL, LevelStatus.OPTIMAL), (), True),
        ((LevelStatus.OPTIMAL, LevelStatus.FEASIBLE), (), False),
        ((LevelStatus.OPTIMAL, LevelStatus.SKIPPED), (), False),
        ((LevelStatus.OPTIMAL,), ("pod-affinity",), False),
    ],
)
def test_a_plan_is_proved_if_every_level_is_and_nothing_was_left_out(
    levels: tuple[LevelStatus, ...], relaxed: tuple[str, ...], proved: bool
) -> None:
    certificate = Certificate(tuple(map(level, levels)), "cp-sat", 0.0, "done", relaxed)
    assert certificate.is_proved is proved


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ("FF", "not proved on any level"),
        ("OF", "not proved on l1"),
        ("FOSF", "not proved on l0, l2, l3"),
        ("OFFFFS", "not proved on l1, l2, l3 and 2 more"),
    ],
)
def test_the_verdict_names_levels_that_are_not_proved(statuses: str, verdict: str) -> None:
    by_letter = {"O": LevelStatus.OPTIMAL, "F": LevelStatus.FEASIBLE, "S": LevelStatus.SKIPPED}
    levels = tuple(
        replace(level(by_letter[letter]), name=f"l{i}") for i, letter in enumerate(statuses)
    )
    assert Certificate(levels, "cp-sat", 0.0, "done").verdict == verdict


def test_the_gap_is_counted_in_units() -> None:
    assert level(LevelStatus.FEASIBLE).gap == 2
    assert LevelResult("late", "pods", Sense.MIN, 3, 1, LevelStatus.FEASIBLE).gap == 2
    assert level(LevelStatus.FEASIBLE, bound=None).gap is None


def test_binds_are_the_allocations() -> None:
    actions = (
        Enqueue("ns/g"),
        Allocate("ns/g-0", "n0", "ns/g"),
        Nominate("ns/h-0", "n1", "ns/h"),
    )
    plan = Plan(actions, Certificate((), "greedy", 0.0, ""))
    assert plan.binds == {"ns/g-0": "n0"}


def test_reasons_read_as_code_and_sentence() -> None:
    assert str(Reason(ReasonCode.GATED, "2 of 3 pods wait")) == "Gated: 2 of 3 pods wait"
