"""Parallel replays of a trace in which pods arrive one by one and never finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.problem.arrays import row_groups
from optsched.study.fgd.scoring_policies import States, fits_one_more, sort_of, with_pods
from optsched.study.fgd.workload import NO_POD, stacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched.problem.arrays import I64
    from optsched.study.fgd.scoring_policies import Policy
    from optsched.study.fgd.workload import Arrivals, Workload

LAST: Final = 130
"""Last x value of the curves: the GPU demand that has arrived, as a percentage of all GPUs."""


def allocation_curves(history: History, total_milli: int) -> list[list[float]]:
    """Return each run's mean GPU allocation at each percentage of arrived demand, from 0 to `LAST`.

    Allocation and demand are percentages of all GPUs. If no arrival falls on a percentage, the mean
    over the arrivals at the two adjacent percentages is used.
    """
    num_gpu, curves = total_milli // 1000, []
    for run, length in enumerate(history.length.tolist()):
        bucket = np.rint(history.arrived[run, :length] / num_gpu / 10)
        allocated = history.allocated[run, :length].tolist()
        percent = np.array([round(a / num_gpu / 10, 2) for a in allocated])
        inside = (percent[bucket == at] for at in range(LAST + 1))
        near = (percent[np.abs(bucket - at) <= 1] for at in range(LAST + 1))
        means = [(own if len(own) else both).mean() for own, both in zip(inside, near, strict=True)]
        curves.append([float(np.round(mean, 2)) for mean in means])
    return curves


_NO_ROOM: Final = -1


@dataclass(frozen=True, eq=False, slots=True)
class History:
    """GPU demand and allocation of each run after each arrival, in thousandths of a GPU."""

    # GPU demand and allocation of each run after each arrival, shape (B, T). After a run's last
    # arrival, the row of the run repeats the last value.
    arrived: I64
    allocated: I64
    length: I64  # Number of arrivals in each run, shape (B,).
    node_of: I64  # Node of each pod, shape (B, T); -1 for an unplaced pod.
    # GPU of each pod with a GPU share, shape (B, T); -1 for other pods, which take the first idle
    # GPUs.
    device_of: I64


def replay(workload: Workload, policy: Policy, runs: Sequence[Arrivals]) -> History:
    """Replay several runs in parallel; each arriving pod goes to the node with the highest score.

    A pod that fits on no node is not retried. `policy` must have been constructed with this
    workload.
    """
    classes, rank = stacked(runs)
    cluster = _Cluster(workload, policy, rank)
    node_of, device_of = np.full((2, *classes.shape), _NO_ROOM, np.int64)
    for t in range(classes.shape[1]):
        node_of[:, t], device_of[:, t] = cluster.arrive(classes[:, t])
    total = np.append(workload.requests.worth, 0)[classes]
    return History(
        arrived=total.cumsum(axis=1),
        allocated=np.where(node_of >= 0, total, 0).cumsum(axis=1),
        length=(classes != NO_POD).sum(axis=1),
        node_of=node_of,
        device_of=device_of,
    )


class _Cluster:
    """The nodes of B runs, sorted by rank, so that `argmax` selects the lowest rank on ties."""

    def __init__(self, workload: Workload, policy: Policy, rank: I64) -> None:
        machines, self._policy, self._requests = workload.machines, policy, workload.requests
        self._order = rank.argsort(axis=1)
        self._cpu_m = machines.cpu_m[self._order]
        self._memory_mib = machines.memory_mib[self._order]
        self._free = machines.free[self._order]
        self._num_gpu = (machines.free > 0).sum(axis=1)[self._order]
        self._model = machines.model[self._order]
        self._sorts = np.zeros_like(self._cpu_m)
        self._sort_of = sort_of(workload.requests)
        self._runs = np.arange(len(rank))
        # In all runs, the nodes are idle at the start. Equal nodes have equal scores, so compute
        # the scores only once per node class.
        run = np.zeros(len(machines.free), np.int64)
        place = self._order[0].argsort()
        states = self._states(run, place)
        columns = [states.cpu_m, states.memory_mib, states.model, states.num_gpu]
        group, first = row_groups(columns)
        self._points = (
            self._scored(self._states(run[first], place[first]))[group]
            .T[:, self._order]
            .swapaxes(0, 1)
            .copy()
        )

    def _states(self, run: I64, node: I64) -> States:
        parts = (self._cpu_m, self._memory_mib, self._free, self._num_gpu, self._model, self._sorts)
        return States(*(part[run, node] for part in parts))

    def _scored(self, states: States) -> npt.NDArray[np.int8]:
        """Return the score of each class in each state, shape (S, K); -1 if a pod does not fit."""
        fits = fits_one_more(states, self._requests)
        return np.where(fits, self._policy.scores(states), _NO_ROOM).astype(np.int8)

    def arrive(self, classes: I64) -> tuple[I64, I64]:
        """Place one pod of class (B,) in each run; return nodes and GPUs (B,), -1 if unplaced."""
        points = self._points[self._runs, classes]
        node = points.argmax(axis=1)
        run = np.flatnonzero((points[self._runs, node] != _NO_ROOM) & (classes != NO_POD))
        found, device = np.full((2, len(classes)), _NO_ROOM, np.int64)
        node, placed = node[run], classes[run]
        found[run] = self._order[run, node]
        if len(run):
            shares = np.flatnonzero(self._requests.is_share[placed])
            if len(shares):
                states = self._states(run[shares], node[shares])
                device[run[shares]] = self._policy.devices(states, placed[shares])
            free = self._free[run, node]
            self._free[run, node] = with_pods(free, self._requests, placed, device[run])
            self._cpu_m[run, node] -= self._requests.cpu_m[placed]
            self._memory_mib[run, node] -= self._requests.memory_mib[placed]
            self._sorts[run, node] |= self._sort_of[placed]
            self._points[run, :, node] = self._scored(self._states(run, node))
        return found, device
