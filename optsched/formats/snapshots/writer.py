"""Encode a snapshot as objects that `assemble` converts back to an equal snapshot.

A value for which the API has a field is written to this field. Annotations (see
`codec.annotations`) hold all other state: why an object is unusable, since when a gang waits, and
GPU shares. Containers and other fields that no scheduler reads get placeholder values.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds, wellknown
from optsched.formats.codec.annotations import (
    API_VERSION,
    LOAD,
    PROBLEM,
    WAITING_SINCE,
    YIELDS_TO_GUARANTEES,
    encode_load,
    encode_reason,
    time_text,
)
from optsched.formats.codec.gpu_shares import GPU_SHARE_PROBLEM, shared_gpu_annotations
from optsched.formats.codec.hypernodes import hypernode_spec, topology_spec
from optsched.formats.codec.nodes import dataset_annotation, sharding_fields
from optsched.formats.codec.numatopologies import numa_spec
from optsched.formats.codec.pod_groups import scheduling_group_spec
from optsched.formats.codec.pod_limits import SYSTEM
from optsched.formats.codec.pods.reader import group_name, is_upstream
from optsched.formats.codec.pods.writer import is_missing, pod_manifest
from optsched.formats.codec.queues import USAGE, affinity_fields, usage_text
from optsched.formats.codec.resource_claims import encode_devices
from optsched.formats.codec.selectors import (
    label_selector_fields,
    node_selector_fields,
    topology_fields,
)
from optsched.formats.codec.volumes import BETWEEN_ZONES, NO_PROVISIONER, SELECTED_NODE, WAITS
from optsched.formats.files.yaml_text import write_yaml
from optsched.formats.snapshots.assembly import SNAPSHOT_KIND
from optsched.units import format_resource_list

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.amounts import Amounts, Usage
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import Claim, Gang, Node, Owner, Queue, Snapshot, Volume

Manifest = dict[str, Any]

_YAML: Final = (".yaml", ".yml")
_JSON: Final = ".json"
_BY_NAME: Final = "optsched.io/volume"
_NO_VOLUME: Final = "none"


def encode(snapshot: Snapshot) -> list[Manifest]:
    """Return the objects of a snapshot; `assemble` converts them back to an equal snapshot.

    Snapshots from `assemble` are encoded without loss. Other snapshots must list all namespaces,
    have the built-in queues, and name the gangs of bare pods with the prefix `pod:`. Raises
    ValueError if the allowed nodes of a waiting claim cannot be written as a StorageClass.
    """
    answers = [{"question": question, "reply": reply} for question, reply in snapshot.answers]
    residents = {task.key: (task, None) for node in snapshot.nodes for task in node.residents}
    members = {task.key: (task, gang) for gang in snapshot.gangs for task in gang.tasks}
    # Most tasks on nodes are also members of a gang, but each task is written only once.
    tasks = {**residents, **members}
    values = {gang.priority for gang in snapshot.gangs if _has_group(gang) and gang.priority}
    named = {n: v for n, v in snapshot.priority_classes.items() if n not in SYSTEM}
    named |= {_class_name(value): value for value in values}
    return [
        {
            **time_manifest(snapshot.taken_ms),
            **sharding_fields(snapshot.sharding),
            **({"answers": answers} if answers else {}),
        },
        *(
            _manifest(kinds.NAMESPACE, {"name": name, "labels": dict(labels)})
            for name, labels in snapshot.namespaces.items()
        ),
        *[
            _manifest(kinds.PRIORITY_CLASS, {"name": name}, value=named[name])
            for name in sorted(named)
        ],
        *(_queue(queue, snapshot.usage.get(queue.name)) for queue in snapshot.queues),
        *_nodes(snapshot.nodes),
        *_claims(snapshot.claims.values()),
        *_limits(snapshot),
        *encode_devices(snapshot.devices),
        *(
            _manifest(
                kinds.HYPER_NODE, {"name": each.name}, spec=hypernode_spec(each, snapshot.topology)
            )
            for each in snapshot.topology.hypernodes
        ),
        *_groups(snapshot.gangs),
        *(pod_manifest(*tasks[key]) for key in sorted(tasks)),
    ]


def write_bundle(
    objects: Iterable[Mapping[str, Any]],
    path: Path,
    opener: Callable[[str, int], int] | None = None,
) -> None:
    """Write objects to one file as a List; the file suffix selects YAML or JSON.

    `opener` is passed to the function `open`. Raises ValueError for a suffix other than .yaml, .yml
    and .json.
    """
    parts = bundle_writer(path)(objects)
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.writelines(parts)


def bundle_writer(path: Path) -> Callable[[Iterable[Mapping[str, Any]]], Iterator[str]]:
    """Return `yaml_bundle` or `json_bundle` for a file suffix; raise ValueError for any other."""
    suffix = path.suffix.lower()
    if suffix in _YAML:
        return yaml_bundle
    if suffix == _JSON:
        return json_bundle
    known = ", ".join((*_YAML, _JSON))
    raise ValueError(f"{path}: objects are written to files that end in {known}")


def yaml_bundle(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a List of objects as YAML text, in chunks."""
    yield "apiVersion: v1\nitems:\n"
    yield from (write_yaml([each]) for each in objects)
    # The kind comes last, so a truncated file is not a valid List.
    yield "kind: List\n"


