"""ResourceClaims, DeviceClasses and ResourceSlices (resource.k8s.io v1, v1beta2, v1beta1).

Kubernetes: k8s.io/api/resource/v1, KEP-4381. In v1beta1, requests lack the field `exactly`, and
devices have an additional field `basic`.
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
from optsched.formats.codec.annotations import PROBLEM
from optsched.formats.codec.core_schemas import DEVICE_CLAIM, DEVICE_CLASS, RESOURCE_SLICE
from optsched.formats.codec.selectors import (
    node_selector,
    node_selector_fields,
    toleration,
    toleration_fields,
)
from optsched.formats.files.diagnostics import join_messages
from optsched.units import QuantityError, parse_quantity_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.api.meta import ObjectMeta
    from optsched.cluster.dra_devices import Attribute
    from optsched.units import FieldError

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_NEED_PROBLEM: Final = f"{PROBLEM}-of-"
_ALL: Final = "All"
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_INVALID: Final = "has invalid fields"


# --- claims ---------------------------------------------------------------------------------------


def parse_device_claim(obj: object) -> tuple[DeviceClaim | None, tuple[FieldError, ...]]:
    """Parse a ResourceClaim; return it (None if it has no name) and all field errors."""
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, DEVICE_CLAIM, "", errors)
    status, devices = whole.record("status"), whole.record("spec").record("devices")
    constraints: list[DeviceConstraint] = []
    for each in devices.records("constraints"):
        distinct = each.text("distinctAttribute")
        attribute = distinct or each.text("matchAttribute")
        constraints.append(DeviceConstraint(each.texts("requests"), attribute, bool(distinct)))
    allocation, allocated = None, status.optional_record("allocation")
    if allocated is not None:
        selector = allocated.optional_record("nodeSelector")
        allocation = DeviceAllocation(
            nodes=None if selector is None else node_selector(selector),
            devices=tuple(
                (each.text("request"), DeviceId(*map(each.text, ("driver", "pool", "device"))))
                for each in allocated.record("devices").records("results")
                if not each.boolean("adminAccess")
            ),
        )
    reserved = tuple(each.text("uid") for each in status.records("reservedFor"))
    needs = tuple(_device_need(each, meta, constraints) for each in devices.records("requests"))
    problem = meta.annotations.get(PROBLEM) or ""
    if not problem and errors:
        problem = f"{_INVALID}: {join_messages(errors)}"
    elif not problem and meta.deletion_ms is not None:
        problem = "is being deleted"
    elif not problem and len(reserved) >= MOST_CONSUMERS:
        problem = f"is in use by {MOST_CONSUMERS} pods, which is the maximum number"
    claim = DeviceClaim(
        key=meta.key,
        uid=meta.uid,
        needs=needs,
        allocation=allocation,
        reserved_for=reserved,
        is_per_pod=POD_CLAIM_NAME in meta.annotations or any(o.kind == "Pod" for o in meta.owners),
        problem=problem,
        constraints=tuple(constraints),
    )
    return claim, tuple(errors)


def _device_need(
    fields: Fields, meta: ObjectMeta, constraints: Sequence[DeviceConstraint]
) -> DeviceNeed:
    name = fields.text("name")
    problem = meta.annotations.get(f"{_NEED_PROBLEM}{name}", "")
    if any(not each.attribute and each.binds(name) for each in constraints):
        problem = problem or f"request {name} has a constraint of a kind that is not supported"
    others = tuple(
        _variant(each, f"{name}/{each.text('name')}") for each in fields.records("firstAvailable")
    )
    if others:
        return DeviceNeed(name, "", problem=problem, alternatives=others)
    exactly = fields.optional_record("exactly") or fields
    if exactly.boolean("adminAccess"):
        problem = (
            problem
            or f"request {name} requests administrator access (adminAccess), which is not supported"
        )
    need = _variant(exactly, name)
    charged: dict[str, int] = {}
    # With allocationMode All, the number of devices is unknown, so the queue is not charged.
    if not need.is_all:
        whole = f"{CLASS_PREFIX}{need.device_class}"
        parts = exactly.record("capacity").amounts("requests").items()
        charged = {whole: need.number, **{f"{r}.{whole}": n * need.number for r, n in parts}}
    return replace(need, queue_amounts=amounts(charged), problem=problem)


def _variant(fields: Fields, name: str) -> DeviceNeed:
    is_all = fields.text("allocationMode") == _ALL
    capacity = fields.record("capacity")
    # `Fields.amounts` rounds to base units, but the capacity of a device is compared exactly.
    written = capacity.raw("requests")
    quantities = written if isinstance(written, dict) else {}
    return DeviceNeed(
        name=name,
        device_class=fields.text("deviceClassName"),
        number=1 if is_all else fields.integer("count"),
        selectors=_expressions(fields),
        is_all=is_all,
        capacity=tuple(
            (each, str(parse_quantity_field(quantities[each])))
            for each in sorted(capacity.amounts("requests"))
        ),
        tolerations=tuple(toleration(each) for each in fields.records("tolerations")),
    )


def _expressions(fields: Fields) -> tuple[str, ...]:
    return tuple(each.record("cel").text("expression") for each in fields.records("selectors"))


def parse_device_class(obj: object) -> tuple[DeviceClass | None, tuple[FieldError, ...]]:
    """Parse a DeviceClass; return it (None if it has no name) and all field errors."""
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    spec = Fields(obj, DEVICE_CLASS, "", errors).record("spec")
    selectors, configs = _expressions(spec), spec.raw("config")
    problem = meta.annotations.get(PROBLEM) or (errors and f"{_INVALID}: {join_messages(errors)}")
    config = (
        tuple(json.dumps(each, sort_keys=True) for each in configs if isinstance(each, dict))
        if isinstance(configs, list)
        else ()
    )
    return DeviceClass(meta.name, selectors, problem or "", config), tuple(errors)


# --- slices ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice: a list of devices of one resource pool.

    Attributes
    ----------
    node
        Name of the node that has the devices; empty for devices that are not bound to one node.
    of_pool
        Total number of ResourceSlices in the slice's generation of the pool.
    """

    name: str
    driver: str
    pool: str
    generation: int
    of_pool: int
    node: str
    devices: tuple[PooledDevice, ...]


