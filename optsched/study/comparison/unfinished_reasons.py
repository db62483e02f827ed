"""Reasons why gangs did not finish: of one replay, and of all replays of a model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.study.simulation.timeline import GOES_ON

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.study.simulation.timeline import Job, Timeline

RUNNING: Final = ("Running", "runs at the end of the replay")
UNDECIDED: Final = ("Undecided", "arrived after the last session")


@dataclass(frozen=True, slots=True)
class UnfinishedReason:
    """Gangs that did not finish for the same reason."""

    code: str  # a reason code of `plan.pending`, or `Running`
    num_gangs: int  # over all replays
    # example, message: the gang that waited longest, and why it waited, in words
    example: str
    waited_ms: int  # how long the example waited
    message: str


def reasons_of(timeline: Timeline, counted: Iterable[str]) -> list[dict[str, Any]]:
    """Return the reasons of gangs that did not finish as JSON; only gangs that are counted."""
    names, found = frozenset(counted), dict[str, UnfinishedReason]()
    for job in timeline.jobs:
        if job.key in names and job.done_ms is None:
            code, message = _reason(timeline, job)
            waited_ms = sum(b - a for a, b in job.waits(timeline.end_ms))
            _add(found, UnfinishedReason(code, 1, job.key, waited_ms, message))
    return [
        {
            "reason": each.code,
            "gangs": each.num_gangs,
            "example": each.example,
            "waited_ms": each.waited_ms,
            "message": each.message,
        }
        for each in _ordered(found)
    ]


def merge_reasons(results: Iterable[Mapping[str, Any]]) -> list[UnfinishedReason]:
    """Return the reasons over several results, the most frequent first."""
    found = dict[str, UnfinishedReason]()
    for each in _entries(results):
        _add(found, each)
    return _ordered(found)


def _entries(results: Iterable[Mapping[str, Any]]) -> Iterator[UnfinishedReason]:
    for result in results:
        for each in result.get("unfinished_reasons", ()):
            yield UnfinishedReason(
                each["reason"], each["gangs"], each["example"], each["waited_ms"], each["message"]
            )


def _reason(timeline: Timeline, job: Job) -> tuple[str, str]:
    if job.runs and job.runs[-1].why == GOES_ON:
        return RUNNING
    return timeline.reasons.get(job.key, UNDECIDED)


def _add(found: dict[str, UnfinishedReason], one: UnfinishedReason) -> None:
    """Count a reason; the example that waited longest stays."""
    known = found.get(one.code)
    if known is None:
        found[one.code] = one
        return
    longest = min(known, one, key=lambda each: (-each.waited_ms, each.example))
    found[one.code] = UnfinishedReason(
        one.code,
        known.num_gangs + one.num_gangs,
        longest.example,
        longest.waited_ms,
        longest.message,
    )


def _ordered(found: Mapping[str, UnfinishedReason]) -> list[UnfinishedReason]:
    return sorted(found.values(), key=lambda each: (-each.num_gangs, each.code))
