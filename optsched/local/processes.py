"""Processes by their command line: start, find, end. Linux.

Every component's command line names its plane's directory, so it is unique, and finding a process
by it needs no record of process ids that could go stale or be given to somebody else.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


PROC = Path("/proc")


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit code, and keep its output."""
    return subprocess.run(  # noqa: S603 - no shell
        command,
        env=env,
        input=input,
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
    )


def spawn(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str], stdin: int | None = None
) -> int:
    """Start a process in a session of its own, its output appended to `log`; returns its id.

    A session of its own keeps a terminal's Ctrl-C from ending components in no order.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    source = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if stdin is None
        else (os.POSIX_SPAWN_DUP2, stdin, 0)
    )
    actions = [
        source,
        (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        command[0], list(command), dict(environment), file_actions=actions, setsid=True
    )


def find_running(commands: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The id of each command that runs, by its name; a zombie does not run."""
    found: dict[str, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        line = _command_line(int(entry.name))
        found |= {
            name: int(entry.name) for name, command in commands.items() if _matches(line, command)
        }
    return found


def is_running(pid: int, command: Sequence[str]) -> bool:
    """Whether the process of that id runs that command."""
    return _matches(_command_line(pid), command)


def _command_line(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _matches(line: bytes, command: Sequence[str]) -> bool:
    # The program itself may have been a script that became another program.
    return line.endswith(b"".join(b"\0" + os.fsencode(part) for part in command[1:]) + b"\0")


def end(pid: int, command: Sequence[str], *, grace_s: float) -> None:
    """Terminate a process, kill it after `grace_s`, and return when it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # From here on the id cannot be another process's.
        if is_running(pid, command):
            _signal_until_gone(handle, grace_s)
    finally:
        os.close(handle)
    has_ended(pid)


def _signal_until_gone(handle: int, grace_s: float) -> None:
    gone = select.poll()
    gone.register(handle, select.POLLIN)
    with suppress(ProcessLookupError):
        if grace_s > 0:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if gone.poll(grace_s * 1000):
                return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        gone.poll()


def has_ended(child: int) -> bool:
    """Whether a child of this process has ended; if so it is reaped.

    Its command line would not tell: the kernel shows it a moment after the start.
    """
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


# Below what Linux gives to outgoing connections and to listeners of port 0
# (net.ipv4.ip_local_port_range begins at 32768), and below the node ports of Kubernetes (30000):
# a port stays free while its owner restarts.
LASTING = range(20_000, 30_000)
MOST_TRIES = 100


def choose_ports(names: Iterable[str], earlier: Mapping[str, int]) -> dict[str, int]:
    """A free loopback port for each name, the earlier one if it can be had.

    Raises OSError when no port is free.
    """
    with ExitStack() as held:
        # All are held until all are chosen, so that no two names get the same.
        sockets = {name: held.enter_context(_bind(earlier.get(name))) for name in names}
        return {name: bound.getsockname()[1] for name, bound in sockets.items()}


def _bind(earlier: int | None) -> socket.socket:
    tries = random.SystemRandom().sample(LASTING, MOST_TRIES)
    for port in [*([] if earlier is None else [earlier]), *tries]:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            bound.close()
        else:
            return bound
    raise OSError(f"no port of 127.0.0.1 is free: {MOST_TRIES} of {LASTING} were tried")
