"""A TCP proxy between API servers and the webhook, which holds or cuts connections for a time."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
import time
from typing import Self

PAUSE_S = 0.05
"""The time between two checks of a connection that is held."""

CHUNK = 65536


class ReviewDoor:
    """A proxy that passes all bytes on, except while connections are held or cut."""

    def __init__(self, target: int) -> None:
        """`target` is the port of the webhook, which need not listen yet."""
        self.held_until_s = 0.0
        self.cut_until_s = 0.0
        door = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                door._serve(self.request)

        self._target = target
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="review door")

    @property
    def port(self) -> int:
        """The port to which API servers connect."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_until_s = float("inf")
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, client: socket.socket) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._target), timeout=5.0) as webhook:
                self._copy(client, webhook)
        except OSError:
            return  # the webhook is away, or one side has closed the connection

    def _copy(self, client: socket.socket, webhook: socket.socket) -> None:
        """Copy bytes in both directions until one side ends, or the connection is cut."""
        other = {client: webhook, webhook: client}
        while (now := time.monotonic()) >= self.cut_until_s:
            if now < self.held_until_s:
                time.sleep(PAUSE_S)
                continue
            for source in select.select([*other], [], [], PAUSE_S)[0]:
                data = source.recv(CHUNK)
                if not data:
                    return
                other[source].sendall(data)
