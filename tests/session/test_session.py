"""A session gives a verified plan, never worse than the greedy one, whatever its solver does."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, LevelStatus, Sense
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.cluster.task import TaskShape, TaskStatus
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.problem import compile as compile_module
from optsched.session import evicting_pipeline, rounds
from optsched.session.guarantees import hold_guarantees
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import LevelUpdate, Limits
from optsched.solver.cpsat.process import DIED, OVER_TIME, InProcess, Solved, WorkerProcess
from optsched.solver.portfolio import DIRECT, GREEDY, IDEAL, NO_SOLVER
from optsched.solver.solution_check import INVALID_SOLUTION
from tests.support.changes import history
from tests.support.effort import num_examples
from tests.support.small import CPU, cluster, gang, node, random_cluster, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.decisions import Certificate, Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.problem.decisions import Decisions
    from optsched.solver.cpsat.level_model import LevelModel


def policy_of(name: str):
    return load_policy(name, lambda path: path.read_text())


POLICY = policy_of("volcano-default")
EXACT = Limits(budget_ms=None, deterministic=2.0, num_workers=1)

# The pipeline serves the older gang first, which leaves no capacity for the two others. The two
# others together are worth more: 4 + 4 CPUs on two nodes against 5.
NODES = [node("n0", 4), node("n1", 4)]
CONTEST = cluster(
    NODES,
    [
        gang("old", ("w", 5, shape(1)), created_ms=1),
        gang("one", ("w", 1, shape(4)), created_ms=2),
        gang("two", ("w", 1, shape(4)), created_ms=3),
    ],
)
EASY = cluster(NODES, [gang("g", ("w", 3, shape(1)))])


@dataclass
class Planted:
    """A solver that gives a planted solution."""

    answer: Callable[[LevelModel], Solved]
    limits: list[Limits] = field(default_factory=list)

    def solve(self, model: LevelModel, limits: Limits, on_step: object = None) -> Solved:
        self.limits.append(limits)
        return self.answer(model)

    def close(self) -> None:
        pass


def decide(snapshot: Snapshot = CONTEST, solver: object = None, **more: object) -> Plan:
    around = SessionContext(solver=solver, limits=EXACT)  # type: ignore[arg-type]
    return run_session(snapshot, POLICY, replace(around, **more)).plan


def greedy(snapshot: Snapshot = CONTEST) -> Plan:
    return run_session(snapshot, without_solver(POLICY), SessionContext()).plan


# --- what a session answers ----------------------------------------------------------------------


def test_the_solver_improves_on_the_pipeline() -> None:
    assert set(greedy().binds) == {f"ns/old-w-{i}" for i in range(5)}
    plan = decide(solver=InProcess())
    assert set(plan.binds) == {"ns/one-w-0", "ns/two-w-0"}
    assert set(plan.pending) == {"ns/old"}


def test_the_certificate_says_how_good_the_plan_is() -> None:
    certificate = decide(solver=InProcess()).certificate
    assert (certificate.engine, certificate.seconds, certificate.relaxed) == (DIRECT, 0.0, ())
    assert certificate.stopped == "all levels done"
    assert certificate.is_proved
    first = certificate.levels[0]
    assert (first.name, first.value, first.bound, first.gap) == (
        "admission, priority 0",
        8000,
        8000,
        0,
    )
    assert {level.status for level in certificate.levels} == {LevelStatus.OPTIMAL}


def test_without_a_solver_values_stand_against_ideals() -> None:
    certificate = decide().certificate
    assert (certificate.engine, certificate.stopped) == (GREEDY, NO_SOLVER)
    first = certificate.levels[0]
    assert (first.value, first.bound, first.status) == (5000, 13_000, LevelStatus.FEASIBLE)
    assert not certificate.is_proved


def refusing(model: LevelModel) -> Solved:
    raise AssertionError("nothing is to be solved")


def test_nobody_is_asked_when_everything_fits() -> None:
    plan = decide(EASY, Planted(refusing))
    assert len(plan.binds) == 3
    assert plan.pending == {}
    assert (plan.certificate.engine, plan.certificate.stopped) == (GREEDY, IDEAL)


def test_nobody_is_asked_when_nothing_waits() -> None:
    plan = decide(cluster(NODES, []), Planted(refusing))
    assert (plan.actions, plan.certificate.stopped) == ((), IDEAL)


def test_nobody_is_asked_where_the_policy_knows_no_solver() -> None:
    around = SessionContext(solver=Planted(refusing))
    report = run_session(CONTEST, policy_of("volcano-compatible"), around)
    assert report.plan.certificate.engine == GREEDY
    assert report.plan.binds == greedy().binds


def test_the_policys_budget_is_what_the_solver_may_spend() -> None:
    """A tenth of the budget is reserved for the work before and after the solver."""
    solver = Planted(lambda model: Solved((), "enough"))
    decide(solver=solver, limits=None)
    assert solver.limits[0].budget_ms == POLICY.budgets.solve_ms * 9 // 10
    decide(solver=solver, limits=Limits(budget_ms=7))
    assert solver.limits[-1].budget_ms == 7


# --- the same again ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(num_examples(12)))
def test_the_same_cluster_gets_the_same_plan(seed: int) -> None:
    snapshot = random_cluster(np.random.default_rng(seed), related=seed % 2 == 0)
    first, second = (decide(snapshot, InProcess()) for _ in range(2))
    assert first == second
    held, _ = hold_guarantees(snapshot)
    assert verify_actions(held, first.actions, POLICY.rules) == []


@pytest.mark.parametrize("seed", range(num_examples(6)))
def test_an_earlier_problem_changes_nothing_but_the_cost(seed: int) -> None:
    previous = None
    for snapshot in history(np.random.default_rng(seed), 6):
        around = SessionContext(solver=InProcess(), limits=EXACT)
        report = run_session(snapshot, POLICY, around, previous)
        assert report.plan == run_session(snapshot, POLICY, around).plan
        previous = report.problem


def test_resources_that_nothing_mentions_any_more_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tenants may request resources of any name, so a problem must drop unused columns."""
    few = 8
    monkeypatch.setattr(compile_module, "FEW_RESOURCES", few)
    previous, widest = None, 0
    for number in range(3 * few):
        request = (*shape(1).request, (f"example.com/r{number}", 1))
        odd = gang("odd", ("w", 1, TaskShape(request)))
        snapshot = cluster([node("n0", 4)], [odd, gang("g", ("w", 2, shape(1)))])
        report = run_session(snapshot, POLICY, SessionContext(), previous)
        assert report.plan == run_session(snapshot, POLICY, SessionContext()).plan
        previous = report.problem
        widest = max(widest, len(previous.resources))
    assert few <= widest <= few + 1


