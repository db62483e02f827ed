"""The parts of a plugin of jobs: its arguments, and the pod that it adds to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import JOB
from optsched.controllers.job.object_names import template_spec
from optsched.controllers.json_fields import records, subobject, without_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.kinds import Kind


Value: TypeAlias = str | int | bool
Defaults: TypeAlias = "tuple[tuple[str, Value], ...]"

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


@dataclass(frozen=True, slots=True)
class Flags:
    """Values of a plugin's flags. problems: arguments that cannot be read, with what can."""

    values: Mapping[str, Value]
    problems: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """A flag that takes a text."""
        return str(self.values[name])

    def number(self, name: str) -> int:
        """A flag that takes a number."""
        return int(self.values[name])

    def boolean(self, name: str) -> bool:
        """A flag that is true or false."""
        return bool(self.values[name])


@lru_cache(maxsize=1024)
def read_flags(arguments: tuple[str, ...], defaults: Defaults) -> Flags:
    """The flags in arguments such as `--port=22` or `-port 22`.

    defaults: every flag with its value; the value's type is the flag's. As in Go, reading ends
    with the first argument that cannot be read.
    """
    values = dict(defaults)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, text = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in values:
            accepted = ", ".join(f"--{known}" for known in values) or "no arguments"
            return Flags(values, (f"{argument!r} is not one of {accepted}",))
        is_switch = isinstance(values[name], bool)
        if not equals:
            text = "true" if is_switch else left.pop(0) if left else ""
        value = _value(text, values[name])
        if value is None:
            kind = "true or false" if is_switch else "a whole number"
            return Flags(values, (f"{argument!r}: {text!r} is not {kind}",))
        values[name] = value
    return Flags(values)


_MAX_DIGITS: Final = 20
"""Characters of a whole number; Go reads 64 bits."""


def _value(text: str, like: Value) -> Value | None:
    if isinstance(like, bool):
        return True if text in _TRUE else False if text in _FALSE else None
    if isinstance(like, int):
        is_number = text.removeprefix("-").isdecimal() and len(text) <= _MAX_DIGITS
        return int(text) if is_number else None
    return text


Container = dict[str, Any]
_LISTS = ("env", "volumeMounts", "ports")


@dataclass(slots=True)
class Draft:
    """A pod of a job, to be added to.

    Parts of the template that are not listed here are shared with it, and must not be changed in
    place.
    """

    job: Job
    task: TaskSpec
    index: int
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    containers: list[Container] = field(default_factory=list)
    init_containers: list[Container] = field(default_factory=list)

    @property
    def all_containers(self) -> list[Container]:
        """Init containers, and then the others."""
        return [*self.init_containers, *self.containers]

    def add_volume(self, volume: dict[str, Any]) -> None:
        """Give the pod a volume."""
        self.spec["volumes"] = [*records(self.spec, "volumes"), volume]


def draft_of(job: Job, task: TaskSpec, index: int, name: str) -> Draft:
    """The pod as its task's template has it."""
    meta, spec = subobject(task.template, "metadata"), dict(template_spec(task))
    return Draft(
        job=job,
        task=task,
        index=index,
        name=name,
        labels=dict(subobject(meta, "labels")),
        annotations=without_record(subobject(meta, "annotations")),
        spec=spec,
        containers=[_open(each) for each in records(spec, "containers")],
        init_containers=[_open(each) for each in records(spec, "initContainers")],
    )


def finished_spec(draft: Draft) -> dict[str, Any]:
    """The spec of a pod to which everything has been added."""
    spec = draft.spec
    spec["containers"] = [_closed(each) for each in draft.containers]
    if draft.init_containers:
        spec["initContainers"] = [_closed(each) for each in draft.init_containers]
    return spec


def add_env(containers: Iterable[Container], *variables: dict[str, Any]) -> None:
    """Add variables to containers, behind those that they have."""
    for container in containers:
        container["env"] += variables


def add_port(containers: Iterable[Container], name: str, port: int) -> None:
    """Open a port of containers, unless they name it already."""
    for container in containers:
        if all(known.get("containerPort") != port for known in container["ports"]):
            container["ports"].append({"name": name, "containerPort": port, "protocol": "TCP"})


def add_mount(containers: Iterable[Container], *mounts: dict[str, Any]) -> None:
    """Mount volumes in containers."""
    for container in containers:
        container["volumeMounts"] += mounts


def _open(container: Mapping[str, Any]) -> Container:
    return {**container, **{name: records(container, name) for name in _LISTS}}


def _closed(container: Container) -> Container:
    return {name: value for name, value in container.items() if value or name not in _LISTS}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key for ssh. private: in PEM. public: a line as in authorized_keys."""

    private: str
    public: str


@dataclass(frozen=True, slots=True)
class Extra:
    """An object that a plugin needs in addition to the pods.

    manifest: as it is created, but for owner and namespace.
    kept: fields by name that are corrected when they differ; all others belong to other writers.
    with_keys: the manifest with keys that are made when it is created; None where it needs none.
    """

    kind: Kind
    name: str
    manifest: Mapping[str, Any]
    kept: Mapping[str, Any]
    with_keys: Callable[[KeyPair], Mapping[str, Any]] | None = None


def _no_extras(job: Job, flags: Flags) -> tuple[Extra, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin of jobs.

    flags: its arguments with their defaults.
    dress: adds to a pod what the plugin gives it.
    extras: the objects that it needs in addition to the pods.
    needs: plugins that it does not work without.
    """

    name: str
    flags: Defaults
    dress: Callable[[Draft, Flags], None]
    extras: Callable[[Job, Flags], tuple[Extra, ...]] = _no_extras
    needs: tuple[str, ...] = ()


def variable(name: str, value: object) -> dict[str, Any]:
    """A variable of a container's environment."""
    return {"name": name, "value": str(value)}


def task_named(job: Job, name: str) -> TaskSpec | None:
    """The task of that name, if the job has it."""
    return next((task for task in job.spec.tasks if task.name == name), None)


def replicas_of(job: Job, name: str) -> int:
    """How many pods the task of that name has; 0 without such a task."""
    task = task_named(job, name)
    return 0 if task is None else task.replicas


def is_of_job(owner: Mapping[str, Any] | None, job: Job) -> bool:
    """Whether a reference names a job of this name, be it this one or one that was there before."""
    return (
        owner is not None
        and owner.get("apiVersion") == JOB.api_version
        and owner.get("kind") == JOB.kind
        and owner.get("name") == job.meta.name
    )
