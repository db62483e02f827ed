"""Probes of containers, and what is run when they start and stop.

As k8s.io/kubernetes, pkg/apis/core/validation, validates handlers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from optsched.admission import names

if TYPE_CHECKING:
    from optsched.admission.parts import Part

MAX_PORT: Final = 65535
PORT_RULE: Final = f"must be between 1 and {MAX_PORT}"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_OF_PROBES: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_OF_LIFECYCLES: Final = ("exec", "httpGet", "tcpSocket", "sleep")
_COUNTS: Final = (
    *("initialDelaySeconds", "timeoutSeconds", "periodSeconds"),
    *("successThreshold", "failureThreshold"),
)
_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
_GRACE_S: Final = 30


def check_probes(container: Part, grace_s: int) -> None:
    """The probes and the lifecycle of a container that stays; grace_s: that of its pod."""
    for name in _PROBES:
        probe = container.part(name)
        if probe is not None:
            _check_probe(probe, name)
    lifecycle = container.part("lifecycle")
    if lifecycle is None:
        return
    for name in ("postStart", "preStop"):
        handler = lifecycle.part(name)
        if handler is not None:
            _check_handler(handler, _OF_LIFECYCLES)
            _check_sleep(handler, grace_s)


def forbid_probes(container: Part) -> None:
    """A container that runs before others, and ends, has neither probes nor a lifecycle."""
    lifecycle = container.raw.get("lifecycle") or {}
    # A server drops a stop signal that it does not know, and with it all of such a lifecycle.
    names_there = [] if list(lifecycle) == ["stopSignal"] else ["lifecycle"]
    for name in container.present(*_PROBES, *names_there):
        container.forbidden(
            name, "may not be set for init containers without restartPolicy Always: leave it out"
        )


def grace_of(spec: Part) -> int:
    """How long a pod may take to stop; Kubernetes reads a negative time as one second."""
    seconds = spec.raw.get("terminationGracePeriodSeconds")
    if seconds is None:
        return _GRACE_S
    return seconds if seconds >= 0 else 1


def _check_probe(probe: Part, kind: str) -> None:
    _check_handler(probe, _OF_PROBES)
    for name in _COUNTS:
        probe.at_least(name, 0)
    if kind == "readinessProbe":
        if probe.has("terminationGracePeriodSeconds"):
            probe.invalid(
                "terminationGracePeriodSeconds",
                "must not be set for readinessProbes: leave it out",
            )
        return
    probe.at_least("terminationGracePeriodSeconds", 1)
    if probe.number("successThreshold") > 1:
        probe.invalid("successThreshold", f"must be 1 for a {kind}")


def _check_handler(handler: Part, kinds: tuple[str, ...]) -> None:
    present = handler.present(*kinds)
    if not present:
        handler.findings.required(
            handler.path, f"must specify a handler type: write one of {', '.join(kinds)}"
        )
        return
    for extra in present[1:]:
        handler.forbidden(
            extra, f"may not specify more than 1 handler type: keep {present[0]} or {extra}"
        )
    action = handler.part(present[0])
    if action is None:
        return
    if present[0] == "exec":
        if not action.raw.get("command"):
            action.required("command", "write the command that is run")
    elif present[0] != "sleep":
        _check_port(action, "" if present[0] == "grpc" else " or the name of a port")
    if present[0] == "httpGet":
        _check_http(action)


def _check_http(action: Part) -> None:
    action.choose("scheme", "HTTP", "HTTPS")
    for header in action.parts("httpHeaders"):
        if not _HEADER.fullmatch(header.text("name")):
            header.invalid("name", "write letters, digits and '-', such as X-Header-Name")


def _check_port(action: Part, other: str) -> None:
    port = action.raw.get("port")
    if isinstance(port, str):
        if not names.is_port_name(port):
            action.invalid("port", f"{names.PORT_NAME_RULE}, or a number from 1 to {MAX_PORT}")
    elif not port:
        action.required("port", f"write 1 to {MAX_PORT}{other}")
    else:
        action.within("port", 1, MAX_PORT)


def _check_sleep(handler: Part, grace_s: int) -> None:
    sleep = handler.part("sleep")
    if sleep is not None and not 0 <= sleep.number("seconds") <= grace_s:
        sleep.invalid(
            "seconds", f"write 0 to {grace_s}, which is terminationGracePeriodSeconds of the pod"
        )
