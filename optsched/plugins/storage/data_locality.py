"""Prefer nodes that hold the data sets which a task reads.

Mathematics: models/formulation/data_locality.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Rule

if TYPE_CHECKING:
    from optsched.problem.arrays import F64
    from optsched.problem.problem import Problem

TOP = 100.0


@dataclass(frozen=True)
class DataLocality(Rule):
    """A score from 0 to 100, times its weight: the part of its data sets that a node holds."""

    name = "data-locality"

    weight: int = 1

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`."""
        wanted = frozenset(problem.classes.shapes[task_class].wants.datasets)
        if not wanted or not self.weight:
            return None
        held = [len(wanted.intersection(node.store.datasets)) for node in problem.snapshot.nodes]
        return np.floor(np.array(held) * TOP / len(wanted)) * self.weight
