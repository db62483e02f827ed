"""Queues and the Commands that open or close them: defaults and validation.

Source: pkg/webhooks/admission/queues. Two rules differ from Volcano. A queue with a guarantee but
without a deserved amount of a resource is accepted with a warning, as in Volcano before version
1.14. If a new queue has no parent, admission sets the root queue as its parent; in Volcano, a
controller sets it. Volcano does not review Commands, so any user who may create a Command in some
namespace can close a queue.

If a parent queue does not list a resource in `deserved` or `guarantee`, the parent's quota of this
resource is 0. If no ancestor lists a resource in `capability`, the resource has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import Findings, get_mapping
from optsched.admission.review import AccessQuestion, Action
from optsched.api.json_fields import annotations_of, group_of
from optsched.api.kinds import QUEUE
from optsched.api.queue import QueueState, parse_queue
from optsched.api.wellknown import DEFAULT_QUEUE, HIERARCHY, HIERARCHY_WEIGHTS, ROOT_QUEUE, Subject
from optsched.units import PODS, QuantityError, format_quantity, why_no_whole_amount
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.admission.findings import Findings, Review
    from optsched.admission.world import World
    from optsched.api.queue import Queue

_RESOURCES: Final = ("capability", "deserved", "guarantee")
_FLOOR: Final = "is below the guarantee"
"""Prefix of parser errors that are dropped; `_check_amounts` reports them in Volcano's format."""


def mutate(review: Review) -> None:
    """Set a new queue's defaults, and prepend the root queue to a changed hierarchy annotation."""
    obj = review.request.obj or {}
    old = annotations_of(review.request.old or {})
    annotations = annotations_of(obj)
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
    """Prepend the root queue and its weight to a hierarchy that does not begin at the root.

    `kubectl apply` sends the path and the weights of the manifest, without the root queue. `old`
    holds the annotations before an update. If the update changes only the path, the stored weights
    already include the weight of the root queue.
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
        _check_deletion(review.request.name, review)
        return
    if review.request.action is Action.UPDATE:
        before, after = review.request.old or {}, review.request.obj or {}
        marks_before, marks_after = annotations_of(before), annotations_of(after)
        if before.get("spec") == after.get("spec") and all(
            marks_before.get(key) == marks_after.get(key) for key in (HIERARCHY, HIERARCHY_WEIGHTS)
        ):
            return
    queue, errors = parse_queue(review.request.obj)
    review.errors(error for error in errors if not error.message.startswith(_FLOOR))
    if queue is None:
        return
    old = parse_queue(review.request.old)[0] if review.request.action is Action.UPDATE else None
    _warn_about_fractions(get_mapping(review.request.obj or {}, "spec"), review)
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
    if is_moved and not _check_parent(queue, review):
        return
    if is_moved or any(getattr(old, name) != getattr(queue, name) for name in _RESOURCES):
        _check_resources_of_tree(queue, review)


def _warn_about_fractions(spec: Mapping[str, object], findings: Findings) -> None:
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
        field = "deserved" if resource in queue.deserved else "guarantee"
        amounts = queue.deserved if resource in queue.deserved else queue.guarantee
        if amounts[resource] > queue.capability[resource]:
            actual = _format_amount(field, amounts, resource)
            limit = _format_amount("capability", queue.capability, resource)
            _report_invalid(amounts, resource, field, f"{actual} must be <= {limit}", findings)


def _format_amount(field: str, amounts: Mapping[str, int], resource: str) -> str:
    return f"{field}[{resource}]={format_quantity(amounts[resource], resource)}"


def _report_invalid(
    amounts: Mapping[str, int], resource: str, field: str, sentence: str, findings: Findings
) -> None:
    where = "guarantee.resource" if field == "guarantee" else field
    value = format_quantity(amounts[resource], resource)
    findings.invalid(f"spec.{where}[{resource}]", value, sentence)


def _check_hierarchy(queue: Queue, review: Review) -> None:
    """Check the hierarchy annotations, Volcano's older notation for the parents of a queue."""
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
            review.rests_on_queue(other.name)


def _check_deletion(name: str, review: Review) -> None:
    """Deny the deletion of a built-in queue, or of a queue that has child queues or pods."""
    if name in (DEFAULT_QUEUE, ROOT_QUEUE):
        review.deny(f"{name} queue cannot be deleted: close it, or set its capability to 0")
        return
    queue, children = review.world.queue(name), review.world.children(name)
    if review.settings.checks_allocated and queue is not None and queue.status.allocated.get(PODS):
        review.deny(
            f"queue {name} cannot be deleted because it has allocated Pods: "
            f"{queue.status.allocated[PODS]}: close the queue and wait until its pods end"
        )
        review.rests_on_queue(name)
    if children:
        names = ", ".join(sorted(child.name for child in children))
        review.deny(
            f"queue {name} cannot be deleted because it has {len(children)} child queues: "
            f"{names}: delete those first"
        )
        for child in children:
            review.rests_on_queue(child.name)


