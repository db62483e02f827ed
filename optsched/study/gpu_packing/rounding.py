"""Round the solution of the linear program to integers by node class, then assign pods to nodes.

An integer program decides how many pods of each class run on each node class, and how these pods
share GPUs. This program contains only the patterns with the highest reduced profits and the
patterns that the solution of the linear program uses. Single pods and shared GPUs are then assigned
to the nodes of the class, the largest first. A pod or shared GPU goes to the node with the most
spare CPU and memory, after subtracting what pods on the node's idle GPUs are expected to request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.study.gpu_packing.node_pool import empty_layout
from optsched.study.gpu_packing.program import program_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64
    from optsched.study.gpu_packing.node_pool import Layout, Pool


@dataclass(frozen=True, eq=False, slots=True)
class _Item:
    """A unit to place on one node: a single pod, or the pods that share one GPU."""

    classes: tuple[int, ...]
    devices: int
    size: I64  # Total CPU in milli-CPU and memory in MiB, (2,).
    is_shared: bool


def round_to_layout(pool: Pool, seconds: float) -> Layout | None:
    """Return a layout near the linear program's bound, or None if no layout is found in time.

    `seconds` limits the integer program.
    """
    program, node_class_of = program_of(pool)
    solved = program.solve()
    values = None if solved is None else program.solve_integer(solved, seconds)
    if values is None:
        return None
    layout = empty_layout(pool)
    late: list[_Item] = []
    # Per node class: the number (Y, Z) of GPU shares of each size on each shared GPU.
    devices = program.devices(values)
    for node_class, pods in enumerate(program.pods(values).astype(np.int64).T):
        nodes = np.flatnonzero(node_class_of == node_class)
        items = list(_items(pool, pods, devices[node_class]))
        late += _Allocation(pool, layout, nodes).place_items(items)
    everywhere = _Allocation(pool, layout, np.arange(len(layout.pods)))
    singles = [_single(pool, k) for item in late for k in item.classes]
    everywhere.place_items([item for item in singles if not item.devices])
    return layout


def _single(pool: Pool, k: int) -> _Item:
    size = np.array([pool.cpu_m[k], pool.memory_mib[k]])
    return _Item((k,), int(pool.number[k]), size, bool(pool.is_share[k]))


def _items(pool: Pool, pods: I64, devices: I64) -> Iterator[_Item]:
    """Yield the items of a node class: single pods, and shared GPUs with balanced CPU demand.

    `pods` (K,) is the number of pods of each class. `devices` (Y, Z) is the number of GPU shares of
    each size on each shared GPU.
    """
    inside: list[list[int]] = [[] for _ in devices]
    cpu_m = np.zeros(len(inside), np.int64)
    open_of: dict[int, list[int]] = {}
    for d, counts in enumerate(devices):
        for z in np.repeat(np.arange(len(counts)), counts).tolist():
            open_of.setdefault(z, []).append(d)
    order = sorted(np.flatnonzero(pods).tolist(), key=lambda k: (-int(pool.cpu_m[k]), k))
    for k in order:
        z = int(pool.size_of[k])
        for _ in range(int(pods[k])):
            if z < 0:
                yield _single(pool, k)
                continue
            device = min(open_of[z], key=lambda d: (cpu_m[d], d))
            open_of[z].remove(device)
            inside[device].append(k)
            cpu_m[device] += pool.cpu_m[k]
    for classes in filter(None, inside):
        size = np.array([pool.cpu_m[classes].sum(), pool.memory_mib[classes].sum()])
        yield _Item(tuple(classes), 1, size, is_shared=True)


class _Allocation:
    """The nodes to which items are assigned, with their idle resources."""

    def __init__(self, pool: Pool, layout: Layout, nodes: I64) -> None:
        self._pool, self._layout, self._nodes = pool, layout, nodes
        offered = np.column_stack([pool.nodes.cpu_m, pool.nodes.memory_mib])[nodes]
        used = layout.pods[nodes]
        # Idle CPU and memory (N, 2) of the nodes.
        self._idle = offered - used @ np.column_stack([pool.cpu_m, pool.memory_mib])
        shared = layout.shares[nodes].any(axis=2).sum(axis=1)
        self._idle_gpus = pool.nodes.num_gpu[nodes] - shared - used @ pool.whole_gpus
        self._offered = offered

    def place_items(self, items: list[_Item]) -> list[_Item]:
        """Place the items that fit on a node; return the items that do not fit."""
        pool, layout, late = self._pool, self._layout, list[_Item]()
        devices = sum(item.devices for item in items)
        total = sum((item.size for item in items if item.devices), np.zeros(2))
        wanted = np.asarray(total / max(devices, 1), np.float64)
        scale = np.maximum(self._offered, 1).max(axis=0, initial=1)
        order = sorted(
            items,
            key=lambda i: (-(i.devices > 1) * i.devices, -float((i.size / scale).max()), i.classes),
        )
        for item in order:
            classes = list(item.classes)
            fits = (self._idle >= item.size).all(axis=1) & (self._idle_gpus >= item.devices)
            fits &= pool.reach[classes][:, pool.nodes.model[self._nodes]].all(axis=0)
            if not fits.any():
                late.append(item)
                continue
            spare = ((self._idle - self._idle_gpus[:, None] * wanted) / scale).min(axis=1)
            at = int(np.where(fits, spare, -np.inf).argmax())
            self._idle[at] -= item.size
            self._idle_gpus[at] -= item.devices
            node = int(self._nodes[at])
            np.add.at(layout.pods[node], classes, 1)
            if item.is_shared:
                device = int((~layout.shares[node].any(axis=1)).argmax())
                np.add.at(layout.shares[node, device], pool.size_of[classes], 1)
        return late
