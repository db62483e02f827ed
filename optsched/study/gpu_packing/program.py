"""A relaxation of pod placement: a linear program over node classes.

The variable x[k, c] is the number of pods of class k on nodes of class c. The variable y[p, c] is
the number of GPUs of node class c that are shared according to pattern p. A pattern is a maximal
multiset of GPU shares on one GPU.

Constraints limit the GPUs, the GPU shares of each size, CPU, memory, and the number of pods of each
class. Valid inequalities for CPU and memory tighten the relaxation: for z = 2, 3, 4, Σ_k ⌊z·size_k
/ (idle + 1)⌋·x[k, c] ≤ n_c·(z − 1), where size_k is the request of a pod of class k, idle is the
idle capacity of a node of class c, and n_c is the number of these nodes. Proof: on one node, Σ_k
z·size_k·x / (idle + 1) < z. If the coefficients are rounded down, the left side is an integer, so
it is at most z − 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, eye_array, hstack, vstack

from optsched.cluster.gpu_accounting import WHOLE
from optsched.problem.arrays import row_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import F64, I64
    from optsched.study.gpu_packing.node_pool import Nodes, Pool


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """The solution of the linear program."""

    milli: float  # Upper bound on the allocated GPU capacity, in thousandths of a GPU.
    pods: F64  # Fractional number (K, C) of pods of each class on each node class.
    price: F64  # Dual price (K,) of one pod of each class, in thousandths of a GPU.
    node_class_of: I64  # Node class (N,) of each node.


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
"""Maximum number of patterns in the integer program: those with the highest reduced profits."""

_NEAR: Final = 2e-4
"""Relative MIP gap at which the integer program stops."""

_FULL: Final = ((0.7, 0.02), (0.8, 0.05), (0.9, 0.2))
"""Pairs (load, weight): CPU or memory usage of a node class above the fraction `load` is penalised.

The penalty for using a node class's entire CPU or memory would be `weight` times the value of all
its GPUs.
"""


class TooManyPatterns(ValueError):
    """Raised if there are too many patterns of GPU shares to enumerate them all."""


def share_patterns(sizes: Sequence[int]) -> I64:
    """Return the maximal multisets (P, Z) of GPU shares that fit on one GPU, as counts per size.

    `sizes` (Z,) are the sizes of the GPU shares, ascending. Raises TooManyPatterns if there are
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
    """Return the linear program of a pool, and the node class (N,) of each node.

    Raises TooManyPatterns if `share_patterns` finds too many patterns.
    """
    nodes = pool.nodes
    node_class_of, first = row_groups([nodes.cpu_m, nodes.memory_mib, nodes.num_gpu, nodes.model])
    return Program(pool, nodes.select(first), np.bincount(node_class_of)), node_class_of


@dataclass(frozen=True, eq=False, slots=True)
class Solved:
    """Values and reduced profits of the columns, and dual prices of the rows."""

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
        """Return a sparse matrix with `size` rows; `parts` are arrays (value, row, column)."""
        value, row, column = (np.concatenate(part) for part in zip(*parts, strict=True))
        shape = (size, self._num_columns)
        return csr_array((value.astype(np.float64), (row, column)), shape=shape)

    def _node_class_rows(self, value: I64) -> csr_array:
        """Return one row per node class; `value` holds the coefficients of the columns x[k, c]."""
        return self._block(len(self._times), (value, self._c, self._x))

    def _share_rows(self) -> tuple[csr_array, I64]:
        """Return the rows that limit GPU shares to the number that the used patterns contain."""
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

    def solve(self) -> Solved | None:
        """Solve the linear program; return None if it is infeasible."""
        forced = np.flatnonzero(self._pool.must & (self._pool.supply > 0))
        equal = len(forced) > 0
        if not self._num_columns:
            nothing = np.zeros(0)
            return None if equal else Solved(nothing, np.zeros(len(self.limits)), nothing)
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
        return Solved(solved.x, price, self.worth - self.left.T @ price)

    def milli(self, solved: Solved) -> float:
        """Return the dual bound; it includes positive reduced profits that result from rounding."""
        numbers = (self._node_classes.num_gpu * self._times)[self._at]
        upper = np.concatenate([self._pool.supply[self._k], numbers])
        return float(self.limits @ solved.price + np.maximum(solved.reduced, 0) @ upper)

    def pods(self, values: F64) -> F64:
        """Return the number (K, C) of pods of each class on each node class in a solution."""
        found = np.zeros((len(self._pool.supply), len(self._times)))
        found[self._k, self._c] = values[: len(self._x)]
        return found

    def solve_integer(self, solved: Solved, seconds: float) -> F64 | None:
        """Return integer values of the columns, or None if no solution is found in `seconds`.

        The integer program contains the patterns with the highest reduced profits and the patterns
        that `solved` uses; it omits all others.
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
        # If all pods of a class must be placed, the row's lower limit is the number of these pods.
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
        """Return the pattern (Y, Z) of each shared GPU in a solution, for each node class."""
        times = values[self._y].astype(np.int64).reshape(len(self._times), len(self._patterns))
        return [np.repeat(self._patterns, row, axis=0) for row in times]
