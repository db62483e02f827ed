"""Read an instance (a file, a folder of manifests or a trace), and compute its identity.

Every file and document is read, even if others are invalid. InstanceError is raised only if the
instance contains nothing to schedule.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from optsched.api import kinds
from optsched.api.crds import unknown_fields
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE
from optsched.formats.files.diagnostics import InstanceError, ObjectProblem, diagnostics_of
from optsched.formats.files.yaml_text import Document, TextError, read_json, read_yaml
from optsched.formats.snapshots.assembly import READ_KINDS, assemble
from optsched.formats.snapshots.writer import encode
from optsched.formats.solve_result import FileSum, InstanceIdentity, checksum
from optsched.formats.traces.openb_cluster import NODE_LIST, missing_columns, read_openb
from optsched.units.input_errors import why_absent, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.units import FieldError

Progress: TypeAlias = "Callable[[int, int], None]"
"""A callback that receives the number of characters read so far, and the total number."""

Preview: TypeAlias = (
    "Callable[[Iterable[tuple[Mapping[str, Any], str]]],"
    " Iterable[tuple[Mapping[str, Any], str, tuple[FieldError, ...]]]]"
)
"""A function that replaces Jobs with the objects that controllers would create for them."""

SUFFIXES: Final = (".yaml", ".yml", ".json")

_JSON: Final = ".json"
_CSV: Final = ".csv"
_LIST: Final = "List"


@dataclass(frozen=True, slots=True)
class Instance:
    """A cluster read from a file or folder.

    Attributes
    ----------
    path
        The file or folder, as the user gave it.
    problems
        Problems of invalid objects, with file and line; the snapshot omits invalid objects.
    notices
        Messages about valid objects that were skipped.
    left_out
        Messages with file and line about objects whose kinds no scheduler reads.

    """

    path: str
    snapshot: Snapshot
    problems: tuple[ObjectProblem, ...] = ()
    notices: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Objects:
    """Objects with their `file:line`, and errors about documents that are not objects."""

    values: list[Mapping[str, Any]]
    where: list[str]
    problems: list[ObjectProblem]


def read_instance(
    path: str | Path,
    options: DecodeOptions | None = None,
    taken_ms: int | None = None,
    *,
    progress: Progress | None = None,
    preview: Preview | None = None,
) -> Instance:
    """Read the cluster at a path.

    Parameters
    ----------
    path
        The path of a manifest in YAML (any number of documents) or JSON, which may contain lists of
        objects. The path may also name a folder of manifests, read recursively in name order, or a
        pod list of the openb trace in CSV.
    options
        Options that select this scheduler's pods and nodes.
    taken_ms
        Time of the snapshot in ms since 1970. If `taken_ms` is None, the time in the dump or,
        without a dump, the latest creation time of an object is used.
    progress
        A callback that receives the number of characters read so far, and the total number.
    preview
        A function that replaces Jobs with the objects that controllers would create, or None to
        keep all objects.

    Raises
    ------
    InstanceError
        The file does not exist, or contains no object whose kind a scheduler reads.

    """
    where = Path(path)
    if where.suffix.lower() == _CSV:
        if missing := missing_columns(where):
            listed = ", ".join(missing)
            raise InstanceError(
                f"{where}: is not a pod list of the openb trace: it has no column {listed}; name a "
                "pod list of openb in CSV, or manifests in YAML or JSON"
            )
        snapshot, problems = read_openb(where)
        return Instance(str(path), snapshot, problems)
    found = _read_files(_files(where), where, progress)
    unknown = tuple(_unknown(found))
    if preview is not None:
        previewed = _Objects([], [], found.problems)
        for value, place, errors in preview(zip(found.values, found.where, strict=True)):
            if errors:
                kind, meta = str(value.get("kind")), value.get("metadata")
                key = _key(kinds.JOB, meta)
                previewed.problems += diagnostics_of(kind, key, errors, place)
            else:
                previewed.values.append(value)
                previewed.where.append(place)
        found = previewed
    assembled = assemble(found.values, options, taken_ms, where=found.where)
    problems = (*found.problems, *unknown, *assembled.problems)
    if not assembled.num_read:
        if problems and not assembled.ignored:
            raise InstanceError("\n".join(map(str, problems)))
        known = ", ".join(dict.fromkeys(kind.kind for kind in READ_KINDS))
        listed = ", ".join(f"{number} {kind}" for kind, number in sorted(assembled.ignored.items()))
        there = f"found only {listed}" if listed else "there is no object at all"
        message = f"{where}: nothing to schedule: looked for {known}; {there}"
        raise InstanceError(message, problems)
    left_out = tuple(
        f"{at}: {what} is ignored: no scheduler reads this kind" for what, at in assembled.left_out
    )
    notices = tuple(
        f"ignored: {number} {'pod waits' if number == 1 else 'pods wait'}"
        f" for the scheduler {scheduler}"
        for scheduler, number in sorted(assembled.elsewhere.items())
    )
    return Instance(str(path), assembled.snapshot, problems, notices, left_out)


def read_objects(
    path: str | Path,
) -> tuple[list[Mapping[str, Any]], tuple[ObjectProblem, ...]]:
    """Read the objects at a path, expand Lists, and return objects and problems."""
    found = _read_files(_files(Path(path)), Path(path))
    return found.values, tuple(found.problems)


def files_of(path: Path) -> list[Path]:
    """Return the files of the instance at a path; raise InstanceError if there are none."""
    if path.suffix.lower() == _CSV:
        return [path, path.with_name(NODE_LIST)]
    return _files(path)


# --- files ----------------------------------------------------------------------------------------


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted by path.

    Raises InstanceError if a folder cannot be read, so that no file is omitted silently. Symbolic
    links to folders are not followed.
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


def _files(path: Path) -> list[Path]:
    if reason := why_absent(path):
        raise InstanceError(f"{path}: {reason}")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InstanceError(f"{path}: is neither a file nor a folder")
    files = [file for file in list_files(path) if file.suffix.lower() in SUFFIXES]
    if not files:
        patterns = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise InstanceError(f"{path}: no file in this folder matches {patterns}")
    return files


def _read_files(files: Sequence[Path], root: Path, progress: Progress | None = None) -> _Objects:
    found = _Objects([], [], [])
    texts: dict[Path, str] = {}
    for file in files:
        texts[file] = problem = ""
        try:
            texts[file] = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as e:
            problem = f"is not UTF-8: byte {e.start} is 0x{e.object[e.start]:02x}"
        except OSError as e:
            problem = f"cannot be read: {e.strerror}"
        if problem:
            found.problems.append(ObjectProblem("", "", "", None, problem, file.name))
    total, before = sum(map(len, texts.values())), 0
    for file, text in texts.items():
        name = str(file.relative_to(root)) if file != root else file.name
        read = read_json if file.suffix.lower() == _JSON else read_yaml
        for part in read(text):
            if isinstance(part, TextError):
                at = f"{name}:{part.line}:{part.column}"
                found.problems.append(ObjectProblem("", "", "", None, part.message, at))
                continue
            for value, line in _objects(part):
                found.values.append(value)
                found.where.append(f"{name}:{line}")
            if progress is not None:
                progress(before + part.end, total)
        before += len(text)
    return found


def _objects(part: Document) -> Iterator[tuple[Any, int]]:
    """Yield (object, line number) for a document, or for each item if the document is a List."""
    value = part.value
    if value is None:
        return
    is_list = (
        isinstance(value, dict)
        and isinstance(value.get("items"), list)
        and isinstance(value.get("kind"), str)
        and value["kind"].endswith(_LIST)
    )
    if not is_list:
        yield value, part.line
        return
    lines = part.item_lines if len(part.item_lines) == len(value["items"]) else None
    kind = value["kind"].removesuffix(_LIST)
    given = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
    for number, item in enumerate(value["items"]):
        # Items of typed lists, such as an API server's PodList, do not repeat their kind.
        whole = {**given, **item} if isinstance(item, dict) else item
        yield whole, lines[number] if lines else part.line


# --- problems and notices -------------------------------------------------------------------------


def _unknown(found: _Objects) -> Iterator[ObjectProblem]:
    """Yield unknown fields of custom kinds; an API server would drop them silently."""
    for value, where in zip(found.values, found.where, strict=True):
        if not isinstance(value, dict):
            continue
        kind = kinds.kind_of(value)
        errors = unknown_fields(kind, value) if kind else ()
        if kind and errors:
            yield from diagnostics_of(kind.kind, _key(kind, value.get("metadata")), errors, where)


def _key(kind: kinds.Kind, metadata: object) -> str:
    meta = metadata if isinstance(metadata, dict) else {}
    name = str(meta.get("name") or "")
    return f"{meta.get('namespace') or DEFAULT_NAMESPACE}/{name}" if kind.namespaced else name


# --- provenance -----------------------------------------------------------------------------------

SOLVERS: Final = ("ortools", "numpy", "scipy")


def instance_identity(path: str | Path) -> InstanceIdentity:
    """Return the identity of the instance at a path: its files with their SHA-256 hashes.

    Raises
    ------
    InstanceError
        The file or folder does not exist, or the folder contains no manifest.
    OSError
        A file cannot be read.

    """
    root = Path(path)
    base = root if root.is_dir() else root.parent
    files = [
        FileSum(file.relative_to(base).as_posix(), checksum(file.read_bytes()))
        for file in files_of(root)
    ]
    return InstanceIdentity(str(path), tuple(sorted(files, key=lambda f: f.path)))


def snapshot_identity(snapshot: Snapshot) -> InstanceIdentity:
    """Return the identity of a snapshot that was not read from files: a hash of its objects."""
    lines = (json.dumps(each, sort_keys=True, ensure_ascii=False) for each in encode(snapshot))
    return InstanceIdentity("", (FileSum("snapshot", checksum("\n".join(lines))),))


def versions(own: str) -> dict[str, str]:
    """Return the versions of optsched (`own`), Python and the solver packages, keyed by name."""
    found = {"optsched": own, "python": platform.python_version()}
    for name in SOLVERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
