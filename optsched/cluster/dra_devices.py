"""Devices that ResourceClaims request (dynamic resource allocation, resource.k8s.io).

Kubernetes: KEP-4381 (structured parameters), KEP-4816 (prioritized alternatives), KEP-5075
(capacity requests, distinct attributes). Only whole devices that belong to one node are supported.
The `problem` field of a claim holds the reason why its request is not supported.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from optsched.cluster.amounts import total
from optsched.cluster.cel import CelDevice, CelError, Domains, Unsupported, compile_selector
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.units import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.cel import Value
    from optsched.cluster.selectors import Taint, Toleration
    from optsched.units import Quantity

MOST_CONSUMERS = 256
"""Maximum number of pods for which a claim may be reserved (`ResourceClaimReservedForMaxSize`)."""

MOST_SHOWN = 200
"""Length in characters to which messages truncate a selector."""
MOST_VERDICTS = 1024
"""Maximum number of selectors whose results a device caches."""
MOST_SELECTORS = 256
"""Maximum number of different selectors that one session evaluates."""
MOST_TEXT = 512 * 1024
"""Maximum total length of a session's selectors in characters; parsing 10 KiB takes 7 ms."""
STEPS_OF_SESSION = 4_000_000
"""Maximum number of evaluation steps of one session (about a second); see `Selector.cost`."""
MOST_CHOICES = 64
"""Maximum cost of a claim's alternatives: the number of ways to choose one alternative per request,
times the number of requests.
"""

CLASS_PREFIX = "deviceclass/"
"""Prefix of the resource names with which queues limit the devices of a DeviceClass. If a queue
limits a capacity of the devices, the capacity's name and a dot precede this prefix in the resource
name.
"""


def is_class_quota(resource: str) -> bool:
    """Return whether a resource name in a queue's limits refers to the devices of a DeviceClass."""
    return resource.partition("/")[0].rpartition(".")[2] == CLASS_PREFIX[:-1]


class DeviceId(NamedTuple):
    """The driver, pool and name that identify a device in allocations."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class Version(NamedTuple):
    """A device attribute that is a semantic version; selectors cannot read it."""

    text: str


Attribute: TypeAlias = bool | int | str | Version


class ClaimUser(Protocol):
    """The attributes of a task with ResourceClaims that this module reads."""

    @property
    def key(self) -> str:
        """`namespace/name` of the pod."""

    @property
    def uid(self) -> str:
        """UID of the pod."""

    @property
    def device_claims(self) -> Sequence[str]:
        """Keys of the pod's ResourceClaims."""


