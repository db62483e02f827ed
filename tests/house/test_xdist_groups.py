"""pytest-xdist must form groups, because `make e2e` shares a control plane within a group."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(4))
def test_number(number, worker_id, tmp_path_factory):
    (tmp_path_factory.getbasetemp().parent / worker_id).touch()
"""


def test_the_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    """pytest-xdist 3.8 silently forms no groups with pytest 9.2."""
    (tmp_path / "test_grouped.py").write_text(MODULE)
    workers = tmp_path / "workers"
    options = ["-pxdist", "-n2", "--dist=loadgroup", "-pno:cacheprovider", "-c/dev/null"]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={workers}", "test_grouped.py"]
    # Other plugins take most of the time to start the three processes.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert len([path for path in workers.iterdir() if path.is_file()]) == 1
