"""Tests of online batches: pods use slots first and idle GPUs next, and no fitting pod waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.study.fgd.__main__ import main
from optsched.study.fgd.plan_check import PodPlacement, find_unplaced_that_fit
from optsched.study.fgd.planned_allocation import (
    Slot,
    expected_pods,
    place_in_batches,
    plan_slots,
    select_helpful_slots,
)
from optsched.study.fgd.reachable_allocation import (
    BATCHES,
    WrongPlan,
    allocate_offline,
    allocate_online,
    allocate_with_moves,
    build_experiment,
)
from optsched.study.fgd.workload import Workload, read_workload
from tests.study.fgd.test_allocation_curves import ALL
from tests.support.effort import IS_THOROUGH
from tests.support.research import RESEARCH
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

NODE_LIST = "openb_node_list_gpu_node.csv"
# FGD, which places pod by pod, takes six seconds on all nodes.
NODES_PER_ONE = 1 if IS_THOROUGH else 10
NODES = """sn,cpu_milli,memory_mib,gpu,model
a,8000,100,4,G2
b,8000,100,2,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p0,1000,10,1,400,
p1,1000,10,1,600,
p2,2000,10,1,1000,
p3,2000,10,2,1000,T4
p4,1000,10,0,0,
"""


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    found = read_workload(tmp_path / "pods.csv", tmp_path / "nodes.csv")[0]
    assert found.requests.worth.tolist() == [0, 400, 600, 1000, 2000]
    return found


def kind(workload: Workload, total: int) -> int:
    return workload.requests.worth.tolist().index(total)


def places(
    workload: Workload, totals: list[int], slots: list[Slot], size: int
) -> list[PodPlacement]:
    kinds = [kind(workload, total) for total in totals]
    found = place_in_batches(workload, kinds, slots, size, np.arange(2))
    return sorted(found, key=lambda at: at.pod)


def test_a_pod_takes_a_slot_of_its_class(workload: Workload) -> None:
    slots = [Slot(1, kind(workload, 600), (1,)), Slot(0, kind(workload, 1000), (2,))]
    found = places(workload, [1000, 600], slots, 1)
    assert found == [PodPlacement(0, 0, (2,)), PodPlacement(1, 1, (1,))]


def test_a_pod_takes_a_slot_made_for_no_less(workload: Workload) -> None:
    slots = [Slot(1, kind(workload, 600), (1,))]
    assert places(workload, [400], slots, 1) == [PodPlacement(0, 1, (1,))]


def test_in_a_batch_those_with_slots_of_their_own_come_first(workload: Workload) -> None:
    slots = [Slot(1, kind(workload, 600), (1,))]
    assert places(workload, [400, 600], slots, 1)[0] == PodPlacement(0, 1, (1,))
    assert places(workload, [400, 600], slots, 2)[1] == PodPlacement(1, 1, (1,))


def test_slots_are_given_up_before_anybody_is_turned_away(workload: Workload) -> None:
    slots = [Slot(1, kind(workload, 1000), (d,)) for d in (0, 1)]
    found = places(workload, [2000, *[1000] * 5], slots, 1)
    assert found[0] == PodPlacement(0, 1, (0, 1))
    assert [at.node for at in found[1:]] == [0] * 4


def test_room_without_slots_is_taken_first(workload: Workload) -> None:
    slots = [Slot(0, kind(workload, 1000), (d,)) for d in range(4)]
    assert places(workload, [600], slots, 1)[0].node == 1


def test_those_with_several_gpus_come_before_others_without_slots(workload: Workload) -> None:
    one_by_one = places(workload, [*[1000] * 5, 2000], [], 1)
    assert [at.pod for at in one_by_one] == [0, 1, 2, 3, 4]
    assert len(places(workload, [*[1000] * 5, 2000], [], 6)) == 5
    assert places(workload, [*[1000] * 5, 2000], [], 6)[-1] == PodPlacement(5, 1, (0, 1))


def test_of_equally_good_nodes_the_one_of_the_least_rank_is_taken(workload: Workload) -> None:
    two = workload.machines
    same = replace(two, free=two.free[[0, 0]], model=two.model[[0, 0]])
    alike = replace(workload, machines=same)
    for rank in permutations(range(2)):
        found = place_in_batches(alike, [kind(workload, 1000)], [], 1, np.array(rank))
        assert [at.node for at in found] == [rank.index(0)]


def test_slots_are_planned_for_all_classes_in_their_shares(workload: Workload) -> None:
    slots = plan_slots(workload)
    pods = expected_pods(workload)
    assert set(workload.requests.worth[pods].tolist()) == {0, 400, 600, 1000, 2000}
    assert {s.pod_class for s in slots} == set(pods.tolist())
    parts = [(s.node, s.devices, s.pod_class) for s in slots if s.devices]
    assert len(parts) == len(set(parts))


def test_pods_are_expected_as_often_as_the_list_has_them(workload: Workload) -> None:
    often = replace(workload, pod_class=np.repeat(workload.pod_class, [1, 1, 1, 1, 96]))
    requests = np.bincount(expected_pods(often, 1000), minlength=5)
    rare = often.pod_class[[0, 1, 2, 3]]
    assert requests[rare].tolist() == [15, 15, 15, 15]
    assert requests.sum() == 1500
    assert often.requests.worth[expected_pods(often, 1000)].sum() == 60_000


def test_slots_that_help_are_kept(tmp_path: Path) -> None:
    """FGD without slots combines GPU shares whose remainders no pod can use."""
    nodes = "sn,cpu_milli,memory_mib,gpu,model\na,64000,999,8,G2\nb,64000,999,8,G2\n"
    (tmp_path / "nodes.csv").write_text(nodes)
    rows = [f"p{part},1000,10,1,{part}," for part in (250, 350, 400)]
    (tmp_path / "pods.csv").write_text("\n".join([PODS.splitlines()[0], *rows]))
    parts = read_workload(tmp_path / "pods.csv", tmp_path / "nodes.csv")[0]
    slots = plan_slots(parts)
    assert select_helpful_slots(parts, slots, np.arange(2)) == slots != []


def test_slots_that_do_not_help_are_given_up(workload: Workload) -> None:
    """The slots reserve two GPUs of the only model that some other pods may use."""
    slots = [Slot(1, kind(workload, 1000), (d,)) for d in (0, 1)]
    assert select_helpful_slots(workload, slots, np.arange(2)) == []


def test_a_plan_with_fewer_pods_without_gpus_is_refused(workload: Workload) -> None:
    experiment = build_experiment(workload, 1)
    with pytest.raises(WrongPlan, match=r"^0 pods without GPUs run, but [1-9]"):
        experiment.check_plan([])


def test_a_batch_in_which_somebody_is_turned_away_is_refused(workload: Workload) -> None:
    experiment = build_experiment(workload, 1)
    with pytest.raises(WrongPlan, match="pod 0 fits on node 1 but is not placed"):
        experiment.check_online_plan([])
    assert experiment.check_online_plan(experiment.placed) > 0


def test_offline_is_between_the_policy_and_the_bound(workload: Workload) -> None:
    found = allocate_offline(build_experiment(workload, 1), lambda: 0.0, 5.0, 0)
    assert 0 < found.fgd <= found.reached <= found.bound + 1e-9


@pytest.mark.research
def test_without_slots_pods_go_where_the_policy_puts_them_alone(tmp_path: Path) -> None:
    """FGD by its curves and FGD pod by pod are two separate programs."""
    heading, *nodes = shared("traces", "openb", NODE_LIST).read_text().splitlines()
    some = tmp_path / NODE_LIST
    some.write_text("\n".join([heading, *nodes[::NODES_PER_ONE]]))
    workload, _ = read_workload(shared("traces", "openb", "openb_pod_list_cpu250.csv"), some)
    experiment = build_experiment(workload, 42)
    kinds = experiment.classes.tolist()
    found = place_in_batches(workload, kinds, [], 1, experiment.rank)
    assert sorted(found, key=lambda at: at.pod) == experiment.placed
    assert len(found) < len(kinds)
    assert find_unplaced_that_fit(workload, kinds, found) == []


@pytest.mark.nightly
@pytest.mark.research
@pytest.mark.parametrize("trace", ALL if RESEARCH == "full" else ["multigpu50"])
def test_batches_of_every_size_reach_more_than_fgd(trace: str) -> None:
    """Every batch size must allocate at least as much as FGD, with a tolerance of 0.1 points."""
    workload, _ = read_workload(shared("traces", "openb", f"openb_pod_list_{trace}.csv"))
    experiment = build_experiment(workload, 42)
    reached = allocate_online(experiment, BATCHES if RESEARCH == "full" else (100,))
    fgd = experiment.percent(experiment.fgd.allocated(experiment.pool))
    row = " ".join(f"{percent:6.2f}" for percent in reached.values())
    print(f"{trace:12} FGD {fgd:6.2f}, batches of {', '.join(map(str, reached))}: {row}")
    assert min(reached.values()) >= fgd - 0.1


@pytest.mark.nightly
@pytest.mark.research
@pytest.mark.parametrize("trace", ALL if RESEARCH == "full" else ["gpuspec33"])
def test_shares_may_be_those_of_a_tenth_of_the_pods(trace: str) -> None:
    """FGD still uses the pod shares of the whole list."""
    workload, _ = read_workload(shared("traces", "openb", f"openb_pod_list_{trace}.csv"))
    experiment = build_experiment(workload, 42)
    some = np.random.default_rng(7).choice(workload.pod_class, len(workload.pod_class) // 10, False)
    known = replace(workload, pod_class=some)
    slots = select_helpful_slots(known, plan_slots(known), experiment.rank)
    found = place_in_batches(workload, experiment.classes.tolist(), slots, 100, experiment.rank)
    reached = experiment.check_online_plan(found)
    fgd = experiment.percent(experiment.fgd.allocated(experiment.pool))
    print(f"{trace:12} FGD {fgd:6.2f}, told of a tenth {reached:6.2f}")
    assert reached >= fgd - 0.1


def test_the_command_prints_a_row(workload: Workload, tmp_path: Path, capsys: Capture) -> None:
    assert workload.total_milli == 6000
    arguments = ["--seconds", "1", "--nodes", str(tmp_path / "nodes.csv")]
    assert main([str(tmp_path / "pods.csv"), *arguments]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["list", "offline", "bound", "FGD"]
    name, *numbers = row.split()
    assert (name, len(numbers)) == ("pods", 8)
    assert float(numbers[2]) <= float(numbers[0]) <= float(numbers[1])


def test_the_command_names_a_file_that_is_missing(tmp_path: Path, capsys: Capture) -> None:
    assert main([str(tmp_path / "none.csv")]) == 2
    assert "openb_node_list_gpu_node.csv" in capsys.readouterr().err


@pytest.mark.parametrize("percent", [0, 100])
def test_as_many_pods_move_as_may(workload: Workload, percent: int) -> None:
    ticks = count()
    experiment = build_experiment(workload, 1)
    reached, moved = allocate_with_moves(experiment, percent, lambda: float(next(ticks)), 3.0)
    assert moved <= len(experiment.placed) * percent / 100
    assert reached >= experiment.check_plan(experiment.placed)
