"""A trace as arrays: its nodes, pod classes (pods with equal requests) and arrival order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import WHOLE
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.openb_cluster import NODE_LIST, read_openb_rows
from optsched.study.fgd.gorandom import GoRandom
from optsched.study.gpu_packing.node_pool import Requests
from optsched.units import CPU, GPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from optsched.formats.files.diagnostics import ObjectProblem
    from optsched.problem.arrays import F64, I64

TUNE: Final = 1.3
"""Total GPU demand of all arriving pods, as a multiple of the GPU capacity."""

POPULAR: Final = 95
"""Minimum percentage of all pods that the typical classes must cover."""

NO_POD: Final = -1
"""Class index after a run's last arrival, where the row of the run is padded."""

_MIB: Final = 2**20
_DRAWN_ELSEWHERE: Final = 10


@dataclass(frozen=True, eq=False, slots=True)
class Machines:
    """The capacities of N nodes, in name order."""

    # Capacity of each node in milli-CPU and in MiB of memory, shape (N,).
    cpu_m: I64
    memory_mib: I64
    # Idle capacity of each GPU in thousandths, shape (N, D); 0 beyond the node's number of GPUs.
    free: I64
    model: I64  # Index of each node's GPU model among Y models, shape (N,).


@dataclass(frozen=True, eq=False, slots=True)
class Workload:
    """The nodes and pods of a trace, as arrays."""

    requests: Requests
    machines: Machines
    pod_class: I64  # Class of each pod, shape (P,); pods are sorted by name.
    # The typical classes (M,), the most frequent first. Any two typical classes differ in CPU, GPUs
    # or GPU models.
    typical: I64
    share: F64  # Fraction of the pods in each typical class, scaled to a sum of 1, shape (M,).

    @property
    def total_milli(self) -> int:
        """GPU capacity of all nodes, in thousandths of a GPU."""
        return int(self.machines.free.sum())


def read_workload(
    pods: Path, nodes: Path | None = None
) -> tuple[Workload, tuple[ObjectProblem, ...]]:
    """Read a pod list and a node list, by default the node list next to the pod list.

    Raises InstanceError if a list cannot be read, if no pod requests GPUs, or if no node has GPUs.
    """
    machines, rows, problems = read_openb_rows(pods, nodes)
    if not any(row.num_gpu * row.gpu_milli for row in rows):
        raise InstanceError(f"{pods}: no pod requests GPUs; at least one pod must", problems)
    if not any(amount_of(n.allocatable, GPU) for n in machines):
        node_file = nodes or pods.with_name(NODE_LIST)
        raise InstanceError(f"{node_file}: no node has GPUs; at least one node must", problems)
    offered = [[amount_of(n.allocatable, r) for r in (CPU, MEMORY, GPU)] for n in machines]
    node_cpu_m, node_memory, num_gpu = np.array(offered, np.int64).T
    free = WHOLE * (np.arange(num_gpu.max(initial=0)) < num_gpu[:, None]).astype(np.int64)
    models = sorted({n.gpu_model for n in machines})
    model = np.array([models.index(n.gpu_model) for n in machines], np.int64)
    pod_requests = [
        (row.cpu_m, row.gpu_milli, row.num_gpu, row.gpu_spec, row.memory_mib) for row in rows
    ]
    classes = sorted(set(pod_requests))
    index = {request: i for i, request in enumerate(classes)}
    cpu_m, milli, number, memory = (
        np.array([request[i] for request in classes], np.int64) for i in (0, 1, 2, 4)
    )
    allowed = [set(filter(None, request[3].split("|"))) for request in classes]
    reach = [[not these or model in these for model in models] for these in allowed]
    frequent = _typical(pod_requests)
    numbers = np.array([number for _, number in frequent], np.float64)
    # Divide in two steps, so that the rounding is the same as in the simulator.
    part = numbers / len(rows)
    return Workload(
        requests=Requests(cpu_m, memory, number, milli, np.array(reach, np.bool_)),
        machines=Machines(node_cpu_m, node_memory // _MIB, free, model),
        pod_class=np.array([index[request] for request in pod_requests], np.int64),
        typical=np.array(
            [
                next(i for i, other in enumerate(classes) if other[:4] == request)
                for request, _ in frequent
            ],
            np.int64,
        ),
        share=part / (numbers.sum() / len(rows)),
    ), problems


# (milli-CPU, thousandths of each GPU, number of GPUs, GPU models, memory in MiB).
_Request = tuple[int, int, int, str, int]


def _typical(pod_requests: Iterable[_Request]) -> list[tuple[tuple[int, int, int, str], int]]:
    """Return the most frequent requests, which cover at least `POPULAR` percent of the pods.

    Requests that differ only in memory count as equal. Each request is returned with its number of
    pods. The requests are sorted by descending number of pods, then by descending request.
    """
    number_of = Counter(request[:4] for request in pod_requests)
    wanted, found = POPULAR * number_of.total() / 100, 0
    frequent = []
    for request, number in sorted(number_of.items(), key=lambda k: (k[1], k[0]), reverse=True):
        if found >= wanted:
            break
        frequent.append((request, number))
        found += number
    return frequent


@dataclass(frozen=True, eq=False, slots=True)
class Arrivals:
    """The arrivals and node ranks of one seed."""

    classes: I64  # Class of each pod in arrival order, shape (T,).
    # Rank of each node, shape (N,); among nodes with equal scores, the node with the lowest rank is
    # selected.
    rank: I64


def arrivals(workload: Workload, seed: int) -> Arrivals:
    """Return the simulator's arrivals, with the total GPU demand `TUNE`, and its node ranks.

    Randomly chosen pods are added or removed until the demand reaches `TUNE`. No more pods are
    added once the next pod's request per GPU exceeds the demand that is missing to reach `TUNE`.

    Random numbers are drawn in the same order as in the simulator, which uses a single generator.
    The simulator also draws one number for a log line and ten numbers for the jitter of its
    informers.
    """
    random = GoRandom(seed)
    random.uint64()
    order = list(range(len(workload.pod_class)))
    random.shuffle(order)
    pods: list[int] = workload.pod_class.tolist()
    classes = [pods[pod] for pod in order]
    total, milli = workload.requests.worth.tolist(), workload.requests.milli.tolist()
    demand, wanted = sum(total[k] for k in classes), TUNE * workload.total_milli
    if demand > wanted:
        while demand > wanted:
            demand -= total[classes.pop(random.intn(len(classes)))]
    elif demand < wanted:
        drawn = pods[random.intn(len(pods))]
        # Pods without GPUs are added even if the GPU demand has reached `TUNE`.
        while demand + milli[drawn] <= wanted:
            demand += total[drawn]
            classes.append(drawn)
            drawn = pods[random.intn(len(pods))]
    for _ in range(_DRAWN_ELSEWHERE):
        random.uint64()
    rank = random.permutation(len(workload.machines.cpu_m))
    return Arrivals(np.array(classes, np.int64), np.array(rank, np.int64))


def stacked(runs: Sequence[Arrivals]) -> tuple[I64, I64]:
    """Stack several runs: return classes (B, T), padded with `NO_POD`, and node ranks (B, N)."""
    longest = max(len(run.classes) for run in runs)
    classes = np.full((len(runs), longest), NO_POD, np.int64)
    for row, run in zip(classes, runs, strict=True):
        row[: len(run.classes)] = run.classes
    return classes, np.array([run.rank for run in runs])
