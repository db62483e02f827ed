"""Convert task counts of an aggregated solution to task nodes, and task nodes to task counts.

For tasks of class c that are restricted to network domain d, the model has a copy of class c, whose
tasks fit only on nodes in d. A copy has the request of its task class and its own supply row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import UNPLACED, ranges
from optsched.problem.shapes import NO_PART
from optsched.problem.topology import CLUSTER, NOWHERE
from optsched.problem.topology_units import entry_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.decisions import Decisions
    from optsched.problem.formulation import Choice, Demand, Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.topology import Forest


def assign_tasks(
    form: Formulation, solution: I64, slots: Sequence[I64], base: Decisions
) -> Decisions:
    """Assign the placed tasks of a solution to gangs and nodes.

    Tasks that are restricted to network domains get their nodes first, starting with domains of the
    lowest tier. Tasks with larger domains then use the remaining nodes.

    Parameters
    ----------
    solution
        The values (variables,) of the variables of the aggregated model.
    slots
        For each task class, an ascending array of nodes. A node occurs as often as tasks of the
        class fit on the node. Each array has at least one element per placed task of its class.
    base
        The decisions about gangs that are not in the model.

    """
    problem, gangs = form.problem, form.gangs
    mine = np.zeros(problem.num_gangs, np.bool_)
    mine[gangs.members] = True
    node_of = np.where(mine[problem.gang_of], UNPLACED, base.node_of)
    assignment = _GangAssignment(form, solution)
    for h in np.flatnonzero(assignment.admitted).tolist():
        assignment.assign_gang_class(h)
    stock = _NodeStock(slots, problem.num_nodes)
    for group in sorted(assignment.groups, key=lambda s: s.tier):
        node_of[group.tasks] = stock.take_nodes(group)
    return replace(base, node_of=node_of)


@dataclass(frozen=True, eq=False)
class _TaskGroup:
    """Tasks of one task class in one domain, or in the whole cluster if `forest` is None."""

    task_class: int
    tasks: I64
    forest: Forest | None = None
    domain: int = CLUSTER
    nodes: I64 | None = None
    """The node of each task if the solution determines the nodes; None if any node is allowed."""

    @property
    def tier(self) -> float:
        """The sort key: groups with determined nodes first, groups without a domain last."""
        if self.nodes is not None:
            return -np.inf
        return np.inf if self.forest is None else float(self.forest.tier[self.domain])


class _NodeStock:
    """For each task class, the nodes of a solution that are not assigned to a task yet."""

    def __init__(self, slots: Sequence[I64], num_nodes: int) -> None:
        self._slots = list(slots)
        self._used = [0] * len(slots)
        self._left: dict[int, I64] = {}
        self._num_nodes = num_nodes

    def take_nodes(self, group: _TaskGroup) -> I64:
        """Choose nodes for the tasks of a group; other groups cannot use the chosen slots."""
        number, c = len(group.tasks), group.task_class
        if group.nodes is not None:
            self._count_slots(c)[:] -= np.bincount(group.nodes, minlength=self._num_nodes)
            return group.nodes
        if group.forest is not None:
            # Choose nodes in the order of the lowest domains, so that the tasks are close together.
            left = self._count_slots(c)
            nodes = np.flatnonzero((left > 0) & group.forest.inside(group.domain))
            nodes = nodes[np.argsort(group.forest.leaf_of[nodes], kind="stable")]
            before = np.cumsum(left[nodes]) - left[nodes]
            taken = np.clip(number - before, 0, left[nodes])
            left[nodes] -= taken
            return np.repeat(nodes, taken)
        if c in self._left:
            self._slots[c] = np.repeat(np.arange(self._num_nodes), self._left.pop(c))
        first = self._used[c]
        self._used[c] = first + number
        return self._slots[c][first : first + number]

    def _count_slots(self, task_class: int) -> I64:
        """Return how many tasks (N,) of a class each node can still take, as a mutable array."""
        if task_class not in self._left:
            counts = np.bincount(self._slots[task_class], minlength=self._num_nodes)
            self._left[task_class] = counts
        return self._left[task_class]


class _GangAssignment:
    """Assigns the placed tasks of gang classes to single gangs and domains."""

    def __init__(self, form: Formulation, solution: I64) -> None:
        self._form = form
        self._solution = solution
        self._placed: list[int] = (solution[form.placed_variable] * form.placed_factor).tolist()
        self._choices: dict[tuple[int, int], Choice] = {
            (c.gang_class, c.part): c for c in form.choices.all
        }
        self._demand: dict[int, Demand] = {d.entry: d for d in form.choices.demands}
        self.admitted = form.gangs.multiplicity.copy()
        starting = form.start >= 0
        self.admitted[starting] = solution[form.start[starting]]
        self.groups: list[_TaskGroup] = []

    def assign_gang_class(self, h: int) -> None:
        gangs = self._form.gangs
        first, number = int(gangs.member_start[h]), int(self.admitted[h])
        members = gangs.members[first : first + number]
        goes_to = self._domains(h, number)
        turn = {NOWHERE: 0}
        for f in range(int(gangs.start[h]), int(gangs.start[h + 1])):
            split = self._form.gang_nodes
            if split is not None and split.gang_of[f] >= 0:
                variables = split.variables[f]
                problem = self._form.problem
                there = np.flatnonzero(variables >= 0)
                nodes = np.repeat(there, self._solution[variables[there]])
                gang = int(gangs.members[gangs.member_start[gangs.gang_class_of[f]]])
                begin = int(problem.task_start[gang] + problem.shapes.offset[gangs.entry_of[f]])
                tasks = np.arange(begin, begin + len(nodes))
                self.groups.append(_TaskGroup(int(gangs.class_of[f]), tasks, nodes=nodes))
                continue
            demand = self._demand.get(f)
            if demand is None:
                self._assign_entry(f, members, self._placed[f], turn)
                continue
            domains = goes_to[demand.choice.part]
            numbers = (self._solution[demand.variables] * demand.factor).tolist()
            for d, total in zip(demand.choice.domains.tolist(), numbers, strict=True):
                self._assign_entry(f, members[domains == d], total, turn, (demand.choice, d))

    def _assign_entry(
        self,
        f: int,
        members: I64,
        total: int,
        turn: dict[int, int],
        where: tuple[Choice, int] | None = None,
    ) -> None:
        """Distribute the placed tasks of entry f over the gangs, round-robin.

        The minimums in `problem.formulation` assume this distribution.
        """
        if not total:
            return
        problem, gangs, number = self._form.problem, self._form.gangs, len(members)
        key = NOWHERE if where is None else where[1]
        each = np.full(number, total // number, np.int64)
        each[(turn.setdefault(key, 0) + np.arange(total % number)) % number] += 1
        turn[key] = (turn[key] + total) % number
        offset = problem.shapes.offset[gangs.entry_of[f]]
        tasks = ranges(problem.task_start[members] + offset, each)
        task_class = int(gangs.class_of[f])
        if where is None:
            self.groups.append(_TaskGroup(task_class, tasks))
        else:
            forest = problem.topology.forest(where[0].bound)
            self.groups.append(_TaskGroup(task_class, tasks, forest, where[1]))

    def _domains(self, h: int, number: int) -> dict[int, I64]:
        """Return the domain (number,) of a subgroup in each starting gang, keyed by subgroup index.

        The key `NO_PART` stands for whole gangs. The value is `NOWHERE` for a subgroup without a
        domain.
        """
        whole = self._choices.get((h, NO_PART))
        found: dict[int, I64] = {}
        within = np.full(number, CLUSTER, np.int64)
        if whole is not None:
            # Gangs in domains of low tiers come first, so that their subgroups choose domains
            # before others.
            domains = np.repeat(whole.domains, self._solution[whole.variables])
            tiers = self._form.problem.topology.forest(whole.bound).tier
            within = domains[np.argsort(tiers[domains], kind="stable")]
            found[NO_PART] = within
        shape = self._form.problem.shapes.shapes[int(self._form.gangs.shape_of[h])]
        for p in range(len(shape.parts)):
            choice = self._choices.get((h, p))
            if choice is None:
                continue
            end = self._form.problem.topology.forest(choice.bound).end
            left = self._solution[choice.variables].copy()
            found[p] = np.full(len(within), NOWHERE, np.int64)
            for i, domain in enumerate(within.tolist()):
                is_inner = (choice.domains >= domain) & (choice.domains < end[domain]) & (left > 0)
                if is_inner.any():
                    k = int(np.argmax(is_inner))
                    left[k] -= 1
                    found[p][i] = choice.domains[k]
        return found


# --- plan to variables ---------------------------------------------------------------------------


def count_domains_taken(form: Formulation, decisions: Decisions) -> Iterator[tuple[I64, I64]]:
    """Yield the variables of domain choices and of tasks in chosen domains, and their values."""
    for choice in form.choices.all:
        problem, gangs, h = form.problem, form.gangs, choice.gang_class
        members = gangs.members[gangs.member_start[h] : gangs.member_start[h + 1]]
        held = choice.bound.held
        chosen = np.full(len(members), NOWHERE, np.int64)
        forest = problem.topology.forest(choice.bound)
        entries = problem.shapes.shapes[int(gangs.shape_of[h])].entries
        for i, gang in enumerate(members.tolist()):
            mine = [
                decisions.node_of[slice(tasks.start, tasks.stop)]
                for e, entry in enumerate(entries)
                if choice.part in (NO_PART, entry.part) and (tasks := entry_tasks(problem, gang, e))
            ]
            nodes = np.concatenate(mine)
            domain = forest.holder(nodes[nodes >= 0])
            if domain >= 0 or held >= 0:
                lowest = max(domain, held) if min(domain, held) < 0 else forest.meet(domain, held)
                chosen[i] = _find_narrowest_domain(choice, forest, lowest)
        at = chosen
        yield choice.variables, np.bincount(at[at >= 0], minlength=len(choice.domains))
    for demand in form.choices.demands:
        if form.is_flexible[demand.entry]:
            at = task_domains(form, demand, decisions.node_of)[1]
            yield demand.variables, np.bincount(at[at >= 0], minlength=len(demand.variables))


def task_domains(form: Formulation, demand: Demand, node_of: I64) -> tuple[I64, I64]:
    """Return the tasks (k,) that a `Demand` counts, and each task's domain index (k,).

    The index is a position among the domains of the demand's topology choice, or -1 for a task
    without a node.
    """
    tasks, choice = form.tasks_of(demand.entry), demand.choice
    nodes = node_of[tasks]
    forest = form.problem.topology.forest(choice.bound)
    of_domain = [_find_narrowest_domain(choice, forest, d) for d in range(len(forest))]
    of_leaf = np.array(of_domain, np.int64)
    return tasks, np.where(nodes >= 0, of_leaf[forest.leaf_of[nodes]], NOWHERE)


def _find_narrowest_domain(choice: Choice, forest: Forest, domain: int) -> int:
    """Return the index of the smallest domain of a choice that contains `domain`, or -1."""
    fitting = np.flatnonzero((choice.domains <= domain) & (domain < forest.end[choice.domains]))
    return (
        int(fitting[np.argmin(forest.tier[choice.domains[fitting]])]) if len(fitting) else NOWHERE
    )


@dataclass(frozen=True, eq=False)
class DomainCopies:
    """The task classes, followed by the copies of task classes for domains (axis C').

    Attributes
    ----------
    class_of, domain
        (C',) task class and domain of each class or copy; the domain of an original class is the
        cluster.
    forests
        (C',) forest of each copy's domain, or None for an original class.
    supply
        (C',) index of the row that counts the placed tasks of each class or copy.

    """

    class_of: I64
    domain: I64
    forests: tuple[Forest | None, ...]
    supply: I64

    def inside(self, problem: Problem) -> Bool:
        """Return a mask (C', N) of the nodes in each copy's domain."""
        inside = np.ones((len(self.class_of), problem.num_nodes), np.bool_)
        for row, forest, domain in zip(inside, self.forests, self.domain.tolist(), strict=True):
            if forest is not None:
                row[:] = forest.inside(domain)
        return inside

    def merged(self, tasks: I64) -> I64:
        """Return the task counts per task class (…, C), summed over each class and its copies."""
        classes = int((self.domain == CLUSTER).sum())
        total = np.zeros((*tasks.shape[:-1], classes), np.int64)
        for copy, task_class in enumerate(self.class_of.tolist()):
            total[..., task_class] += tasks[..., copy]
        return total

    def of_tasks(self, form: Formulation, node_of: I64) -> tuple[I64, int]:
        """Return the task class or copy (T,) of each task, and the number of classes and copies.

        `node_of` (T,) is the node of each task.
        """
        copy_of = form.problem.task_class.copy()
        pairs = zip(self.class_of.tolist(), self.domain.tolist(), strict=True)
        number = {pair: i for i, pair in enumerate(pairs)}
        for demand in form.choices.demands:
            task_class = int(form.gangs.class_of[demand.entry])
            mine = [number[task_class, d] for d in demand.choice.domains.tolist()]
            tasks, at = task_domains(form, demand, node_of)
            copy_of[tasks[at >= 0]] = np.array(mine, np.int64)[at[at >= 0]]
        return copy_of, len(self.class_of)


def copy_classes(form: Formulation) -> DomainCopies:
    """Add a supply row for each copy of a task class; return the task classes and the copies."""
    classes = len(form.supply)
    class_of, domains = list(range(classes)), [CLUSTER] * classes
    forests: list[Forest | None] = [None] * classes
    supply = [form.supply]
    for task_class, forest, domain, variable, factor in form.choices.by_class():
        form.model.add_entries(form.supply[task_class], variable, -factor)
        found, at = np.unique(domain, return_inverse=True)
        none = np.zeros(len(found), np.int64)
        supply.append(form.model.add_rows(at, variable, factor, upper=none))
        class_of += [task_class] * len(found)
        domains += found.tolist()
        forests += [forest] * len(found)
    return DomainCopies(
        class_of=np.array(class_of, np.int64),
        domain=np.array(domains, np.int64),
        forests=tuple(forests),
        supply=np.concatenate(supply),
    )
