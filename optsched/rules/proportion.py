"""Shares by weight: each queue deserves its part of the cluster, as far as it asks for it.

Mathematics: models/formulation/proportion.md. Volcano: `pkg/scheduler/plugins/proportion`, whose
water-filling (lines 199-266) this follows. The result is rounded up to base units: where Volcano
gives two queues half a GPU each, neither can ever use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.reasons import Reason, ReasonCode
from optsched.domain.task import TaskStatus
from optsched.problem.arrays import UNLIMITED
from optsched.problem.running import running_tasks
from optsched.rules.asking import asked_next
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.faces import Face
from optsched.rules.shortfall import Shortfall
from optsched.rules.tolerances import kept_amounts, returns_first
from optsched.rules.wording import amount_text
from optsched.rules.world import summed, taken_by
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.domain.cluster import Queue
    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.rules.base import GangLevel
    from optsched.rules.ledger import Ledger
    from optsched.rules.outcome import Outcome
    from optsched.rules.world import World

GRID = 1000
ROUNDING = 1e-3
"""A share this little above a base unit counts as that unit."""

_FINE = 1 << 20
"""Parts of a base unit: what changes by less does not change. The verifier computes in them."""


class Proportion(Rule):
    """A queue takes no more than it deserves by weight."""

    name = "proportion"
    hard_face = Face.ALLOCATABLE

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`: with shares computed anew."""
        deserved: Mapping[str, Mapping[str, int]] | None = None
        for name, gain in world.gained_by_queue.items():
            if not any(gain.values()):
                continue
            deserved = deserved or _shares_by_name(world)
            held = world.held_by_queue.get(name, {})
            for resource, more in gain.items():
                limit = deserved.get(name, {}).get(resource, 0)
                used = held.get(resource, 0) + more
                if more and used > limit:
                    detail = (
                        f"{amount_text(resource, used)} would be in use, "
                        f"{amount_text(resource, limit)} are deserved"
                    )
                    yield Violation(self.name, f"queue {name}", detail)

    # --- encode ----------------------------------------------------------------------------------

    def encode(self, form: Formulation) -> None:
        """Σ request·x of the queue ≤ deserved − allocated."""
        queues = form.problem.queues
        each = np.eye(len(queues.names), dtype=np.bool_)
        form.add_usage_rows(each, form.problem.derived(deserved_shares) - queues.allocated)

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Shares(problem, ledger)

    # --- victims ---------------------------------------------------------------------------------

    def deserved(self, problem: Problem) -> I64:
        """See `Rule`. Places for pods are nothing that queues lend one another."""
        due = problem.derived(deserved_shares).copy()
        if problem.index(PODS) >= 0:
            due[:, problem.index(PODS)] = 0
        return due

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]]:
        """See `Rule`."""
        return {
            name: {r: amount for r, amount in due.items() if r != PODS}
            for name, due in _shares_by_name(world).items()
        }

    # --- levels ----------------------------------------------------------------------------------

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """What queues deserve, ask for, and miss."""
        each = np.eye(len(problem.queues.names), dtype=np.bool_)
        due = np.minimum(problem.derived(deserved_shares), problem.queues.requested)
        return [Shortfall("fair share", "steps", each, due, GRID)]

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: which part of the cluster the queue deserves and holds."""
        problem = outcome.problem
        asked = asked_next(outcome, gang)
        queue = int(problem.queue_of[gang])
        deserved = problem.derived(deserved_shares)[queue]
        used = outcome.queue_allocated[queue]
        # A queue that deserves all there is lacks room, not a share.
        binds = (asked > 0) & (used + asked > deserved) & (deserved < problem.total)
        for r in np.flatnonzero(binds).tolist():
            name = problem.resources[r]
            return Reason(
                ReasonCode.DESERVED,
                f"queue {problem.queues.names[queue]} deserves "
                f"{amount_text(name, int(deserved[r]))} by its weight, "
                f"{amount_text(name, int(used[r]))} are in use, "
                f"{amount_text(name, int(asked[r]))} are asked for",
            )
        return None


def deserved_shares(problem: Problem) -> I64:
    """(Q, R) what queues deserve: proportional to weight, at most what they ask for and may take.

    Each round gives every unmet queue its part of what remains, clips it to the queue's ceiling and
    request and raises it to its guarantee. A queue is met once its request is covered or its share
    no longer changes; the rounds end when nothing remains or nothing changes.
    """
    queues = problem.queues
    wide = np.longdouble  # 64 bits of mantissa: bytes of a large cluster stay exact
    ceiling = _ceilings(problem).astype(wide)
    request = queues.requested.astype(wide)
    guarantee = queues.guarantee.astype(wide)
    deserved = np.zeros(request.shape, wide)
    remaining = problem.total.astype(wide)
    met = ~queues.has_gangs
    for _ in range(_most_rounds(len(queues.names))):
        weight = np.where(met, 0, queues.weight)
        if not weight.sum() or (remaining <= 0).all():
            break
        before = deserved.copy()
        part = np.maximum(remaining, 0) * (weight / wide(weight.sum()))[:, None]
        grown = np.minimum(np.minimum(deserved + part, ceiling), request)
        deserved = np.where(met[:, None], deserved, np.maximum(grown, guarantee))
        stays = (deserved - before < wide(1) / _FINE).all(axis=1)
        met = met | (request <= deserved).all(axis=1) | stays
        if stays.all():
            break
        remaining = remaining - (deserved - before).sum(axis=0)
    return np.array(np.ceil(deserved - wide(ROUNDING)), np.int64)


def _most_rounds(num_queues: int) -> int:
    """Each round meets a queue or, where floors take from others, comes closer by a part."""
    return 10 * num_queues + 10


def _ceilings(problem: Problem) -> I64:
    """(Q, R) the most a queue may take: its capability, and the total less others' guarantees."""
    queues = problem.queues
    others = queues.guarantee.sum(axis=0) - queues.guarantee
    ceiling: I64 = np.minimum(queues.capability, np.maximum(problem.total - others, 0))
    return ceiling


