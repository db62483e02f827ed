"""Where gangs go, as rows of the aggregated model: domains of the network instead of single nodes.

For a gang class h, or a part of it, v[h, d] counts the gangs of the class whose tasks all lie in
domain d. Domains of one forest are nested or apart, so that tasks which must lie in domains find
room node by node exactly if for every domain e

    Σ_{d ⊆ e} tasks bound to d  ≤  what the nodes of e supply                    (Hall, 1935)

Tasks that are bound to different forests are in different task classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.subgroups import NO_PART
from optsched.problem.topology import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64
    from optsched.problem.formulation import Formulation
    from optsched.problem.topology import Bound, Forest


@dataclass(frozen=True, eq=False)
class Choice:
    """The domains that gangs of a class, or one part of each of them, may lie in.

    Attributes
    ----------
    gang_class, part
        Whose; NO_PART for the whole gang.
    bound
        Why.
    domains, variables
        (k,) domains, and the number of gangs in each.

    """

    gang_class: int
    part: int
    bound: Bound
    domains: I64
    variables: I64


@dataclass(frozen=True, eq=False)
class Demand:
    """Tasks of one entry that lie in domains: factor · variable each.

    Attributes
    ----------
    entry
        The entry on axis F.
    choice
        The choice that they follow.
    variables
        (k,) in the order of the choice's domains.
    factor
        Tasks for each of what the variables count.

    """

    entry: int
    choice: Choice
    variables: I64
    factor: int


class Choices:
    """The choices of one formulation and the tasks that follow them, under construction."""

    def __init__(self, form: Formulation) -> None:
        self.form = form
        self.all: list[Choice] = []
        self.demands: list[Demand] = []

    def add_class(self, h: int, whole: Choice | None, parts: list[Choice | None]) -> None:
        """Let the tasks of a gang class follow its choices, and parts stay within the whole."""
        form = self.form
        shape = form.problem.shapes.shapes[int(form.gangs.shape_of[h])]
        for part in (part for part in parts if part is not None):
            if whole is not None:
                self._nest(h, whole, part)
        for e, entry in enumerate(shape.entries):
            own = None if entry.part == NO_PART else parts[entry.part]
            choice = own or whole
            if choice is not None:
                self._follow(int(form.gangs.start[h]) + e, choice)
        several = int(form.gangs.multiplicity[h]) > 1
        if whole is not None and several and not shape.is_rigid:
            self._require_minimum_in_domains(h, whole)

    def choose(self, h: int, part: int, bound: Bound, domains: I64) -> Choice:
        """Which of some domains (k,) gangs of a class, or a part of them, go to."""
        model, gangs = self.form.model, self.form.gangs
        most = int(gangs.multiplicity[h])
        variables = model.add_variables(0, np.full(len(domains), most, np.int64))
        choice = Choice(h, part, bound, domains, variables)
        self.all.append(choice)
        ones, start = np.ones(len(domains), np.int64), int(self.form.start[h])
        if part != NO_PART and not self._is_rigid(h):
            model.add_rows(0, variables, ones, upper=most)  # it may stay out
        elif start >= 0:
            model.add_rows(0, np.append(variables, start), np.append(ones, -1), lower=0, upper=0)
        elif len(domains):
            model.add_rows(0, variables, ones, lower=most, upper=most)
        return choice

    def _is_rigid(self, h: int) -> bool:
        return self.form.problem.shapes.shapes[int(self.form.gangs.shape_of[h])].is_rigid

    def _nest(self, h: int, whole: Choice, part: Choice) -> None:
        """The part of a gang lies within the domain of the gang."""
        forest = self.form.problem.topology.forest(whole.bound)
        model = self.form.model
        if self._is_rigid(h):
            for d in whole.domains.tolist():
                inner = whole.variables[within(forest, d, whole.domains)]
                parts = part.variables[within(forest, d, part.domains)]
                factors = np.repeat(np.array([1, -1]), (len(inner), len(parts)))
                model.add_rows(0, np.concatenate([inner, parts]), factors, upper=0)
            return
        for e, variable in zip(part.domains.tolist(), part.variables.tolist(), strict=True):
            above = (whole.domains <= e) & (e < forest.end[whole.domains])
            factors = np.append(1, -np.ones(int(above.sum()), np.int64))
            model.add_rows(0, np.append(variable, whole.variables[above]), factors, upper=0)

    def _follow(self, f: int, choice: Choice) -> None:
        """Tasks of an entry lie in the domains of a choice."""
        form = self.form
        per_gang, many = int(form.gangs.per_gang[f]), len(choice.domains)
        if not form.is_flexible[f]:
            self.demands.append(Demand(f, choice, choice.variables, per_gang))
            return
        most = per_gang * int(form.gangs.multiplicity[choice.gang_class])
        placed = form.model.add_variables(0, np.full(many, most, np.int64))
        whole = np.append(np.ones(many, np.int64), -1)
        form.model.add_rows(0, np.append(placed, form.placed_variable[f]), whole, lower=0, upper=0)
        rows = np.arange(many)
        form.model.add_rows(
            np.concatenate([rows, rows]),
            np.concatenate([placed, choice.variables]),
            np.repeat(np.array([1, -per_gang]), many),
            upper=np.zeros(many, np.int64),
        )
        self.demands.append(Demand(f, choice, placed, 1))

    def _require_minimum_in_domains(self, h: int, whole: Choice) -> None:
        """The gangs in each domain have their minimum there: Σ_f x[f, d] ≥ need·v[d]."""
        shape = self.form.problem.shapes.shapes[int(self.form.gangs.shape_of[h])]
        mine = [d for d in self.demands if d.choice is whole]
        roles = [shape.entries[d.entry - int(self.form.gangs.start[h])].role for d in mine]
        needs = [(shape.need, mine)]
        needs += [
            (need, [d for d, r in zip(mine, roles, strict=True) if r == role])
            for role, need in shape.need_role
        ]
        for need, demands in needs:
            for k, variable in enumerate(whole.variables.tolist()):
                if need:
                    placed = [int(d.variables[k]) for d in demands]
                    factors = np.append(np.ones(len(placed), np.int64), -need)
                    self.form.model.add_rows(0, [*placed, variable], factors, lower=0)

    # --- supply ----------------------------------------------------------------------------------

    def by_class(self) -> Iterator[tuple[int, Forest, I64, I64, I64]]:
        """Task class, its forest, and (k,) domain, variable and factor of what is bound of it.

        Tasks that may go anywhere are left out.
        """
        form = self.form
        found: dict[int, list[Demand]] = {}
        for demand in self.demands:
            found.setdefault(int(form.gangs.class_of[demand.entry]), []).append(demand)
        for task_class, demands in sorted(found.items()):
            domain = np.concatenate([d.choice.domains for d in demands])
            variable = np.concatenate([d.variables for d in demands])
            factor = np.concatenate([np.full(len(d.variables), d.factor) for d in demands])
            # Two roles of a gang may be alike: their tasks follow the same variable.
            pairs, at = np.unique(np.stack([domain, variable]), axis=1, return_inverse=True)
            factors = np.zeros(pairs.shape[1], np.int64)
            np.add.at(factors, at.ravel(), factor)
            bound = pairs[0] != CLUSTER
            if bound.any():
                forest = form.problem.topology.forest(demands[0].choice.bound)
                yield task_class, forest, pairs[0][bound], pairs[1][bound], factors[bound]

    def add_supply_rows(self, supplied: I64) -> None:
        """Hall's rows, with what nodes supply as variables (C, N), -1 where there is none."""
        for task_class, forest, domain, variable, factor in self.by_class():
            for e in np.unique(domain).tolist():
                inner = within(forest, e, domain)
                nodes = supplied[task_class, forest.inside(e)]
                nodes = nodes[nodes >= 0]
                self.form.model.add_rows(
                    0,
                    np.concatenate([variable[inner], nodes]),
                    np.concatenate([factor[inner], -np.ones_like(nodes)]),
                    upper=0,
                )


def within(forest: Forest, domain: int, others: I64) -> I64:
    """Places in `others` (k,) of domains that are in a domain."""
    return np.flatnonzero((others >= domain) & (others < forest.end[domain]))


def candidates(forest: Forest, bound: Bound) -> I64:
    """The domains that a bound allows and that hold what runs already."""
    allowed = bound.allowed.copy()
    if bound.held >= 0:
        numbers = np.arange(len(forest))
        allowed &= (numbers <= bound.held) & (bound.held < forest.end)
    return np.flatnonzero(allowed)


def widest(forest: Forest, domains: I64) -> I64:
    """Those of some domains that are in no other of them."""
    chosen = np.zeros(len(forest) + 1, np.bool_)
    chosen[domains] = True
    return domains[~chosen[forest.parent[domains]]]
