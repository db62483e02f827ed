"""Nodes, gangs, queues and volume claims, and the snapshot that holds them at one instant."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice, pairwise
from operator import lt
from typing import TYPE_CHECKING, Any, cast

from optsched.api.wellknown import ALLOCATED_HYPERNODE
from optsched.cluster.amounts import amount_of
from optsched.cluster.dra_devices import NO_DEVICES, is_class_quota
from optsched.cluster.node_parts import NO_LOCAL_DATA, NO_SHARDING, Store
from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.task import Task, TaskStatus
from optsched.cluster.topology import NO_TOPOLOGY
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from optsched.cluster.amounts import Amounts, Usage
    from optsched.cluster.dra_devices import Devices
    from optsched.cluster.gpu_shares import SharedGpu
    from optsched.cluster.node_parts import Numa, Sharding
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import LabelSelector, NodeSelector
    from optsched.cluster.task import TaskShape
    from optsched.cluster.topology import SubGroupRule, Topology, TopologyRequest

    Derived = TypeVar("Derived")

ROOT_QUEUE = "root"
DEFAULT_QUEUE = "default"
NO_POD_LIMIT = 1 << 40
"""The pods that a node without a limit is taken to allow."""

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
_CORDONED = Taint(UNSCHEDULABLE_TAINT, "", TaintEffect.NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Load:
    """The measured load of a node, in millionths of its capacity.

    Attributes
    ----------
    measured_ms
        When that was.

    """

    cpu_ppm: int
    memory_ppm: int
    measured_ms: int


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and the tasks on it, ours or not.

    Attributes
    ----------
    allocatable
        The total for pods, `pods` included; without `pods` their number is not limited.
    ready
        A node that is not ready offers nothing.
    unschedulable
        Cordoned; only pods that tolerate the unschedulable taint may still come.
    gpu_model
        The model of its GPUs, for requests that name models; empty when unknown.
    residents
        Tasks that hold resources here (bound, running or terminating), in key order.
    load
        The measured use, where it is known.
    shared_gpus
        GPUs that tasks share by memory and cores, in the order of the device plugin.
    card_problem
        Why some of what device plugins report has no reading; empty where all has.
    numa
        Its parent; None where it names none.
    store
        Images and data sets that it holds.
    attach_limits
        Most volumes that may be attached to it, by CSI driver; a driver that is missing here may
        attach any number.
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
    _derived: dict[object, object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def derived(self, compute: Callable[[Node], Derived]) -> Derived:
        """The result of a pure function of this node, computed once; see `Gang.derived`."""
        known = self._derived
        if compute not in known:
            known[compute] = compute(self)
        return cast("Derived", known[compute])

    @property
    def offers(self) -> dict[str, int]:
        """The total for pods by resource, their number included."""
        return {PODS: NO_POD_LIMIT, **dict(self.allocatable)}

    def offer(self, resource: str) -> int:
        """The total for pods of one resource.

        Devices are assigned to claims one by one: the quotas that count them for queues are no
        limit here.
        """
        limit = NO_POD_LIMIT if resource == PODS or is_class_quota(resource) else 0
        return max((n for name, n in self.allocatable if name == resource), default=limit)

    @property
    def marks(self) -> tuple[Taint, ...]:
        """Its taints; being cordoned counts as one."""
        if not self.unschedulable or any(t.key == UNSCHEDULABLE_TAINT for t in self.taints):
            return self.taints
        return (*self.taints, _CORDONED)


def _resident_shapes(node: Node) -> tuple[TaskShape, ...]:
    return tuple(dict.fromkeys(task.shape for task in node.residents))


class GangPhase(StrEnum):
    """A PodGroup's phase, with Volcano's names."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that manages another one, a job its PodGroup."""

    api_version: str
    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """Tasks that start together or not at all: a PodGroup and its pods.

    A pod of this scheduler without a PodGroup is a gang of its own (`is_implicit`).

    Attributes
    ----------
    key
        `namespace/name`.
    queue
        Name of the queue it asks from.
    min_member
        The smallest number of tasks that may run.
    min_role
        (role, number): the minimums by role as written; `role_minimums` are those that count.
    min_resources
        What must be available before any pod of it starts.
    min_usage
        What `minResources` names that only ResourceQuotas count, such as `limits.cpu`.
    tasks
        All its tasks in `Task.order`, finished ones included.
    waiting_since_ms
        When it began to wait: its creation, or the last time that it ran.
    topology
        The largest distance of its tasks in the network; None for any.
    sub_groups
        How smaller groups are formed inside it; a task is in a group of the first rule that means
        it.
    is_loose
        Whether its tasks may start one by one all the same: its minimum counts for evictions only.
    owner
        The controller of its PodGroup; None where there is none.
    problem
        Why it can not be scheduled as it is, before any rule is asked; None when it can.
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
    _derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def derived(self, compute: Callable[[Gang], Derived]) -> Derived:
        """The result of a pure function of this gang, computed once.

        Most gangs are the same from one session to the next: looking up a result is then cheap.
        """
        known = self._derived
        if compute not in known:
            known[compute] = compute(self)
        return cast("Derived", known[compute])

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
        """(role, number): tasks of a role that start with the minimum of the gang.

        Where the numbers that were written are more than `min_member` together, Volcano ignores
        them (`CheckTaskReady`), and a job may start without its driver. Here one task of each such
        role that has pods is among the first, up to `min_member`.
        """
        asked = tuple((role, least) for role, least in self.min_role if least > 0)
        if sum(least for _, least in asked) <= self.min_member:
            return asked
        there = {t.role for t in self.tasks if t.status not in _GONE}
        ones = tuple((role, 1) for role, _ in asked if role in there)
        return ones if len(ones) <= self.min_member else ()

    @property
    def recorded_hypernode(self) -> str:
        """The HyperNode that its tasks were in when it ran last; empty when there is no record."""
        return self.annotations.get(ALLOCATED_HYPERNODE, "")


_GONE = frozenset({TaskStatus.FAILED, TaskStatus.RELEASING})


class QueueState(StrEnum):
    """A queue's state; only an open queue takes new work."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """Groups of nodes (label `volcano.sh/nodegroup-name`) as a queue sees them.

    Attributes
    ----------
    required, preferred
        Groups that it may use, and those that it would rather use, in this order.
    excluded
        Groups that it may not use.
    last_resort
        Groups that it may use although they are excluded, but would rather not.
    limits
        (group, most that its tasks may hold there); a missing resource is not limited.
    problem
        Why the limits have no reading; empty when they have.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    last_resort: tuple[str, ...] = ()
    limits: tuple[tuple[str, Amounts], ...] = ()
    problem: str = ""

    @property
    def names_any(self) -> bool:
        """Whether it says anything about groups, limits aside."""
        return bool(self.required or self.preferred or self.excluded or self.last_resort)


