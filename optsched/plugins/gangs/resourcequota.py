"""A gang is enqueued only if it fits the ResourceQuotas of its namespace.

Mathematics: models/formulation/resourcequota.md. Volcano: `pkg/scheduler/plugins/resourcequota`.
The API server refuses pods beyond a quota; the vote prevents that a gang gets only some pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.verification.world import add_into
from optsched.plugins.wording import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.cluster.snapshot import Gang, Quota, Snapshot
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.outcome import Outcome
    from optsched.problem.problem import Problem

_COUNTS: Final = frozenset({"pods", "count/pods"})
_REQUESTS: Final = "requests."
_OVER: Final = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})

Expected: TypeAlias = dict[str, dict[str, int]]
"""By quota and resource, what enqueued gangs will still use."""


class ResourceQuota(Rule):
    """Enqueue a gang if its use, the current use and the expected use fit every quota."""

    name = "resourcequota"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return _Votes(problem)

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: names the quota, the resource and the three parts of the sum."""
        snapshot = outcome.problem.snapshot
        expected = _expected(snapshot)
        for g in np.flatnonzero(outcome.decisions.enqueued).tolist():
            _expect(expected, snapshot, snapshot.gangs[g])
        one = snapshot.gangs[gang]
        for quota, name, requested in _quota_requests(snapshot, one):
            hard, used = dict(quota.hard)[name], dict(quota.used).get(name, 0)
            coming = expected.get(quota.key, {}).get(name, 0)
            if used + coming + requested > hard:
                shown = [amount_text(name, n) for n in (hard, used, coming, requested)]
                return Reason(
                    ReasonCode.QUOTA,
                    f"the ResourceQuota {quota.key} allows {shown[0]}: {shown[1]} are in use, "
                    f"{shown[2]} are promised, {shown[3]} are asked for",
                )
        return None


def _quota_requests(snapshot: Snapshot, gang: Gang) -> Iterator[tuple[Quota, str, int]]:
    """Yield quota, resource and amount of what a gang will still use."""
    for quota in snapshot.quotas:
        if quota.namespace == gang.namespace:
            for name, _ in quota.hard:
                if requested := _brings(gang, name):
                    yield quota, name, requested


def _brings(gang: Gang, name: str) -> int:
    """Return the least that missing pods of a gang will use of a quota.

    Existing pods count in the quota already. Each missing pod counts with an equal part of
    `minResources`.
    """
    alive = sum(task.status not in _OVER for task in gang.tasks)
    missing = max(gang.min_member - alive, 0)
    if alive and not missing:
        return 0
    whole = _named(dict((*gang.min_resources, *gang.min_usage)), name)
    if name in _COUNTS:
        return whole if whole and not alive else missing
    return -(-whole * missing // gang.min_member) if alive else whole


def _named(least: Mapping[str, int], name: str) -> int:
    """Return the amount of a quota resource; `cpu` and `requests.cpu` are the same."""
    plain = name.removeprefix(_REQUESTS)
    return least.get(name, 0) or least.get(plain, 0) or least.get(f"{_REQUESTS}{plain}", 0)


def _expected(snapshot: Snapshot) -> Expected:
    """Return what gangs enqueued before this session will still use."""
    expected: Expected = {}
    if snapshot.quotas:
        for gang in snapshot.gangs:
            if gang.phase is GangPhase.INQUEUE:
                _expect(expected, snapshot, gang)
    return expected


def _expect(expected: Expected, snapshot: Snapshot, gang: Gang) -> None:
    for quota, name, requested in _quota_requests(snapshot, gang):
        add_into(expected.setdefault(quota.key, {}), {name: requested})


class _Votes(Greedy):
    def __init__(self, problem: Problem) -> None:
        self._snapshot = problem.snapshot
        self._expected = _expected(problem.snapshot)

    def enqueue_vote(self, gang: int) -> int:
        one = self._snapshot.gangs[gang]
        is_in = one.phase is GangPhase.INQUEUE
        for quota, name, requested in _quota_requests(self._snapshot, one):
            coming = self._expected.get(quota.key, {}).get(name, 0) - (requested if is_in else 0)
            if dict(quota.used).get(name, 0) + coming + requested > dict(quota.hard)[name]:
                return -1
        return 1

    def record_enqueued(self, gang: int) -> None:
        _expect(self._expected, self._snapshot, self._snapshot.gangs[gang])
