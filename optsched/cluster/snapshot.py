"""Nodes, gangs, queues and volume claims, and the snapshot of a cluster at one instant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice, pairwise
from operator import attrgetter, is_, lt
from typing import TYPE_CHECKING, Any, Self

from optsched.api.wellknown import ALLOCATED_HYPERNODE
from optsched.cluster.amounts import NOTHING, amount_of
from optsched.cluster.dra_devices import NO_DEVICES, is_class_quota
from optsched.cluster.node_resources import NO_LOCAL_DATA, NO_SHARDING, Store
from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.task import Task, TaskStatus
from optsched.cluster.topology import NO_TOPOLOGY, sub_group_of
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from optsched.cluster.amounts import Amounts, Usage
    from optsched.cluster.dra_devices import Devices
    from optsched.cluster.node_resources import Numa, Sharding, SharedGpu
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import LabelSelector, NodeSelector
    from optsched.cluster.task import TaskShape
    from optsched.cluster.topology import SubGroup, SubGroupRule, Topology, TopologyRequest

    Derived = TypeVar("Derived")

ROOT_QUEUE = "root"
DEFAULT_QUEUE = "default"
NO_POD_LIMIT = 1 << 40
"""The pod capacity of a node that reports no limit on its number of pods."""

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
_CORDONED = Taint(UNSCHEDULABLE_TAINT, "", TaintEffect.NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Load:
    """The measured load of a node, in millionths of its capacity.

    Attributes
    ----------
    measured_ms
        Time of the measurement, in epoch milliseconds.
    """

    cpu_ppm: int
    memory_ppm: int
    measured_ms: int


@dataclass(frozen=True, slots=True)
class _CacheOwner:
    """Base class of objects that cache values which are computed from their fields."""

    _derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def derived(self, compute: Callable[[Self], Derived]) -> Derived:
        """Return `compute(self)`, which is computed once; `compute` must be a pure function.

        The next snapshot contains the same object if the cluster object has not changed, so later
        sessions reuse the result.
        """
        known = self._derived
        if compute not in known:
            known[compute] = compute(self)
        found: Derived = known[compute]
        return found


@dataclass(frozen=True, slots=True)
class Node(_CacheOwner):
    """A node and the tasks on the node, including tasks of other schedulers.

    Attributes
    ----------
    allocatable
        Allocatable amounts, including `pods`; if `pods` is missing, the number of pods is
        unlimited.
    ready
        Whether the node is ready; a node that is not ready has no capacity.
    unschedulable
        Whether the node is cordoned: only pods that tolerate the unschedulable taint may start
        there.
    gpu_model
        The model of the node's GPUs, for requests that name GPU models; empty if unknown.
    residents
        Tasks that hold resources on the node (bound, running or terminating), sorted by key.
    load
        The measured load of the node, or None if unknown.
    shared_gpus
        GPUs and NPUs that tasks share by memory and cores, in the order of the device plugin.
    card_problem
        The reason that a device plugin's report cannot be parsed completely; empty if it can.
    numa
        The NUMA nodes of the node, or None if no agent reports them.
    store
        Images and data sets on the node.
    attach_limits
        Maximum number of volumes attached to the node, by CSI driver; a missing driver has no
        limit.
    """

    name: str
    allocatable: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    gpu_model: str = ""
    residents: tuple[Task, ...] = ()
    load: Load | None = None
    shared_gpus: tuple[SharedGpu, ...] = ()
    card_problem: str = ""
    numa: Numa | None = None
    store: Store = NO_LOCAL_DATA
    attach_limits: Amounts = ()

    @property
    def offers(self) -> dict[str, int]:
        """Allocatable amounts by resource, including the number of pods."""
        return {PODS: NO_POD_LIMIT, **dict(self.allocatable)}

    def offer(self, resource: str) -> int:
        """Return the allocatable amount of one resource.

        For a queue quota on a DeviceClass (`deviceclass/…`), the amount is unlimited, because the
        devices themselves are allocated to claims.
        """
        limit = NO_POD_LIMIT if resource == PODS or is_class_quota(resource) else 0
        return max((n for name, n in self.allocatable if name == resource), default=limit)

    @property
    def marks(self) -> tuple[Taint, ...]:
        """The node's taints, including the unschedulable taint if the node is cordoned."""
        if not self.unschedulable or any(t.key == UNSCHEDULABLE_TAINT for t in self.taints):
            return self.taints
        return (*self.taints, _CORDONED)


