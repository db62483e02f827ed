"""A job as its controller observes it, with its pods and its PodGroup.

Each pod records the job version for which it was created. A restart of the whole job, a task, a
partition or a pod sets a minimum version for the restarted pods. A pod with a lower version is
outdated: it no longer counts as a pod of the job, and is deleted. `status.restarted` stores the
minimum versions, because the controller keeps no state in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.job import JobPhase, PodCounts
from optsched.api.json_fields import (
    annotations_of,
    is_terminating,
    labels_of,
    meta_of,
    name_of,
    records,
    status_of,
    subobject,
    time_ms,
    uid_of,
)
from optsched.api.kinds import JOB, POD, POD_GROUP
from optsched.cluster.relocation import read_evicted
from optsched.controllers.job.object_names import group_name, pod_name
from optsched.controllers.job.status import LIVING
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World

LEFT_OVER_MS: Final = 5_000
"""Time in ms after which a terminating pod with a grace period of 0 is deleted again."""

WHOLE: Final = "job"
"""The key under which `status.restarted` stores the minimum version of all pods."""

_COUNTED: Final = {
    "Pending": "pending",
    "Running": "running",
    "Succeeded": "succeeded",
    "Failed": "failed",
}
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_DISRUPTION: Final = "DisruptionTarget"


def task_key(task: str) -> str:
    """Return the key under which `status.restarted` stores a task's minimum version."""
    return f"task/{task}"


def partition_key(task: str, partition: int) -> str:
    """Return the key under which `status.restarted` stores a partition's minimum version."""
    return f"partition/{task}/{partition}"


def pod_key(task: str, index: int) -> str:
    """Return the key under which `status.restarted` stores a pod's minimum version."""
    return f"pod/{task}/{index}"


