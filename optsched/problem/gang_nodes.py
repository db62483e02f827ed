"""The axis gang × node of the model node by node: how many tasks of each gang are on each node.

For an entry f of a gang that stands alone in its gang class, w[f, n] counts its tasks on node n:

    Σ_n w[f, n] = x[f]            Σ_{f ∈ F(c)} w[f, n] ≤ u[c, n]

Without w a solution holds only the number of tasks of a class on a node, not their gangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.domain_choices import within

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.domain_choices import Choices
    from optsched.problem.formulation import Formulation


class GangNodes:
    """Variables for the tasks of single gangs on single nodes.

    Attributes
    ----------
    gang_of
        (F,) gang of an entry, -1 for entries without variables of their own.
    variables
        (F, N) tasks of an entry on a node; -1 where there are none.

    """

    def __init__(self, form: Formulation, supplied: I64) -> None:
        """`supplied` is (C, N), the variables for the tasks of a class on a node."""
        self._form, self._supplied = form, supplied
        shape = (len(form.gangs.class_of), supplied.shape[1])
        self.gang_of: I64 = np.full(shape[0], -1, np.int64)
        self.variables: I64 = np.full(shape, -1, np.int64)

    def add(self, gangs: Bool) -> None:
        """Add the variables of some gangs (G,) that do not have them yet.

        Raises `ValueError` for a gang that shares its gang class with others.
        """
        classes, model, form = self._form.gangs, self._form.model, self._form
        starts = classes.member_start[:-1]
        chosen = np.add.reduceat(gangs[classes.members].astype(np.int64), starts) > 0
        if (chosen & (classes.multiplicity > 1)).any():
            raise ValueError("rows over gangs and nodes need gangs that `distinguish_gangs` names")
        is_new = chosen[classes.gang_class_of] & (self.gang_of < 0)
        self.gang_of = np.where(
            is_new, classes.members[starts][classes.gang_class_of], self.gang_of
        )
        here = self._supplied[classes.class_of]
        entry, node = np.nonzero((here >= 0) & is_new[:, None])
        most = np.minimum(classes.per_gang[entry], model.bounds[1][here[entry, node]])
        self.variables[entry, node] = added = model.add_variables(0, most)
        split = np.flatnonzero(is_new)
        model.add_rows(
            np.concatenate([np.searchsorted(split, entry), np.arange(len(split))]),
            np.concatenate([added, form.placed_variable[split]]),
            np.concatenate([np.ones_like(added), -form.placed_factor[split]]),
            lower=np.zeros(len(split), np.int64),
            upper=0,
        )

    def add_supply_rows(self) -> None:
        """Keep the entries of a class within what nodes supply to it; call it after every `add`."""
        entry, node = np.nonzero(self.variables >= 0)
        supply = self._supplied[self._form.gangs.class_of[entry], node]
        pairs, at = np.unique(supply, return_inverse=True)
        self._form.model.add_rows(
            np.concatenate([at, np.arange(len(pairs))]),
            np.concatenate([self.variables[entry, node], pairs]),
            np.concatenate([np.ones_like(entry), -np.ones_like(pairs)]),
            upper=np.zeros(len(pairs), np.int64),
        )

    def of_gang(self, gang: int) -> I64:
        """Return the variables of a gang by entry and node, -1 where there is none."""
        found: I64 = self.variables[self.gang_of == gang]
        return found

    def values(self, node_of: I64) -> tuple[I64, I64]:
        """Variables (m,) and their values when tasks stand on nodes (T,)."""
        problem, classes = self._form.problem, self._form.gangs
        value = np.zeros(self.variables.shape, np.int64)
        for f in np.flatnonzero(self.gang_of >= 0).tolist():
            begin = problem.task_start[self.gang_of[f]] + problem.shapes.offset[classes.entry_of[f]]
            nodes = node_of[begin : begin + classes.per_gang[f]]
            np.add.at(value[f], nodes[nodes >= 0], 1)
        there = self.variables >= 0
        return self.variables[there], value[there]

    def add_domain_rows(self, choices: Choices) -> None:
        """Keep entries with nodes of their own in the domains of the network that gangs choose.

        Other tasks that are bound to domains have what these entries leave of their class there.
        """
        model, class_of = self._form.model, self._form.gangs.class_of
        for demand in choices.demands:
            if self.gang_of[demand.entry] < 0:
                continue
            forest = self._form.problem.topology.forest(demand.choice.bound)
            mine = self.variables[demand.entry]
            for d, variable in zip(
                demand.choice.domains.tolist(), demand.variables.tolist(), strict=True
            ):
                inside = mine[forest.inside(d) & (mine >= 0)]
                factors = np.append(-np.ones_like(inside), demand.factor)
                model.add_rows(0, np.append(inside, variable), factors, upper=0)
        for c in np.unique(class_of[self.gang_of >= 0]).tolist():
            others = [
                d for d in choices.demands if class_of[d.entry] == c and self.gang_of[d.entry] < 0
            ]
            if not others:
                continue
            forest = self._form.problem.topology.forest(others[0].choice.bound)
            domain = np.concatenate([d.choice.domains for d in others])
            variable = np.concatenate([d.variables for d in others])
            factor = np.concatenate([np.full(len(d.variables), d.factor) for d in others])
            for e in np.unique(domain).tolist():
                inner, inside = within(forest, e, domain), forest.inside(e)
                taken = self.variables[(class_of == c) & (self.gang_of >= 0)][:, inside].ravel()
                nodes = self._supplied[c, inside]
                taken, nodes = taken[taken >= 0], nodes[nodes >= 0]
                bound, at = np.unique(variable[inner], return_inverse=True)
                total = np.bincount(at, weights=factor[inner]).astype(np.int64)
                model.add_rows(
                    0,
                    np.concatenate([bound, taken, nodes]),
                    np.concatenate([total, np.ones_like(taken), -np.ones_like(nodes)]),
                    upper=0,
                )
