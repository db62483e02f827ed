"""Tests of Alibaba's PAI trace, and of the openb trace with its times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.cluster.task import DeviceRequest
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.cluster_logs import read_pai
from optsched.formats.traces.openb_cluster import read_openb_trace
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.formats.traces.trace_file import TRACE_FORMATS, read_published_trace
from optsched.units import CPU, GPU, MEMORY
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

JOBS = "j1,i1,u1,Terminated,100.0,400.0\nj2,i2,u2,Running,50.0,\n"
TASKS = (
    "j1,ps,1.0,Terminated,110.0,390.0,600.0,29.296875,,\n"
    "j1,worker,2.0,Terminated,120.0,400.0,400.0,8.0,50.0,V100\n"
    "j2,tensorflow,1.0,Running,60.0,,600.0,1.0,200.0,MISC\n"
)
MACHINES = "m1,V100,64,512,8\nm2,MISC,96,512,2\nm3,CPU,96,512,0\n"


def tables(folder: Path, jobs: str = JOBS, tasks: str = TASKS, machines: str = MACHINES) -> Path:
    for name, text in (("job_table", jobs), ("task_table", tasks), ("machine_spec", machines)):
        (folder / f"pai_{name}.csv").write_text(text)
    return folder


def test_roles_of_a_job_start_together(tmp_path: Path) -> None:
    found, problems = read_pai(tables(tmp_path))
    assert problems == ()
    assert [n.gpu_model for n in found.nodes] == ["V100", "MISC", "CPU"]
    whole, shared_gpu = found.arrivals
    assert (whole.gang.name, whole.at_ms, whole.duration_ms) == ("j2", 0, None)
    assert dict(whole.gang.tasks[0].shape.request)[GPU] == 2
    assert (shared_gpu.at_ms, shared_gpu.duration_ms) == (50_000, 290_000)
    assert [t.role for t in shared_gpu.gang.tasks] == ["ps", "worker", "worker"]
    ps, worker, _ = (t.shape for t in shared_gpu.gang.tasks)
    assert dict(ps.request) == {CPU: 6000, MEMORY: round(29.296875 * 2**30)}
    assert (worker.device, dict(worker.request)[CPU]) == (DeviceRequest(1, 500), 4000)
    assert worker.node_affinity is not None
    assert ps.node_affinity is None


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("j1,more,1.0", "gpu_type is missing: the row ends before this column"),
        ("j1,more,1.0,Terminated,1.0,2.0,100,1,150,V100", "plan_gpu: '150' is neither a share"),
        ("j1,more,1.0,Terminated,9.0,2.0,100,1,50,V100", "end_time: '2.0' is before its start"),
        ("j1,more,-1,Terminated,1.0,2.0,100,1,50,V100", "inst_num: '-1' is not a whole number"),
        ("j1,more,1.5,Terminated,1.0,2.0,100,1,50,V100", "inst_num: '1.5' is not a whole number"),
    ],
)
def test_a_job_of_which_a_task_is_wrong_is_left_out(tmp_path: Path, bad: str, told: str) -> None:
    found, problems = read_pai(tables(tmp_path, tasks=f"{TASKS}{bad}\n"))
    assert [a.gang.name for a in found.arrivals] == ["j2"]
    assert told in str(problems[0])
    assert {p.where for p in problems} == {"pai_task_table.csv:4"}


def test_a_job_without_times_of_tasks(tmp_path: Path) -> None:
    found, problems = read_pai(tables(tmp_path, jobs=f"{JOBS}j3,i,u,Waiting,70.0,\n"))
    assert len(found.arrivals) == 2
    assert "pai_job_table.csv:3: Job j3: end_time: '' is unknown" in str(problems[0])


def test_what_can_not_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="this list of machines cannot be read"):
        read_pai(tmp_path)
    with pytest.raises(InstanceError, match="no job of these tables can be read"):
        read_pai(tables(tmp_path, tasks="x,y,1,Failed,1,2,3,4,5,V100\n"))


# --- openb ---------------------------------------------------------------------------------------

HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)


def test_pods_ran_from_their_start_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1024,2,T4\n"
    )
    pods = tmp_path / "pods.csv"
    pods.write_text(
        f"{HEAD}late,1000,1,1,460,T4|P100,LS,Running,50,90,60\n"
        "early,1000,1,2,1000,,LS,Running,20,90,30\n"
        "never,1000,1,1,1000,,LS,Pending,20,90,\n"
        "odd,1000,1,1,1000,,LS,Running,20,10,30\n"
        "cut,1000,1,1,1000,,LS,Running,20\n"
        "huge,1000,1,8,1000,,LS,Running,20,90,30\n"
        "bad,x,1,1,1000,,LS,Running,20,90,30\n"
    )
    found, problems = read_openb_trace(pods)
    early, late = found.arrivals
    assert (early.gang.name, early.at_ms, early.duration_ms) == ("early", 0, 60_000)
    assert (late.gang.name, late.at_ms, late.duration_ms) == ("late", 30_000, 30_000)
    assert late.gang.tasks[0].shape.device == DeviceRequest(1, 460)
    told = {p.where: p.path for p in problems}
    assert told == {
        "pods.csv:8": "cpu_milli",
        "pods.csv:4": "scheduled_time",
        "pods.csv:5": "deletion_time",
        "pods.csv:6": "deletion_time",
        "pods.csv:7": "min_member",
    }


def test_the_published_list() -> None:
    found, problems = read_openb_trace(shared("traces", "openb", "openb_pod_list_default.csv"))
    assert (len(found.arrivals), len(problems)) == (7255, 897)
    assert {p.path for p in problems} == {"scheduled_time"}


# --- by name -------------------------------------------------------------------------------------


def test_formats_have_names(tmp_path: Path) -> None:
    assert TRACE_FORMATS == ("acme", "gavel", "helios", "openb", "pai", "philly")
    nodes = equal_nodes(1, {GPU: 8})
    assert read_published_trace("pai", tables(tmp_path))[0].name == tmp_path.name
    trace = shared("traces", "gavel", "seed=0", "23dbec.trace")
    assert read_published_trace("gavel", trace, nodes)[0].name == "23dbec"
    with pytest.raises(InstanceError, match="a trace of gavel has no nodes: name a file"):
        read_published_trace("gavel", trace)
    with pytest.raises(InstanceError, match="'swf' is not a trace format: write acme, gavel"):
        read_published_trace("swf", trace)
