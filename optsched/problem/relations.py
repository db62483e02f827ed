"""Count the pods on each node that affinity, anti-affinity and spread terms select."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.cluster.selectors import narrowest_labels
from optsched.cluster.task import ANY_ADDRESS, PodTerm, SpreadTerm, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import HostPort, Task, TaskShape
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.columns import NodeColumns
    from optsched.problem.shapes import Relation


class TermKind(Enum):
    """Whether a term is an affinity, an anti-affinity or a spread constraint."""

    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SPREAD = "spread"


TermKey: TypeAlias = tuple[TermKind, tuple[PodTerm | SpreadTerm, ...]]


@dataclass(frozen=True, slots=True)
class Term:
    """One distinct pod affinity, anti-affinity or spread term, with resolved namespaces.

    Attributes
    ----------
    sources
        The term, followed by the pod's other affinity terms. The term selects a pod only if the pod
        matches all `sources` (upstream `podMatchesAllAffinityTerms`).
    namespaces
        The namespaces of each term in `sources`, or None for all namespaces.
    is_of_residents
        Whether only residents carry the term. Such a term restricts only pending tasks, so the
        residents that it selects are not counted.

    """

    kind: TermKind
    sources: tuple[PodTerm | SpreadTerm, ...]
    namespaces: tuple[frozenset[str] | None, ...]
    is_of_residents: bool = False

    @property
    def key(self) -> TermKey:
        """The key by which affinity and spread terms are compared."""
        return self.kind, self.sources

    @property
    def source(self) -> PodTerm | SpreadTerm:
        """The term as the pod's specification states it."""
        return self.sources[0]

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a pod with the given namespace and labels."""
        return all(
            (names is None or namespace in names)
            and source.selector is not None
            and source.selector.matches(labels)
            for source, names in zip(self.sources, self.namespaces, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Coming:
    """Counts of tasks placed or nominated in this session, as arrays like those of `Relations`."""

    selected: I64
    carried: I64
    port_taken: Bool


@dataclass(frozen=True, eq=False)
class Relations:
    """Affinity and spread terms, and how many residents of each node they select.

    A pod carries a term if its specification contains the term.

    Attributes
    ----------
    terms
        The M distinct terms of pending tasks, and the distinct anti-affinity terms of residents
        that select a pending task.
    domain_of
        (M, N) each node's topology domain for each term, or -1 if the node lacks the topology key.
    num_domains
        (M,) number of domains of each term.
    selected
        (M, N) number of residents of each node that each term selects. Rows of terms that only
        residents carry are 0.
    carried
        (M, N) number of residents of each node that carry the term; 0 unless the term is an
        anti-affinity term.
    ports
        The P distinct host ports of pending tasks.
    port_taken
        (P, N) whether a resident of the node binds a conflicting port.
    coming
        The counts of decided tasks, which the arrays above include; None without decided tasks.

    """

    terms: tuple[Term, ...]
    domain_of: I64
    num_domains: I64
    selected: I64
    carried: I64
    ports: tuple[HostPort, ...]
    port_taken: Bool
    coming: Coming | None = None
    _carried_by: dict[TaskShape, tuple[int, ...]] = field(default_factory=dict, init=False)

    def carried_by(self, shape: TaskShape) -> tuple[int, ...]:
        """Return the indices of the affinity and spread terms of tasks with this `TaskShape`."""
        if not self.terms or not (shape.pod_affinity or shape.pod_anti_affinity or shape.spread):
            return ()
        known = self._carried_by
        if shape not in known:
            numbers = {self._number_of.get(key) for key in _keys(shape)}
            known[shape] = tuple(sorted(m for m in numbers if m is not None))
        return known[shape]

    @cached_property
    def _number_of(self) -> dict[TermKey, int]:
        return {term.key: m for m, term in enumerate(self.terms)}

    def ports_of(self, shape: TaskShape) -> tuple[int, ...]:
        """Return the indices of the host ports that tasks with this `TaskShape` bind."""
        numbers = {self._port_number.get(port) for port in shape.host_ports}
        return tuple(sorted(p for p in numbers if p is not None))

    def find_colliding(self, ports: Iterable[HostPort]) -> list[int]:
        """Return the indices of the host ports that conflict with any of the given ports."""
        return self._port_index.find_colliding(ports)

    @cached_property
    def _port_number(self) -> dict[HostPort, int]:
        return {port: p for p, port in enumerate(self.ports)}

    @cached_property
    def _port_index(self) -> PortIndex:
        return PortIndex(enumerate(self.ports))


class PortIndex:
    """Finds the host ports that conflict with given host ports.

    Only ports of equal protocol and number can conflict, so the ports are indexed by these fields
    and by address. Several ports may have the same index.
    """

    def __init__(self, ports: Iterable[tuple[int, HostPort]]) -> None:
        self._by_number: dict[tuple[str, int], dict[str, list[int]]] = {}
        for p, port in ports:
            by_address = self._by_number.setdefault((port.protocol, port.port), {})
            by_address.setdefault(port.address, []).append(p)

    def find_colliding(self, ports: Iterable[HostPort]) -> list[int]:
        """Return the sorted indices of the host ports that conflict with any of the given ports."""
        found: set[int] = set()
        for port in ports:
            by_address = self._by_number.get((port.protocol, port.port), {})
            if port.address == ANY_ADDRESS:
                found.update(*by_address.values())
            else:
                found.update(by_address.get(port.address, ()), by_address.get(ANY_ADDRESS, ()))
        return sorted(found)


class TermMatcher:
    """Finds the affinity and spread terms that select a pod, cached by namespace and labels.

    If a term requires certain values of a label, the term is compared only with pods that have one
    of these values. A term is compared only with pods of its namespaces.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = terms
        self._keys: set[str] = set()
        self._requiring: dict[tuple[str, str], list[int]] = {}
        self._others: dict[frozenset[str] | None, list[int]] = {}
        selectors = [term.source.selector for term in terms]
        for m, (selector, labels) in enumerate(
            zip(selectors, narrowest_labels(selectors), strict=True)
        ):
            if selector is None:
                continue
            self._keys.update(r.key for r in selector.requirements)
            for label in labels:
                self._requiring.setdefault(label, []).append(m)
            if not labels:
                self._others.setdefault(terms[m].namespaces[0], []).append(m)
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[Relation, I64]] = {}

    def selecting(self, task: Task) -> Relation:
        """Return the indices of the affinity and spread terms that select a task."""
        return self._find_selecting_terms(task)[0]

    def rows(self, task: Task) -> I64:
        """Return the affinity and spread terms that select a task, as an array (m,) of indices."""
        return self._find_selecting_terms(task)[1]

    def _find_selecting_terms(self, task: Task) -> tuple[Relation, I64]:
        labels = frozenset([item for item in task.labels.items() if item[0] in self._keys])
        seen = (task.namespace, labels)
        if seen not in self._known:
            asked = set(chain.from_iterable(self._requiring.get(label, ()) for label in labels))
            for namespaces, others in self._others.items():
                if namespaces is None or task.namespace in namespaces:
                    asked.update(others)
            found = tuple(
                m for m in sorted(asked) if self._terms[m].selects(task.namespace, task.labels)
            )
            self._known[seen] = found, np.array(found, np.int64)
        return self._known[seen]


