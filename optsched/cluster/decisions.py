"""Decisions of a session: ordered actions, reasons, a certificate; and how its search goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.dra_devices import DeviceGrant
    from optsched.cluster.gpu_shares import GpuShare
    from optsched.cluster.node_parts import NumaPart
    from optsched.cluster.reasons import Reason


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A gang may have its pods created and take part in allocation."""

    gang: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """Bind a task to a node now: to cards, devices that its claims get, and parts of its cells."""

    task: str
    node: str
    gang: str
    shared_gpus: tuple[GpuShare, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    numa: tuple[NumaPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Nominate:
    """Keep room for a task on a node that is about to be freed; nothing is bound yet."""

    task: str
    node: str
    gang: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Remove a running task on behalf of a gang, or because a plugin wants it off its node.

    Attributes
    ----------
    preemptor
        Key of the gang that gets the room; empty where none gets it.
    to
        The node where it starts again, if it only moves.
    plugin, reason
        Where no gang gets the room: the plugin, and why it does not want the task there.
    """

    task: str
    node: str
    action: str
    preemptor: str
    to: str = ""
    plugin: str = ""
    reason: str = ""


Action: TypeAlias = Enqueue | Allocate | Nominate | Evict


class Sense(StrEnum):
    """Whether more or less of a level is better."""

    MAX = "max"
    MIN = "min"


class LevelStatus(StrEnum):
    """How good a level's value is known to be."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    BOUND_ONLY = "BOUND_ONLY"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One level of the objective: the value reached, and the best value possible.

    Attributes
    ----------
    unit
        The unit of `value` and `bound`.
    value
        Reached by the plan.
    bound
        No plan that keeps the values of the levels above reaches more (or less, by `sense`); None
        when no bound is known.
    """

    name: str
    unit: str
    sense: Sense
    value: int
    bound: int | None
    status: LevelStatus

    @property
    def gap(self) -> int | None:
        """Distance from the value to the bound, in units; None without a bound."""
        return None if self.bound is None else abs(self.bound - self.value)


PPM = 1_000_000
"""Shares are in millionths of the cluster."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """What a queue holds after a plan, and what it would hold if tasks could be divided at will.

    Attributes
    ----------
    share, ideal
        Dominant shares in millionths of the cluster.
    """

    queue: str
    share: int
    ideal: int

    @property
    def distance(self) -> int:
        """The distance from its ideal; positive where it holds more."""
        return self.share - self.ideal


@dataclass(frozen=True, slots=True)
class Certificate:
    """How far a plan is from the best one, and how that was found.

    Attributes
    ----------
    levels
        In order of importance.
    engine
        The engine that found the plan.
    seconds
        Wall time from snapshot to verified plan; 0 where no clock may be read.
    stopped
        Why the search ended.
    relaxed
        Rules that the bounds leave out.
    shares
        Of the queues that ask for something, by name.
    limitations
        Why the plan is not proved even where every level is optimal: the bounds hold over fewer
        plans than the policy allows, or the session dropped a gang or an answer.
    kept_idle
        Which rules keep capacity idle that gangs which wait could use, and how much.
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
        """Whether no better plan exists: some level, all of them optimal, without limitations."""
        if not self.levels or self.relaxed or self.limitations:
            return False
        return all(r.status is LevelStatus.OPTIMAL for r in self.levels)

    @property
    def verdict(self) -> str:
        """The proof, in one clause."""
        if self.is_proved:
            return "proved: no plan is better"
        if not self.levels:
            return "nothing to prove: no level of the model applies"
        if self.limitations:
            return f"not proved: {', '.join(self.limitations)}"
        if self.relaxed:
            return f"bounds leave out: {', '.join(self.relaxed)}"
        return "not proved on every level"


@dataclass(frozen=True, slots=True)
class Plan:
    """The ordered, verified outcome of a session.

    Attributes
    ----------
    actions
        In the order of execution.
    pending
        Why each gang that has tasks left waits, by gang key.
    pending_tasks
        The same for single tasks where the answer differs from the gang's.
    """

    actions: tuple[Action, ...]
    certificate: Certificate
    pending: Mapping[str, Reason] = field(default_factory=dict)
    pending_tasks: Mapping[str, Reason] = field(default_factory=dict)

    @property
    def binds(self) -> dict[str, str]:
        """Node by task, of every allocation."""
        return {a.task: a.node for a in self.actions if isinstance(a, Allocate)}


# --- search progress ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """Value and bound of one level at one instant of a search.

    Attributes
    ----------
    level
        Its name, as in the certificate.
    at_s
        Seconds since the session began. Where no clock is read, CP-SAT's deterministic seconds:
        the work of the solver so far, to which nothing but its searches adds.
    incumbent
        The best value so far, in the level's own sense; None while there is none.
    bound
        A bound on plans that keep the levels above; None while nothing is known.
    turn
        Which search of the session, from 1: sessions that make room for a gang search again.

    """

    level: str
    at_s: float
    incumbent: int | None
    bound: int | None
    turn: int = 1


def changes_level(progress: Progress, history: Sequence[Progress]) -> bool:
    """Whether a report differs from the previous report of the same level and search."""
    earlier = (p for p in reversed(history) if (p.turn, p.level) == (progress.turn, progress.level))
    last = next(earlier, None)
    return last is None or replace(last, at_s=progress.at_s) != progress


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best answer of one search, which another one can resume.

    Attributes
    ----------
    turn
        As in `Progress`.
    binds
        Node by key of the task.
    levels
        Values of this answer with the bounds proved so far, in order of importance. A bound holds
        for plans that keep the values above it.

    """

    turn: int
    binds: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[LevelResult, ...] = ()


class SolveStatus(StrEnum):
    """Why a solve ended.

    COMPLETE: every level is at its optimum or within the gap asked for. LIMIT: time, work or the
    engines' reach ended before. INTERRUPTED: stopped by a user. RUNNING: it was still going on
    when this was written, and nothing came after.
    """

    COMPLETE = "complete"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


def relative_gap(value: int, bound: int) -> float:
    """|bound − value| / max(1, |value|), as CP-SAT counts relative gaps; 0 at the optimum."""
    return abs(bound - value) / max(1, abs(value))
