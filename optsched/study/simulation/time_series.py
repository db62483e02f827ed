"""Compact time series of a replay for charts, stored with its metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from optsched.study.reports.time_bins import bin_means, column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.study.simulation.timeline import Timeline

STRETCHES: Final = 120
QUEUES: Final = 7
OTHERS: Final = "other queues"


def series_of(timeline: Timeline) -> dict[str, Any]:
    """Return gang times as percentiles 0 to 100, and queue shares over time."""
    done = [job.done_ms - job.submit_ms for job in timeline.jobs if job.done_ms is not None]
    waited = [job.runs[0].from_ms - job.submit_ms for job in timeline.jobs if job.runs]
    # Percentiles of waiting times by queue.
    times: dict[str, list[int]] = {}
    for job in timeline.jobs:
        waited_ms = sum(b - a for a, b in job.waits(timeline.end_ms))
        times.setdefault(timeline.queues[job.queue], []).append(waited_ms)
    return {
        "jct_s": percentiles(done),
        "queueing_s": percentiles(waited),
        "waited_s": {queue: percentiles(times[queue]) for queue in sorted(times)},
        "end_ms": timeline.end_ms,
        "unit": timeline.lanes.unit,
        "held": _gpu_shares_by_queue(timeline),
    }


def percentiles(times_ms: Iterable[int]) -> list[float]:
    """Return nearest-rank percentiles in seconds, ascending; empty without values."""
    ordered = sorted(times_ms)
    ranks = [max(-(-len(ordered) * p // 100), 1) - 1 for p in range(101)]
    return [ordered[rank] / 1000 for rank in ranks] if ordered else []


def _gpu_shares_by_queue(timeline: Timeline) -> dict[str, list[float]]:
    """Return mean GPU shares by queue and time bin; the smallest queues are summed."""
    weight: Counter[int] = Counter()
    for stay in timeline.stays:
        held_ms = stay.milli * len(stay.lanes) * (stay.to_ms - stay.from_ms)
        weight[timeline.jobs[stay.job].queue] += held_ms
    order = sorted(weight, key=lambda q: (-weight[q], timeline.queues[q]))
    few = len(order) <= QUEUES + 1
    row = {queue: i if few else min(i, QUEUES) for i, queue in enumerate(order)}
    names = (
        [timeline.queues[q] for q in order] if few else [timeline.queues[q] for q in order[:QUEUES]]
    )
    names += [] if few else [OTHERS]
    spans = column([s.from_ms for s in timeline.stays]), column([s.to_ms for s in timeline.stays])
    amounts = np.array([s.milli * len(s.lanes) for s in timeline.stays], dtype=np.float64)
    rows = column([row[timeline.jobs[s.job].queue] for s in timeline.stays])
    edges = np.linspace(0, timeline.end_ms, STRETCHES + 1)
    found = bin_means(spans, amounts, rows, len(names), edges) / (timeline.lanes.total_milli or 1)
    told = found.round(4).tolist()
    return dict(zip(names, told, strict=True))
