"""pyproject.toml names every package; tests/e2e/test_wheel.py checks the contents of a wheel."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
ELSEWHERE = SETUP["package-dir"]


def folder(package: str) -> Path:
    """Return the folder of a package."""
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
    """Loading OR-Tools takes a second, during which a restarting scheduler binds no pod."""
    code = (
        "import sys; import optsched.cli.services.scheduler, optsched.kube.scheduler.process; "
        "assert not {'ortools', 'pandas', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
