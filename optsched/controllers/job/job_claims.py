"""The volumes of a job: claims that are made for it, and where its containers see them.

Source: Volcano, pkg/controllers/job/job_controller_actions.go (`createJobIOIfNotExist`). One
difference: names of claims follow from the job instead of chance, so that none is made twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.api.kinds import JOB, PERSISTENT_VOLUME_CLAIM
from optsched.controllers.job.object_names import claim_name
from optsched.controllers.json_fields import owner_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.api.job import Job
    from optsched.controllers.effects import Manifest
    from optsched.controllers.world import World


def desired_claims(job: Job, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The claims that are made for a job."""
    for position, volume in enumerate(job.spec.volumes):
        if volume.claim is not None and not volume.claim_name:
            yield {
                "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
                "kind": PERSISTENT_VOLUME_CLAIM.kind,
                "metadata": {
                    "name": claim_name(job, position),
                    "namespace": job.meta.namespace,
                    "ownerReferences": [owner_reference(JOB, manifest)],
                },
                "spec": dict(volume.claim),
            }


def missing_claims(job: Job, world: World) -> list[str]:
    """Claims that the job names and that are not there."""
    names = (volume.claim_name for volume in job.spec.volumes if volume.claim_name)
    namespace = job.meta.namespace
    return [n for n in names if world.get(PERSISTENT_VOLUME_CLAIM, namespace, n) is None]


def claims_of(job: Job) -> list[str]:
    """The claim of each volume, in order; empty for a volume that lives with its pod."""
    return [
        volume.claim_name or (claim_name(job, position) if volume.claim is not None else "")
        for position, volume in enumerate(job.spec.volumes)
    ]


def pod_volumes(job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes that pods of a job have, and the mounts that their containers have.

    A claim that is named twice is one volume with two mounts.
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
