"""Finds free ports on the loopback address."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
