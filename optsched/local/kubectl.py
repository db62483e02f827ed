"""kubectl, bound to one cluster, and the manifests of nodes that KWOK keeps alive."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.local.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class KubectlError(Exception):
    """kubectl refused; the message holds the command and its output."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls kubectl with one kubeconfig, regardless of the caller's own environment."""

    binary: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        """Run it and return its output; `input` is for `-f -`. Raises KubectlError."""
        # The discovery cache is keyed by address, which another plane may have had before.
        cache = self.kubeconfig.with_name("kubectl-cache")
        common = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}")
        result = run([self.binary, *common, *arguments], input=input)
        if result.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def json(self, *arguments: str, input: str | None = None) -> dict[str, Any]:
        """Run it with `-o json` and return the object it printed."""
        content: dict[str, Any] = json.loads(self(*arguments, "-o", "json", input=input))
        return content

    def apply(self, manifest: object) -> None:
        """Create or change what one manifest, or a List of them, says."""
        self("apply", "-f", "-", input=json.dumps(manifest))


def install_crds(kubectl: Kubectl, folder: Path) -> tuple[str, ...]:
    """Apply every CRD of a folder and wait until they are served; returns their names.

    Server-side, because a large schema does not fit into the annotation of a client-side apply.
    """
    if not any(folder.glob("*.yaml")):
        return ()
    applied = kubectl("apply", "--server-side", "-f", str(folder), "-o", "name").split()
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *applied)
    return tuple(name.partition("/")[2] for name in applied)


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
