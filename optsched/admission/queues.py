"""Queues: defaults on creation, and validation on creation, update and deletion.

Two rules differ from Volcano. A guarantee without a deserved amount is accepted with a warning, as
before Volcano 1.14. If a new queue has no parent, admission sets the root queue as its parent; in
Volcano, a controller does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.queue_tree import (
    check_deletion,
    check_parent,
    check_resources_of_tree,
)
from optsched.admission.review import Action
from optsched.api.kinds import QUEUE
from optsched.api.queue import QueueState, parse_queue
from optsched.api.wellknown import HIERARCHY, HIERARCHY_WEIGHTS, ROOT_QUEUE
from optsched.units import QuantityError, format_quantity, why_no_whole_amount
from optsched.units.digits import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.admission.findings import Review
    from optsched.admission.review import Raw
    from optsched.api.queue import Queue

_RESOURCES: Final = ("capability", "deserved", "guarantee")
_FLOOR: Final = "is below the guarantee"
"""Prefix of the parser errors that are dropped; `_check_amounts` reports them as Volcano does."""


def mutate(review: Review) -> None:
    """Set a new queue's defaults, and prepend the root queue to a changed hierarchy annotation."""
    obj = review.request.obj or {}
    old = get_mapping(get_mapping(review.request.old, "metadata"), "annotations")
    annotations = get_mapping(get_mapping(obj, "metadata"), "annotations")
    if any(annotations.get(key) != old.get(key) for key in (HIERARCHY, HIERARCHY_WEIGHTS)):
        _add_root_to_hierarchy(annotations, old, review)
    if review.request.action is not Action.CREATE:
        return
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = {}
        review.change(("spec",), {})
    if spec.get("reclaimable") is None:
        review.change(("spec", "reclaimable"), value=True)
    if spec.get("weight") in (None, 0):
        review.change(("spec", "weight"), 1)
    if not spec.get("parent") and review.request.name != ROOT_QUEUE:
        review.change(("spec", "parent"), ROOT_QUEUE)


def _add_root_to_hierarchy(
    annotations: Mapping[str, object], old: Mapping[str, object], findings: Findings
) -> None:
    """Add the root queue and its weight to a hierarchy that does not begin at the root.

    `kubectl apply` sends the path and the weights of the manifest, which lack the root. `old` holds
    the annotations before an update. If the update changes only the path, the weights already
    include the root.
    """
    path, weights = annotations.get(HIERARCHY), annotations.get(HIERARCHY_WEIGHTS)
    if not isinstance(path, str) or not path or _has_root(path):
        return
    findings.change(("metadata", "annotations", HIERARCHY), f"{ROOT_QUEUE}/{path}")
    if weights == old.get(HIERARCHY_WEIGHTS) and _has_root(str(old.get(HIERARCHY))):
        return
    if isinstance(weights, str) and weights:
        findings.change(("metadata", "annotations", HIERARCHY_WEIGHTS), f"1/{weights}")


def _has_root(path: str) -> bool:
    return path.split("/")[0] == ROOT_QUEUE


def validate(review: Review) -> None:
    """Deny an invalid queue, or the deletion of a queue that is in use."""
    if review.request.action is Action.DELETE:
        check_deletion(review.request.name, review)
        return
    if review.request.action is Action.UPDATE and _is_unchanged(
        review.request.old or {}, review.request.obj or {}
    ):
        return
    queue, errors = parse_queue(review.request.obj)
    review.errors(error for error in errors if not error.message.startswith(_FLOOR))
    if queue is None:
        return
    old = parse_queue(review.request.old)[0] if review.request.action is Action.UPDATE else None
    _warn_of_parts(get_mapping(review.request.obj or {}, "spec"), review)
    _check_amounts(queue, review)
    _check_hierarchy(queue, review)
    if old is None:
        if queue.status.state not in (QueueState.OPEN, QueueState.CLOSED):
            sentence = "queue state must be in [Open Closed]"
            review.invalid("status.state", queue.status.state.value, sentence)
    elif queue.name == ROOT_QUEUE and review.settings.protects_root:
        for name in _RESOURCES:
            if getattr(old, name) != getattr(queue, name):
                review.deny(
                    "root queue's resource attributes (capability, deserved, guarantee) cannot be "
                    f"modified: spec.{name}; the root queue has the resources of the whole cluster"
                )
    if queue.name == ROOT_QUEUE:
        return
    is_moved = old is None or (old.parent or ROOT_QUEUE) != (queue.parent or ROOT_QUEUE)
    if is_moved and not check_parent(queue, review):
        return
    if is_moved or any(getattr(old, name) != getattr(queue, name) for name in _RESOURCES):
        check_resources_of_tree(queue, review)


