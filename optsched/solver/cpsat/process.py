"""The interface of solvers, a solver in the caller's process, and a solver in a worker process.

CP-SAT can abort its process after a failed check, and can exceed the time limit in presolve. A live
scheduler therefore uses a worker process. If a solve takes longer than 1.5 times its time budget,
the scheduler kills the process and continues with the results received so far.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from optsched.solver.cpsat.level_model import DONE, Step, forward_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from optsched.solver.cpsat.level_model import LevelModel, LevelUpdate, Limits

    OnStep: TypeAlias = Callable[[Step], None] | None

STOPPED = "interrupted"
OVER_TIME = "solver killed: time limit exceeded"
DIED = "solver process died"
GRACE = 1.5
GRACE_SECONDS = 0.1
LOOK_SECONDS = 0.1
"""Interval in seconds at which a running solve checks for a request to stop."""

START_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class Solved:
    """The result of solving a level model.

    Attributes
    ----------
    updates
        One update per level that the solver reached. If a solve with progress reports is stopped,
        the last update may belong to an unfinished level.

    """

    updates: tuple[LevelUpdate, ...]
    stopped: str

    @property
    def last_solved(self) -> LevelUpdate | None:
        """The last update with a solution, or None if no update has one."""
        return next((u for u in reversed(self.updates) if u.solution is not None), None)


class Solver(Protocol):
    """A solver of level models."""

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        """Solve a model within limits; a failure of the solver raises no error.

        `on_step` receives each better incumbent and each better bound.
        """

    def close(self) -> None:
        """Release the resources of the solver."""


@runtime_checkable
class OverlappingSolver(Solver, Protocol):
    """A solver in another process, so that the caller can work during a solve."""

    def overlap(self, task: Callable[[], object]) -> AbstractContextManager[None]:
        """Return a context manager; `task` runs during the first solve in the `with` block."""


class Work(Protocol):
    """A picklable job, other than a solve, for a worker process."""

    def run(self, report: Callable[[object], None]) -> str:
        """Run the job, pass each result to `report`, and return the reason why the job ended."""


class InProcess:
    """A solver in the caller's process, for tests, studies and single solves."""

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        """See `Solver`."""
        # OR-Tools is imported at the first solve, so runs without a solver never import OR-Tools.
        from optsched.solver.cpsat.level_search import run_levels

        updates: list[LevelUpdate] = []
        stopped = run_levels(model, limits, updates.append, on_step)
        return Solved(tuple(updates), stopped)

    def close(self) -> None:
        """See `Solver`."""


class WorkerProcess:
    """A solver of level models in a worker process.

    The process starts at the first solve. If the process dies, the next solve starts a new process.

    Parameters
    ----------
    is_stopped
        Called repeatedly during a solve; once it returns True, the solve ends with the results
        received so far. If `is_stopped` is None, no solve is stopped early.

    """

    def __init__(self, is_stopped: Callable[[], bool] | None = None) -> None:
        self._is_stopped = is_stopped
        self._overlapped: Callable[[], object] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the worker process if none is running, so that the first solve need not wait."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "optsched.solver.cpsat.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: S603  it runs a module of this package
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def wait_until_ready(self, seconds: float = START_SECONDS) -> bool:
        """Wait until the process has loaded the solver; return False on timeout (`seconds`)."""
        self.start()
        assert self._connection is not None  # noqa: S101  `start` has just set it
        try:
            self._connection.send(None)
            return self._connection.poll(seconds) and self._connection.recv() == DONE
        except (EOFError, OSError):
            return False

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        """See `Solver`."""
        updates: list[LevelUpdate] = []
        steps: list[Step] = []
        seconds = None if limits.budget_ms is None else limits.budget_ms / 1000
        answers = self.work((model, limits, on_step is not None), seconds)
        stopped = forward_messages(
            answers, lambda message: _sort_message(message, updates, steps, on_step)
        )
        done = {update.level for update in updates}
        unfinished = [step.update for step in steps[-1:] if step.update.level not in done]
        return Solved((*updates, *unfinished), stopped)

    @contextmanager
    def overlap(self, task: Callable[[], object]) -> Iterator[None]:
        """See `OverlappingSolver`."""
        self._overlapped = task
        try:
            yield
        finally:
            self._overlapped = None

    def work(self, work: object, seconds: float | None) -> Generator[Any, None, str]:
        """Yield the results of the job as they arrive, and return the reason why the job ended.

        `work` is a `Work`, or the arguments of a solve. `seconds` is the expected duration, or None
        for no limit. The process is killed after about 1.5 times the expected duration.
        """
        if self._is_stopped is not None and self._is_stopped():
            return STOPPED
        self.start()
        assert self._connection is not None  # noqa: S101  `start` has just set it
        end = None if seconds is None else time.monotonic() + seconds * GRACE + GRACE_SECONDS
        try:
            self._connection.send(work)
            if self._overlapped is not None:
                task, self._overlapped = self._overlapped, None
                try:
                    task()
                except BaseException:
                    # Close the connection; otherwise the next solve would read messages of the
                    # interrupted solve.
                    self.close()
                    raise
                # The caller's `task` may run past the deadline, so extend the deadline for reading
                # the results.
                end = None if end is None else max(end, time.monotonic() + GRACE_SECONDS)
            while (why := self._wait(self._connection, end)) is None:
                answer = self._connection.recv()
                if isinstance(answer, str):
                    return answer
                yield answer
        except (EOFError, OSError):
            code = self._process.wait() if self._process is not None else None
            is_signal = code is not None and code < 0
            how = f"signal {-(code or 0)}" if is_signal else f"exit code {code}"
            why = f"{DIED} ({how})"
        self.close()
        return why

    def _wait(self, connection: Connection, end: float | None) -> str | None:
        """Wait for a message; return None if one arrives, else the reason why none arrived."""
        while True:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if self._is_stopped is None:
                return None if connection.poll(left) else OVER_TIME
            if connection.poll(LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)):
                return None
            if self._is_stopped():
                return STOPPED
            if left is not None and left <= LOOK_SECONDS:
                return OVER_TIME

    @property
    def pid(self) -> int | None:
        """The ID of the worker process, or None if none is running."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Kill the worker process and close the connection to it."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None


def _sort_message(
    message: list[LevelUpdate] | Step,
    updates: list[LevelUpdate],
    steps: list[Step],
    on_step: OnStep,
) -> None:
    """Add a message to `updates` (finished levels) or `steps` (progress), and report progress."""
    if not isinstance(message, Step):
        updates.extend(message)
        return
    if message.update.solution is not None:
        steps.append(message)
    if on_step is not None:
        on_step(message)
