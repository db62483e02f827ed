"""Find the binaries of the control plane and Helm, and build those that are missing.

Each binary is searched for in KUBEBUILDER_ASSETS, on PATH and in the cache, and is used if its
version is accepted. Missing binaries are built from `deploy/local`, whose go.mod files pin every
source. The build uses the Go toolchain on PATH, and downloads a recent Go release if that toolchain
is too old. `shipped` finds the files of `optsched.deploy`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.resources
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.local.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Progress = Callable[[str], None]


def cache_directory(env: Mapping[str, str]) -> Path:
    """Return the folder in which built binaries and the default control plane are stored."""
    if own := env.get("OPTSCHED_CACHE"):
        return Path(own)
    if shared := env.get("XDG_CACHE_HOME"):
        return Path(shared) / "optsched"
    return Path(env.get("HOME") or Path.home()) / ".cache" / "optsched"


def shipped(*parts: str) -> Path:
    """Return the path of a file in `optsched.deploy`, such as `shipped("local", "stages.yaml")`."""
    return Path(str(importlib.resources.files("optsched.deploy").joinpath(*parts)))


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; call `on_wait` once if another process holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


GO_MINIMUM = (1, 26)
GO_FETCHED = "go1.26.0"
ARCHITECTURE_OF = {"x86_64": "amd64", "aarch64": "arm64"}


class ToolchainError(Exception):
    """Raised if Go cannot be used: the machine is unsupported, or Go cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain: the path of the go command, and its version."""

    binary: Path
    version: tuple[int, ...]


def architecture() -> str:
    """Return the architecture of this machine by its Go name: amd64 or arm64."""
    machine = platform.machine()
    if machine not in ARCHITECTURE_OF:
        raise ToolchainError(f"machine {machine!r}: the control plane runs on x86_64 and aarch64")
    return ARCHITECTURE_OF[machine]


def go_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the result of a go command depends only on its arguments.

    The user's value of GOTOOLCHAIN could make go run another release. The user's value of GOWORK
    could make go read files outside the module. With the user's GOROOT, a downloaded go could use
    the standard library of another release.
    """
    kept = {name: value for name, value in env.items() if name != "GOROOT"}
    fixed = {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOOS": "linux", "CGO_ENABLED": "0"}
    return {**kept, **fixed, "GOARCH": architecture()}


def find_go_toolchain(env: Mapping[str, str]) -> Go | None:
    """Return the go command on PATH with its version, or None if no working Go is found."""
    binary = shutil.which("go", path=env.get("PATH", ""))
    if binary is None:
        return None
    result = run([binary, "version"], env=go_environment(env))
    version = re.match(r"go version go(\d+(?:\.\d+)*)", result.stdout)
    if version is None:
        return None
    return Go(Path(binary), tuple(int(part) for part in version[1].split(".")))


def ensure_recent_go(go: Go, env: Mapping[str, str], on_progress: Progress) -> Path:
    """Return the path of `go`, or download GO_FETCHED if the version is below GO_MINIMUM.

    Every Go release is also a version of the module golang.org/toolchain, which Go verifies
    against the checksum database like any other module (https://go.dev/doc/toolchain).
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
    toolchain = Path(answer["Dir"])
    # Go unpacks modules without execute permissions.
    commands = [*toolchain.glob("bin/*"), *toolchain.glob("pkg/tool/*/*")]
    for command in commands:
        command.chmod(command.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return toolchain / "bin" / "go"


MINOR = "1.36"
SIGN_OF_LIFE_S = 3.0
VERSION_TIMEOUT_S = 20.0
BUILD_FLAGS = ("-v", "-mod=readonly", "-trimpath", "-buildvcs=false")


class AssetsError(Exception):
    """Raised if missing binaries cannot be built; the message lists the binaries and the fixes."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary, the Go package from which it is built, and the pattern of accepted versions."""

    name: str
    module: str
    package: str
    accepted: str
    version_arguments: tuple[str, ...] = ("--version",)


KUBECTL = Binary(
    "kubectl",
    "kubernetes",
    "k8s.io/kubernetes/cmd/kubectl",
    rf"Client Version: v{MINOR}\.",
    ("version", "--client"),
)
BINARIES = (
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3", r"etcd Version: 3\.([5-9]|\d\d)\."),
    *(
        Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", rf"Kubernetes v{MINOR}\.")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
    Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", r"kwok version v0\.8\."),
    KUBECTL,
)
"""The binaries that the control plane runs, and kubectl."""

HELM = Binary("helm", "helm", "helm.sh/helm/v4/cmd/helm", r'Version:"v4\.', ("version",))
"""The Helm binary, which is needed only to install charts."""


@dataclass(frozen=True, slots=True)
class Assets:
    """The paths of the binaries, keyed by name."""

    paths: Mapping[str, Path]


def require(
    on_progress: Progress,
    env: Mapping[str, str] | None = None,
    binaries: Sequence[Binary] = BINARIES,
) -> Assets:
    """Return the paths of the given binaries, and build those that are missing.

    During a build, `on_progress` is called every few seconds. If only kubectl is missing, a kubectl
    of any minor version on PATH is used. Raises AssetsError if a missing binary cannot be built.
    """
    env = os.environ if env is None else env
    try:
        paths, rejected = find_binaries(env, binaries)
        missing = [binary for binary in binaries if binary.name not in paths]
        if missing == [KUBECTL] and (kubectl := shutil.which("kubectl", path=env.get("PATH", ""))):
            return Assets({**paths, "kubectl": Path(kubectl)})
        if not missing:
            return Assets(paths)
        go = find_go_toolchain(env)
        if go is None:
            raise AssetsError(_explain_missing_go(missing, rejected))
        lock = cache_directory(env) / "bin" / "lock"
        with locked(lock, lambda: on_progress("waiting for another build of the control plane")):
            command = ensure_recent_go(go, env, on_progress)
            built = {each.name: _build(each, command, env, on_progress) for each in missing}
        return Assets({**paths, **built})
    except ToolchainError as e:
        names = ", ".join(binary.name for binary in binaries)
        raise AssetsError(f"{names} cannot be built: {e}") from e


def find_binaries(
    env: Mapping[str, str], binaries: Sequence[Binary] = BINARIES
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Find binaries; return their paths by name, and a message for each rejected version.

    The search order is KUBEBUILDER_ASSETS, PATH and the cache.
    """
    paths: dict[str, Path] = {}
    rejected: list[str] = []
    for binary in binaries:
        for folder in (env.get("KUBEBUILDER_ASSETS"), env.get("PATH")):
            candidate = shutil.which(binary.name, path=folder) if folder else None
            if candidate is None:
                continue
            command = [candidate, *binary.version_arguments]
            try:
                result = run(command, timeout_s=VERSION_TIMEOUT_S)
                output = result.stdout + result.stderr
            except (OSError, subprocess.TimeoutExpired) as e:
                output = str(e)
            if re.search(binary.accepted, output):
                paths[binary.name] = Path(candidate)
                break
            first_line = output.strip().partition("\n")[0]
            rejected.append(f"{candidate} ({first_line})")
        else:
            cached = cache_path(binary, env)
            if cached.exists():
                paths[binary.name] = cached
    return paths, tuple(rejected)


def cache_path(binary: Binary, env: Mapping[str, str]) -> Path:
    """Return the cache path of a binary, in a folder named after a digest of the build inputs.

    The build inputs contain the minimum Go release in go.mod, but not the installed Go release. A
    newer Go release therefore does not cause another build, which takes six minutes.
    """
    folder = shipped("local", binary.module)
    recipe = " ".join([*BUILD_FLAGS, _link_flags()])
    digest = hashlib.sha256(recipe.encode())
    for name in ("go.mod", "go.sum"):
        digest.update((folder / name).read_bytes())
    key = f"{binary.module}-{architecture()}-{digest.hexdigest()[:12]}"
    return cache_directory(env) / "bin" / key / binary.name


def _link_flags() -> str:
    """Return linker flags that set the Kubernetes version, which Kubernetes needs to start."""
    go_mod = shipped("local", "kubernetes", "go.mod").read_text()
    pinned = re.search(rf"k8s\.io/kubernetes (v{re.escape(MINOR)}\.\d+)", go_mod)
    if pinned is None:
        raise AssetsError(f"deploy/local/kubernetes/go.mod does not pin Kubernetes {MINOR}")
    major, minor = MINOR.split(".")
    values = {
        "k8s.io/component-base/version.gitVersion": pinned[1],
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": pinned[1],
        "k8s.io/client-go/pkg/version.gitMajor": major,
        "k8s.io/client-go/pkg/version.gitMinor": minor,
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def _build(binary: Binary, go: Path, env: Mapping[str, str], on_progress: Progress) -> Path:
    """Build a binary unless it is in the cache; return its cache path.

    The binary gets its final name only after a successful build, so the cache never contains
    partial binaries.
    """
    target = cache_path(binary, env)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        output = Path(folder) / binary.name
        log = Path(folder) / "log"
        flags = [*BUILD_FLAGS, "-ldflags", _link_flags(), "-o", str(output)]
        with log.open("w") as stderr:
            process = subprocess.Popen(  # noqa: S603 - no shell
                [go, "build", *flags, binary.package],
                cwd=shipped("local", binary.module),
                env=go_environment(env),
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )
            begin = time.monotonic()
            on_progress(f"building {binary.name}")
            try:
                while process.poll() is None:
                    try:
                        process.wait(SIGN_OF_LIFE_S)
                    except subprocess.TimeoutExpired:
                        seconds = int(time.monotonic() - begin)
                        lines = log.read_text().splitlines()
                        num_modules = sum(line.startswith("go: downloading") for line in lines)
                        num_packages = sum(not line.startswith("go: ") for line in lines)
                        on_progress(
                            f"building {binary.name}: {num_modules} modules fetched, "
                            f"{num_packages} packages compiled, {seconds} s"
                        )
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            tail = "\n".join(log.read_text().splitlines()[-15:])
            raise AssetsError(f"building {binary.name} with {go} failed:\n{tail}")
        output.replace(target)
    return target


def _explain_missing_go(missing: Iterable[Binary], rejected: Iterable[str]) -> str:
    names = ", ".join(binary.name for binary in missing)
    found = "".join(f"\n  found in an unsupported version: {line}" for line in rejected)
    return f"""{names} cannot be found, and there is no Go to build them with.{found}
Any one of these helps:
  - install Go 1.16 or newer (`apt-get install golang-go`): optsched then builds the binaries once
  - put the binaries on PATH: Kubernetes {MINOR}, etcd 3.5 or newer, KWOK 0.8, Helm 4
  - set KUBEBUILDER_ASSETS to a folder that holds them"""
