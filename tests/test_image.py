"""The steps of deploy/Dockerfile, run without Docker, and a start of their result.

Building an image needs a daemon and the base image. Most failures come from the steps: missing
files in the context, wrong hashes of packages, or a missing command. `make nightly` runs the steps
with this machine's Python, in folders that stand for those of the image.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
INDEX: Final = "https://pypi.org/simple/click/"
KNOWN: Final = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT"}


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile and their arguments, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def ignored(path: str) -> bool:
    """Return whether .dockerignore excludes a path from the context."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    parts = [path[: match.start()] for match in re.finditer("/|$", path)]
    # A pattern is relative to the context, and `**/` stands for any number of folders.
    return any(
        fnmatch.fnmatch(part.rpartition("/")[2], pattern.removeprefix("**/"))
        if pattern.startswith("**/")
        else fnmatch.fnmatch(part, pattern) and part.count("/") == pattern.count("/")
        for pattern in patterns
        for part in parts
    )


def sources() -> list[tuple[str, str]]:
    """Return (source, target) of each file or folder that is copied from the context."""
    return [
        (source, target)
        for word, rest in instructions(DOCKERFILE.read_text())
        if word == "COPY" and not rest.startswith("--from")
        for *given, target in [rest.split()]
        for source in given
    ]


def test_all_that_is_copied_is_in_the_context() -> None:
    assert {word for word, _ in instructions(DOCKERFILE.read_text())} <= KNOWN
    assert sources()
    for source, _ in sources():
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    # The copied files include the locks that the steps name.
    named = re.findall(r"-r (\S+)", DOCKERFILE.read_text())
    assert sorted(named) == ["locks/build.txt", "locks/image.txt"]
    assert all((ROOT / ".ci" / name).is_file() for name in named)


def test_the_context_holds_no_secrets_and_no_history() -> None:
    for path in (".git", ".venv", "tests", "optsched/__pycache__", "optsched/cli/__pycache__"):
        assert ignored(path), path
    for path in ("optsched/cli/main.py", "optsched/study/instances/instance_families.py"):
        assert not ignored(path), path


class Build:
    """A runner of the steps in folders of a root that stand for those of an image."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root

    def play(self) -> list[str]:
        """Run all steps and return the entry point of the image."""
        entry: list[str] = []
        for word, rest in instructions(DOCKERFILE.read_text()):
            if word == "WORKDIR":
                self._folder = self._at(rest)
                self._folder.mkdir(parents=True)
            elif word == "COPY" and not rest.startswith("--from"):
                *given, target = rest.split()
                for source in given:
                    self._copy(source, target, is_folder=len(given) > 1 or target.endswith("/"))
            elif word == "RUN":
                self._run(rest)
            elif word == "ENTRYPOINT":
                entry = re.findall(r'"([^"]+)"', rest)
        return entry

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/") if path.startswith("/") else self._folder / path

    def _copy(self, source: str, target: str, *, is_folder: bool) -> None:
        """Copy as COPY does: a folder's content, or a file under the same or another name."""
        found, place = ROOT / source, self._at(target)
        if found.is_dir():
            shutil.copytree(
                found,
                place,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda at, names: {
                    name
                    for name in names
                    if ignored((Path(at) / name).relative_to(ROOT).as_posix())
                },
            )
        else:
            place = place / found.name if is_folder or place.is_dir() else place
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)

    def _run(self, command: str) -> None:
        here = re.sub(r"(?<=\s)/opt/", f"{self._root}/opt/", f" {command}")
        here = re.sub(r"\bpython -m venv", f"{sys.executable} -m venv", here)
        # The index and certificate settings of this machine apply here, too.
        done = subprocess.run(
            ["/bin/sh", "-ec", here],
            cwd=self._folder,
            env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"{here}\n{done.stdout}\n{done.stderr}"


@pytest.mark.nightly  # this test installs all packages of the image
def test_the_steps_make_a_command_that_runs(tmp_path: Path) -> None:
    try:
        urllib.request.urlopen(INDEX, timeout=20).close()
    except OSError as e:
        pytest.skip(f"{INDEX} is not reachable: {e}")
    (name,) = Build(tmp_path).play()
    command = tmp_path / "opt" / "optsched" / "bin" / name
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for words in (["version"], ["scheduler", "--help"], ["controllers", "--help"]):
        done = subprocess.run(
            [command, *words], text=True, capture_output=True, check=False, env=bare
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
    example = ROOT / "instances" / "examples" / "packing.yaml"
    done = subprocess.run(
        [command, "solve", example, "--time-limit", "10", "--deterministic"],
        text=True,
        capture_output=True,
        check=False,
        env=bare,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "proved" in done.stdout + done.stderr
