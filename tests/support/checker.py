"""Check plans against the mathematics in models/formulation, for small clusters.

This module aims at clarity, and shares no code with the rules and the engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from math import floor
from typing import TYPE_CHECKING, NamedTuple

from optsched.cluster.node_resources import ShardMode
from optsched.cluster.selectors import TaintEffect
from optsched.cluster.snapshot import QueueState
from optsched.cluster.task import TaskStatus
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Allocate
    from optsched.cluster.dra_devices import DeviceConstraint, DeviceId, DeviceNeed, PooledDevice
    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import CapacityReservation, Claim, Gang, Node, Queue, Snapshot
    from optsched.cluster.task import HostPort, PodTerm, SpreadTerm, Task, TaskShape

GPU = "nvidia.com/gpu"
HELD = (TaskStatus.BOUND, TaskStatus.RUNNING)
NO_LIMIT = 1 << 60


class Taker(NamedTuple):
    """A queue that shares capacity with its siblings.

    Its fields are a floor, a ceiling, claimed amounts, and the creation time of its oldest gang.
    """

    queue: Queue
    floor: Counter[str]
    most: Counter[str]
    claimed: Counter[str]
    oldest_ms: int


def poured(takers: Sequence[Taker], total: int, resource: str) -> list[int]:
    """Return shares of a total by weight between floors and ceilings, rounded
    by largest remainder.
    """
    low = [taker.floor[resource] for taker in takers]
    high = [taker.most[resource] for taker in takers]
    if sum(high) <= total:
        return high
    if sum(low) >= total:
        low, high = [0] * len(low), low
    weights = [max(taker.queue.weight, 1) for taker in takers]

    def at(level: Fraction) -> list[Fraction]:
        rows = zip(weights, low, high, strict=True)
        return [min(max(level * w, Fraction(n)), Fraction(h)) for w, n, h in rows]

    stops = sorted({Fraction(n, w) for ns in (low, high) for n, w in zip(ns, weights, strict=True)})
    left = max((s for s in stops if sum(at(s)) <= total), default=Fraction(0))
    right = min(s for s in stops if sum(at(s)) >= total)
    rise = sum(at(right)) - sum(at(left))
    step = (total - sum(at(left))) / rise if rise else Fraction(0)
    exact = at(left + (right - left) * step)
    share = [floor(amount) for amount in exact]

    def place(i: int) -> tuple[object, ...]:
        taker, remainder = takers[i], exact[i] - share[i]
        holds = taker.claimed[resource] > share[i]
        return (-remainder, not holds, taker.oldest_ms, taker.queue.name)

    for i in sorted(range(len(takers)), key=place)[: total - sum(share)]:
        share[i] += 1
    return share


def _capped(amounts: Counter[str], queue: Queue) -> Counter[str]:
    ceiling = dict(queue.capability or ())
    return Counter({r: min(n, ceiling.get(r, n)) for r, n in amounts.items()})


class Put(NamedTuple):
    """A task on a node. `new` is true if the plan places the task."""

    task: Task
    node: Node
    new: bool


def takes(task: Task) -> Counter[str]:
    """Return the resources that a task takes, including one pod."""
    return Counter({**dict(task.shape.request), "pods": 1})


def summed(tasks: Iterable[Task]) -> Counter[str]:
    """Return the resources that tasks take together."""
    total: Counter[str] = Counter()
    for task in tasks:
        total.update(takes(task))
    return total


@dataclass(frozen=True)
class Checker:
    """A checker of a plan of allocations against every rule."""

    snapshot: Snapshot
    plan: tuple[Allocate, ...]

    def broken(self, *rules: str) -> set[str]:
        """Return the given rules that the plan violates, or `well-formed` for a malformed plan."""
        if not self.is_well_formed():
            return {"well-formed"}
        return {name for name in rules if not CHECKS[name](self)}

    # --- the plan --------------------------------------------------------------------------------

    @cached_property
    def gang_of(self) -> dict[str, Gang]:
        return {task.key: gang for gang in self.snapshot.gangs for task in gang.tasks}

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {task.key: task for gang in self.snapshot.gangs for task in gang.tasks}

    @cached_property
    def new(self) -> list[Put]:
        node = {n.name: n for n in self.snapshot.nodes}
        return [Put(self.tasks[a.task], node[a.node], True) for a in self.plan]

    @cached_property
    def there(self) -> list[Put]:
        return [Put(t, n, False) for n in self.snapshot.nodes for t in n.residents]

    @cached_property
    def everything(self) -> list[Put]:
        return self.there + self.new

    def filled(self) -> Iterator[tuple[Node, list[Task], list[Task]]]:
        """Yield the nodes that get tasks, with their residents and the new tasks."""
        for node in self.snapshot.nodes:
            come = [p.task for p in self.new if p.node is node]
            if come:
                yield node, list(node.residents), come

    # --- well_formed.md --------------------------------------------------------------------------

    def is_well_formed(self) -> bool:
        names = [a.task for a in self.plan]
        return len(set(names)) == len(names) and all(map(self._makes_sense, self.plan))

    def _makes_sense(self, action: Allocate) -> bool:
        gang = next((g for g in self.snapshot.gangs if g.key == action.gang), None)
        task = next((t for t in (gang.tasks if gang else ()) if t.key == action.task), None)
        node = next((n for n in self.snapshot.nodes if n.name == action.node), None)
        if gang is None or task is None or node is None:
            return False
        may = gang.problem is None and task.problem is None and task.status is TaskStatus.PENDING
        return may and node.ready and self._takes_work(gang.queue)

    def _takes_work(self, name: str, below: tuple[str, ...] = ()) -> bool:
        queue = self.queues.get(name)
        if queue is None:
            return name == "root" and bool(below)
        if name in below or queue.problem is not None or queue.state is not QueueState.OPEN:
            return False
        return name == "root" or self._takes_work(queue.parent, (*below, name))

    # --- fits.md ---------------------------------------------------------------------------------

    def fits(self) -> bool:
        for node, held, come in self.filled():
            offers = {"pods": NO_LIMIT, **dict(node.allocatable)}
            use = summed([*held, *come])
            if any(use[r] > offers.get(r, 0) for r, more in summed(come).items() if more):
                return False
        return True

    # --- gpu_shares.md ---------------------------------------------------------------------------

    def shares_gpus(self) -> bool:
        for node, held, come in self.filled():
            parts = [
                t.shape.device.milli
                for t in (*held, *come)
                if t.shape.device is not None and t.shape.device.milli < 1000
            ]
            devices = dict(node.allocatable).get(GPU, 0) - summed([*held, *come])[GPU]
            if parts and not any(
                max(sum(p for p, d in zip(parts, dealt, strict=True) if d == i) for i in dealt)
                <= 1000
                for dealt in product(range(devices), repeat=len(parts))
            ):
                return False
        return True

    # --- gang.md ---------------------------------------------------------------------------------

    def starts_gangs_whole(self) -> bool:
        starting = []
        for gang in self.snapshot.gangs:
            before = [t for t in gang.tasks if t.status in (*HELD, TaskStatus.SUCCEEDED)]
            come = [p.task for p in self.new if self.gang_of[p.task.key] is gang]
            if come and not _reaches_minimum(gang, [*before, *come]):
                return False
            if come and not _reaches_minimum(gang, before):
                starting.append(gang)
        return self._has_min_resources(starting)

    def _has_min_resources(self, starting: list[Gang]) -> bool:
        free: Counter[str] = Counter()
        for node in (n for n in self.snapshot.nodes if n.ready):
            held = summed(node.residents)
            for resource, amount in {"pods": NO_LIMIT, **dict(node.allocatable)}.items():
                free[resource] += max(amount - held[resource], 0)
        spoken_for = summed(p.task for p in self.new)
        for gang in starting:
            asked = summed(t for t in gang.tasks if t.status is TaskStatus.PENDING)
            for resource, least in _missing_resources(gang).items():
                if least > free[resource]:
                    return False
                spoken_for[resource] += max(least - asked[resource], 0)
        named = {resource for gang in starting for resource in _missing_resources(gang)}
        return all(spoken_for[r] <= free[r] for r in named)

    # --- queues ----------------------------------------------------------------------------------

    @cached_property
    def queues(self) -> dict[str, Queue]:
        return {q.name: q for q in self.snapshot.queues}

    def own(self, queue: Queue, *, after: bool) -> Counter[str]:
        """Return the resources of the queue's own tasks, before or after the plan."""
        gangs = [g for g in self.snapshot.gangs if g.queue == queue.name]
        held = [t for g in gangs for t in g.tasks if t.status in HELD]
        come = [p.task for p in self.new if self.gang_of[p.task.key].queue == queue.name]
        return summed([*held, *come] if after else held)

    def children(self, queue: Queue) -> list[Queue]:
        return [q for q in self.snapshot.queues if q.parent == queue.name and q is not queue]

    def subtree(self, queue: Queue) -> list[Queue]:
        return [queue, *(q for child in self.children(queue) for q in self.subtree(child))]

    def gained(self, queues: Iterable[Queue]) -> Counter[str]:
        gain: Counter[str] = Counter()
        for queue in queues:
            gain.update(self.own(queue, after=True) - self.own(queue, after=False))
        return gain

    # capability.md
    def keeps_ceilings(self) -> bool:
        for queue in self.snapshot.queues:
            below = self.subtree(queue)
            use = sum((self.own(q, after=True) for q in below), Counter())
            gain = self.gained(below)
            if any(gain[r] and use[r] > limit for r, limit in queue.capability or ()):
                return False
        return True

    # reservation.md
    def delays_nobody(self) -> bool:
        return not any(
            self._takes_from(number, reservation) or self._exceeds_entitlement(number, reservation)
            for number, reservation in enumerate(self.reservations)
        )

    @property
    def reservations(self) -> tuple[CapacityReservation, ...]:
        return self.snapshot.reservations

    def _takes_from(self, number: int, reservation: CapacityReservation) -> bool:
        """Return whether new tasks take capacity that a reservation needs at its start.

        Only gangs count that the reservation binds.
        """
        come = [
            p
            for p in self.new
            if self._binds(number, self.gang_of[p.task.key])
            and self.gang_of[p.task.key].key not in reservation.entitled
        ]
        for name, kept in reservation.nodes:
            node = next((n for n in self.snapshot.nodes if n.name == name), None)
            gain = summed(p.task for p in come if p.node is node)
            rest = (
                summed(t for t in node.residents if self._still_runs(t, reservation))
                if node
                else {}
            )
            room = dict(node.allocatable) if node is not None and node.ready else {}
            if any(gain[r] and rest[r] + gain[r] + k > room.get(r, 0) for r, k in kept):
                return True
        for name, kept in reservation.queues:
            queue = self.queues.get(name)
            below = {q.name for q in self.subtree(queue)} if queue else set()
            inside = [g for g in self.snapshot.gangs if g.queue in below]
            held = [t for g in inside for t in g.tasks if t.status in (*HELD, TaskStatus.EXPECTED)]
            rest = summed(t for t in held if self._still_runs(t, reservation))
            gain = summed(p.task for p in come if self.gang_of[p.task.key] in inside)
            most = dict(queue.capability or ()) if queue else {}
            if any(gain[r] and r in most and rest[r] + gain[r] + k > most[r] for r, k in kept):
                return True
        return False

    def _exceeds_entitlement(self, number: int, reservation: CapacityReservation) -> bool:
        """Return whether gangs with precedence over a reservation exceed an entitlement."""
        if not reservation.nodes and not reservation.queues:
            return False
        for name, most in reservation.entitlements:
            if name not in self.queues:
                continue
            below = {q.name for q in self.subtree(self.queues[name])}
            inside = [g for g in self.snapshot.gangs if g.queue in below]
            held = summed(
                t
                for g in inside
                for t in g.tasks
                if t.status in (*HELD, TaskStatus.EXPECTED) and t.status is not TaskStatus.RELEASING
            )
            gain = summed(
                p.task
                for p in self.new
                if (gang := self.gang_of[p.task.key]) in inside
                and gang.key in reservation.entitled
                and self._binds(number, gang)
            )
            if any(gain[r] and held[r] + gain[r] > amount for r, amount in most):
                return True
        return False

    def _binds(self, number: int, gang: Gang) -> bool:
        ready = sum(t.status.counts_as_ready for t in gang.tasks)
        if not gang.is_loose and 0 < ready < gang.min_member:
            return False
        if any(b.gang == gang.key for b in self.reservations[: number + 1]):
            return False
        now, reservation = self.snapshot.taken_ms, self.reservations[number]
        asking = [t for t in gang.tasks if not t.status.holds_resources]
        lengths = [self._length(t, gang) for t in asking]
        is_over = 0 not in lengths and now + max(lengths) <= reservation.start_ms
        return gang.priority <= reservation.priority and not is_over

    def _length(self, task: Task, gang: Gang) -> int:
        """Return the shortest estimate of a task's duration, or 0 without an estimate."""
        try:
            said = parse_duration_ms(gang.annotations.get("optsched.io/running-estimate", "0s"))
        except DurationError:
            said = 0
        return min((ms for ms in (task.estimate_ms, said) if ms > 0), default=0)

    def _still_runs(self, task: Task, reservation: CapacityReservation) -> bool:
        if task.status is TaskStatus.RELEASING:
            return False
        gang = next((g for g in self.snapshot.gangs if g.key == task.gang), None)
        node = next((n for n in self.snapshot.nodes if n.name == task.node), None)
        length = 0 if gang is None else self._length(task, gang)
        if not length or node is None or not node.ready:
            return True
        now = self.snapshot.taken_ms
        began = min(task.started_ms or now, now)
        while began + length <= now:
            length = 2 * length
        return began + length > reservation.start_ms

    # guarantee.md
    def keeps_floors(self) -> bool:
        gain = self.gained(self.snapshot.queues)
        strangers = summed(p.task for p in self.there if not p.task.gang and p.node.ready)
        for r in {r for q in self.snapshot.queues for r, _ in q.guarantee if gain[r]}:
            pool = self.total[r] - strangers[r]
            tops = [q for q in self.snapshot.queues if q.name == "root" or q.parent == ""]
            before = sum(self.claim(q, r, after=False) for q in tops)
            if sum(self.claim(q, r, after=True) for q in tops) > max(pool, before):
                return False
        return True

    def claim(self, queue: Queue, resource: str, *, after: bool) -> int:
        below = sum(self.claim(q, resource, after=after) for q in self.children(queue))
        need = self.own(queue, after=after)[resource] + below
        return max(dict(queue.guarantee).get(resource, 0), need)

    # proportion.md
    def keeps_shares(self) -> bool:
        share = self.shares()
        for queue in self.snapshot.queues:
            gain, use = self.gained([queue]), self.own(queue, after=True)
            if any(more and use[r] > share[queue.name].get(r, 0) for r, more in gain.items()):
                return False
        return True

    @cached_property
    def total(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for node in (n for n in self.snapshot.nodes if n.ready):
            total.update({"pods": NO_LIMIT, **dict(node.allocatable)})
        return total

    def asked(self, queue: Queue) -> Counter[str]:
        gangs = [g for g in self.snapshot.gangs if g.queue == queue.name]
        held = [t for g in gangs for t in g.tasks if t.status in HELD]
        faultless = [g for g in gangs if g.problem is None and self._takes_work(g.queue)]
        return summed([*held, *(t for g in faultless for t in g.tasks if _waits(t))])

    @cached_property
    def supply(self) -> Counter[str]:
        """The capacity of ready nodes, node by node, minus the pods without a gang."""
        supply: Counter[str] = Counter()
        for node in (n for n in self.snapshot.nodes if n.ready):
            held = summed(
                p.task for p in self.there if not p.task.gang and p.node.name == node.name
            )
            offered = {"pods": NO_LIMIT, **dict(node.allocatable)}
            supply.update({r: max(n - held[r], 0) for r, n in offered.items()})
        return supply

    def shares(self) -> dict[str, dict[str, int]]:
        """Return the share of each queue for its own gangs, from the root downwards."""
        root = next((q for q in self.snapshot.queues if q.name == "root"), None)
        ceiling = dict((root.capability if root else None) or ())
        return self._below("root", {r: min(n, ceiling.get(r, n)) for r, n in self.supply.items()})

    def _below(self, owner: str, total: Mapping[str, int]) -> dict[str, dict[str, int]]:
        queues = self.snapshot.queues
        takers = [self._taker(q) for q in self._members(owner)]
        takers += [
            Taker(q, Counter(), self.asked(q), self.own(q, after=False), self._oldest([q]))
            for q in queues
            if q.name == owner
        ]
        resources = {*total, *(r for taker in takers for r in taker.most)}
        share: list[dict[str, int]] = [{} for _ in takers]
        for r in resources:
            for mine, amount in zip(share, poured(takers, total.get(r, 0), r), strict=True):
                mine[r] = amount
        found: dict[str, dict[str, int]] = {}
        for taker, mine in zip(takers, share, strict=True):
            name = taker.queue.name
            is_leaf = name == owner or not self._members(name)
            found |= {name: mine} if is_leaf else self._below(name, mine)
        return found

    def _members(self, owner: str) -> list[Queue]:
        known = {q.name for q in self.snapshot.queues}
        return [
            q
            for q in self.snapshot.queues
            if q.name != "root"
            and (self._parent(q) if self._parent(q) in known else "root") == owner
        ]

    def _taker(self, queue: Queue) -> Taker:
        """Return a queue with the amounts of its whole subtree."""
        below = self._all_below(queue)
        claimed: Counter[str] = Counter()
        for q in below:
            claimed.update(self.own(q, after=False))
        return Taker(queue, self._floor(queue), self._most(queue), claimed, self._oldest(below))

    def _all_below(self, queue: Queue) -> list[Queue]:
        return [queue, *(p for q in self._members(queue.name) for p in self._all_below(q))]

    def _oldest(self, queues: list[Queue]) -> int:
        names = {q.name for q in queues if self._takes_work(q.name)}
        return min(
            (
                g.created_ms
                for g in self.snapshot.gangs
                if g.queue in names and g.problem is None and any(map(_waits, g.tasks))
            ),
            default=NO_LIMIT,
        )

    def _parent(self, queue: Queue) -> str:
        """Return the parent of a queue, or the root for a queue in a cycle."""
        parent = {q.name: q.parent or "root" for q in self.snapshot.queues}
        at = queue.parent
        for _ in parent:
            if at == queue.name:
                return "root"
            at = parent.get(at, "")
        return queue.parent or "root"

    def _most(self, queue: Queue) -> Counter[str]:
        total = Counter(self.asked(queue))
        for q in self._members(queue.name):
            total.update(self._most(q))
        return _capped(total | Counter(dict(queue.guarantee)), queue)

    def _floor(self, queue: Queue) -> Counter[str]:
        under = Counter[str]()
        for q in self._members(queue.name):
            under.update(self._floor(q))
        return _capped(under | Counter(dict(queue.guarantee)), queue)

    # --- single nodes ----------------------------------------------------------------------------

    # node_affinity.md
    def is_selected(self) -> bool:
        return all(_selects(p.node, p.task.shape) for p in self.new)

    # taints.md
    def tolerates(self) -> bool:
        return all(_tolerates(p.node, p.task.shape) for p in self.new)

    # shards.md
    def stays_in_shard(self) -> bool:
        sharding = self.snapshot.sharding
        mine = [s for s in sharding.shards if s.name == sharding.name]
        if sharding.mode is not ShardMode.HARD or not mine:
            return True
        taken = {node for s in sharding.shards if s.name != sharding.name for node in s.in_use}
        return {p.node.name for p in self.new} <= set(mine[0].wanted) - taken

    # volumes.md
    def reaches_volumes(self) -> bool:
        for put in self.new:
            for key in put.task.shape.claims:
                claim = self.snapshot.claims.get(key)
                if claim is None or claim.problem:
                    return False
                if not claim.waits_for_consumer:
                    nodes = claim.nodes
                    if nodes and not nodes.matches(put.node.name, put.node.labels):
                        return False
                elif not list(self.ways_to_get(claim, {put.node.name})):
                    return False
        return self.shares_volumes()

    def ways_to_get(self, claim: Claim, nodes: set[str]) -> Iterator[str]:
        """Yield the volumes that an unbound claim could get, if it is used on some nodes.

        A provisioned volume has an empty name.
        """
        labels = {node.name: node.labels for node in self.snapshot.nodes}

        def all_in(selector: NodeSelector | None) -> bool:
            return selector is None or all(selector.matches(n, labels[n]) for n in nodes)

        if claim.selected_node and nodes != {claim.selected_node}:
            return
        yield from (volume.name for volume in claim.volumes if all_in(volume.nodes))
        if claim.provisions and all_in(claim.nodes):
            yield ""

    def shares_volumes(self) -> bool:
        """Return whether the claims can get volumes without using a volume twice."""
        claims, standing = self.snapshot.claims, dict[str, set[str]]()
        for node in self.snapshot.nodes:
            for key in (k for task in node.residents for k in task.shape.claims):
                if key in claims and claims[key].waits_for_consumer and claims[key].volumes:
                    standing.setdefault(key, set()).add(node.name)
        used: dict[str, set[str]] = {}
        for key in sorted(standing, key=lambda k: self.choice_order(claims[k], standing[k])):
            if self.can_share({**used, key: standing[key]}):
                used[key] = standing[key]
        for put in self.new:
            for key in put.task.shape.claims:
                if claims[key].waits_for_consumer and claims[key].volumes:
                    used[key] = used.get(key, set()) | {put.node.name}
        return self.can_share(used)

    def choice_order(self, claim: Claim, nodes: set[str]) -> tuple[bool, int, str]:
        return "" in self.ways_to_get(claim, nodes), claim.size_bytes, claim.key

    def can_share(self, used: dict[str, set[str]]) -> bool:
        ways = [[*self.ways_to_get(self.snapshot.claims[k], nodes)] for k, nodes in used.items()]
        found = ([v for v in way if v] for way in product(*ways))
        return any(len(volumes) == len(set(volumes)) for volumes in found)

    # volume_zone.md
    def is_in_zones(self) -> bool:
        old, new = "failure-domain.beta.kubernetes.io", "topology.kubernetes.io"
        for put in self.new:
            node = {
                part: {kind: put.node.labels.get(f"{kind}/{part}") for kind in (old, new)}
                for part in ("zone", "region")
            }
            if not any(value for each in node.values() for value in each.values()):
                continue
            claims = (self.snapshot.claims.get(key) for key in put.task.shape.claims)
            for label, values in (zone for claim in claims if claim for zone in claim.zones):
                kind, part = label.split("/")
                mine = node[part][kind]
                if mine is None and kind == old:
                    mine = node[part][new]
                if mine not in values:
                    return False
        return True

    # volume_limits.md
    def keeps_volume_limits(self) -> bool:
        for node, held, come in self.filled():
            for driver, most in node.attach_limits:
                before, after = self._attached(driver, held), self._attached(driver, held + come)
                if after != before and len(after) > most:
                    return False
        return True

    def _attached(self, driver: str, tasks: Iterable[Task]) -> set[str]:
        found = [self.snapshot.claims.get(key) for task in tasks for key in task.shape.claims]
        mine = [claim for claim in found if claim is not None and claim.driver == driver]
        return {f"volume {c.handle}" if c.handle else f"claim {c.key}" for c in mine}

    # host_ports.md
    def keeps_ports(self) -> bool:
        return not any(
            _collide(a, b)
            for put in self.new
            for other in self.everything
            if other.node is put.node and other.task is not put.task
            for a in put.task.shape.host_ports
            for b in other.task.shape.host_ports
        )

    # numa_aware.md
    def has_policies(self) -> bool:
        return all(
            not _asked_policy(p.task.shape) or _asked_policy(p.task.shape) == _policy(p.node)
            for p in self.new
        )

    def fits_cells(self) -> bool:
        for node, held, come in self.filled():
            if _policy(node) in ("restricted", "single-numa-node"):
                places_gpus = any(cell.gpus for cell in node.numa.cells)
                needs = [
                    (need.cpus, need.gpus if places_gpus else 0)
                    for task in come
                    for need in task.shape.numa
                ]
                if not _deal_cells(node, needs, _free_cells(node, {t.key for t in held})):
                    return False
        return True

    # --- pod_affinity.md -------------------------------------------------------------------------

    def selects(self, term: PodTerm, task: Task) -> bool:
        if term.selector is None or not term.selector.matches(task.labels):
            return False
        labels = self.snapshot.namespaces.get(task.namespace, {})
        wider = term.namespace_selector
        return task.namespace in term.namespaces or (wider is not None and wider.matches(labels))

    def keeps_relations(self) -> bool:
        return self._keeps_apart() and self._stays_near()

    def _keeps_apart(self) -> bool:
        for one, other in product(self.everything, repeat=2):
            if one.task is other.task or not (one.new or other.new):
                continue
            for term in one.task.shape.pod_anti_affinity:
                domain = one.node.labels.get(term.topology_key)
                near = domain is not None and domain == other.node.labels.get(term.topology_key)
                if near and self.selects(term, other.task):
                    return False
        return True

    def _stays_near(self) -> bool:
        wishes = {
            (t, p.task.shape.pod_affinity) for p in self.new for t in p.task.shape.pod_affinity
        }
        return all(self._is_met(term, wish) for term, wish in wishes)

    def _is_met(self, term: PodTerm, wish: tuple[PodTerm, ...]) -> bool:
        carriers = [p for p in self.new if p.task.shape.pod_affinity == wish]
        meant = [p for p in self.everything if all(self.selects(t, p.task) for t in wish)]
        at: Callable[[Put], str | None] = lambda put: put.node.labels.get(term.topology_key)  # noqa: E731
        if any(at(p) is None for p in carriers):
            return False
        settled = {at(p) for p in meant if not p.new}
        plain = {at(p) for p in meant if p.new and p not in carriers}
        starts = {at(p) for p in carriers} - settled - plain
        if not starts:
            return True
        kin = {at(p) for p in meant if p in carriers}
        return not (settled - {None}) and len(starts) == 1 and starts <= kin

    # --- spread.md -------------------------------------------------------------------------------

    def is_spread(self) -> bool:
        shapes = {p.task.shape for p in self.new}
        return all(
            self._is_even(shape, term) for shape in shapes for term in shape.spread if term.required
        )

    def _is_even(self, shape: TaskShape, term: SpreadTerm) -> bool:
        keys = [t.topology_key for t in shape.spread if t.required]
        counting = [
            n
            for n in self.snapshot.nodes
            if n.ready
            and all(key in n.labels for key in keys)
            and (not term.honour_affinity or _selects(n, shape))
            and (not term.honour_taints or _tolerates(n, shape))
        ]
        count = Counter({n.labels[term.topology_key]: 0 for n in counting})
        for put in self.everything:
            task = put.task
            alike = task.namespace == term.namespace and term.selector is not None
            if put.node in counting and alike and term.selector.matches(task.labels):
                stays = task.status is not TaskStatus.RELEASING
                count[put.node.labels[term.topology_key]] += (
                    term in task.shape.spread if put.new else stays
                )
        least = min(count.values(), default=0) if len(count) >= term.min_domains else 0
        for put in (p for p in self.new if p.task.shape == shape):
            domain = put.node.labels.get(term.topology_key)
            if domain is None or count[domain] - least > term.max_skew:
                return False
        return True

    # --- device_claims.md ------------------------------------------------------------------------

    def gets_devices(self) -> bool:
        claims, where = self.snapshot.devices.claims, dict[str, str]()
        for put in self.new:
            for key in put.task.device_claims:
                claim = claims.get(key)
                if claim is None or claim.problem:
                    return False
                got = claim.allocation
                if got is None and where.setdefault(key, put.node.name) != put.node.name:
                    return False
                nodes = None if got is None else got.nodes
                if nodes is not None and not nodes.matches(put.node.name, put.node.labels):
                    return False
        by_node = ([k for k, n in where.items() if n == name] for name in set(where.values()))
        return all(map(self._deals, by_node))

    def _deals(self, keys: list[str]) -> bool:
        """Return whether the idle devices of the node satisfy the claims, by trying all
        assignments.
        """
        devices = self.snapshot.devices
        node = next(p.node.name for p in self.new if set(keys) & set(p.task.device_claims))
        held = {
            device
            for claim in devices.claims.values()
            if claim.allocation is not None
            for _, device in claim.allocation.devices
        }
        free = [d.id for d in devices.on_node.get(node, ()) if d.id not in held and not d.problem]
        claims = [devices.claims[key] for key in keys]
        ways = (
            list(_claim_ways(claim.needs, claim.constraints, devices.on_node.get(node, ())))
            for claim in claims
        )
        return any(
            len({d for got in way for d in got}) == sum(map(len, way))
            and all(d in free for got in way for d in got)
            for way in product(*ways)
        )


def _claim_ways(
    needs: Sequence[DeviceNeed],
    constraints: Sequence[DeviceConstraint],
    here: Sequence[PooledDevice],
) -> Iterator[list[DeviceId]]:
    """Yield every set of a node's devices that satisfies a claim, including allocated devices."""
    variants = [need.alternatives or (need,) for need in needs]
    if any(each.device_class not in ("any", "a") for one in variants for each in one):
        return
    for chosen in product(*variants):
        per_request = []
        for need in chosen:
            fitting = [d for d in here if _is_of(d, need)]
            if need.is_all:
                per_request.append([fitting] if fitting else [])
            else:
                per_request.append(list(map(list, combinations(fitting, need.number))))
        for got in product(*per_request):
            named = [(n.name, d) for n, each in zip(chosen, got, strict=True) for d in each]
            if all(_holds(c, named) for c in constraints):
                yield [d.id for _, d in named]


def _is_of(device: PooledDevice, need: DeviceNeed) -> bool:
    """Return whether a device satisfies a request.

    The test class `any` has every device, and `a` has the devices of model a.
    """
    model = dict(device.attributes)[f"{device.id.driver}/model"]
    memory = dict(device.capacity)[f"{device.id.driver}/memory"]
    enough = all(int(memory) >= int(least) for _, least in need.capacity)
    return enough and (need.device_class == "any" or (need.device_class == "a" and model == "a"))


def _holds(constraint: DeviceConstraint, named: Sequence[tuple[str, PooledDevice]]) -> bool:
    values = [
        dict(device.attributes)[constraint.attribute]
        for name, device in named
        if not constraint.requests
        or name in constraint.requests
        or name.split("/")[0] in constraint.requests
    ]
    number = len(set(values))
    return number == len(values) if constraint.is_distinct else number <= 1


def _reaches_minimum(gang: Gang, tasks: list[Task]) -> bool:
    roles = Counter(t.role for t in tasks)
    return len(tasks) >= gang.min_member and all(roles[r] >= n for r, n in _binding(gang))


def _missing_resources(gang: Gang) -> Counter[str]:
    """Return minResources minus the requests of the succeeded tasks that the minimum counts."""
    roles, used = Counter(dict(_binding(gang))), Counter[str]()
    spare = gang.min_member - roles.total()
    for task in (t for t in gang.tasks if t.status is TaskStatus.SUCCEEDED):
        if roles[task.role] > 0:
            roles[task.role] -= 1
            used += summed([task])
        elif spare > 0:
            spare -= 1
            used += summed([task])
    return Counter(dict(gang.min_resources)) - used


def _binding(gang: Gang) -> list[tuple[str, int]]:
    """Return minTaskMember if its sum fits minMember, else one task of each role with pods.

    Return an empty list if there are more roles than minMember.
    """
    if sum(n for _, n in gang.min_role) <= gang.min_member:
        return list(gang.min_role)
    living = [t.role for t in gang.tasks if t.status.name not in ("FAILED", "RELEASING")]
    named = [(role, 1) for role, n in gang.min_role if n and role in living]
    return named if len(named) <= gang.min_member else []


def _waits(task: Task) -> bool:
    return task.status is TaskStatus.PENDING and task.problem is None


def _selects(node: Node, shape: TaskShape) -> bool:
    wanted = shape.node_affinity
    return all(node.labels.get(k) == v for k, v in shape.node_selector) and (
        wanted is None or wanted.matches(node.name, node.labels)
    )


def _tolerates(node: Node, shape: TaskShape) -> bool:
    hard = [t for t in node.marks if t.effect is not TaintEffect.PREFER_NO_SCHEDULE]
    return all(any(answer.tolerates(taint) for answer in shape.tolerations) for taint in hard)


def _collide(a: HostPort, b: HostPort) -> bool:
    same = (a.protocol, a.port) == (b.protocol, b.port)
    return same and (a.address == b.address or "0.0.0.0" in (a.address, b.address))


def _asked_policy(shape: TaskShape) -> str:
    found = dict(shape.notes).get("volcano.sh/numa-topology-policy", "none")
    return "" if found == "none" or not shape.numa else found


def _policy(node: Node) -> str:
    usable = node.numa is not None and not node.numa.problem
    return node.numa.alignment.value if usable else "none"


def _free_cells(node: Node, there: set[str]) -> list[tuple[int, int]]:
    """Return the idle CPUs and GPUs by NUMA cell, for residents that the agent has reported."""
    free = [[cell.free_cpus, cell.free_gpus] for cell in node.numa.cells]
    place = {cell.number: at for at, cell in enumerate(node.numa.cells)}
    for hold in (h for h in node.numa.holds if h.key not in there):
        for part in hold.parts:
            free[place[part.cell]][0] += part.cpus
            free[place[part.cell]][1] += part.gpus
    return [(cpus, gpus) for cpus, gpus in free]


def _deal_cells(node: Node, needs: list[tuple[int, int]], free: list[tuple[int, int]]) -> bool:
    """Return whether some assignment of the needs to NUMA cells passes the kubelet's policy."""
    if not needs:
        return True
    everywhere = range(len(free))
    for cpus in product(*(range(c + 1) for c, _ in free)):
        for gpus in product(*(range(g + 1) for _, g in free)):
            if (sum(cpus), sum(gpus)) != needs[0] or not _pleases(node, needs[0], (cpus, gpus)):
                continue
            left = [(free[d][0] - cpus[d], free[d][1] - gpus[d]) for d in everywhere]
            if _deal_cells(node, needs[1:], left):
                return True
    return False


def _pleases(
    node: Node, need: tuple[int, int], taken: tuple[tuple[int, ...], tuple[int, ...]]
) -> bool:
    cells = range(len(node.numa.cells))
    sets = [{d for d in cells if m >> d & 1} for m in range(1, 1 << len(cells))]
    around = []
    for which in (0, 1):
        has = [(c.cpus, c.gpus)[which] for c in node.numa.cells]
        able = [s for s in sets if sum(has[d] for d in s) >= need[which]]
        size = 1 if _policy(node) == "single-numa-node" else min(map(len, able), default=0)
        used = {d for d in cells if taken[which][d]}
        fitting = [s for s in able if len(s) == size and used <= s]
        around.append(fitting if need[which] else [set(cells)])
    return any(s & t for s, t in product(*around))


CHECKS: dict[str, Callable[[Checker], bool]] = {
    "fits": Checker.fits,
    "gpu-shares": Checker.shares_gpus,
    "reservation": Checker.delays_nobody,
    "shards": Checker.stays_in_shard,
    "gang": Checker.starts_gangs_whole,
    "capability": Checker.keeps_ceilings,
    "guarantee": Checker.keeps_floors,
    "proportion": Checker.keeps_shares,
    "node-affinity": Checker.is_selected,
    "taints": Checker.tolerates,
    "volumes": Checker.reaches_volumes,
    "volume-zone": Checker.is_in_zones,
    "volume-limits": Checker.keeps_volume_limits,
    "device-claims": Checker.gets_devices,
    "host-ports": Checker.keeps_ports,
    "pod-affinity": Checker.keeps_relations,
    "topology-spread": Checker.is_spread,
    "numa-policy": Checker.has_policies,
    "numa-aware": Checker.fits_cells,
}
"""The check of each rule by name, which returns whether a plan keeps the rule."""
