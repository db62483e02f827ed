from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.study.comparison.compared_metrics import Difference, least_pairs, paired_differences
from tests.support.effort import nightly_except
from tests.support.pages import ROOT

VALUES = st.lists(st.integers(-99, 99), min_size=6, max_size=12)


def paired_difference(values: list[float], num_models: int = 1) -> Difference:
    (found,) = paired_differences([values], num_models)
    return found


@given(VALUES)
def test_the_mean_is_inside_and_the_other_way_round_it_is_the_mirror_image(values) -> None:
    there = paired_difference([float(v) for v in values])
    back = paired_difference([-float(v) for v in values])
    assert there.low <= there.mean <= there.high
    assert (back.mean, back.low, back.high) == (-there.mean, -there.high, -there.low)
    assert back.p_value == there.p_value


def test_what_is_the_same_everywhere_is_certain_with_six_pairs() -> None:
    found = paired_difference([0.1 + 0.2] * 3 + [0.3] * 3)
    assert found.low == pytest.approx(0.3)
    assert found.high == pytest.approx(0.3)
    assert (found.pairs, found.p_value, found.is_clear) == (6, 2 / 64, True)


def test_fewer_pairs_than_six_have_no_interval() -> None:
    for number in range(1, 6):
        found = paired_difference([2.0] * number)
        assert found == Difference(2.0, None, None, number, None)
        assert not found.is_clear


def test_more_models_need_more_pairs() -> None:
    assert [least_pairs(n) for n in (1, 2, 3, 4)] == [6, 7, 7, 8]
    assert paired_difference([2.0] * 6, 2).low is None
    assert paired_difference([2.0] * 7, 2).p_value == 2 * 2 / 128


def test_a_difference_of_either_sign_is_not_clear() -> None:
    assert not paired_difference([1.0, -1.0, 2.0, -2.0, 3.0, 3.0]).is_clear


def test_the_interval_is_that_of_the_normal_law_for_many_pairs() -> None:
    # 400 differences alternate between −1 and 1: the mean has a standard error of 1/20.
    found = paired_difference([(-1.0) ** i for i in range(400)])
    assert found.low == pytest.approx(-1.96 / 20, abs=0.01)
    assert found.high == pytest.approx(1.96 / 20, abs=0.01)


def test_intervals_of_more_figures_are_wider() -> None:
    row = [1.0, 2.0, 4.0, 3.0, 2.0, 5.0, 1.0]
    (alone,) = paired_differences([row])
    together = paired_differences([row] * 20)
    assert together[0].high - together[0].low > 1.5 * (alone.high - alone.low)


def test_nothing_is_nothing_and_missing_values_are_left_out() -> None:
    assert paired_differences([]) == []
    assert paired_differences([[None, None]]) == [None]
    few, many = paired_differences([[None, 1.0, None, 3.0, 2.0, 2.0, 2.0], [1.0] * 7])
    assert (few.pairs, few.mean, few.low) == (5, 2.0, None)
    assert (many.pairs, many.is_clear) == (7, True)


def test_the_same_seed_gives_the_same_values() -> None:
    rows = np.random.default_rng(1).normal(size=(2, 20)).tolist()
    assert paired_differences(rows, seed=3) == paired_differences(rows, seed=3)


def skewed(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Return differences of equally good models with skewed values."""
    one, other = rng.lognormal(0, 2, size=(2, *size))
    return one - other


def tied(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Return differences of equally good models with small counts, for example preemptions."""
    one, other = rng.poisson(0.5, size=(2, *size))
    return (one - other).astype(float)


NULLS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy tails": lambda rng, size: rng.standard_t(2, size=size),
    "units": lambda rng, size: rng.integers(2, size=size) * 2.0 - 1,
    "alike": lambda rng, size: rng.normal(size=size[1:]) + 0.3 * rng.normal(size=size),
    "unlike traces": lambda rng, size: rng.lognormal(0, 2, size[1:]) * rng.normal(size=size),
    "skewed": skewed,
    "tied": tied,
}


@pytest.mark.parametrize("number", nightly_except([3, 5, 6, 7, 10, 30], [3, 5, 6, 10]))
@pytest.mark.parametrize("null", NULLS)
def test_models_that_are_equal_are_rarely_called_better_in_any_figure(null, number) -> None:
    """Twenty measures together report a false difference in at most 6 % of studies.

    Here the two models are equal: either could have produced either result of each pair.
    """
    rng, studies = np.random.default_rng(0), 400
    wrong = sum(
        any(d.is_clear for d in paired_differences(NULLS[null](rng, (20, number)).tolist()))
        for _ in range(studies)
    )
    assert wrong <= 0.06 * studies
    if number < 6:
        assert wrong == 0


@pytest.mark.parametrize("number", [7, 10])
def test_several_models_and_figures_that_differ_allow_no_more_errors(number: int) -> None:
    """Two models equal the first, except for three figures that are better by far."""
    rng, studies = np.random.default_rng(0), 500
    wrong = found = 0
    for _ in range(studies):
        first, *others = rng.normal(size=(3, 20, number))
        tables = [other - first for other in others]
        for table in tables:
            table[:3] += 9.0
        each = [paired_differences(table.tolist(), 2) for table in tables]
        wrong += any(d.is_clear for differences in each for d in differences[3:])
        found += any(d.is_clear for differences in each for d in differences[:3])
    assert wrong <= 0.06 * studies
    assert found > 0.9 * studies


def test_differences_that_only_have_mean_zero_are_called_clear_more_often() -> None:
    """The measured rates show the limit of the method that docs/compare.md states."""
    rng, studies = np.random.default_rng(0), 500
    part = {}
    for number in (10, 30):
        drawn = (rng.exponential(size=(20, number)) - 1 for _ in range(studies))
        called = sum(any(d.is_clear for d in paired_differences(x.tolist())) for x in drawn)
        part[number] = round(100 * called / studies)
    text = " ".join((ROOT / "docs" / "compare.md").read_text("utf-8").split())
    assert f"in {part[10]} of 100 studies with 10 pairs." in text
    assert f"With 30 pairs, a metric was labelled better or worse in {part[30]} of 100" in text


def test_a_model_that_is_better_by_twice_the_spread_is_found_with_ten_seeds() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(100):
        rows = rng.normal(size=(20, 10))
        rows[0] += 2.0
        found += paired_differences(rows.tolist())[0].is_clear
    assert found > 75