def keys_of_pod(task: TaskSpec, index: int) -> tuple[str, ...]:
    """Return the keys in `status.restarted` that apply to a pod."""
    found = (WHOLE, task_key(task.name), pod_key(task.name, index))
    if task.partition is None:
        return found
    return (*found, partition_key(task.name, index // task.partition.size))


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job; `task` is None if the job's spec does not contain the pod."""

    manifest: Manifest
    name: str
    task: TaskSpec | None
    index: int
    phase: str
    is_terminating: bool
    is_outdated: bool

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return uid_of(self.manifest)

    @property
    def has_ended(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.phase in _ENDED

    @property
    def is_active(self) -> bool:
        """Whether the pod is in the job's spec, and is neither outdated nor terminating."""
        return not (self.is_terminating or self.is_outdated or self.task is None)


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job with its pods and its PodGroup.

    Attributes
    ----------
    pods
        The pods that the job's spec contains, keyed by task name and index.
    strays
        The job's pods that its spec no longer contains, because the job was scaled down.
    group
        The job's PodGroup, or None if it does not exist yet.
    generation
        The job's `metadata.generation`.
    evicted
        The pods that the scheduler evicts, by name and UID, from an annotation of the PodGroup.

    """

    job: Job
    now_ms: int
    pods: Mapping[tuple[str, int], PodView]
    strays: tuple[PodView, ...] = ()
    group: Manifest | None = None
    generation: int = 0
    evicted: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_pods(self) -> tuple[PodView, ...]:
        """All existing pods of the job, including those that its spec no longer contains."""
        return (*self.pods.values(), *self.strays)

    def pods_of(self, task: TaskSpec) -> Iterator[PodView]:
        """Yield the existing pods of a task in ascending order of index."""
        for index in range(task.replicas):
            pod = self.pods.get((task.name, index))
            if pod is not None:
                yield pod


def observe_job(job: Job, manifest: Manifest, world: World) -> ObservedJob:
    """Return a job with its existing pods and PodGroup."""
    group = world.get(POD_GROUP, job.meta.namespace, group_name(job))
    views = [_build_view(job, pod) for pod in world.owned_by(POD, JOB, job.meta.uid)]
    views.sort(key=lambda view: (view.index, view.name))
    named = {(view.task.name, view.index): view for view in views if view.task is not None}
    return ObservedJob(
        job=job,
        now_ms=world.now_ms,
        pods=named,
        strays=tuple(view for view in views if view.task is None),
        group=group,
        generation=int(meta_of(manifest).get("generation") or 0),
        evicted=read_evicted(annotations_of(group).get(wellknown.EVICTED, "")) if group else {},
    )


def with_status(job: Job, observed: ObservedJob) -> ObservedJob:
    """Return `observed` with a new state of the job.

    The new status may make some of the pods outdated.
    """
    views = [_build_view(job, pod.manifest) for pod in observed.all_pods]
    named = {(view.task.name, view.index): view for view in views if view.task is not None}
    strays = tuple(view for view in views if view.task is None)
    return replace(observed, job=job, pods=named, strays=strays)


def pods_to_delete(observed: ObservedJob) -> list[PodView]:
    """Return the pods to delete in the job's current phase.

    If the job has ended or is ending, its finished pods are kept for their logs.
    """
    status = observed.job.status
    has_retries = status.restarts.retries < observed.job.spec.max_retry
    is_restart = status.phase is JobPhase.RESTARTING and has_retries
    keeps = status.phase in LIVING or is_restart
    return [
        pod
        for pod in observed.all_pods
        if (
            recheck_delay_ms(pod, observed.now_ms) == 0
            if pod.is_terminating
            else not (pod.is_active if keeps else pod.has_ended)
        )
    ]


def recheck_delay_ms(pod: PodView, now_ms: int) -> int | None:
    """Return the time in ms until a terminating pod must be deleted again, or None.

    An API server that stops during the deletion of a pod with a grace period of 0 may leave the pod
    behind. Pods with a longer grace period are deleted only once.
    """
    meta = meta_of(pod.manifest)
    deletion_ms = time_ms(meta.get("deletionTimestamp"))
    if deletion_ms is None or meta.get("deletionGracePeriodSeconds") != 0:
        return None
    return max(0, deletion_ms + LEFT_OVER_MS - now_ms)


def count_pods(pods: Iterable[PodView], deleted: Iterable[PodView] = ()) -> PodCounts:
    """Return the number of a job's pods in each state.

    `deleted` lists the pods that the current reconciliation deletes; they count as terminating.
    """
    deleted_ids = {id(pod) for pod in deleted}
    found: dict[str, int] = {}
    by_task: dict[str, dict[str, int]] = {}
    for pod in pods:
        if pod.is_terminating or id(pod) in deleted_ids:
            found["terminating"] = found.get("terminating", 0) + 1
            continue
        state = _COUNTED.get(pod.phase, "unknown")
        found[state] = found.get(state, 0) + 1
        if pod.task is not None:
            phases = by_task.setdefault(pod.task.name, {})
            phases[pod.phase] = phases.get(pod.phase, 0) + 1
    return PodCounts(**found, by_task=by_task)


def _build_view(job: Job, pod: Manifest) -> PodView:
    annotations, name = annotations_of(pod), name_of(pod)
    spec_name = annotations.get(wellknown.TASK_SPEC) or labels_of(pod).get(wellknown.TASK_SPEC)
    task = next((each for each in job.spec.tasks if each.name == spec_name), None)
    index = _parse_number(annotations.get(wellknown.TASK_INDEX) or name.rpartition("-")[2])
    if task is None or index >= task.replicas or name != pod_name(job.meta.name, task.name, index):
        task = None
    since, restarted = 0, job.status.restarts.restarted
    if task is not None and restarted:
        since = max(restarted.get(each, 0) for each in keys_of_pod(task, index))
    return PodView(
        manifest=pod,
        name=name,
        task=task,
        index=index,
        phase=str(status_of(pod).get("phase") or "Pending"),
        is_terminating=is_terminating(pod),
        is_outdated=since > 0 and _parse_number(annotations.get(wellknown.JOB_VERSION)) < since,
    )


def _parse_number(text: object) -> int:
    return int(text) if isinstance(text, str) and is_decimal(text) else 0


# --- pod status ----------------------------------------------------------------------------------


def container_statuses(pod: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the statuses of all containers of a pod, init containers first."""
    status = status_of(pod)
    for name in ("initContainerStatuses", "containerStatuses"):
        yield from records(status, name)


def exit_codes(pod: Manifest) -> frozenset[int]:
    """Return the non-zero exit codes of a pod's terminated containers."""
    ends = (subobject(subobject(each, "state"), "terminated") for each in container_statuses(pod))
    return frozenset(code for end in ends if isinstance(code := end.get("exitCode"), int) and code)


def restarts(pod: Manifest) -> int:
    """Return the total number of restarts of a pod's containers."""
    counts = (each.get("restartCount") for each in container_statuses(pod))
    return sum(number for number in counts if isinstance(number, int))


def is_disrupted(pod: Manifest) -> bool:
    """Return whether a pod has the condition DisruptionTarget (Kubernetes, KEP-3329).

    The condition means that the cluster terminates the pod: by an eviction, a taint or a
    preemption, or because its node is lost.
    """
    return any(
        (each.get("type"), each.get("status")) == (_DISRUPTION, "True")
        for each in records(status_of(pod), "conditions")
    )


def are_containers_ready(pod: Manifest) -> bool:
    """Return whether all containers of a pod are ready; init containers are ignored."""
    return all(each.get("ready") is True for each in records(status_of(pod), "containerStatuses"))
