"""Plugins of a user: the files of a folder, and the entry points of installed packages."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from optsched.policy.catalogue import ENTRY_POINTS, Shelf

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.policy.catalogue import Files


def shelf_of(folder: Path | None) -> Shelf:
    """Where plugins are looked for; folder: what `--plugins-dir` says."""
    entries = sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value))
    return Shelf(folder, read_folder, tuple(entries))


def read_folder(folder: Path) -> Files:
    """Path and text of the Python files of a folder by name, but for those that begin with `_`.

    Raises OSError and UnicodeError.
    """
    paths = sorted(p for p in folder.iterdir() if p.suffix == ".py" and p.name[0] not in "_.")
    return tuple((str(path), path.read_text("utf-8")) for path in paths)
