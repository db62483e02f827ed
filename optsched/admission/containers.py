"""The containers of a pod: names, ports, environment, mounts, resources.

As k8s.io/kubernetes, pkg/apis/core/validation, validates them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.contexts import check_container_context
from optsched.admission.downward import check_field, check_resource
from optsched.admission.paths import check_relative, check_stays
from optsched.admission.probes import (
    MAX_PORT,
    PORT_RULE,
    check_probes,
    forbid_probes,
    grace_of,
)
from optsched.admission.resources import check_resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.admission.parts import Part

_KINDS: Final = ("initContainers", "containers")
_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_ENV_RULE: Final = "write printable ASCII characters without '='"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_RULE: Final = "write letters, digits, '-', '_' and '.'"
_MAX_KEY: Final = 253
_PULL: Final = ("Always", "IfNotPresent", "Never")
_RESTART: Final = ("Always", "OnFailure", "Never")
_SOURCES: Final = (
    *("configMapKeyRef", "fieldRef", "fileKeyRef"),
    *("resourceFieldRef", "secretKeyRef"),
)
_FIELDS: Final = (
    *("metadata.name", "metadata.namespace", "metadata.uid"),
    *("spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_MAX_RULES: Final = 20
_MAX_CODES: Final = 255
_BOTH_WAYS: Final = "Bidirectional"


@dataclass(frozen=True, slots=True)
class Pod:
    """What containers need to know of their pod; volume_kinds: by the names of volumes."""

    spec: Part
    volume_kinds: Mapping[str, str]
    grace_s: int

    @property
    def never_restarts(self) -> bool:
        """Whether its containers run once."""
        return self.spec.text("restartPolicy") == "Never"


def check_containers(spec: Part, volume_kinds: Mapping[str, str]) -> None:
    """All containers of a pod."""
    pod = Pod(spec, volume_kinds, grace_of(spec))
    if not spec.raw.get("containers"):
        spec.required("containers", "write at least one container")
    seen: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    for kind in _KINDS:
        for container in spec.parts(kind):
            _check_name(container, seen)
            _check_container(container, pod)
            # Those that run before others run one by one.
            taken = host_ports if kind == "containers" else set()
            _check_ports(container, taken, pod, is_bound=kind == "containers")
            if kind == "containers" or container.text("restartPolicy") == "Always":
                check_probes(container, pod.grace_s)
            else:
                forbid_probes(container)


def parts_of_containers(spec: Part) -> Iterator[Part]:
    """The containers of a pod, those that start it first."""
    for kind in _KINDS:
        yield from spec.parts(kind)


def _check_container(container: Part, pod: Pod) -> None:
    image = container.text("image")
    if not image.strip():
        container.required("image", "write the image that is run")
    elif image != image.strip():
        container.invalid("image", "write it without spaces around it")
    container.choose("imagePullPolicy", *_PULL)
    container.choose("terminationMessagePolicy", "File", "FallbackToLogsOnError")
    check_resources(container.raw, container.path, container.findings)
    _check_env(container)
    _check_env_from(container)
    _check_mounts(container, pod)
    _check_devices(container, pod)
    _check_restarts(container)
    _check_resizes(container, pod)
    context = container.part("securityContext")
    if context is not None:
        check_container_context(context, has_own_users=pod.spec.raw.get("hostUsers") is False)


def _check_name(container: Part, seen: set[str]) -> None:
    name = container.text("name")
    if not name:
        container.required("name", "give each container a name")
    elif not names.is_label(name):
        container.invalid("name", names.LABEL_RULE)
    elif name in seen:
        container.duplicate("name", name, "give each a name of its own")
    seen.add(name)


# --- ports ----------------------------------------------------------------------------------------


def _check_ports(
    container: Part, taken: set[tuple[str, str, int]], pod: Pod, *, is_bound: bool
) -> None:
    seen: set[str] = set()
    for port in container.parts("ports"):
        port.choose("protocol", "TCP", "UDP", "SCTP")
        if not port.has("containerPort"):
            port.required("containerPort", f"write 1 to {MAX_PORT}")
        elif not 1 <= port.number("containerPort") <= MAX_PORT:
            port.invalid("containerPort", PORT_RULE)
        if not 0 <= port.number("hostPort") <= MAX_PORT:
            port.invalid("hostPort", PORT_RULE)
        _check_port_name(port, seen)
        if pod.spec.raw.get("hostNetwork"):
            _check_host_network(port, is_bound=is_bound)
        _check_host_port(port, taken, is_on_host=bool(pod.spec.raw.get("hostNetwork")))


def _check_port_name(port: Part, seen: set[str]) -> None:
    name = port.text("name")
    port.fits("name", names.is_port_name, names.PORT_NAME_RULE)
    if name and name in seen:
        port.duplicate("name", name, "give each a name of its own")
    seen.add(name)


def _check_host_network(port: Part, *, is_bound: bool) -> None:
    host, own = port.number("hostPort"), port.number("containerPort")
    if is_bound and host and host != own:
        port.invalid("hostPort", f"must match containerPort when hostNetwork is true: write {own}")


def _check_host_port(port: Part, taken: set[tuple[str, str, int]], *, is_on_host: bool) -> None:
    number = port.number("hostPort") or (port.number("containerPort") if is_on_host else 0)
    place = (port.text("protocol") or "TCP", port.text("hostIP"), number)
    if number and place in taken:
        port.duplicate("hostPort", number, "another port of the pod takes it on the node")
    taken.add(place)


# --- environment ----------------------------------------------------------------------------------


def _check_env(container: Part) -> None:
    for variable in container.parts("env"):
        if not variable.text("name"):
            variable.required("name", "give each variable a name")
        variable.fits("name", _is_env_name, _ENV_RULE)
        source = variable.part("valueFrom")
        if source is None:
            continue
        present = source.present(*_SOURCES)
        if not present:
            variable.findings.invalid(
                source.path, source.raw, f"write one of {', '.join(_SOURCES)}"
            )
        elif variable.text("value"):
            variable.findings.invalid(source.path, "", "may not be specified when value is set")
        elif len(present) > 1:
            variable.findings.invalid(source.path, "", "keep one of the sources")
        _check_source(source)


def _is_env_name(name: str) -> bool:
    return _ENV_NAME.fullmatch(name) is not None


def _check_source(source: Part) -> None:
    check_field(source, _FIELDS)
    check_resource(source, needs_container=False)
    for name in ("configMapKeyRef", "secretKeyRef"):
        selector = source.part(name)
        if selector is not None:
            selector.need("name", names.is_subdomain, names.SUBDOMAIN_RULE)
            selector.need("key", _is_key, _KEY_RULE)


def _is_key(key: str) -> bool:
    return len(key) <= _MAX_KEY and _KEY.fullmatch(key) is not None and key not in (".", "..")


def _check_env_from(container: Part) -> None:
    for source in container.parts("envFrom"):
        source.fits("prefix", _is_env_name, _ENV_RULE)
        present = source.present("configMapRef", "secretRef")
        if not present:
            source.findings.invalid(source.path, source.raw, "write configMapRef or secretRef")
        elif len(present) > 1:
            source.findings.invalid(source.path, "", "keep one of configMapRef and secretRef")
        for name in present:
            reference = source.part(name)
            if reference is not None:
                reference.need("name", _is_object_name, names.SUBDOMAIN_RULE)


def _is_object_name(name: str) -> bool:
    """Whether an object may be called so; a '-' at the end is let pass, as the server does."""
    is_prefix = len(name) > 1 and name.endswith("-")
    return names.is_subdomain(f"{name[:-2]}a" if is_prefix else name)


# --- volumes --------------------------------------------------------------------------------------


def _check_mounts(container: Part, pod: Pod) -> None:
    seen: set[str] = set()
    devices = {
        each.text("name"): each.text("devicePath") for each in container.parts("volumeDevices")
    }
    for mount in container.parts("volumeMounts"):
        name, target = mount.text("name"), mount.text("mountPath")
        if name not in pod.volume_kinds:
            _not_found(mount, pod)
        if not target:
            mount.required("mountPath", "write where the volume is seen")
        elif target in seen:
            mount.invalid("mountPath", "must be unique: a volume is there")
        seen.add(target)
        if name in devices:
            mount.invalid("name", "must not already exist in volumeDevices: keep one of them")
        if target and target in devices.values():
            mount.invalid("mountPath", "must not already exist as a path in volumeDevices")
        _check_mount(mount, container)


def _not_found(part: Part, pod: Pod) -> None:
    there = ", ".join(sorted(pod.volume_kinds)) or "none"
    name = part.text("name")
    part.findings.deny(f'{part.path}.name: Not found: "{name}": volumes of the pod are {there}')


def _check_mount(mount: Part, container: Part) -> None:
    check_relative(mount, "subPath")
    check_relative(mount, "subPathExpr")
    if mount.text("subPath") and mount.text("subPathExpr"):
        mount.invalid("subPathExpr", "subPathExpr and subPath are mutually exclusive: keep one")
    mount.choose(
        *("mountPropagation", "None", "HostToContainer", _BOTH_WAYS),
        is_required=mount.has("mountPropagation"),
    )
    context = container.part("securityContext")
    is_privileged = context is not None and bool(context.raw.get("privileged"))
    if mount.text("mountPropagation") == _BOTH_WAYS and not is_privileged:
        mount.forbidden(
            "mountPropagation", f"{_BOTH_WAYS} is available only to privileged containers"
        )
    _check_recursion(mount)


def _check_recursion(mount: Part) -> None:
    mount.choose(
        *("recursiveReadOnly", "Disabled", "Enabled", "IfPossible"),
        is_required=mount.has("recursiveReadOnly"),
    )
    if mount.text("recursiveReadOnly") not in ("Enabled", "IfPossible"):
        return
    if not mount.raw.get("readOnly"):
        mount.forbidden("recursiveReadOnly", "may only be specified when readOnly is true")
    if mount.text("mountPropagation") not in ("", "None"):
        mount.forbidden("recursiveReadOnly", "may only be specified without mountPropagation")


def _check_devices(container: Part, pod: Pod) -> None:
    seen: set[str] = set()
    for device in container.parts("volumeDevices"):
        kind = pod.volume_kinds.get(device.text("name"))
        if kind is None:
            _not_found(device, pod)
        elif kind not in ("persistentVolumeClaim", "ephemeral"):
            device.invalid(
                "name",
                f"is a volume of {kind}: only persistentVolumeClaim and ephemeral are devices",
            )
        if not device.text("devicePath"):
            device.required("devicePath", "write where the device is seen")
        check_stays(device, "devicePath")
        for name in ("name", "devicePath"):
            value = f"{name}={device.text(name)}"
            if device.text(name) and value in seen:
                device.invalid(name, "must be unique: a device has it")
            seen.add(value)


# --- while it runs --------------------------------------------------------------------------------


def _check_restarts(container: Part) -> None:
    container.choose("restartPolicy", *_RESTART, is_required=container.has("restartPolicy"))
    rules = list(container.parts("restartPolicyRules"))
    if rules and not container.has("restartPolicy"):
        container.required("restartPolicy", "restartPolicyRules need one: write Never or OnFailure")
    if len(rules) > _MAX_RULES:
        container.forbidden("restartPolicyRules", f"has {len(rules)}: write at most {_MAX_RULES}")
    for rule in rules:
        rule.choose("action", "Restart", "RestartAllContainers", is_required=True)
        codes = rule.part("exitCodes")
        if codes is None:
            rule.required("exitCodes", "write an operator and values")
            continue
        codes.choose("operator", *("In", "NotIn"), is_required=True)
        num_codes = len(codes.raw.get("values") or ())
        if num_codes > _MAX_CODES:
            codes.forbidden("values", f"has {num_codes}: write at most {_MAX_CODES}")


def _check_resizes(container: Part, pod: Pod) -> None:
    seen: set[str] = set()
    for policy in container.parts("resizePolicy"):
        policy.choose("resourceName", "cpu", "memory", is_required=True)
        policy.choose("restartPolicy", "NotRequired", "RestartContainer", is_required=True)
        resource = policy.text("resourceName")
        if resource and resource in seen:
            policy.duplicate("resourceName", resource, "say it once for each resource")
        seen.add(resource)
        if pod.never_restarts and policy.text("restartPolicy") == "RestartContainer":
            policy.invalid("restartPolicy", "must be NotRequired when restartPolicy is Never")
