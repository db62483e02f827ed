"""Path arguments of commands, with overwrite protection and atomic writes."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp
from typing import TYPE_CHECKING, Final

import click

from optsched.cli.base.command_errors import BAD_INPUT, COPIES
from optsched.cli.base.console import echo, print_text
from optsched.formats.files.atomic_write import can_be_replaced, write_atomically
from optsched.units.input_errors import is_url, why_absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

STANDARD: Final = "-"
"""The path that stands for stdin or stdout."""

_JSON_STARTS: Final = (b"{", b"[")
_NUL: Final = "\0"
_FOR_INPUT: Final = "download it, and name the file"
_FOR_OUTPUT: Final = "name a file or folder on this machine"


class BadInput(click.ClickException):
    """An error for an unusable input, printed as one sentence without the usage text."""

    exit_code = BAD_INPUT


class Source(click.ParamType[Path]):
    """An input of a command: an existing file or folder, a pipe or `-`.

    Parameters
    ----------
    is_file
        True if the input must be a file; folders are then rejected.
    """

    name = "path"

    def __init__(self, *, is_file: bool = False) -> None:
        self._is_file = is_file

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """See `click.ParamType`."""
        text = str(value)
        check_path(text)
        if text == STANDARD:
            data = read_standard_input()
            return copy_to_file(data, "standard-input", "the standard input", ctx)
        path = Path(text)
        if reason := why_absent(path):
            raise BadInput(f"{text}: {reason}")
        if path.is_dir():
            if self._is_file:
                raise BadInput(f"{text}: is a folder: name a file")
            check_readable_folder(path)
            return path
        if not os.access(path, os.R_OK):
            raise BadInput(f"{text}: cannot be read: Permission denied")
        if path.is_file():
            return path
        check_finite(path)
        try:
            return copy_to_file(path.read_bytes(), f"pipe-{path.name}", text, ctx)
        except OSError as e:
            raise BadInput(f"{text}: cannot be read: {e.strerror}") from e


def read_standard_input() -> bytes:
    """Read stdin to its end; raise `BadInput` for an infinite device."""
    if sys.stdin is None:
        raise BadInput("the standard input: is closed: name a file")
    with suppress(UnsupportedOperation):  # An in-memory stdin has no descriptor.
        _refuse_device(sys.stdin.fileno(), "the standard input")
    return sys.stdin.buffer.read()


def check_finite(path: Path) -> None:
    """Raise `BadInput` for an infinite device, such as `/dev/zero`, which would fill the memory.

    The null device, terminals and pipes are accepted. Any other error, such as a missing file, is
    reported when the file is read.
    """
    # A pipe is not opened here, because it can have only one reader.
    with suppress(OSError):
        if _is_device(path.stat().st_mode):
            with path.open("rb", buffering=0) as file:
                _refuse_device(file.fileno(), str(path))


def _refuse_device(number: int, name: str) -> None:
    """Raise `BadInput` if an open file is an infinite device; `number` is its file descriptor."""
    found = os.fstat(number)
    if not _is_device(found.st_mode) or os.isatty(number):
        return
    if found.st_rdev != Path(os.devnull).stat().st_rdev:
        raise BadInput(f"{name}: is a device: name a file")


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def check_path(text: str, remedy: str = _FOR_INPUT) -> None:
    """Raise `BadInput` for a URL, an empty path or a path with a NUL character.

    The error message for a URL ends with `remedy`.
    """
    if is_url(text):
        raise BadInput(f"{text}: is a URL: {remedy}")
    if not text:
        raise BadInput("the path is empty: name a file or folder, or omit the option")
    if _NUL in text:
        raise BadInput(f"{text!r}: is not a path: it contains a NUL")


def check_readable_folder(path: Path) -> None:
    """Raise `BadInput` unless the user may list a folder and open its files."""
    if not os.access(path, os.R_OK | os.X_OK):
        raise BadInput(f"{path}: cannot be read: Permission denied")


class InputPath(click.Path):
    """The path of an input; `check_path` rejects URLs, empty paths and NUL characters."""

    def convert(  # type: ignore[override]  # click declares wider types
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """See `click.ParamType`."""
        check_path(str(value))
        path = Path(str(super().convert(value, param, ctx)))
        if os.path.isdir(path):  # noqa: PTH112  Path.is_dir raises PermissionError
            check_readable_folder(path)
        return path


plugins_dir_option: Final = click.option(
    "--plugins-dir",
    type=InputPath(path_type=Path, file_okay=False),
    help="Python files in this folder are plugins that the model may name.",
)


class OutputPath(click.Path):
    """The path of an output; `check_path` rejects URLs, empty paths and NUL characters."""

    def convert(  # type: ignore[override]  # click declares wider types
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """See `click.ParamType`."""
        check_path(str(value), _FOR_OUTPUT)
        path = Path(str(super().convert(value, param, ctx)))
        try:
            path.exists()
            path.resolve()
        except (OSError, RuntimeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "its symbolic links form a loop"
            raise BadInput(f"{path}: cannot be written: {reason}") from e
        return path


class WatchedFile(InputPath):
    """A file that a running service reads repeatedly; pipes and devices are rejected."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(  # type: ignore[override]  # click declares wider types
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """See `click.ParamType`."""
        path = super().convert(value, param, ctx)
        try:
            is_special = path.exists() and not path.is_file()
        except OSError as e:
            raise BadInput(f"{value}: cannot be read: {e.strerror}") from e
        if is_special:
            raise BadInput(f"{value}: is a pipe or device: name a file that can be read again")
        return path


