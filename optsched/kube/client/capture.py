"""Capture a live cluster as the manifests of a snapshot.

Each kind that a scheduler reads is listed once. Other kinds, such as Secrets and ConfigMaps, are
not read. Long fields and possible passwords are dropped if no scheduler reads the field. The
dropped fields are managed fields, last-applied manifests, and commands and environments of
containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.kinds import POD
from optsched.formats.codec.snapshot_annotations import without_snapshot_annotations
from optsched.formats.snapshots.cluster_objects import OPTIONAL_KINDS, READ_KINDS
from optsched.formats.snapshots.writer import time_manifest
from optsched.kube.client.errors import NotFound
from optsched.kube.client.queries import list_objects

if TYPE_CHECKING:
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw

_METADATA: Final = frozenset({"managedFields", "resourceVersion", "generation", "selfLink"})
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_CONTAINER: Final = frozenset({"name", "image", "resources", "ports", "restartPolicy"})
"""The kept fields of a container; its command, arguments and environment are dropped."""


async def capture(source: Client, now_ms: int) -> list[Raw]:
    """Return the objects of a cluster as input of `optsched solve`; raises `KubeError`.

    The first returned object records `now_ms`, the time of the capture in milliseconds since 1970.
    """
    found: list[Raw] = [time_manifest(now_ms)]
    for kind in READ_KINDS:
        try:
            objects = await list_objects(source, kind)
        except NotFound:
            if kind not in OPTIONAL_KINDS:
                raise
            continue
        for obj in objects:
            # Only users can write the annotations of snapshot files in a live cluster.
            kept = without_snapshot_annotations(obj)
            meta = {key: value for key, value in kept["metadata"].items() if key not in _METADATA}
            annotations = {**(meta.pop("annotations", None) or {})}
            annotations.pop(_APPLIED, None)
            if annotations:
                meta["annotations"] = annotations
            # Items of lists lack their kind.
            stripped = {"apiVersion": kind.api_version, "kind": kind.kind, **kept, "metadata": meta}
            if kind == POD:
                spec = kept.get("spec") or {}
                containers = {
                    field: [
                        {key: each[key] for key in each if key in _CONTAINER}
                        for each in spec[field]
                    ]
                    for field in _CONTAINERS
                    if spec.get(field)
                }
                stripped["spec"] = {**spec, **containers}
            found.append(stripped)
    return found
