"""Plan the GPU allocation of pods that are known in advance or arrive in batches.

If all pods are known in advance, placed pods may move to other nodes. Pods that arrive in batches
never move.

The batch policy knows what fraction of all pods belongs to each pod class. FGD also knows the
fractions of the pod classes, except those of rare classes. Before any pod arrives, the batch policy
plans the best placement of pods that together request slightly more than all GPUs
(`optsched.study.gpu_packing`). Each planned pod becomes a slot: capacity for one pod of its class
on its node.

A pod in a batch takes a slot of its class. If no slot of its class is free, the pod takes a larger
slot of another class. If no slot is large enough, the pod takes capacity outside the slots, on the
node with the best FGD score. As a last resort, the pod takes capacity that belongs to slots, and
these slots are dropped. A pod that fits on some node is never rejected.

If nodes run out of CPU before GPUs, pods without a slot of their class use up many slots, and FGD
alone would allocate more GPUs. A rehearsal (a simulated run with randomly drawn pods) therefore
decides whether slots are used.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE
from optsched.study.fgd.plan_check import PodPlacement, milli_of_plan
from optsched.study.fgd.scoring_policies import POLICIES, States, fits_one_more
from optsched.study.gpu_packing.node_pool import Layout, Nodes, Pool, empty_layout
from optsched.study.gpu_packing.program import round_to_layout

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterator, Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.study.fgd.scoring_policies import Policy
    from optsched.study.fgd.workload import Arrivals, Workload
    from optsched.study.gpu_packing.search import At


def arrived_pods(workload: Workload, run: Arrivals) -> I64:
    """Return the class (T,) of each pod that arrives before the GPU demand exceeds the capacity."""
    demand = workload.requests.worth[run.classes].cumsum()
    return run.classes[demand <= workload.total_milli]


def pool_of(workload: Workload, classes: I64) -> Pool:
    """Return a `Pool` with the workload's nodes, and with one pod per element of `classes` (T,).

    Pods that request no GPU must be placed.
    """
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
    """Return the layout of T pods, given each pod's class and node (T,); node -1 means unplaced.

    `devices` (T,) is the index of the GPU of each pod that requests a GPU share, and -1 for other
    pods.
    """
    layout = empty_layout(pool)
    placed = nodes >= 0
    np.add.at(layout.pods, (nodes[placed], classes[placed]), 1)
    shared = placed & (devices >= 0)
    parts = pool.size_of[classes[shared]]
    np.add.at(layout.shares, (nodes[shared], devices[shared], parts), 1)
    return layout


def plan_of(pool: Pool, classes: I64, layout: Layout) -> list[PodPlacement]:
    """Return the placement of each pod in a layout; `classes` (T,) is the class of each pod.

    Within a class, pods that arrive earlier are on nodes with lower indices.
    """
    waiting = [np.flatnonzero(classes == k)[::-1].tolist() for k in range(len(pool.supply))]
    return [
        PodPlacement(waiting[k].pop(), n, devices)
        for n in range(len(layout.pods))
        for k, devices in _allocate_node(
            pool, layout.pods[n], layout.shares[n], _idle(layout.shares[n], ())
        )
    ]


def plan_from_replay(
    workload: Workload, classes: I64, nodes: I64, devices: I64
) -> list[PodPlacement]:
    """Return the placement of each placed pod; `classes` and `nodes` (T,) are in arrival order.

    `devices` (T,) is the GPU of each pod with a GPU share, and -1 for other pods, which take the
    first idle GPUs of their node.
    """
    free, plan = workload.machines.free.copy(), list[PodPlacement]()
    for pod in np.flatnonzero(nodes >= 0).tolist():
        pod_class, node = classes[pod], int(nodes[pod])
        number = int(workload.requests.number[pod_class])
        idle = np.flatnonzero(free[node] == WHOLE)[:number].tolist()
        taken = tuple(idle) if devices[pod] < 0 else (int(devices[pod]),)
        free[node, list(taken)] -= workload.requests.milli[pod_class]
        plan.append(PodPlacement(pod, node, taken))
    return plan


def plan_with_moves(
    pool: Pool, classes: I64, before: Sequence[PodPlacement], layout: Layout, staying: Counter[At]
) -> list[PodPlacement]:
    """Return the placement of each pod in a layout; the pods in `staying` do not move.

    `before` holds the placements before any move. `staying` maps each placement to the number of
    pods that do not move from it.
    """
    left, plan = staying.copy(), list[PodPlacement]()
    rest = Layout(layout.pods.copy(), layout.shares.copy())
    taken: dict[int, set[int]] = {}
    for at in before:
        pod_class = int(classes[at.pod])
        if left[at.node, pod_class, at.devices] <= 0:
            continue
        left[at.node, pod_class, at.devices] -= 1
        plan.append(at)
        rest.pods[at.node, pod_class] -= 1
        if pool.is_share[pod_class]:
            rest.shares[at.node, at.devices[0], pool.size_of[pod_class]] -= 1
        taken.setdefault(at.node, set()).update(at.devices)
    stays = {at.pod for at in plan}
    waiting = [
        [pod for pod in np.flatnonzero(classes == k)[::-1].tolist() if pod not in stays]
        for k in range(len(pool.supply))
    ]
    for n in np.flatnonzero(rest.pods.any(axis=1)).tolist():
        idle = _idle(layout.shares[n], taken.get(n, set()))
        for k, devices in _allocate_node(pool, rest.pods[n], rest.shares[n], idle):
            plan.append(PodPlacement(waiting[k].pop(), n, devices))
    return plan


def _idle(shares: I64, taken: Collection[int]) -> list[int]:
    """Return the devices of a node that hold no GPU share and are not in `taken`."""
    return [d for d in np.flatnonzero(~shares.any(axis=1)).tolist() if d not in taken]


def _allocate_node(
    pool: Pool, pods: I64, shares: I64, idle: list[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the class and GPUs of each pod on a node, given the pod count (K,) per class."""
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


