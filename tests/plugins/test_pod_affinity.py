"""Tests of affinity and anti-affinity between pods, in the domains of a node label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.task import PodTerm, TaskStatus
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.pod_affinity import PodAffinity
from tests.support.engines import Bench, binds, promises
from tests.support.small import HOST, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node, Snapshot

RULES = RuleSet.of(GangRule(), Priority(), PodAffinity())


def app(name: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, (name,)),))


def term(name: str, key: str = ZONE, *namespaces: str) -> PodTerm:
    return PodTerm(app(name), namespaces or ("ns",), None, key)


def zoned(name: str, zone: str, cpu: int = 8) -> Node:
    return node(name, cpu, labels={ZONE: zone})


def tasks(name: str, number: int = 1, least: int | None = None, **fields: object) -> Gang:
    """Return tasks of one CPU with the gang's name as label `app`."""
    return gang(name, ("w", number, shape(1, **fields)), least=least, labels={"app": name})


def runs(made: Gang, *where: str) -> Gang:
    """Return the gang with its first tasks running."""
    there = [running(t, at) for t, at in zip(made.tasks, where, strict=False)]
    return replace(made, tasks=(*there, *made.tasks[len(where) :]))


def placed(snapshot: Snapshot, gang_name: str) -> list[str]:
    """Return the nodes of a gang's tasks; the pipeline and the solver must place equally many."""
    bench = Bench.of(snapshot, RULES)
    greedy, solved = bench.greedy(), bench.improved().decisions
    assert bench.broken(greedy) == bench.broken(solved) == []
    assert (greedy.node_of >= 0).sum() == (solved.node_of >= 0).sum()
    found = binds(bench.actions(greedy))
    return sorted(n for task, n in found.items() if task.startswith(f"ns/{gang_name}-"))


ZONES = [zoned("a1", "a"), zoned("a2", "a", cpu=1), zoned("b1", "b")]


# --- affinity ------------------------------------------------------------------------------------


def test_tasks_go_where_wanted_pods_stand() -> None:
    near_db = tasks("web", 3, pod_affinity=(term("db"),))
    assert placed(cluster(ZONES, [runs(tasks("db"), "b1"), near_db]), "web") == ["b1"] * 3


def test_without_wanted_pods_tasks_wait() -> None:
    assert placed(cluster(ZONES, [tasks("web", 2, pod_affinity=(term("db"),))]), "web") == []


def test_wanted_pods_may_come_with_the_same_plan() -> None:
    near_db = tasks("web", 1, pod_affinity=(term("db"),))
    assert len(placed(cluster(ZONES, [tasks("db"), near_db]), "web")) == 1


def test_pods_that_want_their_own_kind_start_together_somewhere() -> None:
    kin = tasks("web", 8, pod_affinity=(term("web"),))
    found = placed(cluster(ZONES, [kin]), "web")
    assert len(found) == 8
    assert set(found) in ({"a1", "a2"}, {"a1"}, {"b1"})


def test_pods_that_want_their_own_kind_never_start_in_two_places() -> None:
    # Zone a alone has capacity for nine tasks, and zone b for eight.
    kin = tasks("web", 17, least=1, pod_affinity=(term("web"),))
    assert len(placed(cluster(ZONES, [kin]), "web")) in (8, 9)


def test_pods_that_want_their_own_kind_join_those_that_run() -> None:
    kin = runs(tasks("web", 4, least=1, pod_affinity=(term("web"),)), "b1")
    assert placed(cluster(ZONES, [kin]), "web") == ["b1"] * 3


def test_pods_on_nodes_without_the_label_are_near_nothing() -> None:
    # Upstream counts pods by label value, so a pod outside of all domains does not count.
    outside = runs(tasks("web"), "x1")
    kin = gang("kin", ("w", 2, shape(1, pod_affinity=(term("web"),))), labels={"app": "web"})
    assert len(placed(cluster([*ZONES, node("x1")], [outside, kin]), "kin")) == 2


def test_nodes_without_the_label_are_out_of_the_question() -> None:
    kin = tasks("web", 2, pod_affinity=(term("web"),))
    assert placed(cluster([node("x1")], [kin]), "web") == []


def test_all_terms_must_hold() -> None:
    both = (term("db"), term("db", HOST))
    near = tasks("web", 1, pod_affinity=both)
    assert placed(cluster(ZONES, [runs(tasks("db"), "a2"), near]), "web") == []  # node a2 is full
    assert placed(cluster(ZONES, [runs(tasks("db"), "a1"), near]), "web") == ["a1"]


