"""Assemble cluster snapshots from JSON objects in watch events or files, without I/O or a clock."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds
from optsched.api.meta import NOT_A_MAPPING
from optsched.api.wellknown import SUBMITTER
from optsched.cluster.node_resources import NO_SHARDING
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.snapshot_builder import SnapshotBuilder
from optsched.formats.codec.annotations import (
    API_VERSION,
    time_text,
    without_snapshot_annotations,
)
from optsched.formats.codec.gpu_shares import CONFIG_FILE, DeviceTable, parse_device_table
from optsched.formats.codec.nodes import read_sharding
from optsched.formats.codec.pod_limits import (
    parse_budget,
    parse_priority_class,
    parse_quota,
    priorities,
)
from optsched.formats.codec.pods.reader import (
    DEFAULT_NAMESPACE,
    DecodeOptions,
    awaits_node,
    group_key,
    scheduler_of,
)
from optsched.formats.files.diagnostics import ObjectProblem, diagnostics_of
from optsched.formats.snapshots.gang_store import GangStore
from optsched.formats.snapshots.object_stores import (
    STORAGE_KINDS,
    DeviceStore,
    NamespaceStore,
    NodeStore,
    ParsedStore,
    Problems,
    QueueStore,
    ShardStore,
    VolumeStore,
    take_every_node,
)
from optsched.formats.snapshots.pod_store import PodStore
from optsched.units import FieldError, TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.cluster.node_resources import Sharding
    from optsched.cluster.snapshot import Budget, Node, Quota
    from optsched.cluster.task import Task
    from optsched.formats.codec.pod_limits import PriorityClass
    from optsched.formats.snapshots.object_stores import Raw

SNAPSHOT_KIND: Final = "Snapshot"
"""Kind of the dump object that holds the time of the snapshot (`takenAt`)."""

_NO_NAME: Final = "is missing: every object needs a name"
_NAME_NO_TEXT: Final = "is not a string: write it in quotes"
_NO_TEXT: Final = f"is not a string; the object is read as one of namespace {DEFAULT_NAMESPACE}"
_NO_KIND: Final = "is not a Kubernetes object: write apiVersion, kind and metadata"
_NO_SHARDING: Final = "is not a valid sharding: write {mode: soft, name: NAME}, or hard"
_NO_ANSWER: Final = "is not a recorded reply: write a question, and a reply in JSON"
_TWICE: Final = "occurs more than once; the last occurrence applies"
_NO_NODE: Final = "is not a node of this cluster"

_REPORT_ORDER: Final = (
    kinds.PRIORITY_CLASS,
    *kinds.DEVICE_KINDS,
    kinds.POD,
    kinds.QUEUE,
    kinds.POD_GROUP,
    *kinds.SCHEDULING_POD_GROUPS,
    kinds.NUMATOPOLOGY,
    kinds.CSI_NODE,
    kinds.NODE,
    kinds.PERSISTENT_VOLUME,
    kinds.STORAGE_CLASS,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.HYPER_NODE,
    kinds.RESOURCE_QUOTA,
    kinds.NODE_SHARD,
)
"""The kinds whose fields are read, in the order in which their errors are reported."""


READ_KINDS: Final = (
    kinds.NODE,
    kinds.POD,
    kinds.POD_GROUP,
    *kinds.SCHEDULING_POD_GROUPS,
    kinds.QUEUE,
    kinds.PRIORITY_CLASS,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.PERSISTENT_VOLUME,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.HYPER_NODE,
    kinds.NUMATOPOLOGY,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.RESOURCE_QUOTA,
    kinds.NODE_SHARD,
    *kinds.DEVICE_KINDS,
)
"""Kinds of objects that belong to a snapshot."""

OPTIONAL_KINDS: Final = frozenset(
    {
        kinds.HYPER_NODE,
        kinds.NUMATOPOLOGY,
        kinds.NODE_SHARD,
        *kinds.SCHEDULING_POD_GROUPS,
        *kinds.DEVICE_KINDS,
    }
)
"""Kinds in `READ_KINDS` that an API server need not serve; an unserved kind has no objects."""


class ClusterObjects:
    """Parsed objects of all kinds, and the snapshots assembled from them.

    Attributes
    ----------
    pods, gangs, nodes, devices, volumes, queues, shards
        Stores of objects, including assumed changes that no watch has confirmed.

    """

    def __init__(
        self,
        options: DecodeOptions | None = None,
        takes_node: Callable[[Mapping[str, str]], bool] = take_every_node,
    ) -> None:
        """`takes_node` returns whether a node with the given labels belongs to this scheduler."""
        options = options or DecodeOptions()
        problems: Problems = {}
        self._problems = problems
        self._builder = SnapshotBuilder()
        self._namespaces = NamespaceStore()
        self._classes: ParsedStore[PriorityClass] = ParsedStore(
            kinds.PRIORITY_CLASS, parse_priority_class, problems
        )
        self._budgets: ParsedStore[Budget] = ParsedStore(
            kinds.POD_DISRUPTION_BUDGET,
            partial(parse_budget, yields_to_guarantees=options.guarantees_override_budgets),
            problems,
        )
        self._quotas: ParsedStore[Quota] = ParsedStore(kinds.RESOURCE_QUOTA, parse_quota, problems)
        self.pods = PodStore(options, self._builder, problems)
        self.queues = QueueStore(problems)
        self.gangs = GangStore(options, self._builder, self.pods, self._namespaces, self.queues)
        self.nodes = NodeStore(self._builder, takes_node, problems)
        self.devices = DeviceStore(problems)
        self.volumes = VolumeStore(problems)
        self.shards = ShardStore(options.sharding or NO_SHARDING, problems)
        self._apply_by_kind: Mapping[Kind, Callable[[str, Raw | None], None]] = {
            kinds.NODE: self.nodes.apply_node,
            kinds.HYPER_NODE: self.nodes.apply_hypernode,
            kinds.NUMATOPOLOGY: self.nodes.apply_numatopology,
            kinds.CSI_NODE: self.nodes.apply_csi_node,
            kinds.POD_GROUP: self.gangs.apply_group,
            kinds.QUEUE: self.queues.apply,
            kinds.NODE_SHARD: self.shards.apply,
            kinds.PRIORITY_CLASS: self._classes.apply,
            kinds.POD_DISRUPTION_BUDGET: self._budgets.apply,
            kinds.RESOURCE_QUOTA: self._quotas.apply,
            kinds.NAMESPACE: self._namespaces.apply,
            kinds.PERSISTENT_VOLUME_CLAIM: self.volumes.apply_claim,
            **{kind: partial(self.volumes.apply_storage, kind) for kind in STORAGE_KINDS},
            **{
                kind: partial(self.gangs.apply_scheduling_group, kind)
                for kind in kinds.SCHEDULING_POD_GROUPS
            },
        }

    def apply(self, kind: Kind, key: str, obj: Raw | None, *, is_created: bool = False) -> None:
        """Store an object, or remove the object if `obj` is None.

        `is_created` is true if `obj` is known to be the first state of a pod.
        """
        if kind in kinds.DEVICE_KINDS:
            self.devices.apply_object(kind, key, obj)
            if kind in kinds.RESOURCE_CLAIMS:
                self.pods.apply_claim(key, self.devices.claim(key))
        elif kind != kinds.POD:
            self._apply_by_kind[kind](key, obj)
        elif obj is None:
            self.pods.delete_pod(key)
        else:
            self.pods.apply_pod(obj, is_created=is_created)

    def refresh_priorities(self) -> None:
        """Apply changed priority classes, and decode again the pods that depend on them."""
        if self._classes.refresh():
            self.gangs.set_priorities(priorities(self._classes.values))

    def build(self, taken_ms: int | None, used_namespaces: set[str]) -> Snapshot:
        """Build the snapshot of the cluster; unchanged parts of the last snapshot are reused.

        Parameters
        ----------
        taken_ms
            Time of the snapshot in ms since 1970, or None for the latest creation time of a gang or
            queue.
        used_namespaces
            Namespaces in which any object exists, even if there is no Namespace object.

        """
        self.refresh_priorities()
        if self._namespaces.refresh(used_namespaces):
            # A namespace annotation may name the queue for gangs without a PodGroup.
            self.pods.changed_gangs.update(
                key for key in self.pods.gangs if key not in self.gangs.groups
            )
        if self.queues.refresh():
            self.pods.changed_gangs.update(self.gangs.queue_dependent_gangs)
        for store in (self._budgets, self._quotas, self.shards):
            store.refresh()
        self.gangs.refresh()
        shuffles = self.gangs.shuffles.last_ms(taken_ms)
        if taken_ms is None:
            gangs, queues = self._builder.gangs.values, self.queues.shown
            taken_ms = max((*(g.created_ms for g in gangs), *(q.created_ms for q in queues)))
        others = Snapshot(
            taken_ms,
            queues=self.queues.shown,
            claims=self.volumes.refresh(),
            namespaces=self._namespaces.labels,
            budgets=self._budgets.values,
            topology=self.nodes.topology_index.topology(),
            quotas=self._quotas.values,
            sharding=self.shards.sharding,
            devices=self.devices.refresh(),
            priority_classes=self.gangs.priorities.values,
            last_shuffle_ms=shuffles,
            usage=self.queues.usage,
        )
        return self._builder.build(taken_ms, others)

    def find_node(self, name: str) -> Node | None:
        """Return a node of this scheduler, or None if there is no such node."""
        return self._builder.find_node(name)

    def tasks_without_node(self) -> list[Task]:
        """Return the tasks whose node does not exist, sorted by task key."""
        return self._builder.tasks_without_node()

    def problems(self) -> Problems:
        """Return the invalid fields of the last snapshot's objects, by kind and object key."""
        found = {**self._problems, **self.volumes.storage_problems()}
        for gang, (kind, errors) in self.gangs.group_problems.items():
            found[kind, group_key(gang)] = errors
        for flaw in chain.from_iterable(self.gangs.flaws.values()):
            about = (flaw.kind, flaw.key)
            error = FieldError(f"metadata.annotations[{SUBMITTER}]", "", flaw.message)
            found[about] = (*found.get(about, ()), error)
        for name, remarks in self.nodes.topology_index.remarks.items():
            about = (kinds.HYPER_NODE, name)
            found[about] = (*found.get(about, ()), *remarks)
        return found


