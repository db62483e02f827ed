"""A few nodes filled anew from what is on them and what waits: one small model per neighbourhood.

Whole numbers of pods by class and node, and of parts of each size by device. Devices of a node
stand in the order of their loads, so that equal plans are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from optsched.engines.sharing.pool import WHOLE, Layout

if TYPE_CHECKING:
    from optsched.engines.sharing.pool import Pool
    from optsched.problem.arrays import I64

_Var: TypeAlias = cp_model.IntVar


def repack(pool: Pool, start: Layout, worth: I64, effort: float, seed: int) -> Layout:
    """Place pods of a small pool so that they are worth the most; never less than at the start.

    Parameters
    ----------
    pool
        The nodes, and the pods that may be placed on them.
    start
        A placement, taken where none better is found.
    worth
        (K,) of one pod of each class.
    effort
        Deterministic seconds of CP-SAT, one worker.
    seed
        Of CP-SAT.

    """
    model = _Model(pool, worth)
    model.hint(start)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.cp_model_probing_level = 0
    if solver.solve(model.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    found = model.read(solver, start)
    return found if found.pods.sum(axis=0) @ worth >= start.pods.sum(axis=0) @ worth else start


class _Model:
    def __init__(self, pool: Pool, worth: I64) -> None:
        self.model = cp_model.CpModel()
        self._pool = pool
        self._most = pool.most
        self._pods: dict[tuple[int, int], _Var] = {}
        self._parts: dict[tuple[int, int, int], _Var] = {}
        self._shared: dict[tuple[int, int], _Var] = {}
        for k, n in zip(*(a.tolist() for a in np.nonzero(self._most)), strict=True):
            self._pods[n, k] = self.model.new_int_var(0, int(self._most[k, n]), "")
        for n in range(len(pool.nodes.cpu_m)):
            self._node(n)
        self._supply()
        self.model.maximize(
            cp_model.LinearExpr.weighted_sum(
                list(self._pods.values()), [int(worth[k]) for _, k in self._pods]
            )
        )

    def _node(self, n: int) -> None:
        pool, nodes = self._pool, self._pool.nodes
        here = [(k, v) for (m, k), v in self._pods.items() if m == n]
        for size, room in ((pool.cpu_m, nodes.cpu_m), (pool.memory_mib, nodes.memory_mib)):
            self._at_most([(int(size[k]), v) for k, v in here], int(room[n]))
        shares = sorted({int(pool.size_of[k]) for k, _ in here} - {-1})
        for d in range(int(nodes.num_gpu[n]) if shares else 0):
            self._device(n, d, shares)
        whole = [(int(pool.whole[k]), v) for k, v in here]
        self._at_most(
            whole + [(1, v) for (m, _), v in self._shared.items() if m == n], int(nodes.num_gpu[n])
        )
        for z in shares:
            given = [v for (m, _, y), v in self._parts.items() if (m, y) == (n, z)]
            asked = [v for k, v in here if pool.size_of[k] == z]
            self.model.add(sum(given) == sum(asked))

    def _device(self, n: int, d: int, shares: list[int]) -> None:
        sizes = self._pool.sizes
        shared = self.model.new_bool_var("")
        load = []
        for z in shares:
            asked = int(self._most[self._pool.size_of == z, n].sum())
            var = self.model.new_int_var(0, min(WHOLE // int(sizes[z]), asked), "")
            self._parts[n, d, z] = var
            load.append((int(sizes[z]), var))
        self.model.add(sum(s * v for s, v in load) <= WHOLE * shared)
        if d:
            self.model.add_implication(shared, self._shared[n, d - 1])
        self._shared[n, d] = shared

    def _at_most(self, terms: list[tuple[int, _Var]], limit: int) -> None:
        terms = [(size, v) for size, v in terms if size]
        if terms:
            self.model.add(
                cp_model.LinearExpr.weighted_sum([v for _, v in terms], [s for s, _ in terms])
                <= limit
            )

    def _supply(self) -> None:
        for k in np.flatnonzero(self._most.any(axis=1)).tolist():
            placed = cp_model.LinearExpr.sum([v for (_, j), v in self._pods.items() if j == k])
            supply = int(self._pool.supply[k])
            self.model.add_linear_constraint(placed, 0, supply)

    def hint(self, start: Layout) -> None:
        """Begin from a placement; its shared devices come first."""
        for (n, k), var in self._pods.items():
            self.model.add_hint(var, int(start.pods[n, k]))
        load = start.shares @ self._pool.sizes
        order = np.argsort(-load, axis=1, kind="stable")
        for (n, d, z), var in self._parts.items():
            self.model.add_hint(var, int(start.shares[n, order[n, d], z]))
        for (n, d), var in self._shared.items():
            self.model.add_hint(var, int(load[n, order[n, d]] > 0))

    def read(self, solver: cp_model.CpSolver, like: Layout) -> Layout:
        """What the solver found, in the shape of another placement."""
        pods, shares = np.zeros_like(like.pods), np.zeros_like(like.shares)
        for (n, k), var in self._pods.items():
            pods[n, k] = solver.value(var)
        for (n, d, z), var in self._parts.items():
            shares[n, d, z] = solver.value(var)
        return Layout(pods, shares)
