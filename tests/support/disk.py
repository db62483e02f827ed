"""Simulate a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def full(*_: object) -> None:
    """Raise the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_for(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Raise the error of a full disk when a file with one of these names is replaced."""
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        if target.name in names:
            full()
        return replace(self, target)

    patch.setattr(Path, "replace", replaced)
