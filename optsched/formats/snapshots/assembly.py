"""Assemble a cluster snapshot from JSON objects, in any order and from any source."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds
from optsched.api.meta import NOT_A_MAPPING
from optsched.formats.codec.gpu_shares import CONFIG_FILE, DeviceTable, parse_device_table
from optsched.formats.codec.nodes import read_sharding
from optsched.formats.codec.pods.reader import (
    DEFAULT_NAMESPACE,
    DecodeOptions,
    awaits_node,
    scheduler_of,
)
from optsched.formats.codec.snapshot_annotations import (
    API_VERSION,
    time_text,
    without_snapshot_annotations,
)
from optsched.formats.files.diagnostics import ObjectProblem, diagnostics_of
from optsched.formats.snapshots.cluster_objects import READ_KINDS, ClusterObjects
from optsched.units import FieldError, TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.node_parts import Sharding
    from optsched.cluster.snapshot import Snapshot

SNAPSHOT_KIND: Final = "Snapshot"
"""Kind of the object that records in a dump when the snapshot was taken (`takenAt`)."""

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
        Manifests, or objects from an API server. An object without a namespace is in `default`. A
        missing creation time is replaced by the object's position, in milliseconds.
    options
        The scheduler names and other settings that select this scheduler's pods and nodes.
    taken_ms
        Time of the snapshot in ms since 1970. None selects the time that a dump records, and
        without a dump the latest creation time.
    where
        `file:line` of each object, for error messages.

    """
    index, options = ObjectIndex(objects, where), options or DecodeOptions()
    cluster = ClusterObjects(replace(options, sharding=options.sharding or index.sharding))
    # If several ConfigMaps list the partitions of a GPU or NPU model, the first of them applies.
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
class Entry:
    """One object, and the `file:line` from which it was read."""

    obj: dict[str, Any]
    where: str


class ObjectIndex:
    """The objects for a snapshot, indexed by kind and key.

    Attributes
    ----------
    num_read
        Number of objects in the index.
    problems
        Problems with documents that are not objects, have no name, or occur more than once.
    ignored
        Number of objects whose kinds do not belong to a snapshot, keyed by `apiVersion Kind`.
    left_out
        (`apiVersion Kind name`, `file:line`) of each object counted in `ignored`.
    taken_ms
        Time of the snapshot in ms since 1970, or None if no dump records it.
    answers
        Requests to extenders and their replies, as a dump records them.
    sharding
        The sharding that a dump records, or None if there is no dump.

    """

    def __init__(self, objects: Iterable[Mapping[str, Any]], where: Sequence[str]) -> None:
        self.problems: list[ObjectProblem] = []
        self.ignored: Counter[str] = Counter()
        self.left_out: list[tuple[str, str]] = []
        self.taken_ms: int | None = None
        self.answers: list[tuple[str, str]] = []
        self.sharding: Sharding | None = None
        read = (*READ_KINDS, kinds.CONFIG_MAP)
        self._entries: dict[kinds.Kind, dict[str, Entry]] = {kind: {} for kind in read}
        self._is_dump = False
        for position, obj in enumerate(objects):
            self._add_document(obj, position, where[position] if where else "")
        self.num_read = sum(map(len, self._entries.values()))
        for kind, entries in self._entries.items():
            ordered = {key: entries[key] for key in sorted(entries)}
            if not self._is_dump:
                # Annotations for snapshot dumps have no effect in a live cluster.
                ordered = {
                    key: Entry(without_snapshot_annotations(entry.obj), entry.where)
                    for key, entry in ordered.items()
                }
            self._entries[kind] = ordered

    def objects_of(self, kind: kinds.Kind) -> Mapping[str, Entry]:
        """Return the objects of a kind, keyed and sorted by key."""
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
        self._entries[kind][key] = Entry(obj, where)

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
