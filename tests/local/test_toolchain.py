from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import (
    Go,
    ToolchainError,
    architecture,
    ensure_recent_go,
    find_go_toolchain,
    go_environment,
)
from tests.local.fakes import program

if TYPE_CHECKING:
    from pathlib import Path


def go(folder: Path, version: str, *, download: str = "exit 1") -> Go:
    script = f"""
case "$1" in
  version) echo "go version {version} linux/amd64" ;;
  mod) echo "$@" >> {folder}/calls; {download} ;;
esac
"""
    program(folder / "go", script)
    found = find_go_toolchain({"PATH": str(folder)})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("go1.26.8", (1, 26, 8)),
        ("go1.19.8", (1, 19, 8)),
        ("go1.27", (1, 27)),
        ("go1.26rc1", (1, 26)),
    ],
)
def test_versions_are_numbers(tmp_path: Path, said: str, version: tuple[int, ...]) -> None:
    assert go(tmp_path, said).version == version


def test_there_is_no_go(tmp_path: Path) -> None:
    assert find_go_toolchain({"PATH": str(tmp_path)}) is None
    assert find_go_toolchain({}) is None


def test_a_go_that_does_not_run_is_none(tmp_path: Path) -> None:
    program(tmp_path / "go", "echo broken >&2; exit 1")
    assert find_go_toolchain({"PATH": str(tmp_path)}) is None


def test_a_recent_go_is_used_as_it_is(tmp_path: Path) -> None:
    found = go(tmp_path, "go1.26.0")
    assert ensure_recent_go(found, {}, pytest.fail) == tmp_path / "go"


def test_an_older_go_fetches_a_recent_one(tmp_path: Path) -> None:
    fetched = tmp_path / "module"
    for name in ("bin/go", "bin/gofmt", "pkg/tool/linux_amd64/compile", "src/fmt/print.go"):
        (fetched / name).parent.mkdir(parents=True, exist_ok=True)
        (fetched / name).touch(mode=0o444)
    found = go(tmp_path, "go1.19.8", download=f"""echo '{{"Dir": "{fetched}"}}'""")
    messages: list[str] = []

    assert ensure_recent_go(found, {}, messages.append) == fetched / "bin/go"
    assert messages == ["Go 1.19.8 is too old: fetching go1.26.0 as a Go module"]
    module = f"golang.org/toolchain@v0.0.1-go1.26.0.linux-{architecture()}"
    assert (tmp_path / "calls").read_text() == f"mod download -json {module}\n"
    runnable = {file.name for file in fetched.rglob("*") if file.stat().st_mode & 0o111}
    assert {"go", "gofmt", "compile"} <= runnable
    assert "print.go" not in runnable


def test_why_none_could_be_fetched_is_said(tmp_path: Path) -> None:
    no_proxy = """echo '{"Error": "module lookup disabled by GOPROXY=off"}'; exit 1"""
    found = go(tmp_path, "go1.24.4", download=no_proxy)
    with pytest.raises(ToolchainError, match=r"Go 1\.24\.4\) could not fetch .*GOPROXY=off"):
        ensure_recent_go(found, {}, lambda _: None)


def test_nothing_of_the_callers_go_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    caller = {"GOTOOLCHAIN": "go1.22.1", "GOROOT": "/old", "GOARCH": "386", "GOPROXY": "off"}
    environment = go_environment(caller)
    assert environment["GOTOOLCHAIN"] == "local"
    assert environment["GOARCH"] == "arm64"
    assert environment["GOPROXY"] == "off"
    assert "GOROOT" not in environment


def test_an_odd_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ToolchainError, match=r"'riscv64'.* x86_64 and aarch64"):
        architecture()
