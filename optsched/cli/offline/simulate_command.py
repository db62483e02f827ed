"""`optsched simulate`: replay a trace in virtual time and compute its metrics."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.table import Table

from optsched import __version__
from optsched.cli.base.command_errors import BAD_INPUT, STOPPED
from optsched.cli.base.console import echo, print_text, stderr, stdout
from optsched.cli.base.options import JSON, SEED, TABLE, WholeNumber, form_option
from optsched.cli.base.path_arguments import (
    ModelSource,
    OutputPath,
    TraceSource,
    WriteError,
    is_standard,
    make_folder,
    single_model,
)
from optsched.cli.base.session_context import freeze_objects, policy_of
from optsched.cli.offline.replay_options import (
    ReplayOptions,
    check_files,
    describe_unmeasured,
    replay_options,
    show_problems,
)
from optsched.cli.offline.report_page import base_definition, report_option, write_report
from optsched.formats.files.atomic_write import truncate_to_last_line, write_atomically
from optsched.formats.files.diagnostics import InstanceError
from optsched.kube.runtime.timing import SystemClock
from optsched.session.solve_settings import solver_of
from optsched.study.chargeback import Charging
from optsched.study.comparison.compared_metrics import duration_text
from optsched.study.reports.simulation_report import simulation_page
from optsched.study.simulation.record import RecordError, event_of, lines
from optsched.study.simulation.replay_trace import (
    LoadedTrace,
    SimulationResult,
    Tally,
    as_result,
    fingerprint,
    read_given,
)
from optsched.study.simulation.simulation_metrics import Measuring
from optsched.study.simulation.simulator import VERSION, Options, Simulation
from optsched.study.simulation.synthetic_traces import SyntheticError
from optsched.study.simulation.timeline import TimelineBuilder
from optsched.units import format_duration_ms
from optsched.units.input_errors import why_unreadable
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

    from rich.console import Console

    from optsched.policy.policy import Policy
    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.simulation.record import Event


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Print the settings and metrics of a replay."""
    trace, metrics = result["trace"], result["metrics"]
    jobs, nodes = (
        f"{trace[name]} {name if trace[name] != 1 else name[:-1]}" for name in ("jobs", "nodes")
    )
    console.print(
        f"{trace['name']}: {jobs} on {nodes}, "
        f"model {result['model']['name']}, session period "
        f"{format_duration_ms(result['parameters']['period_ms'])}",
        highlight=False,
    )
    if not result["complete"]:
        console.print(f"incomplete: ends at {format_duration_ms(result['ended_at_ms'])}")
    percentiles = ("mean", "p50", "p95", "p99")
    spreads = Table(box=None, pad_edge=False)
    spreads.add_column("of jobs")
    for heading in percentiles:
        spreads.add_column(heading, justify="right")
    for name, key in (("completion time", "jct_s"), ("queueing delay", "queueing_s")):
        if metrics[key] is not None:
            spreads.add_row(name, *(duration_text(metrics[key][k]) for k in percentiles))
    if spreads.row_count:
        console.print()
        console.print(spreads)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in _list_figures(metrics):
        table.add_row(name, value)
    console.print()
    console.print(table)


