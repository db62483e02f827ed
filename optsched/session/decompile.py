"""Translate decisions (arrays) into actions and reasons, and actions into decisions."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Allocate, Enqueue, Evict, Nominate
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.reservation import gang_end_ms
from optsched.plugins.accounting import Outcome
from optsched.plugins.explanations.explain import RANK, Explainer
from optsched.plugins.ordering.fifo import NO_GANG, build_order_reason, fifo_lines, first_in_order
from optsched.plugins.ruleset import EnqueueExplanation
from optsched.problem.decisions import Decisions
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Action
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers


def actions_of(problem: Problem, decisions: Decisions, tiers: Tiers) -> tuple[Action, ...]:
    """Return the actions that execute the decisions, in execution order.

    Gangs are enqueued first, then victims are evicted. Finally, tasks are bound gang by gang, in
    the order of tiers and, within a tier, from the oldest gang to the youngest. An interrupted plan
    therefore leaves few gangs partially bound.
    """
    gangs, nodes = problem.snapshot.gangs, problem.snapshot.nodes
    enqueued = [Enqueue(gangs[g].key) for g in np.flatnonzero(decisions.enqueued).tolist()]
    rank = np.lexsort((np.arange(len(gangs)), problem.created_ms, tiers.of))
    position = np.empty(len(gangs), np.int64)
    position[rank] = np.arange(len(gangs))
    placed: list[Action] = []
    for node_of, action in ((decisions.node_of, Allocate), (decisions.nominated, Nominate)):
        tasks = np.flatnonzero(node_of >= 0)
        order = tasks[np.lexsort((tasks, position[problem.gang_of[tasks]]))]
        placed.extend(
            action(problem.task(t).key, nodes[n].name, problem.task(t).gang)
            for t, n in zip(order.tolist(), node_of[order].tolist(), strict=True)
        )
    return (*enqueued, *decisions.evictions, *placed)


def decisions_of(problem: Problem, actions: Sequence[Action]) -> Decisions:
    """Translate actions into decisions on a problem from which the actions' victims are absent.

    Raises `ValueError` if an action contains a task, node or gang that does not exist.
    """
    tasks = {task.key: t for t, task in enumerate(problem.tasks)}
    nodes = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    gangs = {gang.key: g for g, gang in enumerate(problem.snapshot.gangs)}
    nothing = Decisions.nothing(problem)
    node_of, nominated = nothing.node_of.copy(), nothing.nominated.copy()
    enqueued = nothing.enqueued.copy()
    try:
        for action in actions:
            if isinstance(action, Enqueue):
                enqueued[gangs[action.gang]] = True
            elif isinstance(action, Allocate):
                node_of[tasks[action.task]] = nodes[action.node]
            elif isinstance(action, Nominate):
                nominated[tasks[action.task]] = nodes[action.node]
    except KeyError as e:
        raise ValueError(f"{e.args[0]}: no pending task, node or gang has this name") from e
    evictions = tuple(a for a in actions if isinstance(a, Evict))
    return Decisions(node_of, nominated, enqueued, nothing.refused, evictions)


def pending_of(problem: Problem, decisions: Decisions, rules: RuleSet) -> dict[str, Reason]:
    """Map each gang with pending tasks to the reason why it waits; equal gangs share a reason."""
    outcome = Outcome(problem, decisions)
    explainer = Explainer(outcome, rules)
    explaining = [a.rule for a in rules.active if isinstance(a.rule, EnqueueExplanation)]
    gangs = problem.snapshot.gangs
    waits = np.zeros(problem.num_gangs, np.bool_)
    waits[problem.gang_of[decisions.nominated >= 0]] = True
    reasons = {gangs[g].key: reason for g, reason in problem.blocked.items()}
    for g in np.flatnonzero(_waits_for_enqueueing(problem, decisions)).tolist():
        head = first_in_order(problem, g, decisions.refused)
        found = (rule.explain_refusal(outcome, g) for rule in explaining)
        refused = [reason for reason in found if reason is not None]
        by_rank = sorted(refused, key=lambda reason: RANK[reason.code])
        reason = explainer.find_permanent_blocker(g, by_rank)
        if reason is None:
            reason = (
                build_order_reason(problem, head)
                if head != g
                else _refusal_reason(outcome, refused, g)
            )
        reasons[gangs[g].key] = reason
    lines = outcome.derived(fifo_lines)
    shared_reasons: dict[tuple[int, int, int | None, int, bytes], Reason] = {}
    left = (outcome.num_pending > 0) & (problem.shape_of >= 0) & ~decisions.refused
    has_reservations = bool(problem.snapshot.reservations)
    partly = set(problem.gang_of[outcome.placed].tolist())
    shape_of, queue_of = problem.shape_of.tolist(), problem.queue_of.tolist()
    shared = left & ~waits & (not has_reservations and lines.is_empty)
    shared[list(partly)] = False
    reasons |= _shared_reasons(outcome, explainer, np.flatnonzero(shared))
    for g in np.flatnonzero(left & ~shared).tolist():
        if waits[g]:
            reasons[gangs[g].key] = explainer.waiting(g)
            continue
        placed, end_ms = b"", None
        if g in partly:
            start, end = problem.task_start[g : g + 2].tolist()
            placed = outcome.placed[start:end].tobytes()
        if has_reservations and problem.rows[g].bound:
            end_ms = gang_end_ms(gangs[g], problem.snapshot.taken_ms)
        head = NO_GANG if lines.is_empty else lines.ahead(g)
        kind = (shape_of[g], queue_of[g], end_ms, head, placed)
        if kind not in shared_reasons:
            shared_reasons[kind] = explainer.reason(g)
        reasons[gangs[g].key] = shared_reasons[kind]
    return dict(sorted(reasons.items()))


def pending_keys(problem: Problem, decisions: Decisions) -> list[str]:
    """Return the keys of `pending_of` in the same order, without computing reasons."""
    waits = _waits_for_enqueueing(problem, decisions)
    waits[list(problem.blocked)] = True
    waits |= (Outcome(problem, decisions).num_pending > 0) & (problem.shape_of >= 0)
    return [gang.key for gang in compress(problem.snapshot.gangs, waits.tolist())]


def _waits_for_enqueueing(problem: Problem, decisions: Decisions) -> Bool:
    """Return a mask (G,) of the gangs that are not enqueued, except gangs whose pods already run.

    A gang's phase stays Pending for a moment after its pods are bound. Until the phase changes, the
    enqueue limits count the gang's resources twice, but the gang does not wait.
    """
    runs = problem.num_ready >= np.maximum(problem.min_member, 1)
    waits: Bool = decisions.refused & ~(runs & (np.diff(problem.task_start) == 0))
    return waits


def _shared_reasons(outcome: Outcome, explainer: Explainer, gangs: I64) -> dict[str, Reason]:
    """Map gangs without placed tasks to the reasons why they wait, one reason per gang class."""
    problem = outcome.problem
    kind = problem.shape_of[gangs] * len(problem.queues.names) + problem.queue_of[gangs]
    _, first, which = np.unique(kind, return_index=True, return_inverse=True)
    found = [explainer.reason(g) for g in gangs[first].tolist()]
    listed = problem.snapshot.gangs
    return {listed[g].key: found[i] for g, i in zip(gangs.tolist(), which.tolist(), strict=True)}


def _refusal_reason(outcome: Outcome, refused: Sequence[Reason], number: int) -> Reason:
    """Return why a gang is not enqueued: the reason of the first rule that rejects it."""
    if refused:
        return refused[0]
    gang = outcome.problem.snapshot.gangs[number]
    least = ", ".join(
        amount_text(resource, quantity) for resource, quantity in gang.missing_resources
    )
    return Reason(
        ReasonCode.OVERCOMMITTED,
        f"it needs at least {least}; if it were admitted, the admitted gangs would need more than "
        f"the cluster or queue {gang.queue} is expected to offer",
    )
