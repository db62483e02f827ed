from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from optsched.local.kubectl import Kubectl, KubectlError, install_crds
from tests.local.fakes import program

if TYPE_CHECKING:
    from pathlib import Path


def kubectl(tmp_path: Path, script: str) -> Kubectl:
    return Kubectl(program(tmp_path / "kubectl", script), tmp_path / "kubeconfig" / "admin")


def test_it_speaks_to_its_own_cluster_only(tmp_path: Path) -> None:
    folder = tmp_path / "kubeconfig"
    assert kubectl(tmp_path, 'echo "$@"')("get", "pods").split() == [
        f"--kubeconfig={folder / 'admin'}",
        f"--cache-dir={folder / 'kubectl-cache'}",
        "get",
        "pods",
    ]


def test_objects_come_parsed(tmp_path: Path) -> None:
    script = """case "$*" in *"-o json") echo '{"items": []}' ;; esac"""
    assert kubectl(tmp_path, script).json("get", "pods") == {"items": []}


def test_manifests_go_in_as_json(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    kubectl(tmp_path, f"cat > {seen}").apply({"kind": "List"})
    assert json.loads(seen.read_text()) == {"kind": "List"}


def test_an_error_says_what_was_asked_and_answered(tmp_path: Path) -> None:
    with pytest.raises(KubectlError, match=r"^kubectl get pods: forbidden$"):
        kubectl(tmp_path, "echo forbidden >&2; exit 1")("get", "pods")


def test_no_definitions_are_no_call(tmp_path: Path) -> None:
    assert install_crds(kubectl(tmp_path, "exit 1"), tmp_path) == ()
