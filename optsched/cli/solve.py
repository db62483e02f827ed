"""`optsched solve`: decide an instance offline and write the plan."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optsched.cli.benchmarks import OrBenchmark
from optsched.cli.deciding import BAD_INPUT, policy_of, surroundings
from optsched.cli.screen import output, remarks, say
from optsched.cli.show import MOST_ROWS, show_plan
from optsched.formats.instances import read_instance
from optsched.formats.plan import write_plan
from optsched.formats.pods import DecodeOptions
from optsched.formats.problems import InstanceError
from optsched.session.flaws import READ_CODES
from optsched.session.session import run_session
from optsched.session.solving import DEFAULT_SECONDS, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from optsched.formats.instances import Instance
    from optsched.session.flaws import Flaw

NO_PLAN = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; see the help of `solve`."""

    model: str
    solver: str | None
    time_limit: float | None
    deterministic: bool
    out: Path | None
    names: tuple[str, ...]
    everything: bool
    plugins_dir: Path | None


@click.command(cls=OrBenchmark)
@click.argument("instance", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model", default="volcano-default", show_default=True, help="Name of a model, or a file."
)
@click.option("--solver", type=click.Choice(["none"]), help="none: the greedy pipeline alone.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    help=f"Seconds for the solver; {DEFAULT_SECONDS:g} unless said otherwise.",
)
@click.option("--deterministic", is_flag=True, help="The same plan every time: reads no clock.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan to this file."
)
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=("volcano", "optsched"),
    show_default=True,
    help="Decide pods that ask for this scheduler; may be given again.",
)
@click.option("--all", "everything", is_flag=True, help="Print every gang.")
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Python files in this folder are plugins that the model may name.",
)
def solve(instance: Path, **options: Any) -> None:  # noqa: ANN401  click checks them
    """Decide what to do with the cluster in INSTANCE: manifests, a folder of them, or openb CSVs.

    Prints placements by gang, the certificate, and what stays pending and why. Ends with 0 when a
    verified plan was made, 2 for bad input, 3 when there is no plan.
    """
    _solve(instance, Options(**options))


def _solve(instance: Path, options: Options) -> None:
    screen = remarks()
    policy = policy_of(screen, options.model, options.solver, options.plugins_dir)
    read = _instance(screen, instance, options.names)
    limits = limits_of(policy, options.time_limit, deterministic=options.deterministic)
    with (
        screen.status(f"deciding with {policy.name}"),
        surroundings(policy, limits, deterministic=options.deterministic) as around,
    ):
        report = run_session(read.snapshot, policy, around)
    show_plan(output(), report.plan, sys.maxsize if options.everything else MOST_ROWS)
    for flaw in _news(report.flaws, read):
        say(screen, str(flaw), "yellow")
    for violation in report.trace.violations:
        say(screen, f"an answer broke a rule and was not used: {violation}", "red")
    for fault in report.trace.faults:
        say(screen, str(fault), "red")
    if report.plan.certificate.engine == "none":
        sys.exit(NO_PLAN)
    if options.out is not None:
        options.out.write_text(write_plan(report.plan), encoding="utf-8")
        say(screen, f"wrote {options.out}", "dim")


def _instance(screen: Console, path: Path, names: tuple[str, ...]) -> Instance:
    try:
        with _progress(screen, path) as report:
            read = read_instance(path, DecodeOptions(names), progress=report)
    except InstanceError as e:
        say(screen, str(e), "red")
        sys.exit(BAD_INPUT)
    for problem in read.problems:
        say(screen, str(problem), "yellow")
    for notice in read.notices:
        say(screen, notice, "dim")
    return read


def _news(flaws: Iterable[Flaw], read: Instance) -> Iterator[Flaw]:
    """Flaws of which reading has not told already."""
    told = {(problem.kind, problem.key) for problem in read.problems}
    for flaw in flaws:
        if flaw.code not in READ_CODES or (flaw.kind.kind, flaw.key) not in told:
            yield flaw


@contextmanager
def _progress(screen: Console, path: Path) -> Iterator[Callable[[int, int], None]]:
    """Shows how much of an instance has been read."""
    with screen.status(f"reading {path}") as status:

        def report(read: int, total: int) -> None:
            if total:
                status.update(f"reading {path}: {100 * read // total} %")

        yield report
