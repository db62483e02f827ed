"""Tests of Gavel's traces, whose durations are steps divided by throughput."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.gavel import read_gavel, read_throughputs
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.units import GPU
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

NODES = equal_nodes(2, {GPU: 8})
RATES = {
    "v100": {"('LM', 1)": {"null": 10.0}, "('LM', 4)": {"null": 20.0}},
    "k80": {"('LM', 1)": {"null": 1.0}},
}


def row(at: object, steps: object = 100, gpus: object = 1, kind: str = "LM") -> str:
    return f"{kind}\tpython3 train.py\t-n\t1\t{steps}\t{at}\t{gpus}"


def trace(folder: Path, *rows: str) -> Path:
    (folder / "simulation_throughputs.json").write_text(json.dumps(RATES))
    path = folder / "vc1.trace"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_jobs_are_gangs_that_run_for_their_steps(tmp_path: Path) -> None:
    found, problems = read_gavel(trace(tmp_path, row(5.0), row(6.5, 200, 4), row(7, 60, 2)), NODES)
    assert problems == ()
    assert [a.at_ms for a in found.arrivals] == [0, 1500, 2000]
    assert [a.duration_ms for a in found.arrivals] == [10_000, 10_000, 6_000]
    assert [a.gang.min_member for a in found.arrivals] == [1, 4, 2]
    assert {t.shape.request for a in found.arrivals for t in a.gang.tasks} == {((GPU, 1),)}
    assert [q.name for q in found.queues] == ["default", "root", "vc1"]
    assert {a.gang.queue for a in found.arrivals} == {"vc1"}


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("LM\tpython3", "total_steps is missing: the row ends before this column"),
        (row(7, -5), "total_steps: '-5' is not a whole number: write 0 or more"),
        (row(7, 5, 0), "scale_factor: '0' is not a valid number of GPUs: write 1 or more"),
        (row(7, 5, 1.5), "scale_factor: '1.5' is not a whole number: write 0 or more"),
        (row(-7), "arrival_time: '-7' is not a number of seconds: write 0 or more"),
        (row("nan"), "arrival_time: 'nan' is not a number of seconds: write 0 or more"),
        (row(7, kind="GPT"), "job_type: 'GPT' has no throughput: name a job type that was"),
        (row(7, 5, 99), "min_member: 99 can never start: 16 of its tasks fit on the"),
        (row(3), "at_ms: 3000 is out of order: the events around it are at 5000 ms"),
        (row(99999), "at_ms: 99995000 is out of order: the events around it are at 1000 ms"),
    ],
)
def test_a_row_that_is_wrong_is_left_out_alone(tmp_path: Path, bad: str, told: str) -> None:
    found, problems = read_gavel(trace(tmp_path, row(4), row(5), bad, row(8), row(9)), NODES)
    assert [a.at_ms for a in found.arrivals] == [0, 1000, 4000, 5000]
    assert told in str(problems[0])
    assert {p.where for p in problems} == {"vc1.trace:3"}


def test_a_folder_is_all_its_clusters(tmp_path: Path) -> None:
    first = trace(tmp_path, row(5), row(9))
    (tmp_path / "vc0.trace").write_text(row(2) + "\n" + row(3) + "\n")
    found, _ = read_gavel(first.parent, NODES)
    assert [(a.gang.queue, a.at_ms) for a in found.arrivals] == [
        *(("vc0", 0), ("vc1", 0)),
        *(("vc0", 1000), ("vc1", 4000)),
    ]


def test_another_gpu_is_slower(tmp_path: Path) -> None:
    path = trace(tmp_path, row(5))
    slow = read_throughputs(path.with_name("simulation_throughputs.json"), "k80")
    assert read_gavel(path, NODES, slow)[0].arrivals[0].duration_ms == 100_000


def test_what_can_not_be_read_at_all(tmp_path: Path) -> None:
    path = trace(tmp_path, row(5))
    rates = path.with_name("simulation_throughputs.json")
    with pytest.raises(InstanceError, match="GPU type 'h100' is unknown; known types: k80, v100"):
        read_throughputs(rates, "h100")
    rates.write_text('{"v100": {"(": {}}}')
    with pytest.raises(InstanceError, match="these throughputs cannot be read: '\\(' was never"):
        read_throughputs(rates)
    rates.write_text("""{"v100": {"('LM', 1)": {}}}""")
    with pytest.raises(InstanceError, match=r"\('LM', 1\) has no rate for a job that runs alone"):
        read_throughputs(rates)
    rates.write_text("{")
    with pytest.raises(InstanceError, match="these throughputs cannot be read"):
        read_gavel(path, NODES)
    rates.unlink()
    with pytest.raises(InstanceError, match=r"no simulation_throughputs\.json in its folder or"):
        read_gavel(path, NODES)
    with pytest.raises(InstanceError, match=r"this list of jobs cannot be read"):
        read_gavel(path.with_name("gone.trace"), NODES, read_throughputs(_real()))
    with pytest.raises(InstanceError, match="there are no nodes"):
        read_gavel(path, [], read_throughputs(_real()))


def _real() -> Path:
    return shared("traces", "gavel", "simulation_throughputs.json")


def test_the_published_traces_are_whole() -> None:
    found, problems = read_gavel(shared("traces", "gavel", "seed=0"), equal_nodes(16, {GPU: 8}))
    assert problems == ()
    assert (len(found.arrivals), len(found.queues)) == (15_264, 17)
