"""Volume limits: the maximum number of volumes that a CSI driver can attach to a node.

Mathematics: models/formulation/volume_limits.md. Upstream: `NodeVolumeLimits`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.cluster.snapshot import volumes_of
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.running import number_keys, running_tasks
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

NO_LIMIT = 1 << 40
"""The volume limit that is assumed for a driver on nodes that report no limit."""

Volume: TypeAlias = "tuple[str, str]"
"""The name of a driver, and the handle that identifies one of the driver's volumes."""

Requested: TypeAlias = "Mapping[int, Sequence[Volume]]"
"""The requested volumes by the index (axis D) of their driver."""


class VolumeLimits(Rule):
    """Rule: the number of distinct volumes of a driver on a node is within the node's limit."""

    name = "volume-limits"
    hard_switch = Switch.PREDICATE

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`. Only limits of drivers with a newly attached volume are checked."""
        claims = world.snapshot.claims
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            if not node.attach_limits:
                continue
            held, requested = (
                {volume for task in tasks for volume in volumes_of(claims, task.shape.claims)}
                for tasks in (node.residents, placed)
            )
            attached = Counter(driver for driver, _ in held | requested)
            come = {driver for driver, _ in requested - held}
            for driver, most in node.attach_limits:
                if driver in come and attached[driver] > most:
                    described = count_noun(attached[driver], "volume")
                    detail = f"{described} of driver {driver} attached, the limit is {most}"
                    yield Violation(self.name, f"node {name}", detail)

    # --- masks -----------------------------------------------------------------------------------

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`.

        The mask selects nodes that can attach all volumes of the class, or have already attached
        them.
        """
        drivers = problem.derived(_find_scarce_drivers)
        if drivers is None or not drivers.requested[task_class]:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for d, volumes in drivers.requested[task_class].items():
            held = _count_attached([drivers.users(v) for v in volumes], problem.num_nodes)
            chosen &= (drivers.limit[d] >= len(volumes)) | (held == len(volumes))
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason lists volume counts and node limits per driver."""
        drivers = problem.derived(_find_scarce_drivers)
        if drivers is None or not drivers.requested[task_class]:
            return "cannot attach its volumes"
        described: list[str] = []
        for d, volumes in drivers.requested[task_class].items():
            limits = drivers.limit[d][drivers.limit[d] < NO_LIMIT]
            least, most = int(limits.min()), int(limits.max())
            limit = f"limit {least}" if least == most else f"limits {least} to {most}"
            more = count_noun(len(volumes), "more volume")
            described.append(f"{more} of driver {drivers.names[d]} ({limit})")
        return f"cannot attach {' and '.join(described)}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        drivers = problem.derived(_find_scarce_drivers)
        return drivers is not None and bool(drivers.requested[task_class])

    # --- rows ------------------------------------------------------------------------------------

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """See `VictimRelevance`. Tasks with equal volumes of scarce drivers get equal numbers."""
        drivers = problem.derived(_find_scarce_drivers)
        if drivers is None or not drivers.requested[task_class]:
            return None
        return problem.derived(_number_by_volumes)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`. The constraints limit the number of attached volumes per driver and node."""
        drivers = nodes.problem.derived(_find_scarce_drivers)
        if drivers is not None:
            _LimitConstraints(nodes, drivers).write()

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        drivers = problem.derived(_find_scarce_drivers)
        return None if drivers is None else _AttachedVolumes(problem, drivers)


# --- arrays --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ScarceDrivers:
    """The scarce drivers (those that may reach a node's volume limit) and the requested volumes.

    Attributes
    ----------
    names
        (D,) names of drivers for which pending tasks request more volumes than some node can
        attach.
    limit, left
        (D, N) maximum number of volumes on each node, and (D, N) number of further volumes that
        each node can attach; negative on a node that exceeds its limit.
    requested
        (C,) the requested volumes of each task class, by driver.
    snapshot
        The snapshot of the problem.

    """

    names: tuple[str, ...]
    limit: I64
    left: I64
    requested: tuple[Requested, ...]
    snapshot: Snapshot

    def users(self, volume: Volume) -> Mapping[int, int]:
        """Return how many residents use a volume on each node with a limit, by node index."""
        return self.snapshot.attached.get(volume[0], {}).get(volume, {})

    def of_task(self, task: Task) -> tuple[Volume, ...]:
        """Return the volumes of a task that belong to scarce drivers."""
        if not task.shape.claims:
            return ()
        found = volumes_of(self.snapshot.claims, task.shape.claims)
        return tuple(volume for volume in found if volume[0] in self.names)


@dataclass(eq=False)
class _AttachedCounts:
    """Tracks the volumes attached to each node and the number of users of each volume.

    `_attachable` (D, N) is the number of further volumes that each node can attach.
    """

    _drivers: _ScarceDrivers
    _attachable: I64
    _changed: dict[Volume, dict[int, int]] = field(default_factory=dict, init=False)

    def _users(self, volume: Volume) -> Mapping[int, int]:
        changed = self._changed.get(volume)
        return self._drivers.users(volume) if changed is None else changed

    def allows(self, requested: Requested) -> Bool:
        """Return the mask (N,) of nodes that can attach the requested volumes that they lack."""
        num_nodes = self._attachable.shape[1]
        chosen = np.ones(num_nodes, np.bool_)
        for d, volumes in requested.items():
            fresh = len(volumes) - _count_attached([self._users(v) for v in volumes], num_nodes)
            chosen &= (fresh == 0) | (self._attachable[d] >= fresh)
        return chosen

    def allows_on(self, node: int, requested: Requested) -> bool:
        """Return whether a node can attach the requested volumes that it has not attached yet."""
        for d, volumes in requested.items():
            fresh = sum(node not in self._users(v) for v in volumes)
            if fresh and self._attachable[d, node] < fresh:
                return False
        return True

    def change(self, node: int, volumes: Iterable[Volume], sign: int) -> None:
        """Add a user of each volume on a node (`sign` 1), or remove one (`sign` -1)."""
        for volume in volumes:
            d = self._drivers.names.index(volume[0])
            if self._drivers.limit[d, node] < NO_LIMIT:
                if volume not in self._changed:
                    self._changed[volume] = dict(self._drivers.users(volume))
                number_by_node = self._changed[volume]
                number = number_by_node.pop(node, 0) + sign
                if number:
                    number_by_node[node] = number
                if number == max(sign, 0):
                    self._attachable[d, node] -= sign


def _count_attached(users: Sequence[Mapping[int, int]], num_nodes: int) -> I64:
    """Return how many volumes are attached to each node (N,), given the users of each volume."""
    number = np.zeros(num_nodes, np.int64)
    for on_node in users:
        number[np.fromiter(on_node, np.int64, len(on_node))] += 1
    return number


def _find_scarce_drivers(problem: Problem) -> _ScarceDrivers | None:
    """Return the scarce drivers and the requested volumes, or None without scarce drivers."""
    snapshot, nodes = problem.snapshot, problem.snapshot.nodes
    requested = [volumes_of(snapshot.claims, s.claims) for s in problem.classes.shapes]
    number = Counter(driver for driver, _ in {volume for each in requested for volume in each})
    limits: dict[str, I64] = {}
    for n, node in enumerate(nodes) if number else ():
        for driver, most in node.attach_limits:
            if driver in number and node.ready:
                if driver not in limits:
                    limits[driver] = np.full(len(nodes), NO_LIMIT, np.int64)
                limits[driver][n] = most
    left: dict[str, I64] = {}
    for driver, limit in limits.items():
        users = snapshot.attached.get(driver, {}).values()
        at = np.fromiter(chain.from_iterable(users), np.int64)
        attached = np.bincount(at, minlength=len(nodes))
        left[driver] = np.where(limit < NO_LIMIT, limit - attached, limit)
    scarce = sorted(driver for driver, few in left.items() if (few < number[driver]).any())
    if not scarce:
        return None
    of_class: list[dict[int, list[Volume]]] = []
    for volumes in requested:
        by_driver: dict[int, list[Volume]] = {}
        for volume in volumes:
            if volume[0] in scarce:
                by_driver.setdefault(scarce.index(volume[0]), []).append(volume)
        of_class.append(by_driver)
    return _ScarceDrivers(
        names=tuple(scarce),
        limit=np.array([limits[driver] for driver in scarce]),
        left=np.array([left[driver] for driver in scarce]),
        requested=tuple(of_class),
        snapshot=snapshot,
    )


def _number_by_volumes(problem: Problem) -> I64:
    drivers, running = problem.derived(_find_scarce_drivers), running_tasks(problem)
    return number_keys(drivers.of_task(task) if drivers else () for task in running.tasks)


# --- rows ----------------------------------------------------------------------------------------


class _LimitConstraints:
    """Builds the constraints of models/formulation/volume_limits.md."""

    def __init__(self, nodes: NodeModel, drivers: _ScarceDrivers) -> None:
        self._drivers, self._model, self._supplied = drivers, nodes.model, nodes.supplied
        self._most = nodes.model.bounds[1]
        running, evictions = running_tasks(nodes.problem), nodes.evictions
        users: dict[tuple[Volume, int], Counter[int]] = {}
        for v, group in zip(evictions.tasks.tolist(), evictions.group_of.tolist(), strict=True):
            for volume in drivers.of_task(running.tasks[v]):
                users.setdefault((volume, int(running.node_of[v])), Counter())[group] += 1
        # For each volume and node where all users may be evicted: (variable, size) pairs of the
        # groups to which these users belong.
        self._leaving_users = {
            (volume, n): [(int(evictions.leave[g]), int(evictions.number[g])) for g in sorted(by)]
            for (volume, n), by in users.items()
            if drivers.users(volume).get(n, 0) == by.total()
        }
        self._may_go: dict[tuple[int, int], list[Volume]] = {}
        for volume, node in sorted(self._leaving_users):
            d = drivers.names.index(volume[0])
            self._may_go.setdefault((d, node), []).append(volume)
        self._classes: dict[Volume, list[int]] = {}
        for c, requested in enumerate(drivers.requested):
            for volume in chain.from_iterable(requested.values()):
                self._classes.setdefault(volume, []).append(c)

    def write(self) -> None:
        """Add a constraint for each driver and node whose limit the placed tasks may reach."""
        for d, driver in enumerate(self._drivers.names):
            requested = [volume for volume in self._classes if volume[0] == driver]
            may_come = np.array(
                [(self._supplied[self._classes[v]] >= 0).any(axis=0) for v in requested], np.bool_
            )
            number = may_come.sum(axis=0)
            scarce = (number > 0) & (self._drivers.left[d] < number)
            for n in np.flatnonzero(scarce).tolist():
                self._write(d, n, [requested[i] for i in np.flatnonzero(may_come[:, n]).tolist()])

    def _write(self, d: int, node: int, requested: Sequence[Volume]) -> None:
        """Add the constraint: newly attached volumes ≤ remaining limit + detached volumes.

        A volume is detached if all its users on the node are evicted.
        """
        left = int(self._drivers.left[d, node])
        goes: dict[Volume, int] = {}
        for volume in self._may_go.get((d, node), ()):
            (goes[volume],) = self._model.add_variables(0, 1).tolist()
            for leave, number in self._leaving_users[volume, node]:
                self._model.add_row([goes[volume], leave], [number, -1], upper=0)
        comes: list[int] = []
        for volume in requested:
            if volume in goes and left >= 0:
                self._model.add_row(
                    [goes[volume], self._add_attach_variable(volume, node)], [1, 1], upper=1
                )
            elif volume in goes or node not in self._drivers.users(volume):
                comes.append(self._add_attach_variable(volume, node))
        self._model.add_limit([(v, 1) for v in comes], [(v, 1) for v in goes.values()], left, 1)

    def _add_attach_variable(self, volume: Volume, node: int) -> int:
        """Return a variable that is 1 if a task that uses `volume` is placed on `node`."""
        tasks = self._supplied[self._classes[volume], node]
        tasks = tasks[tasks >= 0]
        most = self._most[tasks]
        if len(tasks) == 1 and most[0] <= 1:
            return int(tasks[0])
        return self._model.add_indicator(tasks.tolist(), int(most.max()))


# --- greedy --------------------------------------------------------------------------------------


class _AttachedVolumes(Greedy):
    """Tracks the volumes attached to nodes, now and after terminating tasks have ended."""

    def __init__(self, problem: Problem, drivers: _ScarceDrivers) -> None:
        self._problem, self._drivers = problem, drivers
        self._now, self._later = (_AttachedCounts(drivers, drivers.left.copy()) for _ in range(2))
        for n, node in enumerate(problem.snapshot.nodes):
            for task in node.residents if node.attach_limits else ():
                if task.status is TaskStatus.RELEASING:
                    self._later.change(n, drivers.of_task(task), -1)
        self._volumes = [tuple(chain.from_iterable(each.values())) for each in drivers.requested]
        self._fits_now: dict[tuple[int, int], list[bool]] = {}

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        requested = self._drivers.requested[task_class]
        if not requested:
            return None
        allowed = self._later.allows(requested)
        return allowed if later else allowed & self._now.allows(requested)

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        requested, volumes = self._drivers.requested[task_class], self._volumes[task_class]
        if not volumes:
            return
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            fits_now = self._fits_now.setdefault((node, task_class), [])
            for _ in range(count):
                # A task that does not fit yet waits until terminating tasks release volumes.
                fits_now.append(self._now.allows_on(node, requested))
                self._later.change(node, volumes, 1)
                if fits_now[-1]:
                    self._now.change(node, volumes, 1)
            for _ in range(-count):
                self._later.change(node, volumes, -1)
                if fits_now.pop():
                    self._now.change(node, volumes, -1)

    def record_eviction(self, victim: int, sign: int) -> None:
        running = running_tasks(self._problem)
        volumes = self._drivers.of_task(running.tasks[victim])
        self._later.change(int(running.node_of[victim]), volumes, -sign)
