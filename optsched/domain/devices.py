"""Devices that claims ask for (dynamic resource allocation, resource.k8s.io).

Kubernetes: KEP-4381 (structured parameters). What is here is the part that is allocated here: whole
devices of a node, by number. Claims that ask for more carry their problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from optsched.domain.amounts import total
from optsched.domain.cel import CelError, Unsupported, Value, compile_selector
from optsched.units import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from optsched.domain.amounts import Amounts
    from optsched.domain.selectors import NodeSelector
    from optsched.domain.task import Task

MOST_CONSUMERS = 256
"""Pods that one claim may be reserved for (`ResourceClaimReservedForMaxSize`)."""

CLASS_PREFIX = "deviceclass/"
"""Begins the name under which queues count devices of a class; a dimension may stand before it."""


def is_class_quota(resource: str) -> bool:
    """Whether a resource counts devices of a class: no node runs out of it by itself."""
    return resource.partition("/")[0].rpartition(".")[2] == CLASS_PREFIX[:-1]


class DeviceId(NamedTuple):
    """One device, as allocations name it."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class Version(NamedTuple):
    """An attribute that is a semantic version; selectors do not look into it."""

    text: str


Attribute: TypeAlias = bool | int | str | Version


@dataclass(frozen=True)
class PooledDevice:
    """A device of a node.

    Attributes
    ----------
    attributes
        (domain/name, value), in order.
    capacity
        (domain/name, quantity as it is written), in order.
    problem
        Why it is not given out here; empty when it is.
    """

    id: DeviceId
    attributes: tuple[tuple[str, Attribute], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def driver(self) -> str:
        """See `cel.Seen`."""
        return self.id.driver

    @cached_property
    def attributes_by_domain(self) -> Mapping[str, Mapping[str, Value]]:
        """See `cel.Seen`; versions are left out."""
        plain = ((n, v) for n, v in self.attributes if not isinstance(v, Version))
        return _by_domain(list(plain))

    @cached_property
    def capacity_by_domain(self) -> Mapping[str, Mapping[str, Value]]:
        """See `cel.Seen`."""
        return _by_domain([(name, parse_quantity(text)) for name, text in self.capacity])


def _by_domain(entries: Sequence[tuple[str, Value]]) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    for name, value in entries:
        domain, _, short = name.rpartition("/")
        found.setdefault(domain, {})[short] = value
    return found


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """One request of a claim: so many devices of a class, all different.

    Attributes
    ----------
    name
        Of the request, as the allocation repeats it.
    selectors
        CEL expressions that every device must meet besides those of the class.
    counted
        What it counts for in queues, by `deviceclass/…`.
    problem
        Why it is not allocated here; empty when it is.
    """

    name: str
    device_class: str
    number: int = 1
    selectors: tuple[str, ...] = ()
    counted: Amounts = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """What a claim has got.

    Attributes
    ----------
    nodes
        Where pods may use it; None for everywhere.
    devices
        (request, device) that nobody else gets.
    """

    nodes: NodeSelector | None = None
    devices: tuple[tuple[str, DeviceId], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim.

    Attributes
    ----------
    key
        `namespace/name`.
    reserved_for
        Uids of pods that may use it, in order.
    is_own
        Whether it was made for one pod, so that no other names it.
    problem
        Why no pod can use it; empty when pods can.
    """

    key: str
    uid: str = ""
    needs: tuple[DeviceNeed, ...] = ()
    allocation: DeviceAllocation | None = None
    reserved_for: tuple[str, ...] = ()
    is_own: bool = False
    problem: str = ""

    @property
    def counted(self) -> Mapping[str, int]:
        """What it counts for in queues."""
        return total(need.counted for need in self.needs)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: expressions that its devices meet."""

    name: str
    selectors: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What a plan allocates to a claim when a task is bound; nothing where it has got all."""

    claim: str
    devices: tuple[tuple[str, DeviceId], ...] = ()


@dataclass(frozen=True)
class Devices:
    """All that there is to be claimed.

    Attributes
    ----------
    claims
        By key.
    classes
        By name.
    on_node
        Devices by name of the node, in order; nodes without any are left out.
    """

    claims: Mapping[str, DeviceClaim] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    on_node: Mapping[str, tuple[PooledDevice, ...]] = field(default_factory=dict)

    @cached_property
    def held_by(self) -> Mapping[DeviceId, str]:
        """The claim that holds each device that is taken."""
        return {
            device: claim.key
            for claim in self.claims.values()
            if claim.allocation is not None
            for _, device in claim.allocation.devices
        }

    def freed(self, residents: Iterable[Task], gone: Collection[str]) -> frozenset[str]:
        """Claims that nobody uses any more once some of the tasks on nodes, by key, have gone."""
        users: dict[str, set[str]] = {}
        uids: dict[str, set[str]] = {}
        for task in residents:
            for key in task.device_claims:
                users.setdefault(key, set()).add(task.key)
                uids.setdefault(key, set()).add(task.uid)
        return frozenset(
            key
            for key, names in users.items()
            if key in self.claims
            and names <= set(gone)
            and set(self.claims[key].reserved_for) <= uids[key]
        )

    def without(self, gone: Collection[str]) -> Devices:
        """The same when some claims, by key, have given back what they have."""
        if not gone:
            return self
        claims = {
            key: replace(claim, allocation=None, reserved_for=()) if key in gone else claim
            for key, claim in self.claims.items()
        }
        return replace(self, claims=claims)

    def refuses(self, need: DeviceNeed) -> str:
        """Why a need can be met nowhere; empty when devices decide."""
        if need.problem:
            return need.problem
        device_class = self.classes.get(need.device_class)
        if device_class is None:
            return f"device class {need.device_class} does not exist"
        if device_class.problem:
            return f"device class {need.device_class} {device_class.problem}"
        for text in (*device_class.selectors, *need.selectors):
            try:
                compile_selector(text)
            except Unsupported as e:
                return f"its selector {text!r} {e}"
        return ""

    def meets(self, device: PooledDevice, need: DeviceNeed) -> bool:
        """Whether a device would do for a need that nothing refuses; CelError as selectors say."""
        if device.problem:
            return False
        texts = (*self.classes[need.device_class].selectors, *need.selectors)
        return all(compile_selector(text).selects(device) for text in texts)

    def choices(self, node: str, need: DeviceNeed) -> tuple[int, ...]:
        """Places in `on_node` of the devices that would do.

        None at all where a selector fails on any device: Kubernetes then refuses the node, too.
        """
        here = self.on_node.get(node, ())
        try:
            return tuple(i for i, device in enumerate(here) if self.meets(device, need))
        except CelError:
            return ()


NO_DEVICES = Devices()
