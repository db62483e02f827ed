"""Objects that commands make of their flags."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.api.kinds import COMMAND, JOB, QUEUE
from optsched.units import QuantityError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind

DEFAULT_AMOUNTS: Final = "cpu=1000m,memory=100Mi"
_JOB_LABEL: Final = "job.volcano.sh"
_FORM: Final = "write NAME=QUANTITY, with commas between, such as cpu=4,memory=8Gi"


class Amounts(click.ParamType[dict[str, str]]):
    """`cpu=1,memory=2Gi`, kept as written; a quantity that can not be read is refused."""

    name = "name=quantity,…"

    def convert(
        self, value: str | dict[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        """The quantities by resource."""
        if isinstance(value, dict):
            return value
        found: dict[str, str] = {}
        for part in filter(None, value.split(",")):
            resource, _, quantity = part.partition("=")
            if not resource or not quantity:
                self.fail(f"{part!r} is no amount of a resource: {_FORM}", param, ctx)
            try:
                parse_amount(resource, quantity)
            except QuantityError as e:
                self.fail(f"{resource}: {e}", param, ctx)
            found[resource] = quantity
        return found


AMOUNTS: Final = Amounts()


@dataclass(frozen=True, slots=True)
class JobFlags:
    """A job of one task. limits: None for the requests. command: as a shell would split it."""

    name: str
    image: str = "busybox"
    minimum: int = 1
    replicas: int = 1
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] | None = None
    scheduler: str = "volcano"
    queue: str = ""
    command: str = ""
    priority_class: str = ""


def job_manifest(flags: JobFlags, namespace: str) -> dict[str, Any]:
    """The job that `vcctl job run` makes; ValueError for a command with an open quote."""
    limits = flags.requests if flags.limits is None else flags.limits
    command = shlex.split(flags.command)
    container = {
        "name": flags.name,
        "image": flags.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": dict(flags.requests), "limits": dict(limits)},
        **({"command": command} if command else {}),
    }
    template = {
        "metadata": {"name": flags.name, "labels": {_JOB_LABEL: flags.name}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {
        "schedulerName": flags.scheduler,
        "minAvailable": flags.minimum,
        **({"queue": flags.queue} if flags.queue else {}),
        **({"priorityClassName": flags.priority_class} if flags.priority_class else {}),
        "tasks": [{"replicas": flags.replicas, "template": template}],
    }
    meta = {"name": flags.name, "namespace": namespace}
    return {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": meta, "spec": spec}


@dataclass(frozen=True, slots=True)
class QueueFlags:
    """The flags of a queue; None and empty where one is not given."""

    weight: int | None = None
    parent: str = ""
    priority: int | None = None
    reclaimable: bool | None = None
    capability: Mapping[str, str] | None = None
    deserved: Mapping[str, str] | None = None
    guarantee: Mapping[str, str] | None = None


def queue_spec(flags: QueueFlags) -> dict[str, Any]:
    """The fields of a queue's spec that are said; also the merge patch that changes them."""
    said = {
        "weight": flags.weight,
        "parent": flags.parent or None,
        "priority": flags.priority,
        "reclaimable": flags.reclaimable,
        "capability": flags.capability,
        "deserved": flags.deserved,
        "guarantee": None if flags.guarantee is None else {"resource": flags.guarantee},
    }
    return {name: value for name, value in said.items() if value is not None}


def queue_manifest(name: str, flags: QueueFlags) -> dict[str, Any]:
    """A queue."""
    head = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
    return {**head, "spec": queue_spec(flags)}


def command_manifest(
    kind: Kind, obj: Mapping[str, Any], action: str, namespace: str
) -> dict[str, Any]:
    """A Command for an object, which goes with it (Volcano's CreateJobCommand)."""
    meta = obj["metadata"]
    target = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": meta["name"],
        "uid": meta.get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": COMMAND.api_version,
        "kind": COMMAND.kind,
        "metadata": {
            "generateName": f"{meta['name']}-{action.lower()}-",
            "namespace": namespace,
            "ownerReferences": [target],
        },
        "target": target,
        "action": action,
    }
