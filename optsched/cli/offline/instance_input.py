"""Read an instance with progress, and print its problems."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from optsched.cli.base.console import print_text
from optsched.cli.base.exit_codes import BAD_INPUT
from optsched.cluster.reasons import READ_CODES
from optsched.controllers.job.preview import preview_jobs
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import read_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from optsched.cluster.reasons import Flaw
    from optsched.formats.snapshots.instance_files import Instance

MOST_LEFT_OUT: Final = 20


def instance_of(
    console: Console, path: Path, names: tuple[str, ...], *, strict: bool = False
) -> Instance:
    """Return the instance at a path and print its problems.

    Ends with 2 where there is none, and with `strict` where anything of it is left out.
    """
    try:
        with _progress(console, path) as report:
            read = read_instance(path, DecodeOptions(names), progress=report, preview=preview_jobs)
    except InstanceError as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    is_refused = strict and bool(read.problems or read.left_out)
    if is_refused:
        number = len(read.problems) + len(read.left_out)
        objects = "1 mistake or object" if number == 1 else f"{number} mistakes and objects"
        print_text(
            console, f"{path}: nothing is decided: --strict refuses {objects}. Without it:", "red"
        )
    for problem in read.problems:
        print_text(console, str(problem), "yellow")
    for sentence in _limit_sentences(read.left_out):
        print_text(console, sentence, "yellow")
    for notice in read.notices:
        print_text(console, notice, "dim")
    if is_refused:
        sys.exit(BAD_INPUT)
    return read


def _limit_sentences(sentences: Sequence[str]) -> Iterator[str]:
    yield from sentences[:MOST_LEFT_OUT]
    if len(sentences) > MOST_LEFT_OUT:
        yield f"and {len(sentences) - MOST_LEFT_OUT} more objects that no scheduler reads"


def unreported_flaws(flaws: Iterable[Flaw], read: Instance) -> Iterator[Flaw]:
    """Yield the flaws that reading has not reported."""
    told = {(problem.kind, problem.key) for problem in read.problems}
    for flaw in flaws:
        if flaw.code not in READ_CODES or (flaw.kind.kind, flaw.key) not in told:
            yield flaw


@contextmanager
def _progress(console: Console, path: Path) -> Iterator[Callable[[int, int], None]]:
    """Show how much of an instance has been read."""
    with console.status(f"reading {path}") as status:

        def report(read: int, total: int) -> None:
            if total:
                status.update(f"reading {path}: {100 * read // total} %")

        yield report
