"""The resource request of a pod, computed as in Kubernetes.

Upstream: k8s.io/component-helpers, resource/helpers.go (`PodRequests`). Manifests that no API
server has stored get the API server's defaults (pkg/apis/core/v1/defaults.go, `SetDefaults_Pod`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.units import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.api.fields import Fields

_Amounts: TypeAlias = dict[str, int]

_LIMITED: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""Resources whose limits count towards ResourceQuotas."""
_SIDECAR: Final = "Always"
_RESIZE_PENDING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"


def pod_request(spec: Fields, status: Fields) -> _Amounts:
    """Return a pod's request in base units, keyed by resource, without zeros.

    `status` is the pod's status. If the kubelet has allocated more to a running pod than the spec
    requests, the allocated amounts apply (in-place resize, KEP-1287).
    """
    # The amounts that the kubelet has allocated, keyed by container name.
    allocated: dict[str, _Amounts] = {}
    for part in ("containerStatuses", "initContainerStatuses"):
        for each in status.records(part):
            current = each.amounts("allocatedResources")
            _raise_to(current, each.record("resources").amounts("requests"))
            if current or each.raw("resources") is not None:
                allocated[each.text("name")] = current
    conditions = status.records("conditions") if allocated else ()
    resize = next((c for c in conditions if c.text("type") == _RESIZE_PENDING), None)
    # The kubelet never applies a resize that it has rejected as infeasible.
    is_infeasible = resize is not None and resize.text("reason") == _INFEASIBLE
    total = _containers(
        spec, lambda container: _current_request(container, allocated, is_infeasible), own_request
    )
    # Pod-level requests and limits replace the sum over the containers (KEP-2837).
    resources = spec.record("resources")
    requests, limits = resources.amounts("requests"), resources.amounts("limits")
    for name, amount in limits.items():
        if name.startswith(HUGEPAGES_PREFIX) or (name in (CPU, MEMORY) and name not in total):
            total[name] = amount
    for name, amount in requests.items():
        if name.startswith(HUGEPAGES_PREFIX) or name in (CPU, MEMORY):
            total[name] = amount
    _add(total, spec.amounts("overhead"))
    return {name: amount for name, amount in total.items() if amount and name != PODS}


def pod_burst(spec: Fields, request: Mapping[str, int]) -> _Amounts:
    """Return by how much a pod's CPU and memory limits exceed its request.

    Resources without a limit are omitted. Volcano: `getPodCPURequestLimit`,
    `getPodMemRequestLimit` of the usage plugin.
    """
    limits = _pod_limits(spec)
    found = {name: limits.get(name, 0) - request.get(name, 0) for name in (CPU, MEMORY)}
    return {name: amount for name, amount in found.items() if amount > 0}


def pod_usage(spec: Fields, request: Mapping[str, int]) -> _Amounts:
    """Return the amounts by which a pod increases ResourceQuota usage, keyed by quota resource.

    The amounts include the pod's request. Kubernetes: `PodUsageFunc` in
    `pkg/quota/v1/evaluator/core`. Volcano also uses the names of quota resources in the
    `minResources` of PodGroups (`GetPodQuotaUsage`). A quota on limits therefore blocks a whole
    gang rather than some of its pods.
    """
    limits = _pod_limits(spec)
    return {
        **request,
        **{f"requests.{name}": amount for name, amount in request.items()},
        **{f"limits.{name}": limits[name] for name in _LIMITED if limits.get(name)},
        PODS: 1,
        "count/pods": 1,
    }


def _pod_limits(spec: Fields) -> _Amounts:
    limits = _containers(spec, _limits, _limits)
    limits.update(spec.record("resources").amounts("limits"))
    _add(limits, {n: amount for n, amount in spec.amounts("overhead").items() if limits.get(n)})
    return limits


def _limits(container: Fields) -> _Amounts:
    return {**container.record("resources").amounts("limits")}


def _containers(
    spec: Fields,
    request_of: Callable[[Fields], _Amounts],
    init_request_of: Callable[[Fields], _Amounts],
) -> _Amounts:
    """Return, per resource, the larger of the containers' total and the init containers' peak."""
    total: _Amounts = {}
    for container in spec.records("containers"):
        _add(total, request_of(container))
    sidecars: _Amounts = {}
    start: _Amounts = {}
    for container in spec.records("initContainers"):
        request = request_of(container) if is_sidecar(container) else init_request_of(container)
        if is_sidecar(container):
            _add(total, request)
            _add(sidecars, request)
            _raise_to(start, sidecars)
        else:
            _add(request, sidecars)
            _raise_to(start, request)
    _raise_to(total, start)
    return total


def is_sidecar(container: Fields) -> bool:
    """Return whether an init container keeps running next to the main containers (KEP-753)."""
    return container.text("restartPolicy") == _SIDECAR


def own_request(container: Fields) -> _Amounts:
    """Return the requests of a container; a missing request defaults to the limit."""
    resources = container.record("resources")
    limits = resources.amounts("limits", whole_devices=True)
    return {**limits, **resources.amounts("requests", whole_devices=True)}


# --- in-place resize ------------------------------------------------------------------------------


def _current_request(
    container: Fields, allocated: dict[str, _Amounts], is_infeasible: bool
) -> _Amounts:
    """Return, per resource, the larger of a container's request and its allocation.

    If the kubelet rejects a resize as infeasible, only the allocation counts.
    """
    current = allocated.get(container.text("name"))
    if is_infeasible and current is not None:
        return dict(current)
    request = own_request(container)
    _raise_to(request, current or {})
    return request


# --- arithmetic -----------------------------------------------------------------------------------


def _add(total: _Amounts, more: _Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: _Amounts, least: _Amounts) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0), amount)