def test_time_is_told_phase_by_phase_and_only_where_there_is_a_clock() -> None:
    class Ticks:
        """A clock that advances by one second at each reading."""

        seconds = 0

        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            self.seconds += 1
            return float(self.seconds)

    around = SessionContext(solver=InProcess(), limits=EXACT)
    timed = run_session(CONTEST, POLICY, replace(around, clock=Ticks()))
    phases = timed.trace.seconds
    assert {"compile", "greedy", "solve", "verify", "explain"} <= phases.keys()
    assert all(spent >= 1 for spent in phases.values())
    assert 0 < timed.plan.certificate.seconds <= sum(phases.values())
    untimed = run_session(CONTEST, POLICY, around)
    assert set(untimed.trace.seconds.values()) == {0.0}
    assert untimed.plan.binds == timed.plan.binds


# --- solvers that fail ---------------------------------------------------------------------------


def assert_greedy(plan: Plan, stopped: str) -> Certificate:
    assert plan.binds == greedy().binds
    assert plan.pending == greedy().pending
    assert stopped in plan.certificate.stopped
    assert GREEDY in plan.certificate.engine
    return plan.certificate


@pytest.mark.parametrize("why", [OVER_TIME, f"{DIED} (signal 9)", "not solved: numbers too large"])
def test_a_solver_without_an_answer(why: str) -> None:
    certificate = assert_greedy(decide(solver=Planted(lambda model: Solved((), why))), why)
    assert certificate.levels[0].status is LevelStatus.SKIPPED
    assert (certificate.levels[0].value, certificate.levels[0].bound) == (5000, 13_000)


def test_a_bound_without_a_solution_is_used() -> None:
    update = LevelUpdate(0, None, 8000, LevelStatus.BOUND_ONLY)
    certificate = assert_greedy(
        decide(solver=Planted(lambda model: Solved((update,), "late"))), "late"
    )
    first = certificate.levels[0]
    assert (first.value, first.bound, first.status) == (5000, 8000, LevelStatus.FEASIBLE)


def as_few_as_possible(model: LevelModel) -> Solved:
    """Return the solution of the model that is worst on the first level."""
    worst = replace(model.objectives[0], sense=Sense.MIN, at_least=None)
    return InProcess().solve(replace(model, objectives=(worst,)), EXACT)