def parse_slice(obj: object) -> tuple[Slice | None, tuple[FieldError, ...]]:
    """Parse a ResourceSlice; return it (None if it has no name) and all field errors.

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
    capacity: list[tuple[str, str]] = []
    for n, each in inner.records_by_name("capacity"):
        try:
            capacity.append((_full(n, driver), str(parse_quantity_field(each.raw("value")))))
        except QuantityError as e:
            errors.append(e.at_path(each.path_of("value")))
    problem = _INVALID if len(errors) > before else _find_blocker(inner)
    taints = tuple(
        Taint(each.text("key"), each.text("value"), TaintEffect(each.text("effect")))
        for each in inner.records("taints")
        if each.text("effect") in _KEEPS_AWAY and each.text("key") != PROBLEM
    )
    return PooledDevice(key, attributes, tuple(sorted(capacity)), problem, taints)


def _full(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _attribute(fields: Fields) -> Attribute | None:
    """Return the value of a device attribute, or None if selectors do not support its type."""
    for name in ("string", "bool", "int"):
        value = fields.raw(name)
        if isinstance(value, str | bool | int):
            return value
    version = fields.text("version")
    return Version(version) if version else None


def _find_blocker(fields: Fields) -> str:
    """Return why optsched does not allocate a device, or "" if it does."""
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


class OfferedDevices(NamedTuple):
    """The devices that ResourceSlices offer.

    Attributes
    ----------
    on_node
        Devices keyed by node name, from pools whose newest generation is complete.
    elsewhere
        Devices that are not bound to a single node.
    in_flux
        Names of nodes with an incomplete pool; "" stands for pools that span several nodes.
    """

    on_node: Mapping[str, tuple[PooledDevice, ...]]
    elsewhere: tuple[PooledDevice, ...]
    in_flux: frozenset[str]


def collect_devices(slices: Iterable[Slice]) -> OfferedDevices:
    """Collect the devices of ResourceSlices; only the newest generation of each pool counts."""
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
    return OfferedDevices(in_order, elsewhere, frozenset(in_flux))


# --- writing --------------------------------------------------------------------------------------


def encode_devices(devices: Devices) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices, DeviceClasses and ResourceClaims that encode `devices`."""
    for device_class in devices.classes.values():
        meta = {
            "name": device_class.name,
            "annotations": {PROBLEM: device_class.problem} if device_class.problem else {},
        }
        config = list(map(json.loads, device_class.config))
        spec: dict[str, Any] = {"selectors": _selectors(device_class.selectors), "config": config}
        yield _manifest(kinds.DEVICE_CLASSES[0], meta, spec=spec)
    pools: dict[tuple[str, str], dict[str, list[PooledDevice]]] = {}
    for node, offered in (*devices.on_node.items(), ("", devices.elsewhere)):
        for device in offered:
            pools.setdefault(device.id[:2], {}).setdefault(node, []).append(device)
    for (driver, pool_name), by_node in pools.items():
        for number, (node, listed) in enumerate(by_node.items()):
            spec = {
                "driver": driver,
                "pool": {"name": pool_name, "generation": 0, "resourceSliceCount": len(by_node)},
                **({"nodeName": node} if node else {"allNodes": True}),
                "devices": [_encode_device(device) for device in listed],
            }
            name = f"{driver}-{pool_name}-{number}".replace("/", "-")
            yield _manifest(kinds.RESOURCE_SLICES[0], {"name": name}, spec=spec)
    for node in sorted(devices.in_flux):
        # The pool counts as incomplete, because it declares two slices and only this slice exists.
        pool = {"name": node or "anywhere", "generation": 0, "resourceSliceCount": 2}
        nodes = {"nodeName": node} if node else {"allNodes": True}
        spec = {"driver": "optsched.io", "pool": pool, **nodes, "devices": []}
        yield _manifest(kinds.RESOURCE_SLICES[0], {"name": f"in-flux-{pool['name']}"}, spec=spec)
    yield from map(_encode_claim, devices.claims.values())


