"""Devices that claims ask for (dynamic resource allocation, resource.k8s.io).

Kubernetes: KEP-4381 (structured parameters), KEP-4816 (alternatives), KEP-5075 (capacity of
requests, distinct attributes). Only the allocated part is here: whole devices of a node. Claims
that ask for more carry their problem.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from optsched.cluster.amounts import total
from optsched.cluster.cel import CelError, Unsupported, Value, compile_selector
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.units import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.selectors import Taint, Toleration
    from optsched.units import Quantity

MOST_CONSUMERS = 256
"""Pods that one claim may be reserved for (`ResourceClaimReservedForMaxSize`)."""

MOST_SHOWN = 200
"""Characters of a selector that messages quote."""
MOST_VERDICTS = 1024
"""Selectors whose results a device keeps."""
MOST_SELECTORS = 256
"""Different selectors that one session evaluates."""
MOST_TEXT = 512 * 1024
"""Characters that these have together: to read one of 10 KiB takes 7 ms."""
STEPS_OF_SESSION = 4_000_000
"""Steps of selectors that one session takes (about a second); see `Selector.cost`."""
MOST_CHOICES = 64
"""Ways to meet a claim, times its requests: the product of its alternatives."""

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


class ClaimUser(Protocol):
    """A task as its ResourceClaims see it."""

    @property
    def key(self) -> str:
        """Namespace and name."""

    @property
    def uid(self) -> str:
        """Its UID."""

    @property
    def device_claims(self) -> Sequence[str]:
        """Keys of its ResourceClaims."""


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
        Why it is never allocated; empty where it may be.
    taints
        Taints that keep the device from requests which do not tolerate them.
    """

    id: DeviceId
    attributes: tuple[tuple[str, Attribute], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    taints: tuple[Taint, ...] = ()

    @property
    def driver(self) -> str:
        """See `cel.CelDevice`."""
        return self.id.driver

    @cached_property
    def attributes_by_domain(self) -> Mapping[str, Mapping[str, Value]]:
        """See `cel.CelDevice`; without versions."""
        plain = ((n, v) for n, v in self.attributes if not isinstance(v, Version))
        return _by_domain(list(plain))

    @cached_property
    def capacity_by_domain(self) -> Mapping[str, Mapping[str, Value]]:
        """See `cel.CelDevice`."""
        return _by_domain([(name, parse_quantity(text)) for name, text in self.capacity])

    @cached_property
    def amounts(self) -> Mapping[str, Quantity]:
        """Its capacity by name with its domain."""
        return {name: parse_quantity(text) for name, text in self.capacity}

    @cached_property
    def _verdicts(self) -> dict[str, bool | str]:
        """Results of selectors, the newest last; a text is the error of one that failed."""
        return {}

    def has_evaluated(self, selector: str) -> bool:
        """Whether a selector has been evaluated on this device."""
        return selector in self._verdicts

    def meets(self, selector: str) -> bool:
        """Whether a selector selects it, evaluated once; CelError and Unsupported as in `cel`."""
        verdict = self._verdicts.get(selector)
        if verdict is None:
            try:
                verdict = compile_selector(selector).selects(self)
            except CelError as e:
                verdict = str(e)
            if len(self._verdicts) >= MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[selector] = verdict
        if isinstance(verdict, str):
            raise CelError(verdict)
        return verdict


def _by_domain(entries: Sequence[tuple[str, Value]]) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    for name, value in entries:
        domain, _, short = name.rpartition("/")
        found.setdefault(domain, {})[short] = value
    return found


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """One request of a claim: a number of different devices of a class.

    Attributes
    ----------
    name
        Of the request, as the allocation repeats it; `request/alternative` where it is one.
    selectors
        CEL expressions that every device must meet besides those of the class.
    is_all
        Whether it asks for all of them that a node has, at least one, instead of a number.
    capacity
        (name, quantity as it is written) that every device must have at least.
    tolerations
        Taints of devices that do not matter to it.
    alternatives
        Requests of which one is met, the first if possible; then the other fields do not count.
    queue_amounts
        The resources that it counts as in queues, by `deviceclass/…`.
    problem
        Why it is not allocated here; empty when it is.
    """

    name: str
    device_class: str
    number: int = 1
    selectors: tuple[str, ...] = ()
    queue_amounts: Amounts = ()
    problem: str = ""
    is_all: bool = False
    capacity: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    alternatives: tuple[DeviceNeed, ...] = ()

    @property
    def variants(self) -> tuple[DeviceNeed, ...]:
        """The requests of which one is met: its alternatives, or itself."""
        return self.alternatives or (self,)


class DeviceConstraint(NamedTuple):
    """A condition on the devices of some requests of a claim: all equal, or all different.

    Attributes
    ----------
    requests
        By name; those of the whole claim where there is none.
    attribute
        domain/name; a device without it is not given out.
    is_distinct
        Whether all have different values of it; else all have the same.
    """

    requests: tuple[str, ...]
    attribute: str
    is_distinct: bool = False

    def binds(self, request: str) -> bool:
        """Whether it concerns a request, or the request of which it is an alternative."""
        return not self.requests or bool({request, request.partition("/")[0]} & {*self.requests})


class DeviceClaimRequest(NamedTuple):
    """The requests of a claim."""

    needs: tuple[DeviceNeed, ...]
    constraints: tuple[DeviceConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The devices of a claim.

    Attributes
    ----------
    nodes
        Where pods may use it; None for everywhere.
    devices
        (request, device) for the exclusive use of the claim.
    """

    nodes: NodeSelector | None = None
    devices: tuple[tuple[str, DeviceId], ...] = ()

    @classmethod
    def on_node(cls, name: str, devices: tuple[tuple[str, DeviceId], ...]) -> DeviceAllocation:
        """Devices of one node, as allocations name it."""
        here = Requirement("metadata.name", Operator.IN, (name,))
        return cls(NodeSelector((NodeTerm(names=(here,)),)), devices)


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim.

    Attributes
    ----------
    key
        `namespace/name`.
    reserved_for
        Uids of pods that may use it, in order.
    is_per_pod
        Whether it was made for one pod, so that no other names it.
    problem
        Why no pod can use it; empty when pods can.
    """

    key: str
    uid: str = ""
    needs: tuple[DeviceNeed, ...] = ()
    allocation: DeviceAllocation | None = None
    reserved_for: tuple[str, ...] = ()
    is_per_pod: bool = False
    problem: str = ""
    constraints: tuple[DeviceConstraint, ...] = ()

    @property
    def request(self) -> DeviceClaimRequest:
        """What it asks for."""
        return DeviceClaimRequest(self.needs, self.constraints)

    @property
    def queue_amounts(self) -> Mapping[str, int]:
        """The resources that it counts as in queues."""
        return total(need.queue_amounts for need in self.needs)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: expressions that its devices meet.

    config: what drivers are told with every device of it, in JSON.
    """

    name: str
    selectors: tuple[str, ...] = ()
    problem: str = ""
    config: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What a plan allocates to a claim when a task is bound; empty where nothing is missing."""

    claim: str
    devices: tuple[tuple[str, DeviceId], ...] = ()


@dataclass(frozen=True)
class Devices:
    """All devices that can be claimed.

    Attributes
    ----------
    claims
        By key.
    classes
        By name.
    on_node
        Devices by name of the node, in order; nodes without any are left out.
    elsewhere
        Devices that are not of one node, in order; they are given out by others.
    in_flux
        Names of nodes of which a pool is not complete; empty for pools that are not of one node.
    postponed
        Requests whose selectors this session does not evaluate: a later one does.
    """

    claims: Mapping[str, DeviceClaim] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    on_node: Mapping[str, tuple[PooledDevice, ...]] = field(default_factory=dict)
    elsewhere: tuple[PooledDevice, ...] = ()
    in_flux: frozenset[str] = frozenset()
    postponed: frozenset[DeviceNeed] = frozenset()

    @cached_property
    def claim_by_device(self) -> Mapping[DeviceId, str]:
        """The claim that holds each device that is taken."""
        return {
            device: claim.key
            for claim in self.claims.values()
            if claim.allocation is not None
            for _, device in claim.allocation.devices
        }

    def freed(self, residents: Iterable[ClaimUser], gone: Collection[str]) -> frozenset[str]:
        """Claims without users once these tasks, by key, have left their nodes."""
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

    def release_claims(self, gone: Collection[str]) -> Devices:
        """The same when some claims, by key, have released their devices."""
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
        if need in self.postponed:
            return f"the selectors of request {need.name} {_POSTPONED}"
        found = map(self._refuses_variant, need.variants)
        return next((why for why in found if why), "")

    def _refuses_variant(self, need: DeviceNeed) -> str:
        device_class = self.classes.get(need.device_class)
        if device_class is None:
            return f"device class {need.device_class} does not exist"
        if device_class.problem:
            return f"device class {need.device_class} {device_class.problem}"
        for text in (*device_class.selectors, *need.selectors):
            try:
                compile_selector(text)
            except Unsupported as e:
                return f"its selector {text[:MOST_SHOWN]!r} {e}"
        if need.is_all and self._reaches_elsewhere(need):
            return f"request {need.name} asks for all devices (allocationMode: All), {_ELSEWHERE}"
        return ""

    def _reaches_elsewhere(self, need: DeviceNeed) -> bool:
        try:
            return any(self._selects(device, need) for device in self.elsewhere)
        except CelError:
            return True

    def selectors_of(self, need: DeviceNeed) -> list[str]:
        """The selectors of a request, those of its classes among them."""
        found: list[str] = []
        for variant in need.variants:
            device_class = self.classes.get(variant.device_class)
            found += (*(device_class.selectors if device_class else ()), *variant.selectors)
        return found

    def _selects(self, device: PooledDevice, need: DeviceNeed) -> bool:
        """Whether a device is of the kind that a need asks for; CelError as selectors say."""
        texts = (*self.classes[need.device_class].selectors, *need.selectors)
        return all(device.meets(text) for text in texts) and all(
            _has_capacity(device, name, text) for name, text in need.capacity
        )

    def withheld(self, need: DeviceNeed) -> Counter[str]:
        """Devices of all nodes that would do for a need and are left to others, by why."""
        found: Counter[str] = Counter()
        for device in (d for here in self.on_node.values() for d in here if d.problem or d.taints):
            with suppress(CelError):
                kept = [n for n in need.variants if self._selects(device, n)]
                whys = [why for n in kept if (why := _withheld(device, n))]
                found.update(whys[:1])
        return found

    def choices(self, node: str, need: DeviceNeed) -> tuple[tuple[int, ...], int]:
        """Places in `on_node` of the devices that would do for a variant, and how many it takes.

        None at all where a selector fails on any device: Kubernetes then refuses the node, too.
        All devices are more than there are where one of them is not given out here.
        """
        here = self.on_node.get(node, ())
        try:
            found = [i for i, device in enumerate(here) if self._selects(device, need)]
        except CelError:
            found = []
        open_ones = tuple(i for i in found if not _withheld(here[i], need))
        if not need.is_all:
            return open_ones, need.number
        if self.in_flux & {node, ""}:
            return (), 1
        return open_ones, max(len(found), 1)


_ELSEWHERE = "some of which are not of one node and not allocated here"


def _withheld(device: PooledDevice, need: DeviceNeed) -> str:
    """Why a device that a need selects is not given to it; empty when it is."""
    for taint in device.taints:
        if not any(toleration.tolerates(taint) for toleration in need.tolerations):
            return f"is tainted: {taint.key}"
    return device.problem


def _has_capacity(device: PooledDevice, name: str, least: str) -> bool:
    full = name if "/" in name else f"{device.driver}/{name}"
    have = device.amounts.get(full)
    return have is not None and have >= _amount(least)


@lru_cache(maxsize=1024)
def _amount(text: str) -> Quantity:
    return parse_quantity(text)


# --- limits on one session -----------------------------------------------------------------------

_POSTPONED = "are evaluated in a later session: too many or too long ones wait at one time"


def too_many_choices(ask: DeviceClaimRequest) -> str:
    """Why a claim leaves too many choices; empty when it does not."""
    num_choices = prod(len(need.variants) for need in ask.needs) * len(ask.needs)
    if num_choices <= MOST_CHOICES:
        return ""
    return (
        f"leaves {num_choices} choices, its alternatives multiplied: "
        f"at most {MOST_CHOICES} are weighed here"
    )


def evaluate_selectors(
    devices: Devices, needs: Iterable[tuple[str, DeviceNeed]], steps: int = STEPS_OF_SESSION
) -> Devices:
    """Evaluate the selectors of requests on all devices, as far as some steps reach.

    Requests for which they do not reach are `postponed`; devices keep the outcomes, so that a later
    session begins where this one has ended. Namespaces take turns, each with the request that has
    the shortest selectors.

    needs: with the namespace of each.
    """
    everything = [*devices.elsewhere, *(d for here in devices.on_node.values() for d in here)]
    looked_at: set[str] = set()
    num_characters = 0
    postponed: set[DeviceNeed] = set()
    for need in _interleave_namespaces(devices, needs) if everything else ():
        texts = dict.fromkeys(devices.selectors_of(need))
        new = [text for text in texts if text not in looked_at]
        length = sum(map(len, new))
        if len(looked_at) + len(new) > MOST_SELECTORS or num_characters + length > MOST_TEXT:
            postponed.add(need)
            continue
        looked_at.update(new)
        num_characters += length
        if devices.refuses(need):
            continue
        for text in new:
            cost = compile_selector(text).cost
            for device in everything:
                if not device.has_evaluated(text) and steps > 0:
                    steps -= cost
                    with suppress(CelError):
                        device.meets(text)
        if steps <= 0 and not all(d.has_evaluated(text) for text in texts for d in everything):
            postponed.add(need)
    return replace(devices, postponed=frozenset(postponed)) if postponed else devices


def _interleave_namespaces(
    devices: Devices, needs: Iterable[tuple[str, DeviceNeed]]
) -> list[DeviceNeed]:
    """Requests with selectors, those with the shortest of every namespace first."""
    costs: dict[str, dict[DeviceNeed, int]] = {}
    for namespace, need in needs:
        if not need.problem and need not in costs.setdefault(namespace, {}):
            costs[namespace][need] = sum(map(len, devices.selectors_of(need)))
    ranked = [
        (rank, cost, namespace, need.name, need)
        for namespace, of_need in costs.items()
        for rank, (need, cost) in enumerate(
            sorted(of_need.items(), key=lambda entry: (entry[1], repr(entry[0])))
        )
    ]
    return list(dict.fromkeys(entry[-1] for entry in sorted(ranked, key=lambda e: e[:4])))


NO_DEVICES = Devices()
