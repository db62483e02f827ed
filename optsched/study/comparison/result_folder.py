"""A folder of results, so that no cell is replayed twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.files.atomic_write import write_atomically
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optsched.study.comparison.grid import Cell

CELLS: Final = "cells"
_PARTS: Final = {"metrics", "gpu_hours", "jobs"}


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with one file per cell, by key; None stores nothing."""

    folder: Path | None

    def load_result(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the complete result of a cell, or None."""
        if self.folder is None:
            return None
        try:
            found = json.loads(self._path(self.folder, cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(found, dict) and found.get("complete") is True and found.keys() >= _PARTS
        return found if whole else None

    def store_result(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Store a result atomically. Raises OSError; then the previous file stays."""
        if self.folder is None:
            return
        path = self._path(self.folder, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_json(result, indent=1))

    @staticmethod
    def _path(folder: Path, cell: Cell) -> Path:
        return folder / CELLS / f"{cell.key}.json"
