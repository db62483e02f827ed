"""The solver process, started by `python -m optsched.solver.cpsat.worker FD`.

The process reads work from a connection, for example (model, limits, is_watched) tuples. The
process sends an update for each level and, if the solve is watched, progress within levels. The
last message of a solve contains the reason why the solve ended. The parent process sends None to
check whether the worker process is ready.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from optsched.solver.cpsat.level_model import DONE
from optsched.solver.cpsat.level_search import run_levels

if TYPE_CHECKING:
    from optsched.solver.cpsat.level_model import LevelUpdate

PARENT_CHECK_SECONDS = 1.0
MOST_KEPT = 100
"""Maximum number of updates with the same solution that are collected before they are sent."""


def serve(connection: Connection) -> None:
    """Process messages until the parent closes the connection."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message is None:
            connection.send(DONE)
            continue
        if isinstance(message, tuple):
            model, limits, is_watched = message
            mail = _Mail(connection)
            on_step = mail.send if is_watched else None
            mail.send(run_levels(model, limits, mail.post, on_step))
        else:
            connection.send(message.run(connection.send))


class _Mail:
    """Groups updates with the same solution so that each solution is sent only once.

    A model may have thousands of levels, and most levels do not change the solution.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept: list[LevelUpdate] = []
        self._sent: LevelUpdate | None = None

    def post(self, update: LevelUpdate) -> None:
        """Send an update with a new solution immediately; collect the other updates."""
        last = self._kept[-1] if self._kept else self._sent
        self._kept.append(update)
        if last is None or last.solution is not update.solution or len(self._kept) >= MOST_KEPT:
            self._flush()

    def send(self, message: object) -> None:
        """Send the collected updates, then `message`."""
        self._flush()
        self._connection.send(message)

    def _flush(self) -> None:
        if self._kept:
            self._connection.send(self._kept)
            self._sent = self._kept[-1]
            self._kept = []


def exit_with_parent(parent: int) -> None:
    """End the worker process when its parent process ends, even during a solve."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    # Ctrl-C signals every process of a terminal, but only the parent process handles the signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
