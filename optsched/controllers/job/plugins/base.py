"""The parts of a plugin of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import JOB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.job import Job, TaskSpec
    from optsched.api.kinds import Kind
    from optsched.controllers.job.plugins.flags import Defaults, Flags
    from optsched.controllers.job.pod_draft import Draft


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key for ssh. private: in PEM. public: a line as in authorized_keys."""

    private: str
    public: str


@dataclass(frozen=True, slots=True)
class Extra:
    """An object that a plugin needs in addition to the pods.

    Attributes
    ----------
    manifest
        As it is created, but for owner and namespace.
    kept
        Fields by name that are corrected when they differ; all others belong to other writers.
    with_keys
        The manifest with keys that are made when it is created; None where it needs none.

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

    Attributes
    ----------
    flags
        Its arguments with their defaults.
    dress
        Adds to a pod what the plugin gives it.
    extras
        The objects that it needs in addition to the pods.
    needs
        Plugins that it does not work without.

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
