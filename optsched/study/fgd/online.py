"""Pods arrive in batches and stay where they are put: slots planned ahead, FGD for the rest.

Like FGD, the policy knows the typical pods and their shares. Once, before anybody comes, it plans
where as many of them as ask for a little more than all GPUs would go best
(`optsched.engines.sharing`); every node gets slots. Of a batch each pod takes a slot of its class;
who finds none takes a slot made for no less, then by FGD's score room without slots, then any room,
whose slots are given up. Nobody is turned away who fits somewhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.engines.sharing.pool import WHOLE
from optsched.engines.sharing.rounding import rounded
from optsched.study.fgd.checking import Placed
from optsched.study.fgd.offline import plan_of, pool_of
from optsched.study.fgd.policies import POLICIES
from optsched.study.fgd.room import Room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.engines.sharing.pool import Asked
    from optsched.problem.arrays import I64
    from optsched.study.fgd.workload import Workload

EXPECTED: Final = 102
"""Percent of all GPUs for which slots are planned: a little more, since not all demand has room."""

PLAN_SECONDS: Final = 60.0
"""How long whole numbers for the slots are sought at most."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Room kept for a pod of a class."""

    node: int
    kind: int
    devices: tuple[int, ...]


def expected_pods(workload: Workload, percent: int = EXPECTED) -> I64:
    """Typical pods (T,) in their shares that ask for so much of all GPUs."""
    mean = workload.share @ workload.asked.worth[workload.typical]
    number = np.rint(workload.share * percent / 100 * workload.total_milli / mean)
    return np.repeat(workload.typical, number.astype(np.int64))


def planned_slots(workload: Workload, seconds: float = PLAN_SECONDS) -> list[Slot]:
    """Slots for the pods that are expected; none where no whole numbers are found in time."""
    classes = expected_pods(workload)
    pool = pool_of(workload, classes)
    layout = rounded(pool, seconds)
    if layout is None:
        return []
    plan = plan_of(pool, classes, layout)
    return [Slot(at.node, int(classes[at.pod]), at.devices) for at in plan]


def placed_in_batches(
    workload: Workload, classes: Sequence[int], slots: Sequence[Slot], size: int
) -> list[Placed]:
    """Where pods of classes (T,) run that arrive so many at a time."""
    cluster, found = _Cluster(workload, slots), list[Placed]()
    for first in range(0, len(classes), size):
        batch = dict(enumerate(classes[first : first + size], first))
        found += cluster.arrive(batch)
    return found


class _Cluster:
    """What is left, what is left beside the slots, and the slots that nobody has taken."""

    def __init__(self, workload: Workload, slots: Sequence[Slot]) -> None:
        self._asked = workload.asked
        policy = POLICIES["06-FGD"](workload)
        self._left, self._spare = Room(workload, policy), Room(workload, policy)
        self._made_for = _made_for_no_less(workload.asked)
        self._of_kind: defaultdict[int, list[Slot]] = defaultdict(list)
        self._on: defaultdict[int, list[Slot]] = defaultdict(list)
        for slot in sorted(slots, key=lambda s: (s.node, s.devices), reverse=True):
            self._of_kind[slot.kind].append(slot)
            self._on[slot.node].append(slot)
            self._spare.take(slot.kind, slot.node, slot.devices)

    def arrive(self, batch: dict[int, int]) -> Iterator[Placed]:
        """Place a batch, pods and their classes: those with slots of their own first."""
        others = []
        for pod, kind in batch.items():
            slot = self._slot(kind, [kind])
            if slot is None:
                others.append((pod, kind))
            else:
                yield Placed(pod, *self._filled(slot, kind))
        total, cpu_m = self._asked.worth, self._asked.cpu_m
        for pod, kind in sorted(others, key=lambda o: (-total[o[1]], -cpu_m[o[1]], o[0])):
            at = self._elsewhere(kind)
            if at is not None:
                yield Placed(pod, *at)

    def _elsewhere(self, kind: int) -> tuple[int, tuple[int, ...]] | None:
        slot = self._slot(kind, self._made_for[kind])
        if slot is not None:
            return self._filled(slot, kind)
        at = self._spare.best(kind) or self._left.best(kind)
        if at is not None:
            self._put(kind, *at)
        return at

    def _slot(self, kind: int, made_for: Sequence[int]) -> Slot | None:
        slots = (slot for other in made_for for slot in reversed(self._of_kind[other]))
        fitting = (slot for slot in slots if self._left.has(kind, slot.node, slot.devices))
        return next(fitting, None)

    def _filled(self, slot: Slot, kind: int) -> tuple[int, tuple[int, ...]]:
        self._drop(slot)
        self._put(kind, slot.node, slot.devices)
        return slot.node, slot.devices

    def _put(self, kind: int, node: int, devices: tuple[int, ...]) -> None:
        for room in (self._left, self._spare):
            room.take(kind, node, devices)
        while any(self._spare.lacks(node)):
            self._drop(self._least_needed(node))

    def _drop(self, slot: Slot) -> None:
        self._of_kind[slot.kind].remove(slot)
        self._on[slot.node].remove(slot)
        self._spare.take(slot.kind, slot.node, slot.devices, -1)

    def _least_needed(self, node: int) -> Slot:
        """The slot to give up: the smallest on a device that lacks room, or the most CPU."""
        devices, by_cpu = self._spare.lacks(node)
        size = -self._asked.cpu_m if by_cpu else self._asked.worth
        there = [s for s in self._on[node] if not devices or devices & set(s.devices)]
        return min(there, key=lambda s: (size[s.kind], s.kind))


def _made_for_no_less(asked: Asked) -> list[list[int]]:
    """For each class those that ask for as many GPUs and no less of anything, the next first.

    Memory aside, which is looked at when a slot is taken.
    """
    less = (asked.cpu_m[:, None] <= asked.cpu_m) & (asked.milli[:, None] <= asked.milli)
    less &= asked.number[:, None] == asked.number
    less &= (asked.milli[:, None] == WHOLE) == (asked.milli == WHOLE)
    return [
        sorted(np.flatnonzero(row).tolist(), key=lambda k: (asked.worth[k], asked.cpu_m[k], k))
        for row in less
    ]
