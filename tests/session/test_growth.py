"""Operations that would grow quadratically are counted, not timed."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.accounting import Ledger, Outcome
from optsched.plugins.objectives.levels import NodeScore
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.verification import world
from optsched.policy.load import load_policy
from optsched.problem import shapes
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.relations import Relations
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat import level_search as levels
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.pricing import Pricer, TooManyCapacities
from optsched.solver.cpsat.process import InProcess
from optsched.solver.greedy import queue_order
from optsched.solver.greedy.nodes import NodeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from optsched.solver.cpsat.integer_program import Effort, Result

RULES = load_policy("volcano-default", Path.read_text).rules


def different_pods(number: int, cpus: int = 8) -> Snapshot:
    """Return one gang of different pods, and one node for every two pods."""
    tasks = tuple(
        Task(
            f"ns/g-{i:03d}",
            TaskShape((("cpu", 1000 + i), ("memory", 1000))),
            TaskStatus.PENDING,
            gang="ns/g",
            index=i,
        )
        for i in range(number)
    )
    gang = Gang("ns/g", min_member=number, tasks=tasks, phase=GangPhase.INQUEUE)
    offered = (("cpu", 1000 * cpus), ("memory", 10**6), ("pods", 10))
    nodes = tuple(Node(f"n{i:03d}", offered) for i in range(number // 2))
    return Snapshot(0, nodes, (gang,), (Queue("default"), Queue("root")))


def compiled(number: int, cpus: int = 8) -> Problem:
    return compile_problem(different_pods(number, cpus))


@pytest.fixture
def scored_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of class-node pairs that each scorer call evaluated."""
    seen: list[int] = []
    scorer = NodeOrder.scorer

    def counting(rule: NodeOrder, problem: Problem, task_class: int) -> Callable[[I64, I64], F64]:
        score = scorer(rule, problem, task_class)
        assert score is not None

        def counted(used: I64, offered: I64) -> F64:
            seen.append(len(used))
            return score(used, offered)

        return counted

    block_scores = NodeOrder.block_scores

    def counting_pairs(
        rule: NodeOrder, problem: Problem, task_class: I64, used: I64, offered: I64
    ) -> F64 | None:
        scores = block_scores(rule, problem, task_class, used, offered)
        assert scores is not None
        seen.append(scores.size)
        return scores

    monkeypatch.setattr(NodeOrder, "scorer", counting)
    monkeypatch.setattr(NodeOrder, "block_scores", counting_pairs)
    return seen


def test_pods_without_relations_are_not_looked_at_for_each_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, rule = compiled(40), PodAffinity()
    calls = []
    carried_by = Relations.carried_by

    def counting(relations: Relations, shape: TaskShape) -> tuple[int, ...]:
        calls.append(shape)
        return carried_by(relations, shape)

    monkeypatch.setattr(Relations, "carried_by", counting)
    assert not any(rule.ties_nodes(problem, c) for c in range(40))
    assert len(calls) <= 40


def test_scores_of_a_class_without_room_are_never_made(scored_nodes: list[int]) -> None:
    problem = compiled(10, cpus=0)
    book = NodeTable(problem, RULES, problem.idle)
    assert all(not book.fits(c).any() for c in range(10))
    assert all((book.scores(c) == -np.inf).all() for c in range(10))
    assert scored_nodes == []


def test_fits_alone_make_no_scores_and_touched_nodes_are_read_once(
    scored_nodes: list[int],
) -> None:
    problem = compiled(40)
    book = NodeTable(problem, RULES, problem.idle)
    one = np.ones(1, np.int64)
    assert (book.fits(0) == 8).all()
    assert scored_nodes == []
    book.scores(0)
    book.place_tasks(1, np.array([3]), one)
    book.place_tasks(2, np.array([5]), one)
    before = book.scores(0).copy()
    book.scores(0)
    assert scored_nodes == [20, 2]
    fresh = NodeTable(problem, RULES, book.idle)
    fresh.used[:] = book.used
    assert (fresh.scores(0) == before).all()
    assert (fresh.fits(0) == book.fits(0)).all()


def test_a_log_longer_than_the_nodes_is_one_pass_over_all(scored_nodes: list[int]) -> None:
    problem = compiled(40)
    book = NodeTable(problem, RULES, problem.idle)
    book.scores(0)
    nodes, one = np.arange(20), np.ones(20, np.int64)
    for _ in range(5):
        book.place_tasks(1, nodes, one)
        book.place_tasks(1, nodes, -one)
    book.scores(0)
    assert scored_nodes == [20, 20]


def test_node_score_looks_at_the_nodes_that_are_taken(scored_nodes: list[int]) -> None:
    problem = compiled(40)
    level = NodeScore(RULES)
    node_of = np.arange(40) // 2
    nothing = Decisions.nothing(problem)
    placed = replace(nothing, node_of=node_of)
    outcome = Outcome(problem, placed)
    value = level.value(outcome)
    assert scored_nodes == [40]
    table = level.node_values(problem)
    by_class = [
        sum(
            score(problem.used, problem.allocatable)
            for rule in RULES.scoring
            if (score := rule.scorer(problem, c)) is not None
        )
        for c in range(40)
    ]
    assert (table == np.floor(by_class)).all()
    assert value == int(table[problem.task_class, node_of].sum())
    assert level.ideal(problem) == int((table.max(axis=1) * problem.classes.num_pending).sum())
    assert level.value(Outcome(problem, nothing)) == 0


