"""HyperNodes: their members can be found (pkg/webhooks/admission/hypernodes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.jobs import as_parsed
from optsched.admission.limits import MAX_MEMBERS, check_count
from optsched.admission.review import Action
from optsched.api.hypernode import parse_hypernode

if TYPE_CHECKING:
    from optsched.admission.review import Request, Response
    from optsched.admission.world import Settings, World


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Deny an invalid HyperNode; updates of metadata alone are allowed."""
    del world, settings
    findings = Findings()
    is_new = (request.old or {}).get("spec") != (request.obj or {}).get("spec")
    if request.action is not Action.DELETE and is_new:
        members = get_mapping(request.obj, "spec").get("members")
        if isinstance(members, list):
            check_count("spec.members", len(members), MAX_MEMBERS, findings)
        findings.errors(parse_hypernode(as_parsed(request))[1])
    return findings.response()
