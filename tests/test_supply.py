"""The contents of the image are fixed: packages by hashes, the base image by its digest."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = sorted((ROOT / ".ci" / "locks").glob("*.txt"))
DOCKERFILE: Final = (ROOT / "deploy" / "Dockerfile").read_text()
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==(\S+?)(?: ;.*)?")
_HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def plain(name: str) -> str:
    """Return a name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: Path) -> dict[str, str]:
    """Return the versions by name, and check that every entry is one version with hashes."""
    found: dict[str, str] = {}
    for entry in lock.read_text().replace("\\\n", " ").splitlines():
        wanted, *hashes = re.split(r"\s+(?=--hash)", entry.strip())
        match = _PINNED.fullmatch(wanted)
        assert match is not None, entry
        assert hashes, entry
        assert all(_HASH.fullmatch(each) for each in hashes), entry
        found[plain(match[1])] = match[2]
    return found


IMAGE: Final = locked(ROOT / ".ci" / "locks" / "image.txt")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_has_hashes(lock: Path) -> None:
    assert locked(lock)


def test_the_lock_has_all_that_is_imported() -> None:
    """The lock contains the dependencies of optsched and theirs, in the tested versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo, seen = list(project["dependencies"]), set[str]()
    while todo:
        requirement = todo.pop()
        name = plain(_NAME.match(requirement)[0])  # type: ignore[index]
        if name in seen or "extra ==" in requirement:
            continue
        try:
            todo += requires(name) or ()
        except PackageNotFoundError:
            continue  # the requirement is for another system or Python version
        seen.add(name)
    assert seen <= IMAGE.keys()
    pinned = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    versions = {plain(name): version for name, _, version in (p.partition("==") for p in pinned)}
    assert {name: IMAGE[name] for name in seen} == {name: versions[name] for name in seen}


def requirements_of(project: dict[str, Any]) -> dict[str, Requirement]:
    """Return the requirements of pyproject.toml by name."""
    return {plain(r.name): r for r in map(Requirement, project["dependencies"])}


def test_the_lock_is_in_step_with_the_project() -> None:
    """The locked version meets every requirement, and the lock contains no other package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = requirements_of(project)
    for name, requirement in wanted.items():
        assert requirement.specifier.contains(IMAGE[name]), f"make lock: {requirement}"
    todo, seen = list(wanted.values()), set[tuple[str, ...]]()
    while todo:
        requirement = todo.pop()
        name = plain(requirement.name)
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        try:
            further = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue  # the requirement is for another system or Python version
        # Only the marker `extra` counts, because the lock serves every system.
        asked = [f'"{extra}"' for extra in requirement.extras]
        todo += [
            each
            for each in further
            if "extra ==" not in str(each.marker) or any(e in str(each.marker) for e in asked)
        ]
    needed = {name for name, *_ in seen}
    assert set(IMAGE) - needed == set(), "make lock: these are no longer needed"


def test_the_lock_is_for_every_version_of_python_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = re.search(r"--python-version (\S+)", (ROOT / ".ci" / "supply").read_text())
    assert least is not None
    assert project["requires-python"] == f">={least[1]}"
    # The supported versions include the Python of the image.
    (version,) = set(re.findall(r"^FROM python:([\d.]+)-", DOCKERFILE, flags=re.MULTILINE))
    assert SpecifierSet(project["requires-python"]).contains(version)
    (base,) = re.findall(r"^base=(.*)", (ROOT / ".ci" / "image").read_text(), re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)@", DOCKERFILE, flags=re.MULTILINE)
    assert set(stages) == {base}


def test_the_base_image_is_named_by_its_digest() -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert stages
    assert all(stage.endswith("@${BASE_DIGEST}") for stage in stages)
    # The argument has no default, so a build without a digest has no valid base.
    assert re.findall(r"^ARG (.*)", DOCKERFILE, flags=re.MULTILINE) == ["BASE_DIGEST"]


@pytest.mark.parametrize("digest", ["", "latest", "sha256:abc", f"sha256:{'g' * 64}"])
def test_an_image_without_a_digest_is_refused(digest: str, tmp_path: Path) -> None:
    # This docker only reports its arguments.
    called = tmp_path / "docker"
    called.write_text('#!/bin/sh\necho "docker $*"\n')
    called.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for given, code in ((digest, 2), (f"sha256:{'0' * 64}", 0)):
        done = subprocess.run(
            [bash, ROOT / ".ci" / "image", "optsched:test", given],
            text=True,
            capture_output=True,
            check=False,
            env=environment,
        )
        assert done.returncode == code, done.stderr
        command = (
            f"docker build -f deploy/Dockerfile --build-arg BASE_DIGEST={given} -t optsched:test ."
        )
        assert done.stdout.strip() == (command if code == 0 else "")
        assert (f"BASE_DIGEST is '{given}'" in done.stderr) == (code != 0)


def test_nothing_is_installed_without_hashes() -> None:
    commands = re.findall(r"pip (?:install|wheel)[^\\\n]*", DOCKERFILE)
    assert len(commands) >= 4
    for command in commands:
        assert "--require-hashes" in command or "--no-index --no-deps" in command


def test_notices_name_every_package() -> None:
    table = (ROOT / "THIRD-PARTY.md").read_text()
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines()]
    named = {plain(row[0]): row[1] for row in rows if len(row) == 4}
    assert {name: named.get(name) for name in IMAGE} == IMAGE
    licences = {plain(row[0]): row[2] for row in rows if len(row) == 4}
    assert all(licences[name] not in ("", "UNKNOWN") for name in IMAGE)
