"""The greedy pipeline, which runs the actions of a policy one after another.

The gang order and the placements are those of Volcano (`pkg/scheduler/actions`) except for ties.
The greedy pipeline breaks ties by creation time and name; Volcano breaks ties at random. The greedy
pipeline calls plugins once per task class; Volcano calls plugins once per task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.snapshot import GangPhase
from optsched.plugins.custom.isolation import Faults
from optsched.plugins.eviction.entitled import GANG_PREEMPT, GANG_RECLAIM, PREEMPT, RECLAIM
from optsched.plugins.gangs.enqueueing import least_resources
from optsched.plugins.ordering.fifo import NO_GANG, FifoLines
from optsched.problem.arrays import without_marked
from optsched.problem.decisions import Decisions
from optsched.problem.running import running_tasks
from optsched.solver.greedy.custom_actions import CustomActionRunner
from optsched.solver.greedy.gang_preemption import GangPreemption, GangPreemptionOptions
from optsched.solver.greedy.placement import PlacementState
from optsched.solver.greedy.preemption import GreedyPreemption
from optsched.solver.greedy.queue_order import GangClasses, GangOrder, QueueOrder
from optsched.solver.greedy.topology import TopologyPlacement
from optsched.solver.model.node_masks import find_lacking_shapes
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optsched.plugins.custom.proposals import Proposer
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Nominations
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangRow

ENQUEUE, ALLOCATE, BACKFILL = "enqueue", "allocate", "backfill"


@dataclass(frozen=True, eq=False)
class GreedyOptions:
    """Options of the greedy pipeline.

    Attributes
    ----------
    actions
        Names of the actions in execution order; unknown names are skipped.
    tier_of
        (G,) rank of each gang; rules order only gangs of equal rank. None if rules order all gangs.
    nominations
        Maps a gang index to the gang's nominations. Gangs with nominations are placed first, in the
        order of the mapping.
    by_gang
        Options of the actions `gangpreempt` and `gangreclaim`, by action name.
    weighs_nodes
        Whether `preempt` selects the node with the cheapest victims, instead of the node with the
        highest score.
    gated
        Whether a gang in phase Pending is placed only after the action `enqueue` admits it, even if
        its pods exist. If `gated` is False, gangs in phase Pending are placed too, and no task is
        evicted.
    late
        Starving gangs that are not enqueued. The action `enqueue` considers these gangs before all
        other gangs, in the given order. If plugins refuse such a gang, its request is reserved:
        plugins count the gang as enqueued. The gang must fit into the empty cluster and the
        capabilities of its queues. Only the first such gang gets this reservation.
    is_late
        Returns True once the time limit of `preempt` and `reclaim` is over. `preempt` and `reclaim`
        then stop; earlier evictions stay valid.

    """

    actions: tuple[str, ...] = (ENQUEUE, ALLOCATE, BACKFILL)
    tier_of: I64 | None = None
    nominations: Mapping[int, Nominations] = field(default_factory=dict)
    by_gang: Mapping[str, GangPreemptionOptions] = field(default_factory=dict)
    weighs_nodes: bool = False
    gated: bool = True
    late: Sequence[int] = ()
    proposers: Sequence[Proposer] = ()
    faults: Faults = field(default_factory=Faults)
    is_late: Callable[[], bool] = lambda: False


def run_greedy(problem: Problem, rules: RuleSet, options: GreedyOptions) -> Decisions:
    """Run the actions of a policy on a problem and return the decisions."""
    pipeline = _Pipeline(problem, rules, options)
    steps: dict[str, Callable[[], None]] = {
        ENQUEUE: pipeline.enqueue,
        ALLOCATE: pipeline.allocate,
        BACKFILL: pipeline.backfill,
        PREEMPT: pipeline.preempt,
        RECLAIM: pipeline.reclaim,
        GANG_PREEMPT: pipeline.gang_preempt,
        GANG_RECLAIM: pipeline.gang_reclaim,
    }
    for proposer in options.proposers:
        steps[proposer.name] = partial(pipeline.propose, proposer)
    for action in options.actions:
        if action == ALLOCATE:
            if ENQUEUE not in options.actions:
                pipeline.enqueue_all()
            pipeline.place_nominated_gangs()
        if action in steps:
            steps[action]()
    return pipeline.decisions()


def find_start(problem: Problem, rules: RuleSet, gang: int) -> I64 | None:
    """Return the nodes (T,) on which a gang starts if no other gang is placed before it.

    Returns None if the gang cannot start, for example because its queue is overused.
    """
    pipeline = _Pipeline(problem, rules, GreedyOptions(gated=False))
    return pipeline.find_start(gang)


def order_gangs(
    problem: Problem, rules: RuleSet, gangs: Iterable[int], tier_of: I64 | None = None
) -> list[int]:
    """Return the gangs in the order of `allocate`, as if `allocate` placed none of the gangs."""
    return list(_Pipeline(problem, rules, GreedyOptions(tier_of=tier_of)).iterate_gangs(gangs))


class _Pipeline:
    def __init__(self, problem: Problem, rules: RuleSet, options: GreedyOptions) -> None:
        self._problem = problem
        self._options = options
        self._rules = rules
        self._placing = PlacementState(problem, rules)
        self._domains = TopologyPlacement(self._placing, rules)
        self._plugins = self._placing.plugins
        self._pending = problem.gang_columns.flags(_is_pending)
        self._enqueued = np.zeros(problem.num_gangs, np.bool_)
        self._refused = np.zeros(problem.num_gangs, np.bool_)
        self._closed_queues: set[int] = set()
        self._nominated: set[int] = set()
        ledger = self._placing.ledger
        self._fifo = FifoLines(problem, lambda g: ledger.gang_placed[g] > 0)
        self._gang_classes = GangClasses(self._placing, rules)
        self._order = GangOrder(problem, self._plugins, self._gang_classes, options.tier_of)

    def _lines(self, gangs: Iterable[int]) -> Iterator[QueueOrder]:
        plugins = self._plugins
        for wave in plugins.waves(gangs):
            reach = plugins.queue_key_reach
            lines = QueueOrder(self._problem, plugins.queue_key, self._order, reach)
            lines.fill(wave)
            yield lines

    def iterate_gangs(self, gangs: Iterable[int]) -> Iterator[int]:
        for lines in self._lines(gangs):
            yield from lines.iterate_gangs(lambda _: False)

    def _serve(self, gangs: Iterable[int], is_closed: Callable[[int], bool]) -> None:
        """Place gangs in queue order; one turn places a gang's minimum, later turns add tasks."""
        placing = self._placing
        for lines in self._lines(gangs):
            for gang in lines.iterate_gangs(is_closed, self._gang_classes):
                if self._waits_for_earlier_gang(gang):
                    continue
                if placing.cursor(gang).has_minimum and self._domains.has_groups(gang):
                    number = self._problem.num_tasks if lines.is_last_gang(gang) else 1
                    is_served = self._grow(gang, number)
                else:
                    before = placing.changes
                    is_served = self._start(gang)
                    if not is_served and placing.changes == before:
                        self._gang_classes.note_failure(gang)
                if is_served and placing.cursor(gang).has_untried_tasks:
                    lines.rejoin(gang)

    # --- enqueue ---------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Enqueue the pending gangs that plugins admit, so that the job controller creates pods."""
        waiting = self._waiting()
        late = [gang for gang in self._options.late if gang in waiting]
        ledger, problem = self._placing.ledger, self._problem
        for gang in late:
            if self._enqueue_gang(gang) or ledger.waits_for_late:
                continue
            # A gang can fit only if its minimum is within the cluster total and the capabilities of
            # its queue and ancestors.
            least, queues = least_resources(problem)[gang], problem.queues
            above = queues.subtree[:, problem.queue_of[gang]]
            if (least <= queues.capability[above]).all() and (least <= problem.total).all():
                self._plugins.record_enqueued(gang)
                ledger.waits_for_late = True
        for gang in self.iterate_gangs(gang for gang in waiting if gang not in late):
            self._enqueue_gang(gang)

    def enqueue_all(self) -> None:
        """Enqueue all pending gangs, as Volcano's `allocate` does without the action `enqueue`.

        See `organizeJobWorksheet` in Volcano's `allocate.go`.
        """
        self._enqueued[self._waiting()] = True

    def _waiting(self) -> list[int]:
        """Return the valid gangs that are in phase Pending and in an open queue."""
        closed, gangs = self._problem.queues.closed, self._problem.snapshot.gangs
        return [
            i
            for i in np.flatnonzero(self._pending).tolist()
            if gangs[i].problem is None
            and (queue := int(self._problem.queue_of[i])) >= 0
            and queue not in closed
        ]

    def _enqueue_gang(self, gang: int) -> bool:
        """Enqueue a gang if plugins admit it; return whether it is enqueued.

        If a gang of a FIFO queue is refused, no later gang of the queue is enqueued.
        """
        queue, one = int(self._problem.queue_of[gang]), self._problem.snapshot.gangs[gang]
        # Plugins vote only on gangs with `minResources`; `min_usage` is the part of `minResources`
        # that only ResourceQuotas limit.
        has_least = bool(one.min_resources or one.min_usage)
        if queue not in self._closed_queues and (not has_least or self._plugins.may_enqueue(gang)):
            self._enqueued[gang] = True
            self._plugins.record_enqueued(gang)
            return True
        self._refused[gang] = True
        if self._problem.snapshot.queues[queue].is_fifo:
            self._closed_queues.add(queue)
        return False

    # --- nominations -----------------------------------------------------------------------------

    def place_nominated_gangs(self) -> None:
        """Place gangs on their nominated nodes, or keep nominations while the nodes are in use."""
        for gang, nominations in self._options.nominations.items():
            if self._placing.place_nominated(gang, nominations):
                continue
            if self._placing.reserve_nominated(gang, nominations):
                self._nominated.add(gang)

    # --- allocate --------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Place gangs in queue order; one turn places a gang's minimum, later turns add tasks."""
        gangs = self._candidates()
        problem, placing, classes = self._problem, self._placing, self._gang_classes
        # Skip gang classes that cannot start on idle or future idle capacity. `allocate` only
        # reduces idle capacity, so these gang classes cannot start later either.
        chosen = classes.one_per_class(gangs)
        guided = np.array([self._domains.is_guided(g) for g in chosen.tolist()], np.bool_)
        chosen = chosen[~guided]
        idle = (placing.table if placing.later is None else placing.later).idle
        lacking: set[int] = set()
        for queue in np.unique(problem.queue_of[chosen]).tolist():
            mine = chosen[problem.queue_of[chosen] == queue]
            shapes, which = np.unique(problem.shape_of[mine], return_inverse=True)
            most_tasks = partial(self._plugins.max_tasks, queue)
            counts = problem.shapes.count
            lacks = find_lacking_shapes(problem, shapes, idle, counts, most_tasks)
            lacking.update(classes.class_of[g] for g in mine[lacks[which]].tolist())
        served: list[int] = gangs.tolist()
        if lacking:
            served = [g for g in served if classes.class_now(g) not in lacking]
        self._serve(served, self._plugins.is_overused)

    def _candidates(self) -> I64:
        gangs = self._problem.open_gangs
        if self._options.gated and ENQUEUE in self._options.actions:
            waits = self._pending & ~self._enqueued
            if waits[gangs].any():
                listed = self._problem.snapshot.gangs
                implicit = [listed[g].is_implicit for g in gangs.tolist()]
                gangs = gangs[~waits[gangs] | np.array(implicit, np.bool_)]
        ledger = self._placing.ledger
        away = {g for g in ledger.touched if ledger.gang_evicted[g]} | self._nominated
        return without_marked(gangs, away, self._problem.num_gangs)

    def _waits_for_earlier_gang(self, gang: int) -> bool:
        """Return whether an earlier gang of the same FIFO queue is not placed yet."""
        return self._fifo.ahead(gang) != NO_GANG

    def _grow(self, gang: int, number: int) -> bool:
        """Place up to `number` more tasks of a gang; retry with half as many if a rule is violated.

        Returns whether any task is placed.
        """
        placing = self._placing
        placer = self._domains if self._domains.is_guided(gang) else placing
        grown = placer.grow(gang, number)
        if grown and self._plugins.all_rules_hold(gang):
            placing.commit()
            return True
        placing.undo(gang)
        fewer = min(grown, number) // 2  # A placed subgroup may have more than `number` tasks.
        return fewer > 0 and self._grow(gang, fewer)

    def _start(self, gang: int) -> bool:
        """Start a gang and return True; otherwise, try to nominate nodes and return False."""
        placing = self._placing
        if not self._plugins.may_start(gang):
            return False
        if self._domains.is_guided(gang):
            return self._domains.start(gang)
        if placing.could_start(gang):
            placing.start(gang)
            if placing.cursor(gang).has_minimum and self._plugins.all_rules_hold(gang):
                placing.commit()
                return True
        placing.undo(gang)
        later = placing.later
        if later is not None:
            placing.start(gang)
            placing.nominate_rest(gang, later)
            if placing.cursor(gang).has_minimum and self._plugins.all_rules_hold(gang):
                placing.commit_nominations(later)
            else:
                placing.undo(gang)
        return False

    def find_start(self, gang: int) -> I64 | None:
        if self._plugins.is_overused(int(self._problem.queue_of[gang])) or not self._start(gang):
            return None
        return self._placing.node_of

    # --- preempt, reclaim ------------------------------------------------------------------------

    def preempt(self) -> None:
        # If every gang is placed, skip the slow search for victims.
        if self._options.gated and len(short := self._find_waiting()):
            self._evicting.preempt(short)

    def reclaim(self) -> None:
        if not self._options.gated or not len(running_tasks(self._problem)):
            return
        if len(short := self._find_waiting()):
            self._evicting.reclaim(short, self._plugins.is_overused)

    def gang_preempt(self) -> None:
        if self._options.gated:
            how = self._options.by_gang.get(GANG_PREEMPT, GangPreemptionOptions())
            self._gang_preemption.preempt(self._find_waiting(), how)

    def gang_reclaim(self) -> None:
        if self._options.gated:
            how = self._options.by_gang.get(GANG_RECLAIM, GangPreemptionOptions())
            self._gang_preemption.reclaim(self._find_waiting(), self._plugins.is_overused, how)

    @cached_property
    def _gang_preemption(self) -> GangPreemption:
        return GangPreemption(self._evicting, self._domains, self._rules)

    def _find_waiting(self) -> I64:
        short = self._placing.with_untried_tasks(self._candidates())
        if self._fifo.is_empty:
            return short
        is_next = [not self._waits_for_earlier_gang(g) for g in short.tolist()]
        return short[np.array(is_next, np.bool_)]

    @cached_property
    def _evicting(self) -> GreedyPreemption:
        return GreedyPreemption(
            self._placing,
            self._order,
            self._gang_classes,
            weighs=self._options.weighs_nodes,
            is_late=self._options.is_late,
        )

    # --- custom actions --------------------------------------------------------------------------

    def propose(self, proposer: Proposer) -> None:
        faults = self._options.faults
        proposing = CustomActionRunner(
            self._placing,
            self._evicting if self._options.gated else None,
            self._can_be_placed,
            lambda what: proposer.record_invalid(what, faults),
        )
        untried: list[int] = self._placing.with_untried_tasks(self._candidates()).tolist()
        gangs = list(self.iterate_gangs(untried))
        proposals = proposer.list_proposals(proposing.view(gangs), faults)
        proposing.carry_out(proposer.name, gangs, proposals)

    def _can_be_placed(self, gang: int) -> bool:
        """Return whether plugins and the order of a FIFO queue let a gang start or grow."""
        ready = self._placing.cursor(gang).has_minimum
        return not self._waits_for_earlier_gang(gang) and (ready or self._plugins.may_start(gang))

    # --- backfill --------------------------------------------------------------------------------

    def backfill(self) -> None:
        """Place gangs whose pods request no resources, even in overused queues.

        If only some pods of a gang request no resources, `allocate` places the whole gang, as in
        Volcano.
        """
        problem = self._problem
        but_pods = [i for i, name in enumerate(problem.resources) if name != PODS]
        requested = problem.classes.request[:, but_pods].sum(axis=1)
        is_requesting = np.zeros(problem.num_gangs, np.bool_)
        is_requesting[problem.gang_of[requested[problem.task_class] > 0]] = True
        candidates = self._candidates()
        empty = candidates[~is_requesting[candidates]]
        untried: list[int] = self._placing.with_untried_tasks(empty).tolist()
        self._serve(untried, lambda _: False)

    def decisions(self) -> Decisions:
        has_tasks = np.diff(self._problem.task_start) > 0
        kept_out = self._refused if self._options.gated else self._refused & ~has_tasks
        placing = self._placing
        evictions = tuple(self._evicting.log.committed) if "_evicting" in vars(self) else ()
        return Decisions(placing.node_of, placing.nominated, self._enqueued, kept_out, evictions)


def _is_pending(row: GangRow) -> bool:
    return row.gang.phase is GangPhase.PENDING
