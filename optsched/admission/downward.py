"""Fields of a pod that its own containers see, and amounts of their resources.

As k8s.io/kubernetes, pkg/apis/core/validation and pkg/apis/core/pods, takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.pod_types import nanos_of

if TYPE_CHECKING:
    from optsched.admission.parts import Part

_NANO: Final = 10**9
_AMOUNTS: Final = tuple(
    f"{part}.{resource}"
    for part in ("limits", "requests")
    for resource in ("cpu", "memory", "ephemeral-storage")
)
_HUGE_PAGES: Final = ("limits.hugepages-", "requests.hugepages-")
_OF_CPU: Final = frozenset({_NANO // 1000, _NANO})
_OF_BYTES: Final = frozenset(_NANO * base**power for base in (1000, 1024) for power in range(7))
_MAPPINGS: Final = ("metadata.annotations", "metadata.labels")


def check_field(part: Part, fields: tuple[str, ...]) -> None:
    """A fieldRef, where there is one, names one of some fields, or one label or annotation."""
    field = part.part("fieldRef")
    if field is None:
        return
    if field.text("apiVersion") not in ("", "v1"):
        field.invalid("apiVersion", "write v1")
    path = field.text("fieldPath")
    mapping, bracket, key = path.partition("['")
    accepted = f"{', '.join(fields)}, metadata.labels['<name>'] or metadata.annotations['<name>']"
    if not path:
        field.required("fieldPath", f"write one of {accepted}")
    elif bracket and path.endswith("']"):
        name = key.removesuffix("']")
        if mapping not in _MAPPINGS:
            field.invalid("fieldPath", f"write one of {accepted}")
        elif not names.is_qualified(name.lower() if mapping == _MAPPINGS[0] else name):
            field.invalid("fieldPath", names.QUALIFIED_RULE)
    elif path not in fields and not (path == "spec.host" and "spec.nodeName" in fields):
        field.invalid("fieldPath", f"write one of {accepted}")


def check_resource(part: Part, *, needs_container: bool) -> None:
    """A resourceFieldRef, where there is one, names an amount of a container."""
    field = part.part("resourceFieldRef")
    if field is None:
        return
    resource = field.text("resource")
    accepted = ", ".join(_AMOUNTS)
    if needs_container and not field.text("containerName"):
        field.required("containerName", "write of which container")
    elif not resource:
        field.required("resource", f"write one of {accepted}")
    elif resource not in _AMOUNTS and not resource.startswith(_HUGE_PAGES):
        field.invalid("resource", f"write one of {accepted}")
    _check_divisor(field, resource)


def _check_divisor(field: Part, resource: str) -> None:
    divisor = nanos_of(field.raw.get("divisor") or "0")
    accepted = _OF_CPU if resource.endswith(".cpu") else _OF_BYTES
    if divisor and divisor not in accepted:
        choice = "1m or 1" if accepted is _OF_CPU else "1, or 1 with k, M, G, T, P, E, Ki, …, Ei"
        field.invalid("divisor", f"write {choice}")
