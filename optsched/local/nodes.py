"""Manifests of nodes that KWOK keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_PODS = 110


def node_manifest(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    gpu: int = 0,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A v1 Node of that capacity; quantities are written as Kubernetes writes them.

    `labels` come on top of the usual ones. Without GPUs the resource is absent, as it is on a
    real node without a device plugin.
    """
    capacity = {"cpu": cpu, "memory": memory, "pods": str(MAX_PODS)}
    if gpu:
        capacity["nvidia.com/gpu"] = str(gpu)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                **(labels or {}),
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"capacity": capacity, "allocatable": dict(capacity)},
    }


def manifest_list(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Many manifests as one object, for one call of `kubectl apply`."""
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
