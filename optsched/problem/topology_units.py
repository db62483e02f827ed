"""Find the gangs and subgroups that request a network topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.arrays import frozen
from optsched.problem.problem import cached_by_problem
from optsched.problem.shapes import NO_PART
from optsched.problem.topology import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.task import Task
    from optsched.problem.arrays import I64
    from optsched.problem.problem import Problem
    from optsched.problem.topology import Bound


@dataclass(frozen=True, eq=False)
class Units:
    """The units (axis U): unblocked gangs and subgroups that have a topology bound.

    Attributes
    ----------
    gang, part
        (U,) gang and subgroup index of each unit; `part` is NO_PART for a whole gang.
    bounds
        (U,) topology bound of each unit.
    task, unit_of
        (k,) each pending task, and the unit that contains the task. A task in two units (gang and
        subgroup) occurs twice.

    """

    gang: I64
    part: I64
    bounds: tuple[Bound, ...]
    task: I64
    unit_of: I64

    def __post_init__(self) -> None:
        frozen(self.gang, self.part, self.task, self.unit_of)


def entry_tasks(problem: Problem, gang: int, entry: int) -> range:
    """Return the indices (axis T) of the pending tasks in one entry of a gang."""
    shape = int(problem.shape_of[gang])
    at = int(problem.shapes.start[shape]) + entry
    first = int(problem.task_start[gang] + problem.shapes.offset[at])
    return range(first, first + int(problem.shapes.count[at]))


def residents(problem: Problem, gang: int, part: int) -> tuple[I64, int]:
    """Return the nodes (k,) of a gang's or subgroup's running tasks, and its number of tasks."""
    mine = problem.snapshot.gangs[gang]
    tasks: Sequence[Task] = mine.tasks
    if part != NO_PART:
        entries = problem.shapes.shapes[int(problem.shape_of[gang])].entries
        first = next(e for e, entry in enumerate(entries) if entry.part == part)
        example = problem.task(entry_tasks(problem, gang, first).start)
        group = mine.sub_group_of(example)
        tasks = [t for t in tasks if mine.sub_group_of(t) == group]
    number = problem.derived(_node_numbers)
    nodes = [number[t.node] for t in tasks if t.status.is_standing and t.node in number]
    return np.array(nodes, np.int64), len(tasks)


def _node_numbers(problem: Problem) -> dict[str, int]:
    return {node.name: n for n, node in enumerate(problem.snapshot.nodes)}


def holders(problem: Problem, node_of: I64) -> I64:
    """Return the lowest domain (U,) that contains all placed and running tasks of each unit.

    `node_of` (T,) is the node of each pending task, or UNPLACED. Units without placed or running
    tasks get NOWHERE.
    """
    units = units_of(problem)
    placed = node_of[units.task] >= 0
    task, unit = units.task[placed], units.unit_of[placed]
    found = np.array([b.held for b in units.bounds], np.int64)
    first = np.full(len(found), np.iinfo(np.int64).max)
    last = np.full(len(found), NOWHERE, np.int64)
    for number, forest in enumerate(problem.topology.forests):
        mine = np.array([b.forest == number for b in units.bounds], np.bool_)[unit]
        leaves = forest.leaf_of[node_of[task[mine]]]
        np.minimum.at(first, unit[mine], leaves)
        np.maximum.at(last, unit[mine], leaves)
    for u in np.flatnonzero(last >= 0).tolist():
        forest = problem.topology.forest(units.bounds[u])
        domain = forest.meet(int(first[u]), int(last[u]))
        found[u] = domain if found[u] < 0 else forest.meet(domain, int(found[u]))
    return found


@cached_by_problem
def units_of(problem: Problem) -> Units:
    """Return the gangs and subgroups that have a topology bound; the result is cached."""
    gang: list[int] = []
    part: list[int] = []
    bounds: list[Bound] = []
    task: list[int] = []
    unit_of: list[int] = []
    of_shape = problem.topology.bounds
    is_bound = np.array([bool(b.existing) for b in of_shape], np.bool_)
    gangs = problem.open_gangs
    for g in gangs[is_bound[problem.shape_of[gangs]]].tolist() if len(of_shape) else ():
        shape = int(problem.shape_of[g])
        for p, bound in ((NO_PART, of_shape[shape].whole), *enumerate(of_shape[shape].parts)):
            if bound is None:
                continue
            for e, entry in enumerate(problem.shapes.shapes[shape].entries):
                if p in (NO_PART, entry.part):
                    tasks = entry_tasks(problem, g, e)
                    task.extend(tasks)
                    unit_of.extend([len(bounds)] * len(tasks))
            gang.append(g)
            part.append(p)
            bounds.append(bound)
    numbers = (np.array(values, np.int64) for values in (gang, part, task, unit_of))
    of_gang, of_part, tasks_of, units = numbers
    return Units(of_gang, of_part, tuple(bounds), tasks_of, units)
