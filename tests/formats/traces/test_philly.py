"""Tests of the job log of Philly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.cluster_logs import read_philly
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.units import GPU

if TYPE_CHECKING:
    from pathlib import Path


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(gpus)]
    times = (t and f"2017-10-07 {t}" for t in (start, end))
    return {**dict(zip(("start_time", "end_time"), times, strict=True)), "detail": detail}


def job(name: str, submitted: str, *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": f"2017-10-07 {submitted}",
        "user": "ce2f4c",
        **more,
    }


GOOD = job(
    "a", "01:11:39", attempt("01:12:00", "01:12:30", 8), attempt("01:13:00", "01:14:00", 8, 4)
)


def log(folder: Path, *jobs: object) -> Path:
    (folder / "cluster_machine_list").write_text(
        "machineId,number of GPUs, single GPU mem\nm1,8, 24GB\nm2,8, 24GB\nm3,2, 12GB\n"
    )
    path = folder / "cluster_job_log"
    path.write_text(json.dumps(jobs))
    return path


def test_attempts_add_up_and_the_last_one_says_where(tmp_path: Path) -> None:
    running = job("b", "01:00:00", attempt("01:12:00", None, 1))
    found, problems = read_philly(log(tmp_path, GOOD, running))
    assert problems == ()
    assert [dict(n.allocatable)[GPU] for n in found.nodes] == [8, 8, 2]
    first, last = found.arrivals
    assert (first.gang.name, first.at_ms, first.duration_ms) == ("b", 0, None)
    assert (last.gang.name, last.at_ms, last.duration_ms) == ("a", 699_000, 90_000)
    assert [dict(t.shape.request)[GPU] for t in last.gang.tasks] == [8, 4]
    assert (last.gang.queue, last.gang.min_member) == ("ee9e8c", 2)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (7, "is not an object with jobid, vc, submitted_time and attempts"),
        (job("x", "01:00:00"), "Job x: never ran"),
        (job("x", "soon", attempt("01:00:00", "02:00:00", 1)), "submitted_time: '2017-10-07 soon'"),
        (job("x", "01:00:00", attempt("02:00:00", "01:00:00", 1)), "is before its start_time"),
        (job("x", "01:00:00", attempt("02:00:00", "03:00:00")), "Job x: never ran"),
        (
            job("x", "01:00:00", attempt(None, None, 1)),
            "has no attempt with both start_time and end_time",
        ),
        (job("x", "01:00:00", {"detail": [7]}, attempt("1", "2")), "attempts[1].start_time:"),
        (job("x", "01:00:00", attempts=5), "attempts: 5 is not a list"),
        (
            job("x", "01:00:00", attempt("02:00:00", "03:00:00", 1), vc=None),
            "vc: None is not a name",
        ),
        (job("x", "01:00:00", attempt("02:00:00", "03:00:00", 9)), "none of its tasks fits"),
    ],
)
def test_a_job_that_is_wrong_is_left_out_alone(tmp_path: Path, bad: object, told: str) -> None:
    found, problems = read_philly(log(tmp_path, bad, GOOD))
    assert [a.gang.name for a in found.arrivals] == ["a"]
    assert told in str(problems[0])
    assert problems[0].where == "cluster_job_log[0]"


@pytest.mark.parametrize("gpus", ["g1", 1, None, {"g1": 1}, [None], ["g1", 2]])
def test_gpus_are_a_list_of_names(tmp_path: Path, gpus: object) -> None:
    machine = {"ip": "m", "gpus": gpus}
    broken = job("x", "01:00:00", {**attempt("01:00:00", "02:00:00"), "detail": [machine]})
    found, problems = read_philly(log(tmp_path, broken, GOOD))
    assert len(found.arrivals) == 1
    assert f"attempts[0].detail: {[machine]} is not a list of machines" in str(problems[0])


def test_detail_that_is_no_list_of_machines(tmp_path: Path) -> None:
    broken = job("x", "01:00:00", {**attempt("01:00:00", "02:00:00"), "detail": [{"ip": "m"}]})
    _, problems = read_philly(log(tmp_path, broken, GOOD))
    assert "attempts[0].detail" in str(problems[0])


def test_what_can_not_be_read_at_all(tmp_path: Path) -> None:
    path = log(tmp_path, GOOD)
    path.with_name("cluster_machine_list").unlink()
    with pytest.raises(InstanceError, match="its folder has no cluster_machine_list, and no nodes"):
        read_philly(path)
    nodes = equal_nodes(2, {GPU: 8})
    assert len(read_philly(path, nodes)[0].arrivals) == 1
    path.write_text("{}")
    with pytest.raises(InstanceError, match="it must be a list of jobs"):
        read_philly(path, nodes)
    path.write_text("[{")
    with pytest.raises(InstanceError, match="this job log cannot be read"):
        read_philly(path, nodes)
