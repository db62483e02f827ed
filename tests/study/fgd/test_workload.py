"""Tests of the order of arrivals: shuffled, and extended to 130 % of the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.study.fgd.workload import Workload, arrivals, read_workload

if TYPE_CHECKING:
    from pathlib import Path

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,1000,8,G2\nb,64000,1000,2,T4\n"


def workload(folder: Path, num_gpu: int, num_cpu: int) -> Workload:
    """Return a workload on ten GPUs, with pods of one GPU and pods without GPUs."""
    (folder / "nodes.csv").write_text(NODES)
    one = [f"g{i:02d},1000,10,1,1000" for i in range(num_gpu)]
    none = [f"c{i:02d},1000,10,0,0" for i in range(num_cpu)]
    rows = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli", *one, *none]
    (folder / "pods.csv").write_text("\n".join(rows) + "\n")
    return read_workload(folder / "pods.csv", folder / "nodes.csv")[0]


def demands(found: Workload, seed: int) -> list[int]:
    return found.requests.worth[arrivals(found, seed).classes].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_pods_are_drawn_until_demand_is_there(tmp_path: Path, seed: int) -> None:
    requests = demands(workload(tmp_path, 3, 2), seed)
    assert sum(requests) == 13_000
    assert sorted(requests[:5]) == [0, 0, 1000, 1000, 1000]


def test_drawing_goes_on_where_demand_comes_out_even(tmp_path: Path) -> None:
    """Pods without GPUs still arrive until one more GPU pod would exceed the target."""
    found = workload(tmp_path, 12, 12)
    ends = [demands(found, seed)[24:] for seed in range(40)]
    assert {sum(end) for end in ends} == {1000}
    assert any(end[-1] == 0 for end in ends)


@pytest.mark.parametrize("seed", range(5))
def test_pods_are_taken_away_where_demand_is_larger(tmp_path: Path, seed: int) -> None:
    requests = demands(workload(tmp_path, 20, 4), seed)
    assert sum(requests) == 13_000
    assert len(requests) <= 17


def test_where_demand_is_right_nothing_is_drawn(tmp_path: Path) -> None:
    assert len(demands(workload(tmp_path, 13, 4), 1)) == 17


def test_a_list_without_gpus_is_refused(tmp_path: Path) -> None:
    """The sampler would run forever, because no pod adds to the GPU demand."""
    with pytest.raises(
        InstanceError, match=r"pods\.csv: no pod requests GPUs; at least one pod must"
    ):
        workload(tmp_path, 0, 4)


def test_nodes_without_gpus_are_refused(tmp_path: Path) -> None:
    workload(tmp_path, 1, 0)
    bare = tmp_path / "bare.csv"
    bare.write_text("sn,cpu_milli,memory_mib,gpu,model\na,64000,1000,0,\n")
    with pytest.raises(InstanceError, match=r"bare\.csv: no node has GPUs; at least one node must"):
        read_workload(tmp_path / "pods.csv", bare)
