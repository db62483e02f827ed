"""Error messages of commands with control characters escaped.

Messages quote names, files and answers of servers, which users write; click prints them as they
are.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


COPIES: Final = "optsched.copies"
"""Key in a context's `meta`: temporary copies by path, each with the name that the user gave."""


def name_inputs(text: str) -> str:
    """Return a text with inputs as the user named them, not as their temporary copies."""
    ctx = click.get_current_context(silent=True)
    for path, source in ({} if ctx is None else ctx.meta.get(COPIES, {})).items():
        text = text.replace(path, source).replace(f"{Path(path).name}:", f"{source}:")
    return text


@contextmanager
def plain_errors() -> Iterator[None]:
    """Escape control characters in the messages of click's errors, and name inputs as given."""
    try:
        yield
    except click.ClickException as e:
        # click calls it final; a copy would lose the class and its exit code.
        e.message = printable(name_inputs(e.message), keep="\n\t")  # type: ignore[misc]
        raise


def show_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback to the standard error; see `sys.excepthook`."""
    lines = traceback.format_exception(kind, error, trace)
    sys.stderr.write(printable("".join(lines), keep="\n\t"))


class PlainCommand(click.Command):
    """A command whose errors are plain text."""

    def main(self, *given: Any, **more: Any) -> Any:  # noqa: ANN401  as click has it
        """See `click.Command`."""
        sys.excepthook = show_crash
        return super().main(*given, **more)

    def make_context(self, *given: Any, **more: Any) -> click.Context:  # noqa: ANN401
        """See `click.Command`."""
        with plain_errors():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  as click has it
        """See `click.Command`."""
        with plain_errors():
            return super().invoke(ctx)
