from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.amounts import amount_of
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Gang
from optsched.cluster.task import DeviceRequest, Task, TaskShape, TaskStatus
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import read_instance
from optsched.formats.traces.openb_cluster import read_openb
from optsched.units import GPU
from tests.support.effort import nightly_except
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.snapshot import Snapshot

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1024,2,T4\nn0,32000,512,0,\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time\n"


def trace(folder: Path, pods: str, nodes: str = NODES) -> Path:
    (folder / "openb_node_list_gpu_node.csv").write_text(nodes)
    path = folder / "openb_pod_list_mine.csv"
    path.write_text(pods)
    return path


def test_nodes(tmp_path: Path):
    snapshot, problems = read_openb(trace(tmp_path, f"{HEAD}p,1000,1,0,0,,LS,Running,5\n"))
    assert problems == ()
    plain, gpus = snapshot.nodes
    assert (plain.name, plain.labels, plain.gpu_model) == ("n0", {}, "")
    assert plain.allocatable == (("cpu", 32000), ("memory", 2**29))
    assert gpus.allocatable == (("cpu", 64000), ("memory", 2**30), (GPU, 2))
    assert gpus.labels == {"nvidia.com/gpu.product": "T4"}
    assert gpus.gpu_model == "T4"


@pytest.mark.parametrize(
    ("gpus", "amount", "device"),
    [
        ("0,0", 0, None),
        ("1,1000", 1, None),
        ("8,1000", 8, None),
        ("1,460", 0, DeviceRequest(1, 460)),
    ],
)
def test_gpus_of_a_pod(tmp_path: Path, gpus: str, amount: int, device: DeviceRequest | None):
    snapshot, problems = read_openb(trace(tmp_path, f"{HEAD}p,1000,1,{gpus},,LS,Running,5\n"))
    assert problems == ()
    shape = snapshot.gangs[0].tasks[0].shape
    assert amount_of(shape.request, GPU) == amount
    assert shape.device == device


def test_every_pod_is_a_gang_of_its_own(tmp_path: Path):
    path = trace(tmp_path, f"{HEAD}p,1000,1,1,1000,T4|P100,LS,Running,5\nq,1,0,0,0,,BE,Failed,7\n")
    snapshot, _ = read_openb(path)
    models = Requirement("nvidia.com/gpu.product", Operator.IN, ("P100", "T4"))
    shape = TaskShape(
        (("cpu", 1000), ("memory", 2**20), (GPU, 1)),
        node_affinity=NodeSelector((NodeTerm((models,)),)),
    )
    key = "default/pod:p"
    task = Task("default/p", shape, TaskStatus.PENDING, gang=key, created_ms=5000)
    assert snapshot.gangs[0] == Gang(
        key,
        min_member=1,
        created_ms=5000,
        waiting_since_ms=5000,
        tasks=(task,),
        is_implicit=True,
    )
    assert snapshot.taken_ms == 7000
    assert [q.name for q in snapshot.queues] == ["default", "root"]


