"""Queues (`scheduling.volcano.sh/v1beta1`), among which the cluster is shared.

Names, defaults and limits are from Volcano's scheduling/v1beta1/types.go and its queue webhooks
(pkg/webhooks/admission/queues). Unlike in Volcano 1.14 and later, a queue may have a guarantee
without a deserved amount.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.api.crds import schema_of
from optsched.api.fields import Fields
from optsched.api.meta import ApiObject, parse_meta
from optsched.units import format_quantity, format_resource_list, whole_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.units import FieldError

_DEVICE_CLASS: Final = "deviceclass/"
_ACCESS_LISTS: Final = (wellknown.QUEUE_USERS, wellknown.QUEUE_GROUPS, wellknown.QUEUE_NAMESPACES)


class QueueState(StrEnum):
    """The state of a queue; only an open queue accepts PodGroups."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


class DequeueStrategy(StrEnum):
    """Whether a job that does not fit blocks later jobs of its queue (fifo) or not (traverse)."""

    FIFO = "fifo"
    TRAVERSE = "traverse"


@dataclass(frozen=True, slots=True)
class NodeGroupTerms:
    """The required and the preferred node groups of a node group affinity or anti-affinity."""

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueAffinity:
    """A queue's affinity and anti-affinity to node groups."""

    node_group_affinity: NodeGroupTerms = NodeGroupTerms()
    node_group_anti_affinity: NodeGroupTerms = NodeGroupTerms()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Another cluster to which jobs of a queue may be forwarded."""

    name: str
    weight: int = 0
    capacity: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceQuota:
    """A queue's quotas on devices that pods claim through dynamic resource allocation (DRA).

    The keys of the quotas are the same as in Volcano's capacity plugin. `deviceclass/<class>`
    limits the number of devices; `<dimension>.deviceclass/<class>` limits a consumable capacity of
    the devices.
    """

    capability: Mapping[str, int] = field(default_factory=dict)
    deserved: Mapping[str, int] = field(default_factory=dict)
    guarantee: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The number of a queue's PodGroups in each phase."""

    unknown: int = 0
    pending: int = 0
    running: int = 0
    inqueue: int = 0
    completed: int = 0


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The stored status of a queue; amounts are in base units, keyed by resource."""

    state: QueueState = QueueState.OPEN
    allocated: Mapping[str, int] = field(default_factory=dict)
    counts: QueueCounts = QueueCounts()
    reserved_nodes: tuple[str, ...] = ()
    reservation: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue(ApiObject):
    """A queue; amounts are in base units, keyed by resource.

    Device fractions are rounded down in `capability` and `deserved`, and up in `guarantee`. A
    resource that is not listed in `capability` has no limit. `deserved` holds the amounts in the
    spec; in `effective_deserved`, the guarantee replaces missing amounts. `parent` is empty for a
    top-level queue. The scheduler places no task of a queue with errors.
    """

    weight: int = 1
    capability: Mapping[str, int] = field(default_factory=dict)
    deserved: Mapping[str, int] = field(default_factory=dict)
    guarantee: Mapping[str, int] = field(default_factory=dict)
    reclaimable: bool = True
    parent: str = ""
    priority: int = 0
    affinity: QueueAffinity = QueueAffinity()
    dequeue_strategy: DequeueStrategy = DequeueStrategy.TRAVERSE
    type: str = ""
    extend_clusters: tuple[Cluster, ...] = ()
    devices: DeviceQuota = DeviceQuota()
    status: QueueStatus = QueueStatus()

    @property
    def access_lists(self) -> dict[str, frozenset[str]]:
        """The names in the queue's three access lists, keyed by the annotation that holds the list.

        Every user may submit jobs to the queue if all three lists are empty.
        """
        found: dict[str, frozenset[str]] = {}
        for key in _ACCESS_LISTS:
            names = (name.strip() for name in self.meta.annotations.get(key, "").split(","))
            found[key] = frozenset(filter(None, names))
        return found

    def lists(self, subject: wellknown.Subject, namespace: str) -> bool:
        """Return whether the access lists contain a user, a group of the user or the namespace."""
        lists = self.access_lists
        return (
            subject.user in lists[wellknown.QUEUE_USERS]
            or bool(subject.groups & lists[wellknown.QUEUE_GROUPS])
            or namespace in lists[wellknown.QUEUE_NAMESPACES]
        )

    @property
    def effective_deserved(self) -> dict[str, int]:
        """The deserved amount of each resource; the guarantee if no deserved amount is set."""
        return {**self.guarantee, **self.deserved}

    @property
    def hierarchy(self) -> str:
        """The value of Volcano's hierarchy annotation, such as root/eng/prod, or empty."""
        return self.meta.annotations.get(wellknown.HIERARCHY, "")

    @property
    def hierarchy_weights(self) -> str:
        """The weights of the queues along the path `hierarchy`, such as 1/2/8."""
        return self.meta.annotations.get(wellknown.HIERARCHY_WEIGHTS, "")

    @property
    def overuse_tolerance(self) -> str:
        """The unparsed overuse tolerance: other queues reclaim only usage beyond this tolerance."""
        return self.meta.annotations.get(wellknown.OVERUSE_TOLERANCE, "")


