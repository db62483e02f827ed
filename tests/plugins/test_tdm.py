"""Tests of nodes with time-division multiplexing: allowed pods, times, and order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict
from optsched.plugins.accounting import Ledger
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.nodes.tdm import Tdm
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.policy.load import parse_policy
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from optsched.solver.greedy.plugins import GreedyPlugins
from optsched.units import Hours
from tests.support.engines import Bench, reason
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster import snapshot as domain
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import TaskShape

ZONE = "volcano.sh/revocable-zone"
PREEMPTABLE = "volcano.sh/preemptable"
NOON_MS = 12 * 3600 * 1000
NODES = [
    node("day", labels={ZONE: "day"}),
    node("night", labels={ZONE: "night"}),
    node("other", labels={ZONE: "other"}),
    node("own", labels={ZONE: ""}),
]
RULE = Tdm({"day": Hours(8 * 3600, 18 * 3600), "night": Hours(20 * 3600, 6 * 3600)})
STAYS = shape()
GOES = replace(shape(), notes=((ZONE, "*"),))


def bench_of(what: TaskShape, *, now_ms: int = NOON_MS, number: int = 1) -> Bench:
    made = gang("g", ("w", number, what))
    return Bench.of(cluster(NODES, [made], now_ms=now_ms), RuleSet.of(RULE))


def open_nodes(what: TaskShape, now_ms: int = NOON_MS) -> list[str]:
    """Return the nodes that the mask allows a task; the verifier must agree."""
    bench = bench_of(what, now_ms=now_ms)
    mask = RULE.mask(bench.problem, 0)
    found = [n.name for i, n in enumerate(NODES) if mask is None or mask[i]]
    for name in (n.name for n in NODES):
        assert (bench.broken(bench.decisions({"ns/g-w-0": name})) == []) is (name in found)
    return found


def test_a_lent_node_takes_only_tasks_that_allow_for_it() -> None:
    assert open_nodes(STAYS) == ["own"]
    assert open_nodes(GOES) == ["day", "own"]


def test_zones_open_and_close() -> None:
    assert open_nodes(GOES, 0) == ["night", "own"]
    assert open_nodes(GOES, NOON_MS + 7 * 3600 * 1000) == ["own"]


def test_lent_nodes_come_first_for_those_who_may_have_them() -> None:
    bench = bench_of(GOES)
    score = RULE.class_score(bench.problem, 0)
    assert score is not None
    assert score.tolist() == [100, 0, 0, 0]
    assert bench.greedy().node_of.tolist() == [0]
    assert RULE.class_score(bench_of(STAYS).problem, 0) is None


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (STAYS, "3 nodes took only revocable tasks"),
        (GOES, "2 nodes belonged to a revocable zone that is closed at this hour"),
    ],
)
def test_who_waits_is_told_why(what: TaskShape, words: str) -> None:
    made = gang("g", ("w", 12, what))
    assert words in reason(cluster(NODES, [made], now_ms=NOON_MS), RuleSet.of(RULE, Gang()), "g")


def waits(name: str, text: str = "") -> domain.Gang:
    return gang(name, ("w", 1, shape()), annotations={PREEMPTABLE: text} if text else {})


def test_gangs_that_stay_come_first() -> None:
    problem = compile_problem(cluster([], [waits("a", "true"), waits("b", "no"), waits("c")]))
    switches = GreedyPlugins(problem, RuleSet.of(RULE), Ledger(problem))
    assert switches.gang_key(0) > switches.gang_key(1)
    assert switches.gang_key(1)[:1] == switches.gang_key(2)[:1]


def test_it_keeps_nobody_off_nodes_where_nothing_is_lent() -> None:
    problem = compile_problem(cluster([node("n")], [waits("a")]))
    assert RULE.mask(problem, 0) is None
    assert RULE.class_score(problem, 0) is None


# --- evictions without a solver ------------------------------------------------------------------

VOTES = """
actions: "enqueue, allocate, preempt"
solver: none
tiers:
- plugins:
  - name: tdm
    arguments: {tdm.revocable-zone.day: 8:00-18:00}
  - name: gang
    enablePreemptable: false
    enableJobStarving: false
  - name: predicates
"""
YES = {PREEMPTABLE: "true"}


def holds(name: str, number: int, at: str = "own", **notes: str) -> domain.Gang:
    """Return a running job with a minimum of zero tasks."""
    made = gang(name, ("w", number, shape()), least=0, annotations=notes)
    return replace(made, tasks=tuple(running(t, at) for t in made.tasks))


def leave(*gangs: domain.Gang, conf: str = VOTES, nodes: tuple[Node, ...] = ()) -> list[str]:
    """Return the tasks that a session evicts."""
    snapshot = cluster(nodes or (node("own"),), gangs, now_ms=NOON_MS)
    report = run_session(snapshot, parse_policy(conf, "a.conf"), SessionContext())
    assert report.trace.violations == ()
    return sorted(a.task for a in report.plan.actions if isinstance(a, Evict))


def test_who_says_so_goes_for_whoever_does_not() -> None:
    asks = gang("new", ("w", 1, shape()))
    assert leave(holds("old", 4, **YES), asks) == ["ns/old-w-3"]
    assert leave(holds("old", 4), asks) == []
    assert leave(holds("old", 4, **{PREEMPTABLE: "no"}), asks) == []


@pytest.mark.parametrize(
    "asks",
    [
        gang("new", ("w", 1, shape()), annotations=YES),
        gang("new", ("w", 1, GOES)),
    ],
    ids=["preemptable", "borrows"],
)
def test_nobody_goes_for_who_has_to_go_as_well(asks: domain.Gang) -> None:
    assert leave(holds("old", 4, **YES), asks) == []


def test_nodes_that_are_lent_are_left_alone() -> None:
    lent = node("lent", labels={ZONE: "day"})
    asks = gang("new", ("w", 1, GOES))
    assert leave(holds("old", 4, "lent", **YES), asks, nodes=(lent,)) == []


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        ({}, 2),
        ({"volcano.sh/jdb-max-unavailable": "2"}, 2),
        ({"volcano.sh/jdb-max-unavailable": "1"}, 0),
        ({"volcano.sh/jdb-min-available": "75%"}, 0),
    ],
)
def test_of_each_gang_go_as_many_as_its_budget_allows(budget, number) -> None:
    asks = gang("new", ("w", 2, shape()))
    assert len(leave(holds("old", 4, **YES, **budget), asks)) == number


def test_it_votes_with_others_of_its_tier() -> None:
    conf = VOTES.replace("  - name: gang\n", "  - name: priority\n  - name: gang\n")
    old, asks = holds("old", 4, **YES), gang("new", ("w", 1, shape()))
    assert leave(old, asks, conf=conf) == []
    assert leave(old, replace(asks, priority=10), conf=conf) == ["ns/old-w-3"]


def test_a_gang_gets_its_minimum_or_nobody_goes() -> None:
    conf = VOTES.replace("    enableJobStarving: false", "    enableJobPipelined: false")
    old, asks = holds("old", 2, **YES), gang("new", ("w", 3, shape()))
    stays = holds("stays", 2)
    assert leave(old, stays, asks, conf=conf) == []


def test_arguments_become_the_rule() -> None:
    build = PLUGINS["tdm"].build
    assert build({"tdm.revocable-zone.day": "8:00-18:00", "tdm.evict.period": "1m"}) == (
        Tdm({"day": Hours(8 * 3600, 18 * 3600)}),
    )
