"""A CP-SAT model that repacks a few nodes with their own pods and waiting pods.

Integer variables count the pods of each class on each node, and the GPU shares of each size on each
GPU. To break symmetry, a node's shared GPUs have the lowest indices, unless the model must
distinguish the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from ortools.sat.python import cp_model

from optsched.cluster.gpu_accounting import WHOLE
from optsched.solver.cpsat.integer_program import create_solver
from optsched.study.gpu_packing.node_pool import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.study.gpu_packing.node_pool import Pool


_PRICE: Final = 100
"""Minimum gain in GPU capacity for each additional move, in thousandths of a GPU."""


@dataclass(frozen=True, slots=True)
class Present:
    """Pods of one class that run on the same devices of the same node."""

    node: int
    pod_class: int
    devices: tuple[int, ...]
    number: int
    staying: int  # Number of the pods that stay on their GPUs.


def repack_moving(
    pool: Pool,
    start: Layout,
    worth: I64,
    present: Sequence[Present],
    most_moves: int,
    effort: float,
    seed: int,
) -> tuple[Layout, list[int]]:
    """Repack a small pool, with a cost for each running pod that moves.

    Maximizes the total value of the placed pods minus the total cost of the moves. Returns the
    layout, and the number of pods of each `Present` that do not move. `pool`, `start`, `worth`,
    `effort` and `seed` have the same meaning as in `repack`. The model distinguishes devices.

    `present` holds the running pods, of which at most `most_moves` may move.
    """
    refill = Refill(pool, ordered=False)
    # The variables `stay` count the pods of each `Present` that keep their GPUs. At most
    # `most_moves` pods move.
    model = refill.model
    stay = [model.new_int_var(0, p.number, "") for p in present]
    by_class: dict[tuple[int, int], list[cp_model.IntVar]] = {}
    by_part: dict[tuple[int, int, int], list[cp_model.IntVar]] = {}
    for p, var in zip(present, stay, strict=True):
        by_class.setdefault((p.node, p.pod_class), []).append(var)
        part = refill.size_of[p.pod_class]
        if part >= 0:
            by_part.setdefault((p.node, p.devices[0], part), []).append(var)
        else:
            # If a pod with whole GPUs stays, none of its GPUs may be shared.
            for device in p.devices:
                shared = refill.shared.get((p.node, device))
                if shared is not None:
                    model.add(var + shared <= 1)
    # If `refill` has no variable for a class on a node, the class does not fit there, so no pod of
    # the class stays.
    for key, variables in by_class.items():
        model.add(sum(variables) <= refill.pods.get(key, 0))
    for part_key, variables in by_part.items():
        model.add(sum(variables) <= refill.parts.get(part_key, 0))
    number = sum(p.number for p in present)
    model.add(cp_model.LinearExpr.sum(stay) >= number - most_moves)
    refill.maximize(worth, [(_PRICE, v) for v in stay])
    refill.hint(start)
    for p, var in zip(present, stay, strict=True):
        refill.model.add_hint(var, p.staying)
    solver = solve_model(refill.model, effort, seed)
    if solver is None:
        return start, [p.staying for p in present]
    found, staying = refill.read(solver, start), [solver.value(v) for v in stay]
    before = int((start.pods @ worth).sum()) + _PRICE * sum(p.staying for p in present)
    if int((found.pods @ worth).sum()) + _PRICE * sum(staying) < before:
        return start, [p.staying for p in present]
    return found, staying


def repack(pool: Pool, start: Layout, worth: I64, effort: float, seed: int) -> Layout:
    """Return the best layout found for a small pool, which is at least as good as `start`.

    Parameters
    ----------
    pool
        The nodes, and the pods that may be placed on these nodes.
    start
        Initial layout, which is returned if the solver finds no better layout.
    worth
        Value (K,) of placing one pod of each class.
    effort
        Time limit in CP-SAT deterministic time, with one worker.
    seed
        Random seed of CP-SAT.

    """
    refill = Refill(pool, ordered=True)
    refill.maximize(worth)
    refill.hint(start)
    solver = solve_model(refill.model, effort, seed)
    if solver is None:
        return start
    found = refill.read(solver, start)
    return found if (found.pods @ worth).sum() >= (start.pods @ worth).sum() else start


def solve_model(model: cp_model.CpModel, effort: float, seed: int) -> cp_model.CpSolver | None:
    """Solve the model; return the solver, or None if it found no solution."""
    solver = create_solver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.cp_model_probing_level = 0
    has = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return solver if has else None


class Refill:
    """The CP-SAT model that repacks a few nodes.

    The variables `pods` count pods by (node, class). The variables `parts` count GPU shares by
    (node, GPU, size). The Boolean variables `shared` state by (node, GPU) whether the GPU is
    shared. `size_of` maps each class to the index of its GPU share in `Pool.sizes`, or to -1.
    """

    def __init__(self, pool: Pool, *, ordered: bool) -> None:
        self.model = cp_model.CpModel()
        self.pods: dict[tuple[int, int], cp_model.IntVar] = {}
        self.parts: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.shared: dict[tuple[int, int], cp_model.IntVar] = {}
        self._pool, self._ordered = pool, ordered
        most, sizes = pool.max_pods_per_node, pool.sizes.tolist()
        self.size_of: list[int] = pool.size_of.tolist()
        whole_gpus = pool.whole_gpus.tolist()
        for k, n in zip(*(a.tolist() for a in np.nonzero(most)), strict=True):
            self.pods[n, k] = self.model.new_int_var(0, int(most[k, n]), "")
        nodes = pool.nodes
        for n in range(len(nodes.cpu_m)):
            here = [(k, v) for (m, k), v in self.pods.items() if m == n]
            for size, capacity in ((pool.cpu_m, nodes.cpu_m), (pool.memory_mib, nodes.memory_mib)):
                self._add_upper_limit([(int(size[k]), v) for k, v in here], int(capacity[n]))
            requested: dict[int, list[cp_model.IntVar]] = {}
            for k, var in here:
                requested.setdefault(self.size_of[k], []).append(var)
            requested.pop(-1, None)
            devices = range(int(nodes.num_gpu[n]) if requested else 0)
            for d in devices:
                self.shared[n, d] = self.model.new_bool_var("")
                load = []
                for z in sorted(requested):
                    size = sizes[z]
                    self.parts[n, d, z] = self.model.new_int_var(0, WHOLE // size, "")
                    load.append((size, self.parts[n, d, z]))
                self.model.add(sum(size * var for size, var in load) <= WHOLE * self.shared[n, d])
                if d and ordered:
                    self.model.add_implication(self.shared[n, d], self.shared[n, d - 1])
            for z, variables in requested.items():
                self.model.add(sum(self.parts[n, d, z] for d in devices) == sum(variables))
            whole = [(whole_gpus[k], v) for k, v in here]
            shared = [(1, self.shared[n, d]) for d in devices]
            self._add_upper_limit(whole + shared, int(nodes.num_gpu[n]))
        by_class: dict[int, list[cp_model.IntVar]] = {}
        for (_, k), var in self.pods.items():
            by_class.setdefault(k, []).append(var)
        for k, variables in by_class.items():
            self.model.add(cp_model.LinearExpr.sum(variables) <= int(pool.supply[k]))

    def _add_upper_limit(self, terms: list[tuple[int, cp_model.IntVar]], limit: int) -> None:
        terms = [(size, v) for size, v in terms if size]
        if terms:
            total = cp_model.LinearExpr.weighted_sum([v for _, v in terms], [s for s, _ in terms])
            self.model.add(total <= limit)

    def maximize(self, worth: I64, others: Sequence[tuple[int, cp_model.IntVar]] = ()) -> None:
        """Maximize the value of the placed pods plus a weighted sum of the variables `others`."""
        terms = [(int(worth[k]), var) for (_, k), var in self.pods.items()] + list(others)
        variables, weights = [v for _, v in terms], [w for w, _ in terms]
        self.model.maximize(cp_model.LinearExpr.weighted_sum(variables, weights))

    def hint(self, start: Layout) -> None:
        """Pass the layout `start` to the solver as a hint."""
        for (n, k), var in self.pods.items():
            self.model.add_hint(var, int(start.pods[n, k]))
        load = start.shares @ self._pool.sizes
        order = np.argsort(-load if self._ordered else 0 * load, axis=1, kind="stable")
        for (n, d, z), var in self.parts.items():
            self.model.add_hint(var, int(start.shares[n, order[n, d], z]))
        for (n, d), var in self.shared.items():
            self.model.add_hint(var, int(load[n, order[n, d]] > 0))

    def read(self, solver: cp_model.CpSolver, like: Layout) -> Layout:
        """Return the solution as a layout whose arrays have the same shapes as those of `like`."""
        pods, shares = np.zeros_like(like.pods), np.zeros_like(like.shares)
        for (n, k), var in self.pods.items():
            pods[n, k] = solver.value(var)
        for (n, d, z), var in self.parts.items():
            shares[n, d, z] = solver.value(var)
        return Layout(pods, shares)
