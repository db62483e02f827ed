"""Draw random clusters with queue trees, to check the shares of queues.

As a program, this module compares the shares of engine and verifier on many clusters: `python -m
tests.support.trees FIRST_SEED NUMBER`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.amounts import amounts
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.relocation import with_terminating
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, QueueState, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.proportion import deserved_shares, own_shares
from optsched.plugins.shares.queue_limits import kept_amounts
from optsched.plugins.shares.shares_by_name import shares_by_name
from optsched.plugins.shares.tree_fairness import HierarchicalDrf
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem

if TYPE_CHECKING:
    from optsched.problem.problem import Problem

CPU, MEMORY, GPU, NPU = "cpu", "memory", "nvidia.com/gpu", "npu"
PODS = "pods"

_PENDING, _RUNNING = TaskStatus.PENDING, TaskStatus.RUNNING
_STATUSES = (
    *[_PENDING] * 5,
    *[_RUNNING] * 4,
    TaskStatus.BOUND,
    TaskStatus.RELEASING,
    TaskStatus.EXPECTED,
    TaskStatus.SUCCEEDED,
    TaskStatus.GATED,
)
_HOLDING = frozenset({_RUNNING, TaskStatus.BOUND, TaskStatus.RELEASING, TaskStatus.EXPECTED})


class Tree:
    """A generator of one cluster."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._scarce = self._rng.random() < 0.5

    def snapshot(self) -> Snapshot:
        """Return a cluster of up to four nodes and up to nine queues."""
        queues = self._queues()
        nodes = [f"n{i}" for i in range(int(self._rng.integers(1, 5)))]
        names = [q.name for q in queues] + ["unknown"] * (self._rng.random() < 0.1)
        gangs = [self._gang(i, names, nodes) for i in range(int(self._rng.integers(0, 10)))]
        hosts = [self._node(name, gangs) for name in nodes]
        return Snapshot(0, tuple(hosts), tuple(gangs), tuple(queues))

    def victims(self, snapshot: Snapshot) -> set[str]:
        """Return some running tasks."""
        held = [t.key for g in snapshot.gangs for t in g.tasks if t.status.is_standing]
        return {key for key in held if self._rng.random() < 0.4}

    def _chance(self, part: float) -> bool:
        return bool(self._rng.random() < part)

    def _queues(self) -> list[Queue]:
        number, deep = int(self._rng.integers(1, 9)), self._rng.random()
        equal = self._chance(0.4)
        made = []
        for i in range(number):
            parent = f"q{int(self._rng.integers(i))}" if i and self._chance(deep) else "root"
            if self._chance(0.03):
                parent = str(self._rng.choice(["nowhere", f"q{int(self._rng.integers(number))}"]))
            made.append(
                Queue(
                    f"q{i}",
                    weight=1 if equal else int(self._rng.choice([1, 2, 3, 7, 65_535])),
                    parent=parent,
                    capability=self._some(0.3, 60_000),
                    guarantee=self._some(0.3, 20_000) or (),
                    deserved=self._some(0.5, 40_000) or (),
                    state=QueueState.CLOSED if self._chance(0.06) else QueueState.OPEN,
                )
            )
        if self._chance(0.9):
            ceiling = self._some(0.1, 200_000)
            weight = int(self._rng.integers(1, 4))
            made.append(Queue("root", weight=weight, parent="", capability=ceiling))
        return sorted(made, key=lambda q: q.name)

    def _some(self, part: float, cpu: int) -> tuple[tuple[str, int], ...] | None:
        if not self._chance(part):
            return None
        whole = {CPU: int(self._rng.integers(cpu)), GPU: int(self._rng.integers(6))}
        return amounts({r: n for r, n in whole.items() if self._chance(0.6)})

    def _task(self, key: str, gang: str, nodes: list[str]) -> Task:
        asked = {
            CPU: int(self._rng.choice([0, 100, 500, 1000, 1333, 8000])),
            MEMORY: int(self._rng.integers(2**38)) * self._chance(0.5),
            GPU: int(self._rng.choice([0, 0, 1, 1, 2])),
            NPU: int(self._chance(0.1)),
        }
        status = _STATUSES[int(self._rng.integers(len(_STATUSES)))]
        return Task(
            key,
            TaskShape(amounts({r: n for r, n in asked.items() if n})),
            status,
            gang=gang,
            node=nodes[int(self._rng.integers(len(nodes)))] if status in _HOLDING else "",
            problem=_FAULT if self._chance(0.02) else None,
        )

    def _gang(self, number: int, queues: list[str], nodes: list[str]) -> Gang:
        key = f"ns/g{number}"
        made = self._task(f"{key}-0", key, nodes)
        tasks = [made]
        for i in range(1, int(self._rng.integers(1, 8))):
            fresh = self._task(f"{key}-{i}", key, nodes)
            tasks.append(replace(fresh, shape=made.shape) if self._chance(0.8) else fresh)
        return Gang(
            key,
            queue=queues[int(self._rng.integers(len(queues)))],
            min_member=int(self._rng.integers(0, len(tasks) + 1)),
            created_ms=int(self._rng.integers(0, 5)),
            phase=GangPhase.INQUEUE,
            tasks=tuple(tasks),
            problem=_FAULT if self._chance(0.02) else None,
        )

    def _node(self, name: str, gangs: list[Gang]) -> Node:
        here = [t for g in gangs for t in g.tasks if t.node == name]
        if self._chance(0.4):
            here.append(replace(self._task(f"other/{name}", "", [name]), status=_RUNNING))
        offered = {
            CPU: int(self._rng.choice([1000, 4000, 10_007, 64_000])),
            MEMORY: int(self._rng.integers(2**40)),
            GPU: int(self._rng.integers(0, 4 if self._scarce else 12)),
        }
        if self._chance(0.8):
            offered[PODS] = int(self._rng.choice([3, 10, 110]))
        return Node(
            name,
            amounts({r: n for r, n in offered.items() if n}),
            ready=not self._chance(0.1),
            residents=tuple(sorted(here, key=lambda t: t.key)),
        )


