"""Required affinity and anti-affinity between pods, within the topology domains of a node label.

Mathematics: models/formulation/pod_affinity.md. Upstream: `InterPodAffinity`. A domain satisfies an
affinity term of a pod if a pod that the term selects runs there. A selected pod that the plan
places in the domain also suffices, unless it carries the term itself. If every selected pod carries
the term, all pods that carry it must start in one domain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import PodTerm
from optsched.plugins.extension_points import Blocker, Greedy, Rule, Switch, Violation
from optsched.problem.relations import TermKind
from optsched.problem.running import running_tasks, selected_tasks, stakes_in, without_terminating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem


class PodAffinity(Rule):
    """Rule: required pod affinity and anti-affinity hold, including the terms of running pods."""

    name = "pod-affinity"
    hard_switch = Switch.PREDICATE
    mask_sees_pods = True
    eviction_can_break = True
    ties_by_relations = True

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        standing = _TasksByDomain(world)
        for task, _, node in world.placements:
            for term in task.shape.pod_anti_affinity:
                for other in standing.other_tasks(term.topology_key, node, task):
                    if _selects(world, term, other):
                        detail = f"anti-affinity to {other.key} ({term}) on node {node.name}"
                        yield Violation(self.name, f"task {task.key}", detail)
            for other, term in standing.excluding(node, task):
                detail = f"{other.key} has anti-affinity to the task ({term}) on node {node.name}"
                yield Violation(self.name, f"task {task.key}", detail)
        placed = {p.task.key for p in world.placements}
        fresh: dict[tuple[PodTerm, ...], set[str]] = {}
        known: dict[tuple[str, tuple[PodTerm, ...]], _SelectedPods] = {}
        for task, _, node in world.placements:
            terms = task.shape.pod_affinity
            for term in terms:
                domain = node.labels.get(term.topology_key)
                if domain is None:
                    detail = f"node {node.name} lacks the label {term.topology_key} of {term}"
                    yield Violation(self.name, f"task {task.key}", detail)
                    continue
                at = term.topology_key, terms
                if at not in known:
                    known[at] = _locate_selected(standing, placed, *at)
                selected = known[at]
                if domain in selected.others:
                    continue
                if not selected.is_fresh or domain not in selected.peers:
                    detail = (
                        f"no pod in the domain of node {node.name} matches the affinity ({term})"
                    )
                    yield Violation(self.name, f"task {task.key}", detail)
                fresh.setdefault((term, *terms), set()).add(domain)
        for (term, *_), domains in fresh.items():
            if len(domains) > 1:
                detail = f"pods that select each other ({term}) start in {len(domains)} domains"
                yield Violation(self.name, "all tasks", detail)

    # --- masks -----------------------------------------------------------------------------------

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`. The mask excludes nodes by anti-affinity between the class and residents."""
        if not problem.relations.terms:
            return None
        allowed = np.ones(problem.num_nodes, np.bool_)
        for group in _find_anti_affinity(problem, task_class):
            allowed &= ~group.find_excluded_nodes(problem, *problem.derived(_find_residents))
        return None if allowed.all() else allowed

    def blockers(self, problem: Problem, task_class: int) -> Sequence[Blocker]:
        """See `Blocking`. The blockers are running tasks with anti-affinity in either direction."""
        relations = problem.relations
        unwanted = relations.carried_by(problem.classes.shapes[task_class])
        found = [(m, selected_tasks(problem)) for m in unwanted]
        carriers = problem.derived(_find_carriers)
        found += [(m, carriers) for m in problem.classes.relations[task_class]]
        return [
            Blocker(tasks[m], relations.domain_of[m])
            for m, tasks in found
            if relations.terms[m].kind is TermKind.ANTI_AFFINITY and len(tasks[m])
        ]

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        return "did not satisfy pod affinity or anti-affinity"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`. The class carries a term, or a term of a pending task selects the class."""
        if not problem.relations.terms:
            return False
        if _find_carried_terms(problem, task_class):
            return True
        carried = problem.derived(_find_pending_terms)
        return not carried.isdisjoint(problem.classes.relations[task_class])

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        kinds = {t.kind for t in problem.relations.terms}
        relevant = kinds & {TermKind.AFFINITY, TermKind.ANTI_AFFINITY}
        return _SelectedCounts(problem) if relevant else None

    # --- encode ----------------------------------------------------------------------------------

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`. The constraints are in models/formulation/pod_affinity.md."""
        for m, term in enumerate(nodes.gang_alone.relations.terms):
            if term.kind is TermKind.ANTI_AFFINITY:
                _encode_anti_affinity(nodes, m)
        for m, term in enumerate(nodes.problem.relations.terms):
            if term.kind is TermKind.AFFINITY:
                _encode_affinity(nodes, m)

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """See `VictimRelevance`. Running tasks that the same affinity terms select are equivalent.

        After the eviction of all running tasks that the terms select, pending pods that select each
        other may start in another domain.
        """
        relations = problem.relations
        carried = relations.carried_by(problem.classes.shapes[task_class])
        selected = [m for m in carried if relations.terms[m].kind is TermKind.AFFINITY]
        return stakes_in(problem, selected)


# --- arrays --------------------------------------------------------------------------------------


def _mask_domains(problem: Problem, m: int, count: I64 | Bool) -> Bool:
    """Return the mask (N,) of nodes in the domains of term `m` where some `count` is positive."""
    domain = problem.relations.domain_of[m]
    known = domain >= 0
    hit = np.zeros(int(problem.relations.num_domains[m]) + 1, np.bool_)
    hit[domain[known & (count > 0)]] = True
    hit[-1] = False  # nodes without the label belong to no domain
    near: Bool = hit[domain]
    return near


@dataclass(frozen=True, eq=False)
class _AntiAffinity:
    """The anti-affinity terms of one topology key that a task class carries or that select it.

    Attributes
    ----------
    m
        Index of one of the terms; all of them have the same domains.
    carried, selecting
        Indices of the terms that the class carries, and of the terms that select the class.

    """

    m: int
    carried: I64
    selecting: I64

    def find_excluded_nodes(self, problem: Problem, has_selected: Bool, has_carrier: Bool) -> Bool:
        """Return the mask (N,) of nodes that a task of the class must not use.

        The masks `has_selected` and `has_carrier` (M, N) are True for nodes with a pod that a term
        selects, or that carries the term.
        """
        is_taken: Bool = np.logical_or.reduce(has_selected[self.carried])
        is_taken |= np.logical_or.reduce(has_carrier[self.selecting])
        return _mask_domains(problem, self.m, is_taken)


def _find_residents(problem: Problem) -> tuple[Bool, Bool]:
    """Return masks (M, N) of nodes with residents that a term selects, or that carry the term."""
    return problem.relations.selected > 0, problem.relations.carried > 0


def _find_anti_affinity(problem: Problem, task_class: int) -> tuple[_AntiAffinity, ...]:
    """Return the anti-affinity terms that a class carries or that select it, per topology key."""
    known = problem.derived(_anti_affinity_cache)
    if task_class not in known:
        carried_terms = problem.relations.carried_by(problem.classes.shapes[task_class])
        key_of = problem.derived(_number_topology_keys)
        # The indices of the anti-affinity terms, by index of their topology key.
        carried, selecting = (
            {int(key): terms[key_of[terms] == key] for key in np.unique(key_of[terms]) if key >= 0}
            for terms in (
                np.array(carried_terms, np.int64),
                np.array(problem.classes.relations[task_class], np.int64),
            )
        )
        none = np.zeros(0, np.int64)
        known[task_class] = tuple(
            _AntiAffinity(
                int(np.concatenate((carried.get(key, none), selecting.get(key, none)))[0]),
                carried.get(key, none),
                selecting.get(key, none),
            )
            for key in {**carried, **selecting}
        )
    return known[task_class]


def _anti_affinity_cache(_: Problem) -> dict[int, tuple[_AntiAffinity, ...]]:
    return {}


def _number_topology_keys(problem: Problem) -> I64:
    """Return the index (M,) of each anti-affinity term's topology key; -1 for other terms."""
    known: dict[str, int] = {}
    return np.array(
        [
            known.setdefault(term.source.topology_key, len(known))
            if term.kind is TermKind.ANTI_AFFINITY
            else -1
            for term in problem.relations.terms
        ],
        np.int64,
    )


