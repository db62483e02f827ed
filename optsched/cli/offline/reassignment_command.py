"""`optsched solve model_*.txt`: reassign processes to machines at minimum cost."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.cli.base.command_errors import BAD_INPUT, NO_PLAN, NOT_WRITTEN, STOPPED
from optsched.cli.base.console import echo, print_text, stderr
from optsched.cli.base.options import TABLE, WholeNumber, format_document, show_rows
from optsched.cli.base.path_arguments import (
    BadInput,
    Source,
    check_outputs,
    is_standard,
    write_and_report,
)
from optsched.cli.offline.benchmark_instances import (
    STOPPED_BY_HAND,
    check_standard_output,
    form_of,
    search_options,
)
from optsched.formats.files.diagnostics import InstanceError
from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.reassignment.reassignment_problem import cost_of
from optsched.study.reassignment.roadef import (
    initial_file,
    read_reassignment,
    reassignment_document,
    write_assignment,
)
from optsched.study.reassignment.solve_reassignment import Effort, reassignments

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from optsched.study.reassignment.reassignment_problem import Reassignment
    from optsched.study.reassignment.solve_reassignment import ReassignmentResult

DEFAULT_SECONDS: Final = 300.0
MOST_STEPS: Final = 10**12
MOST_WORKERS: Final = 256
HEADINGS: Final = ("", "first", "now")
TERMS: Final = {
    "load": "load",
    "balance": "balance",
    "process_moves": "processes moved",
    "service_moves": "services moved",
    "machine_moves": "between machines",
}


@dataclass(frozen=True, slots=True)
class ReassignmentOptions:
    """Values of the command line options; the help of the command describes them."""

    assignment: Path | None
    time_limit: float
    steps: int | None
    seed: int
    workers: int
    out: Path | None
    form: str

    @property
    def effort(self) -> Effort:
        """The limits on the search for an assignment."""
        return Effort(time.monotonic, self.time_limit, self.seed, self.steps)

    @property
    def provenance(self) -> dict[str, Any]:
        """The seed, limits and versions that are needed to reproduce the result."""
        limit = {"steps": self.steps} if self.steps else {"timeLimitSeconds": self.time_limit}
        versions = {"optsched": __version__, "ortools": version("ortools")}
        return {**versions, "seed": self.seed, "workers": self.workers, **limit}


@click.command("solve")
@click.argument("model", type=Source(is_file=True))
@click.option(
    "--assignment",
    type=Source(is_file=True),
    help="Initial assignment; by default assignment_*.txt in the folder of model_*.txt.",
)
@click.option(
    "--steps",
    type=WholeNumber(min=0, max=MOST_STEPS),
    help="Number of annealing steps instead of a time limit, for a reproducible result.",
)
@click.option(
    "--workers",
    type=WholeNumber(min=1, max=MOST_WORKERS),
    default=2,
    show_default=True,
    help="Number of parallel search processes.",
)
@search_options(
    DEFAULT_SECONDS,
    "Seconds.",
    "Write the assignment to this file: as JSON or YAML if it has that extension, otherwise in the "
    "challenge's format.",
)
def reassign(model: Path, **options: Any) -> None:  # noqa: ANN401  click checks them
    """Reassign the processes of MODEL to machines at the least cost.

    MODEL is a machine reassignment instance of the ROADEF/EURO challenge 2012. Prints the cost,
    its components, and a lower bound on the cost. If the command is stopped, it prints and writes
    the incumbent. The exit code is 0 if an assignment was found and verified, 2 for bad input, 3 if
    the costs are too large for an exact sum, 4 if the file could not be written, and 130 after
    Ctrl-C.
    """
    console, flags = stderr(), ReassignmentOptions(**options)
    if flags.assignment is None and initial_file(model) == model:
        raise BadInput(f"{model}: is not called model_*.txt: give --assignment as well")
    check_standard_output(flags.out, flags.form)
    if flags.out is not None:
        inputs = [model, *([flags.assignment] if flags.assignment else [initial_file(model)])]
        check_outputs({"--out": [flags.out]}, inputs)
    try:
        problem = read_reassignment(model, flags.assignment)
    except InstanceError as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    result, code = _solve(console, problem, flags)
    _print_result(model, problem, result, flags)
    if flags.out is not None:
        form = form_of(flags.out)
        if form is None:
            text = write_assignment(result.machine_of)
        else:
            text = format_document(_build_document(model, problem, result, flags), form)
        if not write_and_report(console, flags.out, text):
            code = code or NOT_WRITTEN
    sys.exit(code)


def _solve(
    console: Console, problem: Reassignment, flags: ReassignmentOptions
) -> tuple[ReassignmentResult, int]:
    latest = None
    with ExitStack() as stack, console.status("reassigning") as status:
        workers = [stack.enter_context(closing(WorkerProcess())) for _ in range(flags.workers)]
        try:
            for latest in reassignments(workers, problem, flags.effort):
                status.update(f"reassigning: {latest.cost}, {latest.bound} at least")
        except ValueError as e:
            print_text(console, str(e), "red")
            sys.exit(NO_PLAN)
        except KeyboardInterrupt:
            if latest is None:
                sys.exit(STOPPED)
            return replace(latest, stopped=STOPPED_BY_HAND), STOPPED
    assert latest is not None  # noqa: S101  `reassignments` yields at least one assignment
    return latest, 0


def _print_result(
    model: Path, problem: Reassignment, result: ReassignmentResult, flags: ReassignmentOptions
) -> None:
    if flags.form != TABLE:
        echo(format_document(_build_document(model, problem, result, flags), flags.form), nl=False)
        return
    before = cost_of(problem, problem.initial)
    after = cost_of(problem, result.machine_of)
    rows = [
        [title, *(str(getattr(before, name)), str(getattr(after, name)))]
        for name, title in TERMS.items()
    ]
    rows.append(["cost", str(before.total), str(after.total)])
    rows.append(["bound", "", f"≥ {result.bound}"])
    rows.append(["gap", "", f"{100 * result.gap:.3g} %" if result.gap else "0"])
    is_piped = is_standard(flags.out)
    show_rows(HEADINGS, rows, stderr() if is_piped else None)
    moved = sum(a != b for a, b in zip(result.machine_of, problem.initial, strict=True))
    seconds = result.history[-1][0]
    echo(
        f"{moved} of {len(problem.initial)} processes move; "
        f"found by {result.found_by} after {seconds:.1f} s; {result.stopped}",
        err=is_piped,
    )


def _build_document(
    model: Path, problem: Reassignment, result: ReassignmentResult, flags: ReassignmentOptions
) -> dict[str, Any]:
    parts = asdict(cost_of(problem, result.machine_of))
    json_names = {name: name[0] + name.title().replace("_", "")[1:] for name in TERMS}
    summary = {
        "cost": result.cost,
        "parts": {json_name: parts[name] for name, json_name in json_names.items()},
        "firstCost": cost_of(problem, problem.initial).total,
        "bound": result.bound,
        "gap": round(result.gap, 9),
        "proved": result.is_proved,
        "foundBy": result.found_by,
        "stopped": result.stopped,
        "history": [{"seconds": s, "cost": c} for s, c in result.history],
    }
    return reassignment_document(model, result.machine_of, summary, flags.provenance)
