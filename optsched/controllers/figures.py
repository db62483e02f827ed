"""Numbers for metrics, counted from the objects."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from optsched.api.kinds import POD_GROUP, QUEUE
from optsched.api.podgroup import PodGroupPhase
from optsched.controllers.json_fields import name_of, status_of
from optsched.controllers.queue import queue_of_group

if TYPE_CHECKING:
    from optsched.controllers.world import World


def groups_by_phase(world: World) -> dict[PodGroupPhase, dict[str, int]]:
    """PodGroups of each queue in each phase; queues without any have 0."""
    found = Counter(
        (queue_of_group(group), str(status_of(group).get("phase") or PodGroupPhase.PENDING))
        for group in world.listed(POD_GROUP)
    )
    queues = [name_of(queue) for queue in world.listed(QUEUE)]
    return {phase: {name: found[name, phase] for name in queues} for phase in PodGroupPhase}
