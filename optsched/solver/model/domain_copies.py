"""Copies of task classes for tasks restricted to network domains, in configuration models.

Tasks of class c that are restricted to domain d have a copy of the class, which fits only nodes in
d. A copy has the request of its class and its own supply row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.topology import CLUSTER
from optsched.solver.model.assignment import task_domains

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.topology import Forest


@dataclass(frozen=True, eq=False)
class DomainCopies:
    """The task classes, followed by their copies for domains (axis C').

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
        """Return the task counts per class (…, C), given the counts (…, C') per class or copy."""
        classes = int((self.domain == CLUSTER).sum())
        total = np.zeros((*tasks.shape[:-1], classes), np.int64)
        for copy, task_class in enumerate(self.class_of.tolist()):
            total[..., task_class] += tasks[..., copy]
        return total

    def of_tasks(self, form: Formulation, node_of: I64) -> tuple[I64, int]:
        """Return the class or copy (T,) of each task, and the number of classes and copies.

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
    """Add a supply row per domain copy; return the task classes with their domain copies."""
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
