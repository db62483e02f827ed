"""The control plane's certificates, and kubeconfig files that contain certificates.

Keys are EC P-256. Certificates are valid for ten years, longer than any control plane is kept.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import PrivateFormat

from optsched.formats.files.x509 import Authority, Credential, generate_key, key_pem
from optsched.local.files import write_private

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


CLUSTER = "optsched-local"
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "::1",
    "10.0.0.1",
)


def write_credential(credential: Credential, stem: Path) -> None:
    """Write `stem`.crt and `stem`.key; only the owner may read the files."""
    write_private(stem.with_suffix(".crt"), credential.certificate)
    write_private(stem.with_suffix(".key"), credential.key)


def read_authority(folder: Path) -> Authority:
    """Load a control plane's certificate authority from its certificate folder."""
    paths = (folder / "ca.crt", folder / "ca.key")
    return Authority.load(Credential(*(path.read_bytes() for path in paths)))


def ensure_pki(folder: Path, *, now: datetime) -> Authority:
    """Return the certificate authority; create it and all keys if the folder is missing.

    The folder is created atomically and then kept, because issued kubeconfigs must stay valid.
    """
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.create(CLUSTER, now=now)
        write_credential(authority.credential, draft / "ca")
        server = authority.issue_server(SERVER_NAMES, now=now)
        write_credential(server, draft / "server")
        # The API server cannot read the service account public key from a PKCS #8 file.
        key = key_pem(generate_key(), PrivateFormat.TraditionalOpenSSL)
        write_private(draft / "service-account.key", key)
        draft.rename(folder)
    return read_authority(folder)


def kubeconfig(
    server: str, authority: bytes, *, user: str, credential: Credential
) -> dict[str, Any]:
    """Return a kubeconfig for `user` at `server`; `authority` is the CA certificate in PEM."""
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
    """Write a kubeconfig as JSON, which every YAML parser accepts."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
