"""ResourceClaims: each claim of a task has, or can get, devices that the task's node can use.

Mathematics: models/formulation/device_claims.md. Sources: KEP-4381, KEP-4816, KEP-5075 and
kube-scheduler's plugin `dynamicresources`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.dra_devices import DeviceGrant, too_many_choices
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.devices.device_matching import (
    STEPS_OF_SESSION,
    Steps,
    allocate_devices,
    options_of,
)
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.running import number_keys, running_tasks
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from optsched.cluster.dra_devices import (
        DeviceClaim,
        DeviceClaimRequest,
        DeviceId,
        Devices,
    )
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.devices.device_matching import Bond, Option
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


class DeviceClaims(Rule):
    """Rule: each claim of a task has, or can get, devices that the task's node can use."""

    name = "device-claims"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """Check that all claims of each placed task can get devices on the node of the task."""
        devices = world.snapshot.devices
        requested: dict[str, dict[str, DeviceClaim]] = {}
        node_of: dict[str, str] = {}
        for task, _, node in world.placements:
            for key in task.device_claims:
                where = f"task {task.key}"
                claim, why = devices.claims.get(key), unusable(devices, key)
                if claim is None or why:
                    yield Violation(self.name, where, why)
                elif claim.allocation is not None:
                    reached = claim.allocation.nodes
                    if reached is not None and not reached.matches(node.name, node.labels):
                        detail = f"the devices of claim {key} cannot be used on node {node.name}"
                        yield Violation(self.name, where, detail)
                elif node_of.setdefault(key, node.name) != node.name:
                    detail = f"claim {key} would get devices on node {node_of[key]} as well"
                    yield Violation(self.name, where, detail)
                else:
                    requested.setdefault(node.name, {})[key] = claim
        for name, claims in requested.items():
            if _granted(devices, name, claims.values(), devices.claim_by_device) is None:
                detail = f"its free devices do not suffice for claims {', '.join(sorted(claims))}"
                yield Violation(self.name, f"node {name}", detail)

    def grant_devices(self, world: World) -> dict[str, tuple[DeviceGrant, ...]]:
        """Return the devices that a plan allocates to each bound task's claims, by task key."""
        devices = world.snapshot.devices
        found: dict[str, tuple[DeviceGrant, ...]] = {}
        for name, placed in world.placed_on.items():
            claiming = [t for t in placed if t.device_claims]
            if not claiming:
                continue
            keys = dict.fromkeys(key for t in claiming for key in t.device_claims)
            claims = [devices.claims[key] for key in keys if key in devices.claims]
            fresh = [claim for claim in claims if claim.allocation is None]
            granted = _granted(devices, name, fresh, devices.claim_by_device) or {}
            for task in claiming:
                grants = (DeviceGrant(key, granted.get(key, ())) for key in task.device_claims)
                found[task.key] = tuple(grants)
        return found

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """Allow nodes that can use the devices of allocated claims and supply all other claims."""
        shape = problem.classes.shapes[task_class]
        if not shape.device_claims and not shape.devices:
            return None
        pools = problem.derived(_Pools)
        if pools.requests.refusal(shape):
            return np.zeros(problem.num_nodes, np.bool_)
        chosen = np.ones(problem.num_nodes, np.bool_)
        for key in shape.device_claims:
            allocation = pools.devices.claims[key].allocation
            if allocation is not None and allocation.nodes is not None:
                chosen &= problem.columns.selects(allocation.nodes)
        requested = pools.requests.open(shape)
        if requested:
            known: dict[int, bool] = {}
            for n in np.flatnonzero(chosen).tolist():
                twin = pools.first_equal_node[n]
                if twin not in known:
                    options = pools.options(twin, requested)
                    every = set(range(len(pools.on_node[twin])))
                    known[twin] = allocate_devices(options, every, pools.steps) is not None
                chosen[n] = known[twin]
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        pools = problem.derived(_Pools)
        requested = pools.requests.open(shape)
        if not requested:
            return f"cannot reach the devices of {', '.join(shape.device_claims)}"
        withheld: Counter[str] = Counter()
        for need in {need for request in requested for need in request.needs}:
            withheld |= problem.snapshot.devices.withheld(need)
        parts = [
            f"{count_noun(n, 'device')} on all nodes {why}" for why, n in sorted(withheld.items())
        ]
        left = f" (unavailable: {', '.join(parts)})" if parts else ""
        # Only claims with constraints or alternatives need a search.
        searches = any(
            request.constraints or any(need.alternatives for need in request.needs)
            for request in requested
        )
        if pools.steps.left <= 0 and searches:
            left += "; the search steps of this session are used up, and a later session continues"
        return f"had too few devices free: {' and '.join(_describe_requests(requested))}{left}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        requests, shape = problem.derived(_Pools).requests, problem.classes.shapes[task_class]
        return bool(requests.open(shape) or requests.allocated(shape))

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return the reason that no node can satisfy one of the gang's claims, or None."""
        problem = outcome.problem
        requests = problem.derived(_Pools).requests
        for task in problem.tasks_of(gang):
            for key in task.device_claims:
                if why := unusable(requests.devices, key):
                    return Reason(ReasonCode.DEVICES, why)
            for request in task.shape.devices:
                if why := _refuses(requests.devices, request):
                    return Reason(ReasonCode.DEVICES, f"a claim of pod {task.key}: {why}")
        return None

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """Return a number per running task (V,), equal for tasks with the same allocated claims."""
        requests = problem.derived(_Pools).requests
        if not requests.open(problem.classes.shapes[task_class]):
            return None
        claims = requests.devices.claims
        allocated = {key for key, claim in claims.items() if claim.allocation is not None}
        return number_keys(
            () if allocated.isdisjoint(task.device_claims) else task.device_claims
            for task in running_tasks(problem).tasks
        )

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints that allocate devices to claims, each device to at most one claim."""
        supplied, shapes = nodes.supplied, nodes.problem.classes.shapes
        pools = nodes.problem.derived(_Pools)
        if not any(map(pools.requests.open, shapes)):
            return
        rows = _AllocationRows(nodes, pools)
        sharing: dict[str, list[int]] = {}
        for c, shape in enumerate(shapes):
            for key in pools.requests.shared(shape):
                sharing.setdefault(key, []).append(c)
            for n in np.flatnonzero(supplied[c] >= 0).tolist() if shape.devices else ():
                for request in shape.devices:
                    rows.add(n, request, int(supplied[c, n]))
        for key, classes in sharing.items():
            rows.add_shared_claim(key, classes)
        rows.close()

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        requests = problem.derived(_Pools).requests
        return _ClaimedDevices(problem) if any(map(requests.open, problem.classes.shapes)) else None


def count_cut_searches(problem: Problem) -> dict[str, int]:
    """Return how many device searches were stopped, by the limit that stopped them.

    The limits are `search` (steps of one search) and `session` (steps of all searches of a
    session). The key `selectors` counts the device requests whose selectors a later session will
    evaluate.
    """
    devices = problem.snapshot.devices
    if not devices.on_node and not devices.elsewhere:
        return {}
    found = dict(problem.derived(_Pools).steps.num_cut)
    return {**found, "selectors": len(devices.postponed)} if devices.postponed else found


def _describe_requests(requested: Iterable[DeviceClaimRequest]) -> Iterator[str]:
    number: Counter[str] = Counter()
    more: list[str] = []
    for request in requested:
        for need in request.needs:
            if need.alternatives:
                classes = dict.fromkeys(each.device_class for each in need.alternatives)
                more.append(f"one of class {' or '.join(classes)} for request {need.name}")
            elif need.is_all:
                more.append(f"all of class {need.device_class}")
            else:
                number[need.device_class] += need.number
        more += (
            f"{'different' if each.is_distinct else 'the same'} {each.attribute}"
            for each in request.constraints
        )
    yield from (f"{n} of class {name}" for name, n in sorted(number.items()))
    yield from dict.fromkeys(more)


def unusable(devices: Devices, key: str) -> str:
    """Return why no node can satisfy a claim; empty if the claim is usable."""
    claim = devices.claims.get(key)
    if claim is None:
        return f"resource claim {key} does not exist"
    if claim.problem:
        return f"resource claim {key} {claim.problem}"
    if claim.allocation is not None:
        return ""
    if why := too_many_choices(claim.request):
        return f"resource claim {key} {why}"
    found = (devices.refuses(need) for need in claim.needs)
    return next((f"resource claim {key}: {why}" for why in found if why), "")


def _refuses(devices: Devices, request: DeviceClaimRequest) -> str:
    """Return why no node can satisfy a claim from a template; empty if some node may satisfy it."""
    found = (devices.refuses(need) for need in request.needs)
    return too_many_choices(request) or next((why for why in found if why), "")


def _granted(
    devices: Devices, node: str, claims: Iterable[DeviceClaim], held: Collection[DeviceId]
) -> dict[str, tuple[tuple[str, DeviceId], ...]] | None:
    """Return (request name, device ID) pairs by claim key, or None if too few devices are idle."""
    on_node = devices.on_node.get(node, ())
    free = {i for i, device in enumerate(on_node) if device.id not in held}
    requested = list(claims)
    options = {
        request: options_of(devices, node, request)
        for request in {claim.request for claim in requested}
    }
    allocated = allocate_devices([options[claim.request] for claim in requested], free)
    if allocated is None:
        return None
    return {
        claim.key: tuple((request, on_node[place].id) for request, place in got)
        for claim, got in zip(requested, allocated, strict=True)
    }


# --- arrays --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Requests:
    """The device requests of task classes, given the ResourceClaims of a snapshot."""

    devices: Devices

    def refusal(self, shape: TaskShape) -> str:
        """Return why no node can satisfy the claims of `shape`; empty if some node may do so."""
        found = (unusable(self.devices, key) for key in shape.device_claims)
        of_own = (_refuses(self.devices, request) for request in shape.devices)
        return next((why for why in (*found, *of_own) if why), "")

    def shared(self, shape: TaskShape) -> list[str]:
        """Return the keys of unallocated ResourceClaims that pods of `shape` reference by name."""
        if self.refusal(shape):
            return []
        claims = (self.devices.claims[key] for key in shape.device_claims)
        return [c.key for c in claims if c.allocation is None]

    def allocated(self, shape: TaskShape) -> list[str]:
        """Return the keys of allocated ResourceClaims that pods of `shape` reference by name."""
        claims = map(self.devices.claims.get, shape.device_claims)
        return [c.key for c in claims if c is not None and c.allocation is not None]

    def open(self, shape: TaskShape) -> tuple[DeviceClaimRequest, ...]:
        """Return the requests of unallocated claims of `shape`; empty if no node can meet them."""
        if not (shape.device_claims or shape.devices) or self.refusal(shape):
            return ()
        shared = (self.devices.claims[key].request for key in self.shared(shape))
        return tuple(request for request in (*shared, *shape.devices) if request.needs)


class _Pools:
    """The devices of each node (`on_node`, by node index), and the claims for devices."""

    def __init__(self, problem: Problem) -> None:
        self.devices = problem.snapshot.devices
        self.requests = _Requests(self.devices)
        self._nodes = problem.snapshot.nodes
        self.on_node = [self.devices.on_node.get(node.name, ()) for node in self._nodes]
        self._options: dict[tuple[int, DeviceClaimRequest], tuple[Option, ...]] = {}
        self.steps = Steps(STEPS_OF_SESSION)
        self.ending_claims = self.find_ending_claims(())

    def free(self, node: int, ended: Collection[str] = ()) -> set[int]:
        """Return the indices of a node's devices that are idle once `ended` claims are freed."""
        holders = [self.devices.claim_by_device.get(device.id) for device in self.on_node[node]]
        return {i for i, holder in enumerate(holders) if holder is None or holder in ended}

    def homes(self, claims: Iterable[str]) -> set[int]:
        """Return the indices of the nodes whose devices are allocated to the given claims."""
        found = (self.devices.claims[key].allocation for key in claims)
        held = (device for each in found if each is not None for _, device in each.devices)
        return {self._node_of[device] for device in held if device in self._node_of}

    @cached_property
    def _node_of(self) -> dict[DeviceId, int]:
        return {device.id: n for n, devices in enumerate(self.on_node) for device in devices}

    def find_ending_claims(self, evicted: Iterable[str]) -> frozenset[str]:
        """Return the keys of the claims that are freed when terminating and `evicted` tasks end."""
        claiming = [t for node in self._nodes for t in node.derived(_with_claims)]
        ended = {t.key for t in claiming if t.status is TaskStatus.RELEASING}
        return self.devices.freed(claiming, ended.union(evicted))

    def options(
        self, node: int, requested: Iterable[DeviceClaimRequest]
    ) -> list[tuple[Option, ...]]:
        """Return the alternatives of each request on a node; equal requests share one tuple."""
        twin = self.first_equal_node[node]
        found: list[tuple[Option, ...]] = []
        for request in requested:
            key = (twin, request)
            if key not in self._options:
                self._options[key] = options_of(self.devices, self._nodes[twin].name, request)
            found.append(self._options[key])
        return found

    @cached_property
    def first_equal_node(self) -> list[int]:
        """For each node (N,), the index of the first node with equivalent devices."""
        first: dict[tuple[object, ...], int] = {}
        found: list[int] = []
        for n, (node, on_node) in enumerate(zip(self._nodes, self.on_node, strict=True)):
            attributes = tuple(
                (d.id.driver, d.attributes, d.capacity, d.problem, d.taints) for d in on_node
            )
            # True equals 1 in Python, but selectors of claims distinguish them.
            types = tuple(type(value) for d in on_node for _, value in d.attributes)
            in_flux = node.name if self.devices.in_flux & {node.name, ""} else ""
            found.append(first.setdefault((attributes, types, in_flux), n))
        return found


