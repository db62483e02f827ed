"""Reports of comparisons contain the numbers of the comparison and no others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optsched.study.comparison.compared_metrics import FIGURES, value_text
from optsched.study.comparison.comparison_table import Comparison, Row
from optsched.study.reports.comparison_report import comparison_page
from optsched.study.reports.page import Table, render
from tests.support.stories import HARM, compared


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compared(2)


def test_means_are_those_of_the_comparison(found: Comparison) -> None:
    (table,) = comparison_page(found).sections[1].parts
    assert isinstance(table, Table)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    for figure in FIGURES:
        means = [found.mean_of_model(model, figure) for model in found.models]
        if figure.name in rows:
            assert rows[figure.name] == [value_text(figure, mean) for mean in means]
        else:
            assert means == [None, None]


def test_what_was_written_is_drawn_alike(found: Comparison) -> None:
    again = Comparison.of_json(json.loads(json.dumps(found.as_json())))
    assert render(comparison_page(again)) == render(comparison_page(found))


def test_what_is_missing_is_told(found: Comparison) -> None:
    failures = {f"shortest-remaining on {HARM}": "OSError: gone"}
    part = replace(found, rows=found.rows[:3], failures=failures, is_complete=False)
    text = render(comparison_page(part))
    assert "Incomplete" in text
    assert "OSError: gone" in text
    assert "<img" not in text


def test_results_without_series_have_no_curves(found: Comparison) -> None:
    rows = [
        Row(r.model, r.trace, r.seed, {k: v for k, v in r.result.items() if k != "series"})
        for r in found.rows
    ]
    names = [section.name for section in comparison_page(replace(found, rows=rows)).sections]
    assert names == ["finished", "means", "differences", "usage", "model", "replays"]


def test_a_model_that_starves_gangs_has_a_distribution_below_the_top(found: Comparison) -> None:
    """Half of the gangs of the second model do not finish; their replays have fewer percentiles."""
    rows = []
    for row in found.rows:
        part = 1.0 if row.model == found.models[0] else 0.5
        series = {**row.result["series"], "jct_s": list(range(101)), "jct_part": part}
        rows.append(replace(row, result={**row.result, "series": series}))
    sections = {s.name: s for s in comparison_page(replace(found, rows=rows)).sections}
    (table,) = sections["distributions"].parts[0].tables
    assert table.headings[:3] == ("of", "fraction of gangs", "mean")
    first, second = table.rows
    assert first[1].text == "100.0 %"
    assert (second[1].key, second[2].key) == (pytest.approx(0.5, abs=0.01), 50)


def test_differences_beyond_the_axis_are_named(found: Comparison) -> None:
    def note(factor: float) -> str:
        rows = [
            replace(r, result={**r.result, "metrics": {**r.result["metrics"], "makespan_s": s}})
            for r, s in zip(found.rows, [1.0, 1.0, factor, factor], strict=True)
        ]
        page = comparison_page(replace(found, rows=rows))
        return next(s for s in page.sections if s.name == "differences").parts[0].note

    assert note(1.5) == ""
    assert note(9.0) == (
        "Differences and intervals beyond ±500 % are cut; the table has their values."
    )


def test_the_models_of_a_queue_stand_together(found: Comparison) -> None:
    rows = [
        replace(r, result={**r.result, "series": {**r.result["series"], "waited_s": waited}})
        for r, waited in zip(
            found.rows,
            [{"a": [1.0], "b": [9.0]}] * 2 + [{"a": [8.0], "b": [2.0]}] * 2,
            strict=True,
        )
    ]
    page = comparison_page(replace(found, rows=rows))
    (table,) = next(s for s in page.sections if s.name == "waits").parts[0].tables
    one, other = found.models
    assert [row[0].text for row in table.rows] == [
        f"b, {one}", f"b, {other}", f"a, {one}", f"a, {other}",
    ]  # fmt: skip


def test_one_model_is_compared_with_nothing(found: Comparison) -> None:
    rows = [row for row in found.rows if row.model == found.models[0]]
    page = comparison_page(replace(found, models=found.models[:1], rows=rows))
    assert "differences" not in [section.name for section in page.sections]
    assert render(page)
