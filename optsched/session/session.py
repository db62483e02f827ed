"""One session: a snapshot and a policy in, a verified plan out.

The same call serves the live scheduler, the offline solver and every study; what differs is who
takes the snapshot and who carries the plan out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import (
    Certificate,
    Enqueue,
    Evict,
    LevelResult,
    LevelStatus,
    Plan,
    Sense,
)
from optsched.cluster.eviction import with_terminating
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.relocation import is_successor, kept_places
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskStatus
from optsched.plugins.custom.isolation import Fault, Faults, PluginFailure
from optsched.plugins.eviction.conformance import SYSTEM_PRIORITY, system_first
from optsched.plugins.eviction.consolidation import CONSOLIDATE, Consolidation
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Entitled
from optsched.plugins.eviction.moves import SHUFFLE
from optsched.plugins.extension_points import is_node_level
from optsched.plugins.external.outside import Recorder, Recording
from optsched.plugins.faces import Face
from optsched.plugins.objectives.admission import Started
from optsched.plugins.objectives.levels import build_levels
from optsched.plugins.outcome import Outcome
from optsched.plugins.shares.fairness import queue_shares
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.policy import Admission, SolverKind
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.nominations import nominated_seats
from optsched.problem.running import running_tasks
from optsched.problem.tiers import Tiers, priority_tiers, weighted_tier
from optsched.session.backfill_reservations import Reserved, expected, reserve
from optsched.session.bounds import EvictionScope, can_evict
from optsched.session.budgets import Protection, with_budgets
from optsched.session.candidates import (
    MOST_SINGLE_DROPS,
    Candidate,
    DropOrder,
    Repair,
    Round,
    name_users_as_preemptors,
    rank_candidates,
    repair_actions,
)
from optsched.session.custom_blockers import accused
from optsched.session.decompile import actions_of, decisions_of, pending_of
from optsched.session.device_allocations import with_cards
from optsched.session.device_selectors import with_verdicts
from optsched.session.guarantees import hold_guarantees
from optsched.session.image_locality import with_required_data
from optsched.session.lending import Decided, find_withheld, lend_idle, without_lending
from optsched.session.object_diagnostics import budget_flaws, find_flaws
from optsched.session.queue_gates import opened
from optsched.session.search_history import PROVED_BEFORE, History, resume_incumbent
from optsched.session.vgpu_exclusivity import with_exclusive
from optsched.solver.consolidation.stage import Means as MovingMeans
from optsched.solver.consolidation.stage import consolidate
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.greedy.gang_preemption import GangPreemptionOptions
from optsched.solver.greedy.pipeline import GreedyOptions, order_gangs, run_greedy
from optsched.solver.portfolio import (
    IDEAL,
    NO_SOLVER,
    Answer,
    SolveRequest,
    evaluate_greedy,
    improve,
    is_ideal,
)
from optsched.solver.preemption.joint.bound import bound_with_evictions
from optsched.solver.preemption.joint.solution import find_victims_jointly
from optsched.solver.preemption.sequential.stage import (
    EvictionPlan,
    Means,
    count_victims,
    find_victims,
)
from optsched.solver.preemption.sequential.trial import has_custom_rules
from optsched.solver.shuffle import apply_moves, shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.reservation import CapacityReservation
    from optsched.cluster.search_progress import Incumbent, Progress
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.plugins.extension_points import AnyLevel, Violation
    from optsched.plugins.external.outside import Outside
    from optsched.policy.policy import Policy
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.session.object_diagnostics import Flaw
    from optsched.session.ports import Clock, Incidents, Watch
    from optsched.solver.cpsat.process import Solver


_REACH = {
    "preempt": PREEMPT,
    "gangpreempt": PREEMPT,
    "reclaim": RECLAIM,
    "gangreclaim": RECLAIM,
}
"""What the actions of a policy allow where evictions are weighed as one problem."""

_SHORT_OF_ROOM = frozenset(
    {ReasonCode.RESOURCES, ReasonCode.FRAGMENTED, ReasonCode.OUTRANKED, ReasonCode.WAITING}
)

NOTHING = "none"
"""The engine of a plan that does nothing because no other kept every rule."""

_SEARCHES = ("solve", "victims", "consolidation", "bound")
"""Phases of a session that search."""

_TRIES = 3
"""How often room is looked for again when a gang can not sit where it was made."""

_BARS = 4
"""How often it is decided again without what let no plan pass.

That is actions of a user first, then gangs of which rules of plugins let nothing pass.
"""


@dataclass(frozen=True)
class SessionContext:
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
    outside
        Whom rules may ask; None gives them the answers that the snapshot has recorded.
    watch
        Who looks on while it searches; None where nobody does and no history is kept.
    start
        What an earlier session on the same snapshot has left, to be gone on from.
    period_ms
        Wall time in which a session aims to end: on large clusters searches get a smaller part of
        it, and later candidates and bounds are left out. None where nothing limits a whole session.

    """

    clock: Clock | None = None
    solver: Solver | None = None
    incidents: Incidents | None = None
    limits: Limits | None = None
    outside: Outside | None = None
    watch: Watch | None = None
    start: tuple[Incumbent, ...] = ()
    period_ms: int | None = None