def test_a_list_without_times_keeps_its_order(tmp_path: Path):
    path = trace(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nb,1,1,0,0\na,1,1,0,0\n")
    gangs = read_openb(path)[0].gangs
    assert [(g.tasks[0].name, g.created_ms) for g in gangs] == [("a", 1), ("b", 0)]


def test_bad_rows_are_told_and_the_others_are_kept(tmp_path: Path):
    rows = [
        "a,x,1,0,0,,LS,Running,1",
        "b,1,1,1,1200,,LS,Running,1",
        "c,1,1,2,500,,LS,Running,1",
        "d,1,1",
        ",1,1,0,0,,LS,Running,1",
        "e,1,1,0,0,,LS,Running,1",
        "e,2,1,0,0,,LS,Running,1",
        "f,1,1,0,0,,LS,Running,-1",
    ]
    found = read_instance(trace(tmp_path, HEAD + "\n".join(rows)))
    assert [g.tasks[0].shape.request[0] for g in found.snapshot.gangs] == [("cpu", 2)]
    assert [str(p) for p in found.problems] == [
        'openb_pod_list_mine.csv:2: Pod a: cpu_milli: "x" is not a whole number: write 0 or more',
        'openb_pod_list_mine.csv:3: Pod b: gpu_milli: "1200" is not a share of one GPU: '
        "write 1 to 1000",
        'openb_pod_list_mine.csv:4: Pod c: gpu_milli: "500" requests a share of several GPUs: '
        "write 1000, or 1 as num_gpu",
        "openb_pod_list_mine.csv:5: Pod d: num_gpu: null is not a whole number: write 0 or more",
        "openb_pod_list_mine.csv:5: Pod d: gpu_milli: null is not a whole number: write 0 or more",
        'openb_pod_list_mine.csv:6: Pod: name: "" is empty: every row needs a name',
        'openb_pod_list_mine.csv:8: Pod e: name: "e" occurs more than once; '
        "the last occurrence applies",
        "openb_pod_list_mine.csv:9: Pod f: creation_time: "
        '"-1" is not a whole number: write 0 or more',
    ]


def test_the_node_list_may_be_elsewhere(tmp_path: Path):
    path = trace(tmp_path, f"{HEAD}p,1000,1,0,0,,LS,Running,5\n")
    other = tmp_path / "mine.csv"
    other.write_text("sn,cpu_milli,memory_mib,gpu,model\nz,1,1,0,\n")
    assert [n.name for n in read_openb(path, other)[0].nodes] == ["z"]


@pytest.mark.parametrize(
    ("pods", "nodes", "message"),
    [
        ("name,cpu\n", NODES, "an openb pod list: it has no column cpu_milli, memory_mib, num_gpu"),
        (HEAD, NODES, "openb_pod_list_mine.csv: this table has no valid row"),
        (f"{HEAD}p,1,1,0,0,,LS,Running,5\n", "sn\n", "an openb node list: it has no column cpu"),
        ("", NODES, "not an openb pod list"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, pods: str, nodes: str, message: str):
    with pytest.raises(InstanceError) as caught:
        read_openb(trace(tmp_path, pods, nodes))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["n" * 200_000, f"{HEAD}{'p' * 200_000},1,1,0,0,,LS,Running,5\n"])
def test_a_value_without_end_is_told_with_its_line(tmp_path: Path, text: str):
    path = tmp_path / "pods.csv"
    path.write_text(text)
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,8,V100M16\n"
    )
    with pytest.raises(
        InstanceError, match=r"pods\.csv:[0-2]: this pod list cannot be read: field"
    ):
        read_openb(path)


def test_a_missing_node_list_is_named(tmp_path: Path):
    path = tmp_path / "pods.csv"
    path.write_text(f"{HEAD}p,1,1,0,0,,LS,Running,5\n")
    with pytest.raises(InstanceError, match=r"pods\.csv: its folder has no node list openb_node"):
        read_openb(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a,b\n1,2\n", "not an openb pod list: it has no column"), (b"\xff\xfe\n", "cannot be read")],
)
def test_a_file_that_is_no_pod_list_is_told_before_a_missing_node_list(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes(content)
    with pytest.raises(InstanceError, match=message):
        read_openb(path)


# --- the published trace -------------------------------------------------------------------------

REQUEST = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")

# The columns are: pods, GPU demand, CPU demand and memory demand in tenths of a percent. Then
# follow numbers of pods: CPU only, shares, one, two, four and eight GPUs, with models. The last
# column is the number of distinct requests.
PUBLISHED = {
    "default": (8152, 980, 798, 602, 1088, 3078, 3911, 16, 15, 44, 0, 151),
    "cpu050": (7439, 980, 680, 533, 375, 3078, 3911, 16, 15, 44, 0, 141),
    "cpu100": (7853, 980, 750, 574, 789, 3078, 3911, 16, 15, 44, 0, 151),
    "cpu200": (8832, 980, 909, 667, 1768, 3078, 3911, 16, 15, 44, 0, 149),
    "cpu250": (9420, 980, 1004, 726, 2356, 3078, 3911, 16, 15, 44, 0, 151),
    "gpushare40": (8152, 908, 751, 559, 1088, 4001, 3001, 12, 11, 39, 0, 145),
    "gpushare60": (8152, 790, 673, 490, 1088, 5233, 1801, 7, 9, 14, 0, 136),
    "gpushare80": (8152, 710, 628, 450, 1088, 6279, 768, 2, 3, 12, 0, 126),
    "gpushare100": (8152, 636, 577, 405, 1088, 7064, 0, 0, 0, 0, 0, 78),
    "gpuspec10": (8152, 980, 798, 602, 1088, 3078, 3911, 16, 15, 44, 732, 337),
    "gpuspec20": (8152, 980, 798, 602, 1088, 3078, 3911, 16, 15, 44, 1444, 391),
    "gpuspec25": (8152, 980, 798, 602, 1088, 3078, 3911, 16, 15, 44, 1759, 427),
    "gpuspec33": (8152, 980, 798, 602, 1088, 3078, 3911, 16, 15, 44, 2388, 457),
    "multigpu20": (8324, 1141, 889, 684, 1088, 3078, 3911, 54, 52, 141, 0, 151),
    "multigpu30": (8508, 1302, 980, 768, 1088, 3078, 3911, 112, 83, 236, 0, 151),
    "multigpu40": (8746, 1520, 1103, 877, 1088, 3078, 3911, 156, 154, 359, 0, 151),
    "multigpu50": (9061, 1829, 1287, 1053, 1088, 3078, 3911, 222, 206, 556, 0, 151),
}


def counted(snapshot: Snapshot) -> tuple[int, ...]:
    shapes = [gang.tasks[0].shape for gang in snapshot.gangs]
    whole = Counter(amount_of(s.request, GPU) for s in shapes if s.device is None)

    def demand(resource: str, shares_milli: int = 0) -> int:
        offered = sum(amount_of(n.allocatable, resource) for n in snapshot.nodes)
        asked = sum(amount_of(s.request, resource) for s in shapes) + shares_milli / 1000
        return round(asked * 1000 / offered)

    return (
        len(shapes),
        demand(GPU, sum(s.device.milli for s in shapes if s.device)),
        demand("cpu"),
        demand("memory"),
        whole[0],
        sum(s.device is not None for s in shapes),
        whole[1],
        whole[2],
        whole[4],
        whole[8],
        sum(s.node_affinity is not None for s in shapes),
    )


@pytest.mark.parametrize(
    "name",
    nightly_except(PUBLISHED, ["default", "cpu250", "gpushare100", "gpuspec33"]),
)
def test_the_trace_gives_the_published_counts(name: str):
    file = shared("traces/openb", f"openb_pod_list_{name}.csv")
    found = read_instance(file)
    assert found.problems == ()
    *counts, num_classes = PUBLISHED[name]
    assert counted(found.snapshot) == tuple(counts)
    with file.open() as lines:
        rows = {tuple(row[c] for c in REQUEST if c in row) for row in csv.DictReader(lines)}
    assert len(rows) == num_classes
    # The trace counts A|B and B|A as two requests; optsched counts them as one.
    alike = {(*row[:4], *map(frozenset, (text.split("|") for text in row[4:]))) for row in rows}
    shapes = {id(gang.tasks[0].shape) for gang in found.snapshot.gangs}
    assert len(shapes) == len(alike)


def test_the_nodes_of_the_trace():
    nodes = read_openb(shared("traces/openb/openb_pod_list_default.csv"))[0].nodes
    assert len(nodes) == 1213
    assert sum(amount_of(n.allocatable, GPU) for n in nodes) == 6212
    assert sum(amount_of(n.allocatable, "cpu") for n in nodes) == 107_018_000
    assert len({(n.allocatable, n.gpu_model) for n in nodes}) == 15
