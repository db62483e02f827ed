"""Validation of HyperNodes (pkg/webhooks/admission/hypernodes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.admission.findings import get_mapping
from optsched.admission.jobs import as_parsed
from optsched.admission.limits import MAX_MEMBERS, check_count
from optsched.admission.review import Action
from optsched.api.hypernode import parse_hypernode

if TYPE_CHECKING:
    from optsched.admission.findings import Review


def validate(review: Review) -> None:
    """Deny an invalid HyperNode; always allow metadata-only updates."""
    if review.request.action is not Action.DELETE and review.is_spec_changed:
        members = get_mapping(review.request.obj, "spec").get("members")
        if isinstance(members, list):
            check_count("spec.members", len(members), MAX_MEMBERS, review)
        review.errors(parse_hypernode(as_parsed(review.request))[1])
