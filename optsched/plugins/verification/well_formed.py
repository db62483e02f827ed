"""The rule that is checked first: a plan places only schedulable tasks, each at most once.

Mathematics: models/formulation/well_formed.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Nominate
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.plugins.verification.world import World


class WellFormed(Rule):
    """Rule: actions place only pending tasks of open queues, on ready nodes and at most once."""

    name = "well-formed"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        seen: set[str] = set()
        for action in world.actions:
            if not isinstance(action, Allocate | Nominate):
                continue
            if action.task in seen:
                yield Violation(self.name, f"task {action.task}", "placed more than once")
            seen.add(action.task)
            problem = _find_problem(world, action)
            if problem:
                yield Violation(self.name, f"task {action.task}", problem)


def _find_problem(world: World, action: Allocate | Nominate) -> str:
    gang = world.snapshot.gang_by_key.get(action.gang)
    if gang is None:
        return f"its gang {action.gang} does not exist" if action.gang else "it names no gang"
    if gang.problem is not None:
        return f"its gang cannot be scheduled: {gang.problem.message}"
    task = world.members(gang).get(action.task)
    if task is None:
        return f"it is not a member of gang {action.gang}"
    if task.status is not TaskStatus.PENDING or task.problem is not None:
        return f"it is not schedulable: {task.problem or task.status.value}"
    node = world.snapshot.node_by_name.get(action.node)
    if node is None:
        return f"node {action.node} does not exist"
    return world.shut(gang.queue) if node.ready else f"node {action.node} is not ready"
