"""HTML pages as text: escaped, reproducible and written atomically."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.study.reports.page import Cell, Page, Section, Table, as_data, render, write_page
from optsched.study.reports.simulation_report import simulation_page
from tests.support.disk import full
from tests.support.effort import num_examples
from tests.support.stories import base, failures, harmful, large

PAGE = Page("Title", "below", [("what", "value")], [Section("a", "A part")])


class Tags(HTMLParser):
    """A parser that collects the names of all elements and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, name) for name, _ in attrs} | {(tag, "")}


def test_names_never_become_markup() -> None:
    tame, wild = (render(simulation_page(*of(), base())) for of in (failures, harmful))
    assert Tags(wild).found == Tags(tame).found
    assert "<img" not in wild
    assert wild.count("</script>") == tame.count("</script>")


def test_the_same_values_give_the_same_page() -> None:
    assert len({render(simulation_page(*failures(), base())) for _ in range(2)}) == 1


def test_there_is_no_address_on_a_page() -> None:
    text = render(simulation_page(*failures(), base()))
    assert re.findall(r"(?:src|href)=\"(?!#)|https?:|@import|style=", text) == []
    assert 'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;;' in text
    assert text.startswith("<!DOCTYPE html>")


@settings(max_examples=num_examples(40))
@given(st.text(max_size=40))
def test_data_end_no_script(words: str) -> None:
    told = as_data([words])
    assert set(told) & set("<>&\u2028\u2029") == set()


def test_figures_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        as_data(float("nan"))


def test_a_replay_of_16000_gangs_on_1000_nodes_stays_below_five_megabytes() -> None:
    result, _ = failures()
    text = render(simulation_page(result, large(16_000, 1000), base()))
    assert len(text.encode()) < 5_000_000
    assert text.count("<rect") + text.count("<path") < 6000


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_page(PAGE, target)
    assert target.read_text("utf-8") == render(PAGE)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("fails", [(os, "fsync"), (Path, "replace")])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[object, str]
) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")
    monkeypatch.setattr(*fails, full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_page(PAGE, target)
    assert raised.value.filename == str(target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_tables_sort_by_the_numbers_behind_words() -> None:
    rows = [[Cell("a"), Cell("2h", 7200)]]
    table = Table("Times", ("of", "time"), rows, frozenset({"time"}))
    text = render(Page("T", "", [], [Section("s", "S", [table])]))
    assert '<td class="n" data-key="7200">2h</td>' in text
