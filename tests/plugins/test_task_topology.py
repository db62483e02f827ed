"""Tests of buckets of roles: their members, their order, and their preferred nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.plugins.accounting import Ledger
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.task_topology import TaskTopology, read_roles
from optsched.problem.compile import compile_problem
from optsched.solver.greedy.plugins import GreedyPlugins
from tests.support.engines import Bench
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node
    from optsched.units import FieldError

NEAR, FAR, ORDER = (
    f"volcano.sh/task-topology-{what}" for what in ("affinity", "anti-affinity", "task-order")
)
RULE = TaskTopology()
SPREAD_PS = {NEAR: "ps,worker", FAR: "ps"}


def job(notes: dict[str, str], *roles: tuple[str, int], cpu: int = 1, least: int = 0) -> Gang:
    made = [(role, number, shape(cpu)) for role, number in roles]
    return gang("g", *made, annotations=notes, least=least)


def switches(snapshot_gang: Gang, *nodes: Node) -> GreedyPlugins:
    problem = compile_problem(cluster(nodes or [node("n")], [snapshot_gang]))
    return GreedyPlugins(problem, RuleSet.of(RULE), Ledger(problem))


def order(made: Gang) -> list[tuple[str, int]]:
    """Return the runs of tasks by role."""
    problem = compile_problem(cluster([node("n")], [made]))
    entries = problem.shapes.shapes[int(problem.shape_of[0])].entries
    runs = GreedyPlugins(problem, RuleSet.of(RULE), Ledger(problem)).task_runs(0)
    return [(entries[entry].role, number) for entry, number in runs or ()]


def by_node(made: Gang, *nodes: Node) -> list[Counter[str]]:
    """Return the number of tasks by role on each node after the pipeline."""
    bench = Bench.of(cluster(nodes, [made]), RuleSet.of(RULE, GangRule()))
    decisions = bench.greedy()
    assert bench.broken(decisions) == []
    found = [Counter[str]() for _ in nodes]
    for task, where in zip(bench.problem.tasks, decisions.node_of.tolist(), strict=True):
        if where >= 0:
            found[where][task.role] += 1
    return found


# --- annotations ---------------------------------------------------------------------------------


def test_groups_of_one_are_about_the_role_itself() -> None:
    roles = read_roles({NEAR: "a,b; c", FAR: "a;b,c"}, [])
    assert roles is not None
    assert roles.rank == {"a": 4, "b": 3, "c": 2}
    assert roles.sum_affinity("a", {"a": 2, "b": 3, "c": 4, "d": 5}) == 3 - 2
    assert roles.sum_affinity("b", {"a": 2, "b": 3, "c": 4}) == 2 - 4
    assert roles.sum_affinity("c", {"c": 4, "b": 1}) == 4 - 1
    assert roles.count_separated_tasks("a", {"a": 2, "b": 3}) == 2


def test_the_order_of_the_user_comes_before_ranks() -> None:
    roles = read_roles({NEAR: "a", FAR: "b", ORDER: "c,a,b"}, [])
    assert roles is not None
    assert sorted("dbac", key=roles.role_order) == ["c", "a", "b", "d"]
    unsaid = read_roles({NEAR: "a", FAR: "b"}, [])
    assert unsaid is not None
    assert sorted("ab", key=unsaid.role_order) == ["b", "a"]


@pytest.mark.parametrize(("key", "text"), [(NEAR, "a,b,a"), (FAR, "c;b,b"), (ORDER, "a,b,a")])
def test_a_role_twice_in_a_group_is_remarked_on_and_nothing_is_taken(key: str, text: str) -> None:
    remarks: list[FieldError] = []
    assert read_roles({NEAR: "c,d", key: text}, remarks) is None
    assert [r.path for r in remarks] == [f"metadata.annotations[{key}]"]


@pytest.mark.parametrize("notes", [{}, {NEAR: ""}, {NEAR: " ; ,"}, {"other": "a,b"}])
def test_without_roles_it_has_no_say(notes: dict[str, str]) -> None:
    problem = compile_problem(cluster([node("n")], [job(notes, ("a", 2))]))
    assert read_roles(notes, []) is None
    assert RULE.open(problem, Ledger(problem)) is None


# --- order ---------------------------------------------------------------------------------------


def test_bucket_by_bucket_and_the_rest_last() -> None:
    made = job(SPREAD_PS, ("other", 1), ("ps", 2), ("worker", 3))
    assert order(made) == [("ps", 1), ("worker", 2), ("ps", 1), ("worker", 1), ("other", 1)]


def test_in_a_bucket_the_order_of_the_user_counts() -> None:
    made = job({NEAR: "a,b", ORDER: "b,a"}, ("a", 2), ("b", 2))
    assert order(made) == [("b", 2), ("a", 2)]
    assert order(job({NEAR: "a,b"}, ("a", 2), ("b", 2)))[0] == ("a", 1)


def test_an_order_alone_makes_no_buckets() -> None:
    problem = compile_problem(cluster([node("n")], [job({ORDER: "b,a"}, ("a", 1), ("b", 1))]))
    assert RULE.open(problem, Ledger(problem)) is None


def test_a_task_joins_those_it_wants_on_a_node_already() -> None:
    ps = gang("g", ("ps", 2, shape())).tasks
    there = [running(ps[0], "a"), running(ps[1], "b")]
    workers = job(SPREAD_PS, ("worker", 2))
    made = replace(workers, tasks=(*there, *workers.tasks))
    assert by_node(made, node("a", 8), node("b", 8), node("c", 8)) == [
        Counter(worker=1),
        Counter(worker=1),
        Counter(),
    ]


# --- score ---------------------------------------------------------------------------------------


def scores(asked: GreedyPlugins, entry: int, number: int) -> list[float]:
    (scorer,) = asked.live_scorers(0, entry)
    return scorer(np.ones(number, np.bool_)).tolist()


def test_a_node_is_worth_as_much_of_the_bucket_as_it_has_room_for() -> None:
    nodes = [node("a", 1), node("b", 3), node("c", 9), node("d", 0)]
    found = switches(job({NEAR: "a"}, ("a", 4)), *nodes)
    assert scores(found, 0, 4) == [25, 75, 100, 0]


def test_what_has_been_placed_counts_and_comes_back() -> None:
    nodes = [node("a", 9), node("b", 9)]
    found = switches(job({NEAR: "a", FAR: "a,b"}, ("a", 4), ("b", 1)), *nodes)
    before = scores(found, 0, 2)
    assert before == [100, 100]
    where, one = np.array([1]), np.array([1])
    found.record_placement(0, 0, where, one)
    found.record_tasks(0, 0, where, one)
    assert scores(found, 0, 2) == [75, 100]
    assert scores(found, 1, 2) == [25, 0]
    found.record_placement(0, 0, where, -one)
    found.record_tasks(0, 0, where, -one)
    assert scores(found, 0, 2) == before


def test_the_weight_counts_and_nothing_is_asked_of_tasks_without_a_bucket() -> None:
    problem = compile_problem(cluster([node("n")], [job({NEAR: "a"}, ("a", 1), ("b", 1))]))
    for weight, expected in ((3, [300.0]), (0, None)):
        found = GreedyPlugins(problem, RuleSet.of(TaskTopology(weight)), Ledger(problem))
        asked = found.live_scorers(0, 0)
        assert [s(np.ones(1, np.bool_)).tolist() for s in asked] == ([expected] if expected else [])
        assert found.live_scorers(0, 1) == []


def test_parameter_servers_apart_and_workers_with_them() -> None:
    made = job(SPREAD_PS, ("ps", 2), ("worker", 4), cpu=2)
    assert by_node(made, *(node(name, 9) for name in "abc")) == [
        Counter(ps=1, worker=2),
        Counter(ps=1, worker=2),
        Counter(),
    ]


def test_a_wish_keeps_nobody_waiting() -> None:
    made = job(SPREAD_PS, ("ps", 2), ("worker", 2), least=4)
    assert by_node(made, node("a", 4)) == [Counter(ps=2, worker=2)]


@given(
    near=st.sampled_from(["", "a", "a,b", "a,b;c", "b,c"]),
    far=st.sampled_from(["", "a", "b,c", "a;b", "a,b,c"]),
    numbers=st.tuples(*[st.integers(0, 4)] * 3),
    rooms=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
def test_runs_hold_every_task_once_and_undoing_leaves_no_trace(
    near: str, far: str, numbers: tuple[int, ...], rooms: list[int]
) -> None:
    roles = [(role, n) for role, n in zip("abc", numbers, strict=True) if n]
    made = job({NEAR: near, FAR: far}, *roles, least=sum(numbers))
    nodes = [node(f"n{i}", room) for i, room in enumerate(rooms)]
    problem = compile_problem(cluster(nodes, [made]))
    found = GreedyPlugins(problem, RuleSet.of(RULE), Ledger(problem))
    runs = found.task_runs(0)
    if runs is not None:
        counts = Counter[str]()
        entries = problem.shapes.shapes[int(problem.shape_of[0])].entries
        for entry, number in runs:
            counts[entries[entry].role] += number
        assert counts == Counter(dict(roles))
    placed = sum(sum(c.values()) for c in by_node(made, *nodes))
    assert placed == (sum(numbers) if sum(numbers) <= sum(rooms) else 0)


def test_arguments_become_the_rule() -> None:
    build = PLUGINS["task-topology"].build
    assert build is not None
    assert build({}) == (TaskTopology(),)
    assert build({"task-topology.weight": 10}) == (TaskTopology(10),)
