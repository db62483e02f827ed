"""Nodes that are lent: to whom, when, and who comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.engines.greedy.faces import Faces
from optsched.problem.compile import compile_problem
from optsched.rules.gang import Gang
from optsched.rules.ledger import Ledger
from optsched.rules.plugins import PLUGINS
from optsched.rules.ruleset import RuleSet
from optsched.rules.tdm import Tdm
from optsched.units import Hours
from tests.support.engines import Bench, reason
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.domain import cluster as domain
    from optsched.domain.task import TaskShape

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
    """Nodes on which a task may be put, by the mask; the verifier must say the same."""
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
        (STAYS, "3 nodes took only tasks that may be evicted"),
        (GOES, "2 nodes did not lend at this hour"),
    ],
)
def test_who_waits_is_told_why(what: TaskShape, words: str) -> None:
    made = gang("g", ("w", 12, what))
    assert words in reason(cluster(NODES, [made], now_ms=NOON_MS), RuleSet.of(RULE, Gang()), "g")


def waits(name: str, text: str = "") -> domain.Gang:
    return gang(name, ("w", 1, shape()), annotations={PREEMPTABLE: text} if text else {})


def test_gangs_that_stay_come_first() -> None:
    problem = compile_problem(cluster([], [waits("a", "true"), waits("b", "no"), waits("c")]))
    faces = Faces(problem, RuleSet.of(RULE), Ledger(problem))
    assert faces.gang_key(0) > faces.gang_key(1)
    assert faces.gang_key(1)[:1] == faces.gang_key(2)[:1]


def test_it_has_no_say_where_nothing_is_lent() -> None:
    problem = compile_problem(cluster([node("n")], [waits("a")]))
    assert RULE.mask(problem, 0) is None
    assert RULE.class_score(problem, 0) is None
    assert RULE.open(problem, Ledger(problem)) is None


def test_arguments_become_the_rule() -> None:
    build = PLUGINS["tdm"].build
    assert build is not None
    assert build({"tdm.revocable-zone.day": "8:00-18:00", "tdm.evict.period": "1m"}) == (
        Tdm({"day": Hours(8 * 3600, 18 * 3600)}),
    )
