"""A whole cluster from plain objects, in any order and from any source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from optsched.api import kinds
from optsched.api.hypernode import parse_hypernode
from optsched.api.nodeshard import parse_nodeshard
from optsched.api.podgroup import parse_podgroup
from optsched.api.priorityclass import parse_priority_class
from optsched.api.queue import parse_queue
from optsched.api.schedulinggroup import parse_scheduling_group
from optsched.cluster.dra_devices import Devices
from optsched.cluster.node_shards import NO_SHARDING
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.disruption_budgets import parse_budget
from optsched.formats.codec.hypernodes import TopologyIndex
from optsched.formats.codec.node_shards import with_shards
from optsched.formats.codec.nodes import parse_node
from optsched.formats.codec.numatopologies import parse_numa
from optsched.formats.codec.partition_tables import DeviceTable, parse_device_table
from optsched.formats.codec.pod_groups import (
    BarePod,
    gang_of_group,
    gang_without_group,
    implicit_gang,
    is_empty_group_of,
)
from optsched.formats.codec.pods.reader import (
    IMPLICIT_PREFIX,
    DecodeOptions,
    PodDecoder,
    claims_of,
    has_left_cluster,
    scheduler_of,
)
from optsched.formats.codec.priority_classes import Priorities, priorities
from optsched.formats.codec.queues import queue_of, read_usage, usage_of, with_builtin_queues
from optsched.formats.codec.resource_claims import (
    parse_device_claim,
    parse_device_class,
    parse_slice,
    stock_of,
)
from optsched.formats.codec.resource_quotas import parse_quota
from optsched.formats.codec.scheduling_groups import gang_key, gang_of_scheduling_group
from optsched.formats.codec.shuffle_times import last_shuffle_ms
from optsched.formats.codec.volumes import (
    Storage,
    class_nodes,
    parse_claim,
    parse_csi_node,
    volume_nodes,
)
from optsched.formats.files.diagnostics import diagnostics_of
from optsched.formats.snapshots.object_index import NAMESPACE_LABEL, READ_KINDS, ObjectIndex
from optsched.units import FieldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.api.queue import Queue as ApiQueue
    from optsched.cluster.amounts import Amounts
    from optsched.cluster.node_shards import Sharding
    from optsched.cluster.numa import Numa
    from optsched.cluster.snapshot import Budget, Claim, Gang, Node, Quota
    from optsched.cluster.task import Task
    from optsched.cluster.topology import Topology
    from optsched.formats.files.diagnostics import ObjectProblem

Parsed = TypeVar("Parsed")
Parse: TypeAlias = "Callable[[object], tuple[Parsed | None, tuple[FieldError, ...]]]"

_NO_NODE: Final = "is no node of this cluster"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A snapshot, and what was wrong with the objects that it was made of.

    Attributes
    ----------
    num_read
        How many objects there were of kinds that a snapshot is made of.
    problems
        Every field without a reading, duplicates, references to nothing. Whatever can not be used
        carries its problem in the snapshot as well.
    ignored
        How many objects there were of kinds that a snapshot is not made of, by `apiVersion Kind`.
    left_out
        The same objects one by one: `apiVersion Kind name` and `file:line`.
    elsewhere
        How many pods wait for another scheduler, by its name; they are not in the snapshot.

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
    """Put a cluster together; nothing is lost because of another object.

    Parameters
    ----------
    objects
        Manifests or what an API server answers. Without a namespace they are in `default`, without
        a creation time their place in the order counts as milliseconds.
    options
        Whose pods are ours.
    taken_ms
        When; None for what the dump of a snapshot says, or else the latest creation.
    where
        `file:line` of each object, for messages.

    """
    return _Assembly(ObjectIndex(objects, where), options or DecodeOptions()).build(taken_ms)


class _Assembly:
    """Reads the objects of an index kind by kind."""

    def __init__(self, index: ObjectIndex, options: DecodeOptions) -> None:
        self._index = index
        self._problems = index.problems
        self._options = options
        self._elsewhere: Counter[str] = Counter()
        self._decoder = PodDecoder(options)
        self._tasks: list[Task] = []

    def build(self, taken_ms: int | None) -> Assembled:
        self._decoder.priorities = table = self._priorities()
        devices = self._devices()
        self._note_claims(devices)
        self._tasks = self._read_tasks()
        listed = self._parsed(kinds.QUEUE, parse_queue)
        self._report_usage(listed)
        queues = with_builtin_queues(map(queue_of, listed))
        gangs = self._gangs(table)
        if taken_ms is None:
            taken_ms = self._index.taken_ms
        if taken_ms is None:
            taken_ms = max((*(g.created_ms for g in gangs), *(q.created_ms for q in queues)))
        snapshot = Snapshot(
            taken_ms=taken_ms,
            nodes=self._nodes(),
            gangs=gangs,
            queues=queues,
            claims=self._claims(),
            namespaces=self._namespaces(),
            budgets=self._budgets(),
            topology=self._topology(),
            quotas=self._quotas(),
            answers=tuple(self._index.answers),
            sharding=self._sharding(),
            devices=devices,
            priority_classes=table.values,
            last_shuffle_ms=last_shuffle_ms(gang.annotations for gang in gangs),
            usage=usage_of(listed),
        )
        return Assembled(
            snapshot,
            num_read=self._index.num_read,
            problems=tuple(self._problems),
            ignored=dict(self._index.ignored),
            left_out=tuple(self._index.left_out),
            elsewhere=dict(self._elsewhere),
        )

    def _report(self, kind: kinds.Kind, key: str, errors: Iterable[FieldError], where: str) -> None:
        self._problems += diagnostics_of(kind.kind, key, errors, where)

    def _parsed(self, kind: kinds.Kind, parse: Parse[Parsed]) -> list[Parsed]:
        """All objects of a kind that have a reading; what has none is reported."""
        found: list[Parsed] = []
        for key, entry in self._index.objects_of(kind).items():
            parsed, errors = parse(entry.obj)
            self._report(kind, key, errors, entry.where)
            if parsed is not None:
                found.append(parsed)
        return found

    def _priorities(self) -> Priorities:
        return priorities(self._parsed(kinds.PRIORITY_CLASS, parse_priority_class))

    def _report_usage(self, queues: Iterable[ApiQueue]) -> None:
        for queue in queues:
            entry, (_, errors) = (
                self._index.get(kinds.QUEUE, queue.name),
                read_usage(queue.meta.annotations),
            )
            self._report(kinds.QUEUE, queue.name, errors, entry.where if entry else "")

    def _namespaces(self) -> dict[str, Mapping[str, str]]:
        """Labels by namespace; one that objects are in exists, whether it is listed or not."""
        namespaced = (self._index.objects_of(kind) for kind in READ_KINDS if kind.namespaced)
        names = {key.partition("/")[0] for entries in namespaced for key in entries}
        listed = self._index.objects_of(kinds.NAMESPACE)
        labels_of: dict[str, Mapping[str, str]] = {}
        for name in sorted(names | listed.keys()):
            labels = _texts(listed[name].obj, "labels") if name in listed else {}
            labels_of[name] = {**labels, NAMESPACE_LABEL: name}
        return labels_of

    def _budgets(self) -> tuple[Budget, ...]:
        return tuple(self._parsed(kinds.POD_DISRUPTION_BUDGET, parse_budget))

    def _quotas(self) -> tuple[Quota, ...]:
        return tuple(self._parsed(kinds.RESOURCE_QUOTA, parse_quota))

    def _sharding(self) -> Sharding:
        found = self._parsed(kinds.NODE_SHARD, parse_nodeshard)
        return with_shards(self._options.sharding or self._index.sharding or NO_SHARDING, found)

    # --- devices ---------------------------------------------------------------------------------

    def _devices(self) -> Devices:
        """Claims, classes and devices; where there are several versions, the newest counts."""
        claims = self._newest(kinds.RESOURCE_CLAIMS, parse_device_claim)
        classes = self._newest(kinds.DEVICE_CLASSES, parse_device_class)
        slices = self._newest(kinds.RESOURCE_SLICES, parse_slice)
        return Devices(claims, classes, *stock_of(slices.values()))

    def _newest(self, versions: Iterable[kinds.Kind], parse: Parse[Parsed]) -> dict[str, Parsed]:
        found: dict[str, Parsed] = {}
        for kind in versions:
            for key, entry in self._index.objects_of(kind).items():
                parsed, errors = parse(entry.obj)
                if parsed is not None and key not in found:
                    found[key] = parsed
                    self._report(kind, key, errors, entry.where)
        return {key: found[key] for key in sorted(found)}

    def _note_claims(self, devices: Devices) -> None:
        book = self._decoder.book
        book.claims.update(devices.claims)
        for key, entry in self._index.objects_of(kinds.POD).items():
            if not has_left_cluster(entry.obj) and (claims := claims_of(entry.obj)):
                uid = entry.obj["metadata"].get("uid") or ""
                book.note(key, uid if isinstance(uid, str) else "", claims)

    # --- volumes ---------------------------------------------------------------------------------

    def _claims(self) -> dict[str, Claim]:
        volumes = self._index.objects_of(kinds.PERSISTENT_VOLUME)
        for key, entry in volumes.items():
            errors = volume_nodes(entry.obj)[1]
            self._report(kinds.PERSISTENT_VOLUME, key, errors, entry.where)
        classes = self._index.objects_of(kinds.STORAGE_CLASS)
        for key, entry in classes.items():
            errors = class_nodes(entry.obj)[2]
            self._report(kinds.STORAGE_CLASS, key, errors, entry.where)
        storage = Storage(
            {key: entry.obj for key, entry in volumes.items()},
            {key: entry.obj for key, entry in classes.items()},
        )
        return dict(self._read_claims(storage))

    def _read_claims(self, storage: Storage) -> Iterator[tuple[str, Claim]]:
        for key, entry in self._index.objects_of(kinds.PERSISTENT_VOLUME_CLAIM).items():
            claim, errors = parse_claim(entry.obj, storage)
            self._report(kinds.PERSISTENT_VOLUME_CLAIM, key, errors, entry.where)
            if claim is not None:
                yield key, claim

    # --- pods, gangs, nodes ----------------------------------------------------------------------

    def _read_tasks(self) -> list[Task]:
        found: list[Task] = []
        for key, entry in self._index.objects_of(kinds.POD).items():
            if has_left_cluster(entry.obj):
                continue
            task, errors = self._decoder.read(entry.obj)
            if task.gang or task.status.holds_resources:
                self._report(kinds.POD, key, errors, entry.where)
                found.append(task)
            elif task.status in (TaskStatus.PENDING, TaskStatus.GATED):
                self._elsewhere[scheduler_of(entry.obj)] += 1
        return found

    def _gangs(self, table: Priorities) -> tuple[Gang, ...]:
        members: dict[str, list[Task]] = {}
        for task in self._tasks:
            if task.gang:
                members.setdefault(task.gang, []).append(task)
        elsewhere = self._groups_elsewhere() - members.keys()
        found: dict[str, Gang] = {}
        for key, entry in self._index.objects_of(kinds.POD_GROUP).items():
            group, errors = parse_podgroup(entry.obj)
            if group is None or key in elsewhere:
                continue
            names = self._options.scheduler_names
            if key in members or is_empty_group_of(group, names):
                gang, remarks = gang_of_group(group, members.pop(key, ()), table)
                found[key] = gang
                self._report(kinds.POD_GROUP, key, (*errors, *remarks), entry.where)
        for kind in kinds.SCHEDULING_POD_GROUPS:
            self._scheduling_gangs(kind, table, (members, elsewhere, found))
        found.update({key: self._without_group(key, tasks) for key, tasks in members.items()})
        return tuple(found[key] for key in sorted(found))

    def _scheduling_gangs(
        self,
        kind: kinds.Kind,
        table: Priorities,
        sorted_out: tuple[dict[str, list[Task]], set[str], dict[str, Gang]],
    ) -> None:
        """Add the gangs of one version of Kubernetes' own PodGroups, but for those known."""
        members, elsewhere, found = sorted_out
        for key, entry in self._index.objects_of(kind).items():
            group, errors = parse_scheduling_group(entry.obj)
            whose = gang_key(key)
            if group is None or whose in elsewhere or whose in found:
                continue
            tasks, queue = members.pop(whose, ()), self._options.default_queue
            found[whose], remarks = gang_of_scheduling_group(group, tasks, table, queue)
            self._report(kind, key, (*errors, *remarks), entry.where)

    def _groups_elsewhere(self) -> set[str]:
        """Keys of PodGroups that pods of other schedulers name."""
        pods = (entry.obj for entry in self._index.objects_of(kinds.POD).values())
        return {self._decoder.group_elsewhere(pod) for pod in pods if not has_left_cluster(pod)}

    def _without_group(self, key: str, tasks: Sequence[Task]) -> Gang:
        task = min(tasks, key=lambda each: each.key)
        entry = self._index.get(kinds.POD, task.key)
        pod = entry.obj if entry else {}
        queue = self._decoder.queue(pod, self._namespace_annotations(task.namespace))
        if not key.partition("/")[2].startswith(IMPLICIT_PREFIX):
            return gang_without_group(key, tasks, queue)
        priority = self._decoder.gang_priority(pod)
        return implicit_gang(BarePod(task, queue, priority, _texts(pod, "annotations")))

    def _namespace_annotations(self, name: str) -> Mapping[str, str]:
        entry = self._index.get(kinds.NAMESPACE, name)
        return _texts(entry.obj, "annotations") if entry else {}

    def _topology(self) -> Topology:
        index, listed = TopologyIndex(), self._index.objects_of(kinds.HYPER_NODE)
        for name, entry in self._index.objects_of(kinds.NODE).items():
            index.put_node(name, _texts(entry.obj, "labels"))
        for name, entry in listed.items():
            parsed, errors = parse_hypernode(entry.obj)
            self._report(kinds.HYPER_NODE, name, errors, entry.where)
            if parsed is not None:
                index.put_hypernode(parsed)
        topology = index.topology()
        for name, remarks in index.remarks.items():
            self._report(kinds.HYPER_NODE, name, remarks, listed[name].where)
        return topology

    def _device_table(self) -> DeviceTable:
        """How GPUs and NPUs may be cut; of several ConfigMaps, the first that says it counts."""
        found = DeviceTable()
        for key, entry in self._index.objects_of(kinds.CONFIG_MAP).items():
            table, errors = parse_device_table(entry.obj)
            self._report(kinds.CONFIG_MAP, key, errors, entry.where)
            geometries = found.geometries + table.geometries
            found = DeviceTable(geometries, found.chips + table.chips)
        return found

    def _nodes(self) -> tuple[Node, ...]:
        table = self._device_table()
        residents: dict[str, list[Task]] = {}
        for task in self._tasks:
            if task.status.holds_resources:
                residents.setdefault(task.node, []).append(task)
        numa, limits = self._numa(), self._attach_limits()
        found: list[Node] = []
        for key, entry in self._index.objects_of(kinds.NODE).items():
            node, errors = parse_node(entry.obj, table)
            self._report(kinds.NODE, key, errors, entry.where)
            if node is not None:
                here = sorted(residents.pop(node.name, ()), key=lambda task: task.key)
                name = node.name
                most = limits.get(name, ())
                found.append(
                    replace(node, residents=tuple(here), numa=numa.get(name), attach_limits=most)
                )
        self._report_homeless(residents)
        return tuple(found)

    def _numa(self) -> dict[str, Numa]:
        found: dict[str, Numa] = {}
        for key, entry in self._index.objects_of(kinds.NUMATOPOLOGY).items():
            name, numa, errors = parse_numa(entry.obj)
            self._report(kinds.NUMATOPOLOGY, key, errors, entry.where)
            if numa is not None:
                found[name] = numa
        return found

    def _attach_limits(self) -> dict[str, Amounts]:
        found: dict[str, Amounts] = {}
        for key, entry in self._index.objects_of(kinds.CSI_NODE).items():
            name, limits, errors = parse_csi_node(entry.obj)
            self._report(kinds.CSI_NODE, key, errors, entry.where)
            if limits is not None:
                found[name] = limits
        return found

    def _report_homeless(self, residents: Mapping[str, Sequence[Task]]) -> None:
        for task in (task for tasks in residents.values() for task in tasks):
            entry = self._index.get(kinds.POD, task.key)
            error = FieldError("spec.nodeName", task.node, _NO_NODE)
            self._report(kinds.POD, task.key, [error], entry.where if entry else "")


def _texts(obj: Mapping[str, Any], name: str) -> dict[str, str]:
    """The labels or annotations of an object that are texts."""
    found = obj.get("metadata", {}).get(name)
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
