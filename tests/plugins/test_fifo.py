"""In a strict queue, no gang may start before the first waiting gang."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Gang as GangObject
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.topology.spread import Spread
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.decompile import pending_of
from optsched.session.session import SessionContext, run_session
from optsched.solver import portfolio
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import num_examples
from tests.support.engines import Bench, allocations, placed_by_gang, reason
from tests.support.small import (
    CPU,
    actions_of,
    best_values,
    cluster,
    gang,
    node,
    random_cluster,
    running,
    shape,
)

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task

RULES = RuleSet.of(Gang(), Priority(), Drf(), Capacity(), Guarantee())
STRICT = Queue("q", is_fifo=True)


def asks(name: str, cpu: int, age: int, **fields: object) -> GangObject:
    """Return a gang of one task in the strict queue; a larger `age` means a later creation."""
    return gang(name, ("w", 1, shape(cpu)), created_ms=age, queue="q", **fields)


def of(*gangs: GangObject, cpu: int = 4, queue: Queue = STRICT) -> Snapshot:
    return cluster([node("n0", cpu)], gangs, [queue])


BIG, SMALL = asks("big", 8, 1), asks("small", 1, 2)


def test_nobody_passes_a_head_that_does_not_fit() -> None:
    assert placed_by_gang(of(BIG, SMALL), RULES) == {"big": 0, "small": 0}


def test_with_the_other_strategy_they_do() -> None:
    loose = replace(STRICT, is_fifo=False)
    assert placed_by_gang(of(BIG, SMALL, queue=loose), RULES) == {"big": 0, "small": 1}


def test_in_order_all_come_that_fit() -> None:
    third = asks("a-third", 4, 3)
    fourth = asks("a-fourth", 1, 4)
    found = placed_by_gang(of(asks("x", 2, 1), SMALL, third, fourth), RULES)
    assert found == {"x": 1, "small": 1, "a-third": 0, "a-fourth": 0}


def test_importance_comes_before_age() -> None:
    urgent = asks("urgent", 8, 3, priority=5)
    assert placed_by_gang(of(SMALL, urgent), RULES) == {"small": 0, "urgent": 0}


def test_other_queues_are_not_held_up() -> None:
    other = gang("other", ("w", 1, shape(1)), created_ms=9)
    assert placed_by_gang(of(BIG, SMALL, other), RULES)["other"] == 1


def test_gangs_that_can_not_be_decided_on_hold_up_nobody() -> None:
    lacking = replace(BIG, min_member=2)
    assert placed_by_gang(of(lacking, SMALL), RULES)["small"] == 1


def test_what_runs_grows_only_when_nobody_before_it_waits() -> None:
    def grown(priority: int) -> int:
        made = gang("old", ("w", 2, shape(1)), least=1, queue="q", created_ms=5)
        grows = replace(made, tasks=(running(made.tasks[0], "n0"), made.tasks[1]))
        head = replace(BIG, priority=priority, created_ms=7)
        return placed_by_gang(of(grows, head), RULES)["old"]

    assert (grown(0), grown(1)) == (1, 0)


def test_a_gang_that_is_broken_is_completed_first() -> None:
    made = gang("old", ("w", 2, shape(1)), queue="q", created_ms=5)
    broken = replace(made, tasks=(running(made.tasks[0], "n0"), made.tasks[1]))
    assert placed_by_gang(of(BIG, broken), RULES)["old"] == 1


def test_a_gang_with_room_kept_for_it_has_had_its_turn() -> None:
    (task,) = SMALL.tasks
    called = replace(SMALL, tasks=(replace(task, nominated_node="n0"),))
    assert placed_by_gang(of(BIG, called), RULES)["small"] == 1


def test_a_gang_with_room_kept_for_it_blocks_nobody() -> None:
    (task,) = BIG.tasks
    called = replace(BIG, tasks=(replace(task, nominated_node="n0"),))
    snapshot = of(called, SMALL)
    assert placed_by_gang(snapshot, RULES) == {"big": 0, "small": 1}
    assert (
        list(verify_actions(snapshot, allocations(snapshot, {"ns/small-w-0": "n0"}), RULES)) == []
    )


def test_the_head_is_told_what_it_lacks_and_the_others_whom_they_wait_for() -> None:
    again = replace(BIG, key="ns/again", created_ms=2, tasks=_renamed(BIG, "again"))
    other = replace(SMALL, key="ns/other", created_ms=9, tasks=_renamed(SMALL, "other"))
    snapshot = of(BIG, again, SMALL, other)
    for name in ("big", "again"):
        assert reason(snapshot, RULES, name).startswith("Impossible: ")
    for name in ("other", "small"):
        told = reason(snapshot, RULES, name)
        assert told == "WaitsForItsTurn: waits behind ns/big in the fifo queue q"


def _renamed(of_gang: GangObject, name: str) -> tuple[Task, ...]:
    return tuple(replace(t, key=f"ns/{name}-{t.key}", gang=f"ns/{name}") for t in of_gang.tasks)


def test_enqueueing_stops_at_the_first_refusal() -> None:
    def waits(name: str, cpu: int, age: int) -> GangObject:
        asked = ((CPU, cpu * 1000),)
        made = asks(name, cpu, age, min_resources=asked, phase=GangPhase.PENDING)
        return replace(made, tasks=())

    rules = RuleSet.of(Gang(), Priority(), Overcommit())
    bench = Bench.of(of(waits("a", 9, 1), waits("b", 1, 2)), rules)
    decisions = bench.greedy(gated=True)
    assert not decisions.enqueued.any()
    reasons = pending_of(bench.problem, decisions, rules)
    assert [r.code for r in reasons.values()] == [
        ReasonCode.IMPOSSIBLE,
        ReasonCode.QUEUE_ORDER,
    ]


def test_a_plan_that_passes_somebody_is_told() -> None:
    snapshot = of(BIG, SMALL)
    found = verify_actions(snapshot, allocations(snapshot, {"ns/small-w-0": "n0"}), RULES)
    passes = "gang ns/small: overtakes ns/big, which precedes it in the fifo queue q"
    assert [str(v) for v in found] == [f"fifo: {passes}"]


# --- against every plan there is -----------------------------------------------------------------


def setting(seed: int, *rules: object) -> tuple[Bench, tuple[int, ...]]:
    drawn = random_cluster(np.random.default_rng(seed))
    strict = tuple(replace(q, is_fifo=True) for q in drawn.queues)
    bench = Bench.of(replace(drawn, queues=strict), RuleSet.of(*RULES_OF, *rules))
    return bench, best_values(bench.problem, bench.rules, bench.levels)


RULES_OF = [a.rule for a in RULES.active]


@pytest.mark.parametrize("most_direct", [-1, 10**6])
@pytest.mark.parametrize("seed", range(num_examples(40)))
def test_both_encodings_reach_the_optimum(
    seed: int, most_direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "MOST_DIRECT", most_direct)
    monkeypatch.setattr(portfolio, "BEST_DIRECT", most_direct)
    bench, best = setting(seed)
    start = bench.greedy()
    assert bench.broken(start) == []
    solution = bench.improved(replace(start, nominated=np.full_like(start.nominated, -1)))
    actions = actions_of(bench.problem, solution.decisions)
    assert not verify_actions(bench.problem.snapshot, actions, bench.rules)
    assert tuple(r.value for r in solution.results) == best


@pytest.mark.parametrize("seed", range(num_examples(30)))
def test_gangs_that_the_greedy_plan_decides_keep_their_place_in_line(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "MOST_DIRECT", -1)
    monkeypatch.setattr(portfolio, "BEST_DIRECT", -1)
    drawn = random_cluster(np.random.default_rng(seed), related=True)
    strict = tuple(replace(q, is_fifo=True) for q in drawn.queues)
    bench = Bench.of(replace(drawn, queues=strict), RuleSet.of(*RULES_OF, Spread()))
    solution = bench.improved()
    assert bench.broken(solution.decisions) == []


def test_a_long_line_of_equals_is_few_classes() -> None:
    alike = [asks(f"g{i:03}", 1, i) for i in range(200)]
    bench = Bench.of(of(*alike, asks("z-last", 2, 999), cpu=50), RULES)
    solution = bench.improved(bench.decisions({}))
    placed = np.unique(bench.problem.gang_of[solution.decisions.node_of >= 0])
    assert placed.tolist() == list(range(10))  # the node holds ten pods
    assert bench.broken(solution.decisions) == []


# --- evictions -----------------------------------------------------------------------------------

CONF = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
solver: SOLVER
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}]
"""


@pytest.mark.parametrize("solver", ["cpsat", "none"])
@pytest.mark.parametrize(("strict", "leave"), [(True, 0), (False, 1)])
def test_nobody_is_evicted_for_a_gang_behind_a_head_that_stays_out(
    solver: str, strict: bool, leave: int
) -> None:
    made = gang("low", ("w", 4, shape(1)), least=1, queue="q", created_ms=9)
    low = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks), phase=GangPhase.RUNNING)
    head, next_one = (replace(g, priority=5) for g in (BIG, SMALL))
    snapshot = of(low, head, next_one, queue=replace(STRICT, is_fifo=strict))
    around = SessionContext(
        solver=InProcess() if solver == "cpsat" else None,
        limits=Limits(budget_ms=None, num_workers=1),
    )
    report = run_session(snapshot, parse_policy(CONF.replace("SOLVER", solver), "x.conf"), around)
    assert report.trace.violations == ()
    assert sum(isinstance(a, Evict) for a in report.plan.actions) == leave
