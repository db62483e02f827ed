"""What containers ask for: amounts, limits, and resources of which nobody can have a part.

As k8s.io/kubernetes, pkg/apis/core/validation, validates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.names import QUALIFIED_RULE, is_qualified
from optsched.admission.pod_types import nanos_of

if TYPE_CHECKING:
    from optsched.admission.findings import Findings
    from optsched.admission.review import Raw

_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_HUGE_PAGES: Final = "hugepages-"
_NO_LIMIT: Final = "Limit must be set for non overcommitable resources"


def is_extended(resource: str) -> bool:
    """Whether a resource is a device of somebody's own, such as nvidia.com/gpu."""
    return "/" in resource and "kubernetes.io/" not in resource.removeprefix("requests.")


def allows_overcommit(resource: str) -> bool:
    """Whether requests for a resource may be lower than its limit."""
    return not is_extended(resource) and not resource.startswith(_HUGE_PAGES)


def check_resources(container: Raw, path: str, findings: Findings) -> None:
    """The requests and limits of one container."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for part, amounts in (("requests", requests), ("limits", limits)):
        for name, value in amounts.items():
            _check_amount(name, value, f"{path}.resources.{part}[{name}]", findings)
    for name, value in requests.items():
        _check_against_limit(name, value, limits, f"{path}.resources", findings)


def _check_amount(name: str, value: object, path: str, findings: Findings) -> None:
    nanos = nanos_of(value)
    if not _is_resource(name):
        findings.invalid(path, name, f"no resource is called that: {_names_accepted()}")
    elif nanos < 0:
        findings.invalid(path, value, "must be greater than or equal to 0")
    elif is_extended(name) and nanos % 10**9:
        findings.invalid(path, value, f"must be an integer: nobody can have a part of {name}")


def _is_resource(name: str) -> bool:
    if name in _NATIVE or name.startswith(_HUGE_PAGES):
        return True
    return "/" in name and is_qualified(name)


def _names_accepted() -> str:
    others = QUALIFIED_RULE.removeprefix("write ")
    return f"write cpu, memory, ephemeral-storage, hugepages-<size>, or {others}"


def _check_against_limit(
    name: str,
    value: object,
    limits: dict[str, Any],
    path: str,
    findings: Findings,
) -> None:
    if name not in limits:
        if not allows_overcommit(name):
            findings.required(f"{path}.limits", f"{_NO_LIMIT}: write limits[{name}] as in requests")
        return
    asked, most = nanos_of(value), nanos_of(limits[name])
    where = f"{path}.requests[{name}]"
    if allows_overcommit(name) and asked > most:
        sentence = f"must be less than or equal to {name} limit of {limits[name]}"
        findings.invalid(where, value, sentence)
    elif not allows_overcommit(name) and asked != most:
        findings.invalid(where, value, f"must be equal to {name} limit of {limits[name]}")
