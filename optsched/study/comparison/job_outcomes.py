"""Times of jobs in results of replays, and why some did not finish."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.study.simulation.simulation_metrics import UNFAIR, JobTimes, spread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from optsched.study.simulation.timeline import Timeline

_COLUMNS: Final = tuple(JobTimes.__dataclass_fields__)
RUNNING: Final = ("Running", "runs at the end of the replay")
UNDECIDED: Final = ("Undecided", "arrived after the last session")


def columns_of(jobs: Iterable[JobTimes]) -> dict[str, list[object]]:
    """Return times of jobs as JSON, one list per field."""
    every = list(jobs)
    return {name: [getattr(job, name) for job in every] for name in _COLUMNS}


def read_job_times(found: Mapping[str, Sequence[Any]]) -> dict[str, JobTimes]:
    """Read what `columns_of` wrote, by name of the job."""
    rows = zip(*(found[name] for name in _COLUMNS), strict=True)
    return {job.name: job for job in (JobTimes(*row) for row in rows)}


def measure_jobs(jobs: Iterable[JobTimes], names: Collection[str]) -> dict[str, Any]:
    """Return metrics of times over the named jobs, as in `Metrics`."""
    found = [job for job in jobs if job.name in names]
    jct = [(j.ended_ms - j.arrived_ms) / 1000 for j in found if j.ended_ms is not None]
    queueing = [(j.started_ms - j.arrived_ms) / 1000 for j in found if j.started_ms is not None]
    rho = [j.finish_time_fairness for j in found if j.finish_time_fairness is not None]
    spreads = {"jct_s": spread(jct), "queueing_s": spread(queueing)}
    return {
        **{name: None if each is None else asdict(each) for name, each in spreads.items()},
        "ftf_mean": sum(rho) / len(rho) if rho else None,
        "ftf_worst": max(rho, default=None),
        "ftf_unfair": sum(r > UNFAIR for r in rho) / len(rho) if rho else None,
    }


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
    names, found = frozenset(counted), []
    for job in timeline.jobs:
        if job.key in names and job.done_ms is None:
            known = RUNNING if job.is_running else timeline.reasons.get(job.key, UNDECIDED)
            waited_ms = job.waited_ms(timeline.end_ms)
            found.append(UnfinishedReason(known[0], 1, job.key, waited_ms, known[1]))
    return [
        {
            "reason": each.code,
            "gangs": each.num_gangs,
            "example": each.example,
            "waited_ms": each.waited_ms,
            "message": each.message,
        }
        for each in _merge(found)
    ]


def merge_reasons(results: Iterable[Mapping[str, Any]]) -> list[UnfinishedReason]:
    """Return the reasons over several results, the most frequent first."""
    return _merge(
        UnfinishedReason(
            each["reason"], each["gangs"], each["example"], each["waited_ms"], each["message"]
        )
        for result in results
        for each in result.get("unfinished_reasons", ())
    )


def _merge(reasons: Iterable[UnfinishedReason]) -> list[UnfinishedReason]:
    """One of each code; its example is the gang that waited longest."""
    by_code: dict[str, list[UnfinishedReason]] = {}
    for one in reasons:
        by_code.setdefault(one.code, []).append(one)
    merged = []
    for code, several in by_code.items():
        longest = min(several, key=lambda each: (-each.waited_ms, each.example))
        number = sum(each.num_gangs for each in several)
        example = longest.example, longest.waited_ms, longest.message
        merged.append(UnfinishedReason(code, number, *example))
    return sorted(merged, key=lambda each: (-each.num_gangs, each.code))