def _check_parent(queue: Queue, review: Review) -> bool:
    """Return whether a queue's parent is valid; if not, report why."""
    name = queue.parent
    if name in ("", ROOT_QUEUE):
        return True
    if name == queue.name:
        review.deny(f"queue {name} cannot use itself as parent: spec.parent; name another queue")
        return False
    parent = review.world.queue(name)
    if parent is None:
        review.deny(
            f"failed to get parent queue of queue {queue.name}: spec.parent: there is no queue "
            f"{name}; create it first"
        )
        review.rests_on_queue(name)
        return False
    above = [ancestor.name for ancestor in _ancestors(queue, review.world)]
    if queue.name in above:
        review.deny(
            f"queue {queue.name} cannot use itself as parent: spec.parent: "
            f"{queue.parent} is its descendant"
        )
    elif (
        len(above) + 1 + _subtree_height(queue.name, review.world) > review.settings.max_queue_depth
    ):
        path = "/".join([*reversed(above), queue.name])
        review.deny(
            f"queue {queue.name} exceeds the maximum allowed depth of "
            f"{review.settings.max_queue_depth}: spec.parent: its path would be {path}"
        )
    num_pods = parent.status.allocated.get(PODS, 0)
    if num_pods and not review.world.children(parent.name):
        review.deny(
            f"queue {parent.name} cannot be the parent queue of queue {queue.name} because it has "
            f"allocated Pods: {num_pods}: wait until they end, or name another parent"
        )
        review.rests_on_queue(parent.name)
    return not review.has_problems


def _subtree_height(name: str, world: World) -> int:
    """Return the number of hierarchy levels below a queue; the hierarchy may contain cycles."""
    seen, level, height = {name}, [name], 0
    while True:
        below = [child.name for each in level for child in world.children(each)]
        level = [child for child in dict.fromkeys(below) if child not in seen]
        if not level:
            return height
        seen.update(level)
        height += 1


def _ancestors(queue: Queue, world: World) -> Iterator[Queue]:
    """Yield each ancestor of a queue once, nearest first, without the root queue."""
    seen: set[str] = set()
    above = world.queue(queue.parent)
    while above is not None and above.name not in seen and above.name != ROOT_QUEUE:
        seen.add(above.name)
        yield above
        above = world.queue(above.parent)


def _check_resources_of_tree(queue: Queue, review: Review) -> None:
    """Compare a queue's resource amounts with those of its ancestors, siblings and descendants."""
    for resource, amount in sorted(queue.capability.items()):
        limiting = next(
            (each for each in _ancestors(queue, review.world) if each.capability.get(resource)),
            None,
        )
        if limiting is not None and amount > limiting.capability[resource]:
            review.deny(
                f"queue {queue.name} capability[{resource}]={format_quantity(amount, resource)} "
                f"exceeds its ancestor's capability="
                f"{format_quantity(limiting.capability[resource], resource)}: "
                f"spec.capability[{resource}]; the ancestor is queue {limiting.name}"
            )
            review.rests_on_queue(limiting.name)
    parent = review.world.queue(queue.parent)
    if parent is not None and parent.name != ROOT_QUEUE:
        siblings = [each for each in review.world.children(parent.name) if each.name != queue.name]
        _check_sums(parent, [*siblings, queue], review)
    children = review.world.children(queue.name)
    if children:
        _check_sums(queue, children, review)
        for resource, amount in sorted(queue.capability.items()):
            largest = max(
                _limits_below(queue.name, resource, review.world),
                key=lambda each: (each.capability[resource], each.name),
                default=None,
            )
            if amount and largest is not None and largest.capability[resource] > amount:
                review.deny(
                    f"queue {queue.name} capability[{resource}]="
                    f"{format_quantity(amount, resource)} is less than its child queue "
                    f"{largest.name} capability="
                    f"{format_quantity(largest.capability[resource], resource)}: "
                    f"spec.capability[{resource}]; it must be at least as large"
                )
                review.rests_on_queue(largest.name)


def _check_sums(parent: Queue, children: Sequence[Queue], findings: Findings) -> None:
    for field, limits in (
        ("guarantee", parent.guarantee),
        ("deserved", parent.effective_deserved),
    ):
        total: dict[str, int] = {}
        for child in children:
            for name, amount in getattr(child, field).items():
                total[name] = total.get(name, 0) + amount
        for resource in sorted(total):
            if total[resource] > limits.get(resource, 0):
                named = ", ".join(
                    sorted(each.name for each in children if getattr(each, field).get(resource))
                )
                findings.deny(
                    f"parent queue {parent.name} validation failed: sum of children's {field} "
                    f"({resource} {format_quantity(total[resource], resource)}) exceeds parent's "
                    f"{field} limit ({resource} "
                    f"{format_quantity(limits.get(resource, 0), resource)}): raise spec.{field} of "
                    f"{parent.name} or lower spec.{field} of {named}"
                )
                findings.rests_on_queue(parent.name)


def _limits_below(name: str, resource: str, world: World) -> Iterator[Queue]:
    """Yield a queue's nearest descendants that have a capability for a resource."""
    seen, todo = {name}, list(world.children(name))
    while todo:
        queue = todo.pop()
        if queue.name in seen:
            continue
        seen.add(queue.name)
        if queue.capability.get(resource):
            yield queue
        else:
            todo += world.children(queue.name)


def validate_command(review: Review) -> None:
    """Deny a Command that targets a queue if the user may not patch that queue."""
    target = get_mapping(review.request.obj, "target")
    group = group_of(str(target.get("apiVersion") or ""))
    if (group, target.get("kind")) != (QUEUE.group, QUEUE.kind):
        return
    name = str(target.get("name") or "")
    subject = Subject(review.request.user, review.request.groups)
    question = AccessQuestion(subject, "patch", QUEUE, name)
    if not review.answer(question, default=True):
        review.deny(
            f"user {review.request.user} may not create a Command for queue {name}: needs the "
            f"right to patch queues.{QUEUE.group} {name}"
        )
