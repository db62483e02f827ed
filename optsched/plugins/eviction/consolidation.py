"""Who may be moved for whom: told to go, and started again at once elsewhere.

Mathematics: models/formulation/consolidation.md. What moves is given back to its queue in the same
plan, so that a queue loses nothing, and equals may be moved for one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.plugins.extension_points import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Evict
    from optsched.cluster.snapshot import Gang
    from optsched.plugins.verification.world import World

CONSOLIDATE = "consolidation"


class Consolidation(Rule):
    """Only what somebody starts again is moved, with a place, for gangs that are as important."""

    name = "consolidation"

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`. That places are there is for all other rules to say."""
        gangs = world.snapshot.gang_by_key
        for eviction in world.evictions:
            task = world.task_by_key.get(eviction.task)
            gang = gangs.get("" if task is None else task.gang)
            preemptor = gangs.get(eviction.preemptor)
            if eviction.action != CONSOLIDATE or gang is None or preemptor is None:
                continue  # `Victims` reports what does not exist
            problem = _immovable(world, eviction, gang, preemptor)
            if problem:
                detail = f"moved for {preemptor.key}, but {problem}"
                yield Violation(self.name, f"task {eviction.task}", detail)


def _immovable(world: World, eviction: Evict, gang: Gang, preemptor: Gang) -> str:
    """Why a task may not be moved; empty when it may."""
    if gang.key == preemptor.key:
        return "is of that gang itself"
    if not eviction.to:
        return "has no place to start again"
    if not world.task_by_key[eviction.task].is_movable:
        return "nobody would start it again"
    if gang.priority > preemptor.priority:
        return "is more important"
    queue = world.snapshot.queue_by_name.get(gang.queue)
    if gang.queue != preemptor.queue and (queue is None or not queue.reclaimable):
        return f"queue {gang.queue} gives nothing back"
    return ""
