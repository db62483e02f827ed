"""Tests of timelines of replays: the GPUs of each gang, and its waiting times."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest

from optsched.study.simulation.replay_trace import read_given
from optsched.study.simulation.timeline import DONE, GOES_ON, Job, Run
from tests.support.stories import FAILURES, failures, model, told

HOUR = 3_600_000


@pytest.fixture(scope="module")
def timeline():
    return failures()[1]


def test_no_lane_is_held_twice(timeline) -> None:
    by_lane: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for stay in timeline.stays:
        for lane in stay.lanes:
            by_lane.setdefault((stay.node, lane), []).append((stay.from_ms, stay.to_ms))
    for spans in by_lane.values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_what_stays_come_to_is_what_is_charged() -> None:
    result, timeline = failures()
    held = sum(s.milli * len(s.lanes) * (s.to_ms - s.from_ms) for s in timeline.stays)
    assert held == result["gpu_hours"]["total"]["held_gpu_us"]


def test_runs_end_as_the_record_says(timeline) -> None:
    pretrain, exercise, urgent, late = timeline.jobs
    assert [run.why for run in pretrain.runs] == ["node", "preempt", DONE]
    assert pretrain.runs[1].by == urgent.key
    assert pretrain.waits(timeline.end_ms) == [(4 * HOUR, 11 * HOUR // 2 + 1000)]
    assert [run.why for job in (exercise, urgent, late) for run in job.runs] == [DONE] * 3
    assert timeline.down == [(0, 200 * 60_000, 280 * 60_000)]


def test_waiting_and_running_fill_the_time_of_a_gang(timeline) -> None:
    for job in timeline.jobs:
        spans = sorted([*job.waits(timeline.end_ms), *((r.from_ms, r.to_ms) for r in job.runs)])
        assert spans[0][0] == job.submit_ms
        assert spans[-1][1] == job.done_ms


def test_who_goes_on_goes_on_to_the_end() -> None:
    job = Job("a/b", 0, 1, 1000, 5, [Run(10, 20, "preempt"), Run(30, 50, GOES_ON)])
    assert job.waits(50) == [(5, 10), (20, 30)]
    assert Job("a/c", 0, 1, 1000, 5).waits(50) == [(5, 50)]


def test_clusters_without_gpus_are_told_in_cpus(tmp_path) -> None:
    path = tmp_path / "cpus.yaml"
    path.write_text(re.sub(r", nvidia.com/gpu: \d+|nvidia.com/gpu: \d+", "", FAILURES.read_text()))
    _, timeline = told(read_given(str(path)), model("volcano-compatible"))
    assert timeline.lanes.unit == "CPU"
    assert timeline.lanes.milli == (96_000,) * 3
    assert Counter(len(s.lanes) for s in timeline.stays) == {1: len(timeline.stays)}


def test_parts_of_shared_gpus_are_played_and_told() -> None:
    path = FAILURES.parents[1] / "examples" / "gpus.yaml"
    result, timeline = told(read_given(str(path)), model(str(path.with_name("gpus-model.yaml"))))
    held = sum(s.milli * len(s.lanes) * (s.to_ms - s.from_ms) for s in timeline.stays)
    assert timeline.stays
    assert held == result["gpu_hours"]["total"]["held_gpu_us"]
