"""Webhook configurations, which select the requests to review; their names are Volcano's.

The failure policy is Fail, so a request that cannot be reviewed is denied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import (
    MUTATING_WEBHOOK_CONFIGURATION,
    POD,
    VALIDATING_WEBHOOK_CONFIGURATION,
    Ref,
)

if TYPE_CHECKING:
    from optsched.admission.review import Raw
    from optsched.admission.services import Service

SERVICE_NAME: Final = "volcano-admission-service"
NAMESPACE: Final = "volcano-system"
PORT: Final = 443
TIMEOUT_S: Final = 10
_SYSTEM: Final = ("kube-system", NAMESPACE)


def configuration_ref(service: Service, name: str = SERVICE_NAME) -> Ref:
    """Return a reference to a path's webhook configuration; `name` names the Kubernetes Service."""
    kind = (
        MUTATING_WEBHOOK_CONFIGURATION if service.is_mutating else VALIDATING_WEBHOOK_CONFIGURATION
    )
    return Ref(kind, "", f"{name}{service.path.replace('/', '-')}")


def configuration(service: Service, namespace: str = NAMESPACE, name: str = SERVICE_NAME) -> Raw:
    """Return the webhook configuration of a path; the server adds the trusted CA later."""
    ref = configuration_ref(service, name)
    where = {"namespace": namespace, "name": name, "path": service.path, "port": PORT}
    kind = service.kind
    optional: dict[str, Any] = {}
    if kind == POD:
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
