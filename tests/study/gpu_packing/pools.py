"""Small pools, the best of all their placements, and a check of placements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from optsched.study.gpu_packing.node_pool import Nodes, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.study.gpu_packing.node_pool import Layout

Row = tuple[int, ...]


def pool(classes: Sequence[Row], nodes: Sequence[Row], reach: Sequence[Row] = ()) -> Pool:
    """Return a pool of pod classes and nodes.

    A row of `classes` holds CPU, memory, GPUs, thousandths of each GPU, and the number of pods. A
    row of `nodes` holds CPU, memory, GPUs and model. `reach` lists the models that each class may
    use.
    """
    cpu_m, memory_mib, number, milli, supply = np.array(classes, np.int64).reshape(-1, 5).T
    offered = np.array(nodes, np.int64).reshape(-1, 4).T
    models = int(offered[3].max(initial=0)) + 1
    may = np.array(reach, np.bool_) if reach else np.ones((len(classes), models), np.bool_)
    return Pool(cpu_m, memory_mib, number, milli, may, supply, number == 0, Nodes(*offered))


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Draw a pool of up to three classes, two nodes of one or two GPUs each, and two models."""
    share = st.tuples(st.just(1), st.sampled_from([230, 320, 470, 500, 810]))
    whole = st.tuples(st.integers(1, 2), st.just(1000))
    asked = st.tuples(st.integers(0, 5), st.integers(0, 3), share | whole, st.integers(1, 3))
    node = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2), st.integers(0, 1))
    rows = draw(st.lists(asked, min_size=1, max_size=3))
    nodes = draw(st.lists(node, min_size=1, max_size=2))
    may = st.sampled_from([(1, 1), (1, 0), (0, 1)])
    reach = draw(st.lists(may, min_size=len(rows), max_size=len(rows)))
    two = [(*n[:3], n[3] if i else 1) for i, n in enumerate(nodes)]
    return pool([(c, m, *gpu, s) for c, m, gpu, s in rows], two, reach)


def most_by_trying(small: Pool) -> int:
    """Return the most thousandths of GPUs that any placement allocates, by exhaustive search."""
    pods = [k for k, n in enumerate(small.supply.tolist()) for _ in range(n)]
    nodes = small.nodes
    room = tuple(
        (cpu, memory, (1000,) * number, model)
        for cpu, memory, number, model in zip(
            nodes.cpu_m.tolist(),
            nodes.memory_mib.tolist(),
            nodes.num_gpu.tolist(),
            nodes.model.tolist(),
            strict=True,
        )
    )
    states = {(tuple(room), 0)}
    for k in pods:
        states |= {
            (after, worth + int(small.worth[k]))
            for now, worth in states
            for after in _with(small, now, k)
        }
    return max(worth for _, worth in states)


_Room = tuple[int, int, tuple[int, ...], int]


def _with(small: Pool, room: tuple[_Room, ...], k: int) -> Iterator[tuple[_Room, ...]]:
    cpu, memory = int(small.cpu_m[k]), int(small.memory_mib[k])
    for n, (has_cpu, has_memory, free, model) in enumerate(room):
        if not small.reach[k][model] or cpu > has_cpu or memory > has_memory:
            continue
        for left in _taken(free, int(small.number[k]), int(small.milli[k])):
            node = (has_cpu - cpu, has_memory - memory, left, model)
            yield (*room[:n], node, *room[n + 1 :])


def _taken(free: tuple[int, ...], number: int, milli: int) -> Iterator[tuple[int, ...]]:
    fitting = [d for d, left in enumerate(free) if left >= milli]
    if number > 1:
        chosen = [fitting[:number]] if len(fitting) >= number else []
    else:
        chosen = [[d] for d in fitting]
    for devices in chosen:
        yield tuple(sorted(left - milli * (d in devices) for d, left in enumerate(free)))


def wrong_with(small: Pool, found: Layout) -> list[str]:
    """Return the mistakes in a placement, node by node and GPU by GPU."""
    wrong = []
    for n, pods in enumerate(found.pods.tolist()):
        cpu = sum(p * c for p, c in zip(pods, small.cpu_m.tolist(), strict=True))
        memory = sum(p * c for p, c in zip(pods, small.memory_mib.tolist(), strict=True))
        whole = sum(p * g for p, g in zip(pods, small.whole_gpus.tolist(), strict=True))
        loads = [
            sum(s * z for s, z in zip(device, small.sizes.tolist(), strict=True))
            for device in found.shares[n].tolist()
        ]
        parts = [
            sum(p for k, p in enumerate(pods) if small.size_of[k] == z)
            for z in range(len(small.sizes))
        ]
        model = int(small.nodes.model[n])
        wrong += [f"node {n}: CPU"] * bool(cpu > small.nodes.cpu_m[n])
        wrong += [f"node {n}: memory"] * bool(memory > small.nodes.memory_mib[n])
        wrong += [f"node {n}: GPUs"] * bool(whole + sum(map(bool, loads)) > small.nodes.num_gpu[n])
        wrong += [f"node {n}: a shared GPU"] * (max(loads, default=0) > 1000)
        wrong += [f"node {n}: parts"] * (parts != found.shares[n].sum(axis=0).tolist())
        wrong += [f"node {n}: model"] * any(
            p and not small.reach[k][model] for k, p in enumerate(pods)
        )
    wrong += ["more than there are"] * bool((found.pods.sum(axis=0) > small.supply).any())
    return wrong
