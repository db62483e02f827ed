"""Start processes, find processes by their command lines, and end processes; Linux only.

The command line of a component names the directory of its plane and is therefore unique. Finding a
process by its command line requires no record of process ids, which could be reused by another
process.
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
    """Run a command to its end; returns its output and exit code, even if the command fails."""
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

    If the process were in the session of the terminal, Ctrl-C would end all components in arbitrary
    order.
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
    """Return the process id of each running command, by name; zombies are ignored."""
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
    """Return whether process `pid` runs a command."""
    return _matches(_command_line(pid), command)


def _command_line(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _matches(line: bytes, command: Sequence[str]) -> bool:
    # The program name is not compared, because a script may have replaced itself by another
    # program.
    return line.endswith(b"".join(b"\0" + os.fsencode(part) for part in command[1:]) + b"\0")


def end(pid: int, command: Sequence[str], *, grace_s: float) -> None:
    """Terminate a process, and kill the process after `grace_s` seconds; returns after its end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # While the handle is open, no other process can get the same id.
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
    """Return whether a child of this process has ended, and reap an ended child.

    The kernel shows a command line with a short delay after the start. A missing command line
    therefore does not mean that the child has ended.
    """
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


# Linux assigns ports from 32768 on (net.ipv4.ip_local_port_range) to outgoing connections and to
# listeners of port 0. Kubernetes assigns node ports from 30000 on. A port below both ranges stays
# free while its owner restarts.
LASTING = range(20_000, 30_000)
MAX_TRIES = 100


def choose_ports(names: Iterable[str], earlier: Mapping[str, int]) -> dict[str, int]:
    """Return a free loopback port for each name: the earlier port if still free.

    Raises OSError if no port is free.
    """
    with ExitStack() as held:
        # Each port stays bound until all ports are chosen, so that no two names get the same port.
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
