"""Tests of shares that count past usage in addition to the current allocation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from optsched.cluster.amounts import Usage
from optsched.cluster.decisions import Allocate
from optsched.cluster.snapshot import Queue
from optsched.plugins.accounting import Outcome
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.fairness import ideal_parts, queue_shares
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.shares.tree_fairness import HierarchicalDrf, OverTime
from optsched.plugins.shares.tree_shares import decayed_usage, find_half_life
from optsched.policy.diagnostic import PolicyError
from optsched.policy.load import parse_policy
from optsched.problem.compile import compile_problem
from tests.plugins.test_contract import examples
from tests.plugins.test_fairness import contests_of_queues
from tests.support.engines import Bench
from tests.support.small import CPU, cluster, gang, node, running, shape

HOUR = 3_600_000


def wants(name: str, number: int, where: str = ""):
    return gang(name, ("w", number, shape(1)), least=0, queue=where or name)


def always(cpus: float) -> tuple[tuple[str, float], ...]:
    """Return the usage of a queue that has always held the given CPUs, with an hour's half-life."""
    return ((CPU, cpus * 1000 * 3600 / np.log(2)),)


def after(snapshot, **cpus: float):
    """Return the snapshot with queues that have always held the given CPUs."""
    usage = {q: Usage(always(n), snapshot.taken_ms) for q, n in cpus.items()}
    return replace(snapshot, usage=usage)


def ideals(snapshot, rule=None) -> dict[str, float]:
    """Return the ideal number of CPUs by queue."""
    problem = compile_problem(snapshot)
    amounts = (rule or OverTime(HOUR)).find_contest(problem).ideal[:, problem.index(CPU)]
    return {
        name: round(amounts[q] / 1000, 6)
        for q, name in enumerate(problem.queues.names)
        if problem.queues.requested[q].any()
    }


def two(number: int = 10, **fields):
    queues = [Queue("a", **fields), Queue("b", **fields)]
    return cluster([node("n0", 10)], [wants("a", number), wants("b", number)], queues)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({}, {"a": 5, "b": 5}),
        ({"a": 10}, {"a": 0, "b": 10}),
        ({"a": 4}, {"a": 3, "b": 7}),
        ({"a": 7, "b": 3}, {"a": 3, "b": 7}),
        ({"a": 5, "b": 5}, {"a": 5, "b": 5}),
    ],
)
def test_what_was_used_is_made_up_for(used, expected):
    assert ideals(after(two(), **used)) == expected


def test_what_was_used_counts_by_weight():
    queues = [Queue("a", weight=3), Queue("b")]
    snapshot = cluster([node("n0", 10)], [wants("a", 10), wants("b", 10)], queues)
    assert ideals(after(snapshot, a=6)) == {"a": 6, "b": 4}


def test_a_department_answers_for_its_teams():
    queues = [Queue("x"), Queue("x1", parent="x"), Queue("x2", parent="x"), Queue("y")]
    gangs = [wants(n, 12) for n in ("x2", "y")]
    snapshot = after(cluster([node("n0", 12)], gangs, queues), x1=6)
    assert ideals(snapshot) == {"x2": 3, "y": 9}


def test_the_tree_of_drf_remembers_too():
    assert ideals(after(two(), a=4), HierarchicalDrf(half_life_ms=HOUR)) == {"a": 3, "b": 7}
    assert ideals(after(two(), a=4), HierarchicalDrf()) == {"a": 5, "b": 5}


def test_nobody_is_evicted_for_what_his_queue_once_had():
    rule, problem = HierarchicalDrf(half_life_ms=HOUR), compile_problem(after(two(), a=4))
    due = rule.deserved(problem)
    assert due is not None
    assert due[:, problem.index(CPU)].tolist()[:2] == [5000, 5000]


def test_what_is_deserved_is_had_whatever_was_used():
    snapshot = after(two(deserved=((CPU, 4000),)), a=10)
    assert ideals(snapshot, OverTime(HOUR, keeps_deserved=True)) == {"a": 4, "b": 6}


def test_what_nobody_has_kept_since_was_held_as_now():
    held = wants("a", 4)
    held = replace(held, tasks=tuple(running(t, "n0") for t in held.tasks))
    snapshot = cluster([node("n0", 10)], [held], [Queue("a")], now_ms=60 * HOUR)
    kept = replace(snapshot, usage={"a": Usage((), 0)})
    problem = compile_problem(kept)
    assert decayed_usage(problem, HOUR)[0, problem.index(CPU)] == pytest.approx(4000)
    assert decayed_usage(compile_problem(snapshot), HOUR).any() is np.False_
    assert decayed_usage(compile_problem(kept), 0).any() is np.False_


