"""Scores of preferred pod (anti-)affinity and soft topology spread, for the plugin `nodeorder`.

Upstream: scoring of `InterPodAffinity` and `PodTopologySpread`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from optsched.cluster.task import SpreadTerm, TaskStatus
from optsched.plugins.nodes.node_filters import NodeAffinity, Taints
from optsched.problem.relations import TermKind, TermMatcher, term_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.task import Task, TaskShape
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.relations import Term, TermKey
    from optsched.problem.shapes import Relation

TOP = 100.0


@dataclass(frozen=True, eq=False)
class Preferences:
    """The soft terms of pending tasks and residents, and the residents that the terms select.

    Attributes
    ----------
    problem_ref
        A weak reference to the problem, because a reference cycle would keep it in memory.
    terms, number_of
        The M distinct soft terms, and the index of each term by term key.
    domains
        The topology domain (N,) of each node and the number of domains, for each term.
    representatives
        The first pending task of each task class, by class.
    matcher
        Object that finds the terms that select a task.
    selected
        (M, N) number of residents on each node that each term selects.
    carried
        (M, N) sum of the weights with which residents on each node carry each term; 0 for spread
        terms.

    """

    problem_ref: ref[Problem]
    terms: tuple[Term, ...]
    number_of: Mapping[TermKey, int]
    domains: Sequence[tuple[I64, int]]
    representatives: Mapping[int, Task]
    matcher: TermMatcher
    selected: I64
    carried: I64
    _rows_of: dict[Relation, list[tuple[str, I64]]] = field(default_factory=dict, init=False)

    @property
    def problem(self) -> Problem:
        """The problem; raises `ReferenceError` if it has been freed."""
        problem = self.problem_ref()
        if problem is None:
            raise ReferenceError("preferences were read after their problem was freed")
        return problem

    def affinity_terms(self, shape: TaskShape) -> list[tuple[int, int]]:
        """Return (weight, index) pairs of the preferred affinity terms in `shape`."""
        return [
            (weight, self.number_of[TermKind.AFFINITY, (term,)])
            for weight, term in shape.preferred_pods
        ]

    def spread(self, shape: TaskShape) -> list[int]:
        """Return the indices of the soft spread terms in `shape`."""
        return [self.number_of[TermKind.SPREAD, (t,)] for t in shape.spread if not t.required]

    @cached_property
    def _first_term_of_key(self) -> dict[str, int]:
        """The first term of each topology key; terms with the same key have the same domains."""
        found: dict[str, int] = {}
        for m, term in enumerate(self.terms):
            found.setdefault(term.source.topology_key, m)
        return found

    def _by_topology_key(self, selecting: Relation) -> list[tuple[str, I64]]:
        """Return the affinity terms in `selecting`, grouped by topology key."""
        known = self._rows_of
        if selecting not in known:
            found: dict[str, list[int]] = {}
            for m in selecting:
                if self.terms[m].kind is TermKind.AFFINITY:
                    found.setdefault(self.terms[m].source.topology_key, []).append(m)
            known[selecting] = [(key, np.array(rows, np.int64)) for key, rows in found.items()]
        return known[selecting]

    # --- scores ----------------------------------------------------------------------------------

    def affinity_scores(self, task_class: int, selecting: Relation, nodes: Bool) -> F64:
        """Return scores (N,), 0 to 100, by mutual affinity of the task and pods in the same domain.

        `selecting` contains the indices of the terms that select the task class.
        """
        raw = np.zeros(self.problem.num_nodes)
        amounts: dict[str, I64] = {}
        for weight, m in self.affinity_terms(self.problem.classes.shapes[task_class]):
            key = self.terms[m].source.topology_key
            amounts[key] = amounts.get(key, 0) + weight * self.selected[m]
        for key, rows in self._by_topology_key(selecting):
            amounts[key] = amounts.get(key, 0) + self.carried[rows].sum(axis=0)
        for key, amount in amounts.items():
            raw += self._by_domain(self._first_term_of_key[key], amount)
        low, high = raw[nodes].min(initial=np.inf), raw[nodes].max(initial=-np.inf)
        return np.floor(TOP * (raw - low) / (high - low)) if low < high else np.zeros(len(raw))

    def spread_scores(self, task_class: int, nodes: Bool) -> F64:
        """Return scores (N,) from 0 to 100; domains with fewer selected pods score higher."""
        shape = self.problem.classes.shapes[task_class]
        own = self.spread(shape)
        labelled = np.ones(len(nodes), np.bool_)
        for m in own:
            labelled &= self.domains[m][0] >= 0
        open_to = nodes & labelled
        raw = np.zeros(len(nodes))
        for m in own:
            term = self.terms[m].source
            assert isinstance(term, SpreadTerm)  # noqa: S101  for the type checker
            eligible = labelled
            honoured = ((term.honour_affinity, NodeAffinity()), (term.honour_taints, Taints()))
            for is_honoured, rule in honoured:
                mask = rule.mask(self.problem, task_class) if is_honoured else None
                eligible = eligible if mask is None else eligible & mask
            counted = self.selected[m] * eligible
            domain = self.domains[m][0]
            size = len(np.unique(domain[open_to]))
            raw += self._by_domain(m, counted) * np.log(size + 2) + term.max_skew - 1
        raw = np.rint(raw)
        low, high = raw[open_to].min(initial=np.inf), raw[open_to].max(initial=0)
        if not open_to.any() or not high:
            return np.where(open_to, TOP, 0.0)
        return np.where(open_to, np.floor(TOP * (high + low - raw) / high), 0.0)

    def _by_domain(self, m: int, amounts: I64) -> F64:
        """Return the sum (N,) of amounts over each node's domain; 0 for nodes without a domain."""
        domain, number = self.domains[m]
        sums = np.bincount(domain[domain >= 0], amounts[domain >= 0], minlength=number)
        return np.where(domain >= 0, np.append(sums, 0.0)[domain], 0.0)


