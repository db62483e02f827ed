"""Slurm logs of SenseTime's Helios clusters and of Shanghai AI Lab's Acme clusters.

Hu et al., SC 2021 (S-Lab-System-Group/HeliosData): `cluster_log.csv`, and in the same folder
`cluster_gpu_number.csv` with the GPUs of each virtual cluster by day. Hu et al., NSDI 2024
(InternLM/AcmeTrace): `trace_seren.csv` and `trace_kalos.csv`, which have times with an offset and
no virtual clusters. The GPUs and CPUs in a row are those of a whole job, and are split evenly over
its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.cluster.snapshot import Queue
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.published_jobs import (
    MOST_NODES,
    MOST_TASKS,
    Table,
    TracedJob,
    build_trace,
    equal_nodes,
    equal_tasks,
    folder_name,
    listed_nodes,
)
from optsched.units import CPU, GPU, MEMORY
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optsched.cluster.snapshot import Node
    from optsched.cluster.trace import Found, TraceProblem

GPU_NUMBERS: Final = "cluster_gpu_number.csv"

ACME_COLUMNS: Final = ("job_id", "gpu_num", "cpu_num", "node_num", "submit_time", "duration")
HELIOS_COLUMNS: Final = (*ACME_COLUMNS, "vc")
_HELIOS: Final = Table("Job", HELIOS_COLUMNS, "job_id")
_ACME: Final = Table("Job", ACME_COLUMNS, "job_id")
_GPUS_OF_A_NODE: Final = 8
_MOST_GPUS: Final = _GPUS_OF_A_NODE * MOST_NODES
_GIB: Final = 2**30
_BACKWARDS: Final = "is before its start_time"
_NO_GPUS: Final = "virtual clusters, one per column, with 8 GPUs or more on the first day"
_NO_NODE: Final = "is not a valid number of nodes: write 1 or more"


def read_helios(file: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read a Helios cluster's log as a trace in which each virtual cluster is a queue.

    Parameters
    ----------
    file
        A file `cluster_log.csv`.
    nodes
        The nodes for the replay. If it is None, nodes with eight GPUs each are generated from the
        first day in `cluster_gpu_number.csv` in the same folder, and the deserved share of a queue
        is the number of GPUs of its virtual cluster on that day.

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
        nodes = listed_nodes(table, offered, problems, _NO_GPUS)
    jobs = sorted(_jobs(_HELIOS, file, problems), key=lambda job: job.at_ms)
    return build_trace(folder_name(file.parent), jobs, nodes, problems, queues)


def read_acme(file: Path, nodes: Sequence[Node]) -> Found:
    """Read the log of one Acme cluster, `trace_seren.csv` or `trace_kalos.csv`.

    Raises
    ------
    InstanceError
        A file does not exist or is a different table, or there are no nodes.

    """
    problems: list[TraceProblem] = []
    jobs = sorted(_jobs(_ACME, file, problems), key=lambda job: job.at_ms)
    return build_trace(file.stem, jobs, nodes, problems)


def _jobs(table: Table, file: Path, problems: list[TraceProblem]) -> Iterator[TracedJob]:
    """Yield the jobs in the valid rows of a table."""
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
            parts=equal_tasks(num_nodes, demands),
            queue=row.text("vc") if "vc" in row.cells else "default",
            user=row.text("user") if row.has_value("user") else "",
            where=row.where,
        )
        if row.is_sound:
            yield job