@dataclass(frozen=True)
class PooledDevice:
    """A device of a node.

    Attributes
    ----------
    attributes
        Device attributes as (domain/name, value) pairs, sorted by name.
    capacity
        Device capacities as (domain/name, quantity) pairs, sorted by name. Each quantity is the
        text of the ResourceSlice, such as `80Gi`.
    problem
        The reason why the device is never allocated; empty if the device can be allocated.
    taints
        Taints of the device: only requests that tolerate all of them can get the device.
    """

    id: DeviceId
    attributes: tuple[tuple[str, Attribute], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    taints: tuple[Taint, ...] = ()

    @cached_property
    def properties(self) -> CelDevice:
        """The properties that selectors can read; semantic versions are omitted."""
        plain = {n: v for n, v in self.attributes if not isinstance(v, Version)}
        return CelDevice(self.id.driver, _by_domain(plain), _by_domain(self.amounts))

    @cached_property
    def amounts(self) -> Mapping[str, Quantity]:
        """Device capacity keyed by domain/name."""
        return {name: parse_quantity(text) for name, text in self.capacity}

    @cached_property
    def _verdicts(self) -> dict[str, bool | str]:
        """Maps each evaluated selector to its result or its error message, oldest first."""
        return {}

    def has_evaluated(self, selector: str) -> bool:
        """Return whether a selector has been evaluated on this device."""
        return selector in self._verdicts

    def meets(self, selector: str) -> bool:
        """Return whether a selector selects the device; the result is cached.

        Raises CelError if the evaluation fails, and Unsupported if the selector cannot be compiled.
        """
        verdict = self._verdicts.get(selector)
        if verdict is None:
            try:
                verdict = compile_selector(selector).selects(self.properties)
            except CelError as e:
                verdict = str(e)
            if len(self._verdicts) >= MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[selector] = verdict
        if isinstance(verdict, str):
            raise CelError(verdict)
        return verdict


def _by_domain(values: Mapping[str, Value]) -> Domains:
    found: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        domain, _, short = name.rpartition("/")
        found.setdefault(domain, {})[short] = value
    return Domains(found)


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """One request of a ResourceClaim, for a number of distinct devices of a DeviceClass.

    Attributes
    ----------
    name
        Name of the request in the claim's allocation; `request/alternative` for an alternative.
    selectors
        CEL expressions that every device must match, in addition to those of the DeviceClass.
    is_all
        Whether the request is for all matching devices of a node (at least one); `number` is then
        ignored.
    capacity
        Minimum capacity of each device as (name, quantity) pairs. Each quantity is the text of the
        claim, such as `40Gi`.
    tolerations
        Tolerations of the request for device taints.
    alternatives
        Alternative requests in order of preference; the first that can be met is used. If a
        request has alternatives, its own other fields are ignored.
    queue_amounts
        The usage that the request adds to its queue, keyed by `deviceclass/…` resource.
    problem
        The reason that optsched cannot allocate the request; empty if it can.
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
        """The alternatives of the request if there are any, else the request itself."""
        return self.alternatives or (self,)


class DeviceConstraint(NamedTuple):
    """A constraint that all devices of a claim have equal (or distinct) values of an attribute.

    Attributes
    ----------
    requests
        Names of the requests whose devices are constrained; empty for all requests of the claim.
    attribute
        The attribute as `domain/name`; a device without the attribute is not allocated.
    is_distinct
        Whether the values must all differ; otherwise they must all be equal.
    """

    requests: tuple[str, ...]
    attribute: str
    is_distinct: bool = False

    def binds(self, request: str) -> bool:
        """Return whether the constraint applies to a request, given as NAME or NAME/SUBREQUEST."""
        return not self.requests or bool({request, request.partition("/")[0]} & {*self.requests})


class DeviceClaimRequest(NamedTuple):
    """A claim's requests, and the constraints between the devices allocated to them."""

    needs: tuple[DeviceNeed, ...]
    constraints: tuple[DeviceConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The devices that are allocated to a claim.

    Attributes
    ----------
    nodes
        Selects the nodes on which pods may use the claim; None for all nodes.
    devices
        The allocated devices as (request, device) pairs; no other claim may use them.
    """

    nodes: NodeSelector | None = None
    devices: tuple[tuple[str, DeviceId], ...] = ()

    @classmethod
    def on_node(cls, name: str, devices: tuple[tuple[str, DeviceId], ...]) -> DeviceAllocation:
        """Return the allocation of devices on the node `name`; its selector selects this node."""
        is_node = Requirement("metadata.name", Operator.IN, (name,))
        return cls(NodeSelector((NodeTerm(names=(is_node,)),)), devices)


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim.

    Attributes
    ----------
    key
        `namespace/name`.
    reserved_for
        UIDs of the pods that may use the claim, in the order of `status.reservedFor`.
    is_per_pod
        Whether the claim was created for a single pod, which is its only user.
    problem
        The reason that no pod can use the claim; empty if pods can use it.
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
        """The claim's requests and constraints, without its allocation and reservations."""
        return DeviceClaimRequest(self.needs, self.constraints)

    @property
    def queue_amounts(self) -> Mapping[str, int]:
        """The usage that the claim adds to its queue, keyed by `deviceclass/…` resource."""
        return total(need.queue_amounts for need in self.needs)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass and the CEL expressions that all its devices match.

    `config` holds the driver configurations of the DeviceClass, as JSON; allocations include these
    configurations.
    """

    name: str
    selectors: tuple[str, ...] = ()
    problem: str = ""
    config: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """The devices that a plan allocates to a claim; none if the claim already has an allocation."""

    claim: str
    devices: tuple[tuple[str, DeviceId], ...] = ()


@dataclass(frozen=True)
class Devices:
    """All devices of the cluster, with the ResourceClaims and the DeviceClasses.

    Attributes
    ----------
    claims
        ResourceClaims by key.
    classes
        DeviceClasses by name.
    on_node
        The devices of each node, in order; nodes without devices are absent.
    elsewhere
        Devices that do not belong to a single node, in order; optsched does not allocate them.
    in_flux
        Names of nodes with an incomplete ResourceSlice pool; "" stands for a pool that spans
        several nodes.
    postponed
        Requests whose selectors exceed this session's evaluation limits; a later session evaluates
        them.
    """

    claims: Mapping[str, DeviceClaim] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    on_node: Mapping[str, tuple[PooledDevice, ...]] = field(default_factory=dict)
    elsewhere: tuple[PooledDevice, ...] = ()
    in_flux: frozenset[str] = frozenset()
    postponed: frozenset[DeviceNeed] = frozenset()

    @cached_property
    def claim_by_device(self) -> Mapping[DeviceId, str]:
        """Maps each allocated device to the key of the claim that holds it."""
        return {
            device: claim.key
            for claim in self.claims.values()
            if claim.allocation is not None
            for _, device in claim.allocation.devices
        }

    def freed(self, residents: Iterable[ClaimUser], ended: Collection[str]) -> frozenset[str]:
        """Return the keys of the claims that no task uses once the tasks in `ended` have ended.

        `residents` are the tasks on nodes, and `ended` holds the keys of some of these tasks.
        """
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
            and names <= set(ended)
            and set(self.claims[key].reserved_for) <= uids[key]
        )

    def release_claims(self, keys: Collection[str]) -> Devices:
        """Return a copy in which the claims in `keys` are neither allocated nor reserved."""
        if not keys:
            return self
        claims = {
            key: replace(claim, allocation=None, reserved_for=()) if key in keys else claim
            for key, claim in self.claims.items()
        }
        return replace(self, claims=claims)

    def refuses(self, need: DeviceNeed) -> str:
        """Return the reason that no node can satisfy a request; empty if some node might."""
        if need.problem:
            return need.problem
        if need in self.postponed:
            return f"the selectors of request {need.name} {_POSTPONED}"
        for each in need.variants:
            device_class = self.classes.get(each.device_class)
            if device_class is None:
                return f"device class {each.device_class} does not exist"
            if device_class.problem:
                return f"device class {each.device_class} {device_class.problem}"
            for text in (*device_class.selectors, *each.selectors):
                try:
                    compile_selector(text)
                except Unsupported as e:
                    return f"its selector {text[:MOST_SHOWN]!r} {e}"
            try:
                is_elsewhere = each.is_all and any(self._selects(d, each) for d in self.elsewhere)
            except CelError:
                is_elsewhere = True
            if is_elsewhere:
                return f"request {each.name} is for all devices (allocationMode: All), {_ELSEWHERE}"
        return ""

    def selectors_of(self, need: DeviceNeed) -> list[str]:
        """Return the selectors of a request and of the DeviceClasses that the request names."""
        found: list[str] = []
        for variant in need.variants:
            device_class = self.classes.get(variant.device_class)
            found += (*(device_class.selectors if device_class else ()), *variant.selectors)
        return found

    def _selects(self, device: PooledDevice, need: DeviceNeed) -> bool:
        """Return whether a device matches a request's DeviceClass, selectors and capacity.

        Raises CelError if the evaluation of a selector fails.
        """
        texts = (*self.classes[need.device_class].selectors, *need.selectors)
        if not all(device.meets(text) for text in texts):
            return False
        for name, least in need.capacity:
            full_name = name if "/" in name else f"{device.id.driver}/{name}"
            amount = device.amounts.get(full_name)
            if amount is None or amount < _parse_amount(least):
                return False
        return True

    def withheld(self, need: DeviceNeed) -> Counter[str]:
        """Count the devices that match a request but cannot be allocated, keyed by reason."""
        found: Counter[str] = Counter()
        devices = (d for listed in self.on_node.values() for d in listed if d.problem or d.taints)
        for device in devices:
            with suppress(CelError):
                matching = [n for n in need.variants if self._selects(device, n)]
                blockers = [blocker for n in matching if (blocker := _find_blocker(device, n))]
                found.update(blockers[:1])
        return found

    def choices(self, node: str, need: DeviceNeed) -> tuple[tuple[int, ...], int]:
        """Return the devices of a node that a request can get, and how many the request needs.

        Devices are given as indices into `on_node[node]`. If the evaluation of a selector fails on
        any device of the node, the request can get no device, because Kubernetes then rejects the
        node. A request for all devices also needs the matching devices that cannot be allocated, so
        a node with such a device cannot satisfy the request.
        """
        devices = self.on_node.get(node, ())
        try:
            found = [i for i, device in enumerate(devices) if self._selects(device, need)]
        except CelError:
            found = []
        usable = tuple(i for i in found if not _find_blocker(devices[i], need))
        if not need.is_all:
            return usable, need.number
        if self.in_flux & {node, ""}:
            return (), 1
        return usable, max(len(found), 1)


_ELSEWHERE = "some of which do not belong to one node and are left to other schedulers"


def _find_blocker(device: PooledDevice, need: DeviceNeed) -> str:
    """Return the reason that a matching device cannot be allocated to a request, or ""."""
    for taint in device.taints:
        if not any(toleration.tolerates(taint) for toleration in need.tolerations):
            return f"is tainted: {taint.key}"
    return device.problem


@lru_cache(maxsize=1024)
def _parse_amount(text: str) -> Quantity:
    return parse_quantity(text)


# --- limits on one session -----------------------------------------------------------------------

_POSTPONED = "are evaluated in a later session, because this session's limit is reached"


def too_many_choices(request: DeviceClaimRequest) -> str:
    """Return an error message if a claim's alternatives exceed `MOST_CHOICES`, else ""."""
    num_choices = prod(len(need.variants) for need in request.needs) * len(request.needs)
    if num_choices <= MOST_CHOICES:
        return ""
    return f"has {num_choices} combinations of alternatives: at most {MOST_CHOICES} are supported"


def evaluate_selectors(
    devices: Devices, needs: Iterable[tuple[str, DeviceNeed]], steps: int = STEPS_OF_SESSION
) -> Devices:
    """Evaluate the selectors of requests on all devices, up to a maximum number of steps.

    Requests whose selectors exceed the maximum are added to `Devices.postponed`. Devices cache the
    results, so a later session continues where this session stopped. Namespaces take turns: in each
    round, each namespace's remaining request with the shortest selectors is evaluated.

    `needs` holds (namespace, request) pairs.
    """
    all_devices = [*devices.elsewhere, *(d for ds in devices.on_node.values() for d in ds)]
    evaluated: set[str] = set()
    num_characters = 0
    postponed: set[DeviceNeed] = set()
    for need in _interleave_namespaces(devices, needs) if all_devices else ():
        texts = dict.fromkeys(devices.selectors_of(need))
        new = [text for text in texts if text not in evaluated]
        length = sum(map(len, new))
        if len(evaluated) + len(new) > MOST_SELECTORS or num_characters + length > MOST_TEXT:
            postponed.add(need)
            continue
        evaluated.update(new)
        num_characters += length
        if devices.refuses(need):
            continue
        for text in new:
            cost = compile_selector(text).cost
            for device in all_devices:
                if not device.has_evaluated(text) and steps > 0:
                    steps -= cost
                    with suppress(CelError):
                        device.meets(text)
        if steps <= 0 and not all(d.has_evaluated(text) for text in texts for d in all_devices):
            postponed.add(need)
    return replace(devices, postponed=frozenset(postponed)) if postponed else devices


def _interleave_namespaces(
    devices: Devices, needs: Iterable[tuple[str, DeviceNeed]]
) -> list[DeviceNeed]:
    """Return the requests in evaluation order: rounds that hold one request of each namespace."""
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
