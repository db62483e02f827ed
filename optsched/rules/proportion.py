"""Shares by weight: each queue deserves its part of the cluster, as far as it asks for it.

Mathematics: models/formulation/proportion.md. Volcano: `pkg/scheduler/plugins/proportion`, whose
water-filling (lines 199-266) this follows. The result is rounded up to base units: where Volcano
gives two queues half a GPU each, neither can ever use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.domain.cluster import ROOT_QUEUE
from optsched.domain.reasons import Reason, ReasonCode
from optsched.problem.arrays import UNLIMITED
from optsched.problem.running import running_tasks
from optsched.rules.asking import asked_next
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.faces import Face
from optsched.rules.shortfall import Shortfall
from optsched.rules.tolerances import kept_amounts, returns_first
from optsched.rules.wording import amount_text
from optsched.rules.world import add_into, summed
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from optsched.domain.cluster import Queue
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.queues import QueueArrays
    from optsched.problem.tiers import Tiers
    from optsched.rules.base import GangLevel
    from optsched.rules.ledger import Ledger
    from optsched.rules.outcome import Outcome
    from optsched.rules.world import World

_Shared: TypeAlias = "dict[str, dict[str, int]]"

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
            deserved = deserved or _shares_by_name(world)[1]
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
        form.add_usage_rows(each, own_shares(form.problem) - queues.allocated)

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        return _Shares(problem, ledger)

    # --- victims ---------------------------------------------------------------------------------

    def deserved(self, problem: Problem) -> I64:
        """See `Rule`. Places for pods are nothing that queues lend one another."""
        due = deserved_shares(problem).copy()
        if problem.index(PODS) >= 0:
            due[:, problem.index(PODS)] = 0
        return due

    def deserved_by_name(self, world: World) -> dict[str, dict[str, int]]:
        """See `Rule`."""
        return {
            name: {r: amount for r, amount in due.items() if r != PODS}
            for name, due in _shares_by_name(world)[0].items()
        }

    # --- levels ----------------------------------------------------------------------------------

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[GangLevel]:
        """What queues deserve, ask for, and miss."""
        each = np.eye(len(problem.queues.names), dtype=np.bool_)
        due = np.minimum(own_shares(problem), problem.queues.requested)
        return [Shortfall("fair share", "steps", each, due, GRID)]

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: which part of the cluster the queue deserves and holds."""
        problem = outcome.problem
        asked = asked_next(outcome, gang)
        queue = int(problem.queue_of[gang])
        deserved = own_shares(problem)[queue]
        used = outcome.queue_allocated[queue]
        # A queue that deserves all there is lacks room, not a share, unless it has some of its own
        # on nodes that are down: these count for it and offer nothing.
        room = np.maximum(outcome.future_idle, 0).sum(axis=0)
        is_short = (deserved < problem.total) | (asked <= room)
        binds = (asked > 0) & (used + asked > deserved) & is_short
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
    """(Q, R) what queues deserve with all below them; see `_filled`."""
    return problem.derived(_filled)[0]


def own_shares(problem: Problem) -> I64:
    """(Q, R) what the gangs of each queue itself deserve; the same for queues with none below."""
    return problem.derived(_filled)[1]


def _filled(problem: Problem) -> tuple[I64, I64]:
    """Proportional to weight, at most what is asked for and may be taken, level by level.

    What a queue deserves is shared out among the queues below it; gangs of its own take part with
    its own weight.
    """
    queues = problem.queues
    request, floor = queues.requested.astype(_WIDE), queues.guarantee.astype(_WIDE)
    has = queues.has_gangs.copy()
    families = _families(queues)
    below = floor.copy()
    for owner, members in reversed(families):
        if owner >= 0:
            below[owner] = floor[members].sum(axis=0)
            floor[owner] = np.maximum(floor[owner], below[owner])
            request[owner] += request[members].sum(axis=0)
            has[owner] |= has[members].any()
    whole, own = np.zeros(request.shape, _WIDE), np.zeros(request.shape, _WIDE)
    for owner, members in families:
        takers = np.append(members, owner) if owner >= 0 else members
        asked, floors, takes_part = request[takers], floor[takers], has[takers]
        if owner >= 0:
            asked[-1] = queues.requested[owner]
            floors[-1] = floor[owner] - below[owner]
            takes_part[-1] = queues.has_gangs[owner]
        is_top = owner < 0 or queues.names[owner] == ROOT_QUEUE
        total = problem.total.astype(_WIDE) if is_top else whole[owner]
        # Further down guarantees are kept by the rule about them: the total is what is asked for.
        others = (floors.sum(axis=0) - floors) * is_top
        ceiling = np.minimum(queues.capability[takers], np.maximum(total - others, 0))
        found = _fill(
            total, queues.weight[takers], (floors, np.minimum(asked, ceiling)), asked, takes_part
        )
        whole[members] = own[members] = found[: len(members)]
        if owner >= 0:
            own[owner] = found[-1]
            whole[owner] = found[-1] if is_top else whole[owner]
    return _whole_units(whole), _whole_units(own)


