"""The plan check names each mistake in a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.study.fgd.plan_check import (
    PodPlacement,
    find_unplaced_that_fit,
    milli_of_plan,
    wrong_with_plan,
)
from optsched.study.fgd.workload import Workload, read_workload

if TYPE_CHECKING:
    from pathlib import Path

NODES = """sn,cpu_milli,memory_mib,gpu,model
a,8000,100,4,G2
b,8000,100,2,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p0,5000,10,0,0,
p1,1000,10,1,600,
p2,1000,60,2,1000,T4
"""
SHARE, TWO, CPU_ONLY = range(3)
CLASSES = [CPU_ONLY, CPU_ONLY, SHARE, SHARE, TWO, TWO]


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return read_workload(tmp_path / "pods.csv", tmp_path / "nodes.csv")[0]


def test_a_plan_that_can_be_carried_out(workload: Workload) -> None:
    plan = [
        PodPlacement(0, 0, ()),
        PodPlacement(1, 1, ()),
        PodPlacement(2, 0, (3,)),
        PodPlacement(4, 1, (1, 0)),
    ]
    assert wrong_with_plan(workload, CLASSES, plan) == []
    assert milli_of_plan(workload, CLASSES, plan) == 2600


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            [PodPlacement(0, 0, ()), PodPlacement(1, 0, ())],
            "node 0 has 8000 m of CPU, but 10000 are allocated",
        ),
        (
            [PodPlacement(4, 1, (0, 1)), PodPlacement(5, 1, (0, 1))],
            "100 MiB of memory, but 120 are allocated",
        ),
        (
            [PodPlacement(2, 0, (1,)), PodPlacement(3, 0, (1,))],
            "GPU 1 of node 0 has 1000 thousandths, but 1200",
        ),
        ([PodPlacement(2, 1, (2,))], "GPU 2 of node 1 has 0 thousandths, but 600 are allocated"),
        ([PodPlacement(4, 0, (0, 1))], "pod 4 may not run on the GPU model of node 0"),
        ([PodPlacement(4, 1, (1,))], "pod 4 requests 2 GPUs and has [1]"),
        ([PodPlacement(4, 1, (1, 1))], "pod 4 requests 2 GPUs and has [1, 1]"),
        ([PodPlacement(2, 0, (0,)), PodPlacement(2, 1, (0,))], "pod 2 is placed 2 times"),
        ([PodPlacement(6, 0, ())], "pod 6 is not one of the 6 pods"),
        ([PodPlacement(0, 2, ())], "pod 0 is on node 2, which is not one of the 2 nodes"),
        ([PodPlacement(2, 0, (-1,))], "pod 2 has GPUs [-1]"),
    ],
)
def test_what_is_wrong(workload: Workload, plan: list[PodPlacement], said: str) -> None:
    found = wrong_with_plan(workload, CLASSES, plan)
    assert any(said in line for line in found), found


def test_who_is_turned_away(workload: Workload) -> None:
    """The check tries every node, model and GPU, and names the first unplaced pod of a class."""
    everybody = [
        PodPlacement(0, 0, ()),
        PodPlacement(1, 1, ()),
        PodPlacement(2, 0, (0,)),
        PodPlacement(3, 0, (1,)),
    ]
    full = [*everybody, PodPlacement(4, 1, (0, 1))]
    assert find_unplaced_that_fit(workload, CLASSES, full) == []
    assert find_unplaced_that_fit(workload, CLASSES, everybody) == [
        "pod 4 fits on node 1 but is not placed"
    ]
    assert find_unplaced_that_fit(workload, CLASSES, full[1:]) == [
        "pod 0 fits on node 0 but is not placed"
    ]
    assert find_unplaced_that_fit(workload, CLASSES, full[4:]) == [
        "pod 0 fits on node 0 but is not placed",
        "pod 2 fits on node 0 but is not placed",
    ]