NO_GROUPS = NodeGroups()

_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a queue may exceed what it deserves before others claim that back.

    Attributes
    ----------
    part_ppm
        Millionths of its deserved share.
    amounts
        Or amounts by resource; a missing resource means none.
    """

    part_ppm: int = 0
    amounts: Amounts = ()

    def protected_amount(self, resource: str, due: int) -> int:
        """What the queue keeps of a resource of which it is due so much."""
        return due + due * self.part_ppm // _PPM + amount_of(self.amounts, resource) if due else 0


@dataclass(frozen=True, slots=True)
class Entitlement:
    """The most of a resource that a queue may hold in a session in which it reclaims.

    Attributes
    ----------
    queue
        The queue, with all queues below it.
    most
        Base units of the resource.
    """

    queue: str
    resource: str
    most: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A share of the cluster.

    Attributes
    ----------
    capability
        Hard ceiling by resource; None where no resource is limited, a missing resource is not
        limited.
    deserved
        Fair part by resource for the `capacity` rule; a missing resource has none.
    guarantee
        Reserved floor by resource.
    parent
        Name of its parent; `root` at the top.
    is_fifo
        Strict order: later work may not pass the head (`dequeueStrategy: fifo`).
    node_groups
        Groups of nodes that it may use; unused unless a policy reads them.
    tolerance
        How far it may exceed what it deserves before that is claimed back, and then first; None
        where the queue does not say.
    problem
        The fault of the object; nothing is placed under a queue that can not be read.
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
    """A PersistentVolume that a claim could be bound to.

    Attributes
    ----------
    storage_class
        Its StorageClass, which is that of the claim.
    nodes
        Nodes from which it can be reached; None: every node.

    """

    name: str
    storage_class: str = ""
    capacity_bytes: int = 0
    nodes: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A persistent volume claim as a scheduler sees it.

    Attributes
    ----------
    nodes
        Nodes from which the volume can be reached, or for which it may be made; None: every node.
    waits_for_consumer
        Not bound yet and bound only after a node has been chosen.
    problem
        Why pods that use it can not start (unbound, lost); None when they can.
    size_bytes
        Its requests while it waits.
    provisions
        Whether a volume can be provisioned for it; otherwise it needs an existing one.
    selected_node
        The node for which its volume is being made (`volume.kubernetes.io/selected-node`).
    volumes
        Volumes that it could be bound to while it waits, the smallest first.
    driver, handle
        The CSI driver of its volume and what the driver calls it. The handle is empty until there
        is a volume; both are where no CSI driver is involved.
    zones
        (label, values) of its volume: zones and regions from which it can be reached.
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
        """Whether it depends on which other claims get which volume."""
        return self.waits_for_consumer and bool(self.volumes)

    def is_reachable(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a node can use its volume, or one of those that it could get."""
        if not self.waits_for_consumer:
            return self.nodes is None or self.nodes.matches(node, labels)
        if self.selected_node not in ("", node):
            return False
        may_be_made = self.nodes is None or self.nodes.matches(node, labels)
        there = (v.nodes is None or v.nodes.matches(node, labels) for v in self.volumes)
        return (self.provisions and may_be_made) or any(there)

    @property
    def attachment(self) -> tuple[str, str] | None:
        """What nodes attach for it: a driver, and the handle that identifies the volume."""
        return (self.driver, self.handle or f"claim {self.key}") if self.driver else None


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods it selects may be evicted now.

    Attributes
    ----------
    key
        `namespace/name`.
    selector
        The pods of its namespace that it protects; None selects no pod.
    allowed
        `status.disruptionsAllowed`.
    """

    key: str
    selector: LabelSelector | None
    allowed: int

    @property
    def namespace(self) -> str:
        """The namespace of the pods that it protects."""
        return self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: how much the pods of its namespace may ask for together.

    Attributes
    ----------
    key
        `namespace/name`.
    hard, used
        By resource as quotas spell it (`cpu`, `requests.cpu`, `pods`): the limit, and what pods
        that exist take of it.
    """

    key: str
    hard: Amounts
    used: Amounts = ()

    @property
    def namespace(self) -> str:
        """The namespace that it limits."""
        return self.key.partition("/")[0]


