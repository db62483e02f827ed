"""The most memory that a process has had, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path


def peak_mib(pid: int) -> float:
    """Largest resident size since the start of a process, or since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Begin again with what this process has now."""
    Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")
