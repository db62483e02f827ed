from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING

import yaml

from optsched.local.plane import Credential, kubeconfig, write_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = kubeconfig(
    "https://127.0.0.1:6443", b"the CA", user="system:x", credential=Credential(b"cert", b"key")
)


def test_everything_is_embedded() -> None:
    cluster = CONTENT["clusters"][0]["cluster"]
    user = CONTENT["users"][0]["user"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"the CA"
    assert base64.b64decode(user["client-certificate-data"]) == b"cert"
    assert base64.b64decode(user["client-key-data"]) == b"key"


def test_the_current_context_leads_to_cluster_and_user() -> None:
    context = next(c for c in CONTENT["contexts"] if c["name"] == CONTENT["current-context"])
    assert context["context"]["cluster"] == CONTENT["clusters"][0]["name"]
    assert context["context"]["user"] == CONTENT["users"][0]["name"] == "system:x"


def test_the_file_is_private_and_reads_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, CONTENT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.load(path.read_text(), Loader=yaml.SafeLoader) == CONTENT
    assert json.loads(path.read_text()) == CONTENT
