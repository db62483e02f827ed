"""`optsched simulate`: play a trace on virtual time and measure what came of it."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.cli.plugins import shelf_of
from optsched.cli.screen import output, remarks, say
from optsched.cli.showsimulation import show_result
from optsched.engines.cpsat.solver import WorkerProcess
from optsched.formats.instances import read_instance
from optsched.formats.problems import InstanceError
from optsched.formats.traces.own import is_own, read_own
from optsched.formats.traces.read import TRACE_FORMATS, read_published_trace
from optsched.kube.clock import SystemClock
from optsched.policy.load import load_policy
from optsched.policy.policy import SolverKind, describe, without_solver
from optsched.policy.problem import PolicyError
from optsched.study.metrics import Measuring, as_json
from optsched.study.simulation.record import RecordError, event_of, lines
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.traces import trace_of
from optsched.study.synthetic import SyntheticError, synthetic
from optsched.units import DurationError, format_duration_ms, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from rich.console import Console

    from optsched.domain.cluster import Node
    from optsched.domain.trace import Trace, TraceProblem
    from optsched.formats.problems import ObjectProblem
    from optsched.policy.policy import Policy

BAD_INPUT: Final = 2
STOPPED: Final = 130

RECORD, RESULT, CHECKPOINT = "record.jsonl", "result.json", "checkpoint.json"
_EVERY: Final = 20_000


class _Span(click.ParamType[int]):
    """A duration, in milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Milliseconds of a text such as 90s or 2h; plain numbers of days end in `d`."""
        text = str(value)
        days = text.removesuffix("d")
        if text.endswith("d") and days.isdecimal():
            return int(days) * 24 * 3600 * 1000
        try:
            found = parse_duration_ms(text)
        except DurationError as e:
            self.fail(str(e), param, ctx)
        if found < 0:
            self.fail(f"{text} is below zero", param, ctx)
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for; see the help of `simulate`."""

    model: str
    solver: str | None
    trace_format: str | None
    nodes: Path | None
    period: int | None
    until: int | None
    warm_up: int
    seed: int
    out: Path | None
    checkpoint: int
    resume: bool
    form: str
    plugins_dir: Path | None


@dataclass(frozen=True, slots=True)
class Given:
    """A trace, what was left out of it, and where it came from."""

    trace: Trace
    source: str
    sha256: str
    problems: tuple[TraceProblem | ObjectProblem, ...] = ()


@click.command()
@click.argument("trace", type=str)
@click.option(
    "--model", default="volcano-default", show_default=True, help="Name of a model, or a file."
)
@click.option("--solver", type=click.Choice(["none"]), help="none: the greedy pipeline alone.")
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(TRACE_FORMATS),
    help="TRACE was published in this format.",
)
@click.option(
    "--nodes",
    type=click.Path(exists=True, path_type=Path),
    help="Play it on the nodes of this trace or of these manifests.",
)
@click.option("--period", type=_Span(), help="From session to session; the model's if not given.")
@click.option("--until", type=_Span(), help="Stop at this instant of the trace.")
@click.option("--warm-up", type=_Span(), default="0s", help="What happens before does not count.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the solver.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Write {RECORD}, {RESULT} and {CHECKPOINT} into this folder.",
)
@click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    default=_EVERY,
    show_default=True,
    help="Note where it stands after so many events; needs --out.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in --out.")
@click.option(
    "-o", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Python files in this folder are plugins that the model may name.",
)
def simulate(trace: str, **asked: Any) -> None:  # noqa: ANN401  click checks them
    """Play TRACE on virtual time: arrivals, failures, and the sessions of the live scheduler.

    TRACE is a file of kind Trace, manifests as `optsched snapshot` writes them (everything arrives
    at once and runs for ever), a published trace with --format, or `gavel:jobs=1000,nodes=100` for
    a synthetic one. Ends with 0 when it has been played, 2 for bad input, 130 when it was stopped.
    """
    _simulate(trace, Asked(**asked))


def _simulate(trace: str, asked: Asked) -> None:
    screen = remarks()
    if asked.out is None and asked.resume:
        raise click.UsageError("--resume goes on from what is in a folder: name it with --out")
    policy = _policy(screen, asked)
    given = _given(screen, trace, asked)
    run = _Run(given, policy, asked)
    try:
        with _solver(policy) as solver, screen.status("playing") as status:
            stopped = run.play(solver, status.update)
    except OSError as e:
        where = e.filename or asked.out
        kept = f"the first {run.num_events} events are kept" if asked.out else "nothing is kept"
        run.write_result(complete=False, best_effort=True)
        raise click.ClickException(f"{where}: {e.strerror}; {kept}, marked as incomplete") from e
    result = run.write_result(complete=not stopped)
    for fault, number in sorted(run.faults.items()):
        say(screen, f"{fault} ({number} times)", "red")
    if asked.form == "json":
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        show_result(output(), result)
    if stopped:
        say(
            screen,
            f"stopped; `--resume` goes on from {asked.out}" if asked.out else "stopped",
            "yellow",
        )
        sys.exit(STOPPED)


