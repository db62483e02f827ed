"""Replays start each gang when a simple simulator does, which knows only numbers of GPUs."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Final

import pytest

import optsched
from tests.support.effort import nightly_except
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.trace import Trace

PERIOD_S = 360
GPU = "nvidia.com/gpu"
NODE = f"""\
apiVersion: v1
kind: Node
metadata: {{{{name: n{{i}}}}}}
status: {{{{allocatable: {{{{cpu: 512, pods: 500, {GPU}: 8}}}}}}}}
"""
NODES = [optsched.node(f"n{i}", {"cpu": "512", "pods": "500", GPU: "8"}) for i in range(6)]


def find_starts(trace: Trace) -> dict[str, int]:
    """Return the start of each gang in milliseconds.

    The order is first come, first served in each session, and smaller gangs may pass.
    """
    jobs = [(a.at_ms, a.gang.key, len(a.gang.tasks), a.duration_ms) for a in trace.arrivals]
    idle, period_ms = 8 * len(trace.nodes), 1000 * PERIOD_S
    queue = sorted(job for job in jobs if job[2] <= idle)
    waiting: list[tuple[int, str, int, int | None]] = []
    running: list[tuple[int, int]] = []
    starts: dict[str, int] = {}
    now = 0
    while queue or waiting:
        while running and running[0][0] <= now:
            idle += heapq.heappop(running)[1]
        while queue and queue[0][0] <= now:
            waiting.append(queue.pop(0))
        for job in list(waiting):
            _, key, size, duration_ms = job
            if size <= idle and duration_ms is not None:
                waiting.remove(job)
                idle -= size
                starts[key] = now
                heapq.heappush(running, (now + duration_ms, size))
        now += period_ms
    return starts


def replayed(trace: optsched.LoadedTrace) -> dict[str, int | None]:
    found = optsched.simulate(trace, "volcano-compatible", period=f"{PERIOD_S}s")
    return {job.name: job.started_ms for job in found.jobs}


@pytest.mark.parametrize("seed", nightly_except(range(4), [0, 3]))
def test_random_gangs_start_when_the_other_simulator_starts_them(seed: int) -> None:
    rng = random.Random(seed)
    arrivals = [
        optsched.arrival(
            optsched.gang(f"ns/j{i:03}", rng.choice([1, 1, 2, 4, 8, 16]), {GPU: "1"}),
            at=f"{i * rng.randint(0, 300)}s",
            duration=f"{rng.randint(60, 20_000)}s",
        )
        for i in range(60)
    ]
    trace = optsched.trace("random", NODES, arrivals)
    assert replayed(trace) == find_starts(trace.trace)


GAVEL: Final = (
    *("0e4a51", "103959", "11cb48", "23dbec", "2869ce", "51b7ef", "6214e9", "6c71a0"),
    *("795a4c", "7f04ca", "925e2b", "b436b2", "e13805", "ed69ec", "ee9e8c"),
)
"""All traces of seed 0: 15 263 gangs that fit on 48 GPUs."""


def test_no_trace_is_left_out() -> None:
    files = shared("traces", "gavel", "seed=0").glob("*.trace")
    assert {path.stem for path in files} == set(GAVEL)


@pytest.mark.parametrize("name", nightly_except(GAVEL, ["ed69ec"]))
def test_published_gangs_start_when_the_other_simulator_starts_them(
    tmp_path: Path, name: str
) -> None:
    source = shared("traces", "gavel", "seed=0", f"{name}.trace")
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("---\n".join(NODE.format(i=i) for i in range(6)))
    trace = optsched.read_trace(source, "gavel", nodes)
    assert replayed(trace) == find_starts(trace.trace)
