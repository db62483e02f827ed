"""Read event times, metrics and charges from replays, and interrupt and resume replays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from optsched.study.chargeback import Charging
from optsched.study.simulation.record import lines
from optsched.study.simulation.simulation_metrics import Measuring
from optsched.study.simulation.simulator import Options, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.trace import Trace
    from optsched.policy.policy import Policy
    from optsched.study.chargeback import Chargeback
    from optsched.study.simulation.record import Event
    from optsched.study.simulation.simulation_metrics import Metrics

S = 1000


def times(events: Iterable[Event], kind: type) -> dict[str, list[float]]:
    """Return the seconds of the events of one type, by job name."""
    found: dict[str, list[float]] = {}
    for e in events:
        if isinstance(e, kind):
            found.setdefault(e.job.removeprefix("ns/"), []).append(e.at_ms / S)  # type: ignore[attr-defined]
    return found


def record_in_parts(given: Trace, policy: Policy, options: Options, stops: Sequence[int]) -> str:
    """Return the record of a replay that is stored and resumed after the given numbers of steps."""
    text, kept = "", None
    for num_steps in [*stops, 10**9]:
        part = Simulation(given, policy, options)
        if kept is not None:
            part.restore(json.loads(kept))
        while num_steps and (events := part.step()) is not None:
            text += lines(events)
            num_steps -= 1
        kept = json.dumps(part.state())
    return text


def measure(
    trace: Trace,
    events: Iterable[Event],
    *,
    warm_up_ms: int = 0,
    session_seconds: Sequence[float] = (),
) -> Metrics:
    """Compute the metrics of a replay.

    `events` is the record of the replay of `trace`. Events in the first `warm_up_ms` milliseconds
    are not measured. `session_seconds` lists the wall-clock times of the sessions, if measured.
    """
    sweep = Measuring(trace, warm_up_ms)
    for event in events:
        sweep.add_event(event)
    return sweep.metrics(session_seconds)


def chargeback(trace: Trace, events: Iterable[Event], *, warm_up_ms: int = 0) -> Chargeback:
    """Return the charges of a replay up to its last event."""
    charging = Charging(trace, warm_up_ms)
    for event in events:
        charging.add_event(event)
    return charging.total()