@dataclass(frozen=True)
class Trace:
    """What happened in a session, for metrics and logs.

    Attributes
    ----------
    seconds
        Wall time by phase: shuffle, reserve, compile, greedy, solve, verify, explain.
    violations
        Rules that plans broke before one was accepted; empty in a healthy scheduler.
    kept_at
        Where the broken plan and its snapshot were put.
    repairs
        Refused plans that went on without the gangs at fault.
    faults
        What went wrong in rules of plugins from elsewhere, and who outside did not answer.
    answers
        What was asked outside, and what was answered, as a snapshot holds it.
    progress, incumbents
        How the searches went, and the answer of each, where somebody watched.

    """

    seconds: dict[str, float] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    kept_at: str = ""
    repairs: tuple[Repair, ...] = ()
    faults: tuple[Fault, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    progress: tuple[Progress, ...] = ()
    incumbents: tuple[Incumbent, ...] = ()


@dataclass(frozen=True)
class Report:
    """The outcome of a session: the plan, and the problem that the next one builds on.

    `flaws` are what is wrong with objects beside each other, `opened` the tasks without a node
    whose gates their queues open.
    """

    plan: Plan
    problem: Problem
    trace: Trace
    flaws: tuple[Flaw, ...] = ()
    opened: tuple[str, ...] = ()


def run_session(
    snapshot: Snapshot,
    policy: Policy,
    surroundings: SessionContext,
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


def expected_starts(
    snapshot: Snapshot, policy: Policy, keys: Collection[str]
) -> dict[str, CapacityReservation]:
    """When gangs that wait could start if no others came, by key; see `reserving.expected`.

    As far as running pods say when they end: `is_open` where some that are in the way do not.
    """
    session = _Session(snapshot, policy, SessionContext())
    return expected(session._snapshot, session._policy, keys)


@dataclass(frozen=True)
class Judgement:
    """What actions on a snapshot are worth, whoever has chosen them.

    Attributes
    ----------
    levels
        As in a certificate; their bounds are ideals, for nothing is solved.
    violations
        Rules that the actions break.
    pending
        Why gangs wait that have tasks left, by key.

    """

    levels: tuple[LevelResult, ...]
    violations: tuple[Violation, ...]
    pending: Mapping[str, Reason]


def judge_actions(snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> Judgement:
    """Prove actions against every hard rule and work out their value on every level.

    Nothing is solved, and nothing of what the actions were found with is used.

    Raises
    ------
    ValueError
        An action names a pod or node that there is not, or moves a pod to another node.

    """
    return _Session(snapshot, policy, SessionContext()).judge(actions)


def waiting_lines(snapshot: Snapshot, policy: Policy) -> dict[str, tuple[str, ...]]:
    """Keys of the gangs that wait, by queue, in the order in which the next session asks them.

    Gangs of which nothing runs, whether their pods are made yet or not. Who is asked first need not
    start first: it may not fit where a smaller one does.
    """
    session = _Session(snapshot, policy, SessionContext())
    return session.lines()


class _Session:
    def __init__(self, snapshot: Snapshot, policy: Policy, surroundings: SessionContext) -> None:
        self._given = snapshot
        held, self._unheld = hold_guarantees(kept_places(snapshot).snapshot)
        if policy.rules.find("conformance") is not None:
            held = system_first(held)
        held = with_required_data(held, policy.rules.scoring)
        held = with_verdicts(with_exclusive(held, policy.rules.masking))
        self._snapshot = held if _has_gangs(policy) else without_gangs(held)
        self._start = self._snapshot
        self._moved: tuple[Evict, ...] = ()
        self._faults = Faults()
        self._outside = Recorder(surroundings.outside or Recording(snapshot.answers))
        rules = policy.rules.connected(self._outside).contained(self._faults)
        self._policy = replace(policy, rules=rules)
        self._around = surroundings
        self._watch = Stopwatch(surroundings.clock)
        self._begun_s = surroundings.clock.monotonic() if surroundings.clock else 0.0
        self._history = History(surroundings.watch, _elapsed(surroundings.clock))
        self._hopeless: Mapping[int, Reason | None] = {}
        self._accused: dict[str, Reason] = {}
        self._dropped: set[str] = set()
        self._scope: EvictionScope | None = None
        self._opened: tuple[str, ...] = ()
        self._reserved = Reserved(self._snapshot)
        self._optimises = policy.solver is SolverKind.CPSAT
        if not self._optimises or RECLAIM not in _reach(policy):
            self._policy = replace(self._policy, rules=without_lending(rules))
        self._rules = self._policy.rules
        if self._optimises:
            self._rules = self._rules.guarded_by(Entitled(self._rules), Consolidation())

    def run(self, previous: Problem | None) -> Report:
        """Decide; once more without gangs of which plugins let nothing pass, if need be."""
        found: list[Violation] = []
        for left in reversed(range(_BARS)):
            report = self._decide(previous, is_last=left == 0)
            found += report.trace.violations
            if report.plan.certificate.engine != NOTHING:
                break
            if self._policy.proposers:
                self._dismiss(report.trace.violations)
                continue
            if not self._accused:
                break
            self._snapshot = _block_gangs(self._snapshot, self._accused)
            self._dropped |= self._accused.keys()
            self._accused = {}
        for verb, failure in self._outside.failures:
            self._faults.add(Fault("extender", "extender", verb, failure, "its service"))
        trace = replace(
            report.trace,
            violations=tuple(found),
            faults=self._faults.found,
            answers=self._outside.entries,
            progress=tuple(self._history.progress),
            incumbents=tuple(self._history.incumbents),
        )
        return replace(report, trace=trace)

    def _dismiss(self, violations: Sequence[Violation]) -> None:
        """Go on without the actions of a user, with which no plan has kept every rule."""
        broken = "; ".join(map(str, islice(violations, 1)))
        for proposer in self._policy.proposers:
            proposer.object(
                f"is left out, for no plan with it kept every rule: {broken}", self._faults
            )
        self._policy = replace(self._policy, proposers=())
        self._accused = {}

    def _decide(self, previous: Problem | None, *, is_last: bool) -> Report:
        start = self._shuffled(previous)
        with self._watch("reserve"):
            self._reserved = reserve(start, self._policy, previous, is_ordered=self._optimises)
        self._start = self._reserved.snapshot
        booked = replace(self._snapshot, bookings=self._start.bookings)
        self._snapshot = booked if self._moved else self._start
        first = self._round(self._start, EvictionPlan(), self._reserved.problem)
        candidates = list(self._candidates(first))
        plan, trace = self._accept(first, candidates, is_last=is_last)
        plan, flaws = self._examined(plan, first.problem)
        return Report(plan, first.problem, trace, flaws, self._opened)

    def _candidates(self, first: Round) -> Iterator[Candidate]:
        """Plans that the solver and the pipeline propose, with and without evictions."""
        if not self._optimises:
            yield Candidate(first, first.answers[0])
            return
        rounds = [*self._eviction_rounds(first), first]
        jointly = () if self._is_late else self._choosing_jointly(first, rounds[0])
        for each in (*rounds, *jointly):
            # Where the solver has kept the pipeline's decisions they compete once.
            distinct = {id(answer.decisions): answer for answer in reversed(each.answers)}
            yield from (Candidate(each, answer) for answer in reversed(distinct.values()))
        is_open = can_evict(first.problem, self._rules, self._reach_of_plans)
        self._scope = EvictionScope(first, is_open)
        # Where pods may be evicted the pipeline has its say, however little time is left.
        if not self._is_best(rounds[0], can_evict=is_open) and (is_open or self._has_time):
            best = Candidate(rounds[0], rounds[0].answers[0])
            yield from self._by_pipeline(first, best)

    @property
    def _reach_of_plans(self) -> frozenset[str]:
        """The actions of the policy that may take running pods off their nodes."""
        moves = {CONSOLIDATE} & set(self._policy.actions)
        return _reach(self._policy) | moves

    def _bound_over_all(self, chosen: Candidate) -> None:
        """Bound the levels that are open over every plan that the policy allows."""
        scope, solver = self._scope, self._around.solver
        if scope is None or not scope.is_open or solver is None or self._is_late:
            return
        values = scope.values_of(chosen)
        certified = scope.certify(chosen)
        results = (*certified[0], *certified[1])
        if values is None or all(r.status is LevelStatus.OPTIMAL for r in results):
            return
        if self._left_ms() == 0:
            return
        first = scope.first
        with self._watch("bound"):
            bounds = bound_with_evictions(
                first.problem,
                self._rules,
                (first.tiers, first.levels),
                values,
                self._reach_of_plans,
                (solver, self._limits, self._left_ms),
            )
        self._scope = replace(scope, bounds=bounds)

    def _is_best(self, found: Round, *, can_evict: bool) -> bool:
        """Whether no other candidate can be better on a level over gangs.

        The bounds of a round know nothing of evictions beyond its own: where the policy allows
        some, only ideals count.
        """
        answer = found.answers[0]
        if can_evict:
            if found.clearing.evictions:
                return False
            answer = evaluate_greedy(found.problem, answer.decisions, found.levels, "")
        pairs = zip(found.levels, answer.results, strict=False)
        return all(
            result.status is LevelStatus.OPTIMAL
            for level, result in pairs
            if not is_node_level(level)
        )

    @property
    def _has_time(self) -> bool:
        """Whether what searches have left is enough for one more plan of the pipeline."""
        if self._is_late:
            return False
        if self._limits.budget_ms is None or self._around.clock is None:
            return True
        seconds = self._watch.seconds
        spent = seconds.get("solve", 0.0) + seconds.get("greedy", 0.0)
        return int(spent * 1000) < 2 * self._limits.budget_ms

    def _by_pipeline(self, first: Round, best: Candidate) -> Iterator[Candidate]:
        """Plans of the pipeline with Volcano's choice of victims, where they are better.

        The first one orders gangs by the tiers of the levels, the second by the plugins. The third
        keeps other gangs off reserved capacity, as a session without a solver does. Gangs whose
        victims no gang of this policy is entitled to are dropped. The pipeline follows other rules,
        so that this is no defect and counts as no repair.
        """
        before = first.answers[-1].decisions
        is_late = self._deadline()
        for number, (problem, tier_of) in enumerate(self._ways_of_pipeline(first)):
            if number and not self._has_time:
                return
            with self._watch("greedy"):
                options = self._greedy_options(problem, first.tiers, EvictionPlan())
                options = replace(options, gated=True, is_late=is_late, tier_of=tier_of)
                decisions = run_greedy(problem, self._policy.rules, options)
                if decisions.equals(before):
                    continue
                before = decisions
                actions = self._with_cards(actions_of(problem, decisions, first.tiers))
                found = self._judged(first, decisions, (*self._moved, *actions), NO_SOLVER)
            if rank_candidates([best, found])[0] is best:
                continue
            violations = self._verify(found.round, found.actions or ())
            repaired = self._repaired(first, found, violations) if violations else found
            if repaired is not None:
                yield replace(repaired, dropped=())

    def _ways_of_pipeline(self, first: Round) -> Iterator[tuple[Problem, I64 | None]]:
        """Yield problems for the pipeline with evictions, each with its ranks of gangs."""
        is_gated = any(gang.phase is GangPhase.PENDING for gang in first.problem.snapshot.gangs)
        # Without victims the order of tiers gives what the incumbent has.
        if is_gated or len(running_tasks(first.problem)):
            yield first.problem, first.tiers.of
        yield first.problem, None
        if self._reserved.bookings and self._has_time:
            kept = reserve(self._start, self._policy, first.problem, is_ordered=False).snapshot
            yield compile_problem(kept, first.problem), None

    def _judged(
        self, first: Round, base: Decisions, actions: tuple[Action, ...], stopped: str
    ) -> Candidate:
        """A candidate of some actions on the snapshot of the first round."""
        evictions = tuple(a for a in actions if isinstance(a, Evict) and a not in self._moved)
        snapshot = with_terminating(self._start, {e.task for e in evictions})
        problem = compile_problem(snapshot, first.problem)
        tiers = find_tiers(problem, self._policy, self._reserved.heads(problem))
        levels = build_levels(problem, self._policy.rules, tiers, self._policy.levels)
        decisions = decisions_of(problem, actions)
        decisions = replace(decisions, enqueued=base.enqueued, refused=base.refused)
        answer = evaluate_greedy(problem, decisions, levels, stopped)
        clearing = EvictionPlan(evictions, results=count_victims(self._start, evictions))
        return Candidate(Round(problem, tiers, levels, (answer,), clearing), answer, actions)

    def _examined(self, plan: Plan, problem: Problem) -> tuple[Plan, tuple[Flaw, ...]]:
        """The plan with what budgets have to do with it, and what is wrong with objects."""
        with self._watch("explain"):
            reads_topology = self._policy.rules.find("network-topology") is not None
            flaws = find_flaws(self._given, self._unheld, reads_topology=reads_topology)
            protection = Protection(problem, self._rules, _reach(self._policy))
            keeping = protection.keeping(plan.pending)
        if not keeping:
            return plan, flaws
        told = {key: with_budgets(plan.pending[key], kept) for key, kept in keeping.items()}
        plan = replace(plan, pending={**plan.pending, **told})
        named = (key for kept in keeping.values() for key in kept)
        return plan, (*flaws, *budget_flaws(named))

    def lines(self) -> dict[str, tuple[str, ...]]:
        """See `waiting_lines`."""
        problem = compile_problem(self._snapshot, None)
        gangs = problem.snapshot.gangs
        waiting = [
            i for i, gang in enumerate(gangs) if problem.queue_of[i] >= 0 and _is_waiting(gang)
        ]
        tiers = find_tiers(problem, self._policy).of if self._optimises else None
        found: dict[str, list[str]] = {}
        for i in order_gangs(problem, self._rules, waiting, tiers):
            found.setdefault(gangs[i].queue, []).append(gangs[i].key)
        return {queue: tuple(keys) for queue, keys in found.items()}

    def judge(self, actions: Sequence[Action]) -> Judgement:
        """See `judge_actions`."""
        if any(isinstance(a, Evict) and a.to for a in actions):
            raise ValueError("a pod that moves to another node can not be judged")
        self._reserved = reserve(self._start, self._policy, None, is_ordered=self._optimises)
        before = self._reserved.snapshot
        victims = {a.task for a in actions if isinstance(a, Evict)}
        problem = compile_problem(with_terminating(before, victims), None)
        tiers = find_tiers(problem, self._policy, self._reserved.heads(problem))
        levels = build_levels(problem, self._policy.rules, tiers, self._policy.levels)
        decisions = decisions_of(problem, actions)
        answer = evaluate_greedy(problem, decisions, levels, "")
        evictions = tuple(a for a in actions if isinstance(a, Evict))
        clearing = EvictionPlan(results=count_victims(before, evictions))
        each = Round(problem, tiers, levels, (answer,), clearing)
        told = pending_of(problem, decisions, self._policy.rules)
        broken = verify_actions(before, actions, self._rules)
        certificate = self._certificate(Candidate(each, answer))
        return Judgement(certificate.levels, tuple(broken), told)

    # --- deciding --------------------------------------------------------------------------------

    def _shuffled(self, previous: Problem | None) -> Snapshot:
        """The snapshot once told to leave is who plugins want elsewhere; all else builds on it."""
        if SHUFFLE not in self._policy.actions:
            return self._snapshot
        with self._watch("shuffle"):
            problem = compile_problem(self._snapshot, previous)
            self._moved = shuffle(problem, self._policy.rules)
            return apply_moves(self._snapshot, self._moved)

    def _round(self, snapshot: Snapshot, clearing: EvictionPlan, previous: Problem | None) -> Round:
        watch, policy = self._watch, self._policy
        with watch("compile"):
            problem = compile_problem(snapshot, previous)
            tiers = find_tiers(problem, policy, self._reserved.heads(problem))
            levels = build_levels(problem, policy.rules, tiers, policy.levels)
        with watch("greedy"):
            greedy = self._greedy(problem, tiers, levels, clearing)
        with watch("solve"):
            start = self._begun(Round(problem, tiers, levels, (greedy,), clearing), greedy)
            best = self._improve(problem, tiers, levels, start)
            self._history.end(problem, best)
        return Round(problem, tiers, levels, (best, greedy), clearing)

    def _greedy(
        self, problem: Problem, tiers: Tiers, levels: list[AnyLevel], clearing: EvictionPlan
    ) -> Answer:
        options = self._greedy_options(problem, tiers, clearing)
        decisions = run_greedy(problem, self._policy.rules, options)
        answer = evaluate_greedy(problem, decisions, levels, NO_SOLVER)
        return replace(answer, final=tuple(options.seats))

    def _greedy_options(
        self, problem: Problem, tiers: Tiers, clearing: EvictionPlan
    ) -> GreedyOptions:
        seats = {**nominated_seats(problem), **clearing.seats}
        return GreedyOptions(
            actions=self._policy.actions,
            tier_of=tiers.of if self._optimises else None,
            seats=seats,
            by_gang=_by_gang(self._policy),
            weighs_nodes=_weighs_nodes(self._policy),
            gated=not self._optimises,
            late=self._reserved.late(problem),
            proposers=self._policy.proposers,
            faults=self._faults,
        )

    def _begun(self, each: Round, greedy: Answer) -> Answer:
        """What to start from: what an earlier session has left, if that keeps every rule."""
        turn = self._history.turn + 1
        for left in self._around.start:
            if left.turn != turn:
                continue
            answer = resume_incumbent(each.problem, each.levels, left, greedy)
            if answer is not None and not self._verify(each, self._actions(each, answer)):
                return answer
        return greedy

    def _improve(
        self, problem: Problem, tiers: Tiers, levels: list[AnyLevel], greedy: Answer
    ) -> Answer:
        watch = self._history.begin(problem, levels, greedy)
        if not self._optimises or self._around.solver is None:
            return greedy
        if is_ideal(problem, self._policy.rules, levels, greedy):
            return replace(greedy, stopped=PROVED_BEFORE if greedy.proved else IDEAL)
        goal = (tiers, levels)
        search = SolveRequest(self._around.solver, self._limits_now, watch)
        try:
            return improve(problem, self._policy.rules, goal, greedy, search)
        except PluginFailure as e:
            return replace(greedy, stopped=f"plugin {e.fault.plugin} failed")

    @cached_property
    def _limits(self) -> Limits:
        """The limits of one search; fixed when the first one begins.

        To verify and explain a plan takes about as long as what precedes the first search, and all
        searches together may take two budgets. Where the period has no room for that each gets
        less, but at least half its budget: without searches no gang could preempt.
        """
        limits = self._around.limits or Limits(budget_ms=self._policy.budgets.solve_ms)
        elapsed_ms, period_ms = self._elapsed_ms(), self._around.period_ms
        if limits.budget_ms is None or elapsed_ms is None or period_ms is None:
            return limits
        fair_ms = max((period_ms - 2 * elapsed_ms) // 2, limits.budget_ms // 2)
        return replace(limits, budget_ms=min(limits.budget_ms, fair_ms))

    @property
    def _limits_now(self) -> Limits:
        """The limits of a search for who starts: what is left, but a quarter of its budget."""
        limits, left_ms = self._limits, self._left_ms()
        if left_ms is None or limits.budget_ms is None:
            return limits
        least_ms = max(limits.budget_ms // 4, 1)
        return replace(limits, budget_ms=min(limits.budget_ms, max(left_ms, least_ms)))

    def _elapsed_ms(self) -> int | None:
        """Wall time since the session began; None without a clock."""
        clock = self._around.clock
        return None if clock is None else int((clock.monotonic() - self._begun_s) * 1000)

    def _deadline(self) -> Callable[[], bool]:
        """Whether the period and a budget have passed, and a budget since now as well."""
        elapsed_ms, period_ms = self._elapsed_ms(), self._around.period_ms
        budget_ms = self._limits.budget_ms
        if elapsed_ms is None or period_ms is None or budget_ms is None:
            return lambda: False
        last_ms = max(period_ms, elapsed_ms) + budget_ms
        return lambda: (self._elapsed_ms() or 0) >= last_ms

    @property
    def _is_late(self) -> bool:
        """Whether the period has passed, so that nothing optional may begin."""
        elapsed_ms, period_ms = self._elapsed_ms(), self._around.period_ms
        return elapsed_ms is not None and period_ms is not None and elapsed_ms >= period_ms

    def _eviction_rounds(self, first: Round) -> Iterator[Round]:
        """Rounds in which room was made for what stayed out: by moving, or else by evicting.

        Whichever the policy names first is tried first, and one session does one of them.
        """
        actions = self._policy.actions
        ways = [self._clearing(first)]
        if CONSOLIDATE in actions:
            ways.append(self._moving(first))
            reaching = [i for i, action in enumerate(actions) if action in _REACH]
            if actions.index(CONSOLIDATE) < min(reaching, default=len(actions)):
                ways.reverse()
        return islice(chain.from_iterable(ways), 1)

    def _moving(self, first: Round) -> Iterator[Round]:
        """The round in which running tasks were moved, if that helps anybody."""
        if self._around.solver is None:
            return
        means = MovingMeans(
            solver=self._around.solver,
            levels=self._policy.levels,
            tiers_of=lambda p: find_tiers(p, self._policy, self._reserved.heads(p)),
            left_ms=self._left_ms,
            limits=self._limits,
            most_moves=_most_moves(self._policy),
        )
        best = first.answers[0].decisions
        with self._watch("consolidation"):
            bare = compile_problem(replace(self._start, bookings=()), first.problem)
        for _ in range(_TRIES):
            with self._watch("consolidation"):
                found = consolidate(bare, self._rules, best, means)
            if not found.evictions:
                return
            # Who starts needs no booking any more; those of others hold.
            bookings = tuple(b for b in self._start.bookings if b.gang not in found.gains)
            snapshot = found.apply_to(replace(self._start, bookings=bookings))
            clearing = EvictionPlan(found.evictions, results=found.results)
            again = self._round(snapshot, clearing, first.problem)
            asking, moving = found.find_misplaced(again.problem, again.answers[0].decisions)
            if not asking and not moving:
                yield again
                return
            means = replace(
                means,
                excluded_gangs=means.excluded_gangs | asking,
                unmovable_gangs=means.unmovable_gangs | moving,
            )

    def _clearing(self, first: Round) -> Iterator[Round]:
        """The round in which room was made for what stayed out, if there is any to be made.

        Bids build on those before them: without the gangs that can not sit, all are made again.
        """
        reach = _reach(self._policy)
        means = Means(self._around.solver, self._left_for_bids_ms, self._limits)
        best = first.answers[0].decisions
        for _ in range(_TRIES):
            with self._watch("victims"):
                found = find_victims(first.problem, self._rules, first.tiers, best, reach, means)
            self._hopeless = found.hopeless
            if not found.evictions:
                return
            again = self._round(found.apply_to(self._start), found, first.problem)
            misplaced = found.find_misplaced(again.problem, again.answers[0].decisions)
            if not misplaced:
                yield again
                return
            # Where models do not know why, verifiers may, before a gang is given up.
            fresh = misplaced - means.by_trial if has_custom_rules(self._rules) else frozenset()
            means = replace(
                means,
                by_trial=means.by_trial | fresh,
                excluded_gangs=means.excluded_gangs | (misplaced - fresh),
            )

    def _choosing_jointly(self, first: Round, known: Round) -> Iterator[Round]:
        """The round in which victims were chosen for all gangs together, if it is an improvement.

        It has to start more important gangs than the best round known, or to be worse on no level
        over gangs: victims that only trade shares of queues for others are left to bids.
        """
        decisions, reach = first.answers[0].decisions, _reach(self._policy)
        is_waiting = ((decisions.node_of < 0) & (decisions.nominated < 0)).any()
        if not is_waiting or not can_evict(first.problem, self._rules, reach):
            return
        means = Means(self._around.solver, self._left_ms, self._limits)
        goal = (first.tiers, first.levels)
        with self._watch("victims"):
            found = find_victims_jointly(first.problem, self._rules, goal, decisions, reach, means)
        gone = {eviction.task for eviction in known.clearing.evictions}
        if found is not None and {eviction.task for eviction in found.evictions} != gone:
            again = self._round(found.apply_to(self._start), found, first.problem)
            misplaced = found.find_misplaced(again.problem, again.answers[0].decisions)
            if not misplaced and _improves(again, known):
                yield again

    def _left_ms(self) -> int | None:
        """Wall time that searches have left: all of a session together take two budgets."""
        if self._limits.budget_ms is None or self._around.clock is None:
            return None
        spent_s = sum(self._watch.seconds.get(phase, 0.0) for phase in _SEARCHES)
        running_s = self._watch.running_s if self._watch.phase in _SEARCHES else 0.0
        return max(2 * self._limits.budget_ms - int((spent_s + running_s) * 1000), 0)

    def _left_for_bids_ms(self) -> int | None:
        """What is left without the half of a budget that the search for all gangs together gets."""
        left_ms = self._left_ms()
        return None if left_ms is None else max(left_ms - (self._limits.budget_ms or 0) // 2, 0)

    # --- accepting -------------------------------------------------------------------------------

    def _accept(
        self, first: Round, candidates: list[Candidate], *, is_last: bool
    ) -> tuple[Plan, Trace]:
        """The best candidate that keeps every hard rule; nothing at all if none does.

        A refused candidate is repaired and competes again. One that rules of a custom plugin refuse
        is not: the session is decided again without its gangs, unless this is the last time.
        """
        found: list[Violation] = []
        repairs: list[Repair] = []
        kept = ""
        waiting = rank_candidates(candidates)
        while waiting:
            best = waiting.pop(0)
            if best.actions is None:
                best = replace(best, actions=self._actions(best.round, best.answer))
            accepted, violations = self._verified(best)
            if not violations:
                plan = self._plan(accepted, has_refusals=bool(found))
                return plan, self._trace(found, kept, repairs)
            found.extend(violations)
            told = accused(self._snapshot, self._rules, best.actions or (), violations)
            self._accused |= told
            if self._around.incidents is not None and not told:
                plan = Plan(best.actions or (), self._certificate(best))
                kept = self._around.incidents.violated(self._recorded, plan, violations)
            if told and not is_last:
                continue
            repaired = self._repaired(first, best, violations)
            if repaired is not None:
                repairs.append(Repair(repaired.dropped, violations[0]))
                waiting = rank_candidates([repaired, *waiting])
        last, self._moved = candidates[-1].round, ()
        decided = Decisions.nothing(last.problem)
        nothing = Answer(decided, (), NOTHING, "no plan kept every rule")
        actions = self._actions(last, nothing)
        plan = self._plan(Candidate(last, nothing, actions), has_refusals=True)
        return plan, self._trace(found, kept, repairs)

    def _decided(self, chosen: Candidate) -> Decided:
        """A chosen candidate as the first stage of lending."""
        each, answer = chosen.round, chosen.answer
        return Decided(
            problem=each.problem,
            rules=self._policy.rules,
            tiers=each.tiers,
            decisions=answer.decisions,
            actions=chosen.actions or (),
            counts_all={"admission", "tasks"} <= set(self._policy.levels),
            is_proved=all(r.status is LevelStatus.OPTIMAL for r in self._certify(chosen)[0]),
        )

    def _verified(self, chosen: Candidate) -> tuple[Candidate, list[Violation]]:
        """Return the candidate with its lending, and the hard rules that it breaks.

        The verifier checks both together. If it refuses them, it checks the candidate alone.
        """
        lent = self._lend(chosen)
        with self._watch("verify"):
            violations = self._verify(lent.round, lent.actions or ())
            if violations:
                renamed = name_users_as_preemptors(self._snapshot, lent.actions or ())
                if renamed != lent.actions and not self._verify(lent.round, renamed):
                    return replace(lent, actions=renamed), []
            if not violations or lent.actions == chosen.actions:
                return lent, violations
            return chosen, self._verify(chosen.round, chosen.actions or ())

    def _lend(self, chosen: Candidate) -> Candidate:
        """The candidate with what is idle lent to gangs that may borrow."""
        with self._watch("lend"):
            lending = lend_idle(self._decided(chosen), self._lending_search())
            if lending is None:
                return chosen
            answer = replace(chosen.answer, decisions=lending.decisions)
            actions = self._actions(chosen.round, answer)
            return replace(chosen, actions=actions, lending=lending)

    def _lending_search(self) -> SolveRequest | None:
        """What the second stage may use: a quarter of the budget, as far as it is left."""
        if self._around.solver is None or self._is_late:
            return None
        budget_ms, left_ms = self._limits.budget_ms, self._left_ms()
        if budget_ms is not None:
            budget_ms = budget_ms // 4 if left_ms is None else min(budget_ms // 4, left_ms)
            if budget_ms <= 0:
                return None
        return SolveRequest(self._around.solver, replace(self._limits, budget_ms=budget_ms))

    def _trace(self, found: Sequence[Violation], kept: str, repairs: Sequence[Repair]) -> Trace:
        return Trace(dict(self._watch.seconds), tuple(found), kept, repairs=tuple(repairs))

    def _repaired(
        self, first: Round, refused: Candidate, violations: Sequence[Violation]
    ) -> Candidate | None:
        """The candidate without the gangs at fault; None where nothing is left of it.

        Plans that move pods are not repaired: gangs share what a move frees.
        """
        each, actions = refused.round, refused.actions or ()
        if any(e.to for e in each.clearing.evictions):
            return None
        order = np.lexsort(
            (np.arange(each.problem.num_gangs), each.problem.created_ms, each.tiers.of)
        )
        keys = [gang.key for gang in each.problem.snapshot.gangs]
        rank_of = {keys[g]: i for i, g in enumerate(order.tolist())}
        drops = DropOrder(rank_of, most_single=0 if self._is_late else MOST_SINGLE_DROPS)
        with self._watch("verify"):
            found = repair_actions(
                self._snapshot,
                actions,
                violations,
                drops,
                lambda a: self._verify(each, a),
            )
        if found is None:
            return None
        judged = self._judged(first, refused.answer.decisions, found[0], refused.answer.stopped)
        answer = replace(judged.answer, engine=refused.answer.engine)
        return replace(judged, answer=answer, dropped=(*refused.dropped, *found[1]))

    def _verify(self, each: Round, actions: tuple[Action, ...]) -> list[Violation]:
        """The hard rules that some actions break."""
        before = replace(self._snapshot, bookings=each.problem.snapshot.bookings)
        return verify_actions(before, actions, self._rules)

    @property
    def _recorded(self) -> Snapshot:
        """The snapshot with what was answered to questions outside."""
        answers = self._outside.entries
        return replace(self._snapshot, answers=answers) if answers else self._snapshot

    def _actions(self, each: Round, answer: Answer) -> tuple[Action, ...]:
        placed = actions_of(each.problem, answer.decisions, each.tiers)
        # Where those that move start again their evictions say; there is nothing to bind yet.
        real = (a for a in placed if isinstance(a, Enqueue | Evict) or not is_successor(a.task))
        return self._with_cards((*self._moved, *each.clearing.evictions, *real))

    def _with_cards(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        return with_cards(self._snapshot, actions, self._rules)

    def _plan(self, chosen: Candidate, *, has_refusals: bool) -> Plan:
        each, decisions = chosen.round, _last_decisions(chosen)
        with self._watch("explain"):
            pending = pending_of(each.problem, decisions, self._policy.rules)
            pending |= self._refused(pending)
            pending |= self._reserved.told(pending)
            withheld = find_withheld(replace(self._decided(chosen), decisions=decisions), pending)
            if withheld is not None:
                pending = {key: withheld.explain(key, why) for key, why in pending.items()}
            outcome = Outcome(each.problem, decisions)
            self._opened = opened(outcome, self._policy.rules, each.tiers, pending)
        for key in _moving(each):
            pending.pop(key, None)  # its pods run, or have yet to come
        self._bound_over_all(chosen)
        certificate = self._certificate(chosen, pending)
        if has_refusals:
            limitations = (*certificate.limitations, "the verifier refused a plan")
            certificate = replace(certificate, limitations=limitations)
        if withheld is not None:
            certificate = replace(certificate, kept_idle=(withheld.sentence,))
        return Plan(chosen.actions or (), certificate, pending)

    def _refused(self, pending: Mapping[str, Reason]) -> dict[str, Reason]:
        """Why gangs wait that no eviction helps, where that says more than that room is short."""
        gangs = self._snapshot.gangs
        found = ((gangs[g].key, reason) for g, reason in self._hopeless.items())
        return {
            key: reason
            for key, reason in found
            if reason is not None and key in pending and pending[key].code in _SHORT_OF_ROOM
        }

    def _certify(self, chosen: Candidate) -> tuple[tuple[LevelResult, ...], ...]:
        """Levels over gangs, victims and nodes with bounds over all plans."""
        return chosen.sections if self._scope is None else self._scope.certify(chosen)

    def _certificate(
        self, chosen: Candidate, pending: Mapping[str, Reason] | None = None
    ) -> Certificate:
        each, answer = chosen.round, chosen.answer
        over_gangs, over_victims, over_nodes = self._certify(chosen)
        limitations = list[str]()
        if self._scope is not None:
            limitations += self._scope.limitations((*over_gangs, *over_victims))
        lent = () if chosen.lending is None else chosen.lending.results
        left_out = sorted({*chosen.dropped, *self._dropped})
        if left_out:
            limitations.append(f"gangs left out: {', '.join(left_out)}")
        unmodelled = self._policy.rules.unmodelled
        if unmodelled:
            limitations.append(f"rules that no model has: {', '.join(unmodelled)}")
        outcome = Outcome(each.problem, _last_decisions(chosen))
        levels = (*over_gangs, *over_victims, *lent, *over_nodes)
        is_optimal = all(r.status is LevelStatus.OPTIMAL for r in levels)
        return Certificate(
            levels=levels,
            engine=answer.engine,
            seconds=self._watch.total,
            stopped=answer.stopped,
            relaxed=() if is_optimal else answer.relaxed,
            shares=queue_shares(outcome, self._policy.rules, pending),
            limitations=tuple(limitations),
        )


def _last_decisions(chosen: Candidate) -> Decisions:
    """The decisions of a candidate and what is lent after them."""
    return chosen.answer.decisions if chosen.lending is None else chosen.lending.decisions


def _improves(again: Round, known: Round) -> bool:
    """Whether a round starts more important gangs than another, or is worse on no level."""
    mine, theirs = _signed_values(again), _signed_values(known)
    for level in again.levels:
        if isinstance(level, Started) and mine[level.name] != theirs.get(level.name, 0):
            return mine[level.name] > theirs.get(level.name, 0)
    return all(value >= theirs.get(name, 0) for name, value in mine.items())


def _signed_values(each: Round) -> dict[str, int]:
    """What a round reaches on its levels over gangs, larger is better."""
    pairs = zip(each.levels, each.answers[0].results, strict=True)
    return {
        level.name: result.value if level.sense is Sense.MAX else -result.value
        for level, result in pairs
        if not is_node_level(level)
    }


def _block_gangs(snapshot: Snapshot, barred: Mapping[str, Reason]) -> Snapshot:
    """The snapshot with gangs of which nothing can be decided, and why."""
    gangs = tuple(
        replace(g, problem=barred[g.key]) if g.key in barred and g.problem is None else g
        for g in snapshot.gangs
    )
    return replace(snapshot, gangs=gangs)


def _moving(each: Round) -> set[str]:
    """Keys of gangs with tasks that move in a round."""
    moving = {e.task for e in each.clearing.evictions if e.to}
    gangs = each.problem.snapshot.gangs
    return {t.gang for g in gangs for t in g.tasks if t.key in moving} if moving else set()


def _by_gang(policy: Policy) -> dict[str, GangPreemptionOptions]:
    """What a policy says about the actions that make room for whole gangs."""
    plain = GangPreemptionOptions()
    given = {name: dict(arguments) for name, arguments in policy.action_arguments}
    return {
        name: GangPreemptionOptions(
            int(each.get("maxDomains", plain.max_domains)),
            bool(each.get("allowWholeBundle", plain.allow_whole)),
        )
        for name, each in given.items()
    }


def _weighs_nodes(policy: Policy) -> bool:
    """Whether preempt is to choose nodes by who would have to go there."""
    given = {name: dict(arguments) for name, arguments in policy.action_arguments}
    return bool(given.get("preempt", {}).get("enableTopologyAwarePreemption", False))


def _most_moves(policy: Policy) -> int:
    """How many tasks may move in a session; 0 for as many as it takes."""
    given = dict(policy.action_arguments).get(CONSOLIDATE, ())
    return int(dict(given).get("maxMoves", 0))


def _has_gangs(policy: Policy) -> bool:
    return policy.rules.has("gang", Face.JOB_READY)


def _reach(policy: Policy) -> frozenset[str]:
    """Which of preempt and reclaim a policy allows: by its actions and the switches of plugins."""
    named = {_REACH[action] for action in policy.actions if action in _REACH}
    if not policy.rules.has("priority", Face.PREEMPTABLE):
        named.discard(PREEMPT)
    if not any(policy.rules.has(name, Face.RECLAIMABLE) for name in ("capacity", "proportion")):
        named.discard(RECLAIM)
    return frozenset(named)


def without_gangs(snapshot: Snapshot) -> Snapshot:
    """The snapshot for a policy that does not know gangs: every task may start alone.

    What a gang needs at least still counts where rules vote on letting it in.
    """
    gangs = tuple(replace(g, is_loose=True) for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def _is_waiting(gang: Gang) -> bool:
    """Whether nothing of a gang runs, and something of it is to."""
    if any(task.status.counts_as_ready for task in gang.tasks):
        return False
    if gang.tasks:
        return any(task.status is TaskStatus.PENDING for task in gang.tasks)
    return gang.phase in (GangPhase.PENDING, GangPhase.INQUEUE)


def find_tiers(problem: Problem, policy: Policy, heads: Sequence[int] = ()) -> Tiers:
    """Tiers by the priorities that the policy knows, of queues before those of gangs.

    `heads` are gangs that have waited for too long and whose turn has come.
    Gangs that keep the cluster alive come before both.
    """
    knows = policy.rules.find("priority") is not None
    priority = problem.priority if knows else np.zeros_like(problem.priority)
    spares = policy.rules.find("conformance") is not None
    is_system = (problem.priority >= SYSTEM_PRIORITY) & spares
    priority = np.where(is_system, problem.priority, priority)
    if policy.admission is Admission.BY_WEIGHT:
        return weighted_tier(problem, priority)
    has_order = any(policy.rules.has(name, Face.QUEUE_ORDER) for name in ("capacity", "proportion"))
    of_queue = np.append(problem.queues.priority, 0)[problem.queue_of] if has_order else None
    if of_queue is not None:
        of_queue = np.where(is_system, SYSTEM_PRIORITY, of_queue)
    return priority_tiers(problem, priority, policy.budgets.starvation_after_ms, of_queue, heads)


def _elapsed(clock: Clock | None) -> Callable[[], float] | None:
    """Seconds from now on; None without a clock."""
    if clock is None:
        return None
    begun_s = clock.monotonic()
    return lambda: clock.monotonic() - begun_s


class Stopwatch:
    """Adds up wall time by phase; without a clock everything takes no time."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._since = 0.0
        self.phase = ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        self._since, self.phase = self._now(), phase
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self.running_s
            self.phase = ""

    def _now(self) -> float:
        return self._clock.monotonic() if self._clock is not None else 0.0

    @property
    def running_s(self) -> float:
        """Seconds since the phase that runs has begun."""
        return self._now() - self._since

    @property
    def total(self) -> float:
        """Seconds of all phases so far."""
        return sum(self.seconds.values())