def _with_claims(node: Node) -> tuple[Task, ...]:
    return tuple(task for task in node.residents if task.device_claims)


# --- constraints ----------------------------------------------------------------------------------


Places = dict[int, int]
"""Maps a device index to the 0-1 variable that is 1 if the device is allocated."""


class _AllocationRows:
    """Builds constraints that allocate devices to claims (models/formulation/device_claims.md)."""

    def __init__(self, nodes: NodeModel, pools: _Pools) -> None:
        self._nodes, self._model, self._pools = nodes, nodes.model, pools
        self._allocated: dict[tuple[int, int], list[int]] = {}
        self._free: dict[int, set[int]] = {}
        # Groups of victims by claim key; a claim is freed when all tasks of its groups are evicted.
        self._users: dict[str, list[int]] = {}
        evictions = nodes.evictions
        if len(evictions.node):
            snapshot, tasks = nodes.problem.snapshot, running_tasks(nodes.problem).tasks
            claiming = [t for node in snapshot.nodes for t in node.derived(_with_claims)]
            victims = evictions.tasks.tolist()
            freed = snapshot.devices.freed(claiming, {tasks[v].key for v in victims})
            for v, group in zip(victims, evictions.group_of.tolist(), strict=True):
                for key in freed.intersection(tasks[v].device_claims):
                    self._users.setdefault(key, []).append(group)

    def add(self, node: int, request: DeviceClaimRequest, tasks: int) -> None:
        """Add constraints that allocate a node's devices to one claim per placed task.

        `tasks` is the variable that counts the placed tasks.
        """
        (options,) = self._pools.options(node, [request])
        if node not in self._free:
            self._free[node] = self._pools.free(node, self._users)
        most = int(self._model.bounds[1][tasks])
        if not any(option.bonds for option in options):
            self._add_options(node, options, tasks, most)
            return
        # The model has separate variables for each claim with constraints between its devices.
        least = max(min(option.number for option in options), 1)
        most = min(most, len(self._free[node]) // least)
        each = self._model.add_variables(0, np.ones(most, np.int64)).tolist()
        self._model.add_rows(0, [*each, tasks], [*[1] * most, -1], lower=0, upper=0)
        for claim in each:
            chosen = self._add_options(node, options, claim, 1)
            for option, places in zip(options, chosen, strict=True):
                for bond in option.bonds:
                    self._add_bond(bond, places)

    def _add_options(
        self, node: int, options: Sequence[Option], tasks: int, most: int
    ) -> list[list[Places]]:
        """Add constraints that choose an alternative per claim and allocate its devices.

        The constraints are Σ_option chosen = tasks and, per device request, Σ allocated = number ·
        chosen, where `number` is the number of requested devices. Returns the `allocated` variables
        by alternative and device request.
        """
        if len(options) == 1:
            chosen = [tasks]
        else:
            chosen = self._model.add_variables(0, np.full(len(options), most, np.int64)).tolist()
            ones = [*[1] * len(chosen), -1]
            self._model.add_rows(0, [*chosen, tasks], ones, lower=0, upper=0)
        found: list[list[Places]] = [[] for _ in options]
        for option, variable, by_demand in zip(options, chosen, found, strict=True):
            for demand in option.demands:
                open_places = [place for place in demand.places if place in self._free[node]]
                allocated = self._model.add_variables(0, np.ones(len(open_places), np.int64))
                factors = np.append(np.ones(len(allocated), np.int64), -demand.number)
                self._model.add_rows(0, np.append(allocated, variable), factors, lower=0, upper=0)
                by_demand.append(dict(zip(open_places, allocated.tolist(), strict=True)))
                for place, device_variable in by_demand[-1].items():
                    self._allocated.setdefault((node, place), []).append(device_variable)
        return found

    def _add_bond(self, bond: Bond, places: Sequence[Places]) -> None:
        """Add constraints that devices have equal or pairwise distinct values of an attribute."""
        of_value: dict[object, list[int]] = {}
        for i in bond.demands:
            for place, variable in places[i].items():
                of_value.setdefault(bond.value_of[place], []).append(variable)
        if bond.is_distinct:
            for variables in of_value.values():
                self._model.add_rows(0, variables, 1, upper=1)
            return
        chosen = self._model.add_variables(0, np.ones(len(of_value), np.int64)).tolist()
        if chosen:
            self._model.add_rows(0, chosen, 1, upper=1)
        for value, variables in zip(chosen, of_value.values(), strict=True):
            for variable in variables:
                self._model.add_rows(0, [variable, value], [1, -1], upper=0)

    def add_shared_claim(self, key: str, classes: Sequence[int]) -> None:
        """Add constraints that place the tasks and devices of a shared claim on one node."""
        model, supplied = self._model, self._nodes.supplied
        chosen: list[int] = []
        for n in np.flatnonzero((supplied[classes] >= 0).any(axis=0)).tolist():
            (is_on_node,) = model.add_variables(0, 1).tolist()
            chosen.append(is_on_node)
            for c in classes:
                tasks = int(supplied[c, n])
                if tasks >= 0:
                    most = int(model.bounds[1][tasks])
                    model.add_rows(0, [tasks, is_on_node], [1, -most], upper=0)
            self.add(n, self._pools.devices.claims[key].request, is_on_node)
        if chosen:
            model.add_rows(0, chosen, 1, upper=1)

    def close(self) -> None:
        """Add constraints that give a device to a new claim only after its current claim is freed.

        A claim is not freed while a placed task uses it.
        """
        model, supplied, evictions = self._model, self._nodes.supplied, self._nodes.evictions
        # Variables of pending tasks that would use an allocated claim, by claim key.
        joining: dict[str, list[int]] = {}
        for c, shape in enumerate(self._nodes.problem.classes.shapes):
            for key in self._pools.requests.allocated(shape):
                joining.setdefault(key, []).extend(supplied[c][supplied[c] >= 0].tolist())
        ends: dict[str, int] = {}
        holder_of = self._pools.devices.claim_by_device
        for (node, place), variables in self._allocated.items():
            holder = holder_of.get(self._pools.on_node[node][place].id, "")
            if holder not in self._users:
                model.add_rows(0, variables, 1, upper=1)
                continue
            if holder not in ends:
                (ends[holder],) = model.add_variables(0, 1).tolist()
                for group in sorted(set(self._users[holder])):
                    factors = [int(evictions.number[group]), -1]
                    model.add_rows(0, [ends[holder], int(evictions.leave[group])], factors, upper=0)
                for tasks in joining.get(holder, ()):
                    most = int(model.bounds[1][tasks])
                    model.add_rows(0, [tasks, ends[holder]], [1, most], upper=most)
            factors = [*[1] * len(variables), -1]
            model.add_rows(0, [*variables, ends[holder]], factors, upper=0)


# --- greedy --------------------------------------------------------------------------------------


class _OpenClaims(NamedTuple):
    """The requests of a task's unallocated claims, now and after terminating tasks have ended.

    `now` is None if the task may wait for terminating tasks.
    """

    later: tuple[DeviceClaimRequest, ...]
    now: tuple[DeviceClaimRequest, ...] | None


class _ClassClaims(NamedTuple):
    """The claims of a task class.

    Attributes
    ----------
    own
        Requests of the claims that each task has for itself.
    shared
        Keys of the unallocated ResourceClaims that the pods name and that other tasks may share.
    kept
        Keys of the allocated ResourceClaims that the pods name.

    """

    own: tuple[DeviceClaimRequest, ...]
    shared: list[str]
    kept: list[str]


@dataclass(slots=True, eq=False)
class _ClaimUse:
    """The node of the placed tasks that share a claim, and the number of these tasks.

    `now` counts only the tasks that need not wait for terminating tasks.
    """

    node: int = -1
    total: int = 0
    now: int = 0


class _ClaimedDevices(Greedy):
    """Tracks the device requests of placed tasks; a node must satisfy all requests of its tasks.

    Nominated tasks may use devices that become idle when terminating tasks end.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pools = problem.derived(_Pools)
        requests = self._pools.requests
        self._claims = [
            _ClassClaims(
                shape.devices if requests.open(shape) else (),
                requests.shared(shape),
                requests.allocated(shape),
            )
            for shape in problem.classes.shapes
        ]
        self._joined: Counter[str] = Counter()
        self._evicted: list[str] = []
        self._ending_claims = self._pools.ending_claims
        self._later: dict[int, list[DeviceClaimRequest]] = {}
        self._now: dict[int, list[DeviceClaimRequest]] = {}
        self._claim_use = {key: _ClaimUse() for claims in self._claims for key in claims.shared}
        self._sharing: dict[int, list[str]] = {}
        self._fits_now: dict[tuple[int, int], list[bool]] = {}
        self._views: dict[_OpenClaims, tuple[I64, Bool]] = {}
        self._stamp = np.zeros(problem.num_nodes, np.int64)
        self._clock = 0

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        own, shared, allocated = self._claims[task_class]
        kept = self._unused_ending_claims.intersection(allocated)
        if not own and not shared and not kept:
            return None
        open_claims = self._open_claims(task_class)
        if later:
            open_claims = open_claims._replace(now=None)
        if open_claims not in self._views:
            number = self._problem.num_nodes
            self._views[open_claims] = np.full(number, -1, np.int64), np.zeros(number, np.bool_)
        seen, fits = self._views[open_claims]
        for node in np.flatnonzero(seen != self._stamp).tolist():
            fits[node] = self._fits(node, open_claims)
            seen[node] = self._stamp[node]
        allowed = fits.copy()
        for key in shared:
            if self._claim_use[key].total:
                is_shared_node = np.zeros_like(allowed)
                is_shared_node[self._claim_use[key].node] = True
                allowed &= is_shared_node
        for node in self._pools.homes(kept):
            allowed[node] &= self._fits(node, open_claims, kept)
        return allowed

    def _open_claims(self, task_class: int) -> _OpenClaims:
        own, shared, _ = self._claims[task_class]
        claims = self._pools.devices.claims
        uses = [(claims[key].request, self._claim_use[key]) for key in shared]
        return _OpenClaims(
            (*own, *(request for request, users in uses if not users.total)),
            (*own, *(request for request, users in uses if not users.now)),
        )

    @property
    def _unused_ending_claims(self) -> frozenset[str]:
        """Keys of the claims that terminating tasks free, because no placed task uses them."""
        return self._ending_claims.difference(key for key, number in self._joined.items() if number)

    def _fits(
        self, node: int, open_claims: _OpenClaims, kept: frozenset[str] = frozenset()
    ) -> bool:
        later, now = open_claims
        if not self._pools.on_node[node]:
            return not any(request.needs for request in (*later, *(now or ())))
        claims = self._pools.devices.claims
        sharing = [
            (claims[key].request, self._claim_use[key]) for key in self._sharing.get(node, ())
        ]
        requests = (*self._later.get(node, ()), *(request for request, _ in sharing), *later)
        free = self._pools.free(node, self._unused_ending_claims - kept)
        steps = self._pools.steps
        if allocate_devices(self._pools.options(node, requests), free, steps) is None:
            return False
        if now is None:
            return True
        shared = (request for request, uses in sharing if uses.now)
        options = self._pools.options(node, (*self._now.get(node, ()), *shared, *now))
        return allocate_devices(options, self._pools.free(node), steps) is not None

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        kept = self._claims[task_class].kept
        if not any(self._claims[task_class]):
            return
        for key in kept:
            self._joined[key] += int(counts.sum())
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            for _ in range(abs(count)):
                self._change_users(node, task_class, 1 if count > 0 else -1)
        self._clock += 1
        self._stamp[[*self._pools.homes(kept), *nodes.tolist()]] = self._clock

    def _change_users(self, node: int, task_class: int, sign: int) -> None:
        """Add a task of a class to a node (`sign` 1), or undo the last addition (`sign` -1)."""
        own, shared, _ = self._claims[task_class]
        known = self._fits_now.setdefault((node, task_class), [])
        if sign > 0:
            known.append(self._fits(node, self._open_claims(task_class)))
        is_now = known[-1] if sign > 0 else known.pop()
        for requests in (self._later, self._now) if is_now else (self._later,):
            if sign > 0:
                requests.setdefault(node, []).extend(own)
                continue
            for request in own:
                requests[node].remove(request)
        for key in shared:
            uses = self._claim_use[key]
            if not uses.total:
                uses.node = node
                self._sharing.setdefault(node, []).append(key)
            uses.total += sign
            uses.now += sign * is_now
            if not uses.total:
                self._sharing[node].remove(key)

    def record_eviction(self, victim: int, sign: int) -> None:
        task = running_tasks(self._problem).tasks[victim]
        if not task.device_claims:
            return
        if sign > 0:
            self._evicted.append(task.key)
        else:
            self._evicted.remove(task.key)
        self._ending_claims = self._pools.find_ending_claims(self._evicted)
        self._clock += 1
        self._stamp[:] = self._clock
