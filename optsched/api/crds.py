"""The custom kinds as the API server is told about them: schema, columns, definition.

Group, names, fields, defaults and limits are Volcano's (staging/src/volcano.sh/apis,
scheduling/v1beta1/types.go; see also `topology_schemas` and `job_schemas`), so that its clients
decode what we store; `deploy/crds` holds these definitions as manifests. Three things are ours:
`reclaimable` has its default here (Volcano leaves it to a webhook), an empty state or phase is
accepted, and `kubectl get` prints more columns.
"""

from __future__ import annotations

from typing import Any, Final

from optsched.api import kinds
from optsched.api.job_schemas import (
    COLOCATION_CONFIGURATION_SCHEMA,
    COMMAND_SCHEMA,
    CRON_JOB_SCHEMA,
    JOB_FLOW_SCHEMA,
    JOB_SCHEMA,
    JOB_TEMPLATE_SCHEMA,
)
from optsched.api.schema import (
    NAME_PATTERN,
    Schema,
    amounts,
    boolean,
    count,
    integer,
    listing,
    mapping,
    moment,
    name,
    record,
    text,
    texts,
    whole_object,
)
from optsched.api.selectors import label_selector
from optsched.api.topology_schemas import (
    HYPER_NODE_SCHEMA,
    NETWORK_TOPOLOGY,
    NODE_SHARD_SCHEMA,
    NUMATOPOLOGY_SCHEMA,
)

_QUEUE_STATES: Final = ["", "Open", "Closed", "Closing", "Unknown"]
_PHASES: Final = ["", "Pending", "Running", "Unknown", "Inqueue", "Completed"]


def _node_groups(description: str) -> Schema:
    return record(
        description,
        requiredDuringSchedulingIgnoredDuringExecution=texts("Node groups that must be met."),
        preferredDuringSchedulingIgnoredDuringExecution=texts("Node groups that count in scores."),
    )


def _device_quotas(description: str) -> Schema:
    quota = record(
        "What a queue may have of one DeviceClass.",
        ("count",),
        count={"description": "Number of devices.", "type": "integer", "format": "int64"},
        capacity=amounts("Consumable capacity by dimension, such as cores or memory."),
    )
    return mapping(description, quota)


_CLUSTER: Final = record(
    "A cluster to which jobs may be forwarded.",
    name=text("Name of the cluster."),
    weight=integer("Share of the jobs that goes to the cluster."),
    capacity=amounts("What the cluster offers to the queue."),
)

_QUEUE_SPEC: Final = record(
    "What the queue may use, and how it shares.",
    weight=integer(
        "Share of the cluster relative to its siblings.", minimum=1, maximum=65535, default=1
    ),
    capability=amounts("Most that the queue may use; a resource not listed is not limited."),
    deserved=amounts("Fair part of the queue; what it uses above can be reclaimed by others."),
    guarantee=record(
        "What is kept free for the queue.",
        resource=amounts("Amounts that no other queue may use."),
    ),
    reclaimable=boolean("Whether other queues may take back what exceeds its share.", default=True),
    parent=name("Queue of which this one is a part; empty for the root.", pattern=NAME_PATTERN),
    priority=count("Order among queues: higher ones are served first and give back last."),
    affinity=record(
        "Node groups on which tasks of the queue run.",
        nodeGroupAffinity=_node_groups("Node groups to run on."),
        nodeGroupAntiAffinity=_node_groups("Node groups to stay away from."),
    ),
    dequeueStrategy=text(
        "Whether a job that does not fit holds up the ones behind it (fifo) or not (traverse).",
        enum=["fifo", "traverse"],
        default="traverse",
    ),
    type=name("A kind of queue, free for the user."),
    extendClusters=listing("Other clusters to which jobs of the queue may go.", _CLUSTER),
    dra=record(
        "Quotas on devices that are claimed through dynamic resource allocation.",
        capability=_device_quotas("Most that the queue may use, by DeviceClass."),
        deserved=_device_quotas("Fair part of the queue, by DeviceClass."),
        guarantee=_device_quotas("What is kept free for the queue, by DeviceClass."),
    ),
)

