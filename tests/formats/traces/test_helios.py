"""Tests of the job logs of Helios and Acme."""

from __future__ import annotations

from pathlib import Path

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.cluster_logs import read_acme, read_helios
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.units import CPU, GPU, MEMORY

HEAD = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
)
JOBS = (
    "1,u1,vcA,1,4,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0",
    "2,u2,vcB,12,16,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:28,2020-06-09 18:45:37,249,1",
)
GPUS = "date,vcA,vcB,total\n2020-06-01,8,16,24\n2020-06-02,16,16,32\n"


def log(folder: Path, *rows: str, head: str = HEAD) -> Path:
    venus = folder / "Venus"
    venus.mkdir()
    (venus / "cluster_gpu_number.csv").write_text(GPUS)
    (venus / "cluster_log.csv").write_text("\n".join([head, *rows]) + "\n")
    return venus / "cluster_log.csv"


def test_virtual_clusters_are_queues_on_nodes_of_eight(tmp_path: Path) -> None:
    found, problems = read_helios(log(tmp_path, *JOBS))
    assert problems == ()
    assert found.name == "Venus"
    assert [n.allocatable for n in found.nodes] == [((GPU, 8),)] * 3
    assert {q.name: q.deserved for q in found.queues if q.deserved} == {
        "vcA": ((GPU, 8),),
        "vcB": ((GPU, 16),),
    }
    one, two = found.arrivals
    assert (one.at_ms, one.duration_ms, one.gang.queue) == (0, 36_848_000, "vcA")
    assert (two.at_ms, two.duration_ms, two.gang.min_member) == (26_000, 249_000, 2)
    assert [t.shape.request for t in two.gang.tasks] == [((GPU, 6),)] * 2


def test_nodes_with_cpus_are_asked_for_cpus(tmp_path: Path) -> None:
    nodes = equal_nodes(3, {GPU: 8, CPU: 48_000})
    uneven = JOBS[1].replace(",12,16,2,", ",13,16,3,")
    _, two = read_helios(log(tmp_path, JOBS[0], uneven), nodes)[0].arrivals
    asked = [dict(t.shape.request) for t in two.gang.tasks]
    assert sorted(a[GPU] for a in asked) == [4, 4, 5]
    assert sum(a[CPU] for a in asked) == 16_000


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("3,u,vcA,1,4", "node_num is missing: the row ends before this column"),
        (JOBS[0].replace(",36848,", ",-3,"), "duration: '-3' is not a number of seconds"),
        (
            JOBS[0].replace("2020-06-09 18:41:01", "yesterday"),
            "submit_time: 'yesterday' is not a time",
        ),
        (JOBS[0].replace(",1,COMPLETED", ",0,COMPLETED"), "node_num: '0' is not a valid number"),
        (JOBS[0].replace("vcA", ""), "vc: '' is empty"),
        (
            JOBS[0].replace("2020-06-10 04", "2020-06-08 04"),
            "end_time: '2020-06-08 04:55:09' is before its start_time",
        ),
        (JOBS[0].replace(",1,4,", ",99,4,"), "can never start: none of its tasks fits"),
        (JOBS[0].replace("1,u1", ",u1"), "job_id: '' is empty"),
    ],
)
def test_a_row_that_is_wrong_is_left_out_alone(tmp_path: Path, bad: str, told: str) -> None:
    first, second = (JOBS[0].replace("1,u1", f"{name},u1") for name in "89")
    found, problems = read_helios(log(tmp_path, first, second, bad, JOBS[1]))
    assert [a.gang.name for a in found.arrivals] == ["8", "9", "2"]
    assert told in str(problems[0])
    assert {p.where for p in problems} == {"cluster_log.csv:4"}


def test_a_log_that_is_not_sorted_is_sorted(tmp_path: Path) -> None:
    earlier = JOBS[0].replace("1,u1", "9,u1").replace("2020-06-09 18", "2020-06-09 17")
    found, problems = read_helios(log(tmp_path, JOBS[0], earlier, JOBS[1]))
    assert (problems, [a.gang.name for a in found.arrivals]) == ((), ["9", "1", "2"])
    assert found.arrivals[0].at_ms == 0


def test_a_log_in_the_present_folder_has_the_name_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log(tmp_path, *JOBS).parent)
    assert read_helios(Path("cluster_log.csv"))[0].name == "Venus"


def test_a_link_to_a_folder_names_the_trace(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "Helios").symlink_to(log(tmp_path / "data", *JOBS).parent)
    assert read_helios(tmp_path / "Helios" / "cluster_log.csv")[0].name == "Helios"


def test_jobs_for_which_there_is_nothing_are_counted(tmp_path: Path) -> None:
    idle = JOBS[0].replace(",1,4,", ",0,4,").replace("1,u1", "{},u1")
    found, problems = read_helios(log(tmp_path, idle.format(7), idle.format(8), JOBS[1]))
    assert len(found.arrivals) == 1
    message = "Venus: Job: 2 jobs are skipped: they request nothing that the nodes offer"
    assert [str(p) for p in problems] == [message]
    (tmp_path / "one").mkdir()
    _, problems = read_helios(log(tmp_path / "one", idle.format(7), JOBS[1]))
    message = "Venus: Job: 1 job is skipped: it requests nothing that the nodes offer"
    assert [str(p) for p in problems] == [message]


def test_what_can_not_be_read_at_all(tmp_path: Path) -> None:
    path = log(tmp_path, *JOBS, head=HEAD.replace("duration", "length"))
    with pytest.raises(InstanceError, match="not a list of jobs: it has no column duration"):
        read_helios(path)
    path.with_name("cluster_gpu_number.csv").unlink()
    with pytest.raises(InstanceError, match="cannot be read, and no nodes are given"):
        read_helios(path)


SEREN = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,"
    "gpu_time\n"
    "78,u5,1,8,128,Other,FAILED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,,117,32,936.0\n"
    "77,u5,2,16,128,Other,FAILED,2023-03-01 00:18:22+08:00,,,2693,13,21544.0\n"
)
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,"
    "start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n"
    "dlc1,uf,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,,,,,18,10.0,1152.0\n"
)


def test_acme(tmp_path: Path) -> None:
    offers = {GPU: 8, CPU: 128_000, MEMORY: 2**40}
    (tmp_path / "trace_seren.csv").write_text(SEREN)
    (tmp_path / "trace_kalos.csv").write_text(KALOS)
    seren, problems = read_acme(tmp_path / "trace_seren.csv", equal_nodes(8, offers))
    assert problems == ()
    assert [(a.gang.name, a.at_ms, a.duration_ms) for a in seren.arrivals] == [
        ("77", 0, 2_693_000),
        ("78", 336_000, 117_000),
    ]
    (job,) = read_acme(tmp_path / "trace_kalos.csv", equal_nodes(8, offers))[0].arrivals
    one = {GPU: 8, CPU: 120_000, MEMORY: 1000 * 2**30}
    assert [dict(t.shape.request) for t in job.gang.tasks] == [one] * 8
