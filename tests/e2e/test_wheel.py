"""A wheel contains every module and every data file that the code reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
FOLDERS = {"optsched": "optsched", "models": "optsched/models", "deploy": "optsched/deploy"}
TOOLS = (
    "optsched/deploy/manifests/render.py",
    "optsched/deploy/helm/",
    "optsched/deploy/samples/",
    "optsched/deploy/Dockerfile",
    "optsched/deploy/volcano-development.yaml",
)
"""Used in a checkout alone."""

PROGRAM = """
from pathlib import Path
import optsched
from optsched.local.assets import shipped
from optsched.policy.load import load_policy, shipped_models
assert Path(optsched.__file__).is_relative_to(Path.cwd())
for model in shipped_models():
    load_policy(model.name, Path.read_text)
for folder in ("crds", "local", "manifests", "schemas"):
    assert any(shipped(folder).iterdir()), folder
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of the current tree and return its path."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-v", "-w", folder, source]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "BuildBackendWarning" not in done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_every_module_and_file_is_in_it(wheel: Path) -> None:
    expected = {
        f"{packed}/{path.relative_to(ROOT / folder)}"
        for folder, packed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == {name for name in expected if not name.startswith(TOOLS)}


def test_every_command_is_installed_under_its_names(wheel: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    assert {"vcctl", "kubectl-vc", "vsub"} < scripts.keys()
    assert all(f"{script} = {place}" in text for script, place in scripts.items())


def test_it_works_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = [sys.executable, "-c", PROGRAM]
    subprocess.run(run, cwd=tmp_path, env=environment, check=True)