def find_preferences(problem: Problem) -> Preferences | None:
    """Return the soft terms of a problem, or None if there are none."""
    nodes = problem.snapshot.nodes
    shapes = dict.fromkeys(problem.classes.shapes)
    found: dict[TermKey, Term] = {t.key: t for t in _terms(problem, shapes, spread=True)}
    carriers = [shape for shape in problem.snapshot.resident_shapes if shape.preferred_pods]
    found |= {t.key: t for t in _terms(problem, carriers, spread=False)}
    if not found:
        return None
    terms = tuple(found.values())
    size = (len(terms), problem.num_nodes)
    classes, first = np.unique(problem.task_class, return_index=True)
    tasks = (problem.task(i) for i in first.tolist())
    preferences = Preferences(
        ref(problem),
        terms,
        number_of={t.key: m for m, t in enumerate(terms)},
        domains=[problem.columns.domains(t.source.topology_key) for t in terms],
        representatives=dict(zip(classes.tolist(), tasks, strict=True)),
        matcher=TermMatcher(terms),
        selected=np.zeros(size, np.int64),
        carried=np.zeros(size, np.int64),
    )
    is_spread = np.array([t.kind is TermKind.SPREAD for t in terms], np.bool_)
    for n, task in ((n, t) for n, node in enumerate(nodes) for t in node.residents):
        rows = preferences.matcher.rows(task)
        if task.status is TaskStatus.RELEASING:
            # Spread constraints ignore terminating pods, as upstream does.
            rows = rows[~is_spread[rows]]
        preferences.selected[rows, n] += 1
        for weight, m in preferences.affinity_terms(task.shape):
            preferences.carried[m, n] += weight
    return preferences


def _terms(problem: Problem, shapes: Iterable[TaskShape], *, spread: bool) -> Iterator[Term]:
    labels_of = problem.snapshot.namespaces
    for shape in shapes:
        for _, term in shape.preferred_pods:
            yield term_of(TermKind.AFFINITY, term, labels_of)
        for soft in shape.spread if spread else ():
            if not soft.required:
                yield term_of(TermKind.SPREAD, soft, labels_of)
