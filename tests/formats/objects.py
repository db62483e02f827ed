"""Short manifests for tests."""

from __future__ import annotations

from typing import Any


def meta(name: str, namespace: str = "ns", **more: Any) -> dict[str, Any]:
    """Metadata with a namespace; an empty one is left out."""
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def pod(
    name: str = "p",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A pod of ours that asks for one CPU; `more` goes into its metadata."""
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, **more),
        "spec": {"schedulerName": "volcano", **asked, **(spec or {})},
        "status": {"phase": "Pending", **(status or {})},
    }


def node(name: str = "n1", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A ready node of eight CPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, "", labels=labels or {}),
        "spec": spec,
        "status": {"allocatable": {"cpu": "8", "pods": "10"}},
    }


def group(name: str = "g", spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A PodGroup; `more` goes into its metadata."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": meta(name, **more),
        "spec": spec or {},
    }


def queue(name: str, **spec: Any) -> dict[str, Any]:
    """A queue."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": meta(name, ""),
        "spec": spec,
    }


def thing(
    api_version: str, kind: str, name: str, namespace: str = "", **more: Any
) -> dict[str, Any]:
    """An object of any kind."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": meta(name, namespace),
        **more,
    }
