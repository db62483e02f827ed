"""Webhooks: the review function of each path, and the webhook configurations.

Paths and names are Volcano's. The failure policy is Fail, so a request that cannot be reviewed is
denied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.admission import jobflows, jobs, podgroups, pods, queues
from optsched.admission.findings import MAX_MEMBERS, Review, ReviewEnded, check_shape, get_mapping
from optsched.admission.review import Action, Response
from optsched.admission.submitters import record_author
from optsched.admission.tenant_rules import GUARDED, RESERVED, RESERVED_PREFIX, SYSTEM_CLASSES
from optsched.api import kinds
from optsched.api.hypernode import parse_hypernode
from optsched.api.wellknown import (
    EVICTED,
    HIERARCHY,
    HIERARCHY_WEIGHTS,
    MOVES,
    SHUFFLED_BY,
    SUBMITTER,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.admission.review import Raw, Request
    from optsched.admission.world import Settings, World
    from optsched.api.kinds import Kind

SERVICE_NAME: Final = "volcano-admission-service"
NAMESPACE: Final = "volcano-system"
PORT: Final = 443
TIMEOUT_S: Final = 10
_SYSTEM: Final = ("kube-system", NAMESPACE)
_CREATE: Final = (Action.CREATE,)
_CHANGES: Final = (Action.CREATE, Action.UPDATE)
_ALL: Final = tuple(Action)
_BUDGETS: Final = "['volcano.sh/jdb-min-available', 'volcano.sh/jdb-max-unavailable']"
_QUEUE_ANNOTATIONS: Final = (
    "scheduling.volcano.sh/queue-name",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
)
"""Pod annotations that determine the pod's queue."""
_RECORD: Final = f"'{SUBMITTER}'"
CONTROLLERS: Final = (
    "system:serviceaccount:volcano-system:optsched-controllers",
    "system:serviceaccount:volcano-system:volcano-controllers",
)
"""Service accounts of the job controllers, which create pods only for jobs that were reviewed."""
_SCHEDULERS: Final = (
    "system:serviceaccount:volcano-system:optsched-scheduler",
    "system:serviceaccount:volcano-system:volcano-scheduler",
)
_BY_CONTROLLERS: Final = f"request.userInfo.username in {list(CONTROLLERS)}"
_ANNOTATIONS: Final = [*_QUEUE_ANNOTATIONS, *GUARDED, *RESERVED, SUBMITTER]
_OWNED: Final = "object.metadata.?ownerReferences.orValue([])"
_IS_RELEVANT: Final = (
    "object.metadata.?annotations.orValue({}).exists(key, "
    f"key in {_ANNOTATIONS} || key.startsWith('{RESERVED_PREFIX}')) || "
    f"object.metadata.?labels.orValue({{}}).exists(key, key in {list(GUARDED)}) || "
    "object.?spec.?schedulingGroup.hasValue() || "
    "object.?spec.?schedulerName.orValue('default-scheduler') != 'default-scheduler' || "
    f"object.?spec.?priorityClassName.orValue('').startsWith('{SYSTEM_CLASSES}') || "
    f"{_OWNED}.exists(owner, owner.kind == '{kinds.JOB.kind}' && "
    f"owner.apiVersion.startsWith('{kinds.JOB.group}/'))"
)


def _differs(field: str, keys: Sequence[str]) -> str:
    """Return a CEL expression that is true if an update changes an annotation or label in `keys`.

    `field` is `annotations` or `labels`.
    """
    return (
        f"{list(keys)}.exists(key, object.metadata.?{field}[?key].orValue('') "
        f"!= oldObject.metadata.?{field}[?key].orValue(''))"
    )


def _differs_below(prefix: str) -> str:
    """Return a CEL expression that is true if an update changes an annotation with a key prefix."""
    return (
        "[object, oldObject].exists(one, [object, oldObject].exists(other, "
        "one.metadata.?annotations.orValue({}).exists(key, "
        f"key.startsWith('{prefix}') && one.metadata.annotations[key] "
        "!= other.metadata.?annotations[?key].orValue(''))))"
    )


