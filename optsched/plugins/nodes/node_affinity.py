"""Node selectors and required node affinity; preferred affinity as a score.

Mathematics: models/formulation/node_affinity.md. Upstream: `NodeAffinity` plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import Operator, Requirement
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.faces import Face

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.task import TaskShape
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem


class NodeAffinity(Rule):
    """A task runs only on nodes that its `nodeSelector` and required node affinity select."""

    name = "node-affinity"
    hard_face = Face.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            shape = task.shape
            for key, value in shape.node_selector:
                if node.labels.get(key) != value:
                    detail = f"nodeSelector {key}={value} does not select node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)
            wanted = shape.node_affinity
            if wanted is not None and not wanted.matches(node.name, node.labels):
                detail = f"node affinity ({wanted}) does not select node {node.name}"
                yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        if not shape.node_selector and shape.node_affinity is None:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for key, value in shape.node_selector:
            chosen &= problem.columns.accepts(Requirement(key, Operator.IN, (value,)))
        if shape.node_affinity is not None:
            chosen &= problem.columns.selects(shape.node_affinity)
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """What the mask asks for, in words."""
        return f"did not match {_describe_selector(problem.classes.shapes[task_class])}"


def _describe_selector(shape: TaskShape) -> str:
    selector = ",".join(f"{k}={v}" for k, v in shape.node_selector)
    parts = [f"nodeSelector {selector}"] if selector else []
    if shape.node_affinity is not None:
        parts.append(f"node affinity ({shape.node_affinity})")
    return " and ".join(parts)
