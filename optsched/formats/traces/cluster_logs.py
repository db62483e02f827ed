"""Job logs of production GPU clusters: Philly, Helios, Acme and PAI.

- Microsoft's Philly (Jeon et al., ATC 2019; msr-fiddle/philly-traces). `cluster_job_log` is a list
  of JSON objects with jobid, vc, submitted_time and attempts (start_time, end_time, detail: ip and
  gpus). In the same folder, `cluster_machine_list` has the columns machineId, number of GPUs and
  single GPU mem.
- SenseTime's Helios (Hu et al., SC 2021; S-Lab-System-Group/HeliosData). `cluster_log.csv` is a
  Slurm log. In the same folder, `cluster_gpu_number.csv` lists the GPUs of each virtual cluster by
  day.
- Shanghai AI Lab's Acme (Hu et al., NSDI 2024; InternLM/AcmeTrace). `trace_seren.csv` and
  `trace_kalos.csv` are Slurm logs without virtual clusters; their times have a UTC offset.
- Alibaba's PAI (Weng et al., NSDI 2022; alibaba/clusterdata, cluster-trace-gpu-v2020).
  `pai_job_table.csv`, `pai_task_table.csv` and `pai_machine_spec.csv` have no headers. PAI jobs
  have several roles, whose tasks may request shares of GPUs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Node, Queue
from optsched.cluster.trace import TraceProblem
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.published_jobs import (
    MOST_NODES,
    MOST_TASKS,
    NOTHING,
    Table,
    TaskGroup,
    TracedJob,
    build_trace,
    equal_nodes,
    equal_tasks,
    folder_name,
    instant_ms,
    require_nodes,
)
from optsched.units import CPU, GPU, MAX_GPUS_ON_NODE, MAX_ON_NODE, MEMORY
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found
    from optsched.formats.traces.published_jobs import Row


_GIB: Final = 2**30
_BACKWARDS: Final = "is before its start_time"

# --- Philly ---------------------------------------------------------------------------------------

PHILLY_MACHINES: Final = "cluster_machine_list"

_PHILLY_MACHINE: Final = Table("Machine", ("machineId", "number of GPUs"), "machineId")
_NO_TIME: Final = "is not a time: write YYYY-MM-DD HH:MM:SS"
_NO_MACHINES: Final = (
    "is not a list of machines with gpus: write the name of each GPU, such as gpus: [gpu0]"
)
_NEVER_RAN: Final = "never ran, so its number of GPUs and its duration are unknown"


class _InvalidJob(Exception):
    """An error in a job; the arguments of the exception are the field, its value and a message."""

    def __init__(self, path: str, value: object, message: str) -> None:
        self.path, self.value, self.message = path, value, message


def read_philly(file: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read a job log of the Philly trace; each virtual cluster becomes a queue.

    For each machine that a job's last attempt used, the job has one task. The duration of a job is
    the total duration of its attempts. A job that was still running when the trace ended runs
    forever. Jobs are sorted by submission time.

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
        candidates = [file.with_name(PHILLY_MACHINES + ending) for ending in ("", ".csv")]
        listed = next((path for path in candidates if path.exists()), None)
        if listed is None:
            raise InstanceError(
                f"{file}: its folder has no {PHILLY_MACHINES}, and no nodes are given"
            )
        rows = [
            (row, row.integer("number of GPUs", MAX_GPUS_ON_NODE))
            for row in _PHILLY_MACHINE.read(listed, problems)
        ]
        machines = tuple(
            Node(row.name, amounts({GPU: gpus})) for row, gpus in rows if row.name and gpus
        )
        nodes = require_nodes(listed, machines, problems, "machines with GPUs, one per row")
    jobs = sorted(_philly_jobs(file, problems), key=lambda job: (job.at_ms, job.name))
    return build_trace(file.stem, jobs, nodes, problems)


def _philly_jobs(file: Path, problems: list[TraceProblem]) -> Iterator[TracedJob]:
    try:
        listed = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InstanceError(f"{file}: this job log cannot be read: {why_unreadable(e)}") from e
    if not isinstance(listed, list):
        raise InstanceError(f"{file}: not a job log: it must be a list of jobs")
    for number, entry in enumerate(listed):
        where = f"{file.name}[{number}]"
        try:
            yield _philly_job(entry, where)
        except _InvalidJob as error:
            name = str(entry.get("jobid", "")) if isinstance(entry, dict) else ""
            value = repr(error.value) if error.path else None
            problem = TraceProblem("Job", name, error.path, value, error.message, where)
            problems.append(problem)


def _philly_job(entry: object, where: str) -> TracedJob:
    if not isinstance(entry, dict):
        raise _InvalidJob("", None, "is not an object with jobid, vc, submitted_time and attempts")
    for field in ("jobid", "vc"):
        value = entry.get(field)
        if not isinstance(value, str) or value in NOTHING:
            raise _InvalidJob(field, value, "is not a name")
    attempts = entry.get("attempts")
    if not isinstance(attempts, list):
        raise _InvalidJob("attempts", attempts, "is not a list")
    if not attempts:
        raise _InvalidJob("", None, _NEVER_RAN)
    return TracedJob(
        name=entry["jobid"],
        at_ms=_time(entry, "submitted_time", ""),
        duration_ms=_duration_ms(attempts),
        task_groups=_tasks_of_attempt(attempts),
        queue=entry["vc"],
        user=user if isinstance(user := entry.get("user"), str) and user not in NOTHING else "",
        where=where,
    )


def _time(entry: Mapping[str, Any], field: str, path: str) -> int:
    found = instant_ms(str(entry.get(field)))
    if found is None:
        raise _InvalidJob(path + field, entry.get(field), _NO_TIME)
    return found


def _has_time(attempt: object, field: str) -> bool:
    return isinstance(attempt, dict) and str(attempt.get(field)) not in NOTHING


def _duration_ms(attempts: Sequence[Any]) -> int | None:
    """Return the total duration of the complete attempts in ms, or None for an unfinished job."""
    if _has_time(attempts[-1], "start_time") and not _has_time(attempts[-1], "end_time"):
        return None
    total, is_known = 0, False
    for i, attempt in enumerate(attempts):
        if _has_time(attempt, "start_time") and _has_time(attempt, "end_time"):
            start, end = (_time(attempt, f, f"attempts[{i}].") for f in ("start_time", "end_time"))
            if end < start:
                raise _InvalidJob(f"attempts[{i}].end_time", attempt["end_time"], _BACKWARDS)
            total, is_known = total + end - start, True
    if not is_known:
        raise _InvalidJob(
            "attempts", len(attempts), "has no attempt with both start_time and end_time"
        )
    return total


def _tasks_of_attempt(attempts: Sequence[Any]) -> tuple[TaskGroup, ...]:
    """Return one task for each machine of the last attempt that used machines."""
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
            raise _InvalidJob(path, detail, _NO_MACHINES)
        numbers = list(map(len, listed))
        return tuple(
            TaskGroup(numbers.count(n), {GPU: n}) for n in sorted(set(numbers), reverse=True)
        )
    raise _InvalidJob("", None, _NEVER_RAN)


# --- Helios and Acme ------------------------------------------------------------------------------

GPU_NUMBERS: Final = "cluster_gpu_number.csv"

ACME_COLUMNS: Final = ("job_id", "gpu_num", "cpu_num", "node_num", "submit_time", "duration")
HELIOS_COLUMNS: Final = (*ACME_COLUMNS, "vc")
_HELIOS: Final = Table("Job", HELIOS_COLUMNS, "job_id")
_ACME: Final = Table("Job", ACME_COLUMNS, "job_id")
_GPUS_OF_A_NODE: Final = 8
_MOST_GPUS: Final = _GPUS_OF_A_NODE * MOST_NODES
_NO_GPUS: Final = "virtual clusters, one per column, with 8 GPUs or more on the first day"
_NO_NODE: Final = "is not a valid number of nodes: write 1 or more"


def read_helios(file: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read a Helios cluster's log as a trace in which each virtual cluster is a queue.

    Parameters
    ----------
    file
        A file `cluster_log.csv`.
    nodes
        The nodes for the replay. If `nodes` is None, nodes with eight GPUs each are generated from
        the first day in `cluster_gpu_number.csv` in the same folder. The deserved share of a queue
        is then the number of GPUs that its virtual cluster has on the first day.

    Raises
    ------
    InstanceError
        A file does not exist or is a different table, or there are no nodes.

    """
    problems: list[TraceProblem] = []
    queues: tuple[Queue, ...] = ()
    if nodes is None:
        table = file.with_name(GPU_NUMBERS)
        try:
            with table.open(encoding="utf-8-sig") as lines:
                header = lines.readline().rstrip("\r\n").split(",")
        except (OSError, UnicodeDecodeError) as e:
            message = (
                f"{table}: the GPUs of each virtual cluster cannot be read, and no nodes are given"
            )
            raise InstanceError(f"{message}: {why_unreadable(e)}") from e
        names = tuple(name for name in header if name not in ("date", "total", ""))
        row = next(Table("Day", ("date", *names), "date").read(table, problems), None)
        if row is None:
            raise InstanceError(f"{table}: this table contains no day")
        queues = tuple(
            Queue(name, deserved=((GPU, row.integer(name, _MOST_GPUS)),)) for name in names
        )
        gpus = sum(amount for queue in queues for _, amount in queue.deserved)
        offered = equal_nodes(gpus // _GPUS_OF_A_NODE, {GPU: _GPUS_OF_A_NODE})
        nodes = require_nodes(table, offered, problems, _NO_GPUS)
    jobs = sorted(_slurm_jobs(_HELIOS, file, problems), key=lambda job: job.at_ms)
    return build_trace(folder_name(file.parent), jobs, nodes, problems, queues)


def read_acme(file: Path, nodes: Sequence[Node]) -> Found:
    """Read the log of one Acme cluster, `trace_seren.csv` or `trace_kalos.csv`.

    Raises
    ------
    InstanceError
        A file does not exist or is a different table, or there are no nodes.

    """
    problems: list[TraceProblem] = []
    jobs = sorted(_slurm_jobs(_ACME, file, problems), key=lambda job: job.at_ms)
    return build_trace(file.stem, jobs, nodes, problems)


def _slurm_jobs(table: Table, file: Path, problems: list[TraceProblem]) -> Iterator[TracedJob]:
    for row in table.read(file, problems):
        row.text("job_id")
        demands = {GPU: row.integer("gpu_num"), CPU: round(1000 * row.number("cpu_num"))}
        num_nodes = row.integer("node_num", MOST_TASKS)
        if not num_nodes and row.is_sound:
            row.reject("node_num", _NO_NODE)
        at_ms = row.instant_ms("submit_time")
        if row.has_value("start_time") and row.has_value("end_time"):
            start_ms, end_ms = row.instant_ms("start_time"), row.instant_ms("end_time")
            if end_ms < start_ms and row.is_sound:
                row.reject("end_time", _BACKWARDS)
        if row.has_value("mem_per_pod_GB"):
            demands[MEMORY] = round(row.number("mem_per_pod_GB") * _GIB) * num_nodes
        job = TracedJob(
            name=row.name,
            at_ms=at_ms,
            duration_ms=row.milliseconds("duration"),
            task_groups=equal_tasks(num_nodes, demands),
            queue=row.text("vc") if "vc" in row.cells else "default",
            user=row.text("user") if row.has_value("user") else "",
            where=row.where,
        )
        if row.is_sound:
            yield job


# --- PAI ------------------------------------------------------------------------------------------

PAI_JOBS: Final = "pai_job_table.csv"
PAI_TASKS: Final = "pai_task_table.csv"
PAI_MACHINES: Final = "pai_machine_spec.csv"

_PAI_JOB: Final = Table(
    "Job",
    ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "job_name",
    is_headless=True,
)
_PAI_TASK: Final = Table(
    "Task",
    (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
    "job_name",
    is_headless=True,
)
_PAI_MACHINE: Final = Table(
    "Machine", ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"), "machine", is_headless=True
)
_WHOLE: Final = 100
_NOT_A_SHARE: Final = f"is neither a share of one GPU nor whole GPUs: {_WHOLE} stands for one GPU"
_NO_TASK_RAN: Final = "is unknown: no task of the job has a start_time"


@dataclass(frozen=True, slots=True)
class _PaiRole:
    """One row of the task table; times are in milliseconds, or None if missing."""

    group: TaskGroup
    start_ms: int | None
    end_ms: int | None


def read_pai(folder: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read the jobs, tasks and machines in a folder.

    A job arrives at its submission time, the start_time in the job table. The job has all instances
    of all its tasks, and runs from the first start to the last end of its tasks. An invalid task is
    reported, and its whole job is skipped, because the job would differ without the task.

    Parameters
    ----------
    folder
        The folder with the job, task and machine tables.
    nodes
        The nodes for the replay, or None to use the nodes in the machine table.

    Raises
    ------
    InstanceError
        A file does not exist, or there are no nodes.

    """
    problems: list[TraceProblem] = []
    if nodes is None:
        file = folder / PAI_MACHINES
        machines: list[Node] = []
        for row in _PAI_MACHINE.read(file, problems):
            model = row.text("gpu_type")
            offers = {
                GPU: row.integer("cap_gpu", MAX_GPUS_ON_NODE),
                CPU: round(1000 * row.number("cap_cpu", most=MAX_ON_NODE // 1000)),
                MEMORY: round(row.number("cap_mem", most=MAX_ON_NODE // _GIB) * _GIB),
            }
            labels = {GPU_MODEL_LABEL: model}
            node = Node(row.text("machine"), amounts(offers), labels=labels, gpu_model=model)
            if row.is_sound:
                machines.append(node)
        nodes = require_nodes(file, tuple(machines), problems, "one machine per row")
    roles: dict[str, list[_PaiRole]] = defaultdict(list)
    invalid: set[str] = set()
    for row in _PAI_TASK.read(folder / PAI_TASKS, problems):
        role = _pai_role(row)
        if row.is_sound:
            roles[row.name].append(role)
        else:
            invalid.add(row.name)
    jobs = [
        job
        for row in _PAI_JOB.read(folder / PAI_JOBS, problems)
        for job in _pai_job(row, roles, invalid)
    ]
    if not jobs:
        raise InstanceError(f"{folder}: no job of these tables can be read", ())
    return build_trace(
        folder_name(folder), sorted(jobs, key=lambda j: (j.at_ms, j.name)), nodes, problems
    )


def _pai_role(row: Row) -> _PaiRole:
    row.text("job_name")
    row.require("gpu_type")
    number = row.integer("inst_num", MOST_TASKS)
    percent = row.number("plan_gpu") if row.has_value("plan_gpu") else 0
    if percent > _WHOLE and percent % _WHOLE:
        row.reject("plan_gpu", _NOT_A_SHARE)
    demands = {
        GPU: int(percent // _WHOLE),
        CPU: round(10 * row.number("plan_cpu")) if row.has_value("plan_cpu") else 0,
        MEMORY: round(row.number("plan_mem") * _GIB) if row.has_value("plan_mem") else 0,
    }
    start_ms, end_ms = (
        row.milliseconds(column) if row.has_value(column) else None
        for column in ("start_time", "end_time")
    )
    if start_ms is not None and end_ms is not None and end_ms < start_ms and row.is_sound:
        row.reject("end_time", _BACKWARDS)
    model = row.cells["gpu_type"] if row.has_value("gpu_type") and percent else None
    return _PaiRole(
        TaskGroup(
            number=number,
            demands=demands,
            role=row.text("task_name"),
            gpu_milli=round(10 * (percent % _WHOLE)),
            models=(model,) if model else (),
        ),
        start_ms,
        end_ms,
    )


def _pai_job(row: Row, roles: dict[str, list[_PaiRole]], invalid: set[str]) -> Iterator[TracedJob]:
    at_ms, name = row.milliseconds("start_time"), row.text("job_name")
    row.require("end_time")
    user = row.text("user") if row.has_value("user") else ""
    own_roles = roles.get(name, [])
    if name in invalid or not row.is_sound:
        return
    timed = [(r.start_ms, r.end_ms) for r in own_roles if r.start_ms is not None]
    if not timed:
        row.reject("end_time", _NO_TASK_RAN)
        return
    ends = [end for _, end in timed if end is not None]
    is_over = len(ends) == len(timed)
    duration_ms = max(ends) - min(start for start, _ in timed) if is_over else None
    yield TracedJob(
        name, at_ms, duration_ms, tuple(r.group for r in own_roles), user=user, where=row.where
    )