def test_a_solution_that_is_worse_than_the_pipelines() -> None:
    assert_greedy(decide(solver=Planted(as_few_as_possible)), "worse than the incumbent")


def with_solution(make: Callable[[LevelModel], object]) -> Callable[[LevelModel], Solved]:
    """Return a solver that claims a given solution with its true objective value."""

    def answer(model: LevelModel) -> Solved:
        solution = make(model)
        try:
            value = model.objectives[0].expression.value(solution)  # type: ignore[arg-type]
        except (IndexError, TypeError, AttributeError):
            value = 8000
        return Solved((LevelUpdate(0, value, None, LevelStatus.FEASIBLE, solution),), "done")  # type: ignore[arg-type]

    return answer


GARBAGE = {
    "everything at its most": lambda model: model.upper.copy(),
    "beyond the bounds": lambda model: model.upper + 1,
    "below the bounds": lambda model: model.lower - 5,
    "too short": lambda model: model.lower[:-1].copy(),
    "too long": lambda model: np.append(model.lower, 0),
    "empty": lambda model: np.zeros(0, np.int64),
    "of another shape": lambda model: model.lower[None, :].copy(),
    "fractions": lambda model: model.lower + 0.5,
    "not numbers": lambda model: np.array(["x"] * len(model.lower)),
    "no array": lambda model: model.lower.tolist(),
    "out of range": lambda model: np.full_like(model.lower, 2**62),
}


@pytest.mark.parametrize("make", GARBAGE.values(), ids=GARBAGE)
def test_garbage(make: Callable[[LevelModel], object]) -> None:
    assert_greedy(decide(solver=Planted(with_solution(make))), f"done; {INVALID_SOLUTION}")


@pytest.mark.parametrize(
    "update",
    [
        LevelUpdate(99, 8000, 8000, LevelStatus.OPTIMAL),
        LevelUpdate(-1, 8000, 8000, LevelStatus.OPTIMAL),
        LevelUpdate(0, 8000, 5000, LevelStatus.FEASIBLE),
    ],
    ids=["no such level", "a level below zero", "a value beyond its bound"],
)
def test_claims_that_can_not_be_true(update: LevelUpdate) -> None:
    assert_greedy(decide(solver=Planted(lambda model: Solved((update,), "done"))), INVALID_SOLUTION)


def test_a_claim_to_be_better_than_the_solution_is() -> None:
    def boasting(model: LevelModel) -> Solved:
        update = as_few_as_possible(model).updates[0]
        return Solved((replace(update, value=8000, bound=6000),), "done")

    assert_greedy(decide(solver=Planted(boasting)), INVALID_SOLUTION)


def test_garbage_after_something_good_costs_only_itself() -> None:
    def half_good(model: LevelModel) -> Solved:
        good = InProcess().solve(model, EXACT)
        bad = with_solution(lambda m: m.upper + 1)(model).updates
        return Solved((*good.updates, *bad), good.stopped)

    plan = decide(solver=Planted(half_good))
    assert set(plan.binds) == {"ns/one-w-0", "ns/two-w-0"}
    assert INVALID_SOLUTION in plan.certificate.stopped


# --- a solver process that fails -----------------------------------------------------------------


@pytest.fixture(scope="module")
def ready() -> WorkerProcess:
    worker = WorkerProcess()
    assert worker.wait_until_ready()
    yield worker
    worker.close()


@pytest.mark.slow
def test_a_process_that_never_answers(ready: WorkerProcess) -> None:
    assert ready.wait_until_ready()
    stuck = ready.pid
    os.kill(stuck, signal.SIGSTOP)
    plan = decide(solver=ready, limits=Limits(budget_ms=50, num_workers=1))
    assert_greedy(plan, OVER_TIME)
    assert ready.pid != stuck


@pytest.mark.slow
def test_a_process_that_dies_and_the_next_one(ready: WorkerProcess) -> None:
    assert ready.wait_until_ready()
    os.kill(ready.pid, signal.SIGSTOP)  # otherwise the process would finish before it can be killed
    threading.Timer(0.1, os.kill, (ready.pid, signal.SIGKILL)).start()
    assert_greedy(decide(solver=ready), f"{DIED} (signal 9)")
    assert set(decide(solver=ready).binds) == {"ns/one-w-0", "ns/two-w-0"}


# --- plans that break rules ----------------------------------------------------------------------


