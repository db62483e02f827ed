"""Start processes, find them by their command lines, and terminate them; Linux only.

A component's command line names the directory of its control plane and is therefore unique. Process
ids are not recorded, because another process could reuse them.
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
    """Run a command and wait for it; return its output and exit code, even if it fails."""
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
    """Start a process in a new session, append its output to `log`, and return its id.

    In the terminal's session, Ctrl-C would terminate all components in arbitrary order.
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
    """Return the process ids of the running commands, keyed by name; zombies are ignored.

    The names in the result have the same order as in `commands`. Process ids do not show the start
    order, because the kernel continues with low ids after the highest id.
    """
    found: dict[str, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        line = _command_line(int(entry.name))
        found |= {
            name: int(entry.name) for name, command in commands.items() if _matches(line, command)
        }
    return {name: found[name] for name in commands if name in found}


def is_running(pid: int, command: Sequence[str]) -> bool:
    """Return whether the process `pid` exists and runs `command`."""
    return _matches(_command_line(pid), command)


def _command_line(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _matches(line: bytes, command: Sequence[str]) -> bool:
    # Do not compare the program name: a script may have replaced itself with another program.
    return line.endswith(b"".join(b"\0" + os.fsencode(part) for part in command[1:]) + b"\0")


def end(pid: int, command: Sequence[str], *, grace_s: float) -> None:
    """Send SIGTERM and, if the process runs after `grace_s` seconds, SIGKILL; await the exit."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # While the process handle is open, the kernel cannot reuse the process id.
        if is_running(pid, command):
            end_of_process = select.poll()
            end_of_process.register(handle, select.POLLIN)
            with suppress(ProcessLookupError):
                if grace_s > 0:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
                if grace_s <= 0 or not end_of_process.poll(grace_s * 1000):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    end_of_process.poll()
    finally:
        os.close(handle)
    has_ended(pid)


def has_ended(child: int) -> bool:
    """Return whether a child process has exited, and reap it if so.

    Just after a start, `/proc` does not yet show the command line. A missing command line therefore
    does not mean that the child process has exited.
    """
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


# Linux assigns ports from 32768 upwards (net.ipv4.ip_local_port_range) to outgoing connections and
# to listeners on port 0. Kubernetes assigns node ports from 30000 upwards. A port below 30000
# therefore stays free while a component restarts.
LASTING = range(20_000, 30_000)
MAX_TRIES = 100


def choose_ports(names: Iterable[str], earlier: Mapping[str, int]) -> dict[str, int]:
    """Return a free loopback port for each name; the name's port in `earlier` is preferred.

    Raises OSError if no port is free.
    """
    with ExitStack() as held:
        # Keep each port bound until all ports are chosen; otherwise two names could share a port.
        sockets = {name: held.enter_context(_bind(earlier.get(name))) for name in names}
        return {name: bound.getsockname()[1] for name, bound in sockets.items()}


def _bind(earlier: int | None) -> socket.socket:
    tries = random.SystemRandom().sample(LASTING, MAX_TRIES)
    for port in [*([] if earlier is None else [earlier]), *tries]:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            bound.close()
        else:
            return bound
    raise OSError(f"no free port on 127.0.0.1: tried {MAX_TRIES} of {LASTING}")
