"""Error handling of commands: plain messages, exit codes, suggestions for mistyped names.

Messages quote untrusted text such as names, files and server responses, which click does not
escape. `optsched.cli.base.connection.Exit` defines the exit codes of commands that use a cluster.
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.exceptions import NoArgsIsHelpError

from optsched.units.input_errors import why_unreadable
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

COPIES: Final = "optsched.copies"
"""Key in `click.Context.meta`; the value maps each temporary file to the name of its source."""


def name_inputs(text: str) -> str:
    """Replace paths of temporary copies in a message with the names that the user gave."""
    ctx = click.get_current_context(silent=True)
    for path, source in ({} if ctx is None else ctx.meta.get(COPIES, {})).items():
        text = text.replace(path, source).replace(f"{Path(path).name}:", f"{source}:")
    return text


_HELP: Final = "--help"
_NO_INTEGER: Final = re.compile(r"is not a valid integer(?: range)?\.$")
"""Matches click's message for an invalid integer; the message lists no accepted values."""


class WrongUsage(click.ClickException):
    """A usage error that is printed as one sentence, without the usage line of the command."""

    exit_code = click.UsageError.exit_code


def describe_usage(error: click.UsageError) -> str:
    """Describe a usage error in a sentence that lists the accepted values or refers to `--help`."""
    text = name_inputs(error.format_message())
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Parameter):
        choices = error.param.type.choices if isinstance(error.param.type, click.Choice) else ()
        is_argument = isinstance(error.param, click.Argument)
        name = error.param.get_error_hint(error.ctx).replace("'", "")
        if is_argument and choices:
            name = str(error.param.name).upper()
        accepted = f": write one of {', '.join(map(str, choices))}" if choices else ""
        text = f"the {'argument' if is_argument else 'option'} {name} is missing{accepted}"
    if isinstance(error, click.NoSuchOption):
        close = sorted({*(error.possibilities or ())} - {_HELP})
        meant = " or ".join(f"'{name}'" for name in close)
        hint = f" Did you mean {meant}?" if meant else ""
        text = f"No such option '{error.option_name}'.{hint}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        least, most = (getattr(error.param.type, name, None) for name in ("min", "max"))
        accepted = "one such as 2" if least is None else f"{least} or more"
        accepted = accepted if most is None else f"one from {least or 0} to {most}"
        text = _NO_INTEGER.sub(f"is not a whole number: write {accepted}", text)
    path = "" if error.ctx is None else error.ctx.command_path
    is_missing = isinstance(error, (click.MissingParameter, click.NoSuchOption))
    if path and (is_missing or not isinstance(error, click.BadParameter | click.BadOptionUsage)):
        # A message that ends with a full stop already lists the accepted values.
        text = text.removesuffix(".") if is_missing else text
        text = text if text.endswith((".", "?")) else f"{text} (see {path} --help)"
    return printable(text, keep="\n\t")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Remove control characters and paths of temporary copies from click's error messages."""
    try:
        yield
    except NoArgsIsHelpError:
        raise
    except click.UsageError as e:
        raise WrongUsage(describe_usage(e)) from e
    except click.ClickException as e:
        # The error is changed, although click declares `message` Final, because a new error would
        # have another class and exit code.
        e.message = printable(name_inputs(e.message), keep="\n\t")  # type: ignore[misc]
        raise


def show_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback to stderr with control characters escaped.

    The parameters are those of `sys.excepthook`.
    """
    lines = traceback.format_exception(kind, error, trace)
    sys.stderr.write(printable("".join(lines), keep="\n\t"))


class PlainCommand(click.Command):
    """A command whose error messages contain no control characters."""

    def main(self, *given: Any, **more: Any) -> Any:  # noqa: ANN401  click's signature
        """See `click.Command`."""
        sys.excepthook = show_crash
        return super().main(*given, **more)

    def make_context(self, *given: Any, **more: Any) -> click.Context:  # noqa: ANN401
        """See `click.Command`."""
        with plain_errors():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  click's signature
        """See `click.Command`."""
        with plain_errors():
            return super().invoke(ctx)


BAD_INPUT: Final = 2
NO_PLAN: Final = 3
NOT_WRITTEN: Final = 4
"""Exit code of a command that could not write its output to stdout or a file."""

STOPPED: Final = 130


def describe_error(error: Exception) -> str:
    """Describe an error in a sentence; for an OSError, name the file and the reason."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    reason = why_unreadable(error)
    return f"{error.filename}: {reason}" if error.filename else reason


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ExitCodeCommand(PlainCommand):
    """A command with the documented exit codes for Ctrl-C and for a full disk."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  click's signature
        """See `click.Command`."""
        with plain_errors():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as e:
                raise click.exceptions.Exit(STOPPED) from e
            except OSError as e:
                if e.errno not in _FULL:
                    raise
                where = e.filename or "standard output"
                raise click.ClickException(f"{where}: {e.strerror}") from e


KUBECTL_WORDS: Final = {
    "apply": ("run", "create"),
    "cancel": ("delete",),
    "create": ("run",),
    "describe": ("view", "get"),
    "get": ("view", "list"),
    "ls": ("list",),
    "rm": ("delete",),
    "show": ("view", "get"),
    "submit": ("run", "create"),
    "update": ("operate",),
}
"""Suggested optsched commands, keyed by the name that a user of kubectl or vcctl may type."""


class Group(click.Group):
    """A command group that suggests a known command when the user types an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            meant = [word for word in KUBECTL_WORDS.get(name.lower(), ()) if word in known]
            close = meant[:1] or get_close_matches(name.lower(), known, n=1)
            if not close:
                # The name may be a subcommand, such as `explain` for `job explain`.
                groups = [
                    (each, group.list_commands(ctx))
                    for each in known
                    if isinstance(group := self.get_command(ctx, each), click.Group)
                ]
                found = (
                    [f"{group} {word}" for group, commands in groups if word in commands]
                    for word in (name.lower(), *KUBECTL_WORDS.get(name.lower(), ()))
                )
                close = next(filter(None, found), [])
            *firsts, last = close or [""]
            either = f"{', '.join(firsts)} or {last}" if firsts else last
            hint = f" Did you mean {either}?" if close else ""
            hint = hint or f" There are {', '.join(known)}."
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)
