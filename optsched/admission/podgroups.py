"""PodGroups: filled in and looked at when they are made, or go to another queue.

Source: pkg/webhooks/admission/podgroups. That a change of queue is looked at is ours: without it
the lists of a queue could be got round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings
from optsched.admission.jobs import as_parsed
from optsched.admission.queue_access import POD_GROUP, check_queue
from optsched.admission.review import Action
from optsched.api.podgroup import parse_podgroup
from optsched.api.wellknown import DEFAULT_QUEUE, QUEUE_NAME

if TYPE_CHECKING:
    from optsched.admission.review import Request, Response
    from optsched.admission.world import Settings, World
    from optsched.api.podgroup import NetworkTopology, PodGroup

_TWO_TIERS: Final = (
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
)
_TIER: Final = "highestTierName"


def mutate(request: Request, world: World, settings: Settings) -> Response:
    """Give a PodGroup without a queue that of its namespace."""
    del settings
    findings = Findings()
    obj = request.obj or {}
    spec = obj.get("spec")
    queue = world.namespace_annotations(request.namespace).get(QUEUE_NAME)
    if request.action is not Action.CREATE or not queue:
        return findings.response()
    if spec is None:
        findings.change(("spec",), {"queue": queue})
    elif isinstance(spec, dict) and spec.get("queue") in (None, "", DEFAULT_QUEUE):
        findings.change(("spec", "queue"), queue)
    return findings.response()


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Whether a PodGroup may be made, or go to another queue."""
    findings = Findings()
    if request.action is Action.DELETE:
        return findings.response()
    group, errors = parse_podgroup(as_parsed(request))
    old = parse_podgroup(request.old)[0] if request.action is Action.UPDATE else None
    if group is None or (old is not None and old.queue == group.queue):
        return findings.response()
    check_queue(group.queue, POD_GROUP, request, (world, settings), findings)
    if old is None:
        findings.errors(error for error in errors if not error.path.endswith(_TIER))
        _check_topologies(group, findings)
    return findings.response()


def _check_topologies(group: PodGroup, findings: Findings) -> None:
    tiers = _two_tiers(group.topology)
    if tiers:
        findings.deny(f"{_TWO_TIERS}: spec.networkTopology has {tiers}; keep one of them")
    for position, policy in enumerate(group.sub_groups):
        tiers = _two_tiers(policy.topology)
        if tiers:
            findings.deny(
                f"in subGroupPolicy '{policy.name}': {_TWO_TIERS}: "
                f"spec.subGroupPolicy[{position}].networkTopology has {tiers}; keep one of them"
            )


def _two_tiers(topology: NetworkTopology | None) -> str:
    """Both tiers of a topology that names two; empty for others."""
    if topology is None or topology.highest_tier is None or not topology.highest_tier_name:
        return ""
    return f"{topology.highest_tier} and {topology.highest_tier_name}"
