"""Run custom actions in the greedy pipeline, and apply the proposals of these actions.

The proposals for a gang are applied together or not at all. Proposals must satisfy the rules, the
queue limits and the idle capacity. As in the actions `preempt` and `reclaim`, a task is evicted
only if plugins vote for its eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.custom.proposals import Displace, Place, View
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.custom.proposals import Proposal
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Nominations
    from optsched.problem.problem import Problem
    from optsched.solver.greedy.placement import PlacementState
    from optsched.solver.greedy.preemption import GreedyPreemption

_NO_EVICTIONS = "displaces pods, which has no effect with a solver: the solver selects victims"


@dataclass(slots=True)
class _GangProposal:
    """A proposal for one gang: `node_of` maps tasks to nodes, `victims` lists tasks to evict."""

    node_of: dict[int, int] = field(default_factory=dict)
    victims: list[int] = field(default_factory=list)


class CustomActionRunner:
    """Gives custom actions a view of the session, and applies their valid proposals."""

    def __init__(
        self,
        placing: PlacementState,
        evicting: GreedyPreemption | None,
        may_start: Callable[[int], bool],
        object_to: Callable[[str], None],
    ) -> None:
        """If `evicting` is None, no task may be evicted.

        `object_to` receives a message about each invalid proposal.
        """
        self._placing = placing
        self._problem: Problem = placing.problem
        self._evicting = evicting
        self._may_start = may_start
        self._object_to = object_to

    # --- view ------------------------------------------------------------------------------------

    def view(self, gangs: Sequence[int]) -> View:
        """Return a view of the session for custom actions, with `gangs` in the given order."""
        problem, placing = self._problem, self._placing
        names = [node.name for node in problem.snapshot.nodes]
        free = np.maximum(placing.table.idle, 0).tolist()
        left = {g: tuple(problem.tasks[t] for t in self._free_tasks(g)) for g in gangs}
        here = [problem.snapshot.gangs[gang] for gang in gangs]
        evicting = self._evicting
        evicted = set() if evicting is None else evicting.log.evicted
        running = () if evicting is None else evicting.running.tasks
        return View(
            snapshot=problem.snapshot,
            gangs=tuple(here),
            waiting=MappingProxyType({g.key: left[i] for i, g in zip(gangs, here, strict=True)}),
            free=MappingProxyType(
                {
                    name: MappingProxyType(dict(zip(problem.resources, row, strict=True)))
                    for node, name, row in zip(problem.snapshot.nodes, names, free, strict=True)
                    if node.ready
                }
            ),
            placed=self._names(placing.node_of),
            nominated=self._names(placing.nominated),
            leaving=frozenset(running[v].key for v in evicted),
        )

    def _names(self, node_of: I64) -> Mapping[str, str]:
        tasks, nodes = self._problem.tasks, self._problem.snapshot.nodes
        at = np.flatnonzero(node_of >= 0).tolist()
        return MappingProxyType({tasks[t].key: nodes[node_of[t]].name for t in at})

    def _free_tasks(self, gang: int) -> list[int]:
        start = self._problem.task_start
        mine = np.arange(start[gang], start[gang + 1])
        taken = (self._placing.node_of[mine] >= 0) | (self._placing.nominated[mine] >= 0)
        free: list[int] = mine[~taken].tolist()
        return free

    # --- proposals -------------------------------------------------------------------------------

    def carry_out(self, name: str, gangs: Sequence[int], proposals: Iterable[Proposal]) -> None:
        """Apply a custom action's proposals gang by gang, sorted by each gang's first proposal."""
        running = () if self._evicting is None else self._evicting.running.tasks
        victims = {task.key: v for v, task in enumerate(running)}
        reader = _ProposalReader(self._problem, gangs, self._free_tasks, victims)
        for proposal in proposals:
            idle = isinstance(proposal, Displace) and self._evicting is None
            if wrong := _NO_EVICTIONS if idle else reader.read(proposal):
                self._object_to(wrong)
        is_overused, queue_of = self._placing.plugins.is_overused, self._problem.queue_of
        for gang, proposed in reader.by_gang.items():
            if not proposed.node_of:
                continue
            if proposed.victims:
                self._evict_for_gang(gang, proposed, name)
            elif not is_overused(int(queue_of[gang])) and self._may_start(gang):
                self._placing.place_nominated(gang, self._count_by_node(gang, proposed))

    def _count_by_node(self, gang: int, proposed: _GangProposal) -> Nominations:
        problem = self._problem
        number = int(problem.shape_of[gang])
        first, entries = int(problem.shapes.start[number]), problem.shapes.shapes[number].entries
        offsets = problem.shapes.offset[first : first + len(entries)]
        counts: dict[tuple[int, int], int] = {}
        for task, node in proposed.node_of.items():
            at = task - int(problem.task_start[gang])
            nomination = (int(np.searchsorted(offsets, at, side="right")) - 1, node)
            counts[nomination] = counts.get(nomination, 0) + 1
        return tuple((entry, node, k) for (entry, node), k in sorted(counts.items()))

    def _evict_for_gang(self, gang: int, proposed: _GangProposal, name: str) -> None:
        """Evict all proposed victims and nominate all proposed nodes, or change nothing."""
        evicting = self._evicting
        if evicting is None or evicting.is_losing_tasks(gang):
            return
        if not evicting.starving(np.array([gang], np.int64)):
            return
        nominations = self._count_by_node(gang, proposed)
        with evicting.ignoring_possible_victims():
            if not self._are_victims_allowed(evicting, gang, nominations, proposed.victims):
                return
            for v in proposed.victims:
                if not evicting.can_evict(v, gang):
                    evicting.rollback(gang)
                    return
                evicting.log.evict(v)
            are_placed = all(
                not evicting.is_blocked((entry, node), node)
                and self._placing.nominate_one(gang, entry, node)
                for entry, node, number in nominations
                for _ in range(number)
            )
            if are_placed and self._placing.cursor(gang).has_minimum:
                evicting.commit(gang, name)
            else:
                evicting.rollback(gang)

    def _are_victims_allowed(
        self,
        evicting: GreedyPreemption,
        gang: int,
        nominations: Nominations,
        victims: Sequence[int],
    ) -> bool:
        """Return whether plugins let a gang preempt or reclaim every proposed victim."""
        plugins, queue = evicting.plugins, int(self._problem.queue_of[gang])
        classes = {self._placing.class_of(gang, entry) for entry, _, _ in nominations}
        near, far = evicting.tasks_of_other_gangs(gang), evicting.tasks_of_other_queues(gang)
        if any(far[victims]) and not all(plugins.may_reclaim(queue, c) for c in classes):
            return False
        order = evicting.sort_victims(np.array(victims, np.int64), queue)
        entitled: set[int] = set()
        for task_class in classes:
            entitled.update(
                plugins.find_allowed_victims(PREEMPT, gang, task_class, order[near[order]]).tolist()
            )
            entitled.update(
                plugins.find_allowed_victims(RECLAIM, gang, task_class, order[far[order]]).tolist()
            )
        return entitled.issuperset(victims)


class _ProposalReader:
    """Collects proposals by gang, and returns a message for each invalid proposal."""

    def __init__(
        self,
        problem: Problem,
        gangs: Sequence[int],
        free_tasks: Callable[[int], Iterable[int]],
        victims: Mapping[str, int],
    ) -> None:
        self.by_gang: dict[int, _GangProposal] = {}
        found: list[Gang] = [problem.snapshot.gangs[g] for g in gangs]
        self._gang_by_key = {f.key: g for g, f in zip(gangs, found, strict=True)}
        free = ((t, g) for g in gangs for t in free_tasks(g))
        self._task_by_key = {problem.tasks[t].key: (t, g) for t, g in free}
        nodes = problem.snapshot.nodes
        self._node_by_name = {n.name: i for i, n in enumerate(nodes) if n.ready}
        self._victims = victims

    def read(self, proposal: Proposal) -> str:
        """Add a proposal to its gang's proposals; return an error message, or "" if it is valid."""
        if isinstance(proposal, Place):
            if proposal.task not in self._task_by_key:
                return f"places {proposal.task}, which is not a task in `waiting`"
            if proposal.node not in self._node_by_name:
                return f"places {proposal.task} on {proposal.node}, which is not a ready node"
            task, gang = self._task_by_key[proposal.task]
            proposed = self.by_gang.setdefault(gang, _GangProposal())
            if task in proposed.node_of:
                return f"places {proposal.task} twice"
            proposed.node_of[task] = self._node_by_name[proposal.node]
            return ""
        if proposal.gang not in self._gang_by_key:
            return f"displaces {proposal.task} for {proposal.gang}, which is not a gang in `gangs`"
        if proposal.task not in self._victims:
            return f"displaces {proposal.task}, which is not a running task"
        proposed = self.by_gang.setdefault(self._gang_by_key[proposal.gang], _GangProposal())
        if self._victims[proposal.task] not in proposed.victims:
            proposed.victims.append(self._victims[proposal.task])
        return ""
