"""Pods: where those of a resource group run, and what annotations of ours say.

Source: pkg/webhooks/admission/pods. That the lists of a queue bind a bare pod too is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, part
from optsched.admission.queue_access import check_access
from optsched.admission.review import Action
from optsched.api.wellknown import (
    GROUP_NAME_ANNOTATIONS,
    MAX_UNAVAILABLE,
    MIN_AVAILABLE,
    QUEUE_ALLOCATION_GATE,
    QUEUE_NAME,
    first_annotation,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.admission.resource_groups import ResourceGroup
    from optsched.admission.review import Raw, Request, Response
    from optsched.admission.world import Settings, World

_BUDGETS: Final = (MIN_AVAILABLE, MAX_UNAVAILABLE)
_PERCENT: Final = 100
_MAX_DIGITS: Final = 18
_SHOWN: Final = 60


def mutate(request: Request, world: World, settings: Settings) -> Response:
    """Give a pod what its resource group has for it, and the gate that it asks for."""
    del world
    findings = Findings()
    annotations = part(part(request.obj, "metadata"), "annotations")
    group = next(
        (each for each in settings.resource_groups if each.has(request.namespace, annotations)),
        None,
    )
    spec = part(request.obj, "spec")
    if request.action is not Action.CREATE:
        return findings.response()
    if settings.gates_pods and annotations.get(QUEUE_ALLOCATION_GATE) == "true":
        name = (group.scheduler_name if group is not None else "") or spec.get("schedulerName")
        if name in settings.scheduler_names:
            _hold_back(spec, findings)
    if group is not None and spec:
        _give(group, spec, findings)
    return findings.response()


def _hold_back(spec: Raw, findings: Findings) -> None:
    """Add the gate; of pods of other schedulers nobody would take it off."""
    gate = {"name": QUEUE_ALLOCATION_GATE}
    held = spec.get("schedulingGates")
    gates = held if isinstance(held, list) else []
    if gate not in gates and not spec.get("nodeName"):
        findings.change(("spec", "schedulingGates"), [*gates, gate])


def _give(group: ResourceGroup, spec: Raw, findings: Findings) -> None:
    if group.labels:
        selector = {**part(spec, "nodeSelector"), **group.labels}
        findings.change(("spec", "nodeSelector"), selector)
    if group.affinity and not spec.get("affinity"):
        findings.change(("spec", "affinity"), dict(group.affinity))
    if group.tolerations:
        held = spec.get("tolerations")
        kept = held if isinstance(held, list) else []
        findings.change(("spec", "tolerations"), [*kept, *group.tolerations])
    if group.scheduler_name:
        findings.change(("spec", "schedulerName"), group.scheduler_name)


def validate(request: Request, world: World, settings: Settings) -> Response:
    """Whether a pod may be made."""
    findings = Findings()
    is_ours = part(request.obj, "spec").get("schedulerName") in settings.scheduler_names
    if request.action is not Action.CREATE or not is_ours:
        return findings.response()
    annotations = part(part(request.obj, "metadata"), "annotations")
    _check_budgets(annotations, findings)
    queue = world.queue(annotations.get(QUEUE_NAME, ""))
    if queue is not None and not first_annotation(annotations, GROUP_NAME_ANNOTATIONS):
        check_access(queue, request, settings, findings)
    return findings.response()


def _check_budgets(annotations: Mapping[str, str], findings: Findings) -> None:
    written = [key for key in _BUDGETS if key in annotations]
    for key in written:
        problem = _budget_problem(annotations[key])
        if problem:
            findings.deny(
                f'invalid value <"{annotations[key][:_SHOWN]}"> for {key}, {problem}: '
                f"metadata.annotations[{key}]"
            )
    if len(written) > 1:
        findings.deny(
            f"not allow configure multiple annotations <[{' '.join(_BUDGETS)}]> at same time: "
            "metadata.annotations; keep one of them"
        )


def _budget_problem(text: str) -> str:
    number = text.removesuffix("%")
    is_number = number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
    if text.endswith("%"):
        fits = is_number and 0 < int(number) < _PERCENT
        return "" if fits else "it must be a valid percentage which between 1% ~ 99%"
    return "" if is_number and int(number) else "it must be a positive integer"