_QUEUE_STATUS: Final = record(
    "What the queue is and has at the moment.",
    state=text("Whether the queue takes new work; empty until first seen.", enum=_QUEUE_STATES),
    unknown=count("Number of its PodGroups in phase Unknown."),
    pending=count("Number of its PodGroups in phase Pending."),
    running=count("Number of its PodGroups in phase Running."),
    inqueue=count("Number of its PodGroups in phase Inqueue."),
    completed=count("Number of its PodGroups in phase Completed."),
    reservation=record(
        "Nodes that are held for the queue.",
        nodes=texts("Names of the nodes."),
        resource=amounts("What is idle on those nodes together."),
    ),
    allocated=amounts("What its tasks hold, those of its children included."),
)

_SUB_GROUP: Final = record(
    "A rule that forms smaller groups of the pods and places each as one.",
    name=name("Name of the rule."),
    networkTopology=NETWORK_TOPOLOGY,
    subGroupSize=integer("Number of pods in each group.", minimum=1, default=1),
    minSubGroups=count("Number of groups that must start together.", default=0),
    labelSelector=label_selector("Labels of the pods that belong; all conditions hold together."),
    matchLabelKeys=texts("Labels whose values tell one group from another.")
    | {"x-kubernetes-list-type": "atomic"},
)

_POD_GROUP_SPEC: Final = record(
    "What must start together, and under which queue.",
    minMember=count("Smallest number of pods that may run; fewer do not start."),
    minTaskMember=mapping(
        "Smallest number of pods by task.", {"type": "integer", "format": "int32"}
    ),
    queue=name("Queue from which it asks.", pattern=NAME_PATTERN, default="default"),
    priorityClassName=name("PriorityClass that gives its priority."),
    minResources=amounts("What must be available before any of its pods is admitted."),
    networkTopology=NETWORK_TOPOLOGY,
    subGroupPolicy=listing("Rules for smaller groups inside the group.", _SUB_GROUP),
)

_CONDITION: Final = record(
    "One fact about the group and since when it holds.",
    type=text("What the fact is about: Unschedulable or Scheduled."),
    status=text("Whether it holds: True, False or Unknown."),
    transitionID=text("Session in which it was found."),
    lastTransitionTime=moment("When it was found."),
    reason=text("The cause in one word."),
    message=text("The cause in a sentence for people."),
)

_POD_GROUP_STATUS: Final = record(
    "How far the group has come.",
    phase=text("Stage of its life; empty counts as Pending.", enum=_PHASES),
    conditions=listing("What is known about it.", _CONDITION),
    running=count("Number of its pods that run."),
    succeeded=count("Number of its pods that ended well."),
    failed=count("Number of its pods that failed."),
)

QUEUE_SCHEMA: Final = whole_object(
    "A share of the cluster for the PodGroups that name it.",
    spec=_QUEUE_SPEC,
    status=_QUEUE_STATUS,
)
POD_GROUP_SCHEMA: Final = whole_object(
    "Pods that start together or not at all.", spec=_POD_GROUP_SPEC, status=_POD_GROUP_STATUS
)

_GPU: Final = r"nvidia\.com/gpu"
_WIDE: Final = {"priority": 1}


def _column(heading: str, path: str, kind: str = "string") -> dict[str, Any]:
    return {"name": heading, "type": kind, "jsonPath": path}


