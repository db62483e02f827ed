"""Tests of custom rules in both engines, and of sessions in which a rule raises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optsched.cli.base.session_context import plugin_source_of
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import GangPhase
from optsched.plugin import Greedy, Rule, Switch, Violation, running_tasks
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.policy.load import load_policy
from optsched.policy.policy import SolverKind
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.study.emulation import EmulatedCluster
from optsched.testing import RuleContract
from tests.support.jobs import documents
from tests.support.pages import ROOT, fences
from tests.support.small import cluster, gang, node, running, shape

EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
both = pytest.mark.parametrize("solver", SolverKind, ids=lambda s: s.value)


def decide(snapshot, rule, solver, *, actions=None, switches=None):
    """Run a session with one more rule, from a plugin called `mine`."""
    policy = load_policy("volcano-default", lambda path: "")
    mine = ActiveRule(
        rule, "mine", 0, origin="mine.py:1", **({"switches": switches} if switches else {})
    )
    rules = RuleSet((mine, *policy.rules.active))
    policy = replace(policy, rules=rules, solver=solver, actions=actions or policy.actions)
    return run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=EXACT))


def three(*gangs):
    """Return three nodes of 4 CPUs and the gangs."""
    return cluster([node(f"n{i}") for i in range(3)], gangs)


class Mine(Rule):
    """A rule without behaviour, which serves as a base class."""

    name = "mine"


# --- rules that work -----------------------------------------------------------------------------


class Apart(Mine):
    """A rule of one pod of a gang per node, known only to the verifier and a greedy mask."""

    hard_switch = Switch.PREDICATE

    def verify(self, world):
        for name, tasks in world.placed_on.items():
            gangs = [t.gang for t in tasks]
            if len(set(gangs)) < len(gangs):
                yield Violation(self.name, f"node {name}", "two pods of a gang")


@both
def test_a_rule_with_nothing_but_a_verifier_is_never_broken(solver) -> None:
    two = gang("two", ("w", 2, shape(1)))
    report = decide(three(two, gang("one", ("w", 1, shape(4)))), Apart(), solver)
    on = [n for t, n in report.plan.binds.items() if t.startswith("ns/two")]
    assert len(set(on)) == len(on)
    assert "ns/one-w-0" in report.plan.binds
    waits = report.plan.pending.get("ns/two")
    assert (waits is None) == bool(on)
    if waits is not None:
        assert str(waits) == "RefusedByPlugin: plugin mine: two pods of a gang"
    assert not report.plan.certificate.is_proved
    assert "rules without a constraint for the solver: mine" in report.plan.certificate.limitations


class Newest(Mine):
    """A rule that orders gangs by name, the last name first."""

    def open(self, problem, ledger):
        class Order(Greedy):
            def gang_key(self, gang):
                return (-gang,)

        return Order()


def test_an_order_decides_who_comes_first() -> None:
    whole = [gang(name, ("w", 3, shape(4))) for name in ("a", "b")]
    assert {t[3] for t in decide(three(*whole), Newest(), SolverKind.NONE).plan.binds} == {"b"}
    assert {t[3] for t in decide(three(*whole), Mine(), SolverKind.NONE).plan.binds} == {"a"}


class Refuses(Mine):
    """A rule that refuses the gang named `a`."""

    def open(self, problem, ledger):
        class Vote(Greedy):
            def enqueue_vote(self, gang):
                return -1 if problem.snapshot.gangs[gang].name == "a" else 0

        return Vote()


@both
def test_a_vote_keeps_gangs_from_being_let_in(solver) -> None:
    asks = {"phase": GangPhase.PENDING, "min_resources": (("cpu", 1000),)}
    waiting = [replace(gang(n, ("w", 1, shape(1)), **asks), tasks=()) for n in ("a", "b")]
    report = decide(three(*waiting), Refuses(), solver)
    assert [a.gang for a in report.plan.actions] == ["ns/b"]


class Dear(Mine):
    """A rule that protects some pods from eviction."""

    def spares(self, problem):
        names = [row.task.name for row in running_tasks(problem)]
        return np.array([n.startswith("dear") for n in names], np.bool_)

    def verify_evictions(self, world):
        for each in world.evictions:
            if each.task.startswith("ns/dear"):
                yield Violation(self.name, f"task {each.task}", "evicted, but dear")


@both
@pytest.mark.parametrize("rule", [Mine(), Dear()], ids=["plain", "dear"])
def test_who_is_spared_stays(solver, rule) -> None:
    made = gang("dear", ("w", 3, shape(4)), least=0, phase=GangPhase.RUNNING)
    dear = replace(made, tasks=tuple(running(t, f"n{i}") for i, t in enumerate(made.tasks)))
    urgent = gang("urgent", ("w", 1, shape(4)), priority=9)
    tasks = tuple(replace(t, priority=9) for t in urgent.tasks)
    snapshot = three(dear, replace(urgent, tasks=tasks))
    evictions = [
        a
        for a in decide(snapshot, rule, solver).plan.actions
        if getattr(a, "preemptor", "") == "ns/urgent"
    ]
    assert len(evictions) == (0 if isinstance(rule, Dear) else 1)


def licences():
    """Return the rule with constraint rows of docs/plugins.md."""
    found = {"__name__": __name__}
    exec(fences(ROOT / "docs" / "plugins.md", "python")[1], found)
    return found["Licences"](3)


def test_rows_of_a_rule_are_optimised_over() -> None:
    """The pipeline starts the older gang of two; three licences allow the better gang of three."""
    older = gang("a", ("w", 2, shape(2)), created_ms=1)
    larger = gang("b", ("w", 3, shape(2)), created_ms=2)
    snapshot = three(older, larger)
    greedy = decide(snapshot, licences(), SolverKind.NONE)
    assert set(greedy.plan.binds) == {"ns/a-w-0", "ns/a-w-1"}
    best = decide(snapshot, licences(), SolverKind.CPSAT)
    assert set(best.plan.binds) == {f"ns/b-w-{i}" for i in range(3)}
    (admission,) = (r for r in best.plan.certificate.levels if r.name.startswith("admission"))
    assert (admission.value, admission.bound) == (6000, 6000)
    assert best.trace.faults == greedy.trace.faults == ()
    assert best.trace.violations == ()


def test_the_rule_with_rows_passes_the_contract() -> None:
    class TestLicences(RuleContract):
        rule = licences()

    suite = TestLicences()
    for name in sorted(n for n in dir(suite) if n.startswith("test_")):
        getattr(suite, name)()


# --- rules that raise ----------------------------------------------------------------------------


def boom(*_args):
    raise ZeroDivisionError("no more")


def raising(*points, hard=None, base=Mine):
    """Return a rule whose extension points raise."""
    return type("Raising", (base,), {"hard_switch": hard, **dict.fromkeys(points, boom)})()


SOFT = ("class_score", "scorer", "open", "explain", "explain_refusal", "explain_rooms", "refusal")


@both
@pytest.mark.parametrize("point", SOFT)
def test_a_soft_extension_point_that_raises_changes_nothing(solver, point) -> None:
    snapshot = three(gang("a", ("w", 2, shape(3))), gang("b", ("w", 9, shape(3))))
    report, without = (decide(snapshot, r, solver) for r in (raising(point), Mine()))
    assert report.plan.actions == without.plan.actions
    assert report.plan.pending == without.plan.pending
    for fault in report.trace.faults:
        assert str(fault).startswith(
            f"plugin mine: {point} of rule mine failed at test_plugins.py:"
        )
        assert str(fault).endswith(": ZeroDivisionError: no more")
    if point in ("class_score", "scorer", "open"):
        assert len(report.trace.faults) == 1


@both
def test_a_mask_that_raises_makes_its_tasks_wait_and_no_others(solver) -> None:
    class Half(Mine):
        hard_switch = Switch.PREDICATE

        def mask(self, problem, task_class):
            asked = dict(problem.classes.shapes[task_class].request)
            return boom() if asked["cpu"] > 2000 else None

    snapshot = three(gang("a", ("w", 1, shape(3))), gang("b", ("w", 1, shape(1))))
    report = decide(snapshot, Half(), solver)
    assert list(report.plan.binds) == ["ns/b-w-0"]
    assert report.plan.pending["ns/a"].code is ReasonCode.PREDICATES
    assert "could not be checked by plugin mine, which failed" in str(report.plan.pending["ns/a"])


@both
def test_a_verifier_that_raises_makes_only_those_wait_whom_it_can_not_judge(solver) -> None:
    class Half(Mine):
        def verify(self, world):
            return [boom() for p in world.placements if p.gang.name == "a"]

    snapshot = three(gang("a", ("w", 1, shape(3))), gang("b", ("w", 1, shape(1))))
    report = decide(snapshot, Half(), solver)
    assert list(report.plan.binds) == ["ns/b-w-0"]
    assert str(report.plan.pending["ns/a"]) == (
        "RefusedByPlugin: plugin mine: could not be checked: ZeroDivisionError: no more"
    )


@both
def test_a_verifier_that_always_raises_lets_nothing_pass_but_the_session_ends(solver) -> None:
    report = decide(three(gang("a", ("w", 1, shape(3)))), raising("verify"), solver)
    assert report.plan.binds == {}
    assert report.plan.pending["ns/a"].code is ReasonCode.PLUGIN


def test_a_wrong_value_is_reported_without_a_line_of_the_scheduler() -> None:
    class Wrong(Mine):
        hard_switch = Switch.PREDICATE

        def mask(self, problem, task_class):
            return [True]

    report = decide(three(gang("a", ("w", 2, shape(3)))), Wrong(), SolverKind.NONE)
    assert str(report.trace.faults[0]).startswith(
        "plugin mine: mask of rule mine failed: TypeError: expected None or 3 booleans, not "
    )


@pytest.mark.parametrize("point", ["encode", "ties_nodes", "distinguish_gangs"])
def test_rows_that_raise_leave_the_greedy_plan(point) -> None:
    snapshot = three(gang("a", ("w", 2, shape(3))), gang("b", ("w", 9, shape(3))))
    report = decide(snapshot, raising(point), SolverKind.CPSAT)
    assert len(report.plan.binds) == 2
    assert {f.point for f in report.trace.faults} <= {point}
    if point == "encode":
        assert report.plan.certificate.stopped == "plugin mine failed"


KEYS = ("queue_key", "gang_key")
VOTES = (
    "is_overused",
    "enqueue_vote",
    "task_runs",
    "live_scorer",
    "record_placement",
    "record_tasks",
)
GATES = ("max_tasks", "may_start", "holds")


@both
@pytest.mark.parametrize("point", [*KEYS, *VOTES, *GATES])
def test_greedy_extension_points_that_raise_lose_only_themselves(solver, point) -> None:
    class Opened(Mine):
        def open(self, problem, ledger):
            return type("Raising", (Greedy,), {point: boom})()

    snapshot = three(gang("a", ("w", 2, shape(3))), gang("b", ("w", 9, shape(3))))
    report, without = (decide(snapshot, r, solver) for r in (Opened(), Mine()))
    assert {f.point for f in report.trace.faults} <= {point}
    if solver is SolverKind.NONE and point in GATES:
        assert report.plan.binds == {}
    else:
        assert report.plan.binds.keys() == without.plan.binds.keys()


ODD = {
    "mask": (lambda *_: [True], "expected None or 3 booleans, not list"),
    "class_score": (lambda *_: np.zeros(2), "expected 3 numbers, not an array (2,) of float64"),
    "scorer": (lambda *_: lambda used, offered: np.full(len(used), np.nan), "expected finite"),
    "verify": (lambda *_: ["no"], "expected Violations, not str"),
    "spares": (lambda *_: np.zeros(1), "booleans, not an array (1,) of float64"),
    "refusal": (lambda *_: "", "expected a string"),
}


@pytest.mark.parametrize("point", ODD)
def test_answers_without_a_meaning_count_as_failures(point) -> None:
    answer, message = ODD[point]
    rule = type("Odd", (Mine,), {"hard_switch": Switch.PREDICATE, point: answer})()
    if point == "refusal":
        rule = type("Odd", (type(rule),), {"mask": lambda *_: np.zeros(3, np.bool_)})()
    report = decide(three(gang("a", ("w", 1, shape(3)))), rule, SolverKind.CPSAT)
    assert [f.point for f in report.trace.faults if message in f.error] in ([point], [])
    assert report.trace.faults or point == "spares"


def test_a_plugin_that_ends_the_program_does_not() -> None:
    def leave(*_):
        raise SystemExit(3)

    rule = type("Leaves", (Mine,), {"class_score": leave})()
    report = decide(three(gang("a", ("w", 1, shape(3)))), rule, SolverKind.CPSAT)
    assert [f.error for f in report.trace.faults] == ["SystemExit: 3"]
    assert len(report.plan.binds) == 1


# --- in a study ----------------------------------------------------------------------------------


@both
def test_a_plugin_of_a_folder_decides_in_an_emulated_cluster(solver) -> None:
    examples = ROOT / "instances" / "examples"
    policy = load_policy(
        str(examples / "maintenance.conf"), Path.read_text, plugin_source_of(examples / "plugins")
    )
    around = SessionContext(solver=InProcess(), limits=EXACT)
    emulated = EmulatedCluster(replace(policy, solver=solver), around)
    emulated.apply(documents(examples / "maintenance.yaml"))
    emulated.advance(1000)
    assert emulated.last_plan.binds == {"ml/eval": "gpu-3"}
    assert "had GPUs in repair" in str(emulated.last_plan.pending["ml/train"])
