"""The PodGroup of a job, with the minimum number of pods and the total request of these pods.

Source: Volcano, pkg/controllers/job/job_controller_actions.go (`createOrUpdatePodGroup`,
`calcPGMinResources`). Unlike in Volcano, the minimum excludes tasks that depend on other tasks,
because their pods do not exist when the gang is scheduled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api import wellknown
from optsched.api.fields import Fields
from optsched.api.json_fields import (
    annotations_of,
    owner_reference,
    records,
    spec_of,
    status_of,
    subobject,
)
from optsched.api.kinds import JOB, POD_GROUP
from optsched.controllers.job.object_names import group_name, template_spec
from optsched.formats.codec.core_schemas import POD as POD_SCHEMA
from optsched.formats.codec.pods.reader import OTHER_SCHEDULER, SCHEDULER_NAMES
from optsched.formats.codec.pods.resource_requests import pod_request, pod_usage
from optsched.units import format_resource_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.json_fields import Manifest
    from optsched.api.podgroup import NetworkTopology

GetClass: TypeAlias = "Callable[[str], Manifest | None]"
"""Returns the PriorityClass with the given name, or None.

`min_resources` counts the pods of high-priority tasks before other pods.
"""

GENERATION: Final = "optsched.io/job-generation"
"""PodGroup annotation: the `metadata.generation` of the job when the PodGroup was written."""


_NO_PODS: Final = "NotEnoughTasks"


def is_current(group: Manifest, manifest: Manifest) -> bool:
    """Return whether a PodGroup was written for its job's current generation.

    The `minResources` of a current PodGroup is not recomputed. The other fields of the PodGroup are
    still compared, because users may have changed them.
    """
    seen = annotations_of(group).get(GENERATION)
    return seen is not None and seen == str(subobject(manifest, "metadata").get("generation"))


def desired_group(job: Job, manifest: Manifest, get_class: GetClass) -> dict[str, Any]:
    """Return the desired PodGroup of a job; `manifest` is the job as decoded JSON."""
    meta = job.meta
    annotations = {
        key: text for key, text in meta.annotations.items() if not wellknown.is_mark(key)
    }
    generation = manifest["metadata"].get("generation")
    mark = {GENERATION: str(generation)} if generation else {}
    if job.spec.scheduler_name not in (*SCHEDULER_NAMES, OTHER_SCHEDULER):
        # Before the job has pods, only this annotation names the job's scheduler. The annotation is
        # not set for kube-scheduler, which ignores Volcano's PodGroups. For jobs of kube-scheduler,
        # optsched admits the gangs, and kube-scheduler places the pods.
        mark[wellknown.GROUP_SCHEDULER] = job.spec.scheduler_name
    spec: dict[str, Any] = {
        **minimums(job),
        "queue": job.spec.queue,
        "minResources": min_resources(job, get_class),
    }
    if job.spec.priority_class:
        spec["priorityClassName"] = job.spec.priority_class
    if job.spec.topology is not None:
        spec["networkTopology"] = _format_topology(job.spec.topology)
    sub_groups: list[dict[str, Any]] = []
    for task in job.spec.tasks:
        if task.partition is not None:
            sub_group: dict[str, Any] = {
                "name": task.name,
                "subGroupSize": task.partition.size,
                "minSubGroups": task.partition.min_partitions,
                "labelSelector": {"matchLabels": {wellknown.TASK_SPEC: task.name}},
                "matchLabelKeys": [wellknown.PARTITION_ID],
            }
            if task.partition.topology is not None:
                sub_group["networkTopology"] = _format_topology(task.partition.topology)
            sub_groups.append(sub_group)
    if sub_groups:
        spec["subGroupPolicy"] = sub_groups
    return {
        "apiVersion": POD_GROUP.api_version,
        "kind": POD_GROUP.kind,
        "metadata": {
            "name": group_name(job),
            "namespace": meta.namespace,
            "labels": dict(meta.labels),
            "annotations": {**annotations, **mark},
            "ownerReferences": [owner_reference(JOB, manifest)],
        },
        "spec": spec,
    }


def minimums(job: Job) -> dict[str, Any]:
    """Return the PodGroup fields for the minimum number of pods, in total and per task."""
    spec = job.spec
    first = first_tasks(job)
    minimum = spec.min_available
    if len(first) < len(spec.tasks):
        minimum = min(minimum, sum(task.min_available for task in first))
    return {
        "minMember": minimum,
        "minTaskMember": {task.name: task.min_available for task in first},
    }


def min_resources(job: Job, get_class: GetClass) -> dict[str, str]:
    """Return the sum of requests and quota usages over the job's minimum number of pods."""
    ordered = sorted(first_tasks(job), key=lambda task: -_read_priority(task, get_class))
    # Count each task's `minAvailable` pods first, then other pods up to the job's minimum.
    limits = [
        *((task, task.min_available) for task in ordered),
        *((task, max(0, task.replicas - task.min_available)) for task in ordered),
    ]
    num_left = minimums(job)["minMember"]
    total: dict[str, int] = {}
    for task, limit in limits:
        num_pods = min(limit, num_left)
        num_left -= num_pods
        usage = _compute_usage(task) if num_pods else {}
        for resource, amount in usage.items():
            total[resource] = total.get(resource, 0) + amount * num_pods
    return format_resource_list(total)


