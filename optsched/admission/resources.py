"""What containers ask for: amounts, limits, and resources of which nobody can have a part.

As k8s.io/kubernetes, pkg/apis/core/validation, validates it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.names import QUALIFIED_RULE, is_qualified
from optsched.admission.pod_types import nanos_of
from optsched.units import QuantityError

if TYPE_CHECKING:
    from optsched.admission.findings import Findings
    from optsched.admission.parts import Part
    from optsched.admission.review import Raw

_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OF_PODS: Final = ("cpu", "memory")
_HUGE_PAGES: Final = "hugepages-"
_NANO: Final = 10**9
_QUOTAS: Final = "requests."
"""How quotas name what is asked for; no container may."""
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
    _check_pages({*requests, *limits}, f"{path}.resources", findings)


def _check_pages(resources: set[str], path: str, findings: Findings) -> None:
    has_pages = any(name.startswith(_HUGE_PAGES) for name in resources)
    if has_pages and resources.isdisjoint(_OF_PODS):
        findings.deny(
            f"{path}: Forbidden: HugePages require cpu or memory: ask for one of them too"
        )


def check_pod_resources(spec: Part, containers: list[Part]) -> None:
    """What a pod costs, and asks for as a whole: no less than what its containers ask for.

    containers: all of them, those that start it too.
    """
    overhead = spec.raw.get("overhead") or {}
    for name, value in overhead.items():
        _check_amount(name, value, f"{spec.path}.overhead[{name}]", spec.findings)
    _check_pages({*overhead}, f"{spec.path}.overhead", spec.findings)
    resources = spec.part("resources")
    if resources is None:
        return
    for part in ("requests", "limits"):
        for name, value in (resources.raw.get(part) or {}).items():
            path = f"{resources.path}.{part}[{name}]"
            if name not in _OF_PODS and not name.startswith(_HUGE_PAGES):
                resources.findings.invalid(path, name, "write cpu, memory or hugepages-<size>")
            else:
                _check_amount(name, value, path, resources.findings)
    if resources.has("claims"):
        resources.forbidden("claims", "may not be set for a pod as a whole: leave them out")
    if not resources.findings.has_problems:
        _check_whole(resources, containers)
        _check_sums(resources, list(spec.parts("containers")))


def _check_whole(resources: Part, containers: list[Part]) -> None:
    requests = resources.raw.get("requests") or {}
    limits = resources.raw.get("limits") or {}
    for name, value in requests.items():
        _check_against_limit(name, value, limits, resources.path, resources.findings)
    named = {*requests, *limits}
    if limits:
        # Where a pod has limits, what its containers ask for counts as asked for by it.
        for container in containers:
            named |= _asked(container.raw.get("resources") or {}).keys()
    _check_pages(named, resources.path, resources.findings)


def _check_sums(resources: Part, containers: list[Part]) -> None:
    limits = _nanos(resources.raw.get("limits"))
    requests = _nanos(resources.raw.get("requests"))
    held: Counter[str] = Counter()
    for container in containers:
        held.update(_asked(container.raw.get("resources") or {}))
    for part, amounts in (("requests", requests), ("limits", limits)):
        for name, amount in amounts.items():
            if part == "limits" and (name in requests or name not in _OF_PODS):
                continue
            if held[name] > amount:
                resources.findings.invalid(
                    f"{resources.path}.{part}[{name}]",
                    resources.raw[part][name],
                    "must be greater than or equal to what the containers ask for together",
                )
    for container in containers:
        own = (container.raw.get("resources") or {}).get("limits") or {}
        for name, amount in _nanos(own).items():
            if amount > limits.get(name, amount):
                path = f"{container.path}.resources.limits[{name}]"
                most = resources.raw["limits"][name]
                container.findings.invalid(path, own[name], f"must be at most {most}, as the pod")


def _asked(resources: Raw) -> dict[str, int]:
    """What a container asks for; where only its limit is there, that."""
    return {**_nanos(resources.get("limits")), **_nanos(resources.get("requests"))}


def _nanos(amounts: Raw | None) -> dict[str, int]:
    return {name: nanos_of(_or_zero(value)) for name, value in (amounts or {}).items()}


def _or_zero(value: object) -> object:
    """An amount; null is zero, as it is for Go."""
    return "0" if value is None else value


def _check_amount(name: str, value: object, path: str, findings: Findings) -> None:
    nanos = nanos_of(_or_zero(value))
    if not _is_resource(name):
        findings.invalid(path, name, f"no resource is called that: {_names_accepted()}")
    elif nanos < 0:
        findings.invalid(path, value, "must be greater than or equal to 0")
    elif is_extended(name) and nanos % _NANO:
        findings.invalid(path, value, f"must be an integer: nobody can have a part of {name}")
    elif name.startswith(_HUGE_PAGES) and not _is_divisible(name, nanos):
        size = name.removeprefix(_HUGE_PAGES)
        findings.invalid(path, value, f"must be a whole number of pages of {size}")


def _is_divisible(resource: str, nanos: int) -> bool:
    try:
        page = nanos_of(resource.removeprefix(_HUGE_PAGES))
    except QuantityError:
        return False
    return page > 0 and page % _NANO == 0 and -(-nanos // _NANO) % (page // _NANO) == 0


def _is_resource(name: str) -> bool:
    if name in _NATIVE or name.startswith(_HUGE_PAGES):
        return True
    if "/" not in name or not is_qualified(name):
        return False
    return "kubernetes.io/" in name or not name.startswith(_QUOTAS)


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
    asked, most = nanos_of(_or_zero(value)), nanos_of(_or_zero(limits[name]))
    where = f"{path}.requests[{name}]"
    if allows_overcommit(name) and asked > most:
        sentence = f"must be less than or equal to {name} limit of {limits[name]}"
        findings.invalid(where, value, sentence)
    elif not allows_overcommit(name) and asked != most:
        findings.invalid(where, value, f"must be equal to {name} limit of {limits[name]}")
