"""All pods known at once and free to move: how much of the GPUs can be given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE
from optsched.study.fgd.plan_check import Placed
from optsched.study.gpu_packing.node_pool import Layout, Nodes, Pool, empty_layout

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterator, Sequence

    from optsched.problem.arrays import I64
    from optsched.study.fgd.workload import Arrivals, Workload
    from optsched.study.gpu_packing.search import At


def arrived_pods(workload: Workload, run: Arrivals, percent: int = 100) -> I64:
    """(T,) classes of the pods that arrive until they ask for so much of all GPUs."""
    demand = workload.requests.worth[run.classes].cumsum()
    return run.classes[demand * 100 <= percent * workload.total_milli]


def pool_of(workload: Workload, classes: I64) -> Pool:
    """Pods of some classes (T,) beside the nodes of a workload; those without GPUs must run."""
    requests, machines = workload.requests, workload.machines
    nodes = Nodes(
        machines.cpu_m, machines.memory_mib, (machines.free > 0).sum(axis=1), machines.model
    )
    return Pool(
        cpu_m=requests.cpu_m,
        memory_mib=requests.memory_mib,
        number=requests.number,
        milli=requests.milli,
        supply=np.bincount(classes, minlength=len(requests.cpu_m)),
        must=requests.worth == 0,
        reach=requests.reach,
        nodes=nodes,
    )


def layout_of(pool: Pool, classes: I64, nodes: I64, devices: I64) -> Layout:
    """Pods of classes (T,) on nodes (T,) and, those that share, devices (T,); -1 for none."""
    layout = empty_layout(pool)
    placed = nodes >= 0
    np.add.at(layout.pods, (nodes[placed], classes[placed]), 1)
    shared = placed & (devices >= 0)
    parts = pool.size_of[classes[shared]]
    np.add.at(layout.shares, (nodes[shared], devices[shared], parts), 1)
    return layout


def plan_of(pool: Pool, classes: I64, layout: Layout) -> list[Placed]:
    """Pods of classes (T,) in a layout: the first pods go to the first node."""
    waiting = [np.flatnonzero(classes == k)[::-1].tolist() for k in range(len(pool.supply))]
    return [
        Placed(waiting[k].pop(), n, devices)
        for n in range(len(layout.pods))
        for k, devices in _allocate_node(
            pool, layout.pods[n], layout.shares[n], _idle(layout.shares[n], ())
        )
    ]


def plan_as_placed(workload: Workload, classes: I64, nodes: I64, devices: I64) -> list[Placed]:
    """Pods of classes (T,) as they came: parts on devices (T,), others on the first idle ones."""
    free, plan = workload.machines.free.copy(), list[Placed]()
    for pod in np.flatnonzero(nodes >= 0).tolist():
        kind, node = classes[pod], int(nodes[pod])
        number = int(workload.requests.number[kind])
        idle = np.flatnonzero(free[node] == WHOLE)[:number].tolist()
        taken = tuple(idle) if devices[pod] < 0 else (int(devices[pod]),)
        free[node, list(taken)] -= workload.requests.milli[kind]
        plan.append(Placed(pod, node, taken))
    return plan


def plan_with_moves(
    pool: Pool, classes: I64, before: Sequence[Placed], layout: Layout, staying: Counter[At]
) -> list[Placed]:
    """A layout in which as many pods as are said stay where they were before."""
    left, plan = staying.copy(), list[Placed]()
    rest = Layout(layout.pods.copy(), layout.shares.copy())
    taken: dict[int, set[int]] = {}
    for at in before:
        kind = int(classes[at.pod])
        if left[at.node, kind, at.devices] <= 0:
            continue
        left[at.node, kind, at.devices] -= 1
        plan.append(at)
        rest.pods[at.node, kind] -= 1
        if pool.is_share[kind]:
            rest.shares[at.node, at.devices[0], pool.size_of[kind]] -= 1
        taken.setdefault(at.node, set()).update(at.devices)
    stays = {at.pod for at in plan}
    waiting = [
        [pod for pod in np.flatnonzero(classes == k)[::-1].tolist() if pod not in stays]
        for k in range(len(pool.supply))
    ]
    for n in np.flatnonzero(rest.pods.any(axis=1)).tolist():
        idle = _idle(layout.shares[n], taken.get(n, set()))
        for k, devices in _allocate_node(pool, rest.pods[n], rest.shares[n], idle):
            plan.append(Placed(waiting[k].pop(), n, devices))
    return plan


def _idle(shares: I64, taken: Collection[int]) -> list[int]:
    """Unused devices of a node."""
    return [d for d in np.flatnonzero(~shares.any(axis=1)).tolist() if d not in taken]


def _allocate_node(
    pool: Pool, pods: I64, shares: I64, idle: list[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Class and GPUs of each pod (K,) of one node."""
    part = [
        np.repeat(np.arange(len(shares)), shares[:, z]).tolist() for z in range(shares.shape[1])
    ]
    for k in np.repeat(np.arange(len(pods)), pods).tolist():
        z, number = int(pool.size_of[k]), int(pool.whole_gpus[k])
        if z >= 0:
            yield k, (part[z].pop(),)
            continue
        taken, idle = idle[:number], idle[number:]
        yield k, tuple(taken)
