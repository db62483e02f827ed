"""Tests of the action shuffle: the moved pods and the remaining pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.selectors import LabelSelector
from optsched.cluster.snapshot import Budget, Gang, Load, Node, Snapshot
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.policy import Policy

NOW_MS = 12 * 3_600_000
"""Noon."""
SYSTEM = {"system-cluster-critical": 2_000_000_000, "urgent": 1000}

TDM = """
actions: "enqueue, allocate, shuffle"
solver: {solver}
tiers:
- plugins:
  - name: gang
  - name: conformance
  - name: predicates
  - name: tdm
    arguments:
      tdm.revocable-zone.night: 22:00-6:00
      tdm.revocable-zone.day: 6:00-22:00
      tdm.evict.period: 10m
"""

RESCHEDULING = """
actions: "enqueue, allocate, shuffle"
solver: {solver}
tiers:
- plugins:
  - name: gang
  - name: conformance
  - name: predicates
  - name: nodeorder
  - name: rescheduling
    arguments:
      interval: 5m
      metricsPeriod: 2m
      strategies:
      - name: lowNodeUtilization
        params:
          thresholds: {{cpu: 30, memory: 30}}
          targetThresholds: {{cpu: 60, memory: 80}}
          thresholdPriorityClassName: urgent
          nodeFit: {fit}
"""

both = pytest.mark.parametrize("solver", ["none", "cpsat"])


def tdm(solver: str = "none") -> Policy:
    return parse_policy(TDM.format(solver=solver), "tdm.conf")


def rescheduling(solver: str = "none", *, fit: bool = True) -> Policy:
    text = RESCHEDULING.format(solver=solver, fit=str(fit).lower())
    return parse_policy(text, "rescheduling.conf")


def moved(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Return the names of the evicted pods, and check that the plan satisfies every rule."""
    report = run_session(snapshot, policy, SessionContext())
    assert report.trace.violations == ()
    evictions = [a for a in report.plan.actions if isinstance(a, Evict)]
    assert all(e.action == "shuffle" and e.plugin and e.reason for e in evictions)
    return [e.task.removeprefix("ns/") for e in evictions]


def lent(name: str, zone: str) -> Node:
    return node(name, 8, labels={"volcano.sh/revocable-zone": zone})


def busy(name: str, cpu: int, cpu_percent: int, memory_percent: int = 10, age_s: int = 0) -> Node:
    """Return a node with a measured load."""
    load = Load(cpu_percent * 10_000, memory_percent * 10_000, NOW_MS - age_s * 1000)
    return node(name, cpu, load=load)


def runs(name: str, where: str, number: int = 1, *, cpu: int = 1, **fields: object) -> Gang:
    fields.setdefault("least", 1)
    made = gang(name, ("w", number, shape(cpu)), **fields)  # type: ignore[arg-type]
    return replace(made, tasks=tuple(running(t, where) for t in made.tasks))


def at_noon(nodes: list[Node], gangs: list[Gang], **fields: object) -> Snapshot:
    snapshot = cluster(nodes, gangs, now_ms=NOW_MS)
    return replace(snapshot, priority_classes=SYSTEM, **fields)  # type: ignore[arg-type]


# --- tdm -----------------------------------------------------------------------------------------


@both
def test_pods_leave_nodes_whose_hours_are_over_one_at_a_time(solver: str) -> None:
    snapshot = at_noon([lent("n0", "night"), lent("n1", "day")], [runs("a", "n0", 3)])
    assert moved(snapshot, tdm(solver)) == ["a-w-0"]
    assert moved(at_noon([lent("n1", "day")], [runs("a", "n1", 3)]), tdm(solver)) == []


@pytest.mark.parametrize(
    ("note", "value", "number"),
    [
        ("max-unavailable", "50%", 3),
        ("max-unavailable", "2", 2),
        ("max-unavailable", "0", 0),
        ("max-unavailable", "many", 0),
        ("min-available", "2", 3),
        ("min-available", "100%", 0),
    ],
)
def test_disruption_budgets_of_jobs_say_how_many(note: str, value: str, number: int) -> None:
    made = runs("a", "n0", 5, least=0, annotations={f"volcano.sh/jdb-{note}": value})
    assert len(moved(at_noon([lent("n0", "night")], [made]), tdm())) == number


def test_what_is_missing_already_counts() -> None:
    made = runs("a", "n0", 4, least=0, annotations={"volcano.sh/jdb-max-unavailable": "2"})
    waits = gang("a", ("w", 5, shape(1))).tasks[4:]
    made = replace(made, tasks=(*made.tasks, *waits))
    assert len(moved(at_noon([lent("n0", "night")], [made]), tdm())) == 1


def test_a_gang_that_can_spare_nobody_leaves_whole_or_not_at_all() -> None:
    nodes = [lent("n0", "night")]
    assert len(moved(at_noon(nodes, [runs("a", "n0", 3, least=3)]), tdm())) == 3
    notes = {"volcano.sh/jdb-max-unavailable": "2"}
    bound = runs("a", "n0", 3, least=3, annotations=notes)
    assert moved(at_noon(nodes, [bound]), tdm()) == []


def test_the_period_is_kept() -> None:
    snapshot = at_noon([lent("n0", "night")], [runs("a", "n0", 3)])
    for ago_ms, number in ((599_999, 0), (600_000, 1)):
        again = replace(snapshot, last_shuffle_ms={"tdm": NOW_MS - ago_ms})
        assert len(moved(again, tdm())) == number


