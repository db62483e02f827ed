"""Custom plugins and actions: Python files of a folder and entry points of packages."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from optsched.policy.catalogue import ACTION_ENTRY_POINTS, ENTRY_POINTS, Shelf

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.policy.catalogue import Files


def shelf_of(folder: Path | None) -> Shelf:
    """Return the catalogue of plugins. folder: the value of `--plugins-dir`."""
    groups = (ENTRY_POINTS, ACTION_ENTRY_POINTS)
    plugins, actions = (
        tuple(sorted(entry_points(group=g), key=lambda e: (e.name, e.value))) for g in groups
    )
    return Shelf(folder, read_folder, plugins, actions)


def read_folder(folder: Path) -> Files:
    """Return path and text of a folder's Python files by name, without those that begin with `_`.

    Raises OSError and UnicodeError.
    """
    paths = sorted(p for p in folder.iterdir() if p.suffix == ".py" and p.name[0] not in "_.")
    return tuple((str(path), path.read_text("utf-8-sig")) for path in paths)
