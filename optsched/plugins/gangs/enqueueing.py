"""The plugins `overcommit` and `resourcequota`, and the expected usage of enqueued gangs.

Mathematics: models/formulation/overcommit.md and models/formulation/resourcequota.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.relocation import is_successor
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.shares.weighted_shares import shares_by_weight
from optsched.plugins.verification.world import add_into, task_usage
from optsched.problem.arrays import sparse_table
from optsched.problem.problem import cached_by_problem
from optsched.problem.running import has_standing_tasks
from optsched.units import CPU, MEMORY, PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.snapshot import Gang, Quota, Snapshot
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow


@cached_by_problem
def least_resources(problem: Problem) -> I64:
    """Return the missing resources (G, R) of each gang (`Gang.missing_resources`).

    The missing resources are `minResources` minus the requests of succeeded tasks. The result is 0
    for resources that `minResources` does not list.
    """
    stake_of, stakes = problem.gang_columns.stakes
    columns = {name: r for r, name in enumerate(problem.resources)}
    return sparse_table((stake.minimum for stake in stakes), columns)[stake_of]


def list_enqueued_gangs(problem: Problem) -> I64:
    """Return the indices of the enqueued gangs that have no running tasks."""
    columns = problem.gang_columns
    is_running = (problem.num_ready > 0) & columns.flags(has_standing_tasks)
    return np.flatnonzero(columns.flags(_is_enqueued) & ~is_running)


def _is_enqueued(row: GangRow) -> bool:
    return row.gang.phase is GangPhase.INQUEUE


def sum_by_queue(problem: Problem, gangs: I64) -> I64:
    """Return the missing resources (Q, R) of the given gangs, summed by queue."""
    total = np.zeros_like(problem.queues.allocated)
    inside = gangs[problem.queue_of[gangs] >= 0]
    np.add.at(total, problem.queue_of[inside], least_resources(problem)[inside])
    return total


def expected_by_queue(problem: Problem) -> I64:
    """Return the missing resources (Q, R) of enqueued gangs, minus elastic resources, by queue.

    The elastic resources of a gang are its allocation beyond its missing resources. Volcano counts
    elastic resources as idle (`JobInfo.GetElasticResources`). A bare pod has no elastic resources,
    because Volcano creates a PodGroup whose `minResources` equals the pod's request.
    """
    least = least_resources(problem)
    expected = sum_by_queue(problem, list_enqueued_gangs(problem))
    has_elastic = [bool(row.allocated) and not row.gang.is_implicit for row in problem.rows]
    for g in np.flatnonzero(np.array(has_elastic, np.bool_) & (problem.queue_of >= 0)).tolist():
        held = problem.rows[g].allocated
        allocated = np.array([held.get(r, 0) for r in problem.resources], np.int64)
        expected[problem.queue_of[g]] -= np.maximum(allocated - least[g], 0)
    return expected


@dataclass(frozen=True)
class Overcommit(Rule):
    """Rule: the usage and the missing resources of enqueued gangs stay within a limit.

    Attributes
    ----------
    factor
        The limit as a multiple of the cluster's total resources.
    keeps_shares
        True if each queue may enqueue gangs up to its share by weight, even if enqueued gangs of
        other queues exceed the limit.

    """

    name = "overcommit"

    factor: float = 1.2
    keeps_shares: bool = False

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Budgets(problem, ledger, self)

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `EnqueueExplanation`.

        The reason states the limit, the usage and the enqueued gangs that reserve resources.
        """
        problem, least = outcome.problem, least_resources(outcome.problem)
        limit = np.floor(problem.total * self.factor).astype(np.int64)
        used, reserved = outcome.derived(_cluster_use)
        short = (least[gang] > 0) & (least[gang] + used + reserved > limit)
        for r in np.flatnonzero(short).tolist():
            most, held = (amount_text(problem.resources[r], int(n[r])) for n in (limit, used))
            whole = f"jobs of all queues are admitted up to {most}: {held}"
            return build_refusal_reason(outcome, gang, WHOLE_CLUSTER, r, whole)
        return None


def _cluster_use(outcome: Outcome) -> tuple[I64, I64]:
    """Return the used resources (R,) before the session, and the reserved resources (R,).

    Only usage on ready nodes counts. An enqueued gang without running tasks reserves its missing
    resources.
    """
    problem = outcome.problem
    used: I64 = problem.used[problem.ready].sum(axis=0)
    reserving = outcome.derived(list_reserving_gangs)
    return used, least_resources(problem)[reserving].sum(axis=0)


