"""Tests of the fewest victims, compared with every set of evictions."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from optsched.api.wellknown import VGPU_PODGROUP_POLICY
from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.dra_devices import (
    DeviceAllocation,
    DeviceClaim,
    DeviceClaimRequest,
    DeviceClass,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
)
from optsched.cluster.node_resources import (
    Alignment,
    Geometry,
    GpuShareRequest,
    Instance,
    Numa,
    NumaCell,
    NumaHold,
    NumaNeed,
    NumaPart,
    SharedGpu,
)
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Claim, GangPhase, NodeGroups, Queue, Snapshot
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm, SpreadTerm, TaskShape
from optsched.cluster.topology import SubGroupRule
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.devices.gpu_shares import Holding
from optsched.plugins.devices.numa_aware import NumaAware, NumaPolicies
from optsched.plugins.devices.numa_cells import Free, assign, layout_of, options
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Entitled
from optsched.plugins.eviction.victims import Conformance
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import HostPorts
from optsched.plugins.nodes.nodegroup import GROUP, NodeGroup
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.storage.volume_limits import VolumeLimits
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.topology.spread import Spread
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.running import running_tasks
from optsched.problem.tiers import priority_tiers
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.solver.preemption.sequential import stage
from optsched.solver.preemption.sequential.heuristic import solve_heuristically
from optsched.solver.preemption.sequential.stage import VictimSearchSettings, find_victims
from tests.support.effort import num_examples
from tests.support.small import CPU, GPU, HOST, ZONE, cluster, gang, node, running, shape

ALONE = (Priority(), GangRule(), Conformance(), Capacity(), Capability(), Guarantee())
RULES = RuleSet.of(*ALONE)
GUARDED = RULES.guarded_by(Entitled(RULES))
NEAR = RuleSet.of(*ALONE, PodAffinity(), HostPorts())
NEAR_GUARDED = NEAR.guarded_by(Entitled(NEAR))


RELATED = RuleSet.of(*ALONE, PodAffinity(), HostPorts(), Spread())
RELATED_GUARDED = RELATED.guarded_by(Entitled(RELATED))


def random_cluster(rng: np.random.Generator):
    """Return two or three nodes, at most six running tasks, and a waiting gang of up to three."""
    nodes = [
        node(f"n{i}", cpu=int(rng.integers(2, 7)), gpu=int(rng.integers(0, 5))) for i in range(2)
    ]
    queues = [
        Queue(
            name,
            deserved=_maybe(rng, ((CPU, int(rng.integers(1, 8)) * 1000),)),
            guarantee=_maybe(rng, ((CPU, int(rng.integers(0, 3)) * 1000),)),
            capability=_maybe(rng, ((CPU, int(rng.integers(3, 12)) * 1000),)) or None,
            reclaimable=bool(rng.random() < 0.8),
            parent="root" if name == "qa" or rng.random() < 0.6 else "qa",
        )
        for name in ("qa", "qb", "qc")
    ]
    free = {
        n.name: [dict(n.allocatable)[CPU] // 1000, dict(n.allocatable).get(GPU, 0)] for n in nodes
    }
    gangs = []
    for g in range(int(rng.integers(1, 5))):
        made = gang(
            f"r{g}",
            ("w", int(rng.integers(1, 4)), shape(int(rng.integers(0, 3)), int(rng.integers(0, 3)))),
            least=None if rng.random() < 0.6 else 1,
            priority=int(rng.integers(1, 4)),
            queue=str(rng.choice(["qa", "qb", "qc"])),
        )
        tasks = []
        for task in made.tasks:
            asked = dict(task.shape.request)
            cpu, gpu = asked.get(CPU, 0) // 1000, asked.get(GPU, 0)
            fits = [n for n, (c, x) in free.items() if c >= cpu and x >= gpu]
            if fits:
                where = str(rng.choice(fits))
                free[where][0] -= cpu
                free[where][1] -= gpu
                tasks.append(replace(running(task, where), preemptable=bool(rng.random() < 0.9)))
        if tasks:
            least = min(made.min_member, len(tasks))
            gangs.append(
                replace(made, tasks=tuple(tasks), min_member=least, phase=GangPhase.RUNNING)
            )
    want = gang(
        "want",
        ("w", int(rng.integers(1, 4)), shape(int(rng.integers(1, 4)), int(rng.integers(0, 3)))),
        priority=int(rng.integers(1, 5)),
        queue=str(rng.choice(["qa", "qb"])),
    )
    return cluster(nodes, [*gangs, want], queues)


def _maybe(rng: np.random.Generator, value: object) -> object:
    return value if rng.random() < 0.6 else ()


def plans(snapshot, problem):
    """Yield every way to evict tasks and place the gang, fewest evictions first."""
    tasks = running_tasks(problem).tasks
    waiting = [t for g in snapshot.gangs if g.key == "ns/want" for t in g.tasks]
    queue_of = {g.key: g.queue for g in snapshot.gangs}
    for number in range(len(tasks) + 1):
        for chosen in combinations(tasks, number):
            evictions = [
                Evict(
                    t.key,
                    t.node,
                    PREEMPT if queue_of[t.gang] == queue_of["ns/want"] else RECLAIM,
                    "ns/want",
                )
                for t in chosen
            ]
            for spots in list_assignments(len(waiting), [n.name for n in snapshot.nodes]):
                nominations = [
                    Nominate(t.key, n, t.gang) for t, n in zip(waiting, spots, strict=True)
                ]
                yield number, [*evictions, *nominations]


def list_assignments(number: int, names: list[str]):
    """Return the assignments of equal tasks to nodes, each multiset once."""
    from itertools import combinations_with_replacement

    return combinations_with_replacement(names, number)


def fewest(snapshot, problem, guarded: RuleSet) -> int | None:
    for number, actions in plans(snapshot, problem):
        if not verify_actions(snapshot, actions, guarded):
            return number
    return None


@pytest.mark.parametrize("seed", range(num_examples(150)))
def test_the_fewest_victims_are_found(seed: int):
    compare(random_cluster(np.random.default_rng(seed)), GUARDED)


def compare(snapshot, guarded: RuleSet) -> None:
    """Check that the chosen victims are as few as those of the best plan."""
    problem = compile_problem(snapshot)
    tiers = priority_tiers(problem, problem.priority, 60_000)
    limits = Limits(budget_ms=None, num_workers=1)
    found = find_victims(
        problem,
        guarded,
        tiers,
        Decisions.nothing(problem),
        frozenset({PREEMPT, RECLAIM}),
        VictimSearchSettings(InProcess(), lambda: None, limits),
    )
    least = fewest(snapshot, problem, guarded)
    if found.evictions:
        assert len(found.evictions) == least
        assert not verify_actions(
            snapshot, [*found.evictions, *nominations_of(problem, found)], guarded
        )
        level = found.results[0]
        # A guarantee may allow fewer victims than the chosen ones, so only one victim is proved.
        has_guarantee = bool(problem.queues.guarantee.any())
        assert level.value == least
        assert level.bound == least or (has_guarantee and level.bound == 1)
    else:
        assert least in (None, 0)


def nominations_of(problem, found):
    """Yield the nominations of the tasks for which victims were chosen."""
    for g, nominations in found.nominations.items():
        first = int(problem.shapes.start[problem.shape_of[g]])
        for entry, at, number in nominations:
            start = int(problem.task_start[g] + problem.shapes.offset[first + entry])
            start += sum(k for e, n, k in nominations if e == entry and n < at)
            for task in problem.tasks[start : start + number]:
                yield Nominate(task.key, problem.snapshot.nodes[at].name, task.gang)


def with_neighbours(rng: np.random.Generator, snapshot):
    """Return the cluster with anti-affinity of pods by host, by zone and by host port."""
    changed = []
    for each in snapshot.gangs:
        fields: dict[str, object] = {}
        if rng.random() < 0.5:
            app = Requirement("app", Operator.IN, (str(rng.choice(["x", "y"])),))
            term = PodTerm(LabelSelector((app,)), ("ns",), None, str(rng.choice([HOST, ZONE])))
            fields["pod_anti_affinity"] = (term,)
        if rng.random() < 0.3:
            fields["host_ports"] = (HostPort("TCP", "0.0.0.0", 80),)
        labels = {"app": str(rng.choice(["x", "y"]))}
        tasks = [replace(t, shape=replace(t.shape, **fields), labels=labels) for t in each.tasks]
        changed.append(replace(each, tasks=tuple(tasks)))
    zone = rng.choice(["a", "b"], len(snapshot.nodes)).tolist()
    nodes = [
        replace(n, labels={**n.labels, ZONE: z}, residents=())
        for n, z in zip(snapshot.nodes, zone, strict=True)
    ]
    return cluster(nodes, changed, snapshot.queues)


@pytest.mark.parametrize("seed", range(num_examples(150)))
def test_the_fewest_victims_are_found_where_pods_keep_others_away(seed: int):
    rng = np.random.default_rng(10_000 + seed)
    compare(with_neighbours(rng, random_cluster(rng)), NEAR_GUARDED)


def with_groups(rng: np.random.Generator, snapshot):
    """Return the cluster with gangs that consist of subgroups."""
    changed = []
    for each in snapshot.gangs:
        if each.key != "ns/want" and rng.random() < 0.8:
            size, groups = int(rng.integers(1, 3)), int(rng.integers(0, 3))
            rule = SubGroupRule("part", size, groups, keys=("part",))
            tasks = [replace(t, labels={"part": str(rng.choice(["a", "b"]))}) for t in each.tasks]
            least = int(rng.integers(0, len(tasks) + 1))
            each = replace(each, sub_groups=(rule,), tasks=tuple(tasks), min_member=least)
        changed.append(each)
    bare = [replace(n, residents=()) for n in snapshot.nodes]
    return cluster(bare, changed, snapshot.queues)


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_gangs_run_in_groups(seed: int):
    rng = np.random.default_rng(20_000 + seed)
    compare(with_groups(rng, random_cluster(rng)), GUARDED)


def with_relations(rng: np.random.Generator, snapshot):
    """Return the cluster with pod affinities and topology spread constraints."""
    changed = []
    for each in snapshot.gangs:
        app = LabelSelector((Requirement("app", Operator.IN, (str(rng.choice(["x", "y"])),)),))
        key, skew = str(rng.choice([HOST, ZONE])), int(rng.integers(1, 3))
        near = (PodTerm(app, ("ns",), None, key),)
        spread = (SpreadTerm(skew, key, app, "ns"),)
        choices: list[dict[str, object]] = [
            {"pod_affinity": near},
            {"spread": spread},
            {"pod_affinity": near, "spread": spread},
            {"pod_anti_affinity": near},
        ]
        is_asking = each.key == "ns/want"
        fields = choices[int(rng.integers(4))] if is_asking or rng.random() < 0.3 else {}
        labels = {"app": str(rng.choice(["x", "y"]))}
        tasks = [replace(t, shape=replace(t.shape, **fields), labels=labels) for t in each.tasks]
        priority = 9 if is_asking and rng.random() < 0.7 else each.priority
        changed.append(replace(each, tasks=tuple(tasks), priority=priority))
    zone = rng.choice(["a", "b"], len(snapshot.nodes)).tolist()
    nodes = [
        replace(n, labels={**n.labels, ZONE: z}, residents=())
        for n, z in zip(snapshot.nodes, zone, strict=True)
    ]
    return cluster(nodes, changed, snapshot.queues)


@pytest.mark.parametrize("seed", range(num_examples(150)))
def test_the_fewest_victims_are_found_where_pods_look_at_each_other(seed: int):
    rng = np.random.default_rng(30_000 + seed)
    compare(with_relations(rng, random_cluster(rng)), RELATED_GUARDED)


# --- shared cards --------------------------------------------------------------------------------

VGPU = DeviceShare(by_vgpu=True)
CARDS = RuleSet.of(*ALONE, VGPU)
CARDS_GUARDED = CARDS.guarded_by(Entitled(CARDS))


def with_cards(rng: np.random.Generator, snapshot):
    """Return the cluster with shared GPUs, some of which use MIG."""
    bare = [
        replace(
            n,
            residents=(),
            shared_gpus=tuple(random_card(rng, i) for i in range(int(rng.integers(1, 4)))),
        )
        for n in snapshot.nodes
    ]
    by_name = {n.name: n for n in bare}
    changed = []
    for each in snapshot.gangs:
        is_asking = each.key == "ns/want"
        tasks = []
        for task in each.tasks:
            made = asking_for_cards(rng, task) if is_asking or rng.random() < 0.9 else task
            if task.node:
                made = on_cards(by_name, made) or task
                here = by_name[task.node]
                by_name[task.node] = replace(here, residents=(*here.residents, made))
            tasks.append(made)
        if is_asking:
            tasks = [replace(t, shape=tasks[0].shape) for t in tasks]
        changed.append(replace(each, tasks=tuple(tasks), priority=9 if is_asking else 1))
    return cluster(bare, changed, snapshot.queues)


def random_card(rng: np.random.Generator, number: int) -> SharedGpu:
    made = SharedGpu(
        f"GPU-{number}", int(rng.choice([400, 800])), int(rng.integers(1, 4)), "hami-core"
    )
    if rng.random() < 0.7:
        return made
    small, large = Instance("1g", 200, 2), Instance("2g", made.memory, 1)
    allocations = (Geometry("group1", (small,)), Geometry("group2", (large,)))
    return replace(made, mode="mig", geometries=allocations)


def asking_for_cards(rng: np.random.Generator, task):
    cores = int(rng.choice([0, 0, 30, 50, 100]))
    request = GpuShareRequest(int(rng.integers(1, 3)), int(rng.choice([100, 200, 400])), 0, cores)
    notes = ((VGPU_PODGROUP_POLICY, "together"),) if rng.random() < 0.2 else ()
    return replace(task, shape=replace(task.shape, shared_gpus=(request,), notes=notes))


def on_cards(by_name, task):
    """Return the task with its allocated GPUs on its node, or None if they do not fit."""
    here = by_name[task.node]
    alone = replace(gang("r", ("w", 1, task.shape)), key=task.gang, tasks=(task,))
    world = World(Snapshot(0, (here,), (alone,), ()), [Allocate(task.key, here.name, task.gang)])
    if list(VGPU.verify(world)):
        return None
    return replace(task, shared_gpus=VGPU.allocate_devices(world).get(task.key, ()))


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_pods_share_gpus(seed: int):
    rng = np.random.default_rng(40_000 + seed)
    compare(with_cards(rng, random_cluster(rng)), CARDS_GUARDED)


def in_parts(rng: np.random.Generator):
    """Return one or two nodes full of pods with GPU shares or whole GPUs, and a waiting gang."""
    nodes = [node(f"n{i}", cpu=9, gpu=int(rng.integers(1, 3))) for i in range(rng.integers(1, 3))]
    gangs = []
    for n in nodes:
        here: list[int] = []
        for part in rng.choice([200, 300, 400, 500, 600, 700, 1000], 4).tolist():
            if Holding(dict(n.allocatable)[GPU], 0, tuple(sorted([*here, part])[::-1])).fits:
                here.append(part)
                made = gang(f"r{len(gangs)}", ("w", 1, having(part)), priority=1)
                gangs.append(replace(made, tasks=(running(made.tasks[0], n.name),)))
    if rng.random() < 0.5 and len(gangs) > 1:
        both = (*gangs[0].tasks, replace(gangs[1].tasks[0], gang=gangs[0].key))
        gangs[:2] = [replace(gangs[0], tasks=both, min_member=int(rng.integers(1, 3)))]
    gangs = [replace(g, phase=GangPhase.RUNNING) for g in gangs]
    asked = having(int(rng.choice([300, 400, 500, 600, 700, 800, 1000])))
    return cluster(nodes, [*gangs, gang("want", ("w", int(rng.integers(1, 3)), asked), priority=9)])


def having(part: int) -> TaskShape:
    """Return a shape that requests one CPU and a GPU share or a whole GPU."""
    return shape(1, 1) if part == 1000 else shape(1, device=DeviceRequest(1, part))


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_pods_have_parts_of_gpus(seed: int):
    rng = np.random.default_rng(70_000 + seed)
    compare(in_parts(rng), GUARDED)


# --- limits of queues on groups of nodes ---------------------------------------------------------

LIMITED = RuleSet.of(*ALONE, NodeGroup())
LIMITED_GUARDED = LIMITED.guarded_by(Entitled(LIMITED))


def within_limits(rng: np.random.Generator):
    """Return two nodes with idle capacity, and a queue near the limit of its node group."""
    groups = ["g1", str(rng.choice(["g1", "g2"]))]
    nodes = [node(f"n{i}", cpu=20, labels={GROUP: g}) for i, g in enumerate(groups)]
    gangs = []
    for i in range(int(rng.integers(2, 5))):
        made = gang(
            f"r{i}",
            ("w", int(rng.integers(1, 3)), shape(int(rng.integers(1, 3)))),
            least=1 if rng.random() < 0.5 else None,
            queue=str(rng.choice(["qa", "qa", "qb"])),
        )
        where = str(rng.choice(["n0", "n0", "n1"]))
        tasks = tuple(running(t, where) for t in made.tasks)
        gangs.append(replace(made, tasks=tasks, phase=GangPhase.RUNNING, priority=1))
    limits = (("g1", ((CPU, int(rng.integers(2, 7)) * 1000),)),)
    queues = [Queue("qa", node_groups=NodeGroups(("g1", "g2"), limits=limits)), Queue("qb")]
    asked = shape(int(rng.integers(1, 4)))
    want = gang("want", ("w", int(rng.integers(1, 3)), asked), priority=9, queue="qa")
    return cluster(nodes, [*gangs, want], queues)


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_groups_of_nodes_have_limits(seed: int):
    rng = np.random.default_rng(80_000 + seed)
    compare(within_limits(rng), LIMITED_GUARDED)


# --- NUMA nodes ----------------------------------------------------------------------------------

CELLS = RuleSet.of(*ALONE, NumaPolicies(), NumaAware())
CELLS_GUARDED = CELLS.guarded_by(Entitled(CELLS))


def with_cells(rng: np.random.Generator, snapshot):
    """Return the cluster with kubelets that align exclusively allocated CPUs and GPUs."""
    inside, changed = {}, []
    for each in snapshot.nodes:
        policy = (Alignment.SINGLE, Alignment.RESTRICTED)[int(rng.integers(2))]
        offers = dict(each.allocatable)
        cpus, gpus = offers[CPU] // 1000, offers.get(GPU, 0)
        at, split = int(rng.integers(1, cpus)), int(rng.integers(0, gpus + 1))
        cells = (NumaCell(0, at, 0, at, split, split),)
        cells += (NumaCell(1, cpus - at, 0, cpus - at, gpus - split, gpus - split),)
        inside[each.name] = Numa(policy, cells)
    for each in snapshot.gangs:
        is_asking = each.key == "ns/want"
        tasks = []
        for task in each.tasks:
            made = asking_for_cells(task) if is_asking or rng.random() < 0.8 else task
            if task.node and made is not task:
                numa = on_cells(rng, inside[task.node], made)
                made = task if numa is None else made
                inside[task.node] = numa or inside[task.node]
            tasks.append(made)
        changed.append(replace(each, tasks=tuple(tasks), priority=9 if is_asking else 1))
    nodes = [replace(n, residents=(), numa=inside[n.name]) for n in snapshot.nodes]
    return cluster(nodes, changed, snapshot.queues)


def asking_for_cells(task):
    asked = dict(task.shape.request)
    need = NumaNeed(asked.get(CPU, 0) // 1000, asked.get(GPU, 0))
    return replace(task, shape=replace(task.shape, numa=(need,))) if need.cpus else task


def on_cells(rng: np.random.Generator, numa: Numa, task) -> Numa | None:
    """Return the cells after a random admissible allocation of the task, or None."""
    layout = layout_of(replace(node("n"), numa=numa))
    free = Free(tuple(c.free_cpus for c in numa.cells), tuple(c.free_gpus for c in numa.cells))
    (need,) = layout.relevant_needs(task.shape.numa)
    found = [
        parts
        for option in options(layout, need)
        for some in [Free(masked(free.cpus, option.cpus), masked(free.gpus, option.gpus))]
        if (parts := assign(layout, some, [need]))
    ]
    if not found:
        return None
    parts = found[int(rng.integers(len(found)))]
    left = free.subtract(parts)
    cells = tuple(
        replace(c, free_cpus=left.cpus[i], free_gpus=left.gpus[i]) for i, c in enumerate(numa.cells)
    )
    hold = NumaHold(task.key, "", tuple(NumaPart(p.at, p.cpus, p.gpus) for p in parts))
    return replace(numa, cells=cells, holds=(*numa.holds, hold))


def masked(amounts: tuple[int, ...], cells: int) -> tuple[int, ...]:
    return tuple(a if cells >> i & 1 else 0 for i, a in enumerate(amounts))


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_kubelets_align(seed: int):
    rng = np.random.default_rng(50_000 + seed)
    compare(with_cells(rng, random_cluster(rng)), CELLS_GUARDED)


# --- devices of claims ---------------------------------------------------------------------------

CLAIMS = RuleSet.of(*ALONE, DeviceClaims())
CLAIMS_GUARDED = CLAIMS.guarded_by(Entitled(CLAIMS))
CLASSES = {
    "any": DeviceClass("any"),
    "big": DeviceClass("big", ('device.attributes["d"].size == "big"',)),
}


def with_claims(rng: np.random.Generator, snapshot):
    """Return the cluster with devices that some pods hold by claims, partly shared."""
    on_node = {n.name: random_devices(rng, n.name) for n in snapshot.nodes}
    free = {name: [d.id for d in devices] for name, devices in on_node.items()}
    claims, changed = {}, []
    for each in snapshot.gangs:
        is_asking = each.key == "ns/want"
        tasks = list(each.tasks)
        for i, task in enumerate(tasks if not is_asking else ()):
            held = [k for k, c in claims.items() if c.allocation.devices[0][1].pool == task.node]
            if held and rng.random() < 0.2:
                tasks[i] = replace(task, device_claims=(str(rng.choice(held)),))
            elif free[task.node] and rng.random() < 0.8:
                device = free[task.node].pop(int(rng.integers(len(free[task.node]))))
                key = f"{task.key}-claim"
                got = DeviceAllocation(None, (("r", device),))
                claims[key] = DeviceClaim(key, needs=(DeviceNeed("r", "any"),), allocation=got)
                tasks[i] = replace(task, device_claims=(key,))
        if is_asking:
            need = DeviceNeed("r", str(rng.choice(["any", "big"])), int(rng.integers(1, 3)))
            is_shared = bool(rng.random() < 0.2)
            joins = some_claim(rng, claims)
            for i, task in enumerate(tasks):
                key = "ns/shared" if is_shared else f"{task.key}-claim"
                claims[key] = DeviceClaim(key, needs=(need,), is_per_pod=not is_shared)
                own = (DeviceClaimRequest((need,)),)
                tied = (*joins, key) if is_shared else joins
                made = replace(task.shape, device_claims=tied, devices=() if is_shared else own)
                tasks[i] = replace(task, shape=made, device_claims=(*joins, key))
        changed.append(replace(each, tasks=tuple(tasks), priority=9 if is_asking else 1))
    bare = [replace(n, residents=()) for n in snapshot.nodes]
    devices = Devices(claims, CLASSES, on_node)
    return replace(cluster(bare, changed, snapshot.queues), devices=devices)


def some_claim(rng: np.random.Generator, claims) -> tuple[str, ...]:
    """Return no claim in most cases, and otherwise a claim that potential victims use."""
    held = [key for key, claim in claims.items() if claim.allocation is not None]
    return (str(rng.choice(held)),) if held and rng.random() < 0.3 else ()


def random_devices(rng: np.random.Generator, name: str) -> tuple[PooledDevice, ...]:
    sizes = [str(rng.choice(["big", "small"])) for _ in range(int(rng.integers(1, 4)))]
    return tuple(
        PooledDevice(DeviceId("d", name, f"d{i}"), (("d/size", size),))
        for i, size in enumerate(sizes)
    )


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_claims_hold_devices(seed: int):
    rng = np.random.default_rng(61_000 + seed)
    compare(with_claims(rng, random_cluster(rng)), CLAIMS_GUARDED)


# --- volumes that nodes attach -------------------------------------------------------------------

ATTACHED = RuleSet.of(*ALONE, VolumeLimits())
ATTACHED_GUARDED = ATTACHED.guarded_by(Entitled(ATTACHED))


def with_volumes(rng: np.random.Generator, snapshot):
    """Return the cluster with pods that use volumes on nodes with few attachments."""
    keys = [f"ns/c{i}" for i in range(6)]
    claims = {key: Claim(key, driver=str(rng.choice(["x", "x", "y"])), handle=key) for key in keys}
    # The waiting pods are equal: they share volumes, or each has one of the same driver.
    shared, has_own = drawn(rng, keys), bool(rng.random() < 0.5)
    changed = []
    for each in snapshot.gangs:
        is_asking, tasks = each.key == "ns/want", []
        for task in each.tasks:
            named = shared if is_asking else drawn(rng, keys)
            if is_asking and has_own:
                named = [*named, f"{task.key}-own"]
                claims[named[-1]] = Claim(named[-1], driver="x", handle=named[-1])
            tasks.append(replace(task, shape=replace(task.shape, claims=tuple(sorted(named)))))
        changed.append(replace(each, tasks=tuple(tasks), priority=9 if is_asking else 1))
    bare = [replace(n, residents=()) for n in snapshot.nodes]
    there = cluster(bare, changed, snapshot.queues)
    nodes = []
    for n in there.nodes:
        held = {key for t in n.residents for key in t.shape.claims}
        limits = []
        for driver in "xy":
            number = sum(claims[key].driver == driver for key in held)
            limits.append((driver, number + int(rng.integers(0, 2))))
        nodes.append(replace(n, attach_limits=tuple(limits) if rng.random() < 0.9 else ()))
    return replace(there, nodes=tuple(nodes), claims=claims)


def drawn(rng: np.random.Generator, keys: list[str]) -> list[str]:
    return [str(key) for key in rng.choice(keys, int(rng.integers(0, 3)), replace=False)]


@pytest.mark.parametrize("seed", range(num_examples(100)))
def test_the_fewest_victims_are_found_where_nodes_attach_few_volumes(seed: int):
    rng = np.random.default_rng(70_000 + seed)
    compare(with_volumes(rng, random_cluster(rng)), ATTACHED_GUARDED)


# --- who has a place already ---------------------------------------------------------------------


def test_whom_others_want_near_does_not_leave_for_those_who_come_after():
    near = PodTerm(LabelSelector((Requirement("app", Operator.IN, ("x",)),)), ("ns",), None, HOST)
    wanted = gang("wanted", ("w", 1, shape(2)), priority=1, labels={"app": "x"})
    other = gang("other", ("w", 1, shape(2)), priority=2)
    runs = [
        replace(g, tasks=(running(g.tasks[0], "n0"),), phase=GangPhase.RUNNING)
        for g in (wanted, other)
    ]
    first = gang("first", ("w", 1, shape(2, pod_affinity=(near,))), priority=9)
    second = gang("second", ("w", 1, shape(2)), priority=5)
    problem = compile_problem(cluster([node("n0", cpu=6)], [*runs, first, second]))
    tiers = priority_tiers(problem, problem.priority, 60_000)
    node_of = np.array([0 if t.key == "ns/first-w-0" else -1 for t in problem.tasks], np.int64)
    placed = replace(Decisions.nothing(problem), node_of=node_of)
    settings = VictimSearchSettings(
        InProcess(), lambda: None, Limits(budget_ms=None, num_workers=1)
    )
    found = find_victims(problem, RELATED_GUARDED, tiers, placed, frozenset({PREEMPT}), settings)
    assert [e.task for e in found.evictions] == ["ns/other-w-0"]


# --- time ----------------------------------------------------------------------------------------


class SlowSolver(InProcess):
    """A solver that uses all the time of a search."""

    def __init__(self, left_ms: int) -> None:
        self.num_searches = 0
        self._left_ms = left_ms

    def left_ms(self) -> int:
        return self._left_ms

    def solve_heuristically(self, eviction):
        self._left_ms = max(self._left_ms - 20, 0)
        return solve_heuristically(eviction)

    def solve(self, model, limits, **more):
        self.num_searches += 1
        self._left_ms = max(self._left_ms - limits.budget_ms, 0)
        return super().solve(model, replace(limits, budget_ms=None), **more)


def test_every_gang_gets_victims_before_the_solver_has_taken_the_time(monkeypatch):
    """The search for the fewest victims of the first gang used up the budget."""
    names = [f"n{i}" for i in range(6)]
    runs = [gang(f"low-{n}", ("w", 1, shape(8)), priority=1) for n in names]
    runs = [
        replace(g, tasks=(running(g.tasks[0], n),), phase=GangPhase.RUNNING)
        for g, n in zip(runs, names, strict=True)
    ]
    # The gangs have different shapes, so each needs a separate search for victims.
    waiting = [
        gang(f"high-{n}", ("w", 1, shape(8 - i)), priority=9) for i, n in enumerate(names[:4])
    ]
    problem = compile_problem(cluster([node(n, cpu=8) for n in names], [*runs, *waiting]))
    tiers = priority_tiers(problem, problem.priority, 60_000)
    solver = SlowSolver(600)
    monkeypatch.setattr(stage, "solve_heuristically", solver.solve_heuristically)
    settings = VictimSearchSettings(solver, solver.left_ms, Limits(budget_ms=600, num_workers=1))
    nothing, reach = Decisions.nothing(problem), frozenset({PREEMPT})
    found = find_victims(problem, GUARDED, tiers, nothing, reach, settings)
    assert solver.num_searches > 0
    assert len(found.evictions) == len(waiting)
