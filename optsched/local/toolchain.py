"""Go: the one on PATH if it is recent enough, else a recent one fetched with its help."""

from __future__ import annotations

import json
import platform
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.local.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.local.files import Progress

GO_MINIMUM = (1, 26)
GO_FETCHED = "go1.26.0"
ARCHITECTURE_OF = {"x86_64": "amd64", "aarch64": "arm64"}


class ToolchainError(Exception):
    """Go exists but cannot build here: an odd machine, no network, no space."""


@dataclass(frozen=True, slots=True)
class Go:
    """A go command and its version."""

    binary: Path
    version: tuple[int, ...]


def architecture() -> str:
    """The machine in Go's words, which are also Kubernetes': amd64 or arm64."""
    machine = platform.machine()
    if machine not in ARCHITECTURE_OF:
        raise ToolchainError(f"machine {machine!r}: the control plane runs on x86_64 and aarch64")
    return ARCHITECTURE_OF[machine]


def go_environment(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which any go command does what its command line says and nothing else.

    GOTOOLCHAIN and GOWORK would have go replace itself or look outside the module; GOROOT would
    give a fetched go the library of another.
    """
    kept = {name: value for name, value in env.items() if name != "GOROOT"}
    fixed = {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOOS": "linux", "CGO_ENABLED": "0"}
    return {**kept, **fixed, "GOARCH": architecture()}


def find_go_toolchain(env: Mapping[str, str]) -> Go | None:
    """The go on PATH, if it runs."""
    binary = shutil.which("go", path=env.get("PATH", ""))
    if binary is None:
        return None
    result = run([binary, "version"], env=go_environment(env))
    version = re.match(r"go version go(\d+(?:\.\d+)*)", result.stdout)
    if version is None:
        return None
    return Go(Path(binary), tuple(int(part) for part in version[1].split(".")))


def ensure_recent_go(go: Go, env: Mapping[str, str], on_progress: Progress) -> Path:
    """A go command of at least GO_MINIMUM: this one, or one that it downloads as a module.

    Every release of Go is also the module golang.org/toolchain, checked against the same
    checksum database as any other (https://go.dev/doc/toolchain).
    """
    if go.version >= GO_MINIMUM:
        return go.binary
    present = ".".join(map(str, go.version))
    on_progress(f"Go {present} is too old: fetching {GO_FETCHED} as a Go module")
    module = f"golang.org/toolchain@v0.0.1-{GO_FETCHED}.linux-{architecture()}"
    result = run([go.binary, "mod", "download", "-json", module], env=go_environment(env))
    answer = json.loads(result.stdout or "{}")
    if "Dir" not in answer:
        reason = answer.get("Error") or result.stderr.strip()
        raise ToolchainError(f"{go.binary} (Go {present}) could not fetch {module}: {reason}")
    return _executable(Path(answer["Dir"]))


def _executable(toolchain: Path) -> Path:
    # Zipped modules carry no permissions, so that nothing in them can be run.
    commands = [*toolchain.glob("bin/*"), *toolchain.glob("pkg/tool/*/*")]
    for command in commands:
        command.chmod(command.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return toolchain / "bin" / "go"
