"""Tests of the measures of replays, compared with values calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.node_resources import GpuShareRequest, SharedGpu
from optsched.cluster.snapshot import Queue
from optsched.cluster.topology import HyperNode, Topology
from optsched.cluster.trace import Arrival, Trace
from optsched.study.simulation.record import (
    Event,
    Finish,
    Move,
    NodeTurn,
    Release,
    SessionRun,
    Start,
    Stop,
    Submit,
    TaskPlacement,
)
from optsched.study.simulation.simulation_metrics import Spread, jain_index, spread
from tests.support.replays import measure
from tests.support.small import gang, node, shape

S = 1000
HOUR = 3600 * S


def job(
    name: str, at_s: int, run_s: int, gpus: int = 1, tasks: int = 1, **fields: object
) -> Arrival:
    made = gang(name, ("w", tasks, shape(1, gpus)), **fields)  # type: ignore[arg-type]
    return Arrival(at_s * S, made, run_s * S)


def trace(*arrivals: Arrival, nodes: int = 1, queues: tuple[Queue, ...] = ()) -> Trace:
    made = tuple(node(f"n{i}", cpu=8, gpu=4) for i in range(nodes))
    return Trace("t", made, queues or (Queue("default"),), arrivals)


def submit(at: int, name: str, queue: str = "default") -> Submit:
    return Submit(at * S, f"ns/{name}", queue)


def start(at: int, name: str, *gpus: int, run: int = 1, on: str = "n0") -> Start:
    return Start(at * S, f"ns/{name}", run, (TaskPlacement(f"ns/{name}-w-0", on, gpus),))


def finish(at: int, name: str) -> Finish:
    return Finish(at * S, f"ns/{name}")


TWO = trace(job("a", 0, 10, gpus=4), job("b", 5, 5, gpus=2), job("c", 20, 4))
RECORD: list[Event] = [
    submit(0, "a"),
    start(0, "a", 0, 1, 2, 3),
    submit(5, "b"),
    finish(10, "a"),
    start(10, "b", 0, 1),
    finish(15, "b"),
    submit(20, "c"),
    start(20, "c", 0),
    finish(24, "c"),
]


def test_times_of_jobs() -> None:
    found = measure(TWO, RECORD)
    assert (found.jobs, found.started, found.finished) == (3, 3, 3)
    assert found.makespan_s == 24
    # The completion times are 10, 10 and 4 s, and the queueing times are 0, 5 and 0 s.
    assert found.jct_s == Spread(mean=8.0, p50=10, p95=10, p99=10)
    assert found.queueing_s == Spread(mean=5 / 3, p50=0, p95=5, p99=5)


def test_what_arrives_before_the_warm_up_is_over_does_not_count() -> None:
    found = measure(TWO, RECORD, warm_up_ms=5 * S)
    assert (found.jobs, found.finished, found.makespan_s) == (2, 2, 19)
    assert found.jct_s == Spread(mean=7.0, p50=4, p95=10, p99=10)
    assert found.allocation == pytest.approx((4 * 5 + 2 * 5) / (4 * 15))


def test_use_counts_until_the_last_arrival() -> None:
    found = measure(TWO, RECORD)
    assert found.allocation == pytest.approx((4 * 10 + 2 * 5) / (4 * 20))
    assert found.utilisation == found.allocation


def test_work_that_is_lost_is_no_use() -> None:
    record = [
        submit(0, "a"),
        start(0, "a", 0, 1, 2, 3),
        Stop(4 * S, "ns/a", "preempt", "ns/b", lost_ms=3 * S, kept_ms=1 * S),
        submit(5, "b"),
        start(5, "b", 0, 1),
        finish(10, "b"),
        start(10, "a", 0, 1, 2, 3, run=2),
        finish(19, "a"),
        submit(20, "c"),
    ]
    found = measure(TWO, record)
    assert (found.preemptions, found.node_failures) == (1, 0)
    assert found.wasted_gpu_hours == pytest.approx(4 * 3 / 3600)
    held = 4 * 4 + 2 * 5 + 4 * 9
    assert found.allocation == pytest.approx(held / 80)
    assert found.utilisation == pytest.approx((held - 4 * 3) / 80)
    assert (found.jobs, found.started) == (3, 2)


def test_moving_costs_what_no_checkpoint_has_kept() -> None:
    record = [
        submit(0, "a"),
        start(0, "a", 0, 1, 2, 3),
        Move(
            4 * S, "ns/a", (TaskPlacement("ns/a-w-0", "n1", (0, 1, 2, 3)),), "ns/x", lost_ms=2 * S
        ),
        finish(12, "a"),
    ]
    found = measure(replace(TWO, nodes=trace(nodes=2).nodes), record)
    assert found.wasted_gpu_hours == pytest.approx(4 * 2 / 3600)
    assert found.preemptions == 0


def test_nodes_that_are_down_have_nothing_to_offer() -> None:
    record = [
        submit(0, "a"),
        start(0, "a", 0, 1, 2, 3),
        NodeTurn(10 * S, "n1", "down"),
        NodeTurn(15 * S, "n1", "up"),
        submit(20, "c"),
    ]
    found = measure(replace(TWO, nodes=trace(nodes=2).nodes), record)
    assert found.allocation == pytest.approx(4 * 20 / (8 * 20 - 4 * 5))
    stopped = [*record[:2], Stop(10 * S, "ns/a", "node", "n0", 10 * S, 0)]
    assert measure(TWO, stopped).node_failures == 1


def test_what_gangs_hold_that_do_not_run_is_allocated_and_no_use() -> None:
    wide = trace(job("w", 0, 5, gpus=2, tasks=2), job("c", 10, 1))
    places = [TaskPlacement("ns/w-w-0", "n0", (0, 1)), TaskPlacement("ns/w-w-1", "n0", (2, 3))]
    record = [
        submit(0, "w"),
        Start(0, "ns/w", 1, tuple(places)),
        Release(4 * S, "ns/w", ("ns/w-w-1",), "node", "n9"),
        finish(5, "w"),
        submit(10, "c"),
    ]
    found = measure(wide, record)
    assert found.allocation == pytest.approx((4 * 4 + 2 * 1) / 40)


def test_fragments_are_what_a_typical_task_can_not_take() -> None:
    """Half of all tasks request 4 GPUs, half request 1.

    A 1-GPU task makes 3 of 4 GPUs useless to the other half for 10 of 20 s.
    """
    given = trace(job("big", 0, 1, gpus=4), job("one", 20, 10))
    record = [
        submit(0, "big"),
        submit(20, "one"),
    ]
    assert measure(given, record).fragmentation == 0
    assigned = replace(given, arrivals=(job("one", 0, 10), job("big", 20, 1, gpus=4)))
    record = [submit(0, "one"), start(0, "one", 0), finish(10, "one"), submit(20, "big")]
    # F is 0.5·3 while the task runs and 3 GPUs are idle, and 0 afterwards with 4 idle GPUs.
    assert measure(assigned, record).fragmentation == pytest.approx(
        0.5 * 3 * 10 / (3 * 10 + 4 * 10)
    )


def test_shares_of_queues() -> None:
    queues = (Queue("a"), Queue("b", weight=2))
    one = job("one", 0, 10, gpus=2, queue="a")
    two, three = job("two", 0, 9, gpus=2, queue="b"), job("three", 0, 9, gpus=4, queue="a")
    given = trace(one, two, three, job("four", 0, 9, gpus=4, queue="b"), queues=queues)
    given = replace(given, arrivals=(*given.arrivals, job("end", 10, 1, queue="a")))
    names = {"one": "a", "two": "b", "three": "a", "four": "b"}
    record = [
        *(submit(0, name, queue) for name, queue in names.items()),
        start(0, "one", 0, 1),
        start(0, "two", 2, 3),
        submit(10, "end", "a"),
    ]
    found = measure(given, record)
    # Both queues hold half of the GPUs, weighted 0.5 and 0.25, and both have a waiting gang.
    assert found.drf_distance == pytest.approx(0.25)
    assert found.jain == pytest.approx(0.75**2 / (2 * (0.25 + 0.0625)))


def test_jains_index() -> None:
    assert jain_index([1, 1, 1, 1]) == 1
    assert jain_index([4, 0, 0, 0]) == 0.25
    assert jain_index([]) is None


def test_finish_time_fairness() -> None:
    """Two jobs compete for one GPU: N = 2, then 1."""
    given = trace(job("a", 0, 10), job("b", 0, 10))
    given = replace(given, nodes=(node("n0", cpu=8, gpu=1),))
    record = [
        submit(0, "a"),
        submit(0, "b"),
        start(0, "a", 0),
        finish(10, "a"),
        start(10, "b", 0),
        finish(20, "b"),
    ]
    found = measure(given, record)
    # The ratio of job a is 10 / (10·2), and that of job b is 20 / (10·1.5).
    assert found.ftf_mean == pytest.approx((0.5 + 20 / 15) / 2)
    assert found.ftf_worst == pytest.approx(20 / 15)
    assert found.ftf_unfair == 0.5


def test_distance_in_the_network() -> None:
    leaves = [HyperNode(f"leaf{i}", 1, parent="spine", nodes=(f"n{i}",)) for i in range(2)]
    topology = Topology((*leaves, HyperNode("spine", 2)))
    given = trace(job("w", 0, 5, tasks=3), job("x", 0, 5), nodes=3)
    record = [
        submit(0, "w"),
        submit(0, "x"),
        Start(
            0, "ns/w", 1, tuple(TaskPlacement(f"ns/w-w-{i}", f"n{i // 2}", (i,)) for i in range(3))
        ),
        start(0, "x", 0, on="n2"),
    ]
    found = measure(replace(given, topology=topology), record)
    # One job spans the spine, and the other one includes a node outside the topology.
    assert found.topology_tier == (2 + 3) / 2
    assert found.cross_leaf_pairs == 2 / 2
    assert measure(given, record).topology_tier is None


def test_promises_about_waiting() -> None:
    soon = {"sla-waiting-time": "3s"}
    given = trace(
        job("a", 0, 5, annotations=soon), job("b", 0, 5, annotations=soon), job("c", 0, 5)
    )
    record = [submit(0, n) for n in "abc"] + [start(2, "a", 0), finish(9, "a")]
    assert measure(given, record).sla_misses == 1


def test_sessions_and_their_gaps() -> None:
    record = [
        SessionRun(0, "greedy", 1, 0, 0, (("admission", 8, 10), ("fair share", 3, None))),
        SessionRun(S, "greedy", 1, 0, 0, (("admission", 0, 0),)),
    ]
    found = measure(TWO, record, session_seconds=[0.25, 0.75])
    assert found.sessions == 2
    assert found.gap == pytest.approx((0.2 + 0) / 2)
    assert found.session_s == Spread(0.5, 0.25, 0.75, 0.75)


def test_percentiles_are_values_that_occur() -> None:
    assert spread(range(1, 101)) == Spread(50.5, 50, 95, 99)
    assert spread([7]) == Spread(7, 7, 7, 7)
    assert spread([]) is None


def test_without_gpus_cpus_count() -> None:
    given = trace(job("a", 0, 10, gpus=0), job("b", 10, 1, gpus=0))
    given = replace(given, nodes=(node("n0", cpu=4),))
    record = [submit(0, "a"), start(0, "a"), finish(10, "a"), submit(10, "b")]
    found = measure(given, record)
    assert found.allocation == pytest.approx(1 / 4)
    assert found.fragmentation is None


def test_vgpus_count_by_the_larger_of_their_parts() -> None:
    """Each task takes a quarter of the GPU memory; the second one also takes half of its cores."""
    asked = [GpuShareRequest(1, memory=10_000), GpuShareRequest(1, memory=10_000, cores=50)]
    jobs = [
        Arrival(at * S, gang(name, ("w", 1, shape(1, shared_gpus=(card,)))), 10 * S)
        for at, name, card in zip((0, 10), "ab", asked, strict=True)
    ]
    shared_gpus = (
        SharedGpu("0", 40_000),
        SharedGpu("1", 40_000),
        SharedGpu("2", 40_000, npu="chip"),
    )
    given = trace(*jobs, job("c", 20, 1, gpus=0))
    given = replace(given, nodes=(node("n0", cpu=8, shared_gpus=shared_gpus),))
    record = [submit(0, "a"), start(0, "a", 0), submit(10, "b"), finish(10, "a")]
    record += [start(10, "b", 1), submit(20, "c"), finish(20, "b")]
    found = measure(given, record)
    assert found.allocation == pytest.approx((250 * 10 + 500 * 10) / (2000 * 20))
    assert found.utilisation == found.allocation
    assert found.fragmentation is None


def test_vgpus_and_whole_gpus_are_added_up() -> None:
    part = Arrival(
        0, gang("a", ("w", 1, shape(1, shared_gpus=(GpuShareRequest(1, cores=30),)))), 10 * S
    )
    given = trace(part, job("b", 0, 10, gpus=2), job("c", 10, 1))
    shared = node("n1", cpu=8, shared_gpus=(SharedGpu("0", 40_000),))
    given = replace(given, nodes=(*given.nodes, shared))
    record = [submit(0, "a"), start(0, "a", 0, on="n1"), submit(0, "b"), start(0, "b", 0, 1)]
    found = measure(given, [*record, submit(10, "c")])
    assert found.allocation == pytest.approx(2300 / 5000)
    # Two GPUs are idle for tasks of two GPUs and of one, but not for a task that requests a vGPU.
    assert found.fragmentation == pytest.approx(1 / 3, abs=1e-3)
