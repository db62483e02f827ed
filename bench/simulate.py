"""Measure the time and memory of the replay of a long trace.

Run `python -m bench.simulate [--jobs 100000] [--period 360]`. It replays gangs with Gavel's sizes
and durations on 1 000 nodes of 8 GPUs at a load of 0.9. The greedy model decides, in one process.
The record is checked: every gang finishes after its duration, and no GPU is allocated twice.

The targets are 170 jobs per second, and 100 000 jobs in 10 minutes and 2 GB. The seed is 0. A
session runs every 6 minutes, like the rounds of Gavel's simulations. With `--period 60`, a session
runs every minute. The yardstick of all benchmarks is measured repeatedly during the replay. Jobs
per yardstick time are more comparable between machines than jobs per second.
"""

from __future__ import annotations

import argparse
import gc
import os
import time

from bench.conftest import yardstick
from bench.memory import forget_peak, peak_mib
from optsched.policy.load import load_policy
from optsched.study.simulation.record import (
    Bind,
    Finish,
    Move,
    Release,
    Start,
    Stop,
    TaskPlacement,
    lines,
)
from optsched.study.simulation.replay_trace import Tally
from optsched.study.simulation.simulation_metrics import Measuring
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.synthetic_traces import GavelTrace

MODEL = "volcano-compatible"
TARGET_JOBS_A_SECOND = 170
TARGET_MIB = 2000


class Checker:
    """Checks a record with its own accounting of allocated GPUs and gang durations."""

    def __init__(self, durations: dict[str, int]) -> None:
        self._left = durations
        self._held: dict[str, dict[str, TaskPlacement]] = {}
        self._taken: set[tuple[str, int]] = set()
        self._since: dict[str, int] = {}
        self.num_finished = 0

    def take(self, event: object) -> None:
        match event:
            case Start(at_ms=at_ms, job=job, places=places):
                self._since[job] = at_ms
                self._sit(job, places)
            case Bind(job=job, places=places):
                self._sit(job, places)
            case Release(job=job, tasks=tasks):
                self._rise(job, list(tasks))
            case Stop(job=job):
                self._rise(job, list(self._held[job]))
            case Move(job=job, places=places):
                self._rise(job, [p.task for p in places])
                self._sit(job, places)
            case Finish(at_ms=at_ms, job=job):
                assert at_ms - self._since[job] == self._left.pop(job), job
                self._rise(job, list(self._held[job]))
                self.num_finished += 1

    def _sit(self, job: str, places: tuple[TaskPlacement, ...]) -> None:
        for place in places:
            self._held.setdefault(job, {})[place.task] = place
            for gpu in place.gpus:
                assert (place.node, gpu) not in self._taken, place
                self._taken.add((place.node, gpu))

    def _rise(self, job: str, tasks: list[str]) -> None:
        for task in tasks:
            place = self._held[job].pop(task)
            self._taken.difference_update((place.node, gpu) for gpu in place.gpus)


def main() -> None:
    """Replay the trace and print the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=100_000)
    options.add_argument("--nodes", type=int, default=1_000)
    options.add_argument("--load", type=float, default=0.9)
    options.add_argument("--period", type=int, default=360, help="seconds")
    asked = options.parse_args()
    units = [yardstick_cpu()]
    forget_peak()
    began = time.perf_counter(), time.process_time()
    trace = GavelTrace(num_jobs=asked.jobs, num_nodes=asked.nodes, load=asked.load).trace()
    settle()
    made = time.perf_counter() - began[0]
    policy = load_policy(MODEL, lambda path: path.read_text())
    simulation = Simulation(trace, policy, Options(period_ms=asked.period * 1000))
    measuring = Measuring(trace)
    tally = Tally()
    checker = Checker({a.gang.key: a.duration_ms or 0 for a in trace.arrivals})
    while (events := simulation.step()) is not None:
        for event in events:
            measuring.add_event(event)
            checker.take(event)
        tally.add_events(lines(events), len(events))
        if simulation.num_sessions // 500 >= len(units):
            paused = time.perf_counter(), time.process_time()
            units.append(yardstick_cpu())
            began = (
                began[0] + time.perf_counter() - paused[0],
                began[1] + time.process_time() - paused[1],
            )
    unit = sum(units) / len(units)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    assert checker.num_finished == asked.jobs
    found, rate, mib = measuring.metrics(()), asked.jobs / wall, peak_mib(os.getpid())
    print(f"{asked.jobs} jobs on {asked.nodes} nodes, load {asked.load}, period {asked.period} s")
    print(f"yardstick {unit * 1000:.1f} ms; the trace was made in {made:.1f} s")
    print(f"{wall:.1f} s ({cpu:.1f} s of CPU, {cpu / unit:.0f} × yardstick), {rate:.0f} jobs/s")
    print(f"{asked.jobs * unit / cpu:.1f} jobs in the time of the yardstick")
    print(f"target {TARGET_JOBS_A_SECOND} jobs/s; peak {mib:.0f} MiB, target {TARGET_MIB}")
    print(f"{simulation.num_sessions} sessions, {1000 * cpu / simulation.num_sessions:.1f} ms each")
    print(f"record {tally.sha256}, {tally.num_events} events")
    print(f"utilisation {found.utilisation:.4f}, queueing {found.queueing_s}")


def yardstick_cpu() -> float:
    """Return the yardstick in CPU seconds, which other load on the machine does not change."""
    began = time.process_time()
    yardstick()
    return (time.process_time() - began) / 5


def settle() -> None:
    """Exclude the objects of a trace from garbage collection, because they stay alive."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


if __name__ == "__main__":
    main()
