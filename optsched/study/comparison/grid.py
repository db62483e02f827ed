"""A grid of independent replays (models × traces × seeds), and the results of these replays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from optsched import __version__
from optsched.formats.files.atomic_write import write_atomically
from optsched.session.solve_settings import solver_of
from optsched.study.simulation.replay_trace import (
    SYNTHETIC,
    as_result,
    fingerprint,
    play,
    read_given,
)
from optsched.study.simulation.simulation_metrics import UNFAIR, JobTimes, spread
from optsched.study.simulation.timeline import series_of
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.study.simulation.replay_trace import LoadedTrace
    from optsched.study.simulation.simulator import Options
    from optsched.study.simulation.timeline import Timeline


_COLUMNS: Final = tuple(JobTimes.__dataclass_fields__)
RUNNING: Final = ("Running", "still runs at the end of the replay")
UNDECIDED: Final = ("Undecided", "arrived after the last session")


def columns_of(jobs: Iterable[JobTimes]) -> dict[str, list[object]]:
    """Return the times of the jobs as JSON, with one list per field of `JobTimes`."""
    every = list(jobs)
    return {name: [getattr(job, name) for job in every] for name in _COLUMNS}


def read_job_times(found: Mapping[str, Sequence[Any]]) -> dict[str, JobTimes]:
    """Parse the output of `columns_of`; return the `JobTimes`, keyed by job name."""
    rows = zip(*(found[name] for name in _COLUMNS), strict=True)
    return {job.name: job for job in (JobTimes(*row) for row in rows)}


def measure_jobs(jobs: Iterable[JobTimes], names: Collection[str]) -> dict[str, Any]:
    """Compute the time metrics of `Metrics` over the jobs named in `names`."""
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
    """A reason why gangs did not finish, with the number of gangs and an example."""

    code: str  # Reason code of a pending gang in a plan, or `Running` or `Undecided`.
    num_gangs: int  # Number of gangs with this reason, over all replays.
    # Name of the gang that waited longest, to which `message` refers.
    example: str
    waited_ms: int  # Time in milliseconds that `example` waited.
    message: str


def reasons_of(timeline: Timeline, counted: Iterable[str]) -> list[dict[str, Any]]:
    """Return as JSON why the gangs named in `counted` did not finish."""
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
    """Merge the reasons in several results by code; the most frequent reason comes first."""
    return _merge(
        UnfinishedReason(
            each["reason"], each["gangs"], each["example"], each["waited_ms"], each["message"]
        )
        for result in results
        for each in result.get("unfinished_reasons", ())
    )


def _merge(reasons: Iterable[UnfinishedReason]) -> list[UnfinishedReason]:
    """Merge reasons with the same code; the example is the gang that waited longest."""
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


CELLS: Final = "cells"
_PARTS: Final = {"metrics", "gpu_hours", "jobs"}


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with one result file per grid cell; if `folder` is None, nothing is stored."""

    folder: Path | None

    def load_result(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the stored result of a cell, or None if it is missing or incomplete."""
        if self.folder is None:
            return None
        try:
            found = json.loads((self.folder / CELLS / f"{cell.key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        is_complete = isinstance(found, dict) and found.get("complete") is True
        return found if is_complete and found.keys() >= _PARTS else None

    def store_result(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Write a cell's result atomically; on an OSError, the previous file stays unchanged."""
        if self.folder is None:
            return
        path = self.folder / CELLS / f"{cell.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_json(result, indent=1))


@dataclass(frozen=True, eq=False)
class Cell:
    """A grid cell: the replay of one trace under one model with one seed."""

    model: str
    trace: str  # Name of the trace as the user gave it.
    seed: int  # Seed of the solver, and of the trace if it is synthetic.
    given: LoadedTrace
    policy: Policy
    options: Options
    warm_up_ms: int

    @property
    def key(self) -> str:
        """A digest of everything that determines the result of the replay."""
        options = self.options
        parts = [
            __version__,
            self.given.sha256,
            fingerprint(self.policy),
            options.seed,
            options.period_ms,
            options.until_ms,
            self.warm_up_ms,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    @property
    def name(self) -> str:
        """The name of the cell in messages."""
        return f"{self.model} on {self.trace}, seed {self.seed}"

    def played(self, clock: Clock) -> dict[str, Any]:
        """Replay the cell and return its metrics and time series as JSON."""
        given, policy, options, warm_up_ms = self.given, self.policy, self.options, self.warm_up_ms
        with solver_of(policy) as solver:
            played = play(given, policy, options, warm_up_ms=warm_up_ms, solver=solver, clock=clock)
        result = as_result(given, policy, options, warm_up_ms, played)
        result["jobs"] = columns_of(played.jobs)
        if played.timeline is not None:
            counted = {job.name for job in played.jobs}
            result["unfinished_reasons"] = reasons_of(played.timeline, counted)
            # Jobs that arrive during the warm-up are not included in any metric, but a model that
            # starves them has more idle capacity for later jobs.
            result["unfinished_of_warm_up"] = [
                job.key
                for job in played.timeline.jobs
                if job.done_ms is None and job.key not in counted
            ]
            result["series"] = series_of(played.timeline)
        return result


def cells_of(
    policies: Mapping[str, Policy],
    given: Mapping[tuple[str, int], LoadedTrace],
    options: Options,
    warm_up_ms: int = 0,
) -> list[Cell]:
    """Return one cell per model, trace and seed; `given` maps (trace name, seed) to a trace."""
    return [
        Cell(model, trace, seed, found, policy, replace(options, seed=seed), warm_up_ms)
        for model, policy in policies.items()
        for (trace, seed), found in given.items()
    ]


def read_traces(
    sources: Sequence[str], seeds: Sequence[int], trace_format: str | None, nodes: Path | None
) -> dict[tuple[str, int], LoadedTrace]:
    """Read the traces; return them keyed by (source, seed).

    For a synthetic source without a seed, one trace is generated for each of `seeds`; all other
    traces are read once. Raises `InstanceError` or `SyntheticError` if a trace cannot be read.
    """
    by_name: dict[str, LoadedTrace] = {}
    found = {}
    for source in sources:
        for seed in seeds:
            name = source
            if source.startswith(SYNTHETIC) and "seed=" not in source:
                name += f"seed={seed}" if source == SYNTHETIC else f",seed={seed}"
            if name not in by_name:
                by_name[name] = read_given(name, trace_format, nodes)
            found[source, seed] = by_name[name]
    return found
