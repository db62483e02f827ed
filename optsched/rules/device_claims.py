"""Devices of claims: a task goes where its ResourceClaims have their devices, or can get them.

Mathematics: models/formulation/device_claims.md. Kubernetes: KEP-4381 and the plugin
`dynamicresources` of kube-scheduler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.domain.devices import DeviceGrant
from optsched.domain.reasons import Reason, ReasonCode
from optsched.domain.task import TaskStatus
from optsched.problem.running import running_tasks
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.faces import Face

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from optsched.domain.cluster import Node, Snapshot
    from optsched.domain.devices import (
        DeviceAllocation,
        DeviceClaim,
        DeviceId,
        DeviceNeed,
        Devices,
    )
    from optsched.domain.task import TaskShape
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.outcome import Outcome
    from optsched.rules.world import World


class Want(NamedTuple):
    """So many devices of a node, each one of those at some places."""

    places: tuple[int, ...]
    number: int


class DeviceClaims(Rule):
    """Every claim of a task has devices that its node reaches, or gets free ones of that node."""

    name = "device-claims"
    hard_face = Face.PREDICATE

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`: by dealing devices out."""
        devices = world.snapshot.devices
        asked: dict[str, dict[str, DeviceClaim]] = {}
        node_of: dict[str, str] = {}
        for task, _, node in world.placements:
            for key in task.device_claims:
                where = f"task {task.key}"
                claim, why = devices.claims.get(key), unusable(devices, key)
                if claim is None or why:
                    yield Violation(self.name, where, why)
                elif claim.allocation is not None:
                    if not _reaches(claim, node):
                        detail = f"the devices of claim {key} can not be used on node {node.name}"
                        yield Violation(self.name, where, detail)
                elif node_of.setdefault(key, node.name) != node.name:
                    detail = f"claim {key} would get devices on node {node_of[key]}, too"
                    yield Violation(self.name, where, detail)
                else:
                    asked.setdefault(node.name, {})[key] = claim
        for name, claims in asked.items():
            if _granted(devices, name, claims.values(), devices.held_by) is None:
                detail = f"its free devices do not do for claims {', '.join(sorted(claims))}"
                yield Violation(self.name, f"node {name}", detail)

    def deal(self, world: World) -> dict[str, tuple[DeviceGrant, ...]]:
        """What the claims of each task get that a plan binds; claims that have all get nothing."""
        devices = world.snapshot.devices
        found: dict[str, tuple[DeviceGrant, ...]] = {}
        for name, placed in world.placed_on.items():
            asking = [t for t in placed if t.device_claims]
            keys = dict.fromkeys(key for t in asking for key in t.device_claims)
            claims = [devices.claims[key] for key in keys if key in devices.claims]
            fresh = [claim for claim in claims if claim.allocation is None]
            granted = _granted(devices, name, fresh, devices.held_by) or {}
            for task in asking:
                grants = (DeviceGrant(key, granted.get(key, ())) for key in task.device_claims)
                found[task.key] = tuple(grants)
        return found

    # --- masks -----------------------------------------------------------------------------------

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`: nodes that allocations reach and whose devices would do, were all free."""
        shape = problem.classes.shapes[task_class]
        if not shape.device_claims and not shape.devices:
            return None
        pools = problem.derived(_Pools)
        if pools.asks.refusal(shape):
            return np.zeros(problem.num_nodes, np.bool_)
        chosen = np.ones(problem.num_nodes, np.bool_)
        for allocation in pools.asks.allocations(shape):
            if allocation.nodes is not None:
                chosen &= problem.columns.selects(allocation.nodes)
        needs = pools.asks.needs(shape)
        if needs:
            for n in np.flatnonzero(chosen).tolist():
                wants = pools.wants(n, needs)
                chosen[n] = deal(wants, set(range(pools.number(n)))) is not None
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        needs = problem.derived(_Pools).asks.needs(shape)
        if needs:
            number: Counter[str] = Counter()
            for need in needs:
                number[need.device_class] += need.number
            asked = (f"{n} of class {name}" for name, n in sorted(number.items()))
            return f"had too few devices free: {' and '.join(asked)}"
        return f"can not reach the devices of {', '.join(shape.device_claims)}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        return bool(problem.derived(_Pools).asks.needs(problem.classes.shapes[task_class]))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`: claims that no node could serve."""
        problem = outcome.problem
        asks = problem.derived(_Pools).asks
        start, end = problem.task_start[gang], problem.task_start[gang + 1]
        for task in problem.tasks[start:end]:
            for key in task.device_claims:
                if why := unusable(asks.devices, key):
                    return Reason(ReasonCode.DEVICES, why)
        return None

    # --- rows ------------------------------------------------------------------------------------

    def encode_nodes(self, form: Formulation, supplied: I64) -> None:
        """Every device to one claim; a shared claim to one node, with all tasks that name it."""
        pools = form.problem.derived(_Pools)
        asks, shapes = pools.asks, form.problem.classes.shapes
        dealt: dict[tuple[int, int], list[int]] = {}
        users: dict[str, list[int]] = {}
        for c, shape in enumerate(shapes):
            for key in asks.shared(shape):
                users.setdefault(key, []).append(c)
            for n in np.flatnonzero(supplied[c] >= 0).tolist() if shape.devices else ():
                for want in pools.wants(n, shape.devices):
                    _deal_rows(form, (pools, n), want, int(supplied[c, n]), dealt)
        for key, classes in users.items():
            _share_rows(form, pools, (key, classes), supplied, dealt)
        for variables in dealt.values():
            form.model.add_rows(0, variables, 1, upper=1)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        asks = problem.derived(_Pools).asks
        return _Live(problem) if any(map(asks.needs, problem.classes.shapes)) else None


def unusable(devices: Devices, key: str) -> str:
    """Why a claim can be used nowhere; empty when it can."""
    claim = devices.claims.get(key)
    if claim is None:
        return f"resource claim {key} does not exist"
    if claim.problem:
        return f"resource claim {key} {claim.problem}"
    if claim.allocation is not None:
        return ""
    found = (devices.refuses(need) for need in claim.needs)
    return next((f"resource claim {key}: {why}" for why in found if why), "")


def _reaches(claim: DeviceClaim, node: Node) -> bool:
    nodes = claim.allocation.nodes if claim.allocation is not None else None
    return nodes is None or nodes.matches(node.name, node.labels)


def _granted(
    devices: Devices, node: str, claims: Iterable[DeviceClaim], held: Collection[DeviceId]
) -> dict[str, tuple[tuple[str, DeviceId], ...]] | None:
    """(request, device) by claim out of the free devices of a node; None where they do not do."""
    here = devices.on_node.get(node, ())
    free = {i for i, device in enumerate(here) if device.id not in held}
    asked = [
        (claim.key, need.name, Want(devices.choices(node, need), need.number))
        for claim in claims
        for need in claim.needs
    ]
    dealt = deal([want for _, _, want in asked], free)
    if dealt is None:
        return None
    found: dict[str, tuple[tuple[str, DeviceId], ...]] = {}
    for (key, request, _), places in zip(asked, dealt, strict=True):
        found[key] = (*found.get(key, ()), *((request, here[i].id) for i in places))
    return found


def deal(wants: Sequence[Want], free: set[int]) -> list[list[int]] | None:
    """Free places for every want, each place once; None where that can not be.

    Augmenting paths (Kuhn): a place that is taken is given up where its owner finds another.
    """
    owner: dict[int, int] = {}

    def finds(want: int, seen: set[int]) -> bool:
        for place in wants[want].places:
            if place in free and place not in seen:
                seen.add(place)
                if place not in owner or finds(owner[place], seen):
                    owner[place] = want
                    return True
        return False

    for want, each in enumerate(wants):
        if not all(finds(want, set()) for _ in range(each.number)):
            return None
    found: list[list[int]] = [[] for _ in wants]
    for place in sorted(owner):
        found[owner[place]].append(place)
    return found


# --- arrays --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asks:
    """What shapes ask for, given the claims of a snapshot."""

    devices: Devices

    def refusal(self, shape: TaskShape) -> str:
        """Why a shape can be placed nowhere; empty when it can."""
        found = (unusable(self.devices, key) for key in shape.device_claims)
        of_own = (self.devices.refuses(need) for need in shape.devices)
        return next((why for why in (*found, *of_own) if why), "")

    def allocations(self, shape: TaskShape) -> list[DeviceAllocation]:
        """What its claims have got already."""
        claims = (self.devices.claims[key] for key in shape.device_claims)
        return [c.allocation for c in claims if c.allocation is not None]

    def shared(self, shape: TaskShape) -> list[str]:
        """Its claims that have got nothing yet and that other tasks may name, too."""
        if self.refusal(shape):
            return []
        claims = (self.devices.claims[key] for key in shape.device_claims)
        return [c.key for c in claims if c.allocation is None]

    def needs(self, shape: TaskShape) -> tuple[DeviceNeed, ...]:
        """All that its claims have yet to get; none where it can be placed nowhere."""
        if not (shape.device_claims or shape.devices) or self.refusal(shape):
            return ()
        shared = (n for key in self.shared(shape) for n in self.devices.claims[key].needs)
        return (*shared, *shape.devices)


class _Pools:
    """The devices of nodes, by number of the node."""

    def __init__(self, problem: Problem) -> None:
        self.devices = problem.snapshot.devices
        self.asks = _Asks(self.devices)
        self._names = [node.name for node in problem.snapshot.nodes]
        self._leaving = _leaving(problem.snapshot)
        self._wants: dict[tuple[int, DeviceNeed], Want] = {}

    def number(self, node: int) -> int:
        """How many devices a node has."""
        return len(self.devices.on_node.get(self._names[node], ()))

    def free(self, node: int, gone: Collection[str] = ()) -> set[int]:
        """Places of devices that no claim holds but those of some that are gone."""
        here, held = self.devices.on_node.get(self._names[node], ()), self.devices.held_by
        holders = [held.get(device.id) for device in here]
        return {i for i, holder in enumerate(holders) if holder is None or holder in gone}

    @property
    def leaving(self) -> frozenset[str]:
        """Claims that end with tasks that are on their way out."""
        return self._leaving

    def wants(self, node: int, needs: Iterable[DeviceNeed]) -> list[Want]:
        """Needs in terms of the devices of a node."""
        return [self._want(node, need) for need in needs]

    def _want(self, node: int, need: DeviceNeed) -> Want:
        key = (node, need)
        if key not in self._wants:
            choices = self.devices.choices(self._names[node], need)
            self._wants[key] = Want(choices, need.number)
        return self._wants[key]


def _leaving(snapshot: Snapshot) -> frozenset[str]:
    residents = [t for node in snapshot.nodes for t in node.residents if t.device_claims]
    gone = {t.key for t in residents if t.status is TaskStatus.RELEASING}
    return snapshot.devices.freed(residents, gone)


# --- rows ----------------------------------------------------------------------------------------


def _deal_rows(
    form: Formulation,
    at: tuple[_Pools, int],
    want: Want,
    tasks: int,
    dealt: dict[tuple[int, int], list[int]],
) -> None:
    """As many devices as tasks of a variable take: Σ dealt = number·tasks."""
    pools, node = at
    free = pools.free(node)
    open_places = [place for place in want.places if place in free]
    variables = form.model.add_variables(0, np.ones(len(open_places), np.int64))
    factors = np.append(np.ones(len(variables), np.int64), -want.number)
    form.model.add_rows(0, np.append(variables, tasks), factors, lower=0, upper=0)
    for place, variable in zip(open_places, variables.tolist(), strict=True):
        dealt.setdefault((node, place), []).append(variable)


def _share_rows(
    form: Formulation,
    pools: _Pools,
    shared: tuple[str, list[int]],
    supplied: I64,
    dealt: dict[tuple[int, int], list[int]],
) -> None:
    """A claim gets its devices on one node at most, and tasks that name it go there only."""
    key, classes = shared
    model, needs = form.model, pools.devices.claims[key].needs
    chosen: list[int] = []
    for n in np.flatnonzero((supplied[classes] >= 0).any(axis=0)).tolist():
        (here,) = model.add_variables(0, 1).tolist()
        chosen.append(here)
        for c in classes:
            tasks = int(supplied[c, n])
            if tasks >= 0:
                most = int(model.bounds[1][tasks])
                model.add_rows(0, [tasks, here], [1, -most], upper=0)
        for want in pools.wants(n, needs):
            _deal_rows(form, (pools, n), want, here, dealt)
    if chosen:
        model.add_rows(0, chosen, 1, upper=1)


# --- greedy --------------------------------------------------------------------------------------


class _Live(Greedy):
    """Devices as tasks come: on every node what has been asked for can be dealt out together.

    What is promised is dealt out of the devices that are free once others have left.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pools = problem.derived(_Pools)
        shapes, asks = problem.classes.shapes, self._pools.asks
        self._own = [shape.devices if asks.needs(shape) else () for shape in shapes]
        self._shared = [asks.shared(shape) for shape in shapes]
        self._evicted: list[str] = []
        self._gone = self._pools.leaving
        self._later: dict[int, list[DeviceNeed]] = {}
        self._now: dict[int, list[DeviceNeed]] = {}
        self._seated: dict[str, list[int]] = {}
        self._put: dict[tuple[int, int], list[tuple[list[DeviceNeed], bool]]] = {}
        self._views: dict[tuple[tuple[DeviceNeed, ...], bool], tuple[I64, Bool]] = {}
        self._stamp = np.zeros(problem.num_nodes, np.int64)
        self._clock = 0

    # --- questions -------------------------------------------------------------------------------

    def live_mask(self, task_class: int) -> Bool | None:
        return self._mask(task_class, now=True)

    def later_mask(self, task_class: int) -> Bool | None:
        return self._mask(task_class, now=False)

    def _mask(self, task_class: int, *, now: bool) -> Bool | None:
        own, shared = self._own[task_class], self._shared[task_class]
        if not own and not shared:
            return None
        fresh = [key for key in shared if not self._seated.get(key)]
        claims = self._pools.devices.claims
        needs = (*own, *(need for key in fresh for need in claims[key].needs))
        allowed = self._view(needs, now=now).copy()
        for key in shared:
            if seats := self._seated.get(key):
                here = np.zeros_like(allowed)
                here[seats[0]] = True
                allowed &= here
        return allowed

    def _view(self, needs: tuple[DeviceNeed, ...], *, now: bool) -> Bool:
        """(N,) nodes that have devices for some needs besides all that has been put there."""
        if (needs, now) not in self._views:
            number = self._problem.num_nodes
            self._views[needs, now] = np.full(number, -1, np.int64), np.zeros(number, np.bool_)
        seen, fits = self._views[needs, now]
        for node in np.flatnonzero(seen != self._stamp).tolist():
            fits[node] = self._fits(node, needs, now=now)
            seen[node] = self._stamp[node]
        return fits

    def _fits(self, node: int, needs: tuple[DeviceNeed, ...], *, now: bool) -> bool:
        if not self._pools.number(node):
            return not any(need.number for need in needs)
        later = self._pools.wants(node, (*self._later.get(node, ()), *needs))
        if deal(later, self._pools.free(node, self._gone)) is None:
            return False
        if not now:
            return True
        wants = self._pools.wants(node, (*self._now.get(node, ()), *needs))
        return deal(wants, self._pools.free(node)) is not None

    # --- notes -----------------------------------------------------------------------------------

    def placed(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        if not self._own[task_class] and not self._shared[task_class]:
            return
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            for _ in range(count):
                self._add(node, task_class)
            for _ in range(-count):
                self._take_back(node, task_class)
            self._touch(node)

    def _add(self, node: int, task_class: int) -> None:
        claims = self._pools.devices.claims
        needs = list(self._own[task_class])
        for key in self._shared[task_class]:
            seats = self._seated.setdefault(key, [])
            needs += () if seats else claims[key].needs
            seats.append(node)
        is_now = self._fits(node, tuple(needs), now=True)
        self._later.setdefault(node, []).extend(needs)
        if is_now:
            self._now.setdefault(node, []).extend(needs)
        self._put.setdefault((node, task_class), []).append((needs, is_now))

    def _take_back(self, node: int, task_class: int) -> None:
        needs, is_now = self._put[node, task_class].pop()
        for key in self._shared[task_class]:
            self._seated[key].remove(node)
        for need in needs:
            self._later[node].remove(need)
            if is_now:
                self._now[node].remove(need)

    def leaves(self, victim: int, sign: int) -> None:
        task = running_tasks(self._problem).tasks[victim]
        if not task.device_claims:
            return
        if sign > 0:
            self._evicted.append(task.key)
        else:
            self._evicted.remove(task.key)
        residents = [t for n in self._problem.snapshot.nodes for t in n.residents]
        going = {t.key for t in residents if t.status is TaskStatus.RELEASING}
        asking = [t for t in residents if t.device_claims]
        self._gone = self._pools.devices.freed(asking, going | set(self._evicted))
        self._clock += 1
        self._stamp[:] = self._clock

    def _touch(self, node: int) -> None:
        self._clock += 1
        self._stamp[node] = self._clock
