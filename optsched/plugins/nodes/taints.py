"""Taints and tolerations; a cordoned node is a tainted one.

Mathematics: models/formulation/taints.md. Upstream: `TaintToleration` and `NodeUnschedulable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import TaintEffect
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.faces import Face

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.task import Taint, TaskShape
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem


class Taints(Rule):
    """A task does not come to a node with a NoSchedule or NoExecute taint it does not tolerate."""

    name = "taints"
    hard_face = Face.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for taint in node.marks:
                if taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
                    continue
                if not any(t.tolerates(taint) for t in task.shape.tolerations):
                    detail = f"does not tolerate {taint} of node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        codes, taints = problem.columns.taints()
        shape = problem.classes.shapes[task_class]
        open_to = [not refusing(shape, t) for t in taints]
        return None if all(open_to) else np.array(open_to, np.bool_)[codes]

    def refusal(self, problem: Problem, task_class: int) -> str:
        """The taints that keep the class away, in words."""
        _, taints = problem.columns.taints()
        shape = problem.classes.shapes[task_class]
        marks = sorted({str(t) for marked in taints for t in refusing(shape, marked)})
        return f"had untolerated taints {', '.join(marks)}"


def refusing(shape: TaskShape, taints: Sequence[Taint]) -> list[Taint]:
    """The taints that keep tasks of a shape away."""
    if not taints:
        return []
    return [
        taint
        for taint in taints
        if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE
        and not any(t.tolerates(taint) for t in shape.tolerations)
    ]
