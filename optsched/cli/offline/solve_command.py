"""`optsched solve`: solve an instance offline under one or several models."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.cli.base.command_errors import BAD_INPUT, NO_PLAN, NOT_WRITTEN, STOPPED
from optsched.cli.base.console import echo, print_text, stderr, stdout
from optsched.cli.base.options import JSON, SECONDS, SEED, TABLE, form_option, solver_option
from optsched.cli.base.path_arguments import (
    ModelSource,
    OutputPath,
    Source,
    WriteError,
    check_folder,
    check_outputs,
    check_writable,
    is_standard,
    plugins_dir_option,
    write_and_report,
)
from optsched.cli.base.session_context import (
    collect_less,
    list_plugin_files,
    policy_of,
    scheduler_names_option,
)
from optsched.cli.offline.benchmark_instances import OrBenchmark
from optsched.cli.offline.report_page import (
    base_definition,
    check_report,
    report_option,
    write_report,
)
from optsched.cli.offline.solve_display import MOST_ROWS, show_models, show_plan
from optsched.cli.offline.solve_model import (
    GAP,
    ModelFiles,
    Solved,
    SolveJob,
    read_earlier_result,
    solve_one,
    stop_on_signals,
)
from optsched.cluster.reasons import READ_CODES
from optsched.controllers.job.preview import preview_jobs
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.plan import write_plan
from optsched.formats.snapshots.instance_files import (
    files_of,
    instance_identity,
    read_instance,
    versions,
)
from optsched.formats.solve_result import write_result, write_results
from optsched.policy.policy import definition
from optsched.session.offline import Assignment, model_identity, parameters_of
from optsched.session.session import NOTHING
from optsched.session.solve_settings import DEFAULT_SECONDS, limits_of
from optsched.study.comparison.plan_measures import measure_plan
from optsched.study.reports.solve_report import SolvedModel, solve_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from optsched.formats.snapshots.instance_files import Instance
    from optsched.formats.solve_result import InstanceIdentity
    from optsched.policy.policy import Policy


MOST_LEFT_OUT: Final = 20


@dataclass(frozen=True, slots=True)
class Options:
    """Values of the command line options; the help of `solve` describes them."""

    models: tuple[str, ...]
    solver: str | None
    time_limit: float | None
    gap: float | None
    seed: int
    deterministic: bool
    files: ModelFiles
    report: Path | None
    form: str
    progress: bool
    names: tuple[str, ...]
    everything: bool
    plugins_dir: Path | None
    strict: bool = False

    @property
    def prints_a_file(self) -> bool:
        """Whether a file is written to stdout; if so, tables are printed to stderr."""
        return any(map(is_standard, (self.files.out, self.files.result, self.report)))


@click.command(cls=OrBenchmark)
@click.argument("instance", type=Source())
@click.option(
    "--model",
    "models",
    type=ModelSource(),
    multiple=True,
    default=("volcano-default",),
    show_default=True,
    help="Name or file of a model; may be repeated to compare models with the first.",
)
@solver_option
@click.option(
    "--time-limit", type=SECONDS, help=f"Seconds for the solver; {DEFAULT_SECONDS:g} by default."
)
@click.option(
    "--gap",
    type=GAP,
    help="Stop a level once its proved gap is at most this value, such as 0.01 or 1%.",
)
@click.option("--seed", type=SEED, default=0, show_default=True)
@click.option("--deterministic", is_flag=True, help="Reproducible plan: reads no clock.")
@click.option(
    "--out",
    type=OutputPath(path_type=Path),
    help="Write the plan to this file; with several models, one file per model to this folder.",
)
@click.option(
    "--result",
    type=OutputPath(path_type=Path),
    help="Write the plan, search history and provenance to this file or folder.",
)
@click.option(
    "--resume",
    type=Source(),
    help="Resume the solves whose results are in this file or folder, written by --result.",
)
@report_option
@form_option((TABLE, JSON))
@click.option("--progress", is_flag=True, help="Print a line for each improvement.")
@scheduler_names_option
@click.option("--strict", is_flag=True, help="Exit with 2 if an object cannot be used.")
@click.option("--all", "everything", is_flag=True, help="Print every gang.")
@plugins_dir_option
def solve(
    instance: Path,
    out: Path | None,
    result: Path | None,
    resume: Path | None,
    **options: Any,  # noqa: ANN401  click checks them
) -> None:
    """Solve the cluster in INSTANCE: manifests, a folder of manifests, or openb CSV files.

    Prints placements by gang, the certificate, and the pending gangs with reasons. After Ctrl-C,
    the command prints and writes the incumbent. The exit code is 0 if a verified plan was found, 2
    for bad input, 3 if no plan was found, 4 if a file could not be written, and 130 after Ctrl-C.
    """
    console, flags = stderr(), Options(files=ModelFiles(out, result, resume), **options)
    _check_outputs(instance, flags, [flags.files])
    if flags.prints_a_file and flags.form != TABLE:
        raise click.UsageError("-o and the output file `-` both write to the standard output")
    for name, path in (("--out", out), ("--result", result)):
        if len(flags.models) > 1:
            check_folder(name, path)
    collect_less()
    try:
        check_report(flags.report)
        code = _solve(console, instance, flags)
    except click.UsageError:
        raise
    except click.ClickException as e:
        print_text(console, e.format_message(), "red")
        code = NOT_WRITTEN
    except KeyboardInterrupt:
        print_text(console, "interrupted before the first plan", "red")
        code = STOPPED
    sys.exit(code)


def _check_outputs(instance: Path, options: Options, files: Sequence[ModelFiles]) -> None:
    """Reject outputs that would overwrite an input, and two outputs to the same file.

    The new result may overwrite the result from which the solve resumes.
    """
    outs = [p.out for p in files if p.out is not None]
    results = [p.result for p in files if p.result is not None]
    reports = [options.report] if options.report is not None else []
    inputs = [*map(Path, options.models), *list_plugin_files(options.plugins_dir)]
    with suppress(InstanceError):  # `_solve` reports an unreadable instance
        inputs += files_of(instance)
    check_outputs({"--out": outs, "--result": results, "--report": reports}, inputs)
    resumed = [p.resume for p in files if p.resume is not None]
    check_outputs({"--out": outs, "--report": reports}, resumed)


def _solve(console: Console, instance: Path, options: Options) -> int:
    policies = _policies_of(console, options)
    is_alone = len(policies) == 1
    files = {
        given: options.files if is_alone else options.files.for_model(policy.name)
        for given, policy in policies.items()
    }
    if not is_alone:
        _check_outputs(instance, options, list(files.values()))
    _prepare_outputs(console, files)
    read = _instance_of(console, instance, options.names, strict=options.strict)
    try:
        identity = instance_identity(instance)
    except OSError as e:
        print_text(console, f"{e.filename}: cannot be read: {e.strerror}", "red")
        sys.exit(BAD_INPUT)
    jobs = [_job_of(console, options, each, identity, files[each[0]]) for each in policies.items()]
    solved: list[Solved] = []
    is_kept = True
    with stop_on_signals(
        lambda: print_text(console, "stopping; press Ctrl-C again to end immediately", "yellow")
    ) as stop:
        for job in jobs:
            if stop():
                print_text(console, f"{job.policy.name}: not solved", "yellow")
                continue
            found = solve_one(console, read.snapshot, job, stop, in_lines=options.progress)
            solved.append(found)
            _print_solution(console, found, read, options)
            is_kept &= _write_files(console, found, job.files)
    if options.form == JSON:
        results = tuple(each.result for each in solved)
        alone = len(options.models) == 1 and len(results) == 1
        echo(write_result(results[0]) if alone else write_results(results), nl=False)
    elif len(solved) > 1:
        measured = [(s.policy.name, measure_plan(read.snapshot, s.report.plan)) for s in solved]
        show_models(stderr() if options.prints_a_file else stdout(), measured)
    if options.report is not None and solved:
        solved_models = [
            SolvedModel(s.result, definition(s.policy), measure_plan(read.snapshot, s.report.plan))
            for s in solved
        ]
        write_report(
            console, solve_page(read.snapshot, solved_models, base_definition()), options.report
        )
    if stop():
        return stop.code
    if any(each.report.plan.certificate.engine == NOTHING for each in solved):
        return NO_PLAN
    return 0 if is_kept else NOT_WRITTEN


# --- inputs --------------------------------------------------------------------------------------


def _instance_of(
    console: Console, path: Path, names: tuple[str, ...], *, strict: bool = False
) -> Instance:
    """Read the instance at a path, and print its problems.

    The exit code is 2 if the path contains no instance or, with `strict`, an unusable object.
    """
    try:
        with console.status(f"reading {path}") as status:
            read = read_instance(
                path,
                DecodeOptions(names),
                progress=lambda done, total: status.update(
                    f"reading {path}: {100 * done // max(total, 1)} %"
                ),
                preview=preview_jobs,
            )
    except InstanceError as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    is_rejected = strict and bool(read.problems or read.left_out)
    if is_rejected:
        number = len(read.problems) + len(read.left_out)
        objects = "1 problem" if number == 1 else f"{number} problems"
        print_text(console, f"{path}: nothing is solved: --strict rejects {objects}:", "red")
    for problem in read.problems:
        print_text(console, str(problem), "yellow")
    for sentence in read.left_out[:MOST_LEFT_OUT]:
        print_text(console, sentence, "yellow")
    if len(read.left_out) > MOST_LEFT_OUT:
        number = len(read.left_out) - MOST_LEFT_OUT
        print_text(console, f"and {number} more objects that no scheduler reads", "yellow")
    for notice in read.notices:
        print_text(console, notice, "dim")
    if is_rejected:
        sys.exit(BAD_INPUT)
    return read


def _policies_of(console: Console, options: Options) -> Mapping[str, Policy]:
    """Return the policies, keyed by `--model` value; exit with 2 for duplicate values or names."""
    found: dict[str, Policy] = {}
    for model in options.models:
        if model in found:
            print_text(console, f"--model {model}: is given twice; give each model once", "red")
            sys.exit(BAD_INPUT)
        policy = policy_of(console, model, options.solver, options.plugins_dir)
        other = next((m for m, p in found.items() if p.name == policy.name), None)
        if other is not None:
            message = (
                f"--model {model}: has the same name as {other}: {policy.name}; give each name once"
            )
            print_text(console, message, "red")
            sys.exit(BAD_INPUT)
        found[model] = policy
    return found


def _prepare_outputs(console: Console, files: Mapping[str, ModelFiles]) -> None:
    """Create the output folders of several models; exit with 4 if a file cannot be written."""
    try:
        for path in {path for each in files.values() for path in each.written()}:
            if len(files) > 1:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                except OSError as e:
                    raise WriteError(
                        f"{path.parent}: cannot be created: {e.strerror or e}; several models need "
                        "a folder with a file for each"
                    ) from e
            check_writable(path)
    except WriteError as e:
        print_text(console, f"{e}; nothing was solved", "red")
        sys.exit(NOT_WRITTEN)


def _job_of(
    console: Console,
    options: Options,
    model: tuple[str, Policy],
    identity: InstanceIdentity,
    files: ModelFiles,
) -> SolveJob:
    """Return the solve job for one value of the option `--model`.

    The exit code is 2 if the result to resume from is missing, or is for another instance or model.
    """
    given, policy = model
    limits = limits_of(
        policy,
        options.time_limit,
        deterministic=options.deterministic,
        seed=options.seed,
        gap=options.gap,
    )
    # A command that reproduces the model's result; options for output files are omitted.
    command = ["optsched", "solve", identity.path, "--model", given]
    named = {
        "--solver": options.solver,
        "--time-limit": options.time_limit,
        "--gap": options.gap,
        "--seed": options.seed or None,
        "--plugins-dir": options.plugins_dir,
    }
    for name, value in named.items():
        if value is not None:
            command += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    if options.deterministic:
        command.append("--deterministic")
    for name in options.names:
        command += ["--scheduler-name", name]
    assignment = Assignment(
        instance=identity,
        model=model_identity(policy, lambda path: path.read_text(encoding="utf-8")),
        parameters=parameters_of(policy, limits, options.names),
        versions=versions(__version__),
        command=tuple(command),
    )
    earlier = read_earlier_result(console, files.resume, assignment)
    return SolveJob(policy, assignment, limits, files, earlier)


# --- output --------------------------------------------------------------------------------------


def _print_solution(console: Console, solved: Solved, read: Instance, options: Options) -> None:
    """Print a plan, and its session's object errors, rule violations, repairs and plugin errors."""
    report = solved.report
    if options.form == TABLE:
        console = console if options.prints_a_file else stdout()
        if len(options.models) > 1:
            console.print(f"model {solved.policy.name}\n", style="bold", highlight=False)
        show_plan(console, report.plan, sys.maxsize if options.everything else MOST_ROWS)
    # Problems with objects were already reported when the instance was read.
    reported = {(problem.kind, problem.key) for problem in read.problems}
    for flaw in report.flaws:
        if flaw.code not in READ_CODES or (flaw.kind.kind, flaw.key) not in reported:
            print_text(console, str(flaw), "yellow")
    for violation in report.trace.violations:
        print_text(console, f"a solution violated a rule and was rejected: {violation}", "red")
    for repair in report.trace.repairs:
        print_text(console, str(repair), "red")
    for fault in report.trace.faults:
        print_text(console, str(fault), "red")


def _write_files(console: Console, solved: Solved, files: ModelFiles) -> bool:
    """Write the plan and the result; return False if a file could not be written."""
    plan = solved.report.plan
    texts = []
    if files.out is not None and plan.certificate.engine != NOTHING:
        texts.append((files.out, write_plan(plan), ""))
    if files.result is not None:
        partial = f" (partial: {solved.result.ended})" if solved.result.is_partial else ""
        texts.append((files.result, write_result(solved.result), partial))
    return all([write_and_report(console, *each) for each in texts])
