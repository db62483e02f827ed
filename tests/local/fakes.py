"""Fake programs that print what a test needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SAYS = {
    "etcd": "etcd Version: 3.6.16",
    "kube-apiserver": "Kubernetes v1.36.3",
    "kube-controller-manager": "Kubernetes v1.36.3",
    "kube-scheduler": "Kubernetes v1.36.3",
    "kwok": "kwok version v0.8.0 go1.26.8 (linux/amd64)",
    "kubectl": "Client Version: v1.36.3",
}


def program(path: Path, script: str) -> Path:
    """Create an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def binaries(folder: Path, **instead: str) -> Path:
    """Create all six binaries.

    `instead` gives another output of a binary, or omits the binary if the output is empty.
    """
    for name, answer in SAYS.items():
        said = instead.get(name.replace("-", "_"), answer)
        if said:
            program(folder / name, f"echo '{said}'")
    return folder
