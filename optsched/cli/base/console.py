"""Console output: results go to stdout, all other text to stderr."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from optsched.cli.base.command_errors import name_inputs
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from rich.console import ConsoleOptions, RenderableType

PIPED_WIDTH: Final = 160
PROGRESS_EVERY_S: Final = 60.0
"""Seconds between two progress lines if stderr is not a terminal."""


class PlainConsole(Console):
    """A console that prints markup and emoji codes literally."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  rich's
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render text with escaped control characters, because some text comes from users."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable(segment.text, keep="\n\t"), segment.style)
            else:
                yield segment

    def status(self, status: RenderableType, **_: Any) -> PlainStatus:  # noqa: ANN401
        """Return a status line; without a terminal, its text is printed once per minute."""
        return PlainStatus(self, status)


class PlainStatus(Status):
    """A status line whose text is not interpreted as markup.

    If the console is no terminal, a thread prints the latest text every `PROGRESS_EVERY_S` seconds,
    even if a long step reports no progress.
    """

    def __init__(self, console: Console, status: RenderableType) -> None:
        super().__init__(_without_markup(status), console=console)
        self._began_s = self._shown_s = time.monotonic()
        self._latest = str(status)
        self._done = threading.Event()

    def update(self, status: RenderableType | None = None, **options: Any) -> None:  # noqa: ANN401
        """See `Status`."""
        if status is None or self.console.is_terminal:
            super().update(None if status is None else _without_markup(status), **options)
            return
        self._latest = str(status)
        if time.monotonic() - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = time.monotonic()
            print_text(self.console, self._latest, "dim")

    def _print_unchanged(self) -> None:
        """Print the latest text again if no line was printed for `PROGRESS_EVERY_S` seconds."""
        while not self._done.wait(max(self._shown_s + PROGRESS_EVERY_S - time.monotonic(), 1.0)):
            if time.monotonic() - self._shown_s >= PROGRESS_EVERY_S and self._latest:
                self._shown_s = time.monotonic()
                seconds = round(self._shown_s - self._began_s)
                print_text(self.console, f"{self._latest} ({seconds} s so far)", "dim")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.start()
        else:
            threading.Thread(target=self._print_unchanged, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._done.set()
        if self.console.is_terminal:
            self.stop()


def _without_markup(text: RenderableType) -> RenderableType:
    return Text(text) if isinstance(text, str) else text


def stdout() -> Console:
    """Return the stdout console; it has at least `PIPED_WIDTH` columns if it is not a terminal."""
    return _wide_enough(PlainConsole())


def stderr() -> Console:
    """Return the stderr console, for progress, warnings and errors."""
    return _wide_enough(PlainConsole(stderr=True))


def print_text(console: Console, text: str, style: str) -> None:
    """Print text without markup or wrapping, after `name_inputs` has replaced temporary paths."""
    console.print(Text(name_inputs(text)), style=style, highlight=False, soft_wrap=True)


def _wide_enough(console: Console) -> Console:
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    return console


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print text with control characters escaped.

    JSON and YAML output is already escaped by `write_json` and `write_yaml`. `nl` adds a final
    newline, and `err` selects stderr.
    """
    click.echo(printable(text, keep="\n\t"), nl=nl, err=err)