_NO_ROOM: Final = -1


class IdleResources:
    """The idle resources of N nodes; a node's scores are cached until its idle resources change.

    If a resource is overcommitted, its idle amount is negative. Among nodes with equal scores,
    `best` selects the node with the lowest `rank` (N,).
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

    def allocate(self, pod_class: int, node: int, devices: Sequence[int], times: int = 1) -> None:
        """Allocate resources to `times` pods of a class; a negative `times` releases resources."""
        self._cpu_m[node] -= times * self._requests.cpu_m[pod_class]
        self._memory_mib[node] -= times * self._requests.memory_mib[pod_class]
        self._free[node, list(devices)] -= times * self._requests.milli[pod_class]
        self._stale.add(node)

    def fits(self, pod_class: int, node: int, devices: Sequence[int]) -> bool:
        """Return whether a pod of a class fits on a node with the given devices."""
        requests = self._requests
        return bool(
            requests.reach[pod_class, self._model[node]]
            and self._cpu_m[node] >= requests.cpu_m[pod_class]
            and self._memory_mib[node] >= requests.memory_mib[pod_class]
            and (self._free[node, list(devices)] >= requests.milli[pod_class]).all()
        )

    def lacks(self, node: int) -> tuple[set[int], bool]:
        """Return a node's overcommitted devices, and whether its CPU or memory is overcommitted."""
        devices = np.flatnonzero(self._free[node] < 0).tolist()
        return set(devices), bool(self._cpu_m[node] < 0 or self._memory_mib[node] < 0)

    def best(self, pod_class: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the best node and devices for a pod of a class, or None if it fits on no node."""
        if self._stale:
            nodes = np.array(sorted(self._stale))
            states = self._states(nodes)
            fits = fits_one_more(states, self._requests)
            self._points[nodes] = np.where(fits, self._policy.scores(states), _NO_ROOM)
            self._stale.clear()
        node = int(self._order[self._points[self._order, pod_class].argmax()])
        if self._points[node, pod_class] == _NO_ROOM:
            return None
        if self._requests.is_share[pod_class]:
            states = self._states(np.array([node]))
            return node, (int(self._policy.devices(states, np.array([pod_class]))[0]),)
        number = int(self._requests.number[pod_class])
        return node, tuple(np.flatnonzero(self._free[node] == WHOLE)[:number].tolist())

    def _states(self, nodes: I64) -> States:
        parts = (self._cpu_m, self._memory_mib, self._free, self._num_gpu, self._model, self._sorts)
        return States(*(part[nodes] for part in parts))


EXPECTED: Final = 102
"""GPU demand of the planned pods in percent of all GPUs.

The demand exceeds 100 % because some of the planned pods do not fit.
"""

PLAN_SECONDS: Final = 60.0
"""Time limit in seconds for the integer program that plans the slots."""

_REHEARSAL_SEED: Final = 0
_DRAWN: Final = 1.2
"""Number of pods in a rehearsal, as a multiple of the mean number that requests all GPUs."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Capacity planned for one pod of a class."""

    node: int
    pod_class: int
    devices: tuple[int, ...]


def expected_pods(workload: Workload, percent: float = EXPECTED) -> I64:
    """Return the classes (T,) of the expected pods, which together request `percent` of all GPUs.

    The classes have the same frequencies as in the workload.
    """
    part = _class_shares(workload)
    number = np.rint(part * _number(workload, percent))
    return np.repeat(np.arange(len(part)), number.astype(np.int64))


def _class_shares(workload: Workload) -> F64:
    """Return the fraction of each class among all pods, shape (K,)."""
    number = np.bincount(workload.pod_class, minlength=len(workload.requests.cpu_m))
    part: F64 = number / number.sum()
    return part


def _number(workload: Workload, percent: float) -> float:
    """Return the mean number of pods that together request `percent` of all GPUs."""
    mean = float(_class_shares(workload) @ workload.requests.worth)
    return percent / 100 * workload.total_milli / mean


def plan_slots(workload: Workload) -> list[Slot]:
    """Return slots for the expected pods; empty if the integer program finds no solution."""
    classes = expected_pods(workload)
    pool = pool_of(workload, classes)
    layout = round_to_layout(pool, PLAN_SECONDS)
    if layout is None:
        return []
    plan = plan_of(pool, classes, layout)
    return [Slot(at.node, int(classes[at.pod]), at.devices) for at in plan]


def select_helpful_slots(workload: Workload, slots: list[Slot], rank: I64) -> list[Slot]:
    """Return `slots` if they increase the GPU allocation in a rehearsal, else an empty list."""
    drawn = np.random.default_rng(_REHEARSAL_SEED).choice(
        len(workload.requests.cpu_m),
        int(_DRAWN * _number(workload, 100)) + 1,
        p=_class_shares(workload),
    )
    demand = workload.requests.worth[drawn].cumsum()
    pods = drawn[demand <= workload.total_milli].tolist()
    with_slots, without = (
        milli_of_plan(workload, pods, place_in_batches(workload, pods, some, 1, rank))
        for some in (slots, [])
    )
    return slots if with_slots > without else []


def place_in_batches(
    workload: Workload, classes: Sequence[int], slots: Sequence[Slot], size: int, rank: I64
) -> list[PodPlacement]:
    """Place pods of the given classes (T,), which arrive in batches of `size` pods.

    A pod without a slot goes to the node with the best score; among equal scores, to the node with
    the lowest rank (N,). Without slots, with batches of one pod and with FGD's node ranks, the
    placements are the same as under FGD.
    """
    cluster, found = _Cluster(workload, slots, rank), list[PodPlacement]()
    for first in range(0, len(classes), size):
        batch = dict(enumerate(classes[first : first + size], first))
        found += cluster.arrive(batch)
    return found


class _Cluster:
    """The free slots, and the idle resources of the nodes with and without these slots."""

    def __init__(self, workload: Workload, slots: Sequence[Slot], rank: I64) -> None:
        self._requests = workload.requests
        policy = POLICIES["06-FGD"](workload)
        self._left, self._spare = (IdleResources(workload, policy, rank) for _ in range(2))
        # Map each pod class to the slot classes that its pods may use, in ascending order of GPU
        # request. A pod may use a slot whose class requests as many GPUs as the pod, and at least
        # as much CPU and at least as much of each GPU. Memory is checked when a slot is taken.
        requests = workload.requests
        cpu_m, milli, number = requests.cpu_m, requests.milli, requests.number
        less = (cpu_m[:, None] <= cpu_m) & (milli[:, None] <= milli)
        less &= (number[:, None] == number) & ((milli[:, None] == WHOLE) == (milli == WHOLE))
        worth = requests.worth
        self._slot_classes_for = [
            sorted(np.flatnonzero(row).tolist(), key=lambda k: (worth[k], cpu_m[k], k))
            for row in less
        ]
        self._slots_by_class: defaultdict[int, list[Slot]] = defaultdict(list)
        self._slots_on: defaultdict[int, list[Slot]] = defaultdict(list)
        for slot in sorted(slots, key=lambda s: (s.node, s.devices), reverse=True):
            self._slots_by_class[slot.pod_class].append(slot)
            self._slots_on[slot.node].append(slot)
            self._spare.allocate(slot.pod_class, slot.node, slot.devices)

    def arrive(self, batch: dict[int, int]) -> Iterator[PodPlacement]:
        """Place a batch of pods and yield their placements; `batch` maps each pod to its class.

        Pods with a free slot of their class are placed first, then pods that request several GPUs,
        then the remaining pods in arrival order. Grouping the remaining pods by type would make
        some nodes run out of CPU and others out of GPUs.
        """
        others = []
        for pod, pod_class in batch.items():
            at = self._take_slot(pod_class, [pod_class])
            if at is None:
                others.append((pod, pod_class))
            else:
                yield PodPlacement(pod, *at)
        whole = self._requests.number
        for pod, pod_class in sorted(others, key=lambda o: (-max(whole[o[1]], 1), o[0])):
            at = self._take_slot(pod_class, self._slot_classes_for[pod_class])
            if at is None:
                at = self._spare.best(pod_class) or self._left.best(pod_class)
                if at is not None:
                    self._place_pod(pod_class, *at)
            if at is not None:
                yield PodPlacement(pod, *at)

    def _take_slot(
        self, pod_class: int, slot_classes: Sequence[int]
    ) -> tuple[int, tuple[int, ...]] | None:
        """Place a pod in the first large enough slot of the given classes; return node and GPUs."""
        slots = (slot for other in slot_classes for slot in reversed(self._slots_by_class[other]))
        for slot in slots:
            if self._left.fits(pod_class, slot.node, slot.devices):
                self._drop(slot)
                self._place_pod(pod_class, slot.node, slot.devices)
                return slot.node, slot.devices
        return None

    def _place_pod(self, pod_class: int, node: int, devices: tuple[int, ...]) -> None:
        """Allocate resources to a pod, and drop the slots that use the same resources."""
        for idle in (self._left, self._spare):
            idle.allocate(pod_class, node, devices)
        while any(self._spare.lacks(node)):
            # If CPU or memory of the node is overcommitted, drop the node's slot with the most CPU.
            # If only devices are overcommitted, drop the smallest slot on an overcommitted device.
            lacking, by_cpu = self._spare.lacks(node)
            size = -self._requests.cpu_m if by_cpu else self._requests.worth
            candidates = [
                s for s in self._slots_on[node] if not lacking or lacking & set(s.devices)
            ]
            self._drop(min(candidates, key=lambda s: (size[s.pod_class], s.pod_class)))

    def _drop(self, slot: Slot) -> None:
        self._slots_by_class[slot.pod_class].remove(slot)
        self._slots_on[slot.node].remove(slot)
        self._spare.allocate(slot.pod_class, slot.node, slot.devices, -1)
