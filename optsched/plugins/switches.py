"""The switches with which a policy enables or disables the extension points of a plugin."""

from __future__ import annotations

from enum import Enum


class Switch(Enum):
    """A switch of a plugin; each value is the switch's key in Volcano's YAML configuration."""

    JOB_ORDER = "enableJobOrder"
    QUEUE_ORDER = "enableQueueOrder"
    TASK_ORDER = "enableTaskOrder"
    JOB_READY = "enableJobReady"
    JOB_PIPELINED = "enableJobPipelined"
    JOB_ENQUEUED = "enableJobEnqueued"
    JOB_STARVING = "enableJobStarving"
    PREDICATE = "enablePredicate"
    NODE_ORDER = "enableNodeOrder"
    BEST_NODE = "enableBestNode"
    ALLOCATABLE = "enabledAllocatable"
    OVERUSED = "enabledOverused"
    PREEMPTABLE = "enablePreemptable"
    PREEMPTIVE = "enablePreemptive"
    RECLAIMABLE = "enableReclaimable"
    VICTIM = "enabledVictim"
    CLUSTER_ORDER = "enabledClusterOrder"
    TARGET_JOB = "enableTargetJob"
    RESERVED_NODES = "enableReservedNodes"
    HIERARCHY = "enableHierarchy"
    HYPERNODE_ORDER = "enabledHyperNodeOrder"
    HYPERNODE_GRADIENT = "enabledHyperNodeGradient"
    SUB_JOB_READY = "enabledSubJobReady"
    SUB_JOB_PIPELINED = "enabledSubJobPipelined"
    SUB_JOB_ORDER = "enabledSubJobOrder"


OFF_BY_DEFAULT = frozenset({Switch.HIERARCHY, Switch.CLUSTER_ORDER})
DEFAULT_SWITCHES = frozenset(Switch) - OFF_BY_DEFAULT
"""The switches that are enabled by default, as in Volcano's `SCH/plugins/defaults.go`."""