def find_terms(
    snapshot: Snapshot, pending: Iterable[TaskShape], tasks: Iterable[Task]
) -> tuple[Term, ...]:
    """Return the distinct terms of `pending`, and the relevant anti-affinity terms of residents.

    An anti-affinity term of residents is relevant only if it selects one of the pending tasks
    `tasks`.
    """
    found: dict[TermKey, None] = {}
    for shape in pending:
        found.update(dict.fromkeys(_keys(shape)))
    of_residents: dict[TermKey, None] = {}
    for shape in snapshot.resident_shapes:
        if shape.pod_anti_affinity:
            of_residents.update(dict.fromkeys(_anti_keys(shape)))
    keys = [*found, *(key for key in of_residents if key not in found)]
    # The keys keep the terms in memory, so that `id(source)` stays valid.
    known: dict[int, frozenset[str] | None] = {}
    for source in chain.from_iterable(sources for _, sources in keys):
        if id(source) not in known:
            known[id(source)] = _namespaces(source, snapshot.namespaces)
    terms = [
        Term(kind, sources, tuple([known[id(s)] for s in sources]), i >= len(found))
        for i, (kind, sources) in enumerate(keys)
    ]
    own, candidates = terms[: len(found)], terms[len(found) :]
    if candidates:
        matcher, matter = TermMatcher(candidates), set[int]()
        for task in tasks:
            matter.update(matcher.selecting(task))
        own += [candidates[m] for m in sorted(matter)]
    return tuple(own)


def terms_of_pending(terms: Sequence[Term]) -> Sequence[Term]:
    """Return the affinity and spread terms that pending tasks carry; they come first in `terms`."""
    number = sum(not term.is_of_residents for term in terms)
    return terms[:number]


def term_of(
    kind: TermKind, source: PodTerm | SpreadTerm, labels_of: Mapping[str, Mapping[str, str]]
) -> Term:
    """Return a term with its namespaces; `labels_of` maps each namespace to its labels."""
    return Term(kind, (source,), (_namespaces(source, labels_of),))


