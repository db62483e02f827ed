"""Solve an integer program over node classes, then improve the solution by neighbourhood search.

A neighbourhood consists of a few nodes. The search removes all pods from the nodes of a
neighbourhood, then places the removed pods and waiting pods on these nodes. Nodes with more idle
GPU capacity are drawn more often. No neighbourhood reduces the objective value of the layout. The
method is from Shaw, "Using constraint programming and local search methods to solve vehicle routing
problems", 1998.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.gpu_packing.node_pool import Layout, empty_layout
from optsched.study.gpu_packing.program import Bound, allocation_bound, round_to_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64
    from optsched.study.gpu_packing.node_pool import Pool
    from optsched.study.gpu_packing.repack_model import Present


@dataclass(frozen=True, slots=True)
class Effort:
    """Settings of a search: the size and the time limit of each neighbourhood."""

    nodes: int = 6  # Number of nodes in a neighbourhood.
    seconds: float = 0.5  # Time limit for one neighbourhood, in CP-SAT deterministic time.
    # The probability that a node is drawn is proportional to its idle GPU capacity plus `floor`,
    # both in thousandths of a GPU.
    floor: int = 50


_MOVING: Final = Effort(nodes=4)

At = tuple[int, int, tuple[int, ...]]
"""The placement of a pod: (node, class, devices)."""


@dataclass(frozen=True, slots=True)
class Running:
    """The placements of running pods, and how many of these pods may move or be removed."""

    pods: Sequence[At]
    most: int


def improve_layout(
    pool: Pool,
    start: Layout,
    running: Running,
    clock: Callable[[], float],
    seconds: float,
    seed: int = 0,
) -> tuple[Layout, Counter[At]]:
    """Return a layout that allocates more GPUs after few moves, and the pods that do not move.

    The second return value maps each placement to the number of pods that do not move from it.
    `start` is the layout of the running pods. `clock`, `seconds` and `seed` have the same meaning
    as in `allocate`.
    """
    # Import OR-Tools only when it is needed.
    from optsched.study.gpu_packing.repack_model import Present, repack_moving

    end, random = clock() + seconds, np.random.default_rng(seed)
    layout = Layout(start.pods.copy(), start.shares.copy())
    worth, moves_left = worth_of(pool), running.most
    present_on: dict[int, list[Present]] = {}
    for (node, pod_class, devices), number in sorted(Counter(running.pods).items()):
        present_on.setdefault(node, []).append(Present(node, pod_class, devices, number, number))
    while clock() < end:
        chosen, here, part = _draw_nodes(pool, layout, _MOVING, random)
        present = [
            replace(p, node=place)
            for place, node in enumerate(chosen.tolist())
            for p in present_on.get(node, [])
        ]
        moved = sum(p.number - p.staying for p in present)
        most, step_seed = moves_left + moved, int(random.integers(2**31))
        found, staying = repack_moving(part, here, worth, present, most, _MOVING.seconds, step_seed)
        layout.pods[chosen], layout.shares[chosen] = found.pods, found.shares
        moves_left += moved - sum(p.number for p in present) + sum(staying)
        now = iter(staying)
        for node in chosen.tolist():
            present_on[node] = [replace(p, staying=next(now)) for p in present_on.get(node, [])]
    every = [p for pods_on_node in present_on.values() for p in pods_on_node]
    return layout, Counter({(p.node, p.pod_class, p.devices): p.staying for p in every})


def _draw_nodes(
    pool: Pool, layout: Layout, effort: Effort, random: np.random.Generator
) -> tuple[I64, Layout, Pool]:
    """Draw nodes, preferably those with idle GPUs; return the nodes, their layout and a pool.

    The pool contains the drawn nodes, the pods on them and the waiting pods.
    """
    weight = layout.free(pool) + effort.floor
    number = min(effort.nodes, len(weight))
    chosen = random.choice(len(weight), number, replace=False, p=weight / weight.sum())
    here = Layout(layout.pods[chosen], layout.shares[chosen])
    supply = layout.waiting(pool) + here.pods.sum(axis=0)
    return chosen, here, replace(pool, nodes=pool.nodes.select(chosen), supply=supply)


_FOR_ROUNDING: Final = 0.5


@dataclass(frozen=True, eq=False, slots=True)
class SearchResult:
    """The result of `allocate`: a layout, a bound, and the number of searched neighbourhoods."""

    layout: Layout
    # Upper bound on the GPU capacity that any layout allocates, or None if the pods that must be
    # placed do not all fit.
    bound: Bound | None
    rounds: int  # Number of neighbourhoods searched.


def allocate(
    pool: Pool,
    clock: Callable[[], float],
    seconds: float,
    seed: int = 0,
    start: Layout | None = None,
    effort: Effort | None = None,
) -> SearchResult:
    """Search for the layout that allocates the most GPU capacity.

    A pod that must be placed has a higher value than all optional pods together.

    Raises TooManyPatterns if `optsched.study.gpu_packing.program.share_patterns` finds too many
    patterns.

    Parameters
    ----------
    pool
        Pods and nodes.
    clock
        Function that returns a time in seconds, for example `time.monotonic`, or
        `time.process_time` on a shared machine.
    seconds
        Time limit; the last step may exceed it.
    seed
        Seed for drawing neighbourhoods.
    start
        Initial layout, used if it is better than the layout of the integer program.
    effort
        Settings of the search.

    """
    # Import here, so that commands that only compute the upper bound do not load OR-Tools.
    from optsched.study.gpu_packing.repack_model import repack

    end, random, effort = clock() + seconds, np.random.default_rng(seed), effort or Effort()
    bound = allocation_bound(pool)
    starts = [empty_layout(pool), start, round_to_layout(pool, seconds * _FOR_ROUNDING)]
    worth = worth_of(pool)
    best = max((s for s in starts if s is not None), key=lambda s: int((s.pods @ worth).sum()))
    layout, rounds = Layout(best.pods.copy(), best.shares.copy()), 0
    most = pool.total if bound is None else int(bound.milli + _CLEAR)
    while clock() < end:
        waiting = layout.waiting(pool)
        # Stop if no pod is waiting, or if the allocation reaches the bound and no pod that must be
        # placed is waiting.
        if not waiting.any():
            break
        if not waiting[pool.must].any() and layout.allocated(pool) >= most:
            break
        chosen, here, part = _draw_nodes(pool, layout, effort, random)
        found = repack(part, here, worth, effort.seconds, int(random.integers(2**31)))
        layout.pods[chosen], layout.shares[chosen] = found.pods, found.shares
        rounds += 1
    return SearchResult(layout, bound, rounds)


_CLEAR: Final = 1e-3


def worth_of(pool: Pool) -> I64:
    """Return the objective coefficient of one pod of each class, shape (K,).

    The coefficient is the GPU request in thousandths of a GPU. For a pod that must be placed, the
    coefficient is larger by more than the capacity of all GPUs.
    """
    found: I64 = pool.worth + np.where(pool.must, pool.total + 1, 0)
    return found
