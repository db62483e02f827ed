"""One session: a snapshot and a policy in, a verified plan out.

The same call serves the live scheduler, the offline solver and every study; what differs is who
takes the snapshot and who carries the plan out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.decisions import Certificate, Plan
from optsched.engines.cpsat.model import Limits
from optsched.engines.greedy.pipeline import GreedyOptions, run_greedy
from optsched.engines.portfolio import IDEAL, NO_SOLVER, Answer, improve, is_ideal, judge
from optsched.policy.policy import Admission, SolverKind
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.tiers import Tiers, priority_tiers, weighted_tier
from optsched.rules.faces import Face
from optsched.rules.levels import build_levels
from optsched.rules.verify import verify_actions
from optsched.session.decompile import actions_of, pending_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.domain.cluster import Snapshot
    from optsched.engines.cpsat.solver import Solver
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.rules.base import AnyLevel, Violation
    from optsched.session.ports import Clock, Incidents


@dataclass(frozen=True)
class Surroundings:
    """What a session may use.

    Attributes
    ----------
    clock
        None where no clock may be read: durations are then 0 and nothing is limited by time.
    solver
        None for the greedy pipeline alone.
    incidents
        None where broken plans need not be kept.
    limits
        What a solve may spend; None takes the policy's budget.

    """

    clock: Clock | None = None
    solver: Solver | None = None
    incidents: Incidents | None = None
    limits: Limits | None = None


@dataclass(frozen=True)
class Trace:
    """What happened in a session, for metrics and logs.

    Attributes
    ----------
    seconds
        Wall time by phase: compile, greedy, solve, verify, explain.
    violations
        Rules that plans broke before one was accepted; empty in a healthy scheduler.
    kept_at
        Where the broken plan and its snapshot were put.

    """

    seconds: dict[str, float] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    kept_at: str = ""


@dataclass(frozen=True)
class Report:
    """The outcome of a session: the plan, and the problem that the next one builds on."""

    plan: Plan
    problem: Problem
    trace: Trace


def run_session(
    snapshot: Snapshot,
    policy: Policy,
    surroundings: Surroundings,
    previous: Problem | None = None,
) -> Report:
    """Decide what to do about a snapshot.

    Parameters
    ----------
    snapshot
        The cluster.
    policy
        Actions, rules, levels and budgets.
    surroundings
        Clock, solver and keeper of incidents.
    previous
        The problem of an earlier session; makes compiling cheaper and changes nothing else.

    """
    return _Session(snapshot, policy, surroundings).run(previous)


class _Session:
    def __init__(self, snapshot: Snapshot, policy: Policy, surroundings: Surroundings) -> None:
        self._snapshot = snapshot if _has_gangs(policy) else without_gangs(snapshot)
        self._policy = policy
        self._around = surroundings
        self._watch = Stopwatch(surroundings.clock)

    def run(self, previous: Problem | None) -> Report:
        watch, policy = self._watch, self._policy
        with watch("compile"):
            problem = compile_problem(self._snapshot, previous)
            tiers = find_tiers(problem, policy)
            levels = build_levels(problem, policy.rules, tiers, policy.levels)
        with watch("greedy"):
            greedy = self._greedy(problem, tiers, levels)
        with watch("solve"):
            answer = self._improve(problem, tiers, levels, greedy)
        plan, violations, kept = self._accept(problem, tiers, [answer, greedy])
        trace = Trace(dict(watch.seconds), violations, kept)
        return Report(plan, problem, trace)

    def _greedy(self, problem: Problem, tiers: Tiers, levels: list[AnyLevel]) -> Answer:
        optimises = self._policy.solver is SolverKind.CPSAT
        options = GreedyOptions(
            actions=self._policy.actions,
            tier_of=tiers.of if optimises else None,
            gated=not optimises,
        )
        decisions = run_greedy(problem, self._policy.rules, options)
        return judge(problem, decisions, levels, NO_SOLVER)

    def _improve(
        self, problem: Problem, tiers: Tiers, levels: list[AnyLevel], greedy: Answer
    ) -> Answer:
        if self._policy.solver is not SolverKind.CPSAT or self._around.solver is None:
            return greedy
        if is_ideal(problem, greedy):
            return replace(greedy, stopped=IDEAL)
        limits = self._around.limits or Limits(budget_ms=self._policy.budgets.solve_ms)
        goal = (tiers, levels)
        return improve(problem, self._policy.rules, goal, greedy, self._around.solver, limits)

    def _accept(
        self, problem: Problem, tiers: Tiers, answers: list[Answer]
    ) -> tuple[Plan, tuple[Violation, ...], str]:
        """The first answer that keeps every hard rule; nothing at all if none does."""
        found: list[Violation] = []
        kept = ""
        for answer in answers:
            with self._watch("verify"):
                actions = actions_of(problem, answer.decisions, tiers)
                violations = verify_actions(self._snapshot, actions, self._policy.rules)
            if not violations:
                return self._plan(problem, tiers, answer), tuple(found), kept
            found.extend(violations)
            if self._around.incidents is not None:
                plan = Plan(actions, self._certificate(answer))
                kept = self._around.incidents.violated(self._snapshot, plan, violations)
        nothing = Answer(Decisions.nothing(problem), (), "none", "no plan kept every rule")
        return self._plan(problem, tiers, nothing), tuple(found), kept

    def _plan(self, problem: Problem, tiers: Tiers, answer: Answer) -> Plan:
        with self._watch("explain"):
            pending = pending_of(problem, answer.decisions, self._policy.rules)
        actions = actions_of(problem, answer.decisions, tiers)
        return Plan(actions, self._certificate(answer), pending)

    def _certificate(self, answer: Answer) -> Certificate:
        return Certificate(
            levels=answer.results,
            engine=answer.engine,
            seconds=self._watch.total,
            stopped=answer.stopped,
            relaxed=answer.relaxed,
        )


def _has_gangs(policy: Policy) -> bool:
    return policy.rules.has("gang", Face.JOB_READY)


def without_gangs(snapshot: Snapshot) -> Snapshot:
    """The snapshot for a policy that does not know gangs: every task may start alone.

    What a gang needs at least still counts where rules vote on letting it in.
    """
    gangs = tuple(replace(g, min_member=0, min_role=()) for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def find_tiers(problem: Problem, policy: Policy) -> Tiers:
    """Tiers by priority where the policy knows priorities, else one for all."""
    knows = policy.rules.find("priority") is not None
    priority = problem.priority if knows else np.zeros_like(problem.priority)
    if policy.admission is Admission.BY_WEIGHT:
        return weighted_tier(problem, priority)
    return priority_tiers(problem, priority, policy.budgets.starvation_after_ms)


class Stopwatch:
    """Adds up wall time by phase; without a clock everything takes no time."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._now() - start

    def _now(self) -> float:
        return self._clock.monotonic() if self._clock is not None else 0.0

    @property
    def total(self) -> float:
        """Seconds of all phases so far."""
        return sum(self.seconds.values())
