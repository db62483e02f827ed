"""Reasons why gangs are pending, and validation errors of objects, each with code and message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from optsched.api.kinds import Kind


class ReasonCode(StrEnum):
    """Every reason why a gang may be pending, in the order in which the reasons are checked."""

    REFUSED = "RefusedByAPIServer"
    INVALID_POD = "InvalidPod"
    INVALID_POD_GROUP = "InvalidPodGroup"
    POD_GROUP_NOT_FOUND = "PodGroupNotFound"
    QUEUE_NOT_FOUND = "QueueNotFound"
    QUEUE_NOT_OPEN = "QueueNotOpen"
    INVALID_QUEUE = "InvalidQueue"
    NOT_A_LEAF = "QueueHasQueuesBelow"
    NOT_ENOUGH_TASKS = "NotEnoughTasks"
    GATED = "Gated"
    TOPOLOGY_NOT_FOUND = "TopologyNotFound"
    DEVICES = "DevicesUnavailable"
    NO_NODES = "NoNodes"
    IMPOSSIBLE = "Impossible"
    QUEUE_ORDER = "WaitsForItsTurn"
    CAPABILITY = "QueueCapabilityExceeded"
    DESERVED = "QueueDeservedExceeded"
    GUARANTEE = "ReservedForGuarantees"
    MIN_RESOURCES = "MinResourcesUnavailable"
    OVERCOMMITTED = "ClusterOvercommitted"
    QUOTA = "ResourceQuotaExceeded"
    VOLUME = "VolumeUnavailable"
    PREDICATES = "NoNodeMatches"
    PLUGIN = "RefusedByPlugin"
    RESOURCES = "NotEnoughResources"
    RESERVED = "ReservedForOthers"
    FRAGMENTED = "ResourcesFragmented"
    TOPOLOGY = "TopologyUnsatisfied"
    RELATIONS = "PodRelationsUnsatisfied"
    WAITING = "WaitingForReleasedResources"
    OUTRANKED = "Outranked"
    NOT_BOUND = "BindFailed"
    NOT_EVICTED = "EvictionFailed"
    NOT_ENQUEUED = "EnqueueFailed"


LACK_OF_ROOM: Final = frozenset({ReasonCode.RESOURCES, ReasonCode.FRAGMENTED})
"""The reasons that mean insufficient capacity. As other pods start and end, a gang's reason may
alternate between `RESOURCES` and `FRAGMENTED`.
"""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a gang or task is pending: a code, and a sentence with the relevant numbers and names."""

    code: ReasonCode
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class FlawCode(StrEnum):
    """The codes of validation errors; an event about a validation error has the code as reason."""

    QUEUE = "InvalidQueue"
    GUARANTEE = "GuaranteeNotHeld"
    FLOORS = "GuaranteesContradict"
    CEILING = "CapabilityContradicts"
    DESERVED = "DeservedContradict"
    HYPERNODE = "InvalidHyperNode"
    TIER = "TierNotFound"
    UNREAD = "TopologyNotRead"
    BUDGET = "BudgetForbidsAll"
    CARDS = "InvalidDeviceReport"
    PRIORITY = "PriorityAbovePods"
    DEVICES = "DevicesNotBound"
    ACCESS = "MayNotJoin"


READ_CODES = frozenset({FlawCode.QUEUE, FlawCode.HYPERNODE, FlawCode.CARDS})
"""Codes of errors that concern one field; the manifest reader reports their file and line."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """A validation error of an object in the cluster.

    Attributes
    ----------
    kind, key
        Kind of the object, and its key: `namespace/name`, or the name of a cluster-scoped object.
    message
        One sentence that describes the error.
    """

    kind: Kind
    key: str
    code: FlawCode
    message: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: {self.code}: {self.message}"