_QUEUE_COLUMNS: Final = [
    _column("STATE", ".status.state"),
    _column("WEIGHT", ".spec.weight", "integer"),
    _column("PARENT", ".spec.parent"),
    _column("CPU-ALLOCATED", ".status.allocated.cpu"),
    _column("CPU-DESERVED", ".spec.deserved.cpu"),
    _column("CPU-CAPABILITY", ".spec.capability.cpu"),
    _column("GPU-ALLOCATED", f".status.allocated.{_GPU}"),
    _column("GPU-DESERVED", f".spec.deserved.{_GPU}"),
    _column("GPU-CAPABILITY", f".spec.capability.{_GPU}"),
    _column("RUNNING", ".status.running", "integer"),
    _column("PENDING", ".status.pending", "integer"),
    _column("INQUEUE", ".status.inqueue", "integer") | _WIDE,
    _column("PRIORITY", ".spec.priority", "integer") | _WIDE,
    _column("RECLAIMABLE", ".spec.reclaimable", "boolean") | _WIDE,
    _column("AGE", ".metadata.creationTimestamp", "date"),
]
_POD_GROUP_COLUMNS: Final = [
    _column("STATUS", ".status.phase"),
    _column("minMember", ".spec.minMember", "integer"),
    _column("RUNNINGS", ".status.running", "integer"),
    _column("AGE", ".metadata.creationTimestamp", "date"),
    _column("QUEUE", ".spec.queue") | _WIDE,
    _column("REASON", '.status.conditions[?(@.type=="Unschedulable")].reason'),
]
_HYPER_NODE_COLUMNS: Final = [
    _column("Tier", ".spec.tier"),
    _column("TierName", ".spec.tierName"),
    _column("NodeCount", ".status.nodeCount", "integer"),
    _column("Age", ".metadata.creationTimestamp", "date"),
]
_AGE: Final = _column("AGE", ".metadata.creationTimestamp", "date")
_JOB_COLUMNS: Final = [
    _column("STATUS", ".status.state.phase"),
    _column("minAvailable", ".status.minAvailable", "integer"),
    _column("RUNNINGS", ".status.running", "integer"),
    _AGE,
    _column("QUEUE", ".spec.queue"),
    _column("REASON", ".status.state.reason"),
    _column("PENDING", ".status.pending", "integer") | _WIDE,
    _column("SUCCEEDED", ".status.succeeded", "integer") | _WIDE,
    _column("FAILED", ".status.failed", "integer") | _WIDE,
    _column("RETRIES", ".status.retryCount", "integer") | _WIDE,
    _column("PRIORITY-CLASS", ".spec.priorityClassName") | _WIDE,
    _column("DURATION", ".status.runningDuration") | _WIDE,
    _column("MESSAGE", ".status.state.message") | _WIDE,
]
_CRON_JOB_COLUMNS: Final = [
    _column("SCHEDULE", ".spec.schedule"),
    _column("TIMEZONE", ".spec.timeZone"),
    _column("SUSPEND", ".spec.suspend", "boolean"),
    _column("LAST-SCHEDULE", ".status.lastScheduleTime", "date"),
    _column("LAST-SUCCESS", ".status.lastSuccessfulTime", "date"),
    _AGE,
    _column("QUEUE", ".spec.jobTemplate.spec.queue") | _WIDE,
]
_COMMAND_COLUMNS: Final = [
    _column("ACTION", ".action"),
    _column("KIND", ".target.kind"),
    _column("TARGET", ".target.name"),
    _AGE,
]
_JOB_FLOW_COLUMNS: Final = [
    _column("Status", ".status.state.phase"),
    _column("Age", ".metadata.creationTimestamp", "date"),
]
_JOB_TEMPLATE_COLUMNS: Final = [
    _column("QUEUE", ".spec.queue"),
    _column("minAvailable", ".spec.minAvailable", "integer"),
    _AGE,
]

_DEFINITIONS: Final = {
    kinds.QUEUE: (QUEUE_SCHEMA, _QUEUE_COLUMNS),
    kinds.POD_GROUP: (POD_GROUP_SCHEMA, _POD_GROUP_COLUMNS),
    kinds.HYPER_NODE: (HYPER_NODE_SCHEMA, _HYPER_NODE_COLUMNS),
    kinds.NUMATOPOLOGY: (NUMATOPOLOGY_SCHEMA, []),
    kinds.NODE_SHARD: (NODE_SHARD_SCHEMA, [_AGE]),
    kinds.JOB: (JOB_SCHEMA, _JOB_COLUMNS),
    kinds.CRON_JOB: (CRON_JOB_SCHEMA, _CRON_JOB_COLUMNS),
    kinds.COMMAND: (COMMAND_SCHEMA, _COMMAND_COLUMNS),
    kinds.JOB_FLOW: (JOB_FLOW_SCHEMA, _JOB_FLOW_COLUMNS),
    kinds.JOB_TEMPLATE: (JOB_TEMPLATE_SCHEMA, _JOB_TEMPLATE_COLUMNS),
    kinds.COLOCATION_CONFIGURATION: (COLOCATION_CONFIGURATION_SCHEMA, [_AGE]),
}
CUSTOM_KINDS: Final = tuple(_DEFINITIONS)


def crd_name(kind: kinds.Kind) -> str:
    """The name of the definition of a custom kind."""
    return f"{kind.plural}.{kind.group}"


def custom_resource_definition(kind: kinds.Kind) -> dict[str, Any]:
    """The CustomResourceDefinition (apiextensions.k8s.io/v1) of one of CUSTOM_KINDS."""
    schema, columns = _DEFINITIONS[kind]
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}} if kind.has_status else {},
        **({"additionalPrinterColumns": columns} if columns else {}),
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": crd_name(kind)},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
                **({"categories": list(kind.categories)} if kind.categories else {}),
            },
            "versions": [version],
        },
    }
