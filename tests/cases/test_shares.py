"""Shared cases about queue shares that two parts of the code computed differently."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.amounts import Amounts, amounts, total
from optsched.cluster.decisions import Allocate, Evict, Nominate, Plan
from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy
from optsched.session.session import Report, SessionContext, run_session
from optsched.session.solve_settings import limits_of
from tests.support.engines import InProcess
from tests.support.shared import shared
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.policy.policy import Policy

DEFAULT = load_policy("volcano-default", Path.read_text)


def solved(snapshot: Snapshot, policy: Policy = DEFAULT) -> Report:
    """Return the report of `optsched solve`, and check that no plan violated a share."""
    limits = limits_of(policy, None, deterministic=True, seed=0, gap=None)
    report = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=limits))
    assert not [v for v in report.trace.violations if v.rule == "proportion"]
    return report


def case(name: str) -> Snapshot:
    return read_instance(shared("cases", "decisions", name)).snapshot


def assigned(plan: Plan) -> Counter[str]:
    """Return the number of bound or nominated tasks of each gang."""
    return Counter(a.gang for a in plan.actions if isinstance(a, Allocate | Nominate))


def victims(snapshot: Snapshot, plan: Plan) -> Counter[str]:
    """Return the number of evicted tasks of each queue."""
    queue_of = {t.key: g.queue for g in snapshot.gangs for t in g.tasks}
    return Counter(queue_of[a.task] for a in plan.actions if isinstance(a, Evict))


def held(made: Gang, where: str) -> Gang:
    return replace(made, tasks=tuple(running(t, where) for t in made.tasks))


# --- the engine and the verifier -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["proportion_no_plan_100.yaml", "topology_no_plan_at_all.json", "no_plan_60_20118.json"]
)
def test_a_cluster_does_not_stand_still_for_the_last_unit_of_a_share(name: str) -> None:
    snapshot = case(name)
    plan = solved(snapshot).plan
    # A capability keeps ml/g35 waiting. Every other gang fits.
    asked = {g.key: len(g.tasks) for g in snapshot.gangs if g.key != "ml/g35"}
    assert assigned(plan) == asked


def test_nor_does_a_department_that_gets_all_that_it_requests() -> None:
    """Share computations in floating point and in integers once differed near this amount of
    memory.
    """
    queues = [Queue("d", weight=3)]
    queues += [Queue(f"t{i}", weight=w, parent="d") for i, w in enumerate((3, 3, 2))]
    asked = [(3, 1000, 36, 0), (1, 12_000, 8, 4), (1, 1000, 8, 4)]
    gangs = [
        gang(f"g{i}", ("w", number, TaskShape(_amounts(cpu, memory, gpu))), queue=f"t{i}")
        for i, (number, cpu, memory, gpu) in enumerate(asked)
    ]
    host = Node("n", (*_amounts(100_000, 1024, 64), ("pods", 110)))
    plan = solved(cluster([host], gangs, queues)).plan
    assert assigned(plan) == {"ns/g0": 3, "ns/g1": 1, "ns/g2": 1}


def _amounts(cpu: int, memory_gib: int, gpu: int) -> Amounts:
    return amounts({CPU: cpu, "memory": memory_gib << 30, **({GPU: gpu} if gpu else {})})


# --- whole devices -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gone", "come"),
    [
        ("gpu_share_not_returned_16.json", {"labA": 2, "labB": 3}, 5),
        ("gpu_share_not_returned_4.json", {"labB": 1}, 1),
    ],
)
def test_the_third_queue_gets_its_share_of_whole_gpus(
    name: str, gone: dict[str, int], come: int
) -> None:
    snapshot = case(name)
    plan = solved(snapshot).plan
    assert victims(snapshot, plan) == gone
    assert assigned(plan) == {"d/c": come}


@pytest.mark.parametrize(("gpus", "come"), [(4, 1), (16, 5), (20, 6)])
def test_so_it_does_of_any_number(gpus: int, come: int) -> None:
    queues = [Queue(name) for name in "abc"]
    there = [held(gang(q, ("w", gpus // 2, shape(0, 1)), least=1, queue=q), "n") for q in "ab"]
    third = gang("c", ("w", come, shape(0, 1)), queue="c", priority=1)
    host = replace(node("n"), allocatable=((GPU, gpus), ("pods", 110)))
    snapshot = cluster([host], [*there, third], queues)
    plan = solved(snapshot).plan
    assert assigned(plan) == {"ns/c": come}
    assert sum(victims(snapshot, plan).values()) == come


# --- pods of other schedulers --------------------------------------------------------------------


def test_a_job_starts_beside_pods_of_other_schedulers() -> None:
    policy = load_policy(str(shared("cases", "decisions", "ci.conf")), Path.read_text)
    snapshot = case("foreign_pods_starve.json")
    plan = solved(snapshot, policy).plan
    assert assigned(plan) == {"d/j3": 1}
    assert sum(victims(snapshot, plan).values()) == 1


def test_so_it_does_under_the_default_policy() -> None:
    queues = [Queue(name) for name in "abc"]
    old = [held(gang(q, ("w", 2, shape(1)), least=1, queue=q), "n") for q in "ab"]
    new = gang("c", ("w", 1, shape(1)), queue="c", priority=10)
    other = Task("other/x", shape(28), TaskStatus.RUNNING, node="n")
    snapshot = cluster([node("n", 32, residents=(other,))], [*old, new], queues)
    plan = solved(snapshot).plan
    assert assigned(plan) == {"ns/c": 1}
    assert sum(victims(snapshot, plan).values()) == 1


# --- victims -------------------------------------------------------------------------------------


def test_victims_of_the_session_still_request() -> None:
    """Queue q2 holds at most its share by weight, computed before the evictions."""
    snapshot = case("tree-small-0.yaml")
    plan = solved(snapshot).plan
    queue_of = {g.key: g.queue for g in snapshot.gangs}
    tasks = {t.key: t for g in snapshot.gangs for t in g.tasks}
    gone = {a.task for a in plan.actions if isinstance(a, Evict)}
    come = [tasks[a.task] for a in plan.actions if isinstance(a, Allocate | Nominate)]
    stay = [t for t in tasks.values() if t.status.counts_for_queue and t.key not in gone]
    mine = [t for t in (*stay, *come) if queue_of[t.gang] == "q2"]
    assert total(t.shape.request for t in mine)[CPU] <= 21_000


def test_what_a_preemptor_evicts_gives_its_neighbours_no_larger_share() -> None:
    """Two queues deserve 4 of 8 CPUs each, even while one queue evicts its own gang."""
    queues = [Queue("a"), Queue("b")]
    old = held(gang("old", ("w", 4, shape(1)), queue="a"), "n")
    new = gang("new", ("w", 2, shape(1)), queue="a", priority=5)
    large = gang("large", ("w", 6, shape(1)), queue="b")
    plan = solved(cluster([node("n", 8)], [old, new, large], queues)).plan
    assert assigned(plan) == {"ns/new": 2}
