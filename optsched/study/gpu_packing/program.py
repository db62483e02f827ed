"""Bound the GPU allocation by a linear program over node classes; round solutions to layouts.

The variable x[k, c] is the number of pods of class k on nodes of class c. The variable y[p, c] is
the number of GPUs of node class c that are shared according to pattern p. A pattern is a maximal
multiset of GPU shares on one GPU.

Constraints limit the GPUs, the GPU shares of each size, CPU, memory, and the number of pods of each
class. Valid inequalities for CPU and memory tighten the relaxation: for z = 2, 3, 4, Σ_k ⌊z·size_k
/ (idle + 1)⌋·x[k, c] ≤ n_c·(z − 1), where size_k is the request of a pod of class k, idle is the
idle capacity of a node of class c, and n_c is the number of these nodes. Proof: on one node, Σ_k
z·size_k·x / (idle + 1) < z. With coefficients rounded down, the left side is an integer, so it is
at most z − 1.

`round_to_layout` solves the program with integer variables. The integer program contains only the
patterns that have the highest reduced profits or that the fractional solution uses.
`round_to_layout` then assigns single pods and shared GPUs to the nodes of their node class, the
largest first. A pod or shared GPU goes to the node with the most spare CPU and memory. The spare
amount of CPU or memory is the idle amount minus an average request for each idle GPU of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, eye_array, hstack, vstack

from optsched.cluster.gpu_accounting import WHOLE
from optsched.problem.arrays import row_groups
from optsched.study.gpu_packing.node_pool import empty_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.study.gpu_packing.node_pool import Layout, Nodes, Pool


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """The solution of the linear program."""

    milli: float  # Upper bound on the allocated GPU capacity, in thousandths of a GPU.
    pods: F64  # Fractional number of pods of each class on each node class, shape (K, C).
    price: F64  # Dual price of one pod of each class in thousandths of a GPU, shape (K,).
    node_class_of: I64  # Node class of each node, shape (N,).


def allocation_bound(pool: Pool) -> Bound | None:
    """Return the solution of the linear program, or None if it is infeasible.

    Raises TooManyPatterns if `share_patterns` finds too many patterns.
    """
    program, node_class_of = program_of(pool)
    solved = program.solve()
    if solved is None:
        return None
    price = solved.price[-len(pool.supply) :]
    return Bound(program.milli(solved), program.pods(solved.values), price, node_class_of)


MOST_PATTERNS: Final = 50_000
"""Maximum number of patterns (maximal multisets of GPU shares on one GPU) to enumerate."""

_CUTS: Final = (2, 3, 4)
_INFEASIBLE: Final = 2

_MOST_SHARED: Final = 1000
"""Number of patterns that are selected by highest reduced profit for the integer program."""

_NEAR: Final = 2e-4
"""Relative MIP gap at which the integer program stops."""

_FULL: Final = ((0.7, 0.02), (0.8, 0.05), (0.9, 0.2))
"""Pairs (load, weight): CPU or memory usage of a node class above the fraction `load` is penalised.

