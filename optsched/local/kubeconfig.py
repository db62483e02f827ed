"""kubeconfig files, with certificates embedded so that one file is enough."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from optsched.local.files import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.local.pki import Credential

CLUSTER = "optsched-local"


def kubeconfig(
    server: str, authority: bytes, *, user: str, credential: Credential
) -> dict[str, Any]:
    """The configuration with which `user` reaches `server`; `authority` is PEM."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CLUSTER,
                "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(credential.certificate),
                    "client-key-data": _base64(credential.key),
                },
            }
        ],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }


def write_kubeconfig(path: Path, content: dict[str, Any]) -> None:
    """Write it as JSON, which every reader of YAML reads."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