def test_sums_over_subtrees_follow_the_tree() -> None:
    rng = np.random.default_rng(0)
    for number in range(1, 40):
        names = sorted(["root", *(f"q{i:02d}" for i in range(number))])
        # Some parents do not exist, and some queues form a cycle.
        queues = [Queue(name, parent=str(rng.choice([*names, "none"]))) for name in names]
        arrays = compile_problem(replace(different_pods(2), queues=tuple(queues))).queues
        amounts = rng.integers(0, 100, (len(queues), 2))
        assert (arrays.summed_up(amounts) == arrays.subtree.astype(np.int64) @ amounts).all()


def test_the_ledger_holds_sums_over_subtrees_as_pods_come_and_go() -> None:
    snapshot = replace(
        different_pods(10),
        queues=(Queue("a", parent="root"), Queue("default", parent="a"), Queue("root")),
    )
    problem = compile_problem(snapshot)
    ledger = Ledger(problem)
    ledger.record_placement(0, 3, 2)
    ledger.record_placement(0, 4, 1)
    ledger.record_placement(0, 3, -1)
    expected = problem.queues.summed_up(np.array(ledger.queue_used))
    assert np.array(ledger.subtree_used).tolist() == expected.tolist()
    assert problem.resources == ("pods", "cpu", "memory")
    assert ledger.queue_used[1] == [2, 2007, 2000]
    ledger.evict(0, [1, 1003, 1000], 1)
    assert ledger.subtree_used[0] == ledger.subtree_used[1] == [1, 1004, 1000]


def test_an_eviction_of_a_gang_without_a_queue_changes_no_queue() -> None:
    problem = compile_problem(replace(different_pods(10), queues=(Queue("a"),)))
    assert problem.queue_of.tolist() == [-1]
    ledger = Ledger(problem)
    ledger.evict(0, [1, 1003, 1000], 1)
    assert ledger.queue_used == ledger.subtree_used == [[0, 0, 0]]
    assert ledger.leaving_total == [1, 1003, 1000]


def waiting_by_priority(number: int, fitting: int) -> Snapshot:
    """Return gangs of one pod with different priorities, and a node that holds some of them."""
    gangs = []
    for g in range(number):
        task = Task(
            f"ns/g-{g:03d}-0", TaskShape((("cpu", 1000),)), TaskStatus.PENDING, gang=f"ns/g-{g:03d}"
        )
        gangs.append(
            Gang(
                f"ns/g-{g:03d}",
                min_member=1,
                priority=g,
                tasks=(task,),
                phase=GangPhase.INQUEUE,
            )
        )
    node = Node("n", (("cpu", 1000 * fitting), ("memory", 1), ("pods", 500)))
    return Snapshot(0, (node,), tuple(gangs), (Queue("default"), Queue("root")))


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[levels.Task]:
    """Return the list of models that CP-SAT solved."""
    seen: list[levels.Task] = []
    maximize = levels.maximize

    def counting(task: levels.Task, effort: Effort, watch: object = None) -> Result:
        seen.append(task)
        return maximize(task, effort, None)

    monkeypatch.setattr(levels, "maximize", counting)
    return seen


def session_with(snapshot: Snapshot, limits: Limits) -> Report:
    policy = load_policy("volcano-default", Path.read_text)
    return run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=limits))


def test_levels_whose_variables_can_give_no_more_are_not_solved(
    solved: list[levels.Task],
) -> None:
    report = session_with(waiting_by_priority(60, 40), Limits(budget_ms=None, num_workers=1))
    assert len(report.plan.binds) == 40
    admission = [r for r in report.plan.certificate.levels if r.name.startswith("admission")]
    assert len(admission) == 60
    assert all(r.value == r.bound for r in admission)
    assert [r.value for r in admission] == [1000] * 40 + [0] * 20
    assert len(solved) <= 30


def test_levels_that_are_left_when_time_is_over_are_not_solved(
    solved: list[levels.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels.Clock, "is_expired", property(lambda _: True))
    report = session_with(waiting_by_priority(60, 40), Limits(budget_ms=400, num_workers=1))
    assert len(report.plan.binds) == 40
    assert report.plan.certificate.stopped == levels.OUT_OF_TIME
    assert solved == []


def test_rooms_that_are_too_many_are_refused_before_a_table_is_made() -> None:
    request = np.arange(1, 20_001).reshape(-1, 1)
    capacity = np.array([[4_000_000]])
    with pytest.raises(TooManyCapacities):  # a table of all sums and classes would take 600 GB
        Pricer(capacity, request, np.ones((1, 20_000), np.bool_))


def test_what_gangs_share_is_forgotten_with_the_last_of_them() -> None:
    """Every gang has a unique request and annotation, as jobs with topology constraints have."""
    policy = load_policy("volcano-compatible", Path.read_text)
    shared = (shapes.SHAPES, shapes.STAKES, world.STAKES, queue_order.IDENTITIES)
    sizes: list[tuple[int, ...]] = []
    gc.freeze()  # the collector skips objects of other tests
    for number in range(12):
        snapshot = different_pods(2, cpus=8 + number)
        (gang,) = snapshot.gangs
        tasks = tuple(
            replace(t, shape=TaskShape((("cpu", 100 + 7 * number + i),)))
            for i, t in enumerate(gang.tasks)
        )
        own = replace(gang, tasks=tasks, annotations={"run": str(number)})
        report = run_session(replace(snapshot, gangs=(own,)), policy, SessionContext())
        assert len(report.plan.binds) == 2
        del snapshot, gang, tasks, own, report
        gc.collect()
        sizes.append(tuple(map(len, shared)))
    gc.unfreeze()
    assert sizes[-1] == sizes[3]