class _Shares(Greedy):
    """Order by queue priority, then by the largest part of its deserved share that is in use."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._problem = problem
        self._ledger = ledger
        self._deserved: list[list[int]] = problem.derived(deserved_shares).tolist()
        kept = kept_amounts(problem, problem.derived(deserved_shares))
        self._kept: list[list[int]] = kept.tolist()
        self._returns_first = returns_first(problem)
        self._priority = [-float(p) for p in problem.queues.priority.tolist()]

    def queue_key(self, queue: int) -> tuple[float, ...]:
        pairs = zip(self._ledger.queue_used[queue], self._deserved[queue], strict=True)
        return (self._priority[queue], max((_ratio(u, d) for u, d in pairs), default=0.0))

    def is_overused(self, queue: int) -> bool:
        pairs = zip(self._ledger.queue_used[queue], self._deserved[queue], strict=True)
        return all(due <= used for used, due in pairs)

    def room(self, queue: int, task_class: int) -> int:
        request, used = self._ledger.request[task_class], self._ledger.queue_used[queue]
        left = zip(self._deserved[queue], used, request, strict=True)
        return min((max(d - u, 0) // a for d, u, a in left if a), default=int(UNLIMITED))

    def may_reclaim(self, queue: int, task_class: int) -> bool:
        return self.room(queue, task_class) > 0

    def victim_queue_key(self, queue: int, claimer: int) -> tuple[float, ...]:
        """Queues whose overuse has a limit give back first."""
        return (-float(self._returns_first[queue]),)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Tasks of queues that hold more than they deserve of anything, as long as they do."""
        running = running_tasks(self._problem)
        left: dict[int, list[int]] = {}
        chosen = []
        for v in victims.tolist():
            queue = int(running.queue_of[v])
            held = left.setdefault(queue, list(self._ledger.queue_used[queue]))
            pods = self._problem.index(PODS)
            pairs = enumerate(zip(held, self._kept[queue], strict=True))
            if any(used > due for r, (used, due) in pairs if r != pods):
                asked = running.request[v].tolist()
                left[queue] = [a - b for a, b in zip(held, asked, strict=True)]
                chosen.append(v)
        return np.array(chosen, np.int64)


def _ratio(used: int, deserved: int) -> float:
    """Volcano's `helpers.Share`: nothing of nothing is 0, something of nothing 1."""
    if not deserved:
        return 1.0 if used else 0.0
    return used / deserved


# --- the same shares from the domain objects alone, for the verifier -----------------------------


def _shares_by_name(world: World) -> dict[str, dict[str, int]]:
    """What queues deserve, by name and resource, rounded up to base units."""
    asked = _asked(world)
    queues = [q for q in world.snapshot.queues if q.name in asked]
    resources = sorted({*world.total, *(r for a in asked.values() for r in a)})
    share = {q.name: dict.fromkeys(resources, 0) for q in queues}
    left = {r: world.total.get(r, 0) * _FINE for r in resources}
    bounds = {q.name: _bounds(world, q, asked[q.name], resources) for q in queues}
    unmet = list(queues)
    for _ in range(_most_rounds(len(world.snapshot.queues))):
        if not unmet or all(v <= 0 for v in left.values()):
            break
        weight = sum(q.weight for q in unmet)
        before = {q.name: dict(share[q.name]) for q in unmet}
        for queue in unmet:
            mine, (low, high) = share[queue.name], bounds[queue.name]
            for r in resources:
                part = max(left[r], 0) * queue.weight // weight
                mine[r] = max(min(mine[r] + part, high[r]), low[r])
        for r in resources:
            left[r] -= sum(share[q.name][r] - before[q.name][r] for q in unmet)
        changed = [q for q in unmet if share[q.name] != before[q.name]]
        unmet = [q for q in changed if not _covered(asked[q.name], share[q.name])]
    spare = int(_FINE * ROUNDING)
    return {n: {r: -(-(v - spare) // _FINE) for r, v in s.items()} for n, s in share.items()}


def _covered(asked: Mapping[str, int], share: Mapping[str, int]) -> bool:
    return all(amount * _FINE <= share.get(r, 0) for r, amount in asked.items())


def _asked(world: World) -> dict[str, dict[str, int]]:
    """What the tasks of each queue hold and ask for; queues without tasks are missing."""
    asked: dict[str, dict[str, int]] = {}
    for gang in world.snapshot.gangs:
        waiting = [t for t in gang.tasks if t.status is TaskStatus.PENDING and t.problem is None]
        if gang.problem is not None or world.shut(gang.queue):
            waiting = []
        running = [t for t in gang.tasks if t.status.counts_for_queue]
        if gang.queue in world.snapshot.queue_by_name and (waiting or running):
            parts = (taken_by(t) for t in (*waiting, *running))
            asked[gang.queue] = summed((asked.get(gang.queue, {}), *parts))
    return asked


def _bounds(
    world: World, queue: Queue, asked: Mapping[str, int], resources: Sequence[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the most that a queue may deserve, in fine parts."""
    guaranteed = summed(dict(q.guarantee) for q in world.snapshot.queues)
    own, capability = dict(queue.guarantee), dict(queue.capability or ())
    high = {}
    for r in resources:
        most = max(0, world.total.get(r, 0) - guaranteed.get(r, 0) + own.get(r, 0))
        high[r] = min(most, capability.get(r, most), asked.get(r, 0)) * _FINE
    return {r: own.get(r, 0) * _FINE for r in resources}, high
