"""ResourceClaims, DeviceClasses and ResourceSlices (resource.k8s.io v1, v1beta2, v1beta1).

Kubernetes: k8s.io/api/resource/v1, KEP-4381. In v1beta1, requests lack the level `exactly`, and
devices have an additional level `basic`. This module reads the objects of all three versions.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from optsched.api import kinds
from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.cluster.amounts import amounts
from optsched.cluster.dra_devices import (
    CLASS_PREFIX,
    MOST_CONSUMERS,
    DeviceAllocation,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
    Version,
)
from optsched.cluster.selectors import Taint, TaintEffect
from optsched.formats.codec.core_schemas import DEVICE_CLAIM, DEVICE_CLASS, RESOURCE_SLICE
from optsched.formats.codec.selectors import (
    node_selector,
    node_selector_fields,
    toleration,
    toleration_fields,
)
from optsched.formats.codec.snapshot_annotations import PROBLEM
from optsched.formats.files.diagnostics import join_messages
from optsched.units import QuantityError, parse_quantity_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.cluster.amounts import Amounts
    from optsched.cluster.dra_devices import Attribute
    from optsched.units import FieldError

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_NEED_PROBLEM: Final = f"{PROBLEM}-of-"
_ALL: Final = "All"
_NOT: Final = "which is not allocated here"
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


# --- claims --------------------------------------------------------------------------------------


def parse_device_claim(obj: object) -> tuple[DeviceClaim | None, tuple[FieldError, ...]]:
    """Return a ResourceClaim and all invalid fields; the claim is None without a name."""
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, DEVICE_CLAIM, "", errors)
    status, asked = whole.record("status"), whole.record("spec").record("devices")
    constraints = tuple(_constraint(each) for each in asked.records("constraints"))
    allocation = _allocation(status.optional_record("allocation"))
    reserved = tuple(each.text("uid") for each in status.records("reservedFor"))
    claim = DeviceClaim(
        key=meta.key,
        uid=meta.uid,
        needs=tuple(_device_need(each, meta, constraints) for each in asked.records("requests")),
        allocation=allocation,
        reserved_for=reserved,
        is_per_pod=POD_CLAIM_NAME in meta.annotations or any(o.kind == "Pod" for o in meta.owners),
        problem=meta.annotations.get(PROBLEM) or _problem(meta, reserved, errors),
        constraints=constraints,
    )
    return claim, tuple(errors)


def _problem(meta: ObjectMeta, reserved: tuple[str, ...], errors: list[FieldError]) -> str:
    if errors:
        return f"has no reading: {join_messages(errors)}"
    if meta.deletion_ms is not None:
        return "is being deleted"
    if len(reserved) >= MOST_CONSUMERS:
        return f"is in use by {MOST_CONSUMERS} pods, as many as may share one"
    return ""


def _constraint(fields: Fields) -> DeviceConstraint:
    distinct = fields.text("distinctAttribute")
    attribute = distinct or fields.text("matchAttribute")
    return DeviceConstraint(fields.texts("requests"), attribute, bool(distinct))


def _device_need(
    fields: Fields, meta: ObjectMeta, constraints: tuple[DeviceConstraint, ...]
) -> DeviceNeed:
    name = fields.text("name")
    problem = meta.annotations.get(f"{_NEED_PROBLEM}{name}", "")
    if any(not each.attribute and each.binds(name) for each in constraints):
        problem = problem or f"request {name} stands under a constraint that is not weighed here"
    others = tuple(
        _variant(each, f"{name}/{each.text('name')}") for each in fields.records("firstAvailable")
    )
    if others:
        return DeviceNeed(name, "", problem=problem, alternatives=others)
    exactly = fields.optional_record("exactly") or fields
    if exactly.boolean("adminAccess"):
        problem = (
            problem or f"request {name} asks for the access of administrators (adminAccess), {_NOT}"
        )
    need = _variant(exactly, name)
    return replace(need, queue_amounts=_queue_amounts(need, exactly), problem=problem)


def _variant(fields: Fields, name: str) -> DeviceNeed:
    is_all = fields.text("allocationMode") == _ALL
    asked = fields.record("capacity")
    return DeviceNeed(
        name=name,
        device_class=fields.text("deviceClassName"),
        number=1 if is_all else fields.integer("count"),
        selectors=_expressions(fields),
        is_all=is_all,
        capacity=tuple((each, _text(asked, each)) for each in sorted(asked.amounts("requests"))),
        tolerations=tuple(toleration(each) for each in fields.records("tolerations")),
    )


def _text(capacity: Fields, name: str) -> str:
    """Return a quantity as written, because parsed amounts are rounded to resource units."""
    written = capacity.raw("requests")
    return str(parse_quantity_field(written[name])) if isinstance(written, dict) else "0"


def _queue_amounts(need: DeviceNeed, fields: Fields) -> Amounts:
    """Return the amounts that a device request adds to its queue; none for allocationMode All."""
    if need.is_all:
        return ()
    whole = f"{CLASS_PREFIX}{need.device_class}"
    parts = fields.record("capacity").amounts("requests").items()
    return amounts(
        {whole: need.number, **{f"{name}.{whole}": n * need.number for name, n in parts}}
    )


def _expressions(fields: Fields) -> tuple[str, ...]:
    return tuple(each.record("cel").text("expression") for each in fields.records("selectors"))


def _allocation(fields: Fields | None) -> DeviceAllocation | None:
    if fields is None:
        return None
    selector = fields.optional_record("nodeSelector")
    return DeviceAllocation(
        nodes=None if selector is None else node_selector(selector),
        devices=tuple(
            (each.text("request"), DeviceId(*(each.text(n) for n in ("driver", "pool", "device"))))
            for each in fields.record("devices").records("results")
            if not each.boolean("adminAccess")
        ),
    )


def parse_device_class(obj: object) -> tuple[DeviceClass | None, tuple[FieldError, ...]]:
    """Return a DeviceClass and all invalid fields; the class is None without a name."""
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, DEVICE_CLASS, "", errors).record("spec")
    selectors, configs = _expressions(spec), spec.raw("config")
    problem = meta.annotations.get(PROBLEM) or (
        errors and f"has no reading: {join_messages(errors)}"
    )
    config = (
        tuple(json.dumps(each, sort_keys=True) for each in configs if isinstance(each, dict))
        if isinstance(configs, list)
        else ()
    )
    return DeviceClass(meta.name, selectors, problem or "", config), tuple(errors)


# --- slices --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice, which lists some devices of a pool.

    Attributes
    ----------
    node
        Name of the node that has the devices; empty for devices that do not belong to one node.
    of_pool
        Total number of ResourceSlices in this generation of the pool.
    """

    name: str
    driver: str
    pool: str
    generation: int
    of_pool: int
    node: str
    devices: tuple[PooledDevice, ...]


