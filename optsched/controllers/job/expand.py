"""All objects that the controller creates for a job, together: for predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.api.job import parse_job
from optsched.api.kinds import PRIORITY_CLASS
from optsched.controllers.job.podgroups import desired_group, waits
from optsched.controllers.job.pods import pod_maker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind
    from optsched.controllers.effects import Fabric, FabricAnswer, Manifest, Question
    from optsched.controllers.world import Index
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class Expanded:
    """A job as its PodGroup and its pods.

    Attributes
    ----------
    pods
        Those that are created as soon as the gang is let in.
    later
        Tasks whose pods are created when others run; they have none yet.

    """

    group: dict[str, Any]
    pods: tuple[dict[str, Any], ...]
    later: tuple[str, ...] = ()


def expand_job(
    manifest: Manifest, classes: Mapping[str, Manifest]
) -> tuple[Expanded | None, tuple[FieldError, ...]]:
    """The objects of a job, and its problems; None where it could not be created.

    Parameters
    ----------
    manifest
        The job, with a name, a namespace and a UID.
    classes
        PriorityClasses by name: more important tasks come first in the gang's minimum.

    """
    job, errors = parse_job(manifest)
    if job is None or errors:
        return None, errors
    group = desired_group(job, manifest, _PriorityClassWorld(classes))
    maker = pod_maker(job, manifest)
    first = [task for task in job.spec.tasks if not waits(task)]
    pods = tuple(maker.pod(task, index) for task in first for index in range(task.replicas))
    later = tuple(task.name for task in job.spec.tasks if waits(task))
    return Expanded(group, pods, later), ()


@dataclass(frozen=True, slots=True)
class _PriorityClassWorld:
    """A world that has nothing but PriorityClasses."""

    classes: Mapping[str, Manifest]
    now_ms: int = 0

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        del namespace
        return self.classes.get(name) if kind == PRIORITY_CLASS else None

    def listed(self, kind: Kind, namespace: str | None = None) -> tuple[Manifest, ...]:
        del namespace
        return tuple(self.classes.values()) if kind == PRIORITY_CLASS else ()

    def owned_by(self, kind: Kind, uid: str) -> tuple[Manifest, ...]:
        del kind, uid
        return ()

    def list_indexed(self, index: Index, value: str) -> tuple[Manifest, ...]:
        del index, value
        return ()

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        del kind, namespace, name
        return None

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        del fabric
        return None

    def is_answered(self, question: Question) -> bool:
        del question
        return False
