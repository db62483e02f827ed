"""The solver process: `python -m optsched.engines.cpsat.worker FD`.

Reads (model, limits, is_watched) or other work from a connection, answers with updates, between
them with steps for whoever watches, and at last with a word why it stopped. A message of None asks
whether it is ready.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from optsched.engines.cpsat.run import run_levels
from optsched.engines.cpsat.solver import DONE

PARENT_CHECK_SECONDS = 1.0


def serve(connection: Connection) -> None:
    """Answer until the other side closes."""
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
            tell = connection.send if is_watched else None
            connection.send(run_levels(model, limits, connection.send, tell))
        else:
            connection.send(message.run(connection.send))


def exit_with_parent(parent: int) -> None:
    """End this process, in the middle of a solve if need be, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    # Ctrl-C reaches every process of a terminal; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
