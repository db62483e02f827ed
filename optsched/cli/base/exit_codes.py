"""Exit codes of commands that work on files; `optsched.cli.base.connection.Exit` has the others."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.cli.base.plain_errors import PlainCommand, plain_errors
from optsched.units.read_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD_INPUT: Final = 2
NO_PLAN: Final = 3
NOT_KEPT: Final = 4
"""The output could not be written."""

STOPPED: Final = 130


def describe_error(error: Exception) -> str:
    """Return an error as a sentence; for operating system errors, the file and the reason."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    said = why_unreadable(error)
    return f"{error.filename}: {said}" if error.filename else said


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def map_exit_codes() -> Iterator[None]:
    """Turn Ctrl-C and a full disk into the exit codes of commands."""
    try:
        yield
    except KeyboardInterrupt as e:
        raise click.exceptions.Exit(STOPPED) from e
    except OSError as e:
        if e.errno not in _FULL:
            raise
        where = e.filename or "standard output"
        raise click.ClickException(f"{where}: {e.strerror}") from e


class EndingCommand(PlainCommand):
    """A command that maps Ctrl-C and a full disk to exit codes."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  as click has it
        """See `click.Command`."""
        with plain_errors(), map_exit_codes():
            return super().invoke(ctx)