def parse_slice(obj: object) -> tuple[Slice | None, tuple[FieldError, ...]]:
    """Return a ResourceSlice and all invalid fields; the slice is None without a name.

    optsched does not allocate a device with an invalid field.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, RESOURCE_SLICE, "", errors).record("spec")
    driver, pool = spec.text("driver"), spec.record("pool")
    name = pool.text("name")
    found = Slice(
        name=meta.name,
        driver=driver,
        pool=name,
        generation=pool.integer("generation"),
        of_pool=pool.integer("resourceSliceCount"),
        node=spec.text("nodeName"),
        devices=tuple(_device(each, driver, name, errors) for each in spec.records("devices")),
    )
    return found, tuple(errors)


def _device(fields: Fields, driver: str, pool: str, errors: list[FieldError]) -> PooledDevice:
    before = len(errors)
    key = DeviceId(driver, pool, fields.text("name"))
    inner = fields.optional_record("basic") or fields
    given = ((n, _attribute(f)) for n, f in inner.records_by_name("attributes"))
    attributes = tuple(sorted((_full(n, driver), v) for n, v in given if v is not None))
    capacity = tuple(
        sorted(
            (_full(n, driver), text)
            for n, each in inner.records_by_name("capacity")
            if (text := _quantity(each, errors))
        )
    )
    problem = "has fields without a reading" if len(errors) > before else _withheld(inner)
    taints = tuple(
        Taint(each.text("key"), each.text("value"), TaintEffect(each.text("effect")))
        for each in inner.records("taints")
        if each.text("effect") in _KEEPS_AWAY and each.text("key") != PROBLEM
    )
    return PooledDevice(key, attributes, capacity, problem, taints)


def _full(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _attribute(fields: Fields) -> Attribute | None:
    """Return the value of a device attribute, or None for a type that selectors do not support."""
    for name in ("string", "bool", "int"):
        value = fields.raw(name)
        if isinstance(value, str | bool | int):
            return value
    version = fields.text("version")
    return Version(version) if version else None


def _quantity(fields: Fields, errors: list[FieldError]) -> str:
    try:
        return str(parse_quantity_field(fields.raw("value")))
    except QuantityError as e:
        errors.append(e.at_path(fields.path_of("value")))
        return ""


def _withheld(fields: Fields) -> str:
    """Return the reason why optsched does not allocate a device, or "" if optsched allocates it."""
    for taint in fields.records("taints"):
        if taint.text("key") == PROBLEM:
            return taint.text("value")
    if any(True for _ in fields.records("consumesCounters")):
        return "shares counters with other devices"
    if fields.boolean("allowMultipleAllocations"):
        return "is shared by several claims"
    if fields.boolean("bindsToNode") or fields.texts("bindingConditions"):
        return "has conditions for binding"
    return ""


class Stock(NamedTuple):
    """The devices that ResourceSlices offer.

    Attributes
    ----------
    on_node
        Devices by node name, from pools whose newest generation is complete.
    elsewhere
        Devices that do not belong to a single node.
    in_flux
        Names of nodes with an incomplete pool; "" stands for pools that span several nodes.
    """

    on_node: Mapping[str, tuple[PooledDevice, ...]]
    elsewhere: tuple[PooledDevice, ...]
    in_flux: frozenset[str]


def stock_of(slices: Iterable[Slice]) -> Stock:
    """Return the devices that ResourceSlices offer, from the newest generation of each pool."""
    listed = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for each in listed:
        pool = (each.driver, each.pool)
        newest[pool] = max(newest.get(pool, 0), each.generation)
    valid = [s for s in listed if s.generation == newest[s.driver, s.pool]]
    number = Counter((s.driver, s.pool) for s in valid)
    found: dict[str, list[PooledDevice]] = {}
    in_flux: set[str] = set()
    for each in valid:
        if number[each.driver, each.pool] >= each.of_pool:
            found.setdefault(each.node, []).extend(each.devices)
        else:
            in_flux.add(each.node)
    in_order = {
        node: tuple({d.id: d for d in sorted(found[node], key=lambda d: d.id)}.values())
        for node in sorted(found)
        if found[node]
    }
    elsewhere = in_order.pop("", ())
    return Stock(in_order, elsewhere, frozenset(in_flux))


# --- writing -------------------------------------------------------------------------------------


def encode_devices(devices: Devices) -> Iterator[dict[str, Any]]:
    """Yield ResourceSlices, DeviceClasses and ResourceClaims that encode the given `Devices`."""
    yield from map(_encode_class, devices.classes.values())
    of_pool: dict[tuple[str, str], dict[str, list[PooledDevice]]] = {}
    for node, here in (*devices.on_node.items(), ("", devices.elsewhere)):
        for device in here:
            pool = of_pool.setdefault(device.id[:2], {})
            pool.setdefault(node, []).append(device)
    for (driver, pool_name), by_node in of_pool.items():
        for number, (node, mine) in enumerate(by_node.items()):
            spec = {
                "driver": driver,
                "pool": {
                    "name": pool_name,
                    "generation": 0,
                    "resourceSliceCount": len(by_node),
                },
                **({"nodeName": node} if node else {"allNodes": True}),
                "devices": [_encode_device(device) for device in mine],
            }
            name = f"{driver}-{pool_name}-{number}".replace("/", "-")
            yield _manifest(kinds.RESOURCE_SLICES[0], {"name": name}, spec=spec)
    yield from map(_encode_flux, sorted(devices.in_flux))
    yield from map(_encode_claim, devices.claims.values())


def _encode_flux(node: str) -> dict[str, Any]:
    """Return a ResourceSlice that marks the pool of `node` as incomplete."""
    pool = {"name": node or "anywhere", "generation": 0, "resourceSliceCount": 2}
    where = {"nodeName": node} if node else {"allNodes": True}
    spec = {"driver": "optsched.io", "pool": pool, **where, "devices": []}
    return _manifest(kinds.RESOURCE_SLICES[0], {"name": f"in-flux-{pool['name']}"}, spec=spec)


def _manifest(kind: kinds.Kind, metadata: dict[str, Any], **parts: Any) -> dict[str, Any]:  # noqa: ANN401  as in JSON
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}


def _selectors(texts: Iterable[str]) -> list[dict[str, Any]]:
    return [{"cel": {"expression": text}} for text in texts]


def _encode_class(device_class: DeviceClass) -> dict[str, Any]:
    marks = {PROBLEM: device_class.problem} if device_class.problem else {}
    meta = {"name": device_class.name, "annotations": marks}
    config = list(map(json.loads, device_class.config))
    spec = {"selectors": _selectors(device_class.selectors), "config": config}
    return _manifest(kinds.DEVICE_CLASSES[0], meta, spec=spec)


def _encode_device(device: PooledDevice) -> dict[str, Any]:
    taints = [{"key": t.key, "value": t.value, "effect": t.effect.value} for t in device.taints]
    if device.problem:
        taints.append({"key": PROBLEM, "value": device.problem, "effect": "NoSchedule"})
    return {
        "name": device.id.device,
        "attributes": {name: _encode_attribute(value) for name, value in device.attributes},
        "capacity": {name: {"value": text} for name, text in device.capacity},
        **({"taints": taints} if taints else {}),
    }


def _encode_attribute(value: Attribute) -> dict[str, Any]:
    if isinstance(value, Version):
        return {"version": value.text}
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _encode_claim(claim: DeviceClaim) -> dict[str, Any]:
    namespace, _, name = claim.key.partition("/")
    marks = {f"{_NEED_PROBLEM}{n.name}": n.problem for n in claim.needs if n.problem}
    if claim.problem:
        marks[PROBLEM] = claim.problem
    if claim.is_per_pod:
        marks[POD_CLAIM_NAME] = name
    meta = {"name": name, "namespace": namespace, "uid": claim.uid, "annotations": marks}
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in claim.reserved_for]
    status: dict[str, Any] = {"reservedFor": reserved}
    if claim.allocation is not None:
        status["allocation"] = allocation_fields(claim.allocation)
    asked = {
        "requests": [_encode_need(need) for need in claim.needs],
        "constraints": [_encode_constraint(each) for each in claim.constraints],
    }
    return _manifest(kinds.RESOURCE_CLAIMS[0], meta, spec={"devices": asked}, status=status)


def _encode_constraint(constraint: DeviceConstraint) -> dict[str, Any]:
    name = "distinctAttribute" if constraint.is_distinct else "matchAttribute"
    attribute = {name: constraint.attribute} if constraint.attribute else {}
    return {"requests": list(constraint.requests), **attribute}


def allocation_fields(allocation: DeviceAllocation) -> dict[str, Any]:
    """Return the field `status.allocation` of a claim."""
    results = [{"request": request, **device._asdict()} for request, device in allocation.devices]
    nodes = allocation.nodes
    return {
        "devices": {"results": results},
        **({} if nodes is None else {"nodeSelector": node_selector_fields(nodes)}),
    }


def granted_fields(
    claim: Mapping[str, Any],
    allocation: DeviceAllocation,
    class_of: Callable[[str], DeviceClass | None],
) -> dict[str, Any]:
    """Return the allocation of a claim as kube-scheduler writes it.

    The result of each device contains the tolerations of its request. The field
    `allocation.devices.config` contains the driver configurations of the DeviceClasses and of the
    claim.
    """
    spec = claim.get("spec") or {}
    asked = spec.get("devices") or {}
    variants = {n: v for each in asked.get("requests") or () for n, v in _raw_variants(each)}
    fields = allocation_fields(allocation)
    for result in fields["devices"]["results"]:
        tolerations = variants.get(result["request"], {}).get("tolerations")
        if tolerations:
            result["tolerations"] = tolerations
    config: list[dict[str, Any]] = []
    used = list(dict.fromkeys(request for request, _ in allocation.devices))
    for request in used:
        found = class_of(str(variants.get(request, {}).get("deviceClassName")))
        configs = map(json.loads, found.config if found is not None else ())
        config += ({"source": "FromClass", "requests": [request], **each} for each in configs)
    for each in asked.get("config") or ():
        about = DeviceConstraint(tuple(each.get("requests") or ()), "")
        if any(map(about.binds, used)):
            config.append({"source": "FromClaim", **each})
    if config:
        fields["devices"]["config"] = config
    return fields


def _raw_variants(request: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and content of each alternative of a device request in a raw claim."""
    others = request.get("firstAvailable")
    for each in others or ():
        yield f"{request['name']}/{each['name']}", each
    if not others:
        yield request["name"], request.get("exactly") or request


