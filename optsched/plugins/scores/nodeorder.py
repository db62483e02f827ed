"""Node scores by load, balance, affinity, soft taints, images and data sets.

Mathematics: models/formulation/nodeorder.md and models/formulation/data_locality.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import TaintEffect
from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.extension_points import Greedy, Rule
from optsched.plugins.gangs.gang import first_task
from optsched.plugins.topology.preferences import find_preferences
from optsched.problem.relations import TermKind
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import LiveScorer, Scorer
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.topology.preferences import Preferences
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem


TOP = 100.0
_TOP = int(TOP)
_MIB = 1 << 20
_IMAGES_FROM, _IMAGES_FULL = 23 * _MIB, 1000 * _MIB
"""Image bytes up to which the score is 0, and bytes per container from which it is 100."""


@dataclass(frozen=True)
class NodeOrder(Rule):
    """The weighted sum of several node scores; a weight of 0 disables the score."""

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
        """See `Rule`. Returns None if no task has preferences about other pods."""
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

        `task_class` (...) is broadcast against `used` and `offered` (..., R).
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
        """Return the scores of nodes after one more task with the given request is added.

        `request` contains the CPU and memory requests. `cpus` and `memory` are pairs of used and
        allocatable amounts.
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
            # Converting whole arrays before the division is faster than dividing arrays of
            # integers.
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
            parts.append(self.image_locality * _held_images(problem, shape.wants.images))
        if self.node_affinity and shape.preferred_nodes:
            preferred = np.zeros(problem.num_nodes)
            for weight, term in shape.preferred_nodes:
                preferred += weight * problem.columns.matches(term)
            parts.append(self.node_affinity * _scaled(preferred))
        codes, marks = problem.columns.taints()
        if self.taint_toleration and any(marks):
            # For each set of taints, the number of untolerated `PreferNoSchedule` taints.
            shunned = np.zeros(len(marks))
            for i, taints in enumerate(marks):
                soft = (t for t in taints if t.effect is TaintEffect.PREFER_NO_SCHEDULE)
                shunned[i] = sum(not any(t.tolerates(s) for t in shape.tolerations) for s in soft)
            if shunned.any():
                parts.append(self.taint_toleration * (TOP - _scaled(shunned[codes])))
        preferences = problem.derived(find_preferences)
        task = None if preferences is None else preferences.representatives.get(task_class)
        if preferences is not None and task is not None:
            met = self.score_preferences(preferences, task_class, task, problem.ready)
            parts += [] if met is None else [met]
        return sum(parts[1:], parts[0]) if parts else None

    def score_preferences(
        self, preferences: Preferences, task_class: int, task: Task, nodes: Bool
    ) -> F64 | None:
        """Return node scores (N,) by the task's preferences about pods, and those that select it.

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

    `_preferences` counts the pods on each node at the session start, and `_standing` also counts
    the tasks placed since. `_start` is `problem.task_start` as a list. `_before` contains the
    scores at the session start, by task class.
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
        # The labels of the gang's first task of the class stand for those of all its tasks of the
        # class.
        problem, start = self._preferences.problem, self._start[gang]
        mine = problem.task_class[start : self._start[gang + 1]]
        task = problem.task(start + int((mine == task_class).argmax()))
        standing = self._standing
        np.add.at(standing.selected, (standing.matcher.rows(task)[:, None], nodes), counts)
        for weight, m in standing.affinity_terms(task.shape):
            np.add.at(standing.carried[m], nodes, weight * counts)


def _scaled(raw: F64) -> F64:
    """Return scores scaled so that the largest score is 100 (`DefaultNormalizeScore`)."""
    top = raw.max(initial=0.0)
    return raw if top <= 0 else np.floor(raw * TOP / top)


def _held_images(problem: Problem, images: Sequence[str]) -> F64:
    """Return scores (N,), 0 to 100, by the bytes of `images` on each node (`ImageLocality`).

    An image is weighted by the fraction of nodes that store it, so that pods do not concentrate on
    one node.
    """
    sizes = problem.derived(_image_sizes)
    total = np.zeros(problem.num_nodes, np.int64)
    for image in filter(None, images):
        held = sizes[image]
        spread = (held > 0).sum() / problem.num_nodes
        total += (held * spread).astype(np.int64)
    most = _IMAGES_FULL * len(images)
    part = np.clip(total, _IMAGES_FROM, most) - _IMAGES_FROM
    return (part * _TOP // (most - _IMAGES_FROM)).astype(np.float64)


def _image_sizes(problem: Problem) -> Mapping[str, I64]:
    """Return each image's bytes (N,) on each node, keyed by image; 0 if the node lacks it."""
    named = {name for shape in problem.classes.shapes for name in shape.wants.images if name}
    stores = [node.store.size_of for node in problem.snapshot.nodes]
    return {name: np.array([s.get(name, 0) for s in stores], np.int64) for name in named}


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
