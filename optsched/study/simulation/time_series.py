"""Series of a replay that are small enough to be kept with its figures, for those who draw them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from optsched.study.reports.time_bins import column, means

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.study.simulation.timeline import Story

STRETCHES: Final = 120
QUEUES: Final = 7
OTHERS: Final = "other queues"


def series_of(story: Story) -> dict[str, Any]:
    """Times of gangs as percentiles 0 to 100, and parts of the cluster held by queue over time."""
    done = [job.done_ms - job.submit_ms for job in story.jobs if job.done_ms is not None]
    waited = [job.runs[0].from_ms - job.submit_ms for job in story.jobs if job.runs]
    return {
        "jct_s": percentiles(done),
        "queueing_s": percentiles(waited),
        "waited_s": _waited(story),
        "end_ms": story.end_ms,
        "unit": story.lanes.unit,
        "held": _held(story),
    }


def percentiles(times_ms: Iterable[int]) -> list[float]:
    """In seconds, nearest rank, the least first; nothing of nothing."""
    ordered = sorted(times_ms)
    ranks = [max(-(-len(ordered) * p // 100), 1) - 1 for p in range(101)]
    return [ordered[rank] / 1000 for rank in ranks] if ordered else []


def _waited(story: Story) -> dict[str, list[float]]:
    """Percentiles by queue of all time in which gangs waited for their minimum."""
    times: dict[str, list[int]] = {}
    for job in story.jobs:
        waited_ms = sum(b - a for a, b in job.waits(story.end_ms))
        times.setdefault(story.queues[job.queue], []).append(waited_ms)
    return {queue: percentiles(times[queue]) for queue in sorted(times)}


def _held(story: Story) -> dict[str, list[float]]:
    """Parts of all GPUs, mean of each stretch, by queue; those that held least together."""
    weight: Counter[int] = Counter()
    for stay in story.stays:
        held_ms = stay.milli * len(stay.lanes) * (stay.to_ms - stay.from_ms)
        weight[story.jobs[stay.job].queue] += held_ms
    order = sorted(weight, key=lambda q: (-weight[q], story.queues[q]))
    few = len(order) <= QUEUES + 1
    row = {queue: i if few else min(i, QUEUES) for i, queue in enumerate(order)}
    names = [story.queues[q] for q in order] if few else [story.queues[q] for q in order[:QUEUES]]
    names += [] if few else [OTHERS]
    spans = column([s.from_ms for s in story.stays]), column([s.to_ms for s in story.stays])
    amounts = np.array([s.milli * len(s.lanes) for s in story.stays], dtype=np.float64)
    rows = column([row[story.jobs[s.job].queue] for s in story.stays])
    edges = np.linspace(0, story.end_ms, STRETCHES + 1)
    found = means(spans, amounts, rows, len(names), edges) / (story.lanes.total_milli or 1)
    told = found.round(4).tolist()
    return dict(zip(names, told, strict=True))
