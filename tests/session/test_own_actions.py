"""Tests of custom actions in both modes, and of sessions in which an action fails."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from optsched.cluster.decisions import Evict, Nominate
from optsched.cluster.selectors import LabelSelector
from optsched.cluster.snapshot import Budget, Queue
from optsched.cluster.topology import HyperNode, Topology, TopologyMode, TopologyRequest
from optsched.plugin import Displace, Place, Rule, Violation
from optsched.plugins.custom.proposals import Proposer
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.policy.load import load_policy
from optsched.policy.policy import SolverKind
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import CPU, cluster, gang, node, running, shape

EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
both = pytest.mark.parametrize("solver", SolverKind, ids=lambda s: s.value)
NONE, CPSAT = SolverKind.NONE, SolverKind.CPSAT
FIRST = ("enqueue", "mine", "allocate", "backfill")


def decide(snapshot, propose, solver=NONE, *, actions=FIRST, rules=()):
    """Run a session with a custom action called `mine`."""
    policy = load_policy("volcano-default", lambda path: "")
    more = RuleSet(
        (*(ActiveRule(r, "own", 0, origin="own.py:1") for r in rules), *policy.rules.active)
    )
    mine = (Proposer("mine", propose),)
    policy = replace(policy, rules=more, solver=solver, actions=actions, proposers=mine)
    return run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))


def nodes(number=3, **fields):
    """Return some nodes of 4 CPUs."""
    return [node(f"n{i}", **fields) for i in range(number)]


def all_on(name):
    """Return an action that places every task on one node."""
    return lambda view: [Place(t.key, name) for g in view.gangs for t in view.waiting[g.key]]


# --- what it sees --------------------------------------------------------------------------------


def test_it_sees_the_session_at_its_place() -> None:
    views = []
    snapshot = cluster(nodes(2), [gang("a", ("w", 2, shape(1))), gang("b", ("w", 2, shape(4)))])

    def look(view):
        views.append(view)
        return ()

    decide(snapshot, look, actions=("mine", "allocate", "mine"))
    before, after = views
    assert [g.key for g in before.gangs] == ["ns/a", "ns/b"]
    assert [t.key for t in before.waiting["ns/a"]] == ["ns/a-w-0", "ns/a-w-1"]
    assert (before.free["n0"][CPU], before.placed) == (4000, {})
    assert [g.key for g in after.gangs] == ["ns/b"]
    assert sorted(after.placed) == ["ns/a-w-0", "ns/a-w-1"]
    assert sum(free[CPU] for free in after.free.values()) == 6000


def test_what_it_sees_can_not_be_changed() -> None:
    snapshot = cluster(nodes(1), [gang("a", ("w", 1, shape(1)))])

    def meddle(view):
        view.free["n0"][CPU] = 0
        return ()

    report = decide(snapshot, meddle)
    assert report.plan.binds == {"ns/a-w-0": "n0"}
    assert "TypeError" in str(report.trace.faults[0])


# --- what it proposes ----------------------------------------------------------------------------


@both
def test_what_it_places_stays_where_nothing_else_is_better(solver) -> None:
    snapshot = cluster(nodes(), [gang("a", ("w", 2, shape(2)))])
    assert set(decide(snapshot, lambda _: (), solver).plan.binds.values()) != {"n2"}
    report = decide(snapshot, all_on("n2"), solver)
    assert report.plan.binds == {"ns/a-w-0": "n2", "ns/a-w-1": "n2"}
    assert report.trace.faults == ()


@both
def test_it_comes_before_others_by_its_place_but_the_solver_knows_who_matters(solver) -> None:
    small = gang("small", ("w", 1, shape(1)), priority=1)
    big = gang("big", ("w", 1, shape(4)), priority=5)
    snapshot = cluster(nodes(1), [small, big])

    def small_first(view):
        return [Place("ns/small-w-0", "n0")]

    told = decide(snapshot, small_first, solver).plan.binds
    assert list(told) == (["ns/small-w-0"] if solver is NONE else ["ns/big-w-0"])
    last = ("enqueue", "allocate", "mine")
    assert list(decide(snapshot, lambda _: (), solver, actions=last).plan.binds) == ["ns/big-w-0"]


@both
@pytest.mark.parametrize(
    "asked",
    [
        gang("a", ("w", 2, shape(3))),  # the gang exceeds one node
        gang("a", ("w", 3, shape(1)), queue="small"),  # the gang exceeds its queue
        gang("a", ("w", 1, shape(1)), ("x", 1, shape(4))),  # only half of the gang fits on the node
        gang("a", ("w", 1, shape(0, gpu=1))),
    ],
    ids=["room", "queue", "half", "resource"],
)
def test_rules_judge_what_it_places(solver, asked) -> None:
    queue = Queue("small", capability=((CPU, 2000),))
    snapshot = cluster(nodes(), [asked], [queue])
    plain = decide(snapshot, lambda _: (), solver)
    report = decide(snapshot, all_on("n1"), solver)
    assert report.plan.binds == plain.plan.binds
    assert report.trace.violations == ()


@both
def test_part_of_a_minimum_gets_nothing(solver) -> None:
    snapshot = cluster(nodes(1), [gang("a", ("w", 2, shape(3))), gang("b", ("w", 1, shape(2)))])
    report = decide(snapshot, lambda _: [Place("ns/a-w-0", "n0")], solver)
    assert report.plan.binds == {"ns/b-w-0": "n0"}


@both
def test_a_domain_is_kept(solver) -> None:
    tree = Topology(tuple(HyperNode(f"s{i}", 1, nodes=(f"n{i}",)) for i in range(2)))
    asks = TopologyRequest(TopologyMode.HARD, 1)
    far = cluster(nodes(2), [gang("a", ("w", 2, shape(1)), topology=asks)])
    apart = [Place("ns/a-w-0", "n0"), Place("ns/a-w-1", "n1")]
    report = decide(replace(far, topology=tree), lambda _: apart, solver, rules=[NetworkTopology()])
    assert len(set(report.plan.binds.values())) == 1
    assert report.trace.violations == ()


# --- what it evicts ------------------------------------------------------------------------------


def full(**fields):
    """Return one node full with two low-priority tasks, and a gang that requests half of it."""
    low = gang("low", ("w", 2, shape(2)), least=0, priority=1, **fields)
    low = replace(low, tasks=tuple(running(t, "n0") for t in low.tasks))
    return cluster(nodes(1), [low, gang("high", ("w", 1, shape(2)), priority=5)])


def find_victims(view):
    """Evict one low-priority task for the waiting gang."""
    return [Displace("ns/low-w-0", "ns/high"), Place("ns/high-w-0", "n0")]


def evicted(report):
    """Return the evictions of a report."""
    return [a for a in report.plan.actions if isinstance(a, Evict)]


def test_victims_go_and_their_room_is_promised() -> None:
    report = decide(full(), find_victims)
    assert evicted(report) == [Evict("ns/low-w-0", "n0", "mine", "ns/high")]
    assert Nominate("ns/high-w-0", "n0", "ns/high") in report.plan.actions
    assert report.trace.violations == ()


def test_nobody_goes_whom_rules_protect() -> None:
    snapshot = full()
    high, low = snapshot.gangs
    equal = replace(snapshot, gangs=(replace(high, priority=1), low))
    assert evicted(decide(equal, find_victims)) == []
    budget = Budget("ns/all", LabelSelector(), 0)
    assert evicted(decide(replace(snapshot, budgets=(budget,)), find_victims)) == []
    polite = replace(high.tasks[0], shape=replace(high.tasks[0].shape, preempts=False))
    never = replace(snapshot, gangs=(replace(high, tasks=(polite,)), low))
    assert evicted(decide(never, find_victims)) == []


def test_nobody_goes_for_what_gets_no_place() -> None:
    report = decide(full(), lambda _: [Displace("ns/low-w-0", "ns/high")])
    assert evicted(report) == []
    report = decide(full(), lambda _: [*find_victims(_), Place("ns/high-w-0", "n0")])
    assert "places ns/high-w-0 twice" in str(report.trace.faults[0])


def test_with_a_solver_evictions_are_its_own() -> None:
    report = decide(full(), find_victims, CPSAT)
    assert evicted(report) == []
    assert "the solver selects victims" in str(report.trace.faults[0])


# --- what goes wrong -----------------------------------------------------------------------------


def broken(view):
    """Yield one proposal and raise an error."""
    yield Place("ns/a-w-0", "n2")
    raise RuntimeError("no stage")


NONSENSE = {
    "no stage": broken,
    "places ns/b-w-0, which is not a task in `waiting`": lambda _: [Place("ns/b-w-0", "n0")],
    "on n9, which is not a ready node": lambda _: [Place("ns/a-w-0", "n9")],
    "proposed 'n0', not a Place or Displace": lambda _: ["n0"],
    "proposed Place(task=3, node='n0')": lambda _: [Place(3, "n0")],
    "'int' object is not iterable": lambda _: 3,
    "SystemExit": lambda _: sys.exit(3),
}


@both
@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_named_and_costs_nothing(solver, what) -> None:
    snapshot = cluster(nodes(), [gang("a", ("w", 2, shape(2)))])
    report = decide(snapshot, NONSENSE[what], solver)
    assert report.plan.binds == decide(snapshot, lambda _: (), solver).plan.binds
    (fault,) = report.trace.faults
    assert str(fault).startswith("action mine")
    assert what in str(fault)


def test_who_is_to_go_has_to_run_and_for_somebody_who_waits() -> None:
    wrong = [Displace("ns/low-w-0", "ns/low"), Displace("ns/high-w-0", "ns/high")]
    report = decide(full(), lambda _: wrong)
    assert [str(f).partition("displaces ")[2] for f in report.trace.faults] == [
        "ns/low-w-0 for ns/low, which is not a gang in `gangs`",
        "ns/high-w-0, which is not a running task",
    ]


class Closed(Rule):
    """A rule that closes a node, and that only the verifier knows."""

    name = "closed"

    def verify(self, world):
        return [
            Violation(self.name, f"task {task.key}", "n1 is closed")
            for task, _, where in world.placements
            if where.name == "n1"
        ]


def test_who_breaks_a_rule_that_only_the_verifier_knows_is_left_out() -> None:
    snapshot = cluster(nodes(), [gang(n, ("w", 1, shape(1))) for n in "ab"])
    report = decide(snapshot, all_on("n1"), rules=[Closed()])
    assert report.plan.binds == {"ns/a-w-0": "n0", "ns/b-w-0": "n0"}
    (fault,) = report.trace.faults
    assert "is not used, because every plan with it violates a rule: closed" in str(fault)