class ModelSource(click.ParamType[str]):
    """A model name, a path, or empty; a model file from a pipe or stdin is copied to a file."""

    name = "text"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        text = str(value)
        if not text:
            return text
        check_path(text)
        try:
            is_special = text == STANDARD or Path(text).is_fifo()
            if not is_special:
                check_finite(Path(text))
        except OSError as e:
            raise BadInput(f"{text}: cannot be read: {e.strerror}") from e
        return str(Source(is_file=True).convert(text, param, ctx)) if is_special else text


def single_model(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str:
    """Return the only value of `--model`; raise click.BadParameter unless it has one value."""
    if len(given) == 1:
        return given[0]
    message = f"only one model is accepted, {len(given)} are given ({', '.join(given)}): give one"
    raise click.BadParameter(f"{message}, or try optsched compare", ctx, param)


class TraceSource(click.ParamType[str]):
    """The source of a trace: a path, or `gavel:…` for a synthetic trace."""

    name = "text"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See `click.ParamType`."""
        text = str(value)
        return text if text.startswith("gavel:") else str(Source().convert(text, param, ctx))


def copy_to_file(data: bytes, name: str, source: str, ctx: click.Context | None) -> Path:
    """Write bytes to a temporary file, which is removed when the command ends.

    The content determines the extension, `.json` or `.yaml`. Error messages show `source` instead
    of the path of the temporary file.
    """
    folder = Path(mkdtemp(prefix="optsched-"))
    if ctx is not None:
        ctx.call_on_close(lambda: shutil.rmtree(folder, ignore_errors=True))
    suffix = ".json" if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_JSON_STARTS) else ".yaml"
    path = folder / f"{name}{suffix}"
    path.write_bytes(data)
    if ctx is not None:
        ctx.meta.setdefault(COPIES, {})[str(path)] = source
    return path


def is_standard(path: Path | None) -> bool:
    """Return whether a path is `-`, which stands for stdout."""
    return path is not None and str(path) == STANDARD


def check_outputs(outputs: Mapping[str, Iterable[Path]], inputs: Iterable[Path]) -> None:
    """Reject outputs that would overwrite an input, and a file to which two options write.

    Parameters
    ----------
    outputs
        Paths of the files that will be written, keyed by option name.
    inputs
        Paths of the files that the command reads.

    Raises
    ------
    click.UsageError
        An output is rejected. The message names the option and the file.
    """
    read, taken = list(inputs), dict[str, tuple[str, Path]]()
    for option, paths in outputs.items():
        for path in paths:
            if not is_standard(path) and any(is_same_file(path, each) for each in read):
                raise click.UsageError(
                    f"{option} {path}: is read by this command and would be overwritten: "
                    "name another file"
                )
            key = STANDARD if is_standard(path) else str(path.resolve())
            other = taken.setdefault(key, (option, path))[0]
            if other != option:
                what = "the standard output" if key == STANDARD else f"the file {path}"
                raise click.UsageError(f"{other} and {option} both write to {what}")
    for key, (option, path) in taken.items():
        for each, (other, _) in taken.items():
            if Path(key) in Path(each).parents:
                message = f"{option} {path}: {other} needs a folder with this name"
                raise click.UsageError(f"{message}: name another file")


def check_folder(option: str, folder: Path | None) -> None:
    """Reject `-` for an option that names an output folder."""
    if is_standard(folder):
        raise click.UsageError(f"{option} -: several files are written: name a folder")


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths name the same file after symbolic links are followed."""
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


class WriteError(Exception):
    """An error for a file that could not be written; the message names the file and the reason."""


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically; if the write fails, the previous file is kept.

    Raises
    ------
    KeepError
        The folder is not writable, or the disk is full.
    """
    if is_standard(path):
        echo(text, nl=False)
        return
    try:
        write_atomically(path, text)
    except OSError as e:
        previous = "the previous file is kept" if path.is_file() else "there is no such file"
        kept = f"; {previous}" if can_be_replaced(path) else ""
        raise WriteError(f"{path}: cannot be written: {e.strerror or e}{kept}") from e


def write_and_report(console: Console, path: Path, text: str, note: str = "") -> bool:
    """Write text to a file atomically and print its path; return whether the write succeeded."""
    try:
        write_text(path, text)
    except WriteError as e:
        print_text(console, str(e), "red")
        return False
    if not is_standard(path):
        print_text(console, f"wrote {path}{note}", "dim")
    return True


def check_writable(path: Path) -> None:
    """Raise `WriteError` if a file cannot be written; commands call this before any work."""
    if is_standard(path):
        return
    if path.is_dir():
        raise WriteError(f"{path}: is a folder; name a file")
    if can_be_replaced(path):
        _write_temporary(path, path.parent)


def make_folder(folder: Path) -> None:
    """Create a missing folder; raise `WriteError` if no file can be written to the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as e:
        raise WriteError(f"{folder}: cannot be created: it exists and is not a folder") from e
    except OSError as e:
        raise WriteError(f"{folder}: cannot be created: {e.strerror or e}") from e
    _write_temporary(folder, folder)


def _write_temporary(path: Path, folder: Path) -> None:
    try:
        with NamedTemporaryFile(dir=folder, prefix=".optsched."):
            pass
    except OSError as e:
        raise WriteError(f"{path}: cannot be written: {e.strerror or e}") from e
