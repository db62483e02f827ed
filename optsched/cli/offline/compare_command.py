"""`optsched compare`: replay the same traces under several models and compare the metrics."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.table import Table

from optsched.cli.base.command_errors import BAD_INPUT, STOPPED, name_inputs
from optsched.cli.base.console import echo, print_text, stderr, stdout
from optsched.cli.base.options import TABLE, ParsedText, WholeNumber, form_option
from optsched.cli.base.path_arguments import (
    InputPath,
    ModelSource,
    OutputPath,
    TraceSource,
    WriteError,
    is_standard,
    make_folder,
)
from optsched.cli.base.session_context import plugin_source_of
from optsched.cli.offline.replay_options import (
    ReplayOptions,
    check_files,
    describe_unmeasured,
    replay_options,
    show_problems,
)
from optsched.cli.offline.report_page import report_option, write_report
from optsched.formats.files.atomic_write import write_atomically
from optsched.formats.files.diagnostics import InstanceError
from optsched.kube.runtime.timing import SystemClock
from optsched.policy.diagnostic import PolicyError
from optsched.policy.load import load_policy
from optsched.policy.policy import with_solver
from optsched.study.comparison.compared_metrics import (
    FIGURES,
    SHOWN,
    UNKNOWN,
    signed_text,
    value_text,
)
from optsched.study.comparison.comparison_table import Comparison
from optsched.study.comparison.executors import (
    ExecutorError,
    LocalExecutor,
    Tls,
    local_cluster,
    remote_cluster,
)
from optsched.study.comparison.grid import CELLS, ResultFolder, cells_of, read_traces
from optsched.study.reports.comparison_report import comparison_page
from optsched.study.simulation.simulator import Options
from optsched.study.simulation.synthetic_traces import SyntheticError
from optsched.units import count_noun
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from optsched.study.comparison.compared_metrics import Figure
    from optsched.study.comparison.executors import Executor
    from optsched.study.comparison.grid import Cell


_COLUMNS: Final = tuple(figure for figure in FIGURES if figure.name in SHOWN)
_NAMED: Final = 10


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the means of each model, and the differences from the first model."""
    print_text(console, _describe_replays(comparison), "")
    if not comparison.is_complete:
        console.print("incomplete: some replays are missing", highlight=False)
    columns = [
        f for f in _COLUMNS if any(comparison.value(r, f) is not None for r in comparison.rows)
    ]
    console.print()
    means = Table(box=None, pad_edge=False)
    means.add_column("model")
    for figure in columns:
        means.add_column(figure.name, justify="right")
    for model in comparison.models:
        values = (comparison.mean_of_model(model, figure) for figure in columns)
        means.add_row(model, *map(value_text, columns, values))
    console.print(means)
    # Mean times are computed over the jobs that finished under every model.
    what = "times" if len(comparison.models) == 2 else "mean times"
    for model in comparison.models:
        names = [
            name if len(comparison.common) == 1 else f"{name} (seed {seed})"
            for (_, seed), jobs in comparison.unfinished(model).items()
            for name in jobs
        ]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            jobs_text = f"{count_noun(len(names), 'job')} that did not finish under {model}"
            line = f"{what} leave out {jobs_text}: {', '.join(names[:_NAMED])}{more}"
            print_text(console, line, "")
    for model in comparison.models:
        for each in comparison.reasons(model):
            unfinished = f"{count_noun(each.num_gangs, 'job')} unfinished"
            line = f"{model}: {unfinished}: {each.code}, for example {each.example}: {each.message}"
            print_text(console, line, "")
    if len(comparison.models) < 2:
        return
    differences = _build_difference_table(comparison, columns)
    shown = "paired, with simultaneous 95 % confidence intervals"
    console.print()
    title = shown if differences.row_count else "nothing differs"
    console.print(f"against {comparison.models[0]}: {title}", highlight=False)
    if differences.row_count:
        console.print(differences)
        for line in comparison.caveats:
            console.print(line, highlight=False, soft_wrap=True)


def _describe_replays(comparison: Comparison) -> str:
    replays = Counter(row.model for row in comparison.rows)
    numbers = [replays[model] for model in comparison.models]
    if len(set(numbers)) == 1:
        return f"means over {count_noun(numbers[0], 'replay')} of each model"
    each = (
        f"{count_noun(number, 'replay')} of {model}"
        for model, number in zip(comparison.models, numbers, strict=True)
    )
    return f"means over {', '.join(each)}: only the differences compare the same replays"


