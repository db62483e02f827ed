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
    DELETE_NODE = "delete-node"
    NOT_READY = "not-ready"
    POLICY = "policy"
    API_SERVER = "api-server"
    ETCD = "etcd"


SHORT: Final = (
    FaultKind.KILL_SCHEDULER,
    FaultKind.FREEZE_SCHEDULER,
    FaultKind.SILENCE,
    FaultKind.CORDON,
    FaultKind.POLICY,
)
"""Faults that are over within seconds."""

WATCHED: Final = ("pods", "podgroups", "queues")
"""Kinds whose watches are silenced; what a scheduler can not know of nodes is no fault of it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `at_s` on for `seconds`; target: a number that chooses among what there is."""

    at_s: float
    kind: FaultKind
    target: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s {self.kind} {self.target} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang that comes: all of its pods are needed, each runs for so long on so many CPUs."""

    at_s: float
    name: str
    size: int
    cpus: int
    run_s: float
    is_urgent: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run: faults and arrivals in the order of time."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    arrivals: tuple[Arrival, ...]


def draw_schedule(
    seed: int, seconds: float, every_s: float = 3.0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)
) -> Schedule:
    """The schedule of a seed; a fault begins every few seconds, and a gang twice a second."""
    chance = Random(f"schedule {seed}")
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
        )
        for number in range(round(seconds * 2))
    ]
    return Schedule(seed, seconds, tuple(sorted(faults, key=lambda f: f.at_s)), tuple(arrivals))
