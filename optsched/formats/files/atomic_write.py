"""Atomic file writes: if a write fails, the file keeps its old content."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_atomically(path: Path, text: str) -> None:
    """Write text to a temporary file, flush it to disk and rename it to `path`.

    Raises
    ------
    OSError
        The file cannot be written; the error names the file. The file keeps its old content, and
        the temporary file is removed.

    """
    try:
        if not can_be_replaced(path):
            path.write_text(text, encoding="utf-8")
            return
        with NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as file:
            fresh = Path(file.name)
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                # The only way to read the umask is to set it.
                umask = os.umask(0o022)
                os.umask(umask)
                fresh.chmod(0o666 & ~umask)
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from e


def can_be_replaced(path: Path) -> bool:
    """Return whether the file at a path can be replaced: it is a regular file or does not exist.

    Devices, pipes and links to file descriptors, such as `/dev/stdout`, must not be replaced, even
    if the file descriptor refers to a regular file.
    """
    is_descriptor = path.is_symlink() and path.absolute().parts[1] in ("dev", "proc")
    return not is_descriptor and (path.is_file() or not path.exists())


def truncate_to_last_line(path: Path) -> str:
    """Remove everything after the last line break of a file, and return the remaining text.

    If the path is not a regular file (but a device, for example), return an empty string.
    """
    if not path.is_file():
        return ""
    with path.open("r+b") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        file.truncate(end)
    return data[:end].decode()
