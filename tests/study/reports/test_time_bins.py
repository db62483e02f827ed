"""Tests of intervals over time, compared with a count at each millisecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optsched.study.simulation.timeline import at_instants, bin_means, column

END = 24
SPANS = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END), st.integers(1, 9), st.integers(0, 2)),
    max_size=6,
)


def arrays(spans):
    kept = [(min(a, b), max(a, b), n, row) for a, b, n, row in spans]
    begins, ends, amounts, rows = (column([s[i] for s in kept]) for i in range(4))
    return kept, (begins, ends), amounts.astype(np.float64), rows


@given(SPANS, st.sampled_from([1, 3, 5, 7]))
def test_means_are_those_of_a_plain_count(spans, number):
    kept, when, amounts, rows = arrays(spans)
    edges = np.linspace(0, END, number + 1)
    fine = np.zeros((3, END * 420))
    for begin, end, amount, row in kept:
        fine[row, begin * 420 : end * 420] += amount
    expected = fine.reshape(3, number, -1).mean(axis=2)
    assert np.allclose(bin_means(when, amounts, rows, 3, edges), expected)


@given(SPANS)
def test_instants_are_those_of_a_plain_count(spans):
    kept, when, amounts, rows = arrays(spans)
    instants = column(range(END + 1))
    expected = [
        [sum(n for a, b, n, r in kept if r == row and a <= at < b) for at in range(END + 1)]
        for row in range(3)
    ]
    assert at_instants(when, amounts, rows, 3, instants).tolist() == expected
