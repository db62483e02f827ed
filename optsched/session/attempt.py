"""One attempt of a session: its input with reservations, and the evaluation of actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Enqueue, Evict
from optsched.cluster.relocation import is_successor, with_terminating
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.devices.numa_aware import NumaAware
from optsched.plugins.eviction.moves import SHUFFLE
from optsched.plugins.objectives.levels import build_levels
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World
from optsched.problem.compile import compile_problem
from optsched.session.backfill_reservations import Reserved, reserve
from optsched.session.candidates import Candidate, Round
from optsched.session.decompile import actions_of, decisions_of
from optsched.session.lending import without_lending
from optsched.session.session_input import find_tiers
from optsched.solver.portfolio import evaluate_greedy
from optsched.solver.preemption.sequential.stage import EvictionPlan, count_victims
from optsched.solver.shuffle import apply_moves, shuffle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.dra_devices import DeviceGrant
    from optsched.cluster.node_resources import GpuShare, NumaPart
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.decisions import Decisions
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.session.session_input import SessionInput
    from optsched.solver.portfolio import Solution


@dataclass(frozen=True, eq=False)
class Attempt:
    """The input for one attempt of a session: snapshot, policy and reservations.

    Attributes
    ----------
    before
        The snapshot for the verifier, with reservations and before any eviction.
    reserved
        The reservations, and the snapshot from which each round of the attempt starts.
    shuffled
        Evictions by the action `shuffle`; in the snapshot of `reserved`, their pods are
        terminating.

    """

    session: SessionInput
    before: Snapshot
    reserved: Reserved
    shuffled: tuple[Evict, ...] = ()

    def find_tiers(self, problem: Problem) -> Tiers:
        """Return each gang's tier (G,); gangs whose reservation starts immediately come first."""
        return find_tiers(problem, self.session.policy, self.reserved.heads(problem))

    def list_actions(self, each: Round, solution: Solution) -> tuple[Action, ...]:
        """Return all actions of a solution, with the devices allocated to the placed pods."""
        placed = actions_of(each.problem, solution.decisions, each.tiers)
        evictions = each.clearing.evictions
        known = {eviction.task for eviction in (*self.shuffled, *evictions)}
        real = (
            a
            for a in placed
            if isinstance(a, Enqueue)
            # An eviction that moves a pod names the new node, because the replacement pod cannot be
            # bound yet.
            or (a.task not in known if isinstance(a, Evict) else not is_successor(a.task))
        )
        return self.with_devices((*evictions, *real))

    def with_actions(self, candidate: Candidate) -> Candidate:
        """Return the candidate with its list of actions, which is computed if it is missing."""
        if candidate.actions is not None:
            return candidate
        return replace(candidate, actions=self.list_actions(candidate.round, candidate.solution))

    def with_devices(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """Return the evictions of `shuffle`, then `actions` with devices for the placed pods."""
        return with_cards(self.before, (*self.shuffled, *actions), self.session.rules)

    def verify(self, each: Round, actions: tuple[Action, ...]) -> list[Violation]:
        """Return the violations of hard rules in a plan's actions."""
        return verify_actions(self._judged_in(each), actions, self.session.rules)

    def verify_start(self, each: Round, solution: Solution) -> list[Violation]:
        """Return the violations of hard rules in the start solution of a search.

        A start solution must not contain loans, because a search treats every gang in it as
        admitted.
        """
        rules, actions = without_lending(self.session.rules), self.list_actions(each, solution)
        return verify_actions(self._judged_in(each), actions, rules)

    def _judged_in(self, each: Round) -> Snapshot:
        """Return the snapshot for the verifier, with the reservations of the given round."""
        reservations = each.problem.snapshot.reservations
        if reservations == self.before.reservations:
            return self.before
        return replace(self.before, reservations=reservations)

    def evaluate(
        self,
        actions: tuple[Action, ...],
        previous: Problem | None,
        base: Decisions | None = None,
        stopped: str = "",
    ) -> Candidate:
        """Return a candidate with the given actions and with the value of each objective level.

        Parameters
        ----------
        previous
            An earlier problem, which speeds up compiling and does not change the result.
        base
            The decisions that determine which gangs are enqueued, or None to derive this from the
            actions.
        stopped
            Why the search for the actions ended.

        """
        policy, start = self.session.policy, self.reserved.snapshot
        evictions = tuple(a for a in actions if isinstance(a, Evict) and a not in self.shuffled)
        problem = compile_problem(with_terminating(start, {e.task for e in evictions}), previous)
        tiers = self.find_tiers(problem)
        levels = build_levels(problem, policy.rules, tiers, policy.levels)
        decisions = decisions_of(problem, actions)
        if base is not None:
            decisions = replace(decisions, enqueued=base.enqueued, refused=base.refused)
        solution = evaluate_greedy(problem, decisions, levels, stopped)
        clearing = EvictionPlan(evictions, results=count_victims(start, evictions))
        return Candidate(Round(problem, tiers, levels, (solution,), clearing), solution, actions)


def begin_attempt(session: SessionInput, previous: Problem | None) -> Attempt:
    """Run `shuffle` if the policy lists it, then reserve capacity for gangs that wait too long."""
    policy, start = session.policy, session.snapshot
    shuffled: tuple[Evict, ...] = ()
    if SHUFFLE in policy.actions:
        with session.clock.measure("shuffle"):
            shuffled = shuffle(compile_problem(start, previous), policy.rules)
            start = apply_moves(start, shuffled)
    with session.clock.measure("reserve"):
        reserved = reserve(start, policy, previous, is_ordered=session.is_optimised)
    before = reserved.snapshot
    if shuffled:
        before = replace(session.snapshot, reservations=before.reservations)
    return Attempt(session, before, reserved, shuffled)


# --- device allocations --------------------------------------------------------------------------


def with_cards(
    snapshot: Snapshot, actions: tuple[Action, ...], rules: RuleSet
) -> tuple[Action, ...]:
    """Add to each allocation the GPU shares, claimed devices and NUMA cells of its task."""
    world = World(snapshot, actions)
    shared_gpus: dict[str, tuple[GpuShare, ...]] = {}
    devices: dict[str, tuple[DeviceGrant, ...]] = {}
    numa: dict[str, tuple[NumaPart, ...]] = {}
    for active in rules.active:
        if isinstance(active.rule, DeviceShare):
            shared_gpus = active.rule.allocate_devices(world)
        elif isinstance(active.rule, DeviceClaims):
            devices = active.rule.grant_devices(world)
        elif isinstance(active.rule, NumaAware):
            numa = active.rule.plan_cells(world)
    if not shared_gpus and not devices and not numa:
        return actions
    return tuple(
        replace(
            a,
            shared_gpus=shared_gpus.get(a.task, ()),
            devices=devices.get(a.task, ()),
            numa=numa.get(a.task, ()),
        )
        if isinstance(a, Allocate)
        else a
        for a in actions
    )