_FAULT = Reason(ReasonCode.INVALID_POD, "is odd")


def disagreements(snapshot: Snapshot) -> list[str]:
    """Return the queues for which engine and verifier compute different shares or entitlements."""
    problem, world = compile_problem(snapshot), World(snapshot, ())
    again = shares_by_name(world)
    tree, capacity = HierarchicalDrf(), Capacity()
    pairs = [
        ("whole", deserved_shares(problem), again.whole),
        ("own", own_shares(problem), again.own),
        ("capacity", capacity.deserved(problem), capacity.deserved_by_name(world)),
        ("tree", tree.deserved(problem), tree.deserved_by_name(world) or {}),
    ]
    found = []
    for what, arrays, by_name in pairs:
        for q, name in enumerate(problem.queues.names):
            here = by_name.get(name, {})
            column = dict(zip(problem.resources, arrays[q].tolist(), strict=True))
            both = {r: (column.get(r, 0), here.get(r, 0)) for r in sorted({*column, *here})}
            found += [f"{what} {name} {r}: {a} and {b}" for r, (a, b) in both.items() if a != b]
    return found


def shares_of(problem: Problem) -> dict[str, list[int]]:
    """Return the share of each queue, as computed by the engine."""
    both = np.concatenate([deserved_shares(problem), own_shares(problem)], axis=1)
    return dict(zip(problem.queues.names, both.tolist(), strict=True))


def changed_by_victims(tree: Tree, snapshot: Snapshot) -> list[str]:
    """Return the queues with shares that an eviction would change."""
    before = compile_problem(snapshot)
    after = compile_problem(with_terminating(snapshot, tree.victims(snapshot)), before)
    kept = kept_amounts(before, deserved_shares(before))
    again = kept_amounts(after, deserved_shares(after))
    one, other = shares_of(before), shares_of(after)
    return [n for n in one if one[n] != other[n]] + ["kept"] * bool((kept != again).any())


def main() -> None:
    """Compare many trees, and print the differences."""
    first, number = int(sys.argv[1]), int(sys.argv[2])
    wrong = 0
    for seed in range(first, first + number):
        tree = Tree(seed)
        snapshot = tree.snapshot()
        found = [*disagreements(snapshot), *changed_by_victims(tree, snapshot)]
        wrong += bool(found)
        if found and wrong <= 20:
            print(seed, found[:4], flush=True)
    print(f"{number} trees from seed {first}: {wrong} disagree")


if __name__ == "__main__":
    main()
