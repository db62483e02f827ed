"""The openb trace: GPU nodes and pods of a production cluster, as a snapshot or a trace.

Alibaba cluster-trace-gpu-v2023; Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
Node columns: `sn,cpu_milli,memory_mib,gpu,model`.
Pod columns: `name,cpu_milli,memory_mib,num_gpu,gpu_milli` and, except in the multigpu lists,
`gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time` (times in seconds).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from optsched.cluster.amounts import amounts
from optsched.cluster.gpu_accounting import WHOLE
from optsched.cluster.snapshot import DEFAULT_QUEUE, Node, Snapshot
from optsched.cluster.task import DeviceRequest, Task, TaskShape, TaskStatus
from optsched.cluster.trace import TraceProblem
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.codec.pod_groups import implicit_gang
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE, IMPLICIT_PREFIX
from optsched.formats.codec.queues import with_builtin_queues
from optsched.formats.files.diagnostics import InstanceError, ObjectProblem
from optsched.formats.snapshots.object_stores import NAMESPACE_LABEL
from optsched.formats.traces.published_jobs import (
    Table,
    TaskGroup,
    TracedJob,
    build_trace,
    model_affinity,
)
from optsched.units import CPU, GPU, MAX_GPUS_ON_NODE, MAX_ON_NODE, MEMORY
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.trace import Found

NODE_LIST: Final = "openb_node_list_gpu_node.csv"

T = TypeVar("T")

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MIB: Final = 2**20
_MS: Final = 1000
_NOT_A_COUNT: Final = "is not a whole number: write 0 or more"
_TOO_MUCH: Final = "is too large: write at most"
_LAST_S: Final = 10**12
_NOT_A_SHARE: Final = f"is not a share of one GPU: write 1 to {WHOLE}"
_NOT_SHARED: Final = f"requests a share of several GPUs: write {WHOLE}, or 1 as num_gpu"
_NO_NAME: Final = "is empty: every row needs a name"
_TWICE: Final = "occurs more than once; the last occurrence applies"


def read_openb(pods: Path, nodes: Path | None = None) -> tuple[Snapshot, tuple[ObjectProblem, ...]]:
    """Read the nodes and pods of the trace.

    All pods are pending, because the pod list describes arrivals.

    A pod's whole GPUs become a request for `nvidia.com/gpu`, and its share of a GPU becomes a
    device request. GPU models become node labels, and required node affinities of pods. Each
    pod is a gang of its own.

    Parameters
    ----------
    pods
        The path of a pod list of the openb trace.
    nodes
        The node list, or None for `openb_node_list_gpu_node.csv` in the pod list's folder.

    Raises
    ------
    InstanceError
        A list does not exist, is a different table, or has no valid row.

    """
    problems: list[ObjectProblem] = []
    node_file = nodes or _find_node_list(pods)
    machines = {n.name: n for n in _read(node_file, "Node", _NODE_COLUMNS, _node, problems)}
    reader = _PodReader()
    gangs = {g.key: g for g in _read(pods, "Pod", _POD_COLUMNS, reader.gang, problems)}
    if not machines or not gangs:
        empty = pods if machines else node_file
        raise InstanceError(f"{empty}: this table has no valid row", problems)
    snapshot = Snapshot(
        taken_ms=max(gang.created_ms for gang in gangs.values()),
        nodes=tuple(machines[name] for name in sorted(machines)),
        gangs=tuple(gangs[key] for key in sorted(gangs)),
        queues=with_builtin_queues(()),
        namespaces={DEFAULT_NAMESPACE: {NAMESPACE_LABEL: DEFAULT_NAMESPACE}},
    )
    return snapshot, tuple(problems)


def _find_node_list(pods: Path) -> Path:
    path = pods.with_name(NODE_LIST)
    if pods.exists() and not path.exists():
        # If the file is not a pod list, report that instead of the missing node list.
        next(_read(pods, "Pod", _POD_COLUMNS, _pod_row, []), None)
        raise InstanceError(f"{pods}: its folder has no node list {NODE_LIST}")
    return path


def missing_columns(pods: Path) -> tuple[str, ...]:
    """Return the required columns of an openb pod list that are missing in a file's first line.

    The result is empty if the file cannot be read; the reader of its rows reports the error.
    """
    names = read_header(pods)
    return () if names is None else tuple(c for c in _POD_COLUMNS if c not in names)


def read_header(file: Path) -> tuple[str, ...] | None:
    """Return the column names in a CSV file's first line, or None if the file cannot be read."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return tuple(next(csv.reader(lines), ()))
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod in a pod list.

    Attributes
    ----------
    cpu_m, memory_mib
        CPU request in thousandths of a CPU, and memory request in MiB.
    num_gpu, gpu_milli
        Number of requested GPUs, and how many thousandths of each GPU are requested.
    gpu_spec
        Accepted GPU models as in the row, `A|B`; empty if any model is accepted.

    """

    name: str
    cpu_m: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    gpu_spec: str

    @property
    def demands(self) -> dict[str, int]:
        """The requested amounts of CPU, whole GPUs and memory in base units, without zeros."""
        gpus = 0 if self.gpu_share_milli else self.num_gpu
        demands = {CPU: self.cpu_m, GPU: gpus, MEMORY: self.memory_mib * _MIB}
        return {name: amount for name, amount in demands.items() if amount}

    @property
    def gpu_share_milli(self) -> int:
        """The requested share of one GPU in thousandths, or 0 if the pod requests whole GPUs."""
        return self.gpu_milli if self.num_gpu == 1 and self.gpu_milli < WHOLE else 0

    @property
    def models(self) -> tuple[str, ...]:
        """The accepted GPU models, sorted; empty if any model is accepted."""
        return tuple(sorted(set(filter(None, self.gpu_spec.split("|")))))


def read_openb_rows(
    pods: Path, nodes: Path | None = None
) -> tuple[tuple[Node, ...], tuple[PodRow, ...], tuple[ObjectProblem, ...]]:
    """Return a node or pod for each row of a trace, sorted by name; duplicates are kept.

    Parameters and exceptions are those of `read_openb`.
    """
    problems: list[ObjectProblem] = []
    node_file = nodes or _find_node_list(pods)
    machines = sorted(
        _read(node_file, "Node", _NODE_COLUMNS, _node, problems), key=lambda n: n.name
    )
    rows = sorted(_read(pods, "Pod", _POD_COLUMNS, _pod_row, problems), key=lambda r: r.name)
    if not machines or not rows:
        empty = pods if machines else node_file
        raise InstanceError(f"{empty}: this table has no valid row", problems)
    return tuple(machines), tuple(rows), tuple(problems)


@dataclass(frozen=True, slots=True)
class _Row:
    """One table row, with its file and line for problem reports."""

    kind: str
    file: str
    line: int
    cells: Mapping[str, str | None]
    problems: list[ObjectProblem]

    @property
    def name(self) -> str:
        return self.cells.get("name" if self.kind == "Pod" else "sn") or ""

    def reject(self, column: str, message: str) -> None:
        where = f"{self.file}:{self.line}"
        value = self.cells.get(column)
        self.problems.append(ObjectProblem(self.kind, self.name, column, value, message, where))

    def integer(self, column: str, most: int) -> int:
        text = self.cells.get(column) or ""
        if not (text.isdecimal() and text.isascii()):
            self.reject(column, _NOT_A_COUNT)
        elif len(text.lstrip("0")) > len(str(most)) or int(text) > most:
            self.reject(column, f"{_TOO_MUCH} {most}")
        else:
            return int(text)
        return 0


def _read(
    file: Path,
    kind: str,
    columns: tuple[str, ...],
    build: Callable[[_Row], T],
    problems: list[ObjectProblem],
) -> Iterator[T]:
    """Yield the objects built from a table's valid rows, and report the other rows."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InstanceError(
            f"{file}: this {kind.lower()} list cannot be read: {why_unreadable(e)}"
        ) from e
    reader = csv.DictReader(text.splitlines())
    try:
        names = reader.fieldnames or ()
        rows = [(reader.line_num, cells) for cells in reader]
    except csv.Error as e:
        place = f"{file}:{reader.line_num}"
        raise InstanceError(f"{place}: this {kind.lower()} list cannot be read: {e}") from e
    missing = [c for c in columns if c not in names]
    if missing:
        listed = ", ".join(missing)
        raise InstanceError(f"{file}: not an openb {kind.lower()} list: it has no column {listed}")
    seen: set[str] = set()
    for line, cells in rows:
        row = _Row(kind, file.name, line, cells, problems)
        before = len(problems)
        built = build(row)
        if not row.name:
            row.reject(columns[0], _NO_NAME)
        if len(problems) > before:
            continue
        if row.name in seen:
            row.reject(columns[0], _TWICE)
        seen.add(row.name)
        yield built


