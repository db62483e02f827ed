"""The progress of a solve on outputs that are no terminals."""

from __future__ import annotations

import io
import re
import time
from typing import TYPE_CHECKING

from optsched.cli.base import console as console_module
from optsched.cli.base.console import PlainConsole
from optsched.cli.offline.solve_display import format_progress, show_progress
from optsched.cluster.decisions import Progress

if TYPE_CHECKING:
    import pytest

PROGRESS = Progress("admission", 2.5, 10, 20)


def shown(progress: list[Progress], *, in_lines: bool = False) -> str:
    """Return the output of a console for a list of progress updates."""
    file = io.StringIO()
    with show_progress(PlainConsole(file=file), "crater", None, in_lines=in_lines) as show:
        for each in progress:
            show(each)
    return file.getvalue()


def test_a_file_gets_a_line_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shown([PROGRESS, PROGRESS])
    monkeypatch.setattr(console_module, "PROGRESS_EVERY_S", 0.0)
    assert shown([PROGRESS]) == "crater: admission, incumbent 10, bound 20, gap 100.00 %, 2.50 s\n"


def test_a_step_without_progress_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a comparison whose first replay takes several minutes."""
    monkeypatch.setattr(console_module, "PROGRESS_EVERY_S", 0.2)
    file = io.StringIO()
    with PlainConsole(file=file).status("playing [/b]"):
        until = time.monotonic() + 20
        while "\n" not in file.getvalue() and time.monotonic() < until:
            time.sleep(0.02)
    assert re.fullmatch(r"playing \[/b\] \(\d+ s so far\)", file.getvalue().splitlines()[0])
    printed = file.getvalue()
    time.sleep(1.5)
    assert file.getvalue() == printed


def test_with_progress_a_file_gets_every_line() -> None:
    assert len(shown([PROGRESS, PROGRESS], in_lines=True).splitlines()) == 2


def test_a_progress_names_its_search() -> None:
    names = [
        format_progress(Progress("admission", 0, 1, 1, turn)).partition(",")[0]
        for turn in (0, 1, 2)
    ]
    assert names == ["admission (first search)", "admission", "admission (2)"]
