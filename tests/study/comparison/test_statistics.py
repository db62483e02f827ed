from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.study.comparison.statistics import paired_difference

VALUES = st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=2, max_size=12)


@given(VALUES)
def test_the_mean_is_inside_and_the_other_way_round_it_is_the_mirror_image(pairs) -> None:
    a, b = ([float(v) for v in side] for side in zip(*pairs, strict=True))
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert there.low - 1e-9 <= there.mean <= there.high + 1e-9
    assert there.mean == pytest.approx(-back.mean)
    assert min(x - y for x, y in pairs) - 1e-9 <= there.low
    assert there.high <= max(x - y for x, y in pairs) + 1e-9


def test_what_is_the_same_everywhere_is_certain() -> None:
    found = paired_difference([3.0, 5.0, 9.0], [1.0, 3.0, 7.0])
    assert (found.mean, found.low, found.high, found.pairs) == (2.0, 2.0, 2.0, 3)
    assert found.is_clear


def test_a_difference_of_either_sign_is_not_clear() -> None:
    assert not paired_difference([1.0, -1.0, 2.0, -2.0], [0.0] * 4).is_clear


def test_the_interval_is_that_of_the_normal_law_for_many_pairs() -> None:
    # 400 differences of −1 and 1 in turn: the mean has a standard error of 1/20.
    found = paired_difference([(-1.0) ** i for i in range(400)], [0.0] * 400)
    assert found.low == pytest.approx(-1.96 / 20, abs=0.01)
    assert found.high == pytest.approx(1.96 / 20, abs=0.01)


def test_one_pair_tells_nothing_about_chance() -> None:
    found = paired_difference([3.0], [1.0])
    assert (found.mean, found.low, found.high, found.pairs) == (2.0, None, None, 1)
    assert not found.is_clear


def test_nothing_is_nothing_and_the_same_seed_is_the_same_interval() -> None:
    assert paired_difference([], []) is None
    values = [1.0, 4.0, 2.0, 8.0]
    assert paired_difference(values, [0.0] * 4, 3) == paired_difference(values, [0.0] * 4, 3)


def test_what_has_no_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0], [])
