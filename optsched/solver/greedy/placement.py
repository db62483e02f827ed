"""Place the tasks of gangs on nodes, nominate nodes for tasks, and undo placements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.accounting import Ledger
from optsched.problem.arrays import UNPLACED, without_marked
from optsched.problem.running import without_terminating
from optsched.solver.greedy.nodes import ALL_NODES, NOWHERE, NodeTable
from optsched.solver.greedy.plugins import GreedyPlugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64
    from optsched.problem.decisions import Nominations
    from optsched.problem.problem import Problem
    from optsched.solver.greedy.nodes import NodeView


@dataclass(slots=True)
class Cursor:
    """The progress of a gang: its placed tasks, and how many more tasks its minimum requires.

    Attributes
    ----------
    sequence, runs
        Runs of equal tasks in task order, as (entry, number of tasks) pairs and as [entry, number
        of unplaced tasks] lists. An entry is a group of equal tasks of the gang.
    done
        Number of placed tasks per entry.
    need, need_role
        Number of further tasks that the minimum requires, in total and by role.
    failed
        Entries for which no node was found; these entries are not tried again.

    """

    sequence: Sequence[tuple[int, int]]
    runs: list[list[int]]
    done: list[int]
    need: int
    need_role: dict[str, int]
    failed: set[int] = field(default_factory=set)

    @property
    def has_minimum(self) -> bool:
        """Whether the gang has reached its minimum, in total and by role."""
        return self.need <= 0 and all(n <= 0 for n in self.need_role.values())

    @property
    def has_untried_tasks(self) -> bool:
        """Whether the gang has an unplaced task that may still find a node."""
        return any(left and entry not in self.failed for entry, left in self.runs)


class _Step(NamedTuple):
    """One placement in the undo log: tasks of one entry, their nodes and the node table.

    `number` is the sum of `counts`, and `answer` the array (T,) that stores the nodes.
    """

    entry: int
    task_class: int
    nodes: I64
    counts: I64
    number: int
    first: int
    table: NodeTable
    answer: I64


@dataclass(frozen=True, slots=True)
class _TaskIndex:
    """Index arrays of a problem as lists, because reading one element of a list is faster."""

    class_of: list[int]
    start: list[int]
    offset: list[int]
    shape_of: list[int]
    task_start: list[int]


class PlacementState:
    """The placements and nominations of the greedy pipeline.

    Attributes
    ----------
    node_of, nominated
        (T,) node index and (T,) nominated node index of each task, or `UNPLACED`.
    ledger, plugins
        The sums over all placements of the session, and the plugins of the policy.
    later
        Node table of future idle capacity, or None if no pod is terminating.
    changes
        Number of commits that contained a placement or nomination.

    """

    def __init__(self, problem: Problem, rules: RuleSet) -> None:
        self.problem = problem
        self.ledger = Ledger(problem)
        self.plugins = GreedyPlugins(problem, rules, self.ledger)
        self.table = NodeTable(problem, rules, problem.idle)
        self.later: NodeTable | None = None
        # On an overcommitted node, the idle amount starts below zero, because released capacity
        # first reduces the excess.
        self._short: I64 = np.minimum(problem.allocatable - problem.used, 0)
        if problem.releasing.any():
            idle = self._short + problem.idle + problem.releasing
            self.later = NodeTable(without_terminating(problem), rules, idle)
        self._releasing = problem.releasing.copy()
        self.node_of = np.full(problem.num_tasks, UNPLACED, np.int64)
        self.nominated = self.node_of.copy()
        self.rules = rules
        self.changes = 0
        self._cursors: dict[int, Cursor] = {}
        self._steps: list[_Step] = []
        self._index = _TaskIndex(
            class_of=problem.shapes.class_of.tolist(),
            start=problem.shapes.start.tolist(),
            offset=problem.shapes.offset.tolist(),
            shape_of=problem.shape_of.tolist(),
            task_start=problem.task_start.tolist(),
        )

    def cursor(self, gang: int) -> Cursor:
        """Return the progress of a gang."""
        if gang not in self._cursors:
            shape = self.problem.shapes.shapes[self._index.shape_of[gang]]
            sequence = self.plugins.task_runs(gang) or shape.sequence
            self._cursors[gang] = Cursor(
                sequence=sequence,
                runs=[list(run) for run in sequence],
                done=[0] * len(shape.entries),
                need=shape.need,
                need_role=dict(shape.need_role),
            )
        return self._cursors[gang]

    def with_untried_tasks(self, gangs: I64) -> I64:
        """Return the gangs in `gangs` (m,) with an unplaced task that may still find a node."""
        done = [gang for gang, cursor in self._cursors.items() if not cursor.has_untried_tasks]
        return without_marked(gangs, done, self.problem.num_gangs)

    def has_failed_entry(self, gang: int) -> bool:
        """Return whether an entry (equal tasks) of a gang found no node since the last undo."""
        cursor = self._cursors.get(gang)
        return cursor is not None and bool(cursor.failed)

    def class_of(self, gang: int, entry: int) -> int:
        """Return the task class of an entry (group of equal tasks) of a gang."""
        return self._index.class_of[self._index.start[self._index.shape_of[gang]] + entry]

    def could_start(self, gang: int) -> bool:
        """Return False if idle capacity or a queue's limit keeps a rigid gang from starting.

        A rigid gang has not started and can start only with all its pending tasks. Each task class
        is checked as if the gang had no other tasks. Returns True for gangs that are not rigid.
        """
        shape = self.problem.shapes.shapes[self._index.shape_of[gang]]
        if not shape.is_rigid:
            return True
        classes = [self.class_of(gang, e) for e in range(len(shape.entries))]
        if not all(map(self.table.may_fit, classes)):
            return False
        queue = self.ledger.queue_of[gang]
        return all(
            self.plugins.max_tasks(queue, classes[e]) >= entry.count
            and int(self.table.fits(classes[e]).sum()) >= entry.count
            for e, entry in enumerate(shape.entries)
        )

    def start(self, gang: int) -> None:
        """Place tasks of a gang in order until the gang reaches its minimum or no node fits."""
        self._start_in(gang, self.table, self.node_of)

    def nominate_rest(self, gang: int, later: NodeTable) -> None:
        """Nominate nodes with future idle capacity for the missing tasks of a gang's minimum."""
        self.cursor(gang).failed.clear()
        self._start_in(gang, later, self.nominated)

    def place_nominated(self, gang: int, nominations: Nominations) -> bool:
        """Place a gang on its nominated nodes, or return False and change nothing."""
        left = self._place_at_nominations(gang, nominations, ((self.table, self.node_of),))
        if not left and self.cursor(gang).has_minimum and self.plugins.all_rules_hold(gang):
            self.commit()
            return True
        self.undo(gang)
        return False

    def reserve_nominated(self, gang: int, nominations: Nominations) -> bool:
        """Keep a gang's nominations until their nodes are idle.

        If the gang's minimum fits into idle capacity, the gang starts, and only its remaining tasks
        wait. Returns False if the gang does not fit.
        """
        now = (self.table, self.node_of)
        left = self._place_at_nominations(gang, nominations, (now,))
        started = (
            left != nominations
            and self.cursor(gang).has_minimum
            and self.plugins.all_rules_hold(gang)
        )
        if started:
            self.commit()
            nominations = left
        else:
            self.undo(gang)
        if self.later is None:
            return started
        left = self._place_at_nominations(gang, nominations, (now, (self.later, self.nominated)))
        if (
            left != nominations
            and self.cursor(gang).has_minimum
            and self.plugins.all_rules_hold(gang)
        ):
            self.commit_nominations(self.later)
            return True
        self.undo(gang)
        return started

    def _place_at_nominations(
        self, gang: int, nominations: Nominations, places: Sequence[tuple[NodeTable, I64]]
    ) -> Nominations:
        """Place tasks on nominated nodes, and return the nominations of tasks that do not fit.

        The node tables in `places` are tried in order. A rule may let a task fit only after another
        task is placed, so the attempts are repeated until no further task fits.
        """
        left, placed, before = list(nominations), 0, -1
        while left and placed > before:
            before = placed
            for i, (entry, node, number) in enumerate(left):
                for where in places:
                    here = self._place_on_node(gang, (entry, node, number), where)
                    placed, number = placed + here, number - here
                left[i] = (entry, node, number)
            left = [nomination for nomination in left if nomination[2]]
        return tuple(left)

    def _place_on_node(
        self, gang: int, nomination: tuple[int, int, int], where: tuple[NodeTable, I64]
    ) -> int:
        """Place tasks on the node of a nomination, and return how many were placed."""
        entry, node, number = nomination
        task_class, cursor = self.class_of(gang, entry), self.cursor(gang)
        number = min(number, sum(left for e, left in cursor.runs if e == entry))
        number = min(number, self.plugins.max_tasks(self.ledger.queue_of[gang], task_class))
        number = min(number, int(where[0].fits(task_class)[node]))
        at, one = np.array([node], np.int64), np.ones(1, np.int64)
        placed = 0
        if not self.table.is_tied(task_class):
            placed = (
                self._place_on_nodes(gang, entry, (at, one * number), where) if number > 0 else 0
            )
        while self.table.is_tied(task_class) and placed < number:
            allowed = self.plugins.fits(gang, task_class, later=where[0] is self.later)
            if allowed is not None and not allowed[node]:
                break
            placed += self._place_on_nodes(gang, entry, (at, one), where)
        rest = placed
        for run in cursor.runs:
            if run[0] == entry:
                taken = min(run[1], rest)
                run[1] -= taken
                rest -= taken
        return placed

    @property
    def future(self) -> NodeTable:
        """The node table of future idle capacity, created on demand if no pod is terminating."""
        if self.later is None:
            self.later = NodeTable(self.problem, self.rules, self._short + self.table.idle)
            self.later.used[:] = self.table.used
            self.later.spare[:] = self.table.spare
        return self.later

    def add_releasing(self, node: int, amounts: I64) -> None:
        """Record the amounts (R,) that the termination of a victim on a node will release."""
        self._releasing[node] += amounts

    def nominate_one(self, gang: int, entry: int, node: int) -> bool:
        """Nominate a node for one task of a gang's entry; return False if the task does not fit."""
        return bool(self._place_on_node(gang, (entry, node, 1), (self.future, self.nominated)))

    def commit_nominations(self, later: NodeTable) -> None:
        """Turn all placements since the last commit into nominations, and commit the nominations.

        Nominated tasks first use the capacity that terminating pods release, then idle capacity.
        """
        for step in self._steps:
            tasks = slice(step.first, step.first + step.number)
            self.plugins.record_nomination(step.task_class, step.nodes, step.counts)
            if step.table is not later:
                self.nominated[tasks] = self.node_of[tasks]
                self.node_of[tasks] = UNPLACED
                continue
            requested = step.counts[:, None] * self.problem.classes.request[step.task_class]
            leaving = np.minimum(self._releasing[step.nodes], requested)
            self._releasing[step.nodes] -= leaving
            self.ledger.record_nomination(leaving.sum(axis=0).tolist())
            self.table.reserve(step.nodes, requested - leaving)
            self.table.take_spare(step.task_class, step.nodes, step.counts)
        self.commit()

    def _start_in(self, gang: int, table: NodeTable, answer: I64) -> None:
        cursor = self.cursor(gang)
        roles = [e.role for e in self.problem.shapes.shapes[self._index.shape_of[gang]].entries]
        # Fill the minimums of roles first, because the idle capacity may suffice only for the
        # gang's minimum.
        for role in (*cursor.need_role, None):
            for run in cursor.runs:
                entry, left = run
                need = cursor.need if role is None else cursor.need_role[role]
                most = min(left, need) if role in (None, roles[entry]) else 0
                if most > 0 and entry not in cursor.failed:
                    self.place_tasks(gang, run, most, (table, answer))

    def grow(self, gang: int, number: int) -> int:
        """Place up to `number` more tasks of a gang in task order; return how many were placed."""
        placed = 0
        cursor = self.cursor(gang)
        for run in cursor.runs:
            entry, left = run
            if placed < number and left and entry not in cursor.failed:
                here = (self.table, self.node_of)
                placed += self.place_tasks(gang, run, min(left, number - placed), here)
        return placed

    def commit(self) -> None:
        """Commit all placements and clear the undo log."""
        self.changes += bool(self._steps)
        self._steps.clear()

    @property
    def mark(self) -> int:
        """The number of placements in the undo log."""
        return len(self._steps)

    def undo(self, gang: int) -> None:
        """Undo all placements of a gang since the last commit."""
        self.undo_to(gang, 0)

    def undo_to(self, gang: int, mark: int) -> None:
        """Undo a gang's latest placements until the undo log contains `mark` placements."""
        cursor = self.cursor(gang)
        for step in reversed(self._steps[mark:]):
            step.answer[step.first : step.first + step.number] = UNPLACED
            self._record(gang, step, -1)
        done = list(cursor.done)
        for run, (entry, number) in zip(cursor.runs, cursor.sequence, strict=True):
            taken = min(done[entry], number)
            done[entry] -= taken
            run[1] = number - taken
        del self._steps[mark:]
        cursor.failed.clear()

    def place_tasks(
        self,
        gang: int,
        run: list[int],
        most: int,
        where: tuple[NodeTable, I64],
        lens: NodeView = ALL_NODES,
    ) -> int:
        """Place up to `most` consecutive equal tasks; return how many were placed.

        `where` holds the node table, and the array (T,) that stores the chosen nodes.
        """
        entry = run[0]
        task_class = self.class_of(gang, entry)
        number = min(most, self.plugins.max_tasks(self.ledger.queue_of[gang], task_class))
        placed = 0
        if self.table.is_tied(task_class) or self.plugins.live_scorers(gang, entry):
            while placed < number:
                chosen = self._choose_live(gang, entry, where[0], lens)
                if not len(chosen[0]):
                    break
                placed += self._place_on_nodes(gang, entry, chosen, where)
        elif number > 0:
            placed = self._place_on_nodes(
                gang, entry, where[0].choose(task_class, number, lens), where
            )
        run[1] -= placed
        if placed < most:
            self.cursor(gang).failed.add(entry)
        return placed

    def _place_on_nodes(
        self, gang: int, entry: int, chosen: tuple[I64, I64], where: tuple[NodeTable, I64]
    ) -> int:
        nodes, counts = chosen
        table, answer = where
        placed: int = sum(counts.tolist())
        if not placed:
            return 0
        cursor = self.cursor(gang)
        offset = self._index.offset[self._index.start[self._index.shape_of[gang]] + entry]
        first = self._index.task_start[gang] + offset + cursor.done[entry]
        answer[first : first + placed] = nodes.repeat(counts)
        task_class = self.class_of(gang, entry)
        step = _Step(entry, task_class, nodes, counts, placed, first, table, answer)
        self._steps.append(step)
        self._record(gang, step, 1)
        return placed

    def _choose_live(
        self, gang: int, entry: int, table: NodeTable, lens: NodeView
    ) -> tuple[I64, I64]:
        """Return the best node for one task whose node scores depend on earlier placements.

        Returns the node and the count 1 as arrays of length 1, or two empty arrays if no node fits.
        """
        task_class = self.class_of(gang, entry)
        score = lens.apply_to(table.scores(task_class))
        allowed = self.plugins.fits(gang, task_class, later=table is self.later)
        if allowed is not None:
            score = np.where(allowed, score, NOWHERE)
        open_nodes = score > NOWHERE
        for scorer in self.plugins.live_scorers(gang, entry):
            score = score + scorer(open_nodes)
        node = int(score.argmax()) if len(score) else -1
        found = node >= 0 and score[node] > NOWHERE
        nodes = np.array([node] if found else [], np.int64)
        return nodes, np.ones(len(nodes), np.int64)

    def _record(self, gang: int, step: _Step, sign: int) -> None:
        """Record a placement (`sign` 1) or its rollback (-1) in node tables, ledger and plugins."""
        counts = step.counts if sign == 1 else step.counts * sign
        step.table.place_tasks(step.task_class, step.nodes, counts)
        if self.later is not None and step.table is self.table:
            self.later.place_tasks(step.task_class, step.nodes, counts)
        number = step.number * sign
        self.ledger.record_placement(gang, step.task_class, number)
        if step.table is self.later:
            self.ledger.gang_waiting[gang] += number
        self.plugins.record_placement(gang, step.task_class, step.nodes, counts)
        self.plugins.record_tasks(gang, step.entry, step.nodes, counts)
        cursor = self.cursor(gang)
        cursor.done[step.entry] += number
        cursor.need -= number
        role = self.problem.shapes.shapes[self._index.shape_of[gang]].entries[step.entry].role
        if role in cursor.need_role:
            cursor.need_role[role] -= number
