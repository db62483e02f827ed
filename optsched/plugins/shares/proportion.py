"""Shares by weight: each queue deserves a share of the cluster, up to its demand.

A nominated task may start even if the deserved share of its queue has decreased since the
nomination, because pods were already evicted for the task.

Mathematics: models/formulation/proportion.md. Volcano: `pkg/scheduler/plugins/proportion`.
Volcano's water filling (lines 199-266) approximates the shares in rounds; optsched computes the
shares to which these rounds converge, and rounds them to whole units. Volcano does not round: it
may give each of two queues half a GPU, which neither queue can use.

With `proportion.lendIdle`, gangs may borrow idle capacity beyond the deserved share of their queue
(models/formulation/lending.md). The queues that lend get the capacity back by reclaim. A gang may
therefore borrow only if its queue is reclaimable and its pods are preemptable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin
from optsched.plugins.eviction.victims import cover_tasks, is_system_gang
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.gangs.gang import next_requests
from optsched.plugins.objectives.gang_levels import Shortfall
from optsched.plugins.shares.guarantee import GUARANTEE_LEVEL, Guarantee
from optsched.plugins.shares.queue_limits import Capability, kept_amounts, returns_first
from optsched.plugins.shares.shares_by_name import shares_by_name
from optsched.plugins.shares.tree_fairness import FAIR_SHARE, HALF_LIFE_ARGUMENT, read_over_time
from optsched.plugins.shares.weighted_shares import weighted_shares
from optsched.plugins.verification.world import add_into, task_usage
from optsched.problem.arrays import UNLIMITED
from optsched.problem.decisions import nominated_amounts
from optsched.problem.running import running_tasks
from optsched.units import PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

GRID = 1000

LEND_IDLE = "proportion.lendIdle"
"""The argument of the plugin `proportion` that allows gangs to borrow."""


@dataclass(frozen=True)
class Proportion(Rule):
    """Rule: a queue holds at most its deserved share by weight.

    Attributes
    ----------
    lends
        True if gangs that are allowed to borrow may exceed the deserved share (`find_firmness`).
    caps
        True if models and the greedy pipeline enforce the deserved shares. While a session lets
        gangs borrow, `caps` is False, and only the verifier enforces the shares.

    """

    name = "proportion"
    returns_by_use = False
    hard_switch = Switch.ALLOCATABLE

    lends: bool = False
    caps: bool = True

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. The deserved shares come from `shares_by_name`."""
        deserved: Mapping[str, Mapping[str, int]] | None = None
        nominated: Mapping[str, Mapping[str, int]] = {}
        for name, gain in world.gained_by_queue.items():
            if not any(gain.values()):
                continue
            if deserved is None:
                deserved, nominated = shares_by_name(world).own, _sum_nominated(world)
            held = world.held_by_queue.get(name, {})
            for resource, more in gain.items():
                limit = deserved.get(name, {}).get(resource, 0)
                used = held.get(resource, 0) + more
                if more <= nominated.get(name, {}).get(resource, 0):
                    continue
                if more and used > limit and not self._is_lent(world, name, resource, limit):
                    detail = (
                        f"{amount_text(resource, used)} would be in use, "
                        f"the deserved share is {amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"queue {name}", detail)

    def _is_lent(self, world: World, queue: str, resource: str, limit: int) -> bool:
        """Return whether a queue exceeds its deserved share only because gangs borrow.

        Gangs with nominated tasks may not borrow, because nominated tasks wait for the capacity of
        terminating pods and do not use idle capacity.
        """
        if not self.lends:
            return False
        nominated = {p.gang.key for p in world.nominations}
        is_firm: dict[str, bool] = {}
        for placement in world.placements:
            gang = placement.gang
            if gang.queue == queue and gang.key not in is_firm:
                is_firm[gang.key] = gang.key in nominated or bool(
                    find_firmness(gang, world.snapshot)
                )
        firm = sum(
            task_usage(placement.task).get(resource, 0)
            for placement in (*world.placements, *world.nominations)
            if placement.gang.queue == queue and is_firm.get(placement.gang.key, True)
        )
        return not firm or world.held_by_queue.get(queue, {}).get(resource, 0) + firm <= limit

    # --- encode ----------------------------------------------------------------------------------

    def encode(self, form: Formulation) -> None:
        """Add Σ request · x ≤ max(deserved − allocated, nominated) per queue if `caps` is True.

        x is the number of placed tasks. `nominated` is the total request of nominated tasks.
        """
        if not self.caps:
            return
        queues = form.problem.queues
        each = np.eye(len(queues.names), dtype=np.bool_)
        left = own_shares(form.problem) - queues.allocated
        form.add_usage_rows(each, np.maximum(left, nominated_amounts(form.problem)))

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        if self.caps and nominated_amounts(problem).any():
            return _SharesBesideNominations(problem, ledger, caps=True)
        return _Shares(problem, ledger, caps=self.caps)

    # --- victims ---------------------------------------------------------------------------------

    def deserved(self, problem: Problem) -> I64:
        """See `Entitling`. Deserved shares exclude the resource `pods`."""
        due = deserved_shares(problem).copy()
        if problem.index(PODS) >= 0:
            due[:, problem.index(PODS)] = 0
        return due

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]]:
        """See `Entitling`."""
        return {
            name: {r: amount for r, amount in due.items() if r != PODS}
            for name, due in shares_by_name(world).whole.items()
        }

    # --- levels ----------------------------------------------------------------------------------

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """See `Rule`. The level minimises the unallocated demand within deserved shares."""
        each = np.eye(len(problem.queues.names), dtype=np.bool_)
        due = np.minimum(own_shares(problem), problem.queues.requested)
        return [Shortfall("fair share", "steps", each, due, GRID)]

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason states the deserved and the used amount of the queue."""
        snapshot = outcome.problem.snapshot
        if self.lends and not find_firmness(snapshot.gangs[gang], snapshot):
            return None
        return self.explain_share(outcome, gang)

    def explain_share(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return a reason if a gang would exceed the deserved share of its queue, else None.

        The reason may also apply to a gang that is allowed to borrow. For example, a gang may not
        borrow in the session in which its minimum starts.
        """
        problem = outcome.problem
        requested = next_requests(outcome, gang)
        queue = int(problem.queue_of[gang])
        deserved = own_shares(problem)[queue]
        used = outcome.queue_allocated[queue]
        # If a queue deserves the whole cluster, its gangs wait for idle capacity, not for a larger
        # share. Queues with pods on NotReady nodes are an exception, because these pods use
        # capacity that no ready node offers.
        future_idle = outcome.derived(_sum_future_idle)
        is_short = (deserved < problem.total) | (requested <= future_idle)
        binds = (requested > 0) & (used + requested > deserved) & is_short
        for r in np.flatnonzero(binds).tolist():
            name = problem.resources[r]
            return Reason(
                ReasonCode.DESERVED,
                f"queue {problem.queues.names[queue]} deserves "
                f"{amount_text(name, int(deserved[r]))} by its weight, "
                f"{amount_text(name, int(used[r]))} are in use, "
                f"{amount_text(name, int(requested[r]))} are requested",
            )
        return None