def _manifest(kind: kinds.Kind, metadata: dict[str, Any], **parts: Any) -> dict[str, Any]:  # noqa: ANN401  as in JSON
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}


def _selectors(texts: Iterable[str]) -> list[dict[str, Any]]:
    return [{"cel": {"expression": text}} for text in texts]


def _encode_device(device: PooledDevice) -> dict[str, Any]:
    taints = [{"key": t.key, "value": t.value, "effect": t.effect.value} for t in device.taints]
    if device.problem:
        taints.append({"key": PROBLEM, "value": device.problem, "effect": "NoSchedule"})
    attributes: dict[str, Any] = {}
    for name, value in device.attributes:
        if isinstance(value, Version):
            attributes[name] = {"version": value.text}
        elif isinstance(value, bool):
            attributes[name] = {"bool": value}
        else:
            attributes[name] = {"int" if isinstance(value, int) else "string": value}
    return {
        "name": device.id.device,
        "attributes": attributes,
        "capacity": {name: {"value": text} for name, text in device.capacity},
        **({"taints": taints} if taints else {}),
    }


def _encode_claim(claim: DeviceClaim) -> dict[str, Any]:
    namespace, _, name = claim.key.partition("/")
    annotations = {f"{_NEED_PROBLEM}{n.name}": n.problem for n in claim.needs if n.problem}
    if claim.problem:
        annotations[PROBLEM] = claim.problem
    if claim.is_per_pod:
        annotations[POD_CLAIM_NAME] = name
    meta = {"name": name, "namespace": namespace, "uid": claim.uid, "annotations": annotations}
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in claim.reserved_for]
    status: dict[str, Any] = {"reservedFor": reserved}
    if claim.allocation is not None:
        status["allocation"] = allocation_fields(claim.allocation)
    constraints: list[dict[str, Any]] = []
    for each in claim.constraints:
        key = "distinctAttribute" if each.is_distinct else "matchAttribute"
        attribute = {key: each.attribute} if each.attribute else {}
        constraints.append({"requests": list(each.requests), **attribute})
    requests: list[dict[str, Any]] = []
    for need in claim.needs:
        if need.alternatives:
            alternatives = [
                {"name": each.name.partition("/")[2], **_encode_variant(each)}
                for each in need.alternatives
            ]
            requests.append({"name": need.name, "firstAvailable": alternatives})
        else:
            requests.append({"name": need.name, "exactly": _encode_variant(need)})
    devices = {"requests": requests, "constraints": constraints}
    return _manifest(kinds.RESOURCE_CLAIMS[0], meta, spec={"devices": devices}, status=status)


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
    """Return the allocation of a claim in the form that kube-scheduler writes.

    The result for each device includes the tolerations of its request. The field
    `allocation.devices.config` holds the driver configurations of the DeviceClasses and of the
    claim.
    """
    spec = claim.get("spec") or {}
    devices = spec.get("devices") or {}
    variants: dict[str, Mapping[str, Any]] = {}
    for each in devices.get("requests") or ():
        others = each.get("firstAvailable") or ()
        for other in others:
            variants[f"{each['name']}/{other['name']}"] = other
        if not others:
            variants[each["name"]] = each.get("exactly") or each
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
    for each in devices.get("config") or ():
        about = DeviceConstraint(tuple(each.get("requests") or ()), "")
        if any(map(about.binds, used)):
            config.append({"source": "FromClaim", **each})
    if config:
        fields["devices"]["config"] = config
    return fields


