"""Gavel's traces: jobs that train known models, in Philly's fifteen virtual clusters.

Narayanan et al., OSDI 2020; stanford-futuredata/gavel, `scheduler/traces`. A file has seven
tab-separated columns and no header: job_type, command, num_steps_arg, needs_data_dir, total_steps,
arrival_time (seconds), and scale_factor (number of GPUs, allocated together). The duration of a
job is total_steps divided by the steps per second in `simulation_throughputs.json`.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.published_jobs import (
    MOST_TASKS,
    Table,
    TaskGroup,
    TracedJob,
    build_trace,
    folder_name,
)
from optsched.units import GPU
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.snapshot import Node
    from optsched.cluster.trace import Found, TraceProblem

THROUGHPUTS: Final = "simulation_throughputs.json"
_LEAST_RATE: Final = 1e-9
_LONGEST_KEY: Final = 200

_JOBS: Final = Table(
    kind="Job",
    columns=(
        "job_type",
        "command",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "arrival_time",
        "scale_factor",
    ),
    name="job_type",
    delimiter="\t",
    is_headless=True,
)


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Steps per second on one GPU type, keyed by (job type, number of GPUs)."""

    of: Mapping[tuple[str, int], float]

    def duration_ms(self, job_type: str, gpus: int, steps: int) -> int | None:
        """Return the duration of `steps` steps in ms, or None if the job type is unknown.

        If a number of GPUs was not measured, the next smaller measured number is used, because more
        GPUs may not be faster.
        """
        known = [n for kind, n in self.of if kind == job_type and n <= gpus]
        rate = self.of[job_type, max(known)] if known else 0
        return round(1000 * steps / rate) if rate > 0 else None


def read_throughputs(file: Path, worker: str = "v100") -> Throughputs:
    """Read the steps per second that Gavel measured on one GPU type.

    Raises
    ------
    InstanceError
        The file cannot be read, or lacks the GPU type `worker`.

    """
    try:
        table = json.loads(file.read_text("utf-8"))
        rows = table[worker]
        found: dict[tuple[str, int], float] = {}
        for text, row in rows.items():
            shown = text[:_LONGEST_KEY]
            match ast.literal_eval(shown):
                case (str(job_type), int(gpus)):
                    key = job_type, gpus
                case _:
                    raise ValueError(f"{shown} is not a pair of job type and number of GPUs")
            if "null" not in row:
                raise ValueError(f"{shown} has no rate for a job that runs alone (null)")
            rate = float(row["null"])
            if rate and not _LEAST_RATE <= rate <= 1 / _LEAST_RATE:
                raise ValueError(
                    f"{rate} is not a rate of steps per second: write {_LEAST_RATE} or more"
                )
            found[key] = rate
    except KeyError as e:
        known = ", ".join(sorted(table)) if isinstance(table, dict) else "none"
        raise InstanceError(f"{file}: GPU type {worker!r} is unknown; known types: {known}") from e
    except (
        *(OSError, ValueError, TypeError, AttributeError, SyntaxError),
        *(MemoryError, OverflowError, RecursionError),
    ) as e:
        raise InstanceError(f"{file}: these throughputs cannot be read: {why_unreadable(e)}") from e
    return Throughputs(found)


def read_gavel(file: Path, nodes: Sequence[Node], throughputs: Throughputs | None = None) -> Found:
    """Read traces; each file becomes a queue, and every task requests one GPU.

    Parameters
    ----------
    file
        A file `*.trace`, or a folder of such files, whose clocks start at the same time.
    nodes
        The nodes for the replay.
    throughputs
        Steps per second, or None for the V100 rates in `simulation_throughputs.json`, which is in
        the trace's folder or a parent folder.

    Raises
    ------
    InstanceError
        A file does not exist or cannot be read, or there are no nodes.

    """
    rates = throughputs
    if rates is None:
        folders = (file.resolve(), *file.resolve().parents)
        nearest = next((f / THROUGHPUTS for f in folders if (f / THROUGHPUTS).exists()), None)
        if nearest is None:
            message = f"{file}: there is no {THROUGHPUTS} in its folder or its parents"
            raise InstanceError(message)
        rates = read_throughputs(nearest)
    if not file.is_dir():
        return _read_cluster(file, nodes, rates)
    clusters = [_read_cluster(each, nodes, rates) for each in sorted(file.glob("*.trace"))]
    if not clusters:
        raise InstanceError(f"{file}: there is no *.trace in this folder")
    arrivals = (arrival for trace, _ in clusters for arrival in trace.arrivals)
    queues = {queue.name: queue for trace, _ in clusters for queue in trace.queues}
    merged = replace(
        clusters[0][0],
        name=folder_name(file),
        queues=tuple(queues[name] for name in sorted(queues)),
        arrivals=tuple(sorted(arrivals, key=lambda a: a.at_ms)),
    )
    return merged, tuple(problem for _, problems in clusters for problem in problems)


def _read_cluster(file: Path, nodes: Sequence[Node], rates: Throughputs) -> Found:
    problems: list[TraceProblem] = []
    jobs: list[TracedJob] = []
    for number, row in enumerate(_JOBS.read(file, problems)):
        kind, steps = row.text("job_type"), row.integer("total_steps")
        gpus = row.integer("scale_factor", MOST_TASKS)
        duration_ms = rates.duration_ms(kind, gpus, steps)
        if row.has_value("scale_factor") and not gpus and row.is_sound:
            row.reject("scale_factor", "is not a valid number of GPUs: write 1 or more")
        if duration_ms is None and row.is_sound:
            row.reject("job_type", "has no throughput: name a job type that was measured")
        job = TracedJob(
            name=f"{file.stem}-{number:05d}",
            at_ms=row.milliseconds("arrival_time"),
            duration_ms=duration_ms,
            task_groups=(TaskGroup(gpus, {GPU: 1}),),
            queue=file.stem,
            where=row.where,
        )
        if row.is_sound:
            jobs.append(job)
    return build_trace(file.stem, jobs, nodes, problems)
