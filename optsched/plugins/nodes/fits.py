"""Node capacity: the total requests on a node never exceed its allocatable amounts.

Mathematics: models/formulation/fits.md. The rule is always enabled. Each task requests one unit of
the resource `pods`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


class Fits(Rule):
    """Rule: on each node, the total request of each resource is at most its allocatable amount."""

    name = "fits"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`.

        A plan is invalid if a placed task requests a resource that its node lacks.
        """
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            gain = summed(task_usage(t) for t in placed)
            held = summed(task_usage(t) for t in node.residents)
            for resource, more in gain.items():
                limit = node.offer(resource)
                used = held.get(resource, 0) + more
                if more and used > limit:
                    detail = (
                        f"{resource}: {amount_text(resource, used)} requested of "
                        f"{amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"node {name}", detail)

        # Nominated tasks must fit after all terminating pods have ended.
        for name, nominated in world.nominated_tasks.items():
            node = world.snapshot.node_by_name[name]
            stays = [t for t in node.residents if t.status is not TaskStatus.RELEASING]
            stays += world.placed_on.get(name, [])
            held = summed(task_usage(t) for t in stays)
            for resource, more in summed(task_usage(t) for t in nominated).items():
                limit = node.offer(resource)
                if more and held.get(resource, 0) + more > limit:
                    detail = (
                        f"{resource}: {amount_text(resource, more)} nominated, "
                        "more than will be idle"
                    )
                    yield Violation(self.name, f"node {name}", detail)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Limit requests to idle amounts: Σ_c request[c, r] · supplied[c, n] ≤ idle[n, r].

        supplied[c, n] is the number of tasks of class c that are placed on node n.
        """
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        idle, request = form.problem.idle, form.problem.classes.request
        task_class, node = np.nonzero(supplied >= 0)
        variable = supplied[task_class, node]
        for r in np.flatnonzero(request[np.unique(task_class)].any(axis=0)).tolist():
            requested = request[task_class, r]
            takes = requested > 0
            used, at = np.unique(node[takes], return_inverse=True)
            form.model.add_rows(at, variable[takes], requested[takes], upper=idle[used, r])


@dataclass(eq=False)
class Offers:
    """Allocatable and idle amounts per node, computed once for each resource."""

    _problem: Problem
    _offered: dict[str, I64] = field(default_factory=dict, init=False)
    _idle: dict[str, I64] = field(default_factory=dict, init=False)

    def offered(self, resource: str) -> I64:
        """Return the allocatable amounts (N,) of a resource; 0 on nodes that are not ready."""
        if resource not in self._offered:
            problem, r = self._problem, self._problem.index(resource)
            nodes = problem.snapshot.nodes
            found = [n.offers.get(resource, 0) if n.ready else 0 for n in nodes] if r < 0 else None
            column = problem.allocatable[:, r] if found is None else np.array(found, np.int64)
            self._offered[resource] = column
        return self._offered[resource]

    def idle(self, resource: str) -> I64:
        """Return the idle amount (N,) of a resource on each node, at least 0."""
        if resource not in self._idle:
            problem, r = self._problem, self._problem.index(resource)
            if r >= 0:
                self._idle[resource] = problem.idle[:, r]
            else:
                held = [
                    sum(dict(task.shape.request).get(resource, 0) for task in node.residents)
                    for node in problem.snapshot.nodes
                ]
                left = self.offered(resource) - np.array(held, np.int64)
                self._idle[resource] = np.maximum(left, 0)
        return self._idle[resource]

    def requests_of(self, resource: str) -> I64:
        """Return the amount (C,) of a resource that one task of each class requests."""
        r, request = self._problem.index(resource), self._problem.classes.request
        return request[:, r] if r >= 0 else np.zeros(len(request), np.int64)
