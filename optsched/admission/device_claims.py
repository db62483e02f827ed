"""Claims of devices (DRA): those of a pod, and which of them its containers use.

As k8s.io/kubernetes, pkg/apis/core/validation, validates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names

if TYPE_CHECKING:
    from optsched.admission.parts import Part

_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")


def check_claims(spec: Part, containers: list[Part]) -> None:
    """The claims of a pod."""
    known: set[str] = set()
    for claim in spec.parts("resourceClaims"):
        name = claim.text("name")
        claim.need("name", names.is_label, names.LABEL_RULE)
        if name and name in known:
            claim.duplicate("name", name, "give each a name of its own")
        known.add(name)
        _check_source(claim)
    for container in containers:
        resources = container.part("resources")
        if resources is not None:
            _check_uses(resources, known)


def _check_source(claim: Part) -> None:
    present = claim.present(*_SOURCES)
    if len(present) != 1:
        said = " and ".join(present) or "none"
        claim.findings.deny(f"{claim.path}: Invalid value: {said}: write {' or '.join(_SOURCES)}")
    for name in present:
        claim.need(name, names.is_subdomain, names.SUBDOMAIN_RULE)


def _check_uses(resources: Part, known: set[str]) -> None:
    seen: dict[str, set[str]] = {}
    for use in resources.parts("claims"):
        name, request = use.text("name"), use.text("request")
        use.fits("request", names.is_label, names.LABEL_RULE)
        if not name:
            use.required("name", "write which claim of the pod is used")
        elif name not in known:
            there = ", ".join(sorted(known)) or "none"
            use.findings.deny(
                f'{use.path}.name: Not found: "{name}": resourceClaims of the pod are {there}'
            )
        used = seen.setdefault(name, set())
        # A use without a request is one of the claim as a whole.
        if name and used and (not request or "" in used or request in used):
            use.duplicate("name", name, "use each claim, or each of its requests, once")
        used.add(request)
