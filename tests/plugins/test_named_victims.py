"""Tests of the victims that the plugins cdp and pdb accept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Budget
from optsched.plugins.accounting import Ledger
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM
from optsched.plugins.eviction.victims import Budgets, Cooldown
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks
from optsched.solver.greedy.plugins import GreedyPlugins
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.plugins.extension_points import Rule

NOW_MS = 1_000_000


def busy(name: str, number: int = 1, **fields: object) -> Gang:
    made = gang(name, ("w", number, shape()), labels={"app": name})
    return replace(made, tasks=tuple(replace(running(t, "n"), **fields) for t in made.tasks))


def named(rule: Rule, *gangs: Gang, budgets: tuple[Budget, ...] = ()) -> list[str]:
    """Return the running tasks that may be evicted, and check both extension points."""
    asks = gang("z", ("w", 1, shape()))
    snapshot = cluster([node("n", 9)], [*gangs, asks], now_ms=NOW_MS)
    problem = compile_problem(replace(snapshot, budgets=budgets))
    switches = GreedyPlugins(problem, RuleSet.of(rule), Ledger(problem))
    everyone = np.arange(len(running_tasks(problem)))
    last = problem.num_gangs - 1
    found = switches.find_allowed_victims(PREEMPT, last, 0, everyone).tolist()
    reclaimed = switches.find_allowed_victims(RECLAIM, last, 0, everyone).tolist()
    # Pods in cooldown may be evicted only for claims within a guarantee.
    assert reclaimed == (everyone.tolist() if isinstance(rule, Cooldown) else found)
    return [running_tasks(problem).tasks[v].name for v in found]


def budget(app: str, allowed: int) -> Budget:
    selector = LabelSelector((Requirement("app", Operator.IN, (app,)),))
    return Budget(f"ns/{app}", selector, allowed)


def test_who_has_cooled_down_is_named() -> None:
    gangs = (
        busy("a", cooldown_ms=600_000, started_ms=NOW_MS - 599_999),
        busy("b", cooldown_ms=600_000, started_ms=NOW_MS - 600_000),
        busy("c", started_ms=NOW_MS),
    )
    assert named(Cooldown(), *gangs) == ["b-w-0", "c-w-0"]


def test_no_more_are_named_than_every_budget_allows() -> None:
    gangs = busy("a", 3), busy("b", 2), busy("c")
    assert named(Budgets(), *gangs) == ["a-w-0", "a-w-1", "a-w-2", "b-w-0", "b-w-1", "c-w-0"]
    held = (budget("a", 1), budget("b", 0))
    assert named(Budgets(), *gangs, budgets=held) == ["a-w-0", "c-w-0"]


def test_no_pod_of_two_budgets_is_named() -> None:
    gangs = busy("a", 3), busy("b", 2)
    held = (budget("a", 3), replace(budget("a", 3), key="ns/again"), budget("b", 2))
    assert named(Budgets(), *gangs, budgets=held) == ["b-w-0", "b-w-1"]


def test_plugins_bring_the_rules() -> None:
    brought = {n: p.build({}) for n, p in PLUGINS.items() if n in ("cdp", "pdb") and p.build}
    assert {n: [r.name for r in rules] for n, rules in brought.items()} == {
        "cdp": ["cdp"],
        "pdb": ["pdb"],
    }
