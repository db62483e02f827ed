"""Tests of the orders in which rules put queues and gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import GangPhase, Queue
from optsched.plugins.accounting import Ledger, Outcome
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capacity import Capacity, deserved_amounts
from optsched.plugins.shares.drf import Drf, LeastShare
from optsched.plugins.shares.proportion import Proportion
from optsched.problem.compile import compile_problem
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from tests.support.engines import Bench, binds
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def holding(name: str, queue: str, number: int, wants: int = 1, gpu: int = 0) -> Gang:
    """Return a gang with some running and some pending tasks of one CPU each."""
    made = gang(name, ("w", number + wants, shape(1, gpu)), least=1, queue=queue)
    there = tuple(running(t, "n0") for t in made.tasks[:number])
    phase = GangPhase.RUNNING if number else GangPhase.INQUEUE
    return replace(made, tasks=(*there, *made.tasks[number:]), phase=phase)


NODES = [node("n0", 100, gpu=10)]


def queues_in_order(rule: Rule, snapshot: Snapshot) -> list[str]:
    problem = compile_problem(snapshot)
    switch = rule.open(problem, Ledger(problem))
    assert switch is not None
    names = problem.queues.names
    numbers = [i for i, n in enumerate(names) if n not in ("root", "default")]
    return [names[i] for i in sorted(numbers, key=lambda i: (switch.queue_key(i), names[i]))]


# --- queues --------------------------------------------------------------------------------------


def test_capacity_serves_the_queue_that_uses_least_of_what_it_deserves() -> None:
    queues = [
        Queue("a-half", deserved=cpus(10)),
        Queue("b-quarter", deserved=cpus(40)),
        Queue("c-over", deserved=cpus(2)),
        Queue("d-nothing-deserved"),
        Queue("e-important", deserved=cpus(1), priority=1),
    ]
    used = {"a-half": 5, "b-quarter": 10, "c-over": 6, "e-important": 3}
    gangs = [holding(name, name, number) for name, number in used.items()]
    assert queues_in_order(Capacity(), cluster(NODES, gangs, queues)) == [
        "e-important",
        "b-quarter",
        "a-half",
        "d-nothing-deserved",  # this queue counts as fully used, because it deserves nothing
        "c-over",
    ]


def test_capacity_puts_a_queue_that_deserves_nothing_behind_one_that_is_just_full() -> None:
    queues = [Queue("a-nothing"), Queue("b-full", deserved=cpus(4))]
    gangs = [holding("g", "b-full", 4)]
    assert queues_in_order(Capacity(), cluster(NODES, gangs, queues)) == ["b-full", "a-nothing"]


def test_capacity_looks_at_the_resource_of_which_most_is_used() -> None:
    both = ((CPU, 10_000), (GPU, 4))
    queues = [Queue("cpu", deserved=both), Queue("gpu", deserved=both)]
    gangs = [holding("c", "cpu", 7), holding("g", "gpu", 3, gpu=1)]  # shares of 0.7 and 0.75
    assert queues_in_order(Capacity(), cluster(NODES, gangs, queues)) == ["cpu", "gpu"]


def test_with_a_tree_departments_are_compared_before_their_queues() -> None:
    queues = [
        Queue("busy", deserved=cpus(10)),
        Queue("busy-idle", parent="busy", deserved=cpus(5)),
        Queue("busy-full", parent="busy", deserved=cpus(5)),
        Queue("calm", deserved=cpus(20)),
        Queue("calm-half", parent="calm", deserved=cpus(4)),
        Queue("calm-urgent", parent="calm", deserved=cpus(1), priority=1),
    ]
    gangs = [holding("f", "busy-full", 5), holding("h", "calm-half", 2)]
    snapshot = cluster(NODES, gangs, queues)
    leaves = ["calm-urgent", "calm-half", "busy-idle", "busy-full"]
    assert queues_in_order(Capacity(), snapshot) == [*leaves, "calm", "busy"]


def test_what_is_deserved_lies_between_guarantee_and_capability() -> None:
    queues = [
        Queue("capped", deserved=cpus(9), capability=cpus(5)),
        Queue("floored", deserved=cpus(1), guarantee=cpus(3)),
    ]
    problem = compile_problem(cluster(NODES, [], queues))
    wanted = deserved_amounts(problem)[:, problem.index(CPU)]
    by_name = dict(zip(problem.queues.names, wanted.tolist(), strict=True))
    assert (by_name["capped"], by_name["floored"]) == (5000, 3000)


def test_proportion_serves_the_queue_that_uses_least_of_its_share() -> None:
    queues = [Queue("a", weight=1), Queue("b", weight=3), Queue("c", priority=1)]
    gangs = [
        holding("a", "a", 10, wants=40),
        holding("b", "b", 20, wants=40),
        holding("c", "c", 15, wants=40),
    ]
    assert queues_in_order(Proportion(), cluster(NODES, gangs, queues)) == ["c", "b", "a"]


# --- gangs ---------------------------------------------------------------------------------------


class Hears(Rule, Greedy):
    """A rule without opinion that records the gangs which get tasks."""

    name = "hears"

    def __init__(self) -> None:
        self.gangs: list[int] = []

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        return self

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        self.gangs.append(gang)


def gangs_in_order(rules: tuple[Rule, ...], *gangs: Gang) -> list[str]:
    """Return the gangs in the order in which the pipeline serves them.

    The node has enough capacity for all gangs.
    """
    problem = compile_problem(cluster([node("n0", 100)], gangs))
    hears = Hears()
    run_greedy(problem, RuleSet.of(*rules, hears), GreedyOptions())
    return [problem.snapshot.gangs[g].name for g in dict.fromkeys(hears.gangs)]


def test_more_important_gangs_come_first() -> None:
    made = [gang(n, ("w", 1, shape(1)), priority=p) for n, p in (("a", 1), ("b", 7), ("c", -3))]
    assert gangs_in_order((Priority(),), *made) == ["b", "a", "c"]


def test_older_gangs_come_first_among_equals_and_names_decide_last() -> None:
    made = [gang(n, ("w", 1, shape(1)), created_ms=t) for n, t in (("a", 5), ("c", 2), ("b", 2))]
    assert gangs_in_order((Priority(),), *made) == ["b", "c", "a"]


def test_gangs_with_a_small_dominant_share_come_first() -> None:
    made = [holding("a", "default", 3), holding("b", "default", 1), holding("c", "default", 2)]
    assert gangs_in_order((Drf(),), *made) == ["b", "c", "a"]


def test_rules_are_asked_in_the_order_of_the_policy() -> None:
    made = [
        replace(holding("a", "default", 1), priority=1),
        replace(holding("b", "default", 3), priority=2),
    ]
    assert gangs_in_order((Priority(), Drf()), *made) == ["b", "a"]
    assert gangs_in_order((Drf(), Priority()), *made) == ["a", "b"]


# --- dominant resource fairness ------------------------------------------------------------------

GIB = 1 << 30


def users() -> Snapshot:
    """Return the example of Ghodsi et al., NSDI 2011, section 4.1: 9 CPUs, 18 GB, two users."""
    nodes = [replace(node("n0"), allocatable=((CPU, 9000), ("memory", 18 * GIB), ("pods", 1000)))]
    a = replace(shape(1), request=((CPU, 1000), ("memory", 4 * GIB)))
    b = replace(shape(1), request=((CPU, 3000), ("memory", 1 * GIB)))
    return cluster(nodes, [gang("a", ("w", 9, a), least=1), gang("b", ("w", 9, b), least=1)])


@pytest.mark.parametrize("engine", ["greedy", "solver"])
def test_the_example_of_the_paper_gives_three_and_two(engine: str) -> None:
    bench = Bench.of(users(), RuleSet.of(GangRule(), Drf()))
    decisions = bench.greedy() if engine == "greedy" else bench.improved().decisions
    placed = list(binds(bench.actions(decisions)))
    assert [sum(t.startswith(f"ns/{n}-") for t in placed) for n in "ab"] == [3, 2]


def test_the_least_share_is_counted_in_thousandths() -> None:
    bench = Bench.of(users(), RuleSet.of(GangRule(), Drf()))
    (level,) = [t for t in bench.levels if isinstance(t, LeastShare)]
    three_and_two = {f"ns/{n}-w-{i}": "n0" for n, k in (("a", 3), ("b", 2)) for i in range(k)}
    outcome = Outcome(bench.problem, bench.decisions(three_and_two))
    assert level.value(outcome) == 666  # both shares are 2/3: 12 of 18 GB, 6 of 9 CPUs
    one_each = {"ns/a-w-0": "n0", "ns/b-w-0": "n0"}
    assert level.value(Outcome(bench.problem, bench.decisions(one_each))) == 222  # 4 of 18 GB
    assert level.value(Outcome(bench.problem, bench.decisions({}))) == level.ideal(bench.problem)


def test_gangs_that_start_whole_are_not_compared() -> None:
    snapshot = cluster([node("n0", 9)], [gang(n, ("w", 2, shape(1))) for n in "ab"])
    bench = Bench.of(snapshot, RuleSet.of(GangRule(), Drf()))
    assert Drf().distinguish_gangs(bench.problem) is None
    assert not [t for t in bench.levels if isinstance(t, LeastShare)]
