"""Tests of the contents of charts, and of their limited size."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from optsched.kube.runtime.timing import SystemClock
from optsched.policy.policy import definition
from optsched.study.reports.curves_view import Curve, cdf_chart, shares_of, thin_values
from optsched.study.reports.jobs_view import queue_charts, reason_section
from optsched.study.reports.model_tables import difference_table
from optsched.study.reports.nodes_view import node_chart
from optsched.study.reports.number_text import moment, part_ticks, plain, shorten, time_ticks
from optsched.study.reports.occupancy_view import film
from optsched.study.reports.page import Table
from optsched.study.reports.timeline_arrays import View
from optsched.study.simulation.replay_trace import play, read_given
from optsched.study.simulation.simulator import Options
from tests.support.stories import FAILURES, base, failures, large, model


def test_shares_come_to_what_was_held() -> None:
    result, timeline = failures()
    view = View.from_timeline(timeline)
    held = shares_of(view).held.mean() * len(view.colours)
    hours = result["gpu_hours"]["total"]["held_gpu_us"] / 3.6e9
    assert held * 24 * timeline.end_ms / 3.6e6 == pytest.approx(hours)


def test_each_instant_of_a_film_is_what_was_held_then() -> None:
    timeline = failures()[1]
    found = film(View.from_timeline(timeline))
    names = [holder[0] for holder in found.data["who"]]
    for frame, at in enumerate(View.from_timeline(timeline).instants.tolist()):
        there = {
            (s.node * 8 + lane, timeline.jobs[s.job].key)
            for s in timeline.stays
            if s.from_ms <= at < s.to_ms
            for lane in s.lanes
        }
        shown = set()
        for cell, changes in enumerate(found.data["cells"]):
            _, *now = [change for change in changes if change[0] <= frame][-1]
            shown |= {(cell, names[who]) for who in now[::2] if who >= 0}
        assert shown == there


def test_many_nodes_and_gangs_are_put_together() -> None:
    view = View.from_timeline(large(800, 300))
    assert view.colours[-1] == "4 other queues"
    assert "300 nodes in 24 rows" in node_chart(view).note
    assert len(film(view).data["places"]) == 300
    charts = queue_charts(view)
    assert [c.name for c in charts] == ["by-queue", "longest"]
    assert str(charts[1].drawing).count('class="name"') == 60


def test_a_model_is_its_own_definition() -> None:
    assert difference_table([base(), base()]).rows == []
    other = definition(model("volcano-compatible"))
    rows = {r[0].text: [c.text for c in r[1:]] for r in difference_table([base(), other]).rows}
    assert rows["solver"] == ["cpsat", "none"]


@pytest.mark.parametrize(
    ("at_ms", "words"),
    [(0, "0"), (1, "1ms"), (90_000, "1m 30s"), (93_600_000, "1d 2h"), (3_600_001, "1h 1ms")],
)
def test_moments(at_ms: int, words: str) -> None:
    assert moment(at_ms) == words


@pytest.mark.parametrize("end_ms", [1, 999, 12_345, 7_200_000, 10**9, 10**12])
def test_ticks_are_few_and_inside(end_ms: int) -> None:
    ticks = [at for at, _ in time_ticks(end_ms)]
    assert ticks[0] == 0
    assert len(ticks) <= 9
    assert max(ticks) <= end_ms


@pytest.mark.parametrize("top", [0.003, 0.04, 0.31, 0.5, 1.0])
def test_ticks_of_parts_reach_the_top(top: float) -> None:
    ticks = part_ticks(top)
    assert ticks[-1] >= top
    assert len(ticks) <= 7


def test_thinning_keeps_both_ends() -> None:
    values = np.arange(10_000.0).tolist()
    found = thin_values(values, 100)
    assert (found[0], found[-1], len(found)) == (0, 9999, 100)


def test_a_distribution_ends_at_the_part_of_the_gangs_with_a_time() -> None:
    """A model that starves three of four gangs has no curve that reaches 100 %."""
    curves = [Curve("all", "l0", [10.0, 20.0, 30.0, 40.0]), Curve("few", "l1", [5.0], 3)]
    chart = cdf_chart("jct", "Completion time", [*curves, Curve("none", "l2", [], 2)])
    assert [curve.known_fraction for curve in curves] == [1.0, 0.25]
    ends = re.findall(r'<path d="M74 (250)H[^"]*H844V(\d+)" class="l', str(chart.drawing))
    assert ends == [("250", "10"), ("250", "190")]
    (table,) = chart.tables
    assert [[cell.text for cell in row[:4]] for row in table.rows] == [
        ["all", "4", "100.0 %", "25.0s"],
        ["few", "1", "25.0 %", "5.0s"],
        ["none", "0", "0.0 %", "–"],
    ]
    assert chart.note.startswith("A curve ends at the fraction of gangs whose time is known")
    assert not cdf_chart("jct", "Completion time", curves[:1]).note


def test_words() -> None:
    assert plain(1234567.5) == "1\u202f234\u202f567.5"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abc", 5) == "abc"


def test_what_waits_has_the_reason_of_the_last_session() -> None:
    given = read_given(str(FAILURES))
    late = given.trace.arrivals[-1]
    wide = replace(late.gang.tasks[0].shape, request=(("nvidia.com/gpu", 9),))
    tasks = tuple(replace(task, shape=wide) for task in late.gang.tasks)
    arrival = replace(late, gang=replace(late.gang, tasks=tasks))
    trace = replace(given.trace, arrivals=(*given.trace.arrivals[:-1], arrival))
    policy = model("volcano-compatible")
    played = play(replace(given, trace=trace), policy, Options(), clock=SystemClock())
    assert played.timeline is not None
    section = reason_section(played.timeline)
    (table,) = section.parts
    assert isinstance(table, Table)
    (row,) = table.rows
    assert [row[0].text, row[1].text] == [late.gang.key, late.gang.queue]
    assert "nvidia.com/gpu" in row[-1].text
    assert row[4].key == played.ended_at_ms - late.at_ms


def test_gaps_of_a_story_are_those_of_its_figures() -> None:
    result, timeline = failures()
    assert timeline.gaps
    assert all(0 <= mean <= most <= 1 for _, most, mean in timeline.gaps)
    means = [mean for _, _, mean in timeline.gaps]
    assert min(means) <= result["metrics"]["gap"] <= max(means)
