"""Options that all commands with trace replays share."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.cli.base.options import solver_option
from optsched.cli.base.path_arguments import InputPath, Source
from optsched.formats.traces.trace_file import TRACE_FORMATS
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable


class Span(click.ParamType[int]):
    """The type of a duration in milliseconds. `more_than_zero` excludes the value 0."""

    name = "duration"

    def __init__(self, *, more_than_zero: bool = False) -> None:
        self._more_than_zero = more_than_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the milliseconds of a duration such as 90s, 2h or 3d."""
        text = str(value)
        days = text.removesuffix("d")
        if text.endswith("d") and days.isdecimal():
            return int(days) * 24 * 3600 * 1000
        try:
            found = parse_duration_ms(text)
        except DurationError as e:
            self.fail(str(e), param, ctx)
        if found < 0 or (self._more_than_zero and not found):
            least = "longer than zero" if self._more_than_zero else "zero or longer"
            self.fail(f"{text}: has to be {least}", param, ctx)
        return found


_OPTIONS: Final = (
    solver_option,
    click.option(
        "--format",
        "trace_format",
        type=click.Choice(TRACE_FORMATS),
        help="Format of published traces.",
    ),
    click.option(
        "--nodes",
        type=Source(),
        help="Replay on the nodes of this trace or of these manifests.",
    ),
    click.option(
        "--period",
        type=Span(more_than_zero=True),
        help="Time between two sessions; by default the model's period.",
    ),
    click.option(
        "--until", type=Span(more_than_zero=True), help="Stop at this time of each trace."
    ),
    click.option(
        "--warm-up", type=Span(), default="0s", help="Exclude earlier events from the metrics."
    ),
    click.option(
        "--plugins-dir",
        type=InputPath(path_type=Path, file_okay=False),
        help="Python files in this folder are plugins that models may name.",
    ),
)


def replay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of trace replays, except models, seeds and outputs."""
    return reduce(lambda found, option: option(found), reversed(_OPTIONS), command)
