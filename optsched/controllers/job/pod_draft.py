"""A pod while it is being made: the parts of its template that plugins add to are copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched.controllers.job.object_names import template_spec
from optsched.controllers.json_fields import records, subobject, without_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.job import Job, TaskSpec

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
