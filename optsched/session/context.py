"""The dependencies and settings of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optsched.cluster.decisions import Incumbent
    from optsched.plugins.external.extender import Outside
    from optsched.session.ports import Clock, Incidents, Watch
    from optsched.session.warm_start import WarmStart
    from optsched.solver.cpsat.level_model import Limits
    from optsched.solver.cpsat.process import Solver


@dataclass(frozen=True)
class SessionContext:
    """The dependencies and settings of a session.

    Attributes
    ----------
    clock
        None where no clock may be read: durations are then 0 and nothing is limited by time.
    solver
        None for the greedy pipeline alone.
    incidents
        Keeps plans that the verifier rejects; None to keep none.
    limits
        The limits of one search; None for the policy's budget.
    outside
        The services that extenders call; None for the replies that the snapshot has recorded.
    watch
        Receives progress of searches; None where no history is kept.
    start
        Incumbents of an earlier session on the same snapshot, to resume from.
    warm_start
        Placements that an earlier search has found; the session begins with those that still hold,
        if they are better than the pipeline's.
    period_ms
        Wall time in which a session aims to end: on large clusters searches get a smaller part of
        it, and later candidates and bounds are skipped. None where nothing limits a whole session.
    explains
        False where no explanations are needed: reasons are then `UNEXPLAINED`, and the certificate
        has no shares of queues. Actions, levels and the keys of `Plan.pending` are the same.

    """

    clock: Clock | None = None
    solver: Solver | None = None
    incidents: Incidents | None = None
    limits: Limits | None = None
    outside: Outside | None = None
    watch: Watch | None = None
    start: tuple[Incumbent, ...] = ()
    warm_start: WarmStart | None = None
    period_ms: int | None = None
    explains: bool = True
