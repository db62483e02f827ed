"""Limit the affinity terms of running pods that a session compares with pending pods.

Pods may run for days, so any user who may create pods can let any number of affinity terms
accumulate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.selectors import LabelSelector, narrowest_labels
from optsched.cluster.snapshot import are_identical
from optsched.cluster.task import PodTerm, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task, TaskShape

MOST_ALIKE: Final = 200
"""Maximum number of affinity terms per namespace that require the same pod label, or no label."""

_EVERYTHING: Final = LabelSelector(())


def with_coarse_terms(snapshot: Snapshot) -> tuple[Snapshot, int]:
    """Limit the affinity terms of running pods; return the snapshot and the number of excess terms.

    In each namespace, up to `MOST_ALIKE` terms that select pods by the same label are kept. Each
    excess anti-affinity term is widened to all pods in the namespaces that it may select, so no pod
    starts where the original term forbids it. Excess preferred terms are dropped. Returns the same
    snapshot if there are no excess terms.
    """
    terms: dict[str, dict[PodTerm, None]] = {}
    for node in snapshot.nodes:
        for namespace, found in node.derived(_terms_of_residents):
            terms.setdefault(namespace, {}).update(dict.fromkeys(found))
    excess = {
        namespace: beyond
        for namespace, found in terms.items()
        if len(found) > MOST_ALIKE and (beyond := _find_excess(tuple(found)))
    }
    if not excess:
        return snapshot, 0
    keys = {key for node in snapshot.nodes for key in node.labels}
    shapes: dict[tuple[str, TaskShape], TaskShape] = {}
    changed: dict[str, Task] = {}

    def limit(task: Task) -> Task:
        beyond = excess.get(task.namespace)
        if not beyond or task.status is TaskStatus.PENDING:
            return task
        if task.key not in changed:
            at = task.namespace, task.shape
            if at not in shapes:
                shapes[at] = _limit_terms(task.shape, task.namespace, beyond, keys)
            shape = shapes[at]
            changed[task.key] = task if shape is task.shape else replace(task, shape=shape)
        return changed[task.key]

    def limit_all(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        limited = tuple(map(limit, tasks))
        return tasks if are_identical(limited, tasks) else limited

    nodes = [
        node
        if (tasks := limit_all(node.residents)) is node.residents
        else replace(node, residents=tasks)
        for node in snapshot.nodes
    ]
    gangs = [
        gang if (tasks := limit_all(gang.tasks)) is gang.tasks else replace(gang, tasks=tasks)
        for gang in snapshot.gangs
    ]
    limited = replace(snapshot, nodes=tuple(nodes), gangs=tuple(gangs))
    return limited, sum(map(len, excess.values()))


def _terms_of_residents(node: Node) -> tuple[tuple[str, tuple[PodTerm, ...]], ...]:
    """Return the distinct affinity terms of a node's pods for each namespace of the pods."""
    found: dict[str, dict[PodTerm, None]] = {}
    for task in node.residents:
        shape = task.shape
        if shape.pod_anti_affinity or shape.preferred_pods:
            mine = found.setdefault(task.namespace, {})
            mine.update(dict.fromkeys(shape.pod_anti_affinity))
            mine.update((term, None) for _, term in shape.preferred_pods)
    return tuple((namespace, tuple(terms)) for namespace, terms in found.items())


def _find_excess(terms: Sequence[PodTerm]) -> frozenset[PodTerm]:
    """Return the excess terms: all but `MOST_ALIKE` of the terms with the same required label."""
    number: Counter[tuple[str, str] | None] = Counter()
    beyond = set()
    for term, labels in zip(
        terms, narrowest_labels([term.selector for term in terms]), strict=True
    ):
        if max(map(number.__getitem__, labels or (None,))) < MOST_ALIKE:
            number.update(labels or (None,))
        else:
            beyond.add(term)
    return frozenset(beyond)


def _limit_terms(
    shape: TaskShape, namespace: str, beyond: Collection[PodTerm], keys: Collection[str]
) -> TaskShape:
    """Return `shape`, in which the excess terms `beyond` are widened or, if preferred, dropped.

    `keys` holds the label keys of nodes. Excess terms whose topology key is not a node label are
    dropped too.
    """
    exact, coarse = [], dict[tuple[bool, str], None]()
    for term in shape.pod_anti_affinity:
        if term not in beyond:
            exact.append(term)
        elif term.selector is not None and term.topology_key in keys:
            is_own = term.namespace_selector is None and {namespace}.issuperset(term.namespaces)
            coarse[is_own, term.topology_key] = None
    wide = (
        PodTerm(_EVERYTHING, (namespace,), None if is_own else _EVERYTHING, key)
        for is_own, key in coarse
    )
    preferred = tuple(each for each in shape.preferred_pods if each[1] not in beyond)
    is_limited = len(exact) < len(shape.pod_anti_affinity)
    if not is_limited and len(preferred) == len(shape.preferred_pods):
        return shape
    return replace(shape, pod_anti_affinity=(*exact, *wide), preferred_pods=preferred)
