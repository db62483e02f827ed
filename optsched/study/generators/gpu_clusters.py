"""Synthetic GPU clusters: nodes partly filled, gangs waiting. Reproducible from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.units import CPU, GPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 2**30
_GPUS = (1, 2, 4, 8)
_CPU_PER_GPU = (4, 6, 8, 10, 12)
_CPU, _MEM, _PER_NODE = 96, 768 * GIB, 8


@dataclass(frozen=True)
class GpuCluster:
    """Randomly filled nodes, gangs of several sizes.

    Every node has 96 CPU, 768 GiB and 8 GPU. Tasks ask for 1, 2, 4 or 8 GPU with 80 GiB and c CPU
    for each, c drawn from the first `num_ratios` of 4, 6, 8, 10, 12 (from 10 alone when it is 1).
    """

    num_nodes: int = 200
    num_gangs: int = 200
    num_ratios: int = 1
    num_queues: int = 8
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """Return the cluster, which depends on the parameters alone."""
        rng = np.random.default_rng(self.seed)
        ratios = (10,) if self.num_ratios == 1 else _CPU_PER_GPU[: self.num_ratios]
        shapes = {(g, c): _shape(g, 1000 * g * c) for g in _GPUS for c in ratios}
        nodes = [self._node(i, rng, shapes, ratios) for i in range(self.num_nodes)]
        gangs = [self._gang(i, rng, shapes, ratios) for i in range(self.num_gangs)]
        return _snapshot(nodes, gangs, self.num_queues)

    def _node(
        self,
        number: int,
        rng: np.random.Generator,
        shapes: Mapping[tuple[int, int], TaskShape],
        ratios: tuple[int, ...],
    ) -> Node:
        name = f"node-{number:06d}"
        cpus, left = _CPU, _PER_NODE
        residents: list[Task] = []
        while rng.random() < 0.8:
            gpus = int(rng.choice(_GPUS, p=(0.5, 0.2, 0.2, 0.1)))
            ratio = int(rng.choice(ratios))
            if gpus * ratio <= cpus and gpus <= left:
                cpus, left = cpus - gpus * ratio, left - gpus
                key = f"other/{name}-{len(residents)}"
                shape = shapes[gpus, ratio]
                residents.append(Task(key, shape, TaskStatus.RUNNING, node=name, uid=key))
        return _node(name, tuple(residents))

    def _gang(
        self,
        number: int,
        rng: np.random.Generator,
        shapes: Mapping[tuple[int, int], TaskShape],
        ratios: tuple[int, ...],
    ) -> Gang:
        gpus = int(rng.choice(_GPUS, p=(0.35, 0.2, 0.2, 0.25)))
        size = int(rng.choice((1, 2, 4, 8, 16), p=(0.4, 0.2, 0.2, 0.15, 0.05)))
        shape = shapes[gpus, int(rng.choice(ratios))]
        queue, priority = int(rng.integers(self.num_queues)), int(rng.choice((1, 2, 4)))
        return _gang(number, size, shape, queue, priority)


@dataclass(frozen=True)
class EqualGangs:
    """Empty nodes as above, gangs of one size, of many task classes.

    Class i asks for 1, 2, 4 or 8 GPU in turn, with CPU for each that grows with i.
    """

    num_nodes: int = 10_000
    num_gangs: int = 10_000
    size: int = 10
    num_classes: int = 20
    num_queues: int = 8
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """Return the cluster, which depends on the parameters alone."""
        rng = np.random.default_rng(self.seed)
        shapes = [
            _shape(_GPUS[i % 4], _GPUS[i % 4] * (4000 + 320 * (i // 4)))
            for i in range(self.num_classes)
        ]
        nodes = [_node(f"node-{i:06d}", ()) for i in range(self.num_nodes)]
        gangs = [
            _gang(
                i,
                self.size,
                shapes[int(rng.integers(self.num_classes))],
                int(rng.integers(self.num_queues)),
                int(rng.choice((1, 2, 4))),
            )
            for i in range(self.num_gangs)
        ]
        return _snapshot(nodes, gangs, self.num_queues)


def _snapshot(nodes: list[Node], gangs: list[Gang], num_queues: int) -> Snapshot:
    queues = sorted([*(f"q{i}" for i in range(num_queues)), "default", "root"])
    return Snapshot(
        taken_ms=len(gangs),
        nodes=tuple(nodes),
        gangs=tuple(gangs),
        queues=tuple(Queue(name) for name in queues),
    )


def _node(name: str, residents: tuple[Task, ...]) -> Node:
    offered = {CPU: 1000 * _CPU, MEMORY: _MEM, GPU: _PER_NODE, PODS: 110}
    return Node(name, tuple(sorted(offered.items())), residents=residents)


def _gang(number: int, size: int, shape: TaskShape, queue: int, priority: int) -> Gang:
    key = f"jobs/gang-{number:06d}"
    names = [f"{key}-{index:04d}" for index in range(size)]
    return Gang(
        key,
        queue=f"q{queue}",
        min_member=size,
        priority=priority,
        created_ms=number,
        waiting_since_ms=number,
        phase=GangPhase.INQUEUE,
        tasks=tuple(
            Task(name, shape, TaskStatus.PENDING, uid=name, gang=key, index=index)
            for index, name in enumerate(names)
        ),
    )


def _shape(gpus: int, cpu_m: int) -> TaskShape:
    asked = {CPU: cpu_m, MEMORY: gpus * 80 * GIB, GPU: gpus}
    return TaskShape(tuple(sorted(asked.items())))
