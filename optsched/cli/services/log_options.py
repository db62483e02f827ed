"""Log output of cluster processes: text lines, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Callable

DEBUG_VERBOSITY: Final = 4
"""From this number on klog's users see every step."""

TEXT: Final = "text"
JSON: Final = "json"

F = TypeVar("F", bound="Callable[..., Any]")

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def logging_options(command: F) -> F:
    """Add `-v` and `--log-format`, which come as `verbosity` and `log_format`."""
    options = (
        click.option(
            "-v",
            "--v",
            "verbosity",
            default=0,
            help=f"{DEBUG_VERBOSITY} and more: every decision, review and write.",
        ),
        click.option(
            "--log-format",
            type=click.Choice([TEXT, JSON]),
            default=TEXT,
            show_default=True,
            help="Lines for people, or a JSON object a line.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class PlainFormatter(logging.Formatter):
    """Write each message as one line, control characters escaped; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401  logging's name
        """See `logging.Formatter`."""
        return printable(super().formatException(ei), keep="\n")


def set_up_logging(verbosity: int, log_format: str = TEXT) -> None:
    """Log to stderr, in UTC."""
    log = logging.getLogger("optsched")
    handler = logging.StreamHandler(sys.stderr)
    lines = PlainFormatter("%(asctime)s %(levelname)s %(message)s", _TIME)
    formatter = _JsonLines() if log_format == JSON else lines
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.addHandler(handler)
    if logging.lastResort is not None:
        # Libraries, among them asyncio on exceptions that no code has caught.
        logging.lastResort.setFormatter(formatter)
    log.setLevel(logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO)


class _JsonLines(logging.Formatter):
    """`time`, `level`, `logger` and `message`; `error` is the traceback, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": self.formatTime(record, _TIME),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