def _sum_future_idle(outcome: Outcome) -> I64:
    total: I64 = np.maximum(outcome.future_idle, 0).sum(axis=0)
    return total


def _sum_nominated(world: World) -> Mapping[str, Mapping[str, int]]:
    """Return the total request of the nominated tasks directly in each queue, by queue name."""
    found: dict[str, dict[str, int]] = {}
    for stake, number in world.stakes.items():
        for name, amounts in stake.nominated:
            node = world.snapshot.node_by_name.get(name)
            if node is not None and node.ready:
                nominated = {r: amount * number for r, amount in amounts}
                add_into(found.setdefault(stake.queue, {}), nominated)
    return found


def deserved_shares(problem: Problem) -> I64:
    """Return the deserved share (Q, R) of each queue together with its descendants."""
    return problem.derived(weighted_shares).whole


def own_shares(problem: Problem) -> I64:
    """Return the deserved share (Q, R) of the gangs directly in each queue."""
    return problem.derived(weighted_shares).own


# --- lending -------------------------------------------------------------------------------------


def find_firmness(gang: Gang, snapshot: Snapshot) -> str:
    """Return why reclaim could not evict a borrowing gang's tasks; empty if reclaim could do so."""
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
    if cover_tasks(snapshot.budgets_by_namespace.get(gang.namespace, ()), waiting).any():
        return "a disruption budget protects its pods"
    return ""


# --- greedy pipeline -----------------------------------------------------------------------------


