"""The report of a comparison, rendered by a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.study.comparison.compared_metrics import FIGURES
from optsched.study.reports.comparison_report import comparison_page
from optsched.study.reports.page import write_page
from tests.support.stories import compared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.study.comparison.comparison_table import Comparison
    from tests.support.browser import Browser

pytestmark = [pytest.mark.pages, pytest.mark.xdist_group("pages")]


SECTIONS = (
    "Unfinished gangs",
    "Means",
    "Differences",
    "Distributions",
    "Waiting time by queue",
    "Shares over time",
    "GPU hours",
    "Models",
    "Replays",
)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compared()


@pytest.fixture(scope="module")
def page(folder: Path, found: Comparison) -> Path:
    write_page(comparison_page(found), folder / "comparison.html")
    return folder / "comparison.html"


def test_it_is_whole_and_quiet(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.assert_quiet(page, SECTIONS)
    browser.assert_roomy(100)


def test_dots_are_on_the_side_of_their_difference(
    browser: Browser, page: Path, found: Comparison
) -> None:
    browser.open(page)
    (zero,) = browser.boxes("#interval-0 .zero")
    dots = browser.boxes("#interval-0 .dot")
    tips = [dot.get_attribute("data-tip") or "" for dot in browser.all("#interval-0 .dot")]
    by_name = {figure.name: figure for figure in FIGURES}
    assert len(dots) > 3
    for dot, tip in zip(dots, tips, strict=True):
        apart = found.difference(found.models[1], by_name[tip.partition(":")[0]])
        assert apart is not None
        middle = dot["x"] + dot["width"] / 2
        if abs(middle - zero["x"]) > 1:
            assert (middle > zero["x"]) == (apart.mean > 0), tip


def test_each_model_has_a_curve_and_a_strip(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert len(browser.all("#jct .legend li")) == len(browser.all("#jct path")) == 2
    strips = browser.boxes("#shares-0 .lane")
    assert len(strips) == 2
    for area in browser.boxes("#shares-0 path"):
        assert any(
            strip["y"] - 1 <= area["y"]
            and area["y"] + area["height"] <= strip["y"] + strip["height"] + 1
            for strip in strips
        )


def test_a_narrow_window_has_no_sideways_scroll(browser: Browser, page: Path) -> None:
    browser.open(page, width=360)
    assert browser.js("return document.documentElement.scrollWidth") <= 360


def test_paper_has_every_part(browser: Browser, page: Path) -> None:
    browser.open(page)
    pdf = browser.pdf()
    for heading in browser.all("h2"):
        assert f"({heading.get_attribute('textContent')})".encode() in pdf
