"""`optsched gpu-hours`: GPU hours by queue and user, from a replay or recorded snapshots."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from optsched.cli.base.command_errors import BAD_INPUT
from optsched.cli.base.console import echo, print_text, stderr, stdout
from optsched.cli.base.options import JSON, TABLE, form_option
from optsched.cli.base.path_arguments import InputPath
from optsched.formats.files.diagnostics import InstanceError
from optsched.study.chargeback import Chargeback, chargeback_of_snapshots, hours_text, of_json
from optsched.study.simulation.replay_trace import read_recorded_snapshots
from optsched.units.input_errors import why_unreadable
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from optsched.study.chargeback import Amounts

RESULT: Final = "result.json"
_NOBODY: Final = "—"


@click.command(name="gpu-hours")
@click.argument("folder", type=InputPath(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--by",
    type=click.Choice(["both", "queue", "user"]),
    default="both",
    show_default=True,
    help="Print a row for each queue and user, for each queue, or for each user.",
)
@form_option((TABLE, "csv", JSON))
def gpu_hours(folder: Path, by: str, form: str) -> None:
    """Report the GPU hours of FOLDER by queue and user.

    FOLDER holds snapshots of a live cluster, written by `optsched snapshot --record`, or a replay,
    written by `optsched simulate --out`.
    """
    try:
        found = _read_charges(folder, stderr())
    except InstanceError as e:
        print_text(stderr(), str(e), "red")
        sys.exit(BAD_INPUT)
    if form == "json":
        echo(write_json(found.as_json(), indent=2))
    elif form == "csv":
        echo(found.as_csv(), nl=False)
    else:
        rows: Mapping[tuple[str, ...], Amounts]
        table = Table(box=None, pad_edge=False)
        if by != "user":
            table.add_column("queue")
        if by != "queue":
            table.add_column("user")
        for heading in ("jobs", "GPU hours", "idle", "evicted", "failed"):
            table.add_column(heading, justify="right")
        if by == "both":
            rows = {(each.queue, each.user): each.amounts for each in found.charges}
        else:
            amounts_by_name = found.by_queue if by == "queue" else found.by_user
            rows = {(name,): amounts for name, amounts in amounts_by_name.items()}
        for names, amounts in rows.items():
            table.add_row(*(name or _NOBODY for name in names), *_format_cells(amounts))
        table.add_row(
            "all", *([""] if by == "both" else []), *_format_cells(found.total), style="bold"
        )
        stdout().print(table)


def _read_charges(folder: Path, console: Console) -> Chargeback:
    result = folder / RESULT
    try:
        is_replay = result.exists()
    except OSError as e:
        raise InstanceError(f"{folder}: cannot be read: {why_unreadable(e)}") from e
    if not is_replay:
        read = read_recorded_snapshots(folder)
        for problem in {str(p): None for each in read for p in each.problems}:
            print_text(console, problem, "yellow")
        return chargeback_of_snapshots([each.snapshot for each in read])
    try:
        given = json.loads(result.read_text(encoding="utf-8"))
        found = of_json(given["gpu_hours"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InstanceError(f"{result}: is not a replay result: {why_unreadable(e)}") from e
    if given.get("complete") is not True:
        print_text(console, f"{result}: the replay is incomplete", "yellow")
    return found


def _format_cells(amounts: Amounts) -> list[str]:
    parts = (amounts.held, amounts.idle, amounts.evicted, amounts.failed)
    return [str(amounts.jobs), *(hours_text(part, 2) for part in parts)]
