"""The scheduler reports mistakes in its command line in one line before it acts."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.local.plane import ControlPlane

pytestmark = pytest.mark.e2e

WAIT_S = 120


@pytest.mark.parametrize(
    ("flags", "code", "complaint"),
    [
        (["--no-such-flag"], 2, "Error: No such option '--no-such-flag' (see "),
        (["--schedule-period", "soon"], 2, '"soon" is not a duration'),
        (["--leader-elect-renew-deadline", "1m"], 2, "each has to be longer than the next"),
        (["--config", "no-such-model"], 2, "Error: no-such-model: there is no such model or file"),
    ],
)
def test_flags_that_are_wrong(flags: list[str], code: int, complaint: str) -> None:
    refused(flags, code, complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "kubeconfig: there is no such file"),
        ("clusters: [", "kubeconfig cannot be used: "),
        ('{"current-context": "x"}', "kubeconfig cannot be used: "),
    ],
)
def test_a_kubeconfig_that_is_wrong(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    refused(["--kubeconfig", str(path)], 1, complaint)


def test_an_address_that_is_taken(control_plane: ControlPlane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ["--kubeconfig", str(control_plane.kubeconfig), "--listen-address", place]
        refused(flags, 1, "address already in use")


def refused(flags: list[str], code: int, complaint: str) -> None:
    """Check that the scheduler ends immediately with a code and one line about the mistake."""
    command = [sys.executable, "-m", "optsched.cli.main", "scheduler"]
    address = ["--listen-address", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, *address, *flags], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert complaint in line
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
