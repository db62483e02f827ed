from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from optsched.kube.clock import SystemClock
from optsched.policy import load_policy
from optsched.policy.policy import without_solver
from optsched.study.comparison.grid import Cell, read_traces
from optsched.study.comparison.places import (
    Here,
    OnDask,
    PlaceError,
    Tls,
    check_address,
    local_cluster,
)
from optsched.study.simulation.simulator import Options

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
        ("tcp://10.0.0.1:8786", Tls(), "beyond this machine and without TLS"),
        ("tcp://scheduler:8786", WHOLE, "beyond this machine and without TLS"),
        ("tls://10.0.0.1:8786", Tls(), "needs --dask-ca, --dask-cert and --dask-key"),
        ("tls://10.0.0.1:8786", HALF, "needs --dask-ca, --dask-cert and --dask-key"),
        ("10.0.0.1:8786", WHOLE, "write tls://HOST:PORT"),
        ("tls://10.0.0.1", WHOLE, "write tls://HOST:PORT"),
        ("tls://10.0.0.1:port", WHOLE, "write tls://HOST:PORT"),
        ("http://127.0.0.1:8786", Tls(), "write tls://HOST:PORT"),
    ],
)
def test_other_addresses_are_refused(address: str, tls: Tls, said: str) -> None:
    with pytest.raises(PlaceError, match=said) as caught:
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


def kill_one(place: OnDask) -> None:
    pid = next(iter(place.client.run(os.getpid).values()))
    os.kill(pid, signal.SIGKILL)


def test_a_worker_that_is_killed_costs_no_cell() -> None:
    grid = cells(8)
    alone = {done.cell.seed: done for done in Here(SystemClock()).play(grid)}
    with local_cluster(2, SystemClock()) as place:
        found = {}
        for number, done in enumerate(place.play(grid)):
            found[done.cell.seed] = done
            if number in (1, 4):
                kill_one(place)
    assert sorted(found) == sorted(alone) == list(range(8))
    assert {d.fault for d in found.values()} == {""}
    for seed, done in found.items():
        assert done.result["record"] == alone[seed].result["record"]


def test_clusters_of_our_own_listen_to_this_machine_alone() -> None:
    us = psutil.Process()
    with local_cluster(1, SystemClock()):
        listening = [
            connection.laddr.ip
            for process in (us, *us.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert len(listening) >= 3
    assert set(listening) == {"127.0.0.1"}


def test_a_cell_that_breaks_on_a_worker_is_told_and_costs_no_other() -> None:
    good, broken = cells(2)
    broken = replace(broken, warm_up_ms="soon")
    with local_cluster(1, SystemClock()) as place:
        found = {done.cell.seed: done for done in place.play([broken, good])}
    assert found[0].result is not None
    assert found[1].result is None
    assert found[1].fault.startswith("TypeError: ")
