"""Which of the GPUs of a node its tasks have: the lowest that are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.domain.amounts import Amounts
    from optsched.domain.cards import CardUse
    from optsched.domain.cluster import Node
    from optsched.domain.task import TaskShape

WHOLE: Final = 1000
"""Thousandths of a GPU."""


def num_gpus(given: Amounts) -> int:
    """How many GPUs amounts come to: of the resources of device plugins, such as nvidia.com/gpu."""
    return sum(amount for resource, amount in given if resource.endswith("/gpu"))


def gpu_milli(shape: TaskShape) -> int:
    """Thousandths of GPUs that a task takes, whole ones and a part of one."""
    part = shape.device.milli if shape.device is not None and shape.device.is_share else 0
    return num_gpus(shape.request) * WHOLE + part


class GpuBook:
    """The GPUs of one node: what is free of each, in thousandths.

    Rules count devices and find out whether parts fit; which ones they are, a device plugin
    decides. Here a part goes to the fullest device that has room, a whole GPU to the lowest one.
    """

    def __init__(self, node: Node) -> None:
        self._cards = {card.key: i for i, card in enumerate(node.cards)}
        self.free = [WHOLE] * num_gpus(node.allocatable)

    def take(self, shape: TaskShape, cards: Sequence[CardUse] = ()) -> tuple[int, ...]:
        """Deal a task its GPUs; fewer than it asks for where parts would have to move for it."""
        if cards:
            return tuple(sorted({self._cards[c.key] for c in cards if c.key in self._cards}))
        number = num_gpus(shape.request)
        if number:
            dealt = [i for i, free in enumerate(self.free) if free == WHOLE][:number]
            for i in dealt:
                self.free[i] = 0
            return tuple(dealt)
        part = gpu_milli(shape)
        fitting = [(free, i) for i, free in enumerate(self.free) if part and free >= part]
        if not fitting:
            return ()
        _, best = min(fitting)
        self.free[best] -= part
        return (best,)

    def hold(self, shape: TaskShape, gpus: Sequence[int], cards: Sequence[CardUse]) -> None:
        """Count GPUs as dealt to a task."""
        self._count(shape, gpus, cards, -1)

    def give_back(self, shape: TaskShape, gpus: Sequence[int], cards: Sequence[CardUse]) -> None:
        """Take back what a task has had."""
        self._count(shape, gpus, cards, 1)

    def _count(
        self, shape: TaskShape, gpus: Sequence[int], cards: Sequence[CardUse], sign: int
    ) -> None:
        if cards:
            return
        each = WHOLE if num_gpus(shape.request) else gpu_milli(shape)
        for i in gpus:
            self.free[i] += sign * each
