"""pyproject.toml names every package there is; what a wheel holds is in tests/e2e/test_wheel.py."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
ELSEWHERE = SETUP["package-dir"]


def folder(package: str) -> Path:
    """Where a package is kept."""
    return ROOT / ELSEWHERE.get(package, package.replace(".", "/"))


def test_every_package_is_listed_once_and_exists() -> None:
    folders = sorted(path.parent for path in (ROOT / "optsched").rglob("__init__.py"))
    found = [".".join(path.relative_to(ROOT).parts) for path in folders]
    assert SETUP["packages"] == sorted([*found, *ELSEWHERE])


def test_every_module_is_in_a_package() -> None:
    folders = {path.parent for path in (ROOT / "optsched").rglob("*.py")}
    assert {path for path in folders if not (path / "__init__.py").exists()} == set()


def test_every_kind_of_data_is_there() -> None:
    empty = [
        (package, pattern)
        for package, patterns in SETUP["package-data"].items()
        for pattern in patterns
        if not any(folder(package).glob(pattern))
    ]
    assert empty == []


def test_the_scheduler_leaves_ortools_to_its_solver_process() -> None:
    """Loading it takes a second, in which a scheduler that begins again binds nothing."""
    code = (
        "import sys; import optsched.cli.services.scheduler, optsched.kube.scheduler.process; "
        "assert not {'ortools', 'pandas', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
