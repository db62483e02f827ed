"""Files that are there as a whole or not at all: a full disk leaves what was there before."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file beside and put it in its place.

    Raises
    ------
    OSError
        It can not be written; names the file. What was there stays, and nothing is left beside it.

    """
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as e:
        with suppress(OSError):
            fresh.unlink()
        raise OSError(e.errno, e.strerror, str(path)) from e


def keep_whole_lines(path: Path) -> str:
    """Cut off what comes after the last line break of a file; returns the rest.

    Nothing of what is no plain file, such as a device.
    """
    if not path.is_file():
        return ""
    with path.open("r+b") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        file.truncate(end)
    return data[:end].decode()
