"""The aggregated model of a session: how many gangs and tasks of each class start.

The aggregated model does not depend on nodes. Plugins add rows to the model. The model has one
supply row per task class. An engine adds supply variables to the supply rows, for single nodes or
for configurations of node classes.

Gangs of equal gang shape, queue and tier form a gang class h with multiplicity m[h]. The variables
are:

- y[h] ∈ [0, m[h]] is the number of gangs of the class that start;
- x[f] ∈ [0, m[h]·count[f]] is the number of placed tasks of entry f. An entry is a group of tasks
  of one gang class that have the same role and task class. If all tasks of a gang start together,
  x[f] is count[f]·y[h] and has no separate variable.

If the placed tasks are distributed round-robin over the started gangs, every gang reaches its
minimums. For any range of consecutive entries, the numbers of placed tasks of two gangs then differ
by at most one. So if the average number of placed tasks per gang reaches a minimum, every gang
reaches this minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np

from optsched.problem.arrays import frozen, ranges, row_groups
from optsched.problem.linear import Expression, LinearModel
from optsched.problem.shapes import NO_PART
from optsched.problem.topology import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.problem.topology import Bound, Forest


@dataclass(frozen=True, eq=False)
class GangClasses:
    """The gang classes (axis H), and their entries, which are groups of equal tasks (axis F).

    Attributes
    ----------
    shape_of, queue_of, tier_of, multiplicity
        (H,) gang shape, queue, tier (0 is most important) and number of gangs of each class.
    start
        (H+1,) offsets into axis F: class h has the entries start[h] to start[h+1]-1.
    members, member_start
        `members` lists the gangs of all classes, oldest first within a class. Class h has the gangs
        members[member_start[h]:member_start[h+1]].
    class_of, per_gang
        (F,) task class of each entry, and number of tasks of the entry in one gang.
    entry_of
        (F,) index of each entry on the problem's axis E.
    gang_class_of
        (F,) gang class of each entry.

    """

    shape_of: I64
    queue_of: I64
    tier_of: I64
    multiplicity: I64
    start: I64
    members: I64
    member_start: I64
    class_of: I64
    per_gang: I64
    entry_of: I64
    gang_class_of: I64

    def __post_init__(self) -> None:
        frozen(*vars(self).values())


def gang_classes(
    problem: Problem, tiers: Tiers, apart: Bool | None = None, kinds: Sequence[I64] = ()
) -> GangClasses:
    """Group the unblocked gangs with pending tasks into gang classes.

    Gangs with different tiers (`tiers.of`) or group numbers (`tiers.mark`) are in different gang
    classes.

    Parameters
    ----------
    apart
        (G,) mask of the gangs that each form a class of their own, or None if there are none.
    kinds
        Further arrays (G,); gangs that differ in any of them are in different classes.

    """
    gangs = problem.open_gangs
    keys = (tiers.of[gangs], problem.queue_of[gangs], problem.shape_of[gangs])
    alone = np.zeros(len(gangs), np.int64)
    if apart is not None:
        alone = np.where(apart[gangs], gangs + 1, 0)
    apart_by = (kind[gangs] for kind in kinds)
    group, first = row_groups((*keys, tiers.mark[gangs], alone, *apart_by))
    names = np.arange(len(gangs))  # gangs are sorted by key, so the index breaks ties by name
    oldest = np.lexsort((names, problem.created_ms[gangs], group))
    multiplicity = np.bincount(group, minlength=len(first)).astype(np.int64)
    shape_of = keys[2][first]
    lengths = np.diff(problem.shapes.start)[shape_of]
    entry_of = ranges(problem.shapes.start[shape_of], lengths)
    return GangClasses(
        shape_of=shape_of,
        queue_of=keys[1][first],
        tier_of=keys[0][first],
        multiplicity=multiplicity,
        start=_offsets(lengths),
        members=gangs[oldest],
        member_start=_offsets(multiplicity),
        class_of=problem.shapes.class_of[entry_of],
        per_gang=problem.shapes.count[entry_of],
        entry_of=entry_of,
        gang_class_of=np.repeat(np.arange(len(first), dtype=np.int64), lengths),
    )


def _offsets(lengths: I64) -> I64:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


class Victims(NamedTuple):
    """Classes of running tasks that may be evicted (axis K).

    Attributes
    ----------
    variables
        (K,) model variable that counts the evicted tasks of each class.
    number
        (K,) number of tasks of each class, which is the upper bound of the class's variable.
    queue_of
        (K,) queue of the tasks of each class.
    request
        (K, R) request of one task of each class.

    """

    variables: I64
    number: I64
    queue_of: I64
    request: I64


class Formulation:
    """The aggregated model under construction.

    Attributes
    ----------
    model
        The linear model with the variables and rows added so far.
    start
        (H,) variable y of each gang class, or -1 for gangs whose minimum already runs.
    placed_variable, placed_factor
        (F,) variable and factor of each entry. The product of variable and factor is the number of
        placed tasks of the entry.
    supply
        (C,) supply row of each task class: Σ placed − Σ supplied ≤ 0. An engine adds the terms of
        supplied tasks to the supply rows.
    choices
        The network domains that gangs may choose.
    gang_nodes
        Variables that count the tasks of one gang on one node, or None if no plugin needs them.
    victims
        Classes of running tasks whose eviction reduces the usage of queues; None without evictions.

    """

    def __init__(self, problem: Problem, gangs: GangClasses) -> None:
        self.problem = problem
        self.gangs = gangs
        self.model = LinearModel()
        started = problem.shapes.is_started[gangs.shape_of]
        self.start = np.full(len(started), -1, np.int64)
        self.start[~started] = self.model.add_variables(0, gangs.multiplicity[~started])
        is_rigid = np.array([s.is_rigid for s in problem.shapes.shapes], np.bool_)
        rigid = ~started & is_rigid[gangs.shape_of]
        flexible = ~rigid[gangs.gang_class_of]
        most = gangs.per_gang * gangs.multiplicity[gangs.gang_class_of]
        self.placed_variable = self.start[gangs.gang_class_of].copy()
        self.placed_variable[flexible] = self.model.add_variables(0, most[flexible])
        self.placed_factor = np.where(flexible, 1, gangs.per_gang)
        self.is_flexible: Bool = flexible
        self.choices = Choices(self)
        self.victims: Victims | None = None
        self.gang_nodes: GangNodes | None = None
        num_classes = len(problem.classes.shapes)
        self.supply = self.model.add_rows(
            gangs.class_of,
            self.placed_variable,
            self.placed_factor,
            upper=np.zeros(num_classes, np.int64),
        )

    def placed(self, weight: I64, entries: Bool | None = None) -> Expression:
        """Return Σ weight · (placed tasks) over the entries in a mask (F,), or over all entries."""
        chosen = slice(None) if entries is None else entries
        return Expression.of(self.placed_variable[chosen], (self.placed_factor * weight)[chosen])

    def tasks_of(self, f: int) -> I64:
        """Return the tasks (axis T) of entry f in all gangs of the entry's class, gang by gang."""
        problem, gangs, h = self.problem, self.gangs, int(self.gangs.gang_class_of[f])
        members = gangs.members[gangs.member_start[h] : gangs.member_start[h + 1]]
        begin = problem.task_start[members] + problem.shapes.offset[gangs.entry_of[f]]
        return ranges(begin, np.full(len(members), gangs.per_gang[f]))

    def add_usage_rows(self, member: Bool, limit: I64) -> None:
        """Add rows that limit the amount of each resource used by sets of queues.

        Parameters
        ----------
        member
            (K, Q) mask of the queues in each set; a limit applies to the sum over the set.
        limit
            (K, R) base units by which tasks may increase the usage of each set, or UNLIMITED. A
            limit affects only tasks that request the resource. A negative limit admits no task
            unless evictions free enough of the resource.

        """
        request = self.problem.classes.request[self.gangs.class_of]
        is_limited = limit < _ENOUGH
        counted = member[:, self.gangs.queue_of[self.gangs.gang_class_of]]
        number, entry, amount = _match_limits(counted, request, is_limited)
        variable, factor = self.placed_variable[entry], self.placed_factor[entry] * amount
        if self.victims is None:
            if len(number):
                used, at = np.unique(number, return_inverse=True)
                upper = np.maximum(limit.ravel()[used], 0)
                self.model.add_rows(at, variable, factor, upper=upper)
            return
        of_victims = np.pad(member, ((0, 0), (0, 1)))[:, self.victims.queue_of]
        goes_to, victim, freed = _match_limits(of_victims, self.victims.request, is_limited)
        goes = _group_terms(goes_to, self.victims.variables[victim], freed)
        upper = self.model.bounds[1]
        for each, comes in _group_terms(number, variable, factor).items():
            free = int(limit.ravel()[each])
            most = max(int(upper[v]) for v, _ in comes)
            self.model.add_limit(comes, goes.get(each, ()), free, most)

    def evicted(self, resource: int, member: Bool) -> Expression:
        """Return how much of a resource the victims in the queues of a mask (Q,) release."""
        if self.victims is None:
            return Expression.of([], [])
        chosen = np.append(member, False)[self.victims.queue_of]
        request = self.victims.request[chosen, resource]
        return Expression.of(self.victims.variables[chosen], request)


