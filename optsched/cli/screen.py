"""Where commands print: results to the standard output, everything else beside it."""

from __future__ import annotations

from rich.console import Console

PIPED_WIDTH = 160


def output() -> Console:
    """The standard output; wide where no terminal says how wide it is."""
    return _wide_enough(Console())


def remarks() -> Console:
    """The standard error, for progress, warnings and errors."""
    return _wide_enough(Console(stderr=True))


def say(console: Console, text: str, style: str) -> None:
    """Print text as it is: no markup, no line breaks of our own."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _wide_enough(console: Console) -> Console:
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    return console
