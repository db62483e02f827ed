"""Prefer nodes whose volumes are filled to the extent that a policy wants.

Mathematics: models/formulation/volume_fill.md. Upstream: kube-scheduler, VolumeBinding
(`volume_binding.go` `Score`, `scorer.go`), without its feature gate: who gives a shape wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.volumes import assign_volumes
from optsched.plugins.extension_points import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import Claim
    from optsched.cluster.volumes import Selects, Volume
    from optsched.problem.arrays import F64, Bool
    from optsched.problem.problem import Problem

FULL = 100
TENTH = 10
"""What one point of a shape is worth: shapes have 10 points, scores 100."""


@dataclass(frozen=True)
class VolumeFill(Rule):
    """Points by how full the volumes get that are there for the claims of a task.

    Attributes
    ----------
    shape
        (how full in percent, points of ten), rising; straight between.

    """

    name = "volume-fill"

    shape: tuple[tuple[int, int], ...]
    weight: int = 1

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`: with the volumes that each node alone would give, see `_choices`."""
        known = problem.snapshot.claims
        keys = problem.classes.shapes[task_class].claims
        claims = {key: known[key] for key in keys if key in known and known[key].is_scarce}
        if not claims:
            return None
        scores = np.zeros(problem.num_nodes)
        for node, chosen in _choices(problem, claims):
            scores[node] = self.weight * self.points(chosen)
        return scores

    def points(self, chosen: Sequence[tuple[int, Volume]]) -> int:
        """0 to 100 for volumes and what claims ask of them: the mean over storage classes."""
        requested: dict[str, list[int]] = {}
        for size_bytes, volume in chosen:
            total = requested.setdefault(volume.storage_class, [0, 0])
            total[0] += size_bytes
            total[1] += volume.capacity_bytes
        points = sum(self._points_at(_percent(*total)) for total in requested.values())
        return (2 * points + len(requested)) // (2 * len(requested)) if requested else 0

    def _points_at(self, percent: int) -> int:
        """Points at some percent; upstream cuts fractions off towards zero."""
        shape = [(at, points * TENTH) for at, points in self.shape]
        if percent <= shape[0][0]:
            return shape[0][1]
        for (left, low), (right, high) in pairwise(shape):
            if percent <= right:
                rise = (high - low) * (percent - left)
                step = abs(rise) // (right - left)
                return low + (step if rise >= 0 else -step)
        return shape[-1][1]


def _percent(requested: int, capacity: int) -> int:
    return FULL if capacity == 0 or requested > capacity else requested * FULL // capacity


def _choices(
    problem: Problem, claims: Mapping[str, Claim]
) -> list[tuple[int, list[tuple[int, Volume]]]]:
    """For nodes that have some, the volumes that claims would get there, with what they ask."""
    selects = _selects(problem)
    volumes = {volume.name: volume for claim in claims.values() for volume in claim.volumes}
    found = []
    for n, node in enumerate(problem.snapshot.nodes):
        holders = assign_volumes(claims, dict.fromkeys(claims, (node.name,)), selects)
        if not holders.short and holders.claim_by_volume:
            chosen = [
                (claims[key].size_bytes, volumes[v]) for v, key in holders.claim_by_volume.items()
            ]
            found.append((n, chosen))
    return found


def _selects(problem: Problem) -> Selects:
    number = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    known: dict[NodeSelector, Bool] = {}

    def selects(selector: NodeSelector, name: str) -> bool:
        if selector not in known:
            known[selector] = problem.columns.selects(selector)
        return bool(known[selector][number[name]])

    return selects
