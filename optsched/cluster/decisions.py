"""A session's decisions (ordered actions, reasons and a certificate) and its solve progress."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.dra_devices import DeviceGrant
    from optsched.cluster.node_resources import GpuShare, NumaPart
    from optsched.cluster.reasons import Reason


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Admit a gang: its pods may be created, and later actions may place the pods."""

    gang: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """Bind a task to a node and allocate its GPU shares, claimed devices and NUMA resources."""

    task: str
    node: str
    gang: str
    shared_gpus: tuple[GpuShare, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    numa: tuple[NumaPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Nominate:
    """Nominate a node for a task, which is not bound until pods on the node have terminated."""

    task: str
    node: str
    gang: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a running task, either to free capacity for a gang or because a plugin requires it.

    Attributes
    ----------
    preemptor
        Key of the gang that gets the freed capacity; empty if a plugin requires the eviction.
    to
        The node where a moved task restarts; empty if the task is not moved.
    plugin, reason
        The plugin that requires the eviction, and its reason; both are empty if there is a
        preemptor.
    """

    task: str
    node: str
    action: str
    preemptor: str
    to: str = ""
    plugin: str = ""
    reason: str = ""


Action: TypeAlias = Enqueue | Allocate | Nominate | Evict


def placed_gangs(actions: Iterable[Action]) -> set[str]:
    """Return the keys of the gangs for which `actions` allocate or nominate a task."""
    return {a.gang for a in actions if isinstance(a, Allocate | Nominate)}


class Sense(StrEnum):
    """Whether an objective level is maximized or minimized."""

    MAX = "max"
    MIN = "min"


class LevelStatus(StrEnum):
    """What is proved about the value of an objective level."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    BOUND_ONLY = "BOUND_ONLY"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One level of the objective: the plan's value and a bound on the best possible value.

    Attributes
    ----------
    unit
        The unit of `value` and `bound`.
    value
        The value of the plan on this level, in `unit`.
    bound
        Bound on the value over all plans that keep the values of the more important levels: an
        upper bound for `MAX`, a lower bound for `MIN`. The bound is None if no bound is known.
    """

    name: str
    unit: str
    sense: Sense
    value: int
    bound: int | None
    status: LevelStatus

    @property
    def gap(self) -> int | None:
        """The distance from the value to the bound, in `unit`, or None if no bound is known."""
        return None if self.bound is None else abs(self.bound - self.value)


_MOST_NAMED: Final = 3
"""Maximum number of unproved levels that `Certificate.verdict` names."""

PPM = 1_000_000
"""Shares are in parts per million (ppm): the share `PPM` is the whole cluster."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """A queue's share of the cluster under a plan, and its ideal share if tasks were divisible.

    Attributes
    ----------
    share, ideal
        The dominant shares, in millionths of the cluster.
    """

    queue: str
    share: int
    ideal: int

    @property
    def distance(self) -> int:
        """The queue's share minus its ideal share, in millionths of the cluster."""
        return self.share - self.ideal


def are_optimal(results: Iterable[LevelResult]) -> bool:
    """Return whether the values of all levels are proved optimal."""
    return all(result.status is LevelStatus.OPTIMAL for result in results)


@dataclass(frozen=True, slots=True)
class Certificate:
    """An upper bound on a plan's distance from the optimum, and what is proved about the plan.

    Attributes
    ----------
    levels
        The levels of the objective, most important first.
    engine
        The engine that found the plan.
    seconds
        Wall time from the snapshot to the verified plan; 0 if the session reads no clock.
    stopped
        The reason why the solve ended.
    relaxed
        Names of the rules that the model for the bounds omits.
    shares
        Shares of the queues that have demand, sorted by queue name.
    limitations
        Reasons why the plan is not proved optimal even if every level is: for example, the bounds
        do not cover every plan that the policy allows, or the session dropped a gang or a solution.
    kept_idle
        One sentence for each rule that keeps capacity idle although pending gangs could use it.
    """

    levels: tuple[LevelResult, ...]
    engine: str
    seconds: float
    stopped: str
    relaxed: tuple[str, ...] = ()
    shares: tuple[QueueShare, ...] = ()
    limitations: tuple[str, ...] = ()
    kept_idle: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        """Whether the certificate proves that no plan is better.

        A proof requires at least one level, all levels optimal, no relaxed rule and no limitation.
        """
        if not self.levels or self.relaxed or self.limitations:
            return False
        return are_optimal(self.levels)

    @property
    def verdict(self) -> str:
        """What the certificate proves, or why it proves nothing, in a few words."""
        if self.is_proved:
            return "proved: no plan is better"
        if not self.levels:
            return "nothing to prove: no level of the model applies"
        if self.limitations:
            return f"not proved: {', '.join(self.limitations)}"
        if self.relaxed:
            return f"bounds leave out: {', '.join(self.relaxed)}"
        names = [level.name for level in self.levels if level.status is not LevelStatus.OPTIMAL]
        if len(names) == len(self.levels):
            return "not proved on any level"
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"not proved on {', '.join(names[:_MOST_NAMED])}{more}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The ordered, verified outcome of a session.

    Attributes
    ----------
    actions
        Actions in the order of execution.
    pending
        Maps the key of a gang with unplaced tasks to the reason why it is pending.
    pending_tasks
        Maps the key of a pending task to its reason, if this differs from the reason of its gang.
    """

    actions: tuple[Action, ...]
    certificate: Certificate
    pending: Mapping[str, Reason] = field(default_factory=dict)
    pending_tasks: Mapping[str, Reason] = field(default_factory=dict)

    @property
    def binds(self) -> dict[str, str]:
        """The node of every allocated task, by task key."""
        return {a.task: a.node for a in self.actions if isinstance(a, Allocate)}


# --- search progress ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """The best value and the bound of one level at one instant of a solve.

    Attributes
    ----------
    level
        Name of the level, as in the certificate.
    at_s
        Seconds since the session began; CP-SAT's deterministic time if the session reads no clock.
    incumbent
        The best value of the level so far, or None before the first solution.
    bound
        Bound on the value over all plans that keep the values of the more important levels, or None
        if no bound is known.
    turn
        Number of the solve in the session, starting at 1. A session that evicts pods for a gang has
        several solves. `turn` is 0 for a preliminary shorter search, whose progress is not
        recorded.
    """

    level: str
    at_s: float
    incumbent: int | None
    bound: int | None
    turn: int = 1


def changes_level(progress: Progress, history: Sequence[Progress]) -> bool:
    """Return whether a level's value or bound differs from that of its previous progress entry.

    The previous entry is the latest one in `history` for the same solve and level.
    """
    earlier = (p for p in reversed(history) if (p.turn, p.level) == (progress.turn, progress.level))
    last = next(earlier, None)
    return last is None or replace(last, at_s=progress.at_s) != progress


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best solution found by one solve, from which a later solve can resume.

    Attributes
    ----------
    turn
        The number of the solve, as in `Progress.turn`.
    binds
        The node of each placed task, by task key.
    levels
        The solution's value and proved bound on each level, most important first; see
        `LevelResult.bound`.
    """

    turn: int
    binds: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[LevelResult, ...] = ()


class SolveStatus(StrEnum):
    """Whether and why a solve has ended.

    `COMPLETE` means that every level is optimal or within the requested gap. `LIMIT` means that the
    solve ended earlier, because of a limit on time or work or a limitation of the engines.
    `INTERRUPTED` means that a user stopped the solve. `RUNNING` means that the solve was still
    running when its status was last written.
    """

    COMPLETE = "complete"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


def relative_gap(value: int, bound: int) -> float:
    """Return |bound − value| / max(1, |value|), the relative gap as CP-SAT defines it."""
    return abs(bound - value) / max(1, abs(value))
