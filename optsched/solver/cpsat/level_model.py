"""Level models and updates of level values, as plain arrays that need no OR-Tools.

The solver process receives level models and sends updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optsched.cluster.decisions import relative_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from optsched.cluster.decisions import LevelStatus, Sense
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import Expression, Rows


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective of one level.

    Attributes
    ----------
    expression, sense
        The expression, and whether the expression is maximised or minimised.
    at_least
        A value that the level can reach while every earlier level reaches its own `at_least`, or
        None if unknown. If the level is minimised, `at_least` is an upper bound on the level's best
        value.
    at_most
        A bound that is valid if no earlier level is worse than its own `at_least`, or None if
        unknown. If the level is minimised, `at_most` is a lower bound.

    """

    expression: Expression
    sense: Sense
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Configurations:
    """Node classes, and the tasks that fit the nodes of each class.

    A configuration is a multiset of tasks that fits one node.

    Attributes
    ----------
    supply
        (C,) index of the row that counts the placements of each task class. If a node uses a
        configuration, the tasks of the configuration are subtracted from the rows.
    request
        (C, R) request of one task of each class.
    capacity, multiplicity
        `capacity` (K, R) is the idle capacity of one node of each class. `multiplicity` (K,) is the
        number of nodes of each class.
    allowed
        (K, C) mask of the task classes that may be placed on nodes of each class.
    start_class, start_tasks
        The configurations that the incumbent uses. `start_class` (P,) is the node class of each
        configuration, and `start_tasks` (P, C) contains the tasks of each configuration.

    """

    supply: I64
    request: I64
    capacity: I64
    multiplicity: I64
    allowed: Bool
    start_class: I64
    start_tasks: I64


@dataclass(frozen=True, eq=False)
class Placement:
    """The meaning of variables in a complete model, which is needed to solve restricted models.

    Attributes
    ----------
    node_of
        (variables,) index of the node on which a variable counts tasks, -1 for variables of no
        node.
    stage
        (variables,) the first level whose objective includes the gangs of a variable, -1 for
        variables of no gang.
    linking
        (rows,) mask of the rows that equate the tasks of gangs with the tasks on nodes. If gangs
        are excluded from a model, tasks of excluded gangs are also removed from the nodes.
    num_rules
        Number of rows of hard rules. All rows after the rows of hard rules define levels.

    """

    node_of: I64
    stage: I64
    linking: Bool
    num_rules: int


@dataclass(frozen=True, eq=False)
class LevelModel:
    """A model with several objectives, the levels, which are solved sequentially.

    While a level is solved, rows prevent earlier levels from becoming worse.

    Attributes
    ----------
    lower, upper, rows
        Bounds (variables,) of the integer variables, and the rows.
    objectives
        The objectives of the levels, the most important first.
    hint
        (variables,) values from which the solver starts, possibly infeasible.
    kin
        (variables,) group of each variable, -1 for variables of no group. Variables of one group
        count equal gangs or equal tasks in different queues. If one variable of a group increases
        and another decreases by the same amount, only rows of queues change.
    configurations
        The node classes, or None if the model has a variable for each node and task class.
    placement
        The meaning of variables, or None if only the complete model can be solved.

    """

    lower: I64
    upper: I64
    rows: Rows
    objectives: tuple[Objective, ...]
    hint: I64
    kin: I64
    configurations: Configurations | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a solve.

    Attributes
    ----------
    budget_ms
        Wall time for all levels in milliseconds. If the budget is None, no clock is read.
    deterministic
        Limit of the solver's work for each level in CP-SAT's deterministic seconds.
    num_workers
        Number of CP-SAT threads. A solve with one thread is reproducible.
    seed
        Seed of all random numbers.
    gap
        The relative gap |bound − value| / max(1, |value|) at which the solve of a level may end. If
        `gap` is None, the solver continues until the optimum is proved.
    num_engines
        The maximum number of engines that are tried sequentially while a level is not proved
        optimal. The engines share one budget.

    """

    budget_ms: int | None = 400
    deterministic: float = 10.0
    num_workers: int = 2
    seed: int = 0
    gap: float | None = None
    num_engines: int = 1

    def cap_budget(self, left_ms: int | None) -> Limits:
        """Return the limits with a budget of at most `left_ms`, or unchanged without a limit."""
        if left_ms is None:
            return self
        return replace(self, budget_ms=min(left_ms, self.budget_ms or left_ms))

    def suffices(self, value: int | None, bound: int | None) -> bool:
        """Return whether the bound proves that a level's value is optimal or within the gap."""
        if value is None or bound is None:
            return False
        return value == bound or (self.gap is not None and relative_gap(value, bound) <= self.gap)


@dataclass(frozen=True, eq=False)
class LevelUpdate:
    """The progress of one level.

    Attributes
    ----------
    level
        Index of the level.
    value, bound
        `value` is the level's value in the incumbent. `bound` is a bound on the best possible
        value. `value` or `bound` is None if unknown.
    status
        The status of the level.
    solution
        (variables,) a solution of the model with the value `value`, or None if no solution was
        found.
    use_class, use_tasks, uses
        The configurations of the solution. `use_class` (P,) is the node class of each
        configuration, and `use_tasks` (P, C) contains the tasks of each configuration. `uses` (P,)
        is the number of nodes that use each configuration.

    """

    level: int
    value: int | None
    bound: int | None
    status: LevelStatus
    solution: I64 | None = None
    use_class: I64 | None = None
    use_tasks: I64 | None = None
    uses: I64 | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """A report of progress on a level, sent during or at the end of the solve of the level.

    Attributes
    ----------
    at_s
        Wall-clock seconds since the solve began. If the solve has no time limit, `at_s` holds
        CP-SAT's deterministic seconds.
    update
        The update of the level. The update contains a solution only if the solution is better than
        the last reported solution.

    """

    at_s: float
    update: LevelUpdate


DONE = "all levels done"


def forward_messages(answers: Generator[Any, None, str], take: Callable[[Any], None]) -> str:
    """Pass every message of a solve to `take`, and return the reason why the solve ended."""
    while True:
        try:
            take(next(answers))
        except StopIteration as end:
            return str(end.value)