class _Budgets(Greedy):
    """Casts the votes of `overcommit`, based on the resources that are not used or reserved.

    If the rule sets `keeps_shares`, each queue has a share that other queues cannot reserve.
    """

    def __init__(self, problem: Problem, ledger: Ledger, rule: Overcommit) -> None:
        self._ledger = ledger
        self._least = least_resources(problem)
        waiting = list_enqueued_gangs(problem)
        spare = np.floor(problem.total * rule.factor) - problem.used[problem.ready].sum(axis=0)
        spare -= self._least[waiting].sum(axis=0)
        self._spare: list[float] = spare.tolist()
        self._left: list[list[int]] | None = None
        if rule.keeps_shares:
            left = problem.derived(shares_by_weight) - sum_by_queue(problem, waiting)
            self._left = left.tolist()

    def enqueue_vote(self, gang: int) -> int:
        least = self._least[gang].tolist()
        if all(amount <= spare for amount, spare in zip(least, self._spare, strict=True) if amount):
            return 1
        if self._left is None or self._ledger.waits_for_late:
            return -1
        queue = self._ledger.queue_of[gang]
        amounts = zip(least, self._left[queue], self._ledger.queue_used[queue], strict=True)
        return 1 if all(amount <= left - used for amount, left, used in amounts if amount) else -1

    def record_enqueued(self, gang: int) -> None:
        least = self._least[gang].tolist()
        self._spare = [spare - amount for spare, amount in zip(self._spare, least, strict=True)]
        if self._left is not None:
            queue = self._ledger.queue_of[gang]
            pairs = zip(self._left[queue], least, strict=True)
            self._left[queue] = [left - amount for left, amount in pairs]


def list_reserving_gangs(outcome: Outcome) -> I64:
    """Return the gangs without running tasks that this or an earlier session has enqueued."""
    before = list_enqueued_gangs(outcome.problem)
    return np.append(before, np.flatnonzero(outcome.decisions.enqueued))


def build_refusal_reason(outcome: Outcome, gang: int, at: int, resource: int, limit: str) -> Reason:
    """Return the reason that a gang would exceed a limit on enqueued gangs.

    `at` is the index of the queue that has the limit, or `WHOLE_CLUSTER`. The reason begins with
    the text `limit`.
    """
    problem, gangs = outcome.problem, outcome.problem.snapshot.gangs
    name, least = problem.resources[resource], least_resources(problem)[:, resource]
    reserved = outcome.derived(_new_texts)
    if (at, resource) not in reserved:
        holders = outcome.derived(list_reserving_gangs)
        queue = problem.queue_of[holders]
        if at == WHOLE_CLUSTER:
            within = np.ones(len(holders), np.bool_)
        else:
            within = problem.queues.subtree[at, queue] & (queue >= 0)
        found = holders[within & (least[holders] > 0)].tolist()
        largest = sorted(found, key=lambda g: (-least[g], gangs[g].key))
        named = ", ".join(gangs[g].key for g in largest[:_NUM_NAMED])
        more = f" and {len(largest) - _NUM_NAMED} more" if len(largest) > _NUM_NAMED else ""
        amount = amount_text(name, int(least[found].sum()))
        text = f", {amount} are reserved for {named}{more}" if found else ""
        reserved[at, resource] = text
    requested = int(least[gang])
    return Reason(
        ReasonCode.OVERCOMMITTED,
        f"{limit} are in use{reserved[at, resource]}, {amount_text(name, requested)} are requested",
    )


def _new_texts(_: Outcome) -> dict[tuple[int, int], str]:
    return {}


WHOLE_CLUSTER: Final = -1
_NUM_NAMED: Final = 2


OVERCOMMIT = Plugin(
    "overcommit",
    "limits the enqueued gangs to the resources of the cluster",
    (
        Argument(
            "overcommit-factor",
            Kind.NUMBER,
            1.2,
            "limit as a multiple of the cluster's total resources",
            least=1,
        ),
        Argument(
            "overcommit.keepShares",
            Kind.SWITCH,
            False,
            "each queue may enqueue gangs up to its share by weight, regardless of other queues",
        ),
    ),
    lambda a: (
        Overcommit(float(a.get("overcommit-factor", 1.2)), bool(a.get("overcommit.keepShares"))),
    ),
)


_COUNTS: Final = frozenset({"pods", "count/pods"})
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_OVER: Final = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})

Expected: TypeAlias = dict[str, dict[str, int]]
"""Expected usage by ResourceQuota and resource, or by namespace and resource."""


