"""Zones of volumes: a task goes where the volumes that it has already are.

Mathematics: models/formulation/volume_zone.md. Upstream: `VolumeZone`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.plugins.extension_points import Rule, Violation
from optsched.plugins.faces import Face

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem

_BETA = "failure-domain.beta.kubernetes.io"
_NOW = "topology.kubernetes.io"
_RENAMED = {f"{_BETA}/{part}": f"{_NOW}/{part}" for part in ("region", "zone")}
_LABELS = (*_RENAMED, *_RENAMED.values())


class VolumeZone(Rule):
    """A volume that says in which zones or regions it is is reached from there alone."""

    name = "volume-zone"
    hard_face = Face.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for key, label, values in _zones(world.snapshot, task.shape):
                if not _reaches(node.labels, label, values):
                    where = f"{label} {' or '.join(values)}"
                    detail = f"the volume of claim {key} is in {where}, node {node.name} is not"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        zones = list(_zones(problem.snapshot, problem.classes.shapes[task_class]))
        if not zones:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for _, label, values in zones:
            chosen &= problem.columns.selects(_selector(label, values))
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`: the claims, and where their volumes are."""
        zones = _zones(problem.snapshot, problem.classes.shapes[task_class])
        described = (f"claim {key} ({label} {' or '.join(values)})" for key, label, values in zones)
        return f"did not match the zone of the volume of {', '.join(described)}"


def _zones(snapshot: Snapshot, shape: TaskShape) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Claim, label and values of every zone that a volume of a shape names."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        for label, values in claim.zones if claim is not None else ():
            yield key, label, values


def _reaches(labels: Mapping[str, str], label: str, values: tuple[str, ...]) -> bool:
    """Whether a node with some labels is in one of the zones; all are where nodes name none."""
    if not any(known in labels for known in _LABELS):
        return True
    own = labels.get(label, labels.get(_RENAMED.get(label, label)))
    return own in values


def _selector(label: str, values: tuple[str, ...]) -> NodeSelector:
    """The same nodes by selector, so that each value of a label is looked at once."""
    here = Requirement(label, Operator.IN, values)
    terms = [(here,), tuple(Requirement(k, Operator.DOES_NOT_EXIST) for k in _LABELS)]
    if label in _RENAMED:
        by_new_name = Requirement(_RENAMED[label], Operator.IN, values)
        terms.append((Requirement(label, Operator.DOES_NOT_EXIST), by_new_name))
    return NodeSelector(tuple(NodeTerm(term) for term in terms))