def _node(row: _Row) -> Node:
    model = row.cells.get("model") or ""
    offered = {
        CPU: row.integer("cpu_milli", MAX_ON_NODE),
        GPU: row.integer("gpu", MAX_GPUS_ON_NODE),
        MEMORY: row.integer("memory_mib", MAX_ON_NODE // _MIB) * _MIB,
    }
    return Node(
        name=row.name,
        allocatable=amounts({name: amount for name, amount in offered.items() if amount}),
        labels={GPU_MODEL_LABEL: model} if model else {},
        gpu_model=model,
    )


class _PodReader:
    """A reader that converts the pods in a pod list.

    Pods with equal requests and constraints share one `TaskShape` object.
    """

    def __init__(self) -> None:
        self._shapes: dict[TaskShape, TaskShape] = {}
        self._rows = 0

    def gang(self, row: _Row) -> Gang:
        """Return the gang of a pod; a missing creation time is replaced by the row number in ms."""
        pod = _pod_row(row)
        shape = TaskShape(
            request=amounts(pod.demands),
            node_affinity=model_affinity(pod.models),
            device=DeviceRequest(1, pod.gpu_share_milli) if pod.gpu_share_milli else None,
        )
        is_dated = bool(row.cells.get("creation_time"))
        created_ms = row.integer("creation_time", _LAST_S) * _MS if is_dated else self._rows
        self._rows += 1
        task = Task(
            key=f"{DEFAULT_NAMESPACE}/{row.name}",
            shape=self._shapes.setdefault(shape, shape),
            status=TaskStatus.PENDING,
            gang=f"{DEFAULT_NAMESPACE}/{IMPLICIT_PREFIX}{row.name}",
            created_ms=created_ms,
        )
        return implicit_gang(task, DEFAULT_QUEUE, 0, {})


def _pod_row(row: _Row) -> PodRow:
    found = PodRow(
        row.name,
        row.integer("cpu_milli", MAX_ON_NODE),
        row.integer("memory_mib", MAX_ON_NODE // _MIB),
        row.integer("num_gpu", MAX_GPUS_ON_NODE),
        row.integer("gpu_milli", MAX_ON_NODE),
        row.cells.get("gpu_spec") or "",
    )
    if found.num_gpu == 1 and not 0 < found.gpu_milli <= WHOLE:
        row.reject("gpu_milli", _NOT_A_SHARE)
    if found.num_gpu > 1 and found.gpu_milli != WHOLE:
        row.reject("gpu_milli", _NOT_SHARED)
    return found


# --- openb ----------------------------------------------------------------------------------------

_TIMES: Final = Table("Pod", ("name", "creation_time", "deletion_time", "scheduled_time"), "name")

_NEVER_RAN: Final = "is empty: the pod never ran, so its duration is unknown"
_TOO_EARLY: Final = "is before its creation_time"
_BACKWARDS: Final = "is before its scheduled_time"


def read_openb_trace(pods: Path, nodes: Sequence[Node] | None = None) -> Found:
    """Read each pod of a list as a job that ran from scheduled_time to deletion_time.

    Parameters
    ----------
    pods
        A pod list with times; the multigpu lists have none.
    nodes
        The nodes for the replay, or None to use `openb_node_list_gpu_node.csv` in the same folder.

    Raises
    ------
    InstanceError
        A list does not exist or is a different table, or there are no nodes.

    """
    found: Sequence[ObjectProblem]
    if nodes is None:
        nodes, rows, found = read_openb_rows(pods)
    else:
        found = []
        rows = tuple(_read(pods, "Pod", _POD_COLUMNS, _pod_row, found))
    problems = [
        TraceProblem(p.kind, p.key, p.path, p.value if p.path else None, p.message, p.where)
        for p in found
    ]
    row_by_name = {row.name: row for row in rows}
    jobs: list[TracedJob] = []
    for row in _TIMES.read(pods, problems):
        if row.name in row_by_name:
            pod, at_ms = row_by_name.pop(row.name), row.milliseconds("creation_time")
            if row.cells["scheduled_time"] is not None and not row.has_value("scheduled_time"):
                row.reject("scheduled_time", _NEVER_RAN)
                continue
            start_ms, end_ms = row.milliseconds("scheduled_time"), row.milliseconds("deletion_time")
            if end_ms < start_ms and row.is_sound:
                row.reject("deletion_time", _BACKWARDS)
            if start_ms < at_ms and row.is_sound:
                row.reject("scheduled_time", _TOO_EARLY)
            if row.is_sound:
                milli, models = pod.gpu_share_milli, pod.models
                group = TaskGroup(number=1, demands=pod.demands, gpu_milli=milli, models=models)
                run_ms = end_ms - start_ms
                jobs.append(TracedJob(row.name, at_ms, run_ms, (group,), where=row.where))
    jobs.sort(key=lambda job: (job.at_ms, job.name))
    return build_trace(pods.stem, jobs, nodes, problems)