@pytest.mark.parametrize(("where", "found"), [("ns", ["b1"]), ("elsewhere", [])])
def test_terms_look_into_the_namespaces_that_they_name(where: str, found: list[str]) -> None:
    near_db = tasks("web", 1, pod_affinity=(term("db", ZONE, where),))
    assert placed(cluster(ZONES, [runs(tasks("db"), "b1"), near_db]), "web") == found


@pytest.mark.parametrize(("team", "found"), [("blue", ["b1"]), ("red", [])])
def test_terms_look_into_namespaces_with_the_labels_that_they_ask_for(
    team: str, found: list[str]
) -> None:
    blue = LabelSelector((Requirement("team", Operator.IN, ("blue",)),))
    near_db = tasks("web", 1, pod_affinity=(PodTerm(app("db"), (), blue, ZONE),))
    snapshot = cluster(ZONES, [runs(tasks("db"), "b1"), near_db])
    assert placed(replace(snapshot, namespaces={"ns": {"team": team}}), "web") == found


# --- anti-affinity -------------------------------------------------------------------------------


def test_replicas_that_keep_apart_take_a_zone_each() -> None:
    apart = tasks("web", 3, least=1, pod_anti_affinity=(term("web"),))
    assert len(placed(cluster(ZONES, [apart]), "web")) == 2


def test_tasks_keep_away_from_pods_that_run() -> None:
    apart = tasks("web", 3, least=1, pod_anti_affinity=(term("db"),))
    assert placed(cluster(ZONES, [runs(tasks("db"), "a2"), apart]), "web") == ["b1"] * 3


def test_pods_that_run_keep_tasks_away() -> None:
    # Anti-affinity is symmetric: `db` keeps `web` away, and `web` need not have a term.
    shy = runs(tasks("db", 1, pod_anti_affinity=(term("web"),)), "b1")
    assert set(placed(cluster(ZONES, [shy, tasks("web", 3)]), "web")) <= {"a1", "a2"}
    assert len(placed(cluster(ZONES, [shy, tasks("other", 3)]), "other")) == 3


def test_tasks_of_one_plan_keep_away_from_one_another_in_both_directions() -> None:
    shy = tasks("db", 1, pod_anti_affinity=(term("web"),))
    one_zone = cluster([zoned("a1", "a")], [shy, tasks("web", 1)])
    bench = Bench.of(one_zone, RULES)
    assert (bench.greedy().node_of >= 0).sum() == 1
    assert bench.broken(bench.decisions({"ns/db-w-0": "a1", "ns/web-w-0": "a1"})) == [
        "pod-affinity"
    ]


def test_nodes_without_the_label_are_apart_from_everything() -> None:
    apart = tasks("web", 4, pod_anti_affinity=(term("web"),))
    nodes = [node("x1"), node("x2", cpu=1)]
    assert len(placed(cluster(nodes, [apart]), "web")) == 4


def test_pods_that_leave_still_stand_there() -> None:
    going = runs(tasks("db"), "b1")
    going = replace(going, tasks=(replace(going.tasks[0], status=TaskStatus.RELEASING),))
    apart = tasks("web", 1, pod_anti_affinity=(term("db"),))
    assert placed(cluster([zoned("b1", "b")], [going, apart]), "web") == []


# --- promises ------------------------------------------------------------------------------------

ZONE_A = [zoned("a1", "a"), zoned("a2", "a", cpu=1)]


def leaving(cpu: int, where: str) -> Gang:
    made = gang("old", ("w", 1, shape(cpu)), labels={"app": "old"})
    task = replace(running(made.tasks[0], where), status=TaskStatus.RELEASING)
    return replace(made, tasks=(task,))


def test_nobody_relies_on_pods_that_only_have_a_promise() -> None:
    waits = gang("db", ("w", 1, shape(8)), labels={"app": "db"}, priority=5)
    near_db = tasks("web", 1, pod_affinity=(term("db"),))
    bench = Bench.of(cluster(ZONE_A, [leaving(8, "a1"), waits, near_db]), RULES)
    decisions = bench.greedy()
    assert bench.broken(decisions) == []
    assert promises(bench.actions(decisions)) == {"ns/db-w-0": "a1"}
    assert binds(bench.actions(decisions)) == {}


def test_pods_with_a_promise_keep_others_away_already() -> None:
    waits = gang("db", ("w", 1, shape(8)), labels={"app": "db"}, priority=5)
    apart = tasks("web", 1, pod_anti_affinity=(term("db"),))
    bench = Bench.of(cluster(ZONE_A, [leaving(8, "a1"), waits, apart]), RULES)
    assert binds(bench.actions(bench.greedy())) == {}