class ResourceQuota(Rule):
    """Rule: current usage, expected usage and an enqueued gang's demand fit into each quota."""

    name = "resourcequota"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return _Votes(problem, _expected(problem.snapshot))

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `EnqueueExplanation`. The reason states the used, expected and requested amounts."""
        snapshot = outcome.problem.snapshot
        expected = _expected(snapshot)
        for g in np.flatnonzero(outcome.decisions.enqueued).tolist():
            _expect(expected, snapshot, snapshot.gangs[g])
        candidate = snapshot.gangs[gang]
        for quota, name, requested in _quota_requests(snapshot, candidate):
            hard, used = dict(quota.hard)[name], _quota_usage(outcome.problem, quota, name)
            reserved = expected.get(quota.key, {}).get(name, 0)
            if used + reserved + requested > hard:
                shown = [amount_text(name, n) for n in (hard, used, reserved, requested)]
                return Reason(
                    ReasonCode.QUOTA,
                    f"the ResourceQuota {quota.key} allows {shown[0]}: {shown[1]} are in use, "
                    f"{shown[2]} are reserved by enqueued gangs, {shown[3]} are requested",
                )
        return None


def _quota_requests(snapshot: Snapshot, gang: Gang) -> Iterator[tuple[Quota, str, int]]:
    """Yield (quota, resource, amount) triples of what a gang's missing pods will use."""
    for quota in snapshot.quotas:
        if quota.namespace == gang.namespace:
            for name, _ in quota.hard:
                if requested := _bound_quota_use(gang, name):
                    yield quota, name, requested


def _bound_quota_use(gang: Gang, name: str) -> int:
    """Return a lower bound on how much of the quota resource `name` a gang's missing pods use.

    The usage of a quota already includes existing pods. Succeeded pods are not replaced. Each
    missing pod adds an equal fraction of `minResources`.
    """
    there = sum(task.status is not TaskStatus.FAILED for task in gang.tasks)
    missing = max(gang.min_member - there, 0)
    if there and not missing:
        return 0
    least = dict((*gang.min_resources, *gang.min_usage))
    whole = least.get(name, 0)
    if not name.startswith(_LIMITS):
        # `cpu` and `requests.cpu` denote the same resource. `requests.cpu` is larger than `cpu` if
        # some pods have only limits, which the API server copies to requests. If `cpu` and
        # `requests.cpu` are both 0, `limits.cpu` applies.
        plain = name.removeprefix(_REQUESTS)
        requested = max(least.get(plain, 0), least.get(f"{_REQUESTS}{plain}", 0))
        whole = requested or least.get(f"{_LIMITS}{plain}", 0)
    if name in _COUNTS:
        return whole if whole and not there else missing
    return -(-whole * missing // gang.min_member) if there else whole


def _quota_usage(problem: Problem, quota: Quota, name: str) -> int:
    """Return the larger of the usage in a quota's status and the usage of the known pods.

    Pods and quotas arrive on different watches, so the status of a quota may be out of date.
    """
    known = problem.derived(_usage_by_namespace).get(quota.namespace, {})
    return max(dict(quota.used).get(name, 0), known.get(name.removeprefix(_REQUESTS), 0))


def _usage_by_namespace(problem: Problem) -> Expected:
    found: Expected = {quota.namespace: {} for quota in problem.snapshot.quotas}
    for gang in problem.snapshot.gangs if found else ():
        if gang.namespace not in found:
            continue
        of_namespace = found[gang.namespace]
        for task in gang.tasks:
            if is_successor(task.key):
                continue
            add_into(of_namespace, {"count/pods": 1})
            if task.status not in _OVER:
                use = task_usage(task)
                add_into(of_namespace, {r: use.get(r, 0) for r in (PODS, CPU, MEMORY)})
    return found


def _expected(snapshot: Snapshot) -> Expected:
    """Return the quota usage expected from missing pods of gangs that were enqueued earlier."""
    expected: Expected = {}
    if snapshot.quotas:
        for gang in snapshot.gangs:
            if gang.phase is GangPhase.INQUEUE:
                _expect(expected, snapshot, gang)
    return expected


def _expect(expected: Expected, snapshot: Snapshot, gang: Gang) -> None:
    for quota, name, requested in _quota_requests(snapshot, gang):
        add_into(expected.setdefault(quota.key, {}), {name: requested})


@dataclass(eq=False)
class _Votes(Greedy):
    """Casts the votes of `resourcequota`, based on the expected usage of enqueued gangs."""

    _problem: Problem
    _expected: Expected

    def enqueue_vote(self, gang: int) -> int:
        snapshot = self._problem.snapshot
        candidate = snapshot.gangs[gang]
        is_in = candidate.phase is GangPhase.INQUEUE
        for quota, name, requested in _quota_requests(snapshot, candidate):
            reserved = self._expected.get(quota.key, {}).get(name, 0) - (requested if is_in else 0)
            used = _quota_usage(self._problem, quota, name)
            if used + reserved + requested > dict(quota.hard)[name]:
                return -1
        return 1

    def record_enqueued(self, gang: int) -> None:
        snapshot = self._problem.snapshot
        _expect(self._expected, snapshot, snapshot.gangs[gang])


RESOURCEQUOTA = Plugin(
    "resourcequota",
    "limits the enqueued gangs to the ResourceQuotas of their namespaces",
    (),
    lambda _: (ResourceQuota(),),
)
