"""Idle resources of the nodes while pods arrive, and how a policy rates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE
from optsched.study.fgd.node_states import States, fits_one_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.study.fgd.scoring_policies import Policy
    from optsched.study.fgd.workload import Workload

_NO_ROOM: Final = -1


class IdleResources:
    """N nodes; points of classes on them are kept until a node changes.

    More may be requested than there is: the rest is then negative. Of equally good nodes the one
    of the least rank (N,) is taken.
    """

    def __init__(self, workload: Workload, policy: Policy, rank: I64) -> None:
        machines = workload.machines
        self._order = np.argsort(rank)
        self._requests, self._policy = workload.requests, policy
        self._cpu_m, self._memory_mib = machines.cpu_m.copy(), machines.memory_mib.copy()
        self._free, self._model = machines.free.copy(), machines.model
        self._num_gpu = (machines.free > 0).sum(axis=1)
        self._sorts = np.zeros_like(self._num_gpu)
        self._points = np.full((len(self._model), len(self._requests.cpu_m)), _NO_ROOM, np.int8)
        self._stale = set(range(len(self._model)))

    def allocate(self, kind: int, node: int, devices: Sequence[int], times: int = 1) -> None:
        """Take room for pods of a class; for less than none, give it back."""
        self._cpu_m[node] -= times * self._requests.cpu_m[kind]
        self._memory_mib[node] -= times * self._requests.memory_mib[kind]
        self._free[node, list(devices)] -= times * self._requests.milli[kind]
        self._stale.add(node)

    def fits(self, kind: int, node: int, devices: Sequence[int]) -> bool:
        """Whether a pod of a class fits these devices of a node."""
        requests = self._requests
        return bool(
            requests.reach[kind, self._model[node]]
            and self._cpu_m[node] >= requests.cpu_m[kind]
            and self._memory_mib[node] >= requests.memory_mib[kind]
            and (self._free[node, list(devices)] >= requests.milli[kind]).all()
        )

    def lacks(self, node: int) -> tuple[set[int], bool]:
        """Devices of which more is taken than there is, and whether CPU or memory is."""
        devices = np.flatnonzero(self._free[node] < 0).tolist()
        return set(devices), bool(self._cpu_m[node] < 0 or self._memory_mib[node] < 0)

    def best(self, kind: int) -> tuple[int, tuple[int, ...]] | None:
        """Where the policy puts a pod of a class."""
        self._rate()
        node = int(self._order[self._points[self._order, kind].argmax()])
        if self._points[node, kind] == _NO_ROOM:
            return None
        return node, self._devices(kind, node)

    def _rate(self) -> None:
        if not self._stale:
            return
        nodes = np.array(sorted(self._stale))
        states = self._states(nodes)
        fits = fits_one_more(states, self._requests)
        self._points[nodes] = np.where(fits, self._policy.scores(states), _NO_ROOM)
        self._stale.clear()

    def _states(self, nodes: I64) -> States:
        parts = (self._cpu_m, self._memory_mib, self._free, self._num_gpu, self._model, self._sorts)
        return States(*(part[nodes] for part in parts))

    def _devices(self, kind: int, node: int) -> tuple[int, ...]:
        number = int(self._requests.number[kind])
        if self._requests.is_share[kind]:
            states = self._states(np.array([node]))
            return (int(self._policy.devices(states, np.array([kind]))[0]),)
        return tuple(np.flatnonzero(self._free[node] == WHOLE)[:number].tolist())
