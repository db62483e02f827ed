"""Write snapshots to files, for debugging."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from optsched.formats.plan import write_plan
from optsched.formats.snapshots.writer import encode, write_bundle
from optsched.units import format_micro_time

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation

KEPT: Final = 20
"""Number of dumps to keep of each `sort`; older dumps are deleted."""

log = logging.getLogger(__name__)


class SnapshotDumps:
    """Writes snapshots to a folder; implements `session.ports.Incidents`.

    Only the folder's owner can read the files, because snapshots contain objects of all tenants.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        """Dump a snapshot and a plan that violates rules; return the path (empty on failure)."""
        for violation in violations:
            log.error("plan not executed: %s", violation)
        path = self.dump(snapshot, "violation")
        if path is None:
            return ""
        try:
            with open(path.with_suffix(".plan"), "w", encoding="utf-8", opener=_private) as file:
                file.write(write_plan(plan))
        except OSError as e:
            log.error("plan not dumped: %s", e)
        return str(path)

    def dump(self, snapshot: Snapshot, sort: str) -> Path | None:
        """Write a snapshot as input for `optsched solve`; return its path, or None on failure."""
        time = format_micro_time(snapshot.taken_ms).replace(":", "")
        path = self._folder / f"optsched-{sort}-{time}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bundle(encode(snapshot), path, _private)
            for old in sorted(self._folder.glob(f"optsched-{sort}-*.json"))[:-KEPT]:
                old.unlink()
                old.with_suffix(".plan").unlink(missing_ok=True)
        except (OSError, ValueError) as e:
            log.error("snapshot not dumped: %s", e)
            return None
        log.info("snapshot dumped to %s", path)
        return path


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read; raises OSError if it is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