@dataclass
class Kept:
    """An incident recorder that keeps rule violations."""

    incidents: list[tuple[Snapshot, Plan, list[Violation]]] = field(default_factory=list)

    def violated(self, snapshot: Snapshot, plan: Plan, violations: list[Violation]) -> str:
        self.incidents.append((snapshot, plan, violations))
        return f"incident {len(self.incidents)}"


def everything_on_one_node(decisions: Decisions) -> Decisions:
    return replace(decisions, node_of=np.zeros_like(decisions.node_of))


@pytest.fixture
def cheating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an engine whose solution looks best and violates every rule."""

    def improve(problem, rules, goal, incumbent, search):
        return replace(
            incumbent,
            decisions=everything_on_one_node(incumbent.decisions),
            engine="cheat",
            stopped="done",
        )

    monkeypatch.setattr(rounds, "improve", improve)


@pytest.mark.usefixtures("cheating")
def test_a_plan_that_breaks_rules_is_kept_and_not_returned() -> None:
    kept = Kept()
    around = SessionContext(solver=InProcess(), limits=EXACT, incidents=kept)
    report = run_session(CONTEST, POLICY, around)
    assert report.plan.binds == greedy().binds
    assert report.plan.certificate.engine == GREEDY
    ((snapshot, plan, violations),) = kept.incidents
    assert snapshot is CONTEST
    assert set(plan.binds.values()) == {"n0"}
    assert plan.certificate.engine == "cheat"
    assert ("fits", "node n0") in [(v.rule, v.where) for v in violations]
    assert report.trace.violations == tuple(violations)
    assert report.trace.kept_at == "incident 1"


@pytest.mark.usefixtures("cheating")
def test_nobody_need_keep_incidents() -> None:
    report = run_session(CONTEST, POLICY, SessionContext(solver=InProcess(), limits=EXACT))
    assert report.plan.binds == greedy().binds
    assert report.trace.violations
    assert report.trace.kept_at == ""


def test_nothing_is_done_when_no_plan_keeps_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rounds.run_greedy
    for module in (rounds, evicting_pipeline):
        monkeypatch.setattr(
            module, "run_greedy", lambda *given: everything_on_one_node(honest(*given))
        )
    kept = Kept()
    around = SessionContext(solver=Planted(lambda model: Solved((), "none")), incidents=kept)
    report = run_session(CONTEST, POLICY, around)
    assert report.plan.binds == {}
    assert report.plan.certificate.engine == "none"
    assert report.plan.certificate.stopped == "no plan kept every rule"
    assert set(report.plan.pending) == {"ns/old", "ns/one", "ns/two"}
    assert len(kept.incidents) >= 1
    assert report.trace.kept_at == f"incident {len(kept.incidents)}"


def test_a_healthy_session_keeps_nothing() -> None:
    kept = Kept()
    report = run_session(CONTEST, POLICY, SessionContext(incidents=kept))
    assert kept.incidents == []
    assert (report.trace.violations, report.trace.kept_at) == ((), "")


# --- reasons -------------------------------------------------------------------------------------


def test_what_can_not_be_decided_has_a_reason_as_well() -> None:
    gangs = [
        gang("g", ("w", 1, shape(1)), queue="nowhere"),
        gang("few", ("w", 1, shape(1)), least=3),
    ]
    plan = decide(cluster(NODES, gangs, [Queue("q", capability=((CPU, 1),))]))
    assert {key: reason.code.value for key, reason in plan.pending.items()} == {
        "ns/g": "QueueNotFound",
        "ns/few": "NotEnoughTasks",
    }


def test_tasks_are_bound_gang_by_gang_the_oldest_first() -> None:
    gangs = [gang(name, ("w", 2, shape(1)), created_ms=born) for name, born in (("a", 2), ("b", 1))]
    plan = decide(cluster(NODES, gangs))
    assert [a.gang for a in plan.actions if isinstance(a, Allocate)] == ["ns/b"] * 2 + ["ns/a"] * 2


@pytest.mark.parametrize("phase", list(GangPhase))
def test_the_last_pod_of_a_gang_starts_after_all_other_pods_have_succeeded(
    phase: GangPhase,
) -> None:
    """Pods that have succeeded count towards minMember, as Volcano's `ReadyTaskNum` does."""
    made = gang("g", ("w", 4, shape(1)))
    over = [replace(task, status=TaskStatus.SUCCEEDED) for task in made.tasks[:3]]
    rest = replace(made, tasks=(*over, made.tasks[3]), phase=phase)
    assert list(decide(cluster(NODES, [rest])).binds) == ["ns/g-w-3"]
