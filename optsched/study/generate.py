"""Synthetic GPU clusters: nodes partly filled, gangs waiting. Reproducible from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.cluster import Gang, GangPhase, Node, Queue, Snapshot
from optsched.domain.task import Task, TaskShape, TaskStatus
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = "nvidia.com/gpu"
GIB = 2**30
_CPU_PER_GPU = (4, 6, 8, 10, 12)


@dataclass(frozen=True)
class GpuCluster:
    """What to generate.

    Every node has 96 CPU, 768 GiB and 8 GPU. Tasks ask for 1, 2, 4 or 8 GPU with 80 GiB and c CPU
    for each, c drawn from the first `num_ratios` of 4, 6, 8, 10, 12 (from 10 alone when it is 1):
    with one ratio the problem has one dimension in truth, with five it does not.
    """

    num_nodes: int = 200
    num_gangs: int = 200
    num_ratios: int = 1
    num_queues: int = 8
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """The cluster, always the same for the same numbers."""
        rng = np.random.default_rng(self.seed)
        ratios = (10,) if self.num_ratios == 1 else _CPU_PER_GPU[: self.num_ratios]
        shapes = {(g, c): _shape(g, c) for g in (1, 2, 4, 8) for c in ratios}
        nodes = [self._node(i, rng, shapes, ratios) for i in range(self.num_nodes)]
        gangs = [self._gang(i, rng, shapes, ratios) for i in range(self.num_gangs)]
        queues = sorted([*(f"q{i}" for i in range(self.num_queues)), "default", "root"])
        return Snapshot(
            taken_ms=self.num_gangs,
            nodes=tuple(nodes),
            gangs=tuple(gangs),
            queues=tuple(Queue(name) for name in queues),
        )

    def _node(
        self,
        number: int,
        rng: np.random.Generator,
        shapes: dict[tuple[int, int], TaskShape],
        ratios: tuple[int, ...],
    ) -> Node:
        name = f"node-{number:06d}"
        room = [96, 8]
        residents: list[Task] = []
        while rng.random() < 0.8:
            gpus = int(rng.choice((1, 2, 4, 8), p=(0.5, 0.2, 0.2, 0.1)))
            ratio = int(rng.choice(ratios))
            if gpus * ratio <= room[0] and gpus <= room[1]:
                room = [room[0] - gpus * ratio, room[1] - gpus]
                key = f"other/{name}-{len(residents)}"
                residents.append(
                    Task(key, shapes[gpus, ratio], TaskStatus.RUNNING, node=name, uid=key)
                )
        offered = ((CPU, 96_000), (MEMORY, 768 * GIB), (GPU, 8), (PODS, 110))
        return Node(name, tuple(sorted(offered)), residents=tuple(residents))

    def _gang(
        self,
        number: int,
        rng: np.random.Generator,
        shapes: dict[tuple[int, int], TaskShape],
        ratios: tuple[int, ...],
    ) -> Gang:
        gpus = int(rng.choice((1, 2, 4, 8), p=(0.35, 0.2, 0.2, 0.25)))
        size = int(rng.choice((1, 2, 4, 8, 16), p=(0.4, 0.2, 0.2, 0.15, 0.05)))
        shape = shapes[gpus, int(rng.choice(ratios))]
        key = f"jobs/gang-{number:06d}"
        return Gang(
            key,
            queue=f"q{int(rng.integers(self.num_queues))}",
            min_member=size,
            priority=int(rng.choice((1, 2, 4))),
            created_ms=number,
            waiting_since_ms=number,
            phase=GangPhase.INQUEUE,
            tasks=tuple(_members(key, size, shape)),
        )


def _members(key: str, size: int, shape: TaskShape) -> Iterator[Task]:
    for index in range(size):
        name = f"{key}-{index:04d}"
        yield Task(name, shape, TaskStatus.PENDING, uid=name, gang=key, index=index)


def _shape(gpus: int, ratio: int) -> TaskShape:
    asked = ((CPU, gpus * ratio * 1000), (MEMORY, gpus * 80 * GIB), (GPU, gpus))
    return TaskShape(tuple(sorted(asked)))
