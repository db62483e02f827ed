"""Progress of a search: a status line on a terminal, one line for each step otherwise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.text import Text

from optsched.cli.base.console import print_text
from optsched.cluster.decisions import relative_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from optsched.cluster.decisions import Progress

BEYOND: Final = 10.0
"""Relative gaps from here on say nothing but that they are large."""


@contextmanager
def showing(
    console: Console, model: str, elapsed: Callable[[], float] | None, *, in_lines: bool
) -> Iterator[Callable[[Progress], None]]:
    """Yield the progress callback.

    Parameters
    ----------
    console, model
        Where to show it, and of which model it is.
    elapsed
        Seconds since the beginning, for the line that changes; None: those of the last news.
    in_lines
        Print a line for each news instead. Without that and without a terminal nothing is shown.

    """
    if in_lines:
        yield lambda progress: print_text(console, f"{model}: {progress_text(progress)}", "dim")
        return
    line = _Line(model, elapsed)
    with (
        Live(console=console, get_renderable=line.text, transient=True, refresh_per_second=4)
        if console.is_terminal
        else _nothing()
    ):
        yield line.update


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class _Line:
    """The status line of the latest progress."""

    def __init__(self, model: str, elapsed: Callable[[], float] | None) -> None:
        self._model, self._elapsed = model, elapsed
        self._last: Progress | None = None

    def update(self, progress: Progress) -> None:
        """Replace the progress that is shown."""
        self._last = progress

    def text(self) -> Text:
        """The current text."""
        last = self._last
        if last is None:
            return Text(f"deciding with {self._model}")
        at_s = last.at_s if self._elapsed is None else self._elapsed()
        return Text(f"{self._model}: {progress_text(last, at_s)}")


def _format_gap(gap: float) -> str:
    """Return a gap in percent; a gap above the limit (a value of 0) as `>`."""
    return f"{100 * gap:.2f} %" if gap < BEYOND else f"above {100 * BEYOND:.0f} %"


def progress_text(progress: Progress, at_s: float | None = None) -> str:
    """Return level, incumbent, bound, gap and elapsed seconds as text."""
    value, bound = progress.incumbent, progress.bound
    parts = [progress.level if progress.turn == 1 else f"{progress.level} ({progress.turn})"]
    parts.append("no plan yet" if value is None else f"incumbent {value:,}")
    parts.append("no bound yet" if bound is None else f"bound {bound:,}")
    if value is not None and bound is not None:
        parts.append(f"gap {_format_gap(relative_gap(value, bound))}")
    return ", ".join([*parts, f"{progress.at_s if at_s is None else at_s:.2f} s"])
