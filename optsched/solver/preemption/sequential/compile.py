"""Compile the eviction problem of a gang: its possible victims and the limits on evictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.nodes.node_filters import preferred_nodes
from optsched.plugins.ordering.reservation import find_usable_nodes
from optsched.solver.model.node_masks import static_mask
from optsched.solver.preemption.candidate_victims import (
    SessionFacts,
    VictimGrouper,
    find_minimum_request,
)
from optsched.solver.preemption.sequential.blockers import Blockers
from optsched.solver.preemption.sequential.eviction_problem import (
    EvictionConstraints,
    EvictionProblem,
    claims,
)
from optsched.solver.preemption.sequential.limits import Limits
from optsched.units import PODS, amount_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionState,
        GuaranteeReserve,
    )


class _Candidates(NamedTuple):
    """Masks (V,) of possible victims and of reclaimed tasks, and limits of reclaiming queues.

    An element (queue, resource, amount) of `claims` limits the amount that the queue may gain.
    """

    leave: Bool
    reclaimed: Bool
    claims: list[tuple[int, int, int]]


class EvictionCompiler:
    """Compiles the eviction problems of a session.

    Parameters
    ----------
    reach
        Names of the actions that may evict tasks: preempt, reclaim.
    keeps_reservations
        Whether a gang that would delay a reservation may not use the reserved nodes.
    reclaiming
        Indices of gangs that may only reclaim: no task of their own queue is evicted for them.

    """

    def __init__(
        self,
        problem: Problem,
        rules: RuleSet,
        reach: frozenset[str],
        *,
        keeps_reservations: bool = True,
        reclaiming: frozenset[int] = frozenset(),
    ) -> None:
        self.problem = problem
        self.facts = SessionFacts(problem, rules)
        self.running = self.facts.running
        self.blockers = Blockers(self.facts)
        self._grouping = VictimGrouper(self.facts)
        self._limits = Limits(self.facts)
        self.rules = self._rules = rules
        self._reach = reach
        self._reclaiming = reclaiming
        self._preempts_for_growth = rules.preempts_for_growth
        self._may_have_units = np.array(
            [g.min_member > 1 or bool(g.sub_groups) for g in problem.snapshot.gangs], np.bool_
        )
        self._usable = find_usable_nodes(problem) if keeps_reservations else None
        first = preferred_nodes(problem)
        self._second = np.zeros(problem.num_nodes, np.bool_) if first is None else ~first

    # --- one eviction problem --------------------------------------------------------------------

    def list_domains(self, gang: int) -> tuple[Sequence[Bool | None], bool]:
        """Return masks of nodes to search for victims, and whether the masks cover all domains."""
        rule = self._rules.topology
        domains = None if rule is None else rule.find_eviction_domains(self.problem, gang)
        return ([None], True) if domains is None else domains

    def compile_minimum(
        self,
        gang: int,
        state: EvictionState,
        within: Bool | None = None,
        *,
        overrides_budgets: bool = False,
    ) -> EvictionProblem | None:
        """Return the eviction problem in which a gang reaches its minimum on the nodes `within`.

        If `overrides_budgets` is True, reclaims within a guarantee may override the disruption
        budgets that permit this override. Returns None if no eviction helps, if the gang has
        already reached its minimum, or if disruption budgets that permit an override protect no
        task that the gang can reclaim within a guarantee.
        """
        if not self.lacks_minimum(gang):
            return None
        if overrides_budgets and not self.may_override_budgets(gang, state, grows=False):
            return None
        candidates = self._candidates(gang, state, grows=False, overrides_budgets=overrides_budgets)
        overriding = None
        if overrides_budgets:
            overriding = self._find_covered(gang, state, grows=False) & candidates.reclaimed
        counts = self.facts.counts_of(gang)
        return self._compile(gang, state, within, candidates, counts, overriding=overriding)

    def may_override_budgets(self, gang: int, state: EvictionState, *, grows: bool) -> bool:
        """Return whether the gang may override a disruption budget that yields to guarantees.

        The gang needs capacity for its minimum, or for one more task if `grows` is True.
        """
        yielding = self.facts.floors.yielding
        if not yielding.any():
            return False
        return bool((yielding & self._find_covered(gang, state, grows=grows)).any())

    def may_claim_guarantee(self, gang: int, state: EvictionState) -> bool:
        """Return whether a gang may reclaim within a guarantee, at least for one more task."""
        if not self.problem.queues.guarantee.any():
            return False
        return bool(self._find_covered(gang, state, grows=True).any())

    def _find_covered(self, gang: int, state: EvictionState, *, grows: bool) -> Bool:
        """Return a mask (V,) of the tasks that a gang may reclaim within a guarantee."""
        least = find_minimum_request(self.problem, gang, grows=grows)
        held = self.problem.queues.summed_up(state.used)
        queue, request = int(self.problem.queue_of[gang]), self.facts.request_of(gang)
        return self.facts.floors.covered(queue, request, least, held)

    def compile_within_guarantee(
        self,
        gang: int,
        state: EvictionState,
        within: Bool | None = None,
        *,
        rest: I64 | None = None,
        overrides_budgets: bool = False,
    ) -> EvictionProblem | None:
        """Return the eviction problem of a gang that reclaims within a queue's guarantee.

        The problem does not limit how much lenders give back, so a victim gang may be larger than
        its queue's excess. Returns None if the guarantees of the queue and its ancestors do not
        cover the gang's request.

        Parameters
        ----------
        rest
            (E,) maximum number of tasks beyond the gang's minimum. The queue then gains at most the
            unused guarantees of itself and its ancestors. None if the gang reclaims for its
            minimum.
        overrides_budgets
            Whether the victims may exceed the disruption budgets that guarantees may override.

        """
        queues, grows = self.problem.queues, rest is not None
        if not queues.guarantee.any() or not (grows or self.lacks_minimum(gang)):
            return None
        if overrides_budgets and not self.may_override_budgets(gang, state, grows=grows):
            return None
        covered = self._find_covered(gang, state, grows=grows)
        if not covered.any():
            return None
        _, reclaimed, claims = self._candidates(
            gang, state, grows=grows, overrides_budgets=overrides_budgets
        )
        if grows:
            least = find_minimum_request(self.problem, gang, grows=True)
            held = queues.summed_up(state.used)
            always = (self.facts.request_of(gang) > 0).all(axis=0)
            claims = claims + [
                (a, r, int(queues.guarantee[a, r] - held[a, r]))
                for a in np.flatnonzero(self.facts.above[self.problem.queue_of[gang]]).tolist()
                for r in np.flatnonzero(always & (queues.guarantee[a] > 0)).tolist()
                if held[a, r] + least[r] <= queues.guarantee[a, r]
            ]
        victims = reclaimed & covered
        eviction = self._compile(
            gang,
            state,
            within,
            _Candidates(victims, victims, claims),
            self.facts.counts_of(gang) if rest is None else rest,
            grows=grows,
            overriding=victims if overrides_budgets else None,
        )
        if eviction is None:
            return None
        return replace(eviction, constraints=replace(eviction.constraints, lendings=()))

    def compile_growth(
        self, gang: int, state: EvictionState, rest: I64, within: Bool | None = None
    ) -> EvictionProblem | None:
        """Return the eviction problem for up to `rest` (E,) tasks beyond a gang's minimum.

        The gang's queue reclaims no more than its deserved share. Tasks of the gang's own queue are
        evicted only if the policy lets gangs preempt beyond their minimum.
        """
        candidates = self._candidates(gang, state, grows=True)
        return self._compile(gang, state, within, candidates, rest, grows=True)

    def lacks_minimum(self, gang: int) -> bool:
        """Return whether a gang runs fewer tasks than its minimum."""
        return not self.problem.shapes.is_started[self.problem.shape_of[gang]]

    def compile_exchange(
        self, gang: int, state: EvictionState, within: Bool | None = None
    ) -> EvictionProblem | None:
        """Return the eviction problem in which a gang's pending tasks replace its running tasks.

        The gang's pending tasks of the highest priority may replace its lower-priority running
        tasks.
        """
        problem, running = self.problem, self.running
        shape = int(problem.shape_of[gang])
        if "preempt" not in self._reach or not problem.shapes.is_started[shape]:
            return None
        counts = self.facts.counts_of(gang)
        mine = problem.tasks_of(gang)
        by_entry = np.repeat(np.arange(len(counts)), counts)
        priority = np.array([t.priority for t in mine], np.int64)
        top = np.array([priority[by_entry == e].min() for e in range(len(counts))], np.int64)
        own = np.flatnonzero(running.gang_of == gang)
        lower = [v for v in own.tolist() if running.tasks[v].priority < top.max()]
        leaves = np.zeros(len(running), np.bool_)
        leaves[lower] = True
        leaves &= ~self.facts.spared & ~state.evicted
        return self._compile(
            gang,
            state,
            within,
            _Candidates(leaves, np.zeros_like(leaves), []),
            np.where(top == top.max(), counts, 0),
            grows=True,
        )

    def _compile(
        self,
        gang: int,
        state: EvictionState,
        within: Bool | None,
        candidates_of_gang: _Candidates,
        most: I64,
        *,
        grows: bool = False,
        overriding: Bool | None = None,
    ) -> EvictionProblem | None:
        problem = self.problem
        shape = problem.shapes.shapes[int(problem.shape_of[gang])]
        tasks = problem.tasks_of(gang)
        candidates, reclaimed, claims = candidates_of_gang
        if not candidates.any() or not all(t.preempts for t in tasks):
            return None
        task_class = self.facts.classes_of(gang)
        request = problem.classes.request[task_class]
        roles = [e.role for e in shape.entries]
        names = sorted(set(roles))
        allowed = self._find_allowed_nodes(task_class, state)
        if within is not None:
            allowed &= within
        need_role = tuple((names.index(r), n) for r, n in shape.need_role if r in names)
        least = max(shape.need, sum(n for _, n in need_role))
        serves_all = grows or bool(shape.parts) or self._preempts_for_growth
        blocking = self.blockers.find_blocking_tasks(task_class, state, candidates, allowed)
        ceilings = self._limits.ceilings(gang, state)
        reserves = tuple(self._limits.reserves(gang, state, request))
        takes = (self.running.request[:, request.any(axis=0)] > 0).any(axis=1)
        helps: Bool = np.logical_and(takes, np.logical_or.reduce(allowed)[self.running.node_of])
        for _, blocker in blocking:
            helps[blocker.tasks] = True
        is_tied = np.array([self.blockers.is_tied(c) for c in task_class.tolist()], np.bool_)
        tied_classes = np.unique(task_class[is_tied]).tolist()
        for stakes in (s for c in tied_classes for s in self.blockers.stakes(c)):
            helps |= stakes >= 0
        helps |= self._find_relieving_tasks(most @ request, (*ceilings, *claims), reserves)
        # Tasks of a gang may have to be evicted together, so if the eviction of one candidate of a
        # gang helps, all candidates of the gang are possible victims.
        gangs = np.zeros(problem.num_gangs, np.bool_)
        gangs[self.running.gang_of[candidates & helps]] = True
        useful = candidates & gangs[self.running.gang_of]
        if not useful.any():
            return None
        others = self.blockers.find_other_placements(tied_classes, state, useful)
        numbers = np.arange(len(self.running))
        apart: list[I64 | Bool] = [np.isin(numbers, blocker.tasks) for _, blocker in blocking]
        if others is not None:
            tied_classes = sorted({*tied_classes, *others.task_class.tolist()})
            apart += (s for c in tied_classes for s in self.blockers.stakes(c))
        groups = self._grouping.groups(gang, np.flatnonzero(useful), reclaimed, apart)
        wholes = self._grouping.wholes(gang, groups, state)
        return EvictionProblem(
            gang=gang,
            is_started=grows,
            task_class=task_class,
            most=most,
            role=np.array([names.index(r) for r in roles], np.int64),
            need=0 if grows else shape.need,
            need_role=() if grows else need_role,
            most_in_all=int(most.sum()) if serves_all else least,
            request=request,
            allowed=allowed,
            future_idle=np.maximum(state.future_idle, 0),
            second=self._second,
            groups=groups,
            is_tied=is_tied,
            constraints=EvictionConstraints(
                wholes=wholes,
                limits=(
                    *self._limits.gain_limits(groups, ceilings),
                    *self._limits.gain_limits(groups, claims, is_claim=True),
                    *self._limits.floors(gang, groups, state),
                    *self._limits.budgets(groups, state, overriding),
                ),
                lendings=tuple(self._limits.lendings(gang, groups, wholes, state, grows=grows)),
                reserves=reserves,
                blocked=tuple(
                    self.blockers.group_blocked_nodes(task_class, allowed, groups, blocking)
                ),
                others=others,
            ),
        )

    def _find_allowed_nodes(self, task_class: I64, state: EvictionState) -> Bool:
        problem = self.problem
        sound: Bool = np.logical_and((state.future_idle >= 0).all(axis=1), problem.ready)
        allowed = np.tile(sound, (len(task_class), 1))
        for e, c in enumerate(task_class.tolist()):
            mask = static_mask(self.blockers.alone, self._rules.masking, c)
            if mask is not None:
                allowed[e] &= mask
            if self._usable is not None:
                allowed[e] &= self._usable[c]
        return allowed

    def _find_relieving_tasks(
        self, gain: I64, rows: Sequence[tuple[int, int, int]], reserves: Sequence[GuaranteeReserve]
    ) -> Bool:
        """Return a mask (V,) of tasks whose evictions loosen a limit that `gain` (R,) exceeds."""
        running = self.running
        helps = np.zeros(len(running), np.bool_)
        for a, r, most in rows:
            if gain[r] > most:
                below = self.problem.queues.subtree[a][running.queue_of]
                helps |= below & (running.request[:, r] > 0)
        for reserve in reserves:
            used = reserve.used.copy()
            used[reserve.queue] += gain[reserve.resource]
            if int(claims(reserve, used)[reserve.parent_of < 0].sum()) > reserve.pool:
                helps |= running.request[:, reserve.resource] > 0
        return helps

    # --- candidates ------------------------------------------------------------------------------

    def _candidates(
        self, gang: int, state: EvictionState, *, grows: bool, overrides_budgets: bool = False
    ) -> _Candidates:
        problem, running = self.problem, self.running
        queue = int(problem.queue_of[gang])
        others = (
            ~state.evicted
            & (running.gang_of != gang)
            & ~np.isin(running.gang_of, list(state.preemptors))
            & (running.queue_of >= 0)
        )
        free = others & ~self.facts.spared
        own = running.queue_of == queue
        found = np.zeros(len(running), np.bool_)
        may_preempt = "preempt" in self._reach and gang not in self._reclaiming
        if may_preempt and (self._preempts_for_growth or not grows):
            found |= free & own & (problem.priority[running.gang_of] < problem.priority[gang])
        reclaimed = np.zeros(len(running), np.bool_)
        claims: dict[tuple[int, int], int] = {}
        if "reclaim" in self._reach and self.facts.due is not None:
            requested = np.flatnonzero(self.facts.request_of(gang).any(axis=0))
            # The resources that the gang requests, no matter which of its tasks start.
            always = np.flatnonzero(self.facts.surely_requested(gang, grows=grows)).tolist()
            least = find_minimum_request(self.problem, gang, grows=grows)
            released = running.request[found].sum(axis=0)
            # Protected tasks that the gang may evict by a reclaim within a guarantee.
            held = problem.queues.summed_up(state.used)
            waived = self.facts.floors.waived(
                queue,
                self.facts.request_of(gang),
                least,
                held,
                overrides_budgets=overrides_budgets,
            )
            lent = (free | others & waived) & ~own
            if self.facts.returns_by_use:
                shared = [r for r in always if r != problem.index(PODS)]
                is_related = (running.request[:, shared] > 0).any(axis=1)
                # If one task of a unit (tasks that are evicted together) uses a requested resource,
                # all tasks of the unit may be evicted; see `Limits.lendings`.
                gangs = np.zeros(problem.num_gangs, np.bool_)
                gangs[running.gang_of[lent & is_related]] = True
                lent &= is_related | (gangs & self._may_have_units)[running.gang_of]
            claim = self._find_claim(queue, state, requested)
            for lender in np.unique(running.queue_of[lent]).tolist():
                rows = [row for row in claim if not self.facts.above[lender][row[0]]]
                is_due = any(r in always for _, r, _ in rows)
                # Victims in the gang's own queue reduce the amount that the gang has to reclaim.
                fits = all(least[r] - released[r] <= most for _, r, most in rows)
                if self.facts.reclaimable[lender] and is_due and fits:
                    reclaimed |= lent & (running.queue_of == lender)
                    claims |= {(a, r): most for a, r, most in rows}
        rows = [(a, r, most) for (a, r), most in sorted(claims.items())]
        return _Candidates(found | reclaimed, reclaimed, rows)

    def find_possible_victims(
        self, gang: int, state: EvictionState, *, overrides_budgets: bool = False
    ) -> Bool:
        """Return a mask (V,) of the running tasks that may be evicted for a gang.

        With `overrides_budgets`, reclaims within a guarantee override the disruption budgets that
        permit this override.
        """
        grows = not self.lacks_minimum(gang)
        return self._candidates(gang, state, grows=grows, overrides_budgets=overrides_budgets).leave

    def explain_kept_capacity(self, gang: int, state: EvictionState) -> Reason | None:
        """Return a reason that names a queue with capacity to which a gang is entitled.

        The queue is not reclaimable. Returns None if there is no such queue.
        """
        if "reclaim" not in self._reach or self.facts.due is None:
            return None
        least = find_minimum_request(self.problem, gang, grows=not self.lacks_minimum(gang))
        requested, queue = np.flatnonzero(least), int(self.problem.queue_of[gang])
        claim = self._find_claim(queue, state, requested)
        for other in np.flatnonzero(~self.facts.reclaimable & ~self.facts.above[queue]).tolist():
            rows = [row for row in claim if not self.facts.above[other][row[0]]]
            if rows and all(least[r] <= most for _, r, most in rows):
                for r in {r for _, r, _ in rows}:
                    held, due = int(state.used[other, r]), int(self.facts.due[other, r])
                    if held > due:
                        resource, name = self.problem.resources[r], self.problem.queues.names[other]
                        return Reason(
                            ReasonCode.DESERVED,
                            f"queue {name} holds {amount_text(resource, held)}, "
                            f"deserves {amount_text(resource, due)}, and is not reclaimable",
                        )
        return None

    def _find_claim(
        self, queue: int, state: EvictionState, requested: I64
    ) -> list[tuple[int, int, int]]:
        """Return the amounts that a queue and its ancestors may gain within their deserved shares.

        Each result is a (queue, resource, amount) tuple, for each requested resource of which the
        queue deserves a share.
        """
        assert self.facts.due is not None  # noqa: S101  the caller has checked the value
        return [
            (a, r, int(self.facts.due[a, r]) - self.facts.sum_held(a, r, state.used))
            for a in np.flatnonzero(self.facts.above[queue]).tolist()
            for r in requested.tolist()
            if self.facts.due[a, r] > 0
        ]
