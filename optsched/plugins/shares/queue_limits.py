"""Hard limits of queues: capabilities, entitlements, and a ban on gangs in parent queues.

Mathematics: models/formulation/capability.md, models/formulation/entitlement.md and
models/formulation/leaf_queues.md.

The rule `capability` enforces the capability of every queue in the tree. Volcano enforces the
capabilities of ancestors only with `enableHierarchy`.

At the end of a session, a queue that reclaimed capacity uses at most its deserved share. The
preemption stage enforces the deserved share for the gang that reclaims. The rule `entitlement`
enforces the deserved share for all other gangs of a queue that reclaims. A queue that lends keeps
its deserved share plus the tolerated overuse.

The option `enableHierarchy` of the plugin `capacity` enables the rule `leaf-queues`. In Volcano
(`pkg/scheduler/plugins/capacity`), one gang in a parent queue disables the whole plugin
(`checkHierarchicalQueue`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.relocation import terminating_within_quota
from optsched.cluster.snapshot import ROOT_QUEUE, derived_of
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.gangs.enqueueing import (
    build_refusal_reason,
    expected_by_queue,
    least_resources,
    sum_by_queue,
)
from optsched.plugins.gangs.gang import next_requests
from optsched.plugins.shares.guarantee import kept_for_guarantees
from optsched.plugins.verification.world import add_into, summed, task_usage
from optsched.problem.arrays import UNLIMITED, frozen
from optsched.units import PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem


class SubtreeLimits(Greedy):
    """Limits the usage (Q, R) of each queue, including its descendants, while tasks are placed."""

    def __init__(self, problem: Problem, ledger: Ledger, limit: I64) -> None:
        self._ledger = ledger
        subtree, amounts = problem.queues.subtree, limit.tolist()
        limited = [np.flatnonzero(row < UNLIMITED).tolist() for row in limit]
        self._above = [np.flatnonzero(subtree[:, q]).tolist() for q in range(len(limited))]
        self._binding: list[list[tuple[int, int, int]]] = [
            [(a, r, amounts[a][r]) for a in above for r in limited[a]] for above in self._above
        ]

    def max_tasks(self, queue: int, task_class: int) -> int:
        """See `Quota`."""
        request, used = self._ledger.request[task_class], self._ledger.subtree_used
        binding = ((a, r, most) for a, r, most in self._binding[queue] if request[r])
        fitting = (max(most - used[a][r], 0) // request[r] for a, r, most in binding)
        return min(fitting, default=int(UNLIMITED))


class Capability(Rule):
    """Rule: no queue grows above its own `spec.capability` or an ancestor's.

    Pods that users delete count toward the usage until the pods have ended, whereas victims of
    evictions do not count.
    """

    name = "capability"
    hard_switch = Switch.ALLOCATABLE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`.

        If a queue's usage of a resource exceeds its capability, the usage must not increase.
        """
        limited = [(q, q.capability) for q in world.snapshot.queues if q.capability is not None]
        # Usage, by queue, of tasks that terminate on ready nodes but were not evicted.
        terminating: dict[str, dict[str, int]] = {}
        for gang in world.snapshot.gangs if limited else ():
            for task in gang.derived(terminating_within_quota):
                node = world.snapshot.node_by_name.get(task.node)
                if node is not None and node.ready:
                    add_into(terminating.setdefault(gang.queue, {}), task_usage(task))
        for queue, capability in limited:
            below = world.descendants_by_queue[queue.name]
            gain = summed(world.gained_by_queue[name] for name in below)
            held = summed(
                part[name]
                for name in below
                for part in (world.held_by_queue, terminating)
                if name in part
            )
            for resource, limit in capability:
                more, used = gain.get(resource, 0), held.get(resource, 0)
                if more and used + more > limit:
                    detail = (
                        f"{amount_text(resource, used + more)} would be in use, "
                        f"the capability is {amount_text(resource, limit)}"
                    )
                    yield Violation(self.name, f"queue {queue.name}", detail)

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `EnqueueExplanation`. The reason states the limit and the usage of the queue."""
        problem, queues = outcome.problem, outcome.problem.queues
        queue, least = int(problem.queue_of[gang]), least_resources(problem)[gang]
        expected, used, limit = outcome.derived(_sum_expected_usage)
        above = np.flatnonzero(queues.subtree[:, queue])
        short = (least > 0) & (least + expected[above] + used[above] > limit[above])
        for i, r in np.argwhere(short).tolist():
            at, name = int(above[i]), problem.resources[r]
            ceiling, most, held, requested = (
                amount_text(name, int(n))
                for n in (queues.capability[at, r], limit[at, r], used[at, r], least[r])
            )
            who = _describe_queue(queues.names[queue], queues.names[at])
            if least[r] > queues.capability[at, r]:
                message = f"{who} has capability {ceiling}, {held} are in use"
                return Reason(ReasonCode.CAPABILITY, f"{message}, {requested} are requested")
            floors = queues.guarantee[:, r] * _find_top_queues(problem)
            kept = {q: n for q, n in enumerate(floors.tolist()) if n and q != at}
            if least[r] > limit[at, r] and kept:
                rest = kept_for_guarantees(problem, r, kept)
                message = f"{requested} are requested, {who} may take {most}: {rest}"
                return Reason(ReasonCode.GUARANTEE, message)
            return build_refusal_reason(outcome, gang, at, r, f"{who} may hold {most}: {held}")
        return None

    def encode(self, form: Formulation) -> None:
        """Add Σ request · x ≤ capability − usage over the subtree of each limited queue.

        x is the number of placed tasks.
        """
        queues = form.problem.queues
        used = queues.summed_up(queues.allocated)
        most = find_ceilings(form.problem)
        form.add_usage_rows(queues.subtree, np.where(most < UNLIMITED, most - used, UNLIMITED))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        is_limited = problem.derived(_is_limited)
        votes = least_resources(problem).any()
        return _Ceilings(problem, ledger) if is_limited or votes else None

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names the queue or ancestor whose capability is binding."""
        problem, queues = outcome.problem, outcome.problem.queues
        if not problem.derived(_is_limited):
            return None
        binding = _find_binding_limit(outcome, gang, find_ceilings(problem))
        if binding is None:
            return None
        at, r, requested = binding
        name, terminating = problem.resources[r], int(problem.derived(held_by_terminating)[at, r])
        held = f"{amount_text(name, terminating)} are held by pods that terminate, "
        return Reason(
            ReasonCode.CAPABILITY,
            f"{_describe_queue(queues.names[problem.queue_of[gang]], queues.names[at])} has "
            f"capability {amount_text(name, int(queues.capability[at, r]))}, "
            f"{amount_text(name, int(outcome.subtree_allocated[at, r]))} are in use, "
            f"{held if terminating else ''}{amount_text(name, requested)} are requested",
        )


