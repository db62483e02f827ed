"""Volumes: a task goes where its claims can be reached.

Mathematics: models/formulation/volumes.md. Upstream: `VolumeBinding`, `VolumeZone`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.reasons import Reason, ReasonCode
from optsched.rules.base import Rule, Violation
from optsched.rules.faces import Face

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.domain.cluster import Snapshot
    from optsched.domain.task import TaskShape
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem
    from optsched.rules.outcome import Outcome
    from optsched.rules.world import World


class Volumes(Rule):
    """Every claim of a task exists, can be used, and is reachable from its node."""

    name = "volumes"
    hard_face = Face.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for key in task.shape.claims:
                claim = world.snapshot.claims.get(key)
                if claim is None or claim.problem:
                    problem = f": {claim.problem}" if claim else " does not exist"
                    detail = f"claim {key}{problem}"
                    yield Violation(self.name, f"task {task.key}", detail)
                elif claim.nodes is not None and not claim.nodes.matches(node.name, node.labels):
                    detail = f"claim {key} can not be reached from node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        if not shape.claims:
            return None
        if unusable(problem.snapshot, shape):
            return np.zeros(problem.num_nodes, np.bool_)
        chosen = np.ones(problem.num_nodes, np.bool_)
        for key in shape.claims:
            nodes = problem.snapshot.claims[key].nodes
            if nodes is not None:
                chosen &= problem.columns.selects(nodes)
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """The claims that bind the class to nodes, in words."""
        claims = ", ".join(problem.classes.shapes[task_class].claims)
        return f"can not reach the volumes of {claims}"

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: claims that no node could serve."""
        problem = outcome.problem
        start, end = problem.task_start[gang], problem.task_start[gang + 1]
        for task in problem.tasks[start:end]:
            why = unusable(problem.snapshot, task.shape)
            if why:
                return Reason(ReasonCode.VOLUME, why)
        return None


def unusable(snapshot: Snapshot, shape: TaskShape) -> str:
    """Why the claims of a shape can be used nowhere; empty when they can."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        if claim is None:
            return f"persistent volume claim {key} does not exist"
        if claim.problem:
            return f"persistent volume claim {key}: {claim.problem}"
    return ""
