from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optsched.kube.runtime.timing import Backoff, BackoffSteps

STEPS = BackoffSteps(first_s=0.5, max_s=3.0)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(STEPS, lambda: 0.0)
    assert [backoff.next_delay() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_success_begins_anew() -> None:
    backoff = Backoff(STEPS, lambda: 0.0)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert (backoff.failures, backoff.next_delay()) == (0, 0.5)


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_chance_takes_up_to_half(failures: int, chance: float) -> None:
    backoff = Backoff(STEPS, lambda: chance)
    backoff.failures = failures - 1
    assert (
        STEPS.delay_after(failures) / 2
        <= backoff.next_delay()
        <= STEPS.delay_after(failures)
        <= STEPS.max_s
    )
