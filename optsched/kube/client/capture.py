"""Capture a live cluster as snapshot manifests.

Each kind that a scheduler reads is listed once. Other kinds, such as Secrets and ConfigMaps, are
not read. Fields that no scheduler reads are dropped if they are long or may hold passwords. The
dropped fields are managed fields, last-applied manifests, and the commands and environments of
containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.kinds import POD
from optsched.formats.codec.annotations import without_snapshot_annotations
from optsched.formats.snapshots.assembly import OPTIONAL_KINDS, READ_KINDS
from optsched.formats.snapshots.writer import time_manifest
from optsched.kube.client.client import list_objects
from optsched.kube.client.errors import NotFound

if TYPE_CHECKING:
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw

_METADATA: Final = frozenset({"managedFields", "resourceVersion", "generation", "selfLink"})
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_CONTAINER: Final = frozenset({"name", "image", "resources", "ports", "restartPolicy"})
"""Container fields to keep; the command, arguments and environment are dropped."""


async def capture(source: Client, now_ms: int) -> list[Raw]:
    """Return the objects of a cluster as input for `optsched solve`; raises `KubeError`.

    The first returned object records the capture time `now_ms`, in milliseconds since the Unix
    epoch.
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
            # Snapshot annotations belong only in snapshot files; in a live cluster, a user has set
            # them.
            kept = without_snapshot_annotations(obj)
            meta = {key: value for key, value in kept["metadata"].items() if key not in _METADATA}
            annotations = {**(meta.pop("annotations", None) or {})}
            annotations.pop(_APPLIED, None)
            if annotations:
                meta["annotations"] = annotations
            # The objects in a list response lack the fields `apiVersion` and `kind`.
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
