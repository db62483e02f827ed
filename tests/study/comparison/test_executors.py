from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import psutil
import pytest
from distributed import LocalCluster, Security

from optsched.kube.runtime.timing import SystemClock
from optsched.policy import load_policy
from optsched.policy.policy import without_solver
from optsched.study.comparison import executors
from optsched.study.comparison.executors import (
    DaskExecutor,
    ExecutorError,
    LocalExecutor,
    Tls,
    check_address,
    local_cluster,
    remote_cluster,
)
from optsched.study.comparison.grid import Cell, read_traces
from optsched.study.simulation.simulator import Options
from tests.support.effort import IS_THOROUGH

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_TLS = Tls()
HALF = Tls(ca=Path("ca.pem"))
WHOLE = Tls(Path("ca.pem"), Path("cert.pem"), Path("key.pem"))


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("tcp://127.0.0.1:8786", Tls()),
        ("tcp://localhost:8786", Tls()),
        ("tcp://[::1]:8786", Tls()),
        ("tls://scheduler.example:8786", WHOLE),
    ],
)
def test_this_machine_and_tls_are_taken(address: str, tls: Tls) -> None:
    check_address(address, tls)


@pytest.mark.parametrize(
    ("address", "tls", "said"),
    [
        ("tcp://10.0.0.1:8786", Tls(), "is a remote address without TLS"),
        ("tcp://scheduler:8786", WHOLE, "is a remote address without TLS"),
        ("tls://10.0.0.1:8786", Tls(), "needs --dask-ca, --dask-cert and --dask-key"),
        ("tls://10.0.0.1:8786", HALF, "needs --dask-ca, --dask-cert and --dask-key"),
        ("10.0.0.1:8786", WHOLE, "write tls://HOST:PORT"),
        ("tls://10.0.0.1", WHOLE, "write tls://HOST:PORT"),
        ("tls://10.0.0.1:port", WHOLE, "write tls://HOST:PORT"),
        ("http://127.0.0.1:8786", Tls(), "write tls://HOST:PORT"),
    ],
)
def test_other_addresses_are_refused(address: str, tls: Tls, said: str) -> None:
    with pytest.raises(ExecutorError, match=said) as caught:
        check_address(address, tls)
    assert str(caught.value).startswith(f"{address}: ")


# --- playing -------------------------------------------------------------------------------------


def cells(number: int) -> list[Cell]:
    policy = without_solver(load_policy("volcano-compatible", Path.read_text))
    source, seeds = "gavel:jobs=6,nodes=1", range(number)
    given = read_traces([source], seeds, None, None)
    return [
        Cell("m", source, seed, given[source, seed], policy, Options(seed=seed), 0)
        for seed in seeds
    ]


# Every worker takes two seconds to start.
KILLED_AFTER = (1, 4) if IS_THOROUGH else (0,)


def kill_one(place: DaskExecutor) -> None:
    pid = next(iter(place.client.run(os.getpid).values()))
    os.kill(pid, signal.SIGKILL)


def test_a_worker_that_is_killed_costs_no_cell() -> None:
    grid = cells(8 if IS_THOROUGH else 4)
    alone = {done.cell.seed: done for done in LocalExecutor(SystemClock()).play(grid)}
    with local_cluster(2, SystemClock()) as place:
        found = {}
        for number, done in enumerate(place.play(grid)):
            found[done.cell.seed] = done
            if number in KILLED_AFTER:
                kill_one(place)
    assert sorted(found) == sorted(alone) == list(range(len(grid)))
    assert {d.fault for d in found.values()} == {""}
    for seed, done in found.items():
        assert done.result["record"] == alone[seed].result["record"]


@pytest.fixture(scope="module")
def one_worker() -> Iterator[DaskExecutor]:
    with local_cluster(1, SystemClock()) as place:
        yield place


@pytest.mark.usefixtures("one_worker")
def test_clusters_of_our_own_listen_to_this_machine_alone() -> None:
    us = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in (us, *us.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3
    assert set(listening) == {"127.0.0.1"}


def test_a_cell_that_breaks_on_a_worker_is_told_and_costs_no_other(
    one_worker: DaskExecutor,
) -> None:
    good, broken = cells(2)
    broken = replace(broken, warm_up_ms="soon")
    found = {done.cell.seed: done for done in one_worker.play([broken, good])}
    assert found[0].result is not None
    assert found[1].result is None
    assert found[1].fault.startswith("TypeError: ")


# --- places that are none ------------------------------------------------------------------------


def refused(address: str, tls: Tls = NO_TLS) -> str:
    with (
        pytest.raises(ExecutorError) as caught,
        remote_cluster(address, tls, SystemClock()),
    ):
        pass
    return str(caught.value)


@contextmanager
def stranger(says: bytes | None) -> Iterator[str]:
    """Yield the address of a server that does not speak the protocol of Dask."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as guests:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    guest = guests.enter_context(server.accept()[0])
                    if says is not None:
                        guest.sendall(says)
                        guest.close()

        thread = Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (None, "no response within 1 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, "the Dask protocol"),
    ],
)
def test_who_does_not_speak_as_dask_is_told_in_time(
    says: bytes | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "CONNECT_S", 1)
    with stranger(says) as address:
        found = refused(address)
    assert found.startswith(f"{address}: no Dask scheduler answers: ")
    assert told in found


def test_files_that_are_no_certificates_are_told(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for tls in (Tls(junk, junk, junk), Tls(tmp_path / "gone.pem", junk, junk)):
        assert "are invalid or do not match" in refused("tls://127.0.0.1:1", tls)


def files_of(security: Security, folder: Path) -> Tls:
    folder.mkdir()
    paths = []
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        paths.append(folder / name)
        paths[-1].write_text(getattr(security, name))
    return Tls(*paths)


def test_strangers_and_clusters_without_workers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "WORKERS_S", 0.2)
    ours, theirs = Security.temporary(), Security.temporary()
    known, unknown = files_of(ours, tmp_path / "ours"), files_of(theirs, tmp_path / "theirs")
    with bare_cluster(0, ours) as cluster:
        address = cluster.scheduler_address
        assert "TLS certificate does not match" in refused(address, unknown)
        assert "no Dask scheduler answers" in refused(address.replace("tls", "tcp"))
        assert "had no worker within 0.2 s" in refused(address, known)


def bare_cluster(num_workers: int, security: Security | None = None) -> LocalCluster:
    return LocalCluster(
        n_workers=num_workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs="CRITICAL",
        security=security,
    )


def test_other_versions_and_a_scheduler_that_goes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = bare_cluster(1)
    faults: list[str] = []
    with cluster, remote_cluster(cluster.scheduler_address, NO_TLS, SystemClock()) as place:
        with monkeypatch.context() as other:
            other.setattr(executors, "__version__", "9.9")
            refused = place.play(cells(1))
            done = next(refused)
        assert "the client has 9.9: install the same" in done.fault
        for number, done in enumerate(place.play(cells(4))):
            faults.append(done.fault)
            if number == 0:
                cluster.close()
    assert len(faults) == 4
    assert faults[0] == "", "a cell that failed is played again, though its failure is still held"
    assert list(refused) == []
    assert "run the same command again to replay the missing cells" in faults[-1]
