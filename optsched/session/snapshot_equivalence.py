"""Whether a snapshot asks anything that the last session has not answered.

A session that bound nothing leaves the cluster as it was, so the same question would get the same
answer. Changes that raise no new question: that bound tasks have begun to run, the recent usage of
queues, which changes with every second, and the time, unless a gang has waited past the limit after
which it comes first. Everything else counts as new, also lost capacity: it may satisfy a rule that
compares pods.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import Allocate, Evict
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.task import TaskStatus
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import Task

    T = TypeVar("T")

AT_LATEST_MS: Final = 60_000
"""A proved answer is asked for again after this, should anything depend on time in its own way."""

SOON_MS: Final = 5_000
"""The same for an answer that is not proved, after the first time; twice as long after each."""

MOST_TIMES: Final = 4
"""How many times the budget a session gets that repeats a question."""

OTHERS_MS: Final = 1_000
"""The same with an external service, whose replies may change without notice."""

_PARTS: Final = tuple(
    part.name
    for part in fields(Snapshot)
    if part.name not in ("taken_ms", "usage", "nodes", "gangs")
)
"""What is compared unchanged."""


def leads_to_same_plan(before: Snapshot, now: Snapshot) -> bool:
    """Whether both snapshots, but for their time, lead every policy to the same plan."""
    return (
        all(getattr(before, part) == getattr(now, part) for part in _PARTS)
        and _are_equivalent(before.nodes, now.nodes, _is_same_node)
        and _are_equivalent(before.gangs, now.gangs, _is_same_gang)
    )


def _are_equivalent(before: Sequence[T], now: Sequence[T], is_same: Callable[[T, T], bool]) -> bool:
    if before is now:
        return True
    if len(before) != len(now):
        return False
    return all(a is b or is_same(a, b) for a, b in zip(before, now, strict=True))


def _is_same_node(before: Node, now: Node) -> bool:
    plain_before, plain_now = replace(before, residents=()), replace(now, residents=())
    return plain_before == plain_now and _are_equivalent(
        before.residents, now.residents, _is_same_task
    )


def _is_same_gang(before: Gang, now: Gang) -> bool:
    plain_before, plain_now = replace(before, tasks=()), replace(now, tasks=())
    return plain_before == plain_now and _are_equivalent(before.tasks, now.tasks, _is_same_task)


def _is_same_task(before: Task, now: Task) -> bool:
    return _settled(before) == _settled(now)


def _settled(task: Task) -> Task:
    """The task, running if it is bound: no rule tells the two apart."""
    if task.status is not TaskStatus.BOUND:
        return task
    return replace(task, status=TaskStatus.RUNNING)


def changes_nothing(plan: Plan) -> bool:
    """Whether a plan leaves pods where they are."""
    return not any(isinstance(action, Allocate | Evict) for action in plan.actions)


def next_turn_ms(waiting: Iterable[Gang], now_ms: int, starvation_after_ms: int) -> int | None:
    """When the next of some gangs will have waited past its limit."""
    turns = (gang.waiting_since_ms + starvation_after_ms for gang in waiting)
    return min((turn for turn in turns if turn > now_ms), default=None)


def ask_again_ms(plan: Plan, times: int) -> int:
    """How long an answer may stand that was the same so many times."""
    if plan.certificate.is_proved:
        return AT_LATEST_MS
    return min(AT_LATEST_MS, SOON_MS << min(times, 10))


def limits_for(solve_ms: int, repeats: int) -> Limits:
    """The limits of a session that repeats an unproved decision for the `repeats`-th time.

    Nothing else waits for a decision, so it gets more time, begins its search elsewhere and uses a
    second engine.
    """
    if not repeats:
        return Limits(budget_ms=solve_ms)
    times = min(2**repeats, MOST_TIMES)
    return Limits(budget_ms=solve_ms * times, seed=repeats, num_engines=2)


def period_for(period_s: float, limits: Limits) -> int:
    """Milliseconds in which a session aims to end: its period, or two and a half budgets."""
    return max(int(period_s * 1000), 5 * (limits.budget_ms or 0) // 2)