def _keys(shape: TaskShape) -> list[TermKey]:
    terms = shape.pod_affinity
    return [
        *((TermKind.AFFINITY, (t, *(o for o in terms if o is not t))) for t in terms),
        *_anti_keys(shape),
        *((TermKind.SPREAD, (t,)) for t in shape.spread if t.required),
    ]


def _anti_keys(shape: TaskShape) -> list[TermKey]:
    return [(TermKind.ANTI_AFFINITY, (t,)) for t in shape.pod_anti_affinity]


def _namespaces(
    source: PodTerm | SpreadTerm, labels_of: Mapping[str, Mapping[str, str]]
) -> frozenset[str] | None:
    if isinstance(source, SpreadTerm):
        return frozenset({source.namespace})
    selector = source.namespace_selector
    if selector is None:
        return frozenset(source.namespaces)
    if not selector.requirements:
        return None
    chosen = {name for name, labels in labels_of.items() if selector.matches(labels)}
    return frozenset(source.namespaces) | chosen


def build_relations(
    nodes: Sequence[Node],
    columns: NodeColumns,
    terms: tuple[Term, ...],
    ports: tuple[HostPort, ...],
    coming: Coming | None = None,
) -> Relations:
    """For each node, count the residents and decided tasks that match terms or bind host ports."""
    # In `terms`, the terms that pending tasks carry come first (see `find_terms`).
    matcher = TermMatcher(terms_of_pending(terms))
    selected = np.zeros((len(terms), len(nodes)), np.int64)
    carried = np.zeros((len(terms), len(nodes)), np.int64)
    taken = np.zeros((len(ports), len(nodes)), np.bool_)
    number = {t.key: m for m, t in enumerate(terms)}
    is_spread = np.array([t.kind is TermKind.SPREAD for t in terms], np.bool_)
    port_index = PortIndex(enumerate(ports))
    for n, node in enumerate(nodes) if terms or ports else ():
        for task in node.residents:
            rows = matcher.rows(task)
            if task.status is TaskStatus.RELEASING:
                # Spread constraints ignore terminating pods, as in kube-scheduler.
                rows = rows[~is_spread[rows]]
            selected[rows, n] += 1
            for key in _anti_keys(task.shape):
                if key in number:
                    carried[number[key], n] += 1
            if task.shape.host_ports:
                taken[port_index.find_colliding(task.shape.host_ports), n] = True
    if coming is not None:
        selected += coming.selected
        carried += coming.carried
        taken |= coming.port_taken
    domains = [columns.domains(t.source.topology_key) for t in terms]
    domain_of = np.array([d for d, _ in domains], np.int64).reshape(len(terms), len(nodes))
    return Relations(
        terms,
        domain_of,
        np.array([n for _, n in domains], np.int64),
        selected,
        carried,
        ports,
        taken,
        coming,
    )


def count_coming(
    relations: Relations,
    shapes: Sequence[TaskShape],
    selecting: Sequence[Relation],
    tasks: tuple[I64, I64],
    nominated: tuple[I64, I64],
) -> Relations:
    """Return `Relations` whose counts include the tasks that this session has decided.

    Nominated tasks count for anti-affinity and host ports, but not for affinity and spread.

    Parameters
    ----------
    shapes, selecting
        (C,) `TaskShape` of each task class, and indices of the terms that select its tasks.
    tasks, nominated
        Task class and node of each placed task and of each nominated task, as two arrays (m,).

    """
    if not (relations.terms or relations.ports):
        return relations
    more = Coming(
        np.zeros_like(relations.selected),
        np.zeros_like(relations.carried),
        np.zeros_like(relations.port_taken),
    )
    for (task_class, node), is_placed in ((tasks, True), (nominated, False)):
        for c in np.unique(task_class).tolist():
            at = node[task_class == c]
            carried = relations.carried_by(shapes[c])
            for m in selecting[c]:
                kind = relations.terms[m].kind
                # A decided task counts for a spread constraint only if the task has the same
                # constraint.
                counts = is_placed and (kind is not TermKind.SPREAD or m in carried)
                if counts or kind is TermKind.ANTI_AFFINITY:
                    np.add.at(more.selected[m], at, 1)
            for m in carried:
                if relations.terms[m].kind is TermKind.ANTI_AFFINITY:
                    np.add.at(more.carried[m], at, 1)
            for p in relations.find_colliding(shapes[c].host_ports):
                more.port_taken[p, at] = True
    known = relations.coming
    coming = more
    if known is not None:
        taken = known.port_taken | more.port_taken
        coming = Coming(known.selected + more.selected, known.carried + more.carried, taken)
    return replace(
        relations,
        selected=relations.selected + more.selected,
        carried=relations.carried + more.carried,
        port_taken=relations.port_taken | more.port_taken,
        coming=coming,
    )
