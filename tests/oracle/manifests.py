"""Build Kubernetes manifests of small clusters as plain dicts, which `optsched solve` reads."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"
NAMESPACE = "ml"
EPOCH = datetime(2026, 11, 21, 9, 10, tzinfo=UTC)


def timestamp(seconds: float) -> str:
    """Return the RFC 3339 time that is `seconds` after the epoch of all clusters."""
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Cluster:
    """The objects of a cluster, in order of creation.

    Attributes
    ----------
    now_s
        The time of the snapshot, in seconds after the epoch.

    """

    objects: list[Manifest] = field(default_factory=list)
    now_s: float = 600.0

    def of_kind(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind."""
        return [o for o in self.objects if o["kind"] == kind]

    def copy(self) -> Cluster:
        """Return a deep copy."""
        return Cluster(deepcopy(self.objects), self.now_s)

    def document(self) -> Manifest:
        """Return one List with a Snapshot and all objects."""
        return {"apiVersion": "v1", "kind": "List", "items": [self._clock(), *self.objects]}

    def _clock(self) -> Manifest:
        return {
            "apiVersion": "optsched.io/v1alpha1",
            "kind": "Snapshot",
            "metadata": {"name": "snapshot"},
            "takenAt": timestamp(self.now_s),
        }

    def write(self, path: Path) -> None:
        """Write an instance for `optsched solve`."""
        path.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")

    # --- creation --------------------------------------------------------------------------------

    def add(self, api: str, kind: str, name: str, **parts: Any) -> Manifest:
        """Add an object, and merge `metadata` from the parts."""
        metadata = {"name": name, "creationTimestamp": timestamp(0), **parts.pop("metadata", {})}
        made = {"apiVersion": api, "kind": kind, "metadata": metadata, **parts}
        self.objects.append(made)
        return made

    def node(
        self, name: str, offer: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any
    ) -> Manifest:
        """Add a ready node."""
        all_labels = {"kubernetes.io/hostname": name, **(labels or {})}
        allocatable = {"pods": "110", **{r: str(a) for r, a in offer.items() if a}}
        status = {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        return self.add(
            "v1", "Node", name, metadata={"labels": all_labels}, spec=spec, status=status
        )

    def queue(self, name: str, **spec: Any) -> Manifest:
        """Add an open queue."""
        return self.add("scheduling.volcano.sh/v1beta1", "Queue", name, spec=spec)

    def priority_class(self, name: str, value: int) -> Manifest:
        """Add a PriorityClass."""
        return self.add("scheduling.k8s.io/v1", "PriorityClass", name, value=value)

    def gang(
        self, name: str, queue: str, minimum: int, priority: tuple[str, int], **spec: Any
    ) -> Manifest:
        """Add a PodGroup in phase Inqueue, without pods."""
        created = spec.pop("created", 0)
        given: Manifest = {"minMember": minimum, "queue": queue, **spec}
        if priority[0]:
            given["priorityClassName"] = priority[0]
        return self.add(
            "scheduling.volcano.sh/v1beta1",
            "PodGroup",
            name,
            metadata={"namespace": NAMESPACE, "creationTimestamp": timestamp(created)},
            spec=given,
            status={"phase": "Inqueue"},
        )

    def pod(
        self,
        gang: Manifest | None,
        name: str,
        request: dict[str, Any],
        node: str = "",
        **given: Any,
    ) -> Manifest:
        """Add a pod of a gang, or of another scheduler if `gang` is None.

        The pod runs if `node` is given.
        """
        metadata: Manifest = {"namespace": NAMESPACE, "annotations": dict(given.pop("notes", {}))}
        metadata["labels"] = dict(given.pop("labels", {}))
        metadata["creationTimestamp"] = timestamp(given.pop("created", 0))
        spec: Manifest = {"schedulerName": "volcano" if gang else "default-scheduler"}
        if gang is not None:
            metadata["annotations"]["scheduling.k8s.io/group-name"] = gang["metadata"]["name"]
            if "priorityClassName" in gang["spec"]:
                spec["priorityClassName"] = gang["spec"]["priorityClassName"]
        ports = given.pop("ports", ())
        container: Manifest = {
            "name": "main",
            "resources": {"requests": {r: str(a) for r, a in request.items() if a}},
        }
        if ports:
            container["ports"] = [{"containerPort": p, "hostPort": p} for p in ports]
        spec["containers"] = [container]
        spec |= given
        status: Manifest = {"phase": "Pending"}
        if node:
            spec["nodeName"] = node
            status = {"phase": "Running", "startTime": timestamp(0)}
        return self.add("v1", "Pod", name, metadata=metadata, spec=spec, status=status)


def key_of(made: Manifest) -> str:
    """Return `namespace/name`, the form of task and gang names in plans."""
    return f"{made['metadata'].get('namespace', 'default')}/{made['metadata']['name']}"


def gang_of(pod: Manifest) -> str:
    """Return the name of the pod's PodGroup, or an empty text without a PodGroup."""
    return pod["metadata"].get("annotations", {}).get("scheduling.k8s.io/group-name", "")