def _find_carried_terms(problem: Problem, task_class: int) -> list[int]:
    """Return the indices of the affinity and anti-affinity terms that a task class carries."""
    carried = problem.relations.carried_by(problem.classes.shapes[task_class])
    return [m for m in carried if problem.relations.terms[m].kind is not TermKind.SPREAD]


def _find_carriers(problem: Problem) -> list[I64]:
    """Return, for each term, the running tasks that carry it as an anti-affinity term."""
    found: dict[PodTerm, list[int]] = {}
    for v, task in enumerate(running_tasks(problem).tasks):
        for term in dict.fromkeys(task.shape.pod_anti_affinity):
            found.setdefault(term, []).append(v)
    sources = (term.source for term in problem.relations.terms)
    return [
        np.array(found.get(source, ()) if isinstance(source, PodTerm) else (), np.int64)
        for source in sources
    ]


def _find_terms_of_tasks(problem: Problem) -> tuple[list[I64], list[I64]]:
    """Return, for each running task, the terms that select it and the terms that it carries."""
    number = len(running_tasks(problem))
    both = []
    for tasks_by_term in (selected_tasks(problem), problem.derived(_find_carriers)):
        found: list[list[int]] = [[] for _ in range(number)]
        for m, tasks in enumerate(tasks_by_term):
            for v in tasks.tolist():
                found[v].append(m)
        both.append([np.array(terms, np.int64) for terms in found])
    return both[0], both[1]


