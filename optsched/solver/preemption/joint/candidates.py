"""Candidate victims of a session: the running tasks that some plan may evict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM

if TYPE_CHECKING:
    from optsched.problem.arrays import Bool
    from optsched.solver.preemption.sequential.running import SessionFacts


class Candidates(NamedTuple):
    """Masks of running tasks that some plan may evict (axis V of `problem.running`), by reason.

    Attributes
    ----------
    preempted
        (V,) tasks of a lower priority than some pending gang in the same queue.
    exchanged
        (V,) tasks of a lower priority than some pending task of the same gang.
    reclaimed
        (V,) tasks in reclaimable queues, provided that a gang of another queue is pending.

    """

    preempted: Bool
    exchanged: Bool
    reclaimed: Bool

    @property
    def any_reason(self) -> Bool:
        """A mask (V,) of the tasks that some plan preempts, exchanges or reclaims."""
        found: Bool = self.preempted | self.exchanged | self.reclaimed
        return found


def find_candidates(
    facts: SessionFacts, reach: frozenset[str], *, waives: bool = True
) -> Candidates:
    """Find all running tasks that some plan may evict.

    Parameters
    ----------
    facts
        The running tasks and the deserved shares of queues.
    reach
        The actions of the policy that may evict tasks: preempt, reclaim.
    waives
        Whether to include protected tasks that only reclaims within a guarantee may evict. `waives`
        is valid only if the model only computes bounds, because the candidates do not depend on the
        reclaiming gang.

    """
    problem, running = facts.problem, facts.running
    gangs = problem.open_gangs
    free = ~facts.spared & (running.queue_of >= 0)
    nobody = np.zeros(len(running), np.bool_)
    preempted, exchanged, reclaimed = nobody, nobody, nobody
    if PREEMPT in reach:
        highest = np.full(len(problem.queues.names) + 1, np.iinfo(np.int64).min)
        np.maximum.at(highest, problem.queue_of[gangs], problem.priority[gangs])
        highest[-1] = np.iinfo(np.int64).min
        preempted = free & (problem.priority[running.gang_of] < highest[running.queue_of])
        highest_of: dict[int, int] = {}
        for task, gang in zip(problem.tasks, problem.gang_of.tolist(), strict=True):
            highest_of[gang] = max(task.priority, highest_of.get(gang, task.priority))
        of_gang = zip(running.tasks, running.gang_of.tolist(), strict=True)
        lower = [task.priority < highest_of.get(gang, task.priority) for task, gang in of_gang]
        exchanged = free & np.array(lower, np.bool_)
    if RECLAIM in reach and facts.due is not None:
        pending = np.zeros(len(problem.queues.names), np.bool_)
        pending[problem.queue_of[gangs]] = True
        another = int(pending.sum()) - pending.astype(np.int64) > 0
        lends = facts.reclaimable & another
        can_go = free | facts.floors.overridable if waives else free
        reclaimed = can_go & np.append(lends, False)[running.queue_of]
    return Candidates(preempted, exchanged, reclaimed)
