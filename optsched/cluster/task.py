"""A task is one pod; its shape is everything that decides where it may run and what it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.cluster.node_parts import NO_REQUIRED_DATA, RequiredData

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.dra_devices import DeviceClaimRequest
    from optsched.cluster.gpu_shares import GpuShare, GpuShareRequest
    from optsched.cluster.node_parts import NumaNeed, NumaPart
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import LabelSelector, NodeSelector, NodeTerm, Toleration


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port a pod binds on its node; the address 0.0.0.0 collides with every address."""

    protocol: str
    address: str
    port: int

    def collides(self, other: HostPort) -> bool:
        """Whether both cannot be bound on one node."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or "0.0.0.0" in (self.address, other.address)  # noqa: S104

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required or preferred relation to other pods in the domains of a node label.

    Attributes
    ----------
    selector
        The pods that match; None selects no pod.
    namespaces
        Namespaces those pods are looked for in.
    namespace_selector
        More namespaces, by label; None adds none, an empty selector adds all.
    topology_key
        The node label whose values are the domains.
    """

    selector: LabelSelector | None
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    topology_key: str

    def __str__(self) -> str:
        return f"{_selected(self.selector)} per {self.topology_key}"


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """A topology spread constraint (`v1.TopologySpreadConstraint`) of a pod in its namespace."""

    max_skew: int
    topology_key: str
    selector: LabelSelector | None
    namespace: str
    required: bool = True
    min_domains: int = 1
    honour_affinity: bool = True
    honour_taints: bool = False

    def __str__(self) -> str:
        pods = _selected(self.selector)
        return f"spread of {pods} per {self.topology_key} within {self.max_skew}"


