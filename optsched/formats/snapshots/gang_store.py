"""The gangs of a cluster: PodGroups with their pods, and pods without a PodGroup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.api import kinds
from optsched.api.podgroup import parse_podgroup, parse_scheduling_group
from optsched.api.wellknown import MOVES
from optsched.cluster.reasons import Flaw, FlawCode
from optsched.formats.codec.pod_groups import (
    BarePod,
    gang_of_group,
    gang_without_group,
    implicit_gang,
    is_empty_group_of,
    last_shuffle_ms,
)
from optsched.formats.codec.pod_limits import Priorities
from optsched.formats.codec.pods.reader import IMPLICIT_PREFIX
from optsched.formats.codec.scheduling_groups import gang_key, gang_of_scheduling_group
from optsched.formats.snapshots.object_stores import store_or_drop

if TYPE_CHECKING:
    from optsched.api.kinds import Kind
    from optsched.api.podgroup import PodGroup, SchedulingPodGroup
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.snapshot_builder import SnapshotBuilder
    from optsched.cluster.task import Task
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.formats.snapshots.object_stores import NamespaceStore, Raw
    from optsched.formats.snapshots.pod_store import PodStore
    from optsched.units import FieldError


MOST_SHUFFLES: Final = 64
"""Plugins whose times in annotations are kept: tenants can write annotations of any name."""


class GangStore:
    """Gangs by key; `refresh` assembles those whose pods or PodGroup changed.

    Attributes
    ----------
    groups
        PodGroups as the server has them.
    table
        Priority classes in force.
    group_problems
        Fields of PodGroups that could not be read, with the kind, by key of the gang.

    """

    def __init__(
        self,
        options: DecodeOptions,
        builder: SnapshotBuilder,
        pods: PodStore,
        namespaces: NamespaceStore,
    ) -> None:
        self.groups: dict[str, PodGroup] = {}
        self.table = Priorities()
        self.group_problems: dict[str, tuple[Kind, tuple[FieldError, ...]]] = {}
        self._options = options
        self._pods = pods
        self._namespaces = namespaces
        self._scheduling_groups: dict[Kind, dict[str, SchedulingPodGroup]] = {
            kind: {} for kind in kinds.SCHEDULING_POD_GROUPS
        }
        self._held: dict[str, Reason] = {}
        self._moves: dict[str, str] = {}
        self._admitted: dict[str, str] = {}  # the queues that gangs with pods on nodes count for
        self._gangs = builder.gangs
        self._own_shuffles: dict[str, int] = {}
        self._written_shuffles: dict[str, int] = {}

    # --- events and assumptions ------------------------------------------------------------------

    def apply_group(self, key: str, obj: Raw | None) -> None:
        """Store a state of a PodGroup; None for a deleted one."""
        group = None if obj is None else parse_podgroup(obj)[0]
        store_or_drop(self.groups, key, group)
        if group is not None:
            times = self._written_shuffles
            for plugin, at_ms in last_shuffle_ms([group.meta.annotations]).items():
                times[plugin] = max(times.get(plugin, 0), at_ms)
                if len(times) > MOST_SHUFFLES:
                    del times[min(times, key=lambda name: times[name])]
        self._pods.touched_gangs.add(key)

    def record_shuffle(self, plugin: str, at_ms: int) -> None:
        """Record when a plugin of this process last moved pods to better nodes."""
        self._own_shuffles[plugin] = at_ms

    def last_shuffle_ms(self, taken_ms: int | None) -> dict[str, int]:
        """Return when each plugin last moved pods to better nodes.

        taken_ms: now; None where times in the future count. By another process's clock they would
        stop a plugin until then.
        """
        found: dict[str, int] = {}
        for times in (self._written_shuffles, self._own_shuffles):
            for plugin, at_ms in times.items():
                if taken_ms is None or at_ms <= taken_ms:
                    found[plugin] = max(found.get(plugin, 0), at_ms)
        return found

    def apply_scheduling_group(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Store a state of a PodGroup of Kubernetes itself; None for a deleted one."""
        group = None if obj is None else parse_scheduling_group(obj)[0]
        store_or_drop(self._scheduling_groups[kind], gang_key(key), group)
        self._pods.touched_gangs.add(gang_key(key))

    def set_priorities(self, table: Priorities) -> None:
        """Set the priority classes in force; every gang with a PodGroup is assembled again."""
        self.table = table
        self._pods.set_priorities(table)
        self._pods.touched_gangs.update(self.groups, *self._scheduling_groups.values())

    def touch_without_group(self) -> None:
        """Have gangs without a PodGroup assembled again: their namespace may name their queue."""
        self._pods.touched_gangs.update(key for key in self._pods.gangs if key not in self.groups)

    def assume_bound(self, key: str) -> None:
        """Fix the queue of a gang of which a pod is about to be bound."""
        gang = self._gangs.lookup(key)
        if gang is not None:
            self._admitted.setdefault(gang.key, gang.queue)

    def assume_moves(self, key: str, text: str) -> None:
        """Count a gang as having this record of moves, until the server has it as well."""
        self._moves[key] = text
        self._pods.touched_gangs.add(key)

    def forget_moves(self) -> None:
        """Count gangs as having the records that the server has."""
        self._pods.touched_gangs.update(self._moves)
        self._moves.clear()

    def hold_gang(self, key: str, reason: Reason) -> None:
        """Keep a gang from being scheduled until it is released."""
        self._held[key] = reason
        self._pods.touched_gangs.add(key)

    def release_gang(self, key: str) -> bool:
        """Let a gang be scheduled again; returns whether it was held."""
        if self._held.pop(key, None) is None:
            return False
        self._pods.touched_gangs.add(key)
        return True

    # --- gangs -----------------------------------------------------------------------------------

    def find_gang(self, key: str) -> Gang | None:
        """Return a gang as of the last `refresh`; None where there was none."""
        return self._gangs.lookup(key)

    def refresh(self) -> None:
        """Assemble the gangs whose pods or PodGroup changed."""
        for key in self._pods.touched_gangs:
            gang = self._assemble(key)
            gang = self._keep_admitted_queue(key, gang)
            gang = self._limit_priority(key, gang)
            if gang is None:
                self._moves.pop(key, None)
                self._gangs.remove(key)
            else:
                self._gangs.store(key, self._add_assumed_moves(gang))
        self._pods.touched_gangs.clear()

    def _assemble(self, key: str) -> Gang | None:
        self.group_problems.pop(key, None)
        if self._pods.has_only_foreign_pods(key):
            return None
        tasks, group = tuple(self._pods.gang_tasks(key)), self.groups.get(key)
        found = self._find_scheduling_group(key)
        if group is not None:
            if not tasks and not is_empty_group_of(group, self._options.scheduler_names):
                return None
            gang, remarks = gang_of_group(group, tasks, self.table)
            if group.errors or remarks:
                self.group_problems[key] = kinds.POD_GROUP, (*group.errors, *remarks)
        elif found is not None:
            kind, upstream = found
            queue = self._options.default_queue
            gang, remarks = gang_of_scheduling_group(upstream, tasks, self.table, queue)
            if upstream.errors or remarks:
                self.group_problems[key] = kind, (*upstream.errors, *remarks)
        elif not tasks:
            return None
        else:
            gang = self._assemble_without_group(key, tasks)
        reason = self._held.get(key)
        return gang if reason is None or gang.problem else replace(gang, problem=reason)

    def _assemble_without_group(self, key: str, tasks: tuple[Task, ...]) -> Gang:
        task = min(tasks, key=lambda each: each.key)
        pod = self._pods[task.key]
        queue = self._pods.queue_of(pod, self._namespaces.annotations(task.namespace))
        if not key.partition("/")[2].startswith(IMPLICIT_PREFIX):
            return gang_without_group(key, tasks, queue)
        return implicit_gang(BarePod(task, queue, self._pods.priority_of(pod), pod.annotations))

    def _find_scheduling_group(self, key: str) -> tuple[Kind, SchedulingPodGroup] | None:
        """Return a PodGroup of Kubernetes itself in the newest version that is served."""
        known = ((kind, groups.get(key)) for kind, groups in self._scheduling_groups.items())
        return next(((kind, group) for kind, group in known if group is not None), None)

    def _keep_admitted_queue(self, key: str, gang: Gang | None) -> Gang | None:
        """Return the gang in the queue that admitted it, as long as pods of it hold resources.

        A PodGroup that is deleted, or names another queue, frees nothing that is in use.
        """
        if gang is None or not any(task.status.holds_resources for task in gang.tasks):
            self._admitted.pop(key, None)
            return gang
        queue = self._admitted.setdefault(key, gang.queue)
        return gang if gang.queue == queue else replace(gang, queue=queue)

    def _limit_priority(self, key: str, gang: Gang | None) -> Gang | None:
        """Return the gang with at most the priority of its pods, unless its class may lift it.

        Quotas guard the priority of pods; a tenant sets that of a PodGroup without any.
        """
        self._pods.flaws.pop((kinds.POD_GROUP, key), None)
        lifting = self._options.lifting_classes
        if gang is None or gang.is_implicit or lifting is None:
            return gang
        least = self._pods.least_priority(gang.tasks)
        if least is None or gang.priority <= least:
            return gang
        group, upstream = self.groups.get(key), self._find_scheduling_group(key)
        named = group.priority_class if group is not None else ""
        if upstream is not None and group is None:
            named = upstream[1].priority_class
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

    def _add_assumed_moves(self, gang: Gang) -> Gang:
        """Return the gang with the record of moves that is about to be written."""
        text = self._moves.get(gang.key)
        if text is None:
            return gang
        if gang.annotations.get(MOVES, "") == text:
            del self._moves[gang.key]
            return gang
        others = {key: value for key, value in gang.annotations.items() if key != MOVES}
        return replace(gang, annotations={**others, MOVES: text} if text else others)
