"""Random small clusters: the verifier accepts every plan with evictions at its first check."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import GangPhase, Queue
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.session.solve_settings import limits_of
from optsched.solver.cpsat.process import InProcess
from tests.support.evictions import MODEL
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import TaskShape


class Draw:
    """A random cluster of up to four nodes with queues, running gangs and waiting gangs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = ["a", "b", "c"][: self._random.randint(1, 3)]

    def cluster(self) -> Snapshot:
        pick = self._random
        nodes = [
            node(f"n{i}", cpu=pick.choice([4, 8]), gpu=pick.choice([0, 2, 4]))
            for i in range(pick.randint(1, 4))
        ]
        queues = self._queues()
        idle = {n.name: dict(n.allocatable) for n in nodes}
        there = [self._settled(self._gang(f"r{i}"), idle) for i in range(pick.randint(2, 9))]
        waiting = [self._gang(f"s{i}") for i in range(pick.randint(1, 6))]
        return cluster(nodes, [*there, *waiting], queues)

    def _queues(self) -> list[Queue]:
        pick = self._random
        has_parent = len(self._names) > 1 and pick.random() < 0.35
        found = [Queue("root", reclaimable=False)]
        if has_parent:
            found.append(Queue("p", deserved=((CPU, 6000), (GPU, 4)), weight=2))
        for name in self._names:
            drawn = ((CPU, pick.choice([1, 2, 4, 6]) * 1000), (GPU, pick.choice([1, 2, 4])))
            deserved = tuple(part for part in drawn if pick.random() < 0.7)
            floors = tuple((r, n // 2) for r, n in deserved if pick.random() < 0.2 and n > 1)
            found.append(
                Queue(
                    name,
                    weight=pick.randint(1, 3),
                    deserved=deserved,
                    guarantee=floors,
                    capability=((CPU, 8000),) if pick.random() < 0.15 else None,
                    reclaimable=pick.random() < 0.9,
                    priority=pick.choice([0, 0, 0, 5]),
                    parent="p" if has_parent and name != "a" else "root",
                )
            )
        return sorted(found, key=lambda q: q.name)

    def _shape(self) -> TaskShape:
        return shape(self._random.choice([1, 1, 2, 3]), self._random.choice([0, 0, 1, 2]))

    def _gang(self, name: str) -> Gang:
        pick = self._random
        roles = [("w", pick.randint(1, 4), self._shape())]
        if pick.random() < 0.25:
            roles.append(("x", pick.randint(1, 2), self._shape()))
        least = pick.randint(1, sum(number for _, number, _ in roles))
        queue, priority = pick.choice(self._names), pick.choice([0, 1, 5, 9])
        return gang(name, *roles, least=least, queue=queue, priority=priority)

    def _settled(self, waiting: Gang, idle: dict[str, dict[str, int]]) -> Gang:
        """Return the gang with most of its pods running on nodes with idle capacity."""
        tasks = []
        for task in waiting.tasks:
            asked = {**dict(task.shape.request), "pods": 1}
            rooms = [
                n for n, r in sorted(idle.items()) if all(r.get(k, 0) >= asked[k] for k in asked)
            ]
            if rooms and self._random.random() < 0.9:
                name = self._random.choice(rooms)
                for resource, amount in asked.items():
                    idle[name][resource] -= amount
                may_leave = self._random.random() < 0.9
                tasks.append(replace(running(task, name), preemptable=may_leave))
            else:
                tasks.append(task)
        return replace(waiting, tasks=tuple(tasks), phase=GangPhase.RUNNING)


@pytest.mark.parametrize("shares", ["capacity", "proportion"])
@pytest.mark.parametrize("seed", range(20))
def test_no_plan_with_evictions_is_refused(seed: int, shares: str):
    policy = parse_policy(MODEL.replace("400ms", "100ms").replace("SHARES", shares), "test.yaml")
    limits = limits_of(policy, None, deterministic=True, seed=0, gap=None)
    solver = InProcess() if seed % 10 == 1 else None
    report = run_session(Draw(seed).cluster(), policy, SessionContext(solver=solver, limits=limits))
    assert report.trace.violations == ()
