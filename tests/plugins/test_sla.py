"""Tests of the sla plugin: early deadlines come first, and overdue gangs are enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.cluster.snapshot import Gang, GangPhase
from optsched.plugins.accounting import Ledger
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.ordering.gang_order import Sla
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.problem.compile import compile_problem
from optsched.solver.greedy.plugins import GreedyPlugins
from tests.support.engines import Bench
from tests.support.small import CPU, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.plugins.extension_points import Rule

MINUTE = 60_000


def waits(name: str, text: str = "", created_ms: int = 0, **fields: object) -> Gang:
    notes = {"volcano.sh/sla-waiting-time": text} if text else {}
    return gang(name, ("w", 1, shape()), created_ms=created_ms, annotations=notes, **fields)


def in_order(rule: Sla, *gangs: Gang) -> list[str]:
    """Return the names of gangs in the rule's order, without ties broken by age and name."""
    problem = compile_problem(cluster([], gangs))
    switches = GreedyPlugins(problem, RuleSet.of(rule), Ledger(problem))
    keys = {g.name: switches.gang_key(i) for i, g in enumerate(problem.snapshot.gangs)}
    return sorted(keys, key=lambda name: keys[name])


# --- order ---------------------------------------------------------------------------------------


def test_who_is_due_first_comes_first() -> None:
    gangs = [waits("a", "10m"), waits("b", "2m", 5 * MINUTE), waits("c", "1h"), waits("d")]
    assert in_order(Sla(), *gangs) == ["b", "a", "c", "d"]


def test_others_wait_as_long_as_the_policy_says() -> None:
    assert in_order(Sla(3 * MINUTE), waits("a", "1h"), waits("b")) == ["b", "a"]


@pytest.mark.parametrize("text", ["5", "soon", "-3m", "0s"])
def test_a_waiting_time_without_a_reading_is_none(text: str) -> None:
    assert in_order(Sla(), waits("a", text), waits("b", "1h")) == ["b", "a"]


def test_the_shorter_annotation_counts_where_the_other_is_missing() -> None:
    old = gang("a", ("w", 1, shape()), annotations={"sla-waiting-time": "1m"})
    assert Sla().due_ms(old) == MINUTE


def test_without_waiting_times_it_has_no_say() -> None:
    problem = compile_problem(cluster([], [waits("a")]))
    assert Sla().open(problem, Ledger(problem)) is None


# --- vote ----------------------------------------------------------------------------------------


def let_in(now_ms: int, *tiers: Rule) -> bool:
    """Return whether a too large gang is enqueued, with a waiting time of five minutes."""
    asks = waits("g", "5m", phase=GangPhase.PENDING, min_resources=((CPU, 9000),))
    active = tuple(ActiveRule(rule, rule.name, tier) for tier, rule in enumerate(tiers))
    bench = Bench.of(cluster([node("n", 1)], [asks], now_ms=now_ms), RuleSet(active))
    return bool(bench.greedy(gated=True).enqueued[0])


@pytest.mark.parametrize(
    ("now_ms", "is_let_in"), [(0, False), (5 * MINUTE - 1, False), (5 * MINUTE, True)]
)
def test_who_has_waited_it_out_is_let_in_whatever_later_tiers_say(
    now_ms: int, is_let_in: bool
) -> None:
    assert let_in(now_ms, Sla(), Overcommit()) is is_let_in
    assert not let_in(now_ms, Overcommit(), Sla())


def test_the_argument_becomes_the_rule() -> None:
    build = PLUGINS["sla"].build
    assert build is not None
    assert build({}) == (Sla(),)
    assert build({"sla-waiting-time": "1h30m"}) == (Sla(90 * MINUTE),)
