"""The idle capacity of nodes, and per task class how many tasks fit on each node, with scores.

A placement changes only a few nodes. For each task class, arrays hold the number of tasks that fit
on each node, and the nodes' scores. Reading an array updates only the elements of nodes that
changed since the last read. The scores of a task class that fits no node are never computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from optsched.problem.arrays import UNLIMITED, frozen
from optsched.solver.model.node_masks import static_mask, sum_spare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.extension_points import Rule, Scorer
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

NOWHERE = -np.inf
_MANY = 256
"""For up to this many results, repeated searches for the best node are faster than a sort."""


@dataclass(eq=False, slots=True)
class _View:
    """How many tasks of one class fit on each node (N,), and the scores (N,) of the nodes.

    The fit of a node is the number of further tasks that fit on the node. The score of a node is
    the score for placing the next task on the node, or `NOWHERE` if no task fits. `request` holds
    the (resource, amount) pairs that one task requests. `parts` holds the (index, amount) pairs of
    extra resources, which rules define.
    """

    allowed: Bool | None
    request: list[tuple[int, int]]
    parts: list[tuple[int, int]]
    fit: I64
    fit_read: int
    score: F64
    score_read: int


@dataclass(frozen=True, eq=False, slots=True)
class _Scored:
    """Node scores of one task class: constants (N,), and scorers that depend on used amounts."""

    base: F64 | None
    scorers: list[Scorer]


class _Fixed:
    """Properties of task classes that no placement changes; all node tables share these properties.

    The problem caches this object. The object holds only a weak reference to the problem, because a
    reference cycle would stay in memory until a full garbage collection.
    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self._problem_ref = ref(problem)
        self._masking = rules.filters
        self._scoring = rules.scorers
        self._ties_nodes = rules.ties_nodes
        # The arrays are in column-major order, because scorers read columns.
        self.offered = np.asfortranarray(problem.allocatable)
        frozen(self.offered)
        self._tied: dict[int, bool] = {}
        self._asked: dict[int, list[tuple[int, int]]] = {}
        self._scored: dict[int, _Scored] = {}

    @property
    def _problem(self) -> Problem:
        problem = self._problem_ref()
        if problem is None:
            raise ReferenceError("a node table was read after its problem was freed")
        return problem

    def allowed(self, task_class: int) -> Bool | None:
        return static_mask(self._problem, self._masking, task_class)

    def is_tied(self, task_class: int) -> bool:
        if task_class not in self._tied:
            self._tied[task_class] = self._ties_nodes(self._problem, task_class)
        return self._tied[task_class]

    def request_of(self, task_class: int) -> list[tuple[int, int]]:
        """Return the request of one task as (resource index, amount) pairs."""
        if task_class not in self._asked:
            self._asked[task_class] = _amounts(self._problem.classes.request[task_class])
        return self._asked[task_class]

    def scored(self, task_class: int) -> _Scored:
        if task_class not in self._scored:
            base: F64 | None = None
            for rule in self._scoring:
                score = rule.class_score(self._problem, task_class)
                if score is not None:
                    base = score if base is None else base + score
            scorers = scorers_of(self._problem, self._scoring, task_class)
            self._scored[task_class] = _Scored(base, scorers)
        return self._scored[task_class]


def _fixed_of(problem: Problem, rules: RuleSet) -> _Fixed:
    # The cache keeps the rules alive, so no other rule set can get the same id.
    known = problem.derived(_make_cache)
    if id(rules) not in known:
        known[id(rules)] = (rules, _Fixed(problem, rules))
    return known[id(rules)][1]


def _make_cache(_: Problem) -> dict[int, tuple[RuleSet, _Fixed]]:
    return {}


