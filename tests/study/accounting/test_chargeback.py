"""Tests of the charges of queues and users, compared with values calculated by hand."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from optsched.api.wellknown import CRATER_USER, USER
from optsched.cluster.gpu_accounting import milli_on
from optsched.cluster.node_resources import GpuShareRequest, SharedGpu
from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.cluster.task import DeviceRequest, TaskStatus
from optsched.cluster.trace import Arrival, Trace
from optsched.policy.load import load_policy
from optsched.study.chargeback import (
    HOUR_US,
    Amounts,
    chargeback_of_snapshots,
    hours_text,
    of_json,
    sum_chargebacks,
    user_of,
)
from optsched.study.simulation.record import (
    Bind,
    Event,
    Finish,
    Move,
    Release,
    Start,
    Stop,
    Submit,
    TaskPlacement,
)
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.synthetic_traces import GavelTrace
from tests.support.replays import chargeback, measure
from tests.support.small import gang, node, shape

S = 1000
GPU_S = 1_000_000
"""GPU-microseconds of a GPU for a second."""


def job(name: str, gpus: int = 1, tasks: int = 1, user: str = "", **fields: object) -> Arrival:
    made = gang(name, ("w", tasks, shape(1, gpus)), **fields)  # type: ignore[arg-type]
    return Arrival(0, replace(made, annotations={USER: user} if user else {}), None)


def trace(*arrivals: Arrival) -> Trace:
    nodes = tuple(node(f"n{i}", cpu=16, gpu=8) for i in range(2))
    return Trace("t", nodes, (Queue("default"), Queue("lab")), arrivals)


def places(name: str, *tasks: int, on: str = "n0") -> tuple[TaskPlacement, ...]:
    return tuple(TaskPlacement(f"ns/{name}-w-{i}", on) for i in tasks)


def submit(name: str) -> Submit:
    return Submit(0, f"ns/{name}", "default")


def start(at_s: int, name: str, *tasks: int, run: int = 1) -> Start:
    return Start(at_s * S, f"ns/{name}", run, places(name, *tasks))


def stop(at_s: int, name: str, cause: str, lost_s: int) -> Stop:
    return Stop(at_s * S, f"ns/{name}", cause, "other", lost_s * S, 0)


def finish(at_s: int, name: str) -> Finish:
    return Finish(at_s * S, f"ns/{name}")


def test_two_pods_of_four_gpus_for_half_an_hour_are_four_gpu_hours() -> None:
    found = chargeback(
        trace(job("train", gpus=4, tasks=2, user="ann", queue="lab")),
        [submit("train"), start(60, "train", 0, 1), finish(1860, "train")],
    )
    (charge,) = found.charges
    assert (charge.queue, charge.user) == ("lab", "ann")
    assert charge.amounts == Amounts(jobs=1, held=4 * HOUR_US, cpu_held=HOUR_US)
    assert list(csv.reader(io.StringIO(found.as_csv())))[1][:4] == [
        "lab", "ann", "4.000000", "0.000000",
    ]  # fmt: skip


def test_queues_and_users_are_summed_apart() -> None:
    jobs = (
        job("a", user="ann", queue="lab"),
        job("b", user="ann"),
        job("c", user="bob", queue="lab"),
    )
    events: list[Event] = [submit(n) for n in "abc"] + [start(0, n, 0) for n in "abc"]
    events += [finish(10, "a"), finish(20, "b"), finish(30, "c")]
    found = chargeback(trace(*jobs), events)
    assert {name: a.held // GPU_S for name, a in found.by_user.items()} == {"ann": 30, "bob": 30}
    assert {name: a.held // GPU_S for name, a in found.by_queue.items()} == {
        "default": 20,
        "lab": 40,
    }
    assert found.total.held == 60 * GPU_S
    assert [(c.queue, c.user) for c in found.charges] == [
        ("default", "ann"), ("lab", "ann"), ("lab", "bob"),
    ]  # fmt: skip


def test_what_evictions_and_failures_cost_stands_apart() -> None:
    events: list[Event] = [
        submit("a"),
        start(0, "a", 0),
        stop(100, "a", "preempt", 40),  # the job saved 60 s of its work
        start(200, "a", 0, run=2),
        stop(230, "a", "node", 30),
        start(300, "a", 0, run=3),
        finish(410, "a"),
    ]
    found = chargeback(trace(job("a", gpus=2)), events).total
    assert found == Amounts(1, 480 * GPU_S, 0, 80 * GPU_S, 60 * GPU_S, 240 * GPU_S)
    assert found.useful == 340 * GPU_S


def test_a_pod_that_came_late_loses_no_more_than_it_held() -> None:
    events: list[Event] = [
        submit("a"),
        start(0, "a", 0),
        Bind(90 * S, "ns/a", places("a", 1)),
        stop(100, "a", "reclaim", 100),
    ]
    found = chargeback(trace(job("a", tasks=2, least=1)), events).total
    assert (found.held, found.evicted) == (110 * GPU_S, 110 * GPU_S)


def test_what_is_held_before_the_gang_runs_is_idle() -> None:
    events: list[Event] = [
        submit("a"),
        Bind(0, "ns/a", places("a", 0)),
        start(30, "a", 1),
        Release(50 * S, "ns/a", ("ns/a-w-1",), "reclaim", "ns/x"),
        finish(60, "a"),
    ]
    found = chargeback(trace(job("a", tasks=2)), events).total
    assert (found.held, found.idle, found.useful) == (80 * GPU_S, 30 * GPU_S, 50 * GPU_S)


def test_a_move_costs_the_whole_gang_what_was_not_saved() -> None:
    events: list[Event] = [
        submit("a"),
        start(0, "a", 0, 1),
        Move(50 * S, "ns/a", places("a", 1, on="n1"), "ns/x", 20 * S),
        stop(60, "a", "preempt", 10),
        start(60, "a", 0, 1, run=2),
        finish(65, "a"),
    ]
    found = chargeback(trace(job("a", tasks=2)), events).total
    assert (found.held, found.evicted) == (130 * GPU_S, 60 * GPU_S)


def test_the_warm_up_is_not_charged_and_what_sits_at_the_end_is() -> None:
    events: list[Event] = [submit("a"), start(0, "a", 0), Submit(80 * S, "ns/b", "default")]
    given_trace = trace(job("a"), job("b"))
    found = chargeback(given_trace, events, warm_up_ms=50 * S).total
    assert found == Amounts(jobs=1, held=30 * GPU_S, cpu_held=30 * GPU_S)


def test_who_shares_a_gpu_is_charged_a_part_of_it() -> None:
    gpus = node("n", shared_gpus=(SharedGpu("0", 40_000), SharedGpu("1", 40_000)))
    assert milli_on(shape(1, device=DeviceRequest(1, 250)), None) == 250
    assert milli_on(shape(1, 3), None) == 3000
    assert milli_on(shape(1, shared_gpus=(GpuShareRequest(2, memory=10_000),)), gpus) == 500
    assert (
        milli_on(shape(1, shared_gpus=(GpuShareRequest(1, memory=10_000, cores=50),)), gpus) == 500
    )
    assert (
        milli_on(shape(1, shared_gpus=(GpuShareRequest(1, percent=100, cores=100),)), gpus) == 1000
    )
    assert milli_on(shape(1, shared_gpus=(GpuShareRequest(1, memory=5, npu="chip"),)), gpus) == 0


def test_users_are_named_by_annotation_or_label() -> None:
    plain = gang("a", ("w", 1, shape()))
    crater = gang("a", ("w", 1, shape()), labels={CRATER_USER: "cleo"})
    both = gang("a", ("w", 1, shape()), labels={CRATER_USER: "cleo", USER: "dan"})
    assert [user_of(g) for g in (plain, crater, both)] == ["", "cleo", "dan"]
    assert user_of(replace(both, annotations={USER: "eve"})) == "eve"


@pytest.mark.parametrize(
    ("held", "told"),
    [(0, "0.000000"), (HOUR_US, "1.000000"), (1799, "0.000000"), (1800, "0.000001")],
)
def test_hours_are_rounded_once(held: int, told: str) -> None:
    assert hours_text(held) == told


def test_json_gives_the_same_back_and_sums_add_up() -> None:
    events: list[Event] = [submit("a"), start(0, "a", 0), finish(7, "a")]
    found = chargeback(trace(job("a", user="ann")), events)
    assert of_json(found.as_json()) == found
    assert sum_chargebacks([found, found]).total == found.total + found.total
    assert found.as_json()["queues"]["default"] == found.as_json()["users"]["ann"]


@pytest.mark.parametrize("seed", range(3))
def test_all_that_is_charged_is_what_the_jobs_needed_and_what_was_lost(seed: int) -> None:
    asked = GavelTrace(num_jobs=12, num_nodes=1, load=1.5, num_queues=1, num_priorities=2)
    played = replace(asked, seed=seed).trace()
    policy = load_policy("volcano-compatible", lambda path: path.read_text())
    events = Simulation(played, policy, Options(period_ms=HOUR_US // 10_000)).run()
    found, figures = chargeback(played, events).total, measure(played, events)
    needed = (1000 * len(a.gang.tasks) * (a.duration_ms or 0) for a in played.arrivals)
    assert found.useful == sum(needed)
    assert (found.evicted + found.failed) / HOUR_US == pytest.approx(figures.wasted_gpu_hours)
    assert found.idle == 0


# --- of pictures ---------------------------------------------------------------------------------


def picture(at_s: int, *gangs: Gang, ready: bool = True) -> Snapshot:
    nodes = (node("n0", cpu=16, gpu=8, ready=ready),)
    ordered = tuple(sorted(gangs, key=lambda g: g.key))
    return Snapshot(at_s * S, nodes, ordered, (Queue("default"),))


def seen(name: str, started_s: int | None, saved_s: int = 0, gpus: int = 2) -> Gang:
    """Return a gang of one pod that was bound at an instant, or that waits."""
    made = gang(name, ("w", 1, shape(1, gpus)), labels={USER: "ann"})
    if started_s is None:
        return made
    (task,) = made.tasks
    status = TaskStatus.RUNNING
    runs = replace(task, status=status, node="n0", started_ms=started_s * S, saved_ms=saved_s * S)
    return replace(made, tasks=(runs,))


def test_pictures_of_a_cluster_are_charged_from_binding_to_leaving() -> None:
    found = chargeback_of_snapshots(
        [
            picture(100, seen("old", 40), seen("new", None)),
            picture(160, seen("new", 130)),
            picture(200, seen("new", 130)),
        ]
    )
    (charge,) = found.charges
    assert (charge.queue, charge.user) == ("default", "ann")
    assert charge.amounts.held == 2 * (60 + 70) * GPU_S
    assert (charge.amounts.jobs, charge.amounts.idle, charge.amounts.evicted) == (2, 0, 0)


@pytest.mark.parametrize(("ready", "evicted", "failed"), [(True, 60, 0), (False, 0, 60)])
def test_pictures_tell_what_evictions_and_failures_cost(
    *, ready: bool, evicted: int, failed: int
) -> None:
    pictures = [
        picture(100, seen("a", 100)),
        picture(150, seen("a", 100, saved_s=130)),
        picture(190, seen("a", None), ready=ready),
        picture(300, seen("a", 250)),
    ]
    pictures[0] = picture(100, seen("a", 100, saved_s=130))
    found = chargeback_of_snapshots(pictures).total
    assert found.held == 2 * (90 + 50) * GPU_S
    assert (found.evicted, found.failed) == (2 * evicted * GPU_S, 2 * failed * GPU_S)


def test_pictures_of_nothing_are_nothing() -> None:
    assert chargeback_of_snapshots([]).charges == ()
    assert chargeback_of_snapshots([picture(0)]).total == Amounts()
