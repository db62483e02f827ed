"""Replays allocate devices of claims to the first task, and free them after the last task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.dra_devices import (
    DeviceAllocation,
    DeviceClaim,
    DeviceClaimRequest,
    DeviceClass,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
)
from optsched.cluster.snapshot import Queue
from optsched.cluster.task import TaskStatus
from optsched.cluster.trace import Arrival, NodeChange, NodeEvent, Trace
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.process import InProcess
from optsched.study.simulation.record import Finish, Start, Stop, lines
from optsched.study.simulation.replay_trace import trace_of, trace_of_record
from optsched.study.simulation.simulator import Options, Simulation
from tests.support.devices import wrong_with_devices
from tests.support.effort import nightly_except
from tests.support.replays import record_in_parts, times
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.study.simulation.record import Event

S = 1000
POLICY = load_policy("volcano-compatible", Path.read_text)
SOLVING = load_policy("volcano-default", Path.read_text)


def asking(name: str, number: int, *, shared: str = "", pods: int = 1, **fields: object) -> Gang:
    """Return a gang whose pods each have a claim, or share one claim if `shared` names it."""
    made = gang(name, ("w", pods, shape(1)), **fields)  # type: ignore[arg-type]
    need = DeviceNeed("gpu", "gpus", number)

    def with_claim(task: Task) -> Task:
        key = shared or f"{task.key}-own"
        what = (
            replace(task.shape, device_claims=(shared,))
            if shared
            else replace(task.shape, devices=(DeviceClaimRequest((need,)),))
        )
        return replace(task, shape=what, uid=f"uid-{task.key}", device_claims=(key,))

    return replace(made, tasks=tuple(map(with_claim, made.tasks)))


def claims_of(gangs: Sequence[Gang], number: int = 1) -> dict[str, DeviceClaim]:
    found: dict[str, DeviceClaim] = {}
    for each in gangs:
        for task in each.tasks:
            (key,) = task.device_claims
            is_per_pod = bool(task.shape.devices)
            needs = (
                task.shape.devices[0].needs if is_per_pod else (DeviceNeed("gpu", "gpus", number),)
            )
            found[key] = DeviceClaim(key, needs=needs, is_per_pod=is_per_pod)
    return dict(sorted(found.items()))


def pool(nodes: int, devices: int) -> dict[str, tuple[PooledDevice, ...]]:
    return {
        f"n{n}": tuple(PooledDevice(DeviceId("d.io", f"n{n}", f"d{i}")) for i in range(devices))
        for n in range(nodes)
    }


def stocked(claims: dict[str, DeviceClaim], nodes: int = 1, devices: int = 2) -> Devices:
    return Devices(claims, {"gpus": DeviceClass("gpus")}, pool(nodes, devices))


def trace(
    *arrivals: Arrival,
    nodes: int = 1,
    devices: int = 2,
    number: int = 1,
    events: tuple[NodeEvent, ...] = (),
) -> Trace:
    there = [node(f"n{i}", 64, 64) for i in range(nodes)]
    claims = claims_of([a.gang for a in arrivals], number)
    rest = replace(cluster(there, ()), devices=stocked(claims, nodes, devices))
    return Trace("t", tuple(there), (Queue("default"), Queue("root")), arrivals, events, rest=rest)


def arrival(what: Gang, at_s: float, run_s: float | None, grace_s: float = 0) -> Arrival:
    run_ms = None if run_s is None else int(run_s * S)
    return Arrival(int(at_s * S), what, run_ms, grace_ms=int(grace_s * S))


def wrong(snapshot: Snapshot) -> Iterator[str]:
    """Yield the inconsistencies between the tasks and device allocations of a snapshot."""
    devices = snapshot.devices
    uses: dict[str, set[str]] = {key: set() for key in devices.claims}
    for host in snapshot.nodes:
        for task in host.residents:
            for key in task.device_claims:
                uses[key].add(task.uid)
                allocation = devices.claims[key].allocation
                if allocation is None:
                    yield f"{task.key} runs and {key} has nothing"
                    continue
                here = {d.id for d in devices.on_node[host.name]}
                asked = sum(need.number for need in devices.claims[key].needs)
                mine = {device for _, device in allocation.devices}
                if not mine <= here or len(mine) != asked:
                    yield f"{key}: {allocation.devices} on {host.name}"
    held = [d for c in devices.claims.values() if c.allocation for _, d in c.allocation.devices]
    if len(set(held)) != len(held):
        yield f"given out twice: {held}"
    for key, users in uses.items():
        claim = devices.claims[key]
        if set(claim.reserved_for) != users or bool(claim.allocation) != bool(users):
            yield f"{key}: {claim} for {users}"


def played(given: Trace) -> tuple[list[Event], Simulation]:
    """Return the events and the simulation of a trace, and check the cluster after every step."""
    simulation = Simulation(given, POLICY, Options(period_ms=S))
    events: list[Event] = []
    while (found := simulation.step()) is not None:
        events += found
        assert list(wrong(simulation.cluster.snapshot(simulation.now_ms))) == []
    return events, simulation


def tasks_of(snapshot: Snapshot) -> Iterator[Task]:
    return (task for each in snapshot.gangs for task in each.tasks)


def test_who_finds_no_device_waits_until_one_is_given_back() -> None:
    both = asking("both", 2)
    events, simulation = played(
        trace(arrival(asking("a", 1), 0, 10), arrival(both, 1, 5), arrival(asking("c", 1), 2, 20))
    )
    assert times(events, Start) == {"a": [0], "c": [2], "both": [22]}
    assert all(c.allocation is None for c in simulation.cluster.snapshot(0).devices.claims.values())


def test_pods_that_share_a_claim_go_to_one_node_and_the_last_gives_it_back() -> None:
    first = asking("a", 1, shared="ns/c", pods=2)
    second = asking("b", 1, shared="ns/c")
    given = trace(
        arrival(first, 0, 10),
        arrival(second, 5, 10),
        arrival(asking("all", 2), 6, 1),
        nodes=1,
    )
    events, _ = played(given)
    assert times(events, Start) == {"a": [0], "b": [5], "all": [15]}


def test_an_evicted_pod_holds_its_devices_while_it_leaves() -> None:
    low = arrival(asking("low", 2), 0, 10, grace_s=3)
    high = arrival(asking("high", 2, priority=5), 4, 3)
    events, _ = played(trace(low, high))
    assert times(events, Stop) == {"low": [4]}
    assert times(events, Start) == {"low": [0, 10], "high": [7]}


def test_a_pod_made_anew_does_not_wait_for_the_devices_of_the_one_that_leaves() -> None:
    """The replacement pod has a new claim and starts immediately on the other node."""
    low = arrival(asking("low", 2), 0, 10, grace_s=30)
    events = (NodeEvent(5 * S, "n1", NodeChange.UP), NodeEvent(0, "n1", NodeChange.DOWN))
    high = replace(
        asking("high", 2, priority=5),
        tasks=tuple(
            replace(t, shape=replace(t.shape, node_selector=(("kubernetes.io/hostname", "n0"),)))
            for t in asking("high", 2, priority=5).tasks
        ),
    )
    given = trace(low, arrival(high, 4, 3), nodes=2, events=tuple(reversed(events)))
    there = tuple(replace(n, labels={"kubernetes.io/hostname": n.name}) for n in given.nodes)
    found, _ = played(replace(given, nodes=there))
    assert times(found, Stop) == {"low": [4]}
    assert times(found, Start) == {"low": [0, 5], "high": [34]}


def test_a_node_that_fails_gives_its_devices_back() -> None:
    changes = (NodeEvent(3 * S, "n0", NodeChange.DOWN), NodeEvent(4 * S, "n0", NodeChange.UP))
    events, _ = played(trace(arrival(asking("a", 2), 0, 10, grace_s=60), events=changes))
    assert times(events, Start) == {"a": [0, 4]}
    assert times(events, Finish) == {"a": [14]}


# --- clusters at work ----------------------------------------------------------------------------


def allocated(claim: DeviceClaim, uid: str, *devices: int, on: str = "n0") -> DeviceClaim:
    got = tuple(("gpu", DeviceId("d.io", on, f"d{i}")) for i in devices)
    return replace(claim, allocation=DeviceAllocation.on_node(on, got), reserved_for=(uid,))


def standing(what: Gang) -> Gang:
    """Return a gang as the server shows it: running, with task shapes that mention no claims."""
    tasks = (
        replace(
            running(t, "n0"), shape=replace(t.shape, devices=(), device_claims=()), started_ms=S
        )
        for t in what.tasks
    )
    return replace(what, tasks=tuple(tasks))


def test_a_cluster_goes_on_with_the_devices_that_its_pods_have() -> None:
    low, high = asking("low", 2), asking("high", 2, priority=5)
    gone = asking("gone", 1)
    claims = claims_of([low, high, gone])
    claims["ns/low-w-0-own"] = allocated(claims["ns/low-w-0-own"], "uid-ns/low-w-0", 0, 1)
    claims["ns/gone-w-0-own"] = allocated(claims["ns/gone-w-0-own"], "uid-ns/gone-w-0", 2)
    claims["ns/other"] = allocated(DeviceClaim("ns/other"), "uid-of-another", 3)
    devices = stocked(claims, devices=5)
    there = replace(
        cluster([node("n0", 64, 64)], [standing(low), high, gone], now_ms=100 * S), devices=devices
    )
    simulation = Simulation(trace_of(there, "t", 10 * S), POLICY, Options(period_ms=S))
    events = simulation.run()
    # Two devices are idle; the claim of a pod without a node holds one.
    assert times([*events], Start) == {"high": [0], "low": [0], "gone": [10]}
    left = simulation.cluster.snapshot(simulation.now_ms).devices
    assert [key for key, c in left.claims.items() if c.allocation] == ["ns/other"]


def test_claims_that_come_later_are_in_a_record_too() -> None:
    first, later = asking("a", 2), asking("b", 2)
    pictures = [
        replace(
            cluster([node("n0", 64, 64)], there, now_ms=at_s * S),
            devices=stocked(claims_of(there)),
        )
        for at_s, there in (
            (100, []),
            (101, [standing(replace(first, created_ms=100 * S))]),
            (110, [standing(replace(first, created_ms=100 * S)), later]),
            (120, [standing(replace(later, created_ms=109 * S))]),
            (130, []),
        )
    ]
    events, _ = played(trace_of_record(pictures, "t"))
    starts = times(events, Start)
    assert starts["b"][0] >= times(events, Finish)["a"][0]


# --- by chance -----------------------------------------------------------------------------------


def busy(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    at_s = 0.0
    for i in range(20):
        at_s += float(rng.exponential(3))
        what = asking(
            f"g{i:02}",
            int(rng.integers(1, 3)),
            shared=f"ns/s{rng.integers(3)}" if rng.random() < 0.3 else "",
            pods=int(rng.integers(1, 4)),
            priority=int(rng.integers(3)),
        )
        arrivals.append(arrival(what, at_s, float(rng.uniform(1, 30)), int(rng.integers(0, 8))))
    changes = (NodeEvent(40 * S, "n1", NodeChange.DOWN), NodeEvent(55 * S, "n1", NodeChange.UP))
    return trace(*arrivals, nodes=3, devices=3, number=2, events=changes)


@pytest.mark.parametrize("seed", nightly_except(range(4), [1]))
def test_no_device_is_given_out_twice_and_none_is_lost(seed: int) -> None:
    given = busy(seed)
    events, simulation = played(given)
    assert len(times(events, Finish)) == len(given.arrivals)
    assert simulation.faults == {}
    claims = simulation.cluster.snapshot(simulation.now_ms).devices.claims
    assert all(claim.allocation is None for claim in claims.values())


@pytest.mark.parametrize("seed", nightly_except(range(4), [1]))
def test_sessions_of_a_solver_keep_to_the_rule(seed: int) -> None:
    """Claims end, begin and gain pods while their earlier pods terminate."""
    simulation = Simulation(busy(seed), POLICY, Options(period_ms=S))
    number = solved = 0
    while simulation.step() is not None:
        number += 1
        snapshot = simulation.cluster.snapshot(simulation.now_ms)
        if number % 14 == seed and any(t.status is TaskStatus.PENDING for t in tasks_of(snapshot)):
            report = run_session(snapshot, SOLVING, SessionContext(solver=InProcess()))
            assert report.trace.violations == ()
            assert wrong_with_devices(snapshot, report.plan.actions) == []
            solved += 1
    assert solved >= 3


@pytest.mark.parametrize("seed", nightly_except(range(2), [1]))
def test_it_goes_on_from_where_it_stood(seed: int) -> None:
    given = busy(seed)
    whole = Simulation(given, POLICY, Options(period_ms=S)).run()
    found = record_in_parts(given, POLICY, Options(period_ms=S), (7, 12, 9))
    assert found == lines(whole)
