"""Check a plan's constraints for each pod and each GPU, independently of the planners' code."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.study.fgd.workload import Workload


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The placement of one pod."""

    pod: int  # Index of the pod in arrival order.
    node: int  # Index of the node.
    # Indices of the pod's GPUs; a GPU share is on exactly one GPU.
    devices: tuple[int, ...]


def wrong_with_plan(
    workload: Workload, classes: Sequence[int], plan: Sequence[PodPlacement]
) -> list[str]:
    """Return a message for each constraint that a plan violates; empty for a feasible plan.

    Parameters
    ----------
    workload
        The nodes, and the requests of the pod classes.
    classes
        Class (T,) of each pod, in arrival order.
    plan
        The placed pods; all other pods are unplaced.

    """
    requests, machines = workload.requests, workload.machines
    found: list[str] = []
    for pod, times in sorted(Counter(at.pod for at in plan).items()):
        if times > 1:
            found.append(f"pod {pod} is placed {times} times")
        if not 0 <= pod < len(classes):
            found.append(f"pod {pod} is not one of the {len(classes)} pods")
    number = len(machines.model)
    for at in plan:
        if not 0 <= at.node < number:
            found.append(
                f"pod {at.pod} is on node {at.node}, which is not one of the {number} nodes"
            )
        if min(at.devices, default=0) < 0:
            found.append(f"pod {at.pod} has GPUs {list(at.devices)}")
    if found:  # The checks below require valid node and GPU indices.
        return found
    for at in plan:
        pod_class = classes[at.pod]
        if not requests.reach[pod_class][machines.model[at.node]]:
            found.append(f"pod {at.pod} may not run on the GPU model of node {at.node}")
        if len(set(at.devices)) != len(at.devices) or len(at.devices) != requests.number[pod_class]:
            has = list(at.devices)
            found.append(f"pod {at.pod} requests {requests.number[pod_class]} GPUs and has {has}")
    return [*found, *_check_capacity(workload, classes, plan)]


def milli_of_plan(workload: Workload, classes: Sequence[int], plan: Sequence[PodPlacement]) -> int:
    """Return the GPU capacity that a plan allocates, in thousandths of a GPU."""
    requests = workload.requests
    return sum(int(requests.milli[classes[at.pod]]) * len(at.devices) for at in plan)


def find_unplaced_that_fit(
    workload: Workload, classes: Sequence[int], plan: Sequence[PodPlacement]
) -> list[str]:
    """Return a message for each pod class with an unplaced pod that would fit on a node.

    The message names the first unplaced pod of the pod class.
    """
    requests, machines = workload.requests, workload.machines
    cpu_m, memory_mib, free = (
        machines.cpu_m.copy(),
        machines.memory_mib.copy(),
        machines.free.copy(),
    )
    for at in plan:
        pod_class = classes[at.pod]
        cpu_m[at.node] -= requests.cpu_m[pod_class]
        memory_mib[at.node] -= requests.memory_mib[pod_class]
        free[at.node, list(at.devices)] -= requests.milli[pod_class]
    runs = {at.pod for at in plan}
    first = {
        pod_class: pod for pod, pod_class in reversed(list(enumerate(classes))) if pod not in runs
    }
    found = list[str]()
    for pod_class, pod in sorted(first.items(), key=lambda one: one[1]):
        fits = requests.reach[pod_class][machines.model] & (cpu_m >= requests.cpu_m[pod_class])
        fits &= memory_mib >= requests.memory_mib[pod_class]
        fits &= (free >= requests.milli[pod_class]).sum(axis=1) >= requests.number[pod_class]
        found += [f"pod {pod} fits on node {n} but is not placed" for n in np.flatnonzero(fits)[:1]]
    return found


def _check_capacity(
    workload: Workload, classes: Sequence[int], plan: Sequence[PodPlacement]
) -> Iterator[str]:
    """Yield a message for each GPU, and for each node's CPU or memory, that is overcommitted."""
    requests, machines = workload.requests, workload.machines
    cpu_m, memory_mib = defaultdict[int, int](int), defaultdict[int, int](int)
    milli = defaultdict[tuple[int, int], int](int)
    for at in plan:
        pod_class = classes[at.pod]
        cpu_m[at.node] += int(requests.cpu_m[pod_class])
        memory_mib[at.node] += int(requests.memory_mib[pod_class])
        for device in at.devices:
            milli[at.node, device] += int(requests.milli[pod_class])
    for node in cpu_m:
        for used, capacity, unit in (
            (cpu_m[node], int(machines.cpu_m[node]), "m of CPU"),
            (memory_mib[node], int(machines.memory_mib[node]), "MiB of memory"),
        ):
            if used > capacity:
                yield f"node {node} has {capacity} {unit}, but {used} are allocated"
    for (node, device), used in milli.items():
        has = int(machines.free[node][device]) if device < len(machines.free[node]) else 0
        if used > has:
            yield f"GPU {device} of node {node} has {has} thousandths, but {used} are allocated"
