"""Why no eviction helps a gang, in one sentence with the numbers that decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.wording import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.problem import Problem
    from optsched.solver.preemption.sequential.compile import EvictionCompiler
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        EvictionState,
    )


def explain_shortage(problem: Problem, bid: EvictionProblem) -> Reason | None:
    """The resource of which too little can be had, and who keeps it; None if that is not why."""
    for r in np.flatnonzero(bid.request.any(axis=0)).tolist():
        name = problem.resources[r]
        asked = _minimum_request(bid, r)
        free = int(bid.room[bid.allowed.any(axis=0), r].sum())
        lent = list(_find_lenders(problem, bid, r))
        own = ~bid.groups.reclaimed
        preempted = int((bid.groups.count * bid.groups.request[:, r])[own].sum())
        if lent and free + preempted + sum(most for _, most in lent) < asked:
            givers = ", ".join(
                f"queue {problem.queues.names[q]} may give back {amount_text(name, most)}"
                f"{_describe_lender(problem, bid, q, r)}"
                for q, most in lent
            )
            return Reason(
                ReasonCode.DESERVED,
                f"{amount_text(name, asked)} are asked for, {amount_text(name, free)} are free, "
                f"{givers}",
            )
    return None


def explain_kept_capacity(
    compiler: EvictionCompiler, gang: int, state: EvictionState
) -> Reason | None:
    """The queue that lends what a gang could claim, but does not have to give it back."""
    problem = compiler.problem
    for queue, r, held, due in compiler.find_kept_capacity(gang, state):
        resource, name = problem.resources[r], problem.queues.names[queue]
        return Reason(
            ReasonCode.DESERVED,
            f"queue {name} holds {amount_text(resource, held)}, "
            f"deserves {amount_text(resource, due)}, and is not reclaimable",
        )
    return None


def _minimum_request(bid: EvictionProblem, resource: int) -> int:
    """The least that the gang must get of a resource to start."""
    amounts = np.sort(np.repeat(bid.request[:, resource], bid.most))
    return int(amounts[: max(bid.need, 1)].sum())


def _find_lenders(
    problem: Problem, bid: EvictionProblem, resource: int
) -> Iterator[tuple[int, int]]:
    """Queues that lend, and the most that each may give back of a resource."""
    groups = bid.groups
    held = groups.count * groups.request[:, resource]
    for queue in np.unique(groups.queue[groups.reclaimed]).tolist():
        most = int(held[groups.reclaimed & (groups.queue == queue)].sum())
        for lending in bid.lendings:
            if int(groups.queue[lending.groups[0]]) == queue:
                found = [(m // size) * size for r, size, _, m in lending.options if r == resource]
                if found and len(found) == len(lending.options):
                    most = min(most, max(0, *found))
        yield queue, most


def _describe_lender(problem: Problem, bid: EvictionProblem, queue: int, resource: int) -> str:
    """What the queue that is in the way holds and deserves."""
    for lending in bid.lendings:
        due = dict(lending.due).get(resource)
        if int(bid.groups.queue[lending.groups[0]]) == queue and due is not None:
            below = problem.queues.subtree[lending.queue]
            held = int(problem.queues.allocated[below, resource].sum())
            name = problem.resources[resource]
            whose = problem.queues.names[lending.queue]
            return f" ({whose} holds {amount_text(name, held)}, deserves {amount_text(name, due)})"
    return ""