_WIDE = np.longdouble
"""64 bits of mantissa: bytes of a large cluster stay exact."""


def _whole_units(shares: NDArray[np.longdouble]) -> I64:
    return np.array(np.ceil(shares - _WIDE(ROUNDING)), np.int64)


def _families(queues: QueueArrays) -> list[tuple[int, I64]]:
    """Queues that have others below them, -1 for none, with these; from the top down."""
    parent_of = queues.parent_of
    root = queues.names.index(ROOT_QUEUE) if ROOT_QUEUE in queues.names else -1
    above = np.where(parent_of < 0, root, parent_of)
    if root >= 0:
        above[root] = -2
    depth = queues.subtree.sum(axis=0)
    owners = sorted(set(above.tolist()) - {-2, root}, key=lambda q: (int(depth[q]), q))
    return [(q, np.flatnonzero(above == q)) for q in (root, *owners)]


def _fill(
    total: NDArray[np.longdouble],
    weights: I64,
    bounds: tuple[NDArray[np.longdouble], NDArray[np.longdouble]],
    request: NDArray[np.longdouble],
    takes_part: Bool,
) -> NDArray[np.longdouble]:
    """Each round gives every unmet queue its part of what remains, within its bounds.

    A queue is met once its request is covered or its share no longer changes; the rounds end when
    nothing remains or nothing changes.
    """
    floor, most = bounds
    deserved = np.zeros(request.shape, _WIDE)
    remaining = total.copy()
    met = ~takes_part
    for _ in range(_most_rounds(len(weights))):
        weight = np.where(met, 0, weights)
        if not weight.sum() or (remaining <= 0).all():
            break
        before = deserved.copy()
        part = np.maximum(remaining, 0) * (weight / _WIDE(weight.sum()))[:, None]
        grown = np.maximum(np.minimum(deserved + part, most), floor)
        deserved = np.where(met[:, None], deserved, grown)
        stays = (deserved - before < _WIDE(1) / _FINE).all(axis=1)
        met = met | (request <= deserved).all(axis=1) | stays
        if stays.all():
            break
        remaining = remaining - (deserved - before).sum(axis=0)
    return deserved


def _most_rounds(num_queues: int) -> int:
    """Each round meets a queue or, where floors take from others, comes closer by a part."""
    return 10 * num_queues + 10