_PODS_TO_VALIDATE: Final = (
    f"request.operation == 'CREATE' ? ({_BUDGETS}.exists(key, "
    "object.metadata.?annotations[?key].hasValue()) "
    f"|| (!({_BY_CONTROLLERS}) && ({_IS_RELEVANT}))) : ({_differs('annotations', _ANNOTATIONS)} || "
    f"{_differs('labels', GUARDED)} || {_differs_below(RESERVED_PREFIX)} || "
    f"{_OWNED} != {_OWNED.replace('object', 'oldObject')})"
)
"""CEL condition for the pods to validate; the API server sends no request for other pods."""
GATE_ASKED: Final = (
    "object.metadata.?annotations[?'scheduling.volcano.sh/queue-allocation-gate']"
    ".orValue('') == 'true'"
)
RECORDED: Final = (
    f"{GATE_ASKED} || (!({_BY_CONTROLLERS}) && (object.metadata.?annotations[?{_RECORD}]"
    ".hasValue() || object.?spec.?schedulerName.orValue('default-scheduler') "
    "!= 'default-scheduler'))"
)
"""CEL condition for the pods that `/pods/mutate` reviews.

Administrators who use resource groups remove the condition, so that all pods are reviewed.
"""
_CHANGED_HIERARCHIES: Final = (
    f"request.operation != 'UPDATE' || {_differs('annotations', (HIERARCHY, HIERARCHY_WEIGHTS))}"
)
"""CEL condition for the queues that `/queues/mutate` reviews."""
_CHANGED_POD_GROUPS: Final = (
    "request.operation != 'UPDATE' || "
    "object.?spec.orValue({}) != oldObject.?spec.orValue({}) || "
    f"object.metadata.?annotations[?{_RECORD}].orValue('') != "
    f"oldObject.metadata.?annotations[?{_RECORD}].orValue('') || "
    f"{_differs('annotations', GUARDED)} || {_differs('labels', GUARDED)} || "
    f"(!(request.userInfo.username in {[*_SCHEDULERS, *CONTROLLERS]}) && "
    "(object.?status.orValue({}) != oldObject.?status.orValue({}) || "
    f"{_differs('annotations', (EVICTED, MOVES))} || {_differs_below(SHUFFLED_BY)}))"
)
"""CEL condition for the PodGroups to review; it excludes the frequent writes by schedulers.

Schedulers often write the status and annotations of PodGroups, and evictions must not wait for the
webhook server.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A webhook at one path: the reviewed kind and actions, and the review function.

    `name` is the webhook's name. `condition` is a CEL expression that selects requests; if it is
    empty, all requests are reviewed. `versions` holds further API versions of the reviewed kind,
    because clusters serve different API versions.
    """

    path: str
    name: str
    kind: Kind
    actions: tuple[Action, ...]
    review: Callable[[Review], None]
    condition: str = ""
    versions: tuple[str, ...] = ()

    @property
    def is_mutating(self) -> bool:
        """Whether reviews at this path may change objects."""
        return self.path.endswith("/mutate")


def _changes(
    path: str, name: str, kind: Kind, review: Callable[[Review], None], condition: str = ""
) -> Service:
    """Return a service that reviews the creation and update of objects of one kind."""
    return Service(path, f"{name}.volcano.sh", kind, _CHANGES, review, condition)


def _validate_hypernode(review: Review) -> None:
    """Deny an invalid HyperNode (pkg/webhooks/admission/hypernodes)."""
    if review.is_spec_changed:
        members = get_mapping(review.request.obj, "spec").get("members")
        if isinstance(members, list):
            review.check_count("spec.members", len(members), MAX_MEMBERS)
        review.errors(parse_hypernode(jobs.as_parsed(review.request))[1])