def test_who_may_not_be_evicted_stays() -> None:
    firm = runs("a", "n0", 1)
    firm = replace(firm, tasks=tuple(replace(t, preemptable=False) for t in firm.tasks))
    fresh = runs("b", "n0", 1)
    young = (replace(t, started_ms=NOW_MS - 1000, cooldown_ms=60_000) for t in fresh.tasks)
    fresh = replace(fresh, tasks=tuple(young))
    assert moved(at_noon([lent("n0", "night")], [firm, fresh]), tdm()) == []


def test_budgets_hold() -> None:
    made = runs("a", "n0", 5, least=0, annotations={"volcano.sh/jdb-max-unavailable": "5"})
    budget = Budget("ns/few", LabelSelector(), 2)
    snapshot = at_noon([lent("n0", "night")], [made], budgets=(budget,))
    assert len(moved(snapshot, tdm())) == 2


def test_nothing_moves_without_the_action_or_the_switch() -> None:
    snapshot = at_noon([lent("n0", "night")], [runs("a", "n0", 3)])
    assert moved(snapshot, replace(tdm(), actions=("enqueue", "allocate"))) == []
    off = TDM.format(solver="none").replace("- name: tdm", "- name: tdm\n    enabledVictim: false")
    assert moved(snapshot, parse_policy(off, "off.conf")) == []


# --- rescheduling --------------------------------------------------------------------------------


@both
def test_busy_nodes_give_until_they_are_at_their_target(solver: str) -> None:
    """Each pod is 10 % of the node, so two of six pods lower the load from 80 % to 60 %."""
    snapshot = at_noon([busy("n0", 10, 80), busy("n1", 10, 10)], [runs("a", "n0", 6)])
    assert moved(snapshot, rescheduling(solver)) == ["a-w-0", "a-w-1"]


def test_little_used_nodes_take_up_to_the_target_of_their_own() -> None:
    small = busy("n1", 2, 10)
    snapshot = at_noon([busy("n0", 10, 80), small], [runs("a", "n0", 6)])
    assert len(moved(snapshot, rescheduling())) == 1


def test_nobody_moves_where_no_node_has_little_to_do_or_none_too_much() -> None:
    gangs = [runs("a", "n0", 6)]
    for n0, n1 in ((80, 31), (60, 10), (10, 10)):
        nodes = [busy("n0", 10, n0), busy("n1", 10, n1)]
        assert moved(at_noon(nodes, gangs), rescheduling()) == []


def test_old_measurements_say_nothing() -> None:
    for age_s, number in ((120, 2), (121, 0)):
        nodes = [busy("n0", 10, 80, age_s=age_s), busy("n1", 10, 10)]
        assert len(moved(at_noon(nodes, [runs("a", "n0", 6)]), rescheduling())) == number


def test_pods_go_only_if_a_node_takes_them() -> None:
    """The pods may run only on n0; without `nodeFit` the plugin does not check other nodes."""
    made = gang("a", ("w", 6, shape(1, node_selector=(("kubernetes.io/hostname", "n0"),))), least=1)
    made = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    snapshot = at_noon([busy("n0", 10, 80), busy("n1", 10, 10)], [made])
    assert moved(snapshot, rescheduling()) == []
    assert len(moved(snapshot, rescheduling(fit=False))) == 2


def test_room_on_the_other_node_is_counted_by_requests_too() -> None:
    full = runs("b", "n1", 3, cpu=3)
    snapshot = at_noon([busy("n0", 10, 80), busy("n1", 10, 10)], [runs("a", "n0", 6), full])
    assert len(moved(snapshot, rescheduling())) == 1


def test_the_least_important_go_first_and_a_class_and_those_above_it_stay() -> None:
    def ranked(name: str, priority: int) -> Gang:
        made = runs(name, "n0", 1, priority=priority)
        return replace(made, tasks=tuple(replace(t, priority=priority) for t in made.tasks))

    nodes = [busy("n0", 10, 100), busy("n1", 10, 10)]
    gangs = [ranked("high", 1000), ranked("low", 1), ranked("middle", 999)]
    assert moved(at_noon(nodes, gangs), rescheduling()) == ["low-w-0", "middle-w-0"]
    nobody_knows = replace(at_noon(nodes, gangs), priority_classes={})
    assert moved(nobody_knows, rescheduling()) == []


def test_no_gang_is_broken_to_relieve_a_node() -> None:
    nodes = [busy("n0", 10, 100), busy("n1", 10, 10)]
    assert moved(at_noon(nodes, [runs("a", "n0", 4, least=4)]), rescheduling()) == []
    assert len(moved(at_noon(nodes, [runs("a", "n0", 4, least=2)]), rescheduling())) == 2


def test_what_was_moved_does_not_come_back() -> None:
    """The recreated pod goes to the other node, although that node has higher requests."""
    nodes = [busy("n0", 10, 80), busy("n1", 10, 10)]
    anew = gang("a", ("w", 1, shape(1)))
    snapshot = at_noon(nodes, [anew, runs("b", "n1", 4)], last_shuffle_ms={"rescheduling": NOW_MS})
    report = run_session(snapshot, rescheduling(), SessionContext())
    assert report.plan.binds == {"ns/a-w-0": "n1"}


def test_the_defaults_are_volcanos() -> None:
    policy = parse_policy(
        RESCHEDULING.partition("    arguments")[0].format(solver="none"), "x.conf"
    )
    rule = next(a.rule for a in policy.rules.active if a.rule.name == "rescheduling")
    assert rule.period_ms == 300_000  # type: ignore[attr-defined]
    assert set(rule.strategy.low_ppm.values()) == {1_000_000}  # type: ignore[attr-defined]
