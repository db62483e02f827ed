"""Load a policy from a model name or a file, and reload it when the file changes.

Only this module of the package `policy` performs I/O. The caller provides the function that reads
files. Shipped models are package data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from optsched.policy.catalogue import PluginSource
from optsched.policy.diagnostic import Diagnostic, Findings, PolicyError, nearest
from optsched.policy.located import read_tree
from optsched.policy.policy_formats import API_VERSION, KIND, read_model, read_volcano_configuration

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.policy.catalogue import Files
    from optsched.policy.located import Node
    from optsched.policy.policy import Policy


_MODELS = "optsched.models"
_SUFFIX = ".yaml"
_SHIPPED = "model "
_NO_PLUGINS = PluginSource()
_SECRET = re.compile(
    r"""((?:password|passwd|token|secret)[\w.-]*["']?\s*:)[^\S\n]*[^\s,}][^,}\n]*""", re.I
)
"""A pattern that matches the key and the value of a secret, such as a password."""

PLUGINS_DIR = "pluginsDir"
"""The field of models and Volcano configurations that names a plugin folder."""


class ShippedModel(NamedTuple):
    """The name and the purpose of a shipped model."""

    name: str
    meaning: str


def shipped_models() -> tuple[ShippedModel, ...]:
    """Return the shipped models, sorted by name."""
    return tuple(ShippedModel(p.name, p.meaning) for p in map(_load_shipped, _shipped_names()))


def _shipped_names() -> list[str]:
    names = (entry.name for entry in files(_MODELS).iterdir())
    return sorted(n.removesuffix(_SUFFIX) for n in names if n.endswith(_SUFFIX))


def _load_shipped(name: str, plugins: PluginSource = _NO_PLUGINS) -> Policy:
    return parse_policy(_shipped_text(name), f"{_SHIPPED}{name}", plugins)


def _shipped_text(name: str) -> str:
    return files(_MODELS).joinpath(f"{name}{_SUFFIX}").read_text("utf-8")


def load_policy(
    name_or_path: str, read: Callable[[Path], str], plugins: PluginSource = _NO_PLUGINS
) -> Policy:
    """Return the policy with the given name or path.

    Parameters
    ----------
    name_or_path
        The name of a shipped model, or the path of a file that contains a model or a Volcano
        scheduler configuration. A shipped model takes precedence over a file with the same name.
        The path `./NAME` always means the file.
    read
        A function that returns the text of a file. If `read` raises OSError or UnicodeError,
        `load_policy` raises `PolicyError`.
    plugins
        The folder and the entry points from which custom plugins and actions are loaded.

    Raises
    ------
    PolicyError
        If the policy is invalid or cannot be read. The exception lists all errors and warnings.
    """
    if is_shipped(name_or_path):
        return _load_shipped(name_or_path, plugins)
    return parse_policy(read_text(name_or_path, read), name_or_path, plugins)


def is_shipped(name: str) -> bool:
    """Return whether a shipped model has the given name."""
    return name in _shipped_names()


def read_text(path: str, read: Callable[[Path], str]) -> str:
    """Return the text of a file, or raise `PolicyError` if the file cannot be read."""
    names = _shipped_names()
    if not path.strip():
        message = f"the name of the model is empty: write one of {', '.join(names)}, or a file"
        raise PolicyError([_about_file("model", message)])
    try:
        return read(Path(path))
    except FileNotFoundError as e:
        message = f"there is no such model or file; the shipped models are {', '.join(names)}"
        raise PolicyError([_about_file(path, message, nearest(path, names))]) from e
    except OSError as e:
        raise PolicyError([_about_file(path, f"cannot be read: {e.strerror or e}")]) from e
    except UnicodeError as e:
        raise PolicyError([_about_file(path, "is not UTF-8 text")]) from e


def _about_file(path: str, message: str, likely: str = "") -> Diagnostic:
    return Diagnostic(path, 0, 0, "", message, likely)


def parse_policy(text: str, source: str, plugins: PluginSource = _NO_PLUGINS) -> Policy:
    """Parse a policy from `text`, which is a model or a Volcano scheduler configuration.

    If `text` is invalid, raises `PolicyError` with all errors. If `text` names a plugin folder, it
    must be the folder of `plugins`, because only the command line may decide which code is loaded.
    """
    findings = Findings()
    root = read_tree(text, source, findings)
    if root is None:
        raise PolicyError(findings.problems)
    kind, version = _read_word(root, "kind"), _read_word(root, "apiVersion") or ""
    is_model = kind == KIND or version.split("/")[0] == API_VERSION.split("/")[0]
    has_part = _read_word(root, "actions") is not None or _read_word(root, "tiers") is not None
    if not is_model and not (has_part and kind is None):
        spot = root.spot
        if isinstance(root.value, dict) and "kind" in root.value:
            spot = root.value["kind"].node.spot
        if kind == "ConfigMap":
            message = "is a ConfigMap; the policy is the value of one of its data keys"
        else:
            what = f"kind {kind} is" if kind else "is"
            message = (
                f"{what} neither a model (kind: {KIND}) nor a configuration of Volcano's scheduler "
                f"(actions and tiers); the shipped models are {', '.join(_shipped_names())}"
            )
        findings.error(spot, message)
        raise PolicyError(findings.problems)
    _check_folder(root, source, plugins, findings)
    plugin_files = plugins.read_files()
    catalogue = plugins.build_catalogue(plugin_files)
    parse = read_model if is_model else read_volcano_configuration
    policy = parse(root, source, findings, catalogue)
    warnings = (*catalogue.warnings, *policy.warnings)
    return replace(policy, warnings=warnings, plugin_files=plugin_files)


def definition_of(policy: Policy, read: Callable[[Path], str]) -> str:
    """Return the source text of a policy, with passwords and other secrets replaced by asterisks.

    Raises `PolicyError` if the policy file can no longer be read.
    """
    shipped = policy.source.removeprefix(_SHIPPED)
    if policy.source.startswith(_SHIPPED) and is_shipped(shipped):
        text = _shipped_text(shipped)
    else:
        text = read_text(policy.source, read)
    return _SECRET.sub(r"\1 '***'", text)


def _check_folder(root: Node, source: str, plugins: PluginSource, findings: Findings) -> None:
    """Raise `PolicyError` if the policy's plugin folder is not named on the command line."""
    named = _read_word(root, PLUGINS_DIR)
    if not named:
        return
    folder = Path(source).parent / named
    if plugins.folder is not None and plugins.folder.absolute() == folder.absolute():
        return
    spot = root.value[PLUGINS_DIR].node.spot if isinstance(root.value, dict) else root.spot
    message = f"plugins load only from the folder of --plugins-dir: write --plugins-dir {folder}"
    findings.error(spot, message)
    raise PolicyError(findings.problems)


def _read_word(root: Node, name: str) -> str | None:
    """Return the text of a top-level field in a YAML document, or None if it is missing."""
    if root.value is None or isinstance(root.value, bool | int | float | str | tuple):
        return None
    return root.value[name].node.text if name in root.value else None


# --- reload --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The result of a poll that found no change."""


@dataclass(frozen=True, eq=False, slots=True)
class Reloaded:
    """The result of a poll that found a valid change; `policy` is now in force."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Rejected:
    """The result of a poll that found an invalid change; the last valid policy stays in force."""

    problems: tuple[Diagnostic, ...]


Change: TypeAlias = Unchanged | Reloaded | Rejected

_Seen: TypeAlias = "tuple[str, Files] | tuple[Diagnostic, ...]"
"""The file contents at the last poll, or the errors if the files could not be read."""


class PolicyWatch:
    """The policy in force, reloaded when the policy file or a plugin file changes.

    Changes are detected by file contents, not by modification times or inodes, because Kubernetes
    updates a mounted ConfigMap by replacing symbolic links. A shipped model never changes.
    """

    def __init__(
        self, name_or_path: str, read: Callable[[Path], str], plugins: PluginSource = _NO_PLUGINS
    ) -> None:
        """Load the policy, and raise `PolicyError` if it is invalid."""
        self._path = None if is_shipped(name_or_path) else name_or_path
        self._read = read
        self._plugins = plugins
        self._seen: _Seen = ("", ())
        if self._path is None:
            self._policy = load_policy(name_or_path, read, plugins)
        else:
            text = read_text(self._path, read)
            self._policy = parse_policy(text, self._path, plugins)
            self._seen = (text, self._policy.plugin_files)

    @property
    def policy(self) -> Policy:
        """The last valid policy."""
        return self._policy

    def poll(self) -> Change:
        """Read the files again, and return what has changed since the last poll.

        An invalid change is returned only once; later polls return `Unchanged`.
        """
        if self._path is None:
            return Unchanged()
        try:
            text = read_text(self._path, self._read)
            seen = (text, self._plugins.read_files())
        except PolicyError as e:
            return self._reject(e.problems, e.problems)
        if seen == self._seen:
            return Unchanged()
        try:
            self._policy = parse_policy(text, self._path, self._plugins)
        except PolicyError as e:
            return self._reject(seen, e.problems)
        self._seen = (text, self._policy.plugin_files)
        return Reloaded(self._policy)

    def _reject(self, seen: _Seen, problems: tuple[Diagnostic, ...]) -> Unchanged | Rejected:
        if seen == self._seen:
            return Unchanged()
        self._seen = seen
        return Rejected(problems)
