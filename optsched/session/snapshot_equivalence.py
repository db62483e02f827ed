"""Check whether a new snapshot could lead to a different plan than the last snapshot.

A session that neither binds nor evicts a pod leaves the cluster unchanged, so the next session
would make the same plan. Three changes do not affect the plan: a bound task starts to run, the
recent usage of queues changes, or time passes. Time affects the plan only if a gang has waited so
long that it takes precedence. Every other change of the snapshot requires a new session. Even a
loss of capacity requires a new session, because the loss may satisfy a rule that compares pods.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.decisions import Allocate, Evict
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.task import TaskStatus
from optsched.session.costly_gangs import NUMBER_TURN_MS, TOO_MANY
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import Task

    T = TypeVar("T")

AT_LATEST_MS: Final = 60_000
"""Time in ms until a plan proved optimal is computed again, because rules may depend on time."""

SOON_MS: Final = 5_000
"""Time in ms until a plan not proved optimal is computed again; each repetition doubles this time.
"""

MOST_TIMES: Final = 4
"""Maximum factor by which the time limit of a search grows when a session is repeated."""

OTHERS_MS: Final = 1_000
"""Time in ms after which a plan that depends on replies of an external service is computed again.

The replies of external services may change without notice.
"""

_PARTS: Final = tuple(
    part.name
    for part in fields(Snapshot)
    if part.name not in ("taken_ms", "usage", "nodes", "gangs")
)
"""Names of the fields that must be equal in two snapshots that lead to the same plan."""


def leads_to_same_plan(before: Snapshot, now: Snapshot) -> bool:
    """Return whether two snapshots lead to the same plan under any policy.

    The times of the snapshots are not compared.
    """
    return (
        all(getattr(before, name) == getattr(now, name) for name in _PARTS)
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
    """Return a bound task as a running task, because no rule distinguishes the two statuses."""
    if task.status is not TaskStatus.BOUND:
        return task
    return replace(task, status=TaskStatus.RUNNING)


def changes_nothing(plan: Plan) -> bool:
    """Return whether a plan neither binds nor evicts pods."""
    return not any(isinstance(action, Allocate | Evict) for action in plan.actions)


def next_turn_ms(waiting: Iterable[Gang], now_ms: int, starvation_after_ms: int) -> int | None:
    """Return the next time in ms at which a gang will have waited too long, or None."""
    turns = (gang.waiting_since_ms + starvation_after_ms for gang in waiting)
    return min((turn for turn in turns if turn > now_ms), default=None)


def ask_again_ms(plan: Plan, times: int) -> int:
    """Return the delay in ms before a plan that was repeated `times` times is computed again."""
    if plan.certificate.is_proved:
        return AT_LATEST_MS
    if TOO_MANY in plan.pending.values():
        return NUMBER_TURN_MS
    return min(AT_LATEST_MS, SOON_MS << min(times, 10))


def limits_for(solve_ms: int, repeats: int) -> Limits:
    """Return limits for the `repeats`-th repetition of a session whose plan is not proved optimal.

    The cluster has not changed, so the session gets more time, another seed and a second engine.
    """
    if not repeats:
        return Limits(budget_ms=solve_ms)
    times = min(2**repeats, MOST_TIMES)
    return Limits(budget_ms=solve_ms * times, seed=repeats, num_engines=2)


def period_for(period_s: float, limits: Limits) -> int:
    """Return the time in ms that a session may take: its period, or 2.5 time limits of a search."""
    return max(int(period_s * 1000), 5 * (limits.budget_ms or 0) // 2)
