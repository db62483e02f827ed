"""Schemas of core Kubernetes kinds, with the fields that matter for scheduling.

Names, defaults and enums are those of k8s.io/api (core/v1, storage/v1, meta/v1). Fields that no
scheduler reads are not declared.
"""

from __future__ import annotations

from typing import Final

from optsched.api.fields import (
    Schema,
    amounts,
    boolean,
    integer,
    listing,
    mapping,
    non_negative,
    record,
    text,
    texts,
)

NODE_NAME_FIELD: Final = "metadata.name"

_TEXTS_BY_NAME: Final = mapping("", text())
_OPERATORS: Final = ["In", "NotIn", "Exists", "DoesNotExist"]
_EFFECTS: Final = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
_POLICIES: Final = ["Honor", "Ignore"]
_VOLUME_MODES: Final = ["Filesystem", "Block"]
_MAX_PORT: Final = 65535


def _condition(keys: Schema, operators: list[str]) -> Schema:
    choice = text(enum=operators)
    return record("", ("key", "operator"), key=keys, operator=choice, values=texts())


LABEL_SELECTOR: Final = record(
    matchLabels=_TEXTS_BY_NAME, matchExpressions=listing("", _condition(text(), _OPERATORS))
)
NODE_TERM: Final = record(
    matchExpressions=listing("", _condition(text(), [*_OPERATORS, "Gt", "Lt"])),
    matchFields=listing("", _condition(text(enum=[NODE_NAME_FIELD]), ["In", "NotIn"])),
)
NODE_SELECTOR: Final = record(nodeSelectorTerms=listing("", NODE_TERM))

_POD_TERM: Final = record(
    "",
    ("topologyKey",),
    labelSelector=LABEL_SELECTOR,
    namespaces=texts(),
    namespaceSelector=LABEL_SELECTOR,
    topologyKey=text(),
    matchLabelKeys=texts(),
    mismatchLabelKeys=texts(),
)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def _preference(name: str, term: Schema) -> Schema:
    return listing("", record("", ("weight", name), **{"weight": integer(), name: term}))


_POD_TERMS: Final = record(
    **{_REQUIRED: listing("", _POD_TERM), _PREFERRED: _preference("podAffinityTerm", _POD_TERM)}
)
_NODE_TERMS: Final = record(
    **{_REQUIRED: NODE_SELECTOR, _PREFERRED: _preference("preference", NODE_TERM)}
)
_SPREAD: Final = record(
    "",
    ("maxSkew", "topologyKey", "whenUnsatisfiable"),
    maxSkew=integer(minimum=1),
    topologyKey=text(),
    whenUnsatisfiable=text(enum=["DoNotSchedule", "ScheduleAnyway"]),
    labelSelector=LABEL_SELECTOR,
    minDomains=integer(minimum=1, default=1),
    nodeAffinityPolicy=text(enum=_POLICIES, default="Honor"),
    nodeTaintsPolicy=text(enum=_POLICIES, default="Ignore"),
    matchLabelKeys=texts(),
)
_RESOURCES: Final = record(requests=amounts(), limits=amounts())
_PORT: Final = record(
    containerPort=non_negative(maximum=_MAX_PORT),
    hostPort=non_negative(maximum=_MAX_PORT),
    hostIP=text(default="0.0.0.0"),  # noqa: S104
    protocol=text(enum=["TCP", "UDP", "SCTP"], default="TCP"),
)
_CONTAINER: Final = record(
    name=text(), restartPolicy=text(), resources=_RESOURCES, ports=listing("", _PORT)
)
_CONTAINER_STATUS: Final = record(name=text(), allocatedResources=amounts(), resources=_RESOURCES)

POD: Final = record(
    spec=record(
        containers=listing("", _CONTAINER),
        initContainers=listing("", _CONTAINER),
        overhead=amounts(),
        resources=_RESOURCES,
        nodeSelector=_TEXTS_BY_NAME,
        preemptionPolicy=text(enum=["Never", "PreemptLowerPriority"]),
        affinity=record(
            nodeAffinity=_NODE_TERMS, podAffinity=_POD_TERMS, podAntiAffinity=_POD_TERMS
        ),
        tolerations=listing(
            "",
            record(
                key=text(),
                operator=text(enum=["Equal", "Exists"], default="Equal"),
                value=text(),
                effect=text(enum=_EFFECTS),
            ),
        ),
        topologySpreadConstraints=listing("", _SPREAD),
        hostNetwork=boolean(),
        volumes=listing(
            "",
            record(
                name=text(),
                persistentVolumeClaim=record("", ("claimName",), claimName=text()),
                ephemeral=record(),
            ),
        ),
        schedulerName=text(default="default-scheduler"),
        nodeName=text(),
        priority=integer(),
        priorityClassName=text(),
        schedulingGates=listing("", record(name=text())),
    ),
    status=record(
        phase=text(),
        nominatedNodeName=text(),
        containerStatuses=listing("", _CONTAINER_STATUS),
        initContainerStatuses=listing("", _CONTAINER_STATUS),
        conditions=listing("", record(type=text(), reason=text())),
    ),
)

