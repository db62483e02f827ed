"""The `--report` option and the HTML page that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.cli.base.console import echo, print_text
from optsched.cli.base.path_arguments import OutputPath, WriteError, check_writable, is_standard
from optsched.policy.load import load_policy
from optsched.policy.policy import definition
from optsched.study.reports.page import render, write_page

if TYPE_CHECKING:
    from rich.console import Console

    from optsched.study.reports.page import Page

BASE: Final = "volcano-default"
"""Name of the baseline model, with which reports compare all other models."""

report_option = click.option(
    "--report",
    type=OutputPath(path_type=Path, dir_okay=False),
    help="Write a report to this file: one self-contained HTML page.",
)


def check_report(target: Path | None) -> None:
    """Raise ClickException if a report cannot be written; commands call this before any work."""
    if target is None or is_standard(target):
        return
    if not target.absolute().parent.is_dir():
        raise click.ClickException(f"{target}: there is no folder {target.parent}")
    try:
        check_writable(target)
    except WriteError as e:
        raise click.ClickException(str(e)) from e


def base_definition() -> dict[str, Any]:
    """Return the definition of the baseline model `BASE`."""
    return definition(load_policy(BASE, lambda path: path.read_text()))


def write_report(console: Console, page: Page, target: Path) -> None:
    """Write a report and print the path; raise ClickException if the file cannot be written."""
    if is_standard(target):
        echo(render(page))
        return
    try:
        write_page(page, target)
    except OSError as e:
        message = f"{target}: {e.strerror}; the report was not written"
        raise click.ClickException(message) from e
    print_text(console, f"wrote {target}", "dim")
