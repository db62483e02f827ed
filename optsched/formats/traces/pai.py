"""Alibaba's PAI trace: jobs with several roles, which may request shares of GPUs.

Weng et al., NSDI 2022; alibaba/clusterdata, cluster-trace-gpu-v2020: `pai_job_table.csv`,
`pai_task_table.csv` and `pai_machine_spec.csv`, without headers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Node
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.published_jobs import (
    MOST_TASKS,
    Part,
    Table,
    TracedJob,
    build_trace,
    folder_name,
    listed_nodes,
)
from optsched.units import CPU, GPU, MAX_GPUS_ON_NODE, MAX_ON_NODE, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optsched.cluster.trace import Found, TraceProblem
    from optsched.formats.traces.published_jobs import Row

JOBS: Final = "pai_job_table.csv"
TASKS: Final = "pai_task_table.csv"
MACHINES: Final = "pai_machine_spec.csv"

_JOB: Final = Table(
    "Job",
    ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "job_name",
    is_headless=True,
)
_TASK: Final = Table(
    "Task",
    (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
    "job_name",
    is_headless=True,
)
_MACHINE: Final = Table(
    "Machine", ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"), "machine", is_headless=True
)
_GIB: Final = 2**30
_WHOLE: Final = 100
_NOT_A_SHARE: Final = f"is neither a share of one GPU nor whole GPUs: {_WHOLE} stands for one GPU"
_NEVER_RAN: Final = "is unknown: no task of the job has a start_time"
_BACKWARDS: Final = "is before its start_time"


@dataclass(frozen=True, slots=True)
class _Role:
    """One row of the task table; times are in milliseconds, or None if missing."""

    part: Part
    start_ms: int | None
    end_ms: int | None


def read_pai(folder: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read the jobs, tasks and machines in a folder.

    A job arrives at its submission time, the start_time in the job table. It has all instances of
    all its tasks, and runs from the first start to the last end of its tasks. An invalid task is
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
        file = folder / MACHINES
        machines: list[Node] = []
        for row in _MACHINE.read(file, problems):
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
        nodes = listed_nodes(file, tuple(machines), problems, "one machine per row")
    roles: dict[str, list[_Role]] = defaultdict(list)
    invalid: set[str] = set()
    for row in _TASK.read(folder / TASKS, problems):
        role = _role(row)
        if row.is_sound:
            roles[row.name].append(role)
        else:
            invalid.add(row.name)
    jobs = [job for row in _JOB.read(folder / JOBS, problems) for job in _job(row, roles, invalid)]
    if not jobs:
        raise InstanceError(f"{folder}: no job of these tables can be read", ())
    return build_trace(
        folder_name(folder), sorted(jobs, key=lambda j: (j.at_ms, j.name)), nodes, problems
    )


def _role(row: Row) -> _Role:
    row.text("job_name")
    row.reach("gpu_type")
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
    return _Role(
        Part(
            number=number,
            demands=demands,
            role=row.text("task_name"),
            gpu_milli=round(10 * (percent % _WHOLE)),
            models=(model,) if model else (),
        ),
        start_ms,
        end_ms,
    )


def _job(row: Row, roles: dict[str, list[_Role]], invalid: set[str]) -> Iterator[TracedJob]:
    at_ms, name = row.milliseconds("start_time"), row.text("job_name")
    row.reach("end_time")
    user = row.text("user") if row.has_value("user") else ""
    own_roles = roles.get(name, [])
    if name in invalid or not row.is_sound:
        return
    timed = [(r.start_ms, r.end_ms) for r in own_roles if r.start_ms is not None]
    if not timed:
        row.reject("end_time", _NEVER_RAN)
        return
    ends = [end for _, end in timed if end is not None]
    is_over = len(ends) == len(timed)
    duration_ms = max(ends) - min(start for start, _ in timed) if is_over else None
    yield TracedJob(
        name, at_ms, duration_ms, tuple(r.part for r in own_roles), user=user, where=row.where
    )
