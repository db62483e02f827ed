"""What an instance and the software that solves it are, so that both can be found again."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from optsched.formats.snapshots.instance_files import files_of
from optsched.formats.snapshots.writer import encode
from optsched.formats.solve_result import FileSum, InstanceIdentity, checksum

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot

SOLVERS: Final = ("ortools", "numpy", "scipy")


def instance_identity(path: str | Path) -> InstanceIdentity:
    """The files that `read_instance` reads at a path, with the SHA-256 of their bytes.

    Raises
    ------
    InstanceError
        Nothing is there.
    OSError
        A file can not be read.

    """
    root = Path(path)
    base = root if root.is_dir() else root.parent
    files = [
        FileSum(file.relative_to(base).as_posix(), checksum(file.read_bytes()))
        for file in files_of(root)
    ]
    return InstanceIdentity(str(path), tuple(sorted(files, key=lambda f: f.path)))


def snapshot_identity(snapshot: Snapshot) -> InstanceIdentity:
    """The same for a snapshot that comes from no file: SHA-256 over its manifests, line by line."""
    lines = (json.dumps(each, sort_keys=True, ensure_ascii=False) for each in encode(snapshot))
    return InstanceIdentity("", (FileSum("snapshot", checksum("\n".join(lines))),))


def versions(own: str) -> dict[str, str]:
    """Versions by name: of Python, of what solves, and our own, which is handed in."""
    found = {"optsched": own, "python": platform.python_version()}
    for name in SOLVERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
