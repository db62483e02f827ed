"""Place gangs with a network topology, and gangs with subgroups.

For each gang, the domains of the lowest tier are tried first. Within a tier, domains that fit the
entire gang come first, then domains with the gang's recorded HyperNode, then domains of higher
score. The gang starts in the first domain that fits its minimum (Volcano `allocateForJob`). Without
a network topology, a subgroup gets nodes for all tasks that it needs to start, or for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Switch
from optsched.plugins.gangs.gang import SubGroups
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.problem.arrays import UNPLACED
from optsched.problem.formulation import candidates
from optsched.problem.shapes import NO_PART
from optsched.problem.topology import NOWHERE
from optsched.problem.topology_units import entry_tasks, residents
from optsched.solver.greedy.nodes import NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangShape
    from optsched.problem.topology import Bound, Bounds
    from optsched.solver.greedy.nodes import NodeTable
    from optsched.solver.greedy.placement import Cursor, PlacementState

MOST_TRIED = 128
"""Maximum number of domains to try per tier for a gang or subgroup."""

Where = tuple["NodeTable", "I64"]


@dataclass(frozen=True, eq=False)
class _DomainNodes:
    """A domain in which tasks must be placed; `nodes` (N,) is its mask, or None for all nodes."""

    bound: Bound | None = None
    domain: int = NOWHERE
    nodes: Bool | None = None


_CLUSTER = _DomainNodes()


class TopologyPlacement:
    """Places gangs that have a network topology or subgroups."""

    def __init__(self, placing: PlacementState, rules: RuleSet) -> None:
        self._placing = placing
        self._problem = placing.problem
        topology, groups = rules.find_rule(NetworkTopology.name), rules.find_rule(SubGroups.name)
        binding = topology is not None and topology.binds
        rule = topology.rule if binding and topology is not None else None
        self._rule = rule if isinstance(rule, NetworkTopology) else None
        self._scores = topology is not None and Switch.HYPERNODE_ORDER in topology.switches
        self._nears = topology is not None and Switch.NODE_ORDER in topology.switches
        self._has_groups = groups is not None and groups.binds
        problem = placing.problem
        pairs = zip(problem.shapes.shapes, problem.topology.bounds, strict=True)
        guided = [
            bool(self._has_groups and s.parts) or bool(self._rule and b.existing) for s, b in pairs
        ]
        gangs = problem.open_gangs
        chosen = np.array([*guided, False], np.bool_)[problem.shape_of[gangs]]
        self._guided = frozenset(gangs[chosen].tolist())

    def is_guided(self, gang: int) -> bool:
        """Return whether a gang has a network topology or subgroups that the policy respects."""
        return gang in self._guided

    def has_groups(self, gang: int) -> bool:
        """Return whether a gang has started its minimum number of subgroups."""
        return gang not in self._guided or self._work(gang).has_groups

    # --- starting --------------------------------------------------------------------------------

    def start(self, gang: int) -> bool:
        """Start a gang and return True; otherwise, nominate nodes if possible and return False."""
        placing = self._placing
        now = (placing.table, placing.node_of)
        for _ in self._try_domains(gang, [now]):
            if placing.plugins.all_rules_hold(gang):
                placing.commit()
                return True
            placing.undo(gang)
        if placing.later is not None and self.nominate(gang, placing.later):
            placing.commit_nominations(placing.later)
        return False

    def nominate(self, gang: int, later: NodeTable | None = None) -> bool:
        """Nominate nodes with idle or future idle capacity for a gang; return whether it fits.

        `later` is the node table of future idle capacity; None means `PlacementState.future`.
        """
        placing = self._placing
        future = placing.future if later is None else later
        stages = [(placing.table, placing.node_of), (future, placing.nominated)]
        return any(placing.plugins.all_rules_hold(gang) for _ in self._try_domains(gang, stages))

    def _try_domains(self, gang: int, stages: Sequence[Where]) -> Iterator[_DomainNodes]:
        """Place a gang in one possible domain after another; yield each domain where it can start.

        The placement in a domain is undone before the next domain is tried.
        """
        work = self._work(gang)
        for domain_nodes in work.candidate_domains(stages[-1][0]):
            for where in stages:
                work.cursor.failed.clear()
                if not (work.cursor.has_minimum and work.has_groups):
                    work.fill(domain_nodes, where)
            if work.cursor.has_minimum and work.has_groups:
                yield domain_nodes
            if self._placing.mark:
                self._placing.undo(gang)

    # --- growing ---------------------------------------------------------------------------------

    def grow(self, gang: int, number: int) -> int:
        """Place up to `number` more tasks, or an entire subgroup; return how many were placed."""
        work = self._work(gang)
        where = (self._placing.table, self._placing.node_of)
        placed = 0
        for run in work.cursor.runs:
            entry, left = run
            if placed >= number or not left or entry in work.cursor.failed:
                continue
            if work.is_unstarted(work.sub_group_of(entry)):
                placed += work.open_part(work.sub_group_of(entry), where)
            if run[1] and placed < number and entry not in work.cursor.failed:
                placed += work.extend(run, min(run[1], number - placed), where)
        return placed

    def _work(self, gang: int) -> _GangPlacement:
        return _GangPlacement(self._placing, gang, self._rule, (self._scores, self._nears))


class _GangPlacement:
    """Places one gang and its subgroups in domains."""

    def __init__(
        self,
        placing: PlacementState,
        gang: int,
        rule: NetworkTopology | None,
        scoring: tuple[bool, bool],
    ) -> None:
        self._placing = placing
        self._problem: Problem = placing.problem
        self._gang = gang
        self._rule = rule
        self._scores, self._nears = scoring
        number = int(self._problem.shape_of[gang])
        self._shape: GangShape = self._problem.shapes.shapes[number]
        self._bounds: Bounds = self._problem.topology.bounds[number]
        self.cursor: Cursor = placing.cursor(gang)

    # --- progress --------------------------------------------------------------------------------

    def sub_group_of(self, entry: int) -> int:
        """Return the subgroup index of an entry, or `NO_PART` if the entry has no subgroup."""
        return self._shape.entries[entry].part

    def is_unstarted(self, part: int) -> bool:
        """Return whether a subgroup has fewer placed tasks than its start requires."""
        return part != NO_PART and self._placed_in(part) < self._shape.parts[part].need

    @property
    def has_groups(self) -> bool:
        """Whether the gang has started the minimum number of subgroups of each subGroupPolicy."""
        return all(
            sum(not self.is_unstarted(p) for p in self._sub_groups_of_rule(rule)) >= groups
            for rule, groups in self._shape.need_groups
        )

    def _sub_groups_of_rule(self, rule: int) -> list[int]:
        """Return the subgroups of a subGroupPolicy that had not started before this session."""
        parts = enumerate(self._shape.parts)
        return [p for p, part in parts if part.rule == rule and part.need]

    def _placed_in(self, part: int) -> int:
        return sum(self.cursor.done[e] for e in self._entries_of[part])

    @cached_property
    def _entries_of(self) -> Mapping[int, list[int]]:
        """The entries of each subgroup."""
        found: dict[int, list[int]] = {p: [] for p in range(len(self._shape.parts))}
        for e, entry in enumerate(self._shape.entries):
            found.setdefault(entry.part, []).append(e)
        return found

    def _bound(self, part: int) -> Bound | None:
        if self._rule is None:
            return None
        return self._bounds.whole if part == NO_PART else self._bounds.parts[part]

    def _anchor(self, part: int, bound: Bound) -> int:
        """Return the smallest domain that contains all placed tasks of the gang or subgroup."""
        forest = self._problem.topology.forest(bound)
        domain = forest.holder(self._nodes_of(part))
        if domain < 0 or bound.held < 0:
            return max(domain, bound.held)
        return forest.meet(domain, bound.held)

    def _nodes_of(self, part: int) -> I64:
        """Return the nodes of the placed and nominated tasks of the gang or subgroup."""
        found = [np.zeros(0, np.int64)]
        for e, entry in enumerate(self._shape.entries):
            if part in (NO_PART, entry.part) and self.cursor.done[e]:
                first = entry_tasks(self._problem, self._gang, e).start
                tasks = slice(first, first + self.cursor.done[e])
                found += [self._placing.node_of[tasks], self._placing.nominated[tasks]]
        nodes = np.concatenate(found)
        known: I64 = nodes[nodes != UNPLACED]
        return known

    # --- candidate domains -----------------------------------------------------------------------

    def candidate_domains(self, table: NodeTable) -> Iterator[_DomainNodes]:
        """Yield the domains that may fit the gang's minimum, best first."""
        bound = self._bound(NO_PART)
        if bound is None:
            yield _CLUSTER
            return
        need = max(self.cursor.need, sum(n for n in self.cursor.need_role.values() if n > 0))
        entries = range(len(self._shape.entries))
        yield from self._by_tier(bound, entries, max(need, 1), (table, _CLUSTER, NOWHERE))

    def _by_tier(
        self,
        bound: Bound,
        entries: Iterable[int],
        need: int,
        within: tuple[NodeTable, _DomainNodes, int],
    ) -> Iterator[_DomainNodes]:
        """Yield the domains that fit `need` tasks of the given entries, lowest tier first.

        Within a tier, domains that fit all tasks come first, then domains with the recorded
        HyperNode, then domains of higher score. `within` holds the node table, an outer domain and
        an inner domain: each yielded domain lies within the outer domain and contains the inner
        domain.
        """
        table, domain_nodes, anchor = within
        forest = self._problem.topology.forest(bound)
        # For each entry, count the unplaced tasks that fit in each domain if no other entry is
        # placed.
        num_fits = np.zeros(len(forest), np.int64)
        for entry in entries:
            left = self._count_unplaced(entry)
            fits = np.minimum(table.fits(self._placing.class_of(self._gang, entry)), left)
            if domain_nodes.nodes is not None:
                fits = np.where(domain_nodes.nodes, fits, 0)
            num_fits += np.minimum(forest.sums(fits), left)
        open_ = num_fits >= need
        if self._shape.is_rigid and need >= self._shape.num_tasks:
            # A rigid gang needs all its tasks to start, so its domain must have enough idle
            # capacity for the entire gang.
            idle = np.maximum(table.idle, 0)
            if domain_nodes.nodes is not None:
                idle = np.where(domain_nodes.nodes[:, None], idle, 0)
            requested = self._request(range(len(self._shape.entries)))
            open_ &= (forest.sums(idle) >= requested).all(axis=1)
        domains = candidates(forest, bound)
        if anchor >= 0:
            domains = domains[(domains <= anchor) & (anchor < forest.end[domains])]
        domains = domains[open_[domains]]
        num_unplaced = sum(self._count_unplaced(e) for e in entries)
        score = np.zeros(len(forest))
        if self._rule is not None and self._scores:
            request = self._request(entries)
            score = self._rule.domain_scores(self._problem, forest, table.used, request)
        recorded = np.zeros(len(forest), np.bool_)
        name = self._problem.snapshot.gangs[self._gang].recorded_hypernode
        if name and not forest.label and name in forest.names:
            recorded[list(forest.upwards(forest.names.index(name)))] = True
        order = np.lexsort(
            (
                forest.rank[domains],
                -score[domains],
                ~recorded[domains],
                num_fits[domains] < num_unplaced,
                forest.tier[domains],
            )
        )
        tried: dict[int, int] = {}
        for d in domains[order].tolist():
            tier = int(forest.tier[d])
            tried[tier] = tried.get(tier, 0) + 1
            if tried[tier] <= MOST_TRIED:
                yield self._domain_nodes(bound, d, domain_nodes)

    def _domain_nodes(self, bound: Bound, domain: int, around: _DomainNodes) -> _DomainNodes:
        nodes = self._problem.topology.forest(bound).inside(domain)
        return _DomainNodes(bound, domain, nodes if around.nodes is None else nodes & around.nodes)

    def _count_unplaced(self, entry: int) -> int:
        return self._shape.entries[entry].count - self.cursor.done[entry]

    def _request(self, entries: Iterable[int]) -> I64:
        """Return the total request (R,) of the unplaced tasks of the given entries."""
        total = np.zeros(len(self._problem.resources), np.int64)
        for e in entries:
            request = self._problem.classes.request[self._placing.class_of(self._gang, e)]
            total += request * self._count_unplaced(e)
        return total

    # --- placing ---------------------------------------------------------------------------------

    def fill(self, domain_nodes: _DomainNodes, where: Where) -> None:
        """Place the tasks of the gang's minimum that fit in a domain."""
        for rule, groups in self._shape.need_groups:
            mine = self._sub_groups_of_rule(rule)
            for part in mine:
                started = sum(not self.is_unstarted(p) for p in mine)
                if started < groups and self.is_unstarted(part):
                    self._start_part(part, domain_nodes, where)
        for run in self.cursor.runs:
            part = self.sub_group_of(run[0])
            if self._count_missing_tasks(run) > 0 and self.is_unstarted(part):
                self._start_part(part, domain_nodes, where)
            most = self._count_missing_tasks(run)
            if most > 0 and run[0] not in self.cursor.failed and not self.is_unstarted(part):
                self._spread(run, most, where, domain_nodes)

    def _count_missing_tasks(self, run: list[int]) -> int:
        role = self._shape.entries[run[0]].role
        return min(run[1], max(self.cursor.need, self.cursor.need_role.get(role, 0)))

    def _spread(self, run: list[int], most: int, where: Where, domain_nodes: _DomainNodes) -> int:
        """Place up to `most` equal tasks within a domain and within their subgroup's domain."""
        part = self.sub_group_of(run[0])
        own = self._bound(part) if part != NO_PART else None
        if own is None:
            return self._place_run(run, most, where, domain_nodes)
        placed = 0
        is_free = self._anchor(part, own) < 0
        around = (where[0], domain_nodes, NOWHERE)
        options = (
            self._by_tier(own, [run[0]], 1, around)
            if is_free
            else self._chain(part, own, domain_nodes)
        )
        for each in options:
            self.cursor.failed.discard(run[0])
            placed += self._place_run(run, most - placed, where, each)
            if placed == most or (is_free and placed):
                break
        return placed

    def _chain(self, part: int, bound: Bound, domain_nodes: _DomainNodes) -> Iterator[_DomainNodes]:
        """Yield the domains that contain a subgroup's placed tasks, smallest first."""
        forest = self._problem.topology.forest(bound)
        anchor = self._anchor(part, bound)
        for d in forest.upwards(anchor):
            if bound.allowed[d]:
                yield self._domain_nodes(bound, d, domain_nodes)

    def _start_part(self, part: int, domain_nodes: _DomainNodes, where: Where) -> bool:
        """Place all tasks that a subgroup needs to start in one domain, or place no task.

        Returns whether the subgroup starts.
        """
        need = self._shape.parts[part].need - self._placed_in(part)
        entries = self._entries_of[part]
        bound = self._bound(part)
        domains_tried: Iterable[_DomainNodes] = [domain_nodes]
        if bound is not None:
            anchor = self._anchor(part, bound)
            domains_tried = self._by_tier(bound, entries, need, (where[0], domain_nodes, anchor))
        for each in domains_tried:
            mark, failed = self._placing.mark, set(self.cursor.failed)
            left = need
            for run in self.cursor.runs:
                if run[0] in entries and run[1] and left:
                    left -= self._place_run(run, min(run[1], left), where, each)
            if not left:
                return True
            self._placing.undo_to(self._gang, mark)
            self.cursor.failed |= failed
        self.cursor.failed.update(entries)
        return False

    def _place_run(
        self, run: list[int], most: int, where: Where, domain_nodes: _DomainNodes
    ) -> int:
        """Place equal tasks in a domain, near the gang's other tasks; return the number placed."""
        placed = 0
        if most > 1 and self._is_wide(domain_nodes) and self._bonus(run, domain_nodes) is None:
            placed = self._placing.place_tasks(
                self._gang, run, 1, where, NodeView(domain_nodes.nodes)
            )
            if not placed:
                return 0
        lens = NodeView(domain_nodes.nodes, self._bonus(run, domain_nodes))
        return placed + self._placing.place_tasks(self._gang, run, most - placed, where, lens)

    def _is_wide(self, domain_nodes: _DomainNodes) -> bool:
        """Return whether a domain contains smaller domains."""
        if domain_nodes.bound is None:
            return False
        return (
            int(self._problem.topology.forest(domain_nodes.bound).end[domain_nodes.domain])
            > domain_nodes.domain + 1
        )

    def _bonus(self, run: list[int], domain_nodes: _DomainNodes) -> F64 | None:
        if self._rule is None or not self._nears or not self._is_wide(domain_nodes):
            return None
        part = self.sub_group_of(run[0])
        own = self._bound(part) if part != NO_PART else None
        bound = own or self._bound(NO_PART)
        if bound is None:
            return None
        whose = NO_PART if own is None else part
        anchor = self._anchor(whose, bound)
        if anchor < 0:
            return None
        forest = self._problem.topology.forest(bound)
        there, number = residents(self._problem, self._gang, whose)
        nodes = np.concatenate([there, self._nodes_of(whose)])
        share = np.bincount(nodes, minlength=self._problem.num_nodes) / number
        return self._rule.nearness(forest, anchor, share)

    # --- growing ---------------------------------------------------------------------------------

    def open_part(self, part: int, where: Where) -> int:
        """Start a subgroup in a domain of the gang; return how many tasks were placed."""
        before = self._placed_in(part)
        for domain_nodes in self._reach(where[0]):
            if self._start_part(part, domain_nodes, where):
                return self._placed_in(part) - before
        return 0

    def extend(self, run: list[int], most: int, where: Where) -> int:
        """Place up to `most` equal tasks as near to the gang's other tasks as possible.

        Returns how many were placed.
        """
        placed = 0
        bound = self._bound(NO_PART)
        is_free = bound is not None and self._anchor(NO_PART, bound) < 0
        for domain_nodes in self._reach(where[0]):
            self.cursor.failed.discard(run[0])
            placed += self._spread(run, most - placed, where, domain_nodes)
            if placed == most or (is_free and placed):
                break
        return placed

    def _reach(self, table: NodeTable) -> Iterator[_DomainNodes]:
        """Yield the domains that contain the gang's placed tasks, smallest first.

        If the gang has no placed tasks, all candidate domains are yielded.
        """
        bound = self._bound(NO_PART)
        if bound is None:
            yield _CLUSTER
        elif self._anchor(NO_PART, bound) >= 0:
            yield from self._chain(NO_PART, bound, _CLUSTER)
        else:
            yield from self.candidate_domains(table)
