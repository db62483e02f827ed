"""Tests of NUMA alignment: the kubelet's admission in every engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optsched.cluster.node_resources import Alignment, Numa, NumaCell, NumaHold, NumaNeed, NumaPart
from optsched.cluster.task import TaskStatus
from optsched.plugins.devices.numa_aware import NumaAware, NumaPolicies
from optsched.plugins.devices.numa_cells import MOST_FAILED, Free, Layout, holdings, packs
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.packing import Binpack
from optsched.policy import parse_policy
from optsched.problem.compile import compile_problem
from optsched.session.attempt import with_cards
from tests.support.effort import num_examples
from tests.support.engines import Bench, assert_optimum, assert_rows_as_verified, binds, reason
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task, TaskShape

RULES = RuleSet.of(Gang(), NumaPolicies(), NumaAware())
SINGLE, RESTRICTED = Alignment.SINGLE, Alignment.RESTRICTED
BEST_EFFORT = Alignment.BEST_EFFORT
POLICY = "volcano.sh/numa-topology-policy"


def cells(*amounts: int | tuple[int, int], gpus: int = 0) -> tuple[NumaCell, ...]:
    """Return NUMA cells with the given CPUs and idle GPUs.

    A pair states all and idle CPUs of a cell; a single number means that all are idle.
    """
    pairs = [a if isinstance(a, tuple) else (a, a) for a in amounts]
    return tuple(
        NumaCell(i, cpus, free_cpus=free, gpus=gpus, free_gpus=gpus)
        for i, (cpus, free) in enumerate(pairs)
    )


def host(name: str, policy: Alignment, *inside: NumaCell, **fields: Any) -> Node:
    """Return a node with the given NUMA cells."""
    cpus, gpus = sum(c.cpus for c in inside), sum(c.gpus for c in inside)
    return node(name, cpus, gpus, numa=Numa(policy, inside, **fields))


def asks(cpus: int, gpus: int = 0, policy: str = "") -> TaskShape:
    """Return the shape of a Guaranteed pod with one container."""
    notes = ((POLICY, policy),) if policy else ()
    return shape(cpus, gpus, numa=(NumaNeed(cpus, gpus),), notes=notes)


def many(what: TaskShape, number: int = 9, name: str = "g") -> Any:
    return gang(name, ("w", number, what), least=1)


def resident(name: str, where: str, what: TaskShape, **fields: Any) -> Task:
    task = gang(name, ("w", 1, what)).tasks[0]
    return replace(running(task, where), gang="", **fields)


def placed(snapshot: Snapshot, rules: RuleSet = RULES) -> int:
    """Return the number of placed tasks, which must be equal in both engines."""
    bench = Bench.of(snapshot, rules, ("admission", "tasks"))
    greedy, best = bench.greedy(), bench.improved().decisions
    for decisions in (greedy, best):
        assert bench.broken(decisions) == []
    found = int((best.node_of >= 0).sum())
    assert int((greedy.node_of >= 0).sum()) == found
    return found


# --- what kubelets admit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "what", "inside", "number"),
    [
        (SINGLE, asks(8, policy="single-numa-node"), cells(8, 8), 2),
        (SINGLE, asks(6, policy="single-numa-node"), cells(8, 8), 2),
        (SINGLE, asks(6), cells(8, 8), 2),
        (SINGLE, asks(9), cells(8, 8), 0),
        (SINGLE, asks(3), cells(8, (8, 5)), 3),
        (SINGLE, asks(2, 1), cells(8, 8, gpus=1), 2),
        (SINGLE, asks(1, 2), cells(8, 8, gpus=1), 0),
        (RESTRICTED, asks(6), cells(8, 8), 2),
        (RESTRICTED, asks(9), cells(8, 8), 1),
        (RESTRICTED, asks(4, 2), cells(8, 8, gpus=1), 1),
        (RESTRICTED, asks(12), cells(8, 8, 8), 2),
        (RESTRICTED, asks(12), cells(8, (8, 2), (8, 2)), 0),
        (BEST_EFFORT, asks(6), cells(8, 8), 2),
        (BEST_EFFORT, asks(9), cells(8, 8), 1),
        (Alignment.NONE, asks(9), cells(8, 8), 1),
        (Alignment.NONE, asks(9, policy="single-numa-node"), cells(8, 8), 0),
        (RESTRICTED, asks(6, policy="single-numa-node"), cells(8, 8), 0),
    ],
)
def test_as_many_as_the_kubelet_admits(
    policy: Alignment, what: TaskShape, inside: tuple[NumaCell, ...], number: int
) -> None:
    assert placed(cluster([host("n", policy, *inside)], [many(what)])) == number


def test_all_tasks_of_a_plan_are_packed_together() -> None:
    gangs = [gang("g", ("a", 2, asks(3)), ("b", 2, asks(5)))]
    snapshot = cluster([host("n", SINGLE, *cells(8, 8))], gangs)
    bench = Bench.of(snapshot, RULES, ("admission",))
    # Placed one by one, the tasks of three CPUs would fill a cell; a joint placement fits all four.
    assert (bench.improved().decisions.node_of >= 0).all()
    full = cluster([host("n", SINGLE, *cells((8, 7), 8))], gangs)
    tight = Bench.of(full, RULES)
    everything = {t.key: "n" for t in snapshot.gangs[0].tasks}
    assert tight.broken(tight.decisions(everything)) == ["numa-aware"]
    assert not tight.direct_allows(everything)


def test_containers_are_aligned_one_by_one() -> None:
    two = shape(12, numa=(NumaNeed(6), NumaNeed(6)))
    assert placed(cluster([host("n", SINGLE, *cells(8, 8))], [many(two)])) == 1
    assert placed(cluster([host("n", SINGLE, *cells(16, (8, 0)))], [many(two)])) == 1


def test_pods_without_cpus_of_their_own_go_anywhere() -> None:
    shared = shape(9, notes=((POLICY, "single-numa-node"),))
    assert placed(cluster([host("n", SINGLE, *cells(8, 8))], [many(shared, 1)])) == 1


def test_gpus_without_a_place_are_not_looked_at() -> None:
    made = replace(host("n", SINGLE, *cells(8, 8)), allocatable=node("n", 16, 4).allocatable)
    assert placed(cluster([made], [many(asks(1, 4), 1)])) == 1


@pytest.mark.parametrize("seed", range(num_examples(40)))
def test_packing_is_what_trying_every_split_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 4))
    policy = (SINGLE, RESTRICTED)[seed % 2]
    cpus = tuple(int(rng.integers(1, 5)) for _ in range(number))
    gpus = tuple(int(rng.integers(0, 3)) for _ in range(number))
    free = Free(
        tuple(int(rng.integers(0, c + 1)) for c in cpus),
        tuple(int(rng.integers(0, g + 1)) for g in gpus),
    )
    needs = [
        NumaNeed(int(rng.integers(0, 5)), int(rng.integers(0, 3)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    layout = Layout(policy, cpus, gpus)
    assert packs(layout, free, needs) is tried(layout, free, needs)


FULL = [11, 3, 6, 6, 14, 24, 8, 3, 5, 5, 19, 3, 13, 13, 17, 1, 9, 6, 4, 8, 22, 7, 20, 8, 5]
"""Six cells of 40 CPUs, cut up: in some way these fit, and there are many in which they do not."""


@pytest.mark.parametrize(("most", "fits"), [(MOST_FAILED, False), (100 * MOST_FAILED, True)])
def test_packing_gives_up_after_many_failures(
    monkeypatch: pytest.MonkeyPatch, most: int, fits: bool
) -> None:
    monkeypatch.setattr("optsched.plugins.devices.numa_cells.MOST_FAILED", most)
    free = Free((40,) * 6, (0,) * 6)
    needs = [NumaNeed(cpus) for cpus in FULL]
    assert packs(Layout(SINGLE, free.cpus, free.gpus), free, needs) is fits


def test_what_packing_gives_up_is_refused_by_engines_and_verifier_alike() -> None:
    assert MOST_FAILED == 3000
    made = host("n", SINGLE, *cells(*(40,) * 6))
    pods = shape(sum(FULL), numa=tuple(NumaNeed(cpus) for cpus in FULL))
    bench = Bench.of(cluster([made], [gang("g", ("w", 1, pods))]), RULES)
    assert bench.greedy().node_of.tolist() == [-1]
    assert bench.broken(bench.decisions({"ns/g-w-0": "n"}))


def tried(layout: Layout, free: Free, needs: list[NumaNeed]) -> bool:
    """Return whether some split of the needs over cells is admitted."""
    if not any(layout.gpus):
        needs = [NumaNeed(n.cpus) for n in needs]
    if not needs:
        return True
    need, *rest = needs
    for cpus in splits(need.cpus, free.cpus):
        for gpus in splits(need.gpus, free.gpus):
            if admits(layout, need, cpus, gpus):
                left = Free(subtract(free.cpus, cpus), subtract(free.gpus, gpus))
                if tried(layout, left, rest):
                    return True
    return False


def splits(number: int, free: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [s for s in product(*(range(f + 1) for f in free)) if sum(s) == number]


def subtract(free: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(f - t for f, t in zip(free, taken, strict=True))


def admits(layout: Layout, need: NumaNeed, cpus: tuple[int, ...], gpus: tuple[int, ...]) -> bool:
    """Return whether exclusive sets of the right sizes share a NUMA cell."""
    every = range(1, 1 << len(layout.cpus))
    around = []
    for amounts, number, taken in (
        (layout.cpus, need.cpus, cpus),
        (layout.gpus, need.gpus, gpus),
    ):
        inside = lambda m, a=amounts: sum(x for i, x in enumerate(a) if m >> i & 1)  # noqa: E731
        able = [m for m in every if inside(m) >= number]
        size = min((m.bit_count() for m in able), default=0)
        size = 1 if layout.alignment is SINGLE else size
        used = sum(1 << i for i, t in enumerate(taken) if t)
        sets = [m for m in able if m.bit_count() == size and m & used == used]
        around.append(sets if number else [-1])
    return any(a & b for a, b in product(*around))


# --- what is free --------------------------------------------------------------------------------


def free_cpus(*residents: Task, inside: tuple[NumaCell, ...], **fields: Any) -> tuple[int, ...]:
    return holdings(replace(host("n", SINGLE, *inside, **fields), residents=residents))[0].cpus


def hold(key: str, *parts: tuple[int, int], uid: str = "") -> NumaHold:
    return NumaHold(key, uid, tuple(NumaPart(cell, cpus) for cell, cpus in parts))


def test_what_the_agent_says_of_residents_counts() -> None:
    there = resident("r", "n", asks(3))
    inside = cells(8, (8, 5))
    assert free_cpus(there, inside=inside, holds=(hold(there.key, (1, 3)),)) == (8, 5)
    by_uid = replace(there, uid="u")
    assert free_cpus(by_uid, inside=inside, holds=(hold("", (1, 3), uid="u"),)) == (8, 5)


def test_what_pods_hold_that_have_gone_is_free() -> None:
    assert free_cpus(inside=cells(8, (8, 5)), holds=(hold("ns/gone", (1, 3)),)) == (8, 8)


def test_pods_that_the_agent_has_not_seen_count() -> None:
    there = resident("r", "n", asks(3))
    assert free_cpus(there, inside=cells(8, 8)) == (5, 8)
    decided = replace(there, numa=(NumaPart(1, 3),))
    assert free_cpus(decided, inside=cells(8, 8)) == (8, 5)


def test_agents_that_name_no_pods_have_seen_the_oldest() -> None:
    old = resident("a", "n", asks(3), started_ms=1)
    new = resident("b", "n", asks(2), started_ms=2)
    bound = replace(resident("c", "n", asks(1), started_ms=0), status=TaskStatus.BOUND)
    inside = cells(8, (8, 5))
    assert free_cpus(old, inside=inside) == (8, 5)
    assert free_cpus(old, new, inside=inside) == (6, 5)
    assert free_cpus(old, new, bound, inside=inside) == (5, 5)


def test_reserved_cpus_are_nobodys() -> None:
    inside = (NumaCell(0, 8, reserved=2, free_cpus=6), NumaCell(1, 8, free_cpus=8))
    made = replace(host("n", SINGLE, *inside), allocatable=node("n", 14).allocatable)
    assert placed(cluster([made], [many(asks(7))])) == 1
    assert placed(cluster([made], [many(asks(6))])) == 2


# --- engines against the verifier ----------------------------------------------------------------


def random_hosts(rng: np.random.Generator) -> Snapshot:
    nodes = []
    for n in range(2):
        policy = (SINGLE, RESTRICTED, BEST_EFFORT)[int(rng.integers(3))]
        inside = tuple(
            NumaCell(i, cpus, 0, int(rng.integers(0, cpus + 1)), gpus, gpus)
            for i in range(int(rng.integers(1, 4)))
            for cpus, gpus in [(int(rng.integers(2, 5)), int(rng.integers(0, 3)))]
        )
        nodes.append(host(f"n{n}", policy, *inside))
    wishes = ("", "", "single-numa-node", "restricted", "best-effort")
    shapes = [
        asks(int(rng.integers(1, 6)), int(rng.choice([0, 0, 1, 2])), str(rng.choice(wishes)))
        for _ in range(2)
    ]
    pair = (NumaNeed(int(rng.integers(1, 4))), NumaNeed(int(rng.integers(1, 4))))
    shapes.append(shape(sum(n.cpus for n in pair), numa=pair))
    gangs = [
        gang(f"g{i}", ("w", int(rng.integers(1, 3)), shapes[int(rng.integers(3))]), least=1)
        for i in range(3)
    ]
    return cluster(nodes, gangs)


@pytest.mark.parametrize("seed", range(num_examples(25)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    assert_optimum(random_hosts(np.random.default_rng(seed)), RULES)


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_rows_allow_just_what_the_verifier_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_rows_as_verified(
        rng, random_hosts(rng), RuleSet.of(NumaPolicies(), NumaAware()), [None, "n0", "n1"]
    )


def test_configurations_leave_them_to_the_greedy_plan() -> None:
    for policy, names in ((SINGLE, ("numa-aware",)), (BEST_EFFORT, ())):
        bench = Bench.of(cluster([host("n", policy, *cells(8, 8))], [many(asks(3))]), RULES)
        assert bench.tied_by() == names


# --- scores, decisions and words -----------------------------------------------------------------


def test_fewer_numa_nodes_are_better() -> None:
    # Volcano's user guide has this example: 16 CPUs on nodes with 12 + 12 and 20 + 20 CPUs.
    hosts = [
        host("node-1", BEST_EFFORT, *cells(12, 12)),
        host("node-2", BEST_EFFORT, *cells(20, 20)),
    ]
    snapshot = cluster(hosts, [many(asks(16, policy="best-effort"), 1)])
    packed = RuleSet.of(Gang(), NumaPolicies(), NumaAware(10), Binpack(1, {"cpu": 1}))
    bench = Bench.of(snapshot, packed, ("admission", "tasks", "node-score"))
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert binds(bench.actions(decisions)) == {"ns/g-w-0": "node-2"}
    points = NumaAware(10).class_score(bench.problem, 0)
    assert points is not None
    assert points.tolist() == [0, 500]


def test_scores_follow_what_has_been_placed() -> None:
    hosts = [host("a", BEST_EFFORT, *cells(4, 4)), host("b", BEST_EFFORT, *cells(4, 3))]
    snapshot = cluster(hosts, [many(asks(4, policy="best-effort"), 3)])
    bench = Bench.of(snapshot, RULES)
    found = binds(bench.actions(bench.greedy()))
    assert sorted(found.values()) == ["a", "a", "b"]


def test_tasks_are_told_what_was_meant_for_them() -> None:
    snapshot = cluster(
        [host("n", SINGLE, *cells((8, 2), 8, gpus=1))], [many(asks(4, 1), 1), many(asks(2), 1, "h")]
    )
    bench = Bench.of(snapshot, RULES)
    actions = with_cards(snapshot, bench.actions(bench.greedy()), RULES)
    assert {a.task: a.numa for a in actions} == {
        "ns/g-w-0": (NumaPart(1, 4, 1),),
        "ns/h-w-0": (NumaPart(0, 2),),
    }


@pytest.mark.parametrize(
    ("what", "nodes", "words"),
    [
        (
            asks(6, policy="single-numa-node"),
            [host("n", SINGLE, *cells((8, 4), (8, 4)))],
            "1 node had no NUMA node (single-numa-node) with 6 CPUs free",
        ),
        (
            asks(9, policy="single-numa-node"),
            [host("n", SINGLE, *cells(8, 8))],
            "1 node had no NUMA node (single-numa-node) with 9 CPUs free",
        ),
        (
            asks(6, 2, policy="restricted"),
            [host("n", RESTRICTED, *cells((8, 4), (8, 4), gpus=1))],
            "1 node had no NUMA nodes (restricted) with 6 CPUs and 2 GPUs free",
        ),
        (
            asks(6, policy="single-numa-node"),
            [
                host("a", RESTRICTED, *cells(8, 8)),
                node("b", 8),
                node("c", 8, numa=Numa(problem="x")),
            ],
            "no node has NUMA policy single-numa-node: 1 node has restricted, "
            "1 node has no Numatopology, 1 node has a Numatopology that cannot be used; "
            "Numatopology c: x",
        ),
        (
            asks(6, policy="tight"),
            [node("n", 8)],
            "NUMA policy tight does not exist: write one of none, best-effort, restricted, "
            "single-numa-node",
        ),
    ],
)
def test_who_waits_is_told_the_policy_and_what_is_short(
    what: TaskShape, nodes: list[Node], words: str
) -> None:
    assert words in reason(cluster(nodes, [many(what, 1)]), RULES, "g")


def test_a_numatopology_that_can_not_be_used_matters_to_those_who_need_it_only() -> None:
    broken = node("n", 8, numa=Numa(problem="spec.numares[cpu].allocatable: no list"))
    assert placed(cluster([broken], [many(asks(2), 2)])) == 2
    assert placed(cluster([broken], [many(asks(2, policy="restricted"), 2)])) == 0


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numa-aware", "numaaware"])
def test_arguments(name: str) -> None:
    text = (
        f"actions: allocate\ntiers:\n- plugins:\n  - name: {name}\n    arguments: {{weight: 10}}\n"
    )
    policy = parse_policy(text, "conf")
    assert [a.rule for a in policy.rules.active][1:] == [NumaAware(10)]
    assert policy.rules.active[0].rule.name == "numa-policy"


def test_without_numatopologies_it_has_no_say() -> None:
    problem = compile_problem(cluster([node("n", 8)], [many(asks(2))]))
    assert not NumaAware().ties_nodes(problem, 0)
    assert NumaAware().mask(problem, 0) is None
