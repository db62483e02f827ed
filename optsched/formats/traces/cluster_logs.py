"""Microsoft's Philly trace: jobs with every attempt to run them.

Jeon et al., ATC 2019; msr-fiddle/philly-traces. `cluster_job_log` is a list of JSON objects with
jobid, vc, submitted_time and attempts (start_time, end_time, detail: ip and gpus). In the same
folder, `cluster_machine_list` has the columns machineId, number of GPUs and single GPU mem.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Node
from optsched.cluster.trace import TraceProblem
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.published_jobs import (
    NOTHING,
    Part,
    Table,
    TracedJob,
    build_trace,
    instant_ms,
    listed_nodes,
)
from optsched.units import GPU, MAX_GPUS_ON_NODE
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found

MACHINES: Final = "cluster_machine_list"

_MACHINE: Final = Table("Machine", ("machineId", "number of GPUs"), "machineId")
_NO_TIME: Final = "is not a time: write YYYY-MM-DD HH:MM:SS"
_NO_MACHINES: Final = (
    "is not a list of machines with gpus: write the name of each GPU, such as gpus: [gpu0]"
)
_NEVER_RAN: Final = "never ran, so its number of GPUs and its duration are unknown"
_BACKWARDS: Final = "is before its start_time"


class _Broken(Exception):
    """An error in a job; its arguments are the field, its value and a message."""

    def __init__(self, path: str, value: object, message: str) -> None:
        self.path, self.value, self.message = path, value, message


def read_philly(file: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read a job log of the Philly trace; each virtual cluster becomes a queue.

    Each machine of a job's last attempt becomes a task. The duration of a job is the total duration
    of its attempts. A job that was still running when the trace ended runs forever. Jobs are sorted
    by submission time.

    Parameters
    ----------
    file
        The file `cluster_job_log` in JSON.
    nodes
        The nodes for the replay, or None to use `cluster_machine_list` in the same folder.

    Raises
    ------
    InstanceError
        A file does not exist or is not a JSON list, or there are no nodes.

    """
    problems: list[TraceProblem] = []
    if nodes is None:
        candidates = [file.with_name(MACHINES + ending) for ending in ("", ".csv")]
        listed = next((path for path in candidates if path.exists()), None)
        if listed is None:
            raise InstanceError(f"{file}: its folder has no {MACHINES}, and no nodes are given")
        rows = [
            (row, row.integer("number of GPUs", MAX_GPUS_ON_NODE))
            for row in _MACHINE.read(listed, problems)
        ]
        machines = tuple(
            Node(row.name, amounts({GPU: gpus})) for row, gpus in rows if row.name and gpus
        )
        nodes = listed_nodes(listed, machines, problems, "machines with GPUs, one per row")
    jobs = sorted(_jobs(file, problems), key=lambda job: (job.at_ms, job.name))
    return build_trace(file.stem, jobs, nodes, problems)


def _jobs(file: Path, problems: list[TraceProblem]) -> Iterator[TracedJob]:
    try:
        listed = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InstanceError(f"{file}: this job log cannot be read: {why_unreadable(e)}") from e
    if not isinstance(listed, list):
        raise InstanceError(f"{file}: not a job log: it must be a list of jobs")
    for number, entry in enumerate(listed):
        where = f"{file.name}[{number}]"
        try:
            yield _job(entry, where)
        except _Broken as error:
            name = str(entry.get("jobid", "")) if isinstance(entry, dict) else ""
            value = repr(error.value) if error.path else None
            problem = TraceProblem("Job", name, error.path, value, error.message, where)
            problems.append(problem)


def _job(entry: object, where: str) -> TracedJob:
    if not isinstance(entry, dict):
        raise _Broken("", None, "is not an object with jobid, vc, submitted_time and attempts")
    for field in ("jobid", "vc"):
        value = entry.get(field)
        if not isinstance(value, str) or value in NOTHING:
            raise _Broken(field, value, "is not a name")
    attempts = entry.get("attempts")
    if not isinstance(attempts, list):
        raise _Broken("attempts", attempts, "is not a list")
    if not attempts:
        raise _Broken("", None, _NEVER_RAN)
    return TracedJob(
        name=entry["jobid"],
        at_ms=_time(entry, "submitted_time", ""),
        duration_ms=_duration_ms(attempts),
        parts=_tasks_of_attempt(attempts),
        queue=entry["vc"],
        user=user if isinstance(user := entry.get("user"), str) and user not in NOTHING else "",
        where=where,
    )


def _time(entry: Mapping[str, Any], field: str, path: str) -> int:
    found = instant_ms(str(entry.get(field)))
    if found is None:
        raise _Broken(path + field, entry.get(field), _NO_TIME)
    return found


def _has_status(attempt: object, field: str) -> bool:
    return isinstance(attempt, dict) and str(attempt.get(field)) not in NOTHING


def _duration_ms(attempts: Sequence[Any]) -> int | None:
    """Return the total duration of the complete attempts in ms, or None for an unfinished job."""
    if _has_status(attempts[-1], "start_time") and not _has_status(attempts[-1], "end_time"):
        return None
    total, is_known = 0, False
    for i, attempt in enumerate(attempts):
        if _has_status(attempt, "start_time") and _has_status(attempt, "end_time"):
            start, end = (_time(attempt, f, f"attempts[{i}].") for f in ("start_time", "end_time"))
            if end < start:
                raise _Broken(f"attempts[{i}].end_time", attempt["end_time"], _BACKWARDS)
            total, is_known = total + end - start, True
    if not is_known:
        raise _Broken("attempts", len(attempts), "has no attempt with both start_time and end_time")
    return total


def _tasks_of_attempt(attempts: Sequence[Any]) -> tuple[Part, ...]:
    """Return one task per machine of the last attempt that used machines."""
    for i in range(len(attempts) - 1, -1, -1):
        detail = attempts[i].get("detail") if isinstance(attempts[i], dict) else None
        if not detail:
            continue
        try:
            listed = [machine["gpus"] for machine in detail]
        except (TypeError, KeyError):
            listed = [None]
        if not all(
            isinstance(gpus, list) and all(isinstance(gpu, str) for gpu in gpus) for gpus in listed
        ):
            path = f"attempts[{i}].detail"
            raise _Broken(path, detail, _NO_MACHINES)
        numbers = list(map(len, listed))
        return tuple(Part(numbers.count(n), {GPU: n}) for n in sorted(set(numbers), reverse=True))
    raise _Broken("", None, _NEVER_RAN)