def _find_pending_terms(problem: Problem) -> set[int]:
    return {m for c in range(len(problem.classes.shapes)) for m in _find_carried_terms(problem, c)}


class _TermCounts:
    """Counts (M, N) of pods per term and node.

    Masks are updated together with the counts, because comparing the counts of thousands of terms
    for each task class would be slow.

    Attributes
    ----------
    counts, leaving
        (M, N) number of pods, and number of these pods that terminate or are evicted.
    is_positive, stays_positive
        (M, N) True if a pod counts, and True if a pod counts that is not leaving.

    """

    def __init__(self, counts: I64, staying: I64) -> None:
        self.counts = counts.copy()
        self.leaving = counts - staying
        self.is_positive: Bool = counts > 0
        self.stays_positive: Bool = staying > 0

    def add(self, terms: I64, nodes: I64, numbers: I64) -> None:
        """Add `numbers` (n,) of pods on `nodes` (n,) to the counts of each term in `terms` (m,)."""
        if len(terms):
            at = terms[:, None], nodes
            np.add.at(self.counts, at, numbers)
            self._refresh(at)

    def release(self, terms: I64, node: int, number: int) -> None:
        """Record that `number` pods on a node are leaving, for each term in `terms` (m,)."""
        self.leaving[terms, node] += number
        self._refresh((terms, node))

    def _refresh(self, at: tuple[I64, I64 | int]) -> None:
        counts = self.counts[at]
        self.is_positive[at] = counts > 0
        self.stays_positive[at] = counts > self.leaving[at]


