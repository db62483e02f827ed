"""Tests of gangs reduced to rows: needs, allocations, and reasons to exclude gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Gang
from optsched.cluster.task import Task, TaskStatus
from optsched.problem.shapes import GangRow, GangShape, gang_row, rebound
from tests.support.small import gang, shape

ONE, TWO = shape(1), shape(2)


def with_status(made: Gang, *statuses: TaskStatus) -> Gang:
    """Return the gang with the given statuses of its first tasks."""
    left = made.tasks[len(statuses) :]
    changed = [replace(t, status=s) for t, s in zip(made.tasks, statuses, strict=False)]
    return replace(made, tasks=(*changed, *left))


def decided(row: GangRow) -> GangShape:
    assert row.blocked is None
    assert row.shape is not None
    return row.shape


def why(row: GangRow) -> str:
    assert row.shape is None
    assert not row.pending
    return str(row.blocked)


# --- what is needed ------------------------------------------------------------------------------


def test_a_whole_gang_is_rigid() -> None:
    found = decided(gang_row(gang("g", ("worker", 3, ONE))))
    assert (found.need, found.need_role, found.num_tasks) == (3, (), 3)
    assert found.is_rigid
    assert not found.is_started


def test_an_elastic_gang_needs_its_minimum_only() -> None:
    found = decided(gang_row(gang("g", ("worker", 5, ONE), least=2)))
    assert (found.need, found.num_tasks, found.is_rigid) == (2, 5, False)


RUNNING, SUCCEEDED, FAILED = TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.FAILED
BOUND, RELEASING, GATED = TaskStatus.BOUND, TaskStatus.RELEASING, TaskStatus.GATED


@pytest.mark.parametrize(
    ("statuses", "need", "started"),
    [
        ((RUNNING,), 2, False),
        ((BOUND, SUCCEEDED), 1, False),
        ((RUNNING, BOUND, SUCCEEDED), 0, True),
        ((RELEASING, RUNNING), 2, False),  # the terminating task no longer counts
        ((FAILED,), 3, False),
        ((GATED,), 3, False),
    ],
)
def test_what_runs_already_counts_towards_the_minimum(
    statuses: tuple[TaskStatus, ...], need: int, started: bool
) -> None:
    made = with_status(gang("g", ("worker", 6, ONE), least=3), *statuses)
    found = decided(gang_row(made))
    assert (found.need, found.is_started) == (need, started)


def test_minimums_by_role_shrink_with_what_runs() -> None:
    made = gang("g", ("ps", 2, ONE), ("worker", 4, ONE), least=4)
    made = replace(made, min_role=(("ps", 1), ("worker", 3)))
    ps = next(t for t in made.tasks if t.role == "ps")
    running = tuple(replace(t, status=RUNNING) if t is ps else t for t in made.tasks)
    assert decided(gang_row(made)).need_role == (("ps", 1), ("worker", 3))
    found = decided(gang_row(replace(made, tasks=running)))
    assert (found.need, found.need_role) == (3, (("worker", 3),))


@pytest.mark.parametrize(
    ("least", "min_role", "need"),
    [
        (2, (("ps", 3),), (("ps", 1),)),
        (2, (("ps", 1), ("worker", 2)), (("ps", 1), ("worker", 1))),
        (1, (("ps", 1), ("worker", 2)), ()),
        (2, (("absent", 1), ("worker", 2)), (("worker", 1),)),
        (2, (("ps", 0), ("worker", 3)), (("worker", 1),)),
    ],
)
def test_where_min_member_is_below_their_sum_one_of_each_role_is_among_the_first(
    least: int, min_role: tuple[tuple[str, int], ...], need: tuple[tuple[str, int], ...]
) -> None:
    made = gang("g", ("ps", 1, ONE), ("worker", 2, ONE), least=least)
    assert decided(gang_row(replace(made, min_role=min_role))).need_role == need


def test_min_resources_count_until_the_gang_runs() -> None:
    budget = (("cpu", 9000),)
    made = gang("g", ("worker", 3, ONE), least=1, min_resources=budget)
    assert decided(gang_row(made)).min_resources == budget
    assert decided(gang_row(with_status(made, RUNNING))).min_resources == ()


# --- why nothing can be decided ------------------------------------------------------------------


def test_fewer_pods_than_min_member() -> None:
    row = gang_row(gang("g", ("worker", 2, ONE), least=3))
    assert why(row) == "NotEnoughTasks: minMember is 3, but only 2 pods exist"


def test_pods_that_run_exist_too() -> None:
    row = gang_row(with_status(gang("g", ("worker", 3, ONE), least=5), RUNNING, RUNNING))
    assert why(row) == "NotEnoughTasks: minMember is 5, but only 3 pods exist"


def test_fewer_pods_of_a_role_than_its_minimum() -> None:
    made = gang("g", ("ps", 1, ONE), ("worker", 3, ONE), min_role=(("ps", 2),))
    assert why(gang_row(made)) == (
        "NotEnoughTasks: minTaskMember[ps] is 2, but 1 of these pods do not exist yet"
    )


def test_scheduling_gates() -> None:
    row = gang_row(with_status(gang("g", ("worker", 3, ONE)), GATED, GATED))
    assert why(row) == (
        "Gated: 2 of 3 pods are held back by scheduling gates, and the gang needs 3"
    )


def test_gates_of_pods_beyond_the_minimum_do_not_matter() -> None:
    row = gang_row(with_status(gang("g", ("worker", 3, ONE), least=2), GATED))
    assert decided(row).num_tasks == 2
    assert [t.status for t in row.pending] == [TaskStatus.PENDING] * 2


def unreadable(made: Gang, number: int = 0) -> Gang:
    broken = Reason(ReasonCode.INVALID_POD, "cpu request '1x' is no quantity")
    tasks = [replace(t, problem=broken) if i == number else t for i, t in enumerate(made.tasks)]
    return replace(made, tasks=tuple(tasks))


def test_an_unreadable_pod_that_is_needed() -> None:
    row = gang_row(unreadable(gang("g", ("worker", 2, ONE))))
    assert why(row) == "InvalidPod: pod ns/g-worker-0: cpu request '1x' is no quantity"


def test_an_unreadable_pod_that_is_not_needed_is_passed_over() -> None:
    row = gang_row(unreadable(gang("g", ("worker", 3, ONE), least=2)))
    assert [t.key for t in row.pending] == ["ns/g-worker-1", "ns/g-worker-2"]


def test_a_problem_of_the_pod_group_comes_first() -> None:
    problem = Reason(ReasonCode.INVALID_POD_GROUP, "spec.minMember is -1")
    row = gang_row(replace(unreadable(gang("g", ("worker", 2, ONE))), problem=problem))
    assert row.blocked is problem


def test_nothing_to_decide_about_a_gang_that_is_placed() -> None:
    row = gang_row(with_status(gang("g", ("worker", 2, ONE)), RUNNING, RUNNING))
    assert (row.shape, row.blocked, row.num_ready) == (None, None, 2)


# --- what is held and asked ----------------------------------------------------------------------


def test_running_tasks_are_held_and_pending_ones_asked_for() -> None:
    statuses = RUNNING, BOUND, SUCCEEDED, FAILED, RELEASING, GATED
    row = gang_row(with_status(gang("g", ("worker", 8, TWO), least=1), *statuses))
    assert row.allocated == {"pods": 2, "cpu": 4000}
    assert row.requested == {"pods": 4, "cpu": 8000}
    assert row.num_ready == 3


def test_unreadable_pods_ask_for_nothing() -> None:
    row = gang_row(unreadable(gang("g", ("worker", 2, ONE), least=1)))
    assert row.requested == {"pods": 1, "cpu": 1000}


# --- entries -------------------------------------------------------------------------------------


def task(name: str, what: object, **fields: object) -> Task:
    return Task(f"ns/{name}", what, TaskStatus.PENDING, gang="ns/g", **fields)  # type: ignore[arg-type]


def test_alike_tasks_are_one_entry_in_runs_of_task_order() -> None:
    tasks = (
        task("a", ONE, role="worker", index=0),
        task("b", TWO, role="ps", index=0),
        task("c", ONE, role="worker", index=1),
        task("d", ONE, role="worker", index=2),
        task("e", ONE, role="eval", index=2),
    )
    row = gang_row(Gang("ns/g", min_member=5, tasks=tasks))
    found = decided(row)
    assert [(e.role, e.shape, e.count) for e in found.entries] == [
        ("worker", ONE, 3),
        ("ps", TWO, 1),
        ("eval", ONE, 1),
    ]
    assert found.sequence == ((0, 1), (1, 1), (0, 2), (2, 1))
    assert [t.key for t in row.pending] == ["ns/a", "ns/c", "ns/d", "ns/b", "ns/e"]


def test_tasks_that_other_pods_tell_apart_are_two_entries() -> None:
    tasks = (task("a", ONE), task("b", ONE), task("c", ONE))
    row = gang_row(Gang("ns/g", tasks=tasks), {"ns/b": (4,)})
    assert [(e.relation, e.count) for e in decided(row).entries] == [((), 2), ((4,), 1)]


def test_gangs_that_differ_in_names_only_have_one_shape() -> None:
    one = decided(gang_row(gang("one", ("worker", 3, ONE), queue="a", priority=1)))
    other = decided(gang_row(gang("other", ("worker", 3, shape(1)), queue="b", priority=2)))
    assert one == other
    assert {one: "found"}[other] == "found"


@pytest.mark.parametrize(
    "other",
    [
        gang("g", ("worker", 4, ONE)),
        gang("g", ("worker", 3, TWO)),
        gang("g", ("boss", 3, ONE)),
        gang("g", ("worker", 3, ONE), least=2),
        gang("g", ("worker", 3, ONE), min_resources=(("cpu", 1),)),
        gang("g", ("worker", 3, ONE), min_role=(("worker", 1),)),
    ],
)
def test_gangs_that_differ_in_what_matters_have_two(other: Gang) -> None:
    assert decided(gang_row(other)) != decided(gang_row(gang("g", ("worker", 3, ONE))))


def test_gangs_that_respect_equal_reservations_share_a_shape() -> None:
    rows = [gang_row(gang(name, ("w", 2, shape(1)))) for name in ("a", "b")]
    bound = [rebound(row, (0, 2)) for row in rows]
    assert bound[0].shape is bound[1].shape
    assert bound[0].shape is not rows[0].shape
    assert rebound(bound[0], ()).shape is rows[0].shape
