"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

NOT_KEPT: Final = 4
"""The code with which a command ends that could not write what it was to keep."""


class KeepError(Exception):
    """A file that could not be written; says which, why, and what is there instead."""


def keep_text(path: Path, text: str) -> None:
    """Write a whole file, or leave what was there before.

    Raises
    ------
    KeepError
        The folder can not be written to, or the disk is full.

    """
    try:
        _replace(path, text)
    except OSError as e:
        there = "the file that was there is kept" if path.is_file() else "nothing is there"
        raise KeepError(f"{path}: can not be written: {e.strerror or e}; {there}") from e


def check_writable(path: Path) -> None:
    """Raise `KeepError` now where a file could not be written later."""
    if path.is_dir():
        raise KeepError(f"{path}: is a folder; name a file")
    if path.exists() and not path.is_file():
        return
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as e:
        raise KeepError(f"{path}: can not be written: {e.strerror or e}") from e


def _replace(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a device or a pipe can not be replaced
        return
    with NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as file:
        fresh = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            fresh.chmod(0o666 & ~_umask())
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