class _Shares(Greedy):
    """Order by queue priority, then by the largest part of its deserved share that is in use."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._problem = problem
        self._ledger = ledger
        self._deserved: list[list[int]] = own_shares(problem).tolist()
        kept = kept_amounts(problem, own_shares(problem))
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


def _shares_by_name(world: World) -> tuple[_Shared, _Shared]:
    """What queues deserve by name, in base units: with all below them, and for their own gangs."""
    queues = world.snapshot.queue_by_name
    asked = _asked(world)
    resources = sorted({*world.total, *(r for a in asked.values() for r in a)})
    below = _right_below(world)
    takers = _takers(queues, below, asked)
    whole: dict[str, dict[str, int]] = {}
    own: dict[str, dict[str, int]] = {}
    for owner, names in below.items():
        some = [takers[name] for name in names]
        if owner in queues and (some or owner == ROOT_QUEUE):
            under = summed(t.floor for t in some)
            rest = {r: v - under.get(r, 0) for r, v in takers[owner].floor.items()}
            some.append(_Taker(queues[owner], rest, asked.get(owner, {})))
        if not some:
            continue
        is_top = owner == ROOT_QUEUE
        total = {r: world.total.get(r, 0) * _FINE for r in resources} if is_top else whole[owner]
        reserved = summed(t.floor for t in some) if is_top else {}
        shares = _shared_out(some, (total, reserved), resources)
        for taker, share in zip(some, shares, strict=True):
            own[taker.queue.name] = share
            if taker.queue.name != owner:
                whole[taker.queue.name] = share
    return _in_units({**own, **whole}), _in_units(own)


def _right_below(world: World) -> dict[str, list[str]]:
    """Names of the queues right below each, from the top down.

    What has no parent, or stands in a circle, is below the root.
    """
    found: dict[str, list[str]] = {}
    for queue in world.snapshot.queues:
        line = world.ancestors(queue)
        is_cyclic = line[-1].parent == queue.name
        above = ROOT_QUEUE if len(line) < 2 or is_cyclic else line[1].name
        if queue.name != ROOT_QUEUE:
            found.setdefault(above, []).append(queue.name)
    order = [ROOT_QUEUE]
    for name in order:  # grows as it goes
        order += found.get(name, ())
    return {name: found.get(name, []) for name in order}


def _takers(
    queues: Mapping[str, Queue],
    below: Mapping[str, Sequence[str]],
    asked: Mapping[str, Mapping[str, int]],
) -> dict[str, _Taker]:
    """Queues with what is guaranteed to and asked by all below them, from the bottom up."""
    found: dict[str, _Taker] = {}
    for name in reversed(list(below)):
        if name in queues:
            under = [found[n] for n in below[name]]
            floor, own = summed(t.floor for t in under), dict(queues[name].guarantee)
            floor = {r: max(floor.get(r, 0), own.get(r, 0)) for r in sorted({*floor, *own})}
            wanted = summed((asked.get(name, {}), *(t.asked for t in under)))
            found[name] = _Taker(queues[name], floor, wanted)
    return found


@dataclass(frozen=True, slots=True)
class _Taker:
    queue: Queue
    floor: Mapping[str, int]
    asked: Mapping[str, int]


def _shared_out(
    takers: Sequence[_Taker],
    offer: tuple[Mapping[str, int], Mapping[str, int]],
    resources: Sequence[str],
) -> list[dict[str, int]]:
    """Water-filling among some queues of a total, parts of which are reserved, in fine parts."""
    shares = [dict.fromkeys(resources, 0) for _ in takers]
    left = dict(offer[0])
    bounds = [_bounds(t, offer, resources) for t in takers]
    unmet = [i for i, t in enumerate(takers) if t.asked]
    for _ in range(_most_rounds(len(takers))):
        if not unmet or all(v <= 0 for v in left.values()):
            break
        weight = sum(takers[i].queue.weight for i in unmet)
        before = {i: dict(shares[i]) for i in unmet}
        for i in unmet:
            mine, (low, high) = shares[i], bounds[i]
            for r in resources:
                part = max(left[r], 0) * takers[i].queue.weight // weight
                mine[r] = max(min(mine[r] + part, high[r]), low[r])
        for r in resources:
            left[r] -= sum(shares[i][r] - before[i][r] for i in unmet)
        changed = [i for i in unmet if shares[i] != before[i]]
        unmet = [i for i in changed if not _covered(takers[i].asked, shares[i])]
    return shares


def _in_units(shares: Mapping[str, Mapping[str, int]]) -> _Shared:
    """Rounded up to base units."""
    spare = int(_FINE * ROUNDING)
    return {n: {r: -(-(v - spare) // _FINE) for r, v in s.items()} for n, s in shares.items()}


def _covered(asked: Mapping[str, int], share: Mapping[str, int]) -> bool:
    return all(amount * _FINE <= share.get(r, 0) for r, amount in asked.items())


def _asked(world: World) -> dict[str, dict[str, int]]:
    """What the tasks of each queue hold and ask for; queues without tasks are missing."""
    known = world.snapshot.queue_by_name
    closed = {name for name in known if world.shut(name)}
    asked: dict[str, dict[str, int]] = {}
    for stake, number in world.stakes.items():
        if stake.queue not in known:
            continue
        wanted = () if stake.queue in closed else stake.wanted
        for part in (stake.held, wanted) if stake.held or wanted else ():
            add_into(asked.setdefault(stake.queue, {}), {r: a * number for r, a in part})
    return asked


def _bounds(
    taker: _Taker, offer: tuple[Mapping[str, int], Mapping[str, int]], resources: Sequence[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the most that a queue may deserve, in fine parts."""
    total, reserved = offer
    capability, high = dict(taker.queue.capability or ()), {}
    for r in resources:
        others = max(0, reserved.get(r, 0) - taker.floor.get(r, 0))
        most = max(0, total.get(r, 0) - others * _FINE)
        if r in capability:
            most = min(most, capability[r] * _FINE)
        high[r] = min(most, taker.asked.get(r, 0) * _FINE)
    return {r: taker.floor.get(r, 0) * _FINE for r in resources}, high