class _Log:
    """The log of changed nodes. The array of the log doubles in size when the array is full.

    `every` (N,) holds the indices of all nodes.
    """

    def __init__(self, num_nodes: int) -> None:
        self.every = np.arange(num_nodes, dtype=np.int64)
        self._nodes = np.empty(64, np.int64)
        self.length = 0

    def append(self, nodes: I64) -> None:
        end = self.length + len(nodes)
        if end > len(self._nodes):
            grown = np.empty(max(2 * len(self._nodes), end), np.int64)
            grown[: self.length] = self._nodes[: self.length]
            self._nodes = grown
        self._nodes[self.length : end] = nodes
        self.length = end

    def touched_since(self, read: int) -> I64:
        """Return the nodes that the log contains after its first `read` elements.

        Returns all nodes (`every`) if `read` is -1, which means that the log was never read. Also
        returns all nodes if the log has N or more new elements, because updating all nodes is then
        faster.
        """
        if read < 0 or self.length - read >= len(self.every):
            return self.every
        return self._nodes[read : self.length]


_UNREAD = -1

_OUTDATED = 64
"""Number of changes in the log after which the largest idle amounts are recomputed."""


@dataclass(frozen=True, eq=False, slots=True)
class NodeView:
    """The mask (N,) of the nodes that a gang may use, and a bonus (N,) for the scores of nodes."""

    nodes: Bool | None = None
    bonus: F64 | None = None

    def apply_to(self, score: F64) -> F64:
        """Return scores (N,) with the bonus added, and `NOWHERE` on nodes outside the mask."""
        if self.bonus is not None:
            score = score + self.bonus
        return score if self.nodes is None else np.where(self.nodes, score, NOWHERE)


ALL_NODES = NodeView()
"""The `NodeView` without mask and bonus."""


