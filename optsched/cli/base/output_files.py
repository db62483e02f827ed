"""Output files of commands, and errors when they can not be written."""

from __future__ import annotations

from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from optsched.cli.base.console import echo, print_text
from optsched.cli.base.path_arguments import is_standard
from optsched.formats.files.atomic_write import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


class KeepError(Exception):
    """A file could not be written; the message names it, the reason and what it contains now."""


def keep_text(path: Path, text: str) -> None:
    """Write a file atomically; on error the previous file stays.

    Raises
    ------
    KeepError
        The folder can not be written to, or the disk is full.

    """
    if is_standard(path):
        echo(text, nl=False)
        return
    try:
        write_atomically(path, text)
    except OSError as e:
        there = "the file that was there is kept" if path.is_file() else "nothing is there"
        raise KeepError(f"{path}: can not be written: {e.strerror or e}; {there}") from e


def write_and_report(console: Console, path: Path, text: str, note: str = "") -> bool:
    """Write a file atomically and report it; return whether it was written."""
    try:
        keep_text(path, text)
    except KeepError as e:
        print_text(console, str(e), "red")
        return False
    if not is_standard(path):
        print_text(console, f"wrote {path}{note}", "dim")
    return True


def check_writable(path: Path) -> None:
    """Raise `KeepError` early if a file can not be written later."""
    if is_standard(path):
        return
    if path.is_dir():
        raise KeepError(f"{path}: is a folder; name a file")
    if path.exists() and not path.is_file():
        return
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as e:
        raise KeepError(f"{path}: can not be written: {e.strerror or e}") from e
