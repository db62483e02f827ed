"""The GPUs that a plan names, added up device by device.

The rule `deviceshare` proves that the pods of a node fit its GPUs; here the assignment of the plan
itself is checked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate
from optsched.cluster.gpu_shares import ALL_CORES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.gpu_shares import GpuShare, SharedGpu
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task


def check_gpu_shares(snapshot: Snapshot, actions: Sequence[Action]) -> Iterator[str]:
    """Every problem of the shared GPUs of a plan, a sentence each.

    For clusters whose pods ask for parts by memory and cores (vGPU), without slices of MIG.
    """
    tasks = {task.key: task for gang in snapshot.gangs for task in gang.tasks}
    held: defaultdict[tuple[str, str], list[GpuShare]] = defaultdict(list)
    for node in snapshot.nodes:
        for task in node.residents:
            for use in task.shared_gpus:
                held[node.name, use.key].append(use)
    for action in actions:
        if isinstance(action, Allocate):
            yield from _wrong_with_task(tasks[action.task], action.shared_gpus)
            for use in action.shared_gpus:
                held[action.node, use.key].append(use)
    shared_gpus = {(node.name, gpu.key): gpu for node in snapshot.nodes for gpu in node.shared_gpus}
    for (name, key), uses in sorted(held.items()):
        yield from _check_gpu(f"GPU {key} of node {name}", shared_gpus.get((name, key)), uses)


def _wrong_with_task(task: Task, uses: Sequence[GpuShare]) -> Iterator[str]:
    asked = sorted(need.memory for need in task.shape.shared_gpus for _ in range(need.number))
    given = sorted(use.memory for use in uses)
    if asked != given:
        yield f"{task.key} asks for {asked} of memory of GPUs and gets {given}"


def _check_gpu(name: str, gpu: SharedGpu | None, uses: Sequence[GpuShare]) -> Iterator[str]:
    if gpu is None or not gpu.is_healthy:
        yield f"{name} is not there or does not work"
        return
    memory, cores = sum(u.memory for u in uses), sum(u.cores for u in uses)
    if memory > gpu.memory or cores > ALL_CORES or len(uses) > gpu.sharers:
        has = f"{gpu.memory} of memory, {ALL_CORES} of cores and {gpu.sharers} places"
        yield f"{name} has {has}; {memory}, {cores} and {len(uses)} are given away"
