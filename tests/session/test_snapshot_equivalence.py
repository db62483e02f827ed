from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optsched.cluster.amounts import Usage
from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Enqueue,
    Evict,
    LevelResult,
    LevelStatus,
    Nominate,
    Plan,
    Sense,
)
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Snapshot
from optsched.cluster.task import TaskStatus
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from optsched.session.snapshot_equivalence import (
    AT_LATEST_MS,
    SOON_MS,
    ask_again_ms,
    changes_nothing,
    leads_to_same_plan,
    limits_for,
    next_turn_ms,
)
from optsched.solver.cpsat.level_model import Limits
from tests.support.changes import history
from tests.support.effort import num_examples
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action
    from optsched.cluster.task import Task

SHIPPED = ("volcano-default", "volcano-compatible", "max-throughput")
POLICIES = {name: without_solver(load_policy(name, Path.read_text)) for name in SHIPPED}


def answer(snapshot: Snapshot, policy: str) -> tuple[object, ...]:
    """Return the results of a session without its times."""
    plan = run_session(snapshot, POLICIES[policy], SessionContext()).plan
    return plan.actions, plan.pending, plan.pending_tasks, plan.certificate.levels


def two_in_a_row(seed: int) -> tuple[Snapshot, Snapshot]:
    """Return a cluster and a later state, both with nodes and without queues above the root."""
    *_, before, after = history(np.random.default_rng(seed), 6)
    queues = (*before.queues, *after.queues)
    assume(before.nodes and after.nodes)
    assume(all(q.parent == "root" for q in queues if q.name == "root"))
    return before, after


def just_bound(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot before any bound task had started."""
    held = TaskStatus.RUNNING

    def earlier(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        return tuple(replace(t, status=TaskStatus.BOUND) if t.status is held else t for t in tasks)

    return replace(
        snapshot,
        nodes=tuple(replace(n, residents=earlier(n.residents)) for n in snapshot.nodes),
        gangs=tuple(replace(g, tasks=earlier(g.tasks)) for g in snapshot.gangs),
    )


@settings(max_examples=num_examples(25), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 1000), st.sampled_from(SHIPPED))
def test_tasks_that_begin_and_time_that_passes_change_no_plan(
    seed: int, pause_ms: int, policy: str
) -> None:
    _, after = two_in_a_row(seed)
    before = replace(just_bound(after), taken_ms=after.taken_ms - pause_ms)
    assert leads_to_same_plan(before, after)
    assert answer(after, policy) == answer(before, policy)


@settings(max_examples=num_examples(25), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(SHIPPED))
def test_the_same_question_has_the_same_answer(seed: int, policy: str) -> None:
    before, after = two_in_a_row(seed)
    assume(leads_to_same_plan(before, after))
    assert answer(after, policy) == answer(before, policy)


@settings(max_examples=num_examples(50), deadline=None)
@given(st.integers(0, 2**32))
def test_what_leads_to_another_plan_is_another_question(seed: int) -> None:
    before, after = two_in_a_row(seed)
    assume(answer(after, "volcano-compatible") != answer(before, "volcano-compatible"))
    assert not leads_to_same_plan(before, after)


SAMPLE = cluster(
    [node("n1"), node("n2")],
    [gang("g", ("w", 2, shape())), gang("h", ("w", 1, shape()), priority=2)],
)


PARTS = [f.name for f in fields(Snapshot) if f.name not in ("taken_ms", "usage")]


def test_what_queues_have_used_changes_all_the_time() -> None:
    assert leads_to_same_plan(SAMPLE, replace(SAMPLE, usage={"default": Usage((("cpu", 1.0),), 1)}))


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_snapshot_counts(part: str) -> None:
    other = copy(SAMPLE)
    object.__setattr__(other, part, getattr(SAMPLE, part)[:1] if part in ("nodes", "gangs") else 0)
    assert not leads_to_same_plan(SAMPLE, other)
    assert leads_to_same_plan(other, other)


def test_a_task_that_goes_is_another_question() -> None:
    (first, second) = SAMPLE.gangs[0].tasks
    on_node = replace(SAMPLE.gangs[0], tasks=(running(first, "n1"), second))
    before = cluster([node("n1")], [on_node])
    for status in (TaskStatus.RELEASING, TaskStatus.SUCCEEDED):
        tasks = (replace(on_node.tasks[0], status=status), second)
        assert not leads_to_same_plan(
            before, cluster([node("n1")], [replace(on_node, tasks=tasks)])
        )


def test_a_pod_of_others_that_comes_is_another_question() -> None:
    stranger = replace(running(SAMPLE.gangs[0].tasks[0], "n1"), key="ns/x", gang="")
    filled = replace(SAMPLE.nodes[0], residents=(stranger,))
    assert not leads_to_same_plan(SAMPLE, replace(SAMPLE, nodes=(filled, *SAMPLE.nodes[1:])))


# --- plans ---------------------------------------------------------------------------------------


def plan(*actions: Action, status: LevelStatus = LevelStatus.OPTIMAL) -> Plan:
    level = LevelResult("tasks", "tasks", Sense.MAX, 1, None, status)
    reason = Reason(ReasonCode.RESOURCES, "no room")
    return Plan(actions, Certificate((level,), "greedy", 0.0, ""), {"ns/g": reason})


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Enqueue("ns/g"), True),
        (Nominate("ns/g-0", "n1", "ns/g"), True),
        (Allocate("ns/g-0", "n1", "ns/g"), False),
        (Evict("ns/x-0", "n1", "preempt", "ns/g"), False),
    ],
)
def test_what_moves_pods_changes_something(action: Action, expected: bool) -> None:
    assert changes_nothing(plan(action)) is expected


def test_what_is_proved_may_stand_for_a_minute() -> None:
    assert ask_again_ms(plan(), 0) == AT_LATEST_MS == 60_000


def test_what_is_not_proved_is_asked_again_soon_and_then_less_often() -> None:
    guess = plan(status=LevelStatus.FEASIBLE)
    pauses = [ask_again_ms(guess, times) for times in (0, 1, 2, 3, 4, 1000)]
    assert pauses == [SOON_MS, 10_000, 20_000, 40_000, AT_LATEST_MS, AT_LATEST_MS]


def test_who_asks_the_same_again_may_search_elsewhere_and_for_longer() -> None:
    limits = [limits_for(400, repeats) for repeats in (0, 1, 2, 3, 50)]
    assert limits[0] == Limits(budget_ms=400)
    assert [each.budget_ms for each in limits] == [400, 800, 1600, 1600, 1600]
    assert [each.seed for each in limits] == [0, 1, 2, 3, 50]
    assert [each.num_engines for each in limits] == [1, 2, 2, 2, 2]


def test_it_is_asked_again_when_somebody_has_waited_too_long() -> None:
    waiting = [gang(name, waiting_since_ms=since) for name, since in (("a", 500), ("b", 900))]
    assert next_turn_ms(waiting, 1000, 600) == 1100
    assert next_turn_ms(waiting, 1100, 600) == 1500
    assert next_turn_ms(waiting, 1500, 600) is None
    assert next_turn_ms([], 0, 600) is None