def parse_queue(obj: object) -> tuple[Queue | None, tuple[FieldError, ...]]:
    """Parse a queue from a manifest or API object; return it with its field errors.

    The queue is None only if the object has no name. Invalid fields take their default values, so
    the queue can still be displayed. A queue with errors accepts no gangs.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, schema_of(kinds.QUEUE), "", errors)
    spec, status = whole.record("spec"), _status(whole.record("status"))
    guarantee = spec.record("guarantee").amounts("resource")
    deserved = spec.amounts("deserved")
    _check_floor(spec, "deserved", deserved, guarantee)
    # Deserved amounts are rounded down to whole devices, and guarantees are rounded up. Rounding
    # must not lower a deserved amount below the guarantee.
    deserved = {
        resource: max(amount, min(guarantee.get(resource, 0), deserved[resource]))
        for resource, amount in _whole_amounts(spec, "deserved", deserved).items()
    }
    capability = _whole_amounts(spec, "capability", spec.amounts("capability"))
    _check_floor(spec, "capability", capability, guarantee)
    affinity, devices = spec.record("affinity"), spec.record("dra")
    # Go clients write an unset weight as 0; Volcano's webhook replaces 0 with 1.
    weight = spec.raw("weight")
    is_unset = type(weight) is int and weight == 0
    queue = Queue(
        meta=meta,
        weight=1 if is_unset else spec.integer("weight"),
        capability=capability,
        deserved=deserved,
        guarantee=guarantee,
        reclaimable=spec.boolean("reclaimable"),
        parent=spec.text("parent"),
        priority=spec.integer("priority"),
        affinity=QueueAffinity(
            node_group_affinity=_node_groups(affinity.record("nodeGroupAffinity")),
            node_group_anti_affinity=_node_groups(affinity.record("nodeGroupAntiAffinity")),
        ),
        dequeue_strategy=DequeueStrategy(spec.text("dequeueStrategy")),
        type=spec.text("type"),
        extend_clusters=tuple(
            Cluster(each.text("name"), each.integer("weight"), each.amounts("capacity"))
            for each in spec.records("extendClusters")
        ),
        devices=DeviceQuota(
            capability=_device_amounts(devices, "capability"),
            deserved=_device_amounts(devices, "deserved"),
            guarantee=_device_amounts(devices, "guarantee"),
        ),
        status=status,
        errors=tuple(errors),
    )
    return queue, queue.errors


def _whole_amounts(spec: Fields, name: str, found: Mapping[str, int]) -> dict[str, int]:
    """Return a field's resource quantities in base units, with device fractions rounded down."""
    raw: Any = spec.raw(name)
    return {resource: whole_amount(resource, raw[resource]) for resource in found}


def _check_floor(
    spec: Fields, name: str, amounts: Mapping[str, int], guarantee: Mapping[str, int]
) -> None:
    for resource in sorted(amounts.keys() & guarantee.keys()):
        if amounts[resource] < guarantee[resource]:
            spec.reject(
                f"{name}[{resource}]",
                format_quantity(amounts[resource], resource),
                "is below the guarantee: write at least "
                + format_quantity(guarantee[resource], resource),
            )


def _node_groups(fields: Fields) -> NodeGroupTerms:
    return NodeGroupTerms(
        required=fields.texts("requiredDuringSchedulingIgnoredDuringExecution"),
        preferred=fields.texts("preferredDuringSchedulingIgnoredDuringExecution"),
    )


def _device_amounts(dra: Fields, name: str) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for device_class, quota in dra.records_by_name(name):
        key = f"{_DEVICE_CLASS}{device_class}"
        amounts[key] = quota.integer("count")
        for dimension, amount in quota.amounts("capacity").items():
            amounts[f"{dimension}.{key}"] = amount
    return amounts


def _status(status: Fields) -> QueueStatus:
    reservation = status.record("reservation")
    return QueueStatus(
        state=QueueState(status.text("state") or QueueState.OPEN),
        allocated=status.amounts("allocated"),
        counts=QueueCounts(
            unknown=status.integer("unknown"),
            pending=status.integer("pending"),
            running=status.integer("running"),
            inqueue=status.integer("inqueue"),
            completed=status.integer("completed"),
        ),
        reserved_nodes=reservation.texts("nodes"),
        reservation=reservation.amounts("resource"),
    )


def queue_status_patch(
    allocated: Mapping[str, int], counts: QueueCounts, *, previous: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the JSON merge patch that sets a queue's allocated amounts and PodGroup counts.

    `allocated` maps resources to amounts in base units. `previous` holds the resources in the
    stored status; a null value in the patch removes each resource that is not in `allocated`.
    The patch includes counts of zero, because they must overwrite the stored counts.
    """
    removed = dict.fromkeys(sorted(set(previous) - allocated.keys()))
    return {
        "status": {
            "allocated": {**format_resource_list(allocated), **removed},
            "unknown": counts.unknown,
            "pending": counts.pending,
            "running": counts.running,
            "inqueue": counts.inqueue,
            "completed": counts.completed,
        }
    }
