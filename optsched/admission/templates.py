"""The pod that a task makes: what a kubelet, or the API server, would refuse later.

As k8s.io/kubernetes, pkg/apis/core/validation, validates pod templates. What depends on how a
server is set up, or on other objects, is left to the server that makes the pods, and so is what
hardly anybody writes: pods for Windows, profiles in annotations.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any, Final

from optsched.admission import names
from optsched.admission.containers import check_containers, parts_of_containers
from optsched.admission.contexts import check_pod_context
from optsched.admission.device_claims import check_claims
from optsched.admission.limits import MAX_CLAIMS, MAX_CONTAINERS, check_count
from optsched.admission.parts import Part
from optsched.admission.placement import check_labels, check_placement
from optsched.admission.pod_types import check_types
from optsched.admission.pod_volumes import check_volumes
from optsched.admission.resources import check_pod_resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.admission.findings import Findings
    from optsched.admission.review import Raw

_CHOICES: Final = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
_SUBDOMAINS: Final = ("serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName")
_LABELS: Final = ("hostname", "subdomain")
_MOST: Final = {
    "initContainers": MAX_CONTAINERS,
    "containers": MAX_CONTAINERS,
    "resourceClaims": MAX_CLAIMS,
}
_MAX_INT32: Final = 2**31 - 1
_MAX_ANNOTATIONS: Final = 256 * 2**10
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_MAX_HOSTNAME: Final = 64
_MAX_SERVERS: Final = 3
_MAX_SEARCHES: Final = 32
_MAX_SEARCH: Final = 2048
_V4: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")


def check_template(template: Mapping[str, Any], path: str, findings: Findings) -> bool:
    """A pod template, and whether all of it can be read; path: such as spec.tasks[0].template."""
    if not check_types(dict(template), "PodTemplateSpec", path, findings):
        return False
    whole = Part(dict(template), path, findings)
    meta = whole.part("metadata")
    if meta is not None:
        _check_meta(meta)
    spec = whole.part("spec") or Part({}, f"{path}.spec", findings)
    for name, most in _MOST.items():
        check_count(f"{spec.path}.{name}", len(spec.raw.get(name) or ()), most, findings)
    _check_spec(spec)
    return True


def containers_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, Raw]]:
    """The containers of a pod, those that start it first, with the path of each."""
    for kind in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(kind) or ()):
            yield f"{kind}[{position}]", container or {}


def _check_meta(meta: Part) -> None:
    check_labels(meta, "labels")
    annotations = meta.mapping("annotations")
    for name in annotations:
        if not names.is_qualified(name.lower()):
            meta.findings.invalid(f"{meta.path}.annotations", name, names.QUALIFIED_RULE)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        meta.forbidden("annotations", f"have {size} bytes: write at most {_MAX_ANNOTATIONS}")
    cost = annotations.get(_DELETION_COST)
    if cost is not None and not _is_int32(cost):
        path = f"{meta.path}.annotations[{_DELETION_COST}]"
        meta.findings.invalid(path, cost, "must be a 32bit integer: write one such as -1 or 100")


def _is_int32(text: str) -> bool:
    is_whole = re.fullmatch(r"-?(0|[1-9][0-9]{0,9})", text) is not None
    return is_whole and -_MAX_INT32 - 1 <= int(text) <= _MAX_INT32


def _check_spec(spec: Part) -> None:
    # Most pods name few of these.
    for name in [name for name in _CHOICES if name in spec.raw]:
        spec.choose(name, *_CHOICES[name])
    for name in [name for name in _SUBDOMAINS if name in spec.raw]:
        spec.fits(name, names.is_subdomain, names.SUBDOMAIN_RULE)
    for name in [name for name in _LABELS if name in spec.raw]:
        spec.fits(name, names.is_label, names.LABEL_RULE)
    if not spec.text("serviceAccountName"):
        spec.fits("serviceAccount", names.is_subdomain, names.SUBDOMAIN_RULE)
    if spec.raw.get("runtimeClassName") == "":
        spec.invalid("runtimeClassName", "name a RuntimeClass, or leave it out")
    deadline = spec.raw.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _MAX_INT32:
        spec.invalid("activeDeadlineSeconds", f"write 1 to {_MAX_INT32}")
    if spec.raw.get("ephemeralContainers"):
        spec.forbidden("ephemeralContainers", "not allowed in pod templates: leave them out")
    _check_gates(spec)
    _check_host(spec)
    _check_dns(spec)
    context = spec.part("securityContext")
    if context is not None:
        check_pod_context(context)
    if spec.raw.get("shareProcessNamespace") and spec.raw.get("hostPID"):
        spec.invalid("shareProcessNamespace", "cannot be true together with hostPID: keep one")
    check_placement(spec)
    check_containers(spec, check_volumes(spec))
    containers = list(parts_of_containers(spec))
    check_claims(spec, containers)
    check_pod_resources(spec, containers)


def _check_gates(spec: Part) -> None:
    for gate in spec.parts("readinessGates"):
        gate.need("conditionType", names.is_qualified, names.QUALIFIED_RULE)
    seen: set[str] = set()
    for gate in spec.parts("schedulingGates"):
        name = gate.text("name")
        gate.need("name", names.is_qualified, names.QUALIFIED_RULE)
        if name and name in seen:
            gate.duplicate("name", name, "name each gate once")
        seen.add(name)
    if seen and spec.text("nodeName"):
        spec.forbidden("nodeName", "cannot be set together with schedulingGates: keep one of them")


# --- hosts and names ------------------------------------------------------------------------------


def _check_host(spec: Part) -> None:
    for alias in spec.parts("hostAliases"):
        if not _is_address(alias.text("ip")):
            alias.invalid("ip", "write an IP address such as 10.0.0.1 or fd00::1")
        for position, name in enumerate(alias.list_of("hostnames")):
            if not names.is_subdomain(name):
                path = f"{alias.path}.hostnames[{position}]"
                alias.findings.invalid(path, name, names.SUBDOMAIN_RULE)
    if spec.raw.get("hostUsers") is False:
        _check_own_users(spec)
    if spec.has("hostnameOverride"):
        _check_override(spec)
    system = spec.part("os")
    if system is not None:
        system.choose("name", "linux", "windows", is_required=True)


def _check_own_users(spec: Part) -> None:
    for name in ("hostPID", "hostIPC"):
        if spec.raw.get(name):
            spec.forbidden(name, "may not be true when hostUsers is false")
    for container in parts_of_containers(spec):
        if container.raw.get("volumeDevices"):
            container.forbidden("volumeDevices", "may not be set when hostUsers is false")


def _check_override(spec: Part) -> None:
    for name in ("setHostnameAsFQDN", "hostNetwork"):
        if spec.raw.get(name):
            spec.forbidden("hostnameOverride", f"may not be specified when {name} is true")
    value = spec.text("hostnameOverride")
    if len(value) > _MAX_HOSTNAME or not names.is_subdomain(value):
        spec.invalid("hostnameOverride", f"{names.SUBDOMAIN_RULE}, {_MAX_HOSTNAME} here")


def _check_dns(spec: Part) -> None:
    dns = spec.part("dnsConfig")
    servers = dns.list_of("nameservers") if dns is not None else []
    if spec.text("dnsPolicy") == "None" and not servers:
        path = f"{spec.path}.dnsConfig.nameservers"
        spec.findings.required(path, "dnsPolicy None needs at least one")
    if dns is None:
        return
    if len(servers) > _MAX_SERVERS:
        dns.invalid("nameservers", f"write at most {_MAX_SERVERS}")
    for position, server in enumerate(servers):
        if not _is_address(server):
            path = f"{dns.path}.nameservers[{position}]"
            dns.findings.invalid(path, server, "write an IP address such as 10.0.0.1 or fd00::1")
    _check_searches(dns)
    for option in dns.parts("options"):
        if not option.text("name"):
            option.required("name", "write an option of resolv.conf such as ndots")


def _check_searches(dns: Part) -> None:
    searches = dns.list_of("searches")
    if len(searches) > _MAX_SEARCHES or len(" ".join(searches)) > _MAX_SEARCH:
        dns.invalid("searches", f"write at most {_MAX_SEARCHES}, {_MAX_SEARCH} characters in all")
    for position, search in enumerate(searches):
        name = search.removesuffix(".").replace("_", "a")
        if search != "." and not names.is_subdomain(name):
            path = f"{dns.path}.searches[{position}]"
            dns.findings.invalid(path, search, names.SUBDOMAIN_RULE)


def _is_address(text: str) -> bool:
    """Whether a text is an IP address; zeros in front of numbers are for the server to judge."""
    if _V4.fullmatch(text):
        return all(int(each) <= 255 for each in text.split("."))
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text
