"""Trace tables with invalid cells, rows or bytes cause a message with file and row, not a crash."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.gavel import THROUGHPUTS
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.formats.traces.trace_file import read_published_trace, read_trace_file
from optsched.policy.load import load_policy
from optsched.study.packing.vbp import parse_vbp
from optsched.study.reassignment.roadef import parse_reassignment
from optsched.study.simulation.simulator import Options, Simulation
from optsched.units import CPU, GPU, MEMORY
from tests.formats.test_roadef import MODEL, START

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.trace import Trace

NODES = equal_nodes(2, {GPU: 8, CPU: 96_000, MEMORY: 768 * 2**30, "pods": 110})
NASTY = (
    *("", " ", "NaN", "nan", "inf", "-inf", "Infinity", "1e400", "-1e400", "1E-400", "-1", "-0"),
    *("0", "0.5", "1e3", "9007199254740993", "99999999999999999999999", "1_000", "٣", "0x10", "½"),
    *("2020-06-09 18:41:01", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "2020-13-40 99:99:99"),
    *("2020-06-09T18:41:01+99:99", "2020-06-09 18:41:01-23:59", "None", "null", '"', "'", "a,b"),
    *("\x00", "\u2028", "é" * 200, "default/x", "../x", "a|b", "1" * 5000, "true", "[]", "{}"),
)

OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\n"
OPENB_PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,,LS,Running,427061,12902960,427061
openb-pod-0002,6000,12288,0,0,,BE,Succeeded,427070,12902960,427080
"""
GAVEL = "\n".join(
    f"ResNet-18 (batch size 16)\tpython3 main.py\t--num_steps\t1\t{steps}\t{at}\t{gpus}"
    for steps, at, gpus in ((3600, 0.0, 1), (7200, 60.5, 2), (100, 61, 8))
)
RATES = json.dumps({"v100": {str(("ResNet-18 (batch size 16)", 1)): {"null": 2.0}}})
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vcA,1,4,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
2,u2,vcB,12,16,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:28,2020-06-09 18:45:37,249,1
3,u2,vcB,2,16,1,FAILED,2020-06-09 18:42:27,2020-06-09 18:42:28,2020-06-09 18:45:37,249,1
"""
HELIOS_GPUS = "date,vcA,vcB,total\n2020-06-01,8,16,24\n"
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time,start_time,duration
dlc1,u1,1,8,32,100.0,Eval,COMPLETED,2023-03-01 00:00:02+08:00,2023-03-01 00:00:05+08:00,60
dlc2,u2,2,16,64,100.0,Eval,COMPLETED,2023-03-01 00:01:02+08:00,2023-03-01 00:01:05+08:00,600
"""
PAI_JOBS = "j1,a,u1,Terminated,100.0,200.0\nj2,b,u2,Terminated,150.0,300.0\n"
PAI_TASKS = (
    "j1,worker,2,Terminated,110.0,200.0,600.0,29.3,50.0,MISC\n"
    "j2,ps,1,Terminated,160.0,290.0,600.0,10,,CPU\n"
    "j2,worker,1,Terminated,161.0,300.0,600.0,10,200.0,MISC\n"
)
PAI_MACHINES = "m1,MISC,96,512,8\nm2,MISC,96,512,8\n"
PHILLY = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": f"application_{i}",
            "user": "ce2f4c",
            "submitted_time": f"2017-10-07 0{i}:00:00",
            "attempts": [
                {
                    "start_time": f"2017-10-07 0{i}:10:00",
                    "end_time": f"2017-10-07 0{i}:50:00",
                    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
                }
            ],
        }
        for i in range(3)
    ],
    indent=0,
)
PHILLY_MACHINES = "machineId,number of GPUs, single GPU mem\nm1,8,24GB\nm2,2,12GB\n"
OWN = """\
apiVersion: optsched.io/v1alpha1
kind: Trace
nodes:
- {name: gpu, count: 2, allocatable: {cpu: 96, nvidia.com/gpu: 8}}
queues:
- {name: research, weight: 2, deserved: {cpu: 10}}
jobs:
- {name: research/train, at: 10m, duration: 2h, queue: research, tasks: 4, user: ann}
- {name: b, at: 20m, duration: 45m, priority: 3, minAvailable: 1, request: {nvidia.com/gpu: 1}}
nodeEvents:
- {at: 1h, node: gpu-0, change: down}
- {at: 2h, node: gpu-0, change: up}
"""

