"""Queue states (Open, Closing, Closed, Unknown) and the Commands that change them.

States, actions and annotations follow Volcano's pkg/controllers/queue. This controller writes
`status.state`, a missing `spec.parent`, and the annotation `volcano.sh/closed-by-parent`. The
scheduler writes the PodGroup counts and the allocated resources in the status.

Differences from Volcano:
A parent queue becomes Closed only after all its child queues are Closed.
A completed PodGroup does not keep its queue Closing.
A queue in an unknown state becomes Open, or Closed if its parent queue is closed.
A queue that a Command closed stays closed when its parent queue opens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.api.json_fields import (
    annotations_of,
    is_terminating,
    name_of,
    spec_of,
    status_of,
)
from optsched.api.kinds import COMMAND, POD_GROUP, QUEUE, Ref
from optsched.api.meta import EventType
from optsched.api.podgroup import PodGroupPhase
from optsched.api.queue import QueueState
from optsched.api.wellknown import CLOSED_BY_PARENT, DEFAULT_QUEUE, ROOT_QUEUE
from optsched.controllers.bus_commands import (
    COMMANDS_OF,
    action_of,
    command_wakes,
    commands_for,
    delete_orphaned_commands,
    is_addressed_to,
)
from optsched.controllers.controller import Controller, Index, existing
from optsched.controllers.effects import (
    Then,
    delete_object,
    event_about,
    patch_object,
    patch_status,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effects, Emit


OPEN_QUEUE: Final = "OpenQueue"
CLOSE_QUEUE: Final = "CloseQueue"
SYNC_QUEUE: Final = "SyncQueue"
_ACTIONS: Final = (OPEN_QUEUE, CLOSE_QUEUE, SYNC_QUEUE)
_SHUT: Final = frozenset({QueueState.CLOSED.value, QueueState.CLOSING.value})
_TRUE: Final = "true"


def queue_of_group(group: Manifest) -> str:
    """Return the name of a PodGroup's queue."""
    return str(spec_of(group).get("queue") or DEFAULT_QUEUE)


def parent_of(queue: Manifest) -> str:
    """Return the name of a queue's parent; empty for the root queue."""
    if name_of(queue) == ROOT_QUEUE:
        return ""
    return str(spec_of(queue).get("parent") or ROOT_QUEUE)


GROUPS_OF: Final = Index(POD_GROUP, "queue", lambda group: (queue_of_group(group),))
CHILDREN_OF: Final = Index(QUEUE, "parent", lambda queue: (parent_of(queue),))


@dataclass(frozen=True, slots=True)
class _DesiredState:
    """The desired state of a queue.

    `by_parent` is true if the queue is closed only because its parent queue is closed.
    """

    is_open: bool
    by_parent: bool = False


def reconcile(queue: Manifest, world: World) -> Effects:
    """Return the writes that bring a queue to its desired state.

    Commands, the parent queue and the queue's PodGroups determine the desired state. The order of
    the writes makes a crash between two writes harmless. `volcano.sh/closed-by-parent` is set
    before the state becomes Closing or Closed, and removed after the state becomes Open. Commands
    are deleted last.
    """
    if is_terminating(queue):
        return ()
    commands = commands_for(Ref(QUEUE, "", name_of(queue)), world)
    by_parent = annotations_of(queue).get(CLOSED_BY_PARENT) == _TRUE
    desired = _DesiredState(status_of(queue).get("state") not in _SHUT, by_parent)
    refusals: list[Emit] = []
    for action in (action_of(each) for each in commands if is_addressed_to(each, queue)):
        refusal = _find_refusal(action, queue, world)
        if refusal:
            refusals.append(_emit(queue, action, refusal))
        elif action != SYNC_QUEUE:
            desired = _DesiredState(action == OPEN_QUEUE)
    if _is_shut(parent_of(queue), world):
        desired = _DesiredState(is_open=False, by_parent=True) if desired.is_open else desired
    elif desired.by_parent:
        desired = _DesiredState(is_open=True)
    state = QueueState.OPEN
    if not desired.is_open:
        groups = world.list_indexed(GROUPS_OF, name_of(queue))
        children = world.list_indexed(CHILDREN_OF, name_of(queue))
        is_empty = all(
            status_of(group).get("phase") == PodGroupPhase.COMPLETED for group in groups
        ) and all(status_of(child).get("state") == QueueState.CLOSED for child in children)
        state = QueueState.CLOSED if is_empty else QueueState.CLOSING
    corrections: dict[str, object] = {}
    if (annotations_of(queue).get(CLOSED_BY_PARENT) == _TRUE) != desired.by_parent:
        value = _TRUE if desired.by_parent else None
        corrections["metadata"] = {"annotations": {CLOSED_BY_PARENT: value}}
    if name_of(queue) != ROOT_QUEUE and not spec_of(queue).get("parent"):
        corrections["spec"] = {"parent": ROOT_QUEUE}
    if state != status_of(queue).get("state") and (desired.is_open or not corrections):
        patch = patch_status(QUEUE, queue, {"state": state.value})
        return (Then((patch, *_state_events(queue, state))), *refusals)
    if corrections:
        return (patch_object(QUEUE, queue, corrections), *refusals)
    return (*refusals, *(delete_object(COMMAND, command) for command in commands))