def _find_binding_limit(outcome: Outcome, gang: int, limit: I64) -> tuple[int, int, int] | None:
    """Return (queue, resource, requested amount) of the first limit (Q, R) that blocks a gang.

    Returns None if the gang's queue and its ancestors stay within all limits.
    """
    requested = next_requests(outcome, gang)
    above = np.flatnonzero(outcome.problem.queues.subtree[:, outcome.problem.queue_of[gang]])
    used = outcome.subtree_allocated[above]
    exceeded = np.argwhere((requested > 0) & (used + requested > limit[above]))
    if not len(exceeded):
        return None
    i, r = exceeded[0].tolist()
    return int(above[i]), r, int(requested[r])


def find_ceilings(problem: Problem) -> I64:
    """Return each queue's capability (Q, R) minus the usage of its terminating pods.

    The result is `UNLIMITED` for a queue without a capability. It may be negative.
    """
    most, held = problem.queues.capability, problem.derived(held_by_terminating)
    return np.where(most < UNLIMITED, most - held, UNLIMITED)


def _is_limited(problem: Problem) -> bool:
    return bool((problem.queues.capability < UNLIMITED).any())


def _describe_queue(queue: str, at: str) -> str:
    return f"queue {queue}" if queue == at else f"queue {at}, an ancestor of {queue},"


def _sum_expected_usage(outcome: Outcome) -> tuple[I64, I64, I64]:
    """Return, per queue with its descendants, the expected usage, the usage and the limit (Q, R).

    The usage is measured before the session. The expected usage is the sum of the missing resources
    of enqueued gangs (`expected_by_queue`), including the gangs that this session enqueues.
    """
    problem, queues = outcome.problem, outcome.problem.queues
    new = sum_by_queue(problem, np.flatnonzero(outcome.decisions.enqueued))
    expected = problem.derived(expected_by_queue) + new
    used = queues.summed_up(queues.allocated)
    return queues.summed_up(expected), used, _find_enqueue_limits(problem)


def _find_top_queues(problem: Problem) -> Bool:
    """Return the mask (Q,) of top-level queues, whose parent is the root queue or missing."""
    queues = problem.queues
    is_root = np.array([name == ROOT_QUEUE for name in queues.names], np.bool_)
    at_top: Bool = ~is_root & ((queues.parent_of < 0) | is_root[queues.parent_of])
    return at_top


