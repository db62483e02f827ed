"""The cluster as domain values, kept up to date from what watches tell. No I/O, no clock.

`apply` takes events, `assume` what is about to be true, and `snapshot` puts together what changed
since the last time: every part that did not is the very same object as before. The result is what
`formats.assemble` makes of the same objects; a test holds the two to each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api import kinds
from optsched.api.hypernode import parse_hypernode
from optsched.api.nodeshard import parse_nodeshard
from optsched.api.podgroup import parse_podgroup
from optsched.api.priorityclass import parse_priority_class
from optsched.api.queue import parse_queue
from optsched.api.schedulinggroup import parse_scheduling_group
from optsched.cluster.moves import MOVES
from optsched.cluster.shards import NO_SHARDING
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.task import QueueGate, TaskStatus
from optsched.formats.budgets import parse_budget
from optsched.formats.cards import recut
from optsched.formats.geometries import NO_TABLE
from optsched.formats.groups import (
    Loner,
    gang_of_group,
    implicit_gang,
    is_ours_without_pods,
    missing_gang,
    queue_of,
    usage_of,
    with_builtin_queues,
)
from optsched.formats.index import NAMESPACE_LABEL, READ_KINDS
from optsched.formats.marks import without_marks
from optsched.formats.nodes import parse_node
from optsched.formats.numa import parse_numa
from optsched.formats.pods import IMPLICIT_PREFIX, DecodeOptions
from optsched.formats.priorities import Priorities, priorities
from optsched.formats.quotas import parse_quota
from optsched.formats.shards import with_shards
from optsched.formats.shuffled import shuffled_ms
from optsched.formats.topology import TopologyIndex
from optsched.formats.upstream import gang_key, gang_of_scheduling_group
from optsched.formats.volumes import Storage, parse_claim, parse_csi_node
from optsched.kube.cache.device_store import DeviceStore
from optsched.kube.cache.pod_store import AssumedBind, AssumedNomination, PodStore
from optsched.kube.cache.sorted_map import SortedMap
from optsched.kube.reflector.reflector import Changed, Deleted, Listed
from optsched.kube.reflector.resource_versions import ResourceVersions
from optsched.session.flaws import Flaw, FlawCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.kinds import Kind
    from optsched.api.nodeshard import NodeShard
    from optsched.api.podgroup import PodGroup
    from optsched.api.priorityclass import PriorityClass
    from optsched.api.queue import Queue as ApiQueue
    from optsched.api.schedulinggroup import SchedulingPodGroup
    from optsched.cluster.amounts import Amounts
    from optsched.cluster.cards import CardUse
    from optsched.cluster.devices import DeviceClass, DeviceGrant
    from optsched.cluster.numa import Numa, NumaPart
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import Budget, Claim, Gang, Node, Queue, Quota
    from optsched.cluster.task import Task
    from optsched.cluster.usage import Usage
    from optsched.formats.geometries import DeviceTable
    from optsched.kube.client.interfaces import Raw, Ref
    from optsched.kube.reflector.reflector import WatchEvent

_STORAGE: Final = (kinds.PERSISTENT_VOLUME, kinds.STORAGE_CLASS)

_FLAWED: Final = frozenset(
    {kinds.NODE, kinds.QUEUE, kinds.POD_GROUP, kinds.HYPER_NODE, kinds.POD_DISRUPTION_BUDGET}
)
"""Kinds whose objects are told what is wrong with them."""


def take_every_node(labels: Mapping[str, str]) -> bool:
    """Takes all nodes."""
    del labels
    return True


class ClusterCache:
    """What is known of a cluster.

    Attributes
    ----------
    version
        Grows with everything that may make the next snapshot differ from the last.

    """

    def __init__(
        self,
        options: DecodeOptions | None = None,
        takes_node: Callable[[Mapping[str, str]], bool] = take_every_node,
    ) -> None:
        self.version = 0
        self._takes_node = takes_node
        self._versions = {kind: ResourceVersions() for kind in READ_KINDS}
        self._listing: dict[Kind, set[str]] = {}
        self._synced: set[Kind] = set()
        self._pods = PodStore(options or DecodeOptions())
        self._groups: dict[str, PodGroup] = {}
        self._scheduling_groups: dict[Kind, dict[str, SchedulingPodGroup]] = {
            kind: {} for kind in kinds.SCHEDULING_POD_GROUPS
        }
        self._options = options or DecodeOptions()
        self._sharding = self._options.sharding or NO_SHARDING
        self._shards: dict[str, NodeShard] = {}
        self._held: dict[str, Reason] = {}
        self._moves: dict[str, str] = {}
        self._admitted: dict[str, str] = {}  # the queues that gangs with pods on nodes count for
        self._classes: dict[str, PriorityClass] = {}
        self._shuffled_ms: dict[str, int] = {}
        self._usage: Mapping[str, Usage] = {}
        self._table = Priorities()
        self._queues: dict[str, ApiQueue] = {}
        self._topology = TopologyIndex()
        self._budgets: dict[str, Budget] = {}
        self._shown_budgets: tuple[Budget, ...] = ()
        self._quotas: dict[str, Quota] = {}
        self._shown_quotas: tuple[Quota, ...] = ()
        self._plain: Mapping[Kind, tuple[dict[str, Any], Callable[[Raw], tuple[Any, object]]]] = {
            kinds.QUEUE: (self._queues, parse_queue),
            kinds.PRIORITY_CLASS: (self._classes, parse_priority_class),
            kinds.POD_DISRUPTION_BUDGET: (self._budgets, parse_budget),
            kinds.RESOURCE_QUOTA: (self._quotas, parse_quota),
            kinds.NODE_SHARD: (self._shards, parse_nodeshard),
        }
        self._uids: dict[tuple[Kind, str], str] = {}
        self._bare_nodes: dict[str, Node] = {}
        self._devices = DeviceStore()
        self._numa: dict[str, Numa] = {}
        self._attach_limits: dict[str, Amounts] = {}
        self._device_table = NO_TABLE
        self._raw: dict[Kind, dict[str, Raw]] = {
            kind: {} for kind in (kinds.NAMESPACE, kinds.PERSISTENT_VOLUME_CLAIM, *_STORAGE)
        }
        self._stale: set[Kind] = set(READ_KINDS)
        self._touched_claims: set[str] = set()
        self._kept_storage: Storage | None = None
        self._gangs: SortedMap[Gang] = SortedMap()
        self._nodes: SortedMap[Node] = SortedMap()
        self._shown_queues: tuple[Queue, ...] = ()
        self._claims: Mapping[str, Claim] = {}
        self._labels: Mapping[str, Mapping[str, str]] = {}

    # --- what is told ----------------------------------------------------------------------------

    @property
    def is_synced(self) -> bool:
        """Whether every kind has been listed once."""
        return len(self._synced) == len(READ_KINDS)

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take what a watch tells; what is older than what is known changes nothing."""
        match event:
            case Listed():
                self._apply_list(kind, event)
            case Changed(obj):
                key = _key(kind, obj)
                is_created = key not in self._versions[kind]
                if self._versions[kind].change(key, _version(obj)):
                    self._apply_object(kind, key, obj, is_created=is_created)
            case Deleted(obj):
                key = _key(kind, obj)
                if self._versions[kind].delete(key, _version(obj)):
                    self._apply_object(kind, key, None)

    def can_assume(self, task: str, node: str) -> bool:
        """Whether a task is pending still and a node still there."""
        pod = self._pods.find_pod(task)
        is_pending = pod is not None and pod.task.status is TaskStatus.PENDING
        return is_pending and node in self._bare_nodes

    def is_gated(self, task: str) -> bool:
        """Whether a pending task has a gate that goes before it is bound."""
        pod = self._pods.find_pod(task)
        return pod is not None and pod.reported.gate is QueueGate.CLOSED

    def assume_bound(
        self,
        task: str,
        node: str,
        cards: tuple[CardUse, ...] = (),
        devices: tuple[DeviceGrant, ...] = (),
        numa: tuple[NumaPart, ...] = (),
    ) -> str:
        """Count a pending task as bound until a watch or `forget` says otherwise; its uid."""
        self.version += 1
        gang = self._gangs.lookup(self._pods[task].task.gang)
        if gang is not None:
            self._admitted.setdefault(gang.key, gang.queue)
        for grant in devices:
            if grant.devices:
                self._devices.assume(task, node, grant)
        return self._pods.assume(task, AssumedBind(node, cards, numa))

    def assume_evicted(self, task: str, node: str) -> str | None:
        """Count a task that runs on a node as on its way out; its uid, None where it runs not."""
        pod = self._pods.find_pod(task)
        if pod is None or pod.task.node != node or not pod.task.status.is_standing:
            return None
        self.version += 1
        return self._pods.assume_evicted(task)

    def record_shuffle(self, plugin: str, now_ms: int) -> None:
        """Remember when a plugin last had pods evicted that it wanted elsewhere."""
        self.version += 1
        self._shuffled_ms[plugin] = now_ms

    def assume_nominated(self, task: str, node: str) -> bool:
        """Count a pending task as nominated to a node, or to none; False where nothing changes."""
        pod = self._pods.find_pod(task)
        if pod is None or pod.task.status is not TaskStatus.PENDING:
            return False
        if pod.task.nominated_node == node:
            return False
        self.version += 1
        self._pods.assume(task, AssumedNomination(node))
        return True

    def assume_moves(self, gang: str, text: str) -> None:
        """Count a gang as having this record of moves, until the server has it as well."""
        self.version += 1
        self._moves[gang] = text
        self._pods.touched_gangs.add(gang)

    def forget_moves(self) -> None:
        """Count gangs as having the records that the server has."""
        self.version += 1
        self._pods.touched_gangs.update(self._moves)
        self._moves.clear()

    def forget(self, task: str) -> None:
        """Do not assume anything of a task any more."""
        self.version += 1
        self._devices.forget(task)
        self._pods.forget(task)

    def forget_eviction(self, task: str) -> None:
        """Do not count a task as on its way out any more."""
        self.version += 1
        self._pods.forget_eviction(task)

    def awaits_bind(self, task: str) -> bool:
        """Whether a task that is to leave is not known to be where it is to leave from."""
        return self._pods.awaits_bind(task)

    def set_device_table(self, table: DeviceTable) -> None:
        """How GPUs and NPUs may be cut from now on."""
        if table == self._device_table:
            return
        self.version += 1
        self._device_table = table
        for name, node in self._bare_nodes.items():
            cut = tuple(recut(card, table) for card in node.cards)
            if cut != node.cards:
                self._bare_nodes[name] = replace(node, cards=cut)
                self._pods.touched_nodes.add(name)

    def hold_gang(self, gang: str, reason: Reason) -> None:
        """Keep a gang from being scheduled, for a reason, until it is released."""
        self.version += 1
        self._held[gang] = reason
        self._pods.touched_gangs.add(gang)

    def release_gang(self, gang: str) -> None:
        """Let a gang be scheduled again if it is held."""
        if self._held.pop(gang, None) is not None:
            self.version += 1
            self._pods.touched_gangs.add(gang)

    # --- what is known ---------------------------------------------------------------------------

    def task(self, key: str) -> Task | None:
        """A task as the server has it; None where there is no such pod that matters."""
        pod = self._pods.find_pod(key)
        return None if pod is None else pod.reported

    def pod_version(self, key: str) -> str:
        """The resource version of a pod as it is known; empty where it is not."""
        return self._versions[kinds.POD].lookup(key)

    def claim(self, key: str) -> Claim | None:
        """A persistent volume claim as it stands at this moment; None where there is none."""
        obj = self._raw[kinds.PERSISTENT_VOLUME_CLAIM].get(key)
        return None if obj is None else parse_claim(obj, self._storage())[0]

    def node_labels(self, name: str) -> Mapping[str, str] | None:
        """The labels of a node; None where there is no such node."""
        node = self._bare_nodes.get(name)
        return None if node is None else node.labels

    def is_closed(self, name: str) -> bool:
        """Whether a node is cordoned, not ready or gone, as far as it is known."""
        node = self._bare_nodes.get(name)
        return node is None or node.unschedulable or not node.ready

    def selects(self, selector: NodeSelector, name: str) -> bool:
        """Whether a selector selects a node that there is."""
        labels = self.node_labels(name)
        return labels is not None and selector.matches(name, labels)

    def claim_kind(self, key: str) -> Kind | None:
        """The version in which a ResourceClaim is followed; None where there is none."""
        return self._devices.claim_kind(key)

    def device_class(self, name: str) -> DeviceClass | None:
        """A DeviceClass as it is followed; None where there is none."""
        return self._devices.devices().classes.get(name)

    def queue_of(self, gang: str) -> str:
        """The queue of a gang as the last snapshot has it; empty where it has no such gang."""
        known = self._gangs.lookup(gang)
        return "" if known is None else known.queue

    def group(self, key: str) -> PodGroup | None:
        """A PodGroup as the server has it."""
        return self._groups.get(key)

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """What objects claim that does not count."""
        return tuple(self._pods.flaws[about] for about in sorted(self._pods.flaws, key=str))

    @property
    def queues(self) -> Mapping[str, ApiQueue]:
        """Queues as the server has them, by name."""
        return self._queues

    def uid(self, kind: Kind, key: str) -> str:
        """The uid of an object whose flaws are told to itself; empty where it is not known."""
        if kind == kinds.POD:
            pod = self._pods.find_pod(key)
            return "" if pod is None else pod.reported.uid
        return self._uids.get((kind, key), "")

    def exists(self, ref: Ref, uid: str = "") -> bool:
        """Whether an object is known to exist; uid: empty for whatever has the name.

        Of kinds of which it is not known, they are.
        """
        key = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
        if ref.kind == kinds.POD:
            pod = self._pods.find_pod(key)
            return pod is not None and uid in ("", pod.reported.uid)
        known = self._uids.get((ref.kind, key))
        return ref.kind not in _FLAWED or (known is not None and uid in ("", known))

    def awaits_node(self, ref: Ref) -> bool:
        """Whether a pod is pending as the server has it."""
        task = self.task(f"{ref.namespace}/{ref.name}")
        return task is not None and task.status is TaskStatus.PENDING

    @property
    def shards(self) -> Mapping[str, NodeShard]:
        """NodeShards as the server has them, by name."""
        return self._shards

    def snapshot(self, now_ms: int) -> Snapshot:
        """The cluster as it is known now; parts that did not change are those of the last one."""
        self._refresh_priorities()
        self._refresh_namespaces()
        self._refresh_gangs()
        self._refresh_nodes()
        self._refresh_queues()
        self._refresh_claims()
        self._refresh_budgets()
        self._refresh_quotas()
        self._refresh_shards()
        self._stale.clear()
        return Snapshot(
            taken_ms=now_ms,
            nodes=self._nodes.values,
            gangs=self._gangs.values,
            queues=self._shown_queues,
            claims=self._claims,
            namespaces=self._labels,
            budgets=self._shown_budgets,
            topology=self._topology.topology(),
            quotas=self._shown_quotas,
            sharding=self._sharding,
            devices=self._devices.devices(),
            priority_classes=self._table.values,
            # By another's clock it may not have been yet: that would stop a plugin until then.
            shuffled_ms={p: at_ms for p, at_ms in self._shuffled_ms.items() if at_ms <= now_ms},
            usage=self._usage,
        )

    # --- events ----------------------------------------------------------------------------------

    def _apply_list(self, kind: Kind, page: Listed) -> None:
        versions = self._versions[kind]
        if page.is_first:
            self._listing[kind] = set()
        seen = self._listing.setdefault(kind, set())
        for obj in page.items:
            key = _key(kind, obj)
            seen.add(key)
            if versions.replace(key, _version(obj)):
                self._apply_object(kind, key, obj)
        if page.is_last:
            for key in [key for key in versions.keys if key not in seen]:
                versions.drop(key)
                self._apply_object(kind, key, None)
            del self._listing[kind]
            self._synced.add(kind)
            self.version += 1

    def _apply_object(
        self, kind: Kind, key: str, obj: Raw | None, *, is_created: bool = False
    ) -> None:
        """Take a state of an object; None for one that does not exist any more.

        is_created: whether a watch has brought it as its first; of a list that is not known.
        """
        self.version += 1
        obj = None if obj is None else without_marks(obj)
        if kind in kinds.DEVICE_KINDS:
            self._devices.apply_object(kind, key, obj)
            if kind in kinds.RESOURCE_CLAIMS:
                self._pods.apply_claim(key, self._devices.claim(key))
        elif obj is None:
            self._remove_object(kind, key)
        elif kind == kinds.POD:
            self._pods.apply_pod(obj, is_created=is_created)
        else:
            self._store_object(kind, key, obj)

    def _store_object(self, kind: Kind, key: str, obj: Raw) -> None:
        if kind in _FLAWED:
            self._uids[kind, key] = str(obj["metadata"].get("uid") or "")
        match kind:
            case kinds.NODE:
                self._put_node(key, obj)
                return
            case kinds.POD_GROUP:
                self._put_group(key, obj)
                return
            case _ if kind in self._scheduling_groups:
                self._put_scheduling_group(kind, key, parse_scheduling_group(obj)[0])
                return
            case kinds.HYPER_NODE | kinds.NUMATOPOLOGY | kinds.CSI_NODE:
                self._put_topology(kind, key, obj)
                return
            case _ if kind in self._plain:
                store, parse = self._plain[kind]
                _store_or_drop(store, key, parse(obj)[0])
            case _:
                obj["metadata"].pop("managedFields", None)
                self._put_raw(kind, key, obj)
        self._stale.add(kind)

    def _remove_object(self, kind: Kind, key: str) -> None:
        self._uids.pop((kind, key), None)
        match kind:
            case kinds.POD:
                self._pods.delete_pod(key)
                return
            case kinds.NODE:
                _store_or_drop(self._bare_nodes, key, None)
                self._topology.drop_node(key)
                self._pods.touched_nodes.add(key)
                return
            case kinds.HYPER_NODE | kinds.NUMATOPOLOGY | kinds.CSI_NODE:
                self._put_topology(kind, key, None)
                return
            case kinds.POD_GROUP:
                _store_or_drop(self._groups, key, None)
                self._pods.touched_gangs.add(key)
                return
            case _ if kind in self._scheduling_groups:
                self._put_scheduling_group(kind, key, None)
                return
            case _ if kind in self._plain:
                _store_or_drop(self._plain[kind][0], key, None)
            case _:
                self._put_raw(kind, key, None)
        self._stale.add(kind)

    def _put_node(self, name: str, obj: Raw) -> None:
        node = parse_node(obj, self._device_table)[0]
        is_taken = node is not None and self._takes_node(node.labels)
        _store_or_drop(self._bare_nodes, name, node if is_taken else None)
        self._pods.touched_nodes.add(name)
        if node is not None and is_taken:
            self._topology.put_node(name, node.labels)
        else:
            self._topology.drop_node(name)

    def _put_topology(self, kind: Kind, name: str, obj: Raw | None) -> None:
        if kind == kinds.HYPER_NODE:
            self._put_hypernode(name, obj)
            return
        reported: tuple[dict[str, Any], Callable[[Raw], tuple[str, object, object]]] = (
            (self._numa, parse_numa)
            if kind == kinds.NUMATOPOLOGY
            else (self._attach_limits, parse_csi_node)
        )
        store, parse = reported
        value = None if obj is None else parse(obj)[1]
        if store.get(name) != value:
            _store_or_drop(store, name, value)
            self._pods.touched_nodes.add(name)

    def _put_hypernode(self, name: str, obj: Raw | None) -> None:
        hypernode = None if obj is None else parse_hypernode(obj)[0]
        if hypernode is None:
            self._topology.drop(name)
        else:
            self._topology.put(hypernode)

    def _put_raw(self, kind: Kind, key: str, obj: Raw | None) -> None:
        _store_or_drop(self._raw[kind], key, obj)
        if kind == kinds.PERSISTENT_VOLUME_CLAIM:
            self._touched_claims.add(key)
        if kind in _STORAGE:
            self._kept_storage = None

    def _put_group(self, key: str, obj: Raw) -> None:
        group = parse_podgroup(obj)[0]
        _store_or_drop(self._groups, key, group)
        reported = {} if group is None else shuffled_ms([group.meta.annotations])
        for plugin, at_ms in reported.items():
            self._shuffled_ms[plugin] = max(self._shuffled_ms.get(plugin, 0), at_ms)
        self._pods.touched_gangs.add(key)

    def _put_scheduling_group(self, kind: Kind, key: str, group: SchedulingPodGroup | None) -> None:
        _store_or_drop(self._scheduling_groups[kind], gang_key(key), group)
        self._pods.touched_gangs.add(gang_key(key))

    # --- parts of a snapshot ---------------------------------------------------------------------

    def _refresh_priorities(self) -> None:
        if kinds.PRIORITY_CLASS not in self._stale:
            return
        self._table = priorities(self._classes[name] for name in sorted(self._classes))
        self._pods.set_priorities(self._table)
        self._pods.touched_gangs.update(self._groups, *self._scheduling_groups.values())

    def _refresh_namespaces(self) -> None:
        names = set(self._raw[kinds.NAMESPACE])
        for kind, versions in self._versions.items():
            if kind.namespaced:
                names.update(versions.namespaces)
        if kinds.NAMESPACE not in self._stale and names == self._labels.keys():
            return
        labels = {name: self._namespace_labels(name) for name in sorted(names)}
        if labels != self._labels:
            self._labels = labels
        # A namespace may name the queue of pods without a PodGroup.
        groups = self._groups
        self._pods.touched_gangs.update(key for key in self._pods.gangs if key not in groups)

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        obj = self._raw[kinds.NAMESPACE].get(name, {})
        return {**_texts(obj, "labels"), NAMESPACE_LABEL: name}

    def _refresh_gangs(self) -> None:
        touched = self._pods.touched_gangs
        for key in touched:
            gang = self._below_pods(key, self._as_admitted(key, self._gang(key)))
            if gang is None:
                self._moves.pop(key, None)
                self._gangs.remove(key)
            else:
                self._gangs.store(key, self._with_moves(gang))
        touched.clear()

    def _gang(self, key: str) -> Gang | None:
        tasks, group = self._pods.gang_tasks(key), self._groups.get(key)
        if self._pods.has_only_foreign_pods(key):
            return None
        scheduling_group = self._scheduling_group(key)
        if group is not None:
            if not tasks and not is_ours_without_pods(group, self._options.scheduler_names):
                return None
            gang, _ = gang_of_group(group, tasks, self._table)
        elif scheduling_group is not None:
            queue = self._options.default_queue
            gang, _ = gang_of_scheduling_group(scheduling_group, tasks, self._table, queue)
        elif not tasks:
            return None
        else:
            gang = self._gang_without_group(key, tuple(tasks))
        reason = self._held.get(key)
        return gang if reason is None or gang.problem else replace(gang, problem=reason)

    def _as_admitted(self, key: str, gang: Gang | None) -> Gang | None:
        """The gang in the queue that admitted it, as long as pods of it hold resources.

        A PodGroup that is deleted, or names another queue, frees nothing that is in use.
        """
        if gang is None or not any(task.status.holds_resources for task in gang.tasks):
            self._admitted.pop(key, None)
            return gang
        queue = self._admitted.setdefault(key, gang.queue)
        return gang if gang.queue == queue else replace(gang, queue=queue)

    def _below_pods(self, key: str, gang: Gang | None) -> Gang | None:
        """The gang with at most the priority of its pods, unless its PriorityClass lifts it.

        Quotas guard the priority of pods; a tenant writes that of a PodGroup without any.
        """
        self._pods.flaws.pop((kinds.POD_GROUP, key), None)
        lifting = self._options.lifting_classes
        if gang is None or gang.is_implicit or lifting is None:
            return gang
        least = self._pods.least_priority(gang.tasks)
        if least is None or gang.priority <= least:
            return gang
        group, upstream = self._groups.get(key), self._scheduling_group(key)
        named = group.priority_class if group is not None else ""
        if upstream is not None and group is None:
            named = upstream.priority_class
        if named in lifting:
            return gang
        if named and group is not None:
            message = (
                f"spec.priorityClassName {named} ({gang.priority}) is above the priority {least} "
                f"of its pods, which counts: name the class in the pods as well, or start the "
                f"scheduler with --tenant-priority-class={named}"
            )
            about = (kinds.POD_GROUP, key)
            self._pods.flaws[about] = Flaw(*about, FlawCode.PRIORITY, message)
        return replace(gang, priority=least)

    def _with_moves(self, gang: Gang) -> Gang:
        """The gang with the record of moves that it is about to have."""
        text = self._moves.get(gang.key)
        if text is None:
            return gang
        if gang.annotations.get(MOVES, "") == text:
            del self._moves[gang.key]
            return gang
        notes = {key: value for key, value in gang.annotations.items() if key != MOVES}
        return replace(gang, annotations={**notes, MOVES: text} if text else notes)

    def _scheduling_group(self, key: str) -> SchedulingPodGroup | None:
        """A PodGroup of Kubernetes itself as the newest version that is served has it."""
        known = (groups.get(key) for groups in self._scheduling_groups.values())
        return next((group for group in known if group is not None), None)

    def _gang_without_group(self, key: str, tasks: tuple[Task, ...]) -> Gang:
        task = min(tasks, key=lambda each: each.key)
        pod = self._pods[task.key]
        namespace = self._raw[kinds.NAMESPACE].get(task.namespace, {})
        queue = self._pods.queue_of(pod, _texts(namespace, "annotations"))
        if not key.partition("/")[2].startswith(IMPLICIT_PREFIX):
            return missing_gang(key, tasks, queue)
        priority = self._pods.priority_of(pod)
        return implicit_gang(Loner(task, queue, priority, pod.annotations))

    def _refresh_nodes(self) -> None:
        touched = self._pods.touched_nodes
        for name in touched:
            node = self._bare_nodes.get(name)
            if node is None:
                self._nodes.remove(name)
                continue
            here = sorted(self._pods.node_tasks(name), key=lambda task: task.key)
            numa, limits = self._numa.get(name), self._attach_limits.get(name, ())
            fresh = replace(node, residents=tuple(here), numa=numa, attach_limits=limits)
            self._nodes.store(name, fresh)
        touched.clear()

    def _refresh_queues(self) -> None:
        if kinds.QUEUE not in self._stale:
            return
        known = {queue.name: queue for queue in self._shown_queues}
        fresh = with_builtin_queues(map(queue_of, self._queues.values()))
        queues = tuple(known[q.name] if known.get(q.name) == q else q for q in fresh)
        if queues != self._shown_queues:
            self._shown_queues = queues
        self._usage = usage_of(self._queues.values())

    def _refresh_budgets(self) -> None:
        if kinds.POD_DISRUPTION_BUDGET not in self._stale:
            return
        budgets = tuple(self._budgets[key] for key in sorted(self._budgets))
        if budgets != self._shown_budgets:
            self._shown_budgets = budgets

    def _refresh_quotas(self) -> None:
        if kinds.RESOURCE_QUOTA not in self._stale:
            return
        quotas = tuple(self._quotas[key] for key in sorted(self._quotas))
        if quotas != self._shown_quotas:
            self._shown_quotas = quotas

    def _refresh_shards(self) -> None:
        if kinds.NODE_SHARD not in self._stale:
            return
        sharding = with_shards(self._sharding, self._shards.values())
        if sharding != self._sharding:
            self._sharding = sharding

    def _storage(self) -> Storage:
        """Volumes and classes as they are now; what is read of them is kept until they change."""
        if self._kept_storage is None:
            self._kept_storage = Storage(*(self._raw[kind] for kind in _STORAGE))
        return self._kept_storage

    def _refresh_claims(self) -> None:
        raw = self._raw[kinds.PERSISTENT_VOLUME_CLAIM]
        touched: set[str] = set(raw) if self._stale.intersection(_STORAGE) else set()
        touched |= self._touched_claims
        if not touched:
            return
        storage, claims = self._storage(), dict(self._claims)
        for key in touched:
            _store_or_drop(claims, key, parse_claim(raw[key], storage)[0] if key in raw else None)
        if claims != self._claims:
            self._claims = claims
        self._touched_claims.clear()


def _key(kind: Kind, obj: Raw) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if kind.namespaced else str(meta["name"])


def _version(obj: Raw) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")


def _store_or_drop(store: dict[str, Any], key: str, value: object) -> None:
    """Keep what could be read; what has no name is as good as not there."""
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value


def _texts(obj: Raw, name: str) -> dict[str, str]:
    """The labels or annotations of an object that are texts."""
    found = obj.get("metadata", {}).get(name)
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