def _is_unchanged(old: Raw, new: Raw) -> bool:
    """Return whether an update of a queue changes no field that is validated."""
    pairs = [get_mapping(get_mapping(each, "metadata"), "annotations") for each in (old, new)]
    return old.get("spec") == new.get("spec") and all(
        pairs[0].get(key) == pairs[1].get(key) for key in (HIERARCHY, HIERARCHY_WEIGHTS)
    )


def _warn_of_parts(spec: Mapping[str, object], findings: Findings) -> None:
    """Warn about device fractions in a queue: Volcano accepts them, but no pod can request them."""
    guarantee = get_mapping(get_mapping(spec, "guarantee"), "resource")
    lists = {name: get_mapping(spec, name) for name in ("capability", "deserved")}
    for name, amounts in {**lists, "guarantee.resource": guarantee}.items():
        for resource, value in sorted(amounts.items()):
            try:
                message = why_no_whole_amount(resource, value)
            except QuantityError:
                continue
            if message:
                findings.warn(f"spec.{name}[{resource}]: {message}")


def _check_amounts(queue: Queue, findings: Findings) -> None:
    for resource in sorted(queue.guarantee):
        floor = _format_amount("guarantee", queue.guarantee, resource)
        if resource not in queue.deserved:
            findings.warn(f"spec.deserved[{resource}]: is not set; {floor} is used instead")
        elif queue.deserved[resource] < queue.guarantee[resource]:
            deserved = _format_amount("deserved", queue.deserved, resource)
            _report_invalid(
                queue.deserved, resource, "deserved", f"{deserved} must be >= {floor}", findings
            )
    for resource in sorted(queue.effective_deserved.keys() & queue.capability.keys()):
        part = "deserved" if resource in queue.deserved else "guarantee"
        amounts = queue.deserved if resource in queue.deserved else queue.guarantee
        if amounts[resource] > queue.capability[resource]:
            held = _format_amount(part, amounts, resource)
            most = _format_amount("capability", queue.capability, resource)
            _report_invalid(amounts, resource, part, f"{held} must be <= {most}", findings)


def _format_amount(part: str, amounts: Mapping[str, int], resource: str) -> str:
    return f"{part}[{resource}]={format_quantity(amounts[resource], resource)}"


def _report_invalid(
    amounts: Mapping[str, int], resource: str, part: str, sentence: str, findings: Findings
) -> None:
    where = "guarantee.resource" if part == "guarantee" else part
    value = format_quantity(amounts[resource], resource)
    findings.invalid(f"spec.{where}[{resource}]", value, sentence)


def _check_hierarchy(queue: Queue, review: Review) -> None:
    """Check the hierarchy in the annotations, which is Volcano's older notation."""
    path, weights = queue.hierarchy, queue.hierarchy_weights
    if not path and not weights:
        return
    where = "metadata.annotations"
    if len(path.split("/")) != len(weights.split("/")):
        sentence = f"{HIERARCHY} must have the same length with {HIERARCHY_WEIGHTS} {weights}"
        review.invalid(f"{where}[{HIERARCHY}]", path, sentence)
        return
    for weight in weights.split("/"):
        number = parse_decimal(weight)
        if number is None or number <= 0:
            problem = "must be larger than 0"
            if number is None:
                problem = "is invalid number: write a number such as 2 or 0.5"
            sentence = f"{weight} in the {weights} {problem}"
            review.invalid(f"{where}[{HIERARCHY_WEIGHTS}]", weights, sentence)
    for other in review.world.queues():
        if other.name != queue.name and other.hierarchy.startswith(f"{path}/"):
            review.invalid(
                f"{where}[{HIERARCHY}]",
                path,
                f"{path} is not allowed to be in the sub path of {other.hierarchy} of queue "
                f"{other.name}: only leaf queues accept jobs",
            )
            review.rests_on(QUEUE, other.name)
