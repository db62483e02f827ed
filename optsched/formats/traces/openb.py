"""The openb trace with its times: pods that come, wait, run and go.

Alibaba cluster-trace-gpu-v2023; `traces.openb_cluster` has the same tables as one snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.cluster.trace import TraceProblem
from optsched.formats.traces.jobs import GPU, Part, TracedJob, played
from optsched.formats.traces.openb_cluster import NODE_LIST, WHOLE_MILLI, read_openb_rows
from optsched.formats.traces.rows import Table
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optsched.cluster.snapshot import Node
    from optsched.cluster.trace import Found
    from optsched.formats.traces.openb_cluster import PodRow
    from optsched.formats.traces.rows import Row

_TIMES: Final = Table("Pod", ("name", "creation_time", "deletion_time", "scheduled_time"), "name")
_MIB: Final = 2**20
_NEVER_RAN: Final = "is empty: it never ran, and how long it would have is not told"
_TOO_EARLY: Final = "is before its creation_time"
_BACKWARDS: Final = "is before its scheduled_time"


def read_openb_trace(
    pods: Path, nodes: Sequence[Node] | None = None, node_list: Path | None = None
) -> Found:
    """Pods of a list, each a job of its own; they ran from scheduled_time to deletion_time.

    Parameters
    ----------
    pods
        A pod list with times; the multigpu lists have none.
    nodes
        What to play it on; None for the node list.
    node_list
        None for `openb_node_list_gpu_node.csv` beside the pod list.

    Raises
    ------
    InstanceError
        A list is not there, is another table, or there are no nodes.

    """
    machines, rows, told = read_openb_rows(pods, node_list or pods.with_name(NODE_LIST))
    problems = [
        TraceProblem(p.kind, p.key, p.path, p.value if p.path else None, p.message, p.where)
        for p in told
    ]
    asked = {row.name: row for row in rows}
    jobs = sorted(_jobs(pods, asked, problems), key=lambda job: (job.at_ms, job.name))
    return played(pods.stem, jobs, machines if nodes is None else nodes, problems)


def _jobs(
    pods: Path, asked: dict[str, PodRow], problems: list[TraceProblem]
) -> Iterator[TracedJob]:
    for row in _TIMES.read(pods, problems):
        if row.name not in asked:
            continue
        found = _job(row, asked.pop(row.name))
        if row.is_sound:
            yield found


def _job(row: Row, demands: PodRow) -> TracedJob:
    at_ms = row.milliseconds("creation_time")
    if row.cells["scheduled_time"] is not None and not row.has_value("scheduled_time"):
        row.reject("scheduled_time", _NEVER_RAN)
        return TracedJob(row.name, at_ms, None, ())
    start_ms, end_ms = row.milliseconds("scheduled_time"), row.milliseconds("deletion_time")
    if end_ms < start_ms and row.is_sound:
        row.reject("deletion_time", _BACKWARDS)
    if start_ms < at_ms and row.is_sound:
        row.reject("scheduled_time", _TOO_EARLY)
    is_share = demands.num_gpu == 1 and demands.gpu_milli < WHOLE_MILLI
    part = Part(
        number=1,
        demands={
            CPU: demands.cpu_m,
            GPU: 0 if is_share else demands.num_gpu,
            MEMORY: demands.memory_mib * _MIB,
        },
        gpu_milli=demands.gpu_milli if is_share else 0,
        models=tuple(sorted(set(filter(None, demands.gpu_spec.split("|"))))),
    )
    return TracedJob(row.name, at_ms, end_ms - start_ms, (part,), where=row.where)
