"""Validation of the queue hierarchy: parent queues, child queues, and their resources.

Source: pkg/webhooks/admission/queues/validate/validate_queue.go. If a parent queue does not list a
resource in `deserved` or `guarantee`, its amount is 0. If no ancestor lists a resource in
`capability`, the resource has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.kinds import QUEUE
from optsched.api.wellknown import DEFAULT_QUEUE, ROOT_QUEUE
from optsched.units import PODS, format_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.admission.findings import Findings, Review
    from optsched.admission.world import World
    from optsched.api.queue import Queue


def check_deletion(name: str, review: Review) -> None:
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
        review.rests_on(QUEUE, name)
    if children:
        names = ", ".join(sorted(child.name for child in children))
        review.deny(
            f"queue {name} cannot be deleted because it has {len(children)} child queues: "
            f"{names}: delete those first"
        )
        for child in children:
            review.rests_on(QUEUE, child.name)


def check_parent(queue: Queue, review: Review) -> bool:
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
        review.rests_on(QUEUE, name)
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
        review.rests_on(QUEUE, parent.name)
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


def check_resources_of_tree(queue: Queue, review: Review) -> None:
    """Check a queue's resources against its ancestors, siblings and descendants."""
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
            review.rests_on(QUEUE, limiting.name)
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
                review.rests_on(QUEUE, largest.name)


def _check_sums(parent: Queue, children: Iterable[Queue], findings: Findings) -> None:
    held = list(children)
    for part, limits in (
        ("guarantee", parent.guarantee),
        ("deserved", parent.effective_deserved),
    ):
        total: dict[str, int] = {}
        for child in held:
            for name, amount in getattr(child, part).items():
                total[name] = total.get(name, 0) + amount
        for resource in sorted(total):
            if total[resource] > limits.get(resource, 0):
                named = ", ".join(
                    sorted(each.name for each in held if getattr(each, part).get(resource))
                )
                findings.deny(
                    f"parent queue {parent.name} validation failed: sum of children's {part} "
                    f"({resource} {format_quantity(total[resource], resource)}) exceeds parent's "
                    f"{part} limit ({resource} "
                    f"{format_quantity(limits.get(resource, 0), resource)}): raise spec.{part} of "
                    f"{parent.name} or lower spec.{part} of {named}"
                )
                findings.rests_on(QUEUE, parent.name)


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
