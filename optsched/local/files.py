"""The cache directory, files shipped with the package, private files and lock files."""

from __future__ import annotations

import fcntl
import importlib.resources
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Progress = Callable[[str], None]


def cache_directory(env: Mapping[str, str]) -> Path:
    """Return the folder in which built binaries and the default control plane are stored."""
    if own := env.get("OPTSCHED_CACHE"):
        return Path(own)
    if shared := env.get("XDG_CACHE_HOME"):
        return Path(shared) / "optsched"
    return Path(env.get("HOME") or Path.home()) / ".cache" / "optsched"


def shipped(*parts: str) -> Path:
    """Return the path of a file in `optsched.deploy`, such as `shipped("local", "stages.yaml")`."""
    return Path(str(importlib.resources.files("optsched.deploy").joinpath(*parts)))


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically; only its owner may read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; call `on_wait` once if another process holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
