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
        None if no clock may be read; then all durations are 0 and time limits nothing.
    solver
        The solver; None for the greedy pipeline alone.
    incidents
        Stores plans that the verifier rejects; None to store none.
    limits
        The limits of one search; None for the policy's budget.
    outside
        The port for calls of extenders; None to replay the replies that the snapshot records.
    watch
        Receives the progress of searches; None to record no history.
    start
        Incumbents of an earlier session on the same snapshot, to resume from.
    warm_start
        Placements that an earlier search has found. The session starts from those that still hold,
        if they are better than the pipeline's.
    period_ms
        Wall time in which a session aims to end; None for no such aim. On large clusters, searches
        then get less time, and later candidates and bounds are skipped.
    explains
        Whether to explain why gangs wait. Without explanations, all reasons are `UNEXPLAINED`, and
        the certificate has no queue shares. Actions, levels and the keys of `Plan.pending` are the
        same.

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
