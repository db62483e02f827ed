"""A placement improved by few moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.gpu_packing.node_pool import Layout
from optsched.study.gpu_packing.search import Effort, worth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.study.gpu_packing.move_model import Present
    from optsched.study.gpu_packing.node_pool import Pool

At = tuple[int, int, tuple[int, ...]]
"""Node, class, devices."""

_PRICE: Final = 100
"""Thousandths of GPUs that a move has to gain at least."""

_EFFORT: Final = Effort(nodes=4)


@dataclass(frozen=True, slots=True)
class Running:
    """Where pods run, and how many may change their node or devices, or leave."""

    pods: Sequence[At]
    most: int


def improved(
    pool: Pool,
    start: Layout,
    running: Running,
    clock: Callable[[], float],
    seconds: float,
    seed: int = 0,
) -> tuple[Layout, Counter[At]]:
    """Move few pods so that more GPUs are allocated; waiting pods may start.

    Parameters
    ----------
    pool
        Pods and nodes.
    start
        Where pods run.
    running
        The same pod by pod, and how many may move.
    clock, seconds, seed
        As `optsched.study.gpu_packing.search.allocate`.

    Returns
    -------
    tuple
        The placement, and how many pods stay where they were.

    """
    end = clock() + seconds
    search = _Search(pool, start, running, np.random.default_rng(seed))
    while clock() < end:
        search.step()
    return search.layout, search.staying


class _Search:
    def __init__(
        self, pool: Pool, start: Layout, running: Running, random: np.random.Generator
    ) -> None:
        # OR-Tools is loaded when it is first needed.
        from optsched.study.gpu_packing.move_model import Present

        self.layout = Layout(start.pods.copy(), start.shares.copy())
        self._pool, self._random, self._left = pool, random, running.most
        self._on: dict[int, list[Present]] = {}
        for (node, kind, devices), number in sorted(Counter(running.pods).items()):
            self._on.setdefault(node, []).append(Present(node, kind, devices, number, number))

    @property
    def staying(self) -> Counter[At]:
        """Pods that are where they were."""
        every = [p for those in self._on.values() for p in those]
        return Counter({(p.node, p.kind, p.devices): p.staying for p in every})

    def step(self) -> None:
        """Fill some nodes again."""
        from optsched.study.gpu_packing.move_model import Moves, repack_moving

        pool, layout = self._pool, self.layout
        weight = layout.free(pool) + _EFFORT.floor
        number = min(_EFFORT.nodes, len(weight))
        chosen = self._random.choice(len(weight), number, replace=False, p=weight / weight.sum())
        here = Layout(layout.pods[chosen], layout.shares[chosen])
        part = pool.restrict(chosen, layout.waiting(pool) + here.pods.sum(axis=0))
        present = [
            replace(p, node=place)
            for place, node in enumerate(chosen.tolist())
            for p in self._on.get(node, [])
        ]
        moved = sum(p.number - p.staying for p in present)
        found, staying = repack_moving(
            part,
            here,
            worth_of(pool),
            Moves(present, self._left + moved, _PRICE),
            _EFFORT.seconds,
            int(self._random.integers(2**31)),
        )
        layout.pods[chosen], layout.shares[chosen] = found.pods, found.shares
        self._left += moved - sum(p.number for p in present) + sum(staying)
        now = iter(staying)
        for node in chosen.tolist():
            self._on[node] = [replace(p, staying=next(now)) for p in self._on.get(node, [])]
