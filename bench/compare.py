"""Measure the speed-up of a grid of replays from one worker to two, relative to a counting loop.

Run `python -m bench.compare [--jobs 120] [--seeds 4] [--rounds 3]`. It replays two models with
several seeds on local Dask clusters of one and of two workers. A Python loop runs the same number
of times in one process and in two. The four measurements alternate and medians are compared, so a
busy machine slows all of them. The records of both clusters must be equal, byte by byte.

The target: the speed-up of the grid is at least 0.85 of the speed-up of the loop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from optsched.kube.runtime.timing import SystemClock
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.study.comparison.executors import local_cluster
from optsched.study.comparison.grid import cells_of, read_traces
from optsched.study.simulation.simulator import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.study.comparison.executors import DaskExecutor
    from optsched.study.comparison.grid import Cell

MODELS = ("volcano-compatible", "shortest-remaining")
TARGET = 0.85


def main() -> None:
    """Run the replays and the loops, and print the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=120)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    cells = grid(asked.jobs, asked.seeds)
    times: dict[str, list[float]] = {name: [] for name in ("grid 1", "grid 2", "loop 1", "loop 2")}
    with ExitStack() as stack:
        places = [stack.enter_context(local_cluster(n, SystemClock())) for n in (1, 2)]
        pools = [stack.enter_context(pool(n)) for n in (1, 2)]
        records = [played(place, cells)[0] for place in places]  # loads worker modules too
        steps = steps_for(pools[0], timed(places[0], cells) / len(cells))
        for _ in range(asked.rounds):
            for number, place in enumerate(places, 1):
                record, seconds = played(place, cells)
                assert record == records[0], "records of one worker and two differ"
                times[f"grid {number}"].append(seconds)
            for number, each in enumerate(pools, 1):
                times[f"loop {number}"].append(counted(each, len(cells), steps))
    show(times, len(cells))


def grid(num_jobs: int, num_seeds: int) -> list[Cell]:
    """Return the cells of a grid of models × seeds on a synthetic trace."""
    source, seeds = f"gavel:jobs={num_jobs},nodes=40,load=0.9,estimated=1", range(num_seeds)
    policies = {
        name: without_solver(load_policy(name, lambda path: path.read_text())) for name in MODELS
    }
    given = read_traces([source], seeds, None, None)
    return cells_of(policies, given, Options(period_ms=600_000))


def played(place: DaskExecutor, cells: Sequence[Cell]) -> tuple[dict[str, str], float]:
    """Return the record digest of each cell by its key, and the elapsed seconds."""
    began = time.perf_counter()
    done = list(place.play(cells))
    seconds = time.perf_counter() - began
    faults = [d.fault for d in done if d.result is None]
    assert not faults, faults
    return {d.cell.key: d.result["record"]["sha256"] for d in done if d.result}, seconds


def timed(place: DaskExecutor, cells: Sequence[Cell]) -> float:
    """Return the seconds that the replay of all cells takes."""
    return played(place, cells)[1]


# --- the loop ------------------------------------------------------------------------------------


def pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes, because Dask spawns its workers too."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def count(steps: int) -> int:
    """Return a sum over `steps` loop iterations, which cost CPU time but no memory access."""
    total = 0
    for i in range(steps):
        total += i & 7
    return total


def steps_for(one: ProcessPoolExecutor, seconds: float) -> int:
    """Return the number of iterations of a loop that takes about `seconds` seconds."""
    probe = 1_000_000
    counted(one, 1, probe)
    return max(int(probe * seconds / counted(one, 1, probe)), probe)


def counted(workers: ProcessPoolExecutor, times: int, steps: int) -> float:
    """Return the seconds that `times` loops of `steps` iterations take."""
    began = time.perf_counter()
    found = set(workers.map(count, [steps] * times))
    assert len(found) == 1
    return time.perf_counter() - began


# --- results -------------------------------------------------------------------------------------


def show(times: dict[str, list[float]], num_cells: int) -> None:
    """Print the medians and the speed-ups of the grid and of the loop."""
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, each in times.items():
        times = ", ".join(f"{seconds:.2f}" for seconds in each)
        print(f"{name}: {middle[name]:.2f} s for {num_cells} (all: {times})")
    grid_gain = middle["grid 1"] / middle["grid 2"]
    loop_gain = middle["loop 1"] / middle["loop 2"]
    part = grid_gain / loop_gain
    print(f"speed-up from one worker to two: grid × {grid_gain:.2f}, loop × {loop_gain:.2f}")
    print(f"ratio of the speed-ups {part:.2f}, target {TARGET}; all records equal")


if __name__ == "__main__":
    main()
