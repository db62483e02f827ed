"""Tests of shared GPUs: the admitted GPU shares in every engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optsched.api.wellknown import VGPU_PODGROUP_POLICY
from optsched.cluster.decisions import Allocate
from optsched.cluster.node_resources import Geometry, GpuShare, GpuShareRequest, Instance, SharedGpu
from optsched.cluster.task import TaskShape
from optsched.plugins.devices.deviceshare import EXCLUSIVE, DeviceShare, Prefers
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.policy import PolicyError, parse_policy
from optsched.problem.compile import compile_problem
from optsched.session.attempt import with_cards
from tests.support.effort import num_examples
from tests.support.engines import Bench, assert_optimum, assert_rows_as_verified, reason
from tests.support.small import cluster, gang, node, running

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Node, Snapshot

VGPU = DeviceShare(by_vgpu=True)
RULES = RuleSet.of(Gang(), VGPU)
BY_MEMORY = RuleSet.of(Gang(), DeviceShare(by_memory=True))
BY_NUMBER = RuleSet.of(Gang(), DeviceShare(by_number=True))


def vgpu(number: int = 1, memory: int = 0, percent: int = 0, cores: int = 0) -> TaskShape:
    return TaskShape(
        (("cpu", 100),), shared_gpus=(GpuShareRequest(number, memory, percent, cores),)
    )


def shared_gpus(*memory: int, sharers: int = 4, **fields: Any) -> tuple[SharedGpu, ...]:
    return tuple(
        SharedGpu(f"GPU-{i}", m, sharers, "hami-core", **fields) for i, m in enumerate(memory)
    )


def numbered(memory: int, number: int) -> tuple[SharedGpu, ...]:
    return tuple(SharedGpu(str(i), memory) for i in range(number))


def placed(snapshot: Snapshot, rules: RuleSet = RULES) -> int:
    """Return the number of placed tasks, which must be equal in both engines."""
    bench = Bench.of(snapshot, rules, ("admission", "tasks"))
    greedy, best = bench.greedy(), bench.improved().decisions
    for decisions in (greedy, best):
        assert bench.broken(decisions) == []
    found = int((best.node_of >= 0).sum())
    assert int((greedy.node_of >= 0).sum()) == found
    return found


def host(name: str = "n", *made: SharedGpu) -> Node:
    return node(name, 64, shared_gpus=made)


def many(what: TaskShape, number: int = 9) -> Any:
    return gang("g", ("w", number, what), least=1)


# --- what cards admit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "made", "number"),
    [
        (vgpu(memory=300), shared_gpus(1000), 3),
        (vgpu(memory=100), shared_gpus(1000), 4),
        (vgpu(percent=50), shared_gpus(1000, 500), 4),
        (vgpu(memory=100, cores=40), shared_gpus(1000), 2),
        (vgpu(memory=100, cores=100), shared_gpus(1000, 1000), 2),
        (vgpu(2, memory=400), shared_gpus(1000, 1000), 2),
        (vgpu(2, memory=400), shared_gpus(1000, 1000, 1000), 3),
        (vgpu(percent=100), shared_gpus(1000, sharers=9), 1),
        (vgpu(memory=10), (), 0),
        (vgpu(memory=10), shared_gpus(1000, is_healthy=False), 0),
        (vgpu(memory=10), (replace(shared_gpus(1000)[0], mode="mig"),), 0),
        (vgpu(memory=10), numbered(1000, 2), 0),
    ],
)
def test_as_many_as_cards_have_room_for(
    what: TaskShape, made: tuple[SharedGpu, ...], number: int
) -> None:
    if what.shared_gpus[0].number == 2 and len(made) == 3:
        # The pipeline starts with the last GPU and uses two GPUs per task, so no GPU remains.
        bench = Bench.of(cluster([host("n", *made)], [many(what)]), RULES, ("admission", "tasks"))
        assert int((bench.improved().decisions.node_of >= 0).sum()) == number
        assert int((bench.greedy().node_of >= 0).sum()) <= number
        return
    assert placed(cluster([host("n", *made)], [many(what)])) == number


def test_two_halves_share_a_gpu_by_memory() -> None:
    half = TaskShape((("cpu", 100), ("volcano.sh/gpu-memory", 8000)))
    offers = (("cpu", 64000), ("pods", 10), ("volcano.sh/gpu-memory", 32000))
    made = replace(host("n", *numbered(16000, 2)), allocatable=offers)
    assert placed(cluster([made], [many(half)]), BY_MEMORY) == 4
    big = TaskShape((("cpu", 100), ("volcano.sh/gpu-memory", 20000)))
    assert placed(cluster([made], [many(big, 1)]), BY_MEMORY) == 0


def test_whole_gpus_by_number_share_with_nobody() -> None:
    two = TaskShape((("cpu", 100), ("volcano.sh/gpu-number", 2)))
    offers = (("cpu", 64000), ("pods", 10), ("volcano.sh/gpu-number", 4))
    made = replace(host("n", *numbered(16000, 4)), allocatable=offers)
    resident = replace(
        gang("r", ("w", 1, two)).tasks[0], shared_gpus=(GpuShare("1", 0), GpuShare("2", 0))
    )
    there = replace(made, residents=(running(resident, "n"),))
    assert placed(cluster([there], [many(two)]), BY_NUMBER) == 1


@pytest.mark.parametrize(
    ("notes", "number"),
    [
        ((("nvidia.com/use-gputype", "a100,T4"),), 1),
        ((("nvidia.com/nouse-gputype", "t4"),), 2),
        ((("volcano.sh/vgpu-mode", "mig"),), 0),
        ((("volcano.sh/vgpu-use-gpuuuid", "GPU-x,GPU-z"),), 1),
        ((("volcano.sh/vgpu-nouse-gpuuuid", "GPU-x, GPU-0"),), 1),
        ((("volcano.sh/vgpu-use-gpuuuid", "GPU-x"), ("volcano.sh/vgpu-nouse-gpuuuid", "GPU-x")), 0),
    ],
)
def test_models_and_modes_that_a_pod_names(notes: tuple[tuple[str, str], ...], number: int) -> None:
    made = (
        replace(shared_gpus(1000)[0], model="NVIDIA-Tesla T4"),
        replace(shared_gpus(1000)[0], key="GPU-x", model="NVIDIA-V100"),
        replace(shared_gpus(1000)[0], key="GPU-y", model="NVIDIA-V100"),
    )
    what = replace(vgpu(percent=100), notes=notes)
    assert placed(cluster([host("n", *made)], [many(what)])) == number


# --- residents -----------------------------------------------------------------------------------


def test_residents_keep_what_they_were_told() -> None:
    task = gang("r", ("w", 1, vgpu(memory=600))).tasks[0]
    told = replace(running(task, "n"), shared_gpus=(GpuShare("GPU-0", 600, 100),))
    untold = replace(running(task, "n"), key="ns/untold")
    used = VGPU.resident_use(replace(host("n", *shared_gpus(1000, 1000)), residents=(told, untold)))
    assert [(u.memory, u.cores, u.number) for u in used] == [(600, 100, 1), (600, 0, 1)]


@pytest.mark.parametrize(("rest", "memory"), [(2, [200, 200]), (3, [0, 200])])
def test_residents_without_known_shares_are_allocated_together(
    rest: int, memory: list[int]
) -> None:
    """In order of names, both single vGPUs get GPU-1, and the pod of several vGPUs gets none."""
    task = gang("r", ("w", 1, vgpu(memory=100))).tasks[0]
    wide = replace(task, shape=vgpu(rest, memory=100))
    residents = tuple(
        replace(running(each, "n"), key=f"ns/{name}")
        for name, each in (("a", task), ("b", task), ("c", wide))
    )
    used = VGPU.resident_use(replace(host("n", *shared_gpus(200, 200)), residents=residents))
    assert [use.memory for use in used] == memory


def test_nobody_joins_a_card_whose_cores_are_all_taken() -> None:
    task = running(gang("r", ("w", 1, vgpu(memory=1, cores=60))).tasks[0], "n")
    pair = [
        replace(task, key=f"ns/{i}", shared_gpus=(GpuShare("GPU-0", 1, cores),))
        for i, cores in enumerate((60, 40))
    ]
    made = replace(host("n", *shared_gpus(1000)), residents=tuple(pair))
    assert placed(cluster([made], [many(vgpu(memory=1))])) == 0


def test_pods_of_a_group_that_spread_share_no_card() -> None:
    apart = replace(vgpu(memory=100), notes=((VGPU_PODGROUP_POLICY, "ns/g"),))
    assert placed(cluster([host("n", *shared_gpus(1000, 1000, 1000))], [many(apart)])) == 3
    there = replace(
        running(gang("r", ("w", 1, apart)).tasks[0], "n"), shared_gpus=(GpuShare("GPU-1", 9),)
    )
    made = replace(host("n", *shared_gpus(1000, 1000)), residents=(there,))
    assert placed(cluster([made], [many(apart)])) == 1
    others = replace(vgpu(memory=100), notes=((VGPU_PODGROUP_POLICY, "ns/h"),))
    assert placed(cluster([made], [many(others)])) == 2
    assert placed(cluster([made], [many(vgpu(memory=100))])) == 7
    full = cluster([host("n", *shared_gpus(1000))], [many(apart, 2)])
    said = reason(replace(full, gangs=(replace(full.gangs[0], min_member=2),)), RULES, "g")
    assert "room for 1 only: refused by deviceshare" in said


# --- engines against the verifier ----------------------------------------------------------------


def cut(card: SharedGpu) -> SharedGpu:
    """Return the GPU with MIG geometries: quarters, a half and two quarters, or one whole."""
    unit = card.memory // 4
    quarters = Geometry("g1", (Instance("1g", unit, 4),))
    mixed = Geometry("g2", (Instance("2g", 2 * unit, 1), Instance("1g", unit, 2)))
    whole = Geometry("g3", (Instance("4g", 4 * unit, 1),))
    return replace(card, mode="mig", geometries=(quarters, mixed, whole))


def random_cards(rng: np.random.Generator) -> Snapshot:
    nodes = []
    for n in range(2):
        memory = [int(rng.choice([400, 800])) for _ in range(int(rng.integers(0, 4)))]
        made = shared_gpus(*memory, sharers=int(rng.integers(1, 4)))
        nodes.append(host(f"n{n}", *(cut(c) if rng.random() < 0.4 else c for c in made)))
    shapes = [
        vgpu(
            int(rng.integers(1, 3)),
            int(rng.choice([0, 200, 400])),
            int(rng.choice([25, 50, 100])),
            int(rng.choice([0, 0, 30, 50, 100])),
        )
        for _ in range(3)
    ]
    shapes = [
        replace(s, shared_gpus=(replace(r, percent=0 if r.memory else r.percent),))
        for s in shapes
        for r in s.shared_gpus
    ]
    if rng.random() < 0.4:
        group = str(rng.choice(["ns/a", "ns/b"]))
        shapes[:2] = (replace(s, notes=((VGPU_PODGROUP_POLICY, group),)) for s in shapes[:2])
    if rng.random() < 0.4:
        by_labels = (EXCLUSIVE, str(rng.choice(["labels:0", "labels:0 labels:1"])))
        shapes[1:] = (replace(s, notes=tuple(sorted((by_labels, *s.notes)))) for s in shapes[1:])
    gangs = [
        gang(f"g{i}", ("w", int(rng.integers(1, 3)), shapes[int(rng.integers(3))]), least=1)
        for i in range(3)
    ]
    resident = gang("r", ("w", 1, shapes[0]))
    at = str(rng.choice(["n0", "n1"]))
    return cluster(nodes, [*gangs, replace(resident, tasks=(running(resident.tasks[0], at),))])


@pytest.mark.parametrize("seed", range(num_examples(25)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    assert_optimum(random_cards(np.random.default_rng(seed)), RULES)


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_rows_allow_just_what_the_verifier_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_rows_as_verified(rng, random_cards(rng), RuleSet.of(VGPU), [None, "n0", "n1"])


# --- MIG -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(num_examples(40)))
def test_slices_of_a_gpu_are_those_of_one_geometry(seed: int) -> None:
    rng = np.random.default_rng(seed)
    card = cut(shared_gpus(400, sharers=9)[0])
    memory = [int(m) for m in rng.choice([50, 100, 150, 200, 350, 500], int(rng.integers(1, 5)))]
    gangs = [gang(f"g{i}", ("w", 1, vgpu(memory=m))) for i, m in enumerate(memory)]
    bench = Bench.of(cluster([host("n", card)], gangs), RULES, ("admission",))
    plan = {t.key: "n" for t in bench.problem.tasks}
    slices = [[i.memory for i in g.instances for _ in range(i.number)] for g in card.geometries]
    fits = any(
        all(m <= got for m, got in zip(memory, way, strict=True))
        for each in slices
        for way in permutations(each, len(memory))
    )
    assert (not bench.broken(bench.decisions(plan))) is fits
    assert bench.direct_allows(plan) is fits
    assert bench.broken(bench.greedy()) == []


@pytest.mark.parametrize(
    ("what", "number"),
    [
        (vgpu(memory=100), 4),
        (vgpu(memory=150), 1),
        (vgpu(memory=300), 1),
        (vgpu(percent=25), 4),
        (vgpu(percent=100), 1),
        (vgpu(memory=401), 0),
        (vgpu(memory=100, cores=100), 1),
        (replace(vgpu(memory=100), notes=(("volcano.sh/vgpu-mode", "mig"),)), 4),
        (replace(vgpu(memory=100), notes=(("volcano.sh/vgpu-mode", "hami-core"),)), 0),
    ],
)
def test_a_gpu_is_cut_as_pods_need_it(what: TaskShape, number: int) -> None:
    made = cut(shared_gpus(400, sharers=9)[0])
    assert placed(cluster([host("n", made)], [many(what)])) == number


def test_slices_that_run_decide_how_the_rest_is_cut() -> None:
    made = cut(shared_gpus(400, sharers=9)[0])
    task = gang("r", ("w", 1, vgpu(memory=150))).tasks[0]
    there = replace(running(task, "n"), shared_gpus=(GpuShare("GPU-0", 200, instance="g2-0"),))
    (used,) = VGPU.resident_use(replace(host("n", made), residents=(there,)))
    assert used.slices == (((1, 0), 1),)
    snapshot = cluster([replace(host("n", made), residents=(there,))], [many(vgpu(memory=100))])
    assert placed(snapshot) == 2
    actions = with_cards(
        snapshot, Bench.of(snapshot, RULES).actions(Bench.of(snapshot, RULES).greedy()), RULES
    )
    got = sorted(u.instance for a in actions if isinstance(a, Allocate) for u in a.shared_gpus)
    assert got == ["g2-1", "g2-2"]
    strange = replace(there, shared_gpus=(GpuShare("GPU-0", 200, instance="old-7"),))
    full = cluster([replace(host("n", made), residents=(strange,))], [many(vgpu(memory=100))])
    assert placed(full) == 0


def test_configurations_leave_them_to_the_greedy_plan() -> None:
    bench = Bench.of(cluster([host("n", *shared_gpus(1000))], [many(vgpu(memory=300))]), RULES)
    assert bench.tied_by() == ("deviceshare",)


# --- scores and words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefers", "node_of"), [(Prefers.BINPACK, "used"), (Prefers.SPREAD, "empty")]
)
def test_nodes_with_cards_in_use_or_idle_come_first(prefers: Prefers, node_of: str) -> None:
    task = gang("r", ("w", 1, vgpu(memory=300))).tasks[0]
    used = replace(host("used", *shared_gpus(1000)), residents=(running(task, "used"),))
    rule = DeviceShare(by_vgpu=True, prefers=prefers, weight=10)
    snapshot = cluster([host("empty", *shared_gpus(1000)), used], [many(vgpu(memory=300), 1)])
    bench = Bench.of(snapshot, RuleSet.of(Gang(), rule))
    assert snapshot.nodes[int(bench.greedy().node_of[0])].name == node_of


def test_who_waits_is_told_what_no_card_had() -> None:
    snapshot = cluster([host("n", *shared_gpus(1000))], [many(vgpu(2, memory=300, cores=20), 1)])
    said = reason(snapshot, RULES, "g")
    assert "1 node had fewer than 2 vGPUs with 300 memory and 20% cores free" in said


def test_switched_off_it_asks_for_nothing() -> None:
    problem = compile_problem(cluster([host()], [many(vgpu(memory=1))]))
    assert not DeviceShare().ties_nodes(problem, 0)
    assert DeviceShare().mask(problem, 0) is None


# --- configuration -------------------------------------------------------------------------------

TEXT = """actions: allocate
tiers:
- plugins:
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
      deviceshare.SchedulePolicy: binpack
      deviceshare.ScheduleWeight: 10
"""


def test_arguments() -> None:
    policy = parse_policy(TEXT, "conf")
    (rule,) = (a.rule for a in policy.rules.active)
    assert rule == DeviceShare(by_vgpu=True, prefers=Prefers.BINPACK, weight=10)


def test_a_gpu_is_shared_in_one_way_only() -> None:
    both = TEXT + "      deviceshare.GPUSharingEnable: true\n"
    with pytest.raises(PolicyError, match="a GPU is shared in one way only"):
        parse_policy(both, "conf")
