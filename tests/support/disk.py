"""A disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def full(*_: object) -> None:
    """What every write to it comes to."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_for(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Fill the disk whenever a file of one of these names is to be replaced as a whole."""
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        if target.name in names:
            full()
        return replace(self, target)

    patch.setattr(Path, "replace", replaced)
