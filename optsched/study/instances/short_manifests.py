"""Build minimal manifests of Kubernetes objects for instances, and format them as YAML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from optsched.api.wellknown import HOSTNAME, TASK_SPEC
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Manifest = dict[str, Any]
Amounts = dict[str, str]

NAMESPACE: Final = "jobs"

_GROUP: Final = "scheduling.k8s.io/group-name"
_VOLCANO: Final = "scheduling.volcano.sh/v1beta1"


def amounts(cpu: int, gib: int, gpus: int = 0, gpu: str = GPU) -> Amounts:
    """Return a Kubernetes resource list of CPUs, memory in GiB and GPUs."""
    found = {"cpu": str(cpu), "memory": f"{gib}Gi"}
    return {**found, gpu: str(gpus)} if gpus else found


def node(name: str, offered: Amounts, labels: Mapping[str, str] | None = None) -> Manifest:
    """Return a Node with the allocatable resources `offered`."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, **(labels or {})}},
        "status": {"allocatable": {**offered, "pods": "110"}},
    }


def queue(name: str, **spec: object) -> Manifest:
    """Return a Queue with the given spec fields; fields with the value None are omitted."""
    kept = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": _VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": kept}


def hypernode(name: str, tier: int, tier_name: str, members: Iterable[str]) -> Manifest:
    """Return a HyperNode; its members are nodes at tier 1 and HyperNodes at higher tiers."""
    kind = "Node" if tier == 1 else "HyperNode"
    listed = [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in members]
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, "tierName": tier_name, "members": listed},
    }


class Role(NamedTuple):
    """A group of equal pods in a gang, with their number, request and other settings."""

    number: int
    request: Amounts
    name: str = ""
    nodes: tuple[str, ...] = ()  # Node of each running pod; empty if the pods are pending.
    more: Mapping[str, Any] = {}  # Additional pod spec fields.
    labels: Mapping[str, str] = {}


class Order(NamedTuple):
    """Settings of a PodGroup."""

    queue: str = "default"
    least: int | None = None  # `minMember`; None stands for the number of pods.
    priority_class: str = ""  # Name of the PriorityClass; may be empty.
    more: Mapping[str, Any] = {}  # Additional PodGroup spec fields.


def gang(name: str, roles: Iterable[Role], order: Order) -> Iterator[Manifest]:
    """Yield the manifests of a PodGroup and its pods."""
    roles = tuple(roles)
    least = order.least if order.least is not None else sum(role.number for role in roles)
    named = {role.name: role.number for role in roles if role.name}
    runs = all(role.nodes for role in roles)
    priority = {"priorityClassName": order.priority_class} if order.priority_class else {}
    minimums = {"minTaskMember": named} if named else {}
    yield {
        "apiVersion": _VOLCANO,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minMember": least, "queue": order.queue, **priority, **minimums, **order.more},
        "status": {"phase": "Running" if runs else "Inqueue"},
    }
    number = 0
    for role in roles:
        labels = {**({TASK_SPEC: role.name} if role.name else {}), **role.labels}
        for i in range(role.number):
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": NAMESPACE,
                    "annotations": {_GROUP: name},
                    **({"labels": labels} if labels else {}),
                },
                "spec": {
                    "schedulerName": "volcano",
                    **priority,
                    **({"nodeName": role.nodes[i]} if role.nodes else {}),
                    "containers": [{"name": "main", "resources": {"requests": role.request}}],
                    **role.more,
                },
                "status": {"phase": "Running" if role.nodes else "Pending"},
            }
            number += 1


def gangs_for(amount: int, draw: Callable[[], tuple[int, Role, Order]]) -> Iterator[Manifest]:
    """Yield gangs until their total demand reaches `amount`.

    `draw` returns the demand, the `Role` and the `Order` of the next gang.
    """
    number = 0
    while amount > 0:
        requested, role, order = draw()
        yield from gang(f"g{number:03d}", [role], order)
        amount -= requested
        number += 1


def foreign_pod(name: str, request: Amounts, at: str) -> Manifest:
    """Return a running pod of another scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "others"},
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeName": at,
            "containers": [{"name": "main", "resources": {"requests": request}}],
        },
        "status": {"phase": "Running"},
    }


def text_of(objects: Iterable[Manifest], remark: str) -> str:
    """Return `remark` as a YAML comment, then the objects as a List with one object per line."""
    lines = [
        *(f"# {line}" for line in remark.splitlines()),
        "apiVersion: v1",
        "kind: List",
        "items:",
        *(f"- {json.dumps(each, separators=(', ', ': '))}" for each in objects),
    ]
    return "\n".join([*lines, ""])
