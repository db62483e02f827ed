"""Find mistakes in a kubeconfig, and report the field of each mistake.

The official client, which loads the kubeconfig, reports Python errors that name no field.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from optsched.formats.files.yaml_text import Document, TextError, read_yaml
from optsched.units.input_errors import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SECTIONS: Final = ("clusters", "contexts", "users")
_FILES: Final = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key"),
}


def is_http_address(text: str) -> bool:
    """Return whether the text is an http or https URL with a host and a valid port."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
            and text.isprintable()
            and " " not in text
        )
    except ValueError:
        return False


def default_places() -> str:
    """Return the value of KUBECONFIG, or the default kubeconfig path if KUBECONFIG is not set."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def list_paths(places: str) -> list[Path]:
    """Split a list of paths in the format of KUBECONFIG."""
    return [Path(place).expanduser() for place in places.split(os.pathsep) if place]


def explain_unreadable(places: str) -> str:
    """Return the reason that no kubeconfig is readable; empty if at least one file is readable.

    `places` holds one or more paths in the format of KUBECONFIG. A path may be a pipe.
    """
    if is_url(places):
        return f"{places}: is a URL: download the kubeconfig and name the file"
    absent = f"{places}: there is no such file, so the address of the cluster is unknown"
    problems: list[str] = []
    for place in filter(None, places.split(os.pathsep)):
        problem = absent
        try:
            path = Path(place).expanduser()
            if path.is_dir():
                problem = f"{place}: is a folder: name the kubeconfig in it"
            elif path.exists():
                if os.access(path, os.R_OK):
                    return ""
                problem = f"{place}: Permission denied"
        except (OSError, ValueError, RuntimeError) as e:
            problem = f"{place}: cannot be read: {getattr(e, 'strerror', None) or e}"
        problems.append(problem)
    return problems[0] if len(problems) == 1 else absent


@contextmanager
def copy_pipes(places: str) -> Iterator[str]:
    """Replace each pipe by a temporary copy, because a pipe is readable only once; yield the paths.

    Raises OSError if a pipe cannot be read.
    """
    paths = list_paths(places)
    if all(path.is_file() or path.is_dir() or not path.exists() for path in paths):
        yield places
        return
    with TemporaryDirectory(prefix="optsched-") as folder:
        for i, path in enumerate(paths):
            if path.exists() and not path.is_file() and not path.is_dir():
                paths[i] = Path(folder) / str(i)
                paths[i].write_bytes(path.read_bytes())
        yield os.pathsep.join(map(str, paths))


def find_mistake(places: str, server: str = "") -> str:
    """Return the first mistake in kubeconfig files; empty if there is none.

    `places` holds one or more paths in the format of KUBECONFIG; `copy_pipes` has replaced the
    pipes. `server` is an address that overrides the servers in the files, or an empty string.
    """
    paths = list_paths(places)
    several = len(paths) > 1
    merged: dict[str, Any] = {section: {} for section in _SECTIONS}
    for path in paths:
        if not path.is_file():
            continue
        prefix = f"{path}: " if several else ""
        config, problem = _read(path)
        if problem:
            return prefix + problem
        for section in _SECTIONS:
            for entry in config.get(section) or ():
                merged[section].setdefault(entry["name"], (path, entry))
        if config.get("current-context"):
            merged.setdefault("current-context", config["current-context"])
    is_read = any(merged[section] for section in _SECTIONS) or all(map(Path.is_file, paths))
    return next(_reference_problems(merged, server), "") if is_read else ""


def _read(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return a kubeconfig's content, and its first mistake (empty if there is none)."""
    try:
        documents = list(read_yaml(path.read_text("utf-8-sig")))
    except OSError as e:
        return {}, str(e.strerror)
    except UnicodeDecodeError:
        return {}, "is not UTF-8 text"
    errors = [each for each in documents if isinstance(each, TextError)]
    values = [each.value for each in documents if isinstance(each, Document)]
    if len(values) != 1 or not isinstance(values[0], dict):
        problem = "the file has no clusters, contexts or users" if values else "the file is empty"
        if len(values) > 1:
            problem = f"the file holds {len(values)} YAML documents: a kubeconfig is one document"
        if errors:
            problem = f"line {errors[0].line}, column {errors[0].column}: {errors[0].message}"
        return {}, problem
    config = values[0]
    for section in _SECTIONS:
        entries, field = config.get(section) or [], section[:-1]
        if not isinstance(entries, list):
            return config, f"{section}: has to be a list of entries with a name and a {field}"
        for i, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                return config, f"{section}[{i}]: has no name"
            if not isinstance(entry.get(field) or {}, dict):
                return config, f"{section}[{i}]: {entry['name']}: {field} has to be a mapping"
    return config, ""


def _reference_problems(merged: Mapping[str, Any], server: str) -> Iterator[str]:
    current = merged.get("current-context")
    if not current or not isinstance(current, str):
        yield "current-context is missing: write the name of a context"
        return
    if current not in merged["contexts"]:
        yield f"current-context: there is no context {current!r}{_list_names(merged['contexts'])}"
        return
    context = merged["contexts"][current][1].get("context") or {}
    for section in ("clusters", "users"):
        name = context.get(section[:-1])
        if not name:
            if section == "clusters":
                yield f"context {current}: cluster is missing"
            continue
        if not isinstance(name, str) or name not in merged[section]:
            known = _list_names(merged[section])
            yield f"context {current}: there is no {section[:-1]} {name!r}{known}"
            continue
        path, entry = merged[section][name]
        fields = entry.get(section[:-1]) or {}
        head = f"{section[:-1]} {entry['name']}"
        address = server or fields.get("server")
        if section == "clusters" and not is_http_address(str(address or "")):
            mistake = " is missing" if address is None else f": {address!r} is not an address"
            yield f"{head}: server{mistake}: write https://HOST:PORT"
        plugin = fields.get("exec")
        program = str(plugin.get("command") or "") if isinstance(plugin, dict) else ""
        if program and os.sep not in program and shutil.which(program) is None:
            yield f"{head}: exec: there is no program {program}: install it, or put it on the PATH"
        for field in _FILES[section]:
            file = fields.get(field)
            has_data = bool(fields.get(f"{field}-data"))
            if file and not has_data and not (path.parent / Path(str(file)).expanduser()).is_file():
                yield f"{head}: {field}: {file}: there is no such file"
    namespace = context.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        yield f"context {current}: namespace: {namespace!r} is not a valid name"


def _list_names(names: Iterable[str]) -> str:
    found = ", ".join(sorted(names))
    return f"; there are {found}" if found else ""
