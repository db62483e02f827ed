"""Tests of pod affinity terms, and of the positions of the matching pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.task import HostPort, PodTerm, SpreadTerm, TaskShape, TaskStatus
from optsched.problem.compile import compile_problem
from optsched.problem.relations import Term, TermKind
from tests.support.small import HOST, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.problem.problem import Problem


def app(name: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, (name,)),))


def term(name: str, key: str = ZONE) -> PodTerm:
    return PodTerm(app(name), ("ns",), None, key)


ZONES = [
    node("a1", labels={ZONE: "a"}),
    node("a2", labels={ZONE: "a"}),
    node("b1", labels={ZONE: "b"}),
    node("x1"),
]


def resident(
    name: str, where: str, what: TaskShape | None = None, status: TaskStatus = TaskStatus.RUNNING
) -> Gang:
    made = gang(name, ("w", 1, what or shape(1)), labels={"app": name})
    return replace(made, tasks=(replace(running(made.tasks[0], where), status=status),))


def compiled(*gangs: Gang) -> Problem:
    return compile_problem(cluster(ZONES, gangs))


def number_of(problem: Problem, kind: TermKind) -> int:
    (found,) = [m for m, t in enumerate(problem.relations.terms) if t.kind is kind]
    return found


# --- terms ---------------------------------------------------------------------------------------


def test_no_terms_where_nobody_looks_at_anybody() -> None:
    problem = compiled(gang("g", ("w", 1, shape(1))), resident("web", "a1"))
    assert problem.relations.terms == ()
    assert problem.rows is problem.plain_rows


def test_a_term_that_many_carry_is_there_once() -> None:
    wants = shape(1, pod_affinity=(term("web"),))
    problem = compiled(gang("g", ("w", 3, wants)), gang("h", ("w", 2, wants)))
    assert len(problem.relations.terms) == 1


def test_preferences_are_no_terms() -> None:
    soft = SpreadTerm(1, ZONE, app("web"), "ns", required=False)
    problem = compiled(
        gang("g", ("w", 1, shape(1, spread=(soft,), preferred_pods=((1, term("web")),))))
    )
    assert problem.relations.terms == ()


def test_of_residents_only_anti_affinity_matters() -> None:
    bound = shape(1, pod_affinity=(term("db"),), pod_anti_affinity=(term("web"),))
    problem = compiled(
        resident("old", "a1", bound), gang("g", ("w", 1, shape(1)), labels={"app": "web"})
    )
    assert [t.kind for t in problem.relations.terms] == [TermKind.ANTI_AFFINITY]


def test_terms_of_residents_that_select_no_pending_task_do_not_matter() -> None:
    bound = shape(1, pod_anti_affinity=(term("web"),))
    problem = compiled(
        resident("old", "a1", bound), gang("g", ("w", 1, shape(1)), labels={"app": "db"})
    )
    assert problem.relations.terms == ()


def test_pods_with_several_affinity_terms_are_satisfied_by_pods_that_meet_all() -> None:
    # Upstream's podMatchesAllAffinityTerms has the same rule.
    both = Term(
        TermKind.AFFINITY,
        (term("web"), PodTerm(LabelSelector(), ("other",), None, ZONE)),
        (frozenset({"ns"}), frozenset({"other"})),
    )
    assert not both.selects("ns", {"app": "web"})
    assert not both.selects("other", {"app": "web"})


def test_a_missing_selector_means_nobody_and_an_empty_one_everybody() -> None:
    for selector, wanted in ((None, False), (LabelSelector(), True)):
        found = Term(
            TermKind.AFFINITY, (PodTerm(selector, ("ns",), None, ZONE),), (frozenset({"ns"}),)
        )
        assert found.selects("ns", {}) is wanted


# --- namespaces ----------------------------------------------------------------------------------


def looking(wider: LabelSelector | None = None) -> Snapshot:
    asks = PodTerm(app("web"), ("ns",), wider, ZONE)
    snapshot = cluster(ZONES, [gang("g", ("w", 1, shape(1, pod_affinity=(asks,))))])
    return replace(snapshot, namespaces={"ns": {}, "blue": {"team": "blue"}, "red": {}})


def test_terms_look_into_their_own_namespaces() -> None:
    (found,) = compile_problem(looking()).relations.terms
    assert found.namespaces == (frozenset({"ns"}),)


def test_a_namespace_selector_adds_namespaces() -> None:
    blue = LabelSelector((Requirement("team", Operator.IN, ("blue",)),))
    (found,) = compile_problem(looking(blue)).relations.terms
    assert found.namespaces == (frozenset({"ns", "blue"}),)


def test_an_empty_namespace_selector_means_all() -> None:
    (found,) = compile_problem(looking(LabelSelector())).relations.terms
    assert found.namespaces == (None,)
    assert found.selects("anywhere", {"app": "web"})


# --- where pods stand ----------------------------------------------------------------------------


def test_residents_are_counted_node_by_node() -> None:
    problem = compiled(
        gang("g", ("w", 1, shape(1, pod_affinity=(term("web"),)))),
        resident("web", "a2"),
        resident("db", "b1"),
    )
    assert problem.relations.selected.tolist() == [[0, 1, 0, 0]]
    assert problem.relations.domain_of.tolist() == [[0, 0, 1, -1]]
    assert problem.relations.num_domains.tolist() == [2]


def test_leaving_pods_count_for_affinity_but_not_for_spread() -> None:
    wants = shape(1, pod_affinity=(term("web"),), spread=(SpreadTerm(1, HOST, app("web"), "ns"),))
    problem = compiled(
        gang("g", ("w", 1, wants)), resident("web", "a1", status=TaskStatus.RELEASING)
    )
    count = {
        t.kind: row.sum()
        for t, row in zip(problem.relations.terms, problem.relations.selected, strict=True)
    }
    assert count == {TermKind.AFFINITY: 1, TermKind.SPREAD: 0}


def test_carriers_of_anti_affinity_are_counted() -> None:
    keeps_away = shape(1, pod_anti_affinity=(term("web"),))
    pending = gang("g", ("w", 1, shape(1)), labels={"app": "web"})
    problem = compiled(resident("old", "b1", keeps_away), pending)
    assert problem.relations.carried.tolist() == [[0, 0, 1, 0]]
    assert problem.relations.selected.sum() == 0


def test_tasks_that_terms_tell_apart_are_two_classes() -> None:
    alike = shape(1)
    web = gang("web", ("w", 2, alike), labels={"app": "web"})
    db = gang("db", ("w", 2, alike), labels={"app": "db"})
    wants = gang("wants", ("w", 1, shape(1, pod_anti_affinity=(term("web"),))))
    assert len(compiled(web, db).classes.shapes) == 1
    problem = compiled(web, db, wants)
    classes = zip(problem.classes.shapes, problem.classes.relations, strict=True)
    of_alike = [relation for what, relation in classes if what == alike]
    assert sorted(of_alike) == [(), (number_of(problem, TermKind.ANTI_AFFINITY),)]


def test_host_ports_held_by_residents() -> None:
    anywhere, here = HostPort("TCP", "0.0.0.0", 80), HostPort("TCP", "10.0.0.1", 80)
    other = HostPort("UDP", "0.0.0.0", 80)
    problem = compiled(
        gang("g", ("w", 1, shape(1, host_ports=(anywhere, other)))),
        resident("web", "a1", shape(1, host_ports=(here,))),
    )
    taken = dict(zip(problem.relations.ports, problem.relations.port_taken.tolist(), strict=True))
    assert taken == {anywhere: [True, False, False, False], other: [False] * 4}
    assert set(problem.relations.ports_of(problem.classes.shapes[0])) == {0, 1}


def test_equal_ports_are_numbered_by_address() -> None:
    """The numbers, and with them the order of rows, do not depend on the hashes of strings."""
    ports = [HostPort("TCP", f"10.0.0.{i}", 80) for i in range(9)]
    problem = compiled(gang("g", ("w", 1, shape(1, host_ports=tuple(reversed(ports))))))
    assert problem.relations.ports == tuple(ports)


def test_domains_of_a_label_that_no_node_has() -> None:
    problem = compiled(gang("g", ("w", 1, shape(1, pod_affinity=(term("web", "rack"),)))))
    assert problem.relations.num_domains.tolist() == [0]
    assert np.array_equal(problem.relations.domain_of, [[-1] * 4])
