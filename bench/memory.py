"""The peak resident memory of a process, as reported by Linux."""

from __future__ import annotations

import os
from pathlib import Path


def peak_mib(pid: int) -> float:
    """Return the peak resident MiB of a process since its start, or since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Reset the peak of this process to its current resident size."""
    Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")