_ENOUGH = 2**61


def _match_limits(counted: Bool, request: I64, is_limited: Bool) -> tuple[I64, I64, I64]:
    """Return each positive amount of `request` that a limit covers, as (limit, row, amount) arrays.

    `counted[k]` (m,) is the mask of the rows of `request` (m, R) that the limits `is_limited[k]`
    cover. A limit is numbered by its index in the flattened mask `is_limited` (K, R). The result is
    sorted by limit.
    """
    k, m = np.nonzero(counted & np.any(is_limited, axis=1)[:, None])
    pair, resource = np.nonzero((request[m] > 0) & is_limited[k])
    number = k[pair] * is_limited.shape[1] + resource
    order = np.argsort(number, kind="stable")
    return number[order], m[pair][order], request[m[pair], resource][order]


def _group_terms(number: I64, variable: I64, factor: I64) -> dict[int, list[tuple[int, int]]]:
    """Return the (variable, factor) terms of each row, keyed by row number."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row, *term in zip(number.tolist(), variable.tolist(), factor.tolist(), strict=True):
        found.setdefault(row, []).append((term[0], term[1]))
    return found


@dataclass(frozen=True, eq=False)
class Choice:
    """The domains that the gangs of a class, or one subgroup of each gang, may choose from.

    Attributes
    ----------
    gang_class, part
        The gang class and the subgroup index; `part` is NO_PART if whole gangs choose.
    bound
        The topology bound that restricts the domains.
    domains, variables
        (k,) domains, and variables that count the gangs or subgroups placed in each domain.

    """

    gang_class: int
    part: int
    bound: Bound
    domains: I64
    variables: I64


@dataclass(frozen=True, eq=False)
class Demand:
    """The number of tasks of one entry in each domain, expressed as factor · variable.

    Attributes
    ----------
    entry
        Index of the entry on axis F.
    choice
        The choice of domains that applies to the entry.
    variables
        (k,) one variable per domain of the choice.
    factor
        Number of tasks per unit of a variable.

    """

    entry: int
    choice: Choice
    variables: I64
    factor: int


class Choices:
    """Variables and rows of the aggregated model that place gangs in network domains.

    For a gang class h, v[h, d] counts the gangs whose tasks are all in domain d. If a subgroup
    chooses, only the tasks of the subgroup have to be in domain d. Any two domains of a forest are
    nested or disjoint. By Hall's theorem (1935), all tasks fit on nodes of their domains if and
    only if, for every domain e,

        Σ_{d ⊆ e} tasks restricted to d ≤ supply of the nodes of e

    Tasks that are restricted to different forests are in different task classes.
    """

    def __init__(self, form: Formulation) -> None:
        # The formulation refers to the choices, so a strong reference to the formulation would be a
        # reference cycle and keep both objects in memory.
        self._form_ref = ref(form)
        self.all: list[Choice] = []
        self.demands: list[Demand] = []

    @property
    def form(self) -> Formulation:
        """The aggregated model to which this object adds rows."""
        form = self._form_ref()
        if form is None:
            raise ReferenceError("the formulation of these choices has been freed")
        return form

    def add_class(self, h: int, whole: Choice | None, parts: list[Choice | None]) -> None:
        """Add rows that keep the tasks of a gang class in the chosen domains."""
        form = self.form
        shape = form.problem.shapes.shapes[int(form.gangs.shape_of[h])]
        for part in (part for part in parts if part is not None):
            if whole is not None:
                self._nest(whole, part, is_rigid=shape.is_rigid)
        for e, entry in enumerate(shape.entries):
            own = None if entry.part == NO_PART else parts[entry.part]
            choice = own or whole
            if choice is not None:
                self._follow(int(form.gangs.start[h]) + e, choice)
        several = int(form.gangs.multiplicity[h]) > 1
        if whole is not None and several and not shape.is_rigid:
            self._require_minimum_in_domains(h, whole)

    def choose(self, h: int, part: int, bound: Bound, domains: I64) -> Choice:
        """Let each gang of a class, or one subgroup of each gang, choose among `domains` (k,)."""
        model, gangs = self.form.model, self.form.gangs
        most = int(gangs.multiplicity[h])
        variables = model.add_variables(0, np.full(len(domains), most, np.int64))
        choice = Choice(h, part, bound, domains, variables)
        self.all.append(choice)
        ones, start = np.ones(len(domains), np.int64), int(self.form.start[h])
        shape = self.form.problem.shapes.shapes[int(gangs.shape_of[h])]
        if part != NO_PART and not shape.is_rigid:
            model.add_rows(
                0, variables, ones, upper=most
            )  # a subgroup that does not start has no domain
        elif start >= 0:
            model.add_rows(0, np.append(variables, start), np.append(ones, -1), lower=0, upper=0)
        elif len(domains):
            model.add_rows(0, variables, ones, lower=most, upper=most)
        return choice

    def _nest(self, whole: Choice, part: Choice, *, is_rigid: bool) -> None:
        """Add rows that keep a subgroup within its gang's domain."""
        forest = self.form.problem.topology.forest(whole.bound)
        model = self.form.model
        if is_rigid:
            for d in whole.domains.tolist():
                inner = whole.variables[find_within_domain(forest, d, whole.domains)]
                parts = part.variables[find_within_domain(forest, d, part.domains)]
                factors = np.repeat(np.array([1, -1]), (len(inner), len(parts)))
                model.add_rows(0, np.concatenate([inner, parts]), factors, upper=0)
            return
        for e, variable in zip(part.domains.tolist(), part.variables.tolist(), strict=True):
            above = (whole.domains <= e) & (e < forest.end[whole.domains])
            factors = np.append(1, -np.ones(int(above.sum()), np.int64))
            model.add_rows(0, np.append(variable, whole.variables[above]), factors, upper=0)

    def _follow(self, f: int, choice: Choice) -> None:
        """Add rows that keep the tasks of entry f in the chosen domains."""
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
        """Add rows that place each gang's minimum in its domain: Σ_f x[f, d] ≥ need·v[d]."""
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
        """Yield (task class, forest, domains, variables, factors) for tasks restricted to domains.

        Domains, variables and factors are arrays (k,). Tasks that may be placed in the whole
        cluster are excluded.
        """
        form = self.form
        found: dict[int, list[Demand]] = {}
        for demand in self.demands:
            found.setdefault(int(form.gangs.class_of[demand.entry]), []).append(demand)
        for task_class, demands in sorted(found.items()):
            domain = np.concatenate([d.choice.domains for d in demands])
            variable = np.concatenate([d.variables for d in demands])
            factor = np.concatenate([np.full(len(d.variables), d.factor) for d in demands])
            # Tasks of two roles may have one task class and share a variable, so sum the factors of
            # equal (domain, variable) pairs.
            pairs, at = np.unique(np.stack([domain, variable]), axis=1, return_inverse=True)
            factors = np.zeros(pairs.shape[1], np.int64)
            np.add.at(factors, at.ravel(), factor)
            bound = pairs[0] != CLUSTER
            if bound.any():
                forest = form.problem.topology.forest(demands[0].choice.bound)
                yield task_class, forest, pairs[0][bound], pairs[1][bound], factors[bound]

    def add_supply_rows(self, supplied: I64) -> None:
        """Add the rows of Hall's theorem; `supplied` (C, N) holds the supply variables, or -1."""
        for task_class, forest, domain, variable, factor in self.by_class():
            for e in np.unique(domain).tolist():
                inner = find_within_domain(forest, e, domain)
                nodes = supplied[task_class, forest.inside(e)]
                nodes = nodes[nodes >= 0]
                self.form.model.add_rows(
                    0,
                    np.concatenate([variable[inner], nodes]),
                    np.concatenate([factor[inner], -np.ones_like(nodes)]),
                    upper=0,
                )


