"""Avoid plans that start a gang and preempt higher-priority pods in the same queue.

Mathematics: models/formulation/victims.md, "Priority inversions". In the objective, starting a gang
counts more than avoiding any number of victims. A lower-priority gang may therefore be placed on
idle capacity, and a higher-priority gang then needs victims. In the next session, the recreated
victims would evict the pods of the lower-priority gang.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import Allocate, Evict, Nominate, placed_gangs
from optsched.plugins.eviction.entitled import PREEMPT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.session.attempt import Attempt
    from optsched.session.candidates import Candidate

SPARED: Final = "less important gangs wait so that more important pods of their queue keep running"


def avoid_inversions(
    attempt: Attempt,
    chosen: Candidate,
    others: Sequence[Candidate],
    lend: Callable[[Candidate], tuple[Candidate, list[Violation]]],
) -> Candidate:
    """Return the best plan with fewer victims than `chosen` that delays only inverted gangs.

    Parameters
    ----------
    chosen
        A plan that the verifier accepts.
    others
        The other candidates, from best to worst.
    lend
        Adds loans to a plan; returns the plan and its violations.

    Returns
    -------
    Candidate
        A plan with fewer victims than `chosen` that places at least as many tasks of each gang that
        is not inverted in `chosen`. A gang is inverted if it gets capacity while higher-priority
        pods in its queue are preempted. If no candidate is such a plan, the result is `chosen`.

    """
    actions = chosen.actions or ()
    inverted = find_inverted(attempt.before, actions)
    if not inverted:
        return chosen
    required = _count_placed(actions)
    num_victims = sum(isinstance(action, Evict) for action in actions)
    for other in others:
        found = attempt.with_actions(other)
        if sum(isinstance(action, Evict) for action in found.actions or ()) >= num_victims:
            continue
        lent, violations = lend(found)
        placed = _count_placed(lent.actions or ())
        serves_others = all(
            placed[gang] >= number for gang, number in required.items() if gang not in inverted
        )
        if serves_others and not violations:
            return replace(lent, limitations=(SPARED,))
    return chosen


def find_inverted(before: Snapshot, actions: Sequence[Action]) -> Set[str]:
    """Return the keys of gangs that get capacity while higher-priority pods are preempted.

    Only victims in the same queue as the gang are considered.
    """
    preempted = {a.task for a in actions if isinstance(a, Evict) and a.action == PREEMPT}
    if not preempted:
        return set()
    highest: dict[str, int] = {}
    for gang in before.gangs:
        if any(task.key in preempted for task in gang.tasks):
            highest[gang.queue] = max(gang.priority, highest.get(gang.queue, gang.priority))
    return {
        gang.key
        for gang in map(before.gang_by_key.__getitem__, placed_gangs(actions))
        if gang.priority < highest.get(gang.queue, gang.priority)
    }


def _count_placed(actions: Sequence[Action]) -> Counter[str]:
    """Count the placed tasks, keyed by gang."""
    return Counter(a.gang for a in actions if isinstance(a, Allocate | Nominate))
