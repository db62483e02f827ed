"""Commands (`bus.volcano.sh`): user requests to run an action on a queue or a job.

Volcano deletes a Command before it executes the action, so a crash in between loses the Command.
optsched deletes a Command only after the action's effect is visible, so an action may be executed
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.json_fields import (
    created_ms,
    group_of,
    name_of,
    namespace_of,
    subobject,
    uid_of,
    version_of,
)
from optsched.api.kinds import COMMAND, QUEUE, SCHEDULING_GROUP, Kind, Ref
from optsched.controllers.controller import Index
from optsched.controllers.effects import Again, delete_object
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import Wakes, World
    from optsched.controllers.effects import Effects


UNSEEN_MS: Final = 60_000
"""Time in ms for which a Command is kept although no watch has reported its target."""


def _list_keys(command: Manifest) -> Iterable[str]:
    target = subobject(command, "target")
    group = group_of(str(target.get("apiVersion") or ""))
    yield _key(group, str(target.get("kind")), namespace_of(command), str(target.get("name")))


def _key(group: str, kind: str, namespace: str, name: str) -> str:
    if (group, kind) == (SCHEDULING_GROUP, QUEUE.kind):
        namespace = ""
    return f"{group}/{kind}/{namespace}/{name}"


COMMANDS_OF: Final = Index(COMMAND, "target", _list_keys)
"""Index of Commands by target; a Command that targets a queue may be in any namespace."""


def commands_for(ref: Ref, world: World) -> Sequence[Manifest]:
    """Return the Commands that target an object, from oldest to newest."""
    key = _key(ref.kind.group, ref.kind.kind, ref.namespace, ref.name)
    # Creation times are in seconds, so Commands with equal times are sorted by resource version,
    # which etcd assigns in ascending order.
    return sorted(
        world.list_indexed(COMMANDS_OF, key),
        key=lambda command: (
            created_ms(command),
            int(version_of(command)) if is_decimal(version_of(command)) else 0,
            name_of(command),
        ),
    )


def delete_orphaned_commands(ref: Ref, world: World) -> Effects:
    """Return the effects that delete the Commands whose target does not exist.

    A Command younger than `UNSEEN_MS` is kept, because the watch may not have reported its target.
    """
    commands = commands_for(ref, world)
    old = [c for c in commands if world.now_ms - created_ms(c) >= UNSEEN_MS]
    again = () if len(old) == len(commands) else (Again(UNSEEN_MS / 1000),)
    return (*(delete_object(COMMAND, command) for command in old), *again)


def action_of(command: Manifest) -> str:
    """Return the action of a Command, such as CloseQueue."""
    return str(command.get("action") or "")


def is_addressed_to(command: Manifest, obj: Manifest) -> bool:
    """Return whether a Command targets this object, not an earlier object with the same name."""
    return subobject(command, "target").get("uid") in (None, "", uid_of(obj))


def command_wakes(kind: Kind) -> Wakes:
    """Return a `Wakes` function that returns a Command's target if the target's kind is `kind`."""

    def wakes(command: Manifest, _: World) -> Iterable[Ref]:
        target = subobject(command, "target")
        group = group_of(str(target.get("apiVersion") or ""))
        if (group, target.get("kind")) != (kind.group, kind.kind):
            return ()
        namespace = namespace_of(command) if kind.namespaced else ""
        return (Ref(kind, namespace, str(target.get("name") or "")),)

    return wakes