def derived_of(gangs: Iterable[Gang], compute: Callable[[Gang], Derived]) -> list[Derived]:
    """`Gang.derived` of many, most of which have been asked before."""
    return [
        known[compute] if compute in (known := g._derived) else g.derived(compute) for g in gangs
    ]


def uniform_gang(
    key: str, shape: TaskShape, number: int, *, priority: int = 0, created_ms: int = 0
) -> Gang:
    """A gang of pending tasks of one shape, all of which are its minimum."""
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
    """What must be free from an instant on, so that a gang can start then.

    Attributes
    ----------
    gang
        Key of the gang that it is made for.
    priority
        Priority of that gang: only gangs of at most this priority have to respect it.
    start_ms
        When the gang is expected to start, in epoch milliseconds.
    is_open
        Whether that is only the earliest possible instant, because something that it waits for
        does not say how long it runs.
    nodes
        (node, what must be free there), by name.
    queues
        (queue with a ceiling, what must be free below that), by name.

    """

    gang: str
    priority: int
    start_ms: int
    is_open: bool = False
    nodes: tuple[tuple[str, Amounts], ...] = ()
    queues: tuple[tuple[str, Amounts], ...] = ()

    @property
    def reserves_capacity(self) -> bool:
        """Whether others have to respect it; if not, it only holds a place in line."""
        return bool(self.nodes or self.queues)

    @property
    def without_capacity(self) -> CapacityReservation:
        """The same without what must be free: its gang precedes later ones by other means."""
        return replace(self, nodes=(), queues=())


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant. Parts that did not change are shared with the one before.

    Attributes
    ----------
    taken_ms
        When, in epoch milliseconds; the only clock that anything downstream sees.
    nodes, gangs, queues
        In name (key) order, each name once.
    claims
        Persistent volume claims by key; a claim that is missing here does not exist.
    namespaces
        Labels by namespace, for selectors on namespaces.
    budgets
        Disruption budgets in key order.
    topology
        The HyperNodes of the network.
    quotas
        Limits of namespaces in key order.
    sharding
        The shards of the cluster, and which of them is ours.
    answers
        (question, reply) of what rules have asked outside in a session that was recorded.
    bookings
        Room reserved for gangs from an instant on, those that begin first in front. Not part of the
        cluster: sessions work it out.
    entitlements
        What queues may hold that reclaim in this session. Not part of the cluster: sessions
        work it out.
    devices
        The devices that ResourceClaims may get, and those that they have.
    priority_classes
        Value by name of PriorityClass; plays no part in whether snapshots are equal.
    last_shuffle_ms
        When pods were last evicted because a plugin wanted them elsewhere, by plugin.
    usage
        The usage of queues by name, where it is recorded.
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
    bookings: tuple[CapacityReservation, ...] = ()
    entitlements: tuple[Entitlement, ...] = ()
    devices: Devices = NO_DEVICES
    priority_classes: Mapping[str, int] = field(default_factory=dict, compare=False)
    last_shuffle_ms: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_order("nodes", [n.name for n in self.nodes])
        _check_order("gangs", [g.key for g in self.gangs])
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
        """The shapes of all residents, each once: few, also where residents are many."""
        by_node = (shape for node in self.nodes for shape in node.derived(_resident_shapes))
        return tuple(dict.fromkeys(by_node))

    @cached_property
    def gang_by_key(self) -> Mapping[str, Gang]:
        """Gangs by key."""
        return {g.key: g for g in self.gangs}

    @cached_property
    def queue_by_name(self) -> Mapping[str, Queue]:
        """Queues by name."""
        return {q.name: q for q in self.queues}

    @cached_property
    def attached(self) -> Mapping[str, Mapping[tuple[str, str], Mapping[int, int]]]:
        """By driver, volume and position of a node how many residents have the volume there.

        Only of nodes that limit the driver.
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
    """Volumes that nodes attach for some claims, by key, each volume once."""
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
            raise ValueError(f"snapshot {what}: {after!r} {problem}; names must ascend")
