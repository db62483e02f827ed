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


def test_one_model_is_compared_with_nothing(found: Comparison) -> None:
    rows = [row for row in found.rows if row.model == found.models[0]]
    page = comparison_page(replace(found, models=found.models[:1], rows=rows))
    assert "differences" not in [section.name for section in page.sections]
    assert render(page)
