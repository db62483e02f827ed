"""Properties of the recorded usage of queues."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.amounts import Usage

HOUR = 3_600_000
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(1, 10**12)
)
times = st.integers(0, 10 * HOUR)
half_lives = st.integers(1, 100 * HOUR)
usages = st.builds(
    lambda found, at: Usage(tuple(sorted((r, float(a)) for r, a in found.items())), at),
    amounts,
    times,
)


def close(one: Usage, other: Usage) -> bool:
    mine, theirs = dict(one.seconds), dict(other.seconds)
    return one.at_ms == other.at_ms and all(
        math.isclose(mine.get(r, 0.0), theirs.get(r, 0.0), rel_tol=1e-9, abs_tol=1e-9)
        for r in {*mine, *theirs}
    )


@given(usages, amounts, times, times, half_lives)
def test_to_go_on_twice_is_to_go_on_once(usage, held, first, second, half_life):
    middle = usage.at_ms + first
    end = middle + second
    twice = usage.advanced(held, middle, half_life).advanced(held, end, half_life)
    assert close(twice, usage.advanced(held, end, half_life))


@given(usages, half_lives)
def test_half_is_left_after_the_half_life(usage, half_life):
    later = usage.advanced({}, usage.at_ms + half_life, half_life)
    assert close(later, Usage(tuple((r, a / 2) for r, a in usage.seconds), later.at_ms))


@given(amounts, half_lives)
def test_who_has_always_held_the_same_has_that_mean(held, half_life):
    long = Usage().advanced(held, 60 * half_life, half_life)
    mean = long.average(half_life)
    assert mean == {r: pytest.approx(a, rel=1e-9) for r, a in held.items()}
    assert close(
        long.advanced(held, 61 * half_life, half_life), Usage(long.seconds, 61 * half_life)
    )


@given(usages, amounts, half_lives)
def test_no_time_changes_nothing_and_time_never_runs_back(usage, held, half_life):
    assert close(usage.advanced(held, usage.at_ms, half_life), usage)
    assert close(usage.advanced(held, usage.at_ms - 1, half_life), usage)


def test_much_shorter_than_the_half_life_it_is_what_was_held_times_seconds():
    usage = Usage().advanced({"nvidia.com/gpu": 8}, 10_000, 10**12)
    assert dict(usage.seconds) == {"nvidia.com/gpu": pytest.approx(80.0)}


@pytest.mark.parametrize("half_life", [0, -1])
def test_a_half_life_is_longer_than_nothing(half_life):
    with pytest.raises(ValueError, match="must be longer than 0"):
        Usage().advanced({}, 1, half_life)
    with pytest.raises(ValueError, match="must be longer than 0"):
        Usage().average(half_life)