def group_changes(
    group: Manifest, job: Job, manifest: Manifest, get_class: GetClass
) -> dict[str, Any]:
    """Return the patch that corrects a PodGroup; empty if no field differs.

    The patch never changes the PodGroup's queue. A user may have moved the gang to another queue,
    and the queue in the job's spec is immutable.
    """
    desired: dict[str, Any] = {
        **minimums(job),
        "priorityClassName": job.spec.priority_class or None,
    }
    if is_current(group, manifest):
        return _spec_changes(group, desired)
    desired["minResources"] = min_resources(job, get_class)
    generation = subobject(manifest, "metadata").get("generation")
    mark = {GENERATION: str(generation)} if generation else {}
    return {
        **_spec_changes(group, desired),
        **({"metadata": {"annotations": mark}} if mark else {}),
    }


def _spec_changes(group: Manifest, desired: Mapping[str, Any]) -> dict[str, Any]:
    have, changes = spec_of(group), {}
    for name, new in desired.items():
        old = have.get(name)
        if isinstance(new, dict):
            old_fields = old if isinstance(old, dict) else {}
            changed = {key: value for key, value in new.items() if old_fields.get(key) != value}
            merged = {**changed, **dict.fromkeys(old_fields.keys() - new.keys())}
            if merged:
                changes[name] = merged
        elif old != new and (old or new):
            changes[name] = new
    return {"spec": changes} if changes else {}


def is_admitted(group: Manifest | None) -> bool:
    """Return whether the scheduler has admitted the gang, so that its pods may be created."""
    return group is not None and str(status_of(group).get("phase") or "") not in ("", "Pending")


def why_waiting(group: Manifest | None) -> tuple[str, str]:
    """Return the reason and message of a PodGroup's Unschedulable condition, or empty strings.

    A condition with the reason NotEnoughTasks is ignored, because the caller creates the missing
    pods.
    """
    for each in records(status_of(group or {}), "conditions"):
        is_true = each.get("type") == "Unschedulable" and each.get("status", "True") == "True"
        if is_true and each.get("reason") != _NO_PODS:
            return str(each.get("reason") or ""), str(each.get("message") or "")
    return "", ""


def first_tasks(job: Job) -> list[TaskSpec]:
    """Return the tasks that depend on no other task."""
    return [task for task in job.spec.tasks if not waits(task)]


def waits(task: TaskSpec) -> bool:
    """Return whether the pods of a task are created only after other tasks have started."""
    return task.depends_on is not None and bool(task.depends_on.names)


def _read_priority(task: TaskSpec, get_class: GetClass) -> int:
    name = template_spec(task).get("priorityClassName")
    found = get_class(name) if isinstance(name, str) and name else None
    value = 0 if found is None else found.get("value")
    return value if isinstance(value, int) else 0


def _compute_usage(task: TaskSpec) -> dict[str, int]:
    """Return the requests and quota usage of one pod of a task, keyed by resource.

    As in Volcano, the request is 0 for a resource that has only a limit. The limit still counts as
    usage of a quota on `requests.…`, because the API server copies it to the pod's request.
    """
    template = template_spec(task)
    named = dict(template)
    for name in ("containers", "initContainers"):
        named[name] = [
            {**each, "resources": {"requests": subobject(each, "resources").get("requests")}}
            for each in records(named, name)
        ]
    spec, requests_only = (Fields({"spec": each}, POD_SCHEMA, "", []) for each in (template, named))
    counted = pod_request(spec.record("spec"), spec.record("status"))
    usage = pod_usage(spec.record("spec"), counted)
    requests = pod_request(requests_only.record("spec"), requests_only.record("status"))
    of_quotas = {name: amount for name, amount in usage.items() if name not in counted}
    return {**of_quotas, **dict.fromkeys(counted, 0), **requests}


def _format_topology(topology: NetworkTopology) -> dict[str, Any]:
    found: dict[str, Any] = {"mode": topology.mode.value}
    if topology.highest_tier is not None:
        found["highestTierAllowed"] = topology.highest_tier
    if topology.highest_tier_name:
        found["highestTierName"] = topology.highest_tier_name
    return found
