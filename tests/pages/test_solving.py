"""The report of a solve, rendered by a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from optsched.study.reports.page import write_page
from optsched.study.reports.solve_report import solve_page
from tests.support.stories import base, solved

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = [pytest.mark.pages, pytest.mark.xdist_group("pages")]


SECTIONS = (
    "What waits, and why",
    "Models side by side",
    "Nodes",
    "Queues",
    "Certificate",
    "Gap, value and bound over time",
    "Models",
    "How to reproduce this",
)


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    found = solved("packing.yaml", "volcano-default", "volcano-compatible")
    write_page(solve_page(*found, base()), folder / "solve.html")
    return folder / "solve.html"


def test_it_is_whole_and_quiet(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.assert_quiet(page, SECTIONS)
    browser.assert_roomy(40)


def test_keys_go_from_what_there_was_to_each_plan(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.js("arguments[0].focus()", browser.one("#occupancy input"))
    browser.press(Keys.HOME)
    seen = []
    for _ in range(3):
        full = browser.js("return document.querySelectorAll('#occupancy .cell .fresh').length")
        seen.append((browser.one("#occupancy .instant").text.partition(":")[0], full))
        browser.press(Keys.ARROW_RIGHT)
    assert seen == [("Before", 0), ("volcano-default", 16), ("volcano-compatible", 11)]


def test_bars_are_as_long_as_what_queues_hold(browser: Browser, page: Path) -> None:
    browser.open(page)
    before, best, other = browser.boxes("#by-queue .bar")
    assert before["width"] < 2
    assert other["width"] / best["width"] == pytest.approx(11 / 16, abs=0.01)


def test_a_narrow_window_has_no_sideways_scroll(browser: Browser, page: Path) -> None:
    browser.open(page, width=360)
    assert browser.js("return document.documentElement.scrollWidth") <= 360


def test_paper_has_every_part(browser: Browser, page: Path) -> None:
    browser.open(page)
    pdf = browser.pdf()
    for heading in browser.all("h2"):
        assert f"({heading.get_attribute('textContent')})".encode() in pdf
