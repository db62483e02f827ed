"""Records of replays and comparisons: no GPU is allocated twice, and each task gets its request."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.snapshot import Queue
from optsched.cluster.task import DeviceRequest
from optsched.cluster.trace import Arrival, Trace
from optsched.policy.load import load_policy
from optsched.study.simulation.record import Bind, Finish, Move, Release, Start, Stop, TaskPlacement
from optsched.study.simulation.simulator import Options, Simulation
from tests.support.effort import num_examples
from tests.support.small import gang, node, shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.task import TaskShape

GPU = "nvidia.com/gpu"


def asked(what: TaskShape) -> tuple[int, int]:
    """Return the number of GPUs that a task requests, and the thousandths of each."""
    whole = dict(what.request).get(GPU, 0)
    if whole:
        return whole, 1000
    return (what.device.count, what.device.milli) if what.device is not None else (0, 0)


class Book:
    """The allocation of each GPU, calculated only from the record."""

    def __init__(self, trace: Trace) -> None:
        self._asked = {t.key: asked(t.shape) for a in trace.arrivals for t in a.gang.tasks}
        self._has = {n.name: dict(n.allocatable).get(GPU, 0) for n in trace.nodes}
        self._nominations: dict[str, dict[str, TaskPlacement]] = defaultdict(dict)
        self._used: dict[tuple[str, int], int] = defaultdict(int)
        self.wrong: list[str] = []
        self.num_nominations = 0

    def take(self, event: object) -> None:
        match event:
            case Start(job=job, places=places) | Bind(job=job, places=places):
                self._sit(job, places)
            case Move(job=job, places=places):
                self._rise(job, [p.task for p in places])
                self._sit(job, places)
            case Release(job=job, tasks=tasks):
                self._rise(job, tasks)
            case Stop(job=job) | Finish(job=job):
                self._rise(job, list(self._nominations[job]))

    def _sit(self, job: str, places: Sequence[TaskPlacement]) -> None:
        for place in places:
            self.num_nominations += 1
            number, milli = self._asked[place.task]
            if len(set(place.gpus)) != number:
                self.wrong.append(f"{place.task} has {place.gpus}, {number} asked")
            for gpu in place.gpus:
                self._used[place.node, gpu] += milli
                if self._used[place.node, gpu] > 1000 or gpu >= self._has[place.node]:
                    self.wrong.append(f"{place}: {self._used[place.node, gpu]} thousandths")
            self._nominations[job][place.task] = place

    def _rise(self, job: str, tasks: Iterable[str]) -> None:
        for place in [self._nominations[job].pop(task) for task in tasks]:
            for gpu in place.gpus:
                self._used[place.node, gpu] -= self._asked[place.task][1]


def some_trace(seed: int) -> Trace:
    """Return a trace of GPU shares and whole GPUs, with more demand than capacity."""
    rng = np.random.default_rng(seed)

    def some() -> TaskShape:
        if rng.random() < 0.4:
            return shape(1, gpu=int(rng.integers(1, 3)))
        milli = int(rng.choice([200, 300, 400, 500, 600, 700]))
        return shape(1, device=DeviceRequest(1, milli))

    arrivals = [
        Arrival(
            int(rng.integers(0, 40_000)),
            gang(f"g{i}", ("w", int(rng.integers(1, 4)), some()), priority=int(rng.integers(2))),
            int(rng.integers(5_000, 40_000)),
        )
        for i in range(40)
    ]
    nodes = tuple(node(f"n{i}", 32, gpu=3) for i in range(3))
    queues = (Queue("default"), Queue("root"))
    return Trace("t", nodes, queues, tuple(sorted(arrivals, key=lambda a: a.at_ms)), ())


@pytest.mark.parametrize("seed", range(num_examples(6)))
def test_parts_of_gpus_in_a_replay(seed: int) -> None:
    trace = some_trace(seed)
    policy = load_policy("volcano-compatible", Path.read_text)
    book = Book(trace)
    for event in Simulation(trace, policy, Options()).run():
        book.take(event)
    assert book.wrong == []
    assert book.num_nominations > 60
