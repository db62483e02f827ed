"""Measure the cost of a backlog: the same stream of jobs with 1 000 waiting gangs and with none.

Run `python -m bench.backlog [--backlog 1000] [--jobs 300] [--period 360] [--repeats 5] [--varied]`.
It replays gangs with Gavel's sizes and durations on 50 nodes of 8 GPUs with a greedy model. With
`--varied`, the gangs have 1 to 64 tasks, many different requests, some without GPUs, and three
priorities. The cluster is full when the stream begins. The stream's load equals the capacity of the
cluster, so the length of the backlog stays about constant. Only the stream is measured. The unit is
the CPU second of this process. Other load on the machine slows its cores down, so only the fastest
of the repeated replays counts.

The target is 200 jobs per CPU second with a backlog of 1 000 gangs. Session times with and without
a backlog are compared within one run. `bench.simulate` explains the yardstick.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bench.simulate import MODEL, settle, yardstick_cpu
from optsched.cluster.snapshot import uniform_gang
from optsched.cluster.task import TaskShape
from optsched.policy.load import load_policy
from optsched.study.simulation.record import Finish
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.synthetic_traces import GavelTrace
from optsched.units import CPU, GPU, MEMORY

if TYPE_CHECKING:
    from optsched.cluster.trace import Trace

TARGET_JOBS_A_CPU_SECOND = 200
GPUS_OF_A_NODE = 8
GPUS_OF_A_GANG = 1.9
"""The mean number of GPUs of a gang with the sizes of Gavel's generator."""
CORES_OF_A_NODE = 96
SIZES, SIZE_PARTS = (1, 2, 4, 8, 16, 32, 64), (0.5, 0.15, 0.12, 0.1, 0.07, 0.04, 0.02)
CPU_ONLY = 0.25
"""The fraction of the gangs in a varied trace that request no GPU."""


@dataclass(frozen=True)
class Replay:
    """The cost of the stream of jobs in one replay."""

    num_finished: int
    num_sessions: int
    num_waiting: int
    cpu_s: float
    unit_s: float

    @property
    def jobs_a_second(self) -> float:
        """The number of finished gangs per CPU second."""
        return self.num_finished / self.cpu_s

    @property
    def units_a_session(self) -> float:
        """The mean CPU time of a session, as a multiple of the yardstick."""
        return self.cpu_s / self.num_sessions / self.unit_s


def backlogged(num_jobs: int, num_nodes: int, backlog: int) -> Trace:
    """Return a trace whose first gangs arrive together, to fill the cluster and the backlog."""
    first = int(num_nodes * GPUS_OF_A_NODE / GPUS_OF_A_GANG) + backlog
    whole = GavelTrace(num_jobs=first + num_jobs, num_nodes=num_nodes, load=1.0).trace()
    begins_ms = whole.arrivals[first].at_ms
    arrivals = tuple(
        replace(arrival, at_ms=0 if i < first else arrival.at_ms - begins_ms)
        for i, arrival in enumerate(whole.arrivals)
    )
    return replace(whole, arrivals=arrivals)


def varied(trace: Trace, seed: int = 0) -> Trace:
    """Return the trace with varied sizes, requests and priorities of the gangs.

    A gang that uses more of a node than the mean gang gets a shorter duration, so that the load
    stays about the same.
    """
    rng = np.random.default_rng(seed)
    arrivals = []
    for arrival in trace.arrivals:
        size = int(rng.choice(SIZES, p=SIZE_PARTS))
        gpus = 0 if rng.random() < CPU_ONLY else int(rng.choice((1, 2, 4))) if size <= 8 else 1
        cores, gib = (int(rng.integers(1, most)) for most in (11, 90))
        amounts = {CPU: 1000 * cores * max(gpus, 1), MEMORY: gib * max(gpus, 1) * 2**30}
        request = tuple(sorted((amounts | {GPU: gpus} if gpus else amounts).items()))
        old, priority = arrival.gang, 10 * int(rng.integers(3))
        gang = uniform_gang(
            old.key, TaskShape(request), size, priority=priority, created_ms=old.created_ms
        )
        share = size * max(gpus / GPUS_OF_A_NODE, cores * max(gpus, 1) / CORES_OF_A_NODE)
        shorter = min(GPUS_OF_A_GANG / GPUS_OF_A_NODE / share, 1)
        duration_ms = max(round((arrival.duration_ms or 0) * shorter), 60_000)
        gang = replace(gang, queue=old.queue)
        arrivals.append(replace(arrival, gang=gang, duration_ms=duration_ms))
    return replace(trace, arrivals=tuple(arrivals))


def measure(trace: Trace, model: str, period_ms: int) -> Replay:
    """Replay a trace until its last arrival, and measure every session except the first."""
    policy = load_policy(model, lambda path: path.read_text())
    options = Options(period_ms=period_ms, until_ms=trace.arrivals[-1].at_ms)
    simulation = Simulation(trace, policy, options)
    settle()
    simulation.step()
    units = [yardstick_cpu()]
    num_finished, began_s = 0, time.process_time()
    while (events := simulation.step()) is not None:
        num_finished += sum(isinstance(event, Finish) for event in events)
    cpu_s = time.process_time() - began_s
    units.append(yardstick_cpu())
    return Replay(
        num_finished,
        simulation.num_sessions - 1,
        len(simulation.cluster.waiting),
        cpu_s,
        sum(units) / len(units),
    )


def main() -> None:
    """Replay the stream with and without a backlog, and print the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--backlog", type=int, default=1_000)
    options.add_argument("--jobs", type=int, default=300)
    options.add_argument("--nodes", type=int, default=50)
    options.add_argument("--period", type=int, default=360, help="seconds")
    options.add_argument("--model", default=MODEL)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--varied", action="store_true")
    asked = options.parse_args()
    found = []
    for backlog in (0, asked.backlog):
        trace = backlogged(asked.jobs, asked.nodes, backlog)
        trace = varied(trace) if asked.varied else trace
        replays = [measure(trace, asked.model, asked.period * 1000) for _ in range(asked.repeats)]
        if len({(r.num_finished, r.num_sessions, r.num_waiting) for r in replays}) > 1:
            raise SystemExit(f"backlog {backlog}: the replays differ")
        replay = min(replays, key=lambda r: r.cpu_s)
        found.append(replay)
        print(
            f"backlog {backlog}: {replay.num_finished} jobs, {replay.num_waiting} wait at the end, "
            f"{replay.num_sessions} sessions, {replay.cpu_s:.2f} s of CPU, "
            f"{1000 * replay.cpu_s / replay.num_sessions:.1f} ms a session, "
            f"{replay.jobs_a_second:.0f} jobs/CPU s, yardstick {1000 * replay.unit_s:.0f} ms"
        )
    ratio = found[1].units_a_session / found[0].units_a_session
    print(f"session time with the backlog is {ratio:.2f} times that without")
    print(f"target {TARGET_JOBS_A_CPU_SECOND} jobs/CPU s with the backlog")


if __name__ == "__main__":
    main()