_POD_GROUP: Final = kinds.POD_GROUP
_UPSTREAM: Final = kinds.SCHEDULING_POD_GROUPS
SERVICES: Final = (
    _changes("/jobs/mutate", "mutatejob", kinds.JOB, jobs.mutate),
    _changes("/jobs/validate", "validatejob", kinds.JOB, jobs.validate),
    _changes("/queues/mutate", "mutatequeue", kinds.QUEUE, queues.mutate, _CHANGED_HIERARCHIES),
    Service("/queues/validate", "validatequeue.volcano.sh", kinds.QUEUE, _ALL, queues.validate),
    _changes(
        "/podgroups/mutate", "mutatepodgroup", _POD_GROUP, podgroups.mutate, _CHANGED_POD_GROUPS
    ),
    _changes(
        "/podgroups/validate",
        "validatepodgroup",
        _POD_GROUP,
        podgroups.validate,
        _CHANGED_POD_GROUPS,
    ),
    Service("/pods/mutate", "mutatepod.volcano.sh", kinds.POD, _CREATE, pods.mutate, RECORDED),
    _changes("/pods/validate", "validatepod", kinds.POD, pods.validate, _PODS_TO_VALIDATE),
    _changes("/hypernodes/validate", "validatehypernodes", kinds.HYPER_NODE, _validate_hypernode),
    _changes("/jobflows/mutate", "mutatejobflow", kinds.JOB_FLOW, record_author),
    _changes("/jobflows/validate", "validatejobflow", kinds.JOB_FLOW, jobflows.validate),
    _changes("/jobtemplates/mutate", "mutatejobtemplate", kinds.JOB_TEMPLATE, record_author),
    _changes(
        "/jobtemplates/validate",
        "validatejobtemplate",
        kinds.JOB_TEMPLATE,
        jobflows.validate_template,
    ),
    _changes("/cronjobs/mutate", "mutatecronjob", kinds.CRON_JOB, record_author),
    _changes("/cronjobs/validate", "validatecronjob", kinds.CRON_JOB, jobflows.validate_cronjob),
    *(
        replace(
            _changes(f"/schedulinggroups/{verb}", f"{verb}schedulinggroup", _UPSTREAM[0], review_),
            versions=tuple(kind.version for kind in _UPSTREAM[1:]),
        )
        for verb, review_ in (
            ("mutate", podgroups.mutate_upstream),
            ("validate", podgroups.validate_upstream),
        )
    ),
    _changes("/commands/validate", "validatecommand", kinds.COMMAND, queues.validate_command),
)
DEFAULT_PATHS: Final = tuple(service.path for service in SERVICES)
SERVICE_OF: Final = {service.path: service for service in SERVICES}


def review(service: Service, request: Request, world: World, settings: Settings) -> Response:
    """Return the response to a request; deny kinds and actions that the service does not review."""
    problem = _find_misuse(service, request)
    if problem:
        return Response((problem,))
    found = Review(request, world, settings)
    try:
        check_shape(request.obj, "object", found)
        check_shape(request.old, "oldObject", found)
        service.review(found)
    except ReviewEnded:
        # The request is denied in any case, so the API server need not answer any question.
        return replace(found.response(), questions=())
    return found.response()


def _find_misuse(service: Service, request: Request) -> str:
    """Return why a service cannot review a request, or an empty string if the service can."""
    kind, resource = service.kind, request.resource
    is_known = resource.version in (kind.version, *service.versions)
    if (resource.group, resource.plural) != (kind.group, kind.plural) or not is_known:
        expected = f"{kind.plural}.{kind.version}.{kind.group}".rstrip(".")
        return f"{service.path} reviews {expected}, not {resource}"
    if request.action not in service.actions:
        expected = ", ".join(service.actions)
        return f"{service.path} reviews {expected}, not {request.action}"
    if request.obj is None and request.action is not Action.DELETE:
        return f"{service.path} needs the new object"
    if request.old is None and request.action is Action.UPDATE:
        return f"{service.path} needs the old object"
    if not request.name and request.action is Action.DELETE:
        return f"{service.path} needs the name of the object to delete"
    return ""


def configuration_ref(service: Service, name: str = SERVICE_NAME) -> kinds.Ref:
    """Return a reference to a webhook configuration; `name` is that of the Kubernetes Service."""
    kind = (
        kinds.MUTATING_WEBHOOK_CONFIGURATION
        if service.is_mutating
        else kinds.VALIDATING_WEBHOOK_CONFIGURATION
    )
    return kinds.Ref(kind, "", f"{name}{service.path.replace('/', '-')}")


def configuration(service: Service, namespace: str = NAMESPACE, name: str = SERVICE_NAME) -> Raw:
    """Return the webhook configuration of a path; the server adds the trusted CA later."""
    ref = configuration_ref(service, name)
    where = {"namespace": namespace, "name": name, "path": service.path, "port": PORT}
    kind = service.kind
    optional: dict[str, Any] = {}
    if kind == kinds.POD:
        # System pods must start even while the webhook server is down.
        expression = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": list(_SYSTEM),
        }
        optional["namespaceSelector"] = {"matchExpressions": [expression]}
    if service.condition:
        condition = {"name": "matters", "expression": service.condition}
        optional["matchConditions"] = [condition]
    return {
        "apiVersion": ref.kind.api_version,
        "kind": ref.kind.kind,
        "metadata": {"name": ref.name},
        "webhooks": [
            {
                "name": service.name,
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": where},
                "rules": [
                    {
                        "apiGroups": [kind.group],
                        "apiVersions": [kind.version, *service.versions],
                        "resources": [kind.plural],
                        "operations": [action.value for action in service.actions],
                        "scope": "Namespaced" if kind.namespaced else "Cluster",
                    }
                ],
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "sideEffects": "None",
                "timeoutSeconds": TIMEOUT_S,
                **optional,
            }
        ],
    }