class _Shares(Greedy):
    """Orders queues by priority, then by the largest used fraction of their deserved share."""

    def __init__(self, problem: Problem, ledger: Ledger, *, caps: bool) -> None:
        self._problem = problem
        self._ledger = ledger
        self._caps = caps
        self._deserved: list[list[int]] = own_shares(problem).tolist()
        kept = kept_amounts(problem, own_shares(problem))
        self._kept: list[list[int]] = kept.tolist()
        self._returns_first = returns_first(problem)
        self._priority = [-float(p) for p in problem.queues.priority.tolist()]
        self._pods = problem.index(PODS)
        self._log_read = 0
        self._nominated: list[list[int]] = nominated_amounts(problem).tolist()
        """Total request (Q, R) of nominated tasks, minus the request of newly placed tasks."""

    def queue_key(self, queue: int) -> tuple[float, ...]:
        # As in Volcano's `helpers.Share`, 0 / 0 counts as 0, and a positive amount divided by 0
        # counts as 1.
        pairs = zip(self._ledger.queue_used[queue], self._deserved[queue], strict=True)
        fractions = (used / due if due else float(used != 0) for used, due in pairs)
        return (self._priority[queue], max(fractions, default=0.0))

    def is_overused(self, queue: int) -> bool:
        if not self._caps:
            return False
        used, due = self._ledger.queue_used[queue], self._deserved[queue]
        rows = zip(used, due, self._nominated[queue], strict=True)
        return all(d <= u and n <= 0 for u, d, n in rows)

    def max_tasks(self, queue: int, task_class: int) -> int:
        if not self._caps:
            return int(UNLIMITED)
        request, used = self._ledger.request[task_class], self._ledger.queue_used[queue]
        rows = zip(self._deserved[queue], used, self._nominated[queue], request, strict=True)
        return min((max(d - u, n, 0) // a for d, u, n, a in rows if a), default=int(UNLIMITED))

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        return self.max_tasks(queue, task_class) > 0

    def most_reclaimed(self, queue: int, task_class: int) -> int:
        return self.max_tasks(queue, task_class)

    def most_preempted(self, queue: int, task_class: int, freed: Sequence[int]) -> int:
        """See `Preempting`. Evictions change neither deserved shares nor nominated amounts."""
        if not self._caps:
            return int(UNLIMITED)
        request, nominated = self._ledger.request[task_class], self._nominated[queue]
        used = self._ledger.queue_used[queue]
        rows = zip(self._deserved[queue], used, freed, nominated, request, strict=True)
        return min(
            (max(d - u + f, n, 0) // a for d, u, f, n, a in rows if a), default=int(UNLIMITED)
        )

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        return (-float(self._returns_first[queue]),)

    def reclaim_reach(self, gang: int) -> Bool:
        log, queue_of = self._ledger.gang_log, self._ledger.queue_of
        for queue in {queue_of[gang] for gang in log[self._log_read :]} - {-1}:
            self._is_over_share[queue] = self._exceeds_kept(self._ledger.queue_used[queue], queue)
        self._log_read = len(log)
        reach: Bool = self._is_over_share[running_tasks(self._problem).queue_of]
        return reach

    @cached_property
    def _is_over_share(self) -> Bool:
        """Mask (Q + 1,) of queues that exceed, for a resource, the amount that reclaim must leave.

        The last element is for tasks without a queue and is always False.
        """
        self._log_read = len(self._ledger.gang_log)
        used = enumerate(self._ledger.queue_used)
        above = [self._exceeds_kept(held, queue) for queue, held in used]
        return np.array([*above, False], np.bool_)

    def _exceeds_kept(self, held: Sequence[int], queue: int) -> bool:
        pairs = enumerate(zip(held, self._kept[queue], strict=True))
        return any(used > due for r, (used, due) in pairs if r != self._pods)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `Preemption`.

        Victims belong to queues that still exceed an amount that reclaim must leave to them.
        """
        running = running_tasks(self._problem)
        left: dict[int, list[int]] = {}
        chosen = []
        for v in victims.tolist():
            queue = int(running.queue_of[v])
            held = left.setdefault(queue, list(self._ledger.queue_used[queue]))
            if self._exceeds_kept(held, queue):
                requested = running.request[v].tolist()
                left[queue] = [a - b for a, b in zip(held, requested, strict=True)]
                chosen.append(v)
        return np.array(chosen, np.int64)


class _SharesBesideNominations(_Shares):
    """Like `_Shares`, but updates the requests of nominated tasks as tasks are placed."""

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        left, number = self._nominated[self._ledger.queue_of[gang]], int(counts.sum())
        for r, amount in enumerate(self._ledger.request[task_class]):
            left[r] -= number * amount


_LENDING = "gangs of reclaimable queues may borrow idle capacity beyond their deserved share"


PROPORTION = Plugin(
    "proportion",
    "queues share the cluster by weight",
    (HALF_LIFE_ARGUMENT, Argument(LEND_IDLE, Kind.SWITCH, False, _LENDING)),
    lambda a: (
        *read_over_time(a),
        Proportion(lends=bool(a.get(LEND_IDLE, False))),
        Capability(),
        Guarantee(),
    ),
    levels=(GUARANTEE_LEVEL, FAIR_SHARE),
)
