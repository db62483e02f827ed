from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import (
    BINARIES,
    AssetsError,
    Binary,
    cache_path,
    find_binaries,
    require,
    shipped,
)
from tests.local.fakes import SAYS, binaries, program

if TYPE_CHECKING:
    from pathlib import Path

NAMES = set(SAYS)

# This `go` does not compile, but writes its arguments to a file.
GO = """
case "$1" in
  version) echo "go version go1.26.8 linux/amd64" ;;
  build)
    echo "go: downloading example.org/module v1.0.0" >&2
    echo "example.org/module" >&2
    while [ "$1" != -o ]; do shift; done
    printf '%s %s' "$3" "$PWD" > "$2" ;;
esac
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment without Go and binaries, and with an empty cache."""
    return {"PATH": str(tmp_path / "path"), "OPTSCHED_CACHE": str(tmp_path / "cache")}


def binary(name: str) -> Binary:
    return next(binary for binary in BINARIES if binary.name == name)


def test_kubebuilder_assets_come_first(tmp_path: Path, env: dict[str, str]) -> None:
    env["KUBEBUILDER_ASSETS"] = str(binaries(tmp_path / "assets"))
    binaries(tmp_path / "path")
    assert {path.parent.name for path in require(pytest.fail, env).paths.values()} == {"assets"}


def test_each_binary_is_looked_up_on_its_own(tmp_path: Path, env: dict[str, str]) -> None:
    """envtest ships only etcd, kube-apiserver and kubectl."""
    partial = binaries(tmp_path / "assets", kube_controller_manager="", kube_scheduler="", kwok="")
    env["KUBEBUILDER_ASSETS"] = str(partial)
    binaries(tmp_path / "path", kwok="")
    kept = cache_path(binary("kwok"), env)
    program(kept, "exit 1")
    where = {name: path.parent.name for name, path in require(pytest.fail, env).paths.items()}
    assert where == {
        "etcd": "assets",
        "kube-apiserver": "assets",
        "kubectl": "assets",
        "kube-controller-manager": "path",
        "kube-scheduler": "path",
        "kwok": kept.parent.name,
    }


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("kube_apiserver", "Kubernetes v1.32.4"),
        ("kube_apiserver", "Kubernetes v1.360.0"),
        ("etcd", "etcd Version: 3.4.30"),
        ("kwok", "kwok version v0.7.0 go1.24.0 (linux/amd64)"),
        ("kubectl", "Client Version: v1.32.4-dispatcher"),
    ],
)
def test_other_versions_are_passed_over(
    tmp_path: Path, env: dict[str, str], name: str, answer: str
) -> None:
    binaries(tmp_path / "path", **{name: answer})
    paths, rejected = find_binaries(env)
    plain = name.replace("_", "-")
    assert set(paths) == NAMES - {plain}
    assert rejected == (f"{tmp_path / 'path' / plain} ({answer})",)


def test_an_older_etcd_serves(tmp_path: Path, env: dict[str, str]) -> None:
    binaries(tmp_path / "path", etcd="etcd Version: 3.5.21")
    assert set(require(pytest.fail, env).paths) == NAMES


def test_any_kubectl_will_do_when_nothing_else_is_missing(
    tmp_path: Path, env: dict[str, str]
) -> None:
    binaries(tmp_path / "path", kubectl="Client Version: v1.32.4")
    assert require(pytest.fail, env).paths["kubectl"] == tmp_path / "path" / "kubectl"


def test_our_kubectl_is_preferred_to_another_version(tmp_path: Path, env: dict[str, str]) -> None:
    binaries(tmp_path / "path", kubectl="Client Version: v1.32.4")
    kept = program(cache_path(binary("kubectl"), env), "exit 1")
    assert require(pytest.fail, env).paths["kubectl"] == kept


def test_without_go_the_error_says_what_would_help(tmp_path: Path, env: dict[str, str]) -> None:
    binaries(tmp_path / "path", kube_apiserver="Kubernetes v1.32.4", kwok="")
    with pytest.raises(AssetsError) as error:
        require(pytest.fail, env)
    message = str(error.value)
    assert "kube-apiserver, kwok cannot be found, and there is no Go to build them with" in message
    assert "kube-apiserver (Kubernetes v1.32.4)" in message
    assert re.findall(
        r"^  - (install Go|put .* on PATH|set KUBEBUILDER_ASSETS)", message, re.M
    ) == [
        "install Go",
        "put the binaries on PATH",
        "set KUBEBUILDER_ASSETS",
    ]


def test_only_what_is_missing_is_built_and_only_once(tmp_path: Path, env: dict[str, str]) -> None:
    binaries(tmp_path / "path", etcd="", kwok="")
    program(tmp_path / "path" / "go", GO)
    messages: list[str] = []
    paths = require(messages.append, env).paths
    assert messages == ["building etcd", "building kwok"]
    for name in ("etcd", "kwok"):
        assert paths[name] == cache_path(binary(name), env)
        module = shipped("local", binary(name).module)
        assert paths[name].read_text() == f"{binary(name).package} {module}"
        assert list(paths[name].parent.iterdir()) == [paths[name]]
    assert require(pytest.fail, env).paths == paths


def test_a_build_that_fails_shows_why_and_leaves_nothing(
    tmp_path: Path, env: dict[str, str]
) -> None:
    binaries(tmp_path / "path", kwok="")
    broken = """
case "$1" in
  version) echo "go version go1.26.8 linux/amd64" ;;
  build) echo "no space left on device" >&2; exit 1 ;;
esac
"""
    program(tmp_path / "path" / "go", broken)
    with pytest.raises(AssetsError, match=r"building kwok with .*go failed:\nno space left"):
        require(lambda _: None, env)
    assert list(cache_path(binary("kwok"), env).parent.iterdir()) == []


def test_a_long_build_gives_signs_of_life(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optsched.local.assets.SIGN_OF_LIFE_S", 0.01)
    binaries(tmp_path / "path", kwok="")
    gate = tmp_path / "gate"
    # The build continues once a reader opens the gate, which happens at the first message.
    program(tmp_path / "path" / "go", GO.replace("    while", f"    echo > {gate}\n    while"))
    messages: list[str] = []

    def report(message: str) -> None:
        messages.append(message)
        if "1 packages compiled" in message:
            gate.read_text()

    os.mkfifo(gate)
    require(report, env)
    assert "building kwok: 1 modules fetched, 1 packages compiled, 0 s" in messages


def test_the_table_of_binaries_is_what_the_modules_pin() -> None:
    for module in ("kubernetes", "etcd", "kwok"):
        go_mod = shipped("local", module, "go.mod").read_text()
        block = re.search(r"^tool (?:\(\n((?:\t\S+\n)+)\)|(\S+))$", go_mod, re.M)
        assert block is not None
        pinned = (block[1] or block[2]).split()
        assert pinned == [binary.package for binary in BINARIES if binary.module == module]


def test_the_cache_is_keyed_by_the_recipe(env: dict[str, str]) -> None:
    folders = {cache_path(binary, env).parent for binary in BINARIES}
    assert len(folders) == 3
    assert all(re.fullmatch(r"\w+-(amd64|arm64)-[0-9a-f]{12}", folder.name) for folder in folders)
