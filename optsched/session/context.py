"""The dependencies and settings of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optsched.cluster.decisions import Incumbent
    from optsched.plugins.custom.extender import Outside
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
        The source of the current time, or None if the session must not depend on time. If the clock
        is None, all durations are 0, and no time limit applies.
    solver
        The solver, or None to use only the greedy pipeline.
    incidents
        Stores the plans that the verifier rejects, or None to store none.
    limits
        The limits of one search, or None for the policy's limits.
    outside
        The interface for calls to extenders, or None to replay the replies recorded in the
        snapshot.
    watch
        Receives the progress of searches, or None to record no history.
    start
        The incumbents of an earlier session on the same snapshot, from which searches resume.
    warm_start
        Placements found by an earlier search. The session starts from the placements that are still
        valid, if these are better than the placements of the greedy pipeline.
    period_ms
        The wall time in milliseconds within which a session should end, or None. If `period_ms` is
        set, searches get less time on large clusters, and later candidates and bounds may be
        skipped.
    explains
        Whether to explain why gangs wait. If False, all reasons are `UNEXPLAINED`, and the
        certificate has no queue shares. Actions, levels and the keys of `Plan.pending` do not
        depend on this field.

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
