"""What happens when in a run, drawn from a seed: the same seed gives the same schedule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class FaultKind(StrEnum):
    """Something that goes wrong for a while."""

    KILL_SCHEDULER = "kill-scheduler"
    KILL_CONTROLLERS = "kill-controllers"
    FREEZE_SCHEDULER = "freeze-scheduler"
    FREEZE_CONTROLLERS = "freeze-controllers"
    SILENCE = "silence"
    CORDON = "cordon"
    CORDON_NOT_READY = "cordon-not-ready"
    TAINT = "taint"
    NOT_READY = "not-ready"
    REPLACE_NODE = "replace-node"
    """The node object is deleted and made again; its pods run on, as the kubelet does."""
    LOSE_NODE = "lose-node"
    """The node object is deleted for a while, and its pods with it."""
    POLICY = "policy"
    API_SERVER = "api-server"
    ETCD = "etcd"


SHORT: Final = (
    FaultKind.KILL_SCHEDULER,
    FaultKind.FREEZE_SCHEDULER,
    FaultKind.SILENCE,
    FaultKind.CORDON,
    FaultKind.REPLACE_NODE,
    FaultKind.POLICY,
)
"""Faults that are over within seconds."""

WATCHED: Final = ("pods", "podgroups", "queues")
"""Kinds whose watches are silenced; what a scheduler can not know of nodes is no fault of it."""

STOP_EVERY_S: Final = 5.0
"""Of a run, for each stop at a write."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `at_s` on for `seconds`; target: a number that chooses among what there is."""

    at_s: float
    kind: FaultKind
    target: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s {self.kind} {self.target} for {self.seconds:.1f} s"


class WriteKind(StrEnum):
    """A write of a scheduler at which its process can be stopped."""

    BIND = "bind"
    NEXT_BIND = "bind-after-another-of-its-gang"
    EVICTION = "eviction"
    NEXT_EVICTION = "eviction-after-another-of-its-plan"
    NOMINATION = "nomination"
    GROUP_STATUS = "status-of-podgroup"
    GROUP_RECORD = "record-on-podgroup"
    GATE = "gate"
    CLAIM = "claim"
    CLAIM_STATUS = "status-of-claim"


@dataclass(frozen=True, slots=True)
class Stop:
    """The process that sends a certain write is killed or stopped at this write.

    Attributes
    ----------
    number
        Which write of its kind, from 1 on, over all schedulers.
    is_sent
        Whether the server receives the write; its answer is lost in any case.
    is_frozen
        Whether the process is stopped (SIGSTOP) for `seconds` rather than killed.

    """

    kind: WriteKind
    number: int
    is_sent: bool
    is_frozen: bool
    seconds: float

    def __str__(self) -> str:
        how = f"stop for {self.seconds:.1f} s" if self.is_frozen else "kill"
        when = "after" if self.is_sent else "before"
        return f"{how} {when} {self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang that comes: all of its pods are needed, each runs for so long on so many CPUs.

    Attributes
    ----------
    is_gated
        Whether its pods have the gate that a scheduler opens.
    has_claims
        Whether each of its pods claims a device.
    is_late
        Whether it comes only once all that came before is bound.

    """

    at_s: float
    name: str
    size: int
    cpus: int
    run_s: float
    is_urgent: bool
    is_gated: bool = False
    has_claims: bool = False
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run: faults and arrivals in the order of time, and stops at writes."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    arrivals: tuple[Arrival, ...]
    stops: tuple[Stop, ...] = ()


def draw_schedule(
    seed: int, seconds: float, every_s: float = 3.0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)
) -> Schedule:
    """The schedule of a seed; a fault begins every few seconds, and a gang twice a second.

    No faults of any kind means no stops either.
    """
    chance, paths = Random(f"schedule {seed}"), Random(f"paths {seed}")
    faults = [
        Fault(
            at_s=round(chance.uniform(1.0, max(1.0, seconds - 2.0)), 1),
            kind=chance.choice(kinds),
            target=chance.randrange(1000),
            seconds=round(chance.uniform(0.5, 4.0), 1),
        )
        for _ in range(round(seconds / every_s) if kinds else 0)
    ]
    arrivals = [
        Arrival(
            at_s=round(number / 2, 1),
            name=f"g{number}",
            size=chance.choice((1, 1, 2, 4)),
            cpus=chance.choice((1, 1, 2)),
            run_s=round(chance.uniform(0.5, 4.0), 1),
            is_urgent=chance.random() < 0.2,
            is_gated=paths.random() < 0.2,
            has_claims=paths.random() < 0.2,
        )
        for number in range(round(seconds * 2))
    ]
    stops = draw_stops(seed, round(seconds / STOP_EVERY_S)) if kinds else ()
    faults.sort(key=lambda fault: fault.at_s)
    return Schedule(seed, seconds, tuple(faults), tuple(arrivals), stops)


def draw_stops(seed: int, number: int) -> tuple[Stop, ...]:
    """So many stops of a seed: at writes of kinds in turn, each at one of the first few."""
    chance = Random(f"stops {seed}")
    kinds = [*WriteKind]
    chance.shuffle(kinds)
    chosen = [kinds[index % len(kinds)] for index in range(number)]
    return tuple(
        Stop(
            kind=kind,
            number=chance.randint(1, 4 if kind is WriteKind.NEXT_EVICTION else 10),
            is_sent=chance.random() < 0.5,
            is_frozen=chance.random() < 0.4,
            seconds=round(chance.uniform(0.5, 5.0), 1),
        )
        for kind in chosen
    )


def draw_waves(seed: int) -> Schedule:
    """Gangs that fill the nodes, then an urgent one in their place; stops between their writes.

    A scheduler is stopped between two binds of a gang and between two evictions of a plan; the seed
    chooses which, and how.
    """
    chance = Random(f"waves {seed}")
    fill = [Arrival(0.0, f"fill{i}", 1, 1, 10.0, is_urgent=False) for i in range(8)]
    gang = Arrival(0.0, "gang", 4, 1, 10.0, is_urgent=False)
    urgent = Arrival(1.0, "urgent", 6, 1, 0.5, is_urgent=True, is_late=True)
    between = [WriteKind.NEXT_BIND, WriteKind.NEXT_EVICTION]
    stops = [
        Stop(kind, chance.randint(1, 3), chance.random() < 0.5, is_frozen=False, seconds=0.0)
        for kind in between
    ]
    return Schedule(seed, 1.0, (), (*fill, gang, urgent), tuple(stops))
