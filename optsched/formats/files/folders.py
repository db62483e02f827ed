"""List the files in a folder and its subfolders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from optsched.formats.files.diagnostics import InstanceError
from optsched.units.input_errors import why_unreadable


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted by path.

    Raises InstanceError if a folder cannot be read; otherwise its files would be missing without
    notice. Symbolic links to folders are not followed.
    """
    found = []
    for parent, _, names in os.walk(folder, onerror=_refuse):
        for path in (Path(parent) / name for name in names):
            try:
                is_file = path.is_file()
            except OSError as e:
                _refuse(e)
            if is_file:
                found.append(path)
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise InstanceError(f"{error.filename}: cannot be read: {why_unreadable(error)}") from error
