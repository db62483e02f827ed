"""Fixed shares of queues: a queue deserves its `spec.deserved` and may borrow more.

Mathematics: models/formulation/capacity.md. Volcano: `pkg/scheduler/plugins/capacity`. The rules
`capability` and `guarantee` enforce `spec.capability` and `spec.guarantee`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.extension_points import Greedy, KeyReach, Rule, Switch
from optsched.plugins.objectives.gang_levels import Shortfall
from optsched.plugins.shares.guarantee import GUARANTEE_LEVEL, Guarantee
from optsched.plugins.shares.queue_limits import Capability, LeafQueues, kept_amounts, returns_first
from optsched.plugins.shares.tree_fairness import FAIR_SHARE, HALF_LIFE_ARGUMENT, read_over_time
from optsched.problem.running import running_tasks
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

GRID = 1000


@dataclass(frozen=True)
class Capacity(Rule):
    """Orders queues by the used fraction of their deserved share, smallest first.

    Attributes
    ----------
    ancestor_level
        Number of a queue's ancestors whose deserved shares reclaim checks, from the parent up.

    """

    name = "capacity"
    returns_by_use = True

    ancestor_level: int = 0

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        switch = _Order if problem.queues.is_flat else _OrderByTree
        return switch(problem, ledger, self.ancestor_level)

    def deserved(self, problem: Problem) -> I64:
        """See `Entitling`."""
        return deserved_amounts(problem)

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]]:
        """See `Entitling`."""
        found: dict[str, dict[str, int]] = {}
        for queue in world.snapshot.queues:
            ceiling, floor = dict(queue.capability or ()), dict(queue.guarantee)
            due = {r: min(n, ceiling.get(r, n)) for r, n in queue.deserved}
            found[queue.name] = {r: max(due.get(r, 0), floor.get(r, 0)) for r in {**due, **floor}}
        return found

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """See `Rule`. The level minimises the unallocated demand within deserved shares."""
        queues = problem.queues
        requested = queues.summed_up(queues.requested)
        due = np.minimum(deserved_amounts(problem), requested)
        if not due.any():
            return ()
        return [Shortfall("fair share", "steps", queues.subtree, due, GRID)]


def deserved_amounts(problem: Problem) -> I64:
    """Return the deserved amounts (Q, R), at most the capability and at least the guarantee."""
    queues = problem.queues
    deserved: I64 = np.maximum(np.minimum(queues.deserved, queues.capability), queues.guarantee)
    return deserved


class _Order(Greedy):
    """Orders queues by priority, then by the largest used fraction of their deserved share.

    A queue without a deserved share counts as fully used (`capacity.go`, updateShare), and comes
    after all queues that have a deserved share.
    """

    def __init__(self, problem: Problem, ledger: Ledger, ancestor_level: int) -> None:
        self._ancestor_level = ancestor_level
        self._problem = problem
        self._ledger = ledger
        self._guarantee: list[list[int]] = problem.queues.guarantee.tolist()
        self._ceiling: list[list[int]] = problem.queues.capability.tolist()
        self._deserved: list[list[int]] = deserved_amounts(problem).tolist()
        self._kept: list[list[int]] = kept_amounts(problem, deserved_amounts(problem)).tolist()
        self._returns_first = returns_first(problem)
        self._priority = [-float(p) for p in problem.queues.priority.tolist()]
        # For each queue, the list of the queue and its ancestors, up to the root.
        parent_of: list[int] = problem.queues.parent_of.tolist()
        self._lines = [[q] for q in range(len(parent_of))]
        for line in self._lines:
            while parent_of[line[-1]] >= 0:
                line.append(parent_of[line[-1]])
        self._above = [frozenset(line) for line in self._lines]
        self._pods = problem.index(PODS)
        self._reach: dict[int, Bool] = {}
        self._log_read = 0

    def queue_key(self, queue: int) -> tuple[float, ...]:
        return (self._priority[queue], *self._share(queue, self._ledger.queue_used[queue]))

    def _share(self, queue: int, held: Sequence[int]) -> tuple[float, float]:
        """Return (f, 0), where f is the largest used fraction of a queue's deserved resources.

        The result is (1, 1) for a queue without a deserved share.
        """
        pairs = zip(held, self._deserved[queue], strict=True)
        parts = [used / due for used, due in pairs if due]
        return (max(parts), 0.0) if parts else (1.0, 1.0)

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """See `Reclaiming`. Queues with an overuse tolerance come first.

        Among equal queues, a queue that shares more ancestors with the reclaiming queue comes first
        (Volcano `VictimQueueOrderFn`).
        """
        shared = self._above[queue] & self._above[claimer]
        return (-float(self._returns_first[queue]), -float(len(shared)))

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        """See `Reclaiming`.

        The queue must stay within its capability and, for at least one requested resource, within
        its deserved amount.
        """
        request, used = self._ledger.request[task_class], self._ledger.queue_used[queue]
        requested = self._requested_resources(request)
        if any(used[r] + request[r] > self._ceiling[queue][r] for r in requested):
            return False
        return any(any(claim.values()) for claim in self._claims(queue, request))

    def _requested_resources(self, request: Sequence[int]) -> list[int]:
        return [r for r, amount in enumerate(request) if amount and r != self._pods]

    def _claims(self, queue: int, request: Sequence[int]) -> list[dict[int, bool]]:
        """Return whether a task fits into the deserved shares of a queue and its nearest ancestors.

        The result has one mapping for the queue and one for each of its `_ancestor_level` nearest
        ancestors. The keys of a mapping are the requested resources of which the queue deserves a
        positive amount. The Boolean of a resource is True if the task fits.
        """
        requested, claims = self._requested_resources(request), []
        for at in self._lines[queue][: self._ancestor_level + 1]:
            held, due = self._ledger.subtree_used[at], self._deserved[at]
            claims.append({r: held[r] + request[r] <= due[r] for r in requested if due[r]})
        return claims

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `Preemption`. Victims belong to queues above their deserved share and guarantee.

        The gang's queue must stay within its deserved amounts of all requested resources that the
        victim uses. In Volcano, it suffices that the queue stays within its deserved amount of one
        requested resource. Under Volcano's rule, two queues that each exceed their deserved amount
        of one resource would evict each other's pods repeatedly.
        """
        running = running_tasks(self._problem)
        row, borrower = self._ledger.request[task_class], int(self._problem.queue_of[gang])
        requested, claims = self._requested_resources(row), self._claims(borrower, row)
        left: dict[int, list[int]] = {}
        chosen = []
        for v in victims.tolist():
            queue, request = int(running.queue_of[v]), running.request[v].tolist()
            held = left.setdefault(queue, list(self._ledger.queue_used[queue]))
            if not any(request[r] for r in requested):
                continue
            named = [[fits for r, fits in claim.items() if request[r]] for claim in claims]
            if not any(each and all(each) for each in named):
                continue
            rest = [a - b for a, b in zip(held, request, strict=True)]
            if any(a < floor for a, floor in zip(rest, self._guarantee[queue], strict=True)):
                continue
            taken = [a - b for a, b in zip(self._ledger.queue_used[queue], held, strict=True)]
            used = [r for r, amount in enumerate(request) if amount]
            if self._lends(queue, borrower, used, taken):
                left[queue] = rest
                chosen.append(v)
        return np.array(chosen, np.int64)

    def reclaim_reach(self, gang: int) -> Bool:
        """See `VictimReach`.

        The mask selects tasks of queues from which the gang's queue may reclaim at this point of
        the session.
        """
        log, claimer = self._ledger.gang_log, int(self._problem.queue_of[gang])
        if self._log_read < len(log):
            self._log_read = len(log)
            self._reach.clear()
        if claimer not in self._reach:
            number, kinds = self._victim_groups
            nothing = [0] * len(self._problem.resources)
            lends = [q < 0 or self._lends(q, claimer, used, nothing) for q, used in kinds]
            self._reach[claimer] = np.array(lends, np.bool_)[number]
        return self._reach[claimer]

    @cached_property
    def _victim_groups(self) -> tuple[I64, list[tuple[int, list[int]]]]:
        """Group index (V,) of each running task, and the queue and used resources of each group."""
        running = running_tasks(self._problem)
        rows = np.column_stack([running.queue_of, running.request > 0])
        kinds, number = np.unique(rows, axis=0, return_inverse=True)
        used = [(int(row[0]), np.flatnonzero(row[1:]).tolist()) for row in kinds]
        return number.reshape(-1), used

    def _lends(self, queue: int, claimer: int, used: list[int], taken: list[int]) -> bool:
        """Return whether a queue and its ancestors exceed the amounts that reclaim must leave them.

        `taken` (R,) is the amount already reclaimed from the queue. Resources in `used` of
        which the queue deserves nothing are ignored (volcano#4918).
        """
        for at in self._lines[queue][: self._ancestor_level + 1]:
            due, held = self._kept[at], self._ledger.subtree_used[at]
            named = [r for r in used if due[r]]
            if at in self._above[claimer] or not named:
                continue
            if not any(held[r] - taken[r] > due[r] for r in named):
                return False
        return True