# --- what is given -------------------------------------------------------------------------------


def _policy(screen: Console, asked: Asked) -> Policy:
    shelf = shelf_of(asked.plugins_dir)
    try:
        policy = load_policy(asked.model, lambda path: path.read_text(), shelf)
    except PolicyError as e:
        say(screen, str(e), "red")
        sys.exit(BAD_INPUT)
    for warning in policy.warnings:
        say(screen, str(warning), "yellow")
    return without_solver(policy) if asked.solver == "none" else policy


def _given(screen: Console, text: str, asked: Asked) -> Given:
    try:
        given = _read(text, asked)
    except (InstanceError, SyntheticError) as e:
        say(screen, str(e), "red")
        sys.exit(BAD_INPUT)
    for problem in given.problems:
        say(screen, str(problem), "yellow")
    return given


def _read(text: str, asked: Asked) -> Given:
    if text.startswith("gavel:"):
        return Given(synthetic(text), text, hashlib.sha256(text.encode()).hexdigest())
    path = Path(text)
    if not path.exists():
        raise InstanceError(f"{text}: there is no such file or folder")
    if asked.trace_format is not None:
        nodes = None if asked.nodes is None else _nodes_of(asked.nodes)
        trace, problems = read_published_trace(asked.trace_format, path, nodes)
        return Given(trace, text, _sha256(path), problems)
    if path.is_file() and is_own(path):
        trace, problems = read_own(path)
        return Given(trace, text, _sha256(path), problems)
    instance = read_instance(path)
    return Given(trace_of(instance.snapshot, path.stem), text, _sha256(path), instance.problems)


def _nodes_of(path: Path) -> tuple[Node, ...]:
    if path.is_file() and is_own(path):
        return read_own(path)[0].nodes
    return read_instance(path).snapshot.nodes


