"""The interface of job plugins: arguments, changes to pods, and objects to create."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from optsched.api.json_fields import records
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.kinds import Kind


Value: TypeAlias = str | int | bool
Defaults: TypeAlias = "tuple[tuple[str, Value], ...]"

T = TypeVar("T")

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of a plugin's flags.

    `problems` lists the invalid arguments, each with the accepted values.
    """

    values: Mapping[str, Value]
    problems: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return the value of a string flag."""
        return str(self.values[name])

    def number(self, name: str) -> int:
        """Return the value of a numeric flag."""
        return int(self.values[name])

    def boolean(self, name: str) -> bool:
        """Return the value of a boolean flag."""
        return bool(self.values[name])


@lru_cache(maxsize=1024)
def read_flags(arguments: tuple[str, ...], defaults: Defaults) -> Flags:
    """Parse arguments such as `--port=22` or `-port 22`.

    `defaults` contains every flag with its default value, which determines the flag's type. As in
    Go, parsing ends at the first invalid argument.
    """
    values = dict(defaults)
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        name, equals, text = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in values:
            accepted = ", ".join(f"--{known}" for known in values) or "no arguments"
            return Flags(values, (f"{argument!r} is not one of {accepted}",))
        is_switch = isinstance(values[name], bool)
        if not equals:
            text = "true" if is_switch else remaining.pop(0) if remaining else ""
        value: Value | None = text
        if is_switch:
            value = True if text in _TRUE else False if text in _FALSE else None
        elif isinstance(values[name], int):
            is_number = is_decimal(text.removeprefix("-"), _MAX_DIGITS - text.startswith("-"))
            value = int(text) if is_number else None
        if value is None:
            kind = "true or false" if is_switch else "a whole number"
            return Flags(values, (f"{argument!r}: {text!r} is not {kind}",))
        values[name] = value
    return Flags(values)


_MAX_DIGITS: Final = 20
"""Maximum number of digits of an integer flag; Go parses the value as a 64-bit integer."""


Container = dict[str, Any]


@dataclass(slots=True)
class Draft:
    """A job's pod before its creation, while plugins may change it.

    Values nested in `spec` are shared with the task's template and must not be changed in place.
    `memo` holds the results of `once_per_job`, keyed by plugin.
    """

    job: Job
    task: TaskSpec
    index: int
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    containers: list[Container]
    init_containers: list[Container]
    memo: dict[str, Any]

    def once_per_job(self, plugin: str, compute: Callable[[], T]) -> T:
        """Return a plugin's `compute()` result, which is computed once for all pods of the job."""
        if plugin not in self.memo:
            self.memo[plugin] = compute()
        return cast("T", self.memo[plugin])

    @property
    def all_containers(self) -> list[Container]:
        """All containers of the pod, init containers first."""
        return [*self.init_containers, *self.containers]

    def add_volume(self, volume: dict[str, Any]) -> None:
        """Add a volume to the pod."""
        self.spec["volumes"] = [*records(self.spec, "volumes"), volume]


def add_mount(containers: Iterable[Container], *mounts: dict[str, Any]) -> None:
    """Add volume mounts to each container."""
    for container in containers:
        container["volumeMounts"] += mounts


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An SSH key pair.

    `private` is in PEM format; `public` is a line for an authorized_keys file.
    """

    private: str
    public: str


@dataclass(frozen=True, slots=True)
class PluginObject:
    """An object that a plugin creates in addition to the pods.

    Attributes
    ----------
    manifest
        The object to create, without its owner and namespace.
    kept
        The fields that the controller corrects if they differ; it leaves other fields unchanged.
    with_keys
        Adds newly generated SSH keys to the manifest; None if the object needs no keys.
    """

    kind: Kind
    name: str
    manifest: Mapping[str, Any]
    kept: Mapping[str, Any]
    with_keys: Callable[[KeyPair], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Plugin:
    """A job plugin.

    Attributes
    ----------
    flags
        The plugin's flags with their default values.
    change_pod
        Changes the draft of a pod.
    list_objects
        Returns the objects that the plugin creates in addition to the pods.
    needs
        Names of the plugins that this plugin requires.
    """

    name: str
    flags: Defaults
    change_pod: Callable[[Draft, Flags], None]
    list_objects: Callable[[Job, Flags], tuple[PluginObject, ...]] = lambda job, flags: ()
    needs: tuple[str, ...] = ()
