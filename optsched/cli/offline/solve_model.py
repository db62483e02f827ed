"""Solve one instance under one model for `optsched solve`: resume, stop, write the result."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from optsched.cli.base.command_errors import BAD_INPUT
from optsched.cli.base.console import print_text
from optsched.cli.base.options import ParsedText
from optsched.cli.base.path_arguments import WriteError, is_standard, write_text
from optsched.cli.offline.solve_display import show_progress
from optsched.formats.solve_result import read_result, write_result
from optsched.kube.runtime.timing import SystemClock
from optsched.session.offline import OfflineSettings, ResumeError, check_resumable, solve_offline
from optsched.session.solve_settings import solver_of
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from rich.console import Console

    from optsched.cluster.snapshot import Snapshot
    from optsched.formats.solve_result import SolveResult
    from optsched.policy.policy import Policy
    from optsched.session.offline import Assignment
    from optsched.session.session import Report
    from optsched.solver.cpsat.level_model import Limits


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL: Final = 128


class Stop:
    """Whether a solve should stop, and the signal that requested the stop."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._number != 0

    def request(self, number: int) -> None:
        """Request a stop because of the signal with the given number."""
        self._number = number

    @property
    def code(self) -> int:
        """The exit code: 130 after Ctrl-C, 143 after `kill`, 0 without a stop request."""
        return _BY_SIGNAL + self._number if self._number else 0


@contextmanager
def stop_on_signals(report_stop: Callable[[], None]) -> Iterator[Stop]:
    """Yield a `Stop` that records SIGINT and SIGTERM.

    The first signal calls `report_stop`. The second signal raises KeyboardInterrupt. Signals
    are handled only in the main thread.
    """
    stop = Stop()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        if stop():
            raise KeyboardInterrupt
        stop.request(number)
        report_stop()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """File paths of one model: its plan, its result, and the result to resume from."""

    out: Path | None
    result: Path | None
    resume: Path | None

    def for_model(self, name: str) -> ModelFiles:
        """Return one model's file paths; the paths in `self` are folders with a file per model."""
        file = f"{Path(name).name}.json"
        return ModelFiles(
            *(None if p is None else p / file for p in (self.out, self.result, self.resume))
        )

    def written(self) -> Sequence[Path]:
        """Return the paths of the plan file and the result file, without paths that are None."""
        return [path for path in (self.out, self.result) if path is not None]


@dataclass(frozen=True)
class SolveJob:
    """One solve: policy, engine settings, output files and the result to resume from."""

    policy: Policy
    assignment: Assignment
    limits: Limits
    files: ModelFiles
    earlier: SolveResult | None


@dataclass(frozen=True)
class Solved:
    """The outcome of one solve, for tables, files and reports."""

    policy: Policy
    report: Report
    result: SolveResult


def _parse_gap(given: str) -> float:
    text = given.strip()
    number = parse_decimal(text.removesuffix("%"))
    gap = -1.0 if number is None else float(number) / (100 if text.endswith("%") else 1)
    if not 0 <= gap < 1:
        raise ValueError(f"{given!r} is not a gap: write a fraction such as 0.01, or 1%")
    return gap


GAP: Final = ParsedText("gap", _parse_gap)
"""Option type for a relative gap, such as `0.01` or `1%`."""


def read_earlier_result(
    console: Console, path: Path | None, assignment: Assignment
) -> SolveResult | None:
    """Read the result to resume from; exit with 2 if it is for another instance or model."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "is not UTF-8 text"
        _reject(console, [f"{path}: cannot be read: {reason or e}"])
    found, errors = read_result(text)
    if found is None:
        # If the file is not a SolveResult, errors about fields other than `kind` would mislead.
        shown = [error for error in errors if error.path == "kind"] or errors
        _reject(console, [f"{path}: {error}" for error in shown])
    try:
        check_resumable(found, assignment)
    except ResumeError as e:
        _reject(console, [f"{path}: {e}"])
    return found


def _reject(console: Console, lines: Sequence[str]) -> NoReturn:
    for line in lines:
        print_text(console, line, "red")
    sys.exit(BAD_INPUT)


class ResultWriter:
    """A callback that writes intermediate results to a file and reports only its first failure."""

    def __init__(self, console: Console, path: Path) -> None:
        self._console, self._path = console, path
        self._has_reported = False

    def __call__(self, result: SolveResult) -> None:
        """Write an intermediate result; print an error only for the first failure."""
        try:
            write_text(self._path, write_result(result))
        except WriteError as e:
            if not self._has_reported:
                print_text(self._console, f"{e}; solving continues", "yellow")
            self._has_reported = True


def solve_one(
    console: Console,
    snapshot: Snapshot,
    job: SolveJob,
    is_stopped: Callable[[], bool],
    *,
    in_lines: bool,
) -> Solved:
    """Solve a snapshot and return the outcome; show progress and write intermediate results.

    Parameters
    ----------
    console, in_lines
        The console for progress, and whether to print a line for each progress report.
    snapshot, job
        The cluster to solve, and the policy with its limits and files.
    is_stopped
        Function that returns whether a stop was requested.
    """
    clock = None if job.assignment.parameters.is_deterministic else SystemClock()
    begun_s = 0.0 if clock is None else clock.monotonic()
    elapsed = None if clock is None else lambda: clock.monotonic() - begun_s
    kept = job.files.result
    with (
        show_progress(console, job.policy.name, elapsed, in_lines=in_lines) as show,
        solver_of(job.policy, is_stopped) as solver,
    ):
        settings = OfflineSettings(clock, solver, job.limits, is_stopped, show, earlier=job.earlier)
        keep = None if kept is None or is_standard(kept) else ResultWriter(console, kept)
        settings = replace(settings, keep=keep)
        report, result = solve_offline(snapshot, job.policy, job.assignment, settings)
    return Solved(job.policy, report, result)