# --- desired state --------------------------------------------------------------------------------


def _find_refusal(action: str, queue: Manifest, world: World) -> str:
    """Return the reason that a Command on a queue is rejected, or "" if it is accepted."""
    if action not in _ACTIONS:
        return f"{action or 'an empty action'} is not valid for queues: use {', '.join(_ACTIONS)}"
    if action == CLOSE_QUEUE and name_of(queue) == ROOT_QUEUE:
        return f"queue {ROOT_QUEUE} cannot be closed: every other queue is below it"
    if action == OPEN_QUEUE and _is_shut(parent := parent_of(queue), world):
        return f"queue {name_of(queue)} stays closed: its parent {parent} is closed; open it first"
    return ""


def _is_shut(name: str, world: World) -> bool:
    queue = world.get(QUEUE, "", name) if name else None
    return queue is not None and status_of(queue).get("state") in _SHUT


# --- writes ---------------------------------------------------------------------------------------


def _state_events(queue: Manifest, state: QueueState) -> Iterator[Emit]:
    before = str(status_of(queue).get("state") or "")
    if before and state is QueueState.OPEN:
        was_closed = before in _SHUT
        message = (
            "takes work again" if was_closed else f"takes work again: its state was {before!r}"
        )
        yield _emit(queue, OPEN_QUEUE, message, EventType.NORMAL)
    elif before not in _SHUT and state is not QueueState.OPEN:
        yield _emit(queue, CLOSE_QUEUE, "takes no new work", EventType.NORMAL)


def _emit(queue: Manifest, reason: str, message: str, type_: EventType = EventType.WARNING) -> Emit:
    name = reason if reason in _ACTIONS else "UnknownCommand"
    return event_about(QUEUE, queue, type_, name, message, code=message)


# --- wakes ---------------------------------------------------------------------------------------


def _group_wakes(group: Manifest, world: World) -> Iterable[Ref]:
    """Return a PodGroup's queue for reconciliation if the queue is Closing or Closed."""
    name = queue_of_group(group)
    return (Ref(QUEUE, "", name),) if _is_shut(name, world) else ()


def _queue_wakes(queue: Manifest, world: World) -> Iterable[Ref]:
    parent = parent_of(queue)
    if parent and _is_shut(parent, world):
        yield Ref(QUEUE, "", parent)
    for child in world.list_indexed(CHILDREN_OF, name_of(queue)):
        yield Ref(QUEUE, "", name_of(child))


QUEUES: Final = Controller(
    name="queue",
    kind=QUEUE,
    decide=existing(QUEUE, reconcile, delete_orphaned_commands),
    wakes={POD_GROUP: _group_wakes, COMMAND: command_wakes(QUEUE), QUEUE: _queue_wakes},
    indexes=(GROUPS_OF, CHILDREN_OF, COMMANDS_OF),
)


def groups_by_phase(world: World) -> dict[PodGroupPhase, dict[str, int]]:
    """Return the number of PodGroups by phase and queue name.

    The number is 0 for each phase in which a queue has no PodGroup.
    """
    found = Counter(
        (queue_of_group(group), str(status_of(group).get("phase") or PodGroupPhase.PENDING))
        for group in world.listed(POD_GROUP)
    )
    queues = [name_of(queue) for queue in world.listed(QUEUE)]
    return {phase: {name: found[name, phase] for name in queues} for phase in PodGroupPhase}
