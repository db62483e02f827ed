"""Tests of synthetic traces: specified marginal distributions, reproducible results, names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from optsched.cluster.trace import sound_trace
from optsched.study.simulation.synthetic_traces import GavelTrace, SyntheticError, synthetic

MANY = GavelTrace(num_jobs=20_000, num_nodes=100, estimated=0.25, num_priorities=3)


def test_the_same_numbers_give_the_same_trace() -> None:
    few = GavelTrace(num_jobs=20, num_nodes=3)
    assert few.trace() == few.trace()
    assert few.trace() != GavelTrace(num_jobs=20, num_nodes=3, seed=1).trace()


def test_sizes_and_durations_are_gavels() -> None:
    arrivals = MANY.trace().arrivals
    sizes = Counter(len(a.gang.tasks) for a in arrivals)
    for size, part in {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}.items():
        assert sizes[size] / len(arrivals) == pytest.approx(part, abs=0.01)
    minutes = np.array([a.duration_ms for a in arrivals], float) / 60_000
    assert minutes.min() >= 10**1.5 - 1
    assert minutes.max() <= 10**4 + 1
    assert (minutes > 1000).mean() == pytest.approx(0.2, abs=0.01)
    assert np.log10(minutes[minutes < 1000]).mean() == pytest.approx(2.25, abs=0.02)
    assert all(a.gang.min_member == len(a.gang.tasks) for a in arrivals)


def test_what_arrives_is_the_part_of_the_cluster_that_was_asked_for() -> None:
    arrivals = MANY.trace().arrivals
    work = sum(len(a.gang.tasks) * (a.duration_ms or 0) for a in arrivals)
    assert work / (800 * arrivals[-1].at_ms) == pytest.approx(0.9, abs=0.03)


def test_some_users_say_how_long_they_run() -> None:
    told = [a for a in MANY.trace().arrivals if a.estimate_ms is not None]
    assert len(told) / MANY.num_jobs == pytest.approx(0.25, abs=0.02)
    assert all(a.estimate_ms == a.duration_ms for a in told)


def test_all_of_it_can_be_played() -> None:
    trace = GavelTrace(num_jobs=200, num_nodes=1).trace()
    assert sound_trace(trace) == (trace, ())


def test_a_text_names_a_trace() -> None:
    named = synthetic("gavel:jobs=20,nodes=3,load=1.5,seed=2,queues=2,priorities=2,estimated=0.5")
    numbers = GavelTrace(20, 3, 1.5, num_queues=2, num_priorities=2, estimated=0.5, seed=2)
    assert named == numbers.trace()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "gavel:jobs=x",
            "jobs: 'x' is not a whole number: write a whole number from 1 to",
        ),
        ("gavel:jobs=1e9", "jobs: 1e9 is out of range"),
        ("gavel:load=", "load: '' is not a number"),
        ("gavel:load=0", "load: 0 is out of range"),
        ("gavel:load=inf", "load: 'inf' is not a number: write a number from 1e-09 to 10000000"),
        ("gavel:nodes=-3", "nodes: -3 is out of range: write a whole number from 1 to 10000000"),
        ("gavel:jobs=2,jobs=3", "jobs is given twice; give it once"),
        ("gavel:size=3", "size is not one of jobs, nodes, load"),
        ("gavel:load=nan", "load: 'nan' is not a number"),
    ],
)
def test_what_names_none_says_so(text: str, told: str) -> None:
    with pytest.raises(SyntheticError, match=told):
        synthetic(text)