@examples(40)
@given(contests_of_queues())
def test_without_any_usage_it_is_the_ideal_of_flat_queues(snapshot):
    one_each = {g.queue: g for g in snapshot.gangs}
    snapshot = replace(
        snapshot,
        gangs=tuple(g for g in snapshot.gangs if one_each[g.queue] is g),
        queues=tuple(replace(q, guarantee=(), parent="root") for q in snapshot.queues),
    )
    problem = compile_problem(snapshot)
    flat = ideal_parts(problem, RuleSet.of(Drf(), Capability()))[:, None] * problem.queues.requested
    counted = problem.total > 0
    found = OverTime(HOUR).find_contest(problem).ideal
    assert found[:, counted] == pytest.approx(flat[:, counted], rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("rules", [(Drf(),), (Proportion(),), (Capacity(),)])
def test_turns_go_to_who_has_used_little(rules):
    snapshot = after(two(), a=4)
    bench = Bench.of(snapshot, RuleSet.of(OverTime(HOUR), *rules[:1]))
    found = Counter(a.gang for a in bench.actions(bench.greedy()) if isinstance(a, Allocate))
    expected = (
        {"ns/a": 5, "ns/b": 5} if isinstance(rules[0], Proportion) else {"ns/a": 3, "ns/b": 7}
    )
    assert found == expected


def test_a_queue_of_higher_priority_comes_first_all_the_same():
    queues = [Queue("a", priority=1), Queue("b")]
    snapshot = cluster([node("n0", 10)], [wants("a", 10), wants("b", 10)], queues)
    bench = Bench.of(after(snapshot, a=10), RuleSet.of(OverTime(HOUR), Capacity()))
    found = Counter(a.gang for a in bench.actions(bench.greedy()) if isinstance(a, Allocate))
    assert found == {"ns/a": 10}


def test_certificates_tell_the_ideal_over_time():
    rules = RuleSet.of(OverTime(HOUR), Capacity())
    bench = Bench.of(after(two(), a=4), rules)
    found = queue_shares(Outcome(bench.problem, bench.greedy()), rules)
    assert {s.queue: s.ideal for s in found} == {"a": 300_000, "b": 700_000}


def test_levels_over_time_come_after_what_is_deserved_and_before_gangs():
    rules = RuleSet.of(OverTime(HOUR), Capacity(), Drf())
    bench = Bench.of(after(two(deserved=((CPU, 4000),)), a=4), rules, ("fair-share",))
    names = [level.name for level in bench.levels]
    assert names == ["fair share", "fair share over time at depth 1", "least dominant share"]


CONF = """
actions: allocate
tiers:
- plugins:
  - name: {plugin}
    arguments: {{usage.halfLife: {text}}}
{more}"""


@pytest.mark.parametrize("plugin", ["drf", "proportion", "capacity"])
def test_plugins_take_a_half_life(plugin):
    policy = parse_policy(CONF.format(plugin=plugin, text="36h", more=""), "x.conf")
    assert find_half_life(policy.rules) == 36 * HOUR
    plain = parse_policy(f"actions: allocate\ntiers: [{{plugins: [{{name: {plugin}}}]}}]", "x.conf")
    assert find_half_life(plain.rules) == 0
    assert policy.rules.find_rule("over-time") is not None
    assert plain.rules.find_rule("over-time") is None


def test_with_a_tree_drf_needs_no_other_rule():
    text = CONF.format(plugin="drf", text="36h", more="    enableHierarchy: true\n")
    policy = parse_policy(text, "x.conf")
    assert find_half_life(policy.rules) == 36 * HOUR
    assert policy.rules.find_rule("over-time") is None


@pytest.mark.parametrize("text", ["0s", "-1h", "24", "long"])
def test_a_half_life_that_is_none_is_refused_with_its_place(text):
    with pytest.raises(PolicyError, match=r"x\.conf:6:\d+: .*usage\.halfLife"):
        parse_policy(CONF.format(plugin="drf", text=text, more=""), "x.conf")


def test_there_is_one_half_life():
    more = "  - {name: drf, arguments: {usage.halfLife: 2h}}\n"
    with pytest.raises(PolicyError, match=r"usage\.halfLife is 2h here, but 1h in capacity"):
        parse_policy(CONF.format(plugin="capacity", text="1h", more=more), "x.conf")
    same = more.replace("2h", "60m")
    policy = parse_policy(CONF.format(plugin="capacity", text="1h", more=same), "x.conf")
    assert find_half_life(policy.rules) == HOUR
