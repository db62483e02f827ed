"""Tests of NPUs that are split by templates, in every engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.api.wellknown import NPU_MODE
from optsched.cluster.decisions import Allocate
from optsched.cluster.node_resources import Chip, GpuShare, GpuShareRequest, SharedGpu, Template
from optsched.cluster.task import TaskShape
from optsched.plugins.devices.deviceshare import DeviceShare, Prefers
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.policy import PolicyError, parse_policy
from optsched.session.attempt import with_cards
from tests.plugins.test_deviceshare import host, many, placed, shared_gpus, vgpu
from tests.support.effort import num_examples
from tests.support.engines import Bench, assert_optimum, assert_rows_as_verified, reason
from tests.support.small import cluster, gang, running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.snapshot import Gang as Group
    from optsched.cluster.snapshot import Snapshot

NPU = DeviceShare(by_npu=True)
RULES = RuleSet.of(Gang(), NPU)
CHIP = Chip("Ascend310P", 100, 110, (Template("vir01", 15), Template("vir02", 30)))
WIRED = replace(CHIP, name="Ascend910B3")


def npu(number: int = 1, memory: int = 0, chip: Chip = CHIP) -> GpuShareRequest:
    return GpuShareRequest(number, memory, 0 if memory else 100, npu=chip.name)


def asks(*requests: GpuShareRequest, mode: str = "") -> TaskShape:
    notes = ((NPU_MODE, mode),) if mode else ()
    return TaskShape((("cpu", 100),), shared_gpus=requests, notes=notes)


def npus(
    number: int, chip: Chip = CHIP, sharers: int = 7, **fields: object
) -> tuple[SharedGpu, ...]:
    made = SharedGpu("", chip.memory, sharers, npu=chip.name, chip=chip)
    return tuple(replace(made, key=f"npu-{i}", **fields) for i in range(number))


# --- what they admit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "made", "number"),
    [
        (asks(npu(memory=10)), npus(1), 6),
        (asks(npu(memory=10)), npus(1, sharers=4), 4),
        (asks(npu(memory=16)), npus(1), 3),
        (asks(npu(memory=31)), npus(2), 2),
        (asks(npu(memory=110)), npus(2), 2),
        (asks(npu(memory=111)), npus(2), 0),
        (asks(npu()), npus(2), 2),
        (asks(npu(2)), npus(4), 2),
        (asks(npu(2, memory=31)), npus(4), 2),
        (asks(npu(2, memory=30)), npus(4), 0),
        (asks(npu(memory=10), npu(memory=10)), npus(1), 0),
        (asks(npu(memory=10), npu(memory=10)), npus(2), 6),
        (asks(npu(memory=10)), npus(2, is_healthy=False), 0),
        (asks(npu(memory=10)), npus(2, chip=WIRED), 0),
        (asks(npu(memory=10)), tuple(replace(c, chip=None) for c in npus(2)), 0),
        (asks(npu(memory=10)), shared_gpus(1000), 0),
        (asks(npu(memory=10), mode="hami-core"), npus(2), 0),
        (asks(npu(memory=10), mode="template"), npus(1), 6),
    ],
)
def test_as_many_as_chips_have_parts_for(
    what: TaskShape, made: tuple[SharedGpu, ...], number: int
) -> None:
    assert placed(cluster([host("n", *made)], [many(what)]), RULES) == number


def test_switched_off_they_count_by_number_alone() -> None:
    assert placed(cluster([host("n")], [many(asks(npu(memory=10)), 3)]), RuleSet.of(Gang())) == 3
    only_gpus = RuleSet.of(Gang(), DeviceShare(by_vgpu=True))
    assert placed(cluster([host("n")], [many(asks(npu(memory=10)), 3)]), only_gpus) == 3


def test_a_pod_may_have_gpus_and_npus_at_once() -> None:
    rules = RuleSet.of(Gang(), DeviceShare(by_vgpu=True, by_npu=True))
    both = TaskShape((("cpu", 100),), shared_gpus=(npu(memory=20), *vgpu(memory=300).shared_gpus))
    snapshot = cluster([host("n", *shared_gpus(1000), *npus(1))], [gang("g", ("w", 1, both))])
    assert placed(cluster([host("n", *shared_gpus(1000), *npus(1))], [many(both)]), rules) == 3
    bench = Bench.of(snapshot, rules)
    (made,) = with_cards(snapshot, bench.actions(bench.greedy()), rules)
    assert isinstance(made, Allocate)
    assert made.shared_gpus == (
        GpuShare("npu-0", 30, 0, 0, "vir02", "Ascend310P"),
        GpuShare("GPU-0", 300),
    )


def test_residents_keep_what_they_were_told() -> None:
    task = gang("r", ("w", 1, asks(npu(memory=16)))).tasks[0]
    told = replace(running(task, "n"), shared_gpus=(GpuShare("npu-1", 30, npu="Ascend310P"),))
    untold = replace(running(task, "n"), key="ns/untold")
    used = NPU.resident_use(replace(host("n", *npus(2)), residents=(told, untold)))
    assert [(u.memory, u.number) for u in used] == [(30, 1), (30, 1)]


# --- engines against the verifier, and both against trying everything ----------------------------


def random_npus(rng: np.random.Generator) -> Snapshot:
    chips = [CHIP, WIRED]
    nodes = []
    for n in range(2):
        made = [
            *npus(int(rng.integers(0, 4)), CHIP, int(rng.integers(1, 5))),
            *(replace(c, key=f"w-{c.key}") for c in npus(int(rng.integers(0, 3)), WIRED)),
        ]
        nodes.append(host(f"n{n}", *(replace(c, network=int(rng.integers(2))) for c in made)))
    shapes = []
    for _ in range(3):
        chip = chips[int(rng.random() < 0.3)]
        number = int(rng.integers(1, 3))
        memory = int(rng.choice([0, 60])) if number > 1 else int(rng.choice([0, 10, 20, 60]))
        more = [npu(1, int(rng.choice([10, 20, 60])), chip)] if rng.random() < 0.4 else []
        shapes.append(asks(npu(number, memory, chip), *more))
    gangs = [
        gang(f"g{i}", ("w", int(rng.integers(1, 3)), shapes[int(rng.integers(3))]), least=1)
        for i in range(3)
    ]
    resident = gang("r", ("w", 1, shapes[0]))
    at = str(rng.choice(["n0", "n1"]))
    return cluster(nodes, [*gangs, replace(resident, tasks=(running(resident.tasks[0], at),))])


@pytest.mark.parametrize("seed", range(num_examples(25)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    assert_optimum(random_npus(np.random.default_rng(seed)), RULES)


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_rows_allow_just_what_the_verifier_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_rows_as_verified(rng, random_npus(rng), RuleSet.of(NPU), [None, "n0", "n1"])


def can_be_had(tasks: Sequence[Sequence[int]], number: int) -> bool:
    """Return whether parts fit on the given number of chips.

    The parts of one task must be on different chips.
    """
    parts = [(t, size) for t, sizes in enumerate(tasks) for size in sizes]
    for at in product(range(number), repeat=len(parts)):
        loads = [
            sum(s for (_, s), a in zip(parts, at, strict=True) if a == i) for i in range(number)
        ]
        chips = [(t, a) for (t, _), a in zip(parts, at, strict=True)]
        if max(loads, default=0) <= CHIP.memory and len(set(chips)) == len(chips):
            return True
    return not parts


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_parts_fit_just_where_some_way_of_dealing_them_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 4))
    memory = [
        [int(m) for m in rng.choice([10, 20, 60], int(rng.integers(1, 3)))]
        for _ in range(int(rng.integers(1, 4)))
    ]
    gangs: list[Group] = [
        gang(f"g{i}", ("w", 1, asks(*(npu(1, m) for m in each)))) for i, each in enumerate(memory)
    ]
    bench = Bench.of(cluster([host("n", *npus(number))], gangs), RULES, ("admission",))
    plan = {t.key: "n" for t in bench.problem.tasks}
    size = {10: 15, 20: 30, 60: 100}
    fits = can_be_had([[size[m] for m in each] for each in memory], number)
    assert (not bench.broken(bench.decisions(plan))) is fits
    assert bench.direct_allows(plan) is fits
    assert bench.broken(bench.greedy()) == []


# --- order, scores and words ---------------------------------------------------------------------


def used_first(rule: DeviceShare, *made: SharedGpu) -> list[str]:
    """Return the NPUs of a task that requests two while a part of one NPU is in use."""
    resident = gang("r", ("w", 1, asks(npu(memory=10, chip=WIRED)))).tasks[0]
    there = replace(running(resident, "n"), shared_gpus=(GpuShare("npu-1", 15, npu=WIRED.name),))
    snapshot = cluster(
        [replace(host("n", *made), residents=(there,))],
        [gang("g", ("w", 1, asks(npu(memory=10, chip=WIRED), npu(memory=10, chip=WIRED))))],
    )
    rules = RuleSet.of(Gang(), rule)
    bench = Bench.of(snapshot, rules)
    (action,) = with_cards(snapshot, bench.actions(bench.greedy()), rules)
    assert isinstance(action, Allocate)
    return [use.key for use in action.shared_gpus]


def test_policies_say_which_npus_are_taken_and_networks_which_go_together() -> None:
    made = npus(4, WIRED)
    assert used_first(NPU, *made) == ["npu-0", "npu-1"]
    assert used_first(replace(NPU, prefers=Prefers.BINPACK), *made) == ["npu-1", "npu-0"]
    assert used_first(replace(NPU, prefers=Prefers.SPREAD), *made) == ["npu-0", "npu-2"]
    wired = [replace(c, network=n) for c, n in zip(made, (0, 1, 1, 1), strict=True)]
    assert used_first(NPU, *wired) == ["npu-1", "npu-2"]


def test_nodes_where_npus_are_wired_to_each_other_come_first() -> None:
    rule = DeviceShare(by_npu=True, prefers=Prefers.BINPACK, weight=1)
    apart = [replace(c, network=i) for i, c in enumerate(npus(2, WIRED))]
    together = [replace(c, network=0) for c in npus(2, WIRED)]
    nodes = [host("apart", *apart), host("together", *together)]
    what = asks(npu(2, chip=WIRED))
    bench = Bench.of(cluster(nodes, [many(what, 1)]), RuleSet.of(Gang(), rule))
    snapshot = bench.problem.snapshot
    assert snapshot.nodes[int(bench.greedy().node_of[0])].name == "together"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (asks(npu(memory=111)), "had no Ascend310P with 111 memory free"),
        (asks(npu(3)), "had fewer than 3 Ascend310Ps with 100% memory free"),
        (asks(npu(2, memory=10)), "(several NPUs can only be allocated whole)"),
        (asks(npu(memory=10), mode="hami-core"), "huawei.com/vnpu-mode: hami-core is not shared"),
    ],
)
def test_who_waits_is_told_what_no_npu_had(what: TaskShape, told: str) -> None:
    snapshot = cluster([host("n", *npus(2))], [many(what, 1)])
    assert told in reason(snapshot, RULES, "g")


# --- configuration -------------------------------------------------------------------------------

TEXT = """actions: allocate
tiers:
- plugins:
  - name: deviceshare
    arguments:
      deviceshare.AscendHAMiVNPUEnable: true
      deviceshare.VGPUEnable: true
"""


def test_npus_may_be_shared_beside_gpus() -> None:
    (rule,) = (a.rule for a in parse_policy(TEXT, "conf").rules.active)
    assert rule == DeviceShare(by_vgpu=True, by_npu=True)


def test_npus_that_no_node_reports_itself_are_not_shared_out() -> None:
    other = TEXT.replace("HAMi", "MindCluster")
    with pytest.raises(PolicyError, match="does not read the ConfigMaps in which MindCluster"):
        parse_policy(other, "conf")
