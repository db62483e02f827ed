"""A node's room: what its tasks take together never exceeds what it offers.

Mathematics: models/formulation/fits.md. Always on. A task takes one of the resource `pods`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.plugins.wording import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.reasons import Reason
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World


class Fits(Rule):
    """Requests fit the node in every resource."""

    name = "fits"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. A node that was overfull before may not be made fuller."""
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            gain = summed(task_usage(t) for t in placed)
            held = summed(task_usage(t) for t in node.residents)
            for resource, more in gain.items():
                limit = node.offer(resource)
                used = held.get(resource, 0) + more
                if more and used > limit:
                    detail = (
                        f"{resource}: {amount_text(resource, used)} asked of "
                        f"{amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"node {name}", detail)

        yield from self._verify_nominations(world)

    def _verify_nominations(self, world: World) -> Iterator[Violation]:
        """What is promised fits once everything that is leaving has left."""
        for name, promised in world.nominated_tasks.items():
            node = world.snapshot.node_by_name[name]
            stays = [t for t in node.residents if t.status is not TaskStatus.RELEASING]
            stays += world.placed_on.get(name, [])
            held = summed(task_usage(t) for t in stays)
            for resource, more in summed(task_usage(t) for t in promised).items():
                limit = node.offer(resource)
                if more and held.get(resource, 0) + more > limit:
                    detail = f"{amount_text(resource, more)} promised, more than will be free"
                    yield Violation(self.name, f"node {name}", detail)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Σ_c request[c, r] · supplied[c, n] ≤ idle[n, r]."""
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        idle, request = form.problem.idle, form.problem.classes.request
        task_class, node = np.nonzero(supplied >= 0)
        variable = supplied[task_class, node]
        for r in np.flatnonzero(request[np.unique(task_class)].any(axis=0)).tolist():
            asked = request[task_class, r]
            takes = asked > 0
            used, at = np.unique(node[takes], return_inverse=True)
            form.model.add_rows(at, variable[takes], asked[takes], upper=idle[used, r])

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`."""
        return None
