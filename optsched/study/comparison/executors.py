"""Executors that replay the cells of a grid: this process, worker processes or a Dask cluster.

Dask sends pickled code between processes: any client that reaches a Dask scheduler can run code on
its workers. Local clusters therefore listen only on the loopback interface, and remote clusters
require TLS.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from optsched import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from distributed import Client, Security

    from optsched.session.ports import Clock
    from optsched.study.comparison.grid import Cell

INSTALL = "Dask is not installed: `pip install 'optsched[study]'`, or use --workers 0"
CONNECT_S = 10
WORKERS_S = 60
"""Time in seconds within which the first worker of a cluster must connect."""


class ExecutorError(Exception):
    """Raised if an executor cannot be used; the message states the cause and what to do."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell's replay, or the error message if the replay failed."""

    cell: Cell
    result: Mapping[str, Any] | None
    fault: str = ""


class Executor(Protocol):
    """An executor that replays grid cells in any order."""

    def play(self, cells: Iterable[Cell]) -> Iterator[CellResult]:
        """Replay the cells; yield each cell's result or error as soon as it is available."""


@dataclass(frozen=True)
class LocalExecutor:
    """An executor that replays grid cells sequentially in this process."""

    clock: Clock

    def play(self, cells: Iterable[Cell]) -> Iterator[CellResult]:
        """Replay the cells one after another in this process."""
        for cell in cells:
            try:
                yield CellResult(cell, cell.played(self.clock))
            except Exception as e:
                yield CellResult(cell, None, f"{type(e).__name__}: {e}")


@dataclass(frozen=True)
class DaskExecutor:
    """An executor on Dask workers; if a worker dies, another worker replays its cells."""

    client: Client
    clock: Clock

    def play(self, cells: Iterable[Cell]) -> Iterator[CellResult]:
        """Replay the cells on the Dask workers."""
        from distributed import as_completed

        cell_of = {
            self.client.submit(_played, cell, self.clock, __version__, pure=False): cell
            for cell in cells
        }
        for future in as_completed(list(cell_of)):
            if future.status == "finished":
                yield CellResult(cell_of[future], future.result())
            elif future.status in ("cancelled", "lost"):
                fault = (
                    "the Dask scheduler has stopped, or has lost this replay: run the same command "
                    "again to replay the missing cells"
                )
                yield CellResult(cell_of[future], None, fault)
            else:
                error = future.exception()
                yield CellResult(cell_of[future], None, f"{type(error).__name__}: {error}")
            future.release()


class VersionError(Exception):
    """Raised if a worker runs a different optsched version, which could compute different plans."""


def _played(cell: Cell, clock: Clock, wanted: str) -> dict[str, Any]:
    """Replay a cell on a worker; raise VersionError if the worker's version is not `wanted`."""
    if wanted != __version__:
        raise VersionError(
            f"this worker has optsched {__version__}, the client has {wanted}: "
            "install the same version"
        )
    return cell.played(clock)


@dataclass(frozen=True, slots=True)
class Tls:
    """The paths of the CA certificate, client certificate and client key for TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all three TLS files are given."""
        return None not in (self.ca, self.cert, self.key)


@contextmanager
def local_cluster(num_workers: int, clock: Clock) -> Iterator[DaskExecutor]:
    """Start single-threaded workers on the loopback interface, and yield their executor.

    Raises `ExecutorError` if Dask is not installed or the worker processes do not start.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as e:
        raise ExecutorError(INSTALL) from e
    try:
        cluster = LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs="CRITICAL",
        )
    except (OSError, RuntimeError) as e:
        raise ExecutorError(
            f"{num_workers} Dask processes do not start: use fewer, or --workers 0: {e}"
        ) from e
    with cluster, Client(cluster) as client:
        yield DaskExecutor(client, clock)


@contextmanager
def remote_cluster(address: str, tls: Tls, clock: Clock) -> Iterator[DaskExecutor]:
    """Connect to a Dask scheduler, and yield an executor that uses its workers.

    Raises `ExecutorError` if Dask is not installed, the address is invalid, no scheduler answers,
    or the scheduler is on another host and TLS is not used.
    """
    check_address(address, tls)
    try:
        from distributed import Client, Security
    except ImportError as e:
        raise ExecutorError(INSTALL) from e
    security = None
    if tls.is_complete:
        security = Security(
            tls_ca_file=str(tls.ca),
            tls_client_cert=str(tls.cert),
            tls_client_key=str(tls.key),
            require_encryption=True,
        )
        # Report invalid certificates and mismatched keys before connecting.
        try:
            security.get_connection_args("client")
        except (OSError, ValueError) as e:
            mismatch = "--dask-cert, --dask-key and --dask-ca are invalid or do not match"
            raise ExecutorError(f"{address}: {mismatch}: {e}") from e
    try:
        _shake_hands(address, security)
        client = Client(address, security=security, timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError) as e:
        reason = str(e) or f"no response within {CONNECT_S} s"
        raise ExecutorError(f"{address}: no Dask scheduler answers: {reason}") from e
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError as e:
            raise ExecutorError(
                f"{address}: the Dask scheduler had no worker within {WORKERS_S} s"
            ) from e
        yield DaskExecutor(client, clock)


def _shake_hands(address: str, security: Security | None) -> None:
    """Raise OSError, ValueError or TimeoutError unless a Dask scheduler answers.

    Dask's `Client` would wait forever for a server that accepts a connection and sends nothing. The
    check runs in a thread, because the caller may have a running event loop.
    """
    from distributed.comm import connect

    given = security.get_connection_args("client") if security is not None else {}
    found: list[Exception] = []

    async def greet() -> None:
        comm = await connect(address, timeout=CONNECT_S, **given)
        comm.abort()

    def run() -> None:
        try:
            asyncio.run(greet())
        except Exception as e:  # A server that is not a Dask scheduler may cause any exception.
            found.append(e)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(CONNECT_S + 1)
    if thread.is_alive():
        raise TimeoutError
    if found and isinstance(found[0], (OSError, ValueError)):
        raise found[0]
    if found:
        raise ValueError("the server does not speak the Dask protocol") from found[0]


def check_address(address: str, tls: Tls) -> None:
    """Raise ExecutorError if an address is invalid, or is remote without TLS."""
    parts = urlsplit(address)
    try:
        is_whole = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ExecutorError(f"{address}: is not a Dask address: write tls://HOST:PORT")
    if parts.scheme == "tls" and not tls.is_complete:
        raise ExecutorError(f"{address}: needs --dask-ca, --dask-cert and --dask-key")
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if parts.scheme == "tcp" and not is_local:
        raise ExecutorError(
            f"{address}: is a remote address without TLS, which lets others on the network run "
            "code here: write tls://, with --dask-ca, --dask-cert and --dask-key"
        )
