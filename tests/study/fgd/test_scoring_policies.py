"""Tests of the five scores on small states, and of F compared with the plugin's measure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.traces.openb_cluster import read_openb
from optsched.plugins.devices.fragmentation import GpuClass, Target, find_typical_classes
from optsched.problem.compile import compile_problem
from optsched.study.fgd.scoring_policies import POLICIES, Fragments, States
from optsched.study.fgd.trace_replay import replay
from optsched.study.fgd.workload import Arrivals, Workload, read_workload
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.problem.arrays import I64

NODES = """sn,cpu_milli,memory_mib,gpu,model
a,64000,1000,8,G2
b,64000,1000,8,G2
c,32000,1000,2,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p0,1000,10,0,0,
p1,2000,10,1,500,
p2,4000,10,1,1000,
p3,8000,10,2,1000,T4
"""
CPU_ONLY, HALF, ONE, TWO = range(4)
EMPTY = [1000] * 8


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    found, problems = read_workload(tmp_path / "pods.csv", tmp_path / "nodes.csv")
    assert problems == ()
    return found


def state(cpu_m: int, free: list[int], sorts: int = 0) -> States:
    """Return the state of a node of eight GPUs of the model G2."""
    one = (np.array([n]) for n in (8, 0, sorts))
    return States(np.array([cpu_m]), np.array([1000]), np.array([free]), *one)


@pytest.mark.parametrize(
    ("policy", "at", "points"),
    [
        ("02-DotProd", state(64000, EMPTY), [99, 96, 92, 85]),
        ("05-BestFit", state(64000, EMPTY), [25, 28, 32, 40]),
        ("03-GpuClustering", state(64000, EMPTY), [0, 25, 25, 25]),
        ("03-GpuClustering", state(60000, [0, *EMPTY[1:]], sorts=0b10), [0, 3, 78, 3]),
        ("03-GpuClustering", state(60000, [0, 500, *EMPTY[2:]], sorts=0b11), [0, 54, 54, 4]),
        ("04-GpuPacking", state(64000, EMPTY), [0, 25, 25, 25]),
        ("04-GpuPacking", state(60000, [0, *EMPTY[1:]]), [0, 49, 49, 48]),
        ("04-GpuPacking", state(60000, [0, 700, *EMPTY[2:]]), [0, 93, 49, 48]),
    ],
)
def test_points(workload: Workload, policy: str, at: States, points: list[int]) -> None:
    assert POLICIES[policy](workload).scores(at).tolist() == [points]


def test_fgd_goes_by_how_much_more_is_wasted(workload: Workload) -> None:
    """FGD scores a pod by the increase in wasted GPU capacity.

    On eight idle GPUs, a pod without GPUs and a pod for T4 waste all GPUs. A half GPU wastes small
    remainders. F is 8000·¼·2 there, and 500·¼·1 less or more with one pod of each class.
    """
    policy, at = POLICIES["06-FGD"](workload), state(64000, EMPTY)
    fragments = Fragments.from_workload(workload)
    before = fragments.amount(at.cpu_m, at.free, at.model)
    half = fragments.amount(at.cpu_m, np.array([[500, *EMPTY[1:]]]), at.model)
    assert (before[0], half[0]) == (4000, 4000 - 250 + 125)
    points = policy.scores(at)[0, [CPU_ONLY, HALF, ONE]]
    assert points.tolist() == [50, int(100 / (1 + np.exp(-0.125))), int(100 / (1 + np.exp(-0.5)))]


def test_a_part_goes_where_the_policy_says(workload: Workload) -> None:
    at = state(64000, [1000, 600, 500, 500, 1000, 1000, 1000, 1000])
    for name, make in POLICIES.items():
        assert make(workload).devices(at, np.array([HALF])).tolist() == [2], name


def test_pods_stay_and_who_finds_no_room_is_lost(workload: Workload) -> None:
    order, rank = np.array([TWO, TWO, ONE, HALF]), np.array([2, 0, 1])
    policy = POLICIES["05-BestFit"](workload)
    found = replay(workload, policy, [Arrivals(order, rank), Arrivals(order[:1], rank)])
    assert found.node_of.tolist() == [[2, -1, 1, 1], [2, -1, -1, -1]]
    assert found.length.tolist() == [4, 1]
    assert found.allocated.tolist() == [[2000, 2000, 3000, 3500], [2000] * 4]
    assert found.arrived.tolist() == [[2000, 4000, 5000, 5500], [2000] * 4]


# --- the rule's measure --------------------------------------------------------------------------


def some_states(free: I64, cpu_m: I64, num: int) -> tuple[I64, I64, I64]:
    """Return random node states: node indices, idle CPU and idle GPUs."""
    random = np.random.default_rng(7)
    node = random.integers(0, len(cpu_m), num)
    part = random.choice([0, 0.1, 0.46, 0.5, 1], (num, free.shape[1]))
    return (
        node,
        (cpu_m[node] * random.random(num)).astype(np.int64),
        (free[node] * part).astype(int),
    )


def kinds_of(workload: Workload, models: list[str]) -> list[tuple[GpuClass, int]]:
    """Return the typical pods as `GpuClass` objects with their shares in units of 10⁻¹²."""
    requests, found = workload.requests, []
    for k, share in zip(workload.typical.tolist(), workload.share.tolist(), strict=True):
        may = tuple(m for m, ok in zip(models, requests.reach[k].tolist(), strict=True) if ok)
        only = NodeTerm((Requirement(GPU_MODEL_LABEL, Operator.IN, may),))
        affinity = NodeSelector((only,)) if len(may) < len(models) else None
        numbers = (int(part[k]) for part in (requests.cpu_m, requests.number, requests.milli))
        found.append((GpuClass(*numbers, affinity=affinity), round(share * 10**12)))
    return found


@pytest.mark.parametrize("trace", ["default", "gpuspec10", "gpushare100"])
def test_the_rule_has_the_same_measure(trace: str) -> None:
    """The plugin's measure equals FGD's on every state, up to the order of additions."""
    pods = shared("traces", "openb", f"openb_pod_list_{trace}.csv")
    workload, _ = read_workload(pods)
    problem = compile_problem(read_openb(pods)[0])
    models = sorted({node.gpu_model for node in problem.snapshot.nodes})
    target = Target.from_classes(problem, kinds_of(workload, models))
    machines = workload.machines
    node, cpu_m, free = some_states(machines.free, machines.cpu_m, 3000)
    ours = target.waste(node, cpu_m, free) / 10**12
    theirs = Fragments.from_workload(workload).amount(cpu_m, free, machines.model[node])
    assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-6)


def test_the_rule_takes_the_same_pods_for_typical() -> None:
    pods = shared("traces", "openb", "openb_pod_list_default.csv")
    workload, _ = read_workload(pods)
    frequent = find_typical_classes(
        Counter(t.shape for g in read_openb(pods)[0].gangs for t in g.tasks)
    )
    requests, chosen = workload.requests, workload.typical
    mine = zip(requests.cpu_m[chosen], requests.number[chosen], requests.milli[chosen], strict=True)
    assert {(k.cpu_m, k.number, k.milli) for k, _ in frequent} == set(mine)
    assert len(frequent) == len(chosen) == 35
