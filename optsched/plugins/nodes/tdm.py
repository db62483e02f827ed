"""Time-division multiplexing: nodes of a revocable zone run revocable pods at certain hours.

Mathematics: models/formulation/tdm.md. Volcano: `pkg/scheduler/plugins/tdm`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.api.wellknown import (
    MAX_UNAVAILABLE,
    MIN_AVAILABLE,
    PREEMPTABLE,
    REVOCABLE_ZONE,
    is_true,
)
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin, read_duration_ms
from optsched.plugins.eviction.moves import Moves, find_early_evictions, list_moves_of
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.running import running_tasks
from optsched.units import parse_hours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.units import Hours

TOP = 100.0
_OVER: Final = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)
_PART: Final = re.compile(r"([0-9]{1,9})(%?)")


@dataclass(frozen=True)
class Tdm(Rule):
    """Rule: nodes of a revocable zone run only revocable tasks, and only while the zone is open.

    Attributes
    ----------
    zones
        The opening hours of each zone in UTC, by zone name. Zones that are not listed are never
        open.
    period_ms
        Minimum time between two rounds of evictions from nodes of closed zones, in milliseconds.

    """

    name = "tdm"
    hard_switch = Switch.PREDICATE
    mask_lasts = False

    zones: Mapping[str, Hours]
    period_ms: int = 60_000

    def is_open(self, zone: str, now_ms: int) -> bool:
        """Return whether a zone is open at the time `now_ms`."""
        return zone in self.zones and now_ms in self.zones[zone]

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        now_ms = world.snapshot.taken_ms
        for task, _, node in world.placements:
            zone = node.labels.get(REVOCABLE_ZONE)
            if not zone:
                continue
            where, described = f"task {task.key}", f"zone {zone} of node {node.name}"
            if not self.is_open(zone, now_ms):
                yield Violation(self.name, where, f"{described} is closed at this hour")
            elif not has_revocable_zone(task.shape):
                yield Violation(self.name, where, f"{described} takes only revocable tasks")

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        in_zone, is_open = self._find_zones(problem)
        allowed = ~in_zone
        if has_revocable_zone(problem.classes.shapes[task_class]):
            allowed |= is_open
        return None if allowed.all() else allowed

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason is a closed zone, or a task that is not revocable."""
        if has_revocable_zone(problem.classes.shapes[task_class]):
            return "belonged to a revocable zone that is closed at this hour"
        return "took only revocable tasks"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. Nodes of open zones get a positive score for revocable tasks."""
        if not has_revocable_zone(problem.classes.shapes[task_class]):
            return None
        _, is_open = self._find_zones(problem)
        return np.where(is_open, TOP, 0.0) if is_open.any() else None

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. In sessions without a solver, the greedy plugin also votes on victims."""
        later = [is_true(g.annotations.get(PREEMPTABLE)) for g in problem.snapshot.gangs]
        num_pending: list[int] = np.diff(problem.task_start).tolist()
        return _Order(problem, ledger, self._find_zones(problem)[0], later, num_pending)

    # --- shuffle ---------------------------------------------------------------------------------

    def find_moves(self, problem: Problem) -> Moves | None:
        """See `Mover`. Moves the tasks that run on nodes of closed zones."""
        (in_zone, is_open), running = self._find_zones(problem), running_tasks(problem)
        closed = in_zone & ~is_open
        leaving = np.flatnonzero(closed[running.node_of])
        if not len(leaving):
            return None
        tasks = [running.tasks[v] for v in leaving.tolist()]
        order = sorted(
            range(len(tasks)), key=lambda i: (tasks[i].priority, -tasks[i].created_ms, tasks[i].key)
        )
        snapshot = problem.snapshot
        reasons: dict[int, str] = {}
        for n in np.flatnonzero(closed).tolist():
            node = snapshot.nodes[n]
            zone = node.labels[REVOCABLE_ZONE]
            reasons[n] = f"zone {zone} of node {node.name} is closed at this hour"
        gangs = np.unique(running.gang_of[leaving]).tolist()
        allowances = {g: Allowance.from_gang(snapshot.gangs[g]) for g in gangs}
        standing = {g: sum(t.status.is_standing for t in snapshot.gangs[g].tasks) for g in gangs}
        return Moves(
            tasks=leaving[order],
            reasons=reasons,
            period_ms=self.period_ms,
            most={g: allowance.most for g, allowance in allowances.items()},
            whole=[g for g, a in allowances.items() if not a.is_given or a.most >= standing[g]],
        )

    def verify_evictions(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        evictions = list_moves_of(world, self.name)
        yield from find_early_evictions(world, self.name, self.period_ms)
        gangs: set[str] = set()
        for eviction in evictions:
            node = world.snapshot.node_by_name[eviction.node]
            zone = node.labels.get(REVOCABLE_ZONE, "")
            is_closed = zone and not self.is_open(zone, world.snapshot.taken_ms)
            if is_closed and eviction.task in world.task_by_key:
                gangs.add(world.task_by_key[eviction.task].gang)
        for eviction in evictions:
            task = world.task_by_key.get(eviction.task)
            if task is None or task.gang not in gangs:
                yield Violation(
                    self.name,
                    f"task {eviction.task}",
                    "no task of the gang is evicted from a node of a closed zone",
                )

    def _find_zones(self, problem: Problem) -> tuple[Bool, Bool]:
        """Return the masks (N,) of nodes that belong to a zone, and of nodes of open zones."""
        codes, values = problem.columns.codes(REVOCABLE_ZONE)
        now_ms = problem.snapshot.taken_ms
        is_open = [bool(zone) and self.is_open(zone or "", now_ms) for zone in values]
        in_zone = np.array([bool(zone) for zone in values], np.bool_)
        return in_zone[codes], np.array(is_open, np.bool_)[codes]


class Allowance(NamedTuple):
    """The number of a gang's tasks that may be evicted together under its disruption budget.

    The annotations `jdb-…` set the budget. Without a budget, one task may be evicted at a time. If
    the gang has no budget and can spare no task, all its tasks may be evicted together.

    Attributes
    ----------
    most
        Maximum number of tasks that may be evicted together.
    is_given
        True if the gang has a budget.

    """

    most: int
    is_given: bool

    @classmethod
    def from_gang(cls, gang: Gang) -> Allowance:
        """Read the budget from a gang's annotations; an invalid budget allows no eviction."""
        stand = sum(t.status.is_standing for t in gang.tasks)
        over = sum(t.status in _OVER for t in gang.tasks)
        missing = len(gang.tasks) - over - stand
        if text := gang.annotations.get(MAX_UNAVAILABLE):
            return cls(max(_parse_amount(text, len(gang.tasks), nothing=0) - missing, 0), True)
        if text := gang.annotations.get(MIN_AVAILABLE):
            return cls(max(stand - _parse_amount(text, len(gang.tasks), nothing=stand), 0), True)
        return cls(1, False)


def _parse_amount(text: str, whole: int, nothing: int) -> int:
    """Parse `text` as a number or a percentage of `whole`; return `nothing` if it is neither."""
    match = _PART.fullmatch(text.strip())
    if match is None:
        return nothing
    number = int(match[1])
    return -(-whole * number // 100) if match[2] else number


def has_revocable_zone(shape: TaskShape) -> bool:
    """Return whether the annotations in `shape` make a task revocable."""
    return any(key == REVOCABLE_ZONE for key, _ in shape.notes)


@dataclass(eq=False)
class _Order(Greedy):
    """Orders preemptable gangs last, and votes for victims on nodes that belong to no zone.

    Attributes
    ----------
    _in_zone
        (N,) True for nodes that belong to a zone.
    _later, _num_pending
        (G,) True for preemptable gangs, and (G,) number of each gang's pending tasks.
    _evicted
        Number of tasks that this session has evicted, by gang.

    """

    _problem: Problem
    _ledger: Ledger
    _in_zone: Bool
    _later: Sequence[bool]
    _num_pending: Sequence[int]
    _evicted: dict[int, int] = field(default_factory=dict, init=False)

    def gang_key(self, gang: int) -> tuple[float, ...]:
        return (float(self._later[gang]),)

    def is_starving(self, gang: int) -> bool:
        return not self._later[gang] and self._ledger.gang_placed[gang] < self._num_pending[gang]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Return the victims outside revocable zones that their gangs' disruption budgets allow."""
        if self._later[gang] or has_revocable_zone(self._problem.classes.shapes[task_class]):
            return victims[:0]
        running = running_tasks(self._problem)
        left: dict[int, int] = {}
        kept = []
        for v in victims.tolist():
            task, owner = running.tasks[v], int(running.gang_of[v])
            is_revocable = self._later[owner] or has_revocable_zone(task.shape)
            runs = task.status is TaskStatus.RUNNING and not self._in_zone[running.node_of[v]]
            if not (is_revocable and runs and task.preemptable):
                continue
            if owner not in left:
                allowance = Allowance.from_gang(self._problem.snapshot.gangs[owner])
                evicted = self._evicted.get(owner, 0) if allowance.is_given else 0
                left[owner] = allowance.most - evicted
            if left[owner] > 0:
                left[owner] -= 1
                kept.append(v)
        return np.array(kept, np.int64)

    def record_eviction(self, victim: int, sign: int) -> None:
        gang = int(running_tasks(self._problem).gang_of[victim])
        self._evicted[gang] = self._evicted.get(gang, 0) + sign


_ZONE = "tdm.revocable-zone."


PLUGIN = Plugin(
    "tdm",
    "lets revocable pods use the nodes of a zone during certain hours",
    (
        Argument("tdm.revocable-zone.*", Kind.HOURS, "", "opening hours of a zone, in UTC"),
        Argument(
            "tdm.evict.period",
            Kind.DURATION,
            "1m",
            "minimum time between two rounds of evictions by shuffle",
        ),
    ),
    lambda arguments: (
        Tdm(
            {
                name.removeprefix(_ZONE): parse_hours(text)
                for name, text in arguments.items()
                if name.startswith(_ZONE)
            },
            read_duration_ms(arguments, "tdm.evict.period") or 60_000,
        ),
    ),
)
