"""Synthetic clusters, reproducible from a seed.

GPU clusters have partly allocated nodes and waiting gangs. Mixed clusters have several node
classes, partly allocated GPUs, taints and a queue hierarchy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import (
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.units import CPU, GPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


GIB = 2**30
_GPUS = (1, 2, 4, 8)
_CPU_RATIOS = (4, 6, 8, 10, 12)
_CPU, _MEM, _PER_NODE = 96, 768 * GIB, 8


@dataclass(frozen=True)
class GpuCluster:
    """A cluster of randomly filled nodes, and waiting gangs of several sizes.

    Every node has 96 CPUs, 768 GiB and 8 GPUs. Tasks request 1, 2, 4 or 8 GPUs, with 80 GiB and c
    CPUs per GPU. The ratio c is drawn from the first `num_ratios` of the numbers 4, 6, 8, 10, 12.
    With one ratio, c is always 10.
    """

    num_nodes: int = 200
    num_gangs: int = 200
    num_ratios: int = 1
    num_queues: int = 8
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """Return the cluster, which depends only on the parameters."""
        rng = np.random.default_rng(self.seed)
        ratios = (10,) if self.num_ratios == 1 else _CPU_RATIOS[: self.num_ratios]
        shapes = {(g, c): _gpu_shape(g, 1000 * g * c) for g in _GPUS for c in ratios}
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
    """A cluster of empty nodes, and waiting gangs of equal size with many task classes.

    The nodes have the same capacity as in `GpuCluster`. The task classes request 1, 2, 4 and 8 GPUs
    in rotation; their CPUs per GPU increase with the class index.
    """

    num_nodes: int = 10_000
    num_gangs: int = 10_000
    size: int = 10
    num_classes: int = 20
    num_queues: int = 8
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """Return the cluster, which depends only on the parameters."""
        rng = np.random.default_rng(self.seed)
        shapes = [
            _gpu_shape(_GPUS[i % 4], _GPUS[i % 4] * (4000 + 320 * (i // 4)))
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


def _gpu_shape(gpus: int, cpu_m: int) -> TaskShape:
    request = {CPU: cpu_m, MEMORY: gpus * 80 * GIB, GPU: gpus}
    return TaskShape(tuple(sorted(request.items())))


MODEL = "gpu-type"
_KINDS = ((48, 192, 0, ""), (64, 512, 4, "t4"), (96, 768, 8, "a100"), (128, 1024, 8, "h100"))
"""CPUs, GiB of memory, GPUs and GPU model of each node class."""

_KIND_PARTS = (0.35, 0.2, 0.25, 0.2)
_PRIORITIES = (0, 10, 100)
_CPUS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_GIB_PER_CPU = (2, 4, 6, 8)
_CPU_PER_GPU = (2, 4, 6, 8, 12)
_SIZES = (1, 2, 3, 4, 8, 16)
_RUNNING_PART = 0.6
"""Fraction of the running pods that belong to gangs; the remaining ones are bare pods."""


@dataclass(frozen=True)
class MixedCluster:
    """A nearly full cluster with four node classes and many different waiting gangs.

    About half of the GPU nodes are tainted. The taint is tolerated by all pods that request GPUs
    and by some other pods. The queues form a hierarchy of two levels. Each pod belongs to one of
    `num_shapes` task classes.
    """

    num_nodes: int = 100
    num_pods: int = 500
    num_shapes: int = 60
    num_departments: int = 3
    num_teams: int = 3
    fill: float = 0.9  # Mean usage of a node's most requested resource, as a fraction.
    seed: int = 0

    def snapshot(self) -> Snapshot:
        """Return the cluster, which depends only on the parameters."""
        rng = np.random.default_rng(self.seed)
        nodes = [_draw_node(i, rng) for i in range(self.num_nodes)]
        shapes = [_draw_shape(rng) for _ in range(self.num_shapes)]
        total: dict[str, int] = {}
        for node in nodes:
            for resource, amount in node.allocatable:
                total[resource] = total.get(resource, 0) + amount
        queues = [Queue("default"), Queue("root")]
        for d in range(self.num_departments):
            queues.append(_queue(f"dep{d}", "root", total, self.num_departments, rng))
            num_all_teams = self.num_departments * self.num_teams
            queues.extend(
                _queue(f"dep{d}-t{t}", f"dep{d}", total, num_all_teams, rng)
                for t in range(self.num_teams)
            )
        teams = [q.name for q in queues if q.name.count("-") == 1]
        nodes, running = self._fill_nodes(nodes, shapes, teams, rng)
        waiting = self._draw_waiting_gangs(shapes, teams, rng)
        return Snapshot(
            taken_ms=10_000,
            nodes=tuple(nodes),
            gangs=tuple(sorted([*running, *waiting], key=lambda g: g.key)),
            queues=tuple(sorted(queues, key=lambda q: q.name)),
        )

    def _fill_nodes(
        self,
        nodes: Sequence[Node],
        shapes: Sequence[TaskShape],
        teams: Sequence[str],
        rng: np.random.Generator,
    ) -> tuple[list[Node], list[Gang]]:
        """Add running pods to the nodes; return the nodes and the gangs of these pods."""
        members: dict[str, list[Task]] = {}
        filled = []
        for node in nodes:
            target = float(np.clip(self.fill + rng.normal(0, 0.12), 0, 1))
            free = dict(node.allocatable)
            residents: list[Task] = []
            for _ in range(60):
                if max(1 - free[r] / a for r, a in node.allocatable if a) >= target:
                    break
                shape = shapes[int(rng.integers(len(shapes)))]
                fits = free[PODS] > 0 and all(free.get(r, 0) >= a for r, a in shape.request)
                if not fits or (node.taints and not shape.tolerations):
                    continue
                for resource, amount in (*shape.request, (PODS, 1)):
                    free[resource] -= amount
                key = f"running/{node.name}-{len(residents):02d}"
                task = Task(key, shape, TaskStatus.RUNNING, node=node.name, uid=key)
                if rng.random() < _RUNNING_PART:
                    gang = f"running/gang-{int(rng.integers(2 * self.num_nodes)):05d}"
                    task = replace(task, gang=gang)
                    members.setdefault(gang, []).append(task)
                residents.append(task)
            filled.append(replace(node, residents=tuple(residents)))
        running = [
            Gang(
                key,
                queue=teams[int(rng.integers(len(teams)))],
                min_member=int(rng.integers(1, len(tasks) + 1)),
                priority=int(rng.choice(_PRIORITIES)),
                phase=GangPhase.RUNNING,
                tasks=tuple(sorted(tasks, key=lambda t: t.order)),
            )
            for key, tasks in sorted(members.items())
        ]
        return filled, running

    def _draw_waiting_gangs(
        self, shapes: Sequence[TaskShape], teams: Sequence[str], rng: np.random.Generator
    ) -> list[Gang]:
        gangs: list[Gang] = []
        left = self.num_pods
        while left > 0:
            size = min(int(rng.choice(_SIZES, p=(0.3, 0.2, 0.15, 0.15, 0.15, 0.05))), left)
            left -= size
            number = len(gangs)
            key = f"jobs/gang-{number:05d}"
            roles = [("worker", size, shapes[int(rng.integers(len(shapes)))])]
            if size > 2 and rng.random() < 0.3:
                roles = [
                    ("master", 1, shapes[int(rng.integers(len(shapes)))]),
                    ("worker", size - 1, roles[0][2]),
                ]
            tasks = [
                Task(
                    f"{key}-{role}-{i:02d}",
                    shape,
                    TaskStatus.PENDING,
                    uid=f"{key}-{role}-{i:02d}",
                    gang=key,
                    role=role,
                    index=i,
                )
                for role, count, shape in roles
                for i in range(count)
            ]
            least = size if rng.random() < 0.8 else int(rng.integers(1, size + 1))
            gangs.append(
                Gang(
                    key,
                    queue=teams[int(rng.integers(len(teams)))],
                    min_member=least,
                    priority=int(rng.choice(_PRIORITIES)),
                    created_ms=number,
                    waiting_since_ms=number,
                    phase=GangPhase.INQUEUE,
                    tasks=tuple(sorted(tasks, key=lambda t: t.order)),
                )
            )
        return gangs


def _draw_node(number: int, rng: np.random.Generator) -> Node:
    cpus, gib, gpus, model = _KINDS[int(rng.choice(len(_KINDS), p=_KIND_PARTS))]
    name = f"node-{number:05d}"
    offered = {CPU: 1000 * cpus, MEMORY: gib * GIB, PODS: 110, **({GPU: gpus} if gpus else {})}
    is_tainted = gpus > 0 and rng.random() < 0.5
    taints = (Taint(GPU, "present", TaintEffect.NO_SCHEDULE),) if is_tainted else ()
    labels = {"kubernetes.io/hostname": name, **({MODEL: model} if model else {})}
    return Node(name, tuple(sorted(offered.items())), labels=labels, taints=taints)


def _queue(
    name: str, parent: str, total: dict[str, int], number: int, rng: np.random.Generator
) -> Queue:
    part = {r: int(total.get(r, 0) * rng.uniform(0.8, 1.2) / number) for r in (CPU, GPU)}
    part[CPU] -= part[CPU] % 1000
    deserved = tuple(sorted((r, a) for r, a in part.items() if a))
    return Queue(name, weight=int(rng.integers(1, 5)), deserved=deserved, parent=parent)


def _draw_shape(rng: np.random.Generator) -> TaskShape:
    gpus = int(rng.choice(_GPUS, p=(0.45, 0.25, 0.2, 0.1))) if rng.random() < 0.5 else 0
    cpus = int(rng.choice(_CPU_PER_GPU)) * gpus if gpus else int(rng.choice(_CPUS))
    gib = cpus * int(rng.choice(_GIB_PER_CPU))
    tolerates = gpus > 0 or rng.random() < 0.3
    tolerations = (Toleration(GPU, exists=True),) if tolerates else ()
    request = {CPU: 1000 * cpus, MEMORY: gib * GIB, **({GPU: gpus} if gpus else {})}
    affinity = None
    if gpus and rng.random() < 0.25:
        models = tuple(sorted(rng.choice([k[3] for k in _KINDS[1:]], 2, replace=False).tolist()))
        affinity = NodeSelector((NodeTerm((Requirement(MODEL, Operator.IN, models),)),))
    return TaskShape(
        tuple(sorted(request.items())), node_affinity=affinity, tolerations=tolerations
    )
