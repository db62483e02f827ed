"""Gangs that borrow and can only be evicted entirely return their loans."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, Plan
from tests.oracle.chains import check_calm
from tests.oracle.checks import check_session
from tests.oracle.manifests import GPU, Cluster, gang_of
from tests.oracle.proofs import check_proof
from tests.oracle.sessions import Decided, Worth
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = ("volcano-default", "crater", "capacity-hierarchical")


def lay_out(
    holds: list[tuple[str, int, int]], claims: list[tuple[str, int]], **deserved: int
) -> Cluster:
    """Return a node of 8 GPUs with running gangs, and waiting gangs of one pod.

    A running gang is (queue, pods of one GPU, `minMember`); a waiting gang is (queue, GPUs).
    """
    cluster = Cluster()
    cluster.node("n", {"cpu": 64, GPU: 8})
    for name, gpus in deserved.items():
        cluster.queue(name, deserved={GPU: str(gpus)})
    for i, (queue, number, least) in enumerate(holds):
        gang = cluster.gang(f"r{i}", queue, least, ("", 0))
        gang["status"]["phase"] = "Running"
        for j in range(number):
            cluster.pod(gang, f"r{i}-{j}", {"cpu": 1, GPU: 1}, "n")
    for i, (queue, gpus) in enumerate(claims):
        gang = cluster.gang(f"g{i}", queue, 1, ("", 0), created=10 + i)
        cluster.pod(gang, f"g{i}-0", {"cpu": 1, GPU: gpus})
    return cluster


def victims(plan: Plan) -> list[str]:
    """Return the number of victims of each gang, as `gang number`."""
    gone = [a.task.split("/")[1].split("-")[0] for a in plan.actions if isinstance(a, Evict)]
    return [f"{gang} {gone.count(gang)}" for gang in sorted(set(gone))]


CASES = {
    "the loan exceeds the claim": ([("b", 6, 6), ("a", 2, 1)], [("a", 2)], ["r0 6"]),
    "of two gangs, the smaller one leaves": (
        [("b", 4, 4), ("b", 3, 3), ("a", 1, 1)],
        [("a", 2)],
        ["r1 3"],
    ),
    "a pod beyond the minimum leaves first": ([("b", 6, 5), ("a", 2, 1)], [("a", 1)], ["r0 1"]),
    "the minimum leaves after the pods beyond it": (
        [("b", 6, 5), ("a", 2, 1)],
        [("a", 2)],
        ["r0 6"],
    ),
    "pods beyond the minimum repay the loan": ([("b", 7, 4), ("a", 1, 1)], [("a", 3)], ["r0 3"]),
    "a queue within its share keeps its gang": ([("b", 4, 4), ("c", 4, 4)], [("a", 2)], []),
}


@pytest.mark.parametrize(("holds", "claims", "gone"), CASES.values(), ids=list(CASES))
def test_a_gang_on_loan_leaves_whole(
    holds: list[tuple[str, int, int]], claims: list[tuple[str, int]], gone: list[str]
) -> None:
    """Queues `a` and `b` deserve 4 GPUs each, and `c`, which is not reclaimable, deserves none."""
    cluster = lay_out(holds, claims, a=4, b=4, c=0)
    next(q for q in cluster.of_kind("Queue") if q["metadata"]["name"] == "c")["spec"][
        "reclaimable"
    ] = False
    decided = Decided(cluster, "crater")
    assert decided.report.trace.violations == ()
    assert victims(decided.plan) == gone
    assert [f.kind for check in (check_proof, check_calm) for f in check(decided)] == []


def test_the_verifier_keeps_what_single_pods_could_return() -> None:
    """A gang that can lose single pods does not leave entirely at its share."""
    cluster = lay_out([("b", 6, 2), ("a", 2, 1)], [("a", 2)], a=4, b=4)
    decided = Decided(cluster, "crater")
    assert victims(decided.plan) == ["r0 2"]
    taken = {a.task for a in decided.plan.actions if isinstance(a, Evict)}
    more = [
        Evict(f"ml/r0-{i}", "n", "reclaim", "ml/g0") for i in range(6) if f"ml/r0-{i}" not in taken
    ]
    worth = Worth.of(decided.snapshot, decided.policy, (*more, *decided.plan.actions))
    assert any("above its deserved share" in broken for broken in worth.violations)


def lay_out_master(
    least: int, claim: dict[str, int], *, cpu: int, node: str = "n", masters: int = 1
) -> Cluster:
    """Return a cluster with a gang of CPU-only masters and six workers, and a waiting pod.

    Queue `b` of the gang deserves 4 GPUs. Both queues deserve `cpu` CPUs, or none are listed.
    """
    cluster = lay_out([("a", 2, 1)], [], a=4, b=4)
    cluster.node("m", {"cpu": 16})
    for queue in cluster.of_kind("Queue") if cpu else ():
        queue["spec"]["deserved"]["cpu"] = str(cpu)
    gang = cluster.gang("mpi", "b", least, ("", 0))
    gang["status"]["phase"] = "Running"
    for i in range(masters):
        cluster.pod(gang, f"mpi-m{i}", {"cpu": 1}, node)
    for i in range(6):
        cluster.pod(gang, f"mpi-{i}", {"cpu": 1, GPU: 1}, "n")
    cluster.pod(cluster.gang("g", "a", 1, ("", 0), created=10), "g-0", claim)
    return cluster


@pytest.mark.parametrize("node", ["n", "m"])
@pytest.mark.parametrize("cpu", [0, 32])
@pytest.mark.parametrize("claim", [{"cpu": 1, GPU: 2}, {GPU: 2}], ids=["cpu", "gpu"])
@pytest.mark.parametrize("model", MODELS)
def test_a_cpu_only_master_leaves_with_its_workers(
    model: str, claim: dict[str, int], cpu: int, node: str
) -> None:
    """The queue exceeds its share of GPUs only, and the claim may need no CPU."""
    decided = Decided(lay_out_master(7, claim, cpu=cpu, node=node), model)
    assert decided.report.trace.violations == ()
    assert victims(decided.plan) == ["mpi 7"]
    assert [f.kind for check in (check_proof, check_calm) for f in check(decided)] == []


def test_pods_beyond_the_minimum_are_judged_one_by_one() -> None:
    """Two workers repay the loan, and the verifier accepts no master in their place."""
    decided = Decided(lay_out_master(5, {"cpu": 1, GPU: 2}, cpu=32), "crater")
    assert decided.report.trace.violations == ()
    assert victims(decided.plan) == ["mpi 2"]
    gone = [a for a in decided.plan.actions if isinstance(a, Evict)]
    assert all(a.task != "ml/mpi-m0" for a in gone)
    with_master = (Evict("ml/mpi-m0", "n", "reclaim", "ml/g"), *decided.plan.actions)
    worth = Worth.of(decided.snapshot, decided.policy, with_master)
    assert any("above its deserved share" in broken for broken in worth.violations)


def test_a_unit_of_masters_keeps_running() -> None:
    """If the masters alone are the minimum, the workers repay the loan one by one.

    The other masters use no GPU, so no GPU is reclaimed by their eviction.
    """
    cluster = lay_out_master(2, {"cpu": 1, GPU: 2}, cpu=32, masters=2)
    decided = Decided(cluster, "crater")
    assert decided.report.trace.violations == ()
    assert victims(decided.plan) == ["mpi 2"]
    everybody = [t for g in decided.snapshot.gangs if g.name == "mpi" for t in g.tasks]
    whole = [Evict(t.key, t.node, "reclaim", "ml/g") for t in everybody]
    moved = [a for a in decided.plan.actions if not isinstance(a, Evict)]
    worth = Worth.of(decided.snapshot, decided.policy, (*whole, *moved))
    assert any("above its deserved share" in broken for broken in worth.violations)


def draw_loans(rng: Random, *, masters: bool = False) -> Cluster:
    """Draw two to three queues of which some exceed their share by gangs that leave whole.

    With `masters`, queues deserve CPUs, and most running gangs have a pod without GPUs.
    """
    cluster = Cluster()
    idle = {}
    for i in range(rng.randint(1, 2)):
        idle[f"n{i}"] = rng.choice([4, 6, 8])
        cluster.node(f"n{i}", {"cpu": 96 if masters else 32, GPU: idle[f"n{i}"]})
    total = sum(idle.values())
    queues = ["a", "b", "c"][: rng.randint(2, 3)]
    for name in queues:
        cluster.queue(
            name,
            weight=rng.choice([1, 1, 2]),
            deserved={GPU: str(total // len(queues)), **({"cpu": "32"} if masters else {})},
            reclaimable=rng.random() < 0.9,
        )
    for i in range(rng.randint(1, 4)):
        size, gpus = rng.randint(1, 6), rng.choice([1, 1, 2])
        nodes = []
        for _ in range(size):
            fits = [n for n, left in idle.items() if left >= gpus]
            if fits:
                nodes.append(rng.choice(fits))
                idle[nodes[-1]] -= gpus
        if not nodes:
            continue
        spare = rng.choice([0, 0, 0, 1])
        has_master = masters and rng.random() < 0.8
        least = max(len(nodes) - spare, 1) + has_master
        gang = cluster.gang(f"r{i}", rng.choice(queues), least, ("", 0))
        gang["status"]["phase"] = "Running"
        if has_master:
            cluster.pod(gang, f"r{i}-m", {"cpu": 1}, rng.choice(list(idle)))
        for j, node in enumerate(nodes):
            cluster.pod(gang, f"r{i}-{j}", {"cpu": 1, GPU: gpus}, node)
    for i in range(rng.randint(1, 4)):
        size = rng.choice([1, 1, 2, 3])
        gang = cluster.gang(f"g{i}", rng.choice(queues), size, ("", 0), created=560 + i)
        gpus = rng.choice([1, 1, 2])
        request = {GPU: gpus} if masters and rng.random() < 0.3 else {"cpu": 1, GPU: gpus}
        for j in range(size):
            cluster.pod(gang, f"g{i}-{j}", request)
    return cluster


def without_masters(cluster: Cluster) -> Cluster:
    """Return the same cluster without the masters of running gangs."""
    alone = cluster.copy()
    masters = [p for p in alone.of_kind("Pod") if p["metadata"]["name"].endswith("-m")]
    names = {gang_of(pod) for pod in masters}
    for gang in alone.of_kind("PodGroup"):
        gang["spec"]["minMember"] -= gang["metadata"]["name"] in names
    alone.objects = [o for o in alone.objects if o not in masters]
    return alone


@pytest.mark.parametrize("masters", [False, True], ids=["workers", "masters"])
@pytest.mark.parametrize("model", MODELS)
def test_loans_return_once_and_the_certificates_hold(model: str, masters: bool) -> None:
    checks: list[Callable] = [check_session, check_proof, check_calm]
    found = []
    for number in range(num_examples(12)):
        cluster = draw_loans(Random(f"loans/{number}"), masters=masters)
        decided = Decided(cluster, model)
        found += [
            (number, finding.kind, finding.text)
            for check in checks
            for finding in check(decided)
            if not finding.is_open
        ]
    assert found == []


@pytest.mark.parametrize("model", MODELS)
def test_masters_keep_no_loan(model: str) -> None:
    """The same gangs start as without the masters of the running gangs."""
    for number in range(num_examples(12)):
        cluster = draw_loans(Random(f"loans/{number}"), masters=True)
        started = [
            [
                (level.name, level.value)
                for level in Decided(each, model).plan.certificate.levels
                if level.name.startswith("admission")
            ]
            for each in (cluster, without_masters(cluster))
        ]
        assert started[0] == started[1], number
