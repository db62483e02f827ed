"""ResourceQuotas with scopes; a scope restricts a quota to some pods of its namespace.

Snapshots omit quotas with scopes, because scopes select pods by fields that PodGroups lack.
`what-if` knows the pods. Source: `podMatchesScopeFunc` in k8s.io/kubernetes,
pkg/quota/v1/evaluator/core/pods.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.json_fields import records, subobject
from optsched.api.kinds import RESOURCE_QUOTA, kind_of
from optsched.formats.codec.pod_limits import parse_quota
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.cluster.snapshot import Quota

    Raw = Mapping[str, Any]

_SCOPES: Final = ("scopes", "scopeSelector")
_TERMS: Final = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


@dataclass(frozen=True, slots=True)
class ScopedQuota:
    """A ResourceQuota with scopes; it limits only pods that match all `expressions`."""

    quota: Quota
    expressions: tuple[Raw, ...]

    def counts(self, pod: Raw) -> bool:
        """Return whether a pod in the quota's namespace counts towards the quota."""
        return all(_matches(pod["spec"], expression) for expression in self.expressions)


def read_quotas(objects: Iterable[Raw]) -> list[ScopedQuota]:
    """Return the ResourceQuotas among the given objects, with their scopes."""
    found = []
    for obj in objects:
        spec = obj.get("spec")
        if kind_of(obj) != RESOURCE_QUOTA or not isinstance(spec, dict):
            continue
        plain = {name: value for name, value in spec.items() if name not in _SCOPES}
        quota, _ = parse_quota({**obj, "spec": plain})
        if quota is None:
            continue
        scopes = spec.get("scopes")
        expressions = (
            *(
                {"scopeName": scope, "operator": "Exists"}
                for scope in (scopes if isinstance(scopes, list) else ())
            ),
            *records(subobject(spec, "scopeSelector"), "matchExpressions"),
        )
        found.append(ScopedQuota(quota, expressions))
    return found


def _matches(spec: Raw, expression: Raw) -> bool:
    """Return whether a pod matches an expression; False for scopes that do not select pods."""
    match expression.get("scopeName"):
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            return _has_class(str(spec.get("priorityClassName") or ""), expression)
        case "CrossNamespacePodAffinity":
            affinity = subobject(spec, "affinity")
            terms = [
                subobject(term, "podAffinityTerm") or term
                for kind in ("podAffinity", "podAntiAffinity")
                for name in _TERMS
                for term in records(subobject(affinity, kind), name)
            ]
            return any(
                term.get("namespaces") or term.get("namespaceSelector") is not None
                for term in terms
            )
        case _:
            return False


def _is_best_effort(spec: Raw) -> bool:
    """Return whether no container requests or limits CPU or memory."""
    containers = [*records(spec, "containers"), *records(spec, "initContainers"), spec]
    return not any(
        str(amount) != "0"
        for container in containers
        for listed in ("requests", "limits")
        for name, amount in subobject(subobject(container, "resources"), listed).items()
        if name in (CPU, MEMORY)
    )


def _has_class(name: str, expression: Raw) -> bool:
    given = expression.get("values")
    values = given if isinstance(given, list) else []
    match expression.get("operator"):
        case "In":
            return name != "" and name in values
        case "NotIn":
            return name not in values
        case "DoesNotExist":
            return name == ""
        case _:
            return name != ""
