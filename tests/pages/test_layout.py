"""Properties of the charts of every report, measured by a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.stories import LONG, wordy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = [pytest.mark.pages, pytest.mark.xdist_group("pages")]

PAGES = ("replay", "names", "crowd", "plans", "shared", "compare")
REPLAYS = ("replay", "names", "crowd")
PLANS = ("plans", "shared")
UNIT = re.compile(r"\((?:d|h|min|s|ms|µs|%|GPUs|CPUs|unit of the level)(?:, logarithmic)?\)$")
NUMBER = re.compile(r"[+−]?[\d\u202f]+(?:\.\d+)?(?: %)?")


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


# --- clipping and overlaps -----------------------------------------------------------------------


@pytest.mark.parametrize("width", [800, 1200])
def test_no_word_of_a_chart_is_cut_off_or_covered(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.js(FAULTS) == []


FAULTS = """
const faults = [];
const box = (e) => e.getBoundingClientRect();
for (const chart of document.querySelectorAll('svg.chart')) {
  const whole = box(chart);
  const texts = Array.from(chart.querySelectorAll('text')).map((e) => [e.textContent, box(e)]);
  texts.forEach(([words, a], i) => {
    if (a.left < whole.left - 1 || a.right > whole.right + 1
        || a.top < whole.top - 2 || a.bottom > whole.bottom + 2)
      faults.push([chart.id, 'outside', words]);
    for (const [other, b] of texts.slice(i + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && tall > 3.5) faults.push([chart.id, 'overlap', words, other]);
    }
  });
}
return faults;
"""


@pytest.mark.parametrize("width", [800, 1200])
def test_no_words_outside_charts_are_cut_off(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    cut = browser.js(
        "return Array.from(document.querySelectorAll("
        "  'h1, h2, p, dt, dd, li, figcaption, nav a, nav ul, th, td, figure .scroll'))"
        ".filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1"
        "  && e.clientWidth > 0 && !e.closest('details'))"
        ".map((e) => e.tagName + ' ' + e.textContent.trim().slice(0, 80))"
    )
    assert cut == []


def test_long_names_can_be_told_apart(browser: Browser, names: Path) -> None:
    browser.open(names)
    labels = browser.js(
        "return Array.from(document.querySelectorAll('#by-queue .name'))"
        ".map((e) => Array.from(e.querySelectorAll('tspan')).map((t) => t.textContent).join(''))"
    )
    assert sorted(labels) == sorted(job.key for job in wordy()[1].jobs)
    (queue,) = [
        e.get_attribute("textContent") or ""
        for e in browser.all("#by-queue .heading")
        if LONG in (e.get_attribute("textContent") or "")
    ]
    assert queue == LONG * 2  # the title and the words of the queue


# --- axes ----------------------------------------------------------------------------------------


def test_each_axis_has_a_title_with_its_unit(browser: Browser, page: Path) -> None:
    browser.open(page)
    charts = browser.all("svg.chart:not(#occupancy-chart)")
    assert charts
    for chart in charts:
        name = chart.get_attribute("id")
        titles = browser.js(
            "return Array.from(arguments[0].querySelectorAll('.axistitle'))"
            ".map((e) => e.textContent)",
            chart,
        )
        assert any(UNIT.search(title) for title in titles), (name, titles)


def test_an_axis_has_one_unit_in_its_title_alone(browser: Browser, page: Path) -> None:
    browser.open(page)
    marks = browser.js(
        "return Array.from(document.querySelectorAll("
        "  'svg.chart:not(#occupancy-chart) text[text-anchor=middle]:not(.axistitle)'))"
        ".map((e) => e.textContent)"
    )
    assert len(marks) > 5
    assert [words for words in marks if not NUMBER.fullmatch(words)] == []


# --- grids ---------------------------------------------------------------------------------------

CELLS = """
return Array.from(document.querySelectorAll('#occupancy .cell')).map((cell) => [
  cell.dataset.tip, Array.from(cell.children).slice(1).map((e) => e.getAttribute('class')),
  cell.getBoundingClientRect().toJSON()]);