def _find_enqueue_limits(problem: Problem) -> I64:
    """Return the limit (Q, R) of the usage of each queue for enqueueing.

    The limit is the capability of the queue. For a top-level queue, the limit is at most the
    cluster total minus the guarantees of all other top-level queues.
    """
    queues, at_top = problem.queues, _find_top_queues(problem)
    floors = queues.guarantee * at_top[:, None]
    free = np.maximum(problem.total - (floors.sum(axis=0) - floors), 0)
    return np.where(at_top[:, None], np.minimum(queues.capability, free), queues.capability)


class _Ceilings(SubtreeLimits):
    """Tracks the remaining capability of all queues while tasks are placed."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        super().__init__(problem, ledger, find_ceilings(problem))
        queues = problem.queues
        self._least = least_resources(problem)
        self._expected: list[list[int]] = queues.summed_up(
            problem.derived(expected_by_queue)
        ).tolist()
        self._expectable: list[list[int]] = _find_enqueue_limits(problem).tolist()

    def most_preempted(self, queue: int, task_class: int, freed: Sequence[int]) -> int:
        request, used = self._ledger.request[task_class], self._ledger.subtree_used
        binding = ((a, r, most) for a, r, most in self._binding[queue] if request[r])
        fitting = (max(most - used[a][r] + freed[r], 0) // request[r] for a, r, most in binding)
        return min(fitting, default=int(UNLIMITED))

    def enqueue_vote(self, gang: int) -> int:
        above, used = self._above[self._ledger.queue_of[gang]], self._ledger.subtree_used
        requested = [(a, r, amount) for r, amount in self._least_request(gang) for a in above]
        fits = all(
            amount + self._expected[a][r] + used[a][r] <= self._expectable[a][r]
            for a, r, amount in requested
        )
        return 1 if fits else -1

    def _least_request(self, gang: int) -> list[tuple[int, int]]:
        row = self._least[gang]
        requested = np.flatnonzero(row)
        return list(zip(requested.tolist(), row[requested].tolist(), strict=True))

    def record_enqueued(self, gang: int) -> None:
        for a in self._above[self._ledger.queue_of[gang]]:
            for r, amount in self._least_request(gang):
                self._expected[a][r] += amount


# --- usage of terminating pods --------------------------------------------------------------------


def held_by_terminating(problem: Problem) -> I64:
    """Return the usage (Q, R) of pods that terminate on ready nodes but were not evicted.

    The usage of a queue includes its descendants. Pods on NotReady nodes are excluded,
    because such a node may never report that a pod has ended.
    """
    snapshot, queues = problem.snapshot, problem.queues
    held = np.zeros_like(queues.allocated)
    terminating = derived_of(snapshot.gangs, terminating_within_quota)
    if not any(terminating):
        return held
    ready = {node.name for node in snapshot.nodes if node.ready}
    number_of = {name: q for q, name in enumerate(queues.names)}
    for gang, tasks in zip(snapshot.gangs, terminating, strict=True):
        queue = number_of.get(gang.queue)
        for task in tasks if queue is not None else ():
            if task.node in ready:
                for resource, amount in (*task.shape.request, (PODS, 1)):
                    held[queue, problem.index(resource)] += amount
    return queues.summed_up(held)


class Entitlements(Rule):
    """Rule: a reclaiming queue does not grow beyond its deserved share."""

    name = "entitlement"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. A queue that already exceeds its entitlement must not grow."""
        for entitlement in world.snapshot.entitlements:
            queue = world.snapshot.queue_by_name.get(entitlement.queue)
            if queue is None:
                continue
            below, resource = world.descendants_by_queue[queue.name], entitlement.resource
            more = summed(world.gained_by_queue[name] for name in below).get(resource, 0)
            used = summed(world.held_by_queue[name] for name in below).get(resource, 0) + more
            if more and used > entitlement.most:
                detail = (
                    f"{amount_text(resource, used)} would be in use, the queue may reclaim up to "
                    f"{amount_text(resource, entitlement.most)}"
                )
                yield Violation(self.name, f"queue {queue.name}", detail)

    def encode(self, form: Formulation) -> None:
        """Add Σ request · x ≤ entitlement − allocated over the subtree of each entitled queue.

        x is the number of placed tasks.
        """
        problem = form.problem
        if problem.snapshot.entitlements:
            most, queues = problem.derived(entitled_amounts), problem.queues
            used = queues.summed_up(queues.allocated)
            room = np.where(most < UNLIMITED, most - used, UNLIMITED)
            form.add_usage_rows(queues.subtree, room)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        if not problem.snapshot.entitlements:
            return None
        return SubtreeLimits(problem, ledger, problem.derived(entitled_amounts))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names the reclaiming queue and its entitlement."""
        problem = outcome.problem
        if not problem.snapshot.entitlements:
            return None
        most = problem.derived(entitled_amounts)
        binding = _find_binding_limit(outcome, gang, most)
        if binding is None:
            return None
        at, r, requested = binding
        name, used = problem.resources[r], int(outcome.subtree_allocated[at, r])
        return Reason(
            ReasonCode.DESERVED,
            f"queue {problem.queues.names[at]} may reclaim {name} up to "
            f"{amount_text(name, int(most[at, r]))} (in use: {amount_text(name, used)}, "
            f"requested: {amount_text(name, requested)})",
        )


def entitled_amounts(problem: Problem) -> I64:
    """Return the entitlement (Q, R) of each queue with its descendants, or `UNLIMITED`."""
    queues = problem.queues
    index_of = {name: q for q, name in enumerate(queues.names)}
    most = np.full((len(queues.names), len(problem.resources)), UNLIMITED, np.int64)
    for entitlement in problem.snapshot.entitlements:
        q, r = index_of.get(entitlement.queue, -1), problem.index(entitlement.resource)
        if q >= 0 and r >= 0:
            most[q, r] = min(most[q, r], entitlement.most)
    frozen(most)
    return most


def kept_amounts(problem: Problem, due: I64) -> I64:
    """Return the amounts (Q, R) that reclaim must leave to each queue.

    The result is the deserved share `due` (Q, R), plus the overuse that the queue annotation
    `volcano.sh/overuse-tolerance` allows.
    """
    kept = due.copy()
    for q, queue in enumerate(problem.snapshot.queues):
        if queue.tolerance is not None:
            for r, name in enumerate(problem.resources):
                kept[q, r] = queue.tolerance.protected_amount(name, int(due[q, r]))
    frozen(kept)
    return kept


def returns_first(problem: Problem) -> list[bool]:
    """Return whether each queue has an overuse tolerance; reclaim takes from such queues first."""
    return [q.tolerance is not None for q in problem.snapshot.queues]


SHOWN = 3
"""Maximum number of child queues that a reason lists."""


class LeafQueues(Rule):
    """Rule: gangs run only in leaf queues."""

    name = "leaf-queues"
    hard_switch = Switch.ALLOCATABLE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        parents = {q.parent or ROOT_QUEUE for q in world.snapshot.queues if q.name != ROOT_QUEUE}
        for key in world.placed_of:
            queue = world.snapshot.gang_by_key[key].queue
            if queue in parents:
                detail = f"its queue {queue} has child queues"
                yield Violation(self.name, f"gang {key}", detail)

    def excludes(self, problem: Problem) -> Bool | None:
        """See `GangExclusion`."""
        found = problem.derived(_excluded)
        return found if found.any() else None

    def encode(self, form: Formulation) -> None:
        """Add constraints that gangs in parent queues place no task and do not start."""
        excluded = form.problem.derived(_excluded)
        gangs = form.gangs
        closed = excluded[gangs.members[gangs.member_start[:-1]]]
        entries = closed[gangs.gang_class_of]
        starts = form.start[closed]
        variables = np.unique(np.concatenate([form.placed_variable[entries], starts[starts >= 0]]))
        rows = np.arange(len(variables))
        form.model.add_rows(rows, variables, 1, upper=np.zeros(len(variables), np.int64))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        excluded = problem.derived(_excluded)
        return _ParentQueues(excluded.tolist(), set(problem.queue_of[excluded].tolist()))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names the queue and some of its child queues."""
        problem = outcome.problem
        if not problem.derived(_excluded)[gang]:
            return None
        queues, number = problem.queues, int(problem.queue_of[gang])
        below = [queues.names[i] for i in np.flatnonzero(queues.parent_of == number).tolist()]
        more = " and more" if len(below) > SHOWN else ""
        return Reason(
            ReasonCode.NOT_A_LEAF,
            f"queue {queues.names[number]} has child queues ({', '.join(below[:SHOWN])}{more}) "
            "and accepts no jobs itself; use one of them",
        )

    explain_refusal = explain


def _excluded(problem: Problem) -> Bool:
    found: Bool = np.isin(problem.queue_of, problem.queues.parent_of) & (problem.queue_of >= 0)
    return found


@dataclass(eq=False)
class _ParentQueues(Greedy):
    """Rejects gangs in parent queues, given the mask (G,) of these gangs and their queues."""

    _excluded: Sequence[bool]
    _queues: Collection[int]

    def max_tasks(self, queue: int, task_class: int) -> int:
        return 0 if queue in self._queues else int(UNLIMITED)

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        return queue not in self._queues

    def enqueue_vote(self, gang: int) -> int:
        return -1 if self._excluded[gang] else 0
