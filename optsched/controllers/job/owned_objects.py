"""The objects that a job owns: its pods, the objects of its plugins, and the PVCs of its volumes.

Source: Volcano, pkg/controllers/job/job_controller_util.go (`createJobPod`) and
job_controller_actions.go (`createJobIOIfNotExist`). Unlike in Volcano, PVC names are not random, so
no PVC is created twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.job import NumaPolicy
from optsched.api.json_fields import (
    controller_of,
    is_owned_as,
    owner_reference,
    records,
    subobject,
    uid_of,
    without_record,
)
from optsched.api.kinds import JOB, PERSISTENT_VOLUME_CLAIM, POD, SECRET
from optsched.api.meta import EventType
from optsched.controllers.effects import Again, Create, Patch, event_about
from optsched.controllers.job.builtin_plugins import plugins_of
from optsched.controllers.job.object_names import claim_name, group_name, pod_name, template_spec
from optsched.controllers.job.plugin_interface import Draft, add_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect
    from optsched.controllers.job.plugin_interface import Flags, KeyPair, Plugin, PluginObject

LEFT_OVER_S: Final = 1.0
"""Seconds between attempts to create an object while an earlier job's object has its name."""

TAKEN_S: Final = 10.0
"""Seconds between attempts to create an object while another owner's object has its name."""

