"""Node scores by load, balance, affinity, soft taints, soft spread, images and data sets.

Mathematics: models/formulation/nodeorder.md and models/formulation/data_locality.md. Upstream:
scoring of `InterPodAffinity` and `PodTopologySpread`.

`Preferences` computes the scores of preferred pod (anti-)affinity and soft topology spread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from optsched.cluster.selectors import TaintEffect, TolerationIndex
from optsched.cluster.task import SpreadTerm, TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.gang import first_task
from optsched.plugins.nodes.node_filters import NodeAffinity, Taints
from optsched.problem.relations import TermKind, TermMatcher, term_of
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import LiveScorer, Scorer
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.relations import Term, TermKey
    from optsched.problem.shapes import Relation

TOP = 100.0
_TOP = int(TOP)
_MIB = 1 << 20
_IMAGES_FROM, _IMAGES_FULL = 23 * _MIB, 1000 * _MIB
"""The image bytes up to which the score is 0, and the bytes per container at which it is 100."""


@dataclass(frozen=True)
class NodeOrder(Rule):
    """The weighted sum of several node scores; the weight 0 disables a score."""

    name = "nodeorder"

    least_requested: int = 1
    most_requested: int = 0
    balanced_resource: int = 1
    node_affinity: int = 2
    taint_toleration: int = 3
    pod_affinity: int = 2
    topology_spread: int = 2
    image_locality: int = 1

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no pod has preferences about other pods."""
        preferences = problem.derived(find_preferences)
        if preferences is None or not (self.pod_affinity or self.topology_spread):
            return None
        start = problem.task_start.tolist()
        selected, carried = preferences.selected.copy(), preferences.carried.copy()
        standing = replace(preferences, selected=selected, carried=carried)
        return _AsPlaced(self, preferences, standing, start)

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`.

        The score depends on CPU load, memory load, and the balance between the two.
        """
        cpu, memory = problem.resources.index(CPU), problem.resources.index(MEMORY)
        row = problem.classes.request[task_class]
        request = int(row[cpu]), int(row[memory])
        return lambda used, offered: self._load(
            request, (used[:, cpu], offered[:, cpu]), (used[:, memory], offered[:, memory])
        )

    def block_scores(
        self, problem: Problem, task_class: I64, used: I64, offered: I64
    ) -> F64 | None:
        """Return the scores of `scorer` for broadcast arrays of task classes and nodes.

        The array `task_class` is broadcast against the leading axes of `used` and `offered`
        (..., R).
        """
        cpu, memory = problem.resources.index(CPU), problem.resources.index(MEMORY)
        requests = problem.classes.request
        request = requests[task_class, cpu], requests[task_class, memory]
        cpus = used[..., cpu], offered[..., cpu]
        return self._load(request, cpus, (used[..., memory], offered[..., memory]))

    def _load(
        self,
        request: tuple[int, int] | tuple[I64, I64],
        cpus: tuple[I64, I64],
        memory: tuple[I64, I64],
    ) -> F64:
        """Return the scores of nodes for one more task, by its CPU and memory `request`.

        `cpus` and `memory` are pairs of the used and the allocatable amounts of the nodes.
        """
        least, most, even = self.least_requested, self.most_requested, self.balanced_resource
        all_cpus, all_bytes = np.maximum(cpus[1], 1), np.maximum(memory[1], 1)
        busy_cpu = np.minimum(cpus[0] + request[0], all_cpus)
        busy_memory = np.minimum(memory[0] + request[1], all_bytes)
        total = np.zeros(busy_cpu.shape)
        if least:
            free = (all_cpus - busy_cpu) * _TOP // all_cpus
            free += (all_bytes - busy_memory) * _TOP // all_bytes
            total += least * (free // 2)
        if most:
            busy = busy_cpu * _TOP // all_cpus + busy_memory * _TOP // all_bytes
            total += most * (busy // 2)
        if even:
            # Converting integer arrays to floats before the division is faster than dividing them
            # directly.
            load_cpu = busy_cpu.astype(np.float64) / all_cpus.astype(np.float64)
            load_memory = busy_memory.astype(np.float64) / all_bytes.astype(np.float64)
            apart = np.abs(load_cpu - load_memory)
            # The standard deviation of two numbers is half their difference.
            total += even * np.floor(TOP - apart * (TOP / 2))
        return total

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. The score sums preferred affinity, soft taints, images and soft spread."""
        shape = problem.classes.shapes[task_class]
        parts: list[F64] = []
        if self.image_locality and shape.wants.images:
            parts.append(self.image_locality * _score_images(problem, shape.wants.images))
        if self.node_affinity and shape.preferred_nodes:
            preferred = np.zeros(problem.num_nodes)
            for weight, term in shape.preferred_nodes:
                preferred += weight * problem.columns.matches(term)
            parts.append(self.node_affinity * _scale_to_top(preferred))
        codes, marks = problem.columns.taints()
        if self.taint_toleration and any(marks):
            # The number of untolerated `PreferNoSchedule` taints in each set of taints.
            tolerations = TolerationIndex(shape.tolerations)
            shunned = np.zeros(len(marks))
            for i, taints in enumerate(marks):
                soft = (t for t in taints if t.effect is TaintEffect.PREFER_NO_SCHEDULE)
                shunned[i] = sum(not tolerations.tolerates(taint) for taint in soft)
            if shunned.any():
                parts.append(self.taint_toleration * (TOP - _scale_to_top(shunned[codes])))
        preferences = problem.derived(find_preferences)
        task = None if preferences is None else preferences.representatives.get(task_class)
        if preferences is not None and task is not None:
            met = self.score_preferences(preferences, task_class, task, problem.ready)
            parts += [] if met is None else [met]
        return sum(parts[1:], parts[0]) if parts else None

    def score_preferences(
        self, preferences: Preferences, task_class: int, task: Task, nodes: Bool
    ) -> F64 | None:
        """Return node scores (N,) by the preferences of the task and of other pods for each other.

        `nodes` is the mask (N,) of nodes to score. Returns None if the task has no preference and
        no preference of another pod selects it.
        """
        selecting = preferences.matcher.selecting(task)
        is_preferred = any(preferences.terms[m].kind is TermKind.AFFINITY for m in selecting)
        if not (task.shape.preferred_pods or preferences.spread(task.shape) or is_preferred):
            return None
        score = np.zeros(len(nodes))
        if self.pod_affinity:
            score += self.pod_affinity * preferences.affinity_scores(task_class, selecting, nodes)
        if self.topology_spread and preferences.spread(task.shape):
            score += self.topology_spread * preferences.spread_scores(task_class, nodes)
        return score


@dataclass(eq=False)
class _AsPlaced(Greedy):
    """Updates the class score for pod preferences while tasks are placed.

    `_preferences` counts the pods on each node at the session start. `_standing` counts the pods on
    each node, including the tasks placed in the session. `_before` contains the node scores at the
    session start, by task class. `_start` is `problem.task_start` as a list.
    """

    reads_labels = True

    _rule: NodeOrder
    _preferences: Preferences
    _standing: Preferences
    _start: Sequence[int]
    _before: dict[int, F64 | None] = field(default_factory=dict)

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        preferences = self._preferences
        problem = preferences.problem
        first = first_task(problem, gang, entry)
        task, task_class = problem.task(first), int(problem.task_class[first])
        other, ready = preferences.representatives.get(task_class), problem.ready
        if task_class not in self._before:
            self._before[task_class] = (
                None
                if other is None
                else self._rule.score_preferences(preferences, task_class, other, ready)
            )
        before = self._before[task_class]
        now = self._rule.score_preferences(self._standing, task_class, task, ready)
        if now is None and before is None:
            return None

        def change(nodes: Bool) -> F64:
            met = self._rule.score_preferences(self._standing, task_class, task, nodes)
            zero = np.zeros(len(nodes))
            return (zero if met is None else met) - (zero if before is None else before)

        return change

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        # All tasks of the class in the gang are assumed to have the same labels as the first task.
        problem, start = self._preferences.problem, self._start[gang]
        mine = problem.task_class[start : self._start[gang + 1]]
        task = problem.task(start + int((mine == task_class).argmax()))
        standing = self._standing
        np.add.at(standing.selected, (standing.matcher.rows(task)[:, None], nodes), counts)
        for weight, m in standing.affinity_terms(task.shape):
            np.add.at(standing.carried[m], nodes, weight * counts)


def _scale_to_top(raw: F64) -> F64:
    """Return scores scaled so that the largest score is 100 (`DefaultNormalizeScore`)."""
    top = raw.max(initial=0.0)
    return raw if top <= 0 else np.floor(raw * TOP / top)


def _score_images(problem: Problem, images: Sequence[str]) -> F64:
    """Return scores (N,) from 0 to 100 by the bytes of `images` on each node (`ImageLocality`).

    An image is weighted by the fraction of nodes that store it, so that pods do not concentrate on
    one node.
    """
    sizes = problem.derived(_read_image_sizes)
    total = np.zeros(problem.num_nodes, np.int64)
    for image in filter(None, images):
        held = sizes[image]
        spread = (held > 0).sum() / problem.num_nodes
        total += (held * spread).astype(np.int64)
    most = _IMAGES_FULL * len(images)
    part = np.clip(total, _IMAGES_FROM, most) - _IMAGES_FROM
    return (part * _TOP // (most - _IMAGES_FROM)).astype(np.float64)


def _read_image_sizes(problem: Problem) -> Mapping[str, I64]:
    named = {name for shape in problem.classes.shapes for name in shape.wants.images if name}
    stores = [node.store.size_of for node in problem.snapshot.nodes]
    return {name: np.array([s.get(name, 0) for s in stores], np.int64) for name in named}


# --- preferences about other pods -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Preferences:
    """The soft terms of pending tasks and residents, and the residents that the terms select.

    Attributes
    ----------
    problem_ref
        A weak reference to the problem. A strong reference would form a cycle, which delays the
        release of the problem's memory.
    terms, number_of
        The M distinct soft terms, and the index of each term by term key.
    domains
        For each term, the topology domain (N,) of each node and the number of domains.
    representatives
        The first pending task of each task class, by class.
    matcher
        The matcher that finds the terms that select a task.
    selected
        (M, N) number of residents on each node that each term selects.
    carried
        (M, N) sum of the weights of each term over the residents on each node; 0 for spread terms.

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
        """The index of the first term of each topology key; terms with equal keys share domains."""
        found: dict[str, int] = {}
        for m, term in enumerate(self.terms):
            found.setdefault(term.source.topology_key, m)
        return found

    def _by_topology_key(self, selecting: Relation) -> list[tuple[str, I64]]:
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
        """Return scores (N,), 0 to 100, by affinity between the task and pods in a node's domains.

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
            assert isinstance(term, SpreadTerm)  # noqa: S101  narrows the type for mypy
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
        """Return the sum (N,) of `amounts` over each node's domain; 0 for nodes in no domain."""
        domain, number = self.domains[m]
        sums = np.bincount(domain[domain >= 0], amounts[domain >= 0], minlength=number)
        return np.where(domain >= 0, np.append(sums, 0.0)[domain], 0.0)


def find_preferences(problem: Problem) -> Preferences | None:
    """Return the soft terms of a problem, or None if there are none."""
    nodes = problem.snapshot.nodes
    shapes = dict.fromkeys(problem.classes.shapes)
    found: dict[TermKey, Term] = {t.key: t for t in _list_soft_terms(problem, shapes, spread=True)}
    carriers = [shape for shape in problem.snapshot.resident_shapes if shape.preferred_pods]
    found |= {t.key: t for t in _list_soft_terms(problem, carriers, spread=False)}
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


def _list_soft_terms(
    problem: Problem, shapes: Iterable[TaskShape], *, spread: bool
) -> Iterator[Term]:
    labels_of = problem.snapshot.namespaces
    for shape in shapes:
        for _, term in shape.preferred_pods:
            yield term_of(TermKind.AFFINITY, term, labels_of)
        for soft in shape.spread if spread else ():
            if not soft.required:
                yield term_of(TermKind.SPREAD, soft, labels_of)


NODEORDER = Plugin(
    "nodeorder",
    "prefers nodes by load, balance and affinity",
    (
        Argument("leastrequested.weight", Kind.WHOLE, 1, "weight of idle CPU and memory"),
        Argument("mostrequested.weight", Kind.WHOLE, 0, "weight of CPU and memory in use"),
        Argument("nodeaffinity.weight", Kind.WHOLE, 2, "weight of preferred node affinity"),
        Argument("podaffinity.weight", Kind.WHOLE, 2, "weight of preferred pod affinity"),
        Argument(
            "balancedresource.weight",
            Kind.WHOLE,
            1,
            "weight of the balance between CPU and memory usage",
        ),
        Argument("tainttoleration.weight", Kind.WHOLE, 3, "weight of untolerated soft taints"),
        Argument(
            "imagelocality.weight", Kind.WHOLE, 1, "weight of images that the node already stores"
        ),
        Argument("podtopologyspread.weight", Kind.WHOLE, 2, "weight of soft topology spread"),
    ),
    lambda arguments: (
        NodeOrder(
            least_requested=read_whole(arguments, "leastrequested.weight", 1),
            most_requested=read_whole(arguments, "mostrequested.weight", 0),
            balanced_resource=read_whole(arguments, "balancedresource.weight", 1),
            node_affinity=read_whole(arguments, "nodeaffinity.weight", 2),
            taint_toleration=read_whole(arguments, "tainttoleration.weight", 3),
            pod_affinity=read_whole(arguments, "podaffinity.weight", 2),
            topology_spread=read_whole(arguments, "podtopologyspread.weight", 2),
            image_locality=read_whole(arguments, "imagelocality.weight", 1),
        ),
    ),
)


@dataclass(frozen=True)
class DataLocality(Rule):
    """Scores nodes by the percentage of a task's data sets stored on them, times `weight`."""

    name = "data-locality"

    weight: int = 1

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`."""
        datasets = frozenset(problem.classes.shapes[task_class].wants.datasets)
        if not datasets or not self.weight:
            return None
        held = [len(datasets.intersection(node.store.datasets)) for node in problem.snapshot.nodes]
        return np.floor(np.array(held) * TOP / len(datasets)) * self.weight


DATA_LOCALITY = Plugin(
    "data-locality",
    "prefers nodes that hold the data sets of tasks",
    (Argument("data-locality.weight", Kind.WHOLE, 1, "weight of the score"),),
    lambda a: (DataLocality(read_whole(a, "data-locality.weight", 1)),),
)