def _selected(selector: LabelSelector | None) -> str:
    return "no pods" if selector is None else f"pods with {selector}"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """GPUs as devices: how many, what part of each, of which models (empty: any).

    `milli` is 1000 for whole devices; a part is asked of one device only.
    """

    count: int
    milli: int = 1000
    models: tuple[str, ...] = ()

    @property
    def is_share(self) -> bool:
        """Whether it asks for a part of one device."""
        return self.milli < 1000


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TaskShape:
    """What makes two tasks equal for a scheduler: request and constraints, without any name.

    Shapes are interned by whoever builds tasks, so that classes are found by identity first and by
    value only where two builders met. The hash is computed once.

    Attributes
    ----------
    request
        Base units by resource; empty for a best-effort task. `pods` is not listed: every task
        takes one.
    node_selector
        The pod's `nodeSelector` as (label, value).
    node_affinity
        Required node affinity; None when there is none.
    preferred_nodes
        (weight, term) of preferred node affinity.
    claims
        Keys `namespace/name` of persistent volume claims.
    shared_gpus
        vGPUs that it asks for, one entry a container that asks.
    device_claims
        Keys of the ResourceClaims that tie it to nodes or to other pods: shared ones, those that
        have their devices, and missing ones.
    devices
        The devices that its own claims, made for this one pod, still need.
    numa
        The exclusive resources of its containers, one entry a container that has any.
    notes
        (annotation, value) of the pod that rules read, in order.
    preempts
        Whether others may be evicted for it (`preemptionPolicy`).
    burst
        CPU and memory that its limits allow above its request.
    wants
        Images and data sets that tell nodes apart for it; set for a session, where rules ask.
    """

    request: Amounts
    node_selector: tuple[tuple[str, str], ...] = ()
    node_affinity: NodeSelector | None = None
    preferred_nodes: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    pod_affinity: tuple[PodTerm, ...] = ()
    pod_anti_affinity: tuple[PodTerm, ...] = ()
    preferred_pods: tuple[tuple[int, PodTerm], ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    claims: tuple[str, ...] = ()
    device: DeviceRequest | None = None
    shared_gpus: tuple[GpuShareRequest, ...] = ()
    device_claims: tuple[str, ...] = ()
    devices: tuple[DeviceClaimRequest, ...] = ()
    numa: tuple[NumaNeed, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    preempts: bool = True
    burst: Amounts = ()
    wants: RequiredData = NO_REQUIRED_DATA
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        key = (
            self.request,
            self.node_selector,
            self.node_affinity,
            self.preferred_nodes,
            self.tolerations,
            self.pod_affinity,
            self.pod_anti_affinity,
            self.preferred_pods,
            self.spread,
            self.host_ports,
            self.claims,
            self.device,
            self.shared_gpus,
            self.device_claims,
            self.devices,
            self.numa,
            self.notes,
            self.preempts,
            self.burst,
            self.wants,
        )
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_best_effort(self) -> bool:
        """Whether it asks for no resource at all."""
        return not self.request and self.device is None

    @property
    def looks_at_pods(self) -> bool:
        """Whether other pods decide where it may run."""
        return bool(self.pod_affinity or self.pod_anti_affinity or self.spread or self.host_ports)


class TaskStatus(StrEnum):
    """The state of a task as far as a scheduler cares.

    Expected: it was moved, whoever owns it has yet to make it again, and its place is kept. Members
    are texts, whose hashes run no Python code: every session hashes every task.
    """

    PENDING = "Pending"
    GATED = "Gated"
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    EXPECTED = "Expected"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def holds_resources(self) -> bool:
        """Whether the task takes room on its node."""
        return self in _HOLDING

    @property
    def is_standing(self) -> bool:
        """Whether the task has its node and is not about to leave it: bound or running."""
        return self in _STANDING

    @property
    def counts_for_queue(self) -> bool:
        """Whether what the task holds counts against its queue: it is placed, or about to be."""
        return self in _CLAIMING

    @property
    def counts_as_ready(self) -> bool:
        """Whether the task counts towards its gang's minimum (Volcano `ReadyTaskNum`)."""
        return self in _READY


class QueueGate(StrEnum):
    """The gate that hides a pending task from autoscalers until its queue has room for it.

    Open: it was closed, and the task's requests count against its queue until it is placed.
    """

    NONE = ""
    CLOSED = "Closed"
    OPEN = "Open"


_HOLDING = frozenset(
    {TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING, TaskStatus.EXPECTED}
)
_CLAIMING = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.EXPECTED})
_STANDING = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})
_READY = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Task:
    """One pod.

    Attributes
    ----------
    key
        `namespace/name`.
    gang
        Key `namespace/name` of its gang; empty for pods of other schedulers.
    role
        The task template it was made from (label `volcano.sh/task-spec`); empty when unknown.
    index
        Its number within the role, for order; -1 when unknown.
    labels
        The pod's labels, which other pods' affinity reads.
    node
        The node it is bound to; empty while pending.
    nominated_node
        The node it waits for (`status.nominatedNodeName`); empty when none.
    preemptable
        Whether it may be evicted for others (`volcano.sh/preemptable`).
    started_ms
        When it was bound to its node; 0 when unknown.
    saved_ms
        When its work was last saved (`optsched.io/checkpointed-at`); 0 when never.
    cooldown_ms
        How long after its start it should be left alone (`volcano.sh/cooldown-time`).
    owner
        UID of the controller that replaces the pod when it is deleted; empty without one.
    is_movable
        Whether it may be moved to make room: it has such an owner, or says that it may.
    estimate_ms
        How long it is expected to run (`optsched.io/running-estimate`), or may run at most
        (`activeDeadlineSeconds`) where that is shorter; 0 when the pod does not say.
    gpus
        GPUs of its node that it holds in whole or in part, counted from 0; empty where unknown.
    shared_gpus
        Its parts of shared GPUs, where they are known.
    device_claims
        Keys of all its ResourceClaims, in order.
    numa
        Its planned part of the NUMA nodes of its node when it was bound.
    wants
        Images and data sets that it needs.
    gate
        Its scheduling gate of optsched, while it is pending.
    is_victim
        Whether this session evicts it. It then terminates, and its queue still requests what it
        holds, so that an eviction changes no share.
    is_evicted
        Whether it terminates because a session evicted it, this one or an earlier one. The quota of
        its queue is then free for others before it has ended.
    problem
        Why it can never be scheduled as it is (an unreadable quantity, say); None when it can.
    """

    key: str
    shape: TaskShape
    status: TaskStatus
    uid: str = ""
    gang: str = ""
    role: str = ""
    index: int = -1
    priority: int = 0
    created_ms: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    nominated_node: str = ""
    preemptable: bool = True
    started_ms: int = 0
    saved_ms: int = 0
    cooldown_ms: int = 0
    owner: str = ""
    is_movable: bool = False
    estimate_ms: int = 0
    shared_gpus: tuple[GpuShare, ...] = ()
    gpus: tuple[int, ...] = ()
    device_claims: tuple[str, ...] = ()
    numa: tuple[NumaPart, ...] = ()
    wants: RequiredData = NO_REQUIRED_DATA
    gate: QueueGate = QueueGate.NONE
    is_victim: bool = False
    is_evicted: bool = False
    problem: Reason | None = None

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.key.partition("/")[2]

    @property
    def preempts(self) -> bool:
        """Whether others may be evicted for it."""
        return self.shape.preempts

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The order within a gang: priority, index, age, name (Volcano `CompareTask`)."""
        return (-self.priority, self.index, self.created_ms, self.key)