def _sha256(path: Path) -> str:
    """Of a file, or of all files in a folder with their names."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        whole.update(f"{file.relative_to(path)}\n{_sha256(file)}\n".encode())
    return whole.hexdigest()


@contextmanager
def _solver(policy: Policy) -> Iterator[WorkerProcess | None]:
    """A worker for policies that have one."""
    if policy.solver is SolverKind.NONE:
        yield None
        return
    worker = WorkerProcess()
    try:
        worker.wait_until_ready()
        yield worker
    finally:
        worker.close()


# --- playing -------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Run:
    """A replay, what is written of it, and what it comes to."""

    given: Given
    policy: Policy
    asked: Asked
    num_events: int = 0
    num_bytes: int = 0
    record_sha256: Any = field(default_factory=hashlib.sha256)
    measuring: Measuring = field(init=False)
    simulation: Simulation | None = None
    began_s: float = 0.0
    stop: bool = False

    def __post_init__(self) -> None:
        self.measuring = Measuring(self.given.trace, self.asked.warm_up)

    @property
    def faults(self) -> dict[str, int]:
        """What went wrong in rules, and how often."""
        return {} if self.simulation is None else self.simulation.faults

    def play(self, solver: WorkerProcess | None, tell: Callable[[str], None]) -> bool:
        """Play to the end; whether it was stopped before."""
        clock, asked = SystemClock(), self.asked
        self.began_s = clock.monotonic()
        options = Options(period_ms=asked.period, until_ms=asked.until, seed=asked.seed)
        self.simulation = Simulation(
            self.given.trace, self.policy, options, solver=solver, clock=clock
        )
        if asked.out is None:
            with _stoppable(self):
                self._go_on(None, tell)
            return self.stop
        asked.out.mkdir(parents=True, exist_ok=True)
        if asked.resume:
            self._resume(asked.out)
        mode = "a" if asked.resume else "w"
        with (asked.out / RECORD).open(mode, encoding="utf-8") as file, _stoppable(self):
            self._go_on(file, tell)
        return self.stop

    def _go_on(self, file: IO[str] | None, tell: Callable[[str], None]) -> None:
        assert self.simulation is not None  # noqa: S101  play has just made it
        next_checkpoint = self.num_events + self.asked.checkpoint
        while not self.stop and (events := self.simulation.step()) is not None:
            text = lines(events)
            if file is not None:
                file.write(text)
            self._count(text, len(events))
            for event in events:
                self.measuring.take(event)
            if file is not None and self.num_events >= next_checkpoint:
                self._write_checkpoint(file)
                next_checkpoint = self.num_events + self.asked.checkpoint
            tell(self._progress())
        if file is not None and self.stop:
            self._write_checkpoint(file)

    def _count(self, text: str, num_events: int) -> None:
        data = text.encode()
        self.record_sha256.update(data)
        self.num_bytes += len(data)
        self.num_events += num_events

    def _progress(self) -> str:
        assert self.simulation is not None  # noqa: S101
        at = format_duration_ms(self.simulation.now_ms)
        done = self.measuring.num_finished
        return f"{at}: {done} of {len(self.given.trace.arrivals)} jobs done"

    # --- standing still --------------------------------------------------------------------------

    @property
    def _belongs_to(self) -> dict[str, Any]:
        """What a checkpoint is of: it makes no sense for anything else."""
        asked = self.asked
        return {
            "optsched": __version__,
            "trace": self.given.sha256,
            "model": _fingerprint(self.policy),
            "period_ms": asked.period,
            "until_ms": asked.until,
            "seed": asked.seed,
        }

    def _write_checkpoint(self, file: IO[str]) -> None:
        assert self.asked.out is not None  # noqa: S101
        assert self.simulation is not None  # noqa: S101
        file.flush()
        state = {
            "of": self._belongs_to,
            "record_bytes": self.num_bytes,
            "state": self.simulation.state(),
        }
        target = self.asked.out / CHECKPOINT
        fresh = target.with_suffix(".new")
        fresh.write_text(json.dumps(state), encoding="utf-8")
        fresh.replace(target)

    def _resume(self, out: Path) -> None:
        assert self.simulation is not None  # noqa: S101
        path = out / CHECKPOINT
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            of, size, state = kept["of"], int(kept["record_bytes"]), kept["state"]
        except FileNotFoundError as e:
            raise click.ClickException(f"{path}: there is no checkpoint to go on from") from e
        except (ValueError, KeyError, TypeError) as e:
            raise click.ClickException(f"{path}: is no checkpoint: {e}") from e
        differs = [name for name, value in self._belongs_to.items() if of.get(name) != value]
        if differs:
            told = ", ".join(differs)
            raise click.ClickException(f"{path}: is of another replay: {told} differs")
        self._reread(out / RECORD, size)
        self.simulation.restore(state)

    def _reread(self, record: Path, size: int) -> None:
        """Measure again what was recorded, and drop what came after the checkpoint."""
        with record.open("r+b") as file:
            data = file.read(size)
            if len(data) < size:
                raise click.ClickException(f"{record}: ends before its checkpoint")
            file.truncate(size)
        text = data.decode()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self.measuring.take(event_of(line))
            except RecordError as e:
                raise click.ClickException(f"{record}:{number}: {e}") from e
        self._count(text, text.count("\n"))

    # --- results ---------------------------------------------------------------------------------

    def write_result(self, *, complete: bool, best_effort: bool = False) -> dict[str, Any]:
        """What it came to, in the folder as well if there is one."""
        result = self._result(complete=complete)
        if self.asked.out is not None:
            text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
            try:
                (self.asked.out / RESULT).write_text(text, encoding="utf-8")
            except OSError as e:
                if not best_effort:
                    raise click.ClickException(f"{self.asked.out / RESULT}: {e.strerror}") from e
        return result

    def _result(self, *, complete: bool) -> dict[str, Any]:
        simulation, trace, asked = self.simulation, self.given.trace, self.asked
        seconds = [] if simulation is None else simulation.session_seconds
        return {
            "apiVersion": "optsched.io/v1alpha1",
            "kind": "SimulationResult",
            "complete": complete,
            "versions": _versions(),
            "trace": {
                "name": trace.name,
                "source": self.given.source,
                "sha256": self.given.sha256,
                "jobs": len(trace.arrivals),
                "nodes": len(trace.nodes),
                "left_out": [str(p) for p in self.given.problems],
            },
            "model": {"name": self.policy.name, "sha256": _fingerprint(self.policy)},
            "parameters": {
                "period_ms": asked.period or self.policy.budgets.period_ms,
                "until_ms": asked.until,
                "warm_up_ms": asked.warm_up,
                "seed": asked.seed,
            },
            "record": {"events": self.num_events, "sha256": self.record_sha256.hexdigest()},
            "ended_at_ms": 0 if simulation is None else simulation.now_ms,
            "metrics": as_json(self.measuring.metrics(seconds)),
            "faults": self.faults,
            "wall_seconds": round(SystemClock().monotonic() - self.began_s, 3),
        }


def _fingerprint(policy: Policy) -> str:
    return hashlib.sha256(describe(policy).encode()).hexdigest()


def _versions() -> dict[str, str]:
    others = {name: version(name) for name in ("numpy", "ortools", "scipy")}
    return {"optsched": __version__, "python": python_version(), **others}


@contextmanager
def _stoppable(run: _Run) -> Iterator[None]:
    """Signals stop a run between two sessions, not in the middle of one."""

    def stop(*_: object) -> None:
        run.stop = True

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
