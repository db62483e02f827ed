"""Start subcommands of `optsched` as processes, either executed or forked.

A forked process starts from a process with all imports. Imports take most of the start time, and
the tests start hundreds of services. Benchmarks execute the command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from optsched.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PRELOADED: Final = (
    "optsched.cli.main",
    "optsched.cli.services.controllers",
    "optsched.cli.services.scheduler",
    "optsched.cli.services.webhook",
    # The commands import these modules when they run.
    "optsched.kube.controllers.process",
    "optsched.kube.scheduler.process",
    "optsched.kube.webhook.process",
)
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_PRELOADED, __name__])


class Service(Protocol):
    """The methods of `subprocess.Popen` that tests use."""

    args: Any

    @property
    def pid(self) -> int:
        """The process ID."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs.

        After a signal, the exit code is negative.
        """

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises TimeoutExpired after `timeout` seconds.
        """

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def terminate(self) -> None:
        """Terminate the process."""

    def kill(self) -> None:
        """Kill the process."""


def execute_service(arguments: Sequence[str], log: Path) -> Service:
    """Start a subcommand with its output in the log, like a user."""
    command = [sys.executable, "-m", "optsched.cli.main", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


class ForkedService:
    """A forked process that runs a subcommand in the caller's environment and directory."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.args = ["optsched", *arguments]
        log.write_bytes(b"")
        given = (self.args, str(log.absolute()), dict(os.environ), str(Path.cwd()))
        self._process = _CONTEXT.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process ID."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs.

        After a signal, the exit code is negative.
        """
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises TimeoutExpired after `timeout` seconds.
        """
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Terminate the process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], log: str, environment: Mapping[str, str], folder: str) -> None:
    """Run the subcommand in the child process."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments
    main(arguments[1:], prog_name=arguments[0])
