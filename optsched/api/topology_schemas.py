"""The schemas of HyperNodes, Numatopologies and NodeShards; names, limits and checks are Volcano's.

Source: staging/src/volcano.sh/apis, topology/v1alpha1/hypernode_types.go,
nodeinfo/v1alpha1/numatopo_types.go and shard/v1alpha1/types.go.
"""

from __future__ import annotations

from typing import Final

from optsched.api.schema import (
    NAME_PATTERN,
    Schema,
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

_CONDITION_STATES: Final = ["True", "False", "Unknown"]
_REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
_QUALIFIED: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)


def _number(description: str, **rules: object) -> Schema:
    """A whole number of any size, as Go's `int`."""
    return {"description": description, "type": "integer", **rules}


NETWORK_TOPOLOGY: Final = record(
    "How far apart in the network the tasks may be.",
    mode=text(
        "Whether the limit is a rule (hard) or a wish (soft).",
        enum=["hard", "soft"],
        default="hard",
    ),
    highestTierAllowed={
        "description": "Highest tier of the network that the tasks may cross.",
        "type": "integer",
        "minimum": 0,
    },
    highestTierName=name("The same limit by the name of the tier."),
)

_SELECTOR: Final = record(
    "Which nodes or HyperNodes are members; exactly one way of saying so.",
    exactMatch=record(
        "The member of this name.",
        ("name",),
        name=name("Name of the node or HyperNode.", minLength=1, pattern=NAME_PATTERN),
    ),
    regexMatch=record(
        "All nodes whose name a pattern finds; not for HyperNodes.",
        ("pattern",),
        pattern=text("A regular expression that is looked for in the name.", minLength=1),
    ),
    labelMatch=label_selector("All nodes with these labels; not for HyperNodes."),
) | {
    "x-kubernetes-validations": [
        {
            "message": "say exactMatch, regexMatch or labelMatch",
            "rule": "has(self.exactMatch) || has(self.regexMatch) || has(self.labelMatch)",
        },
        {
            "message": "say only one of exactMatch, regexMatch and labelMatch",
            "rule": "(has(self.exactMatch) ? 1 : 0) + (has(self.regexMatch) ? 1 : 0)"
            " + (has(self.labelMatch) ? 1 : 0) <= 1",
        },
    ]
}

_MEMBER: Final = record(
    "Nodes, or one HyperNode of a lower tier.",
    ("type",),
    type=text("Whether nodes or a HyperNode are meant.", enum=["Node", "HyperNode"]),
    selector=_SELECTOR,
)

_HYPER_NODE_SPEC: Final = record(
    "How far apart its nodes are, and which they are.",
    ("tier",),
    tier=_number("Distance in the network; a lower tier is closer together.", minimum=0),
    tierName=name("Name of the tier, such as rack."),
    members=listing("What belongs to it.", _MEMBER) | {"minItems": 1},
)

_HYPER_NODE_CONDITION: Final = record(
    "One fact about the HyperNode and since when it holds.",
    ("lastTransitionTime", "message", "reason", "status", "type"),
    type=text("What the fact is about.", maxLength=316, pattern=_QUALIFIED),
    status=text("Whether it holds: True, False or Unknown.", enum=_CONDITION_STATES),
    observedGeneration={
        "description": "Generation of the object in which it was found.",
        "type": "integer",
        "format": "int64",
        "minimum": 0,
    },
    lastTransitionTime=moment("When it was found."),
    reason=text("The cause in one word.", minLength=1, maxLength=1024, pattern=_REASON),
    message=text("The cause in a sentence for people.", maxLength=32768),
)

_HYPER_NODE_STATUS: Final = record(
    "What is known of the HyperNode at the moment.",
    conditions=listing("What is known about it.", _HYPER_NODE_CONDITION),
    nodeCount={
        "description": "Number of nodes in it, those of its members included.",
        "type": "integer",
        "format": "int64",
        "minimum": 0,
    },
)

_NUMATOPOLOGY_SPEC: Final = record(
    "What the node's agent says about its NUMA nodes.",
    policies=mapping("Policies of the kubelet's managers, by manager.", {"type": "string"}),
    resReserved=mapping("What the kubelet keeps for the system, by resource.", {"type": "string"}),
    numares=mapping(
        "Resources that are bound to NUMA nodes, by resource.",
        record(
            "One resource as its manager sees it.",
            allocatable=text("Units that are free, as a list of numbers and ranges."),
            capacity=_number("Units in all."),
        ),
    ),
    cpuDetail=mapping(
        "Place of each CPU, by its number.",
        record(
            "Place of one CPU.",
            numa=_number("Its NUMA node.", minimum=0),
            socket=_number("Its socket.", minimum=0),
            core=_number("Its physical core.", minimum=0),
        ),
    ),
    gpuDetail=mapping(
        "Place of each GPU, by its number.",
        record(
            "Place of one GPU.",
            numa=_number("Its NUMA node.", minimum=0),
            busID=text("Its address on the PCI bus."),
            deviceModel=text("What it is."),
        ),
    ),
    podAllocations=listing(
        "What pods hold of the resources above.",
        record(
            "What one pod holds.",
            uid=text("Uid of the pod."),
            name=text("Name of the pod."),
            namespace=text("Namespace of the pod."),
            containerAllocations=listing(
                "What each container holds.",
                {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            ),
        ),
    ),
)

HYPER_NODE_SCHEMA: Final = whole_object(
    "Nodes that are close to each other in the network.",
    spec=_HYPER_NODE_SPEC,
    status=_HYPER_NODE_STATUS,
)
NUMATOPOLOGY_SCHEMA: Final = whole_object(
    "The NUMA nodes of the node of the same name.", spec=_NUMATOPOLOGY_SPEC
)

NODE_SHARD_SCHEMA: Final = whole_object(
    "Nodes that one of several schedulers is to have for itself.",
    spec=record(
        "What the shard should be.",
        ("nodesDesired",),
        nodesDesired=texts("Names of the nodes that should be in the shard."),
    ),
    status=record(
        "What its scheduler makes of it at the moment.",
        lastUpdateTime=moment("When this was written."),
        nodesInUse=texts("Names of the nodes that its scheduler uses."),
        nodesToRemove=texts("Those in use that should no longer be in the shard."),
        nodesToAdd=texts("Those that should be in the shard and that another scheduler uses."),
    ),
)
