"""Preview jobs: the PodGroup and pods that the controller would create for a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.job import parse_job
from optsched.api.json_fields import job_phase_of, meta_of
from optsched.api.kinds import JOB, POD, POD_GROUP, PRIORITY_CLASS, kind_of
from optsched.api.meta import NOT_A_MAPPING
from optsched.controllers.job.owned_objects import pod_maker
from optsched.controllers.job.podgroups import desired_group, first_tasks, waits
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.api.job import Job
    from optsched.api.json_fields import Manifest

    Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expanded:
    """The PodGroup and the pods of a job.

    `pods` holds the manifests of the pods that are created as soon as the gang is admitted. `later`
    holds the names of the tasks whose pods are created only after other tasks have started.
    """

    group: dict[str, Any]
    pods: tuple[dict[str, Any], ...]
    later: tuple[str, ...] = ()


def expand_job(
    manifest: Manifest, classes: Mapping[str, Manifest]
) -> tuple[Expanded | None, tuple[FieldError, ...]]:
    """Return a job's objects (None if the job is invalid), and the errors in the job.

    `manifest` is a job with a name, a namespace and a UID. `classes` holds the PriorityClasses,
    keyed by name.
    """
    job, errors = parse_job(manifest)
    if job is not None and not errors:
        errors = tuple(_find_odd_containers(job))
    if job is None or errors:
        return None, errors
    group = desired_group(job, manifest, classes.get)
    maker = pod_maker(job, manifest)
    pods = tuple(
        maker.pod(task, index) for task in first_tasks(job) for index in range(task.replicas)
    )
    later = tuple(task.name for task in job.spec.tasks if waits(task))
    return Expanded(group, pods, later), ()


def _find_odd_containers(job: Job) -> Iterator[FieldError]:
    """Yield an error for each container that is not a mapping; the controller would ignore it."""
    for number, task in enumerate(job.spec.tasks):
        spec = task.template.get("spec")
        if not isinstance(spec, dict):
            continue
        for field in ("initContainers", "containers"):
            found = spec.get(field)
            for index, each in enumerate(found if isinstance(found, list) else ()):
                if each is not None and not isinstance(each, dict):
                    path = f"spec.tasks[{number}].template.spec.{field}[{index}]"
                    yield FieldError(path, each, NOT_A_MAPPING)


_ENDED: Final = frozenset({"Completed", "Failed", "Terminated", "Aborted"})


def preview_jobs(
    objects: Iterable[tuple[Raw, str]],
) -> Iterator[tuple[Raw, str, tuple[FieldError, ...]]]:
    """Yield all objects, but replace each Job that has no pods yet by its PodGroup and pods.

    The PodGroup gets the Job's name. A Job is yielded unchanged if it has ended, or if `objects`
    contains its PodGroup or pods.

    Parameters
    ----------
    objects
        Pairs of an object and its location, such as `file:line`.

    Yields
    ------
    tuple
        An object, its location, and the field errors of a Job that could not be parsed.
    """
    located = [(obj, location) for obj, location in objects]
    classes = {
        name: obj
        for obj, _ in located
        if isinstance(obj, dict)
        and obj.get("kind") == PRIORITY_CLASS.kind
        and isinstance(name := meta_of(obj).get("name"), str)
    }
    owned = {key for obj, _ in located for key in _find_owners(obj)}
    for obj, location in located:
        is_job = isinstance(obj, dict) and kind_of(obj) == JOB
        if not is_job or _read_key(obj) in owned or job_phase_of(obj) in _ENDED:
            yield obj, location, ()
            continue
        namespace, name = _read_key(obj)
        meta = {**meta_of(obj), "namespace": namespace, "uid": "job"}
        found, errors = expand_job({**obj, "metadata": meta}, classes)
        if found is None:
            yield obj, location, errors
            continue
        group_meta = {**found.group["metadata"], "name": name}
        yield {**found.group, "metadata": _copy_metadata(group_meta, meta)}, location, ()
        for pod in found.pods:
            annotations = dict(pod["metadata"].get("annotations") or {})
            named = (key for key in wellknown.GROUP_NAME_ANNOTATIONS if key in annotations)
            annotations |= dict.fromkeys(named, name)
            pod_meta = {**pod["metadata"], "annotations": annotations}
            yield {**pod, "metadata": _copy_metadata(pod_meta, meta)}, location, ()


def _copy_metadata(meta: dict[str, Any], of_job: Raw) -> dict[str, Any]:
    """Return `meta` with the creation time of the job and without owner references."""
    found = {k: v for k, v in meta.items() if k != "ownerReferences"}
    if of_job.get("creationTimestamp") is not None:
        found["creationTimestamp"] = of_job["creationTimestamp"]
    return found


def _read_key(obj: Raw) -> tuple[str, str]:
    meta = meta_of(obj)
    return str(meta.get("namespace") or DEFAULT_NAMESPACE), str(meta.get("name"))


def _find_owners(obj: object) -> Iterator[tuple[str, str]]:
    """Yield (namespace, name) of the Jobs to which the owners or annotations of an object refer."""
    if not isinstance(obj, dict):
        return
    if kind_of(obj) not in (POD, POD_GROUP):
        return
    meta = meta_of(obj)
    namespace = str(meta.get("namespace") or DEFAULT_NAMESPACE)
    owners = meta.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("kind") == JOB.kind:
            yield namespace, str(owner.get("name"))
    annotations = meta.get("annotations")
    if isinstance(annotations, dict) and wellknown.JOB_NAME in annotations:
        yield namespace, str(annotations[wellknown.JOB_NAME])