class _OrderByTree(_Order):
    """Orders queues by priority, then leaf before parent queues, then by shares on the path.

    The path leads from the root to the queue; the first share in which two paths differ decides.
    Volcano compares paths only with `enableHierarchy` (`capacity.go`, QueueOrder), whereas the rule
    `capacity` compares the paths in every queue tree.
    """

    queue_key_reach = KeyReach.GROWING

    def __init__(self, problem: Problem, ledger: Ledger, ancestor_level: int) -> None:
        super().__init__(problem, ledger, ancestor_level)
        queues = problem.queues
        self._paths = [tuple(reversed(line)) for line in self._lines]
        self._has_children = np.isin(np.arange(len(queues.names)), queues.parent_of).tolist()

    def queue_key(self, queue: int) -> tuple[float, ...]:
        path = self._paths[queue]
        shares = (part for q in path for part in self._share(q, self._ledger.subtree_used[q]))
        return (self._priority[queue], float(self._has_children[queue]), *shares)


CAPACITY = Plugin(
    "capacity",
    "queues deserve fixed shares and may borrow more",
    (
        HALF_LIFE_ARGUMENT,
        Argument(
            "ancestorReclaimLevel", Kind.WHOLE, 0, "number of ancestor levels that reclaim checks"
        ),
        Argument(
            "capacity.DynamicResourceAllocationEnable",
            Kind.SWITCH,
            True,
            "has no effect: claimed devices always count if a queue lists their DeviceClass",
        ),
        Argument(
            "capacity.DRAConsumableCapacityEnable",
            Kind.SWITCH,
            True,
            "has no effect: claimed devices always count if a queue lists their DeviceClass",
        ),
    ),
    lambda a: (
        *read_over_time(a, keeps_deserved=True),
        Capacity(read_whole(a, "ancestorReclaimLevel", 0)),
        Capability(),
        Guarantee(),
        *((LeafQueues(),) if a.get(Switch.HIERARCHY.value, False) else ()),
    ),
    levels=(GUARANTEE_LEVEL, FAIR_SHARE),
)
