"""Gangs that may borrow idle capacity beyond the deserved share of their queue.

Mathematics: models/formulation/lending.md. A lending queue gets the lent capacity back by reclaim.
A gang may therefore borrow only if the gang's queue is reclaimable and the gang's pods are
preemptable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.cluster.task import TaskStatus
from optsched.plugins.eviction.victims import covers, is_system_gang
from optsched.plugins.verification.world import summed, task_usage

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.plugins.verification.world import World

LEND_IDLE = "proportion.lendIdle"
"""The argument of the plugin `proportion` that lets gangs borrow."""


def may_borrow(gang: Gang, snapshot: Snapshot) -> bool:
    """Return whether a gang may borrow, which requires that reclaim can take the loan back."""
    return not find_firmness(gang, snapshot)


def find_firmness(gang: Gang, snapshot: Snapshot) -> str:
    """Return why a gang's borrowed resources are not reclaimable; empty if reclaim is possible."""
    queue = snapshot.queue_by_name.get(gang.queue)
    if queue is None or not queue.reclaimable:
        return f"queue {gang.queue} is not reclaimable"
    if is_system_gang(gang):
        return "system pods are never evicted"
    waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING]
    if not all(t.preemptable for t in waiting):
        return "its pods are not preemptable"
    if any(t.cooldown_ms for t in waiting):
        return "its pods have a cooldown before eviction"
    if any(covers(budget, t) for budget in snapshot.budgets for t in waiting):
        return "a disruption budget protects its pods"
    return ""


def firm_gains(world: World, queue: str) -> dict[str, int]:
    """Return the resources that a plan gives to a queue's gangs that may not borrow.

    Gangs with nominated tasks are included, because nominated tasks use capacity that other pods
    release, not idle capacity.
    """
    promised = {p.gang.key for p in world.promises}
    firm: dict[str, bool] = {}
    for placement in world.placements:
        gang = placement.gang
        if gang.queue == queue and gang.key not in firm:
            firm[gang.key] = gang.key in promised or not may_borrow(gang, world.snapshot)
    return summed(
        task_usage(placement.task)
        for placement in (*world.placements, *world.promises)
        if placement.gang.queue == queue and firm.get(placement.gang.key, True)
    )
