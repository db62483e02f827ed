"""Deserved shares by weight for the verifier, computed only from cluster objects.

The shares are defined in models/formulation/proportion.md, "Shares". The solver and the greedy
pipeline compute the same shares with separate code, `weighted_shares`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import ROOT_QUEUE, Snapshot
from optsched.plugins.verification.world import World, add_into, summed, task_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Queue

_NEVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class SharesByName:
    """Deserved shares in base units, by queue and resource.

    Attributes
    ----------
    whole
        Shares of each queue, including its descendants.
    own
        Shares of the gangs directly in each queue.

    """

    whole: Mapping[str, Mapping[str, int]]
    own: Mapping[str, Mapping[str, int]]


def shares_by_name(world: World) -> SharesByName:
    """Return the deserved shares of the queues that have gangs, and of their ancestors."""
    supply = dict(world.total)
    for node in world.snapshot.nodes:
        outside_gangs = [t for t in node.residents if not t.gang] if node.ready else []
        if outside_gangs:
            offered, held = world.offers(node), summed(map(task_usage, outside_gangs))
            add_into(supply, {r: -min(n, offered[r]) for r, n in held.items() if r in offered})
    found: dict[tuple[str, Amounts, Amounts], tuple[int, int]] = {}
    for stake, number in world.stakes.items():
        key, created_ms = (stake.queue, stake.claimed, stake.requested), world.oldest_ms[stake]
        before, oldest_ms = found.get(key, (0, created_ms))
        found[key] = (before + number, min(oldest_ms, created_ms))
    stakes = frozenset(_EqualGangs(*key, *rest) for key, rest in found.items())
    return _divide_supply(_Inputs(world.snapshot.queues, amounts(supply), stakes))


class _EqualGangs(NamedTuple):
    """For equal gangs of a queue: usage, requests, number of gangs, and oldest creation time."""

    queue: str
    claimed: Amounts
    requested: Amounts
    number: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of deserved shares: queues, node capacity, and usage and requests of gangs."""

    queues: tuple[Queue, ...] = field(hash=False)
    supply: Amounts
    stakes: frozenset[_EqualGangs]


# A session verifies several plans of one snapshot. Most plans have equal inputs, because victims
# count as if they still used their resources.
@lru_cache(maxsize=4)
def _divide_supply(inputs: _Inputs) -> SharesByName:
    world = World(Snapshot(0, queues=inputs.queues), ())
    below = _list_child_queues(world)
    claims = _build_claims(world, below, inputs.stakes)
    whole: dict[str, dict[str, int]] = {}
    own: dict[str, dict[str, int]] = {}
    offered = dict(inputs.supply)
    for name, members in below.items():
        queue = world.snapshot.queue_by_name.get(name)
        takers = [claims[member] for member in members]
        total = offered
        if queue is not None and (members or name == ROOT_QUEUE):
            # The gangs directly in a parent queue are treated like a child queue.
            demand, own_stake = claims[name].demand, claims[name].own
            takers.append(_Claim(queue, {}, demand, own_stake, own_stake, ceiling=demand))
        if name != ROOT_QUEUE:
            total = whole[name]
        elif queue is not None:
            total = offered | {r: min(n, offered.get(r, 0)) for r, n in queue.capability or ()}
        shares: list[dict[str, int]] = [{} for _ in takers]
        for r in sorted({r for taker in takers for r in taker.ceiling}):
            parts = _divide_resource(total.get(r, 0), takers, r)
            for share, amount in zip(shares, parts, strict=True):
                share[r] = amount
        for taker, share in zip(takers, shares, strict=True):
            own[taker.queue.name] = share
            if taker.queue.name != name or name == ROOT_QUEUE:
                whole[taker.queue.name] = share
    return SharesByName(
        whole={name: whole[name] for name in sorted(whole) if claims[name].stake.has_gangs},
        own={name: own[name] for name in sorted(own) if claims[name].own.has_gangs},
    )


@dataclass(frozen=True, slots=True)
class _Stake:
    """The usage of some gangs, including victims, and the creation time of the oldest gang."""

    claimed: Mapping[str, int]
    has_gangs: bool
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class _Claim:
    """A queue among the sibling queues that divide a resource.

    Attributes
    ----------
    floor
        The larger of the queue's guarantee and the sum of its child queues' floors, by resource.
    demand
        The usage plus the requests of the gangs directly in the queue, by resource.
    own, stake
        The `_Stake` of the gangs directly in the queue, and of all gangs in its subtree.
    ceiling
        The maximum share that the queue can deserve, by resource.

    """

    queue: Queue
    floor: Mapping[str, int]
    demand: Mapping[str, int]
    own: _Stake
    stake: _Stake
    ceiling: Mapping[str, int]


def _list_child_queues(world: World) -> dict[str, list[str]]:
    """Return the names of each queue's child queues, from the root down.

    A queue without a parent, or in a cycle of parents, is a child of the root queue.
    """
    found: dict[str, list[str]] = {}
    for queue in world.snapshot.queues:
        line = world.ancestors(queue)
        is_cyclic = line[-1].parent == queue.name
        above = ROOT_QUEUE if len(line) < 2 or is_cyclic else line[1].name
        if queue.name != ROOT_QUEUE:
            found.setdefault(above, []).append(queue.name)
    order = [ROOT_QUEUE]
    for name in order:  # The loop appends to `order`.
        order += found.get(name, ())
    return {name: found.get(name, []) for name in order}


