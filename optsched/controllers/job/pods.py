"""The manifests of a job's pods.

Source: Volcano, pkg/controllers/job/job_controller_util.go (`createJobPod`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.job import NumaPolicy
from optsched.api.json_fields import owner_reference
from optsched.api.kinds import JOB, POD
from optsched.controllers.job.object_names import group_name, pod_name
from optsched.controllers.job.owned_objects import pod_volumes
from optsched.controllers.job.plugins.base import add_mount, draft_of, finished_spec
from optsched.controllers.job.plugins.registry import plugins_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.json_fields import Manifest
    from optsched.controllers.job.plugins.base import Draft, Flags, Plugin

GROUP_NAME: Final = wellknown.GROUP_NAME_ANNOTATIONS[0]
_PASSED_ON_LABELS: Final = (wellknown.PREEMPTABLE, wellknown.COOLDOWN_TIME)
_PASSED_ON: Final = (*_PASSED_ON_LABELS, wellknown.REVOCABLE_ZONE)
_BUDGETS: Final = (wellknown.MIN_AVAILABLE, wellknown.MAX_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class PodMaker:
    """Builds the manifests of one job's pods from data that is the same for all of them.

    `is_forwarded` is true if the job's queue has `extendClusters`.
    """

    job: Job
    owner: Mapping[str, Any]
    plugins: tuple[tuple[Plugin, Flags], ...]
    volumes: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    is_forwarded: bool
    memo: dict[str, Any] = field(default_factory=dict)

    def pod(self, task: TaskSpec, index: int) -> dict[str, Any]:
        """Return the manifest of a task's pod with the given index."""
        job, name = self.job, pod_name(self.job.meta.name, task.name, index)
        draft = draft_of(job, task, index, name, self.memo)
        meta, labels, annotations = job.meta, job.meta.labels, job.meta.annotations
        if not draft.spec.get("schedulerName"):
            draft.spec["schedulerName"] = job.spec.scheduler_name
        if job.spec.priority_class and not draft.spec.get("priorityClassName"):
            draft.spec["priorityClassName"] = job.spec.priority_class
        draft.labels.update({key: labels[key] for key in _PASSED_ON_LABELS if key in labels})
        budget = next(((key,) for key in _BUDGETS if key in annotations), ())
        passed_on = (*_PASSED_ON, *budget)
        draft.annotations.update({key: annotations[key] for key in passed_on if key in annotations})
        _set_identity(draft)
        if self.is_forwarded:
            draft.labels[wellknown.JOB_FORWARDING] = "true"
            draft.annotations[wellknown.JOB_FORWARDING] = "true"
        volumes, mounts = self.volumes
        for volume in volumes:
            draft.add_volume(volume)
        add_mount(draft.containers, *mounts)
        for plugin, flags in self.plugins:
            plugin.dress(draft, flags)
        return {
            "apiVersion": POD.api_version,
            "kind": POD.kind,
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": draft.labels,
                "annotations": draft.annotations,
                "ownerReferences": [self.owner],
            },
            "spec": finished_spec(draft),
        }


def pod_maker(job: Job, manifest: Manifest, *, is_forwarded: bool = False) -> PodMaker:
    """Return the builder for a job's pods; `manifest` is the job as decoded JSON."""
    owner = owner_reference(JOB, manifest)
    return PodMaker(job, owner, plugins_of(job), pod_volumes(job), is_forwarded)


def _set_identity(draft: Draft) -> None:
    """Set the labels and annotations that identify a pod's job, task and index."""
    job, task = draft.job, draft.task
    place = {
        wellknown.JOB_NAME: job.meta.name,
        wellknown.TASK_SPEC: task.name,
        wellknown.TASK_INDEX: str(draft.index),
        wellknown.POD_QUEUE_NAME: job.spec.queue,
    }
    draft.labels.update(place)
    draft.labels[wellknown.JOB_NAMESPACE] = job.meta.namespace
    draft.annotations.update(place)
    draft.annotations[GROUP_NAME] = group_name(job)
    draft.annotations[wellknown.JOB_VERSION] = str(job.status.restarts.version)
    draft.annotations[wellknown.JOB_RETRY_COUNT] = str(job.status.restarts.retries)
    draft.annotations[wellknown.TEMPLATE_UID] = f"{job.meta.name}-{task.name}"
    if task.topology_policy is not NumaPolicy.NONE:
        draft.annotations[wellknown.NUMA_TOPOLOGY_POLICY] = task.topology_policy.value
    if task.partition is not None:
        draft.labels[wellknown.PARTITION_ID] = str(draft.index // task.partition.size)