class NodeTable:
    """Idle capacity and scores of all nodes.

    Attributes
    ----------
    idle, used
        (N, R) idle amounts and used amounts of each node.
    spare
        (N, D) idle amounts of the extra resources that rules define (see `Reservation`).

    """

    def __init__(self, problem: Problem, rules: RuleSet, idle: I64) -> None:
        self._problem = problem
        self._rules = rules
        self._fixed = _fixed_of(problem, rules)
        self.idle = idle.copy(order="F")
        self.used = problem.used.copy(order="F")
        self.spare, self._spare_request = sum_spare(problem, rules)
        self._log = _Log(problem.num_nodes)
        self._views: dict[int, _View] = {}
        self._most: list[int] = []
        self._most_read = _UNREAD

    def use_masks_of(self, problem: Problem) -> None:
        """Use the node masks of another problem, for example the problem without running gangs."""
        self._problem = problem
        self._fixed = _fixed_of(problem, self._rules)
        self._views.clear()

    def fits(self, task_class: int) -> I64:
        """Return how many tasks (N,) of a task class fit on each node, as a read-only array."""
        return self._view(task_class).fit

    def is_tied(self, task_class: int) -> bool:
        """Return whether placing a task of a task class depends on other tasks on the node."""
        return self._fixed.is_tied(task_class)

    def allowed(self, task_class: int) -> Bool | None:
        """Return a mask (N,) of the nodes that a task class may use, or None for all nodes.

        Callers must not modify the mask.
        """
        return self._view(task_class).allowed

    def may_fit(self, task_class: int) -> bool:
        """Return whether the largest idle amount of each requested resource suffices for one task.

        The largest idle amounts may be outdated: then they are too high, but never too low.
        """
        if self._most_read < 0 or self._log.length - self._most_read > _OUTDATED:
            self._most = self.idle.max(axis=0, initial=0).tolist()
            self._most_read = self._log.length
        most = self._most
        return all(amount <= most[r] for r, amount in self._fixed.request_of(task_class))

    def scores(self, task_class: int) -> F64:
        """Return each node's score (N,) for the next task of a task class, as a read-only array.

        The score is `NOWHERE` on nodes where the task does not fit.
        """
        return self._scored(task_class).score

    def preference_scores(self, task_class: int) -> F64:
        """Return each node's score (N,) for the next task of a class, regardless of idle capacity.

        The score is `NOWHERE` on nodes that the task class may not use.
        """
        view = self._view(task_class)
        scored = self._fixed.scored(task_class)
        score = _total(scored.scorers, self.used, self._fixed.offered)
        if scored.base is not None:
            score += scored.base
        if view.allowed is not None:
            score[~view.allowed] = NOWHERE
        return score

    def place_tasks(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Place `counts` (m,) tasks of a class on distinct nodes; negative counts remove tasks.

        All elements of `counts` have the same sign.
        """
        taken = counts[:, None] * self._problem.classes.request[task_class]
        self.idle[nodes] -= taken
        self.used[nodes] += taken
        if self.spare.shape[1]:
            self.spare[nodes] -= counts[:, None] * self._spare_request[task_class]
        self._log.append(nodes)
        if len(counts) and counts[0] < 0:
            self._most_read = _UNREAD

    def reserve(self, nodes: I64, amounts: I64) -> None:
        """Reserve amounts (m, R) on nodes (m,), so that tasks cannot use these amounts.

        Negative amounts release capacity.
        """
        self.idle[nodes] -= amounts
        self._log.append(nodes)
        self._most_read = _UNREAD

    def take_spare(self, task_class: int, nodes: I64, counts: I64) -> None:
        """Subtract the requests of `counts` (m,) tasks on `nodes` (m,) from `spare`."""
        self.spare[nodes] -= counts[:, None] * self._spare_request[task_class]
        self._log.append(nodes)

    def choose(self, task_class: int, number: int, lens: NodeView = ALL_NODES) -> tuple[I64, I64]:
        """Return nodes for `number` tasks, placed one by one on the node with the highest score.

        Returns the nodes in ascending order, and the number of tasks on each node. Fewer than
        `number` tasks get a node if too little capacity is idle. The node table is not changed.
        """
        view = self._scored(task_class)
        best = _best(lens.apply_to(view.score), number)
        if number == 1 or not len(best):
            return best, np.ones(len(best), np.int64)
        best.sort()
        most = np.minimum(view.fit[best], number)
        if most.max() == 1:
            return best, most
        steps = int(most.max())
        taken = np.arange(steps, dtype=np.int64)
        request = self._problem.classes.request[task_class]
        used = self.used[best][:, None, :] + taken[None, :, None] * request
        offered = np.repeat(self._problem.allocatable[best], steps, axis=0)
        scored = self._fixed.scored(task_class)
        score = _total(scored.scorers, used.reshape(-1, used.shape[2]), offered)
        if scored.base is not None:
            score = score + np.repeat(scored.base[best], steps)
        ladder = score.reshape(len(best), steps)
        ladder[taken[None, :] >= most[:, None]] = NOWHERE
        if lens.bonus is not None:
            ladder = ladder + lens.bonus[best][:, None]
        # Task j of a node is placed after the node's earlier tasks, so its sort key is the lowest
        # score of tasks 1 to j. Sorting all tasks by this key, then by node and by j, gives the
        # order of one-by-one placement.
        reach = np.minimum.accumulate(ladder, axis=1).ravel()
        order = np.argsort(-reach, kind="stable")[:number]
        order = order[reach[order] > NOWHERE]
        counts = np.bincount(order // ladder.shape[1], minlength=len(best))
        chosen = counts > 0
        return best[chosen], counts[chosen].astype(np.int64)

    def _view(self, task_class: int) -> _View:
        """Return the `_View` of a task class, with an up-to-date `fit`."""
        view = self._views.get(task_class)
        if view is None:
            view = self._views[task_class] = _View(
                allowed=self._fixed.allowed(task_class),
                request=self._fixed.request_of(task_class),
                parts=_amounts(self._spare_request[task_class]),
                fit=np.empty(self._problem.num_nodes, np.int64),
                fit_read=_UNREAD,
                score=np.empty(self._problem.num_nodes),
                score_read=_UNREAD,
            )
        if view.fit_read < self._log.length:
            nodes = self._log.touched_since(view.fit_read)
            every = nodes is self._log.every
            fit = view.fit if every else np.empty(len(nodes), np.int64)
            fit.fill(UNLIMITED)
            # Dividing an array by a scalar is several times faster than dividing it by an array.
            for free, amounts in ((self.idle, view.request), (self.spare, view.parts)):
                for r, amount in amounts:
                    left = free[:, r] if every else free[nodes, r]
                    np.minimum(fit, left if amount == 1 else left // amount, out=fit)
            np.maximum(fit, 0, out=fit)
            if view.allowed is not None:
                fit[~(view.allowed if every else view.allowed[nodes])] = 0
            if not every:
                view.fit[nodes] = fit
            view.fit_read = self._log.length
        return view

    def _scored(self, task_class: int) -> _View:
        """Return the `_View` of a task class, with an up-to-date `fit` and `score`."""
        view = self._view(task_class)
        if view.score_read < self._log.length:
            scored = self._fixed.scored(task_class)
            self._refresh_scores(view, scored, self._log.touched_since(view.score_read))
            view.score_read = self._log.length
        return view

    def _refresh_scores(self, view: _View, scored: _Scored, nodes: I64) -> None:
        """Recompute the scores of the given nodes, whose `fit` must be up to date."""
        if nodes is self._log.every:
            is_open = view.fit > 0
            num_open = np.count_nonzero(is_open)
            if 2 * num_open > len(nodes):
                # Scoring all nodes is faster than copying the rows of most nodes.
                score = _total(scored.scorers, self.used, self._fixed.offered)
                if scored.base is not None:
                    score += scored.base
                if num_open < len(nodes):
                    score[~is_open] = NOWHERE
                view.score = score
                return
            view.score.fill(NOWHERE)
            nodes = is_open.nonzero()[0]
        else:
            view.score[nodes] = NOWHERE
            nodes = nodes[view.fit[nodes] > 0]
        if not len(nodes):
            return
        used = self.used.T.take(nodes, axis=1).T
        score = _total(scored.scorers, used, self._fixed.offered.T.take(nodes, axis=1).T)
        if scored.base is not None:
            score += scored.base[nodes]
        view.score[nodes] = score


def _amounts(request: I64) -> list[tuple[int, int]]:
    """Return the nonzero amounts of a request as (resource index, amount) pairs."""
    requested = request.nonzero()[0]
    return list(zip(requested.tolist(), request[requested].tolist(), strict=True))


def scorers_of(problem: Problem, rules: Sequence[Rule], task_class: int) -> list[Scorer]:
    """Return the scorers of all rules that score nodes for a task class."""
    found = (rule.scorer(problem, task_class) for rule in rules)
    return [scorer for scorer in found if scorer is not None]


def _total(scorers: list[Scorer], used: I64, offered: I64) -> F64:
    """Return the scores of m nodes, summed over all scorers, shape (m,)."""
    total = np.zeros(len(used))
    for scorer in scorers:
        total += scorer(used, offered)
    return total


def _best(score: F64, number: int) -> I64:
    """Return up to `number` nodes with the highest scores; lower node indices break ties."""
    if number == 1 and len(score):
        node = int(score.argmax())
        return np.array([node] if score[node] != NOWHERE else [], np.int64)
    if number > _MANY:
        order = np.argsort(-score, kind="stable")[:number]
        return order[score[order] > NOWHERE]
    found: list[int] = []
    kept: list[float] = []
    while len(found) < number:
        node = int(score.argmax()) if len(score) else -1
        if node < 0 or score[node] == NOWHERE:
            break
        found.append(node)
        kept.append(score[node])
        score[node] = NOWHERE  # Exclude the chosen node from the next search.
    best = np.array(found, np.int64)
    score[best] = kept
    return best