def json_bundle(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a List of objects as JSON text, in chunks."""
    whole = {"apiVersion": "v1", "items": list(objects), "kind": "List"}
    yield f"{json.dumps(whole, indent=1)}\n"


def _manifest(kind: kinds.Kind, metadata: Manifest, **parts: object) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            name: value for name, value in metadata.items() if value not in ("", {}, None)
        },
        **parts,
    }


def time_manifest(taken_ms: int) -> Manifest:
    """Return the dump object that holds the time of the snapshot."""
    return {
        "apiVersion": API_VERSION,
        "kind": SNAPSHOT_KIND,
        "metadata": {"name": "snapshot"},
        "takenAt": time_text(taken_ms),
    }


def _with_problem(annotations: Mapping[str, str], problem: Reason | None) -> dict[str, str]:
    return {**annotations, **({} if problem is None else {PROBLEM: encode_reason(problem)})}


def node_manifest(node: Node) -> Manifest:
    """Return the manifest of a node, without its pods."""
    taints = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect.value}
        for taint in node.taints
    ]
    cordoned = {"unschedulable": True} if node.unschedulable else {}
    ready = {"type": "Ready", "status": "True" if node.ready else "False"}
    annotations = {} if node.load is None else {LOAD: encode_load(node.load)}
    annotations |= {GPU_SHARE_PROBLEM: node.card_problem} if node.card_problem else {}
    annotations |= shared_gpu_annotations(node.shared_gpus)
    annotations |= dataset_annotation(node.store, node.labels)
    images = [{"names": [name], "sizeBytes": size} for name, size in node.store.images]
    return _manifest(
        kinds.NODE,
        {
            "name": node.name,
            "labels": dict(node.labels),
            **({"annotations": annotations} if annotations else {}),
        },
        spec={**cordoned, **({"taints": taints} if taints else {})},
        status={
            "allocatable": _amounts(node.allocatable),
            "conditions": [ready],
            **({"images": images} if images else {}),
        },
    )


def _nodes(nodes: Sequence[Node]) -> Iterator[Manifest]:
    yield from map(node_manifest, nodes)
    for node in nodes:
        if node.numa and node.numa.problem:
            metadata = {"name": node.name, "annotations": {PROBLEM: node.numa.problem}}
            yield _manifest(kinds.NUMATOPOLOGY, metadata)
        elif node.numa:
            yield _manifest(kinds.NUMATOPOLOGY, {"name": node.name}, spec=numa_spec(node.numa))
    for node in nodes:
        drivers = [
            {"name": driver, "nodeID": node.name, "allocatable": {"count": limit}}
            for driver, limit in node.attach_limits
        ]
        if drivers:
            yield _manifest(kinds.CSI_NODE, {"name": node.name}, spec={"drivers": drivers})


def _limits(snapshot: Snapshot) -> Iterator[Manifest]:
    for budget in snapshot.budgets:
        selector = budget.selector
        yield _manifest(
            kinds.POD_DISRUPTION_BUDGET,
            {
                "name": budget.key.partition("/")[2],
                "namespace": budget.namespace,
                "annotations": (
                    {YIELDS_TO_GUARANTEES: "true"} if budget.yields_to_guarantees else {}
                ),
            },
            spec={} if selector is None else {"selector": label_selector_fields(selector)},
            status={"disruptionsAllowed": budget.allowed},
        )
    for quota in snapshot.quotas:
        hard = _amounts(quota.hard)
        yield _manifest(
            kinds.RESOURCE_QUOTA,
            {"name": quota.key.partition("/")[2], "namespace": quota.namespace},
            spec={"hard": hard},
            status={"hard": hard, "used": _amounts(quota.used)},
        )
    for shard in snapshot.sharding.shards:
        yield _manifest(
            kinds.NODE_SHARD,
            {"name": shard.name},
            spec={"nodesDesired": list(shard.wanted)},
            status={"nodesInUse": list(shard.in_use)},
        )


def _queue(queue: Queue, usage: Usage | None) -> Manifest:
    affinity = affinity_fields(queue.node_groups)
    used = {} if usage is None else {USAGE: usage_text(usage)}
    return _manifest(
        kinds.QUEUE,
        {
            "name": queue.name,
            "annotations": _with_problem({**queue.annotations, **used}, queue.problem),
            "creationTimestamp": time_text(queue.created_ms),
        },
        spec={
            "weight": queue.weight,
            "capability": _amounts(queue.capability or ()),
            "deserved": _amounts(queue.deserved),
            "guarantee": {"resource": _amounts(queue.guarantee)},
            "reclaimable": queue.reclaimable,
            "parent": queue.parent,
            "priority": queue.priority,
            "dequeueStrategy": "fifo" if queue.is_fifo else "traverse",
            **({"affinity": affinity} if affinity else {}),
        },
        status={"state": queue.state.value},
    )


def _amounts(amounts: Amounts) -> dict[str, str]:
    return format_resource_list(dict(amounts))


# --- gangs and pods -------------------------------------------------------------------------------


def _has_group(gang: Gang) -> bool:
    return not (gang.is_implicit or is_missing(gang) or is_upstream(gang))


def _class_name(priority: int) -> str:
    return f"priority-{priority}" if priority >= 0 else f"priority-minus-{-priority}"


def _group_meta(gang: Gang, name: str) -> Manifest:
    annotations = _with_problem(gang.annotations, gang.problem)
    if gang.waiting_since_ms != gang.created_ms:
        annotations[WAITING_SINCE] = time_text(gang.waiting_since_ms)
    return {
        "name": name,
        "namespace": gang.namespace,
        "uid": gang.uid,
        "annotations": annotations,
        "creationTimestamp": time_text(gang.created_ms),
        "ownerReferences": owner_fields(gang.owner),
    }


def owner_fields(owner: Owner | None) -> list[Manifest] | None:
    """Return the `ownerReferences` of an object, or None if it has no owner."""
    if owner is None:
        return None
    named = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name}
    return [{**named, "uid": owner.uid, "controller": True}]


def _groups(gangs: Sequence[Gang]) -> Iterator[Manifest]:
    for gang in filter(_has_group, gangs):
        yield _manifest(
            kinds.POD_GROUP,
            _group_meta(gang, gang.name),
            spec={
                "queue": gang.queue,
                "minMember": gang.min_member,
                "minTaskMember": dict(gang.min_role),
                "minResources": _amounts((*gang.min_resources, *gang.min_usage)),
                **topology_spec(gang),
                **({"priorityClassName": _class_name(gang.priority)} if gang.priority else {}),
            },
            status={"phase": gang.phase.value},
        )
    for gang in gangs:
        if is_upstream(gang) and not is_missing(gang):
            meta = _group_meta(gang, group_name(gang))
            meta["annotations"][wellknown.QUEUE_NAME] = gang.queue
            spec = scheduling_group_spec(gang)
            yield _manifest(kinds.SCHEDULING_POD_GROUPS[0], meta, spec=spec)


# --- volumes --------------------------------------------------------------------------------------


def _claims(claims: Collection[Claim]) -> Iterator[Manifest]:
    yield from _candidate_volume_objects(
        c for c in claims if c.waits_for_consumer and not c.problem
    )
    classes: dict[tuple[object, ...], str] = {}
    for claim in claims:
        annotations = {PROBLEM: claim.problem} if claim.problem else {}
        if claim.waits_for_consumer or (claim.driver and not claim.handle):
            kind = (claim.nodes, claim.provisions, claim.driver)
            if not claim.volumes and kind not in classes:
                classes[kind] = f"waits-{len(classes)}"
                yield _class(classes[kind], claim)
            name = claim.volumes[0].storage_class if claim.volumes else classes[kind]
            names = [volume.name for volume in claim.volumes] or [_NO_VOLUME]
            by_name = {"key": _BY_NAME, "operator": "In", "values": names}
            spec: Manifest = {"storageClassName": name}
            spec["selector"] = {"matchExpressions": [by_name]}
            if claim.size_bytes:
                spec["resources"] = {
                    "requests": format_resource_list({"storage": claim.size_bytes})
                }
            selected = {SELECTED_NODE: claim.selected_node} if claim.selected_node else {}
            yield _claim(claim.key, spec, "Pending", {**selected, **annotations})
        elif claim.problem and not claim.driver:
            yield _claim(claim.key, {}, "Pending", annotations)
        else:
            name = claim.key.replace("/", ".")
            volume = _volume(name, claim.nodes)
            if claim.driver:
                volume["spec"]["csi"] = {"driver": claim.driver, "volumeHandle": claim.handle}
            if claim.zones:
                labels = {label: BETWEEN_ZONES.join(values) for label, values in claim.zones}
                volume["metadata"]["labels"] = labels
            yield volume
            yield _claim(claim.key, {"volumeName": name}, "Bound", annotations)


def _candidate_volume_objects(claims: Iterable[Claim]) -> Iterator[Manifest]:
    """Yield the candidate volumes of waiting claims, and the storage classes of the volumes."""
    by_class: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.volumes:
            by_class.setdefault(claim.volumes[0].storage_class, []).append(claim)
    for name, members in by_class.items():
        provisions = any(claim.provisions or claim.driver for claim in members)
        yield _class(name, replace(members[0], provisions=provisions))
        # If a StorageClass can provision volumes, a claim without provisioning gets a reserved
        # volume.
        reserved = {c.volumes[0].name: c.key for c in members if provisions and not c.provisions}
        offered = {volume.name: volume for claim in members for volume in claim.volumes}
        for volume in offered.values():
            yield _volume(volume.name, volume.nodes, volume, reserved.get(volume.name, ""))


def _claim(key: str, spec: Manifest, phase: str, annotations: Mapping[str, str]) -> Manifest:
    namespace, _, name = key.partition("/")
    metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    return _manifest(kinds.PERSISTENT_VOLUME_CLAIM, metadata, spec=spec, status={"phase": phase})


def _volume(
    name: str,
    nodes: NodeSelector | None = None,
    offered: Volume | None = None,
    reserved_for: str = "",
) -> Manifest:
    spec: Manifest = {}
    metadata: Manifest = {"name": name}
    if nodes is not None:
        spec["nodeAffinity"] = {"required": node_selector_fields(nodes)}
    if offered is not None:
        metadata["labels"] = {_BY_NAME: name}
        spec["storageClassName"] = offered.storage_class
        spec["capacity"] = format_resource_list({"storage": offered.capacity_bytes})
    if reserved_for:
        namespace, _, claim = reserved_for.partition("/")
        spec["claimRef"] = {"namespace": namespace, "name": claim}
    return _manifest(kinds.PERSISTENT_VOLUME, metadata, spec=spec)


def _class(name: str, claim: Claim) -> Manifest:
    fields: Manifest = {"volumeBindingMode": WAITS}
    if claim.nodes is not None:
        fields["allowedTopologies"] = topology_fields(claim.nodes)
    provisioner = claim.driver if claim.provisions else NO_PROVISIONER
    if provisioner:
        fields["provisioner"] = provisioner
    return _manifest(kinds.STORAGE_CLASS, {"name": name}, **fields)
