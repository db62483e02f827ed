"""Draw the faults and arrivals of a run from a seed, always the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class FaultKind(StrEnum):
    """A type of temporary fault."""

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
    """The node object is deleted and created again, and its pods keep running
    like under a kubelet.
    """
    LOSE_NODE = "lose-node"
    """The node object and its pods are deleted, and the node object is created again later."""
    POLICY = "policy"
    API_SERVER = "api-server"
    ETCD = "etcd"
    KILL_WEBHOOK = "kill-webhook"
    """The webhook is killed, and starts again at the end of the fault."""
    FREEZE_WEBHOOK = "freeze-webhook"
    SILENCE_WEBHOOK = "silence-webhook"
    HOLD_REVIEWS = "hold-reviews"
    """The connections of API servers to the webhook are held."""
    CUT_REVIEWS = "cut-reviews"
    """The connections of API servers to the webhook are cut."""


WEBHOOK: Final = (FaultKind.KILL_WEBHOOK, FaultKind.FREEZE_WEBHOOK, FaultKind.SILENCE_WEBHOOK)
"""Faults of the webhook, which are drawn separately from all other faults."""

REVIEWS: Final = (FaultKind.HOLD_REVIEWS, FaultKind.CUT_REVIEWS)
"""Faults between API servers and the webhook, which are drawn separately, too."""

SHORT: Final = (
    FaultKind.KILL_SCHEDULER,
    FaultKind.FREEZE_SCHEDULER,
    FaultKind.SILENCE,
    FaultKind.CORDON,
    FaultKind.REPLACE_NODE,
    FaultKind.POLICY,
    *WEBHOOK,
    *REVIEWS,
)
"""Faults that end within seconds."""

WATCHED: Final = ("pods", "podgroups", "queues")
"""Kinds whose watches are silenced.

Nodes are not silenced, because a scheduler without node events may bind to closed nodes.
"""

REVIEWS_EVERY_S: Final = 10.0
"""The average time between faults of the connections to the webhook, in seconds."""

WEBHOOK_EVERY_S: Final = 6.0
"""The average time between faults of the webhook, in seconds."""

STOP_EVERY_S: Final = 5.0
"""The average time between stops at a write, in seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that begins at `at_s` and lasts `seconds`.

    `target` is a number that selects one of the existing processes or nodes.
    """

    at_s: float
    kind: FaultKind
    target: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s {self.kind} {self.target} for {self.seconds:.1f} s"


class WriteKind(StrEnum):
    """A type of scheduler write, at which the scheduler can be stopped."""

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
    """A kill or a stop of a scheduler at a certain write.

    Attributes
    ----------
    number
        The position of the write among all writes of its type, from 1.
    is_sent
        Whether the server receives the write. The response to the write is always lost.
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
    """An arriving gang that needs all its pods, each with the same CPUs and the same duration.

    Attributes
    ----------
    is_gated
        Whether its pods have a scheduling gate that the scheduler removes.
    has_claims
        Whether each of its pods claims a device.
    is_late
        Whether the gang arrives only after all earlier pods are bound.

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


class Flaw(StrEnum):
    """The reason for which the webhook must deny a job, or an empty text for a valid job."""

    NONE = ""
    MIN_AVAILABLE = "min-available"
    """The gang needs more pods than the job has."""
    QUEUE = "queue"
    """The queue does not exist."""
    TEMPLATE = "template"
    """The API server refuses the pods of the job."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a user submits, again and again until the API server stores or denies it."""

    at_s: float
    name: str
    replicas: int
    run_s: float
    flaw: Flaw = Flaw.NONE


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults and arrivals of a run in order of time, and the stops at writes.

    With submissions, a webhook reviews the jobs, PodGroups and pods of the run.
    """

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    arrivals: tuple[Arrival, ...]
    stops: tuple[Stop, ...] = ()
    submissions: tuple[Submission, ...] = ()


def draw_schedule(
    seed: int, seconds: float, every_s: float = 3.0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)
) -> Schedule:
    """Return the schedule of a seed.

    A fault begins every `every_s` seconds on average, and a gang arrives twice per second. Without
    fault types, there are no stops either. Without faults of the webhook, there is no webhook.
    """
    others = tuple(kind for kind in kinds if kind not in (*WEBHOOK, *REVIEWS))
    own = tuple(kind for kind in kinds if kind in WEBHOOK)
    chance, paths = Random(f"schedule {seed}"), Random(f"paths {seed}")
    faults = [
        Fault(
            at_s=round(chance.uniform(1.0, max(1.0, seconds - 2.0)), 1),
            kind=chance.choice(others),
            target=chance.randrange(1000),
            seconds=round(chance.uniform(0.5, 4.0), 1),
        )
        for _ in range(round(seconds / every_s) if others else 0)
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
    submissions: tuple[Submission, ...] = ()
    if own:
        faults += draw_webhook_faults(seed, seconds, own)
        faults += draw_review_faults(
            seed, seconds, tuple(kind for kind in kinds if kind in REVIEWS)
        )
        submissions = draw_submissions(seed, seconds)
    faults.sort(key=lambda fault: fault.at_s)
    return Schedule(seed, seconds, tuple(faults), tuple(arrivals), stops, submissions)


def draw_webhook_faults(seed: int, seconds: float, kinds: tuple[FaultKind, ...]) -> list[Fault]:
    """Return the faults of the webhook, drawn from a seed.

    The first of the types is always drawn.
    """
    chance = Random(f"webhook {seed}")
    return [
        Fault(
            at_s=round(chance.uniform(0.5, max(0.5, seconds - 2.0)), 1),
            kind=chance.choice(kinds) if number else kinds[0],
            target=chance.randrange(1000),
            seconds=round(chance.uniform(0.5, 4.0), 1),
        )
        for number in range(max(1, round(seconds / WEBHOOK_EVERY_S)))
    ]


def draw_review_faults(seed: int, seconds: float, kinds: tuple[FaultKind, ...]) -> list[Fault]:
    """Return the faults between API servers and the webhook, drawn from a seed."""
    chance = Random(f"reviews {seed}")
    return [
        Fault(
            at_s=round(chance.uniform(0.5, max(0.5, seconds - 2.0)), 1),
            kind=chance.choice(kinds),
            target=0,
            seconds=round(chance.uniform(0.5, 4.0), 1),
        )
        for _ in range(max(1, round(seconds / REVIEWS_EVERY_S)) if kinds else 0)
    ]


def draw_submissions(seed: int, seconds: float) -> tuple[Submission, ...]:
    """Return a job for each second, drawn from a seed; three of four jobs are invalid.

    The types of flaws rotate.
    """
    chance = Random(f"submissions {seed}")
    flaws = [*Flaw]
    chance.shuffle(flaws)
    return tuple(
        Submission(
            at_s=round(number + chance.uniform(0.0, 1.0), 1),
            name=f"j{number}",
            replicas=chance.choice((1, 2)),
            run_s=round(chance.uniform(0.5, 2.0), 1),
            flaw=flaws[number % len(flaws)],
        )
        for number in range(max(len(flaws), round(seconds)))
    )


def draw_stops(seed: int, number: int) -> tuple[Stop, ...]:
    """Return `number` stops drawn from a seed.

    The types of writes rotate, and each stop comes at one of the first writes of its type.
    """
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
    """Return gangs that fill the nodes, an urgent gang that evicts them, and stops between writes.

    A scheduler is stopped between two binds of a gang and between two evictions of a plan. The seed
    selects the two writes, and whether the server receives them.
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
