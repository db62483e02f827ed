"""The gangs of a cluster: each is a PodGroup with its pods, or a pod without a PodGroup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.api import kinds
from optsched.api.podgroup import parse_podgroup, parse_scheduling_group
from optsched.api.wellknown import ADMITTED_QUEUE, format_joined
from optsched.cluster.reasons import Flaw, FlawCode, Reason, ReasonCode
from optsched.formats.codec.pod_groups import (
    ENDING_STATUSES,
    ShuffleTimes,
    gang_of_group,
    gang_of_scheduling_group,
    gang_without_group,
    implicit_gang,
    is_empty_group_of,
)
from optsched.formats.codec.pod_limits import (
    Priorities,
)
from optsched.formats.codec.pods.reader import (
    DecodeOptions,
    is_gang_of_bare_pod,
    upstream_gang_key,
)
from optsched.formats.snapshots.assumptions import GangAssumptions, uid_of
from optsched.formats.snapshots.object_stores import (
    NamespaceStore,
    QueueStore,
    store_or_drop,
)
from optsched.formats.snapshots.pod_store import PodStore, read_record

if TYPE_CHECKING:
    from optsched.api.kinds import Kind
    from optsched.api.podgroup import PodGroup, SchedulingPodGroup
    from optsched.cluster.snapshot import Gang
    from optsched.cluster.snapshot_builder import SnapshotBuilder
    from optsched.cluster.task import Task
    from optsched.formats.snapshots.object_stores import Raw
    from optsched.formats.snapshots.pod_store import Pod
    from optsched.units import FieldError


class GangStore:
    """Gangs, keyed by gang key; `refresh` assembles those whose pods or PodGroup changed.

    Attributes
    ----------
    groups
        PodGroups as stored on the API server, keyed by gang.
    priorities
        The values of the current priority classes.
    group_problems
        Kind and invalid fields of PodGroups, keyed by gang.
    flaws
        Reports of pods that may not join the gang that they name, keyed by gang.
    queue_dependent_gangs
        Keys of the gangs to assemble again after each change of a queue, because their pods depend
        on a queue's access lists.
    shuffles
        The times at which plugins last moved pods to better nodes.

    """

    def __init__(
        self,
        options: DecodeOptions,
        builder: SnapshotBuilder,
        pods: PodStore,
        namespaces: NamespaceStore,
        queues: QueueStore,
    ) -> None:
        self.groups: dict[str, PodGroup] = {}
        self.priorities = Priorities()
        self.group_problems: dict[str, tuple[Kind, tuple[FieldError, ...]]] = {}
        self._options = options
        self._pods = pods
        self._namespaces = namespaces
        self._queues = queues
        self.flaws: dict[str, tuple[Flaw, ...]] = {}
        self.queue_dependent_gangs: set[str] = set()
        self._scheduling_groups: dict[Kind, dict[str, SchedulingPodGroup]] = {
            kind: {} for kind in kinds.SCHEDULING_POD_GROUPS
        }
        self._held: dict[str, Reason] = {}
        self._assumed = GangAssumptions()
        self._admitted: dict[str, str] = {}  # the queue that admitted the gang, keyed by gang key
        self._gangs = builder.gangs
        self.shuffles = ShuffleTimes()

    # --- events and assumptions ------------------------------------------------------------------

    def apply_group(self, key: str, obj: Raw | None) -> None:
        """Store a PodGroup, or remove it if `obj` is None."""
        group = None if obj is None else parse_podgroup(obj)[0]
        store_or_drop(self.groups, key, group)
        if group is not None:
            self.shuffles.add_annotations(group.meta.annotations)
        self._pods.changed_gangs.add(key)

    def apply_scheduling_group(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Store a `scheduling.k8s.io` PodGroup, or remove it if `obj` is None."""
        group = None if obj is None else parse_scheduling_group(obj)[0]
        store_or_drop(self._scheduling_groups[kind], upstream_gang_key(key), group)
        self._pods.changed_gangs.add(upstream_gang_key(key))

    def set_priorities(self, priorities: Priorities) -> None:
        """Set the values of the priority classes; all gangs with a PodGroup are assembled again."""
        self.priorities = priorities
        self._pods.set_priorities(priorities)
        self._pods.changed_gangs.update(self.groups, *self._scheduling_groups.values())

    def assume_bound(self, key: str) -> None:
        """Record the queue in which a gang was admitted, before its first pod is bound."""
        gang = self._gangs.lookup(key)
        if gang is not None:
            self._admitted.setdefault(gang.key, gang.queue)

    def assume_moves(self, key: str, text: str) -> None:
        """Assume that a gang has the annotation `MOVES` with `text` until a watch confirms it."""
        gang = self._gangs.lookup(key)
        if gang is not None:
            self._assumed.moves[key] = uid_of(gang), text
            self._pods.changed_gangs.add(key)

    def forget_moves(self) -> None:
        """Drop the assumed annotations `MOVES` of all gangs."""
        self._pods.changed_gangs.update(self._assumed.moves)
        self._assumed.moves.clear()

    def assume_enqueued(self, key: str) -> bool:
        """Assume that a gang is enqueued until the API server reports the phase of its PodGroup.

        Returns whether the assumption is new. A gang without a PodGroup is never assumed enqueued.
        """
        group = self.groups.get(key)
        if group is None or self._assumed.enqueued.get(key) == group.meta.uid:
            return False
        self._assumed.enqueued[key] = group.meta.uid
        self._pods.changed_gangs.add(key)
        return True

    def forget_enqueued(self) -> None:
        """Drop the assumptions that gangs are enqueued."""
        self._pods.changed_gangs.update(self._assumed.enqueued)
        self._assumed.enqueued.clear()

    def revoke_enqueued(self, key: str) -> bool:
        """Drop the assumption that a gang without pods is enqueued; return whether there was one.

        Controllers create the pods only after they have read the phase from the API server.
        """
        if key not in self._assumed.enqueued or self._pods.gang_tasks(key):
            return False
        del self._assumed.enqueued[key]
        self._pods.changed_gangs.add(key)
        return True

    def hold_gang(self, key: str, reason: Reason) -> None:
        """Exclude a gang from scheduling until `release_gang` is called."""
        self._held[key] = reason
        self._pods.changed_gangs.add(key)

    def release_gang(self, key: str) -> bool:
        """Allow scheduling of a gang again; return whether `hold_gang` had excluded it."""
        if self._held.pop(key, None) is None:
            return False
        self._pods.changed_gangs.add(key)
        return True

    # --- gangs -----------------------------------------------------------------------------------

    def find_gang(self, key: str) -> Gang | None:
        """Return a gang as of the last `refresh`, or None if there is none with this key."""
        return self._gangs.lookup(key)

    def refresh(self) -> None:
        """Assemble the gangs whose pods or PodGroup changed since the last call."""
        for key in self._pods.changed_gangs:
            gang = self._assemble(key)
            gang = self._keep_admitted_queue(key, gang)
            gang = self._limit_priority(key, gang)
            if gang is None:
                self._assumed.moves.pop(key, None)
                self._assumed.enqueued.pop(key, None)
                self._gangs.remove(key)
            else:
                self._gangs.store(key, self._assumed.apply_to(gang, self.groups.get(key)))
        self._pods.changed_gangs.clear()

    def _assemble(self, key: str) -> Gang | None:
        self.group_problems.pop(key, None)
        self.queue_dependent_gangs.discard(key)
        self.flaws.pop(key, None)
        if self._pods.has_only_foreign_pods(key):
            return None
        group, found = self.groups.get(key), self._find_scheduling_group(key)
        tasks = self._find_members(key, group, None if found is None else found[1])
        if group is not None:
            if not tasks and not is_empty_group_of(group, self._options.scheduler_names):
                return None
            if not tasks and group.meta.deletion_ms is not None:
                # A finalizer delays the deletion of the PodGroup, but no pod will use its
                # `minResources`.
                return None
            gang, remarks = gang_of_group(group, tasks, self.priorities)
            if group.errors or remarks:
                self.group_problems[key] = kinds.POD_GROUP, (*group.errors, *remarks)
        elif found is not None:
            kind, upstream = found
            queue = self._options.default_queue
            gang, remarks = gang_of_scheduling_group(upstream, tasks, self.priorities, queue)
            if upstream.errors or remarks:
                self.group_problems[key] = kind, (*upstream.errors, *remarks)
        elif not tasks:
            return None
        else:
            task = min(tasks, key=lambda each: each.key)
            pod = self._pods[task.key]
            queue = self._pods.queue_of(pod, self._namespaces.annotations(task.namespace))
            if is_gang_of_bare_pod(key):
                priority = self._pods.priority_of(pod)
                gang = implicit_gang(task, queue, priority, pod.annotations)
                problem = self._find_access_problem(key, pod, task, queue)
                if problem is not None and not gang.problem:
                    gang = replace(gang, problem=problem)
            else:
                gang = gang_without_group(key, tasks, queue)
        reason = self._held.get(key)
        return gang if reason is None or gang.problem else replace(gang, problem=reason)

    def _find_access_problem(self, key: str, pod: Pod, task: Task, queue: str) -> Reason | None:
        """Return why a bare pod must wait for a PodGroup before it starts in a queue, or None.

        Admission checks access to the queue only when a bare pod is created. The pod's queue, or
        the access lists of the queue, may have changed since the pod's creation. When controllers
        create a PodGroup for the pod, admission checks access again.
        """
        if task.status.holds_resources or task.status in ENDING_STATUSES or not pod.submitters:
            return None
        named = self._queues.by_key.get(queue)
        if named is None:
            self.queue_dependent_gangs.add(key)
            return None
        is_restricted = (
            any(named.access_lists.values())
            if pod.joined is None
            else pod.joined != format_joined("", queue)
        )
        denied = [each.user for each in pod.submitters if not named.lists(each, task.namespace)]
        if not is_restricted or not denied:
            return None
        self.queue_dependent_gangs.add(key)
        message = (
            f"user {denied[0]} may not use queue {queue} without a review by admission: pod "
            f"{task.key} waits until controllers have created a PodGroup for it"
        )
        return Reason(ReasonCode.POD_GROUP_NOT_FOUND, message)

    def _find_members(
        self, key: str, group: PodGroup | None, upstream: SchedulingPodGroup | None
    ) -> tuple[Task, ...]:
        """Return a gang's tasks; omit and report the pods that may not join the gang.

        Admission checks the right to join when a pod or a PodGroup is created. If two users create
        a pod and its PodGroup at the same time, neither admission review sees the other user's
        object. Only admission checks RBAC roles; it records on the pod the PodGroup that the pod
        may join. A pod that holds resources always remains a member.
        """
        tasks = tuple(self._pods.gang_tasks(key))
        joined = group or upstream
        if joined is None:
            return tasks
        submitters, _ = read_record(joined.meta.annotations)
        own = {each.user for each in submitters}
        is_running = any(task.status.holds_resources for task in tasks)
        named = self._admitted.get(key, "") if is_running else ""
        named = named or joined.queue or self._options.default_queue
        flaws: list[Flaw] = []
        for task in tasks:
            pod = self._pods[task.key]
            guests = [subject for subject in pod.submitters if subject.user not in own]
            if not guests:
                continue
            self.queue_dependent_gangs.add(key)
            is_fixed = task.status.holds_resources or task.status in ENDING_STATUSES
            queue = self._queues.by_key.get(named)
            if is_fixed or queue is None:
                continue
            # With RBAC, a pod may join only the PodGroup and queue that admission recorded on the
            # pod. A PodGroup without recorded submitters may belong to the pod's user.
            if pod.joined is None:
                is_restricted = any(queue.access_lists.values())
            else:
                admitted = format_joined(joined.meta.uid, queue.name)
                is_restricted = bool(own) and pod.joined != admitted
            if not is_restricted:
                continue
            denied = [each.user for each in guests if not queue.lists(each, task.namespace)]
            if denied:
                message = (
                    f"user {denied[0]} may not use queue {named} of PodGroup {joined.meta.key}, "
                    "which belongs to another user: the pod is ignored and gets no node; delete "
                    "it, or create it again for an existing PodGroup"
                )
                flaws.append(Flaw(kinds.POD, task.key, FlawCode.ACCESS, message))
        if not flaws:
            return tasks
        self.flaws[key] = tuple(flaws)
        refused = {flaw.key for flaw in flaws}
        return tuple(task for task in tasks if task.key not in refused)

    def _find_scheduling_group(self, key: str) -> tuple[Kind, SchedulingPodGroup] | None:
        """Return a `scheduling.k8s.io` PodGroup and its kind, in the newest served API version."""
        known = ((kind, groups.get(key)) for kind, groups in self._scheduling_groups.items())
        return next(((kind, group) for kind, group in known if group is not None), None)

    def _keep_admitted_queue(self, key: str, gang: Gang | None) -> Gang | None:
        """While any pod of a gang holds resources, keep the gang in the queue that admitted it.

        Neither the deletion of a PodGroup nor a change of its queue releases resources in use.
        After a restart, the scheduler reads the queue from the annotations of the pods.
        """
        holding = () if gang is None else [t for t in gang.tasks if t.status.holds_resources]
        if gang is None or not holding:
            self._admitted.pop(key, None)
            return gang
        if key not in self._admitted:
            recorded = (self._pods[t.key].annotations.get(ADMITTED_QUEUE) for t in holding)
            self._admitted[key] = next(filter(None, recorded), gang.queue)
        queue = self._admitted[key]
        return gang if gang.queue == queue else replace(gang, queue=queue)

    def _limit_priority(self, key: str, gang: Gang | None) -> Gang | None:
        """Limit a gang's priority to its pods' priority, unless its PriorityClass is exempt.

        Quotas restrict the priority of pods, but tenants may give PodGroups any priority.
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
                f"of its pods, so {least} applies: set the class in the pods as well, or start the "
                f"scheduler with --tenant-priority-class={named}"
            )
            about = (kinds.POD_GROUP, key)
            self._pods.flaws[about] = Flaw(*about, FlawCode.PRIORITY, message)
        return replace(gang, priority=least)