def _list_figures(m: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "jobs finished", f"{m['finished']} of {m['jobs']}"
    if m["makespan_s"] is not None:
        yield "makespan", duration_text(m["makespan_s"])
    shares = (
        ("allocation", "allocation"),
        ("utilisation", "utilisation"),
        ("fragmentation of free GPUs", "fragmentation"),
        ("DRF distance", "drf_distance"),
        ("jobs treated unfairly (ρ > 1.1)", "ftf_unfair"),
        ("gap to the bounds", "gap"),
    )
    for name, key in shares:
        if m[key] is not None:
            yield name, f"{100 * m[key]:.2f} %"
    for name, key in (("Jain index", "jain"), ("ρ, mean", "ftf_mean"), ("ρ, worst", "ftf_worst")):
        if m[key] is not None:
            yield name, f"{m[key]:.3f}"
    yield "preemptions", str(m["preemptions"])
    yield "stopped by nodes", str(m["node_failures"])
    yield "GPU hours lost", f"{m['wasted_gpu_hours']:.2f}"
    if m["topology_tier"] is not None:
        yield "tier of a gang, mean", f"{m['topology_tier']:.2f}"
    yield "waits broken (SLA)", str(m["sla_misses"])
    yield "sessions", str(m["sessions"])


RECORD, RESULT, CHECKPOINT = "record.jsonl", "result.json", "checkpoint.json"
GPU_HOURS: Final = "gpu-hours.csv"
_EVERY: Final = 20_000


@dataclass(frozen=True, slots=True)
class SimulateOptions(ReplayOptions):
    """Values of the command line options; `simulate --help` describes them."""

    model: str
    seed: int
    checkpoint: int
    resume: bool


@click.command()
@click.argument("trace", type=TraceSource())
@click.option(
    "--model",
    type=ModelSource(),
    multiple=True,
    default=("volcano-default",),
    callback=single_model,
    show_default=True,
    help="Name or file of a model.",
)
@replay_options
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed of the solver.")
@click.option(
    "--out",
    type=OutputPath(path_type=Path, file_okay=False),
    help=f"Write {RECORD}, {RESULT}, {GPU_HOURS} and {CHECKPOINT} into this folder.",
)
@click.option(
    "--checkpoint",
    type=WholeNumber(min=1),
    default=_EVERY,
    show_default=True,
    help="Number of events between two checkpoints; needs --out.",
)
@click.option("--resume", is_flag=True, help="Resume from the checkpoint in --out.")
@report_option
@form_option((TABLE, JSON))
def simulate(trace: str, **options: Any) -> None:  # noqa: ANN401  click checks them
    """Replay TRACE in virtual time with the sessions of the live scheduler.

    TRACE is a file of kind Trace, manifests written by `optsched snapshot` (all jobs arrive at
    time 0 and run forever), a published trace with --format, or `gavel:jobs=1000,nodes=100` for a
    synthetic trace. The exit code is 0 after a complete replay, 2 for bad input, and 130 after
    Ctrl-C.
    """
    console, flags = stderr(), SimulateOptions(**options)
    if flags.out is None and flags.resume:
        raise click.UsageError(
            "--resume needs the folder of the stopped replay: name it with --out"
        )
    check_files(flags, [trace], [flags.model], (RECORD, RESULT, GPU_HOURS, CHECKPOINT))
    policy = policy_of(console, flags.model, flags.solver, flags.plugins_dir)
    try:
        given = read_given(trace, flags.trace_format, flags.nodes)
    except (InstanceError, SyntheticError) as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    show_problems(console, [str(problem) for problem in given.problems], strict=flags.strict)
    if remark := describe_unmeasured(given.trace, flags.warm_up, flags.until):
        print_text(console, remark, "yellow")
    if flags.out is not None:
        try:
            make_folder(flags.out)
        except WriteError as e:
            raise click.ClickException(str(e)) from e
    freeze_objects()
    run = _Run(given, policy, flags)
    try:
        with solver_of(policy) as solver, console.status("playing") as status:
            stopped = run.play(solver, status.update)
        result = run.write_result(complete=not stopped)
    except OSError as e:
        where = e.filename or (flags.out / RECORD if flags.out else "standard output")
        kept = run.truncate_partial_event()
        raise click.ClickException(f"{where}: {e.strerror}; {kept}") from e
    for fault, number in sorted(run.faults.items()):
        print_text(console, f"{fault} ({number} times)", "red")
    if flags.form == "json":
        echo(write_json(result, indent=2))
    else:
        show_result(console if is_standard(flags.report) else stdout(), result)
    if flags.report is not None and run.timeline_builder is not None:
        plan = None if run.simulation is None else run.simulation.last_plan
        pending = {} if plan is None else plan.pending
        timeline = run.timeline_builder.build(result["ended_at_ms"], pending)
        write_report(console, simulation_page(result, timeline, base_definition()), flags.report)
    if stopped:
        print_text(
            console,
            f"stopped; `--resume` continues in {flags.out}" if flags.out else "stopped",
            "yellow",
        )
        sys.exit(STOPPED)


# --- replay --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Run:
    """The replay of a trace, with its event file, checkpoints and metrics."""

    given: LoadedTrace
    policy: Policy
    flags: SimulateOptions
    tally: Tally = field(default_factory=Tally)
    measuring: Measuring = field(init=False)
    charging: Charging = field(init=False)
    timeline_builder: TimelineBuilder | None = field(init=False)
    simulation: Simulation | None = None
    began_s: float = 0.0
    stop: bool = False

    def __post_init__(self) -> None:
        self.measuring = Measuring(self.given.trace, self.flags.warm_up)
        self.charging = Charging(self.given.trace, self.flags.warm_up)
        self.timeline_builder = (
            None if self.flags.report is None else TimelineBuilder(self.given.trace)
        )

    @property
    def options(self) -> Options:
        flags = self.flags
        return Options(period_ms=flags.period, until_ms=flags.until, seed=flags.seed)

    @property
    def faults(self) -> dict[str, int]:
        """How often each plugin error and each plan violation occurred, keyed by message."""
        return {} if self.simulation is None else self.simulation.faults

    def play(self, solver: WorkerProcess | None, report_progress: Callable[[str], None]) -> bool:
        """Replay the trace; return whether a stop request ended the replay early."""
        clock, flags = SystemClock(), self.flags
        self.began_s = clock.monotonic()
        self.simulation = Simulation(
            self.given.trace, self.policy, self.options, solver=solver, clock=clock
        )
        if flags.out is None:
            with _stop_on_signal(self):
                self._run_steps(None, report_progress)
            return self.stop
        if flags.resume:
            self._resume(flags.out)
        # This write marks the folder as incomplete, in case the process is killed later.
        self.write_result(complete=False)
        mode = "a" if flags.resume else "w"
        with (flags.out / RECORD).open(mode, encoding="utf-8") as file, _stop_on_signal(self):
            self._run_steps(file, report_progress)
        return self.stop

    def _run_steps(self, file: IO[str] | None, report_progress: Callable[[str], None]) -> None:
        assert self.simulation is not None  # noqa: S101  `play` sets the simulation first
        next_checkpoint = self.tally.num_events + self.flags.checkpoint
        while not self.stop and (events := self.simulation.step()) is not None:
            text = lines(events)
            if file is not None:
                file.write(text)
            self.tally.add_events(text, len(events))
            self._measure(events)
            if file is not None and self.tally.num_events >= next_checkpoint:
                self._write_checkpoint(file)
                next_checkpoint = self.tally.num_events + self.flags.checkpoint
            at = format_duration_ms(self.simulation.now_ms)
            done = self.measuring.num_finished
            report_progress(f"{at}: {done} of {len(self.given.trace.arrivals)} jobs have finished")
        if file is not None and self.stop:
            self._write_checkpoint(file)

    def _measure(self, events: Iterable[Event]) -> None:
        for event in events:
            self.measuring.add_event(event)
            self.charging.add_event(event)
            if self.timeline_builder is not None:
                self.timeline_builder.add_event(event)

    # --- checkpoints -----------------------------------------------------------------------------

    @property
    def _identity(self) -> dict[str, Any]:
        """The data that identify the replay; a checkpoint with other data is rejected."""
        flags = self.flags
        return {
            "optsched": __version__,
            "trace": self.given.sha256,
            "model": fingerprint(self.policy),
            "period_ms": flags.period,
            "until_ms": flags.until,
            "seed": flags.seed,
        }

    def _write_checkpoint(self, file: IO[str]) -> None:
        assert self.flags.out is not None  # noqa: S101
        assert self.simulation is not None  # noqa: S101
        file.flush()
        state = {
            "of": self._identity,
            "record_bytes": self.tally.num_bytes,
            "state": self.simulation.state(),
        }
        write_atomically(self.flags.out / CHECKPOINT, json.dumps(state))

    def _resume(self, out: Path) -> None:
        assert self.simulation is not None  # noqa: S101
        path = out / CHECKPOINT
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            of, size, state = dict(kept["of"]), int(kept["record_bytes"]), dict(kept["state"])
        except FileNotFoundError as e:
            raise click.ClickException(f"{path}: there is no checkpoint to resume from") from e
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
            raise click.ClickException(f"{path}: is not a checkpoint: {why_unreadable(e)}") from e
        differs = [name for name, value in self._identity.items() if of.get(name) != value]
        if differs:
            names = ", ".join(differs)
            raise click.ClickException(f"{path}: belongs to another replay: {names} differs")
        if state.get("version") != VERSION:
            raise click.ClickException(
                f"{path}: was written by another version of optsched: replay without --resume"
            )
        record = out / RECORD
        with record.open("r+b") as file:
            data = file.read(size)
            if len(data) < size:
                raise click.ClickException(f"{record}: ends before its checkpoint")
            file.truncate(size)
        try:
            text = data.decode()
        except UnicodeDecodeError as e:
            raise click.ClickException(f"{record}: {why_unreadable(e)}") from e
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self._measure([event_of(line)])
            except RecordError as e:
                raise click.ClickException(f"{record}:{number}: {e}") from e
        self.tally.add_events(text, text.count("\n"))
        self.simulation.restore(state)

    # --- results ---------------------------------------------------------------------------------

    def truncate_partial_event(self) -> str:
        """Remove the event that a full disk truncated; return a message about the complete events.

        `result.json` is already marked incomplete. If the disk has space again, `result.json` is
        rewritten with the number of complete events.
        """
        if self.flags.out is None:
            return "no events are kept"
        self.tally = Tally()
        with suppress(OSError):
            text = truncate_to_last_line(self.flags.out / RECORD)
            self.tally.add_events(text, text.count("\n"))
        with suppress(OSError):
            self.write_result(complete=False)
        return (
            f"the first {self.tally.num_events} events are kept; the replay is marked as incomplete"
        )

    def write_result(self, *, complete: bool) -> dict[str, Any]:
        """Return the result of the replay, and write it to the output folder if one is given."""
        simulation = self.simulation
        now_ms = 0 if simulation is None else simulation.now_ms
        played = SimulationResult(
            self.measuring.metrics([] if simulation is None else simulation.session_seconds),
            self.charging.total(now_ms),
            self.tally,
            is_complete=complete,
            ended_at_ms=now_ms,
            faults=self.faults,
            wall_seconds=SystemClock().monotonic() - self.began_s,
        )
        flags = self.flags
        result = as_result(self.given, self.policy, self.options, flags.warm_up, played)
        if flags.out is not None:
            text = write_json(result, indent=2) + "\n"
            write_atomically(flags.out / GPU_HOURS, played.charges.as_csv())
            write_atomically(flags.out / RESULT, text)
        return result


@contextmanager
def _stop_on_signal(run: _Run) -> Iterator[None]:
    """Set `run.stop` on SIGINT and SIGTERM; the replay ends after the current step."""

    def stop(*_: object) -> None:
        run.stop = True

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
