"""Loans instead of preemption: a gang that may borrow idle nodes evicts no pods in its queue.

Mathematics: models/formulation/lending.md, "Loans before victims". The first stage of a session
caps each queue at its deserved share. Because of the cap, a gang may preempt pods in its queue
although it could borrow an idle node. In the next session, the recreated victims would borrow the
idle node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Evict, Nominate, placed_gangs
from optsched.plugins.eviction.entitled import PREEMPT
from optsched.plugins.verification.verify import verify_actions
from optsched.session.certification import first_stage
from optsched.session.lending import (
    LENT_FIRST,
    find_shares,
    lend_idle,
    separate_loans,
    without_lending,
)
from optsched.session.repair import drop_gangs, evaluate_rest
from optsched.solver.portfolio import evaluate_greedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.plugins.extension_points import Violation
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Decisions
    from optsched.session.attempt import Attempt
    from optsched.session.bounds import EvictionScope
    from optsched.session.candidates import Candidate

_MOST_TRIALS = 4
"""Maximum number of sets of preempting gangs to try; each trial repeats lending."""

_MOST_DROPPED = 8
"""Maximum number of gangs that are dropped, and then may borrow, because victims keep running."""


def lend_before_victims(
    attempt: Attempt,
    scope: EvictionScope,
    chosen: Candidate,
    lent: Candidate,
    lend: Callable[[Candidate], tuple[Candidate, list[Violation]]],
) -> Candidate:
    """Return a plan in which gangs borrow idle capacity instead of evicting pods as in `lent`.

    Parameters
    ----------
    chosen, lent
        The same plan before and after lending. The verifier accepts `lent`.
    lend
        Adds loans to a plan; returns the plan and its violations.

    Returns
    -------
    Candidate
        A plan that starts all gangs of `lent`, except borrowing gangs that are less important than
        the gangs that no longer preempt. Returns `lent` itself if no gang can borrow.

    """
    session = attempt.session
    shares = find_shares(session.policy.rules)
    if shares is None or not shares.lends or not session.is_optimised:
        return lent
    keys = (gang.key for gang in chosen.round.problem.snapshot.gangs)
    tier_of = dict(zip(keys, chosen.round.tiers.of.tolist(), strict=True))
    best, first = lent, chosen
    for preemptors in _list_sets(chosen.actions or (), tier_of):
        if session.clock.is_late:
            break
        if not any(isinstance(a, Evict) and a.preemptor in preemptors for a in first.actions or ()):
            continue
        found = _without_victims_for(attempt, scope, first, preemptors)
        if found is None:
            continue
        dropped = placed_gangs(first.actions or ()) - placed_gangs(found.actions or ())
        gangs = preemptors | dropped
        if not _starts_all(found, best, gangs, tier_of):
            continue
        rest = replace(found, lending=None)
        with_loans, violations = lend(rest)
        if not violations and _starts_all(with_loans, best, gangs, tier_of):
            best, first = replace(with_loans, limitations=(LENT_FIRST,)), rest
    return best if best is lent else _with_least_loans(attempt, scope, best)


def _with_least_loans(attempt: Attempt, scope: EvictionScope, lent: Candidate) -> Candidate:
    """Return a plan in which a gang borrows only if other gangs use up its queue's share.

    A gang that was dropped from the first stage may fit into the share once all gangs are placed.
    """
    each, solution = lent.round, lent.solution

    def evaluate(decisions: Decisions) -> Candidate:
        found = evaluate_greedy(each.problem, decisions, each.levels, solution.stopped)
        return replace(lent, solution=replace(found, engine=solution.engine), lending=None)

    whole = evaluate(lent.decisions)
    first, lending = separate_loans(first_stage(attempt.session, scope, whole), each.levels)
    return replace(evaluate(first), lending=lending)


def _list_sets(actions: Sequence[Action], tier_of: Mapping[str, int]) -> Iterator[frozenset[str]]:
    """Yield sets of gangs that could borrow: all preempting gangs together, then each alone.

    A set also contains the gangs nominated to the victims' nodes. Sets that contain a reclaiming
    gang are omitted. No set is yielded if the plan moves pods.
    """
    evictions = [a for a in actions if isinstance(a, Evict) and a.preemptor]
    if any(eviction.to for eviction in evictions):
        return
    others = {e.preemptor for e in evictions if e.action != PREEMPT}
    preemptors = sorted(
        {e.preemptor for e in evictions} - others, key=lambda key: (tier_of[key], key)
    )
    sets = dict.fromkeys(
        _with_users(actions, evictions, keys)
        for keys in (preemptors, *([key] for key in preemptors))
        if keys
    )
    allowed = [gangs for gangs in sets if not gangs & others]
    yield from allowed[:_MOST_TRIALS]


def _with_users(
    actions: Sequence[Action], evictions: Sequence[Evict], keys: Sequence[str]
) -> frozenset[str]:
    """Return `keys` and the gangs nominated to nodes of victims evicted for gangs in `keys`."""
    gangs: set[str] = set()
    found = set(keys)
    while found != gangs:
        gangs = set(found)
        nodes = {e.node for e in evictions if e.preemptor in gangs}
        found |= {a.gang for a in actions if isinstance(a, Nominate) and a.node in nodes}
    return frozenset(gangs)


def _without_victims_for(
    attempt: Attempt, scope: EvictionScope, chosen: Candidate, gangs: frozenset[str]
) -> Candidate | None:
    """Return a plan with loans of the greedy pipeline, in which `gangs` have no victims.

    The former victims keep running and use part of the queue's share. If the queue then exceeds its
    share, the least important of its other gangs are dropped and may borrow. Returns None if the
    queue still exceeds its share after `_MOST_DROPPED` gangs are dropped, or if nothing is lent.
    """
    session, each = attempt.session, chosen.round
    actions = drop_gangs(chosen.actions or (), set(gangs))
    before = replace(attempt.before, reservations=each.problem.snapshot.reservations)
    firm = without_lending(session.rules)
    problem = each.problem
    queues = {problem.snapshot.gang_by_key[key].queue for key in gangs}
    placed = placed_gangs(actions) - {a.preemptor for a in actions if isinstance(a, Evict)}
    order = np.lexsort((problem.created_ms, each.tiers.of))[::-1]
    # The other placed gangs in these queues for which no pod is evicted, least important first.
    mates = [
        gang.key
        for gang in (problem.snapshot.gangs[g] for g in order.tolist())
        if gang.key in placed and gang.queue in queues
    ][:_MOST_DROPPED]
    with session.clock.measure("verify"):
        while verify_actions(before, actions, firm):
            if not mates:
                return None
            actions = drop_gangs(actions, {mates.pop(0)})
    with session.clock.measure("lend"):
        rest = evaluate_rest(attempt, chosen, actions)
        lending = lend_idle(first_stage(session, scope, rest), None)
        return None if lending is None else replace(rest, lending=lending)


def _starts_all(
    found: Candidate, known: Candidate, gangs: frozenset[str], tier_of: Mapping[str, int]
) -> bool:
    """Return whether `found` starts at least as many tasks of each relevant gang as `known`.

    A gang is relevant if it is at least as important as the least important of `gangs`. The tasks
    of `gangs` must start immediately, without waiting for other pods to terminate.
    """
    last = max(tier_of[key] for key in gangs)
    required = _count_placed(known, known.decisions.nominated)
    placed = _count_placed(found, found.decisions.nominated)
    started = _count_placed(found)
    return all(
        (started if key in gangs else placed)[key] >= number
        for key, number in required.items()
        if tier_of[key] <= last
    )


def _count_placed(plan: Candidate, nominated: I64 | None = None) -> Counter[str]:
    """Return how many tasks of each gang start or have a node in `nominated` (T,)."""
    problem, node_of = plan.round.problem, plan.decisions.node_of
    if nominated is not None:
        node_of = np.maximum(node_of, nominated)
    tasks = np.flatnonzero(node_of >= 0)
    return Counter(problem.snapshot.gangs[g].key for g in problem.gang_of[tasks].tolist())
