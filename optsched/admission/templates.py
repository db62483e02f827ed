"""The pod that a task makes: what a kubelet, or the API server, would refuse later.

As k8s.io/kubernetes, pkg/apis/core/validation, validates pod templates; only what users get wrong
is looked at, the rest is refused when the pod is made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from optsched.admission import names
from optsched.admission.pod_types import check_types, pod_types
from optsched.admission.resources import check_resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.admission.findings import Findings
    from optsched.admission.review import Raw

_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_MAX_PORT: Final = 65535
_CHOICES: Final = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
_PULL: Final = ("Always", "IfNotPresent", "Never")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_SUBDOMAINS: Final = ("serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName")
_LABELS: Final = ("hostname", "subdomain")
_MINIMUMS: Final = {"terminationGracePeriodSeconds": 0, "activeDeadlineSeconds": 1}


def check_template(template: Mapping[str, Any], path: str, findings: Findings) -> bool:
    """A pod template, and whether all of it can be read; path: such as spec.tasks[0].template."""
    if not check_types(dict(template), "PodTemplateSpec", path, findings):
        return False
    _check_meta(template.get("metadata") or {}, f"{path}.metadata", findings)
    spec = template.get("spec") or {}
    _check_spec(spec, f"{path}.spec", findings)
    _check_containers(spec, f"{path}.spec", findings)
    _check_volumes(spec, f"{path}.spec", findings)
    return True


def containers_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, Raw]]:
    """The containers of a pod, those that start it first, with the path of each."""
    for kind in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(kind) or ()):
            yield f"{kind}[{position}]", container


def _check_meta(meta: Raw, path: str, findings: Findings) -> None:
    for name, value in (meta.get("labels") or {}).items():
        if not names.is_qualified(name):
            findings.invalid(f"{path}.labels", name, names.QUALIFIED_RULE)
        if not names.is_label_value(value or ""):
            findings.invalid(f"{path}.labels[{name}]", value, names.LABEL_VALUE_RULE)
    for name in meta.get("annotations") or {}:
        if not names.is_qualified(name.lower()):
            findings.invalid(f"{path}.annotations", name, names.QUALIFIED_RULE)


def _check_spec(spec: Raw, path: str, findings: Findings) -> None:
    for name, choices in _CHOICES.items():
        _check_choice(spec, name, choices, path, findings)
    for name in _SUBDOMAINS:
        value = spec.get(name)
        if value and not names.is_subdomain(value):
            findings.invalid(f"{path}.{name}", value, names.SUBDOMAIN_RULE)
    for name in _LABELS:
        value = spec.get(name)
        if value and not names.is_label(value):
            findings.invalid(f"{path}.{name}", value, names.LABEL_RULE)
    for name, least in _MINIMUMS.items():
        value = spec.get(name)
        if value is not None and value < least:
            findings.invalid(f"{path}.{name}", value, f"write {least} or more")
    for name, value in (spec.get("nodeSelector") or {}).items():
        if not names.is_label_value(value or ""):
            findings.invalid(f"{path}.nodeSelector[{name}]", value, names.LABEL_VALUE_RULE)


def _check_choice(
    fields: Raw, name: str, choices: tuple[str, ...], path: str, findings: Findings
) -> None:
    value = fields.get(name)
    if value and value not in choices:
        supported = ", ".join(f'"{choice}"' for choice in choices)
        findings.deny(f'{path}.{name}: Unsupported value: "{value}": supported values: {supported}')


def _check_containers(spec: Raw, path: str, findings: Findings) -> None:
    if not spec.get("containers"):
        findings.required(f"{path}.containers", "write at least one container")
    seen: set[str] = set()
    for place, container in containers_of(spec):
        where = f"{path}.{place}"
        _check_container_name(container.get("name") or "", seen, where, findings)
        if not (container.get("image") or "").strip():
            findings.required(f"{where}.image", "write the image that is run")
        _check_choice(container, "imagePullPolicy", _PULL, where, findings)
        check_resources(container, where, findings)
        _check_ports(container, where, findings)
        _check_env(container, where, findings)


def _check_container_name(name: str, seen: set[str], path: str, findings: Findings) -> None:
    if not name:
        findings.required(f"{path}.name", "give each container a name")
    elif not names.is_label(name):
        findings.invalid(f"{path}.name", name, names.LABEL_RULE)
    elif name in seen:
        findings.deny(f'{path}.name: Duplicate value: "{name}": give each a name of its own')
    seen.add(name)


def _check_ports(container: Raw, path: str, findings: Findings) -> None:
    seen: set[str] = set()
    for position, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{position}]"
        _check_choice(port, "protocol", _PROTOCOLS, where, findings)
        if port.get("containerPort") is None:
            findings.required(f"{where}.containerPort", f"write 1 to {_MAX_PORT}")
        for name in ("containerPort", "hostPort"):
            value = port.get(name)
            if value is not None and not int(name == "containerPort") <= value <= _MAX_PORT:
                findings.invalid(f"{where}.{name}", value, f"must be between 1 and {_MAX_PORT}")
        _check_port_name(port.get("name") or "", seen, where, findings)


def _check_port_name(name: str, seen: set[str], path: str, findings: Findings) -> None:
    if name and not names.is_port_name(name):
        findings.invalid(f"{path}.name", name, names.PORT_NAME_RULE)
    elif name and name in seen:
        findings.deny(f'{path}.name: Duplicate value: "{name}": give each a name of its own')
    seen.add(name)


def _check_env(container: Raw, path: str, findings: Findings) -> None:
    for position, variable in enumerate(container.get("env") or ()):
        where, name = f"{path}.env[{position}]", variable.get("name") or ""
        if not name:
            findings.required(f"{where}.name", "give each variable a name")
        elif not _ENV_NAME.fullmatch(name):
            findings.invalid(f"{where}.name", name, "write printable ASCII characters without '='")
        sources = [each for each in (variable.get("valueFrom") or {}).values() if each]
        if sources and variable.get("value"):
            findings.invalid(f"{where}.valueFrom", "", "may not be specified when value is set")
        if len(sources) > 1:
            findings.invalid(f"{where}.valueFrom", "", "keep one of the sources")


def _check_volumes(spec: Raw, path: str, findings: Findings) -> None:
    known: set[str] = set()
    for position, volume in enumerate(spec.get("volumes") or ()):
        where, name = f"{path}.volumes[{position}]", volume.get("name") or ""
        if not name:
            findings.required(f"{where}.name", "give each volume a name")
        elif not names.is_label(name):
            findings.invalid(f"{where}.name", name, names.LABEL_RULE)
        elif name in known:
            findings.deny(f'{where}.name: Duplicate value: "{name}": give each a name of its own')
        known.add(name)
        _check_source(volume, where, findings)
    for place, container in containers_of(spec):
        _check_mounts(container, known, f"{path}.{place}", findings)


def _check_source(volume: Raw, path: str, findings: Findings) -> None:
    known = pod_types()["Volume"]
    sources = sorted(
        name
        for name, source in volume.items()
        if source is not None and name != "name" and name in known
    )
    for extra in sources[1:]:
        findings.deny(
            f"{path}.{extra}: Forbidden: may not specify more than 1 volume type: "
            f"keep {sources[0]} or {extra}"
        )


def _check_mounts(container: Raw, known: set[str], path: str, findings: Findings) -> None:
    seen: set[str] = set()
    for position, mount in enumerate(container.get("volumeMounts") or ()):
        where, name = f"{path}.volumeMounts[{position}]", mount.get("name") or ""
        target = mount.get("mountPath") or ""
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            findings.deny(f'{where}.name: Not found: "{name}": volumes of the pod are {there}')
        if not target:
            findings.required(f"{where}.mountPath", "write where the volume is seen")
        elif target in seen:
            findings.invalid(f"{where}.mountPath", target, "must be unique: a volume is there")
        seen.add(target)