def find_within_domain(forest: Forest, domain: int, others: I64) -> I64:
    """Return the indices in `others` (k,) of the domains that lie within `domain`."""
    return np.flatnonzero((others >= domain) & (others < forest.end[domain]))


def candidates(forest: Forest, bound: Bound) -> I64:
    """Return the allowed domains that contain all running tasks of the gang or subgroup."""
    allowed = bound.allowed.copy()
    if bound.held >= 0:
        numbers = np.arange(len(forest))
        allowed &= (numbers <= bound.held) & (bound.held < forest.end)
    return np.flatnonzero(allowed)


def widest(forest: Forest, domains: I64) -> I64:
    """Return the domains whose parent is not among `domains`."""
    chosen = np.zeros(len(forest) + 1, np.bool_)
    chosen[domains] = True
    return domains[~chosen[forest.parent[domains]]]


class GangNodes:
    """Variables that count the tasks of one gang on one node.

    Consider an entry f (equal tasks) of a gang that is the only gang of its gang class. The
    variable w[f, n] counts the tasks of the entry on node n:

        Σ_n w[f, n] = x[f]   and   Σ_{f ∈ F(c)} w[f, n] ≤ u[c, n]

    The variable u[c, n] counts the tasks of class c on node n. Without w, a solution does not
    determine which gang's tasks run on a node.

    Attributes
    ----------
    gang_of
        (F,) gang of each entry, or -1 if the entry has no variables w.
    variables
        (F, N) variable w of each entry and node, or -1 if there is none.

    """

    def __init__(self, form: Formulation, supplied: I64) -> None:
        """`supplied` (C, N) holds the variables u; -1 means no variable."""
        self._form, self._supplied = form, supplied
        shape = (len(form.gangs.class_of), supplied.shape[1])
        self.gang_of: I64 = np.full(shape[0], -1, np.int64)
        self.variables: I64 = np.full(shape, -1, np.int64)

    def add(self, gangs: Bool) -> None:
        """Add the variables w for those gangs in a mask (G,) that have no variables w yet.

        Raises ValueError if a gang shares its gang class with another gang.
        """
        classes, model, form = self._form.gangs, self._form.model, self._form
        starts = classes.member_start[:-1]
        chosen = np.add.reduceat(gangs[classes.members].astype(np.int64), starts) > 0
        if (chosen & (classes.multiplicity > 1)).any():
            raise ValueError(
                "a gang with variables per node needs a class of its own (`distinguish_gangs`)"
            )
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
        """Add a row Σ w ≤ u for each task class and node; call it once after all calls of `add`."""
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
        """Return the variables w of a gang for each of its entries and each node; -1 means none."""
        found: I64 = self.variables[self.gang_of == gang]
        return found

    def values(self, node_of: I64) -> tuple[I64, I64]:
        """Return all variables w (m,), and their values (m,) if task t is on node `node_of[t]`."""
        problem, classes = self._form.problem, self._form.gangs
        value = np.zeros(self.variables.shape, np.int64)
        for f in np.flatnonzero(self.gang_of >= 0).tolist():
            begin = problem.task_start[self.gang_of[f]] + problem.shapes.offset[classes.entry_of[f]]
            nodes = node_of[begin : begin + classes.per_gang[f]]
            np.add.at(value[f], nodes[nodes >= 0], 1)
        there = self.variables >= 0
        return self.variables[there], value[there]

    def add_domain_rows(self, choices: Choices) -> None:
        """Add rows that keep tasks with variables w within the domains of their gangs.

        A gang without variables w may choose a domain for tasks of the same task class. Further
        rows limit the tasks of such a gang to the part of the domain's supply that no variable w
        uses.
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
                inner, inside = find_within_domain(forest, e, domain), forest.inside(e)
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
