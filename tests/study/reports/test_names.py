"""Tests of the estimated width of gang names in charts, and of the colours of gangs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.study.reports.number_text import (
    fit_name,
    text_width,
    time_ticks,
    time_unit,
    wrap_name,
)
from optsched.study.reports.occupancy_view import GANG_COLOURS, gang_colours
from optsched.study.simulation.timeline import nearest_rank

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=90)


@given(NAMES, st.floats(40, 400))
def test_a_wrapped_name_is_whole_where_its_lines_suffice(name: str, room: float) -> None:
    lines = wrap_name(name, room, 6)
    assert len(lines) <= 6
    assert all(text_width(line) <= room or len(line) == 1 for line in lines)
    if "…" not in "".join(lines):
        assert "".join(lines) == name


def test_names_are_broken_behind_signs() -> None:
    assert wrap_name("ml/pretraining-of-a-model", 120, 3) == ["ml/pretraining-of-", "a-model"]


@given(NAMES, st.floats(30, 400))
def test_a_fitted_name_fits(name: str, room: float) -> None:
    words = fit_name(name, room)
    assert text_width(words) <= room or len(words) <= 1
    if "…" not in words:
        assert words == name


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=60))
def test_gangs_that_run_together_differ_while_colours_last(stays: list[tuple[int, int]]) -> None:
    spans = [(begin, begin + length) for begin, length in stays]
    colours = gang_colours(spans)
    most = max((sum(a <= at < b for a, b in spans) for at in range(40)), default=0)
    if most <= GANG_COLOURS:
        for at in range(40):
            there = [c for (a, b), c in zip(spans, colours, strict=True) if a <= at < b]
            assert len(there) == len(set(there))


@pytest.mark.parametrize(
    ("end_ms", "unit"), [(900, "ms"), (90_000, "s"), (900_000, "min"), (10**7, "h"), (10**9, "d")]
)
def test_an_axis_of_time_has_one_unit(end_ms: int, unit: str) -> None:
    name, unit_ms = time_unit(end_ms)
    assert name == unit
    for at_ms, words in time_ticks(end_ms):
        assert float(words.replace("\u202f", "")) * unit_ms == pytest.approx(at_ms, rel=0.02)


def test_quantiles_are_nearest_ranks() -> None:
    assert [nearest_rank([1, 2, 3, 4], p) for p in (5, 25, 50, 75, 95, 100)] == [1, 1, 2, 3, 4, 4]