@dataclass(frozen=True, slots=True)
class Assembled:
    """A snapshot, and the problems with the objects from which it was assembled.

    Attributes
    ----------
    num_read
        Number of objects whose kinds belong to a snapshot.
    problems
        Invalid fields, duplicates, and references to missing objects. The snapshot also records why
        an object cannot be used.
    ignored
        Number of objects whose kinds do not belong to a snapshot, keyed by `apiVersion Kind`.
    left_out
        (`apiVersion Kind name`, `file:line`) of each object counted in `ignored`.
    elsewhere
        Number of pods that wait for another scheduler, keyed by its name; the snapshot omits them.

    """

    snapshot: Snapshot
    num_read: int
    problems: tuple[ObjectProblem, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()
    elsewhere: Mapping[str, int] = field(default_factory=dict)


def assemble(
    objects: Iterable[Mapping[str, Any]],
    options: DecodeOptions | None = None,
    taken_ms: int | None = None,
    *,
    where: Sequence[str] = (),
) -> Assembled:
    """Assemble the snapshot of a cluster; an invalid object does not affect other objects.

    Parameters
    ----------
    objects
        Manifests, or objects from an API server. An object without a namespace is in `default`. An
        object without a creation time gets the time i ms after 1970, where i is its index.
    options
        The scheduler names and other settings that select this scheduler's pods and nodes.
    taken_ms
        Time of the snapshot in ms since 1970. If `taken_ms` is None, the time in the dump or,
        without a dump, the latest creation time of an object is used.
    where
        `file:line` of each object, for error messages.

    """
    index, options = _ObjectIndex(objects, where), options or DecodeOptions()
    cluster = ClusterObjects(replace(options, sharding=options.sharding or index.sharding))
    # If several ConfigMaps list the partitions of a GPU or NPU model, the first ConfigMap applies.
    devices = DeviceTable()
    for key, entry in index.objects_of(kinds.CONFIG_MAP).items():
        table, errors = parse_device_table(entry.obj)
        index.problems += diagnostics_of(kinds.CONFIG_MAP.kind, key, errors, entry.where)
        devices = DeviceTable(devices.geometries + table.geometries, devices.chips + table.chips)
    cluster.nodes.set_device_table(devices)
    # Priorities and claims are read before the pods that depend on them, so each pod is decoded
    # once.
    first = (kinds.PRIORITY_CLASS, kinds.NAMESPACE, *kinds.DEVICE_KINDS)
    for kind in (*first, *(kind for kind in READ_KINDS if kind not in first)):
        if kind == kinds.NODE:
            cluster.refresh_priorities()
        for key, entry in index.objects_of(kind).items():
            cluster.apply(kind, key, entry.obj)
    namespaced = (index.objects_of(kind) for kind in READ_KINDS if kind.namespaced)
    used_namespaces = {key.partition("/")[0] for entries in namespaced for key in entries}
    snapshot = cluster.build(index.taken_ms if taken_ms is None else taken_ms, used_namespaces)
    if index.answers:
        snapshot = replace(snapshot, answers=tuple(index.answers))
    problems = cluster.problems()
    for kind in _REPORT_ORDER:
        for key, entry in index.objects_of(kind).items() if problems else ():
            index.problems += diagnostics_of(
                kind.kind, key, problems.get((kind, key), ()), entry.where
            )
        if kind == kinds.NODE:
            for task in cluster.tasks_without_node():
                error = FieldError("spec.nodeName", task.node, _NO_NODE)
                pod = index.objects_of(kinds.POD).get(task.key)
                index.problems += diagnostics_of(
                    kinds.POD.kind, task.key, [error], pod.where if pod else ""
                )
    elsewhere = (
        scheduler_of(entry.obj)
        for key, entry in index.objects_of(kinds.POD).items()
        if cluster.pods.find_pod(key) is None and awaits_node(entry.obj)
    )
    return Assembled(
        snapshot,
        num_read=index.num_read,
        problems=tuple(index.problems),
        ignored=dict(index.ignored),
        left_out=tuple(index.left_out),
        elsewhere=dict(Counter(elsewhere)),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object, and the `file:line` from which it was read."""

    obj: dict[str, Any]
    where: str


class _ObjectIndex:
    """The objects for a snapshot, indexed by kind and key.

    `problems` concern documents that are not objects, have no name, or occur more than once. A
    dump records `taken_ms` (in ms since 1970), `sharding` and `answers` (requests to extenders and
    their replies). `Assembled` explains the other attributes.
    """

    def __init__(self, objects: Iterable[Mapping[str, Any]], where: Sequence[str]) -> None:
        self.problems: list[ObjectProblem] = []
        self.ignored: Counter[str] = Counter()
        self.left_out: list[tuple[str, str]] = []
        self.taken_ms: int | None = None
        self.answers: list[tuple[str, str]] = []
        self.sharding: Sharding | None = None
        read = (*READ_KINDS, kinds.CONFIG_MAP)
        self._entries: dict[kinds.Kind, dict[str, _Entry]] = {kind: {} for kind in read}
        self._is_dump = False
        for position, obj in enumerate(objects):
            self._add_document(obj, position, where[position] if where else "")
        self.num_read = sum(map(len, self._entries.values()))
        for kind, entries in self._entries.items():
            ordered = {key: entries[key] for key in sorted(entries)}
            if not self._is_dump:
                # Annotations for snapshot dumps are valid only in a dump.
                ordered = {
                    key: _Entry(without_snapshot_annotations(entry.obj), entry.where)
                    for key, entry in ordered.items()
                }
            self._entries[kind] = ordered

    def objects_of(self, kind: kinds.Kind) -> Mapping[str, _Entry]:
        return self._entries[kind]

    def _add_document(self, obj: object, position: int, where: str) -> None:
        if not isinstance(obj, dict) or not obj.get("kind") or not obj.get("apiVersion"):
            self.problems.append(ObjectProblem("", "", "", obj, _NO_KIND, where))
            return
        version, name = str(obj["apiVersion"]), str(obj["kind"])
        kind, data = kinds.find_kind(version, name), obj.get("data")
        has_tables = isinstance(data, dict) and CONFIG_FILE in data
        if kind in self._entries and (kind != kinds.CONFIG_MAP or has_tables):
            self._add_object(kind, obj, position, where)
        elif (version, name) == (API_VERSION, SNAPSHOT_KIND):
            self._is_dump = True
            self.sharding = read_sharding(obj)
            if self.sharding is None:
                error = FieldError("sharding", obj["sharding"], _NO_SHARDING)
                self.problems += diagnostics_of(SNAPSHOT_KIND, "", [error], where)
            try:
                self.taken_ms = parse_time_ms(obj.get("takenAt"))
            except TimestampError as e:
                self.problems += diagnostics_of(SNAPSHOT_KIND, "", [e.at_path("takenAt")], where)
            self._read_answers(obj, where)
        else:
            self.ignored[f"{version} {name}"] += 1
            meta = obj.get("metadata")
            called = meta.get("name") if isinstance(meta, dict) else None
            self.left_out.append((f"{version} {name} {called or ''}".strip(), where))

    def _add_object(self, kind: kinds.Kind, obj: dict[str, Any], position: int, where: str) -> None:
        meta = obj.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(meta, dict) or not isinstance(name, str) or not name:
            path, value, message = "metadata.name", name, _NO_NAME
            if name:
                message = _NAME_NO_TEXT
            elif meta is not None and not isinstance(meta, dict):
                path, value, message = "metadata", meta, NOT_A_MAPPING
            self.problems.append(ObjectProblem(kind.kind, "", path, value, message, where))
            return
        namespace = meta.get("namespace")
        if not isinstance(namespace, str | None):
            path = "metadata.namespace"
            self.problems.append(ObjectProblem(kind.kind, name, path, namespace, _NO_TEXT, where))
        # An API server would set a missing namespace and creation time.
        completed = dict(meta)
        if kind.namespaced and not isinstance(namespace or None, str):
            completed["namespace"] = DEFAULT_NAMESPACE
        if meta.get("creationTimestamp") is None:
            completed["creationTimestamp"] = time_text(position)
        obj = {**obj, "metadata": completed}
        key = f"{completed['namespace']}/{name}" if kind.namespaced else name
        if key in self._entries[kind]:
            self.problems.append(ObjectProblem(kind.kind, key, "", None, _TWICE, where))
        self._entries[kind][key] = _Entry(obj, where)

    def _read_answers(self, obj: dict[str, Any], where: str) -> None:
        found = obj.get("answers") or []
        for i, each in enumerate(found if isinstance(found, list) else [found]):
            plain = each if isinstance(each, dict) else {}
            question, reply = plain.get("question"), plain.get("reply")
            if isinstance(question, str) and isinstance(reply, str):
                with suppress(ValueError, RecursionError):
                    if isinstance(json.loads(reply), dict):
                        self.answers.append((question, reply))
                        continue
            error = FieldError(f"answers[{i}]", each, _NO_ANSWER)
            self.problems += diagnostics_of(SNAPSHOT_KIND, "", [error], where)
