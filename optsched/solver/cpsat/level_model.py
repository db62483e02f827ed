"""Messages to and from the solver process, which consist of plain arrays without OR-Tools."""

from __future__ import annotations

from dataclasses import dataclass
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
        The expression, and whether it is maximised or minimised.
    at_least
        A value that is reachable while all earlier levels have their `at_least`, or None if
        unknown. For a minimised level, `at_least` is an upper bound.
    at_most
        A bound that holds as long as no earlier level is worse than its `at_least`, or None if
        unknown. For a minimised level, `at_most` is a lower bound.

    """

    expression: Expression
    sense: Sense
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Configurations:
    """Node classes to be filled by configurations, which are multisets of tasks that fit one node.

    Attributes
    ----------
    supply
        (C,) index of the row that counts the placements of each task class. Every use of a
        configuration subtracts its tasks from the row.
    request
        (C, R) request of one task of each class.
    capacity, multiplicity
        (K, R) idle capacity of one node of each node class, and (K,) number of nodes of each class.
    allowed
        (K, C) mask of the task classes that may be placed on nodes of each class.
    start_class, start_tasks
        (P,) node class and (P, C) tasks of each configuration that the incumbent uses.

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
    """The meaning of a complete model's variables, by which restricted models can be solved.

    Attributes
    ----------
    node_of
        (variables,) node on which each variable counts tasks, -1 for all other variables.
    stage
        (variables,) first level whose objective includes the gangs of each variable, -1 for
        variables that belong to no gang.
    linking
        (rows,) mask of rows that equate the placements of gangs with the supply of nodes. If gangs
        are excluded, the supply of nodes is reduced by the tasks of these gangs.
    num_rules
        Number of rows of hard rules. The later rows define levels.

    """

    node_of: I64
    stage: I64
    linking: Bool
    num_rules: int


@dataclass(frozen=True, eq=False)
class LevelModel:
    """A model whose levels are solved sequentially, with earlier levels held at their values.

    Attributes
    ----------
    lower, upper, rows
        Bounds (variables,) of the integer variables, and the rows.
    objectives
        The objectives of the levels, the most important first.
    hint
        (variables,) values from which the solver starts, possibly infeasible.
    kin
        (variables,) group of each variable, -1 without a group. Variables of one group count equal
        gangs or tasks in different queues. Shifts within a group change only the rows of queues.
    configurations
        The node classes, or None if the model has variables for all placements.
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
        Relative gap |bound − value| / max(1, |value|) at which the solve of a level may end, or
        None to require the optimum.
    num_engines
        The most engines that may be tried sequentially while a level is not proved. The engines
        share the budget.

    """

    budget_ms: int | None = 400
    deterministic: float = 10.0
    num_workers: int = 2
    seed: int = 0
    gap: float | None = None
    num_engines: int = 1

    def suffices(self, value: int | None, bound: int | None) -> bool:
        """Return whether the bound proves a level's value optimal or within the relative gap."""
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
        The value of the incumbent, and the bound that no solution beats, or None if unknown.
    status
        The status of the level.
    solution
        (variables,) a solution of the model with this value, or None if no solution was found.
    use_class, use_tasks, uses
        (P,) node class, (P, C) tasks and (P,) number of uses of each configuration of the solution.

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
    """Progress on a level, while the level is being solved or when it is finished.

    Attributes
    ----------
    at_s
        Wall-clock seconds since the solve began, or CP-SAT's deterministic seconds without a time
        limit.
    update
        The state of the level, with a solution only if the solution is better than the last one.

    """

    at_s: float
    update: LevelUpdate


DONE = "all levels done"


def forward_messages(answers: Generator[Any, None, str], take: Callable[[Any], None]) -> str:
    """Pass every message of a search to `take`, and return the reason why the search ended."""
    while True:
        try:
            take(next(answers))
        except StopIteration as end:
            return str(end.value)
