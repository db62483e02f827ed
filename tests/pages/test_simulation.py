"""The report of a replay, rendered by a browser."""

from __future__ import annotations

import re
import socket
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.stories import HARM

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.study.simulation.timeline import Timeline
    from tests.support.browser import Browser

pytestmark = [pytest.mark.pages, pytest.mark.xdist_group("pages")]

SECTIONS = ("What waits, and why", "Figures", "Nodes", "Queues", "Shares", "Distributions",
            "Gap over time", "GPU hours", "Model", "How to reproduce this")  # fmt: skip
PAGES = ("replay", "crowd", "trap")


@pytest.fixture(params=PAGES)
def any_page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_nothing_is_asked_of_the_network_and_nothing_complains(
    browser: Browser, any_page: Path
) -> None:
    browser.open(any_page)
    browser.assert_quiet(any_page, SECTIONS)


def test_the_policy_of_the_page_forbids_the_network(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert browser.driver.execute_async_script(REFUSED, address) == ["img-src", "connect-src"]
        with pytest.raises(BlockingIOError):
            server.accept()


REFUSED = """
const [address, done] = arguments;
const refused = [];
document.addEventListener('securitypolicyviolation', (e) => {
  refused.push(e.effectiveDirective);
  if (refused.length === 2) done(refused.sort().reverse());
});
new Image().src = address;
fetch(address).catch(() => 0);
"""


def test_names_that_are_markup_are_shown_as_they_are(browser: Browser, trap: Path) -> None:
    browser.open(trap)
    assert browser.one("h1").text == f"Replay of failures{HARM}"
    assert browser.js("return window.harmed === undefined")
    assert browser.all("img") == []
    told = browser.one("#by-node .bar").get_attribute("data-tip") or ""
    assert told.startswith(f"research/pretrain{HARM} (research{HARM})")
    hover = "arguments[0].dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))"
    browser.js(hover, browser.one("#occupancy .cell"))
    assert HARM in browser.one("#tip").text


def test_bars_are_where_the_replay_says(browser: Browser, replay: Path, timeline: Timeline) -> None:
    browser.open(replay)
    lanes = browser.boxes("#by-node .lane")
    left, width = lanes[0]["x"], lanes[0]["width"]
    bars = dict(zip(tips(browser, "#by-node .bar"), browser.boxes("#by-node .bar"), strict=True))
    for stay in timeline.stays:
        job = timeline.jobs[stay.job].key
        mine = [box for tip, box in bars.items() if tip.startswith(job)]
        begin = left + width * stay.from_ms / timeline.end_ms
        end = left + width * stay.to_ms / timeline.end_ms
        lane = lanes[stay.node]
        middle = lane["y"] + lane["height"] * (stay.lanes[0] + 0.5) / 8
        assert any(
            box["x"] == pytest.approx(begin, abs=1.5)
            and box["x"] + box["width"] == pytest.approx(end, abs=1.5)
            and box["y"] < middle < box["y"] + box["height"]
            for box in mine
        ), stay


def test_gangs_wait_run_and_are_stopped_where_the_replay_says(
    browser: Browser, replay: Path
) -> None:
    browser.open(replay)
    told = tips(browser, "#by-queue [data-tip]")
    pretrain = [t for t in told if t.startswith("research/pretrain")]
    assert sum("ran from" in t for t in pretrain) == 3
    assert [t for t in pretrain if "preempted" in t and "for research/urgent" in t]
    assert sum(1 for _ in browser.all("#by-queue path.mark")) >= 2
    waits = browser.boxes("#by-queue .wait.bar")
    assert len(waits) == len([t for t in told if "waits from" in t]) > 0


def tips(browser: Browser, selector: str) -> list[str]:
    return browser.js(
        "return Array.from(document.querySelectorAll(arguments[0])).map((e) => e.dataset.tip)",
        selector,
    )


def test_charts_have_room_and_cover_nothing(browser: Browser, any_page: Path) -> None:
    browser.open(any_page)
    assert browser.assert_roomy(50) >= 6
    for section in browser.boxes("main > section"):
        assert section["height"] > 60
    everything = sorted(browser.boxes("main > section"), key=lambda b: b["y"])
    for above, below in pairwise(everything):
        assert above["y"] + above["height"] <= below["y"]


@pytest.mark.parametrize("page", ["replay", "crowd"])
def test_arrow_keys_move_the_slider_and_the_grid(
    browser: Browser, page: str, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(page))
    slider = browser.one("#occupancy input")
    seen = []
    browser.js("arguments[0].focus()", slider)
    browser.press(Keys.HOME)
    for _ in range(4):
        grid = browser.js(
            "return Array.from(document.querySelectorAll('#occupancy .cell rect:last-child'))"
            ".map((e) => e.getAttribute('class') + e.getAttribute('height')).join()"
        )
        seen.append((browser.one("#occupancy .instant").text, grid))
        browser.press(Keys.ARROW_RIGHT)
    assert len({words for words, _ in seen}) == 4
    assert len({grid for _, grid in seen}) > 1
    assert slider.get_attribute("aria-valuetext") == browser.one("#occupancy .instant").text


def test_the_grid_says_whose_each_gpu_is(
    browser: Browser, replay: Path, timeline: Timeline
) -> None:
    browser.open(replay)
    browser.js("arguments[0].focus()", browser.one("#occupancy input"))
    browser.press(Keys.HOME)
    held = {}
    for tip in tips(browser, "#occupancy .cell"):
        place, _, who = tip.partition("\n")
        held[place] = who
    there = {
        f"{timeline.nodes[s.node]}, GPU {lane}": timeline.jobs[s.job].key
        for s in timeline.stays
        if s.from_ms == 0
        for lane in s.lanes
    }
    assert {place: who for place, who in held.items() if who != "free"} == there
    assert len(held) == 24


def test_keys_go_through_the_parts_of_a_chart(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    browser.js("arguments[0].focus()", browser.one("#by-queue .walk"))
    browser.press(Keys.ARROW_RIGHT)
    first = browser.one("#tip").text
    browser.press(Keys.ARROW_RIGHT)
    second = browser.one("#tip").text
    assert first != second
    assert browser.one("#tip").is_displayed()
    assert len(browser.all("#by-queue .on")) == 1
    browser.press(Keys.ESCAPE)
    assert not browser.one("#tip").is_displayed()


def test_the_tab_key_reaches_everything(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    browser.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    number = len(browser.all("a, button, input, summary, .scroll[tabindex='0']"))
    reached = set()
    for _ in range(number):
        browser.press(Keys.TAB)
        on = browser.js(
            "const e = document.activeElement;"
            "e.dataset.reached = 1;"
            "return [document.querySelectorAll('[data-reached]').length,"
            " getComputedStyle(e).outlineStyle]"
        )
        reached.add(on[0])
        assert on[1] != "none"
    assert max(reached) == number


def test_tables_are_sorted_by_what_is_behind_their_words(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    browser.js("document.querySelector('#by-queue details').open = true")
    table = "#by-queue table"
    column = [b.text for b in browser.all(f"{table} thead th")].index(["arrived", "↕"][0])
    button = browser.all(f"{table} thead button")[column]
    for order, reverse in (("ascending", False), ("descending", True)):
        browser.js("arguments[0].focus()", button)
        browser.press(Keys.ENTER)
        keys = browser.js(
            "return Array.from(document.querySelectorAll(arguments[0] + ' tbody tr'))"
            ".map((r) => Number(r.cells[arguments[1]].dataset.key))",
            table,
            column,
        )
        assert keys == sorted(keys, reverse=reverse)
        assert len(keys) == 4
        head = browser.all(f"{table} thead th")[column]
        assert head.get_attribute("aria-sort") == order


def test_a_narrow_window_has_no_sideways_scroll(browser: Browser, any_page: Path) -> None:
    browser.open(any_page, width=360)
    assert browser.js("return document.documentElement.scrollWidth") <= 360
    assert browser.js("return document.body.scrollWidth") <= 360


def test_paper_has_everything(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
    for heading in SECTIONS:
        assert f"({heading})".encode() in pdf, heading
    browser.on_paper()
    for table in browser.boxes("details table"):
        assert table["height"] > 20
    assert [e for e in browser.all(".controls, nav, summary") if e.is_displayed()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(
    browser: Browser, replay: Path, scheme: str
) -> None:
    browser.open(replay, prefers_color_scheme=scheme)
    for selector in ("h1", "p.subtitle", "section > p", "td", "th", "summary", ".note", "nav a",
                     ".chart text:not(.barname)", "td.changed"):  # fmt: skip
        words, behind = browser.js(COLOURS, browser.one(selector))
        assert contrast(words, behind) >= 4.5, (selector, words, behind)


COLOURS = """
const e = arguments[0];
const style = getComputedStyle(e);
const solid = (c) => c && c !== 'rgba(0, 0, 0, 0)';
let b = e;
while (b && !solid(getComputedStyle(b).backgroundColor)) b = b.parentElement;
return [e instanceof SVGElement ? style.fill : style.color, getComputedStyle(b).backgroundColor];
"""


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2.2 (1.4.3)."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    found = [float(n) for n in re.findall(r"[\d.]+", colour)[:3]]
    scale = 1.0 if "srgb" in colour else 255.0
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (n / scale for n in found)
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_those_who_want_no_motion_get_none(browser: Browser, replay: Path) -> None:
    browser.open(replay, prefers_reduced_motion="reduce")
    assert browser.js("return getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_the_page_can_be_read_without_seeing_it(browser: Browser, replay: Path) -> None:
    browser.open(replay)
    assert len(browser.all("h1")) == len(browser.all("main")) == len(browser.all("header")) == 1
    assert all(e.get_attribute("aria-label") for e in browser.all("nav, input, [role=region]"))
    for chart in browser.all("svg.chart"):
        title = browser.one(f"#{chart.get_attribute('aria-labelledby')}")
        assert title.get_attribute("textContent")
    names = browser.js("return Array.from(document.querySelectorAll('[id]')).map((e) => e.id)")
    assert len(names) == len(set(names))
    assert len(browser.all("figure")) == len(browser.all("figure details"))
