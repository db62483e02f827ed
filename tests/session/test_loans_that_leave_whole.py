"""Gangs that borrow and can only be evicted entirely return their loans."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, Plan
from tests.oracle.chains import check_calm
from tests.oracle.checks import check_session
from tests.oracle.manifests import GPU, Cluster
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


def draw_loans(rng: Random) -> Cluster:
    """Draw two to three queues of which some exceed their share by gangs that leave whole."""
    cluster = Cluster()
    idle = {}
    for i in range(rng.randint(1, 2)):
        idle[f"n{i}"] = rng.choice([4, 6, 8])
        cluster.node(f"n{i}", {"cpu": 32, GPU: idle[f"n{i}"]})
    total = sum(idle.values())
    queues = ["a", "b", "c"][: rng.randint(2, 3)]
    for name in queues:
        cluster.queue(
            name,
            weight=rng.choice([1, 1, 2]),
            deserved={GPU: str(total // len(queues))},
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
        gang = cluster.gang(f"r{i}", rng.choice(queues), max(len(nodes) - spare, 1), ("", 0))
        gang["status"]["phase"] = "Running"
        for j, node in enumerate(nodes):
            cluster.pod(gang, f"r{i}-{j}", {"cpu": 1, GPU: gpus}, node)
    for i in range(rng.randint(1, 4)):
        size = rng.choice([1, 1, 2, 3])
        gang = cluster.gang(f"g{i}", rng.choice(queues), size, ("", 0), created=560 + i)
        gpus = rng.choice([1, 1, 2])
        for j in range(size):
            cluster.pod(gang, f"g{i}-{j}", {"cpu": 1, GPU: gpus})
    return cluster


@pytest.mark.parametrize("model", MODELS)
def test_loans_return_once_and_the_certificates_hold(model: str) -> None:
    checks: list[Callable] = [check_session, check_proof, check_calm]
    found = []
    for number in range(num_examples(12)):
        decided = Decided(draw_loans(Random(f"loans/{number}")), model)
        found += [
            (number, finding.kind, finding.text)
            for check in checks
            for finding in check(decided)
            if not finding.is_open
        ]
    assert found == []