def _build_claims(
    world: World, below: Mapping[str, Sequence[str]], gangs: Iterable[_EqualGangs]
) -> dict[str, _Claim]:
    own, demand = _sum_by_queue(world, gangs)
    nothing = _Stake({}, has_gangs=False, oldest_ms=_NEVER_MS)
    found: dict[str, _Claim] = {}
    for name in reversed(list(below)):
        queue = world.snapshot.queue_by_name.get(name)
        if queue is None:
            continue
        under = [found[child] for child in below[name]]
        mine, requested = own.get(name, nothing), demand.get(name, {})
        floor: Mapping[str, int] = {}
        whole = mine
        if under:
            floor = summed(c.floor for c in under)
            requested = summed((requested, *(c.ceiling for c in under)))
            stakes = [s for s in (mine, *(c.stake for c in under)) if s.has_gangs]
            whole = _Stake(
                claimed=summed(s.claimed for s in stakes),
                has_gangs=bool(stakes),
                oldest_ms=min((s.oldest_ms for s in stakes), default=_NEVER_MS),
            )
        found[name] = _Claim(
            queue=queue,
            floor=_clamp_amounts(floor, queue),
            demand=demand.get(name, {}),
            own=mine,
            stake=whole,
            ceiling=_clamp_amounts(requested, queue),
        )
    return found


def _clamp_amounts(some: Mapping[str, int], queue: Queue) -> Mapping[str, int]:
    """Return the amounts, raised to the queue's guarantee and then limited to its capability."""
    if not queue.guarantee and not queue.capability:
        return some
    raised = {**some, **{r: max(some.get(r, 0), amount) for r, amount in queue.guarantee}}
    ceiling = dict(queue.capability or ())
    return {r: min(n, ceiling.get(r, n)) for r, n in raised.items()}


def _sum_by_queue(
    world: World, stakes: Iterable[_EqualGangs]
) -> tuple[dict[str, _Stake], dict[str, dict[str, int]]]:
    """Return two mappings by queue: the `_Stake` of its direct gangs, and their total demand.

    The demand is the usage plus the requests. Requests in closed queues do not count. The oldest
    gang is chosen among the gangs whose requests count.
    """
    claimed: dict[str, dict[str, int]] = {}
    demand: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    for stake in stakes:
        requested = () if world.shut(stake.queue) else stake.requested
        held = {r: amount * stake.number for r, amount in stake.claimed}
        of_queue = demand.setdefault(stake.queue, {})
        add_into(of_queue, held)
        add_into(of_queue, {r: amount * stake.number for r, amount in requested})
        if stake.claimed or requested:
            add_into(claimed.setdefault(stake.queue, {}), held)
        if requested:
            oldest[stake.queue] = min(stake.oldest_ms, oldest.get(stake.queue, _NEVER_MS))
    own = {
        name: _Stake(part, has_gangs=True, oldest_ms=oldest.get(name, _NEVER_MS))
        for name, part in claimed.items()
    }
    return own, demand


def _divide_resource(total: int, takers: Sequence[_Claim], resource: str) -> list[int]:
    """Return shares by weight within floors and ceilings, rounded by largest remainder."""
    low = [t.floor.get(resource, 0) for t in takers]
    high = [t.ceiling.get(resource, 0) for t in takers]
    if sum(high) <= total:
        return high
    if sum(low) >= total:
        low, high = [0] * len(low), low
    weight = [max(t.queue.weight, 1) for t in takers]
    rest, weights, free = _find_level(total, weight, low, high)
    bounds = zip(weight, low, high, strict=True)
    shares = [h if rest * w >= h * weights else n for w, n, h in bounds]
    remainders = []
    for i in free:
        shares[i] = rest * weight[i] // weights
        claim = takers[i].stake.claimed.get(resource, 0)
        order = (claim <= shares[i], takers[i].stake.oldest_ms, takers[i].queue.name)
        remainders.append((-(rest * weight[i] % weights), *order, i))
    for *_, i in sorted(remainders)[: total - sum(shares)]:
        shares[i] += 1
    return shares


def _find_level(
    total: int, weight: Sequence[int], low: Sequence[int], high: Sequence[int]
) -> tuple[int, int, list[int]]:
    """Return the remaining total, the total weight, and the queues that no bound limits.

    The returned queues divide the remaining total by weight. In each round, each queue whose share
    violates a bound gets this bound, and the other queues divide the remaining total again. Floors
    apply if the total shortage below floors is at least the total excess above ceilings. Ceilings
    apply if the total excess is at least the total shortage.
    """
    free = list(range(len(weight)))
    rest, weights = total, sum(weight)
    while True:
        lack = {i: low[i] * weights - rest * weight[i] for i in free}
        excess = {i: rest * weight[i] - high[i] * weights for i in free}
        lacking = [i for i in free if lack[i] > 0]
        exceeding = [i for i in free if excess[i] > 0]
        missing, surplus = sum(lack[i] for i in lacking), sum(excess[i] for i in exceeding)
        bound = [(i, low[i]) for i in lacking if missing >= surplus]
        bound += [(i, high[i]) for i in exceeding if surplus >= missing]
        if not bound:
            return rest, weights, free
        fixed = {i for i, _ in bound}
        if len(fixed) == len(free):
            return rest, weights, []
        free = [i for i in free if i not in fixed]
        rest -= sum(amount for _, amount in bound)
        weights -= sum(weight[i] for i in fixed)
