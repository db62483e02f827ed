"""Explain in one sentence, with resource amounts, why evictions cannot help a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.problem import Problem
    from optsched.solver.preemption.sequential.compile import EvictionCompiler
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        EvictionState,
    )


def explain_shortage(problem: Problem, eviction: EvictionProblem) -> Reason | None:
    """Return a reason that names a resource of which lending queues cannot give back enough.

    Returns None if lending queues can give back enough of every resource.
    """
    for r in np.flatnonzero(eviction.request.any(axis=0)).tolist():
        name = problem.resources[r]
        amounts = np.sort(np.repeat(eviction.request[:, r], eviction.most))
        requested = int(amounts[: max(eviction.need, 1)].sum())
        free = int(eviction.future_idle[eviction.allowed.any(axis=0), r].sum())
        lent = list(_find_lenders(problem, eviction, r))
        own = ~eviction.groups.reclaimed
        preempted = int((eviction.groups.count * eviction.groups.request[:, r])[own].sum())
        if lent and free + preempted + sum(most for _, most in lent) < requested:
            givers = ", ".join(
                f"queue {problem.queues.names[q]} may return up to {amount_text(name, most)}"
                f"{_describe_lender(problem, eviction, q, r)}"
                for q, most in lent
            )
            return Reason(
                ReasonCode.DESERVED,
                f"{amount_text(name, requested)} are requested, {amount_text(name, free)} "
                f"will be idle, {givers}",
            )
    return None


def explain_kept_capacity(
    compiler: EvictionCompiler, gang: int, state: EvictionState
) -> Reason | None:
    """Return a reason that names a queue holding capacity to which a gang is entitled.

    The queue is not reclaimable. Returns None if there is no such queue.
    """
    problem = compiler.problem
    for queue, r, held, due in compiler.find_kept_capacity(gang, state):
        resource, name = problem.resources[r], problem.queues.names[queue]
        return Reason(
            ReasonCode.DESERVED,
            f"queue {name} holds {amount_text(resource, held)}, "
            f"deserves {amount_text(resource, due)}, and is not reclaimable",
        )
    return None


def _find_lenders(
    problem: Problem, eviction: EvictionProblem, resource: int
) -> Iterator[tuple[int, int]]:
    """Yield each lending queue and the maximum amount of a resource that it can give back."""
    groups = eviction.groups
    held = groups.count * groups.request[:, resource]
    for queue in np.unique(groups.queue[groups.reclaimed]).tolist():
        most = int(held[groups.reclaimed & (groups.queue == queue)].sum())
        for lending in eviction.constraints.lendings:
            if int(groups.queue[lending.groups[0]]) == queue:
                found = [
                    option.most if option.need > 1 else option.most // option.size * option.size
                    for option in lending.options
                    if option.resource == resource
                ]
                if found and len(found) == len(lending.options):
                    most = min(most, max(0, *found))
        yield queue, most


def _describe_lender(problem: Problem, eviction: EvictionProblem, queue: int, resource: int) -> str:
    """Describe the amounts that a lending queue holds and deserves; returns "" if unknown."""
    for lending in eviction.constraints.lendings:
        due = dict(lending.due).get(resource)
        if int(eviction.groups.queue[lending.groups[0]]) == queue and due is not None:
            below = problem.queues.subtree[lending.queue]
            held = int(problem.queues.allocated[below, resource].sum())
            name = problem.resources[resource]
            owner = problem.queues.names[lending.queue]
            return f" ({owner} holds {amount_text(name, held)}, deserves {amount_text(name, due)})"
    return ""
