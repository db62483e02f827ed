"""Amounts of any resource by node, also of resources that are not on axis R."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.task import Task
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


class Offers:
    """Amounts by node of any resource, looked up once each."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._offered: dict[str, I64] = {}
        self._idle: dict[str, I64] = {}

    def offered(self, resource: str) -> I64:
        """Return (N,) what ready nodes offer."""
        if resource not in self._offered:
            problem, r = self._problem, self._problem.index(resource)
            nodes = problem.snapshot.nodes
            found = [n.offers.get(resource, 0) if n.ready else 0 for n in nodes] if r < 0 else None
            column = problem.allocatable[:, r] if found is None else np.array(found, np.int64)
            self._offered[resource] = column
        return self._offered[resource]

    def idle(self, resource: str) -> I64:
        """Return (N,) idle amounts, at least 0."""
        if resource not in self._idle:
            problem, r = self._problem, self._problem.index(resource)
            if r >= 0:
                self._idle[resource] = problem.idle[:, r]
            else:
                held = [_sum_requests(n.residents, resource) for n in problem.snapshot.nodes]
                left = self.offered(resource) - np.array(held, np.int64)
                self._idle[resource] = np.maximum(left, 0)
        return self._idle[resource]

    def requests_of(self, resource: str) -> I64:
        """Return (C,) the request of one task of each class."""
        r, request = self._problem.index(resource), self._problem.classes.request
        return request[:, r] if r >= 0 else np.zeros(len(request), np.int64)


def _sum_requests(residents: Iterable[Task], resource: str) -> int:
    return sum(dict(task.shape.request).get(resource, 0) for task in residents)