def _encode_need(need: DeviceNeed) -> dict[str, Any]:
    if need.alternatives:
        others = [
            {"name": each.name.partition("/")[2], **_encode_variant(each)}
            for each in need.alternatives
        ]
        return {"name": need.name, "firstAvailable": others}
    return {"name": need.name, "exactly": _encode_variant(need)}


def _encode_variant(need: DeviceNeed) -> dict[str, Any]:
    return {
        "deviceClassName": need.device_class,
        "selectors": _selectors(need.selectors),
        **({"allocationMode": _ALL} if need.is_all else {"count": need.number}),
        **({"capacity": {"requests": dict(need.capacity)}} if need.capacity else {}),
        "tolerations": list(map(toleration_fields, need.tolerations)),
    }


# --- users of claims -----------------------------------------------------------------------------


class ClaimBook:
    """ResourceClaims, and the pods that name each claim.

    Attributes
    ----------
    claims
        ResourceClaims by key. The owner of the `ClaimBook` updates this mapping in place.

    """

    def __init__(self, claims: Mapping[str, DeviceClaim] | None = None) -> None:
        self.claims: dict[str, DeviceClaim] = dict(claims or {})
        self._users: dict[str, dict[str, str]] = {}
        self._uses: dict[str, tuple[str, ...]] = {}

    def note(self, pod: str, uid: str, keys: tuple[str, ...]) -> set[str]:
        """Record the claims that a pod names; return other pods that must be decoded again."""
        before = self._uses.get(pod, ())
        if before == keys and all(self._users[key][pod] == uid for key in keys):
            return set()
        first_users = {key: self._first_user(key) for key in (*before, *keys)}
        for key in before:
            del self._users[key][pod]
        self._uses.pop(pod, None)
        for key in keys:
            self._users.setdefault(key, {})[pod] = uid
        if keys:
            self._uses[pod] = keys
        moved = {key: first for key, first in first_users.items() if self._first_user(key) != first}
        return {*moved.values(), *map(self._first_user, moved)} - {pod, ""}

    def users(self, key: str) -> set[str]:
        """Return the keys of the pods that name a claim."""
        return set(self._users.get(key, ()))

    def counts_for(self, key: str, pod: str) -> bool:
        """Return whether `pod` is the pod to whose queue a claim's devices are charged."""
        return self._first_user(key) in ("", pod)

    def _first_user(self, key: str) -> str:
        """Return the pod to which a claim is charged: a reserved pod, or else the first by key.

        The result is empty if no pod names the claim.
        """
        users, claim = self._users.get(key, {}), self.claims.get(key)
        reserved = claim.reserved_for if claim is not None else ()
        return min(users, key=lambda each: (users[each] not in reserved, each), default="")


def claim_keys(
    spec: Mapping[str, Any], status: Mapping[str, Any], namespace: str, pod: str
) -> tuple[str, ...]:
    """Return the keys of the ResourceClaims of a pod, in the order of its spec.

    A claim that its template has not created yet gets a key that no object can have.
    """
    listed = spec.get("resourceClaims")
    made: dict[object, object] = {}
    statuses = status.get("resourceClaimStatuses")
    for each in statuses if isinstance(statuses, list) else ():
        if isinstance(each, dict):
            made[str(each.get("name"))] = each.get("resourceClaimName")
    found: dict[str, None] = {}
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            continue
        name, template = str(entry.get("name")), entry.get("resourceClaimTemplateName")
        claim = entry.get("resourceClaimName") or made.get(name)
        if isinstance(claim, str) and claim:
            found[f"{namespace}/{claim}"] = None
        elif name not in made:
            # If the pod's status lists a claim reference without a claim name, the pod needs no
            # claim.
            found[f"{namespace}/{pod}-{name} (of template {template})"] = None
    return tuple(found)
