"""Find the running tasks that may move, and build a what-if problem in which they are pending.

Interchangeable movable tasks form a kind (axis M). Tasks of one kind have the same task class and
the same disruption budgets. Tasks of one kind also have the same gang and role, unless each is the
only running task of its gang.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.relocation import relocate, successor_of
from optsched.cluster.task import TaskStatus
from optsched.plugins.eviction.victims import cover_running
from optsched.problem.arrays import frozen, row_groups
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.running import Running

_WAITS = frozenset({TaskStatus.PENDING, TaskStatus.GATED})


def movable_tasks(problem: Problem, rules: RuleSet, requesting: Bool, priority: I64) -> Bool:
    """Return a mask (V,) of the running tasks that may move so that pending gangs can start.

    `requesting` (G,) is the mask of the pending gangs, which have equal priority. `priority` (G,)
    is the priority of each gang. Tasks may not move if they depend on other pods, or on devices or
    volumes of one node: the model over node classes cannot represent such moves.
    """
    running = running_tasks(problem)
    may: Bool = ~rules.spared(problem) & (running.queue_of >= 0)
    may &= priority[running.gang_of] <= int(priority[requesting].max())
    # The tasks of a gang may not move if the gang has an error, a topology request, subgroups, or a
    # pending or gated task.
    are_free = [
        not (gang.problem or gang.topology is not None or gang.sub_groups)
        and not any(task.status in _WAITS for task in gang.tasks)
        for gang in problem.snapshot.gangs
    ]
    may &= np.array(are_free, np.bool_)[running.gang_of]
    # Tasks of reclaimable queues may move. If all requesting gangs are in one queue, tasks of this
    # queue may move too.
    queues = problem.snapshot.queues
    open_queues = np.array([q.reclaimable for q in queues], np.bool_)
    theirs = np.unique(problem.queue_of[requesting])
    if len(theirs) == 1:
        open_queues[theirs] = True
    # Tasks of FIFO queues may not move: a move could change the order in which gangs are admitted.
    open_queues &= ~np.array([q.is_fifo for q in queues], np.bool_)
    open_queues[list(problem.queues.closed)] = False
    may &= open_queues[running.queue_of]
    # On an overcommitted node, evicting a task would not free its whole request.
    full = problem.allocatable < problem.used - problem.releasing
    is_full: Bool = np.logical_or.reduce(full, axis=1)
    may &= ~is_full[running.node_of]
    known: dict[int, bool] = {}
    for v in np.flatnonzero(may).tolist():
        task = running.tasks[v]
        shape = task.shape
        if id(shape) not in known:
            tied = shape.looks_at_pods or shape.preferred_pods or shape.claims or shape.shared_gpus
            apart = shape.device_claims or shape.devices
            known[id(shape)] = not tied and not apart and shape.device is None
        may[v] = (
            known[id(shape)]
            and task.is_movable
            and not task.shared_gpus
            and not task.device_claims
            and task.problem is None
        )
    return may


def select_promising(problem: Problem, may: Bool, requesting: Bool, most: int) -> Bool:
    """Return a mask (V,) of at most `most` tasks in `may` (V,), on the nodes of least shortfall.

    For each task class, a node's shortfall is the largest fraction of a requested resource that the
    node lacks; the smallest shortfall over the task classes counts. Nodes on which such a task
    already fits come last.
    """
    running = running_tasks(problem)
    idle = np.maximum(problem.allocatable - problem.used + problem.releasing, 0)
    lacking = np.full(problem.num_nodes, np.inf)
    classes = np.unique(problem.task_class[requesting[problem.gang_of]])
    for request in problem.classes.request[classes]:
        requested = np.flatnonzero(request)
        share = (np.maximum(request - idle, 0)[:, requested] / request[requested]).max(axis=1)
        lacking = np.minimum(lacking, np.where(share > 0, share, np.inf))
    held = np.bincount(running.node_of[may], minlength=problem.num_nodes)
    order = np.lexsort((np.arange(problem.num_nodes), held, lacking))
    chosen = np.zeros(problem.num_nodes, np.bool_)
    chosen[order[np.cumsum(held[order]) <= most]] = True
    return may & chosen[running.node_of]


@dataclass(frozen=True, eq=False)
class MovableGang:
    """A gang with running tasks that may move; the gang moves entirely or keeps its minimum.

    Attributes
    ----------
    kinds
        (k,) kinds of the gang's movable tasks.
    held, surplus
        Number of the gang's running tasks, and how many of them exceed its minimum.
    by_role
        For each role that has a minimum: the kinds, the number of running tasks, and the surplus.
    may_end
        Whether all tasks of the gang may move.

    """

    kinds: I64
    held: int
    surplus: int
    by_role: tuple[tuple[I64, int, int], ...]
    may_end: bool


@dataclass(frozen=True, eq=False)
class Movables:
    """The running tasks that may move, and the what-if problem in which they are pending.

    Attributes
    ----------
    what_if
        The problem after all terminating tasks have ended, with the movable tasks pending.
    tasks
        (V',) index of each movable task on axis V of the original problem.
    at
        (V',) index of each movable task on axis T of `what_if`.
    node
        (V',) index of the node where each movable task runs.
    kind
        (V',) kind of each movable task (axis M).
    task_class, count
        (M,) task class of each kind in `what_if`, and number of tasks of each kind.
    wholes
        The gangs with several running tasks; each moves entirely or keeps its minimum.
    budgets
        For each disruption budget: the kinds of tasks that it protects, and the allowed
        disruptions.

    """

    what_if: Problem
    tasks: I64
    at: I64
    node: I64
    kind: I64
    task_class: I64
    count: I64
    wholes: tuple[MovableGang, ...]
    budgets: tuple[tuple[I64, int], ...]

    def __post_init__(self) -> None:
        frozen(*vars(self).values())

    def on_node(self, num_nodes: int) -> I64:
        """Return how many movable tasks of each kind are on each node, shape (N, M)."""
        table = np.zeros((num_nodes, len(self.count)), np.int64)
        np.add.at(table, (self.node, self.kind), 1)
        return table


def build_movables(problem: Problem, may: Bool) -> Movables:
    """Return the tasks in the mask `may` (V,) that could restart, with the what-if problem."""
    running = running_tasks(problem)
    tasks, what_if, here = _compile_what_if(problem, running, np.flatnonzero(may))
    held = np.bincount(running.gang_of, minlength=problem.num_gangs)
    gang = np.where(held[running.gang_of[tasks]] == 1, -1, running.gang_of[tasks])
    moved = [running.tasks[v] for v in tasks.tolist()]
    cover = cover_running(problem)[:, tasks]
    # Roles with a minimum are numbered from 1; all other roles have number 0.
    roles = np.zeros(len(tasks), np.int64)
    for i in np.flatnonzero(gang >= 0).tolist():
        names = [r for r, _ in problem.snapshot.gangs[int(gang[i])].role_minimums]
        roles[i] = names.index(moved[i].role) + 1 if moved[i].role in names else 0
    tally = Counter(gang.tolist())
    kind, first = row_groups([what_if.task_class[here], gang, roles, *cover])
    return Movables(
        what_if=what_if,
        tasks=tasks,
        at=here,
        node=running.node_of[tasks],
        kind=kind,
        task_class=what_if.task_class[here[first]],
        count=np.bincount(kind, minlength=len(first)).astype(np.int64),
        wholes=tuple(
            _build_movable_gang(
                problem, running, number, (gang[first], roles[first]), tally[number]
            )
            for number in np.unique(gang[gang >= 0]).tolist()
        ),
        budgets=tuple(
            (np.unique(kind[mine]), max(budget.allowed, 0))
            for budget, mine in zip(problem.snapshot.budgets, cover, strict=True)
            if mine.any()
        ),
    )


def _compile_what_if(problem: Problem, running: Running, tasks: I64) -> tuple[I64, Problem, I64]:
    """Return the tasks that could restart, the what-if problem, and the task indices in it."""
    keys = [running.tasks[v].key for v in tasks.tolist()]
    what_if = compile_problem(relocate(problem.snapshot, dict.fromkeys(keys, "")), problem)
    place = {t.key: i for i, t in enumerate(what_if.tasks)}
    successors = [successor_of(running.tasks[v], "").key for v in tasks.tolist()]
    here = np.array([place.get(key, -1) for key in successors], np.int64)
    if (here >= 0).all():
        remaining = what_if.used - what_if.releasing
        frozen(remaining)
        none = np.zeros_like(remaining)
        return tasks, replace(what_if, used=remaining, releasing=none), here
    return _compile_what_if(problem, running, tasks[here >= 0])


def _build_movable_gang(
    problem: Problem, running: Running, number: int, kinds_of: tuple[I64, I64], num_mine: int
) -> MovableGang:
    """Return how many tasks a gang can lose, in total and by role.

    `kinds_of` holds the gang index (M,) and the role number (M,) of each kind of movable task.
    `num_mine` is the number of movable tasks of the gang.
    """
    gang_of, role_of = kinds_of
    gang = problem.snapshot.gangs[number]
    held = int((running.gang_of == number).sum())
    surplus = min(max(int(problem.num_ready[number]) - gang.min_member, 0), held)
    kinds = np.flatnonzero(gang_of == number)
    by_role = []
    for i, (role, least) in enumerate(gang.role_minimums):
        ready = [t for t in gang.tasks if t.status.counts_as_ready and t.role == role]
        here = sum(t.status.is_standing for t in ready)
        spare = min(max(len(ready) - least, 0), here)
        by_role.append((kinds[role_of[kinds] == i + 1], here, spare))
    return MovableGang(kinds, held, surplus, tuple(by_role), num_mine == held)


def find_tied_tasks(movables: Movables, rules: RuleSet) -> Bool:
    """Return a mask (V',) of the movable tasks whose allowed nodes depend on other tasks.

    The mask includes tasks that affinity or spread terms of other tasks select.
    """
    what_if = movables.what_if
    tied = np.zeros(len(what_if.classes.shapes), np.bool_)
    for c in np.unique(movables.task_class).tolist():
        tied[c] = bool(what_if.classes.relations[c]) or any(
            rule.ties_nodes(what_if, c) for rule in rules.hard
        )
    found: Bool = tied[what_if.task_class[movables.at]]
    gangs = None if rules.topology is None else rules.topology.find_tied_gangs(what_if)
    return found if gangs is None else found | gangs[what_if.gang_of[movables.at]]
