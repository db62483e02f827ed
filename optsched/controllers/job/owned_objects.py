"""The objects that a job's plugins create, and the PVCs of its volumes.

Source: Volcano, pkg/controllers/job/job_controller_actions.go (`createJobIOIfNotExist`). Unlike in
Volcano, PVC names are not random, so no PVC is created twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.json_fields import controller_of, owner_reference, subobject, uid_of
from optsched.api.kinds import JOB, PERSISTENT_VOLUME_CLAIM, SECRET
from optsched.api.meta import EventType
from optsched.controllers.effects import Again, Create, Emit, Patch
from optsched.controllers.job.object_names import claim_name
from optsched.controllers.job.plugins.base import is_of_job
from optsched.controllers.job.plugins.registry import plugins_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.api.job import Job
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect
    from optsched.controllers.job.plugins.base import Extra, KeyPair


def missing_claims(job: Job, world: World) -> list[str]:
    """Return the names of the PVCs that a job's volumes name but that do not exist."""
    names = (volume.claim_name for volume in job.spec.volumes if volume.claim_name)
    namespace = job.meta.namespace
    return [n for n in names if world.get(PERSISTENT_VOLUME_CLAIM, namespace, n) is None]


def claims_of(job: Job) -> list[str]:
    """Return the PVC name of each volume, in order; empty for an emptyDir volume."""
    return [
        volume.claim_name or (claim_name(job, position) if volume.claim is not None else "")
        for position, volume in enumerate(job.spec.volumes)
    ]


def pod_volumes(job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of the job's pods, and the volume mounts of their containers.

    A PVC that two of the job's volumes name becomes one volume with two mounts.
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


LEFT_OVER_S: Final = 1.0
"""Seconds between checks whether an earlier job's object with the same name has terminated."""

TAKEN_S: Final = 10.0
"""Seconds between checks whether another owner's object still has the name of a job's object."""


def extra_effects(
    job: Job, manifest: Manifest, world: World, new_keys: Callable[[], KeyPair] | None
) -> Iterator[Effect]:
    """Create a job's missing plugin objects and PVCs, and correct plugin objects that differ.

    `new_keys` generates an SSH key pair; it is None if the controllers have no access to Secrets.
    """
    for plugin, flags in plugins_of(job):
        for extra in plugin.extras(job, flags):
            if extra.kind == SECRET and new_keys is None:
                name, meta = plugin.name, job.meta
                message = f"plugin {name} is disabled: controllers and webhook run with --no-{name}"
                about = (JOB, meta.namespace, meta.name, meta.uid)
                yield Emit(*about, EventType.WARNING, "PluginDisabled", message)
                continue
            yield from _sync_object(extra, job, manifest, world, new_keys)
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
    extra: Extra,
    job: Job,
    manifest: Manifest,
    world: World,
    new_keys: Callable[[], KeyPair] | None,
) -> Iterator[Effect]:
    labels = {wellknown.JOB_NAME: job.meta.name}
    where = (extra.kind, job.meta.namespace, extra.name)
    known, unfollowed_metadata = world.get(*where), world.unfollowed_metadata(*where)
    found = known or unfollowed_metadata
    if found is None:
        made = extra.manifest
        if extra.with_keys is not None and new_keys is not None:
            made = extra.with_keys(new_keys())
        body = {
            "apiVersion": extra.kind.api_version,
            "kind": extra.kind.kind,
            "metadata": {
                "name": extra.name,
                "namespace": job.meta.namespace,
                "labels": labels,
                "ownerReferences": [owner_reference(JOB, manifest)],
            },
            **made,
        }
        yield Create(extra.kind, body)
        return
    owner = controller_of(found)
    if owner is None or owner.get("uid") != job.meta.uid:
        yield from _report_foreign_object(extra, job, found)
        return
    # Only labelled objects are watched. An object that Volcano created lacks the label, so it is
    # added.
    changes: dict[str, Any] = {"metadata": {"labels": labels}, **extra.kept}
    if known is not None:
        changes = {}
        for name, fields in extra.kept.items():
            have = subobject(known, name)
            removed = [key for key in have if key not in fields and key not in _SECRETS]
            merged = {key: value for key, value in fields.items() if have.get(key) != value}
            if merged or removed:
                changes[name] = {**merged, **dict.fromkeys(removed)}
    if changes:
        yield Patch(*where, changes, uid_of(found))


def _report_foreign_object(extra: Extra, job: Job, found: Manifest) -> Iterator[Effect]:
    """Check again later; report the object unless an earlier job with the same name owns it."""
    if is_of_job(controller_of(found), job):
        yield Again(LEFT_OVER_S)
        return
    what = f"{extra.kind.kind} {job.meta.namespace}/{extra.name}"
    message = f"{what} was not created for this job: the job uses the object but does not change it"
    yield Emit(
        JOB,
        job.meta.namespace,
        job.meta.name,
        job.meta.uid,
        EventType.WARNING,
        "NameTaken",
        message,
        code=what,
    )
    yield Again(TAKEN_S)


_SECRETS: Final = frozenset({"id_rsa", "id_rsa.pub", "authorized_keys"})
"""Keys of a Secret whose values are generated only once."""
