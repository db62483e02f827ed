"""Control characters of users reach no log, no event and no terminal."""

from __future__ import annotations

import io
import logging

import pytest
from rich.table import Table

from optsched.api.kinds import POD, Ref
from optsched.api.meta import EventType
from optsched.cli.base.console import PlainConsole, echo
from optsched.cli.services.service_options import PlainFormatter
from optsched.kube.runtime.events import Note, build_event
from optsched.units.plaintext import printable

EVIL = "a\x1b[31m\x9b2Jb\rc\nd\u202ee\x07"
SAFE = "a\\x1b[31m\\x9b2Jb\\rc\\nd\\u202ee\\x07"


def test_control_characters_are_escaped() -> None:
    assert printable(EVIL) == SAFE
    assert printable("plain ä 漢 text") == "plain ä 漢 text"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_a_log_message_is_one_line() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as e:
        found = (type(e), e, e.__traceback__)
    record = logging.LogRecord("optsched", logging.ERROR, "f", 1, "pod %s", (EVIL,), found)
    first, *trace = PlainFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first == f"ERROR pod {SAFE}"
    assert trace[0].startswith("Traceback")
    assert "\x1b" not in "".join(trace)


def test_an_event_has_no_control_characters() -> None:
    note = Note(Ref(POD, "ns", "p"), "u", EventType.WARNING, "Unschedulable", EVIL)
    assert build_event(note, "2025-06-15T15:00:00Z", "2025-06-15T15:00:00Z")["message"] == SAFE


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_console_shows_styles_of_its_own_alone(is_terminal: bool) -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, width=200, force_terminal=is_terminal, color_system=None)
    table = Table("name")
    table.add_row(EVIL)
    console.print(table, EVIL)
    shown = file.getvalue()
    assert "\\x1b[31m" in shown
    assert not set(shown) & set("\x1b\x9b\r\x07\u202e")


def test_a_line_is_printed_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL)
    assert capsys.readouterr().out == f"{SAFE}\n".replace("\\nd", "\nd")
