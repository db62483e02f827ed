"""Why something waits: a code for machines, one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Every answer to "why does this pend", in the order in which they are looked for."""

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


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its code and a sentence with the numbers and names that matter."""

    code: ReasonCode
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