"""


@pytest.mark.parametrize("name", ["replay", "plans", "shared"])
def test_each_gang_has_a_colour_and_its_name_on_its_cells(
    browser: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name))
    legend = {e.text.partition(" ")[2]: e.text.partition(" ")[0] for e in
              browser.all("#occupancy .legend li")}  # fmt: skip
    colours: dict[str, set[str]] = {}
    words = browser.js(
        "return Array.from(document.querySelectorAll('#occupancy .cellname')).map((e) =>"
        " [e.textContent, e.getBoundingClientRect().toJSON()])"
    )
    for tip, classes, cell in browser.js(CELLS):
        _, *who = tip.split("\n")
        gangs = [re.split(r" \(|, \d+ %", line)[0] for line in who if line != "free"]
        for gang, css in zip(gangs, classes, strict=True):
            colours.setdefault(gang, set()).add(css.split()[0])
        near = [
            text
            for text, box in words
            if cell["top"] <= (box["top"] + box["bottom"]) / 2 <= cell["bottom"]
        ]
        for gang in gangs:
            assert legend[gang]
            assert any(_names(text, gang, legend[gang]) for text in near), (gang, near)
    assert len(colours) > 1
    assert all(len(css) == 1 for css in colours.values()), colours
    if len(colours) <= 24:
        assert len({css for each in colours.values() for css in each}) == len(colours)


def _names(text: str, gang: str, number: str) -> bool:
    head, cut, tail = text.removeprefix(f"{number} ").partition("…")
    return text in (gang, number) or bool(cut and gang.startswith(head) and gang.endswith(tail))


def test_names_stay_on_the_cells_of_their_gang(browser: Browser, shared: Path) -> None:
    browser.open(shared)
    cells = [box for *_, box in browser.js(CELLS)]
    words = browser.boxes("#occupancy .cellname")
    left, right = min(c["left"] for c in cells), max(c["right"] for c in cells)
    assert len(words) > 20
    assert all(left <= w["x"] and w["x"] + w["width"] <= right for w in words)


def test_a_shared_gpu_shows_all_its_gangs(browser: Browser, shared: Path) -> None:
    browser.open(shared)
    several = [(tip, len(css)) for tip, css, _ in browser.js(CELLS) if len(css) > 1]
    assert several
    for tip, number in several:
        assert number == len(tip.split("\n")) - 1
        parts = [int(part) for part in re.findall(r", (\d+) %", tip)]
        assert len(parts) == number
        assert sum(parts) <= 100 + number


def test_names_move_with_the_slider(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    browser.js("arguments[0].focus()", browser.one("#occupancy input"))
    browser.press(Keys.HOME)
    seen = []
    for _ in range(5):
        seen.append(tuple(e.text for e in browser.all("#occupancy .cellname")))
        browser.press(Keys.ARROW_RIGHT)
    assert set(seen[0]) == {"research/pretrain"}
    assert len(set(seen)) > 2


# --- waiting gangs, gaps, waiting times ----------------------------------------------------------


@pytest.mark.parametrize("name", ["names", "plans", "shared"])
def test_what_waits_comes_first_with_its_reason(
    browser: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name))
    (first, *_) = browser.all("main > section")
    assert first.find_element("css selector", "h2").text == "What waits, and why"
    heads = [e.text.strip() for e in first.find_elements("css selector", "thead th")]
    assert heads[:2] in (["gang", "queue"], ["gang or pod", "queue"])
    rows = first.find_elements("css selector", "tbody tr")
    assert rows
    for row in rows:
        assert all(cell.text for cell in row.find_elements("css selector", "th, td"))
    assert "NotEnoughResources" in first.text


def test_nothing_that_waits_is_said(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    assert "no gang waits" in browser.all("main > section")[0].text


@pytest.mark.parametrize("name", REPLAYS + PLANS)
def test_gaps_are_drawn_in_percent_over_time(
    browser: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name))
    chart = "#gaps" if name in REPLAYS else "#gap-0"
    titles = [e.text for e in browser.all(f"{chart} .axistitle")]
    assert "gap (%)" in titles
    assert [t for t in titles if t.startswith(("time", "solver work"))]
    lines = browser.all(f"{chart} svg.chart path")
    keys = browser.all(f"{chart} .legend li")
    assert len(lines) == len(keys) > 0
    shown = [
        float(number)
        for e in browser.all(f"{chart} .chart path")
        for number in re.findall(r"([\d.]+) %", e.get_attribute("data-tip") or "")
    ]
    assert len(shown) == 2 * len(lines)
    browser.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.all(f"{chart} tbody tr")


@pytest.mark.parametrize("name", [*REPLAYS, "compare"])
def test_waiting_times_by_queue_have_their_quantiles(
    browser: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name))
    chart = "#waits" if name in REPLAYS else "#waits-by-queue"
    browser.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    heads = [e.text.strip(" ↕") for e in browser.all(f"{chart} thead th")]
    at = [heads.index(p) for p in ("p5", "p25", "p50", "p75", "p95", "longest")]
    rows = browser.js(
        f"return Array.from(document.querySelectorAll('{chart} tbody tr')).map((r) =>"
        " Array.from(r.cells).map((c) => Number(c.dataset.key)))"
    )
    boxes, marks = browser.boxes(f"{chart} .bar"), browser.boxes(f"{chart} .chart .mark")
    medians = browser.boxes(f"{chart} .chart .lall")
    assert len(rows) == len(boxes) == len(marks) == len(medians)
    most = max(row[at[-1]] for row in rows)
    ends = [
        (mark["x"] + mark["width"] / 2, row[at[-1]]) for mark, row in zip(marks, rows, strict=True)
    ]
    right = max(x for x, _ in ends)
    zero = browser.boxes(f"{chart} .chart .grid")[0]["x"]
    assert most > 0
    for row, box, median in zip(rows, boxes, medians, strict=True):
        times = [row[i] for i in at]
        assert times == sorted(times)
        assert box["x"] == pytest.approx(zero + (right - zero) * times[1] / most, abs=2.5)
        middle = median["x"] + median["width"] / 2
        assert middle == pytest.approx(zero + (right - zero) * times[2] / most, abs=2.5)