NODE: Final = record(
    spec=record(
        unschedulable=boolean(),
        taints=listing(
            "", record("", ("key", "effect"), key=text(), value=text(), effect=text(enum=_EFFECTS))
        ),
    ),
    status=record(
        allocatable=amounts(),
        capacity=amounts(),
        conditions=listing("", record(type=text(), status=text())),
    ),
)

BUDGET: Final = record(
    spec=record(selector=LABEL_SELECTOR), status=record(disruptionsAllowed=non_negative())
)
_SCOPES: Final = "Scopes of the counted pods; all pods if empty."
QUOTA: Final = record(
    spec=record(hard=amounts(), scopes=texts(_SCOPES), scopeSelector=record(_SCOPES)),
    status=record(hard=amounts(), used=amounts()),
)
CLAIM: Final = record(
    spec=record(
        volumeName=text(),
        storageClassName=text(),
        accessModes=texts(),
        volumeMode=text(enum=_VOLUME_MODES, default="Filesystem"),
        resources=_RESOURCES,
        selector=LABEL_SELECTOR,
    ),
    status=record(phase=text()),
)
VOLUME: Final = record(
    spec=record(
        storageClassName=text(),
        capacity=amounts(),
        accessModes=texts(),
        volumeMode=text(enum=_VOLUME_MODES, default="Filesystem"),
        claimRef=record(namespace=text(), name=text(), uid=text()),
        nodeAffinity=record(required=NODE_SELECTOR),
        csi=record(driver=text(), volumeHandle=text()),
    ),
    status=record(phase=text()),
)
CSI_NODE: Final = record(
    spec=record(
        drivers=listing(
            "", record("", ("name",), name=text(), allocatable=record(count=non_negative()))
        )
    )
)
STORAGE_CLASS: Final = record(
    provisioner=text(),
    volumeBindingMode=text(enum=["Immediate", "WaitForFirstConsumer"], default="Immediate"),
    allowedTopologies=listing(
        "",
        record(
            matchLabelExpressions=listing(
                "", record("", ("key", "values"), key=text(), values=texts())
            )
        ),
    ),
)

_EXPRESSIONS: Final = listing("", record(cel=record(expression=text())))
_EXACTLY: Final[dict[str, Schema]] = {
    "deviceClassName": text(),
    "allocationMode": text(enum=["ExactCount", "All"], default="ExactCount"),
    "count": integer(minimum=1, default=1),
    "adminAccess": boolean(),
    "selectors": _EXPRESSIONS,
    "tolerations": listing(
        "",
        record(
            key=text(),
            operator=text(enum=["Exists", "Equal"], default="Equal"),
            value=text(),
            effect=text(enum=["NoSchedule", "NoExecute"]),
        ),
    ),
    "capacity": record(requests=amounts()),
}
_DEVICE_RESULT: Final = record(
    "",
    ("driver", "pool", "device"),
    request=text(),
    driver=text(),
    pool=text(),
    device=text(),
    adminAccess=boolean(),
)
DEVICE_CLAIM: Final = record(
    spec=record(
        devices=record(
            requests=listing(
                "",
                record(
                    "",
                    ("name",),
                    name=text(),
                    exactly=record(**_EXACTLY),
                    firstAvailable=listing("", record("", ("name",), name=text(), **_EXACTLY)),
                    **_EXACTLY,
                ),
            ),
            constraints=listing(
                "", record(requests=texts(), matchAttribute=text(), distinctAttribute=text())
            ),
        )
    ),
    status=record(
        allocation=record(
            devices=record(results=listing("", _DEVICE_RESULT)), nodeSelector=NODE_SELECTOR
        ),
        reservedFor=listing("", record(resource=text(), name=text(), uid=text())),
    ),
)
DEVICE_CLASS: Final = record(spec=record(selectors=_EXPRESSIONS, config={}))
_DEVICE: Final[dict[str, Schema]] = {
    "attributes": mapping("", record(string=text(), bool=boolean(), int=integer(), version=text())),
    "capacity": mapping("", record(value=text())),
    "consumesCounters": listing("", record()),
    "taints": listing("", record(key=text(), value=text(), effect=text())),
    "bindsToNode": boolean(),
    "bindingConditions": texts(),
    "allowMultipleAllocations": boolean(),
}
RESOURCE_SLICE: Final = record(
    spec=record(
        "",
        ("driver", "pool"),
        driver=text(),
        pool=record(
            "",
            ("name",),
            name=text(),
            generation=integer(minimum=0, format="int64"),
            resourceSliceCount=integer(minimum=1, default=1),
        ),
        nodeName=text(),
        devices=listing("", record("", ("name",), name=text(), basic=record(**_DEVICE), **_DEVICE)),
    )
)