class _SelectedCounts(Greedy):
    """Tracks, per term and node, the number of pods that the term selects or that carry it.

    Nominated pods count for anti-affinity, but only placed and running pods satisfy affinity terms.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        later = without_terminating(problem).relations
        self._selected = _TermCounts(problem.relations.selected, later.selected)
        self._carried = _TermCounts(problem.relations.carried, later.carried)
        self._bound = problem.relations.selected.copy()
        classes = range(len(problem.classes.shapes))
        carries = [_find_carried_terms(problem, c) for c in classes]
        self._carries = [np.array(carried, np.int64) for carried in carries]
        terms = problem.relations.terms
        self._affinity = [
            [m for m in carried if terms[m].kind is TermKind.AFFINITY] for carried in carries
        ]
        self._selecting = [np.array(m, np.int64) for m in problem.classes.relations]
        self._are_selecting = [frozenset(m) for m in problem.classes.relations]

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        problem = self._problem
        allowed = np.ones(problem.num_nodes, np.bool_)
        selected, carried = self._selected, self._carried
        masks = (
            (selected.stays_positive, carried.stays_positive)
            if later
            else (selected.is_positive, carried.is_positive)
        )
        for group in _find_anti_affinity(problem, task_class):
            allowed &= ~group.find_excluded_nodes(problem, *masks)
        for m in self._affinity[task_class]:
            leave = selected.leaving[m] if later else 0
            near = _mask_domains(problem, m, self._bound[m] - leave)
            if not near.any() and m in self._are_selecting[task_class]:
                # If the term selects no placed or running pod, pods that select each other may
                # start in a domain with selected nominated pods. If no domain has selected
                # nominated pods, the pods may start in any domain.
                near = _mask_domains(problem, m, selected.counts[m] - leave)
                near = near if near.any() else problem.relations.domain_of[m] >= 0
            allowed &= near
        return None if allowed.all() else allowed

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        selecting = self._selecting[task_class]
        self._selected.add(selecting, nodes, counts)
        self._carried.add(self._carries[task_class], nodes, counts)
        if len(selecting):
            np.add.at(self._bound, (selecting[:, None], nodes), counts)

    def record_eviction(self, victim: int, sign: int) -> None:
        node = int(running_tasks(self._problem).node_of[victim])
        selecting, carried = self._problem.derived(_find_terms_of_tasks)
        self._selected.release(selecting[victim], node, sign)
        self._carried.release(carried[victim], node, sign)

    def record_nomination(self, task_class: int, nodes: I64, counts: I64) -> None:
        selecting = self._selecting[task_class][:, None]
        if len(selecting):
            np.add.at(self._bound, (selecting, nodes), -counts)


@dataclass(frozen=True, eq=False)
class _TermVariables:
    """The domain (N,) of each node for one term, and the task variables (C, N) of a node model."""

    _model: LinearModel
    _supplied: I64
    _domain: I64

    def variables(self, classes: Sequence[int], domain: int) -> I64:
        """Return the variables that count tasks of the classes on the nodes of a domain."""
        rows = np.array(classes, np.int64)
        block = self._supplied[np.ix_(rows, np.flatnonzero(self._domain == domain))]
        return block[block >= 0]

    def forbid(self, variables: I64) -> None:
        """Add the constraint Σ variables ≤ 0, so that the counted tasks are not placed."""
        if len(variables):
            self._model.add_rows(0, variables, 1, upper=0)

    def add_presence(self, variables: I64) -> int | None:
        """Return a new 0-1 variable that is 1 if one of `variables` is positive.

        Returns None if `variables` is empty.
        """
        if not len(variables):
            return None
        (flag,) = self._model.add_variables(0, 1)
        most = int(self._model.bounds[1][variables].sum())
        self._model.add_rows(
            0, np.append(variables, flag), np.append(np.ones_like(variables), -most), upper=0
        )
        return int(flag)


def _split_classes(problem: Problem, m: int) -> tuple[list[int], list[int], list[int]]:
    """Return three lists of task classes that carry term `m` or that the term selects.

    The first list contains the classes that carry the term and that the term selects. The second
    list contains the classes that only carry the term. The third list contains the classes that the
    term only selects.
    """
    classes = range(len(problem.classes.shapes))
    carriers = {c for c in classes if m in _find_carried_terms(problem, c)}
    selected = {c for c in classes if m in problem.classes.relations[c]}
    both = carriers & selected
    return sorted(both), sorted(carriers - both), sorted(selected - both)


def _by_domain(problem: Problem, m: int, count: I64) -> I64:
    """Return, for each domain (D,) of a term, the sum of the counts (N,) over its nodes."""
    domain = problem.relations.domain_of[m]
    known = domain >= 0
    sums = np.bincount(
        domain[known], weights=count[known], minlength=int(problem.relations.num_domains[m])
    )
    return sums.astype(np.int64)


def _encode_anti_affinity(nodes: NodeModel, m: int) -> None:
    """Add constraints that separate pods with an anti-affinity term from the pods it selects."""
    problem, model = nodes.gang_alone, nodes.model
    supply = _TermVariables(model, nodes.supplied, problem.relations.domain_of[m])
    both, carriers, selected = _split_classes(problem, m)
    held_selected = _by_domain(problem, m, problem.relations.selected[m])
    held_carriers = _by_domain(problem, m, problem.relations.carried[m])
    for d in range(int(problem.relations.num_domains[m])):
        if held_selected[d]:
            supply.forbid(supply.variables([*both, *carriers], d))
        if held_carriers[d]:
            supply.forbid(supply.variables([*both, *selected], d))
        alone = supply.variables(both, d)
        if len(alone):
            model.add_rows(0, alone, 1, upper=1)
        groups = [supply.add_presence(supply.variables(g, d)) for g in (both, carriers, selected)]
        flags = [f for f in groups if f is not None]
        for i, first in enumerate(flags):
            for second in flags[i + 1 :]:
                model.add_rows(0, [first, second], 1, upper=1)


def _encode_affinity(nodes: NodeModel, m: int) -> None:
    """Add constraints that place pods with an affinity term in domains with pods it selects.

    Pods that select each other may also start in one new domain, which has no selected pods.
    """
    problem, model, evictions = nodes.problem, nodes.model, nodes.evictions
    both, carriers, selected = _split_classes(problem, m)
    if (nodes.supplied[np.array([*both, *carriers], np.int64)] < 0).all():
        return
    supply = _TermVariables(model, nodes.supplied, problem.relations.domain_of[m])
    selected_groups = evictions.groups(selected_tasks(problem)[m])
    domain_of_group = problem.relations.domain_of[m][evictions.node[selected_groups]]
    held = _by_domain(problem, m, problem.relations.selected[m])
    groups = [selected_groups[domain_of_group == d] for d in range(len(held))]
    may_leave = np.array([int(evictions.number[of_domain].sum()) for of_domain in groups], np.int64)
    held = held - may_leave
    starts: list[int] = []
    for d in range(len(held)):
        if held[d] > 0:
            continue
        plain = supply.variables(selected, d)
        peers = supply.variables(both, d)
        (start,) = model.add_variables(0, 0 if (held > 0).any() else 1)
        starts.append(int(start))
        flag = supply.add_presence(supply.variables([*both, *carriers], d))
        reasons = np.append(plain, start)
        if len(groups[d]):
            # The variable `stays` can be 1 only if a running task of the domain's groups is not
            # evicted.
            (stays,) = model.add_variables(0, 1)
            remaining = np.append(evictions.leave[groups[d]], stays)
            model.add_rows(0, remaining, 1, upper=int(may_leave[d]))
            reasons = np.append(reasons, stays)
        if flag is not None:
            factors = np.append(-np.ones(len(reasons), np.int64), 1)
            model.add_rows(0, np.append(reasons, flag), factors, upper=0)
        # A new domain needs a pod that carries the term and that the term selects.
        model.add_rows(0, np.append(peers, start), np.append(-np.ones_like(peers), 1), upper=0)
    supply.forbid(supply.variables([*both, *carriers], -1))
    if starts:
        model.add_rows(0, starts, 1, upper=1)
        # Pods can start in a new domain only if all selected running tasks are evicted. The
        # constraint for each group of running tasks is: number of tasks · Σ start ≤ number of
        # evicted tasks.
        for group in np.concatenate(groups).tolist():
            numbers = [int(evictions.number[group])] * len(starts)
            model.add_rows(0, [*starts, int(evictions.leave[group])], [*numbers, -1], upper=0)


# --- domain objects ------------------------------------------------------------------------------


@dataclass(eq=False)
class _TasksByDomain:
    """All running and placed tasks, grouped by topology domain."""

    world: World
    _by_domain: dict[str, dict[str, list[Task]]] = field(default_factory=dict, init=False)

    def excluding(self, node: Node, task: Task) -> Iterator[tuple[Task, PodTerm]]:
        """Yield (other task, anti-affinity term) pairs that exclude a task from a node."""
        for key, by_value in self._with_anti_affinity.items():
            value = node.labels.get(key)
            terms = {} if value is None else by_value.get(value, {})
            for term, carriers in terms.items():
                if _selects(self.world, term, task):
                    yield from ((other, term) for other in carriers if other is not task)

    @cached_property
    def _with_anti_affinity(self) -> dict[str, dict[str, dict[PodTerm, list[Task]]]]:
        """The tasks that carry each anti-affinity term, by topology key and topology value."""
        nodes, placed = self.world.snapshot.nodes, self.world.placements
        tasks = [(t, n) for n in nodes for t in n.derived(_with_anti_affinity)]
        tasks += [(p.task, p.node) for p in placed if p.task.shape.pod_anti_affinity]
        found: dict[str, dict[str, dict[PodTerm, list[Task]]]] = {}
        for task, node in tasks:
            for term in task.shape.pod_anti_affinity:
                value = node.labels.get(term.topology_key)
                if value is not None:
                    by_value = found.setdefault(term.topology_key, {})
                    by_value.setdefault(value, {}).setdefault(term, []).append(task)
        return found

    def other_tasks(self, key: str, node: Node, task: Task) -> Iterable[Task]:
        """Return the tasks in the domain of a node, except `task`."""
        if key not in self._by_domain:
            groups: dict[str, list[Task]] = {}
            for other, on_node in self.tasks:
                domain = on_node.labels.get(key)
                if domain is not None:
                    groups.setdefault(domain, []).append(other)
            self._by_domain[key] = groups
        value = node.labels.get(key)
        in_domain = () if value is None else self._by_domain[key].get(value, ())
        return (other for other in in_domain if other is not task)

    @cached_property
    def tasks(self) -> Sequence[tuple[Task, Node]]:
        residents = [(t, n) for n in self.world.snapshot.nodes for t in n.residents]
        return residents + [(p.task, p.node) for p in self.world.placements]


def _with_anti_affinity(node: Node) -> tuple[Task, ...]:
    return tuple(task for task in node.residents if task.shape.pod_anti_affinity)


def _selects(world: World, term: PodTerm, task: Task) -> bool:
    if term.selector is None or not term.selector.matches(task.labels):
        return False
    if task.namespace in term.namespaces:
        return True
    wider = term.namespace_selector
    return wider is not None and wider.matches(world.snapshot.namespaces.get(task.namespace, {}))


@dataclass(frozen=True, slots=True)
class _SelectedPods:
    """The domains of one topology key with pods that all given affinity terms select.

    Attributes
    ----------
    peers
        Domains with a peer: a selected pod that the plan places and that carries exactly these
        terms.
    others
        Domains with a selected pod that is not a peer.
    is_fresh
        True if the plan places all selected pods that are in a domain.

    """

    peers: frozenset[str]
    others: frozenset[str]
    is_fresh: bool


def _locate_selected(
    standing: _TasksByDomain, placed: AbstractSet[str], key: str, terms: tuple[PodTerm, ...]
) -> _SelectedPods:
    peers: set[str] = set()
    others: set[str] = set()
    is_fresh = True
    for task, node in standing.tasks:
        if not all(_selects(standing.world, term, task) for term in terms):
            continue
        domain = node.labels.get(key)
        if domain is not None:
            is_peer = task.key in placed and task.shape.pod_affinity == terms
            (peers if is_peer else others).add(domain)
            is_fresh = is_fresh and task.key in placed
    return _SelectedPods(frozenset(peers), frozenset(others), is_fresh)
