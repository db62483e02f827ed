"""Tasks (one pod each) and their `TaskShape`: resource request and placement constraints."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.cluster.node_resources import NO_REQUIRED_DATA, RequiredData

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.dra_devices import DeviceClaimRequest
    from optsched.cluster.node_resources import GpuShare, GpuShareRequest, NumaNeed, NumaPart
    from optsched.cluster.reasons import Reason
    from optsched.cluster.selectors import (
        LabelSelector,
        NodeSelector,
        NodeTerm,
        Requirement,
        Toleration,
    )


ANY_ADDRESS = "0.0.0.0"  # noqa: S104


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host port that a pod uses; the address `ANY_ADDRESS` conflicts with every address."""

    protocol: str
    address: str
    port: int

    def collides(self, other: HostPort) -> bool:
        """Return whether two host ports conflict on one node."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or ANY_ADDRESS in (self.address, other.address)

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A pod affinity or anti-affinity term (`v1.PodAffinityTerm`).

    Attributes
    ----------
    selector
        Selects the pods to which the affinity refers; None selects no pod.
    namespaces
        Namespaces of the selected pods.
    namespace_selector
        Selects additional namespaces by label; None selects none, and an empty selector selects
        all.
    topology_key
        A node label; nodes with the same value of this label form one topology domain.
    """

    selector: LabelSelector | None
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    topology_key: str

    def __str__(self) -> str:
        return f"{_selected(self.selector)} per {self.topology_key}"


@dataclass(frozen=True, slots=True)
class SpreadTerm:
    """A topology spread constraint of a pod (`v1.TopologySpreadConstraint`).

    The constraint counts the pods in `namespace`, the namespace of the constrained pod.
    """

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
    """A request for `count` whole GPUs, or for a share of one GPU.

    `milli` is the requested share of each GPU in thousandths (1000 for whole GPUs). `models` holds
    the accepted GPU models; if `models` is empty, every model is accepted.
    """

    count: int
    milli: int = 1000
    models: tuple[str, ...] = ()

    @property
    def is_share(self) -> bool:
        """Whether the request is for a share of one GPU, not for whole GPUs."""
        return self.milli < 1000


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TaskShape:
    """The resource request and placement constraints that all tasks of a task class share.

    Tasks with equal requests and constraints from one task builder share one `TaskShape` object, so
    comparisons are usually decided by identity. The hash is computed once.

    Attributes
    ----------
    request
        Requested amounts in base units; empty for a best-effort task. `pods` is omitted, because
        every task is one pod.
    node_selector
        The pod's `nodeSelector` as (label, value) pairs.
    node_affinity
        The required node affinity, or None if there is none.
    preferred_nodes
        (weight, term) pairs of the preferred node affinity.
    claims
        Keys (`namespace/name`) of the pod's PersistentVolumeClaims.
    shared_gpus
        The vGPU or NPU request of each container that has one.
    device_claims
        Keys of the pod's ResourceClaims that are shared with other pods, allocated, or missing. The
        claims restrict the nodes on which the task may run.
    devices
        Unallocated requests of the ResourceClaims that were created for this pod only.
    numa
        The request for exclusive CPUs and GPUs of each container that has one.
    notes
        (annotation, value) pairs of the pod annotations that plugins read, in order.
    preempts
        Whether other pods may be evicted so that the task can start (`preemptionPolicy`).
    burst
        CPU and memory limits of the task minus its requests, in base units.
    wants
        The images and data sets that the task needs and only some nodes have; empty unless a plugin
        scores nodes by local data.
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
        """Whether the task requests no resources."""
        return not self.request and self.device is None

    @property
    def looks_at_pods(self) -> bool:
        """Whether the nodes on which the task may run depend on other pods."""
        return bool(self.pod_affinity or self.pod_anti_affinity or self.spread or self.host_ports)


class TaskStatus(StrEnum):
    """The scheduling state of a task.

    An expected task reserves capacity on a node for the replacement of a moved pod until the pod's
    owner creates the replacement. The members are strings, because every session hashes the status
    of every task, and Python caches the hashes of strings.
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
        """Whether the task occupies resources on a node."""
        return self in _HOLDING

    @property
    def is_standing(self) -> bool:
        """Whether the task is bound or running, and not terminating."""
        return self in _STANDING

    @property
    def counts_for_queue(self) -> bool:
        """Whether the task's resources are included in the usage of its queue."""
        return self in _CLAIMING

    @property
    def counts_as_ready(self) -> bool:
        """Whether the task counts towards its gang's minimum (Volcano `ReadyTaskNum`)."""
        return self in _READY


