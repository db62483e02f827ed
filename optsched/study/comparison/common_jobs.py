"""Jobs that finished under every model: times of other jobs can not be compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from optsched.study.simulation.simulation_metrics import UNFAIR, JobTimes, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_COLUMNS = tuple(JobTimes.__dataclass_fields__)


def columns_of(jobs: Iterable[JobTimes]) -> dict[str, list[object]]:
    """Return times of jobs as JSON, one list per field."""
    rows = [tuple(getattr(job, name) for name in _COLUMNS) for job in jobs]
    return {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)}


@dataclass(frozen=True, eq=False)
class JobColumns:
    """Times of the jobs of one replay, by name."""

    times: Mapping[str, JobTimes]

    @classmethod
    def of_json(cls, found: Mapping[str, Sequence[Any]]) -> Self:
        """Read what `columns_of` wrote."""
        rows = zip(*(found[name] for name in _COLUMNS), strict=True)
        return cls({job.name: job for job in (JobTimes(*row) for row in rows)})

    @cached_property
    def finished(self) -> frozenset[str]:
        """Names of the jobs that finished."""
        return frozenset(name for name, job in self.times.items() if job.ended_ms is not None)


@dataclass(frozen=True, eq=False)
class CommonJobs:
    """The jobs of one trace and seed that finished under every model."""

    names: frozenset[str]

    @classmethod
    def from_columns(cls, columns: Iterable[JobColumns]) -> Self:
        """Return the jobs that finished in all replays of one trace and seed."""
        return cls(frozenset.intersection(*(each.finished for each in columns)))

    def measure(self, jobs: JobColumns) -> dict[str, Any]:
        """Return metrics of times over these jobs, named as in `Metrics`."""
        found = [job for name, job in jobs.times.items() if name in self.names]
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