_SECRETS: Final = frozenset({"id_rsa", "id_rsa.pub", "authorized_keys"})
"""Keys of a Secret whose values are generated only once."""
_PASSED_ON_LABELS: Final = (wellknown.PREEMPTABLE, wellknown.COOLDOWN_TIME)
_PASSED_ON: Final = (*_PASSED_ON_LABELS, wellknown.REVOCABLE_ZONE)
_CONTAINER_LISTS: Final = ("env", "volumeMounts", "ports")
_BUDGETS: Final = (wellknown.MIN_AVAILABLE, wellknown.MAX_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class PodBuilder:
    """Builds the manifests of one job's pods from the data that all of the job's pods share.

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
        draft = _build_draft(job, task, index, name, self.memo)
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
            plugin.change_pod(draft, flags)
        containers = {"containers": draft.containers, "initContainers": draft.init_containers}
        for key, found in containers.items():
            if found or key == "containers":
                draft.spec[key] = [
                    {k: v for k, v in each.items() if v or k not in _CONTAINER_LISTS}
                    for each in found
                ]
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
            "spec": draft.spec,
        }


def pod_maker(job: Job, manifest: Manifest, *, is_forwarded: bool = False) -> PodBuilder:
    """Return the builder for a job's pods; `manifest` is the job as decoded JSON."""
    owner = owner_reference(JOB, manifest)
    return PodBuilder(job, owner, plugins_of(job), pod_volumes(job), is_forwarded)


def _set_identity(draft: Draft) -> None:
    job, task = draft.job, draft.task
    identity = {
        wellknown.JOB_NAME: job.meta.name,
        wellknown.TASK_SPEC: task.name,
        wellknown.TASK_INDEX: str(draft.index),
        wellknown.POD_QUEUE_NAME: job.spec.queue,
    }
    draft.labels.update(identity)
    draft.labels[wellknown.JOB_NAMESPACE] = job.meta.namespace
    draft.annotations.update(identity)
    draft.annotations[wellknown.GROUP_NAME_ANNOTATIONS[0]] = group_name(job)
    draft.annotations[wellknown.JOB_VERSION] = str(job.status.restarts.version)
    draft.annotations[wellknown.JOB_RETRY_COUNT] = str(job.status.restarts.retries)
    draft.annotations[wellknown.TEMPLATE_UID] = f"{job.meta.name}-{task.name}"
    if task.topology_policy is not NumaPolicy.NONE:
        draft.annotations[wellknown.NUMA_TOPOLOGY_POLICY] = task.topology_policy.value
    if task.partition is not None:
        draft.labels[wellknown.PARTITION_ID] = str(draft.index // task.partition.size)


def _build_draft(job: Job, task: TaskSpec, index: int, name: str, memo: dict[str, Any]) -> Draft:
    meta, spec = subobject(task.template, "metadata"), dict(template_spec(task))
    # Plugins append to the lists in `_CONTAINER_LISTS`, so each container gets its own copies.
    containers, init_containers = (
        [
            {**each, **{name: records(each, name) for name in _CONTAINER_LISTS}}
            for each in records(spec, list_name)
        ]
        for list_name in ("containers", "initContainers")
    )
    return Draft(
        job=job,
        task=task,
        index=index,
        name=name,
        labels=dict(subobject(meta, "labels")),
        annotations=without_record(subobject(meta, "annotations")),
        spec=spec,
        containers=containers,
        init_containers=init_containers,
        memo=memo,
    )


def missing_claims(job: Job, world: World) -> list[str]:
    """Return the names of the missing PVCs to which a job's volumes refer."""
    names = (volume.claim_name for volume in job.spec.volumes if volume.claim_name)
    namespace = job.meta.namespace
    return [n for n in names if world.get(PERSISTENT_VOLUME_CLAIM, namespace, n) is None]


def claims_of(job: Job) -> list[str]:
    """Return the PVC name of each volume of a job; an empty string for an emptyDir volume."""
    return [
        volume.claim_name or (claim_name(job, position) if volume.claim is not None else "")
        for position, volume in enumerate(job.spec.volumes)
    ]


def pod_volumes(job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of the job's pods, and the volume mounts of their containers.

    If two of the job's volumes use the same PVC, the pod gets one volume with two mounts.
    """
    volumes: dict[str, dict[str, Any]] = {}
    mounts = []
    for position, claim in enumerate(claims_of(job)):
        name = f"job-volume-{position}"
        source: dict[str, Any] = (
            {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        )
        volume = volumes.setdefault(claim or name, {"name": name, **source})
        path = job.spec.volumes[position].mount_path
        mounts.append({"name": volume["name"], "mountPath": path})
    return list(volumes.values()), mounts


def sync_owned_objects(
    job: Job, manifest: Manifest, world: World, new_keys: Callable[[], KeyPair] | None
) -> Iterator[Effect]:
    """Create a job's missing plugin objects and PVCs, and correct plugin objects that differ.

    `new_keys` generates an SSH key pair; it is None if the controllers have no access to Secrets.
    """
    for plugin, flags in plugins_of(job):
        for wanted in plugin.list_objects(job, flags):
            if wanted.kind == SECRET and new_keys is None:
                name = plugin.name
                message = f"plugin {name} is disabled: controllers and webhook run with --no-{name}"
                yield event_about(JOB, manifest, EventType.WARNING, "PluginDisabled", message)
                continue
            yield from _sync_object(wanted, job, manifest, world, new_keys)
    for position, volume in enumerate(job.spec.volumes):
        if volume.claim is None or volume.claim_name:
            continue
        name, namespace = claim_name(job, position), job.meta.namespace
        if world.get(PERSISTENT_VOLUME_CLAIM, namespace, name) is None:
            claim = {
                "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
                "kind": PERSISTENT_VOLUME_CLAIM.kind,
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "ownerReferences": [owner_reference(JOB, manifest)],
                },
                "spec": dict(volume.claim),
            }
            yield Create(PERSISTENT_VOLUME_CLAIM, claim)


def controlled(job: Job) -> dict[str, str]:
    """Return the field `status.controlledResources`, which lists a job's plugins and PVCs."""
    plugins = {f"plugin-{plugin.name}": plugin.name for plugin, _ in plugins_of(job)}
    return {**plugins, **{f"volume-pvc-{name}": name for name in claims_of(job) if name}}


def _sync_object(
    wanted: PluginObject,
    job: Job,
    manifest: Manifest,
    world: World,
    new_keys: Callable[[], KeyPair] | None,
) -> Iterator[Effect]:
    labels = {wellknown.JOB_NAME: job.meta.name}
    where = (wanted.kind, job.meta.namespace, wanted.name)
    watched, unfollowed_metadata = world.get(*where), world.unfollowed_metadata(*where)
    found = watched or unfollowed_metadata
    if found is None:
        fields_to_create = wanted.manifest
        if wanted.with_keys is not None and new_keys is not None:
            fields_to_create = wanted.with_keys(new_keys())
        body = {
            "apiVersion": wanted.kind.api_version,
            "kind": wanted.kind.kind,
            "metadata": {
                "name": wanted.name,
                "namespace": job.meta.namespace,
                "labels": labels,
                "ownerReferences": [owner_reference(JOB, manifest)],
            },
            **fields_to_create,
        }
        yield Create(wanted.kind, body)
        return
    owner = controller_of(found)
    if owner is None or owner.get("uid") != job.meta.uid:
        if owner and is_owned_as(owner, JOB) and owner.get("name") == job.meta.name:
            yield Again(LEFT_OVER_S)
            return
        title = f"{wanted.kind.kind} {job.meta.namespace}/{wanted.name}"
        message = (
            f"{title} was not created for this job: the job uses the object but does not change it"
        )
        yield event_about(JOB, manifest, EventType.WARNING, "NameTaken", message, code=title)
        yield Again(TAKEN_S)
        return
    # Only objects with a job label are watched. An object that Volcano created lacks the label, so
    # the label is added.
    changes: dict[str, Any] = {"metadata": {"labels": labels}, **wanted.kept}
    if watched is not None:
        changes = {}
        for name, fields in wanted.kept.items():
            have = subobject(watched, name)
            removed = [key for key in have if key not in fields and key not in _SECRETS]
            merged = {key: value for key, value in fields.items() if have.get(key) != value}
            if merged or removed:
                changes[name] = {**merged, **dict.fromkeys(removed)}
    if changes:
        yield Patch(*where, changes, uid_of(found))