The penalty for using a node class's entire CPU or memory would be `weight` times the value of all
its GPUs.
"""


class TooManyPatterns(ValueError):
    """Raised if there are too many patterns of GPU shares to enumerate."""


def share_patterns(sizes: Sequence[int]) -> I64:
    """Return the maximal multisets of GPU shares that fit on one GPU, as counts of shape (P, Z).

    `sizes` (Z,) holds the sizes of the GPU shares, ascending. Raises TooManyPatterns if there are
    more than `MOST_PATTERNS` patterns.
    """
    if not sizes:
        return np.zeros((0, 0), np.int64)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[tuple[int, ...], int]] = [((), WHOLE)]
    while stack:
        counts, idle = stack.pop()
        z = len(sizes) - len(counts) - 1  # Process sizes from the largest to the smallest.
        if z < 0:
            continue
        if z == 0:
            found.append((*counts, idle // sizes[0]))
            if len(found) > MOST_PATTERNS:
                raise TooManyPatterns(f"more than {MOST_PATTERNS} ways to share a GPU")
            continue
        stack += [((*counts, n), idle - n * sizes[z]) for n in range(idle // sizes[z] + 1)]
    table = np.array(found, np.int64)[:, ::-1]
    left = WHOLE - table @ np.array(sizes, np.int64)
    return table[left < sizes[0]]


def program_of(pool: Pool) -> tuple[Program, I64]:
    """Return the linear program of a pool, and the node class of each node, shape (N,).

    Raises TooManyPatterns if `share_patterns` finds too many patterns.
    """
    nodes = pool.nodes
    node_class_of, first = row_groups([nodes.cpu_m, nodes.memory_mib, nodes.num_gpu, nodes.model])
    return Program(pool, nodes.select(first), np.bincount(node_class_of)), node_class_of


@dataclass(frozen=True, eq=False, slots=True)
class LinearSolution:
    """Values and reduced profits of the variables, and dual prices of the constraints."""

    values: F64
    price: F64
    reduced: F64


class Program:
    """The linear program with columns x[k, c], followed by columns y[p, c].

    A column x[k, c] exists only if a pod of class k fits on a node of class c.
    """

    def __init__(self, pool: Pool, node_classes: Nodes, times: I64) -> None:
        self._pool, self._node_classes, self._times = pool, node_classes, times
        self._k, self._c = np.nonzero(replace(pool, nodes=node_classes).max_pods_per_node)
        self._patterns = share_patterns(pool.sizes.tolist())
        self._at = np.repeat(np.arange(len(times)), len(self._patterns))
        self._x = np.arange(len(self._k))
        self._y = len(self._x) + np.arange(len(self._at))
        self._num_columns = len(self._x) + len(self._y)
        whole = (pool.whole_gpus[self._k], self._c, self._x)
        shared = (np.ones(len(self._y), np.int64), self._at, self._y)
        devices = self._block(len(times), whole, shared)
        blocks = [(devices, node_classes.num_gpu * times), self._share_rows()]
        for size, capacity in (
            (pool.cpu_m, node_classes.cpu_m),
            (pool.memory_mib, node_classes.memory_mib),
        ):
            blocks.append((self._node_class_rows(size[self._k]), capacity * times))
            for z in _CUTS:
                parts = z * size[self._k] // (capacity[self._c] + 1)
                blocks.append((self._node_class_rows(parts), (z - 1) * times))
        self._supply = self._block(len(pool.supply), (np.ones_like(self._k), self._k, self._x))
        self.left = csr_array(vstack([*(rows for rows, _ in blocks), self._supply]))
        limits = np.concatenate([limit for _, limit in blocks]).astype(np.float64)
        self.limits = np.concatenate([limits, pool.supply])
        self.worth = np.concatenate([pool.worth[self._k], np.zeros(len(self._y))])

    def _block(self, size: int, *parts: tuple[I64, I64, I64]) -> csr_array:
        """Return a sparse matrix with `size` rows; `parts` holds arrays (value, row, column)."""
        value, row, column = (np.concatenate(part) for part in zip(*parts, strict=True))
        shape = (size, self._num_columns)
        return csr_array((value.astype(np.float64), (row, column)), shape=shape)

    def _node_class_rows(self, value: I64) -> csr_array:
        """Return one row per node class; `value` holds the coefficients of the columns x[k, c]."""
        return self._block(len(self._times), (value, self._c, self._x))

    def _share_rows(self) -> tuple[csr_array, I64]:
        """Return the rows that limit the GPU shares of each size to those in the used patterns."""
        sizes, of = len(self._pool.sizes), self._pool.size_of[self._k]
        part = of >= 0
        requested = (
            np.ones(int(part.sum()), np.int64),
            (self._c * sizes + of)[part],
            self._x[part],
        )
        p, z = np.nonzero(self._patterns)
        node_classes = np.arange(len(self._times))[:, None]
        given = (
            np.tile(-self._patterns[p, z], len(self._times)),
            (node_classes * sizes + z).ravel(),
            (len(self._x) + node_classes * len(self._patterns) + p).ravel(),
        )
        rows = sizes * len(self._times)
        return self._block(rows, requested, given), np.zeros(rows, np.int64)

    def solve(self) -> LinearSolution | None:
        """Solve the linear program; return None if it is infeasible."""
        forced = np.flatnonzero(self._pool.must & (self._pool.supply > 0))
        equal = len(forced) > 0
        if not self._num_columns:
            nothing = np.zeros(0)
            return None if equal else LinearSolution(nothing, np.zeros(len(self.limits)), nothing)
        rows: Any = self.left  # SciPy accepts sparse matrices, but its type stubs do not.
        forced_rows: Any = self._supply[forced]
        solved = linprog(
            -self.worth,
            A_ub=rows,
            b_ub=self.limits,
            A_eq=forced_rows if equal else None,
            b_eq=self._pool.supply[forced] if equal else None,
            method="highs",
        )
        if solved.status == _INFEASIBLE:
            return None
        if solved.status != 0 or solved.x is None:
            raise RuntimeError(
                f"the linear program that computes the bound failed: {solved.message}"
            )
        price = np.maximum(-solved.ineqlin.marginals, 0)
        price[len(price) - len(self._pool.supply) + forced] -= (
            solved.eqlin.marginals if equal else 0
        )
        return LinearSolution(solved.x, price, self.worth - self.left.T @ price)

    def milli(self, solved: LinearSolution) -> float:
        """Return the dual bound in thousandths of a GPU, valid even for rounded dual prices."""
        numbers = (self._node_classes.num_gpu * self._times)[self._at]
        upper = np.concatenate([self._pool.supply[self._k], numbers])
        return float(self.limits @ solved.price + np.maximum(solved.reduced, 0) @ upper)

    def pods(self, values: F64) -> F64:
        """Return a solution's number of pods of each class on each node class, shape (K, C)."""
        found = np.zeros((len(self._pool.supply), len(self._times)))
        found[self._k, self._c] = values[: len(self._x)]
        return found

    def solve_integer(self, solved: LinearSolution, seconds: float) -> F64 | None:
        """Return integer values of the columns, or None if no solution is found in `seconds`.

        The integer program contains only the patterns with the highest reduced profits and the
        patterns that `solved` uses.
        """
        order = np.argsort(-solved.reduced[self._y], kind="stable")[:_MOST_SHARED]
        used = np.flatnonzero(solved.values[self._y] > 0)
        kept = np.concatenate([self._x, self._y[np.union1d(order, used)]])
        # Without penalties for CPU and memory usage, the program could allocate all CPU of a node
        # class; its pods would then not fit on the individual nodes.
        pool, node_classes = self._pool, self._node_classes
        gpus = WHOLE * node_classes.num_gpu * self._times
        load_rows, loads, prices = [], [], []
        for size, capacity in (
            (pool.cpu_m, node_classes.cpu_m),
            (pool.memory_mib, node_classes.memory_mib),
        ):
            for part, weight in _FULL:
                load_rows.append(self._node_class_rows(size[self._k]))
                loads.append(part * capacity * self._times)
                prices.append(weight * gpus / np.maximum(capacity * self._times, 1))
        full, price = csr_array(vstack(load_rows)), np.concatenate(prices)
        over = len(price)
        none = csr_array((len(self.limits), over))
        exact = csr_array(hstack([self.left[:, kept], none]))
        priced = csr_array(hstack([full[:, kept], csr_array(-eye_array(over))]))
        # If all pods of a class must be placed, their number is also the lower limit of the
        # constraint on the pods of the class.
        lower = np.full(len(self.limits) + over, -np.inf)
        must = len(self.limits) - len(self._pool.supply) + np.flatnonzero(self._pool.must)
        lower[must] = self.limits[must]
        rows = LinearConstraint(
            vstack([exact, priced]), lower, np.concatenate([self.limits, *loads])
        )
        found = milp(
            np.concatenate([-self.worth[kept], price]),
            integrality=np.repeat([1, 0], [len(kept), over]),
            bounds=Bounds(0, np.inf),
            constraints=rows,
            options={"mip_rel_gap": _NEAR, "time_limit": seconds},
        )
        if found.x is None:
            return None
        values = np.zeros(self._num_columns)
        values[kept] = np.rint(found.x[: len(kept)])
        return values

    def devices(self, values: F64) -> list[I64]:
        """Return the pattern of each shared GPU in a solution, per node class, shape (Y, Z)."""
        times = values[self._y].astype(np.int64).reshape(len(self._times), len(self._patterns))
        return [np.repeat(self._patterns, row, axis=0) for row in times]


@dataclass(frozen=True, eq=False, slots=True)
class _Item:
    """A unit to place on one node: a single pod, or the pods that share one GPU."""

    classes: tuple[int, ...]
    devices: int
    size: I64  # Total CPU in milli-CPU and total memory in MiB, shape (2,).
    is_shared: bool


def round_to_layout(pool: Pool, seconds: float) -> Layout | None:
    """Return a layout with nearly maximum GPU allocation, or None if none is found in time.

    `seconds` limits the integer program.
    """
    program, node_class_of = program_of(pool)
    solved = program.solve()
    values = None if solved is None else program.solve_integer(solved, seconds)
    if values is None:
        return None
    layout = empty_layout(pool)
    late: list[_Item] = []
    # For each node class, the number of GPU shares of each size on each shared GPU, shape (Y, Z).
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
        # Idle CPU and memory of each node, shape (N, 2).
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
