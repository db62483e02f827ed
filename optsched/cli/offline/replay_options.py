"""Options shared by all commands that replay traces."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from optsched.cli.base.command_errors import BAD_INPUT
from optsched.cli.base.console import print_text
from optsched.cli.base.options import TABLE, ParsedText, add_options, solver_option
from optsched.cli.base.path_arguments import (
    InputPath,
    Source,
    check_folder,
    check_outputs,
    is_standard,
)
from optsched.cli.base.session_context import list_plugin_files
from optsched.cli.offline.report_page import check_report
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import files_of
from optsched.formats.traces.gavel import THROUGHPUTS
from optsched.formats.traces.trace_file import COMPANION_FILES, TRACE_FORMATS
from optsched.study.simulation.replay_trace import SNAPSHOT_FILES, SYNTHETIC
from optsched.units import DurationError, count_noun, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from optsched.cluster.trace import Trace

_DAYS: Final = re.compile(r"([0-9]{1,18})d")


def _parse_span(text: str, *, more_than_zero: bool) -> int:
    days = _DAYS.fullmatch(text)
    try:
        found = parse_duration_ms(f"{24 * int(days[1])}h" if days else text)
    except DurationError as e:
        raise DurationError(text, e.message) from e
    if found < 0 or (more_than_zero and not found):
        least = "longer than zero" if more_than_zero else "zero or longer"
        raise ValueError(f"{text}: must be {least}")
    return found


SPAN: Final = ParsedText("duration", partial(_parse_span, more_than_zero=False))
"""Option type for a duration such as 90s, 2h or 3d, converted to milliseconds."""

POSITIVE_SPAN: Final = ParsedText("duration", partial(_parse_span, more_than_zero=True))


def _list_trace_files(traces: Iterable[str], trace_format: str | None) -> list[Path]:
    """Return the files that contain traces; outputs must not overwrite them."""
    found: list[Path] = []
    for trace in traces:
        path = Path(trace)
        if trace.startswith(SYNTHETIC):
            continue
        if trace_format is not None:
            folder = path if path.is_dir() else path.parent
            found += [path, *(folder / name for name in COMPANION_FILES)]
            found += [parent / THROUGHPUTS for parent in folder.absolute().parents]
            found += folder.glob("*.trace")
            continue
        try:
            found += sorted(path.glob(SNAPSHOT_FILES)) or files_of(path)
        except (InstanceError, OSError):  # An invalid trace is reported when it is read.
            found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Values of the options that `simulate` and `compare` share; their help describes them."""

    solver: str | None
    trace_format: str | None
    nodes: Path | None
    period: int | None
    until: int | None
    warm_up: int
    out: Path | None
    report: Path | None
    form: str
    plugins_dir: Path | None
    strict: bool


def check_files(
    options: ReplayOptions,
    traces: Sequence[str],
    models: Iterable[str],
    names: Iterable[str],
    more_inputs: Iterable[Path] = (),
) -> None:
    """Reject outputs that would overwrite an input, and reports that cannot be written.

    `names` are the names of the files that the command writes to the folder `--out`.
    """
    check_folder("--out", options.out)
    inputs = [
        *_list_trace_files(traces, options.trace_format),
        *(_list_trace_files([str(options.nodes)], None) if options.nodes else []),
        *list_plugin_files(options.plugins_dir),
        *map(Path, models),
        *more_inputs,
    ]
    outputs = {
        "--report": [] if options.report is None else [options.report],
        "--out": [] if options.out is None else [options.out / name for name in names],
    }
    check_outputs(outputs, inputs)
    if is_standard(options.report) and options.form != TABLE:
        raise click.UsageError("-o and --report - both write to the standard output")
    check_report(options.report)


def show_problems(console: Console, problems: Sequence[str], *, strict: bool) -> None:
    """Print the problems of traces; exit with 2 if there are any and `strict` is set."""
    if strict and problems:
        mistakes = count_noun(len(problems), "error")
        message = f"nothing is replayed: --strict rejects {mistakes}:"
        print_text(console, message, "red")
    for problem in problems:
        print_text(console, problem, "yellow")
    if strict and problems:
        sys.exit(BAD_INPUT)


def describe_unmeasured(trace: Trace, warm_up_ms: int, until_ms: int | None) -> str:
    """Return a warning if the metrics exclude every job of a trace, or an empty string."""
    end_ms = inf if until_ms is None else until_ms
    if any(warm_up_ms <= arrival.at_ms < end_ms for arrival in trace.arrivals):
        return ""
    return f"{trace.name}: no job arrives between --warm-up and the end, so no job is measured"


replay_options: Final = add_options(
    solver_option,
    click.option(
        "--format",
        "trace_format",
        type=click.Choice(TRACE_FORMATS),
        help="Format of published traces.",
    ),
    click.option(
        "--nodes", type=Source(), help="Replay on the nodes of this trace or of these manifests."
    ),
    click.option(
        "--period",
        type=POSITIVE_SPAN,
        help="Time between two sessions; by default the model's period.",
    ),
    click.option(
        "--until", type=POSITIVE_SPAN, help="Stop each replay at this time after the trace's start."
    ),
    click.option(
        "--warm-up",
        type=SPAN,
        default="0s",
        help="Exclude events before this time from the metrics.",
    ),
    click.option(
        "--strict", is_flag=True, help="Exit with 2 if any object or row of a trace cannot be used."
    ),
    click.option(
        "--plugins-dir",
        type=InputPath(path_type=Path, file_okay=False),
        help="Python files in this folder are plugins that models may name.",
    ),
)
"""Adds the options for trace replays to a command, except models, seeds and outputs."""