def _build_difference_table(comparison: Comparison, columns: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "figure"):
        table.add_column(heading)
    for heading in ("difference", "from", "to", "pairs"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for model in comparison.models[1:]:
        for figure in columns:
            found = comparison.difference(model, figure)
            if found is None:
                continue
            ends = (signed_text(figure, found.low), signed_text(figure, found.high))
            zero = value_text(figure, 0.0)
            if {signed_text(figure, found.mean), *ends} <= {zero, UNKNOWN}:
                continue
            mean = signed_text(figure, found.mean)
            verdict = comparison.verdict(model, figure)
            table.add_row(model, figure.name, mean, *ends, str(found.pairs), verdict)
    return table


JSON, CSV, GPU_HOURS = "comparison.json", "comparison.csv", "gpu-hours.csv"
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class CompareOptions(ReplayOptions):
    """Values of the command line options; the help of `compare` describes them."""

    traces: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    workers: int | None
    dask: str | None
    tls: Tls


_MOST_DIGITS: Final = 18
_MOST_SEEDS: Final = 10_000


def _parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as 0-4,7; return them in the given order without duplicates."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        is_ascii = first.isascii() and last.isascii()
        if not (is_ascii and first.isdecimal()) or (dash and not last.isdecimal()):
            raise ValueError(f"{part!r}: write numbers or ranges, such as 0-4,7")
        if max(len(first), len(last)) > _MOST_DIGITS:
            raise ValueError(f"seeds have at most {_MOST_DIGITS} digits")
        numbers = range(int(first), int(last or first) + 1)
        if len(numbers) > _MOST_SEEDS:
            raise ValueError(f"{part!r}: at most {_MOST_SEEDS} seeds are accepted")
        if not numbers:
            raise ValueError(f"{part!r}: a range must end after it begins")
        found |= dict.fromkeys(numbers)
    return tuple(found)


_SEEDS: Final = ParsedText("seeds", _parse_seeds)
_FILE = InputPath(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("traces", type=TraceSource(), nargs=-1, required=True)
@click.option(
    "--model",
    "models",
    type=ModelSource(),
    multiple=True,
    required=True,
    help="Name or file of a model; may be repeated. Models are compared with the first one.",
)
@click.option("--seeds", type=_SEEDS, default="0", show_default=True, help="Such as 0-4,7.")
@replay_options
@click.option(
    "--out",
    type=OutputPath(path_type=Path, file_okay=False),
    help=f"Write {JSON}, {CSV}, {GPU_HOURS} and the result of each replay to this folder.",
)
@click.option(
    "--workers",
    type=WholeNumber(min=0),
    help="Number of worker processes, by default one for each core; 0: replay in this process.",
)
@click.option("--dask", metavar="ADDRESS", help="Replay on the cluster of this Dask scheduler.")
@click.option("--dask-ca", type=_FILE, help="CA certificate of the Dask cluster.")
@click.option("--dask-cert", type=_FILE, help="Client certificate for the Dask cluster.")
@click.option("--dask-key", type=_FILE, help="Private key of the client certificate.")
@report_option
@form_option((TABLE, "json", "csv"))
def compare(
    dask_ca: Path | None,
    dask_cert: Path | None,
    dask_key: Path | None,
    **flags: Any,  # noqa: ANN401  click checks them
) -> None:
    """Compare models on TRACES.

    Each model replays each trace with each seed; a synthetic trace is generated for each seed.
    Differences from the first model are paired by trace and seed. Replays whose results are
    already in the --out folder are not repeated. The exit code is 0 if all replays completed, 1 if
    a replay failed or a file could not be written, 2 for bad input, and 130 after Ctrl-C.
    """
    tls = Tls(dask_ca, dask_cert, dask_key)
    options = CompareOptions(tls=tls, **flags)
    console = stderr()
    for option, given in (("--model", options.models), ("TRACES", options.traces)):
        twice = [name for name, number in Counter(given).items() if number > 1]
        if twice:
            raise click.UsageError(f"{option}: {twice[0]} is given more than once")
    certificates = [path for path in (tls.ca, tls.cert, tls.key) if path is not None]
    check_files(options, options.traces, options.models, (JSON, CSV, GPU_HOURS), certificates)
    try:
        cells = _build_cells(console, options)
        if options.out is not None:
            make_folder(options.out)
        with _open_executor(options, len(cells)) as place:
            run = _Run(cells, ResultFolder(options.out), console)
            comparison, is_stopped = run.play(place)
    except (InstanceError, SyntheticError, PolicyError, ExecutorError) as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    except WriteError as e:
        raise click.ClickException(str(e)) from e
    except OSError as e:
        raise click.ClickException(f"{e.filename or options.out}: {e.strerror}") from e
    unwritten = _write_results(comparison, options.out)
    if options.form == "json":
        echo(write_json(comparison.as_json(), indent=2) + "\n", nl=False)
    elif options.form == "csv":
        echo(comparison.as_csv(), nl=False)
    else:
        show_comparison(console if is_standard(options.report) else stdout(), comparison)
    for name, fault in comparison.failures.items():
        print_text(console, f"{name}: {fault}", "red")
    for name, fault in run.unkept.items():
        print_text(console, f"{name}: replayed, but the result was not written: {fault}", "red")
    for fault in unwritten:
        print_text(
            console, f"{fault}; the results of single replays are in {CELLS} next to it", "red"
        )
    if options.report is not None and comparison.rows:
        write_report(console, comparison_page(comparison), options.report)
    if is_stopped:
        print_text(console, "stopped; the same command resumes from the written results", "yellow")
        sys.exit(STOPPED)
    if comparison.failures or run.unkept or unwritten:
        sys.exit(FAILED)


# --- the grid ------------------------------------------------------------------------------------


def _build_cells(console: Console, flags: CompareOptions) -> list[Cell]:
    plugins = plugin_source_of(flags.plugins_dir)
    policies = {}
    for name in flags.models:
        policy = load_policy(name, lambda path: path.read_text("utf-8"), plugins)
        for warning in policy.warnings:
            print_text(console, f"{name}: {warning}", "yellow")
        policies[name_inputs(name)] = with_solver(policy, flags.solver)
    given = read_traces(flags.traces, flags.seeds, flags.trace_format, flags.nodes)
    problems = list({str(p): None for each in given.values() for p in each.problems})
    show_problems(console, problems, strict=flags.strict)
    simulation = Options(period_ms=flags.period, until_ms=flags.until)
    for each in given.values():
        if remark := describe_unmeasured(each.trace, flags.warm_up, flags.until):
            print_text(console, remark, "yellow")
    return cells_of(policies, given, simulation, flags.warm_up)


@contextmanager
def _open_executor(options: CompareOptions, num_cells: int) -> Iterator[Executor]:
    clock = SystemClock()
    if options.dask is not None:
        with remote_cluster(options.dask, options.tls, clock) as cluster:
            yield cluster
        return
    workers = os.cpu_count() or 1 if options.workers is None else options.workers
    workers = min(workers, num_cells)
    if workers == 0:
        yield LocalExecutor(clock)
        return
    with local_cluster(workers, clock) as local:
        yield local


# --- replays -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """The replays of a comparison; `unkept` states why the result of a replay was not written."""

    cells: list[Cell]
    keep: ResultFolder
    console: Console
    unkept: dict[str, str] = field(default_factory=dict)

    def play(self, place: Executor) -> tuple[Comparison, bool]:
        """Return the comparison, and whether Ctrl-C ended the replays early."""
        results: dict[str, Mapping[str, Any]] = {}
        failures: dict[str, str] = {}
        for cell in self.cells:
            known = self.keep.load_result(cell)
            if known is not None:
                results[cell.key] = known
        if results:
            print_text(
                self.console, f"{len(results)} of {len(self.cells)} were already replayed", "dim"
            )
        is_stopped = False
        try:
            left = {cell.key: cell for cell in self.cells if cell.key not in results}
            with self.console.status("playing") as status:
                for done in place.play(left.values()):
                    if done.result is None:
                        failures[done.cell.name] = done.fault
                        continue
                    results[done.cell.key] = done.result
                    try:
                        self.keep.store_result(done.cell, done.result)
                    except OSError as e:
                        self.unkept[done.cell.name] = f"{e.filename}: {e.strerror}"
                    status.update(f"replayed {len(results)} of {len(self.cells)}")
        except KeyboardInterrupt:
            is_stopped = True
        return Comparison.from_results(self.cells, results, failures), is_stopped


# --- results --------------------------------------------------------------------------------------


def _write_results(comparison: Comparison, out: Path | None) -> list[str]:
    """Write the result files; return one error message per file that was not written."""
    if out is None:
        return []
    unwritten: list[str] = []
    for name, text in (
        (JSON, write_json(comparison.as_json(), indent=2) + "\n"),
        (CSV, comparison.as_csv()),
        (GPU_HOURS, comparison.gpu_hours_as_csv()),
    ):
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, text)
        except OSError as e:
            unwritten.append(f"{e.filename}: {e.strerror}")
    return unwritten
