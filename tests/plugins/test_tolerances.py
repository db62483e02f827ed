"""Tests of volcano.sh/overuse-tolerance, which protects borrowed capacity from reclaim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.api.wellknown import OVERUSE_TOLERANCE
from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import Gang, GangPhase, Queue, Tolerance
from optsched.formats.snapshots.assembly import assemble
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, running, shape

CONF = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
solver: SOLVER
tiers:
- plugins: [{name: priority}, {name: gang, enableReclaimable: false}]
- plugins: [{name: predicates}, {name: capacity}]
"""


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def fills(queue: str, number: int) -> Gang:
    made = gang(f"of-{queue}", ("w", number, shape(1)), least=1, queue=queue)
    tasks = tuple(running(t, "n0") for t in made.tasks)
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


def evicted(solver: str, asks: int, *lenders: tuple[Tolerance | None, int]) -> list[str]:
    """Return the queues that lose pods on a full node; each deserves 4 CPUs."""
    names = [f"lender{i}" for i in range(len(lenders))]
    queues = [Queue("claims", deserved=cpus(asks))] + [
        Queue(name, deserved=cpus(4), tolerance=tolerance)
        for name, (tolerance, _) in zip(names, lenders, strict=True)
    ]
    host = node("n0", sum(held for _, held in lenders))
    host = replace(host, allocatable=(*host.allocatable[:-1], ("pods", 99)))
    gangs = [fills(n, held) for n, (_, held) in zip(names, lenders, strict=True)]
    wants = gang("wants", ("w", asks, shape(1)), queue="claims")
    policy = parse_policy(CONF.replace("SOLVER", solver), "x.conf")
    around = SessionContext(
        solver=InProcess() if solver == "cpsat" else None,
        limits=Limits(budget_ms=None, num_workers=1),
    )
    report = run_session(cluster([host], [*gangs, wants], queues), policy, around)
    assert report.trace.violations == ()
    tasks = sorted(a.task for a in report.plan.actions if isinstance(a, Evict))
    return [t.partition("/of-")[2].partition("-")[0] for t in tasks]


engines = pytest.mark.parametrize("solver", ["cpsat", "none"])


@engines
@pytest.mark.parametrize(
    ("tolerance", "asks", "leave"),
    [
        (None, 2, 2),
        (Tolerance(), 2, 2),
        (Tolerance(part_ppm=500_000), 2, 2),
        (Tolerance(part_ppm=500_000), 3, 0),
        (Tolerance(amounts=cpus(3)), 1, 1),
        (Tolerance(amounts=cpus(4)), 1, 0),
        (Tolerance(amounts=(("memory", 1),)), 2, 2),
    ],
)
def test_what_is_tolerated_stays(
    solver: str, tolerance: Tolerance | None, asks: int, leave: int
) -> None:
    assert len(evicted(solver, asks, (tolerance, 8))) == leave


@engines
def test_queues_with_a_limit_give_back_first(solver: str) -> None:
    assert evicted(solver, 2, (None, 8), (Tolerance(), 8)) == ["lender1"] * 2


# --- the annotation ------------------------------------------------------------------------------


def read(text: str) -> Queue:
    obj = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "q", "annotations": {OVERUSE_TOLERANCE: text}},
    }
    return assemble([obj]).snapshot.queue_by_name["q"]


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("", None),
        ("0", Tolerance()),
        ("0.25", Tolerance(250_000)),
        ("150%", Tolerance(1_500_000)),
        ("cpu=1500m, example.com/x=2", Tolerance(amounts=(("cpu", 1500), ("example.com/x", 2)))),
    ],
)
def test_the_annotation_is_a_part_or_amounts(text: str, tolerance: Tolerance | None) -> None:
    queue = read(text)
    assert (queue.tolerance, queue.problem) == (tolerance, None)


@pytest.mark.parametrize("text", ["much", "-1", "nan", "cpu=", "=3", "cpu=1,", "cpu=-2"])
def test_what_can_not_be_read_is_a_fault_of_the_queue(text: str) -> None:
    queue = read(text)
    assert queue.tolerance is None
    assert queue.problem is not None
    assert f"annotation {OVERUSE_TOLERANCE}: {text!r} cannot be read" in queue.problem.message
