"""Guarantees: no queue may use the unused guarantee of another queue.

Mathematics: models/formulation/guarantee.md. Volcano limits each queue separately to the cluster
total minus the guarantees of the other queues (`realCapability`). In Volcano, two queues together
may therefore use the guarantee of a third queue. The rule `guarantee` sets one joint limit for all
queues, at every level of the queue tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.plugins.declaration import LevelKind
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.gangs.gang import next_requests
from optsched.plugins.objectives.gang_levels import Shortfall
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.arrays import UNLIMITED
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Queue
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import GangLevel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers

PPM = 1_000_000

SHOWN = 4
"""Maximum number of queues that a reason lists."""


class Guarantee(Rule):
    """Rule: the usage and the unused guarantees of all queues together fit into the cluster.

    The committed amount of a queue ("claim" in the code) is the larger of its guarantee and its
    need. The need of a queue is the usage of the gangs directly in it, plus the committed amounts
    of its child queues.
    """

    name = "guarantee"
    hard_switch = Switch.ALLOCATABLE

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`.

        If the committed amounts already exceed the cluster's capacity, their total must not grow.
        """
        queues, held = world.snapshot.queues, world.held_by_queue
        named = {r for q in queues for r, amount in q.guarantee if amount > 0}
        gained = summed(world.gained_by_queue.values())
        children: dict[str, list[Queue]] = {}
        for queue in (q for q in queues if q.name != ROOT_QUEUE):
            children.setdefault(queue.parent, []).append(queue)
        names = {q.name for q in queues}
        top = [q for q in queues if q.parent not in names or q.name == ROOT_QUEUE]
        for resource in sorted(named):
            if not gained.get(resource):
                continue
            use = {name: part.get(resource, 0) for name, part in held.items()}
            before = sum(_sum_commitments(q, children, resource, use) for q in top)
            for name in use:
                use[name] += world.gained_by_queue[name].get(resource, 0)
            after = sum(_sum_commitments(q, children, resource, use) for q in top)
            outside_gangs = sum(
                task_usage(t).get(resource, 0)
                for n in world.snapshot.nodes
                if n.ready
                for t in n.residents
                if not t.gang
            )
            pool = world.total.get(resource, 0) - outside_gangs
            if after > max(pool, before):
                detail = (
                    f"usage and unused guarantees would be {amount_text(resource, after)}, "
                    f"the cluster has {amount_text(resource, pool)} for queues"
                )
                yield Violation(self.name, "all queues", detail)

    # --- encode ----------------------------------------------------------------------------------

    def encode(self, form: Formulation) -> None:
        """Add constraints so that the committed amounts ("claim") fit into the cluster.

        Each queue has the constraints claim ≥ guarantee and claim ≥ usage + Σ_child claim. The
        cluster has the constraint Σ claim ≤ capacity over the top-level queues.
        """
        problem, gangs, model = form.problem, form.gangs, form.model
        queues = problem.queues
        queue = gangs.queue_of[gangs.gang_class_of]
        for r in problem.derived(_find_guaranteed_resources):
            pool = _Claims(problem, r, queues.allocated[:, r]).pool
            claim = model.add_variables(queues.guarantee[:, r], pool)
            request = problem.classes.request[gangs.class_of, r]
            for q in range(len(queues.names)):
                use = form.placed(request, queue == q)
                evicted = form.evicted(r, np.arange(len(queues.names)) == q)
                children = claim[queues.parent_of == q]
                minus = -np.ones(len(children), np.int64)
                model.add_rows(
                    0,
                    np.concatenate([[claim[q]], use.variables, evicted.variables, children]),
                    np.concatenate([[1], -use.coefficients, evicted.coefficients, minus]),
                    lower=int(queues.allocated[q, r]),
                )
            model.add_rows(0, claim[queues.parent_of < 0], 1, upper=pool)

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        used, guaranteed = problem.queues.allocated, problem.derived(_find_guaranteed_resources)
        claims = {r: _Claims(problem, r, used[:, r]) for r in guaranteed}
        return _UnclaimedCapacity(ledger, claims) if claims else None

    # --- levels ----------------------------------------------------------------------------------

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """See `Rule`. The level minimises the unallocated demand within guarantees."""
        queues = problem.queues
        requested = queues.summed_up(queues.requested)
        due = np.minimum(queues.guarantee, requested)
        if not due.any():
            return ()
        return [Shortfall("guarantee deficit", "steps", queues.subtree, due, PPM)]

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason lists the queues whose unused guarantees block the gang."""
        problem = outcome.problem
        if not problem.derived(_find_guaranteed_resources):
            return None
        requested = next_requests(outcome, gang)
        queue = int(problem.queue_of[gang])
        names = problem.queues.names
        for r in problem.derived(_find_guaranteed_resources):
            claims = _Claims(problem, r, outcome.queue_allocated[:, r])
            available, kept = max(claims.unclaimed(queue), 0), claims.reserved_by_others(queue)
            # If the request exceeds even the available capacity plus all unused guarantees,
            # guarantees do not block the gang.
            if available < requested[r] <= available + sum(kept.values()):
                name = problem.resources[r]
                rest = kept_for_guarantees(problem, r, kept)
                return Reason(
                    ReasonCode.GUARANTEE,
                    f"{amount_text(name, int(requested[r]))} are requested, queue {names[queue]} "
                    f"may take {amount_text(name, available)}: {rest}",
                )
        return None


def kept_for_guarantees(problem: Problem, resource: int, kept: Mapping[int, int]) -> str:
    """Return a clause for messages that lists the queues with the largest unused guarantees."""
    names, name = problem.queues.names, problem.resources[resource]
    most = sorted(kept, key=lambda q: (-kept[q], names[q]))
    shown = [f"{names[q]} ({amount_text(name, kept[q])})" for q in most[:SHOWN]]
    shown += ["more"] if len(most) > SHOWN else []
    *before, last = shown
    listed = f"{', '.join(before)} and {last}" if before else last
    noun = "queues" if len(most) > 1 else "queue"
    return f"the rest is kept for the guarantees of {noun} {listed}"


def _find_guaranteed_resources(problem: Problem) -> list[int]:
    return np.flatnonzero(problem.queues.guarantee.any(axis=0)).tolist()


class _Claims:
    """The committed amount of one resource for each queue, as defined in `Guarantee`.

    Attributes
    ----------
    total
        The sum of the committed amounts of all top-level queues.
    pool
        The cluster total minus the usage of pods outside gangs, but at least the initial `total`.

    """

    def __init__(self, problem: Problem, r: int, used: I64) -> None:
        queues = problem.queues
        self._parent = queues.parent_of.tolist()
        self._guarantee = queues.guarantee[:, r].tolist()
        self._need = used.tolist()
        depth = queues.subtree.sum(axis=0)
        self._claim = [0] * len(self._parent)
        for q in np.argsort(-depth, kind="stable").tolist():
            self._claim[q] = max(self._guarantee[q], self._need[q])
            if self._parent[q] >= 0:
                self._need[self._parent[q]] += self._claim[q]
        tops = [c for c, p in zip(self._claim, self._parent, strict=True) if p < 0]
        self.total = sum(tops)
        foreign = problem.foreign[problem.ready, r].sum()
        self.pool = max(int(problem.total[r] - foreign), self.total)

    def unclaimed(self, queue: int) -> int:
        """Return uncommitted capacity plus the unused guarantees of a queue and its ancestors."""
        unused, at = self.pool - self.total, queue
        while at >= 0:
            unused += max(0, self._guarantee[at] - self._need[at])
            at = self._parent[at]
        return unused

    def reserved_by_others(self, queue: int) -> dict[int, int]:
        """Return the unused guarantees that are not available to a queue, keyed by queue index."""
        path, at = set(), queue
        while at >= 0:
            path.add(at)
            at = self._parent[at]
        return {
            q: self._guarantee[q] - self._need[q]
            for q in range(len(self._parent))
            if q not in path and self._guarantee[q] > self._need[q]
        }

    def add_use(self, queue: int, amount: int) -> None:
        at, change = queue, amount
        while at >= 0 and change:
            self._need[at] += change
            claim = max(self._guarantee[at], self._need[at])
            change, self._claim[at] = claim - self._claim[at], claim
            at = self._parent[at]
        self.total += change if at < 0 else 0


@dataclass(eq=False)
class _UnclaimedCapacity(Greedy):
    """Tracks, for each resource index, the capacity that is not committed to any queue."""

    _ledger: Ledger
    _claims: Mapping[int, _Claims]

    def max_tasks(self, queue: int, task_class: int) -> int:
        request = self._ledger.request[task_class]
        requested = [(r, claims) for r, claims in self._claims.items() if request[r]]
        return min(
            (max(c.unclaimed(queue), 0) // request[r] for r, c in requested), default=int(UNLIMITED)
        )

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        request, number = self._ledger.request[task_class], int(counts.sum())
        for r, claims in self._claims.items():
            if request[r]:
                claims.add_use(self._ledger.queue_of[gang], number * request[r])


def _sum_commitments(
    queue: Queue, children: Mapping[str, Sequence[Queue]], resource: str, use: Mapping[str, int]
) -> int:
    """Return the committed amount of a queue, as defined in `Guarantee`.

    `use` contains the usage of the gangs directly in each queue, by queue name.
    """
    below = (_sum_commitments(q, children, resource, use) for q in children.get(queue.name, ()))
    need = use[queue.name] + sum(below)
    return max(dict(queue.guarantee).get(resource, 0), need)


GUARANTEE_LEVEL = LevelKind(
    "guarantee", "guaranteed resources that queues request but lack", 10, ("guarantee",)
)