FORMATS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "openb": ({"pods.csv": OPENB_PODS, "openb_node_list_gpu_node.csv": OPENB_NODES}, "pods.csv"),
    "gavel": ({"vc.trace": GAVEL, THROUGHPUTS: RATES}, "vc.trace"),
    "helios": (
        {"cluster_log.csv": HELIOS, "cluster_gpu_number.csv": HELIOS_GPUS},
        "cluster_log.csv",
    ),
    "acme": ({"trace_seren.csv": ACME}, "trace_seren.csv"),
    "pai": (
        {
            "pai_job_table.csv": PAI_JOBS,
            "pai_task_table.csv": PAI_TASKS,
            "pai_machine_spec.csv": PAI_MACHINES,
        },
        ".",
    ),
    "philly": (
        {"cluster_job_log": PHILLY, "cluster_machine_list": PHILLY_MACHINES},
        "cluster_job_log",
    ),
    "own": ({"trace.yaml": OWN}, "trace.yaml"),
}


def read(name: str, folder: Path) -> tuple[Trace, tuple[object, ...]]:
    path = folder / FORMATS[name][1]
    if name == "own":
        return read_trace_file(path)
    return read_published_trace(name, path, NODES if name in ("gavel", "acme") else None)


@st.composite
def broken(draw: st.DrawFn, text: str) -> bytes:
    """Draw a text with changed cells, or with cut, repeated, swapped or missing lines."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(("cell", "cut", "twice", "swap", "drop", "byte")))
        if kind == "cell":
            mark = next((m for m in ("\t", ",", ": ") if m in lines[at]), ",")
            cells = lines[at].split(mark)
            cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(NASTY))
            lines[at] = mark.join(cells)
        elif kind == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        elif kind == "twice":
            lines.insert(at, lines[at])
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "byte":
            raw = "\n".join(lines).encode()
            where = draw(st.integers(0, max(len(raw) - 1, 0)))
            noise = bytes([draw(st.integers(0, 255))])
            return raw[:where] + noise + raw[where + 1 :]
    return "\n".join(lines).encode()


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)


def check_sound(trace: Trace) -> None:
    """Check that a trace can be replayed and is sorted by time."""
    times = [a.at_ms for a in trace.arrivals]
    assert times == sorted(times)
    assert all(0 <= a.at_ms < 2**63 for a in trace.arrivals)
    assert all(a.duration_ms is None or 0 <= a.duration_ms < 2**63 for a in trace.arrivals)
    assert all(amount >= 0 for n in trace.nodes for _, amount in n.allocatable)
    small = all(a.at_ms < 10**11 and (a.duration_ms or 0) < 10**11 for a in trace.arrivals)
    if small and sum(len(a.gang.tasks) for a in trace.arrivals) < 100:
        policy = load_policy("volcano-compatible", lambda path: path.read_text())
        simulation = Simulation(trace, policy, Options(period_ms=10**8, until_ms=10**10))
        for _ in range(3):
            simulation.step()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_rows_are_whole_as_they_are(name: str, tmp_path: Path) -> None:
    write(tmp_path, FORMATS[name][0])
    trace, problems = read(name, tmp_path)
    assert problems == ()
    assert len(trace.arrivals) in (2, 3)
    check_sound(trace)


@pytest.mark.parametrize(
    ("name", "table", "content"),
    [
        ("helios", "cluster_gpu_number.csv", "date\n2020-06-01,8,16,24\n"),
        ("helios", "cluster_gpu_number.csv", "date,vcA,total\n2020-06-01,7,7\n"),
        ("pai", "pai_machine_spec.csv", "m1,MISC,many,512,8\n"),
        ("philly", "cluster_machine_list", "machineId,number of GPUs\nm1,0\n"),
    ],
)
def test_a_table_without_nodes_is_named(
    name: str, table: str, content: str, tmp_path: Path
) -> None:
    write(tmp_path, {**FORMATS[name][0], table: content})
    with pytest.raises(InstanceError) as refused:
        read(name, tmp_path)
    assert f"{tmp_path / table}: lists no nodes: it needs " in str(refused.value)


HUGE = "900719925474"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "said"),
    [
        ("openb", 1, "262144", "9" * 5000, "write at most 4294967296"),
        ("openb", 1, ",2,", f",{HUGE},", "gpu: "),
        ("openb", 0, "460", "9" * 5000, "gpu_milli: "),
        ("helios", 1, "8,16", f"8,{HUGE}", "write at most 800000"),
        ("helios", 0, "12,16,2,", f"12,16,{HUGE},", "write at most 150000"),
        ("acme", 0, "u2,2,", f"u2,{HUGE},", "node_num: "),
        ("gavel", 0, "61\t8", f"61\t{HUGE}", "scale_factor: "),
        ("gavel", 0, "61\t8", "61\t\u0668", "scale_factor: "),
        ("helios", 0, "12,16,2,", "1_2,16,2,", "gpu_num: "),
        ("pai", 2, "512,8", f"512,{HUGE}", "cap_gpu: "),
        ("pai", 2, "512", HUGE, "cap_mem: "),
        ("pai", 1, "worker,2", f"worker,{HUGE}", "inst_num: "),
        ("philly", 1, "m1,8", f"m1,{HUGE}", "number of GPUs: "),
        ("own", 0, "count: 2", f"count: {HUGE}", "nodes[0].count: "),
        ("own", 0, "cpu: 96, nvidia.com/gpu: 8", f"nvidia.com/gpu: {HUGE}", "at most 65536"),
        ("own", 0, "tasks: 4", f"tasks: {HUGE}", "jobs[0].tasks: "),
    ],
)
def test_what_no_cluster_holds_is_told_and_not_made(
    name: str, file: int, old: str, new: str, said: str, tmp_path: Path
) -> None:
    """A trace with 10¹² GPUs or tasks would exhaust memory if it were read."""
    files = dict(FORMATS[name][0])
    table = list(files)[file]
    assert old in files[table]
    write(tmp_path, {**files, table: files[table].replace(old, new, 1)})
    try:
        told = "\n".join(map(str, read(name, tmp_path)[1]))
    except InstanceError as e:
        told = str(e)
    assert said in told
    assert table in told


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(deadline=None)
@given(data=st.data())
def test_whatever_is_wrong_is_told_by_file_and_row(name: str, data: st.DataObject) -> None:
    files = dict[str, str | bytes](FORMATS[name][0])
    victim = data.draw(st.sampled_from(sorted(files)))
    files[victim] = data.draw(broken(str(files[victim])))
    with TemporaryDirectory() as folder:
        write(Path(folder), files)
        try:
            trace, problems = read(name, Path(folder))
        except InstanceError as e:
            told = str(e)
        else:
            told = ""
    if told:
        assert any(file in told for file in (folder, *files)), told
        return
    check_sound(trace)
    for problem in problems:
        where = getattr(problem, "where", "")
        counted = "nothing that the nodes offer" in str(problem) or "occurs more than once" in str(
            problem
        )
        assert counted or any(where.startswith(f"{f}") for f in files), problem


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ("7,12537496,3", "scheduled_time: '3' is before its creation_time"),
        ("0,2,5", "deletion_time: '2' is before its scheduled_time"),
        ("0,9", "scheduled_time is missing: the row ends before this column"),
        ("0,9,", "scheduled_time: '' is empty: the pod never ran"),
        ("1e400,9,1", "creation_time: '1e400' is not a number of seconds"),
    ],
)
def test_times_of_pods_that_contradict_each_other(times: str, told: str, tmp_path: Path) -> None:
    files = dict(FORMATS["openb"][0])
    files["pods.csv"] = OPENB_PODS.replace("Running,0,12537496,0", f"Running,{times}")
    write(tmp_path, files)
    trace, problems = read("openb", tmp_path)
    assert len(trace.arrivals) == 2
    assert str(problems[0]).startswith("pods.csv:2: Pod openb-pod-0000: ")
    assert told in str(problems[0])


VBP = "2\n10\n10\n3\n3 4 2\n5 5 1\n1 9 4\n"


@settings(deadline=None)
@given(data=st.data())
def test_instances_end_the_reading_with_the_place_of_what_is_wrong(data: st.DataObject) -> None:
    for read_one, text in (
        (lambda t: parse_vbp(t, "a.vbp"), VBP),
        (lambda t: parse_reassignment(t, START, "model"), MODEL),
        (lambda t: parse_reassignment(MODEL, t, "model"), START),
    ):
        given_text = data.draw(broken(text)).decode(errors="replace")
        try:
            read_one(given_text)
        except InstanceError as e:
            told = str(e)
        else:
            told = "read: as it is"
        assert ": " in told
