"""Send plain HTTP requests to an API server, and watch its objects.

This module shares no code with the client of the scheduler, so it observes the server
independently.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import tempfile
import threading
import time
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")
Raw = dict[str, Any]

PATIENCE_S = 120.0
"""The default limit in seconds for conditions that should hold within moments."""

POLL_S = 0.05
REQUEST_S = 60.0
IDLE_S = 30.0
"""The idle time after which a connection is reopened, because servers close
idle ones after 90 s.
"""
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """A request that the API server refused."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason


def until(probe: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """Return the first true result of the probe, or raise AssertionError after `seconds`.

    A LookupError of the probe counts as false, because a field or an item may be missing at first.
    """
    deadline = time.monotonic() + seconds
    while True:
        last: object
        try:
            if found := probe():
                return found
            last = found
        except LookupError as e:
            last = e
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; last: {last!r}"
        time.sleep(POLL_S)


def is_current(listed: Raw, known: Mapping[str, tuple[int, bool]]) -> bool:
    """Return whether a watch has delivered every change up to a list of its collection.

    `known` maps each UID to its last version, and to whether the object still existed.
    """
    at = int(listed["metadata"]["resourceVersion"])
    metas = [item["metadata"] for item in listed["items"]]
    versions = {meta["uid"]: int(meta["resourceVersion"]) for meta in metas}
    for uid, version in versions.items():
        seen, is_there = known.get(uid, (0, True))
        if is_there and seen < version:
            return False
    return not any(
        is_there and seen <= at and uid not in versions for uid, (seen, is_there) in known.items()
    )


def tls(kubeconfig: Path) -> ssl.SSLContext:
    """Return the TLS context with the client certificate of a kubeconfig."""
    config = json.loads(kubeconfig.read_text())
    authority = b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    user = config["users"][0]["user"]
    context = ssl.create_default_context(cadata=authority.decode())
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / "certificate", Path(directory) / "key"]
        for path, name in zip(paths, ("client-certificate-data", "client-key-data"), strict=True):
            path.write_bytes(b64decode(user[name]))
        context.load_cert_chain(*paths)
    return context


def server_of(kubeconfig: Path) -> str:
    """Return the server address of a kubeconfig."""
    return str(json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


class Api:
    """A client of one user, with one connection per thread."""

    def __init__(self, kubeconfig: Path, user: str = "", groups: Iterable[str] = ()) -> None:
        self._place = urlsplit(server_of(kubeconfig)).netloc
        self._kubeconfig = kubeconfig
        self._tls = tls(kubeconfig)
        self._local = threading.local()
        self._user, self._groups = user, tuple(groups)

    def as_user(self, user: str, *groups: str) -> Api:
        """Return a client for another user, with impersonation by the administrator."""
        return Api(self._kubeconfig, user, groups)

    def get(self, path: str, **query: str) -> Raw:
        """Return an object or a list."""
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    def items(self, path: str, **query: str) -> list[Raw]:
        """Return the objects of a list."""
        found: list[Raw] = self.get(path, **query)["items"]
        return found

    def find(self, path: str) -> Raw | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.get(path)
        except Refused as e:
            if e.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def post(self, path: str, body: Raw) -> Raw:
        """Create an object."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Raw) -> Raw:
        """Change an object by a merge patch."""
        return self._call("PATCH", path, body, MERGE)

    def apply(self, path: str, body: Raw, manager: str, *, force: bool = False) -> Raw:
        """Create or change an object by server-side apply.

        With `force`, change fields of other managers too.
        """
        query = urlencode({"fieldManager": manager, "force": str(force).lower()})
        return self._call("PATCH", f"{path}?{query}", body, APPLY)

    def delete(self, path: str, **query: str) -> None:
        """Delete an object or a collection immediately, and ignore a refusal."""
        asked = urlencode({"gracePeriodSeconds": "0", **query})
        with suppress(Refused):
            self._call("DELETE", f"{path}?{asked}")

    def bind(self, namespace: str, pod: str, node: str, **query: str) -> None:
        """Bind a pod to a node, like a scheduler."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
        self._call("POST", f"{path}?{urlencode(query)}" if query else path, body)

    def close(self) -> None:
        """Close the connection of this thread."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def connect(self, seconds: float | None) -> http.client.HTTPSConnection:
        """Return a new connection with a timeout of `seconds`."""
        host, _, port = self._place.partition(":")
        return http.client.HTTPSConnection(host, int(port), timeout=seconds, context=self._tls)

    def _connection(self) -> http.client.HTTPSConnection:
        """Return the connection of this thread, and reopen it after idle time."""
        now = time.monotonic()
        if not hasattr(self._local, "connection"):
            self._local.connection = self.connect(REQUEST_S)
        elif now - self._local.used_s > IDLE_S:
            self._local.connection.close()
        self._local.used_s = now
        connection: http.client.HTTPSConnection = self._local.connection
        return connection

    def _call(
        self, method: str, path: str, body: Raw | None = None, content: str = "application/json"
    ) -> Raw:
        sent = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            _send(connection, method, path, (sent, [("Content-Type", content), *self._who()]))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        found: Raw = json.loads(text)
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise Refused(answer.status, found.get("reason", ""), found.get("message", ""))
        return found

    def _who(self) -> Iterator[tuple[str, str]]:
        if self._user:
            yield "Impersonate-User", self._user
            yield from (("Impersonate-Group", group) for group in self._groups)
            yield "Impersonate-Group", "system:authenticated"


def _send(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    what: tuple[bytes | None, list[tuple[str, str]]],
) -> None:
    """Send a request, and repeat it if the server has closed an idle connection."""
    try:
        _put(connection, method, path, *what)
    except (ConnectionError, ssl.SSLEOFError):
        connection.close()
        _put(connection, method, path, *what)


def _put(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: list[tuple[str, str]],
) -> None:
    """Send one request. The headers may contain a name several times."""
    connection.putrequest(method, path)
    for name, value in headers:
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)


class Watch:
    """One watch of a collection, which yields events until the server or `close` ends it."""

    def __init__(self, api: Api, path: str, version: str) -> None:
        self._connection = api.connect(None)
        query = urlencode({"watch": 1, "resourceVersion": version, "timeoutSeconds": 3600})
        self._connection.request("GET", f"{path}?{query}")

    def __iter__(self) -> Iterator[Raw]:
        try:
            with self._connection.getresponse() as answer:
                while line := answer.readline():
                    yield json.loads(line)
        finally:
            self._connection.close()

    def close(self) -> None:
        """End the watch from another thread."""
        if self._connection.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)
