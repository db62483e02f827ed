"""Call kubectl for one cluster, and build manifests for nodes that KWOK simulates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.local.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class KubectlError(Exception):
    """Raised if kubectl fails; the message contains the command and its error output."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A callable that runs kubectl with one kubeconfig and ignores the KUBECONFIG variable."""

    binary: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl with `input` as standard input; return its output or raise KubectlError."""
        # kubectl's discovery cache is keyed by the server's address, which another control plane
        # may have used before. Each control plane therefore has a separate cache.
        cache = self.kubeconfig.with_name("kubectl-cache")
        common = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}")
        result = run([self.binary, *common, *arguments], input=input)
        if result.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run kubectl with `-o json` and return the parsed output."""
        content: dict[str, Any] = json.loads(self(*arguments, "-o", "json"))
        return content

    def apply(self, manifest: object) -> None:
        """Create or update the object that a manifest defines, or each object in a List."""
        self("apply", "-f", "-", input=json.dumps(manifest))


def install_crds(kubectl: Kubectl, folder: Path) -> tuple[str, ...]:
    """Apply every CRD in a folder, wait until all are established, and return their names.

    Client-side apply would fail, because a large schema exceeds the size limit of the last-applied
    annotation.
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
    """Return a v1 Node manifest with the given capacity; quantities are in Kubernetes notation.

    `labels` extend and override the default labels. If `gpu` is 0, the node lacks the GPU
    resource, like a real node without a device plugin.
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
    """Return a List of manifests, for a single `kubectl apply`."""
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