class QueueGate(StrEnum):
    """The state of optsched's scheduling gate, which hides a pending pod from autoscalers.

    `CLOSED` means that the pod has the gate. `OPEN` means that optsched has removed the gate; until
    the task is placed, its request counts against its queue.
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


def requirements_of(shape: TaskShape) -> dict[str, list[Requirement]]:
    """Return a task shape's label requirements, keyed by attribute of `TaskShape`."""
    node_terms: dict[str, Iterable[NodeTerm]] = {
        "node_affinity": shape.node_affinity.terms if shape.node_affinity is not None else (),
        "preferred_nodes": [term for _, term in shape.preferred_nodes],
    }
    pod_terms: dict[str, Iterable[PodTerm | SpreadTerm]] = {
        "pod_affinity": shape.pod_affinity,
        "pod_anti_affinity": shape.pod_anti_affinity,
        "preferred_pods": [term for _, term in shape.preferred_pods],
        "spread": shape.spread,
    }
    return {
        name: [r for term in terms for r in (*term.labels, *term.names)]
        for name, terms in node_terms.items()
    } | {
        name: [r for term in terms for each in _selectors(term) for r in each.requirements]
        for name, terms in pod_terms.items()
    }


def _selectors(term: PodTerm | SpreadTerm) -> list[LabelSelector]:
    both = (term.selector, term.namespace_selector if isinstance(term, PodTerm) else None)
    return [selector for selector in both if selector is not None]


@dataclass(frozen=True, slots=True)
class Task:
    """One pod.

    Attributes
    ----------
    key
        `namespace/name`.
    gang
        Key (`namespace/name`) of the task's gang; empty for pods of other schedulers.
    role
        The task template of the pod (label `volcano.sh/task-spec`); empty if unknown.
    index
        Index of the task within its role, used to order tasks; -1 if unknown.
    labels
        The pod's labels, which affinity terms of other pods can select.
    node
        Name of the node to which the pod is bound; empty if it is not bound.
    nominated_node
        Name of the node nominated for the pod (`status.nominatedNodeName`), or empty.
    preemptable
        Whether the pod may be evicted for other gangs (`volcano.sh/preemptable`).
    started_ms
        Time at which the pod was bound to its node, in epoch milliseconds; 0 if unknown.
    saved_ms
        Time of the pod's last checkpoint (`optsched.io/checkpointed-at`), in epoch milliseconds; 0
        if it has none.
    cooldown_ms
        Time in milliseconds after its start during which the pod should not be evicted
        (`volcano.sh/cooldown-time`).
    owner
        UID of the controller that recreates the pod after a deletion; empty without a controller.
    is_movable
        Whether the pod may be moved for another gang, because a controller recreates the pod or an
        annotation allows the move.
    estimate_ms
        The pod's run time estimate (`optsched.io/running-estimate`) or its time limit
        (`activeDeadlineSeconds`) in milliseconds, whichever is shorter; 0 if it has neither.
    gpus
        Indices (from 0) of the node's GPUs that the pod uses, whole or shared; empty if unknown.
    shared_gpus
        The pod's shares of GPUs and NPUs; empty if unknown.
    device_claims
        Keys of all ResourceClaims of the pod, in order.
    numa
        The CPUs and GPUs that the pod holds on each NUMA node, as planned when the pod was bound.
    wants
        Images and data sets that the pod needs.
    gate
        State of optsched's scheduling gate while the pod is pending.
    is_victim
        Whether this session evicts the task. The request of a victim still counts for its queue, so
        the eviction does not change the queue's share.
    is_evicted
        Whether the task terminates because this or an earlier session evicted it. An evicted task
        does not count against the quota of its queue.
    problem
        The reason that the pod cannot be scheduled until it is changed, for example an invalid
        quantity, or None.
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
        """Whether other pods may be evicted so that this pod can start."""
        return self.shape.preempts

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key within a gang: priority, index, creation time, key (Volcano `CompareTask`)."""
        return (-self.priority, self.index, self.created_ms, self.key)
