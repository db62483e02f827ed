"""Topology spread: counts of selected pods in two domains differ by at most maxSkew.

Mathematics: models/formulation/spread.md. Upstream: `PodTopologySpread`, `DoNotSchedule` only.
Tasks with a spread constraint are assumed to be placed before tasks that the constraint only
selects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import SpreadTerm, TaskStatus
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.nodes.node_filters import NodeAffinity, Taints, find_untolerated_taints
from optsched.problem.relations import TermKind
from optsched.problem.running import selected_tasks, stakes_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


class Spread(Rule):
    """Rule: a domain that gets a task exceeds the smallest domain by at most maxSkew pods."""

    name = "topology-spread"
    hard_switch = Switch.PREDICATE
    pods_may_help = True
    eviction_can_break = True
    ties_by_relations = True

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        shapes = dict.fromkeys(p.task.shape for p in world.placements)
        # The nodes that count for a term, by `TaskShape` and by the node policies of the term.
        known: dict[tuple[TaskShape, bool, bool], dict[str, Node]] = {}
        for shape, term in ((s, term) for s in shapes for term in s.spread if term.required):
            policies = shape, term.honour_taints, term.honour_affinity
            if policies not in known:
                nodes = world.snapshot.nodes
                known[policies] = {n.name: n for n in nodes if _is_eligible(n, shape, term)}
            eligible = known[policies]
            count = {n.labels[term.topology_key]: 0 for n in eligible.values()}
            comes: set[str] = set()
            for node in eligible.values():
                domain = node.labels[term.topology_key]
                standing = [t for t in node.residents if t.status is not TaskStatus.RELEASING]
                placed = [t for t in world.placed_on.get(node.name, []) if term in t.shape.spread]
                if term.selector is not None:
                    count[domain] += sum(
                        task.namespace == term.namespace and term.selector.matches(task.labels)
                        for task in (*standing, *placed)
                    )
                if any(t.shape == shape for t in placed):
                    comes.add(domain)
            least = min(count.values(), default=0) if len(count) >= term.min_domains else 0
            for domain in sorted(comes):
                if count[domain] - least > term.max_skew:
                    detail = f"{count[domain]} in {domain}, {least} in the smallest domain ({term})"
                    yield Violation(self.name, f"label {term.topology_key}", detail)
            for placement in world.placements:
                if placement.task.shape == shape and term.topology_key not in placement.node.labels:
                    detail = f"node {placement.node.name} lacks the label {term.topology_key}"
                    yield Violation(self.name, f"task {placement.task.key}", detail)

    # --- greedy ----------------------------------------------------------------------------------

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`. The mask selects nodes with the topology keys of all spread constraints."""
        allowed: Bool | None = None
        for m in _find_carried_terms(problem, task_class):
            labelled = problem.relations.domain_of[m] >= 0
            allowed = labelled if allowed is None else allowed & labelled
        return allowed

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        terms = [
            problem.relations.terms[m].source for m in _find_carried_terms(problem, task_class)
        ]
        keys = sorted({t.topology_key for t in terms})
        return f"cannot take a pod within the topology spread over {', '.join(keys)}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        return bool(_find_carried_terms(problem, task_class))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        kinds = {t.kind for t in problem.relations.terms}
        return _SpreadCounts(problem) if TermKind.SPREAD in kinds else None

    # --- encode ----------------------------------------------------------------------------------

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """See `VictimRelevance`.

        Running tasks that the same spread constraints select are equivalent.
        """
        return stakes_in(problem, _find_carried_terms(problem, task_class))

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add least ≤ count[d] and count[d] ≤ least + maxSkew for each domain d.

        count[d] is the number of selected pods in d, and the variable `least` is the smallest
        count. The constraint with maxSkew applies only if a task with the spread constraint is
        placed in domain d.
        """
        problem, model, supplied = nodes.problem, nodes.model, nodes.supplied
        evictions = nodes.evictions
        classes = np.flatnonzero((supplied >= 0).any(axis=1)).tolist()
        for task_class, m in ((c, m) for c in classes for m in _find_carried_terms(problem, c)):
            domains = _Domains(problem, task_class, m)
            groups = evictions.groups(selected_tasks(problem)[m])
            groups = groups[domains.eligible[evictions.node[groups]]]
            domain_of_group = domains.domain_of[evictions.node[groups]]
            held = domains.count_by_domain(problem.relations.selected[m])
            carriers = [
                c
                for c in range(len(problem.classes.shapes))
                if m in _find_carried_terms(problem, c) and m in problem.classes.relations[c]
            ]
            most = int(problem.classes.num_pending.sum() + held.sum())
            (least,) = model.add_variables(
                0, most if len(domains.present) >= domains.term.min_domains else 0
            )
            for d in range(len(held)):
                at = np.flatnonzero(domains.domain_of == d)
                counts_at = at[domains.eligible[at]]
                counted = supplied[np.ix_(np.array(carriers, np.int64), counts_at)]
                counted = counted[counted >= 0]
                leaving = evictions.leave[groups[domain_of_group == d]]
                # The count of a domain is `held`, plus the placed tasks (`counted`), minus the
                # evicted tasks (`leaving`).
                changes = np.concatenate([counted, leaving])
                signs = np.append(np.ones_like(counted), -np.ones_like(leaving))
                if d in domains.present:
                    model.add_rows(
                        0, np.append(changes, least), np.append(-signs, 1), upper=int(held[d])
                    )
                own = supplied[task_class, at]
                own = own[own >= 0]
                if not len(own):
                    continue
                (comes,) = model.add_variables(0, 1)
                model.add_rows(
                    0, np.append(own, comes), np.append(np.ones_like(own), -most), upper=0
                )
                slack = domains.term.max_skew - int(held[d])
                factors = np.concatenate([signs, [-1, most]])
                model.add_rows(
                    0, np.concatenate([changes, [least, comes]]), factors, upper=slack + most
                )


def _find_carried_terms(problem: Problem, task_class: int) -> list[int]:
    carried = problem.relations.carried_by(problem.classes.shapes[task_class])
    return [m for m in carried if problem.relations.terms[m].kind is TermKind.SPREAD]


class _Domains:
    """The domains of a spread term for a task class.

    Attributes
    ----------
    domain_of
        (N,) domain of each node; -1 for a node without the topology key.
    number
        Number of domains of the term.
    eligible
        (N,) mask of the nodes whose pods the term counts. As upstream, a node counts only if it has
        the topology keys of all spread constraints of the class.
    present
        The domains with at least one eligible node.

    """

    def __init__(self, problem: Problem, task_class: int, m: int) -> None:
        source = problem.relations.terms[m].source
        assert isinstance(source, SpreadTerm)  # noqa: S101 guaranteed by the kind of the term
        self.term = source
        self.domain_of = problem.relations.domain_of[m]
        self.number = int(problem.relations.num_domains[m])
        self.eligible: Bool = problem.ready.copy()
        for other in _find_carried_terms(problem, task_class):
            self.eligible &= problem.relations.domain_of[other] >= 0
        affinity = NodeAffinity().mask(problem, task_class) if source.honour_affinity else None
        taints = Taints().mask(problem, task_class) if source.honour_taints else None
        for mask in (affinity, taints):
            if mask is not None:
                self.eligible &= mask
        self.present = np.unique(self.domain_of[self.eligible])

    def count_by_domain(self, on_node: I64) -> I64:
        """Return, for each domain (D,), the sum of the counts (N,) over its eligible nodes."""
        at = self.domain_of[self.eligible]
        sums = np.bincount(at, weights=on_node[self.eligible], minlength=self.number)
        return sums.astype(np.int64)

    def nodes(self, chosen: Bool) -> Bool:
        """Return the mask (N,) of nodes in the domains that `chosen` (D,) selects."""
        named: Bool = np.append(chosen, False)[self.domain_of]
        return named

    def smallest_count(self, count: I64) -> int:
        """Return the minimum of the counts (D,), or 0 if fewer than minDomains domains exist."""
        if len(self.present) < self.term.min_domains:
            return 0
        return int(count[self.present].min()) if len(self.present) else 0


class _SpreadCounts(Greedy):
    """Tracks the number of selected tasks per domain while tasks are placed or nominated.

    The order in which tasks are placed must not affect whether the constraints hold. A task must
    therefore also respect the constraint of an earlier task in the same domain. Selected tasks
    without the constraint are assumed to be placed last. A nominated task counts only if
    terminating pods are assumed to have ended.
    """

    def __init__(self, problem: Problem) -> None:
        self._domains = [
            {m: _Domains(problem, c, m) for m in _find_carried_terms(problem, c)}
            for c in range(len(problem.classes.shapes))
        ]
        self._counted = [
            [m for m in own if m in selecting]
            for own, selecting in zip(self._domains, problem.classes.relations, strict=True)
        ]
        self._now = _Counts(problem.relations.selected.copy())
        self._later = _Counts(problem.relations.selected.copy())
        self._has_nominations = False

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        allowed = self._find_nodes(task_class, self._later)
        if later or not self._has_nominations or allowed is None:
            return allowed
        now = self._find_nodes(task_class, self._now)
        return allowed if now is None else allowed & now

    def _find_nodes(self, task_class: int, counts: _Counts) -> Bool | None:
        """Return the mask (N,) of nodes that may take a task of a class, or None for all nodes."""
        allowed: Bool | None = None
        for m, domains in self._domains[task_class].items():
            is_counted = m in self._counted[task_class]
            count = domains.count_by_domain(counts.selected[m])
            fits = count + int(is_counted) - domains.smallest_count(count) <= domains.term.max_skew
            open_to = domains.nodes(fits)
            # A selected task must also respect the constraints of tasks that were placed earlier.
            for other, placed in counts.placed.items() if is_counted else ():
                theirs = self._domains[other].get(m)
                if theirs is not None:
                    count = theirs.count_by_domain(counts.selected[m])
                    full = count + 1 - theirs.smallest_count(count) > theirs.term.max_skew
                    # The constraint of the class `other` applies to domains with tasks of this
                    # class.
                    occupied = np.zeros(theirs.number, np.bool_)
                    occupied[theirs.domain_of[(placed > 0) & (theirs.domain_of >= 0)]] = True
                    open_to &= ~(theirs.nodes(full & occupied) & theirs.eligible)
            allowed = open_to if allowed is None else allowed & open_to
        return allowed

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        if self._domains[task_class]:
            for each in (self._now, self._later):
                each.add(task_class, self._counted[task_class], nodes, counts)

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        if self._domains[task_class]:
            self._has_nominations = True
            self._now.add(task_class, self._counted[task_class], nodes, -counts)


@dataclass(eq=False)
class _Counts:
    """The number of selected pods (M, N) per term and node, and of placed tasks (N,) by class."""

    selected: I64
    placed: dict[int, I64] = field(default_factory=dict, init=False)

    def add(self, task_class: int, terms: Sequence[int], nodes: I64, counts: I64) -> None:
        """Add `counts` tasks of a class on `nodes`; the terms in `terms` select the class."""
        for m in terms:
            np.add.at(self.selected[m], nodes, counts)
        none = np.zeros(self.selected.shape[1], np.int64)
        np.add.at(self.placed.setdefault(task_class, none), nodes, counts)


# --- domain objects ------------------------------------------------------------------------------


def _is_eligible(node: Node, shape: TaskShape, term: SpreadTerm) -> bool:
    """Return whether `term`, a spread term in `shape`, counts the pods on a node."""
    labels = {t.topology_key for t in shape.spread if t.required}
    if not node.ready or not labels <= node.labels.keys():
        return False
    if term.honour_taints and find_untolerated_taints(shape, node.marks):
        return False
    if not term.honour_affinity:
        return True
    selected = all(node.labels.get(k) == v for k, v in shape.node_selector)
    affinity = shape.node_affinity
    return selected and (affinity is None or affinity.matches(node.name, node.labels))