def _resident_shapes(node: Node) -> tuple[TaskShape, ...]:
    return tuple(dict.fromkeys(task.shape for task in node.residents))


class GangPhase(StrEnum):
    """The phase of a PodGroup, with the values of Volcano's API."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of another object, for example the job that controls a PodGroup."""

    api_version: str
    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Gang(_CacheOwner):
    """Tasks that start together or not at all: a PodGroup with its pods.

    A bare pod of this scheduler forms a gang of one task (`is_implicit`).

    Attributes
    ----------
    key
        `namespace/name`.
    queue
        Name of the gang's queue.
    min_member
        The minimum number of tasks that must run together (`minMember`).
    min_role
        The specified minimum of each role as (role, number) pairs; see `role_minimums` for the
        effective minimums.
    min_resources
        Resources that must be available before any pod of the gang starts.
    min_usage
        The amounts in `minResources` that only ResourceQuotas limit, such as `limits.cpu`.
    tasks
        All tasks of the gang in `Task.order`, including finished tasks.
    waiting_since_ms
        Time since which the gang has been waiting, in epoch milliseconds: its creation time, or the
        end of its last run.
    topology
        The topology request of the gang, or None.
    sub_groups
        Rules that form subgroups; a task belongs to the subgroup of the first matching rule.
    is_loose
        Whether tasks may start individually; `min_member` then only limits evictions.
    owner
        The controller of the PodGroup, or None if it has none.
    problem
        The reason that the gang cannot be scheduled, independent of plugins, or None.
    deferred_demand
        The part of the queue's demand that this gang adds while its session defers gangs: the
        requests of their pending tasks, including `pods`.
    """

    key: str
    queue: str = DEFAULT_QUEUE
    uid: str = ""
    min_member: int = 0
    min_role: tuple[tuple[str, int], ...] = ()
    min_resources: Amounts = ()
    min_usage: Amounts = ()
    priority: int = 0
    created_ms: int = 0
    waiting_since_ms: int = 0
    phase: GangPhase = GangPhase.PENDING
    tasks: tuple[Task, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_implicit: bool = False
    is_loose: bool = False
    topology: TopologyRequest | None = None
    sub_groups: tuple[SubGroupRule, ...] = ()
    owner: Owner | None = None
    problem: Reason | None = None
    deferred_demand: Amounts = ()

    @property
    def namespace(self) -> str:
        """The PodGroup's namespace."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """The PodGroup's name."""
        return self.key.partition("/")[2]

    @property
    def role_minimums(self) -> tuple[tuple[str, int], ...]:
        """How many tasks of each role the gang's minimum includes, as (role, number) pairs.

        If the numbers in `min_role` sum to more than `min_member`, Volcano ignores `min_role`
        (`CheckTaskReady`), so a job may start without its driver. If the sum is too large, optsched
        sets the minimum to 1 for each role in `min_role` that has pods. If more than `min_member`
        roles in `min_role` have pods, no role has a minimum.
        """
        minimums = tuple((role, least) for role, least in self.min_role if least > 0)
        if sum(least for _, least in minimums) <= self.min_member:
            return minimums
        roles = {t.role for t in self.tasks if t.status not in _GONE}
        ones = tuple((role, 1) for role, _ in minimums if role in roles)
        return ones if len(ones) <= self.min_member else ()

    def sub_group_of(self, task: Task) -> SubGroup | None:
        """Return the subgroup of one of the gang's tasks, or None if the task has none."""
        if not self.sub_groups:
            return None
        found = self.derived(_find_sub_groups)
        if task.key in found:
            return found[task.key]
        return sub_group_of(self.sub_groups, task.labels)

    def by_sub_group(self, tasks: Iterable[Task]) -> dict[SubGroup, list[Task]]:
        """Return the tasks of each subgroup, without the tasks that have no subgroup."""
        found: dict[SubGroup, list[Task]] = {}
        for task in tasks if self.sub_groups else ():
            group = self.sub_group_of(task)
            if group is not None:
                found.setdefault(group, []).append(task)
        return found

    @property
    def missing_resources(self) -> Amounts:
        """`min_resources` minus the requests of the succeeded tasks that count towards the minimum.

        For each role, succeeded tasks count only up to the role's minimum. All further succeeded
        tasks count only up to `min_member` minus the sum of the role minimums.
        """
        return self.derived(_missing_resources)

    @property
    def recorded_hypernode(self) -> str:
        """The HyperNode in which the gang's tasks last ran; empty if none is recorded."""
        return self.annotations.get(ALLOCATED_HYPERNODE, "")


_KEY: Callable[[Gang], str] = attrgetter("key")
_GONE = frozenset({TaskStatus.FAILED, TaskStatus.RELEASING})


def _find_sub_groups(gang: Gang) -> Mapping[str, SubGroup | None]:
    return {task.key: sub_group_of(gang.sub_groups, task.labels) for task in gang.tasks}


def _missing_resources(gang: Gang) -> Amounts:
    if not gang.min_resources:
        return NOTHING
    succeeded = [task for task in gang.tasks if task.status is TaskStatus.SUCCEEDED]
    if not succeeded:
        return gang.min_resources
    of_role = dict(gang.role_minimums)
    of_any_role = gang.min_member - sum(of_role.values())
    least = dict(gang.min_resources)
    for task in succeeded:
        if of_role.get(task.role):
            of_role[task.role] -= 1
        elif of_any_role:
            of_any_role -= 1
        else:
            continue
        for name, amount in task.shape.request:
            if name in least:
                least[name] = max(least[name] - amount, 0)
    return tuple((name, amount) for name, amount in least.items() if amount)


class QueueState(StrEnum):
    """The state of a queue; only an open queue accepts new gangs."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """A queue's affinity to node groups (label `volcano.sh/nodegroup-name`).

    Attributes
    ----------
    required, preferred
        Node groups to which the queue is restricted, and node groups that it prefers.
    excluded
        Node groups that the queue must not use.
    last_resort
        Excluded node groups that the queue avoids but may use.
    limits
        The maximum that the queue's tasks may hold in each node group, as (group, amounts) pairs. A
        missing resource is unlimited.
    problem
        The reason that the limits cannot be parsed; empty if they are valid.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    last_resort: tuple[str, ...] = ()
    limits: tuple[tuple[str, Amounts], ...] = ()
    problem: str = ""

    @property
    def names_any(self) -> bool:
        """Whether the affinity requires, prefers or excludes any node group."""
        return bool(self.required or self.preferred or self.excluded or self.last_resort)


NO_GROUPS = NodeGroups()

_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The overuse tolerance of a queue: how far it may exceed its deserved share without reclaim.

    Attributes
    ----------
    part_ppm
        Tolerance in millionths of the deserved share.
    amounts
        Additional tolerance by resource; a missing resource has no additional tolerance.
    """

    part_ppm: int = 0
    amounts: Amounts = ()

    def protected_amount(self, resource: str, due: int) -> int:
        """Return the amount of a resource that is protected from reclaim, in base units.

        If the deserved amount `due` is 0, the result is 0; otherwise it is `due` plus the
        tolerance.
        """
        return due + due * self.part_ppm // _PPM + amount_of(self.amounts, resource) if due else 0


@dataclass(frozen=True, slots=True)
class Entitlement:
    """The maximum amount of a resource that a queue may hold if it reclaims in this session.

    Attributes
    ----------
    queue
        Name of the queue; the amount includes the queue's descendants.
    most
        The maximum amount in base units of the resource.
    """

    queue: str
    resource: str
    most: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, which is entitled to a share of the cluster.

    Attributes
    ----------
    capability
        Hard limit by resource; a missing resource is unlimited. If `capability` is None, all
        resources are unlimited.
    deserved
        Deserved amount by resource, for the `capacity` plugin; 0 for a missing resource.
    guarantee
        Guaranteed amount by resource, which other queues cannot use.
    parent
        Name of the parent queue; `root` for a top-level queue.
    is_fifo
        Whether gangs start strictly in queue order (`dequeueStrategy: fifo`).
    node_groups
        Node groups that the queue may use; ignored unless the policy enables a node group plugin.
    tolerance
        The queue's overuse tolerance, or None. Reclaim first takes overuse above the tolerance from
        queues with a tolerance, and then overuse from other queues.
    problem
        The validation error of the Queue object, or None; no task of an invalid queue is placed.
    """

    name: str
    weight: int = 1
    capability: Amounts | None = None
    deserved: Amounts = ()
    guarantee: Amounts = ()
    reclaimable: bool = True
    parent: str = ROOT_QUEUE
    priority: int = 0
    created_ms: int = 0
    state: QueueState = QueueState.OPEN
    is_fifo: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_groups: NodeGroups = NO_GROUPS
    tolerance: Tolerance | None = None
    problem: Reason | None = None


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume to which a claim could be bound.

    Attributes
    ----------
    storage_class
        Name of the volume's StorageClass, which must be that of the claim.
    nodes
        Selects the nodes that can reach the volume; None for all nodes.
    """

    name: str
    storage_class: str = ""
    capacity_bytes: int = 0
    nodes: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The fields of a PersistentVolumeClaim that the scheduler reads.

    Attributes
    ----------
    nodes
        Selects the nodes that can reach the claim's volume or, if the claim is unbound, for which a
        volume may be provisioned; None for all nodes.
    waits_for_consumer
        Whether the claim is unbound and binds only after a node is chosen for its pod.
    problem
        The reason that pods with this claim cannot start, for example because the claim is unbound
        or lost; empty if they can.
    size_bytes
        The requested storage in bytes while the claim waits for its pod.
    provisions
        Whether a volume can be provisioned; if not, the claim needs an existing volume.
    selected_node
        The node for which a volume is being provisioned (`volume.kubernetes.io/selected-node`).
    volumes
        Volumes to which the waiting claim could be bound, in ascending order of size.
    driver, handle
        The volume's CSI driver, and the driver's name for the volume (empty while no volume
        exists). Without a CSI driver, both `driver` and `handle` are empty.
    zones
        The zones and regions from which the volume can be reached, as (label, values) pairs.
    """

    key: str
    nodes: NodeSelector | None = None
    waits_for_consumer: bool = False
    problem: str = ""
    size_bytes: int = 0
    provisions: bool = True
    selected_node: str = ""
    volumes: tuple[Volume, ...] = ()
    driver: str = ""
    handle: str = ""
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_scarce(self) -> bool:
        """Whether the claim waits for its pod's node and could be bound to an existing volume."""
        return self.waits_for_consumer and bool(self.volumes)

    def is_reachable(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node can reach a volume to which the claim is or could be bound."""
        if not self.waits_for_consumer:
            return self.nodes is None or self.nodes.matches(node, labels)
        if self.selected_node not in ("", node):
            return False
        may_be_made = self.nodes is None or self.nodes.matches(node, labels)
        there = (v.nodes is None or v.nodes.matches(node, labels) for v in self.volumes)
        return (self.provisions and may_be_made) or any(there)

    @property
    def attachment(self) -> tuple[str, str] | None:
        """The (driver, handle) of the volume that nodes attach, or None without a CSI driver."""
        return (self.driver, self.handle or f"claim {self.key}") if self.driver else None


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the selected pods may currently be evicted.

    Attributes
    ----------
    key
        `namespace/name`.
    selector
        Selects the protected pods in the budget's namespace; None selects no pods.
    allowed
        Number of pods that may be evicted (`status.disruptionsAllowed`).
    yields_to_guarantees
        Whether reclaim within a queue's guarantee may violate the budget. The administrator of the
        scheduler makes this setting, not the owner of the budget.
    """

    key: str
    selector: LabelSelector | None
    allowed: int
    yields_to_guarantees: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the budget and of the pods that it protects."""
        return self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: the total amounts that the pods of its namespace may request.

    Attributes
    ----------
    key
        `namespace/name`.
    hard, used
        The limits, and the amounts that existing pods use, under the resource names of
        ResourceQuotas (`cpu`, `requests.cpu`, `pods`).
    """

    key: str
    hard: Amounts
    used: Amounts = ()

    @property
    def namespace(self) -> str:
        """The namespace of the quota and of the pods that it limits."""
        return self.key.partition("/")[0]


def are_identical(objects: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether two sequences hold identical (not only equal) objects in the same order."""
    return len(objects) == len(others) and all(map(is_, objects, others))


def derived_of(gangs: Iterable[Gang], compute: Callable[[Gang], Derived]) -> list[Derived]:
    """Return `gang.derived(compute)` for each gang, in less time than separate calls."""
    return [
        known[compute] if compute in (known := g._derived) else g.derived(compute) for g in gangs
    ]


def uniform_gang(
    key: str, shape: TaskShape, number: int, *, priority: int = 0, created_ms: int = 0
) -> Gang:
    """Return a gang of `number` equal pending tasks that must all start together."""
    return Gang(
        key,
        min_member=number,
        priority=priority,
        created_ms=created_ms,
        waiting_since_ms=created_ms,
        tasks=tuple(
            Task(
                f"{key}-{i}",
                shape,
                TaskStatus.PENDING,
                gang=key,
                index=i,
                priority=priority,
                created_ms=created_ms,
            )
            for i in range(number)
        ),
    )


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """Capacity that is reserved from `start_ms` on, so that a gang can start at this time.

    Attributes
    ----------
    gang
        Key of the gang that holds the reservation.
    priority
        Priority of that gang; gangs with a higher priority ignore the reservation.
    start_ms
        Expected start time of the gang, in epoch milliseconds.
    is_open
        Whether `start_ms` is only a lower bound, because the gang waits for an event whose time is
        unknown.
    nodes
        (node, amounts reserved on the node) pairs, sorted by node name.
    queues
        (queue, amounts reserved within the queue's capability) pairs, sorted by queue name.
    entitled
        Keys of the gangs of other queues that may ignore the reservation, because their queues are
        entitled to the capacity.
    entitlements
        Maximum amounts that a queue and its gangs in `entitled` may hold, as (queue, amounts) pairs
        sorted by queue name.
    """

    gang: str
    priority: int
    start_ms: int
    is_open: bool = False
    nodes: tuple[tuple[str, Amounts], ...] = ()
    queues: tuple[tuple[str, Amounts], ...] = ()
    entitled: frozenset[str] = frozenset()
    entitlements: tuple[tuple[str, Amounts], ...] = ()

    @property
    def reserves_capacity(self) -> bool:
        """Whether capacity is reserved; if not, the reservation only affects the gang order."""
        return bool(self.nodes or self.queues)

    @property
    def without_capacity(self) -> CapacityReservation:
        """A copy that reserves no capacity and only makes its gang precede other gangs."""
        return replace(self, nodes=(), queues=(), entitled=frozenset(), entitlements=())


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant. Unchanged objects are shared with the previous snapshot.

    Attributes
    ----------
    taken_ms
        Time of the snapshot, in epoch milliseconds; the session reads no other time of day.
    nodes, gangs, queues
        Nodes, gangs and queues, sorted by name (gangs by key); names are unique.
    claims
        PersistentVolumeClaims by key; a missing claim does not exist.
    namespaces
        Namespace labels, keyed by namespace name, for namespace selectors.
    budgets
        PodDisruptionBudgets, sorted by key.
    topology
        The HyperNodes of the network.
    quotas
        ResourceQuotas, sorted by key.
    sharding
        The node shards of the cluster, and the shard of this scheduler.
    answers
        (request, response) pairs of the extender calls in a recorded session.
    reservations
        Reservations for gangs, earliest first; computed by the session, not read from the API.
    entitlements
        Maximum amounts that reclaiming queues may hold; computed by the session, not read from the
        API.
    devices
        Devices that are or can be allocated to ResourceClaims.
    priority_classes
        Priority value by PriorityClass name; ignored when snapshots are compared.
    last_shuffle_ms
        Time of a plugin's last eviction of misplaced pods in epoch milliseconds, keyed by plugin.
    usage
        Recorded usage by queue name.
    """

    taken_ms: int
    nodes: tuple[Node, ...] = ()
    gangs: tuple[Gang, ...] = ()
    queues: tuple[Queue, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    topology: Topology = NO_TOPOLOGY
    quotas: tuple[Quota, ...] = ()
    sharding: Sharding = NO_SHARDING
    answers: tuple[tuple[str, str], ...] = ()
    reservations: tuple[CapacityReservation, ...] = ()
    entitlements: tuple[Entitlement, ...] = ()
    devices: Devices = NO_DEVICES
    priority_classes: Mapping[str, int] = field(default_factory=dict, compare=False)
    last_shuffle_ms: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_order("nodes", [n.name for n in self.nodes])
        _check_order("gangs", list(map(_KEY, self.gangs)))
        _check_order("queues", [q.name for q in self.queues])
        _check_order("budgets", [b.key for b in self.budgets])
        _check_order("quotas", [q.key for q in self.quotas])
        _check_order("shards", [s.name for s in self.sharding.shards])

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def resident_shapes(self) -> tuple[TaskShape, ...]:
        """The distinct `TaskShape` objects of all tasks on nodes."""
        by_node = (shape for node in self.nodes for shape in node.derived(_resident_shapes))
        return tuple(dict.fromkeys(by_node))

    @cached_property
    def gang_by_key(self) -> Mapping[str, Gang]:
        """Gangs by key."""
        return dict(zip(map(_KEY, self.gangs), self.gangs, strict=True))

    @cached_property
    def queue_by_name(self) -> Mapping[str, Queue]:
        """Queues by name."""
        return {q.name: q for q in self.queues}

    @cached_property
    def budgets_by_namespace(self) -> Mapping[str, Sequence[Budget]]:
        """The disruption budgets of each namespace that has any."""
        found: dict[str, list[Budget]] = {}
        for budget in self.budgets:
            found.setdefault(budget.namespace, []).append(budget)
        return found

    @cached_property
    def attached(self) -> Mapping[str, Mapping[tuple[str, str], Mapping[int, int]]]:
        """Number of tasks on a node that use a volume, keyed by CSI driver, volume and node index.

        Only nodes that limit the number of the driver's volumes are included.
        """
        found: dict[str, dict[tuple[str, str], dict[int, int]]] = {}
        for n, node in enumerate(self.nodes):
            limited = {driver: found.setdefault(driver, {}) for driver, _ in node.attach_limits}
            for task in node.residents if limited else ():
                for volume in volumes_of(self.claims, task.shape.claims):
                    of_driver = limited.get(volume[0])
                    if of_driver is not None:
                        users = of_driver.setdefault(volume, {})
                        users[n] = users.get(n, 0) + 1
        return found


def volumes_of(claims: Mapping[str, Claim], keys: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the distinct volumes (`Claim.attachment`) of the claims with the given keys."""
    if not keys:
        return ()
    found = [c.attachment for key in keys if (c := claims.get(key)) is not None and c.driver]
    return tuple(dict.fromkeys(v for v in found if v is not None))


def _check_order(what: str, names: list[str]) -> None:
    if all(map(lt, names, islice(names, 1, None))):
        return
    for before, after in pairwise(names):
        if before >= after:
            problem = "twice" if before == after else "out of order"
            raise ValueError(f"snapshot {what}: {after!r} {problem}; sort them by name")