def _encode_variant(need: DeviceNeed) -> dict[str, Any]:
    return {
        "deviceClassName": need.device_class,
        "selectors": _selectors(need.selectors),
        **({"allocationMode": _ALL} if need.is_all else {"count": need.number}),
        **({"capacity": {"requests": dict(need.capacity)}} if need.capacity else {}),
        "tolerations": list(map(toleration_fields, need.tolerations)),
    }


# --- users of claims ------------------------------------------------------------------------------


class ClaimBook:
    """The ResourceClaims of a cluster, and the pods that name each claim.

    Attributes
    ----------
    claims
        ResourceClaims by key; the owner of the `ClaimBook` updates this mapping in place.

    """

    def __init__(self, claims: Mapping[str, DeviceClaim] | None = None) -> None:
        self.claims: dict[str, DeviceClaim] = dict(claims or {})
        self._users: dict[str, dict[str, str]] = {}
        self._uses: dict[str, tuple[str, ...]] = {}

    def record_claims(self, pod: str, uid: str, keys: tuple[str, ...]) -> set[str]:
        """Record the claims that a pod names; return the other pods that must be decoded again."""
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
        """Return whether a claim's devices count towards the queue of `pod`."""
        return self._first_user(key) in ("", pod)

    def _first_user(self, key: str) -> str:
        """Return the pod whose queue is charged for a claim; pods in `reserved_for` come first.

        Ties between pods are broken by pod key. The result is empty if no pod names the claim.
        """
        users, claim = self._users.get(key, {}), self.claims.get(key)
        reserved = claim.reserved_for if claim is not None else ()
        return min(users, key=lambda each: (users[each] not in reserved, each), default="")


def claim_keys(
    spec: Mapping[str, Any], status: Mapping[str, Any], namespace: str, pod: str
) -> tuple[str, ...]:
    """Return the keys of a pod's ResourceClaims, in the order of the pod's spec.

    A claim that has not been created from its template yet gets a key that no object can have.
    """
    listed = spec.get("resourceClaims")
    created: dict[object, object] = {}
    statuses = status.get("resourceClaimStatuses")
    for each in statuses if isinstance(statuses, list) else ():
        if isinstance(each, dict):
            created[str(each.get("name"))] = each.get("resourceClaimName")
    found: dict[str, None] = {}
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            continue
        name, template = str(entry.get("name")), entry.get("resourceClaimTemplateName")
        claim = entry.get("resourceClaimName") or created.get(name)
        if isinstance(claim, str) and claim:
            found[f"{namespace}/{claim}"] = None
        elif name not in created:
            # If the pod's status lists a claim name without a claim, the pod does not need this
            # claim.
            found[f"{namespace}/{pod}-{name} (of template {template})"] = None
    return tuple(found)
